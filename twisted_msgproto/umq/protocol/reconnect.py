"""A UMQ client reconnects: subscriptions and attributes are renewed with each session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded
from ...net.clients import subscriptions
from ...net.clients.command_types import ClientEndpoint
from ...net.clients.reconnect import ReconnectingClient, ReconnectOptions
from ...net.factory import expect
from ..application import Remote
from ..machine import Client
from ..wire import base36
from .calls import Reply, Request, Update
from .sides import UmqClient, UmqClientFactory
from .topics import Subscription, Updates, expect_functions

log: Logger = Logger(namespace="twisted_msgproto.umq")


class Renewed(subscriptions.Renewed):
    """A topic to which every session subscribes; :meth:`end` it when it is enough.

    A hook is called, or iterate it through all sessions: what had come from one that has ended can
    still be iterated.  The server may end it while the session continues: it refuses it, or says
    ``D``.  Its ``reason`` then is one of those of :class:`~.topics.Subscription`, but never
    ``"lost"``.  Iteration ends then, and continues with :meth:`renew` or the next session.
    """

    log = log

    def __init__(
        self,
        service: UmqClientService,
        request: Callable[[str], str],
        hook: Callable[[Update], object] | None,
        attachments: Sequence[Any],
        timeout: float | None,
    ) -> None:
        updates = Updates(self._taken)
        super().__init__(service, service._renewed, self, updates)
        self._asked = request, hook, attachments, timeout, updates

    def __aiter__(self) -> Renewed:
        return self

    async def __anext__(self) -> Update:
        update: Update = await self._backlog.take()
        return update

    def _share(self) -> float:
        return float(self._backlog.nbytes / self._service.factory.limits["backlog-bytes"])

    def _ask(self, session: UmqClient) -> Subscription:
        return session.link.topics.subscribe(*self._asked)


class UmqClientService(ReconnectingClient[UmqClient]):
    """One session with a server; see ``ReconnectingService``.

    A call that was not sent waits for the next session.  One that was on its way when the session
    ended fails with ConnectionClosed, because nobody knows whether the server did it; a caller who
    knows that doing it twice does no harm says ``safe=True``, and it is repeated. Subscriptions and
    attributes are renewed with every new session.
    """

    factory: UmqClientFactory

    def __init__(
        self,
        endpoint: str | ClientEndpoint,
        factory: UmqClientFactory,
        **options: Unpack[ReconnectOptions],
    ) -> None:
        """``endpoint`` is one, or its string, such as the factory's ``ws://…``.

        ``options`` as ``ReconnectingService`` has them.
        """
        super().__init__(endpoint, factory, connecting=factory, **options)
        self._attributes: dict[str, tuple[str, Sequence[Any]]] = {}
        self._callbacks: dict[str, Callable[[Request], Any]] = {}
        self._lastCallback = 0

    def call(
        self,
        payload: str,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
        streamed: bool = False,
        *,
        safe: bool = False,
    ) -> Deferred[Reply]:
        """Call the server in the session that stands, or in the next one (``UM-09``).

        ``timeout`` (None: the limit ``call-seconds``) is for all of it, waiting for a session
        included.  ``safe``: it may be repeated when a session ends before its answer; its
        attachments then are bytes, since a Deferred is sent once only (ValueError).  Fails as
        :meth:`UmqClient.call` does, with Refused when the server refuses the session, and with
        LimitExceeded when too many wait for one.
        """
        attachments = tuple(attachments)
        if safe and any(isinstance(one, Deferred) for one in attachments):
            return fail(ValueError("a Deferred cannot be sent twice"))
        return self._calling(
            lambda session, left: session.call(payload, attachments, left, streamed),
            payload,
            attachments,
            timeout,
            safe,
        )

    def callback(
        self,
        callback: str,
        argument: str,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
        streamed: bool = False,
    ) -> Deferred[Reply]:
        """Call what the server registered as ``callback``, in the session that stands or in the
        next one (``UM-11``); otherwise like :meth:`call`.

        A server may know an id in one session alone: then this fails with CallFailed, code 2.
        """
        attachments = tuple(attachments)
        return self._calling(
            lambda session, left: session.callback(callback, argument, attachments, left, streamed),
            argument,
            attachments,
            timeout,
            False,
        )

    def _calling(
        self,
        verb: Callable[[UmqClient, float | None], Deferred[Reply]],
        payload: str,
        attachments: Sequence[Any],
        timeout: float | None,
        safe: bool,
    ) -> Deferred[Reply]:
        limits = self.factory.limits
        if self.session is None and self.waiting >= limits.integer("own-calls"):
            return fail(LimitExceeded("too many calls wait for a session"))
        seconds = limits["call-seconds"] if timeout is None else timeout

        def call(session: UmqClient, left: float) -> Deferred[Reply]:
            # Without a time-out of its own, and without a wait, its time runs as in a session.
            return verb(session, None if timeout is None and left >= seconds else left)

        return self.perform(
            call,
            seconds=seconds,
            nbytes=len(payload) + sum(len(one) for one in attachments if isinstance(one, bytes)),
            safe=safe,
        )

    @property
    def remote(self) -> Remote:
        """The server's methods as functions: ``await service.remote.add(1, 2)``."""
        return Remote(self)

    @property
    def attributes(self) -> Mapping[str, str]:
        """The server's attributes in the session that stands; empty where none does."""
        return {} if self.session is None else self.session.attributes

    def registerCallback(self, function: Callable[[Request], Any]) -> str:
        """Let the server call ``function``, now and in every session to come (``UM-11``).

        Returns the id to tell it, which is the same in all of them.  LimitExceeded above
        ``callbacks``.
        """
        expect("function", function, "a function of a Request", callable(function))
        if len(self._callbacks) >= self.factory.limits["callbacks"]:
            raise LimitExceeded(f"{len(self._callbacks)} callbacks are registered already")
        self._lastCallback += 1
        id = base36(self._lastCallback)
        self._callbacks[id] = function
        if self.session is not None:
            self.session.link.calls.register(function, id)
        return id

    def unregisterCallback(self, id: str) -> None:
        """The callback ``id`` ends; calls of it are refused from now on."""
        self._callbacks.pop(id, None)
        if self.session is not None:
            self.session.unregisterCallback(id)

    def subscribe(
        self,
        request: Callable[[str], str],
        hook: Callable[[Update], object] | None = None,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Renewed:
        """Subscribe, now and in every session to come, as :meth:`UmqClient.subscribe` does.

        ``request`` is asked anew each time; attachments are bytes here (ValueError).
        """
        expect_functions(request, hook)
        attachments = tuple(attachments)
        if any(isinstance(one, Deferred) for one in attachments):
            raise ValueError("a Deferred cannot be sent twice")
        renewed = Renewed(self, request, hook, attachments, timeout)
        if self.session is not None:
            renewed._renew(self.session)
        return renewed

    def setAttribute(
        self, name: str, value: str, attachments: Sequence[Any] = ()
    ) -> Deferred[None]:
        """Set an attribute, now and in every session to come; attachments are bytes here.

        The Deferred fires when it is written in the session that stands, or at once where none
        does.  It fails with ValueError for a name that no attribute has, and with LimitExceeded;
        then no session has it.
        """
        if "=" in name:
            return fail(ValueError(f"an attribute's name has no '=': {name!r}"))
        try:
            Client(self.factory.limits).check(name + "=" + value, attachments)
        except ValueError as error:
            return fail(error)
        self._attributes[name] = value, attachments
        if self.session is None:
            return succeed(None)

        def refused(failure: Failure) -> None:
            if not failure.check(ConnectionClosed):  # else the next session will have it
                self._attributes.pop(name, None)
                failure.raiseException()

        return self.session.setAttribute(name, value, attachments).addErrback(refused)

    def unsetAttribute(self, name: str) -> Deferred[None]:
        """Remove an attribute, now and in every session to come; as :meth:`setAttribute`."""
        self._attributes.pop(name, None)
        if self.session is None:
            return succeed(None)

        def refused(failure: Failure) -> None:
            failure.trap(ConnectionClosed)  # then the next session will not have it

        return self.session.unsetAttribute(name).addErrback(refused)

    def _renew(self, session: UmqClient) -> None:
        for id, function in self._callbacks.items():
            session.link.calls.register(function, id)
        for name, (value, attachments) in self._attributes.items():
            session.setAttribute(name, value, attachments).addErrback(self._notRenewed, name)
        super()._renew(session)

    def _notRenewed(self, failure: Failure, name: str) -> None:
        if not failure.check(ConnectionClosed):
            text = failure.getErrorMessage()
            log.warn("attribute {name} was not set again: {text}", name=name, text=text)
