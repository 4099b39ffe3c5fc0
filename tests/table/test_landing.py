"""One task's work: ranges of queues in, durable Parquet files out, or nothing at all.

Batches: whose rows, how many, proven by what, cut into how many tasks.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.spark.conftest import damage_record, identity, messages, write
from tests.tools.disks import StepDisk
from tests.tools.tables import TABLE_SCHEMA, TIME
from twisted_msgproto.core.disk import OSDisk
from twisted_msgproto.core.errors import QueueMismatch, TableError
from twisted_msgproto.queue import Description, Landed, QueueReader
from twisted_msgproto.table import landing
from twisted_msgproto.table.landing import (
    Files,
    LandedRanges,
    Target,
    Writer,
    land_ranges,
    land_together,
)
from twisted_msgproto.table.plan import Range, Waiting, plan_batch
from twisted_msgproto.table.storage import LocalStorage

DAY = 86_400_000_000


def open_directory(part: Range) -> Any:
    return QueueReader(part.location)


def whole(queue: Path, lo: int = 0, hi: int | None = None) -> Range:
    reader = QueueReader(queue)
    end = reader.place(reader.end() if hi is None else hi)
    return Range(str(queue), reader.queue_id, lo, end.offset, end)


def land(table: Path, *ranges: Range, **changes: Any) -> LandedRanges:
    return land_ranges(Target(str(table), **changes), ranges, open_directory)


def at(day: int, first: int, count: int, **changes: Any) -> Any:
    return messages(first, count, received_at=day * DAY + first, **changes)


def files_in(table: Path) -> list[str]:
    return sorted(str(path.relative_to(table)) for path in table.rglob("*.parquet"))


def offsets(table: Path, result: LandedRanges) -> list[int]:
    found: list[int] = []
    for file in result.files:
        found += pq.ParquetFile(table / file.path).read(["offset"]).column(0).to_pylist()
    return sorted(found)


@pytest.fixture(name="queue")
def a_queue(tmp_path: Path) -> Path:
    write(tmp_path / "queue", *(at(20_000, first, 300) for first in range(0, 1500, 300)))
    return tmp_path / "queue"


def test_a_range_of_one_day_is_one_file_which_says_all_that_the_log_needs(
    tmp_path: Path, queue: Path
) -> None:
    result = land(tmp_path / "table", whole(queue, 100, 1400))
    [file] = result.files
    assert file.path.startswith("day=2024-10-04/part-")
    assert dict(file.partition) == {"day": "2024-10-04"}
    path = tmp_path / "table" / file.path
    assert (file.rows, file.size) == (1300, path.stat().st_size)
    assert abs(file.modified / 1000 - path.stat().st_mtime) < DAY / 1e6
    assert offsets(tmp_path / "table", result) == list(range(100, 1400))
    assert result.rows == {identity(queue): 1300}
    assert (result.damaged, result.failed) == ({}, {})


def test_the_file_has_the_columns_of_the_table_but_the_partition(
    tmp_path: Path, queue: Path
) -> None:
    [file] = land(tmp_path / "table", whole(queue)).files
    parquet = pq.ParquetFile(tmp_path / "table" / file.path)
    assert parquet.schema_arrow.names == [n for n in TABLE_SCHEMA.names if n != "day"]
    assert parquet.metadata.row_group(0).column(1).compression == "ZSTD"
    kept = parquet.read()
    source = pa.Table.from_batches(list(QueueReader(queue).read(0, 1500)))
    assert kept.equals(source.cast(kept.schema))


def test_rows_go_to_the_file_of_their_day(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    midnight = 20_001 * DAY  # of UTC
    write(
        queue,
        *(at(20_000, 0, 9), messages(9, 1, received_at=midnight - 1)),
        *(messages(10, 5, received_at=midnight), at(20_000, 15, 5)),
    )
    result = land(tmp_path / "table", whole(queue))
    rows = {file.partition["day"]: file.rows for file in result.files}
    assert rows == {"2024-10-04": 15, "2024-10-05": 5}
    for file in result.files:
        times = pq.ParquetFile(tmp_path / "table" / file.path).read(["received_at"]).column(0)
        assert {time.date().isoformat() for time in times.to_pylist()} == {file.partition["day"]}


def test_partitioned_by_protocol_and_day(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    write(queue, at(20_000, 0, 10), at(20_000, 10, 5, protocol="umq", kind="call"))
    result = land(tmp_path / "table", whole(queue), partition_by=("protocol", "day"))
    found = {file.path.rpartition("/")[0]: file.rows for file in result.files}
    assert found == {"protocol=lumberjack/day=2024-10-04": 10, "protocol=umq/day=2024-10-04": 5}
    names = pq.ParquetFile(tmp_path / "table" / result.files[0].path).schema_arrow.names
    assert "protocol" not in names


def test_gateways_share_a_file__TB_13(tmp_path: Path) -> None:
    """TB-13: a task writes one file a partition, whatever the number of gateways."""
    ranges = []
    for number in range(40):
        write(tmp_path / f"q{number}", at(20_000, 0, 10))
        ranges.append(whole(tmp_path / f"q{number}"))
    result = land(tmp_path / "table", *ranges)
    assert len(result.files) == 1
    assert sum(result.rows.values()) == 400
    table = pq.ParquetFile(tmp_path / "table" / result.files[0].path).read(["gateway", "offset"])
    pairs = set(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert pairs == {(part.gateway, offset) for part in ranges for offset in range(10)}


def test_a_backlog_of_many_days_keeps_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing, "OPEN_FILES_MAX", 2)
    queue = tmp_path / "queue"
    write(queue, *(at(20_000 + day, day * 3, 3) for day in range(6)))
    monkeypatch.setattr(landing, "READ_ROWS", 3)
    table = str(tmp_path / "t")
    opened: list[int] = []

    class Counting(OSDisk):
        def make_directory(self, path: str, *, top: str = "", close: bool = False) -> None:
            """Called before each file is made."""
            names: list[str] = []
            for descriptor in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):  # other threads close theirs
                    names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            opened.append(sum(name.startswith(table) for name in names))
            super().make_directory(path, top=top, close=close)

    storage = LocalStorage(table, Counting())
    result = land_ranges(Target(table), [whole(queue)], open_directory, storage)
    assert result.failed == {}
    assert sorted(file.rows or 0 for file in result.files) == [3] * 6
    assert max(opened) == 1


def test_damage_is_told_by_the_read_which_met_it__TB_08(tmp_path: Path, queue: Path) -> None:
    """TB-08: nothing is counted as damaged because it did not arrive for another reason."""
    damage_record(queue, b'{"n":777}')
    gateway = identity(queue)
    result = land(tmp_path / "table", whole(queue))
    assert result.damaged == {gateway: [(600, 900)]}
    assert result.rows == {gateway: 1200}
    assert land(tmp_path / "table", whole(queue, 900, 1500)).damaged == {}


class Breaking(QueueReader):
    """A queue that is trimmed while it is read."""

    def read(self, *words: Any, **options: Any) -> Any:
        rows = super().read(*words, **options)
        first = next(rows)

        def batches() -> Any:
            yield first
            raise QueueMismatch("it was trimmed meanwhile")

        return type(rows)(batches(), [])


def trimmed_meanwhile(part: Range) -> Any:
    return (Breaking if part.location.endswith("queue") else QueueReader)(part.location)


def another_history(part: Range) -> Range:
    assert part.landed is not None
    return replace(part, landed=replace(part.landed, witness=part.landed.witness ^ 1))


UNREAD: list[tuple[Callable[[Range, Path], Range], Any, bool, str]] = [
    (lambda part, other: replace(part, location=str(other)), open_directory, True, "is queue"),
    (lambda part, other: another_history(part), open_directory, True, "is not the one"),
    (lambda part, other: replace(part, location="/gone"), open_directory, False, "no queue in"),
    (lambda part, other: part, trimmed_meanwhile, True, "it was trimmed"),
]


@pytest.mark.parametrize(
    ("change", "opens", "mismatch", "line"),
    UNREAD,
    ids=["another queue", "another history", "gone", "trimmed meanwhile"],
)
def test_a_gateway_that_cannot_be_read_is_named_and_leaves_no_file_of_the_task(
    tmp_path: Path,
    queue: Path,
    change: Callable[[Range, Path], Range],
    opens: Any,
    mismatch: bool,
    line: str,
) -> None:
    write(tmp_path / "other", at(20_000, 0, 10))
    parts = [whole(tmp_path / "other"), change(whole(queue), tmp_path / "other")]
    target = Target(str(tmp_path / "table"))
    result = land_ranges(target, parts, opens)
    failure = result.failed[identity(queue)]
    assert failure.mismatch is mismatch and line in failure.line
    assert (result.files, files_in(tmp_path / "table")) == ([], [])


def test_a_fault_of_a_reading_thread_ends_the_task_and_leaves_no_file(
    tmp_path: Path, queue: Path
) -> None:
    other = tmp_path / "other"
    write(other, messages(0, 40))

    def open_queue(part: Range) -> Any:
        if part.location == str(other):
            raise ZeroDivisionError("a fault of ours")
        return open_directory(part)

    with pytest.raises(ZeroDivisionError):
        land_ranges(Target(str(tmp_path / "table")), [whole(queue), whole(other)], open_queue)
    assert files_in(tmp_path / "table") == []


# -- several tables in one task --------------------------------------------------------------------


def together(tmp_path: Path, opens: Any, *works: Sequence[Range], **changes: Any) -> list[Any]:
    writers = [Writer(Target(str(tmp_path / f"{n}"), **changes)) for n in range(len(works))]
    return land_together(list(zip(writers, works, strict=True)), opens)


class Counted(QueueReader):
    """A queue that counts the rows it yields."""

    yielded = 0

    def read(self, lo: int, hi: int, *words: Any, **options: Any) -> Any:
        Counted.yielded += hi - lo
        return super().read(lo, hi, *words, **options)


BOUNDS = st.tuples(st.integers(0, 1500), st.integers(0, 1500)).map(sorted)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(BOUNDS, BOUNDS, BOUNDS), min_size=1, max_size=3))
@example([([0, 601], [0, 0], [0, 0]), ([600, 601], [0, 0], [0, 0])])
def test_tables_have_together_what_each_has_alone_and_each_row_is_read_once(
    tmp_path: Path, queue: Path, works: list[tuple[list[int], list[int], list[int]]]
) -> None:
    other = tmp_path / "other"
    if not other.exists():
        write(other, *(at(20_000, first, 300) for first in range(0, 1500, 300)))
        damage_record(queue, b'{"n":777}')
    parts = [
        [
            replace(whole(one, lo, hi), erased=(tuple(erased),) if erased[0] else ())
            for one, (lo, hi) in ((queue, first), (other, second))
            if lo < hi
        ]
        for first, second, erased in works
    ]
    Counted.yielded = 0
    results = together(tmp_path, lambda part: Counted(part.location), *parts)
    every = [part for ranges in parts for part in ranges]
    needed = {(part.gateway, n) for part in every for n in range(part.lo, part.hi)}
    assert Counted.yielded == len(needed)
    for number, (result, ranges) in enumerate(zip(results, parts, strict=True)):
        alone = land(tmp_path / "alone", *ranges)
        assert (result.rows, result.damaged) == (alone.rows, alone.damaged)
        assert offsets(tmp_path / f"{number}", result) == offsets(tmp_path / "alone", alone)


def test_a_table_that_cannot_be_written_keeps_no_other_of_its_task(
    tmp_path: Path, queue: Path
) -> None:
    (tmp_path / "1").write_text("a file, where the table should be")
    good, bad, also = together(tmp_path, open_directory, *3 * [[whole(queue)]])
    assert isinstance(bad, TableError) and str(tmp_path / "1") in str(bad)
    for number, result in ((0, good), (2, also)):
        assert offsets(tmp_path / str(number), result) == list(range(1500))


@pytest.mark.parametrize(
    "parts", [(0, 900, 600, 1500), (0, 900, 1000, 1500)], ids=["shared", "one after the other"]
)
def test_a_queue_that_cannot_be_read_is_a_failure_of_each_table_that_reads_it(
    tmp_path: Path, queue: Path, parts: tuple[int, int, int, int]
) -> None:
    write(tmp_path / "other", at(20_000, 0, 10))
    works = [whole(queue, *parts[:2])], [whole(queue, *parts[2:])], [whole(tmp_path / "other")]
    *failed, good = together(tmp_path, trimmed_meanwhile, *works)
    for result in failed:
        assert "it was trimmed" in result.failed[identity(queue)].line and not result.files
    assert offsets(tmp_path / "2", good) == list(range(10))
    assert not files_in(tmp_path / "0") and not files_in(tmp_path / "1")


def test_a_shared_read_proves_the_place_of_every_table(tmp_path: Path, queue: Path) -> None:
    for changed in range(2):
        works = [whole(queue, 0, 900), whole(queue, 0, 1500)]
        works[changed] = another_history(works[changed])
        results = together(tmp_path, open_directory, *([part] for part in works))
        assert "is not the one" in results[changed].failed[identity(queue)].line


class Watched(StepDisk):
    """Says what was synced; a file's sync can be made to fail."""

    def __init__(self, fails: str = "\0") -> None:
        super().__init__()
        self.syncs: list[str] = []
        self.fails = fails
        self.failed: Callable[[str], None] = lambda path: None

    def step(self, operation: str, path: str) -> None:
        folder = operation == "sync directory"
        if self.fails in path and (folder or (operation == "sync" and self.fails != "day=")):
            self.failed(path)
            raise OSError(28, "No space left on device", path)
        if folder or operation == "sync":
            self.syncs.append(path)


