"""UMQ's machines: calls, callbacks, topics, attributes; what they count and show."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.doubles import Figures, due, unanswered
from tests.umq.pairs import base36, client, feed, limits, refused, server, told
from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.umq.machine import Client

# ── Calls ───────────────────────────────────────────────────────────────────────────────────────


def test_calls_are_answered_by_value_with_the_id_as_it_was_sent():
    """UM-02, UM-09, UM-10."""
    machine = server()
    assert feed(machine, "C005AX12:How are you?") == [told.CallReceived("005AX12", "How are you?")]
    machine.result("5AX12", "Fine", [b"a"])
    assert machine.outputs() == ["A1:R005AX12:Fine", b"a"]
    feed(machine, "C:x")
    machine.error("0", "I'm teapot")
    assert machine.outputs() == ["E:I'm teapot"]


def test_our_calls_count_from_1_and_share_one_space_with_callbacks():
    """UM-09, UM-11."""
    machine = client()
    assert [machine.call("a"), machine.call("b", (), 4454), machine.call("c")] == [1, 2, 3]
    assert machine.outputs() == ["C1:a", "B2:3FQ:b", "C3:c"]


def test_answers_find_their_waiters_in_any_order():
    """UM-09."""
    machine = client()
    for name in "abc":
        machine.call(name, waiter=name)
    assert feed(machine, "E3:no", "R01:yes", "!2:6 no") == [
        told.ErrorReceived(3, "c", "no"),
        told.ResultReceived(1, "a", "yes"),
        told.ErrorReceived(2, "b", "6 no"),
    ]
    assert machine.calls_pending == 0


def test_answers_to_nobody_are_ignored_and_counted():
    """UM-09: with their attachments (UM-04)."""
    machine = client()
    machine.call("x", waiter="me")
    assert feed(machine, "R7:x", "E8:x", "A1:R9:x", b"gone") == []
    assert machine.counters.unknown_answers == 3
    assert feed(machine, "A1:R1:x", "R1:again", "E1:again", b"a") == [
        told.ResultReceived(1, "me", "x", [b"a"])
    ]
    assert machine.counters.unknown_answers == 5
    assert feed(machine, "R1:late") == []


@pytest.mark.parametrize("second", ["C1:y", "C001:y", "B1:1:y"])
def test_a_pending_id_used_twice_is_fatal_3(second):
    """UM-09: C and B share one space, compared by value."""
    refused(server(), "C1:x", second, reason="duplicate")


def test_what_is_not_pending_cannot_be_answered():
    machine = server()
    feed(machine, "C1:x")
    machine.result("1", "y")
    for verb in (machine.result, machine.error):
        with pytest.raises(ValueError):
            verb("1", "again")


def test_a_flood_of_calls_is_refused_with_8_and_costs_nothing():
    """UM-20: pending calls; the attachments of a refused call are discarded (UM-04)."""
    machine = server(calls=2)
    found = feed(machine, "C1:x", "C2:x", "A1:C3:x", "C4:x", b"gone", "C4:x")
    assert [event.id for event in found] == ["1", "2"]
    assert [text[:5] for text in machine.outputs()] == ["E3:8 ", "E4:8 ", "E4:8 "]
    assert machine.counters.calls_refused == 3
    machine.result("1", "")
    assert len(feed(machine, "C5:x")) == 1


def test_calls_are_limited_by_their_weight_too():
    """UM-20."""
    machine = server(calls_bytes=100)
    feed(machine, "A1:C1:" + "x" * 50, b"x" * 60)
    assert feed(machine, "C2:x") == []
    assert machine.outputs() == ["E2:8 too many calls are pending"]
    machine.error("1", "done")
    assert len(feed(machine, "C3:x")) == 1


@pytest.mark.parametrize("verb", ["register_callback", "subscribe"])
def test_callbacks_and_subscriptions_of_ours_are_limited(verb):
    """UM-20."""
    machine = client(callbacks=1, own_subscriptions=1)
    getattr(machine, verb)()
    with pytest.raises(LimitExceeded):
        getattr(machine, verb)()


def test_our_own_calls_are_limited_and_nothing_is_sent():
    """UM-20."""
    machine = client(own_calls=1)
    machine.call("x")
    machine.outputs()
    for verb in (machine.call, lambda text: machine.call(text, (), 1)):
        with pytest.raises(LimitExceeded):
            verb("y")
    assert machine.outputs() == []
    feed(machine, "R1:")
    assert machine.call("z") == 2


def test_a_call_which_is_not_answered_expires_and_its_late_answer_is_ignored():
    """UM-20: call time-out."""
    machine = client()
    machine.call("a", waiter="a", deadline=30.0)
    machine.call("b", waiter="b", deadline=20.0)
    machine.call("c", waiter="c")
    assert machine.deadline == 20.0
    assert due(machine, 20.0) == ([told.CallExpired(2, "b")], 30.0)
    assert feed(machine, "R2:late") == []
    assert feed(machine, "R1:x") == [told.ResultReceived(1, "a", "x")]
    assert due(machine, 1000.0)[1] is None
    assert unanswered(machine) == ["c"]
    assert unanswered(machine) == []


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_call_may_end_while_its_answers_attachments_are_on_their_way(how):
    """UM-04, UM-20: its slots stay, its bytes are discarded."""
    machine = client()
    machine.call("a", waiter="a", deadline=20.0)
    machine.call("b", waiter="b")
    feed(machine, "A2:R1:x", b"1", "A1:R2:y", now=1.0)
    if how == "cancel":
        assert machine.cancel(1)
        assert not machine.cancel(1)
    else:
        assert machine.advance(20.0) == [told.CallExpired(1, "a")]
    assert feed(machine, b"2", b"3") == [told.ResultReceived(2, "b", "y", [b"3"])]
    assert (machine.input_weight, machine.no_partial_input) == (0, True)


# ── Callbacks ───────────────────────────────────────────────────────────────────────────────────


def test_callbacks_stay_until_they_are_unregistered():
    """UM-11."""
    machine = client()
    first, second = machine.register_callback(), machine.register_callback()
    assert (first, second) == (1, 2)
    assert feed(machine, "B63:1:work: a:b", "A1:B64:02:x", b"y") == [
        told.CallbackReceived("63", 1, "work: a:b"),
        told.CallbackReceived("64", 2, "x", [b"y"]),
    ]
    machine.unregister_callback(first)
    machine.outputs()
    assert feed(machine, "A1:B65:1:x", b"discarded", "B66:2:y") == [
        told.CallbackReceived("66", 2, "y")
    ]
    assert machine.outputs() == ["E65:2 callback not found"]
    assert machine.register_callback() == 3
    assert machine.calls_serving == 3


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


def test_attributes_are_limited():
    """UM-20: a flood of attributes, by number and by weight."""
    machine = server(attributes=2)
    feed(machine, "S:a=1", "S:b=1", "S:a=2", "X:b", "S:c=1")
    refused(machine, "S:d=1", code=1, reason="attributes")
    machine = server(attributes_bytes=10)
    feed(machine, "S:a=12345678", "S:a=123", "S:b=12345")
    refused(machine, "A1:S:b=", b"12345678", code=1, reason="attributes")
    machine = server(attributes_bytes=10)
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


def test_a_machine_counts_shows_and_says_each_step__UM_04__UM_09__UM_11__UM_14() -> None:
    machine = server(calls=3, callbacks=2)

    def figures() -> dict[str, Any]:
        counted = {f"counted {name}": count for name, count in asdict(machine.counters).items()}
        own = {"no_partial_input": machine.no_partial_input, "deadline": machine.deadline}
        shown = machine.snapshot()
        assert machine.input_weight == shown.pop("held_bytes")
        return {**counted, **shown, **own}

    assert {name: value for name, value in figures().items() if value} == {
        "state": "OPEN", "no_partial_input": True
    }  # fmt: skip
    changed = Figures(figures)

    def read(now: float, *messages: str | bytes) -> None:
        for message in messages:
            machine.receive([message], now)

    gone = {"announcements": 0, "no_partial_input": True}
    steps: list[tuple[Callable[[], object], dict[str, Any], list[str]]] = [
        (lambda: read(1.0, "C1:x", "C2:y"), {"counted calls": 2, "calls": 2}, []),
        (
            lambda: read(2.0, "A2:C3:x"),
            {
                **{"counted calls": 3, "calls": 3, "announcements": 1},
                **{"no_partial_input": False, "deadline": 62.0},
            },
            [],
        ),
        (lambda: read(3.0, b"abc"), {"counted attachments": 1}, []),
        (lambda: read(3.0, b"d"), {"counted attachments": 2, **gone}, []),
        (
            lambda: read(3.5, "C4:x"),
            {"counted calls": 4, "counted calls_refused": 1},
            ["E4:8 too many calls are pending"],
        ),
        (lambda: machine.result("1", "ok"), {"calls": 2}, ["R1:ok"]),
        (lambda: machine.error("2", "no"), {"calls": 1}, ["E2:no"]),
        (lambda: read(4.0, "S:a=b"), {"attributes": 1}, []),
        (lambda: read(4.0, "X:a"), {"attributes": 0}, []),
        (lambda: machine.call("p", deadline=30.0), {"own_calls": 1, "deadline": 30.0}, ["C1:p"]),
        (lambda: machine.call("q"), {"own_calls": 2}, ["C2:q"]),
        (lambda: read(5.0, "R1:ok"), {"counted results": 1, "own_calls": 1}, []),
        (lambda: read(5.0, "R9:ok"), {"counted unknown_answers": 1}, []),
        (lambda: read(5.0, "E2:no"), {"counted errors": 1, "own_calls": 0}, []),
        (lambda: read(5.0, "E2:no"), {"counted unknown_answers": 2}, []),
        (machine.register_callback, {"callbacks": 1}, []),
        (lambda: read(6.0, "B5:1:x"), {"counted calls": 5, "calls": 2}, []),
        (lambda: read(6.0, "B6:9:x"), {"counted calls": 6}, ["E6:2 callback not found"]),
        (lambda: machine.unregister_callback(1), {"callbacks": 0}, []),
        (machine.subscribe, {"subscriptions": 1}, []),
        (lambda: read(7.0, "T1:u"), {"counted updates": 1}, []),
        (lambda: read(7.0, "T5:u"), {"counted unknown_topics": 1, "closing": 1}, ["U5:"]),
        (lambda: machine.unsubscribe(1), {"subscriptions": 0, "closing": 2}, ["U1:"]),
        (lambda: read(7.0, "T1:u"), {"counted late_updates": 1}, []),
        (lambda: read(7.0, "D1:"), {"closing": 1}, []),
        (lambda: read(7.0, "D1:"), {"counted unknown_topics": 2}, []),
        (machine.subscribe, {"subscriptions": 1}, []),
        (lambda: read(7.0, "D2:"), {"subscriptions": 0}, []),
        (lambda: machine.open_topic("K"), {"topics": 1}, []),
        (lambda: machine.publish(20, "u"), {}, ["TK:u"]),
        (lambda: read(8.0, "UK:"), {"topics": 0}, ["DK:"]),
        (lambda: read(8.0, "UK:"), {"counted unknown_topics": 3}, []),
        (lambda: machine.open_topic("M"), {"topics": 1}, []),
        (lambda: machine.close_topic(22), {"topics": 0}, ["DM:"]),
        (
            lambda: read(9.0, "A1:C7:x"),
            {
                **{"counted calls": 7, "calls": 3, "announcements": 1},
                "no_partial_input": False,
            },
            [],
        ),
        (
            lambda: read(9.0, "-:lost"),
            {"counted attachments": 3, "counted attachments_failed": 1, **gone},
            [],
        ),
        (
            lambda: read(10.0, "A2:C8:x"),
            {
                **{"counted calls": 8, "counted calls_refused": 2, "announcements": 1},
                **{"no_partial_input": False},
            },
            ["E8:8 too many calls are pending"],
        ),
        (lambda: machine.paused(11.0), {}, []),
        (lambda: machine.resumed(12.0), {}, []),
        (lambda: machine.advance(13.0), {}, []),
        (lambda: machine.advance(71.0), {"closing": 0, "deadline": 72.0}, []),
        (
            lambda: machine.advance(72.0),
            {
                **{"state": "CLOSED", "deadline": None},
                **{"announcements": 0, "no_partial_input": True},
            },
            ["F0:3 no attachment for 60 s"],
        ),
    ]
    told: list[tuple[int, dict[str, Any], list[str]]] = []
    for number, (step, _, _) in enumerate(steps):
        told.append((number, changed(step()), machine.outputs()))
    assert told == [(n, expected, said) for n, (_, expected, said) in enumerate(steps)]


def test_a_client_has_all_the_time_to_accept_its_server__UM_07() -> None:
    """The server has said its word in time."""
    machine = Client(limits(), 0.0)
    machine.hello()
    assert machine.deadline is not None
    machine.receive(["W1:"], 1.0)
    assert machine.deadline is None
    assert machine.advance(1e6) == []
    machine.accept(1e6)
    assert (machine.closed, machine.deadline) == (False, None)
