"""The broker brings letters to consumers that compete for them.

It is pure: no sockets, no files, no clock.  Whoever owns it calls it when something happens, calls
:meth:`Broker.take_events` afterwards, :meth:`Broker.go_on` in the next turn while it is
``unfinished``, and :meth:`Broker.advance` at its ``deadline``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from .places import Row, Rows
from .queues import Batch, BrokerQueue, Subscriber, Wish
from .stock import Stock
from .terms import TRIES, Consumer, Letter, QueueName, Tried
from .turns import LETTER_STEPS, SERVED_MAX, ConsumerRaised, Plan, planned

TURN_STEPS: Final = 100_000
"""The broker does this many steps in one call, of about 0.1 µs each; the rest waits for a turn."""


class Broker(Stock):
    """Holds all queues of one server, or of several that share them, and knows their consumers.

    Waiting letters of a queue are delivered in the order of their places, each to one consumer, in
    turn among consumers that have room.  A letter that comes back is at its old place again, so it
    comes first.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """The arguments are those of :class:`.Stock`."""
        super().__init__(*arguments, **named)
        self._tries_max = self._limits.integer("tries")
        self._subscribers: dict[Consumer, Subscriber] = {}
        self._awake: OrderedDict[BrokerQueue, None] = OrderedDict()
        self._going = False
        self._batches = 0

    def _awaken(self, queue: BrokerQueue) -> None:
        self._awake[queue] = None

    # ── publishers ──────────────────────────────────────────────────────────────────────────────

    def publish(self, name: QueueName, letters: Sequence[Letter], now: float) -> None:
        """Add letters to a queue, in the order of their places, and deliver what can be.

        The letters of one call arrived in the same second.  They are kept whatever the limits say;
        ask :meth:`full` then, and let the senders to this queue wait.  A queue that was forgotten
        meanwhile is made again.
        """
        if not letters:
            return
        queue = self._found(name, now)
        queue.used = now
        queue.octets += sum([letter.octets for letter in letters])
        self.counters["broker_published"] += len(letters)
        if queue.takers and not queue.waiting and not self._going:
            letters = self._deliver_at_once(queue, letters)
        if letters:
            self._add(queue, letters)
            self._added(queue)
        self.go_on()

    def _deliver_at_once(self, queue: BrokerQueue, letters: Sequence[Letter]) -> Sequence[Letter]:
        """Deliver new letters that need not wait; return the others."""
        try:
            plan = planned(queue, list(letters[:SERVED_MAX]))
        except ConsumerRaised:
            return letters  # it is found again, when they wait
        queue.keep(letters[: plan.done])
        self._going = True
        try:
            self._carry_out(queue, plan)
        finally:
            self._going = False
        return letters[plan.done :]

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
        self._awaken(queue)

    def unsubscribe(self, consumer: Consumer, name: QueueName, now: float) -> bool:
        """Deliver nothing more of this queue; what the consumer holds stays with it.

        False if it was not subscribed.
        """
        subscriber, queue = self._subscribers.get(consumer), self._queues.get(name)
        if subscriber is None or queue is None or queue not in subscriber.queues:
            return False
        self._part(subscriber, queue, now)
        self.go_on()
        return True

    def _part(self, subscriber: Subscriber, queue: BrokerQueue, now: float) -> None:
        queue.leave(subscriber)
        queue.used = now
        self._awaken(queue)  # what waited for this consumer alone is wanted by nobody now
        self._look_idle(queue)

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
                self._awaken(queue)

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
        self._put_back(self._release(subscriber, list(subscriber.held)), tried)

    # ── what consumers say ──────────────────────────────────────────────────────────────────────

    def settle(self, consumer: Consumer, places: Iterable[int]) -> None:
        """Note that ``consumer`` has acknowledged these places: they are done with.

        A place that it does not hold is counted, and nothing happens.
        """
        self._answered(consumer, list(places), "broker_acknowledged")

    def reject(self, consumer: Consumer, places: Iterable[int], *, requeue: bool) -> None:
        """Note that ``consumer`` has rejected these places.

        With ``requeue`` they go back, and have had a try; else they are done with.  A place that it
        does not hold is counted, and nothing happens.
        """
        self._answered(consumer, list(places), None if requeue else "broker_rejected")

    def _answered(self, consumer: Consumer, places: list[int], counter: str | None) -> None:
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            self.counters["broker_strays"] += len(places)
            return
        released = self._release(subscriber, places)
        if counter is None:
            self._put_back(released, {place for some in released.values() for place in some})
        else:
            self._finish(released, counter)
        self._ready(subscriber)
        self.go_on()

    def _release(self, subscriber: Subscriber, places: list[int]) -> dict[Batch, list[int]]:
        """Let a consumer hold these places no longer; return them by batch.

        Those that it does not hold are counted.
        """
        release, count = subscriber.held.pop, 0
        released: dict[Batch, list[int]] = {}
        last, some = None, []
        for place in places:
            batch = release(place, None)
            if batch is None:
                continue
            if batch is not last:
                last, some = batch, released.setdefault(batch, [])
            some.append(place)
            count += 1
        if count < len(places):
            self.counters["broker_strays"] += len(places) - count
        for batch, some in released.items():
            if batch.number >= subscriber.latest[0]:
                subscriber.latest = max(subscriber.latest, (batch.number, max(some)))
        return released

    def _finish(self, released: Mapping[Batch, list[int]], counter: str) -> None:
        """These deliveries are done with."""
        for batch, places in released.items():
            self.counters[counter] += len(places)
            queue = batch.queue
            queue.in_flight -= len(places)
            self._done_with(queue, places, queue.drop(places))

    def _put_back(self, released: Mapping[Batch, list[int]], tried: set[int]) -> None:
        """These deliveries failed; the places in ``tried`` have had a try."""
        returned: dict[BrokerQueue, list[int]] = {}
        for batch, some in released.items():
            returned.setdefault(batch.queue, []).extend(some)
        for queue, places in returned.items():
            self.counters["broker_returned"] += len(places)
            queue.in_flight -= len(places)
            tries: dict[int, int] = {}
            dead: list[Row] = []
            for place in sorted(places):
                letter = queue.letters[place]
                letter.again = True
                row = Row(place, letter.octets, int(letter.arrived))
                if place in tried:
                    letter.tries = tries[place] = queue.tries.get(place, 0) + 1
                    if letter.tries >= self._tries_max and not queue.for_dead:
                        dead.append(row)
                        continue
                queue.waiting.insert(row)
            queue.tries.update(tries)
            if tries:
                self._events.append(Tried(queue.name, tries))
            if dead:
                self._bury(queue, Rows(*map(list, zip(*dead, strict=True))), TRIES)
            self._added(queue)

    # ── deliveries ──────────────────────────────────────────────────────────────────────────────

    @property
    def unfinished(self) -> bool:
        """Return whether more is left than one call may do: call :meth:`go_on` in the next turn."""
        return bool(self._awake or self._calls)

    def go_on(self, steps: int = TURN_STEPS) -> None:
        """Deliver what can be delivered, as far as ``steps`` of about 0.1 µs go (NB-07)."""
        if self._going or not (self._awake or self._calls):
            return  # somebody who was called calls back; the loop below continues with that
        self._going = True
        try:
            while steps > 0 and (self._awake or self._calls):
                if self._calls:
                    self._calls.popleft()()
                else:
                    queue, _ = self._awake.popitem(last=False)
                    steps -= self._serve(queue)
        finally:
            self._going = False

    def _serve(self, queue: BrokerQueue) -> int:
        """Deliver the next letters of a queue; return how many steps that was."""
        if not (queue.waiting and queue.takers):
            return 1
        letters = queue.ready_run(SERVED_MAX)
        if not letters:
            self._want(queue)
            return LETTER_STEPS
        try:
            plan = planned(queue, letters)
        except ConsumerRaised as raised:
            self._awaken(queue)
            self._fail(raised.subscriber, queue.used, set(), raised.error)
            return LETTER_STEPS
        if plan.done:
            self._awaken(queue)
            queue.waiting.skip(plan.done)
            self._carry_out(queue, plan)
        return plan.steps

    def _carry_out(self, queue: BrokerQueue, plan: Plan) -> None:
        """Push letters that have left the queue to their consumers."""
        for letter in plan.unwanted:  # they wait aside, until consumers or their filters change
            queue.passed.insert(Row(letter.place, letter.octets, int(letter.arrived)))
        if plan.unwanted and self._durable:
            queue.drop([letter.place for letter in plan.unwanted])
        for subscriber, letters in plan.hands:
            self._batches += 1
            batch, held = Batch(self._batches, queue), subscriber.held
            for letter in letters:
                held[letter.place] = batch
            subscriber.queues.move_to_end(queue)
            queue.takers.move_to_end(subscriber)
            queue.in_flight += len(letters)
        for subscriber, letters in plan.hands:
            self._push(queue, subscriber, letters)

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
            self._finish(self._release(subscriber, places), "broker_acknowledged")

    def _push_failed(
        self, queue: BrokerQueue, subscriber: Subscriber, letters: list[Letter], error: Exception
    ) -> None:
        places = {letter.place for letter in letters}
        if len(places) == 1:
            self._fail(subscriber, queue.used, places, error)
        else:  # one of them is the cause: each is pushed alone from now on, and then it shows
            queue.alone |= places
            self._fail(subscriber, queue.used, set(), error)

    def _fail(self, subscriber: Subscriber, now: float, tried: set[int], error: Exception) -> None:
        """A consumer has raised an exception: it ends."""
        self.counters["broker_failed_consumers"] += 1
        if self._subscribers.pop(subscriber.consumer, None) is not None:
            self._lose(subscriber, now, tried)
        self._calls.append(partial(subscriber.consumer.failed, error))
