"""Maintain a landed table: count it, prove it, compact it, remove days and rows, set it back, make
another of it.

Every action is safe beside a running bridge and beside the others; each says in plain lines what
it did.  --dry-run says what it would do.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from twisted_msgproto.core.errors import ConfigurationError

from .options import (
    FILE,
    LOCATION,
    PAIR,
    POSITIVE,
    argument,
    as_json,
    command,
    flag,
    flight_proxy,
    group,
    option,
    tls_ca,
    together,
    token_file,
)
from .options import Run as Act

if TYPE_CHECKING:
    from twisted_msgproto.queue.interface import Queue
    from twisted_msgproto.spark.configuration import BridgeOptions
    from twisted_msgproto.table.delta_table import Table
    from twisted_msgproto.table.derive import Derived, Tried
    from twisted_msgproto.table.proof import Report

WRONG = 1  # ``verify`` ends with this exit status when something is missing or twice

AGE = re.compile(r"(\d{1,6})\s*(h|d|hours?|days?)")


run = group(__doc__)


def action(name: str, text: str) -> Callable[[Act], None]:
    def made(act: Act) -> None:
        of_all = together(
            argument("location LOCATION", "the table: a directory, or s3://BUCKET/NAME", LOCATION),
            option(
                "--storage KEY=VALUE",
                "an option of the object store that the table is in",
                PAIR,
                multiple=True,
            ),
            as_json,
        )
        run.add_command(command(text, name)(of_all(act)))

    return made


dry_run = flag("--dry-run", "say it, and change nothing")


def queues(text: str) -> Callable[[Any], Any]:
    return together(
        option(
            "--queue DIR",
            f"{text}; a directory, or grpc://HOST:PORT of a gateway",
            LOCATION,
            multiple=True,
        ),
        token_file("queues at grpc://HOST:PORT"),
        tls_ca("grpc+tls://HOST:PORT"),
        flight_proxy(),
    )


def _open(arguments: SimpleNamespace, *, writing: bool = False) -> Table:
    from twisted_msgproto.table.delta_table import Table

    opened = Table.open_for_writing if writing else Table.open
    table = opened(arguments.location, dict(arguments.storage))
    for line in table.mended:
        print(f"msgproto table: {line}", file=sys.stderr)
    return table


def read_age(option: str, text: str) -> timedelta:
    """Return how long ``30d`` or ``48h`` is; ConfigurationError for anything else."""
    match = AGE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{option} is a time like 48h or 30d, not {text!r}")
    return timedelta(**{"hours" if match[2].startswith("h") else "days": int(match[1])})


def read_before(arguments: SimpleNamespace, today: date) -> date:
    if arguments.keep is not None:
        age = read_age("--keep", arguments.keep)
        if not age.seconds:
            with suppress(OverflowError):  # before the year 1
                return today - age
        raise ConfigurationError(f"--keep is a number of days like 30d, not {arguments.keep!r}")
    try:
        before = date.fromisoformat(arguments.before)
    except ValueError:
        raise ConfigurationError(
            f"--before is a day like 2026-01-31, not {arguments.before!r}"
        ) from None
    if before > today:
        raise ConfigurationError(f"--before {before} is in the future; today is {today}, UTC")
    return before


def open_queues(arguments: SimpleNamespace) -> dict[str, Queue]:
    """Return the queues that were named, by queue id; QueueError for one that cannot be opened."""
    from twisted_msgproto.spark.source_options import Access, open_queue

    access = Access(arguments.token_file, arguments.tls_ca, arguments.flight_proxy)
    queues = [open_queue(location, access) for location in arguments.queue]
    return {queue.queue_id: queue for queue in queues}


# -- actions --------------------------------------------------------------------------------------


@action("counts", "rows, files and days; rows and offsets of every gateway")
def _counts(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.table.proof import counts

    found = counts(_open(arguments))
    if arguments.json:
        print(json.dumps(asdict(found)))
        return 0
    print(
        f"table {found.location} version {found.version}: {found.rows} rows in {found.files} "
        f"files, {found.bytes} bytes"
    )
    for name, values in found.partitions.items():
        for value, rows in sorted(values.items()):
            print(f"{name} {value}: {rows} rows")
    for gateway, each in found.gateways.items():
        landed = "no place" if each.landed is None else f"landed {each.landed}"
        begin = "" if each.begin is None else f", from offset {each.begin}"
        print(f"gateway {gateway}: {landed}{begin}, {each.rows} rows")
    return 0


@action("verify", "read every row's place; exit 1 if anything is missing or twice")
@flag("--all-columns", "read whole files, to find torn pages")
@queues("ask this queue what it still has")
def _verify(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.table.proof import verify

    asked = open_queues(arguments)
    report = verify(_open(arguments), asked, every_column=arguments.all_columns)
    if arguments.json:
        print(json.dumps(_facts(report)))
    else:
        _print_report(report)
        for gateway in sorted(asked.keys() - report.gateways.keys()):
            print(f"gateway {gateway}: nothing of its queue has landed in this table")
    return 0 if report.intact else WRONG


def _facts(report: Report) -> dict[str, object]:
    facts = asdict(report)
    facts |= {"intact": report.intact, "rows": report.rows, "findings": list(report.findings())}
    for gateway, found in report.gateways.items():
        facts["gateways"][gateway] |= {"intact": found.intact, "intact_to": found.intact_to}
    return facts


def _print_report(report: Report) -> None:
    from twisted_msgproto.table.row_offsets import size

    for line in report.findings():
        print(line)
    for gateway, found in sorted(report.gateways.items()):
        landed = "no place" if found.landed is None else f"landed {found.landed.offset}"
        notes = "".join(
            f", {rows} {name}"
            for name, rows in (
                ("expired", found.expired_rows),
                ("damaged", found.damaged_rows),
                ("erased", size(found.erased)),
                ("dropped by a transform or missing", size(found.dropped)),
                ("left out", found.left_out),
                ("rejected", found.rejected),
            )
            if rows
        )
        print(
            f"gateway {gateway}: {landed}, intact from {found.begin} to {found.intact_to}, "
            f"{found.rows} rows{notes}"
        )
    print(
        f"table {report.location} version {report.version}: {report.rows} rows in {report.files} "
        f"files, {'all intact' if report.intact else 'not intact'}"
    )


@action("compact", "make few large files of many small ones")
@dry_run
def _compact(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.table.actions import Run
    from twisted_msgproto.table.compact import compact

    table = _open(arguments, writing=not arguments.dry_run)
    say: Callable[[str], object] = (lambda line: None) if arguments.json else click.echo
    done = compact(table, Run.new(), dry_run=arguments.dry_run, say=say)
    if arguments.json:
        print(json.dumps(asdict(done)))
        return 0
    would = "would make" if arguments.dry_run else "made"
    print(
        f"{done.small} small files; {would} {done.added} of {done.removed}, {done.bytes} bytes"
        + (f"; {done.given_up} groups were given up" if done.given_up else "")
    )
    return 0


@action("vacuum", "remove the files which no version needs any more")
@dry_run
@option(
    "--retain AGE",
    "keep what was needed since then, like 48h or 7d; at least, and by default, 24h",
    default="24h",
)
def _vacuum(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.table.retention import vacuum

    hours = read_age("--retain", arguments.retain).total_seconds() / 3600
    table = _open(arguments, writing=not arguments.dry_run)
    done = vacuum(table, hours=hours, dry_run=arguments.dry_run)
    if arguments.json:
        print(json.dumps(asdict(done)))
        return 0
    if arguments.dry_run:
        for path in done.paths:
            print(path)
    would = "would remove" if arguments.dry_run else "removed"
    print(f"{would} {len(done.paths)} files, {done.bytes} bytes")
    return 0


@action("expire", "take old days out of the table")
@dry_run
@option(
    "--before DAY",
    "the first day which stays: 2026-01-31; days before 2000 go only by a --before of then",
)
@option("--keep AGE", "how many days stay: 30d")
def _expire(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.table.actions import Run
    from twisted_msgproto.table.retention import CLOCK_DAY, expire, time_of

    if (arguments.before is None) == (arguments.keep is None):
        raise click.UsageError("it needs one of --before DAY and --keep AGE")
    table = _open(arguments, writing=not arguments.dry_run)
    today = datetime.fromtimestamp(time_of(table, dry_run=arguments.dry_run), UTC).date()
    before = read_before(arguments, today)
    done = expire(table, before, Run.new(), dry_run=arguments.dry_run)
    if arguments.json:
        print(json.dumps({**asdict(done), "before": before.isoformat(), "rows": done.rows}))
        return 0
    for gateway, ranges in sorted(done.gateways.items()):
        for lo, hi in ranges:
            print(f"gateway {gateway}: offsets {lo} to {hi} ({hi - lo} rows)")
    if done.without_clock:
        print(
            f"{len(done.without_clock)} days before {CLOCK_DAY} stay: the clock was not set when"
            " their rows came (--before 2000-01-01 takes them out): "
            + ", ".join(done.without_clock)
        )
    would = "would take out" if arguments.dry_run else "took out"
    print(f"{would} {len(done.days)} days before {before}: {done.rows} rows in {done.files} files")
    return 0


@action("erase", "take single rows out of the table, for ever")
@dry_run
@option("--where SQL", "the rows for which this is true, as in: client_id = 'a' AND \"offset\" < 9")
@option(
    "--offsets FILE",
    "the rows in this file, a line for each: GATEWAY OFFSET, or GATEWAY FIRST END",
    FILE,
)
@flag("--purge", "also delete the files which held them, from which older versions are read")
def _erase(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.table.actions import Run
    from twisted_msgproto.table.retention import erase

    if (arguments.where is None) == (arguments.offsets is None):
        raise click.UsageError("it needs one of --where SQL and --offsets FILE")
    offsets = None if arguments.offsets is None else read_offset_lines(arguments.offsets)
    table = _open(arguments, writing=not arguments.dry_run)
    done = erase(
        table,
        Run.new(),
        where=arguments.where or "",
        offsets=offsets,
        purge=arguments.purge,
        dry_run=arguments.dry_run,
    )
    if arguments.json:
        print(json.dumps(asdict(done)))
        return 0
    for gateway, ranges in sorted(done.gateways.items()):
        for lo, hi in ranges:
            print(f"gateway {gateway}: offsets {lo} to {hi} ({hi - lo} rows)")
    if done.not_there:
        print(f"{done.not_there} offsets are not in the table")
    would = "would erase" if arguments.dry_run else "erased"
    print(f"{would} {done.rows} rows in {done.files} files")
    if done.purged:
        print(f"deleted {len(done.purged)} files")
    if done.version is not None or (arguments.purge and not arguments.dry_run):
        for line in where_else(done.version or table.version, purged=arguments.purge):
            print(f"still there: {line}")
    return 0


def where_else(version: int, *, purged: bool) -> list[str]:
    older = "the files which held them" + (" and were taken out before" if purged else "")
    return [
        f"{older}, until 'msgproto table vacuum' a day later",
        f"least and greatest values, in the log's versions before {version}, about six hours",
        "tables made from this one, and dead letters: erase there too",
        "the queues, until they trim what has landed",
    ]


def read_offset_lines(path: str) -> dict[str, list[tuple[int, int]]]:
    """Return the ranges that a file names, by gateway; ConfigurationError for a strange line."""
    found: dict[str, list[tuple[int, int]]] = {}
    with open(path, encoding="utf-8", errors="backslashreplace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            gateway, *numbers = words
            ends = [int(one) for one in numbers if one.isdecimal()]
            if len(numbers) == 1:
                ends += [offset + 1 for offset in ends]
            if len(ends) != 2 or len(numbers) > 2 or ends[0] >= ends[1]:
                raise ConfigurationError(
                    f"{path} line {number} is GATEWAY OFFSET or GATEWAY FIRST END (above FIRST), "
                    f"not {line.strip()!r}"
                )
            found.setdefault(gateway, []).append((ends[0], ends[1]))
    return found


@action("rewind", "set gateways to where the table is proven to be intact")
@dry_run
@option("--gateway ID", "default: all", multiple=True)
@flag("--discard", "also take rows out which the queue cannot give again")
@queues("the queue which lands again what is taken out")
def _rewind(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.table.actions import Run
    from twisted_msgproto.table.rewind import rewind

    asked = open_queues(arguments)
    table = _open(arguments, writing=not arguments.dry_run)
    plan = rewind(
        table,
        Run.new(),
        queues=asked,
        gateways=arguments.gateway,
        discard_rows=arguments.discard,
        dry_run=arguments.dry_run,
    )
    if arguments.json:
        print(json.dumps(asdict(plan)))
        return 0
    for found in plan.gateways:
        lost = f", {found.lost} of them for good" if found.lost else ""
        print(
            f"gateway {found.gateway}: from {found.before.offset} to {found.place.offset}, "
            f"{found.removed} rows taken out{lost}"
        )
    print("nothing was changed" if plan.version is None else f"version {plan.version} says so")
    return 0


@action("columns", "propose the columns of a bridge.toml for a raw table, or try them out")
@option("--config FILE", "a bridge.toml whose columns are tried out", FILE)
@option(
    "--try N",
    "with --config: errors and values of each column in the first N rows; default: 10000",
    POSITIVE,
)
def _columns(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.table.derive import ROWS, propose, raw_rows, tried_lines, try_out

    number = getattr(arguments, "try")
    if number is not None and arguments.config is None:
        raise click.UsageError("--try goes with --config FILE")
    table = _open(arguments)
    if arguments.config is None:
        text = propose(raw_rows(table, ROWS))
        print(json.dumps({"columns": text}) if arguments.json else text)
        return 0
    from twisted_msgproto.spark.configuration import read_bridge_file

    shapes = {
        one.name: one.shape
        for one in read_bridge_file(arguments.config)
        if one.shape is not None and one.shape.columns is not None
    }
    if not shapes:
        raise ConfigurationError(f"{arguments.config}: no table has [table.columns]")
    for name, shape in shapes.items():
        tried = try_out(shape, raw_rows(table, number or ROWS))
        if arguments.json:
            print(json.dumps({"table": name, **_counted(tried)}))
            continue
        for line in tried_lines(name, shape, tried):
            print(line)
    return 0


def _counted(found: Tried | Derived) -> dict[str, object]:
    """Return the fields; asdict would make tuples of a Counter's keys."""
    return {one.name: getattr(found, one.name) for one in fields(found)}


