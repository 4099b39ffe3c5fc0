"""Byte streams: TCP, TLS and UNIX sockets, and how bytes get into them.

Bytes are written in slices; each slice that the peer reads is a sign of life.  A peer that reads
slowly but steadily is served for as long as it needs.  A peer is cut off if it has read nothing for
``unread-seconds`` although more than a slice waits for it.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, ClassVar, Final

from twisted.internet.interfaces import (
    IPushProducer,
    ISSLTransport,
    ITCPTransport,
    IWriteDescriptor,
)
from zope.interface import implementer

from ..memory import Clock, Ledger
from ..turns import FIRST_READ_BYTES
from . import Wire


class StreamWire(Wire):
    """A Twisted transport as a wire.

    Attributes:
        write: writes bytes; short ones are with the system when it returns.
        output: what the peer has not read yet.
    """

    write: Callable[[bytes], None]  # a function of its own: it is called for every answer
    _answered = False  # whether the transport ends only when the peer has answered that: TLS
    _closing = False  # such a transport was asked to end

    def __init__(self, link: Any) -> None:
        """Make the wire of a :class:`~twisted_msgproto.net.link.Link` that has a transport."""
        transport, factory = link.transport, link.factory
        clock = factory.clock
        self._transport = transport
        self._link = link
        if hasattr(transport, "tellRest"):  # TLS, perhaps behind a proxy
            transport.tellRest(self._rests)
        self.output: Output = Output(
            transport,
            clock,
            factory.limits["unread-seconds"],
            link.unread,
            changed=link.outputChanged,
            ledger=factory.outputLedger,
        )
        self.write = flushing_write(transport, self.output.write)
        self.output.readAtMost(FIRST_READ_BYTES)
        if ISSLTransport.providedBy(transport):
            # TLS does not end before its producer has gone, and ours stays as long as the
            # connection: an application that asks the transport for the end asks us.  What its
            # hook leads to is written first, as on TCP.
            closing = partial(clock.callLater, 0, self.close, False)
            transport.loseConnection = closing  # type: ignore[method-assign]
            self._answered = True
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)

    def _rests(self, nbytes: int) -> None:
        self.held = nbytes
        self._link.heldChanged()

    def close(self, fault: bool) -> None:
        """Let out what was written, then close the transport.

        TLS is read until it has ended: it waits for the peer's last words, and nobody else does.
        """
        if self._answered and not self._closing:
            self._closing = True
            self._transport.resumeProducing()
        self.output.close()

    def abort(self) -> None:
        self._transport.abortConnection()

    def established(self) -> None:
        """A byte stream has no messages that could be larger now."""

    def pauseProducing(self) -> None:
        if not self._closing:
            self._transport.pauseProducing()

    def resumeProducing(self) -> None:
        self._transport.resumeProducing()

    def stop(self) -> None:
        self.output.stop()


# ── what the peer has not read yet ──────────────────────────────────────────────────────────────


SLICE_BYTES: Final = 64 << 10  # a transport reports when all is gone: progress comes in steps


def flushing_write(
    transport: Any, waits: Callable[[bytes], None] | None = None
) -> Callable[[bytes], None]:
    """Return a ``write`` for ``transport`` that hands the bytes to the system before it returns:
    a peer waits for its ack before it sends more.

    A transport keeps bytes until the next turn of the reactor finds its socket writable, as it
    nearly always is.  For a short answer that costs three system calls more, and a turn. After the
    first byte that the system does not accept, or an error, everything is left to the transport:
    its peer reads more slowly than we write, or is gone.

    Nobody else may write to the transport.  One that is no socket itself (TLS) writes as it is used
    to.  ``waits`` is called with what the system does not accept; by default that is
    ``transport.write``.
    """
    plain: Callable[[bytes], None] = transport.write if waits is None else waits
    own_socket = bool(IWriteDescriptor.providedBy(transport))
    if ISSLTransport.providedBy(transport) or not own_socket:
        return plain
    send: Callable[[bytes], int] = transport.getHandle().send
    flushes = True  # the transport has been given nothing yet

    def write(data: bytes) -> None:
        nonlocal flushes
        if flushes and data:
            try:
                data = data[send(data) :]
            except OSError:  # full, broken or closed: the transport knows what to do
                flushes = False
            else:
                flushes = not data
        if data:
            plain(data)

    return write


_TCP_INFO: Final = struct.Struct("=24xI92xQ16xI")  # Linux: unacked segments, acked bytes, unsent


def in_flight(transport: Any) -> tuple[int, int]:
    """Return how many bytes the peer's system has, and whether ours has more; zeros: unknown."""
    while transport is not None:
        connection = getattr(transport, "socket", None)
        if isinstance(connection, socket.socket):
            try:
                data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
                segments, acknowledged, unsent = _TCP_INFO.unpack(data)
            except (OSError, AttributeError, struct.error):  # a UNIX socket, another system
                break
            return acknowledged, segments + unsent
        transport = getattr(transport, "transport", None)
    return 0, 0


