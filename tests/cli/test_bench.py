"""``msgproto bench``: rows beside rows, measured for real at a small scale."""

import json
import os
import shlex
import signal
import socket
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.tools.processes import Launcher
from twisted_msgproto import cli
from twisted_msgproto.cli import bench, peers
from twisted_msgproto.cli.bench import chosen, describe
from twisted_msgproto.cli.benches import lumberjack as lumberjack_bench
from twisted_msgproto.cli.benches import queue, raw
from twisted_msgproto.cli.benches.lumberjack import drive, json_window
from twisted_msgproto.cli.measuring import Comparison, Figures, Gauge, Reading, measure, read
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.registry import PROTOCOLS


def rows_of(launch: Launcher, *words: str | Path, scale: float = 0.02) -> dict[str, Any]:
    """What ``msgproto bench --json`` tells at a small scale, by the names of the rows.

    The exit status says whether a mark was missed, which at such a scale means nothing.
    """
    where = ("--scale", str(scale), "--rounds", "1", "--queue", launch.directory)
    ended = launch.run("bench", *words, "--json", *where, seconds=300)
    assert ended.returncode in (0, 1), ended.stderr
    rows = {row["name"]: row for row in map(json.loads, ended.stdout.splitlines())}
    missed = any(row["keeps_mark"] is False for row in rows.values())
    assert ended.returncode == (1 if missed else 0)
    assert [path.name for path in launch.directory.iterdir()] == []
    return rows


def named(launch: Launcher, *words: str) -> list[str]:
    """What ``msgproto bench --list`` names."""
    ended = launch.run("bench", *words, "--list")
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


# ── Rounds ──────────────────────────────────────────────────────────────────────────────────────


def order_of(rounds: int, **options: Any) -> list[str]:
    """In which order the two sides of a comparison worked, after the warm-up."""
    worked: list[str] = []

    def work(side: str) -> Figures:
        worked.append(side)
        return Figures(1, 1.0, 1.0)

    row = Comparison("x", "y", "cpu", lambda: work("ours"), lambda: work("beside"), **options)
    measure(row, rounds)
    assert worked[:2] == ["ours", "beside"]
    return worked[2:]


def test_the_two_sides_take_turns_in_going_first() -> None:
    assert order_of(3) == ["ours", "beside", "beside", "ours", "ours", "beside"]


def test_a_side_which_takes_its_shape_from_ours_always_follows() -> None:
    assert order_of(3, follows=True) == ["ours", "beside"] * 3


def test_slices_of_a_round_are_added_up() -> None:
    costs = iter([9.0, 1.0, 2.0, 4.0, 8.0])
    ours = lambda: Figures(10, next(costs), 1.0, groups=1)  # noqa: E731
    other = lambda: Figures(10, 1.0, 1.0)  # noqa: E731
    result = measure(Comparison("x", "y", "rate", ours, other, slices=2), 2)
    assert [figures.wall for figures in result.ours] == [3.0, 12.0]
    assert [figures.messages for figures in result.ours] == [20, 20]
    assert result.ours[0].groups == 2
    assert result.ratios == pytest.approx([2 / 3, 2 / 12])


@pytest.mark.parametrize(("repeats", "values"), [(True, [1.0, 2.0, 3.0]), (False, [1.0])])
def test_a_gauge_is_read_as_often_as_it_wants(repeats: bool, values: list[float]) -> None:
    shown = iter([1.0, 2.0, 3.0])
    gauge = Gauge("x", "s", lambda: Reading(next(shown), {"p50_seconds": 0.25}), 2.0, 0.5, repeats)
    result = read(gauge, 3)
    assert [reading.value for reading in result.readings] == values
    assert result.keeps(2.0) and not result.keeps(0.5) and result.keeps(None) is None
    assert result.as_dict()["notes"] == {"p50_seconds": 0.25}
    told = describe(result)
    assert "mark ≤ 2 kept, goal ≤ 0.5" in told and "p50 seconds 0.25" in told


