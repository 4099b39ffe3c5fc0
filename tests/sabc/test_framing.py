"""Where frames end: the examples, every split, a slow and obvious reading beside the fast one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc.machine import Client, Server

from . import sides
from .sides import (
    END,
    NOW,
    NUDGE,
    SESSION,
    SMALL,
    crlf,
    cut,
    end_of_body,
    flat,
    frame,
    limits,
    msg,
    names,
    open_server,
    part,
    requests,
    sent,
    state_of,
)

EXAMPLES = b"".join(
    (
        sides.HOLA,
        sides.SEND_ONLY,
        sides.PART_1,
        sides.PART_2,
        sides.PART_3,
        sides.FORBIDDEN,
        sides.MUNDO,
        sides.DISCONNECT,
    )
)


def heard(chunks: list[bytes], **options: Any) -> list[Any]:
    """What a server in a session tells of a stream; of a fault its reason."""
    server = open_server(**options)
    rows = flat([event for chunk in chunks for event in server.receive(chunk, NOW)])
    return [row.reason if isinstance(row, Fault) else row for row in rows]


def alike(nbytes: bytes, **options: Any) -> list[Any]:
    """The same of a stream which is cut at every place, and comes byte by byte."""
    whole = heard([nbytes], **options)
    assert heard([nbytes[i : i + 1] for i in range(len(nbytes))], **options) == whole
    for place in range(0, len(nbytes), 1 + len(nbytes) // 60):
        assert heard(cut(nbytes, place), **options) == whole
    return whole


def bodies(rows: list[Any]) -> list[Any]:
    """(id, body) of messages, and the names of other events."""
    kinds = ("request", "send-only")
    return [row if isinstance(row, str) else row[1::2] if row[0] in kinds else row[0]
            for row in rows]  # fmt: skip


# ── The examples ────────────────────────────────────────────────────────────────────────────────


def test_the_examples_read_the_same_however_they_are_split() -> None:
    """SA-01, SA-19, SA-26, SA-28: the second frame of the message begins in mid-line."""
    whole = alike(EXAMPLES)
    assert [row[0] for row in whole] == [
        *("request", "send-only", "request", "ErrorReceived", "DisconnectReceived"),
    ]
    assert bodies(whole)[:3] == [
        ("000001", b"Hola"),
        ("888999", b"OK"),
        ("123456", sides.WHOLE_BODY),
    ]
    assert alike(EXAMPLES, lenient=True) == whole
    text = EXAMPLES.replace(b"\r\n", b"\n")
    typed = alike(text, lenient=True)
    assert [row[0] for row in typed] == [row[0] for row in whole]
    assert typed[2][3] == sides.WHOLE_BODY.replace(b"\r\n", b"\n")
    assert heard([text]) == ["command"]  # strict: no command is that long


@pytest.mark.parametrize("end", [b"", b"\0", END, b"\r\n", b"\r\n\0"])
@pytest.mark.parametrize("split", [False, True])
def test_a_command_without_a_body_ends_at_its_blank_line(end: bytes, split: bool) -> None:
    """SA-02, SA-26, HO-19: an end mark behind it is swallowed, also when it arrives later."""
    server = Server()
    server.connection_made(NOW)
    (event,) = server.receive(sides.CONNECT.removesuffix(b"\0"), NOW)
    assert type(event).__name__ == "ConnectReceived"
    server.accept(SESSION)
    octets = end + sides.HOLA
    events: list[Any] = []
    for chunk in [octets[i : i + 1] for i in range(len(octets))] if split else [octets]:
        events += server.receive(chunk, NOW)
    good = end != b"\r\n\0"  # a line end and then an end mark is a frame of its own
    assert (requests(events) == [("000001", b"Hola", False)]) is good
    client = Client()
    client.connect("me", now=NOW)
    octets = sides.CONNECTED + end + sides.FORBIDDEN
    events = []
    for chunk in [octets[i : i + 1] for i in range(len(octets))] if split else [octets]:
        events += client.receive(chunk, NOW)
    assert names(events) == ["SessionGranted", "ErrorReceived" if good else "Fault"]


@pytest.mark.parametrize("octets", [b"\r\0", b"\rx", b"\r\n\r\n\r\n\rx", b"\0\r\0", b"\0\0"])
def test_what_stands_between_frames_and_is_no_line_end_is_a_fault(octets: bytes) -> None:
    """SA-26."""
    for lenient in (False, True):
        stream = sides.HOLA + sides.DISCONNECT + octets + sides.HOLA
        *_, left, fault = alike(stream, lenient=lenient)
        assert left == ("DisconnectReceived",)
        assert fault in ("framing", "command")


@pytest.mark.parametrize("ends", [b"\r\n", b"\r\n\r\n", b"\r\n" * 5])
@pytest.mark.parametrize("lenient", [False, True])
def test_line_ends_between_frames_are_read_over(ends: bytes, lenient: bool) -> None:
    """HO-19, SA-26, SA-28: a terminal puts one behind the NUL."""
    for line_ends in (ends, ends.replace(b"\r", b"")) if lenient else (ends,):
        stream = sides.HOLA + line_ends + msg(b"a", msg_id="1") + msg(b"b", msg_id="2")
        stream += line_ends + sides.FORBIDDEN + line_ends + sides.DISCONNECT + line_ends
        whole = bodies(alike(stream, lenient=lenient))
        assert whole == [
            ("000001", b"Hola"), ("1", b"a"), ("2", b"b"), "ErrorReceived", "DisconnectReceived",
        ]  # fmt: skip
    server = Server()
    assert isinstance(server.receive(b"\r\n" + sides.CONNECT, NOW)[-1], Fault)


@pytest.mark.parametrize("before", [b"", sides.HOLA, msg(b"a", msg_id="1") * 2])
def test_an_end_mark_of_its_own_stands_only_behind_a_command_without_a_body(before: bytes) -> None:
    """SA-26, SA-28: also where frames before it were read together."""
    for lenient in (False, True):
        stream = sides.FORBIDDEN + before + b"\0" + sides.HELLO
        assert alike(stream, lenient=lenient)[-1] == "command"


# ── Heads ───────────────────────────────────────────────────────────────────────────────────────

BAD_HEADS = {
    "unknown": (b"HELLO\r\na::b\r\n\r\n", "command"),
    "lower case": (b"connect\r\na::b\r\n\r\n", "command"),
    "space": (b"CONNECT \r\na::b\r\n\r\n", "command"),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "command"),
    "not utf-8 in the command": (b"CONN\xff\r\na::b\r\n\r\n", "command"),
    "no headers": (b"MESSAGE\r\n\r\nx\r\n\r\n\0", "headers-missing"),
    "no headers, no body": (b"DISCONNECT\r\n\r\n", "headers-missing"),
    "one colon": (b"MESSAGE\r\na:b\r\n\r\n\0", "header-syntax"),
    "two in a value": (b"MESSAGE\r\na::b::c\r\n\r\n\0", "header-syntax"),
    "colons only": (b"MESSAGE\r\na::::\r\n\r\n\0", "header-syntax"),
    "one short, one long": (b"MESSAGE\r\na\r\nb::c::d\r\n\r\n\0", "header-syntax"),
    "bare CR": (b"MESSAGE\r\na::b\rc\r\n\r\n\0", "header-syntax"),
    "bare LF": (b"MESSAGE\r\na::b\nc::d\r\n\r\n\0", "header-syntax"),
    "NUL": (b"MESSAGE\r\na::b\0\r\n\r\n\0", "header-syntax"),
    "NUL in a key": (b"MESSAGE\r\na\0::b\r\n\r\n\0", "header-syntax"),
    "no key": (b"MESSAGE\r\n::b\r\n\r\n\0", "header-syntax"),
    "not utf-8": (b"MESSAGE\r\na::\xff\r\n\r\n\0", "header-encoding"),
    "overlong utf-8": (b"MESSAGE\r\na::\xc0\x80\r\n\r\n\0", "header-encoding"),
    "surrogate": (b"MESSAGE\r\na::\xed\xa0\x80\r\n\r\n\0", "header-encoding"),
    "repeated": (b"MESSAGE\r\na::b\r\na::b\r\n\r\n\0", "header-repeated"),
    "an endless line": (b"MESSAGE\r\na::" + b"x" * 5000, "header-line-bytes"),
    "a long block": (
        b"MESSAGE\r\n" + b"".join(b"h%d::%s\r\n" % (i, b"x" * 900) for i in range(10)) + b"\r\n\0",
        "header-block-bytes",
    ),
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_what_is_no_head_is_a_fault_however_it_is_split(name: str) -> None:
    """SA-02, SA-03, SA-04, SA-05, SA-06, SA-27: and nothing is read behind it."""
    octets, reason = BAD_HEADS[name]
    assert bodies(alike(sides.HOLA + octets)) == [("000001", b"Hola"), reason]
    server = open_server()
    server.receive(octets, NOW)
    assert server.receive(sides.HOLA, NOW) == []
    (answer,) = sent(server)
    assert dict(answer.headers) == {"session-id": SESSION, "error-code": "400"}
    assert server.finished
    assert server.input_weight == 0


OURS = f"session-id::{SESSION}"
BLOCK = [b"h%d::" % i + b"x" * 1018 for i in range(7)]
LEFT = 8192 - 7 * 1024 - len(f"{OURS}\r\nmsg-id::1\r\ni::\r\n")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([b"h%d::" % i for i in range(30)], None),
        ([b"h%d::" % i for i in range(31)], "header-lines"),
        ([b"a::" + b"x" * 1021], None),
        ([b"a::" + b"x" * 1022], "header-line-bytes"),
        ([*BLOCK, b"i::" + b"x" * LEFT], None),
        ([*BLOCK, b"i::" + b"x" * (LEFT + 1)], "header-block-bytes"),
    ],
)
@pytest.mark.parametrize("framed", [False, True])
def test_heads_are_read_up_to_their_bounds(
    lines: list[bytes], reason: str | None, framed: bool
) -> None:
    """SA-27: 32 headers, 1 KiB a line, 8 KiB in all."""
    octets = b"\r\n".join([b"MESSAGE", OURS.encode(), b"msg-id::1", *lines, b"", b"\0"])
    if framed:
        (got,) = flat(open_server(framed=True).receive([octets], NOW))
        assert (got.reason if isinstance(got, Fault) else None) == reason
    else:
        assert bodies(alike(octets)) == [reason or ("1", b"")]


def test_headers_split_at_the_first_separator_and_keep_their_spaces() -> None:
    """SA-02, SA-04: they are UTF-8."""
    octets = (
        f"MESSAGE\r\n{OURS}\r\nmsg-id::1\r\n a :: b \r\nc:::d\r\ne::\r\nschlüssel::日本\r\n\r\n\0"
    )
    ((_, _, fields, _, _),) = alike(octets.encode())
    assert fields == {" a ": " b ", "c": ":d", "e": "", "schlüssel": "日本"}


# ── Bodies without lengths ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("body", [b"a\0b\r\n\0c\r\n\r\nd\0\0", b"x\0", b"x\r\n\0", b"x\r\n\r\n"])
def test_nul_and_line_ends_may_stand_in_a_body(body: bytes) -> None:
    """SA-21."""
    assert bodies(alike(msg(body, msg_id="1") + sides.HOLA)) == [
        ("1", body),
        ("000001", b"Hola"),
    ]


@pytest.mark.parametrize("end", [b"\0", b"\r\n\0", b"\r\n\r\n\0"])
def test_the_end_mark_counts_from_the_blank_line(end: bytes) -> None:
    """SA-01, SA-26."""
    head = f"MESSAGE\r\n{OURS}\r\nmsg-id::1\r\n\r\n".encode()
    assert bodies(alike(head + end + sides.HOLA)) == [("1", b""), ("000001", b"Hola")]
    more = head.replace(b"\r\n\r\n", b"\r\nmsg-more::yes\r\n\r\n")
    assert bodies(alike(more + end + sides.HOLA)) == [("1", b""), ("000001", b"Hola")]


def test_a_whole_frame_in_a_body_is_body() -> None:
    """SA-22, SA-26: without msg-more nothing but an end mark ends a body."""
    inner = msg(b"smuggled", msg_id="9")[: -len(END)]
    assert bodies(alike(msg(b"before" + inner + b"after", msg_id="1"))) == [
        ("1", b"before" + inner + b"after")
    ]


@pytest.mark.parametrize(
    "block",
    [
        "MESSAGE\nsession-id::another\n\n",
        f"MESSAGE\nsession-id::{SESSION}x\n\n",
        f"MESSAGE\nxsession-id::{SESSION}\n\n",
        f"MESSAGE\nno header\nsession-id::{SESSION}\n\n",
        f"MESSAGE\nsession-id::{SESSION}\nno header\n\n",
        f"MESSAGE\nsession-id::{SESSION}\nsession-id::{SESSION}\n\n",
        f"MESSAGE\na::b\na::b\nsession-id::{SESSION}\n\n",
        f"CONNECT\nsession-id::{SESSION}\n\n",
        f"message\nsession-id::{SESSION}\n\n",
        f"session-id::{SESSION}\n\n",
        f"session-id::{SESSION}\nx::MESSAGE\n\n",
        f"MESSAGE\n\nsession-id::{SESSION}\n\n",
        f"MESSAGE\nsession-id::{SESSION}\nx::" + "y" * 1100 + "\n\n",
        f"MESSAGE\nx::{'y' * 1100}\nsession-id::{SESSION}\n\n",
        f"MESSAGE\nx::{'y' * 1022}\nsession-id::{SESSION}\n\n",
        f"MESSAGE\nsession-id::{SESSION}\n" + "".join(f"h{i}::\n" for i in range(32)) + "\n",
        "MESSAGE\n" + "".join(f"h{i}::\n" for i in range(32)) + f"session-id::{SESSION}\n\n",
        "MESSAGE\n"
        + "".join(f"h{i}::{'x' * 900}\n" for i in range(10))
        + f"session-id::{SESSION}\n\n",
        f"MESSAGE\nsession-id::{SESSION}\n"
        + "".join(f"h{i}::{'x' * 900}\n" for i in range(10))
        + "\n",
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_what_is_no_frame_of_this_session_is_body(block: str, lenient: bool) -> None:
    """SA-26: its message goes on in the next frame."""
    body = b"text " + crlf(block) + b"more"
    octets = msg(body, final=False, msg_id="1", msg_more="yes") + msg(b" end", msg_id="1")
    assert bodies(alike(octets + sides.DISCONNECT, lenient=lenient)) == [
        ("1", body + b" end"),
        "DisconnectReceived",
    ]


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (f"MESSAGE\nsession-id::{SESSION}\nmsg-id::2\n\n^@", ("2", b"")),
        (f"ERROR\na::b\nsession-id::{SESSION}\nc::d\n\n^@", "ErrorReceived"),
        (f"ERROR\nsession-id::{SESSION}\na::{'v' * 1021}\n\n^@", "ErrorReceived"),
        (f"DISCONNECT\nsession-id::{SESSION}\n\n", "DisconnectReceived"),
        (f"DISCONNECTING\nsession-id::{SESSION}\n\n", "DisconnectingReceived"),
        (f"ERROR\nx::y MESSAGE\nsession-id::{SESSION}\n\n^@", "ErrorReceived"),
    ],
)
@pytest.mark.parametrize("before", ["", "x", "x\n", f"session-id::{SESSION}\n", "a::b\n", "ERRORx"])
def test_a_part_ends_where_the_next_frame_of_the_session_begins(
    text: str, event: object, before: str
) -> None:
    """SA-26: anywhere, not only at a line's start; the first valid command counts."""
    octets = part(crlf(before), msg_id="1") + crlf(text)
    if "DISCONNECT" in text:
        assert bodies(alike(octets))[0] == event
        return
    expected = [event, ("1", crlf(before) + b"end")]
    assert bodies(alike(octets + msg(b"end", msg_id="1"))) == expected
    octets = octets.replace(b"\r\n", b"\n") + b"\n" + msg(b"end", msg_id="1")
    assert bodies(alike(octets, lenient=True))[0] == event


