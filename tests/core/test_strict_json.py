"""JSON which peers send is bounded and strict, whoever reads it (``MT-02``)."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.core.strict_json import JsonRefused, NotJson, parse_json

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


def test_decoded_text_is_read_like_its_octets() -> None:
    assert parse_json('["é", 1]', 8) == parse_json('["é", 1]'.encode(), 9) == ["é", 1]
    for text in ("1e999", '{"a": 1, "a": 1}', "[" * 65 + "]" * 65, '"\\ud800"'):
        with pytest.raises(JsonRefused):
            parse_json(text, 1000)


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert parse_json(b'["\\ud83d\\ude00"]', 100) == ["😀"]


def test_brackets_within_strings_are_no_depth() -> None:
    text = json.dumps(["[{" * 50, '\\"[', "]"]).encode()
    assert parse_json(text, 1000, 2) == json.loads(text)
    assert parse_json(b"[[],[],[],[[]]]", 1000, 3) == [[], [], [], [[]]]


def test_the_largest_integer_of_64_bits_is_read() -> None:
    assert parse_json(b"18446744073709551615", 100) == 2**64 - 1


def test_looking_at_the_depth_takes_linear_time() -> None:
    # An unfinished string which is full of escaped quotes must not be looked at from each of them.
    octets = b"[" * 100 + b'"' + b'\\"' * 200_000
    began = time.process_time()
    with pytest.raises(JsonRefused):
        parse_json(octets, 1 << 20, 64)
    with pytest.raises(NotJson):
        parse_json(octets, 1 << 20, 200)
    assert time.process_time() - began < 5
