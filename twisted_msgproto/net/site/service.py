"""The site of a gateway: where it is served, and what each path answers.

The socket ``control`` in the queue's directory is for the gateway's own user; a status endpoint for
everybody on this machine, or for those who have its token.  ``/alive`` touches no disk.  A request
that changes something needs the field ``X-Msgproto``: no page of another site can send one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from typing import Any, ClassVar, Final

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.logger import Logger
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import Request

from ...core.errors import ConfigurationError, QueueError, shown
from ...core.loading import read_token
from ..endpoints import TLS_KINDS, is_loopback, kind_of
from ..reloading import Change, Reloaded
from .client import SocketPath
from .figures import Figures, GatewayFigures
from .http import (
    Answer,
    Answering,
    BadRequest,
    BoundedSite,
    Events,
    NotForEverybody,
    Paths,
    Query,
    in_json,
)
from .queue_view import (
    MESSAGES_SHOWN,
    MESSAGES_SHOWN_MAX,
    QUEUES_SHOWN_MAX,
    BrokerView,
    NoSuchQueue,
    message_in_json,
    within_bounds,
)

SOCKET_MODE: Final = 0o600

TOKEN_BYTES_LEAST: Final = 16  # so that a token cannot be guessed

OPEN_PATH: Final = b"healthz"

log: Logger = Logger(namespace="twisted_msgproto.site")


def _events(gateway: Any) -> Events:
    return Events(GatewayFigures(gateway, gateway.reactor), gateway.reactor)


# ── the socket ──────────────────────────────────────────────────────────────────────────────────


class ControlService(Service):
    """Answers an operator's questions; a gateway works without it where no socket can be made."""

    def __init__(self, gateway: Any, directory: str) -> None:
        self._gateway = gateway
        self._directory = directory
        self._path: SocketPath | None = None
        self._port: Any = None

    def startService(self) -> None:
        """Listen.  A socket that a process left behind is replaced: the queue's lock is ours."""
        super().startService()  # type: ignore[no-untyped-call]
        site = BoundedSite(root_of(self._gateway, _events(self._gateway)))
        try:
            self._path = SocketPath(self._directory)
            _remove_old(self._path.path)
            self._port = self._gateway.reactor.listenUNIX(self._path.path, site, mode=SOCKET_MODE)
        except (QueueError, OSError, CannotListenError) as error:
            self._forget_path()
            log.warn(
                "msgproto broker cannot ask this gateway, which works without that: {error}",
                error=getattr(error, "socketError", error),
            )

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        port, self._port = self._port, None
        stopped: Deferred[Any] = maybeDeferred(lambda: port and port.stopListening())
        return stopped.addBoth(lambda _: self._forget_path())

    def _forget_path(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            path.close()


def _remove_old(path: str) -> None:
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass


# ── a status endpoint ───────────────────────────────────────────────────────────────────────────


class StatusSite(BoundedSite):
    protocolName: ClassVar[str] = "status"

    def __init__(self, root: Guarded, events: Events, token_file: str | None = None) -> None:
        super().__init__(root)
        self._events = events
        self._root = root
        # Read again from another directory perhaps: twistd may go to one of its own.
        self._token_file = None if token_file is None else os.path.abspath(token_file)

    def reread(self) -> Iterator[Change]:
        if self._token_file is not None:
            token = expected_token(self._token_file)
            yield Change(
                f"status: the token of {self._token_file}", partial(self._root.changeToken, token)
            )

    def drain(self) -> Deferred[None]:
        self._events.end()
        return succeed(None)


def status_site(gateway: Any, endpoint: str, token_file: str | None = None) -> StatusSite:
    """Return the site that shows ``gateway``; it is for ``endpoint``, an endpoint string.

    ``token_file`` has the token in its first line; None lets everybody in who can connect, and then
    the site shows figures and does nothing else.  Raises ConfigurationError, one line, for an
    endpoint beyond this machine without TLS and a token, and for a file without a token.
    """
    check_access(endpoint, token_file)
    token = None if token_file is None else expected_token(token_file)
    events = _events(gateway)
    root = root_of(gateway, events, for_everybody=token is None)
    return StatusSite(Guarded(root, token), events, token_file)


def check_access(description: str, token_file: str | None) -> None:
    if is_loopback(description) or (kind_of(description) in TLS_KINDS and token_file is not None):
        return
    needed = "a token (--status-token FILE, or token-file in [status])"
    raise ConfigurationError(
        f"the status endpoint {description!r} is not on loopback: it needs TLS"
        f" (ssl:, tls: or mtls:) and {needed}"
    )


def expected_token(path: str) -> bytes:
    token = read_token(path).encode()
    if len(token) < TOKEN_BYTES_LEAST:
        raise ConfigurationError(
            f"the token in {path!r} is too short: at least {TOKEN_BYTES_LEAST} characters"
        )
    return token


class _Refused(Resource):
    isLeaf = True

    def __init__(self, status: int, text: str, challenge: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._status = status
        self._text = text
        self._challenge = challenge

    def render(self, request: Request) -> bytes:
        answer = in_json({"error": self._text}, self._status)
        request.setResponseCode(answer.status)
        request.setHeader(b"content-type", answer.kind.encode())
        if self._challenge:
            request.setHeader(b"www-authenticate", b'Basic realm="msgproto", charset="UTF-8"')
        return answer.body


class Guarded(Resource):
    """A site behind a token, which comes as a Basic password or as Bearer.

    Without a token a request has to name the server as this machine. Otherwise the page of another
    site could be made to reach it under that site's own name (DNS rebinding).
    """

    def __init__(self, root: Resource, token: bytes | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._root = root
        self._token = token

    def changeToken(self, token: bytes) -> None:
        self._token = token

    def getChildWithDefault(self, name: bytes, request: Request) -> Any:
        if name != OPEN_PATH:
            if self._token is None and not _names_this_machine(request):
                return _Refused(
                    http.FORBIDDEN,
                    "this endpoint has no token: a request, also one that a proxy passes on, has to"
                    " name it (Host) by an address or as localhost",
                )
            if self._token is not None and not self._lets_in(request, self._token):
                return _Refused(http.UNAUTHORIZED, "the token is needed", challenge=True)
        return self._root.getChildWithDefault(name, request)

    @staticmethod
    def _lets_in(request: Request, token: bytes) -> bool:
        scheme, _, credentials = (request.getHeader(b"authorization") or b"").partition(b" ")
        given = credentials.strip()
        if scheme.lower() == b"basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(given, token)


def _names_this_machine(request: Request) -> bool:
    host = request.getRequestHostname().decode("ascii", "replace").strip("[]")
    if host == "localhost":
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


# ── what each path answers ──────────────────────────────────────────────────────────────────────


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


def root_of(gateway: Any, events: Events, *, for_everybody: bool = False) -> Resource:
    """Return the site's root; ``for_everybody``: nothing can be changed, no message is shown."""

    def operators(answer: Callable[[Query], Any]) -> Callable[[Query], Any]:
        return _not_for_everybody if for_everybody else answer

    def of_broker(answer: Callable[[BrokerView, Query], Any]) -> Callable[[Query], Any]:
        def answered(query: Query) -> Any:
            view = gateway.broker()
            if view is None:
                raise NoSuchQueue("this gateway has no broker: it serves neither micromsg2 nor mtl")
            return answer(view, query)

        return answered

    def shows(
        ask: Callable[[], Deferred[Figures]], answer: Callable[[Figures], Answer]
    ) -> Answering:
        return Answering(lambda query: ask().addCallback(answer))

    async def reloaded(query: Query) -> Answer:
        done: Reloaded = await maybeDeferred(gateway.reload)
        return in_json(done._asdict())

    def searched(query: Query) -> Any:
        wanted = {name: query.get(name, "") for name in ("protocol", "state", "text")}
        return figures.search(**wanted).addCallback(in_json)

    root, broker = Paths(), Paths()  # type: ignore[no-untyped-call]
    figures = events.figures
    broker.putChild(b"queues", Answering(of_broker(queues)))
    broker.putChild(b"peek", Answering(operators(of_broker(peek))))
    broker.putChild(b"purge", Answering(operators(of_broker(purge)), changes=True))
    broker.putChild(b"requeue", Answering(operators(of_broker(requeue)), changes=True))
    root.putChild(b"broker", broker)
    root.putChild(b"alive", Answering(lambda query: in_json({})))
    root.putChild(b"reload", Answering(operators(reloaded), changes=True))
    # Only who wants to see sessions has them read one by one.
    root.putChild(b"status.json", shows(figures.latest, in_json))
    root.putChild(b"healthz", shows(figures.summary, _health))
    root.putChild(b"metrics", shows(figures.summary, _metrics))
    root.putChild(b"events", events)
    root.putChild(b"sessions.json", Answering(searched))
    root.putChild(b"machines.json", Answering(lambda _: in_json(drawings(gateway.factories))))
    for path, name, kind in PAGE_FILES:
        root.putChild(path, PageFile(name, kind))
    return root


def _not_for_everybody(query: Query) -> Any:
    raise NotForEverybody(
        "this endpoint has no token, so everybody on this machine can ask here, and it shows"
        " figures alone: name the queue's directory instead, or give [status] a token-file"
    )


# ── how it is ───────────────────────────────────────────────────────────────────────────────────


def _health(figures: Figures) -> Answer:
    health = figures["healthy"]
    status = http.OK if health["ok"] else http.SERVICE_UNAVAILABLE
    return Answer(status, TEXT, f"{health['why']}\n".encode())


def _metrics(figures: Figures) -> Answer:
    try:
        from .metrics import CONTENT_TYPE, exposition
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: pip install 'twisted-msgproto[metrics]'\n"
        return Answer(http.NOT_IMPLEMENTED, TEXT, text.encode())
    return Answer(http.OK, CONTENT_TYPE, exposition(figures))


class PageFile(Resource):
    isLeaf = True

    def __init__(self, name: str, kind: bytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bytes = files(__package__).joinpath(name).read_bytes()
        self._kind = kind

    def render_GET(self, request: Request) -> bytes:
        request.setHeader(b"content-type", self._kind)
        request.setHeader(b"content-security-policy", PAGE_POLICY)
        request.setHeader(b"x-content-type-options", b"nosniff")
        request.setHeader(b"referrer-policy", b"no-referrer")
        request.setHeader(b"cache-control", b"no-cache")
        return self._bytes


# ── the queues of the broker ────────────────────────────────────────────────────────────────────


async def queues(view: BrokerView, query: Query) -> Answer:
    found = await maybeDeferred(view.queues)
    shown = [asdict(queue) for queue in found[:QUEUES_SHOWN_MAX]]
    return in_json({"queues": shown, "more": len(found) - len(shown)})


async def peek(view: BrokerView, query: Query) -> Answer:
    space, name = _queue(query)
    text = query.get("count", str(MESSAGES_SHOWN))
    digits = len(str(MESSAGES_SHOWN_MAX))  # Python refuses to read a number of thousands of them
    if not text.isdecimal() or len(text) > digits or not 1 <= int(text) <= MESSAGES_SHOWN_MAX:
        raise BadRequest(f"count is a number from 1 to {MESSAGES_SHOWN_MAX}, not {shown(text)}")
    messages = await maybeDeferred(view.peek, space, name, int(text))
    return in_json({"messages": [message_in_json(message) for message in within_bounds(messages)]})


async def purge(view: BrokerView, query: Query) -> Answer:
    return in_json({"count": await maybeDeferred(view.purge, *_queue(query))})


async def requeue(view: BrokerView, query: Query) -> Answer:
    space, name = _queue(query)
    to = query.get("to", "")
    if not to or to == name:
        raise BadRequest("to is the name of another queue")
    return in_json({"count": await maybeDeferred(view.requeue, space, name, to)})


def _queue(query: Query) -> tuple[str, str]:
    try:
        return query["space"], query["name"]
    except KeyError as error:
        raise BadRequest(f"the query has no {error.args[0]}") from None


# ── the machines of the page ────────────────────────────────────────────────────────────────────

Drawing = dict[str, Any]
"""``states``: names, in the table's order; ``moves``: ``from``, ``to`` and their ``events``."""


def drawing(table: Mapping[Any, Mapping[type, Any]]) -> Drawing:
    """Return a drawing of a transition table, from the first state that leads anywhere on."""
    first = next(state for state, row in table.items() if row)
    reached = [first]
    moves: dict[tuple[str, str], list[str]] = {}
    for state in reached:  # it grows meanwhile
        for event, target in table[state].items():
            if target not in reached:
                reached.append(target)
            if target is not state:
                moves.setdefault((state.name, target.name), []).append(event.__name__)
    return {
        "states": [state.name for state in table if state in reached],
        "moves": [
            {"from": source, "to": target, "events": events}
            for (source, target), events in moves.items()
        ],
    }


def drawings(factories: Iterable[Any]) -> dict[str, Drawing]:
    tables = {factory.protocolName: factory.stateTable for factory in factories}
    return {name: drawing(table) for name, table in tables.items() if table is not None}
