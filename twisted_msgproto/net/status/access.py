"""A status endpoint is seen by everybody on this machine, or by those who have its token."""

from __future__ import annotations

import base64
import binascii
import hmac
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from twisted.web import http
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request
from zope.interface import implementer

from ...core.errors import ConfigurationError
from ..endpoints import TLS_KINDS, is_loopback, kind_of

TOKEN_OCTETS_LEAST: Final = 16
"""A token is at least this long, so that it cannot be guessed."""

OPEN_PATH: Final = b"healthz"


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
    if len(token) < TOKEN_OCTETS_LEAST:
        raise ConfigurationError(
            f"the token in {path!r} is too short: at least {TOKEN_OCTETS_LEAST} characters"
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
        """Answer that nothing is here: the site asks for a child of every path."""
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
