"""Many gateways: real Flight endpoints, a tenth of which dies and comes back.

``./run test`` has 200 of them, ``./run long`` a thousand.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tools.endpoints import Endpoints, reserved, serving
from tests.tools.loops import finish, landed_offsets, loop_over, places
from tests.tools.processes import environment
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark.loop import Loop, Pace

pytestmark = [pytest.mark.slow]

ANSWER_SECONDS = 0.01
ROWS, MORE = 10, 5
CORES = 2
PATIENCE_SECONDS = 600.0
"""How long nothing of what is waited for may move."""


def test_many_gateways_land_and_the_dead_tenth_when_it_is_back__TB_09_TB_13(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """TB-09, TB-13: nine tenths of the gateways' rows land while half of the others are silent and
    half are gone.
    """
    count = int(pytestconfig.getoption("gateways"))
    few, half = count // 20, count * 9 // 20
    well = 2 * half
    table, queues = tmp_path / "table", tmp_path / "queues"
    queues.mkdir()
    with (
        reserved(few) as ports,
        serving(
            queues,
            [half, half, few, few],
            rows=ROWS,
            delay=ANSWER_SECONDS,
            ports={3: ports},
            env=environment(),
        ) as served,
    ):
        *alive, silent, killed = served
        dead = {*silent.locations, *killed.locations}
        locations = [location for one in served for location in one.locations]
        said: list[str] = []
        pace = Pace(trigger=0, cores=CORES)
        with running(loop_over(table, locations, pace=pace, say=said.append)) as loop:
            until(loop, lambda: landed(loop) == count * ROWS)

            silent.stop()
            killed.kill()
            for one in alive:
                one.write(MORE)
            until(loop, lambda: landed(loop) == count * ROWS + well * MORE)
            until(loop, lambda: len(loop.report("running").aside) == 2 * few)
            assert {one.location for one in loop.report("running").aside} == dead
            assert {one.state for one in loop.report("running").aside} == {"away"}
            assert {place for place in dead if any(f"{place} (" in line for line in said)} == dead

            silent.resume()
            with again(killed, ports) as back:
                for one in (silent, back):
                    one.write(MORE)
                until(loop, lambda: landed(loop) == count * (ROWS + MORE))
                until(loop, lambda: not loop.report("running").aside)
                until(loop, lambda: not loop.marks.unsent())
                loop.stop.set()
                finish(loop)
    ids = {QueueReader(path).queue_id for path in queues.glob("*/*")}
    assert len(ids) == count
    assert landed_offsets(table) == {name: list(range(ROWS + MORE)) for name in ids}
    marks = [QueueReader(path).consumers() for path in queues.glob("*/*")]
    assert [list(each.values()) for each in marks] == [[ROWS + MORE]] * count
    assert {place.offset for place in places(table).values()} == {ROWS + MORE}
    for commit, files in files_of_commits(table).items():
        assert files <= CORES * len(days(table)), commit


@contextmanager
def again(killed: Endpoints, ports: list[int]) -> Iterator[Endpoints]:
    """The gateways of a killed process, served anew where they were."""
    back = Endpoints(
        killed.directory, len(ports), delay=ANSWER_SECONDS, ports=ports, env=environment()
    )
    try:
        assert back.locations == killed.locations
        yield back
    finally:
        back.close()


@contextmanager
def running(loop: Loop) -> Iterator[Loop]:
    """The loop in a thread of its own, as in a bridge."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            loop.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    loop.marks.start()
    try:
        yield loop
    finally:
        loop.stop.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert not errors, errors[0]


def landed(loop: Loop) -> int:
    """Rows of which the loop knows that they are in the table."""
    return sum(place.offset for place in loop.progress.landed.values())


def until(loop: Loop, holds: Callable[[], bool]) -> None:
    """Waits until ``holds``, as long as anything moves."""
    seen: object = None
    deadline = 0.0
    while not holds():
        here = landed(loop), len(loop.report("running").aside), len(loop.marks.unsent())
        if here != seen:
            seen, deadline = here, time.monotonic() + PATIENCE_SECONDS
        assert time.monotonic() < deadline, f"nothing moves: {here}"
        time.sleep(0.02)


def files_of_commits(table: Path) -> dict[str, int]:
    """Files which each version of the table has added."""
    return {
        path.name: sum("add" in json.loads(line) for line in path.read_text().splitlines())
        for path in sorted((table / "_delta_log").glob("*.json"))
    }


def days(table: Path) -> set[str]:
    """The table's partitions."""
    return {path.name for path in table.glob("day=*")}
