"""The broker brings messages to consumers that compete for them.

It is pure: no sockets, no files, no clock.  Whoever owns it calls it when something happens.  It
calls ``changed`` then: its owner follows the events of its store, calls :meth:`Broker.go_on` in the
next turn while it is ``unfinished``, and has the store advance at its ``deadline``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from ..limits import Limits
from .queues import (
    MESSAGE_STEPS,
    SERVED_MAX,
    Batch,
    BrokerQueue,
    ConsumerRaised,
    Hands,
    Released,
    Row,
    Rows,
    Subscriber,
    Wish,
    planned,
    room_for,
)
from .store import QueueStore
from .terms import TRIES_COUNTED, WAIT, Consumer, QueuedMessage, QueueName, Tried

TURN_STEPS: Final = 100_000
"""The broker does this many steps in one call, of about 0.1 µs each; the rest waits for a turn."""

SOFT_SHARE: Final = 0.75
"""Above this share of its memory's limit a durable broker keeps no messages in flight there."""


class Broker:
    """All queues of one server, or of several that share them, and their consumers.

    Waiting messages of a queue are delivered in the order of their ids, each to one consumer, in
    turn among consumers that have room.  A message that comes back keeps its id, so it comes first.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        durable: bool = False,
        when_full: str = WAIT,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``durable``: messages can be read back, so not every body needs to stay in memory.

        ``when_full`` is one of :data:`.WHEN_FULL`; ValueError for another.  ``changed`` is called
        at the end of every verb, of the store as well.
        """
        self._changed = changed
        self.store: QueueStore = QueueStore(
            limits, durable=durable, when_full=when_full, deliver=self._deliver, changed=changed
        )
        self._tries_max = min(self.store.limits.integer("tries"), TRIES_COUNTED)
        self._subscribers: dict[Consumer, Subscriber] = {}
        self._going = False
        self._batches = 0
        # Those that have messages in memory, perhaps; who was delivered to first stands first.
        self._carrying: dict[Subscriber, None] = {}
        self._memory_soft = int(self.store.memory.limit * SOFT_SHARE)

    def _deliver(self) -> None:
        store = self.store
        if store.awake or store.calls or store.in_line:
            self.go_on()
        self._changed()

    # ── publishers ──────────────────────────────────────────────────────────────────────────────

    def publish(self, name: QueueName, messages: Sequence[QueuedMessage], now: float) -> None:
        """Messages of one call arrived in the same second; their ids ascend.

        They are kept whatever the limits say; ask ``store.full`` then, and let the senders wait.
        A queue that was forgotten meanwhile is made again.
        """
        if not messages:
            return
        store = self.store
        queue = store.by_name.get(name)
        if queue is None:
            queue = store.found(name, now)
        queue.used = now
        nbytes = 0
        for message in messages:
            nbytes += message.nbytes
        queue.nbytes += nbytes
        count = len(messages)
        store.counters.published += count
        done = 0
        if queue.takers and not queue.waiting.count and not self._going:
            done = self._deliver_at_once(
                queue, messages if count <= SERVED_MAX else messages[:SERVED_MAX]
            )
        if done < count:
            store.add(queue, messages[done:])
            store.added(queue)
        self._deliver()

    def _deliver_at_once(self, queue: BrokerQueue, messages: Sequence[QueuedMessage]) -> int:
        try:
            done, hands, unwanted, _ = planned(queue, messages)
        except ConsumerRaised:
            return 0  # it is found again, when they wait
        queue.keep(messages if done == len(messages) else messages[:done])
        self._going = True
        try:
            self._carry_out(queue, hands, unwanted)
        finally:
            self._going = False
        return done

    # ── consumers ───────────────────────────────────────────────────────────────────────────────

    def subscribe(
        self,
        consumer: Consumer,
        name: QueueName,
        now: float,
        wants: Callable[[QueuedMessage], bool] | None = None,
        cost: Callable[[QueuedMessage], int] | None = None,
    ) -> None:
        """``cost`` is what one call of ``wants`` costs, in steps of about 0.1 µs.

        A second subscription of the same consumer replaces the first one.  Nothing is delivered
        before :meth:`go_on`.  Raises TooManyQueues.
        """
        queue = self.store.needed(name, now)
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            subscriber = self._subscribers[consumer] = Subscriber(consumer)
        queue.join(subscriber, Wish(wants, cost))
        queue.used = now
        self.store.awake[queue] = None
        self._changed()

    def unsubscribe(self, consumer: Consumer, name: QueueName, now: float) -> bool:
        """What the consumer holds stays with it; False if it was not subscribed."""
        subscriber, queue = self._subscribers.get(consumer), self.store.by_name.get(name)
        if subscriber is None or queue is None or queue not in subscriber.queues:
            return False
        self._part(subscriber, queue, now)
        self._deliver()
        return True

    def _part(self, subscriber: Subscriber, queue: BrokerQueue, now: float) -> None:
        queue.leave(subscriber)
        queue.used = now
        # What waited for this consumer alone is wanted by nobody now.
        self.store.awake[queue] = None
        self.store.look_idle(queue)

    def ready(self, consumer: Consumer) -> None:
        """Deliver what waits, because ``consumer`` may have room again."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is not None:
            self._ready(subscriber)

    def _ready(self, subscriber: Subscriber) -> None:
        for queue in subscriber.queues:
            queue.takers[subscriber] = None
            if queue.waiting.count:
                self.store.awake[queue] = None
        self._deliver()

    def gone(self, consumer: Consumer, now: float, *, orderly: bool = False) -> None:
        """What it has probably looked at has had a try then, unless it leaves ``orderly``."""
        subscriber = self._subscribers.pop(consumer, None)
        if subscriber is not None:
            self._lose(subscriber, now, set() if orderly else subscriber.seen())
            self._deliver()

    def _lose(self, subscriber: Subscriber, now: float, tried: set[int]) -> None:
        self._carrying.pop(subscriber, None)
        for queue in list(subscriber.queues):
            self._part(subscriber, queue, now)
        self._put_back(self._release(subscriber, list(subscriber.unsettled)), tried)

    # ── what consumers say ──────────────────────────────────────────────────────────────────────

    def settle(self, consumer: Consumer, message_ids: Iterable[int]) -> None:
        """An id that ``consumer`` does not hold is counted, and nothing happens."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            self._gone_astray(message_ids)
            return
        self._finish(self._release(subscriber, message_ids))
        self._ready(subscriber)

    def reject(self, consumer: Consumer, message_ids: Iterable[int], *, requeue: bool) -> None:
        """With ``requeue`` they go back, and have had a try; else they are done with."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            self._gone_astray(message_ids)
            return
        released = self._release(subscriber, message_ids)
        if requeue:
            self._put_back(released, {message_id for _, some in released for message_id in some})
        else:
            self._finish(released, rejected=True)
        self._ready(subscriber)

    def _gone_astray(self, message_ids: Iterable[int]) -> None:
        self.store.counters.strays += len(list(message_ids))

    def _release(self, subscriber: Subscriber, message_ids: Iterable[int]) -> Released:
        release, strays = subscriber.unsettled.pop, 0
        released: Released = []
        last: Batch | None = None
        some: list[int] = []
        for message_id in message_ids:
            batch = release(message_id, None)
            if batch is None:
                strays += 1
            elif batch is last:
                some.append(message_id)
            else:
                last, some = batch, [message_id]
                released.append((batch, some))
        if strays:
            self.store.counters.strays += strays
        for (number, _), some in released:
            latest = number, some[0] if len(some) == 1 else max(some)
            if latest > subscriber.latest:
                subscriber.latest = latest
        return released

    def _finish(self, released: Released, *, rejected: bool = False) -> None:
        for (_, queue), message_ids in released:
            count = len(message_ids)
            if rejected:
                self.store.counters.rejected += count
            else:
                self.store.counters.acknowledged += count
            queue.in_flight -= count
            self.store.done_with(queue, message_ids, queue.landed(message_ids))

    def _put_back(self, released: Released, tried: set[int]) -> None:
        store = self.store
        returned: dict[BrokerQueue, list[int]] = {}
        for (_, queue), some in released:
            returned.setdefault(queue, []).extend(some)
        for queue, message_ids in returned.items():
            self.store.counters.returned += len(message_ids)
            queue.in_flight -= len(message_ids)
            tries: dict[int, int] = {}
            dead: list[Row] = []
            for message_id in sorted(message_ids):
                message = queue.messages.get(message_id)
                if message is None:
                    gone = queue.away.pop(message_id)
                    assert gone is not None
                    row = Row(*gone)
                    queue.returned.insert(*row)
                else:
                    message.again = True
                    if store.durable and not store.memory.has_room:
                        queue.drop_waiting((message,))
                    row = Row.of(message)
                if message_id in tried:
                    tries[message_id] = min(queue.tries.number(message_id) + 1, TRIES_COUNTED)
                    if message is not None:
                        message.tries = tries[message_id]
                    if tries[message_id] >= self._tries_max and not queue.for_dead:
                        dead.append(row)
                        continue
                queue.waiting.insert(*row)
            if tries:
                queue.tries.extend(list(tries), list(tries.values()))
                store.events.append(Tried(queue.name, tries))
            if dead:
                store.bury(queue, Rows(*map(list, zip(*dead, strict=True))))
            store.added(queue)

    # ── deliveries ──────────────────────────────────────────────────────────────────────────────

    @property
    def unfinished(self) -> bool:
        """Return whether more is left than one call may do: call :meth:`go_on` in the next turn."""
        return bool(self.store.awake or self.store.calls)

    def go_on(self, steps: int = TURN_STEPS) -> None:
        """Deliver what can be delivered, as far as ``steps`` of about 0.1 µs go."""
        store = self.store
        if self._going:
            return  # somebody who was called calls back; the loop below continues with that
        self._going = True
        try:
            while steps > 0 and (store.awake or store.calls):
                if store.calls:
                    store.calls.popleft()()
                else:
                    queue, _ = store.awake.popitem(last=False)
                    steps -= self._serve(queue)
            if store.in_line:
                store.read_on(self._has_room)
        finally:
            self._going = False

    def _serve(self, queue: BrokerQueue) -> int:
        if not (queue.waiting.count and queue.takers):
            return 1
        try:
            room = room_for(queue)
            messages = queue.ready_run(room)
            if room and not messages:
                self.store.want(queue)
            if not messages:
                return MESSAGE_STEPS
            done, hands, unwanted, steps = planned(queue, messages)
        except ConsumerRaised as raised:
            self.store.awake[queue] = None
            self._fail(raised.subscriber, queue.used, set(), raised.error)
            return MESSAGE_STEPS
        if done:
            self.store.awake[queue] = None
            queue.waiting.skip(done)
            self._carry_out(queue, hands, unwanted)
        return steps

    def _has_room(self, queue: BrokerQueue) -> bool:
        try:
            return room_for(queue) > 0
        except ConsumerRaised:
            return True  # it raises again when the queue is served

    def _carry_out(
        self, queue: BrokerQueue, hands: Hands, unwanted: Sequence[QueuedMessage]
    ) -> None:
        for message in unwanted:  # they wait aside, until consumers or their filters change
            queue.passed.insert(*Row.of(message))
        if unwanted and self.store.durable:
            queue.drop([message.message_id for message in unwanted])
        for subscriber, messages in hands:
            self._batches += 1
            batch, unsettled = (self._batches, queue), subscriber.unsettled
            for message in messages:
                unsettled[message.message_id] = batch
            subscriber.queues.move_to_end(queue)
            queue.takers.move_to_end(subscriber)
            queue.in_flight += len(messages)
        for subscriber, messages in hands:
            if self._subscribers.get(subscriber.consumer) is not subscriber:
                continue  # it went while others were called, and the messages are back
            self.store.counters.delivered += len(messages)
            try:
                acknowledges = subscriber.consumer.push(queue.name, messages)
            except Exception as error:
                tried = {message.message_id for message in messages}
                if len(tried) > 1:  # each is pushed alone from now on: then the cause shows
                    queue.alone |= tried
                    tried = set()
                self._fail(subscriber, queue.used, tried, error)
                continue
            if not acknowledges:
                unsettled = subscriber.unsettled
                message_ids = [
                    message.message_id for message in messages if message.message_id in unsettled
                ]
                self._finish(self._release(subscriber, message_ids))
            elif self.store.durable:
                self._carrying[subscriber] = None
        memory = self.store.memory
        if self.store.durable and memory.used + memory.expected > self._memory_soft:
            self._make_room(len(hands))

    def _make_room(self, least: int) -> None:
        """Of ``least`` consumers, and of more above the limit: some may acknowledge nothing."""
        carrying, memory = self._carrying, self.store.memory
        while carrying and (least > 0 or not memory.has_room):
            least -= 1
            subscriber = next(iter(carrying))
            del carrying[subscriber]
            lots: dict[BrokerQueue, list[QueuedMessage]] = {}
            for message_id, (_, queue) in subscriber.unsettled.items():
                message = queue.messages.get(message_id)
                if message is not None:
                    lots.setdefault(queue, []).append(message)
            for queue, messages in lots.items():
                queue.send_away(messages)

    def _fail(self, subscriber: Subscriber, now: float, tried: set[int], error: Exception) -> None:
        self.store.counters.failed_consumers += 1
        if self._subscribers.pop(subscriber.consumer, None) is not None:
            self._lose(subscriber, now, tried)
        self.store.calls.append(partial(subscriber.consumer.failed, error))
