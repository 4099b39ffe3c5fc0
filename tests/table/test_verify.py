"""``verify`` finds what is missing or twice, and proves up to where the rest is whole; ``counts``
tells what is in a table, from its log.
"""

from __future__ import annotations

import itertools
import random
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.conftest import damage_record
from tests.tools.loops import drain
from tests.tools.tables import RUN, Gateway, rows_of, tear_column
from tests.tools.tables import create_table as create
from tests.tools.tables import land_gateways as land
from twisted_msgproto import cli
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.spark.loop import Pace
from twisted_msgproto.spark.source_options import open_range
from twisted_msgproto.table import gaps
from twisted_msgproto.table.actions import DataFile
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import LandedRanges, Target, land_ranges, merged
from twisted_msgproto.table.plan import Range
from twisted_msgproto.table.proof import GatewayCounts, counts, verify
from twisted_msgproto.table.rewind import rewind


def of(report: Any, gateway: Gateway) -> Any:
    return report.gateways[gateway.id]


@pytest.mark.parametrize("left", ["nothing", "half", "same size"])
def test_a_torn_file_is_lost_and_said_so(table: Table, a: Gateway, left: str) -> None:
    a.put(50)
    [file] = land(table, a)
    path = Path(table.location, file.path)
    octets = path.read_bytes()
    torn = {
        "nothing": b"",
        "half": octets[: len(octets) // 2],
        "same size": octets[: len(octets) // 2] + bytes(len(octets) - len(octets) // 2),
    }
    path.write_bytes(torn[left])
    report = verify(table)
    assert file.path in report.lost
    assert of(report, a).intact_to == 0
    assert of(report, a).missing == [(0, 51)]


def test_pages_of_other_columns_are_looked_at_when_asked(table: Table, a: Gateway) -> None:
    a.put(500)
    [file] = land(table, a)
    tear_column(table, file, "body")
    assert verify(table).intact
    assert file.path in verify(table, every_column=True).lost


def test_a_bridge_notes_where_a_gateway_began_and_what_was_damaged(
    tmp_path: Path, a: Gateway
) -> None:
    """The log forgets its versions after hours; what the notes say stays."""
    a.put(39)
    a.reader.register("other")
    a.reader.commit("other", 20)
    a.trim()
    begin = a.reader.begin()
    damage_record(a.directory, b"body 33")
    drain(tmp_path / "landed", [a.directory], start_begin=True)
    location = str(tmp_path / "landed")
    DeltaTable(location).create_checkpoint()
    for path in Path(location, "_delta_log").glob("*.json"):
        path.unlink()
    report = verify(Table.open(location))
    assert report.intact, list(report.findings())
    found = of(report, a)
    assert (found.begin, found.intact_to) == (begin, 40)
    assert begin > 0
    [(lo, hi)] = found.damaged
    assert lo <= 33 < hi
    assert found.rows == 40 - begin - (hi - lo)


def test_rows_that_were_damaged_when_they_had_landed_are_missing_until_they_land_again(
    table: Table, a: Gateway
) -> None:
    """Where the queue is named they were taken for damaged: rewind did nothing, and without the
    queue they were missing for ever.
    """
    a.put(39)
    for end in (10, 40):
        land(table, a, to={a.id: end})
    damage_record(a.directory, b"body 3")
    table.storage.delete(min(table.files(), key=lambda file: file.modified).path)
    queues = {a.id: a.reader}
    assert of(verify(table, queues), a).missing == [(0, 10)]
    rewind(Table.open(table.location), RUN, queues=queues)
    land(Table.open(table.location), a)
    report = verify(Table.open(table.location))
    assert report.intact, list(report.findings())
    [(lo, hi)] = of(report, a).damaged
    assert lo <= 3 < hi <= 10


class Odd:
    """A queue whose rows at odd offsets a transform drops."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.queue_id = queue.queue_id

    def read(self, *words: Any, **options: Any) -> Any:
        rows = self._queue.read(*words, **options)
        even = (batch.filter(pc.equal(pc.bit_wise_and(batch["offset"], 1), 0)) for batch in rows)
        return type(rows)(even, [])


def run_and_drop(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
    """Lands what a transform leaves which drops the rows at odd offsets."""
    landed = merged(
        land_ranges(target, ranges, lambda part: cast(Any, Odd(open_range(part))))
        for ranges in tasks
    )
    landed.dropped = 1
    return landed


def test_what_a_transform_has_dropped_is_not_said_to_be_missing(tmp_path: Path, a: Gateway) -> None:
    a.put(18)
    drain(tmp_path / "landed", [a.directory])
    a.put(20)
    pace = Pace(trigger=0, once=True, rows_max=7)  # several batches: the note does not move
    drain(tmp_path / "landed", [a.directory], runner=run_and_drop, pace=pace)
    table = Table.open_for_writing(tmp_path / "landed")
    found = of(verify(table), a)
    assert found.intact
    assert found.dropped == [(offset, offset + 1) for offset in range(19, 39, 2)]
    # Behind the last row which is there nothing is proven: after a RESTORE it may be missing.
    assert (found.landed and found.landed.offset, found.intact_to) == (39, 39)
    [removed] = [file for file in table.files() if file.rows == 19]
    table.replace([removed], [], run=RUN, data_change=True)
    found = of(verify(Table.open(table.location)), a)
    assert not found.intact
    assert found.missing == [(0, 19)]


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        *((kind, ()) for kind in (pa.int32(), pa.string(), pa.struct({"a": pa.int64()}), None)),
        (pa.int64(), ("gateway",)),
    ],
)
@pytest.mark.parametrize("act", ["verify", "rewind", "erase", "expire", "counts"])
def test_a_table_whose_keys_are_others_is_a_line(
    tmp_path: Path,
    kind: pa.DataType | None,
    by: Sequence[str],
    act: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another program made it; an offset that is no number was a traceback."""
    rows = pa.table({"gateway": ["g"], "day": ["2026-01-31"]})
    if kind is not None:
        rows = rows.append_column("offset", pa.array([None], kind))
    write_deltalake(tmp_path / "table", rows, partition_by=["day", *by])
    options = {"erase": ["--where", "true"], "expire": ["--before", "2026-02-01"]}
    status = cli.main(["table", act, str(tmp_path / "table"), *options.get(act, [])])
    told = capsys.readouterr()
    if act in ("expire", "counts"):
        assert (status, told.err) == (0, "")
    else:
        assert status == 2 and told.err.count("\n") == 1
        assert "does not have the columns gateway (string) and offset (bigint)" in told.err


@pytest.mark.parametrize("seed", range(25))
def test_what_is_missing_and_twice_is_so_however_rows_lie_in_files(table: Table, seed: int) -> None:
    """Against sets of integers."""
    chance = random.Random(seed)
    seen: Counter[int] = Counter()
    files = []
    for number in range(12):
        parts = []
        for _ in range(chance.randrange(1, 4)):
            lo = chance.randrange(60)
            hi = lo + chance.randrange(1, 12)
            parts.append(rows_of("g", lo, hi))
            seen.update(range(lo, hi))
        path = Path(table.location, f"{number}.parquet")
        pq.write_table(pa.concat_tables(parts), path, row_group_size=chance.randrange(1, 30))
        files.append(DataFile(path.name, path.stat().st_size, {"day": "2026-01-31"}))
    begin = {f"{gaps.BEGIN_PREFIX}g": 0}
    table.commit(files, {"g": Landed(50)}, before={}, run=RUN, notes=begin)
    report = verify(table)
    found = report.gateways["g"]
    assert found.rows == seen.total()
    assert offsets_in(found.missing) == set(range(50)) - seen.keys()
    assert offsets_in(found.twice) == {offset for offset, count in seen.items() if count > 1}
    assert offsets_in(found.above) == {offset for offset in seen if offset >= 50}
    for ranges in (found.missing, found.twice, found.above, found.seen):
        assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))


