"""Hooks and verbs of both sides on Twisted."""

# Attributes of the bases are narrowed here, which pyright would not allow.
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any, ClassVar

from twisted.cred.error import LoginFailed
from twisted.cred.portal import Portal
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure

from twisted_msgproto.extend import (
    LOGIN_LIMITS,
    Authentication,
    ClientLink,
    ClientSession,
    Connecting,
    ConnectionClosed,
    CounterPaths,
    Fault,
    IllegalTransition,
    LimitExceeded,
    LoginLink,
    Message,
    MessageBatch,
    MsgprotoServerFactory,
    PeerError,
    ReconnectingClient,
    Refused,
    Session,
    SessionFactory,
    SteadyLogger,
    StreamWire,
    connecting,
    hook,
)

from .machine import Client, Server
from .terms import (
    LIMITS,
    Acknowledged,
    BodiesReceived,
    BodiesStored,
    BodyPublished,
    Counters,
    LetIn,
    LoginAsked,
    State,
    SubscriptionAsked,
)

PROTOCOL = "lines"
KIND = "line"


class LinesServerLink(LoginLink):
    """The server's side of one connection: what its machine says is done here."""

    log = SteadyLogger(namespace="msgproto_lines")
    factory: LinesServerFactory
    machine: Server
    wire: StreamWire
    counted = CounterPaths.of(Counters)

    def makeMachine(self) -> Server:
        """Return a machine with the factory's limits."""
        return Server(self.factory.limits, self.factory.authentication is not None)

    def transportSecured(self) -> None:
        """The connection can be used; a log-in comes first where there are users."""
        if self.factory.authentication is None:
            self.establish()

    def _login(self, event: LoginAsked) -> None:
        self.decide(event).addCallbacks(self._letIn, self._keptOut)

    def _letIn(self, name: str | None) -> None:
        if self.machine.state is State.LOGIN:
            self.clientId = name
            self.machine.let_in()
            self.establish()
            self.flush()

    def _keptOut(self, failure: Failure) -> None:
        if not failure.check(LoginFailed, CancelledError, Refused):  # the hook is wrong
            self.log.failure("{peer}: the log-in failed", failure, peer=self.peer)
        if self.machine.state is State.LOGIN:
            self.machine.keep_out()
            self.flush()

    def sessionEnding(self, reason: Failure) -> None:
        """The connection is gone."""
        self.endLogin()
        self.factory.subscribers.pop(self, None)
        super().sessionEnding(reason)

    def _received(self, event: BodiesReceived) -> None:
        count, nbytes = len(event.bodies), sum(map(len, event.bodies))
        origin = (self.receivedAt(), self.peer, self.session, self.clientId)
        batch = MessageBatch(PROTOCOL, KIND, *origin, count, nbytes)
        batch.message_id, batch.body = range(event.first, event.first + count), event.bodies
        self.deliver(batch, event.position)

    def _stored(self, event: BodiesStored) -> None:
        for subscriber in list(self.factory.subscribers):
            if subscriber.wire.output.nbytes > self.factory.limits["unread-bytes"]:
                subscriber.unread()
            else:
                subscriber.machine.publish(event.bodies)
                subscriber.flush()

    def _subscribed(self, event: SubscriptionAsked) -> None:
        self.factory.subscribers[self] = None

    actions: ClassVar = {
        Fault: LoginLink.peerFaulted,
        LoginAsked: _login,
        BodiesReceived: _received,
        BodiesStored: _stored,
        SubscriptionAsked: _subscribed,
    }


class LinesServer(Session, link=LinesServerLink):
    """The server's side of one connection, for applications: override the hooks of Session."""

    factory: LinesServerFactory
    link: LinesServerLink
    avatar: Any

    @hook
    def authorise(self, asked: LoginAsked) -> Any:
        """Return who the client is, or a Deferred for that; any failure keeps it out."""
        authentication = self.factory.authentication
        credentials = authentication.credentials(asked.name, asked.password)
        return self.link.login(credentials, asked.name)


