"""A server's and a client's protocol are connected in memory; bytes move, and time passes, when the
test says so.

A stream of bytes may arrive in many ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IPushProducer,
    ISSLTransport,
    ITransport,
)
from twisted.internet.task import Clock as TwistedClock
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import alsoProvides, implementer

log: Final = Logger(namespace="twisted_msgproto.testing")

FULL_BYTES: Final = 65536
"""A transport pauses its producer above this, as Twisted's own do."""

SERVER_PORT: Final = 5048
CLIENT_PORT: Final = 40000

BEGIN_SECONDS: Final = 1_700_000_000.0
"""The clock begins at this time, a day in November 2023, in seconds since 1970-01-01 UTC."""

Build = Callable[[Any], Any]


@implementer(ITransport, IPushProducer)
class MemoryTransport:
    """One end of a pair; to a protocol it is a TCP transport of Twisted.

    Attributes:
        protocol: this end's protocol; None if the factory built none.
        other: the other end.
        buffer: bytes that were written here and have not arrived there.
        written: how many bytes were written here, in all.
        full: the producer is paused while ``buffer`` has more bytes than this.
        reading: the protocol wants to read.
        deaf: nothing is read here, whatever the protocol wants: set it to play a peer that does
            not read.
        closing: the protocol has asked for the end.
        aborted: it has asked for the end at once; the peer sees a reset.
        shut: nothing more will be written here, and the peer may know: set it for a half-close.
        gone: the protocol's ``connectionLost`` was called.
    """

    def __init__(self, port: int, full: int = FULL_BYTES, host: str = "127.0.0.1") -> None:
        """``host`` and ``port`` are this end's address."""
        self.full = full
        self.buffer: bytearray = bytearray()
        self.reading: bool = True
        self.deaf = False
        self.closing: bool = False
        self.aborted: bool = False
        self.shut = False
        self.gone: bool = False
        self.producer: Any = None
        self.producerPaused: bool = False
        self.written: int = 0
        self.protocol: Any = None
        self.other: MemoryTransport = self
        self.address: IPv4Address = IPv4Address("TCP", host, port)
        self._shutSeen = False

    # ── what a protocol calls ───────────────────────────────────────────────────────────────────

    def getPeer(self) -> IPv4Address:
        """Return the other end's address."""
        return self.other.address

    def getHost(self) -> IPv4Address:
        """Return this end's address."""
        return self.address

    def setTcpNoDelay(self, on: bool) -> None:
        """Do nothing: bytes wait for the test in any case."""

    def setTcpKeepAlive(self, on: bool) -> None:
        """Do nothing: no system watches this connection."""

    def write(self, data: bytes) -> None:
        """Put bytes into the buffer; nothing after the end was asked for."""
        assert isinstance(data, bytes)
        if self.closing or self.gone:
            return
        self.buffer += data
        self.written += len(data)
        if len(self.buffer) > self.full and self.producer and not self.producerPaused:
            self.producerPaused = True
            self.producer.pauseProducing()

    def writeSequence(self, pieces: Iterable[bytes]) -> None:
        """Write all pieces."""
        self.write(b"".join(pieces))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Accept one push producer."""
        assert self.producer is None and streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self.producer = None

    def pauseProducing(self) -> None:
        """Read no more."""
        self.reading = False

    def resumeProducing(self) -> None:
        """Read again."""
        self.reading = True

    def stopProducing(self) -> None:
        """Close."""
        self.loseConnection()

    def loseConnection(self) -> None:
        """Close once all that was written has arrived."""
        self.closing = True

    def abortConnection(self) -> None:
        """Close at once; what has not arrived is lost."""
        self.closing = self.aborted = True
        self.buffer.clear()

    # ── what a test calls ───────────────────────────────────────────────────────────────────────

    def lost(self, reason: Exception) -> None:
        """Let the connection be gone, as this end sees it."""
        if not self.gone:
            self.gone = True
            if self.producer is not None:
                self.producer.stopProducing()
            self.protocol.connectionLost(Failure(reason))

    def drained(self) -> None:
        """Resume the producer once the peer has read everything."""
        if not self.buffer and self.producerPaused:
            self.producerPaused = False
            if self.producer:
                self.producer.resumeProducing()

    def read(self, size: int | None = None) -> bool:
        """Read once, at most ``size`` bytes; return whether there was anything to read."""
        source = self.other
        if self.gone or not self.reading or self.deaf or self.closing:
            return False
        if not source.buffer:
            return self._seeShut(source)
        data = bytes(source.buffer[: size or len(source.buffer)])
        del source.buffer[: len(data)]
        try:
            self.protocol.dataReceived(data)
        except Exception as error:  # as a reactor does it: logged, and the end of this connection
            log.failure("a protocol failed")
            self.lost(error)
        source.drained()
        return True

    def _seeShut(self, source: MemoryTransport) -> bool:
        if not source.shut or self._shutSeen:
            return False
        self._shutSeen = True
        half = IHalfCloseableProtocol(self.protocol, None)
        if half is not None:
            half.readConnectionLost()
        else:
            self.lost(ConnectionDone())
        return True


class Pair:
    """A server's and a client's protocol, connected.

    Bytes, and the end of the connection, move when :meth:`pump` is called::

        pair = Pair(server_factory.buildProtocol, client_factory.buildProtocol)
        sent = pair.client.protocol.send(b"hello")
        pair.pump(size=1)          # byte by byte

    Attributes:
        server: the server's end, with its ``protocol``.
        client: the client's end, with its ``protocol``.
    """

    def __init__(
        self,
        server: Build,
        client: Build,
        *,
        full: int = FULL_BYTES,
        host: str = "127.0.0.1",
        tls: bool = False,
    ) -> None:
        """Build the protocols with ``server(address)`` and ``client(address)``, and connect them.

        A transport pauses its producer while more than ``full`` bytes wait.  ``host`` is the
        client's address.  With ``tls`` the client begins a TLS hand-shake that never completes.
        """
        self.server: MemoryTransport = MemoryTransport(SERVER_PORT, full)
        self.client: MemoryTransport = MemoryTransport(CLIENT_PORT, full, host)
        if tls:
            alsoProvides(self.client, ISSLTransport)
        self.server.other, self.client.other = self.client, self.server
        self.server.protocol = server(self.client.address)
        self.client.protocol = client(self.server.address)
        for end in self.ends:
            if end.protocol is None:
                end.gone = True
        for end in self.ends:
            if not end.gone:
                try:
                    end.protocol.makeConnection(end)
                except Exception:  # as a reactor does it
                    log.failure("a protocol failed")

    @property
    def ends(self) -> tuple[MemoryTransport, MemoryTransport]:
        """Return both ends, the server's first."""
        return self.server, self.client

    def pump(self, size: int | None = None) -> bool:
        """Move bytes (at most ``size`` a read) until all that can has arrived.

        Returns whether any did.
        """
        some = False
        while self.pump_once(size):
            some = True
        return some

    def pump_once(self, size: int | None = None) -> bool:
        """Let each end read once, at most ``size`` bytes; return whether anything happened."""
        moved = self.server.read(size) | self.client.read(size)
        for end in self.ends:
            if end.closing and not end.buffer and not end.gone:
                moved = True
                end.lost(ConnectionAborted() if end.aborted else ConnectionDone())
            if end.gone and not end.buffer and not end.other.gone:
                moved = True
                end.other.lost(ConnectionDone())
        return moved

    def cut(self) -> None:
        """Let the network go away at both ends."""
        for end in self.ends:
            end.lost(ConnectionAborted())


