"""The options of ``format("msgproto")``, the queues that they name, and where reading begins.

An error is one line.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow.compute as pc

from ..core.errors import ConfigurationError, QueueAway, QueueMismatch
from ..queue import QueueReader
from ..queue.interface import Queue
from ..queue.queue_directories import path_of
from ..table.plan import Range
from .offsets import GO_ON

PARTITIONS_DEFAULT = 2

PARTITION_ROWS_MIN = 20_000  # below it a second task (some 10 ms, measured) does not pay

OPTIONS = (
    "queue",
    "consumer",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxRowsPerTrigger",
    "numPartitions",
    "minPartitionRows",
    "failOnDataLoss",
    "pushFilters",
    "retired",
    "tokenFile",
    "tlsCa",
    "flightProxy",
)

MISSPELT = 0.8  # likeness, of 1, from which a name is taken for a misspelt option

EARLIEST, LATEST = "earliest", "latest"

NAMED_OFFSETS = {-2: EARLIEST, -1: LATEST}


class Access(NamedTuple):
    """Files with token and authority, and a proxy ``http://HOST:PORT``, for other machines."""

    token_file: str | None = None
    authority: str | None = None
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """Where reading begins or ends; ``everywhere`` serves queues that ``offsets`` do not name."""

    everywhere: str
    offsets: Mapping[str, int | str] = field(default_factory=dict)
    micros: int | None = None  # µs since 1970 UTC
    times: Mapping[str, int] = field(default_factory=dict)

    @property
    def named(self) -> set[str]:
        return {*self.offsets, *self.times}


