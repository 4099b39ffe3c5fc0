"""The sites of a gateway have a bounded number of connections, and each has to ask something: a
scraper that hangs, or a request that never ends, keeps nobody else from an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from math import inf
from typing import Any, ClassVar, Final, NamedTuple

from twisted.internet.defer import maybeDeferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.http import HTTPChannel
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site
from zope.interface import implementer

from ...core.errors import MsgprotoError
from ..counters import since
from .figures import Figures, GatewayFigures
from .queue_view import NoSuchQueue

log: Logger = Logger(namespace="twisted_msgproto.site")

CHANGES: Final = b"x-msgproto"

Query = Mapping[str, str]

CONNECTIONS_MAX: Final = 100  # the one longest without a whole request makes room

REQUEST_SECONDS: Final = 30.0  # for a whole request, and again for the next one


class BodilessRequest(Request):
    """A request without a body: everything that can be asked stands in its path and query."""

    def gotLength(self, length: int | None) -> None:
        self.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """Drop bytes of the body; the channel calls this."""


class BoundedChannel(HTTPChannel):
    """One connection.  Bytes alone earn it no time: only whole requests do."""

    answering: bool = False  # or a stream is open
    site: BoundedSite
    transport: Any

    def connectionMade(self) -> None:
        super().connectionMade()  # type: ignore[no-untyped-call]
        self.site.opened(self)

    def dataReceived(self, data: bytes) -> None:
        if data.startswith(b"\x16\x03") and not self.requests:
            self.transport.abortConnection()  # a browser that asks by https waits for an answer
        else:
            super().dataReceived(data)  # type: ignore[no-untyped-call]

    def resetTimeout(self) -> None:
        """Do nothing; the channel calls this for every byte."""

    def timeoutConnection(self) -> None:
        self.transport.abortConnection()

    def allContentReceived(self) -> None:
        self.answering = True
        super().allContentReceived()  # type: ignore[no-untyped-call]

    def requestDone(self, request: Request) -> None:
        self.answering = False
        self.site.rested(self)
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.site.closed(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]


class BoundedSite(Site):
    """A site without a log of requests: nothing has to be done while nobody asks."""

    protocolName: ClassVar[str] = "control"
    noisy = False
    protocol: type[BoundedChannel] = BoundedChannel  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings.setdefault("timeout", REQUEST_SECONDS)
        settings.setdefault("requestFactory", BodilessRequest)
        super().__init__(*arguments, **settings)  # type: ignore[no-untyped-call]
        self.connections: dict[BoundedChannel, None] = {}  # the one answered longest ago first

    def logPrefix(self) -> str:
        return self.protocolName

    def buildProtocol(self, addr: Any) -> Any:
        if len(self.connections) >= CONNECTIONS_MAX and not self._make_room():
            return None
        return super().buildProtocol(addr)  # type: ignore[no-untyped-call]

    def _make_room(self) -> bool:
        for channel in self.connections:
            if not channel.answering:
                self.closed(channel)
                channel.transport.abortConnection()
                return True
        return False

    def opened(self, channel: BoundedChannel) -> None:
        self.connections[channel] = None

    def rested(self, channel: BoundedChannel) -> None:
        """A request of this connection was answered: it is the last to be closed for others."""
        if self.connections.pop(channel, 0) is None:
            self.connections[channel] = None

    def closed(self, channel: BoundedChannel) -> None:
        self.connections.pop(channel, None)

    def acceptableProtocols(self) -> list[bytes]:
        """Return what TLS may agree on: HTTP/2 has channels of its own, without these bounds."""
        return [b"http/1.1"]

    def startFactory(self) -> None:
        """Do nothing; the port calls this when it listens."""

    def stopFactory(self) -> None:
        """Do nothing; the port calls this when it listens no more."""

    def log(self, request: Any) -> None:
        """Write nothing; the site calls this when a request is answered."""


# ── what answers a path ─────────────────────────────────────────────────────────────────────────


class BadRequest(Exception):
    status = http.BAD_REQUEST


class NotForEverybody(BadRequest):
    status = http.FORBIDDEN


class Answer(NamedTuple):
    status: int
    kind: str
    body: bytes


def in_json(value: object, status: int = http.OK) -> Answer:
    text = json.dumps(value, ensure_ascii=False)
    nbytes = text.encode(errors="backslashreplace")  # a lone surrogate becomes JSON's escape
    return Answer(status, "application/json", nbytes + b"\n")


class Answering(Resource):
    isLeaf = True

    def __init__(self, answer: Callable[[Query], Any], *, changes: bool = False) -> None:
        """``changes``: the answer changes something, so it needs POST and a field in the header."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._answer = answer
        self._changes = changes

    def render(self, request: Request) -> Any:
        request.setHeader(b"cache-control", b"no-store")
        gone: list[Failure] = []
        request.notifyFinish().addErrback(gone.append)

        def write(answer: Answer) -> None:
            if not gone:
                request.setResponseCode(answer.status)
                request.setHeader(b"content-type", answer.kind.encode())
                request.write(answer.body)
                request.finish()

        maybeDeferred(self._answered, request).addErrback(_error).addCallback(write)
        return NOT_DONE_YET

    def _answered(self, request: Request) -> Any:
        if request.method not in ((b"POST",) if self._changes else (b"GET", b"HEAD")):
            wanted = "POST" if self._changes else "GET"
            request.setHeader(b"allow", wanted.encode())
            error = BadRequest(f"this path takes {wanted}")
            error.status = http.NOT_ALLOWED
            raise error
        if self._changes and not request.requestHeaders.hasHeader(CHANGES):
            raise BadRequest("what changes something needs the field X-Msgproto in its header")
        try:
            arguments = request.args or {}
            query = {name.decode(): values[-1].decode() for name, values in arguments.items()}
        except UnicodeDecodeError:
            raise BadRequest("the query is not UTF-8") from None
        return self._answer(query)


