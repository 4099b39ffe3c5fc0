"""On Twisted, a UMQ session of either side follows the events of its machine.

:class:`UmqSession` is what :class:`.sides.UmqServer` and :class:`.sides.UmqClient` share.  What
every session does, whatever its protocol, stands in :mod:`twisted_msgproto.net.link`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from twisted.python.failure import Failure

from ...core.connection import WorkLost
from ...core.errors import ConnectionClosed, Fault, TimedOut, shown
from ...core.kept import KEPT_LIMIT
from ...core.limits import Limit
from ...net.authentication import LOGIN_LIMITS
from ...net.authorising import PUBLISH
from ...net.counters import Places
from ...net.outbox import fail_all
from ...net.session import SessionHooks
from ...net.wires.websocket import WEBSOCKET_LIMITS
from .. import terms
from ..terms import (
    Attachment,
    AttachmentArrived,
    AttachmentsAnnounced,
    AttributeSet,
    AttributeUnset,
    CallbackReceived,
    CallExpired,
    CallReceived,
    CallsSafe,
    ErrorReceived,
    FatalReceived,
    KeptTooMuch,
    ResultReceived,
    TopicClosed,
    TopicUnsubscribed,
    TopicUpdated,
)
from ..wire import Code, UmqFault
from .exchange import CallFailed, Reply, Request, SessionRefused, Update
from .serving import Serving
from .storing import Gathered, batch_of
from .subscriptions import Subscription
from .topics import Topic

SUBPROTOCOL: Final = "umq"
"""The WebSocket sub-protocol we offer and know; a peer need not name one."""

LIMITS: Final = (
    *WEBSOCKET_LIMITS,
    *LOGIN_LIMITS,
    *terms.LIMITS,
    Limit("call-seconds", 60.0, "s", "a call of ours is answered, or fails (UM-20)", 0.001),
    Limit("topic-queue-messages", 1000, "messages", "unread by a subscriber, then D (UM-21)"),
    Limit("topic-queue-octets", 1 << 20, "octets", "unread by a subscriber, then D (UM-21)"),
    Limit("backlog", 1000, "messages", "updates not taken yet: reading pauses", 1),
    Limit("backlog-octets", 16 << 20, "octets", "updates not taken yet: reading pauses", 1),
)

ATTRIBUTE_PREFIX: Final = "attribute/"
"""An authoriser knows an attribute by this and its name."""

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
        """Return the attachments that are part of the value; KeyError for what is not set."""
        return self._session.machine.attributes[name].attachments


class UmqSession(Serving):
    """One UMQ connection: it has verbs that return Deferreds, and hooks for subclasses.

    Attributes:
        machine: where the protocol stands.
        session: the session's public name.
        peer: the peer's transport address as text.
        address: its host alone; "" where there is none.
        clientId: the identity that was accepted at ``H``, or None (``UM-06``).
        topics: the topics that the peer subscribed here, by number.
        subscriptions: the topics that we subscribed, by number.
    """

    answerEvents = frozenset({ResultReceived, ErrorReceived, CallExpired})
    counted = Places.of(terms.Counters)
    noInputs: ClassVar[Any] = ()
    readsWhileDraining = True  # attachments of calls that came, and answers to ours
    timeFaults = frozenset({"hello-seconds"})

    # What most sessions never change stands here: an idle one weighs less.
    _backlog = 0
    _backlogOctets = 0
    _ownPaused = False
    _over = False  # more is unread than unread-octets
    _inbox: list[CallReceived | CallbackReceived] | None = None  # calls that wait for that

    # ── hooks for subclasses ────────────────────────────────────────────────────────────────────

    def attributeChanged(self, name: str, value: str | None) -> None:
        """Called when the peer has set an attribute, or removed it (None) (``UM-15``,
        ``UM-16``).
        """

    def subscriptionEnded(self, subscription: Subscription, reason: str) -> None:
        """A topic that we subscribed brings no more updates (``UM-13``, ``UM-14``).

        ``reason`` is one of those that :class:`~.subscriptions.Subscription` has.
        """

    def _refusedForOthers(self, what: str) -> None:
        self.factory.counters[f"limit:{KEPT_LIMIT}"] += 1

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def connectionMade(self) -> None:
        """The upgrade is done: begin; a subclass that overrides this calls it first."""
        factory = self.factory
        kind = type(self)
        self.topics = {}
        self.subscriptions = {}
        self._callbacks: dict[int, Callable[[Request], Any]] = {}
        self._callSeconds = factory.limits["call-seconds"]
        self._slowTopics: dict[Topic, None] = {}
        self._streams = {}
        self._gathered = Gathered()
        self._selective = kind.admit is not Serving.admit
        self._stores = (
            factory.sink is not None
            or kind.batchReceived is not SessionHooks.batchReceived
            or kind.messageReceived is not SessionHooks.messageReceived
        )
        super().connectionMade()
        self.machine.taken_at = self._takenAt

    @property
    def attributes(self) -> PeerAttributes:
        """The peer's attributes as a mapping, as they are now (``UM-15``, ``UM-16``)."""
        return PeerAttributes(self)

    def _takenAt(self, now: float) -> float:
        return now if self.wire.unread else self.wire.movedAt

    def workLost(self, work: list[Any], reason: Failure) -> None:
        fail_all(work, self.ending or ConnectionClosed("the session has ended"))

    def sessionEnding(self, reason: Failure) -> None:
        try:
            self._failAll(reason)
        finally:  # whatever the application's producers raise
            self.machine.kept.clear()
        super().sessionEnding(reason)

    def endInOrder(self) -> None:
        self._closing = True
        self.drain()

    def endNow(self) -> None:
        self.closeSession()

    def _end(self, fault: bool) -> None:
        self._ended = self._deaf = True
        self.because(ConnectionClosed("the session has ended"))
        self._failAll(Failure(self.ending))
        super()._end(fault)

    def _failAll(self, reason: Failure) -> None:
        for event in self.machine.lost(self._now()):
            if isinstance(event, WorkLost):
                self.workLost(event.work, reason)
        for topic in list(self.topics.values()):
            topic._end("lost")
        for subscription in list(self.subscriptions.values()):
            subscription._lost()
        streams, self._streams = self._streams, {}
        for _, stream in streams.values():
            stream.lost()
        self._inbox = None
        self._serveNoMore()

    def snapshot(self) -> Mapping[str, object]:  # type: ignore[override]
        """Return where the session stands, as plain values without secrets; empty before the
        upgrade.
        """
        return {} if self.transport is None else super().snapshot()

    # ── what comes in ───────────────────────────────────────────────────────────────────────────

    def received(self, inputs: Any) -> None:
        """Follow the WebSocket messages of one read, one after the other, and then write once.

        What a message leads to happens before the machine sees the next: a call that is answered at
        once is no longer pending then, and a topic that it opened can be unsubscribed.

        A peer that makes us write what it does not read is not read either.  One that only says
        what it has to is read: otherwise both sides could wait for each other.
        """
        if self._ended:
            return
        waiting = self.wire.waiting if self._over else 0
        events = self.machine.receive_each(inputs, self._now())
        if len(inputs) == 1 and self._established and self._rest is None:
            self._follow(events)
        else:  # before W is complete one input may bring much: all that waited for that
            self._followInTurns(events)
            if self._rest is not None:
                self._restCame(inputs)
        if self._over:
            self._lookUnread(waiting)

    def _lookUnread(self, before: int) -> None:
        """Do not read a peer that reads too little and makes us write more than the octets that
        waited ``before``.
        """
        if self._inbox or (not self.readsWhileUnread and self.wire.waiting > before):
            self._control.pause("unread-output")

    def oversized(self) -> None:
        if not self._ended:
            self._follow(self.machine.oversized(self._now()))

    def _settle(self) -> None:
        """Do what a link does; before that, everything gathered is delivered to the sink."""
        if self._following:
            return
        if self._gathered.runs:
            self._following = True  # what is safe at once leaves with the same write
            try:
                for kind, events, calls in self._gathered.take():
                    if self._lossTold:  # of what came before: a session has no gap
                        break
                    self.deliver(batch_of(self, kind, events), calls)
            finally:
                self._following = False
        super()._settle()

    def _goOn(self, events: Iterator[Any]) -> None:
        waiting = self.wire.waiting if self._over else 0
        self._followAlone(events)
        if self._over:
            self._lookUnread(waiting)

    def _onCall(self, event: CallReceived | CallbackReceived) -> None:
        if self._over:
            if self._inbox is None:
                self._inbox = []
            self._inbox.append(event)
        # A reload may have brought an authoriser, or taken the last rule away.
        elif (self._selective or self.factory.authoriser is not None) and not self._admitted(event):
            return
        elif not self._stores:
            self._serve(event)
        else:
            waits = self.needsSafety(event)
            if not waits:
                self._serve(event)
            kind = "call" if type(event) is CallReceived else "callback"
            self._gathered.add(kind, event, waits)

    def _onResult(self, event: ResultReceived) -> None:
        waiter: Any = event.waiter
        if not waiter.called:  # the callback of another answer may have cancelled it
            stream = self._streamOf(event) if self._streams else None
            waiter.callback(Reply(event.payload, event.attachments, stream))
        else:
            self._dropStream(event)

    def _onError(self, event: ErrorReceived) -> None:
        waiter: Any = event.waiter
        waiter.fail(CallFailed(event.payload))

    def _onExpired(self, event: CallExpired) -> None:
        waiter: Any = event.waiter
        waiter.fail(TimedOut("the call was not answered in time"))

    def _onUpdate(self, event: TopicUpdated) -> None:
        if self._stores:
            self._gathered.add("topic", event)
        subscription = self.subscriptions.get(event.topic)
        if subscription is not None:
            stream = self._streamOf(event) if self._streams else None
            update = Update(event.payload, event.attachments, stream)
            self._guarded(subscription._arrived, update)
        else:
            self._dropStream(event)

    def _onTopicClosed(self, event: TopicClosed) -> None:
        subscription = self.subscriptions.get(event.topic)
        if subscription is not None:
            subscription._end("closed")

    def _onUnsubscribed(self, event: TopicUnsubscribed) -> None:
        topic = self.topics.get(event.topic)
        if topic is not None:
            topic._end("unsubscribed")

    def _onAttribute(self, event: AttributeSet | AttributeUnset) -> None:
        if self.factory.authoriser is not None and self.refuses(
            PUBLISH, ATTRIBUTE_PREFIX + event.name
        ):
            self.machine.forget_attribute(event.name)
            return  # nobody answers ``S`` and ``X``
        if self._stores:
            self._gathered.add("attribute", event)
        value = event.value if isinstance(event, AttributeSet) else None
        self._guarded(self.attributeChanged, event.name, value)

    def _onKeptTooMuch(self, event: KeptTooMuch) -> None:
        self._refusedForOthers(event.what)

    def _onFatal(self, event: FatalReceived) -> None:
        self._tally["fatals"] += 1
        code = "no code" if event.code is None else event.code
        line = "{peer}: ended by the peer: {code} {text}"
        self.tellOf(line, "fatal", code=code, text=shown(event.text))
        refused = SessionRefused(f"{code} {shown(event.text)[1:-1]}", event.code)
        self._leave(refused)

    def peerFaulted(self, fault: Fault) -> None:
        assert isinstance(fault, UmqFault)
        told: Fault = fault
        if not self._established:  # a text may be a mistyped H, with a password in it
            told = Fault(fault.reason, fault.reason)
        self._tell(told, f"closed with F {fault.code.value}")
        broken = fault.code in _REPLY_CODES
        self._leave(self.peerError(fault), broken)

    actions: ClassVar = {
        CallReceived: _onCall,
        CallbackReceived: _onCall,
        CallsSafe: Serving._onCallsSafe,
        ResultReceived: _onResult,
        ErrorReceived: _onError,
        CallExpired: _onExpired,
        TopicUpdated: _onUpdate,
        TopicClosed: _onTopicClosed,
        TopicUnsubscribed: _onUnsubscribed,
        AttributeSet: _onAttribute,
        AttributeUnset: _onAttribute,
        AttachmentsAnnounced: Serving._onAnnounced,
        AttachmentArrived: Serving._onArrived,
        KeptTooMuch: _onKeptTooMuch,
        FatalReceived: _onFatal,
        UmqFault: peerFaulted,
    }

    @property
    def owes(self) -> bool:
        """As a link's; a call that waits for its answer is owed one, however late it comes."""
        return super().owes or self.machine.calls_serving > 0

    # ── back-pressure ───────────────────────────────────────────────────────────────────────────

    def outputChanged(self, paused: bool) -> None:
        """Too much is unread: calls wait until the peer has read its answers."""
        self._over = paused
        if not paused:
            waiting, self._inbox = self._inbox, None
            if waiting:
                self._followInTurns(iter(waiting), before=True)
            else:
                self._settle()
            if not self._over:
                self._control.resume("unread-output")

    def outputDrained(self) -> None:
        for topic in list(self._slowTopics):
            topic._drain()

    def _backlogChanged(self, count: int, octets: int) -> None:
        self._backlog += count
        self._backlogOctets += octets
        kept = self.machine.kept
        kept.add(octets) if octets > 0 else kept.remove(-octets)
        self._lookBacklog()
