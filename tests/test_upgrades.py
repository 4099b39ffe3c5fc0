"""What earlier versions left on disk is read, verified, landed and continued by this one.

The data and the program that made it are in ``tests/data/upgrades``; ``docs/upgrades.md`` is the
promise that these tests keep.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tools.loops import drain
from tests.tools.processes import Launcher
from tests.tools.queues import batch, put
from twisted_msgproto.cli import main
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.queue.format import FORMAT_VERSION
from twisted_msgproto.spark.table import LandedTable
from twisted_msgproto.table.log import Table

DATA = Path(__file__).parent / "data" / "upgrades"
RELEASES: dict[str, dict[str, Any]] = tomllib.loads((DATA / "releases.toml").read_text())
WITH_BROKER = [name for name, release in RELEASES.items() if release["broker"]]
DATA_OCTETS_MAX = 1 << 20
"""What is kept of a release is small: every clone has it for good."""


class Left:
    """A copy of what one release left on disk, and what it had acknowledged."""

    def __init__(self, name: str, directory: Path) -> None:
        shutil.copytree(DATA / name, directory, dirs_exist_ok=True)
        self.directory = directory
        self.queue = directory / "queue"
        self.table = directory / "table"
        expected = json.loads((directory / "expected.json").read_text())
        self.said = expected["queue"]
        self.broker = expected.get("broker")
        self.release = RELEASES[name]
        self.rows: list[dict[str, Any]] = self.said["rows"]
        """Every row that was ever acknowledged."""

    def held(self) -> list[dict[str, Any]]:
        """The rows that the queue still has."""
        return self.rows[self.said["begin"] :]


@pytest.fixture(params=RELEASES)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Left:
    return Left(request.param, tmp_path)


def rows_of(queue: Path) -> list[dict[str, Any]]:
    """What the queue holds, by today's reader, as ``expected.json`` writes it."""
    reader = QueueReader(queue)
    return [
        as_written(row)
        for rows in reader.read(reader.begin(), reader.end())
        for row in rows.to_pylist()
    ]


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    row = {name: value for name, value in row.items() if name not in ("gateway", "day")}
    row["received_at"] = round(row["received_at"].timestamp() * 1e6)
    row["fields"] = None if row["fields"] is None else dict(row["fields"])
    row["body"] = base64.b64encode(row["body"]).decode()
    row["attachments"] = row["attachments"] and [
        base64.b64encode(octets).decode() for octets in row["attachments"]
    ]
    return row


def landed(table: Path) -> list[dict[str, Any]]:
    """What the table holds, in the order of the offsets."""
    return [
        as_written(row)
        for row in LandedTable(table).read().sort_by([("offset", "ascending")]).to_pylist()
    ]


# -- the queue ------------------------------------------------------------------------------------


def test_an_older_queue_is_read_as_it_is(left: Left) -> None:
    reader = QueueReader(left.queue)
    assert (reader.queue_id, reader.begin()) == (left.said["id"], left.said["begin"])
    assert 0 < left.said["begin"] <= left.said["landed"] < reader.end() == len(left.rows)
    assert rows_of(left.queue) == left.held()


def test_an_older_queue_is_verified(left: Left, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in left.queue.rglob("*") if path.is_file()}
    status = main(["queue", "verify", str(left.queue)])
    assert status == left.release["verify"], capsys.readouterr()
    assert before == {path: path.read_bytes() for path in before}, "verify changes nothing"


def test_an_older_queue_is_written_on_and_keeps_all_that_it_had(left: Left) -> None:
    writer = QueueWriter(left.queue)
    assert put(writer, batch(0, 3)) == [None]
    writer.close()
    rows = rows_of(left.queue)
    assert rows[:-3] == left.held()
    assert [row["offset"] for row in rows[-3:]] == [len(left.rows) + n for n in range(3)]
    assert main(["queue", "verify", str(left.queue)]) == 0


# -- the table ------------------------------------------------------------------------------------


def test_the_bridge_goes_on_in_an_older_table_exactly_once(left: Left) -> None:
    assert landed(left.table) == left.rows[: left.said["landed"]]
    writer = QueueWriter(left.queue)  # an upgraded gateway was there before the bridge
    assert put(writer, batch(0, 3)) == [None]
    writer.close()
    loop = drain(left.table, [left.queue])
    assert loop.progress.rows == len(left.rows) + 3 - left.said["landed"]
    rows = landed(left.table)
    assert rows[:-3] == left.rows
    assert [row["offset"] for row in rows] == list(range(len(left.rows) + 3))
    assert drain(left.table, [left.queue]).progress.rows == 0


