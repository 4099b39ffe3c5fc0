"""Show the figures of a running gateway: whether all is safe and landing, flow, queue, sessions.

WHERE is a queue's directory (the gateway is asked through its socket there) or a status endpoint:
its URL, http://127.0.0.1:8480 if nothing is given, or unix:PATH.  The exit status is 0 if messages
can be acknowledged, and 1 if not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from shlex import quote
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from twisted_msgproto.core.errors import QueueAway, QueueError, age, escaped

from .options import command, flag, where
from .rows import columns

if TYPE_CHECKING:
    from ..net.site.client import GatewayBroker

DEFAULT_URL: Final = "http://127.0.0.1:8480"

WATCH_SECONDS: Final = 2.0

ROWS_MAX: Final = 20  # a table shows at most this number of rows; ``--json`` has more


@command(__doc__)
@where(
    f"a queue's directory, http://HOST:PORT or unix:PATH (default {DEFAULT_URL})",
    required=False,
)
@flag("--json", "one JSON object, as /status.json")
@flag("--watch", "ask again and again, until Ctrl-C")
@flag("--grafana", "print a Grafana dashboard for /metrics, and end")
def run(arguments: SimpleNamespace) -> int:
    """1 if nothing can be acknowledged; QueueAway when the gateway does not answer."""
    from ..net.site.client import GatewayBroker

    if arguments.json + arguments.watch + arguments.grafana > 1:
        raise click.UsageError("--json, --watch and --grafana exclude each other")
    if arguments.grafana:
        from ..net.site.dashboard import dashboard

        print(json.dumps(dashboard()))
        return 0
    place = arguments.where or DEFAULT_URL
    gateway = GatewayBroker(place, arguments.token_file, authority=arguments.tls_ca)
    figures = asked(gateway.figures) if place != DEFAULT_URL else at_default(gateway)
    if arguments.json:
        print(json.dumps(figures, ensure_ascii=False))
    elif arguments.watch:
        figures = watch(figures, gateway.figures)
    else:
        print("\n".join(lines(figures)))
    return 0 if figures["healthy"]["ok"] else 1


def asked(figures: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the figures; QueueError if what answers has none."""
    found = figures()
    if not found.keys() >= {"healthy", "safe", "gateway", "protocols"}:
        raise QueueError("what answers there is no status endpoint of a gateway")
    return found


def at_default(gateway: GatewayBroker) -> Mapping[str, Any]:
    """Return the figures at the address that nobody named; QueueAway, which says how to name it."""
    try:
        return asked(gateway.figures)
    except QueueAway as error:
        raise QueueAway(
            f"{error} Name the queue's directory if the gateway has no [status] in its file:"
            " msgproto status DIR"
        ) from None


