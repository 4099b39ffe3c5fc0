"""``twistd sabc``: options and the service tree, TCP and WebSocket in one process."""

from __future__ import annotations

from typing import Any, ClassVar

from twisted.application.service import IService, MultiService

from ..core.limits import Limit
from ..net.authentication import AuthenticationOptions
from ..net.gateway import Gateway, ListeningService, announce, standalone
from ..net.lifetimes import over_websocket
from ..net.options import ServerOptions, usage_errors
from ..net.wires.websocket import parse_origins
from .protocol.session import LIMITS, PROTOCOL
from .protocol.sides import SabcServerFactory

DEFAULT_WEBSOCKET_ENDPOINT = "tcp:5047:interface=127.0.0.1"


class Options(AuthenticationOptions):
    """Serve sABC: requests, answers and send-only messages over TCP, TLS and WebSocket.

    Without any endpoint it listens on 127.0.0.1:5046 (TCP) and 127.0.0.1:5047 (WebSocket); with
    one, only where it is told to.
    """

    protocolName = PROTOCOL
    defaultEndpoint = "tcp:5046:interface=127.0.0.1"
    LIMITS: ClassVar[tuple[Limit, ...]] = LIMITS
    serverFactory: ClassVar[type[SabcServerFactory]] = SabcServerFactory

    unnamed = "without auth a user is the name that a client announces, and nothing proves it"

    optFlags: ClassVar[list[list[Any]]] = [
        ["lenient", None, "Read bare LF as a line end too, as a terminal sends it."],
        ["refuse-oversize", None, "Refuse a message above message-bytes instead of cutting it."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["websockets"] = []
        self["origins"] = []

    def listenAddresses(self) -> list[str]:
        websockets = [f"{description} (WebSocket)" for description in self["websockets"]]
        return [*super().listenAddresses(), *websockets]

    def endpointStrings(self) -> list[str]:
        return [*super().endpointStrings(), *self["websockets"]]

    def opt_websocket(self, description: str) -> None:
        """A Twisted server endpoint string to listen on for WebSocket; may be given repeatedly."""
        self.checkEndpoint(description)
        self["websockets"].append(description)

    def opt_origin(self, origin: str) -> None:
        """A web page's origin that may connect, like https://example.org; 'null'; '*' for all."""
        with usage_errors():
            parse_origins([origin])
        self["origins"].append(origin)

    def postOptions(self) -> None:
        websocket_only = bool(self["websockets"]) and not self["endpoints"]
        if not self["endpoints"] and not self["websockets"]:
            self["websockets"] = [DEFAULT_WEBSOCKET_ENDPOINT]
        super().postOptions()
        if websocket_only:
            self["endpoints"] = []  # not the default one, either


def announce_websocket(name: str, address: str) -> None:
    announce(name, over_websocket(address).removesuffix("/"))


def serve(options: ServerOptions, gateway: Gateway) -> IService:
    assert isinstance(options, Options)
    factory = gateway.makeFactory(
        options,
        portal=options.portal(),
        lenient=bool(options["lenient"]),
        refuseOversize=bool(options["refuse-oversize"]),
    )
    both: Any = MultiService()
    streams: Any = ListeningService(gateway.reactor, factory, options["endpoints"])
    streams.setServiceParent(both)
    carried = factory.webSocketFactory(options["origins"])
    carried.reusePort = factory.reusePort
    sockets: Any = ListeningService(
        gateway.reactor,
        carried,
        options["websockets"],
        announce_websocket,
    )
    sockets.setServiceParent(both)
    service: IService = both
    return service


def makeService(options: ServerOptions) -> IService:
    return standalone(options, serve)
