"""What has landed is synced before the queue is told to forget it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.spark.conftest import identity
from tests.spark.test_bridge import plan
from tests.spark.test_offsets import at
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark.bridge import Bridge, BridgeOptions, Ending
from twisted_msgproto.spark.durable import BatchSync, sync_delta, sync_files
from twisted_msgproto.spark.mend import Mark, read_mark
from twisted_msgproto.spark.report import Batch


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The paths which were synced, in order, as they stand below ``tmp_path``."""
    paths: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        paths.append(os.path.relpath(path, tmp_path))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    return paths


def land(table: Path, batch: int, *names: str, compact: bool = False, age: int = 0) -> None:
    """One batch as Spark leaves it: files, the sink's log, the checkpoint."""
    for directory in ("_spark_metadata", "_checkpoint/offsets", "_checkpoint/commits"):
        (table / directory).mkdir(parents=True, exist_ok=True)
    lines = ["v1"]
    for name in names:
        (table / name).touch()
        uri = (table / name).as_uri()
        lines.append(json.dumps({"path": uri, "action": "add", "modificationTime": batch - age}))
    log = f"{batch}.compact" if compact else str(batch)
    (table / "_spark_metadata" / log).write_text("\n".join(lines))
    for kind in ("offsets", "commits"):
        (table / "_checkpoint" / kind / str(batch)).write_text("v1\n{}\n{}")
    (table / "_checkpoint" / "metadata").write_text("{}")


def test_files_are_synced_with_their_directories(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "d").mkdir()
    for name in ("a", "b"):
        (tmp_path / "d" / name).touch()
    assert sync_files([tmp_path / "d" / name for name in ("a", "gone", "b")]) == 2
    assert synced == ["d/a", "d/b", "d"]


def test_a_batch_is_synced_with_all_that_names_it(tmp_path: Path, synced: list[str]) -> None:
    table = tmp_path / "t"
    land(table, 0, "f0")
    land(table, 1, "f1", "f2")
    sync = BatchSync(table, table / "_checkpoint")
    sync.reach(1)
    assert set(synced) == {
        "t/f0",
        "t/f1",
        "t/f2",
        "t",
        "t/_spark_metadata",
        "t/_spark_metadata/0",
        "t/_spark_metadata/1",
        "t/_checkpoint",
        "t/_checkpoint/metadata",
        "t/_checkpoint/offsets",
        "t/_checkpoint/offsets/0",
        "t/_checkpoint/offsets/1",
        "t/_checkpoint/commits",
        "t/_checkpoint/commits/0",
        "t/_checkpoint/commits/1",
    }
    synced.clear()
    land(table, 2, "f3")
    sync.reach(2)
    assert "t/f3" in synced
    assert not {"t/f0", "t/f1", "t/f2", "t/_spark_metadata/1"} & set(synced)


def test_of_a_compacted_log_only_what_is_new_is_synced(tmp_path: Path, synced: list[str]) -> None:
    table = tmp_path / "t"
    land(table, 8, "f8")
    sync = BatchSync(table, None)
    sync._batch = 7
    sync.reach(8)
    synced.clear()
    (table / "f0").touch()
    land(table, 9, "f9", compact=True)
    log = table / "_spark_metadata" / "9.compact"
    old = json.dumps({"path": (table / "f0").as_uri(), "action": "add", "modificationTime": 0})
    log.write_text(log.read_text() + "\n" + old)
    sync.reach(9)
    assert {"t/f9", "t/_spark_metadata/9.compact"} <= set(synced)
    assert "t/f0" not in synced


def test_a_table_elsewhere_needs_no_syncing(synced: list[str]) -> None:
    BatchSync(None, None).reach(5)
    assert synced == []


def test_a_delta_commit_is_synced_with_what_it_adds(tmp_path: Path, synced: list[str]) -> None:
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    (tmp_path / "t" / "part 1").touch()
    lines = [{"commitInfo": {}}, {"add": {"path": "part%201"}}]
    (log / f"{7:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    sync_delta(tmp_path / "t", 7)
    name = f"t/_delta_log/{7:020d}.json"
    assert set(synced) == {"t/part 1", "t", name, "t/_delta_log"}
    synced.clear()
    BatchSync(tmp_path / "t", None).reach(3)
    assert synced == []


def test_the_low_water_mark_follows_the_last_sync(
    queue: Path, tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    options = BridgeOptions(queues=[str(queue)], table=str(table))
    bridge = Bridge(options, Ending(), lambda line: None)
    name = identity(queue)
    with bridge.prepared():
        bridge._publish()
        plan_over = {name: at(700)}
        land(table, 0, "f0")
        bridge.progress.add(Batch(0, 700, 0.1, 1.0), plan_over, {name: at(0)})
        synced.clear()
        commit = QueueReader.commit

        def recorded(self: QueueReader, consumer: str, offset: int) -> None:
            synced.append(f"commit {offset}")
            commit(self, consumer, offset)

        monkeypatch.setattr(QueueReader, "commit", recorded)
        bridge._publish()
        bridge._publish()
    told = synced.index("commit 700")
    assert {"table/f0", "table/_spark_metadata/0", "table/_checkpoint/offsets/0"} <= set(
        synced[:told]
    )
    assert not [path for path in synced[told:] if path.startswith("table/f")]
    assert synced.count("commit 700") == 1
    mark = read_mark(table / "_checkpoint")
    assert mark is not None and mark == Mark(0, mark.boot)


def test_a_mark_is_left_before_the_first_batch(queue: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    bridge = Bridge(BridgeOptions(queues=[str(queue)], table=str(table)), Ending(), print)
    with bridge.prepared():
        mark = read_mark(table / "_checkpoint")
    assert mark is not None and mark.batch == -1


def test_after_a_power_cut_the_bridge_says_what_it_takes_back(
    queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    said: list[str] = []
    options = BridgeOptions(queues=[str(queue)], table=str(table))
    with Bridge(options, Ending(), said.append).prepared():
        pass
    plan(table, identity(queue), 500)
    monkeypatch.setattr("twisted_msgproto.spark.mend.boot_id", lambda: "another")
    bridge = Bridge(options, Ending(), said.append)
    with bridge.prepared():
        assert bridge.progress.landed == {identity(queue): at(0)}
    assert said == [
        "bridge: the machine was started anew: batches 0 to 0 may not be durable and are landed "
        "again"
    ]
