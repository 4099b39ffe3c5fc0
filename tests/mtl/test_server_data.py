"""The broker's machine: data flows, confirmation, heartbeats and the three profiles."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.mtl.broker import ANYTHING, FULL, NONE, OPEN, Broker, bodies, contents, data_peer
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.mtl.machine import (
    FLOW,
    SERVER_LIMITS,
    Channel,
    ContentReceived,
    FlowState,
    IngestProfile,
    Profile,
    QueueProfile,
    TestProfile,
)
from twisted_msgproto.mtl.machine.flows import REFUSALS
from twisted_msgproto.mtl.machine.profiles import by_name
from twisted_msgproto.mtl.wire import data, fields
from twisted_msgproto.mtl.wire.data import (
    Confirm,
    Content,
    Dismiss,
    Lease,
    Ping,
    Pong,
    Reject,
    Response,
    Summon,
)


def flow_in(broker: Broker, state: FlowState, confirm: str) -> bytes:
    if state is FlowState.UNLEASED:
        return data_peer(80)
    peer = broker.flow("Reader" if state is FlowState.READING else "Writer", confirm=confirm)
    if state is FlowState.BROKEN:
        broker.command(peer, *contents(1))
        broker.command(peer, *contents(2))
        broker.safe(broker.events[-1], False)
    return peer


@pytest.mark.parametrize("confirm", [FULL, NONE])
@pytest.mark.parametrize("state", FlowState)
@pytest.mark.parametrize("command", ANYTHING)
def test_every_command_in_every_state(
    state: FlowState, command: data.DataCommand, confirm: str
) -> None:
    """MT-11, MT-14, MT-16 … MT-19: illegal commands get the code of their row, or nothing."""
    broker = Broker()
    peer = flow_in(broker, state, confirm)
    before = broker.server.snapshot()
    answers = broker.command(peer, command)
    kind = type(command)
    sequence = getattr(command, "sequence", None)
    code = REFUSALS[state].get(kind)
    if kind in FLOW[state]:
        assert answers == {
            Summon: [Response(902, 200)],
            Dismiss: [Response(903, 400)],
            Ping: [Pong()],
        }.get(kind, [])
        if kind in (Confirm, Reject):
            assert broker.dropped == {"nothing-to-settle": 1}
        elif kind is Content:
            assert [type(event) for event in broker.events[-1:]] == [ContentReceived]
        return
    if code is None:
        assert answers == []
        assert broker.dropped == {f"{kind.__name__.lower()}-not-allowed": 1}
    elif kind is Content and state is not FlowState.UNLEASED and confirm == FULL:
        assert answers == [Reject(904)]
    else:
        assert answers == [Response(sequence, code)]
    assert broker.server.snapshot() == before


def test_the_codes_of_illegal_commands_are_those_of_the_text() -> None:
    """MT-11, MT-14, MT-18"""
    assert REFUSALS[FlowState.UNLEASED] == dict.fromkeys((Lease, Summon, Dismiss, Content), 403)
    assert REFUSALS[FlowState.READING] == {Lease: 403, Content: 403}
    assert REFUSALS[FlowState.WRITING] == {Lease: 403, Summon: 400, Dismiss: 400}
    assert REFUSALS[FlowState.BROKEN] == {**REFUSALS[FlowState.WRITING], Content: 403}
    for state in FlowState:
        assert not set(FLOW[state]) & set(REFUSALS[state])


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 50, 100])
def test_wrong_frame_counts_are_dropped(count: int) -> None:
    """MT-12, MT-13"""
    broker = Broker()
    broker.receive(Channel.DATA, [data_peer(1), *[b"\x08"] * count])
    assert broker.sent == {}
    assert broker.dropped == {"frames": 1}


def test_ill_formed_commands_are_dropped_and_change_nothing() -> None:
    """MT-13"""
    broker = Broker()
    writer, reader = broker.flow("Writer"), broker.reader()
    for peer in (writer, reader, data_peer(90)):
        for header in ("", "00", "0a", "05", "0500000000000000050161000000", "05 0000000000000005"
                       "01ff00000000", "05 0000000000000005 0161 00000001", "08 00",
                       "06 0000000000000001 02"):  # fmt: skip
            broker.receive(Channel.DATA, [peer, bytes.fromhex(header), b""])
        assert broker.to(peer) == []
    assert sum(broker.dropped.values()) == 27
    assert broker.command(writer, *contents(5)) == []
    assert isinstance(broker.events[-1], ContentReceived)


# ── leases ──────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_opens_one_data_connection_once() -> None:
    """MT-11, MT-14: unknown, stolen and replayed ones are forbidden."""
    broker = Broker()
    token = broker.lease(broker.session(), "Reader")
    assert broker.command(data_peer(70), Lease(1, "0" * 40)) == [Response(1, 403)]
    assert broker.command(data_peer(70), Lease(2, token.upper())) == [Response(2, 403)]
    owner = broker.connect(token)
    for thief in (data_peer(70), data_peer(71)):
        assert broker.command(thief, Lease(3, token)) == [Response(3, 403)]
    assert broker.command(owner, Summon(4, "a")) == [Response(4, 200)]


def test_a_second_lease_on_one_connection_is_forbidden_and_changes_nothing() -> None:
    """MT-11"""
    broker = Broker()
    peer = broker.reader()
    token = broker.lease(broker.session(), "Writer")
    assert broker.command(peer, Lease(9, token)) == [Response(9, 403)]
    assert broker.command(peer, Dismiss(10, "a")) == [Response(10, 200)]
    broker.connect(token)


def test_commands_may_be_pipelined_behind_the_lease() -> None:
    """MT-15"""
    broker = Broker()
    token = broker.lease(broker.session(), "Reader", ["a", "b"])
    peer = data_peer(70)
    answers = broker.command(
        peer, Lease(10, token), Summon(3, "a"), Summon(7, "b"), Dismiss(1, "a"), Ping()
    )
    assert answers == [*(Response(number, 200) for number in (10, 3, 7, 1)), Pong()]


# ── readers ─────────────────────────────────────────────────────────────────────────────────────


def test_a_resource_is_not_summoned_twice_without_dismiss() -> None:
    """MT-16, MT-17"""
    broker = Broker()
    peer = broker.flow("Reader", ["a", "b"])
    steps: list[tuple[Any, str, int]] = [
        (Summon, "a", 200), (Summon, "a", 400), (Dismiss, "b", 400), (Summon, "b", 200),
        (Summon, "c", 400), (Dismiss, "c", 400), (Summon, "", 400), (Dismiss, "a", 200),
        (Dismiss, "a", 400), (Summon, "a", 200),
    ]  # fmt: skip
    for number, (kind, resource, code) in enumerate(steps):
        assert broker.command(peer, kind(number, resource)) == [Response(number, code)]


def test_a_lease_without_resources_summons_any_up_to_the_limit() -> None:
    """MT-10, MT-16, MT-29"""
    broker = Broker(limits={"lease-resources": 2})
    peer = broker.flow("Reader", [])
    answers = broker.command(peer, Summon(1, "x"), Summon(2, "y"), Summon(3, "z"))
    assert answers == [Response(1, 200), Response(2, 200), Response(3, 400)]


def test_the_response_to_summon_precedes_content_and_none_follows_dismiss() -> None:
    """MT-16, MT-17, MT-18"""
    broker = Broker()
    write(broker, 1, 2, 3)
    reader = broker.flow("Reader", confirm=NONE)
    answers = broker.command(reader, Summon(7, "a"))
    assert answers[0] == Response(7, 200)
    assert bodies(answers[1:]) == [b"1", b"2", b"3"]
    assert [command.resource for command in answers[1:]] == ["a"] * 3  # type: ignore[union-attr]
    assert broker.command(reader, Dismiss(8, "a")) == [Response(8, 200)]
    write(broker, 4)
    assert broker.got(reader) == []


def write(broker: Broker, *numbers: int, resource: str = "a", safe: bool = True) -> bytes:
    """A writer which has sent contents of these bodies, made safe."""
    writer = broker.flow("Writer", [resource])
    broker.command(writer, *contents(*numbers, resource=resource))
    if safe:
        broker.safe(broker.events[-1])
    broker.got(writer)
    return writer


def test_sequences_to_a_reader_rise_and_begin_anew_for_each() -> None:
    """MT-18"""
    broker = Broker()
    readers = [broker.reader(), broker.reader()]
    write(broker, 1, 2, 3, 4)
    for reader in readers:
        assert [command.sequence for command in broker.got(reader)] == [1, 2]  # type: ignore[union-attr]


# ── confirmation from readers ───────────────────────────────────────────────────────────────────


def outstanding(broker: Broker, reader: bytes) -> list[int]:
    flow: Any = broker.server._flows[reader]
    return list(flow.unconfirmed)


def test_confirm_and_reject_single_and_multiple() -> None:
    """MT-19, MT-20: a table of what is outstanding after each."""
    steps: list[tuple[data.DataCommand, list[int]]] = [
        (Confirm(3), [1, 2, 4, 5, 6, 7]),
        (Confirm(3), [1, 2, 4, 5, 6, 7]),
        (Confirm(3, True), [4, 5, 6, 7]),  # it was sent, so all before it are covered
        (Confirm(8, True), [4, 5, 6, 7]),  # never sent
        (Confirm(2**64 - 1, True), [4, 5, 6, 7]),
        (Confirm(0, True), [4, 5, 6, 7]),
        (Reject(5), [4, 6, 7]),
        (Confirm(2, True), [4, 6, 7]),
        (Reject(6, True), [7]),
        (Confirm(7), []),
        (Confirm(7, True), []),
    ]
    broker = Broker()
    reader = broker.reader()
    write(broker, *range(1, 8))
    assert bodies(broker.got(reader)) == [b"%d" % number for number in range(1, 8)]
    for command, left in steps:
        assert broker.command(reader, command) == []
        assert outstanding(broker, reader) == left
    # Only what covers nothing that was sent is invalid.
    assert broker.dropped == {"nothing-to-settle": 4}


def test_confirming_is_for_confirmed_readers_only() -> None:
    """MT-19"""
    broker = Broker()
    write(broker, 1)
    reader = broker.flow("Reader", confirm=NONE)
    broker.command(reader, Summon(2, "a"))
    broker.command(reader, Confirm(1), Reject(1, False, True))
    assert broker.dropped == {"nothing-to-settle": 2}
    assert broker.got(reader) == []


def test_a_reader_holds_no_more_than_the_prefetch() -> None:
    """MT-27"""
    broker = Broker(limits={"prefetch": 3})
    reader = broker.reader()
    write(broker, *range(1, 11))
    assert bodies(broker.got(reader)) == [b"1", b"2", b"3"]
    assert bodies(broker.command(reader, Confirm(2, True))) == [b"4", b"5"]
    assert bodies(broker.command(reader, Reject(3))) == [b"6"]


def test_unconfirmed_readers_get_bursts() -> None:
    """MT-27: and nothing while their socket takes no more."""
    broker = Broker(limits={"burst": 2})
    reader = broker.reader(confirm=NONE)
    write(broker, *range(1, 8))
    assert bodies(broker.got(reader)) == [b"1", b"2"]
    assert broker.server.more_to_send
    broker.server.blocked(reader)
    broker.server.refill(broker.now)
    broker.collect()
    assert broker.got(reader) == []
    broker.server.unblocked(reader, broker.now)
    broker.collect()
    assert bodies(broker.got(reader)) == [b"3", b"4"]
    for left in ([b"5", b"6"], [b"7"], []):
        broker.server.refill(broker.now)
        broker.collect()
        assert bodies(broker.got(reader)) == left
    assert not broker.server.more_to_send
    broker.server.blocked(b"nobody")
    broker.server.unblocked(b"nobody", broker.now)


# ── writers ─────────────────────────────────────────────────────────────────────────────────────


def ingest(broker: Broker, confirm: str = FULL, resources: tuple[str, ...] = ("a",)) -> bytes:
    return broker.flow("Writer", resources, confirm, profile="ingest")


def test_contents_of_one_read_are_one_event_with_columns() -> None:
    """MT-18, MT-23"""
    broker = Broker()
    one, two = ingest(broker), ingest(broker, resources=("a", "b"))
    table = fields.encode_table({"k": "v", "n": 1})
    events = broker.receive(
        Channel.DATA,
        [one, *data.encode(Content(5, "", body=b"x"))],
        [two, *data.encode(Content(1, "b", table, b"y"))],
        [one, *data.encode(Content(6, "a", body=b"zz"))],
    )
    assert [(e.sequences, e.resources, e.texts, e.bodies, e.octets) for e in events] == [  # type: ignore[union-attr]
        ([5, 6], ["a", "a"], [None, None], [b"x", b"zz"], 3 + 2 * (4 + 14)),
        ([1], ["b"], [{"k": "v", "n": "1"}], [b"y"], 1 + len(table) + 14),
    ]
    broker.safe(events[1])
    assert broker.got(two) == [Confirm(1, True)]
    assert broker.got(one) == []


def test_confirm_follows_safety_in_the_order_of_arrival() -> None:
    """MT-19: slices may become safe in any order."""
    broker = Broker()
    writer = ingest(broker)
    for numbers in ((1, 2), (3,), (7, 9)):
        broker.command(writer, *contents(*numbers))
    first, second, third = broker.events[-3:]
    broker.safe(third)
    assert broker.got(writer) == []
    broker.safe(first)
    assert broker.got(writer) == [Confirm(2, True)]
    broker.safe(second)
    assert broker.got(writer) == [Confirm(9, True)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_what_never_will_be_safe_breaks_the_flow_in_its_turn(order: tuple[int, ...]) -> None:
    """MT-14, MT-19, MT-30: nothing before it is rejected with it, nothing behind it is taken."""
    broker = Broker()
    reader = broker.reader("a")
    writer = broker.flow("Writer")
    for numbers in ((1, 2), (3, 4), (5,), (6, 7)):
        broker.command(writer, *contents(*numbers))
    events = broker.events[-4:]
    for place in order:
        broker.safe(events[place], place not in (1, 3))
    assert broker.got(writer) == [Confirm(2, True), Reject(7, True)]
    assert bodies(broker.got(reader)) == [b"1", b"2"]
    assert broker.server.snapshot()["writers"] == 0
    assert broker.server.counters["flows_broken"] == 1
    # It is as if it had never shown a lease; another one of the session serves again.
    assert broker.command(writer, *contents(8), Summon(9, ""), Ping()) == [
        Response(8, 403), Response(9, 403), Pong(),
    ]  # fmt: skip
    again = broker.connect(broker.lease(broker.server.sessions()[1].peer, "Writer"))
    broker.command(again, *contents(3))
    broker.safe(broker.events[-1])
    assert broker.got(again) == [Confirm(3, True)]
    assert bodies(broker.got(reader)) == [b"3"]


@pytest.mark.parametrize("confirm", [FULL, NONE])
def test_a_broken_flow_takes_no_content_while_it_waits_for_its_end(confirm: str) -> None:
    """MT-18, MT-19: refused one by one, and nothing of it goes to the sink."""
    broker = Broker()
    writer = ingest(broker, confirm)
    broker.command(writer, *contents(1))
    broker.command(writer, *contents(2))
    first, second = broker.events[-2:]
    broker.safe(second, False)
    answers = broker.command(writer, *contents(5), Ping())
    assert answers == [Reject(5) if confirm == FULL else Response(5, 403), Pong()]
    assert broker.command(writer, data.Lease(6, "x")) == [Response(6, 403)]
    assert broker.events[-1] is second
    broker.safe(first)
    full = [Confirm(1, True), Reject(2, True)]
    assert broker.got(writer) == (full if confirm == FULL else [])
    assert broker.server.snapshot()["writers"] == 0


def test_what_is_lost_after_the_end_of_its_flow_is_no_trouble() -> None:
    """MT-19, MT-21: nobody hears of it, readers do not get what stood behind it."""
    broker = Broker()
    reader = broker.reader("a")
    writer = broker.flow("Writer")
    for number in (1, 2, 3):
        broker.command(writer, *contents(number))
    events = broker.events[-3:]
    broker.collect(broker.server.peer_lost(writer, broker.now))
    for event, safe in zip(events, (True, False, True), strict=True):
        broker.safe(event, safe)
    assert broker.got(writer) == []
    assert bodies(broker.got(reader)) == [b"1"]
    assert broker.server.counters["flows_broken"] == 0


def test_unconfirmed_writers_hear_nothing() -> None:
    """MT-19"""
    broker = Broker()
    writer = ingest(broker, NONE)
    broker.command(writer, *contents(1))
    broker.safe(broker.events[-1])
    broker.command(writer, *contents(2))
    broker.safe(broker.events[-1], False)
    assert broker.got(writer) == []


INVALID: list[tuple[tuple[str, ...], Content, int]] = [
    (("a",), Content(10, "a"), 400),  # the sequence did not rise
    (("a",), Content(9, "a"), 400),
    (("a", "b"), Content(11, ""), 400),  # a resource is required
    ((), Content(11, ""), 400),
    (("a", "b"), Content(11, "c"), 403),  # not in the lease
]


@pytest.mark.parametrize(("resources", "content", "code"), INVALID)
def test_invalid_content_is_rejected_or_answered(
    resources: tuple[str, ...], content: Content, code: int
) -> None:
    """MT-18"""
    for confirm, answer in ((FULL, Reject(content.sequence)), (NONE, None)):
        broker = Broker()
        writer = ingest(broker, confirm, resources)
        broker.command(writer, Content(10, "a"))
        got = broker.command(writer, content)
        assert got == [answer or Response(content.sequence, code)]
        events = [event for event in broker.events if isinstance(event, ContentReceived)]
        assert [event.sequences for event in events] == [[10]]


def test_content_for_a_resource_which_the_profile_has_not_gets_404() -> None:
    """MT-18"""
    broker = Broker()
    writer = broker.flow("Writer", [], NONE, profile="test")
    assert broker.command(writer, Content(5, "other")) == [Response(5, 404)]


def test_content_on_a_readers_flow_is_invalid() -> None:
    """MT-11, MT-18"""
    broker = Broker()
    assert broker.command(broker.flow("Reader"), Content(5, "a")) == [Reject(5)]
    assert broker.command(broker.flow("Reader", confirm=NONE), Content(5, "a")) == [
        Response(5, 403)
    ]


def test_a_response_is_never_ambiguous() -> None:
    """MT-18: a command of the same sequence may not have been answered, as its sender sees it."""
    broker = Broker()
    writer = ingest(broker, NONE, ("a", "b"))
    broker.command(writer, Summon(7, "a"))
    assert broker.command(writer, Content(1, "c"), Content(7, "c"), Content(8, "c")) == [
        Response(8, 403)
    ]
    assert broker.dropped == {"ambiguous-content": 2}


def test_many_names_cost_no_memory() -> None:
    """MT-29"""
    broker = Broker()
    writer = ingest(broker, NONE, ())
    for number in range(1, 3000):
        broker.command(writer, Content(number, f"r{number}"))
    flow: Any = broker.server._flows[writer]
    assert len(flow.names) <= 1024


def test_contents_which_are_safe_after_the_end_of_their_flow_are_no_trouble() -> None:
    """MT-30"""
    broker = Broker()
    writer = broker.flow("Writer")
    broker.command(writer, *contents(1))
    event = broker.events[-1]
    broker.collect(broker.server.peer_lost(writer, broker.now))
    broker.safe(event)
    assert broker.sent == {}
    assert bodies(broker.command(broker.flow("Reader"), Summon(2, "a"))) == [b"1"]


# ── heartbeats ──────────────────────────────────────────────────────────────────────────────────


def test_a_silent_flow_is_pinged_and_a_dead_one_ends() -> None:
    """MT-21: its lease ends, and its unconfirmed content goes to another reader."""
    broker = Broker(limits={"prefetch": 2})
    dead = broker.reader()
    write(broker, 1, 2)
    assert bodies(broker.got(dead)) == [b"1", b"2"]
    alive = broker.reader()
    broker.wait(5)
    assert broker.got(dead) == [Ping()]
    for _ in range(3):
        broker.command(alive, Pong())
        broker.wait(4)
    got = [command for command in broker.got(alive) if isinstance(command, Content)]
    assert bodies(got) == [b"1", b"2"]
    assert [fields.decode_table(content.properties) for content in got] == [
        {"mtl-redeliveries": 1}
    ] * 2
    broker.got(dead)
    assert broker.command(dead, Summon(9, "a")) == [Response(9, 403)]


def test_any_traffic_proves_life_and_content_is_as_good_as_a_ping() -> None:
    """MT-21"""
    broker = Broker()
    reader, writer = broker.reader(confirm=NONE), broker.flow("Writer")
    for number in range(1, 21):
        broker.wait(4)
        broker.command(writer, *contents(number))
        broker.safe(broker.events[-1])
        broker.command(reader, Pong())
    assert broker.server.snapshot()["writers"] == 1
    assert Ping() not in broker.got(reader)


def test_silence_does_not_count_while_the_socket_is_not_read() -> None:
    """MT-21"""
    broker = Broker(limits={"session-idle": 20})
    reader = broker.reader()
    broker.server.paused(broker.now)
    broker.wait(100)
    assert broker.server.snapshot()["readers"] == 1
    broker.server.resumed(broker.now)
    broker.wait(14)
    assert broker.server.snapshot()["readers"] == 1
    broker.wait(2)
    assert broker.server.snapshot()["readers"] == 0
    assert reader in broker.sent


def test_the_frequency_of_pings_is_configurable() -> None:
    """MT-21"""
    broker = Broker(limits={"heartbeat": 0.5, "liveness": 1.5})
    reader = broker.reader()
    broker.wait(1.2)
    assert broker.got(reader) == [Ping(), Ping()]
    broker.wait(1)
    assert broker.server.snapshot()["readers"] == 0


# ── profiles ────────────────────────────────────────────────────────────────────────────────────


def test_the_test_profile_fans_out_to_all_readers_of_its_virtual_host() -> None:
    """MT-25"""
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
    assert not any(isinstance(event, ContentReceived) for event in broker.events)
    broker.command(elsewhere, Dismiss(9, "resource"))
    broker.command(readers[0], Dismiss(9, "resource"))
    broker.server.blocked(readers[1])
    broker.command(writer, Content(6, ""))
    assert [len(broker.got(reader)) for reader in readers] == [0, 0, 1]
    assert broker.server.profiles["test"].snapshot() == {"missed": 1}


def test_queue_readers_compete_in_turn() -> None:
    """MT-26"""
    broker = Broker()
    readers = [broker.reader() for _ in range(3)]
    write(broker, *range(1, 8))
    got = [bodies(broker.got(reader)) for reader in readers]
    assert sorted(map(len, got)) == [2, 2, 3]
    assert sorted(itertools.chain(*got)) == [b"%d" % number for number in range(1, 8)]


def test_queues_of_virtual_hosts_are_their_own() -> None:
    """MT-26"""
    broker = Broker()
    write(broker, 1)
    assert bodies(broker.command(broker.reader(host="other"), Ping())) == []
    assert bodies(broker.command(broker.flow("Reader"), Summon(2, "a"))) == [b"1"]


def test_a_reader_gets_content_only_when_it_is_safe() -> None:
    """MT-19, MT-26"""
    broker = Broker()
    reader = broker.reader()
    write(broker, 1, safe=False)
    assert broker.got(reader) == []
    broker.safe(broker.events[-1])
    assert bodies(broker.got(reader)) == [b"1"]


def test_rejected_content_is_gone_and_recycled_content_comes_first() -> None:
    """MT-19, MT-26"""
    broker = Broker(limits={"prefetch": 3})
    reader = broker.reader()
    write(broker, 1, 2, 3, 4, 5)
    assert bodies(broker.got(reader)) == [b"1", b"2", b"3"]
    assert bodies(broker.command(reader, Reject(1))) == [b"4"]
    got = broker.command(reader, Reject(4, True, True))
    assert bodies(got) == [b"2", b"3", b"4"]
    assert [command.sequence for command in got] == [5, 6, 7]  # type: ignore[union-attr]
    broker.command(reader, Confirm(7, True))
    figures = broker.server.profiles["queue"].snapshot()
    assert figures["rejected"], figures["recycled"] == (1, 3)
    assert figures["octets"] == 0


def test_what_is_delivered_too_often_becomes_a_dead_letter() -> None:
    """MT-26"""
    broker = Broker(limits={"deliveries": 2})
    write(broker, 1, 2)
    reader = broker.flow("Reader")
    got = broker.command(reader, Summon(2, "a"))
    assert bodies(got) == [b"1", b"2"]
    got = broker.command(reader, Reject(1, False, True))
    assert fields.decode_table(got[0].properties) == {"mtl-redeliveries": 1}  # type: ignore[union-attr]
    assert broker.command(reader, Reject(3, False, True)) == []
    dead = broker.flow("Reader", ["a.dead"])
    got = broker.command(dead, Summon(2, "a.dead"))
    assert bodies(got) == [b"1"]
    assert got[1].properties == fields.EMPTY  # type: ignore[union-attr]
    assert broker.server.profiles["queue"].snapshot()["dead_letters"] == 1


def test_dead_letters_are_bounded() -> None:
    """MT-29: by the queue's limit, by the number of queues and by the length of a name."""
    for limits, resource in (
        ({"queue-contents": 1}, "a"), ({"queues": 1}, "a"), ({}, "x" * 255),
    ):  # fmt: skip
        broker = Broker(limits={"deliveries": 1, **limits})
        write(broker, 1, 2, resource=resource)
        reader = broker.flow("Reader", [resource])
        broker.command(reader, Summon(2, resource))
        broker.command(reader, Reject(2, True, True))
        figures = broker.server.profiles["queue"].snapshot()
        assert figures["overflowed"] == (1 if "queue-contents" in limits else 2)


