"""Places, ranges and shares; what does not fit is one line that says what to do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from twisted_msgproto.core.errors import QueueAway, QueueMismatch
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.spark.offsets import (
    Place,
    Places,
    Range,
    batch_ranges,
    latest_places,
    places_at,
)


@dataclass
class FakeQueue:
    queue_id: str = "q1"
    first: int = 0
    last: int = 1000
    incarnation: int = 0
    witness: int = 0
    stale: bool = False
    """Its end is older than its rows: its machine has lost power."""

    def begin(self) -> int:
        return self.first

    def end(self) -> int:
        return self.last

    def place(self, offset: int) -> Landed:
        return Landed(offset, self.incarnation, self.witness)

    def damaged(self) -> Any: ...
    def describe(self, landed: Landed | None = None) -> Any: ...
    def check(self, landed: Landed) -> None:
        if landed.offset > self.last:
            raise (QueueAway if self.stale else QueueMismatch)("beyond the end")

    def read(self, lo: int, hi: int, rows: int = 0, *, landed: Landed | None = None) -> Any: ...
    def register(self, consumer: str) -> Any: ...
    def commit(self, consumer: str, offset: int, landed: Landed | None = None) -> None: ...
    def forget(self, consumer: str) -> None: ...


def at(offset: int, since: int | None = None) -> Place:
    place: Place = {"offset": offset}
    if since is not None:
        place["since"] = since
    return place


def run(
    queues: dict[str, FakeQueue], start: Places, rows_max: int | None = None, **more: Any
) -> tuple[Places, list[Range]]:
    """The next batch after ``start``: where it ends, and its ranges."""
    end = latest_places(queues, start, rows_max=rows_max, **more)
    accept = {"accept_loss": more["accept_loss"]} if "accept_loss" in more else {}
    return end, batch_ranges(queues, start, end, **accept)


def test_a_new_stream_begins_at_the_earliest_offset() -> None:
    queues = {"q1": FakeQueue(first=64)}
    assert places_at(queues, {"q1": 64}) == {"q1": at(64, since=64)}


def test_the_first_batch_says_where_it_began() -> None:
    """Repeated after a kill it would ask ``startingOffsets`` again, and ``latest`` has moved on."""
    queues = {"q1": FakeQueue(first=5, last=100)}
    start = places_at(queues, {"q1": 40})
    end, ranges = run(queues, start)
    assert end == {"q1": at(100, since=40)}
    later = places_at(queues, {"q1": 90})
    assert batch_ranges(queues, later, end) == ranges == [Range("q1", 40, 100)]
    queues["q1"].last = 110
    assert run(queues, end) == ({"q1": at(110)}, [Range("q1", 100, 110)])


def test_a_first_batch_without_rows_keeps_the_place_it_began_at() -> None:
    queues = {"q1": FakeQueue(first=5, last=100)}
    start = places_at(queues, {"q1": 100})
    end, ranges = run(queues, start)
    assert (end, ranges) == (start, [])
    queues["q1"].last = 150
    following, ranges = run(queues, end)
    assert ranges == [Range("q1", 100, 150)]
    assert batch_ranges(queues, places_at(queues, {"q1": 150}), following) == ranges


def test_a_batch_takes_everything_or_no_more_than_allowed() -> None:
    queues = {"q1": FakeQueue()}
    start = {"q1": at(100)}
    assert run(queues, start) == ({"q1": at(1000)}, [Range("q1", 100, 1000)])
    assert run(queues, start, 250) == ({"q1": at(350)}, [Range("q1", 100, 350)])


def test_without_news_the_place_is_the_very_same() -> None:
    """Or Spark would run an empty batch."""
    queues = {"q1": FakeQueue()}
    start = {"q1": at(1000, since=7)}
    assert run(queues, start) == (start, [])


def test_a_stream_that_drains_ends_where_the_queue_ended() -> None:
    queues = {"q1": FakeQueue()}
    end, ranges = run(queues, {"q1": at(100)}, ends={"q1": 400})
    assert (end, ranges) == ({"q1": at(400)}, [Range("q1", 100, 400)])
    assert run(queues, end, ends={"q1": 400}) == (end, [])


def test_a_queue_which_joins_later_says_where_its_first_batch_began() -> None:
    """Trimming after the plan must not change what a repeated batch reads."""
    queues = {"q1": FakeQueue(), "q2": FakeQueue("q2", first=50, last=80)}
    start = {"q1": at(1000)}
    end, ranges = run(queues, start)
    assert end == {"q1": at(1000), "q2": at(80, since=50)}
    assert ranges == [Range("q2", 50, 80)]
    assert batch_ranges(queues, start, end) == ranges
    queues["q2"].last = 90
    following, ranges = run(queues, end)
    assert following == {"q1": at(1000), "q2": at(90)}
    assert ranges == [Range("q2", 80, 90)]


def test_ranges_are_cut_evenly_but_not_too_small() -> None:
    queues = {"q1": FakeQueue()}
    start, end = {"q1": at(0)}, {"q1": at(1000)}
    assert batch_ranges(queues, start, end, parts=3) == [
        Range("q1", 0, 333),
        Range("q1", 333, 666),
        Range("q1", 666, 1000),
    ]
    assert len(batch_ranges(queues, start, {"q1": at(8)}, parts=8)) == 8
    assert len(batch_ranges(queues, start, end, parts=8, rows_min=400)) == 2
    assert batch_ranges(queues, start, end, parts=8, rows_min=5000) == [Range("q1", 0, 1000)]


# -- what does not fit ----------------------------------------------------------------------------


PROVEN: Place = {"offset": 900, "incarnation": 7, "witness": 11}
"""A place in a queue whose incarnation is 7 and whose witness is 11."""


@pytest.mark.parametrize(
    ("queue", "place", "texts"),
    [
        (
            FakeQueue(last=900),
            at(950),
            ("ahead of queue q1", "offset 950", "ends at 900", "new table", "--accept-loss"),
        ),
        (
            FakeQueue(first=500),
            at(400),
            ("offset 400 is wanted, the earliest kept is 500", "still holds offsets from 500"),
        ),
        (FakeQueue("q2"), at(5), ("belongs to queue q1, not to q2", "--retired q1")),
        # TB-06: same id, written past the checkpoint
        (
            FakeQueue(incarnation=8, witness=11),
            PROVEN,
            ("row 899 of queue q1 is not the one which was read", "restored from an older copy"),
        ),
        (
            FakeQueue(incarnation=7, witness=12),
            PROVEN,
            ("row 899 of queue q1 is not the one which was read", "set back to a snap"),
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_whatever_meets_it__TB_06(
    queue: FakeQueue, place: Place, texts: tuple[str, ...]
) -> None:
    queues, places = {queue.queue_id: queue}, {"q1": place}
    checks: list[Callable[[], object]] = [
        lambda: latest_places(queues, places),
        lambda: batch_ranges(queues, {"q1": at(max(0, place["offset"] - 1))}, places),
    ]
    if queue.first:  # what a batch ends with may be trimmed: it has been read
        del checks[1]
    for check in checks:
        with pytest.raises(QueueMismatch) as caught:
            check()
        assert "\n" not in str(caught.value)
        assert all(text in str(caught.value) for text in texts)
    if queue.queue_id == "q1":
        latest_places(queues, places, accept_loss=True)
    else:
        with pytest.raises(QueueMismatch, match="belongs to queue q1"):
            latest_places(queues, places, accept_loss=True)


@pytest.mark.parametrize("accept_loss", [False, True])
def test_after_a_power_loss_the_gateway_is_waited_for__NB_12(accept_loss: bool) -> None:
    """With accepted losses the stream went back to the old end, and read rows once more."""
    queue = FakeQueue(witness=7, stale=True)
    start: Places = {"q1": {"offset": 1001, "witness": 7}}
    with pytest.raises(QueueAway):
        run({"q1": queue}, start, accept_loss=accept_loss)


def test_places_prove_their_history_and_tasks_check_it_again() -> None:
    """TB-06, TB-07 in a stream of one's own."""
    queues = {"q1": FakeQueue(incarnation=7, witness=11)}
    end, ranges = run(queues, {"q1": at(10)})
    assert end == {"q1": {"offset": 1000, "incarnation": 7, "witness": 11}}
    assert ranges == [Range("q1", 10, 1000, Landed(1000, 7, 11))]
    queues["q1"].last = 1010
    assert run(queues, end)[1] == [Range("q1", 1000, 1010, Landed(1010, 7, 11))]


