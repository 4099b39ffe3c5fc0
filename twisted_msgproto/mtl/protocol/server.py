"""MTL's server on Twisted: moves frames, owns sockets, timers and back-pressure, decides nothing.

There is no transport for each client here: one ROUTER socket takes the requests of all clients and
another one their data.  What a Twisted developer subclasses is the session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, ClassVar, Final, NoReturn, Unpack

from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.broker import WAIT
from ...core.errors import ConfigurationError
from ...core.limits import Limit, Limits
from ...core.machine import Table
from ...net.authentication import LOGIN_LIMITS, Authentication, LoggedIn, sasl
from ...net.authorising import CONSUME, PUBLISH, Authoriser, Permissions
from ...net.broker import ServedBroker, broker_of
from ...net.deferreds import guarded
from ...net.factory import MsgprotoServerFactory, ServerSettings, expect
from ...net.lifetimes import Serving, each_of, factory_of, running, sink_of, somewhere
from ...net.limit_types import MtlServerLimits
from ...net.logs import SteadyLogger, Topic
from ...net.session import SessionHooks, hook, only_hooks
from ...net.sink import MessageSink
from ..application import SPACES, IngestProfile, QueueProfile, TestProfile
from ..machine import Channel, Server
from ..machine.flows import Profile, ServerEvent, Session
from ..terms import SERVER_LIMITS, SESSION
from ..zeromq import (
    Bounds,
    CurveServer,
    check_address,
    data_beside,
    data_endpoint,
    is_local,
    messages_within,
    port_of,
    silent_seconds,
    with_port,
)
from ..zeromq.sockets import ConnectionAdmission, Sockets
from ..zeromq.unfinished import EveryUnfinished
from . import PROTOCOL, BrokerLink, SocketPair

BYTES_OVER_BODY: Final = 1024
"""What a control frame may have above its body's limit, so that too large a body gets its 400."""

CONTROL_MESSAGES: Final = 16
"""What libzmq holds of one client's requests, of which one is out at a time, and of its replies."""

REPLIES_UNREAD: Final = 100
CONTENTS_UNREAD: Final = 10_000
UNREAD_BYTES: Final = 16 << 20
"""What may wait for one peer outside libzmq, of each flow, before its connection is given up."""

KEYS: Final = Topic("more like it", 1)
"""Clients that libzmq turned away for their keys: they try for ever."""

log: SteadyLogger = SteadyLogger(namespace="twisted_msgproto.mtl")


