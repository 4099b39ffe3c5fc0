"""UMQ's machines: attachments in and out, their order, their limits, their time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles import due
from tests.umq.pairs import announced, client, feed, limits, names, refused, server, told
from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.umq import AttachmentFailure
from twisted_msgproto.umq.machine import Client
from twisted_msgproto.umq.machine.attachments import Slot

# ── Attachments in ──────────────────────────────────────────────────────────────────────────────


def test_attachments_fill_the_oldest_announcement_first():
    """UM-03, UM-04: text may stand in between; none and none written are the same."""
    machine = server()
    assert feed(
        machine, "A2:C1:x", "A2:C2:y", "C3:z", b"1", "A0:C4:w", "S:k=v", b"2", "-:lost", b"3"
    ) == [
        told.CallReceived("3", "z"),
        told.CallReceived("4", "w"),
        told.AttributeSet("k", "v"),
        told.CallReceived("1", "x", [b"1", b"2"]),
        told.CallReceived("2", "y", [AttachmentFailure("lost"), b"3"]),
    ]


@pytest.mark.parametrize("stray", [b"x", b"", "-:x"])
def test_an_attachment_nobody_waits_for_is_fatal_3(stray):
    """UM-01, UM-04."""
    refused(server(), stray, reason="stray")
    refused(server(), "A1:C1:x", b"1", stray, reason="stray")


@pytest.mark.parametrize("earlier", ["A1:T1:first", "A1:S:t=first"])
def test_messages_of_one_topic_and_one_attribute_keep_their_order(earlier):
    """UM-04: D and X included; everything else may overtake."""
    machine = client()
    machine.subscribe()
    machine.subscribe()
    if earlier[3] == "T":
        texts = ["A1:T1:2nd", "T1:3rd", "D1:"]
        ordered = [
            told.TopicUpdated(1, "first", [b"1"]),
            told.TopicUpdated(1, "2nd", [b"2"]),
            told.TopicUpdated(1, "3rd"),
            told.TopicClosed(1),
        ]
    else:
        texts = ["A1:S:t=2nd", "S:t=3rd", "X:t"]
        ordered = [
            told.AttributeSet("t", "first", [b"1"]),
            told.AttributeSet("t", "2nd", [b"2"]),
            told.AttributeSet("t", "3rd"),
            told.AttributeUnset("t"),
        ]
    assert feed(machine, earlier, *texts) == []
    overtaking = feed(machine, "T2:other", "S:u=other", "X:w", "C1:x", "D2:")
    assert len(overtaking) == 5
    assert feed(machine, b"1") == ordered[:1]
    assert feed(machine, b"2") == ordered[1:]
    assert machine.snapshot()["held_bytes"] == 0


def test_an_update_behind_its_topics_close_is_an_unknown_one():
    """UM-12, UM-13."""
    machine = client()
    machine.subscribe()
    assert feed(machine, "A1:T1:a", "D1:", "T1:b", "D1:", b"1") == [
        told.TopicUpdated(1, "a", [b"1"]),
        told.TopicClosed(1),
    ]
    assert machine.outputs() == ["U1:"]


def test_updates_which_wait_when_their_topic_is_unsubscribed_are_dropped():
    """UM-04, UM-14: the slots stay."""
    machine = client()
    machine.subscribe()
    feed(machine, "A1:T1:a", "D1:")
    machine.unsubscribe(1)
    assert feed(machine, "A1:C1:x", b"1", b"2") == [told.CallReceived("1", "x", [b"2"])]
    assert machine.outputs() == ["U1:"]
    assert machine.snapshot()["closing"] == 0


def test_an_attachment_too_large_is_fatal_3():
    """UM-19."""
    machine = server(attachment_bytes=10)
    assert feed(machine, "A2:C1:x", b"x" * 10) == []
    refused(machine, b"x" * 11, reason="attachment-bytes")


def test_attachments_which_wait_are_limited_in_all():
    """UM-19: what is discarded or given out does not count."""
    machine = server(attachments_bytes=100, calls=3)
    feed(machine, "C1:", "C2:", "A1:C3:", b"x" * 99)
    feed(machine, "A2:C4:refused", b"x" * 99, b"x" * 99, "A3:S:a=", b"x" * 90)
    refused(machine, b"x" * 20, reason="attachments-bytes")


def test_texts_which_wait_count_as_well():
    """UM-19: a flood behind one attachment which never comes."""
    machine = client(attachments_bytes=1000, attributes_bytes=10**6)
    feed(machine, "A1:S:a=")
    for _ in range(9):
        feed(machine, "S:a=" + "x" * 100)
    refused(machine, "S:a=" + "x" * 100, reason="attachments-bytes")
    machine = client(attachments_bytes=1000)
    refused(machine, "A1:S:a=" + "x" * 1000, reason="attachments-bytes")


def test_messages_which_wait_are_limited_in_number():
    """UM-19."""
    machine = client(waiting_messages=5)
    feed(machine, "A1:S:a=", *["X:a"] * 4)
    refused(machine, "X:a", reason="waiting-messages")
    machine = client(waiting_messages=5)
    machine.subscribe()
    feed(machine, "A1:T1:a", *["T1:a"] * 4)
    refused(machine, "D1:", reason="waiting-messages")


def test_announcements_are_limited():
    """UM-19: also those whose message was refused."""
    machine = server(announcements=3, calls=2)
    feed(machine, "A1:C1:", "A1:C2:", "A1:C3:")
    refused(machine, "A1:C4:", reason="announcements")
    machine = server(announcements=1)
    feed(machine, "A1:C1:")
    refused(machine, "A1:R7:", reason="announcements")


def test_attachments_which_do_not_come_are_fatal_3():
    """UM-19: 60 s from the announcement or from the last filled slot."""
    machine = server()
    feed(machine, "A3:C1:x", now=10.0)
    assert machine.deadline == 70.0
    feed(machine, b"1", now=60.0)
    feed(machine, "A1:C2:x", now=61.0)
    assert due(machine, 70.0) == ([], 120.0)
    feed(machine, "-:lost", now=119.0)
    assert due(machine, 178.9)[1] == 179.0
    (fault,), deadline = due(machine, 179.0)
    assert deadline is None
    assert (fault.reason, fault.code) == ("attachment-seconds", 3)
    assert machine.outputs()[-1].startswith("F0:3 ")
    machine = server()
    feed(machine, "A1:C1:x", b"1", now=5.0)
    assert due(machine, 65.0) == ([], None)
    feed(machine, "A1:C2:x", now=100.0)
    machine.paused(101.0)  # nothing is read: that nothing comes means nothing
    assert machine.advance(500.0) == []
    machine.resumed(600.0)
    assert machine.deadline == 660.0


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


def test_a_streamed_update_keeps_its_place_and_lets_later_ones_pass():
    """UM-04, UM-19."""
    machine = client()
    machine.subscribe()
    machine.receive(["A1:T1:a"], 0.0)
    second = announced(machine, "A2:T1:b")
    feed(machine, "T1:c")
    assert machine.stream(second) == []
    assert feed(machine, b"a1") == [
        told.TopicUpdated(1, "a", [b"a1"]),
        told.TopicUpdated(1, "b"),
        told.TopicUpdated(1, "c"),
    ]
    assert feed(machine, b"b1", b"b2") == [
        told.AttachmentArrived(second, 0, b"b1"),
        told.AttachmentArrived(second, 1, b"b2"),
    ]


# ── Attachments out ─────────────────────────────────────────────────────────────────────────────


def test_slots_are_sent_in_order_whenever_they_are_filled():
    """UM-04: text may overtake, attachments may not; the sender fills every slot."""
    machine = client()
    first, third = Slot(), Slot()
    machine.call("x", [first, b"2"])
    machine.call("y", [third])
    machine.call("z")
    assert machine.outputs() == ["A2:C1:x", "A1:C2:y", "C3:z"]
    machine.fill(third, b"3")
    machine.fill(third, b"again")
    assert machine.outputs() == []
    machine.fill_error(first, "lost")
    machine.fill_error(first, "again")
    assert machine.outputs() == ["-:lost", b"2", b"3"]


def test_a_slot_which_is_not_filled_in_time_is_replaced():
    """UM-04: before the peer gives us up (UM-19)."""
    machine = client()
    slot, other = Slot(), Slot()
    machine.clock = 10.0
    machine.call("x", [b"1", slot, other])
    machine.outputs()
    assert machine.deadline == 55.0
    assert due(machine, 54.0)[1] == 55.0
    assert due(machine, 55.0)[1] == 100.0
    assert machine.outputs() == ["-:the attachment is not there in time"]
    machine.fill(slot, b"late")
    machine.fill(other, b"3")
    assert machine.outputs() == [b"3"]
    assert due(machine, 100.0)[1] is None


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
    with pytest.raises(UnicodeEncodeError):
        machine.call("\ud800")
    assert machine.outputs() == [] and machine.calls_pending == 0
    slot = Slot()
    machine.call("x", [slot])
    with pytest.raises(LimitExceeded):
        machine.fill(slot, b"x" * 11)
    assert machine.outputs() == ["A1:C1:x", "-:the attachment is too large"]


@pytest.mark.parametrize("wrong", [b"bytes", bytearray(b"bytes"), 5, None])
def test_what_is_no_text_is_never_sent_as_its_repr(wrong):
    """HO-02: b"x" would arrive as the text ``b'x'``, acknowledged."""
    machine = client()
    for verb in (
        lambda: machine.call(wrong),
        lambda: machine.call(wrong, (), 1),
        lambda: machine.set_attribute("name", wrong),
    ):
        with pytest.raises(TypeError):
            verb()
    assert machine.outputs() == [] and machine.calls_pending == 0


def test_a_refused_answer_may_be_given_again():
    machine = server(attachment_bytes=10)
    feed(machine, "C1:x")
    with pytest.raises(LimitExceeded):
        machine.result("1", "", [b"x" * 11])
    machine.error("1", "too large")
    assert machine.outputs() == ["E1:too large"]


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
    assert call.attachments[1].text == wide[: len(call.attachments[1].text)]
    assert 1000 <= len(call.attachments[1].text) <= 1200


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
    assert (machine.input_weight, machine.no_partial_input, machine.fault) == (0, True, None)


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
        feed(machine, *texts, *[b""] * (len(texts) == 9))
        count += 1
        assert count < 1000
    assert count > 10
    assert (machine.fault.reason, machine.input_weight) == ("attachments-bytes", 0)


def test_a_call_that_was_answered_before_its_attachments_came_is_not_delivered():
    """UM-10, UM-19: it raised KeyError."""
    machine = server()
    feed(machine, "A2:C1:x", b"1")
    machine.error("1", "not today")
    assert feed(machine, b"2", "C1:y") == [told.CallReceived("1", "y")]
