"""The stock profiles say what a server does with content (``MT-25``, ``MT-26``)."""

from __future__ import annotations

from collections import deque
from typing import Final

from ..core.limits import Limits
from .machine.flows import ReadingFlow, Stored, WritingFlow
from .machine.profile import Profile
from .terms.limits import SERVER_LIMITS
from .wire.data import SHORT_STRING_OCTETS_MAX as NAME_OCTETS_MAX
from .wire.fields import with_field

TEST_RESOURCE: Final = "resource"
REDELIVERIES: Final = "mtl-redeliveries"
"""This property says how often a content was delivered before."""

DEAD_LETTERS: Final = ".dead"
"""What is put to a queue's name for the queue of its dead letters."""


class IngestProfile(Profile):
    """Write-only into the sink: Confirm means that the sink has it safe (``MT-26``)."""

    name = "ingest"
    reads = False


class TestProfile(Profile):
    """Has one resource, never confirmed, fanned out from all writers to all readers (``MT-25``).

    Readers and writers meet within a virtual host.  A reader whose socket is full misses what comes
    meanwhile, and that is counted.
    """

    __test__ = False  # for pytest: this is no class of tests

    name = "test"
    confirmations = ("none",)
    stored = False
    only_resource = TEST_RESOURCE

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[str, dict[ReadingFlow, None]] = {}

    def accept(self, flow: WritingFlow, resource: str, contents: list[Stored]) -> bool | None:
        """Deliver the contents to all readers."""
        for reader in self._readers.get(flow.session.virtual_host, ()):
            if reader.blocked:
                self.counters["missed"] += len(contents)
                continue
            for content in contents:
                reader.send(resource, content)
        return True

    def summon(self, flow: ReadingFlow, resource: str) -> bool:
        """Return one more reader."""
        self._readers.setdefault(flow.session.virtual_host, {})[flow] = None
        return True

    def dismiss(self, flow: ReadingFlow, resource: str) -> None:
        """Remove a reader."""
        readers = self._readers.get(flow.session.virtual_host, {})
        readers.pop(flow, None)
        if not readers:
            self._readers.pop(flow.session.virtual_host, None)


class _Queue:
    """Is one named queue: what waits, and who reads, the next reader in turn first."""

    __slots__ = ("readers", "resource", "waiting")

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.waiting: deque[Stored] = deque()
        self.readers: deque[ReadingFlow] = deque()


