"""MTL's client on Twisted: verbs that return Deferreds, over sockets that come and go.

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
from typing import Any, ClassVar, Self

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from ...core.errors import ConfigurationError, ConnectionClosed, LimitExceeded, Refused, TimedOut
from ...core.limits import Limits
from ...net.factory import SessionFactory
from ...net.inherited import InheritedClientLink as ClientLink
from ...net.inherited import InheritedLink as Link
from ...net.link import SteadyLogger
from ...net.outbox import Tickets
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
from ..wire.control import Reply
from ..zeromq import Bounds, CurveClient, Sockets, check_address, messages_within, with_port
from .dealer import DealerWire
from .flows import MtlFlow, MtlReader, MtlWriter, Received
from .link import PROTOCOL
from .renewing import RENEWAL_SECONDS

PEER_MESSAGES_MAX = 1000
"""libzmq holds no more messages of a server than these, however small they are."""

FLOWS_MAX = 10_000
"""Data flows of one client, each with a socket of its own."""

NOT_AUTHORIZED = 401


class MtlClient(ClientLink):
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
        :data:`.CLIENT_LIMITS`.  ``persistent``: a flow that stood once waits for a server that does
        not answer any more, for ever; else it ends with TimedOut.  ``sockets(clock)`` makes the
        sockets.  ``factory``: limits, keys, clock and sockets are its own.  Raises
        ConfigurationError for what is no address.
        """
        super().__init__()
        check_address(endpoint)
        if factory is None:
            factory = MtlClientFactory(limits=limits, curve=curve, clock=clock, sockets=sockets)
        self.factory = factory
        self.clock = factory.clock
        self.limits = factory.limits
        self.flows: dict[int, MtlFlow] = {}
        self._endpoint = endpoint
        self._persistent = persistent
        self._requests: Tickets[Reply] = Tickets()
        self._renewals: dict[MtlFlow, Any] = {}
        self._trouble = ""  # of the control socket that was dropped last
        self._bounds = Bounds(
            self.limits.integer("content-octets"),
            # Flows bound what they send by themselves: nothing is thrown away here.
            unread_messages=1 << 40,
            unread_octets=1 << 60,
            unread_seconds=1e9,
            received_messages=messages_within(
                self.limits.integer("peer-octets"),
                self.limits.integer("content-octets"),
                PEER_MESSAGES_MAX,
            ),
        )
        self._sockets = factory.makeSockets(self.clock)
        wire = DealerWire(self.clock, endpoint, self.connectionLost)
        try:
            wire.use(self._controlSocket())
        except ConfigurationError:
            self._sockets.shutdown()
            raise
        self.makeConnection(wire)  # type: ignore[no-untyped-call]

    # ── the link ────────────────────────────────────────────────────────────────────────────────

    def makeMachine(self) -> Client:
        return Client(self.limits)

    def connectionMade(self) -> None:
        """Begin; a subclass that overrides this calls it first."""
        super().connectionMade()
        self.peer = self._endpoint

    def connectionCounters(self) -> Mapping[str, int]:
        return self.machine.counters

    def _socket(self, received: Callable[[list[list[bytes]]], None], address: str) -> Any:
        socket = self._sockets.dealer(received, self._bounds, self.factory.curve)
        socket.connect(address)
        return socket

    def dataSocket(self, received: Callable[[list[list[bytes]]], None], port: int) -> Any:
        """Return a socket for a data flow, connected to the server's data port."""
        return self._socket(received, with_port(self._endpoint, port))

    def _controlSocket(self) -> Any:
        socket = self._socket(self.received, self._endpoint)
        socket.refused = self._turnedAway
        return socket

    def _turnedAway(self, text: str) -> None:
        if not self._ended:
            reason = f"the server will not have us: {text}"
            self._follow(self.machine.turned_away(reason, self._now()))

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def whenEstablished(self) -> Deferred[Self]:
        """Return a Deferred that fires with this client when the server has let it in.

        That is when ``open`` was answered with the profiles, or else ``authorize``.  It fails with
        what that request fails with, and with ConnectionClosed when the client is closed before. A
        session that the server has forgotten stands meanwhile: the next verb opens it again.
        """
        return super().whenEstablished()

    def open(self, virtualHost: str) -> Deferred[Sequence[str]]:
        """Open a session: the profiles, or nothing when the client has to authorize first.

        The flows of a session before this one are closed.
        """
        if over := self._over():
            return over
        flows = list(self.flows.values())
        opened = self._request(self.machine.open, virtualHost)
        if not opened.called:  # else it could not be asked for
            self._established = False
            for flow in flows:
                flow.close()
        return opened.addCallbacks(self._opened, self._notLetIn)

    def _opened(self, reply: Reply) -> Sequence[str]:
        if reply.code != 201:
            return []
        self._letIn()
        return list(self.machine.profiles)

    def authorize(self, credentials: Credentials) -> Deferred[Sequence[str]]:
        """Authenticate by ``sasl.credentials``: the profiles; fails with Refused."""
        if over := self._over():
            return over
        authorized = self._request(self.machine.authorize, credentials)
        return authorized.addCallbacks(self._authorized, self._notLetIn)

    def _authorized(self, reply: Reply) -> Sequence[str]:
        self._letIn()
        return list(self.machine.profiles)

    def _letIn(self) -> None:
        if self.machine.state in (ClientState.READY, ClientState.PROFILED):
            self.establish()

    def _notLetIn(self, failure: Failure) -> Failure:
        if failure.check(Refused, TimedOut) is not None:
            self._standing.fail(failure)
        return failure

    def profile(self, name: str) -> Deferred[None]:
        """Select a profile; the flows of the one before are closed."""
        flows = list(self.flows.values())  # not those that are asked for before the answer

        def selected(reply: Reply) -> None:
            for flow in flows:
                flow.close()

        if over := self._over():
            return over
        asked = self._request(self.machine.profile, name)
        return asked.addCallback(selected)

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
        if over := self._over():
            return over
        flow = MtlReader(self, confirm == "full", received)
        return self._lease(flow, self.machine.reader, resources, confirm)

    def writer(self, resources: Sequence[str], confirm: str = "full") -> Deferred[MtlWriter]:
        """A data flow that writes; fires when the server has accepted its lease."""
        if over := self._over():
            return over
        flow = MtlWriter(self, confirm == "full")
        return self._lease(flow, self.machine.writer, resources, confirm)

    def _lease(self, flow: Any, verb: Callable[..., int], *arguments: Any) -> Deferred[Any]:
        if len(self.flows) >= FLOWS_MAX:
            return fail(LimitExceeded(f"{FLOWS_MAX} flows stand already; nothing was sent"))
        try:
            number = verb(*arguments, self._now())
        except ValueError as error:
            return fail(error)
        self.flows[number] = flow
        opened: Deferred[Any] = flow.leasing(number)
        self._takeUp()
        return opened

    def _over(self) -> Deferred[Any] | None:
        over = self._ended or self.closing
        return fail(ConnectionClosed("the client was closed")) if over else None

    def _request(self, verb: Callable[..., int], argument: Any) -> Deferred[Reply]:
        try:
            self._requests.check()
            number = verb(argument, self._now())
        except ValueError as error:
            return fail(error)
        ticket = self._requests.issue(number)
        self._takeUp()
        return ticket

    def _takeUp(self) -> None:
        self._follow(self.machine.receive((), self._now()))

    # ── the flows ───────────────────────────────────────────────────────────────────────────────

    def renewFlow(self, flow: MtlFlow) -> None:
        """A flow has lost its place at the server: get another lease for it.

        A server that grants leases and ends them at once is asked less and less often.
        """
        if self._ended or flow in self._renewals:
            return
        wait = flow.hurry.next(self._now())
        if wait:
            self._renewLater(flow, wait)
        else:
            self._renewNow(flow)

    def _renewLater(self, flow: MtlFlow, seconds: float) -> None:
        self._renewals[flow] = self.clock.callLater(seconds, self._renewAgain, flow)

    def _renewNow(self, flow: MtlFlow) -> None:
        if not self._ended:
            self.machine.renew(flow.number, self._now())
            self._takeUp()

    def flowEnded(self, flow: MtlFlow) -> None:
        """A flow is over: its lease is not renewed any more."""
        self.machine.release(flow.number)
        self.flows.pop(flow.number, None)
        self._cancelRenewal(flow)

    def _cancelRenewal(self, flow: MtlFlow) -> None:
        renewal = self._renewals.pop(flow, None)
        if renewal is not None:
            renewal.cancel()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def endInOrder(self) -> None:
        """Let every flow finish what is in flight; requests are still answered."""
        for flow in list(self.flows.values()):
            flow.drain()
        self.endIfAlone()

    def endIfAlone(self) -> None:
        """End in order, if that is wanted and no flow is left."""
        if self.closing and not self.flows:
            self.drain()

    def endNow(self) -> None:
        self._abort()

    def whyLost(self, reason: Failure) -> Exception:
        return self.ending or ConnectionClosed("the client was closed")

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
            self._cancelRenewal(flow)
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
        flow = self.flows.get(number)
        if self._requests.fail(number, error) or flow is None:
            return
        if self._persistent and flow.opened and isinstance(error, TimedOut):
            # It stood once: go on trying, the server may come back.
            self._renewLater(flow, RENEWAL_SECONDS)
        else:
            flow.fail(error)

    def _renewAgain(self, flow: MtlFlow) -> None:
        self._renewals.pop(flow, None)
        flow.hurry.begun(self._now())
        self._renewNow(flow)


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
        """Return a client without a session; ConfigurationError for what is no ZeroMQ address."""
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
