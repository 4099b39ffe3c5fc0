"""Typed tables: a bridge.toml, columns of bodies; nothing is lost, and all of it is counted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import signal
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.spark.conftest import damage_record, identity, messages, write
from tests.spark.test_bridge import START_SECONDS, consumer
from tests.spark.test_source import trim
from tests.tools.processes import Launched, Launcher
from tests.tools.tables import Gateway, check_sum
from twisted_msgproto import cli
from twisted_msgproto.net.site.queue_figures import shown_bridge
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.queue.consumers import read_statuses
from twisted_msgproto.spark.configuration import BRIDGE_KEYS, TABLE_KEYS
from twisted_msgproto.table.columns import TYPES
from twisted_msgproto.table.delta_table import Table

ACCESS = """
[[table]]
name = "access"
location = "access"
where = { protocol = "lumberjack", destination = ["access", "edge"] }
keep = ["destination"]

[table.columns]
time = { path = "@timestamp", type = "timestamp" }
host = { path = "host.name", type = "string" }
status = { path = "http.status", type = "int" }
ratio = { path = "ratio", type = "double" }
"""

RAW = '[[table]]\nlocation = "raw"\n'


def configured(directory: Path, *tables: str, queues: Sequence[Path | str] = ("queue",)) -> Path:
    file = directory / "bridge.toml"
    names = ", ".join(json.dumps(str(queue)) for queue in queues)
    file.write_text(f'queue = [{names}]\nmaster = "local[2]"\n' + "\n".join(tables))
    return file


def start(launch: Launcher, *options: str | Path) -> Launched:
    words = ("--here", "bridge", "--config", "bridge.toml", *options)
    return launch(*words, module="tests.tools.dying")


def drain(launch: Launcher, *options: str) -> str:
    process = start(launch, "--once", *options)
    assert process.wait(seconds=START_SECONDS) == 0, process.output
    return process.output


def body(number: int, status: Any = 200) -> bytes:
    return json.dumps(
        {
            "@timestamp": f"2026-01-31T12:00:{number % 60:02d}.123456789Z",
            "host": {"name": f"web-{number % 3}"},
            "http": {"status": status},
            "ratio": number / 8,
        }
    ).encode()


def fill(queue: Path, first: int = 0, count: int = 90) -> None:
    """Of three rows the table wants two; every tenth body is wrong."""
    numbers = range(first, first + count)
    write(
        queue,
        messages(
            first,
            count,
            destination=[("access", "other", "edge")[number % 3] for number in numbers],
            body=[body(n, "n/a" if n % 10 == 0 else 200 + n) for n in numbers],
        ),
    )


def rows_of(table: Path | str, storage: dict[str, str] | None = None) -> list[dict[str, Any]]:
    landed = deltalake.DeltaTable(str(table), storage_options=storage)
    rows = landed.to_pyarrow_table().sort_by("offset")
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def wanted(count: int) -> list[int]:
    return [number for number in range(count) if number % 3 != 1]


def whole(table: Path | str, queue: Path, storage: dict[str, str] | None = None) -> Any:
    """The one gateway of a table, which verify finds whole."""
    found = check_sum(Table.open(table, storage), Gateway.at(queue))
    assert found.landed is not None
    return found


def test_rows_have_columns_errors_and_their_bodies_and_what_is_left_out_is_counted(
    launch: Launcher, tmp_path: Path
) -> None:
    queue, table = tmp_path / "queue", tmp_path / "access"
    fill(queue)
    configured(tmp_path, with_column('exact = { path = "ratio", type = "decimal(20,4)" }'))
    output = drain(launch)
    rows = rows_of(table)
    assert [row["offset"] for row in rows] == wanted(90)
    for row in rows:
        number = row["offset"]
        assert row["host"] == f"web-{number % 3}"
        assert row["time"].isoformat() == f"2026-01-31T12:00:{number % 60:02d}.123456+00:00"
        assert row["ratio"] == row["exact"] == number / 8
        assert row["destination"] in ("access", "edge")
        if number % 10:
            assert (row["status"], row["_error"], row["_body"]) == (200 + number, None, None)
        else:
            assert row["status"] is None
            assert row["_error"] == 'status: "n/a" is not of type int'
            assert row["_body"] == body(number, "n/a")
    names = {"gateway", "offset", "received_at", "destination", "day", "_error", "_body"}
    assert set(rows[0]) == names | {"time", "host", "status", "ratio", "exact"}
    found = whole(table, queue)
    assert (found.rows, found.left_out) == (60, 30)
    wrong = len([number for number in wanted(90) if number % 10 == 0])
    assert f"rows in error: status {wrong}" in output
    [status] = read_statuses(queue)
    shown = shown_bridge(status, status["updated_at"])
    assert (shown["errors"], shown["left_out_rows"]) == ({"status": wrong}, 30)
    [stats] = [json.loads(file.statistics) for file in Table.open(table).files()]
    assert stats["minValues"]["time"] == "2026-01-31T12:00:00.123456Z"
    assert (stats["minValues"]["exact"], stats["maxValues"]["exact"]) == (0.0, 11.125)
    assert stats["nullCount"]["_error"] + stats["nullCount"]["_body"] == 2 * 54
    check_filters(table, rows)


def check_filters(table: Path, rows: list[dict[str, Any]]) -> None:
    """Readers find by each column what is there."""
    import duckdb
    import polars
    import pyarrow.compute as pc

    dataset = deltalake.DeltaTable(str(table)).to_pyarrow_dataset()
    for filter, fits in (
        (pc.field("status") > 250, lambda row: row["status"] and row["status"] > 250),
        (pc.field("ratio") > 10.0, lambda row: row["ratio"] > 10),
        (pc.field("ratio") < 0.0, lambda row: row["ratio"] < 0),
        (pc.field("exact") == Decimal("11.1250"), lambda row: row["ratio"] == 11.125),
        (pc.is_valid(pc.field("_error")), lambda row: row["_error"]),
        (pc.field("host") == "web-2", lambda row: row["host"] == "web-2"),
    ):
        assert dataset.to_table(filter=filter).num_rows == sum(bool(fits(row)) for row in rows)
    many = sum(row["ratio"] > 10 for row in rows)
    exact = polars.lit(Decimal("11.1250"), dtype=polars.Decimal(20, 4))
    assert polars.scan_delta(str(table)).filter(polars.col("exact") == exact).collect().height == 1
    landed = duckdb.connect().register("landed", dataset)
    assert landed.execute("SELECT count(*) FROM landed WHERE ratio > 10").fetchone() == (many,)


def test_a_place_moves_past_rows_that_are_left_out_and_the_queue_is_released(
    launch: Launcher, tmp_path: Path
) -> None:
    queue = tmp_path / "queue"
    write(queue, messages(0, 40, destination=["other"] * 40))
    configured(tmp_path, ACCESS)
    process = start(launch)
    process.line("bridge running", seconds=START_SECONDS)
    write(queue, messages(40, 10, destination=["other"] * 10))
    while not any(status["lag_rows"] == 0 for status in read_statuses(queue)):
        pass
    process.signal(signal.SIGTERM)
    assert process.wait(seconds=START_SECONDS) == 0
    found = whole(tmp_path / "access", queue)
    assert (found.rows, found.left_out, found.landed.offset) == (0, 50, 50)
    assert list(QueueReader(queue).consumers().values()) == [50]
    fill(queue, 50, 10)
    drain(launch)
    assert whole(tmp_path / "access", queue).left_out == 53


@pytest.mark.parametrize("point", ["landed", "committed"])
def test_a_kill_on_the_way_leaves_rows_and_counts_exact(
    launch: Launcher, tmp_path: Path, point: str
) -> None:
    """tests/table/test_sequences.py has more of them."""
    queue, table = tmp_path / "queue", tmp_path / "access"
    fill(queue)
    configured(tmp_path, ACCESS)
    words = ("--here", "--at", point, "bridge", "--config", "bridge.toml", "--once")
    killed = launch(*words, module="tests.tools.dying")
    assert killed.wait(seconds=START_SECONDS) == -signal.SIGKILL
    if Table.open(table).landed():
        whole(table, queue)
    fill(queue, 90, 30)
    drain(launch)
    assert [row["offset"] for row in rows_of(table)] == wanted(120)
    assert whole(table, queue).left_out == 40


def test_left_out_damaged_and_expired_rows_add_up_and_a_lost_row_shows(
    launch: Launcher, tmp_path: Path
) -> None:
    queue, table = tmp_path / "queue", tmp_path / "access"
    for day in range(3):
        count, first = 30, 30 * day
        write(
            queue,
            messages(
                first,
                count,
                received_at=(20_000 + day) * 86_400_000_000,
                destination=[("access", "other", "edge")[n % 3] for n in range(first, first + 30)],
                body=[body(n) for n in range(first, first + count)],
            ),
        )
    damage_record(queue, body(33))
    configured(tmp_path, ACCESS)
    drain(launch)
    found = whole(table, queue)
    assert (found.rows, found.left_out) == (40, 20), "the day with the damage is gone"
    before = max(row["day"] for row in rows_of(table))
    run = launch.run("table", "expire", table, "--before", before.isoformat())
    assert run.returncode == 0, run.stderr
    found = whole(table, queue)
    assert (found.rows, found.left_out) == (20, 20)
    verified = launch.run("table", "verify", table, "--queue", queue)
    assert re.search(r"20 rows, \d+ expired, 30 damaged, 20 left out", verified.stdout)
    file = Table.open(table).files()[0]
    (table / file.path).unlink()
    verified = launch.run("table", "verify", table)
    assert verified.returncode == 1
    assert f"missing: gateway {identity(queue)} {file.rows} rows, among the" in verified.stdout
    rewound = launch.run("table", "rewind", table, "--queue", queue)
    assert rewound.returncode == 0, rewound.stderr
    drain(launch)
    found = whole(table, queue)
    assert (found.rows, found.left_out) == (40, 20), "what had expired lands again, too"


# -- many tables ----------------------------------------------------------------------------------


def test_one_process_lands_several_tables_each_once(launch: Launcher, tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    fill(queue)
    configured(tmp_path, RAW, ACCESS)
    output = drain(launch)
    assert re.search(r"\braw: bridge ended: .* 90 rows in all", output)
    assert re.search(r"\baccess: bridge ended: .* 60 rows in all", output)
    assert [row["offset"] for row in rows_of(tmp_path / "raw")] == list(range(90))
    assert [row["offset"] for row in rows_of(tmp_path / "access")] == wanted(90)
    assert sorted(QueueReader(queue).consumers().values()) == [90, 90]
    assert {status["table"] for status in read_statuses(queue)} == {
        str(tmp_path / "raw"),
        str(tmp_path / "access"),
    }
    fill(queue, 90, 30)
    drain(launch)
    whole(tmp_path / "raw", queue)
    assert [row["offset"] for row in rows_of(tmp_path / "access")] == wanted(120)


def undone(table: Path) -> Path:
    """Undo what has landed, as nobody should; return a copy from before."""
    saved = shutil.copytree(table, table.parent / "saved")
    deltalake.DeltaTable(str(table)).restore(0)
    return saved


def test_a_table_that_cannot_be_landed_stands_aside_and_comes_back(
    launch: Launcher, tmp_path: Path
) -> None:
    queue, access = tmp_path / "queue", tmp_path / "access"
    fill(queue)
    configured(tmp_path, RAW, ACCESS)
    drain(launch)
    saved = undone(access)
    fill(queue, 90, 30)
    ended = start(launch, "--once")
    assert ended.wait(seconds=START_SECONDS) == 2
    assert re.search(r"\baccess: stands aside: .*msgproto table rewind", ended.output)
    assert "Traceback" not in ended.output and "bridge failed" not in ended.output
    assert len(rows_of(tmp_path / "raw")) == 120, "the other table goes on"
    states = {Path(one["table"]).name: one for one in read_statuses(queue)}
    assert states["access"]["state"] == "aside" and not states["access"]["rests_until"]
    assert states["raw"]["state"] == "ended" and states["raw"]["rests_until"]
    process = start(launch)
    process.line("access: stands aside: .*it is tried again in 1 s", seconds=START_SECONDS)
    assert {status["state"] for status in read_statuses(queue)} >= {"aside"}
    shutil.rmtree(access)
    shutil.copytree(saved, access)
    process.line("access: bridge running", seconds=START_SECONDS)
    process.line("access: batch .*, 20 rows in all", seconds=START_SECONDS)
    process.signal(signal.SIGTERM)
    assert process.wait(seconds=START_SECONDS) == 0
    assert [row["offset"] for row in rows_of(access)] == wanted(120)
    whole(access, queue)


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
def test_the_others_go_on_when_the_first_table_stands_aside_and_its_folder_is_gone(
    launch: Launcher, tmp_path: Path
) -> None:
    """With Spark itself, which keeps files while it runs."""
    queue, access = tmp_path / "queue", tmp_path / "access"
    fill(queue)
    configured(tmp_path, ACCESS, RAW)
    process = launch("bridge", "--config", "bridge.toml")
    for name in ("access", "raw"):
        process.line(f"{name}: batch ", seconds=START_SECONDS)
    saved = undone(access)
    fill(queue, 90, 3)
    process.line("access: stands aside: ", seconds=START_SECONDS)
    shutil.rmtree(access)
    saved.rename(access)
    for rows in (93, 96, 99):
        process.line(f"raw: batch .*, {rows} rows in all", seconds=START_SECONDS)
        fill(queue, rows, 3)
    process.line("raw: batch .*, 102 rows in all", seconds=START_SECONDS)
    process.line("access: batch .*, lag 0 rows", seconds=START_SECONDS)
    assert process.end() == 0
    assert "the batch failed" not in process.output
    whole(access, queue)
    whole(tmp_path / "raw", queue)


def test_a_table_that_another_bridge_lands_while_it_stands_aside_ends_no_other(
    launch: Launcher, tmp_path: Path
) -> None:
    queue, access = tmp_path / "queue", tmp_path / "access"
    fill(queue)
    configured(tmp_path, RAW, ACCESS)
    drain(launch)
    saved = undone(access)
    process = start(launch)
    process.line("access: stands aside: .*RESTORE", seconds=START_SECONDS)
    with open(queue / "bridges" / f"{consumer(access)}.lock", "r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        shutil.rmtree(access)
        saved.rename(access)
        process.line("access: stands aside: .* in use by another bridge", seconds=START_SECONDS)
        fill(queue, 90, 30)
        process.line("raw: batch .*, 30 rows in all", seconds=START_SECONDS)
    process.line("access: batch .*, 20 rows in all", seconds=START_SECONDS)
    whole(access, queue)
    deltalake.DeltaTable(str(access)).restore(0)
    fill(queue, 120, 3)
    process.line("access: stands aside: .*again in 1 s", nth=2, seconds=START_SECONDS)
    with open(held.name) as again:  # it leaves the queue to others
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert process.end() == 0


def test_a_last_version_that_is_torn_lands_again_and_the_bridge_says_so(
    launch: Launcher, tmp_path: Path
) -> None:
    queue, access = tmp_path / "queue", tmp_path / "access"
    fill(queue)
    configured(tmp_path, RAW, ACCESS)
    drain(launch)
    log = access / "_delta_log" / f"{1:020}.json"
    log.write_bytes(log.read_bytes()[:-100])
    assert "access: bridge: version 1 is empty now: a loss of power has torn it" in drain(launch)
    assert [row["offset"] for row in rows_of(access)] == wanted(90)
    whole(access, queue)


def test_a_table_with_a_torn_log_stands_aside_under_the_name_of_its_consumer(
    launch: Launcher, tmp_path: Path
) -> None:
    queue = tmp_path / "queue"
    fill(queue, 0, 3)
    configured(tmp_path, RAW, ACCESS.replace("where", 'consumer = "night"\nwhere'))
    drain(launch)
    log = tmp_path / "access" / "_delta_log" / f"{0:020}.json"
    log.write_bytes(log.read_bytes()[:-100])
    fill(queue, 3, 3)
    ended = start(launch, "--once")
    assert ended.wait(seconds=START_SECONDS) == 2
    assert "Traceback" not in ended.output
    assert len(rows_of(tmp_path / "raw")) == 6
    [night] = [one for one in read_statuses(queue) if one["consumer"] == "night"]
    assert night["state"] == "aside" and "version 0 of" in night["error"]
    assert f"access: stands aside: {night['error']}" in ended.output


def test_a_table_that_stands_aside_is_tried_again_and_says_when_it_has_ended(
    launch: Launcher, tmp_path: Path
) -> None:
    queue = tmp_path / "queue"
    fill(queue, 0, 3)
    configured(tmp_path, RAW, ACCESS)
    process = start(launch)
    process.line("access: batch .*, 2 rows in all", seconds=START_SECONDS)
    deltalake.DeltaTable(str(tmp_path / "access")).restore(0)
    fill(queue, 3, 3)
    for tries, pause in enumerate((1, 2)):
        line = f"access: stands aside: .*it is tried again in {pause} s"
        process.line(line, seconds=START_SECONDS)
        [aside] = [one for one in read_statuses(queue) if one["state"] == "aside"]
        figures = [aside["rows"], aside["batches"], aside["failed_batches"]]
        assert figures == [2, 1, tries], "they count on"
    process.signal(signal.SIGTERM)
    assert process.wait(seconds=START_SECONDS) == 0
    assert {status["state"] for status in read_statuses(queue)} == {"ended"}


# -- growth ---------------------------------------------------------------------------------------


def with_column(text: str) -> str:
    return f"{ACCESS}{text}\n"


def test_a_new_column_is_added_before_the_first_batch_and_one_that_goes_is_null(
    launch: Launcher, tmp_path: Path
) -> None:
    queue, table = tmp_path / "queue", tmp_path / "access"
    fill(queue)
    configured(tmp_path, ACCESS)
    drain(launch)
    version = Table.open(table).version
    configured(tmp_path, with_column('text = { path = "http.status", type = "string" }'))
    drain(launch)
    assert Table.open(table).version == version + 1, "a version of its own, without a batch"
    fill(queue, 90, 30)
    drain(launch)
    rows = rows_of(table)
    assert {row["text"] for row in rows if row["offset"] < 90} == {None}
    assert [row["text"] for row in rows if row["offset"] == 92] == ["292"]
    configured(tmp_path, ACCESS.replace('keep = ["destination"]', "").split("ratio =")[0])
    fill(queue, 120, 3)
    drain(launch)
    last = rows_of(table)[-1]
    assert (last["offset"], last["ratio"], last["destination"]) == (122, None, None)
    whole(table, queue)
    opened = deltalake.DeltaTable(str(table))
    assert opened.protocol().min_writer_version == 2
    run = launch.run("table", "compact", table)
    assert run.returncode == 0, run.stderr
    assert rows_of(table)[-1]["offset"] == 122


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        (
            ACCESS.replace('"int"', '"string"'),
            r"'status' of the table .*/access is of type int32, not string; give the new one anoth",
        ),
        (
            with_column('Host = { path = "h", type = "string" }').replace("host = ", "# "),
            "has a column 'host', which differs from 'Host' only in case",
        ),
        (RAW.replace('"raw"', '"access"'), "has no column 'protocol': it is not a table of what"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_a_line(
    launch: Launcher, tmp_path: Path, tables: str, line: str
) -> None:
    fill(tmp_path / "queue", 0, 3)
    configured(tmp_path, ACCESS)
    drain(launch)
    version = Table.open(tmp_path / "access").version
    configured(tmp_path, tables)
    refused = launch.run("bridge", "--config", "bridge.toml", "--once")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.search(line, refused.stderr) and refused.stderr.count("\n") == 1, refused.stderr
    assert Table.open(tmp_path / "access").version == version


@pytest.mark.parametrize("why", ["is in use by another bridge", "older copy"])
def test_a_start_that_is_refused_adds_no_column(launch: Launcher, tmp_path: Path, why: str) -> None:
    """A column does not go any more, and the bridge may have been a wrong one."""
    queue, table = tmp_path / "queue", tmp_path / "access"
    fill(queue, 0, 3)
    shutil.copytree(queue, tmp_path / "copy")
    fill(queue, 3, 3)
    configured(tmp_path, ACCESS)
    drain(launch)
    before = Table.open(table)
    wider = with_column('text = { path = "t", type = "string" }')
    configured(tmp_path, wider.replace("where =", 'properties = { owner = "us" }\nwhere ='))
    with contextlib.ExitStack() as stack:
        if why == "older copy":
            shutil.rmtree(queue)
            shutil.move(tmp_path / "copy", queue)
        else:
            [consumer] = QueueReader(queue).consumers()
            held = stack.enter_context(open(queue / "bridges" / f"{consumer}.lock", "r+"))
            fcntl.flock(held, fcntl.LOCK_EX)
        refused = launch.run("bridge", "--config", "bridge.toml", "--once")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stdout
    assert why in refused.stderr
    assert Table.open(table).version == before.version


def test_a_new_table_begins_behind_what_was_trimmed_only_if_its_file_says_so(
    launch: Launcher, tmp_path: Path
) -> None:
    write(queue := tmp_path / "queue", messages(0, 1500))
    begin = trim(queue)
    configured(tmp_path, RAW)
    refused = launch.run("bridge", "--config", "bridge.toml", "--once")
    assert refused.returncode == 2 and f"below offset {begin}" in refused.stderr
    configured(tmp_path, f'{RAW}start = "begin"\n')
    drain(launch)
    assert rows_of(tmp_path / "raw")[0]["offset"] == begin


def test_bridges_with_two_definitions_of_a_table_land_each_row_once(
    launch: Launcher, tmp_path: Path
) -> None:
    """One of two that add a column of other types at once is refused."""
    access = with_column("").replace('location = "access"', 'location = "../access"')
    names = ("one", "other", "string", "long")
    for name in names:
        fill(tmp_path / f"queue-{name}")
        (tmp_path / name).mkdir()
        text = f'text = {{ path = "http.status", type = "{name}" }}' if name in TYPES else ""
        configured(tmp_path / name, access + text, queues=[f"../queue-{name}"])

    def begin(name: str, *options: str) -> Launched:
        words = ("--here", "bridge", "--config", f"{name}/bridge.toml", *options)
        return launch(*words, module="tests.tools.dying")

    going = begin("one")
    going.line("bridge running", seconds=START_SECONDS)
    both = [begin(name, "--once") for name in ("string", "long")]
    statuses = [each.wait(seconds=START_SECONDS) for each in both]
    assert sorted(statuses) == [0, 2], [each.output for each in both]
    assert "'text' of the table" in both[statuses.index(2)].output
    assert begin("other", "--once").wait(seconds=START_SECONDS) == 0
    fill(tmp_path / "queue-one", 90, 30)
    while list(QueueReader(tmp_path / "queue-one").consumers().values()) != [120]:
        time.sleep(0.01)
    assert going.end(seconds=START_SECONDS) == 0
    grown = names[2:][statuses.index(0)]
    rows = rows_of(tmp_path / "access")
    for name, count in (("one", 120), ("other", 90), (grown, 90)):
        gateway = identity(tmp_path / f"queue-{name}")
        mine = [row for row in rows if row["gateway"] == gateway]
        assert [row["offset"] for row in mine] == wanted(count)
        assert any(row["text"] for row in mine) is (name == grown)
        whole(tmp_path / "access", tmp_path / f"queue-{name}")


# -- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("queue = 5", "queue is a list, not 5"),
        ("[queue]", r"\[queue\] is of a gateway.toml"),
        ("queue = 'q'\ntable = 't'", r"write \[\[table\]\] above each"),
        ("", "queue names the queues"),
        ('queue = "q"', r"there is no \[\[table\]\]"),
        ('queue = "q"\ntriger = "1s"\n' + RAW, "did you mean 'trigger'"),
        ('queue = "q"\ntrigger = "soon"\n' + RAW, "trigger is a duration"),
        ('queue = "q"\nmax_rows = 0\n' + RAW, "max_rows is a whole number from 1"),
        ('queue = "q"\n[conf]\nx = "1"\n' + RAW, "begin with spark."),
        ('queue = "q"\n[[table]]\nname = "x"', r"\[\[table\]\] x: location says where"),
        ('queue = "q"\n' + RAW + RAW, r"\[\[table\]\] raw: two tables have this name"),
        ('queue = "q"\n' + RAW + RAW + 'name = "b"', "is the table 'raw' already"),
        ('queue = "q"\n' + RAW + '[[table]]\nlocation = "x/../raw/"\nname = "b"',
         "is the table 'raw'"),
        ('queue = "q\\u0000"\n' + RAW, "has a NUL"),
        ('queue = "q"\n' + RAW + '[table.columns]\n"a\\u0000" = { type = "int" }', "has a NUL"),
        ('queue = "q"\n' + RAW + 'start = "end"', 'start is "begin"'),
        ('queue = "q"\n' + RAW + "where = { kind = 'x' }\ntransform = 'a:b'", "not both"),
        ('queue = "q"\n' + RAW + "[table.columns]\na = { type = 'int8' }", "the column 'a' is of"),
        ('queue = "q"\n' + RAW + "partition_by = ['protocol', 'day']\ncolumns = { a = 'int' }",
         r'partitioned by protocol: keep = \["protocol"\]'),
        ('queue = "q"\n' + RAW + "partition_by = [1]\ncolumns = { a = 'int' }",
         "--partition-by is day or protocol,day, not '1'"),
        ('queue = ["q", "./q"]\n' + RAW, "are the same queue"),
        ('queue = "q"\nconf = { "spark.master" = "yarn" }\n' + RAW, "spark.master is no setting"),
        ('queue = "q"\nflight_proxy = "proxy:3128"\n' + RAW, "the proxy of Flight is http://HOST"),
        ('queue = "q"\ntoken_file = ""\n' + RAW, "token_file is empty"),
        ('queue = "q"\n' + RAW + 'storage = { "" = "x" }', "storage has a key without a name"),
        ('queue = "q"\n[[table]]\nlocation = "file:///raw"\n'
         '[[table]]\nlocation = "/raw"\nname = "b"', "is the table 'raw' already"),
        ('queue = "q"\n[[table]]\nlocation = "s3://b/raw"\n'
         '[[table]]\nlocation = "s3a://b/raw/"\nname = "b"', "is the table 'raw' already"),
        ('queue = "q"\n' + RAW + '[[table]]\nlocation = "raw/er"', "the table 'raw' lie in one"),
        ('queue = "q"\n' + RAW + 'consumer = "c"\n[[table]]\nlocation = "b"\nconsumer = "c"',
         "the table 'raw' has the consumer 'c' already: they would trim each other's rows"),
        ('queue = "q"\n' + RAW + 'dead_letters = "d"', "dead letters are of a transform"),
        ('queue = "q"\n' + RAW + "transform = 'a:b'\ndead_letters = './raw'",
         "the dead letters need a table of their own"),
        ('queue = "q"\n' + RAW + "transform = 'a:b'\ndead_letters = 'd'\n[[table]]\nlocation = 'd'",
         "is the table 'raw' already"),
        ('queue = "q"\n' + RAW + "dead_letters = 5", "dead_letters is a text"),
        ('queue = "q"\n' + RAW + "properties = { a = 5 }", "properties: a is a text"),
        ('queue = "q"\n' + RAW + "properties = { 'delta.enableChangeDataFeed' = 'true' }",
         "properties: delta.enableChangeDataFeed is none of delta.appendOnly, "),
        ("queue = [", "not TOML"),
        ('queue = "q"\nconf = ' + "[" * 2000 + "]" * 2000 + "\n" + RAW, "nested too deep"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_which_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bridge.toml").write_text(text)
    for words in (["bridge", "--config", "bridge.toml"], ["check", "bridge.toml"]):
        if words[0] == "check" and "table" not in text and "[" not in text and '"' not in text:
            continue  # nothing says that it is a bridge's
        assert cli.main(words) == 2
        refused = capsys.readouterr().err
        assert refused.count("\n") == 1 and refused.count("bridge.toml: ") == 1, refused
        if words[0] == "bridge":
            assert re.search(line, refused), refused


VALUES = [
    *("-1", "1.5", "true", '""', '"x"', "[]", '[""]', "[5]", '["x", "x"]', "{}", "{ a = 5 }"),
    *('{ "" = "x" }', "1979-05-27", "[[1]]", "[{}]", '"\\n"', "nan", "99999999999999999999"),
]
OF_A_COLUMN = ("path", "type", "required", "from", "format")


def test_whatever_a_file_says_is_one_line_or_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each key with a value of each kind, many of which it cannot have."""
    file = tmp_path / "bridge.toml"
    texts = [f'queue = "q"\n{key} = {value}\n' for key in BRIDGE_KEYS for value in VALUES]
    texts = [text.removeprefix('queue = "q"\n') if "\nqueue" in text else text for text in texts]
    texts = [text if "\ntable" in text else text + RAW for text in texts]
    texts += [f"{RAW}{key} = {value}" for key in TABLE_KEYS for value in VALUES]
    texts += [f"{RAW}where = {{ kind = {value} }}" for value in VALUES]
    texts += [
        f"{RAW}columns = {{ a = {{ {key} = {value} }} }}" for key in OF_A_COLUMN for value in VALUES
    ]
    refused = 0
    for text in texts:
        file.write_text(text if text.startswith("queue") else f'queue = "q"\n{text}')
        status = cli.main(["check", "--file-only", str(file)])
        said = capsys.readouterr().err
        assert (status, said.count("\n")) in ((0, 0), (2, 1)), (text, said)
        refused += status == 2
    assert refused > len(texts) // 2


