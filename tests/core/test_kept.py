"""What sessions keep for their peers has one bound for all of them."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.core.kept import ENTRY_OCTETS, SMALL_OCTETS, Keeping, Kept, table_octets

LIMIT = 100 * SMALL_OCTETS
MUCH = 256 << 20


def test_below_the_limit_one_session_may_keep_everything__NB_02():
    """NB-02."""
    every = Kept(LIMIT)
    one, other = Keeping(every), Keeping(every)
    assert one.fits(LIMIT)
    one.add(LIMIT)
    assert not one.fits(1)
    assert other.fits(SMALL_OCTETS)


def test_above_it_only_those_below_their_share_may_keep_more__NB_02():
    """NB-02: whoever keeps little is not refused for what others keep."""
    every = Kept(LIMIT)
    hog, good = Keeping(every), Keeping(every)
    hog.add(LIMIT - 10)
    good.add(10)
    assert every.sessions == 2
    assert good.fits(LIMIT // 2 - 10)
    assert not good.fits(LIMIT // 2 - 9)
    assert not hog.fits(1)
    hog.remove(1)
    assert hog.fits(1)


def test_what_does_not_fit_is_not_kept__NB_02():
    """NB-02."""
    every = Kept(LIMIT)
    one = Keeping(every)
    assert one.take(LIMIT)
    assert not one.take(1)
    assert (one.octets, every.octets, every.sessions) == (LIMIT, LIMIT, 1)


def test_a_table_of_texts_counts_with_what_python_takes_for_each__NB_02():
    """NB-02."""
    texts = {"a": "", "b": "\N{GRINNING FACE}"}
    taken = sum(sys.getsizeof(text) for text in ("a", "", "b", "\N{GRINNING FACE}"))
    assert table_octets(texts) == taken + 2 * ENTRY_OCTETS
    assert table_octets({}) == 0


def test_among_many_sessions_each_may_keep_a_little__NB_02():
    """NB-02."""
    every = Kept(LIMIT)
    crowd = [Keeping(every) for _ in range(1000)]
    for one in crowd:
        one.add(LIMIT // 1000)
    crowd[0].add(1000)
    assert every.octets >= LIMIT
    assert crowd[1].fits(SMALL_OCTETS - LIMIT // 1000)
    assert not crowd[1].fits(SMALL_OCTETS - LIMIT // 1000 + 1)


def test_the_smallest_limit_of_all_servers_holds():
    """NB-02."""
    every = Kept()
    assert Keeping(every).fits(1 << 60)
    every.bound(1000)
    every.bound(2000)
    assert every.limit == 1000


def test_without_others_a_session_has_no_bound():
    alone = Keeping()
    assert alone.fits(1 << 60)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(["add", "take", "remove", "clear"]),
        st.integers(0, LIMIT),
    ),
    max_size=200,
)


@given(STEPS)
def test_all_together_never_keep_more_than_twice_the_limit_and_a_little_each__NB_02(steps):
    """NB-02: whoever asks before it keeps something, and in whatever order they come and go."""
    every = Kept(LIMIT)
    sessions = [Keeping(every) for _ in range(10)]
    kept = [[] for _ in sessions]
    for number, step, octets in steps:
        session, pieces = sessions[number], kept[number]
        if step == "add" and session.fits(octets):
            session.add(octets)
            pieces.append(octets)
        elif step == "take":
            fits = session.fits(octets)
            assert session.take(octets) is fits
            pieces += [octets] * fits
        elif step == "remove" and pieces:
            session.remove(pieces.pop())
        elif step == "clear":
            session.clear()
            sessions[number] = Keeping(every)
            pieces.clear()
        assert [one.octets for one in sessions] == [sum(some) for some in kept]
        assert every.octets == sum(map(sum, kept))
        assert every.sessions == sum(one.octets > 0 for one in sessions)
        assert every.octets <= 2 * LIMIT + SMALL_OCTETS * len(sessions)


def test_ten_thousand_sessions_that_know_their_shares_keep_no_more_than_twice_the_limit__NB_02():
    """NB-02: each came when there were fewer, and took its share: these were nine limits."""
    every = Kept(MUCH)
    sessions = []
    for _ in range(10_000):
        keeping = Keeping(every)
        sessions.append(keeping)
        for step in (1 << 26, 1 << 20, 1 << 16, 1 << 12):
            while keeping.octets + step <= 1 << 26 and keeping.fits(step):
                keeping.add(step)
    assert every.octets <= 2 * MUCH + SMALL_OCTETS * 10_000
    # Who comes then may keep what is little, and those that are few a share of it all.
    good = Keeping(every)
    assert good.fits(SMALL_OCTETS)
    for keeping in sessions[5:]:
        keeping.clear()
    assert good.fits(MUCH // 20)


def test_a_session_may_keep_its_share_while_others_keep_too_much__NB_02():
    """NB-02: while too many do, it is a small one."""
    every = Kept(1_000_000)
    hog, good = Keeping(every), Keeping(every)
    hog.add(1_000_000)
    assert not hog.fits(1)
    assert good.fits(500_000) and not good.fits(500_001)
    good.add(500_000)
    late = Keeping(every)
    assert late.fits(1_000_000 // 60) and not late.fits(1_000_000 // 60 + 1)
    good.clear()
    hog.remove(1)
    assert hog.fits(1)


def test_what_comes_after_the_end_counts_nowhere__NB_02():
    """NB-02: an application may let go of something, or take more, long after the connection."""
    every = Kept(MUCH)
    keeping = Keeping(every)
    keeping.add(1000)
    keeping.clear()
    keeping.remove(500)
    keeping.add(2000)
    keeping.clear()
    assert (every.octets, every.sessions) == (0, 0)
