"""MTL's server on Twisted: moves frames, owns sockets, timers and back-pressure, decides nothing.

There is no transport for each client here: one ROUTER socket takes the requests of all clients and
another one their data.  What a Twisted developer subclasses is the session::

    class MyServer(MtlServer):
        def messageReceived(self, message):      # None, or a Deferred which delays the Confirm
            print(message.destination, message.body)

    factory = MtlServerFactory(sink)
    factory.protocol = MyServer
    factory.listen(["tcp://127.0.0.1:5049"], "tcp://127.0.0.1:5050")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from twisted.cred.error import LoginFailed
from twisted.cred.portal import Portal
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConfigurationError, ConnectionClosed
from ...core.message import MessageBatch
from ...net import sasl
from ...net.authentication import LOGIN_LIMITS, Authentication, LoggedIn
from ...net.backpressure import ReadControl
from ...net.factory import MsgprotoServerFactory
from ...net.ingest import Delivery, IngestHooks, tell_not_stored
from ...net.timer import MachineTimer
from ..application import IngestProfile, QueueProfile, TestProfile
from ..machine import Arrival, Channel, Profile, Server, Session
from ..machine.peers import Peer
from ..terms.events import (
    AuthenticationRequested,
    ContentReceived,
    ServerEvent,
    SessionEnded,
    SessionEstablished,
    SessionOpened,
)
from ..terms.limits import SERVER_LIMITS
from ..zeromq import (
    Bounds,
    CurveServer,
    Sockets,
    check_address,
    data_beside,
    is_local,
    messages_within,
    port_of,
    with_port,
)
from ..zeromq.door import Door
from ..zeromq.hooks import guarded

PROTOCOL: Final = "mtl"

CONTROL_OCTETS_OVER_JSON: Final = 1024
"""What a control frame may have above the JSON limit, so that too large a body gets its 400."""

CONTROL_MESSAGES: Final = 16
"""What libzmq holds of one client's requests, of which one is out at a time, and of its replies."""

log = Logger(namespace="twisted_msgproto.mtl")


class MtlServer(IngestHooks):
    """One client's session: the hooks to override.

    Attributes:
        factory: the server.
        session: the session's public name.
        machineSession: what the machine knows of it.
        peer: the network address which the session was opened from, without its port; None where
            ZeroMQ does not tell it.  A batch has that of the data connection it came through.
    """

    log: ClassVar[Logger] = log
    factory: MtlServerFactory
    machineSession: Session
    session: str
    peer: str | None = None

    @property
    def clientId(self) -> str | None:
        """The authenticated user; else the name of the client's key, where CURVE is on; or None."""
        session = self.machineSession
        return session.user or self.factory.keyName(session.key)

    @property
    def virtualHost(self) -> str:
        """What the client opened."""
        return self.machineSession.virtual_host

    # ── hooks for subclasses; batchReceived and messageReceived come from IngestHooks ───────────

    def connectionMade(self) -> None:
        """A client has opened the session; it may have to authenticate still."""

    def sessionEstablished(self) -> None:
        """The client is authenticated, or need not be; called again when it was again."""

    def sessionLost(self, reason: Failure) -> None:
        """The session has ended; the reason's text says how."""

    # ── what the factory calls ──────────────────────────────────────────────────────────────────

    _login: LoggedIn | None = None

    def loggedIn(self, login: LoggedIn | None) -> None:
        """The client is who it says (None: no more); who it was before is logged out."""
        before, self._login = self._login, login
        if before is not None:
            guarded(before.logout)

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def withdrawAuthentication(self) -> None:
        """The client's credentials are good no more: its leases end, its next request gets 401."""
        factory = self.factory
        self.loggedIn(None)
        factory.settle(factory.machine.withdraw(self.machineSession, factory.clock.seconds()))


