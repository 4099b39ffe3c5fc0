"""Both sides of one Lumberjack connection on Twisted move bytes, and decide nothing.

A connection that is lost fails what was not acknowledged; :class:`~.reconnect.LumberjackShipper`
keeps it, connects again and sends it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, ClassVar, Final, Literal

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.protocol import ClientFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from typing_extensions import TypeVar

from ...core.errors import (
    ConfigurationError,
    ConnectionClosed,
    Fault,
    LimitExceeded,
    MsgprotoError,
    Refused,
)
from ...core.limits import Limit, Limits
from ...core.machine import IllegalTransition, Table
from ...core.message import Fields, MessageBatch
from ...net.authentication import certificate_name
from ...net.authorising import PUBLISH, Authoriser, refusal_text
from ...net.clients.client import ClientLink
from ...net.clients.command_types import ClientEndpoint
from ...net.counters import CounterPaths
from ...net.deferreds import Ticket, fail_all
from ...net.factory import COMMON_LIMITS, MsgprotoServerFactory, SessionFactory, expect
from ...net.lifetimes import (
    ClientTLS,
    Connecting,
    Ports,
    Serving,
    Where,
    connecting,
    endpoints_of,
    factory_of,
    running,
    sink_of,
)
from ...net.limit_types import LumberjackClientLimits, LumberjackServerLimits
from ...net.logs import SteadyLogger
from ...net.session import ClientSession, Session, SessionLink
from ...net.sink import MessageSink
from ...net.turns import FIRST_READ_BYTES
from ..machine import Reader, Writer
from ..machine.sending import Packer
from ..terms import (
    COMPRESS_DEFAULT,
    READER,
    READER_LIMITS,
    WINDOW_DEFAULT,
    WRITER_LIMITS,
    DataReceived,
    Event,
    JsonReceived,
    KeptAlive,
    PartAcknowledged,
    PreparedBatch,
    WindowAcknowledged,
    WriterCounters,
    Writing,
)

PROTOCOL: Final = "lumberjack"

READ_BYTES: Final = 1 << 20
"""One read returns at most this many bytes.  Shippers send in bulk, and each read costs a turn
and makes a batch for the queue; ``docs/benchmarks.md`` compares sizes.  The buffer lives for one
read.
"""


NOT_ALLOWED: Final = "not-allowed"

ENDING: Final = "the connection has ended or is ending; nothing sent"


class ReaderLink(SessionLink):
    log: ClassVar[Logger] = SteadyLogger(namespace="twisted_msgproto.lumberjack")
    factory: LumberjackServerFactory
    machine: Reader
    readBytes = READ_BYTES
    faultEnds = "closed without ack"
    counted = CounterPaths(  # the factory counts its events already
        {
            "windows": "machine.counters.windows",
            "acks": "machine.counters.acks",
            "keepalives": "machine.counters.keepalives",
            "trailing_bytes": "machine.decoder.trailing_bytes",
            "invalid_texts": "machine.decoder.invalid_texts",
        }
    )
    refusalEnds = "; closed without ack"

    def makeMachine(self) -> Reader:
        return Reader(self.factory.limits)

    def transportSecured(self) -> None:
        certificate = getattr(self.transport, "getPeerCertificate", lambda: None)()
        if certificate is not None:
            self.clientId = certificate_name(certificate)
        self.establish()

    def _deliver(self, event: JsonReceived | DataReceived) -> None:
        if self.factory.authoriser is not None and self.refuses(
            PUBLISH, count=len(event.sequences)
        ):
            # The protocol has no word for it: the connection ends, and nothing is acknowledged.
            self.factory.countFault(NOT_ALLOWED)
            self.setCloseReason(Refused(refusal_text(PUBLISH, "")))
            self._end(fault=True)
            return
        pairs: Sequence[Fields] | None = None
        bodies: Sequence[bytes] | None = None
        if isinstance(event, JsonReceived):
            kind, bodies = "json", event.bodies
        else:
            kind, pairs = "data", event.pairs
        batch = MessageBatch(  # by place, down to the body: names cost half as much again
            PROTOCOL,
            kind,
            self.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            len(event.sequences),
            event.nbytes,
            event.sequences,
            None,  # no destination
            pairs,
            bodies,
        )
        self.deliver(batch, event.position)

    actions: ClassVar[dict[type, Any]] = {
        Fault: SessionLink.peerFaulted,
        JsonReceived: _deliver,
        DataReceived: _deliver,
    }


class LumberjackServer(Session, link=ReaderLink):
    """The reader's side of one connection, as an application sees it.

    Its ``clientId`` is the name in the writer's certificate (its subject, if that has a common
    name), or None.
    """

    factory: LumberjackServerFactory
    link: ReaderLink


class LumberjackServerFactory(MsgprotoServerFactory):
    """The server: a :class:`LumberjackServer` for each writer that connects."""

    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = READER_LIMITS
    stateTable: ClassVar[Table[Any] | None] = READER
    actions: ClassVar[frozenset[str]] = frozenset({PUBLISH})
    protocol: type[LumberjackServer] = LumberjackServer  # type: ignore[assignment]


CLIENT_LIMITS: Final = (
    *COMMON_LIMITS,
    *WRITER_LIMITS,
    Limit("handshake", 10.0, "s", "for the TLS hand-shake"),
    Limit("unread-seconds", 30.0, "s", "a reader that does not read our bytes is left"),
    Limit("ttl", 0.0, "s", "a connection is replaced after this; 0 = never (LJ-15)"),
    Limit("drain", 10.0, "s", "for the acks that are awaited, when the writer stops"),
)

log: Final = SteadyLogger(namespace="twisted_msgproto.lumberjack")


class Sent(Ticket[None]):
    """A Deferred that fires when the last of its batches is acknowledged."""

    def __init__(self, withdraw: Callable[[PreparedBatch], object]) -> None:
        super().__init__(self._cancelled)
        self._withdraw = withdraw
        self.batches: dict[PreparedBatch, None] = {}

    def _cancelled(self, _: Deferred[None]) -> None:
        for batch in list(self.batches):
            self._withdraw(batch)

    def add(self, batch: PreparedBatch) -> None:
        batch.token = self
        self.batches[batch] = None

    def acknowledged(self, batch: PreparedBatch) -> None:
        del self.batches[batch]
        if not self.batches:
            self.done(None)


class WriterLink(ClientLink):
    """The writer's side of a connection: it sends what waits, and tells what is acknowledged."""

    log: ClassVar[Logger] = log
    factory: LumberjackClientFactory
    machine: Writer
    readsWhileDraining = True  # an end in order waits for acks
    readBytes = FIRST_READ_BYTES  # 2,730 acks, each of which may need 15 µs
    faultEnds = "left"
    timeFaults: ClassVar[frozenset[str]] = frozenset({"timeout"})
    counted = CounterPaths.of(WriterCounters)

    expired: bool = False  # its time (``ttl``) was over
    owner: Any = None  # a line of a shipper, which gets batches back; None: who waits gets errors

    def __init__(self, protocol: LumberjackClient) -> None:
        super().__init__(protocol)
        self._ttl: Any = None
        self._unanswered: list[PreparedBatch] = []
        self._progress: int | None = None  # acknowledged since the owner was told, or only alive

    # ── for verbs ───────────────────────────────────────────────────────────────────────────────

    def withdraw(self, batch: PreparedBatch) -> None:
        """Nobody waits for ``batch`` any more: forget what of it is not written yet."""
        if self.machine.withdraw(batch):
            self.flush()

    def endInOrder(self) -> None:
        self.flush()

    def endNow(self) -> None:
        self._abort()

    def leave(self, error: MsgprotoError) -> None:
        """End the connection at once; ``error`` is what those get who wait for acks."""
        self.setCloseReason(error)
        self._abort()

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def makeMachine(self) -> Writer:
        return self.factory.buildWriter()

    def transportSecured(self) -> None:
        ttl = self.factory.limits["ttl"]
        if ttl:
            self._ttl = self.factory.clock.callLater(ttl, self._expired)
        with self._gathering():
            self.establish()
        self.flush()

    def _expired(self) -> None:
        """Send no further window, await the acks of those in flight, close (``LJ-15``)."""
        self._ttl = None
        self.expired = True
        if self.machine.state in (Writing.IDLE, Writing.FLOWING, Writing.BLOCKED):
            self.drain()

    def workLost(self, work: list[Any], reason: Failure) -> None:
        self._unanswered = work

    def sessionEnding(self, reason: Failure) -> None:
        if self._ttl is not None:
            self._ttl.cancel()
            self._ttl = None
        assert self.closeReason is not None
        if self.owner is not None:
            self.owner.clientLost(self, self._unanswered, self._established)
        else:
            fail_all([batch.token for batch in self._unanswered], self.closeReason)
        super().sessionEnding(reason)

    # ── what the reader says ────────────────────────────────────────────────────────────────────

    def _acknowledged(self, event: PartAcknowledged | WindowAcknowledged) -> None:
        self._progress = (self._progress or 0) + event.count
        for batch in event.batches:
            batch.token.acknowledged(batch)

    def _keptAlive(self, event: KeptAlive) -> None:
        self._progress = self._progress or 0

    def peerFaulted(self, fault: Fault) -> None:
        self.setCloseReason(self.peerError(fault))
        self._logFault(fault, self.faultEnds)
        self._abort()

    def outputChanged(self, paused: bool) -> None:
        if paused:
            self.machine.paused(self._now())
        else:
            self.machine.resumed(self._now())
            self.flush()

    # ── bytes out ──────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _gathering(self) -> Iterator[None]:
        within, self._following = self._following, True
        try:
            yield
        finally:
            self._following = within

    def _settle(self) -> None:
        if self._following:
            return
        writer, owner = self.machine, self.owner
        progress, self._progress = self._progress, None
        now = self._now()
        with self._gathering():
            if owner is not None and progress is not None:
                owner.clientProgressed(progress)  # also if a callback has ended the connection
            if self._ended or not self._established:
                return
            if owner is not None:
                owner.clientWants(self)
            while writer.flush(now) and owner is not None:
                owner.clientWants(self)
        super()._settle()
        if self.closing and not self._ended and not writer.unacknowledged:
            self._end(fault=False)

    actions: ClassVar[dict[type, Any]] = {
        Fault: peerFaulted,
        KeptAlive: _keptAlive,
        PartAcknowledged: _acknowledged,
        WindowAcknowledged: _acknowledged,
    }


