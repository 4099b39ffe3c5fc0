"""Make a Twisted client endpoint of ENDPOINT and the ``--tls-…`` options.

Everything an operator can get wrong here is a ConfigurationError that says what.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.endpoints import HostnameEndpoint, clientFromString, wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IReactorCore,
    IStreamClientEndpoint,
)
from twisted.internet.ssl import (
    Certificate,
    PrivateCertificate,
    TLSVersion,
    optionsForClientTLS,
    trustRootFromCertificates,
)

from twisted_msgproto.core.errors import ConfigurationError

from ..wires import origins
from .shapes import ConnectOptions

PEM_END = b"-----END CERTIFICATE-----"


def host_and_port(text: str) -> tuple[str, int]:
    """``HOST:PORT``, where HOST may be ``[IPV6]``; ConfigurationError if it is not that."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigurationError(f"HOST:PORT expected, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def client_endpoint(reactor: IReactorCore, options: ConnectOptions) -> IStreamClientEndpoint:
    """Return the endpoint for ``tcp:HOST:PORT``, ``tls:HOST:PORT`` or ``unix:PATH``.

    Any other Twisted client endpoint string works too.  Raises ConfigurationError, also for files
    of TLS that such an endpoint would not use.
    """
    kind, _, rest = options.endpoint.partition(":")
    if kind != "tls" or "=" in rest:
        refuse_tls_files(options)
    if kind in ("tcp", "tls") and "=" not in rest:
        host, port = host_and_port(rest)
        plain = HostnameEndpoint(reactor, host, port)
        if kind == "tcp":
            return plain
        return wrapClientTLS(tls_options(options, host), plain)
    try:
        endpoint: IStreamClientEndpoint = clientFromString(reactor, options.endpoint)
    except Exception as error:
        raise ConfigurationError(
            f"not an endpoint: {options.endpoint!r} ({type(error).__name__}: {error});"
            " tcp:HOST:PORT, tls:HOST:PORT or unix:PATH is expected"
        ) from None
    return endpoint


def refuse_tls_files(options: ConnectOptions) -> None:
    """Raise ConfigurationError for files of TLS beside an endpoint without TLS."""
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if getattr(options, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigurationError(
                f"{flag} goes with tls:HOST:PORT or wss://…, not with {options.endpoint}"
            )


def websocket_endpoint(reactor: Any, options: ConnectOptions) -> IStreamClientEndpoint:
    """Return the endpoint for ``ws://…`` or ``wss://…``; raises ConfigurationError as the others
    do.
    """
    address = origins.parse_address(options.endpoint)
    if not address.secure:
        refuse_tls_files(options)
    tls = tls_options(options, address.host) if address.secure else None
    return origins.client_endpoint(reactor, options.endpoint, tls)


def tls_options(options: ConnectOptions, host: str) -> IOpenSSLClientConnectionCreator:
    """TLS 1.2 or newer to ``host``, whose name the server's certificate must have.

    Raises ConfigurationError when a file cannot be read or is no PEM.
    """
    settings: dict[str, Any] = {}
    try:
        if options.tls_ca is not None:
            authorities = [
                Certificate.loadPEM(block + PEM_END + b"\n")
                for block in options.tls_ca.read_bytes().split(PEM_END)[:-1]
            ]
            if not authorities:
                raise ValueError("no certificate")
            settings["trustRoot"] = trustRootFromCertificates(authorities)
        if options.tls_cert is not None:
            pem = options.tls_cert.read_bytes()
            if options.tls_key is not None:
                pem += b"\n" + options.tls_key.read_bytes()
            settings["clientCertificate"] = PrivateCertificate.loadPEM(pem)
    except OSError as error:
        raise ConfigurationError(f"cannot read {error.filename}: {error.strerror}") from None
    except Exception as error:
        raise ConfigurationError(
            f"the TLS files hold no usable certificate or key ({type(error).__name__})"
        ) from None
    return optionsForClientTLS(
        host,
        extraCertificateOptions={"raiseMinimumTo": TLSVersion.TLSv1_2},
        **settings,
    )
