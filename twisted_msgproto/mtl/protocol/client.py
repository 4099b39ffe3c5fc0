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
from dataclasses import dataclass
from typing import Any, ClassVar

from twisted.internet.defer import CancelledError, Deferred, fail, gatherResults, succeed
from twisted.logger import Logger

from ...core.errors import ConnectionClosed, LimitExceeded, Refused, TimedOut
from ...core.limits import Limits
from ...core.pending import Pending
from ...net.timer import MachineTimer
from ..curve import CurveClient
from ..hooks import guarded
from ..machine.client import (
    Answered,
    Client,
    ClientEvent,
    Credentials,
    LeaseGranted,
    RequestRefused,
    RequestTimedOut,
    SocketDropped,
)
from ..machine.client_flow import (
    ClientFlow,
    ClientFlowEvent,
    ContentsConfirmed,
    ContentsReceived,
    ContentsRefused,
    FlowBroken,
    FlowOpened,
    FlowSuspended,
    Responded,
)
from ..machine.limits import CLIENT_LIMITS
from ..wire.fields import EMPTY, FieldValue, decode_table, encode_table
from ..zeromq import Bounds, Sockets, check_address, with_port

log = Logger(namespace="twisted_msgproto.mtl")

RENEWAL_SECONDS = 1.0
"""After a lease could not be renewed: how long until the client tries again."""


@dataclass(slots=True)
class Received:
    """One content which a reader got; ``properties`` are the field table, decoded when asked."""

    sequence: int
    resource: str
    table: bytes
    body: bytes

    @property
    def properties(self) -> dict[str, Any]:
        """The content's field table."""
        return decode_table(self.table)


