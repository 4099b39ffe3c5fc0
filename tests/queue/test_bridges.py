"""Statuses that bridges leave in a queue's directory."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from twisted_msgproto.queue.bridges import (
    SENT_OCTETS_MAX,
    STATUS_OCTETS_MAX,
    STATUSES_MAX,
    cut_to_fit,
    read_statuses,
    status_path,
    write_status,
)
from twisted_msgproto.queue.served import REQUEST_OCTETS_MAX


def test_a_status_is_read_as_it_was_written_and_is_this_user_s_alone(tmp_path: Path) -> None:
    path = status_path(tmp_path, "spark-1")
    write_status(path, {"state": "running"})
    write_status(path, {"state": "ended"})
    assert read_statuses(tmp_path) == [{"state": "ended", "consumer": "spark-1"}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["spark-1.json"]


def test_a_status_does_not_make_the_directory_of_a_queue_that_was_moved_away(
    tmp_path: Path,
) -> None:
    """A bridge made it again, readable by all, just as a gateway began a new queue there."""
    with pytest.raises(FileNotFoundError):
        write_status(status_path(tmp_path / "queue", "spark"), {"state": "running"})
    assert not (tmp_path / "queue").exists()


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert read_statuses(tmp_path) == []
    write_status(status_path(tmp_path, "good"), {})
    status_path(tmp_path, "torn").write_text("{")
    status_path(tmp_path, "deep").write_text("[" * 60_000)
    status_path(tmp_path, "list").write_text("[]")
    status_path(tmp_path, "large").write_text(json.dumps("x" * (STATUS_OCTETS_MAX - 1)))
    status_path(tmp_path, "gone").symlink_to("nowhere")
    status_path(tmp_path, "directory").mkdir()
    assert read_statuses(tmp_path) == [{"consumer": "good"}]


def test_behind_a_file_that_cannot_be_looked_at_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(status_path(tmp_path, "b"), {})
    status_path(tmp_path, "a").symlink_to("nowhere")
    really = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: sorted(really(self, pattern)))
    assert read_statuses(tmp_path) == [{"consumer": "b"}]


def test_what_a_killed_process_of_the_same_number_has_left_is_no_part_of_a_status(
    tmp_path: Path,
) -> None:
    path = status_path(tmp_path, "spark")
    write_status(path, {})
    path.with_name(f".{path.name}.{os.getpid()}").write_text("x" * 100)
    write_status(path, {"state": "running"})
    assert json.loads(path.read_text()) == {"state": "running"}


def test_the_largest_status_that_is_sent_fits_into_a_request() -> None:
    request = {"queue_id": "5" * 32, "consumer": "x" * 64, "status": {"error": ""}}
    octets = len(json.dumps(request)) - len(json.dumps(request["status"])) + SENT_OCTETS_MAX
    assert octets <= REQUEST_OCTETS_MAX


def test_a_status_as_large_as_allowed_is_read(tmp_path: Path) -> None:
    text = json.dumps({"error": "x" * 10})
    path = status_path(tmp_path, "a")
    path.parent.mkdir()
    path.write_text(text + " " * (STATUS_OCTETS_MAX - len(text)))
    assert len(read_statuses(tmp_path)) == 1


def test_of_many_statuses_the_newest_are_read_by_name(tmp_path: Path) -> None:
    for number in range(STATUSES_MAX + 1):
        path = status_path(tmp_path, f"{number:02}")
        write_status(path, {})
        os.utime(path, (1000 - number, 1000 - number))
    names = [status["consumer"] for status in read_statuses(tmp_path)]
    assert names == [f"{number:02}" for number in range(STATUSES_MAX)]


@pytest.mark.parametrize("name", ["known", "away"])
def test_a_list_that_is_too_long_to_be_sent_is_halved_until_it_fits(name: str) -> None:
    status = {"state": "running", name: ["x" * 90] * 100, "other": [1, 2]}
    sent = cut_to_fit(status)
    assert len(sent[name]) == 25, "50 of them are above the limit"
    assert len(json.dumps(sent)) <= SENT_OCTETS_MAX
    assert (sent["state"], sent["other"], len(status[name])) == ("running", [1, 2], 100)


def test_a_status_that_fits_is_sent_whole_and_one_without_lists_as_it_is() -> None:
    status = {"known": ["a"], "away": ["b"]}
    octets = len(json.dumps(status))
    assert cut_to_fit(status, octets) == status
    assert cut_to_fit(status, octets - 1) == {"known": [], "away": ["b"]}
    assert cut_to_fit({"error": "x" * 9}, 5) == {"error": "x" * 9}