class QueueProfile(Profile):
    """Has named queues in memory with competing readers (``MT-26``, ``MT-27``).

    A queue is made when somebody writes to it or summons it.  Each content goes to one reader, in
    turn, as far as readers have space.  A confirmed content is done with; a rejected one is gone,
    unless it is recycled: then it goes back to the head, with the property ``mtl-redeliveries``,
    and after the limit ``deliveries`` to the queue of dead letters, ``NAME.dead``.  What a reader
    has not confirmed when it is gone is recycled.

    A Confirm to a writer means that the sink has the content safe and that it is in its queue; what
    a queue cannot take is rejected.  The queues themselves are in
    memory: when the process ends, what readers had not confirmed is lost to them, though not to the
    sink.
    """

    name = "queue"
    bounded = True

    def __init__(self, limits: Limits | None = None) -> None:
        """``limits`` has at least :data:`.SERVER_LIMITS`; their defaults where it is None."""
        super().__init__()
        limits = Limits.of(SERVER_LIMITS) if limits is None else limits
        self._queues_max = limits.integer("queues")
        self._contents_max = limits.integer("queue-contents")
        self._octets_max = limits.integer("queue-octets")
        self._deliveries_max = limits.integer("deliveries")
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._congested: set[tuple[str, str]] = set()
        self.octets = 0

    def _queue(self, virtual_host: str, resource: str) -> _Queue | None:
        key = (virtual_host, resource)
        queue = self._queues.get(key)
        if queue is None and len(self._queues) < self._queues_max:
            queue = self._queues[key] = _Queue(resource)
        return queue

    def has_room(self, flow: WritingFlow, resource: str, octets: int) -> bool:
        """The queue may grow, or be made; what is on its way to the sink counts too."""
        if self.octets + octets > self._octets_max:
            return False
        queue = self._queues.get((flow.session.virtual_host, resource))
        if queue is None:
            return len(self._queues) < self._queues_max
        on_the_way = flow.window.unsafe + len(flow.sequences)
        return len(queue.waiting) + on_the_way < 2 * self._contents_max

    def accept(self, flow: WritingFlow, resource: str, contents: list[Stored]) -> bool | None:
        """Put the contents to the queue's tail, and deliver what readers have space for."""
        host = flow.session.virtual_host
        queue = self._queue(host, resource)
        if queue is None:
            # There was room for one more queue when they came.
            self.counters["overflowed"] += len(contents)
            return False
        queue.waiting.extend(contents)
        self.octets += sum(content.octets for content in contents)
        self._pump(host, queue)
        if len(queue.waiting) > self._contents_max:
            self._congested.add((host, resource))
        return True

    def congested(self, flow: WritingFlow) -> bool:
        """A queue that the flow may write to is above its limit."""
        host = flow.session.virtual_host
        return any(
            vhost == host and flow.grant.covers(resource) for vhost, resource in self._congested
        )

    def summon(self, flow: ReadingFlow, resource: str) -> bool:
        """Return one more competing reader; False if that would be one queue too many."""
        queue = self._queue(flow.session.virtual_host, resource)
        if queue is None:
            return False
        queue.readers.append(flow)
        return True

    def dismiss(self, flow: ReadingFlow, resource: str) -> None:
        """Remove a reader."""
        host = flow.session.virtual_host
        queue = self._queues[host, resource]
        queue.readers.remove(flow)
        self._forget_if_empty(host, queue)

    def ready(self, flow: ReadingFlow) -> None:
        """Deliver from all queues that the flow has summoned, as far as it has space."""
        host = flow.session.virtual_host
        for resource in list(flow.summoned):
            self._pump(host, self._queues[host, resource])

    def confirmed(self, flow: ReadingFlow, contents: list[tuple[str, Stored]]) -> None:
        """Count them: they are done with."""
        self.counters["confirmed"] += len(contents)

    def rejected(
        self, flow: ReadingFlow, contents: list[tuple[str, Stored]], recycle: bool
    ) -> None:
        """Put them back to the head in their old order, or forget them."""
        if not recycle:
            self.counters["rejected"] += len(contents)
            return
        host = flow.session.virtual_host
        returned: dict[_Queue, None] = {}
        for resource, content in reversed(contents):
            dead = content.deliveries >= self._deliveries_max
            name = resource + DEAD_LETTERS if dead else resource
            queue = self._queue(host, name) if len(name.encode()) <= NAME_OCTETS_MAX else None
            if queue is None or (dead and len(queue.waiting) >= self._contents_max):
                self.counters["overflowed"] += 1
                continue
            if dead:
                self.counters["dead_letters"] += 1
                queue.waiting.append(Stored(content.properties, content.body))
            else:
                self.counters["recycled"] += 1
                queue.waiting.appendleft(content)
            self.octets += content.octets
            returned[queue] = None
        for queue in returned:
            self._pump(host, queue)

    def _pump(self, host: str, queue: _Queue) -> None:
        """Deliver what waits, one reader after the other, as far as they have space."""
        waiting, readers = queue.waiting, queue.readers
        full = 0
        while waiting and full < len(readers):
            reader = readers[0]
            readers.rotate(-1)
            if reader.room <= 0:
                full += 1
                continue
            full = 0
            content = waiting.popleft()
            self.octets -= content.octets
            content.deliveries += 1
            reader.send(queue.resource, content, _properties(content))
        key = (host, queue.resource)
        if key in self._congested and len(waiting) <= self._contents_max // 2:
            self._congested.discard(key)
            self.release()
        self._forget_if_empty(host, queue)

    def _forget_if_empty(self, host: str, queue: _Queue) -> None:
        if not queue.waiting and not queue.readers:
            self._queues.pop((host, queue.resource), None)

    def snapshot(self) -> dict[str, object]:
        """Return the profile's figures as plain values."""
        return {
            **self.counters,
            "queues": len(self._queues),
            "contents": sum(len(queue.waiting) for queue in self._queues.values()),
            "octets": self.octets,
        }


def _properties(content: Stored) -> bytes:
    """The content's own properties, and from the second delivery on how often it came before."""
    if content.deliveries == 1:
        return content.properties
    try:
        return with_field(content.properties, REDELIVERIES, content.deliveries - 1)
    except ValueError:
        return content.properties  # it has as many fields as a table may have
