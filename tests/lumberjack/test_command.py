"""``msgproto send lumberjack``: what lines become, when it gives up, what it outlives (HO-17).

What it has in common with other protocols' stands in ``tests/contract/test_send.py``.
"""

import json

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.protocol import Protocol

from tests.contract.cases import CASES, Endpoint
from tests.contract.sending import Bodies, Peer, Sent, Typed
from tests.contract.test_send import Closing
from tests.contract.world import ContractCase
from tests.doubles import HeldSink
from tests.lumberjack.frames import frames_of, windows
from twisted_msgproto.cli.progress import Counted
from twisted_msgproto.lumberjack import command
from twisted_msgproto.net.clients.command_types import SendOptions
from twisted_msgproto.testing import SafeSink


def options(**changes):
    return SendOptions(**{"endpoint": "tcp:h:1", "compress": 0, **changes})


OBJECTS = [b"{}", b'{"a": 1}', b' {"a": [1, 2]} ', '{"ü": "ß"}'.encode()]
OTHERS = [
    *(b"hello", b"5", b'"text"', b"[1, 2]", b"null", b'{"a": ', b'{"a": 1} and more'),
    *("grüß".encode(), b'{"a": "\\ud800"', b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"a":' * 100_000),
]


def test_a_json_object_is_sent_verbatim_and_any_other_line_as_the_message_of_one():
    """LJ-04: what leaves is a JSON object in UTF-8, whatever came in."""
    for line in OBJECTS:
        assert command.encode(line, options()) == line
    for line in OTHERS:
        assert json.loads(command.encode(line, options())) == {"message": line.decode()}


@pytest.mark.parametrize("version", [None, 1, 2])
@pytest.mark.parametrize("line", [b"\xff\xfe{", b'{"a": "\xe9"}'])
def test_what_is_not_utf_8_is_refused_or_replaced_as_the_operator_says__HO_02(line, version):
    with pytest.raises(ValueError, match="it is not UTF-8"):
        command.encode(line, options(protocol_version=version))
    asked = options(protocol_version=version, replace_invalid=True)
    assert b"\xef\xbf\xbd" in command.encode(line, asked)


class Silent(Protocol):
    """A reader which notes what comes, and acknowledges windows when it is told to."""

    def __init__(self):
        self.came = b""

    def dataReceived(self, data):
        self.came += data


def acknowledge(number, version=b"2"):
    return version + b"A" + number.to_bytes(4)


class Sending(ContractCase):
    case = next(case for case in CASES if case.name == "lumberjack")

    def written(self, **changes):
        """What is written to a reader that says nothing, and the ``send``."""
        world = self.world()
        sent = Sent(self, world, Peer(world, lambda _: Silent()), **changes)
        world.pump()
        self.reader = world.peers[-1].line.server.protocol
        return self.reader.came, sent

    def end(self, sent, *acks):
        for ack in acks:
            self.reader.transport.write(ack)
            sent.world.pump()
        self.assertIsNone(sent.settle().line)

    def test_no_more_is_read_than_a_few_windows_ahead(self):
        """LJ-09: a file is not read into memory."""
        source = Bodies([b"{}"] * 50, 1)
        _, sent = self.written(source=source)
        self.assertEqual(len(source.left), 47)
        self.end(sent, *[acknowledge(1), acknowledge(2)] * 50)

    def test_compression_is_what_was_asked_for_or_3(self):
        """LJ-18."""
        for level, kind in ((None, "C"), (0, "J"), (9, "C")):
            octets, sent = self.written(compress=level, count=1)
            self.assertEqual([frame[0] for frame in frames_of(octets)], ["W", kind])
            self.end(sent, acknowledge(1))

    def test_version_1_writes_pairs__HO_17(self):
        """LJ-21: each line is the pair ``line``, JSON or not."""
        lines = [b'{"n": 1}', b"two"]
        octets, sent = self.written(protocol_version=1, compress=0, lines=lines)
        self.assertEqual(octets[:2], b"1W")
        self.assertEqual(windows(octets)[0][2], [{"line": '{"n": 1}'}, {"line": "two"}])
        self.end(sent, acknowledge(2, b"1"))

    def test_pipelining_sends_windows_before_acks_come__HO_17(self):
        """LJ-18"""
        octets, sent = self.written(pipelining=3, compress=0, count=8)
        self.assertEqual([size for size, *_ in windows(octets)], [2, 2, 2])
        self.end(sent, *[acknowledge(2)] * 4)

    def test_a_connection_is_replaced_after_its_ttl__HO_17(self):
        """LJ-15: without a pause"""
        typed = Typed()
        sent = Sent(self, self.world(SafeSink()), source=typed, ttl=5)
        for count in (1, 2):
            sent.world.wait(1)
            typed.give(b"{}")
            sent.world.wait(1)
            self.assertEqual((sent.acknowledged, len(sent.world.peers)), (count, count))
            sent.world.wait(3.1)
            self.assertEqual(len(sent.world.peers), count + 1)  # at once
        typed.end()
        self.assertIsNone(sent.settle().line)

    def tried(self, up):
        """A ``send`` to three hosts, of which one may be up, and in which order they are tried."""
        world, tried = self.world(SafeSink()), []

        class Host(Endpoint):
            name = ""

            def connect(self, factory):
                tried.append(self.name)
                world.away = self.name != up
                return super().connect(factory)

        def endpoint(reactor, options):
            host = Host(self.case, world)
            host.name = options.endpoint
            return host

        self.patch(command, "client_endpoint", endpoint)
        wanted = options(endpoint="tcp:a:1", hosts=("b:1", "tcp:c:1"))
        sending = command.send(world.clock, wanted, Bodies([b"{}"], 1), Counted())
        sending = Deferred.fromCoroutine(sending)
        world.wait(20)
        return sending, tried

    def test_each_host_is_tried_until_one_takes_a_connection__HO_17(self):
        """LJ-15: and when none of them does, it ends."""
        sending, tried = self.tried(up="tcp:c:1")
        self.successResultOf(sending)
        self.assertEqual(tried, ["tcp:a:1", "tcp:b:1", "tcp:c:1"])
        sending, tried = self.tried(up=None)
        self.failureResultOf(sending, ConnectionRefusedError)
        self.assertEqual(len(tried), 3)

    def test_a_reader_that_hangs_up_without_an_ack_ends_it_at_once(self):
        """It is hardly one."""
        world = self.world()
        sent = Sent(self, world, Peer(world, lambda _: Closing()))
        world.wait(1)
        self.assertIsNotNone(sent.error)
        sent.missing(0)

    def test_a_connection_lost_after_an_ack_is_made_again(self):
        """LJ-15: and what was not acknowledged is sent again."""
        world = self.world(sink := HeldSink())
        sent = Sent(self, world, count=4)
        world.wait(1)
        sink.safe()
        world.pump()
        self.case.away(world)
        world.wait(5)
        self.case.back(world)
        world.wait(3)
        while sink.waiting:
            sink.safe()
            world.wait(1)
        self.assertIsNone(sent.settle().line)
        self.assertEqual(sent.acknowledged, 4)

    def test_a_dead_server_ends_it_although_no_line_comes(self):
        """The wait for input is broken off, not the next line awaited."""
        typed = Typed()
        sent = Sent(self, self.world(sink := HeldSink()), source=typed)
        for _ in range(2):
            sent.world.wait(1)
            typed.give(b"{}")
        sent.world.pump()
        sink.safe()
        sent.world.pump()
        self.case.away(sent.world)
        sent.missing(1)

    def test_cancelling_waits_for_what_is_in_flight_only(self):
        """Ctrl-C: what is not written is given up, what is written may be acknowledged."""
        _, sent = self.written(count=4)
        sent.done.cancel()
        sent.world.pump()
        self.assertNoResult(sent.done)
        self.reader.transport.write(acknowledge(2))
        sent.world.wait(1)
        self.assertIsInstance(sent.error, CancelledError)
        self.assertEqual(len(windows(self.reader.came)), 1)
