"""What seldom happens to UMQ's machines."""

from tests.umq.sides import client, feed, names, server
from twisted_msgproto.umq.machine.attachments import Slot


def test_a_websocket_message_above_its_limit_is_answered_with_f_once__UM_19():
    machine = server()
    (fault,) = machine.oversized(1.0)
    assert names([fault]) == ["UmqFault"] and fault.reason == "websocket-message-octets"
    assert [text[:3] for text in machine.outputs()] == ["F0:"]
    assert machine.oversized(2.0) == []
    assert machine.outputs() == []


def test_a_server_that_stops_refuses_calls_and_ends_when_the_others_are_answered():
    machine = server()
    feed(machine, "C1:before")
    assert machine.drain(1.0) == []
    assert feed(machine, "C2:behind") == []
    assert machine.outputs() == ["E2:8 the server stops"]
    assert not machine.finished
    machine.result("1", "done")
    assert machine.finished


def test_a_peer_that_is_read_again_without_attachments_on_the_way_has_no_deadline():
    machine = server()
    machine.paused(1.0)
    machine.resumed(2.0)
    assert machine.deadline is None
    feed(machine, "A1:C1:x", now=3.0)
    machine.paused(4.0)
    machine.resumed(5.0)
    assert machine.deadline is not None
    while machine.fault is None:
        machine.advance(machine.deadline)
    assert 5.0 < machine.clock < 200.0
    machine.paused(6.0)
    machine.resumed(7.0)
    assert machine.deadline is None


def test_the_time_to_fill_an_attachment_begins_with_the_call__UM_04():
    machine = client()
    machine.clock = 100.0
    machine.call("x", [Slot()])
    assert machine.deadline == 145.0


def test_each_attachment_has_the_whole_time_to_be_filled__UM_04():
    machine = client()
    slots = [Slot(), Slot()]
    machine.call("x", slots)
    machine.advance(40.0)
    machine.fill(slots[0], b"1")
    machine.outputs()
    machine.advance(45.0)
    assert machine.outputs() == []
    assert machine.deadline == 85.0
    machine.advance(85.0)
    assert machine.outputs()[0].startswith("-:")


def test_the_clock_of_a_client_goes_with_the_time_and_never_back():
    machine = client()
    machine.advance(7.0)
    machine.advance(5.0)
    assert machine.clock == 7.0
    list(machine.receive(["C1:x"], 7.5))
    assert machine.clock == 7.5
    machine.clock = 7.0
    machine.made_safe((), 6.0)
    assert machine.clock == 7.0
    machine.made_safe((), 8.0)
    assert machine.clock == 8.0
    machine.not_safe((), 9.0)
    assert machine.clock == 9.0
    machine = client()
    machine.oversized(7.0)
    assert machine.clock == 7.0


def test_each_topic_that_closes_has_its_own_time__UM_14():
    machine = client()
    first, second = machine.subscribe(), machine.subscribe()
    feed(machine, "T1:x", now=10.0)
    machine.unsubscribe(first)
    feed(machine, "T2:x", now=30.0)
    machine.unsubscribe(second)
    machine.outputs()
    machine.advance(70.0)
    assert machine.snapshot()["closing"] == 1
    machine.advance(machine.deadline)
    assert (machine.clock, machine.snapshot()["closing"]) == (90.0, 0)
