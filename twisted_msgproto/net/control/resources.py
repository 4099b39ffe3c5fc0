"""The control site has these paths, and each answers with one JSON object.

=======================  ==========================================  ============================
request                  query                                       answer
=======================  ==========================================  ============================
``GET /alive``                                                       ``{}``
``GET /broker/queues``                                               ``{"queues": […]}``
``GET /broker/peek``     ``space``, ``name``, ``count``              ``{"messages": […]}``
``POST /broker/purge``   ``space``, ``name``                         ``{"count": N}``
``POST /broker/requeue`` ``space``, ``name``, ``to``                 ``{"count": N}``
``POST /reload``                                                     ``{"done": […],
                                                                     "later": […]}``
=======================  ==========================================  ============================

``/alive`` touches no disk: whoever gets its answer knows that the gateway's reactor turns.

What went wrong is ``{"error": "one line"}`` with a status of 400 and above.  A request that changes
something needs the field ``X-Msgproto`` in its header: no page of another site can make a browser
send one.  The bodies of requests are not kept.

Where everybody on the machine can ask, ``peek``, ``purge``, ``requeue`` and ``/reload`` are
answered with 403: they are for the operator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from io import BytesIO
from typing import Any, Final

from twisted.internet.defer import maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from ...core.errors import MsgprotoError, shown
from ..reloading import Reloaded
from .shapes import (
    MESSAGES_SHOWN,
    MESSAGES_SHOWN_MAX,
    QUEUES_SHOWN_MAX,
    BrokerView,
    NoSuchQueue,
    in_json,
    within_bounds,
)

CHANGES: Final = b"x-msgproto"
"""A request that changes something has this field in its header."""

log = Logger(namespace="twisted_msgproto.control")

Query = Mapping[str, str]


class BadRequest(Exception):
    """The request cannot be understood; the text says why."""

    status = http.BAD_REQUEST


class NotForEverybody(BadRequest):
    """Only the operator may ask this, and nothing shows that the operator asks."""

    status = http.FORBIDDEN


class BodilessRequest(Request):
    """A request without a body: everything that can be asked stands in its path and query."""

    def gotLength(self, length: int | None) -> None:
        self.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """Drop octets of the body; the channel calls this."""


class Answering(Resource):
    """One path: ``answer(query)`` returns what becomes JSON, or a Deferred of it."""

    isLeaf = True

    def __init__(self, answer: Callable[[Query], Any], *, changes: bool = False) -> None:
        """``changes`` says that the answer changes something, so it needs POST and a field in the
        header.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._answer = answer
        self._changes = changes

    def render(self, request: Request) -> Any:
        request.setHeader(b"content-type", b"application/json")
        request.setHeader(b"cache-control", b"no-store")
        gone: list[Failure] = []
        request.notifyFinish().addErrback(gone.append)
        maybeDeferred(self._answered, request).addErrback(_error, request).addCallback(
            self._write, request, gone
        )
        return NOT_DONE_YET

    def _answered(self, request: Request) -> Any:
        wanted = b"POST" if self._changes else b"GET"
        if request.method != wanted:
            request.setHeader(b"allow", wanted)
            error = BadRequest(f"this path takes {wanted.decode()}")
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

    @staticmethod
    def _write(answer: Mapping[str, object], request: Request, gone: list[Failure]) -> None:
        if not gone:
            request.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
            request.finish()


def _error(failure: Failure, request: Request) -> Mapping[str, object]:
    error = failure.value
    if isinstance(error, BadRequest):
        request.setResponseCode(error.status)
    elif isinstance(error, NoSuchQueue):
        request.setResponseCode(http.NOT_FOUND)
    elif isinstance(error, MsgprotoError):
        request.setResponseCode(http.CONFLICT)
    else:
        log.failure("the control endpoint failed", failure)
        request.setResponseCode(http.INTERNAL_SERVER_ERROR)
        return {"error": "the gateway failed; its log says why"}
    return {"error": " ".join(str(error).split())}


