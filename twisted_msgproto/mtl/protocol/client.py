"""MTL's client on Twisted: verbs which return Deferreds, over sockets which come and go.

::

    client = MtlClient("tcp://127.0.0.1:5049")
    await client.open("host")                      # the profiles, or () when it has to authorize
    await client.authorize(credentials("user", "password"))
    await client.profile("queue")
    writer = await client.writer(["orders"], "full")
    await writer.send("orders", b"…")              # fires when the server has it safe
    reader = await client.reader(["orders"], "full", received=print)
    await reader.summon("orders")
    await client.close()

When the server does not answer the client drops its socket, connects again, opens the session
again and renews its leases; what a writer has in flight is sent again then, so contents arrive at
least once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from ...core.errors import ConfigurationError, ConnectionClosed, LimitExceeded, Refused, TimedOut
from ...core.limits import Limits
from ...net.factory import SessionFactory
from ...net.link import Link, SteadyLogger
from ..machine.client import Client, Credentials
from ..terms.events import (
    Answered,
    LeaseGranted,
    RequestRefused,
    RequestTimedOut,
    SocketDropped,
)
from ..terms.limits import CLIENT_LIMITS
from ..terms.states import ClientState
from ..zeromq import Bounds, CurveClient, Sockets, check_address, with_port
from .dealer import DealerWire
from .flows import MtlFlow, MtlReader, MtlWriter, Received
from .link import PROTOCOL

RENEWAL_SECONDS = 1.0
"""After a lease could not be renewed: how long until the client tries again."""

REQUESTS_MAX = 10_000
"""Requests of one client which wait for their answers; of those one at a time is out."""

NOT_AUTHORIZED = 401
"""The server's answer to who is not, or no more, who it says it is."""