def test_tables_that_all_wait_for_one_queue_end_as_one_does(
    launch: Launcher, tmp_path: Path
) -> None:
    """It said of each that it is tried again in a second, and ended."""
    configured(tmp_path, RAW, ACCESS)
    refused = launch.run("bridge", "--config", "bridge.toml")
    alone = launch.run("bridge", "--queue", "queue", "--table", "raw")
    for one in (refused, alone):
        assert (one.returncode, one.stdout) == (2, "")
        why = f"msgproto bridge: no queue in {tmp_path / 'queue'}: there is no such directory\n"
        assert one.stderr == why


def test_a_table_does_not_lie_in_a_queue(launch: Launcher, tmp_path: Path) -> None:
    """Nor the other way round: each would meet the other's files."""
    fill(tmp_path / "here" / "queue", 0, 3)
    for table in ("here/queue", "here/queue/table", "here"):
        refused = launch.run("bridge", "--queue", "here", "--table", table, "--once")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "lie in one another: name another directory" in refused.stderr


def test_check_reads_a_bridges_file_and_the_command_refuses_options_beside_it(
    launch: Launcher, tmp_path: Path
) -> None:
    configured(tmp_path, RAW, ACCESS)
    assert "no queue in" in launch.run("check", "bridge.toml").stderr
    fill(tmp_path / "queue", 0, 3)
    checked = launch.run("check", "bridge.toml")
    assert checked.returncode == 0, checked.stderr
    assert "access: status int32 from the body: http.status" in checked.stdout
    assert not (tmp_path / "access").exists()
    for option in (["--queue", "x"], ["--trigger", "2s"], ["--transform", "a:b"]):
        refused = launch.run("bridge", "--config", "bridge.toml", *option)
        assert refused.returncode == 2
        assert f"{option[0]} stands in the file of --config" in refused.stderr
    assert "bridge needs --queue, or --config" in launch.run("bridge").stderr


