#!/usr/bin/env python3
"""Lumberjack: a server that drops some events of a shipper and adds to the others.

``Filtering`` is the part to copy.  In a gateway.toml, ``[lumberjack]`` with
``class = "filtering:Filtering"`` puts the events that it keeps into the queue.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import react

from twisted_msgproto import MessageBatch
from twisted_msgproto.lumberjack import LumberjackServer, connect, serve
from twisted_msgproto.net import Later


class Filtering(LumberjackServer):
    """What is not for debugging, and says of each event which host it came from."""

    def batchReceived(self, batch: MessageBatch) -> Later:
        """Hand on what is left; the shipper's acknowledgement also covers what was dropped."""
        kept = [
            (int(number or 0), body)
            for number, event in zip(batch.message_id or (), batch.body or (), strict=True)
            if (body := self.enriched(event or b"")) is not None
        ]
        if not kept:
            return None
        numbers, bodies = [number for number, _ in kept], [body for _, body in kept]
        return super().batchReceived(
            replace(batch, count=len(kept), message_id=numbers, body=bodies)
        )

    def enriched(self, body: bytes) -> bytes | None:
        """Return the event with the shipper's address; None drops it.  What is no object stays."""
        try:
            event = json.loads(body)
        except ValueError:
            return body
        if not isinstance(event, dict):
            return body
        if event.get("level") == "debug":
            return None
        return json.dumps({**event, "from": self.address}).encode()


class Printing:
    """Stands for the queue."""

    def put(self, batch: MessageBatch) -> Deferred[int | None]:
        """Print every message; what is printed is safe enough here."""
        for message in batch:
            print(f"kept {(message.body or b'').decode()}")
        return succeed(None)


async def main(reactor: Any) -> None:
    """Serve one shipper that sends three events."""
    async with (
        serve("tcp:0:interface=127.0.0.1", sink=Printing(), server=Filtering) as server,
        connect(server.addresses[0]) as shipper,
    ):
        for number, level in enumerate(("info", "debug", "error"), start=1):
            await shipper.send(json.dumps({"n": number, "level": level}).encode())
            print(f"event {number} is acknowledged")


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
