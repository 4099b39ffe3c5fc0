"""Queues of the broker that outlive the gateway: a durable queue, real connections, restarts."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from tests.tools.queues import rows
from twisted_msgproto.micromsg2 import Offer, Proposal, connect, serve

ACKS = Proposal(required=(Offer("batch-ack"), Offer("pub-sub"), Offer("dotnet")))


class Kept(TestCase):
    timeout = 120

    async def test_what_waits_in_a_queue_is_there_after_a_restart(self) -> None:
        """MM-27: with its properties and its type, in order, and its rows are in the queue once;
        what was settled does not come again.
        """
        directory, came = self.mktemp(), list[Any]()
        for times in range(3):
            where = "tcp:0:interface=127.0.0.1"
            async with serve(where, queue=directory, brokerQueues=["q"]) as server:
                client = await connect(server.addresses[0], proposal=ACKS)
                if not times:
                    await client.send("q", b"1", {"amount": 3, "m": "Teu"}, typeName="My.Type")
                    await client.sendMany("q", [b"3", b"4"], {"amount": 5}, typeName="")
                    continue
                subscription = await client.subscribe("q")
                for _ in range(times):
                    came.append(await anext(subscription))
                await client.send("elsewhere", b"2")  # behind the acks of these
                await client.leave()
        assert [message.body for message in came] == [b"1", b"3", b"4"]
        assert [dict(message.fields) for message in came] == [
            {"amount": "3", "m": "Teu", "dotnet-type": "My.Type"},
            {"amount": "5"},
            {"amount": "5"},
        ]
        self.assertEqual([row["body"] for row in rows(directory)], [b"1", b"3", b"4", b"2", b"2"])