@pytest.mark.parametrize("fails", [".parquet", "day="], ids=["file", "folder"])
def test_after_a_failed_sync_rows_are_written_under_a_new_name__TB_01__TB_11(
    tmp_path: Path, queue: Path, fails: str
) -> None:
    """TB-01: a second sync of the same file would succeed though the disk does not have it.

    TB-11: a full disk was a traceback.
    """
    table = str(tmp_path / "table")
    disk = Watched(fails)
    storage = LocalStorage(table, disk)
    made: list[str] = []
    disk.failed = lambda path: made.extend(files_in(tmp_path / "table"))
    with pytest.raises(TableError, match=r"cannot be written: .*No space left") as told:
        land_ranges(Target(table), [whole(queue)], open_directory, storage)
    assert len(made) == 1 and "\n" not in str(told.value)
    assert files_in(tmp_path / "table") == []
    disk.fails = "\0"
    [file] = land_ranges(Target(table), [whole(queue)], open_directory, storage).files
    path = os.path.join(table, file.path)
    assert made != [file.path] and disk.syncs[-2:] == [path, os.path.dirname(path)]


def test_row_groups_are_large_and_bounded_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = tmp_path / "queue"
    write(
        queue, *(at(20_000, first, 100, body=[b"x" * 1000] * 100) for first in range(0, 500, 100))
    )
    [file] = land(tmp_path / "a", whole(queue)).files
    assert pq.ParquetFile(tmp_path / "a" / file.path).metadata.num_row_groups == 1
    monkeypatch.setattr(landing, "GROUP_BYTES", 100_000)
    monkeypatch.setattr(landing, "READ_ROWS", 100)
    [file] = land(tmp_path / "b", whole(queue)).files
    assert pq.ParquetFile(tmp_path / "b" / file.path).metadata.num_row_groups == 5


