"""Directories of queues: which there are, who holds them, and statuses that bridges leave."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from tests.tools.queues import batch, put, rows
from twisted_msgproto.core.errors import QueueError, QueueLocked
from twisted_msgproto.queue import QueueWriter, SegmentLog
from twisted_msgproto.queue.consumers import cut_to_fit, read_statuses, status_path, write_status
from twisted_msgproto.queue.queue_directories import (
    has_broker,
    is_queue,
    queues_at,
    queues_in,
    unheld,
)
from twisted_msgproto.queue.reader import is_unpublished


def mend(place: Path | str) -> None:
    SegmentLog(place, check_bytes=0).close()


def made(directory: str | Path) -> str:
    """A directory that passes for a queue."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    (Path(directory) / "identity").touch()
    return str(directory)


def test_every_directory_with_an_identity_is_a_queue_and_2_comes_before_10(tmp_path: Path) -> None:
    wanted = [made(tmp_path / name) for name in ("2", "10", "queue-2", "queue-10", "x")]
    (tmp_path / "3").mkdir()
    (tmp_path / "4").touch()
    assert queues_in(tmp_path) == wanted
    assert queues_at(tmp_path) == wanted
    assert not is_queue(tmp_path)


def test_a_directory_that_cannot_be_looked_into_counts_as_a_queue(tmp_path: Path) -> None:
    """Whoever opens it says why it cannot be; else nobody would hear that it is not landed."""
    (tmp_path / "0").symlink_to("0")  # it leads to itself, for everybody
    (tmp_path / "lost+found").symlink_to("lost+found")  # root's, at the root of each disk
    assert queues_in(tmp_path) == [str(tmp_path / "0")]


def test_a_directory_that_cannot_be_listed_has_not_no_queue__RD_50(tmp_path: Path) -> None:
    """RD-50: its queues would be landed, and mended, by nobody."""
    place = tmp_path / "loop"
    place.symlink_to("loop")
    for ask in (queues_in, queues_at, has_broker):
        with pytest.raises(QueueError, match=f"cannot read the queue .*{place}"):
            ask(place)
    assert has_broker(tmp_path) is False


def test_a_queue_stands_for_itself_and_for_those_in_it(tmp_path: Path) -> None:
    inside = made(tmp_path / "1")
    assert queues_at(made(tmp_path)) == [str(tmp_path), inside]


def test_what_is_no_queue_stands_for_itself(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        assert (queues_in(place), queues_at(place)) == ([], [str(place)])


def a_queue(directory: Path, messages: int) -> bytes:
    """Make a queue with messages; return its published end as it was before the last one."""
    writer = QueueWriter(directory)
    put(writer, *map(batch, range(messages - 1)))
    before = (directory / "end").read_bytes()
    put(writer, batch(messages - 1))
    writer.close()
    return before


@pytest.mark.parametrize("end", ["old", "missing", "damaged"])
def test_messages_that_the_published_end_hides_are_seen_and_published_again(
    tmp_path: Path, end: str
) -> None:
    """After a loss of power the end may be older than what was acknowledged."""
    before = a_queue(tmp_path / "q", 3)
    place = str(tmp_path / "q")
    assert not is_unpublished(place)
    file = tmp_path / "q" / "end"
    file.unlink() if end == "missing" else file.write_bytes(before if end == "old" else b"?" * 76)
    assert is_unpublished(place)
    mend(place)
    assert not is_unpublished(place)
    assert len(rows(place)) == 3


def test_messages_in_a_newer_segment_than_that_of_the_published_end_are_seen(
    tmp_path: Path,
) -> None:
    place = str(tmp_path / "q")
    writer = QueueWriter(place, segment_bytes=1)  # each group has a segment of its own
    put(writer, batch(0))
    before = (tmp_path / "q" / "end").read_bytes()
    put(writer, batch(1))
    writer.close()
    (tmp_path / "q" / "end").write_bytes(before)
    assert is_unpublished(place)
    mend(place)
    assert (is_unpublished(place), len(rows(place))) == (False, 2)


def test_a_queue_that_a_process_has_is_held_and_not_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, left, inside = (tmp_path / name for name in ("1", "2", "1/x"))
    for place in (left, inside):
        a_queue(place, 1)
    (tmp_path / "no queue").mkdir()
    (tmp_path / "3").symlink_to("3")  # what cannot be looked into is of others
    Path(made(tmp_path / "4"), "lock").symlink_to("lock")  # so is one whose lock cannot be opened
    writer = QueueWriter(held)
    assert unheld(held) == [str(inside), str(left)]
    assert unheld(tmp_path) == [str(left)]
    assert unheld(left) == []
    with pytest.raises(QueueLocked, match="open for writing already"):
        mend(str(held))
    assert put(writer, batch(1)) == [None]
    writer.close()
    a_queue(tmp_path, 1)  # that of a gateway which had the directory alone once
    assert unheld(left) == [str(tmp_path), str(held)]
    shown = os.listdir

    def listed(path: str) -> list[str]:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, "it may be passed through alone", path)
        return shown(path)

    monkeypatch.setattr(os, "listdir", listed)
    assert unheld(held) == [str(inside)]


