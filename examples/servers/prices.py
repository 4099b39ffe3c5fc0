#!/usr/bin/env python3
"""sABC: a service that answers requests, and refuses what it does not know.

Try it by hand, too: sABC's frames are lines that a person can type.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react

from twisted_msgproto import Message
from twisted_msgproto.core.errors import Refused
from twisted_msgproto.sabc import Response, SabcServer, SabcServerFactory, connect, serve


class Prices(SabcServer):
    """Answers the name of a thing with its price."""

    factory: PricesFactory  # pyright: ignore[reportIncompatibleVariableOverride]

    async def requestReceived(self, message: Message) -> Response:
        """Return the answer; ``Refused`` becomes an ERROR frame with its code and text."""
        name = (message.body or b"").decode("utf-8", "replace")
        price = await self.factory.lookUp(name)
        if price is None:
            raise Refused(f"no such thing: {name}", 404)
        return Response(json.dumps({"name": name, "price": str(price)}).encode(), {"unit": "EUR"})

    def messageReceived(self, message: Message) -> None:
        """Note a price that a client sends without wanting an answer."""
        offer = json.loads(message.body or b"{}")
        self.factory.prices[offer["name"]] = Decimal(offer["price"])


class PricesFactory(SabcServerFactory):
    """What all sessions share."""

    protocol = Prices

    def __init__(self) -> None:
        super().__init__()
        self.prices = {"tea": Decimal("2.50")}

    async def lookUp(self, name: str) -> Decimal | None:
        """Return the price, or None; a database would take its time, too."""
        await deferLater(self.clock, 0.001)
        return self.prices.get(name)


async def main(reactor: Any) -> None:
    """Ask for a price, set another one, and ask for what is not there."""
    async with (
        serve("tcp:0:interface=127.0.0.1", factory=PricesFactory()) as server,
        connect(server.addresses[0], clientId="customer") as client,
    ):
        await client.sendOnly('{"name": "coffee", "price": "3.20"}')
        for name in ("tea", "coffee", "cocoa"):
            try:
                answer = await client.request(name)
                print(answer.text, answer.headers["unit"])
            except Refused as error:
                print(f"refused with {error.code}: {error}")


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