def watch(figures: Mapping[str, Any], ask: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Show the figures until Ctrl-C; return the last ones."""
    shown = [*lines(figures)]
    try:
        while True:
            click.clear()
            click.echo("\n".join(shown))
            time.sleep(WATCH_SECONDS)
            try:
                before, figures = figures, asked(ask)
                shown = [*lines(figures, before)]
            except QueueAway as error:  # it starts again, perhaps
                shown = [f"!!  {error}"]
    except KeyboardInterrupt:
        return figures


# ── as text ─────────────────────────────────────────────────────────────────────────────────────


def lines(figures: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Iterator[str]:
    """``before`` are earlier figures, for rates; what a peer has chosen is escaped."""
    yield f"{'OK ' if figures['safe']['ok'] else '!! '} {escaped(figures['safe']['why'])}"
    yield ""
    yield from _queue(figures, before)
    yield from _section(
        ("PROTOCOL", "MESSAGES/S", "ACK P99", "CONNECTIONS", "STATES", "FAULTS", "LIMITS MET"),
        [
            (
                name,
                *_flow(figures["flow"], name),
                one["connections"],
                _counts(one["states"]),
                _counts(one["faults"]),
                _counts(one["limits_met"]),
            )
            for name, one in figures["protocols"].items()
        ],
    )
    memory = figures["memory"]
    yield (
        f"memory: {_size(memory['waiting_bytes'])} in messages that are not safe yet,"
        f" {_size(memory['held_bytes'])} in unfinished messages and unread output,"
        f" {_size(memory['kept_bytes'])} kept for sessions"
    )
    yield ""
    if figures["broker"]["queues"]:
        yield from _section(
            ("SPACE", "QUEUE", "WAITING", "IN-FLIGHT", "CONSUMERS"),
            [
                (one["space"], one["name"], one["waiting"], one["in_flight"], one["consumers"])
                for one in figures["broker"]["queues"]
            ],
        )
    if figures["sessions"]:
        yield from _section(
            ("PROTOCOL", "STATE", "PEER", "CLIENT", "SESSION"),
            [
                (
                    one["protocol"],
                    one["state"],
                    one.get("peer", ""),
                    one.get("client_id", ""),
                    one.get("session", ""),
                )
                for one in figures["sessions"]
            ],
            figures["sessions_total"],
        )


def _queue(figures: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[str]:
    queue = figures["queue"]
    if queue is None:
        yield "queue: none"
        yield ""
        return
    yield (
        f"queue {queue['directory']}: messages {queue['begin_offset']} to {queue['end_offset']},"
        f" {queue['waiting_messages']} not on disk yet,"
        f" {_size(queue['left_bytes'])} left of {_size(queue['max_bytes'])}"
    )
    if before is not None and before["queue"] is not None and figures["at"] > before["at"]:
        more = queue["end_offset"] - before["queue"]["end_offset"]
        yield f"{more * 1e6 / (figures['at'] - before['at']):.0f} messages/s"
    yield ""
    consumers: list[tuple[object, ...]] = [
        (_consumer(one), one["offset"], one["behind_messages"], _still(one))
        for one in queue["consumers"]
    ]
    if consumers:
        yield from _section(("CONSUMER", "COMMITTED", "BEHIND", "HAS NOT MOVED FOR"), consumers)
    unheld: list[tuple[object, ...]] = [
        (one["directory"], one["behind_messages"], f"msgproto queue mend {quote(one['directory'])}")
        for one in queue["unheld"]
    ]
    if unheld:
        yield from _section(("NO GATEWAY HOLDS", "BEHIND", "UNLESS IT STARTS AGAIN"), unheld)
    yield from _bridges(queue["bridges"])


def _consumer(one: Mapping[str, Any]) -> str:
    return f"{one['table']} ({one['name']})" if one["table"] else str(one["name"])


def _still(one: Mapping[str, Any]) -> str:
    if one["rests_seconds"]:
        return f"resting, next run within {age(one['rests_seconds'])}"
    return age(one["still_seconds"])


def _flow(flow: Mapping[str, Any] | None, protocol: str) -> tuple[str, str]:
    columns = {} if flow is None else flow["protocols"].get(protocol, {})
    rate, p99 = (
        (columns.get(name) or [None])[-1] for name in ("messages_per_second", "ack_p99_seconds")
    )
    return (
        "-" if rate is None else f"{rate:.0f}",
        "-" if p99 is None else f"{p99 * 1e3:.1f} ms",
    )


def _bridges(bridges: list[Mapping[str, Any]]) -> Iterator[str]:
    if bridges:
        yield from _section(
            ("BRIDGE", "STATE", "HEARD", "ROWS/S", "BEHIND", "GATEWAYS", "AWAY", "ERROR"),
            [
                (
                    _consumer({"name": one["consumer"], "table": one["table"]}),
                    one["state"],
                    "-" if one["heard_seconds"] is None else f"{age(one['heard_seconds'])} ago",
                    _or_dash(one["rows_per_second"]),
                    _or_dash(one["lag_rows"]),
                    _or_dash(one["gateways"]),
                    len(one["away"]),
                    next(filter(None, (told["error"] for told in (one, *one["away"]))), "-"),
                )
                for one in bridges
            ],
        )


def _size(nbytes: int) -> str:
    """Return a number of bytes as people write it: ``9.5 GiB``."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "-"


def _section(
    head: tuple[str, ...], rows: list[tuple[object, ...]], total: int | None = None
) -> Iterator[str]:
    texts = [head, *(tuple(escaped(str(cell)) for cell in row) for row in rows[:ROWS_MAX])]
    yield from columns(texts)
    left = (len(rows) if total is None else total) - min(len(rows), ROWS_MAX)
    if left > 0:
        yield f"and {left} more"
    yield ""
