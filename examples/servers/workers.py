#!/usr/bin/env python3
"""MTL: a queue of jobs, a writer, and two workers that share them.

A worker confirms a job when it is done.  What it rejects, or what it had when it was lost, goes to
the next worker.  With a ``DurableSink`` the queue also outlives the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import react

from twisted_msgproto import Message
from twisted_msgproto.mtl import MtlClient, MtlReader, MtlServer, Received, connect, serve

JOBS = ("paint", "mow", "cook")


class Foreman(MtlServer):
    """The server's side of one client's session; it sees each job before it is queued."""

    def messageReceived(self, message: Message) -> None:
        """Count what came; an exception would withhold the writer's Confirm."""
        self.factory.counters["jobs"] += 1


async def work(client: MtlClient, do: Callable[[Received], Awaitable[bool]]) -> MtlReader:
    """Take jobs as long as the connection lasts: what ``do`` does not do, another worker may.

    After five tries in vain a job is in the queue ``jobs.dead``.
    """

    async def take(reader: MtlReader) -> None:
        async for job in reader:
            if await do(job):
                reader.confirm(job.sequence)
            else:
                reader.reject(job.sequence, recycle=True)

    reader = await client.reader(["jobs"])
    Deferred.fromCoroutine(take(reader)).addErrback(lambda failure: None)  # the reader's end
    return reader


async def main(reactor: Any) -> None:
    """Have three jobs done by Ann, who does not cook, and Ben."""
    done: dict[str, Deferred[str]] = {job: Deferred() for job in JOBS}

    def person(name: str, unwilling: str = "") -> Callable[[Received], Awaitable[bool]]:
        async def do(job: Received) -> bool:
            what = job.body.decode()
            if what == unwilling:
                return False
            done[what].callback(name)
            return True

        return do

    async with serve("tcp://127.0.0.1:0", server=Foreman) as server:
        at = server.addresses[0]
        async with (
            connect(at, virtualHost="house", profile="queue") as ann,
            connect(at, virtualHost="house", profile="queue") as ben,
            connect(at, virtualHost="house", profile="queue") as boss,
        ):
            readers = [
                await work(ann, person("Ann", unwilling="cook")),
                await work(ben, person("Ben")),
            ]
            await gatherResults([reader.summon("jobs") for reader in readers])
            writer = await boss.writer(["jobs"])
            for job in JOBS:
                await writer.send("jobs", job.encode())
            print(f"{server.factory.counters['jobs']} jobs were queued")
            for job, doer in done.items():
                name = await doer
                print(f"{job} was done by {name}" if job == "cook" else f"{job} was done")


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
