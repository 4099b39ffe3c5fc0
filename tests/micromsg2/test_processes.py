"""Real processes and sockets: a crowd that keeps silent, and a vendor's extension."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

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
