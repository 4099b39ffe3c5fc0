"""Ask a running gateway, on this machine or at a URL; this blocks and needs no reactor."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from ...core.errors import ConfigurationError, QueueAway, QueueError, unquoted
from ...core.loading import read_token
from ...core.reasons import reason
from .queue_view import MessageShown, NoSuchQueue, QueueShown, from_json

SOCKET_NAME: Final = "control"

PATH_BYTES_MAX: Final = 103  # of a UNIX socket, on every system (107 on Linux)

DESCRIPTORS: Final = "/proc/self/fd"  # of what is open here: a short path to each directory

ANSWER_SECONDS: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 << 20

ERROR_TEXT_MAX: Final = 4000

ADDRESS: Final = re.compile(r"[^/]+:\d+")  # this is a status endpoint, and no directory


class SocketPath:
    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Raise QueueError if the path is too long here, OSError if there is no such directory."""
        self._descriptor: int | None = None
        self.shown = self.path = os.path.join(os.path.abspath(directory), SOCKET_NAME)
        nbytes = len(os.fsencode(self.path))
        if nbytes <= PATH_BYTES_MAX:
            return
        if not os.path.isdir(DESCRIPTORS):
            raise QueueError(
                f"the path of the socket {self.shown} has {nbytes} bytes, and this system takes"
                f" {PATH_BYTES_MAX}: use the queue through a symbolic link with a shorter path"
            )
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.path = f"{DESCRIPTORS}/{self._descriptor}/{SOCKET_NAME}"

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class _OverUnix(http.client.HTTPConnection):
    def __init__(self, where: str) -> None:
        super().__init__("localhost", timeout=ANSWER_SECONDS)
        self._where = where

    def connect(self) -> None:
        own = socket_of(self._where)
        path = None if own is not None else SocketPath(self._where)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(str(own) if path is None else path.path)
        finally:
            if path is not None:
                path.close()


