"""ZeroMQ sockets in the reactor, bounded: what txzmq gives, with a limit on everything.

txzmq reads until its socket is empty, however long that takes, and libzmq's own defaults have no
bounds.  Here a turn of the reactor reads at most :data:`READS_PER_TURN` messages, high-water marks
and the size of a frame are set, what a peer does not read waits in a bounded queue, and reading can
be paused.  Importing txzmq installs the default reactor, so that happens when the first socket is
made, not when this module is imported.

libzmq's descriptor becomes readable once, when something happens at a socket which is at rest, and
whichever call looks at the socket next takes that in, sending among them.  So whoever has touched a
socket reads it afterwards, until there is nothing, before it is left to the reactor again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count, islice
from typing import Any, Final

import zmq

from ...core.errors import ConfigurationError
from ..machine.peers import SERIAL_OCTETS, Peer, connection_name
from .connections import DESCRIPTOR, PROPERTY, Connections, metadata
from .curve import ZAP_DOMAIN, CurveClient, CurveServer, zap_reply
from .door import EVENT, EVENTS, Door
from .hooks import guarded

READS_PER_TURN: Final = 256
"""Messages; measured: the reactor stands still for at most some tens of milliseconds."""

READ_OCTETS_PER_TURN: Final = 4 << 20
"""After so many octets a turn reads no further message, either."""

RETRY_SECONDS: Final = 0.02
"""How often a peer whose pipe was full is tried again at least.

ROUTER does not say who has room again, but whenever somebody has, there is something to do for the
socket; so peers are tried whenever it was read, too.
"""

RETRIES_PER_TURN: Final = 64
"""Peers which are tried when the socket was read, those first which wait for their turn longest."""

KERNEL_OCTETS: Final = 1 << 20
"""What the kernel is asked to hold of a connection each way; Linux takes twice as much."""

LINGER_MILLISECONDS: Final = 500
"""How long a closed socket goes on sending what waits in it."""

ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"

LAST_WORDS_SECONDS: Final = 0.1
"""From the end of a connection to when the socket is read on to the end of what it sent.

