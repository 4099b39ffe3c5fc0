"""Threads for work that may hang: how many there are, and when they end."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from twisted_msgproto.spark import crew
from twisted_msgproto.spark.crew import Crew

PATIENCE_SECONDS = 60.0


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{name}-")]


def test_a_thread_without_work_ends_and_the_next_work_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "IDLE_SECONDS", 0.01)
    some = Crew(3, "idle")
    for _ in range(3):
        calls = {number: lambda number=number: number for number in range(20)}
        assert some.gather(calls, PATIENCE_SECONDS) == {number: number for number in range(20)}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while threads("idle"):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_work_that_raises_leaves_its_place_to_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread counted for ever: after as many as there may be, nothing was done any more."""
    raised: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda told: raised.put(str(told.exc_value)))
    some = Crew(2, "raising")

    def wrong() -> None:
        raise ValueError("a fault of ours")

    for _ in range(3):
        some.submit(wrong)
    assert some.gather({"well": lambda: 1}, PATIENCE_SECONDS) == {"well": 1}
    assert {raised.get(timeout=PATIENCE_SECONDS) for _ in range(3)} == {"a fault of ours"}


def test_there_are_never_more_threads_than_the_crew_may_have() -> None:
    some = Crew(3, "bounded")
    seen = some.gather({n: lambda: len(threads("bounded")) for n in range(50)}, PATIENCE_SECONDS)
    assert len(seen) == 50
    assert max(map(int, seen.values())) <= 3  # type: ignore[arg-type]


def test_a_thread_that_hangs_is_relieved_once_and_ends_with_its_work() -> None:
    some, begun, hangs = Crew(1, "relieved"), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        hangs.wait(PATIENCE_SECONDS)

    some.submit(hang)
    assert begun.wait(PATIENCE_SECONDS)
    for _ in range(2):
        some.relieve(0.0)
    [thread] = threads("relieved")
    assert some.gather({1: lambda: 2}, PATIENCE_SECONDS) == {1: 2}
    hangs.set()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert some.gather({1: lambda: 3}, PATIENCE_SECONDS) == {1: 3}
