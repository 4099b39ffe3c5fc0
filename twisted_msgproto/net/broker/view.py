"""The queues of running servers, as an operator sees them (:mod:`twisted_msgproto.net.site`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.task import deferLater

from ...core.broker import DEAD, Letter, QueueName, Waiting
from ...core.errors import QueueError
from ..site.queue_view import BODIES_BYTES_MAX, MessageShown, NoSuchQueue, QueueShown
from .forms import texts_of
from .served import ServedBroker

CHANGED_AT_ONCE: Final = 10_000

READ_AT_ONCE: Final = 100


class ServedQueues:
    """A :class:`.BrokerView` of the queues of all servers of a gateway."""

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
        letters = {row.place: row.letter for row in rows if row.letter is not None}
        missing = [row.place for row in rows if row.letter is None]
        for start in range(0, len(missing), READ_AT_ONCE):
            if sum(letter.nbytes for letter in letters.values()) > BODIES_BYTES_MAX:
                break
            read = await broker.read(missing[start : start + READ_AT_ONCE])
            letters |= {letter.place: letter for letter in read}
        return [_shown(row, letters[row.place]) for row in rows if row.place in letters]

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
        """Change what waits now, a part in each turn, durably; what comes meanwhile stays.

        Raises QueueError while the disk fails.
        """
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


def _shown(row: Waiting, letter: Letter) -> MessageShown:
    return MessageShown(
        place=row.place,
        received_at=int(row.arrived * 1e6),
        tries=row.tries,
        bytes=len(letter.body),
        fields=texts_of(letter.envelope),
        body=letter.body,
    )
