"""Pings of many WebSocket connections, with one timer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from twisted.internet import task
from twisted.logger import capturedLogs

from twisted_msgproto.net.wires.websocket.keepalive import Keepalive, Keepalives

PINGS_A_TURN, STEP_SECONDS = 200, 0.5


CONNECTIONS = 30


class Clock(task.Clock):
    """Refuses calls in the past, as reactors do, and tells ``turn`` of each call it makes."""

    turn: Callable[[], None] = staticmethod(lambda: None)

    def callLater(self, when: float, what: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        assert when >= 0

        def call() -> None:
            what(*args, **kw)
            self.turn()

        return super().callLater(when, call)


class Peer:
    """One connection: it answers, or it does not, and notes when it was pinged."""

    def __init__(self, clock: Clock, every: Keepalives, answers: bool) -> None:
        self.clock = clock
        self.answers = answers
        self.pings: list[float] = []
        self.gone_at: float | None = None
        self.keepalive = Keepalive(every, self._ping, self._gone)
        self.began = clock.seconds()
        self.keepalive.start()

    def _ping(self) -> None:
        self.pings.append(self.clock.seconds())
        if self.answers:
            self.keepalive.heard = True

    def _gone(self) -> bool:
        self.gone_at = self.clock.seconds()
        self.keepalive.stop()
        return True


@pytest.mark.parametrize(
    ("interval", "patience"), [(50.0, 30.0), (10.0, 30.0), (20.0, 20.0), (7.7, 1), (1.1 + 2.2, 3.3)]
)
def test_each_living_peer_is_pinged_in_time_and_a_dead_one_is_ended__NB_11(
    interval: float, patience: float
) -> None:
    clock, random = Clock(), Random(7)
    every = Keepalives(clock, interval, patience)
    peers = []
    for _ in range(CONNECTIONS):
        peers.append(Peer(clock, every, answers=random.random() < 0.7))
        for _ in range(random.randrange(int(interval))):
            clock.advance(0.05)
        assert len(clock.getDelayedCalls()) == 1
    steps = int(6 * (interval + patience) / 0.05)
    for _ in range(steps):
        clock.advance(0.05)
    slack = 2 * STEP_SECONDS + 0.1
    for peer in peers:
        first = peer.pings[0]
        assert peer.began + interval <= first + 1e-6 <= peer.began + interval + slack
        if peer.answers:
            assert peer.gone_at is None
            between = [after - before for before, after in pairwise(peer.pings)]
            assert len(between) >= 4
            assert all(interval - slack <= one <= interval + 2 * slack for one in between), between
        else:
            assert len(peer.pings) == 1
            assert peer.gone_at is not None
            assert first + patience - slack <= peer.gone_at <= first + patience + 2 * slack
    for peer in peers:
        peer.keepalive.stop()
        peer.keepalive.stop()
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("answers", [True, False])
def test_those_who_connected_together_are_looked_at_in_several_turns__NB_07(answers: bool) -> None:
    """NB-07: after a restart ten thousand peers connect at once; their pings were one turn."""
    clock = Clock()
    every = Keepalives(clock, 10, 10)
    sums: list[int] = []

    def looked_at() -> int:
        return sum(len(peer.pings) + (peer.gone_at is not None) for peer in peers)

    clock.turn = lambda: sums.append(looked_at())  # type: ignore[method-assign]
    peers = [Peer(clock, every, answers) for _ in range(5 * PINGS_A_TURN // 2)]
    for _ in range(3 if answers else 2):
        sums[:] = [looked_at()]
        clock.advance(10 + STEP_SECONDS)
        turns = [after - before for before, after in pairwise(sums)]
        assert turns == [PINGS_A_TURN, PINGS_A_TURN, PINGS_A_TURN // 2]
    assert answers == (peers[0].gone_at is None)
    for peer in peers:
        peer.keepalive.stop()
    assert clock.getDelayedCalls() == []


def test_a_connection_may_end_others_while_all_are_due() -> None:
    clock = Clock()
    every = Keepalives(clock, 10, 10)
    peers = [Peer(clock, every, answers=True) for _ in range(5)]

    def ends_all() -> None:
        for peer in peers[1:]:
            peer.keepalive.stop()
        raise ValueError("and fails")

    peers[0].keepalive.ping = ends_all
    with capturedLogs() as logged:
        clock.advance(10)
    assert [event["log_format"] for event in logged] == ["a ping failed"]
    assert logged[0]["log_failure"].check(ValueError)
    assert [len(peer.pings) for peer in peers] == [0] * 5
    assert len(clock.getDelayedCalls()) == 1
    peers[0].keepalive.stop()
    assert clock.getDelayedCalls() == []


def test_who_deserves_more_time_is_pinged_again_after_it_was_heard__HO_04() -> None:
    clock = Clock()
    peer = Peer(clock, Keepalives(clock, 50, 30), answers=False)
    asked: list[float] = []

    def deserves_more() -> bool:
        asked.append(clock.seconds())
        return False

    peer.keepalive.gone = deserves_more
    for second in range(300):
        clock.advance(1)
        if second == 150:
            peer.keepalive.heard = True
    assert [round(second) for second in asked] == [80, 110, 140, 220, 250, 280]
    assert [round(second) for second in peer.pings] == [50, 190]
    peer.keepalive.stop()
    assert clock.getDelayedCalls() == []


def test_one_that_cannot_be_ended_harms_none_of_the_others_and_is_ended_later__NB_07() -> None:
    clock = Clock()
    every = Keepalives(clock, 10, 10)
    peers = [Peer(clock, every, answers=False) for _ in range(3)]
    end, tries = peers[0]._gone, iter([ValueError("not now"), None])

    def fails_once() -> bool:
        if (error := next(tries)) is not None:
            raise error
        return end()

    peers[0].keepalive.gone = fails_once
    with capturedLogs() as logged:
        clock.advance(10)
        clock.advance(10)
    assert [event["log_format"] for event in logged] == ["a connection could not be ended"]
    assert logged[0]["log_failure"].check(ValueError)
    assert [peer.gone_at for peer in peers] == [None, 20, 20]
    clock.advance(10)
    assert peers[0].gone_at == 30
    assert clock.getDelayedCalls() == []


def test_a_newcomer_is_pinged_in_time_while_a_silent_peer_has_more_patience__HO_04() -> None:
    """HO-04: its first ping is due before anybody is checked; there is one timer all the same."""
    clock = Clock()
    every = Keepalives(clock, 10, 30)
    silent = Peer(clock, every, answers=False)
    clock.pump([10, 10, 1])
    other = Peer(clock, every, answers=True)
    assert len(clock.getDelayedCalls()) == 1
    clock.pump([10, 9])
    assert (silent.pings, silent.gone_at, other.pings) == ([10], 40, [31])
    other.keepalive.stop()
    assert clock.getDelayedCalls() == []


def test_one_that_stopped_is_passed_over_when_its_time_comes() -> None:
    clock = Clock()
    every = Keepalives(clock, 10, 10)
    stopped, lives = (Peer(clock, every, answers=True) for _ in range(2))
    stopped.keepalive.stop()
    clock.advance(10)
    assert [len(peer.pings) for peer in (stopped, lives)] == [0, 1]
    other = Peer(clock, every, answers=True)
    clock.advance(10)
    other.keepalive.stop()
    other.keepalive.heard = False
    clock.advance(10)
    assert (other.gone_at, len(other.pings), len(lives.pings)) == (None, 1, 3)
    lives.keepalive.stop()
    assert clock.getDelayedCalls() == []


def test_without_an_interval_nothing_is_sent() -> None:
    clock = Clock()
    peer = Peer(clock, Keepalives(clock, 0, 30), answers=False)
    clock.advance(1000)
    assert peer.pings == []
    assert clock.getDelayedCalls() == []
    peer.keepalive.stop()
    assert peer.keepalive.ping is None
