"""Every TLS endpoint of a server offers what Mozilla calls "intermediate", and no more (``LJ-01``).

That is TLS 1.2 with authenticated ciphers and forward secrecy, TLS 1.3, and the curves below.
Twisted's own endpoint strings (``ssl:``, ``tls:``) would offer older ciphers, and OpenSSL more
curves; :class:`.reloading.ServedEndpoint` restricts them here, whatever kind of string it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from twisted.python.filepath import FilePath
from zope.interface import implementer

from .prompt import prompt_write

try:
    from OpenSSL._util import lib as openssl
except ImportError:  # pragma: no cover - it is pyOpenSSL's own, and may go
    openssl = None

log = Logger(namespace="twisted_msgproto.tls")

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


Buffer: TypeAlias = bytes | bytearray | memoryview
"""OpenSSL accepts these."""

_HEAD_OCTETS: Final = 5
"""A record of TLS begins with its kind, its version and the length of the rest (RFC 8446, 5.1)."""


class _Connection(SSL.Connection):
    """Is a TLS connection that restricts the context of the name which the client asks for.

    After each read Twisted asks for more data, and for something to send.  Most small reads are one
    record, which leaves neither; this knows it without OpenSSL, which would need 5 microseconds to
    say so (``NB-11``).
    """

    _missing = 0  # octets until the last record is whole; -1: it is not known where records begin
    _alone = False  # what came last is one record, and all before it has been read
    _nothing_came = _nothing_said = False

    def set_context(self, context: SSL.Context) -> None:
        """Serve with this context from now on; Twisted's directories of certificates call it."""
        super().set_context(restrict(context))

    def bio_write(self, buf: Buffer) -> int:
        """Accept what came from the peer."""
        before, self._missing = self._missing, _missing_of(buf, self._missing)
        self._alone = (
            self._nothing_came
            and not before
            and not self._missing
            and len(buf) == _record_octets(buf, 0)
        )
        self._nothing_came = False
        return super().bio_write(buf)

    def recv(self, bufsiz: int, flags: int | None = None) -> bytes:
        """Return data that the peer has sent; raise WantReadError if there is none."""
        if self._nothing_came:
            raise SSL.WantReadError
        alone, self._alone = self._alone, False
        if not alone:
            self._nothing_said = False
        try:
            data = super().recv(bufsiz, flags)
        except SSL.WantReadError:
            self._nothing_came, self._nothing_said = True, False
            raise
        except SSL.Error:
            self._nothing_said = False
            raise
        self._nothing_came = alone and not self.pending()
        return data

    def bio_read(self, bufsiz: int) -> bytes:
        """Return what is to be sent to the peer; raise WantReadError if that is nothing."""
        if self._nothing_said:
            raise SSL.WantReadError
        octets = super().bio_read(bufsiz)
        self._nothing_said = len(octets) < bufsiz
        return octets

    def send(self, buf: Buffer, flags: int = 0) -> int:
        """Encrypt ``buf``."""
        self._nothing_said = False
        return super().send(buf, flags)

    def do_handshake(self) -> None:
        """Continue the hand-shake."""
        self._nothing_came = self._nothing_said = False
        super().do_handshake()

    def shutdown(self) -> bool:
        """Say that no more data is sent."""
        self._nothing_came = self._nothing_said = False
        return super().shutdown()

    def bio_shutdown(self) -> None:
        """No more comes from the peer."""
        self._nothing_came = False
        super().bio_shutdown()


def _record_octets(octets: Buffer, start: int) -> int:
    """Return how many octets the record has that begins at ``start``; its head has come."""
    return _HEAD_OCTETS + (octets[start + 3] << 8) + octets[start + 4]


def _missing_of(octets: Buffer, missing: int) -> int:
    """Return how many octets the last record lacks after ``octets``, which follow on others.

    ``missing`` is what was returned for those: 0 in the beginning.  -1 means that a head was
    divided; where later records begin is not known either.
    """
    start, size = missing, len(octets)
    if start < 0:
        return start
    while start < size:
        if size - start < _HEAD_OCTETS:
            return -1
        start += _record_octets(octets, start)
    return start - size


@implementer(IOpenSSLServerConnectionCreator)
class _FromOptions:
    """Makes connections with the one context of a context factory."""

    def __init__(self, options: Any) -> None:
        self._options = options

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        """Return the connection of ``protocol``."""
        return _Connection(restrict(self._options.getContext()), None)


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


