"""Inspect a durable queue: list, check, print and follow it, look after its consumers, trim it.

Reading a queue never needs its lock; only ``trim`` and ``mend`` acquire it, and refuse while a
gateway writes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted_msgproto.core.errors import QueueError, QueueLocked
from twisted_msgproto.core.message import Message

from . import consumers, tail
from .queues import one_of
from .rows import row

if TYPE_CHECKING:
    from twisted_msgproto.queue import SegmentLog

SUMMARY = "look into a queue: ls, verify, dump, tail, consumers, trim, mend"

DAMAGED = 1
"""``verify`` ends with this exit status when something is damaged."""
UNSEEN = 3
"""``verify`` ends with this one when nothing is damaged as far as it could look, which is not far
enough.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        dest="action", metavar="ls|verify|dump|tail|consumers|trim|mend", required=True
    )

    def action(name: str, text: str) -> argparse.ArgumentParser:
        known = actions.add_parser(name, help=text, description=text)
        known.add_argument("directory", metavar="DIR", type=Path, help="the queue's directory")
        return known

    ls = action("ls", "segments, offsets, consumers")
    ls.add_argument("--json", action="store_true", help="one JSON object")
    verify = action(
        "verify",
        "read every record; exit status 1 if anything is damaged, 3 if not all could be looked at",
    )
    verify.add_argument("--json", action="store_true", help="one JSON object")
    dump = action("dump", "print a message a line as JSON with the table's column names")
    dump.add_argument("--from", dest="lo", metavar="OFFSET", type=int, help="default: the first")
    dump.add_argument("--to", dest="hi", metavar="OFFSET", type=int, help="exclusive; default: end")
    dump.add_argument("--count", metavar="N", type=int, help="end after N messages")
    text = "show the last messages, and follow what arrives"
    tail.configure(actions.add_parser("tail", help=text, description=tail.__doc__))
    text = "who reads the queue and how far; forget or reset them, also while a gateway writes"
    consumers.configure(actions.add_parser("consumers", help=text, description=text))
    trim = action("trim", "remove the segments which every consumer has committed")
    trim.add_argument(
        "--forget", metavar="CONSUMER", help="first forget this consumer and what it still needs"
    )
    trim.add_argument(
        "--yes",
        action="store_true",
        help="forget it, although it still needs messages or is a bridge's",
    )
    action(
        "mend",
        "start and end the writer of each queue that no gateway holds, so that all that was"
        " acknowledged lands; exit status 1 if one is refused",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; QueueError for what is no queue, or one that is locked (trim).

    What is about all of a queue is done for each that a directory has in it.
    """
    from twisted_msgproto.queue.queue_directories import queues_at

    try:
        if arguments.action not in OF_EACH:
            return ACTIONS[arguments.action](arguments)
        statuses = []
        places = queues_at(arguments.directory)
        for place in places:
            arguments.directory = Path(place)
            if (
                len(places) > 1
                and arguments.action != "mend"
                and not getattr(arguments, "json", False)
            ):
                print(f"{place}:", flush=True)
            statuses.append(ACTIONS[arguments.action](arguments))
        return DAMAGED if DAMAGED in statuses else max(statuses)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise QueueError(f"cannot read the queue {arguments.directory}: {error}") from error


def _ls(arguments: argparse.Namespace) -> int:
    from twisted_msgproto.queue import QueueReader
    from twisted_msgproto.queue.disk import OS_DISK
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
            "octets": sum(segment.octets for segment in found),
            "segments": [
                {"name": part.name, "begin": part.lo, "end": part.hi, "octets": part.octets}
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
    print(f"offsets {reader.begin()} to {end}, {sum(part.octets for part in found)} octets")
    for part in found:
        print(f"segment {part.name} offsets {part.lo} to {part.hi}, {part.octets} octets")
    for name, offset in consumers.items():
        print(f"consumer {name} has committed {offset}, {end - offset} behind")
    for lo, hi in damaged:
        print(f"damaged offsets {lo} to {hi} ({hi - lo} messages)")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from twisted_msgproto.queue.verify import verify

    report = verify(arguments.directory)
    status, words = 0, "all whole"
    if report.damaged or report.lines:
        status, words = DAMAGED, "damaged"
    elif report.unseen:
        status, words = UNSEEN, "not all could be looked at"
    if arguments.json:
        facts = asdict(report)
        facts |= {
            "directory": os.fspath(arguments.directory),
            "octets": report.octets,
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
            f"{report.messages} messages in {report.groups} groups, {report.octets} octets, "
            f"{words}"
        )
    return status


def rows(directory: Path, lo: int | None, hi: int | None) -> Iterator[dict[str, Any]]:
    """Yield the queue's messages lo ≤ offset < hi (default: all) as rows of JSON values.

    Where messages are damaged a line on stderr names their range.
    """
    import pyarrow as pa

    from twisted_msgproto.queue import QueueReader

    reader = QueueReader(one_of(directory))
    begin, end = reader.begin(), reader.end()
    first = begin if lo is None else lo
    last = end if hi is None else min(hi, end)
    place_after = first
    for batch in reader.read(first, max(first, last)):
        times = batch.column("received_at").cast(pa.int64()).to_pylist()
        values = batch.drop_columns(["received_at"]).to_pylist()
        for time, value in zip(times, values, strict=True):
            place = {"gateway": value.pop("gateway"), "offset": value.pop("offset")}
            _tell_missing(reader.queue_id, place_after, place["offset"])
            place_after = place["offset"] + 1
            if value["fields"] is not None:
                value["fields"] = dict(value["fields"])
            yield place | row(Message(received_at=time, **value))
    _tell_missing(reader.queue_id, place_after, last)


def _tell_missing(queue_id: str, lo: int, hi: int) -> None:
    if lo < hi:
        text = f"damaged: queue {queue_id} offsets {lo} to {hi} ({hi - lo} messages)"
        print(f"msgproto queue: {text}", file=sys.stderr)


def _dump(arguments: argparse.Namespace) -> int:
    for number, found in enumerate(rows(arguments.directory, arguments.lo, arguments.hi)):
        if number == arguments.count:
            break
        print(json.dumps(found, ensure_ascii=False))
    return 0


def _trim(arguments: argparse.Namespace) -> int:
    from twisted_msgproto.queue import QueueReader, SegmentLog
    from twisted_msgproto.queue.consumers import remove
    from twisted_msgproto.queue.disk import OS_DISK

    QueueReader(arguments.directory)  # or else an empty directory would become a queue
    log = SegmentLog(arguments.directory)
    try:
        for line in log.recovery.lines:
            print(line)
        if arguments.forget is not None:
            if not arguments.yes:
                _check_forgotten(log, arguments.forget)
            remove(OS_DISK, os.fspath(arguments.directory), arguments.forget)
        removed = log.trim()
        print(f"removed {removed} segments; the queue begins at offset {log.begin}")
    finally:
        log.close()
    return 0


def _mend(arguments: argparse.Namespace) -> int:
    from twisted_msgproto.queue import QueueReader, SegmentLog
    from twisted_msgproto.queue.queue_directories import has_broker

    place = os.fspath(arguments.directory)
    try:
        QueueReader(place)  # or else an empty directory would become a queue
        owner = os.stat(place).st_uid
        if owner != os.geteuid():  # its gateway and bridge could not read what this writes
            raise QueueError(f"it belongs to the user {owner}: run this as that user")
        log = SegmentLog(place, check_octets=0)  # a start publishes what is whole
        log.close()
    except QueueLocked as error:
        print(f"{place}: in use: {error}")
        return 0
    except (QueueError, OSError) as error:
        print(f"{place}: refused: {error}")
        return DAMAGED
    print(f"{place}: mended, readers see it up to offset {QueueReader(place).end()}")
    for line in log.recovery.lines:
        print(f"{place}: {line}")
    if has_broker(place):
        print(f"{place}: messages in its broker's queues wait until a gateway has it again")
    return 0


def _check_forgotten(log: SegmentLog, name: str) -> None:
    offset = max(log.committed().get(name, log.end), log.begin)
    if offset < log.end:
        raise QueueError(
            f"the consumer {name!r} of the queue {log.queue_id} has not committed "
            f"{log.end - offset} messages, offsets {offset} to {log.end}. Forgotten, it may lose "
            "them: they are removed where no other consumer needs them; if you mean that, say --yes"
        )
    consumers.look_for_bridge(log.directory, name, consumers.FORGETTING)


OF_EACH = frozenset({"ls", "verify", "trim", "mend"})
"""These actions are about each queue in a directory."""

ACTIONS = {
    "ls": _ls,
    "verify": _verify,
    "dump": _dump,
    "tail": tail.run,
    "consumers": consumers.run,
    "trim": _trim,
    "mend": _mend,
}
"""Each action is one of these functions."""
