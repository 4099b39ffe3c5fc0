"""``msgproto send|recv micromsg2``: one connection, no reconnecting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from ..core.errors import ConfigurationError, ConnectionClosed, Refused
from ..core.message import Message, MessageBatch
from ..net.clients.endpoints import client_endpoint
from ..net.clients.shapes import ConnectOptions, Messages, Progress, RecvOptions, SendOptions
from ..registry import PROTOCOLS
from .machine import Proposal
from .protocol import MicroMsg2Client, MicroMsg2ClientFactory
from .terms import NUMBER_OF_ACKS_MAX
from .wire import BadText, Offer, encode_address

DEFAULT_ENDPOINT = f"tcp:127.0.0.1:{PROTOCOLS['micromsg2'].ports['tcp']}"

DESTINATION = "messages"
"""Where messages go, and come from, when nobody says."""

WINDOW = 100
"""Messages in flight when nobody says."""


async def _connect(
    reactor: Any, options: ConnectOptions, window: int, *required: str, **factory: Any
) -> MicroMsg2Client:
    """A client in a session with ``batch-ack``; Refused or ConnectionClosed if there is none."""
    if window > NUMBER_OF_ACKS_MAX:
        raise ConfigurationError(f"--window is at most {NUMBER_OF_ACKS_MAX}, not {window}")
    offers = [Offer("batch-ack", {"max-count": str(window)}), *map(Offer, required)]
    made = MicroMsg2ClientFactory(
        proposal=Proposal(required=tuple(offers)),
        limits={"ack-count": NUMBER_OF_ACKS_MAX},
        clock=reactor,
    )
    if factory:
        made.protocol = cast(Any, type("Receiver", (_Receiver,), factory))
    client = cast(MicroMsg2Client, await client_endpoint(reactor, options).connect(made))
    return await client.whenEstablished()


def _destination(options: ConnectOptions) -> str:
    destination = options.destination or DESTINATION
    try:
        encode_address(destination)
    except BadText as error:
        raise ConfigurationError(f"--destination: {error}") from None
    return destination


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """Send all ``messages``, as many in flight as the window allows.

    Raises ConnectionClosed or Refused when the server leaves one unacknowledged.
    """
    window = options.window or WINDOW
    destination = _destination(options)
    client = await _connect(reactor, options, window)

    def acknowledged(_: None, count: int) -> None:
        progress.acknowledged(count)

    try:
        in_flight: list[Deferred[None]] = []
        while lines := await messages.some(window):
            # One batch waits for room while the one before is in flight: the window never idles.
            if len(in_flight) > 1:
                await in_flight.pop(0)
            sent = client.sendMany(destination, lines)
            progress.sent(len(lines))
            sent.addCallback(acknowledged, len(lines))
            in_flight.append(sent)
        for good, failure in await DeferredList(in_flight, consumeErrors=True):
            if not good:
                cast(Failure, failure).raiseException()
    except BaseException:
        await client.leave()  # nothing of this is worth waiting for
        raise
    await client.close()


class _Receiver(MicroMsg2Client):
    """Shows what arrives; an ERROR of the server ends it."""

    show: Callable[[Message], None]
    ended: Deferred[None]
    left: int | None

    def batchReceived(self, batch: MessageBatch) -> Deferred[None] | None:
        """Show each message until enough have come.  What is beyond that goes back unseen."""
        if self.left is not None:
            if self.left < batch.count:
                return Deferred()
            self.left -= batch.count
        for message in batch:
            self.show(message)
        return None

    def errorReceived(self, code: str, text: str) -> None:
        """The server refuses the subscription, or something else."""
        if not self.ended.called:
            self.ended.errback(Refused(f"the server said {text}", code))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The end, before enough has come."""
        super().connectionLost(reason)
        if not self.ended.called:
            self.ended.errback(ConnectionClosed("the connection ended"))


async def recv(reactor: Any, options: RecvOptions, show: Callable[[Message], None]) -> None:
    """Subscribe to the destination and ``show`` what comes, until this is cancelled.

    With a count, messages come one by one, so that none is taken out of a queue in vain.  Raises
    ConnectionClosed or Refused when the server ends it.
    """
    ended: Deferred[None] = Deferred()
    destination = _destination(options)
    client = await _connect(
        reactor,
        options,
        WINDOW if options.count is None else 1,
        "pub-sub",
        show=staticmethod(show),
        ended=ended,
        left=options.count,
    )
    try:
        client.subscribe(destination)
        await ended
    finally:
        await client.leave()
