"""The side of MicroMsg2 that connects, its subscriptions, and the service that reconnects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final, Self, Unpack

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.protocol import ClientFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from typing_extensions import TypeVar

from ...core.errors import ConnectionClosed, Fault, PeerError, Refused, shown
from ...core.limits import Limits
from ...core.message import Message, MessageBatch
from ...core.session_memory import SESSION_WEIGHT_BYTES
from ...net.clients import subscriptions
from ...net.clients.client import ClientLink
from ...net.clients.command_types import ClientEndpoint
from ...net.clients.reconnect import ReconnectingClient, ReconnectOptions
from ...net.clients.subscriptions import LOST, REFUSED, UNSUBSCRIBED, Backlog, Ending
from ...net.factory import SessionSettings, expect
from ...net.lifetimes import (
    ClientTLS,
    Connecting,
    connecting,
    factory_of,
    running,
)
from ...net.limit_types import MicroMsg2ClientLimits
from ...net.session import ClientSession, SessionHooks, hook
from ...net.sink import MessageSink
from ..application import BAD_FILTER, NOT_ALLOWED, TOPIC_PREFIX
from ..machine import Client
from ..machine.extensions import (
    EXTENSION_MISMATCH,
    UNSUPPORTED_EXTENSION,
    UNSUPPORTED_VERSION,
    Proposal,
    PubSub,
)
from ..terms import BAD_COMMAND, REFUSED_BY_PEER, UNKNOWN_COMMAND, ErrorReceived
from ..wire.frames import LIMIT_EXCEEDED, encode_address
from ..wire.texts import NO_PROPERTIES, BadText, Filter, Offer, Writable
from .session import MicroMsg2Factory, MicroMsg2Link, MicroMsg2Session, expect_proposal

log: Final = Logger(namespace="twisted_msgproto.micromsg2")

_NOTHING: Final[Mapping[str, str]] = {}

OBJECTIONS: Final = frozenset({BAD_FILTER, BAD_COMMAND, LIMIT_EXCEEDED, NOT_ALLOWED})
"""A server refuses one subscription with these codes; the text begins with its destination."""

NAME_CHARACTERS: Final = 258
"""A destination has at most 255 bytes; behind it stands a colon and a space."""

AFTER_NAME: Final = re.compile(": ")


def _wanted(destination: str, filter: str | Filter | None) -> Filter | None:
    """Return the filter of a subscription; TypeError or BadText for what cannot be one."""
    expect("destination", destination, "text", isinstance(destination, str))
    expect("filter", filter, "text or a Filter", isinstance(filter, str | Filter | None))
    return Filter.read(filter) if isinstance(filter, str) else filter


Arrival = tuple[Message, Deferred[None]]
"""A message, and what fires when it may be acknowledged."""


def weigh(arrival: Arrival) -> int:
    message, _ = arrival
    fields = message.fields or {}
    texts = sum(len(name) + len(value) + SESSION_WEIGHT_BYTES for name, value in fields.items())
    return len(message.body or b"") + texts + SESSION_WEIGHT_BYTES


class Arrivals(Backlog[Arrival]):
    """Messages of one destination until they are iterated."""

    __slots__ = ("_taken", "wanted")

    def __init__(self, taken: Callable[[], object] = lambda: None) -> None:
        super().__init__(self._acknowledge, weigh)
        self._taken = taken
        self.wanted: bool = False  # it was iterated, or nobody else hears of messages

    def arrived(self, message: Message) -> Deferred[None]:
        held: Deferred[None] = Deferred()
        self.put(((message, held),))
        return held

    async def next(self) -> Message:
        self.wanted = True
        return (await self.take())[0]

    def _acknowledge(self, arrival: Arrival, nbytes: int) -> None:
        if not arrival[1].called:
            arrival[1].callback(None)
        self._taken()

    def release(self) -> None:
        """Acknowledge what waits here: no one else would get it anyway."""
        for (_, held), _ in list(self._items):
            if not held.called:
                held.callback(None)


class Iterated:
    """What is iterated as long as messages come to its ``_arrivals``."""

    _arrivals: Arrivals

    def __aiter__(self) -> Self:
        """Return this subscription; its messages come to who iterates from now on."""
        self._arrivals.wanted = True
        return self

    async def __anext__(self) -> Message:
        """Return the next message; at the end StopAsyncIteration, or what has ended it early."""
        return await self._arrivals.next()


class Subscription(Iterated, Ending):
    """A destination to which a session has subscribed: iterate it with ``async for``.

    Its messages wait for those who iterate, and each goes to one of them.  With a sink or a hook of
    its own the session has them until the first iteration begins.  A message is acknowledged when
    iteration returns it.  So a server with a window stops when nobody iterates, and messages of a
    queue that were not acknowledged go to another consumer when the session has ended.  Cancelling
    a step, as a time-out does, loses nothing.

    It ends once, for one of these reasons; what had come before can still be iterated:

    * ``"unsubscribed"``: we said UNSUBSCRIBE;
    * ``"refused"``: the server said with an ERROR that it does not grant it;
    * ``"lost"``: the session ended first.  ``failure`` tells if the server has dropped us because
      we read too slowly.

    Attributes:
        destination: the name of the topic or queue.
        filter: the messages meant, or None for all.
        reason: why it has ended, as above; None while it lives.
        failure: the exception that iteration raises at the end, or None.
    """

    def __init__(
        self,
        link: MicroMsg2ClientLink,
        destination: str,
        filter: Filter | None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """``arrivals`` belong to somebody who outlives the session."""
        super().__init__()
        self._link = link
        self._borrowed = arrivals is not None
        self._arrivals = Arrivals() if arrivals is None else arrivals
        self.destination = destination
        self.filter = filter

    def unsubscribe(self) -> Deferred[None]:
        """Ask for no further messages, if it lives; as :meth:`MicroMsg2Client.unsubscribe`."""
        return succeed(None) if self.ended else self._link.protocol.unsubscribe(self.destination)

    def _end(self, reason: str, failure: Exception | None = None) -> None:
        if not self._conclude(reason, failure):
            return
        if reason != LOST and self.destination.startswith(TOPIC_PREFIX):
            self._arrivals.release()
        if not self._borrowed:
            self._arrivals.end(failure)
        self._tellEnd()
        self._link._guarded(self._link.protocol.subscriptionEnded, self, reason)


class Subscriptions:
    def __init__(self) -> None:
        self.living: dict[str, Subscription] = {}
        self._arrivals: dict[str, Arrivals] = {}  # of queues that have ended as well

    def add(
        self,
        link: MicroMsg2ClientLink,
        destination: str,
        filter: Filter | None,
        arrivals: Arrivals | None,
    ) -> Subscription:
        living = self.living.get(destination)
        if living is not None:
            living.filter = filter
            return living
        subscription = Subscription(link, destination, filter, arrivals)
        if arrivals is None and destination in self._arrivals:
            subscription._arrivals = self._arrivals[destination]
            subscription._arrivals.reopen()
        self.living[destination] = subscription
        self._arrivals[destination] = subscription._arrivals
        return subscription

    def end(self, destination: str, reason: str, failure: Exception | None = None) -> None:
        subscription = self.living.pop(destination, None)
        if subscription is None:
            return
        if not subscription._arrivals.wanted or destination.startswith(TOPIC_PREFIX):
            del self._arrivals[destination]
        subscription._end(reason, failure)

    def objected(self, event: ErrorReceived) -> None:
        for destination in self._refused(event):
            error = Refused(f"the server said {shown(event.text)}", event.code)
            self.end(destination, REFUSED, error)

    def _refused(self, event: ErrorReceived) -> list[str]:
        """Return the destinations that an ERROR does not grant; a read may bring thousands."""
        living, said = self.living, event.text.partition(":")[2].strip()
        if event.code == UNKNOWN_COMMAND:
            return list(living) if said == "subscribe" else []
        if event.code not in OBJECTIONS or not living:
            return []
        head = said[:NAME_CHARACTERS]
        ends = [match.start() for match in AFTER_NAME.finditer(head)]
        return [head[:end] for end in ends if head[:end] in living]

    def lost(self, error: Exception) -> None:
        for destination in list(self.living):
            self.end(destination, LOST, error)

    @property
    def wanted(self) -> bool:
        return any(one.wanted for one in self._arrivals.values())

    @property
    def untaken(self) -> bool:
        return any(map(len, self._arrivals.values()))

    def taker(self, destination: str | None) -> Callable[[Message], Any] | None:
        """Return where messages to ``destination`` go, or None: to the session's hooks."""
        arrivals = None if destination is None else self._arrivals.get(destination)
        return arrivals.arrived if arrivals is not None and arrivals.wanted else None


