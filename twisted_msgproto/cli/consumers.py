"""``msgproto queue consumers`` lists who reads a queue, how far, since when; resets, forgets them.

Works beside a running gateway, in its directory or over Arrow Flight: the gateway reads what its
consumers need each time it trims.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Container, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from twisted_msgproto.core.errors import QueueError, QueueMismatch, age

from .options import ELSEWHERE, as_json, command, flag, opened, option, queue_options, reading

if TYPE_CHECKING:
    from twisted_msgproto.queue.interface import Queue

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

BRIDGE: Final = re.compile(r"spark-[0-9A-Za-z]{8}")  # a bridge's name without ``--consumer``

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
@option("--forget NAME", "forget this consumer: what it needs may be trimmed")
@option(
    "--reset NAME PLACE",
    "set this consumer to an offset that the queue still has, to earliest or latest, or to"
    " the first message of a time, such as 2026-01-31T12:00Z",
    nargs=2,
)
@flag("--yes", "do it, although a bridge has this consumer")
@as_json
def run(arguments: SimpleNamespace) -> int:
    if arguments.forget is not None and arguments.reset is not None:
        raise click.UsageError("--forget and --reset exclude each other")
    with reading(arguments.directory):
        return _changed(arguments)


def _changed(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.queue.consumers import read_statuses, standings
    from twisted_msgproto.queue.queue_directories import refuse_of_another

    queue = opened(arguments)
    # At an address nothing is found.
    statuses = {one["consumer"]: one for one in read_statuses(arguments.directory)}
    if arguments.forget is not None:
        if not arguments.yes:
            look_for_bridge(statuses, arguments.forget, FORGETTING)
        queue.forget(arguments.forget)
    if arguments.reset is not None:
        name, place = arguments.reset
        if not arguments.yes:
            look_for_bridge(statuses, name, RESETTING)
        if not arguments.directory.startswith(ELSEWHERE):
            refuse_of_another(arguments.directory)
        reset(queue, name, offset_of(queue, place))
    found = list(standings(queue, queue.describe(), statuses, time.time()))
    if arguments.json:
        print(json.dumps({"queue_id": queue.queue_id, "consumers": found}))
        return 0
    if not found:
        print(f"queue {queue.queue_id} has no consumer; nothing of it is trimmed")
    for one in found:
        print(line_of(one))
    return 0


def line_of(one: Mapping[str, Any]) -> str:
    from twisted_msgproto.queue.consumers import STANDS_STILL_SECONDS

    moved = "at an unknown time"
    if one["moved"] is not None:
        moment = datetime.fromtimestamp(one["moved"] / 1e6, UTC)
        moved = moment.isoformat(sep=" ", timespec="seconds")
    line = f"consumer {one['name']} has committed {one['offset']}, {one['behind_messages']} behind"
    line += f", last moved {moved}"
    if one["rests_seconds"]:
        line += f"; rests, its next run is due within {age(one['rests_seconds'])}"
    if one["still_seconds"] >= STANDS_STILL_SECONDS:
        line += f"; stands still for {age(one['still_seconds'])}"
    return line


def look_for_bridge(bridges: Container[str], name: str, meaning: str) -> None:
    """QueueError, one line with ``meaning``, if ``name`` is the consumer of a bridge."""
    if name in bridges or BRIDGE.fullmatch(name):
        raise QueueError(
            f"the consumer {name!r} is that of a bridge into a table: {meaning}; if you mean that,"
            " say --yes"
        )


def offset_of(queue: Queue, place: str) -> int:
    """Raises QueueError for what means none, and for a time after the last message."""
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
    """QueueError for no consumer; QueueMismatch for what was trimmed, or is beyond the end."""
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
