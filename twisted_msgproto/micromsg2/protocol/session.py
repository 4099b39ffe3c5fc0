"""Both sides of MicroMsg2 on Twisted: what an application sees, and the link behind it.

The machine decides everything about the protocol.  :class:`MicroMsg2Link` follows its events, and
keeps messages that wait for space in the window; :class:`MicroMsg2Session` has hooks and verbs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from twisted.internet.defer import Deferred, DeferredList, fail, maybeDeferred, succeed
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, Fault, Refused, shown
from ...core.limits import Limit
from ...core.message import Message, MessageBatch
from ...net.authorising import PUBLISH, refusal_text
from ...net.counters import CounterPaths
from ...net.deferreds import Ticket, awaited, fail_all
from ...net.factory import MsgprotoServerFactory, expect
from ...net.logs import SteadyLogger
from ...net.session import Session, SessionHooks, SessionLink, hook, put_into
from .. import application, terms
from ..machine.extensions import Extension, Proposal
from ..machine.sides import Session as MachineSession
from ..terms import (
    ACK_TIMEOUT,
    BAD_PAYLOAD,
    HANDSHAKE_TIMEOUT,
    IDLE_TIMEOUT,
    REFUSED,
    CommandReceived,
    Counters,
    ErrorReceived,
    ExtensionReceived,
    MessagesAcknowledged,
    MessagesReceived,
    SessionEstablished,
)
from ..wire.texts import NO_PROPERTIES, Writable, read_count

PROTOCOL: Final = "micromsg2"

READ_BYTES: Final = 128 << 10
"""One read returns at most this many bytes: each message of it may be refused to who sends it."""

ERROR_CHARACTERS: Final = 200
"""This much of the last ERROR is remembered, and as much of its code: no more of it is shown."""

LIMITS: Final = (
    *terms.LIMITS,
    Limit("unsent-messages", 100_000, "messages", "that wait for space in the window", 1),
    Limit("unsent-bytes", 64 << 20, "bytes", "that wait for space in the window", 1),
    *application.LIMITS,
    Limit("ack-wait", 300.0, "s", "a consumer that acks nothing for this long is left; 0 = off"),
    Limit("withheld-bytes", 64 << 20, "bytes", "of all senders to full broker queues", 1),
    Limit(
        "withheld-seconds",
        30.0,
        "s",
        "for a sender to full queues to acknowledge what it has of them; 0 = off",
    ),
)

_NOTHING: Final[Mapping[str, str]] = {}

Listener = Callable[[Message], Any]


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
    """Follows the messages of one read: stored first, then published, then acknowledged."""

    event: MessagesReceived
    batch: MessageBatch
    refused: set[int] = field(default_factory=set)
    stored: bool = False
    envelopes: list[bytes | None] | None = None  # for queues of a broker


@dataclass(slots=True, eq=False)
class Sent:
    """The messages of one ``send``: its Deferred fires when ``remaining`` is 0."""

    address: bytes
    payloads: deque[bytes]
    notes: Mapping[str, str]
    ticket: Ticket[None]
    remaining: int

    def done(self, count: int) -> None:
        self.remaining -= count
        if not self.remaining:
            self.ticket.done(None)


_NOTHING_UNSENT: Final[deque[Sent]] = deque(maxlen=0)
"""All connections that never had to wait share this: an empty deque weighs 760 bytes."""


def refused_number(event: ErrorReceived) -> int | None:
    """Return which message an ERROR settles as undelivered (``MM-19``, ``MM-28``), or None."""
    if event.code not in (REFUSED, BAD_PAYLOAD):
        return None
    _, _, said = event.text.partition(":")
    return read_count(said.partition(":")[0].strip())


def expect_proposal(proposal: Proposal | None) -> None:
    expect("proposal", proposal, "a Proposal", isinstance(proposal, Proposal | None))


class MicroMsg2Factory(MsgprotoServerFactory):
    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = LIMITS

    proposal: Proposal
    broker: application.Broker | None = None


class MicroMsg2Link(SessionLink):
    log: ClassVar[Logger] = SteadyLogger(namespace="twisted_msgproto.micromsg2")
    factory: MicroMsg2Factory
    machine: MachineSession
    counted = CounterPaths.of(Counters, replaced_texts="machine.decoder.replaced")
    answerEvents = frozenset({MessagesAcknowledged, ErrorReceived})
    timeFaults = frozenset({HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, ACK_TIMEOUT})
    readBytes = READ_BYTES

    # What most connections never change stands here: an idle one weighs less.
    _lastError: ErrorReceived | None = None
    _errorAt = 0.0  # when it came
    _offered: Deferred[None] | None = None  # the newest batch that waits for its hooks
    _unsent: deque[Sent] = _NOTHING_UNSENT  # sends of which messages wait for room
    _unsentMessages = 0
    _unsentBytes = 0
    _outputPaused = False
    _ackSoon: Any = None  # the call that acknowledges what is dealt with

    acksEach: ClassVar[bool] = False
    """No broker has a word about messages before they are acknowledged."""

    def __init__(self, protocol: MicroMsg2Session) -> None:
        super().__init__(protocol)
        self._arrived: list[Arrived] = []  # oldest first
        self._inFlight: dict[int, Sent] = {}  # number → whose message it is

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        error = self._lastError if self._errorAt == self.lastHeard else None  # its last words
        if self.closeReason is None and error is not None:
            text = f"the peer said {shown(error.text)} and it ended"
            self.setCloseReason(ConnectionClosed(text))
            if not self.closing:
                self.peerSaid = self.closeReason
        super().connectionLost(reason)

    # ── what the peer says ──────────────────────────────────────────────────────────────────────

    def _begun(self, event: SessionEstablished) -> None:
        self.clientId = event.identity
        self.factory.counters["sessions"] += 1
        self.establish()

    def _commanded(self, event: CommandReceived) -> None:
        self._guarded(self.protocol.commandReceived, event.name, event.parameters)

    def _extended(self, event: ExtensionReceived) -> None:
        self._guarded(self.protocol.extensionReceived, event.name, event.content)

    def _toldError(self, event: ErrorReceived) -> None:
        # As little as is ever shown: a connection may stand for long behind it.
        code, text = event.code[:ERROR_CHARACTERS], event.text[: ERROR_CHARACTERS + 1]
        self._lastError, self._errorAt = ErrorReceived(code, text), self.lastHeard
        self.factory.counters["errors_received"] += 1
        self._refused(event)
        self._guarded(self.protocol.errorReceived, event.code, event.text)

    def _arrive(self, event: MessagesReceived) -> None:
        if self.factory.authoriser is not None:
            self._authorise(event)
        batch = MessageBatch(  # by place: names cost half as much again
            PROTOCOL,
            "message",
            self.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            len(event.sequences),
            event.nbytes,
            event.sequences,
            event.destinations,
            event.fields,
            event.bodies,
            weight=event.weight,
        )
        arrived = Arrived(event, batch)
        self._address(arrived)
        self._arrived.append(arrived)
        if batch.count:
            self.deliver(batch, arrived)
        else:  # all of it was refused
            self._safe(arrived)

    def _address(self, arrived: Arrived) -> None:
        """A server gives envelopes to messages for queues."""

    def _authorise(self, event: MessagesReceived) -> None:
        """Remove messages that the peer may not publish: they count as settled (``MM-19``)."""
        destinations = event.destinations
        refused = {
            name: refusal_text(PUBLISH, name)
            for name, count in Counter(destinations).items()
            if self.refuses(PUBLISH, name, count)
        }
        if not refused:
            return
        kept: list[int] = []
        for row, name in enumerate(destinations):
            if name not in refused:
                kept.append(row)
            else:
                self.machine.refuse(event.sequences[row], refused[name])
        event.keep(kept)
        event.nbytes = sum(map(len, event.bodies)) + sum(map(len, event.texts))

    def _acknowledged(self, event: MessagesAcknowledged) -> None:
        flights = self._inFlight
        for sequence in event.sequences:
            sent = flights.pop(sequence, None)
            if sent is not None:
                sent.done(1)
        if self._unsent:
            self._pump()
        self._lookClosing()

    def _refused(self, event: ErrorReceived) -> None:
        number = refused_number(event)
        if number in self._inFlight:
            error = Refused(f"the peer said {shown(event.text)}", event.code)
            self._inFlight[number].ticket.fail(error)

    actions: ClassVar[dict[type, Any]] = {
        Fault: SessionLink.peerFaulted,
        SessionEstablished: _begun,
        MessagesReceived: _arrive,
        MessagesAcknowledged: _acknowledged,
        CommandReceived: _commanded,
        ExtensionReceived: _extended,
        ErrorReceived: _toldError,
    }

    # ── hooks for what arrived, and the sink ────────────────────────────────────────────────────

    def _refuse(self, batch: MessageBatch, sequence: int, failure: Failure) -> None:
        arrived = [one for one in self._arrived if one.batch is batch] or [
            one for one in self._arrived if sequence in one.event.sequences
        ]  # a hook may pass on a batch of its own
        for one in arrived[:1]:
            one.refused.add(sequence)
        self.machine.refuse(sequence, failure.getErrorMessage())

    def offer(self, batch: MessageBatch) -> Deferred[Any] | None:
        if type(self.protocol).messageReceived is SessionHooks.messageReceived:
            return put_into(self.factory.sink, batch)
        return self.offerTo(self.tell, batch)

    def tell(self, message: Message) -> Deferred[Any] | None:
        session = self.protocol
        return awaited(session.messageReceived(message), session, "messageReceived")

    def offerTo(self, listener: Listener, batch: MessageBatch) -> Deferred[None]:
        return Deferred.fromCoroutine(self._offer(batch, listener))

    async def _offer(self, batch: MessageBatch, listener: Listener) -> None:
        before, offered = self._offered, Deferred[None]()
        self._offered = offered
        stored: Deferred[Any] | None = None
        try:
            results = [maybeDeferred(listener, message) for message in batch]
            if self.acksEach and not all([result.called for result in results]):
                self._await(batch, results)
            # Deferreds that have fired already are answered at once, without waiting.
            answers: Any = await DeferredList(results, consumeErrors=True)
            numbers: Any = batch.message_id
            if before is not None:
                await before  # the sink gets the batches of a session in order
            kept = []
            for row, (good, answer) in enumerate(answers):
                if good:
                    kept.append(row)
                    continue
                sequence = numbers[row]
                if not answer.check(MessageRefused):
                    raise _Unsafe(sequence, answer)
                self._refuse(batch, sequence, answer)
            if kept:
                stored = put_into(self.factory.sink, _rows(batch, kept))
        finally:
            if self._offered is offered:
                self._offered = None
            offered.callback(None)
        if stored is not None:
            await stored

    def _await(self, batch: MessageBatch, results: list[Deferred[Any]]) -> None:
        """Acknowledge each message when it and those before it are dealt with: a server leaves a
        consumer that acknowledges nothing for long.  Not where the sink or a hook has the last word
        of the batch.
        """
        hook = type(self.protocol).batchReceived is MicroMsg2Session.batchReceived
        arrived = next((one for one in self._arrived if one.batch is batch), None)
        if self.factory.sink is not None or not hook or arrived is None:
            return
        numbers, position = arrived.event.sequences, arrived.event.position
        good, first = set[int](), 0  # rows; the first that is not dealt with

        def dealt(result: Any, row: int) -> Any:
            nonlocal first
            if not isinstance(result, Failure):
                good.add(row)
            while first in good:
                first += 1
            if row < first < len(numbers) and not self._gone:
                self.machine.safe_before(position, numbers[first], self._now())
                if self._ackSoon is None:
                    self._ackSoon = self.factory.clock.callLater(0, self._ackNow)
            return result

        for row, result in enumerate(results):
            result.addBoth(dealt, row)

    def _ackNow(self) -> None:
        self._ackSoon = None
        self.writeAcks()

    def _safe(self, arrived: Arrived) -> None:
        arrived.stored = True
        while self._arrived and self._arrived[0].stored:
            self.publish(self._arrived.pop(0))

    def publish(self, arrived: Arrived) -> None:
        self.settled(arrived)

    def settled(self, arrived: Arrived) -> None:
        if not self._gone:
            self.machine.made_safe(arrived.event.position, self._now())
            if not self._following:
                group = getattr(self.factory.sink, "afterGroup", None)
                if group is None:
                    self.writeAcks()
                else:
                    group[self.writeAcks] = None

    def writeAcks(self) -> None:
        """The sink has said what is safe now: one acknowledgement for all of it."""
        self._followAlone(())

    def _notSafe(self, arrived: Arrived, failure: Failure) -> None:
        """Settle a refused batch; another failure ends the session, without an ack (MM-19)."""
        if failure.check(MessageRefused):
            for sequence in arrived.event.sequences:
                self._refuse(arrived.batch, sequence, failure)
            self._safe(arrived)
            return
        self._arrived.clear()
        error = failure.value
        if isinstance(error, _Unsafe):
            failure = error.failure
            self.machine.fail(error.sequence)
        super()._notSafe(arrived.event.position, failure)

    # ── for verbs ───────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        destination: str,
        payloads: Iterable[Any],
        properties: Mapping[str, Writable],
        typeName: str | None,
        notes: Mapping[str, str],
    ) -> Deferred[None]:
        if typeName is not None:
            notes = {**notes, "dotnet": typeName}
        try:
            self.inSession()
            address = self.machine.address(destination, properties)
            encoded = deque(map(self._encoded, payloads))
            sizes = list(map(len, encoded))
            self.machine.check(sizes, notes)
            self._checkUnsent(sizes)
        except Exception:
            return fail()
        ticket: Ticket[None] = Ticket(lambda _: self._cancelled(sent))
        sent = Sent(address, encoded, notes, ticket, len(encoded))
        if not encoded:
            sent.done(0)
            return ticket
        if self._unsent is _NOTHING_UNSENT:
            self._unsent = deque()
        self._unsent.append(sent)
        self._unsentMessages += len(encoded)
        self._unsentBytes += sum(sizes)
        self._pump()
        self._settle()
        return ticket

    def _cancelled(self, sent: Sent) -> None:
        self._drop(sent)
        self._lookClosing()

    def _drop(self, sent: Sent) -> None:
        if sent in self._unsent:
            self._unsent.remove(sent)
            self._unsentMessages -= len(sent.payloads)
            self._unsentBytes -= sum(map(len, sent.payloads))

    def _encoded(self, payload: Any) -> bytes:
        if isinstance(payload, bytes | bytearray | memoryview):
            return bytes(payload)
        for extension in self.machine.extensions:
            encoded = extension.encode(payload)
            if encoded is not None:
                return encoded
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}")

    def _checkUnsent(self, sizes: Sequence[int]) -> None:
        limits = self.machine.limits
        room = self.machine.room
        if not self._outputPaused and (room is None or len(sizes) <= room - self._unsentMessages):
            return  # it does not wait
        limits.check("unsent-messages", self._unsentMessages + len(sizes))
        limits.check("unsent-bytes", self._unsentBytes + sum(sizes))

    def say(self, say: Callable[[], object]) -> Deferred[None]:
        """``say`` tells the machine something that nobody answers; fires when it is written."""
        try:
            self.inSession()
            if self._outputPaused:
                self.roomFor(0)
            say()
        except (ValueError, ConnectionClosed) as error:
            return fail(error)
        self._settle()
        return succeed(None)

    def inSession(self) -> None:
        if not self._established or self._ended or self._drainTimer is not None:
            raise ConnectionClosed("there is no session to send in")

    # ── the flow of what is sent ────────────────────────────────────────────────────────────────

    def outputChanged(self, paused: bool) -> None:
        super().outputChanged(paused)
        self._outputPaused = paused
        if not paused and not self._ended:
            self._pump()
            self._settle()
            self._lookClosing()

    def _pump(self) -> None:
        unsent, machine = self._unsent, self.machine
        while unsent and not self._outputPaused and not self._ended:
            sent, room = unsent[0], machine.room
            if room == 0:
                break
            count = len(sent.payloads) if room is None else min(room, len(sent.payloads))
            payloads = [sent.payloads.popleft() for _ in range(count)]
            self._unsentMessages -= count
            self._unsentBytes -= sum(map(len, payloads))
            if not sent.payloads:
                unsent.popleft()
            now = self.factory.clock.seconds()
            try:
                numbers = machine.send_run(sent.address, payloads, sent.notes, now=now)
            except Exception as error:  # a vendor's extension could not say its note
                self._drop(sent)
                sent.ticket.fail(error)
                continue
            if room is None:
                self._settle()
                sent.done(count)
            else:
                self._inFlight.update(dict.fromkeys(numbers, sent))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def endInOrder(self) -> None:
        self._lookClosing()

    def leave(self) -> Deferred[None]:
        if not self._ended:
            self.setCloseReason(ConnectionClosed("the connection was closed"))
            self.machine.drain(self._now())  # acknowledges what is safe
            self.endNow()
        return succeed(None) if self._gone else self._closeWaiters.wait()

    def _lookClosing(self) -> None:
        if self._drainTimer is not None and not self._inFlight and not self._unsent:
            self.drain()

    def _endSending(self, error: Exception) -> None:
        pending = {id(sent): sent.ticket for sent in (*self._inFlight.values(), *self._unsent)}
        self._inFlight.clear()
        self._unsent.clear()
        self._unsentMessages = self._unsentBytes = 0
        fail_all(pending.values(), error)

    def sessionEnding(self, reason: Failure) -> None:
        if self._ackSoon is not None:
            self._ackSoon.cancel()
        self._endSending(self.closeReason or ConnectionClosed("the connection has ended"))
        super().sessionEnding(reason)


class MicroMsg2Session(Session, link=MicroMsg2Link):
    """One connection, whichever side, as an application sees it."""

    factory: MicroMsg2Factory
    link: MicroMsg2Link

    # ── hooks ───────────────────────────────────────────────────────────────────────────────────

    @hook
    def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
        """Messages of one read arrived.

        By default each goes to :meth:`messageReceived`, if a subclass overrides that, and when all
        have been dealt with the batch goes to the factory's sink, without those that were refused.
        The acknowledgement follows the returned Deferred (None: at once).  A failure with
        MessageRefused settles the messages, any other ends the session without their ack (MM-19).
        """
        return self.link.offer(batch)

    @hook
    def errorReceived(self, code: str, text: str) -> None:
        """The peer sent an ERROR; it closes nothing by itself (``MM-33``).  Logged by default."""
        self.link.logNews("{peer}: said {text}", "error", text=shown(text))

    @hook
    def commandReceived(self, name: str, parameters: Mapping[str, str]) -> None:
        """Called when a command of one of the agreed extensions came (``MM-15``)."""

    @hook
    def extensionReceived(self, name: str, content: Any) -> None:
        """A frame of the extension ``name`` came, and this is what it says (``MM-16``)."""

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def extension(self, name: str) -> Extension | None:
        """Return this connection's instance of an agreed extension; None if it was not agreed."""
        return self.link.machine.extension(name)

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
        bytes; with ``json`` agreed anything else is encoded (``MM-28``).  ``typeName`` is for
        ``dotnet`` (``MM-29``), ``notes`` for vendors' extensions, by name.

        Fails with Refused when the peer refuses this message, ConnectionClosed when the connection
        ends first, LimitExceeded when too much waits already or the payload is too large.
        """
        return self.link.send(destination, (payload,), properties, typeName, notes)

    def sendExtension(self, name: str, payload: bytes) -> Deferred[None]:
        """Send a frame of an agreed extension (``MM-16``); as :meth:`sendCommand`.

        Fails with ValueError if the extension was not agreed.
        """
        return self.link.say(lambda: self.link.machine.send_extension(name, payload))

    def decoded(self, body: bytes) -> Any:
        """A received body as the agreed extensions read it (``MM-28``); bytes without them."""
        for extension in self.link.machine.extensions:
            value = extension.decode(body)
            if value is not None:
                return value
        return body


def _rows(batch: MessageBatch, kept: list[int]) -> MessageBatch:
    if len(kept) == batch.count:
        return batch
    columns: dict[str, Any] = {
        name: [column[row] for row in kept]
        for name in (*MessageBatch.COLUMNS, "envelope")
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
        batch.nbytes,
        weight=batch.weight,
        **columns,
    )
