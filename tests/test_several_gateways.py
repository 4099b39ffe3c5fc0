"""Several gateways on one machine: ports that they share, systemd, one bridge for all queues."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import socket
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent

from tests.tools.certificates import Authority
from tests.tools.processes import (
    PATIENCE_SECONDS,
    START_SECONDS,
    Launched,
    Launcher,
    environment,
    msgproto,
)
from tests.tools.queues import batch, put
from twisted_msgproto import cli
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.gateway import Configuration
from twisted_msgproto.net.gateway import Gateway
from twisted_msgproto.net.site.client import GatewayBroker
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.spark.landed_table import LandedTable

LOOPBACK = "tcp:0:interface=127.0.0.1"


def made_queue(directory: Path, first: int, count: int = 3) -> bytes:
    """Make a queue of some messages; return its published end as it was before them."""
    writer = QueueWriter(directory)
    before = (directory / "end").read_bytes()
    put(writer, batch(first, count))
    writer.close()
    return before


# ── the file ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("processes = 2\n[lumberjack]", "unknown key 'processes'; known: "),
        ("[lumberjack]\nprocesses = 1", r"\[lumberjack\]: unknown key 'processes'"),
        ("[lumberjack]\nreuse-port = 1", r"\[lumberjack\]: reuse-port is true or false, not 1$"),
        (
            "[micromsg2]\nreuse-port = true",
            r"\[micromsg2\]: reuse-port cannot be true here: its topics and queues are in one"
            r" process \(no-broker = true leaves them out\)$",
        ),
        (
            "[umq]\nreuse-port = true",
            r"\[umq\]: reuse-port .*topics .* one process \(no-hub = true leaves them out\)$",
        ),
        (
            "[mtl]\nreuse-port = true",
            r"\[mtl\]: reuse-port .*several connections.*give each gateway endpoints of its own$",
        ),
        (
            "[lumberjack]\nreuse-port = true\nendpoint = ['tcp:5044', 'unix:/run/x']",
            r"\[lumberjack\]: reuse-port is for TCP ports, and 'unix:/run/x' is none: leave one of",
        ),
        (
            "[lumberjack]\nreuse-port = true\nendpoint = 'systemd:domain=INET:index=0'",
            r"\[lumberjack\]: reuse-port is for TCP ports, and 'systemd:.*:index=0' is none",
        ),
        (
            "[sabc]\nreuse-port = true\nwebsocket = 'unix:/run/x'",
            r"\[sabc\]: reuse-port is for TCP ports, and 'unix:/run/x' is none",
        ),
        (
            "[lumberjack]\nreuse-port = true\nendpoint = 'tcp:5047'\n"
            "[sabc]\nreuse-port = true\nwebsocket = 'haproxy:tcp:5047'",
            r"\[sabc\]: 'haproxy:tcp:5047': \[lumberjack\] has this port, too$",
        ),
    ],
)
def test_what_several_gateways_cannot_share_is_refused_with_the_remedy(
    text: str, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        Configuration(tomllib.loads(text))
    assert "\n" not in str(caught.value)


def test_what_they_can_share_is_accepted() -> None:
    text = """
    [lumberjack]
    reuse-port = true
    endpoint = ["tcp:0", "tcp:5044", "tcp6:5044"]
    [micromsg2]
    reuse-port = true
    no-broker = true
    [sabc]
    reuse-port = true
    endpoint = "tcp:0"
    [umq]
    reuse-port = true
    no-hub = true
    """
    made = Configuration(tomllib.loads(text))
    assert all(options["reuse-port"] for options in made.servers.values())


# ── ports ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def ports() -> Iterator[Iterator[int]]:
    """Ports that are ours, and that others of this user may listen on if they ask for it."""
    with contextlib.ExitStack() as stack:

        def held() -> Iterator[int]:
            while True:
                one = stack.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind(("127.0.0.1", 0))
                yield one.getsockname()[1]

        yield held()


@pytest.fixture
def port(ports: Iterator[int]) -> int:
    return next(ports)


def gateway_file(directory: Path, port: int, reuse: str = "true") -> None:
    (directory / "gateway.toml").write_text(
        f"[lumberjack]\nreuse-port = {reuse}\nendpoint = 'tcp:{port}:interface=127.0.0.1'\n"
    )


def send(connection: socket.socket, body: bytes) -> bool:
    """Send one event of Lumberjack; whether it was acknowledged."""
    with contextlib.suppress(OSError):
        connection.sendall(b"2W\0\0\0\x012J\0\0\0\x01" + len(body).to_bytes(4, "big") + body)
        answer = b""
        while len(answer) < 6 and (more := connection.recv(6 - len(answer))):
            answer += more
        return answer == b"2A\0\0\0\x01"
    return False


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)


def test_check_binds_a_port_that_is_shared_and_takes_no_connection_from_those_that_serve(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listened in a trial would be handed connections, and drop them."""
    gateway_file(tmp_path, port)
    listened: list[object] = []
    real = socket.socket.listen
    monkeypatch.setattr(
        socket.socket, "listen", lambda self, *more: (listened.append(self), real(self, *more))
    )
    with socket.socket() as serves:
        serves.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        serves.bind(("127.0.0.1", port))
        real(serves)
        assert cli.main(["check", str(tmp_path / "gateway.toml")]) == 0
        assert listened == []
        gateway_file(tmp_path, port, reuse="false")
        assert cli.main(["check", str(tmp_path / "gateway.toml")]) == 2
    assert "use" in capsys.readouterr().err