def test_a_second_line_with_the_session_begins_its_own_block() -> None:
    """SA-26: what stands before it does not count for the bounds of the block."""
    before = f"x\nsession-id::{SESSION}\n" + "".join(f"a{n}::\n" for n in range(18)) + "b::x"
    headers = {f"c{n}": "" for n in range(20)}
    octets = part(crlf(before), msg_id="1") + msg(b"end", msg_id="1", **headers)
    assert bodies(alike(octets)) == [("1", crlf(before) + b"end")]


def test_an_end_mark_before_the_next_frame_makes_msg_more_mean_nothing() -> None:
    """SA-18: the message is whole; and an error is one frame, whatever it says (SA-23)."""
    octets = msg(b"body", msg_id="1", msg_more="yes") + sides.HOLA
    assert bodies(alike(octets)) == [("1", b"body"), ("000001", b"Hola")]
    octets = crlf(f"ERROR\nmsg-more::yes\n\nx MESSAGE\nsession-id::{SESSION}\n\n^@")
    assert bodies(alike(octets)) == ["ErrorReceived"]


LINES = st.sampled_from(
    [
        *(b"MESSAGE", b"ERROR", b"CONNECT", b"x", b""),
        *(b"a::b", b"c::d MESSAGE", b"a::x", b"e::f::g", b"\0", b"y\0z", b"\xff", b"h::\xff"),
        *(OURS.encode(), b"session-id::T", b"xERROR", OURS.encode() + b"2", b"\r", b"\n"),
    ]
)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"", b"\r\n\r\n", END])
BODIES = st.lists(st.tuples(LINES, ENDS), max_size=14).map(
    lambda rows: b"".join(line + end for line, end in rows)
)


