"""The writer's side on Twisted: one connection which sends events and tells when they are safe.

    client = await endpoint.connect(LumberjackClientFactory())
    await client.send(b'{"message": "hello"}')          # fires when it is acknowledged
    await client.sendBatch(documents)                   # fires when the last of them is

A connection which is lost fails what was not acknowledged; :class:`~.shipper.LumberjackShipper`
keeps it, connects again and sends it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final
from typing import Protocol as TypingProtocol

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import (
    IAddress,
    IConsumer,
    IHandshakeListener,
    IPushProducer,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from ..core.connection import WorkLost
from ..core.errors import (
    ConfigurationError,
    ConnectionClosed,
    Fault,
    LimitExceeded,
    MsgprotoError,
    ProtocolViolation,
    TimedOut,
    shown,
)
from ..core.limits import Limit, Limits
from ..core.machine import IllegalTransition
from ..net.comeback import tls_refusal
from ..net.factory import peer_name
from ..net.timer import MachineTimer
from .writer import (
    COMPRESS_DEFAULT,
    WINDOW_DEFAULT,
    WRITER_LIMITS,
    Event,
    Packer,
    Parcel,
    PartAcknowledged,
    WindowAcknowledged,
    Writer,
    WriterEvent,
    Writing,
)

CLIENT_LIMITS: Final = (
    *WRITER_LIMITS,
    Limit("handshake", 10.0, "s", "for the TLS hand-shake"),
    Limit("unread-seconds", 30.0, "s", "a reader which does not take our octets is left"),
    Limit("ttl", 0.0, "s", "a connection is replaced after this; 0 = never (LJ-15)"),
    Limit("drain", 10.0, "s", "for the acks which are awaited, when the writer stops"),
)
"""What a client bounds."""

log: Final = Logger(namespace="twisted_msgproto.lumberjack")


class Ticket:
    """Who waits for parcels: a Deferred which fires when the last of them is acknowledged.

    Attributes:
        deferred: what the caller of ``send`` got; cancelling it withdraws what is unsent.
        parcels: those which are not acknowledged yet.
    """

    __slots__ = ("deferred", "parcels")

    def __init__(self, withdraw: Callable[[Parcel], object]) -> None:
        self.parcels: dict[Parcel, None] = {}

        def cancelled(deferred: Deferred[None]) -> None:
            for parcel in list(self.parcels):
                withdraw(parcel)

        self.deferred: Deferred[None] = Deferred(cancelled)

    def add(self, parcel: Parcel) -> None:
        """One more parcel to wait for."""
        parcel.token = self
        self.parcels[parcel] = None

    def acknowledged(self, parcel: Parcel) -> None:
        """``parcel`` is safe."""
        del self.parcels[parcel]
        if not self.parcels and not self.deferred.called:
            self.deferred.callback(None)

    def failed(self, error: BaseException) -> None:
        """It is not known of all parcels that they are safe, and nobody will try again."""
        if not self.deferred.called:
            self.deferred.errback(error)


class ProducerControl:
    """Pauses a push producer while there is no room for more (``LJ-09``)."""

    __slots__ = ("_paused", "_producer")

    def __init__(self) -> None:
        self._producer: IPushProducer | None = None
        self._paused = False

    def register(self, producer: Any, streaming: bool) -> None:
        """As IConsumer.registerProducer; ValueError for a pull producer: events have no pace."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        if not streaming:
            raise ValueError("push producers only")
        self._producer = producer
        self._paused = False

    def unregister(self) -> None:
        """As IConsumer.unregisterProducer."""
        self._producer = None

    def look(self, full: bool) -> None:
        """Pause or resume the producer, if that is a change."""
        producer = self._producer
        if producer is None or full is self._paused:
            return
        self._paused = full
        if full:
            producer.pauseProducing()
        else:
            producer.resumeProducing()

    def stop(self) -> None:
        """Nobody will take events any more."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()


@implementer(IPushProducer)
class _Output:
    """Tells the machine while our octets wait in the transport, and leaves a stalled reader."""

    def __init__(self, client: LumberjackClient) -> None:
        self._client = client
        self._timer: Any = None
        client.transport.registerProducer(self, True)  # type: ignore[union-attr]

    def pauseProducing(self) -> None:
        client, clock = self._client, self._client.factory.clock
        client.writer.paused(clock.seconds())
        if self._timer is None:
            seconds = client.factory.limits["unread-seconds"]
            self._timer = clock.callLater(seconds, self._stalled)

    def resumeProducing(self) -> None:
        self.stopProducing()
        self._client.writer.resumed(self._client.factory.clock.seconds())
        self._client.look()

    def stopProducing(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """A transport with a producer would wait for it for ever (on TLS)."""
        transport: Any = self._client.transport
        transport.unregisterProducer()
        transport.loseConnection()
        if self._timer is None:
            seconds = self._client.factory.limits["unread-seconds"]
            self._timer = self._client.factory.clock.callLater(seconds, self._stalled)

    def _stalled(self) -> None:
        self._timer = None
        seconds = self._client.factory.limits["unread-seconds"]
        self._client.leave(TimedOut(f"the reader took no octets for {seconds:g} s"))


class Owner(TypingProtocol):
    """Who has the events when a connection only carries them."""

    def clientWants(self, client: LumberjackClient) -> None:
        """``client`` may send: submit parcels while its ``writer.wanted`` is not 0."""

    def clientProgressed(self, client: LumberjackClient, count: int) -> None:
        """A sign of life: ``count`` (or 0) more events are acknowledged, as their tickets know."""

    def clientLost(
        self, client: LumberjackClient, parcels: list[Parcel], error: MsgprotoError
    ) -> None:
        """``client`` has ended, for ``error``; ``parcels`` are unacknowledged, in order."""


@implementer(IConsumer, IHandshakeListener)
class LumberjackClient(Protocol):
    """The writer's side of one connection.

    Attributes:
        writer: the machine; its ``snapshot()`` tells where the connection stands.
        peer: the reader's transport address as text.
        established: events may be written (on TLS: the hand-shake is done).
        expired: the connection ended because its time (``ttl``) was over.
        owner: who gives us parcels and takes them back; None: those who wait get errors.
    """

    factory: LumberjackClientFactory

    writer: Writer
    peer: str
    established = False
    expired = False
    owner: Owner | None = None

    _lost: bool
    _closing: bool
    _output: _Output
    _error: MsgprotoError | None  # what ended the connection, if it was us who ended it
    _standing: dict[Deferred[LumberjackClient], None]  # who waits for the connection to stand
    _stopping: list[Deferred[None]]  # who waits for the end of close()
    _deadline: Any  # of close()

    # ── hooks for subclasses ────────────────────────────────────────────────────────────────────

    def sessionEstablished(self) -> None:
        """The connection stands; what waits is written after this."""

    def sessionLost(self, reason: Failure) -> None:
        """The session has ended; ``reason`` is what Twisted gave to ``connectionLost``."""

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def send(self, event: Event) -> Deferred[None]:
        """Send one event; fires when it is acknowledged (``LJ-09``).

        ``event`` is a JSON document as octets (version 2), carried as it is, or a mapping of text
        (version 1); TypeError for the wrong one.  The Deferred fails with LimitExceeded when the
        event is above a limit or too many wait (nothing was sent), with ConnectionClosed,
        ProtocolViolation or TimedOut when the connection ends first.  Cancelling it withdraws an
        event which is not written yet.
        """
        return self.sendBatch((event,))

    def sendBatch(self, events: Iterable[Event]) -> Deferred[None]:
        """Send many events, in order; fires when the last is acknowledged.  As ``send``.

        If one of them is above a limit none is sent.
        """
        events = list(events)
        if not events:
            return succeed(None)
        if self._stopping or self._lost:
            return fail(ConnectionClosed("the connection has ended or is ending; nothing sent"))
        ticket = Ticket(self._withdraw)
        try:
            parcel = self.writer.send(events, ticket)
        except LimitExceeded as error:
            return fail(error)
        except IllegalTransition:
            return fail(ConnectionClosed("the connection is ending; nothing sent"))
        ticket.add(parcel)
        self.look()
        return ticket.deferred

    def whenEstablished(self) -> Deferred[LumberjackClient]:
        """Fires with this client when events may be written, or if they already may.

        Fails with what ended the connection: Refused where TLS said no, else ConnectionClosed,
        ProtocolViolation or TimedOut.
        """
        if self._lost:
            return fail(self._error or ConnectionClosed("the connection has ended"))
        if self.established:
            return succeed(self)
        waiting: Deferred[LumberjackClient] = Deferred(
            lambda cancelled: self._standing.pop(cancelled, None)
        )
        self._standing[waiting] = None
        return waiting

    def close(self) -> Deferred[None]:
        """End the connection in order: send what waits, await its acks (until the limit ``drain``).

        Fires when the connection is closed.  What is unacknowledged by then fails with
        ConnectionClosed.
        """
        return self.stop()

    def abort(self) -> None:
        """End the connection at once; what is unacknowledged fails with ConnectionClosed."""
        if not self._lost:
            self.leave(ConnectionClosed("the connection was given up"))

    def stop(self) -> Deferred[None]:
        """The older name of :meth:`close`: send what waits, await its acks, close.

        What is unacknowledged by then fails with ConnectionClosed.
        """
        stopped: Deferred[None] = Deferred()
        self._stopping.append(stopped)
        if self._lost:
            self._tellStopped()
        elif self._deadline is None:
            seconds = self.factory.limits["drain"]
            self._deadline = self.factory.clock.callLater(seconds, self._late)
            self.look()
        return stopped

    def _tellStopped(self) -> None:
        stopping, self._stopping = self._stopping, []
        for stopped in stopping:
            stopped.callback(None)

    def _late(self) -> None:
        self._deadline = None
        self.leave(ConnectionClosed("stopped before every event was acknowledged"))

    def retire(self) -> None:
        """Send no further window, await the acks of those in flight, close (``LJ-15``, ttl)."""
        if self.writer.state in (Writing.IDLE, Writing.FLOWING, Writing.BLOCKED):
            self.writer.drain(self.factory.clock.seconds())
            self.look()

    def hangUp(self) -> None:
        """Let the transport write what waits, and end the connection."""
        if not self._closing and not self._lost:
            self._closing = True
            self._output.close()

    def leave(self, error: MsgprotoError) -> None:
        """End the connection at once; ``error`` is what those get who wait for acks."""
        self._error = self._error or error
        self.transport.abortConnection()  # type: ignore[union-attr]

    # ── IConsumer ───────────────────────────────────────────────────────────────────────────────

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Let a push producer write events; it is paused while the window is full (``LJ-09``)."""
        self._producers.register(producer, streaming)
        self.look()

    def unregisterProducer(self) -> None:
        """The producer has no more events."""
        self._producers.unregister()

    def write(self, data: Event) -> None:
        """Send one event and wait for nothing; what becomes of it is only logged."""
        self.send(data).addErrback(_unheard, self.peer)

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def connectionMade(self) -> None:
        """Begin; a subclass which overrides this calls it first."""
        factory, transport = self.factory, self.transport
        assert transport is not None
        self.peer = peer_name(transport.getPeer())
        self.writer = factory.buildWriter()
        self._producers = ProducerControl()
        self._error = None
        self._lost = False
        self._closing = False
        self._busy = False  # within an event or a hook: what is sent now goes out after it
        self._standing = {}
        self._stopping = []
        self._deadline = None
        self._handshake: Any = None
        self._ttl: Any = None
        self._timer = MachineTimer(factory.clock, self.writer, self._advanced)
        self._output = _Output(self)
        factory.liveConnections.add(self)
        factory.counters["connections_total"] += 1
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
        if ISSLTransport.providedBy(transport):
            seconds = factory.limits["handshake"]
            self._handshake = factory.clock.callLater(seconds, self._handshakeTimedOut)
        else:
            self._establish()

    def handshakeCompleted(self) -> None:
        """TLS stands."""
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        self._establish()

    def _handshakeTimedOut(self) -> None:
        self._handshake = None
        self.leave(TimedOut("no TLS hand-shake in time"))

    def _establish(self) -> None:
        self.established = True
        ttl = self.factory.limits["ttl"]
        if ttl:
            self._ttl = self.factory.clock.callLater(ttl, self._expired)
        with self._gathering():
            self.sessionEstablished()
            for waiting in list(self._standing):
                if waiting in self._standing:
                    del self._standing[waiting]
                    waiting.callback(self)
        self.look()

    def _expired(self) -> None:
        self._ttl = None
        self.expired = True
        self.retire()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End; a subclass which overrides this calls it."""
        self._lost = True
        counters, counted = self.factory.counters, self.writer.counters
        for name in counted.__slots__:
            counters[name] += getattr(counted, name)
        parcels = [
            parcel
            for event in self.writer.lost(self.factory.clock.seconds())
            if type(event) is WorkLost
            for parcel in event.work
        ]
        self._timer.stop()
        self._output.stopProducing()
        for call in (self._handshake, self._ttl, self._deadline):
            if call is not None:
                call.cancel()
        self._handshake = self._ttl = self._deadline = None
        self.factory.liveConnections.discard(self)
        error = self._error or self._lossOf(reason)
        self._error = error
        for waiting in list(self._standing):
            if waiting in self._standing:
                del self._standing[waiting]
                waiting.errback(error)
        if self.owner is not None:
            self.owner.clientLost(self, parcels, error)
        else:
            for parcel in parcels:
                parcel.token.failed(error)
        self._producers.stop()
        if self.established:
            self.sessionLost(reason)
        self._tellStopped()

    def _lossOf(self, reason: Failure) -> MsgprotoError:
        return tls_refusal(reason) or ConnectionClosed(f"the connection was lost: {_why(reason)}")

    # ── octets in, octets out ───────────────────────────────────────────────────────────────────

    def dataReceived(self, data: bytes) -> None:
        """Octets from the transport."""
        if self._error is not None:
            return
        with self._gathering():
            acknowledged = -1  # no sign of life
            for event in self.writer.receive(data, self.factory.clock.seconds()):
                if type(event) is Fault:
                    self._fault(event)
                    continue
                acknowledged = max(acknowledged, 0)
                if type(event) is PartAcknowledged or type(event) is WindowAcknowledged:
                    acknowledged += event.count
                    for parcel in event.parcels:
                        parcel.token.acknowledged(parcel)
            if acknowledged >= 0 and self.owner is not None:
                self.owner.clientProgressed(self, acknowledged)
        self.look()

    @contextmanager
    def _gathering(self) -> Iterator[None]:
        """What is sent within the block goes out after it, in one window."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def look(self) -> None:
        """Something has changed: take more events in, write what may be written, set timers."""
        if self._busy or self._lost or self._error is not None or not self.established:
            return
        writer, owner = self.writer, self.owner
        now = self.factory.clock.seconds()
        with self._gathering():
            self._producers.look(writer.full)  # what it sends now shares the next window
            if owner is not None:
                owner.clientWants(self)
            while writer.flush(now) and owner is not None:
                owner.clientWants(self)
        self._producers.look(writer.full)
        octets = writer.outputs()
        if octets:
            self.transport.write(octets)  # type: ignore[union-attr]
        self._timer.look()
        stopped = bool(self._stopping) and not writer.unacknowledged
        if writer.finished or stopped:
            self.hangUp()

    def _advanced(self, events: list[WriterEvent]) -> None:
        """The machine's deadline has come."""
        for event in events:
            if type(event) is Fault and self._error is None:
                self._fault(event)

    def _fault(self, fault: Fault) -> None:
        """The reader broke the protocol or fell silent: one line, a counter, and the end."""
        self.factory.counters["faults"] += 1
        self.factory.counters[f"fault:{fault.reason}"] += 1
        log.warn(
            "{peer}: left: {text} ({octets})",
            peer=self.peer,
            text=shown(fault.text)[1:-1],
            octets=fault.octets.hex(" ") or "no octets",
            reason=fault.reason,
        )
        kind = TimedOut if fault.reason == "timeout" else ProtocolViolation
        self.leave(kind(fault.text))

    def _withdraw(self, parcel: Parcel) -> None:
        if self.writer.withdraw(parcel):
            self.look()


