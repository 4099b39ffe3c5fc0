"""What every ZeroMQ socket of ours keeps: it reads in slices and sends without blocking.

libzmq's descriptor becomes readable once, when something happens at a socket that is at rest, and
whichever call looks at the socket next takes that in, sending among them.  So whoever has touched a
socket reads it afterwards, until there is nothing, before it is left to the reactor again.

One socket serves many peers, and the reactor drops a socket whose reading raises: so nothing is
called but by :func:`.guarded`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import zmq
from twisted.logger import Logger

from ...core.errors import ConfigurationError
from ...net.deferreds import guarded
from ...net.memory import SharedState
from ..machine.flows import SERIAL_BYTES, Peer, connection_name
from . import DESCRIPTOR, PROPERTY, Bounds, Connections, bind, choose_family, named
from .unfinished import (
    CURVE_BYTES,
    FRAME_BYTES,
    Backlog,
    EveryUnfinished,
    SendBacklog,
    SendBacklogs,
    Unfinished,
)

log: Logger = Logger(namespace="twisted_msgproto.mtl")

READS_PER_TURN: Final = 256
"""Messages; measured: the reactor stands still for at most some tens of milliseconds."""

READ_BYTES_PER_TURN: Final = 4 << 20
"""After this many bytes a turn reads no further message, either."""

PARSED_WEIGHT: Final = 64
"""What a byte which is to be parsed counts among those of a turn: it reads 64 KiB of them.

Measured: one of a header, with its field table, takes up to 0.5 µs, one of a request's JSON less.
"""

FRAMES_KEPT: Final = 9
"""Of a message with more frames than these the others are thrown away unread: none of ours has more
than eight, so it still counts as one of too many."""

FRAMES_PER_TURN: Final = 16_384
"""One turn of the reactor drops this many of those frames."""

RETRY_SECONDS: Final = 0.02
"""How often a peer whose pipe was full is tried again at least.