@settings(max_examples=200, deadline=None)
@given(BODIES, st.data())
def test_the_fast_search_agrees_with_the_obvious_one(body: bytes, data: st.DataObject) -> None:
    """SA-26: a body ends at its end mark or before the next frame of the session."""
    head = f"MESSAGE\r\n{OURS}\r\nmsg-id::1\r\nmsg-more::yes\r\n\r\n".encode()
    octets = head + body
    expected = end_of_body(octets, len(head), True, SESSION)
    if expected is None:
        assert heard([octets]) == []
        return
    stop, following, final = expected
    octets = octets[:following]
    if not final:  # the next frame's head; its body is empty
        octets += body[following - len(head) :].partition(b"\r\n\r\n")[0] + b"\r\n\r\n\0"
    octets += msg(b"!", msg_id="1")
    places = data.draw(st.lists(st.integers(0, len(octets)), max_size=4))
    for chunks in ([octets], cut(octets, *places), [octets[i : i + 1] for i in range(len(octets))]):
        rows = [row for row in bodies(heard(chunks)) if isinstance(row, tuple)]
        assert rows == [("1", octets[len(head) : stop] + (b"" if final else b"!"))]


# ── Bodies with lengths ─────────────────────────────────────────────────────────────────────────


def sized(body: bytes, id: str, *, final: bool = True, length: str | None = None) -> bytes:
    headers = {"session-id": SESSION, "msg-id": id, "content-length": length or str(len(body))}
    return frame("MESSAGE", headers | ({} if final else {"msg-more": "yes"}), body, final=final)