class MtlClient(Link):
    """A client: one control flow, and any number of data flows, each with a link of its own.

    Attributes:
        machine: the control flow's machine; its ``snapshot()`` tells where the client stands.
        flows: the data flows, by the number of their lease.
        limits: the limits in force.
        clock: what the factory's is.
    """

    log: ClassVar = SteadyLogger(namespace="twisted_msgproto.mtl")
    noInputs: ClassVar = ()
    readsWhileDraining: ClassVar = True
    answerEvents: ClassVar = frozenset({Answered, RequestRefused, RequestTimedOut})

    factory: MtlClientFactory
    machine: Client
    wire: DealerWire

    def __init__(
        self,
        endpoint: str,
        *,
        limits: Mapping[str, object] | None = None,
        curve: CurveClient | None = None,
        clock: Any = None,
        persistent: bool = True,
        sockets: Callable[[Any], Any] = Sockets,
        factory: MtlClientFactory | None = None,
    ) -> None:
        """``endpoint`` is the control flow's ZeroMQ address; ``limits`` change
        :data:`.CLIENT_LIMITS`.  ``persistent``: a flow which stood once waits for a server which
        does not answer any more, for ever; else it ends with TimedOut.  ``sockets(clock)`` makes
        the sockets.  ``factory``: limits, keys, clock and sockets are its own.  Raises
        ConfigurationError for what is no address.
        """
        check_address(endpoint)
        if factory is None:
            factory = MtlClientFactory(limits=limits, curve=curve, clock=clock, sockets=sockets)
        self.factory = factory
        self.clock = factory.clock
        self.limits = factory.limits
        self.flows: dict[int, MtlFlow] = {}
        self._endpoint = endpoint
        self._persistent = persistent
        self._waiting: dict[int, Deferred[Any]] = {}
        self._entering: dict[Deferred[MtlClient], None] = {}  # who waits in whenEstablished
        self._renewals: dict[MtlFlow, Any] = {}
        self._closing: list[Deferred[None]] = []
        self._deadline: Any = None  # of the orderly end
        self._trouble = ""  # of the control socket which was dropped last
        self._bounds = Bounds(
            self.limits.integer("content-octets"),
            # Flows bound what they send by themselves: nothing is thrown away here.
            unread_messages=1 << 40,
            unread_octets=1 << 60,
            unread_seconds=1e9,
        )
        self._sockets = factory.makeSockets(self.clock)
        wire = DealerWire(self.clock, endpoint, self.connectionLost)
        try:
            wire.use(self._socket(self.received, endpoint))
        except ConfigurationError:
            self._sockets.shutdown()
            raise
        self.makeConnection(wire)  # type: ignore[no-untyped-call]

    # ── the link ────────────────────────────────────────────────────────────────────────────────

    def makeMachine(self) -> Client:
        """Return the control flow's machine."""
        return Client(self.limits)

    def connectionMade(self) -> None:
        """Begin; a subclass which overrides this calls it first."""
        super().connectionMade()
        self.peer = self._endpoint

    def connectionCounters(self) -> Mapping[str, int]:
        """Return what the control flow has counted so far, by name."""
        return self.machine.counters

    def _socket(self, received: Callable[[list[list[bytes]]], None], address: str) -> Any:
        socket = self._sockets.dealer(received, self._bounds, self.factory.curve)
        socket.connect(address)
        return socket

    def dataSocket(self, received: Callable[[list[list[bytes]]], None], port: int) -> Any:
        """A socket for a data flow, connected to the server's data port."""
        return self._socket(received, with_port(self._endpoint, port))

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def whenEstablished(self) -> Deferred[MtlClient]:
        """Fires with this client when the server has let it in: when ``open`` was answered with
        the profiles, or else ``authorize``.

        Fails with the error of the request which should have let it in, and with ConnectionClosed
        when the client is closed first.  A session which the server has forgotten is opened again
        by the next verb, and stands meanwhile.
        """
        if over := self._over():
            return over
        if self._established:
            return succeed(self)
        waiting: Deferred[MtlClient] = Deferred(lambda gone: self._entering.pop(gone, None))
        self._entering[waiting] = None
        return waiting

    _established = False

    def open(self, virtualHost: str) -> Deferred[Sequence[str]]:
        """Open a session: the profiles, or nothing when the client has to authorize first.

        The flows of a session before this one are closed.
        """
        if over := self._over():
            return over
        for flow in list(self.flows.values()):
            flow.close()
        self._established = False
        opened = self._request(lambda now: self.machine.open(virtualHost, now))
        return opened.addCallbacks(self._opened, self._notEntered)

    def _opened(self, reply: Any) -> Sequence[str]:
        if reply.code != 201:
            return []
        self._entered()
        return list(self.machine.profiles)

    def authorize(self, credentials: Credentials) -> Deferred[Sequence[str]]:
        """Authenticate (see :func:`.net.sasl.credentials`): the profiles; fails with Refused."""
        if over := self._over():
            return over
        authorized = self._request(lambda now: self.machine.authorize(credentials, now))
        return authorized.addCallbacks(self._authorized, self._notEntered)

    def _authorized(self, reply: Any) -> Sequence[str]:
        self._entered()
        return list(self.machine.profiles)

    def _entered(self) -> None:
        self._established = self.machine.state in (ClientState.READY, ClientState.PROFILED)
        if self._established:
            self._tellEntering(lambda waiting: waiting.callback(self))

    def _notEntered(self, failure: Failure) -> Failure:
        if failure.check(Refused, TimedOut) is not None:
            self._tellEntering(lambda waiting: waiting.errback(failure.value))
        return failure

    def _tellEntering(self, tell: Callable[[Deferred[MtlClient]], None]) -> None:
        for waiting in list(self._entering):
            if waiting in self._entering:  # a callback of another may have cancelled it
                del self._entering[waiting]
                tell(waiting)

    def profile(self, name: str) -> Deferred[None]:
        """Select a profile; the flows of the one before are closed."""

        def selected(reply: Any) -> None:
            for flow in list(self.flows.values()):
                flow.close()

        if over := self._over():
            return over
        asked = self._request(lambda now: self.machine.profile(name, now))
        return asked.addCallback(selected)

    def reader(
        self,
        resources: Sequence[str],
        confirm: str = "full",
        received: Callable[[Received], object] | None = None,
    ) -> Deferred[MtlReader]:
        """A data flow which reads; fires when the server has accepted its lease.

        ``received`` is called with each content.  Without it contents are kept for ``async for``
        over the flow.
        """
        if over := self._over():
            return over
        flow = MtlReader(self, confirm == "full", received)
        return self._lease(flow, lambda now: self.machine.reader(resources, confirm, now))

    def writer(self, resources: Sequence[str], confirm: str = "full") -> Deferred[MtlWriter]:
        """A data flow which writes; fires when the server has accepted its lease."""
        if over := self._over():
            return over
        flow = MtlWriter(self, confirm == "full")
        return self._lease(flow, lambda now: self.machine.writer(resources, confirm, now))

    def _lease(self, flow: Any, verb: Callable[[float], int]) -> Deferred[Any]:
        if len(self.flows) >= REQUESTS_MAX:
            return fail(LimitExceeded(f"{REQUESTS_MAX} flows stand already"))
        try:
            number = verb(self._now())
        except ValueError as error:
            return fail(error)
        self.flows[number] = flow
        opened: Deferred[Any] = flow.leasing(number)
        self._takeUp()
        return opened

    def _over(self) -> Deferred[Any] | None:
        """What a verb gives when the client was closed, or ends."""
        over = self._ended or self._closing
        return fail(ConnectionClosed("the client was closed")) if over else None

    def _request(self, verb: Callable[[float], int]) -> Deferred[Any]:
        if len(self._waiting) >= REQUESTS_MAX:
            return fail(LimitExceeded(f"{REQUESTS_MAX} requests wait already"))
        try:
            number = verb(self._now())
        except ValueError as error:
            return fail(error)
        waiter: Deferred[Any] = Deferred(lambda _: self._forget(number))
        self._waiting[number] = waiter
        self._takeUp()
        return waiter

    def _forget(self, number: int) -> None:
        """Nobody wants to know any more; what was asked stays asked."""
        self._waiting.pop(number, None)

    def _takeUp(self) -> None:
        """A verb was called: send what it asks for, or follow what has failed at once."""
        self._follow(self.machine.receive((), self._now()))

    # ── the flows ───────────────────────────────────────────────────────────────────────────────

    def renewFlow(self, flow: MtlFlow) -> None:
        """A flow has lost its place at the server: get another lease for it."""
        if not self._ended:
            self.machine.renew(flow.number, self._now())
            self._takeUp()

    def flowEnded(self, flow: MtlFlow) -> None:
        """A flow is over: its lease is not renewed any more."""
        self.machine.release(flow.number)
        self.flows.pop(flow.number, None)
        renewal = self._renewals.pop(flow, None)
        if renewal is not None:
            renewal.cancel()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def close(self) -> Deferred[None]:
        """End in order: fires when what is in flight was answered, or after ``drain`` seconds.

        Further verbs fail with ConnectionClosed, and so does what is not answered by then.
        """
        if self._gone:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._closing.append(closed)
        if self._deadline is None:
            self._deadline = self.clock.callLater(self.limits["drain"], self._expired)
            for flow in list(self.flows.values()):
                flow.drain()
            self.endIfAlone()
        return closed

    def endIfAlone(self) -> None:
        """End in order, if that is wanted and no flow is left; requests are still answered."""
        if self._closing and not self.flows:
            self.drain()

    def _expired(self) -> None:
        self._deadline = None
        self.abort()

    def workLost(self, work: list[int], reason: Failure) -> None:
        """The requests with these numbers will not be answered."""
        for number in work:
            waiter = self._waiting.pop(number, None)
            if waiter is not None:
                waiter.errback(ConnectionClosed("the client was closed"))

    def sessionEnding(self, reason: Failure) -> None:
        """The client is closed, and all its flows are with it."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for flow in list(self.flows.values()):
            flow.close()
        self._sockets.shutdown()
        error = ConnectionClosed("the client was closed")
        self._tellEntering(lambda waiting: waiting.errback(error))
        closing, self._closing = self._closing, []
        for closed in closing:
            closed.callback(None)

    # ── the machine's events ────────────────────────────────────────────────────────────────────

    def _socketDropped(self, event: SocketDropped) -> None:
        self._trouble = self.wire.trouble
        self.wire.drop()
        self.wire.use(self._socket(self.received, self._endpoint))

    def _answered(self, event: Answered) -> None:
        waiter = self._waiting.pop(event.number, None)
        if waiter is not None:
            waiter.callback(event.reply)

    def _leaseGranted(self, event: LeaseGranted) -> None:
        flow = self.flows.get(event.number)
        if flow is not None:
            flow.renew(event.port, event.token)
        else:
            self.machine.release(event.number)  # its flow has ended meanwhile

    def _refused(self, event: RequestRefused) -> None:
        self._failed(event.number, Refused(event.reason, event.code))

    def _timedOut(self, event: RequestTimedOut) -> None:
        text, trouble = "the server does not answer", self._trouble
        self._failed(event.number, TimedOut(f"{text}: {trouble}" if trouble else text))

    actions: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **Link.actions,
        SocketDropped: _socketDropped,
        Answered: _answered,
        LeaseGranted: _leaseGranted,
        RequestRefused: _refused,
        RequestTimedOut: _timedOut,
    }

    def _failed(self, number: int, error: Exception) -> None:
        waiter = self._waiting.pop(number, None)
        flow = self.flows.get(number)
        if waiter is not None:
            waiter.errback(error)
        elif flow is None:
            return
        elif self._persistent and flow.opened and isinstance(error, TimedOut):
            # It stood once: go on trying, the server may come back.
            later = self.clock.callLater(RENEWAL_SECONDS, self._renewAgain, flow)
            self._renewals[flow] = later
        else:
            flow.fail(error)

    def _renewAgain(self, flow: MtlFlow) -> None:
        self._renewals.pop(flow, None)
        self.renewFlow(flow)


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
    LIMITS = CLIENT_LIMITS
    protocol: type[MtlClient] = MtlClient

    def __init__(
        self,
        virtualHost: str = "",
        profile: str | None = None,
        *,
        credentials: Credentials | None = None,
        limits: Mapping[str, object] | Limits | None = None,
        curve: CurveClient | None = None,
        clock: Any = None,
        sockets: Callable[[Any], Any] = Sockets,
    ) -> None:
        """``profile``: its name, or None to select none.

        ``credentials`` as :meth:`MtlClient.authorize` takes them; the rest as :class:`MtlClient`
        does.
        """
        super().__init__(limits=limits, clock=clock)
        self.virtualHost = virtualHost
        self.profile = profile
        self.credentials = credentials
        self.curve = curve
        self.makeSockets = sockets

    def buildClient(self, endpoint: str, kind: type[MtlClient] | None = None) -> MtlClient:
        """A client without a session; ConfigurationError for what is no ZeroMQ address."""
        return (kind or self.protocol)(endpoint, factory=self)

    async def enter(self, client: MtlClient) -> MtlClient:
        """Open a session, authorize if the server asks for that, select the profile.

        Raises Refused and TimedOut.
        """
        await client.open(self.virtualHost)
        if client.machine.state is ClientState.UNAUTHORIZED:
            if self.credentials is None:
                raise Refused("the server wants to know who we are", NOT_AUTHORIZED)
            await client.authorize(self.credentials)
        if self.profile is not None:
            await client.profile(self.profile)
        return client
