"""``twistd umq``: options and the service tree."""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService
from twisted.cred.portal import Portal
from twisted.python import usage

from ..core.errors import ConfigurationError
from ..core.message import Message
from ..net.authentication import AuthenticationOptions
from ..net.gateway import Gateway, ListeningService, standalone
from ..net.options import ServerOptions
from ..net.websocket import parse_origins
from .hub import Hub
from .protocol import UmqRealm, UmqServer, UmqServerFactory
from .session import LIMITS
from .storing import PROTOCOL


class Options(AuthenticationOptions):
    """Serve UMQ: calls, topics, callbacks and attributes over WebSocket.

    Every call is accepted and put into the queue (with --queue: answered when it is on disk).
    Calls of the form ["METHOD", ARGUMENT…] for the methods subscribe, publish and methods are
    answered by the server's hub of topics.
    """

    protocolName = PROTOCOL
    defaultEndpoint = "tcp:5048:interface=127.0.0.1"
    LIMITS = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self["origins"] = []

    def opt_origin(self, origin: str) -> None:
        """A web page's origin which may connect, like https://example.org; 'null'; '*' for all."""
        try:
            parse_origins([origin])
        except ConfigurationError as error:
            raise usage.UsageError(str(error)) from None
        self["origins"].append(origin)


class StockServer(UmqServer):
    """Accepts every call: without a sink an answer means no more than that it came."""

    def requestReceived(self, message: Message) -> Any:
        """Yes."""


def serve(options: ServerOptions, gateway: Gateway) -> IService:
    """The UMQ server as a child of ``gateway``, which has the sink."""
    checkers = options.checkers if isinstance(options, AuthenticationOptions) else []
    factory = UmqServerFactory(
        gateway.sink,
        limits=options["limits"],
        clock=gateway.reactor,
        budget=gateway.budget,
        methods=Hub().methods,
        portal=Portal(UmqRealm(), checkers) if checkers else None,  # type: ignore[arg-type]
        origins=options["origins"],
    )
    factory.protocol = StockServer
    gateway.factories.append(factory)
    return ListeningService(gateway.reactor, factory, options["endpoints"])


def makeService(options: ServerOptions) -> IService:
    """What twistd calls."""
    return standalone(options, serve)
