"""Figures, the status file and the progress line of a bridge."""

import json
import os
import stat
from pathlib import Path

import pytest

from tests.spark.test_offsets import FakeQueue, at
from twisted_msgproto.spark.report import (
    Batch,
    Lag,
    Progress,
    StatusFiles,
    progress_line,
    read_statuses,
    status_path,
)


def test_damaged_rows_are_the_offsets_which_did_not_arrive() -> None:
    progress = Progress()
    assert progress.add(Batch(0, 90, 0.5, 10.0), {"q": at(100)}, {"q": at(0)}) == 10
    assert progress.add(Batch(1, 50, 0.5, 11.0), {"q": at(150)}, {"q": at(100)}) == 0
    assert (progress.rows, progress.skipped, progress.batches) == (140, 10, 2)
    assert progress.landed == {"q": at(150)}


def test_a_report_without_a_batch_counts_nothing() -> None:
    progress = Progress()
    assert progress.add(Batch(3, 0, 0.0, 10.0), {"q": at(100)}, {"q": at(100)}) == 0
    assert (progress.batches, progress.last) == (0, None)


def test_the_rate_is_taken_over_the_last_seconds() -> None:
    progress = Progress()
    assert progress.rate(0.0) == 0.0
    progress.add(Batch(0, 500, 0.5, 100.0), {"q": at(500)}, {"q": at(0)})
    assert progress.rate(100.0) == 1000.0
    progress.add(Batch(1, 300, 0.5, 102.0), {"q": at(800)}, {"q": at(500)})
    assert progress.rate(103.0) == pytest.approx(100.0)
    assert progress.rate(200.0) == 0.0


def test_the_status_file_is_whole_private_and_complete(tmp_path: Path) -> None:
    progress = Progress()
    progress.add(Batch(7, 90, 0.5, 10.0), {"q": at(100)}, {"q": at(0)})
    about = {"table": "/t", "format": "parquet", "checkpoint": "/c"}
    files = StatusFiles({"q": tmp_path}, "night", about, clock=lambda: 12.0)
    files.write("running", progress, {"q": Lag(5, 1.25)})
    path = status_path(tmp_path, "night")
    assert path == tmp_path / "bridges" / "night.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["night.json"]
    assert json.loads(path.read_text()) == {
        "consumer": "night",
        "pid": os.getpid(),
        "started_at": 12.0,
        "table": "/t",
        "format": "parquet",
        "checkpoint": "/c",
        "queue": "q",
        "state": "running",
        "updated_at": 12.0,
        "offset": 100,
        "lag_rows": 5,
        "oldest_age_seconds": 1.25,
        "rows": 90,
        "rows_per_second": 180.0,
        "skipped_rows": 10,
        "batches": 1,
        "last_batch": {"batch": 7, "rows": 90, "seconds": 0.5, "at": 10.0},
        "error": None,
    }
    assert read_statuses(tmp_path) == [json.loads(path.read_text())]


def test_a_status_before_the_first_batch_and_after_a_failure(tmp_path: Path) -> None:
    files = StatusFiles({"q": tmp_path}, "spark", {})
    files.write("failed", Progress(), {}, "no Java")
    status = read_statuses(tmp_path)[0]
    assert (status["offset"], status["lag_rows"], status["last_batch"]) == (None, None, None)
    assert (status["state"], status["error"]) == ("failed", "no Java")


def test_unreadable_statuses_are_left_out(tmp_path: Path) -> None:
    assert read_statuses(tmp_path) == []
    (tmp_path / "bridges").mkdir()
    (tmp_path / "bridges" / "a.json").write_text("{")
    (tmp_path / "bridges" / "b.json").write_text("[]")
    assert read_statuses(tmp_path) == []


def test_the_line_for_people() -> None:
    progress = Progress()
    lags = {"a": Lag(3, 0.5), "b": Lag(4, 2.0)}
    assert progress_line(progress, lags, 0.0).startswith("no batch yet, 0 rows in all")
    progress.add(Batch(7, 90, 0.5, 10.0), {"q": at(100)}, {"q": at(0)})
    assert progress_line(progress, lags, 10.0) == (
        "batch 7: 90 rows in 0.50 s, 90 rows in all, 180 rows/s, lag 7 rows, oldest 2.0 s, "
        "10 damaged rows skipped"
    )


def test_nothing_lags_when_all_has_landed() -> None:
    from twisted_msgproto.spark.report import lag

    assert lag(FakeQueue(last=100), {"q1": at(100)}, 5.0) == Lag(0, 0.0)
    assert lag(FakeQueue(first=10, last=100), {}, 5.0) == Lag(90, 0.0)
