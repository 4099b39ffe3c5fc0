"""A server factory of one protocol, its clients, a clock and a log, for the contract's tests.

A test class is written once (``Rows``); :func:`over_all` makes one of it for each protocol.  What a
protocol does not keep yet stands in :mod:`.expected`, as a strict expected failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.contract.cases import CASES, Case, Peer
from tests.tools.memory_zeromq import Network
from twisted_msgproto.net import Counters

START = 1_700_000_000.0


class World:
    """One server factory and its clients.

    Attributes:
        factory: the server's.
        peers: the clients which were made, each with its line.
        logged: log events of this package since the world began.
        away: nobody listens.
        turned_away: what every connection of a client which comes back ends with, if anything.
    """

    def __init__(self, case: Case, sink: Any = None, hooks: Any = None, **options: Any) -> None:
        """``hooks``: attributes of a subclass of the server's protocol; ``options``: limits, and
        ``portal``.
        """
        self.case = case
        self.clock = Clock()
        self.clock.advance(START)
        self.network = Network(self.clock)
        self.peers: list[Peer] = []
        self.away = False
        self.turned_away: Exception | None = None
        self.logged: list[dict[str, Any]] = []
        globalLogPublisher.addObserver(self._observe)
        portal = options.pop("portal", None)
        self.factory = case.serve(self, sink, hooks or {}, portal, _limits(options))

    def _observe(self, event: dict[str, Any]) -> None:
        if str(event.get("log_namespace", "")).startswith("twisted_msgproto"):
            self.logged.append(event)

    def lines(self, level: LogLevel = LogLevel.info) -> list[str]:
        return [formatEvent(event) for event in self.logged if event["log_level"] >= level]

    @property
    def tracebacks(self) -> list[Any]:
        return [event for event in self.logged if event.get("log_failure") is not None]

    def join(self, **options: Any) -> Peer:
        """A client whose session stands; ``options`` are ``full``, ``host`` and its limits."""
        peer = self.meet(**options)
        self.pump()
        assert peer.stands, self.lines()
        return peer

    def meet(self, **options: Any) -> Peer:
        where = {name: options.pop(name) for name in ("full", "host") if name in options}
        peer = self.case.join(self, options.pop("hooks", {}), _limits(options), **where)
        self.peers.append(peer)
        return peer

    def log_in(self, name: str, password: str, host: str = "192.0.2.7") -> Deferred[Any]:
        """A client which wants in: fires when it is, fails when it is refused."""
        answer = self.case.log_in(self, name, password, host)
        self.pump()
        return answer

    def pump(self) -> None:
        """Move bytes and let due calls happen until nothing moves."""
        moved = True
        while moved:
            moved = any([peer.pump() for peer in self.peers])
            due = [call for call in self.clock.calls if call.getTime() <= self.clock.seconds()]
            if due:
                self.clock.advance(0)
                moved = True
        if sys.getprofile() is None:  # else the calls of a message are counted
            none_is_missed(self.factory.counters)

    def wait(self, seconds: float, step: float = 1.0) -> None:
        while seconds > 0:
            self.clock.advance(min(step, seconds))
            self.pump()
            seconds -= step

    def idle(self, count: int) -> None:
        for _ in range(count):
            self.join()

    def close(self) -> list[Any]:
        """End all of it; what would still happen then."""
        for peer in self.peers:
            peer.cut()
            for sent in peer.sent:  # the test has looked at those which it is about
                sent.addErrback(lambda failure: None)
        drained = self.factory.drain()
        self.clock.advance(0)
        if not drained.called:  # somebody's hook never fires
            self.clock.advance(self.factory.limits["drain"])
        assert drained.called
        globalLogPublisher.removeObserver(self._observe)
        return list(self.clock.getDelayedCalls())


def none_is_missed(counters: Counters) -> None:
    """Counters are summed by asking only those connections that have changed: all others must
    stand where they stood when they were asked last (FC-03).
    """
    summed, states = counters.as_dict(), +counters.states
    counters.changed.update(counters._paths)
    assert counters.as_dict() == summed, "a connection has counted without stirring"
    assert +counters.states == states, "a connection has moved without stirring"


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in options.items()}


class ContractCase(SynchronousTestCase):
    """One protocol's turn: ``self.world(…)`` makes a world which ends with the test."""

    case: Case

    def world(self, sink: Any = None, **options: Any) -> World:
        world = World(self.case, sink, **options)

        def close() -> None:
            self.assertEqual(world.close(), [], "left on the clock")

        self.addCleanup(close)
        return world

    def ignore(self, deferred: Deferred[Any]) -> None:
        deferred.addErrback(lambda failure: None)

    def times(self, waiting: list[Any]) -> list[int]:
        """How often each of these Deferreds fires from now on."""
        times = [0] * len(waiting)
        for number, one in enumerate(waiting):

            def count(result: Any, number: int = number) -> None:
                times[number] += 1

            one.addBoth(count)
        return times

    def soon(self, world: World, asked: Any, seconds: float = 0) -> Any:
        """What ``asked``, a Deferred or a coroutine, gives within ``seconds``."""
        given = ensureDeferred(asked) if isinstance(asked, Coroutine) else asked
        world.wait(seconds) if seconds else world.pump()
        return self.successResultOf(given)

    def soonFails(
        self, world: World, asked: Deferred[Any], *kinds: type[Exception], seconds: float = 0
    ) -> Failure:
        world.wait(seconds) if seconds else world.pump()
        return self.failureResultOf(asked, *kinds)


def only(*names: str) -> Callable[[Any], Any]:
    def mark(test: Any) -> Any:
        test.cases = names
        return test

    return mark


def over_all(namespace: dict[str, Any], *rows: type) -> None:
    for room in rows:
        for case in CASES:
            members: dict[str, Any] = {"case": case, "__module__": namespace["__name__"]}
            for name, test in vars(room).items():
                if not name.startswith("test_"):
                    continue
                if case.name not in getattr(test, "cases", (case.name,)):
                    members[name] = None
            made = type(f"{room.__name__}Of{case.title}", (room, ContractCase), members)
            namespace[made.__name__] = made
