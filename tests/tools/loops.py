"""The bridge's loop in this process: real queues, a real table, no Java."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from tests.spark.conftest import identity
from twisted_msgproto.queue import Landed, QueueReader
from twisted_msgproto.spark.gateways import Gateways, Marks
from twisted_msgproto.spark.loop import Loop, Pace
from twisted_msgproto.spark.source_options import open_queue, open_range
from twisted_msgproto.table import preflight
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import LandedRanges, Target, land_ranges, merged
from twisted_msgproto.table.plan import Range


def run_here(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
    return merged(land_ranges(target, ranges, open_range) for ranges in tasks)


def loop_over(
    table: Table | Path,
    queues: Iterable[Path | str],
    *,
    runner: Callable[[Target, Sequence[Sequence[Range]]], LandedRanges] = run_here,
    pace: Pace | None = None,
    start_begin: bool = False,
    say: Callable[[str], None] = print,
    stop: threading.Event | None = None,
    run: Run | None = None,
    schema: pa.Schema | None = None,
    partition_by: Sequence[str] | None = None,
    **options: object,
) -> Loop:
    """A loop over ``queues``, as a bridge makes one, which drains them unless ``pace`` says more.

    Its marks are sent when :func:`finish` is called.
    """
    own_run = run or Run.new()
    if not isinstance(table, Table):
        table = preflight.open_table(str(table), schema, partition_by, {}, own_run)
    preflight.check_operations(table)
    consumer = preflight.consumer_name(table.table_id)
    gateways = Gateways(
        [str(queue) for queue in queues],
        open_queue,
        consumer,
        partial(preflight.check_gateway, table.location, start_begin=start_begin),
        say,
    )
    marks = Marks(
        consumer,
        lambda name: open_queue(gateways.by_id[name].location),
        lambda: None,
        say,
    )
    return Loop(
        table,
        Target(table.location, table.storage.options, partition_by=table.partition_by),
        gateways,
        marks,
        runner,
        own_run,
        pace or Pace(trigger=0, once=True),
        stop or threading.Event(),
        say=say,
        **options,  # type: ignore[arg-type]
    )


def finish(loop: Loop) -> None:
    loop.marks.send()
    loop.marks.finish(10.0)
    assert not loop.marks.unsent()


def drain(table: Table | Path, queues: Sequence[Path | str], **options: object) -> Loop:
    loop = loop_over(table, queues, **options)  # type: ignore[arg-type]
    loop.run()
    finish(loop)
    return loop


def landed_offsets(table: Path) -> dict[str, list[int]]:
    """Every offset in the table, by gateway, as an independent reader finds them."""
    from deltalake import DeltaTable

    return by_gateway(DeltaTable(str(table)).to_pyarrow_table(columns=["gateway", "offset"]))


def by_gateway(rows: pa.Table) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for gateway, offset in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found.setdefault(gateway, []).append(offset)
    return {gateway: sorted(offsets) for gateway, offsets in found.items()}


def places(table: Path) -> dict[str, Landed]:
    return Table.open(table).landed()


def exactly(table: Path, *queues: Path) -> None:
    """Every row of ``queues`` stands in ``table`` exactly once, and the table says so."""
    expected = {identity(queue): list(range(QueueReader(queue).end())) for queue in queues}
    assert landed_offsets(table) == expected
    assert {name: place.offset for name, place in places(table).items()} == {
        name: len(offsets) for name, offsets in expected.items()
    }
