"""A connection between two Twisted protocols in memory: octets move when the test says so."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IPushProducer,
    ISSLTransport,
    ITransport,
)
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import alsoProvides, implementer

log = Logger(namespace="tests.lines")

FULL_OCTETS = 65536
"""As Twisted's transports: above this the producer is paused."""


@implementer(ITransport, IPushProducer)
class End:
    """One end of a line: a TCP transport of Twisted, as far as a protocol can tell.

    Attributes:
        buffer: what was written here and has not arrived there.
        reading: the protocol wants to read.
        deaf: nothing is read here, whatever the protocol wants.
        closing: the protocol asked for the end.
        aborted: it asked for the end at once, which a peer sees as a reset.
        shut: nothing more will be written here, and the peer may know (half-close).
        gone: ``connectionLost`` was called.
        written: octets which were written here, in all.
    """

    def __init__(self, port: int, full: int = FULL_OCTETS, host: str = "127.0.0.1") -> None:
        self.full = full
        self.buffer = bytearray()
        self.reading = True
        self.deaf = False
        self.closing = False
        self.aborted = False
        self.shut = False
        self.gone = False
        self.producer: Any = None
        self.producer_paused = False
        self.written = 0
        self.protocol: Any = None
        self.other: End = self
        self.address = IPv4Address("TCP", host, port)
        self._shut_seen = False

    # What a protocol calls.

    def getPeer(self) -> IPv4Address:
        return self.other.address

    def getHost(self) -> IPv4Address:
        return self.address

    def setTcpNoDelay(self, on: bool) -> None:
        pass

    def setTcpKeepAlive(self, on: bool) -> None:
        pass

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        if self.closing or self.gone:
            return
        self.buffer += data
        self.written += len(data)
        if len(self.buffer) > self.full and self.producer and not self.producer_paused:
            self.producer_paused = True
            self.producer.pauseProducing()

    def writeSequence(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert self.producer is None and streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        self.reading = True

    def stopProducing(self) -> None:
        self.loseConnection()

    def loseConnection(self) -> None:
        self.closing = True

    def abortConnection(self) -> None:
        self.closing = self.aborted = True
        self.buffer.clear()

    # What the test calls.

    def lost(self, reason: Exception) -> None:
        """The connection is gone, as this end sees it."""
        if not self.gone:
            self.gone = True
            if self.producer is not None:
                self.producer.stopProducing()
            self.protocol.connectionLost(Failure(reason))

    def drained(self) -> None:
        """The peer has read: with nothing left to read, the producer goes on."""
        if not self.buffer and self.producer_paused:
            self.producer_paused = False
            if self.producer:
                self.producer.resumeProducing()

    def read(self, size: int | None = None) -> bool:
        """One read, of at most ``size`` octets; whether there was any."""
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

    def _seeShut(self, source: End) -> bool:
        if not source.shut or self._shut_seen:
            return False
        self._shut_seen = True
        half = IHalfCloseableProtocol(self.protocol, None)
        if half is not None:
            half.readConnectionLost()
        else:
            self.lost(ConnectionDone())
        return True


class Line:
    """Both ends; ``pump()`` moves octets until nothing moves."""

    def __init__(
        self,
        server: Any,
        client: Any,
        *,
        full: int = FULL_OCTETS,
        host: str = "127.0.0.1",
        tls: bool = False,
    ) -> None:
        """``server(address)`` and ``client(address)`` build the protocols.

        ``tls``: the client begins a TLS hand-shake, which comes to nothing.
        """
        self.server, self.client = End(5048, full), End(40000, full, host)
        if tls:
            alsoProvides(self.client, ISSLTransport)
        self.server.other, self.client.other = self.client, self.server
        self.server.protocol = server(self.client.address)
        self.client.protocol = client(self.server.address)
        for end in (self.server, self.client):
            if end.protocol is None:
                end.gone = True
        for end in (self.server, self.client):
            if not end.gone:
                try:
                    end.protocol.makeConnection(end)
                except Exception:  # as a reactor does it
                    log.failure("a protocol failed")

    @property
    def ends(self) -> tuple[End, End]:
        return self.server, self.client

    def pump(self, size: int | None = None) -> bool:
        """Move octets (at most ``size`` a read) until all that can has arrived; did any move?"""
        some = False
        while self.pump_once(size):
            some = True
        return some

    def pump_once(self, size: int | None = None) -> bool:
        """One read of each end, of at most ``size`` octets; did anything move?"""
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
        """The network goes away at both ends."""
        for end in self.ends:
            end.lost(ConnectionAborted())
