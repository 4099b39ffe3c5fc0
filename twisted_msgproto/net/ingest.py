"""What the protocols share which take messages in: hooks, the sink, what waits for it, the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IHalfCloseableProtocol, ITCPTransport
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from ..core.errors import Fault, QueueError, shown
from ..core.limits import Limit
from ..core.message import Message, MessageBatch
from .backpressure import OctetBudget, ReadControl
from .factory import MsgprotoServerFactory, SessionFactory, peer_name
from .prompt import prompt_write

INGEST_LIMITS: Final[tuple[Limit, ...]] = ()
"""Nothing beside what every server bounds."""

BATCH_WEIGHT_OCTETS: Final = 2000
"""What a batch which waits for the sink weighs beside its octets.  A peer whose tiny messages are
each of another kind than the one before makes millions of batches out of 64 MiB."""


def tell_not_stored(log: Logger, peer: str, failure: Failure, again: bool) -> None:
    """Log why messages of ``peer`` will never be acknowledged.

    A disk's fault is the operator's, and one line; any other is in code, with its traceback.
    ``again``: something of the session was lost before.  What the disk loses then is no news.
    """
    if failure.check(QueueError):
        if not again:
            log.error("{peer}: not acknowledged: {text}", peer=peer, text=str(failure.value))
    else:
        log.failure("{peer}: not acknowledged", failure, peer=peer)


def tell_unread(log: Logger, factory: SessionFactory, peer: str) -> None:
    """Log and count that ``peer`` has left unread what we write for too long, and is cut off."""
    factory.countFault("unread")
    log.warn("{peer}: closed: it does not read what it is sent", peer=peer, reason="unread")


class IngestHooks:
    """The hooks for received messages: override one of them in a subclass of a server protocol."""

    factory: MsgprotoServerFactory

    def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
        """Messages of one read arrived.

        By default each goes to :meth:`messageReceived`, if a subclass overrides that, and then the
        batch goes to the factory's sink.  The acknowledgement follows when the returned Deferred
        (None: at once) and all Deferreds of ``messageReceived`` have fired; a failure withholds it.
        """
        sink = self.factory.sink
        if type(self).messageReceived is IngestHooks.messageReceived:  # nobody looks at them
            return None if sink is None else sink.put(batch)
        waiting: list[Deferred[Any]] = []
        for message in batch:
            result = maybeDeferred(self.messageReceived, message)
            waiting.append(result)
        if sink is not None:
            waiting.append(sink.put(batch))
        if not waiting:
            return None
        return waiting[0] if len(waiting) == 1 else _all(waiting)

    def messageReceived(self, message: Message) -> Deferred[Any] | None:
        """One message arrived; override this to see each, return a Deferred to delay its ack."""


def _all(waiting: list[Deferred[Any]]) -> Deferred[Any]:
    """Fires when all have fired; fails with the first failure, the others are consumed."""
    gathered: Deferred[Any] = DeferredList(waiting, fireOnOneErrback=True, consumeErrors=True)
    return gathered.addErrback(_first_failure)


def _first_failure(failure: Failure) -> Failure:
    first: Failure = failure.value.subFailure  # type: ignore[union-attr]
    return first


class Delivery:
    """Hands batches of one connection to its hook and counts what is not safe yet.

    Attributes:
        unsafe_octets: octets of this connection which are not safe yet, with the weight of batches.
        unsafe_batches: batches of this connection which are not safe yet.
    """

    __slots__ = (
        "_budget",
        "_control",
        "_failed",
        "_hook",
        "_limit",
        "_settled",
        "unsafe_batches",
        "unsafe_octets",
    )

    def __init__(
        self,
        hook: Callable[[MessageBatch], Deferred[Any] | None],
        control: ReadControl,
        budget: OctetBudget,
        limit: int,
        failed: Callable[[Failure], None],
        settled: Callable[[], None] | None = None,
    ) -> None:
        """``limit`` bounds the unsafe octets: above it the connection is not read.

        ``failed(failure)`` is called for each batch which will never be safe, ``settled()`` after
        each batch, safe or not.
        """
        self._hook = hook
        self._control = control
        self._budget = budget
        self._limit = limit
        self._failed = failed
        self._settled = settled
        self.unsafe_octets = 0
        self.unsafe_batches = 0

    def deliver(self, batch: MessageBatch, safe: Callable[..., None], *args: Any) -> None:
        """Give ``batch`` to the hook; ``safe(*args)`` is called when it is safe."""
        try:
            result = self._hook(batch)
        except Exception:
            result = Deferred()
            result.errback(Failure())
        if result is None or (result.called and not result.paused and result.result is None):
            safe(*args)  # at once, without a callback
            if self._settled is not None:
                self._settled()
            return
        octets = batch.octets + BATCH_WEIGHT_OCTETS
        self.unsafe_octets += octets
        self.unsafe_batches += 1
        self._budget.add(octets, self._control)
        if self.unsafe_octets > self._limit:
            self._control.pause("connection-octets")
        result.addBoth(self._finished, octets, safe, args)

    def _finished(
        self, result: Any, octets: int, safe: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        self.unsafe_octets -= octets
        self.unsafe_batches -= 1
        self._budget.remove(octets)
        if self.unsafe_octets <= self._limit // 2:
            self._control.resume("connection-octets")
        if isinstance(result, Failure):
            self._failed(result)
        else:
            safe(*args)
        if self._settled is not None:
            self._settled()


@implementer(IHalfCloseableProtocol)
class IngestConnection(IngestHooks, Protocol):
    """One connection on a byte stream which takes messages in: how it begins, and how it ends.

    A protocol adds its machine, its timer and the guard of its output.

    Attributes:
        session: the public name of this session.
        peer: the peer's transport address as text.
        clientId: who the peer is, or None.
    """

    log: ClassVar[Logger]
    readOctets: ClassVar[int]
    """What one read takes at the most."""

    session: str
    peer: str
    clientId: str | None = None

    def sessionLost(self, reason: Failure) -> None:
        """The session has ended; ``reason`` is what Twisted gave to ``connectionLost``."""

    def connectionMade(self) -> None:
        """Begin; a subclass which overrides this calls it first."""
        factory, transport = self.factory, self.transport
        assert transport is not None
        address = transport.getPeer()
        self.peer = peer_name(address)
        self.session = factory.sessionNames.next()
        self._established = False
        self._ended = False  # we have asked the transport to close, or it is closed
        self._held = 0  # octets of what is not whole yet
        self._send = prompt_write(transport)
        self._control = ReadControl(transport, self._readingChanged)
        self._delivery = Delivery(
            self._hook(),
            self._control,
            factory.budget,
            factory.limits.integer("unsafe-octets"),
            self._notSafe,
        )
        factory.connectionOpened(self, str(getattr(address, "host", "")))
        transport.bufferSize = self.readOctets  # type: ignore[attr-defined]
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)

    def _hook(self) -> Callable[[MessageBatch], Deferred[Any] | None]:
        """What batches are given to."""
        return self.batchReceived

    def _notSafe(self, failure: Failure) -> None:
        """A batch will never be safe."""
        raise NotImplementedError

    def _tellNotSafe(self, failure: Failure) -> None:
        """Log why messages will never be acknowledged, once: what follows is lost with them."""
        tell_not_stored(self.log, self.peer, failure, self._ended)

    def _unread(self) -> None:
        """The peer has left unread what we write for too long."""
        if not self._ended:
            tell_unread(self.log, self.factory, self.peer)
        self._abort()

    def _readingChanged(self, paused: bool) -> None:
        """Reading was paused, or goes on."""
        raise NotImplementedError

    def readConnectionLost(self) -> None:
        """The peer has shut its sending side: acknowledge what is whole, then close."""
        raise NotImplementedError

    def writeConnectionLost(self) -> None:
        """Nobody reads what we write any more."""
        self._abort()

    def _faulted(self, fault: Fault, end: str = "closed") -> None:
        """The peer broke the protocol, and this is its ``end``: one line, a counter."""
        self._ended = True
        self.factory.countFault(fault.reason)
        self.log.warn(
            f"{{peer}}: {end}: {{text}} (starts with {{octets}})",
            peer=self.peer,
            text=shown(fault.text)[1:-1],
            octets=fault.octets.hex(" ") or "nothing",
            reason=fault.reason,
        )

    def _hold(self, octets: int) -> None:
        """So many octets are held of what is not whole yet."""
        if octets != self._held:
            self._held = octets
            self.factory.budget.held.hold(self, octets)

    def cutOff(self, octets: int, limit: float) -> None:
        """All connections together hold too much of what is not whole, and this one the most."""
        if self._ended:
            return
        text = f"{octets} octets which are not whole yet, most of all; together at most {limit:.0f}"
        self._faulted(Fault("process-held-octets", text), "cut off")
        self._abort()

    def _abort(self) -> None:
        self._ended = True
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]


__all__ = [
    "INGEST_LIMITS",
    "Delivery",
    "IngestConnection",
    "IngestHooks",
    "tell_not_stored",
    "tell_unread",
]
