"""``msgproto send lumberjack``: what lines become, when it gives up, what it outlives (HO-17)."""

import json

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.lumberjack.test_client import Host
from twisted_msgproto.cli.send import deliver
from twisted_msgproto.lumberjack import command
from twisted_msgproto.net.clients.command_types import SendOptions


@pytest.mark.parametrize(
    "line",
    [b"{}", b'{"a": 1}', b' {"a": [1, 2]} ', '{"ü": "ß"}'.encode()],
)
def test_a_json_object_is_sent_as_it_is(line):
    """LJ-04: verbatim."""
    assert command.document(line) == line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"hello", "hello"),
        (b"5", "5"),
        (b'"text"', '"text"'),
        (b"[1, 2]", "[1, 2]"),
        (b"null", "null"),
        (b'{"a": ', '{"a": '),
        (b'{"a": 1} and more', '{"a": 1} and more'),
        ("grüß".encode(), "grüß"),
        (b'{"a": "\\ud800"', '{"a": "\\ud800"'),
        (b'{"a": NaN}', '{"a": NaN}'),
        (b'{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        (b'{"a":' * 100_000, None),
    ],
)
def test_any_other_line_becomes_the_message_of_a_document(line, message):
    """LJ-04: what leaves is a JSON object in UTF-8, whatever came in."""
    document = command.document(line)
    assert json.loads(document.decode()) == {"message": message or line.decode()}


def options(**changes):
    return SendOptions(**{"endpoint": "tcp:h:1", "compress": 0, **changes})


@pytest.mark.parametrize("version", [None, 1, 2])
@pytest.mark.parametrize("line", [b"\xff\xfe{", b'{"a": "\xe9"}'])
def test_what_is_not_utf_8_is_refused_or_replaced_as_the_operator_says__HO_02(line, version):
    with pytest.raises(ValueError, match="it is not UTF-8"):
        command.encode(line, options(protocol_version=version))
    asked = options(protocol_version=version, replace_invalid=True)
    replaced = line.decode("utf-8", "replace")
    encoded = command.encode(line, asked).decode()
    assert replaced == encoded or json.loads(encoded) in (
        {"message": replaced},
        {"a": "\ufffd"},
    )


class Given:
    """Lines which the test hands over one batch at a time; None ends them."""

    def __init__(self, *batches):
        self.batches = list(batches)
        self.most = None
        self.waiting = None
        self.options = options()

    async def some(self, most):
        self.most = most
        if not self.batches:
            self.waiting = Deferred()
            await self.waiting
        return [command.encode(line, self.options) for line in self.batches.pop(0)]

    def give(self, batch):
        self.batches.append(batch)
        waiting, self.waiting = self.waiting, None
        waiting.callback(None)


class Counted:
    def __init__(self):
        self.told = []

    def sent(self, count):
        self.told.append(("sent", count))

    def follow(self, takenAt):
        pass

    def acknowledged(self, count):
        self.told.append(("acknowledged", count))

    def alive(self):
        self.told.append("alive")


