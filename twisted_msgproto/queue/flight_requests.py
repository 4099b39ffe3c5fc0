"""What may be asked of a queue from elsewhere, without the wire: :class:`Served`.

Requests and answers are JSON objects; ``docs/queue-flight.md`` lists them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from twisted_msgproto.core.errors import QueueError, QueueMismatch, shown

from ..core.disk import Disk
from . import consumers, damage
from .consumers import by_our_clock, status_path, write_status
from .damage import Range
from .lineage import Description, Landed
from .reader import READ_ROWS, QueueReader
from .schema import SCHEMA, empty

REQUEST_BYTES_MAX = 4096
ROWS_MAX = 100_000

TOKEN_FILE = "flight-{port}.token"  # in the queue's directory, without an operator's token
CONSUMERS_MAX = 64  # over the wire: each is a file, read at every trim, which may stop it

Request = dict[str, Any]
Chunk = tuple[pa.RecordBatch, bytes | None]  # rows, and damage met so far, as JSON

DESCRIBED = [part.name for part in fields(Description)]
PLACED = [part.name for part in fields(Landed)]
NO_ROWS = empty(SCHEMA)


class Served:
    """One queue and what may be asked of it; used by many threads."""

    def __init__(self, directory: str, disk: Disk, report: Callable[[str], None]) -> None:
        self._directory = directory
        self._disk = disk
        self._streams = Streams()
        self._report = report
        self._met: set[Range] = set()
        self._read: dict[str, int] = {}  # the end of what was read of a queue, by its id
        self._mutex = threading.Lock()
        self._marking = threading.Lock()  # one mark at a time, and its line
        self.queue_id: str = self._opened().queue_id
        self.actions: dict[str, tuple[str, Callable[[Request, str], Request]]] = {
            "describe": ("id, offsets, lineage, bytes, times, damage", self._describe),
            "place": ("what proves the row before an offset", self._place),
            "check": ("whether a place is this queue's history", self._check),
            "register": ("make a consumer known", self._register),
            "commit": ("say what a consumer does not need any more", self._commit),
            "status": ("leave a bridge's status for the status page", self._status),
            "forget": ("forget a consumer and what it needs", self._forget),
        }

    def _opened(self) -> QueueReader:
        return QueueReader(self._directory, disk=self._disk)

    def _own(self, request: Request) -> QueueReader:
        reader = self._opened()
        wanted = _text(request, "queue_id")
        if wanted != reader.queue_id:
            raise QueueMismatch(
                f"this is queue {reader.queue_id}, not {wanted[:40]!r}: another queue was put "
                "behind this address"
            )
        return reader

    def act(self, name: str, body: bytes, peer: str) -> Request:
        if name not in self.actions:
            raise QueueError(f"unknown action {name[:40]!r}; known: {', '.join(self.actions)}")
        return self.actions[name][1](_request(body), peer)

    def _describe(self, request: Request, peer: str) -> Request:
        # Who comes for the first time does not know the queue's name.
        reader = self._own(request) if "queue_id" in request else self._opened()
        described = reader.describe(_landed(request))
        met = [(lo, hi) for lo, hi in tuple(self._met) if hi > described.begin]
        if met:
            damaged = tuple(damage.merged([*described.damaged, *met]))
            described = replace(described, damaged=damaged)
        return answer(described)

    def _place(self, request: Request, peer: str) -> Request:
        reader, offset = self._own(request), _whole(request, "offset")
        return asdict(reader.place(offset))

    def _check(self, request: Request, peer: str) -> Request:
        reader, landed = self._own(request), _landed(request)
        if landed is None:
            raise QueueError("a request needs the place 'landed'")
        reader.check(landed)
        return {}

    def _register(self, request: Request, peer: str) -> Request:
        reader, consumer = self._own(request), _text(request, "consumer")
        with self._marking:
            before = self._committed(reader, consumer)
            offset = reader.register(consumer)
            if before is None:
                line = f"consumer {shown(consumer)} is new, and begins at {offset}, by {peer}"
                self._report(line)
        return {"offset": offset}

    def _commit(self, request: Request, peer: str) -> Request:
        consumer, offset = _text(request, "consumer"), _whole(request, "offset")
        reader = self._own(request)
        with self._marking:
            before = self._committed(reader, consumer)
            reader.commit(consumer, offset, _landed(request))
            read = self._read.get(reader.queue_id, 0)
            if before is None or offset < before or offset > max(before, read):
                moved = "is new, and is set" if before is None else f"is moved from {before}"
                self._report(
                    f"consumer {shown(consumer)} {moved} to {offset}, by {peer}; what this server"
                    f" was read ends at {read}"
                )
        return {}

    def _committed(self, reader: QueueReader, consumer: str) -> int | None:
        disk, directory = self._disk, self._directory
        before = consumers.read(disk, directory, consumer, reader.queue_id)
        if before is None and len(consumers.names(disk, directory)) >= CONSUMERS_MAX:
            raise QueueError(
                f"the queue has {CONSUMERS_MAX} consumers, and gets no more of them from elsewhere:"
                " forget those that are gone, with msgproto queue consumers QUEUE --forget NAME"
            )
        return before

    def _status(self, request: Request, peer: str) -> Request:
        reader, consumer = self._own(request), _text(request, "consumer")
        status = request.get("status")
        if not isinstance(status, dict):
            raise QueueError("a request needs the object 'status'")
        if consumer not in reader.consumers():  # names of files come from here alone
            raise QueueError(f"there is no consumer {consumer[:64]!r}")
        try:
            told = by_our_clock({**status, "consumer": consumer}, time.time())
            write_status(status_path(self._directory, consumer), told)
        except OSError as error:
            raise QueueError(f"the status cannot be written: {error.strerror}") from None
        return {}

    def _forget(self, request: Request, peer: str) -> Request:
        reader, consumer = self._own(request), _text(request, "consumer")
        with self._marking:
            before = consumers.read(self._disk, self._directory, consumer, reader.queue_id)
            reader.forget(consumer)
            self._report(f"consumer {shown(consumer)}, at {before}, is forgotten, by {peer}")
        return {}

    def stream(self, ticket: bytes) -> Iterator[Chunk]:
        """Yield the batches of a ticket, with the ranges of damage so far; last one without rows.

        FlightUnavailableError above the limit of streams, or for a reader silent for too long;
        callers then try again.
        """
        request = _request(ticket)
        reader = self._own(request)
        rows = min(_whole(request, "rows", READ_ROWS), ROWS_MAX) or READ_ROWS
        lo, hi = _whole(request, "lo"), _whole(request, "hi")
        landed = _landed(request)
        stream = self._streams.begin()
        if stream is None:
            raise flight.FlightUnavailableError("too many streams at once; try again")
        try:
            found = reader.read(lo, hi, rows, landed=landed)
            told: list[Range] = []
            for batch in found:
                met = found.damaged
                stream.waits_since = time.monotonic()
                yield batch, (_damaged(met) if met != told else None)
                stream.waits_since = None
                if stream.lost:
                    raise flight.FlightUnavailableError(
                        "nothing was taken of this stream for too long, and another one needed "
                        "its place; read on from the last row"
                    )
                told = met
                self._was_read(reader, batch.column("offset")[-1].as_py() + 1)
            self._was_read(reader, hi)
            yield NO_ROWS, _damaged(found.damaged)
        finally:
            self._streams.end(stream)
            self._met.update(reader.damaged())

    def _was_read(self, reader: QueueReader, end: int) -> None:
        with self._mutex:
            self._read[reader.queue_id] = max(end, self._read.get(reader.queue_id, 0))


def answer(described: Description) -> Request:
    # Not asdict: it copies what is deep, and costs half of the whole answer.
    told = {name: getattr(described, name) for name in DESCRIBED}
    told["landed"] = {name: getattr(described.landed, name) for name in PLACED}
    return told


def described(answer: Request) -> Description:
    """A description as it came over the wire.  Raises KeyError or TypeError for what is none."""
    return Description(
        **{name: answer[name] for name in DESCRIBED}
        | {
            "landed": Landed(**answer["landed"]),
            "damaged": tuple((lo, hi) for lo, hi in answer["damaged"]),
        }
    )


def _damaged(ranges: list[Range]) -> bytes:
    return json.dumps({"damaged": ranges}).encode()


def _request(data: bytes) -> Request:
    if len(data) > REQUEST_BYTES_MAX:
        raise QueueError(f"a request has at most {REQUEST_BYTES_MAX} bytes")
    try:
        request = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise QueueError("a request is a JSON object")
    return request


def _text(request: Request, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise QueueError(f"a request needs the text {name!r}")
    return value


def _whole(request: Request, name: str, default: int | None = None) -> int:
    value = request.get(name, default)
    if type(value) is not int or value < 0:
        raise QueueError(f"a request needs the number {name!r}, 0 or above")
    return value


def _landed(request: Request) -> Landed | None:
    value = request.get("landed")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise QueueError("a place is a JSON object with 'offset', 'incarnation' and 'witness'")
    numbers = _whole(value, "offset"), _whole(value, "incarnation", 0), _whole(value, "witness", 0)
    return Landed(*numbers)


STREAMS_MAX = 16  # ranges read at the same time: each reads segments and holds a batch in memory
STREAM_IDLE_SECONDS = 30.0  # a working Spark task reads the next batch within a second


@dataclass(slots=True, eq=False)
class Stream:
    """One reader's place.  ``lost`` says that another one has it now."""

    lost: bool = False
    waits_since: float | None = None  # while the reader reads nothing; None while we prepare


class Streams:
    """At most :data:`STREAMS_MAX` places, for many threads; the silent lose theirs to others."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._active: set[Stream] = set()

    def begin(self) -> Stream | None:
        """Return a place, perhaps that of who has read nothing for longest; or None."""
        with self._mutex:
            if len(self._active) >= STREAMS_MAX and not self._make_room():
                return None
            stream = Stream()
            self._active.add(stream)
            return stream

    def _make_room(self) -> bool:
        now = time.monotonic()
        # A reader may take its batch at this very moment: look at each value once.
        waits = {stream: stream.waits_since for stream in self._active}
        since = {stream: at for stream, at in waits.items() if at is not None}
        longest = min(since, key=lambda stream: since[stream], default=None)
        if longest is None or now - since[longest] < STREAM_IDLE_SECONDS:
            return False
        longest.lost = True
        self._active.discard(longest)
        return True

    def end(self, stream: Stream) -> None:
        with self._mutex:
            self._active.discard(stream)
