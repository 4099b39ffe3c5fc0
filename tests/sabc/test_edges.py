"""What a machine counts and shows after each step, and what seldom happens to one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.doubles import Figures
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.sabc.machine import Server

from .sides import (
    NOW,
    NUDGE,
    SESSION,
    SMALL,
    client_in,
    codes,
    cut,
    errors,
    flat,
    frame,
    limits,
    msg,
    names,
    open_client,
    open_server,
    part,
    requests,
    sent,
    server_in,
    state_of,
)


def test_a_side_counts_and_shows_each_step__SA_14__SA_16__SA_18__SA_22__SA_27() -> None:
    changes = {"message_bytes": 400, "unfinished_messages": 1, "outstanding_requests": 3}
    side = open_server(limits=limits(**changes))

    def figures() -> dict[str, Any]:
        own = {name: getattr(side, name) for name in ("no_partial_input", "room", "closed")}
        deadline = None if side.deadline is None else side.deadline - NOW
        return {**asdict(side.counters), **side.snapshot(), **own, "deadline": deadline}

    assert figures() == {
        **dict.fromkeys(asdict(side.counters), 0),
        **dict.fromkeys(("unanswered", "outstanding", "unfinished"), 0),
        **{"state": "OPEN", "framing": "mark", "expires": None, "deadline": None},
        **{"no_partial_input": True, "closed": False, "room": 3},
    }
    changed = Figures(figures)

    def read(nbytes: bytes, seconds: float) -> None:
        side.receive(nbytes, NOW + seconds)

    def part(id: str) -> bytes:
        return msg(b"1", final=False, msg_id=id, msg_more="yes") + NUDGE

    whole = msg(b"1", msg_id="e")
    failure = frame("ERROR", {"session-id": SESSION, "ref-msg-id": "2"}, b"no")
    steps: list[tuple[Callable[[], object], str]] = [
        (lambda: read(msg(b"1", msg_id="a"), 1), "requests=1 unanswered=1"),
        (
            lambda: read(msg(b"1", msg_id="b") + msg(b"1", msg_id="c", x="y"), 1),
            "requests=3 unanswered=3",
        ),
        (lambda: read(msg(b"1", msg_id="d"), 1), "errors_sent=1 refused_frames=1"),
        (lambda: side.answer("a", b"ok"), "unanswered=2"),
        (lambda: side.acknowledge(["b"]), "unanswered=1"),
        (lambda: read(msg(b"1", msg_id="s", send_only="yes"), 2), "send_only=1"),
        (lambda: side.settle(1), ""),
        (
            lambda: read(part("p"), 3),
            "errors_received=1 unfinished=1 no_partial_input=False deadline=63.0",
        ),
        (lambda: read(part("q"), 3), "errors_received=2 errors_sent=2 refused_frames=2"),
        (lambda: read(whole[:30], 4), ""),
        (lambda: read(whole[30:], 5), "requests=4 unanswered=2"),
        (
            lambda: read(msg(b"1", msg_id="p"), 6),
            "requests=5 unanswered=3 unfinished=0 no_partial_input=True",
        ),
        (
            lambda: read(msg(b"1" * 500, msg_id="l"), 7),
            "errors_sent=3 refused_frames=3 truncated_messages=1",
        ),
        (lambda: side.fail("c", 500, "no"), "errors_sent=4 unanswered=2"),
        (
            lambda: read(msg(b"1" * 500, msg_id="l"), 7),
            "requests=6 truncated_messages=2 unanswered=3",
        ),
        (lambda: read(msg(b"1", ref_msg_id="zz"), 8), "unknown_responses=1"),
        (lambda: read(msg(b"1"), 8), "errors_sent=5 refused_frames=4"),
        (lambda: side.request(b"x", 1, NOW + 9), "outstanding=1 room=2"),
        (lambda: side.request(b"x", 2, NOW + 9, seconds=5), "outstanding=2 room=1 deadline=14.0"),
        (lambda: read(msg(b"1", ref_msg_id="1"), 10), "responses=1 outstanding=1 room=2"),
        (lambda: read(failure, 10), "errors_received=3 outstanding=0 room=3"),
        (lambda: read(part("r"), 11), "errors_received=4 unfinished=1 no_partial_input=False"),
        (lambda: side.advance(NOW + 40), "deadline=63.0"),
        (
            lambda: side.advance(NOW + 71),
            "errors_sent=6 abandoned_messages=1 unfinished=0 no_partial_input=True deadline=None",
        ),
        (lambda: side.advance(NOW + 131), ""),
        (lambda: side.drain(NOW + 201), "state=DRAINING deadline=231.0"),
        (lambda: side.lost(NOW + 202), "state=CLOSED unanswered=0 deadline=None closed=True"),
    ]
    for number, (step, expected) in enumerate(steps):
        told = {f"{name}={value}" for name, value in changed(step()).items()}
        assert told == {*expected.split()}, f"step {number}"


# ── messages that go out in parts ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (1, [1]), (10, [10]), (11, [11]), (13, [13]), (14, [10, 4]), (20, [10, 10]),
        (23, [10, 13]), (24, [10, 10, 4]), (40, [10, 10, 10, 10]), (43, [10, 10, 10, 13]),
    ],
)  # fmt: skip
def test_parts_have_their_size_and_the_last_one_up_to_three_bytes_more__SA_18__SA_21(
    size: int, parts: list[int], lengths: bool
) -> None:
    """Nothing else decides: neither how the body comes, nor which verb sends it."""
    for pieces in ([size], [1] * size, [size // 2, size - size // 2]):
        side = open_client(limits=limits(part_bytes=10), lengths=lengths)
        outgoing = side.open_message("w", NOW)
        for piece in pieces:
            outgoing.write(b"x" * piece)
        outgoing.finish()
        assert [len(one.body) for one in sent(side)] == parts
    side = open_client(limits=limits(part_bytes=10), lengths=lengths)
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
        server.forbid(event.position, "no")
        assert codes(server)[:2] == ["403", "403"]
    else:
        getattr(server, how)(event.position, NOW)
    assert server.closed


def waiting(seconds: float) -> Server:
    """A server with a message of which a part has come, at ``NOW + seconds``."""
    server = open_server(limits=limits(message_bytes=1600))
    server.receive(msg(b"1", final=False, msg_id="p", msg_more="yes") + NUDGE, NOW + seconds)
    return server


def pause(server: Server) -> None:
    server.paused(NOW + 10)
    server.resumed(NOW + 50)


HEARD: dict[str, Callable[[Server], object]] = {
    "it is read again": pause,
    "a part without bytes": lambda server: server.receive(
        msg(b"", final=False, msg_id="p", msg_more="yes") + NUDGE, NOW + 50
    ),
    "bytes of a part": lambda server: [
        server.receive(some, NOW + seconds)
        for some, seconds in zip(cut(msg(b"x" * 600, msg_id="p")[:-5], 300), (0, 50), strict=True)
    ],
}


@pytest.mark.parametrize("what", HEARD)
def test_a_message_has_all_its_time_from_when_it_was_heard_of_last__SA_27(what: str) -> None:
    server = waiting(0)
    HEARD[what](server)
    for seconds, events in ((60, 0), (109, 0), (110, 1)):
        assert len(server.advance(NOW + seconds)) == events, seconds


def test_each_message_that_is_not_whole_has_its_own_time__SA_27() -> None:
    server = waiting(0)
    server.receive(part(b"", msg_id="q") + NUDGE, NOW)
    server.receive(part(b"", msg_id="p") + NUDGE, NOW + 50)
    for seconds, told in ((60, ["q"]), (109, []), (110, ["p"])):
        assert [event.id for event in server.advance(NOW + seconds)] == told


def test_what_was_given_up_counts_no_more_although_another_message_is_coming__SA_27() -> None:
    server = waiting(0)
    assert len(server.advance(NOW + 60)) == 1
    server.receive(msg(b"x" * 200, msg_id="e")[:-100], NOW + 100)
    assert server.advance(NOW + 120) == []
    assert server.snapshot()["unfinished"] == 0
    assert len(server.advance(NOW + 160)) == 1  # the other one
    assert not server.no_partial_input
    server.receive(msg(b"x" * 200, msg_id="e")[-100:], NOW + 161)
    assert (server.counters.requests, server.no_partial_input) == (0, True)


def positions(events: list[Any]) -> list[int]:
    return [event.position for event in events]


def test_what_is_forbidden_or_lost_after_the_end_is_said_to_nobody() -> None:
    server = open_server()
    first, second = positions(server.receive(msg(b"a", msg_id="1"), NOW)) + positions(
        server.receive(msg(b"b", msg_id="2"), NOW)
    )
    server.lost(0.0)
    server.outputs()
    server.forbid(first, "not here")
    server.not_safe(second, NOW)
    assert server.outputs() == b""


def test_messages_behind_the_one_that_ends_a_session_are_not_read__SA_25() -> None:
    server = open_server(framed=True, limits=SMALL)
    large, next_one = msg(b"x" * 700, msg_id="1"), msg(b"y", msg_id="2")
    events = flat(server.receive([large, next_one], NOW))
    assert [type(event) for event in events] == [Fault]
    assert server.receive([next_one], NOW) == server.oversized() == []


def test_a_client_whose_server_says_no_more_is_at_its_end() -> None:
    for state in ("WAITING", "OPEN", "DRAINING"):
        client = client_in(state)
        assert client.ended(NOW) == []
        assert client.finished, state


@pytest.mark.parametrize("framed", [False, True])
def test_a_plain_request_is_refused_while_the_server_drains__SA_12(framed: bool) -> None:
    server = open_server(framed=framed)
    for number in "12":
        octets = msg(b"x", msg_id=number)
        events = server.receive([octets] if framed else octets, NOW)
        server.drain(NOW)
    assert names(events) == ["FrameRefused"]
    said = server.outputs()
    assert b"error-code::503" in (b"".join(said) if framed else said)


def test_a_part_is_sent_as_soon_as_it_is_known_that_the_next_may_begin__SA_21() -> None:
    client = open_client(limits=limits(part_bytes=4))
    client.open_message("w", NOW).write(b"abcd\0xyz")
    assert client.outputs().endswith(b"\r\n\r\nabcd\0")


def test_the_end_of_a_frame_counts_for_twice_the_limit_too__SA_22() -> None:
    for octets, state in ((600, "OPEN"), (601, "CLOSED")):  # 300 is the limit
        server = open_server(limits=SMALL)
        bytes_of_it = msg(b"x" * (octets - len(msg(b"x", msg_id="1")) + 1), msg_id="1")
        assert len(bytes_of_it) == octets
        assert server.receive(bytes_of_it[:-5], NOW) == []
        assert server.receive(bytes_of_it[-5:], NOW) != []
        assert state_of(server) == state


def test_a_part_does_not_end_in_what_would_pass_for_a_head_with_the_next__SA_26() -> None:
    body = b"\r\nMESSAGE\r\na::b\n" + b"c" * 20
    client, server = open_client(limits=limits(part_bytes=14)), open_server()
    outgoing = client.open_message("w", NOW)
    outgoing.write(body)
    outgoing.finish()
    assert [row[1] for row in requests(server.receive(client.outputs(), NOW))] == [body]


@pytest.mark.parametrize(("framed", "first"), [(False, 15), (True, 14)])
def test_a_part_is_no_longer_than_need_be__SA_26(framed: bool, first: int) -> None:
    """What would pass for a head ends with the next byte, and with frames it does not matter."""
    client = open_client(framed=framed, limits=limits(part_bytes=14))
    outgoing = client.open_message("w", NOW)
    outgoing.write(b"\r\nMESSAGE\r\na::\n" + b"c" * 20)
    outgoing.finish()
    octets = b"".join(client.outputs()) if framed else client.outputs()
    parts = bytes(octets).split(b"MESSAGE\r\nsession-id")[1:]
    assert len(parts[0].partition(b"\r\n\r\n")[2]) == first


def test_a_message_is_cut_at_the_same_byte_however_it_comes__SA_22() -> None:
    """Pieces of 18 bytes are measured, and the limit may be where one of them ends."""
    for id in ("1" * length for length in range(1, 19)):
        octets = msg(b"x" * 250, msg_id=id)
        head = octets.index(b"\r\n\r\n") + 4
        for size in (1, len(octets)):
            server, events = open_server(limits=SMALL), []
            for start in range(0, len(octets), size):
                events += server.receive(octets[start : start + size], NOW)
            assert requests(events) == [(id, b"x" * (300 - head), True)]


@pytest.mark.parametrize("answer", [False, True])
def test_whoever_sends_more_than_twice_the_limit_hears_of_which_message_it_was__SA_22(
    answer: bool,
) -> None:
    """An answer has no id of its own."""
    server = open_server(limits=SMALL)
    names = {"ref_msg_id": server.request(b"?", "w", NOW)} if answer else {"msg_id": "1"}
    server.outputs()
    server.receive(msg(b"x" * 700, **names), NOW)
    ((code, ref, _),) = errors(server)
    assert (code, ref) == ("413", None if answer else "1")


def test_a_header_that_is_too_long_is_refused_wherever_it_stands__SA_27() -> None:
    client = open_client()
    for fields in ({"a": "x" * 2000, "b": "y"}, {"a": "x", "b": "y" * 2000}):
        with pytest.raises(LimitExceeded, match="a header is above 1024 bytes"):
            client.request(b"", "waiter", NOW, headers=fields)


LAST_ANSWERS: dict[str, Callable[[Server], object]] = {
    "answer": lambda server: server.answer("work", b"done"),
    "answer_all": lambda server: server.answer_all(["work"], [b"done"]),
    "acknowledge": lambda server: server.acknowledge(["work"]),
    "fail": lambda server: server.fail("work", 500, "it cannot"),
}


@pytest.mark.parametrize("verb", LAST_ANSWERS)
def test_a_server_that_leaves_is_closed_when_its_last_request_is_answered__SA_12(verb: str) -> None:
    server = server_in("DRAINING")
    LAST_ANSWERS[verb](server)
    assert state_of(server) == "CLOSED"
    assert b"DISCONNECTING" in server.outputs()


@pytest.mark.parametrize("verb", ["abort", "finish"])
def test_a_message_that_is_open_no_more_leaves_its_place__SA_18(verb: str) -> None:
    client = open_client(limits=limits(outstanding_requests=5))
    for _ in range(20):
        outgoing = client.open_message(None, NOW)
        getattr(outgoing, verb)()


def test_a_connection_that_is_lost_keeps_nothing_and_says_nothing_more__NB_02() -> None:
    server = open_server(limits=limits(message_bytes=1600))
    server.receive(part(b"begun", msg_id="0") + msg(b"x" * 1000, msg_id="1")[:-5], NOW)
    server.request(b"x", "waiter", NOW)
    assert server.input_weight > 1000
    server.lost(NOW)
    assert (server.outputs(), server.deadline, server.input_weight) == (b"", None, 0)
    assert server.no_partial_input
    assert server.snapshot()["unfinished"] == 0
