"""The queues of a broker are made again from its files while its gateway is stopped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from twisted_msgproto.core.broker import DEAD, Letter, QueueName
from twisted_msgproto.core.errors import QueueError

from ..net.broker.forms import texts_of
from ..net.site.shapes import MessageShown, NoSuchQueue, QueueShown

if TYPE_CHECKING:
    from twisted_msgproto.queue.broker_files import Waiting

READ_AT_ONCE: Final = 100


class StoppedBroker:
    """A :class:`.BrokerView` of a queue directory whose methods return the values themselves.

    It has the queue's lock until it is closed, so no gateway can start meanwhile.
    """

    def __init__(self, directory: str) -> None:
        """Open the files; raises QueueLocked for a gateway that has just begun, and QueueError."""
        from twisted_msgproto.queue import SegmentLog
        from twisted_msgproto.queue.broker_files import BrokerState
        from twisted_msgproto.queue.queue_directories import has_broker

        self._queues: dict[QueueName, Waiting] = {}
        self._log = SegmentLog(directory)
        try:
            for line in self._log.recovery.lines:
                _report(line)
            self._state = None
            if has_broker(directory):
                self._state = BrokerState(self._log, report=_report)
                self._queues = self._state.restored()
        except BaseException:
            self._log.close()
            raise

    def close(self) -> None:
        try:
            if self._state is not None:
                self._state.tend()
                self._state.close()
        finally:
            self._log.close()

    def queues(self) -> list[QueueShown]:
        return [
            QueueShown(
                space=name.space,
                name=name.name,
                waiting=len(rows.places),
                bytes=sum(rows.weights),
                oldest=rows.arrived[0] * 1_000_000 if rows.places else None,
                tries=rows.tries.largest,
            )
            for name, rows in sorted(self._queues.items())
        ]

    def peek(self, space: str, name: str, count: int) -> list[MessageShown]:
        """Return the first messages of a queue; those that are damaged are left out."""
        rows = self._of(space, name)
        assert self._state is not None
        letters: list[Letter] = []
        places = rows.places[:count].tolist()
        for start in range(0, len(places), READ_AT_ONCE):
            loaded = self._state.load(places[start : start + READ_AT_ONCE])
            if loaded.error is not None and loaded.unread:
                raise loaded.error
            letters += loaded.letters
        arrived = dict(zip(places, rows.arrived[:count], strict=True))
        return [
            MessageShown(
                place=letter.place,
                received_at=arrived[letter.place] * 1_000_000,
                tries=rows.tries.number(letter.place),
                bytes=len(letter.body),
                fields=texts_of(letter.envelope),
                body=letter.body,
            )
            for letter in letters
        ]

    def purge(self, space: str, name: str) -> int:
        places = self._taken(space, name)
        assert self._state is not None
        self._state.settle(places)
        self._flush()
        return len(places)

    def requeue(self, space: str, name: str, to: str) -> int:
        self._of(space, name)
        other = QueueName(space, to)
        if to.endswith(DEAD):
            raise NoSuchQueue(f"{to!r} is for dead letters: nothing is put there by hand")
        assert self._state is not None
        if other not in self._queues:
            self._state.declare({other: self._state.end})
        places = self._taken(space, name)
        self._state.move(places, other, tries=False)
        self._flush()
        return len(places)

    def _flush(self) -> None:
        """Write what was changed; QueueError if the disk fails."""
        assert self._state is not None
        try:
            self._state.flush()
        except OSError as error:
            raise QueueError(f"cannot write what was changed: {error}") from None

    def _of(self, space: str, name: str) -> Waiting:
        rows = self._queues.get(QueueName(space, name))
        if rows is None:
            raise NoSuchQueue(f"there is no queue {name!r} in the space {space!r}")
        return rows

    def _taken(self, space: str, name: str) -> Sequence[int]:
        places = self._of(space, name).places.tolist()
        del self._queues[QueueName(space, name)]
        return places


def _report(line: str) -> None:
    print(line, file=sys.stderr)
