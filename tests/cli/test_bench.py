"""``msgproto bench``: rows beside rows, measured for real at a small scale."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.processes import Launcher
from twisted_msgproto.cli.bench import describe
from twisted_msgproto.cli.measuring import Comparison, Figures, measure
from twisted_msgproto.lumberjack.bench import raw_write


def rows_of(launch: Launcher, *words: str | Path, status: set[int] = frozenset({0, 1})) -> Any:
    """What ``msgproto bench --json`` tells at a small scale, by the names of the rows."""
    ended = launch.run(
        "bench", *words, "--json", "--scale", "0.02", "--rounds", "1", "--queue", launch.directory
    )
    assert ended.returncode in status, ended.stderr
    return {row["name"]: row for row in map(json.loads, ended.stdout.splitlines())}


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


# ── Groups ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("octets", "groups"), [(1000, 1), (1000, 3), (10, 10), (7, 5)])
def test_the_raw_write_makes_equal_groups_of_all_octets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, octets: int, groups: int
) -> None:
    from twisted_msgproto.lumberjack import bench

    done: list[int | str] = []

    class Calls:
        """``os``, noting what was written and synced."""

        def __getattr__(self, name: str) -> Any:
            import os

            return getattr(os, name)

        def write(self, descriptor: int, data: memoryview) -> int:
            done.append(len(data))
            return len(data)

        def fdatasync(self, descriptor: int) -> None:
            done.append("sync")

    monkeypatch.setattr(bench, "os", Calls())
    figures = raw_write(tmp_path, octets, 100, groups)
    written = done[::2]
    assert done[1::2] == ["sync"] * groups
    assert sum(written) == octets and max(written) - min(written) <= 1
    assert (figures.messages, figures.groups) == (100, groups)
    assert list(tmp_path.iterdir()) == []


def test_both_sides_of_a_row_into_the_queue_sync_as_often(launch: Launcher) -> None:
    rows = rows_of(launch, "lumberjack", "--only", "into the queue")
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

    assert told(10).count("100 messages a group") == 1
    assert told(10).endswith("100 a group")
    assert "a group" not in told(0)
