"""The broker's machine: data commands in every state, leases, heartbeats, readers."""

from __future__ import annotations

import gc
from typing import Any

import pytest

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
from twisted_msgproto.mtl.wire import data

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


def test_commands_may_be_pipelined_behind_the_lease__MT_15() -> None:
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
    assert [data.decode_table(content.properties) for content in got] == [
        {"mtl-redeliveries": 1},
        {"mtl-redeliveries": 0},  # it was sent ahead: nobody says that it was looked at
    ]
    broker.got(dead)
    assert broker.command(dead, Summon(9, "a")) == [Response(9, 403)]


def test_silence_does_not_count_while_the_socket_is_not_read__MT_21() -> None:
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
    hurried = Broker(limits={"heartbeat": 0.5})
    hurried.now += 0.2
    reader = hurried.reader()
    hurried.wait(0.5)
    assert hurried.got(reader) == []
    hurried.wait(0.06)  # at a quarter of a second: half of the heartbeat later at most
    assert hurried.got(reader) == [Ping()]


def test_a_reader_that_gets_content_and_only_answers_pings_keeps_its_flow__MT_21() -> None:
    """It was not pinged while it was sent anything, and then it was silent for too long."""
    broker = Broker()
    reader, writer = broker.reader(confirm=NONE), broker.flow("Writer")
    got: list[DataCommand] = []
    for number in range(40):
        broker.command(writer, *contents(number))
        broker.safe(broker.events[-1])
        broker.wait(1.0)
        new = broker.got(reader)
        broker.command(reader, *[Pong()] * new.count(Ping()))
        got += new
    assert len(bodies(got)) == 40
    assert broker.server.snapshot()["readers"] == 1


@pytest.mark.parametrize("readable", [True, False])
def test_a_content_keeps_its_flow__MT_13__MT_21(readable: bool) -> None:
    broker = Broker()
    peer = write(broker, 1)
    for number in range(5, 25):
        broker.wait(4.0)
        header, body = data.encode(Content(number, "a"))
        broker.receive(Channel.DATA, [peer, header if readable else header[:-1], body])
        if readable:
            broker.safe(broker.events[-1])
    broker.wait(4.0)
    answer: list[DataCommand] = [
        Confirm(number, True) if readable else Reject(number) for number in range(5, 25)
    ]
    assert [command for command in broker.got(peer) if command != Ping()] == answer


def test_a_writer_that_waits_for_a_slow_disk_and_only_answers_pings_keeps_its_flow__MT_21() -> None:
    """It was not pinged while it was sent confirmations, and then it was silent for too long."""
    broker = Broker()
    peer = broker.flow("Writer")
    for number in range(40):
        broker.command(peer, *contents(number))
    got: list[DataCommand] = []
    for event in [one for one in broker.events if hasattr(one, "position")]:
        broker.safe(event)
        broker.wait(1.0)
        new = broker.got(peer)
        broker.command(peer, *[Pong()] * new.count(Ping()))
        got += new
    assert [one.sequence for one in got if isinstance(one, Confirm)] == [*range(40)]


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


# ── readers ─────────────────────────────────────────────────────────────────────────────────────


def test_a_resource_is_not_summoned_twice_without_dismiss__MT_16__MT_17() -> None:
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
    broker = Broker()
    peer = broker.flow("Reader", [])
    answers = broker.command(peer, *[Summon(number, f"x{number}") for number in range(1, 258)])
    assert answers == [*[Response(n, 200) for n in range(1, 257)], Response(257, 400)]


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


# ── confirmation from readers ───────────────────────────────────────────────────────────────────


def test_a_reader_holds_no_more_than_the_prefetch__MT_27() -> None:
    broker = Broker(limits={"prefetch": 3})
    reader = broker.reader()
    write(broker, *range(1, 11))
    assert bodies(broker.got(reader)) == [b"1", b"2", b"3"]
    assert bodies(broker.command(reader, Confirm(2, True))) == [b"4", b"5"]
    assert bodies(broker.command(reader, Reject(3))) == [b"6"]


