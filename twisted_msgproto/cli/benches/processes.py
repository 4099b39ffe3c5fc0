"""Measure what two processes behind one port do beside one: Lumberjack into durable queues.

The gateways are started as users start them, each piece of work with new ones and new queues.  The
load comes from this process, over connections with one window in flight each, and has its share of
the same processors: on a machine with two of them, two processes and the load together have two.
So the rate says little there, and the CPU time of a message what the second process costs.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.net.control.asking import GatewayBroker

from ..measuring import Comparison, Figures, Row
from ..peers import Peer
from .lumberjack import drive, json_window

WINDOW: Final = 1024
CONNECTIONS: Final = 16
"""The kernel spreads this number of connections over both processes, seldom evenly."""
MESSAGES: Final = 1_000_000
SERVING_SECONDS: Final = 60.0
"""All processes of a gateway serve within this time."""

FILE: Final = """\
processes = {count}
[queue]
directory = "queue"
[lumberjack]
"""


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows."""
    messages = max(CONNECTIONS, int(MESSAGES * arguments.scale) // WINDOW) * WINDOW
    two, one = (partial(sent, arguments.queue, count, messages) for count in (2, 1))
    name = f"lumberjack, {CONNECTIONS} connections, into the queues of 2 processes"
    yield Comparison(f"{name}, rate", "1 process", "rate", two, one)
    yield Comparison(f"{name}, CPU", "1 process", "cpu", two, one)


def sent(place: Path | None, count: int, messages: int) -> Figures:
    """Send ``messages`` to a gateway of ``count`` processes; what that cost all of them."""
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        directory = Path(temporary)
        file = directory / "gateway.toml"
        file.write_text(FILE.format(count=count))
        words = [
            *(sys.executable, "-m", "twisted_msgproto", "gateway", "--config", str(file)),
            *("--queue", str(directory / "queue")),
            *("--set", "lumberjack.endpoint=tcp:{port}:interface=127.0.0.1"),
        ]
        with closing(Peer(shlex.join(words), directory, "the gateway")) as gateway:
            await_all(directory / "queue", count)
            windows = messages // WINDOW
            work = partial(drive, gateway.port, json_window(WINDOW), windows, CONNECTIONS)
            return gateway.measure(messages, work)


def await_all(queue: Path, count: int) -> None:
    """Return when all processes serve; RuntimeError if they do not in time."""
    deadline = time.monotonic() + SERVING_SECONDS
    serving = 0
    while serving < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{serving} of {count} processes serve")
        time.sleep(0.05)
        try:
            found = GatewayBroker(str(queue)).figures()["processes"]
        except QueueError:
            continue
        serving = sum(one["state"] == "serving" for one in found)


__all__ = ["comparisons"]
