"""A server whose sink keeps everything until SIGUSR1: ``python -m tests.mtl.held NAME=VALUE …``."""

from __future__ import annotations

import signal
import sys
from typing import Any

from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from zope.interface import implementer

from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.mtl import MtlServerFactory
from twisted_msgproto.net.gateway import announce
from twisted_msgproto.net.sink import IMessageSink

reactor: Any = installed


@implementer(IMessageSink)
class HoldingSink:
    """Nothing is safe before SIGUSR1, everything after it."""

    def __init__(self) -> None:
        self.held: list[Deferred[int | None]] | None = []

    def put(self, batch: MessageBatch) -> Deferred[int | None]:
        safe: Deferred[int | None] = Deferred()
        if self.held is None:
            safe.callback(None)
        else:
            self.held.append(safe)
        return safe

    def release(self) -> None:
        held, self.held = self.held, None
        for safe in held or ():
            safe.callback(None)


def main() -> None:
    sink = HoldingSink()
    limits = dict(argument.split("=") for argument in sys.argv[1:])
    factory = MtlServerFactory(sink, limits=limits)
    control, _ = factory.listen(["tcp://127.0.0.1:*"], "tcp://127.0.0.1:*")
    signal.signal(signal.SIGUSR1, lambda *_: reactor.callFromThread(sink.release))
    reactor.callWhenRunning(announce, "mtl", control)
    reactor.run()


if __name__ == "__main__":
    main()
