"""An sABC client which comes back: a new session each time, and requests which may be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded, TimedOut
from .exchange import Response
from .sides import SabcClient, SabcClientFactory


class _Kept:
    """A request which may outlive a session."""

    __slots__ = ("body", "deadline", "done", "headers", "inner", "safe", "timer")

    def __init__(
        self, body: bytes | str, headers: Mapping[str, str] | None, deadline: float, safe: bool
    ) -> None:
        self.body = body
        self.headers = headers
        self.deadline = deadline
        self.safe = safe
        self.done: Deferred[Response] = Deferred(self._cancel)
        self.inner: Deferred[Response] | None = None  # the request of the session which stands
        self.timer: Any = None

    def _cancel(self, done: Deferred[Response]) -> None:
        self.stop()
        inner, self.inner = self.inner, None
        if inner is not None:
            inner.addErrback(lambda failure: None)
            inner.cancel()

    def stop(self) -> None:
        """Its time is no longer watched."""
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        self.timer = None


class SabcClientService(ClientService):
    """Keeps one session with a server, for as long as the service runs.

    A request that was never sent waits for the next session.  One that was on its way when the
    session ended fails with ConnectionClosed, because nobody knows whether the server has done it;
    a caller who knows that doing it twice does no harm says ``safe=True``, and it is repeated.

    Attributes:
        session: the session which stands now, or None.
    """

    def __init__(
        self,
        endpoint: IStreamClientEndpoint,
        factory: SabcClientFactory,
        *,
        url: str | None = None,
        **options: Any,
    ) -> None:
        """``url``: the ``ws://…`` or ``wss://…`` address, for WebSocket.

        ``options`` go to :class:`twisted.application.internet.ClientService`.
        """
        self.session: SabcClient | None = None
        self._factory = factory
        self._kept: dict[_Kept, None] = {}  # those which wait for a session, oldest first
        self._waiting: list[Deferred[SabcClient]] = []
        kind: type[SabcClient] = factory.protocol

        def established(session: SabcClient) -> None:
            self.session = session
            kind.sessionEstablished(session)
            self._stands(session)

        def over(session: SabcClient, error: Exception) -> None:
            # Before those who wait for answers hear of it: they may ask again at once.
            if self.session is session:
                self.session = None
            kind.sessionOver(session, error)

        hooks = {"sessionEstablished": established, "sessionOver": over}
        watched: Any = type("Watched", (kind,), hooks)
        factory.protocol = watched
        connecting: Any = factory if url is None else factory.webSocketFactory(url)
        super().__init__(endpoint, connecting, clock=factory.clock, **options)

    def whenEstablished(self) -> Deferred[SabcClient]:
        """Fires with the session which stands, now or when the next one does."""
        standing: Deferred[SabcClient] = Deferred(
            lambda waiting: self._waiting.remove(waiting) if waiting in self._waiting else None
        )
        if self.session is not None:
            standing.callback(self.session)
        else:
            self._waiting.append(standing)
        return standing

    def request(
        self,
        body: bytes | str = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        safe: bool = False,
    ) -> Deferred[Response]:
        """Send a request in the session which stands, or in the next one; its answer.

        ``timeout`` (None: the limit ``response-seconds``) is for all of it, waiting for a session
        included.  ``safe``: it may be repeated when a session ends before its answer.  Fails as
        :meth:`SabcSession.request` does, and with LimitExceeded when too many wait for a session.
        """
        clock, limits = self._factory.clock, self._factory.limits
        seconds = limits["response-seconds"] if timeout is None else timeout
        kept = _Kept(body, headers, clock.seconds() + seconds, safe)
        if self.session is None and len(self._kept) >= limits.integer("outstanding-requests"):
            kept.done.errback(LimitExceeded("too many requests wait for a session"))
            return kept.done
        kept.timer = clock.callLater(seconds, self._late, kept)
        self._send(kept)
        return kept.done

    def _send(self, kept: _Kept) -> None:
        session = self.session
        if session is None or not session.established:
            self._kept[kept] = None
            return
        left = max(0.0, kept.deadline - self._factory.clock.seconds())
        inner = session.request(kept.body, headers=kept.headers, timeout=left)
        kept.inner = inner
        inner.addCallbacks(self._answered, self._failed, (kept,), errbackArgs=(kept,))

    def _answered(self, response: Response, kept: _Kept) -> None:
        kept.inner = None
        if kept.timer is not None:
            kept.stop()
            kept.done.callback(response)

    def _failed(self, failure: Failure, kept: _Kept) -> None:
        kept.inner = None
        if kept.timer is None:
            return  # nobody waits for it any more
        if kept.safe and failure.check(ConnectionClosed) and self.running:
            self._send(kept)
            return
        kept.stop()
        kept.done.errback(failure)

    def _late(self, kept: _Kept) -> None:
        kept.timer = None
        self._kept.pop(kept, None)
        inner, kept.inner = kept.inner, None
        if inner is not None:
            inner.cancel()
        kept.done.errback(TimedOut("no answer in time"))

    def _stands(self, session: SabcClient) -> None:
        waiting, self._waiting = self._waiting, []
        for standing in waiting:
            standing.callback(session)
        kept, self._kept = self._kept, {}
        for request in kept:
            if request.timer is not None:
                self._send(request)

    def stopService(self) -> Deferred[None]:
        """End the session in order and come back no more; those who wait for one hear it.

        Requests on their way still get their answers, for at most the limit ``drain`` (HO-05).
        """
        session = self.session
        if session is None:
            stopped: Deferred[None] = super().stopService()
        else:
            self.running = False  # nothing is repeated any more
            drain = self._factory.limits["drain"]
            late = self._factory.clock.callLater(drain, session.loseSession)
            stopped = session.disconnect()
            stopped.addCallback(lambda _: late.active() and late.cancel())
            stopped.addCallback(lambda _: super(SabcClientService, self).stopService())
        error = ConnectionClosed("the client was stopped")
        waiting, self._waiting = self._waiting, []
        for standing in waiting:
            standing.errback(error)
        kept, self._kept = self._kept, {}
        for request in kept:
            if request.timer is not None:
                request.stop()
                request.done.errback(error)
        return stopped
