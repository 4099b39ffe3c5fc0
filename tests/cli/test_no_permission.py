"""What an operator may not read or write is one line with the file and the remedy."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from twisted.scripts import twistd

from tests.tools.processes import (
    PATIENCE_SECONDS,
    Launched,
    Launcher,
    environment,
    wait_gone,
)
from twisted_msgproto import cli

POWERLESS = "tests.cli.test_no_permission"
"""A command as it is for root without capabilities: with the rights of the files' modes alone."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")


def main() -> None:
    """Give up all capabilities and be ``twistd …``, or ``msgproto …``."""
    version_and_process, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(version_and_process, none):
        raise OSError(ctypes.get_errno(), "capset")
    if sys.argv[1] == "twistd":
        del sys.argv[1]
        twistd.run()
    else:
        sys.exit(cli.main(sys.argv[1:]))


COMMANDS = {
    "init": ["init", "closed/x"],
    "init there": ["init", "closed"],
    "doctor": ["doctor", "--queue", "closed/queue"],
    "check": ["check", "closed/g.toml"],
    "gateway": ["gateway", "--config=closed/g.toml"],
    "gateway with a queue": ["gateway", "--config=g.toml", "--queue=closed/queue"],
    "queue ls": ["queue", "ls", "closed/queue"],
    "queue verify": ["queue", "verify", "closed/queue"],
    "queue dump": ["queue", "dump", "closed/queue"],
    "queue tail": ["queue", "tail", "closed/queue"],
    "queue consumers": ["queue", "consumers", "closed/queue"],
    "queue trim": ["queue", "trim", "closed/queue"],
    "queue mend": ["queue", "mend", "closed/queue"],
    "broker ls": ["broker", "ls", "closed/queue"],
    "status": ["status", "closed/queue"],
    "reload": ["reload", "closed/queue"],
    "flight": ["flight", "--queue=closed/queue"],
    "table counts": ["table", "counts", "closed/table"],
    "table verify": ["table", "verify", "closed/table"],
    "bridge": ["bridge", "--queue=closed/queue", "--table=table"],
    "passwd": ["passwd", "closed/users", "me", "--delete"],
    "send": ["send", "lumberjack", "tls:127.0.0.1:1", "--tls-ca=closed/ca.pem"],
    "send with a password": [
        "send",
        "sabc",
        "tcp:127.0.0.1:1",
        "--user=a",
        "--password-file=closed/p",
    ],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "g.toml").write_text('[lumberjack]\nendpoint = "tcp:0:interface=127.0.0.1"\n')
    (tmp_path / "closed").mkdir(mode=0o000)
    return tmp_path


@linux
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_every_command_says_in_one_line_what_it_may_not_use(
    launch: Launcher, directory: Path, words: list[str]
) -> None:
    """RD-14"""
    done = launch.run(*words, module=POWERLESS)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) <= 1 or words[0] == "gateway", said
    assert "closed" in said
    assert "ermission denied" in said or "may not use" in said


@linux
@pytest.mark.parametrize(
    "words", [["vacuum"], ["expire", "--keep=30d"], ["expire", "--before=2026-01-01"]]
)
def test_a_table_that_may_only_be_read_is_a_line(
    launch: Launcher, tmp_path: Path, words: list[str]
) -> None:
    """RD-14: what time its disk has is asked with a file."""
    from twisted_msgproto.table.delta_table import Table
    from twisted_msgproto.table.landing import TABLE_SCHEMA

    Table.create(tmp_path / "table", TABLE_SCHEMA)
    log = tmp_path / "table" / "_delta_log"
    log.chmod(0o555)
    done = launch.run("table", words[0], "table", *words[1:], module=POWERLESS)
    log.chmod(0o755)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "_delta_log" in said and "ermission denied" in said


TWISTD_OPTIONS = {
    "--logfile=closed": ("--logfile: closed: Is a directory; name another file", "--logfile=-"),
    "--logfile=nosuch/log": (
        "nosuch/log: No such file or directory; name another file",
        "--logfile=-",
    ),
    "--pidfile=nosuch/pid": (
        r"nosuch/pid: No such file or directory; (--pidfile=) goes without one",
        "",
    ),
    "--pidfile=closed": (r"closed: Is a directory; (--pidfile=) goes without one", ""),
    "--rundir=nosuch": ("--rundir: there is no directory nosuch; make it first", "--rundir=."),
    "--chroot=nosuch": ("--chroot: there is no directory nosuch; make it first", "--rundir=."),
    "--uid=4294967": ("there is no user of the number 4294967 here", "--rundir=."),
}
"""An option of twistd's own, what is said of it, and what works in its place ("": what is said)."""


