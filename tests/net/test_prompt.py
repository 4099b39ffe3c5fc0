"""What is written promptly has left when the call returns, and nothing is lost if it cannot."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase
from zope.interface import directlyProvides

from twisted_msgproto.net.prompt import prompt_write

MUCH = bytes(range(256)) * (64 << 10)  # 16 MiB: more than all buffers on the way hold


class Server(Protocol):
    """Hands its connection to the test, and its end."""

    def __init__(self, made: Deferred[Any], lost: Deferred[Any]) -> None:
        self.made, self.lost = made, lost

    def connectionMade(self) -> None:
        self.made.callback(self.transport)

    def connectionLost(self, reason: Any = None) -> None:
        self.lost.callback(None)


class Loopback(TestCase):
    """A transport of Twisted's and a plain socket at its other end."""

    async def connected(self) -> tuple[Any, socket.socket]:
        made: Deferred[Any] = Deferred()
        self.lost: Deferred[Any] = Deferred()
        factory = Factory()
        factory.protocol = lambda: Server(made, self.lost)  # type: ignore[assignment,method-assign]
        port: Any = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        peer = socket.create_connection(("127.0.0.1", port.getHost().port))
        self.addCleanup(peer.close)
        transport = await made
        return transport, peer

    async def test_octets_have_left_when_the_call_returns(self) -> None:
        transport, peer = await self.connected()
        prompt_write(transport)(b"ack")
        # No turn of the reactor lies between.
        self.assertEqual(peer.recv(100, socket.MSG_DONTWAIT), b"ack")
        transport.loseConnection()
        await self.lost

    async def test_what_the_system_does_not_take_follows_in_order(self) -> None:
        transport, peer = await self.connected()
        write = prompt_write(transport)
        write(MUCH)
        write(b"last")

        def all_of_it() -> bytes:
            with peer.makefile("rb") as file:
                return file.read()

        transport.loseConnection()
        self.assertEqual(await deferToThread(all_of_it), MUCH + b"last")
        await self.lost

    async def test_nothing_overtakes_what_waits_when_there_is_room_again(self) -> None:
        transport, peer = await self.connected()
        write = prompt_write(transport)
        write(MUCH)
        # No turn of the reactor lies between: the rest of it waits, and the socket takes more.
        start = peer.recv(1 << 20)
        while len(start) < 1 << 20:
            start += peer.recv(1 << 20)
        write(b"last")
        transport.loseConnection()

        def all_of_it() -> bytes:
            with peer.makefile("rb") as file:
                return start + file.read()

        self.assertEqual(await deferToThread(all_of_it), MUCH + b"last")
        await self.lost

    async def test_what_is_written_between_the_wish_to_close_and_the_end_is_sent(self) -> None:
        """As Twisted's own ``write`` does."""
        transport, peer = await self.connected()
        write = prompt_write(transport)
        transport.loseConnection()
        write(b"ack")

        def all_of_it() -> bytes:
            with peer.makefile("rb") as file:
                return file.read()

        self.assertEqual(await deferToThread(all_of_it), b"ack")
        await self.lost

    async def test_a_peer_which_is_gone_ends_the_connection_as_ever(self) -> None:
        transport, peer = await self.connected()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()  # with a reset
        write = prompt_write(transport)
        write(b"into the void")
        write(b"and again")
        await self.lost
        write(b"after the end")

    async def test_what_was_asked_to_close_is_not_closed_within_a_write(self) -> None:
        transport, _ = await self.connected()
        transport.loseConnection()
        prompt_write(transport)(b"too late")
        self.assertFalse(self.lost.called)
        await self.lost

    async def test_tls_writes_as_it_is_used_to(self) -> None:
        """It passes for the socket below it, which has nothing to write yet."""
        transport, _ = await self.connected()
        directlyProvides(transport, ISSLTransport)
        self.assertEqual(prompt_write(transport), transport.write)
        transport.loseConnection()
        await self.lost