def test_the_bridge_may_be_upgraded_before_the_gateway(left: Left) -> None:
    drain(left.table, [left.queue])
    assert landed(left.table) == left.rows
    writer = QueueWriter(left.queue)
    assert put(writer, batch(0)) == [None]
    writer.close()
    assert drain(left.table, [left.queue]).progress.rows == 1


def test_an_older_table_is_looked_after(left: Left, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(left.table)
    assert main(["table", "verify", where, "--queue", str(left.queue), "--all-columns"]) == 0
    assert main(["table", "compact", where]) == 0
    assert main(["table", "rewind", where, "--queue", str(left.queue)]) == 0, capsys.readouterr()
    drain(left.table, [left.queue])
    assert landed(left.table) == left.rows
    assert Table.open(left.table).landed()[left.said["id"]].offset == len(left.rows)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_a_real_bridge_goes_on_in_the_oldest_table(tmp_path: Path, launch: Launcher) -> None:
    """The short form lands in each older table without Java: see the two tests of bridges above."""
    left = Left(next(iter(RELEASES)), tmp_path / "left")
    bridge = launch("bridge", "--queue", left.queue, "--table", left.table, "--once")
    assert bridge.wait(seconds=600.0) == 0, bridge.output
    assert landed(left.table) == left.rows


# -- the broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_BROKER)
def test_the_queues_of_an_older_broker_are_made_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = Left(name, tmp_path)
    queue = str(tmp_path / "broker-queue")
    assert main(["queue", "verify", queue]) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["broker", "ls", queue, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["queues"]
    assert {(one["space"], one["name"], one["waiting"]) for one in shown} == {
        (one["space"], queue_name, len(one["bodies"]))
        for queue_name, one in left.broker["queues"].items()
    }
    for queue_name, one in left.broker["queues"].items():
        words = ["broker", "peek", queue, queue_name, "--count", "100", "--json"]
        assert main([*words, "--space", one["space"]]) == 0
        messages = json.loads(capsys.readouterr().out)["messages"]
        assert [message["body"] for message in messages] == one["bodies"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_BROKER)
def test_a_gateway_delivers_what_waited_in_an_older_broker(
    name: str, tmp_path: Path, launch: Launcher
) -> None:
    """Everything that waited comes; only what was settled in the last second might come again."""
    left = Left(name, launch.directory)
    gateway = launch("gateway", "--config", "broker.toml")
    for protocol, queue_name, destination in (
        ("micromsg2", "jobs", "jobs"),
        ("mtl", "bills", "queue/bills"),
    ):
        address = gateway.address(protocol)
        words = ("recv", protocol, address, "--destination", destination, "--until-empty")
        done = launch.run(*words)
        assert done.returncode == 0, done.stderr
        came = [line.partition("\t")[2] for line in done.stdout.splitlines()]
        assert came == left.broker["queues"][queue_name]["bodies"]
    gateway.end()
    assert QueueReader(launch.directory / "broker-queue").end() == left.broker["rows"]


# -- configuration --------------------------------------------------------------------------------


def test_an_older_gateway_toml_passes_check(
    left: Left, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(left.directory)
    for file in left.directory.glob("*.toml"):
        assert main(["check", file.name, "--file-only"]) == 0, capsys.readouterr()


# -- the data -------------------------------------------------------------------------------------


def test_every_format_of_a_queue_is_kept() -> None:
    """Whoever raises FORMAT_VERSION keeps a queue of the version before, and one of the new one."""
    formats: Counter[int] = Counter()
    for name, release in RELEASES.items():
        said = (DATA / name / "queue" / "identity").read_text()
        match = re.search(r"\bmsgproto-queue (\d+) ", said)
        assert match and int(match[1]) == release["format"], said
        formats[release["format"]] += 1
    assert set(formats) == set(range(1, FORMAT_VERSION + 1))


def test_what_is_kept_is_small_and_names_no_machine() -> None:
    octets = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    assert octets < DATA_OCTETS_MAX
    for log in DATA.rglob("_delta_log/*.json"):
        assert '"host":"a-machine"' in log.read_text().replace(" ", ""), log
