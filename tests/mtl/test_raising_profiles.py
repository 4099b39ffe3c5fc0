"""A profile that raises, in whichever method, harms no other client, and nothing is confirmed that
was not stored (RD-40, MT-13, MT-19, MT-20).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.mtl.broker import (
    FULL,
    NONE,
    Broker,
    Channel,
    Confirm,
    Content,
    DataCommand,
    Dismiss,
    Ping,
    Pong,
    Reject,
    Response,
    Summon,
    bodies,
)
from tests.tools.memory_zeromq import Network
from tests.tools.sinks import SafeSink
from twisted_msgproto.mtl import (
    IngestProfile,
    MtlClient,
    MtlServerFactory,
    Profile,
    QueueProfile,
    TestProfile,
)
from twisted_msgproto.mtl.terms import events
from twisted_msgproto.mtl.wire import data

METHODS = [name for name, value in vars(Profile).items() if inspect.isfunction(value)]
METHODS.remove("__init__")
GOOD, BAD = "good", "bad"
"""Virtual hosts: the profile raises for clients of the bad one."""


class FaultOfProfileError(Exception):
    """What a profile raises."""


def raising(base: type[Profile], method: str, late: bool) -> Any:
    """A profile whose ``method`` raises while it is ``armed``: at its beginning, or its end."""

    def call(self: Any, *arguments: Any) -> Any:
        first: Any = arguments[0] if arguments else BAD
        host = first if isinstance(first, str) else first.session.virtual_host
        hit = self.armed and host == BAD
        self.raised += hit
        if hit and not late:
            raise FaultOfProfileError(method)
        result = getattr(base, method)(self, *arguments)
        if hit:
            raise FaultOfProfileError(method)
        return result

    members = {"armed": False, "raised": 0, "bounded": True, "enveloped": True, method: call}
    return type("Raising", (base,), members)()


class Side:
    """A writer and a reader of one virtual host, in sessions of their own."""

    def __init__(self, broker: Broker, profile: Profile, host: str, confirm: str) -> None:
        self.broker, self.host, self.confirm = broker, host, confirm
        self.name, self.resource = profile.name, profile.only_resource or "a"
        self.written: dict[int, bytes] = {}
        self.writer = broker.flow("Writer", [], confirm, self.name, host)
        self.readers = [self.reader() for _ in range(2 * profile.reads)]

    def reader(self) -> bytes:
        return self.broker.flow("Reader", [], self.confirm, self.name, self.host)

    def content(self, sequence: int) -> list[bytes]:
        body = self.written[sequence] = f"{self.host}{sequence}".encode()
        return [self.writer, *data.encode(Content(sequence, self.resource, body=body))]

    def say(self, command: DataCommand) -> list[list[bytes]]:
        """The same of every reader."""
        return [[reader, *data.encode(command)] for reader in self.readers]


def settled(got: Sequence[DataCommand], sent: dict[int, bytes]) -> dict[int, type]:
    """Sequence → what has settled it first."""
    found: dict[int, type] = {}
    for command in got:
        if isinstance(command, Confirm | Reject):
            for number in sent:
                if number == command.sequence or (command.multiple and number < command.sequence):
                    found.setdefault(number, type(command))
    return found


def store(broker: Broker) -> set[bytes]:
    """The sink has all that it was given."""
    told = [event for event in broker.events if isinstance(event, events.ContentReceived)]
    for event in told:
        broker.safe(event)
    broker.events.clear()
    return {body for event in told for body in event.bodies}


def take_all(broker: Broker, side: Side) -> set[bytes]:
    """What another reader gets."""
    found: set[bytes] = set()
    reader = side.reader()
    got = broker.command(reader, Summon(2, side.resource))
    while new := set(bodies(got)) - found:
        found |= new
        last = max(one.sequence for one in got if isinstance(one, Content))
        got = broker.command(reader, Confirm(last, True))
    return found


WORLDS: list[tuple[type[Profile], str]] = [
    (QueueProfile, FULL),
    (QueueProfile, NONE),
    (TestProfile, NONE),
    (IngestProfile, FULL),
]


@pytest.mark.parametrize("late", [False, True], ids=["at its beginning", "at its end"])
@pytest.mark.parametrize(
    ("base", "confirm"), WORLDS, ids=[f"{base.name}-{confirm}" for base, confirm in WORLDS]
)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_raises_harms_no_other_client_and_confirms_nothing_that_is_not_stored(
    method: str, base: type[Profile], confirm: str, late: bool
) -> None:
    """RD-40"""
    profile = raising(base, method, late)
    broker = Broker([profile], limits={"prefetch": 5})
    good, bad = (Side(broker, profile, host, confirm) for host in (GOOD, BAD))
    session = broker.session(profile.name, BAD)
    profile.armed = True

    # One read has what everybody sends, the good between the bad.
    resource = good.resource
    messages = []
    for side in (bad, good):
        messages += side.say(Summon(2, resource))
    for number in range(2, 12):
        messages += [bad.content(number), good.content(number)]
    broker.receive(Channel.DATA, *messages)
    stored = store(broker)
    messages = []
    for side in (bad, good):
        messages += [*side.say(Reject(1, False, True)), *side.say(Confirm(2))]
    broker.receive(Channel.DATA, *messages, bad.content(12), good.content(12))
    stored |= store(broker)
    for reader in bad.readers:
        broker.server.blocked(reader)
        broker.server.unblocked(reader, broker.now)
    broker.server.refill(broker.now)
    broker.collect(broker.receive(Channel.DATA, *bad.say(Dismiss(3, resource))))
    code, _ = broker.ask(session, "Writer", {"resources": [resource], "confirm": confirm})
    assert code in (202, 403)
    figures = broker.server.snapshot()
    broker.leave(*bad.readers)
    broker.receive(Channel.DATA, bad.content(13), good.content(13))
    stored |= store(broker)

    # The neighbours have everything.
    of_good = broker.got(good.writer)
    assert set(good.written.values()) <= stored or not profile.stored
    if confirm == FULL:
        assert settled(of_good, good.written) == dict.fromkeys(good.written, Confirm)
    else:
        assert of_good == []
    came = [broker.got(reader) for reader in good.readers]
    for got in came:
        assert Response(2, 200) in got
    delivered = {body for got in came for body in bodies(got)}
    if confirm == NONE and profile.reads:
        assert delivered == set(good.written.values())
    elif profile.reads:
        assert len(delivered) >= 10  # as many as they may have
    assert figures["writers"] == 2

    # What is confirmed is stored, and after the fault the bad can go on as well.
    profile.armed = False
    broker.wait(broker.limits["heartbeat"])
    of_bad = [one for one in broker.got(bad.writer) if not isinstance(one, Ping | Pong)]
    found = settled(of_bad, bad.written)
    confirmed = {bad.written[number] for number, kind in found.items() if kind is Confirm}
    if profile.stored:
        assert confirmed <= stored
    if confirm == FULL:
        assert set(found) == set(bad.written), "neither confirmed nor rejected"
    if base is QueueProfile:
        had = {body for reader in bad.readers for body in bodies(broker.got(reader))}
        had |= take_all(broker, bad)
        assert confirmed <= had, "confirmed to its writer, and no reader has seen it"
    broker.receive(Channel.DATA, bad.content(20))
    assert bad.written[20] in store(broker) or not profile.stored

    asked = profile.raised
    assert broker.server.counters["profile_errors"] == asked
    assert bool(asked) == bool(broker.server.take_profile_errors())
    if base is QueueProfile and confirm == FULL:
        assert asked, "this method was not called"


class OnTwisted(SynchronousTestCase):
    """A server with two clients, of which it reads everything together."""

    def serve(self: Any, **options: Any) -> None:
        self.clock = Clock()
        self.network = Network(self.clock)
        sockets = self.network.sockets()
        self.sink = SafeSink()
        self.factory = MtlServerFactory(self.sink, clock=self.clock, sockets=sockets, **options)
        self.factory.listen(["tcp://127.0.0.1:5049"], "tcp://127.0.0.1:5050")

    def turns(self: Any) -> None:
        for _ in range(30):
            self.clock.advance(0)

    def write(self: Any, count: int) -> dict[str, list[Any]]:
        """What becomes of so many contents of each client."""
        writers: dict[str, Any] = {}
        for host in (BAD, GOOD):
            client = MtlClient(
                "tcp://127.0.0.1:5049", clock=self.clock, sockets=self.network.sockets()
            )
            self.addCleanup(client.abort)
            for asked in (lambda: client.open(host), lambda: client.profile("ingest")):  # noqa: B023
                asked().addErrback(lambda failure: None)
                self.turns()
            leased = client.writer(["a"])
            self.turns()
            leased.addErrback(lambda failure: None)
            writers[host] = getattr(leased, "result", None)
        told: dict[str, list[Any]] = {host: [] for host in writers}
        for number in range(count):
            for host, writer in writers.items():
                if writer is not None:
                    sent = writer.send("a", f"{host}{number}".encode())
                    sent.addBoth(told[host].append)
        self.turns()
        return told

    def stored(self: Any) -> list[bytes]:
        return [message.body for batch in self.sink.batches for message in batch]

    def good_is_served(self: Any, told: dict[str, list[Any]], count: int) -> None:
        self.assertEqual(told[GOOD], [None] * count)
        bodies = [f"{GOOD}{number}".encode() for number in range(count)]
        self.assertEqual([body for body in self.stored() if body.startswith(b"good")], bodies)

    def test_few_lines_tell_of_a_profile_that_always_raises_and_a_counter(
        self: Any,
    ) -> None:
        """RD-40: it may raise for each content."""
        profile = raising(IngestProfile, "has_room", False)
        profile.armed = True
        self.serve(profiles=[profile])
        told = self.write(200)
        self.good_is_served(told, 200)
        self.assertEqual([one.type.__name__ for one in told[BAD]], ["Refused"] * 200)
        self.assertEqual(self.factory.counters["profile_errors"], 200)
        lines = self.flushLoggedErrors(FaultOfProfileError)
        self.assertTrue(1 <= len(lines) <= 5, len(lines))
        self.factory.drain()
        self.clock.advance(self.factory.limits["drain"])
