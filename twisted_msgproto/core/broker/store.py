"""All queues of a broker: what they hold, their limits, their ages, and their dead letters.

Nothing here knows how messages are delivered: that is :mod:`.machine`, which owns what is here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Final

from ..deadlines import ManyDeadlines
from ..limits import Limits
from .message_table import MessageTable
from .queues import BrokerQueue, Memory, Row, Rows
from .terms import (
    DEAD_LETTER,
    LIMITS,
    WAIT,
    WHEN_FULL,
    Counters,
    Declared,
    Event,
    Figures,
    Forgotten,
    Moved,
    QueuedMessage,
    QueueFull,
    QueueName,
    Settled,
    TooManyQueues,
    Waiting,
    Wanted,
    second,
)

READ_MESSAGES: Final = 512

READ_BYTES: Final = 1 << 20
"""This much is read back for one queue at a time, or one message."""

RECLAIM_SECONDS: Final = 60.0
"""A queue unused for this long may be forgotten, where sending to it makes it again."""

SEARCH_SECONDS: Final = 1.0
"""After a search for an unused queue in vain, the next one is not made before this time."""

CLOCK_SECOND: Final = 946_684_800
"""The year 2000: clocks that are set know no earlier time."""

AGED_MAX: Final = 1000
"""One call finds this many messages of a queue too old; the deadline stays for the rest."""


class QueueStore:
    """The messages of all queues, waiting or in flight."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        durable: bool = False,
        when_full: str = WAIT,
        deliver: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        """``deliver`` ends what may make something deliverable, ``changed`` all other changes."""
        if when_full not in WHEN_FULL:
            raise ValueError(f"a full queue does one of {', '.join(WHEN_FULL)}, not {when_full!r}")
        limits = Limits.of(LIMITS) if limits is None else limits
        self.limits = limits
        self._messages_max = limits.integer("queue-messages")
        self._bytes_max = limits.integer("queue-bytes")
        self._age = limits["queue-age"]
        self._idle = limits["queue-idle"]
        self._dead_max = limits.integer("dead-letters")
        self.durable = durable
        self._when_full = when_full
        self._deliver = deliver
        self._changed = changed
        self.by_name: dict[QueueName, BrokerQueue] = {}
        self._counted = 0  # of them, without those of dead letters
        self._unclaimed: dict[str, float] = {}  # spaces → until when a search there is in vain
        self.events: list[Event] = []
        # Something of these may be deliverable, since they have changed.
        self.awake: OrderedDict[BrokerQueue, None] = OrderedDict()
        self._withholding: dict[BrokerQueue, None] = {}
        self.calls: deque[Callable[[], None]] = deque()  # of those who waited, and have room
        self._idles: ManyDeadlines[QueueName] = ManyDeadlines()
        self._ages: ManyDeadlines[QueueName] = ManyDeadlines()
        # Queues that wait for room to have messages read back, in turn, and those that had it.
        self.in_line: OrderedDict[BrokerQueue, None] = OrderedDict()
        self._read: OrderedDict[BrokerQueue, None] = OrderedDict()
        self.memory: Memory = Memory(limits.integer("broker-memory-bytes"))
        self.counters: Counters = Counters()

    # ── queues ──────────────────────────────────────────────────────────────────────────────────

    def declare(self, name: QueueName, now: float, *, kept: bool = False) -> None:
        """``kept`` queues are never forgotten.

        Raises TooManyQueues; so call it before anything to that queue is acknowledged.
        """
        self.needed(name, now, kept=kept)
        self._changed()

    def needed(self, name: QueueName, now: float, *, kept: bool = False) -> BrokerQueue:
        queue = self.by_name.get(name)
        if queue is None:
            allowed = self.limits.integer("broker-queues")
            if self._counted >= allowed:
                raise TooManyQueues(f"{name.name}: broker-queues allows {allowed}")
            queue = self._make(name, now)
        queue.kept = queue.kept or kept
        return queue

    def found(self, name: QueueName, now: float) -> BrokerQueue:
        """Return a queue, which is made if need be, however many there are."""
        queue = self.by_name.get(name)
        return self._make(name, now) if queue is None else queue

    def _make(self, name: QueueName, now: float) -> BrokerQueue:
        queue = self._new(name, now)
        self.events.append(Declared(name))
        self.look_idle(queue)
        return queue

    def _new(self, name: QueueName, now: float) -> BrokerQueue:
        queue = self.by_name[name] = BrokerQueue(name, self.memory, now)
        self._counted += not queue.for_dead
        return queue

    def knows(self, name: QueueName) -> bool:
        return name in self.by_name

    def forget(self, name: QueueName) -> bool:
        """Remove a queue that is empty and that nobody uses; False for any other."""
        forgotten = self._forget(name)
        self._changed()
        return forgotten

    def _forget(self, name: QueueName) -> bool:
        queue = self.by_name.get(name)
        if queue is None or queue.subscribers or queue.withheld or len(queue):
            return False
        queue.expect(0)
        self.in_line.pop(queue, None)
        self._read.pop(queue, None)
        del self.by_name[name]
        self._counted -= not queue.for_dead
        self._idles.clear(name)
        self._ages.clear(name)
        self.events.append(Forgotten(name))
        return True

    def reclaim(self, spaces: str, now: float) -> bool:
        """Forget the empty queue of ``spaces`` (what names begin with) that is unused longest.

        False if none is for :data:`RECLAIM_SECONDS`.  A search in vain is not repeated for
        :data:`SEARCH_SECONDS`: it looks at every queue, and a peer may ask again and again.
        """
        if now < self._unclaimed.get(spaces, now):
            return False
        unused = [
            queue
            for queue in self.by_name.values()
            if queue.idle
            and not queue.for_dead
            and queue.used + RECLAIM_SECONDS <= now
            and queue.name.space.startswith(spaces)
        ]
        if not unused:
            self._unclaimed[spaces] = now + SEARCH_SECONDS
            return False
        return self.forget(min(unused, key=lambda queue: queue.used).name)

    def restore(
        self,
        name: QueueName,
        message_ids: Sequence[int],
        weights: Sequence[int],
        arrived: Sequence[int],
        now: float,
        *,
        tries: MessageTable | None = None,
    ) -> None:
        """Make a queue as it was before the process began, whatever the limits say.

        ``message_ids`` ascend, and none of them is done with; ``arrived`` are whole seconds.
        """
        queue = self.by_name.get(name)
        if queue is None:
            queue = self._new(name, now)
        if self._age and now >= CLOCK_SECOND:
            # A clock that was not set yet said nothing about their age.
            arrived = [at if at >= CLOCK_SECOND else second(now) for at in arrived]
        queue.waiting.extend(message_ids, weights, arrived)
        queue.nbytes += sum(weights)
        if tries is not None:
            queue.tries.merge(tries)
        self.look_idle(queue)
        self.added(queue)
        self._changed()

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    # ── limits ──────────────────────────────────────────────────────────────────────────────────

    def _over(self, queue: BrokerQueue) -> str:
        """Return the limit above which senders to this queue wait; "" while there is room."""
        if not self.durable and self.memory.used > self.memory.limit:
            return "broker-memory-bytes"
        if self._when_full == WAIT and self._has_too_much(queue):
            return "queue-messages" if len(queue) > self._messages_max else "queue-bytes"
        return ""

    def _has_too_much(self, queue: BrokerQueue) -> bool:
        return len(queue) > self._messages_max or queue.nbytes > self._bytes_max

    def full(self, name: QueueName) -> bool:
        """Return whether its senders are to wait; what is in flight counts as well."""
        queue = self.by_name.get(name)
        return queue is not None and self._over(queue) != ""

    def overfull(self, name: QueueName, messages: int, nbytes: int) -> bool:
        """Return whether this much more would be more than twice what the queue may have."""
        queue, memory = self.by_name.get(name), self.memory
        if not self.durable and memory.used + nbytes > 2 * memory.limit:
            return True
        return (
            queue is not None
            and self._when_full == WAIT
            and (
                len(queue) + messages > 2 * self._messages_max
                or queue.nbytes + nbytes > 2 * self._bytes_max
            )
        )

    def when_room(self, name: QueueName, call: Callable[[], None]) -> None:
        """Call ``call`` once the queue is not full: at once, or later."""
        queue = self.by_name.get(name)
        limit = "" if queue is None else self._over(queue)
        if queue is None or not limit:
            call()
            return
        if not queue.withheld:
            self.events.append(QueueFull(name, limit))
            self._withholding[queue] = None
        queue.withheld[call] = None
        self._changed()

    def _freed(self, queue: BrokerQueue) -> None:
        # Without a log to read from, all queues together must fit into the memory.
        for one in (queue,) if self.durable else tuple(self._withholding):
            if one in self._withholding and not self._over(one):
                self.calls.extend(one.withheld)
                one.withheld.clear()
                del self._withholding[one]
                self.look_idle(one)

    # ── messages that come, and that are done with ──────────────────────────────────────────────

    def add(self, queue: BrokerQueue, messages: Sequence[QueuedMessage]) -> None:
        weights = [message.nbytes for message in messages]
        seconds = [second(messages[0].arrived)] * len(messages)
        queue.waiting.extend([message.message_id for message in messages], weights, seconds)
        if not self.durable or queue.may_keep(sum(weights)):
            queue.keep(messages)

    def added(self, queue: BrokerQueue) -> None:
        if queue.for_dead:
            while len(queue) > self._dead_max and self._drop_oldest(queue):
                self.counters.dead_dropped += 1
        elif self._when_full == DEAD_LETTER:
            while self._has_too_much(queue) and len(queue) > queue.in_flight:
                self.bury(queue, queue.take_oldest(1))
        if self._age and not queue.for_dead and queue.name not in self._ages:
            self._look_age(queue)
        if queue.takers:
            self.awake[queue] = None

    def done_with(self, queue: BrokerQueue, message_ids: list[int], nbytes: int) -> None:
        """Note that these are neither waiting nor in flight any more; the list is ours now."""
        queue.nbytes -= nbytes
        if queue.tries.count:
            queue.tries.discard(message_ids)
        if queue.alone:
            queue.alone.difference_update(message_ids)
        if queue.returned.count:
            queue.returned.discard(message_ids)
        events = self.events
        if events and isinstance(last := events[-1], Settled) and last.name is queue.name:
            last.message_ids.extend(message_ids)
        else:
            events.append(Settled(queue.name, message_ids))
        if self._withholding:
            self._freed(queue)
        if not queue.subscribers:
            self.look_idle(queue)

    def _drop_oldest(self, queue: BrokerQueue, most: int = 1) -> int:
        rows = queue.take_oldest(most)
        if rows.message_ids:
            if queue.loading:
                queue.loading.difference_update(rows.message_ids)
            queue.drop(rows.message_ids)
            self.done_with(queue, rows.message_ids, sum(rows.weights))
            self.awake[queue] = None
        return len(rows.weights)

    # ── dead letters ────────────────────────────────────────────────────────────────────────────

    def bury(self, queue: BrokerQueue, rows: Rows) -> None:
        self.counters.dead_letters += len(rows.message_ids)
        self._move(queue, self.found(queue.name.dead, queue.used), rows, with_tries=True)

    def _move(self, source: BrokerQueue, to: BrokerQueue, rows: Rows, *, with_tries: bool) -> None:
        last, moved = self.events[-1] if self.events else None, (source.name, to.name, with_tries)
        if isinstance(last, Moved) and (last.name, last.to, last.tries) == moved:
            last.message_ids.extend(rows.message_ids)
        else:
            self.events.append(Moved(source.name, to.name, list(rows.message_ids), with_tries))
        if source.loading:
            source.loading.difference_update(rows.message_ids)
        source.alone.difference_update(rows.message_ids)
        for row in map(Row, *rows):
            message = source.messages.get(row.message_id)
            tries = source.tries.number(row.message_id)
            source.tries.discard([row.message_id])
            if with_tries and tries:
                to.tries.insert(row.message_id, tries)
            if source.returned.pop(row.message_id) is not None:
                to.returned.insert(*row)
            if message is not None:
                message.tries = tries if with_tries else 0
                source.drop((row.message_id,))
                if not self.durable or to.may_keep(row.weight):
                    to.keep((message,))
            source.nbytes -= row.weight
            to.nbytes += row.weight
            to.waiting.insert(*row)
        self.awake[source] = None  # what waited behind these may be wanted
        self._freed(source)
        self.look_idle(source)
        self.added(to)

    # ── bodies that are not in memory ───────────────────────────────────────────────────────────

    def want(self, queue: BrokerQueue) -> None:
        if queue.loading is not None:
            return
        if self.in_line or not self.memory.has_room:
            self.in_line[queue] = None
        else:
            self._ask(queue)

    def _ask(self, queue: BrokerQueue) -> None:
        memory, expected = self.memory, 0
        left = memory.limit - memory.used - memory.expected - queue.in_memory
        left = min(READ_BYTES, left)
        wanted: list[int] = []
        rows = Rows(*queue.waiting.head(READ_MESSAGES))
        for message_id, nbytes in zip(rows.message_ids, rows.weights, strict=True):
            if message_id not in queue.messages:
                left -= nbytes
                if wanted and left < 0:
                    break
                wanted.append(message_id)
                expected += nbytes
        if not wanted:
            return  # what came back meanwhile stands first, and is in memory
        queue.loading = set(wanted)
        queue.expect(expected)
        self.events.append(Wanted(queue.name, wanted))

    def loaded(
        self, name: QueueName, messages: Iterable[QueuedMessage], unreadable: Iterable[int] = ()
    ) -> None:
        """``unreadable`` ones are done with; what is neither here nor there is asked for again."""
        queue = self.by_name.get(name)
        if queue is None or queue.loading is None:
            self._deliver()
            return
        loading, queue.loading = queue.loading, None
        queue.expect(0)
        came = [message for message in messages if message.message_id in loading]
        tried = queue.tries if queue.tries.count else None
        for message in came:
            message.tries = 0 if tried is None else tried.number(message.message_id)
            message.again = queue.returned.pop(message.message_id) is not None
        queue.keep_read(came)
        self._read[queue] = None
        self._read.move_to_end(queue)
        for message_id in unreadable:
            row = queue.waiting.pop(message_id) if message_id in loading else None
            if row is not None:
                self.counters.unreadable += 1
                self.done_with(queue, [message_id], Row(*row).weight)
        self.awake[queue] = None
        self._deliver()

    def read_on(self, has_room: Callable[[BrokerQueue], bool]) -> None:
        """Ask for the bodies of the queues in line, where a consumer ``has_room``.

        What was read for others and cannot be delivered leaves the memory for that: it would stay
        there for as long as their consumers have no room.  Queues that are awake keep it: they are
        about to be served.
        """
        memory, line = self.memory, self.in_line
        while line:
            if memory.used > memory.limit:
                for queue in [queue for queue in self._read if queue not in self.awake]:
                    del self._read[queue]
                    queue.drop_read()
                    if memory.used <= memory.limit:
                        break
            if not memory.has_room:
                return
            queue, _ = line.popitem(last=False)
            if queue.waiting.count and queue.loading is None and has_room(queue):
                self._ask(queue)

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    @property
    def deadline(self) -> float | None:
        nexts = [at for at in (self._idles.next, self._ages.next) if at is not None]
        return min(nexts, default=None)

    def advance(self, now: float) -> None:
        for name in self._ages.due(now):
            self._bury_aged(self.by_name[name], now)
        for name in self._idles.due(now):
            queue = self.by_name[name]
            if not queue.idle or queue.used + self._idle > now or not self._forget(name):
                self.look_idle(queue)
        self._deliver()

    def look_idle(self, queue: BrokerQueue) -> None:
        if queue.idle and queue.name not in self._idles:
            self._idles.set(queue.name, queue.used + self._idle)

    def _look_age(self, queue: BrokerQueue) -> None:
        first = queue.first
        if first is not None:
            self._ages.set(queue.name, first.second + self._age)

    def _bury_aged(self, queue: BrokerQueue, now: float) -> None:
        for _ in range(AGED_MAX):
            first = queue.first
            if first is None or first.second + self._age > now:
                break
            self.bury(queue, queue.take_oldest(1))
        self._look_age(queue)

    # ── people ──────────────────────────────────────────────────────────────────────────────────

    def peek(self, name: QueueName, count: int) -> list[Waiting]:
        queue = self.by_name.get(name)
        return [] if queue is None else queue.peek(count)

    def purge(self, name: QueueName, most: int) -> int:
        """The oldest go first; call it again in another turn until it returns 0."""
        queue = self.by_name.get(name)
        purged = 0 if queue is None else self._drop_oldest(queue, most)
        self.counters.purged += purged
        self._deliver()
        return purged

    def requeue(self, name: QueueName, to: QueueName, most: int, now: float) -> int:
        """They keep their ids, and have had no tries.  Raises TooManyQueues.

        Call it again in another turn until it returns 0.
        """
        queue = self.by_name.get(name)
        if queue is None or name == to:
            return 0
        target, rows = self.needed(to, now), queue.take_oldest(most)
        if rows.message_ids:
            self.counters.requeued += len(rows.message_ids)
            self._move(queue, target, rows, with_tries=False)
        self._deliver()
        return len(rows.message_ids)

    def queues(self) -> list[Figures]:
        return [queue.figures() for _, queue in sorted(self.by_name.items())]

    def snapshot(self) -> dict[str, int]:
        queues = self.by_name.values()
        in_flight = sum(queue.in_flight for queue in queues)
        return {
            **{f"broker_{name}": number for name, number in asdict(self.counters).items()},
            "broker_queues": len(self.by_name),
            "broker_waiting": sum(map(len, queues)) - in_flight,
            "broker_in_flight": in_flight,
            "broker_bytes": sum(queue.nbytes for queue in queues),
            "broker_memory_bytes": self.memory.used,
            "broker_full_queues": len(self._withholding),
            "broker_subscriptions": sum(len(queue.subscribers) for queue in queues),
        }
