"""What a MicroMsg2 connection sends: messages which wait for room, and whose they are.

:class:`Sending` is the part of a :class:`.connection.MicroMsg2Protocol` which an application calls:
its verbs, and its ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded, Refused, shown
from ...core.limits import Limit
from ...net.session import Session
from .. import machine
from ..machine import ErrorReceived
from ..wire import NO_PROPERTIES, Writable

LIMITS: Final = (
    Limit("unsent-messages", 100_000, "messages", "that wait for space in the window", 1),
    Limit("unsent-octets", 64 << 20, "octets", "that wait for space in the window", 1),
)
"""What a connection bounds of its own sending."""

SETTLED_BY_REFUSAL: Final = frozenset({"refused", "bad-payload"})
"""Errors of the peer which name one message of ours: it will not be delivered (MM-19, MM-28)."""

_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(slots=True, eq=False)
class Sent:
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


class Sending(Session):
    """Verbs, what waits for room in the window, a producer's flow, and orderly ends."""

    machine: machine.Session

    _producer: Any = None
    _producerPaused = False

    def connectionMade(self) -> None:
        """Begin; a subclass which overrides this calls it."""
        self._unsent: deque[Sent] = deque()  # sends of which messages wait for room
        self._unsentMessages = 0
        self._unsentOctets = 0
        self._inFlight: dict[int, Sent] = {}  # number → whose message it is
        self._outputPaused = False
        self._closing: Any = None  # the call which ends an orderly end that takes too long
        self._leaving: list[Deferred[None]] = []  # who waits until the connection is gone
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
        fired: Deferred[None] = Deferred(lambda _: self._cancelled(sent))
        sent = Sent(address, encoded, notes, fired, len(encoded))
        if not encoded:
            sent.done(0)
            return fired
        self._unsent.append(sent)
        self._unsentMessages += len(encoded)
        self._unsentOctets += sum(sizes)
        self._pump()
        self._settle()
        return fired

    def _cancelled(self, sent: Sent) -> None:
        """Nobody waits for this any more: what is in flight stays, the rest is not sent."""
        sent.over = True
        self._drop(sent)
        self._lookClosing()

    def _drop(self, sent: Sent) -> None:
        """What of this waits is not sent."""
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
        """LimitExceeded if payloads of these sizes would have to wait, and too much waits."""
        limits = self.machine.limits
        room = self.machine.room
        if not self._outputPaused and (room is None or len(sizes) <= room - self._unsentMessages):
            return  # it does not wait
        if self._unsentMessages + len(sizes) > limits["unsent-messages"]:
            raise LimitExceeded(f"unsent-messages allows {limits.integer('unsent-messages')}")
        if self._unsentOctets + sum(sizes) > limits["unsent-octets"]:
            raise LimitExceeded(f"unsent-octets allows {limits.integer('unsent-octets')}")

    def sendCommand(self, name: str, **parameters: str) -> None:
        """Send a COMMAND (``MM-15``); ConnectionClosed outside a session."""
        self._inSession()
        self.machine.send_command(name, parameters)
        self._settle()

    def sendExtension(self, name: str, payload: bytes) -> None:
        """Send a frame of an agreed extension (``MM-16``); ConnectionClosed outside a session."""
        self._inSession()
        self.machine.send_extension(name, payload)
        self._settle()

    def sendError(self, code: str, text: str) -> None:
        """Send an ERROR which ends nothing (``MM-33``); ConnectionClosed outside a session."""
        self._inSession()
        self.machine.send_error(code, text)
        self._settle()

    def _inSession(self) -> None:
        if not self.machine.established or self._ended or self._closing is not None:
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

    def outputChanged(self, paused: bool) -> None:
        """The transport is full, or has room again.

        Reading goes on meanwhile: else two full sides would wait for each other.
        """
        self._outputPaused = paused
        if not paused and not self._ended:
            self._pump()
            self._settle()
            self._lookClosing()
        self._lookProducer()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def close(self) -> Deferred[None]:
        """End the connection in order; fires when it is gone.

        What was sent before is still delivered and acknowledged, what came is acknowledged once it
        is safe, and nothing more can be sent.  After the limit ``drain`` what is still in flight
        fails with ConnectionClosed.
        """
        if not self._ended and self._closing is None:
            seconds = self.factory.limits["drain"]
            self._closing = self.factory.clock.callLater(seconds, self.leave)
            self._lookClosing()
        return self._whenGone()

    def leave(self) -> Deferred[None]:
        """End the connection now: what is not safe yet is not acknowledged, the peer keeps it.

        What was written before still goes out.  Fires when the connection is gone.
        """
        if not self._ended:
            outputs = self.machine.outputs()
            if outputs:
                self._write(outputs)
            self._end(fault=False)
        return self._whenGone()

    def _lookClosing(self) -> None:
        """All that was sent is acknowledged: the rest of an orderly end is the machine's."""
        if self._closing is not None and not self._inFlight and not self._unsent:
            self.drain()

    def _whenGone(self) -> Deferred[None]:
        if self._gone:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._leaving.remove)
        self._leaving.append(waiting)
        return waiting

    def _tellGone(self) -> None:
        while self._leaving:  # one by one: a callback may cancel another
            self._leaving.pop(0).callback(None)

    def _endSending(self, error: Exception) -> None:
        """The connection is gone: what is not acknowledged fails."""
        if self._closing is not None and self._closing.active():
            self._closing.cancel()
        pending = {id(sent): sent for sent in (*self._inFlight.values(), *self._unsent)}
        self._inFlight.clear()
        self._unsent.clear()
        self._unsentMessages = self._unsentOctets = 0
        for sent in pending.values():
            sent.fail(error)

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
            now = self.factory.clock.seconds()
            try:
                numbers = machine.send_run(sent.address, payloads, sent.notes, now=now)
            except Exception as error:  # a vendor's extension could not say its note
                self._drop(sent)
                sent.fail(error)
                continue
            if room is None:
                self._settle()
                sent.done(count)
            else:
                self._inFlight.update(dict.fromkeys(numbers, sent))
        self._lookProducer()

    def _refused(self, event: ErrorReceived) -> None:
        """If the peer's ERROR names one message of ours, that is lost."""
        if event.code in SETTLED_BY_REFUSAL:
            number = event.text.partition(":")[2].partition(":")[0].strip()
            if number.isascii() and number.isdigit() and len(number) < 6:
                sent = self._inFlight.get(int(number))
                if sent is not None:
                    sent.fail(Refused(f"the peer said {shown(event.text)}", event.code))

    def _acknowledged(self, sequences: list[int]) -> None:
        flights = self._inFlight
        for sequence in sequences:
            sent = flights.pop(sequence, None)
            if sent is not None:
                sent.done(1)
        if self._unsent or self._producer is not None:
            self._pump()
        self._lookClosing()
