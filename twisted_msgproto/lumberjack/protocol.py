"""Lumberjack on Twisted: moves octets, owns timers and back-pressure, decides nothing.

Subclass :class:`LumberjackServer` and override its hooks::

    class MyServer(LumberjackServer):
        def messageReceived(self, message):      # None, or a Deferred which delays the ack
            print(message.body)

    factory = LumberjackServerFactory(sink)
    factory.protocol = MyServer
    endpoint.listen(factory)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from twisted.internet.interfaces import (
    IHandshakeListener,
    ISSLTransport,
)
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from ..core.errors import Fault
from ..core.message import Fields, MessageBatch
from ..net.backpressure import OutputGuard
from ..net.factory import MsgprotoServerFactory
from ..net.ingest import INGEST_LIMITS, IngestConnection
from ..net.timer import MachineTimer
from .machine import READER_LIMITS, DataReceived, JsonReceived, Reader, ReaderEvent

PROTOCOL: Final = "lumberjack"

READ_OCTETS: Final = 1 << 20
"""What one read takes at the most.  Shippers send in bulk, each read costs a turn and makes a batch
for the queue: against Twisted's 64 KiB this halves the CPU time of an event on its way to the disk;
more brings nothing.  The buffer lives for one read."""


@implementer(IHandshakeListener)
class LumberjackServer(IngestConnection):
    """The reader's side of one connection.

    Attributes:
        reader: the machine; its ``snapshot()`` tells where the connection stands.
        session: the public name of this session.
        peer: the writer's transport address as text.
        clientId: the subject of the writer's certificate, or None.
    """

    log: ClassVar[Logger] = Logger(namespace="twisted_msgproto.lumberjack")
    factory: LumberjackServerFactory
    readOctets = READ_OCTETS

    reader: Reader

    # ── hooks for subclasses; batchReceived and messageReceived come from IngestHooks ───────────

    def sessionEstablished(self) -> None:
        """The connection stands (on TLS: the hand-shake is done) and events may come."""

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def connectionMade(self) -> None:
        """Begin; a subclass which overrides this calls it first."""
        super().connectionMade()
        factory, transport = self.factory, self.transport
        self.reader = Reader(factory.limits)
        self._taking = False  # what happens meanwhile is settled once, at the end of the read
        self._halfClosed = False
        self._ending = False  # nothing is read any more; it ends when all is acknowledged
        self._timer = MachineTimer(factory.clock, self.reader, self._take)
        self._guard = OutputGuard(
            transport, self._control, factory.clock, factory.limits["unread-seconds"], self._unread
        )
        self._resumption: Any = None  # a call which goes on decoding
        self._handshake: Any = None
        if ISSLTransport.providedBy(transport):
            seconds = factory.limits["handshake"]
            self._handshake = factory.clock.callLater(seconds, self._handshakeTimedOut)
        else:
            self._establish()

    def handshakeCompleted(self) -> None:
        """TLS stands: the writer's certificate, if it has one, names the client."""
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        certificate = self.transport.getPeerCertificate()  # type: ignore[union-attr]
        if certificate is not None:
            self.clientId = _subject(certificate)
        self._establish()

    def _handshakeTimedOut(self) -> None:
        self._handshake = None
        self.factory.countFault("handshake")
        self.log.info("{peer}: closed: no TLS hand-shake in time", peer=self.peer)
        self._abort()

    def _establish(self) -> None:
        self._established = True
        self.sessionEstablished()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End; a subclass which overrides this calls it."""
        self._ended = True
        self.reader.lost(self.factory.clock.seconds())
        self._timer.stop()
        self._guard.stop()
        self.factory.budget.forget(self._control)
        self._hold(0)
        for call in (self._resumption, self._handshake):
            if call is not None:
                call.cancel()
        self._resumption = self._handshake = None
        counters, counted = self.factory.counters, self.reader.counters
        counters["windows"] += counted.windows
        counters["acks"] += counted.acks
        counters["keepalives"] += counted.keepalives
        counters["trailing_octets"] += self.reader.decoder.trailing_octets
        counters["invalid_texts"] += self.reader.decoder.invalid_texts
        self.factory.connectionClosed(self, reason)
        if self._established:
            self.sessionLost(reason)

    # ── octets in ───────────────────────────────────────────────────────────────────────────────

    def dataReceived(self, data: bytes) -> None:
        """Octets from the transport."""
        if not self._ended:
            self._take(self.reader.receive(data, self.factory.clock.seconds()))

    def _take(self, events: list[ReaderEvent]) -> None:
        self._taking = True
        for event in events:
            if self._ended:
                break  # what stands behind a batch which was refused must not be kept
            if isinstance(event, Fault):
                self._close(event)
            else:
                self._deliver(event)
        self._taking = False
        decoder = self.reader.decoder
        if not decoder.clean or self._held:
            self._hold(decoder.held_octets)
        if decoder.unfinished:
            self._control.pause("decoding")
            self._lookDecoding()
        self._settle()

    def _lookDecoding(self) -> None:
        """Decode the next slice in the next turn, unless too much waits for the sink already.

        A compressed frame may hold more than one turn should decode.
        """
        if self._control.reasons == {"decoding"} and self._resumption is None and not self._ended:
            self._resumption = self.factory.clock.callLater(0, self._goOn)

    def _goOn(self) -> None:
        self._resumption = None
        if self._ended or self._control.reasons != {"decoding"}:
            return
        self._take(self.reader.receive(b"", self.factory.clock.seconds()))
        if not self.reader.unfinished:
            self._control.resume("decoding")
            if self._halfClosed:
                self._endOfInput()

    def _deliver(self, event: JsonReceived | DataReceived) -> None:
        factory = self.factory
        count = len(event.sequences)
        factory.counters["events"] += count
        factory.counters["octets"] += event.octets
        pairs: Sequence[Fields] | None = None
        bodies: Sequence[bytes] | None = None
        if isinstance(event, JsonReceived):
            kind, bodies = "json", event.bodies
        else:
            kind, pairs = "data", event.pairs
        batch = MessageBatch(  # by place, down to the body: names cost half as much again
            PROTOCOL,
            kind,
            factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            count,
            event.octets,
            event.sequences,
            None,  # no destination
            pairs,
            bodies,
        )
        self._delivery.deliver(batch, self._safe, event.place)

    def readConnectionLost(self) -> None:
        """The writer has shut its sending side: acknowledge what is whole, then close (LJ-19)."""
        self._halfClosed = True
        if not self.reader.unfinished:
            self._endOfInput()

    def _endOfInput(self) -> None:
        self._ending = True
        self.reader.ended(self.factory.clock.seconds())
        self._settle()

    # ── what the sink says ──────────────────────────────────────────────────────────────────────

    def _safe(self, place: int) -> None:
        if self._ended:
            return
        self.reader.made_safe(place, self.factory.clock.seconds())
        if not self._taking:
            self._settle()

    def _settle(self) -> None:
        """Write what is due now, and come back for what will be, or close after the last of it."""
        if self._ended:
            return
        octets = self.reader.outputs()
        if octets:
            self._send(octets)
        if self._ending and self.reader.finished:
            self._ended = True
            self._guard.close()
        else:
            self._timer.look()

    def _notSafe(self, failure: Failure) -> None:
        """A batch will never be safe: no ack for it or for what follows (LJ-13)."""
        self._tellNotSafe(failure)
        self.factory.counters["unsafe_batches"] += 1
        self._abort()

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def _readingChanged(self, paused: bool) -> None:
        now = self.factory.clock.seconds()
        if paused:
            self.reader.paused(now)
            self._lookDecoding()
        else:
            self.reader.resumed(now)
            if not self._ended:
                self._timer.look()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """The server stops: read no more, acknowledge whole windows once they are safe, close."""
        self._control.pause("draining")
        self._ending = True
        self.reader.drain(self.factory.clock.seconds())
        self._settle()

    def _close(self, fault: Fault) -> None:
        """The writer broke the protocol: one line, a counter, and no ack (LJ-16)."""
        self._faulted(fault, "closed without ack")
        self._guard.close()


class LumberjackServerFactory(MsgprotoServerFactory):
    """Builds a :class:`LumberjackServer` for each writer which connects."""

    protocolName = PROTOCOL
    LIMITS = (*READER_LIMITS, *INGEST_LIMITS)
    protocol = LumberjackServer  # type: ignore[assignment]


def _subject(certificate: Any) -> str:
    """A certificate's subject as one text, most specific part last: ``O=Example,CN=web-1``.

    Each part is written as RFC 4514 has it: a comma within a value cannot pass for a further part.
    """
    return ",".join(part.rfc4514_string() for part in certificate.to_cryptography().subject.rdns)