@action("derive", "make a table with columns of a raw table's rows; a bridge goes on with it")
@argument(
    "typed TYPED", "the table that is made: its name or location in the file of --config", LOCATION
)
@option(
    "--config FILE", "the bridge.toml that defines TYPED, and names the queues", FILE, required=True
)
def _derive(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.spark.configuration import overlap, read_bridge_file, same_place
    from twisted_msgproto.spark.source_options import open_queue
    from twisted_msgproto.table.actions import Run
    from twisted_msgproto.table.derive import derive
    from twisted_msgproto.table.landing import DAY, Target
    from twisted_msgproto.table.shape import Shape

    def named(word: str) -> BridgeOptions | None:
        return next(
            (one for one in tables if word == one.name or same_place(word, one.table)), None
        )

    tables = read_bridge_file(arguments.config)
    raw, typed = named(arguments.location), named(arguments.typed)
    if typed is None or typed.transform is not None:
        raise ConfigurationError(
            f"{arguments.config}: no [[table]] without a transform has the name or location "
            f"{arguments.typed!r}"
        )
    if raw is not None:
        arguments.location = raw.table
        arguments.storage = [*raw.storage.items(), *arguments.storage]
    elif overlap(arguments.location, typed.table):
        raise ConfigurationError(
            f"{arguments.location} and {typed.table} lie in one another: name another directory "
            "for the table that is made"
        )
    source = _open(arguments)
    queues = [open_queue(location, typed.access) for location in typed.locations]
    done = derive(
        source,
        Target(
            typed.table,
            typed.storage,
            (typed.shape or Shape()).schema.append(DAY),
            tuple(typed.partition_by or ("day",)),
            shape=typed.shape,
        ),
        {queue.queue_id: queue for queue in queues},
        Run.new(),
        consumer=typed.consumer,
        say=(lambda line: None) if arguments.json else click.echo,
    )
    if arguments.json:
        print(json.dumps(_counted(done)))
        return 0
    made = f"made of version {done.of}" if done.of else "made already"
    print(
        f"{typed.table} version {done.version}: {done.rows} rows, {made}; a bridge goes on with it"
    )
    return 0
