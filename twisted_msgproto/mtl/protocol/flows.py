"""On Twisted, a data flow of an MTL client is a reader or a writer, over one socket after
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from random import random
from typing import Any, ClassVar, Final

from twisted.internet.defer import Deferred, fail, gatherResults, succeed
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, Refused, TimedOut
from ...net.clients.reconnect import Backoff
from ...net.clients.subscriptions import Backlog
from ...net.deferreds import Tickets, Waiters, guarded
from ...net.factory import SessionFactory
from ...net.link import Link
from ...net.logs import SteadyLogger
from ..machine.client_flow import ClientFlow
from ..terms import (
    LEASE_UNANSWERED,
    ClientFlowState,
    ContentsConfirmed,
    ContentsReceived,
    ContentsRefused,
    FlowGivenUp,
    FlowOpened,
    FlowSuspended,
    LeaseGranted,
    Responded,
)
from ..wire.data import EMPTY, FieldValue, decode_table, encode_table
from ..zeromq.bounded import LAST_WORDS_SECONDS
from ..zeromq.unfinished import MESSAGE_BYTES
from . import DealerWire

# ── Leases ────────────────────────────────────────────────────────────────────────────────────────


RENEWAL_SECONDS: Final = 1.0
RENEWAL_SECONDS_MOST: Final = 60.0

RENEWALS_AT_ONCE: Final = 10
"""This number of leases in a row that end soon and were of no use are renewed without a wait."""

STEADY_SECONDS: Final = 10.0
"""A lease that stood this long has not ended soon."""


class RenewalBackoff:
    """How soon the leases of a flow end, and how long to wait for the next."""

    def __init__(self) -> None:
        self._backoff = Backoff(RENEWAL_SECONDS, RENEWAL_SECONDS_MOST, random)
        self._since = 0.0  # when the newest lease was asked for
        self._soon = 0  # leases in a row that have ended soon

    def begun(self, now: float) -> None:
        self._since = now

    def used(self) -> None:
        """A lease was of use, however soon it ends: a gateway may restart often."""
        self._soon = 0
        self._backoff.reset()

    def next(self, now: float) -> float:
        """Return the seconds to wait, perhaps 0.0: a lease has ended."""
        if now >= self._since + STEADY_SECONDS:
            self.used()
        self._soon += 1
        return self._backoff.next() if self._soon > RENEWALS_AT_ONCE else 0.0


# ── Flows ─────────────────────────────────────────────────────────────────────────────────────────


log: SteadyLogger = SteadyLogger(namespace="twisted_msgproto.mtl")


@dataclass(slots=True)
class Received:
    """One content that a reader received; ``properties`` are the field table, decoded when
    asked.
    """

    sequence: int
    resource: str
    table: bytes
    body: bytes

    @property
    def properties(self) -> dict[str, Any]:
        return decode_table(self.table)


UNREAD_TIMES: Final = 2
"""Of answers a socket may have twice as much to send as ``unsent-bytes`` allows of contents."""


def _weigh(content: Received) -> int:
    return len(content.body) + len(content.table) + len(content.resource) + MESSAGE_BYTES


class FlowLink(Link):
    """One data flow, over one socket after another."""

    log: ClassVar[SteadyLogger] = log
    noInputs: ClassVar[Any] = ()
    readsWhileDraining: ClassVar[bool] = True
    answerEvents: ClassVar[frozenset[type]] = frozenset(
        {Responded, ContentsConfirmed, ContentsRefused}
    )

    factory: SessionFactory
    machine: ClientFlow
    wire: DealerWire
    number: int = 0  # of its lease at the client
    new: Sequence[str] = ()

    def __init__(self, flow: MtlFlow, client: Any, confirm: bool) -> None:
        self.protocol, self.factory = flow, client.factory
        self._client = client  # the link of the control flow
        self._confirm = confirm
        self._port = 0
        self._draining = False
        self.tickets: Tickets[None] = Tickets()
        self._opening: Deferred[Any] | None = Deferred(self._cancelled)
        self._unanswered: list[int] = []
        self._failed = False  # it has ended otherwise than by ``close`` or ``drain``
        self._leaving: Waiters[Exception] = Waiters()  # who waits for the end
        self._sending: Any = None  # the call that writes what verbs have queued
        self._ending: Any = None  # the call that gives up a connection that the server has ended
        self._renewal: Any = None  # the call that asks for another lease
        self._renewals = RenewalBackoff()
        limits = self.factory.limits
        answers = UNREAD_TIMES * limits.integer("unsent-bytes") // MESSAGE_BYTES
        self._unread_max = answers + limits.integer("window")

    def begin(self) -> None:
        self.connect(DealerWire(self.factory.clock, self._client.peer, self.connectionLost))

    def tellConnected(self) -> None:
        """No hook of the application's hears of a flow before it has a lease."""

    def makeMachine(self) -> ClientFlow:
        machine = ClientFlow(
            reads=self.protocol.reads,
            confirm=self._confirm,
            limits=self.factory.limits,
            counters=self.factory.counters.settled,
        )
        machine.moved_at = self.takenAt
        return machine

    def leasing(self, number: int) -> Deferred[Any]:
        assert self._opening is not None
        self.number = number
        return self._opening

    def _cancelled(self, _: Deferred[Any]) -> None:
        self._opening = None
        self.close()

    def _renewSoon(self) -> None:
        """Ask for another lease; a server that ends each at once is asked less and less often."""
        wait = self._renewals.next(self._now())
        if wait:
            self.renewLater(wait)
        else:
            self._renewNow()

    def renewLater(self, seconds: float) -> None:
        if self._renewal is None:
            self._renewal = self.factory.clock.callLater(seconds, self._renewNow)

    def _renewNow(self) -> None:
        self._renewal = None
        self._renewals.begun(self._now())
        self._client.renewLease(self.number)

    def renew(self, lease: LeaseGranted) -> None:
        if self._ended:
            return
        if self.machine.doubted:
            # Whether the flow stands was never answered, and now it does not.
            self._follow(self.machine.suspend("its session began anew"))
            return
        self._drop()
        self._port = lease.port
        if self._opening is not None:
            self.new = lease.new
        socket = self._client.dataSocket(self.received, lease.port, self._confirm)
        socket.ended = self._connectionEnded
        self.wire.use(socket)
        self.machine.renew(lease.token, self._now(), lease.content_bytes)
        self._settle()

    def _connectionEnded(self) -> None:
        if self._ending is None:
            self._ending = self.factory.clock.callLater(LAST_WORDS_SECONDS, self._allWasRead)

    def _allWasRead(self) -> None:
        """The server does not know the next connection of this socket, which libzmq makes."""
        self._ending = None
        if not self.wire.paused and self.machine.state is ClientFlowState.OPEN:
            reason = "the connection ended"
            if self.protocol.reads:
                most = self.factory.limits.integer("content-bytes")
                reason += f", as it does at a content above our content-bytes, {most}"
            self._follow(self.machine.suspend(reason))

    def _cancelCalls(self) -> None:
        for call in (self._sending, self._ending, self._renewal):
            if call is not None:
                call.cancel()
        self._sending = self._ending = self._renewal = None

    def _drop(self) -> None:
        self._cancelCalls()
        unread = self.wire.drop()
        if unread and not self.machine.confirms:
            text = "{count} contents with confirm none were lost with their connection"
            log.warn(text, count=unread)

    def _settle(self) -> None:
        """Do what a link does; then leave a server that does not read.

        Contents are bounded by ``unsent-bytes`` and ``window``.  Answers to pings and to contents
        that are rejected are not, and a server that only writes could make us keep millions.
        """
        super()._settle()
        if not self._following and not self._ended and self.wire.socket.unread > self._unread_max:
            self._follow(self.machine.suspend("the server does not read what it is sent"))

    def sendSoon(self) -> None:
        if self._sending is None and not self._following:
            self._sending = self.factory.clock.callLater(0, self._sendNow)

    def _sendNow(self) -> None:
        self._sending = None
        self._settle()

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def _opens(self, event: FlowOpened) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.callback(self.protocol)

    def _responded(self, event: Responded) -> None:
        if event.code == 200:
            self.tickets.done(event.number, None)
        else:
            error = Refused("the server says no to the command", event.code)
            self.tickets.fail(event.number, error)

    def _confirmed(self, event: ContentsConfirmed) -> None:
        self._renewals.used()
        for number in event.numbers:
            self.tickets.done(number, None)

    def _refused(self, event: ContentsRefused) -> None:
        self._fail(event.numbers, Refused("the server does not take the content"))

    def _suspended(self, event: FlowSuspended) -> None:
        trouble = self.wire.trouble
        log.info("a data flow was lost: {reason}; {trouble}", reason=event.reason, trouble=trouble)
        self._drop()
        if self._opening is not None and event.reason == LEASE_UNANSWERED:
            text = f"the server's data port {self._port} does not answer"
            self.fail(TimedOut(f"{text}: {trouble}" if trouble else text))
        else:
            self._renewSoon()

    def _givenUp(self, event: FlowGivenUp) -> None:
        code = event.code
        self.fail(TimedOut(event.reason) if code is None else Refused(event.reason, code))

    def _received(self, event: ContentsReceived) -> None:
        self._renewals.used()
        self._contents(event)

    def _contents(self, event: ContentsReceived) -> None:
        raise NotImplementedError

    actions: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **Link.actions,
        FlowOpened: _opens,
        Responded: _responded,
        ContentsReceived: _received,
        ContentsConfirmed: _confirmed,
        ContentsRefused: _refused,
        FlowSuspended: _suspended,
        FlowGivenUp: _givenUp,
    }

    def ask(self, verb: Callable[[str, float], int], resource: str) -> Deferred[None]:
        if over := self.over():
            return over
        try:
            ticket = self.tickets.issue(verb(resource, self._now()))
        except ValueError as error:
            return fail(error)
        self._settle()
        return ticket

    def over(self) -> Deferred[None] | None:
        over = self._ended or self._draining
        return fail(ConnectionClosed("the flow has ended")) if over else None

    def _fail(self, numbers: Iterable[int], error: Exception) -> None:
        for number in numbers:
            self.tickets.fail(number, error)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    @property
    def opened(self) -> bool:
        return self._opening is None

    @property
    def stands(self) -> bool:
        return not self._ended

    def whenEnded(self) -> Deferred[Exception]:
        if self._gone:
            assert self.closeReason is not None
            return succeed(self.closeReason)
        return self._leaving.wait()

    def close(self) -> None:
        self._abort()

    def fail(self, error: Exception) -> None:
        if not self._gone:
            self._failed = True
            self.setCloseReason(error)
            self.abort()

    def drain(self) -> None:
        if self._opening is not None:
            self.close()  # nothing could be sent yet
        else:
            self._draining = True
            super().drain()

    def whyLost(self, reason: Failure) -> Exception:
        return self.closeReason or ConnectionClosed("the flow was closed")

    def workLost(self, work: list[int], reason: Failure) -> None:
        self._unanswered = work

    def sessionEnding(self, reason: Failure) -> None:
        self._cancelCalls()
        self._client.flowEnded(self)
        error = self.whyLost(reason)
        self._fail(self._unanswered, error)
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.errback(error)
        elif self._failed:
            self._guarded(self.protocol.lost, error)
        self._leaving.fire(error)
        self._client.endIfAlone()


