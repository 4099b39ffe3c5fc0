"""A server that speaks ZMTP by hand, and what it can make libzmq keep in a client of ours."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading

import pytest

from tests.mtl.cases import MtlCase, run, until
from tests.mtl.endless import GREETING, frame
from tests.mtl.plain import PATIENCE_MS
from twisted_msgproto.core.errors import ConnectionClosed
from twisted_msgproto.mtl import MtlClient

READY = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER"
HELLO = GREETING + b"\x04" + bytes([len(READY)]) + READY

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO tells what came: Linux")

SENT_OCTETS_MAX = 1 << 30
"""A client that takes all this has no bound."""


class Endless:
    """Sends every client one message that never ends.

    Attributes:
        sent: octets to the client that took most of them.
        ended: clients that have ended the connection.
    """

    def __init__(self) -> None:
        self.sent = self.ended = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(PATIENCE_MS / 1000)
                self._send_to(connection)

    def _send_to(self, connection: socket.socket) -> None:
        octets, sent = frame(60_000), 0
        with connection:
            try:
                connection.sendall(HELLO)
                heard = b""
                while b"DEALER" not in heard and (more := connection.recv(1000)):
                    heard += more
                while sent < SENT_OCTETS_MAX:
                    connection.sendall(octets)
                    sent += len(octets)
                    self.sent = max(self.sent, sent)
            except OSError:
                self.ended += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_MS / 1000)


class Servers(MtlCase):
    @needs_linux
    @run
    async def test_a_server_whose_message_never_ends_is_cut_off__NB_02(self) -> None:
        """Libzmq kept all of it: a gigabyte until the client lost its patience, and again."""
        server = Endless()
        self.addCleanup(server.close)
        limits = {"content-octets": 100_000, "request-timeout": 50.0, "request-tries": 1}
        client = MtlClient(server.endpoint, limits=limits)
        opened = client.open("host")
        await until(lambda: server.ended)
        self.assertEqual(client.wire.trouble, "it sends a message that does not end")
        client.abort()
        self.failureResultOf(opened, ConnectionClosed)
        self.assertLess(server.sent, SENT_OCTETS_MAX)
