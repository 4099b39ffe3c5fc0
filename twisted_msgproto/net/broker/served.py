"""Servers see the broker as a :class:`ServedBroker`.

The machine (:mod:`twisted_msgproto.core.broker`) decides who gets which message; it knows no time
and no reactor.  Servers call it; it says that it has changed, and then what is here follows what
happened, lets it continue in the next turn of the reactor where one turn is not enough, and wakes
it at its deadlines.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from ...core.broker import (
    DEAD,
    LIMITS,
    TURN_STEPS,
    WAIT,
    Broker,
    Declared,
    Event,
    Forgotten,
    Letter,
    QueueFull,
    QueueName,
    weight,
)
from ...core.broker.store import QueueStore
from ...core.limits import Limits

LETTERS_AT_ONCE: Final = 200
"""Messages of one read are published in lots of this size; a turn may end between two lots."""

LETTER_STEPS: Final = 40
"""To publish one message is this many steps of about 0.1 µs."""

Rows = Sequence[tuple[QueueName, bytes, bytes]]
"""Messages for queues, in order: the queue, the envelope and the body of each."""


class ServedBroker:
    """The queues of one server, or of several servers that share them.

    Consumers are connections: see :class:`twisted_msgproto.core.broker.Consumer`.  All calls come
    from the reactor's thread.

    Attributes:
        machine: decides everything.  Its messages are published with the methods here.
        store: the machine's queues.
        durable: whether its queues outlive this process.
        told_full: is called with the name of a queue whose senders wait from now on.
    """

    log: Logger = Logger(namespace="twisted_msgproto.broker")
    durable = False
    tells_of_memory: bool = (
        False  # say, with the first queue, that messages are stored and queues not
    )

    def __init__(
        self,
        clock: Any,
        limits: Limits | None = None,
        *,
        wallClock: Callable[[], float] = time.time,
        when_full: str = WAIT,
    ) -> None:
        """Make a broker whose queues are in memory.

        ``clock`` has ``seconds()`` and ``callLater()``; ``wallClock`` returns the seconds since
        1970-01-01 UTC.  ``limits`` and ``when_full`` are the machine's.
        """
        self._clock = clock
        # Messages keep the time of their arrival over a restart, and time never runs backwards.
        self._epoch: float = wallClock() - clock.seconds()
        self.limits: Limits = Limits.of(LIMITS) if limits is None else limits
        self.machine: Broker = Broker(
            self.limits, durable=self.durable, when_full=when_full, changed=self._look
        )
        self.store: QueueStore = self.machine.store
        self.told_full: Callable[[QueueName], None] = lambda name: None
        self._names: defaultdict[str, dict[str, QueueName]] = defaultdict(dict)
        self._incoming: deque[Iterator[int]] = deque()  # what is published, in order
        self._place = 0  # of the newest message in memory
        self._turn: Any = None  # the call that goes on in the next turn
        self._alarm: Any = None  # the call at the machine's deadline
        self._alarm_at = inf
        self._going = False
        self._users = 0
        self._unopened: list[Callable[[], None]] | None = []  # whom to tell that it is open

    def now(self) -> float:
        """Return the time in seconds since about 1970-01-01 UTC; it never runs backwards."""
        seconds: float = self._clock.seconds()
        return self._epoch + seconds

    # ── life ────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Get ready to be used; call it before the first connection comes.  Twice is once.

        Raises what is raised by those whom :meth:`when_opened` calls.
        """
        if self._unopened is not None:
            self.restore()
            opened, self._unopened = self._unopened, None
            for call in opened:
                call()

    def join(self) -> None:
        self._users += 1

    def left(self) -> None:
        """Note that a server has ended; after the last one nothing is done by itself any more."""
        self._users -= 1
        if not self._users:
            self._stop()

    def when_opened(self, call: Callable[[], None]) -> None:
        """Call ``call`` once the queues of before are there: at once, or when it is opened."""
        if self._unopened is None:
            call()
        else:
            self._unopened.append(call)

    def restore(self) -> None:
        """Make the queues as they were when the process before this one ended."""

    # ── queues ──────────────────────────────────────────────────────────────────────────────────

    def names(self, space: str) -> Mapping[str, QueueName]:
        """Return the queues of a space that take messages, by their plain names.

        The mapping changes with them.  Queues of dead letters are not among them.
        """
        return self._names[space]

    # ── publishers ──────────────────────────────────────────────────────────────────────────────

    def publish(self, rows: Rows) -> None:
        """Messages for queues are safe: deliver them, in order, behind what came before.

        Call it only where the broker is not ``durable``; else they come with their offsets from
        the sink that has stored them.
        """
        arrived, first = self.now(), self._place + 1
        self._place += len(rows)
        letters = [
            (name, Letter(place, weight(envelope, body), envelope, body, arrived))
            for place, (name, envelope, body) in enumerate(rows, first)
        ]
        self.begin(self.publishing(letters))

    def when_accepted(
        self,
        names: Iterable[QueueName],
        accepted: Callable[[], None],
        came: Callable[[], None] = lambda: None,
    ) -> None:
        """Call ``came`` once what was published before is in its queue, and ``accepted`` once none
        of the queues ``names`` is full.

        Both are at once where nothing stands in the way.  Until then the sender is to wait.
        """
        self.begin(self._accepting(list(names), accepted, came))

    def begin(self, work: Iterator[int]) -> None:
        """Do ``work`` behind what came before; it yields the number of steps done."""
        self._incoming.append(work)
        if len(self._incoming) == 1 and not self._going:
            self._go_on()
        else:
            self._look()

    def publishing(self, letters: Sequence[tuple[QueueName, Letter]]) -> Iterator[int]:
        """Publish letters, in the order of their places; yield the number of steps done."""
        for start in range(0, len(letters), LETTERS_AT_ONCE):
            lot = letters[start : start + LETTERS_AT_ONCE]
            now = self.now()
            for name, run in groupby(lot, itemgetter(0)):
                self.machine.publish(name, [letter for _, letter in run], now)
            yield len(lot) * LETTER_STEPS

    def _accepting(
        self, names: list[QueueName], accepted: Callable[[], None], came: Callable[[], None]
    ) -> Iterator[int]:
        came()
        missing = len(names) + 1

        def one_accepted() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                accepted()

        def look(name: QueueName) -> None:
            # A lambda each: the machine tells calls apart by what they are.
            self.store.when_room(name, lambda: one_accepted())

        for name in names:
            self.when_durable(name, partial(look, name))
        one_accepted()
        yield len(names)

    def when_durable(self, name: QueueName, call: Callable[[], None]) -> None:
        """Call ``call`` once the queue is as durable as it can be: here at once."""
        call()

    # ── consumers and people ────────────────────────────────────────────────────────────────────

    def deliver(self) -> None:
        """Deliver now what new subscriptions let pass, and not only in the next turn."""
        if self._turn is not None:
            self._turn.cancel()
            self._go_on()

    def read(self, places: Sequence[int]) -> Deferred[list[Letter]]:
        """Read back the letters with these places, for people.

        Fires with those that can be read, and fails with OSError.  Here all are in memory anyway.
        """
        return succeed([])

    def flush(self) -> Deferred[None]:
        """Make durable what was purged and moved; fails with OSError or QueueError.

        Here nothing is durable.
        """
        return succeed(None)

    # ── what the machine says ───────────────────────────────────────────────────────────────────

    @property
    def unfinished(self) -> bool:
        """Whether more is left than one turn of the reactor may do; it continues by itself."""
        return bool(self._incoming) or self.machine.unfinished

    def _go_on(self) -> None:
        self._turn = None
        self._going = True
        try:
            machine, steps = self.machine, TURN_STEPS
            if machine.unfinished:
                machine.go_on()
            while self._incoming and steps > 0 and not machine.unfinished:
                taken = next(self._incoming[0], None)
                if taken is None:
                    self._incoming.popleft()
                else:
                    steps -= taken
        finally:
            self._going = False
            self._look()

    def _look(self) -> None:
        if self.store.events:  # it is called for every message
            for event in self.store.take_events():
                follow = self.follows.get(type(event))
                if follow is not None:
                    follow(self, event)
        if self._going:
            return
        if self._turn is None and self.unfinished:
            self._turn = self._clock.callLater(0, self._go_on)
        at = self.store.deadline
        if at is not None and at < self._alarm_at:
            self._set_alarm(at)

    def _set_alarm(self, at: float) -> None:
        delay = max(0.0, at - self.now())
        self._alarm_at = at
        if self._alarm is None:
            self._alarm = self._clock.callLater(delay, self._alarmed)
        else:
            self._alarm.reset(delay)

    def _alarmed(self) -> None:
        self._alarm = None
        self._alarm_at = inf
        self.store.advance(self.now())

    def _stop(self) -> None:
        for call in (self._turn, self._alarm):
            if call is not None:
                call.cancel()
        self._turn = self._alarm = None
        self._alarm_at = -inf

    def known(self, name: QueueName) -> None:
        if not name.name.endswith(DEAD):
            self._names[name.space][name.name] = name

    def _declared(self, event: Declared) -> None:
        self.known(event.name)
        if self.tells_of_memory:
            self.tells_of_memory = False
            self.log.info(
                "broker: queues are in memory, because messages are not stored in a durable queue:"
                " what consumers have not had is gone for them when this process ends"
            )

    def _forgotten(self, event: Forgotten) -> None:
        self._names[event.name.space].pop(event.name.name, None)

    def _filled(self, event: QueueFull) -> None:
        self.told_full(event.name)

    follows: Mapping[type[Event], Callable[[Any, Any], None]] = {
        Declared: _declared,
        Forgotten: _forgotten,
        QueueFull: _filled,
    }
