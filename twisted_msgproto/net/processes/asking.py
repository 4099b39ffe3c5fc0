"""A supervisor asks its processes over HTTP, through the socket that each has for its operator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from twisted.internet.defer import Deferred, fail
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.client import Agent, ResponseFailed, readBody
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from ...core.errors import QueueAway, QueueError
from ..control.address import SocketPath
from ..control.shapes import MessageShown, NoSuchQueue, QueueShown, from_json

FIGURES_SECONDS: Final = 6.0
"""A process's figures come within this time: its disk alone may need five seconds."""

RELOAD_SECONDS: Final = 30.0
"""A process reads all its files again within this time."""

HEADERS: Final = {"X-Msgproto": ["1"]}
"""A request that changes something has this field."""


HAS_BROKER: Final = "process 0, which has the broker"
"""The broker's process is called this."""

NO_QUERY: Final[Mapping[str, str]] = {}


@implementer(IAgentEndpointFactory, IStreamClientEndpoint)
class _OverUnix:
    """Connects to one UNIX socket, whatever the URL says; the log says nothing of it."""

    def __init__(self, reactor: Any, path: str) -> None:
        self._reactor = reactor
        self._path = path

    def endpointForURI(self, uri: object) -> Any:
        """Return this endpoint; the agent calls this."""
        return self

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Connect; the agent calls this."""
        protocolFactory.noisy = False
        endpoint: Any = UNIXClientEndpoint(self._reactor, self._path)
        connected: Deferred[Any] = endpoint.connect(protocolFactory)
        return connected


async def ask(
    reactor: Any,
    directory: str,
    path: str,
    *,
    query: Mapping[str, str] = NO_QUERY,
    method: str = "GET",
    seconds: float | None = FIGURES_SECONDS,
) -> Any:
    """Ask the process whose socket is in ``directory``; return what it answers, read from JSON.

    Raises QueueAway when it does not answer in time; NoSuchQueue or QueueError with what it says.
    If ``seconds`` are None, it may answer at any time, or the caller cancels the ask.
    """
    try:
        place = SocketPath(directory)
    except OSError as error:
        raise QueueAway(f"it does not answer: {error.strerror}") from None
    asked: Deferred[Any] = Deferred.fromCoroutine(_asked(reactor, place.path, path, method, query))
    if seconds is not None:
        asked.addTimeout(seconds, reactor, onTimeoutCancel=_silent)
    try:
        code, octets = await asked
        answer = json.loads(octets)
    except QueueAway:
        raise
    except ConnectError:
        raise QueueAway("it does not answer: nobody listens on its socket") from None
    except ResponseFailed:
        raise QueueAway("it closed the connection without an answer") from None
    except Exception as error:
        raise QueueAway(f"it does not answer: {type(error).__name__}: {error}") from None
    finally:
        place.close()
    if code != http.OK:
        kind = NoSuchQueue if code == http.NOT_FOUND else QueueError
        raise kind(str(answer.get("error", f"status {code}")))
    return answer


def _silent(_: object, seconds: float) -> None:
    raise QueueAway(f"it has not answered for {seconds:g} s")


async def _asked(
    reactor: Any, socket: str, path: str, method: str, query: Mapping[str, str]
) -> tuple[int, bytes]:
    factory = _OverUnix(reactor, socket)
    agent: Any = Agent.usingEndpointFactory(reactor, factory)
    target = f"http://localhost/{path}" + (f"?{urlencode(query)}" if query else "")
    response = await agent.request(method.encode(), target.encode(), Headers(HEADERS))
    return response.code, await readBody(response)


class BrokerOf:
    """Is the broker of the one process that has the queues; see :class:`.shapes.BrokerView`."""

    def __init__(
        self, reactor: Any, directory: str, away: Callable[[], str | None] = lambda: None
    ) -> None:
        """``directory`` has the process's socket.  ``away()`` returns what the process does while
        it answers nobody, as a predicate; None: it can be asked.
        """
        self._reactor = reactor
        self._directory = directory
        self._away = away

    def _ask(self, path: str, method: str, **query: str) -> Deferred[Any]:
        why = self._away()
        if why is not None:
            return fail(QueueAway(f"{HAS_BROKER}, {why}"))
        asked = ask(
            self._reactor,
            self._directory,
            f"broker/{path}",
            query=query,
            method=method,
            seconds=RELOAD_SECONDS,
        )
        return Deferred.fromCoroutine(asked).addErrback(self._named)

    @staticmethod
    def _named(failure: Failure) -> Failure:
        """Name the process that does not answer."""
        if failure.check(QueueAway):
            raise QueueAway(f"{HAS_BROKER}: {failure.getErrorMessage()}")
        return failure

    def queues(self) -> Deferred[Any]:
        """Return all queues."""
        return self._ask("queues", "GET").addCallback(
            lambda answer: [QueueShown(**queue) for queue in answer["queues"]]
        )

    def peek(self, space: str, name: str, count: int) -> Deferred[list[MessageShown]]:
        """Return the first messages of a queue."""
        asked = self._ask("peek", "GET", space=space, name=name, count=str(count))
        return asked.addCallback(lambda answer: [from_json(one) for one in answer["messages"]])

    def purge(self, space: str, name: str) -> Deferred[int]:
        """Empty a queue."""
        asked = self._ask("purge", "POST", space=space, name=name)
        return asked.addCallback(lambda answer: int(answer["count"]))

    def requeue(self, space: str, name: str, to: str) -> Deferred[int]:
        """Put what waits in a queue to another one."""
        asked = self._ask("requeue", "POST", space=space, name=name, to=to)
        return asked.addCallback(lambda answer: int(answer["count"]))


__all__ = ["RELOAD_SECONDS", "BrokerOf", "ask"]
