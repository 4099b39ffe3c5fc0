"""What MTL's sessions keep for their clients has one bound for the process, over all of them."""

from __future__ import annotations

import itertools
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from tests.mtl.broker import FULL, NONE, OPEN, Broker, bodies, contents
from twisted_msgproto.core.kept import KEPT_LIMIT, KEPT_WEIGHT_OCTETS, SMALL_OCTETS, Kept
from twisted_msgproto.mtl import MtlServerFactory
from twisted_msgproto.mtl.machine.flows import (
    CHARACTER_OCTETS,
    NAMES_REMEMBERED,
    LeaseGrant,
    ReadingFlow,
    WritingFlow,
    lease_weight,
    name_weight,
)
from twisted_msgproto.mtl.protocol.link import BrokerLink
from twisted_msgproto.mtl.terms.events import KeptTooMuch
from twisted_msgproto.mtl.wire import data
from twisted_msgproto.mtl.wire.control import ENVELOPE_OCTETS_MAX
from twisted_msgproto.mtl.wire.data import Content, Dismiss, Reject, Response, Summon
from twisted_msgproto.net.backpressure import OctetBudget

LIMIT = 1_000_000
NAMES = [f"{number:03}" + "n" * 247 for number in range(250)]
MANY = {"resources": NAMES, "confirm": FULL}


def counted(broker: Broker) -> int:
    """What the sessions keep, counted anew."""
    flows = list(broker.server._flows.values())
    octets = sum(lease_weight(grant.resources) for grant in broker.server._leases.values())
    octets += sum(lease_weight(flow.grant.resources) for flow in flows)
    for flow in flows:
        names = flow.summoned if isinstance(flow, ReadingFlow) else flow.names.values()  # type: ignore[attr-defined]
        octets += sum(map(name_weight, names))
    return octets


