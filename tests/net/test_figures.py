"""Figures: counters, traffic and its flow, bridges, offenders, and what a dashboard asks for."""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_left
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.task import Clock

from tests.contract.cases import CASES, Case
from tests.contract.world import World
from tests.doubles import HeldSink
from tests.tools.processes import PROJECT, msgproto
from twisted_msgproto.net import Counters
from twisted_msgproto.net.counters import (
    BOUNDS,
    CounterPaths,
    FlowHistory,
    Traffic,
    quantile,
    since,
)
from twisted_msgproto.net.memory import SharedState
from twisted_msgproto.net.site.metrics import exposition
from twisted_msgproto.net.site.queue_figures import shown_bridge
from twisted_msgproto.net.site.service import drawings
from twisted_msgproto.testing import SafeSink


@dataclass(slots=True)
class Counted:
    seen: int = 0
    lost: int = 0


class Connection:
    def __init__(self, seen: int) -> None:
        self.machine = SimpleNamespace(counters=Counted(seen, 2 * seen), state="OPEN")
        self.odd = SimpleNamespace(count=1)


def test_counters_are_read_by_their_paths__FC_03() -> None:
    paths, counters = CounterPaths.of(Counted, odd="odd.count"), Counters()
    connections = [Connection(number) for number in range(10)]
    for connection in connections:
        counters.join(connection, paths)
    expected = {"seen": 45, "lost": 90, "odd": 10, "other": 0}
    assert {name: counters[name] for name in expected} == expected
    connections[5].machine.counters.seen += 7
    counters.leave(connections[5])
    counters.leave(connections[5])
    counters["other"] += 5
    assert counters.as_dict() == expected | {"seen": 45 + 7, "other": 5}
    with pytest.raises(ValueError, match="one counter"):
        CounterPaths({})


def test_only_connections_that_have_changed_are_asked_again__FC_03() -> None:
    """10,000 idle sessions cost a scrape nothing."""
    paths, counters, asked = CounterPaths.of(Counted), Counters(), []

    def read(connection: Connection) -> tuple[object, ...]:
        asked.append(connection)
        return plain(connection)

    plain, paths.read = paths.read, read
    first, second, third = connections = [Connection(number) for number in (1, 2, 3)]
    for connection in connections:
        counters.join(connection, paths)
    assert counters.as_dict() == {"seen": 6, "lost": 12}
    assert counters.states == {"OPEN": 3}
    del asked[:]
    second.machine.counters.seen, second.machine.state = 5, "READY"
    counters.changed.add(second)
    assert counters.as_dict() == {"seen": 9, "lost": 12}
    assert +counters.states == {"OPEN": 2, "READY": 1}
    assert asked == [second]
    third.machine.counters.seen = 4  # its last words
    counters.changed.add(third)
    counters.leave(third)
    counters.leave(first)
    assert not counters.changed, "nobody may ask, and they are gone"
    assert counters.as_dict() == {"seen": 10, "lost": 12}
    assert +counters.states == {"READY": 1}
    assert counters.tracks(second) and not counters.tracks(third)


# ── messages and their latencies are counted ────────────────────────────────────────────────────


SAMPLE_SECONDS, SAMPLES_MAX = 5.0, 180


def became_safe(traffic: Traffic, count: int, began: float) -> None:
    """Note what a session notes when so many messages are safe that were read at ``began``."""
    traffic.latencies[bisect_left(BOUNDS, traffic.seconds() - began)] += count


def test_a_message_counts_with_the_time_from_its_read_until_it_is_safe() -> None:
    sink = HeldSink()
    world = World(CASES[0], sink)
    world.join().send()
    world.pump()
    world.clock.advance(0.5)
    sink.safe()
    traffic = world.factory.traffic
    assert traffic.latencies == [bound == 0.5 for bound in (*BOUNDS, None)]
    assert traffic.waited == pytest.approx(0.5)
    world.close()


@pytest.mark.parametrize("seconds", [0.00005, 0.0042, 0.7, 33.0])
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_quantile_is_right_to_a_quarter(seconds: float, share: float) -> None:
    traffic = Traffic(lambda: seconds)
    became_safe(traffic, 1000, 0.0)
    found = quantile(traffic.latencies, share)
    assert found is not None
    assert found == pytest.approx(seconds, rel=0.25, abs=0.0001)


