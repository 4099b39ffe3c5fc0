"""``twistd micromsg2`` has these options and this service tree."""

from __future__ import annotations

from typing import Any, ClassVar

from twisted.application.service import IService
from twisted.python import usage

from ..core.broker import DEAD
from ..core.limits import Limit
from ..net.broker.broker_options import BrokerOptions
from ..net.gateway import Gateway, ListeningService, standalone
from ..net.options import ServerOptions
from .application import TOPIC_PREFIX
from .protocol.server import MicroMsg2ServerFactory
from .protocol.session import LIMITS, PROTOCOL
from .wire.frames import encode_address
from .wire.texts import BadText


class Options(BrokerOptions, ServerOptions):
    """Receive MicroMsg2 messages, and serve topics and queues to subscribers."""

    protocolName = PROTOCOL
    defaultEndpoint = "tcp:5045:interface=127.0.0.1"
    LIMITS: ClassVar[tuple[Limit, ...]] = LIMITS
    serverFactory: ClassVar[type[MicroMsg2ServerFactory]] = MicroMsg2ServerFactory

    optFlags: ClassVar[list[list[Any]]] = [
        ["no-broker", None, "Only receive messages: there are neither topics nor queues."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["broker-queues"] = []

    def authWarning(self) -> str | None:
        return "a user is the name that a client announces, and nothing proves it"

    def sharingRefusal(self) -> str | None:
        if self["no-broker"]:
            return None
        return "its topics and queues are in one process (no-broker = true leaves them out)"

    def postOptions(self) -> None:
        super().postOptions()
        if self["no-broker"] and (self["broker-queues"] or self["broker-namespace"] is not None):
            raise usage.UsageError("--no-broker excludes --broker-queue and --broker-namespace")

    def opt_broker_queue(self, name: str) -> None:
        """A destination that is a broker queue from the start; may be given more than once.

        Without it a destination becomes one with its first subscriber.
        """
        try:
            encode_address(name)
        except BadText as error:
            raise usage.UsageError(f"--broker-queue {name!r}: {error}") from None
        if not name or name.startswith(TOPIC_PREFIX):
            raise usage.UsageError(f"--broker-queue takes a queue's name, not {name!r}")
        if name.endswith(DEAD):
            raise usage.UsageError(
                f"--broker-queue: {name!r} is for dead letters, and made by itself: name"
                f" {name.removesuffix(DEAD)!r}"
            )
        self["broker-queues"].append(name)


def serve(options: ServerOptions, gateway: Gateway) -> IService:
    settings = gateway.namespaces.settings(options)
    if options["no-broker"]:
        settings["broker"] = False
    factory = gateway.makeFactory(options, brokerQueues=options["broker-queues"], **settings)
    return ListeningService(gateway.reactor, factory, options["endpoints"])


def makeService(options: ServerOptions) -> IService:
    return standalone(options, serve)
