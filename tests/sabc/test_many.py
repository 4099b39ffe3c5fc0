"""However octets come: in any pieces, one by one or many at once, the events are the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_msgproto.core.errors import Fault

from . import vectors
from .sides import (
    NOW,
    SMALL,
    codes,
    flat,
    limits,
    msg,
    open_client,
    open_server,
    part,
    requests,
    sent,
)
from .vectors import SESSION, cut, frame

# ── However it is split ─────────────────────────────────────────────────────────────────────────

ROWS = [
    vectors.HOLA,
    vectors.PART_1,
    vectors.PART_2,
    vectors.PART_3,
    vectors.SEND_ONLY,
    vectors.FORBIDDEN,
    vectors.MUNDO,
    msg(b"x" * 200, msg_id="a"),
    msg(b"x" * 400, msg_id="b"),
    part("日".encode() * 90, msg_id="c"),
    msg(b"y", msg_id="c"),
    msg(b"x", msg_id="d", client_id="x"),
    part(b"x", msg_id="e", ref_msg_id="x"),
    msg(b"x" * 590, other="1"),
    frame("MESSAGE", {"session-id": SESSION, "msg-id": "f"}, b"x" * 33, lengths=True),
    frame("MESSAGE", {"session-id": SESSION, "msg-id": "g"}, b"x" * 310, lengths=True),
    frame(
        "MESSAGE",
        {"session-id": SESSION, "msg-id": "h", "msg-more": "yes"},
        b"x" * 40,
        final=False,
        lengths=True,
    ),
    frame("MESSAGE", {"session-id": SESSION, "msg-id": "h"}, b"z" * 4, final=False, lengths=True),
    frame("ERROR", {"error-code": "5"}, b"z", lengths=True),
    vectors.DISCONNECT,
    vectors.DISCONNECTING,
    b"junk",
]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(ROWS), min_size=1, max_size=7).map(b"".join),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=3),
    st.lists(st.integers(0, 3000), max_size=4),
)
def test_the_same_octets_are_the_same_events(
    octets: bytes, lengths: bool, flips: list[tuple[int, int]], places: list[int]
) -> None:
    # SA-19, SA-20, SA-22, SA-26
    mutated = bytearray(octets)
    for place, value in flips:
        mutated[place % len(mutated)] = value
    octets = bytes(mutated)

    def run(chunks: list[bytes]) -> tuple[list[object], object, bytes]:
        server = open_server(limits=SMALL, lengths=lengths)
        events = [e for chunk in chunks for e in server.receive(chunk, NOW)]
        return flat(events), server.state, server.outputs()

    whole = run([octets])
    assert run([octets[i : i + 1] for i in range(len(octets))]) == whole
    assert run(cut(octets, *[p % len(octets) for p in places])) == whole
    faults = [event for event in whole[0] if isinstance(event, Fault)]
    assert faults == [e for e in whole[0][-1:] if isinstance(e, Fault)]


def test_frames_of_a_closed_connection_are_nothing() -> None:
    server = open_server(framed=True)
    server.stop()
    assert server.receive([vectors.HOLA], NOW) == []


def request_frame(id: str, body: bytes, lengths: bool, final: bool = True, **h: str) -> bytes:
    named = {"session-id": SESSION, "msg-id": id} | {k.replace("_", "-"): v for k, v in h.items()}
    return frame("MESSAGE", named, body, final=final, lengths=lengths)


ODD = {
    "plain": lambda n: request_frame(n, b"x" * 7, n.startswith("L")),
    "empty": lambda n: request_frame(n, b"", n.startswith("L")),
    "end mark within": lambda n: request_frame(n, b"a\r\n\r\n\0b", n.startswith("L")),
    "blank line within": lambda n: request_frame(n, b"a\r\n\r\nb", n.startswith("L")),
    "nul first": lambda n: request_frame(n, b"\0a", n.startswith("L")),
    "length line within": lambda n: request_frame(n, b"\r\ncontent-length::3", n.startswith("L")),
    "same id": lambda n: request_frame("same" + n[0], b"y", n.startswith("L")),
    "free header": lambda n: request_frame(n, b"y", n.startswith("L"), a="b"),
    "send-only": lambda n: request_frame(n, b"y", n.startswith("L"), send_only="yes"),
    "part": lambda n: request_frame(n, b"y", n.startswith("L"), False, msg_more="yes"),
    "no end": lambda n: request_frame(n, b"y", n.startswith("L"), False),
    "other session": lambda n: request_frame(n, b"y", n.startswith("L"), session_id="x"),
    "separator in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::::"
    ),
    "line end in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\n"
    ),
    "cr in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\r"
    ),
    "no utf-8": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\xff"
    ),
    "leading zero": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"length::", b"length::0"
    ),
    "a long id": lambda n: request_frame(n + "i" * 1100, b"y", n[0] == "L"),
    "above the limit": lambda n: request_frame(n, b"y" * 700, n[0] == "L"),
    "other command": lambda n: vectors.FORBIDDEN,
}


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_many_at_once_are_read_as_one_by_one(odd: str, at: int, lengths: bool) -> None:
    # SA-10, SA-15, SA-16, SA-22, SA-26, SA-27: whatever stands among plain requests
    prefix = "L" if lengths else "M"
    names = ["plain"] * 4
    names[at:at] = [odd, odd] if odd == "same id" else [odd]
    octets = b"".join(ODD[name](f"{prefix}{n}") for n, name in enumerate(names))

    def run(chunks: list[bytes]) -> tuple[list[object], bytes]:
        bound = limits(message_octets=600, outstanding_requests=5, part_octets=600)
        server = open_server(limits=bound, lengths=lengths)
        events = [e for chunk in chunks for e in server.receive(chunk, NOW)]
        return flat(events), server.outputs()

    whole = run([octets])
    assert run([octets[i : i + 1] for i in range(len(octets))]) == whole
    for place in range(0, len(octets), 11):
        assert run(cut(octets, place)) == whole


def test_many_at_once_keep_the_bounds() -> None:
    # SA-27, SA-11
    octets = b"".join(msg(b"x", msg_id=str(n)) for n in range(6))
    server = open_server(limits=limits(outstanding_requests=4))
    assert len(requests(server.receive(octets, NOW))) == 4
    assert codes(server) == ["429", "429"]
    server = open_server(expires=NOW + 1)
    assert isinstance(server.receive(octets, NOW + 1)[-1], Fault)
    assert server.unanswered == 0
    server = open_server(limits=limits(header_block_octets=511))
    assert isinstance(server.receive(octets, NOW)[-1], Fault)
    server = open_server(lenient=True)
    assert len(requests(server.receive(octets, NOW))) == 6


def test_what_is_left_of_the_branches() -> None:
    # SA-05, SA-12, SA-16, SA-18, SA-22: the ways which no story above takes
    client = open_client()
    assert isinstance(client.receive(b"HELLO\r\n", NOW)[-1], Fault)
    assert client.faulted
    assert not open_client().faulted
    # DISCONNECT with a message that is being skipped, and one that answers
    server = open_server()
    id = server.request(b"?", "w", NOW)
    server.receive(part(b"a", msg_id="1", error_code="x"), NOW)
    server.receive(part(b"a", ref_msg_id=id), NOW)
    server.receive(vectors.HOLA + vectors.DISCONNECT, NOW)
    server.outputs()
    assert flat(server.receive(msg(b"b", ref_msg_id=id), NOW))[0][4] == b"ab"
    # only cut messages to acknowledge
    server = open_server(limits=SMALL)
    server.receive(msg(b"x" * 290, msg_id="1"), NOW)
    server.acknowledge(["1"])
    (answer,) = sent(server)
    assert ("truncated", "yes") in answer.headers
    # a connection lost while a message is being written
    client = open_client()
    outgoing, other = client.open_message("w", NOW), client.open_message(None, NOW)
    outgoing.write(b"abc")
    client.stop()
    client.outputs()
    outgoing.write(b"def")
    outgoing.finish()
    other.abort()
    assert client.outputs() == b""


def test_each_answer_of_one_read_says_whether_it_was_cut() -> None:
    """SA-22"""
    client = open_client(limits=SMALL)
    ids = [client.request(b"y", b"x", NOW) for _ in range(5)]
    long, short = b"x" * 400, b"x"
    bodies = [short, long, short, long, short]
    octets = b"".join(msg(body, ref_msg_id=id) for id, body in zip(ids, bodies, strict=True))
    (event,) = client.receive(octets, NOW)
    assert event.truncated == [False, True, False, True, False]


def test_a_server_has_its_time_to_answer_what_it_owes__SA_12() -> None:
    for owed, seconds in ((1, 30.0), (0, 4.0)):
        client = open_client()
        for _ in range(owed):
            client.request(b"y", b"x", NOW)
        client.disconnect(NOW + 1)
        assert client.deadline == NOW + 1 + seconds


def test_many_answers_leave_together() -> None:
    # SA-16, SA-18, SA-21, SA-22: but for those which need more than one plain frame
    for lengths in (False, True):
        server = open_server(lengths=lengths, limits=limits(message_octets=300, part_octets=250))
        client = open_client(lengths=lengths)
        bodies = [b"a", b"", b"\0", b"x" * 400, b"b", b"cut"]
        ids = [client.request(b"y" * (290 if body == b"cut" else 1), body, NOW) for body in bodies]
        server.receive(client.outputs(), NOW)
        left = server.answer_all(ids, bodies)
        assert left == [ids[n] for n in ((1, 3, 5) if lengths else (1, 2, 3, 5))]
        for id in left:
            body = bodies[ids.index(id)]
            if lengths or body != b"\0":
                server.answer(id, body)
        events = flat(client.receive(server.outputs(), NOW))
        cut = events.pop()  # HO-01
        assert cut[:4] == ("RequestFailed", cut[1], b"cut", "truncated")
        assert client.counters.responses == len(events) + 1
        assert all(row[2] == row[4] for row in events)
        assert len(events) == (5 if lengths else 4)
        assert server.answer_all([], []) == []
        server.stop()
        assert server.answer_all(["1"], [b""]) == []
