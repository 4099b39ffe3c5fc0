"""Seeded worlds of the broker: publishers, consumers, readers of the log, people, time, crashes.

``BrokerWorld(seed).run()`` takes random steps; after each the broker is compared with its
specification, a list for each queue (:mod:`tests.core.broker.model`).  Consumers stall, reject,
answer for what they never got, fail while they are written to, and go at every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.core.broker.model import Peer, Watched
from tests.sim.world import Violation
from twisted_msgproto.core.broker import (
    QueuedMessage,
    QueueName,
    machine,
    message_table,
    queues,
    store,
)
from twisted_msgproto.core.broker.machine import Broker
from twisted_msgproto.core.broker.message_table import MessageTable
from twisted_msgproto.core.broker.queues import BrokerQueue, Released, Subscriber
from twisted_msgproto.core.broker.store import QueueStore

STEPS = 60

NAMES = [QueueName("tests", name) for name in ("a", "b", "a.dead")]

FILTERS: list[Callable[[QueuedMessage], bool] | None] = [
    None,
    None,
    None,
    lambda message: message.message_id % 2 == 0,
    lambda message: message.message_id % 3 == 0,
    lambda message: False,
]


def named(wants: Callable[[QueuedMessage], bool] | None) -> str:
    return f"filter {FILTERS.index(wants)}"


class BrokerWorld:
    """One world; ``told`` is what happened in it, for whoever looks for the cause of a violation.

    Raises Violation from :meth:`run` where the broker does not do what its specification says.
    """

    def __init__(self, seed: int) -> None:
        self.source = source = random.Random(seed)
        choice = source.choice
        self.told: list[str] = []
        self.options = {
            "durable": choice((True, True, False)),
            "when_full": choice(("wait", "dead-letter")),
            "broker_memory_bytes": choice((700, 2000, 100_000)),
            "queue_messages": choice((5, 1000)),
            "queue_age": choice((0, 0, 50)),
            "tries": choice((1, 2, 3)),
            "dead_letters": choice((0, 4, 1000)),
            "queue_idle": 100,
        }
        # Sizes that only long backlogs reach otherwise.
        self.sizes = {
            (store, "READ_MESSAGES"): choice((2, 5, 512)),
            (machine, "SERVED_MAX"): (served := choice((1, 3, 512))),
            (queues, "SERVED_MAX"): served,
            (queues, "SHARED_MAX"): choice((1, 16)),
            (message_table, "CHUNK"): choice((1, 3, 4096)),
        }
        self.watched = Watched(**self.options)
        # Some kinds of steps are frequent in one world and rare in another.
        self._weights = [choice((1, 3, 9)) for _ in self.KINDS]

    def run(self) -> BrokerWorld:
        """Take all steps, and let everything be delivered and acknowledged at the end."""
        with ExitStack() as patched:
            for (module, name), size in self.sizes.items():
                patched.enter_context(mock.patch.object(module, name, size))
            try:
                self._walk()
            except Violation:
                raise
            except Exception as error:
                raise Violation(f"{type(error).__name__}: {error}") from error
        return self

    def _walk(self) -> None:
        for _ in range(STEPS):
            (kind,) = self.source.choices(self.KINDS, self._weights)
            kind(self)
        self._tell("finish")
        self.watched.finish()

    def _tell(self, verb: str, *what: object) -> None:
        self.told.append(" ".join(map(str, (verb, *what))))

    def _queue(self) -> QueueName:
        return self.source.choice(NAMES)

    def _peer(self) -> Peer | None:
        peers = self.watched.peers
        return self.source.choice(peers) if peers else None

    def _held(self, peer: Peer) -> list[int]:
        """Some of what a consumer holds: mostly the oldest, sometimes any."""
        held = sorted(peer.held)
        if self.source.random() < 0.7:
            return held[: self.source.randint(1, 6)]
        return self.source.sample(held, self.source.randint(0, len(held)))

    # ── the kinds of steps ──────────────────────────────────────────────────────────────────────

    def publish(self) -> None:
        queue, count = self.source.choice(NAMES[:2]), self.source.choice((1, 1, 2, 5, 12))
        gap = self.source.choice((1, 1, 1, 5, 2**33))
        self._tell("publish", queue, count, gap)
        self.watched.publish(queue, count, gap)

    def connect(self) -> None:
        peer = self.watched.connect(self.source.choice((1, 2, 5, 20)), self.source.random() < 0.9)
        for queue in self.source.sample(NAMES, self.source.choice((1, 1, 2))):
            wants = self.source.choice(FILTERS)
            self._tell("connect", peer.number, peer.window, peer.acknowledges, queue, named(wants))
            if peer in self.watched.peers:
                self.watched.subscribe(peer, queue, wants)

    def change(self) -> None:
        peer, queue = self._peer(), self._queue()
        if peer is not None:
            wants, on = self.source.choice(FILTERS), self.source.random() < 0.6
            self._tell("change", peer.number, queue, named(wants) if on else "unsubscribe")
            if on:
                self.watched.subscribe(peer, queue, wants)
            else:
                self.watched.unsubscribe(peer, queue)

    def settle(self) -> None:
        peer = self._peer()
        if peer is not None:
            ids = self._held(peer)
            self._tell("settle", peer.number, ids)
            self.watched.settle(peer, ids)

    def reject(self) -> None:
        peer = self._peer()
        if peer is not None:
            ids, requeue = self._held(peer), self.source.random() < 0.7
            self._tell("reject", peer.number, ids, requeue)
            self.watched.reject(peer, ids, requeue)

    def lie(self) -> None:
        peer = self._peer()
        if peer is not None and self.watched.disk:
            ids = self.source.choices(list(self.watched.disk), k=3)
            self._tell("lie", peer.number, ids)
            if self.source.random() < 0.5:
                self.watched.settle(peer, ids)
            else:
                self.watched.reject(peer, ids, self.source.random() < 0.5)

    def stall(self) -> None:
        peer = self._peer()
        if peer is not None:
            stalled = self.source.random() < 0.5
            self._tell("stall", peer.number, stalled)
            self.watched.stall(peer, stalled)

    def spoil(self) -> None:
        """From now on a consumer cannot encode some of the messages."""
        peer, bad = self._peer(), self.source.randint(0, 4)
        if peer is not None:
            self._tell("spoil", peer.number, bad)
            peer.raising = lambda messages: any(
                message.message_id % 5 == bad for message in messages
            )

    def lose(self) -> None:
        peer, orderly = self._peer(), self.source.random() < 0.3
        if peer is not None:
            self._tell("lose", peer.number, orderly)
            self.watched.lose(peer, orderly)

    def read(self) -> None:
        part, fate = self.source.choice((1, 1, 2)), self.source.random()
        self._tell("read", part, fate)
        self.watched.read(part, damaged=fate < 0.1, failed=0.1 < fate < 0.2)

    def people(self) -> None:
        queue, to, most = self._queue(), self._queue(), self.source.choice((1, 4, 100))
        if self.source.random() < 0.3:
            self._tell("purge", queue, most)
            self.watched.purge(queue, most)
        else:
            self._tell("requeue", queue, to, most)
            self.watched.requeue(queue, to, most)

    def wait(self) -> None:
        seconds = self.source.choice((1.0, 49.0, 101.0))
        self._tell("wait", seconds)
        self.watched.pass_time(seconds)

    def write(self) -> None:
        count = self.source.choice((None, 1, 3))
        self._tell("write", count)
        self.watched.write(count)

    def crash(self) -> None:
        count = self.source.choice((None, 0, 1, 5))
        if self.watched.durable and self.source.random() < 0.3:
            self._tell("crash", count)
            self.watched.write(count)
            self.watched.crash()

    KINDS = (
        *(publish, publish, connect, change, settle, settle, reject, lie, stall, spoil, lose),
        *(read, read, read, people, wait, write, crash),
    )


# ── Bugs planted in the broker: worlds that do not catch them prove nothing ──

Bug = Callable[[], AbstractContextManager[object]]


def returns_to_the_tail() -> AbstractContextManager[object]:
    """A message that comes back is the last of its queue, not at its place."""
    put_back = Broker._put_back

    def at_the_tail(self: Broker, released: Released, tried: set[int]) -> None:
        insert = MessageTable.insert

        def append(ids: MessageTable, message_id: int, *numbers: int) -> None:
            insert(ids, max(message_id, ids.last + 1), *numbers)

        with mock.patch.object(MessageTable, "insert", append):
            put_back(self, released, tried)

    return mock.patch.object(Broker, "_put_back", at_the_tail)


def forgets_tries() -> AbstractContextManager[object]:
    """A try is counted on the message alone; what is read back has had none."""
    put_back = Broker._put_back

    def forgetting(self: Broker, released: Released, tried: set[int]) -> None:
        put_back(self, released, tried)
        for (_, queue), _ in released:
            queue.tries.remove(0, 2**64)

    return mock.patch.object(Broker, "_put_back", forgetting)


def everything_held_was_tried() -> AbstractContextManager[object]:
    """What a lost consumer had fetched ahead has had a try (BK-07)."""
    return mock.patch.object(Subscriber, "seen", lambda self: set(self.unsettled))


def anybody_acknowledges() -> AbstractContextManager[object]:
    release = Broker._release

    def releasing(self: Broker, subscriber: Subscriber, ids: list[int]) -> Released:
        released = release(self, subscriber, ids)
        for other in self._subscribers.values():
            rest = [message_id for message_id in ids if message_id in other.unsettled]
            released += release(self, other, rest)
        return released

    return mock.patch.object(Broker, "_release", releasing)


def acknowledged_is_kept() -> AbstractContextManager[object]:
    """An acknowledged message is still held, so it comes again when its consumer goes."""
    finish = Broker._finish

    def finishing(self: Broker, released: Released, *, rejected: bool = False) -> None:
        finish(self, released, rejected=rejected)
        for batch, numbers in released:
            for subscriber in batch[1].subscribers:
                subscriber.unsettled.update(dict.fromkeys(numbers, batch))

    return mock.patch.object(Broker, "_finish", finishing)


def dropped_by_a_failed_push() -> AbstractContextManager[object]:
    """Messages whose push raises are gone (BK-02)."""
    fail = Broker._fail

    def failing(self: Broker, subscriber: Subscriber, *rest: Any) -> None:
        subscriber.unsettled.clear()
        fail(self, subscriber, *rest)

    return mock.patch.object(Broker, "_fail", failing)


def offers_once() -> AbstractContextManager[object]:
    """One round is delivered, and the rest waits for the next publish (BK-01)."""
    serve = Broker._serve

    def once(self: Broker, queue: BrokerQueue) -> int:
        steps = serve(self, queue)
        self.store.awake.pop(queue, None)
        return steps

    return mock.patch.object(Broker, "_serve", once)


def stays_full() -> AbstractContextManager[object]:
    """Consumers that were full once are not asked again when they have acknowledged."""
    return mock.patch.object(Broker, "_ready", lambda self, subscriber: self.go_on())


def unwanted_for_ever() -> AbstractContextManager[object]:
    """What nobody wanted is not offered to consumers that come later."""
    return mock.patch.object(BrokerQueue, "reconsider", lambda self: None)


def passes_what_is_not_read() -> AbstractContextManager[object]:
    """What is in memory is delivered before what has to be read back."""

    def run(self: BrokerQueue, most: int) -> list[Any]:
        ready = [self.messages.get(message_id) for message_id in self.waiting.head(most)[0]]
        return [message for message in ready if message is not None]

    return mock.patch.object(BrokerQueue, "ready_run", run)


def memory_is_not_freed() -> AbstractContextManager[object]:
    def drop(self: BrokerQueue, ids: Any) -> int:
        return sum(
            message.nbytes for message_id in ids if (message := self.messages.pop(message_id, None))
        )

    return mock.patch.object(BrokerQueue, "drop", drop)


def in_flight_stays_in_memory() -> AbstractContextManager[object]:
    """What a consumer does not acknowledge is held in memory, whatever the limit (NB-02)."""
    return mock.patch.object(Broker, "_make_room", lambda self, least: None)


def away_is_not_counted_off() -> AbstractContextManager[object]:
    """What is acknowledged when it is not in memory still counts in its queue (NB-02)."""
    return mock.patch.object(BrokerQueue, "landed", BrokerQueue.drop)


def written_too_early() -> AbstractContextManager[object]:
    carry_out = Broker._carry_out

    def carrying(self: Broker, queue: BrokerQueue, hands: Any, unwanted: Any) -> None:
        for _, messages in hands:
            self.store.events.append(
                store.Settled(queue.name, [message.message_id for message in messages])
            )
        carry_out(self, queue, hands, unwanted)

    return mock.patch.object(Broker, "_carry_out", carrying)


def dead_letters_are_not_told() -> AbstractContextManager[object]:
    """The durable half does not hear of dead letters: after a crash they are in their queue."""
    bury = QueueStore.bury

    def burying(self: QueueStore, *arguments: Any) -> None:
        events = len(self.events)
        bury(self, *arguments)
        self.events[events:] = [
            event for event in self.events[events:] if not isinstance(event, store.Moved)
        ]

    return mock.patch.object(QueueStore, "bury", burying)


def senders_wait_for_ever() -> AbstractContextManager[object]:
    """Who waits for room in a queue is not called."""
    return mock.patch.object(QueueStore, "_freed", lambda self, queue: None)


def more_than_there_is_room() -> AbstractContextManager[object]:
    def dealing(messages: list[Any], rooms: list[int]) -> list[list[Any]]:
        return [messages, *([] for _ in rooms[1:])]

    @contextmanager
    def patched() -> Iterator[None]:

        with (
            mock.patch.object(queues, "deal", dealing),
            mock.patch.object(queues, "_last_id", lambda hand: 0),
        ):
            yield

    return patched()


def reads_for_all_at_once() -> AbstractContextManager[object]:
    """Every queue has a message read back, however many there are (NB-02)."""

    def asking(self: QueueStore, queue: BrokerQueue) -> None:
        if queue.loading is None:
            self._ask(queue)

    return mock.patch.object(QueueStore, "want", asking)


def what_was_read_stays() -> AbstractContextManager[object]:
    """What was read back and cannot be delivered keeps its room, and others wait for that."""
    return mock.patch.object(BrokerQueue, "drop_read", lambda self: None)


def nobody_is_next_in_line() -> AbstractContextManager[object]:
    """Room for reading is there, and nobody who waits for it is told."""
    return mock.patch.object(QueueStore, "read_on", lambda self, has_room: None)


BROKER_BUGS: dict[str, Bug] = {
    "returns-to-the-tail": returns_to_the_tail,
    "forgets-tries": forgets_tries,
    "everything-held-was-tried": everything_held_was_tried,
    "anybody-acknowledges": anybody_acknowledges,
    "acknowledged-is-kept": acknowledged_is_kept,
    "dropped-by-a-failed-push": dropped_by_a_failed_push,
    "offers-once": offers_once,
    "stays-full": stays_full,
    "unwanted-for-ever": unwanted_for_ever,
    "passes-what-is-not-read": passes_what_is_not_read,
    "memory-is-not-freed": memory_is_not_freed,
    "in-flight-stays-in-memory": in_flight_stays_in_memory,
    "away-is-not-counted-off": away_is_not_counted_off,
    "written-too-early": written_too_early,
    "dead-letters-are-not-told": dead_letters_are_not_told,
    "reads-for-all-at-once": reads_for_all_at_once,
    "what-was-read-stays": what_was_read_stays,
    "nobody-is-next-in-line": nobody_is_next_in_line,
    "senders-wait-for-ever": senders_wait_for_ever,
    "more-than-there-is-room": more_than_there_is_room,
}
"""Name → what plants it."""
