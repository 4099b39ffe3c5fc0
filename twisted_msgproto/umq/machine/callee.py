"""One half of a UMQ machine is called: it reads the peer's messages, and answers its calls."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from ...core.connection import Connection
from ...core.deadlines import Deadlines
from ...core.errors import LimitExceeded, shown
from ...core.limits import Limits
from ...core.machine import IllegalTransition, Machine, State, Table
from ...core.session_memory import (
    SESSION_LIMIT,
    SESSION_WEIGHT_BYTES,
    MemoryShare,
    SessionMemory,
    text_bytes,
)
from .. import wire
from ..terms import (
    FILL_SECONDS,
    LIMITS,
    Attachment,
    AttachmentArrived,
    AttachmentFailure,
    AttachmentsAnnounced,
    CallbackReceived,
    CallReceived,
    CallsSafe,
    Counters,
    Event,
    FatalReceived,
    MemoryLimitExceeded,
    Message,
    Step,
    Streamable,
)
from ..wire import (
    Code,
    Command,
    Commands,
    Decoder,
    Frame,
    UmqFault,
    coded,
    encode,
)
from .attachments import (
    ATTACHMENT_BYTES,
    NONE_WAIT,
    Announcement,
    Filled,
    Incoming,
    Key,
    Ordered,
    Slot,
    attachments_bytes,
    event_bytes,
)

FAILURE_CHARACTERS: Final = 1024
"""Of a text for an attachment that failed: 31 with a million could wait for the last one."""

LATE_BYTES: Final = 1 << 10
"""A call whose answer comes later needs this much beside: what the application waits with."""

Wire = str | bytes

Action = Callable[[Any, Frame, list[Event]], None]


class Callee(Connection[Sequence[Wire], list[Wire], Event]):
    """Messages and their attachments, both ways, and the peer's calls until they are answered."""

    table: Table[Any]
    first_state: State
    open_state: State
    closed_state: State
    counters: Counters
    deadlines: Deadlines
    memory: MemoryShare
    actions: ClassVar[Mapping[Command, Action]]

    # What most connections never change stands here: an idle one weighs less.
    _draining = False
    _paused = False
    _barrier: list[Event] | None = None  # what waits for W's attachments
    _behind_barrier = 0  # bytes of it
    _slots: deque[Slot] = NONE_WAIT  # of ours that are to be sent

    def __init__(self, limits: Limits | None, now: float, every: SessionMemory | None) -> None:
        limits = Limits.of(LIMITS) if limits is None else limits
        self._limits = limits
        # What this side keeps for the peer; even a closed machine keeps it until it is cleared.
        self.memory = MemoryShare(every)
        self.clock = now  # the latest that it was told; set it before a verb
        self._machine: Machine[Any] = Machine(self.table, self.first_state)
        self._out: list[Wire] = []
        self.deadlines = Deadlines()
        self.deadlines.set("hello", now + limits["hello-seconds"])
        self.counters = Counters()
        self._decode = Decoder(limits).decode
        self._characters_max = limits.integer("payload-characters")
        self._attachments_max = limits.integer("attachments")
        self._attachment_seconds = limits["attachment-seconds"]
        self._fill_seconds = FILL_SECONDS
        self._calls_max = limits.integer("calls")
        self._calls_bytes_max = limits.integer("calls-bytes")
        self._serving: dict[int, tuple[str, int]] = {}  # the peer's calls: id as it came, bytes
        self._serving_bytes = 0
        self._incoming = Incoming()
        self._incoming_since = now  # of the last announcement or filled slot
        self._outgoing_since = now  # of the last message with slots, or the last slot sent

    @property
    def state(self) -> Any:
        return self._machine.state

    @property
    def opened(self) -> bool:
        return self._machine.state is self.open_state

    @property
    def closed(self) -> bool:
        return self._machine.state is self.closed_state

    @property
    def finished(self) -> bool:
        return self.closed or (self._draining and not self._serving)

    @property
    def calls_serving(self) -> int:
        return len(self._serving)

    @property
    def input_weight(self) -> int:
        return self._incoming.nbytes + self._incoming.objects + self._behind_barrier

    @property
    def objects(self) -> int:
        return self._incoming.objects

    @property
    def no_partial_input(self) -> bool:
        return not (self._incoming.waiting or self._incoming.announcements)

    # ── messages in ───────────────────────────────────────────────────────────────────────────────

    def receive(self, inputs: Sequence[Wire], now: float) -> list[Event]:
        return list(self.receive_each(inputs, now))

    def receive_each(self, inputs: Sequence[Wire], now: float) -> Iterator[Event]:
        """As ``receive``, but read a message when the events of those before it were consumed."""
        self.clock = now
        events: list[Event] = []
        for message in inputs:
            if type(message) is str:
                self._read_text(message, events)
            else:
                self._read_binary(message, events)  # type: ignore[arg-type]
            yield from events
            events.clear()

    def oversized(self, now: float) -> list[Event]:
        events: list[Event] = []
        if not self.closed:
            self._fail(self._oversize(), events)
        return events

    def _oversize(self) -> UmqFault:
        return UmqFault("websocket-message-bytes", "a message above websocket-message-bytes")

    def _read_text(self, text: str, events: list[Event]) -> None:
        machine = self._machine
        if machine.state is self.closed_state:
            return
        frame = self._decode(text)
        if isinstance(frame, UmqFault):
            self._fail(frame, events)
            return
        command = frame.command
        target = self.table[machine.state].get(command)
        if target is not None:
            machine.state = target
            self.actions[command](self, frame, events)
        else:
            self._fail(wire.fault("state", machine.refusal(command), text), events)

    def _read_binary(self, data: bytes, events: list[Event]) -> None:
        if self.closed:
            return
        if not self._machine.try_step(Step.ATTACHMENT):
            text = self._machine.refusal(Step.ATTACHMENT)
            self._fail(UmqFault("stray", text, data[: wire.FAULT_CHARACTERS]), events)
        elif len(data) > self._limits["attachment-bytes"]:
            self._fail(UmqFault("attachment-bytes", "an attachment above its limit"), events)
        else:
            self._fill(data, events)

    def _fail(self, fault: UmqFault, events: list[Event]) -> None:
        self._machine.step(Step.FAULTED)
        self._out.append(encode(Commands.FATAL, "0", f"{fault.code.value} {fault.text}"))
        self._end()
        events.append(fault)

    def _end(self) -> None:
        self.deadlines.clear_all()
        self._incoming = Incoming()
        self._slots = NONE_WAIT
        self._lift_barrier()

    def _give(self, event: Event, events: list[Event]) -> None:
        """Return the event to the caller, unless W's attachments are still to come (``UM-07``)."""
        barrier = self._barrier
        if barrier is None:
            events.append(event)
            return
        barrier.append(event)
        self._behind_barrier += event_bytes(event)
        if self._behind_barrier > self._limits["attachments-bytes"] and not self.closed:
            text = "what waits for the attachments of W is above its limit"
            self._fail(UmqFault("attachments-bytes", text), events)

    def _lift_barrier(self) -> list[Event]:
        waited, self._barrier = self._barrier, None
        self._behind_barrier = 0
        return waited or []

    # ── attachments in ────────────────────────────────────────────────────────────────────────────

    def _deliver(
        self, message: Message, count: int, key: Key | None, events: list[Event]
    ) -> Announcement | None:
        if count:
            announcement = self._announce(message, count, key, events)
            if announcement is not None and isinstance(message, Streamable):
                self._give(AttachmentsAnnounced(message, count), events)
            return announcement
        if key is None or not self._behind(message, key, events):
            self._emit(message, events)
        return None

    def _behind(self, message: Ordered, key: Key, events: list[Event]) -> bool:
        """Does ``message`` have to wait for an earlier one's attachments (``UM-04``)?"""
        incoming = self._incoming
        if not incoming.waiting or not incoming.queued(message, key):
            return False
        if incoming.waiting > self._limits["waiting-messages"]:
            text = "too many messages wait for attachments"
            self._fail(UmqFault("waiting-messages", text), events)
        else:
            self._too_much_waits(events)
        return True

    def _too_much_waits(self, events: list[Event]) -> bool:
        if self._incoming.nbytes <= self._limits["attachments-bytes"]:
            return False
        text = "what waits for attachments is above its limit"
        self._fail(UmqFault("attachments-bytes", text), events)
        return True

    def _announce(
        self, message: Message | None, count: int, key: Key | None, events: list[Event]
    ) -> Announcement | None:
        if len(self._incoming) >= self._limits["announcements"]:
            text = "too many messages with attachments to come"
            self._fail(UmqFault("announcements", text), events)
            return None
        if not len(self._incoming):
            self._incoming_since = self.clock
            self.deadlines.no_later("attachment", self.clock + self._attachment_seconds)
        announcement = self._incoming.announce(message, count, key)
        return None if self._too_much_waits(events) else announcement

    def _discard(self, frame: Frame, events: list[Event]) -> None:
        """A message that nobody gets still owns its slots (``UM-04``)."""
        if frame.attachments:
            self._announce(None, frame.attachments, None, events)

    def _fill(self, attachment: Attachment, events: list[Event]) -> None:
        incoming = self._incoming
        if not len(incoming):
            self._fail(UmqFault("stray", "an attachment which no message announced"), events)
            return
        self._incoming_since = self.clock
        self.counters.attachments += 1
        filled = incoming.fill(attachment)
        if not self._too_much_waits(events):
            self._give_filled(filled, events)

    def _give_filled(self, filled: list[Filled], events: list[Event]) -> None:
        for one in filled:
            self._emit(one, events)

    def stream(self, message: Streamable) -> list[Event]:
        """Have ``message`` now and its attachments one by one (``UM-19``).

        Nothing happens if it is complete.
        """
        events: list[Event] = []
        self._give_filled(self._incoming.stream(message), events)
        return events

    def _emit(self, message: Filled, events: list[Event]) -> None:
        if self.closed:
            return
        if isinstance(message, AttachmentArrived):
            self._give(message, events)
        elif not isinstance(message, CallReceived | CallbackReceived):
            self._complete(message, events)
        elif not message.attachments or self._weigh(message, events):
            self._give(message, events)

    @abstractmethod
    def _complete(self, message: Ordered, events: list[Event]) -> None:
        """Do what is to be done for a message that is no call."""

    # ── the peer's calls ──────────────────────────────────────────────────────────────────────────

    def _on_call(self, frame: Frame, events: list[Event]) -> None:
        if self._serve(frame, events):
            message = CallReceived(frame.id, frame.payload)
            if frame.attachments:
                self._deliver(message, frame.attachments, None, events)
            else:
                self._give(message, events)

    def _serve(self, frame: Frame, events: list[Event]) -> bool:
        """May this call be served?  Its id is pending then (``UM-09``, ``UM-20``)."""
        id, serving, number = frame.id, self._serving, frame.number
        if number in serving:
            text = f"the call id {shown(id)} is pending already"
            self._fail(UmqFault("duplicate", text), events)
            return False
        self.counters.calls += 1
        if len(serving) >= self._calls_max or self._serving_bytes > self._calls_bytes_max:
            self.counters.calls_refused += 1
            self._refuse(frame, Code.UNAVAILABLE, "too many calls are pending", events)
            return False
        if self._draining:
            self._refuse(frame, Code.UNAVAILABLE, "the server stops", events)
            return False
        nbytes = text_bytes(frame.payload) + SESSION_WEIGHT_BYTES
        if not self.memory.take(nbytes):
            self._refuse_kept(id, events)
            self._discard(frame, events)
            return False
        serving[number] = id, nbytes
        self._serving_bytes += nbytes
        return True

    def _weigh(self, message: CallReceived | CallbackReceived, events: list[Event]) -> bool:
        """They count until it is answered; False if it was, or is refused for them (``UM-20``)."""
        attachments = message.attachments
        nbytes = attachments_bytes(attachments) + ATTACHMENT_BYTES * len(attachments)
        number = wire.number(message.id)
        served = self._serving.get(number)
        if served is None:  # it was answered when it was announced
            return False
        id, before = served
        if not self.memory.take(nbytes):
            self._forget_call(number)
            self._refuse_kept(id, events)
            return False
        self._serving[number] = id, before + nbytes
        self._serving_bytes += nbytes
        return True

    def _refuse_kept(self, id: str, events: list[Event]) -> None:
        self.counters.calls_refused += 1
        text = f"{Code.UNAVAILABLE.value} too many calls are pending: {SESSION_LIMIT}"
        self._out.append(encode(Commands.CALL_ERROR, id, text))
        events.append(MemoryLimitExceeded("call"))

    def _refuse(self, frame: Frame, code: Code, why: str, events: list[Event]) -> None:
        self._out.append(encode(Commands.CALL_ERROR, frame.id, f"{code.value} {why}"))
        self._discard(frame, events)

    def result(self, id: str, payload: str, attachments: Sequence[bytes | Slot] = ()) -> None:
        """Answer the peer's call ``id`` (``UM-10``); ValueError if it is not pending."""
        self._answer(id, Commands.RESULT, payload, attachments)

    def error(self, id: str, payload: str) -> None:
        """Refuse the peer's call ``id``, or say that it failed (``UM-09``); ValueError as above."""
        self._answer(id, Commands.CALL_ERROR, payload, ())

    def _answer(
        self, id: str, command: Command, payload: str, attachments: Sequence[bytes | Slot]
    ) -> None:
        self._sending()
        number = wire.number(id)
        served = self._serving.get(number)
        if served is None:
            raise ValueError(f"no call {id!r} is pending")
        self._send(command, served[0], payload, attachments)
        self._forget_call(number)

    def later(self, id: str) -> None:
        """Count the application's objects until the answer to the peer's call ``id`` comes."""
        number = wire.number(id)
        served = self._serving.get(number)
        if served is not None:
            self._serving[number] = served[0], served[1] + LATE_BYTES
            self._serving_bytes += LATE_BYTES
            self.memory.add(LATE_BYTES)

    def _forget_call(self, number: int) -> None:
        nbytes = self._serving.pop(number)[1]
        self._serving_bytes -= nbytes
        self.memory.remove(nbytes)

    # ── what the sink says ────────────────────────────────────────────────────────────────────────

    def made_safe(
        self, position: Sequence[CallReceived | CallbackReceived], now: float
    ) -> list[Event]:
        """As CallsSafe says, the calls whose answers waited for this may be answered now."""
        return [CallsSafe(position)] if position and self.opened else []

    def not_safe(
        self, position: Sequence[CallReceived | CallbackReceived], now: float
    ) -> list[Event]:
        if self.opened:
            for call in position:
                self.error(call.id, f"{Code.UNAVAILABLE.value} the call was not stored")
            self.fatal(Code.UNAVAILABLE, "temporarily unavailable")
        return []

    # ── messages out ──────────────────────────────────────────────────────────────────────────────

    def outputs(self) -> list[Wire]:
        out, self._out = self._out, []
        return out

    def _sending(self) -> None:
        if not self.opened:
            raise IllegalTransition(self._machine.state, Step.COMMAND_SENT)

    def check(self, payload: str, attachments: Sequence[bytes | Slot] = ()) -> None:
        """Raise what a verb would raise; send nothing.

        LimitExceeded above the limits, UnicodeEncodeError for what is no text, TypeError for a
        payload that is no ``str`` and for what is no attachment.
        """
        if not isinstance(payload, str):
            raise TypeError(f"a payload is text, not {type(payload).__name__}")
        if len(payload) > self._characters_max:
            raise LimitExceeded("the payload is above payload-characters")
        if not payload.isascii():
            payload.encode()
        if len(attachments) > self._attachments_max:
            raise LimitExceeded(f"{len(attachments)} attachments are above the limit")
        for attachment in attachments:
            if isinstance(attachment, bytes):
                if len(attachment) > self._limits["attachment-bytes"]:
                    raise LimitExceeded("an attachment is above attachment-bytes")
            elif not isinstance(attachment, Slot):
                raise TypeError(f"an attachment is bytes or a Deferred, not {type(attachment)}")

    def _send(
        self, command: Command, id: str, payload: str, attachments: Sequence[bytes | Slot]
    ) -> None:
        """Raises what ``check`` raises."""
        if (
            attachments
            or not isinstance(payload, str)
            or len(payload) > self._characters_max
            or not payload.isascii()
        ):
            self.check(payload, attachments)
        self._out.append(encode(command, id, payload, len(attachments)))
        if not attachments:
            return
        if not self._slots:
            self._outgoing_since = self.clock
            self._slots = deque()
        for attachment in attachments:
            self._slots.append(attachment if isinstance(attachment, Slot) else Slot(attachment))
        self._send_slots()
        if self._slots:
            self.deadlines.no_later("fill", self._outgoing_since + self._fill_seconds)

    def _send_slots(self) -> None:
        slots = self._slots
        while slots and slots[0].filled:
            slot = slots.popleft()
            self._outgoing_since = self.clock
            if slot.body is not None:
                self._out.append(slot.body)
            else:
                self._out.append(encode(Commands.ATTACHMENT_ERROR, "", slot.error or ""))

    def fill(self, slot: Slot, body: bytes) -> None:
        """The attachment is sent when its turn comes; a filled slot stays as it is.

        One above ``attachment-bytes`` is replaced by ``-`` and raises LimitExceeded, what is no
        bytes TypeError.
        """
        if not isinstance(body, bytes):
            self.fill_error(slot, "the attachment is not available")
            raise TypeError(f"an attachment is bytes, not {type(body).__name__}")
        if len(body) > self._limits["attachment-bytes"]:
            self.fill_error(slot, "the attachment is too large")
            raise LimitExceeded("the attachment is above attachment-bytes")
        if not slot.filled:
            slot.body = body
            self._send_slots()

    def fill_error(self, slot: Slot, text: str) -> None:
        """Send ``-`` for this slot, because there will be no attachment (``UM-04``)."""
        if not slot.filled:
            slot.error = text
            self._send_slots()

    def fatal(self, code: int, text: str) -> None:
        """Say ``F`` as our last command, then close the WebSocket (``UM-08``).

        Of a text what cannot be sent is replaced.
        """
        if not self.closed:
            said = (f"{code:d} " + text)[: self._characters_max]
            self._machine.step(Step.FATAL_SENT)
            self._out.append(encode(Commands.FATAL, "0", said.encode("utf-8", "replace").decode()))
            self._end()

    def _on_fatal(self, frame: Frame, events: list[Event]) -> None:
        self._end()
        events.append(FatalReceived(*coded(frame.payload)))

    def _on_attachment_error(self, frame: Frame, events: list[Event]) -> None:
        self.counters.attachments_failed += 1
        self._fill(AttachmentFailure(frame.payload[:FAILURE_CHARACTERS]), events)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> list[Event]:
        self.clock = max(now, self.clock)
        return super().advance(now)

    def resumed(self, now: float) -> list[Event]:
        self._paused = False
        if len(self._incoming) and not self.closed:
            self._incoming_since = now
            self.deadlines.no_later("attachment", now + self._attachment_seconds)
        return []

    def drain(self, now: float) -> list[Event]:
        self._draining = True
        return []

    def _hello_expired(self, now: float, events: list[Event]) -> None:
        text = "no H and no W in time"
        self._fail(UmqFault("hello-seconds", text, b"", Code.REJECTED), events)

    def _attachment_expired(self, now: float, events: list[Event]) -> None:
        if self._paused or not len(self._incoming):
            return
        deadline = self._incoming_since + self._attachment_seconds
        if now < deadline:
            self.deadlines.set("attachment", deadline)
        else:
            text = f"no attachment for {self._attachment_seconds:g} s"
            self._fail(UmqFault("attachment-seconds", text), events)

    def _fill_expired(self, now: float, events: list[Event]) -> None:
        if self._slots and now >= self._outgoing_since + self._fill_seconds:
            self.fill_error(self._slots[0], "the attachment is not there in time")
        if self._slots:
            self.deadlines.set("fill", self._outgoing_since + self._fill_seconds)

    timely: ClassVar[dict[Any, Any]] = {
        "hello": _hello_expired,
        "attachment": _attachment_expired,
        "fill": _fill_expired,
    }
