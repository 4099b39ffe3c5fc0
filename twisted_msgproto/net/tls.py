"""Every TLS endpoint of a server offers what Mozilla calls "intermediate", and no more (``LJ-01``).

Twisted's own endpoint strings (``ssl:``, ``tls:``) would offer older ciphers, and OpenSSL more
curves; :class:`.endpoints.ServedEndpoint` restricts them here, whatever kind of string it is.

Those cannot ask for client certificates; ``mtls:`` does (``LJ-01``)::

    mtls:5044:privateKey=server.pem:caCerts=clients.pem:verify=peer

``verify`` is, in the words Beats operators know:

* ``force_peer`` (the default): a client without a good certificate is turned away;
* ``peer``: a certificate that is shown must be good, none need be shown;
* ``none``: none is asked for (``caCerts`` is not needed then).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from OpenSSL import SSL
from OpenSSL.crypto import FILETYPE_PEM, load_privatekey
from twisted.internet.endpoints import SSL4ServerEndpoint
from twisted.internet.interfaces import (
    IOpenSSLServerConnectionCreator,
    IProtocolNegotiationFactory,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.internet.ssl import Certificate, CertificateOptions, KeyPair
from twisted.logger import Logger
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.python.filepath import FilePath
from zope.interface import implementer

from ..core.errors import ConfigurationError
from .endpoint_strings import certificates_in, refuse_passphrase
from .turns import Turn, spent_of
from .wires.stream import flushing_write

openssl: Any = getattr(SSL, "_lib", None)  # they are pyOpenSSL's own, and may go
ffi: Any = getattr(SSL, "_ffi", None)

log: Logger = Logger(namespace="twisted_msgproto.tls")

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # TLS 1.2; 1.3 has only authenticated ones

SUITES: Final = b"TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"

CURVES: Final = (b"X25519MLKEM768:X25519:prime256v1:secp384r1", b"X25519:prime256v1:secp384r1")
"""Keys are exchanged with one of these curves: the first list that this OpenSSL knows whole."""

_restricted: WeakSet[SSL.Context] = WeakSet()


def restrict(context: SSL.Context) -> SSL.Context:
    """Let ``context`` offer what is listed above, before a connection is made of it; return it."""
    if context not in _restricted:
        _restricted.add(context)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_cipher_list(CIPHERS.encode())
        context.set_tls13_ciphersuites(SUITES)
        _set_curves(context)
        context.set_alpn_select_callback(_agree)
    return context


def _agree(connection: SSL.Connection, offered: list[bytes]) -> Any:
    """Choose among the names of protocols that a client offers (ALPN), as browsers do.

    Who offers none that the factory knows is served nevertheless: it may know this port.  Twisted
    answers with an empty name then, for which OpenSSL 4 ends the hand-shake.
    """
    factory = connection.get_app_data().factory.wrappedFactory
    names = IProtocolNegotiationFactory(factory, None)
    known = names.acceptableProtocols() if names is not None else ()
    return next((name for name in known if name in offered), SSL.NO_OVERLAPPING_PROTOCOLS)


def _set_curves(context: Any) -> None:
    # pyOpenSSL has no method for a list of curves.  Where its inner function is missing, the one
    # curve that every client knows is offered.
    set_list = getattr(openssl, "SSL_CTX_set1_curves_list", None)
    if set_list is None or not any(set_list(context._context, names) for names in CURVES):
        context.set_tmp_ecdh(SECP256R1())
    if set_list is not None:
        openssl.ERR_clear_error()  # a list that is not known leaves an error for whoever asks next


def renew(connection: Any) -> None:
    """Give a connection of OpenSSL a new input buffer if the old one is empty: it never shrinks."""
    old = getattr(connection, "_into_ssl", None)
    if not old or not hasattr(openssl, "SSL_set_bio"):
        return
    if openssl.BIO_get_mem_data(old, ffi.new("char **")) == 0:
        new = openssl.BIO_new(openssl.BIO_s_mem())
        if new != ffi.NULL:
            connection._into_ssl = new
            openssl.SSL_set_bio(connection._ssl, new, connection._from_ssl)  # it frees the old one


@implementer(IOpenSSLServerConnectionCreator)
class _FromOptions:
    def __init__(self, options: Any) -> None:
        self._options = options

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        return SSL.Connection(restrict(self._options.getContext()), None)


def certificates_of(directory: str) -> dict[str, CertificateOptions]:
    """Return what to serve each name with, of the files NAME.pem of a directory.

    Raises OSError, and ConfigurationError for a file of which nothing can be used.
    """
    keys: dict[str, KeyPair] = {}
    certificates: list[Certificate] = []
    for file in sorted(FilePath(directory).walk(), key=lambda file: file.path):
        if file.basename().endswith(".pem") and file.isfile():
            pem = file.getContent()
            refuse_passphrase(file.path, pem)
            try:
                _sort(pem, keys, certificates)
            except Exception:
                raise ConfigurationError(
                    f"{file.path} is no PEM file with keys and certificates"
                ) from None
    authorities = {
        _parsed(one).subject: one
        for one in certificates
        if one.getPublicKey().keyHash() not in keys
    }
    named = {}
    for certificate in certificates:
        key = keys.get(certificate.getPublicKey().keyHash())
        if key is not None:
            options = CertificateOptions(
                privateKey=key.original,
                certificate=certificate.original,
                extraCertChain=_above(certificate, authorities),
            )
            named.update(dict.fromkeys(_names(certificate), options))
    return named


def _sort(pem: bytes, keys: dict[str, KeyPair], certificates: list[Certificate]) -> None:
    begin = b"-----BEGIN "
    for block in pem.split(begin)[1:]:
        kind = block.partition(b"-----")[0]
        if kind.endswith(b"PRIVATE KEY"):
            key = KeyPair.load(begin + block, FILETYPE_PEM)
            keys[key.keyHash()] = key
        elif b"CERTIFICATE" in kind:
            certificates.append(Certificate.loadPEM(begin + block))


def _parsed(certificate: Certificate) -> x509.Certificate:
    return certificate.original.to_cryptography()  # type: ignore[no-any-return]


def _above(certificate: Certificate, authorities: dict[x509.Name, Certificate]) -> list[Any]:
    """Return who signed this, and who signed that one: a root has signed itself."""
    chain, left, issuer = [], dict(authorities), _parsed(certificate).issuer
    while issuer in left:
        signer = left.pop(issuer)
        chain.append(signer.original)
        issuer = _parsed(signer).issuer
    return chain


def _names(certificate: Certificate) -> list[str]:
    try:
        named = _parsed(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [name.lower() for name in named.value.get_values_for_type(x509.DNSName)]


@implementer(IOpenSSLServerConnectionCreator)
class FromDirectory:
    """Serves the certificate of the name that a client asks for, and to others the first one.

    Twisted's own choice writes a line for each name that it does not know, and a traceback for one
    that is no text: any stranger could fill the log.
    """

    def __init__(self, directory: str) -> None:
        self._named = certificates_of(directory)
        if not self._named:
            log.warn(
                "the directory {directory} has no certificate for any name: every hand-shake is"
                " refused until one is there and msgproto reload has read it",
                directory=directory,
            )
        usual = next(iter(self._named.values()), None) or CertificateOptions()
        self._usual = restrict(usual.getContext())
        self._usual.set_tlsext_servername_callback(self._choose)

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        return SSL.Connection(self._usual, None)

    def _choose(self, connection: SSL.Connection) -> None:
        name = (connection.get_servername() or b"").decode("ascii", "replace").lower()
        any_of_domain = f"*.{name.partition('.')[2]}"
        found = self._named.get(name) or self._named.get(any_of_domain)
        if found is not None:
            connection.set_context(restrict(found.getContext()))


RECORDS: Final = 16
"""This many records are decrypted before the clock is read: a usual read brings four, and the
costliest record of one byte needs a quarter of a millisecond.
"""

HEADER_BYTES: Final = 5

LARGE_BYTES: Final = 16 << 10  # more in one read leaves OpenSSL with a large buffer

LARGE_BUFFERS: Final = 64
"""At most this many connections of an endpoint keep a large buffer; above it the connection that
has had its own for longest gets a new, empty one.  OpenSSL's buffers never shrink, so each peer
that once sent 64 KiB would make this process hold 76 KB for as long as it is connected.
A new buffer after each read would cost some microseconds.
"""


def end_of_records(data: bytes, begin: int) -> int:
    """Return where the next :data:`RECORDS` records end, perhaps behind ``data``."""
    size = len(data)
    for _ in range(RECORDS):
        if begin + HEADER_BYTES > size:
            break
        begin += HEADER_BYTES + int.from_bytes(data[begin + 3 : begin + HEADER_BYTES])
    return begin


class TlsConnection(BufferingTLSTransport):
    """Hands what is encrypted to the system at once, and decrypts what one turn can process.

    Twisted's own class delivers each record of a read by itself, and all of them in one turn,
    whatever was paused meanwhile: 64 KiB are 2,800 records of one byte, which kept the reactor for
    half a second.
    """

    factory: TlsFactory
    transport: Any
    _unread = b""  # it came, and waits for the next turn or until nothing is paused
    _missing = 0  # bytes until the next record begins
    _paused = False  # by whoever reads this connection
    _next_turn: Any = None  # the call that goes on with what waits
    _tell_rest: Callable[[int], None] | None = None  # told how much waits while this is paused
    _told = 0  # bytes that it was told of

    def makeConnection(self, transport: Any) -> None:
        leave = flushing_write(transport)
        if leave != transport.write:
            transport.write = leave
        super().makeConnection(transport)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """Receive the bytes of a read, or an empty read that continues with the waiting bytes."""
        if self._unread:
            data = self._unread + data
            self._unread = b""
        if self._next_turn is not None or self._paused:
            self._unread = data
        else:
            place = self._deliver(data)
            if place < len(data) and self.connected:
                self._unread = data[place:]
        if self._paused or self._told:
            self._countRest()

    def tellRest(self, tell: Callable[[int], None]) -> None:
        """Call ``tell(bytes)`` when that changes which waits because this is paused."""
        self._tell_rest = tell

    def _countRest(self) -> None:
        rest = len(self._unread) if self._paused else 0
        if rest != self._told:
            self._told = rest
            if self._tell_rest is not None:
                self._tell_rest(rest)

    def _deliver(self, data: bytes) -> int:
        turn, place, size = None, 0, len(data)
        while place < size and not self._paused and self.connected:
            if turn is None and place:
                turn = Turn(self.factory.spent)
            elif turn is not None and turn.over():
                self.transport.pauseProducing()
                self._go_on_soon()
                break
            end = end_of_records(data, place + self._missing)
            missing, end = max(0, end - size), min(end, size)
            if missing != self._missing:
                self._missing = missing
            if end == place:  # no more than a part of a header
                break
            raw = data if end - place == size else data[place:end]
            place = end
            super().dataReceived(raw)  # type: ignore[no-untyped-call]
        if place > LARGE_BYTES and self not in self.factory.large:
            self.factory.grown(self)
        return place

    def _go_on_soon(self) -> None:
        self._next_turn = self.factory._clock.callLater(0, self._go_on)

    def _go_on(self) -> None:
        self._next_turn = None
        self.dataReceived(b"")  # as the socket does it: somebody may measure that
        if not self._paused and self._next_turn is None and self.connected:
            self.transport.resumeProducing()

    def pauseProducing(self) -> None:
        self._paused = True
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        if len(self._unread) < HEADER_BYTES:  # also while something is being delivered
            self.transport.resumeProducing()
        elif self._next_turn is None:
            self._go_on_soon()

    def abortConnection(self) -> None:
        """Reset the connection; what was written in this turn is dropped."""
        if self.connected:  # it would be written after TLS has ended, as an error of OpenSSL's
            self._aggregator._buffer.clear()  # type: ignore[union-attr]
        super().abortConnection()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._unread = b""
        self._tell_rest = None
        self.factory.large.pop(self, None)
        super().connectionLost(reason)  # a turn that is to come does nothing
        self.transport.__dict__.pop("write", None)  # it refers to the transport


class TlsFactory(TLSMemoryBIOFactory):
    protocol: type[TlsConnection] = TlsConnection

    def __init__(self, creator: Any, factory: Any) -> None:
        super().__init__(creator, False, factory)
        self.large: dict[TlsConnection, None] = {}  # those with a large buffer, the eldest first
        self.spent: Callable[[], float] = spent_of(self._clock)

    def grown(self, connection: TlsConnection) -> None:
        if connection.connected:
            self.large[connection] = None
            if len(self.large) > LARGE_BUFFERS:
                eldest = next(iter(self.large))
                del self.large[eldest]
                renew(eldest.getHandle())  # type: ignore[no-untyped-call]


def tls_with(options: Any, factory: Any) -> TlsFactory:
    return TlsFactory(_FromOptions(options), factory)


# ── mtls: ─────────────────────────────────────────────────────────────────────────────────────────


VERIFY: Final = ("none", "peer", "force_peer")

BACKLOG: Final = 50


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
    """Return the endpoint that such a string describes; its PEM files are read now."""
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
        pem = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"mtls: {what}: cannot read {path}: {error.strerror}") from None
    refuse_passphrase(path, pem)
    try:
        return parse(pem)
    except Exception:
        raise ConfigurationError(f"mtls: {what}: nothing usable in {path}") from None


def _certificates(pem: bytes) -> list[Any]:
    return [certificate.original for certificate in certificates_in(pem)]


def _key(pem: bytes) -> Any:
    return load_privatekey(FILETYPE_PEM, pem)
