"""Measure what a message costs when there is ten times more of something: CPU time at 10 × beside 1
×.

Work that grows linearly costs the same a message at either size; a ratio of 1.1 is the mark.  What
grows, one at a time:

* *messages*: as many more on one connection, in windows of 2,000.
* *connections*: 40 instead of 4, each of them with the same work (so what it costs to accept one is
  a part of it on both sides), in windows of 200.
* *window*: 2,000 events instead of 200, for as many events in all.  Wider windows make a message
  cheaper, so here linear means: not dearer.
* *backlog*: a queue that already holds ten times more, for the gateway that appends to it and
  for whoever reads it from the beginning.
* *idle peers*: 100 and 1,000 of them instead of one, for each protocol; see :mod:`.idle_peers`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from twisted_msgproto.cli.benches.lumberjack import MODULE, Subjects, drive, json_window
from twisted_msgproto.queue import QueueReader

from ..measuring import Comparison, Figures, Measured, Row, Subject, timed
from . import idle_peers

MARK = 1.1
TIMES = 10
NARROW = 200
WIDE = NARROW * TIMES
MESSAGES = 200_000
"""There are this many at 1 ×, on one connection."""
CONNECTIONS = 4
SHARE = 50_000
"""One connection has this many messages where there are many connections."""
BACKLOG = 200_000
"""The queue holds this many at 1 ×."""


class Load(NamedTuple):
    """Sends ``windows`` windows of ``size`` events over a number of connections, one in flight
    on each.
    """

    windows: int
    size: int = WIDE
    connections: int = 1

    def run(self, subject: Measured) -> Figures:
        """Send it; what it cost the server."""
        window = json_window(self.size)
        return subject.measure(
            self.windows * self.size,
            partial(drive, subject.port, window, self.windows, self.connections),
        )


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of growth; ``arguments`` are those of ``msgproto bench``."""

    def scaled(messages: int, size: int) -> int:
        return max(1, int(messages * arguments.scale) // size)

    few, stored = scaled(MESSAGES, WIDE), scaled(BACKLOG, WIDE)
    shared = scaled(SHARE, NARROW) * CONNECTIONS
    # As many events at either width: the narrow windows are a multiple of the wide ones.
    wide = scaled(MESSAGES * TIMES // 2, WIDE)
    grown: tuple[tuple[str, Load, Load], ...] = (
        ("messages × 10", Load(few), Load(few * TIMES)),
        (
            f"connections {CONNECTIONS} → {CONNECTIONS * TIMES}",
            Load(shared, NARROW, CONNECTIONS),
            Load(shared * TIMES, NARROW, CONNECTIONS * TIMES),
        ),
        (f"window {NARROW} → {WIDE:,}", Load(wide * TIMES, NARROW), Load(wide, WIDE)),
    )
    for kind, sink in (("counting", "counting sink"), ("durable", "into the queue")):
        for name, once, more in grown:
            with _made(arguments) as made, closing(Subjects(Path(made))) as subjects:
                words = (kind, made) if kind == "durable" else (kind,)

                def run(load: Load, words: tuple[str, ...] = words) -> Figures:
                    return load.run(subjects.get(*words))

                yield _row(f"growth, {name}, {sink}", partial(run, more), partial(run, once))
    yield _row(
        "growth, backlog × 10, appending to it",
        lambda: _append_behind(arguments, stored * TIMES, few),
        lambda: _append_behind(arguments, stored, few),
    )
    with _made(arguments) as made:
        queues = {windows: Path(made, str(windows)) for windows in (stored, stored * TIMES)}
        yield _row(
            "growth, backlog × 10, reading it",
            lambda: _read(queues[stored * TIMES], stored * TIMES),
            lambda: _read(queues[stored], stored),
        )
    yield from idle_peers.comparisons(arguments)


def _made(arguments: argparse.Namespace) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue)


def _row(name: str, more: Callable[[], Figures], once: Callable[[], Figures]) -> Comparison:
    return Comparison(name, "the same at 1 ×", "cpu", more, once, mark=MARK)


def _filled(directory: Path, windows: int) -> Subject:
    """Return a gateway whose queue holds this many windows."""
    subject = Subject(MODULE, "durable", str(directory))
    try:
        drive(subject.port, json_window(WIDE), windows, CONNECTIONS, 2)
    except BaseException:
        subject.close()
        raise
    return subject


def _append_behind(arguments: argparse.Namespace, stored: int, windows: int) -> Figures:
    """Measure what a gateway uses for ``windows`` when its queue holds ``stored`` already.

    Each time a new one, because what is measured adds to the backlog.
    """
    with _made(arguments) as made, closing(_filled(Path(made), stored)) as subject:
        return Load(windows).run(subject)


def _read(directory: Path, windows: int) -> Figures:
    """Read a queue of this many windows from its beginning, in this process."""
    if not directory.exists():
        directory.mkdir()
        _filled(directory, windows).close()
    reader = QueueReader(directory / "queue")
    with timed(windows * WIDE) as figures:
        rows = sum(batch.num_rows for batch in reader.read(reader.begin(), reader.end()))
    if rows != windows * WIDE:
        raise RuntimeError(f"{rows} rows in a queue of {windows * WIDE}")
    return figures
