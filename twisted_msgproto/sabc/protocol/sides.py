"""sABC servers and clients on Twisted, over TCP, TLS and WebSocket."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Unpack

from twisted.cred.error import LoginFailed, UnauthorizedLogin
from twisted.cred.portal import Portal
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure
from typing_extensions import TypeVar

from ...core.errors import ConnectionClosed, Refused
from ...core.limits import Limit, Limits
from ...core.machine import Table
from ...core.session_memory import SESSION_LIMIT, SessionMemory, table_bytes
from ...net.authentication import Authentication
from ...net.authorising import CALL, PUBLISH, Authoriser
from ...net.clients.client import UNSENT_LIMITS, ClientLink
from ...net.clients.command_types import ClientEndpoint
from ...net.factory import (
    MsgprotoServerFactory,
    ServerSettings,
    SessionFactory,
    SessionSettings,
    expect,
)
from ...net.lifetimes import (
    ClientTLS,
    Connecting,
    Ports,
    Serving,
    Where,
    connecting,
    endpoints_of,
    factory_of,
    over_websocket,
    running,
    sink_of,
)
from ...net.limit_types import SabcClientLimits, SabcServerLimits
from ...net.session import ClientSession, LoginLink, hook
from ...net.sink import MessageSink
from ...net.wires import websocket
from ..machine import Client, Server
from ..terms import SERVER, UNAVAILABLE, ConnectReceived, ConnectRefused, SessionGranted
from ..terms import Serving as ServerState
from .session import LIMITS, PROTOCOL, Body, Response, SabcLink, SabcSession, log


class SabcServerLink(LoginLink, SabcLink):
    factory: SabcServerFactory
    machine: Server

    def makeMachine(self) -> Server:
        factory = self.factory
        return self.machineOf(
            Server,
            authenticates=factory.authentication is not None,
            refuse_oversize=factory.refuseOversize,
        )

    def transportSecured(self) -> None:
        if self.factory.draining:  # this WebSocket upgrade was on its way when the server stopped
            self.endNow()

    def _connecting(self, event: ConnectReceived) -> None:
        if event.headers and not self._keeps(event.headers):
            self.factory.limitMet(SESSION_LIMIT, "CONNECT with many headers")
            self.factory.counters["rejected"] += 1
            self.machine.reject(self._now(), UNAVAILABLE, f"too many headers: {SESSION_LIMIT}")
            return
        self.protocol.connectHeaders = event.headers
        self.decide(event).addCallbacks(self._accepted, self._rejected)

    def _keeps(self, headers: Mapping[str, str]) -> bool:
        """Keep these for the session; False if all sessions together keep too much."""
        memory = self.memory
        memory.remove(memory.nbytes)  # those of an attempt that was refused
        return memory.take(table_bytes(headers))

    @property
    def sessionMemory(self) -> SessionMemory:
        return self.factory.shared.session_memory

    def _accepted(self, clientId: str | None) -> None:
        self._deciding = None
        if self.machine.state is not ServerState.AUTHENTICATING:
            return
        factory = self.factory
        seconds = factory.limits["session-seconds"]
        try:
            self.machine.accept(
                factory.newSessionId(),
                expires=self._now() + seconds if seconds else None,
                headers=getattr(self.protocol, "connectedHeaders", {}),
            )
        except Exception:  # connectedHeaders are an application's
            self._rejected(Failure())
            return
        self.clientId = clientId
        factory.counters["sessions"] += 1
        self.establish()
        self._settle()

    def _rejected(self, failure: Failure) -> None:
        self._deciding = None
        if self.machine.state is not ServerState.AUTHENTICATING:
            return
        self.factory.counters["rejected"] += 1
        now = self._now()
        error: Any = failure.value
        if failure.check(Refused) and isinstance(error.code, int):
            self.machine.reject(now, error.code, str(error))
        else:
            if not failure.check(LoginFailed, UnauthorizedLogin, CancelledError, Refused):
                log.failure("{peer}: authorisation failed", failure, peer=self.peer)
            self.machine.reject(now)
        self._settle()

    def sessionEnding(self, reason: Failure) -> None:
        self.endLogin()
        super().sessionEnding(reason)

    actions: ClassVar[dict[type, Any]] = {**SabcLink.actions, ConnectReceived: _connecting}


class SabcServer(SabcSession, link=SabcServerLink):
    """The server's side of one connection; override the hooks of :class:`SabcSession`.

    Attributes:
        avatar: what the portal gave for this client; set where there is one, by then.
        connectHeaders: the application's headers on CONNECT; set before ``authorise`` is called.
        connectedHeaders: the application's for CONNECTED; ``authorise`` may set them.
    """

    factory: SabcServerFactory
    link: SabcServerLink
    avatar: Any
    connectHeaders: Mapping[str, str]
    connectedHeaders: Mapping[str, str]

    @hook
    def authorise(self, request: ConnectReceived) -> Any:
        """Return who the client is (``SA-07``, ``SA-08``): its client-id or None; or a Deferred for
        that.

        Any failure refuses the session with 403; Refused may give another code and text.  The
        default asks the factory's portal; without one the client is who it says it is.
        """
        authentication = self.factory.authentication
        if authentication is None:
            return request.client_id
        credentials = authentication.credentials(request.client_id, request.passcode)
        return self.link.login(credentials, request.client_id)


class SabcServerFactory(MsgprotoServerFactory):
    """The maker of a :class:`SabcServer` for each client, on byte streams and on WebSocket.

    Attributes:
        authentication: who may come in; None: everybody.
        newSessionId: makes session ids, at least 128 bits from a CSPRNG each (``SA-09``).
        lenient: bare LF ends a line as well (``SA-28``).
        refuseOversize: refuse messages above the limit instead of cutting them (``SA-22``).
    """

    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = LIMITS
    actions: ClassVar[frozenset[str]] = frozenset({CALL, PUBLISH})
    stateTable: ClassVar[Table[Any] | None] = SERVER
    protocol: type[SabcServer] = SabcServer  # type: ignore[assignment]

    def __init__(
        self,
        sink: MessageSink | None = None,
        *,
        limits: SabcServerLimits | Limits | None = None,
        portal: Portal | None = None,
        lenient: bool = False,
        refuseOversize: bool = False,
        newSessionId: Callable[[], str] = secrets.token_urlsafe,
        **settings: Unpack[ServerSettings],
    ) -> None:
        """As :class:`MsgprotoServerFactory`; ``portal`` gives avatars for
        :class:`~twisted_msgproto.net.authentication.IIdentity`.
        """
        super().__init__(sink, limits=limits, **settings)
        self.authentication: Authentication | None = None
        if portal is not None:
            self.authentication = Authentication(portal, self, self.limits["connect-seconds"])
        self.lenient = lenient
        self.refuseOversize = refuseOversize
        self.newSessionId = newSessionId

    def webSocketFactory(self, origins: Sequence[str] = ()) -> Any:
        """Return a factory to listen with for WebSocket (``SA-25``); its sessions are this
        factory's.

        ``origins`` are the web pages that may connect; clients that are no browsers always may.
        Raises ConfigurationError for what is no origin.
        """
        return carried(WebSocketServerFactory, self, origins=origins)

    def push(
        self,
        clientId: str,
        body: Body = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Deferred[Response]:
        """Send a request to the newest session of a client; its answer.

        Fails with ConnectionClosed if the client has none, and as :meth:`SabcSession.request`.
        """
        return self.toNewest(
            clientId, lambda session: session.request(body, headers=headers, timeout=timeout)
        )


class SabcClientLink(ClientLink, SabcLink):
    factory: SabcClientFactory
    machine: Client
    readsWhileUnread = True  # it writes requests, and reads their answers
    timeFaults: ClassVar[frozenset[str]] = frozenset({"connect-seconds"})

    def leave(self) -> Deferred[None]:
        if self._gone:
            return succeed(None)
        left = self._closeWaiters.wait()
        self._beginEnd()
        return left

    def endNow(self) -> None:
        """End the session at once; before the WebSocket upgrade there is none yet."""
        self.setCloseReason(ConnectionClosed("the session was ended"))
        if self.transport is None:
            self._abort()
        else:
            super().endNow()

    def makeMachine(self) -> Client:
        return self.machineOf(Client)

    def transportSecured(self) -> None:
        factory = self.factory
        self.machine.connect(
            factory.clientId, factory.passcode, now=self._now(), headers=factory.connectHeaders
        )
        self._settle()

    def _granted(self, event: SessionGranted) -> None:
        self.clientId = self.factory.clientId
        self.protocol.connectedHeaders = event.headers
        self.establish()

    def _refused(self, event: ConnectRefused) -> None:
        self.setCloseReason(Refused(f"the server refused the session: {event.text}", event.code))
        self.endNow()

    actions: ClassVar[dict[type, Any]] = {
        **SabcLink.actions,
        SessionGranted: _granted,
        ConnectRefused: _refused,
    }


class SabcClient(ClientSession, SabcSession, link=SabcClientLink):
    """The client's side of one connection; override the hooks of :class:`SabcSession`.

    Attributes:
        connectedHeaders: the application's headers on CONNECTED; set when the session stands.
    """

    factory: SabcClientFactory
    link: SabcClientLink
    connectedHeaders: Mapping[str, str]

    def disconnect(self) -> Deferred[None]:
        """End the session in order (``SA-12``): no more requests; answers still come.

        As :meth:`close`, but what is in flight has 30 seconds.
        """
        return self.link.leave()


ANONYMOUS_CLIENT_ID = "anonymous"
"""Our clients always write a client-id (``SA-02``): this one when nobody gave another."""


class SabcClientFactory(SessionFactory, ClientFactory):
    """The maker of a :class:`SabcClient` for each connection to a server.

    Attributes:
        clientId: who we are.
        passcode: what proves it, or None; shows nowhere.
        connectHeaders: an application's headers for CONNECT.
    """

    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = (*LIMITS, *UNSENT_LIMITS)
    protocol: type[SabcClient] = SabcClient  # type: ignore[assignment]

    def __init__(
        self,
        clientId: str = ANONYMOUS_CLIENT_ID,
        passcode: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        sink: MessageSink | None = None,
        limits: SabcClientLimits | Limits | None = None,
        lenient: bool = False,
        **settings: Unpack[SessionSettings],
    ) -> None:
        """``sink`` takes what the server sends of its own accord; the rest as the server's.

        Raises ValueError for a name, a passcode or headers that cannot be sent (``SA-03``).
        """
        super().__init__(sink, limits=limits, **settings)
        expect("headers", headers, "a mapping", isinstance(headers, Mapping | None))
        Client(self.limits).connect(clientId, passcode, now=0.0, headers=headers)  # a trial
        self.clientId = clientId
        self.passcode = passcode
        self.connectHeaders: dict[str, str] = dict(headers or {})
        self.lenient = lenient

    def webSocketFactory(self, url: str, *, origin: str | None = None) -> Any:
        """Return a factory that connects to ``url`` (``ws://…``, ``wss://…``) with sessions of this
        one.

        Raises ConfigurationError for what is no such address.
        """
        return carried(websocket.WebSocketClientFactory, self, url, origin=origin)


SUBPROTOCOL = "sabc"
"""Clients offer this and servers accept it, but it is not required (``SA-25``)."""

_BEFORE_SESSION_BYTES = 64  # what CONNECT has beside its header block


class WebSocketServerFactory(websocket.WebSocketServerFactory):
    protocolName = PROTOCOL

    def drain(self) -> Deferred[None]:
        self.abortUpgrades()
        return self.sessions.drain()


def carried(kind: type[Any], sessions: Any, *url: str, **settings: Any) -> Any:
    """Return a factory of this kind for WebSocket, whose connections carry ``sessions``."""
    limits = sessions.limits
    factory = kind(
        sessions, sessions.buildProtocol, limits, *url, protocols=[SUBPROTOCOL], **settings
    )
    factory.wire = websocket.ByteWire
    factory.message_bytes = 2 * limits.integer("message-bytes")  # what is above ends it (SA-22)
    factory.first_bytes = limits.integer("header-block-bytes") + _BEFORE_SESSION_BYTES
    return factory


C = TypeVar("C", bound=SabcClient, default=SabcClient)


def connect(
    to: str | ClientEndpoint,
    *,
    client: type[C] = SabcClient,  # type: ignore[assignment]
    factory: SabcClientFactory | None = None,
    limits: SabcClientLimits | Limits | None = None,
    timeout: float = 30.0,
    reactor: Any = None,
    tls: ClientTLS | None = None,
    clientId: str = ANONYMOUS_CLIENT_ID,
    passcode: str | None = None,
    headers: Mapping[str, str] | None = None,
    origin: str | None = None,
) -> Connecting[C]:
    """Return what connects to a server when it is awaited or entered: a :class:`.Connecting`.

    ``to``: ``tcp:HOST:PORT``, ``tls:HOST:PORT``, ``unix:PATH``, ``ws://…``, ``wss://…``, any string
    of a Twisted client endpoint, or an endpoint.  ``client``: the class of the client.
    ``factory``: one of your own, which has the settings itself.  ``timeout``: seconds until the
    session stands.  ``tls`` takes the place of the system's authorities.  ``origin`` is for
    WebSocket, to play a browser; the rest as for :class:`SabcClientFactory`.

    Raises ConfigurationError for an address or a limit that makes no sense, TypeError for settings
    beside ``factory``.
    """
    reactor = running(reactor)
    made = factory_of(
        SabcClientFactory,
        factory,
        reactor,
        client=client,
        clientId=clientId,
        passcode=passcode,
        headers=headers,
        limits=limits,
    )
    return connecting(
        to,
        made,
        timeout,
        reactor,
        tls=tls,
        connected=lambda url: made.webSocketFactory(url, origin=origin),
    )


def serve(
    at: Where | Sequence[Where],
    *,
    sink: MessageSink | None = None,
    queue: str | PathLike[str] | None = None,
    server: type[SabcServer] = SabcServer,
    factory: SabcServerFactory | None = None,
    limits: SabcServerLimits | Limits | None = None,
    authoriser: Authoriser | None = None,
    reactor: Any = None,
    portal: Portal | None = None,
    websocket: Where | Sequence[Where] = (),
    origins: Sequence[str] = (),
) -> Serving[SabcServerFactory]:
    """Return what listens when it is awaited or entered: a :class:`.Serving`.

    ``at``: strings of Twisted server endpoints, as the command line takes them, or endpoints;
    ``websocket``: alike, for WebSocket, where web pages of ``origins`` may connect.  ``sink`` gets
    the messages and is never closed; ``queue`` is a directory whose queue is opened and closed with
    the server.  ``server``: the class of the sessions.  ``factory``: one of your own, which has the
    settings itself.  ``portal`` as for :class:`SabcServerFactory`.

    Raises ConfigurationError for an address, an origin or a limit that makes no sense, TypeError
    for settings beside ``factory``, and for ``sink`` and ``queue`` together.
    """
    reactor = running(reactor)
    sink, owned = sink_of(sink, queue, factory, reactor)
    made = factory_of(
        SabcServerFactory,
        factory,
        reactor,
        server=server,
        sink=sink,
        limits=limits,
        authoriser=authoriser,
        portal=portal,
    )
    carried = made.webSocketFactory(origins)
    wanted: list[Any] = [(one, made, str) for one in endpoints_of(at)]
    wanted += [(one, carried, over_websocket) for one in endpoints_of(websocket)]
    return Serving(made, Ports(reactor, made, wanted), owned, reactor)
