"""Every TLS endpoint of a server offers what Mozilla calls "intermediate", and no more (``LJ-01``).

That is TLS 1.2 with authenticated ciphers and forward secrecy, TLS 1.3, and the curves below.
Twisted's own endpoint strings (``ssl:``, ``tls:``) would offer older ciphers, and OpenSSL more
curves; :class:`.reloading.ServedEndpoint` restricts them here, whatever kind of string it is.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakSet

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.filepath import FilePath
from zope.interface import implementer

try:
    from OpenSSL._util import lib as openssl
except ImportError:  # pragma: no cover - it is pyOpenSSL's own, and may go
    openssl = None

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""TLS 1.2 may use these ciphers, in OpenSSL's words; TLS 1.3 has its own suites, all
authenticated.
"""

SUITES: Final = b"TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"
"""TLS 1.3 may use these."""

CURVES: Final = (b"X25519MLKEM768:X25519:prime256v1:secp384r1", b"X25519:prime256v1:secp384r1")
"""Keys are exchanged with one of these curves: the first list that this OpenSSL knows whole."""

_restricted: WeakSet[SSL.Context] = WeakSet()


def restrict(context: SSL.Context) -> SSL.Context:
    """Let ``context`` offer what is listed above, and return it.

    Call this before a connection is made of it; a second call does nothing.
    """
    if context not in _restricted:
        _restricted.add(context)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_cipher_list(CIPHERS.encode())
        context.set_tls13_ciphersuites(SUITES)
        _set_curves(context)
    return context


def _set_curves(context: Any) -> None:
    # pyOpenSSL has no method for a list of curves.  Where its inner function is missing, the one
    # curve that every client knows is offered.
    set_list = getattr(openssl, "SSL_CTX_set1_curves_list", None)
    if set_list is None or not any(set_list(context._context, names) for names in CURVES):
        context.set_tmp_ecdh(SECP256R1())
    if set_list is not None:
        openssl.ERR_clear_error()  # a list that is not known leaves an error for whoever asks next


class _Connection(SSL.Connection):
    """Is a TLS connection that restricts the context of the name which the client asks for."""

    def set_context(self, context: SSL.Context) -> None:
        """Serve with this context from now on; Twisted's directories of certificates call it."""
        super().set_context(restrict(context))


@implementer(IOpenSSLServerConnectionCreator)
class _FromDirectory:
    """Makes connections with a directory's certificates, by the name that the client asks for."""

    def __init__(self, directory: str) -> None:
        # Twisted has no public name for what its own ``tls:`` endpoints do; no other needs it.
        from twisted.protocols._sni import SNIConnectionCreator, autoReloadingDirectoryOfPEMs

        self._names = SNIConnectionCreator(autoReloadingDirectoryOfPEMs(FilePath(directory)))

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        """Return the connection of ``protocol``."""
        return _Connection(restrict(self._names.defaultContext), None)


def tls_with(options: Any, factory: Any) -> TLSMemoryBIOFactory:
    """Return ``factory`` behind TLS with a context factory, such as CertificateOptions."""
    restrict(options.getContext())
    return TLSMemoryBIOFactory(options, False, factory)


def tls_from_directory(directory: str, factory: Any) -> TLSMemoryBIOFactory:
    """Return ``factory`` behind TLS with the certificates of a directory (``tls:DIRECTORY``)."""
    return TLSMemoryBIOFactory(_FromDirectory(directory), False, factory)


__all__ = ["CIPHERS", "CURVES", "SUITES", "restrict", "tls_from_directory", "tls_with"]
