"""Sessions take turns at the disk, and groups are as large as the disk is fast (NB-01)."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles import bytes_of
from twisted_msgproto.queue.fair import FairQueue, GroupCost

QUANTUM_BYTES = 64 << 10


MOST = 8 << 20


def test_who_was_idle_may_write_a_quantum_at_once__NB_01() -> None:
    """In one entry or in several; what is more waits for its turn."""
    for sizes, at_once in (([1.0], 1), ([0.5, 0.5], 2), ([0.25] * 6, 4), ([0.75, 0.5], 1)):
        queue: FairQueue[str] = FairQueue()
        for _ in range(9):
            queue.add("bulk", "bulk", 1, QUANTUM_BYTES)
        queue.take(1, MOST)
        for size in sizes:
            queue.add("good", "good", 1, int(size * QUANTUM_BYTES))
        taken = queue.take(1 << 30, 4 * QUANTUM_BYTES)
        assert taken[: at_once + 1] == ["good"] * at_once + ["bulk"]
        assert set(queue.clear()) <= {"good", "bulk"}
        assert (queue.entries, queue.take(1000, MOST)) == (0, [])


def test_a_session_writes_its_quantum_without_a_break__NB_01() -> None:
    queue: FairQueue[str] = FairQueue()
    for key in "ab":
        for _ in range(4):
            queue.add(key, key, 1, QUANTUM_BYTES // 2)
    assert queue.take(1 << 30, MOST) == [*"aabbaabb"]


def test_a_message_beside_batches_as_large_as_a_group_costs_no_group_of_its_own__NB_01() -> None:
    """On a disk with slow syncs that group would be half of the bulk sender's rate."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(4):
        queue.add("bulk", "bulk", 1000, 2 * QUANTUM_BYTES)
    assert queue.take(1000, MOST) == ["bulk"]
    queue.add("good", "good", 1, 100)
    assert queue.take(1000, MOST) == ["good", "bulk"]
    assert queue.take(1000, MOST) == ["bulk"]


def test_who_pretends_to_be_idle_gets_no_more_than_its_share() -> None:
    """An idle session comes first once, with one quantum; then it waits for its turn."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.add("bulk", "bulk", 1, QUANTUM_BYTES)
    taken = []
    for _ in range(100):  # nothing of it ever waits behind what it sends
        queue.add("sly", "sly", 1, QUANTUM_BYTES)
        while "sly" not in (group := queue.take(1, MOST)):
            taken += group
        taken += group
        assert taken.count("sly") <= taken.count("bulk") + 2


def test_sessions_that_come_and_go_are_forgotten__NB_11() -> None:
    """100,000 short connections made a gateway hold 118 MiB for ever."""

    def alone() -> FairQueue[int]:
        queue = FairQueue[int]()
        for number in range(2000):
            queue.add(f"short {number}", number, 1, 100)
            assert queue.take(100, 1000) == [number]
        return queue

    def beside_bulk() -> FairQueue[int]:
        """They are forgotten when their turn comes."""
        queue = alone()
        queue.add("bulk", -1, 1, 50_000)
        for number in range(2000):
            queue.add("bulk", -1, 1, 50_000)
            queue.add(f"short {number}", number, 1, 100)
            taken = queue.take(100, 50_100)
            assert number in taken or -1 in taken
        while queue.take(1000, MOST):
            pass
        return queue

    for sessions in (alone, beside_bulk):
        assert bytes_of(sessions) < 100_000


def test_more_sessions_than_are_remembered_may_wait__NB_11() -> None:
    """None of their entries is lost."""
    queue = FairQueue[int]()
    for number in range(200):
        queue.add(f"short {number}", number, 1, 100)
    taken = []
    while group := queue.take(10, MOST):
        taken += group
    assert taken == list(range(200))


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 300_000), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_nothing_is_lost_and_each_session_keeps_its_order(
    steps: list[tuple[int, int, bool]],
) -> None:
    """For any sizes and any moments at which groups are taken."""
    queue: FairQueue[tuple[int, int]] = FairQueue()
    added, taken = defaultdict(list), defaultdict(list)
    for number, (session, octets, take) in enumerate(steps):
        queue.add(session, (session, number), 1, octets)
        added[session].append(number)
        if take:
            for whose, which in queue.take(3, 100_000):
                taken[whose].append(which)
    while group := queue.take(3, 100_000):
        assert len(group) <= 3
        for whose, which in group:
            taken[whose].append(which)
    assert taken == added
    assert queue.entries == 0


@given(st.lists(st.integers(0, 200_000), min_size=2, max_size=2000), st.integers(2, 6))
def test_no_session_waits_for_more_than_a_round(sizes: list[int], sessions: int) -> None:
    """Sessions with work all the time are never further apart than a quantum and an entry."""
    queue: FairQueue[tuple[int, int]] = FairQueue()
    for session in range(sessions):
        for octets in sizes:
            queue.add(session, (session, octets), 1, octets)
    served = [0] * sessions
    left = [len(sizes)] * sessions
    while all(left):
        for session, octets in queue.take(1, MOST):
            served[session] += octets
            left[session] -= 1
        if all(left):
            assert max(served) - min(served) <= 2 * QUANTUM_BYTES + max(sizes)


@pytest.mark.parametrize("sync", [0.0002, 0.001, 0.010, 0.200])
@pytest.mark.parametrize("rate", [20e6, 100e6, 1e9])
def test_groups_fit_the_disk(sync: float, rate: float) -> None:
    """Their bytes take 20 ms with the sync, or three syncs where a sync is slow."""
    cost = GroupCost()
    for number in range(200):
        octets = (1 + number * 37 % 64) << 14
        cost.learn(octets, sync + octets / rate)
    assert cost.sync_seconds == pytest.approx(sync, rel=0.01)
    assert cost.byte_seconds == pytest.approx(1 / rate, rel=0.01)
    fitting = rate * max(0.020 - sync, 3 * sync)
    assert cost.bytes_max(MOST) == pytest.approx(min(max(fitting, (256 << 10)), MOST), rel=0.01)
    assert cost.bytes_max(1000) == 1000


@given(
    st.lists(st.tuples(st.integers(1, 16 << 20), st.floats(0, 30)), min_size=1, max_size=50),
)
def test_no_noise_makes_a_bound_that_cannot_be(groups: list[tuple[int, float]]) -> None:
    cost = GroupCost()
    for octets, seconds in groups:
        cost.learn(octets, seconds)
        assert cost.sync_seconds >= 0
        assert cost.byte_seconds > 0 or seconds == 0
        assert (256 << 10) <= cost.bytes_max(MOST) <= MOST


def test_a_disk_which_becomes_slow_is_learnt_in_some_groups() -> None:
    cost = GroupCost()
    for number in range(100):
        octets = (1 + number % 8) << 17
        cost.learn(octets, 0.001 + octets / 500e6)
    for number in range(60):
        octets = (1 + number % 8) << 17
        cost.learn(octets, 0.001 + octets / 20e6)
    assert cost.byte_seconds == pytest.approx(1 / 20e6, rel=0.1)
    assert cost.bytes_max(MOST) < 500_000
    assert GroupCost().bytes_max(MOST) == pytest.approx(0.019 / 1e-8, rel=0.01)


def test_a_group_without_bytes_says_what_a_sync_costs__NB_07() -> None:
    """Batches without messages may be a group of their own."""
    cost = GroupCost()
    cost.learn(0, 0.25)
    assert cost.sync_seconds == 0.25