FAKE = sized(b"smuggled", "9") + msg(b"smuggled", msg_id="8")


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"\0", END, b"a\r\n\r\n\0MESSAGE\r\n", b"x" * 40, FAKE, b"x" * 300 + FAKE],
)
def test_an_announced_body_may_hold_anything(body: bytes) -> None:
    """SA-26, SA-21: frames in it are not read, not even where a part was handed out before."""
    for bound in ({}, {"message_bytes": 1600}):  # pieces of 100 bytes
        for final in (True, False):
            octets = sized(body, "1", final=final) + sized(b"next", "2") + sized(b"end", "1")
            whole = bodies(alike(octets, lengths=True, limits=limits(**bound)))
            if final:
                assert whole[:2] == [("1", body), ("2", b"next")]
            else:
                assert whole == [("2", b"next"), ("1", body + b"end")]


def test_an_announced_empty_body_may_end_with_the_long_mark() -> None:
    """SA-26: and a line end may stand behind an end mark, but not behind the body alone."""
    head = f"MESSAGE\r\n{OURS}\r\nmsg-id::1\r\ncontent-length::0\r\n\r\n".encode()
    for end in (END, b"\0", END + b"\r\n"):
        octets = head + end + sized(b"x", "2")
        assert bodies(alike(octets, lengths=True)) == [("1", b""), ("2", b"x")]
    octets = sized(b"abc", "1", final=False) + b"\r\n" + sized(b"abc", "2")
    assert alike(octets, lengths=True) == ["framing"]