class ReaderLink(FlowLink):
    def __init__(
        self,
        flow: MtlFlow,
        client: Any,
        confirm: bool,
        received: Callable[[Received], object] | None,
    ) -> None:
        super().__init__(flow, client, confirm)
        self._hook = received
        self.backlog: Backlog[Received] = Backlog(self._taken, _weigh)
        self._backlog_max = self.factory.limits.integer("backlog-bytes")

    def _contents(self, event: ContentsReceived) -> None:
        rows = zip(event.sequences, event.resources, event.properties, event.bodies, strict=True)
        if self._hook is None:
            self.backlog.put(starmap(Received, rows))
            if self.backlog.nbytes >= self._backlog_max and not self._gone:
                self.pauseReading("backlog")
            return
        for row in rows:
            if self._ended:
                return
            guarded(log, self.peer, self._hook, Received(*row))

    def _taken(self, content: Received, nbytes: int) -> None:
        if self.backlog.nbytes <= self._backlog_max // 2 and not self._gone:
            self.resumeReading("backlog")

    def sessionEnding(self, reason: Failure) -> None:
        super().sessionEnding(reason)
        self.backlog.end(self.closeReason if self._failed else None)


def _logLoss(error: Exception) -> None:
    log.warn("a data flow has ended: {error}", error=error)


