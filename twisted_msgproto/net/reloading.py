"""A running gateway reads certificates, keys, rules and tokens again (``reload``).

Every part that has read files can read them again: it yields a :class:`Change` for each, and raises
ConfigurationError for a file that is broken.  All files are read before the first change is made,
so a broken file leaves everything as it was.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol, cast, runtime_checkable

from OpenSSL.crypto import Error as CryptoError
from OpenSSL.SSL import Error as TLSError
from twisted.application.service import IServiceCollection, Service
from twisted.internet import endpoints
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IListeningPort
from twisted.internet.protocol import Factory, ServerFactory
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory

from ..core.errors import ConfigurationError, MsgprotoError
from .proxied import heeding_proxies
from .tls import tls_from_directory, tls_with
from .trying import BindingReactor, BoundPort

log = Logger(namespace="twisted_msgproto.reload")

TERMINAL: Final = "/dev/tty"


class Change(NamedTuple):
    """Something that was read again and is not in force yet.

    Attributes:
        what: names it and its file for people.
        apply: puts it into force; it must not fail.
    """

    what: str
    apply: Callable[[], object]


Reread = Callable[[], Iterable[Change]]
"""It reads files again, and raises ConfigurationError, one line, if a file is broken."""


class Reloaded(NamedTuple):
    """Lists what a reload has done.

    Attributes:
        done: names of what was read again and is in force.
        later: names of what was changed in a file and needs a new start.
    """

    done: list[str]
    later: list[str]


@runtime_checkable
class Rereadable(Protocol):
    """A service that has read files; they may have changed since."""

    def reread(self) -> Iterable[Change]:
        """Read them again; raises ConfigurationError for one that is broken."""


def rereadable(service: object) -> Iterator[Reread]:
    if isinstance(service, Rereadable):
        yield service.reread
    if IServiceCollection.providedBy(service):
        for child in cast(Any, service):
            yield from rereadable(child)


def reload(rereads: Iterable[Reread]) -> list[str]:
    """Read everything again and put it into force; return what that was.

    Raises ConfigurationError with a part for each broken file; then nothing has changed.
    """
    changes: list[Change] = []
    wrong: list[str] = []
    for reread in rereads:
        try:
            changes += reread()
        except (MsgprotoError, OSError) as error:
            wrong.append(str(error))
    if wrong:
        raise ConfigurationError(f"nothing was changed: {'; '.join(dict.fromkeys(wrong))}")
    for change in changes:
        change.apply()
    return [change.what for change in changes]


# ── endpoints with TLS ──────────────────────────────────────────────────────────────────────────


class _Exchangeable(ServerFactory):
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


class _TlsNoting:
    """A reactor for one endpoint that keeps hold of its TLS, whatever kind of string it is.

    ``directory`` is that of the certificates, if the string is ``tls:DIRECTORY``.
    """

    def __init__(self, reactor: Any, directory: str | None) -> None:
        self._reactor = reactor
        self._directory = directory
        self.tls: list[_Exchangeable] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def listenSSL(
        self, port: int, factory: Factory, contextFactory: Any, *rest: Any, **settings: Any
    ) -> Any:
        tls = _Exchangeable(tls_with(contextFactory, heeding_proxies(factory)))
        self.tls.append(tls)
        return self._reactor.listenTCP(port, tls, *rest, **settings)

    def listenTCP(self, port: int, factory: Any, *rest: Any, **settings: Any) -> Any:
        heeding_proxies(factory)
        if self._directory is not None:
            factory = _Exchangeable(_of_directory(self._directory, factory))
            self.tls.append(factory)
        return self._reactor.listenTCP(port, factory, *rest, **settings)


class _ReadingAgain(BindingReactor):
    def __init__(self, directory: str | None) -> None:
        super().__init__()
        self._directory = directory
        self.tls: list[Any] = []

    def listenTCP(
        self, port: int, factory: object, backlog: int = 1, interface: str = ""
    ) -> BoundPort:
        if self._directory is not None:
            self.tls.append(_of_directory(self._directory, heeding_proxies(factory)))
        return BoundPort((interface, port))

    def listenSSL(
        self,
        port: int,
        factory: Any,
        contextFactory: Any,
        backlog: int = 1,
        interface: str = "",
    ) -> BoundPort:
        self.tls.append(tls_with(contextFactory, heeding_proxies(factory)))
        return BoundPort((interface, port))


def _of_directory(directory: str, factory: Any) -> TLSMemoryBIOFactory:
    return tls_from_directory(directory, factory.wrappedFactory)


class ServedEndpoint:
    """Listens where an endpoint string says; its certificates can be read again while it does."""

    def __init__(self, reactor: Any, description: str) -> None:
        self._directory = tls_directory(description)
        self._noting = _TlsNoting(reactor, self._directory)
        self.description = description
        self._factory: Any = None

    def listen(self, factory: Any) -> Deferred[IListeningPort]:
        self._factory = factory
        endpoint = endpoints.serverFromString(self._noting, self.description)
        return cast("Deferred[IListeningPort]", endpoint.listen(factory))

    def reread(self, title: str) -> Iterator[Change]:
        """Read the certificates and keys again; the change is for connections that begin later.

        Raises ConfigurationError that begins with ``title``.
        """
        if not self._noting.tls:
            return
        again = _ReadingAgain(self._directory)
        try:
            endpoint = endpoints.serverFromString(again, self.description)
            check_directory(self.description)
            endpoint.listen(self._factory)
        except Exception as error:
            why = file_trouble(error)
            raise ConfigurationError(f"{title}: {self.description}: {why}") from None

        def apply() -> None:
            for old, new in zip(self._noting.tls, again.tls, strict=True):
                old.newest = new

        yield Change(f"{title}: certificates of {self.description}", apply)


def check_directory(description: str) -> None:
    """Raise ConfigurationError for ``tls:DIRECTORY`` without any certificate that has its key."""
    from twisted.protocols._sni import PEMObjects
    from twisted.python.filepath import FilePath

    directory = tls_directory(description)
    if directory is None:
        return
    if not os.path.isdir(directory):
        raise ConfigurationError(f"there is no directory {directory!r}")
    if not PEMObjects.fromDirectory(FilePath(directory)).inferDomainMapping():
        raise ConfigurationError(
            f"the directory {directory!r} has no file NAME.pem with a certificate and its key"
        )


def tls_directory(description: str) -> str | None:
    """Return the directory of ``tls:DIRECTORY:…``; None for other endpoint strings."""
    match = re.match(r"(?:haproxy:)?tls:((?:[^:\\]|\\.)*)", description)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else None


def file_trouble(error: Exception) -> str:
    if isinstance(error, ConfigurationError):
        return str(error).removeprefix("mtls: ")
    if isinstance(error, OSError):
        return f"cannot read {error.filename}: {error.strerror}"
    if isinstance(error, TLSError | CryptoError):
        return "privateKey or certKey is no PEM file with a key and a certificate"
    return str(error).rstrip(".") or type(error).__name__


# ── the signal ──────────────────────────────────────────────────────────────────────────────────


class ReloadOnHangUp(Service):
    """SIGHUP reloads while this service runs.

    The kernel also sends SIGHUP when the process loses its terminal; that ends the process.
    """

    def __init__(self, reactor: Any, reload: Callable[[], Reloaded]) -> None:
        self._reactor = reactor
        self._reload = reload
        self._before: Any = None
        self._had_terminal = False

    def startService(self) -> None:
        """Set the signal handler; only the main thread can."""
        super().startService()  # type: ignore[no-untyped-call]
        self._had_terminal = has_terminal()
        try:
            self._before = signal.signal(signal.SIGHUP, self._signalled)
        except ValueError:  # another thread: whoever runs this there has the signals
            self._before = None

    def stopService(self) -> None:
        """Restore the signal handler that was set before."""
        super().stopService()  # type: ignore[no-untyped-call]
        before, self._before = self._before, None
        if before is not None:
            signal.signal(signal.SIGHUP, before)

    def _signalled(self, *_: object) -> None:
        self._reactor.callFromThread(self._hang_up)

    def _hang_up(self) -> None:
        if self._had_terminal and not has_terminal():
            log.info("the terminal is gone, so this ends")
            self._reactor.stop()
            return
        try:
            self._reload()
        except MsgprotoError:
            pass  # it is in the log
        except Exception:
            log.failure("the reload failed")


def has_terminal() -> bool:
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def told(done: Iterable[str], later: Iterable[str]) -> Iterator[str]:
    yield from (f"read again: {what}" for what in done)
    yield from (f"changed, and in force after the next start: {what}" for what in later)
