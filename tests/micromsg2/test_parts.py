"""Payloads in parts: numbers, bounds, what may stand between."""

from __future__ import annotations

import random

import pytest

from tests.micromsg2.layouts import (
    Part,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
)
from tests.micromsg2.sessions import BATCH, at, broken, parts, receive
from tests.micromsg2.streams import (
    ack,
    acks_written,
    bodies,
    client_with,
    cuts,
    fault,
    fields_of,
    flatten,
    message,
    messages,
    pair,
    proposal,
    pump,
    safe,
    server_with,
    written,
)
from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.micromsg2.machine import CommandReceived, ErrorReceived, MessagesAcknowledged

# ── parts (MM-14, MM-31) ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("extension", ["", BATCH + "10"])
def test_parts_with_the_same_number_are_one_message(extension: str) -> None:
    """MM-31: what we write"""
    octets = parts((1, b"a"), (1, b"b"), (1, b"c")) + message(2, b"d")
    for chunks in cuts(octets):
        server = server_with(extension)
        events = [event for chunk in chunks for event in receive(server, chunk)]
        assert [row[0] for row in flatten(events)] == [1, 2]  # type: ignore[index]
        assert bodies(events) == [b"abc", b"d"]
        assert server.counters.received == 2
        safe(server, events)
        server.drain(0.0)
        assert acks_written(server)[-1:] == ([2] if extension else [])


@pytest.mark.parametrize("extension", ["", BATCH + "10"])
def test_parts_with_numbers_of_their_own_each_count(extension: str) -> None:
    """MM-31: the second part's number fixes the mode"""
    octets = parts((1, b"a"), (2, b"b"), (3, b"c")) + message(4, b"d")
    for chunks in cuts(octets):
        server = server_with(extension)
        events = [event for chunk in chunks for event in receive(server, chunk)]
        assert [row[0] for row in flatten(events)] == [1, 4]  # type: ignore[index]
        assert bodies(events) == [b"abc", b"d"]
        assert server.counters.received == 2
        safe(server, events)
        server.drain(0.0)
        assert acks_written(server)[-1:] == ([4] if extension else [])


@pytest.mark.parametrize(
    "octets",
    [
        parts((1, b"a"), (3, b"b")),
        parts((1, b"a"), (1, b"b"), (2, b"c")),
        parts((1, b"a"), (2, b"b"), (2, b"c")),
        parts((1, b"a"), (2, b"b"), (4, b"c")),
        parts((1, b"a"), (0, b"b")),
    ],
)
@pytest.mark.parametrize("extension", ["", BATCH + "10"])
def test_another_number_between_parts_is_a_protocol_error(octets: bytes, extension: str) -> None:
    """MM-31: the mode holds for the payload"""
    assert bodies(broken(server_with(extension), octets)) == []


def test_the_mode_is_fixed_for_one_payload_only() -> None:
    """MM-31"""
    server = server_with(BATCH + "10")
    octets = parts((1, b"a"), (1, b"b")) + parts((2, b"c"), (3, b"d")) + parts((4, b"e"), (4, b"f"))
    assert bodies(receive(server, octets)) == [b"ab", b"cd", b"ef"]
    assert server.unacknowledged == 4


def test_parts_wrap_too() -> None:
    """MM-13, MM-31"""
    server = server_with(BATCH + "10")
    at(server, 65533)
    octets = parts((65534, b"a"), (65535, b"b"), (1, b"c"), (2, b"d")) + message(3, b"e")
    events = receive(server, octets)
    assert bodies(events) == [b"abcd", b"e"]
    safe(server, events)
    server.drain(0.0)
    assert acks_written(server) == [3]


def test_commands_extensions_and_errors_may_stand_between_parts() -> None:
    """MM-31: and they are given out before the payload"""
    server = server_with("pub-sub;" + BATCH + "5")
    server.send("a", b"")
    between = encode_command("subscribe", {}) + ack(1, index=2) + encode_error("oops")
    octets = message(1, b"a", continued=True) + between + message(1, b"b")
    for chunks in cuts(octets):
        fresh = server_with("pub-sub;" + BATCH + "5")
        fresh.send("a", b"")
        found = flatten(event for chunk in chunks for event in receive(fresh, chunk))
        assert [type(event) for event in found] == [CommandReceived, tuple, ErrorReceived, tuple]
        assert found[3][3] == b"ab"  # type: ignore[index]


def test_destination_properties_and_type_are_those_of_the_first_part() -> None:
    """MM-29, MM-31"""
    server = server_with("dotnet")
    octets = (
        encode_extension(1, b"First")
        + message(1, b"a", "first", b"k:N1;", continued=True)
        + encode_extension(1, b"Second")
        + message(1, b"b", "second", b"k:N2;")
        + message(2, b"c", "third")
    )
    events = receive(server, octets)
    assert [row[1:4] for row in flatten(events)] == [  # type: ignore[index]
        ("first", {"k": "1", "dotnet-type": "First"}, b"ab"),
        ("third", {"dotnet-type": "Second"}, b"c"),
    ]


