"""The figures of a queue: those in memory, and those that a thread reads from its files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from shlex import quote
from typing import Any, Final, NamedTuple

from ...core.errors import age

SHOWN_MAX: Final = 200  # one by one, of a kind such as sessions

NOTHING_READ: Final[Mapping[str, Any]] = {
    "oldest": None,
    "consumers": [],
    "bridges": [],
    "unheld": [],
    "unreadable": None,
}

NEVER_REFUSES: Final[Mapping[str, Any]] = {
    "refusal": None,
    "stalled_because": None,
    "damaged_messages": 0,
}
"""A queue that nobody writes is asked for nothing that it could refuse."""


def written_figures(writer: Any) -> dict[str, Any]:
    statistics = writer.statistics()
    return {
        **statistics,
        "directory": writer.directory,
        "queue_id": writer.queue_id,
        "max_bytes": writer.max_bytes,
        "left_bytes": max(writer.max_bytes - statistics["stored_bytes"], 0),
        "damaged": [list(damage) for damage in writer.damaged[:SHOWN_MAX]],
        "stalled_because": writer.stalled,
        "refusal": writer.refusal,
        **NOTHING_READ,
    }


def queue_figures(writer: Any, read: Mapping[str, Any]) -> dict[str, Any]:
    unreadable = read["unreadable"] or writer.unreadable
    return {**written_figures(writer), **read, "unreadable": unreadable}


def read_figures(directory: str, now: float) -> dict[str, Any]:
    """Read figures from the queue's disk; ``unreadable`` says why some are missing."""
    shown: dict[str, Any] = dict(NOTHING_READ)
    try:
        disk = os.statvfs(directory)
        shown["disk_free_bytes"] = disk.f_bavail * disk.f_frsize
        from ...queue.consumers import read_statuses  # as the writer, it needs a queue's packages

        shown["bridges"] = [shown_bridge(status, now) for status in read_statuses(directory)]
        shown |= _consumers(directory, now)
        shown["unheld"] = unheld_queues(directory, now)
    except Exception as error:  # the queue is closing, or its disk fails: the rest is still known
        shown["unreadable"] = f"{type(error).__name__}: {error}"
    return shown


def unheld_queues(directory: str, now: float) -> list[dict[str, Any]]:
    from ...queue.queue_directories import unheld

    return [_unheld(place, now) for place in unheld(directory)]


def _unheld(directory: str, now: float) -> dict[str, Any]:
    from ...queue import QueueReader
    from ...queue.reader import is_unpublished

    queue: dict[str, Any] = {"directory": directory, **NEVER_REFUSES, **NOTHING_READ}
    kept = 0
    try:
        reader = QueueReader(directory)
        kept = reader.end() - reader.begin()
        queue["damaged_messages"] = sum(hi - lo for lo, hi in reader.damaged())
        queue["unpublished"] = is_unpublished(directory)
        queue |= _consumers(directory, now)
    except Exception as error:  # nobody else would say so: no gateway opens it
        queue["unreadable"] = f"{type(error).__name__}: {error}"
    whole = not queue["damaged_messages"] and queue["unreadable"] is None
    if queue.get("unpublished"):
        verdict = Verdict(
            False, f"What it may have acknowledged last is not published: {_mend(directory)}."
        )
    else:
        verdict = Verdict(True, "") if whole and not kept else safe_and_landing(queue)
    behind = max((one["behind_messages"] for one in queue["consumers"]), default=kept)
    return {
        "directory": directory,
        "behind_messages": behind,
        **verdict.as_dict(),
    }


def _consumers(directory: str, now: float) -> dict[str, Any]:
    from ...queue import QueueReader
    from ...queue.consumers import read_statuses, standings

    reader = QueueReader(directory)
    described = reader.describe()
    statuses = {status["consumer"]: status for status in read_statuses(directory)}
    found = [
        {**one, "table": _text(statuses.get(one["name"], {}).get("table"))}
        for one in islice(standings(reader, described, statuses, now), SHOWN_MAX)
    ]
    return {"consumers": found, "oldest": described.oldest}


# ── what bridges last said of themselves ────────────────────────────────────────────────────────

# The file of a status may come from another machine, so each value in it is checked.

TEXT_MAX: Final = 200

ROWS_MAX: Final = 20

NUMBER_MAX: Final = 2**63

TEXTS: Final = ("consumer", "state", "table", "error")
NUMBERS: Final = (
    "pid",
    "rows",
    "rows_per_second",
    "skipped_rows",
    "dropped_rows",
    "left_out_rows",
    "rejected_rows",
    "batches",
    "failed_batches",
    "gateways",
    "offset",
    "lag_rows",
    "oldest_age_seconds",
)
BATCH: Final = ("batch", "rows", "seconds", "at")
KNOWN: Final = ("offset", "lag_rows", "oldest_age_seconds")


