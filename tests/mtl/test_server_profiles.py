"""The broker's machine: its three profiles, profiles of one's own, and profiles that raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.contract.cases import Mtl
from tests.contract.world import ContractCase
from tests.mtl.broker import (
    FULL,
    NONE,
    OPEN,
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
    contents,
    settled,
    store,
    write,
)
from twisted_msgproto.core.errors import Refused
from twisted_msgproto.mtl import (
    IngestProfile,
    Profile,
    QueueProfile,
    Stored,
    TestProfile,
    machine,
    queued_messages,
)
from twisted_msgproto.mtl.wire import data
from twisted_msgproto.net.broker import ServedBroker
from twisted_msgproto.testing import SafeSink


def test_the_test_profile_fans_out_to_all_readers_of_its_virtual_host__MT_25() -> None:
    broker = Broker()
    test = {"resource": "resource", "confirm": NONE, "profile": "test"}
    readers = [broker.reader(**test) for _ in range(3)]  # type: ignore[arg-type]
    elsewhere = broker.reader(**test, host="other")  # type: ignore[arg-type]
    for number in (1, 2):
        writer = broker.flow("Writer", ["resource"], NONE, "test")
        broker.command(writer, Content(5, "", b"\0\0\0\3\1kV", b"%d" % number))
    for reader in readers:
        got = broker.got(reader)
        assert bodies(got) == [b"1", b"2"]
        assert got[0].properties == b"\0\0\0\3\1kV"  # type: ignore[union-attr]
    assert broker.got(elsewhere) == []
    assert not any(isinstance(event, machine.ContentReceived) for event in broker.events)
    broker.command(elsewhere, Dismiss(9, "resource"))
    broker.command(readers[0], Dismiss(9, "resource"))
    broker.server.blocked(readers[1])
    broker.command(writer, Content(6, ""))
    assert [len(broker.got(reader)) for reader in readers] == [0, 0, 1]
    assert broker.server.profiles["test"].snapshot() == {"missed": 1}


def test_what_is_delivered_too_often_becomes_a_dead_letter__MT_26() -> None:
    broker = Broker(limits={"tries": 2})
    write(broker, 1, 2)
    reader = broker.flow("Reader")
    got = broker.command(reader, Summon(2, "a"))
    assert bodies(got) == [b"1", b"2"]
    got = broker.command(reader, Reject(1, False, True))
    assert data.decode_table(got[0].properties) == {"mtl-redeliveries": 1}  # type: ignore[union-attr]
    assert broker.command(reader, Reject(3, False, True)) == []
    dead = broker.flow("Reader", ["a.dead"])
    got = broker.command(dead, Summon(2, "a.dead"))
    assert bodies(got) == [b"1"]
    assert data.decode_table(got[1].properties) == {"mtl-redeliveries": 2}  # type: ignore[union-attr]
    assert broker.server.profiles["queue"].snapshot()["broker_dead_letters"] == 1


def test_nobody_writes_to_a_queue_of_dead_letters() -> None:
    """MT-29: its oldest are dropped above a limit, so nothing may be confirmed for it."""
    broker = Broker()
    writer = broker.flow("Writer", ["a.dead"])
    assert broker.command(writer, *contents(1, resource="a.dead")) == [Reject(1)]


def test_writers_wait_for_confirm_while_the_queue_is_long() -> None:
    """MT-27: and are rejected when it is twice as long."""
    broker = Broker(limits={"queue-messages": 4, "prefetch": 100})
    writer = broker.flow("Writer")
    broker.command(writer, *contents(*range(1, 5)))
    broker.safe(broker.events[-1])
    assert broker.got(writer) == [Confirm(4, True)]
    broker.command(writer, *contents(5))
    broker.safe(broker.events[-1])
    broker.command(writer, *contents(6, 7))
    broker.safe(broker.events[-1])
    assert broker.got(writer) == []
    assert broker.command(writer, *contents(8, 9, 10)) == [Reject(9), Reject(10)]
    other = broker.flow("Writer", ["b"])
    broker.command(other, *contents(1, resource="b"))
    broker.safe(broker.events[-1])
    assert broker.got(other) == [Confirm(1, True)]
    reader = broker.flow("Reader")
    broker.command(reader, Summon(2, "a"))
    assert broker.got(writer) == []  # what a reader has counts, too
    broker.command(reader, Confirm(3, True))
    assert broker.got(writer) == [Confirm(7, True)]


def test_queues_are_bounded_in_number_and_bytes__MT_29() -> None:
    """BK-05: what no queue has room for is rejected before the sink has it."""
    broker = Broker(limits={"broker-queues": 2, "queue-bytes": 1000})
    writer = broker.flow("Writer", ["a", "b", "c"])
    broker.command(writer, *contents(1), *contents(2, resource="b"))
    broker.safe(broker.events[-1])
    assert broker.command(writer, *contents(3, resource="c")) == [Confirm(2, True), Reject(3)]
    other = broker.flow("Writer", ["a"], NONE)
    assert broker.command(other, Content(4, "a", body=bytes(2000))) == [Response(4, 403)]
    reader = broker.flow("Reader", [])
    assert broker.command(reader, Summon(2, "c")) == [Response(2, 400)]
    figures = broker.server.profiles["queue"].snapshot()
    assert (figures["broker_queues"], figures["too_many_queues"]) == (2, 2)
    counters = broker.server.counters
    assert (counters["contents_without_room"], counters["contents_refused"]) == (2, 2)


@pytest.mark.parametrize(("space", "code"), [(None, 200), ("shared", 400)])
def test_an_unused_queue_makes_room_for_another__MT_29(space: str | None, code: int) -> None:
    clock, broker = Clock(), Broker(limits={"broker-queues": 1})
    queue: Any = broker.server.profiles["queue"]
    queue.serve(ServedBroker(clock, broker.limits, wallClock=clock.seconds), space)
    broker.leave(broker.reader("a"))
    clock.advance(100)
    assert broker.command(broker.flow("Reader", ["b"]), Summon(2, "b")) == [Response(2, code)]


def test_what_a_reader_had_goes_to_another_when_its_session_ends__MT_30() -> None:
    broker = Broker()
    session = broker.session()
    first = broker.connect(broker.lease(session, "Reader", ["a", "b"]))
    broker.command(first, Summon(2, "a"), Summon(3, "b"))
    write(broker, 1, 2)
    write(broker, 3, resource="b")
    assert len(bodies(broker.got(first))) == 3
    second = broker.reader()
    assert broker.got(second) == []
    assert broker.ask(session, "Open", OPEN)[0] == 201
    assert bodies(broker.got(second)) == [b"1", b"2"]


def test_profiles_are_an_extension_point() -> None:
    """MT-26: one which keeps the newest content only, and has two resources."""

    class Newest(Profile):
        name = "newest"
        stored = False
        has_room = envelopes = None  # type: ignore[assignment]  # nobody asks

        def knows(self, virtual_host: str, resource: str) -> bool:
            return resource in ("x", "y")

        def accept(self, flow: Any, resource: str, found: list[Any]) -> None:
            self.newest = found[-1]

        def ready(self, flow: Any) -> None:
            flow.send("x", self.newest)

    broker = Broker([Newest()])
    writer = broker.flow("Writer", ["x"], profile="newest")
    assert broker.command(writer, *contents(1, 2, resource="x")) == [Confirm(2, True)]
    reader = broker.flow("Reader", ["x"], NONE, "newest")
    assert bodies(broker.command(reader, Summon(2, "x"))) == [b"2"]
    assert broker.ask(broker.session("newest"), "Reader", {
        "resources": ["z"], "confirm": "none"})[0] == 404  # fmt: skip


def test_room_in_one_queue_releases_only_who_writes_to_it__MT_27() -> None:
    """And wakes the server: another protocol's consumer may have made it."""
    broker = Broker(limits={"queue-messages": 1})
    writers = {resource: broker.flow("Writer", [resource]) for resource in ("a", "b")}
    for resource, writer in writers.items():
        got = []
        for number in (1, 2):
            broker.command(writer, *contents(number, resource=resource))
            broker.safe(broker.events[-1])
            got += broker.got(writer)
        assert got == [Confirm(1, True)]
    woken: list[int] = []
    broker.server.profiles["queue"].wake = lambda: woken.append(1)
    reader = broker.flow("Reader", ["a"])
    broker.command(reader, Summon(2, "a"))
    woken.clear()
    broker.command(reader, Confirm(1))
    assert (broker.got(writers["a"]), broker.got(writers["b"])) == ([Confirm(2, True)], [])
    assert woken


