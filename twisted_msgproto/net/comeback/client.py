"""Clients on Twisted's transports reconnect with Twisted's ``ClientService`` inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from zope.interface import implementer

from ..factory import tls_refusal
from .errand import S
from .service import Comeback
from .terms import DRAIN_SECONDS, ComebackState


@implementer(IStreamClientEndpoint)
class _Attempts:
    def __init__(self, endpoint: IStreamClientEndpoint, service: ClientComeback[Any]) -> None:
        self._endpoint = endpoint
        self._service = service

    def __repr__(self) -> str:
        return repr(self._endpoint)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        service = self._service
        with service._asked():
            service._attempting()
            connected: Deferred[Any] = self._endpoint.connect(protocolFactory)
            return connected.addCallbacks(service._connected, service._unconnected)


class ClientComeback(Comeback[S]):
    """A client on Twisted transports that reconnects with Twisted's ``ClientService``.

    The factory builds a session, or a protocol that has one as its ``session``; the session's
    ``whenEstablished()`` fails with Refused if the server refused it, and its ``close()`` ends it
    in order.
    """

    def __init__(
        self,
        endpoint: IStreamClientEndpoint,
        factory: Any,
        *,
        connecting: IProtocolFactory | None = None,
        **options: Any,
    ) -> None:
        """``factory`` builds the sessions, or ``connecting`` does with it (WebSocket).

        ``options`` go to :class:`Comeback`.
        """
        drain = factory.limits.get("drain", DRAIN_SECONDS)
        super().__init__(factory.clock, **{"drain": drain, **options})
        self.factory = factory
        self._connection: Any = None  # the newest one
        self._client = ClientService(
            _Attempts(endpoint, self),
            factory if connecting is None else connecting,
            retryPolicy=self._between,
            clock=factory.clock,
        )
        self._error: BaseException | None = None  # why the attempt at hand has failed
        self._asking = False  # ClientService asks something, and cannot be stopped meanwhile

    def _sessionIn(self, connection: Any) -> Any:
        """Return the session of a connection: itself on a byte stream, what it carries on
        WebSocket.
        """
        carried = getattr(connection, "session", None)
        return carried if hasattr(carried, "whenEstablished") else connection

    def _begin(self) -> None:
        self._client.startService()

    def _connected(self, connection: Any) -> Any:
        self._connection = connection
        session = self._sessionIn(connection)
        established: Deferred[S] = session.whenEstablished()
        with self._asked():
            established.addCallbacks(self._established, self._unestablished, errbackArgs=(session,))
        return connection

    def _unconnected(self, failure: Failure) -> Failure:
        self._error = failure.value
        return failure

    def _unestablished(self, failure: Failure, session: Any) -> None:
        loss: Failure | None = getattr(session, "loss", None)
        self._error = (None if loss is None else tls_refusal(loss)) or failure.value

    def _between(self, attempts: int) -> float:
        """Return the seconds until the next attempt; ClientService asks when a connection was
        lost or could not be made.
        """
        with self._asked():
            error, self._error = self._error, None
            self._connection = None
            self._failed(error)
            seconds = self._delay()
            if self._stopWhenRefused and self.state is ComebackState.REFUSED:
                self.clock.callLater(0, self._giveUp)
            return seconds

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """ClientService asks for a connection or an interval, between two states of its own.

        Whatever is called meanwhile (a hook, an errback, the policy) may stop this service, but
        ClientService would not notice: it would keep the call that reconnects.
        """
        within, self._asking = self._asking, True
        try:
            yield
        finally:
            self._asking = within

    def _giveUp(self) -> None:
        if self.state is ComebackState.REFUSED and not self._closing:
            self._client.stopService()

    def _closeSession(self, session: S) -> Deferred[Any]:
        closed: Deferred[Any] = cast(Any, session).close()
        return closed

    def _leave(self) -> Deferred[Any]:
        if self._asking:
            return deferLater(self.clock, 0, self._client.stopService)
        left: Deferred[Any] = self._client.stopService()
        return left

    def _cutOff(self) -> None:
        connection = self._connection
        transport = None if connection is None else getattr(connection, "transport", None)
        if transport is not None:
            transport.abortConnection()
