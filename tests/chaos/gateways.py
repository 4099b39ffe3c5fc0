"""A gateway to be ill-treated: started, looked at from outside, and its queue read back."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import pytest

from tests.tools.five import ANYWHERE, CLIENTS, SERVERS
from tests.tools.processes import PATIENCE_SECONDS, START_SECONDS, Launched, Launcher
from twisted_msgproto.lumberjack import encode_json, encode_window
from twisted_msgproto.lumberjack.wire.frames import encode_ack
from twisted_msgproto.net.site.client import GatewayBroker
from twisted_msgproto.queue import QueueReader

LISTEN = "tcp:0:interface=127.0.0.1"

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="a process is looked at through /proc: Linux"
)


def lumberjack(launch: Launcher, *options: str | Path) -> tuple[Launched, int]:
    """``twist lumberjack`` with a log which can be read, and its port."""
    server = launch(*("--log-format=text", "lumberjack", "-e", LISTEN, *options), module="twisted")
    return server, server.port("lumberjack")


def rows(queue: Path, begin: int = 0) -> list[dict[str, Any]]:
    """What a queue of which nothing was trimmed holds now from an offset on, without a gap."""
    reader = QueueReader(queue)
    end = reader.end()
    columns = ["offset", "protocol", "body"]
    found = [row for batch in reader.read(begin, end) for row in batch.select(columns).to_pylist()]
    assert [row["offset"] for row in found] == list(range(begin, end))
    return found


def bodies(queue: Path) -> list[bytes]:
    return [row["body"] for row in rows(queue)]


def served(port: int, marker: bytes = b"{}", seconds: float = PATIENCE_SECONDS) -> None:
    """A good client sends one event, which is acknowledged; AssertionError if it is not."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as line:
        line.sendall(encode_window(1) + encode_json([7], [marker]))
        heard = b""
        while not heard.endswith(encode_ack(7)):
            octets = line.recv(6)
            assert octets, f"closed after {heard!r}"
            heard += octets


def resident(server: Launched) -> int:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def most_resident(server: Launched) -> int:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def descriptors(server: Launched) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def until(line: socket.socket, *words: bytes) -> bytes:
    heard = b""
    while not (found := [word for word in words if word in heard]):
        octets = line.recv(65536)
        assert octets, f"closed after {heard!r}"
        heard += octets
    return found[0]


def closed(line: socket.socket, seconds: float = PATIENCE_SECONDS) -> bytes:
    """Read until the server closes the connection, and return what it said."""
    line.settimeout(seconds)
    said = b""
    try:
        while octets := line.recv(65536):
            said += octets
    except ConnectionError:
        pass
    return said


def until_stalled(queue: Path) -> None:
    """Wait until the gateway of this queue says that nothing can be acknowledged."""
    gateway, until = GatewayBroker(str(queue)), time.monotonic() + PATIENCE_SECONDS
    while gateway.figures()["healthy"]["ok"]:
        assert time.monotonic() < until, "it stays healthy"


class Five:
    """A gateway of all five protocols over one queue.

    Attributes:
        server: the process.
        ports: the port for each client of :data:`tests.tools.five.CLIENTS`.
    """

    def __init__(
        self,
        launch: Launcher,
        *before: str,
        module: str = "tests.chaos.watched",
        options: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it in the launcher's directory; ``before`` are words in front of its command."""
        self.queue = launch.directory / "queue"
        file = launch.directory / "gateway.toml"
        file.write_text(SERVERS.format(queue=self.queue, **ANYWHERE))
        command = [*before, sys.executable, "-m", module, "gateway", "--config", str(file)]
        self.server = launch.command([*command, *options], env=env)
        self._asked = 0
        self.ports = {
            name: int(
                self.server.line(
                    rf"\b{client.server} listening on \S+:(\d+)",
                    nth=client.nth,
                    seconds=START_SECONDS,
                )[1]
            )
            for name, client in CLIENTS.items()
        }

    def longest_turn(self) -> float:
        """Milliseconds of CPU time of the longest turn since this was asked last."""
        self._asked += 1
        self.server.signal(signal.SIGUSR1)
        return float(self.server.line(r"longest turn (\S+) ms", nth=self._asked)[1])

    def lost(self, told: Set[bytes]) -> set[bytes]:
        """Which of these bodies are not in the queue."""
        return set(told) - {row["body"] for row in rows(self.queue)}
