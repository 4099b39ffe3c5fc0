"""The endpoint strings ``mtls:PORT:…`` ask for client certificates (``LJ-01``).

Twisted's own ``ssl:`` and ``tls:`` strings cannot ask for them::

    mtls:5044:interface=127.0.0.1:privateKey=key.pem:certKey=cert.pem:caCerts=clients.pem
    mtls:5044:privateKey=server.pem:caCerts=clients.pem:verify=peer

``verify`` is, in the words Beats operators know:

* ``force_peer`` (the default): a client without a good certificate is turned away;
* ``peer``: a certificate that is shown must be good, none need be shown;
* ``none``: none is asked for (``caCerts`` is not needed then).

What TLS they offer is in :mod:`.tls`, as for all endpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from OpenSSL.crypto import FILETYPE_PEM, load_privatekey
from twisted.internet.endpoints import SSL4ServerEndpoint
from twisted.internet.interfaces import IStreamServerEndpoint
from twisted.internet.ssl import Certificate, CertificateOptions

from ..core.errors import ConfigurationError
from .tls import restrict

VERIFY: Final = ("none", "peer", "force_peer")

BACKLOG: Final = 50

_PEM_END: Final = b"-----END CERTIFICATE-----"


def mtls_endpoint(
    reactor: Any,
    port: str,
    privateKey: str = "",
    certKey: str = "",
    caCerts: str = "",
    verify: str = "force_peer",
    extraCertChain: str = "",
    interface: str = "",
    backlog: str = str(BACKLOG),
) -> IStreamServerEndpoint:
    """Return the endpoint that such a string describes; the names are those of Twisted's ``ssl:``.

    ``privateKey``, ``certKey`` (default: the same file), ``extraCertChain`` and ``caCerts`` are
    PEM files.  They are read now: ConfigurationError for what is missing or wrong.
    """
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"mtls: a port from 0 to 65535, not {port!r}")
    if not backlog.isdecimal():
        raise ConfigurationError(f"mtls: backlog is a number, not {backlog!r}")
    if not privateKey:
        raise ConfigurationError("mtls: privateKey=FILE is missing")
    if verify not in VERIFY:
        raise ConfigurationError(f"mtls: verify is one of {', '.join(VERIFY)}, not {verify!r}")
    if not caCerts and verify != "none":
        raise ConfigurationError(f"mtls: verify={verify} needs caCerts=FILE")
    settings: dict[str, Any] = {}
    if verify != "none":
        settings["verify"] = True
        settings["requireCertificate"] = verify == "force_peer"
        settings["caCerts"] = _read("caCerts", caCerts, _certificates)
    if extraCertChain:
        settings["extraCertChain"] = _read("extraCertChain", extraCertChain, _certificates)
    options = CertificateOptions(
        privateKey=_read("privateKey", privateKey, _key),
        certificate=_read("certKey", certKey or privateKey, _certificates)[0],
        **settings,
    )
    try:
        restrict(options.getContext())
    except Exception as error:
        raise ConfigurationError(
            f"mtls: {privateKey} is not the key of the certificate in {certKey or privateKey}"
            f" ({type(error).__name__})"
        ) from None
    return SSL4ServerEndpoint(reactor, int(port), options, int(backlog), interface)


def _read(what: str, path: str, parse: Callable[[bytes], Any]) -> Any:
    try:
        with open(path, "rb") as file:
            return parse(file.read())
    except OSError as error:
        raise ConfigurationError(f"mtls: {what}: cannot read {path}: {error.strerror}") from None
    except Exception:
        raise ConfigurationError(f"mtls: {what}: nothing usable in {path}") from None


def _certificates(pem: bytes) -> list[Any]:
    """All certificates of a PEM file, as OpenSSL has them; ValueError if there is none."""
    found = [
        Certificate.loadPEM(block[block.index(b"-----BEGIN CERTIFICATE") :] + _PEM_END + b"\n")
        for block in pem.split(_PEM_END)[:-1]
    ]
    if not found:
        raise ValueError("no certificate")
    return [certificate.original for certificate in found]


def _key(pem: bytes) -> Any:
    # With a passphrase, however wrong, OpenSSL never asks the terminal for one.
    return load_privatekey(FILETYPE_PEM, pem, b"-")
