"""Measure what a message costs beside idle peers: CPU time with 100 and 1,000 of them beside one.

Three server processes (one for each number of peers) serve all five protocols; another process
keeps the idle sessions and sends the messages.  Only one protocol has sessions at a time, and
heartbeats are off: what is measured is what one peer's message costs, not what idle peers send.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from twisted_msgproto.registry import PROTOCOLS

from ..measuring import Comparison, Figures, Row, Subject, answer_usage
from .idle import SPARE_FILES, need_files

MODULE = "twisted_msgproto.cli.benches.idle_peers"
MESSAGES = 1_000
IN_FLIGHT = 10
CONNECTING = 50
"""This many sessions begin at the same time."""
TIMES = (100, 1_000)
MARK = 1.5
"""With more idle peers a message may cost this many times what it costs with one."""

FILES_A_PEER = 8
"""The process of the clients opens this many files for one client: ZeroMQ has several
descriptors a socket.
"""

QUIET_SECONDS = 36_000.0
QUIET = {"heartbeat": QUIET_SECONDS, "liveness": 2 * QUIET_SECONDS}
"""These are MTL's limits without heartbeats."""


class Servers:
    """Holds the processes, started when first needed."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._subjects: dict[int, Subject] = {}
        self._driver: Driver | None = None

    def count(self, times: int) -> int:
        """Return how many idle peers there are for ``times`` 1, at this run's scale."""
        return max(1, int(times * min(1.0, self._scale))) if times > 1 else 1

    def run(self, protocol: str, times: int) -> Figures:
        """Return one peer's messages beside the idle ones; what that cost the server."""
        if self._driver is None:
            need_files(sum(map(self.count, TIMES)) * FILES_A_PEER + SPARE_FILES)
            self._driver = Driver()
        server = self._subjects.get(times)
        if server is None:
            server = self._subjects[times] = Subject(MODULE, "serve")
        messages = max(IN_FLIGHT, int(MESSAGES * self._scale))
        port = server.usage()["ports"][protocol]
        self._driver.ask("stand", protocol, port, self.count(times))
        driver = self._driver
        return server.measure(messages, lambda: driver.ask("send", protocol, port, messages))

    def close(self) -> None:
        """End all of them."""
        if self._driver is not None:
            self._driver.close()
        for server in self._subjects.values():
            server.close()


class Driver:
    """Runs the process of the clients, ``python -m MODULE drive``: asked with a line, it answers
    with a line when it is done (see :func:`answer`).
    """

    def __init__(self, module: str = MODULE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "drive"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, *words: str | int) -> list[float]:
        """Have it do something; return the latencies in seconds, as far as they were measured."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        line = self._process.stdout.readline()
        answered: dict[str, Any] = json.loads(line) if line else {"error": "they ended"}
        if "error" in answered:
            raise RuntimeError(f"the clients could not {words}: {answered['error']}")
        latencies: list[float] = answered["latencies"]
        return latencies

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield two rows a protocol; ``arguments`` are those of ``msgproto bench``."""
    with closing(Servers(arguments.scale)) as servers:

        def work(protocol: str, times: int) -> Callable[[], Figures]:
            return lambda: servers.run(protocol, times)

        for protocol in PROTOCOLS:
            for times in TIMES:
                yield Comparison(
                    f"growth, idle peers × {times:,}, {protocol}",
                    "the same with one",
                    "cpu",
                    work(protocol, times),
                    work(protocol, 1),
                    mark=MARK,
                )


# ── The server's process ────────────────────────────────────────────────────────────────────────


