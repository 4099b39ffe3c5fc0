"""MTL on Twisted.  Read: here and server (one side), flows and client (the other).

Here are the wires of both sides, and a server's link: one machine over both ROUTER sockets, and a
session for each client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from twisted.cred.error import LoginFailed
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure
from zope.interface import implementer

from ...core.errors import ConnectionClosed
from ...core.message import MessageBatch
from ...net.authentication import LoggedIn, sasl
from ...net.deferreds import guarded
from ...net.factory import MsgprotoServerFactory
from ...net.logs import SteadyLogger, Topic
from ...net.session import SessionLink, log_not_stored
from ...net.wires import Wire
from ..machine import Arrival, Channel, Server
from ..machine.flows import (
    AuthenticationRequested,
    ContentReceived,
    LeaseRefused,
    LimitMet,
    Peer,
    ServerEvent,
    Session,
    SessionEnded,
    SessionEstablished,
    SessionOpened,
)

PROTOCOL: Final = "mtl"

PROFILES: Final = Topic("more like it")
"""Profiles that raise: they may do so for each content."""

log: SteadyLogger = SteadyLogger(namespace="twisted_msgproto.mtl")


# ── Wires ───────────────────────────────────────────────────────────────────────────────────────


@implementer(IAddress)
class Endpoint:
    """A ZeroMQ address, as the one at the other end of a wire; empty for a broker's clients."""

    def __init__(self, address: str = "") -> None:
        self.address = address


class SocketPair(Wire):
    """The wire of a broker's one or two sockets; reading is paused where data comes."""

    stopped: Deferred[Any]  # others can listen where it did

    def __init__(self, sockets: Any, control: Any, data: Any, closed: Callable[[], Any]) -> None:
        self._sockets = sockets
        self._control = control
        self._data = data
        self._closed = closed

    def write(self, outputs: tuple[list[list[bytes]], list[list[bytes]]]) -> None:
        control, data = outputs
        if control:
            self._control.sendAll(control)
        if data:
            self._data.sendAll(data)

    def close(self, fault: bool) -> None:
        self._closed()

    def abort(self) -> None:
        self._closed()

    def pauseProducing(self) -> None:
        self._data.pauseProducing()

    def resumeProducing(self) -> None:
        self._data.resumeProducing()

    def pauseRequests(self) -> None:
        self._control.pauseProducing()

    def getPeer(self) -> IAddress:
        return Endpoint()

    def established(self) -> None:
        """Each client has a session of its own."""

    def stop(self) -> None:
        self.stopped = maybeDeferred(self._sockets.shutdown)


UNREAD_LOOK_SECONDS: Final = 0.02
"""A wire that is to be closed checks this often whether its socket has sent everything."""


class NoSocket:
    """What stands in a socket's place while there is none: what is written is lost."""

    unread = unreadBytes = 0
    refused: Any = None
    ended: Any = None

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble  # why there is none

    def sendAll(self, messages: list[list[bytes]]) -> None:
        """Nobody gets them."""

    def takenAt(self, now: float) -> float:
        return 0.0

    def ignored(self) -> None:
        """There is nothing to read, nor to close."""

    pauseProducing = resumeProducing = shutdown = ignored


class DealerWire(Wire):
    """One DEALER socket at a time, or none."""

    def __init__(self, clock: Any, address: str, closed: Callable[[], None]) -> None:
        self._clock = clock
        self._address = Endpoint(address)
        self._closed = closed  # called once, when the wire has ended
        self.paused: bool = False
        self._look: Any = None  # the call that closes the wire once everything was sent
        self.socket: Any = NoSocket()

    # ── sockets in turn ─────────────────────────────────────────────────────────────────────────

    def use(self, socket: Any) -> None:
        self.socket = socket
        if self.paused:
            socket.pauseProducing()

    def drop(self) -> int:
        """Close the socket, if there is one; return how many messages it had not sent."""
        socket, self.socket = self.socket, NoSocket()
        unread: int = socket.unread
        socket.shutdown()
        return unread

    @property
    def trouble(self) -> str:
        """Why it may be that nobody answers on this socket; empty before anything is known."""
        return str(self.socket.trouble)

    @property
    def output(self) -> Any:
        return self.socket

    # ── as every wire ───────────────────────────────────────────────────────────────────────────

    def write(self, outputs: list[list[bytes]]) -> None:
        self.socket.sendAll(outputs)

    def close(self, fault: bool) -> None:
        if self.socket.unread:
            self._look = self._clock.callLater(UNREAD_LOOK_SECONDS, self._lookUnread)
        else:
            self._closed()

    def _lookUnread(self) -> None:
        self._look = None
        self.close(fault=False)

    def abort(self) -> None:
        self._closed()

    def pauseProducing(self) -> None:
        self.paused = True
        self.socket.pauseProducing()

    def resumeProducing(self) -> None:
        self.paused = False
        self.socket.resumeProducing()

    def getPeer(self) -> IAddress:
        return self._address

    getHost = getPeer

    def established(self) -> None:
        """The session stands; nothing changes here."""

    def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self.drop()


