"""Clients: ENDPOINT and its options, requests in flight, and those which come back."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from OpenSSL.SSL import Error as TLSError
from OpenSSL.SSL import SysCallError
from twisted.internet import reactor as installed
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.tools.certificates import Authority
from twisted_msgproto.core.errors import (
    ConfigurationError,
    ConnectionClosed,
    LimitExceeded,
    Refused,
    TimedOut,
)
from twisted_msgproto.extend import ReconnectingClient
from twisted_msgproto.net.clients.client_endpoints import (
    client_endpoint,
    host_and_port,
    websocket_endpoint,
)
from twisted_msgproto.net.clients.command_types import ConnectOptions
from twisted_msgproto.net.clients.reconnect import Backoff, ReconnectingService
from twisted_msgproto.net.factory import tls_refusal
from twisted_msgproto.sabc import SabcClientFactory


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("localhost:5044", ("localhost", 5044)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:5044", ("::1", 5044)),
    ],
)
def test_host_and_port(text: str, pair: tuple[str, int]) -> None:
    assert host_and_port(text) == pair


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        *(
            (f"tcp:{text}", f"HOST:PORT expected, not {text!r}")
            for text in ("", ":", "host", "host:", ":5044", "host:0", "host:65536", "h:-1")
        ),
        ("tls:h", "HOST:PORT expected, not 'h'"),
        ("tcp:h:1:fast=1", "tcp: has no option 'fast'; it has host, port, timeout"),
        ("tcp:h:x:timeout=1", "port is a number from 0 to 65535, not 'x'"),
        ("tcp:h:1:timeout=x", "timeout is a whole number of seconds, not 'x'"),
        ("tls:h:1:trustRoots=/no/where", "cannot read /no/where: No such file or directory"),
        ("ssl:h:1:certKey=/no/where", "cannot read /no/where: No such file or directory"),
        ("ssl:h", "its port is missing"),
        ("unix:", "its path is missing"),
        ("tpc:h:1", "there is no kind 'tpc' (did you mean 'tcp'?); known: tcp, tls, ssl, unix"),
        ("h:5044", "write tcp:h:5044"),
        (":", "there is no kind ''"),
    ],
)
def test_what_is_wrong_in_a_clients_endpoint_is_told_in_our_words__RD_27(
    endpoint: str, says: str
) -> None:
    with pytest.raises(ConfigurationError) as told:
        client_endpoint(installed, ConnectOptions(endpoint=endpoint))
    text = str(told.value)
    assert says in text
    assert "\n" not in text and "_parse" not in text and "()" not in text


@pytest.mark.parametrize("octets", [b"not a certificate\n-----END CERTIFICATE-----\n", b""])
@pytest.mark.parametrize("option", ["tls_ca", "tls_cert"])
def test_a_file_that_is_no_pem(tmp_path: Path, option: str, octets: bytes) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_bytes(octets)
    options = ConnectOptions(endpoint="tls:localhost:1", **{option: bad})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no usable certificate"):
        client_endpoint(installed, options)


def test_each_file_of_tls_is_named_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.client("one"), authority.client("other")
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    for cert, key, problem in (
        (bad, one.key, f"--tls-cert {bad} holds no usable certificate"),
        (one.cert, bad, f"{bad} holds no usable private key"),
        (one.cert, None, f"{one.cert} holds no usable private key; --tls-key FILE names another"),
        (one.cert, other.key, f"the key in {other.key} is not that of {one.cert}"),
    ):
        options = ConnectOptions(endpoint="tls:localhost:1", tls_cert=cert, tls_key=key)
        with pytest.raises(ConfigurationError) as refused:
            client_endpoint(installed, options)
        assert str(refused.value) == problem


@pytest.mark.parametrize("endpoint", ["tcp:h:1", "tls:h:port=1", "ws://h"])
@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert", "--tls-key", "tls"])
def test_tls_is_not_left_out_in_silence(endpoint: str, option: str) -> None:
    files = {} if option == "tls" else {option[2:].replace("-", "_"): Path("f.pem")}
    options = ConnectOptions(endpoint=endpoint, **files)  # type: ignore[arg-type]
    made = websocket_endpoint if endpoint == "ws://h" else client_endpoint
    said = f"{option} goes with tls:HOST:PORT or wss://…, not with {endpoint}"
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        made(installed, options, None if files else object())


# ── what every client which comes back has in common ────────────────────────────────────────────


class Session:
    """Keeps what it is asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Deferred[str]]] = []
        self.over = False

    def ask(self, text: str) -> Deferred[str]:
        if self.over:
            return fail(ConnectionClosed("over"))
        self.asked.append((text, Deferred()))
        return self.asked[-1][1]

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.asked]

    def lose(self) -> None:
        self.over = True
        asked, self.asked = self.asked, []
        for _, waiting in asked:
            if not waiting.called:
                waiting.errback(ConnectionClosed("lost"))


