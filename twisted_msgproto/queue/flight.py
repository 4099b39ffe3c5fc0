"""A queue for other machines: :class:`QueueFlightServer` serves it over Arrow Flight.

It reads the queue's directory like any other reader, best in a process of its own (``msgproto
flight``), and never touches the writer.  Requests and answers are JSON objects in UTF-8:

=============== ============================================= ====================================
call            request                                       answer
=============== ============================================= ====================================
do_action       ``describe``: ``{}``                          ``queue_id``, ``epoch``, ``begin``,
                                                              ``end``, ``damaged`` ([[lo, hi], …])
do_action       ``register``: ``consumer``                    ``offset``
do_action       ``commit``: ``consumer``, ``offset``          ``{}``
do_get          ticket: ``queue_id``, ``lo``, ``hi``,         record batches of the table's columns
                ``rows`` (optional)                           for lo ≤ offset < hi
=============== ============================================= ====================================

Whoever calls shows the token as ``authorization: Bearer TOKEN``.  A refusal is one line which
begins with the name of the error, ``QueueMismatch: …``.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from twisted_msgproto.core.errors import ConfigurationError, QueueError, QueueMismatch

from . import damage
from .damage import Range
from .disk import OS_DISK, Disk
from .reader import READ_ROWS, QueueReader
from .schema import SCHEMA

DEFAULT_LOCATION = "grpc://127.0.0.1:8815"
CLOSE_TIMEOUT_S = 4.0

REQUEST_OCTETS_MAX = 4096
"""What an action's body or a ticket may have: it is a few names and numbers."""
STREAMS_MAX = 16
"""Ranges read at the same time: each reads segments and holds a batch in memory."""
ROWS_MAX = 100_000
"""Rows of one record batch which a caller may ask for; asking for more gives these."""

Request = dict[str, Any]


class QueueFlightServer(flight.FlightServerBase):
    """Serves the queue in ``directory`` at ``location`` from now on until :meth:`close`.

    ``location`` is ``grpc://HOST:PORT``, or ``grpc+tls://HOST:PORT`` with ``certificate`` and
    ``key`` (PEM).  Port 0 takes a free one: see ``port`` and ``address``.  Beyond the loopback
    addresses a ``token`` and TLS are required.  At most ``streams_max`` ranges are read at once.

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
        disk: Disk = OS_DISK,
    ) -> None:
        scheme, host = _checked_location(location, token, certificate, key)
        self._served = _Served(directory, streams_max, disk)
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
        """Where it listens, as a client takes it."""

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Take no more calls and wait for those under way; True if all ended in time.

        May be called again.
        """
        # gRPC waits for streams whose reader has stopped reading, for ever if need be.
        ended = threading.Thread(target=self.shutdown, daemon=True)
        ended.start()
        ended.join(timeout)
        return not ended.is_alive()

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """The actions, for tools which ask."""
        return [(name, text) for name, (text, _) in self._served.actions.items()]

    def do_action(self, context: Any, action: Any) -> list[Any]:
        """One small question."""
        with _refusals():
            answer = self._served.act(action.type, bytes(action.body or b""))
            return [flight.Result(json.dumps(answer).encode())]

    def do_get(self, context: Any, ticket: Any) -> Any:
        """A range of the queue."""
        return flight.GeneratorStream(SCHEMA, self.batches(ticket.ticket))

    def batches(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """The record batches of a ticket; refusals are Flight's errors, at the first of them."""
        with _refusals():
            yield from self._served.stream(bytes(ticket))


def _checked_location(
    location: str, token: str | None, certificate: bytes | None, key: bytes | None
) -> tuple[str, str]:
    """Scheme and host; ConfigurationError for what cannot be served or would be open to all."""
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
        """Called by gRPC before each call."""
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


class _Served:
    """One queue and what may be asked of it; used by many threads."""

    def __init__(self, directory: str, streams_max: int, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._streams = threading.BoundedSemaphore(streams_max)
        self._met: set[Range] = set()
        self.queue_id = self._reader().queue_id
        self.actions: dict[str, tuple[str, Callable[[Request], Request]]] = {
            "describe": ("id, epoch, begin, end and damaged ranges", self._describe),
            "register": ("make a consumer known", self._register),
            "commit": ("say what a consumer does not need any more", self._commit),
        }

    def _reader(self) -> QueueReader:
        """A reader for one call: readers are not for several threads."""
        return QueueReader(self._directory, disk=self._disk)

    def act(self, name: str, body: bytes) -> Request:
        """Answer one action."""
        if name not in self.actions:
            raise QueueError(f"unknown action {name[:40]!r}; known: {', '.join(self.actions)}")
        return self.actions[name][1](_request(body))

    def _describe(self, request: Request) -> Request:
        reader = self._reader()
        begin = reader.begin()
        met = [(lo, hi) for lo, hi in tuple(self._met) if hi > begin]
        return {
            "queue_id": reader.queue_id,
            "epoch": reader.epoch,
            "begin": begin,
            "end": reader.end(),
            "damaged": damage.merged([*reader.damaged(), *met]),
        }

    def _register(self, request: Request) -> Request:
        return {"offset": self._reader().register(_text(request, "consumer"))}

    def _commit(self, request: Request) -> Request:
        self._reader().commit(_text(request, "consumer"), _whole(request, "offset"))
        return {}

    def stream(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """The batches of a ticket.

        Above the limit of streams it raises FlightUnavailableError, which callers answer by
        trying again.
        """
        request = _request(ticket)
        reader = self._reader()
        wanted = _text(request, "queue_id")
        if wanted != reader.queue_id:
            raise QueueMismatch(f"this is queue {reader.queue_id}, not {wanted[:40]!r}")
        rows = min(_whole(request, "rows", READ_ROWS), ROWS_MAX) or READ_ROWS
        lo, hi = _whole(request, "lo"), _whole(request, "hi")
        if not self._streams.acquire(blocking=False):
            raise flight.FlightUnavailableError("too many streams at once; try again")
        try:
            yield from reader.read(lo, hi, rows)
        finally:
            self._streams.release()
            self._met.update(reader.damaged())


def _request(octets: bytes) -> Request:
    if len(octets) > REQUEST_OCTETS_MAX:
        raise QueueError(f"a request has at most {REQUEST_OCTETS_MAX} octets")
    try:
        request = json.loads(octets or b"{}")
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise QueueError("a request is a JSON object")
    return request


def _text(request: Request, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise QueueError(f"a request needs the text {name!r}")
    return value


def _whole(request: Request, name: str, default: int | None = None) -> int:
    value = request.get(name, default)
    if type(value) is not int or value < 0:
        raise QueueError(f"a request needs the number {name!r}, 0 or above")
    return value