def test_what_was_not_measured_is_not_told() -> None:
    ours = Figures(10, 1.0, 0.0)
    result = measure(Comparison("x", "y", "rate", lambda: ours, lambda: ours), 1)
    assert result.as_dict()["cpu_seconds_per_million"] is None
    assert "CPU" not in describe(result)


# ── Subjects ────────────────────────────────────────────────────────────────────────────────────


def test_lumberjack_brings_the_whole_way_into_the_table_with_it() -> None:
    assert chosen(["lumberjack"]) == {
        "lumberjack": True,
        "queue": False,
        "spark": False,
        "growth": False,
    }
    assert chosen(["queue"]) == {"queue": True}
    assert chosen([]) == dict.fromkeys(bench.SUBJECTS, False)


def test_the_rows_of_the_queue_and_of_spark_are_listed_with_their_marks(launch: Launcher) -> None:
    listed = named(launch, "lumberjack")
    assert len(listed) == len(set(listed))
    for text in (
        "queue append, encoded groups of 1,000  beside  write + fdatasync",
        "queue append from columns, groups of 1,000  beside",
        "queue → table, 1,000,000 rows, cpu  beside  Spark's own",
        "received → in the table, 2000 messages/s",
        "into the queue, change of memory",
        "growth, messages × 10, counting sink  beside  the same at 1 ×",
        "growth, connections 4 → 40, into the queue  beside",
        "growth, window 200 → 2,000, counting sink  beside",
        "growth, backlog × 10, appending to it  beside",
        "growth, backlog × 10, reading it  beside",
        "growth, idle peers × 1,000, mtl  beside  the same with one",
    ):
        assert any(text in line for line in listed), text
    assert set(named(launch, "queue")) < set(listed)
    assert set(named(launch, "lumberjack", "queue")) == set(listed)


def test_the_rows_of_many_gateways_are_listed(launch: Launcher) -> None:
    listed = named(launch, "scale")
    for text in (
        "batch plan, 1000 Flight endpoints",
        "commit which moves 100 gateways",
        "bridge over 10 gateways: a start after kill -9",
        "network: a question and its answer",
    ):
        assert any(text in line for line in listed), text


def test_an_unknown_subject_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "queue", "disk"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("msgproto bench: unknown subject 'disk'; known: lumberjack, ")
    assert told.count("\n") == 1


def test_a_filter_which_leaves_nothing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "queue", "--only", "nothing like it"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_spark_the_rest_is_measured_and_spark_only_named_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = bench.find_spec
    monkeypatch.setattr(bench, "find_spec", lambda name: None if name == "pyspark" else found(name))
    missing = "pyspark is not installed: pip install 'twisted-msgproto[spark]'"
    assert cli.main(["bench", "lumberjack", "--list"]) == 0
    told = capsys.readouterr()
    assert told.err == f"msgproto bench: spark is left out: {missing}\n"
    assert "queue append" in told.out and "Spark" not in told.out
    assert cli.main(["bench", "spark", "--list"]) == 2
    assert capsys.readouterr().err == f"msgproto bench: {missing}\n"


def planted_rows(monkeypatch: pytest.MonkeyPatch, *rows: bench.Row) -> list[str]:
    """Make the subject ``queue`` consist of ``rows``; tells when its generator was closed."""
    closed: list[str] = []

    def comparisons(arguments: object) -> Iterator[bench.Row]:
        try:
            yield from rows
        finally:
            closed.append("closed")

    module = ModuleType("planted")
    module.comparisons = comparisons  # type: ignore[attr-defined]
    monkeypatch.setattr(bench, "_module", lambda name: module)
    return closed