def test_work_and_results_travel_without_rows__TB_16(tmp_path: Path, queue: Path) -> None:
    """TB-16: a whole batch passed through the driver's memory; workers write it now."""
    target, part = Target(str(tmp_path / "t")), whole(queue)
    assert pickle.loads(pickle.dumps((target, part))) == (target, part)
    result = land(tmp_path / "t", part)
    travels = pickle.dumps(result)
    assert pickle.loads(travels) == result
    assert result.rows == {part.gateway: 1500}
    assert len(travels) < 3000


def test_a_worker_of_a_raw_bridge_does_not_import_pandas(queue: Path, tmp_path: Path) -> None:
    """It takes half of a worker's start, and 40 MB of each."""
    work = """
import pickle, sys
from pathlib import Path
from twisted_msgproto.spark import jobs
[[landed]] = jobs.Landing((Path(sys.argv[1]).read_bytes(),))(0, ())
list(jobs.warm(0, ()))
print(sum(landed.rows.values()), "pandas" in sys.modules)
"""
    pytest.importorskip("pandas")
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps([(Target(str(tmp_path / "table")), [whole(queue)])]))
    words = [sys.executable, "-P", "-c", work, str(task)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "1500 False\n"


# -- statistics; that readers find their rows: test_readers ----------------------------------------


def landed_statistics(tmp_path: Path, rows: pa.Table) -> dict[str, Any]:
    """What the log says of a file of these rows."""
    schema = rows.schema.append(pa.field("protocol", pa.string()))
    target = Target(str(tmp_path / "table"), schema=schema, partition_by=("protocol",))
    files = Files(target, LocalStorage(target.location))
    rows = rows.append_column("protocol", pa.array(["x"] * rows.num_rows))
    for batch in rows.to_batches():
        files.write(batch)
    [file] = files.finish()
    found: dict[str, Any] = json.loads(file.statistics)
    return found


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, float("nan")]),
        pa.array([{"a": 1}]),
        pa.array([datetime.datetime(2026, 1, 1)], pa.timestamp("us")),
        pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC")),
        pa.array([-62_135_596_800_000_001], pa.timestamp("us", "UTC")),
        pa.array([2_932_897], pa.int32()).cast(pa.date32()),
    ],
    ids=["float", "structure", "no zone", "year 10000", "year 0", "a day of the year 10000"],
)
def test_one_column_which_is_not_known_leaves_the_number_of_rows_alone(
    tmp_path: Path, column: pa.Array
) -> None:
    rows = pa.table({"known": pa.array(range(len(column))), "column": column})
    assert landed_statistics(tmp_path, rows) == {"numRecords": len(column)}