class MtlServer(SessionHooks):
    """One client's session: the hooks to override.

    Attributes:
        factory: the server.
        session: the session's public name.
        machineSession: what the machine knows of it.
        peer: the network address that the session was opened from, without its port; None where
            ZeroMQ does not tell it.  A batch has that of the data connection it came through.
    """

    log: ClassVar[Logger] = log
    factory: MtlServerFactory
    machineSession: Session
    session: str
    peer: str | None = None
    messageCount = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        only_hooks(cls, MtlServer)

    @property
    def clientId(self) -> str | None:
        """Return the authenticated user; else the name of the client's key, where CURVE is on;
        or None.
        """
        session = self.machineSession
        return session.user or self.factory.keyName(session.key)

    @property
    def virtualHost(self) -> str:
        """Return what the client opened."""
        return self.machineSession.virtual_host

    @property
    def established(self) -> bool:
        return self.machineSession.established and not self.machineSession.ended

    def snapshot(self) -> Mapping[str, object]:
        """Return where the session stands, as plain values without secrets."""
        return {
            "session": self.session,
            "peer": self.peer,
            "client_id": self.clientId,
            "virtual_host": self.virtualHost,
        }

    # ── hooks for subclasses; batchReceived and messageReceived come from SessionHooks ───────────

    @hook
    def connectionMade(self) -> None:
        """A client has opened the session; it may have to authenticate still."""

    @hook
    def sessionEstablished(self) -> None:
        """The client is authenticated, or need not be; called again when it was again."""

    @hook
    def sessionLost(self, reason: Failure) -> None:
        """The session has ended; the reason's text says how."""

    # ── what the factory calls ──────────────────────────────────────────────────────────────────

    _login: LoggedIn | None = None

    def loggedIn(self, login: LoggedIn | None) -> None:
        """The client is who it says (None: no more); who it was before is logged out."""
        before, self._login = self._login, login
        if before is not None:
            guarded(log, self.session, before.logout)

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
        authenticator: the SASL cycles that are under way.
        queues: what has the queues; servers of several protocols may share it.
    """

    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = (*SERVER_LIMITS, *LOGIN_LIMITS)
    actions: ClassVar[frozenset[str]] = frozenset({CONSUME, PUBLISH})
    stateTable: ClassVar[Table[Any] | None] = SESSION
    protocol: type[MtlServer] = MtlServer  # type: ignore[assignment]

    def __init__(
        self,
        sink: MessageSink | None = None,
        *,
        limits: MtlServerLimits | Limits | None = None,
        profiles: Iterable[Profile] | None = None,
        portal: Portal | None = None,
        mechanisms: Iterable[sasl.SaslMechanism] | None = None,
        virtualHosts: Container[str] | None = None,
        curve: CurveServer | None = None,
        insecure: bool = False,
        forcePlain: bool = False,
        random: Callable[[int], bytes] = os.urandom,
        sockets: Callable[[Any], Any] = Sockets,
        queueFull: str = WAIT,
        space: str | None = None,
        queues: ServedBroker | None = None,
        **settings: Unpack[ServerSettings],
    ) -> None:
        """Make a broker; ``settings`` as :class:`MsgprotoServerFactory` has them.

        ``profiles`` None: ``test``, ``queue`` and ``ingest``.  ``portal`` gives avatars for
        :class:`.IIdentity`; without one nobody has to authenticate.  ``mechanisms`` None: those
        that its checkers can serve.  ``virtualHosts`` None: any.  ``curve``: only clients with
        these keys.  ``insecure`` allows addresses off this machine without CURVE, ``forcePlain``
        PLAIN there.  ``random(n)`` gives n bytes that nobody foresees, ``sockets(clock)`` makes
        the sockets.  ``queueFull`` says what happens to a full queue: its writers ``wait``, or its
        oldest contents go to the dead letters (``dead-letter``).  ``queues`` has the queues, and is
        shared with other servers; by default the server has its own.  They are in ``space``; None:
        each virtual host has a space of its own.
        """
        super().__init__(sink, limits=limits, **settings)
        known = virtualHosts is None or callable(getattr(virtualHosts, "__contains__", None))
        several = known and not isinstance(virtualHosts, str | bytes)
        expect("virtualHosts", virtualHosts, "a container of names", several)
        expect("curve", curve, "a CurveServer", isinstance(curve, CurveServer | None))
        expect("insecure", insecure, "True or False", isinstance(insecure, bool))
        expect("forcePlain", forcePlain, "True or False", isinstance(forcePlain, bool))
        if profiles is None:
            profiles = (TestProfile(), QueueProfile(), IngestProfile())
        self._profiles = tuple(profiles)
        for one in self._profiles:
            expect("profiles", one, "a Profile", isinstance(one, Profile))
        served = any(isinstance(one, QueueProfile) for one in self._profiles)
        self.queues: ServedBroker = queues or broker_of(
            self.sink,
            self.clock,
            self.limits,
            [SPACES if space is None else space] if served else [],
            wallClock=self.wallClock,
            when_full=queueFull,
        )
        self.queues.join()
        if served:
            self.queues.server = self
        self._waking: Any = None  # the call that sends what profiles have to send
        for profile in self._profiles:
            profile.wake = self._wake
            if isinstance(profile, QueueProfile):
                profile.serve(self.queues, space)
        self._portal = portal
        self._offered: tuple[sasl.SaslMechanism, ...] = ()
        if portal is not None:
            if mechanisms is None:
                mechanisms = sasl.mechanisms_for(portal, random(32))
            self._offered = tuple(mechanisms)
        self._virtualHosts = virtualHosts
        self._curve = curve
        self._authorized: Mapping[bytes, str] = {} if curve is None else curve.authorized
        self._keyNames = self._authorized  # those of connections that stand, too
        self._insecure = insecure
        self._forcePlain = forcePlain
        self._random = random
        self.addresses: list[str] = []
        self._makeSockets = sockets
        self._admission: ConnectionAdmission | None = None
        self._link: BrokerLink | None = None
        self._start(protected=True)

    def _start(self, protected: bool) -> None:
        limits, clock = self.limits, self.clock
        self.authentication: Authentication | None = None
        if self._portal is not None:
            self.authentication = Authentication(self._portal, self, limits["authentication"])
        self.authenticator = sasl.Authenticator(
            self._offered,
            self.authentication,
            reveal=protected or self._forcePlain,
            left=lambda session: session.opened_at + limits["authentication"] - clock.seconds(),
        )
        if self._portal is not None and not self.authenticator.names:
            raise ConfigurationError(
                "no mechanism is left for clients to authenticate with: PLAIN is for CURVE and"
                " addresses of this machine only, unless it is forced"
            )
        self.machine = Server(
            self._profiles,
            limits,
            random=self._random,
            session_names=self.sessionNames.__next__,
            mechanisms=self.authenticator.names,
            virtual_hosts=self._virtualHosts,
            counters=self.counters.settled,
            may=self._may,
            every=self.shared.session_memory,
        )

    def _may(self, session: Session, reads: bool, resource: str) -> bool:
        if self.authoriser is None:
            return True
        user = session.user or self.keyName(session.key)
        permissions: Permissions | None = session.permissions
        if permissions is None or permissions.user != user:
            permissions = session.permissions = Permissions(
                self, user, session.address, session.address or session.name, session.virtual_host
            )
        return not permissions.refuses(CONSUME if reads else PUBLISH, resource)

    # ── sockets ─────────────────────────────────────────────────────────────────────────────────

    def doStart(self) -> NoReturn:
        """Raise ConfigurationError: an endpoint of Twisted's has no ZeroMQ."""
        raise ConfigurationError(
            "MTL is on ZeroMQ, which endpoints of Twisted's do not speak: use"
            " mtl.serve('tcp://HOST:PORT', …), or this factory's listen(['tcp://HOST:PORT'])"
        )

    def buildProtocol(self, addr: IAddress | None) -> NoReturn:
        """Raise ConfigurationError, as :meth:`doStart`."""
        self.doStart()

    def listen(self, control: Sequence[str], data: str | None = None) -> list[str]:
        """Bind the sockets; where they listen, with the ports that were chosen, control first.

        Data listens at ``data``, and on its port at each other host of ``control``; ``data`` None:
        the control socket is for data too (``MT-12``).  Raises ConfigurationError: for what is no
        address, for one in use, for one off this machine without CURVE (``MT-31``), while the
        server listens already, and once it was drained.
        """
        self.startFactory()
        if self._link is not None:
            raise ConfigurationError("the server listens already: all its addresses are one call's")
        self.queues.open()
        local = self.checkAddresses(control, data)
        self._start(protected=local or self._curve is not None)
        sockets = self._makeSockets(self.clock)
        self._link = link = BrokerLink(self, self.machine, self.authenticator)
        try:
            pair = self._bind(sockets, link, control, data)
        except ConfigurationError:
            sockets.giveUp()
            self._link = None
            raise
        gone = partial(self.clock.callLater, 0, self._gone, link)
        link.connect(SocketPair(sockets, *pair, gone))
        return self.addresses

    def checkAddresses(self, control: Sequence[str], data: str | None) -> bool:
        """Return whether all these are on this machine; ConfigurationError as :meth:`listen`."""
        every = [*control, *([] if data is None else [data])]
        for address in every:
            check_address(address)
        local = all(map(is_local, every))
        if not local and self._curve is None and not self._insecure:
            raise ConfigurationError(
                "an address off this machine needs CURVE (--curve-key; in a program: curve), or"
                " --insecure (insecure=True)"
            )
        return local

    def _bind(
        self, sockets: Any, link: BrokerLink, control: Sequence[str], data: str | None
    ) -> tuple[Any, Any]:
        limits = self.limits
        self._admission = ConnectionAdmission(
            limits.integer("connections"),
            limits.integer("connections-per-address"),
            self.limitMet,
            self._refused,
            self._evictionFor,
        )
        endless = partial(self._tellCutOff, "endless-message", "of a message that has not ended")
        weighty = "of memory for a message that has not ended"
        bounds: dict[str, Any] = {
            "unread_bytes": UNREAD_BYTES,
            "unread_seconds": limits["unread-seconds"],
            "handshake_seconds": limits["handshake"],
        }
        router = partial(
            sockets.router,
            lost=link.peerLost,
            prepare=sockets.admit(self._admission, self._curve, lambda: self._authorized),
            leaving=self.machine.leaving,
            left=link.peersLeft,
            every=EveryUnfinished.of(self.shared, self.clock),
            trusted=self.machine.has_flow,
            evicted=partial(self._tellCutOff, "endless-message", weighty, "process-held-bytes"),
            shared=self.shared,
            unread=self._unread,
            curve=self._curve is not None,
        )
        content_bytes = limits.integer("content-bytes")
        control_bytes = limits.integer("control-bytes") + BYTES_OVER_BODY
        if data is None:
            content_bytes = max(content_bytes, control_bytes)
        else:
            requests = router(
                partial(link.arrived, Channel.CONTROL),
                Bounds(control_bytes, CONTROL_MESSAGES, REPLIES_UNREAD, **bounds),
                endless=partial(endless, "control-bytes"),
            )
        messages = messages_within(limits.integer("peer-bytes"), content_bytes)
        contents = router(
            partial(link.arrived, Channel.SHARED if data is None else Channel.DATA),
            Bounds(content_bytes, messages, CONTENTS_UNREAD, **bounds),
            blocked=link.blocked,
            endless=partial(endless, "content-bytes"),
        )
        if data is None:
            requests = contents
        self.addresses = [requests.bind(address) for address in control]
        port = port_of(self.addresses[0])
        if data is not None:
            first, *others = data_beside(control, data)
            self.addresses.append(contents.bind(first))
            port = port_of(self.addresses[-1])
            self.addresses += [contents.bind(with_port(other, port)) for other in others]
        self.machine.data_port = port
        self.machine.moved_at = contents.peerMovedAt
        if self.turnWatch is not None:
            for socket in {requests, contents}:
                self.turnWatch.measure(socket, "doRead", peer="all clients")
        return requests, contents

    def _evictionFor(self, address: str, connections: Mapping[int, str]) -> int | None:
        """Choose a silent connection to close: data's have heartbeats, control's come back."""
        now = self.clock.seconds()

        def heard(descriptor: int) -> float | None:
            silent = silent_seconds(descriptor)
            return None if silent is None else now - silent

        found = self._eviction.search(address, connections, heard, now)
        if found is not None:
            self.displaced(connections[found])
        return found

    def _refused(self, address: str, text: str) -> None:
        """Libzmq turns a client away for its keys: it tries for ever."""
        self.countFault("hand-shake")
        told = f"{address or 'a client'}: not let in: {text}"
        self.writeOf(log, told, "{text}", text=told, reason="hand-shake", topic=KEYS)

    def _unread(self, address: str, nbytes: int) -> None:
        self.counters["peers_lost"] += 1
        self._tellCutOff("unread", "that it has not read", "process-held-bytes", address, nbytes)

    def _tellCutOff(self, reason: str, what: str, limit: str, address: str, nbytes: int) -> None:
        self.countFault(reason, limit)
        self.writeOf(
            log,
            address,
            "{address}: cut off: {nbytes} bytes {what} ({limit} is {most})",
            reason=reason,
            address=address,
            nbytes=nbytes,
            what=what,
            limit=limit,
            most=self.limits.integer(limit),
        )

    def keyName(self, key: bytes) -> str | None:
        """Return the name of a client's CURVE key; None without CURVE."""
        return self._keyNames.get(key)

    def changeAuthorized(self, authorized: Mapping[bytes, str]) -> None:
        """From now on these CURVE keys may connect; connections that stand keep their names."""
        self._keyNames = {**self._keyNames, **authorized}
        self._authorized = authorized

    def settle(self, events: Iterable[ServerEvent]) -> None:
        """Do what the machine's events ask for, and send what it has to say."""
        if self._link is not None:
            self._link.settle(events)

    def _wake(self) -> None:
        if self._waking is None and self._link is not None:
            self._waking = self.clock.callLater(0, self._woken)

    def _woken(self) -> None:
        self._waking = None
        self.settle(())

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> Deferred[None]:
        """Read no more, confirm what arrived once it is safe, then close the sockets."""
        if not self.draining:
            self.draining = True
            if self._link is None:
                self._drainEnds()
            else:
                self._deadline = self.clock.callLater(self.limits["drain"], self._link.cut)
                self._link.drain()
        return self._whenDrained()

    def _drainEnds(self) -> None:
        self.queues.left()
        super()._drainEnds()

    def abort(self) -> None:
        self.drain()
        if self._link is not None:
            self._link.cut()

    def _gone(self, link: BrokerLink) -> None:
        self._link = None
        if self._deadline.active():
            self._deadline.cancel()
        link.connectionLost()
        link.wire.stopped.addBoth(lambda _: self._drainEnds())

    def connectionOpened(self, protocol: Any, host: str) -> None:
        """A session was opened; the link is no client's."""
        if protocol is not self._link:
            super().connectionOpened(protocol, host)

    def connectionClosed(self, protocol: Any, reason: Failure = connectionDone) -> None:
        if protocol in self.liveConnections:
            super().connectionClosed(protocol, reason)

    def _lookDrained(self) -> None:
        """Sessions come and go; what is drained here are the sockets."""

    def snapshot(self) -> Mapping[str, object]:
        """Return the broker's figures as plain values, for status pages."""
        return {
            "connections": 0 if self._admission is None else len(self._admission.connections),
            **self.machine.snapshot(),
            "counters": dict(self.counters),
        }


