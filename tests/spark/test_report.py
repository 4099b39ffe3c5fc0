"""What a bridge tells: progress lines, status files, and the live page of a gateway elsewhere."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tools.processes import Launcher
from tests.tools.queues import Served
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.lumberjack.wire import encode_json, encode_window
from twisted_msgproto.queue import Description, Landed
from twisted_msgproto.queue.consumers import read_statuses
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

LOOPBACK = "tcp:0:interface=127.0.0.1"
ROWS = 40
PATIENCE_SECONDS = 300.0


def progressed() -> Progress:
    progress = Progress({"q": Landed(100)})
    progress.add(Batch(7, 90, 0.5, 10.0), skipped=10)
    return progress


def test_the_rate_is_taken_over_the_last_seconds() -> None:
    progress = Progress()
    assert progress.rate(0.0) == 0.0
    progress.add(Batch(1, 500, 0.5, 100.0))
    assert progress.rate(100.0) == 1000.0
    progress.add(Batch(2, 300, 0.5, 102.0))
    assert progress.rate(103.0) == pytest.approx(100.0)
    assert progress.rate(200.0) == 0.0
    assert (progress.rows, progress.batches, progress.skipped, progress.dropped) == (800, 2, 0, 0)


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
    }
    assert read_statuses(tmp_path) == [json.loads(path.read_text())]


def test_the_whole_bridge_has_a_status_of_all_its_queues(tmp_path: Path) -> None:
    files = StatusFiles({}, "night", {}, whole=tmp_path / "b" / "status.json")
    files.write(Report("running", progressed(), {"p": Lag(1, 0.5), "q": Lag(5, 1.25)}))
    status = json.loads((tmp_path / "b" / "status.json").read_text())
    assert status["queues"] == {
        "p": {"offset": None, "lag_rows": 1, "oldest_age_seconds": 0.5},
        "q": {"offset": 100, "lag_rows": 5, "oldest_age_seconds": 1.25},
    }


def test_one_place_which_cannot_be_written_does_not_keep_the_others(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = StatusFiles({"p": tmp_path / "file", "q": tmp_path}, "night", {})
    with pytest.raises(OSError):
        files.write(Report("running", progressed()))
    assert read_statuses(tmp_path)[0]["offset"] == 100


def test_a_status_before_the_first_batch_and_after_a_failure(tmp_path: Path) -> None:
    files = StatusFiles({"q": tmp_path}, "spark", {})
    files.write(Report("failed", Progress(), error="no Java"))
    status = read_statuses(tmp_path)[0]
    assert (status["offset"], status["lag_rows"], status["last_batch"]) == (None, None, None)
    assert (status["state"], status["error"]) == ("failed", "no Java")


def test_the_line_for_people_has_the_rate_of_the_batch_and_of_all__RD_29() -> None:
    lags = {"a": Lag(3, 0.5), "b": Lag(4, 2.0)}
    line = progress_line(Report("running", Progress(), lags), 0.0)
    assert line.startswith("no batch yet, 0 rows in all")
    assert progress_line(Report("running", progressed(), lags), 10.0) == (
        "batch 7: 90 rows in 0.50 s (180 rows/s), 90 rows in all, 180 rows/s, lag 7 rows, "
        "oldest 2.0 s, 10 damaged rows skipped"
    )


def test_the_line_names_who_is_away__TB_09() -> None:
    away = tuple(Aside(f"grpc://{n}:1", "", "away", "refused", 1.0) for n in range(7))
    line = progress_line(Report("running", progressed(), aside=away), 10.0)
    shown = ", ".join(f"grpc://{n}:1" for n in range(5))
    assert line.endswith(f", away: {shown} and 2 more")


def described(begin: int, end: int, oldest: int | None) -> Description:
    return Description("q", begin, end, Landed(end), 0, oldest, 0, (), {}, {})


def test_the_lag_is_what_the_gateway_said_last() -> None:
    assert lag(Landed(100), described(0, 100, None), 5.0) == Lag(0, 0.0)
    assert lag(None, described(10, 100, 3_000_000), 5.0) == Lag(90, 2.0)
    assert lag(Landed(40), described(10, 100, 9_000_000), 5.0) == Lag(60, 0.0)


def test_only_the_gateways_that_are_furthest_behind_are_named() -> None:
    files = StatusFiles({}, "night", {})
    lags = {f"q{number}": Lag(number, 1.0) for number in range(100)}
    known = files.for_queue(Report("running", Progress(), lags), "q1")["known"]
    assert [one["lag_rows"] for one in known] == list(range(99, 79, -1))


class Far:
    """A queue on another machine."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def tell(self, consumer: str, status: dict[str, object]) -> None:
        self.told.append((consumer, status))
        raise QueueError("unknown action 'status'")


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
    assert [consumer for consumer, _ in far.told] == ["night", "night"]
    assert far.told[0][1]["lag_rows"] == 5


def shown(address: str) -> list[dict[str, Any]]:
    """The bridges, as a gateway's page has them."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/status.json")
    figures = json.loads(connection.getresponse().read())
    connection.close()
    bridges: list[dict[str, Any]] = figures["queue"]["bridges"]
    return bridges


def test_a_bridge_tells_its_status_over_flight_to_the_gateways_page__FC_03(
    launch: Launcher, tmp_path: Path
) -> None:
    queue = launch.directory / "queue"
    gateway = launch.command(
        [sys.executable, "-m", "twisted", "lumberjack", f"--endpoint={LOOPBACK}",
         f"--queue={queue}", f"--status={LOOPBACK}"],
    )  # fmt: skip
    status = gateway.address("status").removeprefix("tcp:")
    with socket.create_connection(("127.0.0.1", gateway.port("lumberjack")), timeout=60) as peer:
        numbers = list(range(1, ROWS + 1))
        peer.sendall(encode_window(ROWS) + encode_json(numbers, [b"{}"] * ROWS))
        assert peer.recv(6) == b"2A\0\0\0" + bytes([ROWS])
    assert shown(status) == []

    with Served(queue) as served:
        words = ("--queue", served.location, "--table", "table", "--consumer", "far")
        bridge = launch("--here", "bridge", *words, module="tests.tools.dying")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (bridges := shown(status)) or bridges[0]["rows"] != ROWS:
            assert time.monotonic() < deadline, (bridges, bridge.output)
            time.sleep(0.1)
        bridge.signal(signal.SIGTERM)
        assert bridge.wait() == 0
    [far] = bridges
    assert (far["consumer"], far["state"], far["error"]) == ("far", "running", None)
    assert far["table"] == str(tmp_path / "table")
    assert far["last_batch"]["rows"] == ROWS
    assert (far["gateways"], far["offset"], far["lag_rows"], far["away"]) == (1, ROWS, 0, [])