class Paths(Resource):
    """The site's paths; every other path is answered with an error."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def getChild(self, path: bytes, request: Request) -> Resource:
        return Answering(_nothing)

    def render(self, request: Request) -> Any:
        return self.getChild(b"", request).render(request)


def _nothing(query: Query) -> Any:
    raise NoSuchQueue("the control endpoint has no such path")


def control_root(
    broker: Callable[[], BrokerView | None],
    reload: Callable[[], Any] | None = None,
    *,
    for_everybody: bool = False,
) -> Resource:
    """Return the root of the control site.

    ``broker()`` returns what has the queues, or None.  ``reload()`` reads the gateway's files
    again and returns what it has done, or a Deferred of it; None: there is nothing to reload.
    ``for_everybody``: who asks may be anybody on this machine, so nothing can be changed and no
    message is shown.
    """

    def operators(answer: Callable[[Query], Any]) -> Callable[[Query], Any]:
        return _not_for_everybody if for_everybody else answer

    root, paths = Paths(), Paths()
    paths.putChild(b"queues", Answering(_of(broker, queues)))
    paths.putChild(b"peek", Answering(operators(_of(broker, peek))))
    paths.putChild(b"purge", Answering(operators(_of(broker, purge)), changes=True))
    paths.putChild(b"requeue", Answering(operators(_of(broker, requeue)), changes=True))
    root.putChild(b"broker", paths)
    root.putChild(b"alive", Answering(lambda query: {}))
    if reload is not None:
        again = operators(lambda query: _reloaded(reload))
        root.putChild(b"reload", Answering(again, changes=True))
    return root


def _not_for_everybody(query: Query) -> Any:
    raise NotForEverybody(
        "this endpoint has no token, so everybody on this machine can ask here, and it shows"
        " figures alone: name the queue's directory instead, or give [status] a token-file"
    )


async def _reloaded(reload: Callable[[], Any]) -> dict[str, object]:
    done: Reloaded = await maybeDeferred(reload)
    return done._asdict()


def _of(
    broker: Callable[[], BrokerView | None], answer: Callable[[BrokerView, Query], Any]
) -> Callable[[Query], Any]:
    def answered(query: Query) -> Any:
        view = broker()
        if view is None:
            raise NoSuchQueue("this gateway has no broker: it serves neither micromsg2 nor mtl")
        return answer(view, query)

    return answered


# ── what is asked ───────────────────────────────────────────────────────────────────────────────


async def queues(view: BrokerView, query: Query) -> dict[str, object]:
    found = await maybeDeferred(view.queues)
    shown = [asdict(queue) for queue in found[:QUEUES_SHOWN_MAX]]
    return {"queues": shown, "more": max(0, len(found) - len(shown))}


async def peek(view: BrokerView, query: Query) -> dict[str, object]:
    space, name = _queue(query)
    text = query.get("count", str(MESSAGES_SHOWN))
    digits = len(str(MESSAGES_SHOWN_MAX))  # Python refuses to read a number of thousands of them
    if not text.isdecimal() or len(text) > digits or not 1 <= int(text) <= MESSAGES_SHOWN_MAX:
        raise BadRequest(f"count is a number from 1 to {MESSAGES_SHOWN_MAX}, not {shown(text)}")
    messages = await maybeDeferred(view.peek, space, name, int(text))
    return {"messages": [in_json(message) for message in within_bounds(messages)]}


async def purge(view: BrokerView, query: Query) -> dict[str, object]:
    return {"count": await maybeDeferred(view.purge, *_queue(query))}


async def requeue(view: BrokerView, query: Query) -> dict[str, object]:
    space, name = _queue(query)
    to = query.get("to", "")
    if not to or to == name:
        raise BadRequest("to is the name of another queue")
    return {"count": await maybeDeferred(view.requeue, space, name, to)}


def _queue(query: Query) -> tuple[str, str]:
    try:
        return query["space"], query["name"]
    except KeyError as error:
        raise BadRequest(f"the query has no {error.args[0]}") from None
