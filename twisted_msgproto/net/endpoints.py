"""Server endpoint strings: what they ask a reactor for, and what becomes of that.

What a string means shows when it listens, so :func:`ask` lets it listen on a reactor that passes
what is :class:`Wanted` to a function.  Behind a proxy (``haproxy:``) the header comes before TLS,
where balancers put it, and one that is none is a fault of the peer's; Twisted looks for it inside,
and raises.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from twisted.internet import endpoints, tcp
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IStreamServerEndpointStringParser,
)
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger
from twisted.protocols.haproxy._exceptions import InvalidProxyHeader
from twisted.protocols.haproxy._info import ProxyInfo
from twisted.protocols.haproxy._v1parser import V1Parser
from twisted.protocols.haproxy._v2parser import V2Parser
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory
from twisted.python.failure import Failure

from ..core.errors import ConfigurationError
from ..core.reasons import cannot_listen
from .endpoint_strings import (
    PORT_MOST,
    SERVERS,
    certificates_in,
    check_parts,
    file_trouble,
    refuse_passphrase,
    tls_files,
)
from .factory import SessionFactory, host_of, peer_name
from .process import alone_in
from .reloading import Change, services_in
from .tls import BACKLOG, FromDirectory, TlsFactory, certificates_of, tls_with

TLS_KINDS: Final = frozenset(("mtls", "ssl", "tls"))

TCP_KINDS: Final = frozenset(("tcp", "tcp6", *TLS_KINDS))

FORMS: Final = "tcp:PORT, tls:DIRECTORY:PORT or unix:PATH"

EXPOSED: Final = (
    "{where} is open to other machines without TLS: who is on the way can read and change what"
    " clients send, passwords too; tls:DIRECTORY:PORT encrypts it, and :interface={loopback} keeps"
    " it to this machine"
)

HOST_FIRST: Final = re.compile(r"(tcp|tcp6):([\w.-]+):(\d+)")  # as clients write it


class Wanted(NamedTuple):
    """What an endpoint string asks its reactor for.

    ``kind`` is ``tcp``, ``unix`` or ``adopted``; ``where`` is the port, the path or the descriptor;
    ``rest`` are the other arguments of the reactor's method, without ``interface``.
    """

    kind: str
    where: Any
    factory: Any
    rest: tuple[Any, ...]
    interface: str = ""
    tls: Any = None

    def listen(self, reactor: Any) -> Any:
        if self.kind == "tcp":
            return reactor.listenTCP(self.where, self.factory, *self.rest, self.interface)
        if self.kind == "unix":
            with place_for(self.where):
                return reactor.listenUNIX(self.where, self.factory, *self.rest)
        return reactor.adoptStreamPort(self.where, *self.rest, self.factory)


class _Asked:
    def __init__(self, act: Callable[[Wanted], Any], reactor: Any) -> None:
        self._act = act
        self._reactor = reactor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def listenTCP(
        self, port: int, factory: Any, backlog: int = BACKLOG, interface: str = ""
    ) -> Any:
        return self._act(Wanted("tcp", port, factory, (backlog,), interface))

    def listenSSL(
        self,
        port: int,
        factory: Any,
        contextFactory: Any,
        backlog: int = BACKLOG,
        interface: str = "",
    ) -> Any:
        return self._act(Wanted("tcp", port, factory, (backlog,), interface, contextFactory))

    def listenUNIX(
        self,
        address: str,
        factory: Any,
        backlog: int = BACKLOG,
        mode: int = 0o666,
        wantPID: bool = False,
    ) -> Any:
        return self._act(Wanted("unix", address, factory, (backlog, mode, wantPID)))

    def adoptStreamPort(self, fileno: int, addressFamily: int, factory: Any) -> Any:
        return self._act(Wanted("adopted", fileno, factory, (addressFamily,)))


def ask(
    description: str, factory: Any, act: Callable[[Wanted], Any], reactor: Any = None
) -> Deferred[Any]:
    """Let ``factory`` listen on a reactor that calls ``act(wanted)``."""
    endpoint = endpoints.serverFromString(_Asked(act, reactor), _plain(description))
    return cast("Deferred[Any]", endpoint.listen(factory))


# ── what a string means ─────────────────────────────────────────────────────────────────────────


def kind_of(description: str) -> str:
    return description.removeprefix("haproxy:").partition(":")[0]


def address_name(address: Any, description: str = "") -> str:
    """Return a listening address as ``description`` names it: ``tcp:127.0.0.1:5044``."""
    if getattr(address, "host", None) is not None:
        kind = kind_of(description)
        kind = kind if kind in TLS_KINDS else str(address.type).lower()
        return f"{kind}:{peer_name(address)}"
    return f"unix:{peer_name(address)}"


TLS_DIRECTORY: Final = re.compile(r"(haproxy:)?tls:((?:[^:\\]|\\.)*)")


def tls_directory(description: str) -> str | None:
    match = TLS_DIRECTORY.match(description)
    return re.sub(r"\\(.)", r"\1", match[2]) if match else None


def _plain(description: str) -> str:
    """Return the string without TLS of ``tls:DIRECTORY``, which Twisted would read as well, and for
    ever where it has the root of a chain.
    """
    match = TLS_DIRECTORY.match(description)
    if match is None:
        return description
    rest = description[match.end() :]
    port = "" if re.search(r"^:\d|:port=", rest) else ":443"  # as Twisted has it
    return f"{match[1] or ''}tcp6{port}{rest}"


def is_loopback(description: str) -> bool:
    found = _looked_at(description)
    return bool(found) and all(one.kind == "unix" or _is_local(one.interface) for one in found)


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def exposure(description: str, address: Any = None) -> str | None:
    """Return the warning that other machines reach an endpoint without TLS; None: they do not."""
    if kind_of(description) in TLS_KINDS:
        return None
    host = getattr(address, "host", None)
    hosts = [one.interface for one in _looked_at(description) if one.kind == "tcp"]
    local = all(map(_is_local, hosts if host is None else [host]))
    if local:
        return None
    loopback = r"\:\:1" if kind_of(description) == "tcp6" else "127.0.0.1"
    return EXPOSED.format(where=description, loopback=loopback)


def ports_of(description: str) -> list[tuple[str, int]]:
    found = _looked_at(description)
    return [(one.interface, one.where) for one in found if one.kind == "tcp" and one.where]


def _looked_at(description: str) -> list[Wanted]:
    found: list[Wanted] = []
    if kind_of(description) != "systemd":  # to adopt a descriptor closes it
        ask(description, ServerFactory(), found.append).addErrback(lambda _: None)
    return found


def check_endpoint(description: str) -> None:
    try:
        check_parts(description, SERVERS, IStreamServerEndpointStringParser)
        directory = tls_directory(description)
        if directory is not None and not os.path.isdir(directory):
            # Twisted would listen, and refuse every hand-shake.  Certificates may follow later.
            is_port = os.path.basename(directory).isdecimal()
            hint = "; the directory comes first: tls:DIRECTORY:PORT" if is_port else ""
            raise ConfigurationError(f"no directory {directory!r}{hint}")
        if directory is not None:
            certificates_of(directory)
        _check_key(description)
        endpoints.serverFromString(object(), _plain(description))
    except Exception as error:
        reason = file_trouble(error)
        swapped = HOST_FIRST.fullmatch(description)
        if swapped is not None:
            kind, host, port = swapped.groups()
            reason = f"the port comes first: {kind}:{port}:interface={host}"
        elif kind_of(description) not in TLS_KINDS:
            reason += f"; it is written like {FORMS}"
        raise ConfigurationError(f"bad endpoint {description!r}: {reason}") from None


def _check_key(description: str) -> None:
    named = tls_files(description)
    if named is not None and kind_of(description) == "ssl":  # mtls: says it itself
        refuse_passphrase(named[0], Path(named[0]).read_bytes())


def check_directory(description: str) -> None:
    directory = tls_directory(description)
    if directory is None:
        return
    try:
        found = certificates_of(directory)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"the directory {directory!r}: {file_trouble(error)}") from None
    if not found:
        raise ConfigurationError(
            f"the directory {directory!r} has no file NAME.pem with a key and its certificate for a"
            " name (subjectAltName)"
        )


def outdated(description: str) -> list[str]:
    named, directory = tls_files(description), tls_directory(description)
    found: list[Any] = []
    if directory is not None:
        found = [one.certificate for one in certificates_of(directory).values()]
    elif named is not None:
        found = [certificates_in(Path(named[1]).read_bytes())[0].original]
    certificates = [one.to_cryptography() for one in found]
    times = {(one.not_valid_before_utc, one.not_valid_after_utc) for one in certificates}
    return [
        f"clients refuse a certificate that is valid from {begin} to {end}"
        for begin, end in sorted(times)
        if not begin <= datetime.now(UTC) <= end
    ]


# ── endpoints that are tried ────────────────────────────────────────────────────────────────────


class Held:
    """Addresses that are bound as a start would bind them: an endpoint given twice is found."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._files: list[str] = []

    def hold(self, bound: Any) -> None:
        self._held.append(bound)

    def refusal(self, description: str, factory: Any, *, reused: bool = False) -> str | None:
        """Return why this endpoint cannot be had; None if it is held now."""
        failures: list[Failure] = []
        ask(description, factory, lambda one: self._bind(one, reused)).addErrback(failures.append)
        if not failures:
            return None
        error = failures[0].value
        return cannot_listen(getattr(error, "socketError", None) or error)

    def _bind(self, wanted: Wanted, reused: bool) -> None:
        if wanted.kind == "adopted":
            return
        unix = wanted.kind == "unix"
        of_tcp = socket.AF_INET6 if ":" in wanted.interface else socket.AF_INET
        bound = socket.socket(socket.AF_UNIX if unix else of_tcp)
        self.hold(bound)
        try:
            if unix:
                with place_for(wanted.where):
                    bound.bind(wanted.where)
                    self._files.append(wanted.where)
                    bound.listen(1)
            else:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reused:
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                bound.bind((wanted.interface, wanted.where))
                if not reused:
                    bound.listen(1)
        except OSError as error:
            raise CannotListenError(wanted.interface, wanted.where, error) from None

    def close(self) -> None:
        for bound in self._held:
            bound.close()
        for path in self._files:
            os.unlink(path)
        self._held, self._files = [], []


