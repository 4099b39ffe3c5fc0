"""The broker's machine: data commands in every state, leases, heartbeats."""

from __future__ import annotations

import pytest

from tests.doubles import lines_run
from tests.mtl.broker import (
    FULL,
    NONE,
    Broker,
    Channel,
    Confirm,
    Content,
    DataCommand,
    Dismiss,
    Lease,
    Ping,
    Pong,
    Reject,
    Response,
    Summon,
    bodies,
    contents,
    data_peer,
    write,
)
from twisted_msgproto.mtl.terms import events
from twisted_msgproto.mtl.wire import data, fields

UNLEASED, READING, WRITING, BROKEN = STATES = ["unleased", "reading", "writing", "broken"]


def flow_in(broker: Broker, state: str, confirm: str) -> bytes:
    if state == UNLEASED:
        return data_peer(80)
    peer = broker.flow("Reader" if state == READING else "Writer", confirm=confirm)
    if state == BROKEN:  # what it wrote could not be made safe, and what came before is not settled
        broker.command(peer, *contents(1))
        broker.command(peer, *contents(2))
        broker.safe(broker.events[-1], False)
    return peer


ANSWERS: list[tuple[DataCommand, list[int | str]]] = [
    # The code of the Response in each state, or what it is counted under; "": it is obeyed.
    (Lease(9, "0" * 40), [403, 403, 403, 403]),
    (Response(9, 200), ["response-not-allowed"] * 4),
    (Summon(9, "a"), [403, 200, 400, 400]),
    (Dismiss(9, "a"), [403, 400, 400, 400]),
    (Content(9, "a", body=b"x"), [403, 403, "", 403]),
    *(
        (one, [f"{word}-not-allowed", "nothing-to-settle", *[f"{word}-not-allowed"] * 2])
        for one, word in ((Confirm(9), "confirm"), (Reject(9, True, True), "reject"))
    ),
    (Ping(), ["", "", "", ""]),
    (Pong(), ["pong-not-allowed", "", "", ""]),
]


@pytest.mark.parametrize("confirm", [FULL, NONE])
@pytest.mark.parametrize("column", range(4), ids=STATES)
@pytest.mark.parametrize(("command", "row"), ANSWERS)
def test_every_command_in_every_state(
    command: DataCommand, row: list[int | str], column: int, confirm: str
) -> None:
    """MT-11, MT-14, MT-16 … MT-19: illegal commands get the code of their row, or nothing."""
    broker, state, answer = Broker(), STATES[column], row[column]
    peer = flow_in(broker, state, confirm)
    before, told = broker.server.snapshot(), len(broker.events)
    answers = broker.command(peer, command)
    written = isinstance(command, Content) and state == WRITING
    assert len(broker.events) - told == written
    if isinstance(command, Content) and confirm == FULL and state in (READING, BROKEN):
        assert answers == [Reject(9)]
    elif isinstance(answer, int):
        assert answers == [Response(9, answer)]
    else:
        assert answers == ([Pong()] if isinstance(command, Ping) else [])
        assert broker.dropped == ({answer: 1} if answer else {})
    if answer not in ("", 200):
        assert broker.server.snapshot() == before


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
    assert isinstance(broker.events[-1], events.ContentReceived)


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
    costs = []
    for silent in (2, 200):
        broker = Broker()
        writer = broker.flow("Writer")
        for _ in range(silent):
            broker.flow("Writer")
        broker.wait(2)

        def send(broker: Broker = broker, writer: bytes = writer) -> None:
            for number in range(1, 20):
                broker.command(writer, *contents(number))
                broker.safe(broker.events[-1])
                broker.collect(broker.server.advance(broker.now))

        costs.append(lines_run(send))
    assert costs[1] < costs[0] * 1.1


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


def test_who_was_sent_a_content_is_not_pinged_for_a_while__MT_21() -> None:
    broker = Broker()
    reader, writer = broker.reader(), broker.flow("Writer")

    def pings(seconds: float) -> int:
        broker.command(reader, Pong())
        broker.command(writer, Pong())
        broker.wait(seconds)
        return broker.got(reader).count(Ping())

    assert pings(4.0) == 0
    broker.command(writer, *contents(1))
    broker.safe(broker.events[-1])
    assert bodies(broker.got(reader)) == [b"1"]
    assert pings(4.5) == 0
    assert pings(1.6) == 1
    assert [pings(6.0) for _ in range(3)] == [1, 1, 1]


def test_what_cannot_be_read_of_a_content_keeps_its_flow__MT_13__MT_21() -> None:
    """Its peer stands, and is not pinged for a while."""
    broker = Broker()
    peer = write(broker, 1)
    header = data.encode(Content(5, "a"))[0]
    for _ in range(20):
        broker.wait(4.0)
        broker.receive(Channel.DATA, [peer, header[:-1], b""])
    broker.wait(4.0)
    assert broker.got(peer) == [Reject(5)] * 20


def test_behind_a_content_that_could_not_be_read_sequences_rise__MT_13__MT_18() -> None:
    broker = Broker()
    peer = write(broker, 1)
    header = data.encode(Content(5, "a"))[0]
    broker.receive(Channel.DATA, [peer, header[:-1], b""])
    assert broker.got(peer) == [Reject(5)]
    for number, answers in ((4, [Reject(4)]), (5, [Reject(5)]), (6, [])):
        assert broker.command(peer, *contents(number)) == answers
    broker.safe(broker.events[-1])
    assert broker.got(peer) == [Confirm(6, True)]
