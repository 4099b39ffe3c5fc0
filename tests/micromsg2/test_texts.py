"""Fields, values, properties, extension lists, commands and filters."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twisted_msgproto.micromsg2.wire import (
    BadText,
    Condition,
    Filter,
    Kind,
    Offer,
    Value,
    is_field,
    read_command,
    read_extensions,
    read_properties,
    read_value,
    write_command,
    write_extensions,
    write_properties,
    write_value,
)

# ── fields (MM-01) ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["a", "batch-ack", "0", "-", "x-9", "abcxyz019-"])
def test_lower_case_letters_digits_and_hyphens_make_a_field(text: str) -> None:
    """MM-01"""
    assert is_field(text)


@pytest.mark.parametrize("text", ["", "A", "a_b", "a b", "ä", "a\n", "a;", "a:", "٣"])
def test_anything_else_is_no_field(text: str) -> None:
    """MM-01"""
    assert not is_field(text)


# ── values (MM-22, MM-23) ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "kind", "content", "shown"),
    [
        ("N1", Kind.NUMBER, 1, "1"),
        ("N-9223372036854775808", Kind.NUMBER, -(2**63), "-9223372036854775808"),
        ("N18446744073709551615", Kind.NUMBER, 2**64 - 1, "18446744073709551615"),
        ("N1.50", Kind.NUMBER, Decimal("1.5"), "1.50"),
        ("D1413198000.0", Kind.DATE, Decimal(1413198000), "1413198000.0"),
        ("D1413198000", Kind.DATE, Decimal(1413198000), "1413198000"),
        ("THello%20%22world%22", Kind.TEXT, 'Hello "world"', 'Hello "world"'),
        ("T", Kind.TEXT, "", ""),
        ("Tcaf%C3%A9", Kind.TEXT, "café", "café"),
    ],
)
def test_a_value_is_read_by_its_prefix(text: str, kind: Kind, content: object, shown: str) -> None:
    """MM-23: the source's examples among them."""
    assert read_value(text) == Value(kind, content, shown)  # type: ignore[arg-type]
    assert read_value(text).typed


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
        ("N٣", "N٣"),
        ("N1\n", "N1\n"),
        ("D2014-10-13", "D2014-10-13"),
        ("N" + "1" * 65, "N" + "1" * 65),
        ("n%201", "n 1"),
    ],
)
def test_a_value_without_a_valid_prefix_is_untyped_text(text: str, content: str) -> None:
    """MM-22, and MM-24 for what no number is: NaN, infinity, more than 64 characters"""
    value = read_value(text)
    assert (value.kind, value.content, value.text, value.typed) == (
        Kind.TEXT,
        content,
        content,
        False,
    )


def test_a_number_may_have_64_characters() -> None:
    """MM-24"""
    assert read_value("N" + "1" * 64).kind is Kind.NUMBER


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('Hello "world"', "THello%20%22world%22"),
        ("a;b:c,d=e%", "Ta%3Bb%3Ac%2Cd%3De%25"),
        (1, "N1"),
        (-5, "N-5"),
        (Decimal("1.5"), "N1.5"),
        (0.1, "N0.1"),
        (1e22, "N10000000000000000000000"),
        (datetime(2014, 10, 13, 12, 0, tzinfo=timezone(timedelta(hours=1))), "D1413198000"),
        (datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC), "D0.5"),
        (datetime(1969, 12, 31, 23, 59, 59, 750_000, tzinfo=UTC), "D-0.25"),
        (Value(Kind.NUMBER, 7, "7"), "N7"),
        (Value(Kind.TEXT, "a b", "a b"), "Ta%20b"),
    ],
)
def test_values_are_written_typed(value: str, text: str) -> None:
    """MM-22, MM-23: the instant of the source's date example is the same in every zone"""
    written = write_value(value)
    assert written.removesuffix(".0") == text
    assert read_value(written).typed


@pytest.mark.parametrize("value", [True, None, b"x", [1]])
def test_a_value_of_another_type_is_the_callers_fault(value: object) -> None:
    with pytest.raises(TypeError):
        write_value(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), Decimal("NaN"), 10**64, datetime(2020, 1, 1)],
)
def test_what_cannot_be_said_is_not_written(value: float) -> None:
    """MM-24: no NaN, no infinity, 64 characters; and a time needs its zone"""
    with pytest.raises(BadText):
        write_value(value)


# ── properties (MM-22) ──────────────────────────────────────────────────────────────────────────


def test_the_sources_example_of_properties_is_read() -> None:
    """MM-22: underscores in keys, untyped values, ``;`` at the end"""
    properties = read_properties(b"first_name:jonas;twitter:jgauffin;")
    assert {key: value.text for key, value in properties.items()} == {
        "first_name": "jonas",
        "twitter": "jgauffin",
    }
    assert not properties["first_name"].typed


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


