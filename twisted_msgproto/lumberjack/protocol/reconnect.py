"""The shipper connects again and sends again what is unacknowledged.

The wire is at-least-once: an event whose ack was lost arrives twice (``LJ-15``).
"""

from __future__ import annotations

import itertools
import random as random_module
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from twisted.application.service import Service
from twisted.internet.defer import (
    CancelledError,
    Deferred,
    fail,
    gatherResults,
    maybeDeferred,
    succeed,
)
from twisted.internet.interfaces import (
    IAddress,
    IConsumer,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from ...core.errors import (
    ConfigurationError,
    ConnectionClosed,
    LimitExceeded,
    MsgprotoError,
    Refused,
)
from ...core.limits import Limits
from ...net.clients.client_endpoints import endpoint_of
from ...net.clients.command_types import ClientEndpoint
from ...net.clients.reconnect import (
    RECONNECT_LIMITS,
    ReconnectingClient,
    ReconnectingService,
    ReconnectState,
)
from ...net.deferreds import ProducerControl, fail_all
from ...net.factory import expect
from ...net.limit_types import LumberjackClientLimits, ReconnectLimits
from ..terms import COMPRESS_DEFAULT, WINDOW_DEFAULT, Event, PreparedBatch
from .sides import (
    LumberjackClient,
    LumberjackClientFactory,
    Sent,
    WriterLink,
)

NEVER_SECONDS: Final = 1e12
"""No connection stands so long: what ends the growing of the intervals is an ack."""

FRUITLESS_TOLD: Final = 3
"""A reader that restarts ends one connection or two."""

log: Final = Logger(namespace="twisted_msgproto.lumberjack")


@implementer(IStreamClientEndpoint)
class _InTurn:
    def __init__(self, hosts: Sequence[ClientEndpoint]) -> None:
        self._hosts = itertools.cycle(hosts)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        connected: Deferred[Any] = next(self._hosts).connect(protocolFactory)
        return connected


class _Owned(Factory):
    noisy = False

    def __init__(self, line: _Line, factory: LumberjackClientFactory) -> None:
        self._line = line
        self._factory = factory

    def buildProtocol(self, addr: IAddress | None) -> Any:
        client: Any = self._factory.buildProtocol(addr)
        if client is not None:
            client.link.owner = self._line
        return client


class _Line(ReconnectingClient[LumberjackClient]):
    """One connection at a time, which it owns: each attempt goes to the next of its hosts."""

    def __init__(
        self,
        hosts: Sequence[ClientEndpoint],
        shipper: LumberjackShipper,
        changes: Mapping[str, object],
        retryPolicy: Callable[[int], float] | None,
        stopWhenRefused: bool,
    ) -> None:
        factory = shipper.factory
        self._shipper = shipper
        self._expired = False  # the last connection ended as it should (ttl)
        self._hosts = len(hosts)
        self._refusing = 0  # hosts in a row that refused
        self.fruitless = 0
        # A reader that accepts and then hangs up is waited for longer and longer.
        changes = {"steady-seconds": NEVER_SECONDS, **changes}
        super().__init__(
            _InTurn(hosts),
            factory,
            connecting=_Owned(self, factory),
            limits=Limits.of(RECONNECT_LIMITS).replace(changes),
            random=shipper.random,
            retryPolicy=retryPolicy,
            stopWhenRefused=stopWhenRefused,
        )

    def _unconnected(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._shipper.connectionEnded(cast(BaseException, failure.value))
        super()._unconnected(failure)

    def _failed(self, error: BaseException | None = None) -> None:
        self._refusing = self._refusing + 1 if isinstance(error, Refused) else 0
        several = isinstance(error, Refused) and self._refusing < self._hosts
        super()._failed(ConnectionClosed(str(error)) if several else error)

    def _delay(self) -> float:
        if self._expired:
            self._expired = False
            return 0.0
        return super()._delay()

    def _change(self, state: ReconnectState) -> None:
        super()._change(state)
        self._shipper._lineChanged()

    def disconnect(self) -> Deferred[Any]:
        if self.running:
            Service.stopService(self)
        self._closing = True
        return self._leave().addCallback(lambda _: self._change(ReconnectState.DOWN))

    # What a connection says to its owner.

    def clientSends(self, events: list[Event]) -> Deferred[None]:
        return self._shipper._ship(events)

    def clientWants(self, link: WriterLink) -> None:
        """The client may send: submit batches while its ``machine.wanted`` is not 0."""
        self._shipper._give(link)

    def clientProgressed(self, count: int) -> None:
        """Note a sign of life: ``count`` (or 0) more events are acknowledged."""
        if count:
            self._retries.reset()
            if self.fruitless >= FRUITLESS_TOLD:
                log.info("events are acknowledged again")
            self.fruitless = 0
        self._shipper.progressed(count)

    def clientLost(self, link: WriterLink, batches: list[PreparedBatch], stood: bool) -> None:
        """``batches`` are unacknowledged, in order; ``stood``: events could be written."""
        error = link.closeReason
        assert error is not None
        self._expired = link.expired
        if isinstance(error, Refused) and self.state is ReconnectState.UP:
            # A reader on TLS 1.3 looks at our certificate when our side stands already.
            self._error = error
            self._change(ReconnectState.CONNECTING)
        self._shipper._takeBack(batches)
        self._shipper.connectionEnded(error)
        if stood and batches and not link.expired:
            self._cameToNothing(link, batches)

    def _cameToNothing(self, link: WriterLink, batches: list[PreparedBatch]) -> None:
        self.fruitless += 1
        if self.fruitless == FRUITLESS_TOLD:
            log.warn(
                "{peer}: {ends} connections in a row have ended without an ack; the same events"
                " are sent again and again ({count}). The reader's log says why. If an event is"
                " above a limit there (such as json-bytes): raise the limit, or cancel the"
                " Deferred that send returned for that event",
                peer=link.peer,
                ends=self.fruitless,
                count=sum(batch.missing for batch in batches),
            )


@implementer(IConsumer)
class LumberjackShipper(ReconnectingService[LumberjackClient]):
    """A service that sends events to one of several readers (or to all in turn), whatever happens.

    Events are kept until they are acknowledged.  When a connection is lost, what was unacknowledged
    on it is sent again, in order, on the next one.  When every reader refuses the connection (TLS
    says no), what was not acknowledged fails with Refused.

    Attributes as ``ReconnectingService`` has them, and:
        factory: its ``counters`` count all connections.
        unsent: events that wait for a connection with space.
        unacknowledged: events that were accepted and are not acknowledged.
        fruitless: how many connections in a row have ended without an ack of what was sent on them.
        Above 2 a reader probably cannot take an event; the log says so.
    """

    def __init__(
        self,
        reactor: Any,
        endpoints: Iterable[str | ClientEndpoint],
        *,
        loadBalance: bool = False,
        version: int = 2,
        window: int = WINDOW_DEFAULT,
        compress: int = COMPRESS_DEFAULT,
        pipelining: int = 1,
        limits: LumberjackClientLimits | Limits | None = None,
        random: Callable[[], float] = random_module.random,
        factory: LumberjackClientFactory | None = None,
        retryPolicy: Callable[[int], float] | None = None,
        stopWhenRefused: bool = False,
        reconnectLimits: ReconnectLimits | None = None,
    ) -> None:
        """Make a shipper; nothing connects before ``startService``.

        ``endpoints``: client endpoints or their strings, in order of preference.  One connection is
        open at a time and each attempt goes to the next host (failover); with ``loadBalance`` one
        connection to each, and events go to any that has space.  ``random`` returns numbers from 0
        to 1.  The rest is as for :class:`~.sides.LumberjackClientFactory`.  ``factory`` replaces
        the settings before it.
        ``retryPolicy``, ``stopWhenRefused`` and ``reconnectLimits`` are as ``ReconnectingService``
        has the first two and ``limits``.

        Raises ConfigurationError for a setting that makes no sense.
        """
        expect("endpoints", endpoints, "a list of endpoints", not isinstance(endpoints, str))
        self.random = random
        if factory is None:
            factory = LumberjackClientFactory(
                version=version,
                window=window,
                compress=compress,
                pipelining=pipelining,
                limits=limits,
                clock=reactor,
            )
        super().__init__(reactor, drain=factory.limits["drain"], random=random)
        self.factory = factory
        hosts = [endpoint_of(reactor, endpoint) for endpoint in endpoints]
        if not hosts:
            raise ConfigurationError("no host to send to")
        groups = [[host] for host in hosts] if loadBalance else [hosts]
        self._lines = [
            _Line(group, self, reconnectLimits or {}, retryPolicy, stopWhenRefused)
            for group in groups
        ]
        self._capacity = factory.capacity * len(self._lines)
        self._queue: OrderedDict[PreparedBatch, None] = OrderedDict()
        self._fresh: set[Sent] = set()  # of a new start, while the session before it ends
        self._producers = ProducerControl()
        self._unsentBytes = 0
        self.unsent: int = 0
        self.unacknowledged: int = 0

    @property
    def fruitless(self) -> int:
        return max(line.fruitless for line in self._lines)

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def send(self, event: Event) -> Deferred[None]:
        """Send one event; fires when it is acknowledged, however many connections that takes.

        It does what :meth:`.sides.LumberjackClient.send` does; it fails with ConnectionClosed only
        when the service stops before the event is acknowledged, and with Refused when every reader
        refuses the connection.
        """
        return self.sendBatch((event,))

    def sendBatch(self, events: Iterable[Event]) -> Deferred[None]:
        """Send many events; fires when all are acknowledged.  If one is above a limit none is sent.

        They stay in order on one connection; with ``loadBalance`` windows go different ways.
        """
        if self.state is ReconnectState.REFUSED and self.refusal is not None:
            return fail(self.refusal)
        return self._ship(list(events))

    def _ship(self, events: list[Event]) -> Deferred[None]:
        if not events:
            return succeed(None)
        if self._closing and not self.running:
            return fail(ConnectionClosed("the service has stopped; nothing sent"))
        ticket = Sent(self._withdraw)
        window, pack = self.factory.window, self.factory.packer.pack
        try:
            batches = [
                pack(events[start : start + window]) for start in range(0, len(events), window)
            ]
            self._checkRoom(len(events), sum(batch.nbytes for batch in batches))
        except LimitExceeded as error:
            return fail(error)
        if self._closing:
            self._fresh.add(ticket)
        for batch in batches:
            ticket.add(batch)
            self._enqueue(batch)
        self.unacknowledged += len(events)
        self._look()
        return ticket

    def _checkRoom(self, events: int, nbytes: int) -> None:
        limits = self.factory.limits
        limits.check("unsent-events", self.unsent + events)
        limits.check("unsent-bytes", self._unsentBytes + nbytes)

    # ── hook for subclasses ─────────────────────────────────────────────────────────────────────

    def connectionEnded(self, error: BaseException) -> None:
        """A connection was lost or an attempt has failed; what was not acknowledged is kept.

        By default a line in the log.
        """
        if not self._closing:
            log.info("the connection has ended: {text}", text=str(error) or type(error).__name__)

    # ── the service's life ──────────────────────────────────────────────────────────────────────

    @property
    def _clients(self) -> list[LumberjackClient]:
        live = self.factory.liveConnections  # those of others, too, if they share the factory
        return [client for client in live if client.link.owner in self._lines]

    def _begin(self) -> None:
        for line in self._lines:
            line.startService()

    def _lineChanged(self) -> None:
        lines = self._lines
        up = next((line for line in lines if line.state is ReconnectState.UP), None)
        if up is not None:
            if self.state is not ReconnectState.UP and up.session is not None:
                self._established(up.session)
            return
        self.session = None
        states = {line.state for line in lines}
        if states == {ReconnectState.REFUSED} and lines[0].refusal is not None:
            if self.state is not ReconnectState.REFUSED:
                self.refusal = lines[0].refusal
                self._change(ReconnectState.REFUSED)
                self._failWaiting(self.refusal)
                self._failQueue(self.refusal)
        elif ReconnectState.CONNECTING in states:
            self._change(ReconnectState.CONNECTING)
        else:
            self._change(ReconnectState.DOWN)

    def stopService(self) -> Deferred[None]:
        """Accept no more events, await the acks of all (until the limit ``drain``), disconnect.

        What is unacknowledged by then fails with ConnectionClosed.
        """
        seconds = self.factory.limits["drain"] if self.running else 0.0  # else nobody connects
        if self.running:
            Service.stopService(self)
        stopped = self._stopping.wait()
        first, self._ending, self._closing = not self._ending, True, True
        self._failWaiting(ConnectionClosed("the service has stopped"))
        self._fresh = set()
        if first:
            self._producers.stop()
            self._deadline = self.clock.callLater(seconds, self._disconnect)
            self._lookEmpty()
        return stopped

    def _lookEmpty(self) -> None:
        deadline = self._deadline
        if deadline is not None and not self.unacknowledged:
            deadline.cancel()
            self._disconnect()

    def _disconnect(self) -> None:
        self._deadline = None
        error = ConnectionClosed("stopped before every event was acknowledged")
        for client in self._clients:
            if client.link.machine.unacknowledged:
                client.link.leave(error)
            else:
                client.close()
        lines = [maybeDeferred(line.disconnect) for line in self._lines]
        gatherResults(lines, consumeErrors=True).addBoth(self._disconnected, error)

    def _cutOff(self) -> None:
        for client in self._clients:
            client.abort()
        self._hurry()

    def _disconnected(self, result: object, error: MsgprotoError) -> None:
        self._failQueue(error, self._fresh)
        self._fresh = set()
        self._left(result)

    def _failQueue(self, error: MsgprotoError, spared: Container[Sent] = ()) -> None:
        batches = [batch for batch in self._queue if batch.token not in spared]
        for batch in batches:
            self._dequeue(batch)
            self.unacknowledged -= batch.missing
        fail_all([batch.token for batch in batches], error)

    # ── IConsumer ───────────────────────────────────────────────────────────────────────────────

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Let a push producer write events; it is paused while the window is full (``LJ-09``)."""
        self._producers.register(producer, streaming)
        self._lookProducer()

    def unregisterProducer(self) -> None:
        """The producer has no more events."""
        self._producers.unregister()

    def write(self, data: Event) -> None:
        """Send one event and wait for nothing; what becomes of it is only logged."""
        self.send(data).addErrback(_unheard)

    # ── the queue ───────────────────────────────────────────────────────────────────────────────

    def _enqueue(self, batch: PreparedBatch, first: bool = False) -> None:
        self._queue[batch] = None
        if first:
            self._queue.move_to_end(batch, last=False)
        self.unsent += batch.missing
        self._unsentBytes += batch.nbytes

    def _dequeue(self, batch: PreparedBatch) -> None:
        del self._queue[batch]
        self.unsent -= batch.missing
        self._unsentBytes -= batch.nbytes

    def _withdraw(self, batch: PreparedBatch) -> None:
        missing = batch.missing
        if batch in self._queue:
            self._dequeue(batch)
        elif not any(client.link.machine.withdraw(batch) for client in self._clients):
            return
        self.unacknowledged -= missing
        self._look()
        self._lookEmpty()

    def _look(self) -> None:
        for client in self._clients:
            if not self._queue:
                break
            client.link.flush()
        self._lookProducer()

    def _lookProducer(self) -> None:
        self._producers.look(self.unacknowledged >= self._capacity)

    # ── what the connections say ────────────────────────────────────────────────────────────────

    def _give(self, link: WriterLink) -> None:
        writer = link.machine
        while self._queue and writer.wanted:
            batch = next(iter(self._queue))
            self._dequeue(batch)
            writer.submit(batch)

    def progressed(self, count: int) -> None:
        """Note a reader's sign of life: ``count`` (or 0) more events are acknowledged."""
        self.unacknowledged -= count
        self._lookProducer()
        self._lookEmpty()

    def _takeBack(self, batches: list[PreparedBatch]) -> None:
        """What was unacknowledged on a lost connection is sent first on another (``LJ-15``)."""
        for batch in reversed(batches):
            if batch.token.called:  # cancelled while it was in flight
                self.unacknowledged -= batch.missing
            else:
                self._enqueue(batch, first=True)
        self._look()
        self._lookEmpty()


def _unheard(failure: Failure) -> None:
    log.warn("an event was not sent: {text}", text=failure.getErrorMessage())


class LumberjackClientService(LumberjackShipper):
    """A service that sends events to one reader; see ``ReconnectingService``.

    Events are kept until they are acknowledged, however many connections that takes; they wait for
    a connection without a limit of time, up to ``unsent-events`` and ``unsent-bytes``.  For
    several readers there is :class:`~.LumberjackShipper`.
    """

    def __init__(
        self,
        endpoint: str | ClientEndpoint,
        factory: LumberjackClientFactory,
        *,
        retryPolicy: Callable[[int], float] | None = None,
        stopWhenRefused: bool = False,
        limits: ReconnectLimits | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        """``endpoint`` is one, or its string; all by name is as ``ReconnectingService`` has it."""
        super().__init__(
            factory.clock,
            [endpoint],
            factory=factory,
            retryPolicy=retryPolicy,
            stopWhenRefused=stopWhenRefused,
            reconnectLimits=limits,
            random=random,
        )
