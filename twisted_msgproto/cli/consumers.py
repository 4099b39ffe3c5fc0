"""``msgproto queue consumers`` lists who reads a queue, how far, since when; and forgets them.

Works beside a running gateway, in its directory or over Arrow Flight: the gateway reads what its
consumers need each time it trims.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from twisted_msgproto.core.errors import QueueError, QueueMismatch

if TYPE_CHECKING:
    from twisted_msgproto.queue.source import Queue

CALL_SECONDS_MAX = 10.0
"""A gateway elsewhere may need this long for one answer."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``msgproto queue consumers``."""
    add = parser.add_argument
    add(
        "directory",
        metavar="QUEUE",
        help="the queue's directory, or where a gateway serves it: grpc://HOST:PORT",
    )
    changes = parser.add_mutually_exclusive_group()
    changes.add_argument(
        "--forget", metavar="NAME", help="forget this consumer: what it needs may be trimmed"
    )
    changes.add_argument(
        "--reset",
        nargs=2,
        metavar=("NAME", "OFFSET"),
        help="set this consumer to an offset which the queue still has",
    )
    add("--json", action="store_true", help="one JSON object")
    add("--token-file", metavar="FILE", help="the token for a queue at grpc://HOST:PORT")
    add("--tls-ca", metavar="FILE", help="who signed the certificate of grpc+tls://HOST:PORT")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked, then list who is left; QueueError in one line."""
    queue = _opened(arguments)
    if arguments.forget is not None:
        queue.forget(arguments.forget)
    if arguments.reset is not None:
        name, offset = arguments.reset
        reset(queue, name, offset)
    found = standings(queue, time.time())
    if arguments.json:
        print(json.dumps({"queue_id": queue.queue_id, "consumers": [asdict(one) for one in found]}))
        return 0
    if not found:
        print(f"queue {queue.queue_id} has no consumer; nothing of it is trimmed")
    for one in found:
        print(one.line())
    return 0


def _opened(arguments: argparse.Namespace) -> Queue:
    if arguments.directory.startswith(("grpc://", "grpc+tls://")):
        from twisted_msgproto.spark.flight import FlightQueue

        return FlightQueue(
            arguments.directory,
            token_file=arguments.token_file,
            authority=arguments.tls_ca,
            limit=CALL_SECONDS_MAX,
        )
    from twisted_msgproto.queue import QueueReader

    return QueueReader(arguments.directory)


@dataclass(frozen=True, slots=True)
class Standing:
    """Describes one consumer: its committed offset, and how long it has left rows unread."""

    name: str
    offset: int
    behind: int
    """It has not committed this many rows."""
    moved: int | None
    """Its offset last changed at this time, µs since 1970 UTC; None when that is not known."""
    waits_seconds: float
    """How long it has had rows to commit and has not moved; 0.0 when nothing waits."""

    def line(self) -> str:
        """Return it as one line."""
        moved = "at an unknown time" if self.moved is None else _shown(self.moved)
        line = f"consumer {self.name} has committed {self.offset}, {self.behind} behind"
        line += f", last moved {moved}"
        from twisted_msgproto.queue.consumers import STANDS_STILL_SECONDS

        if self.waits_seconds >= STANDS_STILL_SECONDS:
            line += f"; stands still for {self.waits_seconds / 3600:.1f} h"
        return line


def standings(queue: Queue, now: float) -> list[Standing]:
    """Return every consumer of ``queue`` by name; ``now`` is in seconds since 1970 UTC."""
    from twisted_msgproto.queue.lineage import Landed

    described = queue.describe()
    found = []
    for name, offset in sorted(described.consumers.items()):
        moved = described.moved.get(name)
        try:
            oldest = queue.describe(Landed(max(offset, described.begin))).oldest
        except QueueMismatch:  # the queue was trimmed meanwhile
            oldest = None
        waits = 0.0 if oldest is None else max(0.0, now - max(oldest, moved or 0) / 1e6)
        found.append(Standing(name, offset, max(described.end - offset, 0), moved, waits))
    return found


def reset(queue: Queue, name: str, offset: str) -> None:
    """Set a known consumer to an offset that the queue has, and keep what it needs.

    Raises QueueError for a consumer or number that is none, QueueMismatch for an offset that was
    trimmed (also meanwhile) or is beyond the end.
    """
    described = queue.describe()
    if name not in described.consumers:
        known = ", ".join(sorted(described.consumers)) or "none"
        raise QueueError(f"no consumer {name!r} of the queue {queue.queue_id}; there are: {known}")
    if not offset.isdecimal():
        raise QueueError(f"an offset is a number, not {offset!r}")
    landed = queue.place(int(offset))
    queue.commit(name, landed.offset, landed)
    begin = queue.describe().begin
    if begin > landed.offset:
        raise QueueMismatch(
            f"offset {landed.offset} of the queue {queue.queue_id} was trimmed meanwhile; "
            f"it begins at {begin}"
        )


def _shown(microseconds: int) -> str:
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return moment.isoformat(sep=" ", timespec="seconds")
