"""The writer which does not give up: it connects again and sends again what is unacknowledged.

    shipper = LumberjackShipper(reactor, ["tcp:logs-1:5044", "tcp:logs-2:5044"])
    shipper.startService()
    await shipper.send(b'{"message": "hello"}')
    await shipper.stopService()

The wire is at-least-once: an event whose ack was lost with its connection arrives twice
(``LJ-15``).
"""

from __future__ import annotations

import random as random_module
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from twisted.application.internet import ClientService
from twisted.application.service import Service
from twisted.internet.defer import (
    CancelledError,
    Deferred,
    fail,
    gatherResults,
    maybeDeferred,
    succeed,
)
from twisted.internet.endpoints import clientFromString
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

from ...core.errors import ConfigurationError, ConnectionClosed, LimitExceeded, MsgprotoError
from ...core.limits import Limit, Limits
from ..terms import COMPRESS_DEFAULT, WINDOW_DEFAULT, Event, Parcel
from .client import (
    CLIENT_LIMITS,
    LumberjackClient,
    LumberjackClientFactory,
    ProducerControl,
    Ticket,
)

SHIPPER_LIMITS: Final = (
    *CLIENT_LIMITS,
    Limit("backoff-first", 1.0, "s", "until the first attempt to connect again"),
    Limit("backoff-most", 60.0, "s", "between two attempts, however many have failed"),
)
"""What a shipper bounds."""

BACKOFF_FACTOR: Final = 2.0
"""Each attempt which fails makes the next wait so much longer."""

BACKOFF_JITTER: Final = 0.5
"""So much of a wait is left to chance, lest all writers come back at the same moment."""

log: Final = Logger(namespace="twisted_msgproto.lumberjack")


class Backoff:
    """How long to wait before the next attempt: longer each time, and never the same for all."""

    __slots__ = ("_first", "_most", "_random", "attempts")

    def __init__(self, first: float, most: float, random: Callable[[], float]) -> None:
        """``first`` and ``most`` are in seconds; ``random`` gives numbers from 0 to 1."""
        self._first = first
        self._most = most
        self._random = random
        self.attempts = 0

    def next(self) -> float:
        """Seconds to wait now; one attempt more has failed."""
        # The exponent is bounded, for a float has an end after a thousand attempts.
        longest = min(self._most, self._first * BACKOFF_FACTOR ** min(self.attempts, 64))
        self.attempts += 1
        return longest * (1 - BACKOFF_JITTER * self._random())

    def reset(self) -> None:
        """It works again."""
        self.attempts = 0


@implementer(IStreamClientEndpoint)
class _Line(Factory):
    """One connection at a time, for ever: each attempt goes to the next of its hosts.

    It is the endpoint and the factory of a ClientService, and the owner of its connections.
    """

    noisy = False

    def __init__(self, hosts: Sequence[IStreamClientEndpoint], shipper: LumberjackShipper) -> None:
        limits = shipper.factory.limits
        self._hosts = hosts
        self._next = 0
        self._shipper = shipper
        self._backoff = Backoff(limits["backoff-first"], limits["backoff-most"], shipper.random)
        self._at_once = False  # the last connection ended as it should (ttl)
        self.service = ClientService(self, self, self._wait, shipper.clock)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        host = self._hosts[self._next]
        self._next = (self._next + 1) % len(self._hosts)
        connected: Deferred[Any] = host.connect(protocolFactory)
        return connected.addErrback(self._failed)

    def _failed(self, failure: Failure) -> Failure:
        if not failure.check(CancelledError):
            self._shipper.connectionEnded(cast(BaseException, failure.value), False)
        return failure

    def buildProtocol(  # type: ignore[override]
        self, addr: IAddress | None
    ) -> LumberjackClient | None:
        client = self._shipper.factory.buildProtocol(addr)
        if client is not None:
            client.owner = self
        return client

    def _wait(self, failed_attempts: int) -> float:
        # Twisted counts a reader which accepts and then hangs up as a success; we wait longer
        # and longer until something was acknowledged.
        if self._at_once:
            self._at_once = False
            return 0.0
        return self._backoff.next()

    # What a connection says to its owner.

    def clientWants(self, client: LumberjackClient) -> None:
        self._shipper.give(client)

    def clientProgressed(self, client: LumberjackClient, count: int) -> None:
        if count:
            self._backoff.reset()
        self._shipper.progressed(count)

    def clientLost(
        self, client: LumberjackClient, parcels: list[Parcel], error: MsgprotoError
    ) -> None:
        self._at_once = client.expired
        self._shipper.takeBack(parcels)
        self._shipper.connectionEnded(error, client.established)


