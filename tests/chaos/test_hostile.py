"""Hostile connections to MicroMsg2 and sABC servers: memory stays bounded, others are served.

Lumberjack's stand in ``tests/lumberjack/test_hostile.py``, UMQ's and some of these in
:mod:`.inputs`.
"""

import itertools
import socket

import pytest

from tests.chaos.gateways import LISTEN, most_resident, needs_proc, resident
from tests.chaos.inputs import HELLO, INPUTS
from tests.micromsg2.streams import message
from tests.tools.measures import turn_warn
from tests.tools.processes import PATIENCE_SECONDS
from twisted_msgproto.micromsg2.wire.frames import encode_command

pytestmark = [pytest.mark.slow, needs_proc, pytest.mark.usefixtures("short_turns")]

MEBI = 1 << 20
SENT_MAX = 48 * MEBI
"""So much an attacker sends, unless the server closes or stops reading earlier."""
COST_MAX = 20 * MEBI
"""What a hostile connection may cost above the limits which it reaches."""


def large_payload():
    frame = message(1, b"x" * 300, "orders")
    head = frame[:-304]  # up to the length
    return head + (1 << 31).to_bytes(4, "big")


def for_ever(nbytes):
    return itertools.repeat(nbytes * max(1, 65536 // len(nbytes)))


def subscriptions():
    """SUBSCRIBE and UNSUBSCRIBE, again and again, each to another queue."""
    for number in itertools.count():
        name = {"destination": f"queue-{number}"}
        yield encode_command("subscribe", name) + encode_command("unsubscribe", name)


ATTACKS = {
    "micromsg2: a message of 2 GB": (
        "micromsg2",
        lambda: itertools.chain([HELLO, HELLO, large_payload()], for_ever(b"x")),
        MEBI,
    ),
    "micromsg2: a handshake which never ends": (
        "micromsg2",
        lambda: itertools.chain([b"\1\0\0\377" + b"a" * 255 + b"\377\377"], for_ever(b"a")),
        0,
    ),
    "micromsg2: messages before the handshake": (
        "micromsg2",
        lambda: for_ever(message(1, b"x" * 100, "orders")),
        0,
    ),
    "micromsg2: parts without end": (
        "micromsg2",
        INPUTS["parts without end"].stream,
        16 * MEBI,
    ),
    "micromsg2: a storm of subscriptions": (
        "micromsg2",
        lambda: itertools.chain([HELLO, HELLO], subscriptions()),
        0,
    ),
    "sabc: a line without end": ("sabc", lambda: for_ever(b"C"), 0),
    "sabc: headers without end": ("sabc", INPUTS["headers without end"].stream, 0),
    "sabc: frames before CONNECT": (
        "sabc",
        lambda: for_ever(b"MESSAGE\r\nsession-id::x\r\nmsg-id::1\r\n\r\nHola\r\n\r\n\0"),
        0,
    ),
    "sabc: a body without end before CONNECT": (
        "sabc",
        lambda: itertools.chain([b"MESSAGE\r\nmsg-id::1\r\n\r\n"], for_ever(b"x")),
        MEBI,
    ),
    "sabc: logins which fail, without end": ("sabc", INPUTS["logins that fail"].stream, 0),
}
"""What → protocol, what is sent, the limits which it may reach (in bytes)."""


def attack(port, stream):
    """Send until the server closes, or takes nothing more for a while; how much was sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as line:
        line.settimeout(1.0)
        sent = 0
        try:
            for octets in stream:
                line.sendall(octets)
                sent += len(octets)
                if sent >= SENT_MAX:
                    break
        except OSError:
            pass  # closed, or not read any more
        return sent


@pytest.mark.parametrize("protocol", ["micromsg2", "sabc"])
def test_no_hostile_connection_costs_more_than_its_limits(launch, protocol):
    """MM-17, MM-32, SA-22, SA-27; FAULTS: frames before authentication, 2 GB, cancel storms."""
    server = launch("--log-format=text", protocol, "-e", LISTEN, turn_warn(), module="twisted")
    port = server.port(protocol)
    destination = ["--destination", "x"] if protocol == "micromsg2" else []

    def good():
        sent = launch.run(
            *("send", protocol, f"tcp:127.0.0.1:{port}", "--count", "20", *destination)
        )
        assert sent.returncode == 0, sent.stderr

    good()
    for name, (whose, stream, reached) in ATTACKS.items():
        if whose != protocol:
            continue
        with open(f"/proc/{server.pid}/clear_refs", "w") as file:
            file.write("5")
        before = resident(server)
        attack(port, stream())
        cost = most_resident(server) - before
        assert cost <= reached + COST_MAX, f"{name}: {cost / MEBI:.1f} MiB"
        assert server.process.poll() is None, name
    good()
    assert "Traceback" not in server.output
