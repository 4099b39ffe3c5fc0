"""``msgproto bench lines``: bodies and their acks through a real socket, beside an echo."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Iterator
from typing import Any

from twisted_msgproto.cli.measuring import Comparison, Figures, Subject, answer_usage

MESSAGES = 50_000
WINDOW = 500
PUT = b"put " + b"x" * 200 + b"\n"


def drive(port: int, windows: int, kind: str) -> list[float]:
    """Send windows one after another, each when the one before is answered."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        answers = connection.makefile("rb")
        for number in range(1, windows + 1):
            connection.sendall(PUT * WINDOW)
            if kind == "lines":
                while answers.readline() != b"ack %d\n" % (number * WINDOW):
                    pass
            else:
                answers.read(len(PUT) * WINDOW)
    return []


def comparisons(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """The rows; ``arguments`` are those of ``msgproto bench``."""
    windows = max(1, int(MESSAGES * arguments.scale) // WINDOW)
    servers = {kind: Subject("msgproto_lines.bench", kind) for kind in ("lines", "echo")}

    def work(kind: str) -> Figures:
        server = servers[kind]
        return server.measure(windows * WINDOW, lambda: drive(server.port, windows, kind))

    try:
        ours, other = (lambda: work("lines")), (lambda: work("echo"))
        yield Comparison("lines, put and ack", "Twisted's Echo", "rate", ours, other)
    finally:
        for server in servers.values():
            server.close()


def serve(kind: str) -> None:
    """Be the measured server."""
    from twisted.internet import reactor as installed
    from twisted.internet.protocol import Factory
    from twisted.protocols.wire import Echo

    from .protocol import LinesServerFactory

    reactor: Any = installed
    factory: Any = LinesServerFactory() if kind == "lines" else Factory.forProtocol(Echo)
    port = reactor.listenTCP(0, factory, interface="127.0.0.1").getHost().port
    answer_usage(reactor, int(port))
    reactor.run()


if __name__ == "__main__":
    serve(sys.argv[1])
