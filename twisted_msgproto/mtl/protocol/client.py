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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from twisted.internet.defer import Deferred, fail, succeed

from ...core.errors import ConnectionClosed, Refused, TimedOut
from ...core.limits import Limits
from ...core.pending import Pending
from ...net.timer import MachineTimer
from ..machine.client import Client, Credentials
from ..terms.events import (
    Answered,
    ClientEvent,
    LeaseGranted,
    RequestRefused,
    RequestTimedOut,
    SocketDropped,
)
from ..terms.limits import CLIENT_LIMITS
from ..zeromq import Bounds, CurveClient, Sockets, check_address, with_port
from .flows import MtlFlow, MtlReader, MtlWriter, Received

RENEWAL_SECONDS = 1.0
"""After a lease could not be renewed: how long until the client tries again."""


class MtlClient:
    """A client: one control flow, and any number of data flows.

    Attributes:
        machine: the control flow's machine; its ``snapshot()`` tells where the client stands.
        flows: the data flows, by the number of their lease.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        limits: Mapping[str, object] | None = None,
        curve: CurveClient | None = None,
        clock: Any = None,
        persistent: bool = True,
        sockets: Callable[[Any], Any] = Sockets,
    ) -> None:
        """``endpoint`` is the control flow's ZeroMQ address; ``limits`` change
        :data:`.CLIENT_LIMITS`.  ``persistent``: a flow which stood once waits for a server which
        does not answer any more, for ever; else it ends with TimedOut.  ``sockets(clock)`` makes
        the sockets.  Raises ConfigurationError for what is no address.
        """
        if clock is None:
            from twisted.internet import reactor as clock
        check_address(endpoint)
        self.clock = clock
        self.limits = Limits.of(CLIENT_LIMITS).replace(limits or {})
        self.machine = Client(self.limits)
        self.flows: dict[int, MtlFlow] = {}
        self._endpoint = endpoint
        self._curve = curve
        self._waiting: Pending[int, Deferred[Any]] = Pending(10_000)
        self._timer = MachineTimer(clock, self.machine, self._advanced)
        self._sockets = sockets(clock)
        self._bounds = Bounds(
            self.limits.integer("content-octets"),
            # Flows bound what they send by themselves: nothing is thrown away here.
            unread_messages=1 << 40,
            unread_octets=1 << 60,
            unread_seconds=1e9,
        )
        self._closed = False
        self._closing: list[Deferred[None]] = []
        self._deadline: Any = None
        self._persistent = persistent
        self._renewals: dict[MtlFlow, Any] = {}
        self._control: Any = None
        self._trouble = ""  # of the control socket which was dropped last
        self._connect()

    # ── sockets ─────────────────────────────────────────────────────────────────────────────────

    def _connect(self) -> None:
        old = self._control
        self._control = self._sockets.dealer(self._received, self._bounds, self._curve)
        if old is not None:
            old.shutdown()
        self._control.connect(self._endpoint)

    def dataSocket(self, received: Callable[[list[list[bytes]]], None], port: int) -> Any:
        """A socket for a data flow, connected to the server's data port."""
        socket = self._sockets.dealer(received, self._bounds, self._curve)
        socket.connect(with_port(self._endpoint, port))
        return socket

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def open(self, virtualHost: str) -> Deferred[Sequence[str]]:
        """Open a session: the profiles, or nothing when the client has to authorize first.

        The flows of a session before this one are closed.
        """
        if over := self._over():
            return over
        for flow in list(self.flows.values()):
            flow.close()
        number = self.machine.open(virtualHost, self.clock.seconds())
        return self._request(number).addCallback(
            lambda reply: list(self.machine.profiles) if reply.code == 201 else []
        )

    def authorize(self, credentials: Credentials) -> Deferred[Sequence[str]]:
        """Authenticate (see :func:`.net.sasl.credentials`): the profiles; fails with Refused."""
        if over := self._over():
            return over
        number = self.machine.authorize(credentials, self.clock.seconds())
        return self._request(number).addCallback(lambda reply: list(self.machine.profiles))

    def profile(self, name: str) -> Deferred[None]:
        """Select a profile; the flows of the one before are closed."""

        def selected(reply: Any) -> None:
            for flow in list(self.flows.values()):
                flow.close()

        if over := self._over():
            return over
        number = self.machine.profile(name, self.clock.seconds())
        return self._request(number).addCallback(selected)

    def reader(
        self,
        resources: Sequence[str],
        confirm: str = "full",
        received: Callable[[Received], object] = lambda content: None,
    ) -> Deferred[MtlReader]:
        """A data flow which reads; fires when the server has accepted its lease."""
        if over := self._over():
            return over
        flow = MtlReader(self, confirm == "full", self.limits, received)
        return self._lease(flow, self.machine.reader(resources, confirm, self.clock.seconds()))

    def writer(self, resources: Sequence[str], confirm: str = "full") -> Deferred[MtlWriter]:
        """A data flow which writes; fires when the server has accepted its lease."""
        if over := self._over():
            return over
        flow = MtlWriter(self, confirm == "full", self.limits)
        return self._lease(flow, self.machine.writer(resources, confirm, self.clock.seconds()))

    def _lease(self, flow: Any, number: int) -> Deferred[Any]:
        flow._number = number
        self.flows[number] = flow
        opened: Deferred[Any] = flow._opened
        self._look()
        return opened

    def _over(self) -> Deferred[Any] | None:
        """What a verb gives when the client was closed, or ends."""
        over = self._closed or self._closing
        return fail(ConnectionClosed("the client was closed")) if over else None

    def _request(self, number: int) -> Deferred[Any]:
        waiter: Deferred[Any] = Deferred(lambda _: self._forget(number))
        self._waiting.add(number, waiter)
        self._look()
        return waiter

    def _forget(self, number: int) -> None:
        self._waiting.resolve(number)

    def renewFlow(self, flow: MtlFlow) -> None:
        """A flow has lost its place at the server: get another lease for it."""
        if not self._closed:
            self.machine.renew(flow._number, self.clock.seconds())
            self._look()

    def flowEnded(self, flow: MtlFlow) -> None:
        """A flow is over: its lease is not renewed any more."""
        self.machine.release(flow._number)
        self.flows.pop(flow._number, None)
        renewal = self._renewals.pop(flow, None)
        if renewal is not None:
            renewal.cancel()
        if self._closing:
            self._look()

    def close(self) -> Deferred[None]:
        """End in order: fires when what is in flight was answered, or after ``drain`` seconds.

        Further verbs fail with ConnectionClosed, and so does what is not answered by then.
        """
        if self._closed:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._closing.append(closed)
        if self._deadline is None:
            self._deadline = self.clock.callLater(self.limits["drain"], self._expired)
            for flow in list(self.flows.values()):
                if not self._closed:
                    flow.drain()
            self._look()
        return closed

    def _expired(self) -> None:
        self._deadline = None
        self.abort()

    def abort(self) -> None:
        """Close all flows and sockets; what nobody has answered fails with ConnectionClosed."""
        if not self._closed:
            self._closed = True
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            for flow in list(self.flows.values()):
                flow.close()
            self._timer.stop()
            self.machine.lost(self.clock.seconds())
            for _, waiter in self._waiting.drain():
                waiter.errback(ConnectionClosed("the client was closed"))
            self._sockets.shutdown()
            closing, self._closing = self._closing, []
            for closed in closing:
                closed.callback(None)

    # ── the machine ─────────────────────────────────────────────────────────────────────────────

    def _received(self, messages: list[list[bytes]]) -> None:
        now = self.clock.seconds()
        for parts in messages:
            self._settle(self.machine.receive([parts], now))
        self._look()

    def _look(self) -> None:
        if not self._closed:
            if self.machine.unfinished:
                self._settle(self.machine.receive((), self.clock.seconds()))
            self._send()
            self._timer.look()
            if self._closing and not self.flows and not len(self._waiting):
                self.abort()

    def _send(self) -> None:
        self._control.sendAll(self.machine.outputs())

    def _advanced(self, events: list[ClientEvent]) -> None:
        """The machine's deadline has come."""
        self._settle(events)
        self._look()

    def _settle(self, events: Iterable[ClientEvent]) -> None:
        for event in events:
            if self._closed:
                return
            self.actions[type(event)](self, event)

    def _socketDropped(self, event: SocketDropped) -> None:
        self._trouble = self._control.trouble
        self._connect()

    def _answered(self, event: Answered) -> None:
        waiter = self._waiting.resolve(event.number)
        if waiter is not None:
            waiter.callback(event.reply)

    def _leaseGranted(self, event: LeaseGranted) -> None:
        flow = self.flows.get(event.number)
        if flow is not None:
            flow._renew(event.port, event.token)

    def _refused(self, event: RequestRefused) -> None:
        self._failed(event.number, Refused(event.reason, event.code))

    def _timedOut(self, event: RequestTimedOut) -> None:
        text, trouble = "the server does not answer", self._trouble
        self._failed(event.number, TimedOut(f"{text}: {trouble}" if trouble else text))

    actions: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        SocketDropped: _socketDropped,
        Answered: _answered,
        LeaseGranted: _leaseGranted,
        RequestRefused: _refused,
        RequestTimedOut: _timedOut,
    }
    """Event class → what is done about it."""

    def _failed(self, number: int, error: Exception) -> None:
        waiter = self._waiting.resolve(number)
        flow = self.flows.get(number)
        if waiter is not None:
            waiter.errback(error)
        elif flow is None:
            return
        elif self._persistent and flow._opened is None and isinstance(error, TimedOut):
            # It stood once: go on trying, the server may come back.
            later = self.clock.callLater(RENEWAL_SECONDS, self._renewAgain, flow)
            self._renewals[flow] = later
        else:
            flow._end(error)

    def _renewAgain(self, flow: MtlFlow) -> None:
        self._renewals.pop(flow, None)
        self.renewFlow(flow)
