"""Several processes listen on one port: the kernel hands each new connection to one of them.

Every process binds the port for itself, with SO_REUSEPORT.  When a process ends, its socket is gone
and new connections come to the others.  The supervisor binds every port as well, and never listens:
so a port that the system chooses is the same for all, and no other program gets a port while its
processes start again.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

from twisted.internet import tcp
from twisted.internet.error import CannotListenError

from ..trying import BACKLOG, BindingReactor, BoundPort

ONLY_TCP: Final = "several processes share TCP ports only: set processes = 1 in the server's table"
"""This refuses other endpoints: a UNIX socket, or one of systemd, is that of one process."""

USUAL_BACKLOG: Final = 50
"""Twisted's own default."""


class SharedPort(tcp.Port):
    """Listens on a TCP port that other processes of this user may listen on, too."""

    def createInternetSocket(self) -> socket.socket:
        """Return a socket that shares its port; Twisted calls this before it binds."""
        made: socket.socket = super().createInternetSocket()  # type: ignore[no-untyped-call]
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return made


def share_ports(reactor: Any, ports: Sequence[int]) -> None:
    """Let ``reactor`` share the TCP ports that it is told to listen on from now on.

    This is for a process of our own, before anything listens.  ``ports`` are those that the
    supervisor holds, in the servers' order; what listens after them has its own port.
    """
    own = reactor.listenTCP
    left = list(ports)

    def listen_tcp(
        port: int, factory: Any, backlog: int = USUAL_BACKLOG, interface: str = ""
    ) -> Any:
        """Listen on the port that the supervisor holds for this server."""
        if not left:
            return own(port, factory, backlog, interface)
        shared: Any = SharedPort(left.pop(0), factory, backlog, interface, reactor)
        shared.startListening()
        return shared

    reactor.listenTCP = listen_tcp


class _TcpOnly(BindingReactor):
    """Refuses every kind of endpoint that one process alone can have."""

    def listenUNIX(
        self,
        address: str,
        factory: object,
        backlog: int = BACKLOG,
        mode: int = 0o666,
        wantPID: bool = False,
    ) -> BoundPort:
        """Refuse; raises CannotListenError."""
        raise CannotListenError(None, address, OSError(ONLY_TCP))

    def adoptStreamPort(self, fileno: int, addressFamily: int, factory: object) -> BoundPort:
        """Refuse; raises CannotListenError."""
        raise CannotListenError(None, fileno, OSError(ONLY_TCP))


class Shareable(_TcpOnly):
    """Binds nothing, and refuses endpoints that several processes cannot share."""

    def listenTCP(
        self, port: int, factory: object, backlog: int = BACKLOG, interface: str = ""
    ) -> BoundPort:
        """Accept the endpoint."""
        return BoundPort((interface, port))


class HeldPorts(_TcpOnly):
    """Binds every port with SO_REUSEPORT until it is closed, and listens on none.

    Attributes:
        ports: their numbers, in the order of the servers.
    """

    def __init__(self, alone: bool = False) -> None:
        """``alone`` says that only one process listens; it may have other endpoints, too."""
        super().__init__()
        self.ports: list[int] = []
        self._alone = alone

    def listenUNIX(self, address: str, *rest: Any, **settings: Any) -> BoundPort:
        """Leave it to the one process; raises CannotListenError if there are several."""
        return BoundPort(address) if self._alone else super().listenUNIX(address, *rest, **settings)

    def adoptStreamPort(self, fileno: int, *rest: Any) -> BoundPort:
        """Leave it to the one process; raises CannotListenError if there are several."""
        return BoundPort(fileno) if self._alone else super().adoptStreamPort(fileno, *rest)

    def listenTCP(
        self, port: int, factory: object, backlog: int = BACKLOG, interface: str = ""
    ) -> BoundPort:
        """Bind a port; raises CannotListenError."""
        held = socket.socket(socket.AF_INET6 if ":" in interface else socket.AF_INET)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((interface, port))
        except OSError as error:
            held.close()
            raise CannotListenError(interface, port, error) from None
        self.hold(held)
        self.ports.append(held.getsockname()[1])
        return BoundPort(held.getsockname())


__all__ = ["HeldPorts", "Shareable", "SharedPort", "share_ports"]
