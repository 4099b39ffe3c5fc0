"""Run the main job, end to end, on this machine.

One gateway process with a server of every protocol (those of other packages, too), one Spark bridge
process, and a real client process for each protocol.  Every message is acknowledged when it is on
disk; the demo waits until the table holds them all, reads the table back and compares.  The exit
status is 0 only if sent = acknowledged = landed for every protocol.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from twisted_msgproto.core.disk import writing
from twisted_msgproto.core.errors import ConfigurationError, MsgprotoError, escaped
from twisted_msgproto.core.log_output import private
from twisted_msgproto.registry import LOOPBACK, Registered, usable

from .clients import FAILED
from .options import FILE, POSITIVE, command, flag, option
from .progress import Line
from .rows import columns, text_of

if TYPE_CHECKING:
    import pyarrow as pa

    from twisted_msgproto.queue import QueueReader
    from twisted_msgproto.spark.landed_table import LandedTable

MESSAGES = 1_000

START_SECONDS = 120.0  # until the gateway listens, and until the bridge runs, at most
STILL_SECONDS = 600.0  # then it hangs; a busy machine delays Spark's first batch by minutes

LOOK_SECONDS = 0.2

END_SECONDS = 20.0  # a child may need this long for its last work after SIGTERM; then it is killed

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TAIL_LINES = 8

NEEDED = ("pyarrow", "pyspark", "deltalake")  # by gateway, bridge and report; extras bring them


class DemoFailed(MsgprotoError):
    """The demo cannot continue; the text says why."""


class Count(NamedTuple):
    sent: int
    acknowledged: int
    landed: int  # by Spark
    read_again: int  # by pyarrow

    @property
    def agrees(self) -> bool:
        return self.sent == self.acknowledged == self.landed == self.read_again > 0


@command(__doc__)
@option("--messages N", f"messages per protocol (default {MESSAGES})", POSITIVE, default=MESSAGES)
@option(
    "--keep DIR",
    "queue, table and logs go there and stay; a second run adds to them"
    " (default: a new directory under the system's temporary one)",
    FILE,
)
@flag("--keep-running", "keep gateway, bridge and live page after the report, until Ctrl-C")
def run(arguments: SimpleNamespace) -> int:
    """Raises ModuleNotFoundError before anything starts, if something is not installed."""
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    # All of them are interrupts, so that tidying up happens.
    with handled(signal.default_int_handler), working_directory(arguments.keep) as directory:
        try:
            return Demo(directory, arguments.messages).run(arguments.keep_running)
        except DemoFailed as error:
            print(f"msgproto demo: {error}", file=sys.stderr)
            return FAILED


@contextlib.contextmanager
def working_directory(keep: Path | None) -> Iterator[Path]:
    """Make a directory of this demo alone; raise ConfigurationError if that is not possible."""
    if keep is None:
        yield Path(tempfile.mkdtemp(prefix="msgproto-demo-")).resolve()
        return
    keep.mkdir(parents=True, exist_ok=True)
    with (keep / "demo.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another demo runs in {keep}") from None
        yield keep.resolve()


def shown_protocols() -> dict[str, Registered]:
    """Return what the demo runs: every protocol with a table for it; a line for each broken one."""

    def complain(text: str) -> None:
        print(f"msgproto demo: {text}", file=sys.stderr)

    found = usable(complain, [("service", "serve"), ("command", "send")])
    return {protocol.name: protocol for protocol in found if protocol.demo}


def gateway_file(queue: Path, protocols: Iterable[Registered]) -> str:
    from twisted_msgproto.gateway import toml_value

    lines = ["[queue]", f"directory = {toml_value(str(queue))}"]
    lines += ["", "[status]", f"endpoint = {toml_value(LOOPBACK)}"]
    for protocol in protocols:
        lines += ["", f"[{protocol.name}]"]
        lines += [f"{key} = {toml_value(value)}" for key, value in protocol.demo.items()]
    return "\n".join([*lines, ""])


class Demo:
    def __init__(self, directory: Path, messages: int) -> None:
        self.messages = messages
        self.directory = directory
        self.queue: Path = directory / "queue"
        self.table: Path = directory / "table"
        self.file: Path = directory / "gateway.toml"
        self.logs: Path = directory / "logs"
        self.protocols: dict[str, Registered] = shown_protocols()
        self._line = Line(sys.stdout)
        self._began = time.monotonic()

    def run(self, keep_running: bool) -> int:
        """``keep_running``: gateway and bridge run after the report, until Ctrl-C.

        Raises DemoFailed when a process ends or nothing moves any more.
        """
        from twisted_msgproto.queue import QueueReader

        self.logs.mkdir(exist_ok=True)
        with writing(self.file), open(self.file, "w", opener=private) as file:
            file.write(gateway_file(self.queue, self.protocols.values()))
        say = click.echo
        with Children(self.logs) as children:
            say(f"gateway: a server each for {', '.join(self.protocols)}, one queue")
            gateway = children.start("gateway", "gateway", "--config", str(self.file))
            addresses = self._addresses(gateway)
            [address] = addresses.pop("status")
            page = f"http://{address.removeprefix('tcp:')}/"
            for name, found in addresses.items():
                say(f"  {name} listening on {' and '.join(found)}")
            say(f"live page: {page}")
            reader = QueueReader(self.queue)
            first = reader.end()
            say("bridge: Spark starts (some seconds) and follows the queue")
            bridge = children.start(
                "bridge", "bridge", "--queue", str(self.queue), "--table", str(self.table)
            )
            say(f"clients: {self.messages:,} messages of each protocol")
            clients = self._start_clients(children, addresses)
            try:
                self._wait(reader, first, clients, [gateway, bridge])
            finally:
                self._line.end()
            if keep_running:
                status = self._report(reader.queue_id, first, clients)
                self._stay(page, [gateway, bridge])
                return status
            # The bridge first: it is to see the gateway's last offsets.
            Children.end([bridge])
            Children.end([gateway])
        return self._report(reader.queue_id, first, clients)

    def _report(self, queue_id: str, first: int, clients: dict[str, Child]) -> int:
        counts, twice = self._counted(queue_id, first, clients)
        return report(self.directory, counts, twice, self._shown(queue_id, first))

    def _shown(self, queue_id: str, first: int) -> Iterator[str]:
        from twisted_msgproto.spark.landed_table import LandedTable

        rows = landed_rows(LandedTable(self.table), queue_id, first, "body", *SHOWN)
        yield "one row of each protocol:"
        yield ""
        yield from sample(rows)

    def _stay(self, page: str, servers: list[Child]) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            # Whoever reads the line may press Ctrl-C before the next statement runs.
            click.echo(
                f"\nThe gateway and the bridge go on: {page} is their page. Ctrl-C ends them."
            )
            while True:
                for server in servers:
                    self._must_run(server)
                time.sleep(LOOK_SECONDS)

    def _start_clients(
        self, children: Children, addresses: dict[str, list[str]]
    ) -> dict[str, Child]:
        """The first of a protocol has its name, the others a number behind it (``sabc-1``)."""
        clients = {}
        for name, found in addresses.items():
            for number, address in enumerate(found):
                count = (self.messages + number) // len(found)
                if count:
                    label = f"{name}-{number}".removesuffix("-0")
                    clients[label] = children.start(
                        f"send-{label}",
                        *("send", name, address, "--count", str(count), "--json"),
                        *self.protocols[name].demo_send,
                    )
        return clients

    def _addresses(self, gateway: Child) -> dict[str, list[str]]:
        deadline = time.monotonic() + START_SECONDS
        wanted = {name: protocol.demo_addresses for name, protocol in self.protocols.items()}
        wanted["status"] = 1
        addresses: dict[str, list[str]] = {name: [] for name in wanted}
        while any(len(found) < wanted[name] for name, found in addresses.items()):
            self._must_run(gateway)
            if time.monotonic() > deadline:
                raise failed(gateway, f"does not listen after {START_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)
            for line in gateway.lines():
                match = re.search(r"(\w+) listening on (\S+)$", line)
                if match and match[2] not in addresses.get(match[1], [match[2]]):
                    addresses[match[1]].append(match[2])
        return addresses

    def _wait(
        self, reader: QueueReader, first: int, clients: dict[str, Child], servers: list[Child]
    ) -> None:
        from twisted_msgproto.spark.landed_table import LandedTable

        table = LandedTable(self.table)
        moved: tuple[float, object] = time.monotonic(), None  # the last time, and where all stood
        while True:
            for server in servers:
                self._must_run(server)
            ended = all(client.status is not None for client in clients.values())
            on_disk = reader.end() - first
            landed = landed_since(table, reader.queue_id, first).total()
            self._line.show(
                f"  {time.monotonic() - self._began:5.1f} s: {on_disk:,} of"
                f" {self.messages * len(self.protocols):,} on disk, {landed:,} in the table"
            )
            if ended:
                for client in clients.values():
                    if client.status != 0:
                        raise failed(client, f"ended with status {client.status}")
                if landed >= on_disk:
                    return
            now = time.monotonic()
            if (on_disk, landed) != moved[1]:
                moved = (now, (on_disk, landed))
            elif now - moved[0] > STILL_SECONDS:
                raise DemoFailed(
                    f"nothing has moved for {STILL_SECONDS:.0f} s: {on_disk} on disk,"
                    f" {landed} landed; the logs are in {self.logs}"
                )
            time.sleep(LOOK_SECONDS)

    @staticmethod
    def _must_run(server: Child) -> None:
        if server.status is not None:
            raise failed(server, f"ended with status {server.status}")

    def _counted(
        self, queue_id: str, first: int, clients: dict[str, Child]
    ) -> tuple[dict[str, Count], int]:
        from twisted_msgproto.spark.landed_table import LandedTable

        sent, acknowledged = Counter[str](), Counter[str]()
        for label, client in clients.items():
            told = json.loads(client.lines()[-1])
            name = label.partition("-")[0]
            sent[name] += told["sent"]
            acknowledged[name] += told["acknowledged"]
        click.echo("table: read back by Spark (some seconds to start) and by pyarrow")
        scratch = self.logs / "spark"
        scratch.mkdir(exist_ok=True)
        by_spark = landed_by_spark(self.table, scratch, queue_id, first)
        table = LandedTable(self.table)
        by_pyarrow = landed_since(table, queue_id, first)
        names = dict.fromkeys([*sent, *by_spark, *by_pyarrow])
        each = (sent, acknowledged, by_spark, by_pyarrow)
        counts = {name: Count(*(one[name] for one in each)) for name in names}
        return counts, len(table.duplicates())


def landed_since(table: LandedTable, gateway: str, first: int) -> Counter[str]:
    import pyarrow.compute as pc

    rows = landed_rows(table, gateway, first, "protocol")
    found = pc.value_counts(rows.column("protocol")).to_pylist()
    return Counter({one["values"]: one["counts"] for one in found})


def landed_by_spark(table: Path, scratch: Path, gateway: str, first: int) -> Counter[str]:
    """Raises ConfigurationError when Spark does not start."""
    from twisted_msgproto.spark import read_table
    from twisted_msgproto.spark.session import SCHEDULING_JAVA, spark_session

    # One question: Java's best compiler would take longer than it.
    with spark_session("local[2]", scratch.resolve(), {}, SCHEDULING_JAVA) as spark:
        mine = read_table(spark, table).where(f"gateway = '{gateway}' AND offset >= {first}")
        found = mine.groupBy("protocol").count().collect()
        return Counter({row["protocol"]: row["count"] for row in found})


def failed(child: Child, what: str) -> DemoFailed:
    tail = "".join(f"\n  {line}" for line in child.lines()[-TAIL_LINES:])
    return DemoFailed(f"the {child.name} process {what}; its log {child.log} ends:{tail}")


def reading(table: Path) -> str:
    """A program that reads a table by a query of delta-rs, which has no threads of Arrow.

    Those would call delta-rs's files, which are Python's, and now and then abort when the
    interpreter ends before they do.
    """
    return (
        "from deltalake import DeltaTable, QueryBuilder; "
        f"print(QueryBuilder().register('t', DeltaTable({str(table)!r}))"
        ".execute('SELECT protocol, kind, count(*) FROM t GROUP BY protocol, kind').read_all())"
    )


def report(directory: Path, counts: dict[str, Count], twice: int, shown: Iterable[str] = ()) -> int:
    columns = f"{'protocol':<12}{'sent':>12}{'acknowledged':>16}{'landed':>12}"
    rule = "─" * len(columns)
    print(f"\nread back from the table:\n\n{columns}\n{rule}")
    for name, count in counts.items():
        print(f"{name:<12}{count.sent:>12,}{count.acknowledged:>16,}{count.landed:>12,}")
    print(rule)
    sent = sum(count.sent for count in counts.values())
    acknowledged = sum(count.acknowledged for count in counts.values())
    landed = sum(count.landed for count in counts.values())
    print(f"{'total':<12}{sent:>12,}{acknowledged:>16,}{landed:>12,}\n")
    agrees = bool(counts) and all(count.agrees for count in counts.values()) and twice == 0
    if agrees:
        print(f"sent = acknowledged = landed: {sent:,}, each exactly once")
        print("(by Spark and by pyarrow, which read the table on their own)")
    else:
        print(f"the counts do NOT agree; {twice} offsets stand in the table more than once")
    for line in ("", *shown):
        print(line)
    table = directory / "table"
    print(
        f"\ntable: {table} (Delta), logs: {directory / 'logs'}\n"
        "query it with Spark (no package of Delta's is needed):\n"
        "  from twisted_msgproto.spark import register; register(spark)\n"
        f'  spark.read.format("msgproto-table").load("{table}")'
        '.groupBy("protocol", "kind").count().show()\n'
        "or without:\n"
        f"  {sys.executable} -c {shlex.quote(reading(table))}"
    )
    return 0 if agrees else FAILED


# ── a few rows of the table ───────────────────────────────────────────────────────────────────────

SHOWN: Final = ("protocol", "kind", "message_id", "destination", "client_id", "received_at")

BODY_MAX: Final = 36

CELL_MAX: Final = 26


def landed_rows(table: LandedTable, gateway: str, first: int, *columns: str) -> pa.Table:
    import pyarrow.compute as pc

    rows = table.read(["gateway", "offset", *columns])
    mine = pc.and_(
        pc.equal(rows.column("gateway"), gateway), pc.greater_equal(rows.column("offset"), first)
    )
    return rows.filter(mine).sort_by("offset")


def sample(rows: pa.Table) -> Iterator[str]:
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(set(rows.column("protocol").to_pylist())):
        place = rows.column("protocol").index(name).as_py()
        [found[name]] = rows.slice(place, 1).to_pylist()
    yield from columns([(*SHOWN, "body"), *(_cells(row) for row in found.values())])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    texts = [_cell(row[name]) for name in SHOWN]
    body = row["body"]
    shown = "" if body is None else text_of(body)
    return (*texts, _cut("(binary)" if shown is None else shown, BODY_MAX))


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime("%H:%M:%S.%f")[:-3]
    return "–" if value is None else _cut(str(value), CELL_MAX)


def _cut(text: str, most: int) -> str:
    return escaped(text if len(text) <= most else f"{text[: most - 1]}…")


# ── processes ─────────────────────────────────────────────────────────────────────────────────────

# None of them is left behind.  Each child leads a process group of its own: Ctrl-C on the terminal
# reaches only the parent, which ends its children in the right order; what a child has started ends
# with it.


class Child:
    """``python -m twisted_msgproto …`` with all it says in a file."""

    def __init__(self, name: str, words: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        # Run from a working tree, the children find the package where we found it.
        package_root = str(Path(__file__).parent.parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [package_root, os.environ.get("PYTHONPATH")])
        )
        with open(log, "wb", opener=private) as output:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-m", "twisted_msgproto", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        return self.process.poll()

    def lines(self) -> list[str]:
        text = self.log.read_text(errors="backslashreplace")
        return text[: text.rfind("\n") + 1].splitlines()

    def send_signal(self, number: int) -> None:
        """Nothing happens if the group is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def terminate(self) -> None:
        if self.status is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        """None if it still runs after ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None


class Children:
    """While the children are ended, further signals wait: a second Ctrl-C leaves nothing behind."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.all: list[Child] = []

    def start(self, name: str, *words: str) -> Child:
        with signals_held():  # or an interrupt might leave a child that nobody knows
            child = Child(name, words, self.logs / f"{name}.log")
            self.all.append(child)
        return child

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *error: object) -> None:
        with handled(signal.SIG_IGN):
            self.end(self.all)

    @staticmethod
    def end(children: Sequence[Child], seconds: float = END_SECONDS) -> None:
        for child in children:
            child.terminate()
        deadline = time.monotonic() + seconds
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
        for child in children:
            # Also when the child itself has ended: what it started may outlive it.
            child.send_signal(signal.SIGKILL)
            child.process.wait()


@contextlib.contextmanager
def handled(action: Any) -> Iterator[None]:
    """Let signals that end a program have this handler during the block."""
    before = {number: signal.signal(number, action) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Note signals, and raise KeyboardInterrupt at the end; a child would inherit a mask."""
    came: list[int] = []
    with handled(lambda number, frame: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt
