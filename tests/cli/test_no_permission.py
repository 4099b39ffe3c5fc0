"""What an operator may not read or write is one line with the file and the remedy."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from twisted.scripts import twistd

from tests.tools.processes import (
    AFTER,
    PATIENCE_SECONDS,
    Launched,
    Launcher,
    msgproto,
    wait_gone,
)
from tests.tools.queues import batch, put
from twisted_msgproto.queue import QueueReader, QueueWriter

POWERLESS = """
import ctypes
version_and_process, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
if ctypes.CDLL(None, use_errno=True).capset(version_and_process, none):
    raise OSError(ctypes.get_errno(), "capset")
"""
"""What a command is like for root without capabilities: it has the rights of the modes alone."""

TWISTD = "from twisted.scripts.twistd import run; run()"

linux = pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")

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
    "table counts there": ["table", "counts", "closed"],
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
    done = launch.run(POWERLESS, "twisted_msgproto", *words, module=AFTER)
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
    command = ["twisted_msgproto", "table", words[0], "table", *words[1:]]
    done = launch.run(POWERLESS, *command, module=AFTER)
    log.chmod(0o755)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "_delta_log" in said and "ermission denied" in said


@linux
def test_a_queue_where_nobody_may_write_is_a_line(launch: Launcher, directory: Path) -> None:
    """RD-14"""
    (directory / "closed").chmod(0o555)
    with (directory / "g.toml").open("a") as file:
        file.write('[queue]\ndirectory = "closed/q"\n')
    done = launch.run(POWERLESS, "twisted_msgproto", "check", "g.toml", module=AFTER)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("/closed cannot be written\n")


OF_ANOTHER = {
    "broker ls": (["broker", "ls", "q"], 2),
    "broker peek": (["broker", "peek", "q", "orders"], 2),
    "broker purge": (["broker", "purge", "q", "orders"], 2),
    "broker requeue": (["broker", "requeue", "q", "orders"], 2),
    "queue trim": (["queue", "trim", "q"], 2),
    "queue mend": (["queue", "mend", "q"], 1),
    "queue consumers --reset": (["queue", "consumers", "q", "--reset", "c", "earliest"], 2),
}


@pytest.mark.parametrize(("words", "status"), OF_ANOTHER.values(), ids=OF_ANOTHER.keys())
def test_root_leaves_nothing_in_a_queue_which_its_gateway_could_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int
) -> None:
    """The gateway did not start again after root's ``msgproto broker ls``."""
    monkeypatch.chdir(tmp_path)
    with closing(QueueWriter("q")) as writer:
        put(writer, batch(1))
    QueueReader("q").register("c")
    Path("q/broker").mkdir()

    def files() -> dict[Path, tuple[int, int]]:
        found = {path: path.stat() for path in Path("q").rglob("*")}
        return {path: (one.st_ino, one.st_mtime_ns) for path, one in found.items()}

    before = files()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    line = rf"the queue {tmp_path}/q belongs to the user {owner}: run this as that user\n"
    assert re.search(line, msgproto(*words, status=status))
    assert files() == before


def test_a_volume_that_is_the_queue_may_have_another_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes gives a volume to root and the gateway's group."""
    monkeypatch.chdir(tmp_path)
    with closing(QueueWriter("q")) as writer:
        put(writer, batch(1))
    QueueReader("q").register("c")
    stat_of = os.stat

    def mounted(path: Any, **options: Any) -> os.stat_result:
        found = stat_of(path, **options)
        if os.fspath(path) != "q":
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    monkeypatch.setattr(os, "stat", mounted)
    for words, _ in OF_ANOTHER.values():
        if words[0] == "queue":
            msgproto(*words)


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
    twistd = [POWERLESS + TWISTD, "twistd", "-n"]
    refused = launch(*twistd, "--pidfile=closed/pid", *server, module=AFTER)
    assert refused.wait() != 0
    [line] = refused.lines
    assert "closed/pid: Permission denied; --pidfile= goes without one" in line
    launch(*twistd, "--pidfile=", *server, module=AFTER).line("lumberjack listening")


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
    told = msgproto("init", tmp_path / "here", f"--user={name}", status=2)
    assert ("useradd" in told) == ("useradd --system nosuchuser" in told)
    assert (name == "nosuchuser") == ("useradd" in told)
    assert f"there is no user {name!r} here" in told
    assert not (tmp_path / "here").exists()


SERVER = ["lumberjack", "--queue=queue", "-e", "unix:s:mode=600"]


def serve(launch: Launcher, log: str, *words: str) -> Launched:
    """Start a server that logs to a file; it listens when this returns."""
    server, file = launch(*words, *SERVER, module=AFTER), launch.directory / log
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not file.exists() or "lumberjack listening" not in file.read_text():
        assert time.monotonic() < deadline, server.output
        time.sleep(0.05)
    return server


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_no_file_of_ours_is_read_or_written_by_strangers__RD_45(
    launch: Launcher, umask: int
) -> None:
    """Logs, PID files, tokens and passwords; systemd wants to show units."""
    here, first = launch.directory, f"import os; os.umask({umask})\n"
    ours, twistd = (first, "twisted_msgproto"), (first + TWISTD, "twistd")
    assert launch.run(*ours, "init", "made", module=AFTER).returncode == 0
    passwd = launch.run(*ours, "passwd", "users", "ada", module=AFTER, stdin="s3cret\n")
    assert passwd.returncode == 0
    daemon = launch(*twistd, "--pidfile=p", *SERVER, module=AFTER)
    assert daemon.wait() == 0  # it returns when its child serves
    pid = int((here / "p").read_text())
    assert stat.S_IMODE((here / "p").stat().st_mode) == 0o600
    os.kill(pid, signal.SIGTERM)
    assert wait_gone(pid)
    front = serve(launch, "front.log", *twistd, "-n", "--logfile=front.log")
    assert stat.S_IMODE((here / "twistd.pid").stat().st_mode) == 0o600
    front.end()
    serve(launch, "twist.log", first, "twisted", "--log-file=twist.log").end()
    flight = launch(*ours, "flight", "--queue=queue", "--listen=grpc://127.0.0.1:0", module=AFTER)
    flight.line(r"^\d{4}-\d\d-\d\dT\S+Z flight listening")
    flight.signal(signal.SIGHUP)
    assert flight.wait() == 0
    assert stat.S_IMODE((here / "made").stat().st_mode) == 0o755
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
    serve(launch, "l", TWISTD, "twistd", "-n", "--pidfile=", "--logfile=l").end()
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