SETTLED: list[tuple[DataCommand, list[int], int]] = [
    # What is outstanding after each command, and how many so far have settled nothing.
    (Confirm(3), [1, 2, 4, 5, 6, 7], 0),
    (Confirm(3), [1, 2, 4, 5, 6, 7], 1),
    (Confirm(3, True), [4, 5, 6, 7], 1),  # it was sent, so all before it are covered
    (Confirm(8, True), [4, 5, 6, 7], 2),  # never sent
    (Confirm(2**64 - 1, True), [4, 5, 6, 7], 3),
    (Confirm(0, True), [4, 5, 6, 7], 4),
    (Reject(5), [4, 6, 7], 4),
    (Confirm(2, True), [4, 6, 7], 4),
    (Reject(6, True), [7], 4),
    (Confirm(7), [], 4),
    (Confirm(7, True), [], 4),
]


@pytest.mark.parametrize("count", range(1, len(SETTLED) + 1))
def test_confirm_and_reject_single_and_multiple(count: int) -> None:
    """MT-19, MT-20: another reader gets what is outstanding when this one has gone."""
    broker = Broker()
    reader = broker.reader()
    write(broker, *range(1, 8))
    assert bodies(broker.got(reader)) == [b"%d" % number for number in range(1, 8)]
    for command, _, _ in SETTLED[:count]:
        assert broker.command(reader, command) == []
    _, left, nothing = SETTLED[count - 1]
    assert broker.dropped == ({"nothing-to-settle": nothing} if nothing else {})
    broker.leave(reader)
    got = broker.command(broker.flow("Reader"), Summon(2, "a"))
    assert bodies(got) == [b"%d" % number for number in left]


def test_unconfirmed_readers_get_bursts() -> None:
    """MT-27: and nothing while their socket takes no more."""
    broker = Broker()
    reader = broker.reader(confirm=NONE)
    write(broker, *range(1, 601))
    assert bodies(broker.got(reader)) == [b"%d" % n for n in range(1, 257)]
    assert broker.server.more_to_send
    broker.server.blocked(reader)
    broker.server.refill(broker.now)
    broker.collect()
    assert broker.got(reader) == []
    broker.server.unblocked(reader, broker.now)
    broker.collect()
    assert bodies(broker.got(reader)) == [b"%d" % n for n in range(257, 513)]
    for left in ([b"%d" % n for n in range(513, 601)], []):
        broker.server.refill(broker.now)
        broker.collect()
        assert bodies(broker.got(reader)) == left
    assert not broker.server.more_to_send
    broker.server.blocked(b"nobody")
    broker.server.unblocked(b"nobody", broker.now)


def test_a_writer_that_leaves_while_its_confirm_waits_is_forgotten__MT_27__NB_02() -> None:
    broker = Broker(limits={"queue-messages": 1})
    writer = broker.flow("Writer")
    for number in (1, 2):
        broker.command(writer, *contents(number))
        broker.safe(broker.events[-1])
    assert broker.got(writer) == []
    flow = broker.events[-1].flow  # type: ignore[union-attr]
    broker.events.clear()
    broker.leave(writer)
    assert gc.get_referrers(flow) == []


def test_what_was_sent_to_a_reader_is_held_by_the_broker_alone__NB_02() -> None:
    """NB-02: or a reader that confirms nothing fills the memory beside ``broker-memory-bytes``."""
    broker = Broker()
    reader, writer = broker.reader(), broker.flow("Writer")
    body = bytes(1000)
    broker.command(writer, Content(1, "a", body=body))
    broker.safe(broker.events[-1])
    assert bodies(broker.got(reader)) == [body]
    broker.events.clear()
    assert len(gc.get_referrers(body)) == 1, "the letter in its queue, and nothing of the reader"
    broker.leave(reader)
    assert bodies(broker.command(broker.flow("Reader"), Summon(2, "a"))) == [body]