def _why(reason: Failure) -> str:
    return " ".join(reason.getErrorMessage().split()) or "no reason given"


def _unheard(failure: Failure, peer: str) -> None:
    log.warn("{peer}: an event was not sent: {text}", peer=peer, text=failure.getErrorMessage())


class LumberjackClientFactory(ClientFactory):
    """Builds a :class:`LumberjackClient` for each connection to a reader.

    Attributes:
        limits: the limits in force.
        counters: plain integers by name, for metrics; faults stand under ``fault:REASON``.
        liveConnections: the protocols which are connected now.
    """

    protocol = LumberjackClient  # type: ignore[assignment]
    noisy = False

    LIMITS: ClassVar[tuple[Limit, ...]] = CLIENT_LIMITS

    def __init__(
        self,
        *,
        version: int = 2,
        window: int = WINDOW_DEFAULT,
        compress: int = COMPRESS_DEFAULT,
        pipelining: int = 1,
        limits: Mapping[str, object] | Limits | None = None,
        clock: Any = None,
    ) -> None:
        """Make a factory; the arguments are those of :class:`~.writer.Writer`.

        ``limits``: changes to the defaults by name.  ``clock``: anything with ``seconds()`` and
        ``callLater()``; the global reactor if None.

        Raises ConfigurationError for a value which makes no sense.
        """
        if clock is None:
            from twisted.internet import reactor as clock
        self.limits = limits if isinstance(limits, Limits) else self.defaultLimits(limits or {})
        self.clock = clock
        self.counters: Counter[str] = Counter()
        self.liveConnections: set[LumberjackClient] = set()
        self._settings: dict[str, int] = {
            "version": version,
            "window": window,
            "compress": compress,
            "pipelining": pipelining,
        }
        try:
            self.capacity = self.buildWriter().capacity
            self.packer = Packer(self.limits, version)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self.window = window

    @classmethod
    def defaultLimits(cls, changes: Mapping[str, object]) -> Limits:
        """The limits of a client, with ``changes``."""
        return Limits.of(cls.LIMITS).replace(changes)

    def buildWriter(self) -> Writer:
        """The machine for a new connection."""
        return Writer(self.limits, **self._settings)

    def buildProtocol(  # type: ignore[override]
        self, addr: IAddress | None
    ) -> LumberjackClient | None:
        """A protocol for a new connection."""
        built: Any = super().buildProtocol(addr)
        return built  # type: ignore[no-any-return]
