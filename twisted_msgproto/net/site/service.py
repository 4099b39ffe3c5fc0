"""Where the site of a gateway is served: a socket in its queue's directory, and a status endpoint.

Only the gateway's own user may connect to the socket ``control``.  A status endpoint is seen by
everybody on this machine, or by those who have its token.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import stat
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.logger import Logger
from twisted.web import http
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request
from zope.interface import implementer

from ...core.errors import ConfigurationError, QueueError
from ..endpoints import TLS_KINDS, is_loopback, kind_of
from ..reloading import Change
from .client import SocketPath
from .figures import GatewayFigures
from .http import BoundedSite
from .root import root_of
from .stream import Events

SOCKET_MODE: Final = 0o600

TOKEN_BYTES_LEAST: Final = 16
"""A token is at least this long, so that it cannot be guessed."""

OPEN_PATH: Final = b"healthz"

log = Logger(namespace="twisted_msgproto.site")


def _events(gateway: Any) -> Events:
    return Events(GatewayFigures(gateway, gateway.reactor), gateway.reactor)


# ── the socket ──────────────────────────────────────────────────────────────────────────────────


class ControlService(Service):
    """Answers to an operator's questions, from the start of the gateway to its end.

    A gateway works without it: where the socket cannot be made one line says so.
    """

    def __init__(self, gateway: Any, directory: str) -> None:
        """``directory`` is the queue's; it is locked by this process while the service runs."""
        self._gateway = gateway
        self._directory = directory
        self._path: SocketPath | None = None
        self._port: Any = None

    def startService(self) -> None:
        """Listen.  A socket that a process left behind is replaced: the queue's lock is ours."""
        super().startService()  # type: ignore[no-untyped-call]
        site = BoundedSite(root_of(self._gateway, _events(self._gateway)))
        try:
            self._path = SocketPath(self._directory)
            _remove_old(self._path.path)
            self._port = self._gateway.reactor.listenUNIX(self._path.path, site, mode=SOCKET_MODE)
        except (QueueError, OSError, CannotListenError) as error:
            self._forget_path()
            log.warn(
                "msgproto broker cannot ask this gateway, which works without that: {error}",
                error=getattr(error, "socketError", error),
            )

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        port, self._port = self._port, None
        stopped: Deferred[Any] = maybeDeferred(lambda: port and port.stopListening())
        return stopped.addBoth(lambda _: self._forget_path())

    def _forget_path(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            path.close()


def _remove_old(path: str) -> None:
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass


# ── a status endpoint ───────────────────────────────────────────────────────────────────────────


class StatusSite(BoundedSite):
    """The site on an endpoint of its own; it is named and ended as servers are."""

    protocolName: ClassVar[str] = "status"

    def __init__(self, root: Guarded, events: Events, token_file: str | None = None) -> None:
        super().__init__(cast(Any, root))
        self._events = events
        self._root = root
        # Read again from another directory perhaps: twistd may go to one of its own.
        self._token_file = None if token_file is None else os.path.abspath(token_file)

    def reread(self) -> Iterator[Change]:
        if self._token_file is not None:
            token = read_token(self._token_file)
            yield Change(
                f"status: the token of {self._token_file}", partial(self._root.changeToken, token)
            )

    def drain(self) -> Deferred[None]:
        self._events.end()
        return succeed(None)


def status_site(gateway: Any, endpoint: str, token_file: str | None = None) -> StatusSite:
    """Return the site that shows ``gateway``; it is for ``endpoint``, an endpoint string.

    ``token_file`` has the token in its first line; None lets everybody in who can connect, and then
    the site shows figures and does nothing else.  Raises ConfigurationError, one line, for an
    endpoint beyond this machine without TLS and a token, and for a file without a token.
    """
    try:
        check_access(endpoint, token_file)
    except ValueError as error:
        raise ConfigurationError(f"bad status endpoint {endpoint!r}: {error}") from None
    token = None if token_file is None else read_token(token_file)
    events = _events(gateway)
    root = root_of(gateway, events, for_everybody=token is None)
    return StatusSite(Guarded(root, token), events, token_file)


def check_access(description: str, token_file: str | None) -> None:
    """Raise ConfigurationError if others than this machine could connect without TLS and a
    token.
    """
    if is_loopback(description) or (kind_of(description) in TLS_KINDS and token_file is not None):
        return
    needed = "a token (--status-token FILE, or token-file in [status])"
    raise ConfigurationError(
        f"the status endpoint {description!r} is not on loopback: it needs TLS"
        f" (ssl:, tls: or mtls:) and {needed}"
    )


def read_token(path: str) -> bytes:
    """Return the token in the first line of this file; ConfigurationError if there is none."""
    try:
        token = Path(path).read_bytes().partition(b"\n")[0].strip()
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigurationError(f"cannot read the token file {path!r}: {why}") from None
    if len(token) < TOKEN_BYTES_LEAST:
        raise ConfigurationError(
            f"the token in {path!r} is too short: at least {TOKEN_BYTES_LEAST} characters"
        )
    return token


class _Refused(Resource):
    isLeaf = True

    def __init__(self, status: int, text: str, challenge: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._status = status
        self._text = text
        self._challenge = challenge

    def render(self, request: Request) -> bytes:
        request.setResponseCode(self._status)
        request.setHeader(b"content-type", b"text/plain; charset=utf-8")
        if self._challenge:
            request.setHeader(b"www-authenticate", b'Basic realm="msgproto", charset="UTF-8"')
        return self._text.encode() + b"\n"


@implementer(IResource)
class Guarded:
    """A site behind a token, which comes as a Basic password or as Bearer.

    Without a token a request has to name the server as this machine. Otherwise the page of another
    site could be made to reach it under that site's own name (DNS rebinding).
    """

    isLeaf = False
    server: Any = None

    def __init__(self, root: Resource, token: bytes | None) -> None:
        self._root = root
        self._token = token

    def changeToken(self, token: bytes) -> None:
        self._token = token

    def getChildWithDefault(self, name: bytes, request: Request) -> Any:
        if name != OPEN_PATH:
            if self._token is None and not _names_this_machine(request):
                return _Refused(http.FORBIDDEN, "the Host of this request is not this machine")
            if self._token is not None and not self._lets_in(request, self._token):
                return _Refused(http.UNAUTHORIZED, "the token is needed", challenge=True)
        return self._root.getChildWithDefault(name, request)

    def putChild(self, path: bytes, child: Any) -> None:
        self._root.putChild(path, child)

    def render(self, request: Request) -> Any:
        return _Refused(http.NOT_FOUND, "nothing is here").render(request)

    @staticmethod
    def _lets_in(request: Request, token: bytes) -> bool:
        scheme, _, credentials = (request.getHeader(b"authorization") or b"").partition(b" ")
        given = credentials.strip()
        if scheme.lower() == b"basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(given, token)


def _names_this_machine(request: Request) -> bool:
    host = request.getRequestHostname().decode("ascii", "replace").strip("[]")
    if host == "localhost":
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