class MtlServerFactory(MsgprotoServerFactory):
    """The broker: its sockets, its machine, and an :class:`MtlServer` for each session.

    Attributes:
        machine: decides everything; its ``snapshot()`` tells where the broker stands.
        addresses: where it listens, control first, once it does.
        authentication: asks the portal; None without one.
    """

    protocolName = PROTOCOL
    LIMITS = (*SERVER_LIMITS, *LOGIN_LIMITS)
    protocol = MtlServer  # type: ignore[assignment]

    def __init__(
        self,
        *arguments: Any,
        profiles: Iterable[Profile] | None = None,
        portal: Portal | None = None,
        mechanisms: Iterable[sasl.SaslMechanism] | None = None,
        virtualHosts: Container[str] | None = None,
        curve: CurveServer | None = None,
        insecure: bool = False,
        forcePlain: bool = False,
        random: Callable[[int], bytes] = os.urandom,
        sockets: Callable[[Any], Any] = Sockets,
        **options: Any,
    ) -> None:
        """Make a broker; ``arguments`` and ``options`` are those of the base.

        ``profiles`` None: ``test``, ``queue`` and ``ingest``.  ``portal`` gives avatars for
        :class:`.IIdentity`; without one nobody has to authenticate.  ``mechanisms`` None: those
        which its checkers can serve.  ``virtualHosts`` None: any.  ``curve``: only clients with
        these keys.  ``insecure`` allows addresses off this machine without CURVE, ``forcePlain``
        PLAIN there.  ``random(n)`` gives n octets which nobody foresees, ``sockets(clock)`` makes
        the sockets.
        """
        super().__init__(*arguments, **options)
        if profiles is None:
            profiles = (TestProfile(), QueueProfile(self.limits), IngestProfile())
        self._profiles = tuple(profiles)
        self._portal = portal
        self._offered: tuple[sasl.SaslMechanism, ...] = ()
        if portal is not None:
            if mechanisms is None:
                mechanisms = sasl.mechanisms_for(portal, random(32))
            self._offered = tuple(mechanisms)
        self._virtual_hosts = virtualHosts
        self._curve = curve
        self._insecure = insecure
        self._force_plain = forcePlain
        self._random = random
        self.addresses: list[str] = []
        self._make_sockets = sockets
        self._sockets: Any = None
        self._control: Any = None
        self._data: Any = None
        self._door: Door | None = None
        self._hook: Callable[[MessageBatch], Deferred[Any] | None] = lambda batch: None
        self._refilling: Any = None
        self._stopped = False
        self._start(protected=True)

    def _start(self, protected: bool) -> None:
        limits, clock = self.limits, self.clock
        self.authentication: Authentication | None = None
        if self._portal is not None:
            self.authentication = Authentication(
                self._portal,
                clock,
                limits,
                counters=self.counters,
                handShake=limits["authentication"],
            )
        self._authenticator = sasl.Authenticator(
            self._offered,
            self.authentication,
            reveal=protected or self._force_plain,
            left=lambda session: session.opened_at + limits["authentication"] - clock.seconds(),
        )
        if self._portal is not None and not self._authenticator.names:
            raise ConfigurationError(
                "no mechanism is left for clients to authenticate with: PLAIN is for CURVE and"
                " addresses of this machine only, unless it is forced"
            )
        self.machine = Server(
            self._profiles,
            limits,
            random=self._random,
            session_names=self.sessionNames.next,
            mechanisms=self._authenticator.names,
            virtual_hosts=self._virtual_hosts,
            counters=self.counters.settled,
        )
        self._timer = MachineTimer(clock, self.machine, self._advanced)

    # ── sockets ─────────────────────────────────────────────────────────────────────────────────

    def listen(self, control: Sequence[str], data: str | None = None) -> list[str]:
        """Bind the sockets; where they listen, with the ports which were chosen, control first.

        Data listens at ``data``, and on its port at each other host of ``control``; ``data`` None:
        the control socket is for data too (``MT-12``).  Raises ConfigurationError: for what is no
        address, for one in use, and for one off this machine without CURVE (``MT-31``).
        """
        every = [*control, *([] if data is None else [data])]
        for address in every:
            check_address(address)
        local = all(map(is_local, every))
        if not local and self._curve is None and not self._insecure:
            raise ConfigurationError(
                "an address off this machine needs CURVE (--curve-key), or --insecure"
            )
        self._start(protected=local or self._curve is not None)
        self._sockets = sockets = self._make_sockets(self.clock)
        try:
            self._bind(sockets, control, data)
        except ConfigurationError:
            sockets.shutdown()
            self._sockets = None
            raise
        return self.addresses

    def _bind(self, sockets: Any, control: Sequence[str], data: str | None) -> None:
        limits = self.limits
        self._door = Door(
            limits.integer("connections"),
            limits.integer("connections-per-address"),
            self._turnedAway,
        )
        options: dict[str, Any] = {
            "lost": self._peerLost,
            "prepare": sockets.admit(self._door, self._curve),
            "leaving": self._leaving,
            "left": self._left,
        }
        content_octets = limits.integer("content-octets")
        bounds: dict[str, Any] = {
            "unread_seconds": limits["unread-seconds"],
            "handshake_seconds": limits["handshake"],
        }
        peer_octets, most = limits.integer("peer-octets"), limits.integer("peer-messages")
        json_octets = limits.integer("json-octets") + CONTROL_OCTETS_OVER_JSON
        if data is None:
            content_octets = max(content_octets, json_octets)
        data_bounds = Bounds(
            content_octets, messages_within(peer_octets, content_octets, most), **bounds
        )
        if data is None:
            self._control = self._data = sockets.router(
                partial(self._receive, Channel.SHARED),
                data_bounds,
                blocked=self._blocked,
                **options,
            )
            self.addresses = [self._control.bind(address) for address in control]
            self.machine.data_port = port_of(self.addresses[0])
        else:
            self._control = sockets.router(
                partial(self._receive, Channel.CONTROL),
                Bounds(json_octets, CONTROL_MESSAGES, unread_messages=100, **bounds),
                **options,
            )
            self._data = sockets.router(
                partial(self._receive, Channel.DATA),
                data_bounds,
                blocked=self._blocked,
                **options,
            )
            self.addresses = [self._control.bind(address) for address in control]
            first, *others = data_beside(control, data)
            bound = self._data.bind(first)
            self.machine.data_port = port = port_of(bound)
            self.addresses.append(bound)
            self.addresses += [self._data.bind(with_port(other, port)) for other in others]
        self._control_reading = ReadControl(self._data, self._readingChanged)
        self._delivery = Delivery(
            lambda batch: self._hook(batch),
            self._control_reading,
            self.budget,
            limits.integer("unsafe-octets"),
            lambda failure: None,
            self._lookStopped,
        )

    def keyName(self, key: bytes) -> str | None:
        """The name of a client's CURVE key; None without CURVE."""
        return None if self._curve is None else self._curve.authorized.get(key)

    # ── frames in ───────────────────────────────────────────────────────────────────────────────

    def _receive(
        self, channel: Channel, messages: list[list[bytes]], peers: Mapping[bytes, Peer]
    ) -> None:
        now = self.clock.seconds()
        self.settle(self.machine.receive(Arrival(channel, messages, peers), now))

    def settle(self, events: Iterable[ServerEvent]) -> None:
        """Do what the machine's events ask for, and send what it has to say."""
        for event in events:
            match event:
                case ContentReceived():
                    self._deliver(event)
                case AuthenticationRequested():
                    self._authenticate(event)
                case SessionOpened():
                    self._opened(event.session)
                case SessionEstablished():
                    guarded(event.session.application.sessionEstablished)
                case SessionEnded():
                    self._ended(event.session, event.reason)
        self._send()
        self._timer.look()

    def _opened(self, session: Session) -> None:
        server = session.application = self.protocol()
        server.factory, server.machineSession, server.session = self, session, session.name
        server.peer = session.address or None
        self.connectionOpened(server, session.address)
        guarded(server.connectionMade)

    def _ended(self, session: Session, reason: str) -> None:
        server = session.application
        self._authenticator.forget(session)
        self.connectionClosed(server)
        server.loggedIn(None)
        guarded(server.sessionLost, Failure(ConnectionClosed(f"the session ended: {reason}")))

    def _deliver(self, event: ContentReceived) -> None:
        flow, count = event.flow, len(event.sequences)
        session = flow.session
        server: MtlServer = session.application
        shared = {
            "mtl-virtual-host": session.virtual_host,
            "mtl-profile": flow.grant.profile.name,
        }
        batch = MessageBatch(
            PROTOCOL,
            "content",
            self.receivedAt(),
            flow.address or None,
            session.name,
            server.clientId,
            count,
            event.octets,
            message_id=event.sequences,
            destination=event.resources,
            fields=[shared if texts is None else {**texts, **shared} for texts in event.texts],
            body=event.bodies,
        )
        failures: list[Failure] = []

        def hook(batch: MessageBatch) -> Deferred[Any] | None:
            # A failure is an answer too: what it belongs to is rejected in its turn.
            try:
                result = server.batchReceived(batch)
            except Exception:
                failures.append(Failure())
                return None
            return None if result is None else result.addErrback(failures.append)

        def settled() -> None:
            now = self.clock.seconds()
            if not failures:
                events = self.machine.made_safe(event.place, now)
            else:
                tell_not_stored(log, session.name, failures[0], flow.lost_at is not None)
                self.counters["unsafe_batches"] += 1
                events = self.machine.not_safe(event.place, now)
            if events:
                self.settle(events)
            else:
                self._send()

        self._hook = hook
        self._delivery.deliver(batch, settled)

    # ── authentication ──────────────────────────────────────────────────────────────────────────

    def _authenticate(self, event: AuthenticationRequested) -> None:
        session = event.session
        looked = self._authenticator.respond(session, event.mechanism, event.response, event.first)
        looked.addCallbacks(
            self._stepped, self._refused, callbackArgs=(session,), errbackArgs=(session,)
        )

    def _stepped(self, step: sasl.Challenge | sasl.Authenticated, session: Session) -> None:
        now = self.clock.seconds()
        if isinstance(step, sasl.Challenge):
            self.machine.challenge(session, step.octets, now)
            self.settle(())
            return
        self._authenticator.forget(session)
        events = self.machine.authorize(session, step.login.name, now)
        if session.user != step.login.name or session.ended:
            step.login.logout()  # it was too late
        else:
            session.application.loggedIn(step.login)
        self.settle(events)

    def _refused(self, failure: Failure, session: Session) -> None:
        if failure.check(LoginFailed, sasl.SaslRefused, CancelledError) is None:
            log.failure("{session}: a checker failed", failure, session=session.name)
        if session.ended:
            return
        self._authenticator.forget(session)
        self.machine.refuse(session, self.clock.seconds())
        self.settle(())

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _send(self) -> None:
        machine = self.machine
        while machine.profile_errors:
            failure = Failure(machine.profile_errors.pop(0))
            log.failure("a profile failed, what it lost is rejected", failure)
        while True:
            control, data = machine.outputs()
            if self._control is None or not (control or data):
                break
            if control:
                self._control.sendAll(control)
            if data:
                self._data.sendAll(data)
        if machine.more_to_send and self._refilling is None:
            self._refilling = self.clock.callLater(0, self._refill)

    def _refill(self) -> None:
        self._refilling = None
        self.machine.refill(self.clock.seconds())
        self._send()

    def _blocked(self, peer: bytes, full: bool) -> None:
        if full:
            self.machine.blocked(peer)
        else:
            self.machine.unblocked(peer, self.clock.seconds())
            self._send()

    def _peerLost(self, peer: bytes) -> None:
        # Not at once: this may be in the midst of sending what the machine had to say.
        self.counters["peers_lost"] += 1
        self.clock.callLater(0, self._lose, peer)

    def _lose(self, peer: bytes) -> None:
        if not self._stopped:
            self.settle(self.machine.peer_lost(peer, self.clock.seconds()))

    def _leaving(self, peer: bytes) -> None:
        self.machine.leaving(peer)

    def _left(self, peers: list[bytes]) -> None:
        if not self._stopped:
            self.settle(self.machine.left(peers, self.clock.seconds()))

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def _advanced(self, events: list[ServerEvent]) -> None:
        """The machine's deadline has come."""
        if not self._stopped:
            self.settle(events)

    def _readingChanged(self, paused: bool) -> None:
        now = self.clock.seconds()
        if paused:
            self.machine.paused(now)
        else:
            self.machine.resumed(now)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> Deferred[None]:
        """Read no more, confirm what arrived once it is safe, then close the sockets."""
        if self._drained is None:
            self.draining = True
            self._drained = Deferred()
            if self._sockets is None:
                self._drained.callback(None)
            else:
                self._deadline = self.clock.callLater(self.limits["drain"], self._stop)
                self._control.pauseProducing()
                self._control_reading.pause("draining")
                self._lookStopped()
        return self._drained

    def _lookStopped(self) -> None:
        if self.draining and not self._stopped and not self._delivery.unsafe_batches:
            # One turn later: what the last batch brought is being confirmed right now.
            self.clock.callLater(0, self._stop)

    def _stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        if self._deadline.active():
            self._deadline.cancel()
        self._send()
        for event in self.machine.lost(self.clock.seconds()):
            if isinstance(event, SessionEnded):
                self._ended(event.session, event.reason)
        self._timer.stop()
        if self._refilling is not None:
            self._refilling.cancel()
            self._refilling = None
        assert self._sockets is not None and self._drained is not None
        self._sockets.shutdown()
        self._control = self._data = None
        self._drained.callback(None)

    def _lookDrained(self) -> None:
        """Sessions come and go; what is drained here are the sockets."""

    def snapshot(self) -> Mapping[str, object]:
        """The broker's figures as plain values, for status pages."""
        return {
            "connections": 0 if self._door is None else len(self._door.connections),
            **self.machine.snapshot(),
            "counters": dict(self.counters),
        }
