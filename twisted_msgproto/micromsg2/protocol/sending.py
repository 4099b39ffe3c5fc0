"""A MicroMsg2 connection keeps messages that wait for space, and knows whose they are.

:class:`Sending` is the part of a :class:`.connection.MicroMsg2Protocol` that an application calls:
its verbs, and its ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed

from ...core.errors import ConnectionClosed, Refused, shown
from ...core.limits import Limit
from ...net.inherited import InheritedSession as Session
from ...net.outbox import ProducerControl, Ticket, fail_all
from .. import machine
from ..machine import ErrorReceived
from ..wire import NO_PROPERTIES, Writable

LIMITS: Final = (
    Limit("unsent-messages", 100_000, "messages", "that wait for space in the window", 1),
    Limit("unsent-octets", 64 << 20, "octets", "that wait for space in the window", 1),
)
"""A connection has these limits of its own sending."""

SETTLED_BY_REFUSAL: Final = frozenset({"refused", "bad-payload"})
"""These errors of the peer name one message of ours: it will not be delivered (MM-19, MM-28)."""

_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(slots=True, eq=False)
class Sent:
    """The messages of one ``send``: its Deferred fires when ``remaining`` is 0."""

    address: bytes
    payloads: deque[bytes]
    notes: Mapping[str, str]
    ticket: Ticket[None]
    remaining: int

    def done(self, count: int) -> None:
        """``count`` more are acknowledged, or written where nobody acknowledges."""
        self.remaining -= count
        if not self.remaining:
            self.ticket.done(None)


_NOTHING_UNSENT: Final[deque[Sent]] = deque(maxlen=0)
"""All connections that never had to wait share this: an empty deque weighs 760 octets."""


class Sending(Session):
    """The verbs, what waits for space in the window, a producer's flow, and orderly ends."""

    machine: machine.Session

    # What most connections never change stands here: an idle one weighs less.
    _unsent: deque[Sent] = _NOTHING_UNSENT  # sends of which messages wait for room
    _unsentMessages = 0
    _unsentOctets = 0
    _outputPaused = False

    def connectionMade(self) -> None:
        self._inFlight: dict[int, Sent] = {}  # number → whose message it is
        self._producers = ProducerControl()
        super().connectionMade()

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
        if typeName is not None:
            notes = {**notes, "dotnet": typeName}
        try:
            self._inSession()
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
        self._unsentOctets += sum(sizes)
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
            self._unsentOctets -= sum(map(len, sent.payloads))

    def _encoded(self, payload: Any) -> bytes:
        if isinstance(payload, bytes | bytearray | memoryview):
            return bytes(payload)
        for extension in self.machine.extensions:
            encoded = extension.encode(payload)
            if encoded is not None:
                return encoded
        raise TypeError(f"a payload is octets, not {type(payload).__name__}")

    def _checkUnsent(self, sizes: Sequence[int]) -> None:
        limits = self.machine.limits
        room = self.machine.room
        if not self._outputPaused and (room is None or len(sizes) <= room - self._unsentMessages):
            return  # it does not wait
        limits.check("unsent-messages", self._unsentMessages + len(sizes))
        limits.check("unsent-octets", self._unsentOctets + sum(sizes))

    def sendCommand(self, name: str, **parameters: str) -> Deferred[None]:
        """Send a COMMAND (``MM-15``); fires when it is written, since nobody answers it.

        Fails with ConnectionClosed outside a session, and with LimitExceeded.
        """
        return self._say(lambda: self.machine.send_command(name, parameters))

    def sendExtension(self, name: str, payload: bytes) -> Deferred[None]:
        """Send a frame of an agreed extension (``MM-16``); as :meth:`sendCommand`.

        Fails with ValueError if the extension was not agreed.
        """
        return self._say(lambda: self.machine.send_extension(name, payload))

    def sendError(self, code: str, text: str) -> Deferred[None]:
        """Send an ERROR that ends nothing (``MM-33``); as :meth:`sendCommand`."""
        return self._say(lambda: self.machine.send_error(code, text))

    def _say(self, say: Callable[[], object]) -> Deferred[None]:
        try:
            self._inSession()
            if self._outputPaused:
                self.roomFor(0)
            say()
        except (ValueError, ConnectionClosed) as error:
            return fail(error)
        self._settle()
        return succeed(None)

    def _inSession(self) -> None:
        if not self._established or self._ended or self._lateness is not None:
            raise ConnectionClosed("there is no session to send in")

    def decoded(self, body: bytes) -> Any:
        """A received body as the agreed extensions read it (``MM-28``); octets without them."""
        for extension in self.machine.extensions:
            value = extension.decode(body)
            if value is not None:
                return value
        return body

    # ── a producer that sends through this connection ──────────────────────────────────────────

    def registerProducer(self, producer: Any, streaming: bool = True) -> None:
        """Pause ``producer`` (an IPushProducer) while what it sent waits for room (``MM-19``).

        It is paused when messages wait for the window or for the transport, and resumed when none
        does.  Raises RuntimeError for a second one, and ValueError for a pull producer.
        """
        self._producers.register(producer, streaming)
        self._lookProducer()

    def unregisterProducer(self) -> None:
        self._producers.unregister()

    def _lookProducer(self) -> None:
        if self._producers.producer is not None:
            blocked = self._outputPaused or bool(self._unsent) or self.machine.room == 0
            self._producers.look(blocked)

    def outputChanged(self, paused: bool) -> None:
        self._outputPaused = paused
        if not paused and not self._ended:
            self._pump()
            self._settle()
            self._lookClosing()
        self._lookProducer()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def endInOrder(self) -> None:
        self._lookClosing()

    def leave(self) -> Deferred[None]:
        """End the connection now: what is not safe yet is not acknowledged, the peer keeps it.

        What was written before still goes out.  Fires when the connection is gone.
        """
        if not self._ended:
            self.because(ConnectionClosed("the connection was closed"))
            self.endNow()
        return succeed(None) if self._gone else self._leaving.wait()

    def _lookClosing(self) -> None:
        if self._lateness is not None and not self._inFlight and not self._unsent:
            self.drain()

    def _endSending(self, error: Exception) -> None:
        pending = {id(sent): sent.ticket for sent in (*self._inFlight.values(), *self._unsent)}
        self._inFlight.clear()
        self._unsent.clear()
        self._unsentMessages = self._unsentOctets = 0
        fail_all(pending.values(), error)
        self._producers.stop()

    def _pump(self) -> None:
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
        self._lookProducer()

    def _refused(self, event: ErrorReceived) -> None:
        if event.code in SETTLED_BY_REFUSAL:
            number = event.text.partition(":")[2].partition(":")[0].strip()
            if number.isascii() and number.isdigit() and len(number) < 6:
                sent = self._inFlight.get(int(number))
                if sent is not None:
                    sent.ticket.fail(Refused(f"the peer said {shown(event.text)}", event.code))

    def _acknowledged(self, sequences: list[int]) -> None:
        flights = self._inFlight
        for sequence in sequences:
            sent = flights.pop(sequence, None)
            if sent is not None:
                sent.done(1)
        if self._unsent or self._producers.producer is not None:
            self._pump()
        self._lookClosing()
