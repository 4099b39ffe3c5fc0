"""What both sides of a MicroMsg2 connection share, as a machine: no I/O, no clock.

How the protocol works
----------------------
The **client** opens with a handshake, the **server** answers, the client closes the handshake with
the final list of extensions (:mod:`.negotiation`, :mod:`.sides`).  From then on both sides are
alike: each may send messages, commands, extension frames and errors, each counts its own messages
from 1 and after 65535 goes on with 1 (``MM-13``).

With ``ack`` or ``batch-ack`` a sender has at most N messages in flight, and the receiver
acknowledges what is *safe*: when N are, or when nothing more has come for a while (``MM-19``).
Acknowledgements are cumulative, by place in the window, never by the size of a number (``MM-21``).
Without either, numbers are carried and never looked at.

Duties of the caller, beside those of :mod:`twisted_msgproto.core.connection`: a client calls
``open()`` first; ``refuse(sequence)`` comes before ``made_safe`` for a message which shall count as
settled, and ``fail(sequence)`` instead of ``not_safe`` where it is known which message it was.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from ...core.connection import Connection, WorkLost
from ...core.deadlines import Deadlines
from ...core.errors import Fault, LimitExceeded, shown
from ...core.limits import Limits
from ...core.machine import IllegalTransition, Machine, Table
from ...core.sequence import SEQUENCE_16_BITS_WITHOUT_0 as SPACE
from ...core.window import SendWindow
from ..terms import (
    ACK_TIMEOUT,
    BAD_COMMAND,
    BAD_PAYLOAD,
    ERROR_CHARACTERS_MAX,
    FAILED,
    HANDSHAKE_TIMEOUT,
    IDLE_TIMEOUT,
    LIMITS,
    REFUSED,
    REFUSED_BY_PEER,
    UNKNOWN_COMMAND,
    CommandReceived,
    ConnectionLost,
    Counters,
    ErrorReceived,
    Event,
    ExtensionReceived,
    MessagesAcknowledged,
    SessionEstablished,
    Side,
)
from ..wire import (
    MIB,
    NO_PROPERTIES,
    PROTOCOL_ERROR,
    BadText,
    Command,
    Decoder,
    Error,
    ExtensionFrame,
    Handshake,
    Messages,
    Part,
    Writable,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
    encode_message,
    write_properties,
)
from . import negotiation
from .extensions import Ack, Acknowledging, BatchAck, Extension
from .negotiation import Disagreement, Proposal
from .receiving import Broken, Inbox

_READING: Final = (Side.OPENING, Side.ANSWERED, Side.ESTABLISHED)

_NOTHING: Final[Mapping[str, str]] = {}


class Session(Connection[bytes, bytes, Event]):
    """What client and server share: everything but the handshake.

    Serves ``MM-10`` … ``MM-33``.

    Attributes:
        counters: plain integers for metrics.
        fault: why the connection is to be closed, once it is.
        decoder: its ``replaced`` counts texts which were not UTF-8.
        identity: what the peer announced; None before its handshake came.
        extensions: the agreed ones in the order of their indexes; empty before that.
        sending: numbers in flight; None unless acknowledgements were agreed (``MM-18``, ``MM-19``).
    """

    counters: Counters
    deadlines: Deadlines

    def __init__(
        self,
        table: Table[Side],
        initial: Side,
        proposal: Proposal | None,
        limits: Limits | None,
        handshakes: int,
    ) -> None:
        limits = Limits.of(LIMITS) if limits is None else limits
        self.limits = limits
        self.proposal = Proposal() if proposal is None else proposal
        self.counters = Counters()
        self.decoder = Decoder(limits, handshakes)
        self.fault: Fault | None = None
        self.identity: str | None = None
        self.extensions: list[Extension] = []
        self.sending: SendWindow[int] | None = None

        self._machine = Machine(table, initial)
        self._events: list[Event] = []  # of the read which is going on
        self._out: list[bytes] = []

        self._handshake_seconds = limits["handshake"]
        self._idle_ack_seconds = limits["idle-ack"]
        self._idle_close_seconds = limits["idle-close"]
        self._ack_wait_seconds = limits["ack-wait"]
        self.deadlines = Deadlines()
        # Times, by the caller's clock; None: not running.
        self._now = 0.0  # when the last call was made
        self._heard_at = 0.0
        self._paused = False
        self._ack_due_at: float | None = None
        self._no_ack_since: float | None = None

        # What the agreed extensions mean for the session.
        self._acks: Acknowledging | None = None
        self._ack_index = 0
        self._commands: dict[str, Extension] = {}

        self._last_sent = 0  # number of our newest message

        self._inbox = Inbox(limits, self.counters, self._body_refused)
        self._window = self._inbox.window
        self._draining = False
        self._firsts: dict[int, int] = {}  # by place, of events the sink has not answered yet

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def state(self) -> Side:
        """Where this side stands."""
        return self._machine.state

    @property
    def established(self) -> bool:
        """The handshake is through and nothing has gone wrong since."""
        return self._machine.state is Side.ESTABLISHED

    @property
    def room(self) -> int | None:
        """How many more messages may be sent now; None: as many as you like (no acks agreed)."""
        if not self.established:
            return 0
        return None if self.sending is None else self.sending.room

    @property
    def in_flight(self) -> int:
        """How many messages of ours are not acknowledged yet (0 without acks)."""
        return 0 if self.sending is None else len(self.sending)

    @property
    def unsafe(self) -> int:
        """How many numbers of the peer arrived and are not safe yet."""
        return self._window.unsafe

    @property
    def unacknowledged(self) -> int:
        """How many numbers of the peer are not acknowledged yet (0 without acks)."""
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
    def held(self) -> int:
        """Octets of frames and payloads which are not whole yet."""
        return self.decoder.buffered + self._inbox.held_octets

    def has(self, name: str) -> bool:
        """Was the extension ``name`` agreed?"""
        return self.extension(name) is not None

    def extension(self, name: str) -> Extension | None:
        """The agreed extension of this name; None if it was not agreed."""
        return next((found for found in self.extensions if found.name == name), None)

    def snapshot(self) -> dict[str, object]:
        """This side's state as plain values, for status pages and for people."""
        return {
            "state": self.state.name,
            "identity": self.identity,
            "extensions": [extension.name for extension in self.extensions],
            "count": None if self._acks is None else self._acks.count,
            "in_flight": self.in_flight,
            "received": self._window.received,
            "safe": self._window.safe,
            "acknowledged": self._window.acknowledged,
            "held_octets": self.held,
            "paused": self._paused,
        }

    # ── octets in ───────────────────────────────────────────────────────────────────────────────

    def connection_made(self, now: float) -> list[Event]:
        """The connection stands: the handshake has to be through in time (``MM-32``)."""
        self.deadlines.set("handshake", now + self._handshake_seconds)
        return []

    def receive(self, inputs: bytes, now: float) -> list[Event]:
        """Read what arrived at ``now`` (seconds, any clock which does not run backwards)."""
        if self._machine.state not in _READING:
            return []
        self._heard_at = self._now = now
        events = self._events = []
        try:
            for frame in self.decoder.feed(inputs):
                if type(frame) is Fault:
                    self._emit(self._break(frame.reason, frame.text, frame.octets))
                    break
                if not self._machine.try_step(type(frame)):
                    raise Broken(PROTOCOL_ERROR, self._machine.refusal(type(frame)))
                self._receive(frame)
                if self.fault is not None:
                    break
        except (Broken, Disagreement) as error:
            reason = error.code if isinstance(error, Disagreement) else error.reason
            self._emit(self._break(reason, str(error)))
        if self.fault is None:
            self._flush()
            if self._inbox.repeat_seen:
                self._write_ack()
            self._settle_refused()
            seconds = self._idle_close_seconds
            if seconds and (self.decoder.buffered or self._inbox.in_parts):
                self.deadlines.no_later("idle", now + seconds)
        self._inbox.repeat_seen = False
        self._events = []
        return events

    def _receive(self, frame: object) -> None:
        if type(frame) is Messages:
            self._inbox.receive_run(frame)
        elif type(frame) is Part:
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
        """Give out ``event``, and before it the messages which have come so far."""
        self._flush()
        self._events.append(event)

    def _flush(self) -> None:
        """Give out the messages which have come so far."""
        batch = self._inbox.take()
        if batch is not None:
            self._firsts[batch.place] = batch.sequences[0]
            self._events.append(batch)

    def _settle_refused(self) -> None:
        """Refused bodies which no slice covers are settled by themselves (``MM-28``)."""
        place = self._inbox.slice_refused()
        if place is not None:
            self.made_safe(place, self._heard_at)

    def _body_refused(self, sequence: int, why: str) -> None:
        self._write_error(BAD_PAYLOAD, f"{sequence}: {why}")

    @abstractmethod
    def _receive_handshake(self, frame: Handshake) -> None:
        """A handshake message came, and the table allows it; Disagreement ends the session."""

    def _receive_error(self, frame: Error) -> None:
        """``MM-33``: it closes nothing by itself, but during the handshake there is no session."""
        self.counters.errors += 1
        self._emit(ErrorReceived(frame.code, frame.text))
        if not self.established:
            # Nothing is answered to an ERROR.
            self.fault = Fault(REFUSED_BY_PEER, f"the peer said {shown(frame.text)}")
            self._emit(self.fault)

    def _establish(self, last: Handshake) -> None:
        """Both sides know the final list: make its extensions (``MM-09``)."""
        self.extensions = negotiation.instances(last, self.proposal.known, self.limits)
        by_name = {extension.name: extension for extension in self.extensions}
        acks = by_name.get(BatchAck.name) or by_name.get(Ack.name)  # batch-ack wins (MM-20)
        for index, extension in enumerate(self.extensions, 1):
            self._commands |= dict.fromkeys(extension.commands, extension)
            if extension.annotates:
                self._inbox.annotating.append((index, extension))
            if type(extension).objection is not Extension.objection:
                self._inbox.objecting.append(extension)
            if extension is acks and isinstance(extension, Acknowledging):
                self._acks, self._ack_index = extension, index
                self._inbox.count = extension.count
                self.sending = SendWindow(extension.count)
        self.deadlines.clear("handshake")
        self._emit(SessionEstablished(self.identity or "", tuple(by_name)))

    # ── extension frames and commands in ────────────────────────────────────────────────────────

    def _receive_extension(self, frame: ExtensionFrame) -> None:
        """A frame which only says something about later messages ends no batch."""
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
        """``MM-21``: everything up to this number, by place; a stray one is ignored."""
        if len(payload) != 2:
            raise Broken(PROTOCOL_ERROR, f"an ack of {len(payload)} octets, not 2")
        assert self.sending is not None
        released = self.sending.acknowledge_up_to(int.from_bytes(payload, "big"))
        if released is None:
            self.counters.stray_acks += 1
            return
        self._no_ack_since = self._now if len(self.sending) else None
        self.counters.acknowledged += len(released)
        self._emit(MessagesAcknowledged(released))

    def _receive_command(self, frame: Command) -> None:
        """``MM-15``: an unknown command is answered, and the connection stays."""
        extension = self._commands.get(frame.name)
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

    def made_safe(self, place: int, now: float) -> list[Event]:
        """The messages up to ``place`` (of one event given out before) are safe (``MM-19``).

        ValueError for a place which no event had, or which is safe already.
        """
        self._now = now
        window = self._window
        window.made_safe(place)
        self._firsts.pop(place, None)
        if self._acks is None or self._machine.state is not Side.ESTABLISHED:
            return []
        waiting = window.safe - window.acknowledged
        if waiting >= self._acks.count or (self._draining and waiting):
            self._write_ack()
        elif waiting and self._ack_due_at is None:
            self._ack_due_at = now + self._idle_ack_seconds
            self.deadlines.set("ack", self._ack_due_at)
        return []

    def not_safe(self, place: int, now: float) -> list[Event]:
        """The messages of this event never will be safe: as ``fail`` with the first of them."""
        self._now = now
        sequence = self._firsts.pop(place, None)
        if sequence is None:
            raise ValueError(f"no event had the place {place!r}")
        self.fail(sequence)
        return []

    def refuse(self, sequence: int, text: str = "") -> None:
        """This message is refused for good; it counts as settled all the same (``MM-19``)."""
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
        """From now on acknowledge at once whatever is safe: the connection is about to end."""
        self._now = now
        self._draining = True
        if self.established and self._window.safe > self._window.acknowledged:
            self._write_ack()
        return []

    def _write_ack(self) -> None:
        """Acknowledge everything which is safe (or say again what was acknowledged)."""
        window = self._window
        if self._acks is None or not window.safe:
            return
        window.acknowledged = window.safe
        if self._ack_due_at is not None:
            self._ack_due_at = None
            self.deadlines.clear("ack")
        self.counters.acks += 1
        number = SPACE.after(SPACE.first, window.safe - 1)
        self._out.append(encode_extension(self._ack_index, number.to_bytes(2, "big")))

    def _write_error(self, code: str, text: str) -> None:
        line = f"{code}: {text}"
        if len(line) > ERROR_CHARACTERS_MAX:
            line = line[: ERROR_CHARACTERS_MAX - 1] + "…"
        self._out.append(encode_error(line))

    def _break(self, reason: str, text: str, octets: bytes = b"") -> Fault:
        """Say ERROR and stop; what is safe is acknowledged before that."""
        self._flush()
        self._settle_refused()
        if self.established and self._window.safe > self._window.acknowledged:
            self._write_ack()
        self._machine.step(Fault)
        self._write_error(reason, text)
        self.fault = Fault(reason, f"{reason}: {text}", octets)
        return self.fault

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        destination: str,
        payload: bytes,
        properties: Mapping[str, Writable] = NO_PROPERTIES,
        notes: Mapping[str, str] = _NOTHING,
    ) -> int:
        """Send one message and return its number (``MM-12``).

        ``notes`` are for annotating extensions, by name: ``{"dotnet": "Name.Of.Type"}``.  Raises
        IllegalTransition outside a session, ValueError while the window is full, LimitExceeded for
        a payload above our own limits, BadText for a destination or properties which cannot be.
        """
        address = encode_address(destination, write_properties(properties))
        return self.send_run(address, (payload,), notes)[0]

    def send_run(
        self,
        address: bytes,
        payloads: Iterable[bytes],
        notes: Mapping[str, str] = _NOTHING,
        *,
        limited: bool = True,
        now: float | None = None,
    ) -> list[int]:
        """Send messages to one address (see ``encode_address``); their numbers, in order.

        All of one payload's parts are queued here, so no ack for a number can come before its last
        part was written (``MM-31``).  Raises as :meth:`send` does, having sent what came before;
        without ``limited`` no payload is too large.  The time in which the peer has to acknowledge
        runs from ``now`` (None: from the call before).
        """
        if not self.established:
            raise IllegalTransition(self.state, Messages)
        window, out = self.sending, self._out
        octets_max = min(
            self.limits.integer("payload-octets"), self.limits.integer("payload-parts") * MIB
        )
        numbers = []
        sequence = self._last_sent
        for payload in payloads:
            if limited and len(payload) > octets_max:
                raise LimitExceeded(f"a payload of {len(payload)} octets, at most {octets_max}")
            if self._inbox.annotating:
                self._write_notes(notes)
            sequence = SPACE.after(sequence)
            if window is not None:
                window.sent(sequence, sequence)
            self._last_sent = sequence
            self.counters.sent += 1
            numbers.append(sequence)
            out += encode_message(sequence, address, payload)
        if window is not None and self._no_ack_since is None and numbers:
            self._await_ack(self._now if now is None else now)
        return numbers

    def _await_ack(self, now: float) -> None:
        """The peer has to acknowledge something from now on."""
        self._no_ack_since = now
        if self._ack_wait_seconds and not self._paused:
            self.deadlines.no_later("ack-wait", now + self._ack_wait_seconds)

    def _write_notes(self, notes: Mapping[str, str]) -> None:
        if self.sending is not None and self.sending.full:
            return  # the message will be refused, so nothing is said about it
        for index, extension in self._inbox.annotating:
            frame = extension.frame_before(notes.get(extension.name))
            if frame is not None:
                self._out.append(encode_extension(index, frame))

    def send_command(self, name: str, parameters: Mapping[str, str]) -> None:
        """Send a COMMAND (``MM-15``); IllegalTransition outside a session."""
        if not self.established:
            raise IllegalTransition(self.state, Command)
        self._out.append(encode_command(name, parameters))

    def send_extension(self, name: str, payload: bytes) -> None:
        """Send a frame of an agreed extension (``MM-16``); ValueError if it was not agreed."""
        if not self.established:
            raise IllegalTransition(self.state, ExtensionFrame)
        for index, extension in enumerate(self.extensions, 1):
            if extension.name == name:
                self._out.append(encode_extension(index, payload))
                return
        raise ValueError(f"extension {name} was not agreed")

    def send_error(self, code: str, text: str) -> None:
        """Send an ERROR which ends nothing; IllegalTransition outside a session."""
        if not self.established:
            raise IllegalTransition(self.state, Error)
        self._write_error(code, text)

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def paused(self, now: float) -> list[Event]:
        """The connection is not read any more: the peer's silence means nothing."""
        self._now = now
        self._paused = True
        return []

    def resumed(self, now: float) -> list[Event]:
        """The connection is read again: the peer has all its time from now on."""
        self._now = self._heard_at = now
        self._paused = False
        if self._idle_close_seconds and (self.decoder.buffered or self._inbox.in_parts):
            self.deadlines.no_later("idle", now + self._idle_close_seconds)
        if self.in_flight:
            self._await_ack(now)
        return []

    def advance(self, now: float) -> list[Event]:
        """Do what is due at ``now``.

        May queue an idle ack (``MM-19``), or end a handshake which takes too long, a payload which
        stays unfinished and a peer which never acknowledges (``MM-32``).
        """
        self._now = now
        return super().advance(now)

    def _handshake_expired(self, now: float, events: list[Event]) -> None:
        self._expire(HANDSHAKE_TIMEOUT, "no complete handshake in time", events)

    def _ack_is_due(self, now: float, events: list[Event]) -> None:
        self._write_ack()

    def _idle_expired(self, now: float, events: list[Event]) -> None:
        if self._paused or not (self.decoder.buffered or self._inbox.in_parts):
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

    timely: ClassVar = {
        "handshake": _handshake_expired,
        "ack": _ack_is_due,
        "idle": _idle_expired,
        "ack-wait": _ack_wait_expired,
    }

    # ── octets out, and the end ─────────────────────────────────────────────────────────────────

    def outputs(self) -> bytes:
        """Take the octets which are to be written now."""
        if not self._out:
            return b""
        octets = b"".join(self._out)
        self._out.clear()
        return octets

    def lost(self, now: float) -> list[Event | WorkLost]:
        """The connection is gone: the numbers of our messages which were not acknowledged."""
        if self.state is Side.CLOSED:
            return []
        self._machine.step(ConnectionLost)
        self._out.clear()
        self._firsts.clear()
        self.deadlines.clear_all()
        unacknowledged = [] if self.sending is None else self.sending.drain()
        return [WorkLost(unacknowledged)] if unacknowledged else []
