"""Real processes, killed with SIGKILL under load: gateway and bridge, and then the exact table."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chaos.clients import Shipper
from tests.tools.dying import POINTS
from tests.tools.endpoints import reserved
from tests.tools.processes import Launched, Launcher, command_of, descendants, wait_gone
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark.table import LandedTable

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]

START_SECONDS = 600.0
"""How long a bridge may take to its next step on a machine with much else to do."""

ANYWHERE, FROZEN = "anywhere", "frozen"
"""Killed from outside, after some batches; the same, and what the bridge had started lives on."""


class Kill(NamedTuple):
    """One death of a bridge: where, when it is there for the how many-th time, with Java or not."""

    point: str
    nth: int
    java: bool


def kills(chance: random.Random, long: bool) -> Iterator[Kill]:
    """Twelve kills: three of a bridge with Spark, and nine of one which is its own worker.

    Each point is among these nine.  The long form has ten and twenty.
    """
    with_java = [FROZEN, "landed", ANYWHERE]
    without = [*POINTS, ANYWHERE]
    if long:
        with_java += ["linked", "committed", FROZEN, "unmarked", ANYWHERE, "marked", FROZEN]
        without += [*POINTS, "committed", "unmarked", "linked"]
    each = len(without) // len(with_java)
    for number, point in enumerate(with_java):
        for other in without[each * number : each * (number + 1)]:
            yield Kill(other, chance.randint(1, 3), java=False)
        yield Kill(point, chance.randint(1, 3), java=True)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved(1) as [one]:
        yield one


def gateway(launch: Launcher, queue: Path, port: int) -> Launched:
    server = launch(
        *("lumberjack", "-e", f"tcp:{port}:interface=127.0.0.1", "--queue", queue),
        module="twisted",
    )
    server.address("lumberjack")
    return server


def draining(launch: Launcher, queue: Path, table: Path) -> Launched:
    """The bridge after all kills: what is left is landed without Java, as by most of them."""
    words = ("--here", "bridge", "--queue", queue, "--table", table, "--once")
    return launch(*words, module="tests.tools.dying")


def dying_bridge(launch: Launcher, queue: Path, table: Path, kill: Kill) -> Launched:
    words: list[str | Path] = [] if kill.java else ["--here"]
    if kill.point in POINTS:
        # A bridge registers once; the rest it does again and again.
        nth = 1 if kill.point == "registered" else kill.nth
        words += ["--at", kill.point, "--nth", str(nth)]
    words += ["bridge", "--queue", queue, "--table", table, "--master", "local[2]"]
    return launch(*words, "--trigger", "200ms", module="tests.tools.dying")


def chance_of_run() -> random.Random:
    """What decides how far a bridge comes; a seed can be named."""
    return random.Random(os.environ.get("MSGPROTO_SEED", "1"))


def test_nothing_acknowledged_is_lost_and_nothing_lands_twice(
    launch: Launcher, tmp_path: Path, port: int, pytestconfig: pytest.Config
) -> None:
    """LJ-13, LJ-15, TB-01, TB-02: gateway killed twice, bridge twelve times, under load.

    In the long form five and thirty times.
    """
    planned = list(kills(chance_of_run(), pytestconfig.getoption("--long")))
    queue, table = tmp_path / "queue", tmp_path / "table"
    server = gateway(launch, queue, port)
    shippers = [Shipper(name, port) for name in ("a", "b")]
    for shipper in shippers:
        shipper.start()
    shippers[0].await_more(200)
    frozen: set[int] = set()
    left: set[int] = set()
    statuses = []
    try:
        for number, kill in enumerate(planned):
            landing = dying_bridge(launch, queue, table, kill)
            if number % 6 == 5:
                assert server.kill() == -signal.SIGKILL
                server = gateway(launch, queue, port)
            if frozen:
                # What a dead bridge had started goes on while the next one lands.
                landing.line("bridge running from|gateway", seconds=START_SECONDS)
                thaw(frozen)
                left |= frozen
                frozen = set()
            if kill.point not in POINTS:
                landing.line(r"^batch \d+: ", nth=kill.nth, seconds=START_SECONDS)
                if kill.point == FROZEN:
                    frozen = freeze(landing)
                landing.kill()
            statuses.append(landing.wait(seconds=START_SECONDS))
            assert statuses[-1] == -signal.SIGKILL, f"{kill}\n{landing.output}"
    finally:
        thaw(frozen)
    assert len(statuses) == len(planned)
    for pid in left | frozen:
        assert wait_gone(pid)
    for shipper in shippers:
        shipper.finish()
    assert server.end() is not None
    drained = draining(launch, queue, table)
    assert drained.wait(seconds=START_SECONDS) == 0, drained.output

    landed = LandedTable(table).read(["gateway", "offset", "body", "session"])
    acknowledged = set().union(*(shipper.acknowledged for shipper in shippers))
    bodies = Counter(landed["body"].to_pylist())
    assert not acknowledged - bodies.keys()
    offsets = sorted(landed["offset"].to_pylist())
    end = QueueReader(queue).end()
    assert offsets == list(range(end)), "each offset of the queue once, and no other"
    assert len(set(landed["gateway"].to_pylist())) == 1
    # What came twice came over another connection: the wire is at-least-once, the table exact.
    connections = sum(shipper.connections for shipper in shippers)
    assert sum(bodies.values()) - len(bodies) <= connections * 50


def freeze(landing: Launched) -> set[int]:
    """Stops Java and its workers, so that they outlive the bridge.

    The process which watches over the bridge's end goes on: it has the bridge's stderr, and ends
    with the bridge.
    """
    below = {pid for pid in descendants(landing.pid) if "os.kill(pid, 9)" not in command_of(pid)}
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return below


def thaw(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