class Sending(SynchronousTestCase):
    def setUp(self):
        self.clock = Clock()
        self.host = Host("a", [])
        self.progress = Counted()
        self.patch(command, "client_endpoint", lambda reactor, options: self.host)

    def send(self, messages, **changes):
        self.messages = messages
        asked = messages.options = options(**changes)
        return Deferred.fromCoroutine(deliver(self.clock, command, asked, messages, self.progress))

    def ended(self):
        """The connection ends, as the client asked."""
        self.assertTrue(self.host.transport.disconnecting)
        self.host.transport.lose()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_no_more_is_read_than_a_few_windows_ahead(self):
        """LJ-09: a file is not read into memory."""
        sending = self.send(Given(*[[b"%d" % n] for n in range(50)], []), window=1)
        self.assertEqual(len(self.messages.batches), 51 - 3)
        for _ in range(50):
            self.host.ack(1)
        self.ended()
        self.successResultOf(sending)

    def test_compression_is_what_was_asked_for_or_3(self):
        """LJ-18."""
        for level, kind in ((None, b"2C"), (0, b"2J"), (9, b"2C")):
            sending = self.send(Given([b"{}"], []), compress=level)
            self.assertEqual(self.host.transport.value()[6:8], kind)
            self.host.ack(1)
            self.ended()
            self.successResultOf(sending)

    def test_version_1_writes_pairs__HO_17(self):
        """LJ-21: each line is the pair ``line``, JSON or not."""
        sending = self.send(Given([b'{"n": 1}', b"two"], []), protocol_version=1)
        self.assertEqual(self.host.transport.value()[:2], b"1W")
        self.assertEqual(self.host.take(), [[{"line": '{"n": 1}'}, {"line": "two"}]])
        self.host.transport.protocol.dataReceived(b"1A\0\0\0\2")
        self.ended()
        self.successResultOf(sending)

    def test_pipelining_sends_windows_before_acks_come__HO_17(self):
        """LJ-18"""
        sending = self.send(Given(*[[b"%d" % n] for n in range(4)], []), window=1, pipelining=3)
        self.assertEqual(len(self.host.take()), 3)
        for _ in range(4):
            self.host.ack(1)
        self.ended()
        self.successResultOf(sending)

    def test_a_connection_is_replaced_after_its_ttl__HO_17(self):
        """LJ-15"""
        sending = self.send(Given([b"1"]), ttl=5)
        self.host.ack(1)
        self.clock.advance(5)
        self.assertTrue(self.host.transport.disconnecting)
        self.host.transport.lose()
        self.clock.advance(0)
        self.assertEqual(len(self.host.transports), 2)
        self.messages.give([b"2"])
        self.host.ack(1)
        self.messages.give([])
        self.ended()
        self.successResultOf(sending)

    def test_the_next_host_is_tried_when_one_is_away__HO_17(self):
        trace = []
        hosts = {f"tcp:{name}:1": Host(name, trace, up=name == "c") for name in "abc"}
        asked = []

        def endpoint(reactor, options):
            asked.append(options.endpoint)
            return hosts[options.endpoint]

        self.patch(command, "client_endpoint", endpoint)
        sending = self.send(Given([b"1"], []), endpoint="tcp:a:1", hosts=("b:1", "tcp:c:1"))
        self.assertEqual(asked, ["tcp:a:1", "tcp:b:1", "tcp:c:1"])
        self.clock.pump([0.5] * 10)
        self.assertEqual(trace, ["a", "b", "c"])
        self.host = hosts["tcp:c:1"]
        self.host.ack(1)
        self.ended()
        self.successResultOf(sending)

    def test_it_ends_when_no_host_takes_a_connection__HO_17(self):
        self.host.up = False
        sending = self.send(Given([b"1"], []), hosts=("b:1",))
        self.assertNoResult(sending)
        self.clock.pump([0.5] * 10)
        self.failureResultOf(sending, ConnectionRefusedError)
        self.assertEqual(self.host.trace, ["a", "a"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_connection_lost_after_an_ack_is_made_again(self):
        """LJ-15: and what was not acknowledged is sent again."""
        sending = self.send(Given([b"1", b"2", b"3"], []))
        self.host.take()
        self.host.ack(1)
        self.host.transport.lose()
        self.host.up = False
        self.clock.pump([0.5] * 10)
        self.host.up = True
        self.clock.pump([0.5] * 5)
        windows = self.host.take()
        self.assertEqual([len(window) for window in windows], [2])
        self.host.ack(2)
        self.ended()
        self.successResultOf(sending)
        self.assertEqual(
            self.progress.told, [("sent", 3), ("acknowledged", 1), ("acknowledged", 2)]
        )

    def test_a_dead_server_ends_it_although_no_line_comes(self):
        """The wait for input is broken off, not the next line awaited."""
        sending = self.send(Given([b"1"]))
        self.host.ack(1)
        self.messages.give([b"2"])
        self.host.up = False
        self.host.transport.lose()
        self.clock.pump([1.0] * 31)
        self.failureResultOf(sending, ConnectionRefusedError)
        self.clock.advance(100)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cancelling_waits_for_what_is_in_flight_only(self):
        """Ctrl-C: what is not written is given up, what is written may be acknowledged."""
        sending = self.send(Given([b"1"], [b"2"]), window=1)
        sending.cancel()
        self.assertNoResult(sending)
        self.host.ack(1)
        self.assertEqual(len(self.host.take()), 1)
        self.ended()
        self.failureResultOf(sending, CancelledError)
