"""A UMQ session of either side has hooks and verbs, and a link that follows its machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from sys import getsizeof
from typing import Any, ClassVar, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.connection import WorkLost
from ...core.errors import ConnectionClosed, Fault, Refused, shown, unquoted
from ...core.limits import Limit
from ...core.message import Message
from ...core.session_memory import SESSION_LIMIT
from ...net.authentication import LOGIN_LIMITS
from ...net.authorising import PUBLISH
from ...net.counters import CounterPaths
from ...net.deferreds import fail_all
from ...net.factory import expect
from ...net.logs import SteadyLogger
from ...net.session import Session, SessionLink, hook
from ...net.turns import Turn
from ...net.wires.websocket import MESSAGE_LIMIT, WEBSOCKET_LIMITS, WebSocketWire
from .. import terms
from ..application import Remote
from ..machine import Client, Server
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
    MemoryLimitExceeded,
    ResultReceived,
    TopicClosed,
    TopicUnsubscribed,
    TopicUpdated,
)
from ..wire import Code, UmqFault, is_id, number
from .calls import UNSENT, Calls, Reply, Request, SessionRefused, Streams, Update
from .topics import Subscription, Topic, Topics

SUBPROTOCOL: Final = "umq"
"""The WebSocket sub-protocol we offer and know; a peer need not name one."""

LIMITS: Final = (
    *WEBSOCKET_LIMITS,
    MESSAGE_LIMIT,
    *LOGIN_LIMITS,
    *terms.LIMITS,
    Limit("topic-queue-bytes", 1 << 20, "bytes", "unread by a subscriber, then D (UM-21)"),
    Limit("backlog-bytes", 16 << 20, "bytes", "updates not taken yet: reading pauses", 1),
)

ATTRIBUTE_PREFIX: Final = "attribute/"
"""An authoriser knows an attribute by this and its name."""

SERVING: Final = "serving"
"""A connection is not read for this reason while what came before is still to be followed."""

_REPLY_CODES: Final = (Code.FORMAT, Code.UNSUPPORTED_COMMAND)


class UmqLink(SessionLink):
    """It serves the peer for one turn of the reactor at most.

    One read may bring hundreds of calls, each of which an application answers in a millisecond.
    """

    log: ClassVar[Logger] = SteadyLogger(namespace="twisted_msgproto.umq")
    answerEvents = frozenset({ResultReceived, ErrorReceived, CallExpired})
    counted = CounterPaths.of(terms.Counters)
    noInputs: ClassVar[Any] = ()
    readsWhileDraining = True  # attachments of calls that came, and answers to ours
    timeFaults: ClassVar[frozenset[str]] = frozenset({"hello-seconds"})

    factory: Any
    machine: Server | Client
    machineKind: ClassVar[type[Server | Client]]
    wire: WebSocketWire

    # What most sessions never change stands here: an idle one weighs less.
    over: bool = False  # the peer reads too little of what we write
    leaving: bool = False  # in order, once our calls are answered
    _inbox: list[CallReceived | CallbackReceived] | None = None  # calls that wait while it is over
    _ready: list[CallReceived | CallbackReceived] | None = None  # safe calls of the next turn
    _rest: Iterator[Any] | None = None  # what else came, in order: a part of one read, mostly
    _serving: Any = None  # the call of the clock that goes on with them
    _holds: tuple[Deferred[Any], ...] = ()  # they have to fire before the next call is served
    _restBytes = 0  # what the reads take of which the rest is a part
    _restCounted = 0  # as much of it as ``machine.memory`` counts now

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self.calls: Calls = Calls(self)
        self.topics: Topics = Topics(self)
        self.streams: Streams = Streams(self)

    def makeMachine(self) -> Server | Client:
        limits, every = self.factory.limits, self.factory.shared.session_memory
        machine = self.machineKind(limits, self._now(), every=every)
        machine.taken_at = self.takenAt
        return machine

    # ── for the parts of the session ────────────────────────────────────────────────────────────

    @property
    def ended(self) -> bool:
        return self._ended

    def time(self) -> float:
        """Tell the machine the time, because some has passed when a verb is called."""
        now: float = self._now()
        self.machine.clock = now
        return now

    def standing(self) -> float:
        """Raise ConnectionClosed without a session; else as ``time``."""
        if not self.established:
            raise ConnectionClosed("there is no session")
        now = self.time()
        if not self.machine.opened or self.leaving:
            raise ConnectionClosed("the session does not stand")
        return now

    def lookRoom(self, *pieces: Any) -> None:
        """Raise LimitExceeded if the peer has left too much unread to write these as well."""
        if self.over:
            self.roomFor(sum(len(one) for one in pieces if isinstance(one, str | bytes)))

    def say(self, verb: Callable[[], None], *pieces: Any) -> Deferred[None]:
        try:
            self.standing()
            self.lookRoom(*pieces)
            verb()
        except UNSENT as error:
            return fail(error)
        self.flush()
        return succeed(None)

    def count(self, name: str) -> None:
        self._tally[name] += 1

    def keptTooMuch(self, what: str) -> None:
        self.factory.counters[f"limit:{SESSION_LIMIT}"] += 1

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def workLost(self, work: list[Any], reason: Failure) -> None:
        fail_all(work, self.closeReason or ConnectionClosed("the session has ended"))

    def sessionEnding(self, reason: Failure) -> None:
        try:
            self._failAll(reason)
        finally:  # whatever the application's producers raise
            self.machine.memory.clear()
        super().sessionEnding(reason)

    def endInOrder(self) -> None:
        self.leaving = True
        self.drain()

    def endNow(self) -> None:
        self.closeSession()

    def _end(self, fault: bool) -> None:
        self._ended = self._inputIgnored = True
        self.setCloseReason(ConnectionClosed("the session has ended"))
        self._failAll(Failure(self.closeReason))
        super()._end(fault)

    def _failAll(self, reason: Failure) -> None:
        for event in self.machine.lost(self._now()):
            if isinstance(event, WorkLost):
                self.workLost(event.work, reason)
        self.topics.lost()
        self.streams.lost()
        self._inbox = self._ready = self._rest = None
        self._keepRest()
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None
        for done in self._holds:
            done.cancel()

    def closeSession(self, code: int | None = None, text: str = "") -> None:
        why = ConnectionClosed("the session was closed")
        if self.transport is None:  # no upgrade yet
            self.setCloseReason(why)
            self._abort()
        elif not self._ended:
            if code is not None:
                self.machine.fatal(code, text)
            self._leave(why)

    def _leave(self, why: Exception, fault: bool = False) -> None:
        self.setCloseReason(why)
        self._lastWords()
        self._end(fault)

    @property
    def owes(self) -> bool:
        """A call that waits for its answer is owed one, however late it comes."""
        return super().owes or self.machine.calls_serving > 0

    def snapshot(self) -> dict[str, object]:
        return {} if self.transport is None else super().snapshot()

    # ── what comes in ───────────────────────────────────────────────────────────────────────────

    def received(self, inputs: Any) -> None:
        """What a message leads to happens before the machine sees the next.

        A call that is answered at once is no longer pending then, and a topic that it opened can be
        unsubscribed.

        A peer that makes us write what it does not read is not read either.  One that only says
        what it has to is read: otherwise both sides could wait for each other.
        """
        if self._ended:
            return
        waiting = self.wire.output.nbytes if self.over else 0
        events = self.machine.receive_each(inputs, self._now())
        if len(inputs) == 1 and self._established:
            self._follow(events)
        else:  # before W is complete one input may bring much: all that waited for that
            self._follow(self._whileTime(events))
            if self._rest is not None:
                self._restBytes += sum(map(getsizeof, inputs))
                self._keepRest()
        if self.over:
            self._lookUnread(waiting)

    def _lookUnread(self, before: int) -> None:
        """Do not read a peer that reads too little and makes us write more than ``before``."""
        if self._inbox or (not self.readsWhileUnread and self.wire.output.nbytes > before):
            self.pauseReading("unread-output")

    def oversized(self) -> None:
        if not self._ended:
            self._follow(self.machine.oversized(self._now()))

    def _settle(self) -> None:
        """Before that, everything gathered is delivered to the sink."""
        if self._following:
            return
        gathered = self.calls.gathered
        if gathered:
            self.calls.gathered = []
            self._following = True  # what is safe at once leaves with the same write
            try:
                for kind, events, calls in gathered:
                    if self._lossLogged:  # of what came before: a session has no gap
                        break
                    self.deliver(self.calls.batch(kind, events), calls)
            finally:
                self._following = False
        super()._settle()

    # ── in turns ────────────────────────────────────────────────────────────────────────────────

    def serveAfter(self, done: Deferred[Any]) -> None:
        expect("done", done, "a Deferred", isinstance(done, Deferred))
        self._holds += (done,)
        if self._rest is None:
            self._rest = iter(())
        self.pauseReading(SERVING)
        done.addBoth(self._serveAgain, done)
        self._keepRest()

    def _serveAgain(self, result: Any, done: Deferred[Any]) -> Any:
        self._holds = tuple(one for one in self._holds if one is not done)
        if not self._ended:
            self._keepRest()
            self._serveLater()
        return result

    def _keepRest(self) -> None:
        if self._rest is None:
            self._restBytes = 0
        nbytes = self._restBytes if self._holds else 0
        if nbytes != self._restCounted:
            memory = self.machine.memory
            memory.remove(self._restCounted)
            memory.add(nbytes)
            self._restCounted = nbytes

    def _whileTime(self, events: Iterator[Any]) -> Iterator[Any]:
        """Yield events as long as a turn lasts; what is left waits, and reading with it.

        The clock counts what other processes take as well, but to ask for CPU time after each event
        would cost a twentieth of everything.
        """
        turn = Turn(self._now)
        for event in events:
            yield event
            if (self._holds or turn.over()) and not (self._ended or self.machine.closed):
                rest = self._rest  # after a hold there is one: it came before
                self._rest = events if rest is None else chain(rest, events)
                self.pauseReading(SERVING)
                self._serveLater()
                return

    def _onCallsSafe(self, event: CallsSafe) -> None:
        """As many as one turn has time for: each of a thousand may go to a thousand subscribers."""
        if self._ready is not None:
            self._ready += event.calls
            return
        if self._holds:
            self._ready = list(event.calls)
            return
        calls = event.calls
        turn = Turn(self.factory.spent) if len(calls) > 1 else None
        for served, call in enumerate(calls, 1):
            self.calls.serve(call)
            if turn and served < len(calls) and (self._holds or turn.over()):
                self._ready = list(calls[served:])
                self._serveLater()
                return

    def _serveLater(self) -> None:
        if self._serving is None:
            self._serving = self.factory.clock.callLater(0, self._serveReady)

    def _serveReady(self) -> None:
        self._serving = None
        if self._holds:
            return  # the last of them asks for another turn
        if self._ready:
            calls, self._ready = self._ready, None
            self._followAlone([CallsSafe(calls)])
        elif self._rest is not None:
            events, self._rest = self._rest, None
            waiting = self.wire.output.nbytes if self.over else 0
            self.time()
            self._followAlone(self._whileTime(events))
            if self.over:
                self._lookUnread(waiting)
            self._keepRest()
        if self._ready or self._rest is not None:
            self._serveLater()
        elif not self._ended:
            self.resumeReading(SERVING)

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    def _onCall(self, event: CallReceived | CallbackReceived) -> None:
        if self.over:
            if self._inbox is None:
                self._inbox = []
            self._inbox.append(event)
        elif self.calls.admitted(event):
            self.calls.came(event)

    def _onUpdate(self, event: TopicUpdated) -> None:
        if self.calls.stores:
            self.calls.gather("topic", event)
        self.topics.updated(event)

    def _onAttribute(self, event: AttributeSet | AttributeUnset) -> None:
        if self.factory.authoriser is not None and self.refuses(
            PUBLISH, ATTRIBUTE_PREFIX + event.name
        ):
            self.machine.forget_attribute(event.name)
            return  # nobody answers ``S`` and ``X``
        if self.calls.stores:
            self.calls.gather("attribute", event)
        value = event.value if isinstance(event, AttributeSet) else None
        self._guarded(self.protocol.attributeChanged, event.name, value)

    def _onAnnounced(self, event: AttachmentsAnnounced) -> None:
        message = event.message
        if isinstance(message, ResultReceived):
            streamed = bool(getattr(message.waiter, "streamed", False))
        else:
            methods = self.factory.methods
            streamed = methods is not None and bool(methods.streams(message.payload))
        if streamed:
            self.streams.announced(event)

    def _onFatal(self, event: FatalReceived) -> None:
        self.count("fatals")
        code = "no code" if event.code is None else event.code
        line = "{peer}: ended by the peer: {code} {text}"
        self.logNews(line, "fatal", code=code, text=shown(event.text))
        self.peerSaid = refused = SessionRefused(f"{code} {unquoted(event.text)}", event.code)
        self._leave(refused)

    def peerFaulted(self, fault: Fault) -> None:
        assert isinstance(fault, UmqFault)
        told: Fault = fault
        if not self._established:  # a text may be a mistyped H, with a password in it
            told = Fault(fault.reason, fault.reason)
        self._logFault(told, f"closed with F {fault.code.value}")
        broken = fault.code in _REPLY_CODES
        self._leave(self.peerError(fault), broken)

    actions: ClassVar[dict[type, Any]] = {
        CallReceived: _onCall,
        CallbackReceived: _onCall,
        CallsSafe: _onCallsSafe,
        ResultReceived: lambda link, event: link.calls.answered(event),
        ErrorReceived: lambda link, event: link.calls.failed(event),
        CallExpired: lambda link, event: link.calls.expired(event),
        TopicUpdated: _onUpdate,
        TopicClosed: lambda link, event: link.topics.closed(event),
        TopicUnsubscribed: lambda link, event: link.topics.unsubscribed(event),
        AttributeSet: _onAttribute,
        AttributeUnset: _onAttribute,
        AttachmentsAnnounced: _onAnnounced,
        AttachmentArrived: lambda link, event: link.streams.arrived(event),
        MemoryLimitExceeded: lambda link, event: link.keptTooMuch(event.what),
        FatalReceived: _onFatal,
        UmqFault: lambda link, event: link.peerFaulted(event),
    }

    # ── back-pressure ───────────────────────────────────────────────────────────────────────────

    def outputChanged(self, paused: bool) -> None:
        self.over = paused
        if not paused:
            waiting, self._inbox = self._inbox, None
            if waiting and self._rest is not None:
                self._rest = chain(waiting, self._rest)
            elif waiting:
                self._follow(self._whileTime(iter(waiting)))
            else:
                self._settle()
            if not self.over:
                self.resumeReading("unread-output")

    def outputDrained(self) -> None:
        self.topics.drain()


class PeerAttributes(Mapping[str, str]):
    """The peer's attributes, as they are now (``UM-15``, ``UM-16``)."""

    def __init__(self, link: UmqLink) -> None:
        self._attributes = link.machine.attributes

    def __getitem__(self, name: str) -> str:
        return self._attributes[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes)

    def __len__(self) -> int:
        return len(self._attributes)

    def attachments(self, name: str) -> list[Attachment]:
        """KeyError for what is not set."""
        return self._attributes[name].attachments