def test_what_fits_is_let_through() -> None:
    queues = {"q1": FakeQueue(first=5, last=10)}
    for place in (at(5), at(10), at(7)):
        latest_places(queues, {"q1": place})
    latest_places(queues, {})


def test_a_repeated_batch_whose_rows_are_gone_is_refused() -> None:
    start, end = {"q1": at(100)}, {"q1": at(200)}
    with pytest.raises(QueueMismatch, match="offset 100 is wanted"):
        batch_ranges({"q1": FakeQueue(first=150)}, start, end)
    with pytest.raises(QueueMismatch, match="ahead"):
        batch_ranges({"q1": FakeQueue(last=199)}, start, end)
    with pytest.raises(QueueMismatch, match="belongs to queue q1"):
        batch_ranges({"q2": FakeQueue("q2")}, start, end)
    kept = batch_ranges({"q1": FakeQueue(first=150)}, start, end, accept_loss=True)
    assert kept == [Range("q1", 150, 200)]
    assert batch_ranges({"q1": FakeQueue(first=300)}, start, end, accept_loss=True) == []


@pytest.mark.parametrize(
    ("queue", "offset", "place", "ranges"),
    [
        (FakeQueue(first=500), 400, at(1000, since=500), [Range("q1", 500, 1000)]),
        (FakeQueue(last=900), 950, at(900, since=900), []),
    ],
    ids=["trimmed", "ahead"],
)
def test_after_an_accepted_loss_the_stream_goes_on_with_what_is_there(
    queue: FakeQueue, offset: int, place: Place, ranges: list[Range]
) -> None:
    end, got = run({"q1": queue}, {"q1": at(offset)}, accept_loss=True)
    assert (end, got) == ({"q1": place}, ranges)
    queue.last += 10
    _, following = run({"q1": queue}, end)
    assert following == [Range("q1", place["offset"], place["offset"] + 10)]


def test_a_retired_queue_keeps_its_place() -> None:
    start = {"q1": at(77), "q2": at(0)}
    end = latest_places({"q2": FakeQueue("q2")}, start, retired=["q1"])
    assert end == {"q1": at(77), "q2": at(1000)}
    assert batch_ranges({"q2": FakeQueue("q2")}, start, end) == [Range("q2", 0, 1000)]
    latest_places({"q2": FakeQueue("q2")}, start, retired=["q1"])