def test_texts_that_are_too_long_for_a_footer_have_bounds(tmp_path: Path) -> None:
    texts = ["b" * 5000, "a" * 5000, None, "c"]
    rows = pa.table({"text": pa.array(texts), "number": range(4)})
    found = landed_statistics(tmp_path, rows)
    assert found["minValues"] == {"text": "a" * 32, "number": 0}
    assert found["maxValues"] == {"text": "c", "number": 3}


def test_bounds_are_as_delta_wants_them(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "day": pa.array([datetime.date(2026, 1, 31), None]),
            "text": pa.array(["a" * 40, "b" * 40]),
            "time": pa.array([TIME, TIME], pa.timestamp("us", tz="UTC")),
            "bytes": pa.array([None, b"\xff"]),
            "nothing": pa.array([None, None], pa.string()),
        }
    )
    assert landed_statistics(tmp_path, rows) == {
        "numRecords": 2,
        "minValues": {
            "day": "2026-01-31",
            "text": "a" * 32,
            "time": "2026-01-31T12:00:00.000000Z",
        },
        "maxValues": {
            "day": "2026-01-31",
            "text": "b" * 32 + "\U0010ffff",
            "time": "2026-01-31T12:00:00.000000Z",
        },
        "nullCount": {"day": 1, "text": 0, "time": 0, "bytes": 1, "nothing": 2},
    }


