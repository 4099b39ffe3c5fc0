"""MTL's client on Twisted: verbs that return Deferreds, over sockets that come and go.

When the server does not answer the client drops its socket, connects again and renews its leases;
what a writer has in flight is sent again then, so contents arrive at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NoReturn, Unpack

import zmq
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.interfaces import IAddress
from twisted.python.failure import Failure
from typing_extensions import TypeVar

from ...core.errors import ConfigurationError, ConnectionClosed, Refused, TimedOut
from ...core.limits import Limit, Limits
from ...net.clients.client import ClientLink
from ...net.clients.reconnect import (
    DRAIN_SECONDS,
    ReconnectingService,
    ReconnectOptions,
    ReconnectState,
)
from ...net.deferreds import Tickets
from ...net.factory import SessionFactory, expect
from ...net.lifetimes import Connecting, factory_of, running
from ...net.limit_types import MtlClientLimits
from ...net.logs import SteadyLogger
from ...net.session import ClientSession
from ..machine.client import Client, Credentials
from ..terms import (
    CLIENT_LIMITS,
    Answered,
    ClientEvent,
    ClientState,
    LeaseGranted,
    RequestRefused,
    RequestTimedOut,
    SocketDropped,
)
from ..wire import Reply
from ..wire.data import FieldValue
from ..zeromq import Bounds, CurveClient, check_address, messages_within, with_port
from ..zeromq.sockets import Sockets
from . import PROTOCOL, DealerWire, NoSocket
from .flows import RENEWAL_SECONDS, FlowLink, MtlFlow, MtlReader, MtlWriter, Received

FLOWS_OWN = 32
"""Resources to which a service writes through flows of their own; our servers give a session 64
leases."""


class ControlLink(ClientLink):
    """The control flow of a client, whose data flows have links of their own."""

    log: ClassVar[SteadyLogger] = SteadyLogger(namespace="twisted_msgproto.mtl")
    noInputs: ClassVar[Any] = ()
    readsWhileDraining: ClassVar[bool] = True
    answerEvents: ClassVar[frozenset[type]] = frozenset({Answered, RequestRefused, RequestTimedOut})

    factory: MtlClientFactory
    machine: Client
    wire: DealerWire
    owner: MtlClientService | None = None  # who hears what happens
    endpoint: str

    def __init__(self, protocol: MtlClient) -> None:
        super().__init__(protocol)
        self.flows: dict[int, FlowLink] = {}  # by the number of their lease
        self._requests: Tickets[Reply] = Tickets()
        self._trouble = ""  # of the control socket that was dropped last
        content_bytes = self.factory.limits.integer("content-bytes")
        messages = messages_within(self.factory.limits.integer("peer-bytes"), content_bytes)
        self._bounds = Bounds(content_bytes, received_messages=messages)
        # What is not confirmed has no window that bounds it.
        self._bounds_unconfirmed = replace(self._bounds, peer_messages=messages)
        self._sockets = self.factory.makeSockets(self.factory.clock)

    def begin(self, endpoint: str, persistent: bool) -> None:
        """Connect a socket to ``endpoint``; ConfigurationError if that cannot be."""
        self.endpoint = endpoint
        self._persistent = persistent
        wire = DealerWire(self.factory.clock, endpoint, self._wireClosed)
        try:
            wire.use(self._controlSocket())
        except ConfigurationError:
            self._sockets.shutdown()
            raise
        self.protocol.makeConnection(wire)

    def _wireClosed(self) -> None:
        self.protocol.connectionLost()

    def makeMachine(self) -> Client:
        return Client(self.factory.limits, self.factory.counters.settled)

    def _socket(
        self, received: Callable[[list[list[bytes]]], None], address: str, bounds: Bounds
    ) -> Any:
        """Return a socket; none if the system has no more: who waits for an answer tries again."""
        try:
            socket = self._sockets.dealer(received, bounds, self.factory.curve)
        except zmq.ZMQError as error:
            return NoSocket(f"no socket can be made: {error.strerror}")
        socket.connect(address)
        return socket

    def dataSocket(
        self, received: Callable[[list[list[bytes]]], None], port: int, confirms: bool
    ) -> Any:
        bounds = self._bounds if confirms else self._bounds_unconfirmed
        return self._socket(received, with_port(self.endpoint, port), bounds)

    def _controlSocket(self) -> Any:
        socket = self._socket(self.received, self.endpoint, self._bounds)
        socket.refused = self._turnedAway
        return socket

    def _turnedAway(self, text: str) -> None:
        reason = f"the server will not have us: {text}"
        self._follow(self.machine.turned_away(reason, self._now()))

    def _follow(self, events: Iterable[ClientEvent]) -> None:
        events = list(events)
        super()._follow(events)
        if self.owner is not None:
            for event in events:
                self.owner.happened(self.protocol, event)

    # ── for verbs ───────────────────────────────────────────────────────────────────────────────

    def _over(self) -> Deferred[Any] | None:
        over = self._ended or self.closing
        return fail(ConnectionClosed("the client was closed")) if over else None

    def request(self, verb: Callable[..., int], argument: Any) -> Deferred[Reply]:
        if over := self._over():
            return over
        try:
            self._requests.check()
            number = verb(argument, self._now())
        except ValueError as error:
            return fail(error)
        ticket = self._requests.issue(number)
        self._takeUp()
        return ticket

    def lease(
        self,
        kind: Callable[..., MtlFlow],
        verb: Callable[..., int],
        resources: Sequence[str],
        confirm: str,
        *settings: Any,
    ) -> Deferred[Any]:
        """Ask for a lease; fires with the flow, of this kind, when the server has accepted it."""
        if over := self._over():
            return over
        listed = isinstance(resources, Collection) and not isinstance(resources, str | bytes)
        expect("resources", resources, "a list of names", listed)
        try:
            number = verb(resources, confirm, self._now())
        except ValueError as error:
            return fail(error)
        flow = kind(self, confirm == "full", *settings)
        self.flows[number] = flow.link
        opened: Deferred[Any] = flow.link.leasing(number)
        self._takeUp()
        return opened

    def notLetIn(self, failure: Failure) -> Failure:
        if failure.check(Refused, TimedOut) is not None:
            self._standing.fail(failure)
        return failure

    def establish(self) -> None:
        if not self._established:  # else it has logged in once more
            super().establish()

    def endSession(self, reason: Failure) -> None:
        if self._established:
            self._established = False
            self._guarded(self.protocol.sessionLost, reason)

    def _takeUp(self) -> None:
        self._follow(self.machine.receive((), self._now()))

    # ── the flows ───────────────────────────────────────────────────────────────────────────────

    def renewLease(self, number: int) -> None:
        self.machine.renew(number, self._now())
        self._takeUp()

    def flowEnded(self, flow: FlowLink) -> None:
        self.machine.release(flow.number)
        self.flows.pop(flow.number, None)
        if self.owner is not None:
            self.owner.flowEnded(self.protocol)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def endInOrder(self) -> None:
        for flow in list(self.flows.values()):
            flow.drain()
        self.endIfAlone()

    def endIfAlone(self) -> None:
        if self.closing and not self.flows:
            self.drain()

    def endNow(self) -> None:
        self._abort()

    def whyLost(self, reason: Failure) -> Exception:
        return self.closeReason or ConnectionClosed("the client was closed")

    def workLost(self, work: list[int], reason: Failure) -> None:
        for number in work:
            self._requests.fail(number, self.whyLost(reason))

    def sessionEnding(self, reason: Failure) -> None:
        for flow in list(self.flows.values()):
            flow.close()
        self._sockets.shutdown()
        super().sessionEnding(reason)

    # ── the machine's events ────────────────────────────────────────────────────────────────────

    def _socketDropped(self, event: SocketDropped) -> None:
        self._trouble = self.wire.trouble
        self.wire.drop()
        self.wire.use(self._controlSocket())

    def _answered(self, event: Answered) -> None:
        self._requests.done(event.number, event.reply)

    def _leaseGranted(self, event: LeaseGranted) -> None:
        flow = self.flows.get(event.number)
        if flow is not None:
            flow.renew(event)
        else:
            self.machine.release(event.number)  # its flow has ended meanwhile

    def _refused(self, event: RequestRefused) -> None:
        self._failed(event.number, Refused(event.reason, event.code))

    def _timedOut(self, event: RequestTimedOut) -> None:
        text, trouble = "the server does not answer", self._trouble
        self._failed(event.number, TimedOut(f"{text}: {trouble}" if trouble else text))

    actions: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **ClientLink.actions,
        SocketDropped: _socketDropped,
        Answered: _answered,
        LeaseGranted: _leaseGranted,
        RequestRefused: _refused,
        RequestTimedOut: _timedOut,
    }

    def _failed(self, number: int, error: Exception) -> None:
        flow = self.flows.get(number)
        if self._requests.fail(number, error) or flow is None:
            return
        if self._persistent and flow.opened and isinstance(error, TimedOut):
            # It stood once: go on trying, the server may come back.
            flow.renewLater(RENEWAL_SECONDS)
        else:
            flow.fail(error)


class MtlClient(ClientSession, link=ControlLink):
    """A client: one control flow, and any number of data flows.

    Its session stands when ``open`` was answered with the profiles, or else ``authorize``.  One
    that the server has forgotten stands meanwhile: the next verb opens it again.

    Attributes:
        limits: the limits in force.
        clock: what the factory's is.
    """

    factory: MtlClientFactory
    link: ControlLink

    def __init__(
        self,
        endpoint: str,
        factory: MtlClientFactory | None = None,
        *,
        persistent: bool = True,
    ) -> None:
        """``endpoint`` is the control flow's ZeroMQ address; ``factory`` has limits, keys and
        sockets.  ``persistent``: a flow that stood once waits for a server that does not answer
        any more, for ever; else it ends with TimedOut.  Raises ConfigurationError for what is no
        address.
        """
        check_address(endpoint)
        self.factory = MtlClientFactory() if factory is None else factory
        self.clock: Any = self.factory.clock
        self.limits: Limits = self.factory.limits
        self.link.begin(endpoint, persistent)

    @property
    def flows(self) -> Mapping[int, MtlFlow]:
        """Return the data flows, by the number of their lease."""
        return {number: link.protocol for number, link in self.link.flows.items()}

    def open(self, virtualHost: str) -> Deferred[Sequence[str]]:
        """Open a session: the profiles, or nothing when the client has to authorize first.

        The flows of a session before this one are closed.
        """
        link = self.link
        flows = list(link.flows.values())
        opened = link.request(link.machine.open, virtualHost)
        if not opened.called:  # else it could not be asked for
            link.endSession(Failure(ConnectionClosed("another session is opened")))
            for flow in flows:
                flow.close()
        return opened.addCallbacks(self._opened, link.notLetIn)

    def _opened(self, reply: Reply) -> Sequence[str]:
        return self._letIn(reply) if reply.code == 201 else []

    def authorize(self, credentials: Credentials) -> Deferred[Sequence[str]]:
        """Authenticate by ``sasl.credentials``: the profiles; fails with Refused."""
        expect("credentials", credentials, "what credentials(…) returns", callable(credentials))
        link = self.link
        authorized = link.request(link.machine.authorize, credentials)
        return authorized.addCallbacks(self._letIn, link.notLetIn)

    def _letIn(self, reply: Reply) -> Sequence[str]:
        self.link.establish()
        return list(self.link.machine.profiles)

    def profile(self, name: str) -> Deferred[None]:
        """Select a profile; the flows of the one before are closed."""
        link = self.link
        flows = list(link.flows.values())  # not those that are asked for before the answer

        def selected(reply: Reply) -> None:
            for flow in flows:
                flow.close()

        return link.request(link.machine.profile, name).addCallback(selected)

    def reader(
        self,
        resources: Sequence[str],
        confirm: str = "full",
        received: Callable[[Received], object] | None = None,
    ) -> Deferred[MtlReader]:
        """A data flow that reads; fires when the server has accepted its lease.

        ``received`` is called with each content.  Without it contents are kept for ``async for``
        over the flow.
        """
        good = received is None or callable(received)
        expect("received", received, "a function of a Received", good)
        link = self.link
        return link.lease(MtlReader, link.machine.reader, resources, confirm, received)

    def writer(self, resources: Sequence[str], confirm: str = "full") -> Deferred[MtlWriter]:
        """A data flow that writes; fires when the server has accepted its lease."""
        link = self.link
        return link.lease(MtlWriter, link.machine.writer, resources, confirm)


class MtlClientFactory(SessionFactory):
    """What every session of a client needs: a virtual host, a profile, credentials, limits.

    Attributes:
        protocol: the class of the clients; a subclass of :class:`MtlClient`.
        virtualHost: what is opened.
        profile: the profile's name, or None.
        credentials: as :meth:`MtlClient.authorize` takes them, or None.
        curve: our keys, or None.
        makeSockets: ``makeSockets(clock)`` makes the sockets of one client.
    """

    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = CLIENT_LIMITS
    protocol: type[MtlClient] = MtlClient

    def __init__(
        self,
        virtualHost: str = "",
        profile: str | None = None,
        *,
        credentials: Credentials | None = None,
        limits: MtlClientLimits | Limits | None = None,
        curve: CurveClient | None = None,
        clock: Any = None,
        sockets: Callable[[Any], Any] = Sockets,
    ) -> None:
        """``profile``: its name, or None to select none.

        ``credentials`` as :meth:`MtlClient.authorize` takes them; ``limits`` change
        :data:`.CLIENT_LIMITS`; ``sockets(clock)`` makes the sockets of a client.
        """
        super().__init__(limits=limits, clock=clock)
        expect("virtualHost", virtualHost, "a text", isinstance(virtualHost, str))
        expect("profile", profile, "a text", isinstance(profile, str | None))
        asked = credentials is None or callable(credentials)
        expect("credentials", credentials, "what credentials(…) returns", asked)
        expect("curve", curve, "a CurveClient", isinstance(curve, CurveClient | None))
        self.virtualHost = virtualHost
        self.profile = profile
        self.credentials = credentials
        self.curve = curve
        self.makeSockets = sockets

    def doStart(self) -> NoReturn:
        """Raise ConfigurationError: an endpoint of Twisted's has no ZeroMQ."""
        raise ConfigurationError(
            "MTL is on ZeroMQ, which endpoints of Twisted's do not speak: use"
            " mtl.connect('tcp://HOST:PORT', …), or this factory's buildClient('tcp://HOST:PORT')"
        )

    def buildProtocol(self, addr: IAddress | None) -> NoReturn:
        """Raise ConfigurationError, as :meth:`doStart`."""
        self.doStart()

    def buildClient(self, endpoint: str) -> MtlClient:
        """Return a client without a session; ConfigurationError for what is no ZeroMQ address."""
        return self.protocol(endpoint, self)

    async def enter(self, client: MtlClient) -> MtlClient:
        """Open a session, authorize if the server asks for that, select the profile.

        Raises Refused and TimedOut.
        """
        await client.open(self.virtualHost)
        if client.link.machine.state is ClientState.UNAUTHORIZED:
            if self.credentials is None:
                raise Refused("the server wants to know who we are", 401)
            await client.authorize(self.credentials)
        if self.profile is not None:
            await client.profile(self.profile)
        return client


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


