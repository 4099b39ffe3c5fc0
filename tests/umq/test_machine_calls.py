"""UMQ's machines: calls and callbacks, their ids, their answers, their limits."""

import pytest

from tests.doubles import due, unanswered
from tests.umq.sides import client, feed, refused, server, told
from twisted_msgproto.core.errors import LimitExceeded

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
    assert [machine.call("a"), machine.callback(4454, "b"), machine.call("c")] == [1, 2, 3]
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


def test_an_id_may_be_used_again_after_its_answer():
    """UM-09."""
    machine = server()
    for _ in range(3):
        feed(machine, "C1:x")
        machine.result("1", "y")
    assert machine.outputs() == ["R1:y"] * 3
    assert machine.calls_serving == 0


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
    machine = server(calls_octets=100)
    feed(machine, "A1:C1:" + "x" * 50, b"x" * 60)
    assert feed(machine, "C2:x") == []
    assert machine.outputs() == ["E2:8 too many calls are pending"]
    machine.error("1", "done")
    assert len(feed(machine, "C3:x")) == 1


def test_our_own_calls_are_limited_and_nothing_is_sent():
    """UM-20."""
    machine = client(own_calls=1)
    machine.call("x")
    machine.outputs()
    for verb in (machine.call, lambda text: machine.callback(1, text)):
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
    """UM-04, UM-20: its slots stay, its octets are discarded."""
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
    assert (machine.held, machine.whole) == (0, True)


def test_a_cancelled_call_is_not_answered():
    """UM-20: cancel is supported."""
    machine = client()
    machine.call("a", waiter="a")
    assert machine.cancel(1)
    assert feed(machine, "R1:x") == []
    assert machine.counters.unknown_answers == 1


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


@pytest.mark.parametrize("payload", ["", "1", "x:1", "1z:1", " 1:x", "1" * 14 + ":x"])
def test_a_callback_without_its_id_is_fatal_3(payload):
    """UM-11, UM-18."""
    refused(client(), "B1:" + payload, reason="callback")


def test_callbacks_are_limited():
    """UM-20."""
    machine = client(callbacks=1)
    machine.register_callback()
    with pytest.raises(LimitExceeded):
        machine.register_callback()
