"""``python -m tests.chaos.bare_websocket ENDPOINT``: a server of autobahn and Twisted alone, beside
which idle WebSocket connections over TLS are weighed.

It sends pings as often as ours does, with autobahn's own timers, and says something once.
"""

from __future__ import annotations

import sys

from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
from twisted.internet import endpoints, reactor

from twisted_msgproto.net.wires.websocket.limits import WEBSOCKET_LIMITS


class Greeting(WebSocketServerProtocol):  # type: ignore[misc]
    def onOpen(self) -> None:
        self.sendMessage(b"CONNECTED", isBinary=False)


def main(endpoint: str) -> None:
    factory = WebSocketServerFactory()
    factory.protocol = Greeting
    seconds = next(row.default for row in WEBSOCKET_LIMITS if row.name == "websocket-ping-seconds")
    factory.setProtocolOptions(autoPingInterval=seconds, autoPingTimeout=30)

    def told(port: object) -> None:
        number = port.getHost().port  # type: ignore[attr-defined]
        print(f"bare listening on tcp://127.0.0.1:{number}", flush=True)

    endpoints.serverFromString(reactor, endpoint).listen(factory).addCallback(told)
    reactor.run()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(sys.argv[1])