def test_check_shares_the_ports_of_no_server_that_does_not(
    tmp_path: Path, ports: Iterator[int]
) -> None:
    gateway_file(tmp_path, next(ports))
    file = tmp_path / "gateway.toml"
    alone = f"tcp:{next(ports)}:interface=127.0.0.1"
    file.write_text(f"{file.read_text()}[umq]\nendpoint = '{alone}'\n")
    (line,) = msgproto("check", file, status=2).splitlines()
    assert f"cannot listen on {alone}" in line and "lumberjack" not in line


def test_every_server_that_can_share_listens_beside_that_of_another_gateway(
    launch: Launcher, ports: Iterator[int]
) -> None:
    Authority(launch.directory).server()
    tls = "privateKey=server.key.pem:certKey=server.cert.pem"
    places = [f"tcp:{next(ports)}:interface=127.0.0.1" for _ in range(5)]
    secret = f"ssl:{next(ports)}:interface=127.0.0.1:{tls}"
    (launch.directory / "gateway.toml").write_text(
        f"[lumberjack]\nreuse-port = true\nendpoint = ['{places[0]}', '{secret}']\n"
        f"[micromsg2]\nreuse-port = true\nno-broker = true\nendpoint = '{places[1]}'\n"
        f"[sabc]\nreuse-port = true\nendpoint = '{places[2]}'\nwebsocket = '{places[3]}'\n"
        f"[umq]\nreuse-port = true\nno-hub = true\nendpoint = '{places[4]}'\n"
    )
    for _ in range(2):
        gateway = launch("gateway", "--config", "gateway.toml")
        gateway.line("listening on", nth=6)
    assert launch.run("check", "gateway.toml").returncode == 0


