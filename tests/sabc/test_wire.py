"""Frames as octets: what may be written, and what a body must not look like."""

import pytest

from twisted_msgproto.core.limits import Limits
from twisted_msgproto.sabc.terms.limits import SESSION_LIMITS
from twisted_msgproto.sabc.wire import (
    Bounds,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Message,
    encode,
    encode_head,
    ends_early,
    header_line,
    leads_into_frame,
    part_start,
)

from .vectors import (
    CONNECT,
    DISCONNECT,
    FORBIDDEN,
    HOLA,
    PART_1,
    SEND_ONLY,
    SESSION,
    Read,
    crlf,
    decode,
)


@pytest.mark.parametrize(
    "kind", [Connect, Connected, Disconnect, Disconnecting, Error, Message], ids=lambda k: k.command
)
def test_a_frame_takes_no_more_memory_than_its_fields__NB_02(kind):
    assert not hasattr(kind({"session-id": SESSION}), "__dict__")


def test_the_examples_of_the_source_are_what_we_write() -> None:
    # SA-01, SA-02
    assert (
        encode(Connect({"client-id": "23450-678-aedc", "client-passcode": "Password@123"}))
        == CONNECT
    )
    assert encode(Disconnect({"session-id": SESSION}, final=False)) == DISCONNECT
    assert encode(Message({"session-id": SESSION, "msg-id": "000001"}, b"Hola")) == HOLA
    headers = {"session-id": SESSION, "msg-id": "888999", "send-only": "yes"}
    assert encode(Message(headers, b"OK")) == SEND_ONLY
    assert encode(Error({"error-code": "403"}, b"Access Forbidden")) == FORBIDDEN
    part = {"session-id": SESSION, "msg-id": "123456", "msg-more": "yes"}
    body = crlf("This is first part of the message. Second\npart ")
    assert encode(Message(part, body, final=False)) == PART_1


def test_an_empty_body_is_followed_by_nul_alone() -> None:
    # SA-01
    assert encode(Message({"a": "b"}, b"")) == b"MESSAGE\r\na::b\r\n\r\n\0"


def test_a_length_is_written_only_where_a_body_can_be() -> None:
    # SA-26
    assert encode(Message({"a": "b"}, b"xy"), lengths=True) == (
        b"MESSAGE\r\na::b\r\ncontent-length::2\r\n\r\nxy\r\n\r\n\0"
    )
    assert b"content-length" not in encode(Disconnect({"a": "b"}), lengths=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a", "b::c"),
        ("a", "::"),
        ("a::b", "c"),
        ("a:", "c"),
        ("", "c"),
        *[("a", f"b{octet}c") for octet in "\r\n\0"],
        *[(f"a{octet}", "b") for octet in "\r\n\0"],
        ("a", "b\r\nsession-id::x"),
        ("a", 5),
        (b"a", "b"),
    ],
)
def test_no_header_can_inject_another(key: str, value: str) -> None:
    # SA-03
    with pytest.raises(ValueError, match="header"):
        header_line(key, value)


def test_a_surrogate_is_no_utf_8() -> None:
    # SA-04
    with pytest.raises(ValueError, match="surrogates"):
        encode_head("MESSAGE", {"a": "\ud800"})


@pytest.mark.parametrize(("key", "value"), [("a", ":b"), ("a:b", "c"), ("é", "日本"), (" a", " ")])
def test_odd_but_clear_headers_are_written_as_they_are(key: str, value: str) -> None:
    # SA-02: spaces are not stripped, the first "::" splits
    line = header_line(key, value)
    assert line.partition("::")[::2] == (key, value)


