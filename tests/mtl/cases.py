"""Servers and clients of MTL in trial's reactor, on real sockets.

Clients that speak ZMTP by hand and never end a message.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import pytest
import zmq
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.trial.unittest import TestCase

from tests.mtl.plain import PATIENCE_MS
from twisted_msgproto import MessageBatch, testing
from twisted_msgproto.mtl import (
    CurveClient,
    CurveServer,
    MtlClient,
    MtlClientFactory,
    MtlServer,
    MtlServerFactory,
)
from twisted_msgproto.mtl.zeromq import sockets

reactor: Any = installed

LOOPBACK = "tcp://127.0.0.1:*"
QUICK = {"heartbeat": 0.05, "liveness": 0.4, "login-delay": 0.01}
IMPATIENT = {"request-timeout": 0.2, "heartbeat": 0.05, "liveness": 0.4}


class HeldSink(testing.HeldSink):
    """A sink that has everything safe ``at_once``, or when the test says so."""

    def __init__(self, at_once: bool = True) -> None:
        super().__init__()
        self.at_once = at_once

    def put(self, batch: MessageBatch) -> Deferred[int | None]:
        safe = super().put(batch)
        if self.at_once:
            self.release()
        return safe

    def release_all(self) -> None:
        """Everything is safe, from now on at once."""
        self.at_once = True
        self.release()

    @property
    def bodies(self) -> list[bytes | None]:
        return [message.body for message in self.messages]


class Recorded:
    """Real sockets for a server, as its argument ``sockets``.

    Attributes:
        routers: those that it has made: for control, and for data.
        reads: for each of them the messages of each read.
        paused: how often reading was paused.
    """

    def __init__(self) -> None:
        self.routers: list[Any] = []
        self.reads: list[list[list[list[bytes]]]] = []
        self.paused = 0

    def __call__(self, clock: Any) -> sockets.Sockets:
        real = sockets.Sockets(clock)
        make = real.router

        def router(received: Any, bounds: Any, **options: Any) -> Any:
            reads: list[list[list[bytes]]] = []

            def noted(messages: list[list[bytes]], peers: Any) -> None:
                reads.append(messages)
                received(messages, peers)

            made = make(noted, bounds, **options)
            pause = made.pauseProducing

            def paused() -> None:
                self.paused += 1
                pause()

            made.pauseProducing = paused
            self.routers.append(made)
            self.reads.append(reads)
            return made

        real.router = router  # type: ignore[method-assign]
        return real


def later(seconds: float) -> Deferred[None]:
    waited: Deferred[None] = Deferred()
    reactor.callLater(seconds, waited.callback, None)
    return waited


async def until(condition: Callable[[], object]) -> None:
    """Go on when it is so; trial's own time-out fails the test if it never is."""
    while not condition():
        await later(0.005)


def taking(got: list[bytes], reader: Callable[[], Any]) -> Callable[[Any], None]:
    """Keep what a reader gets, and confirm it."""

    def received(content: Any) -> None:
        got.append(content.body)
        reader().confirm(content.sequence)

    return received


def run(test: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], Deferred[None]]:
    """Let trial wait for a coroutine."""

    def method(self: Any) -> Deferred[None]:
        return ensureDeferred(test(self))

    method.__name__, method.__doc__ = test.__name__, test.__doc__
    return method


def curve_keys() -> tuple[CurveServer, CurveClient]:
    """Keys of a server and of the one client that it lets in."""
    public, secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    return (
        CurveServer(secret, {client_public: "robot"}),
        CurveClient(public, client_public, client_secret),
    )


def keyed(keys: CurveClient) -> Callable[[Any], None]:
    """Prepare sockets of a plain client."""

    def prepare(socket: Any) -> None:
        socket.curve_serverkey, socket.curve_publickey = keys.server, keys.public
        socket.curve_secretkey = keys.secret

    return prepare


class MtlCase(TestCase):
    timeout = 60

    def server(
        self,
        sink: Any = None,
        *,
        listen: Iterable[str] = (LOOPBACK,),
        data: str | None = LOOPBACK,
        protocol: type[MtlServer] = MtlServer,
        limits: dict[str, object] | None = None,
        **options: Any,
    ) -> MtlServerFactory:
        factory = MtlServerFactory(sink, limits={**QUICK, **(limits or {})}, **options)
        factory.protocol = protocol  # type: ignore[assignment]
        factory.listen(list(listen), data)
        self.addCleanup(factory.drain)
        return factory

    def client(
        self, address: str, limits: dict[str, object] | None = None, **options: Any
    ) -> MtlClient:
        limits = {"heartbeat": 0.05, "liveness": 2.0, **(limits or {})}
        client = MtlClientFactory(limits=limits, **options).buildClient(address)
        self.addCleanup(client.close)
        return client

    async def ready(self, factory: MtlServerFactory, profile: str, **options: Any) -> MtlClient:
        client = self.client(factory.addresses[0], **options)
        await client.open("host")
        await client.profile(profile)
        return client


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO tells what came: Linux")

GREETING = (b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0")).ljust(64, b"\0")
PROPERTY = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = b"\x05READY" + PROPERTY
HELLO = GREETING + b"\x04" + bytes([len(READY)]) + READY


def frame(nbytes: int) -> bytes:
    """A frame of so many bytes after which another one comes."""
    if nbytes < 256:
        return b"\x01" + bytes([nbytes]) + bytes(nbytes)
    return b"\x03" + struct.pack(">Q", nbytes) + bytes(nbytes)


def always() -> bool:
    """It goes on until the server ends it."""
    return True


def join(host: str, port: int) -> socket.socket:
    """A connection whose hand-shake is over: libzmq wants nothing before that."""
    connection = socket.create_connection((host, port), PATIENCE_MS / 1000)
    connection.sendall(HELLO)
    heard = b""
    while b"ROUTER" not in heard:
        octets = connection.recv(1000)
        assert octets, heard
        heard += octets
    return connection


def until_cut_off(host: str, port: int, nbytes: int, going: Callable[[], bool] = always) -> int:
    """Send a message of such frames that never ends until the server closes the connection.

    Return what was sent, also when it is ``going`` no more.  What is in the kernel of either side
    when the server closes may never be taken, so this looks for the end and not for a reset.
    """
    some = memoryview(frame(nbytes) * max(1, 65_536 // (nbytes + 2)))
    sent = 0
    with join(host, port) as connection, suppress(ConnectionError):
        connection.setblocking(False)
        while going():
            readable, writable, _ = select.select([connection], [connection], [], 0.1)
            if readable and not connection.recv(1000):
                break
            if writable:
                sent += connection.send(some[sent % len(some) :])
    return sent
