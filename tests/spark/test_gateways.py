"""Gateways as units of failure: asked at once, named when they are away, never waited for."""

from __future__ import annotations

import queue as queues
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import messages, write
from twisted_msgproto.core.errors import QueueAway, QueueMismatch
from twisted_msgproto.queue import Description, Landed, QueueReader
from twisted_msgproto.spark.daemon_threads import DaemonThreadPool
from twisted_msgproto.spark.gateways import Gateways, Marks
from twisted_msgproto.spark.source_options import open_queue

FOREVER = 60.0
"""A hung gateway would answer then; no test waits for it."""


class FakeQueue:
    """A gateway which answers, or not."""

    def __init__(self, name: str, end: int = 10, begin: int = 0) -> None:
        self.queue_id = name
        self.first, self.last = begin, end
        self.hangs = threading.Event()
        self.hangs.set()
        self.committing = threading.Event()
        self.fails: Exception | None = None
        self.attempts = 0
        self.registered: list[str] = []
        self.marks: list[tuple[str, int, Landed | None]] = []
        self.asked: list[Landed | None] = []

    def _answer(self) -> None:
        self.hangs.wait(FOREVER)
        if self.fails is not None:
            raise self.fails

    def describe(self, landed: Landed | None = None) -> Description:
        self._answer()
        self.asked.append(landed)
        place = Landed(self.last, 1, 1)
        return Description(self.queue_id, self.first, self.last, place, 0, 0, 0, (), {}, {})

    def place(self, offset: int) -> Landed:
        self._answer()
        return Landed(offset, 1, 1)

    def register(self, consumer: str) -> int:
        self._answer()
        self.registered.append(consumer)
        return self.first

    def commit(self, consumer: str, offset: int, landed: Landed | None = None) -> None:
        self.committing.set()
        self.attempts += 1
        self._answer()
        self.marks.append((consumer, offset, landed))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., Gateways]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gateways(said: list[str], clock: Clock) -> Iterator[Make]:
    hung: list[FakeQueue] = []

    def make(*queues: FakeQueue, admit: Callable[..., None] = lambda *words: None) -> Gateways:
        by_location: dict[str, Any] = {queue.queue_id: queue for queue in queues}
        hung.extend(queues)

        def open_queue(location: str) -> Any:
            return by_location[location]

        names = list(by_location)
        return Gateways(names, open_queue, "night", admit, said.append, clock)

    yield make
    for queue in hung:
        queue.hangs.set()


@pytest.mark.parametrize("landed", [None, 4])
def test_a_mark_above_what_has_landed_is_set_back_before_anything_is_read(
    landed: int | None, tmp_path: Path, said: list[str]
) -> None:
    """A table was restored, or is new: what it has to land must not be trimmed meanwhile."""
    write(tmp_path / "queue", messages(0, 4), messages(4, 6))
    reader = QueueReader(tmp_path / "queue")
    reader.register("night")
    reader.commit("night", 10)
    gateways = Gateways(
        [str(tmp_path / "queue")], QueueReader, "night", lambda *words: None, said.append
    )
    known = {} if landed is None else {reader.queue_id: reader.place(landed)}
    [one] = gateways.ask(known, FOREVER)
    assert one.description is not None
    assert one.description.consumers == {"night": landed or 0}
    assert reader.consumers() == {"night": landed or 0}


def names(answered: object) -> list[str]:
    return sorted(one.gateway for one in answered)  # type: ignore[attr-defined]


def ask_until(gateways: Gateways, count: int, landed: dict[str, Landed] | None = None) -> list[str]:
    """Rounds until so many gateways have answered; a loaded machine may need more than one."""
    heard: set[str] = set()
    deadline = time.monotonic() + FOREVER
    while len(heard) < count:
        assert time.monotonic() < deadline
        heard |= set(names(gateways.ask(landed or {})))
    return sorted(heard)


