"""A queue over the network: an Arrow Flight server beside the gateway, for Spark elsewhere.

It reads the queue's directory as every reader does: without the writer's lock, in a process of its
own, so that a large read never holds up a gateway.  The exchange is four calls:

* action ``describe`` → JSON: ``queue_id``, ``epoch``, ``begin``, ``end``, ``damaged``;
* action ``register``, body ``{"consumer": NAME}`` → ``{"offset": N}``;
* action ``commit``, body ``{"consumer": NAME, "offset": N}`` → ``{}``;
* ``do_get``, ticket ``{"queue_id": ID, "lo": N, "hi": N, "rows": N}`` → record batches of SCHEMA.

With a token every call needs the header ``authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from twisted_msgproto.core.errors import ConfigurationError, QueueError, QueueMismatch

from .reader import READ_ROWS, QueueReader
from .schema import SCHEMA

DEFAULT_LOCATION = "grpc://127.0.0.1:8815"

REQUEST_OCTETS_MAX = 4096
"""What an action's body or a ticket may have; a consumer's name and two numbers need 200."""

ROWS_MAX = 100_000
"""Rows of one record batch which a client may ask for."""

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class QueueFlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the queue in ``directory`` at ``location`` (``grpc://HOST:PORT``, ``grpc+tls://…``).

    ``certificate`` and ``key`` (PEM octets) go with ``grpc+tls``.  Port 0 takes a free one: see
    ``port``.  Raises ConfigurationError for a location other machines can reach without TLS and
    token, QueueError if there is no queue, both one line.
    """

    def __init__(
        self,
        directory: str,
        location: str = DEFAULT_LOCATION,
        *,
        token: str | None = None,
        certificate: bytes | None = None,
        key: bytes | None = None,
    ) -> None:
        scheme, _, rest = location.partition("://")
        host = rest.rpartition(":")[0]
        if scheme not in ("grpc", "grpc+tls") or not host:
            raise ConfigurationError(
                f"a Flight location is grpc://HOST:PORT or grpc+tls://HOST:PORT, not {location!r}"
            )
        if (scheme == "grpc+tls") != (certificate is not None and key is not None):
            raise ConfigurationError(f"{location}: certificate and key go with grpc+tls://")
        if host not in LOCAL_HOSTS and (scheme != "grpc+tls" or not token):
            raise ConfigurationError(
                f"{location} can be reached from elsewhere: it needs grpc+tls:// and a token"
            )
        self._directory = directory
        QueueReader(directory)
        middleware = {"token": _TokenCheck(token)} if token else None
        certificates = [(certificate, key)] if certificate is not None else None
        try:
            super().__init__(location, middleware=middleware, tls_certificates=certificates)
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(f"cannot listen on {location}: {_line(error)}") from None

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """The actions, for tools which ask."""
        return [
            ("describe", "id, epoch, begin, end and damaged ranges"),
            ("register", "make a consumer known"),
            ("commit", "say what a consumer does not need any more"),
        ]

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answers one action with one JSON document."""
        try:
            request = _request(action.body.to_pybytes() if action.body is not None else b"")
            answer = self._answer(action.type, request)
        except (QueueError, ValueError, OSError) as error:
            raise _failure(error) from None
        yield json.dumps(answer).encode()

    def _answer(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        reader = QueueReader(self._directory)
        if name == "describe":
            return {
                "queue_id": reader.queue_id,
                "epoch": reader.epoch,
                "begin": reader.begin(),
                "end": reader.end(),
                "damaged": reader.damaged(),
            }
        if name == "register":
            return {"offset": reader.register(_text(request, "consumer"))}
        if name == "commit":
            reader.commit(_text(request, "consumer"), _whole(request, "offset"))
            return {}
        raise ValueError(f"unknown action {name[:40]!r}")

    def do_get(self, context: Any, ticket: Any) -> Any:
        """The rows which a ticket asks for, damaged ones left out."""
        try:
            request = _request(ticket.ticket)
            reader = QueueReader(self._directory)
            wanted = _text(request, "queue_id")
            if wanted != reader.queue_id:
                raise QueueMismatch(f"this is queue {reader.queue_id}, not {wanted[:40]!r}")
            rows = min(_whole(request, "rows"), ROWS_MAX) or READ_ROWS
            batches = reader.read(_whole(request, "lo"), _whole(request, "hi"), rows)
            return flight.GeneratorStream(SCHEMA, _checked(batches))
        except (QueueError, ValueError, OSError) as error:
            raise _failure(error) from None


def _checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; our errors as Flight's, or the client would get a Python traceback."""
    try:
        yield from batches
    except (QueueError, OSError) as error:
        raise _failure(error) from None


def _failure(error: Exception) -> Exception:
    failure: Exception = flight.FlightServerError(f"{type(error).__name__}: {_line(error)}")
    return failure


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _request(octets: bytes) -> dict[str, Any]:
    if len(octets) > REQUEST_OCTETS_MAX:
        raise ValueError(f"a request has at most {REQUEST_OCTETS_MAX} octets")
    request = json.loads(octets or b"{}")
    if not isinstance(request, dict):
        raise ValueError("a request is a JSON object")
    return request


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise ValueError(f"a request needs the text {name!r}")
    return value


def _whole(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"a request needs the number {name!r}")
    return value


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call through which does not carry the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        """Called before every call."""
        given = [
            value
            for name, values in headers.items()
            for value in values
            if name.lower() == "authorization"
        ]
        got = given[0] if len(given) == 1 else b""
        got = got.encode() if isinstance(got, str) else got
        if not hmac.compare_digest(got, self._expected):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")