PIECE_BYTES: Final = (1, 2, 3, 7, 64)


def splits(data: bytes, everywhere: int = 400) -> Iterator[list[bytes]]:
    """Iterate over ways to cut ``nbytes`` into pieces, each a list of all the pieces in order.

    First comes the stream as a whole, then in pieces of 1, 2, 3, 7 and 64 bytes, then cut in two
    at each place; a stream longer than ``everywhere`` bytes is cut in two at about that many
    places, spread evenly over it.
    """
    yield [data]
    for size in PIECE_BYTES:
        yield [data[at : at + size] for at in range(0, len(data), size)]
    for cut in range(1, len(data), max(1, len(data) // everywhere)):
        yield [data[:cut], data[cut:]]


class Clock(TwistedClock):
    """Twisted's clock for tests, which also moves the bytes of pairs.

    Pass it to a factory as its ``clock``, and ``clock.seconds`` as its ``wallClock``: then the
    times in messages are those of the test.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rightNow = BEGIN_SECONDS

    def settle(self, *pairs: Pair) -> None:
        """Move bytes and run the calls that are due, until nothing happens any more."""
        moved = True
        while moved:
            moved = any([pair.pump() for pair in pairs])
            if any(call.getTime() <= self.seconds() for call in self.getDelayedCalls()):
                self.advance(0)
                moved = True

    def wait(self, seconds: float, *pairs: Pair, step: float = 1.0) -> None:
        """Let ``seconds`` pass in steps, and let everything happen that happens meanwhile."""
        self.settle(*pairs)
        while seconds > 0:
            self.advance(min(step, seconds))
            self.settle(*pairs)
            seconds -= step
