"""Every byte of a small queue's files spoiled or cut off: no crash, no wrong row, a range told.

FAULTS, bit flips and truncation over every byte of a segment.  What recovery makes of the same
damage stands in ``test_recovery.py``.
"""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sim.disk import SimulatedDisk, SimulatedFile
from tests.tools.queues import (
    FRAME_HEADER_BYTES,
    FRAME_MARKER,
    HEAD_BYTES,
    encode,
    frame_header,
    frames_of,
)
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.verify import verify

DIRECTORY = "/queue"
SEGMENT = f"{DIRECTORY}/{0:020d}.segment"
COUNTS = (3, 1, 2)  # a first, a middle and a last group
ENDS = (3, 4, 6)
SCRIBBLES = 1500


def a_batch(first: int, count: int) -> MessageBatch:
    """Messages which use every kind of column there is."""
    numbers = range(first, first + count)
    return MessageBatch(
        "umq",
        "call",
        1_700_000_000_000_000 + first,
        peer="192.0.2.1:5",
        session=f"umq-{first}",
        client_id=None,
        count=count,
        nbytes=count,
        message_id=list(numbers),
        destination=[f"to {number}" for number in numbers],
        fields=[{"n": str(number), "empty": ""} for number in numbers],
        body=[b"body %d" % number for number in numbers],
        attachments=[[b"a" * number] for number in numbers],
    )


def a_queue() -> SimulatedDisk:
    """Three groups in one segment, read by one consumer, closed in peace."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    for count in COUNTS:
        log.append([encode([a_batch(log.end, count)])])
    QueueReader(DIRECTORY, disk=disk).register("spark")
    log.close()
    return disk


def read(disk: SimulatedDisk) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    reader = QueueReader(DIRECTORY, disk=disk)
    rows = [row for batch in reader.read(0, ENDS[-1]) for row in batch.to_pylist()]
    return rows, reader.damaged()


SAMPLE = a_queue()


def a_copy() -> SimulatedDisk:
    return copy.deepcopy(SAMPLE, {id(SAMPLE.mutex): SAMPLE.mutex})


DISK = a_copy()
ROWS, _ = read(DISK)
WHOLE = DISK.bytes_of(SEGMENT)


def frame_ends() -> list[int]:
    """Where each group's bytes end in the segment."""
    disk, ends = SimulatedDisk(), []
    log = SegmentLog(DIRECTORY, disk=disk)
    for count in COUNTS:
        log.append([encode([a_batch(log.end, count)])])
        ends.append(log.nbytes)
    assert ends[-1] == len(WHOLE)
    return ends


PLACES = frame_ends()


def what_is_left(rows: list[dict[str, Any]], damaged: list[tuple[int, int]]) -> set[int]:
    """The offsets of ``rows``, which are right, and with what is reported there is nothing else."""
    offsets = [row["offset"] for row in rows]
    assert rows == [ROWS[offset] for offset in offsets]
    missing = {offset for lo, hi in damaged for offset in range(lo, hi)}
    assert sorted([*offsets, *missing]) == list(range(ENDS[-1])), "each is there or told missing"
    return set(offsets)


@pytest.mark.parametrize("wrong", ["bit", 0x00, 0xFF])
def test_a_spoiled_byte_costs_a_reader_one_group_and_it_says_which(wrong: str | int) -> None:
    """A reader beside a living writer, which has found nothing yet."""
    for at, byte in enumerate(WHOLE):
        new = byte ^ 1 << at % 8 if wrong == "bit" else wrong
        if new == byte:
            continue
        DISK.spoil(SEGMENT, WHOLE[:at] + bytes([new]) + WHOLE[at + 1 :])  # type: ignore[list-item]
        left = what_is_left(*read(DISK))
        if wrong == "bit":
            report = verify(DIRECTORY, disk=DISK)
            assert report.lines
            assert report.messages == len(left)
        lost = sorted(set(range(ENDS[-1])) - left)
        if at < HEAD_BYTES:
            assert not lost, at
        else:
            group = next(number for number, end in enumerate(PLACES) if at < end)
            assert lost == list(range(ENDS[group] - COUNTS[group], ENDS[group])), at
    assert not DISK.opened.total()


def test_a_segment_cut_anywhere_gives_what_is_whole() -> None:
    """RD-50: and an error for what may be put back."""
    for length in range(len(WHOLE)):
        DISK.spoil(SEGMENT, WHOLE[:length])
        whole = sum(length >= end for end in PLACES)
        end = ENDS[whole - 1] if whole else 0
        reader = QueueReader(DIRECTORY, disk=DISK)
        assert sum(one.num_rows for one in reader.read(0, end)) == end, length
        with pytest.raises(QueueError, match="put it back"):
            list(reader.read(end, ENDS[-1]))
        assert reader.damaged() == []
        report = verify(DIRECTORY, disk=DISK)
        assert report.lines
        assert report.messages + sum(hi - lo for lo, hi in report.damaged) == ENDS[-1]
    assert not DISK.opened.total()