# ── The server's link ─────────────────────────────────────────────────────────────────────────────


def _alone(action: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Follow one client's event so that what the application raises harms no other client's."""

    def followed(link: BrokerLink, event: Any) -> None:
        try:
            action(link, event)
        except BaseException:
            if isinstance(event, ContentReceived):
                link._notSafe(event.position, Failure())
            else:
                log.failure("a client's event was not followed")

    return followed


class BrokerLink(SessionLink):
    """Follows the broker's machine; a lost batch ends its flow alone: the link is everybody's."""

    log: ClassVar[Logger] = log
    factory: MsgprotoServerFactory
    machine: Server
    wire: SocketPair
    answerEvents: ClassVar[frozenset[type]] = frozenset({SessionEnded})
    turns: ClassVar[tuple[str, ...]] = (*SessionLink.turns, "_refill")

    def tellConnected(self) -> None:
        """Each client has a session of its own, which hears of its beginning."""

    def __init__(
        self, factory: MsgprotoServerFactory, machine: Server, authenticator: sasl.Authenticator
    ) -> None:
        self.protocol, self.factory = self, factory
        self._broker = machine
        self._authenticator = authenticator

    def makeMachine(self) -> Server:
        return self._broker

    # ── from the sockets ────────────────────────────────────────────────────────────────────────

    def arrived(
        self, channel: Channel, messages: list[list[bytes]], peers: Mapping[bytes, Peer]
    ) -> None:
        self.received(Arrival(channel, messages, peers))

    def blocked(self, peer: bytes, full: bool) -> None:
        if full:
            self.machine.blocked(peer)
        else:
            self.machine.unblocked(peer, self._now())
            self._settle()

    def peerLost(self, peer: bytes) -> None:
        """A peer left too much unread.  This may be in the midst of sending."""
        self.factory.counters["peers_lost"] += 1
        self.factory.clock.callLater(0, self._givePeerUp, peer)

    def _givePeerUp(self, peer: bytes) -> None:
        self._follow(self.machine.peer_lost(peer, self._now()))

    def peersLeft(self, peers: list[bytes]) -> None:
        self._follow(self.machine.left(peers, self._now()))

    # ── the machine's events ────────────────────────────────────────────────────────────────────

    def _sessionOpened(self, event: SessionOpened) -> None:
        session, factory = event.session, self.factory
        kind: Any = factory.protocol
        server = session.application = kind()
        server.factory, server.machineSession, server.session = factory, session, session.name
        server.peer = session.address or None
        factory.connectionOpened(server, session.address)
        guarded(log, session.name, server.connectionMade)

    def _limitMet(self, event: LimitMet) -> None:
        self.factory.limitMet(event.limit, event.what)

    def _leaseRefused(self, event: LeaseRefused) -> None:
        self.factory.countFault("lease")
        text = "{address}: a data flow is refused: {text}"
        self.factory.writeOf(
            log, event.address, text, reason="lease", address=event.address, text=event.reason
        )

    def _sessionEstablished(self, event: SessionEstablished) -> None:
        if self.factory.sessionLog is not None:
            self.factory.sessionLog.began(event.session.application)
        session = event.session
        guarded(log, session.name, session.application.sessionEstablished)

    def _sessionEnded(self, event: SessionEnded) -> None:
        server = event.session.application
        self._authenticator.forget(event.session)
        text = f"the session ended: {event.reason}"
        if self.factory.sessionLog is not None:
            self.factory.sessionLog.ended(server, ConnectionClosed(text))
        self.factory.connectionClosed(server)
        server.loggedIn(None)
        guarded(log, event.session.name, server.sessionLost, Failure(ConnectionClosed(text)))

    def _contentReceived(self, event: ContentReceived) -> None:
        flow = event.flow
        session = flow.session
        server = session.application
        server.messageCount += len(event.sequences)
        shared = {
            "mtl-virtual-host": session.virtual_host,
            "mtl-profile": flow.grant.profile.name,
        }
        batch = MessageBatch(
            PROTOCOL,
            "content",
            int(self.factory.wallClock() * 1_000_000),
            flow.address or None,
            session.name,
            server.clientId,
            len(event.sequences),
            event.nbytes,
            message_id=event.sequences,
            destination=event.resources,
            fields=[shared if texts is None else {**texts, **shared} for texts in event.texts],
            body=event.bodies,
            envelope=event.envelopes,
        )
        self._deliverTo(server.batchReceived, batch, event.position)

    # ── authentication ──────────────────────────────────────────────────────────────────────────

    def _authenticationRequested(self, event: AuthenticationRequested) -> None:
        session = event.session
        asked = self._authenticator.respond(session, event.mechanism, event.response, event.first)
        asked.addCallbacks(
            self._stepped, self._refused, callbackArgs=(session,), errbackArgs=(session,)
        )

    def _stepped(self, step: bytes | LoggedIn, session: Session) -> None:
        now = self._now()
        if isinstance(step, bytes):
            self.machine.challenge(session, step, now)
            self._settle()
            return
        self._authenticator.forget(session)
        events = self.machine.authorize(session, step.name, now)
        if session.user != step.name or session.ended:
            step.logout()  # it was too late
        else:
            session.application.loggedIn(step)
        self._follow(events)

    def _refused(self, failure: Failure, session: Session) -> None:
        if failure.check(LoginFailed, sasl.SaslRefused, CancelledError) is None:
            log.failure("{session}: a checker failed", failure, session=session.name)
        if session.ended:
            return
        self._authenticator.forget(session)
        self.machine.refuse(session, self._now())
        self._settle()

    actions: ClassVar[dict[type, Any]] = {
        ContentReceived: _alone(_contentReceived),
        AuthenticationRequested: _alone(_authenticationRequested),
        SessionOpened: _alone(_sessionOpened),
        LimitMet: _limitMet,
        LeaseRefused: _leaseRefused,
        SessionEstablished: _alone(_sessionEstablished),
        SessionEnded: _alone(_sessionEnded),
    }

    # ── what is not stored, what is not sent yet ────────────────────────────────────────────────

    def _followAlone(self, events: Iterable[Any]) -> None:
        """As ``_follow``, but a failure is logged and ends nothing: the sockets are everybody's."""
        try:
            self._follow(events)
        except BaseException:
            self.log.failure("a client's event was not followed")
            self._settle()

    def _notSafe(self, position: Any, failure: Failure) -> None:
        """Note that contents never will be safe: their flow breaks, in its turn."""
        flow = position[0]
        session, again = flow.session, flow.lost_at is not None
        log_not_stored(log, session.name, failure, again, session.application)
        self.factory.counters["unsafe_batches"] += 1
        self._follow(self.machine.not_safe(position, self._now()))

    def settle(self, events: Iterable[ServerEvent]) -> None:
        self._follow(list(events))

    def _settle(self) -> None:
        machine = self.machine
        self._tellProfileErrors()
        super()._settle()
        if machine.more_to_send and self._resumption is None and not self._ended:
            # In the next turn, when the sockets have taken what was.
            self._resumption = self.factory.clock.callLater(0, self._refill)

    def _tellProfileErrors(self) -> None:
        for error in self.machine.take_profile_errors():
            name = type(error).__qualname__
            self.factory.writeOf(
                log,
                name,
                "a profile failed with {name}: what it could not take is rejected or withheld",
                reason="profile",
                topic=PROFILES,
                level=LogLevel.critical,
                name=name,
                log_failure=Failure(error),
            )

    def _refill(self) -> None:
        self._resumption = None
        self.machine.refill(self._now())
        self._settle()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        self.wire.pauseRequests()
        super().drain()

    def cut(self) -> None:
        if not self._ended:
            self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        for event in self.machine.lost(self._now()):
            self.actions[type(event)](self, event)
        self._tellProfileErrors()
        super().connectionLost(reason)
