"""``twistd lines``: options and the service tree."""

from __future__ import annotations

from twisted_msgproto.extend import Gateway, ListeningService, ServerOptions, standalone

from .protocol import PROTOCOL, LinesServerFactory


class Options(ServerOptions):
    """Receive lines, and publish each to subscribers once it is safe."""

    protocolName = PROTOCOL
    defaultEndpoint = "tcp:5060:interface=127.0.0.1"
    LIMITS = LinesServerFactory.LIMITS
    serverFactory = LinesServerFactory


def serve(options: ServerOptions, gateway: Gateway) -> ListeningService:
    """Return the server as a child of ``gateway``, which has the sink."""
    return ListeningService(gateway.reactor, gateway.makeFactory(options), options["endpoints"])


def makeService(options: ServerOptions) -> Gateway:
    """Return what twistd runs."""
    return standalone(options, serve)