def test_check_names_a_shared_port_that_a_program_has_for_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as alone:
        gateway_file(tmp_path, alone.getsockname()[1])
        assert cli.main(["check", str(tmp_path / "gateway.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot listen on" in line and "use" in line


# ── systemd ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("program", ["gateway", "twistd", "abstract"])
def test_systemd_is_told_of_the_start_of_life_and_of_the_end(
    launch: Launcher, program: str
) -> None:
    (launch.directory / "g.toml").write_text(f"[lumberjack]\nendpoint = '{LOOPBACK}'\n")
    name = os.fspath(launch.directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(START_SECONDS)
        systemd.bind(f"\0{name}" if program == "abstract" else name)
        env = environment(
            NOTIFY_SOCKET=f"@{name}" if program == "abstract" else name, WATCHDOG_USEC="200000"
        )
        if program == "twistd":
            server = launch("lumberjack", "-e", LOOPBACK, module="twisted", env=env)
        else:
            server = launch("gateway", "--config", "g.toml", env=env)
        assert systemd.recv(64) == b"READY=1"
        server.port("lumberjack")  # it listened before it said so
        assert [systemd.recv(64) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        server.end()
        while (told := systemd.recv(64)) == b"WATCHDOG=1":
            pass
        assert told == b"STOPPING=1"


def test_a_watchdog_of_another_process_is_not_fed_and_nobody_who_does_not_listen_is_needed(
    launch: Launcher,
) -> None:
    name = os.fspath(launch.directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(START_SECONDS)
        systemd.bind(name)
        env = environment(NOTIFY_SOCKET=name, WATCHDOG_USEC="200000", WATCHDOG_PID="1")
        server = launch("lumberjack", "-e", LOOPBACK, module="twisted", env=env)
        assert systemd.recv(64) == b"READY=1"
        server.end()
        assert systemd.recv(64) == b"STOPPING=1"
    env = environment(NOTIFY_SOCKET=name)  # nobody is there any more
    (launch.directory / "g.toml").write_text(f"[lumberjack]\nendpoint = '{LOOPBACK}'\n")
    server = launch("gateway", "--config", "g.toml", env=env)
    server.line("systemd was not told READY=1: .*refused")
    with connected(server.port("lumberjack")) as line:
        assert send(line, b"{}")


def test_a_watchdog_is_fed_twice_in_its_time(tmp_path: Path) -> None:
    """Once in it would be too late whenever the reactor has something else to do."""
    reactor: Any = MemoryReactorClock()
    gateway = Gateway(reactor)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.setblocking(False)
        systemd.bind(name := os.fspath(tmp_path / "notify"))
        gateway.tellsSystemd({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000"})
        gateway.startService()
        reactor.run()
        assert [systemd.recv(64) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
        reactor.advance(5)
        assert systemd.recv(64) == b"WATCHDOG=1"
        with capturedLogs() as logged:  # nobody reads any more: that keeps nobody waiting
            while not logged:
                reactor.advance(5)
        assert "systemd was not told WATCHDOG=1" in str(formatEvent(logged[0]))
        gateway.stopService()


# ── queues that no gateway holds ────────────────────────────────────────────────────────────────


def told_from_now_on(server: Launched) -> tuple[dict[str, Any], str]:
    """The figures and the metrics of a gateway as they are now: its last ones are kept for 1 s."""
    page = f"http://127.0.0.1:{server.port('status')}"
    asked_at = time.time() * 1e6
    while (figures := GatewayBroker(page).figures())["at"] < asked_at:
        time.sleep(0.05)  # or else two processors ask and answer all the time
    return figures, urlopen(f"{page}/metrics").read().decode()


@pytest.mark.slow
def test_the_page_says_what_becomes_of_queues_that_no_gateway_holds(launch: Launcher) -> None:
    here = launch.directory
    own, left, empty = (here / "queue" / name for name in ("1", "2", "10"))
    old = made_queue(left, 0)
    made_queue(empty, 0)
    next(empty.glob("*.segment")).unlink()  # as if all had landed
    (here / "gateway.toml").write_text(
        f"[lumberjack]\nendpoint = '{LOOPBACK}'\n[status]\nendpoint = '{LOOPBACK}'\n"
        f"[queue]\ndirectory = '{own}'\n"
    )
    server = launch("gateway", "--config", "gateway.toml")
    server.port("lumberjack")
    QueueReader(own).register("b")

    def told() -> tuple[bool, str]:
        figures, metrics = told_from_now_on(server)
        unheld = figures["queue"]["unheld"]
        assert [one["directory"] for one in unheld] == [str(left), str(empty)]
        for one in unheld:
            label = f'{{directory="{one["directory"]}"}}'
            behind, ok = float(one["behind_messages"]), float(one["ok"])
            assert f"msgproto_queue_unheld_behind_messages{label} {behind}" in metrics
            assert f"msgproto_queue_unheld_landing{label} {ok}" in metrics
        assert f"msgproto_safe {float(figures['safe']['ok'])}" in metrics
        assert figures["healthy"]["ok"], "this gateway acknowledges"
        return figures["safe"]["ok"], figures["safe"]["why"]

    no_gateway = f"No gateway holds the queue {left}: What"
    assert told() == (
        False,
        f"{no_gateway} was acknowledged is on disk; nothing lands: the queue has no consumer.",
    )
    reader = QueueReader(left)
    reader.register("b")
    all_is_well = "Everything that was acknowledged is on disk and "
    assert told() == (True, f"{all_is_well}lands; queues that no gateway holds are 3 behind.")
    reader.commit("b", 3)
    assert told() == (True, f"{all_is_well}has landed.")
    shown = launch.run("status", f"http://127.0.0.1:{server.port('status')}").stdout
    assert f"{left}   0       msgproto queue mend {left}\n" in shown
    (left / "end").write_bytes(old)
    assert told() == (
        False,
        f"{no_gateway} it may have acknowledged last is not published: start its gateway, or run"
        f" msgproto queue mend {left}.",
    )
    command = re.search("or run msgproto (.*)[.]$", told()[1])
    assert command is not None
    assert cli.main(shlex.split(command[1])) == 0
    (empty / "identity").write_bytes(b"spoiled")
    ok, why = told()
    assert not ok and why.startswith(f"No gateway holds the queue {empty}: The queue's files")
    writer = QueueWriter(left)  # somebody has it again
    figures, _ = told_from_now_on(server)
    assert [one["directory"] for one in figures["queue"]["unheld"]] == [str(empty)]
    writer.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bridge_finds_a_further_queue_in_the_directory_while_it_runs(launch: Launcher) -> None:
    spool, later = launch.directory / "spool", launch.directory / "later"
    made_queue(spool / "1", 0)
    words = ("bridge", "--queue", spool, "--table", "table", "--trigger", "200ms")
    landing = launch("--here", *words, "--consumer", "c", module="tests.tools.dying")
    landing.line(r"batch \d+: ", seconds=START_SECONDS)
    made_queue(later, 20, 5)
    (later / "bridges").mkdir()
    with open(later / "bridges" / "c.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        later.rename(spool / "3")
        landing.line(r"/spool/3 is not landed: .* in use", seconds=START_SECONDS)
        made_queue(spool / "2", 10, 4)
        landing.line(r"/spool/2 is a new queue", seconds=START_SECONDS)
        landing.line(r"batch \d+: ", nth=2, seconds=START_SECONDS)
    landing.line(r"/spool/3 is a new queue", seconds=START_SECONDS)
    landing.line(r"batch \d+: ", nth=3, seconds=START_SECONDS)
    assert landing.end() == 0, landing.output
    assert landing.output.count("is not landed") == 1
    rows = LandedTable(launch.directory / "table").read(["gateway"])
    assert sorted(Counter(rows["gateway"].to_pylist()).values()) == [3, 4, 5]
    assert list((spool / "2" / "bridges").glob("*.json")), "its page shows the bridge"


# ── four gateways, one bridge ───────────────────────────────────────────────────────────────────

CONNECTIONS = 48
"""The kernel spreads connections by a hash: with so many none of four gateways is left out."""


def started(launch: Launcher, number: int) -> Launched:
    """Start an instance as the unit that init writes does, but with a page on a free port."""
    words = ("gateway", "--config", "gateway.toml", "--queue", f"queue/{number}")
    server = launch(*words, "--set", f"status.endpoint={LOOPBACK}")
    server.port("lumberjack")
    return server


def bodies(queue: Path) -> list[bytes]:
    reader = QueueReader(queue)
    return [
        body
        for found in reader.read(reader.begin(), reader.end())
        for body in found.column("body").to_pylist()
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_four_gateways_on_one_port_one_goes_for_good_and_all_it_acknowledged_lands(
    launch: Launcher, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its published end is as a loss of power has left it: nobody else would publish the rest."""
    here = launch.directory
    assert cli.main(["init", str(here), "--instances", "4", "--protocol", "lumberjack"]) == 0
    file = here / "gateway.toml"
    endpoint = f"endpoint = 'tcp:{port}:interface=127.0.0.1'\nreuse-port = true"
    file.write_text(file.read_text().replace("reuse-port = true", endpoint))
    servers = [started(launch, number) for number in range(1, 5)]
    queue = here / "queue"
    told: set[bytes] = set()
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connected(port)) for _ in range(CONNECTIONS)]
        for number, line in enumerate(lines):
            body = b'{"n":%d}' % number
            assert send(line, body)
            told.add(body)
        assert all(bodies(queue / str(number)) for number in range(1, 5)), "each has its part"
        old = (queue / "2" / "end").read_bytes()
        whose = [
            body in bodies(queue / "2") for body in (b'{"n":%d}' % n for n in range(CONNECTIONS))
        ]
        for number, line in enumerate(lines, CONNECTIONS):
            body = b'{"n":%d}' % number
            assert send(line, body)
            told.add(body)
        assert servers[1].kill() == -signal.SIGKILL
        (queue / "2" / "end").write_bytes(old)
        for number, line in enumerate(lines, 2 * CONNECTIONS):
            body = b'{"n":%d}' % number
            if whose[number - 2 * CONNECTIONS]:
                assert not send(line, body)
                line = stack.enter_context(connected(port))  # as a shipper does
            assert send(line, body), "the others go on"
            told.add(body)
    hidden = told - {body for place in queue.iterdir() for body in bodies(place)}
    assert hidden, "what the lost end hides"

    # The pages of the others, and doctor, say what to do.
    shown = launch.run("status", "--json", f"http://127.0.0.1:{servers[0].port('status')}")
    figures = json.loads(shown.stdout)
    (left,) = figures["queue"]["unheld"]
    assert (left["directory"], left["ok"]) == (str(queue / "2"), False)
    assert "start its gateway, or run msgproto queue mend" in left["why"]
    assert not figures["safe"]["ok"]
    capsys.readouterr()
    cli.main(["doctor", "--queue", str(queue / "3")])
    command = f"queue mend {queue / '2'}"
    assert f"or run msgproto {command}" in capsys.readouterr().out

    assert cli.main(["queue", "mend", str(queue)]) == 0
    lines_of_mend = capsys.readouterr().out.splitlines()
    assert len(lines_of_mend) == 4
    assert lines_of_mend[1].startswith(f"{queue / '2'}: mended, ")
    for number in (1, 3, 4):
        assert lines_of_mend[number - 1].startswith(f"{queue / str(number)}: in use: ")
    landing = launch(
        *("--here", "bridge", "--queue", queue, "--table", here / "table", "--once"),
        module="tests.tools.dying",
    )
    assert landing.wait(seconds=START_SECONDS) == 0, landing.output
    rows = LandedTable(here / "table").read(["gateway", "offset", "body"])
    landed = Counter(rows["body"].to_pylist())
    assert told <= set(landed)
    assert max(landed.values()) == 1
    assert len(set(rows["gateway"].to_pylist())) == 4
    ends = [server.end() for number, server in enumerate(servers) if number != 1]
    assert set(ends) <= {0, -signal.SIGTERM}


# ── commands over several queues ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("action", ["ls", "verify", "trim"])
def test_what_is_said_of_several_queues_names_the_directory_of_each(
    tmp_path: Path, action: str
) -> None:
    """An id alone does not tell an operator which directory may be removed."""
    places = [os.fspath(tmp_path / name) for name in "12"]
    for place in places:
        made_queue(Path(place), 0)
    lines = msgproto("queue", action, tmp_path).splitlines()
    assert [line for line in lines if line.endswith(":")] == [f"{place}:" for place in places]
    if action != "trim":
        told = [
            json.loads(line) for line in msgproto("queue", action, "--json", tmp_path).splitlines()
        ]
        assert [one["directory"] for one in told] == places


def test_tail_shows_the_last_of_all_queues_and_whose_they_are(tmp_path: Path) -> None:
    made_queue(tmp_path / "1", 10)
    made_queue(tmp_path / "b", 0)
    rows = [
        json.loads(line)
        for line in msgproto("queue", "tail", tmp_path, "-n", "4", "--json").splitlines()
    ]
    assert [row["received_at"] for row in rows] == sorted(row["received_at"] for row in rows)
    places = {(row["queue"], row["offset"]) for row in rows}
    assert len(places) == 4
    assert {queue for queue, _ in places} <= {"1", "b"}
    assert f"name one, such as {tmp_path / '1'}" in msgproto(
        "queue", "dump", str(tmp_path), status=2
    )


def test_mend_refuses_what_is_no_queue_or_anothers_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "refused: no queue in" in msgproto("queue", "mend", tmp_path, status=1)
    assert list(tmp_path.iterdir()) == [], "an empty directory does not become a queue"
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "identity").write_text("?")
    made_queue(tmp_path / "2", 0)
    [segment] = (tmp_path / "2").glob("*.segment")
    with segment.open("ab") as file:
        file.write(b"torn")
    writer = QueueWriter(tmp_path / "3")
    writer.broker().close()
    writer.close()
    first, second, cut, third, broker = msgproto("queue", "mend", tmp_path, status=1).splitlines()
    assert first.startswith(f"{tmp_path / '1'}: refused: no queue in")
    assert second == f"{tmp_path / '2'}: mended, readers see it up to offset 3"
    assert cut == f"{tmp_path / '2'}: cut 4 bytes of an unfinished record from {segment}"
    assert third.startswith(f"{tmp_path / '3'}: mended")
    assert "its broker's queues wait until a gateway has it again" in broker
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "run this as that user" in msgproto("queue", "mend", tmp_path / "2", status=1)
