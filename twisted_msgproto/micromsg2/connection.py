"""What both sides of MicroMsg2 do on Twisted: octets, timers, back-pressure, hooks, the sink.

The machine decides everything about the protocol; this moves what it says, and :mod:`.sending` has
the verbs.  A subclass overrides hooks: ``sessionEstablished``, ``sessionLost``, ``messageReceived``
or ``batchReceived``, ``errorReceived``, ``commandReceived``, ``extensionReceived``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted.internet.defer import Deferred, DeferredList, fail, maybeDeferred, succeed
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..core.errors import ConnectionClosed, Fault, shown
from ..core.message import MessageBatch
from ..net.backpressure import OutputGuard, ReadControl
from ..net.ingest import IngestConnection, IngestHooks
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
from .sending import Sending

if TYPE_CHECKING:
    from .protocol import MicroMsg2Factory

PROTOCOL: Final = "micromsg2"

READ_OCTETS: Final = 256 << 10
"""What one read takes at the most: each costs a turn, and senders send in bulk."""


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
class Arrived:
    """Messages of one read, on their way: stored first, then published, then acknowledged."""

    event: MessagesReceived
    batch: MessageBatch
    refused: set[int] = field(default_factory=set)
    stored: bool = False


class MicroMsg2Protocol(IngestConnection, Sending):
    """One connection, whichever side.

    Attributes:
        machine: its ``snapshot()`` tells where the connection stands.
        session: the public name of this session.
        peer: the peer's transport address as text.
        clientId: what the peer announced in its handshake; None before.
    """

    log: ClassVar[Logger] = Logger(namespace="twisted_msgproto.micromsg2")
    factory: MicroMsg2Factory
    readOctets = READ_OCTETS

    machine: Session

    # ── hooks for subclasses; batchReceived and messageReceived come from IngestHooks ───────────

    def sessionEstablished(self) -> None:
        """The handshake is through: messages may be sent, and may come."""

    def errorReceived(self, code: str, text: str) -> None:
        """The peer sent an ERROR; it closes nothing by itself (``MM-33``).  Logged by default."""
        self.log.info("{peer}: said {text}", peer=self.peer, text=shown(text))

    def commandReceived(self, name: str, parameters: Mapping[str, str]) -> None:
        """A command came which one of the agreed extensions brings along (``MM-15``)."""

    def extensionReceived(self, name: str, content: Any) -> None:
        """A frame of the extension ``name`` came, and this is what it says (``MM-16``)."""

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def makeMachine(self) -> Session:
        """The machine of this side."""
        raise NotImplementedError

    def connectionMade(self) -> None:
        """Begin; a subclass which overrides this calls it first."""
        super().connectionMade()
        factory, transport = self.factory, self.transport
        self.machine = self.makeMachine()
        self._gone = False  # it is closed
        self._leaving: list[Deferred[None]] = []  # who waits for that
        self._draining = False
        self._reading = False  # dataReceived is at work
        self._outputPaused = False
        self._beginSending()
        self._lastError: ErrorReceived | None = None
        self._arrived: deque[Arrived] = deque()  # oldest first
        self._offered: Deferred[None] | None = None  # the newest batch which waits for its hooks
        self._timer = MachineTimer(factory.clock, self.machine, self._advanced)
        self._guard = OutputGuard(
            transport,
            self.guardedControl(),
            factory.clock,
            factory.limits["unread-seconds"],
            self._unread,
            self._outputChanged,
        )
        self.machine.connection_made(factory.clock.seconds())
        self._write()

    def guardedControl(self) -> ReadControl:
        """Whose reading pauses while the peer does not read our output."""
        return self._control

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End; a subclass which overrides this calls it."""
        self._ended = True
        self.machine.lost(self.factory.clock.seconds())
        self._timer.stop()
        self._guard.stop()
        self.factory.budget.forget(self._control)
        self._hold(0)
        counters = self.factory.counters
        for name, count in asdict(self.machine.counters).items():
            counters[name] += count
        counters["replaced_texts"] += self.machine.decoder.replaced
        self.factory.connectionClosed(self, reason)
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

    # ── octets in ───────────────────────────────────────────────────────────────────────────────

    def dataReceived(self, data: bytes) -> None:
        """Octets from the transport."""
        if self._ended:
            return
        self._reading = True  # what is settled at once is written with the rest
        try:
            for event in self.machine.receive(data, self.factory.clock.seconds()):
                self._happened(event)
        finally:
            self._reading = False
        self._hold(self.machine.held)
        if self._ended:
            return
        if self._unsent or self._producer is not None:
            self._pump()
        self._write()
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
        self._refused(event)
        self.errorReceived(event.code, event.text)

    def _deliver(self, event: MessagesReceived) -> None:
        factory = self.factory
        count = len(event.sequences)
        factory.counters.settled["events"] += count
        factory.counters.settled["octets"] += event.octets
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
        self._delivery.deliver(batch, self._stored, arrived)

    # ── hooks for what arrived, and the sink ────────────────────────────────────────────────────

    def _hook(self) -> Callable[[MessageBatch], Deferred[Any] | None]:
        return self._hooked

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
            self._closeIfDrained()

    def _notSafe(self, failure: Failure) -> None:
        """A batch will never be safe: no ack for it or for what follows, close (MM-19)."""
        error = failure.value
        assert isinstance(error, _Unsafe)
        self._tellNotSafe(error.failure)
        self.factory.counters["unsafe_batches"] += 1
        self._arrived.clear()
        if not self._ended:
            self.machine.fail(error.sequence)
            self._ended = True
            self._write()
            self._guard.close()

    # ── octets out ──────────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        """Write what the machine has to say, and arm the timer."""
        octets = self.machine.outputs()
        if octets and self.transport is not None:
            self._send(octets)
        self._timer.look()

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

    def _advanced(self, events: list[Event]) -> None:
        """The machine's deadline has come."""
        if not self._ended:
            for event in events:
                self._happened(event)
            self._write()

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

    def drain(self) -> None:
        """Read no more, acknowledge what arrived once it is safe, close."""
        if self._ended:
            return
        self._control.pause("draining")
        self._draining = True
        self.machine.drain(self.factory.clock.seconds())
        self._write()
        self._closeIfDrained()

    def _closeIfDrained(self) -> None:
        if self._draining and not self._ended and self.machine.finished:
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
        self._faulted(fault)
        self._write()
        self._guard.close()


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
