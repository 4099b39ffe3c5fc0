"""Both machines: tables, sessions, their beginning and end; tests read as transcripts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doubles import due
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.sabc import ConnectReceived, ErrorReceived
from twisted_msgproto.sabc.machine import Client, Server

from . import sides
from .sides import (
    CONNECTING,
    NOW,
    SERVING,
    SESSION,
    client_in,
    codes,
    crlf,
    errors,
    flat,
    frame,
    limits,
    msg,
    names,
    open_client,
    open_server,
    part,
    requests,
    sent,
    server_in,
    shown,
    state_of,
)

# ── The tables ──────────────────────────────────────────────────────────────────────────────────

FRAMES = {
    "CONNECT": sides.CONNECT,
    "CONNECTED": sides.CONNECTED,
    "DISCONNECT": sides.DISCONNECT,
    "DISCONNECTING": sides.DISCONNECTING,
    "MESSAGE": sides.HOLA,
    "ERROR": sides.FORBIDDEN,
}
SERVER = {
    "AWAITING": {"CONNECT": "AUTHENTICATING"},
    "AUTHENTICATING": {},
    "OPEN": {
        "MESSAGE": "OPEN",
        "ERROR": "OPEN",
        "DISCONNECT": "CLOSED",  # it owes nothing
        "DISCONNECTING": "CLOSED",
    },
    "DRAINING": {
        "MESSAGE": "DRAINING",
        "ERROR": "DRAINING",
        "DISCONNECT": "DRAINING",
        "DISCONNECTING": "CLOSED",
    },
}
CLIENT = {
    "IDLE": {"ERROR": "IDLE"},
    "WAITING": {"CONNECTED": "OPEN", "ERROR": "IDLE"},
    "OPEN": {"MESSAGE": "OPEN", "ERROR": "OPEN", "DISCONNECTING": "CLOSED"},
    "DRAINING": {"MESSAGE": "DRAINING", "ERROR": "DRAINING", "DISCONNECTING": "CLOSED"},
}
"""State and command → the next state; whatever is in no row is a fault."""


@pytest.mark.parametrize("command", FRAMES)
@pytest.mark.parametrize("state", SERVING)
def test_a_server_takes_in_each_state_what_its_table_says(state: str, command: str) -> None:
    """SA-05, SA-12, SA-13, SA-27."""
    server = server_in(state)
    assert state_of(server) == state
    events = server.receive(FRAMES[command], NOW)
    if state == "CLOSED":
        assert events == []
    elif command in SERVER[state]:
        assert "Fault" not in names(events)
        assert state_of(server) == SERVER[state][command]
    else:
        assert names(events)[-1] == "Fault"
        assert state_of(server) == "CLOSED"
        before = state == "AWAITING" or (state == "AUTHENTICATING" and command != "CONNECT")
        assert codes(server) == ["401" if before else "400"]


@pytest.mark.parametrize("command", FRAMES)
@pytest.mark.parametrize("state", CONNECTING)
def test_a_client_takes_in_each_state_what_its_table_says(state: str, command: str) -> None:
    """SA-05, SA-13."""
    client = client_in(state)
    assert state_of(client) == state
    client.outputs()
    events = client.receive(FRAMES[command], NOW)
    if state == "CLOSED":
        assert events == []
    elif command in CLIENT[state]:
        assert "Fault" not in names(events)
        assert state_of(client) == CLIENT[state][command]
    else:
        assert names(events)[-1] == "Fault"
        assert state_of(client) == "CLOSED"
        assert codes(client) == ["400"]


VERBS = {
    "request": lambda side: side.request(b"", "waiter", NOW),
    "send_only": lambda side: side.send_only(b""),
    "open_message": lambda side: side.open_message("waiter", NOW),
    "send_error": lambda side: side.send_error(500, "x"),
}
SIDES = [(server_in, state) for state in SERVING] + [(client_in, state) for state in CONNECTING]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("made", "state"), SIDES)
def test_a_verb_in_the_wrong_state_is_the_callers_fault(made: Any, state: str, verb: str) -> None:
    side = made(state)
    side.outputs()
    if state == "OPEN" or (made, state) == (server_in, "DRAINING"):
        VERBS[verb](side)
    else:
        with pytest.raises(IllegalTransition, match="MessageSent"):
            VERBS[verb](side)
        assert side.outputs() == b""


def test_the_other_verbs_have_their_states_too() -> None:
    for state in SERVING:
        if state != "AUTHENTICATING":
            with pytest.raises(IllegalTransition):
                server_in(state).accept("x")
            with pytest.raises(IllegalTransition):
                server_in(state).reject(NOW)
    for state in CONNECTING:
        if state != "IDLE":
            with pytest.raises(IllegalTransition):
                client_in(state).connect("x", now=NOW)
        if state != "OPEN":
            with pytest.raises(IllegalTransition):
                client_in(state).disconnect(NOW)


# ── CONNECT ─────────────────────────────────────────────────────────────────────────────────────


def test_connect_is_granted_with_a_session() -> None:
    # SA-07, SA-08, SA-09, SA-26
    server = Server()
    server.connection_made(NOW)
    (event,) = server.receive(
        crlf("CONNECT\nclient-id::me\nclient-passcode::secret\nx::y\nframing::length\n\n"), NOW
    )
    assert event == ConnectReceived("me", "secret", {"x": "y"})
    assert "secret" not in repr(event)
    assert state_of(server) == "AUTHENTICATING"
    server.accept(SESSION, expires=NOW + 60.5, headers={"z": "w"})
    assert server.outputs() == crlf(
        f"CONNECTED\nsession-id::{SESSION}\nsession-expiry::Mon, 12 Jan 1970 13:47:40 GMT\n"
        "framing::length\nz::w\n\n^@"
    )
    assert server.lengths


def test_a_client_whose_time_is_up_says_nothing_that_its_server_takes_for_a_fault() -> None:
    """SA-26, SA-27: CONNECTED is on its way, and the server wants lengths from then on."""
    server, client = Server(), Client()
    server.connection_made(NOW)
    client.connect("me", now=NOW)
    server.receive(client.outputs(), NOW)
    server.accept(SESSION)
    assert server.lengths
    (fault,) = client.advance(NOW + 10)
    assert isinstance(fault, Fault) and fault.reason == "connect-seconds"
    assert client.finished
    assert server.receive(client.outputs(), NOW + 10) == []


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("framed", [True, False])
def test_lengths_need_both_sides_and_a_stream(ours: bool, framed: bool) -> None:
    # SA-26
    assert open_server(lengths=ours, framed=framed).lengths is (ours and not framed)
    assert open_client(lengths=ours, framed=framed).lengths is (ours and not framed)
    server = Server(framed=True)
    server.receive([sides.CONNECT], NOW)
    server.accept(SESSION)
    assert b"framing" not in server.outputs()
    client = Client(framed=True)
    client.connect("me", now=NOW)
    assert b"framing" not in client.outputs()


def test_connect_without_headers_is_anonymous() -> None:
    # SA-02, SA-07
    server = Server()
    assert server.receive(b"CONNECT\r\n\r\n", NOW) == [ConnectReceived(None, None, {})]
    server = Server(authenticates=True)
    (fault,) = server.receive(b"CONNECT\r\n\r\n", NOW)
    assert isinstance(fault, Fault)
    assert codes(server) == ["400"]


@pytest.mark.parametrize(
    ("date", "expires"),
    [
        (None, None),
        ("Thu, 01 Jan 2026 00:00:00 GMT", 1_767_225_600.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Thu, 01 Jan 0001 00:00:00 GMT", -62_135_596_800.0),
        ("Thu, 31 Jan 1970 23:59:60 GMT", 2_678_400.0),
        ("Thu, 29 Feb 1972 00:00:00 GMT", 68_169_600.0),
        *(
            (date, "odd")
            for date in (
                "",
                "soon",
                "Thu, 29 Feb 1970 00:00:00 GMT",
                "Thu, 00 Jan 1970 00:00:00 GMT",
                "Thu, 32 Jan 1970 00:00:00 GMT",
                "Thu, 01 Jan 1970 24:00:00 GMT",
                "Thu, 01 Jan 1970 00:60:00 GMT",
                "Thu, 01 Jan 1970 00:00:61 GMT",
                "Thu, 01 Jan 0000 00:00:00 GMT",
                "Tue, 01 Juni 2017 21:47:38 GMT",
                "Tue, 01 Foo 2017 21:47:38 GMT",
                "Tue, 01 Jun 2017 21:47:38 CET",
            )
        ),
    ],
)
def test_a_session_expires_at_any_time_of_the_calendar(date: str | None, expires: Any) -> None:
    """SA-11: of what is no date the session lives."""
    client = client_in("WAITING")
    expiry = {} if date is None else {"session-expiry": date}
    (event,) = client.receive(frame("CONNECTED", {"session-id": SESSION, **expiry}), NOW)
    assert names([event]) == ["SessionGranted"]
    assert event.expires == client.expires == (None if expires == "odd" else expires)


def test_a_refusal_says_nothing_and_the_client_may_try_again_but_not_for_ever() -> None:
    # SA-08, SA-27
    server, client = Server(), Client()
    server.connection_made(NOW)
    for attempt in range(5):
        client.connect("me", "wrong", now=NOW)
        server.receive(client.outputs(), NOW)
        assert not server.closed
        server.reject(NOW)
        (event,) = client.receive(server.outputs(), NOW)
        assert shown(event) == ("ConnectRefused", "403", "Access Forbidden")
        assert state_of(client) == "IDLE"
        assert server.closed is (attempt == 4)
    assert client.counters.errors_received == 5
    assert server.receive(sides.CONNECT, NOW) == []


@pytest.mark.parametrize(
    "octets",
    [b"GET / HTTP/1.1\r\n\r\n", b"MESSAGE\r\nsession-id::x\r\nmsg-id::1\r\n\r\nendless"],
)
def test_before_connect_nothing_else_is_read(octets: bytes) -> None:
    # SA-27; frames before authentication: a broker's hole (FAULTS)
    server = Server()
    server.connection_made(NOW)
    (fault,) = server.receive(octets + sides.CONNECT, NOW)
    assert isinstance(fault, Fault)
    assert codes(server) == ["401"]


def test_connect_has_to_come_in_time() -> None:
    # SA-27
    server = Server()
    server.connection_made(NOW)
    assert due(server, NOW)[1] == NOW + 10
    (fault,), deadline = due(server, NOW + 10)
    assert deadline is None
    assert isinstance(fault, Fault)
    assert codes(server) == ["408"]
    assert server.closed
    client = Client()
    client.connect("me", now=NOW)
    assert due(client, NOW + 1)[1] == NOW + 10
    assert names(client.advance(NOW + 10)) == ["Fault"]
    assert due(open_server(), NOW + 11)[1] is None
    server = Server()
    server.connection_made(NOW)
    server.receive(sides.CONNECT, NOW + 9)  # a log-in has its time, and so has the next attempt
    assert due(server, NOW + 18) == ([], NOW + 19)
    server.reject(NOW + 18)
    assert due(server, NOW + 18)[1] == NOW + 28


# ── Sessions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("session", [None, "", "x", SESSION + "x", SESSION[:-1], "ß"])
@pytest.mark.parametrize("command", ["MESSAGE", "DISCONNECT", "DISCONNECTING"])
def test_a_wrong_session_id_closes(session: str | None, command: str) -> None:
    # SA-10
    server = open_server()
    head = "" if session is None else f"session-id::{session}\r\n"
    (fault,) = server.receive(f"{command}\r\n{head}x::y\r\n\r\n\0".encode(), NOW)
    assert isinstance(fault, Fault)
    assert fault.reason == "session-id"
    assert SESSION not in str(fault)
    assert codes(server) == ["401"]


def test_an_error_may_lack_the_session_but_not_have_another() -> None:
    # SA-10
    server = open_server()
    (event,) = server.receive(sides.FORBIDDEN, NOW)
    assert event == ErrorReceived("403", b"Access Forbidden", {"error-code": "403"})
    (fault,) = server.receive(crlf("ERROR\nsession-id::other\n\n^@"), NOW)
    assert isinstance(fault, Fault)


def test_a_session_expires() -> None:
    # SA-11
    server = open_server(expires=NOW + 100)
    assert due(server, NOW)[1] == NOW + 100
    events, deadline = due(server, NOW + 100)
    assert (names(events), deadline) == (["SessionExpired"], None)
    assert server.outputs() == sides.DISCONNECTING + b"\0"
    assert server.closed


def test_an_expired_session_reads_nothing_more() -> None:
    # SA-10: even if the clock was not looked at meanwhile
    for octets in (sides.HOLA, sides.DISCONNECT):
        server = open_server(expires=NOW + 100)
        (fault,) = server.receive(octets, NOW + 100)
        assert isinstance(fault, Fault)
        assert fault.reason == "session-expired"
        assert codes(server) == ["401"]
    client = open_client()
    client.expires = NOW
    client.receive(sides.HOLA, NOW + 1)  # only the server ends a session
    assert not client.closed


# ── DISCONNECT ──────────────────────────────────────────────────────────────────────────────────


def test_after_disconnect_no_further_message_is_taken() -> None:
    # SA-12: but answers to our own requests are, which the work may need
    server = open_server()
    server.receive(sides.HOLA + part(b"half", msg_id="h"), NOW)
    id = server.request(b"?", "w", NOW)
    server.outputs()
    events = server.receive(
        sides.DISCONNECT
        + sides.HELLO
        + msg(b"other half", msg_id="h")
        + msg(b"!", ref_msg_id=id)
        + sides.DISCONNECT,
        NOW,
    )
    assert flat(events)[-2:] == [
        ("response", id, "w", {}, b"!", False),
        ("DisconnectReceived",),
    ]
    assert requests(events[:-2]) == []
    assert [e[:2] for e in errors(server)] == [("503", "h"), ("503", "123123")]
    server.answer("000001", b"")
    assert server.closed


def test_the_drain_is_bounded() -> None:
    # SA-12
    server = open_server()
    server.receive(sides.HOLA + sides.DISCONNECT, NOW)
    assert due(server, NOW)[1] == NOW + 30
    server.receive(sides.DISCONNECT, NOW + 20)  # asking again gives no more time
    assert names(server.advance(NOW + 30)) == ["DrainTimedOut"]
    assert server.deadline is None
    assert server.outputs() == sides.DISCONNECTING + b"\0"
    server = Server()
    server.drain(NOW)
    assert server.closed  # there was no session to drain


# ── what the sink says, and time ────────────────────────────────────────────────────────────────


def test_what_never_will_be_safe_fails_its_requests_and_ends_the_session() -> None:
    # SA-16
    server = open_server()
    first, second = (server.receive(msg(b"x", msg_id=id), NOW)[0].position for id in ("1", "2"))
    (third,) = server.receive(msg(b"x", msg_id="3") + msg(b"x", msg_id="4"), NOW)
    server.made_safe(first, NOW)
    server.acknowledge(["3"])
    server.outputs()
    server.not_safe(third.position, NOW)
    assert errors(server) == [("503", "4", b"not stored")]
    assert server.finished
    with pytest.raises(ValueError, match="no event had the position"):
        server.made_safe(first, NOW)
    server.not_safe(second, NOW)
    with pytest.raises(ValueError, match="no event had the position"):
        server.not_safe(second, NOW)


def test_what_no_hook_looks_at_is_answered_when_it_is_safe() -> None:
    # SA-16, SA-12: the caller has nothing more to do with it, and an orderly end does not wait
    for unhooked in ((), ("request",), ("send-only",), ("request", "send-only")):
        server = open_server(unhooked=unhooked)
        octets = msg(b"a", msg_id="1") + msg(b"b", msg_id="2", send_only="yes")
        for event in server.receive(octets + sides.DISCONNECT, NOW):
            if names([event]) == ["MessagesReceived"]:
                told = server.made_safe(event.position, NOW)
                assert names(told) == ([] if event.kind in unhooked else ["MessagesSafe"])
                assert all(safe.messages is event for safe in told)
        answered = [dict(r.headers).get("ref-msg-id") for r in sent(server)]
        assert ("1" in answered) is ("request" in unhooked)
        assert server.finished is (len(unhooked) == 2)


@pytest.mark.parametrize("said", ["", "x", "-1", "1" * 19, "\N{ARABIC-INDIC DIGIT FIVE}", None])
def test_who_says_nothing_of_it_is_taken_to_be_like_us(said: str | None) -> None:
    # HO-01: and a terminal is not answered with headers which nobody asked for
    server = Server(limits(message_bytes=300))
    own = {} if said is None else {"message-bytes": said}
    (asked,) = server.receive(frame("CONNECT", {"client-id": "me", **own}), NOW)
    assert asked == ConnectReceived("me", None, {})
    server.accept(SESSION)
    assert b"message-bytes" not in server.outputs()
    with pytest.raises(LimitExceeded, match="message-bytes=300"):
        server.send_only(b"x" * 300)