class LumberjackClient(ClientSession, link=WriterLink):
    """The writer's side of one connection, as an application sees it."""

    factory: LumberjackClientFactory
    link: WriterLink

    def send(self, event: Event) -> Deferred[None]:
        """Send one event; fires when it is acknowledged (``LJ-09``).

        ``event`` is a JSON document as bytes (version 2), carried as it is, or a mapping of text
        (version 1); TypeError for the wrong one.  The Deferred fails with LimitExceeded when the
        event is above a limit or too many wait (nothing was sent), with ConnectionClosed,
        ProtocolViolation or TimedOut when the connection ends first.  Cancelling it withdraws an
        event that is not written yet.
        """
        return self.sendBatch((event,))

    def sendBatch(self, events: Iterable[Event]) -> Deferred[None]:
        """Send many events, in order; fires when the last is acknowledged.  As ``send``.

        If one of them is above a limit none is sent.  In a session of a service it is the service's
        ``sendBatch``.
        """
        # A Deferred can be iterated, without an end.
        expect("events", events, "a list of events", not isinstance(events, Deferred))
        events, link = list(events), self.link
        if link.owner is not None:
            return link.owner.clientSends(events)  # type: ignore[no-any-return]
        if not events:
            return succeed(None)
        if link.closing or link.closeReason is not None:
            return fail(ConnectionClosed(ENDING))
        ticket = Sent(link.withdraw)
        try:
            batch = link.machine.send(events, ticket)
        except LimitExceeded as error:
            return fail(error)
        except IllegalTransition:
            return fail(ConnectionClosed(ENDING))
        ticket.add(batch)
        link.flush()
        return ticket


