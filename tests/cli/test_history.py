"""``msgproto bench --save``, ``--against-saved`` and ``--plot-saved``, with made-up runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.test_bench import planted_rows
from twisted_msgproto import cli
from twisted_msgproto.cli.history import (
    FILE,
    WORSE_SHARE,
    Saved,
    compare,
    load,
    machine_kind,
    save,
)
from twisted_msgproto.cli.measuring import Comparison, Figures, Gauge, Reading
from twisted_msgproto.core.errors import ConfigurationError


def run(*values: float, rising: bool = False, **changes: object) -> Saved:
    row = Saved("2026-01-01T00:00:00+00:00", "a machine", 1.0, "row", "×", rising, values, {})
    return replace(row, **changes)  # type: ignore[arg-type]


BEFORE = [run(0.9, 1.0, 1.1), run(0.95, 1.0, 1.05)]


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        (run(1.0, 1.0, 1.0), False),
        (run(1.12, 1.15, 1.2), True),
        (run(0.5, 0.5, 0.5), False),
        (run(0.99, 1.15, 1.2), False),  # one of its rounds was as good as ever
        (run(1.101, 1.105, 1.11), True),
        (run(1.08, 1.095, 1.2), False),  # within a tenth
        (run(0.85, 0.86, 0.88, rising=True), True),
        (run(1.2, 1.3, 1.4, rising=True), False),
    ],
)
def test_18_6_a_row_is_worse_by_more_than_a_tenth_and_beyond_its_rounds(
    now: Saved, worse: bool
) -> None:
    change = compare(now, [replace(row, rising=now.rising) for row in BEFORE])
    assert change is not None
    assert (change.worse, change.runs) == (worse, 2)
    assert change.ratio == pytest.approx(now.median / 1.0)


def test_18_6_a_saved_round_that_was_as_bad_excuses() -> None:
    now = run(1.2, 1.25, 1.3)
    assert compare(now, BEFORE).worse  # type: ignore[union-attr]
    assert not compare(now, [*BEFORE, run(1.0, 1.3)]).worse  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "other", [{"machine": "another"}, {"scale": 0.1}, {"name": "another"}, {"unit": "s"}]
)
def test_18_6_only_the_same_row_of_the_same_kind_of_machine_is_compared(
    other: dict[str, object],
) -> None:
    assert compare(run(2.0), [replace(row, **other) for row in BEFORE]) is None  # type: ignore[arg-type]


def test_18_6_what_is_saved_is_read_again(tmp_path: Path) -> None:
    save(tmp_path / "new" / "history", BEFORE[:1])
    save(tmp_path / "new" / "history", BEFORE[1:])
    assert load(tmp_path / "new" / "history") == BEFORE


@pytest.mark.parametrize("line", ["", "{}", "[1]", "x", json.dumps({"values": []})])
def test_18_6_a_broken_history_is_one_line(tmp_path: Path, line: str) -> None:
    save(tmp_path, BEFORE)
    with open(tmp_path / FILE, "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl, line 3: no row"):
        load(tmp_path)


def test_18_6_runs_are_saved_compared_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    seconds = 1.0
    one = lambda: Figures(1, 1.0, 1.0)  # noqa: E731
    planted_rows(
        monkeypatch,
        Comparison("ratio", "y", "cpu", lambda: Figures(1, 1.0, seconds), one),
        Gauge("value", "s", lambda: Reading(0.5)),
    )
    bench = ["bench", "queue", "--rounds", "2", "--history", str(tmp_path)]
    assert cli.main([*bench, "--against-saved"]) == 2  # there is nothing yet
    assert "msgproto bench --save makes it" in capsys.readouterr().err
    assert cli.main([*bench, "--save"]) == 0
    (ratio, value) = load(tmp_path)
    assert (ratio.name, ratio.values, ratio.machine) == ("ratio", (1.0, 1.0), machine_kind())
    assert (value.unit, value.values, value.told["name"]) == ("s", (0.5,), "value")
    assert cli.main([*bench, "--against-saved", "--save"]) == 0
    assert "1.00 × the median of 1 saved runs: as good" in capsys.readouterr().out

    seconds = 1 + 2 * WORSE_SHARE
    assert cli.main([*bench, "--against-saved"]) == 1
    assert "1.20 × the median of 2 saved runs: WORSE" in capsys.readouterr().out
    assert len(load(tmp_path)) == 4, "nothing is kept unless --save says so"
    assert cli.main([*bench, "--against-saved", "--json"]) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["against_saved"]["worse"] for row in told] == [True, False]

    drawn = tmp_path / "history.svg"
    again = tmp_path / "again.svg"
    for file in (drawn, again):
        words = ["bench", "--history", str(tmp_path), "--plot-saved", str(file)]
        assert cli.main(words) == 0
    assert drawn.read_bytes() == again.read_bytes()
    assert b"<svg" in drawn.read_bytes()