def refuse_misspelt(given: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise ConfigurationError for a name nearly one of ``known``: Spark would ignore it."""
    names = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in names:
            close = get_close_matches(name.lower(), names, 1, MISSPELT)
            if close:
                raise ConfigurationError(
                    f"there is no option {name}; did you mean {names[close[0]]}?"
                )


class Settings:
    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark hands a dictionary that forgets about case when it is pickled: compare in lower.
        given = {name.lower(): value for name, value in options.items()}
        refuse_misspelt(options, (*OPTIONS, "path"))
        self.locations: list[str] = queue_locations(given.get("queue") or given.get("path", ""))
        if not self.locations:
            raise ConfigurationError(
                'the source msgproto needs .option("queue", DIRECTORY): one queue, or several with '
                "commas between them"
            )
        self.consumer: str | None = given.get("consumer") or None
        self.rows_max: int | None = whole(given, "maxRowsPerTrigger")
        self.parts: int = whole(given, "numPartitions") or PARTITIONS_DEFAULT
        self.rows_min: int = whole(given, "minPartitionRows") or PARTITION_ROWS_MIN
        self.accept_loss: bool = not truth(given, "failOnDataLoss", True)
        self.push_filters: bool = truth(given, "pushFilters", False)
        self.retired: frozenset[str] = frozenset(split_list(given.get("retired", "")))
        names = ("tokenfile", "tlsca", "flightproxy")
        self.access: Access = Access(*(given.get(name) or None for name in names))
        self.starting: Edge = _edge(given, "starting", EARLIEST)
        self.ending: Edge = _edge(given, "ending", LATEST)
        strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
        if strategy not in ("error", LATEST):
            raise ConfigurationError(
                f"the option startingOffsetsByTimestampStrategy is error or latest, not {strategy}"
            )
        self.latest_when_too_late: bool = strategy == LATEST
        self._ending_given = [
            name for name in OPTIONS if name.startswith("ending") and name.lower() in given
        ]

    def refuse_ending(self) -> None:
        if self._ending_given:
            raise ConfigurationError(
                f"the option {self._ending_given[0]} is for batch reads (spark.read); a stream "
                "ends with its trigger"
            )

    def starting_offsets(self, queues: Mapping[str, Queue]) -> dict[str, int]:
        return self._offsets_at(queues, self.starting, "starting", self.latest_when_too_late)

    def ending_offsets(self, queues: Mapping[str, Queue]) -> dict[str, int]:
        return self._offsets_at(queues, self.ending, "ending", True)

    def _offsets_at(
        self, queues: Mapping[str, Queue], edge: Edge, side: str, latest_when_too_late: bool
    ) -> dict[str, int]:
        strangers = sorted(edge.named - set(queues))
        if strangers:
            raise ConfigurationError(
                f"the {side} offsets name queue {strangers[0]}, which is not among "
                f"{', '.join(sorted(queues))}"
            )
        found = {}
        for name, queue in queues.items():
            micros = edge.micros if edge.micros is not None else edge.times.get(name)
            if micros is None:
                wanted = edge.offsets.get(name, edge.everywhere)
                found[name] = _offset(queue, wanted, f"{side}Offsets", self.accept_loss)
                continue
            offset = offset_at(queue, micros)
            if offset is None and not latest_when_too_late:
                raise ConfigurationError(
                    f"queue {name} has no row received at or after {_shown(micros)} (to begin at "
                    "its end then: option startingOffsetsByTimestampStrategy=latest)"
                )
            found[name] = queue.end() if offset is None else offset
        return found


def _edge(given: Mapping[str, str], side: str, default: str) -> Edge:
    """Return the options of one side; as in the Kafka source a time goes before offsets."""
    offsets: Mapping[str, int | str] = {}
    everywhere = given.get(f"{side}offsets", default).strip()
    if everywhere.startswith("{"):
        offsets = _offsets(everywhere, f"{side}Offsets", default)
        everywhere = default
    elif everywhere.lower() not in (EARLIEST, LATEST):
        raise ConfigurationError(
            f'the option {side}Offsets is earliest, latest or JSON as {{"QUEUE-ID": OFFSET}}, '
            f"not {everywhere!r}"
        )
    if side == "ending" and everywhere.lower() == EARLIEST:
        raise ConfigurationError("the option endingOffsets is latest or JSON, not earliest")
    micros = None
    if text := given.get(f"{side}timestamp"):
        micros = microseconds(text, f"{side}Timestamp")
    times = {}
    if text := given.get(f"{side}offsetsbytimestamp"):
        name = f"{side}OffsetsByTimestamp"
        times = {queue: microseconds(time, name) for queue, time in _mapping(text, name).items()}
    return Edge(everywhere.lower(), offsets, micros, times)


def _offsets(text: str, name: str, default: str) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for queue, offset in _mapping(text, name).items():
        known = isinstance(offset, int) and not isinstance(offset, bool) and offset >= -2
        if not known or (default == LATEST and offset == -2):
            raise ConfigurationError(
                f"the option {name} has {offset!r} for queue {queue}; an offset is a whole number "
                "from 0, -1 is latest" + ("" if default == LATEST else ", -2 is earliest")
            )
        found[queue] = NAMED_OFFSETS.get(offset, offset)
    return found


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigurationError(f'the option {name} is JSON as {{"QUEUE-ID": …}}, not {text!r}')
    return value


def microseconds(value: object, name: str) -> int:
    """Return a time of an option: milliseconds since 1970, as for Kafka's source, or ISO 8601."""
    text = str(value).strip()
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    try:
        if re.fullmatch(r"-?\d+", text):
            time = epoch + dt.timedelta(milliseconds=int(text))
        else:
            time = dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"the option {name} is milliseconds since 1970 or a time as 2026-01-31T12:00:00Z, "
            f"not {text!r}"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return (time - epoch) // dt.timedelta(microseconds=1)


def split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def queue_locations(text: str) -> list[str]:
    """Return the locations in an option; a directory's name may have commas in it."""
    return [text] if os.path.isdir(path_of(text)) else split_list(text)


def whole(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigurationError(f"the option {name} is a whole number from 1, not {text!r}")
    return number


def truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"the option {name} is true or false, not {text!r}")
    return text.lower() == "true"


# -- queues ---------------------------------------------------------------------------------------


REMOTE = ("grpc://", "grpc+tls://")

TASK_PATIENCE_SECONDS = 20.0  # for a gateway's rows; then it is planned without
LIMIT_SECONDS = 2.0  # a gateway that needs longer than this for one small answer counts as away


def is_remote(location: str) -> bool:
    return location.startswith(REMOTE)


def open_queue(
    location: str,
    access: Access = Access(),  # noqa: B008  a tuple
    patience: float = TASK_PATIENCE_SECONDS,
    queue_id: str | None = None,
) -> Queue:
    """Return the queue at a directory or URL; with ``queue_id`` it is not asked before its use."""
    if is_remote(location):
        from .flight_client import FlightQueue

        return FlightQueue(
            location,
            token_file=access.token_file,
            authority=access.authority,
            proxy=access.proxy,
            patience=patience,
            limit=LIMIT_SECONDS,
            queue_id=queue_id,
        )
    return QueueReader(path_of(location))


_opened: dict[str, Queue] = {}  # of this worker process; Spark uses one for many tasks


def open_range(part: Range, patience: float = TASK_PATIENCE_SECONDS) -> Queue:
    queue = _opened.get(part.location)
    if queue is None or queue.queue_id != part.gateway:
        access = part.access if isinstance(part.access, Access) else Access()
        queue = open_queue(part.location, access, patience, part.gateway)
        _opened[part.location] = queue
    return queue


def forget_opened(parts: Iterable[Range]) -> None:
    for part in parts:
        _opened.pop(part.location, None)


PATIENCE_SECONDS = 60.0  # of a gateway that is away (restarts, say) in a stream or query

PAUSE_SECONDS = 0.5

Answer = TypeVar("Answer")


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Return what ``ask`` answers; a gateway that is away is asked again for a minute."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except QueueAway:
            if time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def open_queues(
    locations: Sequence[str],
    access: Access = Access(),  # noqa: B008  a tuple
) -> dict[str, Queue]:
    queues: dict[str, Queue] = {}
    where: dict[str, str] = {}
    for location in locations:
        queue = patiently(partial(open_queue, location, access, PATIENCE_SECONDS))
        if queue.queue_id in queues:
            raise ConfigurationError(
                f"{where[queue.queue_id]} and {location} are the same queue ({queue.queue_id})"
            )
        queues[queue.queue_id] = queue
        where[queue.queue_id] = location
    return queues


# -- where reading begins and ends -----------------------------------------------------------------


PROBE_ROWS = 1000  # read at a time at first; times this past damaged rows


def _offset(queue: Queue, wanted: int | str, option: str, accept_loss: bool) -> int:
    begin, end = queue.begin(), queue.end()
    if wanted == EARLIEST:
        return begin
    if wanted == LATEST:
        return end
    assert isinstance(wanted, int)
    if begin <= wanted <= end:
        return wanted
    if accept_loss:
        return min(max(wanted, begin), end)
    raise QueueMismatch(
        f"the option {option} asks for offset {wanted} of queue {queue.queue_id}, which has "
        f"{begin} to {end}; choose another, {GO_ON}"
    )


def offset_at(queue: Queue, micros: int) -> int | None:
    """Return the first offset received at or after ``micros``; None when there is none.

    Found by halving: where a clock was set back, one of the places where times pass ``micros``.
    """
    lo, hi = queue.begin(), queue.end()
    end = hi
    while lo < hi:
        middle = (lo + hi) // 2
        seen = _row_at(queue, middle, hi)
        if seen is None or seen[1] >= micros:  # nothing but damaged rows from here on
            hi = middle
        else:
            lo = seen[0] + 1
    return lo if lo < end and _row_at(queue, lo, end) is not None else None


def _row_at(queue: Queue, lo: int, hi: int) -> tuple[int, int] | None:
    width = 1
    while lo < hi:
        stop = min(hi, lo + width)
        for batch in queue.read(lo, stop, 1):
            time = pc.cast(batch.column("received_at")[0], "int64").as_py()
            return batch.column("offset")[0].as_py(), time
        lo, width = stop, width * PROBE_ROWS
    return None


def _shown(micros: int) -> str:
    time = dt.datetime.fromtimestamp(micros / 1e6, dt.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
