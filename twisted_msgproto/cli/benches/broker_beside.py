"""Measure the broker over sockets beside CoilMQ, a small STOMP broker that is on PyPI.

One connection publishes ten messages of 100 octets and waits for their acks; another one consumes
them and acknowledges them; then the next ten come.  Each server is a process of its own,
and their CPU times are compared.  MicroMsg2 stores messages in the durable queue, that syncs before
each ack; CoilMQ stores them with its ``DbmQueue``, that does not sync.  Both are on one disk.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ...micromsg2.wire import Offer, encode_address, encode_command, encode_message
from ...micromsg2.wire.frames import encode_extension
from ..measuring import Comparison, Subject, usage
from .micromsg2 import session

MESSAGES = 4000
WINDOW = 10
"""This many messages are sent at a time.

CoilMQ cannot read a frame that comes in two pieces of 4096 octets.
"""
BODY = b"x" * 100
ACK_OCTETS = 5
LEFT_OUT = "msgproto bench: the broker beside CoilMQ is left out: pip install 'coilmq>=1.1'"


def heard(from_: socket.socket, octets: int) -> bytes:
    """Return the next ``octets`` octets that a server sent."""
    pieces = b""
    while len(pieces) < octets:
        piece = from_.recv(octets - len(pieces))
        if not piece:
            raise RuntimeError("the server closed the connection")
        pieces += piece
    return pieces


def through_micromsg2(port: int, messages: int) -> list[float]:
    """Publish, consume and acknowledge messages of MicroMsg2."""
    acks = Offer("batch-ack", {"max-count": str(WINDOW)})
    address = encode_address("orders")
    with session(port, acks) as publisher, session(port, acks, Offer("pub-sub")) as consumer:
        consumer.sendall(encode_command("subscribe", {"destination": "orders"}))
        consumer.sendall(encode_command("unsubscribe", {"destination": "topic/none"}))
        consumer.recv(65536)  # the second command is answered, so the first one was read
        for first in range(1, messages, WINDOW):
            numbers = range(first, first + WINDOW)
            window = b"".join([encode_message(number, address, BODY)[0] for number in numbers])
            publisher.sendall(window)
            heard(publisher, ACK_OCTETS)
            heard(consumer, len(window))
            consumer.sendall(encode_extension(1, numbers[-1].to_bytes(2, "big")))
    return []


def through_stomp(port: int, messages: int) -> list[float]:
    """Publish, consume and acknowledge messages of STOMP."""

    def connected() -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sendall(b"CONNECT\naccept-version:1.1\nhost:bench\n\n\0")
        frames_from(made, b"", 1)
        return made

    def frames_from(made: socket.socket, rest: bytes, count: int) -> list[bytes]:
        while rest.count(b"\0") < count:
            piece = made.recv(65536)
            if not piece:
                raise RuntimeError("the server closed the connection")
            rest += piece
        return rest.split(b"\0")[:count]

    one = b"SEND\ndestination:/queue/orders\nreceipt:1\ncontent-length:%d\n\n%s\0"
    with connected() as publisher, connected() as consumer:
        consumer.sendall(b"SUBSCRIBE\nid:0\ndestination:/queue/orders\nack:client\nreceipt:1\n\n\0")
        frames_from(consumer, b"", 1)
        for _ in range(0, messages, WINDOW):
            publisher.sendall(one % (len(BODY), BODY) * WINDOW)
            for _ in range(WINDOW):  # each comes when the one before is acknowledged
                (frame,) = frames_from(consumer, b"", 1)
                head = frame.partition(b"\n\n")[0]
                number = next(line for line in head.split(b"\n") if line.startswith(b"message-id"))
                consumer.sendall(b"ACK\nsubscription:0\n%s\n\n\0" % number)
            frames_from(publisher, b"", WINDOW)
    return []


def rows(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Yield the row, if CoilMQ is installed; ``arguments`` are those of ``msgproto bench``."""
    if find_spec("coilmq") is None:
        print(LEFT_OUT, file=sys.stderr)
        return
    messages = max(1, int(MESSAGES * arguments.scale) // WINDOW) * WINDOW
    with tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue) as directory:
        ours = Subject("twisted_msgproto.cli.benches.micromsg2", "durable", directory)
        other = Subject("twisted_msgproto.cli.benches.broker_beside", directory)
        try:
            yield Comparison(
                f"broker, MicroMsg2 over sockets, durable, {WINDOW} at a time",
                "CoilMQ with a store that does not sync",
                "cpu",
                lambda: ours.measure(messages, lambda: through_micromsg2(ours.port, messages)),
                lambda: other.measure(messages, lambda: through_stomp(other.port, messages)),
                mark=1.0,
            )
        finally:
            ours.close()
            other.close()


def serve(directory: str) -> None:
    """Be CoilMQ: print the port, answer lines with usage, end when the input ends."""
    from coilmq.queue import QueueManager
    from coilmq.server.socket_server import ThreadedStompServer
    from coilmq.store.dbm import DbmQueue
    from coilmq.topic import TopicManager

    place = Path(directory) / "coilmq"
    place.mkdir()
    server = ThreadedStompServer(
        ("127.0.0.1", 0),
        queue_manager=QueueManager(store=DbmQueue(str(place))),
        topic_manager=TopicManager(),
    )
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(usage()), flush=True)
    server.shutdown()


if __name__ == "__main__":
    serve(*sys.argv[1:])