def shown_bridge(status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the known members of a status; what is of another type is None.

    ``state`` is ``silent`` for a bridge that said that it was running, and then nothing more, and
    ``resting`` or ``overdue`` for one whose next run will be, or was, due.  ``late_seconds`` is how
    long it is missed.
    """
    from ...queue.consumers import SILENT_SECONDS, rests_until

    batch, at = status.get("last_batch"), _number(status.get("updated_at"))
    shown: dict[str, Any] = {
        **{name: _text(status.get(name)) for name in TEXTS},
        **{name: _number(status.get(name)) for name in NUMBERS},
        "heard_seconds": None if at is None else round(max(0.0, now - at), 1),
        "last_batch": {name: _number(batch.get(name)) for name in BATCH}
        if isinstance(batch, dict)
        else None,
        "errors": _numbers(status.get("errors")),
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
    until = rests_until(status, now)
    missed = max(until, 0.0 if at is None else at)
    shown["rests_seconds"] = round(max(0.0, until - now), 1)
    shown["late_seconds"] = round(max(0.0, now - missed), 1)
    heard = shown["heard_seconds"]
    if shown["state"] == "ended" and until:
        shown["state"] = "resting" if until > now else "overdue"
    if shown["state"] in ("starting", "running") and (heard is None or heard > SILENT_SECONDS):
        shown["state"] = "silent"
    return shown


def _rows(value: object) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, list) else []
    return [one for one in found[:ROWS_MAX] if isinstance(one, dict)]


def _numbers(value: object) -> dict[str, float]:
    found = list(value.items())[:ROWS_MAX] if isinstance(value, dict) else []
    return {
        name: number
        for key, one in found
        if (name := _text(key)) is not None and (number := _number(one)) is not None
    }


def _text(value: object) -> str | None:
    return short(value) if isinstance(value, str) else None


def short(text: str) -> str:
    text = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
    return text.encode("utf-8", "replace").decode()


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < NUMBER_MAX else None


# ── the first line of the page: whether all that was acknowledged is safe, and lands ─────────────


STANDS_STILL_SECONDS: Final = 60.0  # a bridge commits every few seconds, a slow batch in some ten


class Verdict(NamedTuple):
    ok: bool
    why: str

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, "why": self.why}


def healthy(queue: Mapping[str, Any] | None) -> Verdict:
    if queue is None:
        return Verdict(True, "Messages are acknowledged; there is no queue.")
    if queue["refusal"] is not None:
        return Verdict(False, f"Nothing can be acknowledged: {queue['refusal']}.")
    if queue["stalled_because"] is not None:
        return Verdict(False, f"Nothing can be acknowledged: {queue['stalled_because']}.")
    return Verdict(True, "Messages are acknowledged.")


def safe_and_landing(queue: Mapping[str, Any] | None) -> Verdict:
    if queue is None:
        return Verdict(False, "There is no queue: acknowledged means accepted, not on disk.")
    wrong = next(_wrong(queue), None)
    if wrong is not None:
        return Verdict(False, wrong)
    behind = max(consumer["behind_messages"] for consumer in queue["consumers"])
    return landing("the slowest consumer is", behind, queue.get("unheld", ()))


def landing(who: str, behind: int, unheld: Iterable[Mapping[str, Any]]) -> Verdict:
    """Say that all is well, and how many messages wait for ``who`` and where no gateway holds."""
    left = sum(one["behind_messages"] for one in unheld)
    counts = ((who, behind), ("queues that no gateway holds are", left))
    lags = [f"{name} {count} behind" for name, count in counts if count]
    rest = f"lands; {', and '.join(lags)}" if lags else "has landed"
    return Verdict(True, f"Everything that was acknowledged is on disk and {rest}.")


def _wrong(queue: Mapping[str, Any]) -> Iterator[str]:
    if queue["damaged_messages"]:
        yield (
            f"The queue has lost {queue['damaged_messages']} messages that may have been"
            f" acknowledged: {_verify(queue)}"
        )
    health = healthy(queue)
    if not health.ok:
        yield f"What was acknowledged is on disk.  {health.why}"
    for consumer in queue["consumers"]:
        if consumer.get("lost_messages"):
            yield (
                f"The queue has lost {consumer['lost_messages']} messages that"
                f" {_named(consumer)} had not committed: {_verify(queue)}"
            )
    if queue["unreadable"] is not None:
        yield f"The queue's files cannot be read: {queue['unreadable']}."
    if not queue["consumers"]:
        yield "What was acknowledged is on disk; nothing lands: the queue has no consumer."
    for consumer in queue["consumers"]:
        if consumer["still_seconds"] >= STANDS_STILL_SECONDS:
            yield (
                f"What was acknowledged is on disk; {_named(consumer)} is"
                f" {consumer['behind_messages']} messages behind and {_since(consumer)}."
            )
    yield from wrong_of_unheld(queue.get("unheld", ()))


def _verify(queue: Mapping[str, Any]) -> str:
    return f"msgproto queue verify {quote(queue['directory'])} says which."


def _mend(directory: str) -> str:
    return f"start its gateway, or run msgproto queue mend {quote(directory)}"


def _named(consumer: Mapping[str, Any]) -> str:
    name = f"the consumer {consumer['name']}"
    return f"{name} (table {consumer['table']})" if consumer.get("table") else name


def _since(consumer: Mapping[str, Any]) -> str:
    if consumer.get("overdue_seconds"):
        return f"its next run has been due for {age(consumer['overdue_seconds'])}"
    return f"has not moved for {age(consumer['still_seconds'])}"


def wrong_of_unheld(unheld: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in unheld:
        if not one["ok"]:
            yield f"No gateway holds the queue {one['directory']}: {one['why']}"
