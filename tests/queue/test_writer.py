"""The writer's thread: order, groups, callbacks, waiting for room, ends of all kinds."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import re
import shlex
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import mock

import pytest

from tests.sim.disk import SimulatedDisk, SimulatedFile
from tests.tools.byte_streams import packed_frames
from tests.tools.processes import environment
from tests.tools.queues import (
    FRAME_HEADER_BYTES,
    HEAD_BYTES,
    PATIENCE_SECONDS,
    Results,
    batch,
    frame,
    ids,
    put,
    rows,
)
from twisted_msgproto import MessageBatch, cli
from twisted_msgproto.core.errors import QueueClosed
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog, segment_log
from twisted_msgproto.queue import writer as writer_room
from twisted_msgproto.queue.consumers import status_path, write_status
from twisted_msgproto.testing import BrokenDisk

DIRECTORY = "/queue"


class HookedDisk(SimulatedDisk):
    """A disk with something to do before each sync of a segment."""

    def before_sync(self) -> None:
        raise NotImplementedError

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        file = super().open(path, write=write)
        if path.endswith(".segment"):
            sync = file.sync

            def hooked_sync() -> None:
                self.before_sync()
                sync()

            file.sync = hooked_sync  # type: ignore[method-assign]
        return file


class GatedDisk(HookedDisk):
    """A disk whose syncs of segments wait until they are let through."""

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self.gate = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.gated = False

    def before_sync(self) -> None:
        if self.gated:
            self.arrived.release()
            assert self.gate.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_room, "GROUP_MESSAGES", 1)


@contextmanager
def a_writer(disk: SimulatedDisk, **options: Any) -> Iterator[QueueWriter]:
    with mock.patch.object(writer_room, "RETRY_DELAY_S", 0.005):
        writer = QueueWriter(DIRECTORY, disk=disk, **options)
        try:
            yield writer
        finally:
            if isinstance(disk, GatedDisk):
                disk.gated = False
                disk.gate.release(1000)
            writer.close()


@contextmanager
def a_busy_writer() -> Iterator[tuple[GatedDisk, QueueWriter, Results]]:
    """A writer whose first batch, number 0, is being written until the gate lets it through."""
    disk = GatedDisk()
    with a_writer(disk) as writer:
        disk.gated = True
        results = Results()
        results.submit(writer, batch(0))
        assert disk.arrived.acquire(timeout=PATIENCE_SECONDS)
        yield disk, writer, results


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for another thread, looking often."""
    done = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.002)):
        if true():
            return
        done.wait(0.002)
    raise AssertionError("it did not come true")


def test_a_callback_comes_only_after_the_sync() -> None:
    """Acknowledged = synced."""
    with a_busy_writer() as (disk, writer, results):
        assert results.given == {}
        assert QueueReader(DIRECTORY, disk=disk).end() == 0
        assert writer.statistics()["waiting_messages"] == 1
        disk.gate.release()
        assert results.wait(1) == [None]
        assert QueueReader(DIRECTORY, disk=disk).end() == 1


def packed(first: int, count: int) -> MessageBatch:
    """A batch whose ids and bodies stand in one buffer, as bulk from the wire does."""
    numbers = range(first, first + count)
    ids, bodies = packed_frames(numbers, [b"body %d" % number for number in numbers])
    return MessageBatch(
        *("lumberjack", "json", 1, "tcp:127.0.0.1:1"),
        count=count,
        nbytes=10 * count,
        message_id=ids,
        body=bodies,
    )