@pytest.mark.parametrize("octets", [b"a", b":N1;", b"A:N1;", b"a b:N1;", b"a:N1;b", b"\xff:N1;"])
def test_properties_which_do_not_parse_are_bad(octets: bytes) -> None:
    """MM-01, MM-22"""
    with pytest.raises(BadText):
        read_properties(octets)


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
    found = read_properties(write_properties(properties))  # type: ignore[arg-type]
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
    with pytest.raises(BadText):
        write_properties({key: 1})


# ── extension lists (MM-08, MM-20) ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("octets", "offers"),
    [
        (b"", ()),
        (b"json;xml;protobuf", (Offer("json"), Offer("xml"), Offer("protobuf"))),
        (b"json;;dotnet;", (Offer("json"), Offer("dotnet"))),
        (b"batch-ack:max-count=10;json", (Offer("batch-ack", {"max-count": "10"}), Offer("json"))),
        (b"batch-ack:max-count:100;", (Offer("batch-ack", {"max-count": "100"}),)),
        (b"batch-ack:count=10", (Offer("batch-ack", {"count": "10"}),)),
        (
            b"ack:MessagesPerAck=10,AckExpireTime=500",
            (Offer("ack", {"messagesperack": "10", "ackexpiretime": "500"}),),
        ),
        (
            b"x-one:a=property1,b=Hello%20%25%20world!;",
            (Offer("x-one", {"a": "property1", "b": "Hello % world!"}),),
        ),
        (b"x-one:", (Offer("x-one"),)),
        (b"x-one:a=1,,b=2,", (Offer("x-one", {"a": "1", "b": "2"}),)),
    ],
)
def test_extension_lists_are_read(octets: bytes, offers: tuple[Offer, ...]) -> None:
    """MM-08, MM-20: the source's spellings and those of the reference implementation"""
    assert read_extensions(octets, 64) == offers


@pytest.mark.parametrize(
    "octets",
    [b"Json", b"json;json", b"a b", b"a_b", b":a=1", b"a:b", b"a:b c=1", b"\xc3\xa4", b"json=1"],
)
def test_extension_lists_which_do_not_parse_are_bad(octets: bytes) -> None:
    """MM-01, MM-08: duplicates are refused"""
    with pytest.raises(BadText):
        read_extensions(octets, 64)


def test_too_many_extension_names_are_bad() -> None:
    """MM-32"""
    names = b";".join(b"x-%d" % number for number in range(65))
    with pytest.raises(BadText, match="64"):
        read_extensions(names, 64)
    assert len(read_extensions(names, 65)) == 65


def test_extension_lists_are_written_strictly() -> None:
    """MM-08: ``;`` between extensions only, ``=`` in properties, values encoded"""
    written = write_extensions(
        [Offer("batch-ack", {"max-count": "10"}), Offer("x-a", {"b": "c d;", "e": "f"})]
    )
    assert written == b"batch-ack:max-count=10;x-a:b=c%20d%3B,e=f"
    assert str(Offer("x-a", {"b": "1"})) == "x-a:b=1"
    for offer in (Offer("A"), Offer("a", {"B": "1"}), Offer("")):
        with pytest.raises(BadText):
            write_extensions([offer])


# ── commands (MM-15, MM-25) ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("octets", "command"),
    [
        (b"ping", ("ping", {})),
        (b"ping;", ("ping", {})),
        (b"SUBSCRIBE;destination=topic%2Fa", ("subscribe", {"destination": "topic/a"})),
        (b"a;b=1,c=x=y;", ("a", {"b": "1", "c": "x=y"})),
    ],
)
def test_commands_are_read(octets: bytes, command: tuple[str, dict[str, str]]) -> None:
    """MM-15, MM-25: names in any case"""
    assert read_command(octets) == command


@pytest.mark.parametrize("octets", [b"", b";a=1", b"a b", b"a;b", b"a;b c=1", b"a;\xff=1"])
def test_commands_which_do_not_parse_are_bad(octets: bytes) -> None:
    """MM-01, MM-15"""
    with pytest.raises(BadText):
        read_command(octets)


def test_commands_are_written_strictly() -> None:
    """MM-15"""
    assert (
        write_command("subscribe", {"destination": "a b,c"}) == b"subscribe;destination=a%20b%2Cc"
    )
    assert write_command("ping", {}) == b"ping"
    with pytest.raises(BadText):
        write_command("Ping", {})


# ── filters (MM-24, MM-25) ──────────────────────────────────────────────────────────────────────