class LumberjackClientFactory(SessionFactory, ClientFactory):
    """The settings of a writer: a :class:`LumberjackClient` for each connection to a reader.

    Attributes as :class:`SessionFactory` has them; ``liveConnections`` are the protocols that are
    connected now.
    """

    protocolName = "lumberjack"
    protocol: type[LumberjackClient] = LumberjackClient  # type: ignore[assignment]

    LIMITS: ClassVar[tuple[Limit, ...]] = CLIENT_LIMITS

    def __init__(
        self,
        *,
        version: int = 2,
        window: int = WINDOW_DEFAULT,
        compress: int = COMPRESS_DEFAULT,
        pipelining: int = 1,
        limits: LumberjackClientLimits | Limits | None = None,
        clock: Any = None,
    ) -> None:
        """Make a factory; the arguments are those of :class:`~.writer.Writer`.

        ``limits``: changes to the defaults by name.  ``clock``: anything with ``seconds()`` and
        ``callLater()``; the global reactor if None.

        Raises ConfigurationError for a value that makes no sense.
        """
        super().__init__(limits=limits, clock=clock)
        self.liveConnections: set[LumberjackClient] = set()
        self._settings: dict[str, int] = {
            "version": version,
            "window": window,
            "compress": compress,
            "pipelining": pipelining,
        }
        try:
            self.capacity: int = self.buildWriter().capacity
            self.packer: Packer = Packer(self.limits, version)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self.window = window

    def connectionOpened(self, protocol: Any, host: str) -> None:
        """Note that a connection is made; the system then probes from time to time whether its
        reader is still there.
        """
        if ITCPTransport.providedBy(protocol.transport):
            protocol.transport.setTcpKeepAlive(True)
        super().connectionOpened(protocol, host)
        self.liveConnections.add(protocol)

    def connectionClosed(self, protocol: Any, reason: Failure = connectionDone) -> None:
        self.liveConnections.discard(protocol)
        super().connectionClosed(protocol, reason)

    def buildWriter(self) -> Writer:
        """Return the machine for a new connection."""
        return Writer(self.limits, **self._settings)