def test_the_exit_status_says_whether_a_mark_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = lambda: Figures(1, 1.0, 1.0)  # noqa: E731
    for kept, row in (
        (True, Comparison("x", "y", "rate", one, one, mark=0.9)),
        (False, Comparison("x", "y", "rate", one, one, mark=1.1)),
        (True, Comparison("x", "y", "cpu", one, one, mark=1.1)),
        (False, Comparison("x", "y", "cpu", one, one, mark=0.9)),
        (True, Comparison("x", "y", "cpu", one, one, goal=0.9)),
        (True, Gauge("x", "s", lambda: Reading(1.0), mark=1.0)),
        (False, Gauge("x", "s", lambda: Reading(1.0), mark=0.9)),
    ):
        planted_rows(monkeypatch, row)
        assert cli.main(["bench", "queue", "--rounds", "1"]) == (0 if kept else 1), row


def test_what_a_subject_started_ends_when_we_are_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> Reading:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal did not reach us")

    closed = planted_rows(monkeypatch, Gauge("x", "s", told))
    assert cli.main(["bench", "queue"]) == 130
    assert closed == ["closed"]


def test_figures_are_drawn_with_their_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    one = lambda: Figures(1, 1.0, 1.0)  # noqa: E731
    planted_rows(
        monkeypatch,
        Comparison("x", "y", "rate", one, one, mark=0.9),
        Gauge("z", "s", lambda: Reading(0.5), mark=1.0),
        Gauge("without a mark", "s", lambda: Reading(0.5)),
    )
    assert cli.main(["bench", "queue", "--plot", str(tmp_path / "drawn.png")]) == 0
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_the_queue_is_measured_beside_the_disk(launch: Launcher) -> None:
    rows = rows_of(launch, "queue")
    encoded = rows["queue append, encoded groups of 1,000"]
    columns = rows["queue append from columns, groups of 1,000"]
    assert (encoded["mark"], columns["mark"]) == (0.9, 0.5)
    assert encoded["messages_per_group"] == encoded["beside_messages_per_group"] == 1000
    assert columns["messages_per_group"] == columns["beside_messages_per_group"] == 1000
    assert rows["queue read, groups of 1,000"]["notes"]["messages"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["micromsg2", "sabc", "umq", "mtl", "small"])
def test_every_row_that_is_listed_is_measured(launch: Launcher, subject: str) -> None:
    listed = named(launch, subject)
    rows = rows_of(launch, subject, scale=0.005)
    assert list(rows) == [line.split("  ")[0] for line in listed]
    for row in rows.values():
        assert row.get("ratio", row.get("value")) > 0


@pytest.mark.slow
def test_what_a_bridge_asks_far_gateways_is_counted(launch: Launcher) -> None:
    (row,) = rows_of(launch, "scale", "--only", "network", scale=0.005).values()
    assert (row["unit"], row["value"] > 0) == ("octets", True)


def grown(launch: Launcher, *words: str) -> list[str]:
    """The names of the rows of growth that ``words`` choose, each of them measured."""
    rows = rows_of(launch, "growth", *words, scale=0.01)
    for name, row in rows.items():
        mark = 1.5 if "idle peers" in name else 1.1
        assert (row["figure"], row["mark"]) == ("cpu", mark)
        assert row["ratio"] > 0
    return list(rows)


def test_what_a_message_costs_is_measured_as_the_work_grows(launch: Launcher) -> None:
    """The short form has a row of each kind; ten times the work, and a hundred idle peers."""
    listed = [line.split("  ")[0] for line in named(launch, "growth")]
    idle = [name for name in listed if "idle peers" in name]
    assert (len(idle), len(listed)) == (2 * len(PROTOCOLS), 2 * len(PROTOCOLS) + 8)
    assert grown(launch, "--only", "backlog × 10") == listed[6:8]
    assert grown(launch, "--only", "idle peers × 100, sabc") == [idle[4]]


@pytest.mark.long
def test_all_rows_of_growth_are_measured(launch: Launcher) -> None:
    listed = named(launch, "growth")
    assert grown(launch) == [line.split("  ")[0] for line in listed]