DISAGREEMENTS: Final = frozenset({UNSUPPORTED_VERSION, UNSUPPORTED_EXTENSION, EXTENSION_MISMATCH})
"""Faults of a handshake that the next handshake would have too: as good as a refusal."""


class MicroMsg2ClientLink(ClientLink, MicroMsg2Link):
    factory: MicroMsg2ClientFactory
    acksEach = True
    readsWhileUnread = True  # acks of the server make room

    def makeMachine(self) -> Client:
        client = Client(self.factory.proposal, self.factory.limits)
        client.open()
        return client

    def peerError(self, fault: Fault) -> PeerError:
        """Return a fault of the server; that it says no, or we do, is a refusal."""
        if fault.reason == REFUSED_BY_PEER and self._lastError is not None:
            text = self._lastError.text or "the server said ERROR, and not why"
            return Refused(text, self._lastError.code)
        if fault.reason in DISAGREEMENTS and not self._established:
            return Refused(fault.text, fault.reason)
        return super().peerError(fault)

    # ── subscriptions (MM-25) ───────────────────────────────────────────────────────────────────

    @cached_property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions()

    def subscribe(
        self, destination: str, filter: str | Filter | None, arrivals: Arrivals | None = None
    ) -> Subscription:
        self.inPubSub()
        read = _wanted(destination, filter)
        if not destination:
            raise BadText("a subscription needs a destination")
        encode_address(destination)  # the server's objection to a longer one could not name it
        parameters = {"destination": destination}
        if read is not None:
            parameters["filter"] = str(read)
        self.machine.send_command("subscribe", parameters)
        subscription = self.subscriptions.add(self, destination, read, arrivals)
        if not self._isHeard():
            subscription._arrivals.wanted = True
        self._settle()
        return subscription

    def _isHeard(self) -> bool:
        session = type(self.protocol)
        return (
            self.factory.sink is not None
            or session.messageReceived is not SessionHooks.messageReceived
            or session.batchReceived is not MicroMsg2Session.batchReceived
        )

    def inPubSub(self) -> None:
        """Raise ConnectionClosed outside a session, ValueError if ``pub-sub`` was not agreed."""
        self.inSession()
        if self.machine.extension(PubSub.name) is None:
            raise ValueError("pub-sub was not agreed")

    def offer(self, batch: MessageBatch) -> Deferred[Any] | None:
        if self.subscriptions.wanted:
            return self.offerTo(self._hear, batch)
        return super().offer(batch)

    def _hear(self, message: Message) -> Any:
        taker = self.subscriptions.taker(message.destination)
        return self.tell(message) if taker is None else taker(message)

    def _toldError(self, event: ErrorReceived) -> None:
        self.subscriptions.objected(event)
        super()._toldError(event)

    def _lookClosing(self) -> None:
        super()._lookClosing()
        closing = self._drainTimer is not None and not self._inFlight and not self._unsent
        if closing and self.subscriptions.untaken:
            self.leave()  # nobody is going to take it: the server keeps it

    def sessionEnding(self, reason: Failure) -> None:
        self.subscriptions.lost(self.whyLost(reason))
        super().sessionEnding(reason)

    actions: ClassVar[dict[type, Any]] = {**MicroMsg2Link.actions, ErrorReceived: _toldError}