@pytest.mark.parametrize("option", TWISTD_OPTIONS)
def test_options_of_twistd_name_what_is_there(
    directory: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """RD-14: else they ended in Twisted's tracebacks."""
    monkeypatch.chdir(directory)
    words, remedy = TWISTD_OPTIONS[option]
    server = ["lumberjack", "-etcp:0:interface=127.0.0.1"]
    with pytest.raises(SystemExit) as refused:
        twistd.ServerOptions().parseOptions(["-n", option, *server])
    found = re.search(words, str(refused.value))
    assert found is not None, refused.value
    twistd.ServerOptions().parseOptions(["-n", remedy or found[1], *server])


@linux
@pytest.mark.parametrize(
    "server", [["lumberjack", "-etcp:0:interface=127.0.0.1"], ["msgproto", "--config=g.toml"]]
)
def test_a_pid_file_where_none_may_be_written_is_a_line(
    launch: Launcher, directory: Path, server: list[str]
) -> None:
    """RD-14: else it ended in Twisted's traceback."""
    refused = launch("twistd", "-n", "--pidfile=closed/pid", *server, module=POWERLESS)
    assert refused.wait() != 0
    [line] = refused.lines
    assert "closed/pid: Permission denied; --pidfile= goes without one" in line
    launch("twistd", "-n", "--pidfile=", *server, module=POWERLESS).line("lumberjack listening")


@pytest.mark.parametrize(
    "words",
    [
        ["--syslog", "--pidfile=", "lumberjack"],
        ["--logger=twisted.logger.jsonFileLogObserver", "--pidfile=", "lumberjack"],
        ["--logfile=log", "--pidfile=", "--chroot=jail", "--rundir=/inside", "lumberjack"],
        ["--logfile=log", "--pidfile=/inside/pid", "--chroot=jail", "lumberjack"],
        ["msgproto", "--config=g.toml", "--show-config"],
    ],
    ids=" ".join,
)
def test_what_twistd_does_not_write_is_not_missed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """RD-14: a log elsewhere, places within --chroot, and what only shows."""
    if "--chroot=jail" in words and os.geteuid():
        pytest.skip("--chroot is for root")
    monkeypatch.chdir(directory)
    Path("twistd.log").mkdir()
    Path("jail/inside").mkdir(parents=True)
    try:
        twistd.ServerOptions().parseOptions(words)
    except SystemExit as end:
        assert end.code == 0 and "--show-config" in words


def test_a_server_without_a_log_file_needs_no_place_for_one(
    launch: Launcher, directory: Path
) -> None:
    """RD-14: python -m twisted has none of twistd's options"""
    (directory / "twistd.log").mkdir()
    launch("lumberjack", "-e", "tcp:0:interface=127.0.0.1", module="twisted").line("listening")


@pytest.mark.parametrize("name", ["nosuchuser", "no user", "", "-D", "$(id)"])
def test_a_user_who_is_not_there_is_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    """RD-14: useradd makes none of such a name as the last four."""
    words = [sys.executable, "-m", "twisted_msgproto", "init", "here", f"--user={name}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.returncode == 2
    assert ("useradd" in done.stderr) == ("useradd --system nosuchuser" in done.stderr)
    assert (name == "nosuchuser") == ("useradd" in done.stderr)
    assert f"there is no user {name!r} here" in done.stderr
    assert not (tmp_path / "here").exists()


TWISTD = [sys.executable, "-c", "from twisted.scripts.twistd import run; run()"]
SERVER = ["lumberjack", "--queue=queue", "-e", "unix:s:mode=600"]


def serve(launch: Launcher, log: Path, words: list[str]) -> Launched:
    """Start a server that logs to a file; it listens when this returns."""
    server = launch.command([*words, *SERVER])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not log.exists() or "lumberjack listening" not in log.read_text():
        assert time.monotonic() < deadline, server.output
        time.sleep(0.05)
    return server


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_no_file_of_ours_is_read_or_written_by_strangers__RD_45(
    launch: Launcher, umask: int
) -> None:
    """Logs, PID files, tokens and passwords; systemd wants to show units."""
    here, before = launch.directory, os.umask(umask)
    try:
        assert launch.run("init", "made").returncode == 0
        assert launch.run("passwd", "users", "ada", stdin="s3cret\n").returncode == 0
        daemon = launch.command([*TWISTD, "--pidfile=p", *SERVER])
        assert daemon.wait() == 0  # it returns when its child serves
        pid = int((here / "p").read_text())
        assert stat.S_IMODE((here / "p").stat().st_mode) == 0o600
        os.kill(pid, signal.SIGTERM)
        assert wait_gone(pid)
        front = serve(launch, here / "front.log", [*TWISTD, "-n", "--logfile=front.log"])
        assert stat.S_IMODE((here / "twistd.pid").stat().st_mode) == 0o600
        front.end()
        words = [sys.executable, "-m", "twisted", "--log-file=twist.log"]
        serve(launch, here / "twist.log", words).end()
        flight = launch("flight", "--queue=queue", "--listen=grpc://127.0.0.1:0")
        flight.line(r"^\d{4}-\d\d-\d\dT\S+Z flight listening")
        flight.end()
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(here)): stat.S_IMODE(path.stat().st_mode)
        for path in here.rglob("*")
        if path.is_file()
    }
    assert {"twistd.log", "front.log", "twist.log", "users", "made/gateway.toml"} <= modes.keys()
    units = {name: mode for name, mode in modes.items() if name.endswith(".service")}
    assert set(units.values()) == {0o644}
    others = modes.items() - units.items()
    assert {name: oct(mode) for name, mode in others if mode & 0o137} == {}


def test_a_log_that_is_there_keeps_its_mode__RD_45(launch: Launcher) -> None:
    """RD-45"""
    log = launch.directory / "l"
    log.write_text("before\n")
    log.chmod(0o640)
    serve(launch, log, [*TWISTD, "-n", "--pidfile=", "--logfile=l"]).end()
    assert stat.S_IMODE(log.stat().st_mode) == 0o640


if __name__ == "__main__":
    main()
