"""What a machine of sABC counts and shows after each step; parts, frames and time at borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.figures import Figures
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc.machine import Client, Server
from twisted_msgproto.sabc.terms.events import MessagesReceived
from twisted_msgproto.sabc.wire import (
    Bounds,
    Connect,
    Connected,
    Disconnect,
    Error,
    Message,
    encode,
)
from twisted_msgproto.sabc.wire.framing import Decoder, FrameClosed, FrameOpened

from .sides import NOW, NUDGE, SESSION, codes, limits, msg, open_client, open_server, sent
from .vectors import Read, decode


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
        (lambda: read(whole[:30], 4), {"held": 104}, 0),
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


# ── framing ─────────────────────────────────────────────────────────────────────────────────────

SMALL = Bounds(line_octets=60, header_lines=6, block_octets=120)


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("step", [1, 7, 50])
def test_the_next_frame_is_found_behind_a_body_that_is_handed_out_meanwhile__SA_26(
    step: int, lenient: bool
) -> None:
    """What is no frame of this session looks like one, and only its end tells."""
    line = f"session-id::{SESSION}\r\n".encode()
    no_frame = b"\r\nMESSAGE\r\n" + line + b"no header\r\n\r\n"
    first = msg(b"x" * 300 + no_frame + b"y" * 300, final=False, msg_id="1", msg_more="yes")
    octets = first + msg(b"z" * 10, msg_id="1")
    chunks = [octets[at : at + step] for at in range(0, len(octets), step)]
    for part_octets in (1, 8, 64):
        whole, cut = (
            decode(
                pieces,
                decoder=Decoder(SMALL, part_octets=part_octets, lenient=lenient),
            )
            for pieces in ([octets], chunks)
        )
        assert whole == cut
        assert [one.body for one in whole if isinstance(one, Read)] == [
            b"x" * 300 + no_frame + b"y" * 300, b"z" * 10
        ]  # fmt: skip


def test_a_decoder_holds_nothing_after_a_fault__NB_02() -> None:
    decoder = Decoder(SMALL)
    decoder.session_id = SESSION
    decoder.feed(msg(b"a", msg_id="1") + b"NONSENSE\r\n\r\n")
    assert isinstance(decoder.next(), Message)
    assert decoder.held == 12
    fault = decoder.next()
    assert isinstance(fault, Fault)
    assert " " not in fault.reason
    assert len(fault.text.split()) > 1
    assert (decoder.held, decoder.next()) == (0, None)
    decoder.feed(msg(b"b", msg_id="2"))
    assert decoder.next() is None


def test_the_smallest_pieces_are_handed_out_one_by_one__SA_18() -> None:
    decoder = Decoder(part_octets=1)
    octets = msg(b"abcdefgh", msg_id="1")
    bodies = []
    for place in range(len(octets) - 5):
        decoder.feed(octets[place : place + 1])
        while (piece := decoder.next()) is not None:
            bodies.append(getattr(piece, "octets", None))
    assert bodies == [None, b"a", b"b", b"c", b"d"]


def of_a_session() -> Decoder:
    decoder = Decoder(SMALL)
    decoder.session_id = SESSION
    return decoder


def test_a_body_that_ends_where_it_begins_is_not_that_of_the_next_frame__SA_21__SA_26() -> None:
    decoder = of_a_session()
    first, second = msg(b"", msg_id="1", msg_more="yes"), msg(b"b", msg_id="2")
    decoder.feed(first[: first.index(b"\r\n\r\n") + 4])
    assert isinstance(decoder.next(), FrameOpened)
    decoder.feed(b"\r\n\r\n\0" + second)
    closed, after = decoder.next(), decoder.next()
    assert closed == FrameClosed(True, 5)
    assert isinstance(after, Message)
    assert after.body == b"b"


def test_a_frame_is_found_whose_longest_header_comes_octet_by_octet__SA_26__SA_27() -> None:
    first = msg(b"x" * 10, final=False, msg_id="1", msg_more="yes")
    second = msg(b"z" * 10, msg_id="1", a="y" * (60 - len("a::")))
    octets = first + second
    for step in (1, len(octets)):
        chunks = [octets[at : at + step] for at in range(0, len(octets), step)]
        got = decode(chunks, decoder=of_a_session())
        assert [one.body for one in got if isinstance(one, Read)] == [b"x" * 10, b"z" * 10]


def test_a_frame_is_found_behind_headers_that_look_like_those_of_another__SA_26() -> None:
    """All of them together would be more than a block may have."""
    before = f"session-id::{SESSION}\r\nh::{'y' * 50}\r\na::b".encode()
    first = msg(b"x\r\n" + before, final=False, msg_id="1", msg_more="yes")
    got = decode([first + msg(b"z", msg_id="1")], decoder=of_a_session())
    assert [one.body for one in got if isinstance(one, Read)] == [b"x\r\n" + before, b"z"]


def test_an_end_behind_frames_that_were_read_together_is_not_that_of_a_command__SA_26() -> None:
    decoder = of_a_session()
    decoder.feed(f"DISCONNECT\r\nsession-id::{SESSION}\r\n\r\n".encode())
    assert isinstance(decoder.next(), Disconnect)
    prefix = f"MESSAGE\r\nsession-id::{SESSION}\r\nmsg-id::".encode()
    decoder.feed(msg(b"a", msg_id="1") + msg(b"b", msg_id="2"))
    read = decoder.plain(prefix, 1 << 16, {}, 10)
    assert read is not None
    assert read[:2] == (["1", "2"], [b"a", b"b"])
    decoder.feed(b"\0" + msg(b"c", msg_id="3"))
    assert isinstance(decoder.next(), Fault)


def test_a_decoder_at_its_end_keeps_no_headers__NB_02() -> None:
    decoder = of_a_session()
    decoder.feed(b"MESSAGE\r\na::b\r\nc::")
    assert decoder.next() is None
    assert decoder._headers == {"a": "b"}
    decoder.end()
    assert (decoder._headers, decoder.held, decoder.weight) == ({}, 0, 0)


def test_line_ends_may_stand_behind_frames_that_were_read_together__SA_26() -> None:
    decoder = of_a_session()
    decoder.feed(msg(b"a", msg_id="1") + msg(b"b", msg_id="2"))
    prefix = f"MESSAGE\r\nsession-id::{SESSION}\r\nmsg-id::".encode()
    assert decoder.plain(prefix, 1 << 16, {}, 10) is not None
    decoder.feed(b"\r\n\r\n" + msg(b"c", msg_id="3"))
    after = decoder.next()
    assert isinstance(after, Message)
    assert after.body == b"c"


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
        assert [len(one.body) for one in sent(side) if isinstance(one, Read)] == parts
    side = open_client(limits=limits(part_octets=10), lengths=lengths)
    side.request(b"x" * size, 1, NOW)
    assert [len(one.body) for one in sent(side) if isinstance(one, Read)] == parts


# ── what else a side knows ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("date", "odd"), [(None, 0), ("Thu, 01 Jan 2026 00:00:00 GMT", 0), ("soon", 1)]
)
def test_only_a_date_that_is_none_is_counted__SA_11(date: str | None, odd: int) -> None:
    client = Client()
    client.connect("me", now=NOW)
    expiry = {} if date is None else {"session-expiry": date}
    client.receive(encode(Connected({"session-id": SESSION, **expiry})), NOW)
    assert client.counters.odd_expiries == odd
    assert (client.expires is None) == (date is None or odd == 1)


@pytest.mark.parametrize("how", ["made_safe", "not_safe", "forbid"])
def test_send_only_messages_are_in_work_until_the_sink_or_a_rule_has_answered__SA_12(
    how: str,
) -> None:
    server = open_server(unhooked=("send-only",))
    octets = b"".join(msg(b"x", msg_id=id, send_only="yes") for id in "ab")
    (event,) = server.receive(octets, NOW)
    assert isinstance(event, MessagesReceived)
    assert server._unsettled == 2
    server.drain(NOW)
    assert not server.closed
    if how == "forbid":
        server.forbid(event.place, "no")
        assert codes(server)[:2] == ["403", "403"]
    else:
        getattr(server, how)(event.place, NOW)
    assert (server._unsettled, server.closed) == (0, True)


def test_many_answers_need_as_many_bodies__SA_16() -> None:
    for bodies in ([b"1"], [b"1", b"2", b"3"]):
        server = open_server()
        server.receive(msg(b"x", msg_id="a") + msg(b"x", msg_id="b"), NOW)
        with pytest.raises(ValueError, match="zip"):
            server.answer_all(["a", "b"], bodies)


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
        assert isinstance(event, MessagesReceived)
        weights = []
        for frame in frames:
            (alone,) = single.receive([frame] if framed else frame, NOW)
            assert isinstance(alone, MessagesReceived)
            weights.append(alone.weight)
        assert event.weight == sum(weights)


def test_a_log_in_has_its_time_from_when_it_was_asked_for__SA_27() -> None:
    server = Server(limits=limits(connect_seconds=10))
    server.connection_made(NOW)
    server.receive(encode(Connect({"client-id": "me"})), NOW + 9)
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
