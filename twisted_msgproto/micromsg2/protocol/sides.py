"""MicroMsg2 on Twisted: a server with its broker, and a client whose verbs return Deferreds.

::

    class MyServer(MicroMsg2Server):
        def messageReceived(self, message):      # None, or a Deferred that delays the ack
            print(message.destination, message.body)

    factory = MicroMsg2ServerFactory(sink)
    factory.protocol = MyServer
    serverEndpoint.listen(factory)

    client = await clientEndpoint.connect(MicroMsg2ClientFactory())
    await client.whenEstablished()
    await client.send("orders", b"...", {"amount": 3})
    async for message in await client.subscribe("topic/prices", "market=Teu;amount>=N100"):
        print(message.body)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from ...core.broker import WAIT, QueueName, TooManyQueues
from ...core.errors import ConfigurationError, ConnectionClosed, Fault, PeerError, Refused, shown
from ...core.kept import KEPT_LIMIT
from ...core.limits import Limit, Limits
from ...core.message import Message, MessageBatch
from ...net.authorising import CONSUME, PUBLISH, SUBSCRIBE, refusal_text
from ...net.backpressure import ReadControl
from ...net.broker import ServedBroker, Withheld, broker_of
from ...net.clients.subscriptions import UNSUBSCRIBED
from ...net.factory import MsgprotoServerFactory
from ...net.inherited import InheritedClientLink as ClientLink
from ...net.peerlog import LIMITS as LIMITS_MET
from ...net.sink import IMessageSink
from ...net.turns import TurnWatch
from .. import application, machine
from ..application import (
    NOT_ALLOWED,
    SLOW_CONSUMER,
    SPACE,
    TOPIC_PREFIX,
    Broker,
    KeptTooMuch,
    SubscriptionRefused,
)
from ..letters import Routed
from ..machine import (
    Client,
    CommandReceived,
    ErrorReceived,
    MessagesAcknowledged,
    Proposal,
    PubSub,
    Server,
)
from ..machine.negotiation import EXTENSION_MISMATCH, UNSUPPORTED_EXTENSION, UNSUPPORTED_VERSION
from ..terms import REFUSED_BY_PEER, SERVER
from ..wire import LIMIT_EXCEEDED, NO_PROPERTIES, Filter, Offer, Writable
from . import sending
from .connection import PROTOCOL, Arrived, MicroMsg2Protocol
from .publication import Publication
from .subscriptions import Arrivals, Subscription, Subscriptions

LIMITS: Final = (
    *machine.LIMITS,
    *sending.LIMITS,
    *application.LIMITS,
    Limit("ack-wait", 300.0, "s", "a consumer that acks nothing for this long is left; 0 = off"),
    Limit("withheld-octets", 64 << 20, "octets", "of all senders to full broker queues", 1),
    Limit(
        "withheld-seconds",
        30.0,
        "s",
        "for a sender to full queues to acknowledge what it has of them; 0 = off",
    ),
)
"""A server has these limits."""

UNLIMITED_ROOM: Final = 256
"""A consumer that does not acknowledge gets this many messages at a time."""


class MicroMsg2Factory(MsgprotoServerFactory):
    protocolName = PROTOCOL
    LIMITS: ClassVar[tuple[Limit, ...]] = LIMITS

    proposal: Proposal
    broker: Broker | None = None


class MicroMsg2Server(MicroMsg2Protocol):
    """The side that accepts: it receives messages and serves subscriptions."""

    factory: MicroMsg2ServerFactory
    _subscribed = False  # the broker was told of subscriptions, and has not looked yet

    def makeMachine(self) -> Server:
        return Server(self.factory.proposal, self.factory.limits, self.factory.budget.kept)

    def sessionEnding(self, reason: Failure) -> None:
        if self.factory.broker is not None:
            self.factory.broker.lost(self, orderly=self.factory.draining)
            self.factory.lookBroker()
        self.factory.withheld.forget(self)
        super().sessionEnding(reason)

    def connectionMade(self) -> None:
        super().connectionMade()
        if self.factory.broker is not None:
            self._queues = self.factory.broker.queues

    def outputChanged(self, paused: bool) -> None:
        if paused:
            self._control.pause("unread-output")
        else:
            self._control.resume("unread-output")
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
            if isinstance(refusal, KeptTooMuch):
                self.factory.limitMet(KEPT_LIMIT, "subscription")
            self.machine.send_error(refusal.code, str(refusal))
        self._subscribed = True

    def _authoriseCommand(self, event: CommandReceived) -> None:
        """Raise SubscriptionRefused for a subscription that the authoriser does not allow."""
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

    def _addressed(self, arrived: Arrived) -> None:
        """Messages have come: those for queues get envelopes.

        A message is for a queue if its destination is one now.  A queue that outlives the process
        gets its messages from the log, so their envelopes are stored with them.
        """
        broker, event = self.factory.broker, arrived.event
        if broker is None or broker.queues.keys().isdisjoint(event.destinations):
            return
        arrived.envelopes = broker.envelopes.make(
            broker.queues, event.destinations, event.texts, event.notes
        )
        if self.factory.queues.durable:
            arrived.batch.envelope = arrived.envelopes

    def publish(self, arrived: Arrived) -> None:
        """Publish what is safe to consumers; the ack waits until their queues accept it."""
        broker, event = self.factory.broker, arrived.event
        if broker is None or (
            arrived.envelopes is None and not broker.concerns_topics(event.destinations)
        ):
            self.settled(arrived)
            return
        columns: list[list[Any]]
        columns = [event.destinations, event.properties, event.texts, event.bodies, event.notes]
        columns.append(arrived.envelopes or [])
        if arrived.refused:
            numbers = event.sequences
            kept = [row for row, number in enumerate(numbers) if number not in arrived.refused]
            columns = [[column[row] for row in kept] if column else [] for column in columns]
        destinations, properties, texts, bodies, notes, envelopes = columns
        topics = broker.concerns_topics(destinations)
        publication = Publication(self, arrived, topics + bool(arrived.envelopes))
        if arrived.envelopes:
            came, accepted = publication.came, publication.accepted
            broker.enqueue(destinations, bodies, envelopes, came, accepted)
        if topics:
            broker.publish(destinations, properties, texts, bodies, notes, publication.came)
        publication.wait()
        self.factory.lookBroker()

    def _acknowledge(self, event: MessagesAcknowledged) -> None:
        super()._acknowledge(event)
        if self.factory.broker is not None:
            self.factory.broker.acknowledged(self, event.sequences)
            self.factory.lookBroker()
            if self.factory.withheld.pressing:
                self.factory.withheld.settled(self)

    actions: ClassVar = {
        **MicroMsg2Protocol.actions,
        CommandReceived: _commanded,
        MessagesAcknowledged: _acknowledge,
    }

    # What the broker asks of a consumer.

    def room(self) -> int:
        """Return how many messages the broker may push now; what was sent by hand goes first."""
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
        """It has messages of queues to acknowledge, and is read from now on."""
        if self.factory.withheld.pressing:
            self.factory.withheld.owing(self)

    def too_slow(self) -> None:
        """More waits for this subscriber than may (MM-32)."""
        self._breakOff(SLOW_CONSUMER, "too many messages wait for this subscriber")

    def failed(self, error: Exception) -> None:
        """A message cannot be written to this consumer; all it had is back in its queue."""
        self.log.failure(
            "{peer}: closed: a message cannot be delivered to it", Failure(error), peer=self.peer
        )
        self.because(error)
        self._abort()

    # What is asked of a sender to queues.

    @property
    def control(self) -> ReadControl:
        return self._control

    @property
    def owes_settlements(self) -> bool:
        return self.factory.broker is not None and self.factory.broker.owes(self)

    def withheld_too_long(self) -> None:
        """Too much of what it sent to full queues waits, and it makes no room in them."""
        self._breakOff(LIMIT_EXCEEDED, "withheld-octets: queues are full, acknowledge first")

    def _breakOff(self, code: str, text: str) -> None:
        if not self._ended:
            self.machine.break_off(code, text)
            assert self.machine.fault is not None
            self.peerFaulted(self.machine.fault)


class MicroMsg2ServerFactory(MicroMsg2Factory):
    """Builds a :class:`MicroMsg2Server` for each client that connects.

    Attributes:
        proposal: what the server requires, suggests and knows; by default it requires nothing.
        broker: topics and queues; None: SUBSCRIBE is an unknown command.
        queues: what has the queues; servers of several protocols may share it.
        withheld: octets of messages whose broker queue is full.
    """

    actions = frozenset({CONSUME, PUBLISH, SUBSCRIBE})
    stateTable = SERVER
    protocol = MicroMsg2Server  # type: ignore[assignment]

    def __init__(
        self,
        sink: IMessageSink | None = None,
        *,
        proposal: Proposal | None = None,
        broker: bool = True,
        brokerQueues: Iterable[str] = (),
        queueFull: str = WAIT,
        space: str = SPACE,
        queues: ServedBroker | None = None,
        limits: Mapping[str, object] | Limits | None = None,
        **shared: Any,
    ) -> None:
        """``brokerQueues`` are queues from the start; ``shared`` as MsgprotoServerFactory has it.

        ``queueFull`` says what happens to a full queue: its senders ``wait``, or its oldest
        messages go to the dead letters (``dead-letter``).  ``queues`` has the queues, in ``space``,
        and is shared with other servers; by default the server has its own.

        ValueError for a queue that is a topic or has the name of dead letters, ConfigurationError
        for more queues than ``broker-queues``.
        """
        super().__init__(sink, limits=limits, **shared)
        self.proposal = Proposal() if proposal is None else proposal
        if not broker:
            known = self.proposal.known.without(PubSub.name)
            self.proposal = Proposal(
                self.proposal.identity, self.proposal.required, self.proposal.optional, known
            )
        self.queues = queues or broker_of(
            sink, self.clock, self.limits, [space], wallClock=self.wallClock, when_full=queueFull
        )
        every = self.budget.kept
        self.broker = None
        if broker:
            self.broker = Broker(self.queues, self.limits, brokerQueues, space, every)
        self.withheld = Withheld(
            self.limits.integer("withheld-octets"), self.limits["withheld-seconds"], self.clock
        )
        self._brokerWork: Any = None  # the call in which the topics go on
        self.queues.join()
        if broker:
            self.queues.told_full = self._queueFull
            self.queues.when_opened(self._declare)

    def _queueFull(self, name: QueueName) -> None:
        self.writeOf(
            self.log,
            f"{self.protocolName}: queue full",
            "{protocol}: the queue {name} is full and its senders wait; queue-messages is"
            " {messages}, queue-octets {octets} (--limit NAME=NUMBER changes them)",
            reason="queue-full",
            topic=LIMITS_MET,
            protocol=self.protocolName,
            name=shown(name.name),
            messages=self.queues.limits.integer("queue-messages"),
            octets=self.queues.limits.integer("queue-octets"),
        )

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
        self._openQueues()
        super().startFactory()  # type: ignore[no-untyped-call]

    def buildProtocol(self, addr: Any) -> Any:
        self._openQueues()
        return super().buildProtocol(addr)

    def drain(self) -> Deferred[None]:
        first = not self.draining
        drained = super().drain()
        if first:
            drained.addBoth(lambda result: self.queues.left())
        return drained

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


DISAGREEMENTS: Final = frozenset({UNSUPPORTED_VERSION, UNSUPPORTED_EXTENSION, EXTENSION_MISMATCH})
"""Faults of a handshake that the next handshake would have too: as good as a refusal."""


class MicroMsg2Client(ClientLink, MicroMsg2Protocol):
    """The side that connects."""

    factory: MicroMsg2ClientFactory

    def makeMachine(self) -> Client:
        client = Client(self.factory.proposal, self.factory.limits)
        client.open()
        return client

    def peerError(self, fault: Fault) -> PeerError:
        """Return a fault of the server; that it says no, or we do, is a refusal."""
        if fault.reason == REFUSED_BY_PEER and self._lastError is not None:
            return Refused(self._lastError.text, self._lastError.code)
        if fault.reason in DISAGREEMENTS and not self._established:
            return Refused(fault.text, fault.reason)
        return super().peerError(fault)

    # ── subscriptions (MM-25) ───────────────────────────────────────────────────────────────────

    def subscriptionEnded(self, subscription: Subscription, reason: str) -> None:
        """A subscription of ours has ended; ``reason`` as :class:`Subscription` has it."""

    @cached_property
    def _subscriptions(self) -> Subscriptions:
        return Subscriptions()

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Return the subscriptions that live, by their destinations."""
        return self._subscriptions.living

    def subscribe(
        self, destination: str, filter: str | Filter | None = None
    ) -> Deferred[Subscription]:
        """Ask for messages to ``destination`` (``MM-25``); fires when that is written.

        Messages come to ``messageReceived``, or iterate the :class:`Subscription` with ``async
        for``.  ``filter`` is an expression like ``amount>=N100;market=Teu``.  Subscribing again
        replaces it.

        The protocol has no answer to this.  The server's objection comes as an ERROR, and ends the
        subscription if its text names it.  Fails with BadText for a filter that cannot be,
        ConnectionClosed outside a session, LimitExceeded, ValueError if ``pub-sub`` was not agreed.
        """
        try:
            return succeed(self._subscribe(destination, filter))
        except (ValueError, ConnectionClosed) as error:
            return fail(error)

    def _subscribe(
        self, destination: str, filter: str | Filter | None, arrivals: Arrivals | None = None
    ) -> Subscription:
        self._inPubSub()
        parameters = {"destination": destination}
        read = Filter.read(filter) if isinstance(filter, str) else filter
        if read is not None:
            parameters["filter"] = str(read)
        self.machine.send_command("subscribe", parameters)
        subscription = self._subscriptions.add(self, destination, read, arrivals)
        self._settle()
        return subscription

    def unsubscribe(self, destination: str) -> Deferred[None]:
        """Ask for no further messages to ``destination`` (``MM-25``); fails as ``subscribe``.

        What came and was not iterated yet still can be.  Messages of a queue are not acknowledged
        before that, so that they are not lost; after the session the server has them again.
        """

        def say() -> None:
            self._inPubSub()
            self.machine.send_command("unsubscribe", {"destination": destination})
            self._subscriptions.end(destination, UNSUBSCRIBED)

        return self._say(say)

    def _inPubSub(self) -> None:
        self._inSession()
        if not self.machine.has(PubSub.name):
            raise ValueError("pub-sub was not agreed")

    def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
        if self._subscriptions.wanted:
            return self._offerTo(self._hear, batch)
        return super().batchReceived(batch)

    def _hear(self, message: Message) -> Any:
        taker = self._subscriptions.taker(message.destination)
        return self.messageReceived(message) if taker is None else taker(message)

    def _toldError(self, event: ErrorReceived) -> None:
        self._subscriptions.objected(event)
        super()._toldError(event)

    def _lookClosing(self) -> None:
        super()._lookClosing()
        closing = self._lateness is not None and not self._inFlight and not self._unsent
        if closing and self._subscriptions.untaken:
            self.leave()  # nobody is going to take it: the server keeps it

    def sessionEnding(self, reason: Failure) -> None:
        self._subscriptions.lost(self.whyLost(reason))
        super().sessionEnding(reason)

    actions: ClassVar = {**MicroMsg2Protocol.actions, ErrorReceived: _toldError}


