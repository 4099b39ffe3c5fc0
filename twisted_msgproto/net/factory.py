"""All factories have a sink, limits, counters and session names; servers' count connections."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from math import inf
from typing import Any, ClassVar, Final, TypedDict, TypeVar, Unpack, cast

from OpenSSL.SSL import Error as TLSError
from OpenSSL.SSL import SysCallError, ZeroReturnError
from service_identity import VerificationError
from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IAddress, ITCPTransport
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..core.errors import ConfigurationError, ConnectionClosed, Refused, escaped, unquoted
from ..core.limits import Limit, Limits
from ..core.machine import Table
from ..core.reasons import client_tls, tls_text
from ..core.session_memory import SESSION_LIMIT
from .authorising import Authoriser, known_actions
from .counters import Counters, Traffic
from .deferreds import Waiters
from .logs import FAULTS, LIMITS, LOGINS, TURNS, PeerLog, SessionLog, Topic
from .memory import MIN_RATE, Ledger, SharedState
from .peers import CROWDED, Eviction
from .sink import MessageSink
from .turns import TurnWatch, spent_of

T = TypeVar("T")

COMMON_LIMITS: Final = (
    Limit("connections", 10_000, "connections", "of one server at a time", 1),
    Limit("connections-per-address", 0, "connections", "of one peer address; 0 = unlimited"),
    Limit("handshake", 10.0, "s", "for the hand-shake (TLS and the protocol's own)"),
    Limit(
        "unread-seconds",
        30.0,
        "s",
        "a peer that reads nothing of our output for this long is cut off",
    ),
    Limit("unsafe-bytes", 64 << 20, "bytes", "of one connection, not safe yet: reading pauses", 1),
    Limit(
        "process-unsafe-bytes",
        64 << 20,
        "bytes",
        "of all connections of the process, not safe yet: reading pauses; the least of all servers",
        1,
    ),
    Limit(
        "process-held-bytes",
        256 << 20,
        "bytes",
        "of all connections, in unfinished messages (libzmq's, too) and unread output: slow peers"
        " are cut off",
        1,
    ),
    Limit(
        SESSION_LIMIT,
        256 << 20,
        "bytes",
        "of all sessions, kept for longer than a message (calls, topics, subscriptions): above it"
        " those with more than their share are refused",
        1,
    ),
    Limit(
        "min-rate",
        MIN_RATE,
        "bytes/s",
        "of a peer's unfinished message: slower peers are cut off first when memory is short",
        1,
    ),
    Limit("drain", 4.0, "s", "to make safe and acknowledge what arrived, when the server stops"),
)


def silentSince(protocol: Any) -> float | None:
    """Return when the peer of a connection was heard last; None if it may not be displaced."""
    link = protocol.link
    return None if link.owes else link.lastHeard


def session_names(protocol: str, started_at: float) -> Iterator[str]:
    """Return public names of sessions, which are unique per gateway."""
    start = datetime.fromtimestamp(started_at, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return (f"{protocol}-{start}-{number}" for number in count(1))


def host_of(address: IAddress | None) -> str:
    """Return a peer's host as text; "" without one, or if a PROXY header's would spoil a log."""
    host = str(getattr(address, "host", ""))
    return host if host.isprintable() else ""


def peer_name(address: IAddress | None) -> str:
    host = getattr(address, "host", None)
    if host is not None:
        host, port = escaped(str(host)), getattr(address, "port", "")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not isinstance(address, UNIXAddress):
        return getattr(address, "address", "") or type(address).__name__  # ZeroMQ's has one
    return escaped((address.name or b"unix").decode("utf-8", "replace"))  # most have no name


def tls_refusal(reason: Failure) -> Refused | None:
    """Return why either side's TLS said no, as it will again; None for another reason, such as a
    connection that was lost in the middle of the hand-shake.
    """
    if reason.check(VerificationError):
        return Refused("TLS: the certificate is for another name")
    if not reason.check(TLSError) or reason.check(SysCallError, ZeroReturnError):
        return None
    text = tls_text(reason.value)
    return None if "unexpected eof" in text or "middle" in text else Refused(f"TLS: {text}")


def expect(name: str, value: object, what: str, good: bool) -> None:
    if not good:
        given = type(value).__name__
        if isinstance(value, type):
            given = f"the class {value.__name__}: pass an instance of it"
        raise TypeError(f"{name}: {what} is expected, not {given}")


class SessionSettings(TypedDict, total=False):
    """What every factory takes by name beside ``limits``.

    Attributes:
        clock: anything with ``seconds()`` and ``callLater()``; the global reactor if None.
        wallClock: returns ``received_at`` (seconds since 1970-01-01 UTC).
        shared: what the servers of a process have in common.
    """

    clock: Any
    wallClock: Callable[[], float]
    shared: SharedState | None


class ServerSettings(SessionSettings, total=False):
    """What every server's factory takes so.

    Attributes:
        authoriser: an :class:`.IAuthoriser` that says what clients may do; None allows everything.
    """

    authoriser: Authoriser | None


class SessionFactory:
    """Base class of the factories of servers and clients; it holds what both share.

    Subclasses set :attr:`protocolName`, :attr:`LIMITS` and ``protocol``.

    Attributes:
        sink: where received batches go, or None: then only the hooks of a subclass see them.
        limits: the limits in force.
        counters: plain integers by name, for metrics, with those of live connections; faults stand
            under ``fault:REASON``.
        traffic: what was delivered, and how long it waited to be acknowledged.
    """

    outputLedger: Ledger | None = None
    """Output that peers do not read is entered here; a client's own output is its own affair."""

    turnWatch: TurnWatch | None = None
    """It measures how long the input of each connection keeps the reactor; None: nothing does."""

    sessionLog: SessionLog | None = None

    authoriser: Any = None
    """Sessions ask it what their clients may do; None allows everything.  Clients ask nobody."""

    protocolName: ClassVar[str]
    LIMITS: ClassVar[tuple[Limit, ...]] = ()
    noisy = False

    def __init__(
        self,
        sink: MessageSink | None = None,
        *,
        limits: Mapping[str, object] | Limits | None = None,
        clock: Any = None,
        wallClock: Callable[[], float] = time.time,
        shared: SharedState | None = None,
    ) -> None:
        """Make a factory.

        ``limits``: changes to the defaults by name.  The rest is as in :class:`SessionSettings`.

        Raises ConfigurationError for a limit that does not exist or makes no sense, TypeError for
        what is no sink, no limits, no clock or no SharedState.
        """
        if clock is None:
            from twisted.internet import reactor as clock
        stores = callable(getattr(sink, "put", None)) and not isinstance(sink, type)
        timing = callable(getattr(clock, "callLater", None))
        expect("sink", sink, "an object with a method put", sink is None or stores)
        expect("limits", limits, "a mapping of names", isinstance(limits, Mapping | None))
        expect("clock", clock, "an object with a method callLater", timing)
        expect("wallClock", wallClock, "a function", callable(wallClock))
        expect("shared", shared, "a SharedState", isinstance(shared, SharedState | None))
        self.sink = sink
        self.limits: Limits = (
            limits if isinstance(limits, Limits) else self.defaultLimits(limits or {})
        )
        self.clock = clock
        self.spent: Callable[[], float] = spent_of(clock)
        self.wallClock = wallClock
        self.shared: SharedState = SharedState() if shared is None else shared
        self.shared.bound(
            self.limits["process-unsafe-bytes"],
            self.limits.get("process-held-bytes", inf),
            self.limits.get("min-rate", MIN_RATE),
            clock,
        )
        self.unsafe_bytes_max = self.limits.get("unsafe-bytes", inf)
        self.shared.session_memory.bound(self.limits.get(SESSION_LIMIT, inf))
        self.sessionNames: Iterator[str] = session_names(self.protocolName, wallClock())
        self.counters: Counters = Counters()
        self.traffic: Traffic = Traffic(clock.seconds)

    @classmethod
    def defaultLimits(cls, changes: Mapping[str, object]) -> Limits:
        """Return the limits of this kind of factory, with ``changes``."""
        return Limits.of(COMMON_LIMITS, cls.LIMITS).replace(changes)

    def connectionOpened(self, protocol: Any, host: str) -> None:
        """A protocol says that its connection is made."""
        self.counters["connections_total"] += 1

    def addressKnown(self, protocol: Any, host: str) -> bool:
        """A proxy has said whose connection it is; return whether it may stay."""
        return True

    def connectionClosed(self, protocol: Any, reason: Failure = connectionDone) -> None:
        """A protocol says that its connection is lost, and what its ``connectionLost`` was told."""

    @property
    def peerLog(self) -> PeerLog:
        """Return the front of the log for what peers do; all servers of a process share it."""
        return self.shared.peer_log

    def writeOf(
        self,
        log: Logger,
        host: str,
        text: str,
        /,
        *,
        reason: str,
        topic: Topic = FAULTS,
        **fields: object,
    ) -> None:
        """Log what the peer at ``host`` did; lines of one address are summed up."""
        now = self.clock.seconds()
        if topic is FAULTS or topic is LOGINS:
            self.shared.offenders.note(self.protocolName, host, reason, now)
        self.peerLog.write(topic, log, host, now, text, reason=reason, **fields)

    def watchTurns(self, seconds: float) -> TurnWatch:
        """Log and count turns of later connections that need more than ``seconds`` of CPU time."""

        def slow(peer: str, host: str, spent: float) -> None:
            self.counters["slow_turns"] += 1
            self.writeOf(
                Logger(namespace="twisted_msgproto.net"),
                host or f"{self.protocolName}: turns",
                "{protocol}: {peer}: its input took {spent:.0f} ms of CPU time in one turn"
                " (turn-warn is {most:g} ms)",
                reason="slow turn",
                topic=TURNS,
                protocol=self.protocolName,
                peer=peer,
                spent=spent * 1e3,
                most=seconds * 1e3,
            )

        self.turnWatch = TurnWatch(seconds, slow)
        return self.turnWatch

    def logSessions(self) -> None:
        """Write a line when a session begins and one when it ends."""
        self.sessionLog = SessionLog(self.protocolName, self.clock.seconds, self.writeOf)

    def countFault(self, reason: str, limit: str = "") -> None:
        """A peer broke the protocol; ``limit`` names the limit that it met, if there is one."""
        self.counters["faults"] += 1
        if limit:
            self.counters[f"limit:{limit}"] += 1
        self.counters[f"fault:{reason}"] += 1


