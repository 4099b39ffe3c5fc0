"""What seldom happens to a queue: disks that fail in the midst, callers at odd moments."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools.queues import PATIENCE_SECONDS, batch
from twisted_msgproto.core.errors import QueueClosed, QueueFull
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.core.packed import PackedNumbers
from twisted_msgproto.queue import QueueReader, QueueWriter, arrays, columns, recovery, verify
from twisted_msgproto.queue.log import SegmentLog
from twisted_msgproto.queue.schema import MESSAGE_ID_INTEGER, SCHEMA
from twisted_msgproto.queue.streams import Stream, Streams
from twisted_msgproto.queue.verify import segments
from twisted_msgproto.queue.writer import _session_of


def test_a_writer_says_how_large_it_may_be_and_why_it_takes_nothing(tmp_path: Path) -> None:
    writer = QueueWriter(tmp_path / "q", max_bytes=64 << 20)
    assert (writer.losses, writer.max_octets, writer.refusal) == (0, 64 << 20, None)
    writer.close()
    assert writer.refusal == "the queue is closed"
    with pytest.raises(QueueClosed, match=r"is closed$"):
        writer.submit(batch(0), lambda *answer: None)
    writer._failure = OSError("the disk is gone")
    assert writer.refusal == "the queue's writer failed: the disk is gone"
    with pytest.raises(QueueClosed, match=r"is closed: the disk is gone$"):
        writer.submit(batch(0), lambda *answer: None)


def test_what_is_submitted_in_the_writers_own_thread_is_written_too(tmp_path: Path) -> None:
    writer, firsts = QueueWriter(tmp_path / "q"), SimpleQueue[Any]()

    def again(error: BaseException | None, first: int | None) -> None:
        firsts.put((error, first))
        writer.submit(batch(2), lambda *answer: firsts.put(answer))

    writer.submit(batch(1), again)
    assert [firsts.get(timeout=PATIENCE_SECONDS) for _ in range(2)] == [(None, 0), (None, 1)]
    writer.close()


def test_a_full_log_says_what_it_waits_for(tmp_path: Path) -> None:
    writer = QueueWriter(tmp_path / "q")
    log: SegmentLog = writer._log
    log.end = 1

    def trim(*, ending: bool) -> None:
        log.withheld = True

    log.trim = trim  # type: ignore[assignment]
    with pytest.raises(QueueFull, match="and no broker runs"):
        log._make_room(1 << 50)
    writer.close()


def test_a_writer_says_how_long_its_last_group_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = SimpleQueue[Any]()
    writer = QueueWriter(tmp_path / "q")
    monkeypatch.setattr("twisted_msgproto.queue.writer.time.perf_counter", count(1).__next__)
    writer.submit(batch(1), lambda *answer: told.put(answer))
    told.get(timeout=PATIENCE_SECONDS)
    assert writer.close()
    monkeypatch.undo()
    figures = writer.statistics()
    assert figures["append_last_us"] == figures["append_us"] >= 1_000_000


def test_that_no_broker_runs_is_said_once_and_not_at_the_start(tmp_path: Path) -> None:
    lines: list[str] = []
    writer = QueueWriter(tmp_path / "q", report=lines.append)
    assert writer.close()
    writer._log.withheld = True
    writer._look_at_broker()
    assert lines == []
    writer._broker_at = 0.0  # its time is over
    writer._look_at_broker()
    writer._look_at_broker()
    assert len(lines) == 1


def open_below(directory: Path) -> list[str]:
    """The files below a directory that this process has open."""
    found = []
    for number in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(number))
    return [path for path in found if path.startswith(f"{directory}/")]


def test_who_has_closed_a_queue_has_no_file_of_it_open(tmp_path: Path) -> None:
    directory = tmp_path.resolve() / "q"
    told = SimpleQueue[Any]()
    writer = QueueWriter(directory, segment_bytes=1)
    broker = writer.broker()
    broker.restored()
    for number in range(3):
        writer.submit(batch(number), lambda *answer: told.put(answer))
        told.get(timeout=PATIENCE_SECONDS)
    reader = QueueReader(directory)
    assert sum(table.num_rows for table in reader.read(0, reader.end())) == 3
    assert open_below(directory)
    broker.close()
    writer.close()
    writer = QueueWriter(directory)
    broker = writer.broker()
    with broker._opened(1):
        assert open_below(directory)
    broker.close()
    writer.close()
    assert reader.place(2).offset == 2
    min(directory.glob("*.segment")).unlink()  # as after a trim
    assert reader.place(1).offset == 1
    assert open_below(directory) == []


def test_sessions_of_one_peer_have_turns_of_their_own__NB_01() -> None:
    one, other, none, nobody = (
        MessageBatch("sabc", "request", 0, peer=peer, session=session, count=1)
        for peer, session in (("p", "1"), ("p", "2"), ("p", None), ("q", None))
    )
    turns = [_session_of(each) for each in (one, other, none, nobody)]
    assert len(set(turns)) == 4
    assert _session_of(none) == _session_of(MessageBatch("sabc", "x", 0, peer="p", count=1))


def test_a_stream_waits_for_its_reader_from_each_batch_on() -> None:
    seconds = count(10.0)
    stream = Streams(clock=lambda: next(seconds)).begin("a")
    assert isinstance(stream, Stream)
    stream.give()
    assert stream.waits_since is not None
    assert stream.taken()
    assert stream.waits_since is None


def test_only_what_every_row_has_is_said_to_be_always_there() -> None:
    always = [field.name for field in SCHEMA if not field.nullable]
    assert always == ["gateway", "offset", "received_at", "protocol", "truncated"]


def test_integers_stay_integers_beside_packed_ones() -> None:
    packed = MessageBatch("lumberjack", "json", 0, count=64)
    packed.message_id = PackedNumbers("q", range(64))
    listed = MessageBatch("lumberjack", "json", 0, count=2, message_id=[7, None])
    encoded = columns.encode([packed, listed])
    bits, *_ = columns.RUNS.unpack_from(encoded.pieces[0])
    assert bits == MESSAGE_ID_INTEGER


def test_a_group_knows_how_many_envelopes_it_has_whoever_wrote_it() -> None:
    ids: list[Any]
    for ids in ([1, 2, 3], [1, "two", 3]):  # Arrow writes the second
        one = MessageBatch("mtl", "content", 0, count=3, message_id=ids, truncated=[False] * 3)
        assert columns.encode([one]).envelopes == 0
        one.envelope = [b"x", None, b"y"]
        assert columns.encode([one]).envelopes == 2


def test_columns_that_say_nothing_of_a_pair_make_no_frame() -> None:
    class Odd(dict[str, str]):
        def values(self) -> Any:
            return ["one", "too many"]

    with pytest.raises(TypeError, match="not a mapping"):
        arrays._maps([Odd(a="x")])
    empty = arrays._maps([{}, {}])
    assert (empty.nodes[:2], empty.buffers[:2]) == ((2, 0), (b"", bytes(12)))


def test_a_frame_of_envelopes_alone_has_no_column_for_the_table() -> None:
    assert columns._without_envelopes(columns.ENVELOPE, None) == (0, None)  # type: ignore[arg-type]


class Failing:
    """A file of 10 octets which fails as a test says."""

    def __init__(self, read: int = 0, write: int = 0, less: int = 0) -> None:
        self._read, self._write, self._less = read, write, less
        self.writes = 0

    def size(self) -> int:
        return 10

    def read(self, position: int, octets: int) -> bytes:
        if self._read:
            raise OSError(self._read, "read")
        return bytes(10 - position)

    def write(self, position: int, pieces: list[bytes]) -> int:
        self.writes += 1
        if self._write:
            raise OSError(self._write, "write")
        return len(pieces[0]) - self._less

    def close(self) -> None:
        pass


def test_a_large_segment_is_written_again_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "WRITE_AGAIN_OCTETS", 4)
    octets, written = bytes(range(10)), bytearray(10)

    def write(position: int, pieces: list[bytes]) -> int:
        written[position : position + len(pieces[0])] = pieces[0]
        return len(pieces[0])

    file = SimpleNamespace(
        size=lambda: len(octets), read=lambda at, count: octets[at : at + count], write=write
    )
    segment: Any = SimpleNamespace(file=file, first=0)
    recovery._write_again(segment, 0)
    assert written == octets


@pytest.mark.parametrize(
    ("file", "writes", "raises"),
    [
        (Failing(), 1, False),
        (Failing(read=errno.EIO), 0, True),
        (Failing(write=errno.ENOSPC), 1, False),
        (Failing(write=errno.EIO), 1, True),
        (Failing(less=1), 1, False),
    ],
    ids=["whole", "not read", "no room", "broken", "short"],
)
def test_octets_are_written_again_as_far_as_the_disk_lets(
    file: Failing, writes: int, raises: bool
) -> None:
    segment: Any = SimpleNamespace(file=file, first=0)
    if raises:
        with pytest.raises(OSError, match=r"read|write"):
            recovery._write_again(segment, 0)
    else:
        recovery._write_again(segment, 0)
    assert file.writes == writes


class Unreadable:
    """A disk whose segments cannot be opened, or cannot be read."""

    def __init__(self, directory: Path, opens: bool) -> None:
        self._directory, self._opens = directory, opens

    def names(self, directory: str) -> list[str]:
        return [path.name for path in self._directory.iterdir()]

    def open(self, path: str) -> Any:
        if not self._opens:
            raise OSError(errno.EIO, "not opened")
        return Failing(read=errno.EIO)


def test_a_segment_which_cannot_be_opened_or_read_is_told_and_ends_nothing(tmp_path: Path) -> None:
    QueueWriter(tmp_path / "q").close()
    reader = QueueReader(tmp_path / "q")
    for opens in (False, True):
        disk: Any = Unreadable(tmp_path / "q", opens)
        assert verify._recorded_end(disk, reader, 0) == 0
    disk = Unreadable(tmp_path / "q", opens=False)
    with pytest.raises(OSError, match="not opened"):
        segments(disk, str(tmp_path / "q"), 0)
    told: list[str] = []
    assert segments(disk, str(tmp_path / "q"), 0, told) == []
    assert all("not read" in line for line in told)
