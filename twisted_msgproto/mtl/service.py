"""``twistd mtl``: options and the service tree."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar, cast

import zmq
from twisted.application.service import IService, Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python import usage

from ..core.errors import ConfigurationError
from ..net.authentication import AuthenticationOptions
from ..net.broker.broker_options import BrokerOptions
from ..net.endpoints import Held
from ..net.gateway import Gateway, announce, standalone
from ..net.options import TLS_WORDS, ServerOptions, usage_errors
from ..net.reloading import Change
from ..registry import PROTOCOLS
from .protocol import PROTOCOL
from .protocol.server import MtlServerFactory
from .zeromq import (
    CurveServer,
    bind,
    check_address,
    data_beside,
    data_endpoint,
    is_local,
    read_authorized_keys,
    read_secret_key,
)

log: Logger = Logger(namespace="twisted_msgproto.mtl")

EXPOSED = (
    "is open to other machines without CURVE: who is on the way can read and change what clients"
    " send; --curve-key and --curve-authorized encrypt it"
)


class Options(BrokerOptions, AuthenticationOptions):
    """Be an MTL broker on ZeroMQ: profiles test, queue and ingest.

    Endpoints are ZeroMQ addresses (tcp://HOST:PORT, ipc://PATH).  Data has a port of its own, at
    every host of an endpoint: by default the one after the first control port.  With an ipc://
    endpoint among them all take both.
    """

    protocolName = PROTOCOL
    defaultEndpoint: ClassVar[str] = f"tcp://127.0.0.1:{PROTOCOLS[PROTOCOL].ports['control']}"
    LIMITS = MtlServerFactory.LIMITS
    serverFactory: ClassVar[type[MtlServerFactory]] = MtlServerFactory
    instead: ClassVar[Mapping[str, str]] = dict.fromkeys(
        TLS_WORDS, "ZeroMQ has no TLS: curve-key and curve-authorized encrypt it"
    )

    optParameters: ClassVar[list[list[Any]]] = [
        ["data-endpoint", None, None, "The ZeroMQ address for data."],
        ["curve-key", None, None, "File with the server's CURVE secret key (Z85)."],
        [
            "curve-authorized",
            None,
            None,
            "File with the public keys which may connect: one a line, a name may follow.",
        ],
    ]
    optFlags: ClassVar[list[list[Any]]] = [
        ["one-socket", None, "Control and data on the control endpoint."],
        ["insecure", None, "Allow addresses off this machine without CURVE."],
        ["force-plain", None, "Offer PLAIN even where others can listen."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["virtual-host"] = []

    def opt_virtual_host(self, name: str) -> None:
        """A virtual host; may be given more than once.  Without it any name is accepted."""
        self["virtual-host"].append(name)

    def authWarning(self) -> str | None:
        return None if self["curve-key"] is not None else super().authWarning()

    def sharingRefusal(self) -> str | None:
        return (
            "a session has several connections, and its queues are in one process; give each"
            " gateway endpoints of its own"
        )

    def checkEndpoint(self, description: str) -> None:
        with usage_errors():
            check_address(description)

    def exposures(self) -> list[str]:
        """Return a warning for each address that others reach without CURVE (``MT-31``)."""
        if self["curve-key"] is not None:
            return []
        addresses = [*self["endpoints"], *filter(None, [self["data-endpoint"]])]
        return [f"{one} {EXPOSED}" for one in addresses if not is_local(one)]

    @classmethod
    def located(cls, key: str, value: str, directory: str) -> str:
        """Return it as a server's options do; ``ipc://PATH`` and CURVE's keys are files."""
        if key in ("curve-key", "curve-authorized"):
            return os.path.join(directory, value)
        if key in ("endpoint", "data-endpoint"):
            kind, separator, path = value.partition("://")
            if kind == "ipc" and path[:1] not in ("@", "*", ""):
                path = os.path.join(directory, path)
            return f"{kind}{separator}{path}"
        return super().located(key, value, directory)

    def listenAddresses(self) -> list[str]:
        data = [f"{self['data-endpoint']} (data)"] if self["data-endpoint"] else []
        return [*super().listenAddresses(), *data]

    def postOptions(self) -> None:
        super().postOptions()
        data, one = self["data-endpoint"], self["one-socket"]
        if data is not None and one:
            raise usage.UsageError("--one-socket has no --data-endpoint")
        if data is not None:
            self.checkEndpoint(data)
        elif not one:
            self["data-endpoint"] = data_endpoint(self["endpoints"])
        if (self["curve-key"] is None) != (self["curve-authorized"] is None):
            raise usage.UsageError("--curve-key and --curve-authorized belong together")
        if self["curve-key"] is not None:
            # Read again from another directory perhaps: twistd may go to one of its own.
            for name in ("curve-key", "curve-authorized"):
                self[name] = os.path.abspath(self[name])

    def curve(self) -> CurveServer | None:
        if self["curve-key"] is None:
            return None
        authorized = read_authorized_keys(self["curve-authorized"])
        return CurveServer(read_secret_key(self["curve-key"]), authorized)

    def rereadCurve(self, factory: MtlServerFactory, before: CurveServer) -> Iterator[Change]:
        again = self.curve()
        assert again is not None
        if again.secret != before.secret:
            raise ConfigurationError(
                f"{PROTOCOL}: curve-key {self['curve-key']}: it has another key than the one that"
                " is in force: restart the gateway to use it, or put the old one back"
            )
        yield Change(
            f"{PROTOCOL}: keys of {self['curve-authorized']}",
            partial(factory.changeAuthorized, again.authorized),
        )


class MtlService(Service):
    def __init__(
        self, reactor: Any, factory: MtlServerFactory, control: list[str], data: str | None
    ) -> None:
        """``control`` and ``data`` are ZeroMQ addresses; ``data`` None: one socket for both."""
        self._reactor = reactor
        self.factory = factory
        self._control = control
        self._data = data

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        try:
            addresses = self.factory.listen(self._control, self._data)
        except ConfigurationError as error:
            raise SystemExit(f"{PROTOCOL}: {error}") from None
        for address in addresses[: len(self._control)]:
            self._reactor.callWhenRunning(announce, PROTOCOL, address)
        for address in addresses[len(self._control) :]:
            self._reactor.callWhenRunning(announce, f"{PROTOCOL} data", address)

    def refusals(self, held: Held) -> Iterator[str]:
        try:
            self.factory.checkAddresses(self._control, self._data)
        except ConfigurationError as error:
            yield f"{PROTOCOL}: {error}"
            return
        data = [] if self._data is None else data_beside(self._control, self._data)
        yield from (f"{PROTOCOL}: {why}" for why in try_addresses([*self._control, *data], held))

    def stopService(self) -> Deferred[None]:
        super().stopService()  # type: ignore[no-untyped-call]
        return self.factory.drain()


def serve(options: ServerOptions, gateway: Gateway) -> IService:
    options = cast(Options, options)
    curve = options.curve()
    factory = gateway.makeFactory(
        options,
        portal=options.portal(),
        virtualHosts=frozenset(options["virtual-host"]) or None,
        curve=curve,
        insecure=bool(options["insecure"]),
        forcePlain=bool(options["force-plain"]),
        **gateway.namespaces.settings(options),
    )
    if curve is not None:
        gateway.rereads.append(partial(options.rereadCurve, factory, curve))
    for warning in options.exposures():
        log.warn("{server}: {warning}", server=PROTOCOL, warning=warning)
    return MtlService(gateway.reactor, factory, options["endpoints"], options["data-endpoint"])


def makeService(options: ServerOptions) -> IService:
    return standalone(options, serve)


def try_addresses(addresses: Sequence[str], held: Held) -> Iterator[str]:
    """Bind every address until ``held`` is closed, and yield a line for each refusal."""
    bound = ExitStack()
    held.hold(bound)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    bound.callback(context.destroy, linger=0)
    for address in addresses:
        socket = context.socket(zmq.ROUTER)
        bound.callback(socket.close, linger=0)  # it listens for as long as somebody has it
        try:
            bound.callback(bind(socket, address))
        except ConfigurationError as error:
            yield str(error)
