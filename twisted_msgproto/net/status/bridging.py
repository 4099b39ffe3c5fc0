"""What bridges last said of themselves, as plain values of known types and bounded length.

The file of a status may come from another machine, so each value in it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...queue.bridges import read_statuses

TEXT_MAX: Final = 200

ROWS_MAX: Final = 20

SILENT_SECONDS: Final = 30.0
"""A bridge that has been silent for this time counts as ended.

It writes every second, and one on another machine is heard every 5 s.
"""

NUMBER_MAX: Final = 2**63

TEXTS: Final = ("consumer", "state", "table", "error")
NUMBERS: Final = (
    "pid",
    "rows",
    "rows_per_second",
    "skipped_rows",
    "dropped_rows",
    "batches",
    "failed_batches",
    "gateways",
    "offset",
    "lag_rows",
    "oldest_age_seconds",
)
BATCH: Final = ("batch", "rows", "seconds", "at")
KNOWN: Final = ("offset", "lag_rows", "oldest_age_seconds")


def bridges_of(directory: str, now: float) -> list[dict[str, Any]]:
    """Return what each bridge of this queue said last; ``now`` is in seconds since 1970."""
    return [shown_bridge(status, now) for status in read_statuses(directory)]


def shown_bridge(status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the known members of a status; what is of another type is None.

    ``state`` is ``silent`` for a bridge that said that it was running, and then nothing more.
    """
    batch, at = status.get("last_batch"), _number(status.get("updated_at"))
    shown: dict[str, Any] = {
        **{name: _text(status.get(name)) for name in TEXTS},
        **{name: _number(status.get(name)) for name in NUMBERS},
        "heard_seconds": None if at is None else round(max(0.0, now - at), 1),
        "last_batch": {name: _number(batch.get(name)) for name in BATCH}
        if isinstance(batch, dict)
        else None,
        "known": [
            {"queue": _text(one.get("queue"))} | {name: _number(one.get(name)) for name in KNOWN}
            for one in _rows(status.get("known"))
        ],
        "away": [
            {name: _text(one.get(name)) for name in ("location", "queue", "state", "error")}
            | {"seconds": _number(one.get("seconds"))}
            for one in _rows(status.get("away"))
        ],
    }
    heard = shown["heard_seconds"]
    if shown["state"] in ("starting", "running") and (heard is None or heard > SILENT_SECONDS):
        shown["state"] = "silent"
    return shown


def _rows(value: object) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, list) else []
    return [one for one in found[:ROWS_MAX] if isinstance(one, dict)]


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    text = value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}…"
    return text.encode("utf-8", "replace").decode()


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < NUMBER_MAX else None