@contextmanager
def place_for(address: str) -> Iterator[None]:
    """Remove a stale socket; nobody else does until one listens: a bound one looks the same."""
    folder = os.path.dirname(address) or "."
    with alone_in(folder) if os.access(folder, os.R_OK) else nullcontext():
        _remove_stale(address)
        yield


def _remove_stale(address: str) -> None:
    """Remove the socket of a process that was killed; OSError if somebody listens on it.

    Twisted's lock beside it goes, too.  Its process ID says nothing: in a container that of the
    new process is often the same.
    """
    try:
        if not stat.S_ISSOCK(os.stat(address).st_mode):
            raise OSError("a file of this name is there, and it is no socket")
        with socket.socket(socket.AF_UNIX) as caller:
            caller.setblocking(False)  # who listens may be stopped, and have enough who wait
            caller.connect(address)
    except BlockingIOError:
        raise OSError("another process listens on it") from None
    except ConnectionRefusedError:
        os.unlink(address)
    except FileNotFoundError:
        if not _names_us(f"{address}.lock"):
            return
    else:
        raise OSError("another process listens on it")
    with suppress(FileNotFoundError):
        os.unlink(f"{address}.lock")


def _names_us(lock: str) -> bool:
    try:
        return os.readlink(lock) == str(os.getpid())
    except OSError:
        return False


