"""The broker's machine: data commands in every state, leases, heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mtl.broker import ANYTHING, FULL, NONE, Broker, bodies, contents, data_peer, write
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.mtl.machine import Channel
from twisted_msgproto.mtl.terms.events import ContentReceived
from twisted_msgproto.mtl.terms.limits import SERVER_LIMITS
from twisted_msgproto.mtl.terms.states import FLOW, REFUSALS, FlowState
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
            if peer == writer and header.startswith("05"):
                continue  # these are rejected: see test_honest_confirm.py
            broker.receive(Channel.DATA, [peer, bytes.fromhex(header), b""])
        assert broker.to(peer) == []
    assert sum(broker.dropped.values()) == 23
    assert broker.command(writer, *contents(5)) == []
    assert isinstance(broker.events[-1], ContentReceived)


def test_every_limit_of_the_server_has_a_reason() -> None:
    """MT-29"""
    for limit in Limits.of(SERVER_LIMITS).table.values():
        assert limit.default > 0 or "0 = never" in limit.reason
        assert limit.reason


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
        {"mtl-redeliveries": 1},
        {"mtl-redeliveries": 0},  # it was sent ahead: nobody says that it was looked at
    ]
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


def test_what_a_message_costs_does_not_grow_with_the_silent() -> None:
    """HO-26: nobody else's session or flow is looked at for it, whatever the time."""
    broker = Broker()
    writer = broker.flow("Writer")
    for _ in range(200):
        broker.flow("Writer")
    broker.wait(2)
    looked: list[object] = []

    class Watched(dict[bytes, object]):
        def values(self) -> Any:
            looked.append(self)
            return super().values()

    broker.server._flows = Watched(broker.server._flows)  # type: ignore[assignment]
    broker.server._sessions = Watched(broker.server._sessions)  # type: ignore[assignment]
    for number in range(50):
        (event,) = broker.receive(Channel.DATA, [writer, *data.encode(contents(number)[0])])
        broker.safe(event)
        assert broker.server.deadline is not None
        broker.collect(broker.server.advance(broker.now))
    assert looked == []
    assert len(broker.got(writer)) == 50


def test_silent_flows_are_looked_after_in_few_turns() -> None:
    """HO-26: many deadlines are one, so a thousand pings cost no thousand turns."""
    broker = Broker()
    for number in range(100):
        broker.now += 0.003
        broker.flow("Writer" if number % 2 else "Reader")
    turns, end = 0, broker.now + 7
    while (due := broker.server.deadline) is not None and due <= end:
        broker.now, turns = due, turns + 1
        broker.collect(broker.server.advance(due))
    assert sum(Ping() in broker.got(peer) for peer in list(broker.sent)) == 100
    assert 0 < turns <= 4
