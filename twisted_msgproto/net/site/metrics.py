"""Writes the figures as Prometheus reads them, with ``prometheus_client`` (extra ``metrics``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

NAME: Final = re.compile(r"[a-z][a-z0-9_]*")

CONTENT_TYPE: Final[str] = CONTENT_TYPE_LATEST


class Shown(NamedTuple):
    figure: str
    metric: str
    text: str
    counts: bool = False
    scale: float = 1.0


QUEUE: Final = (
    Shown("begin_offset", "queue_begin_offset", "First offset that the queue keeps"),
    Shown("end_offset", "queue_end_offset", "Offset after the last durable message"),
    Shown("stored_bytes", "queue_stored_bytes", "Bytes of the queue on disk"),
    Shown("left_bytes", "queue_left_bytes", "Bytes left below the queue's limit"),
    Shown("disk_free_bytes", "queue_disk_free_bytes", "Bytes left on the queue's disk"),
    Shown("segments", "queue_segments", "Segments of the queue"),
    Shown("waiting_messages", "queue_waiting_messages", "Messages that are not durable yet"),
    Shown("waiting_bytes", "queue_waiting_bytes", "Bytes that are not durable yet"),
    Shown("stalled", "queue_stalled", "1 while the queue cannot store"),
    Shown("damaged_messages", "queue_damaged_messages", "Messages known to be damaged or lost"),
    Shown("losses", "queue_losses", "How often published messages were lost"),
    Shown("messages", "queue_messages", "Messages made durable", True),
    Shown("failed_messages", "queue_failed_messages", "Messages that could not be written", True),
    Shown("groups", "queue_groups", "Groups made durable", True),
    Shown("append_us", "queue_append_seconds", "Time spent in writing groups", True, 1e-6),
    Shown("stalls", "queue_stalls", "How often the queue could not store", True),
    Shown("disk_errors", "queue_disk_errors", "Errors of the queue's disk", True),
    Shown("trimmed_segments", "queue_trimmed_segments", "Segments that were removed", True),
)

MEMORY: Final = (
    Shown("waiting_bytes", "unsafe_bytes", "Bytes of all connections that are not safe yet"),
    Shown("waiting_limit_bytes", "unsafe_limit_bytes", "Above these reading pauses"),
    Shown("held_bytes", "held_bytes", "Bytes in unfinished messages and unread output"),
    Shown("held_limit_bytes", "held_limit_bytes", "At these slow peers are cut off"),
    Shown("kept_bytes", "kept_bytes", "Bytes that are kept for sessions: calls, topics"),
    Shown("kept_limit_bytes", "kept_limit_bytes", "Above these further ones are refused"),
)


class _Collector:
    def __init__(self, figures: Mapping[str, Any]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Any]:
        figures = self._figures
        healthy, safe = figures["healthy"]["ok"], figures["safe"]["ok"]
        yield _gauge("healthy", "1 while messages can be acknowledged", healthy)
        yield _gauge("safe", "1 while everything that was acknowledged is safe and landing", safe)
        yield _gauge(
            "uptime_seconds", "Since the gateway started", figures["gateway"]["uptime_seconds"]
        )
        yield from _of_table(MEMORY, figures["memory"])
        if figures["queue"] is not None:
            yield from _of_table(QUEUE, figures["queue"])
            yield from _consumers(figures["queue"]["consumers"])
            yield from _bridges(figures["queue"]["bridges"])
            yield from _unheld(figures["queue"].get("unheld", ()))
        yield from _broker(figures["broker"]["spaces"])
        yield from _protocols(figures["protocols"])


def exposition(figures: Mapping[str, Any]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(figures))
    return bytes(generate_latest(registry))


def _gauge(name: str, text: str, value: float) -> Any:
    return GaugeMetricFamily(f"msgproto_{name}", text, value=float(value))


def _family(counts: bool, name: str, text: str, labels: list[str]) -> Any:
    kind = CounterMetricFamily if counts else GaugeMetricFamily
    return kind(f"msgproto_{name}", text, labels=labels)


def _of_table(table: tuple[Shown, ...], figures: Mapping[str, Any]) -> Iterator[Any]:
    for figure, metric, text, counts, scale in table:
        value = figures.get(figure)
        if value is not None:
            family = _family(counts, metric, text, [])
            family.add_metric([], value * scale)
            yield family


def _consumers(consumers: list[Mapping[str, Any]]) -> Iterator[Any]:
    for figure, text in (
        ("behind_messages", "Messages that a consumer has not committed"),
        ("lost_messages", "Messages that somebody has removed before a consumer committed them"),
        ("still_seconds", "How long a consumer has left messages unread"),
        ("rests_seconds", "The next run of its bridge is due after this time"),
    ):
        family = _family(False, f"queue_consumer_{figure}", text, ["consumer", "table"])
        for consumer in consumers:
            family.add_metric([consumer["name"], consumer["table"] or ""], consumer[figure])
        yield family


def _unheld(queues: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    for figure, metric, text in (
        ("behind_messages", "behind_messages", "Messages that have not landed"),
        ("ok", "landing", "1 while what it has is whole, and lands"),
    ):
        text = f"{text}, of a queue beside it that no gateway holds"
        family = _family(False, f"queue_unheld_{metric}", text, ["directory"])
        for queue in queues:
            family.add_metric([queue["directory"]], float(queue[figure]))
        yield family


BRIDGE: Final = (
    Shown("lag_rows", "bridge_lag_rows", "Rows of this queue that have not landed"),
    Shown("oldest_age_seconds", "bridge_oldest_age_seconds", "Age of the oldest of them"),
    Shown("rows_per_second", "bridge_rows_per_second", "Rows that land, of all its gateways"),
    Shown("gateways", "bridge_gateways", "Gateways that the bridge lands"),
    Shown("heard_seconds", "bridge_heard_seconds", "How long ago the bridge told its status"),
    Shown("late_seconds", "bridge_late_seconds", "How long it is missed: silent or not run again"),
    Shown("rows", "bridge_rows", "Rows landed since the bridge started", True),
    Shown("rejected_rows", "bridge_rejected_rows", "Dead letters since it started", True),
    Shown("batches", "bridge_batches", "Batches committed since it started", True),
    Shown("failed_batches", "bridge_failed_batches", "Batches that failed", True),
)


def _bridges(bridges: list[Mapping[str, Any]]) -> Iterator[Any]:
    for figure, metric, text, counts, scale in BRIDGE:
        family = _family(counts, metric, text, ["consumer", "table"])
        for bridge in bridges:
            if bridge[figure] is not None:
                family.add_metric(_names(bridge), bridge[figure] * scale)
        yield family
    text = "Gateways whose rows do not move"
    away = _family(False, "bridge_gateways_away", text, ["consumer", "table"])
    for bridge in bridges:
        away.add_metric(_names(bridge), len(bridge["away"]))
    yield away
    text = "Rows since it started in which a column could not be made"
    errors = _family(True, "bridge_error_rows", text, ["consumer", "table", "column"])
    for bridge in bridges:
        for column, rows in bridge["errors"].items():
            errors.add_metric([*_names(bridge), column], rows)
    yield errors


def _names(bridge: Mapping[str, Any]) -> list[str]:
    return [bridge["consumer"] or "", bridge["table"] or ""]


def _broker(spaces: Mapping[str, Mapping[str, int]]) -> Iterator[Any]:
    for figure in ("queues", "waiting_messages", "in_flight_messages", "bytes"):
        text = f"{figure.replace('_', ' ').capitalize()} of the broker"
        family = _family(False, f"broker_{figure}", text, ["space"])
        for space, figures in spaces.items():
            family.add_metric([space], figures[figure])
        yield family


def _protocols(protocols: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    connections = _family(False, "connections", "Live connections", ["protocol"])
    sessions = _family(False, "sessions", "Live sessions by state", ["protocol", "state"])
    faults = _family(True, "faults", "Faults of peers", ["protocol", "reason"])
    met = _family(True, "limits_met", "How often a limit was met", ["protocol", "limit"])
    messages = _family(True, "messages", "Messages delivered to the sink", ["protocol"])
    data = _family(True, "received_bytes", "Bytes of these messages", ["protocol"])
    waited = HistogramMetricFamily(
        "msgproto_acknowledgement_seconds",
        "From the moment when a message was read until it was safe and could be acknowledged",
        labels=["protocol"],
    )
    counted: dict[str, Any] = {}
    for protocol, figures in protocols.items():
        connections.add_metric([protocol], figures["connections"])
        messages.add_metric([protocol], figures["messages"])
        data.add_metric([protocol], figures["bytes"])
        latency = figures["latency"]
        buckets = [*latency["buckets"].items(), ("+Inf", latency["count"])]
        waited.add_metric([protocol], buckets, latency["sum_seconds"])
        for state, count in figures["states"].items():
            sessions.add_metric([protocol, state], count)
        for reason, count in figures["faults"].items():
            faults.add_metric([protocol, reason], count)
        for limit, count in figures["limits_met"].items():
            met.add_metric([protocol, limit], count)
        for name, count in figures["counters"].items():
            _count(counted, name, ["protocol"], [protocol], count)
        for name, of_reasons in figures["reasons"].items():
            for reason, count in of_reasons.items():
                labels = ["protocol", "reason"]
                _count(counted, f"{name}_by_reason", labels, [protocol, reason], count)
    yield from (connections, sessions, messages, data, waited, faults, met)
    yield from counted.values()


SUMMED: Final = frozenset(("faults", "turned_away"))  # of labelled ones: they are no metrics


def _count(
    counted: dict[str, Any], name: str, labels: list[str], values: list[str], count: int
) -> None:
    name = name.removesuffix("_total")
    # What a protocol calls "connections" or "sessions" counts those that came.
    name = {"connections": "accepted_connections", "sessions": "opened_sessions"}.get(name, name)
    if name in SUMMED or not NAME.fullmatch(name):
        return
    if name not in counted:
        text = f"{name.replace('_', ' ').capitalize()}, with those of live connections"
        counted[name] = _family(True, f"protocol_{name}", text, labels)
    counted[name].add_metric(values, count)
