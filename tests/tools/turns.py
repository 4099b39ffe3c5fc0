"""The watch of hostile tests: how much CPU time each turn of a server took (NB-07).

How long a piece of work takes differs from machine to machine, so the bound is a ratio: a turn may
cost as much as a fixed piece of work in the same process, so many times.  Tests that can count the
work of a turn count it as well; real figures are for ``./run chaos``.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.tools.processes import Launched
from twisted_msgproto.net import SessionFactory
from twisted_msgproto.net.turns import TurnWatch

WORKS = 10
"""A turn may cost as much as this many pieces of work: about 100 ms where one takes 10 ms."""

SAID = "ms of CPU time in one turn"
"""What a server says of a turn that was too long."""

_TEXT = json.dumps([{"name": f"event {number}", "values": [number] * 5} for number in range(300)])


def work_seconds() -> float:
    """CPU seconds of a fixed piece of work; about 0.01 on the machine this was written on."""
    began = time.thread_time()
    for _ in range(60):
        found = json.loads(_TEXT)
        sorted((len(entry["name"]), entry["name"].upper()) for entry in found)
    return time.thread_time() - began


def bound_seconds() -> float:
    """CPU seconds that a turn may take here and now."""
    return WORKS * max(work_seconds() for _ in range(2))


def turn_warn() -> str:
    """The option that has a server watch its turns in a hostile test."""
    return f"--turn-warn={bound_seconds() * 1e3:.0f}"


def check_servers(servers: list[Launched]) -> None:
    """No server that was told to watch has said that a turn was too long; AssertionError."""
    said = [line for server in servers for line in server.lines if SAID in line]
    assert not said, said


class Turns:
    """What the turns of this process took.

    Attributes:
        worst: CPU seconds of the longest, and whose input it was.
        count: how many turns there were.
    """

    def __init__(self) -> None:
        self.worst = (0.0, "")
        self.count = 0

    def taken(self, peer: str, host: str, spent: float) -> None:
        self.count += 1
        self.worst = max(self.worst, (spent, peer))

    def check(self) -> None:
        spent, peer = self.worst
        bound = bound_seconds() if spent > 0.01 else spent
        assert spent <= bound, (
            f"{peer}: its input took {spent * 1e3:.0f} ms of CPU time in one turn;"
            f" {WORKS} pieces of work take {bound * 1e3:.0f} ms"
        )


@contextmanager
def watched_turns() -> Iterator[Turns]:
    """Measure every turn of every connection that begins in the block, and check them."""
    turns = Turns()
    gc.freeze()  # what other tests have left is not looked through in these turns
    try:
        with mock.patch.object(SessionFactory, "turnWatch", TurnWatch(-1.0, turns.taken)):
            yield turns
    finally:
        gc.unfreeze()
    turns.check()
