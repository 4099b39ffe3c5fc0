"""One half of a UMQ machine speaks: it has the verbs, and knows what they leave to be answered.

:class:`Speaker` is the base of :class:`.receiving.Peer`; that one listens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core.connection import Connection
from ...core.deadlines import Deadlines, Pending
from ...core.errors import LimitExceeded
from ...core.limits import Limits
from ...core.machine import IllegalTransition, Machine, State, Table
from ...core.session_memory import SESSION_LIMIT, SESSION_WEIGHT_BYTES, MemoryShare, SessionMemory
from .. import wire
from ..terms import (
    CLOSING_SECONDS,
    CLOSING_TOPICS,
    FILL_SECONDS,
    LIMITS,
    CommandSent,
    Counters,
    Event,
    FatalSent,
)
from ..wire import (
    AttachmentError,
    Call,
    Callback,
    CallError,
    Fatal,
    Frame,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    base36,
    command_text,
    encode,
    is_id,
)
from .attachments import Announcement, Incoming, Outgoing, Slot

TOPIC_WEIGHT_BYTES: Final = 2 << 10
"""An open topic takes this much: its objects here, at the session and at who publishes."""


LATE_BYTES: Final = 1 << 10
"""A call whose answer comes later needs this much beside: what the application waits with."""


@dataclass(slots=True)
class OwnCall:
    """A call of ours: who waits, and the announcement of its answer's attachments.

    ``seconds`` is how long an answer may need after the peer has read the call; 0: its deadline is
    fixed.
    """

    waiter: object
    answer: Announcement | None = None
    seconds: float = 0.0


Wire = str | bytes


class Speaker(Connection[Sequence[Wire], list[Wire], Event]):
    """A machine's verbs (``UM-04``, ``UM-08`` … ``UM-16``).

    Verbs raise IllegalTransition in a state where they cannot be, LimitExceeded (and send nothing)
    above our own limits, ValueError for what is not theirs to answer.

    Attributes:
        clock: the latest ``now`` the machine was told; set it before a verb when time has passed.
        memory: what this side keeps for the peer: calls, topics, attributes.  Clear it
            when the machine is dropped: until then even a closed one keeps them.
    """

    table: Table[Any]
    open_state: State
    closed_state: State
    counters: Counters
    deadlines: Deadlines
    memory: MemoryShare

    # What most connections never change stands here: an idle one weighs less.
    _draining = False
    _last_call = 0
    _last_callback = 0
    _last_topic = 0

    def __init__(
        self, initial: State, limits: Limits | None, now: float, every: SessionMemory | None = None
    ) -> None:
        limits = Limits.of(LIMITS) if limits is None else limits
        self._limits = limits
        self.memory = MemoryShare(every)
        self.clock = now
        self._machine: Machine[Any] = Machine(self.table, initial)
        self._out: list[Wire] = []
        self.deadlines = Deadlines()
        self.deadlines.set("hello", now + limits["hello-seconds"])
        self._characters_max = limits.integer("payload-characters")
        self._attachments_max = limits.integer("attachments")
        self._fill_seconds = FILL_SECONDS
        self._serving: dict[int, tuple[str, int]] = {}  # the peer's calls: id as it came, bytes
        self._serving_bytes = 0
        self._pending: Pending[int, OwnCall] = Pending(limits.integer("own-calls"))
        self._incoming = Incoming()
        self._outgoing = Outgoing()
        self._outgoing_since = now  # of the last message with slots, or the last slot sent
        self._callbacks: dict[int, None] = {}
        self._subscriptions: dict[int, None] = {}
        self._closing: dict[int, float] = {}  # topics that ended here → when to forget them
        self._published: dict[int, str] = {}  # value of the topic's id → id as it came

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
        return self._machine.state is self.closed_state or (self._draining and not self._serving)

    def outputs(self) -> list[Wire]:
        """Return and forget the messages to send, in order: ``str`` as text, ``bytes`` as
        binary.
        """
        out, self._out = self._out, []
        return out

    def _end(self) -> None:
        self.deadlines.clear_all()
        self._incoming = Incoming()
        self._outgoing.clear()

    def _close_topic_here(self, topic: int) -> None:
        """Late updates of ``topic`` are dropped silently for a while (``UM-14``)."""
        closing = self._closing
        closing[topic] = at = self.clock + CLOSING_SECONDS
        self.deadlines.no_later("closing", at)
        if len(closing) > CLOSING_TOPICS:
            del closing[next(iter(closing))]

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def _sending(self) -> None:
        if self._machine.state is not self.open_state:
            raise IllegalTransition(self._machine.state, CommandSent)

    def check(self, payload: str, attachments: Sequence[bytes | Slot] = ()) -> None:
        """Raise what a verb would raise for this payload and these attachments; send nothing.

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
                raise TypeError(f"an attachment is bytes or a Slot, not {type(attachment)}")

    def _send(
        self, kind: type[Frame], id: str, payload: str, attachments: Sequence[bytes | Slot]
    ) -> None:
        """Queue a command and its attachments, or raise what ``check`` raises."""
        if (
            attachments
            or not isinstance(payload, str)
            or len(payload) > self._characters_max
            or not payload.isascii()
        ):
            self.check(payload, attachments)
        self._out.append(command_text(kind, id, payload, len(attachments)))
        if not attachments:
            return
        if not len(self._outgoing):
            self._outgoing_since = self.clock
        self._outgoing.add(attachments)
        self._send_slots()
        if len(self._outgoing):
            self.deadlines.no_later("fill", self._outgoing_since + self._fill_seconds)

    def _send_slots(self) -> None:
        for slot in self._outgoing.due():
            self._outgoing_since = self.clock
            if slot.body is not None:
                self._out.append(slot.body)
            else:
                self._out.append(encode(AttachmentError("", slot.error or "")))

    def fill(self, slot: Slot, body: bytes) -> None:
        """Fill a slot that was passed to a verb; the attachment is sent when its turn comes.

        One above ``attachment-bytes`` is replaced by ``-`` and raises LimitExceeded, what is no
        bytes TypeError.  A slot that is filled already stays as it is.
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

    def call(
        self,
        payload: str,
        attachments: Sequence[bytes | Slot] = (),
        *,
        waiter: object = None,
        deadline: float | None = None,
        seconds: float = 0.0,
    ) -> int:
        """Call the peer; the answer's event carries ``waiter`` (``UM-09``).

        ``deadline`` is when CallExpired comes instead; with ``seconds`` not before that many have
        passed in which the peer read nothing of ours.  Returns the call's number.
        """
        return self.own_call(Call, payload, attachments, waiter, deadline, seconds)

    def callback(
        self,
        callback: int,
        argument: str,
        attachments: Sequence[bytes | Slot] = (),
        *,
        waiter: object = None,
        deadline: float | None = None,
        seconds: float = 0.0,
    ) -> int:
        """Call what the peer registered as ``callback``; otherwise like ``call`` (``UM-11``)."""
        payload = base36(callback) + ":" + argument
        return self.own_call(Callback, payload, attachments, waiter, deadline, seconds)

    def own_call(
        self,
        kind: type[Frame],
        payload: str,
        attachments: Sequence[bytes | Slot],
        waiter: object,
        deadline: float | None,
        seconds: float,
    ) -> int:
        if self._machine.state is not self.open_state:
            raise IllegalTransition(self._machine.state, CommandSent)
        number = self._last_call + 1
        pending = self._pending
        pending.add(number, OwnCall(waiter, None, seconds), deadline)
        try:
            self._send(kind, base36(number), payload, attachments)
        except BaseException:
            pending.resolve(number)
            raise
        if deadline is not None:
            self.deadlines.no_later("call", deadline)
        self._last_call = number
        return number

    def cancel(self, number: int) -> bool:
        """Nobody waits for this call any more; its answer will be ignored.  False if too late."""
        call = self._pending.resolve(number)
        if call is None:
            return False
        if call.answer is not None:
            self._incoming.forget(call.answer)
        return True

    def result(self, id: str, payload: str, attachments: Sequence[bytes | Slot] = ()) -> None:
        """Answer the peer's call ``id`` (``UM-10``); ValueError if it is not pending."""
        self._answer(id, Result, payload, attachments)

    def error(self, id: str, payload: str) -> None:
        """Refuse the peer's call ``id``, or say that it failed (``UM-09``); ValueError as above."""
        self._answer(id, CallError, payload, ())

    def _answer(
        self, id: str, kind: type[Frame], payload: str, attachments: Sequence[bytes | Slot]
    ) -> None:
        if self._machine.state is not self.open_state:
            raise IllegalTransition(self._machine.state, CommandSent)
        number = int(id, 36) if id else 0  # this and the end are written out: each call comes here
        served = self._serving.get(number)
        if served is None:
            raise ValueError(f"no call {id!r} is pending")
        self._send(kind, served[0], payload, attachments)
        nbytes = self._serving.pop(number)[1]
        self._serving_bytes -= nbytes
        self.memory.remove(nbytes + SESSION_WEIGHT_BYTES)

    def later(self, id: str) -> None:
        """The answer to the peer's call ``id`` comes later, if it has not come yet: until then the
        application's objects count as well.
        """
        number = wire.number(id)
        served = self._serving.get(number)
        if served is not None:
            self._serving[number] = served[0], served[1] + LATE_BYTES
            self._serving_bytes += LATE_BYTES
            self.memory.add(LATE_BYTES)

    def _forget_call(self, number: int) -> None:
        nbytes = self._serving.pop(number)[1]
        self._serving_bytes -= nbytes
        self.memory.remove(nbytes + SESSION_WEIGHT_BYTES)

    def register_callback(self, callback: int | None = None) -> int:
        """A new callback that the peer may call until it is unregistered (``UM-11``).

        Without a number it gets the next one.
        """
        if len(self._callbacks) >= self._limits["callbacks"]:
            raise LimitExceeded(f"{len(self._callbacks)} callbacks are registered already")
        if callback is None:
            callback = self._last_callback + 1
        self._last_callback = max(callback, self._last_callback)
        self._callbacks[callback] = None
        return callback

    def unregister_callback(self, callback: int) -> None:
        """The peer is told ``E`` 2 from now on (``UM-11``)."""
        self._callbacks.pop(callback, None)

    def subscribe(self) -> int:
        """Return a new topic, known before the call that asks the peer to publish to it
        (``UM-14``).
        """
        self._sending()
        if len(self._subscriptions) >= self._limits["own-subscriptions"]:
            raise LimitExceeded(f"{len(self._subscriptions)} topics are subscribed already")
        self._last_topic += 1
        self._subscriptions[self._last_topic] = None
        return self._last_topic

    def unsubscribe(self, topic: int) -> None:
        """Say ``U``; what still comes is dropped silently (``UM-14``).  Nothing if it has ended."""
        self._sending()
        if topic in self._subscriptions:
            del self._subscriptions[topic]
            self._close_topic_here(topic)
            self._out.append(encode(Unsubscribe(base36(topic))))

    def open_topic(self, id: str) -> int:
        """The peer subscribed and chose ``id``: publish to the topic that this returns.

        ValueError for what is no id, or is a topic already (``UM-12``).
        """
        self._sending()
        if not id or not is_id(id):
            raise ValueError(f"{id[:40]!r} is no topic id")
        topic = wire.number(id)
        if topic in self._published:
            raise ValueError(f"the topic id {id} is in use")
        if len(self._published) >= self._limits["topics"]:
            raise LimitExceeded(f"{len(self._published)} topics are open already")
        if not self.memory.take(TOPIC_WEIGHT_BYTES):
            raise LimitExceeded(f"too many topics are open already: {SESSION_LIMIT}")
        self._published[topic] = id
        return topic

    def publish(self, topic: int, payload: str, attachments: Sequence[bytes | Slot] = ()) -> None:
        """Send an update on an open topic (``UM-12``); raise ValueError if the topic was closed."""
        self._sending()
        id = self._published.get(topic)
        if id is None:
            raise ValueError(f"the topic {base36(topic)} is not open")
        self._send(TopicUpdate, id, payload, attachments)

    def close_topic(self, topic: int) -> None:
        """Say ``D`` (``UM-13``); nothing if the topic has ended already."""
        self._sending()
        id = self._published.pop(topic, None)
        if id is not None:
            self.memory.remove(TOPIC_WEIGHT_BYTES)
            self._out.append(encode(TopicClose(id)))

    def set_attribute(
        self, name: str, value: str, attachments: Sequence[bytes | Slot] = ()
    ) -> None:
        """Set an attribute at the peer (``UM-15``); ValueError for a name with ``=``."""
        self._sending()
        if "=" in name:
            raise ValueError(f"an attribute's name has no '=': {name!r}")
        self._send(SetAttribute, "", name + "=" + value, attachments)

    def unset_attribute(self, name: str) -> None:
        """Unset an attribute at the peer (``UM-16``)."""
        self._sending()
        self._send(UnsetAttribute, "", name, ())

    def fatal(self, code: int, text: str) -> None:
        """Say ``F`` as our last command, then close the WebSocket (``UM-08``).

        In any state but closed, where it does nothing.  Of a text what cannot be sent is replaced.
        """
        if not self.closed:
            self._machine.step(FatalSent)
            said = f"{code:d} {text}"[: self._characters_max]
            self._out.append(encode(Fatal("0", said.encode("utf-8", "replace").decode())))
            self._end()
