"""The good clients of chaos, in a process of their own: ``python -m tests.chaos.clients drive``.

Each is a client that comes back by itself and sends one message after another, each another one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, gatherResults

from tests.tools.five import CLIENTS, SOON, Client, tcp
from twisted_msgproto.cli.benches.idle_peers import Driver, answer
from twisted_msgproto.core.errors import MsgprotoError
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, MicroMsg2ClientService
from twisted_msgproto.micromsg2.protocol import default_proposal

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
    """The verbs that :class:`GoodClients` asks for."""

    def __init__(self, reactor: Any) -> None:
        self._services: dict[str, Any] = {}
        self._sent = 0

    async def stand(self, name: str, port: int) -> list[float]:
        """Have a client of this name at the port."""
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
        """Have every client send messages at the same time."""
        sending = [
            Deferred.fromCoroutine(self.send(name, count, acknowledged)) for name in self._services
        ]
        return [latency for one in await gatherResults(sending) for latency in one]

    async def connections(self, name: str) -> list[float]:
        """How often the client has connected."""
        return [float(self._services[name].factory.counters["connections_total"])]


class GoodClients:
    """The process, asked from outside."""

    def __init__(self, directory: Path) -> None:
        self._driver = Driver(MODULE)
        self.acknowledged = directory / f"acknowledged-{id(self)}"
        self.acknowledged.touch()

    def stand(self, name: str, port: int) -> None:
        """Have a client of this name at the port, whose first message is acknowledged."""
        self._driver.ask("stand", name, port)
        self.send(name, 1)

    def send(self, name: str, count: int) -> list[float]:
        """Send messages one after another; the seconds until each was acknowledged."""
        return self._driver.ask("send", name, count, str(self.acknowledged))

    def send_all(self, count: int) -> list[float]:
        """Have every client that stands send messages, all at the same time."""
        return self._driver.ask("send_all", count, str(self.acknowledged))

    def connections(self, name: str) -> int:
        """How often the client has connected so far."""
        return int(self._driver.ask("connections", name)[0])

    def told(self) -> set[bytes]:
        """The bodies that were acknowledged."""
        return set(self.acknowledged.read_bytes().splitlines())

    def close(self) -> None:
        """End the process."""
        self._driver.close()


if __name__ == "__main__":
    answer(Clients)
