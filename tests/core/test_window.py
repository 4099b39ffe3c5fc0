"""Circles of sequence numbers, and send and receive windows: places, not numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.core.machine import ReceiveWindow, SendWindow
from twisted_msgproto.micromsg2.wire.frames import after, following, steps_between


def filled(*sequences, limit=10):
    window = SendWindow(limit)
    for sequence in sequences:
        window.sent(sequence, f"m{sequence}")
    return window


def test_messages_in_a_row_come_into_the_window_all_or_none():
    window = SendWindow(4)
    window.sent_run([1, 2], ["m1", "m2"])
    with pytest.raises(ValueError, match="the window of 4 is full"):
        window.sent_run([3, 4, 5], ["m3", "m4", "m5"])
    with pytest.raises(ValueError, match="sequence 2 is in flight already"):
        window.sent_run([3, 2], ["m3", "again"])
    for few in ([], ["m3"], ["m3", "m4", "m5"]):
        with pytest.raises(ValueError, match="2 numbers for"):
            window.sent_run([3, 4], few)
    assert window.sequences() == [1, 2]
    window.sent_run([3, 4], ["m3", "m4"])
    assert window.acknowledge_up_to(4) == ["m1", "m2", "m3", "m4"]
    window.sent_run([5], ["m5"])
    assert len(SendWindow(4)) == 0, "no two windows share what is in flight"


def test_an_ack_releases_everything_up_to_and_including_its_number():
    """LJ-06, MM-21, MT-20: acknowledgements are cumulative."""
    window = filled(1, 2, 3, 4)
    assert window.acknowledge_up_to(3) == ["m1", "m2", "m3"]
    assert window.sequences() == [4]


def test_an_ack_covers_across_the_wrap():
    """MM-13, MM-21: 65535 is followed by 1, and order is by place."""
    window = filled(65534, after(65534), after(65534, 2))
    assert window.acknowledge_up_to(1) == ["m65534", "m65535", "m1"]


def test_an_ack_for_what_is_not_in_flight_releases_nothing():
    window = filled(1, 2)
    assert window.acknowledge_up_to(3) is None
    assert window.acknowledge_one(3) is None
    assert window.sequences() == [1, 2]


def test_a_single_ack_releases_one_message_and_leaves_a_gap_which_a_later_ack_passes():
    window = filled(1, 2, 3)
    assert window.acknowledge_one(2) == "m2"
    assert 2 not in window
    assert window.acknowledge_up_to(3) == ["m1", "m3"]


def test_the_oldest_is_seen_and_released_alone():
    window = SendWindow(3)
    assert window.oldest is None
    for number in (7, 3):
        window.sent(number, f"m{number}")
    assert window.oldest == "m7"
    assert window.acknowledge_oldest() == "m7"
    assert window.messages() == ["m3"]
    assert window.acknowledge_oldest() == "m3"
    with pytest.raises(KeyError):
        window.acknowledge_oldest()


def test_a_full_window_refuses_another_message():
    window = filled(1, 2, limit=2)
    assert window.full
    assert window.room == 0
    with pytest.raises(ValueError, match="full"):
        window.sent(3, "m3")


def test_a_number_in_flight_cannot_be_used_again():
    window = filled(1)
    with pytest.raises(ValueError, match="in flight already"):
        window.sent(1, "other")


def test_draining_gives_back_what_is_in_flight_in_order_of_sending():
    """LJ-15: everything unacknowledged is sent again, in order."""
    window = filled(3, 1, 2)
    assert window.messages() == ["m3", "m1", "m2"]
    assert window.drain() == ["m3", "m1", "m2"]
    assert len(window) == 0
    assert not window.full


def test_an_ack_waits_for_the_sink():
    """LJ-13: safe and acknowledged are two states."""
    window = ReceiveWindow()
    window.receive(5)
    window.mark("ack 5")
    place = window.slice()
    assert window.due() == []
    assert list(window.waiting) == [(5, "ack 5")]
    assert (window.unsafe, window.unacknowledged) == (5, 5)
    assert window.made_safe(place) == ["ack 5"]
    assert not window.waiting
    assert (window.unsafe, window.unacknowledged) == (0, 0)


def test_a_part_of_the_oldest_slice_may_be_safe():
    """MM-19: whatever is said of another one, or again, changes nothing."""
    window = ReceiveWindow()
    places = []
    for count in (4, 2):
        window.receive(count)
        places.append(window.slice())
        window.mark(count)
    told = []
    for position in (0, 2, 1, 2, 4, 5, 6, 7, 3):
        assert window.made_safe_within(position) == []
        told.append(window.safe)
    assert told == [0, 2, 2, 2, 2, 2, 2, 2, 3]
    assert [window.made_safe(place) for place in places] == [[4], [2]]
    assert window.made_safe_within(6) == []


def test_marks_do_not_run_backwards_nor_ahead():
    window = ReceiveWindow()
    window.receive(3)
    window.mark("a", 2)
    for place in (1, 4):
        with pytest.raises(ValueError, match="not within 2 … 3"):
            window.mark("b", place)


def test_two_slices_without_a_message_between_them_are_one():
    window = ReceiveWindow()
    window.receive(1)
    assert window.slice() == window.slice() == 1
    window.made_safe(1)


@pytest.mark.parametrize("place", [0, 2, 4, 1])
def test_a_place_which_ends_no_open_slice_is_refused(place):
    window = ReceiveWindow()
    window.receive(1)
    window.slice()
    window.receive(2)
    window.slice()
    window.made_safe(1)
    with pytest.raises(ValueError, match="no open slice"):
        window.made_safe(place)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=30), st.randoms())
def test_no_ack_is_ever_due_before_all_it_covers_is_safe(slices, random):
    """LJ-13: whatever the order in which slices become safe."""
    window, places, marks = ReceiveWindow(), [], []
    for count, marked in slices:
        window.receive(count)
        if marked:
            window.mark(window.received)
            marks.append(window.received)
        places.append(window.slice())
    random.shuffle(places)
    given_out, safe = [], set()
    for place in places:
        safe.add(place)
        given_out += window.made_safe(place)
        unsafe = [other for other in places if other not in safe]
        assert all(ack < min(unsafe, default=window.received + 1) for ack in given_out)
    assert given_out == marks


def test_nothing_is_due_from_a_slice_on_which_never_will_be_safe():
    """LJ-13: what came before it is acknowledged still, whatever becomes safe behind it."""
    window = ReceiveWindow()
    places = []
    for number in range(1, 4):
        window.receive(2)
        window.mark(f"half {number}", window.received - 1)
        window.mark(number)
        places.append(window.slice())
    window.never_safe(places[1])
    assert window.made_safe(places[2]) == []
    assert window.made_safe(places[0]) == ["half 1", 1]
    assert not window.waiting
    for place in (places[0], places[2], 99):
        with pytest.raises(ValueError, match="no open slice"):
            window.never_safe(place)


def test_a_window_begins_at_0_and_what_covers_nothing_is_due_at_once():
    """LJ-07: an empty window is acknowledged with nothing before it."""
    window = ReceiveWindow()
    counts = (window.received, window.safe, window.acknowledged, window.marked)
    assert (counts, window.unsafe, window.unacknowledged) == ((0, 0, 0, 0), 0, 0)
    window.mark("nothing", 0)
    assert window.due() == ["nothing"]
    assert window.slice() == 0
    window.mark("still nothing")
    assert window.made_safe(0) == ["still nothing"]


# ── circles of sequence numbers ─────────────────────────────────────────────────────────────────


def test_sixteen_bits_wrap_to_one_and_have_no_zero():
    """MM-13: 65535 is followed by 1."""
    assert after(65535) == 1
    assert after(1, -1) == 65535


def test_steps_count_forward_along_the_circle():
    assert steps_between(65534, 2) == 3
    assert steps_between(5, 5) == 0
    assert steps_between(2, 1) == 65534


def test_what_follows_a_number_is_in_order_and_begins_again_behind_the_last():
    """MM-13: a run of numbers for messages that are sent together."""
    assert list(following(1, 3)) == [2, 3, 4]
    assert list(following(65532, 3)) == [65533, 65534, 65535]
    assert list(following(65533, 3)) == [65534, 65535, 1]
    assert list(following(65535, 1)) == [1]
