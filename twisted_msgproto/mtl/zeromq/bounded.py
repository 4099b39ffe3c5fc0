"""What every ZeroMQ socket of ours keeps: it reads in slices and sends without blocking.

libzmq's descriptor becomes readable once, when something happens at a socket that is at rest, and
whichever call looks at the socket next takes that in, sending among them.  So whoever has touched a
socket reads it afterwards, until there is nothing, before it is left to the reactor again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import zmq

from ...core.errors import ConfigurationError
from ...core.reasons import cannot_listen
from .hooks import guarded

READS_PER_TURN: Final = 256
"""Messages; measured: the reactor stands still for at most some tens of milliseconds."""

READ_OCTETS_PER_TURN: Final = 4 << 20
"""After this many octets a turn reads no further message, either."""

HEADER_WEIGHT: Final = 64
REQUEST_WEIGHT: Final = 16
"""What an octet which is to be parsed counts among those of a turn.

Measured: one of a header, with its field table, takes up to 0.5 µs, one of a request's JSON up to
0.14 µs.  So a turn reads 64 KiB of the one kind, or 256 KiB of the other.
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

KERNEL_OCTETS: Final = 256 << 10
"""What the kernel is asked to hold of a connection each way; Linux takes twice as much."""


def messages_within(octets: int, frame_octets: int, most: int) -> int:
    """Return how many messages, ``most`` at most, weigh at most ``octets``; one in any case."""
    return max(1, min(most, octets // frame_octets))


@dataclass(slots=True)
class Bounds:
    """What bounds a socket: octets of a frame, what a peer may leave unread, times in seconds.

    libzmq counts what it holds for a peer in messages, whatever they weigh.  So ``peer_messages``,
    for each direction, are no more than may have the largest frame each.  ``received_messages``
    replaces it for what comes, since what goes out is bounded elsewhere on a client (None: it does
    not).
    """

    frame_octets: int
    peer_messages: int = 1000
    unread_messages: int = 10_000
    unread_octets: int = 16 << 20
    unread_seconds: float = 30.0
    handshake_seconds: float = 10.0
    received_messages: int | None = None


class Backlog:
    """What one peer has not taken yet, beside what libzmq holds for it."""

    __slots__ = ("full", "messages", "octets", "since")

    def __init__(self, since: float) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.octets = 0
        self.since = since
        self.full = False  # the caller knows that there should be no more now


class Bounded:
    """A socket that reads in slices and sends without blocking; mixed into txzmq's connection.

    Attributes:
        monitor: the socket on which libzmq tells of connections, if it is asked to.
    """

    monitor: Any = None

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
        """Make a socket without an endpoint.

        ``received(messages)``, of a ROUTER ``received(messages, peers)``, is called once for each
        read.  ``lost(peer)``: the peer left too much unread; ``blocked(peer, full)``: much waits
        for it (a tenth of the messages that may, half of the octets), or nothing any more.
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
        self.highWaterMark = bounds.peer_messages
        super().__init__(factory)  # type: ignore[call-arg]
        socket = self.socket
        socket.set(zmq.MAXMSGSIZE, bounds.frame_octets)
        socket.set(zmq.RCVBUF, KERNEL_OCTETS)
        socket.set(zmq.SNDBUF, KERNEL_OCTETS)
        if bounds.received_messages is not None:
            socket.set(zmq.RCVHWM, bounds.received_messages)
        if self.socketType == zmq.ROUTER:
            socket.set(zmq.ROUTER_MANDATORY, 1)
            socket.set(zmq.HANDSHAKE_IVL, int(bounds.handshake_seconds * 1000))
        prepare(self)

    def bind(self, address: str) -> str:
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            why = cannot_listen(zmq.strerror(error.errno or 0))
            raise ConfigurationError(f"cannot listen on {address}: {why}") from None
        last: bytes = self.socket.get(zmq.LAST_ENDPOINT)
        return last.rstrip(b"\0").decode()

    def connect(self, address: str) -> None:
        try:
            self.socket.connect(address)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"cannot connect to {address}: {error.strerror}") from None
        self._readSoon()

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def doRead(self) -> None:
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
        socket, flags, octets = self.socket, zmq.NOBLOCK, 0
        receive, option = socket.recv, socket.getsockopt
        if self._within and not self._throwAway():
            return True
        try:
            while len(messages) < READS_PER_TURN and octets < READ_OCTETS_PER_TURN:
                parts = [receive(flags)]
                while option(zmq.RCVMORE):
                    if len(parts) == FRAMES_KEPT:
                        messages.append(parts)
                        self._within = True
                        return True
                    parts.append(receive(flags))
                messages.append(parts)
                octets += sum(map(len, parts))
        except zmq.Again:
            return False
        return True

    def _throwAway(self) -> bool:
        """Read on in a message of which nobody wants more; whether it has ended."""
        receive, option = self.socket.recv, self.socket.getsockopt
        for _ in range(FRAMES_PER_TURN):
            if not option(zmq.RCVMORE):
                self._within = False
                return True
            receive(zmq.NOBLOCK)
        return False

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
        self._lost(peer)

    def _wait(self, peer: bytes, backlog: Backlog, parts: list[bytes]) -> None:
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
            # First of all: libzmq's thread would wait at a monitor that nobody reads.
            self.socket.disable_monitor()
            monitor.shutdown()
        if self.factory is not None:
            super().shutdown()  # type: ignore[misc]
