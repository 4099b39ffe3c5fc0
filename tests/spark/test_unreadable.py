"""Unreadable is not absent, for what this room reads: checkpoints, tables, locks, and the loop."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import data_source, identity, messages, write
from tests.spark.test_releasing import checkpoint_of
from tests.tools.disks import Unreadable
from tests.tools.loops import drain, exactly, finish, loop_over
from tests.tools.s3 import Store
from tests.tools.tables import TABLE_SCHEMA
from twisted_msgproto import cli
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark import loop, release
from twisted_msgproto.spark.landed_table import LandedTable
from twisted_msgproto.table.delta_table import Table

pytest.importorskip("pyspark")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], None]:
    """Lets a function of the operating system fail with EIO for one path."""

    def refuse(name: str, place: Path) -> None:
        real = getattr(os, name)

        def refused(path: Any, *more: Any, **named: Any) -> Any:
            if isinstance(path, (str, os.PathLike)) and Path(path) == place:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path, *more, **named)

        monkeypatch.setattr(os, name, refused)

    return refuse


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("stat", "offsets"),
        ("listdir", "commits"),
        ("scandir", "state"),
        ("open", "state/1.delta"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_releases_nothing__RD_50(
    function: str,
    part: str,
    queue: Path,
    tmp_path: Path,
    refusing: Callable[[str, Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RD-50: a folder which could not be listed was taken as empty, so nothing in it was synced."""
    checkpoint = checkpoint_of(tmp_path / "c", queue, 300, 600, committed=2)
    (checkpoint / "state").mkdir()
    (checkpoint / "state" / "1.delta").touch()
    with monkeypatch.context():
        refusing(function, checkpoint / part)
        with pytest.raises(OSError, match="Input/output error"):
            release(checkpoint, str(queue), "night")
    assert QueueReader(queue).consumers().get("night", 0) == 0
    monkeypatch.undo()
    assert release(checkpoint, str(queue), "night") == {identity(queue): 600}


def test_a_table_that_cannot_be_seen_is_not_empty__RD_50(
    queue: Path, tmp_path: Path, refusing: Callable[[str, Path], None]
) -> None:
    drain(tmp_path / "table", [queue])
    refusing("stat", tmp_path / "table" / "_delta_log")
    with pytest.raises(OSError, match="Input/output error"):
        LandedTable(tmp_path / "table").read()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
@pytest.mark.parametrize("nth", [1, 2], ids=["of the queue", "of the table's folder"])
def test_a_lock_that_cannot_be_had_is_not_another_bridges__RD_50(
    number: int,
    nth: int,
    queue: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command_here: None,
) -> None:
    """RD-50: every failure was "in use by another bridge (pid unknown)"."""
    real, asked = fcntl.flock, 0

    def flock(descriptor: int, operation: int) -> None:
        nonlocal asked
        if "lock" in os.readlink(f"/proc/self/fd/{descriptor}"):
            asked += 1
            if asked == nth:
                raise OSError(number, os.strerror(number))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    words = ["bridge", "--queue", str(queue), "--table", str(tmp_path / "table")]
    assert cli.main(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and os.strerror(number) in line and "another bridge" not in line


def test_a_queue_that_cannot_be_seen_is_not_landed_without_its_lock__RD_50(
    queue: Path,
    tmp_path: Path,
    refusing: Callable[[str, Path], None],
    capsys: pytest.CaptureFixture[str],
    command_here: None,
) -> None:
    refusing("stat", queue)
    assert cli.main(["bridge", "--queue", str(queue), "--table", str(tmp_path / "table")]) == 2
    assert capsys.readouterr().err == f"msgproto bridge: cannot lock {queue}: Input/output error\n"


@pytest.mark.parametrize(
    ("kind", "part"),
    [("read", f"{1:020d}.json"), ("open file", f"{2:020d}.json"), ("stat", "day=")],
)
def test_the_loop_goes_on_when_the_table_can_be_read_again__RD_50(
    kind: str, part: str, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ATTEMPT_SECONDS", 0.0)
    table, faults, said = tmp_path / "table", Unreadable(monkeypatch), []  # type: ignore[var-annotated]
    drain(table, [queue])
    write(queue, messages(1500, 100))
    before = Table.open(table).version
    again = loop_over(table, [queue], say=said.append)
    again.table.sync()
    with faults.now(kind, part, errno.EIO, times=2):
        again.run()
    finish(again)
    assert faults.met == 2
    assert any("Input/output error" in line for line in said)
    assert Table.open(table).version == before + 1
    exactly(table, queue)


@pytest.mark.slow
@pytest.mark.parametrize("status", ["403", "500"])
@pytest.mark.parametrize("part", ["prefix=", f"{0:020d}.json", "_last_checkpoint"])
def test_a_source_of_a_table_in_a_store_does_not_take_it_for_absent__RD_50(
    part: str, status: str, s3: Store
) -> None:
    options = {**s3.options, "max_retries": "0"}
    location = Table.create(s3.new_location(), TABLE_SCHEMA, storage=options).location
    given = {f"storage.{name}": value for name, value in options.items()}
    source = data_source("msgproto-table", path=location, **given)
    source.schema()
    s3.fault(f"unreadable {status} {part}")
    try:
        with pytest.raises(ConfigurationError, match=f"the table {location} cannot be opened: "):
            source.schema()
    finally:
        s3.fault("none")
    with pytest.raises(ConfigurationError, match="there is no table at"):
        data_source("msgproto-table", path=s3.new_location(), **given).schema()
