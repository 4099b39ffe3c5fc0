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
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
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
    QueuedMessage,
    QueueFull,
    QueueName,
    Waiting,
    weight,
)
from ...core.broker.store import QueueStore
from ...core.errors import QueueError, shown
from ...core.limits import Limits
from ..logs import LIMITS as LIMITS_MET
from ..site.queue_view import BODIES_BYTES_MAX, MessageShown, NoSuchQueue, QueueShown
from .forms import texts_of

MESSAGES_AT_ONCE: Final = 200  # published, or read back, in one lot; a turn may end between two

MESSAGE_STEPS: Final = 40  # of about 0.1 µs, to publish one

Rows = Sequence[tuple[QueueName, bytes, bytes]]  # queue, envelope and body of each, in order


class ServedBroker:
    """The queues of one server, or of several servers that share them.

    Consumers are connections: see :class:`twisted_msgproto.core.broker.Consumer`.  All calls come
    from the reactor's thread.
    """

    log: Logger = Logger(namespace="twisted_msgproto.broker")
    durable = False  # whether its queues outlive this process
    # Say, with the first queue, that messages are stored and queues not.
    tells_of_memory: bool = False

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
        self.server: Any = None  # the factory that logs which queue has senders that wait
        self._names: defaultdict[str, dict[str, QueueName]] = defaultdict(dict)
        self._incoming: deque[Iterator[int]] = deque()  # what is published, in order
        self._last_id = 0  # of the newest message in memory
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
        """Get ready to be used; call it before the first connection comes.  Twice is once."""
        if self._unopened is not None:
            self.restore()
            opened, self._unopened = self._unopened, None
            for call in opened:
                call()

    def join(self) -> None:
        self._users += 1

    @property
    def in_use(self) -> bool:
        return self._users > 0

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
        """Return the queues of a space that take messages; the mapping changes with them."""
        return self._names[space]

    # ── publishers ──────────────────────────────────────────────────────────────────────────────

    def publish(self, rows: Rows) -> None:
        """Messages for queues are safe: deliver them, in order, behind what came before.

        Call it only where the broker is not ``durable``; else they come with their offsets from
        the sink that has stored them.
        """
        arrived, first = self.now(), self._last_id + 1
        self._last_id += len(rows)
        messages = [
            (name, QueuedMessage(message_id, weight(envelope, body), envelope, body, arrived))
            for message_id, (name, envelope, body) in enumerate(rows, first)
        ]
        self.begin(self.publishing(messages))

    def when_accepted(
        self,
        names: Iterable[QueueName],
        accepted: Callable[[], None],
        *,
        came: Callable[[], None] = lambda: None,
        durable: Callable[[], None] = lambda: None,
    ) -> None:
        """Call ``came`` once what was published before is in its queue, ``durable`` once the queues
        ``names`` are as durable as they can be, and ``accepted`` once none of them is full, too.

        All are at once where nothing stands in the way.  Until ``accepted`` the sender is to wait;
        a server that stops waits for ``durable`` alone: a long queue loses nothing.
        """
        self.begin(self._accepting(list(names), accepted, came, durable))

    def begin(self, work: Iterator[int]) -> None:
        """Do ``work`` behind what came before; it yields the number of steps done."""
        self._incoming.append(work)
        if len(self._incoming) == 1 and not self._going:
            self._go_on()
        else:
            self._look()

    def publishing(self, messages: Sequence[tuple[QueueName, QueuedMessage]]) -> Iterator[int]:
        for start in range(0, len(messages), MESSAGES_AT_ONCE):
            lot = messages[start : start + MESSAGES_AT_ONCE]
            now = self.now()
            for name, run in groupby(lot, itemgetter(0)):
                self.machine.publish(name, [message for _, message in run], now)
            yield len(lot) * MESSAGE_STEPS

    def _accepting(
        self,
        names: list[QueueName],
        accepted: Callable[[], None],
        came: Callable[[], None],
        durable: Callable[[], None],
    ) -> Iterator[int]:
        came()
        one_has_room = _last_of(len(names), accepted)

        def all_durable() -> None:
            durable()
            for name in names:
                # A lambda each: the machine tells calls apart by what they are.
                self.store.when_room(name, lambda: one_has_room())

        one_durable = _last_of(len(names), all_durable)
        for name in names:
            self.when_durable(name, one_durable)
        yield len(names)

    def when_durable(self, name: QueueName, call: Callable[[], None]) -> None:
        """Call ``call`` once the queue is as durable as it can be: here at once."""
        call()

    # ── consumers and people ────────────────────────────────────────────────────────────────────

    def deliver(self) -> None:
        """Deliver now what new subscriptions let pass, and not only in the next turn."""
        if self._turn is not None:
            self._go_on()

    def read(self, message_ids: Sequence[int]) -> Deferred[list[QueuedMessage]]:
        """Read back messages for people; fails with OSError.  Here all are in memory anyway."""
        return succeed([])

    def flush(self) -> Deferred[None]:
        """Make durable what was purged and moved; fails with OSError or QueueError."""
        return succeed(None)

    # ── what the machine says ───────────────────────────────────────────────────────────────────

    @property
    def unfinished(self) -> bool:
        """Whether more is left than one turn of the reactor may do; it continues by itself."""
        return bool(self._incoming) or self.machine.unfinished

    def _go_on(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and turn.active():
            turn.cancel()  # this is that turn already
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
        if self.server is not None:
            self.server.counters[f"limit:{event.limit}"] += 1
            self.server.writeOf(
                self.server.log,
                f"{self.server.protocolName}: queue full",
                "{protocol}: the queue {name} is full and its senders wait; {limit} is {most}"
                " (--limit NAME=NUMBER changes it)",
                reason="queue-full",
                topic=LIMITS_MET,
                protocol=self.server.protocolName,
                name=shown(event.name.name),
                limit=event.limit,
                most=self.limits.integer(event.limit),
            )

    follows: Mapping[type[Event], Callable[[Any, Any], None]] = {
        Declared: _declared,
        Forgotten: _forgotten,
        QueueFull: _filled,
    }


def _last_of(count: int, call: Callable[[], None]) -> Callable[[], None]:
    """Return what calls ``call`` when it is called the last of ``count`` times; 0: that is now."""
    missing = count

    def one() -> None:
        nonlocal missing
        missing -= 1
        if missing <= 0:
            call()

    if not count:
        call()
    return one


# ── senders to full queues wait ───────────────────────────────────────────────────────────────────


# The sender's acknowledgement is withheld, and above a limit for all of them a sender is not read
# any more.  But its own acknowledgements may be what makes room: so a connection that owes some is
# always read.  What it may send meanwhile has a bound and a deadline; then it is told and ended.

PAUSED_FOR: Final = "broker-queues"

OWING_TIMES: Final = 4  # times the limit: so much may wait while some of its senders are read


class Sender(Protocol):
    def pauseReading(self, reason: str) -> None:
        """Do not read it while ``reason`` stands."""

    def resumeReading(self, reason: str) -> None:
        """``reason`` stands no longer."""

    @property
    def owes_settlements(self) -> bool:
        """Return whether it has messages of queues that it has not acknowledged."""

    def withheld_too_long(self) -> None:
        """Tell it and end it: too much of what it sent waits, or for too long."""


class SenderBackpressure:
    """Bytes that wait for room in queues, over all senders of one server."""

    def __init__(self, limit: int, seconds: float, clock: Any) -> None:
        """A connection that owes settlements is ended when it has made none for ``seconds`` while
        there is too much; 0: never.  ``clock`` has ``callLater()``.
        """
        self.limit = limit  # above it senders that owe no settlement are not read
        self.waiting: int = 0
        self._seconds = seconds
        self._clock = clock
        self._own: dict[Sender, int] = {}
        self._paused: dict[Sender, None] = {}
        self._deadlines: dict[Sender, Any] = {}

    @property
    def pressing(self) -> bool:
        return bool(self._paused or self._deadlines)

    def add(self, sender: Sender, nbytes: int) -> None:
        self.waiting += nbytes
        self._own[sender] = self._own.get(sender, 0) + nbytes
        if self.waiting > self.limit:
            self._look(sender)

    def _look(self, sender: Sender) -> None:
        if not sender.owes_settlements:
            self._clear(sender)
            self._paused[sender] = None
            sender.pauseReading(PAUSED_FOR)
        elif self.waiting > self.limit * OWING_TIMES:
            sender.withheld_too_long()
        else:
            self._paused.pop(sender, None)
            sender.resumeReading(PAUSED_FOR)
            if self._seconds and sender not in self._deadlines:
                self._deadlines[sender] = self._clock.callLater(self._seconds, self._late, sender)

    def _late(self, sender: Sender) -> None:
        del self._deadlines[sender]
        sender.withheld_too_long()

    def _clear(self, sender: Sender) -> None:
        deadline = self._deadlines.pop(sender, None)
        if deadline is not None:
            deadline.cancel()

    def settled(self, sender: Sender) -> None:
        if sender in self._deadlines:
            self._clear(sender)
            self._look(sender)

    def owing(self, sender: Sender) -> None:
        if sender in self._paused:
            self._look(sender)

    def remove(self, sender: Sender, nbytes: int) -> None:
        self.waiting -= nbytes
        left = self._own.get(sender, 0) - nbytes
        if left > 0:
            self._own[sender] = left
        else:
            self._own.pop(sender, None)
            self._clear(sender)
            if self._paused.pop(sender, True) is None:
                sender.resumeReading(PAUSED_FOR)
        if self.waiting <= self.limit // 2 and self.pressing:
            for late in list(self._deadlines):
                self._clear(late)
            paused, self._paused = self._paused, {}
            for each in paused:
                each.resumeReading(PAUSED_FOR)

    def forget(self, sender: Sender) -> None:
        self._clear(sender)
        self._paused.pop(sender, None)


# ── what operators see of the queues, and change ──────────────────────────────────────────────────


CHANGED_AT_ONCE: Final = 10_000


class ServedQueues:
    def __init__(self, brokers: Sequence[ServedBroker], clock: Any) -> None:
        self._brokers = brokers
        self._clock = clock

    def queues(self) -> list[QueueShown]:
        return sorted(
            (
                QueueShown(
                    space=figures.name.space,
                    name=figures.name.name,
                    waiting=figures.waiting,
                    in_flight=figures.in_flight,
                    bytes=figures.nbytes,
                    consumers=figures.consumers,
                    oldest=None if figures.oldest is None else int(figures.oldest * 1e6),
                    tries=figures.tries,
                )
                for broker in self._brokers
                for figures in broker.store.queues()
            ),
            key=lambda queue: (queue.space, queue.name),
        )

    async def peek(self, space: str, name: str, count: int) -> list[MessageShown]:
        queue = QueueName(space, name)
        broker = self._of(queue)
        rows = broker.store.peek(queue, count)
        messages = {row.message_id: row.message for row in rows if row.message is not None}
        missing = [row.message_id for row in rows if row.message is None]
        for start in range(0, len(missing), MESSAGES_AT_ONCE):
            if sum(message.nbytes for message in messages.values()) > BODIES_BYTES_MAX:
                break
            read = await broker.read(missing[start : start + MESSAGES_AT_ONCE])
            messages |= {message.message_id: message for message in read}
        return [_shown(row, messages[row.message_id]) for row in rows if row.message_id in messages]

    async def purge(self, space: str, name: str) -> int:
        queue = QueueName(space, name)
        broker = self._of(queue)
        return await self._in_turns(broker, queue, lambda most: broker.store.purge(queue, most))

    async def requeue(self, space: str, name: str, to: str) -> int:
        queue, other = QueueName(space, name), QueueName(space, to)
        broker = self._of(queue)
        if to.endswith(DEAD):
            raise NoSuchQueue(f"{to!r} is for dead letters: nothing is put there by hand")

        def move(most: int) -> int:
            return broker.store.requeue(queue, other, most, broker.now())

        return await self._in_turns(broker, queue, move)

    async def _in_turns(
        self, broker: ServedBroker, name: QueueName, change: Callable[[int], int]
    ) -> int:
        """Change what waits now, a part in each turn, durably; what comes meanwhile stays."""
        left = sum(figures.waiting for figures in broker.store.queues() if figures.name == name)
        changed = 0
        while left > 0:
            part = change(min(left, CHANGED_AT_ONCE))
            if not part:
                break
            changed, left = changed + part, left - part
            await deferLater(self._clock, 0)
        try:
            await broker.flush()
        except (OSError, QueueError) as error:
            raise QueueError(
                f"{changed} messages are changed, but that is not on disk yet: {error}; the gateway"
                " tries again, and if it is killed before, they are as they were"
            ) from None
        return changed

    def _of(self, name: QueueName) -> ServedBroker:
        for broker in self._brokers:
            if broker.store.knows(name):
                return broker
        raise NoSuchQueue(f"there is no queue {name.name!r} in the space {name.space!r}")


def _shown(row: Waiting, message: QueuedMessage) -> MessageShown:
    return MessageShown(
        message_id=row.message_id,
        received_at=int(row.arrived * 1e6),
        tries=row.tries,
        bytes=len(message.body),
        fields=texts_of(message.envelope),
        body=message.body,
    )
