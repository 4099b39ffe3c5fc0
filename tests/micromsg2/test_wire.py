"""What a session reads and writes on the wire: every layout, text and limit, however it is cut."""

from __future__ import annotations

import random
import string
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.micromsg2.streams import (
    Error,
    Part,
    Session,
    client_with,
    decode,
    flatten,
    handshake,
    limits,
    message,
    send,
    server_with,
)
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.micromsg2 import Filter
from twisted_msgproto.micromsg2.machine import Server
from twisted_msgproto.testing import splits


def read(chunks: Sequence[bytes], session: Session | None = None) -> list[object]:
    """What a session without extensions makes of them; of a fault its reason and text."""
    session = session or server_with()
    return flatten(event for chunk in chunks for event in session.receive(chunk, 0.0))


def rows(nbytes: bytes) -> list[tuple[object, ...]]:
    """Messages: (number, destination, bytes of the properties, payload)."""
    (event,) = server_with().receive(nbytes, 0.0)
    texts = [text for *_, text in flatten([event])]
    columns = (event.sequences, event.destinations, texts, event.bodies)
    return list(zip(*columns, strict=True))


def greeted(*chunks: bytes, **changes: object) -> tuple[Server, list[object]]:
    """A server which has read this instead of a handshake, and what it has written."""
    server = Server(None, limits(**changes))
    for chunk in chunks:
        server.receive(chunk, 0.0)
    return server, decode(server.outputs(), 1)


# ── handshakes (MM-02) ──────────────────────────────────────────────────────────────────────────

HULK = b"\1\0\0\4hulk\0\x0bjson;dotnet\0\0"
"""The source's example, with the length which its text really has (``MM-02``)."""


def test_the_sources_handshake_is_read_in_any_pieces() -> None:
    """MM-02, MM-03, MM-17: byte by byte too"""
    for chunks in splits(HULK):
        server, (_answer,) = greeted(*chunks)
        server.receive(HULK, 0.0)
        assert [one.name for one in server.extensions] == ["json", "dotnet"]


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        # a length of 10 for 11 bytes takes ``json;dotne``, and the next byte is a length
        (b"\1\0\0\4hulk\0\x0ajson;dotnet\0\0", "29696 bytes of extensions"),
        (b"\1\0\0\2\xc3\xa4\0\0\0\0", "ASCII"),
        (b"\1\0\0\0\0\x09json;json\0\0", "json"),
        (handshake(";".join(f"x-{number}" for number in range(65))), "more than 64 extensions"),
        (handshake("x-a:" + ",".join(f"{n}=" for n in range(33))), "more than 32 properties"),
        (b"\1\0\0\0\x10\x01", "4097 bytes of extensions"),
        (b"\1\0\0\0\0\0\x10\x01", "4097 bytes of extensions"),
        (b"\0\0\0\0\0\0\0\0", "0"),
    ],
)
def test_a_handshake_which_cannot_be_is_refused(octets: bytes, words: str) -> None:
    """MM-01, MM-02, MM-08, MM-32"""
    for chunks in splits(octets):
        server, (error,) = greeted(*chunks)
        assert isinstance(error, Error)
        assert words in error.text
        assert server.finished


def test_a_handshake_at_its_bounds_is_answered__MM_08__MM_32() -> None:
    for text in (";".join(f"x-{number}" for number in range(64)), "x-a:b=" + "x" * 4090):
        _, (answer,) = greeted(handshake("", text))
        assert not isinstance(answer, Error)


def test_any_other_byte_where_a_handshake_is_expected_is_a_major_version() -> None:
    """MM-17: HTTP and TLS too"""
    for byte in set(range(1, 256)) - {4, 12}:
        _, (answer,) = greeted(bytes((byte,)) + HULK[1:])
        assert answer.major == 1


# ── messages (MM-12) ────────────────────────────────────────────────────────────────────────────


def test_a_message_is_written_as_the_table_says() -> None:
    """MM-01, MM-11, MM-12, MM-16, MM-17"""
    client = client_with("json;pub-sub")
    send(client, "commands", b"hello", properties={"a": 1})
    client.send_command("subscribe", {"destination": "topic/a"})
    client.send_error("oops", "no")
    assert client.outputs() == (
        b"\0\0\1\x08commands\0\5a:N1;\5hello\1\x1fsubscribe;destination=topic%2Fa\4\x08oops: no"
    )


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 65536])
def test_a_payload_above_255_bytes_has_a_large_length(size: int) -> None:
    """MM-11, MM-12: LARGE_PAYLOAD"""
    client = client_with()
    send(client, "commands", b"y" * size)
    assert client.outputs() == message(1, b"y" * size)
    assert rows(message(1, b"y" * size)) == [(1, "commands", b"", b"y" * size)]


