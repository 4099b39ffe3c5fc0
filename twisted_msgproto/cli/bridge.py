"""The Spark bridge process: queues → a Delta table, one Spark job a batch.

Runs until SIGTERM or Ctrl-C, which let the running batch end (for two seconds; a second signal
does not wait), and exits 0.  A gateway's rows reach a table through one bridge at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import click
from click.core import ParameterSource

from twisted_msgproto.core.errors import ConfigurationError

from .options import FILE, LOCATION, PAIR, command, flag, flight_proxy, option, tls_ca, token_file

BESIDE_THE_FILE = frozenset({"config", "once", "every", "json_log"})


@command(__doc__)
@option(
    "--config FILE",
    "a bridge.toml with queues, and one or more tables with their columns; beside it only"
    " --once, --every and --json-log",
    FILE,
)
@option(
    "--queue DIR",
    "a queue's directory, one that has queues in it (all are landed), or"
    " grpc://HOST:PORT of a gateway",
    LOCATION,
    multiple=True,
)
@option(
    "--table LOCATION", "the table: a directory, or in an object store (s3://BUCKET/NAME)", LOCATION
)
@option(
    "--storage KEY=VALUE", "an option of the object store that the table is in", PAIR, multiple=True
)
@option(
    "--partition-by COLUMNS", "day or protocol,day; default: what the table has, day for a new one"
)
@option(
    "--trigger DURATION",
    "least time from one batch to the next, like 500ms, 10s or 2m; 0: the next batch "
    "begins when the last one ends; default: 1s",
    default="1s",
)
@flag("--once", "land what is there, then exit 0")
@option(
    "--every DURATION",
    "with --once: the next run begins within this time, like 10m, 1h or 1d, and until then"
    " nobody misses the bridge; default: twice the longest pause between runs so far, a day before"
    " there were two",
)
@option("--consumer NAME", "default: spark- and 8 digits of the table's id")
@option(
    "--start",
    "take a gateway which the table does not know from the first row it still holds",
    click.Choice(["begin"]),
)
@option("--transform MODULE:FUNCTION", "a PySpark function DataFrame → DataFrame for every batch")
@option(
    "--dead-letters LOCATION",
    "a table of the rows for which the transform raises; default: they end the bridge",
    LOCATION,
)
@option("--master URL", "Spark's master; default: local[*]", default="local[*]")
@option("--max-rows N", "rows of one batch at most", int)
@token_file("queues at grpc://HOST:PORT")
@tls_ca("grpc+tls://HOST:PORT")
@flight_proxy()
@option("--conf KEY=VALUE", "a setting of Spark", PAIR, multiple=True)
@flag("--json-log", "print one JSON object a line")
def run(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.spark.bridge import run_bridge
    from twisted_msgproto.spark.configuration import (
        BridgeOptions,
        read_bridge_file,
        read_duration,
    )
    from twisted_msgproto.table.plan import ROWS_MAX

    every = None if arguments.every is None else read_duration(arguments.every, "--every")
    if arguments.config is not None:
        refuse_others()
        return run_bridge(
            read_bridge_file(
                arguments.config, once=arguments.once, every=every, json_log=arguments.json_log
            )
        )
    for name in ("queue", "table"):
        if not getattr(arguments, name):
            raise ConfigurationError(f"bridge needs --{name}, or --config with both")
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
            every=every,
            consumer=arguments.consumer,
            start_begin=arguments.start == "begin",
            transform=arguments.transform,
            dead_letters=arguments.dead_letters,
            master=arguments.master,
            rows_max=arguments.max_rows or ROWS_MAX,
            storage=dict(arguments.storage),
            settings=settings_of(arguments.conf),
            token_file=arguments.token_file,
            authority=arguments.tls_ca,
            proxy=arguments.flight_proxy,
            json_log=arguments.json_log,
        )
    )


def refuse_others() -> None:
    """Raise ConfigurationError for an option whose place is the file."""
    context = click.get_current_context()
    for one in context.command.params:
        given = context.get_parameter_source(one.name or "") is not ParameterSource.DEFAULT
        if given and one.name not in BESIDE_THE_FILE:
            raise ConfigurationError(
                f"{one.opts[0]} stands in the file of --config: leave one of them out"
            )


def settings_of(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return settings of Spark; raise ConfigurationError for one that is none."""
    for name, _ in pairs:
        if not name.startswith("spark."):
            raise ConfigurationError(f"--conf takes spark.KEY=VALUE, not {name!r}")
    return dict(pairs)
