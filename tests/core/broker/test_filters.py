"""Consumers that do not want everything, and work in slices.

Properties that go from one protocol to another, as text; and the table of a message's states.

Envelopes: docs/queue-format.md, "Envelopes".
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.broker.world import (
    NOW,
    ORDERS,
    OTHERS,
    Reader,
    broker,
    queued_all,
    subscribed,
)
from twisted_msgproto.core.broker import Broker, QueuedMessage, QueueName
from twisted_msgproto.core.broker.envelopes import Opened, as_text, head, head_of, opened


def even(message: QueuedMessage) -> bool:
    return message.message_id % 2 == 0


def odd(message: QueuedMessage) -> bool:
    return message.message_id % 2 == 1


def filtered(one: Broker, wants: object, window: int = 1000) -> Reader:
    reader = Reader(window)
    one.subscribe(reader, ORDERS, NOW, wants)  # type: ignore[arg-type]
    one.go_on()
    return reader


def test_a_second_subscription_replaces_the_filter() -> None:
    one = broker()
    reader = filtered(one, even)
    one.publish(ORDERS, queued_all(range(4)), NOW)
    one.subscribe(reader, ORDERS, NOW, odd)
    one.go_on()
    assert reader.message_ids == [0, 2, 1, 3]
    assert one.store.snapshot()["broker_subscriptions"] == 1


def test_a_filter_that_raises_ends_its_consumer() -> None:
    one = broker()

    def wants(message: QueuedMessage) -> bool:
        raise TypeError("text is no number")

    broken = filtered(one, wants)
    other = filtered(one, None)
    one.publish(ORDERS, queued_all(range(4)), NOW)
    assert [str(error) for error in broken.failures] == ["text is no number"]
    assert other.message_ids == [0, 1, 2, 3]


def test_a_consumer_that_cannot_tell_its_room_ends() -> None:
    one = broker()
    broken, other = subscribed(one), subscribed(one)
    broken.room = lambda: 1 // 0  # type: ignore[method-assign]
    one.publish(ORDERS, queued_all(range(4)), NOW)
    assert len(broken.failures) == 1
    assert other.message_ids == [0, 1, 2, 3]


def test_filters_that_cost_much_are_asked_over_many_turns_NB_07() -> None:
    one = broker()
    reader, asked = Reader(), []

    def wants(message: QueuedMessage) -> bool:
        asked.append(message.message_id)
        return False

    one.publish(ORDERS, queued_all(range(1000)), NOW)
    one.subscribe(reader, ORDERS, NOW, wants, lambda message: 2000)
    turns = 0
    while one.unfinished:
        before = len(asked)
        one.go_on()
        assert (len(asked) - before) * 2000 <= 2 * 100_000
        turns += 1
    assert turns >= 10 and asked == list(range(1000))


def test_a_long_backlog_is_delivered_over_many_turns_and_others_have_theirs_NB_07() -> None:
    one = broker()
    one.publish(ORDERS, queued_all(range(20_000)), NOW)
    bulk = Reader(100_000)
    one.subscribe(bulk, ORDERS, NOW)
    one.go_on()
    assert one.unfinished and 0 < len(bulk.got) < 20_000
    other = subscribed(one, OTHERS)
    one.publish(OTHERS, queued_all([20_000]), NOW)
    assert other.message_ids == [20_000]
    while one.unfinished:
        one.go_on()
    assert bulk.message_ids == list(range(20_000))


def test_a_consumer_may_call_the_broker_while_it_is_written_to() -> None:
    one = broker()

    class Prompt(Reader):
        def push(self, queue: object, messages: object) -> bool:
            super().push(queue, messages)  # type: ignore[arg-type]
            self.settle(one)
            return True

    prompt = Prompt(1)
    one.publish(ORDERS, queued_all(range(50)), NOW)
    one.subscribe(prompt, ORDERS, NOW)
    one.go_on()
    assert prompt.message_ids == list(range(50))
    assert one.store.snapshot()["broker_acknowledged"] == 50
    one.publish(ORDERS, queued_all(range(50, 60)), NOW)
    assert prompt.message_ids == list(range(60))


def test_a_consumer_may_go_while_another_is_written_to() -> None:
    one = broker()
    lost, last = Reader(5), Reader(5)

    class Ending(Reader):
        def push(self, queue: object, messages: object) -> bool:
            one.gone(lost, NOW)
            return super().push(queue, messages)  # type: ignore[arg-type]

    ending = Ending(3)
    for reader in (ending, lost, last):
        one.subscribe(reader, ORDERS, NOW)
    one.go_on()
    one.publish(ORDERS, queued_all(range(6)), NOW)
    assert (ending.message_ids, lost.message_ids) == ([0, 3, 1], [])
    assert last.message_ids == [2, 5, 4]


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (b"\x00\xff", "AP8="),
        (NOON, "2026-01-02T12:00:00Z"),
        (Decimal("1.50"), "1.50"),
        (True, "true"),
        (None, "null"),
        (1.5, "1.5"),
        ({"a": [b"x", NOON, Decimal("2.0")]}, '{"a": ["eA==", "2026-01-02T12:00:00Z", 2.0]}'),
    ],
)
def test_a_value_of_any_type_has_a_text(value: Any, text: str) -> None:
    assert as_text(value) == text


names = st.binary(max_size=40).map(lambda nbytes: nbytes.decode("utf-8", "surrogateescape"))


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