class Listening:
    def __init__(self, factory: MtlServerFactory, control: Sequence[str], data: str | None) -> None:
        self._factory = factory
        self._control = control
        self._data = data

    async def listen(self) -> Sequence[str]:
        addresses = self._factory.listen(self._control, self._data)
        return addresses[: len(self._control)]

    async def stop(self) -> None:
        await self._factory.drain()

    def abort(self) -> None:
        self._factory.abort()


def serve(
    at: str | Sequence[str],
    *,
    sink: MessageSink | None = None,
    queue: str | PathLike[str] | None = None,
    server: type[MtlServer] = MtlServer,
    factory: MtlServerFactory | None = None,
    limits: MtlServerLimits | Limits | None = None,
    authoriser: Authoriser | None = None,
    reactor: Any = None,
    data: str | None = None,
    portal: Portal | None = None,
    curve: CurveServer | None = None,
    virtualHosts: Container[str] | None = None,
    profiles: Iterable[Profile] | None = None,
    insecure: bool = False,
) -> Serving[MtlServerFactory]:
    """Return what listens when it is awaited or entered: a :class:`.Serving`.

    ``at``: ZeroMQ addresses (``tcp://HOST:PORT``, ``ipc://PATH``) for control.  ``data``: the one
    for data; None: the next port, or one of ``at``: the same socket, as always with ``ipc:``.
    ``sink`` gets the messages and is never closed; ``queue`` is a directory whose queue is opened
    and closed with the server.  ``server``: the class of the sessions.  ``factory``: one of your
    own, which has the settings itself.  ``insecure`` allows addresses off this machine without
    CURVE.  The rest is as for :class:`MtlServerFactory`.

    Raises ConfigurationError for an address or a limit that makes no sense, TypeError for settings
    beside ``factory``, and for ``sink`` and ``queue`` together.
    """
    reactor = running(reactor)
    sink, owned = sink_of(sink, queue, factory, reactor)
    control = each_of(at)
    somewhere(control)
    for address in control:
        check_address(address)
    if data is None:
        data = data_endpoint(control)
    elif data in control:
        data = None
    made = factory_of(
        MtlServerFactory,
        factory,
        reactor,
        server=server,
        sink=sink,
        limits=limits,
        authoriser=authoriser,
        portal=portal,
        curve=curve,
        virtualHosts=virtualHosts,
        profiles=profiles,
        insecure=insecure,
    )
    made.checkAddresses(control, data)
    return Serving(made, Listening(made, control, data), owned, reactor)