@pytest.mark.parametrize(
    "length", ["", "-1", "+1", " 1", "1 ", "0x1", "1.0", "12345678901", "１", "a", "1_0"]
)
def test_a_length_is_one_to_ten_digits(length: str) -> None:
    """SA-26: and without lengths it is an ordinary header."""
    head = f"MESSAGE\r\n{OURS}\r\nmsg-id::1\r\ncontent-length::{length}\r\n\r\n".encode()
    assert alike(head + b"x" + END, lengths=True) == ["content-length"]
    ((_, id, fields, body, _),) = heard([head + b"x" + END])
    assert (id, fields, body) == ("1", {"content-length": length}, b"x")


def test_a_length_is_on_every_frame_with_a_body() -> None:
    """SA-26."""
    for octets in (msg(b"", msg_id="1"), sides.FORBIDDEN):
        assert heard([octets], lengths=True) == ["content-length"]
    assert bodies(heard([sides.DISCONNECT], lengths=True)) == ["DisconnectReceived"]


def test_ten_digits_are_only_a_promise() -> None:
    """SA-26, SA-27: nothing is set aside for a body that has not come."""
    server = open_server(lengths=True)
    assert server.receive(sized(b"x" * 1000, "1", final=False, length="9999999999"), NOW) == []
    assert server.input_weight < 4000


