"""What seldom happens to a queue: disks that fail in the midst, callers at odd moments."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools.queues import PATIENCE_SECONDS, batch
from twisted_msgproto.core.errors import QueueFull
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog, recovery, verify
from twisted_msgproto.queue.verify import segments


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
