"""A raw table and typed ones of one bridge, after everything at once: each row is accounted for."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.spark.conftest import damage_record, identity, messages, write
from tests.spark.test_bridge import java_machine
from tests.tools.processes import Launched, Launcher, descendants, environment
from tests.tools.tables import Gateway, check_sum
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.proof import GatewayReport

LONG_SECONDS = 600.0
DAY = 86_400_000_000
LOOPBACK = "tcp:0:interface=127.0.0.1"

GATEWAY = f"""
[queue]
directory = "spool"
[lumberjack]
endpoint = "{LOOPBACK}"
[sabc]
endpoint = "{LOOPBACK}"
"""

BRIDGE = 'queue = ["spool"]\nmaster = "local[2]"\ntrigger = "200ms"\n[[table]]\nlocation = "raw"\n'

TYPED = """
[[table]]
location = "{name}"
where = {{ protocol = "lumberjack" }}

[table.columns]
key = {{ type = "string" }}
n = {{ type = "long", required = true }}
"""

MORE = 'half = { path = "deep.half", type = "double" }\n'

TABLES = ("raw", "access", "later")


def line(key: str, number: int) -> str:
    """A body; every tenth has no number."""
    wrong = number % 10 == 0
    return json.dumps({"key": key, "n": "n/a" if wrong else number, "deep": {"half": number / 2}})


class Senders:
    """Both protocols, again and again, each message with a key of its own."""

    def __init__(self, launch: Launcher, gateway: Launched) -> None:
        self.acknowledged: dict[str, str] = {}
        self._launch = launch
        self._addresses = {name: gateway.address(name) for name in ("lumberjack", "sabc")}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=[name]) for name in self._addresses
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, protocol: str) -> None:
        first = 0
        while not self._stop.wait(0.5):
            keys = [f"{protocol}-{number}" for number in range(first, first + 200)]
            lines = [line(key, int(key.rpartition("-")[2])) for key in keys]
            words = ("send", protocol, self._addresses[protocol])
            ended = self._launch.run(*words, stdin="\n".join(lines))
            assert ended.returncode == 0, ended.stderr
            self.acknowledged |= dict.fromkeys(keys, protocol)
            first += 200

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def rows_of(table: Path, *columns: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=[*columns]).to_pylist()
    )
    return found


def places(table: Path, keys: set[str]) -> set[str]:
    """Where the rows with these keys are."""
    raw = table.name == "raw"
    rows = rows_of(table, "gateway", "offset", "body" if raw else "key")
    return {
        f"{row['gateway']} {row['offset']}"
        for row in rows
        if (key_of(row["body"]) if raw else row["key"]) in keys
    }


def key_of(body: bytes) -> str | None:
    return None if body == b"no JSON" else json.loads(body)["key"]


def account(table: Path, queue: Path) -> GatewayReport:
    """Position − begin = rows + expired + damaged + erased + left out, exactly."""
    found = check_sum(Table.open(table), Gateway.at(queue))
    assert not found.dropped
    return found


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
def test_every_row_is_accounted_for_after_everything_at_once(
    launch: Launcher, tmp_path: Path
) -> None:
    """Two days of damaged and bad rows, then senders, a kill of Java, which ends all tables with a
    line, and of a bridge, growth, erasures, compaction, expiry, and a table that comes later.
    The last two bridges do without the Java machine.
    """
    queue = tmp_path / "spool"
    words = ("bridge", "--config", "bridge.toml")
    today = int(time.time() * 1e6)
    for age in (3, 2):
        first = 100 * (3 - age)
        old = [line(f"old-{n}", n) for n in range(first, first + 100)]
        bodies = ["no JSON" if n % 25 == 3 else body for n, body in enumerate(old)]
        encoded = [body.encode() for body in bodies]
        for at in range(0, 100, 20):  # groups of their own: one of them is damaged
            part = encoded[at : at + 20]
            write(queue, messages(first + at, 20, received_at=today - age * DAY, body=part))
    damage_record(queue, line("old-145", 145).encode())
    (tmp_path / "gateway.toml").write_text(GATEWAY)
    gateway = launch("gateway", "--config", "gateway.toml")
    with closing(Senders(launch, gateway)) as senders:
        file = tmp_path / "bridge.toml"
        file.write_text(BRIDGE + TYPED.format(name="access"))
        bridge = launch(*words)
        for name in ("access", "raw"):
            bridge.line(f"{name}: batch", nth=2, seconds=LONG_SECONDS)
        [java] = [pid for pid in descendants(bridge.pid) if java_machine(pid)]
        os.kill(java, signal.SIGKILL)
        assert bridge.wait(seconds=LONG_SECONDS) == 2, bridge.output
        assert "Spark's Java machine" in bridge.lines[-1] and "Traceback" not in bridge.output

        file.write_text(BRIDGE + TYPED.format(name="access") + MORE)
        bridge = launch(*words)
        bridge.line("access: batch", nth=2, seconds=LONG_SECONDS)
        erased = {"lumberjack-11", "lumberjack-20", "sabc-7", "old-107", "old-170"}
        while len(wanted := places(tmp_path / "raw", erased)) < len(erased):
            time.sleep(0.1)
        while places(tmp_path / "access", erased) != wanted - places(tmp_path / "raw", {"sabc-7"}):
            time.sleep(0.1)
        (tmp_path / "offsets").write_text("\n".join(sorted(wanted)))
        for name in ("raw", "access"):
            run(launch, "erase", name, "--offsets", "offsets", "--purge")
            run(launch, "compact", name)
        bridge.line("access: batch", nth=6, seconds=LONG_SECONDS)
        bridge.kill()

        before = time.strftime("%Y-%m-%d", time.gmtime(today / 1e6 - 2 * 86_400))
        run(launch, "expire", "raw", "--before", before)
        file.write_text(file.read_text() + TYPED.format(name="later") + MORE)
        derived = run(launch, "derive", "raw", "later", "--config", "bridge.toml")
        assert "a bridge goes on with it" in derived
        bridge = launch("--here", *words, module="tests.tools.dying")
        bridge.line("later: batch", nth=2, seconds=LONG_SECONDS)
    gateway.end()
    bridge.end(seconds=LONG_SECONDS)
    drained = launch("--here", *words, "--once", module="tests.tools.dying")
    assert drained.wait(seconds=LONG_SECONDS) == 0, drained.output

    found = {name: account(tmp_path / name, queue) for name in TABLES}
    for name in TABLES:
        run(launch, "verify", name, "--queue", "spool")
    assert {each.landed for each in found.values()} == {
        QueueReader(queue).place(QueueReader(queue).end())
    }
    assert found["raw"].expired_rows == found["later"].expired_rows == 100
    assert [each.damaged_rows for each in found.values()] == [20, 20, 20]
    sabc = Counter(senders.acknowledged.values())["sabc"]
    assert found["access"].left_out == sabc and found["later"].left_out == sabc - 1

    check_keys(tmp_path, senders.acknowledged, erased)


def run(launch: Launcher, action: str, *words: str) -> str:
    ended = launch.run("table", action, *words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def check_keys(directory: Path, acknowledged: dict[str, str], erased: set[str]) -> None:
    """Every key that was acknowledged is there once, with its values, unless it was erased."""
    raw = Counter(key_of(row["body"]) for row in rows_of(directory / "raw", "body"))
    del raw[None]
    kept = {f"old-{n}" for n in range(100, 200) if n % 25 != 3 and not 140 <= n < 160}
    assert raw == dict.fromkeys((acknowledged.keys() | kept) - erased, 1)
    sent = {key for key, protocol in acknowledged.items() if protocol == "lumberjack"}
    older = {f"old-{n}" for n in range(100) if n % 25 != 3}
    for name, keys in (("later", sent | kept), ("access", sent | kept | older)):
        rows = rows_of(directory / name, "key", "n", "half", "_error", "_body")
        assert Counter(row["key"] for row in rows if row["key"]) == dict.fromkeys(keys - erased, 1)
        assert sum(row["key"] is None for row in rows) == (3 if name == "later" else 7)
        for row in rows:
            if row["key"] is None:
                assert (row["_error"], row["_body"]) == ("the body is not JSON", b"no JSON")
                continue
            number = int(row["key"].rpartition("-")[2])
            wrong = number % 10 == 0
            assert row["n"] == (None if wrong else number)
            assert row["_body"] == (line(row["key"], number).encode() if wrong else None)
            assert row["half"] in ((number / 2,) if name == "later" else (number / 2, None))


# -- kills ----------------------------------------------------------------------------------------

DOUBTFUL = """
from pyspark.sql import functions as sf

