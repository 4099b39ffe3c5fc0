"""Read a queue on another machine over Arrow Flight, from ``queue/flight_server.py``.

Token and certificate authority stand in files on every machine (options ``tokenFile``, ``tlsCa``,
or the environment), as options are written into plans and logs. A server that was given no token
says in a refusal where its own stands: who may read that needs no option.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from ..core.errors import ConfigurationError, QueueAway, QueueError, QueueMismatch, shown
from ..core.loading import read_token
from ..core.reasons import reason
from ..queue.damage import Range
from ..queue.flight_requests import TOKEN_FILE, described
from ..queue.interface import Rows
from ..queue.lineage import Description, Landed
from ..queue.reader import READ_ROWS

CALL_SECONDS_MAX = 10.0

STREAM_SECONDS_MAX = 60.0  # then another goes on: a server may hang in a range
PATIENCE_SECONDS = 60.0  # how long a read begins its stream again without a row of it coming

PAUSE_SECONDS = 0.5

FRESH_SECONDS = 0.02  # of a description: planning asks for id, begin, end at once

TOKEN_FILE_VARIABLE = "MSGPROTO_FLIGHT_TOKEN_FILE"
AUTHORITY = "MSGPROTO_FLIGHT_CA"

TOKEN_BYTES_MAX = 4096

AWAY = (flight.FlightUnavailableError, flight.FlightTimedOutError)


CHANNEL_OPTIONS = [
    # A gateway that is back is to be found within a second or two, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A machine that has vanished is noticed while a stream waits for it.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


PROXY = re.compile(r"http://([^\s/@]+@)?([^\s:/@]+|\[[0-9a-fA-F:]+\]):\d{1,5}/?", re.ASCII)


def check_proxy(proxy: str) -> None:
    if not PROXY.fullmatch(proxy):
        raise ConfigurationError(f"the proxy of Flight is http://HOST:PORT, not {proxy!r}")


class FlightQueue:
    """The queue served at ``location``, for several threads; only :meth:`read` is patient.

    With ``queue_id`` nothing is asked before it is used, and every other queue is refused. A small
    call is tried once: QueueAway if the gateway is silent for ``limit`` seconds, QueueMismatch if
    the queue has not what was asked, QueueError if it refused.
    """

    def __init__(
        self,
        location: str,
        *,
        token_file: str | None = None,
        authority: str | None = None,
        proxy: str | None = None,
        patience: float = PATIENCE_SECONDS,
        limit: float = CALL_SECONDS_MAX,
        queue_id: str | None = None,
    ) -> None:
        # gRPC reads it with its first connection; else it writes a line for each one that fails.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        self.location = location
        self._patience = patience
        token_file = token_file or os.environ.get(TOKEN_FILE_VARIABLE)
        authority = authority or os.environ.get(AUTHORITY)
        self._limit = limit
        self._token_file = token_file
        self._use(read_token(token_file).encode() if token_file else None)
        roots = {"tls_root_certs": _authority(authority)} if authority else {}
        # gRPC would heed http_proxy and its like, whose proxies pass HTTP for browsers.
        if proxy is not None:
            check_proxy(proxy)
        self._through = "" if proxy is None else f" through the proxy {proxy}"
        through = ("grpc.http_proxy", proxy) if proxy else ("grpc.enable_http_proxy", 0)
        try:
            self._client = flight.connect(
                location, generic_options=[*CHANNEL_OPTIONS, through], **roots
            )
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ConfigurationError(f"{location}: {_line(error)}") from None
        self._described: Description
        self._described_at = float("-inf")
        self._queue_id = queue_id
        self._queue_id = self.queue_id

    @property
    def queue_id(self) -> str:
        if self._queue_id is None:
            self._queue_id = self._fresh().queue_id
        return self._queue_id

    def begin(self) -> int:
        return self._fresh().begin

    def end(self) -> int:
        return self._fresh().end

    def describe(self, landed: Landed | None = None) -> Description:
        request = _named(self._queue_id, landed)
        answer = self._act("describe", request)
        try:
            return described(answer)
        except (KeyError, TypeError):
            raise QueueError(
                f"{self.location} is served by another version of this program; "
                "gateway and bridge have to be of one version"
            ) from None

    def place(self, offset: int) -> Landed:
        return Landed(**self._act("place", _named(self.queue_id) | {"offset": offset}))

    def check(self, landed: Landed) -> None:
        self._act("check", _named(self.queue_id, landed))

    def register(self, consumer: str) -> int:
        return int(self._act("register", self._of(consumer))["offset"])

    def commit(self, consumer: str, offset: int, landed: Landed | None = None) -> None:
        self._act("commit", self._of(consumer, landed) | {"offset": offset})

    def tell(self, consumer: str, status: Mapping[str, Any]) -> None:
        self._act("status", self._of(consumer) | {"status": dict(status)})

    def forget(self, consumer: str) -> None:
        self._act("forget", self._of(consumer))

    def read(
        self, lo: int, hi: int, rows: int = READ_ROWS, *, landed: Landed | None = None
    ) -> Rows:
        """Yield record batches of the rows lo ≤ offset < hi that are not damaged.

        What breaks, or is refused by a busy server, is resumed after the last row that came;
        QueueAway once no row has come for ``patience`` seconds.
        """
        met: list[Range] = []
        return Rows(self._batches(lo, hi, rows, landed, met), met)

    def _batches(
        self, lo: int, hi: int, rows: int, landed: Landed | None, met: list[Range]
    ) -> Iterator[pa.RecordBatch]:
        deadline = time.monotonic() + self._patience
        refused = False
        while lo < hi:
            request = _named(self.queue_id, landed) | {"lo": lo, "hi": hi, "rows": rows}
            ticket = flight.Ticket(json.dumps(request).encode())
            try:
                for chunk in self._client.do_get(ticket, self._large):
                    if chunk.app_metadata is not None:
                        told = json.loads(chunk.app_metadata.to_pybytes())["damaged"]
                        met.extend((first, last) for first, last in told)
                    refused = False
                    batch = chunk.data
                    if batch.num_rows:
                        lo = batch.column("offset")[-1].as_py() + 1
                        yield batch
                        # What the caller did meanwhile is no fault of the gateway's.
                        deadline = time.monotonic() + self._patience
                return
            except flight.FlightUnauthenticatedError as error:
                if refused or not self._finds_token(error):
                    raise _ours(self.location, error) from None
                refused = True
            except AWAY as error:
                if time.monotonic() >= deadline:
                    raise self._away(error) from None
                time.sleep(PAUSE_SECONDS)
            except (flight.FlightError, pa.ArrowException) as error:
                raise _ours(self.location, error) from None

    def _fresh(self) -> Description:
        if time.monotonic() - self._described_at > FRESH_SECONDS:
            self._described = self.describe()
            self._described_at = time.monotonic()
        return self._described

    def _of(self, consumer: str, landed: Landed | None = None) -> dict[str, Any]:
        return _named(self.queue_id, landed) | {"consumer": consumer}

    def _act(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        action = flight.Action(name, json.dumps(request).encode())
        try:
            try:
                [result] = self._client.do_action(action, self._small)
            except flight.FlightUnauthenticatedError as error:
                if not self._finds_token(error):
                    raise
                [result] = self._client.do_action(action, self._small)
            answer: dict[str, Any] = json.loads(result.body.to_pybytes())
            return answer
        except AWAY as error:
            raise self._away(error) from None
        except (flight.FlightError, pa.ArrowException) as error:
            raise _ours(self.location, error) from None

    def _use(self, token: bytes | None) -> None:
        headers = [] if token is None else [(b"authorization", b"Bearer " + token)]
        self._small = flight.FlightCallOptions(timeout=self._limit, headers=headers)
        self._large = flight.FlightCallOptions(timeout=STREAM_SECONDS_MAX, headers=headers)
        self._token = token

    def _finds_token(self, error: flight.FlightUnauthenticatedError) -> bool:
        """Use the token of the file that a refusal names, or ours; False if it is the old one."""
        tokens: list[bytes | None] = []
        with suppress(OSError, ValueError):
            tokens.append(_own_token(_named_file(error), self.location))
        with suppress(ConfigurationError):
            tokens.append(read_token(self._token_file).encode() if self._token_file else None)
        token = next((one for one in tokens if one and one != self._token), None)
        if token is not None:
            self._use(token)
        return token is not None

    def _away(self, error: Exception) -> QueueAway:
        why = reason(ConnectionError(_line(error)), "its address")
        return QueueAway(f"{self.location} is not to be reached{self._through}: {why}")


def _named(queue_id: str | None, landed: Landed | None = None) -> dict[str, Any]:
    request: dict[str, Any] = {} if queue_id is None else {"queue_id": queue_id}
    return request if landed is None else request | {"landed": asdict(landed)}


def _ours(location: str, error: Exception) -> QueueError:
    kind, colon, text = _line(error).partition(": ")
    if not colon or not kind.isidentifier():
        kind, text = "", _line(error)
    if isinstance(error, flight.FlightUnauthenticatedError):
        path = _named_file(error)
        text = "it wants its token: give the right one with --token-file FILE"
        if path:
            text = (
                f"it wants its token: run this as a user who can read {shown(path)}, with the"
                " address as msgproto flight shows it, or give --token-file FILE to both"
            )
    known = {each.__name__: each for each in (QueueAway, QueueMismatch)}
    return known.get(kind, QueueError)(f"{location}: {text}")


def _line(error: Exception) -> str:
    """Return one line of Flight's text, without what gRPC and Flight add about themselves."""
    text = str(error).partition(". Detail:")[0].partition(". gRPC client debug")[0]
    return " ".join(text.split())[:300]


def _named_file(error: flight.FlightUnauthenticatedError) -> str:
    return os.fsdecode(error.extra_info or b"")


def _own_token(path: str, location: str) -> bytes | None:
    """Return our token in ``path``, if it is one: who names the file may be a stranger."""
    name = TOKEN_FILE.format(port=urlsplit(location).port)
    if not os.path.isabs(path) or os.path.basename(path) != name:
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        token = os.read(descriptor, TOKEN_BYTES_MAX)
    finally:
        os.close(descriptor)
    return token.strip() if token.startswith(f"{location}/".encode()) else None


def _authority(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            pem = file.read()
    except OSError as error:
        why = error.strerror
        raise ConfigurationError(f"cannot read the certificate authority {path}: {why}") from None
    if b"-----BEGIN CERTIFICATE" not in pem:
        raise ConfigurationError(f"there is no certificate, in PEM, in {path}")
    return pem
