"""UMQ on Twisted, both sides: moves messages, owns Deferreds and back-pressure, decides nothing.

:class:`UmqSession` is what :class:`.sides.UmqServer` and :class:`.sides.UmqClient` share.
Time, sink, limits and methods come from the factory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from ...core.connection import WorkLost
from ...core.errors import ConnectionClosed, MsgprotoError, TimedOut, shown
from ...core.limits import Limit, Limits
from ...net.authentication import LOGIN_LIMITS
from ...net.backpressure import ReadControl
from ...net.factory import peer_name
from ...net.ingest import Delivery, tell_unread
from ...net.timer import MachineTimer
from ...net.wires.websocket import WEBSOCKET_LIMITS, WebSocketWire
from ..machine.sides import Client, Server
from ..terms import states
from ..terms.events import (
    Attachment,
    AttachmentArrived,
    AttachmentsAnnounced,
    AttributeSet,
    AttributeUnset,
    CallbackReceived,
    CallExpired,
    CallReceived,
    ErrorReceived,
    Event,
    FatalReceived,
    ResultReceived,
    TopicClosed,
    TopicUnsubscribed,
    TopicUpdated,
)
from ..wire import Code, UmqFault
from .answering import Answering
from .exchange import AttachmentStream, CallFailed, Reply, Request, SessionRefused, Update
from .storing import Storing
from .topics import Topic
from .verbs import Answer, Verbs

SUBPROTOCOL: Final = "umq"
"""The WebSocket sub-protocol we offer and know; a peer need not name one."""

LIMITS: Final = (
    *WEBSOCKET_LIMITS,
    *LOGIN_LIMITS,
    *states.LIMITS,
    Limit("call-seconds", 60.0, "s", "a call of ours is answered, or fails (UM-20)", 0.001),
    Limit("topic-queue-messages", 1000, "messages", "unread by a subscriber, then D (UM-21)"),
    Limit("topic-queue-octets", 1 << 20, "octets", "unread by a subscriber, then D (UM-21)"),
    Limit("backlog", 1000, "messages", "updates not taken yet: reading pauses", 1),
)
"""All limits of both sides (``UM-14``, ``UM-19`` … ``UM-21``)."""

_REPLY_CODES: Final = (Code.FORMAT, Code.UNSUPPORTED_COMMAND)


class PeerAttributes(Mapping[str, str]):
    """The peer's attributes, as they are now (``UM-15``, ``UM-16``)."""

    def __init__(self, session: UmqSession) -> None:
        self._session = session

    def __getitem__(self, name: str) -> str:
        return self._session.machine.attributes[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._session.machine.attributes)

    def __len__(self) -> int:
        return len(self._session.machine.attributes)

    def attachments(self, name: str) -> list[Attachment]:
        """The attachments which are part of the value; KeyError for what is not set."""
        return self._session.machine.attributes[name].attachments