def test_a_head_above_the_bounds_is_not_written() -> None:
    # SA-27
    bounds = Bounds(2, 20, 30)
    assert encode_head("MESSAGE", {"a": "b", "c": "d"}, bounds)
    assert encode_head("MESSAGE", {"a": "x" * 10, "b": "x" * 10}, bounds)
    with pytest.raises(ValueError, match="30 octets of headers"):
        encode_head("MESSAGE", {"a": "x" * 11, "b": "x" * 10}, bounds)
    assert encode_head("MESSAGE", {"a": "x" * 17}, bounds)
    with pytest.raises(ValueError, match="20 octets a header"):
        encode_head("MESSAGE", {"a": "x" * 18}, bounds)
    with pytest.raises(ValueError, match="2 headers"):
        encode_head("MESSAGE", {"a": "b", "c": "d", "e": "f"}, bounds)
    with pytest.raises(ValueError, match="20 octets a header"):
        encode_head("MESSAGE", {"a": "x" * 20}, bounds)
    with pytest.raises(ValueError, match="30 octets of headers"):
        encode_head("MESSAGE", {"a": "x" * 16, "b": "x" * 16}, bounds)


def test_bounds_come_from_the_limits() -> None:
    # SA-27
    limits = Limits.of(SESSION_LIMITS)
    assert Bounds.of(limits) == Bounds() == Bounds(32, 1024, 8192)
    assert Bounds.of(limits.replace({"header-block-octets": 1024})) == Bounds(4, 128, 1024)


@pytest.mark.parametrize(
    ("body", "early"),
    [
        (b"", False),
        (b"\0", True),
        (b"\r\n\0", True),
        (b"x\0", False),
        (b"x\r\n\0", False),
        (b"x\r\n\r\n\0y", True),
        (b"x\r\n\r\n", False),
    ],
)
def test_which_bodies_a_reader_without_lengths_would_cut(body: bytes, early: bool) -> None:
    # SA-21
    assert ends_early(body) is early


def test_a_part_begins_at_no_nul() -> None:
    # SA-21
    assert part_start(b"ab\0\0cd", 2) == 4
    assert part_start(b"ab\r\n\0cd", 2) == 3
    assert part_start(b"ab\r\n\0cd", 4) == 5
    assert part_start(b"abcd", 2) == 2
    assert part_start(b"ab\0\0", 2) == 4


@pytest.mark.parametrize(
    ("part", "leads"),
    [
        (b"ERROR\r\nx::y", True),
        (b"see MESSAGE\r\na::b\r\nx::", True),
        (b"ERROR\nx::y", True),
        (b"ERROR\r\nx", False),
        (b"ERROR\r\nx::y\r\n", False),
        (b"x::y", False),
        (b"ERRO\r\nx::y", False),
    ],
)
def test_which_parts_would_lean_against_the_next_head(part: bytes, leads: bool) -> None:
    # SA-26
    assert leads_into_frame(part, 0, len(part), Bounds()) is leads


def test_a_head_as_long_as_a_block_may_be_leads_into_the_next_frame__SA_26() -> None:
    bounds = Bounds(block_octets=200)
    head = b"MESSAGE\r\n" + b"a::1\r\n" * 31 + b"last::"
    part = b"x" * 50 + head
    assert len(head) > bounds.block_octets - 10
    assert leads_into_frame(part, 0, len(part), bounds)


@pytest.mark.parametrize(("octets", "found"), [(1024, True), (1025, False)])
def test_a_frame_behind_a_part_is_found_with_a_header_at_its_bound__SA_26(
    octets: int, found: bool
) -> None:
    line = "a::".ljust(octets, "v")
    part = f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\nmsg-more::yes\n\nbody "
    reading = decode([crlf(f"{part}MESSAGE\nsession-id::{SESSION}\n{line}\n\nend\n\n^@")])
    assert len(reading) == (2 if found else 1)


def test_a_frame_behind_a_part_is_found_with_bare_lf__SA_26__SA_28() -> None:
    part = f"MESSAGE\nsession-id::{SESSION}\nmsg-id::1\nmsg-more::yes\n\nbody "
    text = f"{part}MESSAGE\nsession-id::{SESSION}\nmsg-id::1\n\nend\n\n\0"
    frames = [read for read in decode([text.encode()], lenient=True) if isinstance(read, Read)]
    assert [frame.body for frame in frames] == [b"body ", b"end"]
