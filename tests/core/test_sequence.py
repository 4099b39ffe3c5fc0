"""Circles of sequence numbers."""

from twisted_msgproto.core.sequence import (
    SEQUENCE_16_BITS_WITHOUT_0,
    SEQUENCE_64_BITS,
)


def test_sixteen_bits_wrap_to_one_and_have_no_zero():
    """MM-13: 65535 is followed by 1."""
    space = SEQUENCE_16_BITS_WITHOUT_0
    assert space.after(65535) == 1
    assert space.after(1, -1) == 65535
    assert 0 not in space
    assert 65535 in space
    assert space.size == 65535


def test_sixty_four_bits_wrap_to_zero():
    """MT-22."""
    assert SEQUENCE_64_BITS.after(2**64 - 1) == 0


def test_steps_count_forward_along_the_circle():
    space = SEQUENCE_16_BITS_WITHOUT_0
    assert space.steps(65534, 2) == 3
    assert space.steps(5, 5) == 0
    assert space.steps(2, 1) == 65534


def test_what_follows_a_number_is_in_order_and_begins_again_behind_the_last():
    """MM-13: a run of numbers for messages that are sent together."""
    space = SEQUENCE_16_BITS_WITHOUT_0
    assert list(space.following(1, 3)) == [2, 3, 4]
    assert list(space.following(65532, 3)) == [65533, 65534, 65535]
    assert list(space.following(65533, 3)) == [65534, 65535, 1]
    assert list(space.following(65535, 1)) == [1]
