"""UMQ's machines: attachments in and out, their order, their limits, their time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles import due
from tests.umq.pairs import client, feed, limits, names, refused, server, told
from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.umq import AttachmentFailure
from twisted_msgproto.umq.machine import Client
from twisted_msgproto.umq.machine.attachments import Slot

# ── Attachments in ──────────────────────────────────────────────────────────────────────────────


def test_updates_which_wait_when_their_topic_is_unsubscribed_are_dropped():
    """UM-04, UM-14: the slots stay."""
    machine = client()
    machine.subscribe()
    feed(machine, "A1:T1:a", "D1:")
    machine.unsubscribe(1)
    assert feed(machine, "A1:C1:x", b"1", b"2") == [told.CallReceived("1", "x", [b"2"])]
    assert machine.outputs() == ["U1:"]
    assert machine.snapshot()["closing"] == 0


def test_attachments_which_wait_are_limited_in_all():
    """UM-19: what is discarded or given out does not count."""
    machine = server(attachments_bytes=100, calls=3)
    feed(machine, "C1:", "C2:", "A1:C3:", b"x" * 99)
    feed(machine, "A2:C4:refused", b"x" * 99, b"x" * 99, "A3:S:a=", b"x" * 90)
    refused(machine, b"x" * 20, reason="attachments-bytes")


BOUNDS = [
    ("announcements", 2, ["A1:S:a=", "A1:C1:x"], "A1:C2:x"),
    ("waiting_messages", 2, ["A1:S:a=", "S:a="], "X:a"),
    ("attachments_bytes", 9, ["A3:S:a=", b"12345678"], b"9"),
    ("attachment_bytes", 9, ["A2:S:a=", b"123456789"], b"1234567890"),
]


@pytest.mark.parametrize(("limit", "most", "within", "above"), BOUNDS)
def test_what_waits_may_be_as_much_as_a_limit_says__UM_19(limit, most, within, above):
    machine = server(**{limit: most})
    assert feed(machine, *within)[1:] == []
    refused(machine, above, reason=limit.replace("_", "-"))


def test_texts_which_wait_count_as_well():
    """UM-19: a flood behind one attachment which never comes."""
    machine = client(attachments_bytes=1000, attributes_bytes=10**6)
    feed(machine, "A1:S:a=")
    for _ in range(9):
        feed(machine, "S:a=" + "x" * 100)
    refused(machine, "S:a=" + "x" * 100, reason="attachments-bytes")
    machine = client(attachments_bytes=1000)
    refused(machine, "A1:S:a=" + "x" * 1000, reason="attachments-bytes")


def test_attachments_have_their_time_from_when_the_peer_is_read_again():
    """UM-19: while nothing is read, that nothing comes means nothing."""
    machine = server()
    machine.paused(1.0)
    machine.resumed(2.0)
    assert machine.deadline is None  # none is on its way
    feed(machine, "A1:C2:x", now=100.0)
    machine.paused(101.0)
    assert machine.advance(500.0) == []
    machine.resumed(600.0)
    assert due(machine, 659.0) == ([], 660.0)
    assert names(machine.advance(660.0)) == ["UmqFault"]
    machine.paused(700.0)
    machine.resumed(800.0)
    assert machine.deadline is None


def test_each_announcement_has_its_whole_time__UM_19():
    machine = server()
    feed(machine, "A1:C1:x", b"1", now=0.0)
    feed(machine, "A1:C2:x", now=50.0)  # the deadline of the first is still set
    assert due(machine, 60.0) == ([], 110.0)


def test_attachments_one_by_one_on_request():
    """UM-19."""
    machine = client()
    machine.call("a", waiter="me")
    (event,) = machine.receive(["A3:R1:x"], 0.0)
    assert event == told.AttachmentsAnnounced(told.ResultReceived(1, "me", "x"), 3)
    feed(machine, b"1")
    message = event.message
    assert machine.stream(message) == [
        told.ResultReceived(1, "me", "x"),
        told.AttachmentArrived(message, 0, b"1"),
    ]
    assert machine.calls_pending == 0
    assert machine.stream(message) == []
    assert machine.input_weight > 0  # the text stays (NB-02)
    assert feed(machine, b"2") == [told.AttachmentArrived(message, 1, b"2")]
    assert feed(machine, "-:lost") == [
        told.AttachmentArrived(message, 2, AttachmentFailure("lost"))
    ]
    assert machine.snapshot()["held_bytes"] == 0
    refused(machine, b"4", reason="stray")


# ── Attachments out ─────────────────────────────────────────────────────────────────────────────


def test_a_slot_which_is_not_filled_in_time_is_replaced():
    """UM-04: before the peer gives us up (UM-19); each has the whole time for itself."""
    machine = client()
    first, second, third = slots = [Slot(), Slot(), Slot()]
    machine.clock = 10.0
    machine.call("x", [b"1", *slots])
    assert due(machine, 50.0) == ([], 55.0)
    machine.fill(first, b"2")
    machine.outputs()
    machine.advance(55.0)
    assert (machine.outputs(), machine.deadline) == ([], 95.0)
    machine.advance(95.0)
    assert machine.outputs() == ["-:the attachment is not there in time"]
    machine.fill(second, b"late")
    machine.fill(third, b"4")
    assert machine.outputs() == [b"4"]
    assert due(machine, 200.0) == ([], None)


def test_our_own_attachments_are_limited_and_nothing_is_sent():
    """UM-19."""
    machine = client(attachment_bytes=10, payload_characters=10)
    for attachments in ([b"x"] * 33, [b"x" * 11]):
        with pytest.raises(LimitExceeded):
            machine.call("x", attachments)
    with pytest.raises(LimitExceeded):
        machine.call("x" * 11)
    with pytest.raises(TypeError):
        machine.call("x", ["text"])
    for wrong in (b"bytes", bytearray(b"bytes"), 5, None):  # HO-02: it would arrive as its repr
        with pytest.raises(TypeError):
            machine.call(wrong)
    with pytest.raises(UnicodeEncodeError):
        machine.call("\ud800")
    assert machine.outputs() == [] and machine.calls_pending == 0
    machine.set_attribute("a", "x" * 8, [b"x" * 10] * 32)
    assert machine.outputs() == ["AW:S:a=xxxxxxxx", *[b"x" * 10] * 32]
    slot = Slot()
    machine.call("x", [slot])
    with pytest.raises(LimitExceeded):
        machine.fill(slot, b"x" * 11)
    assert machine.outputs() == ["A1:C1:x", "-:the attachment is too large"]


def test_the_text_of_a_failed_attachment_counts_and_has_a_bound__NB_02():
    """NB-02: 31 of them took 130 MB of a connection, which held 1 byte as far as it was told."""
    machine = server()
    wide = "\U0001f600" + "x" * ((1 << 20) - 1)
    feed(machine, "AW:C1:x", f"-:{wide[:1000]}")
    held = machine.input_weight
    assert held >= 4000
    feed(machine, *["-:" + wide] * 30)
    assert held + 30 * 4000 <= machine.input_weight <= held + 30 * 5000
    [call] = feed(machine, b"at last")
    assert call.attachments[0] == AttachmentFailure(wide[:1000])
    assert call.attachments[1].text == wide[:1024]


@given(st.lists(st.sampled_from([*"abc", "stream", "x", "-", "C", "R", "D", "8"]), max_size=60))
def test_what_is_held_is_nothing_when_all_attachments_are_there__NB_02(steps):
    """NB-02: nothing is counted twice or given back twice, in any order."""
    machine = server(calls=20)
    topic, number, missing, streams = machine.subscribe(), 0, 0, []
    for step in steps:
        text = {"a": "A2:S:a=v", "b": "A1:S:b=v", "c": "S:a=w", "x": "X:a", "D": f"D{topic}:"}
        text |= {"C": f"A3:C{number}:p", "R": f"A1:T{topic}:u", "8": f"A1:R{number}:u"}
        if step == "stream":
            if streams:
                machine.stream(streams.pop(0))
        elif step != "-":
            number += 1
            missing += int(text[step][1]) if text[step].startswith("A") else 0
            found = machine.receive([text[step]], 0.0)
            streams += [e.message for e in found if names([e]) == ["AttachmentsAnnounced"]]
        elif missing:
            missing -= 1
            feed(machine, b"four")
        assert (machine.input_weight > 0) is (missing > 0) is not machine.no_partial_input
    feed(machine, *[b"four"] * missing)
    assert (machine.input_weight, machine.no_partial_input, machine.closed) == (0, True, False)


WAITING = [["S:a=" + "x" * 1000], ["A9:S:a=b", *[b"x" * 100] * 8], ["X:a"]]


@pytest.mark.parametrize(
    ("welcome", "texts"), [*(("W1:", texts) for texts in WAITING), ("A1:W1:", WAITING[0])]
)
def test_what_waits_until_a_server_is_accepted_has_a_bound__NB_02(welcome, texts):
    """NB-02, UM-07, UM-19: texts and attachments of each event, and what each takes itself; also
    while the attachments of W are awaited.
    """
    machine = Client(limits(attachments_bytes=50_000), 0.0)
    machine.hello()
    machine.receive([welcome], 0.0)
    count = 0
    while not machine.closed:
        found = feed(machine, *texts, *[b""] * (len(texts) == 9))
        count += 1
        assert count < 1000
    assert count > 10
    assert (found[-1].reason, machine.input_weight) == ("attachments-bytes", 0)


def test_a_call_that_was_answered_before_its_attachments_came_is_not_delivered():
    """UM-10, UM-19: it raised KeyError."""
    machine = server()
    feed(machine, "A2:C1:x", b"1")
    machine.error("1", "not today")
    assert feed(machine, b"2", "C1:y") == [told.CallReceived("1", "y")]
