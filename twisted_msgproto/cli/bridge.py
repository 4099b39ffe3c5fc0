"""The Spark bridge process: queues → a Delta table, one Spark job a batch.

Runs until SIGTERM or Ctrl-C, which let the running batch end (for two seconds; a second signal
does not wait), and exits 0.  A gateway's rows reach a table through one bridge at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace

import click

from twisted_msgproto.core.errors import ConfigurationError

from .options import LOCATION, command, flag, flight_proxy, option, tls_ca, token_file

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|milliseconds?|seconds?|minutes?|hours?)?")

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@command(__doc__)
@option(
    "--queue",
    metavar="DIR",
    type=LOCATION,
    multiple=True,
    required=True,
    help="a queue's directory, one that has queues in it (all are landed), or"
    " grpc://HOST:PORT of a gateway",
)
@option(
    "--table",
    metavar="LOCATION",
    type=LOCATION,
    required=True,
    help="the table: a directory, or in an object store (s3://BUCKET/NAME)",
)
@option(
    "--storage",
    metavar="KEY=VALUE",
    multiple=True,
    help="an option of the object store that the table is in",
)
@option(
    "--partition-by",
    metavar="COLUMNS",
    help="day or protocol,day; default: what the table has, day for a new one",
)
@option(
    "--trigger",
    metavar="DURATION",
    default="1s",
    help="least time from one batch to the next, like 500ms, 10s or 2m; 0: the next batch "
    "begins when the last one ends; default: 1s",
)
@flag("--once", "land what is there, then exit 0")
@option("--consumer", metavar="NAME", help="default: spark- and 8 digits of the table's id")
@option(
    "--start",
    type=click.Choice(["begin"]),
    help="take a gateway which the table does not know from the first row it still holds",
)
@option(
    "--transform",
    metavar="MODULE:FUNCTION",
    help="a PySpark function DataFrame → DataFrame for every batch",
)
@option("--master", metavar="URL", default="local[*]", help="Spark's master; default: local[*]")
@option("--max-rows", metavar="N", type=int, help="rows of one batch at most")
@token_file("queues at grpc://HOST:PORT")
@tls_ca("grpc+tls://HOST:PORT")
@flight_proxy()
@option("--conf", metavar="KEY=VALUE", multiple=True, help="a setting of Spark")
@flag("--json-log", "print one JSON object a line")
def run(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.spark.bridge import BridgeOptions, run_bridge
    from twisted_msgproto.table.plan import ROWS_MAX

    if arguments.max_rows is not None and arguments.max_rows < 1:
        raise ConfigurationError("--max-rows is a whole number from 1")
    return run_bridge(
        BridgeOptions(
            queues=arguments.queue,
            table=arguments.table,
            partition_by=None
            if arguments.partition_by is None
            else [part.strip() for part in arguments.partition_by.split(",")],
            trigger=read_duration(arguments.trigger),
            once=arguments.once,
            consumer=arguments.consumer,
            start_begin=arguments.start == "begin",
            transform=arguments.transform,
            master=arguments.master,
            rows_max=arguments.max_rows or ROWS_MAX,
            storage=read_pairs("--storage", arguments.storage),
            settings=read_settings(arguments.conf),
            token_file=arguments.token_file,
            authority=arguments.tls_ca,
            proxy=arguments.flight_proxy,
            json_log=arguments.json_log,
        )
    )


def read_duration(text: str) -> float:
    """Return seconds of a duration like ``500ms``, ``10s``, ``2 minutes``; a bare number is
    seconds.

    Raises ConfigurationError for anything else.
    """
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"--trigger is a duration like 500ms, 10s or 2m, not {text!r}")
    unit = match[2] or "s"
    if unit.startswith("milli"):
        unit = "ms"
    return float(match[1]) * SECONDS[unit if unit == "ms" else unit[0]]


def read_settings(words: Sequence[str]) -> dict[str, str]:
    """Return settings of Spark; raise ConfigurationError for a word that is none."""
    for word in words:
        if not word.startswith("spark.") or "=" not in word:
            raise ConfigurationError(f"--conf takes spark.KEY=VALUE, not {word!r}")
    return read_pairs("--conf", words)


def read_pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` words as a dictionary; raise ConfigurationError for a word that is
    none.
    """
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"{option} takes KEY=VALUE, not {word!r}")
        pairs[key] = value
    return pairs