def test_growth_is_ten_times_of_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    from twisted_msgproto.cli.benches import growth

    loads: list[growth.Load] = []

    def run(load: growth.Load, subject: object) -> Figures:
        loads.append(load)
        return Figures(load.windows * load.size, 1.0, 1.0)

    monkeypatch.setattr(growth.Load, "run", run)
    monkeypatch.setattr(growth.Subjects, "get", lambda self, *words: None)
    arguments = Namespace(scale=1.0, queue=None)
    for row in islice(growth.comparisons(arguments), 3):
        assert isinstance(row, Comparison)
        row.ours()
        row.other()
    messages, connections, window = loads[:2], loads[2:4], loads[4:]
    more, once = messages
    assert more == once._replace(windows=once.windows * 10)
    more, once = connections
    assert more == once._replace(windows=once.windows * 10, connections=40)
    assert once.connections == 4
    more, once = window
    assert (once.size, more.size) == (200, 2000)
    assert once.windows * once.size == more.windows * more.size


def test_a_gateway_with_nothing_to_do_is_measured(launch: Launcher) -> None:
    rows = rows_of(launch, "idle", scale=0.01)
    memory, cpu, good, after, listening = rows.values()
    assert memory["name"] == "100 idle connections, memory above start"
    assert memory["mark"] == pytest.approx(57.2, abs=0.1)  # 60 MB
    assert (cpu["mark"], good["mark"], after["mark"], listening["mark"]) == (2.0, 5.0, None, 2.0)
    assert memory["notes"]["connections"] == 100
    assert memory["notes"]["MiB before"] > 10
    assert good["value"] >= good["notes"]["p50 ms"] > 0
    assert listening["value"] > 0 and listening["notes"]["MiB in the queue"] > 10


def test_a_good_client_is_measured_beside_a_bulk_sender__NB_01(launch: Launcher) -> None:
    """Whether the marks are kept on a busy machine and at such a scale means nothing."""
    listed = named(launch, "neighbours")
    assert len(listed) == 3 * (len(PROTOCOLS) + 1)
    assert "neighbours, 200 ms a sync, mtl beside bulk, p99" in listed
    rows = rows_of(launch, "neighbours", "--only", " 1 ms a sync, sabc", scale=0.01)
    (row,) = rows.values()
    notes, allowed = row["notes"], max(6 * row["notes"]["alone p50 ms"], 50.0)
    assert row["value"] == pytest.approx(notes["p99 ms"] / allowed)
    assert notes["messages"] == 8 and notes["p50 ms"] >= 1 and notes["alone p50 ms"] >= 1


def test_the_broker_is_measured_beside_a_deque(launch: Launcher) -> None:
    rows = rows_of(launch, "broker", scale=0.01)
    for batch in (1, 100):
        row = rows[f"broker, publish to acknowledged, {batch} at a time"]
        assert (row["beside"], row["mark"]) == ("a deque", 4.0)
    assert 12 <= rows["broker, memory of a waiting place, 10 M"]["value"] <= 16
    assert rows["broker, 1 M places restored"]["value"] < 3


def test_16_the_row_beside_coilmq_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from twisted_msgproto.cli.benches import broker_beside

    monkeypatch.setattr(broker_beside, "find_spec", lambda name: None)
    assert list(broker_beside.rows(Namespace(scale=1.0, queue=None))) == []
    assert "pip install 'coilmq" in capsys.readouterr().err


def test_16_messages_go_through_a_measured_micromsg2_broker(tmp_path: Path) -> None:
    from twisted_msgproto.cli.benches import broker_beside
    from twisted_msgproto.cli.measuring import Subject

    server = Subject("twisted_msgproto.cli.benches.micromsg2", "durable", str(tmp_path))
    try:
        for _ in range(2):
            work = partial(broker_beside.through_micromsg2, server.port, 20)
            assert server.measure(20, work).messages == 20
        assert server.usage()["events"] >= 40
    finally:
        server.close()
    assert "orders" in (tmp_path / "queue" / "broker" / "names").read_text()