@implementer(IPushProducer)
class Output:
    """The way of bytes into one transport, as the transport's producer."""

    # What most connections never change stands here: an idle one weighs less.
    nbytes = 0  # that wait here, beyond the slices that the transport holds
    most_waiting = inf  # with more bytes the peer is cut off as one that does not read
    full = False  # the transport has enough for now; what is written waits
    movedAt = 0.0  # when it became full, or the peer last read something after that
    _queue: deque[memoryview] | None = None
    _read_bytes = SLICE_BYTES
    _over = False
    _pausing = False  # within a write of the transport
    _ending = False
    _look: tuple[float, float, int, int] | None = None  # when, what it told, acked, left
    _timer: Any = None

    def __init__(
        self,
        transport: Any,
        clock: Clock,
        seconds: float,
        stalled: Callable[[], None],
        *,
        most: int = 0,
        changed: Callable[[bool], None] = lambda paused: None,
        drained: Callable[[], None] = lambda: None,
        ledger: Ledger | None = None,
    ) -> None:
        """Make the output; :meth:`watch` begins to observe the peer.

        ``stalled()`` is called when the peer has read nothing for ``seconds``.  ``changed(True)``
        is called when the transport is full and ``most`` bytes wait here as well,
        ``changed(False)`` when at most half of that still waits.  ``drained()`` is called when
        everything that waited has been read.  What waits is entered in ``ledger``, so that all
        connections together have a bound; a peer that reads too little of it may be cut off for
        that.
        """
        self._ledger = ledger
        self._transport = transport
        self._lose = transport.loseConnection
        self._clock = clock
        self._seconds = seconds
        self._stalled = stalled
        self._most = most
        self._changed = changed
        self._drained = drained

    def watch(self) -> None:
        """Begin to observe whether the peer reads: on TLS not before its hand-shake is done."""
        self._transport.registerProducer(self, True)

    def readAtMost(self, nbytes: int) -> None:
        """From now on, one read returns at most ``nbytes``; TLS reads as it is used to."""
        self._transport.bufferSize = self._read_bytes = nbytes

    def write(self, data: bytes) -> None:
        """Write in slices as there is space; transports have one size for buffer and reads."""
        if not self.full and not self._queue and len(data) <= SLICE_BYTES:
            transport = self._transport
            transport.bufferSize = SLICE_BYTES - 1
            transport.write(data)
            transport.bufferSize = self._read_bytes
            return
        self._append(data)
        if not self.full:
            self._feed()
        self._enter()
        self._lookOver()
        if self.nbytes > self.most_waiting:
            self.most_waiting = inf  # once
            self._stalled()

    def _append(self, data: bytes) -> None:
        """Let ``data`` wait; small ones share a slice, since each piece needs 200 bytes more."""
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
        self.nbytes += len(data)
        if queue and len(queue[-1]) + len(data) <= SLICE_BYTES:
            data = b"".join((queue.pop(), data))
        queue.append(memoryview(data))

    def _enter(self) -> None:
        if self._ledger is not None:
            self._ledger.hold(self, self.nbytes, self._clock.seconds(), outward=True)

    # ── as the ledger's holder ──────────────────────────────────────────────────────────────────

    address: ClassVar[str] = ""
    reading: ClassVar[bool] = True

    def holdBack(self, held_back: bool) -> None:
        """Output is not held back."""

    def cutOff(self, nbytes: int, limit: float) -> None:
        self._stalled()

    # ────────────────────────────────────────────────────────────────────────────────────────────

    def _feed(self) -> None:
        queue, transport = self._queue, self._transport
        transport.bufferSize = SLICE_BYTES - 1
        while queue and not self.full:
            piece = queue.popleft()
            if len(piece) > SLICE_BYTES:
                queue.appendleft(piece[SLICE_BYTES:])
                piece = piece[:SLICE_BYTES]
            self.nbytes -= len(piece)
            transport.write(bytes(piece))
        transport.bufferSize = self._read_bytes

    def _lookOver(self) -> None:
        if not self._over:
            if self.full and self.nbytes >= self._most:
                self._over = True
                self._changed(True)
        elif self.nbytes <= self._most // 2 and (self._most or not self.full):
            self._over = False
            self._changed(False)

    # ── as the transport's producer ─────────────────────────────────────────────────────────────

    def pauseProducing(self) -> None:
        self.full = True
        if self._timer is None:
            self.movedAt = self._clock.seconds()
            self._timer = self._clock.callLater(self._seconds, self._expired)
        self._pausing = True
        try:
            self._lookOver()
        finally:
            self._pausing = False

    def resumeProducing(self) -> None:
        self.full = False
        self.movedAt = self._clock.seconds()
        if self._queue:
            self._feed()
            self._enter()
        if not self.full:
            self._cancel()
            if self._ending:
                self._finish()
                return
            self._lookOver()
            self._drained()
        elif self._ending and not self._queue:
            self._finish()

    def stopProducing(self) -> None:
        self.stop()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Write what waits, then close the transport; a peer that reads nothing is cut off."""
        if not self._ending:
            self._ending = True
            # Twisted's TLS would write once more what it is writing.
            if not self._queue and not self._pausing:
                self._finish()

    def _finish(self) -> None:
        """All is in the transport.  With a producer it would wait for that for ever (on TLS)."""
        self._transport.unregisterProducer()
        self._lose()
        self.movedAt = self._clock.seconds()
        if self._timer is None:
            self._timer = self._clock.callLater(self._seconds, self._expired)

    def takenAt(self, now: float) -> float:
        """Return when the peer took something last, as far as anybody can tell.

        That is ``now`` while something waits here, since who takes none of it is cut off, and while
        it takes what the system holds for it: a look tells what was taken since the one before.
        """
        if self._ending:
            return self.movedAt
        if self.full or self.nbytes:
            return now
        before = self._look
        if before is not None and before[0] == now:
            return before[1]
        acknowledged, left = in_flight(self._transport)
        moves = left > 0 if before is None else before[3] > 0 and acknowledged > before[2]
        told = now if moves else self.movedAt
        self._look = now, told, acknowledged, left
        return told

    def stop(self) -> None:
        self._ending = True
        self._queue = None
        if self.nbytes:
            self.nbytes = 0
            self._enter()
        self._cancel()

    def _cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _expired(self) -> None:
        self._timer = None
        left = self.movedAt + self._seconds - self._clock.seconds()
        if left > 0:
            self._timer = self._clock.callLater(left, self._expired)
        else:
            self._stalled()
