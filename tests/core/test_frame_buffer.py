"""A frame's beginning is kept in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.core.frame_buffer import PIECE_OCTETS, FrameBuffer

READS = st.lists(
    st.one_of(
        st.integers(1, 40),
        st.integers(1000, 20_000),
        st.integers(PIECE_OCTETS - 2, 2 * PIECE_OCTETS),
    ),
    max_size=30,
)


@given(READS)
def test_what_is_added_comes_back_in_order(sizes: list[int]) -> None:
    reads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    gathered = FrameBuffer()
    for read in reads:
        gathered.add(read)
    whole = b"".join(reads)
    assert gathered.octets == len(whole)
    start = gathered.start(100)
    assert whole.startswith(start)
    assert len(start) >= min(sizes[0] if sizes else 0, 100)
    pieces = gathered.taken()
    assert b"".join(pieces) == whole
    assert gathered.octets == 0
    assert gathered.taken() == []


def test_many_short_reads_make_few_pieces_and_a_long_one_is_not_copied__NB_02() -> None:
    gathered = FrameBuffer()
    gathered.add(b"x")
    for _ in range(3 * PIECE_OCTETS):
        gathered.add(b"y")
    long = bytes(PIECE_OCTETS)
    gathered.add(long)
    pieces = gathered.taken()
    assert len(pieces) <= 5
    assert pieces[-1] is long
