"""The client and the shipper on a string transport and a clock: Deferreds, producers, timers."""

from OpenSSL.SSL import Error as TLSError
from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import (
    IConsumer,
    IPushProducer,
    IStreamClientEndpoint,
)
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.doubles import LoggedCase, Tcp
from tests.lumberjack.frames import encode_ack, windows
from twisted_msgproto.core.errors import (
    ConfigurationError,
    ConnectionClosed,
    LimitExceeded,
    ProtocolViolation,
    Refused,
)
from twisted_msgproto.lumberjack import (
    LumberjackClientFactory,
    LumberjackShipper,
    connect,
)
from twisted_msgproto.lumberjack.machine import Writer

PEER = IPv4Address("TCP", "192.0.2.9", 5044)


class Transport(Tcp):
    """Tells its protocol when it is aborted."""

    protocol = None

    def __init__(self):
        super().__init__()
        self.peerAddr = PEER

    def abortConnection(self):
        self.lose(ConnectionLost())

    def lose(self, error=None):
        """The connection ends, as if by the network."""
        if self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            protocol.connectionLost(Failure(error or ConnectionDone()))

    def take(self):
        """The bodies (or pairs) of each window which was written since the last call."""
        octets = self.value()
        self.clear()
        return [events for _, _, events in windows(octets)]


@implementer(IPushProducer)
class Producer:
    def __init__(self):
        self.calls = []

    def pauseProducing(self):
        self.calls.append("pause")

    def resumeProducing(self):
        self.calls.append("resume")

    def stopProducing(self):
        self.calls.append("stop")


class Connected(LoggedCase):
    """One connected client."""

    def connect(self, changes=None, **settings):
        settings = {"compress": 0, "window": 10, **settings}
        self.factory = LumberjackClientFactory(limits=changes, clock=self.clock, **settings)
        self.host = Host("a", [])
        client = self.successResultOf(self.host.connect(self.factory))
        self.transport = self.host.transport
        return client

    def lose(self, client):
        self.transport.lose()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.factory.liveConnections, set())

    def test_what_callbacks_send_shares_a_window(self):
        """LJ-18: acks are all told before the next window is formed."""
        client = self.connect()
        for body in (b"a", b"b"):
            sent = client.sendBatch([body])
            sent.addCallback(lambda _, body=body: client.send(body * 2) and None)
        client.dataReceived(encode_ack(1))
        self.assertEqual(self.transport.take(), [[b"a"], [b"b", b"aa"]])
        client.dataReceived(encode_ack(2))
        self.assertEqual(self.transport.take(), [[b"bb"]])
        client.dataReceived(encode_ack(1))
        self.lose(client)

    def test_a_reader_which_breaks_the_protocol_is_left(self):
        """LJ-15, LJ-16: a line, a counter, a typed error."""
        client = self.connect()
        sent = client.send(b"1")
        client.dataReceived(encode_ack(2) + encode_ack(1))
        self.assertIsNone(self.transport.protocol)  # it was aborted
        error = self.failureResultOf(sent, ProtocolViolation).value
        self.assertEqual(str(error), "an ack of 2 of a window of 1")
        self.assertEqual(
            self.lines,
            ["192.0.2.9:5044: left: an ack of 2 of a window of 1 (starts with 32 41 00 00 00 02)"],
        )
        self.assertEqual(self.factory.counters["fault:ack"], 1)

    def test_a_connection_whose_time_is_over_takes_no_more__LJ_15(self):
        client = self.connect({"ttl": 5})
        sent = client.send(b"1")
        self.clock.advance(5)
        self.failureResultOf(client.send(b"2"), ConnectionClosed)
        self.assertFalse(self.transport.disconnecting)
        client.dataReceived(encode_ack(1))
        self.successResultOf(sent)
        self.assertTrue(self.transport.disconnecting)
        self.lose(client)


class Settings(LoggedCase):
    def test_settings_which_cannot_be_are_the_operators_fault(self):
        for settings in (
            *({"window": 0}, {"window": 65_537}, {"version": 3}, {"pipelining": 0}),
            *({"compress": -1}, {"compress": 10}),
        ):
            with self.assertRaises(ConfigurationError):
                LumberjackClientFactory(clock=self.clock, **settings)
        LumberjackClientFactory(
            clock=self.clock, window=65_536, version=1, compress=9, pipelining=100
        )
        with self.assertRaises(ConfigurationError):
            LumberjackClientFactory(clock=self.clock, limits={"no-such": 1})
        with self.assertRaises(ConfigurationError):
            LumberjackShipper(self.clock, [])
        with self.assertRaises(ConfigurationError):
            LumberjackShipper(self.clock, ["nonsense"])
        with self.assertRaisesRegex(TypeError, "endpoints: a list of endpoints is expected"):
            LumberjackShipper(self.clock, "tcp:127.0.0.1:5044")  # and not of its letters


