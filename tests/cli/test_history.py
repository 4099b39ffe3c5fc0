"""``msgproto bench --save``, ``--against-saved`` and ``--plot-saved``, with made-up runs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_bench import planted_rows
from twisted_msgproto import cli
from twisted_msgproto.cli import history
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


def whole(**changes: object) -> bytes:
    """A line as it is saved, with other members."""
    return json.dumps({**asdict(run(1.0)), **changes}).encode()


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{}", b"[1]", b"x", json.dumps({"values": []}).encode()),
        *(b"\xff\xfe", b"[" * 100_000),
        *(whole(**{name: 5}) for name in ("when", "machine", "name", "unit", "rising", "told")),
        *(whole(values=values) for values in ("12", [math.nan], [math.inf], [None], 5)),
        whole(scale="x"),
    ],
    ids=lambda line: line.partition(b'"unit"')[2][:50].decode() or None,
)
def test_18_6_a_broken_history_is_one_line(tmp_path: Path, line: bytes) -> None:
    save(tmp_path, BEFORE)
    with open(tmp_path / FILE, "ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl, line 3: no row"):
        load(tmp_path)


def test_18_6_a_run_that_was_killed_while_it_saved_spoils_no_row_of_the_next(
    tmp_path: Path,
) -> None:
    save(tmp_path, BEFORE[:1])
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes() + path.read_bytes()[:50])
    save(tmp_path, BEFORE[1:])
    with pytest.raises(ConfigurationError, match="line 2: no row"):
        load(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    assert load(tmp_path) == BEFORE


def test_18_6_a_history_that_cannot_be_kept_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []
    planted_rows(monkeypatch, Gauge("row", "s", lambda: measured.append("") or Reading(1.0)))
    (tmp_path / "file").write_text("")
    assert cli.main(["bench", "queue", "--save", "--history", str(tmp_path / "file")]) == 2
    assert "--save: " in capsys.readouterr().err
    assert not measured
    (tmp_path / FILE).mkdir()
    assert cli.main(["bench", "queue", "--against-saved", "--history", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f"{FILE}: Is a directory\n")


@pytest.mark.parametrize("file", ["none/history.svg", "history.unknown"])
def test_18_6_a_picture_that_cannot_be_drawn_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    pytest.importorskip("matplotlib")
    save(tmp_path, BEFORE)
    drawn = str(tmp_path / file)
    assert cli.main(["bench", "--history", str(tmp_path), "--plot-saved", drawn]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"msgproto bench: {drawn}: ")


def test_18_6_each_kind_of_run_has_one_colour_in_the_picture_and_the_legend_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines that had measured different rows were drawn as one, and scales were mixed."""
    pytest.importorskip("matplotlib")
    figures: list[Any] = []
    monkeypatch.setattr(history, "write_figure", lambda figure, *file, **_: figures.append(figure))
    rows = [
        run(1.0, name="first"),
        run(2.0, name="first", scale=0.1),
        run(3.0, name="second", machine="another"),
    ]
    history.plot(rows, tmp_path / "history.svg")
    (figure,) = figures
    assert [panel.get_ylim()[1] for panel in figure.axes[:2]] == pytest.approx([2.2, 3.3])
    drawn = {
        line.get_label(): line.get_color()
        for panel in figure.axes
        for line in panel.get_lines()
        if line.get_linestyle() == "-"
    }
    assert list(drawn) == [
        "a machine, --scale 1",
        "a machine, --scale 0.1",
        "another, --scale 1",
    ]
    assert len(set(drawn.values())) == 3
    (legend,) = figure.legends
    named = zip(legend.get_texts(), legend.get_lines(), strict=True)
    assert {text.get_text(): line.get_color() for text, line in named} == drawn


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
