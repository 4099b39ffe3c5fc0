"""What a session of MicroMsg2 counts and shows after each step, and limits at n and one above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.micromsg2.layouts import encode_command, encode_error, encode_extension
from tests.micromsg2.sessions import BATCH, parts, receive
from tests.micromsg2.streams import ack, bodies, flatten, message, messages, server_with
from tests.tools.figures import Figures
from twisted_msgproto.micromsg2.machine import MessagesReceived


def test_a_session_counts_and_shows_each_step__MM_13__MM_19__MM_21__MM_28__MM_33() -> None:
    session = server_with("json;pub-sub;" + BATCH + "3")
    places: list[int] = []

    def figures() -> dict[str, Any]:
        names = ("in_flight", "room", "deadline", "held", "finished", "whole", "state")
        return {**asdict(session.counters), **{name: getattr(session, name) for name in names}}

    def read(octets: bytes, now: float) -> None:
        events = receive(session, octets, now)
        places.extend(event.place for event in events if isinstance(event, MessagesReceived))

    changed = Figures(figures)
    half = message(3, b"3")
    steps: list[tuple[Callable[[], object], dict[str, Any], int]] = [
        (lambda: read(messages(1, 2, b"1"), 1.0), {"received": 2}, 0),
        (lambda: read(half[:-1], 2.0), {"held": 15, "whole": False, "deadline": 122.0}, 0),
        (lambda: read(half[-1:], 3.0), {"received": 3, "held": 0, "whole": True}, 0),
        (lambda: read(message(4, b"4"), 4.0), {"received": 4, "over_window": 1}, 0),
        (lambda: session.made_safe(places[0], 5.0), {"deadline": 5.5}, 0),
        (lambda: session.made_safe(places[1], 5.4), {"acks": 1, "deadline": 122.0}, 5),
        (lambda: read(message(1, b"1"), 6.0), {"repeats": 1, "acks": 2}, 5),
        (lambda: read(message(5, b"{"), 7.0), {"received": 5, "bad_payloads": 1}, 103),
        (lambda: read(message(6, b"6", properties=b"k:v;"), 8.0), {"received": 6, "untyped": 1}, 0),
        # of a payload in numbered parts both are over the window, and it is one payload
        (lambda: read(parts((7, b"1"), (8, b"2")), 9.0), {"received": 7, "over_window": 3}, 0),
        (
            lambda: read(parts((9, b"1"), (9, b"{")), 9.0),
            {"received": 8, "over_window": 4, "bad_payloads": 2},
            64,
        ),
        (
            lambda: read(parts((10, b"{"), (11, b"1")), 9.0),
            {"received": 9, "over_window": 6, "bad_payloads": 3},
            104,
        ),
        (lambda: session.refuse(6, "why"), {"refused": 1}, 17),
        (lambda: session.made_safe(places[2], 10.0), {"deadline": 10.5}, 0),
        (lambda: session.made_safe(places[3], 10.0), {"acks": 3, "deadline": 122.0}, 5),
        (lambda: session.advance(20.0), {}, 0),
        (lambda: read(ack(9, 3), 21.0), {"stray_acks": 1}, 0),
        (lambda: read(encode_extension(1, b"x"), 22.0), {"ignored_frames": 1}, 0),
        (lambda: read(encode_command("nonsense", {}), 23.0), {"unknown_commands": 1}, 27),
        (lambda: read(encode_command("subscribe", {"destination": "a"}), 23.0), {}, 0),
        (lambda: read(encode_error("x: y"), 24.0), {"errors": 1}, 0),
        (lambda: session.send("a", b"1"), {"sent": 1, "in_flight": 1, "room": 2}, 9),
        (lambda: session.send("a", b"2"), {"sent": 2, "in_flight": 2, "room": 1}, 9),
        (lambda: read(ack(1, 3), 25.0), {"acknowledged": 1, "in_flight": 1, "room": 2}, 0),
    ]
    told: list[tuple[int, dict[str, Any], int]] = []
    for number, (step, _, _) in enumerate(steps):
        told.append((number, changed(step()), len(session.outputs())))
    assert told == [(n, expected, octets) for n, (_, expected, octets) in enumerate(steps)]


PROPERTIES = b"a:S1;"
SIZED = {
    "properties-octets": (len(PROPERTIES), message(1, b"x", properties=PROPERTIES)),
    "frame-payload-octets": (300, message(1, b"x" * 300)),
    "command-octets": (13, encode_command("subscribe", {"a": "b"})),
}
"""Limit → the least with which this frame is read."""


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("before", [b"", message(1, b"y", "other")])
def test_a_frame_at_its_limit_is_read_as_it_is_and_one_octet_more_is_a_fault__MM_32(
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


def test_bodies_in_parts_share_the_work_of_a_call__MM_28__NB_07() -> None:
    """Each is judged by itself, and costs 40 steps."""
    good = (b'"' + b"x" * 480, b"x" * 480 + b'"')
    for count in (400, 401):
        session = server_with("json;" + BATCH + "999")
        numbers = range(1, 1 + count)
        octets = b"".join(parts((number, good[0]), (number, good[1])) for number in numbers)
        assert len(bodies(receive(session, octets))) == 400
        assert session.unfinished == (count > 400)
        assert len(bodies(receive(session, b""))) == count - 400
        assert not session.unfinished
