"""What a bridge tells: progress lines, status files, and the live page of a gateway elsewhere."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.spark.conftest import messages, write
from tests.tools.processes import Launcher
from tests.tools.queues import Served
from twisted_msgproto import cli
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.lumberjack import encode_json, encode_window
from twisted_msgproto.net.site.queue_figures import NEVER_REFUSES, read_figures, safe_and_landing
from twisted_msgproto.queue import Description, Landed, QueueReader, QueueWriter
from twisted_msgproto.queue.consumers import read_statuses, rests_until
from twisted_msgproto.spark.report import (
    Aside,
    Batch,
    Lag,
    Progress,
    Report,
    SentStatuses,
    StatusFiles,
    lag,
    progress_line,
)
from twisted_msgproto.spark.source_options import open_queue
from twisted_msgproto.table.landing import LandedRanges

LOOPBACK = "tcp:0:interface=127.0.0.1"
ROWS = 40
PATIENCE_SECONDS = 300.0


def progressed() -> Progress:
    progress = Progress({"q": Landed(100)})
    progress.add(Batch(7, 90, 0.5, 10.0), LandedRanges(damaged={"q": [(5, 15)]}))
    return progress


def test_the_rate_is_taken_over_the_last_seconds_and_a_clock_set_back_makes_no_billions() -> None:
    progress = Progress()
    assert progress.rate(0.0) == 0.0
    progress.add(Batch(1, 500, 0.5, 100.0), LandedRanges())
    assert progress.rate(100.0) == 1000.0
    progress.add(Batch(2, 300, 0.5, 102.0), LandedRanges())
    assert progress.rate(103.0) == pytest.approx(100.0)
    assert progress.rate(200.0) == 0.0
    assert progress.rate(90.0) == 0.0
    progress.add(Batch(3, 300, 0.5, 2.0), LandedRanges())
    assert progress.rate(2.0) == 600.0
    progress.add(Batch(4, 300, 0.5, 4.0), LandedRanges())
    assert progress.rate(5.0) == pytest.approx(100.0)
    assert (progress.rows, progress.batches) == (1400, 4)


def test_the_status_file_is_whole_private_and_complete(tmp_path: Path) -> None:
    files = StatusFiles({"q": tmp_path}, "night", {"table": "/t"}, clock=lambda: 12.0)
    away = Aside("grpc://a:1", "", "away", "refused", 3.25)
    report = Report("running", progressed(), {"q": Lag(5, 1.25)}, 2, (away,))
    files.write(report)
    path = tmp_path / "bridges" / "night.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["night.json"]
    assert json.loads(path.read_text()) == {
        "consumer": "night",
        "pid": os.getpid(),
        "started_at": 12.0,
        "table": "/t",
        "queue": "q",
        "state": "running",
        "updated_at": 12.0,
        "offset": 100,
        "lag_rows": 5,
        "oldest_age_seconds": 1.25,
        "rows": 90,
        "rows_per_second": 180.0,
        "skipped_rows": 10,
        "dropped_rows": 0,
        "left_out_rows": 0,
        "rejected_rows": 0,
        "errors": {},
        "batches": 1,
        "failed_batches": 0,
        "last_batch": {"batch": 7, "rows": 90, "seconds": 0.5, "at": 10.0},
        "gateways": 2,
        "known": [{"queue": "q", "offset": 100, "lag_rows": 5, "oldest_age_seconds": 1.25}],
        "away": [
            {
                "location": "grpc://a:1",
                "queue": None,
                "state": "away",
                "error": "refused",
                "seconds": 3.2,
            }
        ],
        "error": None,
        "rests_until": None,
        "longest_pause_seconds": None,
    }
    assert read_statuses(tmp_path) == [json.loads(path.read_text())]


def test_the_whole_bridge_has_a_status_of_all_its_queues_whichever_can_be_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    whole = tmp_path / "b" / "status.json"
    files = StatusFiles({"p": tmp_path / "file", "q": tmp_path}, "night", {}, whole=whole)
    with pytest.raises(OSError):
        files.write(Report("running", progressed(), {"p": Lag(1, 0.5), "q": Lag(5, 1.25)}))
    assert read_statuses(tmp_path)[0]["offset"] == 100
    told = json.loads(whole.read_text())
    assert told["gateways"] == 0  # none is asked yet
    assert told["queues"] == {
        "p": {"offset": None, "lag_rows": 1, "oldest_age_seconds": 0.5},
        "q": {"offset": 100, "lag_rows": 5, "oldest_age_seconds": 1.25},
    }


def test_the_line_for_people_has_the_rate_of_the_batch_and_of_all__RD_29__TB_09() -> None:
    lags = {"a": Lag(3, 0.5), "b": Lag(4, 2.0)}
    line = progress_line(Report("running", Progress(), lags), 0.0)
    assert line.startswith("no batch yet, 0 rows in all")
    away = tuple(Aside(f"grpc://{n}:1", "", "away", "refused", 1.0) for n in range(7))
    wrong = progressed()
    wrong.errors.update({"status": 2, "": 3})
    assert progress_line(Report("running", wrong, lags, aside=away), 10.0) == (
        "batch 7: 90 rows in 0.50 s (180 rows/s), 90 rows in all, 180 rows/s, lag 7 rows, "
        "oldest 2.0 s, 10 damaged rows skipped, rows in error: body 3, status 2, "
        f"away: {', '.join(f'grpc://{n}:1' for n in range(5))} and 2 more"
    )


def described(begin: int, end: int, oldest: int | None) -> Description:
    return Description("q", begin, end, Landed(end), 0, oldest, 0, (), {}, {})


def test_the_lag_is_what_the_gateway_said_last() -> None:
    assert lag(Landed(100), described(0, 100, None), 5.0) == Lag(0, 0.0)
    assert lag(None, described(10, 100, 3_000_000), 5.0) == Lag(90, 2.0)
    assert lag(Landed(40), described(10, 100, 9_000_000), 5.0) == Lag(60, 0.0)


def test_only_the_gateways_that_are_furthest_behind_are_named(tmp_path: Path) -> None:
    lags = {f"q{number}": Lag(number, 1.0) for number in range(100)}
    StatusFiles({"q1": tmp_path}, "night", {}).write(Report("running", Progress(), lags))
    [status] = read_statuses(tmp_path)
    assert [one["lag_rows"] for one in status["known"]] == list(range(99, 79, -1))


class Far:
    """A queue on another machine."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def tell(self, consumer: str, status: dict[str, object]) -> None:
        self.told.append((consumer, status))
        raise QueueError("unknown action 'status'")


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_queues_elsewhere_are_sent_the_status_now_and_then_and_may_refuse_it() -> None:
    far, now = Far(), [0.0]
    sent = SentStatuses(StatusFiles({}, "night", {}), "night", {"q": far}.get, clock=lambda: now[0])
    report = Report("running", progressed(), {"q": Lag(5, 1.25)})
    for moment, count in ((0.0, 1), (1.0, 1), (5.0, 2)):
        now[0] = moment
        sent.send(report, ["q", "away"])
        while len(far.told) < count:
            time.sleep(0.001)
            sent.send(report, ["q", "away"])
    sent.finish(report, ["q", "away"], 1.0)
    assert [consumer for consumer, _ in far.told] == ["night"] * 3
    assert far.told[0][1]["lag_rows"] == 5


