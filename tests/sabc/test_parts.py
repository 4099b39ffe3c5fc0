"""Messages in several frames, in both directions, and their sizes (``SA-18`` … ``SA-22``)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles import due
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.sabc import ErrorReceived

from . import sides
from .sides import (
    NOW,
    NUDGE,
    SESSION,
    SMALL,
    codes,
    crlf,
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
    talk,
)

# ── Parts ───────────────────────────────────────────────────────────────────────────────────────


def test_an_error_without_end_is_discarded() -> None:
    # SA-20, SA-23
    server = open_server(framed=True)
    events = server.receive([b"ERROR\r\nmsg-more::yes\r\n\r\nx"], NOW)
    assert flat(events) == [("FrameDiscarded", None)]


def test_unfinished_messages_are_bounded() -> None:
    # SA-19, SA-27: the 17th
    server = open_server()
    octets = b"".join(part(b"a", msg_id=str(n)) for n in range(17)) + msg(b"z", msg_id="x")
    events = server.receive(octets, NOW)
    assert requests(events) == [("x", b"z", False)]
    assert [row[-1] for row in flat(events) if row[0] == "FrameRefused"] == ["16"]
    assert errors(server)[0][:2] == ("429", "16")
    # what is left of it does not pass for a message
    assert server.receive(part(b"b", msg_id="16") + msg(b"tail", msg_id="16"), NOW) == []
    for n in range(16):
        events = server.receive(msg(b"b", msg_id=str(n)), NOW)
        assert requests(events) == [(str(n), b"ab", False)]
    assert requests(server.receive(msg(b"new", msg_id="16"), NOW)) == [("16", b"new", False)]


def test_a_refused_part_spoils_its_message() -> None:
    # SA-06, SA-19: half a message is no message
    server = open_server()
    octets = (
        part(b"a", msg_id="1")
        + part(b"b", msg_id="1", client_id="x")
        + part(b"c", msg_id="1")
        + msg(b"d", msg_id="1")
        + msg(b"new", msg_id="1")
    )
    events = server.receive(octets, NOW)
    assert requests(events) == [("1", b"new", False)]
    assert codes(server) == ["400"]
    events = server.receive(part(b"a", msg_id="2", error_code="x") + msg(b"b", msg_id="2"), NOW)
    assert requests(events) == []
    events = server.receive(part(b"no id") + sides.HOLA, NOW)
    assert requests(events) == [("000001", b"Hola", False)]


def test_what_was_given_up_long_ago_takes_no_place_from_others() -> None:
    """SA-27: a sender which stops after each ERROR 408 may go on for ever."""
    server = open_server()
    for minute in range(20):
        for number in range(16):
            server.receive(part(b"a", msg_id=f"{minute}.{number}"), NOW + 60 * minute)
        assert len(server.advance(NOW + 60 * minute + 60)) == 16
    assert requests(server.receive(msg(b"x", msg_id="y"), NOW + 1200)) == [("y", b"x", False)]


def test_a_frame_that_stops_coming_is_given_up() -> None:
    # SA-27: nothing of it is delivered when it goes on
    server = open_server(lengths=True)
    octets = frame("MESSAGE", {"session-id": SESSION, "msg-id": "1"}, b"abcdef", lengths=True)
    server.receive(octets[:-8], NOW)
    assert due(server, NOW)[1] == NOW + 60
    assert flat(server.advance(NOW + 60)) == [("MessageAbandoned", "1")]
    assert server.deadline is None
    assert server.receive(octets[-8:], NOW + 121) == []
    assert due(server, NOW + 200)[1] is None
    server.receive(b"ERROR\r\ncontent-length::5\r\n\r\n", NOW)
    assert flat(server.advance(NOW + 60)) == [("MessageAbandoned", None)]
    client = open_client()
    id = client.request(b"", "w", NOW)
    client.receive(part(b"a", ref_msg_id=id) + NUDGE, NOW)
    client.outputs()
    client.advance(NOW + 60)
    assert client.receive(msg(b"b", ref_msg_id=id), NOW + 61) == []
    assert [one[:2] for one in errors(client)] == [("408", None)]  # our ids are not the server's


# ── Sizes ───────────────────────────────────────────────────────────────────────────────────────


def test_the_worked_example_is_cut_at_its_limit() -> None:
    # SA-22: the invariant, not the picture
    stream = sides.PART_1 + sides.PART_2 + sides.PART_3
    whole = None
    for chunks in ([stream], [stream[i : i + 1] for i in range(len(stream))], cut(stream, 170)):
        server = open_server(limits=SMALL)
        events = [e for chunk in chunks for e in server.receive(chunk, NOW)]
        ((id, body, truncated),) = requests(events)
        assert (id, truncated) == ("123456", True)
        assert sides.WHOLE_BODY.startswith(body)
        assert len(stream) > 300 >= len(sides.PART_1) + len(body)
        assert whole in (None, body)
        whole = body
        server.answer(id, b"half")
        (answer,) = sent(server)
        assert ("truncated", "yes") in answer.headers
        assert server.snapshot()["unfinished"] == 0
        assert server.counters.truncated_messages == 1


@pytest.mark.parametrize("framing", ["mark", "length", "websocket"])
@pytest.mark.parametrize("size", range(150, 320, 7))
def test_a_message_is_cut_at_the_byte(framing: str, size: int) -> None:
    # SA-22: bytes of the message up to the limit are kept, whatever they are
    lengths = framing == "length"
    server = open_server(limits=SMALL, lengths=lengths, framed=framing == "websocket")
    body = bytes(1 + n % 255 for n in range(size)).replace(b"\r", b"x")
    octets = frame("MESSAGE", {"session-id": SESSION, "msg-id": "1"}, body, lengths=lengths)
    head = octets.index(body)
    inputs = [octets] if framing == "websocket" else octets
    ((_, got, truncated),) = requests(server.receive(inputs, NOW))
    assert truncated is (len(octets) > 300)
    assert got == body[: 300 - head]


@pytest.mark.parametrize("place", range(8))
def test_no_character_is_cut(place: int) -> None:
    # SA-22
    for character in ("ä", "日", "🜚"):
        body = b"x" * place + character.encode() * (400 // len(character.encode()))
        server = open_server(limits=SMALL)
        ((_, got, truncated),) = requests(server.receive(msg(body, msg_id="1"), NOW))
        assert truncated
        text = got.decode()
        assert body.decode().startswith(text)
        assert len(body[: 300 - len(msg(b"", msg_id="1")) + 1]) - len(got) < len(character.encode())


def test_characters_are_whole_when_the_next_head_is_above_the_limit() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    first = part(b"x" * 205 + "日".encode()[:2], msg_id="1")
    assert 250 < len(first) <= 300
    events = server.receive(first + msg("日".encode()[2:], msg_id="1"), NOW)
    assert requests(events) == [("1", b"x" * 205, True)]


def test_a_complete_body_is_not_trimmed_when_only_its_end_mark_is_above() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    head = len(msg(b"", msg_id="1")) - 1
    body = b"x" * (299 - head) + b"\xe6"
    assert requests(server.receive(msg(body, msg_id="1"), NOW)) == [("1", body, True)]


def smuggling() -> bytes:
    """A body with a whole frame at the place of the cut."""
    fake = msg(b"smuggled", msg_id="666")[:-5]
    head = len(msg(b"", msg_id="1")) - 1
    return b"x" * (300 - head) + fake + b"y"


@pytest.mark.parametrize("framing", ["mark", "length", "websocket"])
def test_what_is_cut_off_is_never_read_as_frames(framing: str) -> None:
    # SA-22
    lengths, framed = framing == "length", framing == "websocket"
    server = open_server(limits=SMALL, lengths=lengths, framed=framed)
    frames = [
        frame("MESSAGE", {"session-id": SESSION, "msg-id": id}, body, lengths=lengths)
        for id, body in (("1", smuggling()), ("2", b"next"))
    ]
    if framed:
        events = [e for frame in frames for e in server.receive([frame], NOW)]
    else:
        stream = b"".join(frames)
        events = [e for i in range(len(stream)) for e in server.receive(stream[i : i + 1], NOW)]
    assert [(id, t) for id, _, t in requests(events)] == [("1", True), ("2", False)]


def test_a_cut_message_is_delivered_at_its_true_end_without_its_later_parts() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    stream = part(b"x" * 250, msg_id="1") + part(b"y" * 20, msg_id="1")
    assert requests(server.receive(stream + NUDGE, NOW)) == []
    ((id, body, truncated),) = requests(server.receive(msg(b"tail", msg_id="1"), NOW))
    assert truncated
    assert b"x" * 200 in body and b"tail" not in body
    server.answer(id, b"")
    assert requests(server.receive(msg(b"new", msg_id="1"), NOW)) == [("1", b"new", False)]


@pytest.mark.parametrize("framing", ["mark", "more", "length"])
def test_twice_the_limit_closes_and_nothing_of_it_is_delivered(framing: str) -> None:
    """HO-20, SA-22"""
    server = open_server(limits=SMALL, lengths=framing == "length")
    headers = {"session-id": SESSION, "msg-id": "1"}
    if framing == "more":
        headers["msg-more"] = "yes"
    octets = frame("MESSAGE", headers, b"x" * 20_000, lengths=framing == "length")[:-5]
    events = server.receive(octets, NOW)
    assert requests(events) == []
    assert isinstance(events[-1], Fault)
    assert events[-1].reason == "message-bytes"
    assert server.counters.truncated_messages == 0
    assert codes(server) == ["413"]
    assert server.closed


def test_parts_add_up_to_twice_the_limit() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    stream = b"".join(part(b"x" * 10, msg_id="1") for _ in range(20))
    events = server.receive(stream, NOW)
    assert isinstance(events[-1], Fault)
    # so do frames which are skipped
    server = open_server(limits=SMALL)
    assert isinstance(server.receive(msg(b"x" * 600, a="b"), NOW)[-1], Fault)
    server = open_server(limits=SMALL)
    server.receive(frame("ERROR", {"a": "b"}, b"x" * 601), NOW)
    assert server.closed


def test_an_option_refuses_what_is_too_large() -> None:
    # SA-22
    server = open_server(limits=SMALL, refuse_oversize=True)
    events = server.receive(msg(b"x" * 280, msg_id="1") + sides.HOLA, NOW)
    assert requests(events) == [("000001", b"Hola", False)]
    assert errors(server)[0][:2] == ("413", "1")
    assert server.snapshot()["unanswered"] == 1


def test_a_message_is_too_large_as_soon_as_it_is__SA_22() -> None:
    """Not only when its end has come: a sixteenth above the limit is enough."""
    server = open_server(limits=limits(message_bytes=16_000), refuse_oversize=True)
    server.receive(msg(b"x" * 17_100, msg_id="1")[:-5], NOW)
    assert errors(server)[0][:2] == ("413", "1")


def test_a_message_of_more_than_twice_the_limit_is_held_no_longer__SA_22__NB_02() -> None:
    server = open_server(limits=SMALL)
    (fault,) = server.receive(msg(b"x" * 700, msg_id="1")[:-5], NOW)
    assert isinstance(fault, Fault)
    assert server.input_weight == 0


def test_a_cut_response_and_a_cut_error() -> None:
    # SA-22, SA-23
    client = open_client(limits=SMALL)
    id = client.request(b"", "w", NOW)
    events = client.receive(msg(b"x" * 280, ref_msg_id=id), NOW)
    ((_, _, _, _, body, truncated),) = flat(events)
    assert truncated
    assert len(body) < 280
    (event,) = client.receive(frame("ERROR", {"a": "b"}, b"x" * 400), NOW)
    assert isinstance(event, ErrorReceived)
    assert len(event.body) < 300


def test_cut_columns_are_marked_row_by_row() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    stream = b"".join(msg(b"x" * size, msg_id=str(n)) for n, size in enumerate((1, 290, 1))) + msg(
        b"", msg_id="9", a="b"
    )
    (event,) = server.receive(stream, NOW)
    assert names([event]) == ["MessagesReceived"]
    assert event.truncated == [False, True, False, False]
    server.acknowledge(event.ids)
    answers = [dict(r.headers) for r in sent(server)]
    assert sorted((a["ref-msg-id"], a.get("truncated")) for a in answers) == [
        ("0", None),
        ("1", "yes"),
        ("2", None),
        ("9", None),
    ]
    client = open_client(limits=SMALL)
    ids = [client.request(b"", n, NOW) for n in range(3)]
    stream = b"".join(
        msg(b"x" * size, ref_msg_id=id) for id, size in zip(ids, (1, 290, 1), strict=True)
    )
    (answer,) = client.receive(stream, NOW)
    assert names([answer]) == ["ResponsesReceived"]
    assert answer.truncated == [False, True, False]


def test_a_cut_request_too_many_is_refused() -> None:
    # SA-22, SA-27
    server = open_server(limits=limits(message_bytes=300, outstanding_requests=1))
    events = server.receive(sides.HOLA + msg(b"x" * 290, msg_id="2"), NOW)
    assert requests(events) == [("000001", b"Hola", False)]
    assert errors(server)[0][:2] == ("429", "2")


# ── Sending ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("framing", ["mark", "length", "websocket"])
@settings(max_examples=150, deadline=None)
@given(
    body=st.lists(
        st.sampled_from(
            [b"\0", b"\r\n", b"\r", b"x", b"ERROR\r\n", b"MESSAGE\r\n", b"a::b", b"::", b"yyyyy"]
        ),
        max_size=24,
    ).map(b"".join),
    size=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_a_body_in_parts_arrives_as_it_was(
    framing: str, body: bytes, size: int, cuts: list[int]
) -> None:
    # SA-18, SA-19, SA-21, SA-26
    lengths, framed = framing == "length", framing == "websocket"
    client = open_client(lengths=lengths, framed=framed, limits=limits(part_bytes=size))
    server = open_server(lengths=lengths, framed=framed)
    bad = not lengths and (body.startswith((b"\0", b"\r\n\0")) or b"\r\n\r\n\0" in body)
    try:
        client.send_only(body)
        assert not bad
    except ValueError:
        assert bad
        assert not client.outputs()
    else:
        assert [row[3] for row in flat(talk(client, server, framed))] == [body]
    outgoing = client.open_message("w", NOW, headers={"a": "b"})
    try:
        for octets in cut(body, *[min(c, len(body)) for c in cuts]):
            outgoing.write(octets)
        outgoing.finish()
        assert not bad
    except ValueError:
        assert bad
        outgoing.abort()
    else:
        assert flat(talk(client, server, framed)) == [
            ("request", outgoing.id, {"a": "b"}, body, False)
        ]


@pytest.mark.parametrize("part_bytes", [40, 65536])
@pytest.mark.parametrize("framing", ["length", "websocket", "mark"])
def test_what_the_peer_would_cut_is_not_sent(framing: str, part_bytes: int) -> None:
    # HO-01, SA-22: the largest which is sent arrives whole, and nothing is queued of a larger one
    lengths, framed = framing == "length", framing == "websocket"
    bound = limits(message_bytes=400, part_bytes=part_bytes)
    client = open_client(lengths=lengths, framed=framed, limits=bound)
    server = open_server(lengths=lengths, framed=framed, limits=bound)
    sent_bytes = 0
    for octets in range(1, 500):
        try:
            client.request(b"x" * octets, "w", NOW, headers={"a": "b"})
        except LimitExceeded:
            assert not client.outputs()
            with pytest.raises(LimitExceeded):
                client.send_only(b"x" * octets, headers={"a": "b"})
            assert not client.outputs()
        else:
            assert octets == sent_bytes + 1
            sent_bytes = octets
            assert [row[3:] for row in flat(talk(client, server, framed))] == [
                (b"x" * octets, False)
            ]
    assert sent_bytes > 40
    assert client.outstanding == sent_bytes


@pytest.mark.parametrize("framing", ["length", "websocket", "mark"])
def test_a_message_in_pieces_is_never_more_than_the_peer_takes(framing: str) -> None:
    # HO-01, SA-18
    lengths, framed = framing == "length", framing == "websocket"
    bound = limits(message_bytes=400, part_bytes=40)
    client = open_client(lengths=lengths, framed=framed, limits=bound)
    server = open_server(lengths=lengths, framed=framed, limits=bound)
    for size in (1, 7, 40, 60):
        outgoing = client.open_message("w", NOW, headers={"a": "b"})
        taken = b""
        with pytest.raises(LimitExceeded):
            while True:
                outgoing.write(b"x" * size)
                taken += b"x" * size
        outgoing.finish()
        assert flat(talk(client, server, framed)) == [
            ("request", outgoing.id, {"a": "b"}, taken, False)
        ]


@pytest.mark.parametrize("framing", ["length", "websocket", "mark"])
def test_a_message_that_is_given_up_half_way(framing: str) -> None:
    # SA-18, SA-20, SA-27
    lengths, framed = framing == "length", framing == "websocket"
    client = open_client(lengths=lengths, framed=framed, limits=limits(part_bytes=4))
    server = open_server(lengths=lengths, framed=framed)
    outgoing = client.open_message("w", NOW)
    outgoing.write(b"abcdefghijklmnop")
    outgoing.abort()
    outgoing.abort()
    with pytest.raises(ValueError, match="finished"):
        outgoing.write(b"x")
    outgoing.finish()
    client.send_only(b"next")
    events = talk(client, server, framed)
    expected: list[object] = [("send-only", "2", {}, b"next", False)]
    if framing != "mark":
        expected.insert(0, ("FrameDiscarded", "1"))
    assert flat(events) == expected
    assert client.outstanding == 0
    assert server.snapshot()["unfinished"] == (framing == "mark")


def test_a_message_that_was_not_begun_leaves_no_trace() -> None:
    # SA-18
    client = open_client()
    outgoing = client.open_message("w", NOW)
    outgoing.write(b"abc")
    outgoing.abort()
    assert client.outputs() == b""
    assert client.outstanding == 0
    outgoing = client.open_message(None, NOW)
    outgoing.write(b"abc")
    client.lost(0.0)
    outgoing.write(b"def")
    outgoing.finish()
    assert client.outputs() == b""


def test_open_messages_are_bounded() -> None:
    # SA-19
    client = open_client(limits=limits(unfinished_messages=2))
    first = client.open_message(None, NOW)
    client.open_message("w", NOW)
    with pytest.raises(LimitExceeded):
        client.open_message(None, NOW)
    first.finish()
    client.open_message(None, NOW)


def test_a_body_with_our_own_session_in_it_is_not_split_where_a_reader_would_err() -> None:
    # SA-26: the receiver sees what was sent
    body = crlf(f"x MESSAGE\nsession-id::{SESSION}\n\n") + b"y" * 50
    client = open_client(limits=limits(part_bytes=20))
    with pytest.raises(ValueError, match="session"):
        client.send_only(body)
    outgoing = client.open_message("w", NOW)
    with pytest.raises(ValueError, match="session"):
        for byte in body:
            outgoing.write(bytes([byte]))
    client = open_client(limits=limits(part_bytes=20), lengths=True)
    client.send_only(body)
    ((_, _, _, got, _),) = flat(open_server(lengths=True).receive(client.outputs(), NOW))
    assert got == body


def test_a_part_never_begins_behind_the_end_of_what_came() -> None:
    # SA-21: so many NULs that no part may begin anywhere
    client = open_client(limits=limits(part_bytes=4))
    outgoing = client.open_message("w", NOW)
    outgoing.write(b"abcd" + b"\0" * 20)
    assert client.outputs() == b""
    outgoing.write(b"efgh")
    outgoing.finish()
    ((_, _, _, body, _),) = flat(open_server().receive(client.outputs(), NOW))
    assert body == b"abcd" + b"\0" * 20 + b"efgh"


@pytest.mark.parametrize("octets", [1, 15])
def test_a_limit_below_every_message_refuses_each_with_413__SA_22(octets: int) -> None:
    server = open_server(limits=limits(message_bytes=octets))
    (fault,) = server.receive(msg(b"x" * 100, msg_id="1"), NOW)
    assert isinstance(fault, Fault)
    assert b"error-code::413" in server.outputs()
