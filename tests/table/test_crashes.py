"""Kills and losses of power, at every step, on a local disk: exact, or refused with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.crashes import Act, Scene, check_exact, crash, cuts_of, written
from tests.tools.powercut import LOSSES
from tests.tools.tables import RUN
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table import log
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.vacuum import vacuum

pytestmark = pytest.mark.slow

HOURS = 3600.0


@pytest.fixture(autouse=True)
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(log, "CLEAN_SECONDS", HOURS)


def two_commits(scene: Scene) -> None:
    table = scene.create()
    scene.land(table, "a", 5)
    scene.land(table, "b", 5)


def checkpoint_due(scene: Scene) -> None:
    """A whole checkpoint, and as many commits after it as make the next one due."""
    table = scene.create()
    for hi in (2, 4, 6):
        scene.land(table, "a", hi)
    table.maintain()
    for hi in (8, 10, 12):
        scene.land(table, "a", hi)


def land(scene: Scene) -> None:
    scene.land(scene.open(), "a", 10)


def land_both(scene: Scene) -> None:
    table = scene.open()
    files = [written(table, gateway, 5, 10) for gateway in "ab"]
    before = table.landed()
    table.commit(
        files, {"a": Landed(10, 5, 1), "b": Landed(10, 5, 1)}, before=dict(before), run=RUN
    )


def checkpoint(scene: Scene) -> None:
    scene.open().maintain()


def clean(scene: Scene) -> None:
    """Makes the second checkpoint when everything before it is older than the retention."""
    table = scene.open()
    scene.clock.ahead = 7 * HOURS
    table.maintain()


def create(scene: Scene) -> None:
    scene.create()


def small_files(scene: Scene) -> None:
    table = scene.create()
    for hi in (2, 4):
        scene.land(table, "a", hi)
        scene.land(table, "b", hi)


def compacting(scene: Scene) -> None:
    compact(scene.open(), Run.new())


def compacted(scene: Scene) -> None:
    small_files(scene)
    compacting(scene)


def vacuuming(scene: Scene) -> None:
    """Removes the inputs of a compaction, more than a day later."""
    scene.clock.ahead = 25 * HOURS
    vacuum(scene.open(), clock=scene.clock)


ACTS = [
    Act("data", two_commits, land, lambda step: ".parquet" in step or "day=" in step),
    Act("commit", two_commits, land_both),
    Act("checkpoint", checkpoint_due, checkpoint),
    Act("log cleanup", checkpoint_due, clean),
    Act("create", lambda scene: None, create),
    Act("compaction", small_files, compacting),
    Act("vacuum", compacted, vacuuming),
]


@pytest.mark.parametrize("followed", [False, True], ids=["last", "followed"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_the_table_is_exact_after_a_crash_at_any_step(
    act: Act, loss: str, followed: bool, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """TB-01, TB-02, TB-08: what has landed is known to one log, whatever a loss of power takes.

    It is exact as it was left, and after new rows as well.  The short form checks one of both at
    each cut, by turns: the next cut, another loss and the other value of ``followed`` have the
    other one.
    """
    both = pytestconfig.getoption("--long")
    for number in cuts_of(act, loss, tmp_path / "whole"):
        left = crash(act, number, loss, followed, tmp_path / f"cut-{number}")
        turn = (number + followed + (loss == "kill")) % 2
        for new_rows in (False, True) if both else (bool(turn),):
            check_exact(left.copied(tmp_path / f"{new_rows}-{number}"), new_rows=new_rows)
