"""``python -m tests.chaos.bare_router``: a ROUTER of pyzmq alone, beside which MTL's is weighed.

It asks who connects (ZAP), as every server must that counts its connections, and throws away what
comes.  It prints its address and ends with its standard input.
"""

from __future__ import annotations

import sys
import threading

import zmq

ZAP_ADDRESS = "inproc://zeromq.zap.01"


def admit_all(zap: zmq.Socket[bytes]) -> None:
    while True:
        peer, empty, version, number, *_ = zap.recv_multipart()
        zap.send_multipart([peer, empty, version, number, b"200", b"OK", b"", b""])


def drop(router: zmq.Socket[bytes]) -> None:
    while True:
        router.recv_multipart()


def main() -> None:
    context = zmq.Context()
    zap, router = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    zap.bind(ZAP_ADDRESS)
    threading.Thread(target=admit_all, args=(zap,), daemon=True).start()
    router.zap_domain = b"bare"
    port = router.bind_to_random_port("tcp://127.0.0.1")
    threading.Thread(target=drop, args=(router,), daemon=True).start()
    print(f"bare listening on tcp://127.0.0.1:{port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
