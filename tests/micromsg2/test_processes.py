"""Real processes and sockets: commands, the reference's bytes, hostile crowds, kills."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tests.chaos.gateways import LISTEN, needs_proc, resident, until
from tests.micromsg2.streams import (
    encode_command,
    encode_error,
    handshake,
    message,
)
from tests.micromsg2.test_kept import LARGE, different, greeting
from tests.tools.measures import turn_warn
from tests.tools.processes import PATIENCE_SECONDS, PROJECT, Launched, Launcher

pytestmark = pytest.mark.slow

PATIENCE = 60.0
WINDOW = 50


@pytest.fixture
def serve(launch: Launcher) -> Iterator[Callable[..., tuple[Launched, int]]]:
    def started(*words: str) -> tuple[Launched, int]:
        server = launch("micromsg2", "-e", "tcp:0:interface=127.0.0.1", *words, module="twisted")
        return server, int(server.line(r"micromsg2 listening on tcp:127.0.0.1:(\d+)")[1])

    yield started


# ── the commands ────────────────────────────────────────────────────────────────────────────────


# ── bad input over a real socket: told, closed, and the next client is served ───────────────────

# ── kills under load ────────────────────────────────────────────────────────────────────────────


CONSUMER = """
import sys
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString
from twisted.internet.task import deferLater
from twisted_msgproto.micromsg2 import MicroMsg2Client, MicroMsg2ClientFactory

class Worker(MicroMsg2Client):
    def sessionEstablished(self):
        self.subscribe("jobs")
        print("ready", flush=True)

    def messageReceived(self, message):
        def done(_):
            print("done", message.body.decode(), flush=True)
        return deferLater(reactor, 0.002, done, None)

factory = MicroMsg2ClientFactory()
factory.protocol = Worker
clientFromString(reactor, sys.argv[1]).connect(factory)
reactor.run()
"""


def test_kill_of_a_consumer_under_load_leaves_every_message_to_the_others_in_order(
    serve: Callable[..., tuple[Launched, int]], launch: Launcher
) -> None:
    """MM-27: what the killed one had and not acknowledged comes again, to the other"""
    _, port = serve("--broker-queue", "jobs")
    endpoint = f"tcp:127.0.0.1:{port}"
    workers = [launch.command([sys.executable, "-c", CONSUMER, endpoint]) for _ in range(2)]
    for worker in workers:
        worker.line("ready")
    count = 2000
    sender = launch(
        *("send", "micromsg2", endpoint, "--destination", "jobs", "--count", str(count)),
        *("--size", "1", "--json"),
    )
    workers[0].line("done")
    workers[0].kill()
    assert sender.wait() == 0, sender.output
    done: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    while len(done) < count and time.monotonic() < deadline:
        time.sleep(0.05)
        done = {number for worker in workers for number in numbers_done(worker)}
    assert done == set(range(count))
    # One worker sees its messages in order, but for those which came back to the queue's head.
    seen = numbers_done(workers[1])
    steps_back = sum(later < earlier for earlier, later in pairwise(seen))
    assert steps_back <= 1
    assert len(seen) == len(set(seen))


def numbers_done(worker: Launched) -> list[int]:
    """What a worker says it has done; the last line of a killed one may be cut short."""
    lines = [line for line in list(worker.lines) if line.startswith("done") and line[-1] == "}"]
    return [int(json.loads(line.partition(" ")[2])["number"]) for line in lines]


MEBI = 1 << 20
KEPT = 16 * MEBI
CROWD = 10

GROWTH_MAX = 40 * MEBI
"""What a read of properties takes for a moment, and what Python keeps of it."""


def bounded(launch: Launcher) -> tuple[Launched, int]:
    limit = f"--limit=process-session-bytes={KEPT}"
    words = ("--log-format=text", "micromsg2", "-e", LISTEN, limit, turn_warn())
    server = launch(*words, module="twisted")
    return server, server.port("micromsg2")


def connected(port: int, nbytes: bytes) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    line.sendall(nbytes)
    return line


def neighbour(port: int) -> Iterator[None]:
    """A good subscriber gets a message whenever this is asked."""
    watcher = connected(port, handshake("pub-sub") * 2)
    watcher.sendall(encode_command("subscribe", {"destination": "topic/good"}))
    watcher.sendall(encode_command("first", {}))
    until(watcher, b"unknown-command: first")
    sender = connected(port, handshake() * 2)
    number = 0
    with watcher, sender:
        while True:
            number += 1
            sender.sendall(message(number, b"news %d." % number, "topic/good"))
            until(watcher, b"news %d." % number)
            yield


@needs_proc
@pytest.mark.usefixtures("short_turns")
def test_what_a_crowd_keeps_in_silence_has_one_bound__NB_02(launch: Launcher) -> None:
    """NB-02: handshakes, properties, errors and subscriptions; 210 MB were left of ten."""
    server, port = bounded(launch)
    good = neighbour(port)
    next(good)
    before = resident(server)
    texts = different(64)
    attack = greeting() * 2
    attack += b"".join(message(n, b"", properties=text) for n, text in enumerate(texts, 1))
    attack += encode_error("😀" + "x" * 65_000)
    for number in range(30):
        parameters = {"destination": f"topic/{number}", "filter": LARGE}
        attack += encode_command("subscribe", parameters)
    attack += encode_command("last", {})
    crowd = []
    for _ in range(CROWD):
        crowd.append(connected(port, attack))
        until(crowd[-1], b"unknown-command: last")
        next(good)
    grown = resident(server) - before
    assert grown <= KEPT + GROWTH_MAX, f"{grown / MEBI:.1f} MiB"
    assert "a subscription was refused: process-session-bytes is" in server.output
    for line in crowd:
        line.close()
    good.close()
    assert "Traceback" not in server.output


def test_a_vendors_extension_needs_nothing_from_inside_the_package(launch: Launcher) -> None:
    """MM-10: frames, fields, a command and an answer, over a real socket"""
    example = PROJECT / "examples" / "micromsg2" / "traced.py"
    ended = launch.command([sys.executable, str(example)])
    assert ended.wait() == 0, ended.output
    assert ended.lines == [
        "orders: b'first' asked for by ann",
        "orders: b'second' asked for by ben",
        "orders: b'third' asked for by None",
        "traces seen by the server: 2",
    ]