def test_the_status_page_is_measured_with_its_sessions(launch: Launcher) -> None:
    rows = rows_of(launch, "status", scale=0.01)
    figures, turn, scrape, _, share, bulk = rows.values()
    assert figures["name"] == "status, 100 sessions, figures"
    assert (figures["mark"], turn["mark"], scrape["mark"], share["mark"]) == (200, 50, 20, 2)
    assert figures["value"] > 0 and scrape["value"] > 0
    assert turn["value"] > 0
    assert (bulk["beside"], bulk["mark"]) == ("bulk alone", None)


def test_connections_are_counted_when_they_were_accepted() -> None:
    from twisted_msgproto.cli.benches import idle

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert idle.accepted(port) == 0
            with server.accept()[0]:
                assert idle.accepted(port) == 1


def test_too_few_open_files_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from twisted_msgproto.cli.benches import idle

    monkeypatch.setattr(idle.resource, "getrlimit", lambda which: (100, 1000))
    assert cli.main(["bench", "idle"]) == 2
    assert capsys.readouterr().err == (
        "msgproto bench: idle: 10200 open files are needed, ulimit -n allows 1000\n"
    )


def test_the_limit_of_open_files_is_raised_as_far_as_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from twisted_msgproto.cli.benches import idle

    limits: list[object] = []
    monkeypatch.setattr(idle.resource, "getrlimit", lambda which: (100, 1000))
    monkeypatch.setattr(idle.resource, "setrlimit", lambda which, pair: limits.append(pair))
    idle.need_files(50)
    assert limits == []
    idle.need_files(500)
    assert limits == [(500, 1000)]


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_the_way_into_the_table_is_measured(launch: Launcher) -> None:
    pytest.importorskip("pyspark")
    [cpu] = rows_of(launch, "spark", "--only", "rows, cpu", scale=0.001).values()
    assert cpu["name"] == "queue → table, 1,000 rows, cpu"
    assert cpu["beside"] == "Spark's own Parquet → Parquet stream"
    assert cpu["mark"] == 0.6 and cpu["ratio"] > 0


@pytest.mark.slow
def test_the_rows_of_the_table_without_java_are_measured(launch: Launcher) -> None:
    pytest.importorskip("pyspark")
    [plan] = rows_of(launch, "spark", "--only", "batch plan", scale=0.001).values()
    assert plan["mark"] == 1.0 and plan["notes"]["gateways"] == 900
    [commit] = rows_of(launch, "spark", "--only", "CPU of a commit", scale=0.001).values()
    assert commit["mark"] == 1.5 and commit["value"] > 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_all_rows_of_spark_are_measured(launch: Launcher) -> None:
    """The short form, in the two tests above, leaves three out: each has a bridge, or the streams
    of the first row once more.
    """
    pytest.importorskip("pyspark")
    rows = rows_of(launch, "spark", scale=0.001)
    _, rate, delay, _, _, end = rows.values()
    assert rate["mark"] == 1.5 and rate["ratio"] > 0
    assert delay["mark"] == 0.4 and delay["unit"] == "s (p95)"
    notes = delay["notes"]
    assert 0 < notes["p50_seconds"] <= notes["p95_seconds"] == delay["value"]
    assert notes["groups"] > 0 and notes["batches"] >= 6
    assert end["mark"] == 5.0 and end["notes"]["status"] == 0