def test_a_destination_is_utf_8_and_replaced_where_it_is_not() -> None:
    """MM-12; the table's rule for text"""
    assert rows(message(1, b"", "topic/ä"))[0][1] == "topic/ä"
    server = server_with()
    for said in (b"a\xff", "a\ufffd".encode()):
        size = bytes((len(said),))
        assert read([b"\0\0\1" + size + said + b"\0\0\0", b"\4" + size + said], server) == [
            (1, "a\ufffd", {}, b"", b""),
            ("ErrorReceived", "a\ufffd", "a\ufffd"),
        ]
        assert server.decoder.replaced == 2  # and none that was so before


def test_an_address_which_only_begins_like_the_last_one_is_another() -> None:
    """MM-12: the decoder remembers the last address"""
    sent = [("ab", b""), ("a", b""), ("ab", b"k:N1;"), ("ab", b""), ("abc", b"")]
    octets = b"".join(message(n, b"x", *address) for n, address in enumerate(sent, 1))
    assert [row[1:3] for row in rows(octets)] == sent


@pytest.mark.parametrize("count", [2, 9, 10, 66, 140])
@pytest.mark.parametrize("odd", ["nothing", "size", "address", "flags", "type", "cut"])
def test_many_messages_of_one_size_are_read_like_any_others(count: int, odd: str) -> None:
    """MM-12: wherever the first odd one stands among them"""
    rng = random.Random(count)
    for place in {0, 1, min(2, count - 1), count // 2, count - 1, rng.randrange(count)}:
        frames = [message(n, b"%05d" % n) for n in range(1, count + 1)]
        number = place + 1
        if odd == "size":
            frames[place] = message(number, b"other size")
        elif odd == "address":
            frames[place] = message(number, b"%05d" % number, "commandS")
        elif odd == "flags":
            frames[place] = b"\x08" + frames[place][1:14] + b"\0\0\0\x05" + frames[place][15:]
        elif odd == "type":
            frames[place] = b"\xe0" + frames[place][1:]
        elif odd == "cut":
            frames[-1] = frames[-1][:-1]
        octets = b"".join(frames)
        found = read([octets])
        # Cut into pieces of less than a frame, nothing is ever unpacked together.
        assert found == read([octets[start : start + 5] for start in range(0, len(octets), 5)])
        assert len(found) == {"type": place + 1, "cut": count - 1}.get(odd, count)


# ── parts (MM-14) ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("octets", "parts"), [(1 << 20, 0), ((1 << 20) + 1, 1), (5 << 19, 2)])
def test_a_payload_above_one_mebibyte_is_split(octets: int, parts: int) -> None:
    """MM-14, MM-31: all but the last are CONTINUED, all carry the same number"""
    payload = random.Random(1).randbytes(octets)
    client = client_with()
    send(client, "d", payload)
    stream = client.outputs()
    *first, _ = decode(stream)
    assert [type(frame) for frame in first] == [Part] * parts
    assert {part.sequence for part in first} <= {1}
    assert all(len(part.payload) == 1 << 20 for part in first)
    assert [row[3] for row in rows(stream)] == [payload]


# ── what is refused (MM-11, MM-32) ──────────────────────────────────────────────────────────────


def test_flags_are_one_type_and_known_bits() -> None:
    """MM-11: every byte there is"""
    for flags in range(256):
        found = read([bytes((flags,)) + b"\0\1" + bytes(40)])
        bad = flags & 0xE0 or bin(flags & 7).count("1") > 1 or (flags & 16 and flags & 7)
        if bad:
            assert [row[:2] for row in found] == [("fault", "protocol-error")]
        elif flags in (0, 8):
            assert found[0][0] == 1


LONG = struct.pack(">I", 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("octets", "limit"),
    [
        (b"\0\0\1\0\x20\x01", "properties-bytes"),
        (b"\x08\0\1\0\0\0\0\x10\0\1", "frame-payload-bytes"),
        (b"\x18\0\1\0\0\0\0\x10\0\1", "frame-payload-bytes"),
        (b"\x08\0\1\0\0\0" + LONG, "frame-payload-bytes"),
        (b"\x09\0\1\0\1", "command-bytes"),
        (b"\x0a\1\0\1\0\1", "command-bytes"),
        (b"\x0c\0\1\0\1", "command-bytes"),
    ],
)
def test_every_length_is_checked_on_the_header(octets: bytes, limit: str) -> None:
    """MM-32: a fault as soon as the length is there, and not before"""
    for chunks in splits(octets):
        ((kind, reason, text),) = read(chunks)
        assert (kind, reason) == ("fault", "limit-exceeded")
        assert limit in text
    assert read([octets[:-1]]) == []


def test_what_came_before_a_fault_is_given_out_and_nothing_after_it__MM_17() -> None:
    server = server_with()
    _first, fault = server.receive(message(1) + b"\xff" * 100, 0.0)
    assert fault.nbytes == b"\xff" * 32
    assert server.receive(message(3), 0.0) == []
    assert server.input_weight == 0


def test_a_large_frame_is_not_looked_at_again_for_each_piece() -> None:
    """MM-32: byte by byte, the buffer is one buffer and grows by one byte"""
    server = server_with()
    octets = message(1, bytes(50_000))
    for index in range(len(octets) - 1):
        assert server.receive(octets[index : index + 1], 0.0) == []
        assert server.input_weight == index + 1
    (event,) = server.receive(octets[-1:], 0.0)
    assert len(event.bodies[0]) == 50_000


class Broken(Exception):
    """The peer's text broke the protocol."""


def read_properties(nbytes: bytes) -> Any:
    """What a server makes of the properties of a message."""
    (event,) = server_with().receive(message(1, properties=nbytes), 0.0)
    if isinstance(event, Fault):
        assert event.reason == "protocol-error"
        raise Broken
    assert dict(event.fields[0]) == {key: value.text for key, value in event.properties[0].items()}
    return event.properties[0]


def write_properties(properties: Mapping[str, Any]) -> bytes:
    """What a client writes."""
    client = client_with()
    send(client, "a", b"", properties=properties)
    ((_, _, octets, _),) = decode(client.outputs())
    assert isinstance(octets, bytes)
    return octets


def read_extensions(nbytes: bytes) -> list[tuple[str, dict[str, str]]]:
    """What a server that knows nothing finds missing in a client's list; of known ones, more."""
    server, length = Server(), len(nbytes).to_bytes(2, "big")
    for _ in range(2):
        server.receive(b"\1\0\0\0" + length + nbytes + b"\0\0", 0.0)
    if not server.established:
        raise Broken
    return [(one.name, dict(one.properties)) for one in server.extensions]


def read_command(nbytes: bytes) -> tuple[str, dict[str, str]]:
    (event,) = server_with("pub-sub").receive(bytes((1, len(nbytes))) + nbytes, 0.0)
    if isinstance(event, Fault):
        raise Broken
    return event.name, dict(event.parameters)


# ── values (MM-22, MM-23) ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "kind", "content", "shown"),
    [
        ("N1", "NUMBER", 1, "1"),
        ("N-9223372036854775808", "NUMBER", -(2**63), "-9223372036854775808"),
        ("N18446744073709551615", "NUMBER", 2**64 - 1, "18446744073709551615"),
        ("N" + "1" * 64, "NUMBER", int("1" * 64), "1" * 64),
        ("N1.50", "NUMBER", Decimal("1.5"), "1.50"),
        ("D1413198000.0", "DATE", Decimal(1413198000), "1413198000.0"),
        ("D1413198000", "DATE", Decimal(1413198000), "1413198000"),
        ("THello%20%22world%22", "TEXT", 'Hello "world"', 'Hello "world"'),
        ("T", "TEXT", "", ""),
        ("Tcaf%C3%A9", "TEXT", "café", "café"),
    ],
)
def test_a_value_is_read_by_its_prefix(text: str, kind: str, content: object, shown: str) -> None:
    """MM-23: the source's examples among them."""
    value = read_properties(b"k:%s;" % text.encode())["k"]
    assert (value.kind.name, value.content, value.text) == (kind, content, shown)
    assert value.typed


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Nils", "Nils"),
        ("jonas", "jonas"),
        ("D", "D"),
        ("", ""),
        ("NNaN", "NNaN"),
        ("NInfinity", "NInfinity"),
        ("N1e5", "N1e5"),
        ("N.5", "N.5"),
        ("N5.", "N5."),
        ("N1\n", "N1\n"),
        ("D2014-10-13", "D2014-10-13"),
        ("N" + "1" * 65, "N" + "1" * 65),
        ("n%201", "n 1"),
    ],
)
def test_a_value_without_a_valid_prefix_is_untyped_text(text: str, content: str) -> None:
    """MM-22, and MM-24 for what no number is: NaN, infinity, more than 64 characters"""
    value = read_properties(b"k:%s;" % text.encode())["k"]
    assert (value.kind.name, value.content, value.text, value.typed) == (
        "TEXT",
        content,
        content,
        False,
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('Hello "world"', "THello%20%22world%22"),
        ("a;b:c,d=e%", "Ta%3Bb%3Ac%2Cd%3De%25"),
        (1, "N1"),
        (-5, "N-5"),
        (10**63, f"N{10**63}"),
        (Decimal("1.5"), "N1.5"),
        (0.1, "N0.1"),
        (1e22, "N10000000000000000000000"),
        (datetime(2014, 10, 13, 12, 0, tzinfo=timezone(timedelta(hours=1))), "D1413198000"),
        (datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC), "D0.5"),
        (datetime(1969, 12, 31, 23, 59, 59, 750_000, tzinfo=UTC), "D-0.25"),
        (read_properties(b"k:N7")["k"], "N7"),
        (read_properties(b"k:Ta%20b")["k"], "Ta%20b"),
    ],
)
def test_values_are_written_typed(value: str, text: str) -> None:
    """MM-22, MM-23: the instant of the source's date example is the same in every zone"""
    written = write_properties({"k": value})
    assert written.decode().removesuffix(";").removesuffix(".0") == f"k:{text}"
    assert read_properties(written)["k"].typed


