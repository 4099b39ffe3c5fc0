"""The bridge process: lands, ends, starts again, refuses; killed at any moment it stays exact."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.table import TableFeatures

from tests.spark.conftest import damage_record, identity, messages, write
from tests.tools import java_classes
from tests.tools.loops import landed_offsets, loop_over, places
from tests.tools.processes import (
    Launched,
    Launcher,
    children,
    command_of,
    contained,
    descendants,
    environment,
    wait_gone,
)
from tests.tools.s3 import Store
from twisted_msgproto import cli
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.queue.consumers import read_statuses
from twisted_msgproto.table.delta_table import Table

START_SECONDS = 600.0
"""How long Spark may take to start on a machine with much else to do."""


def bridge(launch: Launcher, queue: Path, *options: str | Path) -> Launched:
    words = ("bridge", "--queue", queue, "--table", "table", "--master", "local[2]", *options)
    return launch(*words)


def here(launch: Launcher, queue: Path, *options: str | Path) -> Launched:
    """A bridge which is its own worker: all but Java, which costs several seconds a start."""
    words = ("--here", "bridge", "--queue", queue, "--table", "table", *options)
    return launch(*words, module="tests.tools.dying")


def once(
    launch: Launcher, queue: Path, *options: str | Path, start: Callable[..., Launched] = bridge
) -> str:
    """Drains the queue; the whole output."""
    process = start(launch, queue, "--once", *options)
    status = process.wait(seconds=START_SECONDS)
    assert status == 0, process.output
    return process.output


def refused(launch: Launcher, queue: Path | str, *options: str | Path) -> str:
    """The one line of a bridge which does not run."""
    ended = launch.run("bridge", "--queue", queue, "--table", "table", *options)
    assert ended.returncode == 2
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    return lines[0]


def _script_ran(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run to its end, and well, a script that tries what a line of the bridge advises."""
    ended = subprocess.run(
        command,
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def consumer(table: Path) -> str:
    return f"spark-{Table.open(table).table_id.replace('-', '')[:8]}"


# -- refused before Spark starts ------------------------------------------------------------------


def test_what_cannot_be_landed_is_one_line_and_no_table_is_made(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    (tmp_path / "again").symlink_to(queue)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
    for place, options, text in (
        (tmp_path / "none", [], "no queue in"),
        (nobody, [], nobody),
        (queue, ["--queue", str(tmp_path / "again")], "are the same queue"),
        (queue, ["--master", "sc://host"], "not 'sc://host'"),
    ):
        assert text in refused(launch, place, *options)
        assert not (tmp_path / "table").exists()


def test_a_file_below_the_table_that_cannot_be_written_is_one_line(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    """FC-06: another user has run the bridge before, or the disk is full."""
    in_its_place = tmp_path / "table" / "_bridge" / "c" / "log4j2.properties"
    in_its_place.mkdir(parents=True)
    line = refused(launch, queue, "--consumer", "c")
    assert line == f"msgproto bridge: cannot use {in_its_place}: Is a directory"


@pytest.mark.parametrize("options", ["--consumer c", "--partition-by protocol,day"])
def test_a_start_that_is_refused_says_what_it_has_mended(
    launch: Launcher, queue: Path, tmp_path: Path, options: str
) -> None:
    loop_over(tmp_path / "table", [queue]).run()
    log = tmp_path / "table" / "_delta_log" / f"{1:020}.json"
    log.write_bytes(log.read_bytes()[:-100])
    (queue / "bridges").mkdir(exist_ok=True)
    with open(queue / "bridges" / "c.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        words = ("bridge", "--queue", queue, "--table", "table", *options.split())
        ended = launch.run(*words)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert "bridge: version 1 is empty now: a loss of power has torn it" in ended.stdout


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--trigger", "soon"], "--trigger is a duration"),
        (["--consumer", "a/b"], "--consumer is 1 to 64"),
        (["--max-rows", "0"], "--max-rows is a whole number from 1"),
        (["--conf", "x=1"], "--conf takes spark.KEY=VALUE, not 'x'"),
        (["--storage", "x"], "'--storage': KEY=VALUE is expected, not 'x'"),
        *(
            (["--partition-by", columns], "--partition-by is day or protocol,day")
            for columns in ("hour", "day,day", "protocol", "")
        ),
        (
            ["--queue", "grpc://h:1", "--queue", "grpc://h:1"],
            "grpc://h:1 and grpc://h:1 are the same queue",
        ),
        *(
            (
                ["--master", master],
                f"(local[2], spark://HOST:PORT, yarn, k8s://…), not {master!r}",
            )
            for master in ("local[x]", "spark://host", "mesos://h:1", "")
        ),
        (["--every", "1h"], "--every goes with --once"),
        (["--once", "--every", "0"], "--every goes with --once"),
        (["--table", "t\udcff"], "--table 't\\udcff' is not UTF-8"),
        (["--queue", "q\udcff"], "--queue 'q\\udcff' is not UTF-8"),
    ],
)
def test_a_wrong_option_is_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    assert cli.main(["bridge", "--queue", "nowhere", "--table", "table", *options]) == 2
    told = capsys.readouterr()
    assert told.out == "" and text in told.err and told.err.count("\n") == 1


def test_an_object_store_which_says_nothing_does_not_hold_up_a_signal__TB_10(
    launch: Launcher, queue: Path
) -> None:
    """TB-10: nothing of ours could run while the store said nothing."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        options = {
            "aws_endpoint_url": f"http://127.0.0.1:{store.getsockname()[1]}",
            "aws_allow_http": "true",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
        }
        words = [word for pair in options.items() for word in ("--storage", "=".join(pair))]
        process = launch("bridge", "--queue", queue, "--table", "s3://bucket/t", *words)
        store.settimeout(START_SECONDS)
        connection, _ = store.accept()
        with connection:
            process.signal(signal.SIGTERM)
            # Left alone it says after a minute that the store does not answer, and exits with 2.
            assert process.wait(seconds=START_SECONDS) == 0


def test_what_another_bridge_holds_is_left_to_it_and_what_a_killed_one_left_is_removed(
    queue: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command_here: None,
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/gone")
    monkeypatch.setattr("resource.getrlimit", lambda which: (0, 400))  # as many as it needs
    own, lock = tmp_path / "table" / "_bridge", queue / "bridges" / "c.lock"
    (own / "c" / "tmp").mkdir(parents=True)
    (own / "c" / "tmp" / "liblz4-java.so").touch()
    lock.parent.mkdir()
    words = ["bridge", "--queue", str(queue), "--table", str(tmp_path / "table"), "--consumer=c"]

    def told(place: str, holding: Path) -> str:
        holding.write_text("1234567890\n")
        with open(holding) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert cli.main([*words, "--master", f"spark://127.0.0.1:1,{place}"]) == 2
        [line] = capfd.readouterr().err.splitlines()
        return line.removeprefix("msgproto bridge: ")

    line = f"the consumer 'c' of {queue} is in use by another bridge (pid 1234567890)"
    assert told("127.0.0.1:2", lock) == line
    assert not (tmp_path / "table" / "_delta_log").exists()
    answers = "no Spark master answers (127.0.0.1:1: Connection refused): start it, or correct "
    assert (
        told("127.0.0.1:2", own / "c" / "lock")
        == f"{answers}--master spark://127.0.0.1:1,127.0.0.1:2"
    )
    assert sorted(path.name for path in own.iterdir()) == ["c", "c.2"]
    assert (lock.read_text(), scratch(own)) == (f"{os.getpid()}\n", ["c/tmp"])
    with socket.create_server(("127.0.0.1", 0)) as master:
        text = told(f"127.0.0.1:{master.getsockname()[1]}", tmp_path / "nobodys")
    assert text.startswith("SPARK_HOME is /gone, where there is no bin/spark-submit: unset")
    assert (sorted(path.name for path in own.iterdir()), scratch(own)) == (["c", "c.2"], [])


ODD = "Müller #1 %41?&='\";$HOME,y\\z\r\nq:[1]*{2} %d ${date:x} ~"
"""A name with what shells, properties files, lists, patterns and URLs read something into."""

STRANGE: dict[str, str] = {
    "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
    "PYSPARK_PYTHON": "/no/python",
    "PYSPARK_DRIVER_PYTHON": "jupyter",
    "SPARK_HOME": "/opt/gone",
    "SPARK_CONF_DIR": "/opt/gone/conf",
    "SPARK_LOCAL_DIRS": "/proc/none",
    "SPARK_LOCAL_HOSTNAME": "nobody.invalid",
    "SPARK_LOCAL_IP": "192.0.2.99",
    "SPARK_REMOTE": "sc://nobody.invalid",
    "JAVA_HOME": "/opt/gone",
    "HADOOP_CONF_DIR": "/opt/gone",
    **dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://192.0.2.1:9"),
    "LC_ALL": "C",
    "HOME": "/proc/none",
}
"""An environment as it is left over from another Spark, in a container without a home."""


def nameless(directory: Path) -> list[str]:
    """What runs a command as a user who has no name, if this machine lets anybody do that, with
    ``/tmp`` read-only, if this user may do that.
    """
    namespace = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", str(directory)]
    user = ["unshare", "-U", "--map-user=54321", "--map-group=54321"]
    commands = [[*namespace, *user], user]
    for command in commands:
        with contextlib.suppress(OSError):
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command
    return []


READ_ONLY = """
mount --make-rprivate / && mount --bind "$1" "$1" && mount -o remount,bind,ro / || exit 1
for place in /tmp /var/tmp /dev/shm; do
    if mountpoint -q $place; then mount -o remount,bind,ro $place || exit 1; fi
done
! touch /tmp/out 2> /dev/null || exit 1
shift
exec "$@"
"""

# -- without Java ----------------------------------------------------------------------------------


CLUSTER = {
    "core-site.xml": ("ipc.client.connect.max.retries", "0"),
    "yarn-site.xml": ("yarn.resourcemanager.connect.max-wait.ms", "0"),
}
"""A cluster that is not there, and is not waited for."""

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_draining_lands_all_once_and_a_second_run_the_rest__RD_29(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    """RD-29"""
    output = once(launch, queue, "--max-rows", "600", start=here)
    assert "bridge running from" in output
    assert all(re.match(rf"{TIME} (bridge|batch) ", line) for line in output.splitlines())
    assert "(consumer" in output and "Bridge" not in output
    assert landed_offsets(tmp_path / "table") == {identity(queue): list(range(1500))}
    name = consumer(tmp_path / "table")
    assert name in output
    assert QueueReader(queue).consumers() == {name: 1500}
    write(queue, messages(1500, 250))
    output = once(launch, queue, "--json-log", start=here)
    logged = [json.loads(line) for line in output.splitlines()]
    assert all({"time", "level", "source", "text"} == line.keys() for line in logged)
    assert {(line["level"], line["source"]) for line in logged} == {
        ("info", "twisted_msgproto.bridge")
    }
    assert logged[0]["text"].startswith(f"bridge running from {queue} to ")
    assert re.match("bridge ended: batch .* 250 rows in all", logged[-1]["text"])
    assert landed_offsets(tmp_path / "table") == {identity(queue): list(range(1750))}
    assert QueueReader(queue).consumers() == {name: 1750}
    [status] = read_statuses(queue)
    assert (status["state"], status["offset"], status["lag_rows"]) == ("ended", 1750, 0)


def test_a_feature_that_others_switched_on_is_named_and_another_table_gets_the_rows__RD_30(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    once(launch, queue, start=here)
    table = DeltaTable(str(tmp_path / "table"))
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    write(queue, messages(1500, 100))
    line = refused(launch, queue)
    assert "cannot write: deletionVectors; land in another table, which " in line
    assert line.endswith("gets all that is in the queue: --table LOCATION")
    once(launch, queue, "--table", "another", start=here)
    assert landed_offsets(tmp_path / "another") == {identity(queue): list(range(1600))}


def test_a_queue_which_is_swapped_is_one_line(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    process = here(launch, queue, "--trigger", "200ms")
    process.line("batch 1: 1500 rows", seconds=START_SECONDS)
    queue.rename(tmp_path / "away")
    write(queue, messages(0, 10))
    assert process.wait(seconds=START_SECONDS) == 2
    assert "Traceback" not in process.output
    assert process.lines[-1].startswith("msgproto bridge: ")
    assert "queue" in process.lines[-1]
    [status] = (tmp_path / "table" / "_bridge").glob("*/status.json")
    assert json.loads(status.read_text())["state"] == "failed"


def test_a_gateway_which_hangs_is_named_and_holds_up_neither_rows_nor_the_end__TB_10(
    launch: Launcher, queue: Path, tmp_path: Path
) -> None:
    """TB-09, TB-10: nothing moved for 60 s; SIGTERM took 181 s.  The bench has the time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        process = here(launch, queue, "--queue", place)
        process.line(f"gateway {place} is away and keeps its place", seconds=START_SECONDS)
        process.line(f"batch 1: 1500 rows.*, away: {place}", seconds=START_SECONDS)
        while not (away := read_statuses(queue)[0]["away"]):  # it is written behind the line
            time.sleep(0.01)
        assert [one["location"] for one in away] == [place]
        process.signal(signal.SIGTERM)
        assert process.wait(seconds=START_SECONDS) == 0
    assert landed_offsets(tmp_path / "table") == {identity(queue): list(range(1500))}
    assert list(QueueReader(queue).consumers().values()) == [1500]


# -- with Spark -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
class TestWithSpark:
    def test_a_running_bridge_follows_the_queue_and_ends_on_a_signal__RD_52__RD_12(
        self, launch: Launcher, queue: Path, tmp_path: Path
    ) -> None:
        """RD-52: every user of the machine could send messages to the driver's endpoints.

        RD-12: too few open files are said before it starts, with the remedy, which works.

        The worker of the first task dies after its file is written: Spark runs the task again, and
        that file is in no commit.
        """
        damage_record(queue, b'{"n":777}')
        marker = tmp_path / "failed"
        few = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable, "-m"]
        few += ["tests.tools.dying", "--fail-once", str(marker), "bridge", "--queue", str(queue)]
        few += ["--table", "table", "--consumer", "night.shift", "--master", "local[2,4]"]
        ended = subprocess.run(few, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        line = "may have 256 files open, and Spark needs 400 and more: (ulimit -n [0-9]+)"
        remedy = re.search(line, ended.stderr)
        assert remedy is not None and ended.returncode == 2
        # And another size of Java, as the line about a heap too small gives it.
        enough = [*few[:2], f'{remedy[1]}; exec "$@"', *few[3:]]
        process = launch.command([*enough, "--conf", "spark.driver.memory=1g"])
        process.line("bridge running from", seconds=START_SECONDS)
        process.line(
            r"skipped 300 damaged rows of queue .* \(offsets 600..899\)", seconds=START_SECONDS
        )
        process.line("batch 1: 1200 rows", seconds=START_SECONDS)
        write(queue, messages(1500, 100))
        process.line("batch 2: 100 rows.*lag 0 rows", seconds=START_SECONDS)
        deadline = time.monotonic() + START_SECONDS
        while (status := read_statuses(queue)[0])["rows"] < 1300:  # it is written once a second
            assert time.monotonic() < deadline, status
            time.sleep(0.01)
        assert (status["state"], status["consumer"]) == ("running", "night.shift")
        assert (status["rows"], status["skipped_rows"]) == (1300, 300)
        assert marker.exists() and status["failed_batches"] == 0
        # A second one under this name is refused.
        text = refused(launch, queue, "--table", "other", "--consumer", "night.shift")
        assert f"the consumer 'night.shift' of {queue} is in use" in text
        assert str(process.pid) in text
        below = descendants(process.pid)
        [java] = [pid for pid in below if java_machine(pid)]
        refuses_strangers(java)
        assert os.getsid(java) == process.pid  # who kills the bridge's group kills Java, too
        process.signal(signal.SIGTERM)
        assert process.wait(seconds=START_SECONDS) == 0
        assert "Traceback" not in process.output
        assert not [pid for pid in below if not wait_gone(pid)]
        assert read_statuses(queue)[0]["state"] == "ended"
        assert QueueReader(queue).consumers() == {"night.shift": 1600}
        assert landed_offsets(tmp_path / "table") == {
            identity(queue): [*range(600), *range(900, 1600)]
        }
        assert len(list((tmp_path / "table").rglob("*.parquet"))) == 3

    @pytest.mark.parametrize(
        "transform",
        [pytest.param(False, marks=pytest.mark.long), True],
        ids=["rows", "transform"],
    )
    def test_what_another_spark_left_behind_and_odd_names_hinder_nothing__RD_12__RD_11(
        self, launch: Launcher, tmp_path: Path, transform: bool
    ) -> None:
        """RD-11, RD-12: each of these variables and most of these characters ended the start.

        The user has no name, this machine's own does not resolve, and nothing can be written but
        the test's directory.
        """
        top = tmp_path / ODD
        (top / "temporary").mkdir(parents=True)
        (top / "change.py").write_text("def narrowed(given):\n    return given.drop('body')\n")
        (top / "hosts").write_text("127.0.0.1 localhost\n")
        hosts = tmp_path / "hosts"
        hosts.write_text("127.0.0.1 localhost\n")
        write(top / "queue", messages(0, 50))
        words = ["--transform", "change:narrowed"] if transform else []
        command = [*nameless(tmp_path), sys.executable, "-m", "twisted_msgproto", "bridge"]
        command += ["--queue", str(top / "queue"), "--table", str(top / "-table"), "--once"]
        java = f"{java_classes.options()} -Djdk.net.hosts.file={hosts}"
        quick = dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), java)
        ended = subprocess.run(
            [*command, "--start", "begin", *words],
            cwd=top,
            env=environment(pandas=True, TMPDIR=str(top / "temporary"), **quick, **STRANGE),
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert ended.stderr == ""
        lines = ended.stdout.splitlines()
        assert "JAVA_HOME: /opt/gone/bin/java does not exist; Java is /" in lines[0]
        left_over = [name for name in STRANGE if name.startswith(("PYSPARK", "SPARK"))]
        assert f"local[*]: {', '.join(sorted(left_over))} (" in lines[1]
        (top / "-table").rename(tmp_path / "in")  # delta-rs reads no name with a line feed
        assert list(landed_offsets(tmp_path / "in").values()) == [list(range(50))]
        assert {path.name for path in tmp_path.iterdir()} <= {ODD, "hosts", "in"}
        left = [path for path in (top / "temporary").rglob("*") if path.is_file()]
        assert [path.name for path in left] == (["lock"] if transform else [])

    @pytest.mark.parametrize(
        ("words", "changes", "line"),
        [
            (["--conf", "spark.driver.memory=1m"], {}, "Too small maximum heap; give Java another"),
            pytest.param(
                ["--conf", "spark.driver.memory=abc"],
                {},
                "-Xmxabc; correct or leave out --conf ",
                marks=pytest.mark.long,
            ),
            pytest.param(
                ["--conf", "spark.executor.instances=x"],
                {},
                "a positive number; correct or leave out",
                marks=pytest.mark.long,
            ),
            pytest.param(
                ["--conf", "spark.local.dir=/proc/none"],
                {},
                "leave out --conf spark.local.dir",
                marks=pytest.mark.long,
            ),
            (
                [],
                {"HADOOP_CONF_DIR": "HERE"},
                "leave out HADOOP_CONF_DIR (HERE)",
            ),
        ],
        ids=["memory", "no memory", "number", "local dir", "hadoop"],
    )
    def test_why_spark_does_not_start_is_said_with_its_origin_and_the_remedy__RD_12(
        self,
        launch: Launcher,
        queue: Path,
        tmp_path: Path,
        words: list[str],
        changes: dict[str, str],
        line: str,
    ) -> None:
        """RD-12: it was the last line of a stack trace."""
        here = str(tmp_path)
        (tmp_path / "core-site.xml").write_text("<configuration><property>")
        ended = launch.run(
            *("bridge", "--queue", queue, "--table", "table", "--once", *words),
            env=environment(**{name: text.replace("HERE", here) for name, text in changes.items()}),
            seconds=START_SECONDS,
        )
        assert ended.returncode == 2, ended.stdout
        assert ended.stderr.count("\n") == 1
        assert line.replace("HERE", here) in ended.stderr
        [status] = read_statuses(queue)
        assert (status["state"], "did not start" in status["error"]) == ("failed", True)

    def test_a_start_without_room_is_one_line_and_works_with_room__RD_12__RD_15(
        self, launch: Launcher, queue: Path, tmp_path: Path
    ) -> None:
        """Java's first thread failed, its others did not: the bridge stood for good, silently."""
        words = [sys.executable, "-m", "twisted_msgproto", "bridge", "--once", "--table=disk/table"]
        words += [f"--queue={queue}", "--start=begin"]
        (tmp_path / "disk").mkdir()
        script = (
            "for size in 8k 16k; do umount disk 2>/dev/null;"
            ' mount -t tmpfs -o "size=$size" tmpfs disk && ! "$@" || exit 1; find disk -type f;'
            ' done; mount -o remount,size=9m disk; exec "$@"'
        )
        ended = _script_ran(contained("", "sh", "-c", script, "sh", *words), tmp_path)
        lines, own = ended.stderr.splitlines(), f"{tmp_path}/disk/table/_bridge/"
        assert len(lines) == 2, ended.stderr
        ours = rf"cannot use {own}\S+: No space left on device; make room there"
        java = "Java did not start: .*No space left on device; make room on the disk; its output: "
        assert re.search(ours, lines[0]) and re.search(f"{java}{own}", lines[1])
        assert ".status" not in ended.stdout, "half of a file that is written again and again"
        assert "1500 rows in all" in ended.stdout

    def test_each_remedy_for_a_cluster_leads_to_the_next_one__RD_12(
        self, queue: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "cluster").mkdir()
        for name, (key, value) in CLUSTER.items():
            text = f"<property><name>{key}</name><value>{value}</value></property>"
            (tmp_path / "cluster" / name).write_text(f"<configuration>{text}</configuration>")
        words = ["bridge", "--queue", str(queue), "--table", "table", "--once", "--start", "begin"]
        command = contained("host", sys.executable, "-m", "twisted_msgproto", *words)
        master = ["--master", "spark://127.0.0.1:1"]
        given = {"SPARK_HOME": "/gone"}

        def told(line: str) -> None:
            ended = subprocess.run(
                [*command, *master],
                cwd=tmp_path,
                env=environment(**given),
                capture_output=True,
                text=True,
                timeout=START_SECONDS,
            )
            assert re.search(line, ended.stderr) and ended.returncode == 2, ended

        told("Connection refused\\): start it, or correct --master spark://127.0.0.1:1")
        master = ["--master", "yarn"]
        told("unset SPARK_HOME")
        del given["SPARK_HOME"]
        told("add the name to /etc/hosts, or set SPARK_LOCAL_IP")
        given["SPARK_LOCAL_IP"] = "127.0.0.1"
        told("set HADOOP_CONF_DIR to the folder that has the cluster's yarn-site.xml")
        given["HADOOP_CONF_DIR"] = str(tmp_path / "cluster")
        told("start what --master names, or leave --master out")

    def test_a_signal_while_spark_starts_ends_it_in_order__TB_10(
        self, launch: Launcher, queue: Path
    ) -> None:
        process = bridge(launch, queue)
        deadline = time.monotonic() + START_SECONDS
        java: list[int] = []
        while not java:
            assert time.monotonic() < deadline, process.output
            time.sleep(0.01)
            java = [pid for pid in descendants(process.pid) if "SparkSubmit" in command_of(pid)]
        assert [status["state"] for status in read_statuses(queue)] == ["starting"]
        process.signal(signal.SIGTERM)
        assert process.wait(seconds=START_SECONDS) == 0
        assert not [pid for pid in java if not wait_gone(pid)]
        assert "Traceback" not in process.output
        assert read_statuses(queue)[0]["state"] == "ended"


def refuses_strangers(java: int) -> None:
    """Nobody who does not know the bridge's secret is heard by an endpoint of its driver."""
    answers = b""
    for port in listening(java):
        to = b"\0\1\0\x09127.0.0.1" + struct.pack(">i", port) + b"\0\6nobody"
        body = to + bytes.fromhex("aced000570")  # null, as Java serializes it
        request = struct.pack(">qBqi", 21 + len(body), 3, 1, len(body)) + body
        with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
            stranger.sendall(request + b"\n")
            answers += stranger.recv(1 << 16)
    assert b"Expected SaslMessage" in answers
    assert b"Could not find nobody" not in answers


def listening(pid: int) -> list[int]:
    """The TCP ports that a process listens on."""
    found, files = [], [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    for line in Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if state == "0A" and f"socket:[{rest[5]}]" in files:
            found.append(int(local.rpartition(":")[2], 16))
    return found


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
class TestTwoBridgesOfOneTable:
    def test_they_run_start_again_and_are_killed_beside_each_other__RD_51__TB_11(
        self, launch: Launcher, tmp_path: Path
    ) -> None:
        """RD-51: each deleted the folder of the other one's Spark at its start; both ended.
        Here the second has none.

        RD-15: what Java unpacks stood in the system's temporary directory, one copy a start.
        TB-11: a killed Java machine was a 60-line traceback.
        """
        queues = [tmp_path / "first", tmp_path / "second"]
        rows = 0

        def more() -> None:
            nonlocal rows
            for queue in queues:
                write(queue, messages(rows, 100))
            rows += 100

        def landed(*processes: Launched) -> None:
            deadline = time.monotonic() + START_SECONDS
            while {at.offset for at in places(tmp_path / "table").values()} != {rows}:
                assert time.monotonic() < deadline, [each.output for each in processes]
                assert [each.process.poll() for each in processes] == [None, None], [
                    each.output for each in processes
                ]
                time.sleep(0.05)

        def started(queue: Path, start: Callable[..., Launched] = bridge) -> Launched:
            process = start(launch, queue, "--trigger", "0")
            process.line("batch .* 100 rows in all", seconds=START_SECONDS)
            return process

        more()
        first, second = started(queues[0]), started(queues[1], here)
        more()
        landed(first, second)
        line, name = refused(launch, queues[0]), consumer(tmp_path / "table")
        assert f"the consumer '{name}' of {queues[0]} is in use" in line
        assert f"pid {first.pid}" in line
        below = {pid for each in (first, second) for pid in descendants(each.pid)}
        [java] = [pid for pid in descendants(first.pid) if java_machine(pid)]
        os.kill(java, signal.SIGKILL)
        assert first.wait(seconds=START_SECONDS) == 2
        assert [line for line in first.lines if "msgproto bridge:" in line] == [first.lines[-1]]
        assert "Java machine" in first.lines[-1] and "Traceback" not in first.output
        write(queues[0], messages(rows, 100))
        again = started(queues[0])
        write(queues[1], messages(rows, 100))
        rows += 100
        landed(again, second)
        below |= descendants(again.pid)
        own = tmp_path / "table" / "_bridge"
        states = [json.loads(path.read_text()) for path in own.glob("*/status.json")]
        assert {status["pid"] for status in states} == {again.pid, second.pid}
        [java] = [pid for pid in descendants(again.pid) if java_machine(pid)]
        os.kill(java, signal.SIGSTOP)  # or it would see the bridge's end, and tidy up
        again.kill()
        os.kill(java, signal.SIGKILL)
        second.kill()
        for status in own.glob("*/status.json"):
            status.with_name(f".{status.name}.{again.pid}").touch()  # killed while it wrote
        (queues[0] / "bridges" / f".{name}.json.{again.pid}").touch()
        assert not [pid for pid in below if not wait_gone(pid)]
        left = [part for part in scratch(own) if part.endswith(("local", "tmp"))]
        assert len(left) >= 2, "nothing was left that a start would have to clear"
        once(launch, queues[0], start=here)
        assert scratch(own) == []
        assert not list((queues[0] / "bridges").glob(".*"))
        assert landed_offsets(tmp_path / "table") == {
            identity(queue): list(range(rows)) for queue in queues
        }

    def test_java_ends_though_its_bridge_was_killed_before_java_said_where_it_listens__RD_15(
        self, launch: Launcher, queue: Path, tmp_path: Path
    ) -> None:
        """RD-15: the next start removed the folder for that, and Java lived on for good."""
        process = bridge(launch, queue)
        while not (started := spark_starting(process.pid)):
            assert process.process.poll() is None, process.output
        [java] = started
        os.kill(java, signal.SIGSTOP)
        process.kill()
        once(launch, queue, start=here)
        own, name = tmp_path / "table" / "_bridge", consumer(tmp_path / "table")
        assert {path.name for path in own.iterdir()} == {name, f"{name}.2"}
        os.kill(java, signal.SIGCONT)
        assert wait_gone(java, seconds=START_SECONDS)

    def test_a_start_that_fails_again_and_again_leaves_one_folder__RD_15(
        self, launch: Launcher, queue: Path, tmp_path: Path
    ) -> None:
        """RD-15: a transform that does not load left a directory a start, 8,000 a day."""
        temporary = tmp_path / "tem porary"
        temporary.mkdir()
        env = environment(pandas=True, TMPDIR=str(temporary), PYTHONPATH=str(tmp_path))
        (tmp_path / "broken.py").write_text("def columns(messages):\n    return 1 // 0\n")
        words = ("bridge", "--queue", queue, "--table", "table", "--transform")
        ended = launch.run(*words, "nowhere:none", env=env)
        assert ended.returncode == 2 and "--transform nowhere:none" in ended.stderr
        assert list(temporary.iterdir()) == [], "this is told before Java starts"
        own = temporary / f"twisted-msgproto-{os.getuid()}"
        (own / "bridge" / "tmp").mkdir(parents=True)
        own.chmod(0o700)
        (own / "bridge" / "tmp" / "left").touch()
        ended = launch.run(*words, "broken:columns", env=env, seconds=START_SECONDS)
        assert ended.returncode == 2 and "ZeroDivisionError" in ended.stderr
        assert [path.name for path in temporary.glob("*/*")] == ["bridge"]
        assert scratch(own) == []

    def test_of_an_object_store_they_leave_nothing_in_the_temporary_directory__RD_51(
        self, launch: Launcher, s3: Store, tmp_path: Path
    ) -> None:
        """RD-51, RD-15: every killed bridge left a directory there, with spills and logs."""
        temporary, location = tmp_path / "temporary", s3.new_location()
        temporary.mkdir()
        env = environment(TMPDIR=str(temporary))
        storage = [word for pair in s3.options.items() for word in ("--storage", "=".join(pair))]
        queues = [tmp_path / "first", tmp_path / "second"]

        def start(queue: Path, *options: str) -> Launched:
            words = ["--here", "bridge", "--queue", queue, "--table", location, *storage, *options]
            return launch(*words, module="tests.tools.dying", env=env)

        processes = []
        for queue in queues:
            write(queue, messages(0, 10))
            processes.append(start(queue))
            processes[-1].line("batch .* 10 rows in all", seconds=START_SECONDS)
        own = temporary / f"twisted-msgproto-{os.getuid()}"
        folders = sorted(path.name for path in own.iterdir())
        assert folders == ["bridge", "bridge.2"]
        for folder in folders:
            (own / folder / "tmp" / "liblz4-java.so").touch()
        processes[0].kill()
        write(queues[0], messages(10, 10))
        again = start(queues[0], "--once")
        again.line("bridge ended: .* 10 rows in all", seconds=START_SECONDS)
        assert again.wait(seconds=START_SECONDS) == 0
        assert scratch(own) == ["bridge.2/tmp"], "the other one runs"
        processes[1].kill()
        last = start(queues[1], "--once")
        last.line("bridge ended", seconds=START_SECONDS)
        assert last.wait(seconds=START_SECONDS) == 0
        assert scratch(own) == []
        found = Table.open(location, s3.options).landed()
        assert {name: at.offset for name, at in found.items()} == {
            identity(queues[0]): 20,
            identity(queues[1]): 10,
        }

    def test_where_nothing_can_be_written_it_asks_for_a_temporary_directory__RD_12(
        self, s3: Store, queue: Path, tmp_path: Path
    ) -> None:
        """Not even the working directory, which Python takes last of all."""
        words = ["-m", "tests.tools.dying", "--here", "bridge", f"--queue={queue}", "--once"]
        words += ["--table", s3.new_location()]
        words += [word for pair in s3.options.items() for word in ("--storage", "=".join(pair))]
        script = 'cd / && ! "$@" && mkdir "$0" && exec env TMPDIR="$0" "$@"'
        words = ["sh", "-c", script, f"{tmp_path}/t", sys.executable, *words]
        ended = _script_ran(contained("read-only", *words), tmp_path)
        assert len(ended.stderr.splitlines()) == 1, ended.stderr
        assert "there is no directory for temporary files (" in ended.stderr
        assert ": set TMPDIR to one that can be written" in ended.stderr
        assert "1500 rows in all" in ended.stdout
        assert scratch(tmp_path / "t" / f"twisted-msgproto-{os.getuid()}") == []


def scratch(directory: Path) -> list[str]:
    """What bridges have below their directory of a table, but for their logs and statuses."""
    kept = {"lock", "status.json", "spark.log", "java.log", "log4j2.properties"}
    return [
        str(path.relative_to(directory))
        for path in directory.glob("*/*")
        if path.name not in kept and not (path.is_dir() and not any(path.iterdir()))
    ]


def spark_starting(pid: int) -> list[int]:
    return [child for child in children(pid) if "pyspark-shell" in command_of(child)]


def java_machine(pid: int) -> bool:
    try:
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False