class MicroMsg2Client(ClientSession, MicroMsg2Session, link=MicroMsg2ClientLink):
    """The side that connects."""

    factory: MicroMsg2ClientFactory
    link: MicroMsg2ClientLink

    # ── messages ────────────────────────────────────────────────────────────────────────────────

    def sendMany(
        self,
        destination: str,
        payloads: Iterable[Any],
        properties: Mapping[str, Writable] = NO_PROPERTIES,
        typeName: str | None = None,
        notes: Mapping[str, str] = _NOTHING,
    ) -> Deferred[None]:
        """Send many messages to one destination; fires when all of them are acknowledged.

        Fails as :meth:`send` does, with the first refusal if some are refused.
        """
        return self.link.send(destination, payloads, properties, typeName, notes)

    def sendCommand(self, name: str, **parameters: str) -> Deferred[None]:
        """Send a COMMAND (``MM-15``); fires when it is written, since nobody answers it.

        Fails with ConnectionClosed outside a session, and with LimitExceeded.
        """
        return self.link.say(lambda: self.link.machine.send_command(name, parameters))

    def sendError(self, code: str, text: str) -> Deferred[None]:
        """Send an ERROR that ends nothing (``MM-33``); as :meth:`sendCommand`."""
        return self.link.say(lambda: self.link.machine.send_error(code, text))

    def leave(self) -> Deferred[None]:
        """End the connection now: what is not safe yet is not acknowledged, the peer keeps it.

        What was written before still goes out.  Fires when the connection is gone.
        """
        return self.link.leave()

    # ── subscriptions (MM-25) ───────────────────────────────────────────────────────────────────

    @hook
    def subscriptionEnded(self, subscription: Subscription, reason: str) -> None:
        """A subscription of ours has ended; ``reason`` as :class:`Subscription` has it."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Return the subscriptions that live, by their destinations."""
        return self.link.subscriptions.living

    def subscribe(
        self, destination: str, filter: str | Filter | None = None
    ) -> Deferred[Subscription]:
        """Ask for messages to ``destination`` (``MM-25``); fires when that is written.

        Messages come to ``messageReceived``, or iterate the :class:`Subscription` with ``async
        for``.  ``filter`` is an expression like ``amount>=N100;market=Teu``.  Subscribing again
        replaces it.

        The protocol has no answer to this.  The server's objection comes as an ERROR, and ends the
        subscription if its text names it.  Fails with BadText for a destination or a filter that
        cannot be, ConnectionClosed outside a session, LimitExceeded, ValueError if ``pub-sub`` was
        not agreed.
        """
        try:
            return succeed(self.link.subscribe(destination, filter))
        except (ValueError, ConnectionClosed) as error:
            return fail(error)

    def unsubscribe(self, destination: str) -> Deferred[None]:
        """Ask for no further messages to ``destination`` (``MM-25``); fails as ``subscribe``.

        What came and was not iterated yet still can be.  Messages of a queue are not acknowledged
        before that, so that they are not lost; after the session the server has them again.
        """
        link = self.link

        def say() -> None:
            link.inPubSub()
            link.machine.send_command("unsubscribe", {"destination": destination})
            link.subscriptions.end(destination, UNSUBSCRIBED)

        return link.say(say)