class MtlFlow:
    """One data flow of a client: see :class:`MtlReader` and :class:`MtlWriter`.

    Attributes:
        lost: called with the error when the flow is over without ``close``; its verbs fail then.
    """

    reads: ClassVar[bool]

    def __init__(self, link: FlowLink) -> None:
        self.lost: Callable[[Exception], object] = _logLoss
        self.link = link
        link.begin()

    @property
    def stands(self) -> bool:
        """Return whether the flow is not over, though it may just be away from its server."""
        return self.link.stands

    def snapshot(self) -> dict[str, object]:
        """Return where the flow stands, as plain values."""
        return self.link.snapshot()

    def whenEnded(self) -> Deferred[Exception]:
        """Return a Deferred that fires when the flow is over, with what has ended it.

        That is ConnectionClosed after ``close``, ``drain`` or the end of the client, else the error
        that ``lost`` is called with.
        """
        return self.link.whenEnded()

    def close(self) -> None:
        """End this flow; what nobody has answered fails with ConnectionClosed."""
        self.link.close()

    def drain(self) -> None:
        """The flow ends when what is in flight is answered; its verbs fail from now on."""
        self.link.drain()

    def flush(self) -> None:
        """Send now what is otherwise sent with the next turn of the reactor."""
        self.link.flush()


