"""What seldom happens to the machines of MicroMsg2."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.doubles import due
from tests.micromsg2.layouts import encode_address, encode_command
from tests.micromsg2.sessions import BATCH, receive
from tests.micromsg2.streams import ack, client_with, message, said, server_with
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.micromsg2.machine import MessagesReceived, Session


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
        lambda one, place: one.resumed(50.0),
        lambda one, place: one.advance(50.0),
        lambda one, place: one.not_safe(place, 50.0),
        lambda one, place: one.receive(b"", 50.0),
    ],
    ids=["made_safe", "drain", "resumed", "advance", "not_safe", "receive_data"],
)
def test_what_is_sent_without_a_time_is_sent_at_that_of_the_last_call__MM_32(
    call: Callable[[Session, int], object],
) -> None:
    client = client_with(BATCH + "9", ack_wait=5, idle_ack=100)
    (event,) = receive(client, message(1))
    assert isinstance(event, MessagesReceived)
    call(client, event.place)
    if client.established:
        client.send("a", b"")
        assert due(client, 50.0)[1] == 55.0


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