TASK = 20_000
"""From this many rows on a second task is worth its cost."""


def waiting(
    gateway: str, begin: int, end: int, landed: int | None = None, nbytes: int = 0
) -> Waiting:
    place = None if landed is None else Landed(landed, 1, 1)
    description = Description(gateway, begin, end, Landed(end, 9, 9), nbytes, 0, nbytes, (), {}, {})
    return Waiting(gateway, f"/{gateway}", place, description, access="key")


def planned(gateways: Sequence[Waiting], cores: int = 1, **most: int) -> tuple[Any, set[str]]:
    """A batch whose ends are proven as they are asked for, and for whom that was asked."""
    asked: set[str] = set()

    def place(ends: Mapping[str, int]) -> dict[str, Landed]:
        assert not asked, "all are asked at once"
        asked.update(ends)
        return {name: Landed(end, 7, 7) for name, end in ends.items()}

    plan = plan_batch(gateways, place, cores=cores, **most)
    assert plan is not None
    return plan, asked


def rows_of(plan: Any) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for ranges in plan.tasks:
        for part in ranges:
            assert (part.location, part.access) == (f"/{part.gateway}", "key")
            assert part.landed == plan.landed[part.gateway], "it proves the end of the batch"
            found.setdefault(part.gateway, []).append((part.lo, part.hi))
    return found


