"""A Twisted application of its own: events of Lumberjack shippers go into a durable queue.

``python collector.py tcp:5044:interface=127.0.0.1 /var/spool/collector``

SIGTERM and Ctrl-C end it in order: it takes no more connections, acknowledges what is on disk, and
gives the queue back.  Whatever a shipper saw acknowledged is in the queue then; it sends the rest
again, to whoever serves next.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import endpoints, reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IListeningPort

from twisted_msgproto import Message
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.lumberjack import LumberjackServer, LumberjackServerFactory
from twisted_msgproto.net import DurableSink


class Collector(LumberjackServer):
    """Looks at each event before it is stored."""

    def messageReceived(self, message: Message) -> None:
        """Count it; an exception, or a Deferred which fails, would withhold the acknowledgement."""
        self.factory.counters["looked_at"] += 1


async def end(port: IListeningPort, factory: LumberjackServerFactory, sink: DurableSink) -> None:
    """End in this order, or something acknowledged could be lost."""
    await port.stopListening()
    await factory.drain()
    everything = await sink.close()
    told = (
        "all that was received is safe" if everything else "some was not written, nor acknowledged"
    )
    print(f"looked at {factory.counters['looked_at']} events; {told}", flush=True)


async def begin(description: str, directory: str) -> None:
    """Listen, and let the reactor wait for the end before it stops."""
    sink = DurableSink(directory, reactor)
    factory = LumberjackServerFactory(sink)
    factory.protocol = Collector
    port = await endpoints.serverFromString(reactor, description).listen(factory)
    address: Any = port.getHost()
    print(f"collector listening on tcp:{address.host}:{address.port}", flush=True)

    def ending() -> Deferred[None]:
        return ensureDeferred(end(port, factory, sink))

    reactor.addSystemEventTrigger("before", "shutdown", ending)


def main(description: str, directory: str) -> None:
    """Run until a signal comes; what cannot begin is one line and exit status 1."""
    failures: list[str] = []

    def failed(failure: Any) -> None:
        failure.trap(QueueError, OSError, ValueError)
        failures.append(f"collector: {failure.getErrorMessage()}")
        reactor.stop()

    reactor.callWhenRunning(
        lambda: ensureDeferred(begin(description, directory)).addErrback(failed)
    )
    reactor.run()
    if failures:
        sys.exit(failures[0])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python collector.py ENDPOINT DIRECTORY, such as tcp:5044 spool")
    main(*sys.argv[1:])