@implementer(IConsumer)
class LumberjackShipper(Service):
    """Sends events to one of several readers (or to all of them in turn), whatever happens.

    Events are kept until they are acknowledged.  When a connection is lost, what was unacknowledged
    on it is sent again, in order, on the next one.

    Attributes:
        factory: its ``counters`` count all connections.
        unsent: events which wait for a connection with room.
        unacknowledged: events which were taken and are not acknowledged.
    """

    def __init__(
        self,
        reactor: Any,
        endpoints: Iterable[IStreamClientEndpoint | str],
        *,
        loadBalance: bool = False,
        version: int = 2,
        window: int = WINDOW_DEFAULT,
        compress: int = COMPRESS_DEFAULT,
        pipelining: int = 1,
        limits: Mapping[str, object] | Limits | None = None,
        random: Callable[[], float] = random_module.random,
        clock: Any = None,
        factory: LumberjackClientFactory | None = None,
    ) -> None:
        """Make a shipper; nothing connects before ``startService``.

        ``endpoints``: client endpoints or their strings, in order of preference.  One connection
        is open at a time and each attempt goes to the next host (failover); with ``loadBalance``
        one connection to each, and events go to whichever has room.  ``random`` gives numbers
        from 0 to 1.  The rest is as for :class:`~.client.LumberjackClientFactory`; ``limits`` may
        also change ``backoff-first`` and ``backoff-most``.  ``factory`` takes the place of the
        settings before it: its limits hold at least :data:`SHIPPER_LIMITS`.

        Raises ConfigurationError for a setting which makes no sense.
        """
        self.clock = reactor if clock is None else clock
        self.random = random
        if factory is None:
            factory = LumberjackClientFactory(
                version=version,
                window=window,
                compress=compress,
                pipelining=pipelining,
                limits=limits
                if isinstance(limits, Limits)
                else Limits.of(SHIPPER_LIMITS).replace(limits or {}),
                clock=self.clock,
            )
        self.factory = factory
        hosts = [_endpoint(reactor, endpoint) for endpoint in endpoints]
        if not hosts:
            raise ConfigurationError("no host to send to")
        groups = [[host] for host in hosts] if loadBalance else [hosts]
        self._lines = [_Line(group, self) for group in groups]
        self._capacity = factory.capacity * len(self._lines)
        self._queue: OrderedDict[Parcel, None] = OrderedDict()
        self._producers = ProducerControl()
        self._stopping = False
        self._deadline: Any = None  # of the end of stopService
        self._stoppers: list[Deferred[None]] = []  # who waits for it
        self._unsentOctets = 0
        self.unsent = 0
        self.unacknowledged = 0

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def send(self, event: Event) -> Deferred[None]:
        """Send one event; fires when it is acknowledged, however many connections that takes.

        As :meth:`.client.LumberjackClient.send`; it fails with ConnectionClosed only when the
        service stops before the event is acknowledged.
        """
        return self.sendBatch((event,))

    def sendBatch(self, events: Iterable[Event]) -> Deferred[None]:
        """Send many events; fires when all are acknowledged.  If one is above a limit none is sent.

        They stay in order on one connection; with ``loadBalance`` windows go different ways.
        """
        events = list(events)
        if not events:
            return succeed(None)
        if self._stopping:
            return fail(ConnectionClosed("the service has stopped; nothing sent"))
        ticket = Ticket(self._withdraw)
        window, pack = self.factory.window, self.factory.packer.pack
        try:
            parcels = [
                pack(events[start : start + window]) for start in range(0, len(events), window)
            ]
            self._checkRoom(len(events), sum(parcel.octets for parcel in parcels))
        except LimitExceeded as error:
            return fail(error)
        for parcel in parcels:
            ticket.add(parcel)
            self._enqueue(parcel)
        self.unacknowledged += len(events)
        self._look()
        return ticket.deferred

    def _checkRoom(self, events: int, octets: int) -> None:
        limits = self.factory.limits
        if (
            self.unsent + events > limits["unsent-events"]
            or self._unsentOctets + octets > limits["unsent-octets"]
        ):
            raise LimitExceeded(f"{self.unsent} events wait to be sent already; nothing sent")

    def whenConnected(self, failAfterFailures: int | None = None) -> Deferred[LumberjackClient]:
        """The first connection which stands; as ClientService.whenConnected."""
        connected: Deferred[Any] = self._lines[0].service.whenConnected(failAfterFailures)
        return connected

    # ── hook for subclasses ─────────────────────────────────────────────────────────────────────

    def connectionEnded(self, error: BaseException, established: bool) -> None:
        """A connection was lost or an attempt has failed; what was not acknowledged is kept.

        By default a line in the log.
        """
        if not self._stopping:
            log.info("the connection has ended: {text}", text=str(error) or type(error).__name__)

    # ── the service's life ──────────────────────────────────────────────────────────────────────

    def startService(self) -> None:
        """Connect, and connect again."""
        super().startService()  # type: ignore[no-untyped-call]
        self._stopping = False
        for line in self._lines:
            line.service.startService()

    def stopService(self) -> Deferred[None]:
        """Take no more events, await the acks of all (until the limit ``drain``), disconnect.

        What is unacknowledged by then fails with ConnectionClosed.
        """
        super().stopService()  # type: ignore[no-untyped-call]
        self._stopping = True
        self._producers.stop()
        stopped: Deferred[None] = Deferred()
        self._stoppers.append(stopped)
        if len(self._stoppers) == 1:
            self._deadline = self.clock.callLater(self.factory.limits["drain"], self._disconnect)
            self._lookEmpty()
        return stopped

    def _lookEmpty(self) -> None:
        deadline = self._deadline
        if deadline is not None and deadline.active() and not self.unacknowledged:
            deadline.cancel()
            self._disconnect()

    def _disconnect(self) -> None:
        self._deadline = None
        error = ConnectionClosed("stopped before every event was acknowledged")
        for client in list(self.factory.liveConnections):
            if client.machine.unacknowledged:
                client.leave(error)
            else:
                client.close()
        lines = [maybeDeferred(line.service.stopService) for line in self._lines]
        gatherResults(lines, consumeErrors=True).addBoth(self._disconnected, error)

    def _disconnected(self, result: object, error: MsgprotoError) -> None:
        parcels, stoppers = list(self._queue), self._stoppers
        self._queue.clear()
        self._stoppers = []
        self.unsent = self._unsentOctets = self.unacknowledged = 0
        for parcel in parcels:
            parcel.token.failed(error)
        for stopped in stoppers:
            stopped.callback(None)

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

    def _enqueue(self, parcel: Parcel, first: bool = False) -> None:
        self._queue[parcel] = None
        if first:
            self._queue.move_to_end(parcel, last=False)
        self.unsent += parcel.missing
        self._unsentOctets += parcel.octets

    def _dequeue(self, parcel: Parcel) -> None:
        del self._queue[parcel]
        self.unsent -= parcel.missing
        self._unsentOctets -= parcel.octets

    def _withdraw(self, parcel: Parcel) -> None:
        """The Deferred was cancelled: forget what is not written yet."""
        missing = parcel.missing
        if parcel in self._queue:
            self._dequeue(parcel)
        elif not any(client.machine.withdraw(parcel) for client in self.factory.liveConnections):
            return
        self.unacknowledged -= missing
        self._look()
        self._lookEmpty()

    def _look(self) -> None:
        """Let connections with room take what is queued."""
        for client in list(self.factory.liveConnections):
            if not self._queue:
                break
            client.look()
        self._lookProducer()

    def _lookProducer(self) -> None:
        self._producers.look(self.unacknowledged >= self._capacity)

    # ── what the connections say ────────────────────────────────────────────────────────────────

    def give(self, client: LumberjackClient) -> None:
        """A connection may send: it takes what its next window can hold."""
        writer = client.machine
        while self._queue and writer.wanted:
            parcel = next(iter(self._queue))
            self._dequeue(parcel)
            writer.submit(parcel)

    def progressed(self, count: int) -> None:
        """A reader gave a sign of life: ``count`` (or 0) more events are acknowledged."""
        self.unacknowledged -= count
        self._lookProducer()
        self._lookEmpty()

    def takeBack(self, parcels: list[Parcel]) -> None:
        """What was unacknowledged on a lost connection is sent first on another (``LJ-15``)."""
        for parcel in reversed(parcels):
            if parcel.token.deferred.called:  # cancelled while it was in flight
                self.unacknowledged -= parcel.missing
            else:
                self._enqueue(parcel, first=True)
        self._look()
        self._lookEmpty()


def _endpoint(reactor: Any, endpoint: IStreamClientEndpoint | str) -> IStreamClientEndpoint:
    if not isinstance(endpoint, str):
        return endpoint
    try:
        built: IStreamClientEndpoint = clientFromString(reactor, endpoint)
    except Exception as error:
        text = str(error) or type(error).__name__
        raise ConfigurationError(f"bad endpoint {endpoint!r}: {text}") from None
    return built


def _unheard(failure: Failure) -> None:
    log.warn("an event was not sent: {text}", text=failure.getErrorMessage())