GATHERED_OCTETS: Final = 64_000
"""Small writes of one turn of the reactor are encrypted together, up to this many octets.  Each
record of TLS costs 29 octets and some microseconds.
"""


class TlsConnection(TLSMemoryBIOProtocol):
    """Encrypts what is written in one turn of the reactor together, and hands it to the system.

    Twisted's own class needs a timer for each connection that writes, and its octets wait until
    the reactor has found the socket writable.  Ten thousand idle connections with pings do little
    else (``NB-11``).
    """

    factory: TlsFactory
    _octets = 0  # of what is gathered
    _records: list[bytes] | None = None  # what is encrypted just now
    _leave: Callable[[bytes], None]  # hands octets to the system

    def __init__(self, factory: TlsFactory, wrappedProtocol: Any, _connectWrapped: bool = True):
        super().__init__(factory, wrappedProtocol, _connectWrapped)  # type: ignore[no-untyped-call]
        self._gathered: list[bytes] = []

    def makeConnection(self, transport: Any) -> None:
        """Note that the connection is made; what TLS writes to ``transport`` leaves at once."""
        self._leave = prompt_write(transport)
        if self._leave != transport.write:
            transport.write = self._encrypted
        super().makeConnection(transport)  # type: ignore[no-untyped-call]

    def _encrypted(self, octets: bytes) -> None:
        """Send what TLS writes to its transport; the records of one flush are sent together."""
        if self._records is None:
            self._leave(octets)
        else:
            self._records.append(octets)

    def write(self, octets: bytes) -> None:
        """Write ``octets`` when this turn of the reactor is over, or as soon as they are many."""
        gathered = self._gathered
        gathered.append(octets)
        self._octets += len(octets)
        if self._octets > GATHERED_OCTETS:
            self.flush()
        elif len(gathered) == 1:
            self.factory.flushSoon(self)

    def writeSequence(self, sequence: Iterable[bytes]) -> None:
        """Write all octets of ``sequence``, as :meth:`write` does."""
        self.write(b"".join(sequence))

    def flush(self) -> None:
        """Encrypt and write what is gathered."""
        if self._gathered:
            octets = b"".join(self._gathered)
            self._gathered.clear()
            self._octets = 0
            if self._records is not None:  # a producer writes while it is told to pause
                super().write(octets)  # type: ignore[no-untyped-call]
                return
            records: list[bytes] = []
            self._records = records
            try:
                super().write(octets)  # type: ignore[no-untyped-call]
            finally:
                self._records = None
                if records:
                    self._leave(records[0] if len(records) == 1 else b"".join(records))

    def loseConnection(self) -> None:
        """Close the connection when what was written has left."""
        self.flush()
        super().loseConnection()  # type: ignore[no-untyped-call]

    def abortConnection(self) -> None:
        """Reset the connection; what was written in this turn is dropped."""
        self._gathered.clear()
        super().abortConnection()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The transport is gone, and nobody refers to it any more."""
        self._gathered.clear()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        self.transport.__dict__.pop("write", None)  # it refers to the transport


class TlsFactory(TLSMemoryBIOFactory):
    """Puts a server's connections behind TLS; one call of the clock flushes all of them."""

    protocol = TlsConnection

    def __init__(self, creator: Any, factory: Any) -> None:
        """Make it for ``factory``; ``creator`` makes connections, such as CertificateOptions."""
        super().__init__(creator, False, factory)
        self._written: list[TlsConnection] = []

    def flushSoon(self, connection: TlsConnection) -> None:
        """Flush ``connection`` in the next turn of the reactor."""
        if not self._written:
            self._clock.callLater(0, self._flush)
        self._written.append(connection)

    def _flush(self) -> None:
        written, self._written = self._written, []
        for connection in written:
            try:
                connection.flush()
            except Exception:  # one of them harms none of the others
                log.failure("what was written could not be encrypted")


def tls_with(options: Any, factory: Any) -> TlsFactory:
    """Return ``factory`` behind TLS with a context factory, such as CertificateOptions."""
    return TlsFactory(_FromOptions(options), factory)


def tls_from_directory(directory: str, factory: Any) -> TlsFactory:
    """Return ``factory`` behind TLS with the certificates of a directory (``tls:DIRECTORY``)."""
    return TlsFactory(_FromDirectory(directory), factory)


__all__ = [
    "CIPHERS",
    "CURVES",
    "SUITES",
    "TlsConnection",
    "TlsFactory",
    "restrict",
    "tls_from_directory",
    "tls_with",
]
