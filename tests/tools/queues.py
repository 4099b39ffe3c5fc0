"""Queues in tests: known bodies, putting, reading and serving them, and files by
docs/queue-format.md.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import OS_DISK, SCHEMA, Disk, QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue.flight_server import QueueFlightServer
from twisted_msgproto.queue.payload import Encoded, encode

PATIENCE_SECONDS = 60.0

OFFSET_MAX = 2**63 - 1
FRAME_MARKER = b"\x93MPF"
SEGMENT_HEADER_BYTES, FRAME_HEADER_BYTES = 56, 32
HEAD_BYTES = SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + 16
"""A segment's header and its frame of lineage."""


def batch(first: int, count: int = 1, *, nbytes: int = 0) -> MessageBatch:
    """``count`` messages whose ids are ``first``, ``first`` + 1, … and whose bodies say so."""
    bodies = [b"body %d" % number for number in range(first, first + count)]
    if nbytes:
        bodies = [body.ljust(nbytes, b".") for body in bodies]
    return MessageBatch(
        "lumberjack",
        "json",
        1_700_000_000_000_000 + first,
        peer="tcp:127.0.0.1:1",
        count=count,
        nbytes=sum(map(len, bodies)),
        message_id=list(range(first, first + count)),
        body=bodies,
    )


def frame(first: int, count: int = 1, *, nbytes: int = 0) -> Encoded:
    return encode([batch(first, count, nbytes=nbytes)])


class Results:
    """Callbacks for :meth:`QueueWriter.submit`, and a place to wait for them."""

    def __init__(self) -> None:
        self.given: dict[int, BaseException | None] = {}
        """Each batch's result by its number, in the order of the calls."""
        self.firsts: dict[int, int | None] = {}
        """Each batch's first offset, None if it was not written."""
        self.again: list[int] = []
        """Batches which were called back more than once: a fault of the queue."""
        self._changed = threading.Condition()

    def submit(self, writer: QueueWriter, batch: MessageBatch, number: int | None = None) -> None:
        """Submit ``batch`` as number ``number``, which is its first message's id by default."""
        assert batch.message_id is not None or number is not None
        key = int(batch.message_id[0]) if number is None else number  # type: ignore[index, arg-type]

        def called(error: BaseException | None, first: int | None) -> None:
            with self._changed:
                if key in self.given:
                    self.again.append(key)
                self.given[key] = error
                self.firsts[key] = first
                self._changed.notify_all()

        writer.submit(batch, called)

    def wait(self, count: int) -> list[BaseException | None]:
        """Wait until ``count`` batches were called back; their results in the order of calls."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.given) >= count, PATIENCE_SECONDS)
            assert self.again == []
            return list(self.given.values())


def put(writer: QueueWriter, *batches: MessageBatch) -> list[BaseException | None]:
    """Submit ``batches`` and wait for all of them; their results in that order."""
    results = Results()
    for number, one in enumerate(batches):
        results.submit(writer, one, number)
    results.wait(len(batches))
    return [results.given[number] for number in range(len(batches))]


def rows(
    directory: str | os.PathLike[str],
    lo: int | None = None,
    hi: int | None = None,
    *,
    disk: Disk = OS_DISK,
    **options: Any,
) -> list[dict[str, Any]]:
    reader = QueueReader(directory, disk=disk)
    lo = reader.begin() if lo is None else lo
    hi = reader.end() if hi is None else hi
    batches = list(reader.read(lo, hi, **options))
    assert all(one.schema.equals(SCHEMA, check_metadata=True) for one in batches)
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, SCHEMA).to_pylist()
    return found


def ids(rows: Sequence[dict[str, Any]]) -> list[int]:
    """The rows' message ids as numbers; each body must say the same."""
    for row in rows:
        assert row["body"].startswith(b"body %d" % int(row["message_id"]))
    return [int(row["message_id"]) for row in rows]


class Frame(NamedTuple):
    """A frame of a segment, as its header says."""

    position: int
    payload_crc: int
    nbytes: int
    """Of its payload."""
    first: int
    count: int
    runs: int

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def end_position(self) -> int:
        return self.position + FRAME_HEADER_BYTES + self.nbytes


def segment_name(first: int) -> str:
    return f"{first:020d}.segment"


DIRECTORY = "/queue"
"""Of a simulated disk."""


def a_queue(disk: Disk, counts: Sequence[int] = (), **options: Any) -> SegmentLog:
    """A log in :data:`DIRECTORY` with a group for each count of messages."""
    log = SegmentLog(DIRECTORY, disk=disk, **options)
    for count in counts:
        log.append([frame(log.end, count)])
    return log


def a_reader(disk: Disk) -> QueueReader:
    return QueueReader(DIRECTORY, disk=disk)


def path_of(name: str | int) -> str:
    """The path of a file of it, or of the segment that begins at an offset."""
    return f"{DIRECTORY}/{segment_name(name) if isinstance(name, int) else name}"


def frames_of(segment: bytes) -> list[Frame]:
    """The frames with messages of a whole segment."""
    found, at = list[Frame](), HEAD_BYTES
    while at < len(segment):
        assert segment[at : at + 4] == FRAME_MARKER
        found.append(Frame(at, *struct.unpack_from("<IIQII", segment, at + 8)))
        at = found[-1].end_position
    return found


def frame_header(
    seed: bytes, payload: bytes | bytearray, first: int, count: int, runs: int
) -> bytes:
    checked = struct.pack("<IIQII", crc32(payload), len(payload), first, count, runs)
    return FRAME_MARKER + struct.pack("<I", crc32(checked, crc32(seed))) + checked


def segment_header(version: int, queue_id: str, seed: bytes, first: int) -> bytes:
    magic, own = b"\x93MPQSEG\n", bytes.fromhex(queue_id)
    octets = struct.pack("<8sII16s8sQI", magic, version, 56, own, seed, first, 0)
    return octets + struct.pack("<I", crc32(octets))


def published(offset: int, segment: int, nbytes: int) -> bytes:
    """The file ``end``."""
    said = struct.pack("<8sQQQ", b"\x93MPQEND\n", offset, segment, nbytes)
    return said + struct.pack("<I", crc32(said))


def sealed(text: str) -> bytes:
    return b"%s %08x\n" % (text.encode(), crc32(text.encode()))


class Served:
    def __init__(self, queue: Path, location: str = "grpc://127.0.0.1:0", **options: Any) -> None:
        self.server = QueueFlightServer(str(queue), location, **options)
        self.location = f"{location.rpartition(':')[0]}:{self.server.port}"
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self._thread.join()