@pytest.mark.parametrize("after", [b"x", b"\0", b"\r\n\0", b"\r\n\r\nM", b"\r\n\r\n\r", b"\n\n\0"])
def test_what_follows_an_announced_body_is_an_end_mark_or_a_frame(after: bytes) -> None:
    """SA-26, SA-21."""
    for body in (b"abc", b"a" * 30):
        octets = sized(body, "1", final=False) + after
        assert alike(octets, lengths=True) == ["framing"]
    octets = sized(b"hi", "1", final=False).replace(b"msg-more::yes\r\n", b"")
    for command in (b"ABC\r\n", b"ZZ\r\n"):
        assert alike(octets + command, lengths=True) == [("FrameDiscarded", "1"), "command"]


# ── Time and room ───────────────────────────────────────────────────────────────────────────────

HARD = {
    "plain": b"x" * 64,
    "half marks": b"\r\n\r\n\r" * 12 + b"....",
    "the session's id": f"x\r\nsession-id::{SESSION}\r\ny::z\r\n".encode() + b"." * 8,
    "commands": b"x::MESSAGE\r\n" * 5 + b"....",
}


@pytest.mark.parametrize("framing", ["mark", "more", "length"])
@pytest.mark.parametrize("name", HARD)
def test_a_body_in_single_bytes_is_read_and_held_in_little(name: str, framing: str) -> None:
    """SA-26, SA-27."""
    body = (HARD[name] * (1 << 9))[: 1 << 15]
    lengths = framing == "length"
    server = open_server(lengths=lengths)
    more = framing == "more"
    octets = sized(body, "1", final=not more) if lengths else msg(body, final=not more, msg_id="1")
    if more:
        octets = part(body, msg_id="1") + msg(b"", msg_id="1")
    events: list[Any] = []
    most = 0
    for start in range(len(octets)):
        events += server.receive(octets[start : start + 1], NOW)
        most = max(most, server.input_weight)
    assert requests(events) == [("1", body, False)]
    assert most <= len(octets) + 16384


# ── WebSocket ───────────────────────────────────────────────────────────────────────────────────


NO_FRAMES = [
    (b"", "framing"),
    (b"MESSAGE", "framing"),
    (b"MESSAGE\r\na::b", "framing"),
    (b"MESSAGE\r\na::b\r\n", "framing"),
    (b"DISCONNECT\r\n", "headers-missing"),
    (b"DISCONNECT\r\na::b\r\n\r\nbody", "framing"),
    (b"DISCONNECT\r\na::b\r\n\r\n\r\n", "framing"),
    (b"DISCONNECT\r\na::b\r\n\r\n\0\0", "framing"),
    # What is itself no frame, or a whole one, is behind an end mark all the same.
    (b"DISCONNECT\r\na::b\r\n\r\n\0\r\n", "framing"),
    (b"DISCONNECT\r\na::b\r\n\r\nMORE THAN A COMMAND", "framing"),
    (b"DISCONNECT\r\na::b\r\n\r\n\0MESSAGE\r\na::b\r\n\r\n\0", "framing"),
    (b"DISCONNECT\r\na::b\r", "header-syntax"),
    (b"MESSAGE\r\na::b\r\n\r\nx\r\n\r\n\0y", "framing"),
    (b"MESSAGE\r\na::b\r\n\r\n\0\0", "framing"),
    (b"MESSAGE\r\na::b\r\n\r\nx\r\n\r\n\0\r\n", "framing"),
    (b"HELLO\r\na::b\r\n\r\n", "command"),
]


@pytest.mark.parametrize(("octets", "reason"), NO_FRAMES)
def test_what_is_no_websocket_frame(octets: bytes, reason: str) -> None:
    """SA-02, SA-05, SA-21."""
    (fault,) = open_server(framed=True).receive([octets], NOW)
    assert isinstance(fault, Fault)
    assert fault.reason == reason


