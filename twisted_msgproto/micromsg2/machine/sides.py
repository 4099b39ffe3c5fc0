"""The machines of both sides of a MicroMsg2 connection; they need no I/O and no clock.

With ``ack`` or ``batch-ack`` a sender has at most N messages in flight, and the receiver
acknowledges what is *safe* (``MM-19``): with ``batch-ack`` whatever is when outputs are asked for,
with ``ack`` when N are, or after a while.  Acknowledgements are cumulative, by position in the
window, never by the size of a number (``MM-13``, ``MM-21``).

A client calls ``open()`` first; ``refuse(sequence)`` comes before ``made_safe`` for a message that
shall count as settled, and ``fail(sequence)`` before ``not_safe`` where that message is known.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Final

from ...core.connection import WorkLost
from ...core.errors import Fault, shown
from ...core.limits import Limits
from ...core.machine import SendWindow, Table
from ..terms import (
    ACK_TIMEOUT,
    BAD_COMMAND,
    BAD_PAYLOAD,
    CLIENT,
    FAILED,
    HANDSHAKE_TIMEOUT,
    IDLE_TIMEOUT,
    REFUSED,
    REFUSED_BY_PEER,
    SERVER,
    UNKNOWN_COMMAND,
    CommandReceived,
    ErrorReceived,
    Event,
    ExtensionReceived,
    MessagesAcknowledged,
    SessionEstablished,
    Side,
    Step,
)
from ..wire.frames import (
    PROTOCOL_ERROR,
    Command,
    Decoder,
    Error,
    ExtensionFrame,
    Handshake,
    Messages,
    Part,
    after,
    encode_extension,
    encode_handshake,
    steps_between,
)
from ..wire.texts import BadText
from . import extensions
from .extensions import Ack, Acknowledging, BatchAck, Broken, Proposal
from .receiving import Inbox
from .sending import Sending

FRAMES_A_TURN: Final = 1024
"""One call follows so many: an ERROR of three bytes needs 20 µs, and a read may bring 87,000."""

_READING: Final = (Side.OPENING, Side.ANSWERED, Side.ESTABLISHED)


class Session(Sending):
    """What client and server share: everything but the handshake.

    Serves ``MM-10`` … ``MM-33``.

    Attributes as :class:`.sending.Sending`, and:
        fault: why the connection is to be closed, once it is.
        decoder: its ``replaced`` counts texts that were not UTF-8.
        identity: what the peer announced; None before its handshake came.
    """

    __slots__ = (
        "_ack_start",
        "_ack_wanted",
        "_acks",
        "_draining",
        "_events",
        "_firsts",
        "_handshake_seconds",
        "_idle_close_seconds",
        "_inbox",
        "_partial",
        "_window",
        "decoder",
        "identity",
        "proposal",
    )

    def __init__(
        self,
        table: Table[Side],
        initial: Side,
        proposal: Proposal | None,
        limits: Limits | None,
        handshakes: int,
    ) -> None:
        super().__init__(table, initial, limits)
        limits = self.limits
        self.proposal: Proposal = Proposal() if proposal is None else proposal
        self.decoder: Decoder = Decoder(limits, handshakes)
        self.identity: str | None = None

        self._events: list[Event] = []  # of the read that is going on

        self._handshake_seconds = limits["handshake"]
        self._idle_close_seconds = limits["idle-close"]
        self._partial = False  # a frame or a payload is incomplete

        # What the agreed extensions mean for the session.
        self._acks: Acknowledging | None = None
        self._ack_start = b""  # an acknowledgement up to its number
        self._ack_wanted = False  # the next outputs end with one

        reserved = self.proposal.known.own_fields
        self._inbox = Inbox(limits, self.counters, self._body_refused, reserved)
        self._window = self._inbox.window
        self._draining = False
        self._firsts: dict[int, int] = {}  # by position, of events the sink has not answered yet

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def unacknowledged(self) -> int:
        """Return how many numbers of the peer are not acknowledged yet (0 without acks)."""
        return 0 if self._acks is None else self._window.unacknowledged

    @property
    def finished(self) -> bool:
        """The session is broken or over, or it was drained and all that came is safe."""
        return (
            self.fault is not None
            or (self._draining and not self._window.unsafe)
            or self._machine.state is Side.CLOSED
        )

    @property
    def input_weight(self) -> int:
        return self.decoder.buffered + self._inbox.held_bytes

    @property
    def no_partial_input(self) -> bool:
        return not self._partial

    @property
    def unfinished(self) -> bool:
        """More frames are here than one turn follows: call ``receive`` with nothing soon."""
        return self.decoder.more and self.fault is None

    def snapshot(self) -> dict[str, object]:
        return {
            "state": self.state.name,
            "identity": self.identity,
            "extensions": [extension.name for extension in self.extensions],
            "count": None if self._acks is None else self._acks.count,
            "in_flight": self.in_flight,
            "received": self._window.received,
            "safe": self._window.safe,
            "acknowledged": self._window.acknowledged,
            "held_bytes": self.input_weight,
            "paused": self._paused,
        }

    # ── bytes in ───────────────────────────────────────────────────────────────────────────────

    def connection_made(self, now: float) -> list[Event]:
        self.deadlines.set("handshake", now + self._handshake_seconds)
        return []

    def receive(self, inputs: bytes, now: float) -> list[Event]:
        if self._machine.state not in _READING:
            return []
        self._heard_at = now
        events = self._events = []
        inbox = self._inbox
        try:
            self._read(inputs)
        except Broken as error:
            self._emit(self._break(error.reason, str(error)))
        if self.fault is None:
            self._flush()
            if inbox.repeat_seen:
                self._write_ack()
            if inbox.objecting:
                self._settle_refused()
            seconds = self._idle_close_seconds
            self._partial = bool(self.decoder.buffered or inbox.in_parts)
            if self._window.safe > self._window.acknowledged and not self._partial:
                self._ack_wanted = self._acks is not None and self._acks.prompt
            if seconds and self._partial:
                self.deadlines.no_later("idle", now + seconds)
        inbox.repeat_seen = False
        self._events = []
        return events

    def _read(self, data: bytes) -> None:
        for frame in self.decoder.feed(data, FRAMES_A_TURN):
            if type(frame) is Fault:
                self._emit(self._break(frame.reason, frame.text, frame.nbytes))
            elif not self._machine.try_step(type(frame)):
                raise Broken(PROTOCOL_ERROR, self._machine.refusal(type(frame)))
            elif type(frame) is Messages:
                self._inbox.receive_run(frame)
            else:
                self._receive(frame)
            if self.fault is not None:
                return

    def _receive(self, frame: object) -> None:
        if type(frame) is Part:
            self._inbox.receive_part(frame, last=False)
        elif type(frame) is ExtensionFrame:
            self._receive_extension(frame)
        elif type(frame) is Command:
            self._receive_command(frame)
        elif type(frame) is Handshake:
            self.identity = frame.identity
            self._receive_handshake(frame)
        else:
            assert type(frame) is Error
            self._receive_error(frame)

    def _emit(self, event: Event) -> None:
        self._flush()
        self._events.append(event)

    def _flush(self) -> None:
        batch = self._inbox.take()
        if batch is not None:
            self._firsts[batch.position] = batch.sequences[0]
            self._events.append(batch)

    def _settle_refused(self) -> None:
        position = self._inbox.slice_refused()
        if position is not None:
            self.made_safe(position, self._heard_at)

    def _body_refused(self, sequence: int, why: str) -> None:
        self._write_error(BAD_PAYLOAD, f"{sequence}: {why}")

    @abstractmethod
    def _receive_handshake(self, frame: Handshake) -> None: ...

    def _receive_error(self, frame: Error) -> None:
        """Follow an ERROR: it closes nothing by itself (``MM-33``), except during the handshake."""
        self.counters.errors += 1
        self._emit(ErrorReceived(frame.code, frame.text))
        if not self.established:
            # Nothing is answered to an ERROR.
            self.fault = Fault(REFUSED_BY_PEER, f"the peer said {shown(frame.text)}")
            self._emit(self.fault)

    def _establish(self, last: Handshake) -> None:
        """Both sides know the final list: make its extensions (``MM-09``)."""
        self.extensions = extensions.instances(last, self.proposal.known, self.limits)
        by_name = {extension.name: extension for extension in self.extensions}
        acks = by_name.get(BatchAck.name) or by_name.get(Ack.name)  # batch-ack wins (MM-20)
        numbered = list(enumerate(self.extensions, 1))
        self._annotating = tuple(one for one in numbered if one[1].annotates)
        self._inbox.annotating = self._annotating
        self._inbox.objecting = tuple(one for one in self.extensions if one.objects)
        for index, extension in numbered:
            if extension is acks and isinstance(extension, Acknowledging):
                self._acks = extension
                self._ack_start = encode_extension(index, b"\0\0")[:-2]
                self._inbox.count = extension.count
                self.sending = SendWindow(extension.count)
        self.deadlines.clear("handshake")
        self._emit(SessionEstablished(self.identity or "", tuple(by_name)))

    # ── extension frames and commands in ────────────────────────────────────────────────────────

    def _receive_extension(self, frame: ExtensionFrame) -> None:
        if not 0 < frame.index <= len(self.extensions):
            raise Broken(PROTOCOL_ERROR, f"extension {frame.index} of {len(self.extensions)}")
        extension = self.extensions[frame.index - 1]
        if extension is self._acks:
            self._receive_ack(frame.payload)
        elif not extension.has_frames or isinstance(extension, Acknowledging):
            self.counters.ignored_frames += 1
        else:
            try:
                content = extension.frame_received(frame.payload)
            except BadText as error:
                raise Broken(PROTOCOL_ERROR, f"{extension.name}: {error}") from None
            if content is not None:
                self._emit(ExtensionReceived(extension.name, content))

    def _receive_ack(self, payload: bytes) -> None:
        """Follow an ack of all up to this number; a stray one is ignored (``MM-21``)."""
        if len(payload) != 2:
            raise Broken(PROTOCOL_ERROR, f"an ack of {len(payload)} bytes, not 2")
        assert self.sending is not None
        released = self.sending.acknowledge_up_to(int.from_bytes(payload, "big"))
        if released is None:
            self.counters.stray_acks += 1
            return
        self._no_ack_since = self._heard_at if len(self.sending) else None
        self.counters.acknowledged += len(released)
        self._emit(MessagesAcknowledged(released))

    def _receive_command(self, frame: Command) -> None:
        """Follow a command; an unknown one is answered, and the connection stays (``MM-15``)."""
        extensions = reversed(self.extensions)
        extension = next((one for one in extensions if frame.name in one.commands), None)
        if extension is None:
            self.counters.unknown_commands += 1
            self._write_error(UNKNOWN_COMMAND, frame.name)
            return
        try:
            extension.command_received(frame.name, frame.parameters)
        except BadText as error:
            self._write_error(BAD_COMMAND, f"{frame.name}: {error}")
            return
        self._emit(CommandReceived(frame.name, frame.parameters))

    # ── what the caller says about what arrived ─────────────────────────────────────────────────

    def made_safe(self, position: int, now: float) -> list[Event]:
        self._window.made_safe(position)
        self._firsts.pop(position, None)
        self._look_safe(now)
        return []

    def safe_before(self, position: int, sequence: int, now: float) -> None:
        """Note that of the event with this ``position`` what stands before this message is safe.

        It changes nothing unless all events before that one are (``MM-19``).
        """
        if self._acks is not None:
            last = after(0, position)
            self._window.made_safe_within(position - steps_between(sequence, last) - 1)
            self._look_safe(now)

    def _look_safe(self, now: float) -> None:
        window = self._window
        if self._acks is None or self._machine.state is not Side.ESTABLISHED:
            return
        acks, waiting = self._acks, window.safe - window.acknowledged
        if acks.prompt and not self._partial:
            self._ack_wanted = waiting > 0
        elif waiting >= acks.count or (self._draining and waiting):
            self._write_ack()
        elif waiting and "ack" not in self.deadlines:
            self.deadlines.set("ack", now + acks.patience)

    def not_safe(self, position: int, now: float) -> list[Event]:
        """As ``fail`` with the first message of the event, unless it was called with another."""
        sequence = self._firsts.pop(position, None)
        if sequence is None:
            raise ValueError(f"no event had the position {position!r}")
        self.fail(sequence)
        return []

    def refuse(self, sequence: int, text: str = "") -> None:
        """Refuse this message for good; it counts as settled all the same (``MM-19``)."""
        if self.established:
            self.counters.refused += 1
            self._write_error(REFUSED, f"{sequence}: {text}" if text else str(sequence))

    def fail(self, sequence: int) -> None:
        """This message will never be safe: no ack for it or what follows, close (``MM-19``)."""
        if self.established:
            self._break(FAILED, str(sequence))

    def break_off(self, code: str, text: str) -> None:
        """End the session with an ERROR of our own: ``code: text``; close after writing it."""
        if self.state in _READING:
            self._break(code, text)

    def drain(self, now: float) -> list[Event]:
        self._draining = True
        if self.established and self._window.safe > self._window.acknowledged:
            self._write_ack()
        return []

    def _write_ack(self) -> None:
        window = self._window
        if self._acks is None or not window.safe:
            return
        window.acknowledged = window.safe
        self._ack_wanted = False
        if self.deadlines.next is not None:
            self.deadlines.clear("ack")
        self.counters.acks += 1
        self._out.append(self._ack_start + after(0, window.safe).to_bytes(2, "big"))

    def _break(self, reason: str, text: str, data: bytes = b"") -> Fault:
        """Say ERROR and stop; what is safe is acknowledged before that."""
        self._flush()
        self._settle_refused()
        if self.established and self._window.safe > self._window.acknowledged:
            self._write_ack()
        self._machine.step(Fault)
        self._stop_reading()
        self._write_error(reason, text)
        self.fault = Fault(reason, f"{reason}: {text}", data)
        return self.fault

    def _stop_reading(self) -> None:
        self.decoder.end()
        self._partial = self._ack_wanted = False

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def resumed(self, now: float) -> list[Event]:
        self._heard_at = now
        self._paused = False
        if self._idle_close_seconds and self._partial:
            self.deadlines.no_later("idle", now + self._idle_close_seconds)
        if self.in_flight:
            self._await_ack(now)
        return []

    def _handshake_expired(self, now: float, events: list[Event]) -> None:
        self._expire(HANDSHAKE_TIMEOUT, "no complete handshake in time", events)

    def _ack_is_due(self, now: float, events: list[Event]) -> None:
        self._write_ack()

    def _idle_expired(self, now: float, events: list[Event]) -> None:
        if self._paused or not self._partial:
            return
        deadline = self._heard_at + self._idle_close_seconds
        if now < deadline:
            self.deadlines.set("idle", deadline)
        else:
            self._expire(IDLE_TIMEOUT, "a payload stays unfinished", events)

    def _ack_wait_expired(self, now: float, events: list[Event]) -> None:
        if self._paused or self._no_ack_since is None:
            return
        deadline = self._no_ack_since + self._ack_wait_seconds
        if now < deadline:
            self.deadlines.set("ack-wait", deadline)
        else:
            self._expire(ACK_TIMEOUT, "nothing was acknowledged in time", events)

    def _expire(self, reason: str, text: str, events: list[Event]) -> None:
        events.append(self._break(reason, text))

    timely: ClassVar[dict[Any, Any]] = {
        "handshake": _handshake_expired,
        "ack": _ack_is_due,
        "idle": _idle_expired,
        "ack-wait": _ack_wait_expired,
    }

    # ── bytes out, and the end ─────────────────────────────────────────────────────────────────

    def outputs(self) -> bytes:
        if self._ack_wanted:
            self._write_ack()
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def lost(self, now: float) -> list[Event | WorkLost]:
        if self.state is Side.CLOSED:
            return []
        self._machine.step(Step.CONNECTION_LOST)
        self._stop_reading()
        self._out.clear()
        self._firsts.clear()
        self.deadlines.clear_all()
        unacknowledged = [] if self.sending is None else self.sending.drain()
        return [WorkLost(unacknowledged)] if unacknowledged else []


class Client(Session):
    """The side that connects: it opens the handshake and closes it."""

    __slots__ = ()

    def __init__(self, proposal: Proposal | None = None, limits: Limits | None = None) -> None:
        super().__init__(CLIENT, Side.IDLE, proposal, limits, handshakes=1)

    def open(self) -> None:
        """Send the opening handshake; IllegalTransition the second time."""
        self._machine.step(Step.OPENED)
        self._out.append(encode_handshake(self.proposal.opening()))

    def _receive_handshake(self, frame: Handshake) -> None:
        last = extensions.closing(frame, self.proposal, self.limits)
        self._out.append(encode_handshake(last))
        self._establish(last)


class Server(Session):
    """The side that accepts: it answers the handshake and checks its end."""

    __slots__ = ("_asked",)

    def __init__(self, proposal: Proposal | None = None, limits: Limits | None = None) -> None:
        """Make a server's machine; ``proposal`` is what we require, suggest and know."""
        super().__init__(SERVER, Side.OPENING, proposal, limits, handshakes=2)
        self._asked: extensions.Asked | None = None

    def _receive_handshake(self, frame: Handshake) -> None:
        if self._asked is None:
            reply = extensions.answer(frame, self.proposal, self.limits)
            self._out.append(encode_handshake(reply))
            self._asked = extensions.asked(frame, reply, self.proposal.known)
        else:
            extensions.check_closing(self._asked, frame, self.proposal)
            self._asked = None
            self._establish(frame)