def test_scribbles_in_a_segment_never_give_a_wrong_row() -> None:
    """Stretches of rubbish, of other parts of the segment, and what is inserted or taken out."""
    source = random.Random(20)
    for _ in range(SCRIBBLES):
        octets = bytearray(WHOLE)
        for _ in range(source.randint(1, 4)):
            at, size = source.randrange(len(octets)), source.randint(1, 300)
            other = source.randrange(len(octets))
            match source.randrange(4):
                case 0:
                    octets[at : at + size] = source.randbytes(size)
                case 1:
                    octets[at : at + size] = octets[other : other + size]
                case 2:
                    del octets[at : at + size]
                case _:
                    octets[at:at] = octets[other : other + size]
        DISK.spoil(SEGMENT, bytes(octets))
        try:
            what_is_left(*read(DISK))
        except QueueError as error:
            assert "put it back" in str(error)  # rubbish may look like a record's first half


def test_what_was_wrong_before_its_checksum_was_made_is_no_row_that_breaks_who_reads_it() -> None:
    """Another program wrote it, or memory failed: a reader and ``verify`` say the same of it."""
    source = random.Random(21)
    for _ in range(SCRIBBLES // 3):
        octets, frame = bytearray(WHOLE), source.choice(frames_of(WHOLE))
        start = frame.position + FRAME_HEADER_BYTES
        at = start + source.randrange(frame.nbytes)
        if source.random() < 0.5:
            octets[at] ^= 1 << source.randrange(8)
        else:  # a number among the ends of texts, say
            at -= (at - start) % 4
            octets[at : at + 4] = struct.pack("<I", source.choice([0, 1, 2**31 - 1, 2**32 - 1]))
        payload = bytes(octets[start : frame.end_position])
        octets[frame.position : start] = frame_header(
            WHOLE[32:40], payload, frame.first, frame.count, frame.runs
        )
        DISK.spoil(SEGMENT, bytes(octets))
        reader = QueueReader(DIRECTORY, disk=DISK)
        batches = list(reader.read(0, ENDS[-1]))
        for batch in batches:
            batch.validate(full=True)
        damaged = reader.damaged()
        assert damaged in ([], [(frame.first, frame.end)])
        assert verify(DIRECTORY, disk=DISK).damaged == damaged
        offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        lost = range(frame.first, frame.end) if damaged else ()
        assert offsets == [offset for offset in range(ENDS[-1]) if offset not in lost]


@pytest.mark.parametrize("call", ["json.loads", "pyarrow.arange"])
def test_a_reader_without_memory_passes_over_no_row(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise MemoryError

    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    for protocol in ("p", call):  # the second one is of an origin that nobody has seen
        log.append([encode([MessageBatch(protocol, "k", 1, count=1, body=[b"x"])])])
    with monkeypatch.context() as patched:
        patched.setattr(call, fails)
        reader = QueueReader(DIRECTORY, disk=disk)
        with pytest.raises(MemoryError):
            list(reader.read(0, 2))
        assert reader.damaged() == []
    assert len(bodies_of(disk)[0]) == 2


def spoiled_files() -> Iterator[tuple[str, bytes, bytes]]:
    """Every other file of the queue with each byte spoiled, and cut at each place."""
    for path in SAMPLE.paths():
        octets = SAMPLE.bytes_of(path)
        if path == SEGMENT or path.endswith("/lock"):
            continue
        for at, byte in enumerate(octets):
            for new in {byte ^ 1 << at % 8, 0, 0xFF} - {byte}:
                yield path, octets, octets[:at] + bytes([new]) + octets[at + 1 :]
            yield path, octets, octets[:at]


def test_spoiled_small_files_are_refused_or_do_not_matter() -> None:
    """A reader gives the right rows or one clear QueueError; a start mends what can be mended."""
    names = set()
    for path, _, wrong in spoiled_files():
        names.add(path.rpartition("/")[2])
        disk = a_copy()
        disk.spoil(path, wrong)
        try:
            rows, damaged = read(disk)
        except QueueError as error:
            assert str(error).count("\n") == 0
        else:
            assert (rows, damaged) == (ROWS, [])
        try:
            QueueReader(DIRECTORY, disk=disk).consumers()
        except QueueError as error:
            assert str(error).count("\n") == 0
        log = SegmentLog(DIRECTORY, disk=disk)
        assert log.end >= ENDS[-1], "offsets which were given are never given again"
        log.append([encode([a_batch(log.end, 1)])])
        log.close()
        again = QueueReader(DIRECTORY, disk=disk)
        kept = [row for batch in again.read(0, ENDS[-1]) for row in batch.to_pylist()]
        assert [{**row, "gateway": ""} for row in kept] == [{**row, "gateway": ""} for row in ROWS]
        assert (again.queue_id, again.damaged()) == (ROWS[0]["gateway"], [])
    assert names >= {"end", "identity", "spark"}


# -- what is found behind damage ------------------------------------------------------------------


def written(*bodies: bytes) -> SimulatedDisk:
    """A queue of one message a frame, in one segment."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    for body in bodies:
        log.append([encode([MessageBatch("p", "k", 1, count=1, body=[body])])])
    return disk


def without_markers(disk: SimulatedDisk, *numbers: int) -> None:
    """Make the headers of some frames illegible."""
    octets = bytearray(disk.bytes_of(SEGMENT))
    frames = frames_of(bytes(octets))
    for number in numbers:
        octets[frames[number].position] ^= 1
    disk.spoil(SEGMENT, bytes(octets))


def bodies_of(disk: SimulatedDisk) -> tuple[list[bytes], list[tuple[int, int]]]:
    reader = QueueReader(DIRECTORY, disk=disk)
    rows = [row for batch in reader.read(0, reader.end()) for row in batch.to_pylist()]
    return [row["body"] for row in rows], reader.damaged()


def test_what_looks_like_a_frame_in_a_body_is_no_frame() -> None:
    """Not this queue's own frames, whose offsets are used up, and not those of another seed."""
    disk = written(b"first", b"second")
    whole = disk.bytes_of(SEGMENT)
    payload = whole[frames_of(whole)[0].position + FRAME_HEADER_BYTES :][:64]
    forged = frame_header(b"a guess!", payload, 3, 1000, 24) + payload
    disk.crash()
    log = SegmentLog(DIRECTORY, disk=disk)
    for body in (whole[-len(whole) // 8 * 8 :], forged, b"last"):
        log.append([encode([MessageBatch("p", "k", 1, count=1, body=[body])])])
    without_markers(disk, 2, 3)
    assert bodies_of(disk) == ([b"first", b"second", b"last"], [(2, 4)])
    disk.crash()
    assert SegmentLog(DIRECTORY, disk=disk).damaged == [(2, 4)]


@pytest.mark.parametrize("less", range(104, 128, 8))
def test_a_frame_is_found_behind_damage_larger_than_what_is_read_at_a_time(less: int) -> None:
    """Wherever its header lies across that, and however many markers are in what is damaged."""
    disk = written((FRAME_MARKER * (1 << 18))[less:], b"last")
    for at in range(4, 8):  # its checksum: more than one bit is not mended
        disk.flip(SEGMENT, frames_of(disk.bytes_of(SEGMENT))[0].position + at)
    assert bodies_of(disk) == ([b"last"], [(0, 1)])


class Counting(SimulatedDisk):
    """Counts the bytes that are read of segments."""

    nbytes = 0

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        file = super().open(path, write=write)
        if path.endswith(".segment"):
            read = file.read

            def counted(position: int, nbytes: int) -> bytes:
                found = read(position, nbytes)
                self.nbytes += len(found)
                return found

            file.read = counted  # type: ignore[method-assign]
        return file


def test_what_a_peer_sends_makes_no_search_slow_and_no_place_costs_what_is_before_it() -> None:
    """A body full of markers is looked through once; rows in the midst are found by halving."""
    disk = Counting()
    log = SegmentLog(DIRECTORY, disk=disk)
    for number in range(1200):
        body = FRAME_MARKER * (1 << 18) if number == 0 else b"%d" % number + bytes(14_000)
        log.append([encode([MessageBatch("p", "k", 1, count=1, body=[body])])])
    size = len(disk.bytes_of(SEGMENT))
    reader = QueueReader(DIRECTORY, disk=disk)
    for at in (1, 400, 1199):
        disk.nbytes = 0
        (batch,) = reader.read(at, at + 1)
        assert batch.column("body")[0].as_py().rstrip(b"\0") == b"%d" % at
        assert disk.nbytes < size / 2
    without_markers(disk, 0)
    disk.nbytes = 0
    (batch,) = QueueReader(DIRECTORY, disk=disk).read(0, 2)
    assert disk.nbytes < size