def test_a_server_that_stops_confirms_what_is_safe_however_long_the_queue__MT_19__MT_27() -> None:
    """Its writer would send it again to the next server: rows that stand twice."""
    broker = Broker(limits={"queue-messages": 2})
    writer = broker.flow("Writer")
    for number in (1, 2, 3, 4):
        broker.command(writer, *contents(number))
    for event in broker.events[-4:-1]:
        broker.safe(event)
    assert broker.got(writer) == [Confirm(1, True), Confirm(2, True)]
    broker.collect(broker.server.drain(broker.now))
    assert broker.got(writer) == [Confirm(3, True)]
    broker.safe(broker.events[-1])
    assert broker.got(writer) == [Confirm(4, True)]
    assert broker.server.finished


def test_what_is_in_a_queue_that_is_not_durable_is_not_confirmed_at_the_end__MT_19() -> None:
    """Its name could be lost with the power, and the content with it."""

    class Undurable(ServedBroker):
        def when_durable(self, name: Any, call: Any) -> None:
            waiting.append(call)

    waiting: list[Callable[[], None]] = []
    broker = Broker()
    queue: Any = broker.server.profiles["queue"]
    queue.serve(Undurable(Clock(), broker.limits))
    writer = broker.flow("Writer")
    broker.command(writer, *contents(1))
    broker.safe(broker.events[-1])
    broker.collect(broker.server.drain(broker.now))
    assert broker.got(writer) == []
    (durable,) = waiting
    durable()
    broker.collect()
    assert broker.got(writer) == [Confirm(1, True)]


