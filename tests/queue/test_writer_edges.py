"""The writer's figures, offsets and times, exactly: its clock moves only when it is told to."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.queue.test_writer import DIRECTORY, a_writer, wait_until
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import PATIENCE_SECONDS, Results, batch, frame, put
from twisted_msgproto.core.errors import QueueClosed
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.net.site.store import queue_figures, read_figures
from twisted_msgproto.net.site.verdict import safe_and_landing
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue import log as log_room
from twisted_msgproto.queue import writer as writer_room
from twisted_msgproto.queue.consumers import Watch
from twisted_msgproto.testing import BrokenDisk


class Clock:
    """Is the writer's clock while the test lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.asked: Callable[[], None] = lambda: None
        fake = types.SimpleNamespace(monotonic=self._monotonic, perf_counter=lambda: self.now)
        monkeypatch.setattr(writer_room, "time", fake)

    def _monotonic(self) -> float:
        self.asked()
        return self.now


def test_a_writer_that_failed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(log: SegmentLog, frames: object) -> int:
        raise ZeroDivisionError("a fault of ours")

    with a_writer(SimulatedDisk()) as writer, monkeypatch.context() as patch:
        patch.setattr(SegmentLog, "append", broken)
        assert isinstance(put(writer, batch(0))[0], ZeroDivisionError)
        wait_until(lambda: not writer._thread.is_alive())
        assert writer.refusal == "the queue's writer failed: a fault of ours"
        with pytest.raises(QueueClosed) as caught:
            writer.submit(batch(0), lambda error, first: None)
        assert str(caught.value) == f"the queue {DIRECTORY} is closed: a fault of ours"


def test_a_writer_loads_what_encodes_before_its_first_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would take a tenth of a second while somebody waits for an ack."""
    encoded: list[tuple[threading.Thread, list[MessageBatch]]] = []

    def noted(batches: list[MessageBatch], whole: Any = writer_room.encode) -> Any:
        encoded.append((threading.current_thread(), batches))
        return whole(batches)

    monkeypatch.setattr(writer_room, "encode", noted)
    writer = QueueWriter(tmp_path)
    ((thread, (one,)),) = encoded
    assert thread is threading.current_thread()
    assert one.count and one.fields and one.body and one.message_id
    writer.close()


def test_a_commit_delay_is_waited_for_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands half a second before it: what comes then goes along."""
    clock = Clock(monkeypatch)
    waits = threading.Semaphore(0)
    with a_writer(SimulatedDisk(), commit_delay=0.5, group_messages=2) as writer:

        def asked() -> None:
            if threading.current_thread() is writer._thread and writer._waiting.entries:
                waits.release()

        clock.asked = asked
        results = Results()
        results.submit(writer, batch(0))
        for _ in range(2):  # when the delay began, and how much of it is left
            assert waits.acquire(timeout=PATIENCE_SECONDS)
        results.submit(writer, batch(1))
        assert results.wait(2) == [None, None]
        assert writer.statistics()["groups"] == 1


def test_consumers_are_looked_at_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(monkeypatch)
    looks: list[float] = []
    monkeypatch.setattr(Watch, "look", lambda watch, at, end, now: looks.append(now) or [])
    monkeypatch.setattr(writer_room, "IDLE_S", 0.0)  # each group is followed by a trim
    writer = QueueWriter(tmp_path)
    for number in range(4):
        put(writer, batch(number))
        clock.now += 59.0 if number == 1 else 0.5
    put(writer, batch(4), batch(5))
    writer.close()
    assert looks == [1000.0, 1060.0]


def test_closing_without_room_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is called back later."""
    monkeypatch.setattr(writer_room, "GIVE_UP_S", PATIENCE_SECONDS)
    disk = SimulatedDisk()
    with a_writer(disk) as writer:
        disk.capacity = disk.used()
        results = Results()
        results.submit(writer, batch(0))
        wait_until(lambda: writer.stalled is not None)
        slow = threading.Event()
        tell = writer._call_back

        def slowly(*words: Any) -> None:
            slow.wait(0.05)
            tell(*words)

        monkeypatch.setattr(writer, "_call_back", slowly)
        assert not writer.close(0.0)
        assert not writer._thread.is_alive()
        assert [type(error) for error in results.given.values()] == [QueueClosed]


def test_each_error_of_the_disk_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [OSError("trimming")]

    def trim(log: SegmentLog) -> int:
        if errors:
            raise errors.pop()
        return 0

    monkeypatch.setattr(SegmentLog, "trim", trim)
    monkeypatch.setattr(writer_room, "IDLE_S", 0.005)
    told: list[str] = []
    with a_writer(SimulatedDisk(), report=told.append) as writer:
        wait_until(lambda: len(told) == 1)
        assert writer.statistics()["disk_errors"] == 1


@pytest.mark.parametrize("what", ["an older segment", "a consumer"])
def test_what_cannot_be_read_is_told_once_shown_and_read_again__RD_50(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """RD-50, RD-58: what is checked while nothing waits is not noted as damaged by a read error."""
    log = SegmentLog(tmp_path, segment_bytes=1)
    for number in range(3):
        log.append([frame(number)])
    log.close()
    QueueReader(tmp_path).commit("spark", 0)
    monkeypatch.setattr(writer_room, "IDLE_S", 0.005)
    monkeypatch.setattr(writer_room, "WATCH_S", 0.0)
    disk, told = BrokenDisk(), list[str]()
    writer = QueueWriter(tmp_path, check_octets=0, disk=disk, report=told.append)
    path = f"{1:020d}.segment" if what == "an older segment" else "consumers/spark"
    disk.fail("read", times=None, name=path)
    try:
        monkeypatch.setattr(writer._log._found, "unchecked", [0, 1])
        wait_until(lambda: writer.unreadable is not None)
        before = writer.statistics()["disk_errors"]
        wait_until(lambda: writer.statistics()["disk_errors"] > before + 20)
        assert [line for line in told if path in line] == told[-1:]
        figures = queue_figures(writer, read_figures(writer.directory, 0.0))
        assert path in figures["unreadable"]
        assert "cannot be read" in safe_and_landing({**figures, "consumers": ()}).why
        disk.heal()
        wait_until(lambda: writer.unreadable is None)
        assert len(told) == 2
        assert writer.damaged == []
    finally:
        writer.close()


def test_the_page_s_numbers_of_a_queue_are_the_code_s() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for keys, values in (
        ("`max-bytes`", f"{log_room.MAX_BYTES / 2**30:g} GiB"),
        ("`segment-bytes`", f"{log_room.SEGMENT_BYTES / 2**20:g} MiB"),
        (
            "`group-octets`, `group-messages`",
            f"{writer_room.GROUP_OCTETS / 2**20:g} MiB, {writer_room.GROUP_MESSAGES:,}",
        ),
    ):
        assert f"| {keys} | {values} |" in page
