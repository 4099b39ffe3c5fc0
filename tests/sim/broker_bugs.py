"""Bugs planted in the broker: worlds that do not catch them prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from twisted_msgproto.core.broker import store
from twisted_msgproto.core.broker.machine import Broker
from twisted_msgproto.core.broker.places import Places, Row
from twisted_msgproto.core.broker.queues import BrokerQueue, Released, Subscriber
from twisted_msgproto.core.broker.store import QueueStore

Bug = Callable[[], AbstractContextManager[object]]


def returns_to_the_tail() -> AbstractContextManager[object]:
    """A letter that comes back is the last of its queue, not at its place."""
    put_back = Broker._put_back

    def at_the_tail(self: Broker, released: Released, tried: set[int]) -> None:
        insert = Places.insert

        def append(places: Places, row: Row) -> None:
            insert(places, Row(max(row.place, places.last + 1), row.weight, row.second))

        with mock.patch.object(Places, "insert", append):
            put_back(self, released, tried)

    return mock.patch.object(Broker, "_put_back", at_the_tail)


def forgets_tries() -> AbstractContextManager[object]:
    """A try is counted on the letter alone; what is read back has had none."""
    put_back = Broker._put_back

    def forgetting(self: Broker, released: Released, tried: set[int]) -> None:
        put_back(self, released, tried)
        for (_, queue), _ in released:
            queue.tries.remove(0, 2**64)

    return mock.patch.object(Broker, "_put_back", forgetting)


def everything_held_was_tried() -> AbstractContextManager[object]:
    """What a lost consumer had fetched ahead has had a try (BK-07)."""
    return mock.patch.object(Subscriber, "seen", lambda self: set(self.held))


def anybody_acknowledges() -> AbstractContextManager[object]:
    """An acknowledgement counts, whoever holds the letter."""
    release = Broker._release

    def releasing(self: Broker, subscriber: Subscriber, places: list[int]) -> Released:
        released = release(self, subscriber, places)
        for other in self._subscribers.values():
            rest = [place for place in places if place in other.held]
            released += release(self, other, rest)
        return released

    return mock.patch.object(Broker, "_release", releasing)


def acknowledged_is_kept() -> AbstractContextManager[object]:
    """An acknowledged letter is still held, so it comes again when its consumer goes."""
    finish = Broker._finish

    def finishing(self: Broker, released: Released, *, rejected: bool = False) -> None:
        finish(self, released, rejected=rejected)
        for batch, places in released:
            for subscriber in batch[1].subscribers:
                subscriber.held.update(dict.fromkeys(places, batch))

    return mock.patch.object(Broker, "_finish", finishing)


def dropped_by_a_failed_push() -> AbstractContextManager[object]:
    """Letters whose push raises are gone (BK-02)."""
    fail = Broker._fail

    def failing(self: Broker, subscriber: Subscriber, *rest: Any) -> None:
        subscriber.held.clear()
        fail(self, subscriber, *rest)

    return mock.patch.object(Broker, "_fail", failing)


def offers_once() -> AbstractContextManager[object]:
    """One round is delivered, and the rest waits for the next publish (BK-01)."""
    serve = Broker._serve

    def once(self: Broker, queue: BrokerQueue) -> int:
        steps = serve(self, queue)
        self._awake.pop(queue, None)
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
        ready = [self.letters.get(place) for place in self.waiting.front(most)]
        return [letter for letter in ready if letter is not None]

    return mock.patch.object(BrokerQueue, "ready_run", run)


def memory_is_not_freed() -> AbstractContextManager[object]:
    """What is dropped from memory stays counted."""

    def drop(self: BrokerQueue, places: Any) -> int:
        return sum(letter.octets for place in places if (letter := self.letters.pop(place, None)))

    return mock.patch.object(BrokerQueue, "drop", drop)


def in_flight_stays_in_memory() -> AbstractContextManager[object]:
    """What a consumer does not acknowledge is held in memory, whatever the limit (NB-02)."""
    return mock.patch.object(Broker, "_make_room", lambda self, least: None)


def away_is_not_counted_off() -> AbstractContextManager[object]:
    """What is acknowledged when it is not in memory still counts in its queue (NB-02)."""
    return mock.patch.object(BrokerQueue, "landed", BrokerQueue.drop)


def written_too_early() -> AbstractContextManager[object]:
    """A letter is noted as done with when it is delivered."""
    carry_out = Broker._carry_out

    def carrying(self: Broker, queue: BrokerQueue, hands: Any, unwanted: Any) -> None:
        for _, letters in hands:
            self._events.append(store.Settled(queue.name, [letter.place for letter in letters]))
        carry_out(self, queue, hands, unwanted)

    return mock.patch.object(Broker, "_carry_out", carrying)


def dead_letters_are_not_told() -> AbstractContextManager[object]:
    """The durable half does not hear of dead letters: after a crash they are in their queue."""
    bury = QueueStore._bury

    def burying(self: QueueStore, *arguments: Any) -> None:
        events = len(self._events)
        bury(self, *arguments)
        self._events[events:] = [
            event for event in self._events[events:] if not isinstance(event, store.DeadLettered)
        ]

    return mock.patch.object(QueueStore, "_bury", burying)


def senders_wait_for_ever() -> AbstractContextManager[object]:
    """Who waits for room in a queue is not called."""
    return mock.patch.object(QueueStore, "_freed", lambda self, queue: None)


def more_than_there_is_room() -> AbstractContextManager[object]:
    """The first consumer in turn gets everything."""

    def dealing(letters: list[Any], rooms: list[int]) -> list[list[Any]]:
        return [letters, *([] for _ in rooms[1:])]

    @contextmanager
    def patched() -> Iterator[None]:
        from twisted_msgproto.core.broker import turns

        with (
            mock.patch.object(turns, "deal", dealing),
            mock.patch.object(turns, "_last_place", lambda hand: 0),
        ):
            yield

    return patched()


def reads_for_all_at_once() -> AbstractContextManager[object]:
    """Every queue has a letter read back, however many there are (NB-02)."""

    def asking(self: QueueStore, queue: BrokerQueue) -> None:
        if queue.loading is None:
            self._ask(queue)

    return mock.patch.object(QueueStore, "_want", asking)


def what_was_read_stays() -> AbstractContextManager[object]:
    """What was read back and cannot be delivered keeps its room, and others wait for that."""
    return mock.patch.object(BrokerQueue, "drop_read", lambda self: None)


def nobody_is_next_in_line() -> AbstractContextManager[object]:
    """Room for reading is there, and nobody who waits for it is told."""
    return mock.patch.object(QueueStore, "_read_on", lambda self, busy: None)


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
