"""A gateway of all five protocols, and a client of each that comes back by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString

from twisted_msgproto.lumberjack import LumberjackClientFactory, LumberjackClientService
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, MicroMsg2ClientService
from twisted_msgproto.mtl import MtlClientFactory, MtlClientService
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.sabc import SabcClientFactory, SabcClientService
from twisted_msgproto.umq import UmqClientFactory, UmqClientService

reactor: Any = installed

SOON: dict[str, object] = {"retry-first": 0.1, "retry-most": 1.0, "waiting-seconds": 600.0}
"""A killed server is back soon, and this machine may be busy."""


@dataclass(frozen=True)
class Client:
    """One of those whose server is killed.

    Attributes:
        server: the name of its server.
        nth: the address of that server at which it is.
        make: its service, for a port.
        send: one message.
        told: whether it may hear that a message was on its way when the connection was lost.
    """

    server: str
    make: Callable[[int], Any]
    send: Callable[[Any, bytes], Deferred[Any]]
    told: bool
    nth: int = 1


def tcp(port: int) -> Any:
    return clientFromString(reactor, f"tcp:127.0.0.1:{port}")


def micromsg2(port: int) -> Any:
    return MicroMsg2ClientService(tcp(port), MicroMsg2ClientFactory(), limits=SOON)


CLIENTS = {
    # LJ-15: events are kept; nobody is told of anything but their acknowledgement.
    "lumberjack": Client(
        "lumberjack",
        lambda port: LumberjackClientService(tcp(port), LumberjackClientFactory(), limits=SOON),
        lambda service, body: service.send(body),
        told=False,
    ),
    # MM-19
    "micromsg2": Client(
        "micromsg2",
        micromsg2,
        lambda service, body: service.send("orders", body),
        told=True,
    ),
    "micromsg2, safe": Client(
        "micromsg2",
        micromsg2,
        lambda service, body: service.send("orders", body, safe=True),
        told=False,
    ),
    # SA-16
    "sabc": Client(
        "sabc",
        lambda port: SabcClientService(tcp(port), SabcClientFactory(), limits=SOON),
        lambda service, body: service.request(body, timeout=600),
        told=True,
    ),
    # SA-16, SA-25
    "sabc over WebSocket, safe": Client(
        "sabc",
        lambda port: SabcClientService(
            tcp(port), SabcClientFactory(), url=f"ws://127.0.0.1:{port}/", limits=SOON
        ),
        lambda service, body: service.request(body, timeout=600, safe=True),
        told=False,
        nth=2,
    ),
    # UM-19
    "umq": Client(
        "umq",
        lambda port: UmqClientService(
            tcp(port), UmqClientFactory(f"ws://127.0.0.1:{port}/"), limits=SOON
        ),
        lambda service, body: service.call(body.decode(), timeout=600),
        told=True,
    ),
    # MT-28: contents are kept; nobody is told of anything but their Confirm.
    "mtl": Client(
        "mtl",
        lambda port: MtlClientService(
            f"tcp://127.0.0.1:{port}",
            MtlClientFactory(
                "host",
                "ingest",
                limits={"request-timeout": 1.0, "heartbeat": 0.5, "liveness": 1.5},
            ),
            limits=SOON,
        ),
        lambda service, body: service.send("events", body),
        told=False,
    ),
}

SERVERS = """
[queue]
directory = "{queue}"
[lumberjack]
endpoint = ["tcp:{lumberjack}:interface=127.0.0.1"]
[micromsg2]
endpoint = ["tcp:{micromsg2}:interface=127.0.0.1"]
[sabc]
endpoint = ["tcp:{sabc}:interface=127.0.0.1"]
websocket = ["tcp:{websocket}:interface=127.0.0.1"]
[umq]
endpoint = ["tcp:{umq}:interface=127.0.0.1"]
[mtl]
endpoint = ["tcp://127.0.0.1:{mtl}"]
one-socket = true
"""
ANYWHERE = {"lumberjack": 0, "micromsg2": 0, "sabc": 0, "websocket": 0, "umq": 0, "mtl": "*"}


def rows(queue: Path) -> dict[str, set[bytes]]:
    reader = QueueReader(queue)
    found: dict[str, set[bytes]] = {}
    for batch in reader.read(reader.begin(), reader.end()):
        columns = batch.select(["protocol", "body"]).to_pydict()
        for protocol, body in zip(columns["protocol"], columns["body"], strict=True):
            found.setdefault(protocol, set()).add(body)
    return found
