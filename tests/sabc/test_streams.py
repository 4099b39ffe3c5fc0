"""Bodies which go in parts: large ones, and those which come piece by piece."""

from twisted.internet.defer import CancelledError

from twisted_msgproto.core.errors import ConnectionClosed, TimedOut

from .pairs import Case, Echo


class Streams(Case):
    server_class = Echo

    def test_a_large_body_is_sent_in_parts_and_arrives_whole(self):
        """SA-18, SA-19."""
        self.pair()
        body = bytes(range(256)) * 800
        asked = self.client.request(body)
        self.assertGreater(self.client.transport.value().count(b"msg-more::yes"), 2)
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, body)

    def test_a_body_which_comes_piece_by_piece(self):
        """SA-18."""
        self.pair(part_octets=10)

        def pieces():
            for number in range(40):
                yield b"%d " % number

        asked = self.client.request(pieces(), headers={"x": "y"})
        self.assertNoResult(asked)
        for _ in range(4):
            self.clock.advance(0)
        self.pump()
        expected = b"".join(b"%d " % number for number in range(40))
        self.assertEqual(self.successResultOf(asked).body, expected)
        self.assertEqual(self.server.notes[-1].fields, {"x": "y"})
        sent = self.client.sendOnly([b"a", b"b"])
        self.successResultOf(sent)
        self.pump()
        self.assertEqual(self.server.notes[-1].body, b"ab")

    def test_a_streamed_body_waits_for_a_slow_reader(self):
        """SA-18: no more is taken from the source than the peer reads."""
        self.pair()
        taken = []

        def pieces():
            for number in range(100):
                taken.append(number)
                yield b"x" * 1000

        self.client.transport.producer.pauseProducing()
        asked = self.client.request(pieces())
        self.assertEqual(taken, [])
        self.client.transport.producer.resumeProducing()
        self.assertEqual(len(taken), 16)
        self.client.transport.producer.pauseProducing()
        self.clock.advance(0)
        self.assertEqual(len(taken), 16)
        self.client.transport.producer.resumeProducing()
        self.client.transport.producer.resumeProducing()
        while self.clock.getDelayedCalls()[0].getTime() <= self.clock.seconds():
            self.clock.advance(0)
        self.pump()
        self.assertEqual(len(self.successResultOf(asked).body), 100_000)

    def test_a_source_which_fails_ends_its_message_alone(self):
        """SA-18, SA-20."""
        self.pair(part_octets=4)

        def pieces():
            yield b"a" * 100_000
            raise OSError("disk")

        for verb in (self.client.request, self.client.sendOnly):
            self.failureResultOf(verb(pieces()), OSError)
        self.failureResultOf(self.client.request([5]), TypeError)
        asked = self.client.request(b"next")
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"next")
        self.assertEqual(self.server.machine.counters.discarded_frames, 2)

    def test_a_streamed_request_can_be_cancelled(self):
        """SA-18, SA-20."""
        self.pair()

        def endless():
            while True:
                yield b"x" * 10_000

        asked = self.client.request(endless())
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.client.sendError(1)  # with lengths a frame ends where the next one begins
        self.pump()
        self.assertEqual(self.server.machine.counters.discarded_frames, 1)
        self.assertEqual(self.client.machine.outstanding, 0)
        asked = self.client.request([b"later"])
        self.clock.advance(0)
        self.pump()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(self.client.machine.outstanding, 0)

    def test_a_streamed_request_times_out(self):
        """SA-27."""
        self.pair()
        self.client.transport.producer.pauseProducing()
        asked = self.client.request([b"x"], timeout=5)
        self.clock.advance(5)
        self.failureResultOf(asked, TimedOut)
        self.client.transport.producer.resumeProducing()

    def test_streams_end_with_the_session(self):
        """SA-18."""
        self.pair()

        def endless():
            while True:
                yield b"x"

        room = self.client.room
        asked, sent = self.client.request(endless()), self.client.sendOnly(endless())
        self.assertEqual(self.client.room, room - 1)  # SA-27
        self.lose(self.client)
        self.failureResultOf(asked, ConnectionClosed)
        self.failureResultOf(sent, ConnectionClosed)
