"""After ``kill -9`` the same command starts again, in a container, too: its PID is the same."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.processes import Launcher

CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
EVENT = struct.pack(">2sI2sII", b"2W", 1, b"2J", 1, 2) + b"{}"
ACK = struct.pack(">2sI", b"2A", 1)
GATEWAY = ["-m", "twisted_msgproto", "gateway", "--config=g.toml"]
TWISTD = ["-c", "from twisted.scripts.twistd import run; run()"]
PLUGIN = ["lumberjack", "--queue=queue", "-e", "unix:s"]
WAYS = {
    "gateway": GATEWAY,
    "gateway, lockfile=0": [*GATEWAY, "--set=lumberjack.endpoint=unix:s:lockfile=0"],
    "gateway, status on unix:": [*GATEWAY, "--set=status.endpoint=unix:status"],
    "gateway without a queue": [*GATEWAY[:-1], "--config=bare.toml"],
    "twistd -n": [*TWISTD, "-n", *PLUGIN],
    "twistd -n --pidfile=": [*TWISTD, "-n", "--pidfile=", *PLUGIN],
    "python -m twisted": ["-m", "twisted", *PLUGIN],
}


def can_be_contained() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0


@pytest.fixture
def directory(launch: Launcher) -> Path:
    here = launch.directory
    (here / "bare.toml").write_text('[lumberjack]\nendpoint = "unix:s"\n')
    (here / "g.toml").write_text(
        '[queue]\ndirectory = "queue"\n' + (here / "bare.toml").read_text()
    )
    return here


def acknowledged(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(60)
        one.connect(str(path))
        one.sendall(EVENT)
        return one.recv(len(ACK)) == ACK


@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS.keys())
def test_the_same_command_starts_again_after_a_kill(
    launch: Launcher, directory: Path, words: list[str]
) -> None:
    """RD-10: its sockets, their locks and its PID file are left behind, and are no obstacle."""
    if not can_be_contained():
        pytest.skip("this machine lets nobody make a PID name space: unshare --user --pid fails")
    command = [*CONTAINER, sys.executable, *words]
    killed = launch.command(command)
    killed.line("lumberjack listening on unix:")
    assert acknowledged(directory / "s")
    killed.kill()
    again = launch.command(command)
    again.line("lumberjack listening on unix:")
    assert acknowledged(directory / "s")
    again.kill()  # unshare hands SIGTERM to nobody


@pytest.mark.parametrize("lock", ["", ":lockfile=0"])
def test_a_socket_that_is_listened_on_is_not_taken_over(
    launch: Launcher, directory: Path, lock: str
) -> None:
    """RD-10"""
    server = launch("gateway", "--config=bare.toml")
    server.line("listening")
    second = f"--set=lumberjack.endpoint=unix:s{lock}"
    done = launch.run("gateway", "--config=bare.toml", second)
    assert done.returncode == 1
    assert "cannot listen on unix:s" in done.stdout + done.stderr
    assert acknowledged(directory / "s")


def test_a_start_does_not_wait_for_whoever_listens_and_takes_nobody(
    launch: Launcher, directory: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as stopped, socket.socket(socket.AF_UNIX) as waiting:
        stopped.bind(str(directory / "s"))
        stopped.listen(0)
        waiting.connect(str(directory / "s"))
        checked = launch.run("check", "bare.toml", seconds=20)
        done = launch.run("gateway", "--config=bare.toml", seconds=20)
        assert (checked.returncode, done.returncode) == (2, 1)
        for one in (checked, done):
            assert "another process listens on it" in one.stdout + one.stderr


def test_a_file_that_is_no_socket_stays(launch: Launcher, directory: Path) -> None:
    (directory / "s").write_text("precious")
    done = launch.run("gateway", "--config=bare.toml")
    assert done.returncode == 1
    assert "it is no socket" in done.stdout + done.stderr
    assert (directory / "s").read_text() == "precious"
