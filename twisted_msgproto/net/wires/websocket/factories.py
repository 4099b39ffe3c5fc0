"""Upgrade to WebSocket within autobahn's bounds; check origins and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from autobahn.twisted import websocket as autobahn
from autobahn.websocket.types import ConnectingRequest, ConnectionDeny, ConnectionRequest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IProtocolNegotiationFactory, ITCPTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_msgproto.core.errors import ConfigurationError, unquoted
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.reasons import TLS_HERE

from ...clients.client_endpoints import parse_address
from ...factory import MsgprotoServerFactory, SessionFactory, expect, host_of, peer_name
from .carrier import Carrier, WebSocketWire
from .frames import (
    CLOSE_LEAVING,
    CLOSE_NORMAL,
    CLOSE_SECONDS,
    MESSAGE_LIMIT,
    UPGRADE_BYTES,
    log,
)

Build = Callable[[IAddress | None], Any]


DENIED: Final = (ConnectionDeny.FORBIDDEN, ConnectionDeny.SERVICE_UNAVAILABLE)
"""This server refuses an upgrade with one of these where the request itself is in order."""


class ServerCarrier(Carrier, autobahn.WebSocketServerProtocol):
    peer: Any
    _transport_details: Any

    def onConnect(self, request: ConnectionRequest) -> str | None:
        """Refuse foreign origins, then choose the first sub-protocol that the factory knows."""
        if self.factory.sessions.draining:
            raise ConnectionDeny(ConnectionDeny.SERVICE_UNAVAILABLE, "the server stops")
        if not self.factory.addressKnown(self):
            raise ConnectionDeny(
                ConnectionDeny.SERVICE_UNAVAILABLE, "its address has too many connections"
            )
        if request.origin and not self.factory.origin_allowed(request.origin):
            self.factory.refusedOrigin(self.transport.getPeer(), request.origin)
            raise ConnectionDeny(ConnectionDeny.FORBIDDEN, "origin not allowed")
        for name in request.protocols:
            if name in self.factory.protocols:
                return str(name)
        return None

    def failHandshake(self, reason: str, code: int = 400, responseHeaders: Any = None) -> None:
        if code not in DENIED:
            self._neverUpgrades(reason)
        super().failHandshake(reason, code, responseHeaders)

    def onOpenHandshakeTimeout(self) -> None:
        if self.state == autobahn.WebSocketServerProtocol.STATE_CONNECTING:
            self._neverUpgrades("no upgrade in time", "websocket-upgrade-seconds")
        super().onOpenHandshakeTimeout()

    def _neverUpgrades(self, why: str, limit: str = "") -> None:
        self.factory.notUpgraded(self.transport.getPeer(), why, limit)


class ClientCarrier(Carrier, autobahn.WebSocketClientProtocol):
    """A client's connection: what ``endpoint.connect(factory)`` fires with."""

    peer: Any
    _transport_details: Any

    def whenEstablished(self) -> Deferred[Any]:
        established: Deferred[Any] = self.session.whenEstablished()
        return established

    def close(self) -> Deferred[None]:
        closed: Deferred[None] = self.session.close()
        return closed

    def abort(self, reason: str = "the connection was given up") -> None:
        super().abort(reason)

    def onConnecting(self, transport_details: object) -> ConnectingRequest:
        factory = self.factory
        host = f"[{factory.host}]" if ":" in factory.host else factory.host
        return ConnectingRequest(
            host=host,
            port=factory.port,
            resource=factory.resource,
            headers=factory.headers,
            useragent=factory.useragent,
            origin=factory.origin,
            protocols=factory.protocols,
        )


class _Bounds:
    """Sets what both factories share: all of autobahn's bounds, and ours."""

    noisy: ClassVar[bool] = False
    isServer: ClassVar[bool]
    wire: type[WebSocketWire] = WebSocketWire
    first_bytes: int | None = None  # of a message before its session stands; None: as any other
    reactor: Any
    sessions: Any  # the factory whose sessions the connections carry
    _build: Build

    def bound(self, limits: Limits) -> None:
        # Autobahn's own buckets cancel in linear time.
        self._batched_timer = SimpleNamespace(call_later=self.reactor.callLater)
        self.unread_bytes = limits.integer("unread-bytes")
        self.unread_seconds = limits["unread-seconds"]
        self.upgrade_bytes = UPGRADE_BYTES
        self.close_seconds = CLOSE_SECONDS
        self.ping_seconds = limits["websocket-ping-seconds"]
        self.message_bytes = int(limits.get(MESSAGE_LIMIT.name, MESSAGE_LIMIT.default))
        options: dict[str, Any] = {
            "failByDrop": False,
            "openHandshakeTimeout": limits["websocket-upgrade-seconds"],
            "closeHandshakeTimeout": CLOSE_SECONDS,
            "tcpNoDelay": True,
        }
        if self.isServer:
            options |= {
                "versions": [13],
                "webStatus": False,
                # Origins are compared exactly in onConnect, where a refusal is a 403.
                "allowedOrigins": ["*"],
                "allowNullOrigin": True,
            }
        self.setProtocolOptions(**options)  # type: ignore[attr-defined]

    def buildProtocol(self, address: Any) -> Any:
        session = self._build(address)
        if not hasattr(session, "link"):  # it is turned away
            return session
        carrier: Any = super().buildProtocol(address)  # type: ignore[misc]  # of autobahn
        carrier.session, carrier.link = session, session.link
        return carrier

    @property
    def close_code(self) -> int:
        return CLOSE_LEAVING if getattr(self.sessions, "draining", False) else CLOSE_NORMAL

    def connectionBegun(self, carrier: Carrier) -> None:
        """The transport of ``carrier`` stands: the upgrade comes next."""

    def connectionUpgraded(self, carrier: Carrier) -> None:
        """The session of ``carrier`` has begun."""

    def connectionGone(self, carrier: Carrier, reason: Failure) -> None:
        """The transport of ``carrier`` is lost."""


