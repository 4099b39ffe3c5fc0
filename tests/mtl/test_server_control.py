"""The broker's machine: sessions, authentication, profiles and leases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.mtl.broker import ANYTHING, OPEN, Broker, control_peer, data_peer
from twisted_msgproto.mtl.machine import Channel
from twisted_msgproto.mtl.machine.peers import Peer, connection_name
from twisted_msgproto.mtl.terms.events import (
    AuthenticationRequested,
    SessionEnded,
    SessionEstablished,
    SessionOpened,
    SessionRefused,
)
from twisted_msgproto.mtl.terms.states import SESSION, SessionState
from twisted_msgproto.mtl.wire import control, data

PEER = control_peer(99)
LEASE = {"resources": ["a"], "confirm": "full"}
BODIES: dict[type, dict[str, Any]] = {
    control.Open: OPEN,
    control.Authorize: {"mechanism": "X", "response": "AAA="},
    control.SelectProfile: {"profile": "queue"},
    control.RequestReader: LEASE,
    control.RequestWriter: LEASE,
}


def broker_in(state: SessionState) -> Broker:
    """A broker which asks for authentication, and whose session of PEER is in ``state``."""
    broker = Broker(mechanisms=["X", "Y"])
    if state is not SessionState.NEW:
        assert broker.ask(PEER, "Open", OPEN)[0] == 401
    if state in (SessionState.NEW, SessionState.UNAUTHORIZED):
        return broker
    session = authorize(broker)
    if state is SessionState.CHALLENGED:
        broker.server.challenge(session, b"c", broker.now)
    elif state is not SessionState.AUTHORIZING:
        broker.collect(broker.server.authorize(session, "me", broker.now))
    broker.collect()
    broker.to(PEER)
    if state is SessionState.PROFILED:
        assert broker.ask(PEER, "Profile", {"profile": "queue"})[0] == 200
    assert session.state is state
    return broker


def authorize(broker: Broker, mechanism: str = "X") -> Any:
    """Send Connection.Authorize, and give the session which waits for the answer."""
    body = json.dumps({"mechanism": mechanism, "response": "AAA="}).encode()
    assert broker.ask_raw(PEER, b"", b"Connection.Authorize", body) == []
    event = broker.events[-1]
    assert isinstance(event, AuthenticationRequested)
    assert (event.mechanism, event.response) == (mechanism, b"\0\0")
    return event.session


def state_of(broker: Broker) -> SessionState:
    sessions = broker.server.sessions()
    return sessions[0].state if sessions else SessionState.NEW


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("kind", BODIES)
def test_every_request_in_every_state(state: SessionState, kind: type) -> None:
    """MT-03, MT-05, MT-07, MT-10: what the table does not allow changes nothing and gets a code."""
    broker = broker_in(state)
    request = control.NAMES[kind]
    body = json.dumps(BODIES[kind]).encode()
    replies = broker.ask_raw(PEER, b"", request, body)
    target = SESSION[state].get(kind)
    if target is None:
        unauthenticated = state in (
            SessionState.NEW, SessionState.UNAUTHORIZED, SessionState.CHALLENGED,
        )  # fmt: skip
        assert replies[0][1] == (b"401" if unauthenticated else b"409")
        assert state_of(broker) is state
    else:
        assert [reply[1] for reply in replies] == {
            control.Open: [b"401"],
            control.Authorize: [],
            control.SelectProfile: [b"200"],
            control.RequestReader: [b"202"],
            control.RequestWriter: [b"202"],
        }[kind]
        assert state_of(broker) is target


@pytest.mark.parametrize("state", SessionState)
def test_unknown_commands_get_401_before_authentication_and_404_after_it(
    state: SessionState,
) -> None:
    """MT-03"""
    broker = broker_in(state)
    for command in (b"Connection.Nothing", b"Basic.Open", b"", b"connection"):
        ((_, code, _),) = broker.ask_raw(PEER, b"", command, b"{}")
        known = state in (SessionState.READY, SessionState.PROFILED)
        assert code == (
            b"404" if known else b"409" if state is SessionState.AUTHORIZING else b"401"
        )
        assert state_of(broker) is state


def test_a_session_without_authentication_from_open_to_lease() -> None:
    """MT-05, MT-06, MT-09, MT-10, MT-11: as the text writes it, in any case."""
    broker = Broker()
    code, body = broker.ask(PEER, "open", OPEN)
    assert (code, body) == (201, {"status": "Ready", "profiles": ["test", "queue", "ingest"]})
    assert broker.ask(PEER, "PROFILE", {"profile": "TEST"}) == (200, {"status": "OK"})
    code, body = broker.ask(PEER, "rEADER", {"resources": ["resource"], "confirm": "none"})
    assert code == 202
    assert body["status"] == "Data Lease"
    assert body["port"] == 5050
    assert len(body["lease"]) == 40
    assert [type(event) for event in broker.events] == [SessionOpened, SessionEstablished]


def test_the_envelope_is_echoed_whole() -> None:
    """MT-01"""
    broker = Broker()
    for envelope in ([b""], [b"\0\1\2\3", b""], [b"1", b"2", b"3", b"4", b""]):
        body = json.dumps(OPEN).encode()
        (reply,) = broker.ask_raw(PEER, *envelope, b"Connection.Open", body)
        assert reply[: len(envelope)] == envelope
        assert reply[len(envelope)] == b"201"
        assert len(reply) == len(envelope) + 2


@pytest.mark.parametrize("count", range(101))
def test_wrong_frame_counts_are_dropped_silently(count: int) -> None:
    """MT-01, MT-03: and counted, and the next client is served."""
    broker = Broker()
    for frames in ([b"x"] * count, [b""] * count):
        if len(frames) == 3 and frames[0] == b"":
            continue
        assert broker.ask_raw(PEER, *frames) == []
    assert broker.dropped.get("frames", 0) == (2 if count != 3 else 1)
    broker.session()


@pytest.mark.parametrize("body", [b"", b"{", b"{'a': 1}", b"\xff", b"NaN", b'{"a": 1} x'])
def test_what_is_no_json_is_dropped_silently(body: bytes) -> None:
    """MT-03"""
    for state in (SessionState.NEW, SessionState.READY):
        broker = broker_in(state)
        assert broker.ask_raw(PEER, b"", b"Connection.Open", body) == []
        assert broker.dropped == {"json": 1}
        assert state_of(broker) is state


def test_a_command_which_is_no_text_is_dropped_silently() -> None:
    """MT-03"""
    broker = Broker()
    assert broker.ask_raw(PEER, b"", b"\xff", b"{}") == []
    assert broker.dropped == {"string": 1}


@pytest.mark.parametrize(
    "body", [b"[]", b"5", b'{"protocol": 1}', b'{"a": 1, "a": 2}', b"[" * 30 + b"]" * 30]
)
def test_json_which_is_no_good_request_gets_400_and_a_reason(body: bytes) -> None:
    """MT-02, MT-03"""
    broker = Broker()
    ((_, code, reply),) = broker.ask_raw(PEER, b"", b"Connection.Open", body)
    assert code == b"400"
    answer = json.loads(reply)
    assert answer["status"] == "Bad Request"
    assert answer["reason"]
    assert broker.server.sessions() == []


def test_another_protocol_or_version_gets_400_with_what_is_spoken() -> None:
    """MT-05"""
    broker = Broker()
    for protocol in ({"name": "MTL", "version": 2}, {"name": "AMQP", "version": 1}):
        code, body = broker.ask(PEER, "Open", {**OPEN, "protocol": protocol})
        assert (code, body["protocol"]) == (400, {"name": "MTL", "version": 1})
    assert broker.ask(PEER, "Open", OPEN)[0] == 201


def test_an_unknown_virtual_host_gets_404_and_leaves_the_session_as_it_was() -> None:
    """MT-05"""
    broker = Broker(virtual_hosts={"host"})
    assert broker.ask(PEER, "Open", {**OPEN, "virtual-host": "other"})[0] == 404
    assert broker.server.sessions() == []
    peer = broker.session()
    assert broker.ask(peer, "Open", {**OPEN, "virtual-host": "other"})[0] == 404
    assert broker.lease(peer, "Reader")


def test_opening_again_resets_the_session() -> None:
    """MT-05, MT-30"""
    broker = Broker()
    peer = broker.session()
    flow = broker.connect(broker.lease(peer, "Writer"))
    unused = broker.lease(peer, "Writer")
    assert broker.ask(peer, "Open", OPEN)[0] == 201
    assert [e.reason for e in broker.events if isinstance(e, SessionEnded)] == ["reopened"]
    assert [session.name for session in broker.server.sessions()] == ["session-2"]
    assert broker.ask(peer, "Writer", LEASE)[0] == 409
    assert broker.command(flow, data.Content(5, "a")) == [data.Response(5, 403)]
    assert broker.command(data_peer(7), data.Lease(1, unused)) == [data.Response(1, 403)]


# ── authentication ──────────────────────────────────────────────────────────────────────────────


def test_a_cycle_of_two_challenges() -> None:
    """MT-07, MT-08"""
    broker = Broker(mechanisms=["X", "Y"])
    assert broker.ask(PEER, "Open", OPEN) == (
        401, {"status": "Unauthorized", "mechanisms": ["X", "Y"]},
    )  # fmt: skip
    for _ in range(2):
        session = authorize(broker)
        broker.server.challenge(session, b"\0\xff", broker.now)
        broker.collect()
        ((_, code, body),) = broker.to(PEER)
        assert code == b"402"
        assert json.loads(body) == {
            "status": "Challenged", "mechanism": "X", "challenge": "AP8=",
        }  # fmt: skip
    session = authorize(broker)
    broker.collect(broker.server.authorize(session, "me", broker.now))
    assert [frames[1] for frames in broker.to(PEER)] == [b"201"]
    assert session.user == "me"
    firsts = [e.first for e in broker.events if isinstance(e, AuthenticationRequested)]
    assert firsts == [True, False, False]


def test_a_failed_attempt_costs_a_second_and_says_nothing() -> None:
    """MT-08: and nobody else waits for it."""
    broker = broker_in(SessionState.AUTHORIZING)
    (session,) = broker.server.sessions()
    broker.server.refuse(session, broker.now)
    broker.wait(0.99)
    assert broker.to(PEER) == []
    assert broker.ask(control_peer(50), "Open", OPEN)[0] == 401
    broker.wait(0.02)
    ((_, code, body),) = broker.to(PEER)
    assert code == b"401"
    assert json.loads(body) == {"status": "Unauthorized", "mechanisms": ["X", "Y"]}
    assert state_of(broker) is SessionState.UNAUTHORIZED
    assert broker.server.counters["failed_authentications"] == 1
    again = authorize(broker)
    assert broker.events[-1].first  # type: ignore[union-attr]
    broker.collect(broker.server.authorize(again, "me", broker.now))
    assert broker.to(PEER)[0][1] == b"201"


def test_the_time_of_a_failure_counts_from_the_request_on() -> None:
    """MT-08: how long the looking took cannot be seen."""
    broker = broker_in(SessionState.AUTHORIZING)
    (session,) = broker.server.sessions()
    broker.now += 0.7
    broker.server.refuse(session, broker.now)
    broker.wait(0.31)
    assert len(broker.to(PEER)) == 1


def test_while_an_answer_is_owed_nothing_else_is_answered_with_yes() -> None:
    """MT-08"""
    broker = broker_in(SessionState.AUTHORIZING)
    (session,) = broker.server.sessions()
    assert broker.ask(PEER, "Open", OPEN)[0] == 409
    broker.server.refuse(session, broker.now)
    broker.server.refuse(session, broker.now)
    broker.server.challenge(session, b"", broker.now)
    assert broker.server.authorize(session, "me", broker.now) == []
    broker.wait(2)
    assert [frames[1] for frames in broker.to(PEER)] == [b"401"]


def test_the_mechanism_cannot_be_switched_within_a_cycle() -> None:
    """MT-08: the cycle has ended then; another one may begin."""
    broker = broker_in(SessionState.CHALLENGED)
    code, body = broker.ask(PEER, "Authorize", {"mechanism": "Y", "response": ""})
    assert (code, body["reason"]) == (400, "the mechanism was switched within a cycle")
    assert state_of(broker) is SessionState.UNAUTHORIZED
    authorize(broker, "Y")


def test_an_unknown_mechanism_and_a_bad_response_get_400() -> None:
    """MT-08"""
    broker = broker_in(SessionState.UNAUTHORIZED)
    assert broker.ask(PEER, "Authorize", {"mechanism": "Z", "response": ""})[0] == 400
    assert broker.ask(PEER, "Authorize", {"mechanism": "X", "response": "*"})[0] == 400
    assert state_of(broker) is SessionState.UNAUTHORIZED


def test_where_nobody_has_to_authenticate_authorize_gets_409() -> None:
    """MT-03, MT-08"""
    broker = Broker()
    peer = broker.session()
    assert broker.ask(peer, "Authorize", {"mechanism": "X", "response": ""})[0] == 409
    assert broker.lease(peer, "Reader")


def test_401_at_any_time_ends_the_leases_and_lets_the_client_authenticate_again() -> None:
    """MT-07, MT-30"""
    broker = broker_in(SessionState.PROFILED)
    (session,) = broker.server.sessions()
    flow = broker.connect(broker.lease(PEER, "Writer"))
    broker.collect(broker.server.withdraw(session, broker.now))
    assert session.user is None
    assert broker.command(flow, data.Content(5, "a")) == [data.Response(5, 403)]
    assert broker.ask(PEER, "Writer", LEASE)[0] == 401
    broker.collect(broker.server.authorize(authorize(broker), "other", broker.now))
    assert broker.to(PEER)[0][1] == b"201"
    assert session.user == "other"
    broker.server.withdraw(authorize(broker), broker.now)
    broker.wait(2)
    assert broker.to(PEER)[0][1] == b"401"
    broker.collect(broker.server.close(broker.now))
    assert broker.server.withdraw(session, broker.now) == []


def test_authenticating_again_ends_the_leases() -> None:
    """MT-07, MT-30: and the time for it begins anew."""
    broker = broker_in(SessionState.PROFILED)
    flow = broker.connect(broker.lease(PEER, "Writer"))
    broker.wait(31)
    broker.command(flow, data.Ping())
    session = authorize(broker)
    assert broker.command(flow, data.Content(5, "a")) == [data.Response(5, 403)]
    broker.server.challenge(session, b"", broker.now)
    broker.wait(29)
    assert state_of(broker) is SessionState.CHALLENGED


def test_a_session_which_does_not_authenticate_in_time_ends() -> None:
    """MT-29"""
    for state in (SessionState.UNAUTHORIZED, SessionState.CHALLENGED, SessionState.AUTHORIZING):
        broker = broker_in(state)
        (session,) = broker.server.sessions()
        broker.wait(29)
        assert not session.ended
        broker.wait(2)
        assert session.ended
        assert broker.server.authorize(session, "late", broker.now) == []
        assert broker.ask(PEER, "Profile", {"profile": "test"})[0] == 401


# ── profiles and leases ─────────────────────────────────────────────────────────────────────────


def test_another_profile_ends_the_leases() -> None:
    """MT-09"""
    broker = Broker()
    peer = broker.session()
    unused = broker.lease(peer, "Writer")
    flow = broker.connect(broker.lease(peer, "Writer"))
    assert broker.ask(peer, "Profile", {"profile": "nothing"})[0] == 400
    assert broker.command(flow, data.Ping()) == [data.Pong()]
    assert broker.server.snapshot()["writers"] == 1
    assert broker.ask(peer, "Profile", {"profile": "ingest"})[0] == 200
    assert broker.command(flow, data.Content(5, "a")) == [data.Response(5, 403)]
    assert broker.command(data_peer(7), data.Lease(1, unused)) == [data.Response(1, 403)]


@pytest.mark.parametrize(
    ("profile", "way", "resources", "confirm", "code"),
    [
        ("test", "Reader", ["resource"], "none", 202),
        ("test", "Writer", [], "none", 202),
        ("test", "Reader", ["resource"], "full", 501),
        ("test", "Writer", ["other"], "none", 404),
        ("test", "Writer", ["resource"], "maybe", 501),
        ("queue", "Reader", ["a", "b"], "full", 202),
        ("queue", "Writer", [], "none", 202),
        ("ingest", "Writer", ["x"], "full", 202),
        ("ingest", "Reader", ["x"], "full", 403),
    ],
)
def test_what_a_profile_grants(
    profile: str, way: str, resources: list[str], confirm: str, code: int
) -> None:
    """MT-10, MT-25, MT-26"""
    broker = Broker()
    peer = broker.session(profile)
    found, body = broker.ask(peer, way, {"resources": resources, "confirm": confirm})
    assert found == code
    assert body["status"]


@pytest.mark.parametrize(("way", "named"), [("Reader", "readers"), ("Writer", "writers")])
def test_who_is_refused_is_told_what_the_profile_does_not_have__MT_10(
    way: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker()
    peer = broker.session("test")
    for profile in broker.server.profiles.values():
        monkeypatch.setattr(profile, "reads", way != "Reader")
        monkeypatch.setattr(profile, "writes", way != "Writer")
    code, body = broker.ask(peer, way, {"resources": [], "confirm": "none"})
    assert (code, body["reason"]) == (403, f"the profile has no {named}")


def test_sessions_and_leases_are_bounded() -> None:
    """MT-29"""
    broker = Broker(limits={"sessions": 2})
    first, _ = broker.session(), broker.session()
    code, body = broker.ask(PEER, "Open", OPEN)
    assert (code, body["reason"]) == (403, "too many sessions")
    assert [e.limit for e in broker.events if isinstance(e, SessionRefused)] == ["sessions"]
    broker.connect(broker.lease(first, "Reader"))
    for _ in range(63):
        broker.lease(first, "Reader")
    assert broker.ask(first, "Reader", LEASE)[0] == 403
    assert broker.ask(first, "Open", OPEN)[0] == 201


def test_a_lease_which_nobody_uses_expires() -> None:
    """MT-11"""
    broker = Broker()
    peer = broker.session()
    token = broker.lease(peer, "Reader")
    kept = broker.lease(peer, "Reader")
    broker.now += 29
    broker.connect(kept)
    broker.now += 1  # before any tick
    assert broker.command(data_peer(7), data.Lease(1, token)) == [data.Response(1, 403)]
    assert broker.server.counters["leases_unused"] == 0
    broker.wait(1)
    assert broker.server.snapshot()["leases"] == 0
    assert broker.server.counters["leases_unused"] == 1


def test_tokens_differ_and_are_never_shown() -> None:
    """MT-11"""
    broker = Broker()
    peer = broker.session()
    tokens = {broker.lease(peer, "Reader") for _ in range(20)}
    assert len(tokens) == 20
    assert not any(token in str(broker.server.snapshot()) for token in tokens)


# ── identities, ends ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("peer", [b"", b"me", b"\1abcd", b"\0abcde", b"\0abc"])
def test_identities_of_ones_own_get_neither_session_nor_flow(peer: bytes) -> None:
    """MT-30"""
    broker, peer = Broker(), connection_name(peer, 7)
    assert broker.ask(peer, "Open", OPEN)[0] == 401
    token = broker.lease(broker.session(), "Reader")
    assert broker.command(peer, data.Lease(1, token)) == [data.Response(1, 403)]
    broker.connect(token)


def test_a_session_and_a_flow_have_the_address_of_their_own_connection() -> None:
    """MT-30"""
    broker = Broker()
    broker.known = {control_peer(1): Peer("192.0.2.1"), data_peer(2): Peer("192.0.2.2")}
    broker.connect(broker.lease(broker.session(), "Writer"))
    (session,) = broker.server.sessions()
    assert session.address == "192.0.2.1"
    assert [flow.address for flow in session.flows.values()] == ["192.0.2.2"]


def test_with_keys_any_identity_will_do_but_a_lease_is_bound_to_its_key() -> None:
    """MT-30"""
    broker = Broker()
    mine, other, own = (connection_name(b"me", serial) for serial in (1, 2, 3))
    broker.known = {
        mine: Peer(key=b"key-1"), other: Peer(key=b"key-2"), own: Peer(key=b"key-1"),
    }  # fmt: skip
    assert broker.ask(mine, "Open", OPEN)[0] == 201
    assert broker.ask(mine, "Profile", {"profile": "queue"})[0] == 200
    assert broker.ask(other, "Profile", {"profile": "queue"})[0] == 401
    token = broker.lease(mine, "Reader")
    assert broker.command(other, data.Lease(1, token)) == [data.Response(1, 403)]
    keyless = data_peer(1)
    assert broker.command(keyless, data.Lease(1, token)) == [data.Response(1, 403)]
    assert broker.command(own, data.Lease(1, token)) == [data.Response(1, 200)]


def test_an_idle_session_ends_and_traffic_keeps_it() -> None:
    """MT-30"""
    broker = Broker()
    idle, busy = broker.session(), broker.session()
    flow = broker.connect(broker.lease(busy, "Writer"))
    for _ in range(31):
        broker.wait(10)
        broker.command(flow, data.Ping())
    assert broker.ask(idle, "Reader", LEASE)[0] == 401
    assert broker.ask(busy, "Reader", LEASE)[0] == 202
    assert [e.reason for e in broker.events if isinstance(e, SessionEnded)] == ["idle"]


def test_a_session_that_its_data_has_kept_alive_ends_when_that_ends__MT_30() -> None:
    broker = Broker()
    flow = broker.connect(broker.lease(broker.session(), "Writer"))
    for _ in range(31):
        broker.wait(10)
        broker.command(flow, data.Ping())
    broker.wait(broker.limits["session-idle"] + 1)
    assert [e.reason for e in broker.events if isinstance(e, SessionEnded)] == ["idle"]


def test_a_peer_which_cannot_be_reached_is_gone() -> None:
    """MT-24, MT-30"""
    broker = Broker()
    peer = broker.session()
    flow = broker.connect(broker.lease(peer, "Writer"))
    broker.collect(broker.server.peer_lost(flow, broker.now))
    assert broker.server.snapshot()["writers"] == 0
    assert broker.server.counters["flows_lost"] == 1
    assert broker.command(flow, data.Content(5, "a")) == [data.Response(5, 403)]
    broker.collect(broker.server.peer_lost(peer, broker.now))
    broker.collect(broker.server.peer_lost(peer, broker.now))
    assert [e.reason for e in broker.events if isinstance(e, SessionEnded)] == ["lost"]


def test_nothing_is_due_where_nobody_is() -> None:
    """MT-29"""
    broker = Broker()
    assert broker.wait(5) is None
    broker.session()
    assert broker.wait(5) is not None


# ── one socket for both flows ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", range(1, 12))
def test_on_one_socket_the_number_of_frames_tells_the_flows_apart(count: int) -> None:
    """MT-12"""
    broker = Broker()
    body = json.dumps(OPEN).encode()
    frames = [b"x"] * (count - 4) + [b"", b"Connection.Open", body]
    if count == 3:
        frames = [b"\x08", b""]
    elif count < 3:
        frames = [b"\x08"] * (count - 1)
    broker.receive(Channel.SHARED, [PEER, *frames])
    sent = broker.to(PEER)
    if count == 3:
        assert sent == [[b"\x09", b""]]
    elif 4 <= count <= 8:
        assert sent[0][count - 3] == b"201"
    else:
        assert sent == []
        assert broker.dropped == {"frames": 1}


def test_on_one_socket_control_and_data_share_an_identity() -> None:
    """MT-12"""
    broker = Broker()
    peer = broker.session("ingest")
    token = broker.lease(peer, "Writer")
    assert broker.command(peer, data.Lease(1, token)) == [data.Response(1, 200)]
    body = json.dumps(OPEN).encode()
    events = broker.receive(
        Channel.SHARED,
        [peer, *data.encode(data.Content(2, "a", body=b"x"))],
        [peer, b"", b"Connection.Open", body],
    )
    # What came before the session's end is content still.
    kinds = [type(event).__name__ for event in events]
    assert kinds == ["ContentReceived", "SessionEnded", "SessionOpened", "SessionEstablished"]


@pytest.mark.parametrize("command", ANYTHING)
def test_the_control_socket_takes_no_data_commands(command: data.DataCommand) -> None:
    """MT-12"""
    broker = Broker()
    broker.receive(Channel.CONTROL, [PEER, *data.encode(command)])
    assert broker.dropped == {"frames": 1}