class Client(ReconnectingService[Session]):
    """The test makes its sessions."""

    begun = 0
    cut = 0

    def _begin(self) -> None:
        self.begun += 1
        self._attempting()

    def stand(self) -> Session:
        session = Session()
        self._established(session)
        return session

    def lose(self) -> float:
        session = self.session
        assert session is not None
        session.lose()
        self._failed()
        return self._delay()

    def refuse(self, text: str = "no") -> float:
        self._failed(Refused(text))
        return self._delay()

    def _closeSession(self, session: Session) -> Deferred[Any]:
        self.closing: Deferred[None] = Deferred()
        return self.closing

    def _leave(self) -> Deferred[Any]:
        return succeed(None)

    def _cutOff(self) -> None:
        self.cut += 1
        self.closing.callback(None)

    def ask(self, text: str, **options: Any) -> Deferred[str]:
        return self.perform(lambda session, left: session.ask(text), **options)


class ComebackTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def client(self, **options: Any) -> Client:
        client = Client(self.clock, random=lambda: 0.0, **options)
        client.startService()
        return client

    def tearDown(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_what_waits_is_bounded_in_number_and_bytes(self) -> None:
        client = self.client(limits={"waiting-verbs": 2, "waiting-bytes": 100})
        first = client.ask("1", nbytes=60)
        self.failureResultOf(client.ask("2", nbytes=41), LimitExceeded)
        second = client.ask("3", nbytes=40)
        self.failureResultOf(client.ask("4"), LimitExceeded)
        second.cancel()
        self.failureResultOf(second, CancelledError)
        third = client.ask("5", nbytes=40)
        session = client.stand()
        self.assertEqual(session.texts, ["1", "5"])
        # In a session nothing waits here.
        more = [client.ask("6", nbytes=1000) for _ in range(3)]
        session.lose()
        for one in (first, third, *more):
            self.failureResultOf(one, ConnectionClosed)

    def test_what_a_dying_session_does_not_take_waits_before_the_others(self) -> None:
        """A session may be over before anybody has said so: what it refuses was not sent."""
        client = self.client()
        session = client.stand()
        session.over = True
        first, second = client.ask("first"), client.ask("second")
        self.assertIsNone(client.session)
        client._failed()
        session = client.stand()
        self.assertEqual(session.texts, ["first", "second"])
        for (text, waiting), asked in zip(session.asked, (first, second), strict=True):
            waiting.callback(text)
            self.assertEqual(self.successResultOf(asked), text)

    def test_the_time_of_what_is_done_again_runs_on(self) -> None:
        client = self.client()
        client.stand()
        had: list[float] = []

        def verb(session: Session, left: float) -> Deferred[str]:
            had.append(left)
            return session.ask("x")

        asked = client.perform(verb, safe=True, seconds=10)
        self.clock.advance(8)
        client.lose()
        self.clock.advance(1)
        client.stand()
        self.assertEqual(had, [10, 1])
        client.lose()
        self.assertNoResult(asked)
        self.clock.advance(1)
        self.failureResultOf(asked, TimedOut)
        self.assertEqual(client.waiting, 0)

    def test_verbs_of_a_callback_come_behind_those_which_wait(self) -> None:
        client = self.client()
        order: list[str] = []

        def verb(session: Session, left: float) -> Deferred[None]:
            order.append("first")
            client.perform(other("nested"))
            return succeed(None)

        def other(text: str) -> Any:
            def note(session: Session, left: float) -> Deferred[None]:
                order.append(text)
                return succeed(None)

            return note

        client.perform(verb)
        client.perform(other("second"))
        client.stand()
        self.assertEqual(order, ["first", "second", "nested"])

    def test_intervals_grow_until_a_session_has_stood_for_some_time(self) -> None:
        client = self.client()
        waits = []
        for _ in range(8):
            client._failed(ConnectionLost())
            waits.append(client._delay())
        self.assertEqual(waits, [1, 2, 4, 8, 16, 32, 60, 60])
        client.stand()
        self.clock.advance(9)
        self.assertEqual(client.lose(), 60)
        client.stand()
        self.clock.advance(10)
        self.assertEqual(client.lose(), 1)

    def test_refusals_have_intervals_of_their_own(self) -> None:
        """HO-11"""
        client = self.client(retryPolicy=lambda attempt: 0.25 * attempt)
        self.assertEqual(
            [client.refuse() for _ in range(10)], [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
        )
        client._failed(ConnectionLost())
        self.assertEqual(client._delay(), 0.25)
        self.assertEqual(client.state, "down")
        self.assertEqual(client.refuse(), 300)
        client.stand()
        client.lose()
        self.assertEqual([client.refuse(), client.refuse()], [2, 4])
        self.successResultOf(client.stopService())
        client.startService()
        self.assertEqual(client.refuse(), 2)

    def test_a_session_which_the_server_ends_is_no_refusal(self) -> None:
        client = self.client()
        client.stand()
        client._failed(Refused("go away"))
        self.assertEqual(client.state, "down")
        self.assertIsNone(client.refusal)

    def test_a_new_session_which_cannot_be_made_as_the_one_before_stands_all_the_same(self) -> None:
        client = self.client()
        client._renew = lambda session: 1 / 0  # type: ignore[method-assign, assignment]
        client.stand()
        self.assertEqual(client.state, "up")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_it_is_started_again_once_however_it_is_asked_for(self) -> None:
        """In the callback of its end, or before that: then it has begun when the end is told."""
        client = self.client()
        for starting_early in (False, True):
            begun = client.begun
            client.stand()
            closed = client.close()
            if starting_early:
                client.startService()
            verbs: list[Deferred[str]] = []

            def start(result: None, verbs: list[Deferred[str]] = verbs) -> None:
                client.startService()
                verbs.append(client.perform(lambda one, left: one.ask("a")))

            closed.addCallback(start)
            client.closing.callback(None)
            self.assertEqual(client.begun, begun + 1)
            self.assertNoResult(verbs[0])
            session = client.stand()
            session.asked[0][1].callback("answer")
            self.assertEqual(self.successResultOf(verbs[0]), "answer")

    def test_a_session_which_comes_too_late_is_not_taken(self) -> None:
        client = self.client()
        closed = client.close()
        client.stand()
        self.successResultOf(closed)
        self.assertIsNone(client.session)


class Endpoint:
    """Connects when a test says so."""

    def __init__(self) -> None:
        self.asked: list[Deferred[Any]] = []
        self.cancelled = 0

    def connect(self, factory: Any) -> Deferred[Any]:
        self.asked.append(Deferred(self.cancel))
        return self.asked[-1]

    def cancel(self, attempt: Deferred[Any]) -> None:
        self.cancelled += 1


class AttemptTests(SynchronousTestCase):
    """Whoever hears of an attempt may stop its service, and start it again."""

    def setUp(self) -> None:
        self.clock, self.endpoint = Clock(), Endpoint()

    def service(self, **options: Any) -> Any:
        factory = SabcClientFactory(clock=self.clock)
        return ReconnectingClient(self.endpoint, factory, **options)  # type: ignore[arg-type]

    def again(self, service: Any, at: str) -> None:
        """Stop it and start it again, once, when it comes to this state."""
        states: list[str] = []

        def hook(state: str) -> None:
            if state == at and at not in states:
                states.append(state)
                service.close()
                service.startService()

        service.watch(hook)

    def test_an_attempt_that_is_under_way_is_given_up_at_once(self) -> None:
        service = self.service()
        service.startService()
        closed = service.close()
        self.clock.advance(0)
        self.successResultOf(closed)
        self.assertEqual((self.endpoint.cancelled, self.clock.getDelayedCalls()), (1, []))

    def test_an_endpoint_that_raises_is_asked_again(self) -> None:
        class Raises(Endpoint):
            def connect(self, factory: Any) -> Deferred[Any]:
                answer = super().connect(factory)
                if len(self.asked) == 1:
                    raise OSError("no descriptor is left")
                return answer

        self.endpoint = Raises()
        service = self.service()
        service.startService()
        self.clock.advance(600)
        self.assertEqual(len(self.endpoint.asked), 2)
        closed = service.close()
        self.clock.advance(0)
        self.successResultOf(closed)

    def test_a_connection_without_a_session_is_ended_at_once(self) -> None:
        service, transport = self.service(), StringTransport()
        gone: Deferred[None] = Deferred()
        service.startService()
        self.endpoint.asked[0].callback(
            SimpleNamespace(
                whenEstablished=Deferred,
                established=False,
                link=SimpleNamespace(whenGone=lambda: gone),
                transport=transport,
            )
        )
        closed = service.close()
        self.assertTrue(transport.disconnecting)
        self.assertNoResult(closed)
        gone.callback(None)
        self.successResultOf(closed)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_it_is_started_again_while_an_attempt_begins(self) -> None:
        service = self.service()
        self.again(service, "connecting")
        service.startService()
        self.assertEqual(len(self.endpoint.asked), 1)

    def test_it_is_started_again_while_an_attempt_has_failed(self) -> None:
        service = self.service()
        service.startService()
        self.again(service, "down")
        self.endpoint.asked[0].errback(ConnectionLost())
        self.assertEqual((len(self.endpoint.asked), self.clock.getDelayedCalls()), (2, []))

    def test_an_endpoint_may_say_that_it_is_refused(self) -> None:
        service = self.service(stopWhenRefused=True)
        service.startService()
        self.endpoint.asked[0].errback(Refused("the proxy wants a password"))
        self.assertEqual((service.state, self.clock.getDelayedCalls()), ("refused", []))

    def test_the_policy_may_stop_it(self) -> None:
        service = self.service(retryPolicy=lambda attempts: float(bool(service.close())))
        service.startService()
        self.endpoint.asked[0].errback(ConnectionLost())
        self.assertEqual((service.state, self.clock.getDelayedCalls()), ("down", []))


class BackoffTests(SynchronousTestCase):
    def test_half_of_a_wait_is_chance(self) -> None:
        backoff = Backoff(1.0, 60.0, lambda: 1.0)
        waits = [backoff.next() for _ in range(2000)]
        self.assertEqual(waits[:8] + waits[-1:], [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0])


class RefusalsOfTLS(SynchronousTestCase):
    def test_a_connection_which_is_lost_meanwhile_is_none(self) -> None:
        for error in (
            ConnectionLost(),
            TLSError([("SSL routines", "", "unexpected eof while reading")]),
            TLSError(),
            SysCallError(-1, "Unexpected EOF"),
        ):
            self.assertIsNone(tls_refusal(Failure(error)), error)
