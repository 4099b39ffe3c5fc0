"""Tests of this project that ``./run chaos`` repeats more often: kills, order, disk and clock."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

from tests.chaos.report import Found, NotHere, Row
from tests.tools.processes import PROJECT, environment

KILLS, TIMES = 100, 20
FIGURE = re.compile(r"figure: (.*)")
KILLED = "tests/contract/test_kills.py"
FIVE = "tests/chaos/test_five.py"
ORDER = "tests/chaos/test_order.py"
QUEUES = "tests/chaos/test_queues.py"
WITHHELD = "acks are withheld; 0 acknowledged messages lost"


def repeat(test: str, words: tuple[str, ...], scale: float) -> Found:
    """Run the tests of a file that ``-k`` chooses; what they print as figures is the text."""
    told = environment(
        MSGPROTO_KILLS=str(max(2, round(KILLS * scale))),
        MSGPROTO_TIMES=str(max(2, round(TIMES * scale))),
    )
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        [*command, *words, f"--timeout={max(900, int(7200 * scale))}"],
        cwd=PROJECT,
        env=told,
        capture_output=True,
        text=True,
    )
    skipped = re.search(r"SKIPPED \[\d+\] \S+ (.*)", done.stdout)
    if skipped and "passed" not in done.stdout:
        raise NotHere(skipped[1])
    figures = FIGURE.findall(done.stdout)
    summary = done.stdout.strip().splitlines()[-1:] or [f"ended with {done.returncode}"]
    return Found("; ".join(figures) or summary[0], done.returncode == 0)


ROWS = (
    Row(
        "kills",
        "kill -9 of the gateway while all five protocols send",
        "100 kills; 0 acknowledged messages lost",
        partial(repeat, KILLED, ()),
    ),
    Row(
        "kills",
        "kill -9 of the gateway under publishers and consumers of its queues",
        "20 kills; all that was acknowledged is delivered, settled, and in the table once",
        partial(repeat, QUEUES, ()),
    ),
    Row(
        "order",
        "strace of the gateway: write, fdatasync, acknowledgement",
        "in this order, for all five protocols",
        partial(repeat, ORDER, ()),
    ),
    *(
        Row(
            "disk",
            name,
            WITHHELD,
            partial(repeat, FIVE, words),
        )
        for name, words in {
            "no room on the disk while all five protocols send": ("-k", "room"),
            "EIO of every fifth fdatasync while all five protocols send": ("-k", "sync"),
        }.items()
    ),
    Row(
        "clock",
        "the wall clock is set an hour and a day while all five protocols send",
        "every message is acknowledged; 0 lost",
        partial(repeat, FIVE, ("-k", "clock")),
    ),
)