# ── The shipper ─────────────────────────────────────────────────────────────────────────────────


@implementer(IStreamClientEndpoint)
class Host:
    """An endpoint whose connections the test makes and breaks."""

    def __init__(self, name, trace, *, up=True):
        self.name = name
        self.trace = trace
        self.up = up
        self.transports = []

    def connect(self, factory):
        self.trace.append(self.name)
        if not self.up:
            return fail(ConnectionRefusedError())
        protocol = factory.buildProtocol(PEER)
        transport = Transport()
        self.transports.append(transport)
        transport.protocol = protocol
        connected = Deferred()
        protocol.makeConnection(transport)
        connected.callback(protocol)
        return connected

    @property
    def transport(self):
        return self.transports[-1]

    def ack(self, count):
        self.transport.protocol.dataReceived(encode_ack(count))

    def take(self):
        return self.transport.take()


UNKNOWN = TLSError([("SSL routines", "", "tlsv1 alert unknown ca")])
"""What a reader says of a certificate which it does not know."""


class Shipping(LoggedCase):
    def setUp(self):
        super().setUp()
        self.trace = []
        self.chance = 0.0

    def hosts(self, *names):
        return [Host(name, self.trace) for name in names]

    def ship(self, hosts, changes=None, **settings):
        self.shipper = LumberjackShipper(
            self.clock,
            hosts,
            limits=changes,
            random=lambda: self.chance,
            **{"compress": 0, "window": 10, **settings},
        )
        self.shipper.startService()
        return self.shipper

    def stop(self):
        stopped = self.shipper.stopService()
        for transport in [client.transport for client in self.shipper.factory.liveConnections]:
            if transport.disconnecting or self.shipper.unacknowledged == 0:
                transport.lose()
        self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual((self.shipper.unsent, self.shipper.unacknowledged), (0, 0))

    def test_everything_unacknowledged_is_sent_again_in_order(self):
        """LJ-10, LJ-15: in flight first, then what waited; what was acknowledged is not."""
        (host,) = self.hosts("a")
        shipper = self.ship([host], window=3)
        first = shipper.sendBatch([b"1", b"2", b"3"])
        rest = [shipper.send(b"4"), shipper.send(b"5")]
        host.ack(1)
        host.transport.lose(ConnectionLost())
        self.assertNoResult(first)
        last = shipper.send(b"6")
        self.clock.advance(1.0)
        self.assertEqual(host.take(), [[b"2", b"3", b"4"]])
        host.ack(3)
        self.successResultOf(first)
        self.successResultOf(rest[0])
        self.assertEqual(host.take(), [[b"5", b"6"]])
        host.ack(2)
        self.successResultOf(rest[1])
        self.successResultOf(last)
        self.stop()

    def test_a_reader_which_only_accepts_and_hangs_up_is_waited_for_longer_and_longer(self):
        """LJ-15: only an ack ends the waiting."""
        (host,) = self.hosts("a")
        shipper = self.ship([host])
        shipper.send(b"1").addErrback(lambda _: None)
        for seconds in (1, 2, 4):
            host.transport.protocol.dataReceived(encode_ack(0))
            host.transport.lose()
            self.clock.advance(seconds - 0.01)
            before = len(self.trace)
            self.clock.advance(0.02)
            self.assertEqual(len(self.trace), before + 1)
        host.ack(1)
        host.transport.lose()
        before = len(self.trace)
        self.clock.advance(1.0)
        self.assertEqual(len(self.trace), before + 1)
        self.stop()

    def test_each_attempt_goes_to_the_next_host(self):
        """LJ-15: failover."""
        hosts = self.hosts("a", "b", "c")
        hosts[0].up = False
        shipper = self.ship(hosts)
        sent = shipper.send(b"1")
        self.clock.advance(1.0)
        self.assertEqual(self.trace, ["a", "b"])
        hosts[1].transport.lose()
        self.clock.advance(2.0)
        self.assertEqual(self.trace, ["a", "b", "c"])
        self.assertEqual(hosts[2].take(), [[b"1"]])
        hosts[2].ack(1)
        self.successResultOf(sent)
        hosts[2].transport.lose()
        self.clock.advance(1.0)
        self.assertEqual(self.trace, ["a", "b", "c", "a"])
        self.stop()

    def test_load_balance_gives_each_host_windows(self):
        """LJ-15: whichever has room; a lost one's events go to the others."""
        hosts = self.hosts("a", "b")
        shipper = self.ship(hosts, loadBalance=True, window=2)
        sent = shipper.sendBatch([b"%d" % number for number in range(1, 7)])
        taken = {host.name: host.take() for host in hosts}
        self.assertEqual(sorted(taken.values()), [[[b"1", b"2"]], [[b"3", b"4"]]])
        lost, kept = sorted(hosts, key=lambda host: taken[host.name])
        lost.transport.lose()
        kept.ack(2)
        self.assertEqual(kept.take(), [[b"1", b"2"]])
        kept.ack(2)
        self.assertEqual(kept.take(), [[b"5", b"6"]])
        kept.ack(2)
        self.successResultOf(sent)
        self.stop()

    def test_one_of_several_readers_which_refuses_is_as_one_which_is_away(self):
        """HO-11, LJ-15: what waits goes to the next."""
        hosts = self.hosts("a", "b")
        shipper = self.ship(hosts)
        sent = shipper.send(b"1")
        hosts[0].transport.lose(ConnectionLost())
        for host, seconds in ((hosts[1], 1.0), (hosts[0], 2.0)):
            self.assertEqual(shipper.state, "down")
            self.clock.advance(seconds)
            self.assertEqual(host.take()[-1], [b"1"])
            host.transport.lose(UNKNOWN)
        self.assertEqual(shipper.state, "refused")
        self.failureResultOf(sent, Refused)
        self.stop()

    def test_what_a_reader_never_acknowledges_is_told_once_and_can_be_withdrawn__RD_44(self):
        """RD-44: a reader with a smaller ``json-bytes`` ends each connection without an ack."""
        (host,) = self.hosts("a")
        shipper = self.ship([host], {"ttl": 500})
        poison, other = shipper.send(b"poison"), shipper.send(b"other")
        told = []
        for ends in range(1, 5):
            host.transport.protocol.dataReceived(encode_ack(0))  # no progress
            host.transport.lose(ConnectionLost())
            self.assertEqual(shipper.fruitless, ends)
            told.append([line for line in self.lines if "again and again" in line])
            self.clock.advance(60)
        self.assertEqual([len(lines) for lines in told], [0, 0, 1, 1])
        (line,) = told[-1]
        self.assertIn("192.0.2.9:5044: 3 connections in a row have ended", line)
        self.assertIn("json-bytes", line)
        poison.cancel()
        self.failureResultOf(poison, CancelledError)
        host.transport.lose(ConnectionLost())
        self.clock.advance(60)
        self.assertEqual(host.take(), [[b"other"]])
        host.ack(1)
        self.successResultOf(other)
        self.assertEqual(shipper.fruitless, 0)
        shipper.send(b"third")
        for _ in range(3):
            host.transport.lose(ConnectionLost())
            self.clock.advance(60)
        host.ack(1)
        self.assertEqual(self.lines.count("events are acknowledged again"), 2)
        self.clock.advance(500)  # what ends by its ttl, or without events, came to its end
        host.up, attempts = False, len(self.trace)
        host.transport.lose()
        self.clock.pump([0.0] * 3)
        self.assertEqual(len(self.trace), attempts + 1)  # at once, but not again and again
        host.up = True
        self.clock.advance(60)
        host.transport.lose(ConnectionLost())
        self.assertEqual(shipper.fruitless, 0)
        self.stop()

    def test_who_says_nothing_has_one_window_of_2048_events_in_flight__LJ_18(self):
        (host,) = self.hosts("a")

        async def connected():
            return await connect(host, reactor=self.clock)

        client = self.successResultOf(Deferred.fromCoroutine(connected()))
        shipper = LumberjackShipper(self.clock, [host])
        for factory in (LumberjackClientFactory(clock=self.clock), shipper.factory, client.factory):
            self.assertEqual((factory.window, factory.capacity), (2048, 2048))
            self.assertEqual((factory.packer.version, Writer().capacity), (2, 2048))
        client.abort()

    def test_what_waits_is_bounded(self):
        """LJ-09."""
        (host,) = self.hosts("a")
        host.up = False
        shipper = self.ship([host], {"unsent-events": 3, "unsent-bytes": 100})
        waiting = shipper.sendBatch([b"1", b"2"])
        self.failureResultOf(shipper.sendBatch([b"3", b"4"]), LimitExceeded)
        self.failureResultOf(shipper.send(b"x" * 70), LimitExceeded)
        self.failureResultOf(shipper.sendBatch([b"x", b"y" * (17 << 20)]), LimitExceeded)
        self.successResultOf(shipper.sendBatch([]))
        stopped = shipper.stopService()
        self.clock.advance(10)
        self.successResultOf(stopped)
        self.failureResultOf(waiting, ConnectionClosed)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_cancelled_event_is_forgotten_wherever_it_is(self):
        """LJ-09: queued, given to a connection, in flight, or taken back from a lost one."""
        (host,) = self.hosts("a")
        shipper = self.ship([host], window=2)
        flying = shipper.sendBatch([b"1", b"2"])
        queued = shipper.sendBatch([b"3"])
        kept = shipper.sendBatch([b"4"])
        queued.cancel()
        flying.cancel()
        self.failureResultOf(queued, CancelledError)
        self.failureResultOf(flying, CancelledError)
        self.assertEqual((shipper.unsent, shipper.unacknowledged), (1, 3))
        host.transport.lose()
        self.assertEqual((shipper.unsent, shipper.unacknowledged), (1, 1))
        self.clock.advance(1.0)
        self.assertEqual(host.take(), [[b"4"]])
        host.ack(1)
        self.successResultOf(kept)
        self.stop()

    def test_an_event_which_a_connection_holds_back_can_be_cancelled(self):
        """LJ-09, LJ-18: it did not fit into the window's bytes."""
        (host,) = self.hosts("a")
        shipper = self.ship([host], {"window-bytes": 50})
        host.transport.clear()
        first, second = shipper.sendBatch([b"x" * 30]), None
        host.ack(1)
        host.take()
        self.successResultOf(first)
        second = shipper.sendBatch([b"x" * 30])
        third = shipper.sendBatch([b"y" * 30])
        fourth = shipper.sendBatch([b"z" * 30])
        host.ack(1)
        self.assertEqual(host.take(), [[b"x" * 30], [b"y" * 30]])
        fourth.cancel()
        self.failureResultOf(fourth, CancelledError)
        self.assertEqual(shipper.unacknowledged, 1)
        host.ack(1)
        self.successResultOf(second)
        self.successResultOf(third)
        self.stop()

    def test_stop_awaits_the_acks_of_all(self):
        """LJ-15: also over a reconnect; nothing new is taken.  A session's are its service's."""
        (host,) = self.hosts("a")
        shipper = self.ship([host])
        sent = shipper.send(b"1")
        of_session = self.successResultOf(shipper.whenEstablished()).send(b"2")
        self.assertEqual(shipper.unacknowledged, 2)
        stopped, again = shipper.stopService(), shipper.stopService()
        self.failureResultOf(shipper.send(b"3"), ConnectionClosed)
        host.transport.lose()
        self.clock.advance(1.0)
        self.assertNoResult(stopped)
        host.ack(2)
        self.successResultOf(sent)
        self.successResultOf(of_session)
        self.assertTrue(host.transport.disconnecting)
        host.transport.lose()
        self.successResultOf(stopped)
        self.successResultOf(again)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_service_that_stops_ends_when_only_cancelled_events_are_left(self):
        """LJ-09, LJ-15: the connection that carried them is lost, or there never was one."""
        for up in (True, False):
            (host,) = self.hosts("a")
            host.up = up
            shipper = self.ship([host])
            event = shipper.send(b"1")
            stopped = shipper.stopService()
            event.cancel()
            self.failureResultOf(event, CancelledError)
            if up:
                self.assertNoResult(stopped)
                host.transport.lose(ConnectionLost())
            self.successResultOf(stopped)
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_producer_is_paused_while_the_windows_are_full(self):
        """LJ-09: also while there is no connection at all."""
        (host,) = self.hosts("a")
        host.up = False
        shipper = self.ship([host], window=2)
        verifyObject(IConsumer, shipper)
        producer = Producer()
        shipper.registerProducer(producer, True)
        shipper.write(b"1")
        self.assertEqual(producer.calls, [])
        shipper.write(b"2")
        self.assertEqual(producer.calls, ["pause"])
        host.up = True
        self.clock.advance(1.0)
        self.assertEqual(producer.calls, ["pause"])
        host.ack(2)
        self.assertEqual(producer.calls, ["pause", "resume"])
        shipper.unregisterProducer()
        shipper.registerProducer(producer, True)
        self.stop()
        self.assertEqual(producer.calls, ["pause", "resume", "stop"])
        shipper.write(b"3")
        self.assertIn("an event was not sent: the service has stopped", self.lines[-1])