def numbers(messages):
    number = sf.expr("cast(get_json_object(cast(body AS string), '$.n') AS int)")
    return messages.select("gateway", "offset", "received_at", number.alias("n"))
"""

CLEAN = """
[[table]]
location = "clean"
transform = "doubtful:numbers"
dead_letters = "dead"
"""

KILLS = 30

ROWS = 40


class Killing:
    """What is killed at a random moment of its work, and what has to be there in the end."""

    def __init__(self, launch: Launcher, directory: Path, seed: int) -> None:
        self.queue = directory / "spool"
        self.kills: Counter[str] = Counter()
        self.bad: set[int] = set()
        self.erased: set[int] = set()
        self._launch = launch
        self._directory = directory
        self._random = random.Random(seed)
        self._took: dict[str, float] = {}
        (directory / "doubtful.py").write_text(DOUBTFUL)
        self.put(0)
        self.configure(0)
        self.drain()

    @property
    def rows(self) -> set[int]:
        return set(range(QueueReader(self.queue).end()))

    def put(self, number: int) -> None:
        """Each fourth time there is one for which the function raises."""
        first = number * ROWS
        odd = first + self._random.randrange(ROWS) if number % 4 == 1 else -1
        self.bad |= {odd} - {-1}
        values = [b"1e99" if n == odd else b"%d" % n for n in range(first, first + ROWS)]
        body = [b'{"n":%s,"deep":{"half":7}}' % value for value in values]
        write(self.queue, messages(first, ROWS, body=body))

    def configure(self, columns: int, *more: str) -> None:
        grown = "".join(f'more_{n} = {{ path = "n", type = "string" }}\n' for n in range(columns))
        later = "".join(TYPED.format(name=name) for name in more)
        text = BRIDGE + TYPED.format(name="access") + grown + CLEAN + later
        (self._directory / "bridge.toml").write_text(text)

    def bridge(self, *options: str) -> Launched:
        words = ("bridge", "--config", "bridge.toml", *options)
        return self._launch(*words, env=environment(pandas=True))

    def drain(self) -> None:
        drained = self.bridge("--once")
        assert drained.wait(seconds=LONG_SECONDS) == 0, drained.output

    def kill(self, what: str, process: Launched, seconds: float) -> None:
        """Kill a process within this time, unless it has ended before."""
        time.sleep(self._random.uniform(0, seconds))
        self.kills[what] += process.process.poll() is None
        process.kill()

    def kill_and_run(self, what: str, *words: str) -> None:
        """Kill a command on its way, if it is known how long that is, and run it to its end."""
        if what in self._took:
            self.kill(what, self._launch("table", what, *words), self._took[what])
        began = time.monotonic()
        run(self._launch, what, *words)
        self._took[what] = time.monotonic() - began

    def erase_one(self) -> None:
        self.erased.add(self._random.choice(sorted(self.rows - self.erased)))
        lines = "\n".join(f"{identity(self.queue)} {one}" for one in sorted(self.erased))
        (self._directory / "offsets").write_text(lines)
        for name in ("raw", "access"):
            self.kill_and_run("erase", name, "--offsets", "offsets", "--purge")

    def check(self, columns: int, *more: str) -> None:
        left = self.rows - self.erased
        wanted = {"raw": left, "access": left, "clean": self.rows - self.bad, "dead": self.bad}
        for name, offsets in {**wanted, **dict.fromkeys(more, left)}.items():
            rows = rows_of(self._directory / name, "offset")
            assert Counter(row["offset"] for row in rows) == Counter(offsets), name
            run(self._launch, "verify", name)
            if name not in ("clean", "dead"):
                account(self._directory / name, self.queue)
        names = deltalake.DeltaTable(str(self._directory / "access")).schema().fields
        assert columns == sum(field.name.startswith("more_") for field in names)
        print(len(self.rows), "rows,", len(self.bad), "dead letters,", dict(self.kills))


@pytest.fixture
def killing(launch: Launcher, tmp_path: Path) -> Killing:
    return Killing(launch, tmp_path, seed=1)


@pytest.mark.long
@pytest.mark.xdist_group("growth")
@pytest.mark.timeout(7200)
def test_a_bridge_is_killed_while_its_tables_grow_and_while_it_lands_dead_letters(
    killing: Killing,
) -> None:
    """Thirty times each: while it starts, and while it lands, looks for rows, lands the dead."""
    number = 0
    while len(killing.kills) < 2 or min(killing.kills.values()) < KILLS:
        number += 1
        killing.put(number)
        killing.configure(number)
        killing.kill("growth", killing.bridge(), 2.0)
        running = killing.bridge()
        running.line("clean: bridge running", seconds=LONG_SECONDS)
        killing.kill("dead letters", running, 12.0)
    killing.drain()
    killing.check(number)


@pytest.mark.long
@pytest.mark.xdist_group("derive")
@pytest.mark.timeout(7200)
def test_derive_and_erase_are_killed_on_their_way_and_a_bridge_goes_on(killing: Killing) -> None:
    """Thirty times each; each time a table is made anew, and a row more is erased."""
    for number in range(1, 10):
        killing.put(number)
    killing.drain()
    made = ""
    while len(killing.kills) < 2 or min(killing.kills.values()) < KILLS:
        made = f"later-{len(killing.erased)}"
        killing.erase_one()
        killing.configure(0, made)
        killing.kill_and_run("derive", "raw", made, "--config", "bridge.toml")
        killing.check(0, made)
    killing.put(10)
    killing.drain()
    killing.check(0, made)