@pytest.mark.parametrize("lost", [True, False])
def test_a_withheld_confirm_is_sent_once_and_precedes_a_reject__MT_19__MT_27(lost: bool) -> None:
    broker = Broker(limits={"queue-messages": 2})
    writer = broker.flow("Writer")
    for number in (1, 2, 3, 4):
        broker.command(writer, *contents(number))
    for event in broker.events[-4:-1]:
        broker.safe(event)
    last = broker.events[-1]
    assert broker.got(writer) == [Confirm(1, True), Confirm(2, True)]
    if lost:
        broker.safe(last, False)
        assert broker.got(writer) == [Confirm(3, True), Reject(4, True)]
        return
    broker.command(broker.reader(), Confirm(1), Confirm(2))
    assert broker.got(writer) == [Confirm(3, True)]
    broker.safe(last, False)
    assert broker.got(writer) == [Reject(4, True)]


def test_a_profile_hears_whenever_its_reader_may_have_space__MT_26() -> None:
    ready: list[int] = []

    class Giving(Profile):
        name = "giving"

        def ready(self, flow: Any) -> None:
            ready.append(flow.last_sent)
            if flow.last_sent < 5 and flow.room > 0:
                flow.send("a", Stored(b"\0" * 4, b"x"))

    broker = Broker([Giving()], limits={"prefetch": 1})
    reader = broker.reader(profile="giving")
    assert ready == [0]
    broker.command(reader, Confirm(1))
    broker.command(reader, Reject(2))
    assert ready == [0, 1, 2]
    broker.server.blocked(reader)
    broker.server.unblocked(reader, broker.now)
    assert ready == [0, 1, 2, 3]


