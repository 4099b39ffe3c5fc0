"""What the public WebSocket cases are run against: bare autobahn, UMQ and sABC, both sides.

The cases need somebody that echoes.  Ours are the WebSocket factories of UMQ and of sABC as those
protocols make them, with their wires and limits; only the session on top is an echo.

``python -m tests.conformance.testees servers`` listens with all three and prints the ports.
``python -m tests.conformance.testees clients URL`` runs all three against a fuzzing server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

from autobahn.twisted import websocket as autobahn
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString

from twisted_msgproto.net.clients.client_endpoints import parse_address
from twisted_msgproto.net.wires.websocket import (
    WebSocketClientFactory,
    WebSocketServerFactory,
)
from twisted_msgproto.sabc import SabcClientFactory, SabcServerFactory
from twisted_msgproto.umq import UmqClientFactory, UmqServerFactory

TESTEES: Final = ("autobahn", "umq", "sabc")
"""The first one is what the others are compared with."""

MESSAGE_BYTES: Final = 16 << 20
"""The largest message of the cases; UMQ allows it by default, sABC has to be told."""

LIMITS: Final = {
    "umq": {},
    "sabc": {"websocket-message-bytes": MESSAGE_BYTES},
}

COUNT: Final = "/getCaseCount"
"""At this address the fuzzing server tells how many cases it has, and wants no echo."""


class Echo:
    """A session that sends back what comes, and reads on when that has been read."""

    factory: Any
    wire: Any
    closing: Callable[[], object] | None = None

    def makeConnection(self, wire: Any) -> None:
        self.wire = wire
        self.factory.connectionOpened(self, "127.0.0.1")
        wire.established()

    def received(self, inputs: list[Any]) -> None:
        self.wire.write(inputs)

    @property
    def link(self) -> Any:
        return self

    def oversized(self) -> None:
        """The wire closes."""

    def heldChanged(self) -> None:
        """Nobody counts it."""

    def unread(self) -> None:
        """The wire drops the peer."""

    def outputChanged(self, paused: bool) -> None:
        if paused:
            self.wire.pauseProducing()
        else:
            self.wire.resumeProducing()

    def outputDrained(self) -> None:
        """Nothing waits for it."""

    def connectionLost(self, reason: object) -> None:
        self.factory.connectionClosed(self, reason)

    def neverConnected(self, error: Exception) -> None:
        """The factory forgets it by itself."""


class BareServer(autobahn.WebSocketServerProtocol):  # type: ignore[misc]
    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        self.sendMessage(payload, isBinary)


class BareClient(autobahn.WebSocketClientProtocol):  # type: ignore[misc]
    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        self.sendMessage(payload, isBinary)


def server(name: str, clock: Any) -> Any:
    """A factory that accepts WebSocket connections and echoes."""
    if name == "autobahn":
        bare = autobahn.WebSocketServerFactory(reactor=clock)
        bare.protocol = BareServer
        bare.setProtocolOptions(failByDrop=False)  # it says why it closes, as ours do
        return bare
    sessions: Any
    if name == "umq":
        sessions = UmqServerFactory(clock=clock, limits=LIMITS[name])
        factory: WebSocketServerFactory = sessions.webSocket
    else:
        sessions = SabcServerFactory(clock=clock, limits=LIMITS[name])
        factory = sessions.webSocketFactory()
    sessions.protocol = Echo
    return factory


def client(name: str, url: str, clock: Any) -> Any:
    """A factory that connects to ``url`` and echoes."""
    if name == "autobahn":
        bare = autobahn.WebSocketClientFactory(url, reactor=clock)
        bare.protocol = BareClient
        bare.setProtocolOptions(failByDrop=False)
        return bare
    sessions: Any
    if name == "umq":
        sessions = UmqClientFactory(url, clock=clock, limits=LIMITS[name])
        factory: WebSocketClientFactory = sessions.webSocket
    else:
        sessions = SabcClientFactory(clock=clock, limits=LIMITS[name])
        factory = sessions.webSocketFactory(url)
    sessions.protocol = Echo
    return factory


async def _listen(reactor: Any) -> None:
    ports = {}
    for name in TESTEES:
        endpoint = serverFromString(reactor, "tcp:0:interface=127.0.0.1")
        port = await endpoint.listen(server(name, reactor))
        ports[name] = port.getHost().port
    print(json.dumps(ports), flush=True)
    await Deferred()


async def _one(reactor: Any, name: str, url: str) -> list[Any]:
    """Connect, echo until the connection ends; what came."""
    ended: Deferred[None] = Deferred()
    heard: list[Any] = []
    factory = client(name, url, reactor)
    build = factory.buildProtocol

    def building(address: Any) -> Any:
        made = build(address)
        lost = made.connectionLost

        def on_lost(*reason: Any) -> None:
            lost(*reason)
            if not ended.called:
                ended.callback(None)

        def on_message(payload: bytes, binary: bool) -> None:
            heard.append(payload)

        made.connectionLost = on_lost
        if url.endswith(COUNT):
            made.onMessage = on_message
        return made

    factory.buildProtocol = building
    port = parse_address(url).port
    await clientFromString(reactor, f"tcp:127.0.0.1:{port}").connect(factory)
    await ended
    return heard


async def _connect(reactor: Any, url: str) -> None:
    (count,) = await _one(reactor, TESTEES[0], f"{url}{COUNT}")
    for name in TESTEES:
        for number in range(1, int(count) + 1):
            await _one(reactor, name, f"{url}/runCase?case={number}&agent={name}")
        await _one(reactor, name, f"{url}/updateReports?agent={name}")


def main(arguments: list[str]) -> None:
    from twisted.internet.task import react

    if arguments == ["servers"]:
        react(lambda reactor: Deferred.fromCoroutine(_listen(reactor)))
    else:
        react(lambda reactor: Deferred.fromCoroutine(_connect(reactor, arguments[1])))


if __name__ == "__main__":
    main(sys.argv[1:])
