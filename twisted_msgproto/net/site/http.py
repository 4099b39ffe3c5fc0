"""The sites of a gateway have a bounded number of connections, and each has to ask something.

Whoever may connect may be hostile: a scraper that hangs, a program that opens connections and says
nothing, a request whose header never ends.  None of them keeps others from an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, ClassVar, Final, NamedTuple

from twisted.internet.defer import maybeDeferred
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.http import HTTPChannel
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from ...core.errors import MsgprotoError
from .queue_view import NoSuchQueue

log: Logger = Logger(namespace="twisted_msgproto.site")

CHANGES: Final = b"x-msgproto"
"""A request that changes something has this field in its header."""

Query = Mapping[str, str]

CONNECTIONS_MAX: Final = 100
"""At most this many connections to one site are open: 32 pages that listen, and others that come
and go.  For a newcomer the one closes that has waited longest without a whole request.
"""

REQUEST_SECONDS: Final = 30.0
"""A whole request has to come within this time, and the next one on the same connection, too."""


class BodilessRequest(Request):
    """A request without a body: everything that can be asked stands in its path and query."""

    def gotLength(self, length: int | None) -> None:
        self.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """Drop bytes of the body; the channel calls this."""


class BoundedChannel(HTTPChannel):
    """One connection.  Bytes alone earn it no time: only whole requests do.

    Attributes:
        answering: whether a request is being answered, or a stream is open.
    """

    answering: bool = False
    site: BoundedSite
    transport: Any

    def connectionMade(self) -> None:
        super().connectionMade()  # type: ignore[no-untyped-call]
        self.site.opened(self)

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
    """A site without a log of requests: nothing has to be done while nobody asks.

    Attributes:
        connections: those that are open, the one that was answered least recently first.
    """

    protocolName: ClassVar[str] = "control"
    noisy = False
    protocol: type[BoundedChannel] = BoundedChannel  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings.setdefault("timeout", REQUEST_SECONDS)
        settings.setdefault("requestFactory", BodilessRequest)
        super().__init__(*arguments, **settings)  # type: ignore[no-untyped-call]
        self.connections: dict[BoundedChannel, None] = {}

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
    """One path: ``answer(query)`` returns an :class:`Answer`, or a Deferred of it."""

    isLeaf = True

    def __init__(self, answer: Callable[[Query], Any], *, changes: bool = False) -> None:
        """``changes`` says that the answer changes something, so it needs POST and a field in the
        header.
        """
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
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def getChild(self, path: bytes, request: Request) -> Resource:
        return Answering(_nothing)

    def render(self, request: Request) -> Any:
        return self.getChild(b"", request).render(request)


def _nothing(query: Query) -> Any:
    raise NoSuchQueue("the gateway's site has no such path")
