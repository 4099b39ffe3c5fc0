"""Several bridges on one table, and tasks which Spark has to run again: real processes, exact."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest

from tests.spark.conftest import identity, messages, write
from tests.tools.loops import landed_offsets
from tests.tools.processes import Launched, Launcher
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.queue.consumers import read_statuses

pytestmark = [pytest.mark.slow]

START_SECONDS = 600.0
"""How long a bridge may take to its next step on a machine with much else to do."""


def here(launch: Launcher, queue: Path, *options: str) -> Launched:
    words = ["--here", "bridge", "--queue", queue, "--table", "table", "--trigger", "0", *options]
    return launch(*words, module="tests.tools.dying")


def batch(process: Launched, rows: int) -> None:
    process.line(rf"^batch \d+: .* {rows} rows in all", seconds=START_SECONDS)


def test_two_bridges_of_different_gateways_land_into_one_table(
    launch: Launcher, tmp_path: Path
) -> None:
    queues = [tmp_path / "first", tmp_path / "second"]
    for queue in queues:
        write(queue, messages(0, 100))
    bridges = [here(launch, queue) for queue in queues]
    for number in range(1, 6):
        for process in bridges:
            batch(process, 100 * number)
        for queue in queues:
            write(queue, messages(100 * number, 100))
    for process in bridges:
        batch(process, 600)
        process.signal(signal.SIGTERM)
        assert process.wait(seconds=START_SECONDS) == 0, process.output
    assert landed_offsets(tmp_path / "table") == {
        identity(queue): list(range(600)) for queue in queues
    }


def test_of_two_bridges_of_one_gateway_one_ends_and_names_the_other__TB_03_TB_04(
    launch: Launcher, tmp_path: Path
) -> None:
    """TB-03, TB-04: no lock keeps them apart, as on two machines; the table does."""
    queue = tmp_path / "queue"
    write(queue, messages(0, 100))
    bridges = [here(launch, queue, "--consumer", name) for name in ("one", "two")]
    for process in bridges:
        process.line("^bridge running from", seconds=START_SECONDS)
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
    winner.line(r"^batch \d+: .*lag 0 rows", seconds=START_SECONDS)
    winner.signal(signal.SIGTERM)
    assert winner.wait(seconds=START_SECONDS) == 0, winner.output
    last = here(launch, queue, "--once")
    assert last.wait(seconds=START_SECONDS) == 0, last.output
    assert landed_offsets(tmp_path / "table") == {identity(queue): list(range(written))}


@pytest.mark.xdist_group("spark")
def test_a_task_which_spark_runs_again_lands_its_rows_once(
    launch: Launcher, tmp_path: Path
) -> None:
    """Its worker dies after the files are written; those of the first run are in no commit."""
    queue, marker = tmp_path / "queue", tmp_path / "failed"
    write(queue, messages(0, 1500))
    process = launch(
        *("--fail-once", marker, "bridge", "--queue", queue, "--table", "table", "--once"),
        *("--master", "local[2,4]"),
        module="tests.tools.dying",
    )
    assert process.wait(seconds=START_SECONDS) == 0, process.output
    assert marker.exists()
    [status] = read_statuses(queue)
    assert status["failed_batches"] == 0, "Spark itself has run the task again"
    assert not re.search("run again", process.output)
    assert landed_offsets(tmp_path / "table") == {identity(queue): list(range(1500))}
    assert list(QueueReader(queue).consumers().values()) == [1500]
    assert len(list((tmp_path / "table").rglob("*.parquet"))) == 2
