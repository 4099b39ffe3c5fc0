"""Queues outlive the process: :class:`BrokerPersistence` joins brokers with their files.

A message for a queue is a row of the log.  The sink that stores it says so here, in the order of
offsets, and the message is published with its offset as its id.  What consumers settle is
written some times a second, in a thread, so after a crash they may see the last second again.  What
an operator purges or moves is written before the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.broker import (
    Declared,
    Event,
    Forgotten,
    Moved,
    QueuedMessage,
    QueueName,
    Settled,
    Tried,
    Wanted,
    weight,
)
from ...core.broker.envelopes import head_of, opened
from ...core.errors import ConfigurationError
from ...core.limits import Limits
from ...core.message import MessageBatch
from ..sink import DurableSink
from .served_broker import ServedBroker

if TYPE_CHECKING:
    from ...queue.broker_files import BrokerState, Loaded, Waiting

TEND_SECONDS: Final = 0.4  # with the write itself settlements are less than a second late

AGAIN_SECONDS: Final = 1.0  # then a disk that failed is asked again

MICROSECONDS: Final = 1_000_000


@lru_cache
def _name_in(head: bytes) -> QueueName:
    return opened(head).name


class BrokerPersistence:
    """The queues of all brokers whose messages one durable sink stores."""

    log: Logger = Logger(namespace="twisted_msgproto.broker")

    def __init__(self, sink: DurableSink, clock: Any) -> None:
        self._sink = sink
        self._clock = clock
        self._brokers: dict[str, KeptBroker] = {}  # by their spaces
        self._found: dict[QueueName, Waiting] = {}
        self._tending = LoopingCall(self._tend)
        self._tending.clock = clock
        self._tended: Deferred[Any] = succeed(None)
        self._closed: Deferred[None] | None = None
        self.state: BrokerState | None = None  # the durable half; None before it is opened

    @classmethod
    def of(cls, sink: DurableSink, clock: Any) -> BrokerPersistence:
        """Return what keeps the queues of ``sink``; it is made when it is asked for first."""
        if not isinstance(sink.brokerPersistence, BrokerPersistence):
            sink.brokerPersistence = cls(sink, clock)
        return sink.brokerPersistence

    def serve(self, broker: KeptBroker, spaces: Iterable[str]) -> None:
        """Let ``broker`` have the queues of ``spaces``; one that ends with a slash stands for all
        that begin with it.

        Raises ConfigurationError for a space whose broker is in use.
        """
        for space in spaces:
            other = self._brokers.get(space)
            if other is not None and other.in_use:
                raise ConfigurationError(
                    f"another server has the queues of {space!r} in this sink: give this one its"
                    " queues (queues=other.queues), or a space of its own"
                )
            self._brokers[space] = broker

    # ── life ────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Find what waits in the queues; this reads the log, and waits for the disk."""
        if self.state is not None:
            return
        state = self._sink.writer.broker()
        self._found = state.restored()
        self.state = state
        for space in sorted({name.space for name in self._found if not self._server(name)}):
            count = sum(
                len(waiting.message_ids)
                for name, waiting in self._found.items()
                if name.space == space
            )
            if count:
                self.log.warn(
                    "broker: {count} messages wait in queues of {space!r}, which no server serves",
                    count=count,
                    space=space,
                )
        self._tended = self._tending.start(TEND_SECONDS, now=False)

    def _server(self, name: QueueName) -> KeptBroker | None:
        space, brokers = name.space, self._brokers
        return brokers.get(space) or brokers.get(f"{space.partition('/')[0]}/")

    def found(self, broker: KeptBroker) -> dict[QueueName, Waiting]:
        mine = {
            name: waiting for name, waiting in self._found.items() if self._server(name) is broker
        }
        for name in mine:
            del self._found[name]
        return mine

    def in_thread(self, work: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        reactor = self._sink.reactor
        return deferToThreadPool(reactor, reactor.getThreadPool(), work, *arguments)

    def _tend(self) -> Deferred[Any]:
        assert self.state is not None
        # What cannot be written now is in its turn again; a failure would end the turns.
        return maybeDeferred(self.in_thread, self.state.tend).addErrback(self._failed)

    def close(self) -> Deferred[None]:
        """Write the last settlements; fires when they are on disk."""
        if self._closed is None:
            self._closed = Deferred()
            if self._tending.running:
                self._tending.stop()
            self._tended.addCallback(lambda _: self._close_state()).chainDeferred(self._closed)
        closed: Deferred[None] = Deferred()
        self._closed.addCallback(lambda result: closed.callback(None))
        return closed

    def _close_state(self) -> Deferred[Any] | None:
        if self.state is None:
            return None
        closed = self.in_thread(self.state.close)
        return closed.addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self.log.failure("broker: its files cannot be kept", failure)

    # ── messages ────────────────────────────────────────────────────────────────────────────────

    def stored(self, batch: MessageBatch, first: int) -> None:
        """Publish messages of a batch that is on disk from ``first`` on; called in this order."""
        try:
            self._publish(batch, first)
        except Exception:
            self.log.failure("broker: messages from offset {first} on are in no queue", first=first)

    def _publish(self, batch: MessageBatch, first: int) -> None:
        assert batch.envelope is not None and batch.body is not None
        arrived = batch.received_at / MICROSECONDS
        lots: dict[KeptBroker, list[tuple[QueueName, QueuedMessage]]] = {}
        for message_id, envelope, body in zip(
            range(first, first + batch.count), batch.envelope, batch.body, strict=True
        ):
            if envelope is None:
                continue
            name = _name_in(head_of(envelope))
            broker = self._server(name)
            if broker is not None:
                body = body or b""
                message = QueuedMessage(message_id, weight(envelope, body), envelope, body, arrived)
                lots.setdefault(broker, []).append((name, message))
        for broker, messages in lots.items():
            broker.came(messages)

    # ── what the durable half is asked ──────────────────────────────────────────────────────────

    def declare(self, names: Mapping[QueueName, int]) -> Deferred[None]:
        """Make names durable; fires when they are, however often the disk has to be asked."""
        assert self.state is not None
        done: Deferred[None] = Deferred()

        def ask() -> None:
            if self._closed is None:
                assert self.state is not None
                self.in_thread(self.state.declare, names).addCallbacks(done.callback, failed)

        def failed(failure: Failure) -> None:
            self.log.warn(
                "broker: the names of queues cannot be written: {text}; trying again",
                text=failure.getErrorMessage(),
            )
            if self._closed is None:
                self._clock.callLater(AGAIN_SECONDS, ask)

        ask()
        return done


class KeptBroker(ServedBroker):
    durable = True

    def __init__(
        self,
        persistence: BrokerPersistence,
        spaces: Iterable[str],
        clock: Any,
        *arguments: Any,
        **named: Any,
    ) -> None:
        super().__init__(clock, *arguments, **named)
        self._persistence = persistence
        # A queue begins with the first message that was sent to it, even if that came before its
        # name did.
        self._firsts: dict[QueueName, int] = {}
        # Names that are not durable yet, and who waits for that.
        self._undurable: dict[QueueName, list[Callable[[], None]]] = {}
        persistence.serve(self, spaces)

    def restore(self) -> None:
        """Make the queues as they were; raises QueueError or OSError if that cannot be."""
        self._persistence.open()
        now = self.now()
        for name, waiting in self._persistence.found(self).items():
            self.store.restore(
                name,
                waiting.message_ids,
                waiting.weights,
                waiting.arrived,
                now,
                tries=waiting.tries,
            )
            self.known(name)

    def came(self, messages: Sequence[tuple[QueueName, QueuedMessage]]) -> None:
        """Publish messages that are on disk; their ids ascend."""
        for name in dict.fromkeys([name for name, _ in messages]):
            if not self.store.knows(name):
                message_id = next(message.message_id for each, message in messages if each == name)
                self._firsts[name] = min(message_id, self._firsts.get(name, message_id))
        self.begin(self.publishing(messages))

    def when_durable(self, name: QueueName, call: Callable[[], None]) -> None:
        waiting = self._undurable.get(name)
        if waiting is None:
            call()
        else:
            waiting.append(call)

    def read(self, message_ids: Sequence[int]) -> Deferred[list[QueuedMessage]]:
        def messages(found: Loaded) -> list[QueuedMessage]:
            if found.error is not None and found.unread:
                raise found.error
            return found.messages

        return self._persistence.in_thread(self._state.load, message_ids).addCallback(messages)

    def flush(self) -> Deferred[None]:
        return self._persistence.in_thread(self._state.flush)

    # ── what the machine says ───────────────────────────────────────────────────────────────────

    @property
    def _state(self) -> BrokerState:
        state = self._persistence.state
        assert state is not None
        return state

    def _declared(self, event: Declared) -> None:
        self.known(event.name)
        name = event.name
        # It may have been forgotten while its name was written: so it is written again, and only
        # the last time counts.
        waiting = self._undurable[name] = self._undurable.pop(name, []).copy()
        first = self._firsts.pop(name, self._state.end)

        def durable(result: object) -> None:
            if self._undurable.get(name) is waiting:
                for call in self._undurable.pop(name):
                    call()

        self._persistence.declare({name: first}).addCallback(durable)

    def _forgotten(self, event: Forgotten) -> None:
        super()._forgotten(event)
        self._state.forget(event.name)

    def _settled(self, event: Settled) -> None:
        self._state.settle(event.message_ids)

    def _tried(self, event: Tried) -> None:
        self._state.tried(event.tries)

    def _moved(self, event: Moved) -> None:
        self._state.move(event.message_ids, event.to, tries=event.tries)

    def _wanted(self, event: Wanted) -> None:
        name = event.name

        def loaded(found: Loaded) -> None:
            if found.unread:  # what is missing in the lists is asked for again then
                self._clock.callLater(AGAIN_SECONDS, take, found)
            else:
                take(found)

        def take(found: Loaded) -> None:
            self.store.loaded(name, found.messages, found.unreadable)

        def failed(failure: Failure) -> None:
            self.log.warn(
                "broker: messages of {name} cannot be read: {text}; trying again",
                name=str(name),
                text=failure.getErrorMessage(),
            )
            self._clock.callLater(AGAIN_SECONDS, self.store.loaded, name, ())

        self._persistence.in_thread(self._state.load, event.message_ids).addCallbacks(
            loaded, failed
        )

    follows: Mapping[type[Event], Callable[[Any, Any], None]] = {
        **ServedBroker.follows,
        Declared: _declared,
        Forgotten: _forgotten,
        Settled: _settled,
        Tried: _tried,
        Moved: _moved,
        Wanted: _wanted,
    }


def broker_of(
    sink: object,
    clock: Any,
    limits: Limits | None,
    spaces: Iterable[str],
    **settings: Any,
) -> ServedBroker:
    """Return the broker of a server: over a durable queue its queues outlive the process."""
    if isinstance(sink, DurableSink) and sink.keeps_queues:
        return KeptBroker(BrokerPersistence.of(sink, clock), spaces, clock, limits, **settings)
    broker = ServedBroker(clock, limits, **settings)
    broker.tells_of_memory = sink is not None
    return broker
