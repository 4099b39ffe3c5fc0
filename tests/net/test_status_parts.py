"""What the live page shows of peers, machines and bridges is bounded and of known types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.cases import CASES, Case
from tests.contract.world import World
from tests.tools.sinks import SafeSink
from twisted_msgproto.net import OctetBudget
from twisted_msgproto.net.status.bridging import ROWS_MAX, TEXT_MAX, bridges_of, shown_bridge
from twisted_msgproto.net.status.machines import drawings

OFFENDERS_MAX, SILENT_SECONDS = 1000, 30.0


def test_an_address_and_a_reason_are_counted_together_and_networks_of_ipv6_are_one() -> None:
    offenders = OctetBudget().offenders
    for host in ("192.0.2.7", "192.0.2.7", "2001:db8::1", "2001:db8::2", "127.0.0.1", ""):
        offenders.note("umq", host, "version", 5.0)
    offenders.note("mtl", "192.0.2.7", "version", 9.0)
    found = {(one.protocol, one.address): one.times for one in offenders.worst(10)}
    assert found == {
        ("umq", "192.0.2.7"): 2,
        ("umq", "2001:db8::/64"): 2,
        ("umq", "127.0.0.1"): 1,
        ("umq", "local"): 1,
        ("mtl", "192.0.2.7"): 1,
    }


def test_many_addresses_displace_the_silent_ones_and_what_is_forgotten_is_counted() -> None:
    offenders = OctetBudget().offenders
    for number in range(OFFENDERS_MAX + 10):
        offenders.note("umq", f"10.0.{number >> 8}.{number & 255}", "version", 0.0)
        offenders.note("umq", "192.0.2.7", "version", 0.0)
    assert len(offenders) == OFFENDERS_MAX
    assert offenders.forgotten == 11
    assert offenders.worst(1)[0].address == "192.0.2.7"
    assert len(offenders.worst(5)) == 5


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_protocol_has_its_machine_drawn_and_a_session_stands_in_one_of_its_states(
    case: Case,
) -> None:
    world = World(case, SafeSink())
    try:
        world.join()
        world.pump()
        [session] = world.factory.liveConnections
        [drawn] = drawings([world.factory]).values()
        states = [*+world.factory.counters.states] or [session.link.machine.state]
        assert {getattr(state, "name", state) for state in states} <= set(drawn["states"])
        moves = {(move["from"], move["to"]) for move in drawn["moves"]}
        assert all(
            source in drawn["states"] and target in drawn["states"] for source, target in moves
        )
        assert all(move["events"] for move in drawn["moves"])
        assert session.snapshot()["session"]
    finally:
        world.close()


WELL = {
    "consumer": "spark", "state": "running", "updated_at": 100.0, "rows": 5, "lag_rows": 0,
    "last_batch": {"batch": 3, "rows": 5, "seconds": 0.5, "at": 99.0},
    "known": [{"queue": "q", "lag_rows": 1}], "away": [], "error": None,
}  # fmt: skip


def test_a_bridge_that_runs_says_so_and_one_that_was_killed_is_silent() -> None:
    assert shown_bridge(WELL, 101.0)["state"] == "running"
    assert shown_bridge(WELL, 101.0)["last_batch"]["rows"] == 5
    assert shown_bridge(WELL, 101.0 + SILENT_SECONDS)["state"] == "silent"
    assert shown_bridge(WELL | {"state": "ended"}, 1e6)["state"] == "ended"


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 10**400}, {"rows": float("inf")}, {"rows": True}, {"rows": "5"},
        {"last_batch": [1]}, {"last_batch": {"rows": []}}, {"known": "x"}, {"known": [1, None]},
        {"away": {"x": 1}}, {"updated_at": None}, {"updated_at": "now"}, {"consumer": 7},
        {"state": ["running"]}, {"error": "\ud800"}, {"table": {"a": 1}},
    ],
)  # fmt: skip
def test_whatever_a_status_holds_the_figures_have_known_types(change: dict[str, Any]) -> None:
    shown = shown_bridge(WELL | change, 100.0)
    assert set(shown) == set(shown_bridge(WELL, 100.0))
    assert "Infinity" not in json.dumps(shown)
    json.dumps(shown, ensure_ascii=False).encode()
    for value in (shown["rows"], shown["heard_seconds"]):
        assert value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def test_a_bridge_cannot_fill_the_page() -> None:
    long = {"error": "x" * 10_000, "known": [{"queue": "y" * 10_000}] * 1000,
            "away": [{"error": "z" * 10_000}] * 1000}  # fmt: skip
    shown = shown_bridge(WELL | long, 100.0)
    assert len(shown["error"]) == TEXT_MAX + 1
    assert len(shown["known"]) == len(shown["away"]) == ROWS_MAX
    assert len(json.dumps(shown)) < 30_000


def test_the_name_of_a_bridge_is_that_of_its_file(tmp_path: Any) -> None:
    (tmp_path / "bridges").mkdir()
    for name in ("a", "b"):
        (tmp_path / "bridges" / f"{name}.json").write_text(json.dumps(WELL))
    assert [one["consumer"] for one in bridges_of(str(tmp_path), 100.0)] == ["a", "b"]
