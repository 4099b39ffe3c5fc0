"""One queue of the broker: what waits, what is in memory, and who consumes it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .places import Places, Rows
from .terms import DEAD, Consumer, Figures, Letter, QueueName, Waiting


class Wish(NamedTuple):
    """Says what a consumer wants of a queue; None: everything.

    ``cost`` is what it costs to ask ``wants``, in steps of about 0.1 µs; None: one step.
    """

    wants: Callable[[Letter], bool] | None = None
    cost: Callable[[Letter], int] | None = None


class Subscriber:
    """Holds what the broker knows of one consumer.

    Attributes:
        queues: what it consumes, the queue that had its last turn longest ago first.
        held: place → number of its delivery and queue, of all letters that it has to acknowledge.
        latest: the highest number of a delivery that it has acknowledged or rejected.
    """

    __slots__ = ("consumer", "held", "latest", "queues")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.queues: OrderedDict[BrokerQueue, Wish] = OrderedDict()
        self.held: dict[int, tuple[int, BrokerQueue]] = {}
        self.latest = -1

    def seen(self) -> set[int]:
        """Return the places that it has probably looked at (BK-07).

        These are the letters delivered before the latest one that it acknowledged or rejected, and
        the one after: the one that it was busy with.  What is behind was fetched ahead.
        """
        places = set()
        for place, (number, _) in self.held.items():
            places.add(place)
            if number > self.latest:
                break
        return places


class BrokerQueue:
    """Holds the letters of one queue, waiting or given, and its consumers.

    Attributes:
        name: its name.
        kept: it stays when nobody uses it.
        waiting: the places of letters that wait.
        passed: the places of letters that wait, and that no consumer wants.
        letters: place → letter, of those that are in memory, waiting or given.
        tries: place → tries, where there was one.
        alone: places that are delivered one at a time, because a push with them has failed.
        loading: places that are being read; None: nothing is.
        subscribers: its consumers.
        filters: this many of them do not want everything.
        takers: those of them that may have room, in turn.
        given: this many letters are with consumers.
        octets: the weight of everything, waiting or given.
        in_memory: the weight of ``letters``.
        used: when somebody published to it or left it last.
        withheld: what to call when there is room again.
    """

    __slots__ = (
        "alone",
        "filters",
        "given",
        "in_memory",
        "kept",
        "letters",
        "loading",
        "name",
        "octets",
        "passed",
        "subscribers",
        "takers",
        "tries",
        "used",
        "waiting",
        "withheld",
    )

    def __init__(self, name: QueueName, kept: bool, now: float) -> None:
        self.name = name
        self.kept = kept
        self.waiting = Places()
        self.passed = Places()
        self.letters: dict[int, Letter] = {}
        self.tries: dict[int, int] = {}
        self.alone: set[int] = set()
        self.loading: set[int] | None = None
        self.subscribers: dict[Subscriber, Wish] = {}
        self.filters = 0
        self.takers: OrderedDict[Subscriber, None] = OrderedDict()
        self.given = 0
        self.octets = 0
        self.in_memory = 0
        self.used = now
        self.withheld: dict[Callable[[], None], None] = {}

    def __len__(self) -> int:
        """Return how many letters it has, waiting or given."""
        return len(self.waiting) + len(self.passed) + self.given

    @property
    def for_dead(self) -> bool:
        """Whether it is a queue of dead letters; those have none of their own."""
        return self.name.name.endswith(DEAD)

    @property
    def idle(self) -> bool:
        """Whether nobody uses it."""
        return not (self.kept or self.subscribers or len(self))

    # ── letters ─────────────────────────────────────────────────────────────────────────────────

    def keep(self, letters: Iterable[Letter]) -> int:
        """Hold these in memory; return their weight."""
        octets = 0
        for letter in letters:
            self.letters[letter.place] = letter
            octets += letter.octets
        self.in_memory += octets
        return octets

    def drop(self, places: Iterable[int]) -> int:
        """Hold these in memory no longer; return what they weighed there."""
        octets = 0
        for place in places:
            letter = self.letters.pop(place, None)
            if letter is not None:
                octets += letter.octets
        self.in_memory -= octets
        return octets

    def ready_run(self, most: int) -> int:
        """Return how many letters at the front can be delivered together, at most ``most``."""
        most = min(most, len(self.waiting))
        letters, alone = self.letters, self.alone
        if not alone and len(letters) == len(self):
            return most
        for index, place in enumerate(self.waiting.head(most).places):
            if place not in letters:
                return index
            if place in alone:
                return max(index, 1)
        return most

    def oldest(self, most: int) -> Rows:
        """Remove and return at most ``most`` of the oldest letters that wait."""
        passed, waiting = self.passed.first, self.waiting.first
        if passed is not None and (waiting is None or passed.place < waiting.place):
            return self.passed.take(1 if waiting is not None else most)
        return self.waiting.take(most if passed is None else 1)

    def reconsider(self) -> None:
        """Let what nobody wanted wait again, because somebody may want it now."""
        if self.passed:
            self.waiting.prepend(self.passed)

    # ── consumers ───────────────────────────────────────────────────────────────────────────────

    def join(self, subscriber: Subscriber, wish: Wish) -> None:
        """Add a consumer, or change what it wants."""
        if subscriber in self.subscribers:
            self.leave(subscriber)
        self.filters += wish.wants is not None
        self.subscribers[subscriber] = wish
        subscriber.queues[self] = wish
        self.takers[subscriber] = None
        self.reconsider()

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a consumer; what it holds stays with it."""
        self.filters -= self.subscribers.pop(subscriber).wants is not None
        del subscriber.queues[self]
        self.takers.pop(subscriber, None)

    # ── people ──────────────────────────────────────────────────────────────────────────────────

    def peek(self, count: int) -> list[Waiting]:
        """Return the oldest letters that wait."""
        found = []
        for places in (self.passed, self.waiting):
            found += list(zip(*places.head(count), strict=True))
        return [
            Waiting(place, octets, second, self.tries.get(place, 0), self.letters.get(place))
            for place, octets, second in sorted(found)[:count]
        ]

    def figures(self, full: bool) -> Figures:
        """Return what people want to know of it."""
        firsts = [row for row in (self.passed.first, self.waiting.first) if row is not None]
        return Figures(
            name=self.name,
            kept=self.kept,
            waiting=len(self) - self.given,
            given=self.given,
            octets=self.octets,
            consumers=len(self.subscribers),
            oldest=min(firsts).second if firsts else None,
            full=full,
        )


def deal(letters: Sequence[Letter], rooms: Sequence[int]) -> list[list[Letter]]:
    """Deal letters one by one, in turn, to as many hands as there are rooms; none gets more.

    ``rooms`` are above 0, and together not below the number of letters.
    """
    if len(rooms) == 1:
        return [list(letters)]
    hands: list[list[Letter]] = [[] for _ in rooms]
    start = 0
    while start < len(letters):
        open_hands = [
            (hand, room - len(hand))
            for hand, room in zip(hands, rooms, strict=True)
            if len(hand) < room
        ]
        turns = min(left for _, left in open_hands)
        end = min(start + turns * len(open_hands), len(letters))
        for number, (hand, _) in enumerate(open_hands):
            hand += letters[start + number : end : len(open_hands)]
        start = end
    return hands