def offsets_in(ranges: Any) -> set[int]:
    return {offset for lo, hi in ranges for offset in range(lo, hi)}


def test_many_ranges_are_cut_in_the_lines_and_whole_in_the_report(table: Table) -> None:
    path = Path(table.location, "odd.parquet")
    rows = rows_of("g", 0, 101)
    pq.write_table(rows.filter(pc.equal(pc.bit_wise_and(rows["offset"], 1), 0)), path)
    odd = DataFile(path.name, path.stat().st_size, {"day": "2026-01-31"})
    table.commit([odd], {"g": Landed(101)}, before={}, run=RUN)
    report = verify(table)
    lines = list(report.findings())
    assert (len(report.gateways["g"].missing), len(lines)) == (50, 21)
    assert lines[0] == "missing: gateway g offsets 1 to 2 (1 rows)"
    assert lines[-1] == "missing: gateway g 30 more ranges (30 rows)"


def test_very_many_ranges_become_few_notes_which_cover_them() -> None:
    ranges = [(10**6 - n * n, 10**6 - n * n + 1) for n in range(999, -1, -1)]
    notes = gaps.notes(gaps.EXPIRED_PREFIX, {"g": ranges}, {})
    [covered] = gaps.noted(notes, gaps.EXPIRED_PREFIX).values()
    assert len(notes) == gaps.NOTES_MAX
    # The narrowest gaps are closed.
    assert gaps.sizes({"g": covered})["g"] == gaps.NOTES_MAX + (1000 - gaps.NOTES_MAX) ** 2
    # One that is next to another moves that one on.
    notes |= gaps.notes(gaps.EXPIRED_PREFIX, {"g": [(10**6 + 1, 10**6 + 5)]}, notes)
    assert len(notes) == gaps.NOTES_MAX
    assert all(any(lo <= n < hi for lo, hi in covered) for n, _ in ranges)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(covered))