class LinesServerFactory(MsgprotoServerFactory):
    """Builds a LinesServer for each client; ``subscribers`` are those which get what is put."""

    protocolName = PROTOCOL
    LIMITS = (*LIMITS, *LOGIN_LIMITS)
    protocol = LinesServer  # type: ignore[assignment]

    def __init__(self, *arguments: Any, portal: Portal | None = None, **options: Any) -> None:
        """``portal`` has the users, if there are any; the rest as the base has it."""
        super().__init__(*arguments, **options)
        self.authentication: Any = None
        if portal is not None:
            self.authentication = Authentication(portal, self, self.limits["login-seconds"])
        self.subscribers: dict[LinesServerLink, None] = {}


class LinesClientLink(ClientLink):
    """The client's side of one connection."""

    log = SteadyLogger(namespace="msgproto_lines")
    factory: LinesClientFactory
    machine: Client
    readsWhileUnread = readsWhileDraining = True
    timeFaults = frozenset({"ack-seconds"})
    answerEvents = frozenset({Acknowledged})

    def makeMachine(self) -> Client:
        """Return a machine with the factory's limits."""
        return Client(self.factory.limits, self.factory.user, self.factory.password)

    def transportSecured(self) -> None:
        """The connection can be used; a log-in comes first if there is a user."""
        if self.factory.user is None:
            self.establish()

    def _letIn(self, event: LetIn) -> None:
        self.establish()

    def peerError(self, fault: Fault) -> PeerError:
        """Return what callers are told of a fault: the server may have said that we did wrong."""
        return Refused(fault.text) if fault.reason == "refused" else super().peerError(fault)

    def workLost(self, work: list[Any], reason: Failure) -> None:
        """The connection is gone; some callers wait in vain."""
        for waiter in work:
            if not waiter.called:
                waiter.errback(self.closeReason)

    def ask(self, word: bytes, body: bytes) -> Deferred[None]:
        """Send a request; fires with its answer."""
        waiter: Deferred[None] = Deferred()
        try:
            self.machine.ask(word, body, waiter, self.factory.clock.seconds())
        except LimitExceeded as error:
            return fail(error)
        except IllegalTransition:
            return fail(self.closeReason or ConnectionClosed("the connection is closed"))
        self.flush()
        return waiter

    def _acknowledged(self, event: Acknowledged) -> None:
        for waiter in event.waiters:
            if not waiter.called:  # its caller may have cancelled it
                waiter.callback(None)

    def _published(self, event: BodyPublished) -> None:
        now = self.receivedAt()
        message = Message(PROTOCOL, KIND, now, self.peer, body=event.body)
        self.protocol.messageReceived(message)

    actions: ClassVar = {
        Fault: ClientLink.peerFaulted,
        LetIn: _letIn,
        Acknowledged: _acknowledged,
        BodyPublished: _published,
    }


class LinesClient(ClientSession, link=LinesClientLink):
    """The client's side of one connection, for applications."""

    link: LinesClientLink

    def send(self, body: bytes) -> Deferred[None]:
        """Send a body; fires when the server has it safe.

        Fails with LimitExceeded when nothing was sent, and with what ended the connection.
        """
        return self.link.ask(b"put", body)

    def subscribe(self) -> Deferred[None]:
        """Ask for what is put from now on; fires when it will come to messageReceived."""
        return self.link.ask(b"subscribe", b"")

    @hook
    def messageReceived(self, message: Message) -> None:
        """Somebody has put this; override it."""


class LinesClientFactory(SessionFactory, ClientFactory):
    """Builds a LinesClient for each connection."""

    protocolName = PROTOCOL
    LIMITS = LIMITS
    protocol = LinesClient

    def __init__(self, user: str | None = None, password: str = "", **options: Any) -> None:
        """``user`` logs in; the rest as the base has it."""
        super().__init__(**options)
        self.user, self.password = user, password


def connect(
    reactor: Any,
    to: Any,
    client: type[LinesClient] = LinesClient,
    timeout: float = 30.0,
    user: str | None = None,
    password: str = "",
) -> Connecting[LinesClient]:
    """Return what connects to an endpoint, or its string, when it is awaited or entered."""
    factory = LinesClientFactory(user, password, clock=reactor)
    factory.protocol = client
    return connecting(to, factory, timeout, reactor)


class LinesClientService(ReconnectingClient[LinesClient]):
    """A connection to a server, and comes back."""

    def send(self, body: bytes, *, timeout: float | None = None) -> Deferred[None]:
        """Send a body in the connection which stands, or in the next one."""
        return self.perform(
            lambda client, left: client.send(body), seconds=timeout, nbytes=len(body)
        )
