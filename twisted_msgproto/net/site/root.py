"""The site of a gateway: what each path answers, on the control socket and on a status endpoint.

``/alive`` touches no disk: it says that the reactor turns.  What went wrong is ``{"error": "one
line"}`` with a status of 400 and above.

A request that changes something needs the field ``X-Msgproto`` in its header: no page of another
site can make a browser send one.  Where everybody on the machine can ask, ``peek``, ``purge``,
``requeue`` and ``/reload`` are answered with 403: they are for the operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any, Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import Request

from ...core.errors import shown
from ..reloading import Reloaded
from .figures import Figures
from .http import Answer, Answering, BadRequest, NotForEverybody, Paths, Query, in_json
from .shapes import (
    MESSAGES_SHOWN,
    MESSAGES_SHOWN_MAX,
    QUEUES_SHOWN_MAX,
    BrokerView,
    NoSuchQueue,
    message_in_json,
    within_bounds,
)
from .stream import Events

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
    """Return the root of the site of ``gateway``.

    ``for_everybody``: who asks may be anybody on this machine, so nothing can be changed and no
    message is shown.
    """

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

    root, broker, figures = Paths(), Paths(), events.figures
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
    return in_json({"queues": shown, "more": max(0, len(found) - len(shown))})


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
"""``states``: their names, in the table's order; ``moves``: ``from``, ``to`` and ``events``, for
each two states that a move leads between.
"""


def drawing(table: Mapping[Any, Mapping[type, Any]]) -> Drawing:
    """Return what has to be drawn of a transition table.

    A session begins in the first state that leads anywhere; states that no move reaches are left
    out, since the other side of the connection has those.
    """
    first = next(state for state, row in table.items() if row)
    reached = {first}
    waiting = deque([first])
    moves: dict[tuple[str, str], list[str]] = {}
    while waiting:
        state = waiting.popleft()
        for event, target in table[state].items():
            if target not in reached:
                reached.add(target)
                waiting.append(target)
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
