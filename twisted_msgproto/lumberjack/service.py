"""``twistd lumberjack`` has these options and this service tree."""

from __future__ import annotations

from typing import ClassVar

from twisted.application.service import IService

from ..core.limits import Limit
from ..net.gateway import Gateway, ListeningService, standalone
from ..net.options import ServerOptions
from .protocol.sides import PROTOCOL, LumberjackServerFactory


class Options(ServerOptions):
    """Receive events from Lumberjack and Beats shippers (versions 1 and 2)."""

    protocolName = PROTOCOL
    defaultEndpoint = "tcp:5044:interface=127.0.0.1"
    LIMITS: ClassVar[tuple[Limit, ...]] = LumberjackServerFactory.LIMITS
    serverFactory: ClassVar[type[LumberjackServerFactory]] = LumberjackServerFactory

    def authWarning(self) -> str | None:
        if any("mtls:" in description for description in self["endpoints"]):
            return None
        return "without an mtls: endpoint no client has a user's name"


def serve(options: ServerOptions, gateway: Gateway) -> IService:
    return ListeningService(gateway.reactor, gateway.makeFactory(options), options["endpoints"])


def makeService(options: ServerOptions) -> IService:
    return standalone(options, serve)