def test_as_many_fields_as_may_be_leave_no_room_for_the_redelivery_count() -> None:
    """MT-23, MT-26"""
    broker = Broker()
    table = fields.encode_table({str(number): None for number in range(128)})
    writer = broker.flow("Writer")
    broker.command(writer, Content(5, "a", table))
    broker.safe(broker.events[-1])
    reader = broker.flow("Reader")
    broker.command(reader, Summon(2, "a"))
    (again,) = broker.command(reader, Reject(1, False, True))
    assert again.properties == table  # type: ignore[union-attr]


def test_writers_wait_for_confirm_while_the_queue_is_long() -> None:
    """MT-27: and are rejected when it is twice as long."""
    broker = Broker(limits={"queue-contents": 4, "prefetch": 100})
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
    assert broker.got(writer) == [Confirm(7, True)]


def test_room_in_one_queue_releases_only_who_writes_to_it() -> None:
    """MT-27"""
    broker = Broker(limits={"queue-contents": 1})
    writers = {resource: broker.flow("Writer", [resource]) for resource in ("a", "b")}
    for resource, writer in writers.items():
        got = []
        for number in (1, 2):
            broker.command(writer, *contents(number, resource=resource))
            broker.safe(broker.events[-1])
            got += broker.got(writer)
        assert got == [Confirm(1, True)]
    reader = broker.flow("Reader", ["a"])
    broker.command(reader, Summon(2, "a"))
    assert broker.got(writers["a"]) == [Confirm(2, True)]
    assert broker.got(writers["b"]) == []


