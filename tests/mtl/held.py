"""A server whose sink keeps everything until SIGUSR1: ``python -m tests.mtl.held NAME=VALUE …``."""

from __future__ import annotations

import signal
import sys
from typing import Any

from twisted.internet import reactor as installed

from tests.mtl.cases import HeldSink
from twisted_msgproto.mtl import MtlServerFactory
from twisted_msgproto.net.gateway import announce

reactor: Any = installed


def main() -> None:
    sink = HeldSink(at_once=False)
    limits = dict(argument.split("=") for argument in sys.argv[1:])
    factory = MtlServerFactory(sink, limits=limits)
    control, _ = factory.listen(["tcp://127.0.0.1:*"], "tcp://127.0.0.1:*")
    signal.signal(signal.SIGUSR1, lambda *_: reactor.callFromThread(sink.release_all))
    reactor.callWhenRunning(announce, "mtl", control)
    reactor.run()


if __name__ == "__main__":
    main()
