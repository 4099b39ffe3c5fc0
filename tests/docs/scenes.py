"""Gateways as the screenshots of the live page show them: real ones, with real clients."""

from __future__ import annotations

import contextlib
import json
import math
import random
import resource
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.tools.processes import START_SECONDS, Launched, Launcher
from twisted_msgproto.gateway import toml_value
from twisted_msgproto.queue import Landed, QueueReader
from twisted_msgproto.registry import LOOPBACK, PROTOCOLS
from twisted_msgproto.spark.report import Aside, Batch, Lag, Progress, Report, StatusFiles
from twisted_msgproto.table.landing import LandedRanges

SECONDS = 20.0
"""So long the clients of the busy gateway send: more than the 180 samples of its flow."""

TICK_SECONDS = 0.05
"""Each client writes what is due this often."""

RATES = {"lumberjack": 400.0, "micromsg2": 150.0, "sabc": 90.0, "umq": 120.0, "mtl": 60.0}
"""Messages a second of each client, on average."""

EXTRA = {"micromsg2": ("--destination", "orders")}
"""What clients are told beside their address."""

PACE_SECONDS = 0.01
"""The peer of the full gateway sends a message this often before the disk is full."""

CROWD = 10_000
"""Sessions of the crowded gateway."""

FULL_BYTES = 400_000
"""The disk of the full gateway has this size."""

WINDOW = b"2W\0\0\0\x01"
WINDOW_OF_TWO = b"2W\0\0\0\x02"
EVENT = b"2J\0\0\0\x01" + (1000).to_bytes(4, "big") + b'"' + b"x" * 998 + b'"'


def configured(directory: Path, queue: str | None = "queue", **tables: dict[str, object]) -> Path:
    """Write a gateway.toml with these servers; with none, all of them."""
    lines = ["[status]", f"endpoint = {toml_value(LOOPBACK)}"]
    if queue is not None:
        lines += ["[queue]", f"directory = {toml_value(str(directory / queue))}"]
    for name, table in (tables or {name: one.demo for name, one in PROTOCOLS.items()}).items():
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    file = directory / "gateway.toml"
    file.write_text("\n".join([*lines, ""]))
    return file


def page_of(gateway: Launched) -> str:
    address = gateway.address("status", seconds=START_SECONDS)
    return f"http://{address.removeprefix('tcp:')}/"


@contextlib.contextmanager
def busy(launch: Launcher) -> Iterator[str]:
    """All five protocols with their clients, a bridge that lands, and some who do wrong."""
    tables = {name: dict(protocol.demo) for name, protocol in PROTOCOLS.items()}
    tables["micromsg2"] |= {"broker-queue": ["orders", "invoices"], "limit": ["connections=5"]}
    file = configured(launch.directory, **tables)
    gateway = launch("--config", file, module="tests.docs.quick_gateway")
    url = page_of(gateway)
    ended = threading.Event()

    def begun(name: str) -> Launched:
        words = "send", name, gateway.address(name), *EXTRA.get(name, ())
        client = launch(*words, stdin=subprocess.PIPE)
        _say(client)  # it connects when it has something to say
        return client

    clients = {name: begun(name) for name in PROTOCOLS}
    with contextlib.ExitStack() as stack:
        while sessions_of(url) < len(clients):
            for name, client in clients.items():
                if client.process.poll() is not None:  # a hand-shake came too late
                    clients[name] = begun(name)
            ended.wait(TICK_SECONDS)
        started = [
            threading.Thread(target=_land, args=[launch.directory / "queue", ended]),
            *(
                threading.Thread(target=_send, args=[client, name, place, ended])
                for place, (name, client) in enumerate(clients.items())
            ),
        ]
        _do_wrong(stack, gateway)
        for thread in started:
            thread.start()
        try:
            ended.wait(SECONDS)
            yield url
        finally:
            ended.set()
            for thread in started:
                thread.join()


def sessions_of(url: str) -> int:
    with urllib.request.urlopen(f"{url}status.json") as answer:
        return int(json.load(answer)["sessions_total"])


def _say(client: Launched, host: int = 0) -> None:
    assert client.process.stdin is not None
    client.process.stdin.write(f'{{"host": "web-{host}"}}\n')
    client.process.stdin.flush()


