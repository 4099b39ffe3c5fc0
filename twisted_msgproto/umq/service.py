"""``twistd umq``: options and the service tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, ClassVar

from twisted.application.service import IService

from ..core.limits import Limit
from ..core.message import Message
from ..net.authentication import AuthenticationOptions
from ..net.gateway import Gateway, ListeningService, standalone
from ..net.options import ServerOptions, usage_errors
from ..net.wires.websocket import parse_origins
from .application import Hub, MethodRegistry
from .protocol.calls import PROTOCOL, Stored
from .protocol.session import LIMITS
from .protocol.sides import UmqServer, UmqServerFactory


class DefaultServer(UmqServer):
    """A server that stores every call, or those that ``ingest`` names, and says so (``UM-17``)."""

    factory: DefaultServerFactory

    def requestReceived(self, message: Message) -> str | None:
        if message.destination is None or message.kind != "call":
            return None
        return str(Stored(self.factory.sink is not None))


class DefaultServerFactory(UmqServerFactory):
    protocol: type[DefaultServer] = DefaultServer
    methods: MethodRegistry

    def __init__(self, *arguments: Any, ingest: Iterable[str] = (), **options: Any) -> None:
        """``ingest``: the methods whose calls are stored; empty: all, and other text too."""
        options.setdefault("methods", Hub().methods)
        super().__init__(*arguments, **options)
        if stored := frozenset(ingest):
            self.methods = copy(self.methods)  # another server may have the same methods
            self.methods.stored = stored


class Options(AuthenticationOptions):
    """Serve UMQ: calls, topics, callbacks and attributes over WebSocket.

    Every call is accepted and put into the queue (with --queue: answered when it is on disk). Calls
    of the form ["METHOD", ARGUMENT…] for the methods subscribe, publish and methods are answered by
    the server's hub of topics; for other methods the answer is {"stored":true}, or {"stored":false}
    without a queue.  --ingest names the methods that are taken, others are refused then.
    """

    protocolName = PROTOCOL
    defaultEndpoint = "tcp:5048:interface=127.0.0.1"
    LIMITS: ClassVar[tuple[Limit, ...]] = LIMITS
    serverFactory: ClassVar[type[DefaultServerFactory]] = DefaultServerFactory
    serverClass: ClassVar[type] = UmqServer
    instead: ClassVar[Mapping[str, str]] = {
        "websocket": "UMQ is on WebSocket alone: write endpoint"
    }

    optFlags: ClassVar[list[list[Any]]] = [
        ["no-hub", None, "No hub of topics: subscribe and publish are methods like others."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["origins"] = []
        self["ingest"] = []

    def sharingRefusal(self) -> str | None:
        if self["no-hub"]:
            return None
        return "its topics are in the memory of one process (no-hub = true leaves them out)"

    def opt_ingest(self, name: str) -> None:
        """A method whose calls are stored, repeatable; without it all are, and other text too."""
        self["ingest"].append(name)

    def opt_origin(self, origin: str) -> None:
        """A web page's origin that may connect, like https://example.org; 'null'; '*' for all."""
        with usage_errors():
            parse_origins([origin])
        self["origins"].append(origin)


def serve(options: ServerOptions, gateway: Gateway) -> IService:
    settings: dict[str, Any] = {"methods": MethodRegistry()} if options["no-hub"] else {}
    assert isinstance(options, Options)
    factory = gateway.makeFactory(
        options,
        ingest=options["ingest"],
        portal=options.portal(),
        origins=options["origins"],
        **settings,
    )
    return ListeningService(gateway.reactor, factory, options["endpoints"])


def makeService(options: ServerOptions) -> IService:
    return standalone(options, serve)
