"""The tool that counts instructions: its work without valgrind, its arithmetic, a short count."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import instructed, instructions
from tests.tools.instructions import Cost, Failed, costs, counts, described, shown

LOG = """\
==17== Cachegrind, a cache and branch-prediction profiler
==17==
==17== I   refs:      1,000
==18==
==18== I   refs:      61,000
==19== I   refs:      12,345,678
"""


def run(row: str, times: int, process: int, **said: object) -> dict[str, object]:
    return {"row": row, "layout": 0, "times": times, "process": process, **said}


def test_the_log_of_several_processes_is_read() -> None:
    assert counts(LOG) == {17: 1000, 18: 61_000, 19: 12_345_678}


def test_what_all_runs_cost_is_no_part_of_a_message() -> None:
    said = [run("queue-1", 1, 17, messages=10), run("queue-1", 3, 18, messages=30)]
    assert costs(said, counts(LOG)) == {"queue-1": Cost((3000.0,))}


def test_the_median_of_the_layouts_counts() -> None:
    first = [run("queue-1", 1, 1, messages=10), run("queue-1", 3, 2, messages=30)]
    second = [{**one, "layout": 1, "process": 3} for one in first]
    second[0]["process"] = 1
    third = [{**one, "layout": 2, "process": 4} for one in first]
    third[0]["process"] = 1
    counted = {1: 1000, 2: 3000, 3: 3400, 4: 3200}
    cost = costs([*first, *second, *third], counted)["queue-1"]
    assert cost == Cost((100.0, 120.0, 110.0))
    assert (cost.each, round(cost.spread, 3)) == (110.0, 0.182)


def test_a_row_that_a_revision_does_not_have_has_no_cost() -> None:
    said = [run("broker-1", times, 17, missing="a module") for times in (1, 3)]
    before = costs(said, {})
    assert before == {"broker-1": None}
    (line,) = described({"broker-1": Cost((5.0,))}, before)
    assert line["before"] is line["ratio"] is None
    assert shown(line).endswith("not there -> 5 (0.0%)")


def test_the_ratio_is_that_of_now_to_before_and_what_is_worse_is_marked() -> None:
    now = {"queue-1": Cost((106.0,)), "broker-1": Cost((104.0,))}
    lines = described(now, dict.fromkeys(now, Cost((100.0,))))
    assert [line["ratio"] for line in lines] == [1.06, 1.04]
    assert [shown(line).endswith("WORSE") for line in lines] == [True, False]


@pytest.mark.parametrize(
    "said",
    [
        [run("queue-1", 1, 17, messages=10), run("queue-1", 2, 18, messages=30)],
        [run("queue-1", 1, 17, messages=10), run("broker-1", 3, 18, messages=30)],
        [run("queue-1", 1, 17, messages=10), {**run("queue-1", 3, 18, messages=30), "layout": 1}],
        [run("queue-1", 1, 17, messages=10), run("queue-1", 3, 18, failed=True)],
        [run("queue-1", 1, 18, messages=10), run("queue-1", 3, 17, messages=30)],
    ],
    ids=["other times", "another row", "another layout", "a run failed", "it cost less"],
)
def test_what_cannot_be_compared_is_no_figure(said: list[dict[str, object]]) -> None:
    with pytest.raises(Failed):
        costs(said, counts(LOG))


def test_all_messages_of_each_row_are_acknowledged() -> None:
    """In a process of its own, as the tool does it: the work changes clocks and collector."""
    code = "from instructed import ROWS, done, frozen_time\nfrozen_time()\n"
    code += "for name in ROWS: print(name, done(name, 2), flush=True)"
    environment = instructions.environment(instructions.PROJECT)
    environment["PYTHONPATH"] += f":{instructions.WORK.parent}"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600
    )
    expected = [f"{one.name} {2 * one.messages}" for one in instructed.ROWS.values()]
    assert ended.stdout.splitlines() == expected, ended.stderr


def test_work_that_is_not_acknowledged_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = instructed.Row("lost", "", 10, 1, (), lambda directory: lambda times: 10 * times - 1)
    monkeypatch.setitem(instructed.ROWS, "lost", lost)
    monkeypatch.setattr(instructed.gc, "freeze", lambda: None)
    with pytest.raises(RuntimeError, match="29 of 30"):
        instructed.done("lost", 3)


def test_a_name_that_has_moved_is_found() -> None:
    found = instructed.first_of("twisted_msgproto.elsewhere", "json:loads")
    assert found is json.loads
    with pytest.raises(instructed.Missing, match="nowhere"):
        instructed.first_of("nowhere", "json:nothing")


def test_without_valgrind_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instructions, "build", lambda tree: None)
    monkeypatch.setattr(instructions.shutil, "which", lambda name: None)
    assert instructions.main(["queue-1"]) == 2
    assert "apt-get install valgrind" in capsys.readouterr().err


def test_an_unknown_revision_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instructions, "build", lambda tree: None)
    assert instructions.main(["queue-1", "--against", "no-such-revision"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_another_tree_than_the_one_asked_for_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(instructions.shutil, "which", lambda name: name)
    said = json.dumps({"package": "/elsewhere/twisted_msgproto/__init__.py", "compiled": []})
    monkeypatch.setattr(instructions, "command", lambda: [sys.executable, "-c", f"print({said!r})"])
    with pytest.raises(Failed, match="elsewhere"):
        instructions.measure(tmp_path, ["queue-1"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason=instructions.HOW_TO_GET_IT)
def test_the_same_row_costs_the_same_twice() -> None:
    """Within 0.5 %, whatever else the machine does."""
    first, second = (
        instructions.measure(instructions.PROJECT, ["micromsg2-filter"], 1)["micromsg2-filter"]
        for _ in range(2)
    )
    assert first is not None and second is not None
    assert second.each == pytest.approx(first.each, rel=0.005)
