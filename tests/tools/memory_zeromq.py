"""ZeroMQ's sockets in memory: whole messages, in order, a turn of the clock later."""

from __future__ import annotations

import errno
from typing import Any

import zmq

from twisted_msgproto.mtl.machine.flows import Peer, connection_name


class Network:
    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.routers: dict[str, Router] = {}
        self.identities = 0
        self.away = False  # what is sent gets lost
        self.full = False  # the system has no more sockets

    def sockets(self, host: str = "192.0.2.1") -> Any:
        return lambda clock: Sockets(self, host)


class Socket:
    """What both kinds have: an inbox, which waits while reading is paused."""

    def __init__(self, network: Network, received: Any) -> None:
        self.network = network
        self.received = received
        self.inbox: list[tuple[list[bytes], str]] = []
        self.paused = self.woken = self.closed = False
        self.sent_bytes = self.unread = self.unreadBytes = 0
        self.trouble = ""

    def arrive(self, parts: list[bytes], host: str) -> None:
        self.inbox.append((parts, host))
        self.wake()

    def wake(self) -> None:
        if not self.woken and not self.paused and not self.closed:
            self.woken = True
            self.network.clock.callLater(0, self.doRead)

    def doRead(self) -> None:
        self.woken = False
        if self.inbox and not self.paused and not self.closed:
            inbox, self.inbox = self.inbox, []
            self.deliver(inbox)

    def deliver(self, inbox: list[tuple[list[bytes], str]]) -> None:
        self.received([parts for parts, _ in inbox])

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        self.wake()


class Router(Socket):
    def __init__(self, network: Network, received: Any, lost: Any, leaving: Any, left: Any) -> None:
        super().__init__(network, received)
        self.lost = lost
        self.leaving = leaving
        self.left = left
        self.dealers: dict[bytes, Dealer] = {}
        self.ended: list[bytes] = []

    def bind(self, address: str) -> str:
        self.network.routers[address] = self
        return address

    def deliver(self, inbox: list[tuple[list[bytes], str]]) -> None:
        peers = {parts[0]: Peer(host) for parts, host in inbox}
        self.received([parts for parts, _ in inbox], peers)

    def doRead(self) -> None:
        super().doRead()
        if self.ended and not self.paused and not self.closed:
            ended, self.ended = self.ended, []
            self.left(ended)

    def leave(self, name: bytes) -> None:
        """The connection of this name ends; what it has sent is read first."""
        if self.dealers.pop(name, None) is not None:
            self.leaving(name)
            self.ended.append(name)
            self.wake()

    def peerMovedAt(self, peer: bytes) -> float:
        return 0.0

    def sendAll(self, messages: list[list[bytes]]) -> None:
        for name, *frames in messages:
            dealer = self.dealers.get(name)
            if dealer is not None:
                dealer.arrive(frames, "")

    def shutdown(self) -> None:
        self.closed = True


class Dealer(Socket):
    def __init__(self, network: Network, received: Any, host: str) -> None:
        super().__init__(network, received)
        self.host = host
        network.identities += 1
        identity = b"\0" + network.identities.to_bytes(4, "big")
        self.name = connection_name(identity, network.identities)

    def connect(self, address: str) -> None:
        self.router = self.network.routers[address]
        self.router.dealers[self.name] = self

    def takenAt(self, now: float) -> float:
        return 0.0

    def sendAll(self, messages: list[list[bytes]]) -> None:
        for frames in messages:
            self.sent_bytes += sum(map(len, frames))
            if not self.router.closed and not self.network.away:
                self.router.arrive([self.name, *frames], self.host)

    def shutdown(self) -> None:
        self.closed = True
        self.router.leave(self.name)


class Sockets:
    """What :class:`twisted_msgproto.mtl.zeromq.sockets.Sockets` is to a server and to a client."""

    def __init__(self, network: Network, host: str) -> None:
        self._network = network
        self._host = host
        self.made: list[Any] = []

    def router(
        self, received: Any, bounds: Any, *, lost: Any, leaving: Any, left: Any, **options: Any
    ) -> Router:
        self.made.append(Router(self._network, received, lost, leaving, left))
        return self.made[-1]  # type: ignore[no-any-return]

    def admit(self, admission: Any, curve: Any, keys: Any) -> None:
        """Whoever comes may connect."""

    def dealer(self, received: Any, bounds: Any, curve: Any) -> Dealer:
        if self._network.full:
            raise zmq.ZMQError(errno.EMFILE)
        self.made.append(Dealer(self._network, received, self._host))
        return self.made[-1]  # type: ignore[no-any-return]

    def shutdown(self) -> None:
        for socket in self.made:
            socket.shutdown()