def asked(address: str, path: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path)
    body = connection.getresponse().read().decode()
    connection.close()
    return body


def shown(address: str) -> list[dict[str, Any]]:
    """The bridges, as a gateway's page has them."""
    bridges: list[dict[str, Any]] = json.loads(asked(address, "/status.json"))["queue"]["bridges"]
    return bridges


METRIC = re.compile(r"\bmsgproto_\w+")
ALERTS = Path(__file__).parents[2] / "packaging" / "alerts.yaml"


def test_bridges_tell_their_status_over_flight_to_the_gateways_page__FC_03__RD_21(
    launch: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the alerts know the figures of one that rests."""
    queue = launch.directory / "queue"
    gateway = launch(
        *("lumberjack", f"--endpoint={LOOPBACK}", f"--queue={queue}", f"--status={LOOPBACK}"),
        module="twisted",
    )
    status = gateway.address("status").removeprefix("tcp:")
    with socket.create_connection(("127.0.0.1", gateway.port("lumberjack")), timeout=60) as peer:
        numbers = list(range(1, ROWS + 1))
        peer.sendall(encode_window(ROWS) + encode_json(numbers, [b"{}"] * ROWS))
        assert peer.recv(6) == b"2A\0\0\0" + bytes([ROWS])
    assert shown(status) == []
    deadline = time.monotonic() + PATIENCE_SECONDS

    with Served(queue) as served:
        words = ("--queue", served.location, "--table", "far", "--consumer", "far")
        bridge = launch("--here", "bridge", *words, module="tests.tools.dying")
        while not (bridges := shown(status)) or bridges[0]["rows"] != ROWS:
            assert time.monotonic() < deadline, (bridges, bridge.output)
            time.sleep(0.1)
        assert bridge.end() == 0
        words = ("--queue", served.location, "--table", "table", "--once", "--every", "1h")
        resting = launch("--here", "bridge", *words, module="tests.tools.dying")
        assert resting.wait(seconds=PATIENCE_SECONDS) == 0, resting.output
    [far] = bridges
    assert (far["consumer"], far["state"], far["error"]) == ("far", "running", None)
    assert far["table"] == str(launch.directory / "far")
    assert far["last_batch"]["rows"] == ROWS
    assert (far["gateways"], far["offset"], far["lag_rows"], far["away"]) == (1, ROWS, 0, [])

    while not (rests := [one for one in shown(status) if one["state"] == "resting"]):
        assert time.monotonic() < deadline  # the figures are up to a second old
        time.sleep(0.1)
    assert 3000 < rests[0]["rests_seconds"] <= 3600
    assert cli.main(["status", f"http://{status}"]) == 0
    table = str(launch.directory / "table")
    assert re.search(rf"{table} \(spark-\w+\) .*resting", capsys.readouterr().out)
    scraped = asked(status, "/metrics")
    assert re.search(
        rf'msgproto_bridge_late_seconds{{consumer="spark-\w+",table="{table}"}} 0.0', scraped
    )

    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(scraped):
        for name in (family.name, f"{family.name}_total"):
            labels[name] = {name for sample in family.samples for name in sample.labels}
    labels["msgproto_queue_unheld_landing"].add("directory")  # there is none, so no label
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    for rule in rules:
        asks = METRIC.findall(rule["expr"])
        assert asks or rule["expr"].startswith("up{"), rule
        assert set(asks) <= set(labels), rule
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named <= {"instance"}.union(*(labels[name] for name in asks)), rule
        assert rule["annotations"].keys() == {"summary"}
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8


# ── runs that end, and are started again by a timer ─────────────────────────────────────────────

HOUR, DAY = 3600.0, 86_400.0
DRAINED = Report("ended", Progress(), drained=True)


def told(directory: Path, start: float, end: Report | None, every: float | None = None) -> Any:
    """The status after a run from ``start`` on that lasted 10 s; without an end it was killed."""
    now = [start]
    files = StatusFiles({"q": directory}, "night", {}, lambda: now[0], once=True, every=every)
    files.write(Report("running", Progress()))
    if end is not None:
        now[0] += 10.0
        files.write(end)
    [status] = read_statuses(directory)
    return status


def test_a_run_that_drained_rests_for_twice_the_longest_pause_so_far__RD_21(tmp_path: Path) -> None:
    at = 1_800_000_000.0
    rests = []
    for pause in (0.0, HOUR, HOUR / 2, 3 * HOUR):
        at += pause
        status = told(tmp_path, at, DRAINED)
        at += 10.0
        rests.append(status["rests_until"] - at)
    assert rests == [DAY, 2 * HOUR, 2 * HOUR, 6 * HOUR]
    assert status["longest_pause_seconds"] == 3 * HOUR
    assert told(tmp_path, at, DRAINED, every=600.0)["rests_until"] == at + 10.0 + 600.0


@pytest.mark.parametrize(
    ("end", "rests"),
    [
        (Report("failed", Progress(), error="no room"), 0.0),
        (Report("aside", Progress(), error="overtaken"), 0.0),
        (Report("ended", Progress()), 600.0),
        (None, 0.0),
    ],
    ids=["failed", "aside", "told to end", "killed"],
)
def test_a_run_that_did_not_drain_rests_no_longer_than_was_said__RD_21(
    tmp_path: Path, end: Report | None, rests: float
) -> None:
    at = 1_800_000_000.0
    assert rests_until(told(tmp_path, at, DRAINED, every=600.0), at + 20.0) == at + 610.0
    status = told(tmp_path, at + 20.0, end, every=600.0)
    assert bool(rests_until(status, at + 50.0)) is bool(rests or end is None)  # it may still run
    assert rests_until(status, at + 50.1) == (at + 610.0 if rests else 0.0)
    assert status["longest_pause_seconds"] == 10.0


@pytest.mark.parametrize("wrong", [-55 * 365 * DAY, -DAY / 2, DAY / 2, 365 * DAY])
def test_a_wrong_clock_lets_no_bridge_rest_for_months__RD_21(tmp_path: Path, wrong: float) -> None:
    """A machine without a battery boots in 1970; its next run rested for a century."""
    at = 1_800_000_000.0
    told(tmp_path, at, DRAINED)
    far = told(tmp_path, at + wrong, DRAINED)
    assert rests_until(far, at) < at + 5 * DAY
    for _ in range(3):
        at += HOUR
        status = told(tmp_path, at, DRAINED)
        assert status["rests_until"] < at + 64 * DAY
    assert status["longest_pause_seconds"] <= 32 * DAY


@pytest.mark.parametrize("ahead", [-DAY, -60.0, 60.0, DAY])
def test_times_that_another_machine_tells_are_by_the_gateways_clock__RD_21(
    tmp_path: Path, ahead: float
) -> None:
    """A bridge whose clock was late by a minute was missed for as long as it ran."""
    QueueWriter(str(tmp_path)).close()
    now = time.time()
    far = StatusFiles({}, "night", {}, lambda: now + ahead, once=True, every=HOUR)
    with Served(tmp_path) as served:
        queue = open_queue(served.location)
        queue.register("night")
        queue.tell("night", far.for_queue(DRAINED, "q"))
    [status] = read_statuses(tmp_path)
    heard = status["updated_at"]
    assert now <= heard <= time.time() and rests_until(status, heard) == heard + HOUR


@pytest.mark.parametrize("until", [None, True, "soon", float("nan"), 1e300, -5.0, {}])
def test_a_status_of_another_machine_cannot_rest_for_ever__RD_21(until: object) -> None:
    status = {"state": "ended", "updated_at": 100.0, "rests_until": until}
    assert rests_until(status, 100.0) == 0.0


@pytest.mark.parametrize(
    "before",
    [
        *("{}", "[1]", '{"updated_at": "x"}', '{"updated_at": 1e400}', '{"state": "ended"}'),
        '{"state": "ended", "updated_at": null}',
        '{"longest_pause_seconds": 1' + 400 * "0" + "}",
    ],
)
def test_a_status_before_that_is_none_does_not_keep_a_run_from_starting__RD_21(
    tmp_path: Path, before: str
) -> None:
    (tmp_path / "bridges").mkdir()
    (tmp_path / "bridges" / "night.json").write_text(before)
    assert told(tmp_path, 1_800_000_000.0, DRAINED)["rests_until"] == 1_800_000_010.0 + DAY


def verdict(queue: Path, seconds: float) -> tuple[bool, str, str]:
    """What the page says of the queue and of its bridge, ``seconds`` from now."""
    figures = {**NEVER_REFUSES, **read_figures(str(queue), time.time() + seconds)}
    ok, why = safe_and_landing(figures)
    return ok, why, figures["bridges"][0]["state"]


def test_a_queue_is_safe_between_the_runs_of_a_timer_and_not_when_one_is_overdue__RD_21(
    launch: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = tmp_path / "queue"
    words = ("--here", "bridge", "--queue", queue, "--table", "table", "--once")
    write(queue, messages(0, 5))
    for every in ([], ["--every", "10m"]):
        assert launch(*words, *every, module="tests.tools.dying").wait(seconds=600) == 0
        write(queue, messages(0, 5))
        ok, why, state = verdict(queue, 500.0)
        assert (ok, state) == (True, "resting"), why
    ok, why, state = verdict(queue, 700.0)
    assert (ok, state) == (False, "overdue")
    assert f"(table {tmp_path / 'table'}) is 5 messages behind and its next run has been" in why
    [name] = QueueReader(queue).consumers()
    assert cli.main(["queue", "consumers", str(queue)]) == 0
    assert "5 behind" in (said := capsys.readouterr().out) and "rests, its next run" in said

    killed = launch(*words[:1], "--at", "planned", "--nth", "1", *words[1:],
                    module="tests.tools.dying")  # fmt: skip
    assert killed.wait(seconds=600) == -signal.SIGKILL
    ok, why, state = verdict(queue, 100.0)
    assert (ok, state) == (False, "silent") and "has not moved for" in why

    assert cli.main(["queue", "consumers", str(queue), "--forget", name, "--yes"]) == 0
    left = read_figures(str(queue), time.time())
    assert left["consumers"] == left["bridges"] == []


def test_each_table_of_a_file_rests_by_itself__RD_21(launch: Launcher, tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    write(queue, messages(0, 5))
    (tmp_path / "bridge.toml").write_text(
        'queue = ["queue"]\n[[table]]\nlocation = "one"\n[[table]]\nlocation = "two"\n'
    )
    words = ("--here", "bridge", "--config", "bridge.toml", "--once", "--every", "1d")
    assert launch(*words, module="tests.tools.dying").wait(seconds=600) == 0
    write(queue, messages(0, 5))
    ok, why, _ = verdict(queue, DAY - 60.0)
    assert ok, why
    figures = read_figures(str(queue), time.time() + DAY - 60.0)
    assert {one["table"] for one in figures["consumers"]} == {
        str(tmp_path / "one"), str(tmp_path / "two")
    }  # fmt: skip
    assert {one["state"] for one in figures["bridges"]} == {"resting"}
    assert not verdict(queue, DAY + 120.0)[0]
