"""The status site has these paths.

=================  =================================================================
path               answer
=================  =================================================================
``/``              the live page
``/events``        a stream of server-sent events, each the figures as JSON, without sessions
``/status.json``   the figures as JSON
``/sessions.json`` the sessions that match ``protocol``, ``state`` and ``text`` of the query
``/machines.json`` states and moves of each protocol's machine, for the page's drawings
``/metrics``       the figures as Prometheus reads them
``/healthz``       200, or 503 with the reason when nothing can be acknowledged
``/broker/…``      the queues of the broker (:mod:`twisted_msgproto.net.control`)
``/reload``        POST: certificates, keys, rules and tokens are read again
=================  =================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from ..control.resources import control_root
from .figures import Figures, GatewayFigures
from .machines import drawings
from .stream import Events

log = Logger(namespace="twisted_msgproto.status")

TEXT: Final = "text/plain; charset=utf-8"

PAGE_POLICY: Final = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    b" img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads nothing from elsewhere, runs no script but its own, and is shown in no frame."""

PAGE_FILES: Final = (
    (b"", "page.html", b"text/html; charset=utf-8"),
    (b"page.css", "page.css", b"text/css; charset=utf-8"),
    (b"drawing.js", "drawing.js", b"text/javascript; charset=utf-8"),
    (b"page.js", "page.js", b"text/javascript; charset=utf-8"),
)

Answer = tuple[int, str, bytes]


class Shown(Resource):
    """What ``answer(figures)`` makes of the figures that ``ask()`` gathers."""

    isLeaf = True

    def __init__(
        self, ask: Callable[[], Deferred[Figures]], answer: Callable[[Figures], Answer]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ask = ask
        self._answer = answer

    def render_GET(self, request: Request) -> Any:
        return answered(request, lambda: self._ask().addCallback(self._answer))


def answered(request: Request, ask: Callable[[], Deferred[Answer]]) -> Any:
    gone: list[Failure] = []
    request.notifyFinish().addErrback(gone.append)
    request.setHeader(b"cache-control", b"no-store")

    def write(answer: Answer) -> None:
        if not gone:
            status, kind, body = answer
            request.setResponseCode(status)
            request.setHeader(b"content-type", kind.encode())
            request.write(body)
            request.finish()

    maybeDeferred(ask).addErrback(_failed).addCallback(write)
    return NOT_DONE_YET


def _failed(failure: Failure) -> Answer:
    log.failure("the figures could not be shown", failure)
    text = b"the gateway could not gather its figures; its log says why\n"
    return http.INTERNAL_SERVER_ERROR, TEXT, text


def _json(figures: Figures) -> Answer:
    return http.OK, "application/json", json.dumps(figures).encode() + b"\n"


def _health(figures: Figures) -> Answer:
    health = figures["healthy"]
    status = http.OK if health["ok"] else http.SERVICE_UNAVAILABLE
    return status, TEXT, f"{health['why']}\n".encode()


def _metrics(figures: Figures) -> Answer:
    try:
        from .metrics import CONTENT_TYPE, exposition
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: pip install 'twisted-msgproto[metrics]'\n"
        return http.NOT_IMPLEMENTED, TEXT, text.encode()
    return http.OK, CONTENT_TYPE, exposition(figures)


class Searched(Resource):
    """The sessions that match the query."""

    isLeaf = True

    def __init__(self, figures: GatewayFigures) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._figures = figures

    def render_GET(self, request: Request) -> Any:
        arguments = request.args or {}
        wanted = {
            name: arguments.get(name.encode(), [b""])[-1].decode("utf-8", "replace")
            for name in ("protocol", "state", "text")
        }
        return answered(request, lambda: self._figures.search(**wanted).addCallback(_json))


class Drawn(Resource):
    """What the page draws of each protocol's machine."""

    isLeaf = True

    def __init__(self, gateway: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gateway = gateway

    def render_GET(self, request: Request) -> Any:
        return answered(request, lambda: succeed(_json(drawings(self._gateway.factories))))


class PageFile(Resource):
    isLeaf = True

    def __init__(self, name: str, kind: bytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._octets = files(__package__).joinpath(name).read_bytes()
        self._kind = kind

    def render_GET(self, request: Request) -> bytes:
        request.setHeader(b"content-type", self._kind)
        request.setHeader(b"content-security-policy", PAGE_POLICY)
        request.setHeader(b"x-content-type-options", b"nosniff")
        request.setHeader(b"referrer-policy", b"no-referrer")
        request.setHeader(b"cache-control", b"no-cache")
        return self._octets


def status_root(gateway: Any, events: Events, *, for_everybody: bool = False) -> Resource:
    """Return the root of a gateway's site: the control site's paths, and those that show
    figures.

    ``for_everybody``: it shows figures, and does nothing else.
    """
    root = control_root(gateway.broker, gateway.reload, for_everybody=for_everybody)
    figures = events.figures

    # Only who wants to see sessions has them read one by one.
    root.putChild(b"status.json", Shown(figures.latest, _json))
    root.putChild(b"healthz", Shown(figures.summary, _health))
    root.putChild(b"metrics", Shown(figures.summary, _metrics))
    root.putChild(b"events", events)
    root.putChild(b"sessions.json", Searched(figures))
    root.putChild(b"machines.json", Drawn(gateway))
    for path, name, kind in PAGE_FILES:
        root.putChild(path, PageFile(name, kind))
    return root
