"""UMQ's machines: attachments in and out, their order, their limits, their time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles import due
from tests.umq.sides import client, feed, limits, refused, server
from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.core.kept import KEPT_WEIGHT_OCTETS
from twisted_msgproto.umq.machine.attachments import (
    QUEUE_OCTETS,
    SLOTS_OCTETS,
    WAITING_OCTETS,
    Slot,
)
from twisted_msgproto.umq.machine.receiving import FAILURE_CHARACTERS
from twisted_msgproto.umq.machine.sides import Client, Server
from twisted_msgproto.umq.terms.events import (
    AttachmentArrived,
    AttachmentFailure,
    AttachmentsAnnounced,
    AttributeSet,
    AttributeUnset,
    CallReceived,
    HelloReceived,
    ResultReceived,
    TopicClosed,
    TopicUpdated,
    WelcomeReceived,
)

# ── Attachments in ──────────────────────────────────────────────────────────────────────────────


def test_attachments_fill_the_oldest_announcement_first():
    """UM-03, UM-04: text may stand in between; none and none written are the same."""
    machine = server()
    assert feed(
        machine, "A2:C1:x", "A1:C2:y", "C3:z", b"1", "A0:C4:w", "S:k=v", b"2", "-:lost"
    ) == [
        CallReceived("3", "z"),
        CallReceived("4", "w"),
        AttributeSet("k", "v"),
        CallReceived("1", "x", [b"1", b"2"]),
        CallReceived("2", "y", [AttachmentFailure("lost")]),
    ]


def test_after_an_attachment_error_the_others_still_come():
    """UM-04."""
    assert feed(server(), "A3:C1:x", "-:a", b"2", "-:") == [
        CallReceived("1", "x", [AttachmentFailure("a"), b"2", AttachmentFailure("")])
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
            TopicUpdated(1, "first", [b"1"]),
            TopicUpdated(1, "2nd", [b"2"]),
            TopicUpdated(1, "3rd"),
            TopicClosed(1),
        ]
    else:
        texts = ["A1:S:t=2nd", "S:t=3rd", "X:t"]
        ordered = [
            AttributeSet("t", "first", [b"1"]),
            AttributeSet("t", "2nd", [b"2"]),
            AttributeSet("t", "3rd"),
            AttributeUnset("t"),
        ]
    assert feed(machine, earlier, *texts) == []
    overtaking = feed(machine, "T2:other", "S:u=other", "X:w", "C1:x", "D2:")
    assert len(overtaking) == 5
    assert feed(machine, b"1") == ordered[:1]
    assert feed(machine, b"2") == ordered[1:]
    assert machine.snapshot()["held_octets"] == 0


def test_an_update_behind_its_topics_close_is_an_unknown_one():
    """UM-12, UM-13."""
    machine = client()
    machine.subscribe()
    assert feed(machine, "A1:T1:a", "D1:", "T1:b", "D1:", b"1") == [
        TopicUpdated(1, "a", [b"1"]),
        TopicClosed(1),
    ]
    assert machine.outputs() == ["U1:"]


def test_updates_which_wait_when_their_topic_is_unsubscribed_are_dropped():
    """UM-04, UM-14: the slots stay."""
    machine = client()
    machine.subscribe()
    feed(machine, "A1:T1:a", "D1:")
    machine.unsubscribe(1)
    assert feed(machine, "A1:C1:x", b"1", b"2") == [CallReceived("1", "x", [b"2"])]
    assert machine.outputs() == ["U1:"]
    assert machine.snapshot()["closing"] == 0


def test_an_attachment_too_large_is_fatal_3():
    """UM-19."""
    machine = server(attachment_octets=10)
    assert feed(machine, "A2:C1:x", b"x" * 10) == []
    refused(machine, b"x" * 11, reason="attachment-octets")


def test_attachments_which_wait_are_limited_in_all():
    """UM-19: what is discarded or given out does not count."""
    machine = server(attachments_octets=100, calls=3)
    feed(machine, "C1:", "C2:", "A1:C3:", b"x" * 99)
    feed(machine, "A2:C4:refused", b"x" * 99, b"x" * 99, "A3:S:a=", b"x" * 90)
    refused(machine, b"x" * 20, reason="attachments-octets")


def test_texts_which_wait_count_as_well():
    """UM-19: a flood behind one attachment which never comes."""
    machine = client(attachments_octets=1000, attributes_octets=10**6)
    feed(machine, "A1:S:a=")
    for _ in range(9):
        feed(machine, "S:a=" + "x" * 100)
    refused(machine, "S:a=" + "x" * 100, reason="attachments-octets")
    machine = client(attachments_octets=1000)
    refused(machine, "A1:S:a=" + "x" * 1000, reason="attachments-octets")


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
    (announced,) = machine.receive_text("A3:R1:x", 0.0)
    assert announced == AttachmentsAnnounced(ResultReceived(1, "me", "x"), 3)
    feed(machine, b"1")
    message = announced.message
    assert machine.stream(message) == [
        ResultReceived(1, "me", "x"),
        AttachmentArrived(message, 0, b"1"),
    ]
    assert machine.calls_pending == 0
    assert machine.stream(message) == []
    assert machine.snapshot()["held_octets"] == 1 + SLOTS_OCTETS  # the text stays (NB-02)
    assert feed(machine, b"2") == [AttachmentArrived(message, 1, b"2")]
    assert feed(machine, "-:lost") == [AttachmentArrived(message, 2, AttachmentFailure("lost"))]
    assert machine.snapshot()["held_octets"] == 0
    refused(machine, b"4", reason="stray")


def test_a_streamed_update_keeps_its_place_and_lets_later_ones_pass():
    """UM-04, UM-19."""
    machine = client()
    machine.subscribe()
    machine.receive_text("A1:T1:a", 0.0)
    (second,) = machine.receive_text("A2:T1:b", 0.0)
    feed(machine, "T1:c")
    assert machine.stream(second.message) == []
    assert feed(machine, b"a1") == [
        TopicUpdated(1, "a", [b"a1"]),
        TopicUpdated(1, "b"),
        TopicUpdated(1, "c"),
    ]
    assert feed(machine, b"b1", b"b2") == [
        AttachmentArrived(second.message, 0, b"b1"),
        AttachmentArrived(second.message, 1, b"b2"),
    ]


def test_streaming_what_is_complete_does_nothing():
    machine = server()
    (announced,) = machine.receive_text("A1:C1:x", 0.0)
    assert feed(machine, b"1") == [CallReceived("1", "x", [b"1"])]
    assert machine.stream(announced.message) == []


def test_attributes_and_hello_are_never_announced():
    """Their attachments are part of them (UM-06, UM-15)."""
    assert server().receive_text("A1:S:a=b", 0.0) == []
    assert Server(limits()).receive_text("A1:H1:", 0.0) == []


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
    machine = client(attachment_octets=10, payload_characters=10)
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


@pytest.mark.parametrize("wrong", [b"octets", bytearray(b"octets"), 5, None])
def test_what_is_no_text_is_never_sent_as_its_repr(wrong):
    """HO-02: b"x" would arrive as the text ``b'x'``, acknowledged."""
    machine = client()
    for verb in (
        lambda: machine.call(wrong),
        lambda: machine.callback(1, wrong),
        lambda: machine.set_attribute("name", wrong),
    ):
        with pytest.raises(TypeError):
            verb()
    assert machine.outputs() == [] and machine.calls_pending == 0


def test_a_refused_answer_may_be_given_again():
    machine = server(attachment_octets=10)
    feed(machine, "C1:x")
    with pytest.raises(LimitExceeded):
        machine.result("1", "", [b"x" * 11])
    machine.error("1", "too large")
    assert machine.outputs() == ["E1:too large"]


def test_hello_and_welcome_may_have_attachments_of_ours():
    """UM-06, UM-07."""
    c, s = Client(), Server(limits())
    slot = Slot()
    c.hello("h", [slot])
    feed(s, *c.outputs())
    c.fill(slot, b"key")
    assert feed(s, *c.outputs()) == [HelloReceived(1, "h", [b"key"])]
    s.welcome("w", [b"sig"])
    assert feed(c, *s.outputs()) == [WelcomeReceived(1, "w", [b"sig"])]


def test_after_the_end_slots_send_nothing():
    machine = client()
    slot = Slot()
    machine.call("x", [slot])
    machine.lost(0.0)
    machine.outputs()
    machine.fill(slot, b"x")
    assert machine.outputs() == []


def test_the_text_of_a_failed_attachment_counts_and_has_a_bound__NB_02():
    """NB-02: 31 of them took 130 MB of a connection, which held 1 octet as far as it was told."""
    machine = server()
    wide = "\U0001f600" + "x" * ((1 << 20) - 1)
    feed(machine, "AW:C1:x", f"-:{wide[:1000]}")
    held = machine.held
    assert held >= 4000
    feed(machine, *["-:" + wide] * 30)
    assert held + 30 * 4096 <= machine.held <= held + 30 * 5000
    [call] = feed(machine, b"at last")
    assert call.attachments[0] == AttachmentFailure(wide[:1000])
    assert call.attachments[1] == AttachmentFailure(wide[:FAILURE_CHARACTERS])
    assert machine.kept.octets > 30 * 4096  # until the call is answered


def test_the_text_of_failed_attachments_counts_among_those_of_attributes__NB_02():
    """NB-02, UM-20."""
    machine = server(attributes_octets=3000)
    feed(machine, "A2:S:a=b", "-:" + "x" * 5000, "-:")
    assert machine.attributes["a"].octets == 2 + FAILURE_CHARACTERS
    refused(machine, "A3:S:b=c", "-:" + "x" * 900, "-:" + "x" * 900, "-:" + "x" * 900, code=1)


def test_slots_count_until_they_are_filled__NB_02():
    """NB-02: those of a message that was refused, too, and the text of one that is streamed."""
    machine = server(calls=1)
    feed(machine, "C1:")
    assert (machine.held, machine.whole) == (0, True)
    feed(machine, "A2:C2:refused", b"1")
    assert machine.objects == SLOTS_OCTETS
    assert (machine.held, machine.whole) == (SLOTS_OCTETS, False)
    feed(machine, b"2")
    assert (machine.held, machine.whole) == (0, True)
    machine.subscribe()
    (announced,) = machine.receive_text("A2:T1:" + "x" * 1000, 0.0)
    machine.stream(announced.message)
    assert machine.held == 1000 + SLOTS_OCTETS
    feed(machine, b"1")
    assert machine.held == 1000 + SLOTS_OCTETS
    feed(machine, b"2")
    assert (machine.held, machine.whole) == (0, True)


@given(st.lists(st.sampled_from([*"abc", "stream", "x", "-", "C", "R", "D"]), max_size=60))
def test_what_is_held_is_nothing_when_all_attachments_are_there__NB_02(steps):
    """NB-02: nothing is counted twice or given back twice, in any order."""
    machine = server()
    topic, number, announced = machine.subscribe(), 0, []
    for step in steps:
        text = {"a": "A2:S:a=v", "b": "A1:S:b=v", "c": "S:a=w", "x": "X:a", "D": f"D{topic}:"}
        text |= {"C": f"A3:C{number}:p", "R": f"A1:T{topic}:u"}
        if step == "stream":
            if announced:
                machine.stream(announced.pop(0).message)
        elif step != "-":
            number += 1
            found = machine.receive_text(text[step], 0.0)
            announced += [e for e in found if isinstance(e, AttachmentsAnnounced)]
        elif len(machine._incoming):
            feed(machine, b"four")
        assert machine.held >= SLOTS_OCTETS * len(machine._incoming)
    while len(machine._incoming):
        feed(machine, b"four")
    assert (machine.held, machine.whole, machine.fault) == (0, True, None)


def test_a_call_that_was_answered_before_its_attachments_came_is_not_delivered():
    """UM-10, UM-19: it raised KeyError."""
    machine = server()
    feed(machine, "A2:C1:x", b"1")
    machine.error("1", "not today")
    assert feed(machine, b"2", "C1:y") == [CallReceived("1", "y")]


def test_what_waits_for_the_attachments_of_welcome_has_a_bound__NB_02():
    """NB-02, UM-07: each value of one attribute waited, for up to a minute."""
    machine = Client(limits(attachments_octets=100_000), 0.0)
    machine.hello()
    value = "\U0001f600" + "x" * 5000
    feed(machine, "A1:W1:", *[f"S:a={value}"] * 4)
    assert machine.held >= 80_000
    refused(machine, f"S:a={value}", reason="attachments-octets")
    good = Client(limits(attachments_octets=100_000), 0.0)
    good.hello()
    feed(good, "A1:W1:", *[f"S:a={value}"] * 4)
    assert len(feed(good, b"now", f"S:a={value}")) == 1 + 4 + 1
    assert (good.held, good.whole) == (0, True)


def test_what_waits_is_counted_to_the_octet__NB_02():
    """NB-02: slots, messages that wait for them or behind others, and the queues of their keys."""
    machine = client()
    machine.subscribe()
    feed(machine, "A1:T1:abc", "T1:de", "A1:S:n=v", "X:n", "A2:C1:xyz")
    objects = 3 * SLOTS_OCTETS + 5 * WAITING_OCTETS + 2 * QUEUE_OCTETS
    assert machine.objects == objects
    assert machine.held == objects + len("abc" + "de" + "nv" + "n" + "xyz")
    feed(machine, b"1234")
    objects -= SLOTS_OCTETS + 2 * WAITING_OCTETS + QUEUE_OCTETS
    assert machine.held == objects + len("nv" + "n" + "xyz")
    feed(machine, "D1:", "-:no")
    objects -= SLOTS_OCTETS + 2 * WAITING_OCTETS + QUEUE_OCTETS
    assert machine.held == objects + len("xyz")
    feed(machine, b"12345")
    assert machine.held == objects + len("xyz") + 5
    assert (feed(machine, b"")[0].attachments, machine.held) == ([b"12345", b""], 0)


def deciding(**changes):
    """A client whose user has yet to accept the server that has said ``W``."""
    machine = Client(limits(**changes), 0.0, decides=True)
    machine.hello()
    assert [type(event) for event in feed(machine, "W1:")] == [WelcomeReceived]
    return machine


def test_what_waits_until_a_server_is_accepted_is_counted_to_the_octet__NB_02():
    """NB-02, UM-07: texts and attachments of each event, and its objects."""
    machine = deciding()
    total = 0
    for text, octets in {"S:ab=cde": 5, "C1:xyz": 3, "X:ab": 2}.items():
        feed(machine, text)
        total += KEPT_WEIGHT_OCTETS + octets
        assert machine.held == total
    feed(machine, "A2:S:n=v", b"12345", b"678")
    assert machine.held == total + KEPT_WEIGHT_OCTETS + 2 + 8
    assert len(machine.accept(0.0)) == 4
    assert (machine.held, machine.accept(0.0)) == (0, [])


def test_what_waits_until_a_server_is_accepted_may_reach_its_limit_and_no_more__NB_02():
    """NB-02, UM-19."""
    most = 4 * (KEPT_WEIGHT_OCTETS + 2)
    machine = deciding(attachments_octets=most)
    feed(machine, "S:a=1", "S:a=2", "S:a=3", "S:a=4")
    assert (machine.held, machine.closed) == (most, False)
    machine = deciding(attachments_octets=most - 1)
    feed(machine, "S:a=1", "S:a=2", "S:a=3")
    refused(machine, "S:a=4", reason="attachments-octets")
    assert machine.held == 0
