"""Envelopes: docs/broker-format.md, "Envelopes"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.core.broker import QueueName
from twisted_msgproto.core.broker.envelopes import Opened, head, head_of, opened

names = st.binary(max_size=40).map(lambda octets: octets.decode("utf-8", "surrogateescape"))


@given(st.sampled_from(["micromsg2", "mtl"]), names, names, st.binary(max_size=100))
def test_an_envelope_says_what_was_put_into_it(
    form: str, space: str, name: str, octets: bytes
) -> None:
    begins = head(form, QueueName(space, name))
    assert opened(begins + octets) == Opened(form, QueueName(space, name), octets)
    assert head_of(begins + octets) == begins


def test_an_envelope_is_laid_out_as_the_page_says() -> None:
    packed = head("mtl", QueueName("mtl/v/p", "a")) + b"rest"
    assert packed == b"\x01\x03\x13\x00\x07\x00\x01\x00mtlmtl/v/parest"


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\x01\x03\x13\x00\x07\x00\x01",
        b"\x02\x03\x13\x00\x07\x00\x01\x00mtlmtl/v/pa",
        b"\x01\x03\x14\x00\x07\x00\x01\x00mtlmtl/v/pa",
        b"\x01\x03\x13\x00\x07\x00\x01\x00mtlmtl/v/p",
    ],
)
def test_what_is_no_envelope_is_refused(octets: bytes) -> None:
    with pytest.raises(ValueError, match="envelope"):
        opened(octets)


def test_a_name_that_is_too_long_is_the_caller_s_error() -> None:
    with pytest.raises(ValueError, match="too long"):
        head("mtl", QueueName("", "n" * 65_536))


def test_a_queue_without_a_name_has_the_shortest_envelope() -> None:
    shortest = head("", QueueName("", ""))
    assert head_of(shortest) == shortest
    assert opened(shortest) == Opened("", QueueName("", ""), b"")
