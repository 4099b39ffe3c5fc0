"""What comes is iterated: of every client and every service, with each way to settle.

Each message comes once, is settled only when it was taken, and none stays behind (RD-01).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.contract.cases import (
    CASES,
    CONTROL,
    Case,
    Endpoint,
    Mtl,
    Umq,
    WideMicroMsg2,
    no_chance,
)
from tests.contract.world import ContractCase, World
from twisted_msgproto.core.errors import ConnectionClosed
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, Offer, Proposal
from twisted_msgproto.mtl import MtlClient, MtlClientFactory, MtlWriter
from twisted_msgproto.testing import SafeSink
from twisted_msgproto.testing.pairs import FULL_BYTES
from twisted_msgproto.umq import UmqClientFactory

MESSAGES = 300


class Way:
    """How messages come to one verb, in one mode.

    Attributes:
        modes: how they are settled.
        unsettled: those of the modes in which the server hears of it.
    """

    modes: tuple[str, ...] = ("",)
    unsettled: frozenset[str] = frozenset()
    case: Case

    def __init__(self, world: World, of: str, mode: str) -> None:
        self.world, self.of, self.mode = world, of, mode
        self.service: Any = None

    def begin(self) -> Any:
        world = self.world
        if self.of == "client":
            client = self.client()
        else:
            client = self.service = self.case.service_class(
                self.endpoint(), self.factory(), random=no_chance
            )
            client.startService()
        world.wait(1)
        iterated = self.asked(client)
        world.wait(1)
        return getattr(iterated, "result", iterated)

    def endpoint(self) -> Any:
        return Endpoint(self.case, self.world)

    def client(self) -> Any:
        peer = self.case.connected(self.world, self.factory(), FULL_BYTES, "127.0.0.1")
        self.world.peers.append(peer)
        return peer.client

    def factory(self) -> Any:
        raise NotImplementedError

    def asked(self, client: Any) -> Any:
        raise NotImplementedError

    def publish(self, bodies: list[bytes]) -> None:
        raise NotImplementedError

    def body(self, item: Any) -> bytes:
        return item.body  # type: ignore[no-any-return]

    def settle(self, iterated: Any, item: Any) -> None:
        """What an application does with what it has taken."""

    def settled(self) -> int:
        return 0

    def left(self) -> int:
        return 0


class OfMicroMsg2(Way):
    case = WideMicroMsg2()
    modes = ("topic, ack", "queue, ack", "topic", "queue")
    unsettled = frozenset({"topic, ack", "queue, ack"})

    def factory(self) -> Any:
        offered = [Offer("pub-sub")]
        if self.mode in self.unsettled:
            offered.append(Offer("ack", {"max-count": "10"}))
        return MicroMsg2ClientFactory(
            proposal=Proposal(optional=tuple(offered)), clock=self.world.clock
        )

    @property
    def destination(self) -> str:
        return "topic/a" if self.mode.startswith("topic") else "a"

    def asked(self, client: Any) -> Any:
        return client.subscribe(self.destination)

    def publish(self, bodies: list[bytes]) -> None:
        sent = self.world.join().client.sendMany(self.destination, bodies)
        sent.addErrback(lambda failure: failure.trap(ConnectionClosed) and None)

    def _in_flight(self) -> int:
        sessions = [peer.server for peer in self.world.peers if not peer.gone]
        return sum(session.snapshot()["in_flight"] or 0 for session in sessions)

    def settled(self) -> int:
        return int(self.world.factory.counters["sent"]) - self._in_flight()

    def left(self) -> int:
        figures = self.world.factory.queues.store.snapshot()
        queued = figures["broker_waiting"] + figures["broker_in_flight"]
        return int(queued or self._in_flight())


class OfUmq(Way):
    case = Umq()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.topics: list[Any] = []
        way = self

        def called(self: Any, request: Any) -> str:
            way.topics.append(self.openTopic(request.payload))
            return "accepted"

        self.world.factory.protocol = self.case.subclass(
            self.case.server_class, {"callReceived": called}
        )

    def factory(self) -> Any:
        return UmqClientFactory("ws://server:5048/", clock=self.world.clock)

    def asked(self, client: Any) -> Any:
        return client.subscribe(lambda id: id)

    def publish(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.topics[-1].publish(body.decode())

    def body(self, item: Any) -> bytes:
        return item.payload.encode()  # type: ignore[no-any-return]


class OfMtl(Way):
    case = Mtl()
    modes = ("queue, full", "queue, none", "test, none")
    unsettled = frozenset({"queue, full"})

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.profile, self.confirm = self.mode.split(", ")
        self.resource = "resource" if self.profile == "test" else "a"

    def factory(self) -> Any:
        world = self.world
        return MtlClientFactory(
            "host", self.profile, clock=world.clock, sockets=world.network.sockets()
        )

    def endpoint(self) -> Any:
        return CONTROL

    def client(self) -> Any:
        factory = self.factory()
        client = factory.buildClient(CONTROL)
        Deferred.fromCoroutine(factory.enter(client))
        self.world.peers.append(Ended(client))
        return client

    def asked(self, client: Any) -> Any:
        async def begin() -> Any:
            reader = await client.reader([self.resource], self.confirm)
            await reader.summon(self.resource)
            return reader

        return Deferred.fromCoroutine(begin())

    def publish(self, bodies: list[bytes]) -> None:
        client = self.client()
        self.world.wait(1)
        leased = client.writer([self.resource], "none")
        self.world.wait(1)
        leased.result.sendMany(self.resource, bodies)

    def settle(self, iterated: Any, item: Any) -> None:
        if self.confirm == "full":
            iterated.confirm(item.sequence)

    def _figures(self) -> dict[str, Any]:
        profiles: dict[str, Any] = self.world.factory.snapshot()["profiles"]
        return profiles["queue"]  # type: ignore[no-any-return]

    def settled(self) -> int:
        return int(self._figures().get("confirmed", 0))

    def left(self) -> int:
        figures = self._figures()
        return int(figures["broker_waiting"] + figures["broker_in_flight"])


class Ended:
    gone = False
    sent: tuple[Any, ...] = ()

    def __init__(self, client: MtlClient) -> None:
        self.cut = client.abort

    def pump(self) -> bool:
        return False


WAYS: dict[tuple[str, str], type[Way]] = {
    ("micromsg2", "subscribe"): OfMicroMsg2,
    ("umq", "subscribe"): OfUmq,
    ("mtl", "reader"): OfMtl,
}
"""Each verb that gives something to iterate; clients and services both have it."""


def taking(iterator: AsyncIterator[Any], count: int, taken: list[Any]) -> Deferred[None]:
    async def take() -> None:
        while len(taken) < count:
            taken.append(await anext(iterator))

    return Deferred.fromCoroutine(take())


class Iterating:
    way: type[Way]
    of: str
    mode: str

    def setUp(self: Any) -> None:
        self.case = self.way.case
        self.there = self.way(self.world(SafeSink()), self.of, self.mode)
        self.iterated: Any = self.there.begin()
        self.iterator = aiter(self.iterated)
        self.taken: list[Any] = []
        self.addCleanup(self.stop)

    def stop(self: Any) -> None:
        if self.there.service is not None:
            stopped = self.there.service.stopService()
            self.there.world.wait(40)
            self.successResultOf(stopped)

    def take(self: Any, count: int) -> None:
        """Take so many more, one by one, as an application does that settles each."""
        for _ in range(count):
            taking(self.iterator, len(self.taken) + 1, self.taken)
            self.there.world.wait(0.01, 0.01)
            self.there.settle(self.iterated, self.taken[-1])
            self.there.world.wait(0.01, 0.01)

    def came(self: Any) -> list[bytes]:
        return [self.there.body(item) for item in self.taken]

    def test_each_comes_once_and_is_settled_when_it_was_taken(self: Any) -> None:
        """RD-01"""
        there = self.there
        bodies = [b"%d" % number for number in range(MESSAGES)]
        step = anext(self.iterator)
        step.send(None)
        self.assertRaises(RuntimeError, step.throw, RuntimeError)  # asyncio's, at what is no future
        there.publish(bodies)
        there.world.wait(3)
        waits = self.mode in there.unsettled
        if waits:
            self.assertEqual(there.settled(), 0, "nobody has taken one")
        self.take(3)
        self.assertLessEqual(there.settled(), 3 if waits else MESSAGES)
        self.take(MESSAGES - 3)
        self.assertEqual(self.came(), bodies)
        there.world.wait(3)
        if waits:
            self.assertEqual(there.settled(), MESSAGES)
        self.assertEqual(there.left(), 0)
        more = taking(self.iterator, MESSAGES + 1, self.taken)
        there.world.wait(3)
        self.assertNoResult(more)
        more.cancel()
        self.failureResultOf(more)

    def test_of_a_service_it_goes_on_in_the_next_session(self: Any) -> None:
        """RD-01, RD-25: and what had come from the one that was lost can still be taken."""
        there, world = self.there, self.there.world
        if there.service is None:
            return
        there.publish([b"0", b"1", b"2"])
        world.wait(1)
        self.take(2)
        there.case.away(world)
        world.wait(60)
        there.case.back(world)
        world.wait(80)
        self.assertEqual(there.service.state, "up")
        there.publish([b"3", b"4"])
        world.wait(1)
        while (came := self.came())[-1] != b"4":
            self.take(1)
        first = list(dict.fromkeys(came))
        self.assertEqual(first, [b"0", b"1", b"2", b"3", b"4"])
        # What was not settled when the session was lost is sent again.
        self.assertLessEqual(len(came), 5 + 3 * (self.mode in there.unsettled))
        world.wait(1)
        self.assertEqual(there.left(), 0)

    def test_who_waits_hears_that_a_service_was_stopped_and_of_more_after_a_start(
        self: Any,
    ) -> None:
        there, world = self.there, self.there.world
        if there.service is None:
            return
        waiting = taking(self.iterator, 1, self.taken)
        self.stop()
        for ended in (waiting, taking(self.iterator, 1, self.taken)):
            self.failureResultOf(ended, ConnectionClosed, StopAsyncIteration)
        there.service.startService()
        if there.case.name == "mtl":
            return  # its flows are not renewed: whoever wants more leases another
        waiting = taking(self.iterator, 1, self.taken)
        world.wait(1)
        self.assertNoResult(waiting)
        there.publish([b"0"])
        world.wait(1)
        self.successResultOf(waiting)
        self.assertEqual(self.came(), [b"0"])


def made() -> Iterator[tuple[str, type]]:
    for (protocol, verb), way in WAYS.items():
        for of in ("client", "service"):
            for mode in way.modes:
                name = "".join(
                    word.title() for word in re.findall(r"\w+", f"{protocol} {of} {verb} {mode}")
                )
                yield name, type(name, (Iterating, ContractCase), {
                    "way": way, "of": of, "mode": mode, "__module__": __name__,
                })  # fmt: skip


globals().update(made())


def public(kind: type) -> dict[str, Any]:
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_every_verb_that_gives_something_to_iterate_is_in_the_table() -> None:
    found = set()
    for case in CASES:
        for kind in (case.client_class, case.service_class):
            for name, method in public(kind).items():
                words = re.findall(r"\w+", str(method.__annotations__.get("return", "")))
                gives = map(vars(sys.modules[method.__module__]).get, words)
                if any(hasattr(one, "__aiter__") for one in gives):
                    found.add((case.name, name, kind))
    assert found == {
        (protocol, verb, kind)
        for (protocol, verb), way in WAYS.items()
        for kind in (way.case.client_class, way.case.service_class)
    }


@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_a_service_calls_its_verbs_as_its_client_does(case: Case) -> None:
    """RD-01, RD-25: another default is another meaning; a service may take more."""
    theirs, ours = public(case.client_class), public(case.service_class)
    if case.name == "mtl":
        theirs["send"] = MtlWriter.send
    shared = set(theirs) & set(ours)
    assert "close" in shared
    different = []
    for name in sorted(shared):
        service = inspect.signature(ours[name]).parameters
        for one in inspect.signature(theirs[name]).parameters.values():
            known = service.get(one.name)
            if known is None or (known.kind, known.default) != (one.kind, one.default):
                different.append(f"{name}: {one}")
    assert different == []
