"""Read and check the options of ``format("msgproto")``; an error is one line."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from ..core.errors import ConfigurationError

PARTITIONS_DEFAULT = 2
"""Tasks a batch and queue has at most, unless the option ``numPartitions`` says otherwise."""

PARTITION_ROWS_MIN = 20_000
"""Below this a second task costs more than it saves (measured: a task costs some 10 ms)."""

OPTIONS = (
    "queue",
    "consumer",
    "releaseAfter",
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
    "ranges",
)

MISSPELT = 0.8
"""From this likeness on, of 1, a name that is no option's is taken for a misspelt one."""

EARLIEST, LATEST = "earliest", "latest"

NAMED_OFFSETS = {-2: EARLIEST, -1: LATEST}

SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Access(NamedTuple):
    """What opens the queues of other machines: the files with the token and the authority, and a
    proxy in front of them, ``http://HOST:PORT``.
    """

    token_file: str | None = None
    authority: str | None = None
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """Where reading begins or ends, according to the options.

    Attributes:
        everywhere: ``earliest`` or ``latest``, for queues that are not named.
        offsets: queue id → offset, ``earliest`` or ``latest``.
        micros: a time for every queue, microseconds since 1970; or None.
        times: queue id → such a time.
    """

    everywhere: str
    offsets: Mapping[str, int | str] = field(default_factory=dict)
    micros: int | None = None
    times: Mapping[str, int] = field(default_factory=dict)

    @property
    def named(self) -> set[str]:
        return {*self.offsets, *self.times}


def refuse_misspelt(given: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise ConfigurationError for a name in ``given`` that is nearly one of ``known``.

    Spark ignores options that a source does not have, and so do we, but a misspelt one would change
    what is read, and from where, without a word.
    """
    names = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in names:
            close = get_close_matches(name.lower(), names, 1, MISSPELT)
            if close:
                raise ConfigurationError(
                    f"there is no option {name}; did you mean {names[close[0]]}?"
                )


class Settings:
    """The options of one stream or one table.  Raises ConfigurationError with one line."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark hands a dictionary that forgets about case when it is pickled: compare in lower.
        given = {name.lower(): value for name, value in options.items()}
        refuse_misspelt(options, (*OPTIONS, "path"))
        self.locations = split_list(given.get("queue") or given.get("path", ""))
        self.ranges = given.get("ranges")
        if not self.locations and self.ranges is None:
            raise ConfigurationError(
                'the source msgproto needs .option("queue", DIRECTORY): one queue, or several with '
                "commas between them"
            )
        self.consumer = given.get("consumer") or None
        self.release_after = seconds(given, "releaseAfter")
        if self.release_after is not None and self.consumer is None:
            raise ConfigurationError("the option releaseAfter needs the option consumer")
        self.rows_max = whole(given, "maxRowsPerTrigger")
        self.parts = whole(given, "numPartitions") or PARTITIONS_DEFAULT
        self.rows_min = whole(given, "minPartitionRows") or PARTITION_ROWS_MIN
        self.accept_loss = not truth(given, "failOnDataLoss", True)
        self.push_filters = truth(given, "pushFilters", False)
        self.retired = frozenset(split_list(given.get("retired", "")))
        names = ("tokenfile", "tlsca", "flightproxy")
        self.access = Access(*(given.get(name) or None for name in names))
        self.starting = _edge(given, "starting", EARLIEST)
        self.ending = _edge(given, "ending", LATEST)
        strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
        if strategy not in ("error", LATEST):
            raise ConfigurationError(
                f"the option startingOffsetsByTimestampStrategy is error or latest, not {strategy}"
            )
        self.latest_when_too_late = strategy == LATEST
        self._ending_given = [
            name for name in OPTIONS if name.startswith("ending") and name.lower() in given
        ]

    def refuse_ending(self) -> None:
        """Raise ConfigurationError when an end was set: a stream has none."""
        if self._ending_given:
            raise ConfigurationError(
                f"the option {self._ending_given[0]} is for batch reads (spark.read); a stream "
                "ends with its trigger"
            )


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
    """Return a time of an option in microseconds since 1970.

    It is milliseconds since 1970, as in Spark's Kafka source, or ISO 8601 (UTC unless it says
    otherwise).
    """
    text = str(value).strip()
    if re.fullmatch(r"-?\d+", text):
        return int(text) * 1000
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"the option {name} is milliseconds since 1970 or a time as 2026-01-31T12:00:00Z, "
            f"not {text!r}"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def split_list(text: str) -> list[str]:
    """Return the parts of a comma separated list, without blanks around them; empty parts are
    dropped.
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def whole(given: Mapping[str, str], name: str) -> int | None:
    """Return the whole number from 1 of an option; None when it is not set."""
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


def seconds(given: Mapping[str, str], name: str) -> float | None:
    """Return the duration of an option in seconds; None when it is not set."""
    text = given.get(name.lower())
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if match is None:
        raise ConfigurationError(f"the option {name} is a duration as 30s or 10m, not {text!r}")
    return float(match[1]) * SECONDS_OF[match[2]]