def test_a_withheld_confirm_precedes_a_reject() -> None:
    """MT-19, MT-27"""
    broker = Broker(limits={"queue-contents": 1})
    writer = broker.flow("Writer")
    broker.command(writer, *contents(1))
    broker.command(writer, *contents(2))
    broker.command(writer)
    broker.safe(broker.events[-2])
    assert broker.got(writer) == [Confirm(1, True)]
    broker.safe(broker.events[-1])
    assert broker.got(writer) == []
    broker.collect(broker.server.peer_lost(writer, broker.now))
    assert broker.sent == {}

    broker = Broker(limits={"queue-contents": 2})
    writer = broker.flow("Writer")
    for numbers in ((1,), (2,), (3,), (4,)):
        broker.command(writer, *contents(*numbers))
    for event in broker.events[-4:-1]:
        broker.safe(event)
    assert broker.got(writer) == [Confirm(1, True), Confirm(2, True)]
    broker.safe(broker.events[-1], False)
    assert broker.got(writer) == [Confirm(3, True), Reject(4, True)]


def test_queues_are_bounded_in_number_and_octets() -> None:
    """MT-29"""
    broker = Broker(limits={"queues": 2, "queue-octets": 100})
    writer = broker.flow("Writer", ["a", "b", "c"])
    broker.command(writer, *contents(1), *contents(2, resource="b"))
    broker.safe(broker.events[-1])
    assert broker.command(writer, *contents(3, resource="c")) == [Confirm(2, True), Reject(3)]
    assert broker.command(writer, Content(4, "a", body=bytes(100))) == [Reject(4)]
    reader = broker.flow("Reader", [])
    assert broker.command(reader, Summon(2, "c")) == [Response(2, 400)]
    broker.command(reader, Summon(3, "a"), Confirm(1), Dismiss(4, "a"), Summon(5, "c"))
    assert broker.got(reader) == []
    assert broker.server.profiles["queue"].snapshot()["queues"] == 2


