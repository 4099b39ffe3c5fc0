"""sABC in the simulated world: our reconnecting client asks our server, in parts and streams."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from tests.sim.clock import ProcessClock
from tests.sim.world import Violation, World
from twisted_msgproto.sabc import (
    SabcClient,
    SabcClientFactory,
    SabcClientService,
    SabcServerFactory,
    SabcSession,
)
from twisted_msgproto.sabc.machine.sides import Side
from twisted_msgproto.sabc.protocol.session import SabcLink

PATIENCE = {"response-seconds": 100_000.0, "connect-seconds": 1000.0}
"""A request ends with its answer or its connection here: one repeated in a session is out of order.

A connection which is broken and does not know it yet is nobody's fault.
"""


class Asking(SabcClient):
    """Tells the world's client when a session stands and when it is gone."""

    def sessionEstablished(self) -> None:
        self.factory.owner.stands(self)  # type: ignore[attr-defined]

    def sessionLost(self, reason: Failure) -> None:
        self.factory.owner.lost(self)  # type: ignore[attr-defined]


class AskingClient:
    """Asks once for each event, and again for those without an answer in the next session."""

    def __init__(self, world: World, bodies: list[bytes]) -> None:
        source = world.source
        self._world = world
        self._bodies = bodies
        self.window = source.choice((1, 2, 5, 50))
        self._streamed = source.random() < 0.3
        if self._streamed:
            self.window = min(self.window, 16)  # so many messages may be unfinished
        self._next = 0
        self._answered: set[int] = set()
        self._flight = 0
        self._session: SabcClient | None = None
        factory = SabcClientFactory(
            "me",
            clock=world.client_clock,
            limits={**PATIENCE, "part-bytes": source.choice((10, 65536))},
        )
        factory.protocol = Asking
        factory.owner = self  # type: ignore[attr-defined]
        self._factory = factory
        self.service = SabcClientService(
            world.endpoint(world.client_clock), factory, retryPolicy=lambda attempt: 0.5
        )

    def start(self) -> None:
        self.service.startService()

    def stands(self, session: SabcClient) -> None:
        self._session = session
        self._flight = 0
        self._next = next(
            (index for index in range(len(self._bodies)) if index not in self._answered),
            len(self._bodies),
        )
        self._send()

    def lost(self, session: SabcClient) -> None:
        self._session = None

    def _send(self) -> None:
        session = self._session
        while session and self._flight < self.window and self._next < len(self._bodies):
            index = self._next
            self._next += 1
            self._flight += 1
            body = self._bodies[index]
            asked = session.request([body[:9], body[9:]] if self._streamed else body)
            asked.addCallbacks(self._answer, lambda failure: None, callbackArgs=(index, session))

    def _answer(self, response: object, index: int, session: SabcClient) -> None:
        if index not in self._answered:
            self._answered.add(index)
            self._world.acknowledged(self._bodies[index])
        if session is self._session:
            self._flight -= 1
            self._send()

    def stop(self) -> None:
        self.service.stopService()

    def check(self) -> None:
        if self._flight > self.window:
            raise Violation(f"{self._flight} in flight, window {self.window}")
        if self._factory.counters["faults"]:
            raise Violation(f"the client reports faults: {self._factory.counters}")


class Sabc:
    name = "sabc"

    def make_server(self, world: World, sink: Any, clock: ProcessClock) -> Any:
        limits = {
            "unsafe-bytes": world.source.choice((500, 64 << 20)),
            "drain": 100.0,
            **PATIENCE,
        }
        return SabcServerFactory(
            sink,
            limits=limits,
            clock=clock,
            wallClock=clock.wall,
            shared=world.shared,
            newSessionId=lambda: f"session-{world.source.random()}",
        )

    def make_client(self, world: World, bodies: list[bytes]) -> Any:
        self.client = AskingClient(world, bodies)
        return self.client

    def duplicates_max(self, world: World) -> int:
        return len(world.pipes) * self.client.window


# ── Planted bugs ────────────────────────────────────────────────────────────────────────────────


def answer_before_safe() -> AbstractContextManager[object]:
    """A request is answered when it has come, not when it is on disk."""

    def received(self: SabcSession, batch: Any) -> Deferred[Any] | None:
        if self.factory.sink is not None:
            self.factory.sink.put(batch).addErrback(lambda failure: None)
        return None

    return mock.patch.object(SabcSession, "batchReceived", received)


def not_stored_is_answered() -> AbstractContextManager[object]:
    return mock.patch.object(SabcLink, "_notSafe", lambda self, place, failure: self._safe(place))


def parts_of_others() -> AbstractContextManager[object]:
    deliver = Side._deliver

    def reversed_parts(
        self: Any, incoming: Any, body: bytes, truncated: bool, events: list[Any]
    ) -> None:
        deliver(self, incoming, b"".join(reversed(incoming.parts)), truncated, events)

    return mock.patch.object(Side, "_deliver", reversed_parts)


def answer_too_many() -> AbstractContextManager[object]:
    """An acknowledgement covers all that wait, not those which are safe."""
    acknowledge = Side.acknowledge

    def all_of_them(self: Any, ids: Any) -> None:
        acknowledge(self, list(self._unanswered))

    return mock.patch.object(Side, "acknowledge", all_of_them)


SABC_BUGS = {
    "sabc-answer-before-safe": answer_before_safe,
    "sabc-not-stored-is-answered": not_stored_is_answered,
    "sabc-parts-reversed": parts_of_others,
    "sabc-answer-too-many": answer_too_many,
}