ROUTER does not say who has room again, but whenever somebody has, there is something to do for the
socket; so peers are tried whenever it was read, too.
"""

RETRIES_PER_TURN: Final = 64
"""Peers that are tried when the socket was read, those first that wait for their turn longest."""

KERNEL_BYTES: Final = 256 << 10
"""What the kernel is asked to hold of a connection each way; Linux takes twice as much."""


class Bounded:
    """A socket that reads in slices and sends without blocking; mixed into txzmq's connection."""

    monitor: Any = None  # on it libzmq tells of connections, if asked to

    _within = False  # the rest of a message with too many frames is to be thrown away
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
        """Call ``received(messages)``, of a ROUTER ``received(messages, peers)``, for each read.

        ``lost(peer)``: the peer left too much unread; ``blocked(peer, full)``: much waits for it (a
        tenth of the messages that may, half of the bytes), or nothing any more.
        ``prepare(connection)`` sets more options of its ``socket`` before anything is connected.
        """
        self._received = received
        self._bounds = bounds
        self._lost = lost
        self._blocked = blocked
        self._prepare = prepare
        self._paused = False
        self._backlogs: dict[bytes, Backlog] = {}
        self._retry: Any = None
        self._removals: list[Callable[[], None]] = []  # of files, before it is closed
        self.highWaterMark: int = bounds.peer_messages
        super().__init__(factory)  # type: ignore[call-arg]
        socket = self.socket
        socket.set(zmq.RCVBUF, KERNEL_BYTES)
        socket.set(zmq.SNDBUF, KERNEL_BYTES)
        if bounds.received_messages is not None:
            socket.set(zmq.RCVHWM, bounds.received_messages)
        if self.socketType == zmq.ROUTER:
            socket.set(zmq.ROUTER_MANDATORY, 1)
            socket.set(zmq.HANDSHAKE_IVL, int(bounds.handshake_seconds * 1000))
        prepare(self)
        curve = socket.get(zmq.MECHANISM) == zmq.CURVE
        socket.set(zmq.MAXMSGSIZE, bounds.frame_bytes + (CURVE_BYTES if curve else 0))

    def bind(self, address: str) -> str:
        self._removals.append(bind(self.socket, address))
        last: bytes = self.socket.get(zmq.LAST_ENDPOINT)
        return os.fsdecode(last.rstrip(b"\0"))

    def connect(self, address: str) -> None:
        choose_family(self.socket, address)
        try:
            self.socket.connect(named(address))
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot connect to {address}: {error.strerror}") from None
        self._readSoon()

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def doRead(self) -> None:
        if self.read_scheduled is not None:
            if self.read_scheduled.active():
                self.read_scheduled.cancel()
            self.read_scheduled = None
        if self._paused or self.factory is None:
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
        more = True
        while more:
            messages: list[list[bytes]] = []
            more = self._slice(messages)
            if messages:
                self._deliver(messages)

    def _slice(self, messages: list[list[bytes]]) -> bool:
        socket, flags, nbytes = self.socket, zmq.NOBLOCK, 0
        receive, option = socket.recv, socket.getsockopt
        if self._within:
            self._throwAway()
            return True
        try:
            while len(messages) < READS_PER_TURN and nbytes < READ_BYTES_PER_TURN:
                parts = [receive(flags)]
                while option(zmq.RCVMORE):
                    if len(parts) == FRAMES_KEPT:
                        messages.append(parts)
                        self._within = True
                        return True
                    parts.append(receive(flags))
                messages.append(parts)
                nbytes += sum(map(len, parts))
        except zmq.Again:
            return False
        return True

    def _throwAway(self) -> None:
        """Read on in a message of which nobody wants more, to its end perhaps."""
        receive, option = self.socket.recv, self.socket.getsockopt
        for _ in range(FRAMES_PER_TURN):
            if not option(zmq.RCVMORE):
                self._within = False
                return
            receive(zmq.NOBLOCK)

    def _deliver(self, messages: list[list[bytes]]) -> None:
        guarded(log, "mtl", self._received, messages)

    def _readOn(self) -> None:
        """There was nothing more to read."""

    def _readSoon(self) -> None:
        if self.read_scheduled is None and self.factory is not None:
            self.read_scheduled = self.factory.reactor.callLater(0, self.doRead)

    def pauseProducing(self) -> None:
        """Read no more for now; libzmq's buffers fill up, and then the peers wait."""
        self._paused = True
        # libzmq's descriptor stays readable until somebody looks: every turn would ask us.
        self.factory.reactor.removeReader(self)

    def resumeProducing(self) -> None:
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
                backlog = self._backlogs[peer] = Backlog(self.factory.reactor.seconds())
                self._wait(peer, backlog, parts)
        # Touching the socket may have swallowed the edge that says that there is something.
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
        """Its connection has ended."""

    def _wait(self, peer: bytes, backlog: Backlog, parts: list[bytes]) -> None:
        backlog.put(parts)
        bounds = self._bounds
        messages, nbytes = len(backlog.messages), backlog.weight
        if messages > bounds.unread_messages or nbytes > bounds.unread_bytes:
            self._giveUp(peer)
            return
        if self._retry is None:
            self._retry = self.factory.reactor.callLater(RETRY_SECONDS, self._tryAgain)
        full = messages > bounds.unread_messages // 10 or nbytes > bounds.unread_bytes // 2
        if full and not backlog.full:
            backlog.full = True
            self._blocked(peer, True)

    def _giveUp(self, peer: bytes) -> None:
        del self._backlogs[peer]
        self._lost(peer)

    def _tryAgain(self) -> None:
        self._retry = None
        if self._backlogs:
            self._retry = self.factory.reactor.callLater(RETRY_SECONDS, self._tryAgain)
            self._sendWaiting(len(self._backlogs))
            self._readSoon()

    def _sendWaiting(self, peers: int) -> None:
        now = self.factory.reactor.seconds()
        some = False
        for peer in list(islice(self._backlogs, peers)):
            backlog = self._backlogs.pop(peer, None)
            if backlog is None:
                continue  # what was done for another has ended it
            self._backlogs[peer] = backlog  # the last one now
            messages = backlog.messages
            for _ in range(READS_PER_TURN):
                if not messages or not self._sent(peer, messages[0]):
                    break
                backlog.take()
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
        return sum(len(backlog.messages) for backlog in self._backlogs.values())

    @property
    def unreadBytes(self) -> int:
        return sum(backlog.weight for backlog in self._backlogs.values())

    def shutdown(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        while self._removals:
            self._removals.pop()()
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            # First of all: libzmq's thread would wait at a monitor that nobody reads.
            self.socket.disable_monitor()
            monitor.shutdown()
        if self.factory is not None:
            super().shutdown()  # type: ignore[misc]


# ── What a ROUTER knows of its peers (``MT-30``) ──────────────────────────────────────────────────


LAST_WORDS_SECONDS: Final = 0.1
"""From the end of a connection to when the socket is read on to the end of what it sent.

libzmq's thread tells of an end a moment before it hands over the last messages (after a reset).
"""

IPV4_MAPPED: Final = "::ffff:"
"""What an address begins with where a socket listens for both kinds, and this is one of IPv4."""

Routed = Callable[[list[list[bytes]], Mapping[bytes, Peer]], None]
"""Takes the messages of one read, each behind the name of its connection, and what is known of
connections by their names."""


class Routing:
    """What a ROUTER knows of who sent a message: the connection, its address, its key.

    Its peers go by the names of their connections and not by their identities, both ways.  What is
    to be sent to a connection that has ended is dropped: whoever has its identity by then is not
    meant.
    """

    socket: Any
    _received: Routed
    _backlogs: dict[bytes, Backlog]
    _readSoon: Callable[[], None]
    _throwAway: Callable[[], None]
    _within = False
    factory: Any

    def __init__(
        self,
        factory: Any,
        received: Any,
        bounds: Bounds,
        *,
        connections: Connections,
        leaving: Callable[[bytes], None],
        left: Callable[[list[bytes]], None],
        endless: Callable[[str, int], None],
        every: EveryUnfinished,
        evicted: Callable[[str, int], None],
        trusted: Callable[[bytes], bool],
        shared: SharedState,
        unread: Callable[[str, int], None],
        curve: bool,
        **options: Any,
    ) -> None:
        """``leaving(peer)``: its connection has ended; what it sent before may still come.
        ``left(peers)``: that was all.  ``endless(host, bytes)``: a connection was cut off, because
        so much of a message came which did not end; ``evicted(host, bytes)``: because
        ``every`` unfinished message together are too much, of which those of a ``trusted(name)``
        weigh their bytes only; ``unread(host, bytes)``: because it did not read these
        bytes, and all hold too much by ``shared``, which counts them.
        """
        self._connections = connections
        self._leaving = leaving
        self._left = left
        self._names: dict[str, bytes] = {}  # by serial, of connections that stand
        self._peers: dict[bytes, Peer] = {}
        self._ended: dict[bytes, None] = {}  # names of connections that have ended just now
        self._silent: dict[bytes, None] = {}  # and of those that have when all was read
        self._waiting: Any = None
        self.unfinished: Unfinished = Unfinished(
            every, bounds, endless, self._readSoon, evicted=evicted, trusted=trusted
        )
        self._tellUnread = unread
        self._frame_bytes = FRAME_BYTES + (CURVE_BYTES if curve else 0)  # beside its own
        self._unread: dict[bytes, SendBacklog] = {}  # by name, of connections that stand
        super().__init__(factory, received, bounds, **options)  # type: ignore[call-arg]
        self._sendBacklogs = SendBacklogs(factory.reactor, shared, self._backlogs, self._cutOff)

    def _slice(self, messages: list[list[bytes]]) -> bool:
        socket, names, flags, nbytes = self.socket, self._names, zmq.NOBLOCK, 0
        receive, option = socket.recv, socket.getsockopt
        if self._within:
            self._throwAway()
            return True
        try:
            while len(messages) < READS_PER_TURN and nbytes < READ_BYTES_PER_TURN:
                identity = receive(flags)
                # As a frame it knows its connection; the others are cheaper without.
                frame = receive(flags, False)
                parts, more = [identity, frame.bytes], frame.more
                while more:
                    if len(parts) == FRAMES_KEPT:
                        self._within, nbytes = True, READ_BYTES_PER_TURN
                        break
                    parts.append(receive(flags))
                    nbytes += len(parts[-1])
                    more = option(zmq.RCVMORE)
                nbytes += len(parts[1]) * PARSED_WEIGHT
                if len(parts) > 3:
                    nbytes += len(parts[-1]) * PARSED_WEIGHT
                serial = frame.get(PROPERTY)
                parts[0] = names.get(serial) or self._first(identity, serial, frame)
                messages.append(parts)
        except zmq.Again:
            return False
        if self._within:
            self.unfinished.too_many_frames(parts[0])
        return True

    def _first(self, identity: bytes, serial: str, frame: Any) -> bytes:
        """Return the name of a connection that was not read from before, or which has ended."""
        number = int(serial)
        name = connection_name(identity, number)
        if name not in self._peers:
            address = ""
            with suppress(zmq.ZMQError):  # where the system does not tell it
                address = frame.get("Peer-Address").removeprefix(IPV4_MAPPED)
            self._peers[name] = Peer(address, frame.get("User-Id").encode())
            ended = partial(self._disconnected, name)
            descriptor = int(frame.get(DESCRIPTOR))
            if self._connections.stands(number, descriptor, ended):
                self.unfinished.named(name, descriptor)
                self._names[serial] = name
                self._unread[name] = SendBacklog(self._sendBacklogs, name, descriptor)
            else:
                self._end(name)
        return name

    def _disconnected(self, name: bytes, serial: int) -> None:
        del self._names[str(serial)]
        self._end(name)

    def _end(self, name: bytes) -> None:
        """Nothing can be sent there any more; what it sent is read still."""
        self._forget(name)
        self._ended[name] = None
        guarded(log, "mtl", self._leaving, name)
        if self._waiting is None:
            self._waiting = self.factory.reactor.callLater(LAST_WORDS_SECONDS, self._waited)

    def _forget(self, name: bytes) -> None:
        self._backlogs.pop(name, None)
        unread = self._unread.pop(name, None)
        if unread is not None:
            self._sendBacklogs.forget(unread)

    def _cutOff(self, peer: SendBacklog, nbytes: int) -> None:
        """End a connection for what its peer has not read; the monitor tells when it has ended."""
        self._forget(peer.name)
        self.unfinished.end(peer.descriptor, nbytes, self._tellUnread)

    def _waited(self) -> None:
        self._waiting = None
        self._silent, self._ended = self._silent | self._ended, {}
        self._readSoon()

    def _readOn(self) -> None:
        """There was nothing more to read, so the connections that have ended will say no more."""
        self.unfinished.read_to_end()
        if self._silent:
            left, self._silent = list(self._silent), {}
            for name in left:
                self._peers.pop(name, None)
            guarded(log, "mtl", self._left, left)

    def peerMovedAt(self, peer: bytes) -> float:
        return self.unfinished.moved_at(peer)

    def _unreachable(self, peer: bytes) -> None:
        self._end(peer)

    def _sent(self, peer: bytes, parts: list[bytes]) -> bool:
        unread = self._unread.get(peer)
        if unread is None:
            return True  # what is for a connection that has ended is dropped
        if unread.passed >= unread.check_at:
            room = unread.has_room()
            if peer not in self._unread:
                return True  # it was cut off for that
            if not room:
                return False
        frames = parts[1:]
        identity = peer[:-SERIAL_BYTES]
        sent: bool = super()._sent(peer, [identity, *frames])  # type: ignore[misc]
        if sent:
            unread.passed += sum(map(len, frames)) + len(frames) * self._frame_bytes
        return sent

    def _wait(self, peer: bytes, backlog: Backlog, parts: list[bytes]) -> None:
        super()._wait(peer, backlog, parts)  # type: ignore[misc]
        self._sendBacklogs.waits(self._unread[peer], backlog)

    def _deliver(self, messages: list[list[bytes]]) -> None:
        self.unfinished.read(messages)
        guarded(log, "mtl", self._received, messages, self._peers)

    def shutdown(self) -> None:
        self.unfinished.shutdown()
        self._sendBacklogs.shutdown()
        if self._waiting is not None:
            self._waiting.cancel()
        super().shutdown()  # type: ignore[misc]
