"""Envelopes: docs/broker-format.md, "Envelopes"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.core.envelope import (
    NAMES_OCTETS_MAX,
    Envelope,
    head,
    head_octets,
    unpacked,
)
from twisted_msgproto.core.errors import LimitExceeded

names = st.binary(max_size=40).map(lambda octets: octets.decode("utf-8", "surrogateescape"))


@given(st.sampled_from(["micromsg2", "mtl"]), names, names, st.binary(max_size=100))
def test_an_envelope_says_what_was_put_into_it(
    form: str, space: str, name: str, octets: bytes
) -> None:
    packed = Envelope(form, space, name, octets).packed()
    assert unpacked(packed) == Envelope(form, space, name, octets)
    assert packed[: head_octets(packed)] == head(form, space, name)


def test_an_envelope_is_laid_out_as_the_page_says() -> None:
    packed = Envelope("mtl", "mtl/v/p", "a", b"rest").packed()
    assert packed == b"\x01\x03\x13\x00\x07\x00\x01\x00mtlmtl/v/parest"


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (b"", "shorter"),
        (b"\x01\x03\x13\x00\x07\x00\x01", "shorter"),
        (b"\x02\x03\x13\x00\x07\x00\x01\x00mtlmtl/v/pa", "version 2"),
        (b"\x01\x03\x14\x00\x07\x00\x01\x00mtlmtl/v/pa", "no sense"),
        (b"\x01\x03\x13\x00\x07\x00\x01\x00mtlmtl/v/p", "no sense"),
    ],
)
def test_what_is_no_envelope_is_refused(octets: bytes, why: str) -> None:
    for read in (unpacked, head_octets):
        with pytest.raises(ValueError, match=why):
            read(octets)


def test_names_that_are_too_long_are_the_caller_s_error() -> None:
    assert unpacked(head("mtl", "", "n" * NAMES_OCTETS_MAX)).name == "n" * NAMES_OCTETS_MAX
    for form, name in (("mtl", "n" * (NAMES_OCTETS_MAX + 1)), ("f" * 256, "n")):
        with pytest.raises(LimitExceeded):
            head(form, "", name)
