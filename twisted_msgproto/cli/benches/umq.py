"""Measure what UMQ costs: echoed calls beside bare autobahn echoing the same text, and idle
connections.

Both ends are processes of their own; the client process keeps 100 calls in flight over one
connection and prints the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..measuring import Comparison, Figures, Subject, answer_usage

TEXT = "x" * 100
IN_FLIGHT = 100
CALLS = 20_000
MODULE = "twisted_msgproto.cli.benches.umq"


def comparisons(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Yield the rows of UMQ; ``arguments`` are those of ``msgproto bench``."""
    calls = max(IN_FLIGHT, int(CALLS * arguments.scale))
    servers: dict[str, Subject] = {}  # started when first needed; they end with this process

    def echo(kind: str) -> Figures:
        if kind not in servers:
            servers[kind] = Subject(MODULE, "serve", kind)
        before = servers[kind].usage()["cpu"]
        ended = subprocess.run(
            [sys.executable, "-m", MODULE, kind, str(servers[kind].port), str(calls)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
        )
        values = json.loads(ended.stdout)
        spent = servers[kind].usage()["cpu"] - before
        return Figures(calls, values["wall"], values["cpu"] + spent)

    row = f"echo call, {IN_FLIGHT} in flight, one connection"
    beside = "bare autobahn echoing the same text"
    ours, bare = partial(echo, "umq"), partial(echo, "bare")
    yield Comparison(row, beside, "rate", ours, bare, mark=0.6, goal=0.8)
    yield Comparison(f"{row}, CPU of both sides", beside, "cpu", ours, bare, mark=0.6, goal=0.4)


# ── The measured processes ──────────────────────────────────────────────────────────────────────


def serve(kind: str) -> None:
    """Be a server that echoes."""
    from twisted.internet import reactor as installed

    reactor: Any = installed
    factory = _umq_server() if kind == "umq" else _bare_server()
    listening = reactor.listenTCP(0, factory, interface="127.0.0.1", backlog=5000)
    answer_usage(reactor, int(listening.getHost().port))
    reactor.run()


def _umq_server() -> Any:
    from ...umq.protocol.exchange import Request
    from ...umq.protocol.sides import UmqServer, UmqServerFactory

    class Echo(UmqServer):
        def callReceived(self, request: Request) -> str:
            return request.payload

    factory = UmqServerFactory()
    factory.protocol = Echo
    return factory


def _bare_server() -> Any:
    from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol

    class Echo(WebSocketServerProtocol):
        def onMessage(self, payload: bytes, isBinary: bool) -> None:
            self.sendMessage(payload, isBinary)  # type: ignore[no-untyped-call]

    factory = WebSocketServerFactory()
    factory.protocol = Echo
    return factory


def drive(kind: str, port: int, calls: int) -> None:
    """Be a client: keep calls in flight until all are answered, print the seconds."""
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import TCP4ClientEndpoint

    reactor: Any = installed
    sent = answered = 0
    began = (0.0, 0.0)

    def begin(send: Any) -> None:
        nonlocal began, sent
        began = (time.perf_counter(), time.process_time())
        sent = min(IN_FLIGHT, calls)
        for _ in range(sent):
            send()

    def heard(send: Any) -> None:
        nonlocal answered, sent
        answered += 1
        if sent < calls:
            sent += 1
            send()
        elif answered == calls:
            wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
            print(json.dumps({"wall": wall, "cpu": cpu}), flush=True)
            os._exit(0)  # no closing hand-shake: it is no part of the work

    factory = (_umq_client if kind == "umq" else _bare_client)(port, begin, heard)
    TCP4ClientEndpoint(reactor, "127.0.0.1", port).connect(factory).addErrback(_failed)
    reactor.run()


def _failed(why: object) -> None:
    """A measured client without its server has nothing to say."""
    from twisted.internet import reactor

    if reactor.running:
        print(f"the connection failed: {why}", file=sys.stderr, flush=True)
        os._exit(1)


def _umq_client(port: int, begin: Any, heard: Any) -> Any:
    from twisted.internet.protocol import connectionDone
    from twisted.python.failure import Failure

    from ...umq.protocol.exchange import Reply
    from ...umq.protocol.sides import UmqClient, UmqClientFactory

    class Caller(UmqClient):
        def sessionEstablished(self) -> None:
            begin(self.send)

        def send(self) -> None:
            self.call(TEXT).addCallbacks(self.answered, _failed)

        def answered(self, reply: Reply) -> None:
            assert reply.payload == TEXT
            heard(self.send)

        def connectionLost(self, reason: Failure = connectionDone) -> None:
            super().connectionLost(reason)
            _failed(reason.getErrorMessage())

    factory = UmqClientFactory(f"ws://127.0.0.1:{port}/")
    factory.protocol = Caller
    return factory


def _bare_client(port: int, begin: Any, heard: Any) -> Any:
    from autobahn.twisted.websocket import WebSocketClientFactory, WebSocketClientProtocol

    text = TEXT.encode()

    class Caller(WebSocketClientProtocol):
        def onOpen(self) -> None:
            begin(self.send)

        def send(self) -> None:
            self.sendMessage(text)  # type: ignore[no-untyped-call]

        def onMessage(self, payload: bytes, isBinary: bool) -> None:
            assert payload == text
            heard(self.send)

        def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
            _failed(f"{code} {reason}")

    factory = WebSocketClientFactory(f"ws://127.0.0.1:{port}/")
    factory.protocol = Caller
    return factory


def idle_octets(kind: str, connections: int = 1000) -> float:
    """Return the octets of resident memory that one idle connection costs a server of ``kind``."""
    import asyncio

    async def open_all(port: int) -> list[Any]:
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        head = (
            f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        opened = []
        for _ in range(connections):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            await reader.readuntil(b"\r\n\r\n")
            if kind == "umq":
                writer.write(b"\x81\x83\0\0\0\0H1:")
                await reader.readexactly(5)
            opened.append(writer)
        return opened

    async def measure(server: Subject) -> float:
        first = await open_all(server.port)
        before = server.usage()["resident"]
        second = await open_all(server.port)
        after = server.usage()["resident"]
        for writer in first + second:
            writer.close()
        return float(after - before) / connections

    server = Subject(MODULE, "serve", kind)
    try:
        return asyncio.run(measure(server))
    finally:
        server.close()


def main(words: list[str]) -> None:
    """Run ``serve KIND``, ``idle``, or ``KIND PORT CALLS``."""
    if words[0] == "serve":
        serve(words[1])
    elif words[0] == "idle":
        figures = {kind: round(idle_octets(kind)) for kind in ("umq", "bare")}
        print(json.dumps(figures), flush=True)
    else:
        drive(words[0], int(words[1]), int(words[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
