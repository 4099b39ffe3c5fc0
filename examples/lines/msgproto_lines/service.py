"""``twistd lines``: options and the service tree."""

from __future__ import annotations

from typing import Any

from twisted_msgproto.extend import (
    AuthenticationOptions,
    Gateway,
    ListeningService,
    ServerOptions,
    standalone,
)

from .protocol import PROTOCOL, LinesServerFactory


class Options(AuthenticationOptions):
    """Receive lines, and publish each to subscribers once it is safe."""

    protocolName = PROTOCOL
    defaultEndpoint = "tcp:5060:interface=127.0.0.1"
    LIMITS = LinesServerFactory.LIMITS
    serverFactory = LinesServerFactory


def serve(options: Any, gateway: Gateway) -> ListeningService:
    """Return the server as a child of ``gateway``, which has the sink."""
    factory = gateway.makeFactory(options, portal=options.portal())
    return ListeningService(gateway.reactor, factory, options["endpoints"])


def makeService(options: ServerOptions) -> Gateway:
    """Return what twistd runs."""
    return standalone(options, serve)
