"""UMQ's machines: topics and attributes."""

import pytest

from tests.doubles import due
from tests.umq.sides import base36, client, feed, refused, server, told
from twisted_msgproto.core.errors import LimitExceeded

# ── Topics ──────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_lives_from_its_subscription_to_its_close():
    """UM-12, UM-13: updates may precede the answer to the call which subscribes."""
    machine = client()
    topic = machine.subscribe()
    machine.call("subscribe 1", waiter="me")
    assert feed(machine, "T1: update1", "R1:accepted", "T01:update2", "D1:") == [
        told.TopicUpdated(topic, " update1"),
        told.ResultReceived(1, "me", "accepted"),
        told.TopicUpdated(topic, "update2"),
        told.TopicClosed(topic),
    ]
    assert machine.snapshot()["subscriptions"] == 0
    assert machine.subscribe() == 2  # UM-14: ids are never reused


def test_an_update_for_an_unknown_topic_is_answered_with_one_unsubscribe():
    """UM-12, UM-14."""
    machine = client()
    assert feed(machine, "T9A8Z:x", "T09A8Z:x", "A1:T9A8Z:x", b"discarded") == []
    assert machine.outputs() == ["U9A8Z:"]
    assert feed(machine, "D9A8Z:", "T9A8Z:again") == []
    assert machine.outputs() == ["U9A8Z:"]


def test_after_unsubscribing_late_updates_are_dropped_in_silence_for_a_while():
    """UM-14: until D or 60 s."""
    machine = client()
    first, second = machine.subscribe(), machine.subscribe()
    machine.unsubscribe(first)
    machine.unsubscribe(first)
    machine.unsubscribe(second)
    assert machine.outputs() == ["U1:", "U2:"]
    assert feed(machine, "T1:late", "D1:", "D1:", "T2:late") == []
    assert machine.outputs() == []
    assert machine.counters.late_updates == 2
    assert machine.deadline == 60.0
    assert due(machine, 60.0)[1] is None
    assert feed(machine, "T2:far too late") == []
    assert machine.outputs() == ["U2:"]


def test_closing_topics_are_bounded():
    """UM-14, UM-20: a flood of unknown topics."""
    machine = client()
    for number in range(1100):
        machine.receive_text(f"T{number}:x", 0.0)
    assert machine.snapshot()["closing"] == 64
    assert len(machine.outputs()) == 1100


def test_subscriptions_are_limited():
    """UM-20."""
    machine = client(subscriptions=1)
    machine.subscribe()
    with pytest.raises(LimitExceeded):
        machine.subscribe()


def test_a_publisher_uses_the_id_it_was_given_and_answers_unsubscribe_once():
    """UM-12, UM-13, UM-14."""
    machine = server()
    topic = machine.open_topic("9A8Z")
    machine.publish(topic, "update1", [b"a"])
    assert machine.outputs() == ["A1:T9A8Z:update1", b"a"]
    assert feed(machine, "U9A8Z:", "U9A8Z:") == [told.TopicUnsubscribed(topic)]
    assert machine.outputs() == ["D9A8Z:"]
    with pytest.raises(ValueError):
        machine.publish(topic, "late")
    machine.close_topic(topic)
    assert machine.outputs() == []


def test_a_publisher_closes_a_topic_once():
    """UM-13, UM-14."""
    machine = server()
    topic = machine.open_topic("A")
    machine.close_topic(topic)
    machine.close_topic(topic)
    assert machine.outputs() == ["DA:"]
    assert feed(machine, "UA:") == []
    assert machine.outputs() == []


def test_topics_are_limited_and_their_ids_checked():
    """UM-20: a flood of subscriptions."""
    machine = server(topics=2)
    for id in ("", "a", "1" * 14, "1 "):
        with pytest.raises(ValueError):
            machine.open_topic(id)
    machine.open_topic("1")
    with pytest.raises(ValueError):
        machine.open_topic("01")
    machine.open_topic("2")
    with pytest.raises(LimitExceeded):
        machine.open_topic("3")


# ── Attributes ──────────────────────────────────────────────────────────────────────────────────


def test_attributes_are_split_at_the_first_sign_and_spaces_count():
    """UM-15, UM-16."""
    machine = server()
    assert feed(
        machine, "S:key=value", "S: k = v=w", "S7:=", "X:key", "X:never", "A1:S:p=q", b"a"
    ) == [
        told.AttributeSet("key", "value"),
        told.AttributeSet(" k ", " v=w"),
        told.AttributeSet("", ""),
        told.AttributeUnset("key"),
        told.AttributeUnset("never"),
        told.AttributeSet("p", "q", [b"a"]),
    ]
    assert {
        name: (entry.value, entry.attachments) for name, entry in machine.attributes.items()
    } == {
        " k ": (" v=w", []),
        "": ("", []),
        "p": ("q", [b"a"]),
    }


def test_an_attribute_without_a_sign_is_fatal_3():
    """UM-15."""
    refused(server(), "S:key", reason="attribute")


def test_attributes_are_limited():
    """UM-20: a flood of attributes, by number and by weight."""
    machine = server(attributes=2)
    feed(machine, "S:a=1", "S:b=1", "S:a=2", "X:b", "S:c=1")
    refused(machine, "S:d=1", code=1, reason="attributes")
    machine = server(attributes_octets=10)
    feed(machine, "S:a=12345678", "S:a=123", "S:b=12345")
    refused(machine, "A1:S:b=", b"12345678", code=1, reason="attributes")
    machine = server(attributes_octets=10)
    feed(machine, "S:a=123")
    refused(machine, "S:b=123456", code=1, reason="attributes")


def test_nothing_follows_a_fault_which_an_attachment_set_free():
    """UM-18: the fault is the last event, whatever waited behind it."""
    machine = server(attributes=1)
    assert feed(machine, "S:a=1", "A1:S:b=1", "X:b", "S:b=2") == [told.AttributeSet("a", "1")]
    assert refused(machine, b"1", code=1, reason="attributes") == []


def test_attributes_of_ours():
    """UM-15, UM-16."""
    machine = client()
    machine.set_attribute("key", "va=lue", [b"a"])
    machine.unset_attribute("key")
    assert machine.outputs() == ["A1:S:key=va=lue", b"a", "X:key"]
    with pytest.raises(ValueError):
        machine.set_attribute("a=b", "c")


def test_few_topics_that_were_never_ours_are_remembered__NB_02():
    """NB-02, UM-14: a peer could have 1,024 remembered; further ones are answered each time."""
    machine = server()
    ids = [f"{number}X" for number in range(1, 1000)]
    feed(machine, *(f"T{id}:x" for id in ids))
    assert machine.outputs() == [f"U{id}:" for id in ids]
    assert machine.snapshot()["closing"] == 64
    feed(machine, *(f"T{id}:x" for id in ids))
    assert machine.outputs() == [f"U{id}:" for id in ids[64:]]
    # Topics that were ours end as ever, however many they are.
    numbers = [machine.subscribe() for _ in range(200)]
    for number in numbers:
        machine.unsubscribe(number)
    machine.outputs()
    feed(machine, *(f"T{base36(number)}:late" for number in numbers))
    assert machine.outputs() == []
