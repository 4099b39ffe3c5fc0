"""What an application may do with a UMQ session: call, subscribe, publish, set attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded, shown
from ...core.limits import Limits
from ...core.machine import IllegalTransition
from ...net.inherited import InheritedSession as Session
from ...net.link import SteadyLogger
from ...net.outbox import Ticket
from ...net.wires.websocket import WebSocketWire
from ..machine import Client, Server
from ..machine.attachments import Slot
from ..wire import Call, Callback, base36, number
from .exchange import Reply, Request, Update
from .subscriptions import Subscription, Updates
from .topics import Topic

if TYPE_CHECKING:
    from .session import UmqSession


_UNSENT = (ValueError, ConnectionClosed, IllegalTransition)
"""What a verb fails with whose work was not sent; TypeError is raised."""


class Answer(Ticket[Reply]):
    """The ticket of a call of ours; its machine keeps it as the waiter.

    Attributes:
        streamed: its attachments are wanted one by one.
    """

    streamed = False


class Verbs(Session):
    """The part of a session that an application calls."""

    log: ClassVar[Logger] = SteadyLogger(namespace="twisted_msgproto.umq")
    factory: Any
    machine: Server | Client
    wire: WebSocketWire
    topics: dict[int, Topic]
    subscriptions: dict[int, Subscription]
    _callbacks: dict[int, Callable[[Request], Any]]
    _callSeconds: float
    _write: Callable[[Any], None]
    _backlog: int  # updates that nobody has taken yet
    _backlogOctets: int  # what they weigh
    _ownPaused: bool
    _over: bool  # the peer reads too little of what we write
    _closing = False  # an orderly end of ours, which waits for the answers to our calls

    @property
    def limits(self) -> Limits:
        limits: Limits = self.factory.limits
        return limits

    def call(
        self,
        payload: str,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
        streamed: bool = False,
    ) -> Deferred[Reply]:
        """Call the peer (``UM-09``); fires with its :class:`~.exchange.Reply`.

        ``attachments`` are octets, or Deferreds that fire with octets.  Fails with CallFailed
        (``E``), TimedOut after ``timeout`` seconds (default ``call-seconds``), SessionRefused
        (``F``) or ConnectionClosed.  Cancelling forgets the call; its answer is then ignored. Above
        a limit of ours or one that the peer told it fails with LimitExceeded, and nothing is sent.
        """
        try:
            return self._own(Call, payload, attachments, timeout, streamed)
        except _UNSENT as error:
            return fail(error)

    def callback(
        self,
        callback: str,
        argument: str,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
        streamed: bool = False,
    ) -> Deferred[Reply]:
        """Call what the peer registered as ``callback`` (``UM-11``); otherwise like ``call``."""
        try:
            argument = f"{base36(number(callback))}:{argument}"
            return self._own(Callback, argument, attachments, timeout, streamed)
        except _UNSENT as error:
            return fail(error)

    def _own(
        self,
        kind: type[Call | Callback],
        payload: str,
        attachments: Sequence[Any],
        timeout: float | None,
        streamed: bool,
    ) -> Deferred[Reply]:
        if not self._established:
            raise ConnectionClosed("there is no session")
        machine = self.machine
        machine.clock = now = self._now()
        if not machine.opened or self._closing:
            raise ConnectionClosed("the session does not stand")
        if self._over:
            self._lookRoom(payload, attachments)
        answer = Answer(self._cancelled)
        answer.streamed = streamed
        seconds = self._callSeconds if timeout is None else 0.0
        deadline = now + (seconds or timeout or 0.0)
        bodies = self._bodies(attachments) if attachments else ()
        answer.number = machine.own_call(kind, payload, bodies, answer, deadline, seconds)
        if self._ownPaused:
            self._lookBacklog()
        if not self._following:
            self._settle()
        return answer

    def _lookRoom(self, payload: str, attachments: Sequence[Any]) -> None:
        attached = sum(len(one) for one in attachments if isinstance(one, bytes))
        self.roomFor(len(payload) + attached)

    def _cancelled(self, answer: Deferred[Reply]) -> None:
        assert isinstance(answer, Answer)
        self.machine.cancel(answer.number)
        if self._closing:
            self._settle()

    def registerCallback(self, function: Callable[[Request], Any]) -> str:
        """Let the peer call ``function`` (``UM-11``); returns the id to tell it."""
        registered = self.machine.register_callback()
        self._callbacks[registered] = function
        return base36(registered)

    def unregisterCallback(self, id: str) -> None:
        """The callback ``id`` ends; calls of it are refused from now on."""
        self.machine.unregister_callback(number(id))
        self._callbacks.pop(number(id), None)

    def subscribe(
        self,
        request: Callable[[str], str],
        hook: Callable[[Update], object] | None = None,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
        streamed: bool = False,
    ) -> Subscription:
        """Subscribe to a topic (``UM-12``, ``UM-14``).

        ``request(id)`` returns the payload of the call that asks the peer to publish to topic
        ``id``. Updates go to ``hook``, or wait for ``async for update in subscription``.  If the
        call fails, or cannot be made, the subscription ends; its ``whenStarted()`` says why.  Its
        ``whenEnded()`` tells that there are no more updates, and why.
        """
        return self._subscribe(request, hook, attachments, timeout, streamed, None)

    def _subscribe(
        self,
        request: Callable[[str], str],
        hook: Callable[[Update], object] | None,
        attachments: Sequence[Any],
        timeout: float | None,
        streamed: bool,
        updates: Updates | None,
    ) -> Subscription:
        session = cast("UmqSession", self)
        try:
            topic = self._opened.subscribe()
        except _UNSENT as error:
            return Subscription(session, 0, hook, streamed, updates)._never(error)
        subscription = Subscription(session, topic, hook, streamed, updates)
        self.subscriptions[topic] = subscription
        try:
            answer = self.call(request(subscription.id), attachments, timeout)
        except Exception:
            subscription.unsubscribe()
            raise
        answer.addCallbacks(subscription._accepted, subscription._refused)
        return subscription

    def openTopic(self, id: str) -> Topic:
        """Return the peer subscribed with topic ``id``: publish to what this returns (``UM-12``).

        ValueError for what is no id or is in use, LimitExceeded above ``topics``.
        """
        self._time()
        topic = self.machine.open_topic(id)
        self.topics[topic] = Topic(cast("UmqSession", self), topic, id)
        return self.topics[topic]

    def setAttribute(
        self, name: str, value: str, attachments: Sequence[Any] = ()
    ) -> Deferred[None]:
        """Set an attribute at the peer (``UM-15``); fires when it is written.

        Fails with ConnectionClosed without a session, with LimitExceeded, and with ValueError for a
        name that no attribute has.
        """
        try:
            opened = self._opened
            if self._over:
                self._lookRoom(name + value, attachments)
            opened.set_attribute(name, value, self._bodies(attachments))
        except _UNSENT as error:
            return fail(error)
        self._settle()
        return succeed(None)

    def unsetAttribute(self, name: str) -> Deferred[None]:
        """Remove an attribute at the peer (``UM-16``); as :meth:`setAttribute`."""
        try:
            opened = self._opened
            if self._over:
                self._lookRoom(name, ())
            opened.unset_attribute(name)
        except _UNSENT as error:
            return fail(error)
        self._settle()
        return succeed(None)

    @property
    def _opened(self) -> Server | Client:
        """Return the machine, told the time; raises ConnectionClosed without a session."""
        if not self._established or not self.machine.opened or self._closing:
            raise ConnectionClosed("there is no session")
        self._time()
        return self.machine

    def _lookBacklog(self) -> None:
        """Pause reading while nobody consumes updates, but not while we wait for an answer."""
        limits = self.limits
        share = max(
            self._backlog / limits["backlog"], self._backlogOctets / limits["backlog-octets"]
        )
        if share >= 1 and not self.machine.calls_pending:
            self._ownPaused = True
            self._control.pause("backlog")
        elif self._ownPaused and (share <= 0.5 or self.machine.calls_pending):
            self._ownPaused = False
            self._control.resume("backlog")

    def closeSession(self, code: int | None = None, text: str = "") -> None:
        """End the session: with ``F code text`` (``UM-08``), or without saying why (code None)."""
        self.because(ConnectionClosed("the session was closed"))
        if self.transport is None:  # no upgrade yet
            self._abort()
        elif not self._ended:
            if code is not None:
                self.machine.fatal(code, text)
            self._leave(ConnectionClosed("the session was closed"))

    def _leave(self, why: Exception, fault: bool = False) -> None:
        self.because(why)
        outputs = self.machine.outputs()
        if outputs:
            self._write(outputs)
        self._end(fault)

    def _time(self) -> float:
        now: float = self._now()
        self.machine.clock = now
        return now

    def _bodies(self, attachments: Sequence[Any]) -> list[bytes | Slot]:
        """Return attachments for the machine: a Deferred becomes a slot that is filled later."""
        bodies: list[bytes | Slot] = []
        for attachment in attachments:
            if isinstance(attachment, Deferred):
                slot = Slot()
                attachment.addCallbacks(
                    self._fill, self._fillError, callbackArgs=(slot,), errbackArgs=(slot,)
                )
                bodies.append(slot)
            else:
                bodies.append(attachment)
        return bodies

    def _fill(self, body: bytes, slot: Slot) -> None:
        self._time()
        try:
            self.machine.fill(slot, body)
        except LimitExceeded:
            self.log.failure("{peer}: an attachment is too large", peer=self.peer)
        self._settle()

    def _fillError(self, failure: Failure, slot: Slot) -> None:
        self.log.info(
            "{peer}: an attachment failed: {error}",
            peer=self.peer,
            error=shown(failure.getErrorMessage()),
        )
        self._time()
        self.machine.fill_error(slot, "the attachment is not available")
        self._settle()
