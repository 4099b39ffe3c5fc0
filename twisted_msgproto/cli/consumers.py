"""``msgproto queue consumers`` lists who reads a queue, how far, since when; resets, forgets them.

Works beside a running gateway, in its directory or over Arrow Flight: the gateway reads what its
consumers need each time it trims.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import click

from twisted_msgproto.core.errors import QueueError, QueueMismatch

from .options import ELSEWHERE, as_json, command, flag, opened, option, queue_options, reading

if TYPE_CHECKING:
    from twisted_msgproto.queue.interface import Queue

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

BRIDGE: Final = re.compile(r"spark-[0-9A-Za-z]{8}")
"""A bridge names its consumer like this, unless ``--consumer`` names it."""

_MARK: Final = (
    "what has landed stands in the table's own log, and the consumer only tells the gateway what it"
    " may remove"
)

RESETTING: Final = (
    f"{_MARK}. Set back, it lands nothing again (msgproto table rewind does), and the bridge moves"
    " it forward with its next batch. Set forward, the gateway may remove messages that have not"
    " landed, and they are lost for the table"
)

FORGETTING: Final = (
    f"{_MARK}. Forgotten, the gateway may remove messages that have not landed; a bridge that runs"
    " makes its consumer known again with its next batch"
)


@command("Show who reads the queue and how far; forget or reset them, also while a gateway writes.")
@queue_options
@option("--forget", metavar="NAME", help="forget this consumer: what it needs may be trimmed")
@option(
    "--reset",
    nargs=2,
    metavar="NAME PLACE",
    help="set this consumer to an offset that the queue still has, to earliest or latest, or to"
    " the first message of a time, such as 2026-01-31T12:00Z",
)
@flag("--yes", "do it, although a bridge has this consumer")
@as_json
def run(arguments: SimpleNamespace) -> int:
    if arguments.forget is not None and arguments.reset is not None:
        raise click.UsageError("--forget and --reset exclude each other")
    with reading(arguments.directory):
        return _changed(arguments)


def _changed(arguments: SimpleNamespace) -> int:
    queue = opened(arguments)
    if arguments.forget is not None:
        if not arguments.yes:
            look_for_bridge(arguments.directory, arguments.forget, FORGETTING)
        queue.forget(arguments.forget)
    if arguments.reset is not None:
        name, place = arguments.reset
        if not arguments.yes:
            look_for_bridge(arguments.directory, name, RESETTING)
        if not arguments.directory.startswith(ELSEWHERE):
            from twisted_msgproto.queue.queue_directories import refuse_of_another

            refuse_of_another(arguments.directory)
        reset(queue, name, offset_of(queue, place))
    found = standings(queue, time.time())
    if arguments.json:
        print(json.dumps({"queue_id": queue.queue_id, "consumers": [asdict(one) for one in found]}))
        return 0
    if not found:
        print(f"queue {queue.queue_id} has no consumer; nothing of it is trimmed")
    for one in found:
        print(one.line())
    return 0


@dataclass(frozen=True, slots=True)
class Standing:
    name: str
    offset: int
    behind: int
    """It has not committed this many rows."""
    moved: int | None
    """Its offset last changed at this time, µs since 1970 UTC; None when that is not known."""
    waits_seconds: float
    """How long it has had rows to commit and has not moved; 0.0 when nothing waits, or it rests."""
    rests_seconds: float = 0.0
    """The next run of its bridge is due after this time."""

    def line(self) -> str:
        moved = "at an unknown time" if self.moved is None else _shown(self.moved)
        line = f"consumer {self.name} has committed {self.offset}, {self.behind} behind"
        line += f", last moved {moved}"
        from twisted_msgproto.queue.consumers import STANDS_STILL_SECONDS

        if self.rests_seconds:
            line += f"; rests, its next run is due within {self.rests_seconds:.0f} s"
        if self.waits_seconds >= STANDS_STILL_SECONDS:
            line += f"; stands still for {self.waits_seconds / 3600:.1f} h"
        return line


def standings(queue: Queue, now: float) -> list[Standing]:
    """Return every consumer of ``queue`` by name; ``now`` is in seconds since 1970 UTC."""
    from twisted_msgproto.queue import QueueReader
    from twisted_msgproto.queue.consumers import read_statuses, rests_until
    from twisted_msgproto.queue.lineage import Landed

    described = queue.describe()
    statuses = read_statuses(queue.directory) if isinstance(queue, QueueReader) else []
    rests = {status["consumer"]: rests_until(status, now) for status in statuses}
    found = []
    for name, offset in sorted(described.consumers.items()):
        moved = described.moved.get(name)
        try:
            oldest = queue.describe(Landed(max(offset, described.begin))).oldest
        except QueueMismatch:  # the queue was trimmed meanwhile
            oldest = None
        until = rests.get(name, 0.0)
        since = None if oldest is None else max(oldest / 1e6, (moved or 0) / 1e6, until)
        waits = 0.0 if since is None else max(0.0, now - since)
        behind = max(described.end - offset, 0)
        found.append(Standing(name, offset, behind, moved, waits, max(0.0, until - now)))
    return found


def look_for_bridge(where: str, name: str, meaning: str) -> None:
    """Raise QueueError, one line, if the consumer ``name`` is that of a bridge.

    ``where`` is the queue's directory or its address; ``meaning`` says what is about to be done.
    """
    bridges: set[object] = set()
    if not where.startswith(ELSEWHERE):
        from twisted_msgproto.queue.consumers import read_statuses

        bridges = {status.get("consumer") for status in read_statuses(where)}
    if name in bridges or BRIDGE.fullmatch(name):
        raise QueueError(
            f"the consumer {name!r} is that of a bridge into a table: {meaning}; if you mean that,"
            " say --yes"
        )


def offset_of(queue: Queue, place: str) -> int:
    """Return the offset that a text means: a number, ``earliest``, ``latest``, or a time.

    Raises QueueError for a text that is none of these, and for a time after the last message.
    """
    if place.isdecimal():
        return int(place)
    if place in (EARLIEST, LATEST):
        return queue.begin() if place == EARLIEST else queue.end()
    try:
        moment = datetime.fromisoformat(place)
    except ValueError:
        raise QueueError(
            f"a place is an offset, {EARLIEST}, {LATEST}, or a time such as 2026-01-31T12:00Z,"
            f" not {place!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    from twisted_msgproto.spark.source_options import offset_at

    found = offset_at(queue, int(moment.timestamp() * 1e6))
    if found is None:
        raise QueueError(
            f"the queue {queue.queue_id} has no message received at or after {place}; {LATEST} is"
            " its end"
        )
    return found


def reset(queue: Queue, name: str, offset: int) -> None:
    """Set a known consumer to an offset that the queue has, and keep what it needs.

    Raises QueueError for a consumer that is none, QueueMismatch for an offset that was trimmed
    (also meanwhile) or is beyond the end.
    """
    described = queue.describe()
    if name not in described.consumers:
        known = ", ".join(sorted(described.consumers)) or "none"
        raise QueueError(f"no consumer {name!r} of the queue {queue.queue_id}; there are: {known}")
    landed = queue.place(offset)
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