@implementer(IProtocolNegotiationFactory)
class WebSocketServerFactory(_Bounds, autobahn.WebSocketServerFactory):
    """Accepts WebSocket connections for the sessions of another factory, on any endpoint."""

    protocol: type[ServerCarrier] = ServerCarrier
    sessions: MsgprotoServerFactory

    def __init__(
        self,
        sessions: MsgprotoServerFactory,
        build: Build,
        limits: Limits,
        *,
        origins: Sequence[str] = (),
        protocols: Sequence[str] = (),
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            reactor=sessions.clock, protocols=list(protocols), server=""
        )
        self.sessions = sessions
        self._build = build
        self.origins: frozenset[str] = parse_origins(origins)
        self._upgrading: dict[Carrier, str] = {}
        self.bound(limits)

    def startFactory(self) -> None:
        self.sessions.startFactory()

    def acceptableProtocols(self) -> list[bytes]:
        """Return what TLS may agree on: the upgrade is one of HTTP/1.1."""
        return [b"http/1.1"]

    def logPrefix(self) -> str:
        return self.sessions.logPrefix()

    def origin_allowed(self, origin: str) -> bool:
        if "*" in self.origins:
            return True
        try:
            return origin_of(origin) in self.origins
        except ValueError:
            return False

    def refusedOrigin(self, address: IAddress, origin: str) -> None:
        text = "refused: a web page from {origin} may not connect (--origin allows it)"
        self._tell(address, "origin", text, origin=unquoted(origin))

    def notUpgraded(self, address: IAddress, text: str, limit: str = "") -> None:
        """A client did not become one of WebSocket: log and count that; ``limit`` is one it met."""
        self.sessions.countFault("upgrade", limit)
        begun = "closed before it spoke WebSocket: {text}"
        self._tell(address, "upgrade", begun, text=unquoted(text))

    def spokeTls(self, address: IAddress) -> None:
        self.sessions.countFault("tls")
        self._tell(address, "tls", "closed: {text}", text=TLS_HERE)

    def _tell(self, address: IAddress, reason: str, line: str, /, **fields: Any) -> None:
        host, peer = host_of(address), peer_name(address)
        self.sessions.writeOf(log, host, f"{{peer}}: {line}", reason=reason, peer=peer, **fields)

    def connectionBegun(self, carrier: Carrier) -> None:
        transport = carrier.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpKeepAlive(True)
        host = str(getattr(transport.getPeer(), "host", ""))
        self._upgrading[carrier] = host
        self.sessions.addressTaken(host)

    def addressKnown(self, carrier: Carrier) -> bool:
        """A proxy may have said whose connection it is; return whether it may stay."""
        host = host_of(carrier.transport.getPeer())
        if not self.sessions.addressMoves(self._upgrading[carrier], host):
            return False
        self._upgrading[carrier] = host
        return True

    def connectionUpgraded(self, carrier: Carrier) -> None:
        host = self._upgrading.pop(carrier, None)
        if host is not None:
            self.sessions.addressFreed(host)

    def connectionGone(self, carrier: Carrier, reason: Failure) -> None:
        self.sessions.lookTls(carrier.transport, reason)
        self.connectionUpgraded(carrier)

    def abortUpgrades(self) -> None:
        for carrier in list(self._upgrading):
            carrier.abort("the server stops")


class WebSocketClientFactory(_Bounds, autobahn.WebSocketClientFactory):
    protocol: type[ClientCarrier] = ClientCarrier

    def __init__(
        self,
        sessions: SessionFactory,
        build: Build,
        limits: Limits,
        url: str,
        *,
        origin: str | None = None,
        protocols: Sequence[str] = (),
    ) -> None:
        """Pass ``origin`` only to play a browser."""
        parse_address(url)
        expect("origin", origin, "a text", isinstance(origin, str | None))
        if origin is not None and not (origin.isascii() and origin.isprintable()):
            raise ConfigurationError(f"origin is printable ASCII, not {origin!r}")
        super().__init__(  # type: ignore[no-untyped-call]
            reactor=sessions.clock,
            url=url,
            origin=origin,
            protocols=list(protocols),
            useragent=None,
        )
        self.sessions = sessions
        self._build = build
        self.bound(limits)


# ── origins ───────────────────────────────────────────────────────────────────────────────────


_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(text: str) -> str:
    """Return an origin with its port spelled out, to be compared; ValueError if it is none."""
    if text.lower() == "null":
        return "null"
    parts = urlsplit(text)
    scheme, host = parts.scheme.lower(), parts.hostname
    if not scheme or not host or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is no origin")
    return f"{scheme}://{host}:{parts.port or _DEFAULT_PORTS.get(scheme, '')}"


def parse_origins(origins: Iterable[str]) -> frozenset[str]:
    """Parse the origins of web pages that may connect, as a browser names them.

    ``http://host[:port]``, ``https://host[:port]``; ``null`` for pages without an origin
    (``file:``); ``*`` for every page.  Compared exactly: there are no patterns.  Raises
    ConfigurationError for anything else.
    """
    found = set()
    for text in origins:
        if not isinstance(text, str):
            raise TypeError(f"an origin is a text, not {type(text).__name__}")
        try:
            found.add("*" if text == "*" else origin_of(text))
        except ValueError:
            raise ConfigurationError(
                f"{text!r} is no origin like https://example.org, nor 'null', nor '*'"
            ) from None
    return frozenset(found)
