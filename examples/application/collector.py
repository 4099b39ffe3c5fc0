"""A Twisted application of its own: events of Lumberjack shippers go into a durable queue.

``python collector.py tcp:5044:interface=127.0.0.1 /var/spool/collector``

SIGTERM and Ctrl-C end it in order: it takes no more connections, acknowledges what is on disk, and
gives the queue back.  Whatever a shipper saw acknowledged is in the queue then; it sends the rest
again, to whoever serves next.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from twisted_msgproto import Message
from twisted_msgproto.core.errors import MsgprotoError
from twisted_msgproto.lumberjack import LumberjackServer, serve


class Collector(LumberjackServer):
    """Looks at each event before it is stored."""

    def messageReceived(self, message: Message) -> None:
        """Count it; an exception, or a Deferred which fails, would withhold the acknowledgement."""
        self.factory.counters["looked_at"] += 1


async def main(reactor: Any, description: str, directory: str) -> None:
    """Serve until a signal comes; what cannot begin is one line and exit status 1."""
    try:
        async with serve(description, queue=directory, server=Collector) as server:
            print(f"collector listening on {server.addresses[0]}", flush=True)
            await server.whenClosed()
    except MsgprotoError as error:
        sys.exit(f"collector: {error}")
    looked_at = server.factory.counters["looked_at"]
    print(f"looked at {looked_at} events; all that was acknowledged is safe", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python collector.py ENDPOINT DIRECTORY, such as tcp:5044 spool")
    react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