# ── Groups ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("octets", "groups"), [(1000, 1), (1000, 3), (10, 10), (7, 5)])
def test_the_raw_write_makes_equal_groups_of_all_octets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, octets: int, groups: int
) -> None:
    sizes: list[int] = []

    def sync(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(raw, "sync_call", lambda: ("noted", sync))
    figures = raw.write_raw(tmp_path, octets, 100, groups)
    written = [after - before for before, after in pairwise([0, *sizes])]
    assert len(written) == groups
    assert sum(written) == octets and max(written) - min(written) <= 1
    assert (figures.messages, figures.groups) == (100, groups)
    assert list(tmp_path.iterdir()) == []


def test_both_sides_of_a_row_into_the_queue_sync_as_often(launch: Launcher) -> None:
    rows = rows_of(launch, "lumberjack", "--only", "into the queue, ")
    assert rows.pop("into the queue, change of memory, 10 × events")["notes"]
    same = [row for row in rows.values() if "same group sizes" in row["beside"]]
    assert len(same) == 3  # 1×1, 4×2, and the CPU of it
    for row in same:
        assert row["messages_per_group"] == row["beside_messages_per_group"] > 0
        assert row["mark"] is not None
    whole = [row for name, row in rows.items() if "beside whole windows" in name]
    assert [row["mark"] for row in whole] == [None, None]
    assert whole[0]["beside_messages_per_group"] == 2048


def test_people_are_told_how_many_messages_shared_a_sync() -> None:
    def told(groups: int) -> str:
        ours = Figures(1000, 1.0, 1.0, groups=groups)
        return describe(measure(Comparison("x", "y", "rate", lambda: ours, lambda: ours), 1))

    assert told(10).count("100 messages a group") == 2
    assert "a group" not in told(0)


# ── Against a peer ──────────────────────────────────────────────────────────────────────────────

OUR_READER = f"{sys.executable} -m twisted lumberjack -e tcp:{{port}}:interface=127.0.0.1"
"""A reader which is started as a stranger's is: only its port is known."""


def test_a_peer_does_the_same_work_in_the_same_run(launch: Launcher) -> None:
    """Two of the rows that are listed: each needs enough work for a clock of 10 ms."""
    words = ("lumberjack", "--against", OUR_READER, "--only")
    names = named(launch, *words, "against")
    assert [name.partition(", counting")[0] for name in names] == [
        "reader against a peer, J, window 2048, 1×1",
        "reader against a peer, J, window 2048, 4×2",
        "reader against a peer, J, window 50, 1×1",
        "reader against a peer, J, window 50, 4×8",
        "reader against a peer, zlib 3, window 2048, 1×1",
    ]
    rows = rows_of(launch, *words, "window 2048, 1×1", scale=0.5)
    assert len(rows) == 2
    for row in rows.values():
        assert row["beside"] == OUR_READER
        assert (row["figure"], row["mark"], row["goal"]) == ("cpu", 1.0, 0.6)
        assert row["beside_cpu_seconds_per_million"] > 0


def test_a_peer_with_too_little_to_do_is_not_compared() -> None:
    """Its CPU time comes in steps of 10 ms."""
    row = Comparison("row", "beside", "cpu", lambda: Figures(1, 1, 1), lambda: Figures(1, 1, 0.0))
    with pytest.raises(ConfigurationError, match="row: too little work, take a larger --scale"):
        measure(row, 1)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("reader --port 5044", "--against 'reader --port 5044': no {port} in it for the port"),
        ("reader 'x {port}", '--against "reader \'x {port}": No closing quotation'),
        (
            "/no/such/reader {port}",
            "the peer does not start: /no/such/reader: No such file or directory",
        ),
        (
            f"{sys.executable} -c 'raise SystemExit(\"no window for\\n {{port}}\")'",
            "the peer ended with status 1 and did not listen on port ",
        ),
        ("sh -c 'exit 3' {port}", "; it said nothing"),
        ("sh -c 'echo out of order; exit 3' {port}", "; it said: out of order"),
    ],
)
def test_a_peer_which_does_not_start_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, text: str
) -> None:
    words = ["bench", "lumberjack", "--scale", "0.01", "--only", "against", "--against", command]
    assert cli.main([*words, "--queue", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("msgproto bench: --against") and text in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_peer_which_never_listens_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "START_SECONDS_MAX", 0.2)
    with pytest.raises(ConfigurationError, match="does not listen on port"):
        peers.Peer("sh -c 'sleep 1000' {port}", tmp_path)


def test_a_peer_which_speaks_something_else_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    deaf = (
        "import socket, sys; server = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
        "[server.accept()[0].close() for _ in range(2)]; import time; time.sleep(1000)"
    )
    command = shlex.join([sys.executable, "-c", deaf, "{port}"])
    words = ["bench", "lumberjack", "--scale", "0.01", "--only", "against", "--against", command]
    assert cli.main([*words, "--queue", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "--against: the server closed the connection (windows of 2048)" in told
    assert told.count("\n") == 1


def test_only_what_has_peers_is_measured_against_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "queue", "--against", "x {port}"]) == 2
    assert capsys.readouterr().err == "msgproto bench: --against is for lumberjack only\n"


def test_what_a_peers_children_take_is_counted(tmp_path: Path) -> None:
    # A little more than is asked for below: what the system tells is cut to ticks.
    burn, wait = "import time\nwhile time.process_time() < 0.33: pass", "\ntime.sleep(1000)"
    serve = (
        "import socket, subprocess, sys\n"
        "server = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        f"subprocess.run([sys.executable, '-c', {burn!r}])\n"  # one which has ended
        f"subprocess.run([sys.executable, '-c', {burn + wait!r}])\n"  # and one which runs
    )
    peer = peers.Peer(shlex.join([sys.executable, "-c", serve, "{port}"]), tmp_path)
    try:
        deadline = time.monotonic() + 60
        while peer.usage()["cpu"] < 0.6 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert peer.usage()["cpu"] >= 0.6
        assert peer.usage()["rss"] > 1 << 20
    finally:
        peer.close()
    assert peer.usage()["cpu"] == 0


def test_what_the_bench_appends_is_a_queue_like_any_other(tmp_path: Path) -> None:
    load = queue.Load(10, 10, 20, (None, None), (None, None))
    with closing(queue.Bed(tmp_path, load, 20)) as bed:
        for _ in range(3):
            assert bed.append().groups == bed.raw().groups == 2
        rows = [
            row for batch in QueueReader(tmp_path / "log").read(0, 60) for row in batch.to_pylist()
        ]
    assert [row["offset"] for row in rows] == list(range(60))
    assert [row["body"] for row in rows[:20]] == [row["body"] for row in rows[40:]]


# ── The load generator ──────────────────────────────────────────────────────────────────────────


def answering(answers: Sequence[bytes]) -> tuple[socket.socket, threading.Thread]:
    """A server which reads a window of ten events, then says each of ``answers``, and closes."""
    server = socket.create_server(("127.0.0.1", 0))
    length = len(json_window(10))

    def serve() -> None:
        connection = server.accept()[0]
        with server, connection:
            connection.recv(length, socket.MSG_WAITALL)
            for answer in answers:
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return server, thread


def ack(sequence: int) -> bytes:
    return b"2A" + sequence.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("answers", "done"),
    [
        ([ack(10)], True),
        ([ack(0), ack(4), ack(9), ack(10)[:3], ack(10)[3:]], True),
        ([ack(0), ack(9)], False),
    ],
)
def test_a_window_is_done_when_its_last_event_is_acked(answers: list[bytes], done: bool) -> None:
    server, thread = answering(answers)
    port = server.getsockname()[1]
    try:
        if done:
            assert len(drive(port, json_window(10), 1)) == 1
        else:
            with pytest.raises(RuntimeError, match="closed the connection"):
                drive(port, json_window(10), 1)
    finally:
        thread.join()


def test_a_server_which_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lumberjack_bench, "SILENT_SECONDS_MAX", 0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(RuntimeError, match="silent for"),
    ):
        drive(server.getsockname()[1], json_window(10), 1)


def test_windows_of_micromsg2_go_on_behind_the_last_sequence_number() -> None:
    from tests.micromsg2.streams import decode
    from twisted_msgproto.cli.benches import small

    windows = small._micromsg2_windows(100)
    octets = b"".join(next(windows) for _ in range(1000))
    rows: Any = decode([octets])
    numbers = [row[0] for row in rows]
    assert numbers == [1 + number % 0xFFFF for number in range(100_000)]