@pytest.mark.parametrize("value", [True, None, b"x", [1]])
def test_a_value_of_another_type_is_the_callers_fault(value: object) -> None:
    with pytest.raises(TypeError):
        write_properties({"k": value})


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), Decimal("NaN"), 10**64, datetime(2020, 1, 1)],
)
def test_what_cannot_be_said_is_not_written(value: float) -> None:
    """MM-24: no NaN, no infinity, 64 characters; and a time needs its zone"""
    with pytest.raises(ValueError):
        write_properties({"k": value})


# ── properties (MM-22) ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("octets", "texts"),
    [
        (b"", {}),
        (b";;", {}),
        (b"a:N1", {"a": "1"}),
        (b"a:N1;a:N2;", {"a": "2"}),
        (b"a:;", {"a": ""}),
        (b"a:Tx%3Ay:z;", {"a": "x:y:z"}),
        (b"a:T%ff;", {"a": "\ufffd"}),
    ],
)
def test_properties_are_read_leniently(octets: bytes, texts: dict[str, str]) -> None:
    """MM-22: empty items, no last ``;``, a repeated key keeps its last value"""
    assert {key: value.text for key, value in read_properties(octets).items()} == texts


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=9),
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            st.integers(-(2**63), 2**63 - 1),
            st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9)),
            st.datetimes(timezones=st.just(UTC), min_value=datetime(1800, 1, 1)),
        ),
        max_size=6,
    )
)
def test_properties_come_back_as_they_were_written(properties: dict[str, object]) -> None:
    """MM-22, MM-23: round trip with types"""
    found = read_properties(write_properties(properties))
    assert list(found) == list(properties)
    for key, value in properties.items():
        content = found[key].content
        if isinstance(value, datetime):
            epoch = datetime(1970, 1, 1, tzinfo=UTC)
            assert content == Decimal((value - epoch) // timedelta(microseconds=1)) / 1_000_000
        else:
            assert content == value
        assert found[key].typed


@pytest.mark.parametrize("key", ["", "A", "a_b", "a:b"])
def test_keys_are_written_strictly(key: str) -> None:
    """MM-01, MM-22"""
    with pytest.raises(ValueError):
        write_properties({key: 1})


# ── extension lists (MM-08, MM-20) ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("octets", "agreed"),
    [
        (b"", []),
        (b"json;;dotnet;", [("json", {}), ("dotnet", {})]),
        (b"batch-ack:max-count=10;json", [("batch-ack", {"max-count": "10"}), ("json", {})]),
        (b"batch-ack:max-count:100;", [("batch-ack", {"max-count": "100"})]),
        (
            b"ack:MessagesPerAck=10,,AckExpireTime=5%30,",
            [("ack", {"messagesperack": "10", "ackexpiretime": "50"})],
        ),
        (b"json:", [("json", {})]),
    ],
)
def test_extension_lists_are_read(octets: bytes, agreed: list[tuple[str, dict[str, str]]]) -> None:
    """MM-08, MM-20: the source's spellings and those of the reference implementation"""
    assert read_extensions(octets) == agreed


