"""``./run chaos`` in a small form, and its page."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.chaos.__main__ import ROWS
from tests.chaos.clients import GoodClients
from tests.chaos.gateways import Five, needs_proc
from tests.chaos.inputs import INPUTS
from tests.chaos.report import Found, kept_rows
from tests.chaos.trials import crowds
from tests.chaos.trials import filebeat as real_filebeat
from tests.chaos.trials.neighbours import beside, neighbour_of
from tests.tools.filebeat import needs_filebeat
from tests.tools.measures import bound_seconds
from tests.tools.processes import PROJECT, Launcher

PAGE = PROJECT / "docs" / "how-it-is-tested.md"

# ── The page ────────────────────────────────────────────────────────────────────────────────────


def test_the_page_has_all_rows_that_the_command_prints() -> None:
    assert list(kept_rows(PAGE.read_text())) == ["what is done", "---", *(row.name for row in ROWS)]


# ── Small forms ─────────────────────────────────────────────────────────────────────────────────

NB_07 = tuple(INPUTS)[:9]
"""The inputs that took more than 50 ms of CPU time in one turn once."""


@needs_proc
@pytest.mark.slow
def test_hostile_inputs_hurt_no_good_client_of_another_protocol__NB_07(
    launch: Launcher, tmp_path: Path
) -> None:
    """NB-07: it is never cut off, its messages are acknowledged and stored, and turns are short."""
    five = Five(launch)
    longest = bound_seconds() * 1e3
    with contextlib.closing(GoodClients(tmp_path)) as clients:
        for name in {neighbour_of(INPUTS[name].protocol) for name in NB_07}:
            clients.stand(name, five.ports[name])
        for name in NB_07:
            told = beside(five, clients, name, 3, 0.0)
            assert not told.reconnected, name
            assert told.lost == 0, name
            assert told.turn <= longest, f"{name}: {told.turn} ms, {longest} ms are allowed"
    assert "Traceback" not in five.server.output


def holds(found: Found) -> None:
    assert found.kept, found.text


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [kind for kind in crowds.KINDS if (kind.protocol, kind.wire) in crowds.SMALL],
    ids=lambda kind: f"{kind.protocol}, {kind.wire}",
)
def test_idle_connections_stand_and_cost_little(kind: crowds.Kind) -> None:
    holds(crowds.idle(kind, 0.001))


@needs_proc
@pytest.mark.slow
def test_short_connections_are_all_acknowledged() -> None:
    holds(crowds.short(0.0002))


@needs_proc
@pytest.mark.slow
def test_many_connections_at_their_limits_have_one_bound__NB_02() -> None:
    """NB-02"""
    holds(crowds.at_their_limits(0.04))


@needs_proc
@pytest.mark.slow
def test_many_connections_of_mtl_at_their_limits_have_the_same_bound__NB_02() -> None:
    """NB-02: libzmq holds what it reads, out of our sight."""
    holds(crowds.zeromq_at_its_limits(0.04))


@needs_proc
@pytest.mark.slow
def test_many_sessions_of_umq_at_their_limits_have_one_bound__NB_02() -> None:
    """NB-02: what a session keeps for longer than a message has a bound for the process, too."""
    holds(crowds.sessions_at_their_limits(0.04))


@needs_filebeat
@needs_proc
@pytest.mark.slow
def test_filebeat_loses_nothing_when_the_gateway_is_killed__NB_10(launch: Launcher) -> None:
    """NB-10, LJ-13"""
    load = real_filebeat.Load(60, 40_000, "")
    shipped = real_filebeat.ship(launch, load, 2048, True, 1)
    assert shipped.missing == 0