def test_a_queue_which_cannot_be_made_any_more_loses_nothing_that_is_safe() -> None:
    """MT-29: the sink has it; only readers do not."""
    broker = Broker(limits={"queues": 1})
    one, two = broker.flow("Writer", ["a"]), broker.flow("Writer", ["b"])
    broker.command(one, *contents(1))
    broker.command(two, *contents(1, resource="b"))
    for event in broker.events[-2:]:
        broker.safe(event)
    assert broker.got(two) == [Confirm(1, True)]
    assert broker.server.profiles["queue"].snapshot()["overflowed"] == 1


def test_what_a_reader_had_goes_to_another_when_its_session_ends() -> None:
    """MT-30"""
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
    broker.collect(broker.server.close(broker.now))
    assert broker.server.snapshot()["readers"] == 0
    third = broker.flow("Reader", [])
    got = broker.command(third, Summon(2, "a"), Summon(3, "b"))
    assert bodies(got) == [b"1", b"2", b"3"]


def test_profiles_are_an_extension_point() -> None:
    """MT-26: one which keeps the newest content only, and has two resources."""

    class Newest(Profile):
        name = "newest"
        stored = False

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


def test_the_base_of_all_profiles_takes_everything() -> None:
    """MT-26"""

    class Nothing(Profile):
        name = "nothing"
        bounded = True

    broker = Broker([Nothing()])
    writer = broker.flow("Writer", profile="nothing")
    broker.command(writer, *contents(1))
    broker.safe(broker.events[-1])
    assert broker.got(writer) == [Confirm(1, True)]
    reader = broker.reader(profile="nothing")
    assert broker.command(reader, Confirm(1), Dismiss(3, "a")) == [Response(3, 200)]
    assert broker.server.snapshot()["profiles"] == {"nothing": {}}
    broker.server.profiles["nothing"].release()
    Nothing().release()


@pytest.mark.parametrize("name", ["", "Test", "test"])
def test_names_of_profiles_are_in_lower_case_and_unique(name: str) -> None:
    """MT-04, MT-26"""

    class Named(Profile):
        pass

    Named.name = name
    with pytest.raises(ValueError, match="unique"):
        by_name([TestProfile(), Named()])
    profile = QueueProfile()
    profile.release()
    assert by_name([TestProfile(), profile, IngestProfile()]).keys() == {"test", "queue", "ingest"}


def test_every_limit_of_the_server_has_a_reason() -> None:
    """MT-29"""
    for limit in Limits.of(SERVER_LIMITS).table.values():
        assert limit.default > 0
        assert limit.reason
