"""A UMQ client which comes back: pending calls fail, subscriptions and attributes are renewed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed
from .exchange import Reply, Update
from .sides import UmqClient, UmqClientFactory
from .topics import Subscription

log = Logger(namespace="twisted_msgproto.umq")


class Renewed:
    """A subscription which is renewed with every session; :meth:`end` it when it is enough."""

    def __init__(
        self,
        service: UmqClientService,
        request: Callable[[str], str],
        hook: Callable[[Update], object],
    ) -> None:
        self._service = service
        self._request = request
        self._hook = hook
        self._subscription: Subscription | None = None

    def end(self) -> None:
        """Unsubscribe, now and for all sessions to come."""
        self._service._renewed.pop(self, None)
        if self._subscription is not None:
            self._subscription.unsubscribe()

    def _renew(self, session: UmqClient) -> None:
        self._subscription = session.subscribe(self._request, self._hook)
        self._subscription.whenStarted().addErrback(self._refused)

    def _refused(self, failure: Failure) -> None:
        if not failure.check(ConnectionClosed):
            log.info("a subscription was not renewed: {error}", error=failure.getErrorMessage())


class UmqClientService(ClientService):
    """Keeps one session with a server, for as long as the service runs.

    A call whose connection ends fails with ConnectionClosed: nobody knows whether the server did
    it, so it is not repeated.  Subscriptions and attributes are renewed with every new session.

    Attributes:
        session: the session which stands now, or None.
    """

    def __init__(
        self, endpoint: IStreamClientEndpoint, factory: UmqClientFactory, **options: Any
    ) -> None:
        """``options`` go to :class:`twisted.application.internet.ClientService`."""
        self.session: UmqClient | None = None
        self._renewed: dict[Renewed, None] = {}
        self._attributes: dict[str, tuple[str, Sequence[Any]]] = {}
        self._waiting: list[Deferred[UmqClient]] = []
        kind: type[UmqClient] = factory.protocol

        def established(session: UmqClient) -> None:
            self._stands(session)
            kind.sessionEstablished(session)

        def lost(session: UmqClient, reason: Failure) -> None:
            self.session = None
            kind.sessionLost(session, reason)

        hooks = {"sessionEstablished": established, "sessionLost": lost}
        watched: Any = type("Watched", (kind,), hooks)
        factory.protocol = watched
        super().__init__(endpoint, factory, clock=factory.clock, **options)

    def whenEstablished(self) -> Deferred[UmqClient]:
        """Fires with the session which stands, now or when the next one does."""
        standing: Deferred[UmqClient] = Deferred()
        if self.session is not None:
            standing.callback(self.session)
        else:
            self._waiting.append(standing)
        return standing

    def stopService(self) -> Deferred[None]:
        """End the session and come back no more; those who wait for a session hear it."""
        if self.session is not None:
            self.session.closeSession()
        waiting, self._waiting = self._waiting, []
        for standing in waiting:
            standing.errback(ConnectionClosed("the client was stopped"))
        stopped: Deferred[None] = super().stopService()
        return stopped

    def call(self, payload: str, *arguments: Any, **options: Any) -> Deferred[Reply]:
        """As :meth:`UmqClient.call`; raises ConnectionClosed when there is no session."""
        if self.session is None:
            raise ConnectionClosed("there is no session now")
        return self.session.call(payload, *arguments, **options)

    def subscribe(self, request: Callable[[str], str], hook: Callable[[Update], object]) -> Renewed:
        """Subscribe, now and in every session to come; ``request`` is asked anew each time."""
        renewed = Renewed(self, request, hook)
        self._renewed[renewed] = None
        if self.session is not None:
            renewed._renew(self.session)
        return renewed

    def setAttribute(self, name: str, value: str, attachments: Sequence[Any] = ()) -> None:
        """Set an attribute, now and in every session to come; attachments are octets here."""
        if "=" in name:
            raise ValueError(f"an attribute's name has no '=': {name!r}")
        self._attributes[name] = value, attachments
        if self.session is not None:
            self.session.setAttribute(name, value, attachments)

    def unsetAttribute(self, name: str) -> None:
        """Unset an attribute, now and in every session to come."""
        self._attributes.pop(name, None)
        if self.session is not None:
            self.session.unsetAttribute(name)

    def _stands(self, session: UmqClient) -> None:
        self.session = session
        for name, (value, attachments) in self._attributes.items():
            session.setAttribute(name, value, attachments)
        for renewed in list(self._renewed):
            renewed._renew(session)
        waiting, self._waiting = self._waiting, []
        for standing in waiting:
            standing.callback(session)
