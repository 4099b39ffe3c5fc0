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