# -- a proposal, and trying it out ----------------------------------------------------------------


def test_a_proposal_of_a_raw_table_fits_its_rows_and_is_tried_out(
    launch: Launcher, tmp_path: Path
) -> None:
    queue = tmp_path / "queue"
    bodies = [b'{"@timestamp":"2026-01-31T12:00:00Z"}', b"no JSON", b'{"status":7}']
    write(queue, messages(0, 300, body=[bodies[n % 3] for n in range(300)]))
    configured(tmp_path, RAW)
    drain(launch)
    proposed = launch.run("table", "columns", "raw")
    assert proposed.returncode == 0, proposed.stderr
    assert 'timestamp = { path = "@timestamp", type = "timestamp" }' in proposed.stdout
    mistyped = 'wrong = { path = "staus", type = "long" }\n'
    configured(tmp_path, '[[table]]\nlocation = "typed"\n', proposed.stdout, mistyped)
    tried = launch.run("table", "columns", "raw", "--config", "bridge.toml", "--try", "100")
    assert tried.returncode == 0, tried.stderr
    assert "typed: 100 rows, 33 errors" in tried.stdout
    assert "typed: body: 33 errors, as: the body is not JSON" in tried.stdout
    assert "typed: status: 0 errors, 33 values" in tried.stdout
    assert "typed: wrong: 0 errors, 0 values" in tried.stdout
    assert not (tmp_path / "typed").exists(), "nothing is changed"
    drain(launch)
    assert {row["_error"] for row in rows_of(tmp_path / "typed")} == {None, "the body is not JSON"}
    refused = launch.run("table", "columns", "typed")
    assert "name a table with the queue's columns" in refused.stderr
    for words, says in (
        (["--try", "5"], "--try goes with --config FILE"),
        (["--config", "bridge.toml", "--try", "0"], "a whole number from 1 on"),
    ):
        assert says in launch.run("table", "columns", "raw", *words).stderr


