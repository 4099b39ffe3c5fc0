"""What may be asked of a queue from elsewhere, without the wire: :class:`Served`.

Requests and answers are JSON objects; ``docs/queue-flight.md`` lists them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from twisted_msgproto.core.errors import QueueError, QueueMismatch

from . import damage
from .bridges import status_path, write_status
from .damage import Range
from .disk import Disk
from .lineage import Description, Landed
from .reader import READ_ROWS, QueueReader
from .schema import SCHEMA, empty
from .streams import Streams

REQUEST_OCTETS_MAX = 4096
"""What an action's body or a ticket may have: it is a few names and numbers."""
ROWS_MAX = 100_000
"""A caller may request this many rows in one record batch; a larger request is reduced to it."""

Request = dict[str, Any]
Chunk = tuple[pa.RecordBatch, bytes | None]
"""Rows, and what is told with them: the damage met so far, as JSON."""

DESCRIBED = [part.name for part in fields(Description)]
PLACED = [part.name for part in fields(Landed)]
NO_ROWS = empty(SCHEMA)


class Served:
    """One queue and what may be asked of it; used by many threads."""

    def __init__(self, directory: str, streams: Streams, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._streams = streams
        self._met: set[Range] = set()
        self._mutex = threading.Lock()
        # Kept from call to call for what it remembers of places; only with the mutex.
        self._reader = self._opened()
        self.queue_id = self._reader.queue_id
        self.actions: dict[str, tuple[str, Callable[[Request], Request]]] = {
            "describe": ("id, epoch, offsets, lineage, octets, times, damage", self._describe),
            "place": ("what proves the row before an offset", self._place),
            "check": ("whether a place is this queue's history", self._check),
            "register": ("make a consumer known", self._register),
            "commit": ("say what a consumer does not need any more", self._commit),
            "status": ("leave a bridge's status for the status page", self._status),
            "forget": ("forget a consumer and what it needs", self._forget),
        }

    def _opened(self) -> QueueReader:
        """Return a reader of what stands in the directory now: another queue may have been put
        there.
        """
        return QueueReader(self._directory, disk=self._disk)

    def _own(self, request: Request) -> QueueReader:
        """A reader for a call that names this queue; QueueMismatch for any other."""
        reader = self._opened()
        wanted = _text(request, "queue_id")
        if wanted != reader.queue_id:
            raise QueueMismatch(
                f"this is queue {reader.queue_id}, not {wanted[:40]!r}: another queue was put "
                "behind this address"
            )
        return reader

    @contextmanager
    def _remembering(self, reader: QueueReader) -> Iterator[QueueReader]:
        """Return the reader that remembers places from call to call, or ``reader`` if that
        belongs to another call.
        """
        with self._mutex:
            if self._reader.identity != reader.identity:
                self._reader = reader
            yield self._reader

    def act(self, name: str, body: bytes) -> Request:
        """Answer one action."""
        if name not in self.actions:
            raise QueueError(f"unknown action {name[:40]!r}; known: {', '.join(self.actions)}")
        return self.actions[name][1](_request(body))

    def _describe(self, request: Request) -> Request:
        # Who comes for the first time does not know the queue's name.
        reader = self._own(request) if "queue_id" in request else self._opened()
        landed = _landed(request)
        with self._remembering(reader) as remembering:
            described = remembering.describe(landed)
        met = [(lo, hi) for lo, hi in tuple(self._met) if hi > described.begin]
        if met:
            damaged = tuple(damage.merged([*described.damaged, *met]))
            described = replace(described, damaged=damaged)
        return answer(described)

    def _place(self, request: Request) -> Request:
        reader, offset = self._own(request), _whole(request, "offset")
        with self._remembering(reader) as remembering:
            return asdict(remembering.place(offset))

    def _check(self, request: Request) -> Request:
        reader, landed = self._own(request), _landed(request)
        if landed is None:
            raise QueueError("a request needs the place 'landed'")
        with self._remembering(reader) as remembering:
            remembering.check(landed)
        return {}

    def _register(self, request: Request) -> Request:
        return {"offset": self._own(request).register(_text(request, "consumer"))}

    def _commit(self, request: Request) -> Request:
        consumer, offset = _text(request, "consumer"), _whole(request, "offset")
        self._own(request).commit(consumer, offset, _landed(request))
        return {}

    def _status(self, request: Request) -> Request:
        reader, consumer = self._own(request), _text(request, "consumer")
        status = request.get("status")
        if not isinstance(status, dict):
            raise QueueError("a request needs the object 'status'")
        if consumer not in reader.consumers():  # names of files come from here alone
            raise QueueError(f"there is no consumer {consumer[:64]!r}")
        try:
            write_status(status_path(self._directory, consumer), {**status, "consumer": consumer})
        except OSError as error:
            raise QueueError(f"the status cannot be written: {error.strerror}") from None
        return {}

    def _forget(self, request: Request) -> Request:
        self._own(request).forget(_text(request, "consumer"))
        return {}

    def stream(self, ticket: bytes, address: str) -> Iterator[Chunk]:
        """Yield the batches of a ticket, for a reader at ``address``.

        Where damage was found the ranges found so far come with the batch, and at the end with one
        that has no rows.  Above the limit of streams, and for a reader that read nothing for too
        long, it raises FlightUnavailableError; callers then try again.
        """
        request = _request(ticket)
        reader = self._own(request)
        rows = min(_whole(request, "rows", READ_ROWS), ROWS_MAX) or READ_ROWS
        lo, hi = _whole(request, "lo"), _whole(request, "hi")
        landed = _landed(request)
        stream = self._streams.begin(address)
        if isinstance(stream, str):
            raise flight.FlightUnavailableError(stream)
        try:
            found = reader.read(lo, hi, rows, landed=landed)
            told: list[Range] = []
            for batch in found:
                met = found.damaged
                stream.give()
                yield batch, (_damaged(met) if met != told else None)
                if not stream.taken():
                    raise flight.FlightUnavailableError(
                        "nothing was taken of this stream for too long, and another one needed "
                        "its place; read on from the last row"
                    )
                told = met
            yield NO_ROWS, _damaged(found.damaged)
        finally:
            stream.end()
            self._met.update(reader.damaged())


def answer(described: Description) -> Request:
    """A description as it goes over the wire."""
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


def _request(octets: bytes) -> Request:
    if len(octets) > REQUEST_OCTETS_MAX:
        raise QueueError(f"a request has at most {REQUEST_OCTETS_MAX} octets")
    try:
        request = json.loads(octets or b"{}")
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
