"""The sink over the queue: Deferreds which fire after the disk said so."""

import threading
from dataclasses import replace

from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, gatherResults, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.net import DurableSink
from twisted_msgproto.queue import QueueReader


def batch(*bodies):
    return MessageBatch("test", "json", 1, count=len(bodies), body=list(bodies), nbytes=1)


class Durable(TestCase):
    def open(self, **options):
        sink = DurableSink(self.mktemp(), reactor, **options)
        self.addCleanup(sink.close)
        return sink

    def test_queues_outlive_the_process_over_a_writer_of_ours_only(self):
        own = self.open()
        self.assertTrue(own.keeps_queues)
        self.assertTrue(DurableSink.over(own.writer, reactor).keeps_queues)
        self.assertFalse(DurableSink.over(object(), reactor).keeps_queues)

    async def test_a_batch_is_on_disk_when_its_deferred_fires(self):
        """LJ-13: acknowledged means on disk."""
        sink = self.open()
        await sink.put(batch(b"a", b"b"))
        reader = QueueReader(sink.writer.directory)
        rows = [row for table in reader.read(0, reader.end()) for row in table.to_pylist()]
        self.assertEqual([row["body"] for row in rows], [b"a", b"b"])
        self.assertEqual({row["gateway"] for row in rows}, {sink.writer.queue_id})

    async def test_deferreds_fire_in_the_reactors_thread_in_the_order_of_puts(self):
        sink, fired = self.open(), []
        puts = [sink.put(batch(b"%d" % number)) for number in range(50)]
        for number, put in enumerate(puts):
            put.addCallback(
                lambda _, number=number: fired.append((number, threading.current_thread()))
            )
        await gatherResults(puts)
        self.assertEqual(fired, [(n, threading.current_thread()) for n in range(50)])

    async def test_a_batch_which_cannot_be_written_fails_alone(self):
        sink = self.open()
        bad = MessageBatch("test", "json", 1, count=1, body=[3], nbytes=1)
        good = sink.put(batch(b"before"))
        failing = sink.put(bad)
        after = sink.put(batch(b"after"))
        await good
        await after
        try:
            await failing
        except Exception as error:
            self.assertTrue(str(error))
        else:
            self.fail("the bad batch was accepted")

    async def test_closing_flushes_what_waits(self):
        sink = DurableSink(self.mktemp(), reactor)
        puts = [sink.put(batch(b"x")) for _ in range(10)]
        self.assertTrue(await sink.close())
        await gatherResults(puts)
        self.assertEqual(QueueReader(sink.writer.directory).end(), 10)


class Writer:
    """Keeps the callbacks of batches, until a test says what became of them."""

    def __init__(self):
        self.callbacks = []

    def submit(self, batch, callback):
        self.callbacks.append(callback)


class Calls:
    """The calls into the reactor's thread, until a test makes them."""

    def __init__(self):
        self.calls = []

    def callFromThread(self, call):
        self.calls.append(call)


class WokenOnce(TestCase):
    def test_the_reactor_is_woken_once_for_all_that_became_safe_meanwhile(self):
        writer, threads = Writer(), Calls()
        sink = DurableSink.over(writer, threads)
        results = [sink.put(batch(b"x")) for _ in range(3)]
        failed: list = []
        results[1].addErrback(lambda failure: failed.append(failure.value))
        writer.callbacks[0](None, 0)
        writer.callbacks[1](OSError("disk"), None)
        self.assertEqual(len(threads.calls), 1)
        threads.calls.pop()()
        self.assertTrue(results[0].called)
        self.assertEqual(str(failed[0]), "disk")
        writer.callbacks[2](None, 2)
        self.assertEqual(len(threads.calls), 1)
        threads.calls.pop()()
        self.assertTrue(results[2].called)
        self.assertIsInstance(results[2], Deferred)


class ClosingInTime(TestCase):
    def closed(self, brokerPersistence, *timeout):
        """What the writer is told at the end, and after how many seconds."""
        told = []

        class Writer:
            def submit(self, batch, callback):
                callback(None, 0)

            def close(self, seconds):
                told.append((clock.seconds(), seconds))
                return True

        class Threads:
            def callInThreadWithCallback(self, done, call, *args):
                done(True, call(*args))

        class Reactor(Clock):
            def callFromThread(self, call, *args):
                call(*args)

            def getThreadPool(self):
                return Threads()

        clock = Reactor()
        sink = DurableSink.over(Writer(), clock)
        sink.brokerPersistence = brokerPersistence
        closed = sink.close(*timeout)
        clock.pump([0.5] * 20)
        self.assertTrue(self.successResultOf(closed))
        self.assertEqual(clock.getDelayedCalls(), [])
        return told

    def test_the_queue_is_closed_though_the_keeper_of_queues_does_not_end(self):
        class Keeper:
            def __init__(self, ends):
                self.ends = ends

            def close(self):
                return self.ends

        for ends, timeout, told in (
            (Deferred(), (2.0,), [(2.0, 2.0)]),
            (Deferred(), (), [(4.0, 4.0)]),
            (fail(QueueError("no")), (2.0,), [(0.0, 2.0)]),
            (succeed(None), (), [(0.0, 4.0)]),
        ):
            self.assertEqual(self.closed(Keeper(ends), *timeout), told)
        self.assertEqual(self.closed(None), [(0.0, 4.0)])


class ForQueues(TestCase):
    def put_all(self, brokerPersistence):
        """What became of a message for a queue, and of one that is for none."""
        writer, threads = Writer(), Calls()
        sink = DurableSink.over(writer, threads)
        sink.brokerPersistence = brokerPersistence
        brokered, plain = replace(batch(b"1"), envelope=[b"{}"]), batch(b"2")
        safe = [sink.put(brokered), sink.put(plain)]
        for first, callback in enumerate(writer.callbacks):
            callback(None, first)
        for call in threads.calls:
            call()
        self.assertEqual([self.successResultOf(one) for one in safe], [0, 1])
        return brokered

    def test_the_keeper_of_queues_learns_only_of_messages_for_queues(self):
        """And they are safe without one."""
        self.put_all(None)
        stored = []

        class Keeper:
            def stored(self, batch, first):
                stored.append((batch, first))

        brokered = self.put_all(Keeper())
        self.assertEqual(stored, [(brokered, 0)])
