"""The queue profile has named queues with competing readers (``MT-26``, ``MT-27``).

The broker (:mod:`twisted_msgproto.core.broker`) decides what each reader gets.  A factory hands
the profile one that runs on a reactor and may keep its queues on disk; without that the profile has
one in memory for itself, and is a machine like any other profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from ...core.broker import DEAD, Broker, Letter, QueueName, TooManyQueues, weight
from ...core.broker import LIMITS as QUEUE_LIMITS
from ...core.broker.envelopes import Opened
from ...core.broker.fields import Fields, no_fields
from ...core.limits import Limits
from ..letters import Heads, marked, own_of, table_of
from ..terms.limits import SERVER_LIMITS
from .flows import ReadingFlow, Stored, WritingFlow
from .profile import Profile

ALIASES: Final[Mapping[str, str]] = {
    "broker-queues": "queues",
    "queue-messages": "queue-contents",
    "tries": "deliveries",
}
"""The broker's limits → what MTL's servers call them."""

SPACES: Final = "mtl/"
"""Every space of a server has a name that begins with this, unless it is a shared one."""

IN_MEMORY_SECONDS: Final = 0.0
"""A broker without a clock is always called at this time."""


def broker_limits(limits: Limits) -> Limits:
    broker = Limits.of(QUEUE_LIMITS)
    names = {name: ALIASES.get(name, name) for name in broker}
    return broker.replace({name: limits[own] for name, own in names.items() if own in limits})


class Queues(Protocol):
    """What is needed of a broker (``net.broker.ServedBroker``)."""

    durable: bool
    machine: Broker

    def declare(self, name: QueueName, *, kept: bool = False) -> None:
        """Let there be a queue; TooManyQueues above the limit."""

    def reclaim(self, spaces: str) -> bool:
        """Forget an empty queue that was not used for a while; False if there is none."""

    def publish(self, rows: Sequence[tuple[QueueName, bytes, bytes]]) -> None:
        """Messages are safe: their queues, envelopes and bodies.  Not if it is ``durable``."""

    def when_accepted(self, names: Iterable[QueueName], accepted: Callable[[], None]) -> None:
        """Call ``accepted`` when none of these queues is full."""

    def subscribe(self, consumer: Any, name: QueueName) -> None:
        """Let a consumer compete for the letters of a queue; TooManyQueues above the limit."""

    def unsubscribe(self, consumer: Any, name: QueueName) -> bool:
        """Deliver nothing more of a queue to a consumer."""

    def settle(self, consumer: Any, places: Sequence[int]) -> None:
        """A consumer has confirmed the letters with these places."""

    def reject(self, consumer: Any, places: Sequence[int], *, requeue: bool) -> None:
        """A consumer has rejected the letters with these places."""

    def ready(self, consumer: Any) -> None:
        """A consumer may have room."""

    def gone(self, consumer: Any, *, orderly: bool = False) -> None:
        """A consumer has ended; ``orderly``: nothing that it had counts as a try."""

    def snapshot(self) -> Mapping[str, int]:
        """Return figures for metrics."""


class QueuesInMemory:
    """A broker for one profile, in memory: what can be delivered is delivered at once."""

    durable = False

    def __init__(self, limits: Limits) -> None:
        """``limits`` are the broker's."""
        self.machine = Broker(limits)
        self._place = 0
        self._within = False

    def declare(self, name: QueueName, *, kept: bool = False) -> None:
        """Do what :class:`Queues` says."""
        self.machine.declare(name, IN_MEMORY_SECONDS, kept=kept)

    def reclaim(self, spaces: str) -> bool:
        """Do what :class:`Queues` says."""
        return self.machine.reclaim(spaces, IN_MEMORY_SECONDS)

    def publish(self, rows: Sequence[tuple[QueueName, bytes, bytes]]) -> None:
        """Do what :class:`Queues` says."""
        for name, envelope, body in rows:
            self._place += 1
            octets = weight(envelope, body)
            letter = Letter(self._place, octets, envelope, body, IN_MEMORY_SECONDS)
            self._do(self.machine.publish, name, [letter], IN_MEMORY_SECONDS)

    def when_accepted(self, names: Iterable[QueueName], accepted: Callable[[], None]) -> None:
        """Do what :class:`Queues` says; profiles ask for one queue at a time."""
        for name in names:
            self.machine.when_room(name, accepted)

    def subscribe(self, consumer: Any, name: QueueName) -> None:
        """Do what :class:`Queues` says; call :meth:`ready` afterwards."""
        self.machine.subscribe(consumer, name, IN_MEMORY_SECONDS)

    def unsubscribe(self, consumer: Any, name: QueueName) -> bool:
        """Do what :class:`Queues` says."""
        return self.machine.unsubscribe(consumer, name, IN_MEMORY_SECONDS)

    def settle(self, consumer: Any, places: Sequence[int]) -> None:
        """Do what :class:`Queues` says."""
        self._do(self.machine.settle, consumer, places)

    def reject(self, consumer: Any, places: Sequence[int], *, requeue: bool) -> None:
        """Do what :class:`Queues` says."""
        self._do(self.machine.reject, consumer, places, requeue=requeue)

    def ready(self, consumer: Any) -> None:
        """Do what :class:`Queues` says."""
        self._do(self.machine.ready, consumer)

    def gone(self, consumer: Any, *, orderly: bool = False) -> None:
        """Do what :class:`Queues` says."""
        self._do(self.machine.gone, consumer, IN_MEMORY_SECONDS, orderly=orderly)

    def snapshot(self) -> Mapping[str, int]:
        """Do what :class:`Queues` says."""
        return self.machine.snapshot()

    def _do(self, call: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """Call the machine, and then let it deliver all that can be delivered.

        A consumer that was called may call back; the outermost call continues with that.
        """
        within, self._within = self._within, True
        try:
            call(*arguments, **named)
            while self.machine.unfinished and not within:
                self.machine.go_on()
        finally:
            self._within = within
        if not within:
            self.machine.take_events()


@dataclass(slots=True)
class Given(Stored):
    """One content that a reader has, with the place of its letter."""

    place: int = 0


class QueueReader:
    """One reader, as a consumer of the broker's."""

    __slots__ = ("_flow", "_profile")

    def __init__(self, flow: ReadingFlow, profile: QueueProfile) -> None:
        self._flow = flow
        self._profile = profile

    def room(self) -> int:
        return max(0, self._flow.room)

    def push(self, queue: QueueName, letters: Sequence[Letter]) -> bool:
        """Send contents; False if the reader never confirms."""
        flow, profile = self._flow, self._profile
        for content, properties in profile.given(queue, letters):
            flow.send(queue.name, content, properties)
            content.properties = content.body = b""  # the broker has them, or the log
        profile.wake()
        return flow.grant.confirm

    def failed(self, error: Exception) -> None:
        self._profile.failed(self._flow, error)


class QueueProfile(Profile):
    """Named queues with competing readers (``MT-26``, ``MT-27``).

    A queue is made when somebody writes to it or summons it.  Each content goes to one reader, in
    turn, as far as readers have space; a reader of several queues has each in turn.  A
    confirmed content is done with; a rejected one is gone, unless it is recycled: then it goes
    back to its place, with the property ``mtl-redeliveries``, and after ``deliveries`` tries to the
    queue of dead letters, ``NAME.dead``.  What a reader has not confirmed when it is gone goes back
    as well.  That is a try for what it had probably seen: contents before the last one that it
    confirmed or rejected, and the one behind; what was only sent ahead has had no try.

    A Confirm to a writer means that the sink has the content safe and that it is in its queue; what
    a queue cannot have, or is one queue too many, is rejected when it comes.  Nobody
    writes to queues of dead letters.
    """

    name = "queue"
    bounded = True
    enveloped = True

    def __init__(
        self,
        limits: Limits | None = None,
        broker: Queues | None = None,
        *,
        space: str | None = None,
    ) -> None:
        """Make a profile.

        ``limits`` has at least :data:`.SERVER_LIMITS`; their defaults where it is None.  ``broker``
        has the queues; None: they are in memory.  ``space`` names the shared namespace that its
        queues are in; None: each virtual host has one of its own.
        """
        super().__init__()
        limits = Limits.of(SERVER_LIMITS) if limits is None else limits
        self._served = broker is not None
        self._broker: Queues = QueuesInMemory(broker_limits(limits)) if broker is None else broker
        self._space = space
        self._heads = Heads()
        self._readers: dict[ReadingFlow, QueueReader] = {}
        self._full: set[QueueName] = set()
        self.foreign: Callable[[Opened], Fields] = no_fields

    def serve(self, broker: Queues, space: str | None = None) -> None:
        """Have the queues in ``broker`` from now on, unless there is a broker already."""
        if not self._served:
            self._served = True
            self._broker, self._space = broker, space

    def queue(self, virtual_host: str, resource: str) -> QueueName:
        space = self._space
        return QueueName(
            f"{SPACES}{virtual_host}/{self.name}" if space is None else space, resource
        )

    def _is_made(self, make: Callable[[], None]) -> bool:
        """Return whether ``make()`` made a queue; one that nobody uses may have to go for it."""
        for _ in range(2):
            try:
                make()
            except TooManyQueues:
                # Servers of other protocols do not make a queue again that has gone meanwhile.
                if self._space is not None or not self._broker.reclaim(SPACES):
                    break
            else:
                return True
        self.counters["too_many_queues"] += 1
        return False

    # ── writers ─────────────────────────────────────────────────────────────────────────────────

    def has_room(self, flow: WritingFlow, resource: str, octets: int) -> bool:
        """The queue may grow, or be made; what is on its way to the sink counts too."""
        if resource.endswith(DEAD):
            return False
        name = self.queue(flow.session.virtual_host, resource)
        machine = self._broker.machine
        if not machine.knows(name) and not self._is_made(partial(self._broker.declare, name)):
            return False
        on_the_way = flow.window.unsafe + len(flow.sequences)
        return not machine.overfull(name, on_the_way + 1, octets)

    def envelopes(
        self, flow: WritingFlow, resources: Sequence[str], properties: Sequence[bytes]
    ) -> list[bytes | None] | None:
        """Return the envelopes that the log keeps; None where the queues are in memory."""
        if not self._broker.durable:
            return None
        host, head = flow.session.virtual_host, self._heads.of
        return [
            head(self.queue(host, resource)) + table
            for resource, table in zip(resources, properties, strict=True)
        ]

    def accept(self, flow: WritingFlow, resource: str, contents: list[Stored]) -> bool | None:
        """Put the contents to their queue; where it is durable, they are there already."""
        name = self.queue(flow.session.virtual_host, resource)
        if not self._broker.durable:
            head = self._heads.of(name)
            self._broker.publish(
                [(name, head + content.properties, content.body) for content in contents]
            )
        if name not in self._full:
            self._full.add(name)
            self._broker.when_accepted([name], partial(self._has_room_again, name))
        return True

    def _has_room_again(self, name: QueueName) -> None:
        self._full.discard(name)
        self.release()
        self.wake()

    def congested(self, flow: WritingFlow) -> bool:
        """A queue that the flow may write to is above its limit."""
        host, covers = flow.session.virtual_host, flow.grant.covers
        return any(covers(name.name) and self.queue(host, name.name) == name for name in self._full)

    # ── readers ─────────────────────────────────────────────────────────────────────────────────

    def summon(self, flow: ReadingFlow, resource: str) -> bool:
        """Return one more competing reader; False if that would be one queue too many."""
        reader = self._readers.get(flow)
        if reader is None:
            reader = self._readers[flow] = QueueReader(flow, self)
        name = self.queue(flow.session.virtual_host, resource)
        return self._is_made(partial(self._broker.subscribe, reader, name))

    def dismiss(self, flow: ReadingFlow, resource: str) -> None:
        """Remove a reader of one queue; what it has of it stays with it."""
        name = self.queue(flow.session.virtual_host, resource)
        self._broker.unsubscribe(self._readers[flow], name)

    def ready(self, flow: ReadingFlow) -> None:
        """Deliver from all queues that the flow has summoned, as far as it has space."""
        reader = self._readers.get(flow)
        if reader is not None:
            self._broker.ready(reader)

    def confirmed(self, flow: ReadingFlow, contents: list[tuple[str, Stored]]) -> None:
        """Tell the broker that they are done with."""
        self.counters["confirmed"] += len(contents)
        self._broker.settle(self._readers[flow], _places(contents))

    def rejected(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], recycle: bool
    ) -> None:
        """Put them back to their places, or forget them."""
        self.counters["recycled" if recycle else "rejected"] += len(contents)
        self._broker.reject(self._readers[flow], _places(contents), requeue=recycle)

    def gone(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], orderly: bool = False
    ) -> None:
        """Return to the queues what the reader has not confirmed."""
        reader = self._readers.pop(flow, None)
        if reader is not None:
            self.counters["recycled"] += len(contents)
            self._broker.gone(reader, orderly=orderly)

    def given(self, name: QueueName, letters: Sequence[Letter]) -> list[tuple[Given, bytes]]:
        """Return letters as contents, each with the properties that a reader gets.

        Raises ValueError for an envelope that makes no sense.
        """
        head, found = self._heads.of(name), []
        for letter in letters:
            table = table_of(letter, head, self._table)
            content = Given(table, letter.body, letter.tries, letter.place)
            found.append((content, marked(table, letter)))
        return found

    def _table(self, envelope: Opened) -> bytes:
        return own_of(self.foreign(envelope))

    def failed(self, flow: ReadingFlow, error: Exception) -> None:
        self.counters["failed"] += 1
        self.end_flow(flow, error)

    def snapshot(self) -> dict[str, object]:
        return {**self.counters, **self._broker.snapshot()}


def _places(contents: list[tuple[str, Stored]]) -> list[int]:
    return [content.place for _, content in contents]  # type: ignore[attr-defined]