def test_a_repeated_payload_is_skipped_to_its_last_part() -> None:
    """MM-13, MM-31: in both modes; a repeat counts only at a payload's start"""
    for octets in (parts((1, b"a"), (1, b"b"), (1, b"c")), parts((1, b"a"), (2, b"b"), (3, b"c"))):
        server = server_with(BATCH + "10")
        events = receive(server, octets)
        assert bodies(events) == [b"abc"]
        expected = server.unacknowledged + 1
        assert receive(server, octets) == []
        assert server.counters.repeats == 1
        assert bodies(receive(server, message(expected, b"new"))) == [b"new"]


def test_a_repeat_within_a_payload_is_a_protocol_error() -> None:
    """MM-31"""
    server = server_with(BATCH + "10")
    receive(server, messages(1, 3))
    broken(server, parts((4, b"a"), (4, b"b"), final=False) + message(3))


def test_a_payload_has_at_most_64_parts() -> None:
    """MM-31, MM-32: CONTINUED for ever"""
    server = server_with()
    assert bodies(receive(server, parts(*[(1, b"a")] * 64))) == [b"a" * 64]
    events = broken(server, parts(*[(2, b"a")] * 65, final=False), "limit-exceeded")
    assert "more than 64 parts" in fault(list(events)).text
    broken(server_with(), parts(*[(2, b"")] * 65), "limit-exceeded")


def test_a_payload_has_at_most_16_mebibytes() -> None:
    """MM-31, MM-32"""
    server = server_with()
    mib = bytes(1 << 20)
    whole = parts(*[(1, mib)] * 16)
    assert len(bodies(receive(server, whole))[0]) == 16 << 20
    events = broken(server, parts(*[(2, mib)] * 16, (2, b"x")), "limit-exceeded")
    assert "payload-octets=16777216" in fault(list(events)).text
    small = server_with(payload_octets=5)
    broken(small, parts((1, b"abc"), (1, b"def")), "limit-exceeded")


def test_repeated_payloads_have_the_same_bounds() -> None:
    """MM-32: skipping is bounded too"""
    server = server_with(BATCH + "10")
    receive(server, message(1))
    broken(server, parts(*[(1, b"a")] * 65), "limit-exceeded")


def test_unfinished_parts_which_fill_the_window_are_refused() -> None:
    """MM-31: they could never be acknowledged"""
    server = server_with(BATCH + "3")
    assert bodies(receive(server, parts((1, b"a"), (2, b"b"), (3, b"c")))) == [b"abc"]
    broken(server, parts((4, b"a"), (5, b"b"), (6, b"c"), final=False), "limit-exceeded")
    # the same number for all parts: one place in the window
    server = server_with(BATCH + "3")
    octets = parts(*[(1, b"a")] * 9)
    assert bodies(receive(server, octets)) == [b"a" * 9]


def test_unfinished_parts_are_not_made_safe_with_what_came_before() -> None:
    """MM-19, MM-31"""
    server = server_with(BATCH + "2")
    events = receive(server, message(1) + parts((2, b"a"), (3, b"b"), final=False)[:12])
    receive(server, parts((2, b"a"), (3, b"b"), final=False)[12:13])
    safe(server, events)
    server.drain(0.0)
    assert acks_written(server) == [1]


def test_all_parts_are_written_before_an_ack_can_come() -> None:
    """MM-31: one number, one place in the window"""
    client = client_with(BATCH + "2")
    payload = bytes(3 << 20)
    assert client.send("a", payload) == 1
    assert client.in_flight == 1
    frames = written(client)
    assert [type(frame) for frame in frames] == [Part, Part, tuple]
    assert receive(client, ack(1)) == [MessagesAcknowledged([1])]


def test_a_payload_above_our_own_limit_is_not_sent() -> None:
    """MM-31: the caller's work is above a limit"""
    client = client_with(BATCH + "2", payload_octets=10)
    with pytest.raises(LimitExceeded):
        client.send("a", bytes(11))
    assert (client.in_flight, client.outputs()) == (0, b"")
    assert client.send("a", bytes(10)) == 1


def test_what_was_taken_in_may_be_passed_on() -> None:
    """MM-31: a broker's server may have taken larger payloads than it would send itself"""
    server = server_with(payload_octets=1)
    payload = bytes((1 << 20) + 1)
    assert server.send_run(encode_address("a"), [payload]) == [1]
    assert len(written(server)) == 2


def test_parts_travel_between_our_sides() -> None:
    """MM-14"""
    client, server = pair(proposal(BATCH + "2"))
    payload = random.Random(1).randbytes((2 << 20) + 12345)
    client.send("a", payload, {"k": 1})
    _, events = pump(client, server)
    assert bodies(events) == [payload]
    assert fields_of(events) == [{"k": "1"}]
