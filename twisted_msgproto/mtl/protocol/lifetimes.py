"""``mtl.connect`` and ``mtl.serve``: ZeroMQ's addresses are no endpoints of Twisted's."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import partial
from os import PathLike
from typing import Any

from twisted.cred.portal import Portal
from typing_extensions import TypeVar

from ...core.limits import Limits
from ...net.authorising import Authoriser
from ...net.lifetimes import Connecting, Serving, factory_of, running, sink_of, somewhere
from ...net.limit_types import MtlClientLimits, MtlServerLimits
from ...net.sink import MessageSink
from ..machine.client import Credentials
from ..machine.flows import Profile
from ..zeromq import CurveClient, CurveServer, check_address, data_endpoint
from .client import MtlClient, MtlClientFactory
from .server import MtlServer, MtlServerFactory

C = TypeVar("C", bound=MtlClient, default=MtlClient)


def connect(
    control: str,
    *,
    client: type[C] = MtlClient,  # type: ignore[assignment]
    factory: MtlClientFactory | None = None,
    limits: MtlClientLimits | Limits | None = None,
    timeout: float = 30.0,
    reactor: Any = None,
    virtualHost: str = "",
    profile: str | None = None,
    credentials: Credentials | None = None,
    curve: CurveClient | None = None,
) -> Connecting[C]:
    """Return what connects to a server when it is awaited or entered: a :class:`.Connecting`.

    ``control``: the ZeroMQ address of the server's control flow.  ``client``: the class of the
    client.  ``factory``: one of your own, which has the settings itself.  ``timeout``: seconds
    until the session stands.  The rest is as for :class:`MtlClientFactory`; :func:`.credentials`
    makes what ``credentials`` takes.

    Raises ConfigurationError for an address or a limit that makes no sense, TypeError for settings
    beside ``factory``.
    """
    reactor = running(reactor)
    check_address(control)
    made = factory_of(
        MtlClientFactory,
        factory,
        reactor,
        client=client,
        virtualHost=virtualHost,
        profile=profile,
        credentials=credentials,
        curve=curve,
        limits=limits,
    )
    return Connecting(partial(_reach, made, control), timeout, reactor, control)


async def _reach(factory: MtlClientFactory, control: str) -> Any:
    client = factory.buildClient(control)
    try:
        return await factory.enter(client)
    except BaseException:
        client.abort()
        raise


class Sockets:
    """The sockets of a server."""

    def __init__(self, factory: MtlServerFactory, control: Sequence[str], data: str | None) -> None:
        self._factory = factory
        self._control = control
        self._data = data

    async def listen(self) -> Sequence[str]:
        addresses = self._factory.listen(self._control, self._data)
        return addresses[: len(self._control)]

    async def stop(self) -> None:
        await self._factory.drain()

    def abort(self) -> None:
        self._factory.abort()


def serve(
    at: str | Sequence[str],
    *,
    sink: MessageSink | None = None,
    queue: str | PathLike[str] | None = None,
    server: type[MtlServer] = MtlServer,
    factory: MtlServerFactory | None = None,
    limits: MtlServerLimits | Limits | None = None,
    authoriser: Authoriser | None = None,
    reactor: Any = None,
    data: str | None = None,
    portal: Portal | None = None,
    curve: CurveServer | None = None,
    virtualHosts: Container[str] | None = None,
    profiles: Iterable[Profile] | None = None,
    insecure: bool = False,
) -> Serving[MtlServerFactory]:
    """Return what listens when it is awaited or entered: a :class:`.Serving`.

    ``at``: ZeroMQ addresses (``tcp://HOST:PORT``, ``ipc://PATH``) for control.  ``data``: the one
    for data; None: the next port, or one of ``at``: the same socket, as always with ``ipc:``.
    ``sink`` gets the messages and is never closed; ``queue`` is a directory whose queue is opened
    and closed with the server.  ``server``: the class of the sessions.  ``factory``: one of your
    own, which has the settings itself.  ``insecure`` allows addresses off this machine without
    CURVE.  The rest is as for :class:`MtlServerFactory`.

    Raises ConfigurationError for an address or a limit that makes no sense, TypeError for settings
    beside ``factory``, and for ``sink`` and ``queue`` together.
    """
    reactor = running(reactor)
    sink, owned = sink_of(sink, queue, factory, reactor)
    control = [at] if isinstance(at, str) else list(at)
    somewhere(control)
    for address in (*control, *([] if data is None else [data])):
        check_address(address)
    if data is None:
        data = data_endpoint(control)
    elif data in control:
        data = None
    made = factory_of(
        MtlServerFactory,
        factory,
        reactor,
        server=server,
        sink=sink,
        limits=limits,
        authoriser=authoriser,
        portal=portal,
        curve=curve,
        virtualHosts=virtualHosts,
        profiles=profiles,
        insecure=insecure,
    )
    made.checkAddresses(control, data)
    return Serving(made, Sockets(made, control, data), owned, reactor)
