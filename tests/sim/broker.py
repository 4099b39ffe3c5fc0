"""Seeded worlds of the broker: publishers, consumers, readers of the log, people, time, crashes.

``BrokerWorld(seed).run()`` takes random steps; after each the broker is compared with its
specification, a list for each queue (:mod:`tests.core.broker.model`).  Consumers stall, reject,
answer for what they never got, fail while they are written to, and go at every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

from tests.core.broker.model import Peer, Watched
from tests.sim.world import Violation
from twisted_msgproto.core.broker import Letter, QueueName, machine, places, store, turns

STEPS = 60

NAMES = [QueueName("tests", name) for name in ("a", "b", "a.dead")]

FILTERS: list[Callable[[Letter], bool] | None] = [
    None,
    None,
    None,
    lambda letter: letter.place % 2 == 0,
    lambda letter: letter.place % 3 == 0,
    lambda letter: False,
]


def named(wants: Callable[[Letter], bool] | None) -> str:
    """Say which filter this is."""
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
            "broker_memory": choice((700, 2000, 100_000)),
            "queue_messages": choice((5, 1000)),
            "queue_age": choice((0, 0, 50)),
            "tries": choice((1, 2, 3)),
            "dead_letters": choice((0, 4, 1000)),
            "queue_idle": 100,
        }
        # Sizes that only long backlogs reach otherwise.
        self.sizes = {
            (store, "READ_PLACES"): choice((2, 5, 512)),
            (machine, "SERVED_MAX"): choice((1, 3, 512)),
            (turns, "SHARED_MAX"): choice((1, 16)),
            (places, "CHUNK"): choice((1, 3, 4096)),
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
            places = self._held(peer)
            self._tell("settle", peer.number, places)
            self.watched.settle(peer, places)

    def reject(self) -> None:
        peer = self._peer()
        if peer is not None:
            places, requeue = self._held(peer), self.source.random() < 0.7
            self._tell("reject", peer.number, places, requeue)
            self.watched.reject(peer, places, requeue)

    def lie(self) -> None:
        """A consumer answers for places that it never got, or twice."""
        peer = self._peer()
        if peer is not None and self.watched.disk:
            places = self.source.choices(list(self.watched.disk), k=3)
            self._tell("lie", peer.number, places)
            if self.source.random() < 0.5:
                self.watched.settle(peer, places)
            else:
                self.watched.reject(peer, places, self.source.random() < 0.5)

    def stall(self) -> None:
        peer = self._peer()
        if peer is not None:
            stalled = self.source.random() < 0.5
            self._tell("stall", peer.number, stalled)
            self.watched.stall(peer, stalled)

    def spoil(self) -> None:
        """From now on a consumer cannot encode some of the letters."""
        peer, bad = self._peer(), self.source.randint(0, 4)
        if peer is not None:
            self._tell("spoil", peer.number, bad)
            peer.raising = lambda letters: any(letter.place % 5 == bad for letter in letters)

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