class MtlFlow:
    """One data flow of a client: see :class:`MtlReader` and :class:`MtlWriter`.

    Attributes:
        machine: decides everything; its ``snapshot()`` tells where the flow stands.
        lost: called with the error when the flow is over without ``close``; its verbs fail then.
    """

    reads: ClassVar[bool]

    def __init__(self, client: MtlClient, confirm: bool, limits: Limits) -> None:
        self.machine = ClientFlow(reads=self.reads, confirm=confirm, limits=limits)
        self.lost: Callable[[Exception], object] = _logLoss
        self._client = client
        self._number = 0
        self._socket: Any = None
        self._waiting: dict[int, Deferred[None]] = {}
        self._timer = MachineTimer(client.clock, self.machine, self._settle)
        self._opened: Deferred[Any] | None = Deferred(self._cancelled)
        self._ended = False
        self._sending: Any = None

    def _cancelled(self, _: Deferred[Any]) -> None:
        self._opened = None
        self._end(CancelledError())

    # ── sockets ─────────────────────────────────────────────────────────────────────────────────

    def _renew(self, port: int, token: str) -> None:
        """A lease is there: show it on a socket of its own."""
        if self._ended:
            return
        if self.machine.doubted:
            # Whether the flow stands was never answered, and now it does not.
            self._settle(self.machine.suspend("its session began anew"))
            return
        self._drop()
        self._socket = self._client.dataSocket(self._received, port)
        self.machine.renew(token, self._client.clock.seconds())
        self._look()

    def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.shutdown()

    def _received(self, messages: list[list[bytes]]) -> None:
        self._settle(self.machine.receive(messages, self._client.clock.seconds()))

    def _look(self) -> None:
        self._send()
        self._timer.look()

    def _send(self) -> None:
        messages = self.machine.outputs()
        if messages and self._socket is not None:
            self._socket.sendAll(messages)

    def _sendSoon(self) -> None:
        """Once a turn: what many calls have queued goes out together."""
        if self._sending is None:
            self._sending = self._client.clock.callLater(0, self._sendNow)

    def flush(self) -> None:
        """Hand over now what otherwise goes out with the next turn of the reactor."""
        self._send()

    def _sendNow(self) -> None:
        self._sending = None
        if not self._ended:
            self._look()

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def _settle(self, events: Iterable[ClientFlowEvent]) -> None:
        for event in events:
            if self._ended:
                return
            match event:
                case ContentsReceived():
                    self._contents(event)
                case ContentsConfirmed():
                    self._fire(event.numbers, None)
                case ContentsRefused():
                    text = "the server does not take the content"
                    self._fire(event.numbers, Refused(text, event.code))
                case Responded():
                    error = None
                    if event.code != 200:
                        error = Refused("the server says no to the command", event.code)
                    self._fire([event.number], error)
                case FlowOpened():
                    opened, self._opened = self._opened, None
                    if opened is not None:
                        opened.callback(self)
                case FlowSuspended():
                    log.info("a data flow was lost: {reason}", reason=event.reason)
                    self._drop()
                    self._client.renewFlow(self)
                case FlowBroken():
                    self._end(Refused("the server rejected content and ended the flow", 403))
        if not self._ended:
            self._look()

    def _over(self) -> Deferred[None] | None:
        """What a verb gives when there is no flow any more."""
        return fail(ConnectionClosed("the flow has ended")) if self._ended else None

    def _fire(self, numbers: Iterable[int], error: Exception | None) -> None:
        for number in numbers:
            waiter = self._waiting.pop(number, None)
            if waiter is None:
                continue
            if error is None:
                waiter.callback(None)
            else:
                waiter.errback(error)

    def _contents(self, event: ContentsReceived) -> None:
        raise NotImplementedError

    def _wait(self, number: int) -> Deferred[None]:
        waiter: Deferred[None] = Deferred(lambda _: self._forget(number))
        self._waiting[number] = waiter
        return waiter

    def _forget(self, number: int) -> None:
        """Nobody wants to know any more; what was sent stays sent."""
        self._waiting.pop(number, None)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    @property
    def stands(self) -> bool:
        """The flow is not over, though it may just be away from its server."""
        return not self._ended

    def close(self) -> None:
        """No more of this flow; what nobody has answered fails with ConnectionClosed."""
        self._end(None)

    def fail(self, error: Exception) -> None:
        """No more of this flow; what nobody has answered fails with ``error``."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._timer.stop()
        if self._sending is not None:
            self._sending.cancel()
        unanswered = self.machine.close()
        self._drop()
        self._client.flowEnded(self)
        self._fire(unanswered, error or ConnectionClosed("the flow was closed"))
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.errback(error or ConnectionClosed("the flow was closed"))
        elif error is not None:
            guarded(self.lost, error)


def _logLoss(error: Exception) -> None:
    log.warn("a data flow has ended: {error}", error=error)


class MtlReader(MtlFlow):
    """A flow which gets content; ``received`` is called with each :class:`Received`."""

    reads = True

    def __init__(
        self,
        client: MtlClient,
        confirm: bool,
        limits: Limits,
        received: Callable[[Received], object],
    ) -> None:
        super().__init__(client, confirm, limits)
        self.received = received

    def summon(self, resource: str) -> Deferred[None]:
        """Ask for this resource's content; fails with Refused (400: summoned already, …)."""
        if over := self._over():
            return over
        waiter = self._wait(self.machine.summon(resource, self._client.clock.seconds()))
        self._look()
        return waiter

    def dismiss(self, resource: str) -> Deferred[None]:
        """Ask for no more of it; fails with Refused."""
        if over := self._over():
            return over
        waiter = self._wait(self.machine.dismiss(resource, self._client.clock.seconds()))
        self._look()
        return waiter

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        """This content (or all up to it) is safe."""
        self.machine.confirm(sequence, multiple, self._client.clock.seconds())
        self._sendSoon()

    def reject(self, sequence: int, multiple: bool = False, recycle: bool = False) -> None:
        """This content (or all up to it) is not taken; ``recycle``: others may have it."""
        self.machine.reject(sequence, multiple, recycle, self._client.clock.seconds())
        self._sendSoon()

    def _contents(self, event: ContentsReceived) -> None:
        for row in zip(
            event.sequences, event.resources, event.properties, event.bodies, strict=True
        ):
            if not self._ended:
                guarded(self.received, Received(*row))


