"""UMQ servers and clients on Twisted, over WebSocket."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar, Final, Unpack

from twisted.cred.credentials import Anonymous
from twisted.cred.error import LoginFailed, UnauthorizedLogin
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IAddress, IProtocolNegotiationFactory
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure
from typing_extensions import TypeVar
from zope.interface import implementer

from ...core.errors import ConnectionClosed, Fault, MsgprotoError, Refused
from ...core.limits import Limit, Limits
from ...core.machine import Table
from ...core.session_memory import SESSION_LIMIT
from ...net.authentication import Authentication, Passcode
from ...net.authorising import CALL, PUBLISH, SUBSCRIBE, Authoriser
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
from ...net.limit_types import UmqClientLimits, UmqServerLimits
from ...net.session import ClientSession, LoginLink, hook
from ...net.sink import MessageSink
from ...net.wires.websocket import (
    WebSocketClientFactory,
    WebSocketServerFactory,
)
from ..application import Hub, MethodRegistry
from ..machine.sides import UNDECIDED, Client, Server
from ..terms import (
    HELLO_ATTACHMENT_BYTES,
    HELLO_CHARACTERS,
    SERVER,
    HelloReceived,
    WelcomeReceived,
)
from ..wire import Code
from .calls import PROTOCOL, Reply
from .session import LIMITS, SUBPROTOCOL, UmqLink, UmqSession


class UmqServerLink(LoginLink, UmqLink):
    machine: Server
    machineKind = Server

    def keptTooMuch(self, what: str) -> None:
        self.factory.limitMet(SESSION_LIMIT, what)

    def _onHello(self, hello: HelloReceived) -> None:
        self.decide(hello).addCallback(self._authorised, hello).addErrback(self._rejected)

    def _failAll(self, reason: Failure) -> None:
        super()._failAll(reason)
        self.endLogin()

    def peerFaulted(self, fault: Fault) -> None:
        if fault.reason != UNDECIDED:
            super().peerFaulted(fault)
            return
        self.count("authorisations_timed_out")
        self.log.warn("{peer}: nobody has decided in time who it is", peer=self.peer)
        self._leave(ConnectionClosed(fault.text))

    def _authorised(self, identity: str | None, hello: HelloReceived) -> None:
        if self.machine.closed:
            return
        if identity is not None:
            self.clientId = identity
        welcome = self.protocol.welcome(hello)
        reply = welcome if isinstance(welcome, Reply) else Reply(welcome)
        self.machine.welcome(reply.payload, self.calls.bodies(reply.attachments))
        self.establish()
        self._settle()

    def _rejected(self, failure: Failure) -> None:
        if self.machine.closed:
            return
        self.count("rejected")
        code, text = Code.UNAVAILABLE.value, "temporarily unavailable"
        if failure.check(LoginFailed, UnauthorizedLogin):
            code, text = Code.REJECTED.value, "rejected"
        elif failure.check(Refused):
            error: Any = failure.value
            code = error.code if isinstance(error.code, int) else Code.REJECTED.value
            text = str(error)
        else:
            self.log.failure("{peer}: authorisation failed", failure, peer=self.peer)
        self.closeSession(code, text)

    actions: ClassVar[dict[type, Any]] = {**UmqLink.actions, HelloReceived: _onHello}


class UmqServer(UmqSession, link=UmqServerLink):
    """The server's side of one connection; override the hooks of :class:`UmqSession`.

    Attributes:
        avatar: what the portal gave for this client, or None without one.
    """

    factory: UmqServerFactory
    link: UmqServerLink
    avatar: Any = None

    @hook
    def authorise(self, hello: HelloReceived) -> Any:
        """Return who the client is (``UM-06``): its identity as text, or None; or a Deferred for
        that.

        Raising Refused rejects the client with ``F`` and the error's code.  What has not fired
        after ``hello-seconds`` is cancelled, and the client is told to come again.  The default
        asks the factory's portal, with ``USER:PASSWORD`` in the payload, or nothing for an
        anonymous client; without a portal everybody may come in, as nobody in particular.

        An ``authorise`` of one's own that asks the portal does so through
        ``factory.authentication.login(credentials, address)``: there guesses wait and are counted.
        """
        if self.factory.authentication is None:
            return None
        user, colon, password = hello.payload.partition(":")
        if not hello.payload:
            return self.link.login(Anonymous())
        if not colon:
            raise Refused("rejected", Code.REJECTED.value)
        return self.link.login(Passcode(user, password))

    @hook
    def welcome(self, hello: HelloReceived) -> str | Reply:
        """Return the payload of our ``W``, or a :class:`~.calls.Reply` (``UM-07``)."""
        return ""


@implementer(IProtocolNegotiationFactory)
class UmqServerFactory(MsgprotoServerFactory):
    """The maker of a :class:`UmqServer` for each client that connects.

    What :meth:`buildProtocol` returns is the connection that carries it; its ``session`` is the
    :class:`UmqServer`.

    Attributes:
        methods: the methods that clients may call, or None.
        portal: who may come in, or None for everybody.
        authentication: asks the portal; None without one.
        webSocket: the factory of the connections.
    """

    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = LIMITS
    actions: ClassVar[frozenset[str]] = frozenset({CALL, PUBLISH, SUBSCRIBE})
    stateTable: ClassVar[Table[Any] | None] = SERVER
    protocol: type[UmqServer] = UmqServer  # type: ignore[assignment]

    def __init__(
        self,
        sink: MessageSink | None = None,
        *,
        limits: UmqServerLimits | Limits | None = None,
        methods: MethodRegistry | None = None,
        portal: Portal | None = None,
        origins: Sequence[str] = (),
        **settings: Unpack[ServerSettings],
    ) -> None:
        """As :class:`MsgprotoServerFactory`; ``origins`` are the web pages that may connect."""
        super().__init__(sink, limits=limits, **settings)
        self.webSocket: WebSocketServerFactory = WebSocketServerFactory(
            self, super().buildProtocol, self.limits, origins=origins, protocols=[SUBPROTOCOL]
        )
        self.webSocket.first_bytes = HELLO_BYTES
        expect("methods", methods, "a MethodRegistry", isinstance(methods, MethodRegistry | None))
        self.methods = methods
        self.portal = portal
        self.authentication: Authentication | None = None
        if portal is not None:
            self.authentication = Authentication(portal, self, self.limits["hello-seconds"])

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return self.webSocket.buildProtocol(addr)

    def acceptableProtocols(self) -> list[bytes]:
        """Return what TLS may agree on."""
        return self.webSocket.acceptableProtocols()

    def push(
        self,
        clientId: str,
        payload: str,
        attachments: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Deferred[Reply]:
        """Call the newest session of a client (``UM-09``); its answer.

        Fails with ConnectionClosed if the client has none, and as :meth:`UmqSession.call`.
        """
        return self.toNewest(clientId, lambda session: session.call(payload, attachments, timeout))

    def drain(self) -> Deferred[None]:
        """As :meth:`MsgprotoServerFactory.drain`; connections before their upgrade end at once."""
        self.webSocket.abortUpgrades()
        return super().drain()


HELLO_BYTES: Final = max(HELLO_CHARACTERS + 32, HELLO_ATTACHMENT_BYTES)
"""A message is not larger before anybody is authorised: as large as one of ``H``."""


class UmqClientLink(ClientLink, UmqLink):
    machine: Client
    machineKind = Client
    readsWhileUnread = True  # it writes calls, and reads their answers

    def transportSecured(self) -> None:
        client = self.protocol
        self.machine.hello(client.hello(), self.calls.bodies(client.helloAttachments()))
        self._settle()

    def _onWelcome(self, welcome: WelcomeReceived) -> None:
        deciding = maybeDeferred(self.protocol.welcomed, welcome)
        if not deciding.called:
            self.pauseReading("authorising")
        deciding.addCallback(self._accepted).addErrback(self._notAccepted)

    def _accepted(self, result: object) -> None:
        if self.machine.closed:
            return
        if result is not None:
            raise TypeError(f"welcomed accepts with None, and else raises; not {result!r}")
        self.resumeReading("authorising")
        self.establish()
        self._follow(self.machine.accept(self._now()))

    def _notAccepted(self, failure: Failure) -> None:
        if not failure.check(MsgprotoError):
            self.log.failure("{peer}: the server is not accepted", failure, peer=self.peer)
        self.setCloseReason(Refused("the server was not accepted", Code.REJECTED.value))
        self.closeSession(Code.REJECTED.value, "the server is not accepted")

    actions: ClassVar[dict[type, Any]] = {**UmqLink.actions, WelcomeReceived: _onWelcome}


class UmqClient(ClientSession, UmqSession, link=UmqClientLink):
    """The client's side of one connection; override the hooks of :class:`UmqSession`."""

    factory: UmqClientFactory
    link: UmqClientLink

    @hook
    def hello(self) -> str:
        """Return the payload of our ``H`` (``UM-06``); the default is the factory's ``hello``."""
        return self.factory.hello

    @hook
    def helloAttachments(self) -> Sequence[Any]:
        """Return the attachments of our ``H``: bytes, or Deferreds that fire with bytes
        (``UM-06``).

        The default is the factory's ``helloAttachments``.  A server takes few and small ones, since
        nobody is authorised yet.
        """
        return self.factory.helloAttachments

    @hook
    def welcomed(self, welcome: WelcomeReceived) -> Any:
        """Decide whether we accept the server that has accepted us (``UM-07``).

        Raise, or return a Deferred that fails, to end the session with ``F`` 1.
        """


