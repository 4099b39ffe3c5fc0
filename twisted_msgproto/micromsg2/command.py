"""``msgproto send|recv micromsg2`` uses one connection and does not reconnect.

Which extensions are used depends on what the server offers: ``batch-ack`` is required
first, then ``ack``, then no acknowledgements, each on a connection of its own, because servers are
known that agree to options that they do not have.  ``--extension`` says otherwise: what it names is
required, and ``none`` requires nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from ..core.errors import ConfigurationError, ConnectionClosed, LimitExceeded, Refused, shown
from ..core.message import Message
from ..net.clients.client import session_standing
from ..net.clients.client_endpoints import client_endpoint
from ..net.clients.command_types import (
    TLS_OPTIONS,
    ConnectOptions,
    Messages,
    Progress,
    RecvOptions,
    SendOptions,
    typed,
)
from ..registry import PROTOCOLS
from .machine.extensions import Proposal
from .protocol.client import MicroMsg2Client, MicroMsg2ClientFactory, MicroMsg2ClientLink
from .protocol.session import refused_number
from .terms import NUMBER_OF_ACKS_MAX, ErrorReceived, MessagesAcknowledged
from .wire.frames import encode_address
from .wire.texts import BadText, Filter, Offer, Writable, read_extensions, write_properties

DEFAULT_ENDPOINT = f"tcp:127.0.0.1:{PROTOCOLS['micromsg2'].ports['tcp']}"

SEND_OPTIONS: Final = TLS_OPTIONS | {"destination", "window", "properties", "extensions"}
RECV_OPTIONS: Final = TLS_OPTIONS | {"destination", "filter", "extensions", "ready"}

DESTINATION = "messages"

WINDOW = 100

PUB_SUB = "pub-sub"

NO_EXTENSIONS = "none"

Choice = tuple[Offer, ...]


def _choices(options: ConnectOptions, window: int, *also: str) -> list[Choice]:
    """Return what to require of the server, in order, with ``also``; raises ConfigurationError."""
    if window > NUMBER_OF_ACKS_MAX:
        raise ConfigurationError(f"--window is at most {NUMBER_OF_ACKS_MAX}, not {window}")
    beside = tuple(map(Offer, also))
    if not options.extensions:
        batched = Offer("batch-ack", {"max-count": str(window)})
        return [(batched, *beside), (Offer("ack"), *beside), beside]
    chosen: Choice = ()
    for text in options.extensions:
        if text != NO_EXTENSIONS:
            try:
                chosen += read_extensions(text.encode("utf-8", "surrogateescape"))
            except BadText as error:
                raise ConfigurationError(f"--extension {text}: {error}") from None
    try:
        Proposal(required=chosen)
    except ValueError as error:
        raise ConfigurationError(f"--extension: {error}") from None
    return [chosen]


async def _connect(
    reactor: Any, options: ConnectOptions, choices: Sequence[Choice], protocol: type[Any]
) -> MicroMsg2Client:
    """Return a client with the first choice that the server takes; Refused or ConnectionClosed."""
    for number, choice in enumerate(choices, start=1):
        made = MicroMsg2ClientFactory(
            proposal=Proposal(required=choice),
            limits={"ack-count": NUMBER_OF_ACKS_MAX},
            clock=reactor,
        )
        made.protocol = protocol
        try:
            connecting = client_endpoint(reactor, options).connect(made)
            return cast(MicroMsg2Client, await session_standing(connecting))
        except (Refused, ConnectionClosed) as error:
            if isinstance(error, Refused) and error.code is None:
                raise  # it is TLS that fails, which no other choice mends
            if number == len(choices):
                raise _no_session(error, choices) from None
    raise AssertionError("unreachable")


def _no_session(error: Refused | ConnectionClosed, choices: Sequence[Choice]) -> Exception:
    if len(choices) == 1 or not isinstance(error, Refused):
        return error
    names = " nor ".join(choice[0].name for choice in choices if choice)
    without = "" if choices[-1] else " nor a session without them"
    text = f"the server takes neither {names}{without} ({error}); see --extension"
    return Refused(text, error.code)


def _destination(options: ConnectOptions, properties: Mapping[str, Writable]) -> str:
    destination = options.destination or DESTINATION
    try:
        nbytes = write_properties(properties)
    except (BadText, LimitExceeded) as error:
        raise ConfigurationError(f"--property: {error}") from None
    try:
        encode_address(destination, nbytes)
    except BadText as error:
        raise ConfigurationError(f"--destination: {error}") from None
    return destination


class _SenderLink(MicroMsg2ClientLink):
    """A link that tells the progress of each message: one of a batch may be refused."""

    objection: Refused | None = None  # the server's first ERROR

    def __init__(self, protocol: _Sender) -> None:
        super().__init__(protocol)
        self._refusals: set[int] = set()

    def _toldError(self, event: ErrorReceived) -> None:
        super()._toldError(event)
        if self.objection is None:
            self.objection = Refused(f"the server said {shown(event.text)}", event.code)
        number = refused_number(event)
        if number is not None:
            self._refusals.add(number)

    def _count(self, event: MessagesAcknowledged) -> None:
        super()._acknowledged(event)
        refused = self._refusals.intersection(event.sequences)
        self._refusals -= refused
        count = len(event.sequences) - len(refused)
        if count:
            self.protocol.progress.acknowledged(count)

    actions: ClassVar = {
        **MicroMsg2ClientLink.actions,
        ErrorReceived: _toldError,
        MessagesAcknowledged: _count,
    }


class _Sender(MicroMsg2Client, link=_SenderLink):
    link: _SenderLink
    progress: Progress

    def errorReceived(self, code: str, text: str) -> None:
        """Not logged: who sends is told."""


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """Send all ``messages``, as many in flight as the window allows.

    Raises ConnectionClosed or Refused when the server leaves one unacknowledged; Refused, too, when
    one that acknowledges nothing has said ERROR before the connection ended.
    """
    window = options.window or WINDOW
    properties = {name: typed(text) for name, text in options.properties.items()}
    destination = _destination(options, properties)
    choices = _choices(options, window)
    kind = type("Sender", (_Sender,), {"progress": progress})
    client = cast(_Sender, await _connect(reactor, options, choices, kind))
    progress.follow(client.link.takenAt)
    acknowledges = client.extension("batch-ack") or client.extension("ack")
    in_flight: list[Deferred[None]] = []

    def unopposed() -> None:
        if client.link.objection is not None and not acknowledges:
            raise client.link.objection

    try:
        while lines := await messages.some(window):
            unopposed()
            # One batch waits for room while the one before is in flight: the window never idles.
            if len(in_flight) > 1:
                await in_flight.pop(0)
            progress.sent(len(lines))
            sent = client.sendMany(destination, lines, properties)
            if not acknowledges:
                sent.addCallback(lambda _, count: progress.written(count), len(lines))
            in_flight.append(sent)
        while in_flight:
            await in_flight.pop(0)
    except BaseException:
        # What is in flight beside that which failed may still be acknowledged.
        await DeferredList(in_flight, consumeErrors=True)
        await client.leave()
        raise
    await client.close()
    unopposed()


class _Receiver(MicroMsg2Client):
    show: Callable[[Message], None]
    left: int | None
    ended: Deferred[None] | None = None  # until the session stands nobody waits for its end

    def messageReceived(self, message: Message) -> Deferred[None] | None:
        if self.left == 0:
            return Deferred()  # it stays with the server
        if self.left is not None:
            self.left -= 1
        self.show(message)
        return None

    def errorReceived(self, code: str, text: str) -> None:
        if self.ended is not None and not self.ended.called:
            self.ended.errback(Refused(f"the server said {text}", code))

    def sessionLost(self, reason: Failure) -> None:
        if self.ended is not None and not self.ended.called:
            self.ended.errback(self.link.whyLost(reason))


async def recv(reactor: Any, options: RecvOptions, show: Callable[[Message], None]) -> None:
    """Subscribe to the destination and ``show`` what comes, until this is cancelled.

    With a count, messages come one by one, so that none is taken out of a queue in vain; where
    ``--extension`` says otherwise, what is too much is not acknowledged.  Where that leaves
    ``pub-sub`` out, what the server sends by itself is shown.  Raises ConnectionClosed or Refused
    when the server ends it.
    """
    destination = _destination(options, {})
    wanted = _filter(options)
    choices = _choices(options, WINDOW if options.count is None else 1, PUB_SUB)
    kind = type("Receiver", (_Receiver,), {"show": staticmethod(show), "left": options.count})
    client = cast(_Receiver, await _connect(reactor, options, choices, kind))
    ended = client.ended = Deferred[None]()
    if options.follow is not None:
        options.follow(client.link.arrivedAt)
    try:
        if client.extension(PUB_SUB):
            await client.subscribe(destination, wanted)
        elif options.destination is not None or wanted is not None:
            raise ConfigurationError("--destination and --filter need --extension pub-sub")
        if options.ready is not None:
            options.ready()
        await ended
    finally:
        await client.leave()


def _filter(options: RecvOptions) -> Filter | None:
    if options.filter is None:
        return None
    try:
        return Filter.read(options.filter)
    except BadText as error:
        raise ConfigurationError(f"--filter: {error}") from None