libzmq's thread tells of an end a moment before it hands over the last messages (after a reset).
"""

IPV4_MAPPED: Final = "::ffff:"
"""What an address begins with where a socket listens for both kinds, and this is one of IPv4."""

NO_SERIAL: Final = bytes(SERIAL_OCTETS)
"""At the end of a name: the connection has no serial (inproc), so nobody tells of its end."""

Received = Callable[[list[list[bytes]]], None]

Routed = Callable[[list[list[bytes]], Mapping[bytes, Peer]], None]
"""Takes the messages of one read, each behind the name of its connection, and what is known of
connections by their names."""


def messages_within(octets: int, frame_octets: int, most: int) -> int:
    """How many messages, ``most`` at most, weigh at most ``octets``; one in any case."""
    return max(1, min(most, octets // frame_octets))


@dataclass(slots=True)
class Bounds:
    """What bounds a socket: octets of a frame, what a peer may leave unread, times in seconds.

    libzmq counts what it holds for a peer in messages, whatever they weigh.  So ``peer_messages``,
    for each direction, are no more than may have the largest frame each.
    """

    frame_octets: int
    peer_messages: int = 1000
    unread_messages: int = 10_000
    unread_octets: int = 16 << 20
    unread_seconds: float = 30.0
    handshake_seconds: float = 10.0


class _Backlog:
    """What one peer has not taken yet, beside what libzmq holds for it."""

    __slots__ = ("full", "messages", "octets", "since")

    def __init__(self, since: float) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.octets = 0
        self.since = since
        self.full = False  # the caller knows that there should be no more now


# ── Sockets ─────────────────────────────────────────────────────────────────────────────────────


@cache
def _txzmq() -> Any:
    """The module, imported late, with the classes of ours which derive from its own."""
    import txzmq

    class Factory(txzmq.ZmqFactory):
        lingerPeriod = LINGER_MILLISECONDS

    class Connection(_Bounded, txzmq.ZmqConnection):
        tcpKeepalive = 1
        tcpKeepaliveCount = 3
        tcpKeepaliveIdle = 60
        tcpKeepaliveInterval = 20

    class Router(_Routing, Connection):
        socketType = zmq.ROUTER

    class Admission(Connection):
        socketType = zmq.ROUTER

    class Dealer(_Watched, Connection):
        socketType = zmq.DEALER

    class Monitor(Connection):
        socketType = zmq.PAIR

    return Factory, Router, Admission, Dealer, Monitor


class _Bounded:
    """Reads in slices, sends without blocking; mixed into txzmq's connection.

    Attributes:
        monitor: the socket on which libzmq tells of connections, if it is asked to.
    """

    monitor: Any = None

    socket: Any
    factory: Any
    read_scheduled: Any
    socketType: int | None

    def __init__(
        self,
        factory: Any,
        received: Any,
        bounds: Bounds,
        *,
        lost: Callable[[bytes], None] = lambda peer: None,
        blocked: Callable[[bytes, bool], None] = lambda peer, full: None,
        prepare: Callable[[Any], None] = lambda connection: None,
    ) -> None:
        """Make a socket without an endpoint.

        ``received(messages)``, of a ROUTER ``received(messages, peers)``, is called once for each
        read.  ``lost(peer)``: the peer left too much unread; ``blocked(peer, full)``: much waits
        for it (a tenth of the messages which may, half of the octets), or nothing any more.
        ``prepare(connection)`` sets more options of its ``socket`` before anything is connected.
        """
        self._received = received
        self._bounds = bounds
        self._lost = lost
        self._blocked = blocked
        self._prepare = prepare
        self._paused = False
        self._backlogs: dict[bytes, _Backlog] = {}
        self._retry: Any = None
        self.highWaterMark = bounds.peer_messages
        super().__init__(factory)  # type: ignore[call-arg]
        socket = self.socket
        socket.set(zmq.MAXMSGSIZE, bounds.frame_octets)
        socket.set(zmq.RCVBUF, KERNEL_OCTETS)
        socket.set(zmq.SNDBUF, KERNEL_OCTETS)
        if self.socketType == zmq.ROUTER:
            socket.set(zmq.ROUTER_MANDATORY, 1)
            socket.set(zmq.HANDSHAKE_IVL, int(bounds.handshake_seconds * 1000))
        prepare(self)

    def bind(self, address: str) -> str:
        """Listen; the address with the port which was chosen.  ConfigurationError if it cannot."""
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot listen on {address}: {error.strerror}") from None
        last: bytes = self.socket.get(zmq.LAST_ENDPOINT)
        return last.rstrip(b"\0").decode()

    def connect(self, address: str) -> None:
        """Connect; ConfigurationError if the address is none."""
        try:
            self.socket.connect(address)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot connect to {address}: {error.strerror}") from None
        self._readSoon()

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def doRead(self) -> None:
        """Read one slice; more in the next turn."""
        if self.read_scheduled is not None:
            if self.read_scheduled.active():
                self.read_scheduled.cancel()
            self.read_scheduled = None
        if self._paused or self.factory is None or self.socket is None:
            return
        messages: list[list[bytes]] = []
        more = self._slice(messages)
        if more:
            self._readSoon()
        if self._backlogs:
            self._sendWaiting(RETRIES_PER_TURN)
        if messages:
            self._deliver(messages)
        if not more:
            self._readOn()

    def readAll(self) -> None:
        """Read and deliver until there is nothing, however long that takes."""
        more = True
        while more:
            messages: list[list[bytes]] = []
            more = self._slice(messages)
            if messages:
                self._deliver(messages)

    def _slice(self, messages: list[list[bytes]]) -> bool:
        """Read some messages; whether there may be more."""
        receive, octets = self.socket.recv_multipart, 0
        try:
            while len(messages) < READS_PER_TURN and octets < READ_OCTETS_PER_TURN:
                parts = receive(zmq.NOBLOCK)
                messages.append(parts)
                octets += sum(map(len, parts))
        except zmq.Again:
            return False
        return True

    def _deliver(self, messages: list[list[bytes]]) -> None:
        guarded(self._received, messages)

    def _readOn(self) -> None:
        """There was nothing more to read."""

    def _readSoon(self) -> None:
        if self.read_scheduled is None and self.factory is not None:
            self.read_scheduled = self.factory.reactor.callLater(0, self.doRead)

    def pauseProducing(self) -> None:
        """Read no more for now; libzmq's buffers fill up, and then the peers wait."""
        self._paused = True
        if self.factory is not None:
            # libzmq's descriptor stays readable until somebody looks: every turn would ask us.
            self.factory.reactor.removeReader(self)

    def resumeProducing(self) -> None:
        """Read again."""
        self._paused = False
        if self.factory is not None:
            self.factory.reactor.addReader(self)
            self._readSoon()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def sendAll(self, messages: Sequence[list[bytes]]) -> None:
        """Send, or queue what a peer cannot take now; order per peer is kept."""
        for parts in messages:
            peer = parts[0] if self.socketType == zmq.ROUTER else b""
            backlog = self._backlogs.get(peer)
            if backlog is not None:
                self._wait(peer, backlog, parts)
            elif not self._sent(peer, parts):
                backlog = self._backlogs[peer] = _Backlog(self.factory.reactor.seconds())
                self._wait(peer, backlog, parts)
        # Touching the socket may have swallowed the edge which says that there is something.
        self._readSoon()

    def _sent(self, peer: bytes, parts: list[bytes]) -> bool:
        """The socket took it, or its peer is not there; False: there is no room now."""
        try:
            self.socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._unreachable(peer)
        return True

    def _unreachable(self, peer: bytes) -> None:
        """The socket knows no such peer."""
        self._lost(peer)

    def _wait(self, peer: bytes, backlog: _Backlog, parts: list[bytes]) -> None:
        backlog.messages.append(parts)
        backlog.octets += sum(map(len, parts))
        bounds = self._bounds
        messages, octets = len(backlog.messages), backlog.octets
        if messages > bounds.unread_messages or octets > bounds.unread_octets:
            self._giveUp(peer)
            return
        if self._retry is None:
            self._retry = self.factory.reactor.callLater(RETRY_SECONDS, self._tryAgain)
        full = messages > bounds.unread_messages // 10 or octets > bounds.unread_octets // 2
        if full and not backlog.full:
            backlog.full = True
            self._blocked(peer, True)

    def _giveUp(self, peer: bytes) -> None:
        if self._backlogs.pop(peer, None) is not None:
            self._lost(peer)

    def _tryAgain(self) -> None:
        self._retry = None
        self._sendWaiting(len(self._backlogs))
        if self._backlogs and self._retry is None:
            self._retry = self.factory.reactor.callLater(RETRY_SECONDS, self._tryAgain)
        self._readSoon()

    def _sendWaiting(self, peers: int) -> None:
        """Try the next ``peers`` which wait."""
        now = self.factory.reactor.seconds()
        some = False
        for peer in list(islice(self._backlogs, peers)):
            backlog = self._backlogs.pop(peer)
            self._backlogs[peer] = backlog  # the last one now
            messages = backlog.messages
            for _ in range(READS_PER_TURN):
                if not messages or not self._sent(peer, messages[0]):
                    break
                backlog.octets -= sum(map(len, messages.popleft()))
                backlog.since = now
                some = True
            if self._backlogs.get(peer) is not backlog:
                continue
            if not messages:
                del self._backlogs[peer]
                if backlog.full:
                    self._blocked(peer, False)
            elif backlog.since + self._bounds.unread_seconds <= now:
                self._giveUp(peer)
        if some:
            self._readSoon()

    @property
    def unread(self) -> int:
        """Messages which wait for peers."""
        return sum(len(backlog.messages) for backlog in self._backlogs.values())

    def shutdown(self) -> None:
        """Close the socket; what libzmq has goes on being sent for a moment."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._backlogs.clear()
        if self.read_scheduled is not None:
            if self.read_scheduled.active():
                self.read_scheduled.cancel()
            self.read_scheduled = None
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            # First of all: libzmq's thread would wait at a monitor which nobody reads.
            self.socket.disable_monitor()
            monitor.shutdown()
        if self.factory is not None:
            super().shutdown()  # type: ignore[misc]


class _Routing:
    """What a ROUTER knows of who sent a message: the connection, its address, its key.

    Its peers go by the names of their connections and not by their identities, both ways.  What is
    to be sent to a connection which has ended is dropped: whoever has its identity by then is not
    meant.
    """

    socket: Any
    _received: Routed
    _backlogs: dict[bytes, _Backlog]
    _lost: Callable[[bytes], None]
    _readSoon: Callable[[], None]
    factory: Any

    def __init__(
        self,
        *arguments: Any,
        connections: Connections,
        leaving: Callable[[bytes], None] = lambda peer: None,
        left: Callable[[list[bytes]], None] = lambda peers: None,
        **options: Any,
    ) -> None:
        """As :class:`_Bounded`, and how connections end.

        ``leaving(peer)``: its connection has ended; what it sent before may still come.
        ``left(peers)``: that was all.
        """
        self._connections = connections
        self._leaving = leaving
        self._left = left
        self._names: dict[str, bytes] = {}  # by serial, of connections which stand
        self._identities: dict[bytes, bytes] = {}  # by name, of connections which stand
        self._peers: dict[bytes, Peer] = {}
        self._ended: dict[bytes, None] = {}  # names of connections which have ended just now
        self._silent: dict[bytes, None] = {}  # and of those which have when all was read
        self._waiting: Any = None
        super().__init__(*arguments, **options)

    def _slice(self, messages: list[list[bytes]]) -> bool:
        """Read some messages; whether there may be more."""
        socket, names, flags, octets = self.socket, self._names, zmq.NOBLOCK, 0
        receive, option = socket.recv, socket.getsockopt
        try:
            while len(messages) < READS_PER_TURN and octets < READ_OCTETS_PER_TURN:
                identity = receive(flags)
                # As a frame it knows its connection; the others are cheaper without.
                frame = receive(flags, False)
                parts = [identity, frame.bytes]
                if frame.more:
                    parts.append(receive(flags))
                    while option(zmq.RCVMORE):
                        octets += len(parts[-1])
                        parts.append(receive(flags))
                octets += len(parts[1]) + len(parts[-1])
                serial = told(frame, PROPERTY)
                parts[0] = names.get(serial) or self._first(identity, serial, frame)
                messages.append(parts)
        except zmq.Again:
            return False
        return True

    def _first(self, identity: bytes, serial: str, frame: Any) -> bytes:
        """The name of a connection which was not read from before, or which has ended."""
        if not serial:
            return identity + NO_SERIAL
        number = int(serial)
        name = connection_name(identity, number)
        if name not in self._peers:
            address = told(frame, "Peer-Address").removeprefix(IPV4_MAPPED)
            self._peers[name] = Peer(address, told(frame, "User-Id").encode())
            ended = partial(self._disconnected, name)
            if self._connections.stands(number, int(told(frame, DESCRIPTOR)), ended):
                self._names[serial] = name
                self._identities[name] = identity
            else:
                self._end(name)
        return name

    def _disconnected(self, name: bytes, serial: int) -> None:
        del self._names[str(serial)]
        self._end(name)

    def _end(self, name: bytes) -> None:
        """Nothing can be sent there any more; what it sent is read still."""
        self._identities.pop(name, None)
        self._backlogs.pop(name, None)
        self._ended[name] = None
        guarded(self._leaving, name)
        if self._waiting is None:
            self._waiting = self.factory.reactor.callLater(LAST_WORDS_SECONDS, self._waited)

    def _waited(self) -> None:
        self._waiting = None
        self._silent.update(self._ended)
        self._ended.clear()
        self._readSoon()

    def _readOn(self) -> None:
        """There was nothing more to read, so the connections which have ended will say no more."""
        if self._silent:
            left, self._silent = list(self._silent), {}
            for name in left:
                self._peers.pop(name, None)
            guarded(self._left, left)

    def _unreachable(self, peer: bytes) -> None:
        if peer.endswith(NO_SERIAL):
            self._lost(peer)
        else:
            self._end(peer)

    def _sent(self, peer: bytes, parts: list[bytes]) -> bool:
        identity = self._identities.get(peer)
        if identity is None:
            if not peer.endswith(NO_SERIAL):
                return True
            identity = peer[: -len(NO_SERIAL)]
        sent: bool = super()._sent(peer, [identity, *parts[1:]])  # type: ignore[misc]
        return sent

    def _deliver(self, messages: list[list[bytes]]) -> None:
        guarded(self._received, messages, self._peers)

    def shutdown(self) -> None:
        """Close the socket."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        super().shutdown()  # type: ignore[misc]


