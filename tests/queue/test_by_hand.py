"""Somebody removes, renames, replaces or cuts files of a queue while it is written."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tools.queues import PATIENCE_SECONDS, Results, batch, ids, put, rows
from twisted_msgproto import cli
from twisted_msgproto.core.errors import QueueClosed, QueueError
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue.verify import verify

CONSUMED = 2
"""The consumer has committed so many of the messages that a test begins with."""
STORED = 6


def segments(queue: Path) -> list[Path]:
    return sorted(queue.glob("*.segment"))


@contextlib.contextmanager
def a_writer(queue: Path) -> Iterator[tuple[QueueWriter, list[str]]]:
    """A writer of a queue with a message in each segment, and what it reports from then on."""
    told: list[str] = []
    writer = QueueWriter(queue, segment_bytes=1, report=told.append)
    try:
        if writer.end == 0:
            QueueReader(queue).register("spark")
            for number in range(STORED):
                assert put(writer, batch(number)) == [None]
            QueueReader(queue).commit("spark", CONSUMED)
        yield writer, told
    finally:
        writer.close(0.05)


def stalled(writer: QueueWriter) -> str:
    """Return why the writer stores nothing, once it does not."""
    pause, waited = threading.Event(), 0.0
    while writer.stalled is None:
        assert waited < PATIENCE_SECONDS
        pause.wait(0.01)
        waited += 0.01
    return writer.stalled


def all_of_them(queue: Path, kept: int = 0) -> None:
    for path in segments(queue)[: STORED - kept]:
        path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 100)


LOSSES: dict[str, tuple[Callable[[Path], object], tuple[int, ...], str]] = {
    "all segments": (all_of_them, (), f"messages {CONSUMED} to {STORED} are in no segment"),
    "the oldest that is needed": (
        lambda queue: all_of_them(queue, kept=3),
        (3, 4, 5),
        f"messages {CONSUMED} to 3 are in no segment",
    ),
    "one in the middle": (lambda queue: segments(queue)[-3].unlink(), (2, 4, 5), "offsets 3 to 4"),
    "the newest": (lambda queue: segments(queue)[-1].unlink(), (2, 3, 4), "published is 6"),
    "an older one, cut": (lambda queue: cut(segments(queue)[-3]), (2, 4, 5), "offsets 3 to 4"),
    "the newest, cut": (lambda queue: cut(segments(queue)[-1]), (2, 3, 4), "offsets 5 to 6"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_somebody_removed_is_told_and_verify_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: str
) -> None:
    """RD-54: nothing is acknowledged any more; a start goes on behind what is lost.

    Until then no reader does, not before the gateway has noticed either: it may be put back.
    """
    remove, left, named = LOSSES[loss]
    queue = tmp_path / "queue"
    with a_writer(queue) as (writer, _):
        remove(queue)
        with pytest.raises(QueueError, match=r"put it back|was trimmed"):
            rows(queue, CONSUMED, STORED)
        why = stalled(writer)
        assert str(queue) in why
        assert "was removed, replaced or cut short" in why
        late = Results()
        late.submit(writer, batch(100))
        assert any(named in line for line in verify(queue).lines), verify(queue).lines
    assert [type(error) for error in late.wait(1)] == [QueueClosed]
    with a_writer(queue) as (writer, told):
        assert put(writer, batch(STORED)) == [None]
        lost = ("are in no segment", "damaged", "messages were lost")
        assert any(words in line for line in told for words in lost), told
    assert set(ids(rows(queue))) >= {*left, STORED}
    command = re.search(r"or restart the gateway and run msgproto (.*)", why)
    assert command is not None
    assert cli.main(shlex.split(command[1])) == 1
    report = verify(queue)
    assert not report.intact
    assert report.lines[0] in capsys.readouterr().out
    assert report.damaged or any(named in line for line in report.lines)


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("number", [-1, -3])
@pytest.mark.parametrize("octets", [None, 0, 100, -1, -100])
def test_what_is_in_no_file_is_read_once_it_was_put_back(
    tmp_path: Path, number: int, octets: int | None, running: bool
) -> None:
    """RD-50: a segment that is away, or cut, is not damaged; who passes over it loses it."""
    queue = tmp_path / "queue"
    with contextlib.ExitStack() as writing:
        writing.enter_context(a_writer(queue))
        if not running:
            writing.close()
        path = segments(queue)[number]
        shutil.copy2(path, tmp_path / "away")
        first = int(path.stem)
        reader = QueueReader(queue)
        if octets is None:
            path.unlink()
        else:
            os.truncate(path, octets if octets >= 0 else path.stat().st_size + octets)
        with pytest.raises(QueueError, match=f"{path.name} (was cut|removed).*put it back, or"):
            list(reader.read(CONSUMED, STORED))
        assert not reader.damaged()
        assert ids(rows(queue, first + 1, STORED)) == [*range(first + 1, STORED)]
        shutil.copy2(tmp_path / "away", path)
        assert ids(rows(queue, CONSUMED)) == [2, 3, 4, 5]


@pytest.mark.parametrize("octets", [None, 0, 100, -1])
def test_a_start_notes_what_is_in_no_file_however_old_it_is(
    tmp_path: Path, octets: int | None
) -> None:
    """RD-50: under load it checks nothing older, and readers wait for the note."""
    queue = tmp_path / "queue"
    with a_writer(queue):
        pass
    path = segments(queue)[3]
    if octets is None:
        path.unlink()
    else:
        os.truncate(path, octets if octets >= 0 else path.stat().st_size + octets)
    log = SegmentLog(queue, check_bytes=0)
    found = QueueReader(queue).read(CONSUMED, STORED)
    assert [one.num_rows for one in found] == [3]
    assert list(found.damaged) == [(3, 4)]
    (queue / "damaged").unlink()
    with pytest.raises(QueueError, match="put it back"):
        rows(queue, CONSUMED, STORED)
    log.look()
    assert ids(rows(queue, CONSUMED)) == [2, 4, 5]
    log.close()


def test_a_group_is_not_acknowledged_into_a_segment_that_is_gone(tmp_path: Path) -> None:
    """RD-54: not even within the second after somebody removed it."""
    queue = tmp_path / "queue"
    writer = QueueWriter(queue)
    told: list[BaseException | None] = []
    done = threading.Event()

    def first(error: BaseException | None, offset: int | None) -> None:
        segments(queue)[-1].unlink()  # and the next group comes at once

    def second(error: BaseException | None, offset: int | None) -> None:
        told.append(error)
        done.set()

    writer.submit(batch(0), first)
    writer.submit(batch(1), lambda error, offset: writer.submit(batch(2), second))
    stalled(writer)
    assert not told
    writer.close(0.05)
    assert done.wait(PATIENCE_SECONDS)
    assert [type(error) for error in told] == [QueueClosed]


def replace_by_a_copy(lock: Path) -> None:
    shutil.copy2(lock, beside := lock.with_name("restored"))
    beside.replace(lock)


def make_anew(lock: Path) -> None:
    lock.unlink()
    lock.touch()


def remove_with_the_identity(lock: Path) -> None:
    lock.unlink()
    lock.with_name("identity").unlink()


@pytest.mark.parametrize(
    "lose", [Path.unlink, replace_by_a_copy, make_anew, remove_with_the_identity]
)
def test_two_writers_lose_nothing_when_the_lock_is_lost(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """RD-54: who has lost the lock has noticed when the other one begins."""
    queue = tmp_path / "queue"
    with a_writer(queue) as (one, _):
        lose(queue / "lock")
        safe, pace = list(range(STORED - 1)), threading.Event()

        def stored(error: BaseException | None, first: int | None) -> None:
            if error is None:  # for a second at most
                safe.append(len(safe))
                pace.wait(0.001)  # as a disk takes: else it is a hundred thousand
                one.submit(batch(len(safe)), stored)

        stored(None, None)
        with a_writer(queue) as (other, _):
            assert put(other, batch(1000)) == [None]
            assert "another process may write this queue" in stalled(one)
            told = list(safe)
        assert not one.close(0.05)
    assert safe == told
    # The last one may have been written before the loss was noticed, and is not acknowledged.
    found = ids(rows(queue, CONSUMED))
    assert found in ([*safe[CONSUMED:], *last, 1000] for last in ([], [len(safe)]))
    assert verify(queue).intact


def empty_the_end(queue: Path) -> None:
    os.truncate(queue / "end", 0)


MADE_AGAIN: dict[str, Callable[[Path], object]] = {
    "identity, removed": lambda queue: (queue / "identity").unlink(),
    "identity, replaced": lambda queue: (queue / "identity").write_bytes(b"x"),
    "lineage, removed": lambda queue: (queue / "lineage").unlink(),
    "end, emptied": empty_the_end,
    "end, cut": lambda queue: os.truncate(queue / "end", 20),
    "consumers, removed": lambda queue: shutil.rmtree(queue / "consumers"),
}


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_what_the_writer_knows_is_written_again(tmp_path: Path, name: str) -> None:
    """RD-54, RD-55: while nothing comes, too; without it nothing lands, and nothing said so."""
    queue = tmp_path / "queue"
    file = queue / name.partition(",")[0]
    with a_writer(queue) as (writer, _):
        octets = None if file.is_dir() else file.read_bytes()
        MADE_AGAIN[name](queue)
        pause, waited = threading.Event(), 0.0
        while not file.exists() or (octets is not None and file.read_bytes() != octets):
            assert waited < PATIENCE_SECONDS
            pause.wait(0.01)
            waited += 0.01
        reader = QueueReader(queue)
        assert reader.end() == STORED
        assert reader.register("spark") == (0 if octets is None else CONSUMED)
        assert put(writer, batch(STORED)) == [None]
    assert QueueReader(queue).end() == STORED + 1


def test_the_broker_s_files_are_written_again_or_missed(tmp_path: Path) -> None:
    """RD-54: the names and marks are in memory; copies of messages are nowhere else."""
    queue = tmp_path / "queue"
    with a_writer(queue) as (writer, _):
        state = writer.broker()
        state.restored()
        state.declare({("space", "orders"): writer.end})  # type: ignore[dict-item]
        state.settle([0])
        state.tend()
        for name in ("names", "settled"):
            (queue / "broker" / name).unlink()
            state.tend()
            assert (queue / "broker" / name).exists(), name
        assert put(writer, batch(STORED)) == [None]
        (queue / "broker" / "log").rename(tmp_path / "away")
        state.tend()
        assert str(queue / "broker" / "log") in stalled(writer)
        (tmp_path / "away").rename(queue / "broker" / "log")
        state.tend()
        assert put(writer, batch(STORED + 1)) == [None]
        state.close()
