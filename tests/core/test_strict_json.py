"""JSON which peers send is bounded and strict, whoever reads it (``MT-02``)."""

import json
import time
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.core.strict_json import JsonRefused, NotJson, check_json, parse_json

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(values)
def test_ordinary_json_is_read_as_the_standard_library_reads_it(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert parse_json(text.encode(), 1 << 20) == value


@pytest.mark.parametrize(
    "octets",
    [
        b"", b"{", b"[1,]", b"{'a': 1}", b"NaN", b"[Infinity]", b"-Infinity", b"\xff", b"nul",
        b"{} {}", b'"\x01"', b'{"a": 1', b"01", b"\xef\xbb\xbf{}", b'"', b'"\\',
    ],
)  # fmt: skip
def test_what_is_no_json_is_told_apart(octets: bytes) -> None:
    with pytest.raises(NotJson):
        parse_json(octets, 1000)
    with pytest.raises(NotJson):
        check_json(octets)


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (b'{"a": 1, "a": 1}', "twice"),
        (b'[{"b": {"a": 1, "\\u0061": 2}}]', "twice"),
        (b"[" * 5 + b"]" * 5, "deeper"),
        (b'{"a":' * 5 + b"1" + b"}" * 5, "deeper"),
        (b"1" + b"0" * 4000, "digits"),
        (b"-1" + b"0" * 4000, "digits"),
        (b"1e999", "too large"),
        (b'{"a": [-1e999]}', "too large"),
        (b'["\\ud800"]', "surrogate"),
        (b'{"\\uDFFF": 1}', "surrogate"),
        (b"[" + b" " * 1000 + b"]", "above the limit"),
    ],
)
def test_json_which_is_refused_says_why(octets: bytes, why: str) -> None:
    with pytest.raises(JsonRefused, match=why):
        parse_json(octets, 5000 if why == "digits" else 1000, 4)


def test_decoded_text_is_read_like_its_bytes() -> None:
    assert parse_json('["é", 1]', 8) == parse_json('["é", 1]'.encode(), 9) == ["é", 1]
    for text in ("1e999", '{"a": 1, "a": 1}', "[" * 65 + "]" * 65, '"\\ud800"'):
        with pytest.raises(JsonRefused):
            parse_json(text, 1000)


def test_brackets_within_strings_are_no_depth() -> None:
    text = json.dumps(["[{" * 50, '\\"[', "]"]).encode()
    assert parse_json(text, 1000, 2) == json.loads(text)
    assert parse_json(b"[[],[],[],[[]]]", 1000, 3) == [[], [], [], [[]]]
    with pytest.raises(JsonRefused, match="deeper than 2"):
        parse_json(b"[[],[[]]]", 1000, 2)  # what closes opens one level, not more


@pytest.mark.parametrize(("opened", "closed"), ["[]", ("{", "}")])
def test_objects_and_arrays_are_counted_up_to_a_limit__NB_07(opened: str, closed: str) -> None:
    text = f"[{','.join([opened + closed] * 9)}]"
    assert parse_json(text, 1000, containers_max=10) == json.loads(text)
    with pytest.raises(JsonRefused, match="more than 9 objects and arrays"):
        parse_json(text, 1000, containers_max=9)
    quoted = json.dumps([text, '"' + text])
    assert parse_json(quoted, 1000, containers_max=1) == json.loads(quoted)


@pytest.mark.parametrize("digits", range(3990, 4011))
@pytest.mark.parametrize("before", [0, 1, 3999, 7990])
def test_an_integer_is_bounded_wherever_it_stands__NB_07(before: int, digits: int) -> None:
    """Only texts with so many digits in a row are read with a look at each integer."""
    text = f"{' ' * before}[{'1' * digits},1]"
    if digits > 4000:
        with pytest.raises(JsonRefused, match="digits"):
            parse_json(text, 1 << 20)
    else:
        assert parse_json(text, 1 << 20) == [int("1" * digits), 1]
    quoted = f'["{"1" * digits}", 1.{"1" * digits}]'
    assert parse_json(quoted, 1 << 20) == json.loads(quoted)
    assert parse_json(f"[-7,{quoted}]", 1 << 20)[0] == -7
    longest = -int("1" * 4000)
    assert parse_json(f"[{longest},{quoted}]", 1 << 20)[0] == longest


ESCAPES = (
    "\\ud83d",
    "\\ude00",
    "\\\\",
    "\\n",
    "\\u00e9",
    "u",
    "d800",
    '\\"',
    "é",
    "\\uDBFF",
    "\\udC00",
)


@given(st.lists(st.sampled_from(ESCAPES), max_size=8))
def test_a_lone_surrogate_is_found_among_any_escapes(escapes: list[str]) -> None:
    text = f'["{"".join(escapes)}"]'
    value = json.loads(text)
    try:
        value[0].encode()
    except UnicodeEncodeError:
        with pytest.raises(JsonRefused, match="surrogate"):
            parse_json(text, 1000)
    else:
        assert parse_json(text, 1000) == value


def test_looking_at_the_depth_takes_linear_time() -> None:
    # An unfinished string which is full of escaped quotes must not be looked at from each of them.
    octets = b"[" * 100 + b'"' + b'\\"' * 200_000
    began = time.process_time()
    with pytest.raises(JsonRefused):
        parse_json(octets, 1 << 20, 64)
    with pytest.raises(NotJson):
        parse_json(octets, 1 << 20, 200)
    with pytest.raises(NotJson):  # many brackets, and then none for a long time
        parse_json(b"[" * 100 + b'1,"",' * 100_000, 1 << 20, 200)
    assert time.process_time() - began < 5


def test_containers_stand_64_deep_where_nothing_else_is_said() -> None:
    """MT-02"""
    for opening, inner, closing in (("[", "", "]"), ('{"a":', "1", "}")):
        text = opening * 64 + inner + closing * 64
        assert parse_json(text, 1000)
        with pytest.raises(JsonRefused, match="deeper than 64"):
            parse_json(opening + text[: -len(closing * 64)] + closing * 65, 1000)


# ── checked without being built (HO-15) ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (b"1" * 4301, None),
        (b"-" + b"9" * 9000 + b"." + b"1" * 9000 + b"e-" + b"1" * 9000, None),
        (b"0" * 9000, NotJson),
        (b"1" * 9000 + b"." + b"]", NotJson),
        (b"[" * 512 + b"]" * 512, None),
        (b"[" * 513 + b"]" * 513, JsonRefused),
        (b'{"a":' * 512 + b"1" + b"}" * 512, None),
        (b'{"a":' * 513 + b"1" + b"}" * 513, JsonRefused),
        (b"[" * 511 + b"[],[]" + b"]" * 511, None),
        (b"[" * 512 + b"[],1" + b"]" * 512, JsonRefused),
        (b'{"a": 1, "a": 2}', None),
        (b"-1e999", None),
        (b'["\\ud800"]', None),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else None,
)
def test_numbers_may_have_any_size_and_containers_stand_512_deep(
    octets: bytes, expected: type | None
) -> None:
    """HO-15"""
    with pytest.raises(expected) if expected else nullcontext():
        check_json(octets)
