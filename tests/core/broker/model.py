"""The specification: a list for each queue, and each letter in a state of the table.

:class:`Watched` is a broker together with everything around it: the letters on disk, what the
durable half has written, consumers, and the specification.  Each verb is followed by
:meth:`Watched.check`, and :meth:`Watched.crash` is possible at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.core.broker.world import (
    LETTER,
    Acknowledged,
    Buried,
    Delivered,
    Dropped,
    LetterState,
    Refused,
    Returned,
)
from tests.core.broker.world import Requeued as Moved
from tests.core.broker.world import tries as told_tries
from tests.sim.world import Violation
from twisted_msgproto.core.broker import (
    LIMITS,
    Broker,
    DeadLettered,
    Declared,
    Event,
    Forgotten,
    QueuedMessage,
    QueueName,
    Requeued,
    Settled,
    Tried,
    Wanted,
    weight,
)
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import Machine

START = 1_000_000.0


class Story:
    """What the specification knows of one letter."""

    def __init__(self, letter: QueuedMessage, queue: QueueName) -> None:
        self.letter = letter
        self.queue = queue
        self.state = Machine(LETTER, LetterState.WAITING)
        self.tries = 0
        self.delivered = 0

    def step(self, event: type) -> None:
        if not self.state.try_step(event):
            raise Violation(f"place {self.letter.place}: {self.state.refusal(event)}")

    @property
    def waits(self) -> bool:
        return self.state.state is LetterState.WAITING


@dataclass(eq=False)
class Peer:
    """A consumer which acknowledges or does not, stalls, and whose push may raise."""

    watched: Watched
    number: int
    window: int
    acknowledges: bool = True
    stalled: bool = False
    raising: Callable[[Sequence[QueuedMessage]], bool] = lambda letters: False
    filters: dict[QueueName, Callable[[QueuedMessage], bool] | None] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    """All that was delivered and not answered, or answered after something older."""
    held: set[int] = field(default_factory=set)
    latest: int = -1
    """The index in ``order`` of the last one that was answered."""

    def room(self) -> int:
        return 0 if self.stalled else self.window - len(self.held)

    def push(self, queue: QueueName, letters: Sequence[QueuedMessage]) -> bool:
        if not 0 < len(letters) <= self.room():
            raise Violation(f"{len(letters)} letters for room of {self.room()}")
        places = [letter.place for letter in letters]
        if places != sorted(places):
            raise Violation(f"out of order in one push: {places}")
        for place in places:
            self.watched.delivered(self, queue, place)
        if self.raising(letters):
            self.watched.failing(self, set(places))
            raise RuntimeError("cannot be encoded")
        if self.acknowledges:
            self.order += places
            self.held.update(places)
        else:
            for place in places:
                self.watched.finished(place, Acknowledged)
        return self.acknowledges

    def failed(self, error: Exception) -> None:
        if isinstance(error, Violation):
            raise error
        self.watched.failed(self)

    def answer(self, places: Sequence[int]) -> list[int]:
        """Note that these were answered; return those which it holds."""
        held = [place for place in dict.fromkeys(places) if place in self.held]
        self.held.difference_update(held)
        if held:
            # Later deliveries of a place stand behind its earlier ones.
            positions = [len(self.order) - 1 - self.order[::-1].index(place) for place in held]
            self.latest = max(self.latest, *positions)
        return held

    def seen(self) -> set[int]:
        """What it has looked at and not answered: up to the first behind the latest answer."""
        last = {place: index for index, place in enumerate(self.order)}
        seen = set()
        for place in sorted(self.held, key=last.__getitem__):
            seen.add(place)
            if last[place] > self.latest:
                break
        return seen


class Watched:
    """A broker, its surroundings, and its specification.

    Attributes:
        disk: every letter published, by place: the log.
        stories: what became of each.
        written: events which the durable half has written, and so knows after a crash.
        pending: events which it has not written yet.
        wanted: queues whose bodies are to be read, and the places.
    """

    def __init__(self, *, durable: bool = True, when_full: str = "wait", **limits: float) -> None:
        changes = {name.replace("_", "-"): value for name, value in limits.items()}
        self.limits = Limits.of(LIMITS).replace(changes)
        self.durable = durable
        self.when_full = when_full
        self.now = START
        self.disk: dict[int, QueuedMessage] = {}
        self.first_queue: dict[int, QueueName] = {}  # an envelope tells it
        self.stories: dict[int, Story] = {}
        self.written: list[Event] = []
        self.pending: list[Event] = []
        self.wanted: list[Wanted] = []
        self.peers: list[Peer] = []
        self.untold: list[Peer] = []  # a push of theirs has raised, and they were not told so
        self.fresh: set[int] = set()  # came or came back during this step
        self.given: list[tuple[QueueName, int]] = []  # delivered during this step
        self.senders: dict[int, QueueName] = {}  # the last place of each that waits for room
        self.place = 0
        self.connected = 0
        self.broker = self.made()

    def made(self) -> Broker:
        return Broker(self.limits, durable=self.durable, when_full=self.when_full)

    # ── what consumers see ──────────────────────────────────────────────────────────────────────

    def delivered(self, peer: Peer, queue: QueueName, place: int) -> None:
        self.follow(self.broker.store.take_events())
        story = self.stories[place]
        if story.queue != queue:
            raise Violation(f"place {place} of {story.queue} was delivered from {queue}")
        wants = peer.filters.get(queue)
        if queue not in peer.filters or (wants is not None and not wants(story.letter)):
            raise Violation(f"place {place} went to a consumer that does not want it")
        story.step(Delivered)
        story.delivered += 1
        self.given.append((queue, place))

    def finished(self, place: int, event: type) -> None:
        self.stories[place].step(event)

    def failing(self, peer: Peer, places: set[int]) -> None:
        """A push raises: all that this consumer has goes back, and a letter alone has had a try."""
        self.peers.remove(peer)
        self.untold.append(peer)
        self.back(peer.held | places, places if len(places) == 1 else set())
        peer.held = set()

    def failed(self, peer: Peer) -> None:
        """The broker says to a consumer that its push has raised."""
        self.untold.remove(peer)

    def back(self, places: set[int], tried: set[int]) -> None:
        """These came back; the letters in ``tried`` have had a try."""
        most = self.limits.integer("tries")
        for place in sorted(places):
            story = self.stories[place]
            if place in tried:
                story.tries += 1
            dead = story.tries >= most and place in tried and story.queue != story.queue.dead
            story.step(Buried if dead else Returned)
            if dead:
                story.queue = story.queue.dead
            self.fresh.add(place)

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def publish(self, queue: QueueName, count: int, gap: int = 1) -> None:
        letters = []
        for _ in range(count):
            self.place += gap
            body = b"%d" % self.place
            letter = QueuedMessage(self.place, weight(b"", body), b"", body, self.now)
            self.disk[self.place] = letter
            self.stories[self.place] = Story(letter, queue)
            self.fresh.add(self.place)
            self.first_queue[self.place] = queue
            letters.append(letter)
        self.broker.publish(queue, letters, self.now)
        sender = self.place
        self.senders[sender] = queue
        self.broker.store.when_room(queue, lambda: self.senders.__delitem__(sender))
        self.check()

    def connect(self, window: int, acknowledges: bool = True) -> Peer:
        self.connected += 1
        peer = Peer(self, self.connected, window, acknowledges)
        self.peers.append(peer)
        return peer

    def subscribe(
        self, peer: Peer, queue: QueueName, wants: Callable[[QueuedMessage], bool] | None = None
    ) -> None:
        peer.filters[queue] = wants
        self.broker.subscribe(peer, queue, self.now, wants)
        self.check()

    def unsubscribe(self, peer: Peer, queue: QueueName) -> None:
        peer.filters.pop(queue, None)
        self.broker.unsubscribe(peer, queue, self.now)
        self.check()

    def settle(self, peer: Peer, places: Sequence[int]) -> None:
        for place in peer.answer(places):
            self.finished(place, Acknowledged)
        self.broker.settle(peer, places)
        self.check()

    def reject(self, peer: Peer, places: Sequence[int], requeue: bool) -> None:
        held = peer.answer(places)
        if requeue:
            self.back(set(held), set(held))
        else:
            for place in held:
                self.finished(place, Refused)
        self.broker.reject(peer, places, requeue=requeue)
        self.check()

    def stall(self, peer: Peer, stalled: bool) -> None:
        peer.stalled = stalled
        if not stalled:
            self.broker.ready(peer)
        self.check()

    def lose(self, peer: Peer, orderly: bool) -> None:
        self.peers.remove(peer)
        self.back(peer.held, set() if orderly else peer.seen())
        peer.held = set()
        self.broker.gone(peer, self.now, orderly=orderly)
        self.check()

    def purge(self, queue: QueueName, most: int) -> None:
        self.broker.store.purge(queue, most)
        self.check()

    def requeue(self, queue: QueueName, to: QueueName, most: int) -> None:
        self.broker.store.requeue(queue, to, most, self.now)
        self.check()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        deadline = self.broker.store.deadline
        if deadline is not None and deadline <= self.now:
            self.broker.store.advance(self.now)
        self.check()

    def read(self, part: int = 1, *, damaged: bool = False, failed: bool = False) -> None:
        """Answer what is wanted: one of ``part`` places, the rest comes later."""
        wanted, self.wanted = self.wanted, []
        for event in wanted:
            places = event.places[::part]
            if failed:
                self.broker.store.not_loaded(event.name)
            elif damaged:
                self.broker.store.loaded(event.name, self._letters(places[1:]), places[:1])
            else:
                self.broker.store.loaded(event.name, self._letters(places))
        self.check()

    def _letters(self, places: Sequence[int]) -> list[QueuedMessage]:
        """Fresh objects, as whoever reads the log makes them."""
        letters = [self.disk[place] for place in places]
        return [QueuedMessage(one.place, one.nbytes, b"", one.body, one.arrived) for one in letters]

    # ── the durable half, and crashes ───────────────────────────────────────────────────────────

    def write(self, count: int | None = None) -> None:
        """The durable half writes so many events, or all."""
        count = len(self.pending) if count is None else count
        self.written += self.pending[:count]
        del self.pending[:count]

    def crash(self) -> None:
        """The process ends; the next one has the log, and what was written."""
        settled: set[int] = set()
        tries: dict[int, int] = {}
        moved: dict[int, QueueName] = {}
        declared: dict[QueueName, bool] = {}
        for event in self.written:
            match event:
                case Declared(name, kept):
                    declared[name] = kept
                case Forgotten(name):
                    declared.pop(name, None)
                case Settled(_, places):
                    settled.update(places)
                case Tried(_, counts):
                    tries.update(counts)
                case DeadLettered(name, places, _):
                    moved.update(dict.fromkeys(places, name.dead))
                case Requeued(_, to, places):
                    moved.update(dict.fromkeys(places, to))
                    for place in places:
                        tries.pop(place, None)
        self.pending.clear()
        self.wanted.clear()
        self.peers.clear()
        self.senders.clear()
        self.fresh.clear()
        self.given.clear()
        self.broker = self.made()
        queues: dict[QueueName, list[int]] = {name: [] for name in declared}
        stories = {}
        for place, letter in self.disk.items():
            first = self.first_queue[place]
            story = stories[place] = Story(letter, moved.get(place, first))
            story.delivered = self.stories[place].delivered
            if place in settled:
                story.state.state = LetterState.DONE
                if self.stories[place].state.state is not LetterState.DONE:
                    raise Violation(f"place {place} was written as done with, and is not")
                continue
            story.tries = tries.get(place, 0)
            queues.setdefault(story.queue, []).append(place)
        self.stories = stories
        for name, places in queues.items():
            self.broker.store.restore(
                name,
                sorted(places),
                [self.disk[place].nbytes for place in sorted(places)],
                [int(self.disk[place].arrived) for place in sorted(places)],
                self.now,
                tries=told_tries({place: tries[place] for place in places if place in tries}),
                kept=declared.get(name, False),
            )
            self.fresh.update(places)
        self.check()

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    def follow(self, events: list[Event]) -> None:
        """Move the specification where the broker decides by itself: limits, ages, people."""
        for event in events:
            match event:
                case DeadLettered(name, places, reason) if reason != "tries":
                    for place in places:
                        self._expect(place, name)
                        self.stories[place].step(Buried)
                        self.stories[place].queue = name.dead
                        self.fresh.add(place)
                case Requeued(name, to, places):
                    for place in places:
                        self._expect(place, name)
                        self.stories[place].step(Moved)
                        self.stories[place].queue = to
                        self.stories[place].tries = 0
                        self.fresh.add(place)
                case Settled(name, places):
                    for place in places:
                        if self.stories[place].waits:  # purged, or one dead letter too many
                            self._expect(place, name)
                            self.stories[place].step(Dropped)
                case Wanted():
                    self.wanted.append(event)
        self.pending += [event for event in events if not isinstance(event, Wanted)]

    def _expect(self, place: int, queue: QueueName) -> None:
        if self.stories[place].queue != queue:
            raise Violation(f"place {place} is in {self.stories[place].queue}, not {queue}")

    def check(self) -> None:
        """Let the broker finish, and compare it with the specification."""
        while self.broker.unfinished:
            self.broker.go_on(50)
        self.follow(self.broker.store.take_events())
        if self.untold:
            raise Violation("a consumer was not told that its push has raised")
        waiting: dict[QueueName, list[int]] = {}
        flying: dict[QueueName, int] = {}
        for place, story in sorted(self.stories.items()):
            if story.waits:
                waiting.setdefault(story.queue, []).append(place)
            elif story.state.state is LetterState.IN_FLIGHT:
                flying[story.queue] = flying.get(story.queue, 0) + 1
        for figures in self.broker.store.queues():
            name = figures.name
            rows = self.broker.store.peek(name, 10**6)
            there = [row.place for row in rows]
            if there != waiting.get(name, []):
                raise Violation(f"{name}: {there} wait, not {waiting.get(name, [])}")
            if figures.in_flight != flying.pop(name, 0):
                raise Violation(f"{name}: {figures.in_flight} in flight")
            for row in rows:
                if row.tries != self.stories[row.place].tries:
                    raise Violation(f"place {row.place} has had {row.tries} tries")
                if row.letter is not None and row.letter.body != self.disk[row.place].body:
                    raise Violation(f"place {row.place} has the body of another")
            self._check_progress(name, waiting.pop(name, []))
        if waiting or flying:
            raise Violation(f"queues are gone: {waiting}, {flying}")
        for name in set(self.senders.values()):
            if not self.broker.store.full(name):
                raise Violation(f"{name}: senders wait, and it is not full")
        self._check_memory()
        self.fresh.clear()
        self.given.clear()

    def _check_progress(self, name: QueueName, waiting: list[int]) -> None:
        """The first letter that somebody wants waits for room, or for its body, and all behind."""
        if any(event.name == name for event in self.wanted):
            return
        if self.broker.store.by_name[name] in self.broker.store.in_line:
            if not self.broker.store.memory.expected:
                raise Violation(f"{name} waits to be read, and nothing is being read")
            return
        consumers = [peer for peer in self.peers if name in peer.filters]
        for place in waiting:
            letter = self.disk[place]
            wanting = [
                peer for peer in consumers if (wants := peer.filters[name]) is None or wants(letter)
            ]
            if not wanting:
                continue
            free = [peer for peer in wanting if peer.room() > 0]
            if free:
                raise Violation(f"{name}: place {place} waits, and a consumer has room")
            behind = [one for queue, one in self.given if queue == name and one > place]
            if behind and place not in self.fresh:
                raise Violation(f"{name}: {behind} were delivered before {place}")
            break

    def _check_memory(self) -> None:
        store = self.broker.store
        figures = store.snapshot()
        rows = [row for one in store.queues() for row in store.peek(one.name, 10**6)]
        waiting = sum(row.nbytes for row in rows if row.letter is not None)
        flying = sum(
            story.letter.nbytes
            for story in self.stories.values()
            if story.state.state is LetterState.IN_FLIGHT
        )
        expected = sum(queue.expected for queue in store.by_name.values())
        if store.memory.expected != expected or (expected and not self.wanted):
            raise Violation(f"{store.memory.expected} bytes are expected, not {expected}")
        limit = store.memory.limit
        one = max((story.letter.nbytes for story in self.stories.values()), default=0)
        if self.durable and store.memory.used + expected > limit + one:
            raise Violation(f"{store.memory.used} + {expected} bytes, of {limit} (NB-02)")
        held = figures["broker_memory_bytes"] - waiting
        if self.durable and not 0 <= held <= min(flying, store.memory.limit):
            raise Violation(f"{held} bytes in flight are in memory, of {flying} (NB-02)")
        if not self.durable and held != flying:
            raise Violation(
                f"{figures['broker_memory_bytes']} bytes counted, not {waiting + flying}"
            )
        everything = sum(row.nbytes for row in rows) + flying
        if figures["broker_bytes"] != everything:
            raise Violation(f"{figures['broker_bytes']} bytes in queues, not {everything}")

    def finish(self) -> None:
        """Everybody is well: everything is delivered and acknowledged in the end."""
        while self.peers:
            self.lose(self.peers[0], orderly=True)
        peer = self.connect(7)
        for figures in self.broker.store.queues():
            self.subscribe(peer, figures.name)
        for _ in range(10 * len(self.disk) + 100):
            if self.wanted:
                self.read()
            elif peer.held:
                self.settle(peer, sorted(peer.held))
            else:
                break
        left = [
            place
            for place, story in self.stories.items()
            if story.state.state is not LetterState.DONE
        ]
        if left:
            raise Violation(f"never done with: {left}")
        figures = self.broker.store.snapshot()
        for name in ("waiting", "in_flight", "bytes", "memory_bytes"):
            if figures[f"broker_{name}"]:
                raise Violation(f"{figures[f'broker_{name}']} {name} are left")
