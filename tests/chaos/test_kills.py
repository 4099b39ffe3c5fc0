"""Real processes, killed with SIGKILL under load: gateway and bridge, and then the exact table.

Two bridges on one table, too: real processes, exact.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable

from tests.chaos.clients import Shipper
from tests.spark.conftest import identity, messages, write
from tests.tools.dying import POINTS
from tests.tools.endpoints import reserved
from tests.tools.loops import landed_offsets
from tests.tools.processes import Launched, Launcher, command_of, descendants, wait_gone
from tests.tools.s3 import Store
from twisted_msgproto.queue import QueueReader

START_SECONDS = 600.0
"""How long a bridge may take to its next step on a machine with much else to do."""

ANYWHERE, FROZEN = "anywhere", "frozen"
"""Killed from outside, after some batches; the same, and what the bridge had started lives on."""


IN_OBJECTS = [point for point in POINTS if point != "linked"]
"""An object store makes a commit visible and durable in one step."""


class Kill(NamedTuple):
    """One death of a bridge: where, when it is there for the how many-th time, with Java or not."""

    point: str
    nth: int
    java: bool


def kills(chance: random.Random, points: Collection[str], long: bool) -> Iterator[Kill]:
    """Twelve kills: three of a bridge with Spark, and nine of one which is its own worker.

    Each point is among these nine.  The long form has ten and twenty.
    """
    with_java = [FROZEN, "landed", ANYWHERE]
    without = [*points, ANYWHERE]
    if long:
        with_java += ["synced", "committed", FROZEN, "unmarked", ANYWHERE, "marked", FROZEN]
        without += [*points, "committed", "unmarked", "landed", "planned", "marked"]
        del without[20:]
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


def draining(launch: Launcher, queue: Path, landing: Sequence[str]) -> Launched:
    """The bridge after all kills: what is left is landed without Java, as by most of them."""
    words = ("bridge", "--queue", str(queue), *landing, "--once")
    return launch("--here", *words, module="tests.tools.dying")


def dying_bridge(launch: Launcher, queue: Path, landing: Sequence[str], kill: Kill) -> Launched:
    words: list[str | Path] = [] if kill.java else ["--here"]
    if kill.point in POINTS:
        # A bridge registers once; the rest it does again and again.
        nth = 1 if kill.point == "registered" else kill.nth
        words += ["--at", kill.point, "--nth", str(nth)]
    words += ["bridge", "--queue", queue, *landing, "--master", "local[2]"]
    return launch(*words, "--trigger", "200ms", module="tests.tools.dying")


def chance_of_run() -> random.Random:
    """What decides how far a bridge comes; a seed can be named."""
    return random.Random(os.environ.get("MSGPROTO_SEED", "1"))


@pytest.mark.slow
@pytest.mark.xdist_group("kills")  # all of Spark here are processes of their own
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("storage", ["disk", pytest.param("s3", marks=pytest.mark.long)])
def test_nothing_acknowledged_is_lost_and_nothing_lands_twice(
    launch: Launcher, tmp_path: Path, port: int, storage: str, request: pytest.FixtureRequest
) -> None:
    """LJ-13, LJ-15, TB-01, TB-02: gateway killed twice, bridge twelve times, under load.

    In the long form five and thirty times, and as often with the table in an object store.
    """
    queue, table = tmp_path / "queue", str(tmp_path / "table")
    options: dict[str, str] = {}
    if storage == "s3":
        store: Store = request.getfixturevalue("s3")
        table, options = store.new_location(), store.options
    given = [word for name, value in options.items() for word in ("--storage", f"{name}={value}")]
    to_table = ["--table", table, *given]
    points = IN_OBJECTS if options else list(POINTS)
    planned = list(kills(chance_of_run(), points, request.config.getoption("--long")))
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
            landing = dying_bridge(launch, queue, to_table, kill)
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
                landing.line(r"batch \d+: ", nth=kill.nth, seconds=START_SECONDS)
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
    drained = draining(launch, queue, to_table)
    assert drained.wait(seconds=START_SECONDS) == 0, drained.output

    columns = ["gateway", "offset", "body", "session"]
    landed = DeltaTable(table, storage_options=options).to_pyarrow_table(columns=columns)
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


def here(launch: Launcher, queue: Path, *options: str) -> Launched:
    words = ["bridge", "--queue", str(queue), "--table", "table", "--trigger", "0", *options]
    return launch("--here", *words, module="tests.tools.dying")


def batch(process: Launched, rows: int) -> None:
    process.line(rf"batch \d+: .* {rows} rows in all", seconds=START_SECONDS)


@pytest.mark.slow
def test_of_two_bridges_of_one_gateway_one_ends_and_names_the_other__TB_03_TB_04(
    launch: Launcher, tmp_path: Path
) -> None:
    """TB-03, TB-04: no lock keeps them apart, as on two machines; the table does."""
    queue = tmp_path / "queue"
    write(queue, messages(0, 100))
    bridges = [here(launch, queue, "--consumer", name) for name in ("one", "two")]
    for process in bridges:
        process.line("bridge running from", seconds=START_SECONDS)
    written = 100
    while all(process.process.poll() is None for process in bridges):
        # Whose commit comes second has lost, sooner or later.
        assert written < 100_000, "both go on"
        write(queue, messages(written, 10))
        written += 10
    [loser] = [process for process in bridges if process.process.poll() is not None]
    [winner] = [process for process in bridges if process is not loser]
    assert loser.wait() == 2
    said = [line for line in loser.lines if line.startswith("msgproto bridge: ")]
    assert said == [loser.lines[-1]]
    assert f"process {winner.pid} on {socket.gethostname()}" in said[0]
    write(queue, messages(written, 10))
    written += 10
    winner.line(r"batch \d+: .*lag 0 rows", seconds=START_SECONDS)
    winner.signal(signal.SIGTERM)
    assert winner.wait(seconds=START_SECONDS) == 0, winner.output
    last = here(launch, queue, "--once")
    assert last.wait(seconds=START_SECONDS) == 0, last.output
    assert landed_offsets(tmp_path / "table") == {identity(queue): list(range(written))}
