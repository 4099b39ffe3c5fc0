"""The programs in examples/servers do what they print, over real sockets.

An application of one's own over DurableSink: what it acknowledged is there when it has ended.
"""

from __future__ import annotations

import re
import signal
import socket
import struct
import sys

import pytest

from tests.tools.processes import PROJECT, START_SECONDS, Launched, Launcher, environment
from twisted_msgproto.lumberjack import encode_json, encode_window
from twisted_msgproto.net.clients.client_endpoints import host_and_port
from twisted_msgproto.queue import QueueReader, QueueWriter

SERVERS = PROJECT / "examples" / "servers"

PRINTED = {
    "filtering": """\
kept {"n": 1, "level": "info", "from": "127.0.0.1"}
event 1 is acknowledged
event 2 is acknowledged
kept {"n": 3, "level": "error", "from": "127.0.0.1"}
event 3 is acknowledged""",
    "relay": """\
20 is acknowledged
the site has b'20' of {'room': 'kitchen'}
the centre has b'20' of {'room': 'kitchen'}
21 is acknowledged
the site has b'21' of {'room': 'kitchen'}
the centre has b'21' of {'room': 'kitchen'}""",
    "prices": """\
{"name": "tea", "price": "2.50"} EUR
{"name": "coffee", "price": "3.20"} EUR
refused with 404: no such thing: cocoa""",
    "thermostat": """\
before: 20.0
change: from 20.0 to 21.5
attribute: 21.5
refused: ValueError: 99 °C is not between 5 and 30""",
    "workers": """\
3 jobs were queued
paint was done
mow was done
cook was done by Ben""",
}

GATEWAY = """
[lumberjack]
endpoint = ["tcp:0:interface=127.0.0.1"]
class = "filtering:Filtering"
[mtl]
endpoint = ["tcp://127.0.0.1:*"]
class = "workers:Foreman"
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_does(launch: Launcher, name: str) -> None:
    command = [sys.executable, "-W", "error::RuntimeWarning", str(SERVERS / f"{name}.py")]
    program = launch.command(command, env=environment(PYTHONUTF8="1"))
    assert program.wait(seconds=START_SECONDS) == 0, program.output
    assert program.output == PRINTED[name]


@pytest.mark.slow
def test_a_gateway_takes_their_classes(launch: Launcher) -> None:
    (launch.directory / "gateway.toml").write_text(GATEWAY)
    for name in ("filtering", "workers"):
        (launch.directory / f"{name}.py").write_text((SERVERS / f"{name}.py").read_text())
    checked = launch.run("check", "gateway.toml", "--file-only")
    assert checked.returncode == 0, checked.stderr


def test_every_example_is_run() -> None:
    assert {path.stem for path in SERVERS.glob("*.py")} == set(PRINTED)


PROGRAM = str(PROJECT / "examples" / "application" / "collector.py")
LOOPBACK = "tcp:0:interface=127.0.0.1"
WINDOW = 50
WINDOWS = 400


def collector(launch: Launcher, spool: str = "spool") -> Launched:
    return launch.command([sys.executable, PROGRAM, LOOPBACK, spool])


def acks(connection: socket.socket, program: Launched) -> list[int]:
    """Every acknowledgement until the end; the program is asked to end after the first."""
    came: list[int] = []
    asked = False
    octets = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return came
        if not piece:
            return came
        octets += piece
        while len(octets) >= 6:
            assert octets[:2] == b"2A"
            came.append(struct.unpack(">I", octets[2:6])[0])
            octets = octets[6:]
        if came and not asked:
            asked = True  # once: a second signal, after the reactor's end, would kill it
            program.signal(signal.SIGTERM)


def test_without_arguments_one_line_says_how_it_is_run(launch: Launcher) -> None:
    program = launch.command([sys.executable, PROGRAM])
    assert program.wait() == 1
    assert program.output.startswith("usage: python collector.py ENDPOINT DIRECTORY")
    assert len(program.lines) == 1


@pytest.mark.slow
def test_what_was_acknowledged_before_sigterm_is_in_the_queue(launch: Launcher) -> None:
    program = collector(launch)
    address = program.address("collector", seconds=START_SECONDS)
    stream = b"".join(
        encode_window(WINDOW)
        + encode_json(list(numbers), [b'{"n": %d}' % number for number in numbers])
        for first in range(1, WINDOW * WINDOWS, WINDOW)
        for numbers in [range(first, first + WINDOW)]
    )
    with socket.create_connection(
        host_and_port(address.removeprefix("tcp:")), START_SECONDS
    ) as connection:
        # What it does not read any more stays with us: this must not wait for it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(stream))
        sent = connection.send(stream)
        came = acks(connection, program)
    assert program.wait(seconds=START_SECONDS) == 0, program.output
    assert came and came == sorted(came) and sent > 0
    reader = QueueReader(launch.directory / "spool")
    stored = [
        body for batch in reader.read(0, reader.end()) for body in batch.column("body").to_pylist()
    ]
    # Without a gap from the first on, and with all that was acknowledged.
    assert stored == [b'{"n": %d}' % number for number in range(1, len(stored) + 1)]
    assert len(stored) >= came[-1]
    told = program.line(r"looked at (\d+) events; all that was acknowledged is safe")
    assert int(told[1]) == len(stored)
    QueueWriter(launch.directory / "spool").close()  # the lock was given back


@pytest.mark.slow
def test_what_cannot_begin_is_one_line(launch: Launcher) -> None:
    held = QueueWriter(launch.directory / "spool")
    try:
        second = collector(launch)
        assert second.wait(seconds=START_SECONDS) == 1
    finally:
        held.close()
    assert re.fullmatch(r"collector: .* open for writing already \(process \d+\)", second.output)
