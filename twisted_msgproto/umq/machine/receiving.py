"""One half of a UMQ machine listens: it follows the peer's messages and the time.

The verbs are those of :class:`.sending.Speaker`; the duties of the caller are told in
:mod:`.sides`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from ...core.connection import WorkLost
from ...core.errors import shown
from ...core.limits import Limits
from ...core.machine import State
from ...core.session_memory import SESSION_LIMIT, SESSION_WEIGHT_BYTES, SessionMemory
from .. import wire
from ..terms import (
    STREAMABLE,
    Attachment,
    AttachmentFailure,
    AttachmentsAnnounced,
    AttributeSet,
    AttributeUnset,
    CallbackReceived,
    CallExpired,
    CallReceived,
    CallsSafe,
    ConnectionLost,
    Counters,
    ErrorReceived,
    Event,
    FatalReceived,
    Faulted,
    HelloCompleted,
    HelloReceived,
    MemoryLimitExceeded,
    Message,
    ResultReceived,
    TopicClosed,
    TopicUnsubscribed,
    TopicUpdated,
)
from ..wire import (
    AttachmentError,
    Call,
    Callback,
    CallError,
    Code,
    Decoder,
    Fatal,
    Frame,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UmqFault,
    UnsetAttribute,
    Unsubscribe,
    base36,
    coded,
    encode,
    is_id,
)
from .attachments import (
    ATTACHMENT_BYTES,
    Announcement,
    Filled,
    Key,
    Ordered,
    PeerAttribute,
    attachments_bytes,
    event_bytes,
    text_bytes,
)
from .sending import TOPIC_WEIGHT_BYTES, Speaker, Wire

FAILURE_CHARACTERS: Final = 1024
"""Of the text that says why an attachment failed this many characters are remembered:
it is for people, and 31 of a mebi-character each could wait for the last attachment.
"""


UNKNOWN_TOPICS: Final = 64
"""While this many topics wait to be forgotten, another that was never ours is not remembered: the
peer chooses those, and 1,024 fill 100 KB of each connection.
"""


class Peer(Speaker):
    """What both sides share: all of the protocol after ``W``.

    Serves ``UM-01`` … ``UM-05`` and ``UM-08`` … ``UM-20``.  Verbs raise IllegalTransition in a
    state where they cannot be, LimitExceeded above our own limits, ValueError for what is not
    theirs to answer.

    Attributes:
        clock: the latest ``now`` the machine was told.
        taken_at: when the peer took something of ours last; the caller may say so, as a function of
            ``now``.  The time of a call without a time-out of its own runs from there.
    """

    taken_at: Callable[[float], float] = staticmethod(lambda now: 0.0)
    fault: UmqFault | None = None
    _attributes_bytes = 0
    _paused = False
    _barrier: list[Event] | None = None  # what waits for W's attachments
    _behind_barrier = 0  # bytes of it

    actions: ClassVar[Mapping[type[Frame], Callable[[Any, Frame, list[Event]], None]]]

    def __init__(
        self, initial: State, limits: Limits | None, now: float, every: SessionMemory | None = None
    ) -> None:
        super().__init__(initial, limits, now, every)
        limits = self._limits
        self._calls_max = limits.integer("calls")
        self._calls_bytes_max = limits.integer("calls-bytes")
        self._decode = Decoder(limits).decode
        self._attachment_seconds = limits["attachment-seconds"]
        self._incoming_since = now  # of the last announcement or filled slot
        self.counters: Counters = Counters()
        self.attributes: dict[str, PeerAttribute] = {}

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def calls_pending(self) -> int:
        return len(self._pending)

    @property
    def calls_serving(self) -> int:
        return len(self._serving)

    @property
    def input_weight(self) -> int:
        """Return bytes of messages that wait for attachments, with those that are there and with
        the objects that all this is made of.
        """
        return self._incoming.nbytes + self._incoming.objects + self._behind_barrier

    @property
    def objects(self) -> int:
        return self._incoming.objects

    @property
    def no_partial_input(self) -> bool:
        return not (self._incoming.waiting or self._incoming.announcements)

    def snapshot(self) -> dict[str, object]:
        return {
            "state": self.state.name,
            "calls": len(self._serving),
            "own_calls": len(self._pending),
            "topics": len(self._published),
            "subscriptions": len(self._subscriptions),
            "closing": len(self._closing),
            "callbacks": len(self._callbacks),
            "attributes": len(self.attributes),
            "announcements": len(self._incoming),
            "held_bytes": self.input_weight,
            "slots": len(self._outgoing),
        }

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def receive(self, inputs: Sequence[Wire], now: float) -> list[Event]:
        return list(self.receive_each(inputs, now))

    def receive_each(self, inputs: Sequence[Wire], now: float) -> Iterator[Event]:
        """Do what ``receive`` does, but read a message when the events of those before it were
        consumed.
        """
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
            self.clock = now
            self._fail(self._oversize(), events)
        return events

    def _oversize(self) -> UmqFault:
        return UmqFault("websocket-message-bytes", "a message above websocket-message-bytes")

    def _read_text(self, text: str, events: list[Event]) -> None:
        machine = self._machine
        if machine.state is self.closed_state:
            return
        frame = self._decode(text)
        kind = type(frame)
        target = self.table[machine.state].get(kind)
        if target is not None:
            machine.state = target
            self.actions[kind](self, frame, events)  # type: ignore[index,arg-type]
        elif isinstance(frame, UmqFault):
            self._fail(frame, events)
        else:
            self._fail(wire.fault("state", machine.refusal(kind), text), events)

    def _read_binary(self, data: bytes, events: list[Event]) -> None:
        if self.closed:
            return
        if not self._machine.try_step(wire.Attachment):
            text = self._machine.refusal(wire.Attachment)
            self._fail(UmqFault("stray", text, data[: wire.FAULT_CHARACTERS]), events)
        elif len(data) > self._limits["attachment-bytes"]:
            self._fail(UmqFault("attachment-bytes", "an attachment above its limit"), events)
        else:
            self._fill(data, events)

    def _fail(self, fault: UmqFault, events: list[Event]) -> None:
        self._machine.step(Faulted)
        self._out.append(encode(Fatal("0", f"{fault.code.value} {fault.text}")))
        self._end()
        self.fault = fault
        events.append(fault)

    def _end(self) -> None:
        super()._end()
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

    # ── attachments in ──────────────────────────────────────────────────────────────────────────

    def _deliver(
        self, message: Message, count: int, key: Key | None, events: list[Event]
    ) -> Announcement | None:
        if count:
            announcement = self._announce(message, count, key, events)
            if announcement is not None and isinstance(message, STREAMABLE):
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

    def _give_filled(self, filled: Filled, events: list[Event]) -> None:
        for message in filled.ready:
            self._emit(message, events)
        for arrived in filled.arrived:
            self._give(arrived, events)

    def stream(self, message: Message) -> list[Event]:
        """Have ``message`` now and its attachments one by one (``UM-19``).

        For a message that an AttachmentsAnnounced brought; nothing happens if it is complete.
        Returns the events that this brings.
        """
        events: list[Event] = []
        self._give_filled(self._incoming.stream(message), events)
        return events

    # ── complete messages ───────────────────────────────────────────────────────────────────────

    def _emit(self, message: Ordered, events: list[Event]) -> None:
        if self.closed:
            return
        if isinstance(message, CallReceived | CallbackReceived):
            if message.attachments and not self._weigh(message, events):
                return
        elif isinstance(message, ResultReceived):
            self._pending.resolve(message.number)
        elif isinstance(message, TopicUpdated | TopicClosed):
            if not self._topic_event(message, events):
                return
        elif isinstance(message, AttributeSet | AttributeUnset):
            if not self._attribute_event(message, events):
                return
        elif isinstance(message, HelloReceived):
            self._machine.step(HelloCompleted)
        else:
            self._welcomed(message, events)
            return
        self._give(message, events)

    def _welcomed(self, message: Event, events: list[Event]) -> None:
        self.deadlines.clear("hello")
        events.append(message)
        events += self._lift_barrier()

    # ── commands in ─────────────────────────────────────────────────────────────────────────────

    def _on_fatal(self, frame: Frame, events: list[Event]) -> None:
        self._end()
        events.append(FatalReceived(*coded(frame.payload)))

    def _on_attachment_error(self, frame: Frame, events: list[Event]) -> None:
        self.counters.attachments_failed += 1
        self._fill(AttachmentFailure(frame.payload[:FAILURE_CHARACTERS]), events)

    def _on_call(self, frame: Frame, events: list[Event]) -> None:
        if self._serve(frame, events):
            message = CallReceived(frame.id, frame.payload)
            if frame.attachments:
                self._deliver(message, frame.attachments, None, events)
            else:
                self._give(message, events)

    def _serve(self, frame: Frame, events: list[Event]) -> bool:
        """May this call be served?  Its id is pending then (``UM-09``, ``UM-20``)."""
        id, serving = frame.id, self._serving
        number = int(id, 36) if id else 0  # as frame.number, without a call
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
        payload = frame.payload
        nbytes = len(payload) if payload.isascii() else text_bytes(payload)
        if not self.memory.take(nbytes + SESSION_WEIGHT_BYTES):
            self._refuse_kept(id, events)
            self._discard(frame, events)
            return False
        serving[number] = id, nbytes
        self._serving_bytes += nbytes
        return True

    def _weigh(self, message: CallReceived | CallbackReceived, events: list[Event]) -> bool:
        """The attachments of a call weigh until it is answered (``UM-20``).

        False, and the call is refused, if the process cannot keep them; also if the
        call was answered before they came.
        """
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
        self._out.append(encode(CallError(id, text)))
        events.append(MemoryLimitExceeded("call"))

    def _refuse(self, frame: Frame, code: Code, why: str, events: list[Event]) -> None:
        self._out.append(encode(CallError(frame.id, f"{code.value} {why}")))
        self._discard(frame, events)

    def _on_callback(self, frame: Frame, events: list[Event]) -> None:
        digits, colon, argument = frame.payload.partition(":")
        if not colon or not is_id(digits):
            text = "B carries no callback id and colon"
            self._fail(wire.fault("callback", text, frame.payload), events)
        elif self._serve(frame, events):
            callback = wire.number(digits)
            if callback in self._callbacks:
                message = CallbackReceived(frame.id, callback, argument)
                self._deliver(message, frame.attachments, None, events)
            else:
                self._forget_call(frame.number)
                self._refuse(frame, Code.CALLBACK_NOT_FOUND, "callback not found", events)

    def _on_result(self, frame: Frame, events: list[Event]) -> None:
        number = frame.number
        call = self._pending.get(number)
        if call is None or call.answer is not None:
            self.counters.unknown_answers += 1
            self._discard(frame, events)
            return
        self.counters.results += 1
        message = ResultReceived(number, call.waiter, frame.payload)
        if frame.attachments:
            call.answer = self._deliver(message, frame.attachments, None, events)
        else:
            self._pending.resolve(number)
            self._give(message, events)

    def _on_error(self, frame: Frame, events: list[Event]) -> None:
        number = frame.number
        call = self._pending.get(number)
        if call is None or call.answer is not None:
            self.counters.unknown_answers += 1
            return
        self.counters.errors += 1
        self._pending.resolve(number)
        self._give(ErrorReceived(number, call.waiter, frame.payload), events)

    def _on_update(self, frame: Frame, events: list[Event]) -> None:
        topic = frame.number
        if topic in self._subscriptions:
            self.counters.updates += 1
            message = TopicUpdated(topic, frame.payload)
            self._deliver(message, frame.attachments, ("topic", topic), events)
        else:
            self._unknown_update(topic, frame.id)
            self._discard(frame, events)

    def _unknown_update(self, topic: int, id: str) -> None:
        """Say ``U`` once to an update that nobody wants, then be silent (UM-12, UM-14); to those
        of a great many topics each time.
        """
        if topic in self._closing:
            self.counters.late_updates += 1
            return
        self.counters.unknown_topics += 1
        self._out.append(encode(Unsubscribe(id)))
        if len(self._closing) < UNKNOWN_TOPICS:
            self._close_topic_here(topic)

    def _on_topic_close(self, frame: Frame, events: list[Event]) -> None:
        topic = frame.number
        if topic in self._subscriptions:
            message = TopicClosed(topic)
            if not self._behind(message, ("topic", topic), events):
                self._emit(message, events)
        elif self._closing.pop(topic, None) is None:
            self.counters.unknown_topics += 1

    def _topic_event(self, message: TopicUpdated | TopicClosed, events: list[Event]) -> bool:
        topic = message.topic
        if topic in self._subscriptions:
            if isinstance(message, TopicClosed):
                del self._subscriptions[topic]
            return True
        if isinstance(message, TopicClosed):
            self._closing.pop(topic, None)
        else:
            self._unknown_update(topic, base36(topic))
        return False

    def _on_unsubscribe(self, frame: Frame, events: list[Event]) -> None:
        topic = frame.number
        if self._published.pop(topic, None) is None:
            self.counters.unknown_topics += 1
            return
        self.memory.remove(TOPIC_WEIGHT_BYTES)
        self._out.append(encode(TopicClose(frame.id)))
        self._give(TopicUnsubscribed(topic), events)

    def _on_set(self, frame: Frame, events: list[Event]) -> None:
        name, equals, value = frame.payload.partition("=")
        if not equals:
            self._fail(wire.fault("attribute", "S carries no name=value", frame.payload), events)
        else:
            key = ("attribute", name)
            self._deliver(AttributeSet(name, value), frame.attachments, key, events)

    def _on_unset(self, frame: Frame, events: list[Event]) -> None:
        message = AttributeUnset(frame.payload)
        if not self._behind(message, ("attribute", message.name), events):
            self._emit(message, events)

    def _attribute_event(self, message: AttributeSet | AttributeUnset, events: list[Event]) -> bool:
        """Put the attribute's change in force; False (and a fault) above the limits (``UM-20``)."""
        self.forget_attribute(message.name)
        if isinstance(message, AttributeUnset):
            return True
        nbytes = len(message.name.encode()) + len(message.value.encode())
        attachments = attachments_bytes(message.attachments)
        nbytes += attachments
        self._attributes_bytes += nbytes
        if (
            len(self.attributes) >= self._limits["attributes"]
            or self._attributes_bytes > self._limits["attributes-bytes"]
        ):
            fault = UmqFault("attributes", "too many attributes", b"", Code.REJECTED)
            self._fail(fault, events)
            return False
        weight = text_bytes(message.name) + text_bytes(message.value) + attachments
        weight += SESSION_WEIGHT_BYTES + ATTACHMENT_BYTES * len(message.attachments)
        if not self.memory.take(weight):
            events.append(MemoryLimitExceeded("new attribute"))
            text = f"too many attributes: {SESSION_LIMIT}"
            self._fail(UmqFault("attributes", text, b"", Code.UNAVAILABLE), events)
            return False
        attribute = PeerAttribute(message.value, message.attachments, nbytes, weight)
        self.attributes[message.name] = attribute
        return True

    def forget_attribute(self, name: str) -> None:
        before = self.attributes.pop(name, None)
        if before is not None:
            self._attributes_bytes -= before.nbytes
            self.memory.remove(before.weight)

    # ── what the sink says ──────────────────────────────────────────────────────────────────────

    def made_safe(
        self, position: Sequence[CallReceived | CallbackReceived], now: float
    ) -> list[Event]:
        """The calls of this batch are safe: CallsSafe says that they may be answered now.

        The position of a batch is the calls in it whose answers wait for the sink; it may be empty.
        """
        self.clock = max(now, self.clock)
        return [CallsSafe(position)] if position and self._machine.state is self.open_state else []

    def not_safe(
        self, position: Sequence[CallReceived | CallbackReceived], now: float
    ) -> list[Event]:
        """A batch never will be safe: its calls are refused, and the session ends.

        Going on would leave a gap in what is stored of this session.
        """
        self.clock = max(now, self.clock)
        if self.opened:
            for call in position:
                self.error(call.id, f"{Code.UNAVAILABLE.value} the call was not stored")
            self.fatal(Code.UNAVAILABLE, "temporarily unavailable")
        return []

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> list[Event]:
        self.clock = max(now, self.clock)
        return super().advance(now)

    def paused(self, now: float) -> list[Event]:
        self._paused = True
        return []

    def resumed(self, now: float) -> list[Event]:
        self._paused = False
        if len(self._incoming) and not self.closed:
            self._incoming_since = now
            self.deadlines.no_later("attachment", now + self._attachment_seconds)
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

    def _calls_expired(self, now: float, events: list[Event]) -> None:
        for number, call in self._pending.expire(now):
            later = call.seconds and self.taken_at(now) + call.seconds
            if later > now:
                self._pending.add(number, call, later)
                continue
            if call.answer is not None:
                self._incoming.forget(call.answer)
            events.append(CallExpired(number, call.waiter))
        following = self._pending.next_deadline()
        if following is not None:
            self.deadlines.set("call", following)

    def _fill_expired(self, now: float, events: list[Event]) -> None:
        if len(self._outgoing) and now >= self._outgoing_since + self._fill_seconds:
            self.fill_error(self._outgoing.first, "the attachment is not there in time")
        if len(self._outgoing):
            self.deadlines.set("fill", self._outgoing_since + self._fill_seconds)

    def _closing_expired(self, now: float, events: list[Event]) -> None:
        """Topics that ended here are forgotten: late updates have had their time."""
        closing = self._closing
        while closing and (first := next(iter(closing.items())))[1] <= now:
            del closing[first[0]]
        if closing:
            self.deadlines.set("closing", next(iter(closing.values())))

    timely: ClassVar[dict[Any, Any]] = {
        "hello": _hello_expired,
        "attachment": _attachment_expired,
        "call": _calls_expired,
        "fill": _fill_expired,
        "closing": _closing_expired,
    }

    def drain(self, now: float) -> list[Event]:
        self._draining = True
        return []

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def lost(self, now: float) -> list[Event | WorkLost]:
        """Return the waiters of all our calls: these have failed, because the connection is gone or
        about to be.

        Oldest first; a second call returns none.
        """
        if not self.closed:
            self._machine.step(ConnectionLost)
            self._end()
        self._out.clear()
        waiters = [call.waiter for _, call in self._pending.drain()]
        return [WorkLost(waiters)] if waiters else []


ACTIONS: Final[dict[type[Frame], Callable[[Any, Frame, list[Event]], None]]] = {
    Fatal: Peer._on_fatal,
    AttachmentError: Peer._on_attachment_error,
    Call: Peer._on_call,
    Callback: Peer._on_callback,
    Result: Peer._on_result,
    CallError: Peer._on_error,
    TopicUpdate: Peer._on_update,
    TopicClose: Peer._on_topic_close,
    Unsubscribe: Peer._on_unsubscribe,
    SetAttribute: Peer._on_set,
    UnsetAttribute: Peer._on_unset,
}
