"""The Grafana dashboard asks for metrics that a gateway has (``FC-03``)."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.docs import grafana
from twisted_msgproto.cli import main
from twisted_msgproto.net.status.bridging import shown_bridge
from twisted_msgproto.net.status.metrics import exposition

METRIC = re.compile(r"\bmsgproto_\w+")


def figures() -> dict[str, Any]:
    """The figures of a gateway with one of everything."""
    bridge = {"consumer": "spark", "state": "running", "updated_at": time.time()}
    bridge |= dict.fromkeys(("rows", "rows_per_second", "batches", "failed_batches"), 1)
    bridge |= dict.fromkeys(("gateways", "lag_rows", "oldest_age_seconds"), 1)
    queue = dict.fromkeys(
        ("begin_offset", "end_offset", "stored_octets", "left_octets", "disk_free_octets",
         "segments", "waiting_messages", "waiting_octets", "stalled", "damaged_messages", "losses",
         "messages", "failed_messages", "groups", "append_us", "stalls", "disk_errors",
         "trimmed_segments"), 1,
    )  # fmt: skip
    queue["consumers"] = [{"name": "spark", "behind_messages": 1, "still_seconds": 0.0}]  # type: ignore[assignment]
    queue["bridges"] = [shown_bridge(bridge, time.time())]  # type: ignore[assignment]
    protocol = {
        "connections": 1, "states": {"OPEN": 1}, "faults": {"version": 1}, "counters": {"calls": 1},
        "limits_met": {"connections": 1}, "reasons": {}, "messages": 1, "octets": 1,
        "latency": {"buckets": {"0.1": 1}, "count": 1, "sum_seconds": 0.05},
    }  # fmt: skip
    space = {"queues": 1, "waiting_messages": 1, "in_flight_messages": 1, "octets": 1}
    memory = dict.fromkeys(
        (
            *("waiting_octets", "waiting_limit_octets", "held_octets", "held_limit_octets"),
            *("kept_octets", "kept_limit_octets"),
        ),
        1,
    )
    return {
        "healthy": {"ok": True}, "safe": {"ok": True}, "gateway": {"uptime_seconds": 1},
        "memory": memory, "queue": queue, "broker": {"spaces": {"mtl": space}},
        "protocols": {"umq": protocol},
    }  # fmt: skip


def test_the_file_is_as_its_table_of_panels_says() -> None:
    assert grafana.FILE.read_text() == grafana.text(), "run python -m tests.docs.grafana"


def test_every_metric_it_asks_for_is_one_of_a_gateway_with_the_labels_it_names() -> None:
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition(figures()).decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, {"instance"}).update(sample.labels)
    asked = json.loads(grafana.FILE.read_text())
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


def test_the_dashboard_is_printed_for_those_who_installed_a_package(capsys: Any) -> None:
    assert main(["status", "--grafana"]) == 0
    assert json.loads(capsys.readouterr().out)["uid"] == "msgproto-gateways"
