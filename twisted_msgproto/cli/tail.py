"""Show the last messages of a queue, and with -f those that arrive from now on.

It reads beside the gateway and is no consumer: nothing waits for it, and no file is kept open while
it prints.  Messages that the gateway removes before they could be shown are named on stderr.
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import compress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import click

from twisted_msgproto import registry
from twisted_msgproto.core.errors import ConfigurationError, QueueAway, QueueMismatch, escaped
from twisted_msgproto.core.loading import closest
from twisted_msgproto.core.message import Message

from .options import (
    Protocol,
    all_opened,
    command,
    flag,
    open_output,
    option,
    queue_options,
    reading,
    whole,
)
from .rows import iso_time, messages_of, row

if TYPE_CHECKING:
    import pyarrow as pa

    from twisted_msgproto.queue.interface import Queue

LINES = 10

AT_ONCE: Final = 1000

LOOK_MILLISECONDS: Final = 200


@command(__doc__)
@queue_options
@click.option("-f", "--follow", is_flag=True, help="show what arrives, too, until Ctrl-C")
@option(
    "-n --lines N",
    f"begin with the last N messages; 0: with the next one (default {LINES})",
    whole(0),
    default=LINES,
)
@option("--protocol NAME", "only messages of this protocol", Protocol(), multiple=True)
@option(
    "--destination GLOB",
    "only messages to this queue, topic, method or resource, such as 'orders.*'",
    multiple=True,
)
@flag("--json", "one JSON object a line, with the table's column names")
def run(arguments: SimpleNamespace) -> int:
    with reading(arguments.directory):
        return _shown(arguments)


def _shown(arguments: SimpleNamespace) -> int:
    output = open_output()
    tails = {
        name: Tail(queue, wanted(arguments), _say) for name, queue in all_opened(arguments).items()
    }
    line = as_json if arguments.json else as_text
    for name, place, message in last_of(tails, arguments.lines):
        print(line(place, message, name))
    while arguments.follow:
        output.flush()
        wait(output.fileno())
        for name, tail in tails.items():
            for place, message in tail.more():
                print(line(place, message, name))
    return 0


def last_of(tails: Mapping[str, Tail], count: int) -> Iterator[tuple[str, int, Message]]:
    if len(tails) == 1:  # they need not be kept
        for name, tail in tails.items():
            yield from ((name, *found) for found in tail.last(count))
        return
    every = [(name, *found) for name, tail in tails.items() for found in tail.last(count)]
    every.sort(key=lambda one: one[2].received_at)
    yield from every[len(every) - min(count, len(every)) :]


def wanted(arguments: SimpleNamespace) -> Callable[[str, str | None], bool]:
    """Raises ConfigurationError for a protocol that does not exist."""
    known = registry.known()
    for name in arguments.protocol:
        if name not in known:
            near = closest(name, known)
            raise ConfigurationError(f"no protocol {name!r}{near}; known: {', '.join(known)}")
    protocols = frozenset(arguments.protocol)
    globs = arguments.destination

    def shown(protocol: str, destination: str | None) -> bool:
        if protocols and protocol not in protocols:
            return False
        return not globs or any(fnmatchcase(destination or "", glob) for glob in globs)

    return shown


class Tail:
    """A reader of a queue from near its end on, a few messages at a time."""

    def __init__(
        self, queue: Queue, shown: Callable[[str, str | None], bool], say: Callable[[str], None]
    ) -> None:
        """``shown(protocol, destination)`` selects messages; ``say`` is told what is missing."""
        self._queue = queue
        self._shown = shown
        self._say = say
        self._next: int  # is known from ``last`` on
        self._away = False

    def last(self, count: int) -> Iterator[tuple[int, Message]]:
        end = self._queue.end()
        self._next = self._start(count, end)
        yield from self._until(end)

    def more(self) -> Iterator[tuple[int, Message]]:
        try:
            end = self._queue.end()
            if end < self._next:
                self._say(f"the queue ends at offset {end} now: messages above it were lost")
                self._next = end
            yield from self._until(end)
        except QueueAway as error:
            if not self._away:
                self._say(f"{error}; trying again")
            self._away = True
            return
        if self._away:
            self._say("the gateway answers again")
        self._away = False

    def _start(self, count: int, end: int) -> int:
        if not count:
            return end
        lo = end
        found: list[int] = []
        while len(found) < count:
            begin = self._queue.begin()
            hi, lo = lo, max(begin, lo - max(AT_ONCE, count))
            if lo >= hi:
                return found[0] if found else end
            places: list[int] = []
            try:
                for batch in self._queue.read(lo, hi, AT_ONCE):
                    wanted = map(
                        self._shown,
                        batch.column("protocol").to_pylist(),
                        batch.column("destination").to_pylist(),
                    )
                    places += compress(batch.column("offset").to_pylist(), wanted)
            except QueueMismatch:  # it was trimmed meanwhile
                if self._queue.begin() <= lo:
                    raise
                lo = hi
                continue
            found = places + found
        return found[-count]

    def _until(self, end: int) -> Iterator[tuple[int, Message]]:
        while self._next < end:
            try:
                batch = self._batch(end)
            except QueueMismatch:
                begin = self._queue.begin()
                if begin <= self._next:
                    raise
                self._say(f"offsets {self._next} to {begin} were removed before they were shown")
                self._next = min(begin, end)
                continue
            for offset, message in () if batch is None else messages_of(batch):
                if self._shown(message.protocol, message.destination):
                    yield offset, message

    def _batch(self, end: int) -> pa.RecordBatch | None:
        """Return the next messages and move on; None if all up to ``end`` are damaged."""
        rows = self._queue.read(self._next, end, AT_ONCE)
        batch = next(rows, None)
        self._next = end if batch is None else batch.column("offset")[-1].as_py() + 1
        for lo, hi in rows.damaged:
            self._say(f"offsets {lo} to {hi} cannot be read: they are damaged")
        return batch


def as_json(offset: int, message: Message, queue: str = "") -> str:
    place: dict[str, object] = {"queue": queue} if queue else {}
    return json.dumps({**place, "offset": offset, **row(message)}, ensure_ascii=False)


def as_text(offset: int, message: Message, queue: str = "") -> str:
    if message.body is None:
        body = json.dumps(dict(message.fields or {}), ensure_ascii=False)
    else:
        body = message.body.decode("utf-8", "backslashreplace")
    time = iso_time(message.received_at)
    place = f"{queue}:{offset}" if queue else str(offset)
    columns = [place, time, message.protocol, message.destination or "-", body]
    return "\t".join(map(escaped, columns))


def wait(output: int) -> None:
    """Wait; BrokenPipeError as soon as nobody reads our output any more."""
    poll = select.poll()
    poll.register(output, 0)  # asks for nothing but that
    if poll.poll(LOOK_MILLISECONDS):
        raise BrokenPipeError


def _say(text: str) -> None:
    sys.stdout.flush()
    click.echo(f"msgproto queue tail: {text}", err=True)
