#!/usr/bin/env python3
"""UMQ: an object whose methods peers call, an attribute that they see, and a topic of changes."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from twisted_msgproto.umq import (
    MethodRegistry,
    Request,
    Topic,
    UmqServer,
    UmqServerFactory,
    connect,
    serve,
)


class Thermostat:
    """The callable object: every client sees the same one."""

    def __init__(self) -> None:
        self.target = 20.0
        self.displays: set[UmqServer] = set()
        self.watchers: set[Topic] = set()
        self.methods = MethodRegistry()
        self.methods.register(self.set)
        self.methods.register(self.changes, with_request=True)
        self.methods.error(ValueError)  # peers may see errors of this type

    def set(self, celsius: float) -> float:
        """Change the target for everybody; return the one before."""
        if not 5 <= celsius <= 30:
            raise ValueError(f"{celsius} °C is not between 5 and 30")
        before, self.target = self.target, celsius
        for display in self.displays:
            display.setAttribute("target", str(celsius))
        for topic in list(self.watchers):
            topic.publish(f"from {before} to {celsius}")
        return before

    def changes(self, request: Request, topic_id: str) -> bool:
        """Publish each change to the caller's topic."""
        topic = request.session.openTopic(topic_id)
        self.watchers.add(topic)
        topic.whenClosed().addCallback(lambda reason: self.watchers.discard(topic))
        return True


class Display(UmqServer):
    """The session of one client, that has the target as an attribute from the beginning."""

    factory: Displays  # pyright: ignore[reportIncompatibleVariableOverride]

    def sessionEstablished(self) -> None:
        """Show the target."""
        self.factory.thermostat.displays.add(self)
        self.setAttribute("target", str(self.factory.thermostat.target))

    def sessionLost(self, reason: object) -> None:
        """Forget the session."""
        self.factory.thermostat.displays.discard(self)


class Displays(UmqServerFactory):
    """The one thermostat of all sessions."""

    protocol = Display

    def __init__(self, thermostat: Thermostat) -> None:
        super().__init__(methods=thermostat.methods)
        self.thermostat = thermostat


async def main(reactor: Any) -> None:
    """Call the object, watch its topic, and read its attribute."""
    async with (
        serve("tcp:0:interface=127.0.0.1", factory=Displays(Thermostat())) as server,
        connect(server.addresses[0]) as client,
    ):
        thermostat = client.remote
        changes = client.subscribe(lambda topic_id: f'["changes", "{topic_id}"]')
        await changes.whenStarted()
        print("before:", await thermostat.set(21.5))
        print("change:", (await anext(aiter(changes))).payload)
        print("attribute:", client.attributes["target"])
        await thermostat.set(99).addErrback(lambda failure: print("refused:", failure.value))


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