class UmqClientFactory(SessionFactory, ClientFactory):
    """The maker of a :class:`UmqClient` for one server's address.

    What :meth:`buildProtocol` returns is the connection that carries it; its ``whenEstablished()``
    fires with the :class:`UmqClient`, as that of all clients does.

    Attributes as :class:`SessionFactory` has them, for the client's one connection at a time;
    ``hello`` is the payload of ``H``, ``helloAttachments`` are its attachments.
    """

    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = (*LIMITS, *UNSENT_LIMITS)
    protocol: type[UmqClient] = UmqClient  # type: ignore[assignment]

    def __init__(
        self,
        url: str,
        sink: MessageSink | None = None,
        *,
        hello: str = "",
        helloAttachments: Sequence[Any] = (),
        limits: UmqClientLimits | Limits | None = None,
        methods: MethodRegistry | None = None,
        origin: str | None = None,
        **settings: Unpack[SessionSettings],
    ) -> None:
        """Connect to ``url`` (``ws://…`` or ``wss://…``); ConfigurationError for anything else.

        Raises ValueError or TypeError for a ``hello`` that cannot be sent.
        """
        super().__init__(sink, limits=limits, **settings)
        self.webSocket: WebSocketClientFactory = WebSocketClientFactory(
            self, super().buildProtocol, self.limits, url, origin=origin, protocols=[SUBPROTOCOL]
        )
        self.helloAttachments: Sequence[Any] = tuple(helloAttachments)
        ready = [body for body in self.helloAttachments if not isinstance(body, Deferred)]
        Client(self.limits).hello(hello, ready)  # a trial
        expect("methods", methods, "a MethodRegistry", isinstance(methods, MethodRegistry | None))
        self.hello = hello
        self.methods = methods

    def buildProtocol(self, addr: IAddress | None) -> Any:
        return self.webSocket.buildProtocol(addr)