# -- counts ----------------------------------------------------------------------------------------


def test_rows_are_counted_by_partition_from_the_log_alone(tmp_path: Path) -> None:
    place = tmp_path / "é #%41?&='\";,[x]*{2}\\"
    table, a = create(place, partition_by=("protocol", "day")), Gateway(tmp_path / "a")
    a.put(10, protocol="umq")
    land(table, a)
    a.put(3, day=1)
    land(table, a)
    table.commit([], {"gone": Landed(7)}, before={}, run=RUN)
    shutil.rmtree(place / "protocol=umq")
    found = counts(table)
    assert (found.rows, found.files) == (14, len(table.files()))
    assert found.bytes == sum(file.size for file in table.files())
    assert found.partitions == {
        "protocol": {"lumberjack": 4, "umq": 10},
        "day": {"2023-11-15": 11, "2023-11-16": 3},
    }
    assert found.gateways == {a.id: GatewayCounts(14, 0, 14), "gone": GatewayCounts(7)}


def test_rows_of_gateways_that_share_a_file_are_counted_there(tmp_path: Path) -> None:
    table, a, b = create(tmp_path / "table"), Gateway(tmp_path / "a"), Gateway(tmp_path / "b")
    for gateway, rows in ((a, 10), (b, 4), (a, 2)):
        gateway.put(rows)
        land(table, a, b)
    compact(Table.open(table.location), RUN)
    found = counts(Table.open(table.location))
    assert found.gateways == {
        a.id: GatewayCounts(13, 0, 13),
        b.id: GatewayCounts(5, 0, 5),
    }


def test_rows_of_no_gateway_are_not_counted_as_those_of_another(tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 0, None], pa.int64())
    rows = pa.table({"gateway": ["g", "g", None, "g"], "offset": offsets})
    write_deltalake(tmp_path / "table", rows)
    found = counts(Table.open(tmp_path / "table"))
    assert (found.rows, found.gateways) == (4, {"g": GatewayCounts(None, 0, 2)})


def test_a_file_of_which_the_log_does_not_count_the_rows_is_counted_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, a = create(tmp_path / "table"), Gateway(tmp_path / "a")
    [file] = land(table, a)
    table.replace([file], [replace(file, rows=None, statistics="")], run=RUN)
    assert counts(Table.open(table.location)).rows == 1
    table.storage.delete(file.path)
    with pytest.raises(TableError, match="; 'msgproto table verify ") as one:
        counts(Table.open(table.location))
    command = re.search("'msgproto (table verify .*)' tells more", str(one.value))
    assert command is not None
    assert cli.main(shlex.split(command[1])) == 1
    assert file.path in capsys.readouterr().out
