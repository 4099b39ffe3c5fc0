"""``twistd umq``: options and the service tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.application.service import IService
from twisted.cred.portal import Portal
from twisted.python import usage

from ..core.errors import ConfigurationError, Refused
from ..core.message import Message
from ..net.authentication import AuthenticationOptions
from ..net.gateway import Gateway, ListeningService, standalone
from ..net.options import ServerOptions
from ..net.wires.websocket import parse_origins
from .application.hub import Hub
from .application.methods import MethodRegistry
from .protocol.exchange import Stored
from .protocol.session import LIMITS
from .protocol.sides import UmqRealm, UmqServer, UmqServerFactory
from .protocol.storing import PROTOCOL
from .terms.events import CallbackReceived, CallReceived
from .wire import Code


class Options(AuthenticationOptions):
    """Serve UMQ: calls, topics, callbacks and attributes over WebSocket.

    Every call is accepted and put into the queue (with --queue: answered when it is on disk).
    Calls of the form ["METHOD", ARGUMENT…] for the methods subscribe, publish and methods are
    answered by the server's hub of topics; for other methods the answer is {"stored":true}, or
    {"stored":false} without a queue.  --ingest names the methods which are taken, others are
    refused then.
    """

    protocolName = PROTOCOL
    defaultEndpoint = "tcp:5048:interface=127.0.0.1"
    LIMITS = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self["origins"] = []
        self["ingest"] = []

    def opt_ingest(self, name: str) -> None:
        """A method whose calls are stored, repeatable; without it all are, and other text too."""
        self["ingest"].append(name)

    def opt_origin(self, origin: str) -> None:
        """A web page's origin which may connect, like https://example.org; 'null'; '*' for all."""
        try:
            parse_origins([origin])
        except ConfigurationError as error:
            raise usage.UsageError(str(error)) from None
        self["origins"].append(origin)


class StockServer(UmqServer):
    """Stores every call, or those which ``ingest`` names, and says so in its answer (``UM-17``)."""

    factory: StockServerFactory

    def admit(self, message: CallReceived | CallbackReceived) -> None:
        """Refuse what is neither a method of ours nor one which is to be stored."""
        names, methods = self.factory.ingest, self.factory.methods
        if names and isinstance(message, CallReceived) and not methods.answers(message.payload):
            name = methods.nameIn(message.payload)
            if name not in names:
                raise Refused("no such method", Code.NOT_AN_RPC_SERVER.value)

    def requestReceived(self, message: Message) -> str | None:
        """It is stored; a call which names a method hears that nobody has carried it out."""
        if message.destination is None or message.kind != "call":
            return None
        return str(Stored(self.factory.sink is not None))


class StockServerFactory(UmqServerFactory):
    """Builds a :class:`StockServer` for each client which connects.

    Attributes:
        ingest: the methods whose calls are stored; empty: all, and other text too.
    """

    protocol = StockServer
    methods: MethodRegistry

    def __init__(self, *arguments: Any, ingest: Iterable[str] = (), **options: Any) -> None:
        """``arguments`` and ``options`` as :class:`.UmqServerFactory` has them."""
        options.setdefault("methods", Hub().methods)
        super().__init__(*arguments, **options)
        self.ingest = frozenset(ingest)


def serve(options: ServerOptions, gateway: Gateway) -> IService:
    """The UMQ server as a child of ``gateway``, which has the sink."""
    checkers = options.checkers if isinstance(options, AuthenticationOptions) else []
    factory = StockServerFactory(
        gateway.sink,
        limits=options["limits"],
        clock=gateway.reactor,
        budget=gateway.budget,
        ingest=options["ingest"],
        portal=Portal(UmqRealm(), checkers) if checkers else None,  # type: ignore[arg-type]
        origins=options["origins"],
    )
    gateway.factories.append(factory)
    return ListeningService(gateway.reactor, factory, options["endpoints"])


def makeService(options: ServerOptions) -> IService:
    """What twistd calls."""
    return standalone(options, serve)