class MicroMsg2ClientFactory(MicroMsg2Factory, ClientFactory):
    """Builds a :class:`MicroMsg2Client` for each connection; fit for ``ClientService``.

    Attributes:
        proposal: what the client requires and offers.
    """

    protocol: type[MicroMsg2Client] = MicroMsg2Client  # type: ignore[assignment]

    def __init__(
        self,
        sink: MessageSink | None = None,
        *,
        proposal: Proposal | None = None,
        limits: MicroMsg2ClientLimits | Limits | None = None,
        **settings: Unpack[SessionSettings],
    ) -> None:
        """By default the client offers ``batch-ack`` (100 in flight) and ``pub-sub``.

        Towards the reference implementation offer only ``ack`` (``MM-07``): it agrees to options
        that it does not have.  ``sink`` takes what the server pushes; hooks see it as well.
        """
        if limits is None or (isinstance(limits, Mapping) and not isinstance(limits, Limits)):
            limits = {"ack-wait": 0, **(limits or {})}
        super().__init__(sink, limits=limits, **settings)
        expect_proposal(proposal)
        self.proposal: Proposal = default_proposal() if proposal is None else proposal

    def lookTls(self, transport: Any, reason: Failure) -> None:
        """Whoever connects is told of it, in words about a server."""


C = TypeVar("C", bound=MicroMsg2Client, default=MicroMsg2Client)


