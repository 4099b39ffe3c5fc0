"""What stands in front of a server: load balancers, and how they begin a connection."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.tools.processes import Launcher

V2 = b"\r\n\r\n\0\r\nQUIT\n"
EVENT = struct.pack(">2sI2sII", b"2W", 1, b"2J", 1, 2) + b"{}"
ACK = struct.pack(">2sI", b"2A", 1)
HEADERS = {
    "TCP4": b"PROXY TCP4 198.51.100.1 198.51.100.2 1 2\r\n",
    "TCP6": b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n",
    "UNKNOWN": b"PROXY UNKNOWN\r\n",
    "UNKNOWN with addresses": b"PROXY UNKNOWN ffff:f::ffff ffff:f::ffff 65535 65535\r\n",
    "version 2, LOCAL": V2 + b"\x20\0\0\0",
    "version 2, LOCAL with addresses": V2 + b"\x20\x11\0\x0c" + bytes(12),
    "version 2, UNSPEC": V2 + b"\x21\0\0\0",
    "version 2, TCP4": V2 + b"\x21\x11\0\x0c" + bytes((198, 51, 100, 1) * 2) + bytes(4),
}


@pytest.mark.parametrize("words", HEADERS.values(), ids=HEADERS.keys())
def test_each_way_to_begin_behind_a_balancer_is_taken(launch: Launcher, words: bytes) -> None:
    """RD-24: health checks of balancers, which speak for themselves, say UNKNOWN or LOCAL."""
    endpoint = "haproxy:tcp:0:interface=127.0.0.1"
    (launch.directory / "g.toml").write_text(f'[lumberjack]\nendpoint = "{endpoint}"\n')
    server = launch("gateway", "--config=g.toml", "--log-sessions")
    with socket.create_connection(("127.0.0.1", server.port("lumberjack")), 60) as one:
        one.sendall(words + EVENT)
        assert one.recv(len(ACK)) == ACK
    server.line("ended after .* and 1 messages: the peer closed the connection")
