"""The live page is fed by one stream of server-sent events: a sample every two seconds.

A sample has the sums of all sessions, and no session of its own: the page asks for those it shows.
It is encoded once for all pages that have the same samples already.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from typing import Any, Final

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request
from zope.interface import implementer

from ..counters import since
from .figures import Figures, GatewayFigures

SAMPLE_SECONDS: Final = 2.0

LISTENERS_MAX: Final = 32
"""At most this number of pages may listen; a sample has some 10 kB for each, the first 40 kB."""

STALLED_SECONDS: Final = 30.0
"""A page that has not read for this long gives way to another one, where all places are taken."""

log: Logger = Logger(namespace="twisted_msgproto.site")


@implementer(IPushProducer)
class _Listener:
    """One page that is sent samples; one that does not read misses some.

    Attributes:
        stalled_at: the page does not read since this time of the clock; infinite if it reads.
    """

    def __init__(self, request: Request, clock: Callable[[], float]) -> None:
        self._request = request
        self._clock = clock
        self.stalled_at = inf
        self._told_at = 0  # µs: the flow until then is known to the page
        request.registerProducer(self, True)

    def pauseProducing(self) -> None:
        self.stalled_at = min(self.stalled_at, self._clock())

    def resumeProducing(self) -> None:
        self.stalled_at = inf

    def stopProducing(self) -> None:
        """Send nothing any more; the request's end is told by its own Deferred."""
        self.pauseProducing()

    def send(self, figures: Figures, events: dict[int, bytes]) -> None:
        if self.stalled_at == inf:
            if self._told_at not in events:
                events[self._told_at] = _event(figures, self._told_at)
            self._request.write(events[self._told_at])
            flow = figures["flow"]
            self._told_at = flow["at"][-1] if flow and flow["at"] else 0

    def abort(self) -> None:
        """Cut the connection: its page would not read the end."""
        channel: Any = self._request.channel
        channel.transport.abortConnection()

    def end(self) -> None:
        self._request.unregisterProducer()
        self._request.finish()


def _event(figures: Figures, told_at: int) -> bytes:
    flow = figures["flow"]
    told = figures if flow is None else {**figures, "flow": since(flow, told_at)}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


class Events(Resource):
    """Samples for all pages that listen; nothing is done while none does.

    Attributes:
        figures: gathers what a sample shows.
    """

    isLeaf = True

    def __init__(self, figures: GatewayFigures, reactor: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.figures = figures
        self._reactor = reactor
        self._listeners: dict[Request, _Listener] = {}
        self._next: Any = None
        self._sampling = False

    def render_GET(self, request: Request) -> Any:
        if len(self._listeners) >= LISTENERS_MAX and not self._make_room():
            request.setResponseCode(http.SERVICE_UNAVAILABLE)
            request.setHeader(b"content-type", b"text/plain; charset=utf-8")
            return b"%d pages listen already\n" % LISTENERS_MAX
        request.setHeader(b"content-type", b"text/event-stream; charset=utf-8")
        request.setHeader(b"cache-control", b"no-store")
        channel: Any = request.channel
        if hasattr(channel, "setTimeout"):
            channel.setTimeout(None)  # a page says nothing; that it is gone is seen when we write
        self._listeners[request] = _Listener(request, self._reactor.seconds)
        request.notifyFinish().addBoth(self._gone, request)
        request.write(b"retry: 2000\n\n")
        if not self._sampling:
            if self._next is not None:
                self._next.cancel()
            self._sample()
        return NOT_DONE_YET

    def _make_room(self) -> bool:
        request, listener = min(self._listeners.items(), key=lambda one: one[1].stalled_at)
        if self._reactor.seconds() - listener.stalled_at < STALLED_SECONDS:
            return False
        del self._listeners[request]
        listener.abort()
        return True

    def _gone(self, _: object, request: Request) -> None:
        self._listeners.pop(request, None)
        if not self._listeners and self._next is not None:
            self._next.cancel()
            self._next = None

    def _sample(self) -> None:
        self._next = None
        self._sampling = True
        self.figures.summary().addCallback(self._send).addErrback(self._failed).addBoth(self._rest)

    def _send(self, figures: Figures) -> None:
        events: dict[int, bytes] = {}
        for listener in list(self._listeners.values()):
            listener.send(figures, events)

    @staticmethod
    def _failed(failure: Failure) -> None:
        log.failure("the figures could not be gathered", failure)

    def _rest(self, _: object) -> None:
        self._sampling = False
        if self._listeners:
            self._next = self._reactor.callLater(SAMPLE_SECONDS, self._sample)

    def end(self) -> None:
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.end()
        if self._next is not None:
            self._next.cancel()
            self._next = None