class MtlReader(MtlFlow):
    """A flow that receives content.

    Set ``received`` to be called with each :class:`Received`, or iterate::

        reader = await client.reader(["orders"])
        await reader.summon("orders")
        async for content in reader:
            …
            reader.confirm(content.sequence)

    Iteration ends with the flow, after what had come: it stops when the flow was closed, and raises
    what has ended it else.  Cancelling a step, as a time-out does, loses no content.  Any number
    may iterate; each content goes to one of them.  When ``backlog-bytes`` wait to be taken the
    socket is not read until half of them are.
    """

    reads = True

    link: ReaderLink

    def __init__(
        self, client: Any, confirm: bool, received: Callable[[Received], object] | None
    ) -> None:
        super().__init__(ReaderLink(self, client, confirm, received))

    def summon(self, resource: str) -> Deferred[None]:
        """Ask for this resource's content; fails with Refused (400: summoned already, …)."""
        return self.link.ask(self.link.machine.summon, resource)

    def dismiss(self, resource: str) -> Deferred[None]:
        """Ask for no more of it; fails with Refused."""
        return self.link.ask(self.link.machine.dismiss, resource)

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        """This content (or all up to it) is safe.

        Nothing happens when the server has forgotten meanwhile that we have it: it comes again.
        """
        self.link.machine.confirm(sequence, multiple, self.link._now())
        self.link.sendSoon()

    def reject(self, sequence: int, multiple: bool = False, recycle: bool = False) -> None:
        """Reject this content (or all up to it); ``recycle``: others may have it."""
        self.link.machine.reject(sequence, multiple, recycle, self.link._now())
        self.link.sendSoon()

    # ── iteration ───────────────────────────────────────────────────────────────────────────────

    def __aiter__(self) -> MtlReader:
        return self

    async def __anext__(self) -> Received:
        """Return the next content; raise what has ended the flow unless it was closed."""
        return await self.link.backlog.take()


class MtlWriter(MtlFlow):
    """A flow that sends content."""

    reads = False

    def __init__(self, client: Any, confirm: bool) -> None:
        super().__init__(FlowLink(self, client, confirm))

    @property
    def newResources(self) -> Sequence[str]:
        """Return those of its resources that the server had not before: it makes these queues."""
        return self.link.new

    @property
    def room(self) -> int:
        """Return how many more contents the window takes now; below 0: how many wait."""
        return self.link.machine.room

    def send(
        self,
        resource: str,
        body: bytes,
        properties: Mapping[str, FieldValue] | None = None,
    ) -> Deferred[None]:
        """Send one content.

        With confirm ``full`` it fires when the server has it safe and fails with Refused if it does
        not accept it; with ``none`` it fires at once.  Fails with LimitExceeded when too much
        waits, with ConnectionClosed when the flow has ended, and with ValueError for a name or
        properties that cannot be written.

        A content above ``content-bytes``, ours or the server's, is not sent: LimitExceeded.  A
        server that does not say its limit with the lease ends the connection each time; after
        ``renewals`` of these the flow ends with TimedOut.

        When the server could not make a content safe it takes nothing that follows and ends the
        flow: that content, all behind it and ``lost`` fail with Refused.  Send them again on
        another flow, in their order.
        """
        return self.sendMany(resource, (body,), properties)

    def sendMany(
        self,
        resource: str,
        bodies: Sequence[bytes],
        properties: Mapping[str, FieldValue] | None = None,
    ) -> Deferred[None]:
        """Send contents together, all with the same properties; fires when all are safe, fails with
        the first refusal, and as :meth:`send` does.
        """
        link = self.link
        if over := link.over():
            return over
        try:
            table = encode_table(properties) if properties else EMPTY
            contents = [(resource, table, body) for body in bodies]
            numbers = link.machine.send(contents, link._now(), link.wire.socket.unreadBytes)
        except ValueError as error:
            return fail(error)
        link.sendSoon()
        if not link.machine.confirms:
            return succeed(None)
        tickets = [link.tickets.issue(number) for number in numbers]
        if len(tickets) == 1:
            return tickets[0]
        gathered: Deferred[list[None]] = gatherResults(tickets, consumeErrors=True)
        return gathered.addCallbacks(lambda results: None, lambda failure: failure.value.subFailure)