def _send(client: Launched, name: str, place: int, ended: threading.Event) -> None:
    began, due, chance = time.monotonic(), 0.0, random.Random(place)
    with contextlib.suppress(BrokenPipeError):
        while not ended.wait(TICK_SECONDS):
            wave = math.sin((time.monotonic() - began) / SECONDS * 9 + 2 * place)
            due += RATES[name] * TICK_SECONDS * max(0.05, 1 + 0.7 * wave) * chance.uniform(0.6, 1.4)
            for _ in range(int(due)):
                _say(client, chance.randrange(9))
            due -= int(due)
        assert client.process.stdin is not None
        client.process.stdin.close()


def _land(queue: Path, ended: threading.Event) -> None:
    reader = QueueReader(queue)
    landed = reader.register("spark-3f9c21aa")
    files = StatusFiles({reader.queue_id: queue}, "spark-3f9c21aa", {"table": "/srv/events"})
    progress, batch = Progress(), 0
    away = Aside("grpc+tls://edge-7:8815", "", "away", "is not to be reached: no route", 93.0)
    while not ended.wait(1.0):
        end = reader.end()
        rows, batch = end - landed, batch + 1
        if rows:
            progress.add(Batch(batch, rows, 0.4, time.time()), LandedRanges())
            reader.commit("spark-3f9c21aa", end)
        landed = end
        progress.landed = {reader.queue_id: Landed(end)}
        lags = {reader.queue_id: Lag(reader.end() - end, 0.4), "b1" * 16: Lag(17, 1.1)}
        files.write(Report("running", progress, lags, 3, (away,)))


def _do_wrong(stack: contextlib.ExitStack, gateway: Launched) -> None:
    def connect(name: str) -> socket.socket:
        address = "127.0.0.1", gateway.port(name)
        return stack.enter_context(socket.create_connection(address))

    for _ in range(3):
        connect("lumberjack").sendall(b"GET / HTTP/1.1\r\n\r\n")
    connect("sabc").sendall(b"HELLO\n\n\0")
    for _ in range(5):
        connect("micromsg2")
    connect("lumberjack").sendall(WINDOW + EVENT[:400])  # unfinished


@contextlib.contextmanager
def crowded(launch: Launcher, count: int = CROWD) -> Iterator[str]:
    """One server with this many sessions, some of which are in the middle of a window."""
    # Above the backlog the kernel lets a peer wait for a second.
    endpoint = [f"{LOOPBACK}:backlog=4096"]
    limits = {"endpoint": endpoint, "limit": [f"connections={count + 100}", "idle-ack=0"]}
    file = configured(launch.directory, lumberjack=limits)
    gateway = launch("--config", file, module="tests.docs.quick_gateway")
    page = page_of(gateway)
    address = "127.0.0.1", gateway.port("lumberjack")
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
        for peer in peers[: count // 50]:
            peer.sendall(WINDOW_OF_TWO + EVENT)
        yield page


NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
"""Ways to a mount namespace of one's own: as root, or as anybody where that is allowed."""


def own_disk(directory: Path) -> list[str]:
    """A command that runs another one with a small disk of its own at ``directory``, or nothing."""
    directory.mkdir()
    mount = f"mount -t tmpfs -o size={FULL_BYTES},mode=700 tmpfs {shlex.quote(str(directory))}"
    for namespace in NAMESPACES:
        with contextlib.suppress(OSError):
            if not subprocess.run([*namespace, "sh", "-c", mount], capture_output=True).returncode:
                return [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh"]
    return []


@contextlib.contextmanager
def full(launch: Launcher) -> Iterator[str]:
    """A gateway whose disk is full, with a peer that waits for its acknowledgement."""
    file = configured(launch.directory, "disk/queue", lumberjack={"endpoint": [LOOPBACK]})
    small = own_disk(launch.directory / "disk")
    program = [sys.executable, "-m", "tests.docs.quick_gateway", "--config", str(file)]
    gateway = launch.command([*small, *program])
    page = page_of(gateway)
    address = "127.0.0.1", gateway.port("lumberjack")
    with socket.create_connection(address) as well, socket.create_connection(address) as peer:
        for _ in range(FULL_BYTES // 2000):
            well.sendall(WINDOW + EVENT)
            assert well.recv(6) == b"2A\0\0\0\x01"
            time.sleep(PACE_SECONDS)
        if not small:  # no namespace may be made here: the process may write no longer files
            resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))
        for _ in range(FULL_BYTES // 1000):
            peer.sendall(WINDOW + EVENT)
        yield page
