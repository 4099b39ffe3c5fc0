"""What both sides of MicroMsg2 do on Twisted: octets, timers, back-pressure, Deferreds, hooks.

The machine decides everything about the protocol; this moves what it says.  A subclass overrides
hooks: ``sessionEstablished``, ``sessionLost``, ``messageReceived`` or ``batchReceived``,
``errorReceived``, ``commandReceived``, ``extensionReceived``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted.internet.defer import Deferred, DeferredList, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IHalfCloseableProtocol, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from ..core.errors import ConnectionClosed, Fault, LimitExceeded, Refused, shown
from ..core.limits import Limit
from ..core.message import MessageBatch
from ..net.backpressure import OutputGuard, ReadControl
from ..net.factory import peer_name
from ..net.ingest import Delivery, IngestHooks
from ..net.timer import MachineTimer
from .machine import (
    CommandReceived,
    ErrorReceived,
    Event,
    ExtensionReceived,
    MessagesAcknowledged,
    MessagesReceived,
    Session,
    SessionEstablished,
)
from .wire import NO_PROPERTIES, Writable, encode_address, write_properties

if TYPE_CHECKING:
    from .protocol import MicroMsg2Factory

PROTOCOL: Final = "micromsg2"

READ_OCTETS: Final = 256 << 10
"""What one read takes at the most: each costs a turn, and senders send in bulk."""

LIMITS: Final = (
    Limit("unsent-messages", 100_000, "messages", "which wait for room in the window", 1),
    Limit("unsent-octets", 64 << 20, "octets", "which wait for room in the window", 1),
)
"""What a connection bounds of its own sending."""

SETTLED_BY_REFUSAL: Final = frozenset({"refused", "bad-payload"})
"""Errors of the peer which name one message of ours: it will not be delivered (MM-19, MM-28)."""

_NOTHING: Final[Mapping[str, str]] = {}


class MessageRefused(Exception):
    """Raise this (or fail with it) in ``messageReceived`` to refuse a message for good.

    The peer is told ``refused: <sequence>: text`` and the message counts as settled (``MM-19``): it
    goes neither to the sink nor to subscribers.  Raised by ``batchReceived`` it refuses the batch.
    """


class _Unsafe(Exception):
    """A message will never be safe; ``sequence`` is what to tell the peer."""

    def __init__(self, sequence: int, failure: Failure) -> None:
        super().__init__(sequence)
        self.sequence = sequence
        self.failure = failure


@dataclass(slots=True, eq=False)
class _Sent:
    """Messages of one ``send``: its Deferred fires when ``remaining`` is 0."""

    address: bytes
    payloads: deque[bytes]
    notes: Mapping[str, str]
    fired: Deferred[None]
    remaining: int
    over: bool = False  # the Deferred has fired, or was cancelled

    def done(self, count: int) -> None:
        """``count`` more are acknowledged, or written where nobody acknowledges."""
        self.remaining -= count
        if not self.remaining and not self.over:
            self.over = True
            self.fired.callback(None)

    def fail(self, error: Exception) -> None:
        """It will not be delivered."""
        if not self.over:
            self.over = True
            self.fired.errback(Failure(error))


@dataclass(slots=True, eq=False)
class Arrived:
    """Messages of one read, on their way: stored first, then published, then acknowledged."""

    event: MessagesReceived
    batch: MessageBatch
    refused: set[int] = field(default_factory=set)
    stored: bool = False


@implementer(IHalfCloseableProtocol)
class MicroMsg2Protocol(IngestHooks, Protocol):
    """One connection, whichever side.

    Attributes:
        machine: its ``snapshot()`` tells where the connection stands.
        session: the public name of this session.
        peer: the peer's transport address as text.
        clientId: what the peer announced in its handshake; None before.
    """

    log: ClassVar[Logger] = Logger(namespace="twisted_msgproto.micromsg2")
    factory: MicroMsg2Factory

    machine: Session
    session: str
    peer: str
    clientId: str | None = None

    _producer: Any = None
    _producerPaused = False

    # ── hooks for subclasses; batchReceived and messageReceived come from IngestHooks ───────────

    def sessionEstablished(self) -> None:
        """The handshake is through: messages may be sent, and may come."""

    def sessionLost(self, reason: Failure) -> None:
        """The session has ended; ``reason`` is what Twisted gave to ``connectionLost``."""

    def errorReceived(self, code: str, text: str) -> None:
        """The peer sent an ERROR; it closes nothing by itself (``MM-33``).  Logged by default."""
        self.log.info("{peer}: said {text}", peer=self.peer, text=shown(text))

    def commandReceived(self, name: str, parameters: Mapping[str, str]) -> None:
        """A command came which one of the agreed extensions brings along (``MM-15``)."""

    def extensionReceived(self, name: str, content: Any) -> None:
        """A frame of the extension ``name`` came, and this is what it says (``MM-16``)."""

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        destination: str,
        payload: Any,
        properties: Mapping[str, Writable] = NO_PROPERTIES,
        typeName: str | None = None,
        notes: Mapping[str, str] = _NOTHING,
    ) -> Deferred[None]:
        """Send one message; fires when the peer has acknowledged it (``MM-12``, ``MM-19``).

        Without ``ack`` or ``batch-ack`` it fires once the message is written.  ``payload`` is
        octets; with ``json`` agreed anything else is encoded (``MM-28``).  ``typeName`` is for
        ``dotnet`` (``MM-29``), ``notes`` for vendors' extensions, by name.

        Fails with Refused when the peer refuses this message, ConnectionClosed when the connection
        ends first, LimitExceeded when too much waits already or the payload is too large.
        """
        return self.sendMany(destination, (payload,), properties, typeName, notes)

    def sendMany(
        self,
        destination: str,
        payloads: Iterable[Any],
        properties: Mapping[str, Writable] = NO_PROPERTIES,
        typeName: str | None = None,
        notes: Mapping[str, str] = _NOTHING,
    ) -> Deferred[None]:
        """Send many messages to one destination; fires when all of them are acknowledged.

        Fails as :meth:`send` does, with the first refusal if some are refused.
        """
        try:
            address = encode_address(destination, write_properties(properties))
            encoded = deque(map(self._encoded, payloads))
            self._checkUnsent(encoded)
        except Exception:
            return fail()
        if typeName is not None:
            notes = {**notes, "dotnet": typeName}
        fired: Deferred[None] = Deferred(lambda _: self._cancelled(sent))
        sent = _Sent(address, encoded, notes, fired, len(encoded))
        if not encoded:
            sent.done(0)
            return fired
        self._unsent.append(sent)
        self._unsentMessages += len(encoded)
        self._unsentOctets += sum(map(len, encoded))
        self._pump()
        self._write()
        return fired

    def _cancelled(self, sent: _Sent) -> None:
        """Nobody waits for this any more: what is in flight stays, the rest is not sent."""
        sent.over = True
        if sent in self._unsent:
            self._unsent.remove(sent)
            self._unsentMessages -= len(sent.payloads)
            self._unsentOctets -= sum(map(len, sent.payloads))

    def _encoded(self, payload: Any) -> bytes:
        if isinstance(payload, bytes | bytearray | memoryview):
            return bytes(payload)
        for extension in self.machine.extensions:
            encoded = extension.encode(payload)
            if encoded is not None:
                return encoded
        raise TypeError(f"a payload is octets, not {type(payload).__name__}")

    def _checkUnsent(self, payloads: Iterable[bytes]) -> None:
        if not self.machine.established or self._ended:
            raise ConnectionClosed("there is no session to send in")
        limits = self.machine.limits
        sizes = list(map(len, payloads))
        if max(sizes, default=0) > limits["payload-octets"]:
            raise LimitExceeded(f"payload-octets allows {limits.integer('payload-octets')}")
        room = self.machine.room
        if room is None or len(sizes) <= room - self._unsentMessages:
            return  # it does not wait
        if self._unsentMessages + len(sizes) > limits["unsent-messages"]:
            raise LimitExceeded(f"unsent-messages allows {limits.integer('unsent-messages')}")
        if self._unsentOctets + sum(sizes) > limits["unsent-octets"]:
            raise LimitExceeded(f"unsent-octets allows {limits.integer('unsent-octets')}")

    def sendCommand(self, name: str, **parameters: str) -> None:
        """Send a COMMAND (``MM-15``); ConnectionClosed outside a session."""
        self._inSession()
        self.machine.send_command(name, parameters)
        self._write()

    def sendExtension(self, name: str, payload: bytes) -> None:
        """Send a frame of an agreed extension (``MM-16``); ConnectionClosed outside a session."""
        self._inSession()
        self.machine.send_extension(name, payload)
        self._write()

    def sendError(self, code: str, text: str) -> None:
        """Send an ERROR which ends nothing (``MM-33``); ConnectionClosed outside a session."""
        self._inSession()
        self.machine.send_error(code, text)
        self._write()

    def _inSession(self) -> None:
        if not self.machine.established or self._ended:
            raise ConnectionClosed("there is no session to send in")

    def decoded(self, body: bytes) -> Any:
        """A received body as the agreed extensions read it (``MM-28``); octets without them."""
        for extension in self.machine.extensions:
            value = extension.decode(body)
            if value is not None:
                return value
        return body

    # ── a producer which sends through this connection ──────────────────────────────────────────

    def registerProducer(self, producer: Any, streaming: bool = True) -> None:
        """Pause ``producer`` (an IPushProducer) while what it sent waits for room (``MM-19``).

        It is paused when messages wait for the window or for the transport, and resumed when none
        does.  Raises RuntimeError for a second one, and for a pull producer.
        """
        if self._producer is not None or not streaming:
            raise RuntimeError("one push producer at a time")
        self._producer = producer
        self._lookProducer()

    def unregisterProducer(self) -> None:
        """The producer has no more to send."""
        self._producer = None

    def _lookProducer(self) -> None:
        blocked = self._outputPaused or bool(self._unsent) or self.machine.room == 0
        if self._producer is not None and blocked is not self._producerPaused:
            self._producerPaused = blocked
            if blocked:
                self._producer.pauseProducing()
            else:
                self._producer.resumeProducing()

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def makeMachine(self) -> Session:
        """The machine of this side."""
        raise NotImplementedError

    def connectionMade(self) -> None:
        """Begin; a subclass which overrides this calls it first."""
        factory, transport = self.factory, self.transport
        assert transport is not None
        address = transport.getPeer()
        self.peer = peer_name(address)
        self.session = factory.sessionNames.next()
        self.machine = self.makeMachine()
        self._established = False
        self._ended = False  # we have asked the transport to close, or it is closed
        self._gone = False  # it is closed
        self._leaving: list[Deferred[None]] = []  # who waits for that
        self._draining = False
        self._reading = False  # dataReceived is at work
        self._outputPaused = False
        self._lastError: ErrorReceived | None = None
        self._unsent: deque[_Sent] = deque()  # sends of which messages wait for room
        self._unsentMessages = 0
        self._unsentOctets = 0
        self._inFlight: dict[int, _Sent] = {}  # number → whose message it is
        self._arrived: deque[Arrived] = deque()  # oldest first
        self._offered: Deferred[None] | None = None  # the newest batch which waits for its hooks
        self._control = ReadControl(transport, self._readingChanged)
        self._delivery = Delivery(
            self._hooked,
            self._control,
            factory.budget,
            factory.limits.integer("unsafe-octets"),
            self._notSafe,
        )
        self._timer = MachineTimer(factory.clock, self._tick)
        self._guard = OutputGuard(
            transport,
            self.guardedControl(),
            factory.clock,
            factory.limits["unread-seconds"],
            self._abort,
            self._outputChanged,
        )
        factory.connectionOpened(self, str(getattr(address, "host", "")))
        transport.bufferSize = READ_OCTETS  # type: ignore[attr-defined]
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self._write()
        self._timer.look()

    def guardedControl(self) -> ReadControl:
        """Whose reading pauses while the peer does not read our output."""
        return self._control

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End; a subclass which overrides this calls it."""
        self._ended = True
        self.machine.connection_lost()
        self._timer.stop()
        self._guard.stop()
        self.factory.budget.forget(self._control)
        counters = self.factory.counters
        for name, count in asdict(self.machine.counters).items():
            counters[name] += count
        counters["replaced_texts"] += self.machine.decoder.replaced
        self.factory.connectionClosed(self)
        self._failAll(self._closedError(reason))
        if self._established:
            self._established = False
            self.sessionLost(reason)
        self._gone = True
        leaving, self._leaving = self._leaving, []
        for waiting in leaving:
            waiting.callback(None)

    def _closedError(self, reason: Failure) -> Exception:
        fault = self.machine.fault
        if self._lastError is not None:
            return ConnectionClosed(f"the peer said {shown(self._lastError.text)} and it ended")
        if fault is not None:
            return ConnectionClosed(f"the connection ended: {fault.text}")
        return ConnectionClosed(f"the connection ended: {reason.getErrorMessage()}")

    def _failAll(self, error: Exception) -> None:
        pending = {id(sent): sent for sent in (*self._inFlight.values(), *self._unsent)}
        self._inFlight.clear()
        self._unsent.clear()
        self._unsentMessages = self._unsentOctets = 0
        for sent in pending.values():
            sent.fail(error)

    # ── octets in ───────────────────────────────────────────────────────────────────────────────

    def dataReceived(self, data: bytes) -> None:
        """Octets from the transport."""
        if self._ended:
            return
        self._reading = True  # what is settled at once is written with the rest
        try:
            for event in self.machine.receive_data(data, self.factory.clock.seconds()):
                self._happened(event)
        finally:
            self._reading = False
        if self._ended:
            return
        if self._unsent or self._producer is not None:
            self._pump()
        self._write()
        self._timer.look()
        self._closeIfDrained()

    def _happened(self, event: Event) -> None:
        if type(event) is MessagesReceived:
            self._deliver(event)
        elif type(event) is MessagesAcknowledged:
            self._acknowledged(event.sequences)
        elif type(event) is CommandReceived:
            self.commandHappened(event.name, event.parameters)
        elif type(event) is ExtensionReceived:
            self.extensionReceived(event.name, event.content)
        elif type(event) is ErrorReceived:
            self._errorReceived(event)
        elif type(event) is SessionEstablished:
            self.clientId = event.identity
            self._established = True
            self.factory.counters["sessions"] += 1
            self.sessionEstablished()
        elif type(event) is Fault:
            self._close(event)

    def commandHappened(self, name: str, parameters: Mapping[str, str]) -> None:
        """A known command came; the server gives those of ``pub-sub`` to its broker."""
        self.commandReceived(name, parameters)

    def _errorReceived(self, event: ErrorReceived) -> None:
        self._lastError = event
        self.factory.counters["errors_received"] += 1
        if event.code in SETTLED_BY_REFUSAL:
            number = event.text.partition(":")[2].partition(":")[0].strip()
            if number.isascii() and number.isdigit() and len(number) < 6:
                sent = self._inFlight.get(int(number))
                if sent is not None:
                    sent.fail(Refused(f"the peer said {shown(event.text)}", event.code))
        self.errorReceived(event.code, event.text)

    def _deliver(self, event: MessagesReceived) -> None:
        factory = self.factory
        count = len(event.sequences)
        factory.counters["events"] += count
        factory.counters["octets"] += event.octets
        batch = MessageBatch(
            PROTOCOL,
            "message",
            factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            count,
            event.octets,
            message_id=event.sequences,
            destination=event.destinations,
            fields=event.fields,
            body=event.bodies,
        )
        arrived = Arrived(event, batch)
        self._arrived.append(arrived)
        self._delivery.deliver(batch, lambda: self._stored(arrived))

    # ── hooks for what arrived, and the sink ────────────────────────────────────────────────────

    def _hooked(self, batch: MessageBatch) -> Deferred[Any] | None:
        arrived = self._arrived[-1]
        try:
            result = self.batchReceived(batch)
        except Exception:
            result = fail()
        if result is None:
            return None
        return result.addErrback(self._hookFailed, arrived)

    def _hookFailed(self, failure: Failure, arrived: Arrived) -> Failure | None:
        """A refused batch is settled; any other failure ends the session (MM-19)."""
        sequences = arrived.event.sequences
        if failure.check(MessageRefused):
            for sequence in sequences:
                self._refuse(arrived, sequence, failure)
            return None
        if failure.check(_Unsafe):
            return failure
        return Failure(_Unsafe(sequences[0], failure))

    def _refuse(self, arrived: Arrived, sequence: int, failure: Failure) -> None:
        arrived.refused.add(sequence)
        self.machine.refuse(sequence, failure.getErrorMessage())

    def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
        """Messages of one read arrived.

        By default each goes to :meth:`messageReceived`, if a subclass overrides that, and when all
        have been dealt with the batch goes to the factory's sink, without those which were refused.
        The acknowledgement follows the returned Deferred (None: at once).  A failure with
        MessageRefused settles the messages, any other ends the session without their ack (MM-19).
        """
        sink = self.factory.sink
        if type(self).messageReceived is IngestHooks.messageReceived:
            return None if sink is None else sink.put(batch)
        return Deferred.fromCoroutine(self._offer(batch, self._whence(batch)))

    def _whence(self, batch: MessageBatch) -> Arrived:
        """Where ``batch`` belongs, also if a subclass hands it on later."""
        return next(arrived for arrived in reversed(self._arrived) if arrived.batch is batch)

    async def _offer(self, batch: MessageBatch, arrived: Arrived) -> None:
        before, offered = self._offered, Deferred[None]()
        self._offered = offered
        stored: Deferred[None] | None = None
        try:
            results = [maybeDeferred(self.messageReceived, message) for message in batch]
            # Deferreds which have fired already are answered at once, without waiting.
            answers: Any = await DeferredList(results, consumeErrors=True)
            if before is not None:
                await before  # the sink gets the batches of a session in order
            kept = []
            for row, (good, answer) in enumerate(answers):
                if good:
                    kept.append(row)
                    continue
                sequence = arrived.event.sequences[row]
                if not answer.check(MessageRefused):
                    raise _Unsafe(sequence, answer)
                self._refuse(arrived, sequence, answer)
            if kept and self.factory.sink is not None:
                stored = self.factory.sink.put(_rows(batch, kept))
        finally:
            if self._offered is offered:
                self._offered = None
            offered.callback(None)
        if stored is not None:
            await stored

    def _stored(self, arrived: Arrived) -> None:
        """This batch is in the sink: publish what is in order, then acknowledge."""
        arrived.stored = True
        while self._arrived and self._arrived[0].stored:
            self.publish(self._arrived.popleft())

    def publish(self, arrived: Arrived) -> None:
        """Everything but the acknowledgement is done; the server has a broker to tell."""
        self.settled(arrived)

    def settled(self, arrived: Arrived) -> None:
        """Nothing stands in the way of the acknowledgement any more."""
        if self._ended:
            return
        self.machine.made_safe(arrived.event.place, self.factory.clock.seconds())
        if not self._reading:
            self._write()
            self._timer.look()
            self._closeIfDrained()

    def _notSafe(self, failure: Failure) -> None:
        """A batch will never be safe: no ack for it or for what follows, close (MM-19)."""
        error = failure.value
        assert isinstance(error, _Unsafe)
        self.log.failure("{peer}: not acknowledged", error.failure, peer=self.peer)
        self.factory.counters["unsafe_batches"] += 1
        self._arrived.clear()
        if not self._ended:
            self.machine.fail(error.sequence)
            self._ended = True
            self._write()
            self._guard.close()

    # ── octets out ──────────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Hand waiting messages to the machine, as far as there is room."""
        unsent, machine = self._unsent, self.machine
        while unsent and not self._outputPaused and not self._ended:
            sent, room = unsent[0], machine.room
            if room == 0:
                break
            count = len(sent.payloads) if room is None else min(room, len(sent.payloads))
            payloads = [sent.payloads.popleft() for _ in range(count)]
            self._unsentMessages -= count
            self._unsentOctets -= sum(map(len, payloads))
            if not sent.payloads:
                unsent.popleft()
            numbers = machine.send_run(sent.address, payloads, sent.notes)
            if room is None:
                self._write()
                sent.done(count)
            else:
                self._inFlight.update(dict.fromkeys(numbers, sent))
        self._lookProducer()

    def _acknowledged(self, sequences: list[int]) -> None:
        flights = self._inFlight
        for sequence in sequences:
            sent = flights.pop(sequence, None)
            if sent is not None:
                sent.done(1)

    def _write(self) -> None:
        octets = self.machine.data_to_send()
        if octets and self.transport is not None:
            self.transport.write(octets)

    def _outputChanged(self, paused: bool) -> None:
        """The transport is full, or has room again."""
        self._outputPaused = paused
        if not paused and not self._ended:
            self._pump()
            self._write()
            self.roomAgain()
        self._lookProducer()

    def roomAgain(self) -> None:
        """The transport takes output again; the server's broker may have some."""

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def _tick(self, now: float) -> float | None:
        if self._ended:
            return None
        deadline = self.machine.tick(now)
        if self.machine.fault is not None:
            self._close(self.machine.fault)
            return None
        self._write()
        return deadline

    def _readingChanged(self, paused: bool) -> None:
        now = self.factory.clock.seconds()
        if paused:
            self.machine.paused(now)
        else:
            self.machine.resumed(now)
            self._timer.look()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def readConnectionLost(self) -> None:
        """The peer has shut its sending side: acknowledge what is whole, then close."""
        self.drain()

    def writeConnectionLost(self) -> None:
        """Nobody reads what we write any more."""
        self._abort()

    def drain(self) -> None:
        """Read no more, acknowledge what arrived once it is safe, close."""
        if self._ended:
            return
        self._control.pause("draining")
        self._draining = True
        self.machine.drain()
        self._write()
        self._closeIfDrained()

    def _closeIfDrained(self) -> None:
        if self._draining and not self._ended and not self.machine.unsafe:
            self._ended = True
            self._guard.close()

    def close(self) -> Deferred[None]:
        """Read no more, acknowledge what came as soon as it is safe, then end the connection.

        Fires when the connection is gone.
        """
        self.drain()
        return self._whenGone()

    def leave(self) -> Deferred[None]:
        """End the connection now: what is not safe yet is not acknowledged, the peer keeps it.

        What was written before still goes out.  Fires when the connection is gone.
        """
        if not self._ended:
            self._ended = True
            self._guard.close()
        return self._whenGone()

    def _whenGone(self) -> Deferred[None]:
        if self._gone:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._leaving.remove)
        self._leaving.append(waiting)
        return waiting

    def _close(self, fault: Fault) -> None:
        """The session is broken: one line, a counter, the ERROR is written, then close (MM-33)."""
        if self._ended:
            return
        self._ended = True
        self.factory.countFault(fault.reason)
        self.log.warn(
            "{peer}: closed: {text} (starts with {octets})",
            peer=self.peer,
            text=shown(fault.text)[1:-1],
            octets=fault.octets.hex(" ") or "nothing",
            reason=fault.reason,
        )
        self._write()
        self._guard.close()

    def _abort(self) -> None:
        self._ended = True
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]


def _rows(batch: MessageBatch, kept: list[int]) -> MessageBatch:
    """``batch``, or a copy with only the rows ``kept``."""
    if len(kept) == batch.count:
        return batch
    columns: dict[str, Any] = {
        name: [column[row] for row in kept]
        for name in MessageBatch.COLUMNS
        if (column := getattr(batch, name)) is not None
    }
    return MessageBatch(
        batch.protocol,
        batch.kind,
        batch.received_at,
        batch.peer,
        batch.session,
        batch.client_id,
        len(kept),
        batch.octets,
        **columns,
    )


__all__ = ["Arrived", "MessageRefused", "MicroMsg2Protocol"]