# ── A client that comes back ──────────────────────────────────────────────────────────────────────


class MtlClientService(ReconnectingService[MtlClient]):
    """A session and its flows; see ``ReconnectingService``.

    A flow that stands survives the server: its lease is renewed, and what it has in flight is sent
    again, so contents arrive at least once.  A log-in that is refused ends the flows with Refused.

    While the server is away nobody hears of it before somebody asks: a flow does so by itself
    within the limit ``liveness``, a client without flows with its next verb.
    """

    def __init__(
        self, endpoint: str, factory: MtlClientFactory, **options: Unpack[ReconnectOptions]
    ) -> None:
        """``endpoint`` is the control flow's ZeroMQ address; ``options`` are those of the base.

        Raises ConfigurationError for what is no address.
        """
        check_address(endpoint)
        drain = factory.limits.get("drain", DRAIN_SECONDS)
        options.setdefault("drain", drain)
        super().__init__(factory.clock, **options)
        self.factory = factory
        self._endpoint = endpoint
        self._client: MtlClient | None = None  # of the session, or of the attempt at hand
        self._call: Any = None  # the next attempt
        # Both by resource; None: one flow of all those that have none of their own.
        self._writers: dict[str | None, MtlWriter] = {}
        self._leasing: dict[str | None, list[Deferred[MtlWriter]]] = {}

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def writer(self, resources: Sequence[str], confirm: str = "full") -> Deferred[MtlWriter]:
        """Is a data flow that writes, in the present session or in the next one.

        Waiting for a session lasts at most ``request-timeout`` × ``request-tries`` (TimedOut).
        """
        return self.perform(
            lambda client, left: client.writer(resources, confirm), seconds=self._seconds
        )

    def reader(
        self,
        resources: Sequence[str],
        confirm: str = "full",
        received: Callable[[Received], object] | None = None,
    ) -> Deferred[MtlReader]:
        """A data flow that reads, as :meth:`.MtlClient.reader`; waits as :meth:`writer` does."""
        return self.perform(
            lambda client, left: client.reader(resources, confirm, received),
            seconds=self._seconds,
        )

    def send(
        self,
        resource: str,
        body: bytes,
        properties: Mapping[str, FieldValue] | None = None,
    ) -> Deferred[None]:
        """Send one content; fires when the server has it safe, however often it goes away.

        The service keeps a flow with confirm ``full`` for each resource; after 32 of them the
        others have one together.  Waiting for the first session is bounded as for :meth:`writer`;
        fails as :meth:`~.flows.MtlWriter.send` does.
        """
        return self.perform(
            lambda client, left: self._writerFor(client, resource).addCallback(
                lambda writer: writer.send(resource, body, properties)
            ),
            seconds=self._seconds,
            nbytes=len(body),
        )

    @property
    def _seconds(self) -> float:
        limits = self.factory.limits
        return limits["request-timeout"] * limits["request-tries"]

    def _writerFor(self, client: MtlClient, resource: str) -> Deferred[MtlWriter]:
        writers, leasing = self._writers, self._leasing
        own = resource in writers or resource in leasing or len(writers) + len(leasing) < FLOWS_OWN
        key = resource if own else None
        writer = writers.get(key)
        if writer is not None and writer.stands:
            return succeed(writer)
        waiting: Deferred[MtlWriter] = Deferred()
        asking = leasing.setdefault(key, [])
        asking.append(waiting)
        if len(asking) == 1:
            client.writer([] if key is None else [key]).addBoth(self._leased, key)
        return waiting

    def _leased(self, writer: MtlWriter | Failure, key: str | None) -> None:
        if isinstance(writer, MtlWriter):
            self._writers[key] = writer
        for waiting in self._leasing.pop(key, ()):
            if not waiting.called:  # its caller may have cancelled it
                waiting.callback(writer)

    # ── attempts ────────────────────────────────────────────────────────────────────────────────

    def whenEstablished(self) -> Deferred[MtlClient]:
        """As :meth:`ReconnectingService.whenEstablished`; it waits while the server is away."""
        if self.session is not None and self.state is not ReconnectState.UP:
            return self._standing.wait()
        return super().whenEstablished()

    def _begin(self) -> None:
        self._attempting()
        client = self.factory.buildClient(self._endpoint)
        if self._closing or self._client is not None:  # a hook has stopped this, or begun anew
            client.abort()
            return
        self._client = client
        client.link.owner = self

        def current(then: Callable[[Any], object]) -> Callable[[Any], object]:
            return lambda result: then(result) if client is self._client else None

        lost = current(partial(self._lost, client))
        client.link.whenGone().addCallback(lambda _: lost(Failure(client.link.closeReason)))
        ensureDeferred(self.factory.enter(client)).addCallbacks(current(self._established), lost)

    def _lost(self, client: MtlClient, failure: Failure) -> None:
        self._client = None
        if self._closing:
            return
        error: Any = failure.value
        self._failed(error)
        for flow in list(client.link.flows.values()):
            flow.fail(error)
        client.abort()
        if self._closing:
            return  # somebody's callback has stopped the service
        seconds = self._delay()
        if not (self._stopWhenRefused and self.state is ReconnectState.REFUSED):
            self._call = self.clock.callLater(seconds, self._begin)

    # ── what the client of the session says ─────────────────────────────────────────────────────

    def happened(self, client: MtlClient, event: ClientEvent) -> None:
        """Follow an event of the control flow of ``client``."""
        if client is not self.session or self._closing:
            return
        match event:
            case SocketDropped():
                if self.state is ReconnectState.UP:
                    self._change(ReconnectState.CONNECTING)
            case Answered() | LeaseGranted():
                if self.state is not ReconnectState.UP:
                    self._established(client)
            case RequestTimedOut():
                self._change(ReconnectState.DOWN)
                self.flowEnded(client)
            case RequestRefused() if event.code == 401 or not self._stands(client):
                self._change(ReconnectState.CONNECTING)  # it does not stand any more
                self._lost(client, Failure(Refused(event.reason, event.code)))

    def _stands(self, client: MtlClient) -> bool:
        state, profiled = client.link.machine.state, self.factory.profile is not None
        return state is ClientState.PROFILED or (state is ClientState.READY and not profiled)

    def flowEnded(self, client: MtlClient) -> None:
        """A flow of ``client`` is over: without flows nobody asks for a server that is away."""
        if client is self.session and self.state is ReconnectState.DOWN and not client.flows:
            self._lost(client, Failure(TimedOut("the server does not answer")))

    def _isOver(self, session: MtlClient) -> bool:
        return session is not self._client

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def _closeSession(self, session: MtlClient) -> Deferred[None]:
        return session.close()

    def _leave(self) -> Deferred[None]:
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._cutOff()
        return succeed(None)

    def _cutOff(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.abort()