class UmqSession(Verbs, Answering, Storing, Protocol):
    """One UMQ connection: verbs which return Deferreds, and hooks for subclasses.

    Attributes:
        machine: where the protocol stands.
        session: the session's public name.
        peer: the peer's transport address as text.
        address: its host alone; "" where there is none.
        clientId: the identity which was accepted at ``H``, or None (``UM-06``).
        attributes: the peer's attributes as a mapping.
        topics: the topics which the peer subscribed here, by number.
        subscriptions: the topics which we subscribed, by number.
    """

    actions: ClassVar[Mapping[type, Callable[[Any, Any], None]]]
    factory: Any
    transport: WebSocketWire  # type: ignore[assignment]
    wire: WebSocketWire
    machine: Server | Client
    session: str
    peer: str
    clientId: str | None
    limits: Limits

    # ── hooks for subclasses ────────────────────────────────────────────────────────────────────

    def sessionEstablished(self) -> None:
        """The session stands: verbs may be used."""

    def sessionLost(self, reason: Failure) -> None:
        """A session which stood has ended; all that was pending has failed."""

    def attributeChanged(self, name: str, value: str | None) -> None:
        """The peer set an attribute, or unset it (None) (``UM-15``, ``UM-16``)."""

    def streams(self, message: object) -> bool:
        """Whether to have this announced message's attachments one by one (``UM-19``).

        The default asks those who wait for it: the call, the subscription, the method.
        """
        if isinstance(message, ResultReceived):
            return isinstance(message.waiter, Answer) and message.waiter.streamed
        if isinstance(message, TopicUpdated):
            subscription = self.subscriptions.get(message.topic)
            return subscription is not None and subscription._streamed
        methods = self.factory.methods
        return (
            isinstance(message, CallReceived)
            and methods is not None
            and bool(methods.streams(message.payload))
        )

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def connectionMade(self) -> None:
        """The upgrade is done: begin; a subclass which overrides this calls it first."""
        factory = self.factory
        address = self.transport.getPeer()
        self.peer = peer_name(address)
        self.address = str(getattr(address, "host", ""))
        self.session = factory.sessionNames.next()
        self.clientId = None
        self.limits = factory.limits
        self.attributes = PeerAttributes(self)
        self.topics = {}
        self.subscriptions = {}
        self._callbacks: dict[int, Callable[[Request], Any]] = {}
        self._call_seconds = factory.limits["call-seconds"]
        self._slowTopics: dict[Topic, None] = {}
        self._streams: dict[int, tuple[object, AttachmentStream]] = {}
        self._stream_octets = 0
        self._backlog = 0
        self._own_paused = False
        self._established = False
        self._over = False  # more is unread than unread-octets
        self._inbox: list[CallReceived | CallbackReceived] = []
        self._held: list[Event] | None = None  # events which wait for our own authorisation
        self._selective = type(self).admit is not Answering.admit
        self._beginStoring()
        self._in_read = False
        self._draining = False
        self._closing = False  # an orderly end of ours, which waits for the answers to our calls
        self._reason: Exception | None = None
        self._control = ReadControl(self.transport, self._readingChanged)
        self._delivery: Delivery | None = None
        if factory.sink is not None:
            self._delivery = Delivery(
                self._put,
                self._control,
                factory.budget,
                factory.limits.integer("unsafe-octets"),
                self._notSafe,
                self._lookDrained,
            )
        factory.connectionOpened(self, self.address)
        clock = factory.clock
        self.machine = self._newMachine(clock.seconds())
        self._timer = MachineTimer(clock, self.machine, self._advanced)
        self._begin()
        self._flush()

    def _newMachine(self, now: float) -> Server | Client:
        raise NotImplementedError

    def _begin(self) -> None:
        """What this side does first."""

    def _establish(self) -> None:
        self._established = True
        self.sessionEstablished()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End; a subclass which overrides this calls it."""
        self._timer.stop()
        self._fail(ConnectionClosed("the connection was lost"))
        counters = self.factory.counters
        for name in self.machine.counters.__slots__:
            counters[name] += getattr(self.machine.counters, name)
        self.factory.budget.forget(self._control)
        self.factory.connectionClosed(self, reason)
        if self._established:
            self._established = False
            self.sessionLost(reason)

    def neverConnected(self, error: Exception) -> None:
        """The connection was lost before the upgrade."""

    def _fail(self, error: MsgprotoError) -> None:
        """The session is over: all that is pending fails with ``error`` (UM-08, UM-19)."""
        if self._reason is None:
            self._reason = error
        for event in self.machine.lost(self.factory.clock.seconds()):
            if isinstance(event, WorkLost):
                for waiter in event.work:
                    _fire(waiter, Failure(self._reason))
        for topic in list(self.topics.values()):
            topic._end("lost")
        for subscription in list(self.subscriptions.values()):
            subscription._lost()
        streams, self._streams = self._streams, {}
        for _, stream in streams.values():
            stream.lost()
        self._inbox.clear()

    def drain(self) -> None:
        """The server stops: refuse new calls, answer those which came, then close."""
        self._draining = True
        self.machine.drain(self.factory.clock.seconds())
        self._lookDrained()

    def _lookDrained(self) -> None:
        if self._draining and (
            self.machine.closed
            or (
                not self.machine.calls_serving
                and not (self._closing and self.machine.calls_pending)
                and (self._delivery is None or not self._delivery.unsafe_batches)
            )
        ):
            self.transport.close()

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def received(self, inputs: list[str | bytes]) -> None:
        """The WebSocket messages of one read."""
        self._in_read = True
        for event in self.machine.receive(inputs, self.factory.clock.seconds()):
            if self._held is None:
                self._take(event)
            else:
                self._held.append(event)
        self._readFinished()

    def _readFinished(self) -> None:
        """All of a read has been taken: hand it to the sink, write every answer at once."""
        self._in_read = False
        if self._gathered:
            self._putGathered()
        if self._flush() and self._over:
            self._control.pause("unread-output")  # the peer makes us write what it does not read
        if self._closing:
            self._lookDrained()

    def _take(self, event: Event) -> None:
        action = self.actions.get(type(event))
        if action is not None:
            action(self, event)

    def _onCall(self, event: CallReceived | CallbackReceived) -> None:
        if self._over:
            self._inbox.append(event)
        elif self._draining:
            self._streamOf(event)
            self.machine.error(event.id, f"{Code.UNAVAILABLE.value} the server stops")
        elif self._selective and not self._admitted(event):
            return
        elif self._delivery is None:
            self._serve(event)
        else:
            if not self.needsSafety(event):
                self._serve(event)
            self._gather("callback" if isinstance(event, CallbackReceived) else "call", event)

    def _onResult(self, event: ResultReceived) -> None:
        waiter: Any = event.waiter
        if not waiter.called:  # the callback of another answer may have cancelled it
            waiter.callback(Reply(event.payload, event.attachments, self._streamOf(event)))

    def _onError(self, event: ErrorReceived) -> None:
        _fire(event.waiter, Failure(CallFailed(event.payload)))

    def _onExpired(self, event: CallExpired) -> None:
        _fire(event.waiter, Failure(TimedOut("the call was not answered in time")))

    def _onUpdate(self, event: TopicUpdated) -> None:
        if self._delivery is not None:
            self._gather("topic", event)
        subscription = self.subscriptions.get(event.topic)
        if subscription is not None:
            update = Update(event.payload, event.attachments, self._streamOf(event))
            self._guard(subscription._arrived, update)

    def _onTopicClosed(self, event: TopicClosed) -> None:
        subscription = self.subscriptions.get(event.topic)
        if subscription is not None:
            subscription._end()

    def _onUnsubscribed(self, event: TopicUnsubscribed) -> None:
        topic = self.topics.get(event.topic)
        if topic is not None:
            topic._end("unsubscribed")

    def _onAttribute(self, event: AttributeSet | AttributeUnset) -> None:
        if self._delivery is not None:
            self._gather("attribute", event)
        value = event.value if isinstance(event, AttributeSet) else None
        self._guard(self.attributeChanged, event.name, value)

    def _onAnnounced(self, event: AttachmentsAnnounced) -> None:
        message = event.message
        if self.streams(message):
            stream = AttachmentStream(event.count, self._streamChanged)
            self._streams[id(message)] = message, stream
            for following in self.machine.stream(message):
                self._take(following)
            if len(message.attachments) == event.count:  # all of it came in one read
                attachments, message.attachments = message.attachments, []
                for attachment in attachments:
                    stream.arrived(attachment)

    def _onArrived(self, event: AttachmentArrived) -> None:
        kept = self._streams.get(id(event.message))
        if kept is not None:
            message, stream = kept
            stream.arrived(event.attachment)
            if stream.complete and stream.taken:
                del self._streams[id(message)]

    def _streamOf(self, message: object) -> AttachmentStream | None:
        """The attachments of ``message`` which come one by one; asked for once."""
        kept = self._streams.get(id(message)) if self._streams else None
        if kept is None:
            return None
        stream = kept[1]
        stream.taken = True
        if stream.complete:
            del self._streams[id(message)]
        return stream

    def _streamChanged(self, octets: int) -> None:
        """Octets of streamed attachments came, or were taken: not read on above a limit."""
        self._stream_octets += octets
        if self._stream_octets > self.limits["attachments-octets"] // 4:
            self._control.pause("stream")
        elif self._stream_octets == 0:
            self._control.resume("stream")

    def _onFault(self, event: UmqFault) -> None:
        self._write()
        self.factory.countFault(event.reason)
        # Before the session stands a text may be a mistyped H, with a password in it.
        told = self._established
        self.logger.warn(
            "{peer}: closed with F {code}: {text} (starts with {octets})",
            peer=self.peer,
            code=event.code.value,
            text=shown(event.text)[1:-1] if told else event.reason,
            octets=(event.octets.hex(" ") or "nothing") if told else "what is not shown",
            reason=event.reason,
        )
        self._fail(ConnectionClosed(f"the peer broke the protocol: {event.text}"))
        self.transport.close(event.code in _REPLY_CODES)

    def _onFatal(self, event: FatalReceived) -> None:
        self.count("fatals")
        code = "no code" if event.code is None else event.code
        self.logger.info(
            "{peer}: ended by the peer: {code} {text}",
            peer=self.peer,
            code=code,
            text=shown(event.text),
        )
        self._fail(SessionRefused(f"{code} {shown(event.text)[1:-1]}", event.code))
        self.transport.close()

    def _guard(self, hook: Callable[..., object], *args: object) -> None:
        """Call an application's hook; its error is logged and ends nothing."""
        try:
            hook(*args)
        except Exception:
            self.logger.failure("{peer}: a hook failed", peer=self.peer)

    # ── messages out ────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> bool:
        """Write what the machine has to send, at the end of a read or at once; was there any?"""
        if self._in_read:
            return False
        written = self._write()
        self._timer.look()
        return written

    def _write(self) -> bool:
        out = self.machine.outputs()
        if out:
            self.transport.write(out)
        return bool(out)

    def _advanced(self, events: list[Event]) -> None:
        """The machine's deadline has come."""
        for event in events:
            self._take(event)
        self._write()
        if self._closing:
            self._lookDrained()

    def _readingChanged(self, paused: bool) -> None:
        now = self.factory.clock.seconds()
        if paused:
            self.machine.paused(now)
        else:
            self.machine.resumed(now)
            self._timer.look()

    # ── back-pressure ───────────────────────────────────────────────────────────────────────────

    def unread(self) -> None:
        """The peer read nothing for ``unread-seconds``: a line and a counter, and it is dropped."""
        if self._reason is None:
            tell_unread(self.logger, self.factory, self.peer)
        self.transport.abort()

    def oversized(self) -> None:
        """A message above the limit begins: the WebSocket closes with its code."""

    def outputChanged(self, paused: bool) -> None:
        """Too much is unread: calls wait until the peer has read its answers."""
        self._over = paused
        if paused:
            return
        waiting, self._inbox = self._inbox, []
        self._in_read = True  # one write for all of it
        for event in waiting:
            self._onCall(event)
        self._readFinished()
        if not self._over:
            self._control.resume("unread-output")

    def outputDrained(self) -> None:
        """The peer has read everything: topics go on, each in its turn (``UM-21``)."""
        for topic in list(self._slowTopics):
            topic._drain()

    def _backlogChanged(self, count: int) -> None:
        self._backlog += count
        self._lookBacklog()

    def _lookBacklog(self) -> None:
        """Updates which nobody takes pause reading, but not while we wait for an answer."""
        limit = self.limits["backlog"]
        if self._backlog >= limit and not self.machine.calls_pending:
            self._own_paused = True
            self._control.pause("backlog")
        elif self._own_paused and (self._backlog <= limit // 2 or self.machine.calls_pending):
            self._own_paused = False
            self._control.resume("backlog")

    def count(self, name: str) -> None:
        """Count one more of ``name`` in the factory's counters."""
        self.factory.counters[name] += 1

    def snapshot(self) -> dict[str, object]:
        """Where the session stands, as plain values."""
        return {} if self.transport is None else self.machine.snapshot()


def _fire(waiter: Any, failure: Failure) -> None:
    """A call has failed, unless its caller has cancelled it meanwhile: each fires once."""
    if not waiter.called:
        waiter.errback(failure)


ACTIONS: Final[dict[type, Callable[[Any, Any], None]]] = {
    CallReceived: UmqSession._onCall,
    CallbackReceived: UmqSession._onCall,
    ResultReceived: UmqSession._onResult,
    ErrorReceived: UmqSession._onError,
    CallExpired: UmqSession._onExpired,
    TopicUpdated: UmqSession._onUpdate,
    TopicClosed: UmqSession._onTopicClosed,
    TopicUnsubscribed: UmqSession._onUnsubscribed,
    AttributeSet: UmqSession._onAttribute,
    AttributeUnset: UmqSession._onAttribute,
    AttachmentsAnnounced: UmqSession._onAnnounced,
    AttachmentArrived: UmqSession._onArrived,
    FatalReceived: UmqSession._onFatal,
    UmqFault: UmqSession._onFault,
}
"""What a session does with each event; a side adds its own."""