C = TypeVar("C", bound=LumberjackClient, default=LumberjackClient)


def connect(
    to: str | ClientEndpoint,
    *,
    client: type[C] = LumberjackClient,  # type: ignore[assignment]
    factory: LumberjackClientFactory | None = None,
    limits: LumberjackClientLimits | Limits | None = None,
    timeout: float = 30.0,
    reactor: Any = None,
    tls: ClientTLS | None = None,
    version: Literal[1, 2] = 2,
    window: int = WINDOW_DEFAULT,
    compress: int = COMPRESS_DEFAULT,
    pipelining: int = 1,
) -> Connecting[C]:
    """Return what connects to a reader when it is awaited or entered: a :class:`.Connecting`.

    ``to``: ``tcp:HOST:PORT``, ``tls:HOST:PORT``, ``unix:PATH``, any string of a Twisted client
    endpoint, or an endpoint.  ``client``: the class of the client.  ``factory``: one of your own,
    which has the settings itself.  ``timeout``: seconds until the session stands.  ``tls`` takes
    the place of the system's authorities.  The rest is as for :class:`LumberjackClientFactory`.

    Raises ConfigurationError for an address, a limit or a setting that makes no sense, TypeError
    for settings beside ``factory``.
    """
    reactor = running(reactor)
    made = factory_of(
        LumberjackClientFactory,
        factory,
        reactor,
        client=client,
        version=version,
        window=window,
        compress=compress,
        pipelining=pipelining,
        limits=limits,
    )
    return connecting(to, made, timeout, reactor, tls=tls)


def serve(
    at: Where | Sequence[Where],
    *,
    sink: MessageSink | None = None,
    queue: str | PathLike[str] | None = None,
    server: type[LumberjackServer] = LumberjackServer,
    factory: LumberjackServerFactory | None = None,
    limits: LumberjackServerLimits | Limits | None = None,
    authoriser: Authoriser | None = None,
    reactor: Any = None,
) -> Serving[LumberjackServerFactory]:
    """Return what listens when it is awaited or entered: a :class:`.Serving`.

    ``at``: strings of Twisted server endpoints, as the command line takes them, or endpoints.
    ``sink`` gets the messages and is never closed; ``queue`` is a directory whose queue is opened
    and closed with the server.  ``server``: the class of the sessions.  ``factory``: one of your
    own, which has the settings itself.

    Raises ConfigurationError for an address or a limit that makes no sense, TypeError for settings
    beside ``factory``, and for ``sink`` and ``queue`` together.
    """
    reactor = running(reactor)
    sink, owned = sink_of(sink, queue, factory, reactor)
    made = factory_of(
        LumberjackServerFactory,
        factory,
        reactor,
        server=server,
        sink=sink,
        limits=limits,
        authoriser=authoriser,
    )
    wanted = [(one, made, str) for one in endpoints_of(at)]
    return Serving(made, Ports(reactor, made, wanted), owned, reactor)