def test_the_slow_few_stand_in_p99_alone_and_what_is_above_all_bounds_at_the_last() -> None:
    traffic = Traffic(lambda: 0.001)
    became_safe(traffic, 980, 0.0)
    traffic.seconds = lambda: 1000.0
    became_safe(traffic, 20, 0.0)
    assert quantile(traffic.latencies, 0.5) == pytest.approx(0.001, rel=0.25)
    assert quantile(traffic.latencies, 0.99) == 100.0
    latencies = [0] * len(traffic.latencies)
    assert quantile(latencies, 0.5) is None
    latencies[BOUNDS.index(1.0)] = latencies[BOUNDS.index(1.25)] = 10
    assert quantile(latencies, 0.75) == 1.125


class Kept:
    """A history of one protocol's traffic, by a clock of our own."""

    def __init__(self) -> None:
        self.clock: Any = Clock()
        self.traffic = Traffic(self.clock.seconds)
        self.factories = [SimpleNamespace(protocolName="umq", traffic=self.traffic)]
        self.set_back = 0.0
        self.history = FlowHistory(
            self.clock, lambda: self.factories, lambda: self.clock.seconds() - self.set_back
        )
        self.history.start()

    def tick(self, messages: int = 0) -> None:
        self.traffic.messages += messages
        self.traffic.nbytes += 100 * messages
        became_safe(self.traffic, messages, self.clock.seconds() - 0.01)
        self.clock.advance(SAMPLE_SECONDS)


def test_rates_are_those_of_each_sample_and_a_sample_without_messages_has_no_latency() -> None:
    kept = Kept()
    kept.tick(50)
    kept.tick()
    assert kept.history.figures()["at"] == [5_000_000, 10_000_000]  # µs
    columns = kept.history.figures()["protocols"]["umq"]
    assert columns["messages_per_second"] == [10.0, 0.0]
    assert columns["bytes_per_second"] == [1000.0, 0.0]
    assert columns["ack_p50_seconds"][0] == pytest.approx(0.01, rel=0.25)
    assert columns["ack_p99_seconds"][1] is None


def test_only_the_last_15_minutes_are_kept_and_nothing_after_the_end() -> None:
    kept = Kept()
    for _ in range(SAMPLES_MAX + 3):
        kept.tick(5)
    flow = kept.history.figures()
    assert len(flow["at"]) == SAMPLES_MAX == 15 * 60 / SAMPLE_SECONDS
    assert {len(values) for values in flow["protocols"]["umq"].values()} == {SAMPLES_MAX}
    kept.history.stop()
    assert kept.clock.getDelayedCalls() == []
    assert kept.history.figures() == flow
    rest = since(flow, flow["at"][-3])  # a page is sent what it has not got
    assert rest["at"] == flow["at"][-2:]
    assert rest["protocols"]["umq"]["messages_per_second"] == [1.0, 1.0]
    assert since(flow, 0) == flow


def test_a_page_is_sent_what_is_new_though_the_clock_was_set_back() -> None:
    kept = Kept()
    kept.tick(5)
    known = kept.history.figures()["at"][-1]
    kept.set_back = 3600.0
    for _ in range(2):
        kept.tick(5)
    new = since(kept.history.figures(), known)
    assert new["protocols"]["umq"]["messages_per_second"] == [1.0, 1.0]


def test_servers_of_one_protocol_are_added_up_and_a_new_one_has_no_past() -> None:
    kept = Kept()
    kept.tick(5)
    kept.factories += [
        SimpleNamespace(protocolName=name, traffic=Traffic(kept.clock.seconds))
        for name in ("umq", "mtl")
    ]
    kept.factories[1].traffic.messages = 10
    kept.tick(5)
    protocols = kept.history.figures()["protocols"]
    assert protocols["umq"]["messages_per_second"] == [1.0, 3.0]
    assert protocols["mtl"]["messages_per_second"] == [None, 0.0]


# ── what the live page shows of peers ───────────────────────────────────────────────────────────


OFFENDERS_MAX, SILENT_SECONDS = 1000, 30.0