def test_a_broker_of_a_queue_is_seen(tmp_path: Path) -> None:
    a_queue(tmp_path / "q", 1)
    assert not has_broker(tmp_path / "q")
    writer = QueueWriter(tmp_path / "q")
    writer.broker().close()
    writer.close()
    assert has_broker(tmp_path / "q")
    assert queues_in(tmp_path / "q") == []
    assert os.listdir(tmp_path / "q" / "broker")


# -- statuses that bridges leave there -----------------------------------------------------------

SENT_BYTES_MAX, STATUS_BYTES_MAX, STATUSES_MAX = 3 << 10, 64 << 10, 32


def test_a_status_is_read_as_it_was_written_and_is_this_user_s_alone(tmp_path: Path) -> None:
    path = status_path(tmp_path, "spark-1")
    write_status(path, {"state": "running"})
    write_status(path, {"state": "ended"})
    assert read_statuses(tmp_path) == [{"state": "ended", "consumer": "spark-1"}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["spark-1.json"]


def test_a_status_does_not_make_the_directory_of_a_queue_that_was_moved_away(
    tmp_path: Path,
) -> None:
    """A bridge made it again, readable by all, just as a gateway began a new queue there."""
    with pytest.raises(FileNotFoundError):
        write_status(status_path(tmp_path / "queue", "spark"), {"state": "running"})
    assert not (tmp_path / "queue").exists()


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert read_statuses(tmp_path) == []
    write_status(status_path(tmp_path, "good"), {})
    status_path(tmp_path, "torn").write_text("{")
    status_path(tmp_path, "deep").write_text("[" * 60_000)
    status_path(tmp_path, "list").write_text("[]")
    status_path(tmp_path, "large").write_text(json.dumps("x" * (STATUS_BYTES_MAX - 1)))
    status_path(tmp_path, "gone").symlink_to("nowhere")
    status_path(tmp_path, "directory").mkdir()
    files = os.listdir(status_path(tmp_path, "good").parent)
    with pytest.raises(IsADirectoryError):
        write_status(status_path(tmp_path, "directory"), {})
    assert os.listdir(status_path(tmp_path, "good").parent) == files
    assert read_statuses(tmp_path) == [{"consumer": "good"}]


def test_what_a_killed_process_of_the_same_number_has_left_is_no_part_of_a_status(
    tmp_path: Path,
) -> None:
    path = status_path(tmp_path, "spark")
    write_status(path, {})
    path.with_name(f".{path.name}.{os.getpid()}").write_text("x" * 100)
    write_status(path, {"state": "running"})
    assert json.loads(path.read_text()) == {"state": "running"}


def test_a_status_as_large_as_allowed_is_read(tmp_path: Path) -> None:
    text = json.dumps({"error": "x" * 10})
    path = status_path(tmp_path, "a")
    path.parent.mkdir()
    path.write_text(text + " " * (STATUS_BYTES_MAX - len(text)))
    assert len(read_statuses(tmp_path)) == 1


def test_of_many_statuses_the_newest_are_read_by_name(tmp_path: Path) -> None:
    for number in range(STATUSES_MAX + 1):
        path = status_path(tmp_path, f"{number:02}")
        write_status(path, {})
        os.utime(path, (1000 - number, 1000 - number))
    names = [status["consumer"] for status in read_statuses(tmp_path)]
    assert names == [f"{number:02}" for number in range(STATUSES_MAX)]


@pytest.mark.parametrize("name", ["known", "away"])
def test_a_list_that_is_too_long_to_be_sent_is_halved_until_it_fits(name: str) -> None:
    status = {"state": "running", name: ["x" * 90] * 100, "other": [1, 2]}
    sent = cut_to_fit(status)
    assert len(sent[name]) == 25, "50 of them are above the limit"
    assert len(json.dumps(sent)) <= SENT_BYTES_MAX
    assert (sent["state"], sent["other"], len(status[name])) == ("running", [1, 2], 100)


def test_a_status_that_fits_is_sent_whole_and_one_without_lists_as_it_is() -> None:
    status = {"known": ["a"], "away": ["b"]}
    octets = len(json.dumps(status))
    assert cut_to_fit(status, octets) == status
    assert cut_to_fit(status, octets - 1) == {"known": [], "away": ["b"]}
    assert cut_to_fit({"error": "x" * 9}, 5) == {"error": "x" * 9}
