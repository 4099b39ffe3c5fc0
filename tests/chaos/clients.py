"""The good clients of chaos, in a process of their own: ``python -m tests.chaos.clients drive``.

Each is a client that comes back by itself and sends one message after another, each another one.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, gatherResults

from tests.tools.five import CLIENTS, SOON, Client, tcp
from tests.tools.processes import PROJECT, begun
from twisted_msgproto.core.errors import MsgprotoError
from twisted_msgproto.lumberjack import encode_json, encode_window
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, MicroMsg2ClientService
from twisted_msgproto.micromsg2.protocol.client import default_proposal

MODULE = "tests.chaos.clients"

PROTOCOLS = ("lumberjack", "micromsg2", "sabc", "umq", "mtl")

PROMPT = {
    **CLIENTS,
    "micromsg2": Client(
        "micromsg2",
        lambda port: MicroMsg2ClientService(
            tcp(port), MicroMsg2ClientFactory(proposal=default_proposal(1)), limits=SOON
        ),
        lambda service, body: service.send("orders", body),
        told=True,
    ),
}
"""The clients; MicroMsg2's asks for an acknowledgement of each message, as it has one in flight."""


class Clients:
    def __init__(self, reactor: Any) -> None:
        self._services: dict[str, Any] = {}
        self._sent = 0

    async def stand(self, name: str, port: int) -> list[float]:
        service = self._services[name] = PROMPT[name].make(port)
        service.startService()
        return []

    async def send(self, name: str, count: int, acknowledged: str) -> list[float]:
        """Send messages, one in flight; return the seconds until each was acknowledged.

        What was acknowledged is appended to the file, a line for each message.
        """
        latencies: list[float] = []
        with Path(acknowledged).open("a") as file:
            while len(latencies) < count:
                self._sent += 1
                body = b'{"of":"%s","n":%d}' % (name.encode(), self._sent)
                began = time.perf_counter()
                try:
                    await PROMPT[name].send(self._services[name], body)
                except MsgprotoError:  # it was told; an application would send it again
                    continue
                latencies.append(time.perf_counter() - began)
                file.write(body.decode() + "\n")
                file.flush()
        return latencies

    async def send_all(self, count: int, acknowledged: str) -> list[float]:
        sending = [
            Deferred.fromCoroutine(self.send(name, count, acknowledged)) for name in self._services
        ]
        return [latency for one in await gatherResults(sending) for latency in one]

    async def connections(self, name: str) -> list[float]:
        return [float(self._services[name].factory.counters["connections_total"])]


def answer(make_clients: Callable[[Any], Any]) -> None:
    """Answer lines ``[VERB, ARGUMENT …]`` until the input ends, as :class:`GoodClients` asks.

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


class GoodClients:
    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", MODULE, "drive"]
        self._process = begun(command, cwd=PROJECT, env=None, stdin=subprocess.PIPE)
        self.acknowledged = directory / f"acknowledged-{id(self)}"
        self.acknowledged.touch()

    def _ask(self, *words: str | int) -> list[float]:
        """Have them do something; return the latencies in seconds, as far as they were measured."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answered: dict[str, Any] = json.loads(line) if line else {"error": "they ended"}
        if "error" in answered:
            raise RuntimeError(f"the clients could not {words}: {answered['error']}")
        latencies: list[float] = answered["latencies"]
        return latencies

    def stand(self, name: str, port: int) -> None:
        """Have a client of this name at the port, whose first message is acknowledged."""
        self._ask("stand", name, port)
        self.send(name, 1)

    def send(self, name: str, count: int) -> list[float]:
        """Send messages one after another; the seconds until each was acknowledged."""
        return self._ask("send", name, count, str(self.acknowledged))

    def send_all(self, count: int) -> list[float]:
        """Have every client that stands send messages, all at the same time."""
        return self._ask("send_all", count, str(self.acknowledged))

    def connections(self, name: str) -> int:
        return int(self._ask("connections", name)[0])

    def told(self) -> set[bytes]:
        return set(self.acknowledged.read_bytes().splitlines())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    answer(Clients)


# ── Load for chaos: a blocking shipper in a thread, which knows exactly what was ack ──

WINDOW = 50

PACE_SECONDS = 0.1
"""Between two windows: a load which a bridge can follow on a busy machine, not a benchmark."""


class Shipper(threading.Thread):
    """Sends numbered documents over Lumberjack, again and again connecting, until told to stop.

    Attributes:
        acknowledged: the documents whose window was acknowledged.
        connections: how often it has connected.
    """

    def __init__(self, name: str, port: int, *, pace: float = PACE_SECONDS) -> None:
        super().__init__(daemon=True, name=f"shipper {name}")
        self._pace = pace
        self._prefix = name
        self._port = port
        self._stop_sending = threading.Event()
        self._progress = threading.Condition()
        self.acknowledged: set[bytes] = set()
        self.connections = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._ship()
        except BaseException as error:
            self.error = error

    def _ship(self) -> None:
        number = 0
        while not self._stop_sending.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), 30) as line:
                    self.connections += 1
                    while not self._stop_sending.is_set():
                        documents = [
                            b'{"shipper":"%s","n":%d}' % (self._prefix.encode(), number + step)
                            for step in range(WINDOW)
                        ]
                        numbers = range(1, WINDOW + 1)
                        line.sendall(encode_window(WINDOW) + encode_json(numbers, documents))
                        self._await_ack(line)
                        number += WINDOW
                        with self._progress:
                            self.acknowledged.update(documents)
                            self._progress.notify_all()
                        self._stop_sending.wait(self._pace)
            except OSError:
                # The gateway is gone; it may take a while until it listens again.
                self._stop_sending.wait(0.1)

    def _await_ack(self, line: socket.socket) -> None:
        heard = b""
        while True:
            octets = line.recv(6 - len(heard))
            if not octets:
                raise ConnectionResetError
            heard += octets
            if len(heard) == 6:
                version, kind, sequence = struct.unpack(">BBI", heard)
                heard = b""
                if sequence:
                    assert (version, kind, sequence) == (0x32, 0x41, WINDOW)
                    return

    def await_more(self, count: int, seconds: float = 60.0) -> None:
        """Wait until ``count`` more documents are acknowledged than now."""
        with self._progress:
            wanted = len(self.acknowledged) + count
            end = time.monotonic() + seconds
            while len(self.acknowledged) < wanted:
                left = end - time.monotonic()
                assert left > 0, f"only {len(self.acknowledged)} acknowledged: {self.error}"
                assert self.error is None, self.error
                self._progress.wait(min(left, 1.0))

    def finish(self) -> None:
        self._stop_sending.set()
        self.join(60)
        assert self.error is None, self.error