C = TypeVar("C", bound=UmqClient, default=UmqClient)


def connect(
    url: str,
    *,
    client: type[C] = UmqClient,  # type: ignore[assignment]
    factory: UmqClientFactory | None = None,
    limits: UmqClientLimits | Limits | None = None,
    timeout: float = 30.0,
    reactor: Any = None,
    tls: ClientTLS | None = None,
    endpoint: ClientEndpoint | None = None,
    hello: str = "",
    helloAttachments: Sequence[bytes] = (),
    methods: MethodRegistry | None = None,
    origin: str | None = None,
) -> Connecting[C]:
    """Return what connects to a server when it is awaited or entered: a :class:`.Connecting`.

    ``url``: ``ws://HOST[:PORT]/PATH`` or ``wss://…``.  ``client``: the class of the client.
    ``factory``: one of your own, which has the settings itself.  ``timeout``: seconds until the
    session stands.  ``tls`` takes the place of the system's authorities.  ``endpoint``: where to
    connect to instead of the URL's host.  The rest is as for :class:`UmqClientFactory`.

    Raises ConfigurationError for an address or a limit that makes no sense, TypeError for settings
    beside ``factory``.
    """
    reactor = running(reactor)
    made = factory_of(
        UmqClientFactory,
        factory,
        reactor,
        url,
        client=client,
        hello=hello,
        helloAttachments=helloAttachments,
        methods=methods,
        origin=origin,
        limits=limits,
    )
    if endpoint is None:
        return connecting(url, made, timeout, reactor, tls=tls, connected=lambda url: made)
    return connecting(endpoint, made, timeout, reactor, tls=tls)


def serve(
    at: Where | Sequence[Where],
    *,
    sink: MessageSink | None = None,
    queue: str | PathLike[str] | None = None,
    server: type[UmqServer] = UmqServer,
    factory: UmqServerFactory | None = None,
    limits: UmqServerLimits | Limits | None = None,
    authoriser: Authoriser | None = None,
    reactor: Any = None,
    methods: MethodRegistry | None = None,
    portal: Portal | None = None,
    origins: Sequence[str] = (),
) -> Serving[UmqServerFactory]:
    """Return what listens when it is awaited or entered: a :class:`.Serving`.

    ``at``: strings of Twisted server endpoints, as the command line takes them, or endpoints.
    ``sink`` gets the messages and is never closed; ``queue`` is a directory whose queue is opened
    and closed with the server.  ``server``: the class of the sessions.  ``factory``: one of your
    own, which has the settings itself.  With a ``sink`` or a ``queue``, and without ``methods`` and
    ``server``, it does as ``twistd umq`` does: every call is stored, and one of the form
    ``["METHOD", …]`` is answered with :class:`.Stored`, but for the methods of a :class:`.Hub`.
    The rest is as for :class:`UmqServerFactory`.

    Raises ConfigurationError for an address, an origin or a limit that makes no sense, TypeError
    for settings beside ``factory``, and for ``sink`` and ``queue`` together.
    """
    reactor = running(reactor)
    sink, owned = sink_of(sink, queue, factory, reactor)
    if server is UmqServer and sink is not None and methods is None and factory is None:
        methods = Hub().methods  # as ``twistd umq`` has; a call by name is no success by itself
    made = factory_of(
        UmqServerFactory,
        factory,
        reactor,
        server=server,
        sink=sink,
        limits=limits,
        authoriser=authoriser,
        methods=methods,
        portal=portal,
        origins=origins,
    )
    wanted = [(one, made, over_websocket) for one in endpoints_of(at)]
    return Serving(made, Ports(reactor, made, wanted), owned, reactor)