@pytest.mark.parametrize(
    "octets",
    [b"Json", b"json;json", b"a b", b"a_b", b":a=1", b"json:b c=1", b"\xc3\xa4", b"json=1"],
)
def test_extension_lists_which_do_not_parse_are_bad(octets: bytes) -> None:
    """MM-01, MM-08: duplicates are refused"""
    with pytest.raises(Broken):
        read_extensions(octets)


# ── commands (MM-15, MM-25) ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("octets", "command"),
    [
        (b"subscribe", ("subscribe", {})),
        (b"subscribe;", ("subscribe", {})),
        (b"SUBSCRIBE;destination=topic%2Fa", ("subscribe", {"destination": "topic/a"})),
        (b"unsubscribe;b=1,c=x=y;", ("unsubscribe", {"b": "1", "c": "x=y"})),
    ],
)
def test_commands_are_read(octets: bytes, command: tuple[str, dict[str, str]]) -> None:
    """MM-15, MM-25: names in any case"""
    assert read_command(octets) == command


@pytest.mark.parametrize("octets", [b"", b";a=1", b"a b", b"a;b", b"a;b c=1", b"a;\xff=1"])
def test_commands_which_do_not_parse_are_bad(octets: bytes) -> None:
    """MM-01, MM-15"""
    with pytest.raises(Broken):
        read_command(octets)


