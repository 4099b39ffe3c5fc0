"""What a machine of sABC counts and shows after each step; parts, frames and time at borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.figures import Figures
from twisted_msgproto.sabc import Server

from .sides import NOW, NUDGE, SESSION, codes, limits, msg, names, open_client, open_server, sent
from .vectors import frame


def test_a_side_counts_and_shows_each_step__SA_14__SA_16__SA_18__SA_22__SA_27() -> None:
    changes = {"message_octets": 400, "unfinished_messages": 1, "outstanding_requests": 3}
    side = open_server(limits=limits(**changes))

    def figures() -> dict[str, Any]:
        own = {name: getattr(side, name) for name in ("whole", "room", "closed")}
        deadline = None if side.deadline is None else side.deadline - NOW
        return {**side.counters.as_dict(), **side.snapshot(), **own, "deadline": deadline}

    assert figures() == {
        **dict.fromkeys(side.counters.as_dict(), 0),
        **dict.fromkeys(("unanswered", "outstanding", "unfinished"), 0),
        **{"state": "OPEN", "framing": "mark", "expires": None, "deadline": None},
        **{"whole": True, "closed": False, "room": 3},
    }
    changed = Figures(figures)

    def read(octets: bytes, seconds: float) -> None:
        side.receive(octets, NOW + seconds)

    def part(id: str) -> bytes:
        return msg(b"1", final=False, msg_id=id, msg_more="yes") + NUDGE

    whole = msg(b"1", msg_id="e")
    failure = frame("ERROR", {"session-id": SESSION, "ref-msg-id": "2"}, b"no")
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
            {"send_only": 1},
            0,
        ),
        (lambda: side.settle(1), {}, 0),
        (
            lambda: read(part("p"), 3),
            {"errors_received": 1, "unfinished": 1, "whole": False, "deadline": 63.0},
            0,
        ),
        (
            lambda: read(part("q"), 3),
            {"errors_received": 2, "errors_sent": 2, "refused_frames": 2, "unfinished": 2},
            113,
        ),
        (lambda: read(whole[:30], 4), {}, 0),
        (lambda: read(whole[30:], 5), {"requests": 4, "unanswered": 2}, 0),
        (
            lambda: read(msg(b"1", msg_id="p"), 6),
            {"requests": 5, "unanswered": 3, "unfinished": 1},
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
        (lambda: read(part("r"), 11), {"errors_received": 4, "unfinished": 2}, 0),
        (lambda: side.advance(NOW + 40), {"deadline": 63.0}, 0),
        (
            lambda: side.advance(NOW + 71),
            {
                **{"errors_sent": 6, "abandoned_messages": 1, "unfinished": 1},
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


# ── messages that go out in parts ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (1, [1]), (10, [10]), (11, [11]), (13, [13]), (14, [10, 4]), (20, [10, 10]),
        (23, [10, 13]), (24, [10, 10, 4]), (40, [10, 10, 10, 10]), (43, [10, 10, 10, 13]),
    ],
)  # fmt: skip
def test_parts_have_their_size_and_the_last_one_up_to_three_octets_more__SA_18__SA_21(
    size: int, parts: list[int], lengths: bool
) -> None:
    """Nothing else decides: neither how the body comes, nor which verb sends it."""
    for pieces in ([size], [1] * size, [size // 2, size - size // 2]):
        side = open_client(limits=limits(part_octets=10), lengths=lengths)
        outgoing = side.open_message("w", NOW)
        for piece in pieces:
            outgoing.write(b"x" * piece)
        outgoing.finish()
        assert [len(one.body) for one in sent(side)] == parts
    side = open_client(limits=limits(part_octets=10), lengths=lengths)
    side.request(b"x" * size, 1, NOW)
    assert [len(one.body) for one in sent(side)] == parts


# ── what else a side knows ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["made_safe", "not_safe", "forbid"])
def test_send_only_messages_are_in_work_until_the_sink_or_a_rule_has_answered__SA_12(
    how: str,
) -> None:
    server = open_server(unhooked=("send-only",))
    octets = b"".join(msg(b"x", msg_id=id, send_only="yes") for id in "ab")
    (event,) = server.receive(octets, NOW)
    assert names([event]) == ["MessagesReceived"]
    server.drain(NOW)
    assert not server.closed
    if how == "forbid":
        server.forbid(event.place, "no")
        assert codes(server)[:2] == ["403", "403"]
    else:
        getattr(server, how)(event.place, NOW)
    assert server.closed


def waiting(seconds: float) -> Server:
    """A server with a message of which a part has come, at ``NOW + seconds``."""
    server = open_server()
    server.receive(msg(b"1", final=False, msg_id="p", msg_more="yes") + NUDGE, NOW + seconds)
    return server


def test_after_a_pause_a_message_has_all_its_time__SA_27() -> None:
    """Not only the deadline: what came before the pause does not count when it comes."""
    server = waiting(0)
    server.paused(NOW + 10)
    server.resumed(NOW + 100)
    for seconds, events in ((101, 0), (159, 0), (160, 1)):
        assert len(server.advance(NOW + seconds)) == events, seconds


def test_a_part_without_octets_keeps_its_message__SA_27() -> None:
    server = waiting(0)
    server.receive(msg(b"", final=False, msg_id="p", msg_more="yes") + NUDGE, NOW + 50)
    for seconds, events in ((60, 0), (109, 0), (110, 1)):
        assert len(server.advance(NOW + seconds)) == events, seconds


def test_octets_of_a_body_keep_its_message__SA_27() -> None:
    server = open_server(limits=limits(message_octets=1600))
    octets = msg(b"x" * 600, msg_id="e")
    server.receive(octets[:300], NOW)
    server.receive(octets[300:600], NOW + 50)
    for seconds, events in ((60, 0), (109, 0), (110, 1)):
        assert len(server.advance(NOW + seconds)) == events, seconds


def test_requests_of_one_read_weigh_as_much_as_one_by_one__NB_02() -> None:
    frames = [msg(b"x" * size, msg_id=f"\u4e00{size}") for size in (1, 20, 300)]
    for framed in (False, True):
        together, single = open_server(framed=framed), open_server(framed=framed)
        (event,) = together.receive(frames if framed else b"".join(frames), NOW)
        assert names([event]) == ["MessagesReceived"]
        weights = []
        for one in frames:
            (alone,) = single.receive([one] if framed else one, NOW)
            assert names([alone]) == ["MessagesReceived"]
            weights.append(alone.weight)
        assert event.weight == sum(weights)


def test_a_log_in_has_its_time_from_when_it_was_asked_for__SA_27() -> None:
    server = Server(limits=limits(connect_seconds=10))
    server.connection_made(NOW)
    server.receive(frame("CONNECT", {"client-id": "me"}), NOW + 9)
    assert server.deadline == NOW + 19
    assert server.advance(NOW + 18) == []
    assert server.advance(NOW + 19) != []


def test_what_was_given_up_is_forgotten_although_another_message_is_coming__SA_27() -> None:
    server = waiting(0)
    assert len(server.advance(NOW + 60)) == 1
    server.receive(msg(b"x" * 200, msg_id="e")[:-100], NOW + 100)
    assert server.snapshot()["unfinished"] == 1
    assert server.advance(NOW + 120) == []
    assert server.snapshot()["unfinished"] == 0
    assert len(server.advance(NOW + 160)) == 1  # the other one
    assert not server.whole
    server.receive(msg(b"x" * 200, msg_id="e")[-100:], NOW + 161)
    assert (server.counters.requests, server.whole) == (0, True)
