"""The file ``broker/names`` lists the queues, each with the offset at which it began."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping

from twisted_msgproto.core.broker.terms import QueueName

from ...core.disk import NO_ROOM, Disk, exists, read_file, replace_file
from ..format import seal, unseal

FILE = "names"
VERSION = 1
_HEAD = re.compile(r"msgproto-broker (\d+) ([0-9a-f]{32})", re.ASCII)
_QUEUE = re.compile(r"queue (\d{1,20}) (\[.*\])", re.ASCII)


class Names:
    """The queues of a broker, durably.  Any method may raise OSError; then nothing has changed."""

    def __init__(self, disk: Disk, directory: str, queue_id: str) -> None:
        self._disk = disk
        self._path = os.path.join(directory, FILE)
        self._queue_id = queue_id
        nbytes = read_file(disk, self._path)
        known = None if nbytes is None else parsed(nbytes, queue_id)
        self.missing: bool = nbytes is None
        # Then each queue is known from its messages alone, until the file is written.
        self.damaged: bool = known is None
        self.first: dict[QueueName, int] = known or {}  # what came before is not for it

    def holds(self, name: QueueName, message_id: int) -> bool:
        """Return whether a queue has a message; while damaged, one that is asked for is known."""
        first = self.first.get(name)
        if first is None and self.damaged:
            first = self.first[name] = message_id
        return first is not None and first <= message_id

    def declare(self, names: Mapping[QueueName, int]) -> None:
        """Make queues durable, each with its first offset; those that are known stay."""
        new = {name: first for name, first in names.items() if name not in self.first}
        if new or self.damaged:
            self._write(self.first | new)

    def forget(self, names: Iterable[QueueName]) -> None:
        gone = set(names) & self.first.keys()
        if gone:
            self._write({name: at for name, at in self.first.items() if name not in gone})

    def write(self) -> None:
        """Write the file again if it was damaged, or is missing though there are queues."""
        if self.damaged:
            wanted = bool(self.first) or not self.missing
        else:
            wanted = bool(self.first) and not exists(self._disk, self._path)
        if wanted:
            self._write(self.first)

    def renew(self) -> None:
        """Write again what was read: a sync of its name may have failed, and seem well now."""
        if not self.damaged:
            try:
                self._write(self.first)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise

    def _write(self, first: dict[QueueName, int]) -> None:
        replace_file(self._disk, self._path, sealed(self._queue_id, first))
        self.first = first
        self.damaged = False


def sealed(queue_id: str, first: Mapping[QueueName, int]) -> bytes:
    lines = [f"msgproto-broker {VERSION} {queue_id}"]
    lines += [f"queue {offset} {json.dumps(list(name))}" for name, offset in first.items()]
    return b"".join([seal(line) for line in [*lines, f"end {len(first)}"]])


def parsed(data: bytes, queue_id: str) -> dict[QueueName, int] | None:
    """Return what the file says; None if it is damaged, or is of another queue or version."""
    lines = [unseal(line) or "" for line in data.splitlines()]
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None or (int(head[1]), head[2]) != (VERSION, queue_id):
        return None
    found = {}
    for line in lines[1:-1]:
        queue = _QUEUE.fullmatch(line)
        if queue is None:
            return None
        try:
            space, name = json.loads(queue[2])
            found[QueueName(space, name)] = int(queue[1])
        except (ValueError, TypeError, RecursionError):
            return None
    return found if lines[-1] == f"end {len(found)}" else None