TROUBLES: Final[Mapping[int, str]] = {
    zmq.EVENT_CONNECTED: "it has accepted the connection, and says nothing",
    zmq.EVENT_CONNECT_RETRIED: "no connection can be made",
    zmq.EVENT_DISCONNECTED: "it ends the connection",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the hand-shake fails",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the hand-shake fails: other keys, or another protocol",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not let us in",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "it has accepted the connection, and says nothing",
}
"""What libzmq tells of a connection which we make → what may be the trouble."""


class _Watched:
    """What a DEALER knows of its connection.

    Attributes:
        trouble: why it may be that nobody answers; empty before anything is known.
    """

    trouble = ""

    def happened(self, messages: list[list[bytes]]) -> None:
        """What libzmq says of the connection."""
        for event, _ in messages:
            kind = EVENT.unpack(event)[0]
            # It tries again after each failure, which says less than the failure itself.
            if kind != zmq.EVENT_CONNECT_RETRIED or self.trouble in ("", TROUBLES[kind]):
                self.trouble = TROUBLES[kind]


def told(frame: Any, name: str) -> str:
    """What the metadata of a message says; "" where it has none (inproc)."""
    try:
        text: str = frame.get(name)
    except zmq.ZMQError:
        return ""
    return text


class Sockets:
    """A ZeroMQ context in a reactor; makes sockets and closes them all."""

    def __init__(self, reactor: Any) -> None:
        factory, self._router, self._admission, self._dealer, self._monitor = _txzmq()
        self._factory = factory()
        self._factory.reactor = reactor
        self.connections = Connections()
        self._numbers = count()

    def router(self, received: Routed, bounds: Bounds, **options: Any) -> Any:
        """A ROUTER socket; the arguments are those of :class:`_Routing`."""
        return self._router(
            self._factory, received, bounds, connections=self.connections, **options
        )

    def dealer(self, received: Received, bounds: Bounds, curve: CurveClient | None) -> Any:
        """A DEALER socket.

        It comes back when its connection is lost, with another identity: whoever it talks to does
        not know it any more.  (libzmq could be told not to come back, but then it throws away what
        had arrived before the end: measured.)
        """

        def prepare(connection: Any) -> None:
            socket = connection.socket
            if curve is not None:
                socket.curve_serverkey = curve.server
                socket.curve_publickey = curve.public
                socket.curve_secretkey = curve.secret
            address = f"inproc://dealer-{next(self._numbers)}"
            socket.monitor(address, sum(TROUBLES))
            monitor = self._monitor(self._factory, connection.happened, Bounds(1 << 16, 0))
            monitor.connect(address)
            connection.monitor = monitor

        return self._dealer(self._factory, received, bounds, prepare=prepare)

    def admit(self, door: Door, curve: CurveServer | None) -> Callable[[Any], None]:
        """Let in only who may connect; what to do with each ROUTER before it listens.

        Connections go through ``door`` and get their serials here.  With ``curve`` they need one of
        its keys, which in Z85 becomes the connection's User-Id.
        """
        monitors: list[Any] = []
        routers: list[Any] = []
        authorized = None if curve is None else curve.authorized

        def happened(messages: list[list[bytes]]) -> None:
            for event, _ in messages:
                # Whoever had the descriptor, also if it was given to somebody else by now.
                self.connections.disconnected(EVENT.unpack(event)[1])
            door.happened(messages)

        def asked(messages: list[list[bytes]]) -> None:
            # libzmq has told of a connection before it asks about it, and nothing goes through it
            # before the answer: so whoever is turned away is gone by then, and whoever had its
            # descriptor before is known to have ended.
            for monitor in monitors:
                monitor.readAll()
            # Who comes with an identity is ignored, and never told, while the ROUTER has it still;
            # it lets go of it when it has read on to the end of what its owner sent.  Read here,
            # libzmq's thread is asked to end that before it is told to let the newcomer in.
            for router in routers:
                router.doRead()
            admit = self.connections.admit
            zap.sendAll([zap_reply(parts, authorized, metadata(admit())) for parts in messages])

        zap = self._admission(self._factory, asked, Bounds(1 << 16))
        zap.bind(ZAP_ADDRESS)

        def prepare(router: Any) -> None:
            routers.append(router)
            socket = router.socket
            socket.zap_domain = ZAP_DOMAIN
            if curve is not None:
                socket.curve_secretkey = curve.secret
                socket.curve_publickey = zmq.curve_public(curve.secret)
                socket.curve_server = True
            address = f"inproc://door-{socket.fd}"
            socket.monitor(address, EVENTS)
            # Without a bound of messages: libzmq's own thread would wait for us at it.
            monitor = self._monitor(self._factory, happened, Bounds(1 << 16, 0))
            monitor.connect(address)
            router.monitor = monitor
            monitors.append(monitor)

        return prepare

    def shutdown(self) -> None:
        """Close all sockets and end the context."""
        if self._factory.context is not None:
            for connection in list(self._factory.connections):
                if connection.monitor is not None:
                    connection.shutdown()
            self._factory.shutdown()
