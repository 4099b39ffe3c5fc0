"""The Spark bridge process: queue → Structured Streaming → table.

Runs until SIGTERM or Ctrl-C, which let the running batch end (a second one does not wait), and
exits 0.  A table, its checkpoint and a consumer's name belong to one bridge at a time.
"""

from __future__ import annotations

import argparse
import re

from twisted_msgproto.core.errors import ConfigurationError

SUMMARY = "land a queue in a table, with Spark"

DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|milliseconds?|seconds?|minutes?|hours?)?")

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
"""A unit, by its first letter but for milliseconds, → its seconds."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of ``msgproto bridge``."""
    add = parser.add_argument
    add(
        "--queue",
        metavar="DIR",
        action="append",
        required=True,
        help="a queue's directory, or grpc://HOST:PORT of a gateway; repeatable",
    )
    add("--table", metavar="DIR", required=True, help="the table's directory")
    add("--format", default="parquet", metavar="parquet|delta", help="default: parquet")
    add("--checkpoint", metavar="DIR", help="default: TABLE/_checkpoint")
    add(
        "--trigger",
        metavar="DURATION",
        default="0",
        help="least time from one batch to the next, like 500ms, 10s or 2m; default: the next "
        "batch begins when the last one ends",
    )
    add("--once", action="store_true", help="land what is there, then exit 0")
    add("--consumer", metavar="NAME", default="spark", help="default: spark")
    add("--master", metavar="URL", default="local[*]", help="Spark's master; default: local[*]")
    add("--max-rows", metavar="N", type=int, help="rows of one batch at most")
    add(
        "--accept-loss",
        action="store_true",
        help="go on when the queue no longer has what the checkpoint asks for",
    )
    add(
        "--retired",
        metavar="QUEUE-ID",
        action="append",
        default=[],
        help="a queue of the checkpoint which is gone for good; repeatable",
    )
    add("--token-file", metavar="FILE", help="the token for queues at grpc://HOST:PORT")
    add("--tls-ca", metavar="FILE", help="who signed the certificates of grpc+tls://HOST:PORT")
    add(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark; repeatable",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the bridge.  Raises ConfigurationError or QueueError, one line, when it cannot run."""
    from twisted_msgproto.spark.bridge import BridgeOptions, run_bridge

    if arguments.max_rows is not None and arguments.max_rows < 1:
        raise ConfigurationError("--max-rows is a whole number from 1")
    return run_bridge(
        BridgeOptions(
            queues=[part for text in arguments.queue for part in text.split(",") if part],
            table=arguments.table,
            format=arguments.format,
            checkpoint=arguments.checkpoint,
            trigger=read_duration(arguments.trigger),
            once=arguments.once,
            consumer=arguments.consumer,
            master=arguments.master,
            rows_max=arguments.max_rows,
            accept_loss=arguments.accept_loss,
            retired=arguments.retired,
            settings=read_settings(arguments.conf),
            token_file=arguments.token_file,
            authority=arguments.tls_ca,
        )
    )


def read_duration(text: str) -> float:
    """Seconds of a duration like ``500ms``, ``10s``, ``2 minutes``; a bare number is seconds.

    Raises ConfigurationError for anything else.
    """
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"--trigger is a duration like 500ms, 10s or 2m, not {text!r}")
    unit = match[2] or "s"
    if unit.startswith("milli"):
        unit = "ms"
    return float(match[1]) * SECONDS[unit if unit == "ms" else unit[0]]


def read_settings(words: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` words as a dictionary; ConfigurationError for a word that is none."""
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.startswith("spark."):
            raise ConfigurationError(f"--conf takes spark.KEY=VALUE, not {word!r}")
        settings[key] = value
    return settings
