"""Both sides of a UMQ connection are machines: messages in, events out, without I/O or clock.

Nothing travels twice and nothing is acknowledged but calls, by their answers.  So what is pending
when the connection ends has failed, and nobody knows whether the peer did it.

Inputs and outputs are WebSocket messages, ``str`` for text and ``bytes`` for binary ones.  After a
``UmqFault`` or a ``FatalReceived`` send what is left, close the WebSocket, and fail what
``lost(now)`` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ...core.connection import WorkLost
from ...core.deadlines import Pending
from ...core.errors import LimitExceeded
from ...core.limits import Limits
from ...core.session_memory import SESSION_LIMIT, SESSION_WEIGHT_BYTES, SessionMemory, text_bytes
from .. import wire
from ..terms import (
    CLIENT,
    CLOSING_SECONDS,
    CLOSING_TOPICS,
    HELLO_ATTACHMENTS,
    HELLO_CHARACTERS,
    SERVER,
    AttributeSet,
    AttributeUnset,
    CallbackReceived,
    CallExpired,
    ClientState,
    ErrorReceived,
    Event,
    HelloReceived,
    MemoryLimitExceeded,
    ResultReceived,
    ServerState,
    Step,
    TopicClosed,
    TopicUnsubscribed,
    TopicUpdated,
    WelcomeReceived,
)
from ..wire import (
    VERSION,
    Code,
    Command,
    Commands,
    Frame,
    UmqFault,
    base36,
    encode,
    is_id,
)
from .attachments import (
    ATTACHMENT_BYTES,
    Announcement,
    Filled,
    Ordered,
    PeerAttribute,
    Slot,
    attachments_bytes,
)
from .callee import Action, Callee

TOPIC_WEIGHT_BYTES: Final = 2 << 10
"""An open topic takes this much: its objects here, at the session and at who publishes."""

UNKNOWN_TOPICS: Final = 64
"""Of topics that were never ours no more are remembered: the peer chooses them."""


@dataclass(slots=True)
class OwnCall:
    waiter: object
    answer: Announcement | None = None  # of its attachments


class Peer(Callee):
    """What both sides share: all of the protocol after ``W``.

    Serves ``UM-01`` … ``UM-05`` and ``UM-08`` … ``UM-20``.  Verbs raise IllegalTransition in a
    state where they cannot be, LimitExceeded (and send nothing) above our own limits, ValueError
    for what is not theirs to answer.
    """

    # When the peer took something of ours last: calls without a time-out run from there.
    taken_at: Callable[[float], float] = staticmethod(lambda now: 0.0)
    _last_call = 0
    _last_callback = 0
    _last_topic = 0
    _attributes_bytes = 0

    def __init__(
        self, limits: Limits | None = None, now: float = 0.0, *, every: SessionMemory | None = None
    ) -> None:
        """``every`` bounds what the sessions of the process keep for their peers."""
        super().__init__(limits, now, every)
        self._pending: Pending[int, OwnCall] = Pending(self._limits.integer("own-calls"))
        self._callbacks: dict[int, None] = {}
        self._subscriptions: dict[int, None] = {}
        self._closing: dict[int, float] = {}  # topics that ended here → when to forget them
        self._published: dict[int, str] = {}  # value of the topic's id → id as it came
        self.attributes: dict[str, PeerAttribute] = {}

    @property
    def calls_pending(self) -> int:
        return len(self._pending)

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
            "slots": len(self._slots),
        }

    def _complete(self, message: Ordered, events: list[Event]) -> None:
        if isinstance(message, ResultReceived):
            self._pending.resolve(message.number)
        elif isinstance(message, TopicUpdated | TopicClosed):
            if not self._topic_event(message, events):
                return
        elif isinstance(message, AttributeSet | AttributeUnset):
            if not self._attribute_event(message, events):
                return
        elif isinstance(message, HelloReceived):
            self._machine.step(Step.HELLO_COMPLETED)
        else:
            self.deadlines.clear("hello")
            events.append(message)
            return
        self._give(message, events)

    # ── our calls ─────────────────────────────────────────────────────────────────────────────────

    def call(
        self,
        payload: str,
        attachments: Sequence[bytes | Slot] = (),
        callback: int | None = None,
        *,
        waiter: object = None,
        deadline: float | None = None,
        own: bool = True,
    ) -> int:
        """Return the call's number; the answer's event carries ``waiter`` (``UM-09``, ``UM-11``).

        CallExpired comes at ``deadline``; if that is not the call's ``own``, not before
        ``call-seconds`` have passed in which the peer took nothing of ours.
        """
        self._sending()
        command = Commands.CALL
        if callback is not None:
            command, payload = Commands.CALLBACK, base36(callback) + ":" + payload
        number = self._last_call + 1
        pending = self._pending
        pending.add(number, OwnCall(waiter), deadline, own=own and deadline is not None)
        try:
            self._send(command, base36(number), payload, attachments)
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

    def _calls_expired(self, now: float, events: list[Event]) -> None:
        later = self.taken_at(now) + self._limits["call-seconds"]
        for number, call in self._pending.expire(now, later):
            if call.answer is not None:
                self._incoming.forget(call.answer)
            events.append(CallExpired(number, call.waiter))
        following = self._pending.next_deadline()
        if following is not None:
            self.deadlines.set("call", following)

    # ── callbacks ─────────────────────────────────────────────────────────────────────────────────

    def register_callback(self, callback: int | None = None) -> int:
        """Return the number of a callback that the peer may call from now on (``UM-11``)."""
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

    # ── topics that we subscribed ─────────────────────────────────────────────────────────────────

    def subscribe(self) -> int:
        """Return a new topic; then ask the peer to publish to it (``UM-14``)."""
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
            self._out.append(encode(Commands.UNSUBSCRIBE, base36(topic)))

    def _close_topic_here(self, topic: int) -> None:
        """Late updates of ``topic`` are dropped silently for a while (``UM-14``)."""
        closing = self._closing
        closing[topic] = at = self.clock + CLOSING_SECONDS
        self.deadlines.no_later("closing", at)
        if len(closing) > CLOSING_TOPICS:
            del closing[next(iter(closing))]

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
        """Say ``U`` once to an update that nobody wants, then be silent (UM-12, UM-14)."""
        if topic in self._closing:
            return
        self._out.append(encode(Commands.UNSUBSCRIBE, id))
        if len(self._closing) < UNKNOWN_TOPICS:
            self._close_topic_here(topic)

    def _on_topic_close(self, frame: Frame, events: list[Event]) -> None:
        topic = frame.number
        if topic in self._subscriptions:
            message = TopicClosed(topic)
            if not self._behind(message, ("topic", topic), events):
                self._emit(message, events)
        else:
            self._closing.pop(topic, None)

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

    def _closing_expired(self, now: float, events: list[Event]) -> None:
        closing = self._closing
        while closing and (first := next(iter(closing.items())))[1] <= now:
            del closing[first[0]]
        if closing:
            self.deadlines.set("closing", next(iter(closing.values())))

    # ── topics that the peer subscribed ───────────────────────────────────────────────────────────

    def open_topic(self, id: str) -> int:
        """ValueError for what is no id, or is a topic already (``UM-12``)."""
        self._sending()
        if not isinstance(id, str) or not id or not is_id(id):
            raise ValueError(f"{str(id)[:40]!r} is no topic id")
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
        self._send(Commands.TOPIC_UPDATE, id, payload, attachments)

    def close_topic(self, topic: int) -> None:
        """Say ``D`` (``UM-13``); nothing if the topic has ended already."""
        self._sending()
        id = self._published.pop(topic, None)
        if id is not None:
            self.memory.remove(TOPIC_WEIGHT_BYTES)
            self._out.append(encode(Commands.TOPIC_CLOSE, id))

    def _on_unsubscribe(self, frame: Frame, events: list[Event]) -> None:
        topic = frame.number
        if self._published.pop(topic, None) is None:
            return
        self.memory.remove(TOPIC_WEIGHT_BYTES)
        self._out.append(encode(Commands.TOPIC_CLOSE, frame.id))
        self._give(TopicUnsubscribed(topic), events)

    # ── attributes ────────────────────────────────────────────────────────────────────────────────

    def set_attribute(
        self, name: str, value: str, attachments: Sequence[bytes | Slot] = ()
    ) -> None:
        """Set an attribute at the peer (``UM-15``); ValueError for a name with ``=``."""
        self._sending()
        if "=" in name:
            raise ValueError(f"an attribute's name has no '=': {name!r}")
        self._send(Commands.SET_ATTRIBUTE, "", name + "=" + value, attachments)

    def unset_attribute(self, name: str) -> None:
        """Unset an attribute at the peer (``UM-16``)."""
        self._sending()
        self._send(Commands.UNSET_ATTRIBUTE, "", name, ())

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

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    timely: ClassVar[dict[Any, Any]] = {
        **Callee.timely,
        "call": _calls_expired,
        "closing": _closing_expired,
    }

    def lost(self, now: float) -> list[Event | WorkLost]:
        """Return the waiters of all our calls, oldest first: these have failed."""
        if not self.closed:
            self._machine.step(Step.CONNECTION_LOST)
            self._end()
        self._out.clear()
        waiters = [call.waiter for _, call in self._pending.drain()]
        return [WorkLost(waiters)] if waiters else []


ACTIONS: Final[dict[Command, Action]] = {
    Commands.FATAL: Peer._on_fatal,
    Commands.ATTACHMENT_ERROR: Peer._on_attachment_error,
    Commands.CALL: Peer._on_call,
    Commands.CALLBACK: Peer._on_callback,
    Commands.RESULT: Peer._on_result,
    Commands.CALL_ERROR: Peer._on_error,
    Commands.TOPIC_UPDATE: Peer._on_update,
    Commands.TOPIC_CLOSE: Peer._on_topic_close,
    Commands.UNSUBSCRIBE: Peer._on_unsubscribe,
    Commands.SET_ATTRIBUTE: Peer._on_set,
    Commands.UNSET_ATTRIBUTE: Peer._on_unset,
}


UNDECIDED: Final = "undecided"
"""A fault has this reason if nobody has said in time whether the client may come in."""


class Client(Peer):
    """``hello``, then ``accept`` after WelcomeReceived (``UM-06``, ``UM-07``)."""

    table = CLIENT
    first_state: ClientState = ClientState.START
    open_state: ClientState = ClientState.OPEN
    closed_state: ClientState = ClientState.CLOSED

    @property
    def finished(self) -> bool:
        return self.closed or (super().finished and not self._pending)

    def hello(self, payload: str = "", attachments: Sequence[bytes | Slot] = ()) -> None:
        """Say ``H``: the first verb of all (``UM-06``)."""
        self.check(payload, attachments)
        self._machine.step(Step.HELLO_SENT)
        self._send(Commands.HELLO, base36(VERSION), payload, attachments)

    def _on_welcome(self, frame: Frame, events: list[Event]) -> None:
        version = frame.number
        if not 1 <= version <= VERSION:
            text = f"W has version {version}, H had {VERSION}"
            self._fail(UmqFault("version", text, b"", Code.UNSUPPORTED_VERSION), events)
            return
        self._barrier = []
        self._deliver(WelcomeReceived(version, frame.payload), frame.attachments, None, events)

    def accept(self, now: float) -> list[Event]:
        """We accept the server: what it has said since ``W`` is told from here on (``UM-07``)."""
        self.clock = max(now, self.clock)
        return self._lift_barrier()


Client.actions = {**ACTIONS, Commands.WELCOME: Client._on_welcome}


class Server(Peer):
    """The side that answers: after HelloReceived, ``welcome`` or ``fatal`` (UM-06, UM-07)."""

    table = SERVER
    first_state: ServerState = ServerState.AWAITING_HELLO
    open_state: ServerState = ServerState.OPEN
    closed_state: ServerState = ServerState.CLOSED

    def _on_hello(self, frame: Frame, events: list[Event]) -> None:
        version = frame.number
        fault = None
        if version < 1:
            text = f"H has version {version}"
            fault = UmqFault("version", text, b"", Code.UNSUPPORTED_VERSION)
        elif len(frame.payload) > HELLO_CHARACTERS:
            fault = UmqFault("hello-characters", "H is too long")
        elif frame.attachments > HELLO_ATTACHMENTS:
            fault = UmqFault("hello-attachments", "H has attachments", b"", Code.REJECTED)
        if fault is not None:
            self._fail(fault, events)
            return
        self._deliver(HelloReceived(version, frame.payload), frame.attachments, None, events)

    def _oversize(self) -> UmqFault:
        if self._machine.state is ServerState.AWAITING_HELLO:
            return UmqFault("hello-characters", "H, or an attachment of it, is too long")
        return super()._oversize()

    def _emit(self, message: Filled, events: list[Event]) -> None:
        if type(message) is HelloReceived:
            # From H to W is our own time: it is limited, and H with its attachments is kept.
            nbytes = text_bytes(message.payload) + attachments_bytes(message.attachments)
            nbytes += SESSION_WEIGHT_BYTES
            if not self.memory.take(nbytes):
                events.append(MemoryLimitExceeded("log-in"))
                text = f"too many log-ins wait: {SESSION_LIMIT}"
                self._fail(UmqFault(SESSION_LIMIT, text, b"", Code.UNAVAILABLE), events)
                return
            self.deadlines.set("hello", self.clock + self._limits["hello-seconds"])
        super()._emit(message, events)

    def _hello_expired(self, now: float, events: list[Event]) -> None:
        if self._machine.state is ServerState.AUTHORISING:
            text = "nobody decided in time whether the client may come in"
            self._fail(UmqFault(UNDECIDED, text, b"", Code.UNAVAILABLE), events)
        else:
            super()._hello_expired(now, events)

    timely: ClassVar[dict[Any, Any]] = {**Peer.timely, "hello": _hello_expired}

    def welcome(self, payload: str = "", attachments: Sequence[bytes | Slot] = ()) -> None:
        """Accept the client: the session is open (``UM-07``).  Only after HelloReceived."""
        self.check(payload, attachments)
        self._machine.step(Step.WELCOME_SENT)
        self._send(Commands.WELCOME, base36(VERSION), payload, attachments)
        self.deadlines.clear("hello")
        self.memory.remove(self.memory.nbytes)  # of H: nothing else is kept before W


Server.actions = {**ACTIONS, Commands.HELLO: Server._on_hello}
