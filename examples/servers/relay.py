#!/usr/bin/env python3
"""MicroMsg2: a server that relays topics to another server, and loses nothing on the way.

A site's publishers and subscribers use the relay as their server.  What they publish for a topic
also goes to the centre; their acknowledgement comes when the centre has acknowledged it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.task import react

from twisted_msgproto import Message
from twisted_msgproto.micromsg2 import (
    MicroMsg2ClientFactory,
    MicroMsg2ClientService,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
    connect,
    serve,
)


class Relay(MicroMsg2Server):
    """The session of one client of the site."""

    factory: Relays  # pyright: ignore[reportIncompatibleVariableOverride]

    def messageReceived(self, message: Message) -> Deferred[None] | None:
        """Hand a topic's message on; the Deferred delays its acknowledgement."""
        topic = message.destination or ""
        if not topic.startswith("topic/"):
            return None
        return self.factory.centre.send(topic, message.body, message.fields or {}, safe=True)


class Relays(MicroMsg2ServerFactory):
    """The one connection to the centre, that is made again whenever it is lost."""

    protocol = Relay

    def __init__(self, centre: MicroMsg2ClientService) -> None:
        super().__init__()
        self.centre = centre


async def main(reactor: Any) -> None:
    """Run a centre, a relay, a subscriber of each, and one publisher."""
    here = "tcp:0:interface=127.0.0.1"
    async with serve(here) as centre:
        to_centre = clientFromString(reactor, centre.addresses[0])
        relayed = MicroMsg2ClientService(to_centre, MicroMsg2ClientFactory())
        async with (
            relayed,
            serve(here, factory=Relays(relayed)) as site,
            connect(centre.addresses[0]) as everybody,
            connect(site.addresses[0]) as neighbour,
            connect(site.addresses[0]) as publisher,
        ):
            seen = {
                "the site": aiter(await neighbour.subscribe("topic/temperature")),
                "the centre": aiter(await everybody.subscribe("topic/temperature")),
            }
            for celsius in (20, 21):
                await publisher.send("topic/temperature", b"%d" % celsius, {"room": "kitchen"})
                print(f"{celsius} is acknowledged")
                for name, messages in seen.items():
                    message = await anext(messages)
                    print(f"{name} has {message.body!r} of {message.fields}")


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