class _TurnedAway(Protocol):
    """Closes its connection, which None would leave open behind Twisted's wrappers, such as TLS."""

    def connectionMade(self) -> None:
        cast(Any, self.transport).loseConnection()


class MsgprotoServerFactory(SessionFactory, ServerFactory):
    """Base class of all server factories; it keeps account of live connections.

    A server names its sessions (:meth:`sessionNamed`, :meth:`sessionsOf`); where
    the protocol allows it, it sends to one of them with the session's own verbs, or with ``push``
    to the newest session of a client.

    Attributes as :class:`SessionFactory`'s, and:
        authoriser: says what clients may do (an Authoriser); None: everything.
        liveConnections: the protocols that are connected now.
        draining: whether the server stops and accepts no more connections.
        reusePort: whether other processes may listen on its TCP ports, too.
    """

    log: ClassVar[Logger] = Logger(namespace="twisted_msgproto.net")

    reusePort = False

    actions: ClassVar[frozenset[str]] = frozenset()
    """Sessions ask the authoriser about these actions; without any it cannot be given one."""

    stateTable: ClassVar[Table[Any] | None] = None
    """Its sessions' machines follow this transition table; the status page draws it."""

    def __init__(
        self,
        sink: MessageSink | None = None,
        *,
        limits: Mapping[str, object] | Limits | None = None,
        authoriser: Authoriser | None = None,
        **settings: Unpack[SessionSettings],
    ) -> None:
        """Make a factory as :class:`SessionFactory` does; ``authoriser`` is an
        :class:`~.authorising.Authoriser`, or None: clients may do everything.

        Raises ConfigurationError if the sessions of this factory would not ask the authoriser, or
        about an action that there is not, and TypeError if it is none.
        """
        super().__init__(sink, limits=limits, **settings)
        known_actions(f"{type(self).__name__}.actions", self.actions)
        if authoriser is not None:
            asks = callable(getattr(authoriser, "allows", None))
            expect("authoriser", authoriser, "an object with a method allows", asks)
            if not self.actions:
                raise ConfigurationError(
                    f"{self.protocolName} does not ask who may what: it cannot run with rules"
                )
            self.authoriser = authoriser
        self.outputLedger: Ledger = self.shared.held
        self.peerLog.clock = self.clock
        self.liveConnections: dict[Any, str] = {}
        self._named: dict[str, Any] = {}
        self._perAddress: Counter[str] = Counter()
        self._eviction = Eviction()
        self._taken = 0  # connections: the live ones, and those that have no session yet
        self._drainWaiters: Waiters[None] = Waiters()
        self._drained = False
        self._deadline: Any = None  # the call that cuts off what has not ended
        self.draining: bool = False

    def logPrefix(self) -> str:
        return self.protocolName  # Twisted's line says what starts where

    def startFactory(self) -> None:
        """Raise ConfigurationError if this was drained: it would refuse every connection."""
        if self.draining:
            raise ConfigurationError(
                "a factory that was drained, or closed with its server, takes no more connections:"
                " make a new one"
            )

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """Return a protocol for a new connection; above a limit one that closes it."""
        host = host_of(addr)
        per_address = self.limits.integer("connections-per-address")
        most = self.limits.integer("connections")
        if self.draining or (
            self._taken >= most * CROWDED and not self._makesRoom(host) and self._taken >= most
        ):
            self.limitMet("connections")
            return _TurnedAway()
        if per_address and host and self._perAddress[host] >= per_address:
            self.limitMet("connections-per-address")
            return _TurnedAway()
        return cast(Protocol | None, super().buildProtocol(addr))

    def _makesRoom(self, host: str) -> bool:
        longest = self._eviction.search(
            host, self.liveConnections, silentSince, self.clock.seconds(), self._perAddress
        )
        if longest is None:
            return False
        self.displaced(longest.link.peer)
        longest.link.displace()
        return True

    def displaced(self, peer: str) -> None:
        """Log and count that the connection of ``peer`` is closed for a newcomer."""
        self.counters["displaced"] += 1
        self.writeOf(
            self.log,
            f"{self.protocolName}: displaced",
            "{protocol}: {peer} was closed for a newcomer: it was silent and its address has the"
            " most connections; connections is {most} (--limit connections=NUMBER changes it)",
            reason="displaced",
            topic=LIMITS,
            protocol=self.protocolName,
            peer=peer,
            most=self.limits.integer("connections"),
        )

    def limitMet(self, limit: str, what: str = "connection") -> None:
        """Count and log what was refused: a limit of all peers together is met."""
        self.counters["turned_away"] += 1
        self.counters[f"turned_away:{limit}"] += 1
        if self.draining:
            return
        self.writeOf(
            self.log,
            f"{self.protocolName}: limit {limit}",
            "{protocol}: a {what} was refused: {limit} is {most}"
            " (--limit {limit}=NUMBER changes it)",
            reason="refused",
            topic=LIMITS,
            what=what,
            protocol=self.protocolName,
            limit=limit,
            most=self.limits.integer(limit),
        )

    def connectionOpened(self, protocol: Any, host: str) -> None:
        """Note that a connection is made; its protocol calls this.

        On TCP this enables keep-alive: a peer that vanished without closing the connection, while
        nothing was due to it, would otherwise occupy a place for ever.
        """
        transport = getattr(protocol, "transport", None)
        if ITCPTransport.providedBy(transport):
            # A peer that vanished while nothing was due to it would keep its place for ever.
            transport.setTcpKeepAlive(True)
        super().connectionOpened(protocol, host)
        self.liveConnections[protocol] = host
        self._named[getattr(protocol, "session", "")] = protocol
        self.addressTaken(host)

    def addressKnown(self, protocol: Any, host: str) -> bool:
        """Count the connection for the client's address, and no more for the proxy's."""
        stays = self.addressMoves(self.liveConnections[protocol], host)
        if stays:
            self.liveConnections[protocol] = host
        return stays

    def addressMoves(self, before: str, host: str) -> bool:
        """Count a connection for ``host``, not for ``before``; False if ``host`` has too many."""
        per_address = self.limits.integer("connections-per-address")
        if per_address and self._perAddress[host] - (before == host) >= per_address:
            self.limitMet("connections-per-address")
            return False
        self.addressFreed(before)
        self.addressTaken(host)
        return True

    def addressTaken(self, host: str) -> None:
        """Count one more connection from ``host``."""
        self._taken += 1
        self._perAddress[host] += 1

    def addressFreed(self, host: str) -> None:
        """Count one connection less from ``host``."""
        self._taken -= 1
        self._perAddress[host] -= 1
        if not self._perAddress[host]:
            del self._perAddress[host]

    def connectionClosed(self, protocol: Any, reason: Failure = connectionDone) -> None:
        """A protocol says that its connection is lost, and what its ``connectionLost`` was told.

        Where TLS failed this is a peer's fault; see :meth:`lookTls`.
        """
        self.lookTls(getattr(protocol, "transport", None), reason)
        host = self.liveConnections.pop(protocol, None)
        if host is not None:
            self._named.pop(getattr(protocol, "session", ""), None)
            self.addressFreed(host)
        self._lookDrained()

    def lookTls(self, transport: Any, reason: Failure) -> None:
        """Log and count that TLS failed: a client speaks plainly, or rejects the certificate."""
        if reason.check(TLSError):
            self.countFault("tls")
            peer = peer_name(transport.getPeer())
            text = client_tls(unquoted(tls_text(reason.value)))
            line = "{peer}: closed: TLS: {text}"
            host = host_of(transport.getPeer())
            self.writeOf(self.log, host, line, peer=peer, text=text, reason="tls")

    # ── sessions ────────────────────────────────────────────────────────────────────────────────

    def sessionNamed(self, name: str) -> Any:
        """Return the live session of this public name (its ``session``), or None."""
        return self._named.get(name)

    def sessionsOf(self, clientId: str) -> list[Any]:
        """Return the sessions of a client that stand, oldest first."""
        return [
            session
            for session in self.liveConnections
            if session.clientId == clientId and session.established
        ]

    def sessions(self) -> list[Mapping[str, object]]:
        """Return every live session as plain values, for a status page; no secrets."""
        return [session.snapshot() for session in self.liveConnections]

    def toNewest(self, clientId: str, verb: Callable[[Any], Deferred[T]]) -> Deferred[T]:
        """Call ``verb(session)`` with the newest session of a client; return its Deferred.

        It fails with ConnectionClosed if the client has no session that stands.
        """
        sessions = self.sessionsOf(clientId)
        if not sessions:
            return fail(ConnectionClosed("the client has no session"))
        return verb(sessions[-1])

    def drain(self) -> Deferred[None]:
        """Accept no more connections and end the live ones in order; fires when the last is gone.

        Each link's ``drain()`` stops reading, acknowledges what it has when that is safe, and
        closes.  After the limit ``drain`` the rest is cut off.
        """
        if not self.draining:
            self.draining = True
            self._deadline = self.clock.callLater(self.limits["drain"], self._cutOff)
            for protocol in list(self.liveConnections):
                protocol.link.drain()
            self._lookDrained()
        return self._whenDrained()

    def _whenDrained(self) -> Deferred[None]:
        return succeed(None) if self._drained else self._drainWaiters.wait()

    def abort(self) -> None:
        """End the live connections at once, and accept no more."""
        self.drain()
        self._cutOff()

    def _cutOff(self) -> None:
        live: Iterable[Any] = list(self.liveConnections)
        for protocol in live:
            protocol.transport.abortConnection()
        self._lookDrained()

    def _lookDrained(self) -> None:
        if self.draining and not self._drained and not self.liveConnections:
            self._drainEnds()

    def _drainEnds(self) -> None:
        self._drained = True
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self.peerLog.sum_up()
        self._drainWaiters.fire(None)
