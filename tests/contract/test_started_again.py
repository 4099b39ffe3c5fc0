"""After ``kill -9`` the same command starts again, in a container, too: its PID is the same."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from twisted.scripts import twistd

from tests.spark.conftest import identity, messages, write
from tests.tools.loops import landed_offsets
from tests.tools.processes import START_SECONDS, Launcher, contained, environment, launching
from twisted_msgproto.spark.java import find_java

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


BOTH = ["gateway", "twistd -n"]
SET_UPS = ["read-only", "uid", "host", "proxies", "no-ipv6", "all"]
"""What a container may be beside a PID name space of its own: words of containers.sh."""

LONG = pytest.mark.long


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


@pytest.mark.parametrize(
    ("way", "set_up"),
    [
        *((way, "") for way in WAYS),
        *((way, "all") for way in BOTH),
        *(pytest.param(way, set_up, marks=LONG) for way in BOTH for set_up in SET_UPS[:-1]),
        *(pytest.param(way, "all", marks=LONG) for way in WAYS if way not in BOTH),
    ],
)
def test_the_same_command_starts_again_after_a_kill(
    launch: Launcher, directory: Path, way: str, set_up: str
) -> None:
    """RD-10: its sockets, their locks and its PID file are left behind, and are no obstacle."""
    command = contained(set_up, sys.executable, *WAYS[way])
    for _ in range(2):
        server = launch.command(command)
        server.line("lumberjack listening on unix:")
        assert acknowledged(directory / "s")
        server.kill()  # and unshare hands SIGTERM to nobody


def test_a_pid_that_another_program_has_now_is_no_obstacle__RD_10(
    launch: Launcher, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RD-10: a container with an init of its own gives the number to whoever comes first."""
    monkeypatch.chdir(directory)
    file, other = Path("twistd.pid"), launch.command(["sleep", "1000"])
    for left in (str(other.pid), str(os.getpid()), ""):  # a power failure leaves an empty one
        file.write_text(left)
        twistd.ServerOptions().parseOptions(["-n", *PLUGIN])
        assert not file.exists()
    server = launch.command([sys.executable, *WAYS["twistd -n"]])
    server.line("lumberjack listening on unix:")
    twistd.ServerOptions().parseOptions(["-n", *PLUGIN])
    assert file.read_text() == str(server.pid)
    second = launch.command([sys.executable, *WAYS["twistd -n"]])
    assert second.wait() == 1
    assert "Another twistd server is running" in second.output


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.xdist_group("bridges")
@pytest.mark.parametrize(
    "set_up", ["all", *(pytest.param(word, marks=LONG) for word in ["", *SET_UPS[:-1]])]
)
def test_the_same_bridge_lands_again_after_a_kill(launch: Launcher, set_up: str) -> None:
    """RD-10: in a container, too, with a TMPDIR, since its /tmp may be read-only."""
    here = launch.directory
    (here / "tmp").mkdir()
    words = ["bridge", "--queue=queue", "--table=table", "--master=local[1]"]
    command = contained(set_up, sys.executable, "-m", "twisted_msgproto", *words)
    for first, count in ((0, 30), (30, 20)):
        write(here / "queue", messages(first, count))
        bridge = launch.command(command, env=environment(TMPDIR=str(here / "tmp")))
        bridge.line(f"batch .*: {count} rows", seconds=START_SECONDS)
        bridge.kill()
    landed = landed_offsets(here / "table")
    assert landed == {identity(here / "queue"): list(range(50))}


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
def test_a_bridge_without_java_lands_once_the_named_variable_is_set__RD_12(
    launch: Launcher,
) -> None:
    here = launch.directory
    write(here / "queue", messages(0, 3))
    (here / "bash").symlink_to(str(shutil.which("bash")))
    words = ["bridge", "--queue=queue", "--table=table", "--master=local[1]", "--once"]
    command = [sys.executable, "-m", "twisted_msgproto", *words]
    bare = environment(PATH=str(here))
    bare.pop("JAVA_HOME", None)
    bridge = launch.command(command, env=bare)
    bridge.line("install one, set JAVA_HOME, or: pip install")
    assert bridge.wait() == 2
    bridge = launch.command(command, env={**bare, "JAVA_HOME": str(find_java().home)})
    bridge.line("batch .*: 3 rows", seconds=START_SECONDS)
    assert bridge.wait() == 0


ON_EACH = """
queue.directory = "queue"
status.endpoint = "{tcp}"
lumberjack.endpoint = "{tcp}"
micromsg2.endpoint = "{tcp}"
sabc = {{endpoint = "{tcp}", websocket = "{tcp}"}}
umq.endpoint = "{tcp}"
mtl.endpoint = "tcp://{host}:*"
"""


def talk(host: str) -> None:
    """Let each command talk with a gateway at this address, inside of the container."""
    here = Path.cwd()
    tcp = r"tcp6:0:interface=\\:\\:1" if host == "[::1]" else f"tcp:0:interface={host}"
    (here / "g.toml").write_text(ON_EACH.format(tcp=tcp, host=host))
    with launching(here) as launch:
        checked = launch.run("check", "g.toml")
        assert checked.returncode == 0, checked.stdout
        server = launch("gateway", "--config=g.toml")
        server.line("status listening")
        for name in ("lumberjack", "micromsg2", "sabc", "umq", "mtl"):
            sent = launch.run("send", name, server.address(name), "--count=3")
            assert sent.returncode == 0, sent.stderr
        page = launch.run("status", f"http://{host}:{server.port('status')}")
        assert page.returncode == 0, page.stderr
        flight = launch("flight", "--queue=queue", f"--listen=grpc://{host}:0")
        place = flight.line(r"listening on (\S+)")[1]
        tail = launch.run("queue", "tail", place, "-n", "15")
        assert tail.returncode == 0 and tail.stdout.count("\n") == 15, tail
        words = ["bridge", "--queue", place, "--table=table", "--master=local[1]", "--once"]
        landed = launch.run(*words, seconds=START_SECONDS)
        if landed.returncode and "ip addr add" in landed.stderr:
            subprocess.run(re.search(r"\((ip addr .*)\)", landed.stderr)[1].split(), check=True)
            landed = launch.run(*words, seconds=START_SECONDS)
        assert landed.returncode == 0, landed.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
