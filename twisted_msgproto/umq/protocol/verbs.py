"""What an application may do with a UMQ session: call, subscribe, publish, set attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded, shown
from ...core.limits import Limits
from ...net.link import SteadyLogger
from ...net.session import Session
from ...net.wires.websocket import WebSocketWire
from ..machine import Client, Server
from ..machine.attachments import Slot
from ..wire import Call, Callback, base36, number
from .exchange import Reply, Request, Update
from .subscriptions import Subscription
from .topics import Topic

if TYPE_CHECKING:
    from .session import UmqSession


class Answer(Deferred[Reply]):
    """The Deferred of a call of ours, which its machine keeps as the waiter.

    Attributes:
        number: the call's number.
        streamed: its attachments are wanted one by one.
    """

    number = 0
    streamed = False


class Verbs(Session):
    """The part of a session which an application calls."""

    log: ClassVar[Logger] = SteadyLogger(namespace="twisted_msgproto.umq")
    factory: Any
    machine: Server | Client
    wire: WebSocketWire
    topics: dict[int, Topic]
    subscriptions: dict[int, Subscription]
    _callbacks: dict[int, Callable[[Request], Any]]
    _call_seconds: float
    _write: Callable[[Any], None]
    _reason: Exception | None  # what ended the session, if we know
    _backlog: int  # updates which nobody has taken yet
    _own_paused: bool
    _closing = False  # an orderly end of ours, which waits for the answers to our calls

    @property
    def limits(self) -> Limits:
        """The limits of all sessions of this factory."""
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

        ``attachments`` are octets, or Deferreds which fire with octets.  Fails with CallFailed
        (``E``), TimedOut after ``timeout`` seconds (default ``call-seconds``), SessionRefused
        (``F``) or ConnectionClosed.  Cancelling forgets the call; its answer is then ignored.
        LimitExceeded is raised above our own limits.
        """
        return self._own(Call, payload, attachments, timeout, streamed)

    def callback(
        self,
        callback: str,
        argument: str,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
        streamed: bool = False,
    ) -> Deferred[Reply]:
        """Call what the peer registered as ``callback`` (``UM-11``); otherwise like ``call``."""
        argument = f"{base36(number(callback))}:{argument}"
        return self._own(Callback, argument, attachments, timeout, streamed)

    def _own(
        self,
        kind: type[Call | Callback],
        payload: str,
        attachments: Sequence[Any],
        timeout: float | None,
        streamed: bool,
    ) -> Deferred[Reply]:
        machine = self.machine
        machine.clock = now = self._now()
        if not machine.opened or self._closing:
            raise ConnectionClosed("the session does not stand")
        answer = Answer(self._cancelled)
        answer.streamed = streamed
        seconds = self._call_seconds if timeout is None else 0.0
        deadline = now + (seconds or timeout or 0.0)
        bodies = self._bodies(attachments) if attachments else ()
        answer.number = machine.own_call(kind, payload, bodies, answer, deadline, seconds)
        if self._own_paused:
            self._lookBacklog()
        if not self._following:
            self._settle()
        return answer

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
        """Subscribe a topic (``UM-12``, ``UM-14``).

        ``request(id)`` gives the payload of the call which asks the peer to publish to topic
        ``id``.  Updates go to ``hook``, or wait for ``async for update in subscription``.  If the
        call fails, the subscription ends; its ``whenStarted()`` says why.  Its ``whenEnded()``
        tells that there are no more updates, and why.
        """
        self._time()
        if not self.machine.opened:
            raise ConnectionClosed("the session does not stand")
        topic = self.machine.subscribe()
        subscription = Subscription(cast("UmqSession", self), topic, hook, streamed)
        self.subscriptions[topic] = subscription
        try:
            answer = self.call(request(subscription.id), attachments, timeout)
        except Exception:
            subscription.unsubscribe()
            raise
        answer.addCallbacks(subscription._accepted, subscription._refused)
        return subscription

    def openTopic(self, id: str) -> Topic:
        """The peer subscribed with topic ``id``: publish to what this returns (``UM-12``).

        ValueError for what is no id or is in use, LimitExceeded above ``topics``.
        """
        self._time()
        topic = self.machine.open_topic(id)
        self.topics[topic] = Topic(cast("UmqSession", self), topic, id)
        return self.topics[topic]

    def setAttribute(self, name: str, value: str, attachments: Sequence[Any] = ()) -> None:
        """Set an attribute at the peer (``UM-15``)."""
        self._time()
        self.machine.set_attribute(name, value, self._bodies(attachments))
        self._settle()

    def unsetAttribute(self, name: str) -> None:
        """Unset an attribute at the peer (``UM-16``)."""
        self._time()
        self.machine.unset_attribute(name)
        self._settle()

    def _lookBacklog(self) -> None:
        """Updates which nobody takes pause reading, but not while we wait for an answer."""
        limit = self.limits["backlog"]
        if self._backlog >= limit and not self.machine.calls_pending:
            self._own_paused = True
            self._control.pause("backlog")
        elif self._own_paused and (self._backlog <= limit // 2 or self.machine.calls_pending):
            self._own_paused = False
            self._control.resume("backlog")

    def closeSession(self, code: int | None = None, text: str = "") -> None:
        """End the session: with ``F code text`` (``UM-08``), or without a word (code None)."""
        if self.transport is None:  # no upgrade yet
            self.wire.abort()
        elif not self._ended:
            if code is not None:
                self.machine.fatal(code, text)
            self._leave(ConnectionClosed("the session was closed"))

    def _leave(self, why: Exception, fault: bool = False) -> None:
        """Write what the machine still has to say, and end; what is pending fails with ``why``."""
        self._reason = self._reason or why
        outputs = self.machine.outputs()
        if outputs:
            self._write(outputs)
        self._end(fault)

    def _time(self) -> float:
        """The machine is told the time, which has passed when a verb is called."""
        now: float = self._now()
        self.machine.clock = now
        return now

    def _bodies(self, attachments: Sequence[Any]) -> list[bytes | Slot]:
        """Attachments for the machine: a Deferred becomes a slot which is filled later."""
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
