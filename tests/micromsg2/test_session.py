"""Sessions: numbers, commands, errors, time, limits; what they count and show after each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.doubles import Figures, due
from tests.micromsg2.streams import (
    BATCH,
    ack,
    batches,
    client_with,
    encode_address,
    encode_command,
    encode_error,
    encode_extension,
    flatten,
    message,
    messages,
    parts,
    receive,
    safe,
    said,
    send,
    server_with,
)
from twisted_msgproto.core.errors import LimitExceeded

# ── numbers (MM-12, MM-13) ──────────────────────────────────────────────────────────────────────


def test_without_acks_numbers_are_carried_and_not_looked_at() -> None:
    """MM-13: repeats are delivered"""
    server = server_with()
    events = receive(server, b"".join(message(number) for number in (5, 5, 0, 65535, 9)))
    assert [row[0] for row in flatten(events)] == [5, 5, 0, 65535, 9]
    safe(server, events)
    assert server.outputs() == b""
    assert server.unacknowledged == 0
    assert server.counters.repeats == 0


def test_a_message_has_its_columns() -> None:
    """MM-12, MM-22, MM-23"""
    server, octets = server_with(), message(9, b"hello", "topic/a", b"k:N1;who:Tme%20too;")
    (event,) = receive(server, octets)
    assert flatten([event]) == [
        (9, "topic/a", {"k": "1", "who": "me too"}, b"hello", b"k:N1;who:Tme%20too;")
    ]
    assert event.properties[0]["k"].content == 1
    assert (event.nbytes, server.counters.received) == (len(octets), 1)


# ── errors (MM-17, MM-33) ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("more", "end"), [(-1, "x"), (0, "x"), (1, "…")])
def test_only_an_error_above_the_bound_is_cut(more: int, end: str) -> None:
    """MM-17"""
    server = server_with()
    server.send_error("code", "x" * (600 - len("code: ") + more))
    (text,) = said(server)
    assert (len(text), text[-1]) == (min(600 + more, 600), end)


# ── time (MM-32) ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("octets", [b"\0", message(1, continued=True)])
def test_a_payload_which_stays_unfinished_is_given_up(octets: bytes) -> None:
    """MM-32: mid-frame and mid-payload"""
    server = server_with()
    receive(server, octets, 10.0)
    assert server.input_weight == 1
    assert due(server, 10.0)[1] == 130.0
    server.paused(20.0)
    assert due(server, 200.0)[1] is None
    server.resumed(200.0)
    assert due(server, 319.0)[1] == 320.0
    assert due(server, 320.0)[1] is None
    assert server.fault is not None
    assert server.fault.reason == "idle-timeout"
    assert said(server) == [server.fault.text]


def test_without_idle_close_the_rest_of_a_payload_is_waited_for__MM_32() -> None:
    server = server_with(idle_close=0)
    receive(server, message(1)[:-1])
    server.resumed(1.0)
    assert due(server, 1e9)[1] is None
    assert server.fault is None


def test_a_peer_which_never_acknowledges_is_left_if_the_limit_says_so() -> None:
    """MM-32"""
    patient = client_with(BATCH + "2")
    send(patient, "a", b"")
    assert due(patient, 0.0)[1] is None
    client = client_with(BATCH + "2", ack_wait=5)
    assert due(client, 0.0)[1] is None
    client.send_run(encode_address("a"), [b"", b""], now=10.0)
    assert due(client, 10.0)[1] == 15.0
    receive(client, ack(1), 12.0)
    assert due(client, 15.0)[1] == 17.0
    client.paused(16.0)
    assert due(client, 30.0)[1] is None
    client.resumed(31.0)
    assert due(client, 31.0)[1] == 36.0
    client.outputs()
    client.advance(36.0)
    assert client.fault is not None
    assert client.fault.reason == "ack-timeout"


def test_what_properties_weigh_is_added_up_over_the_runs_of_a_read__NB_02() -> None:
    def run(first: int, end: int) -> bytes:
        return b"".join(message(number, properties=b"k:N1;") for number in range(first, end))

    (one,) = receive(server_with(BATCH + "999"), run(1, 60))
    (both,) = receive(server_with(BATCH + "999"), run(1, 60) + ack(5) + run(60, 120))
    assert len(both.sequences) == 119
    assert both.weight == 2 * one.weight > 0


def test_a_session_that_was_broken_off_waits_for_no_rest_of_a_frame__NB_02() -> None:
    server = server_with(BATCH + "9")
    receive(server, message(1)[:-1])
    assert not server.no_partial_input
    for text in ("1", "again"):
        server.break_off("failed", text)
    assert server.no_partial_input
    assert said(server) == ["failed: 1"]


def test_a_command_may_have_as_many_bytes_as_its_limit_allows__MM_32() -> None:
    octets = len(encode_command("fly", {"to": "x" * 50})) - 5  # without flags and length
    client_with(command_bytes=octets).send_command("fly", {"to": "x" * 50})
    with pytest.raises(LimitExceeded):
        client_with(command_bytes=octets - 1).send_command("fly", {"to": "x" * 50})


def test_the_first_of_an_event_has_failed_unless_another_is_named__MM_19() -> None:
    for named, failed in (((), "failed: 1"), ((2,), "failed: 2")):
        server = server_with(BATCH + "9")
        (event,) = receive(server, message(1) + message(2))
        for sequence in named:
            server.fail(sequence)
        server.not_safe(event.position, 0.0)
        assert said(server) == [failed]


def test_a_session_counts_and_shows_each_step__MM_13__MM_19__MM_21__MM_28__MM_33() -> None:
    session = server_with("json;pub-sub;ack:MessagesPerAck=3")
    places: list[int] = []

    def figures() -> dict[str, Any]:
        names = (
            "in_flight",
            "room",
            "deadline",
            "input_weight",
            "finished",
            "no_partial_input",
            "state",
        )
        return {**asdict(session.counters), **{name: getattr(session, name) for name in names}}

    def read(nbytes: bytes, now: float) -> None:
        events = receive(session, nbytes, now)
        places.extend(batch.position for batch in batches(events))

    changed = Figures(figures)
    half = message(3, b"3")
    steps: list[tuple[Callable[[], object], str, int]] = [
        (lambda: read(messages(1, 2, b"1"), 1.0), "received=2", 0),
        (lambda: read(half[:-1], 2.0), "input_weight=15 no_partial_input=False deadline=122.0", 0),
        (lambda: read(half[-1:], 3.0), "received=3 input_weight=0 no_partial_input=True", 0),
        (lambda: read(message(4, b"4"), 4.0), "received=4 over_window=1", 0),
        (lambda: session.made_safe(places[0], 5.0), "deadline=5.5", 0),
        (lambda: session.made_safe(places[1], 5.4), "acks=1 deadline=122.0", 5),
        (lambda: read(message(1, b"1"), 6.0), "repeats=1 acks=2", 5),
        (
            lambda: read(message(5, b"{", properties=b"k:v;"), 7.0),
            "received=5 bad_payloads=1 untyped=1",
            103,
        ),
        (lambda: read(message(6, b"6", properties=b"k:v;"), 8.0), "received=6 untyped=2", 0),
        (lambda: read(parts((7, b"1"), (8, b"2")), 9.0), "received=7 over_window=3", 0),
        (
            lambda: read(parts((9, b"1"), (9, b"{")), 9.0),
            "received=8 over_window=4 bad_payloads=2",
            64,
        ),
        (
            lambda: read(parts((10, b"{"), (11, b"1")), 9.0),
            "received=9 over_window=6 bad_payloads=3",
            104,
        ),
        (lambda: session.refuse(6, "why"), "refused=1", 17),
        (lambda: session.made_safe(places[2], 10.0), "deadline=10.5", 0),
        (lambda: session.made_safe(places[3], 10.0), "acks=3 deadline=122.0", 5),
        (lambda: session.advance(20.0), "", 0),
        (lambda: read(ack(9, 3), 21.0), "stray_acks=1", 0),
        (lambda: read(encode_extension(1, b"x"), 22.0), "ignored_frames=1", 0),
        (lambda: read(encode_command("nonsense", {}), 23.0), "unknown_commands=1", 27),
        (lambda: read(encode_command("subscribe", {"destination": "a"}), 23.0), "", 0),
        (lambda: read(encode_error("x: y"), 24.0), "errors=1", 0),
        (lambda: send(session, "a", b"1"), "sent=1 in_flight=1 room=2", 9),
        (lambda: send(session, "a", b"2"), "sent=2 in_flight=2 room=1", 9),
        (lambda: read(ack(1, 3), 25.0), "acknowledged=1 in_flight=1 room=2", 0),
    ]
    for number, (step, expected, nbytes) in enumerate(steps):
        told = {f"{name}={value}" for name, value in changed(step()).items()}
        assert (told, len(session.outputs())) == ({*expected.split()}, nbytes), f"step {number}"


PROPERTIES = b"a:S1;"
SIZED = {
    "properties-bytes": (len(PROPERTIES), message(1, b"x", properties=PROPERTIES)),
    "frame-payload-bytes": (300, message(1, b"x" * 300)),
    "command-bytes": (13, encode_command("subscribe", {"a": "b"})),
}
"""Limit → the least with which this frame is read."""


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("before", [b"", message(1, b"y", "other")])
def test_a_frame_at_its_limit_is_read_as_it_is_and_one_byte_more_is_a_fault__MM_32(
    name: str, before: bytes
) -> None:
    most, octets = SIZED[name]

    def frames(limit: int, cut: int) -> list[Any]:
        server = server_with("pub-sub;dotnet", **{name: limit})
        events = receive(server, before + octets[:cut]) + receive(server, octets[cut:])
        return flatten(events)

    usual = frames(1 << 16, 0)
    for cut in (0, len(octets) - 1):
        assert frames(most, cut) == usual
        kind, _, text = frames(most - 1, cut)[-1]
        assert kind == "fault"
        assert name in text
