"""The server of ``twistd umq`` stores calls, and answers its hub's methods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.errors import Refused
from ...core.message import Message
from ..protocol.exchange import Stored
from ..protocol.sides import UmqServer, UmqServerFactory
from ..terms import CallbackReceived, CallReceived
from ..wire import Code
from .hub import Hub
from .methods import MethodRegistry


class StockServer(UmqServer):
    """A server that stores every call, or those that ``ingest`` names, and says so (``UM-17``)."""

    factory: StockServerFactory

    def admit(self, message: CallReceived | CallbackReceived) -> None:
        names, methods = self.factory.ingest, self.factory.methods
        if names and isinstance(message, CallReceived) and not methods.answers(message.payload):
            name = methods.nameIn(message.payload)
            if name not in names:
                raise Refused("no such method", Code.NOT_AN_RPC_SERVER.value)

    def requestReceived(self, message: Message) -> str | None:
        if message.destination is None or message.kind != "call":
            return None
        return str(Stored(self.factory.sink is not None))


class StockServerFactory(UmqServerFactory):
    """The maker of a :class:`StockServer` for each client that connects.

    Attributes:
        ingest: the methods whose calls are stored; empty: all, and other text too.
    """

    protocol = StockServer
    methods: MethodRegistry

    def __init__(self, *arguments: Any, ingest: Iterable[str] = (), **options: Any) -> None:
        options.setdefault("methods", Hub().methods)
        super().__init__(*arguments, **options)
        self.ingest = frozenset(ingest)
