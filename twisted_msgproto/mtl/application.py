"""The default profiles say what a server does with content (``MT-25``, ``MT-26``, ``MT-27``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from ..core.broker import DEAD, QueuedMessage, QueueName, TooManyQueues
from ..net.broker import ServedBroker
from .machine.flows import Profile, ReadingFlow, Stored, WritingFlow
from .queued_messages import head_for, marked, table_of

# ── Ingest and test ───────────────────────────────────────────────────────────────────────────────


class IngestProfile(Profile):
    """Write-only into the sink: Confirm means that the sink has it safe (``MT-26``)."""

    name = "ingest"
    reads = False


class TestProfile(Profile):
    """One resource, never confirmed, fanned out from all writers to all readers (``MT-25``).

    Readers and writers meet within a virtual host.  A reader whose socket is full misses what comes
    meanwhile, and that is counted.
    """

    __test__ = False  # for pytest: this is no class of tests

    name = "test"
    confirmations: ClassVar[Sequence[str]] = ("none",)
    stored = False
    only_resource: ClassVar[str | None] = "resource"

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[str, dict[ReadingFlow, None]] = {}

    def accept(self, flow: WritingFlow, resource: str, contents: list[Stored]) -> bool | None:
        for reader in self._readers.get(flow.session.virtual_host, ()):
            if reader.blocked:
                self.counters["missed"] += len(contents)
                continue
            for content in contents:
                reader.send(resource, content)
        return True

    def summon(self, flow: ReadingFlow, resource: str) -> bool:
        self._readers.setdefault(flow.session.virtual_host, {})[flow] = None
        return True

    def dismiss(self, flow: ReadingFlow, resource: str) -> None:
        readers = self._readers.get(flow.session.virtual_host, {})
        readers.pop(flow, None)
        if not readers:
            self._readers.pop(flow.session.virtual_host, None)


# ── Queues ────────────────────────────────────────────────────────────────────────────────────────


SPACES: Final = "mtl/"
"""Every space of a server has a name that begins with this, unless it is a shared one."""


@dataclass(slots=True)
class Given(Stored):
    message_id: int


class QueueReader:
    """One reader, as a consumer of the broker's."""

    __slots__ = ("_flow", "_profile")

    def __init__(self, flow: ReadingFlow, profile: QueueProfile) -> None:
        self._flow = flow
        self._profile = profile

    def room(self) -> int:
        return self._flow.room

    def push(self, queue: QueueName, messages: Sequence[QueuedMessage]) -> bool:
        flow, profile = self._flow, self._profile
        for content, properties in _given(queue, messages):
            flow.send(queue.name, content, properties)
            content.properties = content.body = b""  # the broker has them, or the log
        profile.wake()
        return flow.grant.confirm

    def failed(self, error: Exception) -> None:
        self._profile.counters["failed"] += 1
        self._profile.end_flow(self._flow, error)


def _given(name: QueueName, messages: Sequence[QueuedMessage]) -> list[tuple[Given, bytes]]:
    """Return messages as contents for a reader; ValueError for an envelope that makes no sense."""
    head, found = head_for(name), []
    for message in messages:
        table = table_of(message, head)
        content = Given(table, message.body, message.message_id)
        found.append((content, marked(table, message)))
    return found