def listen(reactor: Any, sink: Any, **settings: Any) -> dict[str, int]:
    """Serve all five protocols over one sink; ``settings`` go to each factory.  Return the
    ports.
    """
    from twisted_msgproto.lumberjack import LumberjackServerFactory
    from twisted_msgproto.micromsg2 import MicroMsg2ServerFactory
    from twisted_msgproto.mtl import MtlServerFactory
    from twisted_msgproto.mtl.zeromq import port_of
    from twisted_msgproto.sabc import SabcServerFactory
    from twisted_msgproto.umq import UmqServerFactory

    factories: dict[str, Any] = {
        "lumberjack": LumberjackServerFactory(sink, **settings),
        "micromsg2": MicroMsg2ServerFactory(sink, **settings),
        "sabc": SabcServerFactory(sink, **settings),
        "umq": UmqServerFactory(sink, **settings),
    }
    ports: dict[str, int] = {}
    for name, factory in factories.items():
        listening = reactor.listenTCP(0, factory, interface="127.0.0.1", backlog=5000)
        ports[name] = int(listening.getHost().port)
    mtl = MtlServerFactory(sink, limits={**QUIET, "session-idle": QUIET_SECONDS}, **settings)
    ports["mtl"] = port_of(mtl.listen(["tcp://127.0.0.1:*"], "tcp://127.0.0.1:*")[0])
    return ports


def serve() -> None:
    """Serve all five protocols with a sink that is safe at once."""
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred, succeed
    from zope.interface import implementer

    from twisted_msgproto.core.message import MessageBatch
    from twisted_msgproto.net.sink import IMessageSink

    reactor: Any = installed
    need_files(TIMES[-1] * FILES_A_PEER + SPARE_FILES)

    @implementer(IMessageSink)
    class SafeSink:
        def put(self, batch: MessageBatch) -> Deferred[int | None]:
            return succeed(None)

    ports = listen(reactor, SafeSink())
    answer_usage(reactor, ports["sabc"], lambda: {"ports": ports})
    reactor.run()


# ── The clients' process ────────────────────────────────────────────────────────────────────────


class Session(NamedTuple):
    """Is a client's session: ``send()`` fires when one message is acknowledged."""

    send: Callable[[], Awaitable[Any]]
    close: Callable[[], object]


async def _lumberjack(reactor: Any, port: int) -> Session:
    from twisted.internet.endpoints import HostnameEndpoint

    from twisted_msgproto.lumberjack import LumberjackClientFactory

    factory = LumberjackClientFactory(window=1, pipelining=IN_FLIGHT, compress=0)
    client: Any = await HostnameEndpoint(reactor, "127.0.0.1", port).connect(factory)
    return Session(lambda: client.send(b'{"message": "x"}'), client.transport.abortConnection)


async def _micromsg2(reactor: Any, port: int) -> Session:
    from twisted.internet.endpoints import HostnameEndpoint

    from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory
    from twisted_msgproto.micromsg2.protocol import default_proposal

    factory = MicroMsg2ClientFactory(proposal=default_proposal(1))
    client: Any = await HostnameEndpoint(reactor, "127.0.0.1", port).connect(factory)
    await client.whenEstablished()
    return Session(lambda: client.send("orders", b"x"), client.transport.abortConnection)


async def _sabc(reactor: Any, port: int) -> Session:
    from twisted_msgproto.sabc import connect

    client: Any = await connect(reactor, f"tcp:127.0.0.1:{port}")
    return Session(lambda: client.request(b"x"), client.transport.abortConnection)


async def _umq(reactor: Any, port: int) -> Session:
    from twisted_msgproto.umq import connect

    client: Any = await connect(reactor, f"ws://127.0.0.1:{port}/")
    return Session(lambda: client.call("x"), client.transport.abortConnection)


async def _mtl(reactor: Any, port: int) -> Session:
    from twisted_msgproto.mtl import MtlClient

    client = MtlClient(
        f"tcp://127.0.0.1:{port}", limits=QUIET, sockets=lambda clock: _Shared(reactor)
    )
    await client.open("bench")
    await client.profile("ingest")
    writer: Any = await client.writer(["bench"])
    return Session(lambda: writer.send("bench", b"x"), client.close)


