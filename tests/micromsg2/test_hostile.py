"""Crowds of hostile connections against a real server: what they keep has a bound, others are
served (``NB-02``).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.chaos.gateways import LISTEN, needs_proc, resident, until
from tests.micromsg2.layouts import encode_command, encode_error
from tests.micromsg2.streams import handshake, message
from tests.micromsg2.test_kept import LARGE, different, greeting
from tests.tools.processes import PATIENCE_SECONDS, Launched, Launcher
from tests.tools.turns import turn_warn

pytestmark = [pytest.mark.slow, needs_proc, pytest.mark.usefixtures("short_turns")]

MEBI = 1 << 20
KEPT = 16 * MEBI
CROWD = 10

GROWTH_MAX = 40 * MEBI
"""What a read of properties takes for a moment, and what Python keeps of it."""


def serve(launch: Launcher) -> tuple[Launched, int]:
    limit = f"--limit=process-kept-octets={KEPT}"
    words = ("--log-format=text", "micromsg2", "-e", LISTEN, limit, turn_warn())
    server = launch(*words, module="twisted")
    return server, server.port("micromsg2")


def connected(port: int, octets: bytes) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    line.sendall(octets)
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


def test_what_a_crowd_keeps_in_silence_has_one_bound__NB_02(launch: Launcher) -> None:
    """NB-02: handshakes, properties, errors and subscriptions; 210 MB were left of ten."""
    server, port = serve(launch)
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
    assert "a subscription was refused: process-kept-octets is" in server.output
    for line in crowd:
        line.close()
    good.close()  # type: ignore[attr-defined]
    assert "Traceback" not in server.output


def test_what_waits_for_a_crowd_that_does_not_read_has_one_bound__NB_02(launch: Launcher) -> None:
    """NB-02: each had its own topic and up to 16 MiB of it: 140 MB."""
    server, port = serve(launch)
    good = neighbour(port)
    next(good)
    before = resident(server)
    opening = handshake("batch-ack:max-count=1;pub-sub") * 2
    crowd = [connected(port, opening) for _ in range(CROWD)]
    for number, line in enumerate(crowd):
        line.sendall(encode_command("subscribe", {"destination": f"topic/{number}"}))
        line.sendall(encode_command("last", {}))
        until(line, b"unknown-command: last")
    sender = connected(port, handshake() * 2)
    for step in range(150):
        for number in range(CROWD):
            sender.sendall(message(step + 1, bytes(100_000), f"topic/{number}"))
        if step % 10 == 0:
            next(good)
    next(good)
    grown = resident(server) - before
    assert grown <= 2 * KEPT + GROWTH_MAX, f"{grown / MEBI:.1f} MiB"
    assert "slow-consumer" in server.output
    for line in (sender, *crowd):
        line.close()
    good.close()  # type: ignore[attr-defined]
    assert "Traceback" not in server.output