class QueueProfile(Profile):
    """Named queues with competing readers (``MT-26``, ``MT-27``).

    A queue is made when somebody writes to it or summons it.  Each content goes to one reader, in
    turn, as far as readers have space; a reader of several queues has each in turn.  A
    confirmed content is done with; a rejected one is gone, unless it is recycled: then it goes
    back to its place, with the property ``mtl-redeliveries``, and after ``tries`` tries to the
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

    def __init__(self) -> None:
        """Make a profile without queues: its server hands it what has them, by :meth:`serve`."""
        super().__init__()
        self._broker: ServedBroker
        self._space: str | None = None
        self._readers: dict[ReadingFlow, QueueReader] = {}
        self._full: dict[QueueName, bool] = {}  # whether it is durable

    def serve(self, broker: ServedBroker, space: str | None = None) -> None:
        """Have the queues in ``broker``, before anything else is asked for.

        ``space`` names the shared namespace that they are in; None: each virtual host has one of
        its own.
        """
        self._broker, self._space = broker, space

    def queue(self, virtual_host: str, resource: str) -> QueueName:
        """Return the broker's name of a queue."""
        space = self._space
        return QueueName(
            f"{SPACES}{virtual_host}/{self.name}" if space is None else space, resource
        )

    def _is_made(self, make: Callable[[], None]) -> bool:
        """Return whether ``make()`` made a queue; one that nobody uses may have to go for it."""
        while True:
            try:
                make()
                return True
            except TooManyQueues:
                # Servers of other protocols do not make a queue again that has gone meanwhile.
                if self._space or not self._broker.store.reclaim(SPACES, self._broker.now()):
                    self.counters["too_many_queues"] += 1
                    return False

    # ── writers ─────────────────────────────────────────────────────────────────────────────────

    def missing(self, virtual_host: str, resources: Sequence[str]) -> list[str]:
        knows = self._broker.store.knows
        return [name for name in resources if not knows(self.queue(virtual_host, name))]

    def has_room(self, flow: WritingFlow, resource: str, nbytes: int) -> bool:
        """The queue may grow, or be made; what is on its way to the sink counts too."""
        if resource.endswith(DEAD):
            return False
        name = self.queue(flow.session.virtual_host, resource)
        store = self._broker.store
        if not store.knows(name) and not self._is_made(
            partial(store.declare, name, self._broker.now())
        ):
            return False
        on_the_way = flow.window.unsafe + len(flow.sequences)
        return not store.overfull(name, on_the_way + 1, nbytes)

    def envelopes(
        self, flow: WritingFlow, resources: Sequence[str], properties: Sequence[bytes]
    ) -> list[bytes | None] | None:
        if not self._broker.durable:
            return None
        host = flow.session.virtual_host
        return [
            head_for(self.queue(host, resource)) + table
            for resource, table in zip(resources, properties, strict=True)
        ]

    def accept(self, flow: WritingFlow, resource: str, contents: list[Stored]) -> bool | None:
        """Put the contents to their queue; where it is durable, they are there already."""
        name = self.queue(flow.session.virtual_host, resource)
        if not self._broker.durable:
            head = head_for(name)
            self._broker.publish(
                [(name, head + content.properties, content.body) for content in contents]
            )
        if name not in self._full:
            self._full[name] = False
            durable = partial(self._is_durable, name)
            accepted = partial(self._has_room_again, name)
            self._broker.when_accepted([name], accepted, durable=durable)
        return True

    def _is_durable(self, name: QueueName) -> None:
        if name in self._full:
            self._full[name] = True
            if self.draining:
                self._look_at_writers()

    def _has_room_again(self, name: QueueName) -> None:
        del self._full[name]
        self._look_at_writers()

    def _look_at_writers(self) -> None:
        self.release()
        self.wake()

    def congested(self, flow: WritingFlow) -> bool:
        """A queue that the flow may write to is above its limit, or not durable yet.

        At the end of the server a long queue is no reason to leave contents unconfirmed.
        """
        host, covers = flow.session.virtual_host, flow.grant.covers
        return any(
            covers(name.name) and self.queue(host, name.name) == name
            for name, durable in self._full.items()
            if not (durable and self.draining)
        )

    # ── readers ─────────────────────────────────────────────────────────────────────────────────

    def summon(self, flow: ReadingFlow, resource: str) -> bool:
        reader = self._readers.get(flow)
        if reader is None:
            reader = self._readers[flow] = QueueReader(flow, self)
        name = self.queue(flow.session.virtual_host, resource)
        now = self._broker.now()
        return self._is_made(partial(self._broker.machine.subscribe, reader, name, now))

    def dismiss(self, flow: ReadingFlow, resource: str) -> None:
        name = self.queue(flow.session.virtual_host, resource)
        self._broker.machine.unsubscribe(self._readers[flow], name, self._broker.now())

    def ready(self, flow: ReadingFlow) -> None:
        reader = self._readers.get(flow)
        if reader is not None:
            self._broker.machine.ready(reader)

    def confirmed(self, flow: ReadingFlow, contents: list[tuple[str, Stored]]) -> None:
        self.counters["confirmed"] += len(contents)
        self._broker.machine.settle(self._readers[flow], _message_ids(contents))

    def rejected(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], recycle: bool
    ) -> None:
        self.counters["recycled" if recycle else "rejected"] += len(contents)
        self._broker.machine.reject(self._readers[flow], _message_ids(contents), requeue=recycle)

    def gone(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], orderly: bool = False
    ) -> None:
        reader = self._readers.pop(flow, None)
        if reader is not None:
            self.counters["recycled"] += len(contents)
            self._broker.machine.gone(reader, self._broker.now(), orderly=orderly)

    def snapshot(self) -> dict[str, object]:
        return {**self.counters, **self._broker.store.snapshot()}


def _message_ids(contents: list[tuple[str, Stored]]) -> list[int]:
    return [content.message_id for _, content in contents]  # type: ignore[attr-defined]
