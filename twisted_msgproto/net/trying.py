"""Try what a start would do: bind every endpoint of a gateway and let go of it.

With :class:`ReusedPorts` servers listen on ports which other processes listen on, too.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from typing import Any, Final, Protocol, cast, runtime_checkable

from twisted.application.service import IServiceCollection
from twisted.internet import tcp
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IReactorTCP, IReactorUNIX
from twisted.python.failure import Failure
from zope.interface import implementer

from ..core.reasons import cannot_listen

BACKLOG: Final = 1
"""Nobody is accepted, so this is as good as any number."""

PORT_MOST: Final = 65535

USUAL_BACKLOG: Final = 50


@runtime_checkable
class CanBeTried(Protocol):
    """A service that can tell whether it could listen."""

    def refusals(self, reactor: BindingReactor) -> Iterator[str]:
        """Yield a line for each endpoint that it could not listen on.

        What is bound for it stays bound until the reactor is closed, so that an endpoint that is
        given twice is found.
        """


class Closable(Protocol):
    """Bound to an address until it is closed."""

    def close(self) -> object:
        """Let go of the address."""


@implementer(IListeningPort)
class BoundPort:
    """A socket that is bound, and accepts nobody."""

    def __init__(self, address: object) -> None:
        self._address = address

    def startListening(self) -> None:
        """Do nothing: it was bound by the reactor."""

    def stopListening(self) -> None:
        """Do nothing: the reactor lets go of all."""

    def getHost(self) -> Any:
        return self._address


@implementer(IReactorTCP, IReactorUNIX)
class BindingReactor:
    """Binds sockets where a reactor would listen, and holds them until :meth:`close`.

    Only what server endpoints call is here.  A socket that another process passes (``systemd:``)
    is not tried.

    Attributes:
        reuse_ports: TCP ports are bound as by :class:`ReusedPorts`, and not listened on.
    """

    def __init__(self) -> None:
        self.reuse_ports = False
        self._held: list[Closable] = []
        self._files: list[str] = []

    def hold(self, bound: Closable) -> None:
        """Keep ``bound`` until all are let go of."""
        self._held.append(bound)

    def listenTCP(
        self, port: int, factory: object, backlog: int = BACKLOG, interface: str = ""
    ) -> BoundPort:
        """Bind a port as Twisted would; raises CannotListenError."""
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        bound = socket.socket(family)
        try:
            if not 0 <= port <= PORT_MOST:
                raise OSError(f"a port is at most {PORT_MOST}")
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.reuse_ports:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((interface, port))
            if not self.reuse_ports:  # else it would be handed connections of those that serve
                bound.listen(BACKLOG)
        except OSError as error:
            bound.close()
            raise CannotListenError(interface, port, error) from None
        self.hold(bound)
        return BoundPort(bound.getsockname())

    def connectTCP(self, *arguments: object, **settings: object) -> Any:
        """Refuse: nobody connects while endpoints are tried."""
        raise NotImplementedError

    connectUNIX = connectTCP

    def listenSSL(
        self,
        port: int,
        factory: object,
        contextFactory: object,
        backlog: int = BACKLOG,
        interface: str = "",
    ) -> BoundPort:
        return self.listenTCP(port, factory, backlog, interface)

    def listenUNIX(
        self,
        address: str,
        factory: object,
        backlog: int = BACKLOG,
        mode: int = 0o666,
        wantPID: bool = False,
    ) -> BoundPort:
        """Bind a UNIX socket, unless somebody listens on it; raises CannotListenError."""
        bound = socket.socket(socket.AF_UNIX)
        self.hold(bound)
        try:
            if wantPID:
                _remove_stale(address)
            bound.bind(address)
        except OSError as error:
            raise CannotListenError(None, address, error) from None
        self._files.append(address)
        bound.listen(BACKLOG)
        return BoundPort(address)

    def adoptStreamPort(self, fileno: int, addressFamily: int, factory: object) -> BoundPort:
        return BoundPort(fileno)

    def close(self) -> None:
        for bound in self._held:
            bound.close()
        for path in self._files:
            os.unlink(path)
        self._held, self._files = [], []


class ReusedPort(tcp.Port):
    """A TCP port that other processes of this user may listen on, too.

    The kernel hands each new connection to one of them.
    """

    def createInternetSocket(self) -> socket.socket:
        """Return a socket that shares its port; Twisted calls this before it binds."""
        made: socket.socket = super().createInternetSocket()  # type: ignore[no-untyped-call]
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return made


class ReusedPorts:
    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def listenTCP(
        self, port: int, factory: Any, backlog: int = USUAL_BACKLOG, interface: str = ""
    ) -> Any:
        """Listen; raises CannotListenError."""
        reused: Any = ReusedPort(port, factory, backlog, interface, self._reactor)
        reused.startListening()
        return reused


def _remove_stale(address: str) -> None:
    """Remove the socket of a process that has ended; OSError if somebody listens on it."""
    try:
        if not stat.S_ISSOCK(os.stat(address).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(address)
        except ConnectionRefusedError:
            os.unlink(address)
            return
    raise OSError("another process listens on it")


def refusals(service: object, reactor: BindingReactor) -> Iterator[str]:
    if isinstance(service, CanBeTried):
        yield from service.refusals(reactor)
    if IServiceCollection.providedBy(service):
        for child in cast(Any, service):
            yield from refusals(child, reactor)


def refusal_of(listening: Deferred[Any]) -> str | None:
    """Return why an endpoint that was tried refuses; None if it does not."""
    failures: list[Failure] = []
    listening.addErrback(failures.append)
    if not failures:
        return None
    error = failures[0].value
    return cannot_listen(getattr(error, "socketError", None) or error)