@pytest.mark.parametrize("stops", [True, False])
def test_a_reader_whose_server_stops_has_gone_in_order__MT_30(stops: bool) -> None:
    orderly: list[bool] = []

    class Noting(Profile):
        name = "noting"

        def gone(self, flow: Any, contents: list[Any], ordered: bool = False) -> None:
            orderly.append(ordered)

    broker = Broker([Noting()])
    peer = broker.reader(profile="noting")
    if stops:
        broker.server.lost(broker.now)
    else:
        broker.collect(broker.server.peer_lost(peer, broker.now))
    assert orderly == [stops]


def test_a_profile_that_overrides_nothing_recycles_what_its_reader_leaves__MT_26() -> None:
    called: list[Any] = []

    class Plain(Profile):
        name = "plain"

        def rejected(self, flow: Any, found: list[Any], recycle: bool) -> None:
            called.append((found, recycle))

        def dismiss(self, flow: Any, resource: str) -> None:
            called.append(resource)

    broker = Broker([Plain()])
    broker.leave(broker.reader(profile="plain"))
    assert called == [([], True), "a"]


@pytest.mark.parametrize("name", ["", "Test", "test"])
def test_names_of_profiles_are_in_lower_case_and_unique__MT_04__MT_26(name: str) -> None:
    named = type("Named", (Profile,), {"name": name})
    with pytest.raises(ValueError, match="unique"):
        Broker([TestProfile(), named()])


METHODS = [name for name, value in vars(Profile).items() if inspect.isfunction(value)]
METHODS.remove("__init__")
GOOD, BAD = "good", "bad"
"""Virtual hosts: the profile raises for clients of the bad one."""


class FaultOfProfileError(BaseException):
    """What a profile raises: also the panics of libraries in Rust, which are no Exception."""


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


def test_a_message_from_a_queue_of_another_name_keeps_its_properties__MT_26() -> None:
    broker = Broker()
    queue: Any = broker.server.profiles["queue"]
    served = ServedBroker(Clock(), broker.limits, wallClock=lambda: 0.0)
    queue.serve(served)
    name, table = queue.queue("host", "a"), b"\0\0\0\4\1kb\1"  # written anew it has 32 bits
    envelope = queued_messages.head_for(name._replace(name="another")) + table
    served.publish([(name, envelope, b"x")])
    reader = broker.flow("Reader")
    _, content = broker.command(reader, Summon(2, "a"))
    assert content == Content(1, "a", table, b"x")
    full = {str(number): True for number in range(128)}  # it has no place for mtl-redeliveries
    served.publish([(name, queued_messages.head_for(name) + data.encode_table(full), b"y")])
    for sent in broker.command(reader, Reject(2, recycle=True)):
        assert data.decode_table(sent.properties) == full  # type: ignore[union-attr]
    served.publish([(name, b"no envelope", b"x")])  # nobody can say what it was
    assert broker.command(reader, Summon(3, "b")) == [Response(3, 403)]
    assert queue.snapshot()["failed"] == broker.server.counters["profile_errors"] == 1


@pytest.mark.parametrize(
    ("method", "kind", "code"),
    [("summon", Summon, 400), ("dismiss", Dismiss, 400), ("knows", Summon, 400),
     ("knows", Content, 403)],
)  # fmt: skip
def test_a_command_at_which_a_profile_fails_is_refused__RD_40(
    method: str, kind: Any, code: int
) -> None:
    profile = raising(TestProfile, method, False)
    broker = Broker([profile])
    peer = broker.flow("Writer" if kind is Content else "Reader", [], NONE, "test", BAD)
    if kind is Dismiss:
        assert broker.command(peer, Summon(2, "resource")) == [Response(2, 200)]
    profile.armed = True
    assert broker.command(peer, kind(3, "resource")) == [Response(3, code)]


@pytest.mark.parametrize("answer", [Deferred, lambda: 0, lambda: "no"], ids=["later", "0", "no"])
@pytest.mark.parametrize("method", ["knows", "has_room", "summon", "accept", "congested"])
def test_what_a_profile_answers_of_a_wrong_type_never_means_yes(method: str, answer: Any) -> None:
    """Where it has not been awaited, its content was confirmed, and a name that it may not know
    could be leased.
    """
    wrong = {method: lambda self, *arguments: answer(), "bounded": True, "stored": False}
    broker = Broker([type("Wrong", (Profile,), {"name": "test", **wrong})()])
    peer = broker.flow("Reader" if method == "summon" else "Writer", [], profile="test")
    kind, refusal = (Summon, [Response(2, 400)]) if method == "summon" else (Content, [Reject(2)])
    assert broker.command(peer, kind(2, "resource")) == ([] if method == "congested" else refusal)
    [error] = broker.server.profile_errors
    assert str(error).startswith("a profile answers True or False at once, not with a ")