def _error(failure: Failure) -> Answer:
    error = failure.value
    if isinstance(error, BadRequest):
        status = error.status
    elif isinstance(error, NoSuchQueue):
        status = http.NOT_FOUND
    elif isinstance(error, MsgprotoError):
        status = http.CONFLICT
    else:
        log.failure("the site failed", failure)
        return in_json({"error": "the gateway failed; its log says why"}, 500)
    return in_json({"error": " ".join(str(error).split())}, status)


class Paths(Resource):
    def getChild(self, path: bytes, request: Request) -> Resource:
        return Answering(_nothing)

    def render(self, request: Request) -> Any:
        return self.getChild(b"", request).render(request)


def _nothing(query: Query) -> Any:
    raise NoSuchQueue("the gateway's site has no such path")


# ── the live page is fed by one stream of server-sent events ──────────────────────────────────────

# A sample has the sums of all sessions, and no session of its own: the page asks for those it
# shows.  It is encoded once for all pages that have the same samples already.

SAMPLE_SECONDS: Final = 2.0

LISTENERS_MAX: Final = 32  # a sample has some 10 kB for each page, the first 40 kB

STALLED_SECONDS: Final = 30.0  # then a page that reads nothing gives way, if all places are taken


@implementer(IPushProducer)
class _Listener:
    """One page that is sent samples; one that does not read misses some."""

    def __init__(self, request: Request, clock: Callable[[], float]) -> None:
        self._request = request
        self._clock = clock
        self.stalled_at = inf  # since when the page does not read
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
    """Samples for all pages that listen; nothing is done while none does."""

    isLeaf = True

    def __init__(self, figures: GatewayFigures, reactor: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.figures = figures
        self._reactor = reactor
        self._listeners: dict[Request, _Listener] = {}
        self._next: Any = None  # the call of the next sample; inactive: it is being taken

    def render_GET(self, request: Request) -> Any:
        if len(self._listeners) >= LISTENERS_MAX and not self._make_room():
            request.setResponseCode(http.SERVICE_UNAVAILABLE)
            request.setHeader(b"content-type", b"text/plain; charset=utf-8")
            return b"%d pages listen already\n" % LISTENERS_MAX
        request.setHeader(b"content-type", b"text/event-stream; charset=utf-8")
        request.setHeader(b"cache-control", b"no-store")
        # A page says nothing; that it is gone is seen when we write.
        request.channel.setTimeout(None)
        self._listeners[request] = _Listener(request, self._reactor.seconds)
        request.notifyFinish().addBoth(self._gone, request)
        request.write(b"retry: 2000\n\n")
        if self._next is None:
            self._next = self._reactor.callLater(0, self._sample)
        elif self._next.active():
            self._next.reset(0)
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
        if not self._listeners and self._next is not None and self._next.active():
            self._next.cancel()
            self._next = None

    def _sample(self) -> None:
        sent = self.figures.summary().addCallback(self._send)
        sent.addErrback(lambda failure: log.failure("the figures could not be gathered", failure))
        sent.addBoth(self._rest)

    def _send(self, figures: Figures) -> None:
        events: dict[int, bytes] = {}
        for listener in list(self._listeners.values()):
            listener.send(figures, events)

    def _rest(self, _: object) -> None:
        self._next = None
        if self._listeners:
            self._next = self._reactor.callLater(SAMPLE_SECONDS, self._sample)

    def end(self) -> None:
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.end()
