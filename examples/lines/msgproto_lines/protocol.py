"""Hooks and verbs of both sides on Twisted."""

from __future__ import annotations

from typing import Any, ClassVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure

from twisted_msgproto.core.errors import (
    ConnectionClosed,
    Fault,
    LimitExceeded,
    ProtocolViolation,
    Refused,
    TimedOut,
)
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.core.message import Message, MessageBatch
from twisted_msgproto.net.clients.reconnect import ReconnectingClient
from twisted_msgproto.net.factory import MsgprotoServerFactory, SessionFactory
from twisted_msgproto.net.link import Link, SteadyLogger
from twisted_msgproto.net.session import Session
from twisted_msgproto.net.wires.stream import StreamWire

from .machine import Client, Server
from .terms import (
    LIMITS,
    Acknowledged,
    BodiesReceived,
    BodiesStored,
    BodyPublished,
    SubscriptionAsked,
)

PROTOCOL = "lines"
KIND = "line"


class LinesServer(Session):
    """The server's side of one connection; override the hooks of Session."""

    log = SteadyLogger(namespace="msgproto_lines")
    factory: LinesServerFactory
    machine: Server
    wire: StreamWire

    def makeMachine(self) -> Server:
        """Return a machine with the factory's limits."""
        return Server(self.factory.limits)

    def transportSecured(self) -> None:
        """The connection can be used; there is no hand-shake of our own."""
        self.establish()

    def sessionEnding(self, reason: Failure) -> None:
        """The connection is gone."""
        self.factory.subscribers.pop(self, None)
        super().sessionEnding(reason)

    def _received(self, event: BodiesReceived) -> None:
        count, octets = len(event.bodies), sum(map(len, event.bodies))
        origin = (self.factory.receivedAt(), self.peer, self.session, self.clientId)
        batch = MessageBatch(PROTOCOL, KIND, *origin, count, octets)
        batch.message_id, batch.body = range(event.first, event.first + count), event.bodies
        self.deliver(batch, event.place)

    def _stored(self, event: BodiesStored) -> None:
        for subscriber in list(self.factory.subscribers):
            if subscriber.wire.output.octets > self.factory.limits["unread-octets"]:
                subscriber.unread()
            else:
                subscriber.machine.publish(event.bodies)
                subscriber.flush()

    def _subscribed(self, event: SubscriptionAsked) -> None:
        self.factory.subscribers[self] = None

    actions: ClassVar = {
        Fault: Session.peerFaulted,
        BodiesReceived: _received,
        BodiesStored: _stored,
        SubscriptionAsked: _subscribed,
    }


class LinesServerFactory(MsgprotoServerFactory):
    """Builds a LinesServer for each client; ``subscribers`` are those which get what is put."""

    protocolName = PROTOCOL
    LIMITS = LIMITS
    protocol = LinesServer  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """``arguments`` and ``options`` as the base has them."""
        super().__init__(*arguments, **options)
        self.subscribers: dict[LinesServer, None] = {}


class LinesClient(Link):
    """The client's side of one connection."""

    log = SteadyLogger(namespace="msgproto_lines")
    machine: Client
    readsWhileUnread = readsWhileDraining = True
    answerEvents = frozenset({Acknowledged})

    def __init__(self) -> None:
        """Make a client which is not connected."""
        self._error: Exception | None = None
        self._closing: list[Deferred[None]] = []

    def whenEstablished(self) -> Deferred[LinesClient]:
        """Fires with this client: it can be used as soon as it is connected."""
        return succeed(self) if self.loss is None else fail(self._why())

    def send(self, body: bytes) -> Deferred[None]:
        """Send a body; fires when the server has it safe.

        Fails with LimitExceeded when nothing was sent, and with what ended the connection.
        """
        return self._ask(b"put", body)

    def subscribe(self) -> Deferred[None]:
        """Ask for what is put from now on; fires when it will come to messageReceived."""
        return self._ask(b"subscribe", b"")

    def messageReceived(self, message: Message) -> None:
        """Somebody has put this; override it."""

    def close(self) -> Deferred[None]:
        """Wait for what is on its way, as long as the limit ``drain``; fires when it is closed."""
        if self.loss is not None:
            return succeed(None)
        closing: Deferred[None] = Deferred()
        deadline = self.factory.clock.callLater(self.factory.limits["drain"], self.abort)
        closing.addBoth(lambda _: deadline.active() and deadline.cancel())
        self._closing.append(closing)
        self.drain()
        return closing

    def makeMachine(self) -> Client:
        """Return a machine with the factory's limits."""
        return Client(self.factory.limits)

    def peerFaulted(self, fault: Fault) -> None:
        """The server did something wrong, or says that we did; callers are told."""
        kinds = {"ack-seconds": TimedOut, "refused": Refused}
        self._error = kinds.get(fault.reason, ProtocolViolation)(fault.text)
        super().peerFaulted(fault)

    def workLost(self, work: list[Any], reason: Failure) -> None:
        """The connection is gone; some callers wait in vain."""
        for waiter in work:
            if not waiter.called:
                waiter.errback(self._why())

    def sessionEnding(self, reason: Failure) -> None:
        """The connection is gone."""
        closing, self._closing = self._closing, []
        for closed in closing:
            closed.callback(None)

    def _why(self) -> Exception:
        return self._error or ConnectionClosed("the connection is closed")

    def _ask(self, word: bytes, body: bytes) -> Deferred[None]:
        waiter: Deferred[None] = Deferred()
        try:
            self.machine.ask(word, body, waiter, self.factory.clock.seconds())
        except LimitExceeded as error:
            return fail(error)
        except IllegalTransition:
            return fail(self._why())
        self.flush()
        return waiter

    def _acknowledged(self, event: Acknowledged) -> None:
        for waiter in event.waiters:
            if not waiter.called:  # its caller may have cancelled it
                waiter.callback(None)

    def _published(self, event: BodyPublished) -> None:
        now = self.factory.receivedAt()
        self.messageReceived(Message(PROTOCOL, KIND, now, self.peer, body=event.body))

    actions: ClassVar = {
        Fault: peerFaulted,
        Acknowledged: _acknowledged,
        BodyPublished: _published,
    }


class LinesClientFactory(SessionFactory, ClientFactory):
    """Builds a LinesClient for each connection."""

    protocolName = PROTOCOL
    LIMITS = LIMITS
    protocol = LinesClient  # type: ignore[assignment]


class LinesClientService(ReconnectingClient[LinesClient]):
    """A connection to a server, and comes back."""

    def send(self, body: bytes, *, timeout: float | None = None) -> Deferred[None]:
        """Send a body in the connection which stands, or in the next one."""
        return self.perform(
            lambda client, left: client.send(body), seconds=timeout, octets=len(body)
        )
