"""Measure what MTL costs: confirmed Content into a counting sink beside a raw blocking ROUTER loop.

The writer is the same for both: a process of plain pyzmq that sends as fast as the socket accepts
it and waits for the last Confirm.  The server's process also says for how long its reactor stood
still at worst.
"""

from __future__ import annotations

import argparse
import atexit
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..measuring import Comparison, Figures, Subject, answer_usage, usage

MESSAGES = 200_000
BODY_OCTETS = 100
MODULE = "twisted_msgproto.cli.benches.mtl"
STALL_LOOK_SECONDS = 0.005


def comparisons(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Yield the rows of MTL; ``arguments`` are those of ``msgproto bench``."""
    count = max(1000, int(MESSAGES * arguments.scale))
    servers: dict[str, Subject] = {}

    def written(kind: str) -> Figures:
        if kind not in servers:
            # The rows are measured after all of them were listed: these end with the process.
            servers[kind] = Subject(MODULE, "serve" if kind == "mtl" else "raw")
            atexit.register(_close, servers[kind])
        server = servers[kind]
        before = server.usage()
        command = [sys.executable, "-m", MODULE, "write", kind, str(server.port), str(count)]
        subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
        after = server.usage()
        return Figures(count, after["last_run"], after["cpu"] - before["cpu"], after["rss"])

    yield Comparison(
        f"Content, confirm full, {BODY_OCTETS} octets, counting sink",
        "a raw blocking pyzmq ROUTER loop",
        "rate",
        lambda: written("mtl"),
        lambda: written("raw"),
        mark=0.4,
        goal=0.7,
    )


def _close(server: Subject) -> None:
    """End a server, and tell for how long its reactor stood still at worst."""
    seen = server.usage()
    if "stall" in seen:
        stall, turn = seen["stall"] * 1000, seen["turn"] * 1000
        print(
            f"mtl: the reactor stood still for {stall:.0f} ms at worst, {turn:.0f} ms of it busy",
            file=sys.stderr,
        )
    server.close()


# ── The measured processes ──────────────────────────────────────────────────────────────────────


def serve() -> None:
    """Be the broker: a counting sink, and a clock that sees the reactor stand still."""
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred, succeed
    from zope.interface import implementer

    from ...core.message import MessageBatch
    from ...mtl import MtlServerFactory
    from ...mtl.zeromq import port_of
    from ...net.sink import IMessageSink

    reactor: Any = installed
    run = {"began": 0.0, "ended": 0.0, "looked": 0.0, "spent": 0.0, "stall": 0.0, "turn": 0.0}

    @implementer(IMessageSink)
    class CountingSink:
        def put(self, batch: MessageBatch) -> Deferred[int | None]:
            now = time.perf_counter()
            if now - run["ended"] > 0.5:
                run["began"] = now
            run["ended"] = now
            return succeed(None)

    def look() -> None:
        now, spent = time.perf_counter(), time.thread_time()
        if run["looked"]:
            run["stall"] = max(run["stall"], now - run["looked"] - STALL_LOOK_SECONDS)
            # On a busy machine others take the processor, too: what the turn itself used.
            run["turn"] = max(run["turn"], spent - run["spent"])
        run["looked"], run["spent"] = now, spent
        reactor.callLater(STALL_LOOK_SECONDS, look)

    factory = MtlServerFactory(CountingSink())
    control, _ = factory.listen(["tcp://127.0.0.1:*"], "tcp://127.0.0.1:*")
    reactor.callWhenRunning(look)
    answer_usage(
        reactor,
        port_of(control),
        lambda: {"last_run": run["ended"] - run["began"], **run},
    )
    reactor.run()


def raw() -> None:
    """Be the loop that stands beside: receive, count, say when the last one is there."""
    import threading

    import zmq

    router = zmq.Context().socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    print(json.dumps({"port": port}), flush=True)
    run = {"last_run": 0.0}

    def loop() -> None:
        while True:
            count = int.from_bytes(router.recv_multipart()[1][1:], "big")
            parts = router.recv_multipart()
            began = time.perf_counter()
            for _ in range(count - 1):
                parts = router.recv_multipart()
            run["last_run"] = time.perf_counter() - began
            router.send_multipart([parts[0], b"\6" + parts[1][1:9] + b"\1", b""])

    threading.Thread(target=loop, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps({**usage(), **run}), flush=True)


def write(kind: str, port: str, count: str) -> None:
    """Be the writer: plain pyzmq, contents of one resource, until the last one is confirmed."""
    import zmq

    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    if kind == "mtl":
        control = context.socket(zmq.REQ)
        control.connect(f"tcp://127.0.0.1:{port}")

        def ask(command: str, **body: Any) -> Any:
            text = json.dumps({key.replace("_", "-"): value for key, value in body.items()})
            control.send_multipart([b"Connection." + command.encode(), text.encode()])
            return json.loads(control.recv_multipart()[1])

        ask("Open", protocol={"name": "MTL", "version": 1}, virtual_host="bench")
        ask("Profile", profile="ingest")
        reply = ask("Writer", resources=["bench"], confirm="full")
        dealer.connect(f"tcp://127.0.0.1:{reply['port']}")
        token = reply["lease"].encode()
        dealer.send_multipart([b"\1" + bytes(8) + bytes([len(token)]) + token, b""])
        dealer.recv_multipart()
    else:
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"\0" + int(count).to_bytes(8, "big"), b""])
    tail, body, last = b"\x05bench\0\0\0\0", b"x" * BODY_OCTETS, int(count)
    for number in range(1, last + 1):
        dealer.send_multipart([b"\5" + number.to_bytes(8, "big") + tail, body])
    while True:
        header, _ = dealer.recv_multipart()
        if header[0] == 8:
            dealer.send_multipart([b"\x09", b""])
        elif header[0] == 6 and int.from_bytes(header[1:9], "big") >= last:
            break
    context.destroy(linger=0)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    elif sys.argv[1] == "raw":
        raw()
    else:
        serve()
