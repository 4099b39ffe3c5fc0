"""The Grafana dashboard, as a table of panels: ``msgproto status --grafana`` prints it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

SCHEMA_VERSION: Final = 39  # as Grafana 11 writes it; later ones read it

COLUMNS: Final = 24  # of Grafana's grid

SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


class Panel(NamedTuple):
    """One panel; ``shown``: expressions of PromQL with their legends, ``@`` selects instances."""

    title: str
    unit: str
    shown: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    wide: int = 8
    high: int = 8


def rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{@}}[$__rate_interval]))"


def latency(share: float) -> str:
    buckets = rate("msgproto_acknowledgement_seconds_bucket", "le, protocol")
    return f"histogram_quantile({share}, {buckets})"


COMMIT: Final = (
    f"{rate('msgproto_queue_append_seconds_total', 'instance')}"
    f" / {rate('msgproto_queue_groups_total', 'instance')}"
)

PANELS: Final = (
    Panel("Safe and landing", "bool_yes_no", (("msgproto_safe{@}", "{{instance}}"),), "stat", 6, 4),
    Panel("Acknowledges", "bool_yes_no", (("msgproto_healthy{@}", "{{instance}}"),), "stat", 6, 4),
    Panel(
        "Messages left for consumers", "short",
        (("sum by (instance) (msgproto_queue_consumer_behind_messages{@})", "{{instance}}"),),
        "stat", 6, 4,
    ),
    Panel(
        "Connections", "short",
        (("sum by (instance) (msgproto_connections{@})", "{{instance}}"),), "stat", 6, 4,
    ),
    Panel(
        "Messages per second", "mps",
        ((rate("msgproto_messages_total", "protocol"), "{{protocol}}"),),
    ),
    Panel(
        "Bytes per second", "Bps",
        ((rate("msgproto_received_bytes_total", "protocol"), "{{protocol}}"),),
    ),
    Panel(
        "Time until acknowledged", "s",
        ((latency(0.5), "{{protocol}} p50"), (latency(0.99), "{{protocol}} p99")),
    ),
    Panel(
        "Consumers: messages behind", "short",
        (("msgproto_queue_consumer_behind_messages{@}", "{{instance}} {{consumer}} {{table}}"),),
    ),
    Panel(
        "Consumers: time without a move", "s",
        (("msgproto_queue_consumer_still_seconds{@}", "{{instance}} {{consumer}} {{table}}"),),
    ),
    Panel(
        "Queue: time of a commit", "s", ((COMMIT, "{{instance}}"),),
    ),
    Panel(
        "Bridges: rows per second", "rowsps",
        (("msgproto_bridge_rows_per_second{@}", "{{consumer}} {{table}}"),),
    ),
    Panel(
        "Bridges: rows behind", "short",
        (("msgproto_bridge_lag_rows{@}", "{{consumer}} {{table}}"),),
    ),
    Panel(
        "Bridges: heard, and gateways away", "short",
        (
            ("msgproto_bridge_heard_seconds{@}", "{{consumer}} heard, s ago"),
            ("msgproto_bridge_gateways_away{@}", "{{consumer}} gateways away"),
        ),
    ),
    Panel(
        "Queue: bytes", "bytes",
        (
            ("msgproto_queue_stored_bytes{@}", "{{instance}} stored"),
            ("msgproto_queue_left_bytes{@}", "{{instance}} left of its limit"),
            ("msgproto_queue_disk_free_bytes{@}", "{{instance}} left on the disk"),
        ),
    ),
    Panel(
        "Queue: not durable, damaged", "short",
        (
            ("msgproto_queue_waiting_messages{@}", "{{instance}} not durable yet"),
            ("msgproto_queue_damaged_messages{@}", "{{instance}} damaged"),
        ),
    ),
    Panel(
        "Memory: bytes", "bytes",
        (
            ("msgproto_unsafe_bytes{@}", "{{instance}} not safe yet"),
            ("msgproto_held_bytes{@}", "{{instance}} unfinished, unread"),
            ("msgproto_kept_bytes{@}", "{{instance}} kept for sessions"),
        ),
    ),
    Panel(
        "Sessions by state", "short",
        (("sum by (protocol, state) (msgproto_sessions{@})", "{{protocol}} {{state}}"),),
    ),
    Panel(
        "Faults of peers per second", "short",
        ((rate("msgproto_faults_total", "protocol, reason"), "{{protocol}} {{reason}}"),),
    ),
    Panel(
        "Limits met per second", "short",
        ((rate("msgproto_limits_met_total", "protocol, limit"), "{{protocol}} {{limit}}"),),
    ),
    Panel(
        "Broker: messages waiting", "short",
        (("msgproto_broker_waiting_messages{@}", "{{instance}} {{space}}"),), wide=12,
    ),
    Panel(
        "Broker: messages with consumers", "short",
        (("msgproto_broker_in_flight_messages{@}", "{{instance}} {{space}}"),), wide=12,
    ),
)  # fmt: skip


def panel(number: int, one: Panel, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": one.unit, "min": 0}
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}}
    if one.kind == "stat":
        options = {"colorMode": "background", "reduceOptions": {"calcs": ["lastNotNull"]}}
        if one.unit == "bool_yes_no":
            steps = [{"color": "red", "value": None}, {"color": "green", "value": 1}]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        else:
            options["colorMode"] = "none"
    return {
        "id": number,
        "type": one.kind,
        "title": one.title,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": one.wide, "h": one.high},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": expression.replace("@", 'instance=~"$instance"'),
                "legendFormat": legend,
            }
            for place, (expression, legend) in enumerate(one.shown)
        ],
    }


def dashboard() -> dict[str, Any]:
    panels, x, y = [], 0, 0
    for number, one in enumerate(PANELS, 1):
        panels.append(panel(number, one, x, y))
        x += one.wide
        if x >= COLUMNS:
            x, y = 0, y + one.high
    variables = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Gateway",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": "label_values(msgproto_safe, instance)", "refId": "instances"},
            "includeAll": True,
            "multi": True,
            "refresh": 2,
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]
    return {
        "uid": "msgproto-gateways",
        "title": "msgproto: gateways",
        "tags": ["msgproto"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels,
    }
