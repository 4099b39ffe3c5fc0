"""The queues of a gateway's processes stand below one directory, in the order of their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.queues import batch, put, rows
from twisted_msgproto.core.errors import QueueError, QueueLocked
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.queue.below import (
    has_broker,
    is_queue,
    mend,
    mend_former,
    numbered,
    queue_of,
    queues_at,
)
from twisted_msgproto.queue.disk import IDENTITY_FILE


def made(directory: str | Path) -> str:
    """A directory that passes for a queue."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    (Path(directory) / IDENTITY_FILE).touch()
    return str(directory)


def test_queues_are_in_the_order_of_numbers_and_nothing_else_is_one(tmp_path: Path) -> None:
    wanted = [made(queue_of(tmp_path, number)) for number in (0, 2, 10)]
    for name in ("01", "x", "10000"):
        made(tmp_path / name)
    (tmp_path / "3").mkdir()
    assert numbered(tmp_path) == wanted
    assert queues_at(tmp_path) == wanted
    assert not is_queue(tmp_path)


def test_a_directory_that_cannot_be_looked_into_counts_as_a_queue(tmp_path: Path) -> None:
    """Whoever opens it says why it cannot be; else nobody would hear that it is not landed."""
    (tmp_path / "0").symlink_to("0")  # it leads to itself, for everybody
    assert numbered(tmp_path) == [str(tmp_path / "0")]


def test_a_directory_that_cannot_be_listed_has_not_no_queue__RD_50(tmp_path: Path) -> None:
    """RD-50: its queues would be landed, and mended, by nobody."""
    place = tmp_path / "loop"
    place.symlink_to("loop")
    for ask in (numbered, queues_at, has_broker):
        with pytest.raises(QueueError, match=f"cannot read the directory: .*{place}"):
            ask(place)
    assert has_broker(tmp_path) is False


def test_a_queue_stands_for_itself_and_for_those_below_it(tmp_path: Path) -> None:
    below = made(queue_of(tmp_path, 1))
    assert queues_at(made(tmp_path)) == [str(tmp_path), below]


def test_what_is_no_queue_stands_for_itself(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        assert (numbered(place), queues_at(place)) == ([], [str(place)])


def a_queue(directory: str, messages: int) -> bytes:
    """Make a queue with messages; return its published end as it was before the last one."""
    writer = QueueWriter(directory)
    put(writer, *map(batch, range(messages - 1)))
    before = (Path(directory) / "end").read_bytes()
    put(writer, batch(messages - 1))
    writer.close()
    return before


def test_messages_that_an_old_end_hides_are_published_again(tmp_path: Path) -> None:
    """After a loss of power the end may be older than what was acknowledged."""
    place = queue_of(tmp_path, 1)
    (Path(place) / "end").write_bytes(a_queue(place, 3))
    assert QueueReader(place).end() == 2
    mend(place)
    assert QueueReader(place).end() == 3
    assert len(rows(place)) == 3


def test_mending_tells_what_the_start_of_the_writer_has_found(tmp_path: Path) -> None:
    place = queue_of(tmp_path, 0)
    a_queue(place, 2)
    (segment,) = Path(place).glob("*.segment")
    octets = bytearray(segment.read_bytes())
    octets[octets.rfind(b"\x93MPF") - 9] ^= 1
    segment.write_bytes(octets)
    (line,) = mend(place)
    assert "damaged" in line
    assert mend(place) == []


def test_a_queue_that_a_process_has_is_not_mended_and_the_next_one_is(tmp_path: Path) -> None:
    has, former = [queue_of(tmp_path, number) for number in (0, 1)]
    before = a_queue(former, 2)
    (Path(former) / "end").write_bytes(before)
    writer = QueueWriter(has)
    with pytest.raises(QueueLocked, match="open for writing already"):
        mend(has)
    lines = mend_former([has, former])
    assert lines[0] == f"no process has the queue {has}; the bridge lands it like the others"
    assert "open for writing already" in lines[1]
    assert lines[2] == f"no process has the queue {former}; the bridge lands it like the others"
    assert len(lines) == 3
    assert QueueReader(former).end() == 2
    assert put(writer, batch(1)) == [None]
    writer.close()


def test_what_is_no_queue_to_open_is_a_line_and_not_the_end(tmp_path: Path) -> None:
    place = tmp_path / "0"
    place.write_text("no directory")
    _, line = mend_former([str(place)])
    assert line.startswith(f"cannot open the queue {place}: ")


def test_of_a_former_queue_with_a_broker_it_is_said_that_its_messages_wait(tmp_path: Path) -> None:
    place = queue_of(tmp_path, 3)
    a_queue(place, 1)
    assert not has_broker(place)
    writer = QueueWriter(place)
    writer.broker().close()
    writer.close()
    assert has_broker(place)
    assert mend_former([place]) == [
        f"no process has the queue {place}; the bridge lands it like the others",
        f"messages in the broker's queues of {place} are not delivered until a process has them "
        "again",
    ]
