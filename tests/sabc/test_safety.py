"""With a sink: what is answered means safe."""

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from twisted_msgproto.core.errors import Refused
from twisted_msgproto.sabc import SabcServer

from .pairs import PEER, Echo, HeldCase, Transport
from .sides import msg
from .vectors import CONNECT

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def masked(octets):
    """A message as a browser sends it, with a mask of zeros."""
    size = bytes([0x80 | len(octets)]) if len(octets) < 126 else b"\xfe" + len(octets).to_bytes(2)
    return b"\x81" + size + bytes(4) + octets


class Safety(HeldCase):
    server_class = Echo

    def test_an_answer_means_safe(self):
        """SA-16: with a sink the hook and the answer come after it."""
        self.pair()
        asked = self.client.request(b"Hola", headers={"x": "y"})
        self.client.sendOnly(b"quiet")
        self.pump()
        self.assertEqual(self.server.notes, ["established"])
        first, second = self.sink.batches
        self.assertEqual((first.kind, second.kind), ("request", "send-only"))
        self.assertEqual(
            (first.message_id, first.body, first.fields), (["1"], [b"Hola"], [{"x": "y"}])
        )
        self.assertEqual((first.client_id, first.octets, first.truncated), ("me", 4, None))
        self.sink.safe()
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"Hola")
        self.assertEqual(len(self.server.notes), 3)

    def test_a_subclass_may_store_batches_itself(self):
        """SA-16: what its hook returns decides when a request is acknowledged, and whether."""
        batches, stored = [], []

        class Storing(SabcServer):
            def batchReceived(self, batch):
                batches.append(batch)
                stored.append(Deferred())
                return stored[-1]

        self.pair(server_class=Storing)
        asked = self.client.request(b"x")
        self.pump()
        lost = self.client.request(b"y")
        self.pump()
        self.assertEqual([batch.body for batch in batches], [[b"x"], [b"y"]])
        self.assertEqual(self.sink.batches, [])
        stored[0].callback(None)
        self.pump()
        self.successResultOf(asked)
        self.assertNoResult(lost)
        stored[1].errback(OSError("elsewhere"))
        self.pump()
        self.failureResultOf(lost, Refused)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)

    def test_disconnect_waits_for_the_sink(self):
        """SA-12: what was sent before is stored and answered before the end."""
        self.pair()
        asked = self.client.request(b"x")
        self.client.sendOnly(b"y")
        left = self.client.disconnect()
        self.pump()
        self.assertNoResult(left)
        self.sink.safe(1)
        self.pump()
        self.successResultOf(asked)
        self.assertNoResult(left)
        self.sink.safe(1)
        self.pump()
        self.successResultOf(left)
        self.assertEqual(self.server.notes[-1], "lost")

    def test_messages_before_disconnecting_are_kept(self):
        """SA-13: what came, came."""
        self.pair()
        self.client.request(b"x").addErrback(lambda failure: None)
        self.client.sendOnly(b"y")
        self.client.loseSession()
        self.pump()
        self.assertEqual(len(self.sink.messages), 2)
        self.sink.safe()
        self.assertEqual([getattr(note, "body", note) for note in self.server.notes[-1:]], [b"y"])

    def test_reading_of_a_websocket_session_pauses_while_too_much_waits__SA_25(self):
        """SA-25: messages behind the pause wait, although their octets are here already."""
        self.serve(unsafe_octets=1000)
        connection = self.factory.webSocketFactory().buildProtocol(PEER)
        transport = Transport(peerAddress=PEER)
        connection.makeConnection(transport)
        connection.dataReceived(UPGRADE)
        connection.dataReceived(masked(b"CONNECT\r\nclient-id::me\r\n\r\n\0"))
        for number in range(6):
            head = b"MESSAGE\r\nsession-id::secret-1\r\nmsg-id::%d\r\n\r\n" % number
            connection.dataReceived(masked(head + b"x" * 600 + b"\r\n\r\n\0"))
        self.assertEqual(transport.producerState, "paused")
        self.assertLess(len(self.sink.messages), 6)
        for _ in range(6):
            self.sink.safe()
        self.assertEqual([message.message_id for message in self.sink.messages], list("012345"))
        self.assertEqual(transport.producerState, "producing")
        connection.connectionLost(Failure(ConnectionDone()))

    def test_a_cut_message_is_stored_as_cut_and_its_request_fails(self):
        """SA-22, HO-01: acknowledged means whole."""
        for refuse in (False, True):
            self.server = self.serve(message_octets=300, refuse=refuse)
            self.server.dataReceived(CONNECT)  # a client which does not ask how much it takes
            session = f"secret-{1 + refuse}"
            self.server.dataReceived(msg(b"x" * 400, session=session, msg_id="1"))
            cut = [batch.truncated for batch in self.sink.batches]
            self.assertEqual(cut, [[True]])
            self.sink.safe()
            answer = self.server.transport.value()
            self.assertIn(b"error-code::413" if refuse else b"truncated::yes", answer)
            counted = "refused_frames" if refuse else "truncated_messages"
            self.assertEqual(self.factory.counters[counted], 1)
