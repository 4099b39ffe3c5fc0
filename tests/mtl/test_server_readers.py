"""The broker's machine: what readers summon, get, confirm and reject."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from tests.mtl.broker import (
    NONE,
    Broker,
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
    write,
)

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


def test_what_comes_after_a_dismissal_is_not_sent_to_that_reader__MT_16() -> None:
    broker = Broker()
    reader = broker.reader()
    assert Response(3, 200) in broker.command(reader, Dismiss(3, "a"))
    other = broker.reader()
    write(broker, 1, 2)
    assert bodies(broker.got(reader)) == []
    assert bodies(broker.got(other)) == [b"1", b"2"]
    assert broker.command(reader, Ping()) == [Pong()], "it may summon something else"


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


def test_sequences_to_a_reader_rise_and_begin_anew_for_each() -> None:
    """MT-18"""
    broker = Broker()
    readers = [broker.reader(), broker.reader()]
    write(broker, 1, 2, 3, 4)
    for reader in readers:
        assert [command.sequence for command in broker.got(reader)] == [1, 2]  # type: ignore[union-attr]


def test_what_was_sent_to_a_reader_is_held_by_the_broker_alone__NB_02() -> None:
    """NB-02: or a reader that confirms nothing fills the memory beside ``broker-memory``."""
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
