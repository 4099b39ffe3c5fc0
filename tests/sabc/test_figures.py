"""What a machine of sABC counts and shows after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.tools.figures import Figures
from twisted_msgproto.sabc.wire import Error, encode

from .sides import NOW, NUDGE, SESSION, limits, msg, open_server


def test_a_side_counts_and_shows_each_step__SA_14__SA_16__SA_18__SA_22__SA_27() -> None:
    changes = {"message_octets": 400, "unfinished_messages": 1, "outstanding_requests": 3}
    side = open_server(limits=limits(**changes))

    def figures() -> dict[str, Any]:
        names = ("held", "whole", "room", "_unsettled", "closed")
        own = {name: getattr(side, name) for name in names}
        deadline = None if side.deadline is None else side.deadline - NOW
        return {**side.counters.as_dict(), **side.snapshot(), **own, "deadline": deadline}

    assert figures() == {
        **dict.fromkeys(side.counters.as_dict(), 0),
        **dict.fromkeys(("unanswered", "outstanding", "unfinished", "held", "_unsettled"), 0),
        **{"state": "OPEN", "framing": "mark", "expires": None, "deadline": None},
        **{"whole": True, "closed": False, "room": 3},
    }
    changed = Figures(figures)

    def read(octets: bytes, seconds: float) -> None:
        side.receive(octets, NOW + seconds)

    def part(id: str) -> bytes:
        return msg(b"1", final=False, msg_id=id, msg_more="yes") + NUDGE

    whole = msg(b"1", msg_id="e")
    failure = encode(Error({"session-id": SESSION, "ref-msg-id": "2"}, b"no"))
    steps: list[tuple[Callable[[], object], dict[str, Any], int]] = [
        (lambda: read(msg(b"1", msg_id="a"), 1), {"requests": 1, "unanswered": 1}, 0),
        (
            lambda: read(msg(b"1", msg_id="b") + msg(b"1", msg_id="c", x="y"), 1),
            {"requests": 3, "unanswered": 3},
            0,
        ),
        (
            lambda: read(msg(b"1", msg_id="d"), 1),
            {"errors_sent": 1, "refused_frames": 1},
            113,
        ),
        (lambda: side.answer("a", b"ok"), {"unanswered": 2}, 69),
        (lambda: side.acknowledge(["b"]), {"unanswered": 1}, 63),
        (
            lambda: read(msg(b"1", msg_id="s", send_only="yes"), 2),
            {"send_only": 1, "_unsettled": 1},
            0,
        ),
        (lambda: side.settle(1), {"_unsettled": 0}, 0),
        (
            lambda: read(part("p"), 3),
            {"errors_received": 1, "unfinished": 1, "held": 74, "whole": False, "deadline": 63.0},
            0,
        ),
        (
            lambda: read(part("q"), 3),
            {"errors_received": 2, "errors_sent": 2, "refused_frames": 2, "unfinished": 2},
            113,
        ),
        (lambda: read(whole[:30], 4), {"held": 95}, 0),
        (lambda: read(whole[30:], 5), {"requests": 4, "unanswered": 2, "held": 74}, 0),
        (
            lambda: read(msg(b"1", msg_id="p"), 6),
            {"requests": 5, "unanswered": 3, "unfinished": 1, "held": 0},
            0,
        ),
        (
            lambda: read(msg(b"1" * 500, msg_id="l"), 7),
            {"errors_sent": 3, "refused_frames": 3, "truncated_messages": 1},
            113,
        ),
        (lambda: side.fail("c", 500, "no"), {"errors_sent": 4, "unanswered": 2}, 84),
        (
            lambda: read(msg(b"1" * 500, msg_id="l"), 7),
            {"requests": 6, "truncated_messages": 2, "unanswered": 3},
            0,
        ),
        (lambda: read(msg(b"1", ref_msg_id="zz"), 8), {"unknown_responses": 1}, 0),
        (lambda: read(msg(b"1"), 8), {"errors_sent": 5, "refused_frames": 4}, 96),
        (lambda: side.request(b"x", 1, NOW + 9), {"outstanding": 1, "room": 2}, 64),
        (
            lambda: side.request(b"x", 2, NOW + 9, seconds=5),
            {"outstanding": 2, "room": 1, "deadline": 14.0},
            64,
        ),
        (
            lambda: read(msg(b"1", ref_msg_id="1"), 10),
            {"responses": 1, "outstanding": 1, "room": 2},
            0,
        ),
        (lambda: read(failure, 10), {"errors_received": 3, "outstanding": 0, "room": 3}, 0),
        (lambda: read(part("r"), 11), {"errors_received": 4, "unfinished": 2, "held": 74}, 0),
        (lambda: side.advance(NOW + 40), {"deadline": 63.0}, 0),
        (
            lambda: side.advance(NOW + 71),
            {
                **{"errors_sent": 6, "abandoned_messages": 1, "unfinished": 1, "held": 0},
                "deadline": 131.0,
            },
            118,
        ),
        (lambda: side.advance(NOW + 72), {}, 0),
        (
            lambda: side.advance(NOW + 131),
            {"unfinished": 0, "whole": True, "deadline": None},
            0,
        ),
        (lambda: side.drain(NOW + 201), {"state": "DRAINING", "deadline": 231.0}, 0),
        (
            lambda: side.lost(NOW + 202),
            {"state": "CLOSED", "unanswered": 0, "deadline": None, "closed": True},
            0,
        ),
    ]
    told: list[tuple[int, dict[str, Any], int]] = []
    for number, (step, _, _) in enumerate(steps):
        told.append((number, changed(step()), len(side.outputs())))
    assert told == [(n, expected, octets) for n, (_, expected, octets) in enumerate(steps)]