def test_an_address_and_a_reason_are_counted_together_and_networks_of_ipv6_are_one() -> None:
    offenders = SharedState().offenders
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
    offenders = SharedState().offenders
    for number in range(OFFENDERS_MAX + 10):
        offenders.note("umq", f"10.0.{number >> 8}.{number & 255}", "version", 0.0)
        offenders.note("umq", "192.0.2.7", "version", 0.0)
    assert len(offenders) == OFFENDERS_MAX
    assert offenders.forgotten == 11
    assert offenders.worst(1)[0].address == "192.0.2.7"
    assert len(offenders.worst(5)) == 5
    left = {one.address for one in offenders.worst(OFFENDERS_MAX)}
    assert "10.0.3.241" in left, "it came last"
    assert "10.0.0.10" not in left


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
        states = [*+world.factory.counters.states] or [session.machineSession.state]
        assert {getattr(state, "name", state) for state in states} <= set(drawn["states"])
        moves = {(move["from"], move["to"]) for move in drawn["moves"]}
        assert {state for move in moves for state in move} == set(drawn["states"])
        assert all(source != target for source, target in moves)
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
    resting = WELL | {"state": "ended", "rests_until": 200.0}
    shown = [shown_bridge(resting, now) for now in (199.0, 200.0, 203.0)]
    assert [one["state"] for one in shown] == ["resting", "overdue", "overdue"]
    assert [one["late_seconds"] for one in shown] == [0.0, 0.0, 3.0]


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
            "away": [{"error": "z" * 10_000}] * 1000, "offset": 2**63 - 1, "rows": 2**63,
            "errors": {f"{number}": 1 for number in range(1000)}}  # fmt: skip
    shown = shown_bridge(WELL | long, 100.0)
    assert (shown["offset"], shown["rows"], len(shown["errors"])) == (2**63 - 1, None, 20)
    assert len(shown["error"]) == 201
    assert len(shown["known"]) == len(shown["away"]) == 20
    assert len(json.dumps(shown)) < 30_000


# ── the grafana dashboard asks for metrics that a gateway has (f ────────────────────────────────


METRIC = re.compile(r"\bmsgproto_\w+")

CONSUMER = {
    "name": "spark", "table": "/t", "behind_messages": 1, "lost_messages": 0,
    "still_seconds": 0.0, "rests_seconds": 0.0,
}  # fmt: skip


def figures() -> dict[str, Any]:
    """The figures of a gateway with one of everything."""
    bridge = {"consumer": "spark", "state": "running", "updated_at": time.time()}
    bridge |= dict.fromkeys(("rows", "rows_per_second", "batches", "failed_batches"), 1)
    bridge |= dict.fromkeys(("gateways", "lag_rows", "oldest_age_seconds"), 1)
    bridge["errors"] = {"price": 1}
    queue = dict.fromkeys(
        ("begin_offset", "end_offset", "stored_bytes", "left_bytes", "disk_free_bytes",
         "segments", "waiting_messages", "waiting_bytes", "stalled", "damaged_messages", "losses",
         "messages", "failed_messages", "groups", "append_us", "stalls", "disk_errors",
         "trimmed_segments"), 1,
    )  # fmt: skip
    queue["consumers"] = [CONSUMER]  # type: ignore[assignment]
    queue["bridges"] = [shown_bridge(bridge, time.time())]  # type: ignore[assignment]
    protocol = {
        "connections": 1, "states": {"OPEN": 1}, "faults": {"version": 1}, "counters": {"calls": 1},
        "limits_met": {"connections": 1}, "reasons": {}, "messages": 1, "bytes": 1,
        "latency": {"buckets": {"0.1": 1}, "count": 1, "sum_seconds": 0.05},
    }  # fmt: skip
    space = {"queues": 1, "waiting_messages": 1, "in_flight_messages": 1, "bytes": 1}
    memory = dict.fromkeys(
        (
            *("waiting_bytes", "waiting_limit_bytes", "held_bytes", "held_limit_bytes"),
            *("kept_bytes", "kept_limit_bytes"),
        ),
        1,
    )
    return {
        "healthy": {"ok": True}, "safe": {"ok": True}, "gateway": {"uptime_seconds": 1},
        "memory": memory, "queue": queue, "broker": {"spaces": {"mtl": space}},
        "protocols": {"umq": protocol},
    }  # fmt: skip


def test_the_file_for_containers_is_what_is_printed() -> None:
    """Who has the package alone prints it: ``msgproto status --grafana > dashboard.json``."""
    assert (PROJECT / "packaging" / "dashboard.json").read_text() == msgproto("status", "--grafana")


def test_every_metric_it_asks_for_is_one_of_a_gateway_with_the_labels_it_names() -> None:
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition(figures()).decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, {"instance"}).update(sample.labels)
    assert "column" in labels["msgproto_bridge_error_rows_total"]  # asked for by hand
    asked = json.loads(msgproto("status", "--grafana"))
    expressions = [
        (target["expr"], target["legendFormat"])
        for panel in asked["panels"]
        for target in panel["targets"]
    ]
    for expression, legend in expressions:
        for metric in METRIC.findall(expression):
            assert metric in labels, metric
            grouped = re.findall(r"by \(([^)]*)\)", expression)
            named = {name.strip() for group in grouped for name in group.split(",")}
            named |= set(re.findall(r"\{\{(\w+)\}\}", legend))
            assert named <= labels[metric], (metric, named)
    for variable in asked["templating"]["list"][1:]:
        assert set(METRIC.findall(variable["query"]["query"])) <= set(labels)