class _Shared:
    """Holds one client's sockets, of a context that all clients share, because each context has
    threads.
    """

    _sockets: Any = None

    def __init__(self, reactor: Any) -> None:
        import zmq

        from twisted_msgproto.mtl.zeromq import Sockets

        if _Shared._sockets is None:
            _Shared._sockets = Sockets(reactor)
            _Shared._sockets._factory.context.set(zmq.MAX_SOCKETS, TIMES[-1] * FILES_A_PEER)
        self._made: list[Any] = []

    def dealer(self, received: Any, bounds: Any, curve: Any) -> Any:
        self._made.append(_Shared._sockets.dealer(received, bounds, curve))
        return self._made[-1]

    def shutdown(self) -> None:
        for socket in self._made:
            socket.shutdown()


OPENERS: dict[str, Callable[[Any, int], Awaitable[Session]]] = {
    "lumberjack": _lumberjack,
    "micromsg2": _micromsg2,
    "sabc": _sabc,
    "umq": _umq,
    "mtl": _mtl,
}


class Standing:
    """Holds the sessions: one that sends and the idle ones, at each server's port."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._protocol = ""
        self._at: dict[int, list[Session]] = {}

    async def stand(self, protocol: str, port: int, idle: int) -> None:
        """Have ``idle`` sessions at ``port`` and one that sends; others' protocols have none."""
        if protocol != self._protocol:
            for session in (one for sessions in self._at.values() for one in sessions):
                session.close()
            self._protocol, self._at = protocol, {}
        sessions = self._at.setdefault(port, [])
        await _together(CONNECTING, idle + 1 - len(sessions), lambda: self._open(port, sessions))

    async def _open(self, port: int, sessions: list[Session]) -> None:
        sessions.append(await OPENERS[self._protocol](self._reactor, port))

    async def send(self, protocol: str, port: int, messages: int) -> None:
        """Send messages with one of the sessions, some at a time."""
        await _together(IN_FLIGHT, messages, self._at[port][0].send)


async def _together(most: int, count: int, do: Callable[[], Awaitable[Any]]) -> None:
    """Do it ``count`` times, ``most`` at the same time."""
    from twisted.internet.defer import Deferred, gatherResults

    left = max(0, count)

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await do()

    await gatherResults([Deferred.fromCoroutine(some()) for _ in range(most)], consumeErrors=True)


def drive() -> None:
    """Be the clients: lines ``["stand" | "send", PROTOCOL, PORT, COUNT]``, each answered."""
    need_files(sum(TIMES) * FILES_A_PEER + SPARE_FILES)
    answer(Standing)


def answer(make_clients: Callable[[Any], Any]) -> None:
    """Answer lines ``[VERB, ARGUMENT …]`` until the input ends, as a :class:`Driver` asks.

    ``make_clients(reactor)`` has the verbs: coroutines that return latencies in seconds, or None.
    """
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred
    from twisted.internet.protocol import connectionDone
    from twisted.internet.stdio import StandardIO
    from twisted.protocols.basic import LineOnlyReceiver
    from twisted.python.failure import Failure

    reactor: Any = installed
    clients = make_clients(reactor)

    class Asked(LineOnlyReceiver):
        delimiter = b"\n"

        def lineReceived(self, line: bytes) -> None:
            word, *arguments = json.loads(line)
            done = Deferred.fromCoroutine(getattr(clients, word)(*arguments))
            done.addCallbacks(self._done, self._failed)

        def _done(self, latencies: list[float] | None) -> None:
            self._say({"latencies": latencies or []})

        def _failed(self, failure: Failure) -> None:
            self._say({"error": f"{type(failure.value).__name__}: {failure.getErrorMessage()}"})

        def _say(self, values: dict[str, Any]) -> None:
            self.sendLine(json.dumps(values).encode())  # type: ignore[no-untyped-call]

        def connectionLost(self, reason: Failure = connectionDone) -> None:
            if reactor.running:
                reactor.stop()

    StandardIO(Asked(), reactor=reactor)
    reactor.run()


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else drive()