@pytest.mark.parametrize(
    ("limits", "groups"),
    [
        ({"GROUP_MESSAGES": 10}, [1, 10, 10, 10]),
        ({"GROUP_BYTES": 10 * (10 + writer_room.ROW_BYTES)}, [1, 10, 10, 10]),
        ({}, [1, 30]),
    ],
)
def test_a_group_is_bounded_in_messages_and_bytes(
    limits: dict[str, int], groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(writer_room, name, limit)
    disk = GatedDisk()
    with a_writer(disk) as writer:
        disk.gated = True
        results = Results()
        for number in range(31):
            results.submit(writer, batch(number, nbytes=10))
            if number == 0:
                assert disk.arrived.acquire(timeout=PATIENCE_SECONDS)
        ends = []
        for _ in groups:
            disk.gate.release()
            if len(ends) < len(groups) - 1:
                assert disk.arrived.acquire(timeout=PATIENCE_SECONDS)
            else:
                results.wait(31)
            ends.append(writer.end)
        assert [end - start for start, end in zip([0, *ends], ends, strict=False)] == groups
        statistics = writer.statistics()
    assert (statistics["groups"], statistics["messages"]) == (len(groups), 31)
    assert statistics["append_us"] > 0


# -- faults of one batch --------------------------------------------------------------------------


def test_a_batch_that_cannot_be_encoded_fails_alone() -> None:
    """A programmer's error fails that batch's callback only, not its neighbours'.  These are told
    the first offset of their batch, in order.
    """
    with a_busy_writer() as (disk, writer, results):
        peer = "tcp:127.0.0.1:1"
        wrong = MessageBatch("lumberjack", "json", 0, peer, count=1, body=[5])  # type: ignore[list-item]
        empty = MessageBatch("lumberjack", "json", 0, peer)
        batches = [batch(1, 3), wrong, empty, batch(4, 600), wrong, batch(604)]
        for number, one in enumerate(batches, start=1):
            results.submit(writer, one, number)
        disk.gated = False
        disk.gate.release()
        results.wait(7)
        assert list(results.given) == list(range(7))
        failed = [number for number, error in results.given.items() if error is not None]
        assert failed == [2, 5]
        assert isinstance(results.given[2], TypeError)
        assert results.firsts == {0: 0, 1: 1, 2: None, 3: 4, 4: 4, 5: None, 6: 604}
        assert put(writer, wrong)[0] is not None
        assert ids(rows(DIRECTORY, disk=disk)) == list(range(605))
        assert writer.statistics()["failed_messages"] == 3


@pytest.mark.parametrize("fault", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
def test_a_callback_s_own_fault_stops_at_itself(
    fault: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """Its neighbours in the group are called back once, and the writer goes on."""
    with a_busy_writer() as (disk, writer, results):

        def faulty(error: BaseException | None, first: int | None) -> None:
            raise fault("the callback's own fault")

        results.submit(writer, batch(1))
        writer.submit(batch(2), faulty)
        results.submit(writer, batch(3))
        disk.gated = False
        disk.gate.release()
        assert results.wait(3) == [None] * 3
        assert put(writer, batch(4)) == [None]
        wait_until(lambda: writer.statistics()["waiting_messages"] == 0)
    assert results.wait(3) == [None] * 3
    assert "the callback's own fault" in caplog.text


# -- no room, broken disks ------------------------------------------------------------------------


def test_without_room_nothing_is_called_back_until_there_is_room_again() -> None:
    """Disk full: nothing is acknowledged, the process lives, it resumes when space is back."""
    disk = SimulatedDisk()
    told: list[str] = []
    with a_writer(disk, report=told.append) as writer:
        assert put(writer, batch(0)) == [None]
        disk.capacity = disk.used() + 100
        results = Results()
        for number in range(1, 10):
            results.submit(writer, batch(number))
        wait_until(lambda: writer.stalled is not None)
        assert "no room on the disk" in str(writer.stalled)
        assert writer.statistics()["stalled"] == 1
        assert results.given == {}
        assert writer.end == 1
        disk.capacity = None
        assert results.wait(9) == [None] * 9
        assert writer.stalled is None
        statistics = writer.statistics()
        assert (statistics["stalls"], statistics["stalled"]) == (1, 0)
    assert len(told) == 2
    assert "nothing can be acknowledged: no room on the disk" in told[0]
    assert "messages are acknowledged again" in told[1]
    assert ids(rows(DIRECTORY, disk=disk)) == list(range(10))


@pytest.mark.usefixtures("small_groups")
def test_at_max_bytes_the_writer_goes_on_when_a_consumer_commits() -> None:
    disk = SimulatedDisk()
    with a_writer(disk, max_bytes=4000) as writer:
        results = Results()
        for number in range(30):
            results.submit(writer, batch(number))
        wait_until(lambda: writer.stalled is not None)
        assert "no consumer is registered" in str(writer.stalled)
        reader = QueueReader(DIRECTORY, disk=disk)
        seen: list[int] = []

        def more() -> bool:
            return reader.end() > len(seen)

        while len(seen) < 30:
            wait_until(more)
            seen += ids(rows(DIRECTORY, len(seen), None, disk=disk))
            reader.commit("spark", len(seen))
        assert results.wait(30) == [None] * 30
        assert seen == list(range(30))
        assert writer.begin > 0
        assert writer.statistics()["stored_bytes"] <= 4000


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_group_that_a_broken_disk_did_not_take_is_written_again(operation: str) -> None:
    """RD-53, LJ-13: whoever waits, and what stands behind, waits on; nothing is there twice."""
    disk = SimulatedDisk()
    told: list[str] = []
    with a_writer(disk, report=told.append) as writer:
        assert put(writer, batch(0)) == [None]
        disk.fail_next(operation, errno.EIO, ".segment", times=3)
        assert put(writer, batch(1), batch(2)) == [None, None]
        assert writer.stalled is None
        statistics = writer.statistics()
        assert (statistics["disk_errors"], statistics["stalls"]) == (3, 1)
        assert statistics["failed_messages"] == 0
    assert ["cannot write to the queue" in told[0], "again" in told[1]] == [True, True]
    assert len(told) == 2
    assert ids(rows(DIRECTORY, disk=disk)) == [0, 1, 2]


def test_a_fault_of_whoever_takes_reports_stops_at_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedDisk()

    def faulty(line: str) -> None:
        raise ZeroDivisionError("the reporter's own fault")

    with a_writer(disk, report=faulty) as writer:
        disk.fail_next("write", errno.EIO, ".segment")
        put(writer, batch(0))
        assert put(writer, batch(1)) == [None]
    assert "the reporter's own fault" in caplog.text


def test_reports_go_to_the_log_when_nobody_else_takes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedDisk()
    with caplog.at_level(logging.WARNING, "twisted_msgproto.queue"), a_writer(disk) as writer:
        disk.fail_next("write", errno.EIO, ".segment")
        put(writer, batch(0))
    assert "cannot write to the queue" in caplog.text


# -- ends -----------------------------------------------------------------------------------------


def test_closing_writes_what_waits_and_gives_the_lock_back() -> None:
    disk = SimulatedDisk()
    others = threading.enumerate()
    with a_writer(disk) as writer:
        results = Results()
        for number in range(100):
            results.submit(writer, batch(number))
        assert writer.close()
        for thread in threading.enumerate():
            if thread not in others:
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive()
        assert results.wait(100) == [None] * 100
        assert writer.close()
        with pytest.raises(QueueClosed, match="is closed"):
            writer.submit(batch(100), lambda error, first: None)
    with a_writer(disk) as again:
        assert again.end == 100


@pytest.mark.usefixtures("small_groups")
def test_closing_without_room_fails_what_waits_after_the_time_given() -> None:
    disk = SimulatedDisk()
    with a_writer(disk) as writer:
        disk.capacity = disk.used()
        results = Results()
        for number in range(4):
            results.submit(writer, batch(number))
        wait_until(lambda: writer.stalled is not None)
        assert not writer.close(0.01)
        errors = results.wait(4)
        assert all(isinstance(error, QueueClosed) for error in errors)
    disk.capacity = None
    with a_writer(disk) as again:
        assert again.end == 0


def test_closing_gives_up_what_a_slow_disk_did_not_come_to_in_the_time_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever closes is told the truth: what was not written then is not written later."""
    monkeypatch.setattr(writer_room, "GIVE_UP_S", 0.01)
    with a_busy_writer() as (disk, writer, results):
        results.submit(writer, batch(1))
        results.submit(writer, packed(2, 200))
        assert not writer.close(0.01)
        assert results.given == {}
        disk.gated = False
        disk.gate.release()
        assert [type(error) for error in results.wait(3)] == [type(None), QueueClosed, QueueClosed]
        writer.close()
    with a_writer(disk) as again:
        assert again.end == 1


def test_a_writer_without_room_on_the_disk_trims_what_was_consumed_meanwhile() -> None:
    """LJ-13: on a full disk nothing but the consumer's progress may ever make room."""
    disk = SimulatedDisk()
    with a_writer(disk, segment_bytes=5_000) as writer:
        for number in range(20):
            assert put(writer, batch(number, nbytes=1_000)) == [None]
        reader = QueueReader(DIRECTORY, disk=disk)
        reader.register("spark")
        disk.capacity = disk.used() + 200
        results = Results()
        results.submit(writer, batch(20, nbytes=1_000))
        wait_until(lambda: writer.stalled is not None)
        reader.commit("spark", reader.end())  # a known consumer can commit on a full disk
        assert results.wait(1) == [None]
        disk.mend()


def test_a_fault_of_ours_is_told_and_leaves_nobody_waiting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue never fails silently in its thread."""

    def broken(log: SegmentLog, group: Any) -> int:
        raise ZeroDivisionError("a fault of ours")

    with a_busy_writer() as (disk, writer, results), monkeypatch.context() as patched:
        results.submit(writer, batch(1))
        results.submit(writer, packed(10_000, 100))
        patched.setattr(SegmentLog, "append", broken)
        disk.gated = False
        disk.gate.release()
        results.wait(3)
        assert results.given[0] is None
        assert isinstance(results.given[1], ZeroDivisionError)
        assert results.given[10_000] is not None
        assert writer.refusal == "the queue's writer failed: a fault of ours"
        with pytest.raises(QueueClosed) as caught:
            writer.submit(batch(1), lambda error, first: None)
        assert str(caught.value) == f"the queue {DIRECTORY} is closed: a fault of ours"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert not writer.close()
    assert "a fault of ours" in caplog.text
    with a_writer(disk) as again:
        assert again.end == 1


# -- everything at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_each_batch_is_called_back_once_and_truly_whatever_happens(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: it is on disk, once; an error: it is not.  Each thread's batches keep their order."""
    source = random.Random(seed)
    disk = SimulatedDisk()
    monkeypatch.setattr(writer_room, "GROUP_MESSAGES", source.choice((1, 100, 16_384)))
    monkeypatch.setattr(writer_room, "GROUP_BYTES", source.choice((1, 1000, 8 << 20)))
    results = Results()
    accepted: list[int] = []

    def submit(start: int) -> None:
        mine = random.Random(seed + start)
        for number in range(start, start + 60_000, 1000):
            bulk = mine.random() < 0.4
            one = packed(number, mine.choice((64, 100))) if bulk else batch(number, 2)
            one.session = f"thread {start}"
            if mine.random() < 0.03:
                one.count += 1  # cannot be encoded
            if mine.random() < 0.03:
                disk.fail_next("sync", errno.EIO, ".segment")
            try:
                results.submit(writer, one)
            except QueueClosed:
                break
            accepted.append(number)

    with a_writer(disk, report=lambda line: None) as writer:
        threads = [threading.Thread(target=submit, args=(n * 1_000_000,)) for n in range(3)]
        for thread in threads:
            thread.start()
        if source.random() < 0.5:
            disk.capacity = disk.used() + source.choice((100, 20_000))
        if source.random() < 0.5:
            writer.close(0.001)
        for thread in threads:
            thread.join()
        writer.close(0.05)
        writer.close()
    results.wait(len(accepted))
    assert sorted(results.given) == sorted(accepted)
    disk.mend()
    with a_writer(disk):
        kept = ids(rows(DIRECTORY, disk=disk))
    assert len(kept) == len(set(kept))
    assert {number for number in kept if not number % 1000} == {
        number for number, error in results.given.items() if error is None
    }
    for given in (kept, list(results.given)):
        for n in range(3):
            mine = [number for number in given if number // 1_000_000 == n]
            assert mine == sorted(mine)


# -- idle -----------------------------------------------------------------------------------------


@pytest.fixture
def short_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_room, "IDLE_S", 0.005)


@pytest.mark.usefixtures("short_idle", "small_groups")
def test_an_idle_writer_trims_and_checks_what_the_start_left_out() -> None:
    disk = SimulatedDisk()
    with a_writer(disk, segment_bytes=1) as writer:
        put(writer, *[batch(number) for number in range(10)])
        QueueReader(DIRECTORY, disk=disk).commit("spark", 3)
        wait_until(lambda: writer.begin == 3)
    path = f"{DIRECTORY}/{5:020d}.segment"
    disk.flip(path, -20)
    told: list[str] = []
    with a_writer(disk, report=told.append, check_bytes=0) as writer:
        wait_until(lambda: len(told) == 1)
        assert writer.damaged == [(5, 6)]
        assert writer.statistics()["damaged_messages"] == 1
    assert "offsets 5 to 6 (1 message" in told[0]


@pytest.mark.usefixtures("short_idle")
def test_a_busy_writer_trims_too() -> None:
    disk = SimulatedDisk()
    with a_writer(disk, segment_bytes=1) as writer:
        put(writer, batch(0))
        QueueReader(DIRECTORY, disk=disk).register("spark")
        number = 1
        while writer.begin < 5:
            assert put(writer, batch(number)) == [None]
            number += 1
            QueueReader(DIRECTORY, disk=disk).commit("spark", number)


def test_what_the_start_has_found_is_told_before_anything_else() -> None:
    """Damage is reported once, by its range, and what was cut away too; a whole queue says
    nothing.
    """
    disk = SimulatedDisk()
    told: list[str] = []
    with a_writer(disk, report=told.append) as writer:
        for number in range(3):
            put(writer, batch(number))
        damaged = writer.queue_id
    path = f"{DIRECTORY}/{0:020d}.segment"
    octets = bytearray(disk.bytes_of(path))
    octets[HEAD_BYTES + FRAME_HEADER_BYTES + 20] ^= 1
    disk.spoil(path, bytes(octets) + b"torn")
    assert told == []
    with a_writer(disk, report=told.append) as writer:
        assert put(writer, batch(3)) == [None]
        assert writer.damaged == [(0, 1)]
    assert len(told) == 2
    assert f"damaged: queue {damaged} offsets 0 to 1 (1 messages" in told[0]
    assert "cut 4 bytes of an unfinished record" in told[1]
    with a_writer(disk, report=told.append) as writer:
        assert put(writer, batch(4)) == [None]
    assert len(told) == 2, "told once"


FORKING = """
import os, sys
from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import QueueWriter

batch = MessageBatch("test", "json", 1, count=1, body=[b"x"], nbytes=1)
writer = QueueWriter(sys.argv[1])
if os.fork() == 0:
    try:
        writer.submit(batch, print)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    print("closed", writer.close(), flush=True)
    os._exit(0)
os.wait()
writer.submit(batch, lambda error, first: print("parent", error, flush=True))
print("closed", writer.close(), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_cannot_write_and_says_so(tmp_path: Path) -> None:
    """The writer's thread stays in the process which opened the queue: nobody may wait for it."""
    ran = subprocess.run(
        [sys.executable, "-c", FORKING, tmp_path / "q"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    child, closed, *parent = ran.stdout.splitlines()
    assert child.startswith("QueueClosed")
    assert "opened before this process was forked" in child
    assert closed == "closed False"
    assert parent == ["parent None", "closed True"]


def test_a_program_that_forgets_its_writer_ends_all_the_same(tmp_path: Path) -> None:
    program = "import sys; from twisted_msgproto.queue import QueueWriter; QueueWriter(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment(),
        timeout=PATIENCE_SECONDS,
        check=True,
    )


def test_what_is_submitted_in_the_writers_own_thread_is_written_too(tmp_path: Path) -> None:
    writer, firsts = QueueWriter(tmp_path / "q"), SimpleQueue[Any]()

    def again(error: BaseException | None, first: int | None) -> None:
        firsts.put((error, first))
        writer.submit(batch(2), lambda *answer: firsts.put(answer))

    writer.submit(batch(1), again)
    assert [firsts.get(timeout=PATIENCE_SECONDS) for _ in range(2)] == [(None, 0), (None, 1)]
    writer.close()


# -- figures and times: the writer's clock moves only when it is told to -------------------------


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
    monkeypatch.setattr(writer_room, "IDLE_S", PATIENCE_SECONDS)
    monkeypatch.setattr(writer_room, "WATCH_S", 0.0)
    disk, told = BrokenDisk(), list[str]()
    path = f"{1:020d}.segment" if what == "an older segment" else "consumers/spark"
    writer = QueueWriter(tmp_path, check_bytes=0, disk=disk, report=told.append)
    try:
        disk.fail("read", times=None, name=path)  # before the first check, which may be the last
        monkeypatch.setattr(writer_room, "IDLE_S", 0.005)
        assert put(writer, batch(3)) == [None]  # it waits no longer
        wait_until(lambda: writer.unreadable is not None)
        before = writer.statistics()["disk_errors"]
        wait_until(lambda: writer.statistics()["disk_errors"] > before + 20)
        assert [line for line in told if path in line] == told[-1:]
        assert path in str(writer.unreadable)
        disk.heal()
        wait_until(lambda: writer.unreadable is None)
        assert len(told) == 2
        assert writer.damaged == []
    finally:
        writer.close()


def test_the_page_s_numbers_of_a_queue_are_the_code_s() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for keys, values in (
        ("`max-bytes`", f"{segment_log.MAX_BYTES / 2**30:g} GiB"),
        ("`segment-bytes`", f"{segment_log.SEGMENT_BYTES / 2**20:g} MiB"),
    ):
        assert f"| {keys} | {values} |" in page


def test_a_consumer_which_is_behind_and_does_not_move_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TB-12: nobody said who keeps the disk full.  Consumers are looked at once a minute."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(writer_room, "IDLE_S", 0.0)  # each group is followed by a trim
    disk, told = SimulatedDisk(), list[str]()
    steps: list[tuple[dict[str, int], float, list[str]]] = [
        # what is committed, seconds that pass then, who is named
        ({"dead": 0, "live": 1, "done": 1}, 60, []),
        ({"live": 2, "done": 3}, 3540, []),
        ({"live": 3, "done": 5}, 59, []),
        ({"live": 4, "done": 7}, 1, ["dead"]),  # an hour, and a minute since the last look
        ({"live": 5, "done": 9}, 3600, []),  # it is named once
        ({"dead": 1, "done": 11}, 3600, ["live"]),
        ({"dead": 2, "live": 6, "done": 13}, 3600, []),
    ]
    with a_writer(disk, report=told.append) as writer:
        put(writer, batch(0))
        reader = QueueReader(DIRECTORY, disk=disk)
        for number, (committed, seconds, named) in enumerate(steps, 1):
            for name, offset in committed.items():
                reader.commit(name, offset)
            before = len(told)
            clock.now += seconds
            for message in (number, 100 + number):  # the first one's look is over then
                assert put(writer, batch(message)) == [None]
            assert [line.split("'")[1] for line in told[before:]] == named, number
    assert "has not moved for 1.0 h; what it needs is kept" in told[0]


def test_a_consumer_that_rests_until_its_next_run_is_not_named__RD_21(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, told = Clock(monkeypatch), list[str]()
    monkeypatch.setattr(writer_room, "IDLE_S", 0.0)
    with closing(QueueWriter(tmp_path, report=told.append)) as writer:
        put(writer, batch(0), batch(1))
        for name in ("nightly", "gone"):
            QueueReader(tmp_path).commit(name, 1)
            heard = {"state": "ended", "updated_at": time.time()}
            rests = {"rests_until": time.time() + 86_400} if name == "nightly" else {}
            write_status(status_path(tmp_path, name), heard | rests)
        for number, seconds in enumerate((60, 3600, 3600), 2):
            clock.now += seconds
            for message in (number, 100 + number):
                assert put(writer, batch(message)) == [None]
        assert [line.split("'")[1] for line in told] == ["gone"]
        command = re.search(r"If it is gone: msgproto (queue consumers .* --forget gone)$", told[0])
        assert command is not None
        assert cli.main(shlex.split(command[1])) == 2  # it is behind, so the next line says --yes
        assert "say --yes" in capsys.readouterr().err
        assert cli.main([*shlex.split(command[1]), "--yes"]) == 0
        clock.now += 3600
        for message in (5, 105):
            assert put(writer, batch(message)) == [None]
        assert len(told) == 1
