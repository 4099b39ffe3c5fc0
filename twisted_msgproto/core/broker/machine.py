"""The broker: named queues of places, and consumers that compete for them.

It is pure: no sockets, no files, no clock.  Whoever owns it calls it when something happens, calls
:meth:`Broker.take_events` afterwards, :meth:`Broker.go_on` in the next turn while it is
``unfinished``, and :meth:`Broker.advance` at its ``deadline``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

from ..deadlines import ManyDeadlines
from ..limits import Limits
from .places import Row, Rows
from .queues import BrokerQueue, Subscriber, Wish, deal
from .terms import (
    AGE,
    DEAD_LETTER,
    FULL,
    LIMITS,
    TRIES,
    WAIT,
    WHEN_FULL,
    Consumer,
    DeadLettered,
    Declared,
    Event,
    Figures,
    Forgotten,
    Letter,
    QueueFull,
    QueueName,
    QueueRoom,
    Requeued,
    Settled,
    TooManyQueues,
    Tried,
    Waiting,
    Wanted,
)

TURN_STEPS: Final = 100_000
"""The broker does this many steps in one call, of about 0.1 µs each; the rest waits for a turn."""

LETTER_STEPS: Final = 20
"""Delivering one letter is this many steps."""

PUSH_STEPS: Final = 200
"""Calling one consumer is this many steps, however little it gets."""

SERVED_MAX: Final = 512
"""A queue delivers at most this many letters before the next queue has its turn."""

SHARED_MAX: Final = 16
"""A consumer of several queues gets at most this many letters of one before the next (BK-06)."""

READ_PLACES: Final = 512
"""This many places are read back at a time, at most."""

READ_OCTETS: Final = 1 << 20
"""This much is read back for one queue at a time, or one letter."""

AGED_MAX: Final = 1000
"""This many letters of one queue are found too old in one call; the deadline stays for the rest."""

NO_TRIES: Final[Mapping[int, int]] = {}


class Broker:
    """Holds all queues of one server, or of several that share them.

    A letter is waiting, with a consumer, or done with.  Waiting letters of a queue are delivered in
    the order of their places, each to one consumer, in turn among consumers that have room.  A
    letter that comes back is at its old place again, so it comes first.

    Attributes:
        counters: plain integers for metrics.
        memory: octets of all letters in memory, waiting or given.
        unfinished: whether more is left than one call may do: call :meth:`go_on` in the next turn.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        durable: bool = False,
        when_full: str = WAIT,
    ) -> None:
        """``limits`` has at least :data:`.LIMITS`; their defaults where it is None.

        ``durable`` says that places can be read back, so not every body needs to stay in memory.
        ``when_full`` is one of :data:`.WHEN_FULL`; ValueError for another.
        """
        if when_full not in WHEN_FULL:
            raise ValueError(f"a full queue does one of {', '.join(WHEN_FULL)}, not {when_full!r}")
        limits = Limits.of(LIMITS) if limits is None else limits
        self._queues_max = limits.integer("broker-queues")
        self._messages_max = limits.integer("queue-messages")
        self._octets_max = limits.integer("queue-octets")
        self._age = limits["queue-age"]
        self._idle = limits["queue-idle"]
        self._tries_max = limits.integer("tries")
        self._dead_max = limits.integer("dead-letters")
        self._memory_max = limits.integer("broker-memory")
        self._durable = durable
        self._when_full = when_full
        self._queues: dict[QueueName, BrokerQueue] = {}
        self._subscribers: dict[Consumer, Subscriber] = {}
        self._awake: OrderedDict[BrokerQueue, None] = OrderedDict()  # they may have work
        self._going = False
        self._deliveries = 0
        self._events: list[Event] = []
        self._withholding: dict[BrokerQueue, None] = {}
        self._idles: ManyDeadlines[QueueName] = ManyDeadlines()
        self._ages: ManyDeadlines[QueueName] = ManyDeadlines()
        self.memory = 0
        self.counters = dict.fromkeys(
            (
                "broker_published",
                "broker_delivered",
                "broker_acknowledged",
                "broker_rejected",
                "broker_returned",
                "broker_strays",
                "broker_failed_pushes",
                "broker_dead_letters",
                "broker_dead_dropped",
                "broker_unreadable",
                "broker_purged",
                "broker_requeued",
            ),
            0,
        )

    # ── queues ──────────────────────────────────────────────────────────────────────────────────

    def declare(self, name: QueueName, now: float, *, kept: bool = False) -> None:
        """Let there be a queue; nothing happens if there is.

        ``kept`` queues are never forgotten.  Raises TooManyQueues above ``broker-queues``; so call
        it before anything to that queue is acknowledged.
        """
        queue = self._queues.get(name)
        if queue is not None:
            if kept and not queue.kept:
                queue.kept = True
                self._events.append(Declared(name, True))
            return
        if sum(not one.for_dead for one in self._queues.values()) >= self._queues_max:
            raise TooManyQueues(f"{name.name}: broker-queues allows {self._queues_max}")
        self._make(name, now, kept)

    def _make(self, name: QueueName, now: float, kept: bool = False) -> BrokerQueue:
        queue = self._queues[name] = BrokerQueue(name, kept, now)
        self._events.append(Declared(name, kept))
        self._look_idle(queue, now)
        return queue

    def knows(self, name: QueueName) -> bool:
        """Return whether there is such a queue."""
        return name in self._queues

    def forget(self, name: QueueName) -> bool:
        """Remove a queue that is empty and has no consumers; False for any other."""
        queue = self._queues.get(name)
        if queue is None or queue.subscribers or len(queue):
            return False
        del self._queues[name]
        self._awake.pop(queue, None)
        self._idles.clear(name)
        self._ages.clear(name)
        self._events.append(Forgotten(name))
        return True

    # ── publishers ──────────────────────────────────────────────────────────────────────────────

    def publish(self, name: QueueName, letters: Sequence[Letter], now: float) -> None:
        """Add letters to a queue, in the order of their places, and deliver what can be.

        The letters of one call arrived in the same second.  They are kept whatever the limits say;
        ask :meth:`full` then, and let the senders to this queue wait.  A queue that has been
        forgotten meanwhile is made again.
        """
        if not letters:
            return
        queue = self._queues.get(name)
        if queue is None:
            queue = self._make(name, now)
        queue.used = now
        places = [letter.place for letter in letters]
        weights = [letter.octets for letter in letters]
        queue.waiting.extend(places, weights, [int(letters[0].arrived)] * len(places))
        octets = sum(weights)
        queue.octets += octets
        if not self._durable or self._may_keep(queue, octets):
            queue.letters.update(zip(places, letters, strict=True))
            queue.in_memory += octets
            self.memory += octets
        self.counters["broker_published"] += len(places)
        self._added(queue)
        self.go_on()

    def _may_keep(self, queue: BrokerQueue, octets: int) -> bool:
        """A queue may have as much in memory as is free, so something is always left for others."""
        return queue.in_memory + octets <= self._memory_max - self.memory

    def _added(self, queue: BrokerQueue) -> None:
        """Letters came to a queue, or came back: look at limits, ages and consumers."""
        if queue.for_dead:
            while len(queue) > self._dead_max and self._drop_oldest_dead(queue):
                pass
        elif self._when_full == DEAD_LETTER:
            while self._over(queue) and len(queue) > queue.given:
                self._bury(queue, queue.oldest(1), FULL)
        if self._age and not queue.for_dead and queue.name not in self._ages:
            self._look_age(queue)
        if queue.takers:
            self._awake[queue] = None

    def _over(self, queue: BrokerQueue) -> bool:
        return len(queue) > self._messages_max or queue.octets > self._octets_max

    def _is_full(self, queue: BrokerQueue) -> bool:
        if not self._durable and self.memory > self._memory_max:
            return True
        return self._when_full == WAIT and self._over(queue)

    def full(self, name: QueueName) -> bool:
        """Return whether the senders to this queue are to wait (:meth:`when_room`).

        What is with consumers counts as well.
        """
        queue = self._queues.get(name)
        return queue is not None and self._is_full(queue)

    def overfull(self, name: QueueName, messages: int = 0, octets: int = 0) -> bool:
        """Return whether the queue would have more than twice what it may have with this much more:
        refuse what comes now.
        """
        if not self._durable and self.memory + octets > 2 * self._memory_max:
            return True
        queue = self._queues.get(name)
        return (
            queue is not None
            and self._when_full == WAIT
            and (
                len(queue) + messages > 2 * self._messages_max
                or queue.octets + octets > 2 * self._octets_max
            )
        )

    def when_room(self, name: QueueName, call: Callable[[], None]) -> None:
        """Call ``call`` once the queue is not full: at once, or later."""
        queue = self._queues.get(name)
        if queue is None or not self._is_full(queue):
            call()
            return
        if not queue.withheld:
            self._events.append(QueueFull(name))
            self._withholding[queue] = None
        queue.withheld[call] = None

    def no_longer_waits(self, name: QueueName, call: Callable[[], None]) -> None:
        """Forget a call of :meth:`when_room`, because its sender is gone."""
        queue = self._queues.get(name)
        if queue is not None:
            queue.withheld.pop(call, None)

    def _freed(self, queue: BrokerQueue) -> None:
        """A queue has become smaller: senders may continue."""
        if not self._withholding:
            return
        # Without places that can be read back, memory is shared by all queues.
        for one in (queue,) if self._durable else tuple(self._withholding):
            if one in self._withholding and not self._is_full(one):
                del self._withholding[one]
                withheld, one.withheld = one.withheld, {}
                self._events.append(QueueRoom(one.name))
                for call in withheld:
                    call()

    # ── consumers ───────────────────────────────────────────────────────────────────────────────

    def subscribe(
        self,
        consumer: Consumer,
        name: QueueName,
        now: float,
        wants: Callable[[Letter], bool] | None = None,
        cost: Callable[[Letter], int] | None = None,
    ) -> None:
        """Let ``consumer`` compete for the letters of a queue that ``wants`` lets pass.

        ``cost`` is what one call of ``wants`` costs, in steps of about 0.1 µs.  A second
        subscription of the same consumer replaces the first one.  Nothing is delivered before
        :meth:`go_on`.  Raises TooManyQueues as :meth:`declare` does.
        """
        self.declare(name, now)
        queue = self._queues[name]
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            subscriber = self._subscribers[consumer] = Subscriber(consumer)
        queue.join(subscriber, Wish(wants, cost))
        queue.used = now
        self._awake[queue] = None

    def unsubscribe(self, consumer: Consumer, name: QueueName, now: float) -> bool:
        """Deliver nothing more of this queue; what the consumer holds stays with it.

        False if it was not subscribed.
        """
        subscriber, queue = self._subscribers.get(consumer), self._queues.get(name)
        if subscriber is None or queue is None or queue not in subscriber.queues:
            return False
        self._part(subscriber, queue, now)
        return True

    def _part(self, subscriber: Subscriber, queue: BrokerQueue, now: float) -> None:
        queue.leave(subscriber)
        queue.used = max(queue.used, now)
        self._awake[queue] = None  # what this consumer alone wanted may be wanted by nobody now
        self._look_idle(queue, queue.used)

    def ready(self, consumer: Consumer) -> None:
        """Deliver what waits, because ``consumer`` may have room again."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is not None:
            self._ready(subscriber)
            self.go_on()

    def _ready(self, subscriber: Subscriber) -> None:
        for queue in subscriber.queues:
            queue.takers[subscriber] = None
            if queue.waiting:
                self._awake[queue] = None

    def gone(self, consumer: Consumer, now: float, *, orderly: bool = False) -> None:
        """Forget a consumer; what it holds goes back to its place.

        The letters that it has probably looked at have had a try then (BK-07), unless it has said
        goodbye (``orderly``).
        """
        subscriber = self._subscribers.pop(consumer, None)
        if subscriber is not None:
            self._lose(subscriber, now, set() if orderly else subscriber.seen())
            self.go_on()

    def _lose(self, subscriber: Subscriber, now: float, tried: set[int]) -> None:
        for queue in list(subscriber.queues):
            self._part(subscriber, queue, now)
        held, subscriber.held = subscriber.held, {}
        self._put_back(held, tried)

    def settle(self, consumer: Consumer, places: Iterable[int]) -> None:
        """Note that ``consumer`` has acknowledged these places: they are done with.

        A place that it does not hold is counted, and nothing happens.
        """
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            self.counters["broker_strays"] += len(list(places))
            return
        self._settle(subscriber, places, "broker_acknowledged")
        self._ready(subscriber)
        self.go_on()

    def _settle(self, subscriber: Subscriber, places: Iterable[int], counter: str) -> None:
        done: dict[BrokerQueue, list[int]] = {}
        release, latest, strays = subscriber.held.pop, subscriber.latest, 0
        last, settled = None, []
        for place in places:
            delivery = release(place, None)
            if delivery is None:
                strays += 1
                continue
            number, queue = delivery
            if number > latest:
                latest = number
            if queue is not last:
                last, settled = queue, done.setdefault(queue, [])
            settled.append(place)
        subscriber.latest = latest
        self.counters["broker_strays"] += strays
        for queue, settled in done.items():
            queue.given -= len(settled)
            self.counters[counter] += len(settled)
            octets = queue.drop(settled)
            self.memory -= octets
            self._gone_for_good(queue, settled, octets)

    def _gone_for_good(self, queue: BrokerQueue, places: list[int], octets: int) -> None:
        """These places, with this weight, do not belong to the queue any more, nor to another."""
        queue.octets -= octets
        if queue.tries:
            for place in places:
                queue.tries.pop(place, None)
        if queue.alone:
            queue.alone.difference_update(places)
        if self._durable:
            self._note(Settled(queue.name, places))
        self._freed(queue)
        self._look_idle(queue, queue.used)

    def _note(self, event: Settled) -> None:
        """Note that places are done with; neighbouring events of one queue are one."""
        last = self._events[-1] if self._events else None
        if isinstance(last, Settled) and last.name is event.name:
            last.places.extend(event.places)
        else:
            self._events.append(event)

    def reject(self, consumer: Consumer, places: Iterable[int], *, requeue: bool) -> None:
        """Note that ``consumer`` has rejected these places.

        With ``requeue`` they go back, and have had a try; else they are done with.  A place that it
        does not hold is counted, and nothing happens.
        """
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            self.counters["broker_strays"] += len(list(places))
            return
        if not requeue:
            self._settle(subscriber, places, "broker_rejected")
        else:
            held = {}
            for place in places:
                delivery = subscriber.held.pop(place, None)
                if delivery is None:
                    self.counters["broker_strays"] += 1
                else:
                    held[place] = delivery
                    subscriber.latest = max(subscriber.latest, delivery[0])
            self._put_back(held, set(held))
        self._ready(subscriber)
        self.go_on()

    def _put_back(self, held: Mapping[int, tuple[int, BrokerQueue]], tried: set[int]) -> None:
        """These deliveries failed; the places in ``tried`` have had a try."""
        returned: dict[BrokerQueue, list[int]] = {}
        for place in sorted(held):
            returned.setdefault(held[place][1], []).append(place)
        self.counters["broker_returned"] += len(held)
        for queue, places in returned.items():
            queue.given -= len(places)
            tries, dead = {}, Rows([], [], [])
            for place in places:
                letter = queue.letters[place]
                letter.again = True
                row = Row(place, letter.octets, int(letter.arrived))
                if place in tried:
                    letter.tries = tries[place] = queue.tries.get(place, 0) + 1
                    if letter.tries >= self._tries_max and not queue.for_dead:
                        for column, value in zip(dead, row, strict=True):
                            column.append(value)
                        continue
                queue.waiting.insert(row)
            queue.tries.update(tries)
            if self._durable and tries:
                self._events.append(Tried(queue.name, tries))
            if dead.places:
                self._bury(queue, dead, TRIES)
            self._added(queue)

    # ── deliveries ──────────────────────────────────────────────────────────────────────────────

    @property
    def unfinished(self) -> bool:
        """Whether more is left than one call may do: call :meth:`go_on` in the next turn."""
        return bool(self._awake)

    def go_on(self, steps: int = TURN_STEPS) -> None:
        """Deliver what can be delivered, as far as ``steps`` of about 0.1 µs go (NB-07)."""
        if self._going:
            return  # a consumer called back; the loop below continues with what it changed
        self._going = True
        try:
            while self._awake and steps > 0:
                queue, _ = self._awake.popitem(last=False)
                steps -= self._serve(queue)
        finally:
            self._going = False

    def _serve(self, queue: BrokerQueue) -> int:
        """Deliver one round of a queue; return how many steps that was."""
        if not (queue.waiting and queue.takers):
            return 1
        run = queue.ready_run(SERVED_MAX)
        if not run:
            self._want(queue)
            return LETTER_STEPS
        if queue.filters:
            return self._serve_filtered(queue, run)
        takers, rooms = self._takers(queue, run)
        steps = len(rooms) + LETTER_STEPS
        if takers:
            run = min(run, sum(rooms))
            places = queue.waiting.take(run).places
            letters = list(map(queue.letters.__getitem__, places))
            self._awake[queue] = None  # before anybody is called: they may raise, or call us
            hands = list(zip(takers, deal(letters, rooms), strict=True))
            steps += self._hand_out(queue, hands)
        return steps

    def _takers(self, queue: BrokerQueue, most: int) -> tuple[list[Subscriber], list[int]]:
        """Find up to ``most`` consumers with room, the next in turn first, and their rooms."""
        takers, rooms = [], []
        for subscriber in list(queue.takers):
            room = self._room(queue, subscriber)
            if room > 0:
                takers.append(subscriber)
                rooms.append(room)
                if len(takers) == most:
                    break
        return takers, rooms

    def _room(self, queue: BrokerQueue, subscriber: Subscriber) -> int:
        """How much of this queue a consumer may have in this round; a full one is out of turn."""
        room = subscriber.consumer.room()
        if room <= 0:
            queue.takers.pop(subscriber, None)
            return 0
        others = len(subscriber.queues)
        if others > 1:
            room = min(room, SHARED_MAX)
        return min(room, SERVED_MAX)

    def _serve_filtered(self, queue: BrokerQueue, run: int) -> int:
        """Deliver one round of a queue some of whose consumers do not want everything."""
        hands: dict[Subscriber, list[Letter]] = {}
        rooms: dict[Subscriber, int] = {}
        done, steps, unwanted = 0, LETTER_STEPS, set()
        for place in queue.waiting.head(run).places:
            letter = queue.letters[place]
            taker, wanted, cost = self._find_taker(queue, letter, rooms)
            steps += cost + LETTER_STEPS
            if taker is not None:
                rooms[taker] -= 1
                hands.setdefault(taker, []).append(letter)
                queue.takers.move_to_end(taker)
            elif wanted:
                break  # it waits for its consumer, and all behind it wait as well: order matters
            else:
                unwanted.add(place)
            done += 1
            if steps >= TURN_STEPS:
                break
        if done:
            self._awake[queue] = None
            rows = zip(*queue.waiting.take(done), strict=True)
            passed = [Row(*row) for row in rows if row[0] in unwanted]
            self._pass_over(queue, passed)
        return steps + self._hand_out(queue, list(hands.items()))

    def _find_taker(
        self, queue: BrokerQueue, letter: Letter, rooms: dict[Subscriber, int]
    ) -> tuple[Subscriber | None, bool, int]:
        """Find the next consumer in turn that wants a letter and has room.

        Return it or None, whether anybody wants the letter, and the steps.
        """
        wanted, steps = False, 0
        turn = list(queue.takers)
        for subscriber in (*turn, *(one for one in queue.subscribers if one not in queue.takers)):
            wants, cost = queue.subscribers[subscriber]
            steps += 1 if cost is None else cost(letter)
            if wants is None or wants(letter):
                wanted = True
                if subscriber not in rooms:
                    full = subscriber not in queue.takers
                    rooms[subscriber] = 0 if full else self._room(queue, subscriber)
                if rooms[subscriber] > 0:
                    return subscriber, True, steps
        return None, wanted, steps

    def _pass_over(self, queue: BrokerQueue, rows: Iterable[Row]) -> None:
        """Nobody wants these: they wait aside, until consumers or their filters change."""
        for row in rows:
            queue.passed.insert(row)
            if self._durable:
                self.memory -= queue.drop((row.place,))

    def _hand_out(
        self, queue: BrokerQueue, hands: Sequence[tuple[Subscriber, list[Letter]]]
    ) -> int:
        """Push letters that have left the queue to their consumers; return the steps."""
        # Whoever got the last letter is last in turn.
        for subscriber, _ in sorted(hands, key=lambda hand: hand[1][-1].place if hand[1] else -1):
            queue.takers.move_to_end(subscriber)
        steps = 0
        for subscriber, letters in hands:
            if letters:
                self._hold(queue, subscriber, letters)
        for subscriber, letters in hands:
            if letters:
                self._push(queue, subscriber, letters)
                steps += PUSH_STEPS + LETTER_STEPS * len(letters)
        return steps

    def _hold(self, queue: BrokerQueue, subscriber: Subscriber, letters: list[Letter]) -> None:
        """Note who has these letters from now on."""
        first = self._deliveries
        self._deliveries += len(letters)
        numbers = zip(range(first, self._deliveries), repeat(queue), strict=False)
        subscriber.held.update(zip([letter.place for letter in letters], numbers, strict=True))
        queue.given += len(letters)
        subscriber.queues.move_to_end(queue)

    def _push(self, queue: BrokerQueue, subscriber: Subscriber, letters: list[Letter]) -> None:
        """Let a consumer write letters; if that raises, it ends, and they go back (BK-02)."""
        consumer = subscriber.consumer
        if self._subscribers.get(consumer) is not subscriber:
            return  # it went while others were called, and the letters are back
        self.counters["broker_delivered"] += len(letters)
        try:
            acknowledges = consumer.push(queue.name, letters)
        except Exception as error:
            self._push_failed(queue, subscriber, letters, error)
            return
        if not acknowledges:
            held = subscriber.held
            places = [letter.place for letter in letters if letter.place in held]
            self._settle(subscriber, places, "broker_acknowledged")

    def _push_failed(
        self, queue: BrokerQueue, subscriber: Subscriber, letters: list[Letter], error: Exception
    ) -> None:
        self.counters["broker_failed_pushes"] += 1
        tried: set[int] = set()
        if len(letters) == 1:
            tried.add(letters[0].place)
        else:  # one of them is the cause: each is pushed alone from now on, and then it will show
            queue.alone.update(letter.place for letter in letters)
        if self._subscribers.pop(subscriber.consumer, None) is not None:
            self._lose(subscriber, queue.used, tried)
        subscriber.consumer.failed(error)

    # ── bodies that are not in memory ───────────────────────────────────────────────────────────

    def _want(self, queue: BrokerQueue) -> None:
        """Ask for the bodies of the next letters, unless they are being read."""
        if queue.loading is not None:
            return
        free = self._memory_max - self.memory - queue.in_memory
        left = min(READ_OCTETS, free)
        wanted: list[int] = []
        rows = queue.waiting.head(READ_PLACES)
        for place, octets in zip(rows.places, rows.weights, strict=True):
            if place not in queue.letters:
                left -= octets
                if wanted and left < 0:
                    break
                wanted.append(place)
        queue.loading = set(wanted)
        self._events.append(Wanted(queue.name, wanted))

    def loaded(
        self, name: QueueName, letters: Iterable[Letter], unreadable: Iterable[int] = ()
    ) -> None:
        """Take in the letters that :class:`.Wanted` has asked for, and deliver them.

        ``unreadable`` places are damaged: they are done with, and counted.  What is neither here
        nor there is asked for again.
        """
        queue = self._queues.get(name)
        if queue is None or queue.loading is None:
            return
        loading, queue.loading = queue.loading, None
        came = [letter for letter in letters if letter.place in loading]
        for letter in came:
            letter.tries = queue.tries.get(letter.place, 0)
        self.memory += queue.keep(came)
        for place in unreadable:
            row = queue.waiting.remove(place) if place in loading else None
            if row is not None:
                self.counters["broker_unreadable"] += 1
                self._gone_for_good(queue, [place], row.weight)
        self._awake[queue] = None
        self.go_on()

    def not_loaded(self, name: QueueName) -> None:
        """Note that reading failed; the same places are asked for again at once."""
        self.loaded(name, ())

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    @property
    def deadline(self) -> float | None:
        """When :meth:`advance` is to be called next, in seconds; None: not at all."""
        nexts = [at for at in (self._idles.next, self._ages.next) if at is not None]
        return min(nexts, default=None)

    def advance(self, now: float) -> None:
        """Look for letters that are too old, and for queues that nobody uses."""
        for name in self._ages.due(now):
            self._bury_aged(self._queues[name], now)
        for name in self._idles.due(now):
            queue = self._queues[name]
            if queue.idle and queue.used + self._idle <= now:
                self.forget(name)
            else:
                self._look_idle(queue, queue.used)
        self.go_on()

    def _look_idle(self, queue: BrokerQueue, since: float) -> None:
        if queue.idle and queue.name not in self._idles:
            self._idles.set(queue.name, since + self._idle)

    def _look_age(self, queue: BrokerQueue) -> None:
        firsts = [row for row in (queue.passed.first, queue.waiting.first) if row is not None]
        if firsts:
            self._ages.set(queue.name, min(firsts).second + self._age)

    def _bury_aged(self, queue: BrokerQueue, now: float) -> None:
        for _ in range(AGED_MAX):
            firsts = [row for row in (queue.passed.first, queue.waiting.first) if row is not None]
            if not firsts or min(firsts).second + self._age > now:
                break
            self._bury(queue, queue.oldest(1), AGE)
        self._look_age(queue)

    # ── dead letters ────────────────────────────────────────────────────────────────────────────

    def _bury(self, queue: BrokerQueue, rows: Rows, reason: str) -> None:
        """Move letters, which have left their queue, to its dead letters."""
        dead = self._queues.get(queue.name.dead)
        if dead is None:
            dead = self._make(queue.name.dead, queue.used)
        self.counters["broker_dead_letters"] += len(rows.places)
        if self._durable:
            self._note_dead(queue, rows.places, reason)
        self._move(queue, dead, rows, with_tries=True)

    def _note_dead(self, queue: BrokerQueue, places: list[int], reason: str) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, DeadLettered) and (last.name, last.reason) == (queue.name, reason):
            last.places.extend(places)
        else:
            self._events.append(DeadLettered(queue.name, list(places), reason))

    def _move(self, source: BrokerQueue, to: BrokerQueue, rows: Rows, *, with_tries: bool) -> None:
        """Let letters that have left ``source`` wait in ``to``, at their old places."""
        if source.loading:
            source.loading.difference_update(rows.places)
        source.alone.difference_update(rows.places)
        for row in map(Row, *rows):
            letter = source.letters.get(row.place)
            if letter is not None:
                self.memory -= source.drop((row.place,))
                if not self._durable or self._may_keep(to, row.weight):
                    self.memory += to.keep((letter,))
            tries = source.tries.pop(row.place, 0)
            if with_tries and tries:
                to.tries[row.place] = tries
            elif letter is not None:
                letter.tries = 0
            source.octets -= row.weight
            to.octets += row.weight
            to.waiting.insert(row)
        self._freed(source)
        self._look_idle(source, source.used)
        self._added(to)

    def _drop_oldest_dead(self, queue: BrokerQueue) -> bool:
        rows = queue.oldest(1)
        self.counters["broker_dead_dropped"] += len(rows.places)
        self._forget_rows(queue, rows)
        return bool(rows.places)

    def _forget_rows(self, queue: BrokerQueue, rows: Rows) -> None:
        """Letters that have left their queue are done with."""
        if queue.loading:
            queue.loading.difference_update(rows.places)
        self.memory -= queue.drop(rows.places)
        if rows.places:
            self._gone_for_good(queue, rows.places, sum(rows.weights))

    # ── a start ─────────────────────────────────────────────────────────────────────────────────

    def restore(
        self,
        name: QueueName,
        places: Sequence[int],
        weights: Sequence[int],
        arrived: Sequence[int],
        now: float,
        *,
        tries: Mapping[int, int] = NO_TRIES,
        kept: bool = False,
    ) -> None:
        """Make a queue as it was before the process began, whatever the limits say.

        ``places`` ascend, and none of them is done with; ``arrived`` are whole seconds.  Only a
        durable broker can do this: it asks for the bodies when they are wanted.
        """
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = BrokerQueue(name, kept, now)
            self._look_idle(queue, now)
        queue.kept = queue.kept or kept
        queue.waiting.extend(places, weights, arrived)
        queue.octets += sum(weights)
        queue.tries.update(tries)
        self._added(queue)

    # ── people ──────────────────────────────────────────────────────────────────────────────────

    def take_events(self) -> list[Event]:
        """Return what happened since the last call, in order; call it after every other method."""
        events, self._events = self._events, []
        return events

    def peek(self, name: QueueName, count: int) -> list[Waiting]:
        """Return the oldest letters that wait in a queue, at most ``count``."""
        queue = self._queues.get(name)
        return [] if queue is None else queue.peek(count)

    def purge(self, name: QueueName, most: int) -> int:
        """Drop at most ``most`` of the letters that wait, the oldest first; return their number.

        Call it again in another turn until it returns 0.
        """
        queue = self._queues.get(name)
        purged = 0
        while queue is not None and purged < most:
            rows = queue.oldest(most - purged)
            if not rows.places:
                break
            purged += len(rows.places)
            self._forget_rows(queue, rows)
        self.counters["broker_purged"] += purged
        return purged

    def requeue(self, name: QueueName, to: QueueName, most: int, now: float) -> int:
        """Move at most ``most`` letters that wait in one queue to another; return their number.

        They come to their old places, and have had no tries.  Mostly ``name`` is the queue of dead
        letters.  Raises TooManyQueues as :meth:`declare` does.
        """
        queue = self._queues.get(name)
        if queue is None or name == to:
            return 0
        self.declare(to, now)
        rows = queue.oldest(most)
        if rows.places:
            self.counters["broker_requeued"] += len(rows.places)
            if self._durable:
                self._events.append(Requeued(name, to, list(rows.places)))
            self._move(queue, self._queues[to], rows, with_tries=False)
            self.go_on()
        return len(rows.places)

    def queues(self) -> list[Figures]:
        """Return the figures of every queue, by name."""
        return [queue.figures(self._is_full(queue)) for _, queue in sorted(self._queues.items())]

    def snapshot(self) -> dict[str, int]:
        """Return figures for metrics: the counters, and what there is now."""
        queues = self._queues.values()
        given = sum(queue.given for queue in queues)
        return {
            **self.counters,
            "broker_queues": len(self._queues),
            "broker_waiting": sum(map(len, queues)) - given,
            "broker_given": given,
            "broker_octets": sum(queue.octets for queue in queues),
            "broker_memory": self.memory,
            "broker_full_queues": len(self._withholding),
            "broker_subscriptions": sum(len(one.queues) for one in self._subscribers.values()),
        }


__all__ = ["Broker"]
