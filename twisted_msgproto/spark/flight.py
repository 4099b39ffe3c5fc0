"""A queue on another machine, read over Arrow Flight: the other end of ``queue/flight.py``.

The Spark source opens one of these wherever it would open a directory, executors included, so rows
go from the gateway's machine straight to the worker which needs them.

The token stands in a file (option ``tokenFile``, or the environment's
``MSGPROTO_FLIGHT_TOKEN_FILE``) on every machine: options are written into plans and logs, tokens
should not be.  Likewise the certificate authority (``tlsCa``, ``MSGPROTO_FLIGHT_CA``).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from ..core.errors import ConfigurationError, QueueError, QueueMismatch

CALL_SECONDS_MAX = 10.0
"""How long one small call may take."""

PATIENCE_SECONDS = 60.0
"""How long a gateway may be away (it is started again, say) before the stream ends."""

PAUSE_SECONDS = 0.5
"""Between two attempts to reach a gateway."""

FRESH_SECONDS = 0.02
"""How long a description serves: planning asks for id, epoch, begin and end at once."""

TOKEN_FILE = "MSGPROTO_FLIGHT_TOKEN_FILE"
AUTHORITY = "MSGPROTO_FLIGHT_CA"

AWAY = (flight.FlightUnavailableError, flight.FlightTimedOutError)

Answer = TypeVar("Answer")


class FlightQueue:
    """The queue which is served at ``location`` (``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT``).

    Has the methods of :class:`~twisted_msgproto.queue.QueueReader` which a stream needs.  Raises
    QueueError, one line, when it cannot be reached for ``patience`` seconds or refuses, and
    QueueMismatch when the queue does not have what was asked.
    """

    def __init__(
        self,
        location: str,
        *,
        token_file: str | None = None,
        authority: str | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.location = location
        self._patience = patience
        token_file = token_file or os.environ.get(TOKEN_FILE)
        authority = authority or os.environ.get(AUTHORITY)
        headers = []
        if token_file:
            token = _read(token_file, "token").decode().strip()
            headers = [(b"authorization", f"Bearer {token}".encode())]
        self._small = flight.FlightCallOptions(timeout=CALL_SECONDS_MAX, headers=headers)
        self._large = flight.FlightCallOptions(headers=headers)
        roots = {"tls_root_certs": _read(authority, "certificate authority")} if authority else {}
        try:
            self._client = flight.connect(location, **roots)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ConfigurationError(f"{location}: {_line(error)}") from None
        self._described: dict[str, Any] = {}
        self._described_at = float("-inf")
        self.queue_id: str = self._describe()["queue_id"]
        """Names the gateway for good."""

    @property
    def epoch(self) -> int:
        """Rises when published rows were lost."""
        return int(self._describe()["epoch"])

    def begin(self) -> int:
        """The earliest offset kept."""
        return int(self._describe()["begin"])

    def end(self) -> int:
        """The offset after the last durable row."""
        return int(self._describe()["end"])

    def damaged(self) -> list[tuple[int, int]]:
        """The ranges which the gateway knows to be lost."""
        return [(lo, hi) for lo, hi in self._describe()["damaged"]]

    def register(self, consumer: str) -> int:
        """From here on nothing is trimmed which ``consumer`` has not committed; its offset."""
        return int(self._act("register", {"consumer": consumer})["offset"])

    def commit(self, consumer: str, offset: int) -> None:
        """Publishes that ``consumer`` needs nothing below ``offset``."""
        self._act("commit", {"consumer": consumer, "offset": offset})

    def read(self, lo: int, hi: int, rows: int = 10_000) -> Iterator[pa.RecordBatch]:
        """Record batches of the rows lo ≤ offset < hi which are not damaged.

        A connection which breaks on the way is taken up again after the last row that came, and
        so is one which a busy server did not take.
        """
        deadline = time.monotonic() + self._patience
        while lo < hi:
            request = {"queue_id": self.queue_id, "lo": lo, "hi": hi, "rows": rows}
            ticket = flight.Ticket(json.dumps(request).encode())
            try:
                for chunk in self._client.do_get(ticket, self._large):
                    batch = chunk.data
                    if batch.num_rows:
                        lo = batch.column("offset")[-1].as_py() + 1
                        deadline = time.monotonic() + self._patience
                        yield batch
                return
            except AWAY as error:
                self._pause(error, deadline)
            except (flight.FlightError, pa.ArrowException) as error:
                raise _ours(self.location, error) from None

    def close(self) -> None:
        """Gives the connection back."""
        self._client.close()

    def _describe(self) -> dict[str, Any]:
        now = time.monotonic()
        if now - self._described_at > FRESH_SECONDS:
            self._described = self._act("describe", {})
            self._described_at = time.monotonic()
        return self._described

    def _act(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        action = flight.Action(name, json.dumps(request).encode())

        def call() -> dict[str, Any]:
            [result] = self._client.do_action(action, self._small)
            answer: dict[str, Any] = json.loads(result.body.to_pybytes())
            return answer

        return self._reached(call)

    def _reached(self, call: Callable[[], Answer]) -> Answer:
        """``call`` again and again until the gateway is there, or patience ends."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return call()
            except AWAY as error:
                self._pause(error, deadline)
            except (flight.FlightError, pa.ArrowException) as error:
                raise _ours(self.location, error) from None

    def _pause(self, error: Exception, deadline: float) -> None:
        """A short wait before the next attempt; QueueError when there is no more patience."""
        if time.monotonic() >= deadline:
            raise QueueError(f"{self.location} is not to be reached: {_line(error)}") from None
        time.sleep(PAUSE_SECONDS)


def _ours(location: str, error: Exception) -> QueueError:
    """Flight's error as one of ours, by the name which the server put in front."""
    kind, colon, text = _line(error).partition(": ")
    if not colon or not kind.isidentifier():
        kind, text = "", _line(error)
    mismatch = kind == QueueMismatch.__name__
    return (QueueMismatch if mismatch else QueueError)(f"{location}: {text}")


def _line(error: Exception) -> str:
    """One line of Flight's text, without what gRPC and Flight add about themselves."""
    text = str(error).partition(". Detail:")[0].partition(". gRPC client debug")[0]
    return " ".join(text.split())[:300]


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"cannot read the {what} {path}: {error.strerror}") from None
