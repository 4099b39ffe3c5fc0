"""Serve a queue to other machines: :class:`QueueFlightServer` does so over Arrow Flight.

It reads the queue's directory like any other reader, best in a process of its own (``msgproto
flight``), and never touches the writer.  ``served.py`` and ``docs/queue-flight.md`` define requests
and answers; this module puts them on the wire.

Callers send the token as ``authorization: Bearer TOKEN``.  A refusal is one line that begins with
the name of the error, ``QueueMismatch: …``.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from twisted_msgproto.core.errors import ConfigurationError, QueueError

from .disk import OS_DISK, Disk
from .schema import SCHEMA
from .served import REQUEST_OCTETS_MAX, ROWS_MAX, Chunk, Served
from .streams import STREAM_IDLE_SECONDS, STREAMS_MAX, Streams

__all__ = [
    "DEFAULT_LOCATION",
    "REQUEST_OCTETS_MAX",
    "ROWS_MAX",
    "STREAMS_MAX",
    "STREAM_IDLE_SECONDS",
    "QueueFlightServer",
]

DEFAULT_LOCATION = "grpc://127.0.0.1:8815"
CLOSE_TIMEOUT_S = 4.0


class QueueFlightServer(flight.FlightServerBase):
    """Serves the queue in ``directory`` at ``location`` from now on until :meth:`close`.

    ``location`` is ``grpc://HOST:PORT``, or ``grpc+tls://HOST:PORT`` with ``certificate`` and
    ``key`` (PEM).  Port 0 selects a free one: see ``port`` and ``address``.  Beyond the loopback
    addresses a ``token`` and TLS are required.  At most ``streams_max`` ranges are read at once; a
    reader that reads nothing for ``stream_idle`` seconds may lose its place to another one.
    ``clock`` returns the seconds.

    Raises ConfigurationError, one line, for a location that cannot be or must not be, and
    QueueError if there is no queue yet.
    """

    def __init__(
        self,
        directory: str,
        location: str = DEFAULT_LOCATION,
        *,
        token: str | None = None,
        certificate: bytes | None = None,
        key: bytes | None = None,
        streams_max: int = STREAMS_MAX,
        stream_idle: float = STREAM_IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        disk: Disk = OS_DISK,
    ) -> None:
        scheme, host = _checked_location(location, token, certificate, key)
        self._served = Served(directory, Streams(streams_max, stream_idle, clock), disk)
        options: dict[str, Any] = {}
        if certificate is not None:
            options["tls_certificates"] = [(certificate, key)]
        if token is not None:
            options["middleware"] = {"token": _TokenCheck(token)}
        try:
            super().__init__(location, **options)
        except (OSError, ValueError, pa.ArrowException) as error:
            text = str(error).splitlines()[0]
            raise ConfigurationError(f"cannot listen on {location}: {text}") from None
        self.queue_id = self._served.queue_id
        self.address = f"{scheme}://{host}:{self.port}"
        """Return where it listens, in the form that clients accept."""

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Accept no more calls and wait for those under way; return True if all ended in time.

        May be called again.
        """
        # gRPC waits for streams whose reader has stopped reading, for ever if need be.
        ended = threading.Thread(target=self.shutdown, daemon=True)
        ended.start()
        ended.join(timeout)
        return not ended.is_alive()

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions, for tools that ask."""
        return [(name, text) for name, (text, _) in self._served.actions.items()]

    def do_action(self, context: Any, action: Any) -> list[Any]:
        """Return one small question."""
        with _refusals():
            answer = self._served.act(action.type, bytes(action.body or b""))
            return [flight.Result(json.dumps(answer).encode())]

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return a range of the queue."""
        address = context.peer().rpartition(":")[0]
        return flight.GeneratorStream(SCHEMA, self.batches(ticket.ticket, address))

    def batches(self, ticket: bytes, address: str = "") -> Iterator[Chunk]:
        """Yield the record batches of a ticket; refusals are Flight's errors, at the first of
        them.
        """
        with _refusals():
            yield from self._served.stream(bytes(ticket), address)


def _checked_location(
    location: str, token: str | None, certificate: bytes | None, key: bytes | None
) -> tuple[str, str]:
    """Return scheme and host; raise ConfigurationError for what cannot be served or would be
    open to all.
    """
    try:
        parts = urlsplit(location)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme not in ("grpc", "grpc+tls"):
        raise ConfigurationError(
            f"a Flight location is grpc://HOST:PORT or grpc+tls://HOST:PORT, not {location!r}"
        )
    tls = parts.scheme == "grpc+tls"
    if tls != (certificate is not None) or (certificate is None) != (key is None):
        raise ConfigurationError(
            f"{location}: certificate and key go with grpc+tls://, and only with it"
        )
    if not (token or token is None):
        raise ConfigurationError(f"{location}: the token is empty")
    if not _loopback(host) and not (tls and token):
        raise ConfigurationError(
            f"{location} can be reached from elsewhere: it needs grpc+tls:// and a token"
        )
    return parts.scheme, f"[{host}]" if ":" in host else host


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _TokenCheck(flight.ServerMiddlewareFactory):
    """Lets nobody in who does not show the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        """Check a call's token; gRPC calls this before each call."""
        shown = headers.get("authorization") or [""]
        if not hmac.compare_digest(str(shown[0]).encode(), self._expected):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


@contextmanager
def _refusals() -> Iterator[None]:
    """Everything that goes wrong becomes one line for the caller, without a traceback."""
    try:
        yield
    except flight.FlightError:
        raise
    except (QueueError, OSError, ConfigurationError) as error:
        text = " ".join(str(error).split())
        raise flight.FlightServerError(f"{type(error).__name__}: {text}") from None
    except Exception as error:
        raise flight.FlightInternalError(f"{type(error).__name__} in the gateway") from None
