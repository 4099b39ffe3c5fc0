"""Pause reasons and the shared budget."""

from twisted.internet.testing import StringTransport

from twisted_msgproto.net.backpressure import OctetBudget, ReadControl


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


class Holding:
    def __init__(self):
        self.cut = []

    def cutOff(self, octets, limit):
        self.cut.append((octets, limit))


def test_who_holds_most_of_what_is_not_whole_is_cut_off():
    budget = OctetBudget()
    budget.bound(1000, 100)
    budget.bound(2000, 200)  # another server of the process: the smallest limit holds
    assert (budget.limit, budget.held.limit) == (1000, 100)
    small, large, late = Holding(), Holding(), Holding()
    budget.held.hold(small, 20)
    budget.held.hold(large, 50)
    budget.held.hold(large, 80)
    assert (small.cut, large.cut, budget.held.held) == ([], [], 100)
    budget.held.hold(late, 1)
    assert (small.cut, large.cut, late.cut) == ([], [(80, 100)], [])
    assert budget.held.held == 21
    budget.held.hold(late, 300)  # a single one can be too much
    assert late.cut == [(300, 100)]
    budget.held.hold(small, 0)
    budget.held.hold(large, 0)  # it is gone, and says so
    assert budget.held.held == 0
