"""UMQ in the simulated world: our reconnecting client calls our server, with late attachments."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import autobahn.websocket.protocol
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from tests.sim.clock import ProcessClock
from tests.sim.world import Violation, World
from twisted_msgproto.umq import UmqClient, UmqClientFactory, UmqClientService, UmqServerFactory
from twisted_msgproto.umq.protocol.calls import Calls
from twisted_msgproto.umq.protocol.session import UmqLink

# autobahn formats a page of debug text for each connection, whether anybody logs it or not: a tenth
# of a world's time.
autobahn.websocket.protocol.pformat = lambda value: ""

PATIENCE = {"call-seconds": 100_000.0, "hello-seconds": 1000.0, "attachment-seconds": 1000.0}
"""A call ends with its answer or its connection here: one repeated in a session is out of order.

A connection which is broken and does not know it yet is nobody's fault.
"""


class Calling(UmqClient):
    """Tells the world's client when a session stands and when it is gone."""

    def sessionEstablished(self) -> None:
        self.factory.owner.stands(self)

    def sessionLost(self, reason: Failure) -> None:
        self.factory.owner.lost(self)


class CallingClient:
    """Calls once for each event, and again for those without an answer in the next session."""

    def __init__(self, world: World, bodies: list[bytes]) -> None:
        source = world.source
        self._world = world
        self._bodies = bodies
        self.window = source.choice((1, 2, 5, 50))
        self.attach = source.choice((0, 0, 1, 2))
        self._late = source.random() < 0.5
        self._next = 0
        self._answered: set[int] = set()
        self._flight = 0
        self._session: UmqClient | None = None
        factory = UmqClientFactory("ws://gateway/", clock=world.client_clock, limits=PATIENCE)
        factory.protocol = Calling
        factory.owner = self  # type: ignore[attr-defined]
        self._factory = factory
        self.service = UmqClientService(
            world.endpoint(world.client_clock), factory, retryPolicy=lambda attempt: 0.5
        )

    def start(self) -> None:
        self.service.startService()

    def stands(self, session: UmqClient) -> None:
        self._session = session
        self._flight = 0
        self._next = next(
            (index for index in range(len(self._bodies)) if index not in self._answered),
            len(self._bodies),
        )
        self._send()

    def lost(self, session: UmqClient) -> None:
        self._session = None

    def _send(self) -> None:
        session = self._session
        while session and self._flight < self.window and self._next < len(self._bodies):
            index = self._next
            self._next += 1
            self._flight += 1
            attachments = [self._attachment(body) for body in attached(self._bodies[index], self)]
            called = session.call(self._bodies[index].decode(), attachments)
            called.addCallbacks(self._answer, lambda failure: None, callbackArgs=(index, session))

    def _attachment(self, body: bytes) -> Any:
        if not self._late:
            return body
        late: Deferred[bytes] = Deferred()
        self._world.client_clock.callLater(self._world.source.random(), late.callback, body)
        return late

    def _answer(self, reply: object, index: int, session: UmqClient) -> None:
        if index not in self._answered:
            self._answered.add(index)
            self._world.acknowledged(self._bodies[index])
        if session is self._session:
            self._flight -= 1
            self._send()

    def stop(self) -> None:
        self.service.stopService()
        mine = set(self._bodies)
        for row in self._world.consumer.rows():
            if row["body"] in mine and row["attachments"] != attached(row["body"], self):
                raise Violation(f"the attachments of {row['body']!r}: {row['attachments']!r}")

    def check(self) -> None:
        if self._flight > self.window:
            raise Violation(f"{self._flight} in flight, window {self.window}")
        if self._factory.counters["faults"]:
            raise Violation(f"the client reports faults: {self._factory.counters}")


def attached(body: bytes, client: CallingClient) -> list[bytes]:
    return [body[::-1] + b"%d" % number for number in range(client.attach)]


class Umq:
    name = "umq"

    def make_server(self, world: World, sink: Any, clock: ProcessClock) -> Any:
        limits = {
            "unsafe-bytes": world.source.choice((500, 64 << 20)),
            "drain": 100.0,
            "hello-seconds": PATIENCE["hello-seconds"],
            "attachment-seconds": PATIENCE["attachment-seconds"],
            "websocket-upgrade-seconds": PATIENCE["hello-seconds"],
        }
        return UmqServerFactory(
            sink, limits=limits, clock=clock, wallClock=clock.wall, shared=world.shared
        )

    def make_client(self, world: World, bodies: list[bytes]) -> Any:
        self.client = CallingClient(world, bodies)
        return self.client

    def duplicates_max(self, world: World) -> int:
        return len(world.pipes) * self.client.window


# ── Planted bugs ────────────────────────────────────────────────────────────────────────────────


def answer_before_safe() -> AbstractContextManager[object]:
    """A call is answered when it has come, not when it is on disk."""
    return mock.patch.object(Calls, "waits", lambda self, event: False)


def not_stored_is_accepted() -> AbstractContextManager[object]:
    def accepting(self: UmqLink, calls: Any, failure: Failure) -> None:
        self._safe(calls)

    return mock.patch.object(UmqLink, "_notSafe", accepting)


def goes_on_after_not_stored() -> AbstractContextManager[object]:
    """After a call which was not stored the session goes on: it has a gap."""

    def going_on(self: UmqLink, calls: Any, failure: Failure) -> None:
        for call in calls:
            self.machine.error(call.id, "8 not stored")
        self._settle()

    return mock.patch.object(UmqLink, "_notSafe", going_on)


def attachments_of_the_newest() -> AbstractContextManager[object]:
    from twisted_msgproto.umq.machine.attachments import Incoming

    fill = Incoming.fill

    def newest(self: Incoming, attachment: Any) -> Any:
        self.announcements.rotate(1)
        try:
            return fill(self, attachment)
        finally:
            self.announcements.rotate(-1)

    return mock.patch.object(Incoming, "fill", newest)


UMQ_BUGS = {
    "umq-answer-before-safe": answer_before_safe,
    "umq-not-stored-is-accepted": not_stored_is_accepted,
    "umq-goes-on-after-not-stored": goes_on_after_not_stored,
    "umq-attachments-of-the-newest": attachments_of_the_newest,
}