class GatewayBroker:
    """The broker of a running gateway, as an operator sees it.

    It is a :class:`.BrokerView` whose methods return the values themselves.  Every method raises
    QueueAway, one line, when the gateway does not answer, and NoSuchQueue or QueueError with what
    the gateway says.
    """

    def __init__(
        self, where: str, token_file: str | None = None, authority: str | None = None
    ) -> None:
        """``where`` is a queue's directory, or a status endpoint: its URL, or ``unix:PATH``.

        ``token_file`` has the token of that endpoint in its first line, ``authority`` is a PEM file
        of who signed its certificate (None: whom the system trusts).  Raises ConfigurationError for
        a URL or a file that cannot be.
        """
        if token_file is not None and not is_endpoint(where):
            raise ConfigurationError("--token-file goes with http://HOST:PORT or unix:PATH")
        try:
            self._tls = ssl.create_default_context(cafile=authority)
        except OSError as error:
            no_pem = isinstance(error, ssl.SSLError)
            why = "it holds no usable certificate" if no_pem else error.strerror
            raise ConfigurationError(f"--tls-ca {authority}: {why}") from None
        self._where = where
        self._headers = {"X-Msgproto": "1"}
        self._prefix = ""
        if is_url(where):
            try:
                parts = urlsplit(where)
                wrong = parts.username is not None or parts.query or not parts.hostname
                wrong = wrong or parts.port == 0  # a ValueError for what is no port
            except ValueError:
                wrong = True
            if wrong:
                raise ConfigurationError(f"http://HOST:PORT expected, not {where!r}")
            self._prefix = parts.path.rstrip("/")
        if token_file is not None:
            self._headers["Authorization"] = f"Bearer {read_token(token_file)}"

    # ── a BrokerView ────────────────────────────────────────────────────────────────────────────

    def queues(self) -> Sequence[QueueShown]:
        answer = self._ask("GET", "queues")
        with self._understood():
            return [QueueShown(**queue) for queue in answer["queues"]]

    def peek(self, space: str, name: str, count: int) -> Sequence[MessageShown]:
        answer = self._ask("GET", "peek", space=space, name=name, count=str(count))
        with self._understood():
            return [from_json(message) for message in answer["messages"]]

    def purge(self, space: str, name: str) -> int:
        answer = self._ask("POST", "purge", space=space, name=name)
        with self._understood():
            return int(answer["count"])

    def requeue(self, space: str, name: str, to: str) -> int:
        answer = self._ask("POST", "requeue", space=space, name=name, to=to)
        with self._understood():
            return int(answer["count"])

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError):
            raise QueueError(
                f"{self._where} answers otherwise than a gateway of this version: is it one?"
            ) from None

    # ── HTTP ────────────────────────────────────────────────────────────────────────────────────

    def _connection(self) -> http.client.HTTPConnection:
        if not is_url(self._where):
            return _OverUnix(self._where)
        parts = urlsplit(self._where)
        assert parts.hostname is not None
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=ANSWER_SECONDS, context=self._tls
            )
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=ANSWER_SECONDS)

    def figures(self) -> Any:
        return self._ask_at("GET", "status.json")

    def reload(self) -> dict[str, list[str]]:
        answer = self._ask_at("POST", "reload")
        with self._understood():
            return {name: [str(line) for line in answer[name]] for name in ("done", "later")}

    def _why(self, error: Exception) -> str:
        if not is_url(self._where) and isinstance(
            error, FileNotFoundError | ConnectionRefusedError
        ):
            return self._why_not_here()
        if isinstance(error, PermissionError):
            return "this user may not use its socket; run this as the user that it runs as"
        if isinstance(error, http.client.HTTPException):
            return (
                "what listens there does not speak HTTP; is this the port of its status endpoint,"
                f" and is it {'http' if self._where.startswith('https:') else 'https'}: there?"
            )
        if isinstance(error, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(error):
            return "it does not speak TLS there; try http:"
        return reason(error, "its address")

    def _why_not_here(self) -> str:
        where = self._where
        own = socket_of(where)
        if own is not None:
            return (
                f"nobody listens on {own}; is that the [status] endpoint of its file?"
                if os.path.exists(own)
                else f"there is no socket {own}; [status] endpoint of its file names the one"
            )
        if os.path.isdir(where):
            from ...queue.queue_directories import is_queue, no_queue

            if not is_queue(where) and not os.path.exists(os.path.join(where, SOCKET_NAME)):
                return no_queue(where)
            return "none runs on this queue, or it runs as another version"
        if ADDRESS.fullmatch(where):
            return f"there is no such directory; for its status endpoint write http://{where}"
        return "there is no such directory"

    def _ask(self, method: str, path: str, **query: str) -> Any:
        return self._ask_at(method, f"broker/{path}?{urlencode(query)}")

    def _ask_at(self, method: str, path: str) -> Any:
        target = f"{self._prefix}/{path}"
        connection = self._connection()
        try:
            connection.request(method, target, headers=self._headers)
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise QueueAway(
                f"the gateway of {self._where} does not answer: {self._why(error)}"
            ) from None
        finally:
            connection.close()
        if response.status == http.client.UNAUTHORIZED:
            if "Authorization" in self._headers:
                raise QueueError(f"{self._where} has another token than the file of --token-file")
            raise QueueError(f"{self._where} wants its token: give it with --token-file FILE")
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise QueueError(
                f"{self._where} answers with status {response.status}: it is no gateway"
            )
        if response.status == http.client.OK:
            return answer
        text = unquoted(str(answer.get("error", "")), ERROR_TEXT_MAX)
        raise (NoSuchQueue if response.status == 404 else QueueError)(text)


def socket_of(where: str) -> str | None:
    if where.startswith("unix:"):
        return where.removeprefix("unix:").partition(":")[0]
    return where if os.path.exists(where) and not os.path.isdir(where) else None


def is_endpoint(where: str) -> bool:
    return is_url(where) or socket_of(where) is not None


def is_url(where: str | os.PathLike[str]) -> bool:
    return str(where).startswith(("http://", "https://"))
