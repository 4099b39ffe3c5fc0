"""The specification: a list for each queue, and each message in a state of the table.

:class:`Watched` is a broker together with everything around it: the messages on disk, what the
durable half has written, consumers, and the specification.  Each verb is followed by
:meth:`Watched.check`, and :meth:`Watched.crash` is possible at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.core.broker.world import (
    QUEUED,
    Acknowledged,
    Buried,
    Delivered,
    Dropped,
    MessageState,
    Refused,
    Returned,
)
from tests.core.broker.world import Requeued as ByHand
from tests.core.broker.world import tries as told_tries
from tests.sim.world import Violation
from twisted_msgproto.core.broker import (
    LIMITS,
    Broker,
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
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import Machine

START = 1_000_000.0


class Story:
    """What the specification knows of one message."""

    def __init__(self, message: QueuedMessage, queue: QueueName) -> None:
        self.message = message
        self.queue = queue
        self.state = Machine(QUEUED, MessageState.WAITING)
        self.tries = 0
        self.delivered = 0

    def step(self, event: type) -> None:
        if not self.state.try_step(event):
            raise Violation(f"id {self.message.message_id}: {self.state.refusal(event)}")

    @property
    def waits(self) -> bool:
        return self.state.state is MessageState.WAITING


@dataclass(eq=False)
class Peer:
    """A consumer which acknowledges or does not, stalls, and whose push may raise."""

    watched: Watched
    number: int
    window: int
    acknowledges: bool = True
    stalled: bool = False
    raising: Callable[[Sequence[QueuedMessage]], bool] = lambda messages: False
    filters: dict[QueueName, Callable[[QueuedMessage], bool] | None] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    """All that was delivered and not answered, or answered after something older."""
    held: set[int] = field(default_factory=set)
    latest: int = -1
    """The index in ``order`` of the last one that was answered."""

    def room(self) -> int:
        return 0 if self.stalled else self.window - len(self.held)

    def push(self, queue: QueueName, messages: Sequence[QueuedMessage]) -> bool:
        if not 0 < len(messages) <= self.room():
            raise Violation(f"{len(messages)} messages for room of {self.room()}")
        ids = [message.message_id for message in messages]
        if ids != sorted(ids):
            raise Violation(f"out of order in one push: {ids}")
        for message_id in ids:
            self.watched.delivered(self, queue, message_id)
        if self.raising(messages):
            self.watched.failing(self, set(ids))
            raise RuntimeError("cannot be encoded")
        if self.acknowledges:
            self.order += ids
            self.held.update(ids)
        else:
            for message_id in ids:
                self.watched.finished(message_id, Acknowledged)
        return self.acknowledges

    def failed(self, error: Exception) -> None:
        if isinstance(error, Violation):
            raise error
        self.watched.failed(self)

    def answer(self, ids: Sequence[int]) -> list[int]:
        """Note that these were answered; return those which it holds."""
        held = [message_id for message_id in dict.fromkeys(ids) if message_id in self.held]
        self.held.difference_update(held)
        if held:
            # Later deliveries of an id stand behind its earlier ones.
            positions = [
                len(self.order) - 1 - self.order[::-1].index(message_id) for message_id in held
            ]
            self.latest = max(self.latest, *positions)
        return held

    def seen(self) -> set[int]:
        """What it has looked at and not answered: up to the first behind the latest answer."""
        last = {message_id: index for index, message_id in enumerate(self.order)}
        seen = set()
        for message_id in sorted(self.held, key=last.__getitem__):
            seen.add(message_id)
            if last[message_id] > self.latest:
                break
        return seen


class Watched:
    """A broker, its surroundings, and its specification.

    Attributes:
        disk: every message published, by id: the log.
        stories: what became of each.
        written: events which the durable half has written, and so knows after a crash.
        pending: events which it has not written yet.
        wanted: queues whose bodies are to be read, and the ids.
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
        self.senders: dict[int, QueueName] = {}  # the last id of each that waits for room
        self.message_id = 0
        self.connected = 0
        self.broker = self.made()

    def made(self) -> Broker:
        return Broker(self.limits, durable=self.durable, when_full=self.when_full)

    # ── what consumers see ──────────────────────────────────────────────────────────────────────

    def delivered(self, peer: Peer, queue: QueueName, message_id: int) -> None:
        self.follow(self.broker.store.take_events())
        story = self.stories[message_id]
        if story.queue != queue:
            raise Violation(f"id {message_id} of {story.queue} was delivered from {queue}")
        wants = peer.filters.get(queue)
        if queue not in peer.filters or (wants is not None and not wants(story.message)):
            raise Violation(f"id {message_id} went to a consumer that does not want it")
        story.step(Delivered)
        story.delivered += 1
        self.given.append((queue, message_id))

    def finished(self, message_id: int, event: type) -> None:
        self.stories[message_id].step(event)

    def failing(self, peer: Peer, ids: set[int]) -> None:
        """A push raises: all that this consumer has goes back; one alone has had a try."""
        self.peers.remove(peer)
        self.untold.append(peer)
        self.back(peer.held | ids, ids if len(ids) == 1 else set())
        peer.held = set()

    def failed(self, peer: Peer) -> None:
        """The broker says to a consumer that its push has raised."""
        self.untold.remove(peer)

    def back(self, ids: set[int], tried: set[int]) -> None:
        """These came back; the messages in ``tried`` have had a try."""
        most = self.limits.integer("tries")
        for message_id in sorted(ids):
            story = self.stories[message_id]
            if message_id in tried:
                story.tries += 1
            dead = story.tries >= most and message_id in tried and story.queue != story.queue.dead
            story.step(Buried if dead else Returned)
            if dead:
                story.queue = story.queue.dead
            self.fresh.add(message_id)

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def publish(self, queue: QueueName, count: int, gap: int = 1) -> None:
        messages = []
        for _ in range(count):
            self.message_id += gap
            body = b"%d" % self.message_id
            message = QueuedMessage(self.message_id, weight(b"", body), b"", body, self.now)
            self.disk[self.message_id] = message
            self.stories[self.message_id] = Story(message, queue)
            self.fresh.add(self.message_id)
            self.first_queue[self.message_id] = queue
            messages.append(message)
        self.broker.publish(queue, messages, self.now)
        sender = self.message_id
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

    def settle(self, peer: Peer, ids: Sequence[int]) -> None:
        for message_id in peer.answer(ids):
            self.finished(message_id, Acknowledged)
        self.broker.settle(peer, ids)
        self.check()

    def reject(self, peer: Peer, ids: Sequence[int], requeue: bool) -> None:
        held = peer.answer(ids)
        if requeue:
            self.back(set(held), set(held))
        else:
            for message_id in held:
                self.finished(message_id, Refused)
        self.broker.reject(peer, ids, requeue=requeue)
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
        """Answer what is wanted: one of ``part`` ids, the rest comes later."""
        wanted, self.wanted = self.wanted, []
        for event in wanted:
            ids = event.message_ids[::part]
            if failed:
                self.broker.store.loaded(event.name, ())
            elif damaged:
                self.broker.store.loaded(event.name, self._letters(ids[1:]), ids[:1])
            else:
                self.broker.store.loaded(event.name, self._letters(ids))
        self.check()

    def _letters(self, ids: Sequence[int]) -> list[QueuedMessage]:
        """Fresh objects, as whoever reads the log makes them."""
        messages = [self.disk[message_id] for message_id in ids]
        return [
            QueuedMessage(one.message_id, one.nbytes, b"", one.body, one.arrived)
            for one in messages
        ]

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
        declared = set[QueueName]()
        for event in self.written:
            match event:
                case Declared(name):
                    declared.add(name)
                case Forgotten(name):
                    declared.discard(name)
                case Settled(_, ids):
                    settled.update(ids)
                case Tried(_, counts):
                    tries.update(counts)
                case Moved(_, to, ids, with_tries):
                    moved.update(dict.fromkeys(ids, to))
                    for message_id in () if with_tries else ids:
                        tries.pop(message_id, None)
        self.pending.clear()
        self.wanted.clear()
        self.peers.clear()
        self.senders.clear()
        self.fresh.clear()
        self.given.clear()
        self.broker = self.made()
        queues: dict[QueueName, list[int]] = {name: [] for name in declared}
        stories = {}
        for message_id, message in self.disk.items():
            first = self.first_queue[message_id]
            story = stories[message_id] = Story(message, moved.get(message_id, first))
            story.delivered = self.stories[message_id].delivered
            if message_id in settled:
                story.state.state = MessageState.DONE
                if self.stories[message_id].state.state is not MessageState.DONE:
                    raise Violation(f"id {message_id} was written as done with, and is not")
                continue
            story.tries = tries.get(message_id, 0)
            queues.setdefault(story.queue, []).append(message_id)
        self.stories = stories
        for name, ids in queues.items():
            self.broker.store.restore(
                name,
                sorted(ids),
                [self.disk[message_id].nbytes for message_id in sorted(ids)],
                [int(self.disk[message_id].arrived) for message_id in sorted(ids)],
                self.now,
                tries=told_tries(
                    {message_id: tries[message_id] for message_id in ids if message_id in tries}
                ),
            )
            self.fresh.update(ids)
        self.check()

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    def follow(self, events: list[Event]) -> None:
        """Move the specification where the broker decides by itself: limits, ages, people."""
        for event in events:
            match event:
                case Moved(name, to, ids, with_tries):
                    for message_id in ids:
                        story = self.stories[message_id]
                        if with_tries and story.queue == to and story.waits:
                            continue  # after its last try: see ``back``
                        self._expect(message_id, name)
                        story.step(Buried if with_tries else ByHand)
                        story.queue, story.tries = to, story.tries * with_tries
                        self.fresh.add(message_id)
                case Settled(name, ids):
                    for message_id in ids:
                        if self.stories[message_id].waits:  # purged, or one dead letter too many
                            self._expect(message_id, name)
                            self.stories[message_id].step(Dropped)
                case Wanted():
                    self.wanted.append(event)
        self.pending += [event for event in events if not isinstance(event, Wanted)]

    def _expect(self, message_id: int, queue: QueueName) -> None:
        if self.stories[message_id].queue != queue:
            raise Violation(f"id {message_id} is in {self.stories[message_id].queue}, not {queue}")

    def check(self) -> None:
        """Let the broker finish, and compare it with the specification."""
        while self.broker.unfinished:
            self.broker.go_on(50)
        self.follow(self.broker.store.take_events())
        if self.untold:
            raise Violation("a consumer was not told that its push has raised")
        waiting: dict[QueueName, list[int]] = {}
        flying: dict[QueueName, int] = {}
        for message_id, story in sorted(self.stories.items()):
            if story.waits:
                waiting.setdefault(story.queue, []).append(message_id)
            elif story.state.state is MessageState.IN_FLIGHT:
                flying[story.queue] = flying.get(story.queue, 0) + 1
        for figures in self.broker.store.queues():
            name = figures.name
            rows = self.broker.store.peek(name, 10**6)
            there = [row.message_id for row in rows]
            if there != waiting.get(name, []):
                raise Violation(f"{name}: {there} wait, not {waiting.get(name, [])}")
            if figures.in_flight != flying.pop(name, 0):
                raise Violation(f"{name}: {figures.in_flight} in flight")
            for row in rows:
                if row.tries != self.stories[row.message_id].tries:
                    raise Violation(f"id {row.message_id} has had {row.tries} tries")
                if row.message is not None and row.message.body != self.disk[row.message_id].body:
                    raise Violation(f"id {row.message_id} has the body of another")
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
        """The first message that somebody wants waits for room, or for its body, and all behind."""
        if any(event.name == name for event in self.wanted):
            return
        if self.broker.store.by_name[name] in self.broker.store.in_line:
            if not self.broker.store.memory.expected:
                raise Violation(f"{name} waits to be read, and nothing is being read")
            return
        consumers = [peer for peer in self.peers if name in peer.filters]
        for message_id in waiting:
            message = self.disk[message_id]
            wanting = [
                peer
                for peer in consumers
                if (wants := peer.filters[name]) is None or wants(message)
            ]
            if not wanting:
                continue
            free = [peer for peer in wanting if peer.room() > 0]
            if free:
                raise Violation(f"{name}: id {message_id} waits, and a consumer has room")
            behind = [one for queue, one in self.given if queue == name and one > message_id]
            if behind and message_id not in self.fresh:
                raise Violation(f"{name}: {behind} were delivered before {message_id}")
            break

    def _check_memory(self) -> None:
        store = self.broker.store
        figures = store.snapshot()
        rows = [row for one in store.queues() for row in store.peek(one.name, 10**6)]
        waiting = sum(row.nbytes for row in rows if row.message is not None)
        flying = sum(
            story.message.nbytes
            for story in self.stories.values()
            if story.state.state is MessageState.IN_FLIGHT
        )
        expected = sum(queue.expected for queue in store.by_name.values())
        if store.memory.expected != expected or (expected and not self.wanted):
            raise Violation(f"{store.memory.expected} bytes are expected, not {expected}")
        limit = store.memory.limit
        one = max((story.message.nbytes for story in self.stories.values()), default=0)
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
            message_id
            for message_id, story in self.stories.items()
            if story.state.state is not MessageState.DONE
        ]
        if left:
            raise Violation(f"never done with: {left}")
        figures = self.broker.store.snapshot()
        for name in ("waiting", "in_flight", "bytes", "memory_bytes"):
            if figures[f"broker_{name}"]:
                raise Violation(f"{figures[f'broker_{name}']} {name} are left")
