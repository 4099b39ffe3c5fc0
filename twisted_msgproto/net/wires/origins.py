"""Parse the addresses of WebSocket servers, and the origins of web pages that may connect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.ssl import optionsForClientTLS

from twisted_msgproto.core.errors import ConfigurationError


class WebSocketAddress(NamedTuple):
    secure: bool
    host: str
    port: int
    resource: str


def parse_address(url: str) -> WebSocketAddress:
    """Parse ``ws://HOST[:PORT][/PATH]`` or ``wss://…``; raise ConfigurationError for anything
    else.
    """
    if not isinstance(url, str):
        raise TypeError(f"the address of a WebSocket is a text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        port = parts.port
        ascii_only = url.isascii() and url.isprintable() and " " not in url
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is no WebSocket address: {error}") from None
    if (
        parts.scheme not in ("ws", "wss")
        or not parts.hostname
        or parts.fragment
        or parts.username is not None
        or port == 0
        or not ascii_only
    ):
        raise ConfigurationError(
            f"{url!r} is no WebSocket address like ws://host:port/path or wss://host:port/path"
        )
    secure = parts.scheme == "wss"
    resource = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebSocketAddress(secure, parts.hostname, port or (443 if secure else 80), resource)


def client_endpoint(reactor: Any, url: str, tls: Any = None) -> IStreamClientEndpoint:
    """Return the endpoint that connects to ``url`` (:func:`parse_address`).

    ``tls`` is a context for ``wss`` (an ``IOpenSSLClientConnectionCreator``); the default trusts
    the platform's authorities and checks the host's name.
    """
    address = parse_address(url)
    endpoint = HostnameEndpoint(reactor, address.host, address.port)
    if address.secure:
        return wrapClientTLS(tls or optionsForClientTLS(address.host), endpoint)
    return endpoint


_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(text: str) -> str:
    """Return an origin with its port spelled out; ValueError if it is none."""
    if text.lower() == "null":
        return "null"
    parts = urlsplit(text)
    scheme, host = parts.scheme.lower(), parts.hostname
    if not scheme or not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is no origin")
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{parts.port or _DEFAULT_PORTS.get(scheme, '')}"


def parse_origins(origins: Iterable[str]) -> frozenset[str]:
    """Parse the origins of web pages that may connect, as a browser names them.

    ``http://host[:port]``, ``https://host[:port]``; ``null`` for pages without an origin
    (``file:``); ``*`` for every page.  Compared exactly: there are no patterns.  Raises
    ConfigurationError for anything else.
    """
    found = set()
    for text in origins:
        if not isinstance(text, str):
            raise TypeError(f"an origin is a text, not {type(text).__name__}")
        try:
            found.add("*" if text == "*" else origin_of(text))
        except ValueError:
            raise ConfigurationError(
                f"{text!r} is no origin like https://example.org, nor 'null', nor '*'"
            ) from None
    return frozenset(found)
