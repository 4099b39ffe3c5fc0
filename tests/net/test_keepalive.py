"""Pings of many WebSocket connections, with one timer."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from unittest import mock

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from twisted_msgproto.net.wires.websocket.keepalive import (
    PINGS_A_TURN,
    STEP_SECONDS,
    Keepalive,
    Keepalives,
)

CONNECTIONS = 30


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


def test_those_who_connected_together_are_pinged_in_several_turns__NB_07() -> None:
    """NB-07: after a restart ten thousand peers connect at once; their pings were one turn."""
    clock = Clock()
    every = Keepalives(clock, 10, 10)
    turns: list[int] = []
    step = every._step

    def counted() -> None:
        before = sum(len(peer.pings) for peer in peers)
        step()
        turns.append(sum(len(peer.pings) for peer in peers) - before)

    with mock.patch.object(Keepalives, "_step", lambda self: counted()):
        peers = [Peer(clock, every, answers=True) for _ in range(5 * PINGS_A_TURN // 2)]
        for _ in range(3):
            clock.advance(10 + STEP_SECONDS)
            assert turns == [PINGS_A_TURN, PINGS_A_TURN, PINGS_A_TURN // 2]
            turns.clear()
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

    peers[0]._ping = ends_all  # type: ignore[method-assign]
    peers[0].keepalive._ping = ends_all
    with capturedLogs() as logged:
        clock.advance(10)
    assert [event["log_format"] for event in logged] == ["a ping failed"]
    assert logged[0]["log_failure"].check(ValueError)
    assert [len(peer.pings) for peer in peers] == [0] * 5
    assert len(clock.getDelayedCalls()) == 1
    peers[0].keepalive.stop()
    assert clock.getDelayedCalls() == []


def test_one_that_stopped_is_passed_over_when_its_time_comes() -> None:
    clock = Clock()
    every = Keepalives(clock, 10, 10)
    stopped, lives = (Peer(clock, every, answers=True) for _ in range(2))
    stopped.keepalive.stop()
    clock.advance(10)
    assert [len(peer.pings) for peer in (stopped, lives)] == [0, 1]
    lives.keepalive.stop()
    assert clock.getDelayedCalls() == []


def test_without_an_interval_nothing_is_sent() -> None:
    clock = Clock()
    peer = Peer(clock, Keepalives(clock, 0, 30), answers=False)
    clock.advance(1000)
    assert peer.pings == []
    assert clock.getDelayedCalls() == []
