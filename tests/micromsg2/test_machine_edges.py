"""What seldom happens to the machines of MicroMsg2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

import pytest

from tests.doubles import due
from tests.micromsg2.sessions import BATCH, receive
from tests.micromsg2.streams import ack, client_with, message, messages, said, server_with
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.micromsg2.machine import STANDARD, Extension, MessagesReceived, Session
from twisted_msgproto.micromsg2.machine.extensions import _no_constant
from twisted_msgproto.micromsg2.terms import LIMITS, Counters
from twisted_msgproto.micromsg2.wire import encode_address, encode_command
from twisted_msgproto.micromsg2.wire.frames import Decoder


def test_everything_is_counted_from_0() -> None:
    assert not any(astuple(Counters()))


def test_an_extension_without_an_opinion_objects_to_nothing() -> None:
    plain = Extension({}, Limits.of(LIMITS))
    assert plain.objection(b"x") is None
    assert plain.inspection(b"x") is None


@pytest.mark.parametrize("name", sorted(STANDARD))
def test_every_extension_knows_its_properties_and_the_limits__MM_10(name: str) -> None:
    limits, properties = Limits.of(LIMITS), {"max-count": "3"}
    extension = STANDARD[name](properties, limits)
    assert (extension.properties, extension.limits) == (properties, limits)


def test_a_constant_that_is_no_number_in_json_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN is no JSON number"):
        _no_constant("NaN")


def test_an_event_without_messages_has_no_octets__NB_02() -> None:
    assert MessagesReceived().octets == 0


def test_what_properties_weigh_is_added_up_over_the_runs_of_a_read__NB_02() -> None:
    def run(first: int, end: int) -> bytes:
        return b"".join(message(number, properties=b"k:N1;") for number in range(first, end))

    (one,) = receive(server_with(BATCH + "999"), run(1, 60))
    (both,) = receive(server_with(BATCH + "999"), run(1, 60) + ack(5) + run(60, 120))
    assert isinstance(one, MessagesReceived)
    assert isinstance(both, MessagesReceived)
    assert len(both.sequences) == 119
    assert both.weight == 2 * one.weight > 0


def test_what_was_sent_first_is_waited_for_and_not_what_was_sent_last__MM_32() -> None:
    client = client_with(BATCH + "9", ack_wait=5)
    client.send_run(encode_address("a"), [b""], now=10.0)
    client.send_run(encode_address("a"), [b""], now=12.0)
    assert due(client, 12.0)[1] == 15.0
    client.outputs()
    client.advance(15.0)
    assert client.fault is not None


@pytest.mark.parametrize(
    "call",
    [
        lambda one, place: one.made_safe(place, 50.0),
        lambda one, place: one.drain(50.0),
        lambda one, place: one.paused(50.0),
        lambda one, place: one.resumed(50.0),
        lambda one, place: one.advance(50.0),
        lambda one, place: one.not_safe(place, 50.0),
        lambda one, place: one.receive(b"", 50.0),
    ],
    ids=["made_safe", "drain", "paused", "resumed", "advance", "not_safe", "receive_data"],
)
def test_what_is_sent_without_a_time_is_sent_at_that_of_the_last_call__MM_32(
    call: Callable[[Session, int], object],
) -> None:
    client = client_with(BATCH + "9", ack_wait=5)
    (event,) = receive(client, message(1))
    assert isinstance(event, MessagesReceived)
    call(client, event.place)
    assert client._now == 50.0
    if client.established:
        client.send("a", b"")
        assert client._no_ack_since == 50.0


def test_the_first_part_of_a_payload_has_good_properties_or_ends_the_session__MM_22() -> None:
    server = server_with(BATCH + "9")
    (fault,) = receive(server, message(1, properties=b"bad", continued=True))
    assert isinstance(fault, Fault)
    assert server.finished


def test_a_session_that_was_broken_off_waits_for_no_rest_of_a_frame__NB_02() -> None:
    server = server_with(BATCH + "9")
    receive(server, message(1)[:-1])
    assert not server.whole
    server.break_off("failed", "1")
    assert server.whole


def test_of_what_a_lost_session_had_not_stored_nothing_is_kept__NB_02() -> None:
    server = server_with(BATCH + "9")
    receive(server, message(1))
    assert server._firsts
    server.lost(1.0)
    assert not server._firsts


def test_a_command_may_have_as_many_octets_as_its_limit_allows__MM_32() -> None:
    octets = len(encode_command("fly", {"to": "x" * 50})) - 5  # without flags and length
    client_with(command_octets=octets).send_command("fly", {"to": "x" * 50})
    with pytest.raises(LimitExceeded):
        client_with(command_octets=octets - 1).send_command("fly", {"to": "x" * 50})


def test_without_an_ack_extension_nothing_is_acknowledged__MM_18() -> None:
    server = server_with()
    (event,) = receive(server, message(1))
    assert isinstance(event, MessagesReceived)
    server.made_safe(event.place, 0.0)
    server.drain(1.0)
    assert server.outputs() == b""


def test_a_fault_keeps_the_first_32_octets_of_what_was_not_understood__MM_17() -> None:
    server = server_with()
    (fault,) = receive(server, b"\xff" * 100)
    assert isinstance(fault, Fault)
    assert fault.octets == b"\xff" * 32


def test_messages_of_one_size_are_unpacked_together() -> None:
    """They take a tenth of the time that they take one by one."""
    whole = message(1)
    address = whole[3:-2]  # between the number and the payload with its length
    sequences: list[int] = []
    payloads: list[bytes] = []
    data = messages(1, 100) + message(101, b"xy")
    assert Decoder._alike(data, 0, len(whole), address, sequences, payloads) == 100
    assert (sequences, payloads) == ([*range(1, 101)], [b"x"] * 100)


def test_a_message_may_be_blamed_only_for_an_event_that_is_not_safe_yet__MM_19() -> None:
    for place, refused in ((0, "2"), (99, "1")):
        server = server_with(BATCH + "9")
        (event,) = receive(server, message(1) + message(2))
        assert isinstance(event, MessagesReceived)
        server.blame(event.place + place, 2)
        server.not_safe(event.place, 0.0)
        assert any(refused in text for text in said(server)), place


def test_what_is_safe_cannot_fail_any_more__MM_19() -> None:
    """And nothing is remembered of it (NB-02)."""
    server = server_with(BATCH + "9")
    (event,) = receive(server, message(1))
    server.made_safe(event.place, 0.0)
    with pytest.raises(ValueError, match="no event had the place"):
        server.not_safe(event.place, 0.0)