class MicroMsg2ClientFactory(MicroMsg2Factory):
    """Builds a :class:`MicroMsg2Client` for each connection; fit for ``ClientService``.

    Attributes:
        proposal: what the client requires and offers.
    """

    protocol = MicroMsg2Client  # type: ignore[assignment]

    def __init__(
        self,
        sink: IMessageSink | None = None,
        *,
        proposal: Proposal | None = None,
        limits: Mapping[str, object] | Limits | None = None,
        **shared: Any,
    ) -> None:
        """By default the client offers ``batch-ack`` (100 in flight) and ``pub-sub``.

        Towards the reference implementation offer only ``ack`` (``MM-07``): it agrees to options
        that it does not have.  ``sink`` takes what the server pushes; hooks see it as well.
        """
        changes: Mapping[str, object] | Limits = {"ack-wait": 0} if limits is None else limits
        if not isinstance(changes, Limits):
            changes = {"ack-wait": 0, **changes}
        super().__init__(sink, limits=changes, **shared)
        self.proposal = default_proposal() if proposal is None else proposal


def default_proposal(count: int = 100) -> Proposal:
    """Return what a client offers when nobody says: ``batch-ack`` with ``count``, and
    ``pub-sub``.
    """
    return Proposal(
        optional=(Offer("batch-ack", {"max-count": str(count)}), Offer("pub-sub")),
    )