@pytest.mark.parametrize(("set_up", "host"), [("no-ipv6", "127.0.0.1"), ("ipv6-only", "[::1]")])
def test_one_kind_of_addresses_is_enough(launch: Launcher, set_up: str, host: str) -> None:
    """Where the bridge needs another, its line has the command that gives it."""
    code = f"from {__name__} import talk; talk({host!r})"
    command = contained(set_up, sys.executable, "-c", code)
    done = launch.command(command)
    assert done.wait(seconds=2 * START_SECONDS) == 0, done.output
    # Not in there: a process that has used delta-rs and pyarrow may abort when it ends (RD-41).
    assert list(landed_offsets(launch.directory / "table").values()) == [list(range(15))]


ON_A_PATH = {
    "unix": "lumberjack.endpoint=unix:s",
    "unix, lockfile=0": "lumberjack.endpoint=unix:s:lockfile=0",
    "ipc": "mtl.endpoint=ipc://s",
}


@pytest.mark.parametrize("endpoint", ON_A_PATH.values(), ids=ON_A_PATH.keys())
def test_a_socket_that_is_listened_on_is_not_taken_over(launch: Launcher, endpoint: str) -> None:
    """RD-10: not by a check, either; ZeroMQ by itself takes any path."""
    (launch.directory / "empty.toml").write_text("")
    words = ["--config=empty.toml", f"--set={endpoint}"]
    server = launch("gateway", *words)
    server.line("listening")
    name, where = endpoint.removesuffix(":lockfile=0").split(".endpoint=")
    (launch.directory / "checked.toml").write_text(f'[{name}]\nendpoint = "{where}"\n')
    for done in (launch.run("gateway", *words), launch.run("check", "checked.toml")):
        assert done.returncode == 2
        assert f"cannot listen on {where[:4]}" in done.stdout + done.stderr
        assert "another process listens on it" in done.stdout + done.stderr
    sent = launch.run("send", name, where, "--count=1")
    assert sent.returncode == 0, sent.stderr


@pytest.mark.parametrize(
    "endpoint",
    [
        *ON_A_PATH.values(),
        "umq.endpoint=unix:s",
        "sabc.websocket=unix:s",
        "status.endpoint=unix:s",
        "mtl.endpoint=ipc://*",
    ],
)
def test_nothing_is_left_of_a_socket_after_an_orderly_end(launch: Launcher, endpoint: str) -> None:
    here = launch.directory
    (here / "tmp").mkdir()
    (here / "g.toml").write_text("[lumberjack]\nendpoint = 'unix:other'\n")
    table, key, where = re.split("[.=]", endpoint, maxsplit=2)
    server = "[umq]\nendpoint = 'unix:another'\n" * (table == "status")
    (here / "checked.toml").write_text(f"{server}[{table}]\n{key} = '{where}'\n")
    before = sorted(here.rglob("*"))
    words = ["gateway", "--config=g.toml", f"--set={endpoint}"]
    checked = launch.run("check", "checked.toml", env=environment(TMPDIR=str(here / "tmp")))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert sorted(here.rglob("*")) == before
    server = launch(*words, env=environment(TMPDIR=str(here / "tmp")))
    server.line("lumberjack listening")
    assert sorted(here.rglob("*")) != before
    server.end()
    assert sorted(here.rglob("*")) == before


def test_a_socket_of_another_server_is_left_alone(launch: Launcher) -> None:
    """Somebody has put it in the place of ours."""
    server = launch("mtl", "-e", "ipc://s", module="twisted")
    server.line("listening")
    (launch.directory / "s").unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(launch.directory / "s"))
        server.end()
    assert (launch.directory / "s").exists()


def test_a_start_does_not_wait_for_whoever_listens_and_takes_nobody(
    launch: Launcher, directory: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as stopped, socket.socket(socket.AF_UNIX) as waiting:
        stopped.bind(str(directory / "s"))
        stopped.listen(0)
        waiting.connect(str(directory / "s"))
        checked = launch.run("check", "bare.toml", seconds=20)
        done = launch.run("gateway", "--config=bare.toml", seconds=20)
        assert (checked.returncode, done.returncode) == (2, 2)
        for one in (checked, done):
            assert "another process listens on it" in one.stdout + one.stderr


@pytest.mark.parametrize("endpoint", ON_A_PATH.values(), ids=ON_A_PATH.keys())
def test_a_file_that_is_no_socket_stays(launch: Launcher, directory: Path, endpoint: str) -> None:
    (directory / "s").write_text("precious")
    (directory / "empty.toml").write_text("")
    done = launch.run("gateway", "--config=empty.toml", f"--set={endpoint}")
    assert done.returncode == 2
    assert "it is no socket" in done.stdout + done.stderr
    assert (directory / "s").read_text() == "precious"
