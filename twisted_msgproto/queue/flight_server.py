"""Serve a queue to other machines: :class:`QueueFlightServer` does so over Arrow Flight.

:mod:`.flight_requests` and ``docs/queue-flight.md`` define requests and answers; this module puts
them on the wire.  A refusal is one line that begins with the error's name, ``QueueMismatch: …``.

Who may read a queue's directory may read the queue, and nobody else: so a server without a token
of its operator keeps one of its own there.  It is another one after each start, and begins with the
server's address: a client sends it to no other, so it is of no use to a stranger who listens there
while the server is away.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from twisted_msgproto.core.errors import ConfigurationError, QueueError

from ..core.disk import OS_DISK, Disk, replace_or_overwrite
from ..core.reasons import cannot_listen
from .flight_requests import TOKEN_FILE, Chunk, Served
from .schema import SCHEMA

DEFAULT_LOCATION = "grpc://127.0.0.1:8815"
CLOSE_TIMEOUT_S = 4.0

TOKEN_BYTES = 32

TOKEN_SECONDS = 10.0  # a call that comes while the server writes its token waits this long for it


class QueueFlightServer(flight.FlightServerBase):
    """A server of the queue in ``directory`` at ``location``, until :meth:`close`.

    ``location`` is ``grpc://HOST:PORT``, or ``grpc+tls://HOST:PORT`` with ``certificate`` and
    ``key`` (PEM).  Port 0 selects a free one: see ``port`` and ``address``.  Every call needs the
    token.  Beyond the loopback addresses ``token`` and TLS are required; on them the server makes
    a token if it is given none, and keeps it where ``token_file`` says.  At most
    :data:`~.flight_requests.STREAMS_MAX` ranges are read at once; a reader that reads nothing for
    half a minute may lose its place to another one.

    ``report`` is called, from any thread, with one line for each consumer that becomes known, is
    forgotten, or moves back or further than rows were read here.

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
        disk: Disk = OS_DISK,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        scheme, host = _checked_location(location, token, certificate, key)
        self._served = Served(directory, disk, report)
        self._check = _TokenCheck()
        options: dict[str, Any] = {}
        if certificate is not None:
            options["tls_certificates"] = [(certificate, key)]
        try:
            super().__init__(location, middleware={"token": self._check}, **options)
        except (OSError, ValueError, pa.ArrowException) as error:
            reason = _kept_from_listening(location) or str(error).splitlines()[0]
            raise ConfigurationError(f"cannot listen on {location}: {reason}") from None
        self.queue_id: str = self._served.queue_id
        self.address: str = f"{scheme}://{host}:{self.port}"
        """Where it listens, in the form that clients accept."""
        self.token_file: str | None = None
        """Where the token stands that the server has made; None for an operator's."""
        if token is None:
            # Not before the port is ours: who listened there until now may have the old one.
            token = f"{self.address}/{secrets.token_hex(TOKEN_BYTES)}"
            name = TOKEN_FILE.format(port=self.port)
            self.token_file = os.path.join(os.path.abspath(directory), name)
            try:
                # Without its bridge a full disk would stay full.
                replace_or_overwrite(disk, self.token_file, f"{token}\n".encode())
            except OSError as error:
                self._check.expect(token, None)  # which nobody has: calls that wait end
                self.close()
                raise ConfigurationError(
                    f"cannot write the token {self.token_file}: {error.strerror}; give one with"
                    " --token-file FILE"
                ) from None
        self._check.expect(token, self.token_file)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Accept no more calls, wait for those under way; True if all ended.  May be repeated."""
        # gRPC waits for streams whose reader has stopped reading, for ever if need be.
        ended = threading.Thread(target=self.shutdown, daemon=True)
        ended.start()
        ended.join(timeout)
        return not ended.is_alive()

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [(name, text) for name, (text, _) in self._served.actions.items()]

    def do_action(self, context: Any, action: Any) -> list[Any]:
        with _refusals():
            answer = self._served.act(action.type, bytes(action.body or b""), context.peer())
            return [flight.Result(json.dumps(answer).encode())]

    def do_get(self, context: Any, ticket: Any) -> Any:
        return flight.GeneratorStream(SCHEMA, self.batches(ticket.ticket))

    def batches(self, ticket: bytes) -> Iterator[Chunk]:
        """Yield a ticket's record batches; refusals are Flight's errors, at the first."""
        with _refusals():
            yield from self._served.stream(bytes(ticket))


def _checked_location(
    location: str, token: str | None, certificate: bytes | None, key: bytes | None
) -> tuple[str, str]:
    """Return scheme and host; ConfigurationError for what is wrong or would be open to all."""
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


def _kept_from_listening(location: str) -> str:
    """Return the reason, which gRPC writes to stderr and does not tell its caller."""
    parts = urlsplit(location)
    host = parts.hostname or ""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            # As gRPC does: connections that have ended keep nobody from listening.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, parts.port))
    except OSError as error:
        return cannot_listen(error)
    tls = parts.scheme == "grpc+tls"
    return "--tls-cert and --tls-key are no certificate and its key, in PEM" if tls else ""


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _TokenCheck(flight.ServerMiddlewareFactory):
    """A check that lets in who shows the token; calls wait until there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._known = threading.Event()
        self._expected = b""
        self._path: str | None = None

    def expect(self, token: str, path: str | None) -> None:
        self._expected, self._path = f"Bearer {token}".encode(), path
        self._known.set()

    def start_call(self, info: Any, headers: Any) -> None:
        known = self._known.wait(TOKEN_SECONDS)
        shown = headers.get("authorization") or [""]
        if known and hmac.compare_digest(str(shown[0]).encode(), self._expected):
            return
        text, path = "the token is missing or wrong", self._path
        if path is None:
            raise flight.FlightUnauthenticatedError(text)
        raise flight.FlightUnauthenticatedError(f"{text}: it is in {path}", os.fsencode(path))


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
