"""What a bridge is to do: its options, and the file that says them for one table or several."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ConfigurationError
from ..core.limits import read_seconds
from ..core.loading import closest, read_toml
from ..queue.queue_directories import is_queue, path_of, queues_at
from ..table import preflight
from ..table.plan import ROWS_MAX
from ..table.properties import check_properties
from ..table.shape import Shape, shape_of
from .session import check_master
from .source_options import Access, is_remote


@dataclass(slots=True, frozen=True)
class BridgeOptions:
    """The options of ``msgproto bridge``."""

    queues: Sequence[str]
    table: str
    partition_by: Sequence[str] | None = None  # what the table has
    trigger: float = 1.0  # seconds, as ``every``
    once: bool = False
    every: float | None = None
    consumer: str | None = None  # named by the table's id
    start_begin: bool = False
    transform: str | None = None
    dead_letters: str | None = None  # such rows end the bridge
    properties: Mapping[str, str] = field(default_factory=dict)  # the table's
    master: str = "local[*]"
    rows_max: int = ROWS_MAX
    storage: Mapping[str, str] = field(default_factory=dict)  # the object store's
    settings: Mapping[str, str] = field(default_factory=dict)  # Spark's
    token_file: str | None = None
    authority: str | None = None  # a file with certificates
    proxy: str | None = None
    json_log: bool = False
    name: str = ""  # begins its lines where one process lands several tables
    shape: Shape | None = None  # all rows as they are

    def __post_init__(self) -> None:
        if self.consumer is not None and not re.fullmatch(
            r"\w[\w.-]{0,63}", self.consumer, re.ASCII
        ):
            raise ConfigurationError(
                f"--consumer is 1 to 64 letters, digits, - . and _, not {self.consumer!r}"
            )
        if self.every is not None and not (self.once and self.every):
            raise ConfigurationError(
                "--every goes with --once: the next run begins within this time, which is not 0"
            )
        if self.partition_by is not None:
            preflight.check_partitioning(self.partition_by)
        if self.dead_letters is not None:
            if self.transform is None:
                raise ConfigurationError("dead letters are of a transform: it has none")
            if overlap(self.table, self.dead_letters):
                raise ConfigurationError(
                    "the dead letters need a table of their own, and neither stands in the other"
                )
        check_properties(self.properties)
        named = [("--table", self.table), ("--dead-letters", self.dead_letters or "")]
        for option, text in [*named, *(("--queue", queue) for queue in self.queues)]:
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise ConfigurationError(f"{option} {text!r} is not UTF-8")
        check_master(self.master)
        if "spark.master" in self.settings:
            raise ConfigurationError(
                "spark.master is no setting here: --master, or master in a bridge.toml, says it"
            )
        if self.proxy is not None:
            from .flight_client import check_proxy

            check_proxy(self.proxy)

        places: dict[str, str] = {}
        for location in self.locations:
            place = location if is_remote(location) else os.path.realpath(location)
            if place in places:
                raise ConfigurationError(f"{places[place]} and {location} are the same queue")
            places[place] = location
            if not is_remote(location) and is_queue(place) and overlap(place, self.table):
                raise ConfigurationError(
                    f"the table {self.table} and the queue {location} lie in one another: name"
                    " another directory for the table"
                )

    @property
    def access(self) -> Access:
        return Access(self.token_file, self.authority, self.proxy)

    @property
    def locations(self) -> list[str]:
        """Return the queues as absolute paths: workers stand elsewhere."""
        found: list[str] = []
        for queue in self.queues:
            found += [queue] if is_remote(queue) else queues_at(os.path.abspath(path_of(queue)))
        return found


def read_duration(text: str, name: str = "--trigger") -> float:
    try:
        return read_seconds(text)
    except ValueError:
        raise ConfigurationError(
            f"{name} is a duration like 500ms, 10s or 2m, not {text!r}"
        ) from None


# -- the file -------------------------------------------------------------------------------------

BRIDGE_KEYS = {
    "queue": list,
    "trigger": str,
    "master": str,
    "max_rows": int,
    "token_file": str,
    "tls_ca": str,
    "flight_proxy": str,
    "conf": dict,
    "table": list,
}

TABLE_KEYS = {
    "name": str,
    "location": str,
    "storage": dict,
    "partition_by": list,
    "consumer": str,
    "start": str,
    "transform": str,
    "dead_letters": str,
    "properties": dict,
    "where": dict,
    "keep": list,
    "columns": dict,
}

KINDS = {list: "a list", str: "a text", int: "a whole number", dict: "a table"}


def read_bridge_file(
    path: Path, *, once: bool = False, every: float | None = None, json_log: bool = False
) -> list[BridgeOptions]:
    """Return the options of each table of a ``bridge.toml``; paths are those of its directory."""
    try:
        run = {"once": once, "every": every, "json_log": json_log}
        return _options_of(read_toml(path), path.absolute().parent, run)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _options_of(
    given: Mapping[str, Any], directory: Path, run: Mapping[str, Any]
) -> list[BridgeOptions]:
    if isinstance(given.get("queue"), str):
        given = {**given, "queue": [given["queue"]]}
    if isinstance(given.get("queue"), dict):
        raise ConfigurationError("[queue] is of a gateway.toml, which msgproto gateway takes")
    if isinstance(given.get("table"), str | dict):
        raise ConfigurationError("table is a list of tables: write [[table]] above each")
    _check(given, BRIDGE_KEYS)
    queues = given.get("queue", [])
    if not queues or not all(isinstance(one, str) and one for one in queues):
        raise ConfigurationError('queue names the queues: queue = ["/var/spool/msgproto"]')
    tables = given.get("table", [])
    if not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigurationError("there is no [[table]]")
    rows_max = given.get("max_rows", ROWS_MAX)
    if rows_max < 1:
        raise ConfigurationError("max_rows is a whole number from 1")
    common: dict[str, Any] = {
        "queues": [_placed(one, directory) for one in queues],
        "trigger": read_duration(given.get("trigger", "1s"), "trigger"),
        "master": given.get("master", "local[*]"),
        "rows_max": rows_max,
        "settings": _texts("conf", given.get("conf", {})),
        "token_file": _location(given.get("token_file"), directory),
        "authority": _location(given.get("tls_ca"), directory),
        "proxy": given.get("flight_proxy"),
        **run,
    }
    strange = [name for name in common["settings"] if not name.startswith("spark.")]
    if strange:
        raise ConfigurationError(f"conf has {strange[0]!r}, and Spark's settings begin with spark.")
    found: list[BridgeOptions] = []
    for number, table in enumerate(tables, 1):
        name = table.get("name") or str(table.get("location", "")).rstrip("/").rpartition("/")[2]
        try:
            options = _table(table, str(name), common, directory)
            _check_others(options, found)
        except ConfigurationError as error:
            raise ConfigurationError(f"[[table]] {name or number}: {error}") from None
        found.append(options)
    return found


def _table(
    given: Mapping[str, Any], name: str, common: Mapping[str, Any], directory: Path
) -> BridgeOptions:
    _check(given, TABLE_KEYS)
    if "location" not in given:
        raise ConfigurationError("location says where the table is")
    if given.get("start", "begin") != "begin":
        raise ConfigurationError(f'start is "begin", not {given["start"]!r}')
    partition_by = given.get("partition_by")
    if partition_by is not None:
        preflight.check_partitioning(partition_by)
    transform = given.get("transform")
    shape = shape_of(given, tuple(partition_by or ()))
    if transform is not None and shape is not None:
        raise ConfigurationError(
            "a table has a transform, or where and columns, not both: the function can leave "
            "rows out, too"
        )
    return BridgeOptions(
        table=_placed(given["location"], directory),
        partition_by=partition_by,
        consumer=given.get("consumer"),
        start_begin="start" in given,
        transform=transform,
        dead_letters=_location(given.get("dead_letters"), directory),
        properties=_texts("properties", given.get("properties", {})),
        storage=_texts("storage", given.get("storage", {})),
        name=name,
        shape=shape,
        **common,
    )


def _check_others(options: BridgeOptions, others: Sequence[BridgeOptions]) -> None:
    for other in others:
        if other.name == options.name:
            raise ConfigurationError("two tables have this name; give one a name of its own")
        used = [place for place in (other.table, other.dead_letters) if place]
        for place in filter(None, (options.table, options.dead_letters)):
            if any(same_place(one, place) for one in used):
                raise ConfigurationError(f"{place} is the table {other.name!r} already")
            if any(overlap(one, place) for one in used):
                raise ConfigurationError(
                    f"it and the table {other.name!r} lie in one another: give one another "
                    "directory"
                )
        if options.consumer is not None and other.consumer == options.consumer:
            raise ConfigurationError(
                f"the table {other.name!r} has the consumer {options.consumer!r} already: they "
                "would trim each other's rows"
            )


def same_place(one: str, other: str) -> bool:
    return _real(one) == _real(other)


def _real(place: str) -> str:
    scheme, is_url, rest = (path := path_of(place)).partition("://")
    if is_url:
        return f"{scheme.lower().replace('s3a', 's3')}://{rest.rstrip('/')}"
    return os.path.realpath(path)


def overlap(one: str, other: str) -> bool:
    short, long = sorted((_real(one) + "/", _real(other) + "/"), key=len)
    return long.startswith(short)


def _check(given: Mapping[str, Any], known: Mapping[str, type]) -> None:
    for key, value in given.items():
        if key not in known:
            there = f"there are {', '.join(known)}"
            raise ConfigurationError(f"there is no {key!r}{closest(key, known)}; {there}")
        if not isinstance(value, known[key]) or isinstance(value, bool):
            raise ConfigurationError(f"{key} is {KINDS[known[key]]}, not {value!r}")
        if value == "":
            raise ConfigurationError(f"{key} is empty: give it a value, or leave it out")


def _texts(name: str, given: Mapping[str, Any]) -> dict[str, str]:
    for key, value in given.items():
        if not key:
            raise ConfigurationError(f"{name} has a key without a name")
        if not isinstance(value, str):
            raise ConfigurationError(f"{name}: {key} is a text, not {value!r}")
    return dict(given)


def _placed(location: str, directory: Path) -> str:
    return location if "://" in location else os.path.join(directory, location)


def _location(location: str | None, directory: Path) -> str | None:
    return None if location is None else _placed(location, directory)
