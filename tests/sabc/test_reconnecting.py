"""A client which comes back: what is repeated, what is not, and what waits."""

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, Refused
from twisted_msgproto.sabc import SabcClientFactory, SabcClientService, SabcServer

from .pairs import PEER, Case, Transport


@implementer(IStreamClientEndpoint)
class Endpoint:
    """Connects to the case's server, or refuses while it is told to."""

    def __init__(self, case):
        self.case = case
        self.refusing = False

    def connect(self, factory):
        if self.refusing:
            deferred = Deferred()
            deferred.errback(ConnectionRefusedError())
            return deferred
        case = self.case
        client = factory.buildProtocol(PEER)
        case.client, case.server = client._protocol, case.accept()
        client.makeConnection(Transport(peerAddress=PEER))
        case._sides.append(client)
        case.client_side = client
        return succeed(client)


class Later(SabcServer):
    """Answers when it is told to."""

    def connectionMade(self):
        self.asked = []
        super().connectionMade()

    def requestReceived(self, message):
        self.asked.append((message.body, Deferred()))
        return self.asked[-1][1]


class Reconnecting(Case):
    server_class = Later

    def setUp(self):
        super().setUp()
        self.serve()
        self.lose(self._sides[0])
        self.endpoint = Endpoint(self)
        self.factory_of_clients = SabcClientFactory(
            "me", clock=self.clock, limits={"outstanding-requests": 3}
        )
        self.service = SabcClientService(
            self.endpoint, self.factory_of_clients, retryPolicy=lambda attempt: 1
        )
        self.addCleanup(self.stop)

    def stop(self):
        stopped = self.service.stopService()
        for side in self._sides:
            self.lose(side)
        self.clock.advance(0)
        self.assertEqual(stopped.called, True)

    def tearDown(self):
        self.stop()
        super().tearDown()

    def exchange(self):
        self.pump(self.server, self.client_side)

    def come_back(self):
        self.lose(self.server)
        self.lose(self.client_side)
        self.clock.advance(1)
        self.exchange()

    def start(self):
        self.service.startService()
        self.exchange()

    def test_a_request_on_its_way_fails_unless_it_is_safe(self):
        """SA-16."""
        self.start()
        once, again = self.service.request(b"once"), self.service.request(b"again", safe=True)
        self.exchange()
        self.assertEqual([body for body, _ in self.server.asked], [b"once", b"again"])
        self.come_back()
        self.failureResultOf(once, ConnectionClosed)
        self.assertEqual([body for body, _ in self.server.asked], [b"again"])
        self.server.asked[0][1].callback(b"y")
        self.exchange()
        self.assertEqual(self.successResultOf(again).body, b"y")

    def test_a_refusal_is_not_repeated(self):
        """SA-16."""
        self.start()
        asked = self.service.request(b"x", safe=True)
        self.exchange()
        self.server.asked[0][1].errback(Refused("no", 499))
        self.exchange()
        self.failureResultOf(asked, Refused)

    def test_waiting_requests_are_bounded(self):
        """SA-27."""
        waiting = [self.service.request(b"x") for _ in range(3)]
        self.failureResultOf(self.service.request(b"x"), LimitExceeded)
        for asked in waiting:
            asked.cancel()
            self.failureResultOf(asked, CancelledError)
        self.start()
        self.assertEqual(self.server.asked, [])

    def test_a_request_in_a_session_can_be_cancelled(self):
        """SA-16."""
        self.start()
        asked = self.service.request(b"x", safe=True)
        self.exchange()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.come_back()
        self.assertEqual(self.server.asked, [])

    def test_a_safe_request_ends_when_the_service_does(self):
        """SA-16."""
        self.start()
        asked = self.service.request(b"x", safe=True)
        self.exchange()
        self.stop()
        self.failureResultOf(asked, ConnectionClosed)
