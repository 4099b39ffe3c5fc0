"""A bridge looks before it starts: whose checkpoint, which table, who else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.test_offsets import at
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.spark.checkpoint import (
    Known,
    batch_numbers,
    check_sink,
    is_remote,
    locked,
    newest_done,
    newest_logged,
    newest_planned,
)


def plan(checkpoint: Path, batch: int, text: str) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(text)


def places(**values: int) -> str:
    return "v1\n{}\n" + json.dumps({name: at(offset) for name, offset in values.items()})


def test_a_new_checkpoint_has_no_place(tmp_path: Path) -> None:
    assert newest_planned(tmp_path / "none") is None
    assert batch_numbers(tmp_path / "none") == []


def test_the_newest_batch_says_where_the_stream_is(tmp_path: Path) -> None:
    for batch in (8, 9, 10):
        plan(tmp_path, batch, places(q1=100 * batch))
    (tmp_path / "offsets" / ".11.crc").touch()
    assert newest_planned(tmp_path) == Known(10, {"q1": at(1000)})


def test_what_is_planned_is_not_done(tmp_path: Path) -> None:
    for batch in (8, 9, 10):
        plan(tmp_path, batch, places(q1=100 * batch))
    assert newest_done(tmp_path) is None
    (tmp_path / "commits").mkdir()
    for name in ("7", "8", "9"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    assert newest_done(tmp_path) == Known(9, {"q1": at(900)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1\n{}",
        "v9\n{}\n{}",
        "v1\n{}\n7",
        'v1\n{}\n{"q": 5}',
        "v1\n{}\n-",
        "v1\n{}\n{}\n{}",
        'v1\n{}\n{"q": {"offset": 1}}',
        'v1\n{}\n{"q": {"offset": "x", "epoch": 0}}',
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    plan(tmp_path, 0, text)
    with pytest.raises(ConfigurationError, match="is not of a bridge's checkpoint"):
        newest_planned(tmp_path)


@pytest.mark.parametrize(
    ("planned", "logged", "fits"),
    [
        (None, None, True),
        (3, None, True),
        (3, 2, True),
        (3, 3, True),
        (2, 3, False),
        (None, 0, False),
    ],
)
def test_a_table_and_a_checkpoint_that_do_not_belong_together_are_refused(
    tmp_path: Path, planned: int | None, logged: int | None, fits: bool
) -> None:
    """Spark's sink skips batches whose numbers it has, so a fresh checkpoint would lose rows."""
    table, checkpoint = tmp_path / "t", tmp_path / "c"
    if planned is not None:
        plan(checkpoint, planned, places(q=1))
    if logged is not None:
        (table / "_spark_metadata").mkdir(parents=True)
        (table / "_spark_metadata" / f"{logged}.compact").touch()
    assert newest_logged(table) == logged
    if fits:
        check_sink(table, checkpoint)
    else:
        with pytest.raises(ConfigurationError, match="do not belong together"):
            check_sink(table, checkpoint)


def test_what_is_elsewhere() -> None:
    assert is_remote("s3a://bucket/t")
    assert is_remote("grpc://host:1")
    assert not is_remote("/t")
    assert not is_remote("file:///t")


# -- the lock -------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_and_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with locked(path, "the thing"):
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(ConfigurationError) as caught, locked(path, "the thing"):
            pass
        assert str(caught.value) == f"the thing is in use by another bridge (pid {os.getpid()})"
    with locked(path, "the thing"):
        pass


def test_a_lock_which_outlives_its_owner_is_waited_for(tmp_path: Path) -> None:
    """The Java machine of a killed bridge holds it for a moment."""
    path = tmp_path / "lock"
    hold = (
        "import fcntl, os, subprocess, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], pass_fds=[fd])\n"
        "os.write(fd, b'%d\\n' % os.getpid())\n"
        "print(child.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", hold, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None and owner.stdin is not None
    heir = int(owner.stdout.readline())
    owner.wait()
    with pytest.raises(ConfigurationError, match="in use"), locked(path, "it", wait=0.0):
        pass
    assert Path(f"/proc/{heir}").exists()
    owner.stdin.close()  # its stdin ends, and so does the one who inherited the lock
    with locked(path, "it", wait=30.0):
        assert path.read_text() == f"{os.getpid()}\n"
    owner.stdout.close()


def test_a_lock_without_a_name_in_it_counts_as_held(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="pid unknown"), locked(path, "it"):
            pass