# -- a table that comes later ---------------------------------------------------------------------


def derive(launch: Launcher, *at: str, raw: str = "raw") -> Launched:
    words = (*at, "table", "derive", raw, "access", "--config", "bridge.toml")
    return launch(*words, module="tests.tools.dying")


def test_a_table_that_comes_later_is_killed_on_the_way_and_has_every_row_once(
    launch: Launcher, tmp_path: Path
) -> None:
    queue, access = tmp_path / "queue", tmp_path / "access"
    fill(queue)
    configured(tmp_path, RAW)
    drain(launch)
    configured(tmp_path, RAW, ACCESS)
    for point in ("registered", "marked", "linked", "landed", "committed"):
        killed = derive(launch, "--at", point)
        assert killed.wait(seconds=START_SECONDS) == -signal.SIGKILL, point
    assert Table.open(access).files()
    half = (
        "has only a part of the one that it is made of: run 'msgproto table derive' again, to its"
    )
    ended = start(launch, "--once")
    assert ended.wait(seconds=START_SECONDS) == 2
    assert re.search(f"access: stands aside: .*{half}", ended.output), ended.output
    assert consumer(access) in {status["consumer"] for status in read_statuses(queue)}
    configured(tmp_path, ACCESS)
    alone = launch.run("bridge", "--config", "bridge.toml", "--once")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert half in alone.stderr and alone.stderr.count("\n") == 1

    configured(tmp_path, RAW, ACCESS)
    fill(queue, 90, 30)
    made = derive(launch)
    assert made.wait(seconds=START_SECONDS) == 0, made.output
    assert re.search(r"access version \d+: 60 rows, made of version 1; a bridge goes", made.output)
    assert whole(access, queue).left_out == 30
    drain(launch)
    assert [row["offset"] for row in rows_of(access)] == wanted(120)
    assert whole(access, queue).left_out == 40
    assert sorted(QueueReader(queue).consumers().values()) == [120, 120]
    again = launch.run("table", "derive", "raw", "access", "--config", "bridge.toml", "--json")
    assert json.loads(again.stdout)["rows"] == 80 and again.returncode == 0


