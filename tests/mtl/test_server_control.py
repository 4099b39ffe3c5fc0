"""The broker's machine: sessions, authentication, profiles and leases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.mtl.broker import (
    OPEN,
    Arrival,
    Broker,
    Channel,
    Peer,
    connection_name,
    contents,
    control_peer,
    data_peer,
)
from twisted_msgproto.mtl import machine
from twisted_msgproto.mtl.wire import data

PEER = control_peer(99)
LEASE = {"resources": ["a"], "confirm": "full"}


def broker_in(state: str) -> Broker:
    """A broker which asks for authentication, and whose session of PEER is in ``state``."""
    broker = Broker(mechanisms=["X", "Y"])
    if state != "NEW":
        assert broker.ask(PEER, "Open", OPEN)[0] == 401
    if state in ("NEW", "UNAUTHORIZED"):
        return broker
    session = authorize(broker)
    if state == "CHALLENGED":
        broker.server.challenge(session, b"c", broker.now)
    elif state != "AUTHORIZING":
        broker.collect(broker.server.authorize(session, "me", broker.now))
    broker.collect()
    broker.to(PEER)
    if state == "PROFILED":
        assert broker.ask(PEER, "Profile", {"profile": "queue"})[0] == 200
    assert session.state.name == state
    return broker


def authorize(broker: Broker, mechanism: str = "X") -> Any:
    """Send Connection.Authorize, and give the session which waits for the answer."""
    body = json.dumps({"mechanism": mechanism, "response": "AAA="}).encode()
    assert broker.ask_raw(PEER, b"", b"Connection.Authorize", body) == []
    event = broker.events[-1]
    assert isinstance(event, machine.AuthenticationRequested)
    assert (event.mechanism, event.response) == (mechanism, b"\0\0")
    return event.session


def state_of(broker: Broker) -> str:
    sessions = broker.server.sessions()
    return sessions[0].state.name if sessions else "NEW"


def said(broker: Broker, command: bytes, body: bytes) -> str:
    """The code of the reply to a request; "" if there is none."""
    replies = broker.ask_raw(PEER, b"", command, body)
    return replies[0][1].decode() if replies else ""


REQUESTS: dict[str, dict[str, Any]] = {
    "Open": OPEN,
    "Authorize": {"mechanism": "X", "response": "AAA="},
    "Profile": {"profile": "queue"},
    "Reader": LEASE,
    "Writer": LEASE,
    "Nothing": {},
}
ANSWERS: dict[str, dict[str, str]] = {
    # What each of them is answered, and to which state the session goes then.
    "NEW": {"Open": "401 UNAUTHORIZED", "": "401"},
    "UNAUTHORIZED": {"Open": "401 UNAUTHORIZED", "Authorize": " AUTHORIZING", "": "401"},
    "CHALLENGED": {"Open": "401 UNAUTHORIZED", "Authorize": " AUTHORIZING", "": "401"},
    "AUTHORIZING": {"": "409"},
    "READY": {
        **{"Open": "401 UNAUTHORIZED", "Authorize": " AUTHORIZING"},
        **{"Profile": "200 PROFILED", "Nothing": "404", "": "409"},
    },
    "PROFILED": {
        **{"Open": "401 UNAUTHORIZED", "Authorize": " AUTHORIZING"},
        **{"Profile": "200 PROFILED", "Reader": "202", "Writer": "202", "Nothing": "404"},
    },
}


@pytest.mark.parametrize("state", ANSWERS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_every_request_in_every_state(state: str, request_: str) -> None:
    """MT-03, MT-05, MT-07, MT-10: what the table does not allow changes nothing and gets a code."""
    row = ANSWERS[state]
    code, _, target = row.get(request_, row.get("", "")).partition(" ")
    broker = broker_in(state)
    body = json.dumps(REQUESTS[request_]).encode()
    assert said(broker, f"Connection.{request_}".encode(), body) == code
    assert state_of(broker) == (target or state)


NO_JSON = [b"", b"{", b"nul", b"{'a': 1}", b"\xff", b"NaN", b'{"a": 1} x']
NO_REQUEST = [b"[]", b"5", b"null", b'"x"', b'{"protocol": 1}', b'{"a": 1, "a": 2}',
              b"[" * 30 + b"]" * 30, b'{"a":' * 20 + b"1" + b"}" * 20,
              b'{"a":"' + b"x" * 70_000 + b'"}', b'{"a":"\\ud800"}']  # fmt: skip


@pytest.mark.parametrize("body", NO_JSON + NO_REQUEST)
def test_what_is_no_json_is_dropped_and_what_is_no_good_request_gets_400(body: bytes) -> None:
    """MT-02, MT-03: nothing changes in any state."""
    for state in ("NEW", "READY"):
        broker = broker_in(state)
        replies = broker.ask_raw(PEER, b"", b"Connection.Open", body)
        assert state_of(broker) == state
        assert broker.dropped == ({"json": 1} if body in NO_JSON else {})
        if body in NO_REQUEST:
            ((_, code, reply),) = replies
            assert (code, json.loads(reply)["status"]) == (b"400", "Bad Request")
            assert json.loads(reply)["reason"]


def test_a_command_which_is_no_text_is_dropped_silently() -> None:
    """MT-03, MT-04"""
    for command in (b"\xff", b"a\0", b"x" * 256):
        broker = Broker()
        assert broker.ask_raw(PEER, b"", command, b"{}") == []
        assert broker.dropped in ({"string": 1}, {"command": 1})


MTL = {"name": "MTL", "version": 1}
WRONG: list[tuple[str, dict[str, Any], int]] = [
    *(("Open", {"protocol": protocol}, 400) for protocol in (
        None, "MTL", {"name": "MTL"}, {"name": "mtl2", "version": 1}, {**MTL, "version": 2},
        {**MTL, "version": True}, {**MTL, "version": 1.0},
    )),
    *(("Open", {"virtual-host": name}, 400) for name in (5, "x" * 256, "a\n")),
    ("Authorize", {"mechanism": ""}, 400),
    ("Authorize", {"mechanism": "Z"}, 400),
    *(("Authorize", {"response": text}, 400) for text in ("*", "A", "AA==\n", "ä", None)),
    ("Profile", {"profile": ["test"]}, 400),
    *(("Reader", {"resources": names}, 400) for names in (
        "a", ["a", 1], [""], ["a\n"], ["x" * 256], [str(n) for n in range(257)],
    )),
    ("Reader", {"confirm": None}, 400),
    ("Reader", {"confirm": "some"}, 501),
    ("Writer", {"confirm": "FULL"}, 501),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "change", "code"), WRONG)
def test_a_field_that_is_wrong_or_missing_is_refused(
    request_: str, change: dict[str, Any], code: int
) -> None:
    """MT-03, MT-05, MT-08, MT-10: and others are not looked at."""
    state = "READY" if request_ == "Authorize" else "PROFILED"
    broker, good = broker_in(state), REQUESTS[request_]
    assert broker.ask(PEER, request_, {**good, **change})[0] == code
    for key in change:
        assert broker.ask(PEER, request_, {k: v for k, v in good.items() if k != key})[0] == 400
    assert state_of(broker) == state
    body = json.dumps({**good, "later": 1}).encode()
    assert said(broker, f"Connection.{request_}".encode(), body) in ("", "200", "202", "401")


def test_another_protocol_or_version_gets_400_with_what_is_spoken__MT_05() -> None:
    broker = Broker()
    for protocol in ({"name": "MTL", "version": 2}, {"name": "AMQP", "version": 1}):
        code, body = broker.ask(PEER, "Open", {**OPEN, "protocol": protocol})
        assert (code, body["protocol"]) == (400, MTL)


def test_names_of_mechanisms_are_read_in_any_case_and_resources_count_once__MT_04__MT_10() -> None:
    broker = broker_in("UNAUTHORIZED")
    body = b'{"mechanism": "x", "response": ""}'
    assert said(broker, b"cOnNeCtIoN.aUtHoRiZe", body) == ""
    asked = broker.events[-1]
    assert isinstance(asked, machine.AuthenticationRequested)
    assert (asked.mechanism, asked.response) == ("X", b"")
    broker = Broker()
    assert broker.lease(broker.session(host="h" * 255), "Writer", ["x" * 255])
    writer = broker.flow("Writer", ["a", "a"])
    broker.command(writer, data.Content(2, ""))
    assert broker.events[-1].resources == ["a"]  # type: ignore[union-attr]


ENVELOPES: list[tuple[list[bytes], bool]] = [
    ([b""], True), ([b"\0\1\2\3", b""], True), ([b"1", b"2", b"3", b"4", b""], True),
    ([*[b"i" * 255] * 4, b""], True), ([b"i" * 256, b""], False),
    ([], False), ([b"x"], False), ([b"1", b"2", b"3", b"4", b"5", b""], False),
    ([b"", b""], False), ([b"x", b"y"], False),
]  # fmt: skip


@pytest.mark.parametrize(("envelope", "good"), ENVELOPES)
@pytest.mark.parametrize("channel", Channel)
def test_the_envelope_ends_with_the_first_empty_frame_and_is_echoed(
    envelope: list[bytes], good: bool, channel: Channel
) -> None:
    """MT-01, MT-12, NB-02: also on one socket; no frame is longer than an identity."""
    broker = Broker()
    body = json.dumps(OPEN).encode()
    broker.receive(channel, [PEER, *envelope, b"Connection.Open", body])
    if good and channel is not Channel.DATA:
        (reply,) = broker.to(PEER)
        assert (reply[: len(envelope)], reply[len(envelope)]) == (envelope, b"201")
        assert len(reply) == len(envelope) + 2
    else:
        assert broker.to(PEER) == []
        assert sum(broker.dropped.values()) == 1


@pytest.mark.parametrize("channel", Channel)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 9, 50, 100])
def test_wrong_frame_counts_are_dropped_silently(channel: Channel, count: int) -> None:
    """MT-01, MT-03, MT-12, MT-13: and counted, and the next client is served."""
    broker = Broker()
    for frames in ([b"x"] * count, [b""] * count):
        broker.receive(channel, [PEER, *frames])
    assert broker.to(PEER) == []
    assert sum(broker.dropped.values()) == 2
    broker.session()


def test_an_unknown_virtual_host_gets_404_and_leaves_the_session_as_it_was__MT_05() -> None:
    broker = Broker(virtual_hosts={"host"})
    assert broker.ask(PEER, "Open", {**OPEN, "virtual-host": "other"})[0] == 404
    assert broker.server.sessions() == []
    peer = broker.session()
    assert broker.ask(peer, "Open", {**OPEN, "virtual-host": "other"})[0] == 404
    assert broker.lease(peer, "Reader")


@pytest.mark.parametrize("end", ["Open", "Authorize", "Profile", "withdraw"])
def test_what_begins_anew_ends_the_flows_and_leases_of_before(end: str) -> None:
    """MT-05, MT-07, MT-09, MT-30"""
    broker = broker_in("PROFILED")
    (session,) = broker.server.sessions()
    flow = broker.connect(broker.lease(PEER, "Writer"))
    for _ in range(4):
        broker.wait(8)
        broker.command(flow, data.Ping())
    unused = broker.lease(PEER, "Writer")
    assert broker.ask(PEER, "Profile", {"profile": "nothing"})[0] == 400
    assert broker.server.snapshot()["writers"] == 1
    if end == "withdraw":
        broker.collect(broker.server.withdraw(session, broker.now))
    elif end == "Authorize":
        broker.server.challenge(authorize(broker, "Y"), b"", broker.now)
        assert broker.events[-1].first  # type: ignore[union-attr]
    else:
        broker.ask(PEER, end, {**REQUESTS[end], "profile": "ingest"})
    assert broker.server.snapshot()["writers"] == 0
    assert broker.command(flow, data.Content(5, "a")) == [data.Response(5, 403)]
    assert broker.command(flow, data.Lease(6, unused)) == [data.Response(6, 403)]
    reopened = [event.reason for event in broker.events if isinstance(event, machine.SessionEnded)]
    assert reopened == (["reopened"] if end == "Open" else [])
    assert end != "Open" or broker.server.withdraw(session, broker.now) == []  # it has ended
    broker.wait(29)  # it has all its time to authenticate, again
    assert state_of(broker) == {"Authorize": "CHALLENGED", "Profile": "PROFILED"}.get(
        end, "UNAUTHORIZED"
    )


# ── authentication ──────────────────────────────────────────────────────────────────────────────


def test_a_cycle_of_two_challenges__MT_07__MT_08() -> None:
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
    firsts = [e.first for e in broker.events if isinstance(e, machine.AuthenticationRequested)]
    assert firsts == [True, False, False]


def test_a_failed_attempt_costs_a_second_and_says_nothing() -> None:
    """MT-08: however long the looking took; and nobody else waits for it."""
    broker = broker_in("AUTHORIZING")
    (session,) = broker.server.sessions()
    broker.now += 0.7
    broker.server.refuse(session, broker.now)
    broker.wait(0.29)
    assert broker.to(PEER) == []
    assert broker.ask(control_peer(50), "Open", OPEN)[0] == 401
    broker.wait(0.02)
    ((_, code, body),) = broker.to(PEER)
    assert code == b"401"
    assert json.loads(body) == {"status": "Unauthorized", "mechanisms": ["X", "Y"]}
    assert state_of(broker) == "UNAUTHORIZED"
    assert broker.server.counters["failed_authentications"] == 1
    again = authorize(broker)
    assert broker.events[-1].first  # type: ignore[union-attr]
    broker.collect(broker.server.authorize(again, "me", broker.now))
    assert broker.to(PEER)[0][1] == b"201"


def test_while_an_answer_is_owed_nothing_else_is_answered_with_yes__MT_08() -> None:
    broker = broker_in("AUTHORIZING")
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
    broker = broker_in("CHALLENGED")
    code, body = broker.ask(PEER, "Authorize", {"mechanism": "Y", "response": ""})
    assert (code, body["reason"]) == (400, "the mechanism was switched within a cycle")
    assert state_of(broker) == "UNAUTHORIZED"
    authorize(broker, "Y")


def test_where_nobody_has_to_authenticate_authorize_gets_409__MT_03__MT_08() -> None:
    broker = Broker()
    peer = broker.session()
    assert broker.ask(peer, "Authorize", {"mechanism": "X", "response": ""})[0] == 409
    assert broker.lease(peer, "Reader")


def test_a_session_which_does_not_authenticate_in_time_ends__MT_29() -> None:
    for state in ("UNAUTHORIZED", "CHALLENGED", "AUTHORIZING"):
        broker = broker_in(state)
        (session,) = broker.server.sessions()
        broker.wait(29)
        assert not session.ended
        broker.wait(2)
        assert session.ended
        assert broker.server.authorize(session, "late", broker.now) == []
        assert broker.ask(PEER, "Profile", {"profile": "test"})[0] == 401


# ── profiles and leases ─────────────────────────────────────────────────────────────────────────


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


def test_sessions_and_leases_are_bounded__MT_29() -> None:
    broker = Broker(limits={"sessions": 2})
    first, _ = broker.session(), broker.session()
    code, body = broker.ask(PEER, "Open", OPEN)
    assert (code, body["reason"]) == (403, "too many sessions")
    assert [e.limit for e in broker.events if isinstance(e, machine.LimitMet)] == ["sessions"]
    broker.connect(broker.lease(first, "Reader"))
    for _ in range(63):
        broker.lease(first, "Reader")
    assert broker.ask(first, "Reader", LEASE)[0] == 403
    assert broker.ask(first, "Open", OPEN)[0] == 201


def test_a_lease_which_nobody_uses_expires__MT_11() -> None:
    broker = Broker()
    peer = broker.session()
    token = broker.lease(peer, "Reader")
    kept = broker.lease(peer, "Reader")
    broker.now += 29
    broker.connect(kept)
    broker.now += 1  # before any tick
    assert broker.command(data_peer(7), data.Lease(1, token)) == [data.Response(1, 403)]
    broker.wait(1)
    assert broker.server.snapshot()["leases"] == 0


def test_tokens_differ_and_are_never_shown__MT_11() -> None:
    broker = Broker()
    peer = broker.session()
    tokens = {broker.lease(peer, "Reader") for _ in range(20)}
    assert [len(token) for token in tokens] == [40] * 20
    assert not any(token in str(broker.server.snapshot()) for token in tokens)


# ── identities, ends ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("peer", [b"", b"me", b"\1abcd", b"\0abcde", b"\0abc"])
def test_identities_of_ones_own_get_neither_session_nor_flow__MT_30(peer: bytes) -> None:
    broker, peer = Broker(), connection_name(peer, 7)
    assert broker.ask(peer, "Open", OPEN)[0] == 401
    token = broker.lease(broker.session(), "Reader")
    assert broker.command(peer, data.Lease(1, token)) == [data.Response(1, 403)]
    assert "no identity of its own" in broker.events[-1].reason  # type: ignore[union-attr]
    broker.connect(token)


def test_with_keys_any_identity_will_do_but_a_lease_is_bound_to_its_key__MT_30() -> None:
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
    reasons = [e.reason for e in broker.events if isinstance(e, machine.LeaseRefused)]
    assert reasons == ["it is leased for another client's CURVE key"] * 2
    assert broker.command(own, data.Lease(1, token)) == [data.Response(1, 200)]


@pytest.mark.parametrize("what", ["a request", "a lease", "a content", "a heartbeat", "nothing"])
def test_a_session_ends_when_nothing_has_come_for_too_long__MT_30(what: str) -> None:
    """Content and a lease keep it although their flow has ended."""
    broker = Broker(limits={"liveness": 1000})
    peer = broker.session()
    unused = broker.lease(peer, "Writer")
    flow = broker.connect(broker.lease(peer, "Writer"))
    broker.wait(290)
    match what:
        case "a request":
            broker.lease(peer, "Reader")
        case "a lease":
            unused = broker.lease(peer, "Writer")
            broker.wait(20)
            flow = broker.connect(unused)
        case "a content":
            broker.command(flow, *contents(2))
        case "a heartbeat":
            broker.command(flow, data.Ping())
    if what != "a heartbeat":
        broker.collect(broker.server.peer_lost(flow, broker.now))
    broker.wait(290)
    assert len(broker.server.sessions()) == (what != "nothing")
    broker.wait(12)
    assert [e.reason for e in broker.events if isinstance(e, machine.SessionEnded)] == ["idle"]
    assert broker.ask(peer, "Reader", LEASE)[0] == 401


def test_a_peer_which_cannot_be_reached_is_gone__MT_24__MT_30() -> None:
    broker = Broker()
    peer = broker.session()
    flow = broker.connect(broker.lease(peer, "Writer"))
    broker.collect(broker.server.peer_lost(flow, broker.now))
    assert broker.server.snapshot()["writers"] == 0
    assert broker.server.counters["flows_lost"] == 1
    assert broker.command(flow, data.Content(5, "a")) == [data.Response(5, 403)]
    broker.collect(broker.server.peer_lost(peer, broker.now))
    broker.collect(broker.server.peer_lost(peer, broker.now))
    assert [e.reason for e in broker.events if isinstance(e, machine.SessionEnded)] == ["lost"]


# ── one socket for both flows ───────────────────────────────────────────────────────────────────


def test_on_one_socket_control_and_data_share_an_identity__MT_12() -> None:
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


@pytest.mark.parametrize("reading", [True, False])
def test_who_may_only_read_or_only_write_is_asked_for_just_that__MT_16__MT_18(
    reading: bool,
) -> None:
    broker = Broker(may=lambda session, reads, resource: reads is reading)
    reader, writer = broker.flow("Reader", []), broker.flow("Writer", [], "none")
    code = 200 if reading else 400
    assert broker.command(reader, data.Summon(2, "a")) == [data.Response(2, code)]
    assert broker.command(writer, *contents(3)) == [data.Response(3, 403)] * reading
    way, what = ("Writer", "publish to") if reading else ("Reader", "consume from")
    code, body = broker.ask(broker.session(), way, LEASE)
    assert (code, body["reason"]) == (403, f"not allowed to {what} a")


@pytest.mark.parametrize("answer", ["authorize", "refuse", "challenge", "withdraw"])
def test_a_session_has_its_time_from_the_answer_to_its_log_in_on__MT_07__MT_30(
    answer: str,
) -> None:
    broker = broker_in("UNAUTHORIZED")
    broker.wait(20)
    session = authorize(broker)
    broker.now += 7
    more: dict[str, Any] = {"authorize": ("user",), "challenge": (b"x",)}
    broker.collect(getattr(broker.server, answer)(session, *more.get(answer, ()), broker.now) or [])
    if answer in ("authorize", "withdraw"):
        broker.collect(broker.server.withdraw(session, broker.now))
        broker.wait(broker.limits["authentication"] - 1)
    else:
        broker.wait(2)  # its time goes on
    assert not session.ended
    broker.wait(2)
    assert session.ended


def test_the_state_of_the_server_is_open_then_draining_then_closed() -> None:
    """MT-30: it is finished when all that was accepted is answered, and when it was lost."""
    broker = Broker()
    reader, writer = broker.reader(), broker.flow("Writer")
    states = [broker.server.state]
    broker.server.drain(broker.now)
    states.append(broker.server.state)
    assert broker.server.finished
    broker.command(writer, *contents(1))
    assert not broker.server.finished
    broker.receive(Channel.CONTROL, [reader, b"", b"x", b"{}"])
    broker.safe(broker.events[-1])
    assert broker.server.finished
    broker.command(writer, *contents(2))
    waiting = Arrival(
        Channel.SHARED, [[writer, *data.encode(data.Ping())], [PEER, b"", b"x", b"{}"]]
    )
    broker.server.receive(waiting, broker.now)
    broker.server.lost(broker.now)
    states.append(broker.server.state)
    assert states == ["open", "draining", "closed"]
    assert (broker.server.finished, broker.server.outputs()) == (True, ([], []))
    counted = dict(broker.server.counters)
    assert broker.ask_raw(PEER, b"", b"Connection.Open", b"{}") == []
    assert (broker.server.outputs(), broker.server.deadline) == (([], []), None)
    assert dict(broker.server.counters) == counted


def test_a_refusal_of_a_session_that_has_ended_is_not_owed__MT_08() -> None:
    broker = broker_in("AUTHORIZING")
    (session,) = broker.server.sessions()
    broker.server.refuse(session, broker.now)
    broker.collect(broker.server.peer_lost(PEER, broker.now))
    broker.wait(5)
    assert broker.to(PEER) == []
