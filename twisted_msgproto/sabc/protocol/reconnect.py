"""An sABC client reconnects with a new session each time, and may repeat requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar, Unpack

from twisted.internet.defer import Deferred, fail

from ...core.errors import LimitExceeded
from ...net.clients.command_types import ClientEndpoint
from ...net.clients.reconnect import ReconnectingClient, ReconnectOptions
from .session import Body, Response
from .sides import SabcClient, SabcClientFactory

GOODBYE_SECONDS: Final = 1.0
"""For DISCONNECTING to be written and read, when a server does not end a session in time."""

T = TypeVar("T")


class SabcClientService(ReconnectingClient[SabcClient]):
    """One session with a server; see ``ReconnectingService``.

    A request that was not sent waits for the next session.  One that was on its way when the
    session ended fails with ConnectionClosed, because nobody knows whether the server has done it;
    a caller who knows that doing it twice does no harm says ``safe=True``, and it is repeated.
    """

    factory: SabcClientFactory

    def __init__(
        self,
        endpoint: str | ClientEndpoint,
        factory: SabcClientFactory,
        *,
        url: str | None = None,
        **options: Unpack[ReconnectOptions],
    ) -> None:
        """Make a service; ``url`` is the ``ws://…`` or ``wss://…`` address, for WebSocket.

        ``endpoint`` is one, or its string as ``connect`` takes it; ``ws://…`` is the ``url``, too.
        ``options`` as ``ReconnectingService`` has them.
        """
        if url is None and isinstance(endpoint, str) and endpoint.startswith(("ws:", "wss:")):
            url = endpoint
        connecting = None if url is None else factory.webSocketFactory(url)
        super().__init__(endpoint, factory, connecting=connecting, **options)

    def request(
        self,
        body: Body = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        safe: bool = False,
    ) -> Deferred[Response]:
        """Send a request in the session that stands, or in the next one; its answer.

        ``timeout`` (None: the limit ``response-seconds``) is for all of it, waiting for a session
        included.  ``safe``: it may be repeated when a session ends before its answer; its body then
        is no iterator, which could be sent once only (ValueError).  Fails as
        :meth:`SabcSession.request` does, with Refused when the server refuses the session, and with
        LimitExceeded when too many wait for one.
        """
        if safe and iter(body) is body:
            return fail(ValueError("an iterator cannot be sent twice"))
        seconds = self.factory.limits["response-seconds"]
        return self._waiting(
            lambda session, left: session.request(
                body, headers=headers, timeout=None if timeout is None and left >= seconds else left
            ),
            body,
            timeout,
            safe,
        )

    def sendOnly(
        self,
        body: Body = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Deferred[None]:
        """Send a message that wants no answer, in the session that stands or in the next one.

        ``timeout`` (None: the limit ``response-seconds``) is for the wait.  The Deferred fires when
        it is written; that it arrives nobody promises.
        """
        return self._waiting(
            lambda session, left: session.sendOnly(body, headers=headers), body, timeout, False
        )

    def sendError(
        self, code: int | str, text: str = "", *, headers: Mapping[str, str] | None = None
    ) -> Deferred[None]:
        """Tell the server of an error that answers nothing, in the session that stands or in the
        next one; as :meth:`SabcSession.sendError`.
        """
        return self._waiting(
            lambda session, left: session.sendError(code, text, headers=headers), text, None, False
        )

    def _waiting(
        self,
        verb: Callable[[SabcClient, float], Deferred[T]],
        body: Body,
        timeout: float | None,
        safe: bool,
    ) -> Deferred[T]:
        limits = self.factory.limits
        if self.session is None and self.waiting >= limits.integer("outstanding-requests"):
            return fail(LimitExceeded("too many requests wait for a session"))
        seconds = limits["response-seconds"] if timeout is None else timeout
        nbytes = len(body) if isinstance(body, bytes | str) else 0
        return self.perform(verb, seconds=seconds, nbytes=nbytes, safe=safe)

    def _closeSession(self, session: SabcClient) -> Deferred[None]:
        return session.disconnect()

    def _cutOff(self) -> None:
        session = self.session
        if session is None:
            super()._cutOff()
        else:
            session.loseSession()
            self._forgetDeadline()
            self._deadline = self.clock.callLater(GOODBYE_SECONDS, super()._cutOff)
