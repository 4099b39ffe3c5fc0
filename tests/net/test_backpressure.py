"""Pause reasons and the shared budget."""

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from twisted_msgproto.net import OctetBudget, ReadControl


def test_reading_stops_at_the_first_reason_and_goes_on_after_the_last():
    transport, changes = StringTransport(), []
    control = ReadControl(transport, changes.append)
    control.pause("a")
    control.pause("b")
    control.pause("b")
    assert transport.producerState == "paused"
    assert control.reasons == {"a", "b"}
    control.resume("a")
    assert control.paused
    assert transport.producerState == "paused"
    control.resume("b")
    control.resume("b")
    assert not control.paused
    assert transport.producerState == "producing"
    assert changes == [True, True, True, False]


def test_a_connection_which_is_gone_is_not_resumed():
    transport = StringTransport()
    control = ReadControl(transport)
    budget = OctetBudget(10)
    budget.add(11, control)
    budget.forget(control)
    budget.remove(11)
    assert transport.producerState == "paused"
    assert budget.waiting == 0


def test_who_has_less_than_its_share_waiting_is_not_paused_for_others__NB_01():
    bulk, good = StringTransport(), StringTransport()
    bulk_control, good_control = ReadControl(bulk), ReadControl(good)
    budget = OctetBudget(1000)
    budget.senders = 1
    budget.add(1000, bulk_control, 1000)
    assert bulk.producerState == "producing"
    budget.senders = 2
    budget.add(100, good_control, 100)
    assert good.producerState == "producing"  # 100 of its 500
    budget.add(10, bulk_control, 1010)
    assert bulk.producerState == "paused"
    budget.add(401, good_control, 501)
    assert good.producerState == "paused"
    budget.remove(1010)
    budget.senders = 1
    assert (bulk.producerState, good.producerState) == ("paused", "paused")
    budget.remove(1)
    assert (bulk.producerState, good.producerState) == ("producing", "producing")


def test_the_smallest_limits_of_all_servers_hold():
    budget, clock = OctetBudget(), Clock()
    budget.bound(1000, 100, 50, clock)
    budget.bound(2000, 200, 40, clock)
    budget.bound(3000, 300, 60, clock)
    assert (budget.limit, budget.held.limit, budget.held.min_rate) == (1000, 100, 40)
    assert budget.held.clock is clock


@pytest.mark.parametrize(
    ("others", "senders", "own", "paused"),
    [
        (0, 1, 100, False),
        (0, 1, 101, True),
        (60, 1, 60, False),  # what others have left behind is nobody's share
        (60, 0, 60, False),
        (60, 0, 101, True),
        (50, 2, 50, False),
        (60, 2, 50, False),
        (60, 2, 51, True),
        (90, 10, 10, False),
        (95, 10, 11, True),
        (80, 10, 11, False),
    ],
)
def test_who_has_more_than_its_share_is_paused_above_the_limit__NB_01__NB_03(
    others: int, senders: int, own: int, paused: bool
) -> None:
    """The limit is 100, shared by all of whom something waits; at half of it all are read again."""
    transport = StringTransport()
    control = ReadControl(transport)
    budget = OctetBudget(100, "why")
    budget.waiting, budget.senders = others, senders
    budget.add(own, control, own)
    assert control.reasons == (frozenset({"why"}) if paused else frozenset())
    budget.remove(others + own - 51)
    assert control.paused is paused
    budget.remove(1)
    assert (control.paused, transport.producerState) == (False, "producing")