def connect(
    to: str | ClientEndpoint,
    *,
    client: type[C] = MicroMsg2Client,  # type: ignore[assignment]
    factory: MicroMsg2ClientFactory | None = None,
    limits: MicroMsg2ClientLimits | Limits | None = None,
    timeout: float = 30.0,
    reactor: Any = None,
    tls: ClientTLS | None = None,
    proposal: Proposal | None = None,
) -> Connecting[C]:
    """Return what connects to a server when it is awaited or entered: a :class:`.Connecting`.

    ``to``: ``tcp:HOST:PORT``, ``tls:HOST:PORT``, ``unix:PATH``, any string of a Twisted client
    endpoint, or an endpoint.  ``client``: the class of the client.  ``factory``: one of your own,
    which has the settings itself.  ``timeout``: seconds until the session stands.  ``tls`` takes
    the place of the system's authorities.  ``proposal`` as for :class:`MicroMsg2ClientFactory`.

    Raises ConfigurationError for an address or a limit that makes no sense, TypeError for settings
    beside ``factory``.
    """
    reactor = running(reactor)
    made = factory_of(
        MicroMsg2ClientFactory,
        factory,
        reactor,
        client=client,
        proposal=proposal,
        limits=limits,
    )
    return connecting(to, made, timeout, reactor, tls=tls)


def default_proposal(count: int = 100) -> Proposal:
    return Proposal(
        optional=(Offer("batch-ack", {"max-count": str(count)}), Offer("pub-sub")),
    )


class Renewed(Iterated, subscriptions.Renewed):
    """A destination to which every session subscribes; iterate it through all of them.

    Its messages wait for those who iterate; where the sessions have a hook or a sink of their own,
    these have them until the first iteration begins.
    What had come from a session that has ended can still be iterated; what was not acknowledged
    from a queue comes again.  Its ``reason`` is one of those of
    :class:`~.subscriptions.Subscription`, but never ``"lost"``.

    Of what waits to be iterated there may be as many bytes as the limit ``unsafe-bytes`` says.

    Attributes:
        destination: the name of the topic or queue.
        filter: the messages meant, or None for all.
    """

    log = log

    def __init__(
        self, service: MicroMsg2ClientService, destination: str, filter: Filter | None
    ) -> None:
        self._arrivals = Arrivals(self._taken)
        super().__init__(service, service.subscriptions, destination, self._arrivals)
        self._most = service.factory.limits.integer("unsafe-bytes")
        self.destination = destination
        self.filter = filter

    def _share(self) -> float:
        return self._arrivals.nbytes / self._most

    def _ask(self, session: MicroMsg2Client) -> Subscription:
        return session.link.subscribe(self.destination, self.filter, self._arrivals)


