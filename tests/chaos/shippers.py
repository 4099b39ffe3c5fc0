"""Load for chaos: a blocking shipper in a thread, which knows exactly what was acknowledged."""

from __future__ import annotations

import socket
import struct
import threading
import time

from twisted_msgproto.lumberjack.wire import encode_json, encode_window

WINDOW = 50

PACE_SECONDS = 0.1
"""Between two windows: a load which a bridge can follow on a busy machine, not a benchmark."""


class Shipper(threading.Thread):
    """Sends numbered documents over Lumberjack, again and again connecting, until told to stop.

    Attributes:
        acknowledged: the documents whose window was acknowledged.
        connections: how often it has connected.
    """

    def __init__(self, name: str, port: int, *, pace: float = PACE_SECONDS) -> None:
        super().__init__(daemon=True, name=f"shipper {name}")
        self._pace = pace
        self._prefix = name
        self._port = port
        self._stop_sending = threading.Event()
        self._progress = threading.Condition()
        self.acknowledged: set[bytes] = set()
        self.connections = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._ship()
        except BaseException as error:
            self.error = error

    def _ship(self) -> None:
        number = 0
        while not self._stop_sending.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), 30) as line:
                    self.connections += 1
                    while not self._stop_sending.is_set():
                        documents = [
                            b'{"shipper":"%s","n":%d}' % (self._prefix.encode(), number + step)
                            for step in range(WINDOW)
                        ]
                        numbers = range(1, WINDOW + 1)
                        line.sendall(encode_window(WINDOW) + encode_json(numbers, documents))
                        self._await_ack(line)
                        number += WINDOW
                        with self._progress:
                            self.acknowledged.update(documents)
                            self._progress.notify_all()
                        self._stop_sending.wait(self._pace)
            except OSError:
                # The gateway is gone; it may take a while until it listens again.
                self._stop_sending.wait(0.1)

    def _await_ack(self, line: socket.socket) -> None:
        heard = b""
        while True:
            octets = line.recv(6 - len(heard))
            if not octets:
                raise ConnectionResetError
            heard += octets
            if len(heard) == 6:
                version, kind, sequence = struct.unpack(">BBI", heard)
                heard = b""
                if sequence:
                    assert (version, kind, sequence) == (0x32, 0x41, WINDOW)
                    return

    def await_more(self, count: int, seconds: float = 60.0) -> None:
        """Wait until ``count`` more documents are acknowledged than now."""
        with self._progress:
            wanted = len(self.acknowledged) + count
            end = time.monotonic() + seconds
            while len(self.acknowledged) < wanted:
                left = end - time.monotonic()
                assert left > 0, f"only {len(self.acknowledged)} acknowledged: {self.error}"
                assert self.error is None, self.error
                self._progress.wait(min(left, 1.0))

    def finish(self) -> None:
        self._stop_sending.set()
        self.join(60)
        assert self.error is None, self.error
