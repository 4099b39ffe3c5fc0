"""The watch over several processes: who is asked when, who is silent, and who is killed."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from twisted_msgproto.core.errors import ConfigurationError, QueueAway, QueueError
from twisted_msgproto.net.processes.watch import (
    ASK_SECONDS,
    HANG_SECONDS,
    HANG_SECONDS_MOST,
    LATE_SECONDS,
    SILENT_SECONDS,
    TURN_SECONDS,
    Watch,
    hang_seconds_of,
)


class Watched:
    """A watch that runs, and what came of it."""

    def __init__(self, *numbers: int, hang: float = HANG_SECONDS) -> None:
        self.clock = Clock()
        self.asks: list[tuple[int, Deferred[Any]]] = []
        self.answered: list[int] = []
        self.killed: list[tuple[int, float]] = []
        self.at_once: Any = None
        self.watch = Watch(
            *(self.clock, self.ask, self.answered.append),
            lambda number, seconds: self.killed.append((number, seconds)),
            hang,
        )
        self.watch.start()
        for number in numbers:
            self.watch.begin(number)

    def ask(self, number: int) -> Deferred[Any]:
        asked: Deferred[Any] = Deferred()
        self.asks.append((number, asked))
        if self.at_once is not None:
            asked.callback(self.at_once)
        return asked

    def answer(self, answer: Any = None) -> None:
        """The last ask is answered."""
        self.asks[-1][1].callback({} if answer is None else answer)

    def turn(self, seconds: float) -> None:
        """The supervisor turns for this long, and checks as often as it means to."""
        self.clock.pump([TURN_SECONDS] * round(seconds / TURN_SECONDS))

    def asked(self) -> list[int]:
        return [number for number, _ in self.asks]


def test_a_process_is_asked_at_once_and_again_some_time_after_its_answer() -> None:
    seen = Watched(0)
    seen.turn(TURN_SECONDS)
    assert seen.asked() == [0]
    seen.answer()
    assert seen.answered == [0]
    seen.turn(ASK_SECONDS - TURN_SECONDS)
    assert seen.asked() == [0]
    seen.turn(TURN_SECONDS)
    assert seen.asked() == [0, 0]


def test_an_answer_in_the_same_turn_is_one() -> None:
    seen = Watched(0, hang=1.0)
    seen.at_once = {}
    seen.turn(60)
    assert len(seen.answered) == 60 // ASK_SECONDS
    assert not seen.killed


def test_one_process_has_one_ask_under_way_and_keeps_no_other_waiting() -> None:
    seen = Watched(0, 1)
    seen.turn(TURN_SECONDS)
    assert seen.asked() == [0, 1]
    for _ in range(10):
        seen.answer()  # of process 1
        seen.turn(ASK_SECONDS)
    assert seen.asked() == [0, *[1] * 11]
    assert seen.watch.silent(0) and not seen.watch.silent(1)


def test_a_process_that_does_not_answer_is_silent_and_says_so_once() -> None:
    seen = Watched(3)
    with capturedLogs() as logged:
        seen.turn(SILENT_SECONDS)
        assert not seen.watch.silent(3)
        seen.turn(TURN_SECONDS)
        assert seen.watch.silent(3)
        seen.turn(20)
    assert [event["event"] for event in logged] == ["process silent"]
    assert not seen.killed


def test_it_is_silent_no_more_when_it_answers_and_its_time_begins_anew() -> None:
    seen = Watched(0)
    for _ in range(2):
        seen.turn(HANG_SECONDS - TURN_SECONDS)
        assert seen.watch.silent(0)
        with capturedLogs() as logged:
            seen.answer()
        assert [event["event"] for event in logged] == ["process answers again"]
        assert not seen.watch.silent(0)
        seen.turn(ASK_SECONDS - TURN_SECONDS)
    assert seen.answered == [0, 0]
    assert not seen.killed


def test_a_process_that_is_silent_for_long_is_killed_once() -> None:
    seen = Watched(0, hang=20.0)
    seen.turn(20)
    assert not seen.killed
    seen.turn(TURN_SECONDS)
    assert seen.killed == [(0, 20.0)]
    seen.turn(600)  # its end may take, as when it waits for a disk
    assert seen.killed == [(0, 20.0)]
    assert seen.asked() == [0]


def test_nobody_is_killed_with_a_time_of_0_and_silence_is_noticed_all_the_same() -> None:
    seen = Watched(0, hang=0.0)
    seen.turn(HANG_SECONDS_MOST / 10)
    assert seen.watch.silent(0)
    assert not seen.killed


def test_a_time_below_that_of_silence_is_kept() -> None:
    seen = Watched(0, hang=1.0)
    seen.turn(2 * TURN_SECONDS)
    assert seen.killed == [(0, 1.0)]


@pytest.mark.parametrize("waited", [0, 10, int(HANG_SECONDS) - 1])
def test_time_in_which_the_supervisor_was_stopped_itself_is_not_counted(waited: int) -> None:
    """A machine that was suspended: the answer came while nobody could read it."""
    seen = Watched(0)
    seen.turn(TURN_SECONDS + waited)
    silent = seen.watch.silent(0)
    seen.clock.advance(100_000)
    assert seen.watch.silent(0) == silent
    assert not seen.killed
    seen.answer()  # it was in the socket
    assert not seen.watch.silent(0)
    seen.turn(ASK_SECONDS)
    assert seen.asked() == [0, 0]


def test_a_process_that_hangs_since_before_a_suspension_is_killed_after_it() -> None:
    seen = Watched(0, hang=20.0)
    seen.turn(TURN_SECONDS + 10)
    for _ in range(5):
        seen.clock.advance(TURN_SECONDS + LATE_SECONDS + 0.1)
    seen.turn(9)
    assert not seen.killed
    seen.turn(1)
    assert seen.killed == [(0, 20.0)]


def test_checks_that_are_a_little_late_are_counted_as_long_as_they_took() -> None:
    seen = Watched(0, hang=12.0)
    seen.turn(TURN_SECONDS)
    for _ in range(8):
        assert not seen.killed
        seen.clock.advance(TURN_SECONDS + LATE_SECONDS)
    assert seen.killed


def test_a_process_that_does_not_serve_is_not_asked() -> None:
    seen = Watched()
    seen.turn(60)
    assert not seen.asks
    assert not seen.watch.silent(0)


def test_a_process_that_has_ended_is_forgotten_and_begins_anew() -> None:
    seen = Watched(0, hang=20.0)
    seen.turn(15)
    assert seen.watch.silent(0)
    with capturedLogs() as logged:
        seen.watch.end(0)
        assert not seen.watch.silent(0)
        seen.turn(60)
    assert not logged and not seen.answered and not seen.killed
    assert seen.asked() == [0]
    assert seen.asks[0][1].called, "its connection is closed"
    seen.watch.begin(0)
    seen.turn(10)
    seen.watch.begin(0)  # it says again that it serves
    seen.turn(10)
    assert seen.asked() == [0, 0]
    assert not seen.killed
    seen.turn(1)
    assert seen.killed


def test_an_answer_of_the_former_run_says_nothing_of_the_next() -> None:
    seen = Watched(0)
    seen.turn(TURN_SECONDS)
    former: Any = seen.asks[0][1]
    former.cancel = lambda: None  # it comes too late
    seen.watch.end(0)
    seen.watch.begin(0)
    seen.turn(TURN_SECONDS + SILENT_SECONDS)
    former.callback({})
    assert seen.watch.silent(0)
    assert not seen.answered


def test_an_ask_that_fails_without_an_answer_is_neither_silence_nor_an_answer() -> None:
    """It has no socket, as its log says, and works without."""
    seen = Watched(0, hang=1.0)
    seen.at_once = Failure(QueueAway("nobody listens on its socket"))
    seen.turn(60)
    assert len(seen.asks) == 60 // ASK_SECONDS
    assert not seen.answered and not seen.killed and not seen.watch.silent(0)


def test_a_silent_process_stays_so_until_it_answers_whatever_becomes_of_the_ask() -> None:
    seen = Watched(0)
    seen.turn(TURN_SECONDS + SILENT_SECONDS)
    seen.answer(Failure(QueueAway("it closed the connection")))
    assert seen.watch.silent(0)
    seen.turn(ASK_SECONDS)
    seen.answer()
    assert not seen.watch.silent(0)


def test_a_complaint_is_an_answer() -> None:
    seen = Watched(0)
    seen.turn(TURN_SECONDS + SILENT_SECONDS)
    seen.answer(Failure(QueueError("the control endpoint has no such path")))
    assert seen.answered == [0]
    assert not seen.watch.silent(0)


def test_a_fault_of_our_own_kills_nobody_and_is_in_the_log() -> None:
    seen = Watched(0)
    seen.turn(TURN_SECONDS)
    with capturedLogs() as logged:
        seen.answer(Failure(ZeroDivisionError()))
    assert [event["log_format"] for event in logged] == ["a process could not be asked"]
    assert not seen.answered and not seen.watch.silent(0)
    seen.turn(ASK_SECONDS)
    assert len(seen.asks) == 2


def test_nobody_is_watched_after_the_end() -> None:
    seen = Watched(0, 1)
    seen.turn(TURN_SECONDS + SILENT_SECONDS)
    seen.watch.stop()
    assert not seen.watch.silent(0) and not seen.watch.silent(1)
    assert not seen.clock.getDelayedCalls()
    seen.watch.stop()
    assert not seen.answered


# ── the key of the file ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, HANG_SECONDS), (0, 0), (0.0, 0), (1, 1), (2.5, 2.5), (86_400, HANG_SECONDS_MOST)],
)
def test_the_time_is_a_number_or_0_for_never(value: object, seconds: float) -> None:
    assert hang_seconds_of(value) == seconds


@pytest.mark.parametrize("value", [True, "60", -1, 0.5, float("nan"), float("inf"), 86_401, [60]])
def test_any_other_time_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(ConfigurationError, match="number from 1 to 86400, or 0 for never, not "):
        hang_seconds_of(value)