def fill(broker: Broker) -> bytes:
    """A session that has as many leases of many names as it may; at least one."""
    hog = broker.session()
    broker.lease(hog, "Reader", NAMES)
    for _ in range(LIMIT // lease_weight(NAMES) + 2):
        code, body = broker.ask(hog, "Reader", MANY)
        if code == 403:
            assert body["reason"] == f"too many leases: {KEPT_LIMIT}"
            return hog
        assert code == 202
    pytest.fail("there is no bound")


def test_leases_of_all_sessions_have_one_bound_and_a_good_one_is_served__NB_02() -> None:
    """NB-02, MT-11: who keeps more than its share is refused by name; nobody else is."""
    every = Kept(LIMIT)
    broker = Broker(every=every)
    hog = fill(broker)
    assert broker.events[-1] == KeptTooMuch("lease")
    assert LIMIT // 2 < every.octets == counted(broker) <= LIMIT
    reader = broker.reader()
    writer = broker.flow("Writer")
    broker.command(writer, *contents(1))
    broker.safe(broker.events[-1])
    assert bodies(broker.got(reader)) == [b"1"]
    assert every.octets == counted(broker)
    # Leases that nobody used have gone.
    broker.wait(31)
    assert broker.ask(hog, "Reader", MANY)[0] == 202
    assert every.octets == counted(broker) < 2 * lease_weight(NAMES)


def test_a_lease_in_use_counts_until_its_flow_ends__NB_02() -> None:
    """NB-02: whatever ends it."""
    every = Kept(LIMIT)
    broker = Broker(every=every)
    one, other = broker.session(), broker.session()
    flows = [broker.connect(broker.lease(peer, "Reader", NAMES)) for peer in (one, other)]
    assert every.octets == counted(broker) == 2 * lease_weight(NAMES)
    broker.leave(flows[0])
    assert every.octets == counted(broker) == lease_weight(NAMES)
    broker.lease(other, "Writer", NAMES)
    broker.leave(other)
    assert every.octets == counted(broker) == 2 * lease_weight(NAMES)
    broker.leave(flows[1])
    assert broker.ask(one, "Profile", {"profile": "test"})[0] == 200
    assert (every.octets, every.sessions) == (0, 0)


def test_what_a_reader_has_summoned_counts__NB_02() -> None:
    """NB-02, MT-16: what is one too many gets a 400, as above 256 names."""
    every = Kept(LIMIT)
    broker = Broker(every=every)
    hog, good = broker.reader(), broker.reader("b")
    summons = [Summon(10 + number, name) for number, name in enumerate(NAMES[:100])]
    more = broker.connect(broker.lease(broker.session(), "Reader", ()))
    assert broker.command(more, *summons[:9]) == [
        Response(each.sequence, 200) for each in summons[:9]
    ]
    fill(broker)
    every.bound(1)
    answers = broker.command(more, *summons[9:])
    assert answers == [Response(each.sequence, 400) for each in summons[9:]]
    assert broker.events[-1] == KeptTooMuch("resource")
    assert broker.command(good, Dismiss(3, "b"), Summon(4, "b")) == [
        Response(3, 200),
        Response(4, 200),
    ]
    assert every.octets == counted(broker)
    broker.leave(more, hog)
    assert every.octets == counted(broker)


def test_what_a_reader_has_dismissed_counts_no_more__NB_02() -> None:
    """NB-02, MT-16: once, whether its flow ends afterwards or not."""
    every = Kept(LIMIT)
    broker = Broker(every=every)
    reader = broker.connect(broker.lease(broker.session(), "Reader", ()))
    broker.command(reader, Summon(2, NAMES[0]), Summon(3, NAMES[1]), Dismiss(4, NAMES[0]))
    assert every.octets == counted(broker) == lease_weight(()) + name_weight(NAMES[1])
    session = broker.server._flows[reader].session
    broker.leave(reader)
    assert (every.octets, session.kept.octets) == (0, 0)


def test_names_of_a_writer_count_and_are_not_remembered_where_too_much_is_kept__NB_02() -> None:
    """NB-02, MT-18: its contents are accepted all the same."""
    every = Kept(LIMIT)
    broker = Broker(every=every)
    writer = broker.connect(broker.lease(broker.session("ingest"), "Writer", ()))
    flow = broker.server._flows[writer]
    assert isinstance(flow, WritingFlow)
    broker.command(writer, *(Content(number, name) for number, name in enumerate(NAMES[:3])))
    assert len(flow.names) == 3 and every.octets == counted(broker)
    fill(broker)
    every.bound(1)
    assert broker.command(writer, *(Content(3 + n, name) for n, name in enumerate(NAMES))) == []
    assert broker.events[-1].resources == NAMES  # type: ignore[union-attr]
    assert every.octets == counted(broker) and len(flow.names) < SMALL_OCTETS // KEPT_WEIGHT_OCTETS
    broker.leave(writer)
    assert every.octets == counted(broker)


def test_names_of_a_writer_begin_anew_when_they_are_many__NB_02() -> None:
    """NB-02: and count once."""
    every = Kept(LIMIT * 100)
    broker = Broker(every=every)
    writer = broker.connect(broker.lease(broker.session("ingest"), "Writer", ()))
    broker.command(writer, *(Content(n, f"n{n}") for n in range(NAMES_REMEMBERED + 2)))
    assert len(broker.server._flows[writer].names) == 2  # type: ignore[attr-defined]
    assert every.octets == counted(broker)
    broker.collect(broker.server.lost(broker.now))
    assert (every.octets, every.sessions) == (0, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["lease", "connect", "summon", "dismiss", "write", "leave", "open", "wait"]
        ),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_what_is_kept_is_what_there_is__NB_02(
    steps: list[tuple[str, int]],
) -> None:
    """NB-02: nothing stays counted, and nothing is forgotten."""
    every = Kept(5000)
    broker = Broker(every=every)
    sessions = [broker.session() for _ in range(4)]
    numbers = itertools.count(5)
    for step, which in steps:
        flows = list(broker.server._flows)
        peer = flows[which % len(flows)] if flows else b""
        match step:
            case "lease":
                way = "Reader" if which % 2 else "Writer"
                broker.ask(sessions[which], way, {"resources": NAMES[:which], "confirm": FULL})
            case "connect" if broker.server._leases:
                broker.connect(next(iter(broker.server._leases)))
            case "summon" if flows:
                broker.command(peer, Summon(next(numbers), NAMES[which % 2]))
            case "dismiss" if flows:
                broker.command(peer, Dismiss(next(numbers), NAMES[which % 2]))
            case "write" if flows:
                broker.command(peer, Content(next(numbers), NAMES[which % 2]))
            case "leave" if flows:
                broker.leave(peer)
            case "open":
                broker.ask(sessions[which], "Open", OPEN)
                broker.ask(sessions[which], "Profile", {"profile": "queue"})
            case "wait":
                broker.wait(10.0 * which)
        assert every.octets == counted(broker)
    broker.collect(broker.server.lost(broker.now))
    assert (every.octets, every.sessions) == (0, 0)


@pytest.mark.parametrize("character", ["x", "é", "\u4e00", "\U0001f40d"])
def test_a_name_weighs_no_less_than_it_needs__NB_02(character: str) -> None:
    """NB-02: one wide character makes all the others wide."""
    octets = data.SHORT_STRING_OCTETS_MAX - len(character.encode())
    name = "n" * octets + character
    encoded = data.encode_name(name)
    needed = sys.getsizeof(name) + sys.getsizeof(encoded)
    assert needed <= name_weight(name) < needed + KEPT_WEIGHT_OCTETS + CHARACTER_OCTETS * len(name)
    names = tuple(f"{number:03}{name[3:]}" for number in range(250))
    grant = LeaseGrant("0" * 40, None, None, True, names, False, 0.0, 0)  # type: ignore[arg-type]
    parts = [grant, grant.token, names, *names]
    assert sum(map(sys.getsizeof, parts)) <= lease_weight(names)


def test_an_envelope_has_frames_as_long_as_identities__NB_02() -> None:
    """NB-02, MT-01: a session keeps it, so one that no honest client sends is dropped."""
    broker = Broker()
    body = json.dumps(OPEN).encode()
    assert ENVELOPE_OCTETS_MAX == 255  # as long as an identity of ZeroMQ
    longest = [b"i" * ENVELOPE_OCTETS_MAX] * 4
    (reply,) = broker.ask_raw(b"\0C001" + bytes(8), *longest, b"", b"Connection.Open", body)
    assert reply[:6] == [*longest, b"", b"201"]
    long = [*longest[:3], b"i" * (ENVELOPE_OCTETS_MAX + 1)]
    assert broker.ask_raw(b"\0C002" + bytes(8), *long, b"", b"Connection.Open", body) == []
    assert broker.dropped == {"envelope": 1}
    assert len(broker.server.sessions()) == 1


def test_the_gateway_s_bound_is_that_of_its_process__NB_02() -> None:
    """NB-02: and the operator is told who was refused for it."""
    budget = OctetBudget()
    factory = MtlServerFactory(clock=Clock(), budget=budget, limits={KEPT_LIMIT: LIMIT})
    assert budget.kept.limit == LIMIT
    assert factory.machine._every is budget.kept
    broker = Broker(every=budget.kept)
    fill(broker)
    link = BrokerLink()
    link.factory = factory
    BrokerLink.actions[KeptTooMuch](link, broker.events[-1])
    assert factory.counters[f"turned_away:{KEPT_LIMIT}"] == 1


def test_few_octets_are_never_refused__NB_02() -> None:
    """NB-02: a client with a lease of some names, however much others keep."""
    every = Kept(0)
    broker = Broker(every=every)
    reader, writer = broker.reader(confirm=NONE), broker.flow("Writer")
    broker.command(writer, Content(1, "a", body=b"x"))
    broker.safe(broker.events[-1])
    assert bodies(broker.got(reader)) == [b"x"]
    assert Reject not in map(type, broker.got(writer))
