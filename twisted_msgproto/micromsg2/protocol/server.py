"""The side of MicroMsg2 that accepts: it receives messages and serves subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Unpack

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ...core.broker import QUEUED_MESSAGE_BYTES, WAIT, TooManyQueues
from ...core.errors import ConfigurationError
from ...core.limits import Limits
from ...core.machine import Table
from ...core.session_memory import SESSION_LIMIT
from ...net.authorising import CONSUME, PUBLISH, SUBSCRIBE, Authoriser, refusal_text
from ...net.broker import SenderBackpressure, ServedBroker, broker_of
from ...net.factory import ServerSettings, expect
from ...net.lifetimes import (
    Ports,
    Serving,
    Where,
    endpoints_of,
    factory_of,
    running,
    sink_of,
)
from ...net.limit_types import MicroMsg2ServerLimits
from ...net.sink import MessageSink
from ...net.turns import TurnWatch
from ..application import (
    NOT_ALLOWED,
    SLOW_CONSUMER,
    SPACE,
    TOPIC_PREFIX,
    Broker,
    SubscriptionRefused,
)
from ..machine import Server
from ..machine.extensions import Proposal, PubSub
from ..queued_messages import Routed, envelopes
from ..terms import SERVER, CommandReceived, MessagesAcknowledged
from ..wire.frames import LIMIT_EXCEEDED
from ..wire.texts import NO_PROPERTIES, Writable
from .session import (
    Arrived,
    MicroMsg2Factory,
    MicroMsg2Link,
    MicroMsg2Session,
    expect_proposal,
)

UNLIMITED_ROOM = 256
"""A consumer that does not acknowledge gets this many messages at a time."""


class Publication:
    """Messages that are stored, on their way to topics and queues; then they are acknowledged."""

    def __init__(self, server: MicroMsg2ServerLink, arrived: Arrived, parts: int) -> None:
        self._server = server
        self._arrived = arrived
        self._parts = parts  # how often ``came`` will be called
        self._durable = self._accepted = arrived.envelopes is None
        self._done = False
        self._bytes = 0
        self._paused = False

    def wait(self) -> None:
        """Unless all is done, the bytes are withheld; and a sender of much waits for its turn."""
        if self._done:
            return
        self._server.factory.publications.add(self)
        event = self._arrived.event
        self._bytes = event.nbytes + event.weight + QUEUED_MESSAGE_BYTES * len(event.sequences)
        if self._parts:
            self._paused = True
            self._server.pauseReading("fan-out")
        self._server.factory.senderBackpressure.add(self._server, self._bytes)

    def came(self) -> None:
        self._parts -= 1
        if self._paused and not self._parts:
            self._server.resumeReading("fan-out")
        self.look()

    def durable(self) -> None:
        self._durable = True
        self.look()

    def accepted(self) -> None:
        self._accepted = True
        self.look()

    def look(self) -> None:
        """Acknowledge them if all is done; a server that stops does not wait for room in queues."""
        accepted = self._accepted or (self._durable and self._server.factory.draining)
        if self._done or self._parts or not accepted:
            return
        self._done = True
        if self._bytes:
            self._server.factory.publications.discard(self)
            self._server.factory.senderBackpressure.remove(self._server, self._bytes)
        self._server.settled(self._arrived)


class MicroMsg2ServerLink(MicroMsg2Link):
    factory: MicroMsg2ServerFactory
    _subscribed = False  # the broker was told of subscriptions, and has not looked yet

    def makeMachine(self) -> Server:
        return Server(self.factory.proposal, self.factory.limits)

    def sessionEnding(self, reason: Failure) -> None:
        if self.factory.broker is not None:
            self.factory.broker.lost(self, orderly=self.factory.draining)
            self.factory.lookBroker()
        self.factory.senderBackpressure.forget(self)
        super().sessionEnding(reason)

    def outputChanged(self, paused: bool) -> None:
        super().outputChanged(paused)
        if not paused and self.factory.broker is not None:
            self.factory.broker.ready(self)
            self.factory.lookBroker()

    # ── the broker ──────────────────────────────────────────────────────────────────────────────

    def _commanded(self, event: CommandReceived) -> None:
        broker = self.factory.broker
        if broker is None or event.name not in PubSub.commands:
            super()._commanded(event)
            return
        try:
            self._authoriseCommand(event)
            broker.obey(self, event.name, event.parameters)
        except SubscriptionRefused as refusal:
            if refusal.crowded:
                self.factory.limitMet(SESSION_LIMIT, "subscription")
            self.machine.send_error(refusal.code, str(refusal))
        self._subscribed = True

    def _authoriseCommand(self, event: CommandReceived) -> None:
        destination = event.parameters.get("destination", "")
        if self.factory.authoriser is None or event.name != "subscribe" or not destination:
            return
        action = SUBSCRIBE if destination.startswith(TOPIC_PREFIX) else CONSUME
        if self.refuses(action, destination):
            text = refusal_text(action, destination)
            raise SubscriptionRefused(NOT_ALLOWED, f"{destination}: {text}")

    def _follow(self, events: Iterable[Any]) -> None:
        super()._follow(events)
        if self._subscribed and not self._following:
            self._subscribed = False
            if self.factory.broker is not None:
                self.factory.broker.look()

    def _address(self, arrived: Arrived) -> None:
        """Give envelopes to messages for queues: one that outlives us has them from the log."""
        broker, event = self.factory.broker, arrived.event
        if broker is None or not broker.queues:  # most servers have none
            return
        if broker.queues.keys().isdisjoint(event.destinations):
            return
        arrived.envelopes = envelopes(broker.queues, event.destinations, event.texts, event.notes)
        if self.factory.queues.durable:
            arrived.batch.envelope = arrived.envelopes

    def publish(self, arrived: Arrived) -> None:
        broker, event = self.factory.broker, arrived.event
        if broker is None:
            self.settled(arrived)
            return
        topics = broker.topics.keys()  # mostly none
        if arrived.envelopes is None and (not topics or topics.isdisjoint(event.destinations)):
            self.settled(arrived)
            return
        queued, envelopes = arrived.envelopes is not None, arrived.envelopes or []
        if arrived.refused:
            numbers = enumerate(event.sequences)
            kept = [row for row, number in numbers if number not in arrived.refused]
            event.keep(kept)
            envelopes = [envelopes[row] for row in kept] if queued else []
        destinations = event.destinations
        subscribed = not topics.isdisjoint(destinations)
        publication = Publication(self, arrived, subscribed + queued)
        if queued:
            calls = publication.came, publication.durable, publication.accepted
            broker.enqueue(destinations, event.bodies, envelopes, *calls)
        if subscribed:
            columns = event.properties, event.texts, event.bodies, event.notes
            broker.publish(destinations, *columns, publication.came)
        publication.wait()
        self.factory.lookBroker()

    def _acknowledged(self, event: MessagesAcknowledged) -> None:
        super()._acknowledged(event)
        if self.factory.broker is not None:
            self.factory.broker.acknowledged(self, event.sequences)
            self.factory.lookBroker()
            if self.factory.senderBackpressure.pressing:
                self.factory.senderBackpressure.settled(self)

    actions: ClassVar[dict[type, Any]] = {
        **MicroMsg2Link.actions,
        CommandReceived: _commanded,
        MessagesAcknowledged: _acknowledged,
    }

    # What the broker asks of a consumer.

    def room(self) -> int:
        if self._ended or self._outputPaused or self._unsent:
            return 0
        room = self.machine.room
        return UNLIMITED_ROOM if room is None else room

    def push(self, messages: Sequence[Routed]) -> Iterable[int] | None:
        machine, now = self.machine, self.factory.clock.seconds()
        annotating = [one.name for one in machine.extensions if one.annotates]
        # What this server took in it may pass on, whatever the limits for sending say.
        numbers: list[int] = []
        if not annotating:
            numbers = machine.send_encoded([one.frames for one in messages], now=now)
        else:
            for one in messages:
                # What is not said of this message was said of another sender's (MM-29).
                notes = {name: one.notes.get(name, "") for name in annotating}
                numbers += machine.send_encoded((one.frames,), notes, now=now)
        self._settle()
        return None if machine.sending is None else numbers

    def owing(self) -> None:
        if self.factory.senderBackpressure.pressing:
            self.factory.senderBackpressure.owing(self)

    def too_slow(self) -> None:
        """More waits for this subscriber than may (MM-32)."""
        self._breakOff(SLOW_CONSUMER, "too many messages wait for this subscriber")

    def failed(self, error: Exception) -> None:
        self.log.failure(
            "{peer}: closed: a message cannot be delivered to it", Failure(error), peer=self.peer
        )
        self.setCloseReason(error)
        self._abort()

    # What is asked of a sender to queues.

    @property
    def owes_settlements(self) -> bool:
        return self.factory.broker is not None and self.factory.broker.owes(self)

    def withheld_too_long(self) -> None:
        """Too much of what it sent to full queues waits, and it makes no room in them."""
        self._breakOff(LIMIT_EXCEEDED, "withheld-bytes: queues are full, acknowledge first")

    def _breakOff(self, code: str, text: str) -> None:
        if not self._ended:
            self.machine.break_off(code, text)
            assert self.machine.fault is not None
            self.peerFaulted(self.machine.fault)


class MicroMsg2Server(MicroMsg2Session, link=MicroMsg2ServerLink):
    """The side that accepts: a session that receives messages and serves subscriptions."""

    factory: MicroMsg2ServerFactory
    link: MicroMsg2ServerLink


class MicroMsg2ServerFactory(MicroMsg2Factory):
    """Builds a :class:`MicroMsg2Server` for each client that connects.

    Attributes:
        proposal: what the server requires, suggests and knows; by default it requires nothing.
        broker: topics and queues; None: SUBSCRIBE is an unknown command.
        queues: what has the queues; servers of several protocols may share it.
        publications: those that wait for their turn or for room in a queue.
        senderBackpressure: their bytes.
    """

    actions: ClassVar[frozenset[str]] = frozenset({CONSUME, PUBLISH, SUBSCRIBE})
    stateTable: ClassVar[Table[Any] | None] = SERVER
    protocol: type[MicroMsg2Server] = MicroMsg2Server  # type: ignore[assignment]

    def __init__(
        self,
        sink: MessageSink | None = None,
        *,
        proposal: Proposal | None = None,
        broker: bool = True,
        brokerQueues: Iterable[str] = (),
        queueFull: str = WAIT,
        space: str = SPACE,
        queues: ServedBroker | None = None,
        limits: MicroMsg2ServerLimits | Limits | None = None,
        **settings: Unpack[ServerSettings],
    ) -> None:
        """``brokerQueues`` are queues from the start.

        ``queueFull`` says what happens to a full queue: its senders ``wait``, or its oldest
        messages go to the dead letters (``dead-letter``).  ``queues`` has the queues, in ``space``,
        and is shared with other servers; by default the server has its own.

        ValueError for a queue that is a topic or has the name of dead letters, ConfigurationError
        for more queues than ``broker-queues``, and for a sink where another server has ``space``.
        """
        super().__init__(sink, limits=limits, **settings)
        expect_proposal(proposal)
        expect("brokerQueues", brokerQueues, "a list of names", not isinstance(brokerQueues, str))
        self.proposal = Proposal() if proposal is None else proposal
        if not broker:
            known = self.proposal.known.without(PubSub.name)
            self.proposal: Proposal = Proposal(
                self.proposal.identity, self.proposal.required, self.proposal.optional, known
            )
        self.queues: ServedBroker = queues or broker_of(
            sink,
            self.clock,
            self.limits,
            [space] if broker else [],
            wallClock=self.wallClock,
            when_full=queueFull,
        )
        every = self.shared.session_memory
        self.broker = None
        if broker:
            self.broker = Broker(self.queues, self.limits, brokerQueues, space, every)
        self.senderBackpressure: SenderBackpressure = SenderBackpressure(
            self.limits.integer("withheld-bytes"), self.limits["withheld-seconds"], self.clock
        )
        self.publications: set[Publication] = set()
        self._brokerWork: Any = None  # the call in which the topics go on
        self.queues.join()
        if broker:
            self.queues.server = self
            self.queues.when_opened(self._declare)

    def _declare(self) -> None:
        assert self.broker is not None
        try:
            self.broker.declare()
        except TooManyQueues as error:
            raise ConfigurationError(str(error)) from None

    def _openQueues(self) -> None:
        if self.broker is not None:
            self.queues.open()

    def startFactory(self) -> None:
        super().startFactory()
        self._openQueues()

    def buildProtocol(self, addr: Any) -> Any:
        self._openQueues()
        return super().buildProtocol(addr)

    def drain(self) -> Deferred[None]:
        first = not self.draining
        drained = super().drain()
        if first:
            for publication in list(self.publications):
                publication.look()
        return drained

    def _drainEnds(self) -> None:
        self.queues.left()
        super()._drainEnds()

    def lookBroker(self) -> None:
        """Let the topics continue in the next turn if they were asked for much."""
        if self.broker is not None and self._brokerWork is None and self.broker.unfinished:
            self._brokerWork = self.clock.callLater(0, self._goOn)

    def watchTurns(self, seconds: float) -> TurnWatch:
        watch = super().watchTurns(seconds)
        watch.measure(self, "_goOn", peer="all clients")
        return watch

    def _goOn(self) -> None:
        self._brokerWork = None
        assert self.broker is not None
        try:
            self.broker.go_on()
        finally:
            self.lookBroker()

    def push(
        self,
        clientId: str,
        destination: str,
        payload: Any,
        properties: Mapping[str, Writable] = NO_PROPERTIES,
    ) -> Deferred[None]:
        """Send a message to the newest session of a client, subscribed or not (``MM-12``).

        Fails with ConnectionClosed if the client has none, and as :meth:`MicroMsg2Server.send`.
        """
        return self.toNewest(
            clientId, lambda session: session.send(destination, payload, properties)
        )


def serve(
    at: Where | Sequence[Where],
    *,
    sink: MessageSink | None = None,
    queue: str | PathLike[str] | None = None,
    server: type[MicroMsg2Server] = MicroMsg2Server,
    factory: MicroMsg2ServerFactory | None = None,
    limits: MicroMsg2ServerLimits | Limits | None = None,
    authoriser: Authoriser | None = None,
    reactor: Any = None,
    proposal: Proposal | None = None,
    brokerQueues: Iterable[str] = (),
) -> Serving[MicroMsg2ServerFactory]:
    """Return what listens when it is awaited or entered: a :class:`.Serving`.

    ``at``: strings of Twisted server endpoints, as the command line takes them, or endpoints.
    ``sink`` gets the messages and is never closed; ``queue`` is a directory whose queue is opened
    and closed with the server.  ``server``: the class of the sessions.  ``factory``: one of your
    own, which has the settings itself.  The rest is as for :class:`MicroMsg2ServerFactory`.

    Raises ConfigurationError for an address or a limit that makes no sense, ValueError for a queue
    that cannot be one, TypeError for settings beside ``factory``, and for ``sink`` and ``queue``
    together.
    """
    reactor = running(reactor)
    sink, owned = sink_of(sink, queue, factory, reactor)
    made = factory_of(
        MicroMsg2ServerFactory,
        factory,
        reactor,
        server=server,
        sink=sink,
        limits=limits,
        authoriser=authoriser,
        proposal=proposal,
        brokerQueues=brokerQueues,
    )
    wanted = [(one, made, str) for one in endpoints_of(at)]
    return Serving(made, Ports(reactor, made, wanted), owned, reactor)