class MicroMsg2ClientService(ReconnectingClient[MicroMsg2Client]):
    """One session with a server; see ``ReconnectingService``.

    A message that was not sent waits for the next session.  One that was on its way when the
    session ended fails with ConnectionClosed, because nobody knows whether the server has it; a
    caller to whom a message may arrive twice says ``safe=True``, and it is sent again.

    Messages that the server pushes come to the hooks of the factory's ``protocol``, or to those who
    iterate what :meth:`subscribe` has returned.

    Attributes:
        subscriptions: what every new session asks for, by its destination.
    """

    factory: MicroMsg2ClientFactory

    def __init__(
        self,
        endpoint: str | ClientEndpoint,
        factory: MicroMsg2ClientFactory,
        **options: Unpack[ReconnectOptions],
    ) -> None:
        """``endpoint`` is one, or its string as ``connect`` takes it."""
        super().__init__(endpoint, factory, **options)
        self.subscriptions: dict[str, Renewed] = self._renewed

    def send(
        self,
        destination: str,
        payload: Any,
        properties: Mapping[str, Writable] = NO_PROPERTIES,
        typeName: str | None = None,
        notes: Mapping[str, str] = _NOTHING,
        *,
        timeout: float | None = None,
        safe: bool = False,
    ) -> Deferred[None]:
        """Send one message in the session that stands, or in the next one; as ``sendMany``."""
        return self.sendMany(
            destination, (payload,), properties, typeName, notes, timeout=timeout, safe=safe
        )

    def sendMany(
        self,
        destination: str,
        payloads: Iterable[Any],
        properties: Mapping[str, Writable] = NO_PROPERTIES,
        typeName: str | None = None,
        notes: Mapping[str, str] = _NOTHING,
        *,
        timeout: float | None = None,
        safe: bool = False,
    ) -> Deferred[None]:
        """Send many messages to one destination; fires when all of them are acknowledged.

        ``timeout`` (None: the limit ``waiting-seconds``) is for the wait for a session.  ``safe``:
        they may arrive twice, so they are sent again when a session ends before all are
        acknowledged.  Fails as :meth:`MicroMsg2Client.sendMany` does, with TimedOut when no session
        comes in time, and with Refused when the server refuses the session.
        """
        payloads = list(payloads)
        return self.perform(
            lambda session, left: session.sendMany(
                destination, payloads, properties, typeName, notes
            ),
            seconds=timeout,
            nbytes=sum(len(one) for one in payloads if isinstance(one, bytes | bytearray)),
            safe=safe,
        )

    def sendCommand(self, name: str, **parameters: str) -> Deferred[None]:
        """Send a command in the session that stands, or in the next one (``MM-20``)."""
        return self.perform(lambda session, left: session.sendCommand(name, **parameters))

    def sendExtension(self, name: str, payload: bytes) -> Deferred[None]:
        """Send a frame of an extension in the session that stands, or in the next one."""
        return self.perform(lambda session, left: session.sendExtension(name, payload))

    def sendError(self, code: str, text: str) -> Deferred[None]:
        """Tell the server of an error, in the session that stands or in the next one."""
        return self.perform(lambda session, left: session.sendError(code, text))

    def subscribe(self, destination: str, filter: str | Filter | None = None) -> Deferred[Renewed]:
        """Ask for messages to ``destination``, now and in every session to come (``MM-25``).

        ``filter`` is an expression like ``amount>=N100;market=Teu``; subscribing again replaces it.
        The Deferred fires when it is written in the session that stands, or at once where none
        does.  It fails with BadText for a destination or a filter that cannot be, with
        LimitExceeded, and with ValueError if ``pub-sub`` was not agreed; then no session asks for
        it.  An objection of the server ends it until the next session: see :class:`Renewed`.
        """
        try:
            read = _wanted(destination, filter)
        except ValueError as error:
            return fail(error)
        renewed = self.subscriptions.get(destination)
        if renewed is None:
            renewed = Renewed(self, destination, read)
        renewed.filter = read
        if self.session is not None:
            renewed._renew(self.session)
            if renewed.failure is not None:  # it could not even be asked for
                del self.subscriptions[destination]
                return fail(renewed.failure)
        return succeed(renewed)

    def unsubscribe(self, destination: str) -> Deferred[None]:
        """Ask for no further messages to ``destination``, in any session (``MM-25``)."""
        renewed = self.subscriptions.get(destination)
        return succeed(None) if renewed is None else renewed.end()