def test_a_stream_and_a_websocket_message_are_read_alike() -> None:
    """SA-01, SA-20, SA-21, SA-26: NUL within, an end mark at the end, no meaning of lengths."""
    frames = [sides.HOLA, sides.PART_1, sides.PART_2, sides.PART_3, sides.SEND_ONLY]
    frames.append(msg(b"abc", msg_id="7", content_length="1"))
    server = open_server(framed=True)
    assert flat(server.receive(frames, NOW)) == heard([b"".join(frames)])


@pytest.mark.parametrize("end", [b"\n\n\0", b"\n\n\0\n", b"\r\n\n\0"])
def test_lenient_websocket_frames(end: bytes) -> None:
    """SA-28."""
    octets = f"MESSAGE\n{OURS}\nmsg-id::1\n\nx".encode() + end
    events = open_server(framed=True, lenient=True).receive([octets], NOW)
    assert requests(events) == [("1", b"x", False)]
    strict = open_server(framed=True)
    assert isinstance(strict.receive([octets], NOW)[-1], Fault)
    assert codes_of(strict) == [b"400"]


def codes_of(server: Any) -> list[bytes]:
    """The codes of the errors on WebSocket."""
    return [octets.partition(b"error-code::")[2][:3] for octets in map(bytes, server.outputs())]


def test_of_several_ends_behind_a_frame_a_person_may_type_one() -> None:
    """SA-28: it belongs to the last frame, and to none before it."""
    octets = sides.HOLA + b"\n" + sides.HELLO + b"\0" + sides.OK
    assert bodies(alike(octets, lenient=True)) == [
        ("000001", b"Hola"),
        ("123123", b"Hello"),
        "command",
    ]
    server = Server(lenient=True)
    server.receive(sides.CONNECT[:-1].replace(b"\r", b"") + b"\n\0\n", NOW)
    server.accept(SESSION)
    assert requests(server.receive(sides.HOLA, NOW)) == [("000001", b"Hola", False)]


# ── Anything at all ─────────────────────────────────────────────────────────────────────────────

GOOD = [
    *(sides.HOLA, sides.PART_1, sides.PART_2, sides.PART_3, sides.DISCONNECT),
    *(sized(b"abc", "1"), sized(b"x" * 20, "1", final=False), FAKE, sides.FORBIDDEN, NUDGE),
    *(msg(b"x" * 400, msg_id="2"), msg(b"x" * 590, other="1"), sized(b"x" * 310, "3")),
    *(part("日".encode() * 90, msg_id="4"), msg(b"y", msg_id="4"), part(b"x", ref_msg_id="5")),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    octets = bytearray(b"".join(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=5))))
    for _ in range(draw(st.integers(0, 5))):
        place = draw(st.integers(0, max(0, len(octets) - 1)))
        kind = draw(st.sampled_from(["bit", "delete", "insert", "cut", "duplicate"]))
        if kind == "bit" and octets:
            octets[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "delete":
            del octets[place : place + draw(st.integers(1, 8))]
        elif kind == "insert":
            octets[place:place] = draw(st.sampled_from([b"\0", b"\r\n", b"::", b"\xff", END, b"1"]))
        elif kind == "cut":
            del octets[place:]
        else:
            octets[place:place] = octets[place : place + 30]
    return bytes(octets)


@settings(max_examples=250, deadline=None)
@given(mutated(), st.booleans(), st.booleans(), st.sampled_from([limits(), SMALL]), st.data())
def test_whatever_comes_reads_the_same_however_it_is_split(
    octets: bytes, lengths: bool, lenient: bool, bound: Any, data: st.DataObject
) -> None:
    """SA-26, SA-27: one reading, no exception, one fault at most and it is the last."""

    def reading(chunks: list[bytes]) -> tuple[list[Any], str, bytes]:
        server = open_server(lengths=lengths, lenient=lenient, limits=bound)
        rows = flat([event for chunk in chunks for event in server.receive(chunk, NOW)])
        return rows, state_of(server), server.outputs()

    whole = reading([octets])
    assert not [row for row in whole[0][:-1] if isinstance(row, Fault)]
    assert reading([octets[i : i + 1] for i in range(len(octets))]) == whole
    places = data.draw(st.lists(st.integers(0, len(octets)), max_size=5))
    assert reading(cut(octets, *places)) == whole
    framed = open_server(framed=True, lenient=lenient)
    framed.receive([octets], NOW)
    assert (state_of(framed) == "CLOSED") is framed.finished