class MtlWriter(MtlFlow):
    """A flow which sends content."""

    reads = False

    @property
    def room(self) -> int:
        """How many more contents the window takes now; below 0: so many wait."""
        return self.machine.room

    def send(
        self,
        resource: str,
        body: bytes,
        properties: Mapping[str, FieldValue] | None = None,
    ) -> Deferred[None]:
        """Send one content.

        With confirm ``full`` it fires when the server has it safe and fails with Refused if it does
        not take it; with ``none`` it fires at once.  Fails with LimitExceeded when too much waits,
        and with ConnectionClosed when the flow has ended.

        When the server could not make a content safe it takes nothing that follows and ends the
        flow: that content, all behind it and ``lost`` fail with Refused.  Send them again on
        another flow, in their order.
        """
        if over := self._over():
            return over
        table = encode_table(properties) if properties else EMPTY
        try:
            number = self.machine.send([(resource, table, body)], self._client.clock.seconds())[0]
        except LimitExceeded as error:
            return fail(error)
        self._sendSoon()
        return self._wait(number) if self.machine.confirms else succeed(None)

    def sendMany(self, resource: str, bodies: Sequence[bytes]) -> Deferred[None]:
        """Send contents together; fires when all are safe, fails with the first refusal."""
        if over := self._over():
            return over
        contents = [(resource, EMPTY, body) for body in bodies]
        try:
            numbers = self.machine.send(contents, self._client.clock.seconds())
        except LimitExceeded as error:
            return fail(error)
        self._sendSoon()
        if not self.machine.confirms:
            return succeed(None)
        waiters = [self._wait(number) for number in numbers]
        gathered: Deferred[list[None]] = gatherResults(waiters, consumeErrors=True)
        return gathered.addCallbacks(lambda results: None, lambda failure: failure.value.subFailure)


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
            unread_messages=100_000,
            unread_octets=1 << 40,
            unread_seconds=1e9,
        )
        self._closed = False
        self._persistent = persistent
        self._renewals: dict[MtlFlow, Any] = {}
        self._control: Any = None
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
        for flow in list(self.flows.values()):
            flow.close()
        number = self.machine.open(virtualHost, self.clock.seconds())
        return self._request(number).addCallback(
            lambda reply: list(self.machine.profiles) if reply.code == 201 else []
        )

    def authorize(self, credentials: Credentials) -> Deferred[Sequence[str]]:
        """Authenticate (see :func:`.sasl.credentials`): the profiles; fails with Refused."""
        number = self.machine.authorize(credentials, self.clock.seconds())
        return self._request(number).addCallback(lambda reply: list(self.machine.profiles))

    def profile(self, name: str) -> Deferred[None]:
        """Select a profile; the flows of the one before are closed."""

        def selected(reply: Any) -> None:
            for flow in list(self.flows.values()):
                flow.close()

        number = self.machine.profile(name, self.clock.seconds())
        return self._request(number).addCallback(selected)

    def reader(
        self,
        resources: Sequence[str],
        confirm: str = "full",
        received: Callable[[Received], object] = lambda content: None,
    ) -> Deferred[MtlReader]:
        """A data flow which reads; fires when the server has accepted its lease."""
        flow = MtlReader(self, confirm == "full", self.limits, received)
        return self._lease(flow, self.machine.reader(resources, confirm, self.clock.seconds()))

    def writer(self, resources: Sequence[str], confirm: str = "full") -> Deferred[MtlWriter]:
        """A data flow which writes; fires when the server has accepted its lease."""
        flow = MtlWriter(self, confirm == "full", self.limits)
        return self._lease(flow, self.machine.writer(resources, confirm, self.clock.seconds()))

    def _lease(self, flow: Any, number: int) -> Deferred[Any]:
        if self._closed:
            return fail(ConnectionClosed("the client was closed"))
        flow._number = number
        self.flows[number] = flow
        opened: Deferred[Any] = flow._opened
        self._look()
        return opened

    def _request(self, number: int) -> Deferred[Any]:
        if self._closed:
            return fail(ConnectionClosed("the client was closed"))
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

    def close(self) -> Deferred[None]:
        """Close all flows and sockets; what nobody has answered fails with ConnectionClosed."""
        self.abort()
        return succeed(None)

    def abort(self) -> None:
        """Close all flows and sockets at once; what nobody has answered fails."""
        if not self._closed:
            self._closed = True
            for flow in list(self.flows.values()):
                flow.close()
            self._timer.stop()
            self.machine.lost(self.clock.seconds())
            for _, waiter in self._waiting.drain():
                waiter.errback(ConnectionClosed("the client was closed"))
            self._sockets.shutdown()

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
            match event:
                case SocketDropped():
                    self._connect()
                case Answered():
                    waiter = self._waiting.resolve(event.number)
                    if waiter is not None:
                        waiter.callback(event.reply)
                case LeaseGranted():
                    flow = self.flows.get(event.number)
                    if flow is not None:
                        flow._renew(event.port, event.token)
                case RequestRefused():
                    self._failed(event.number, Refused(event.reason, event.code))
                case RequestTimedOut():
                    self._failed(event.number, TimedOut("the server does not answer"))

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