PROPERTIES = read_properties(b"name:TJonas;age:N40;rate:N1.5;seen:D1413198000.5;old:Nils;")


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("", True),
        (" ; ", True),
        # text
        ("name=TJonas", True),
        ("name=Tjonas", False),
        ("name<TJo", True),
        ("name<To", False),
        ("name>Tnas", True),
        ("name>TJo", False),
        ("name!=TJonas", False),
        ("name!=TNils", True),
        ("name~Tona", False),
        ("name~TONA", True),
        ("name&Tona", True),
        ("name&Tonx", False),
        ("name = TJonas", True),
        ("name=Jonas", True),
        ("old=Nils", True),
        ("old=TNils", True),
        ("name=T%4Aonas", True),
        # numbers
        ("age=N40", True),
        ("age=N40.0", True),
        ("age!=N40", False),
        ("age!=N41", True),
        ("age<N41", True),
        ("age<N40", False),
        ("age<=N40", True),
        ("age<=N39.9", False),
        ("age>N39", True),
        ("age>N40", False),
        ("age>=N40", True),
        ("age>=N40.1", False),
        ("rate=N1.5", True),
        ("rate>N1", True),
        # dates
        ("seen=D1413198000.5", True),
        ("seen<D1413198001", True),
        ("seen<=D1413198000.4", False),
        ("seen>D1413198000", True),
        ("seen>=D1413198000.5", True),
        ("seen!=D1", True),
        # no property, or another type: never a match, whatever the operator
        ("none=N1", False),
        ("none!=N1", False),
        ("none~Tx", False),
        ("age=T40", False),
        ("age!=T40", False),
        ("age~T9", False),
        ("name!=N1", False),
        ("seen=N1413198000.5", False),
        ("old!=N1", False),
        # several: all must hold
        ("name=TJonas;age>N30", True),
        ("name=TJonas;age>N50", False),
        ("name=TJonas;age>N30;", True),
    ],
)
def test_a_filter_says_which_messages_match(expression: str, matches: bool) -> None:
    """MM-24, MM-25"""
    assert Filter.read(expression).matches(PROPERTIES) is matches


@pytest.mark.parametrize(
    "expression",
    [
        "a<=Tb",
        "a>=Tb",
        "a~N1",
        "a&N1",
        "a~D1",
        "a&D1",
        "a<=b",
        "a",
        "=N1",
        "A=N1",
        "a b=N1",
        "a?N1",
        # HO-15: meant to be numbers and dates
        "a>N1e5",
        "a=N1.2.3",
        "a=N-",
        "a=N+x",
        "a=N.",
        "a=D2026-11-22",
        "a=NNaN",
        "a=NInfinity",
        "a=N" + "1" * 65,
    ],
)
def test_a_filter_which_cannot_be_is_refused_when_it_is_set(expression: str) -> None:
    """MM-24: not when a message arrives"""
    with pytest.raises(BadText):
        Filter.read(expression)


@pytest.mark.parametrize("name", ["Nils", "Dora", "N", "D", "NaNa", "Nan", "Infinity"])
def test_names_are_text_in_filters(name: str) -> None:
    """MM-22, MM-24"""
    assert Filter.read(f"a={name}").conditions[0].value.content == name


def test_the_longest_operator_is_read_first() -> None:
    """MM-24"""
    assert [c.operator for c in Filter.read("a<=N1;b>=N1;c!=N1;d<N1;e=N1").conditions] == [
        "<=",
        ">=",
        "!=",
        "<",
        "=",
    ]


def test_a_filter_writes_what_it_reads() -> None:
    """MM-25"""
    conditions = Filter.read("a<=N1;name=Jonas%20B").conditions
    assert conditions == (
        Condition("a", "<=", Value(Kind.NUMBER, 1, "1")),
        Condition("name", "=", Value(Kind.TEXT, "Jonas B", "Jonas B")),
    )
    assert str(Filter(conditions)) == "a<=N1;name=TJonas%20B"
    assert Filter.read(str(Filter(conditions))).conditions == conditions


@pytest.mark.parametrize(
    "expression",
    ["a=T1" + " " * 60_000 + "x", " " * 60_000 + "x", "a" + " " * 60_000, "a" * 60_000 + "?"],
)
def test_a_long_filter_is_read_in_one_pass(expression: str) -> None:
    """MM-32: this would take minutes if it were not; a filter comes from a peer"""
    try:
        Filter.read(expression)
    except BadText:
        assert expression[:2] != "a="


def test_a_filter_has_a_bounded_number_of_conditions() -> None:
    """MM-32"""
    expression = ";".join(["a=N1"] * 33)
    with pytest.raises(BadText, match="32"):
        Filter.read(expression)
    assert len(Filter.read(expression, 33).conditions) == 33