def test_nothing_waits_and_there_is_no_batch() -> None:
    gateways = [waiting("a", 0, 10, 10), waiting("b", 5, 5), waiting("c", 0, 4, 9)]
    assert plan_batch(gateways, lambda ends: {}, cores=2) is None


def test_a_batch_begins_where_the_table_is_and_ends_where_the_gateway_is() -> None:
    plan, asked = planned([waiting("a", 0, 10, 4), waiting("b", 3, 8)], cores=2)
    assert rows_of(plan) == {"a": [(4, 10)], "b": [(3, 8)]}
    assert plan.before == {"a": Landed(4, 1, 1), "b": None}
    assert plan.landed == {"a": Landed(10, 9, 9), "b": Landed(8, 9, 9)}
    assert (plan.rows, asked) == (11, set())


def test_a_capped_end_is_proven_by_the_gateway_or_it_is_left_out() -> None:
    gateways = [waiting("a", 0, 100), waiting("b", 0, 40)]
    plan, asked = planned(gateways, rows_max=100)
    assert asked == {"a"}
    assert plan.landed == {"a": Landed(60, 7, 7), "b": Landed(40, 9, 9)}
    left = plan_batch(gateways, lambda ends: {}, cores=1, rows_max=100)
    assert left is not None
    assert (left.landed, set(left.before)) == ({"b": Landed(40, 9, 9)}, {"b"})


@pytest.mark.parametrize(
    ("gateways", "most", "ends"),
    [
        # shared evenly; what one does not need goes to the others
        ({"a": (10, 0), "b": (1000, 0), "c": (1000, 0)}, {"rows_max": 110}, (10, 50, 50)),
        ({"a": (1, 0), "b": (1, 0)}, {"rows_max": 1}, (0, 1)),
        # heavy rows make small batches, but never none
        ({"a": (100, 100_000), "b": (1, 9_000)}, {"bytes_max": 10_000}, (9, 1)),
        ({"a": (5, 10**12)}, {"bytes_max": 1}, (1,)),
        ({"a": (100, 10_000)}, {"bytes_max": 10_000}, (100,)),
    ],
)
def test_a_batch_has_a_share_of_each_and_is_bounded(
    gateways: dict[str, tuple[int, int]], most: dict[str, int], ends: tuple[int, ...]
) -> None:
    all_of_them = [waiting(name, 0, rows, nbytes=n) for name, (rows, n) in gateways.items()]
    plan, _ = planned(all_of_them, **most)
    assert tuple(plan.landed.get(name, Landed(0)).offset for name in gateways) == ends


@pytest.mark.parametrize(("rows", "tasks"), [(10, 1), (TASK, 1), (2 * TASK, 2), (10**6, 4)])
def test_small_batches_are_one_task_and_large_ones_as_many_as_cores(rows: int, tasks: int) -> None:
    plan, _ = planned([waiting("a", 0, rows)], cores=4)
    assert len(plan.tasks) == tasks


@pytest.mark.parametrize("cores", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [(1,), (5, 0, 7), (100, 1, 1), (3, 3, 3, 3)])
def test_a_cut_loses_nothing_and_repeats_nothing(cores: int, rows: tuple[int, ...]) -> None:
    counts = [count * TASK for count in rows]
    gateways = [waiting(f"{n}", 0, 10 + count, 10) for n, count in enumerate(counts)]
    plan, _ = planned(gateways, cores, rows_max=10**9)
    assert len(plan.tasks) <= cores
    for name, parts in rows_of(plan).items():
        assert [lo for lo, _ in parts] == [10, *(hi for _, hi in parts[:-1])]
        assert parts[-1][1] == 10 + counts[int(name)]
    assert len(rows_of(plan)) == sum(map(bool, counts))
    sizes = [sum(part.hi - part.lo for part in ranges) for ranges in plan.tasks]
    assert sum(sizes) == plan.rows == sum(counts)
    assert max(sizes) - min(sizes) <= max(1, sum(counts) // cores)