class UmqSession(Session, link=UmqLink):
    """One UMQ connection: it has verbs that return Deferreds, and hooks for subclasses.

    Its ``clientId`` is the identity that was accepted at ``H`` (``UM-06``).
    """

    link: UmqLink

    # ── hooks ───────────────────────────────────────────────────────────────────────────────────

    @hook
    def requestReceived(self, message: Message) -> Any:
        """A call arrived, and the sink (if there is one) has it safe; return the answer's body.

        Text, UTF-8 bytes, a :class:`~.calls.Reply`, None for an empty answer, or a Deferred or
        coroutine for any of these; an exception becomes ``E`` (``UM-09``).  Not called for calls
        that the factory's ``methods`` answer.  The default accepts what a sink has made safe, and
        refuses with code 6 where there is no sink.
        """
        return self.link.calls.accept(message.destination)

    @hook
    def callReceived(self, request: Request) -> Any:
        """A call arrived: like ``requestReceived``, with attachments as they came.

        The default asks the factory's ``methods``, then ``requestReceived``.
        """
        calls, methods = self.link.calls, self.factory.methods
        if methods is not None and methods.answers(request.payload):
            return methods.answer(request)
        if type(self).requestReceived is UmqSession.requestReceived:
            return calls.accept(None if methods is None else methods.nameIn(request.payload))
        return self.requestReceived(calls.message(request))

    @hook
    def attributeChanged(self, name: str, value: str | None) -> None:
        """The peer has set an attribute, or removed it (None) (``UM-15``, ``UM-16``)."""

    @hook
    def subscriptionEnded(self, subscription: Subscription, reason: str) -> None:
        """A topic that we subscribed brings no more updates (``UM-13``, ``UM-14``).

        ``reason`` is one of those that :class:`~.topics.Subscription` has.
        """

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    @property
    def remote(self) -> Remote:
        """Return the peer's methods as functions: ``await session.remote.add(1, 2)``."""
        return Remote(self)

    def call(
        self,
        payload: str,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
        streamed: bool = False,
    ) -> Deferred[Reply]:
        """Call the peer (``UM-09``); fires with its :class:`~.calls.Reply`.

        ``attachments`` are bytes, or Deferreds that fire with bytes.  Fails with CallFailed
        (``E``), TimedOut after ``timeout`` seconds (default ``call-seconds``), SessionRefused
        (``F``) or ConnectionClosed.  Cancelling forgets the call; its answer is then ignored. Above
        a limit of ours or one that the peer told it fails with LimitExceeded, and nothing is sent.
        """
        try:
            return self.link.calls.call(payload, attachments, timeout, streamed)
        except UNSENT as error:
            return fail(error)

    def callback(
        self,
        callback: str,
        argument: str,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
        streamed: bool = False,
    ) -> Deferred[Reply]:
        """Call what the peer registered as ``callback`` (``UM-11``); otherwise like ``call``.

        What is no id fails with Refused, as the peer has given it: a method need not catch it.
        """
        if not isinstance(callback, str) or not is_id(callback):
            text = f"{str(callback)[:40]!r} is no callback id"
            return fail(Refused(text, Code.CALLBACK_NOT_FOUND.value))
        try:
            return self.link.calls.call(argument, attachments, timeout, streamed, number(callback))
        except UNSENT as error:
            return fail(error)

    def registerCallback(self, function: Callable[[Request], Any]) -> str:
        """Let the peer call ``function`` (``UM-11``); returns the id to tell it."""
        return self.link.calls.register(function)

    def unregisterCallback(self, id: str) -> None:
        """The callback ``id`` ends; calls of it are refused from now on."""
        self.link.calls.unregister(id)

    def subscribe(
        self,
        request: Callable[[str], str],
        hook: Callable[[Update], object] | None = None,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Subscription:
        """Subscribe to a topic (``UM-12``, ``UM-14``).

        ``request(id)`` returns the payload of the call that asks the peer to publish to topic
        ``id``. Updates go to ``hook``, which may be a coroutine function, or wait for ``async for
        update in subscription``.  If the call fails, or cannot be made, the subscription ends; its
        ``whenStarted()`` says why.  Its ``whenEnded()`` tells that there are no more updates, and
        why.
        """
        return self.link.topics.subscribe(request, hook, attachments, timeout)

    def openTopic(self, id: str) -> Topic:
        """Return the topic ``id`` that the peer subscribed: publish to it (``UM-12``).

        Raises Refused, which a method need not catch: the peer is told that it has given what is no
        id or is in use, or has more than ``topics``.
        """
        return self.link.topics.open(id)

    def setAttribute(
        self, name: str, value: str, attachments: Sequence[Any] = ()
    ) -> Deferred[None]:
        """Set an attribute at the peer (``UM-15``); fires when it is written.

        Fails with ConnectionClosed without a session, with LimitExceeded, and with ValueError for a
        name that no attribute has.
        """
        link = self.link
        bodies = link.calls.bodies(attachments)
        return link.say(
            lambda: link.machine.set_attribute(name, value, bodies), name, value, *bodies
        )

    def unsetAttribute(self, name: str) -> Deferred[None]:
        """Remove an attribute at the peer (``UM-16``); as :meth:`setAttribute`."""
        link = self.link
        return link.say(lambda: link.machine.unset_attribute(name), name)

    def serveAfter(self, done: Deferred[Any]) -> None:
        """Serve no more calls of this peer, and do not read it, before ``done`` has fired.

        Otherwise calls that come behind one with a late answer may pass it.  Answers are sent as
        ever, that of the call which waits for ``done`` among them.  ``done`` must not wait for what
        this peer has still to send, such as the answer to a call of ours.  If the session ends
        first, ``done`` is cancelled.
        """
        self.link.serveAfter(done)

    def closeSession(self, code: int | None = None, text: str = "") -> None:
        """End the session: with ``F code text`` (``UM-08``), or without saying why (code None)."""
        self.link.closeSession(code, text)

    @property
    def attributes(self) -> PeerAttributes:
        """The peer's attributes as a mapping, as they are now (``UM-15``, ``UM-16``)."""
        return PeerAttributes(self.link)
