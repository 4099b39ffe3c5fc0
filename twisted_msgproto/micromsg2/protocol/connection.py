"""On Twisted, both sides of MicroMsg2 add hooks and messages to what every link does.

The machine decides everything about the protocol; :mod:`.sending` has the verbs.  A subclass
overrides hooks: ``sessionEstablished``, ``sessionLost``, ``messageReceived`` or ``batchReceived``,
``errorReceived``, ``commandReceived``, ``extensionReceived``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, Fault, shown
from ...core.message import Message, MessageBatch
from ...net.authorising import PUBLISH, refusal_text
from ...net.counters import Places
from ...net.link import SteadyLogger
from ...net.session import SessionHooks
from ..machine import (
    CommandReceived,
    ErrorReceived,
    ExtensionReceived,
    MessagesAcknowledged,
    MessagesReceived,
    Session,
    SessionEstablished,
)
from ..terms import ACK_TIMEOUT, HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, Counters
from .sending import Sending

if TYPE_CHECKING:
    from .sides import MicroMsg2Factory

PROTOCOL: Final = "micromsg2"

READ_OCTETS: Final = 256 << 10
"""One read returns at most this many octets: each costs a turn, and senders send in bulk."""


ERROR_CHARACTERS: Final = 200
"""This much of the last ERROR is remembered, and as much of its code: no more of it is shown."""

AUTHORISED_READ_OCTETS: Final = 128 << 10
"""One read returns at most this many octets where an authoriser is asked: each message of it may
have another destination, and be refused.
"""

Listener = Callable[[Message], Any]
"""Hears of a message, as the hook ``messageReceived`` does."""


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
    """Follows the messages of one read: stored first, then published, then acknowledged.

    ``envelopes`` are those of messages for queues of a broker; None: there are none.
    """

    event: MessagesReceived
    batch: MessageBatch
    refused: set[int] = field(default_factory=set)
    stored: bool = False
    envelopes: list[bytes | None] | None = None


class MicroMsg2Protocol(Sending):
    """One connection, whichever side.

    Attributes:
        machine: its ``snapshot()`` tells where the connection stands.
        session: the public name of this session.
        peer: the peer's transport address as text.
        clientId: what the peer announced in its handshake; None before.
    """

    log: ClassVar[Logger] = SteadyLogger(namespace="twisted_msgproto.micromsg2")
    factory: MicroMsg2Factory
    counted = Places.of(Counters, replaced_texts="machine.decoder.replaced")
    answerEvents = frozenset({MessagesAcknowledged, ErrorReceived})
    _lastError: ErrorReceived | None = None
    _offered: Deferred[None] | None = None  # the newest batch that waits for its hooks
    timeFaults = frozenset({HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, ACK_TIMEOUT})

    # ── hooks for subclasses; batchReceived and messageReceived come from SessionHooks ──────────

    def errorReceived(self, code: str, text: str) -> None:
        """The peer sent an ERROR; it closes nothing by itself (``MM-33``).  Logged by default."""
        self.tellOf("{peer}: said {text}", "error", text=shown(text))

    def commandReceived(self, name: str, parameters: Mapping[str, str]) -> None:
        """Called when a command of one of the agreed extensions came (``MM-15``)."""

    def extensionReceived(self, name: str, content: Any) -> None:
        """A frame of the extension ``name`` came, and this is what it says (``MM-16``)."""

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def makeMachine(self) -> Session:
        raise NotImplementedError

    def connectionMade(self) -> None:
        self._arrived: list[Arrived] = []  # oldest first
        super().connectionMade()

    def whyLost(self, reason: Failure) -> Exception:
        if self.ending is None and self._lastError is not None:
            return ConnectionClosed(f"the peer said {shown(self._lastError.text)} and it ended")
        return super().whyLost(reason)

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def _begun(self, event: SessionEstablished) -> None:
        self.clientId = event.identity
        self.factory.counters["sessions"] += 1
        self.establish()

    def _commanded(self, event: CommandReceived) -> None:
        self._guarded(self.commandReceived, event.name, event.parameters)

    def _extended(self, event: ExtensionReceived) -> None:
        self._guarded(self.extensionReceived, event.name, event.content)

    def _toldError(self, event: ErrorReceived) -> None:
        # As little as is ever shown: a connection may stand for long behind it.
        code, text = event.code[:ERROR_CHARACTERS], event.text[: ERROR_CHARACTERS + 1]
        self._lastError = ErrorReceived(code, text)
        self.factory.counters["errors_received"] += 1
        self._refused(event)
        self._guarded(self.errorReceived, event.code, event.text)

    def _acknowledge(self, event: MessagesAcknowledged) -> None:
        self._acknowledged(event.sequences)

    @property
    def readOctets(self) -> int:  # type: ignore[override]
        """Return how much one read may return; a reload may bring an authoriser."""
        return READ_OCTETS if self.factory.authoriser is None else AUTHORISED_READ_OCTETS

    _queues: Mapping[str, object] = {}  # a server's broker has these queues

    def _addressed(self, arrived: Arrived) -> None:
        """Messages have come, and the broker has queues: give envelopes to those for them."""

    def _arrive(self, event: MessagesReceived) -> None:
        if self.factory.authoriser is not None:
            self._authorise(event)
        batch = MessageBatch(  # by place: names cost half as much again
            PROTOCOL,
            "message",
            self.factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            len(event.sequences),
            event.octets,
            event.sequences,
            event.destinations,
            event.fields,
            event.bodies,
            weight=event.weight,
        )
        arrived = Arrived(event, batch)
        if self._queues:
            self._addressed(arrived)
        self._arrived.append(arrived)
        if batch.count:
            self.deliver(batch, arrived)
        else:  # all of it was refused
            self._safe(arrived)

    def _authorise(self, event: MessagesReceived) -> None:
        """Refuse and remove the messages that the peer may not publish; they count as settled
        (``MM-19``).
        """
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
        columns: tuple[list[Any], ...] = (
            event.sequences,
            event.destinations,
            event.fields,
            event.bodies,
            event.texts,
            event.properties,
            event.notes,
        )
        for column in columns:
            if column:
                column[:] = [column[row] for row in kept]
        event.octets = sum(map(len, event.bodies)) + sum(map(len, event.texts))

    actions: ClassVar = {
        Fault: Sending.peerFaulted,
        SessionEstablished: _begun,
        MessagesReceived: _arrive,
        MessagesAcknowledged: _acknowledge,
        CommandReceived: _commanded,
        ExtensionReceived: _extended,
        ErrorReceived: _toldError,
    }

    # ── hooks for what arrived, and the sink ────────────────────────────────────────────────────

    def _refuse(self, arrived: Arrived, sequence: int, failure: Failure) -> None:
        arrived.refused.add(sequence)
        self.machine.refuse(sequence, failure.getErrorMessage())

    def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
        """Messages of one read arrived.

        By default each goes to :meth:`messageReceived`, if a subclass overrides that, and when all
        have been dealt with the batch goes to the factory's sink, without those that were refused.
        The acknowledgement follows the returned Deferred (None: at once).  A failure with
        MessageRefused settles the messages, any other ends the session without their ack (MM-19).
        """
        sink = self.factory.sink
        if type(self).messageReceived is SessionHooks.messageReceived:
            return None if sink is None else sink.put(batch)
        return self._offerTo(self.messageReceived, batch)

    def _offerTo(self, listener: Listener, batch: MessageBatch) -> Deferred[None]:
        return Deferred.fromCoroutine(self._offer(batch, self._whence(batch), listener))

    def _whence(self, batch: MessageBatch) -> Arrived:
        return next(arrived for arrived in reversed(self._arrived) if arrived.batch is batch)

    async def _offer(self, batch: MessageBatch, arrived: Arrived, listener: Listener) -> None:
        before, offered = self._offered, Deferred[None]()
        self._offered = offered
        stored: Deferred[int | None] | None = None
        try:
            results = [maybeDeferred(listener, message) for message in batch]
            # Deferreds that have fired already are answered at once, without waiting.
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

    def _safe(self, place: Arrived) -> None:
        """This batch is in the sink: publish what is in order, then acknowledge."""
        place.stored = True
        while self._arrived and self._arrived[0].stored:
            self.publish(self._arrived.pop(0))

    def publish(self, arrived: Arrived) -> None:
        """Everything but the acknowledgement is done; the server has a broker to tell."""
        self.settled(arrived)

    def settled(self, arrived: Arrived) -> None:
        if not self._gone:
            events = self.machine.made_safe(arrived.event.place, self._now())
            if not self._following:
                self._followAlone(events)
            elif events:
                self._follow(events)

    def _notSafe(self, place: Arrived, failure: Failure) -> None:
        """A refused batch is settled; after any other failure there is no ack for it (MM-19).

        Nor for what follows, and the session ends.
        """
        if failure.check(MessageRefused):
            for sequence in place.event.sequences:
                self._refuse(place, sequence, failure)
            self._safe(place)
            return
        self._arrived.clear()
        error = failure.value
        if isinstance(error, _Unsafe):
            failure = error.failure
            self.machine.blame(place.event.place, error.sequence)
        super()._notSafe(place.event.place, failure)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def sessionEnding(self, reason: Failure) -> None:
        self._endSending(self.ending or ConnectionClosed("the connection has ended"))
        super().sessionEnding(reason)


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
        batch.octets,
        weight=batch.weight,
        **columns,
    )