def refusals(service: Any, held: Held) -> Iterator[str]:
    for one in services_in(service):
        if hasattr(one, "refusals"):
            yield from one.refusals(held)


# ── endpoints that are served ───────────────────────────────────────────────────────────────────


class ReusedPort(tcp.Port):
    """A TCP port that others of this user may listen on, too: the kernel hands connections out."""

    def createInternetSocket(self) -> socket.socket:
        made: socket.socket = super().createInternetSocket()  # type: ignore[no-untyped-call]
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return made


class _Exchangeable(ServerFactory):
    """A factory that builds with the newest of several TLS factories; connections stay."""

    noisy = False

    def __init__(self, first: Any) -> None:
        self._first = first  # its start and end are those of the server's factory
        self.newest = first

    def logPrefix(self) -> str:
        return str(self._first.logPrefix())

    def doStart(self) -> None:
        self._first.doStart()
        super().doStart()  # type: ignore[no-untyped-call]

    def doStop(self) -> None:
        self._first.doStop()
        super().doStop()  # type: ignore[no-untyped-call]

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return self.newest.buildProtocol(addr)


class ServedEndpoint:
    """An endpoint that listens; its certificates can be read again while it does."""

    def __init__(self, reactor: Any, description: str, *, reused: bool = False) -> None:
        self.description = description
        self._reactor = reactor
        self._reused = reused
        self._tls: _Exchangeable | None = None
        self._factory: Any = None

    def listen(self, factory: Any) -> Deferred[IListeningPort]:
        self._factory = factory
        return ask(self.description, factory, self._serve, self._reactor)

    def _serve(self, wanted: Wanted) -> Any:
        factory = self._secured(wanted)
        if wanted.tls is not None or tls_directory(self.description) is not None:
            factory = self._tls = _Exchangeable(factory)
        if not self._reused or wanted.kind != "tcp":
            return wanted._replace(factory=factory).listen(self._reactor)
        (backlog,) = wanted.rest
        port: Any = ReusedPort(wanted.where, factory, backlog, wanted.interface, self._reactor)
        port.startListening()
        return port

    def _secured(self, wanted: Wanted) -> Any:
        factory = wanted.factory
        directory = tls_directory(self.description)
        proxied = isinstance(factory, HAProxyWrappingFactory)
        if proxied:
            factory = factory.wrappedFactory
        if wanted.tls is not None:
            factory = tls_with(wanted.tls, factory)
        elif directory is not None:
            factory = TlsFactory(FromDirectory(directory), factory)
        return cast(Any, Proxied)(factory) if proxied else factory

    def reread(self, title: str) -> Iterator[Change]:
        """Read certificates and keys again for connections that begin later."""
        tls = self._tls
        if tls is None:
            return
        again: list[Any] = []
        check_directory(self.description)  # what it names may serve other endpoints, too
        try:
            _check_key(self.description)
            ask(self.description, self._factory, lambda one: again.append(self._secured(one)))
        except Exception as error:
            why = file_trouble(error)
            raise ConfigurationError(f"{title}: {self.description}: {why}") from None

        def apply() -> None:
            (tls.newest,) = again

        what = f"{title}: certificates of {self.description}"
        yield Change("; ".join([what, *outdated(self.description)]), apply)