def test_commands_are_written_strictly() -> None:
    """MM-15"""
    client = client_with("pub-sub")
    client.send_command("subscribe", {"destination": "a b,c"})
    assert client.outputs()[2:] == b"subscribe;destination=a%20b%2Cc"
    with pytest.raises(ValueError, match="Subscribe"):
        client.send_command("Subscribe", {})


# ── filters (MM-24, MM-25) ──────────────────────────────────────────────────────────────────────

PROPERTIES = read_properties(
    b"name:TJonas;age:N40;rate:N1.5;seen:D1413198000.5;old:Nils;"
    b"nils:TNils;dora:TDora;n:TN;d:TD;nana:TNaNa;nan:TNan;"
)


MATCH = """
    name=TJonas name=Jonas name=T%4Aonas old=Nils old=TNils
    name<TJo name>Tnas name!=TNils name~TONA name&Tona
    age=N40 age=N40.0 age!=N41 age<N41 age<=N40 age>N39 age>=N40 rate=N1.5 rate>N1
    seen=D1413198000.5 seen<D1413198001 seen>D1413198000 seen>=D1413198000.5 seen!=D1
    name=TJonas;age>N30 name=TJonas;age>N30;
    nils=Nils dora=Dora n=N d=D nana=NaNa nan=Nan
"""
"""The last ones are names, though they begin as numbers and dates do."""

NO_MATCH = """
    name=Tjonas name<To name>TJo name!=TJonas name~Tona name&Tonx
    age!=N40 age<N40 age<=N39.9 age>N40 age>=N40.1 seen<=D1413198000.4
    none=N1 none!=N1 none~Tx
    age=T40 age!=T40 age~T9 name!=N1 seen=N1413198000.5 old!=N1
    name=TJonas;age>N50
"""
"""No property, or one of another type, matches never, whatever the operator."""

REFUSED = """
    a<=Tb a>=Tb a~N1 a&N1 a~D1 a&D1 a<=b
    =N1 a A=N1 a?N1
    a>N1e5 a=N1.2.3 a=N- a=N+x a=N. a=D2026-11-22 a=NNaN a=NInfinity
"""
"""What the last ones have is meant to be numbers and dates (HO-15)."""


def test_a_filter_says_which_messages_match() -> None:
    """MM-24, MM-25"""
    for expression in ("", " ; ", "name = TJonas", *MATCH.split()):
        assert Filter.read(expression).matches(PROPERTIES), expression
    for expression in NO_MATCH.split():
        assert not Filter.read(expression).matches(PROPERTIES), expression


@pytest.mark.parametrize("expression", [*REFUSED.split(), "a b=N1", "a=N" + "1" * 65])
def test_a_filter_which_cannot_be_is_refused_when_it_is_set(expression: str) -> None:
    """MM-24: not when a message arrives"""
    with pytest.raises(ValueError):
        Filter.read(expression)


def test_a_filter_writes_what_it_reads() -> None:
    """MM-24, MM-25: the longest operator is read first"""
    for text, written in (
        ("a<=N1;name=Jonas%20B", "a<=N1;name=TJonas%20B"),
        ("a<=N1;b>=N1;c!=N1;d<N1;e=N1", "a<=N1;b>=N1;c!=N1;d<N1;e=N1"),
    ):
        assert str(Filter.read(text)) == written
        assert str(Filter.read(written)) == written


@pytest.mark.parametrize(
    "expression",
    ["a=T1" + " " * 60_000 + "x", " " * 60_000 + "x", "a" + " " * 60_000, "a" * 60_000 + "?"],
)
def test_a_long_filter_is_read_in_one_pass(expression: str) -> None:
    """MM-32: this would take minutes if it were not; a filter comes from a peer"""
    try:
        Filter.read(expression)
    except ValueError:
        assert expression[:2] != "a="
