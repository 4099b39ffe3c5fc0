#!/usr/bin/env python3
"""MicroMsg2: a server that relays topics to another server, and loses nothing on the way.

A site's publishers and subscribers use the relay as their server.  What they publish for a topic
also goes to the centre; their acknowledgement comes when the centre has acknowledged it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.task import react

from twisted_msgproto import Message
from twisted_msgproto.micromsg2 import (
    MicroMsg2ClientFactory,
    MicroMsg2ClientService,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
)


class Relay(MicroMsg2Server):
    """The session of one client of the site."""

    factory: Relays

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

    async def listen(factory: MicroMsg2ServerFactory) -> tuple[Any, TCP4ClientEndpoint]:
        port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
        return port, TCP4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port)

    async def subscriber(endpoint: TCP4ClientEndpoint) -> AsyncIterator[Message]:
        client: Any = await endpoint.connect(MicroMsg2ClientFactory())
        await client.whenEstablished()
        return aiter(await client.subscribe("topic/temperature"))

    centre_port, at_centre = await listen(MicroMsg2ServerFactory())
    centre = MicroMsg2ClientService(at_centre, MicroMsg2ClientFactory())
    centre.startService()
    site_port, at_site = await listen(Relays(centre))
    everybody = await subscriber(at_centre)
    neighbour = await subscriber(at_site)

    publisher: Any = await at_site.connect(MicroMsg2ClientFactory())
    await publisher.whenEstablished()
    for celsius in (20, 21):
        await publisher.send("topic/temperature", b"%d" % celsius, {"room": "kitchen"})
        print(f"{celsius} is acknowledged")
        for name, messages in (("the site", neighbour), ("the centre", everybody)):
            message = await anext(messages)
            print(f"{name} has {message.body!r} of {message.fields}")

    await centre.close()
    for port in (site_port, centre_port):
        await port.stopListening()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
