"""Twisted's client endpoint of ENDPOINT and ``--tls-…``; all faults are ConfigurationErrors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

from OpenSSL import SSL
from OpenSSL.crypto import FILETYPE_PEM
from OpenSSL.SSL import Connection
from OpenSSL.SSL import Error as TLSError
from twisted.internet.endpoints import HostnameEndpoint, clientFromString, wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IReactorCore,
    IStreamClientEndpoint,
    IStreamClientEndpointStringParserWithReactor,
)
from twisted.internet.ssl import (
    Certificate,
    KeyPair,
    PrivateCertificate,
    TLSVersion,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from zope.interface import implementer

from twisted_msgproto.core.errors import ConfigurationError

from ...core.reasons import tls_text
from ..endpoint_strings import (
    CLIENTS,
    certificates_in,
    check_parts,
    file_trouble,
    refuse_passphrase,
)
from .command_types import ClientEndpoint, ConnectOptions

ADDRESS: Final = re.compile(r"([\w.-]*[.\w]|\[[\w:.%]+\]):\d+")  # without its kind


def host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigurationError(f"HOST:PORT expected, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _hostname_endpoint(reactor: Any, host: str, port: int) -> HostnameEndpoint:
    endpoint = HostnameEndpoint(reactor, host, port)
    if getattr(endpoint, "_badHostname", False):  # it would say so at each attempt
        raise ConfigurationError(f"not an endpoint: no host has the name {host!r}")
    return endpoint


def client_endpoint(
    reactor: IReactorCore, options: ConnectOptions, tls: Any = None
) -> ClientEndpoint:
    """Return the endpoint for ``tcp:HOST:PORT``, ``tls:HOST:PORT`` or ``unix:PATH``.

    Any other Twisted client endpoint string works too.  Raises ConfigurationError, also for files
    of TLS that such an endpoint would not use.  ``tls`` takes the place of these files.
    """
    kind, _, rest = options.endpoint.partition(":")
    if kind != "tls" or "=" in rest:
        refuse_tls(options, tls)
    if kind in ("tcp", "tls") and "=" not in rest:
        host, port = host_and_port(rest)
        plain = _hostname_endpoint(reactor, host, port)
        if kind == "tcp":
            return plain
        return wrapClientTLS(tls or tls_options(options, host), plain)
    try:
        check_parts(options.endpoint, CLIENTS, IStreamClientEndpointStringParserWithReactor)
        endpoint: ClientEndpoint = clientFromString(reactor, options.endpoint)
    except Exception as error:
        meant = f"; write tcp:{options.endpoint}" if ADDRESS.fullmatch(options.endpoint) else ""
        raise ConfigurationError(
            f"not an endpoint: {options.endpoint!r} ({file_trouble(error)});"
            f" tcp:HOST:PORT, tls:HOST:PORT or unix:PATH is expected{meant}"
        ) from None
    return endpoint


def endpoint_of(
    reactor: Any, to: str | ClientEndpoint, *, webSocket: bool = False
) -> ClientEndpoint:
    """Return an endpoint, or the one of its string; ``ws://…`` only with ``webSocket``."""
    if isinstance(to, str):
        options = ConnectOptions(endpoint=to)
        if webSocket and to.startswith(("ws:", "wss:")):
            return websocket_endpoint(reactor, options)
        return client_endpoint(reactor, options)
    if not callable(getattr(to, "connect", None)):
        raise TypeError(f"an endpoint or its string is wanted, not {type(to).__name__}")
    return to


def refuse_tls(options: ConnectOptions, tls: Any) -> None:
    files = {"--tls-ca": options.tls_ca, "--tls-cert": options.tls_cert}
    for name, given in {**files, "--tls-key": options.tls_key, "tls": tls}.items():
        if given is not None:
            raise ConfigurationError(
                f"{name} goes with tls:HOST:PORT or wss://…, not with {options.endpoint}"
            )


class WebSocketAddress(NamedTuple):
    secure: bool
    host: str
    port: int
    resource: str


def parse_address(url: str) -> WebSocketAddress:
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


def websocket_endpoint(
    reactor: Any, options: ConnectOptions, tls: Any = None
) -> IStreamClientEndpoint:
    address = parse_address(options.endpoint)
    plain = _hostname_endpoint(reactor, address.host, address.port)
    if address.secure:
        return wrapClientTLS(tls or tls_options(options, address.host), plain)
    refuse_tls(options, tls)
    return plain


def tls_options(options: ConnectOptions, host: str) -> IOpenSSLClientConnectionCreator:
    settings: dict[str, Any] = {}
    try:
        if options.tls_ca is not None:
            settings["trustRoot"] = trustRootFromCertificates(_authorities(options.tls_ca))
        if options.tls_cert is not None:
            settings["clientCertificate"] = _own(options.tls_cert, options.tls_key)
        elif options.tls_key is not None:
            raise ConfigurationError("--tls-key goes with --tls-cert FILE")
    except OSError as error:
        raise ConfigurationError(f"cannot read {error.filename}: {error.strerror}") from None
    return SayingWhy(
        optionsForClientTLS(
            host,
            extraCertificateOptions={"raiseMinimumTo": TLSVersion.TLSv1_2},
            **settings,
        )
    )


@implementer(IOpenSSLClientConnectionCreator)
class SayingWhy:
    """Says what is wrong with a certificate: OpenSSL has one error for all that may be."""

    def __init__(self, inner: IOpenSSLClientConnectionCreator) -> None:
        self._inner = inner

    def clientConnectionForTLS(self, tlsProtocol: Any) -> Connection:
        """Return a connection; Twisted calls this.  What it verifies is not touched."""
        connection: Any = self._inner.clientConnectionForTLS(tlsProtocol)
        shake: Callable[[], None] = connection.do_handshake

        def do_handshake() -> None:
            try:
                shake()
            except TLSError as error:
                if "certificate verify failed" not in tls_text(error):
                    raise
                text = f"certificate verify failed: {verdict_of(connection)}"
                raise TLSError([("SSL routines", "", text)]) from error

        connection.do_handshake = do_handshake
        return cast(Connection, connection)


def verdict_of(connection: Any) -> str:
    openssl: Any = SSL
    try:
        number = openssl._lib.SSL_get_verify_result(connection._ssl)
        text: bytes = openssl._ffi.string(openssl._lib.X509_verify_cert_error_string(number))
    except AttributeError:
        return "it is not one to trust"
    return text.decode()


def _authorities(path: Path) -> list[Certificate]:
    pem = path.read_bytes()
    try:
        return certificates_in(pem)
    except Exception:
        raise ConfigurationError(f"--tls-ca {path} holds no usable certificate") from None


def _own(cert: Path, key: Path | None) -> PrivateCertificate:
    certificate, where = cert.read_bytes(), cert if key is None else key
    private = certificate if key is None else key.read_bytes()
    refuse_passphrase(where, private)
    try:
        Certificate.loadPEM(certificate)
    except Exception:
        raise ConfigurationError(f"--tls-cert {cert} holds no usable certificate") from None
    try:
        KeyPair.load(private, FILETYPE_PEM)
    except Exception:
        also = "; --tls-key FILE names another" if key is None else ""
        raise ConfigurationError(f"{where} holds no usable private key{also}") from None
    try:
        own: PrivateCertificate = PrivateCertificate.loadPEM(certificate + b"\n" + private)
    except Exception:
        raise ConfigurationError(f"the key in {where} is not that of {cert}") from None
    return own