def test_all_answer_and_have_the_consumer_registered(gateways: Make) -> None:
    queues = [FakeQueue("a"), FakeQueue("b")]
    some = gateways(*queues)
    some.consumer = None  # before the table is made they are only looked at
    assert ask_until(some, 2) == ["a", "b"]
    assert [queue.registered for queue in queues] == [[], []]
    some.consumer = "night"
    assert ask_until(some, 2, {"a": Landed(3, 1, 1)}) == ["a", "b"]
    assert [queue.registered for queue in queues] == [["night"], ["night"]]
    assert queues[0].asked[-1] == Landed(3, 1, 1)
    assert queues[1].asked[-1] is None


def test_one_which_hangs_holds_nobody_up_and_is_heard_later__TB_09(gateways: Make) -> None:
    """TB-09: nothing moved for 60 s, then the stream ended for all."""
    hung, well = FakeQueue("hung"), FakeQueue("well")
    hung.hangs.clear()
    some = gateways(hung, well)
    assert ask_until(some, 1) == ["well"]
    assert names(some.ask({}, 0.0)) in ([], ["well"])
    hung.hangs.set()
    assert "hung" in ask_until(some, 2)
    assert hung.registered == ["night"]


def test_the_known_silent_take_no_part_in_the_round_of_the_others__TB_13(
    gateways: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-13: a tenth of a thousand took most threads, and the others' plan waited for them."""
    monkeypatch.setattr("twisted_msgproto.spark.gateways.THREADS_MAX", 2)
    silent = [FakeQueue(f"silent-{number}") for number in range(8)]
    living = [FakeQueue(f"living-{number}") for number in range(4)]
    for queue in silent:
        queue.fails = QueueAway(f"{queue.queue_id}: no answer")
    some = gateways(*silent, *living)
    ask_until(some, 4)
    while len(some.in_state("away")) < 8:
        some.ask({})
    for queue in silent:
        queue.hangs.clear()
    clock.now += 30.0
    assert len(names(some.ask({}, FOREVER))) == 4
    assert sum(one.asking for one in some.all) == 8


def test_many_which_fall_silent_at_once_hold_the_others_up_for_a_round_only__TB_13(
    gateways: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-13: more than there are threads; each hung in one and nobody else was asked any more."""
    monkeypatch.setattr("twisted_msgproto.spark.gateways.THREADS_MAX", 2)
    queues = [FakeQueue(f"{number}") for number in range(12)]
    some = gateways(*queues)
    ask_until(some, 12)
    for queue in queues[:8]:
        queue.hangs.clear()
    assert ask_until(some, 4) == sorted(queue.queue_id for queue in queues[8:])


def test_one_which_is_silent_for_long_is_away(
    gateways: Make, said: list[str], clock: Clock
) -> None:
    hung = FakeQueue("hung")
    hung.hangs.clear()
    some = gateways(hung)
    some.ask({}, 0.0)
    clock.now += 5.0 - 1
    some.ask({}, 0.0)
    assert (some.all[0].state, said) == ("new", [])
    clock.now += 1
    some.ask({}, 0.0)
    assert some.all[0].state == "away"
    assert said == ["gateway hung is away and keeps its place: hung has not answered for 5 s"]
    hung.hangs.set()
    deadline = time.monotonic() + FOREVER
    while some.all[0].state != "answers":
        assert time.monotonic() < deadline
        some.ask({}, 0.0)


def test_one_which_is_away_is_named_once_and_asked_after_growing_pauses__TB_09(
    gateways: Make, said: list[str], clock: Clock
) -> None:
    away, well = FakeQueue("away"), FakeQueue("well")
    away.fails = QueueAway("away: connection refused")
    some = gateways(away, well)
    assert ask_until(some, 1) == ["well"]
    [one] = some.all[:1]
    pauses = []
    for _ in range(9):
        while one.asking or one.state != "away" or one.next <= clock.now:
            some.ask({})
        pauses.append(one.next - clock.now)
        clock.now = one.next
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert said == ["gateway away is away and keeps its place: away: connection refused"]
    away.fails = None
    while one.state != "answers":
        some.ask({})
        clock.now += 30.0
    assert said[1:] == ["gateway away (away) answers again"]


def test_another_history_is_refused_and_opened_anew(gateways: Make, said: list[str]) -> None:
    swapped = FakeQueue("a")
    some = gateways(swapped)
    ask_until(some, 1)
    swapped.fails = QueueMismatch("queue a is an older copy")
    while some.all[0].state != "refused":
        assert names(some.ask({})) in ([], ["a"])
    assert some.all[0].queue is None
    assert said == ["gateway a (a) is refused: queue a is an older copy"]
    assert some.all[0].description is None


@pytest.mark.parametrize("begins", [[5], [0, 5]], ids=["before", "while it is asked"])
def test_a_gateway_that_has_trimmed_what_is_wanted_is_refused(
    gateways: Make, begins: list[int]
) -> None:
    """And before anything of it is touched, if that is seen in time."""

    class Trims(FakeQueue):
        def register(self, consumer: str) -> int:
            self.first = begins[-1]
            return super().register(consumer)

    def admit(description: Description, landed: Landed | None) -> None:
        if description.begin:
            raise QueueMismatch("what has not landed is gone")

    trims = Trims("a", begin=begins[0])
    some = gateways(trims, admit=admit)
    while some.all[0].state != "refused":
        assert some.ask({}) == []
    assert trims.registered == ["night"] * (len(begins) - 1)


def test_two_addresses_of_one_queue_are_landed_once(said: list[str]) -> None:
    queue: Any = FakeQueue("a")
    some = Gateways(
        ["first"],
        lambda location: queue,
        "night",
        lambda *words: None,
        said.append,
        more=lambda known: {"second"} - set(known),  # its directory was made after the start
    )
    while "refused" not in {one.state for one in some.all}:
        some.ask({})
    assert any("the same queue as" in line for line in said)
    assert list(some.by_id) == ["a"]


def test_a_place_is_asked_of_all_at_once_and_who_is_silent_is_left_out(gateways: Make) -> None:
    well, gone, hung = FakeQueue("well"), FakeQueue("gone"), FakeQueue("hung")
    some = gateways(well, gone, hung)
    ask_until(some, 3)
    gone.fails = QueueAway("gone")
    hung.hangs.clear()
    places = some.place({"well": 5, "gone": 5, "hung": 5})
    assert places == {"well": Landed(5, 1, 1)}
    assert some.by_id["gone"].state == "away"


# -- marks ----------------------------------------------------------------------------------------


def marks_for(*queues: FakeQueue, said: list[str] | None = None) -> Marks:
    by_id = {queue.queue_id: queue for queue in queues}
    return Marks("night", by_id.get, lambda: None, (said if said is not None else []).append)


def test_the_end_sends_what_was_wanted_while_an_older_mark_was_on_its_way__TB_10() -> None:
    """Each mark once, with what proves it."""
    queue = FakeQueue("a")
    queue.hangs.clear()
    marks = marks_for(queue)
    marks.want({"a": Landed(5, 1, 2)})
    marks.send()
    assert queue.committing.wait(FOREVER)
    marks.want({"a": Landed(9, 1, 2)})
    ending = threading.Thread(target=marks.finish, args=[FOREVER])
    ending.start()
    queue.hangs.set()
    ending.join(FOREVER)
    marks.want({"a": Landed(9, 1, 2)})
    marks.send()
    assert queue.marks == [("night", 5, Landed(5, 1, 2)), ("night", 9, Landed(9, 1, 2))]


def test_a_hung_gateway_does_not_hold_up_the_end_nor_others_marks__TB_10() -> None:
    """TB-10: SIGTERM with a gateway away took 181 s."""
    hung, well = FakeQueue("hung"), FakeQueue("well")
    hung.hangs.clear()
    marks = marks_for(hung, well)
    marks.start()
    marks.want({"hung": Landed(5), "well": Landed(7)})
    began = time.monotonic()
    marks.finish(1.0)
    assert time.monotonic() - began < FOREVER / 2
    deadline = time.monotonic() + FOREVER
    while marks.unsent() != {"hung"}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hung.hangs.set()


@pytest.mark.parametrize("error", [KeyError("a fault of ours"), OSError("a full disk")])
def test_marks_are_sent_though_a_report_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Their thread ended then: what had landed stayed on the gateways' disks for ever."""
    monkeypatch.setattr("twisted_msgproto.spark.gateways.MARKS_SECONDS", 0.01)
    queue, said, reports = FakeQueue("a"), list[str](), threading.Semaphore(0)

    def report() -> None:
        reports.release()
        raise error

    marks = Marks("night", {"a": queue}.get, report, said.append)
    marks.start()
    for _ in range(3):
        assert reports.acquire(timeout=FOREVER)
    marks.want({"a": Landed(5)})
    assert queue.committing.wait(FOREVER)
    marks.finish(FOREVER)
    line = "bridge: its status is not reported: KeyError: 'a fault of ours'"
    assert said == [line] * isinstance(error, KeyError)


def test_a_queue_in_anothers_place_is_sent_no_mark_of_it__TB_07(
    tmp_path: Path, said: list[str]
) -> None:
    """TB-07: it was told that it had been restored, and to rewind; a mark at 0 went back there."""
    place = tmp_path / "place"
    write(place, messages(0, 5))
    first = QueueReader(place).queue_id
    some = Gateways([str(place)], open_queue, "night", lambda *words: None, said.append)
    ask_until(some, 1)
    place.rename(tmp_path / "away")
    write(place, messages(0, 9))
    second = QueueReader(place).queue_id
    landed = {first: Landed(0), second: QueueReader(place).place(9)}
    deadline = time.monotonic() + FOREVER
    while second not in some.by_id:
        assert time.monotonic() < deadline
        some.all[0].next = float("-inf")
        some.ask(landed)
    assert some.opened(first) is None
    queue = some.opened(second)
    assert queue is not None and queue.queue_id == second


def test_a_mark_which_is_not_taken_is_told_once_and_sent_again() -> None:
    queue, said = FakeQueue("a"), list[str]()
    queue.fails = QueueMismatch("it is another history")
    marks = marks_for(queue, said=said)
    marks.want({"a": Landed(5)})
    while queue.attempts < 3:
        marks.send()
        time.sleep(0.001)
    assert said == ["bridge: the low-water mark of a is not taken: it is another history"]
    queue.fails = None
    while marks.unsent():
        marks.send()
        time.sleep(0.001)
    assert queue.marks == [("night", 5, Landed(5))]


# -- threads for work that may hang ---------------------------------------------------------------


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{name}-")]


def test_a_thread_without_work_ends_and_the_next_work_is_done_all_the_same() -> None:
    some, working, three = DaemonThreadPool(3, "idle"), set[int](), threading.Barrier(3)

    def work() -> int:
        working.add(threading.get_ident())
        three.wait(FOREVER)
        at_once = len(working)
        working.discard(threading.get_ident())
        return at_once

    for _ in range(3):
        seen = some.gather(dict.fromkeys(range(21), work), FOREVER)
        assert len(seen) == 21 and max(map(int, seen.values())) <= 3  # type: ignore[arg-type]
        deadline = time.monotonic() + FOREVER
        while threads_of("idle"):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_work_that_raises_leaves_its_place_to_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread counted for ever: after as many as there may be, nothing was done any more."""
    raised: queues.SimpleQueue[str] = queues.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda told: raised.put(str(told.exc_value)))
    some = DaemonThreadPool(2, "raising")

    def wrong() -> None:
        raise ValueError("a fault of ours")

    for _ in range(3):
        some.submit(wrong)
    assert some.gather({"well": lambda: 1}, FOREVER) == {"well": 1}
    assert {raised.get(timeout=FOREVER) for _ in range(3)} == {"a fault of ours"}


def test_a_thread_that_hangs_is_relieved_once_and_ends_with_its_work() -> None:
    some, begun, hangs = DaemonThreadPool(1, "relieved"), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        hangs.wait(FOREVER)

    some.submit(hang)
    assert begun.wait(FOREVER)
    for _ in range(2):
        some.relieve(0.0)
    [thread] = threads_of("relieved")
    assert some.gather({1: lambda: 2}, FOREVER) == {1: 2}
    hangs.set()
    thread.join(FOREVER)
    assert not thread.is_alive()
    assert some.gather({1: lambda: 3}, FOREVER) == {1: 3}
