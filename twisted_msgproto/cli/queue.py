"""Inspect a durable queue: list, check, print and follow it, look after its consumers, trim it.

Reading a queue never needs its lock; only trim and mend acquire it, and refuse while a
gateway writes.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from twisted_msgproto.core.errors import QueueError, QueueLocked

from . import consumers, tail
from .options import FILE, argument, as_json, command, group, one_of, option, reading
from .rows import messages_of, row

DAMAGED = 1  # ``verify`` ends with this exit status when something is damaged
UNSEEN = 3  # the status of ``verify`` if nothing is damaged as far as it could look: not far enough


run = group(__doc__)


def action(
    name: str, text: str, *, of_each: bool = True
) -> Callable[[Callable[[SimpleNamespace], int]], Callable[[SimpleNamespace], int]]:
    """Make an action of a function; of each queue that a directory has in it, or of one."""

    def made(act: Callable[[SimpleNamespace], int]) -> Callable[[SimpleNamespace], int]:
        @functools.wraps(act)
        def asked(arguments: SimpleNamespace) -> int:
            with reading(arguments.directory):
                if not of_each:
                    return act(arguments)
                from twisted_msgproto.queue.queue_directories import queues_at

                places = queues_at(arguments.directory)
                named = len(places) > 1 and name != "mend" and not getattr(arguments, "json", False)
                statuses = []
                for place in places:
                    arguments.directory = Path(place)
                    if named:
                        click.echo(f"{place}:")
                    statuses.append(act(arguments))
                return DAMAGED if DAMAGED in statuses else max(statuses)

        directory = argument("directory DIR", "the queue's directory", FILE)
        run.add_command(command(text, name)(directory(asked)))
        return act

    return made


@action("ls", "segments, offsets, consumers")
@as_json
def _ls(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.core.disk import OS_DISK
    from twisted_msgproto.queue import QueueReader
    from twisted_msgproto.queue.verify import segments

    reader = QueueReader(arguments.directory)
    end = reader.end()
    found = segments(OS_DISK, reader.directory, end)
    consumers = reader.consumers()
    damaged = reader.damaged()
    if arguments.json:
        facts = {
            "directory": os.fspath(arguments.directory),
            "queue_id": reader.queue_id,
            "losses": reader.losses,
            "begin": reader.begin(),
            "end": end,
            "bytes": sum(segment.bytes for segment in found),
            "segments": [
                {"name": part.name, "begin": part.lo, "end": part.hi, "bytes": part.bytes}
                for part in found
            ],
            "consumers": consumers,
            "damaged": damaged,
        }
        print(json.dumps(facts))
        return 0
    print(f"queue {reader.queue_id}")
    if reader.losses:
        print(f"published messages were lost {reader.losses} times")
    print(f"offsets {reader.begin()} to {end}, {sum(part.bytes for part in found)} bytes")
    for part in found:
        print(f"segment {part.name} offsets {part.lo} to {part.hi}, {part.bytes} bytes")
    for name, offset in consumers.items():
        print(f"consumer {name} has committed {offset}, {end - offset} behind")
    for lo, hi in damaged:
        print(f"damaged offsets {lo} to {hi} ({hi - lo} messages)")
    return 0


@action(
    "verify",
    "read every record; exit status 1 if anything is damaged, 3 if not all could be looked at",
)
@as_json
def _verify(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.queue.verify import verify

    report = verify(arguments.directory)
    status, words = DAMAGED, "damaged"
    if report.intact:
        status, words = 0, "intact"
    elif not (report.damaged or report.lines):
        status, words = UNSEEN, "not all could be looked at"
    if arguments.json:
        facts = asdict(report)
        facts |= {
            "directory": os.fspath(arguments.directory),
            "bytes": report.nbytes,
            "messages": report.messages,
            "groups": report.groups,
        }
        print(json.dumps(facts))
    else:
        for line in (*report.notes, *report.lines):
            print(line)
        for line in report.unseen:
            print(f"not looked at: {line}")
        for lo, hi in report.damaged:
            print(f"damaged: queue {report.queue_id} offsets {lo} to {hi} ({hi - lo} messages)")
        print(
            f"queue {report.queue_id}: offsets {report.begin} to {report.end}, "
            f"{report.messages} messages in {report.groups} groups, {report.nbytes} bytes, "
            f"{words}"
        )
    return status


def rows(directory: Path, lo: int | None, hi: int | None) -> Iterator[dict[str, Any]]:
    """A line on stderr names the range of damaged messages."""
    from twisted_msgproto.queue import QueueReader

    reader = QueueReader(one_of(directory))
    begin, end = reader.begin(), reader.end()
    first = begin if lo is None else lo
    last = end if hi is None else min(hi, end)
    place_after = first
    for batch in reader.read(first, max(first, last)):
        for offset, message in messages_of(batch):
            _tell_missing(reader.queue_id, place_after, offset)
            place_after = offset + 1
            yield {"gateway": reader.queue_id, "offset": offset, **row(message)}
    _tell_missing(reader.queue_id, place_after, last)


def _tell_missing(queue_id: str, lo: int, hi: int) -> None:
    if lo < hi:
        text = f"damaged: queue {queue_id} offsets {lo} to {hi} ({hi - lo} messages)"
        print(f"msgproto queue: {text}", file=sys.stderr)


@action("dump", "print a message a line as JSON with the table's column names", of_each=False)
@click.option("--from", "lo", metavar="OFFSET", type=int, help="default: the first")
@click.option("--to", "hi", metavar="OFFSET", type=int, help="exclusive; default: end")
@option("--count N", "end after N messages", int)
def _dump(arguments: SimpleNamespace) -> int:
    for number, found in enumerate(rows(arguments.directory, arguments.lo, arguments.hi)):
        if number == arguments.count:
            break
        print(json.dumps(found, ensure_ascii=False))
    return 0


run.add_command(tail.run, "tail")
run.add_command(consumers.run, "consumers")


@action("trim", "remove the segments which every consumer has committed")
def _trim(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.queue import QueueReader, SegmentLog
    from twisted_msgproto.queue.queue_directories import refuse_of_another

    QueueReader(arguments.directory)  # or else an empty directory would become a queue
    refuse_of_another(arguments.directory)
    with closing(SegmentLog(arguments.directory)) as log:
        for line in log.recovery.lines:
            print(line)
        removed = log.trim()
        print(f"removed {removed} segments; the queue begins at offset {log.begin}")
    return 0


@action(
    "mend",
    "start and end the writer of each queue that no gateway holds, so that all that was"
    " acknowledged lands; exit status 1 if one is refused",
)
def _mend(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.queue import QueueReader, SegmentLog
    from twisted_msgproto.queue.queue_directories import has_broker, refuse_of_another

    place = os.fspath(arguments.directory)
    try:
        QueueReader(place)  # or else an empty directory would become a queue
        refuse_of_another(place)
        with closing(SegmentLog(place)) as log:  # a start publishes what is whole
            lines = log.recovery.lines
    except QueueLocked as error:
        print(f"{place}: in use: {error}")
        return 0
    except (QueueError, OSError) as error:
        print(f"{place}: refused: {error}")
        return DAMAGED
    print(f"{place}: mended, readers see it up to offset {QueueReader(place).end()}")
    for line in lines:
        print(f"{place}: {line}")
    if has_broker(place):
        print(f"{place}: messages in its broker's queues wait until a gateway has it again")
    return 0