def test_a_profile_that_ends_a_flow_and_raises_ends_it_once__RD_40() -> None:
    class Ending(QueueProfile):
        def ready(self, flow: Any) -> None:
            self.end_flow(flow, ValueError("one"))
            raise ValueError("two")

        def envelopes(self, *asked: Any) -> list[bytes | None]:
            return []  # one of each content is wanted

    broker = Broker([Ending()])
    broker.reader()
    assert broker.command(broker.flow("Writer", confirm=NONE), *contents(2)) == [Response(2, 403)]
    assert broker.server.snapshot()["readers"] == 0
    assert broker.server.counters["profile_errors"] == 3


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
    early = broker.got(bad.writer)
    assert method != "congested" or Confirm not in map(type, early), "it could not say"
    profile.armed = False
    broker.wait(broker.limits["heartbeat"])
    of_bad = [one for one in early + broker.got(bad.writer) if not isinstance(one, Ping | Pong)]
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


@pytest.mark.parametrize("body", ["text", None, 7, bytearray(b"x"), memoryview(b"x")])
def test_what_a_profile_sends_is_bytes_or_its_own_trouble__RD_40(body: Any) -> None:
    """MT-18: a text went to the sockets, and what was to be sent with it to others was lost."""

    class Sending(Profile):
        name = "sending"

        def ready(self, flow: Any) -> None:
            flow.send("a", Stored(data.EMPTY, body if flow.session.virtual_host == BAD else b"x"))

    broker = Broker([Sending()])
    bad, good = (
        broker.flow("Reader", profile="sending", confirm=NONE, host=host) for host in (BAD, GOOD)
    )
    summons = [[peer, *data.encode(Summon(2, "a"))] for peer in (bad, good)]
    broker.receive(Channel.DATA, *summons)
    assert bodies(broker.got(good)) == [b"x"]
    sent = isinstance(body, bytearray | memoryview)
    assert bodies(broker.got(bad)) == ([b"x"] if sent else [])
    assert broker.server.counters["profile_errors"] == (not sent)


class OnTwisted(ContractCase):
    case = Mtl()

    def test_few_lines_tell_of_a_profile_that_always_raises_and_a_counter(self) -> None:
        """RD-40: it may raise for each content."""
        world = self.world(SafeSink())
        profile: Any = world.factory.machine.profiles["ingest"]

        def fails(*arguments: Any) -> bool:
            raise FaultOfProfileError

        profile.bounded, profile.has_room = True, fails
        peer = world.join()
        sent = [peer.send(b"%d" % number) for number in range(200)]
        world.wait(1)
        for one in sent:
            self.failureResultOf(one, Refused)
        self.assertEqual(world.factory.counters["profile_errors"], 200)
        lines = self.flushLoggedErrors(FaultOfProfileError)
        self.assertTrue(1 <= len(lines) <= 5, len(lines))

    def test_what_another_server_has_for_a_reader_comes_at_once__MT_26(self) -> None:
        """They may share the queues: no read of MTL's sockets brings it."""
        world = self.world(SafeSink())
        client, got = world.join().client, list[Any]()
        client.profile("queue")
        world.pump()
        reading = client.reader(["a"], received=got.append)
        world.pump()
        self.successResultOf(reading).summon("a")
        world.wait(1)
        name = world.factory.machine.profiles["queue"].queue("host", "a")
        envelope = queued_messages.head_for(name) + data.EMPTY
        world.factory.queues.publish([(name, envelope, b"x")])
        world.pump()
        self.assertEqual([content.body for content in got], [b"x"])
