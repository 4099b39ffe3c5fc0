"""Requests in flight: each message is asked once, in order, and never more than the window."""

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from twisted_msgproto.core.errors import ConnectionClosed
from twisted_msgproto.net.clients.asking import ask_each


class Listed:
    """So many messages, as many at a time as there is room for."""

    def __init__(self, count):
        self.left = [b"%d" % number for number in range(count)]

    async def some(self, most):
        assert most > 0
        taken, self.left = self.left[:most], self.left[most:]
        return taken


class Told:
    def __init__(self):
        self.counts = []

    def sent(self, count):
        self.counts.append(("sent", count))

    def acknowledged(self, count):
        self.counts.append(("acknowledged", count))


class Asking(TestCase):
    def ask(self, count, window):
        self.clock, self.told, self.asked, self.waiting = Clock(), Told(), [], []

        def ask(body):
            self.asked.append(body)
            self.waiting.append(Deferred())
            return self.waiting[-1]

        return Deferred.fromCoroutine(ask_each(self.clock, Listed(count), self.told, window, ask))

    def answer(self, *results):
        for result in results:
            self.waiting.pop(0).callback(result)
        self.clock.advance(0)

    def test_no_more_than_the_window_is_in_flight(self):
        done = self.ask(5, 2)
        self.assertEqual(self.asked, [b"0", b"1"])
        self.answer(None)
        self.assertEqual(self.asked, [b"0", b"1", b"2"])
        self.answer(None, None)
        self.assertEqual(self.asked, [b"0", b"1", b"2", b"3", b"4"])
        self.answer(None, None)
        self.assertIsNone(self.successResultOf(done))
        self.assertEqual(
            self.told.counts,
            [
                ("sent", 2),
                ("acknowledged", 1),
                ("sent", 1),
                ("acknowledged", 2),
                ("sent", 2),
                ("acknowledged", 2),
            ],
        )

    def test_the_first_failure_ends_it_and_what_was_answered_before_counts(self):
        done = self.ask(3, 3)
        self.waiting[0].callback(None)
        self.waiting[1].errback(ConnectionClosed("gone"))
        self.waiting[2].errback(ConnectionClosed("gone as well"))
        self.clock.advance(0)
        self.assertEqual(str(self.failureResultOf(done, ConnectionClosed).value), "gone")
        self.assertEqual(self.told.counts, [("sent", 3), ("acknowledged", 1)])


class Quiet:
    """An input with one message, and another one when somebody types it."""

    def __init__(self):
        self.left = [[b"0"]]
        self.typing = None

    async def some(self, most):
        if self.left:
            return self.left.pop(0)
        self.typing = Deferred()
        return await self.typing


class SlowInput(TestCase):
    """The next line takes its time (``tail -F log | msgproto send …``)."""

    def setUp(self):
        self.clock, self.told, self.input, self.waiting = Clock(), Told(), Quiet(), []

        def ask(body):
            self.waiting.append(Deferred())
            return self.waiting[-1]

        sending = ask_each(self.clock, self.input, self.told, 10, ask)
        self.done = Deferred.fromCoroutine(sending)

    def test_an_answer_is_told_while_the_next_line_is_awaited(self):
        self.waiting[0].callback(None)
        self.clock.advance(0)
        self.assertEqual(self.told.counts, [("sent", 1), ("acknowledged", 1)])
        self.input.typing.callback([b"1"])
        self.assertEqual(self.told.counts[2:], [("sent", 1)])
        self.waiting[1].callback(None)
        self.clock.advance(0)
        self.input.typing.callback([])
        self.assertIsNone(self.successResultOf(self.done))
        self.assertEqual(self.told.counts[3:], [("acknowledged", 1)])

    def test_a_failure_ends_it_though_no_line_comes(self):
        self.waiting[0].errback(ConnectionClosed("gone"))
        self.clock.advance(0)
        self.failureResultOf(self.done, ConnectionClosed)

    def test_who_gives_it_up_ends_the_wait_for_a_line(self):
        self.done.cancel()
        self.failureResultOf(self.done, CancelledError)