def test_a_table_that_cannot_come_later_is_refused_in_a_line(
    launch: Launcher, tmp_path: Path
) -> None:
    fill(tmp_path / "queue", 0, 3)
    configured(tmp_path, RAW)
    drain(launch)
    transformed = '[[table]]\nlocation = "access"\ntransform = "a:b"\n'
    inside = ACCESS.replace('location = "access"', 'location = "raw/in"')
    for text, others, words, line in (
        (ACCESS, [], ["raw", "acess"], "bridge.toml: no .* has the name or location 'acess'"),
        (transformed, [], ["raw", "access"], "without a transform"),
        (ACCESS, ["gone"], ["raw", "access"], "gone"),
        (ACCESS, ["grpc://127.0.0.1:9"], ["raw", "access"], "127.0.0.1:9"),
        (ACCESS, [], ["none", "access"], "none is not a table"),
        (inside, [], ["raw", "access"], "raw and .*/raw/in lie in one another"),
    ):
        configured(tmp_path, text, queues=["queue", *others])
        refused = launch.run("table", "derive", *words, "--config", "bridge.toml")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert re.search(line, refused.stderr) and refused.stderr.count("\n") == 1, refused.stderr
        assert not (tmp_path / "access").exists()
        assert len(QueueReader(tmp_path / "queue").consumers()) == 1, "nothing is kept for it"
