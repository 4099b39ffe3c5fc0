"""Where frames end: the examples, every split, a slow and obvious reading beside the fast one."""

from __future__ import annotations

import gc
import re
import time
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc.wire import END, Bounds, Frame, Message, encode
from twisted_msgproto.sabc.wire.framing import BodyContinued, Decoder, FrameOpened, read_frame

from . import vectors
from .vectors import SESSION, Read, crlf, cut, decode

EXAMPLES = b"".join(
    (
        vectors.CONNECT,
        vectors.CONNECTED,
        vectors.HOLA,
        vectors.MUNDO,
        vectors.SEND_ONLY,
        vectors.PART_1,
        vectors.PART_2,
        vectors.PART_3,
        vectors.FORBIDDEN,
        vectors.DISCONNECTING,
        vectors.DISCONNECT,
    )
)


def message(body: bytes, *, final: bool = True, **headers: str) -> bytes:
    """A MESSAGE of the session without lengths."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return encode(Message({"session-id": SESSION, **named}, body, final=final))


def commands(reading: list[Read | Fault]) -> list[str]:
    return [r.command if isinstance(r, Read) else r.reason for r in reading]


# ── The examples ────────────────────────────────────────────────────────────────────────────────


def test_the_examples_of_the_source_are_read_from_a_stream() -> None:
    # SA-01, SA-19, SA-26: the second frame of the message begins in mid-line
    reading = decode([EXAMPLES])
    assert commands(reading) == [
        *("CONNECT", "CONNECTED", "MESSAGE", "MESSAGE", "MESSAGE"),
        *("MESSAGE", "MESSAGE", "MESSAGE", "ERROR", "DISCONNECTING", "DISCONNECT"),
    ]
    frames = [read for read in reading if isinstance(read, Read)]
    assert [frame.body for frame in frames[2:5]] == [b"Hola", b"Mundo!!!", b"OK"]
    assert [frame.final for frame in frames[5:8]] == [False, False, True]
    assert b"".join(frame.body for frame in frames[5:8]) == vectors.WHOLE_BODY
    assert sum(frame.octets for frame in frames) == len(EXAMPLES) - 1  # CONNECT's NUL


def test_the_examples_read_the_same_however_they_are_split() -> None:
    # SA-01, SA-26
    whole = decode([EXAMPLES])
    assert decode([EXAMPLES[i : i + 1] for i in range(len(EXAMPLES))]) == whole
    for place in range(len(EXAMPLES)):
        assert decode(cut(EXAMPLES, place)) == whole


def test_the_examples_are_read_with_bare_lf_where_that_is_asked_for() -> None:
    # SA-28
    text = EXAMPLES.replace(b"\r\n", b"\n")
    whole = decode([text], lenient=True)
    assert commands(whole) == commands(decode([EXAMPLES]))
    assert decode([text[i : i + 1] for i in range(len(text))], lenient=True) == whole
    for place in range(len(text)):
        assert decode(cut(text, place), lenient=True) == whole
    assert commands(decode([text])) == ["command"]  # strict: no command is that long
    assert decode([EXAMPLES], lenient=True) == decode([EXAMPLES])


def test_a_terminal_may_send_line_ends_between_frames() -> None:
    # SA-28: after NUL comes the line end which sent the line
    text = (
        b"CONNECT\nclient-id::me\n\n\0\n" + message(b"x", msg_id="1") + b"\n\r\nERROR\na::b\n\n\0"
    )
    whole = decode([text], lenient=True)
    assert commands(whole) == ["CONNECT", "MESSAGE", "ERROR"]
    assert decode([text[i : i + 1] for i in range(len(text))], lenient=True) == whole


def test_a_second_nul_between_frames_is_no_frame() -> None:
    # SA-26
    for lenient in (False, True):
        octets = vectors.CONNECT + b"\0CONNECT\r\na::b\r\n\r\n"
        assert commands(decode([octets], lenient=lenient)) == ["CONNECT", "command"]
        assert commands(decode([vectors.HOLA + b"\0" * 20], lenient=lenient))[-1] == "command"


# ── Commands without a body ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [b"", b"\0", END])
@pytest.mark.parametrize("command", ["CONNECT", "CONNECTED", "DISCONNECT", "DISCONNECTING"])
def test_an_end_mark_after_a_command_without_body_is_swallowed(command: str, end: bytes) -> None:
    # SA-26: also when it arrives later
    octets = f"{command}\r\na::b\r\n\r\n".encode() + end + vectors.HOLA
    for place in range(len(octets)):
        assert commands(decode(cut(octets, place))) == [command, "MESSAGE"]


def test_a_command_without_body_ends_at_its_blank_line() -> None:
    # SA-26: it does not wait for an end mark
    assert commands(decode([vectors.DISCONNECT])) == ["DISCONNECT"]


@pytest.mark.parametrize("octets", [b"\r\0", b"\rx", b"\r\n\r\n\r\n\rx", b"\0\r\0"])
def test_a_command_without_body_has_none(octets: bytes) -> None:
    # SA-26
    stream = vectors.DISCONNECT + octets
    whole = decode([stream])
    assert commands(whole) == ["DISCONNECT", "framing"]
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == whole


@pytest.mark.parametrize("ends", [b"\r\n", b"\r\n\r\n", b"\r\n" * 5])
@pytest.mark.parametrize("first", [vectors.HOLA, vectors.DISCONNECT, vectors.DISCONNECT + b"\0"])
def test_line_ends_between_frames_are_read_over(first: bytes, ends: bytes) -> None:
    """HO-19, SA-26: a terminal puts one behind the NUL."""
    stream = first + ends + vectors.HOLA + ends
    whole = decode([stream])
    assert commands(whole)[-1] == "MESSAGE"
    assert len(whole) == 2
    for place in range(len(stream)):
        assert decode(cut(stream, place)) == whole
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == whole


def test_no_line_end_stands_before_the_first_frame_or_behind_an_announced_body() -> None:
    """SA-26"""
    assert commands(decode([b"\r\n" + vectors.HOLA])) == ["command"]
    octets = with_length(b"abc", final=False) + b"\r\n" + with_length(b"abc")
    assert commands(decode([octets], lengths=True)) == ["MESSAGE", "framing"]
    octets = with_length(b"abc") + b"\r\n" + with_length(b"abc")
    assert commands(decode([octets], lengths=True)) == ["MESSAGE", "MESSAGE"]


# ── Heads ───────────────────────────────────────────────────────────────────────────────────────

BAD_HEADS = {
    "unknown": (b"HELLO\r\na::b\r\n\r\n", "command"),
    "lower case": (b"connect\r\na::b\r\n\r\n", "command"),
    "space": (b"CONNECT \r\na::b\r\n\r\n", "command"),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "command"),
    "not utf-8 in the command": (b"CONN\xff\r\na::b\r\n\r\n", "command"),
    "empty": (b"\r\na::b\r\n\r\n", "command"),
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
    "33 headers": (
        b"MESSAGE\r\n" + b"".join(b"h%d::\r\n" % i for i in range(33)) + b"\r\n\0",
        "header-lines",
    ),
    "a long line": (b"MESSAGE\r\na::" + b"x" * 1022 + b"\r\n\r\n\0", "header-line-octets"),
    "an endless line": (b"MESSAGE\r\na::" + b"x" * 5000, "header-line-octets"),
    "a long block": (
        b"MESSAGE\r\n" + b"".join(b"h%d::%s\r\n" % (i, b"x" * 900) for i in range(10)) + b"\r\n\0",
        "header-block-octets",
    ),
}


@pytest.mark.parametrize("name", BAD_HEADS)
def test_what_is_no_head_is_a_fault_however_it_is_split(name: str) -> None:
    # SA-02, SA-03, SA-04, SA-05, SA-06, SA-27
    octets, reason = BAD_HEADS[name]
    whole = decode([octets])
    assert commands(whole) == [reason]
    assert decode([octets[i : i + 1] for i in range(len(octets))]) == whole
    for place in range(0, len(octets), 1 + len(octets) // 100):
        assert decode(cut(octets, place)) == whole
    assert decode([octets, vectors.HOLA]) == whole  # nothing comes after a fault


def test_heads_at_their_bounds_are_read() -> None:
    # SA-27: 32 headers, 1 KiB a line, 8 KiB in all
    for lines in (
        [b"h%d::" % i for i in range(32)],
        [b"a::" + b"x" * 1021],
        [b"h%d::" % i + b"x" * 1017 for i in range(7)] + [b"i::" + b"x" * 1003, b"j::" + b"x" * 18],
    ):
        octets = b"MESSAGE\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n\0"
        assert commands(decode([octets])) == ["MESSAGE"]
        assert commands(decode([octets[i : i + 1] for i in range(len(octets))])) == ["MESSAGE"]
    assert len(b"".join(line + b"\r\n" for line in lines)) == 8192


def test_smaller_bounds_hold_on_the_quick_way_too() -> None:
    # SA-27
    bounds = Bounds(2, 100, 40)
    octets = b"MESSAGE\r\na::" + b"x" * 40 + b"\r\n\r\n\0"
    assert commands(decode([octets], decoder=Decoder(bounds))) == ["header-block-octets"]
    octets = b"MESSAGE\r\na::\r\nb::\r\nc::\r\n\r\n\0"
    assert commands(decode([octets], decoder=Decoder(bounds))) == ["header-lines"]


def test_connect_alone_may_come_without_headers() -> None:
    # SA-02
    for lenient in (False, True):
        reading = decode([b"CONNECT\r\n\r\n"], lenient=lenient)
        assert commands(reading) == ["CONNECT"]


def test_headers_split_at_the_first_separator_and_keep_their_spaces() -> None:
    # SA-02
    (frame,) = decode([b"MESSAGE\r\n a :: b \r\nc:::d\r\ne::\r\n\r\n\0"])
    assert isinstance(frame, Read)
    assert frame.headers == ((" a ", " b "), ("c", ":d"), ("e", ""))


def test_headers_are_utf_8() -> None:
    # SA-04
    (frame,) = decode(["MESSAGE\r\nschlüssel::日本\r\n\r\n\0".encode()])
    assert isinstance(frame, Read)
    assert frame.headers == (("schlüssel", "日本"),)


def test_repr_shows_no_header_values() -> None:
    # SA-08: a passcode is never in a log
    frame = read_frame(vectors.CONNECT)
    assert "Password" not in repr(frame)
    assert "client-passcode" in repr(frame)


# ── Bodies without lengths ──────────────────────────────────────────────────────────────────────


def test_nul_may_stand_in_a_body() -> None:
    # SA-21
    body = b"a\0b\r\n\0c\r\n\r\nd\0\0"
    (frame,) = decode([message(body, msg_id="1")])
    assert isinstance(frame, Read)
    assert frame.body == body


@pytest.mark.parametrize("end", [b"\0", b"\r\n\0", b"\r\n\r\n\0"])
def test_the_end_mark_counts_from_the_blank_line(end: bytes) -> None:
    # SA-01, SA-26
    octets = b"MESSAGE\r\na::b\r\n\r\n" + end
    for place in range(len(octets)):
        (frame,) = decode(cut(octets, place))
        assert isinstance(frame, Read)
        assert (frame.body, frame.final, frame.octets) == (b"", True, len(octets))


FAKE = message(b"smuggled", msg_id="9")


def test_a_whole_frame_in_a_body_is_body() -> None:
    # SA-22, SA-26: without msg-more nothing but an end mark ends a body
    inner = FAKE[:-5]
    octets = message(b"before" + inner + b"after", msg_id="1")
    whole = decode([octets])
    assert commands(whole) == ["MESSAGE"]
    for place in range(len(octets)):
        assert decode(cut(octets, place)) == whole


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
        f"MESSAGE\n\nsession-id::{SESSION}\n\n",
        f"MESSAGE\nsession-id::{SESSION}\nx::" + "y" * 2000 + "\n\n",
        f"MESSAGE\nx::{'y' * 2000}\nsession-id::{SESSION}\n\n",
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
def test_what_is_no_frame_of_this_session_is_body(block: str) -> None:
    # SA-26
    body = b"text " + crlf(block) + b"more"
    octets = message(body, final=False, msg_id="1", msg_more="yes") + vectors.DISCONNECT
    whole = decode([octets])
    assert commands(whole) == ["MESSAGE", "DISCONNECT"]
    assert isinstance(whole[0], Read)
    assert (whole[0].body, whole[0].final) == (body, False)
    for place in range(0, len(octets), 1 + len(octets) // 150):
        assert decode(cut(octets, place)) == whole
    assert decode([octets[i : i + 1] for i in range(len(octets))]) == whole


@pytest.mark.parametrize(
    "text",
    [
        f"MESSAGE\nsession-id::{SESSION}\n\n^@",
        f"ERROR\na::b\nsession-id::{SESSION}\nc::d\n\n^@",
        f"DISCONNECT\nsession-id::{SESSION}\n\n",
        f"DISCONNECTING\nsession-id::{SESSION}\n\n",
    ],
)
@pytest.mark.parametrize("before", ["", "x", "x\n", f"session-id::{SESSION}\n", "a::b\n", "ERRORx"])
def test_a_part_ends_where_the_next_frame_of_the_session_begins(text: str, before: str) -> None:
    # SA-26: anywhere, not only at a line's start
    octets = message(crlf(before), final=False, msg_id="1", msg_more="yes") + crlf(text)
    whole = decode([octets])
    assert commands(whole) == ["MESSAGE", text.split("\n")[0]]
    assert isinstance(whole[0], Read)
    assert (whole[0].body, whole[0].final) == (crlf(before), False)
    for place in range(len(octets)):
        assert decode(cut(octets, place)) == whole


def test_a_second_line_with_the_session_begins_its_own_block() -> None:
    # SA-26: what stands before it does not count for the bounds of the block
    before = f"x\nsession-id::{SESSION}\n" + "".join(f"a{n}::\n" for n in range(18)) + "b::x"
    block = f"MESSAGE\nsession-id::{SESSION}\n" + "".join(f"c{n}::\n" for n in range(20)) + "\n^@"
    octets = message(crlf(before), final=False, msg_id="1", msg_more="yes") + crlf(block)
    whole = decode([octets])
    assert commands(whole) == ["MESSAGE", "MESSAGE"]
    assert isinstance(whole[0], Read)
    assert whole[0].body == crlf(before)
    assert decode([octets[i : i + 1] for i in range(len(octets))]) == whole


def test_the_first_command_under_which_a_block_is_valid_counts() -> None:
    # SA-26: whichever comes first
    text = f"ERROR\nx::y MESSAGE\nsession-id::{SESSION}\n\n^@"
    octets = message(b"body ", final=False, msg_id="1", msg_more="yes") + crlf(text)
    whole = decode([octets])
    assert commands(whole) == ["MESSAGE", "ERROR"]
    for place in range(len(octets)):
        assert decode(cut(octets, place)) == whole


def test_an_end_mark_before_the_next_frame_makes_msg_more_mean_nothing() -> None:
    # SA-18
    octets = message(b"body", msg_id="1", msg_more="yes") + vectors.HOLA
    whole = decode([octets])
    assert [read.final for read in whole if isinstance(read, Read)] == [True, True]
    for place in range(len(octets)):
        assert decode(cut(octets, place)) == whole


def test_the_next_frame_is_not_looked_for_in_an_error() -> None:
    # SA-23: an error is one frame
    octets = crlf(f"ERROR\nmsg-more::yes\n\nx MESSAGE\nsession-id::{SESSION}\n\n^@")
    assert commands(decode([octets])) == ["ERROR"]


LINES = st.sampled_from(
    [
        *(b"MESSAGE", b"ERROR", b"DISCONNECT", b"DISCONNECTING", b"CONNECT", b"x", b""),
        *(b"a::b", b"c::d MESSAGE", b"a::x", b"e::f::g", b"\0", b"y\0z", b"\xff", b"h::\xff"),
        *(b"session-id::S", b"session-id::T", b"xERROR", b"session-id::S2", b"\r", b"\n"),
    ]
)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"", b"\r\n\r\n", b"\r\n\r\n\0"])
BODIES = st.lists(st.tuples(LINES, ENDS), max_size=14).map(
    lambda rows: b"".join(line + end for line, end in rows)
)


def _valid(lines: list[bytes]) -> bool:
    """A header block of session S, by the letter of the rules."""
    keys = []
    for line in lines:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return False
        key, separator, value = text.partition("::")
        if not separator or "::" in value or not key or re.search("[\r\n\0]", text):
            return False
        keys.append(key)
    return len(set(keys)) == len(keys) and b"session-id::S" in lines


def slow_end(head_and_body: bytes, start: int) -> tuple[int, int, bool] | None:
    """Where a body with msg-more ends, next frame and finality: every place is tried in turn."""
    data = head_and_body
    for place in range(start - 4, len(data)):
        if data.startswith(END, place):
            return max(place, start), place + 5, True
        if place < start:
            continue
        for command in (b"MESSAGE\r\n", b"ERROR\r\n", b"DISCONNECT\r\n", b"DISCONNECTING\r\n"):
            if data.startswith(command, place):
                block, blank, _ = data[place + len(command) - 2 :].partition(b"\r\n\r\n")
                if blank and _valid(block[2:].split(b"\r\n")):
                    return place, place, False
    return None


@settings(max_examples=200, deadline=None)
@given(BODIES, st.data())
def test_the_fast_search_agrees_with_the_obvious_one(body: bytes, data: st.DataObject) -> None:
    # SA-26
    head = b"MESSAGE\r\nsession-id::S\r\nmsg-more::yes\r\n\r\n"
    octets = head + body
    expected = slow_end(octets, len(head))
    places = data.draw(st.lists(st.integers(0, len(octets)), max_size=4))
    for chunks in ([octets], cut(octets, *places), [octets[i : i + 1] for i in range(len(octets))]):
        first = decode(chunks, session_id="S")[0]
        assert isinstance(first, Read)
        if expected is None:
            assert first.final is None
        else:
            end, following, final = expected
            assert (first.body, first.final) == (octets[len(head) : end], final)
            assert first.octets == following


# ── Bodies with lengths ─────────────────────────────────────────────────────────────────────────


def with_length(body: bytes, *, final: bool = True, length: str | None = None) -> bytes:
    headers = {"content-length": length or str(len(body)), "a": "b"}
    return encode(Message(headers, body, final=final))


@pytest.mark.parametrize(
    "body", [b"", b"x", b"\0", b"\r\n\r\n\0", b"a\r\n\r\n\0MESSAGE\r\n", b"x" * 40, FAKE]
)
def test_an_announced_body_may_hold_anything(body: bytes) -> None:
    # SA-26, SA-21
    for final in (True, False):
        octets = with_length(body, final=final) + with_length(b"next")
        whole = decode([octets], lengths=True)
        assert [r.body for r in whole if isinstance(r, Read)] == [body, b"next"]
        assert [r.final for r in whole if isinstance(r, Read)] == [final, True]
        assert whole[0].headers == (("a", "b"),)  # type: ignore[union-attr]
        for place in range(len(octets)):
            assert decode(cut(octets, place), lengths=True) == whole


def test_an_announced_empty_body_may_end_with_the_long_mark() -> None:
    # SA-26
    octets = b"MESSAGE\r\ncontent-length::0\r\n\r\n\r\n\r\n\0" + with_length(b"x")
    assert commands(decode([octets], lengths=True)) == ["MESSAGE", "MESSAGE"]


@pytest.mark.parametrize(
    "length", ["", "-1", "+1", " 1", "1 ", "0x1", "1.0", "12345678901", "１", "a", "1_0"]
)
def test_a_length_is_one_to_ten_digits(length: str) -> None:
    # SA-26
    octets = f"MESSAGE\r\ncontent-length::{length}\r\n\r\nx".encode()
    assert commands(decode([octets], lengths=True)) == ["content-length"]
    assert commands(decode([octets], lengths=False)) == ["MESSAGE"]  # an ordinary header


def test_a_length_is_on_every_frame_with_a_body() -> None:
    # SA-26
    for command in ("MESSAGE", "ERROR"):
        octets = f"{command}\r\na::b\r\n\r\n\0".encode()
        assert commands(decode([octets], lengths=True)) == ["content-length"]
    assert commands(decode([vectors.DISCONNECT], lengths=True)) == ["DISCONNECT"]


def test_ten_digits_are_only_a_promise() -> None:
    # SA-26, SA-27: nothing is set aside for a body that has not come
    decoder = Decoder(part_octets=64)
    decoder.lengths = True
    decoder.feed(b"MESSAGE\r\ncontent-length::9999999999\r\n\r\n" + b"x" * 1000)
    while decoder.next() is not None:
        pass
    assert decoder.held < 64


@pytest.mark.parametrize("after", [b"x", b"\0", b"\r\n\0", b"\r\n\r\nM", b"\r\n\r\n\r", b"\n\n\0"])
def test_what_follows_an_announced_body_is_an_end_mark_or_a_frame(after: bytes) -> None:
    # SA-26
    for body in (b"abc", b"a" * 30):
        octets = with_length(body, final=False) + after
        whole = decode([octets], lengths=True)
        assert commands(whole) == ["MESSAGE", "framing"]
        assert whole[0].body == body[: len(body) - len(body) % 8]  # type: ignore[union-attr]
        for place in range(len(octets)):
            assert decode(cut(octets, place), lengths=True) == whole


# ── Time and room ───────────────────────────────────────────────────────────────────────────────


def feed_all(octets: bytes, step: int, *, lengths: bool) -> float:
    decoder = Decoder()
    decoder.lengths, decoder.session_id = lengths, SESSION
    began = time.process_time()
    for start in range(0, len(octets), step):
        decoder.feed(octets[start : start + step])
        while decoder.next() is not None:
            pass
    assert decoder.held == 0
    return time.process_time() - began


HARD = {
    "plain": b"x" * 64,
    "line ends": b"\r\n" * 32,
    "half marks": b"\r\n\r\n\r" * 12 + b"....",
    "the session's id": f"x\r\nsession-id::{SESSION}\r\ny::z\r\n".encode() + b"." * 8,
    "commands": b"x::MESSAGE\r\n" * 5 + b"....",
}


@pytest.mark.parametrize("framing", ["mark", "more", "length"])
@pytest.mark.parametrize("name", HARD)
def test_a_body_in_single_octets_costs_linear_time(name: str, framing: str) -> None:
    # SA-26: what four times the octets cost, against four times the cost; no clock is asserted on
    # but by its own measure, and quadratic work would show as 16 against 4
    more = {"msg_more": "yes"} if framing == "more" else {}

    def stream(size: int) -> bytes:
        body = (HARD[name] * (size // len(HARD[name]) + 1))[:size]
        if framing == "length":
            return with_length(body)
        return message(body, msg_id="1", **more)

    small, large = stream(1 << 15), stream(1 << 17)
    ratios = []
    for _ in range(3):
        ratios.append(
            feed_all(large, 1, lengths=framing == "length")
            / feed_all(small, 1, lengths=framing == "length")
        )
        if ratios[-1] < 8:
            return
    pytest.fail(f"four times the octets cost {ratios} times as much")


@pytest.mark.parametrize("framing", ["mark", "more", "length"])
def test_a_mebibyte_in_single_octets_is_read_and_held_in_little(framing: str) -> None:
    # SA-26, SA-27
    body = b"y" * (1 << 20)
    octets = (
        with_length(body)
        if framing == "length"
        else message(body, msg_id="1", **({"msg_more": "yes"} if framing == "more" else {}))
    )
    decoder = Decoder()
    decoder.lengths, decoder.session_id = framing == "length", SESSION
    most = received = 0
    for start in range(0, len(octets), 1):
        decoder.feed(octets[start : start + 1])
        most = max(most, decoder.held)
        while (piece := decoder.next()) is not None:
            received += len(piece.octets) if isinstance(piece, BodyContinued) else 0
    assert received == len(body)
    assert most <= 65536 + 8192 + 64


# ── WebSocket ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\n\r\n", b"\r\n\r\n\0", b"\r\n\r\n\r\n\r\n\0"])
@pytest.mark.parametrize("command", ["CONNECT", "CONNECTED", "DISCONNECT", "DISCONNECTING"])
def test_on_websocket_a_command_may_end_after_its_last_header(command: str, end: bytes) -> None:
    # SA-02
    frame = read_frame(f"{command}\r\na::b".encode() + end)
    assert isinstance(frame, Frame)
    assert (frame.command, frame.headers) == (command, {"a": "b"})


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
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
    ],
)
def test_what_is_no_websocket_frame(octets: bytes, reason: str) -> None:
    # SA-02, SA-05, SA-21
    fault = read_frame(octets)
    assert isinstance(fault, Fault)
    assert fault.reason == reason


def test_on_websocket_a_frame_without_end_mark_is_not_final() -> None:
    # SA-20, SA-21: NUL within the body, CRLF CRLF NUL ends it, content-length means nothing
    frame = read_frame(vectors.PART_2)
    assert isinstance(frame, Frame)
    assert (frame.final, frame.end_octets) == (False, 0)
    frame = read_frame(b"MESSAGE\r\ncontent-length::1\r\n\r\nabc\r\n\r\n\0")
    assert isinstance(frame, Frame)
    assert (frame.body, frame.final, frame.end_octets) == (b"abc", True, 5)
    assert frame.headers == {"content-length": "1"}


def test_of_several_ends_behind_a_frame_a_person_may_type_one__SA_28() -> None:
    """It belongs to the last frame, and to none before it."""
    for before in (vectors.DISCONNECT, vectors.CONNECT, vectors.HOLA):
        got = decode([before + b"\n" + vectors.HOLA + b"\0" + vectors.HOLA], lenient=True)
        assert commands(got)[1:] == ["MESSAGE", "command"], before


def test_lenient_websocket_frames() -> None:
    # SA-28
    for octets in (
        b"MESSAGE\na::b\n\nx\n\n\0",
        b"MESSAGE\na::b\n\nx\n\n\0\n",
        b"DISCONNECT\na::b\n",
    ):
        frame = read_frame(octets, lenient=True)
        assert isinstance(frame, Frame)
        assert isinstance(read_frame(octets), Fault)


@pytest.mark.parametrize("name", ["CONNECT", "CONNECTED", "HOLA", "OK", "PART_1", "PART_3"])
def test_a_stream_and_a_websocket_message_are_read_alike(name: str) -> None:
    # SA-01, SA-26
    octets = getattr(vectors, name)
    frame = read_frame(octets)
    assert isinstance(frame, Frame)
    whole = decode([octets + vectors.DISCONNECT])
    assert isinstance(whole[0], Read)
    assert whole[0].headers == tuple(frame.headers.items())
    assert whole[0].body == frame.body


# ── Anything at all ─────────────────────────────────────────────────────────────────────────────

GOOD = [
    getattr(vectors, name)
    for name in ("CONNECT", "HOLA", "PART_1", "PART_2", "PART_3", "DISCONNECT")
]
GOOD += [with_length(b"abc"), with_length(b"x" * 20, final=False), FAKE, vectors.FORBIDDEN]


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
@given(mutated(), st.booleans(), st.booleans(), st.data())
def test_whatever_comes_reads_the_same_however_it_is_split(
    octets: bytes, lengths: bool, lenient: bool, data: st.DataObject
) -> None:
    # SA-26, SA-27: one reading, no exception, nothing held without bound
    def reading(chunks: list[bytes]) -> list[Read | Fault]:
        return decode(chunks, lengths=lengths, lenient=lenient)

    whole = reading([octets])
    assert reading([octets[i : i + 1] for i in range(len(octets))]) == whole
    places = data.draw(st.lists(st.integers(0, len(octets)), max_size=5))
    assert reading(cut(octets, *places)) == whole
    read_frame(octets, lenient=lenient)


def test_two_cuts_anywhere_in_a_message_of_parts() -> None:
    # SA-19, SA-26
    octets = message(b"ab", final=False, msg_id="1", msg_more="yes") + message(b"c", msg_id="1")
    whole = decode([octets])
    for places in combinations(range(0, len(octets), 3), 2):
        assert decode(cut(octets, *places)) == whole


@pytest.mark.parametrize("before", [b"", message(b"a", msg_id="1") + message(b"b", msg_id="2")])
def test_an_end_mark_of_its_own_stands_only_behind_a_command_without_a_body__SA_26(
    before: bytes,
) -> None:
    decoder = Decoder()
    prefix = f"MESSAGE\r\nsession-id::{SESSION}\r\nmsg-id::".encode()
    decoder.feed(before)
    many = decoder.plain(prefix, 1 << 20, {}, 100)
    assert many == ((["1", "2"], [b"a", b"b"], 3) if before else None)
    decoder.feed(b"\0" + message(b"c", msg_id="3"))
    assert isinstance(decoder.next(), Fault)


def test_frames_within_a_body_are_not_read_with_others__SA_21() -> None:
    """Not even where the part before has just been handed out."""
    decoder = Decoder(part_octets=4)
    decoder.lengths = True
    within = b"".join(
        encode(Message({"session-id": SESSION, "msg-id": f"{n}"}, b"body"), lengths=True)
        for n in range(2)
    )
    body = b"part" + within
    octets = encode(Message({"session-id": SESSION, "msg-id": "9"}, body), lengths=True)
    begin = octets.index(within)
    decoder.feed(octets[:begin])
    assert [type(decoder.next()) for _ in range(3)] == [FrameOpened, BodyContinued, type(None)]
    decoder.feed(octets[begin:])
    prefix = f"MESSAGE\r\nsession-id::{SESSION}\r\nmsg-id::".encode()
    assert not decoder.at_head
    assert decoder.plain(prefix, 1 << 20, {}, 100) is None
    assert isinstance(piece := decoder.next(), BodyContinued)
    assert piece.octets == within


def test_a_frame_of_websocket_leaves_nothing_that_only_the_garbage_collector_finds__NB_02() -> None:
    octets = message(b"a", msg_id="1")
    gc.collect()
    read_frame(octets)
    assert gc.collect() == 0


def test_an_end_mark_behind_a_typed_line_end_is_read_over_however_it_is_split__SA_28() -> None:
    octets = vectors.CONNECT.partition(END)[0].rstrip(b"\0\r\n") + b"\r\n\r\n" + b"\r\n\0\n"
    octets += message(b"a", msg_id="1")
    whole = decode([octets], lenient=True)
    assert commands(whole) == ["CONNECT", "MESSAGE"]
    for place in range(len(octets)):
        assert decode(cut(octets, place), lenient=True) == whole


@pytest.mark.parametrize("behind", [b"ABC\r\n", b"ZZ\r\n"])
def test_what_may_be_a_command_behind_an_announced_body_ends_it__SA_21__SA_26(
    behind: bytes,
) -> None:
    head = f"MESSAGE\r\nsession-id::{SESSION}\r\nmsg-id::1\r\ncontent-length::2\r\n\r\n"
    read, fault = decode([head.encode() + b"hi" + behind], lengths=True)
    assert isinstance(read, Read) and (read.body, read.final) == (b"hi", False)
    assert isinstance(fault, Fault) and fault.reason == "command"


def test_a_command_behind_the_line_of_the_session_begins_no_frame__SA_26() -> None:
    body = f"text\r\nsession-id::{SESSION}\r\nx::MESSAGE\r\n\r\nmore".encode()
    octets = message(body, msg_id="1", msg_more="yes")
    decoder = Decoder()
    decoder.session_id = SESSION
    decoder.feed(octets)
    assert isinstance(read := decoder.next(), Message)
    assert (read.body, read.final) == (body, True)


def test_the_rest_of_a_body_is_no_frame_whatever_it_looks_like__SA_21() -> None:
    decoder = Decoder(part_octets=4)
    looks = encode(Message({"session-id": SESSION, "msg-id": "0"}, b"body"))[: -len(END)]
    octets = encode(Message({"session-id": SESSION, "msg-id": "9"}, looks))
    decoder.feed(octets[: -len(END)])
    assert isinstance(decoder.next(), FrameOpened)
    decoder.feed(END)
    prefix = f"MESSAGE\r\nsession-id::{SESSION}\r\nmsg-id::".encode()
    assert not decoder.at_head
    assert decoder.plain(prefix, 1 << 20, {}, 100) is None
