"""Hostile connections against a real server: what each costs is bounded, and others are served."""

import itertools
import os
import socket

import pytest

from tests.chaos import gateways
from tests.tools.measures import turn_warn
from tests.umq.pairs import masked

pytestmark = pytest.mark.usefixtures("short_turns")

MEBI = 1 << 20
SENT_MAX = 5 * MEBI
"""So much an attacker sends, unless the server stops reading or closes earlier."""

LIMITED = ("attachments-bytes", "calls-bytes", "websocket-message-bytes")
"""Limits which are set to 4 MiB, so that they are reached soon."""

GROWTH_MAX = 20 * MEBI
"""What one connection may cost beyond the limits which it reaches."""

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def numbered(pattern):
    return (masked(pattern.format(number)) for number in itertools.count(1))


def repeated(nbytes):
    return itertools.repeat(nbytes)


def big_attachments():
    yield masked("A32:C1:x")
    yield from repeated(masked(bytes(MEBI)))


def waiting_updates():
    yield masked("A1:S:a=")
    yield from repeated(masked("S:a=" + "x" * 1000))


ATTACKS = {
    "calls whose answers are not read": (lambda: numbered("C{}:" + "x" * 500), 0),
    "refusals which are not read": (lambda: numbered("B{}:1:x"), 0),
    "updates of unknown topics": (lambda: (masked(f"T{n:09}:x") for n in itertools.count()), 0),
    "attributes": (lambda: numbered("S:{}=" + "x" * 100), MEBI),
    "announcements": (lambda: (masked(f"AW:C{n}:") for n in itertools.count()), 0),
    "attachments which are too much": (big_attachments, 4 * MEBI),
    "updates behind an attachment": (waiting_updates, 4 * MEBI),
    "pings": (lambda: repeated(b"\x89\x84\0\0\0\0ping"), 0),
    "empty fragments": (
        lambda: itertools.chain([b"\x01\x80\0\0\0\0"], repeated(b"\x00\x80\0\0\0\0")),
        0,
    ),
    "tiny fragments": (
        lambda: itertools.chain([b"\x02\x82\0\0\0\0ab"], repeated(b"\x00\x82\0\0\0\0ab")),
        4 * MEBI,
    ),
    "a frame which says it is enormous": (
        lambda: itertools.chain(
            [b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0"], repeated(bytes(65536))
        ),
        0,
    ),
}


class Attacker:
    """A connection which sends and, after its hand-shake, never reads."""

    def __init__(self, port, hello=b""):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(10)
        self.socket.sendall(UPGRADE + (hello or masked("H1:")))
        heard = b""
        while not hello and b"W1:" not in heard:
            heard += self.socket.recv(4096)

    def flood(self, frames, patience=0.5):
        """Send until the server closes, or takes nothing for ``patience`` seconds."""
        self.socket.settimeout(patience)
        sent = 0
        frames = iter(frames)
        try:
            while sent < SENT_MAX:
                chunk = b"".join(itertools.islice(frames, 200))[: 8 * MEBI]
                self.socket.sendall(chunk)
                sent += len(chunk)
        except OSError:  # refused, closed, or not read any more
            pass
        return sent

    def close(self):
        self.socket.close()


CALL = masked('C1:["publish","nothing","x"]')


def served(port):
    """A good client is answered."""
    with socket.create_connection(("127.0.0.1", port)) as good:
        good.settimeout(30)
        good.sendall(UPGRADE + masked("H1:") + CALL)
        gateways.until(good, b"R1:0")


@pytest.mark.slow
def test_no_hostile_connection_costs_more_than_its_limits(launch):
    """UM-18 … UM-21, the issue's bad input: memory stays bounded and others are served."""
    limits = [turn_warn(), *(f"--limit={name}={4 * MEBI}" for name in LIMITED)]
    server = launch("umq", "-e", "tcp:0:interface=127.0.0.1", *limits, module="twisted")
    port = server.port("umq")
    served(port)
    for name, (frames, limit) in ATTACKS.items():
        before = resident(server.pid)
        attacker = Attacker(port)
        attacker.flood(frames())
        served(port)
        grown = resident(server.pid) - before
        attacker.close()
        assert grown <= limit + GROWTH_MAX, f"{name}: {grown / MEBI:.1f} MiB"
    assert "Traceback" not in server.output