# ── behind a proxy ────────────────────────────────────────────────────────────────────────────────


log: Logger = Logger(namespace="twisted_msgproto.net")

FAULT: Final = "proxy"


HEADER_BYTES_MAX: Final = 16 << 10
"""A binary header (version 2) has no more: so large are HAProxy's buffers, and a certificate fits.
The length field would allow 64 KiB, which the ledger does not count.
"""

LENGTH: Final = slice(14, 16)  # of a binary header: its length without the first 16 bytes


class LineParser(V1Parser):
    """Takes the short form of an unknown peer, too, as balancers send it to look whether a server
    is well, and no addresses that are none: they are logged.
    """

    @classmethod
    def parse(cls, line: bytes) -> ProxyInfo:
        info = super().parse(line + b" " if line == b"PROXY UNKNOWN" else line)
        for one in (info.source, info.destination):
            if isinstance(one, IPv4Address | IPv6Address):
                family = socket.AF_INET if isinstance(one, IPv4Address) else socket.AF_INET6
                socket.inet_pton(family, one.host)
                if not 0 <= one.port <= PORT_MOST:
                    raise InvalidProxyHeader
        return info


class ProxiedConnection(HAProxyProtocolWrapper):
    factory: Any
    transport: Any
    _first = b""
    _timer: Any = None  # the call that ends a connection whose header is late

    def makeConnection(self, transport: Any) -> None:
        sessions = self._sessions
        if sessions is not None:
            seconds = sessions.limits["handshake"]
            self._timer = sessions.clock.callLater(seconds, self._refuse, "in time ")
        super().makeConnection(transport)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self._stopTimer()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def _stopTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    def dataReceived(self, data: bytes) -> None:
        if self._proxyInfo is not None:
            self.wrappedProtocol.dataReceived(data)
            return
        if self._parser is None:  # Twisted's reader wants what tells the version in one piece
            self._first = data = self._first + data
            if V1Parser.PROXYSTR.startswith(data) or (
                len(data) < LENGTH.stop and V2Parser.PREFIX.startswith(data[: LENGTH.start - 2])
            ):
                return
            del self._first
            if data.startswith(V1Parser.PROXYSTR):
                self._parser = LineParser()
            elif (
                data.startswith(V2Parser.PREFIX)
                and 16 + int.from_bytes(data[LENGTH]) > HEADER_BYTES_MAX
            ):
                self._refuse()
                return
        ends = self.disconnecting
        try:
            super().dataReceived(data)
        except Exception:
            if self._proxyInfo is not None:  # it is the server's own fault
                raise
            self._refuse()
        else:
            info = self._proxyInfo
            if info is not None:  # the header itself would be kept as long as the connection
                self._proxyInfo = ProxyInfo(b"", info.source, info.destination)
                self._stopTimer()
            elif self.disconnecting and not ends:
                self._refuse()

    @property
    def _sessions(self) -> SessionFactory | None:
        found = self.factory
        while not isinstance(found, SessionFactory | None):  # behind TLS or WebSocket
            found = getattr(found, "wrappedFactory", None) or getattr(found, "sessions", None)
        return found

    def _refuse(self, late: str = "") -> None:
        sessions = self._sessions
        if sessions is not None:
            address = self.transport.getPeer()
            sessions.countFault(FAULT)
            sessions.writeOf(
                log,
                host_of(address),
                "{peer}: closed: it does not {late}begin as a proxy does (PROXY protocol), and this"
                " endpoint is haproxy:",
                reason=FAULT,
                peer=peer_name(address),
                late=late,
            )
        self.transport.abortConnection()


class Proxied(HAProxyWrappingFactory):
    protocol = cast(Any, ProxiedConnection)
    noisy = False

    def buildProtocol(self, addr: IAddress | None) -> Any:
        # Not its address, which is the proxy's: all who wait for their headers would share it.
        return self.protocol(self, self.wrappedFactory.buildProtocol(None))
