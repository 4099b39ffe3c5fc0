"""Both machines: tables, sessions, their beginning and end; tests read as transcripts."""

from __future__ import annotations

import pytest

from tests.doubles import due
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.core.machine import events as table_events
from twisted_msgproto.sabc.machine import Client, Server
from twisted_msgproto.sabc.terms.events import (
    REQUEST,
    SEND_ONLY,
    ConnectReceived,
    ConnectRefused,
    DisconnectingReceived,
    DisconnectReceived,
    DrainTimedOut,
    ErrorReceived,
    MessageAbandoned,
    MessagesReceived,
    MessagesSafe,
    RequestFailed,
    ResponsesReceived,
    SessionExpired,
    SessionGranted,
)
from twisted_msgproto.sabc.terms.tables import CLIENT, SERVER, Connecting, Serving
from twisted_msgproto.sabc.wire import (
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Frame,
    Message,
    encode,
)

from . import vectors
from .sides import (
    NOW,
    NUDGE,
    client_in,
    codes,
    errors,
    flat,
    limits,
    msg,
    open_client,
    open_server,
    part,
    requests,
    sent,
    server_in,
)
from .vectors import SESSION, Read, crlf

# ── The tables ──────────────────────────────────────────────────────────────────────────────────


FRAMES: dict[type[Frame], bytes] = {
    Connect: vectors.CONNECT,
    Connected: vectors.CONNECTED,
    Disconnect: vectors.DISCONNECT,
    Disconnecting: vectors.DISCONNECTING,
    Message: vectors.HOLA,
    Error: vectors.FORBIDDEN,
}


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.command)
@pytest.mark.parametrize("state", Serving, ids=lambda state: state.name)
def test_a_server_takes_in_each_state_what_its_table_says(
    state: Serving, kind: type[Frame]
) -> None:
    # SA-05, SA-12, SA-13, SA-27
    server = server_in(state)
    assert server.state is state
    events = server.receive(FRAMES[kind], NOW)
    if state is Serving.CLOSED:
        assert events == []
    elif kind in SERVER[state]:
        assert not [event for event in events if isinstance(event, Fault)]
        assert server.state is SERVER[state][kind] or kind is Disconnect
    else:
        assert isinstance(events[-1], Fault)
        assert server.state is Serving.CLOSED
        before = state is Serving.AWAITING or (
            state is Serving.AUTHENTICATING and kind is not Connect
        )
        assert codes(server) == ["401" if before else "400"]


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.command)
@pytest.mark.parametrize("state", Connecting, ids=lambda state: state.name)
def test_a_client_takes_in_each_state_what_its_table_says(
    state: Connecting, kind: type[Frame]
) -> None:
    # SA-05, SA-13
    client = client_in(state)
    assert client.state is state
    client.outputs()
    events = client.receive(FRAMES[kind], NOW)
    if state is Connecting.CLOSED:
        assert events == []
    elif kind in CLIENT[state]:
        assert not [event for event in events if isinstance(event, Fault)]
        assert client.state is CLIENT[state][kind]
    else:
        assert isinstance(events[-1], Fault)
        assert client.state is Connecting.CLOSED
        assert codes(client) == ["400"]


VERBS = {
    "request": lambda side: side.request(b"", "waiter", NOW),
    "send_only": lambda side: side.send_only(b""),
    "open_message": lambda side: side.open_message("waiter", NOW),
    "send_error": lambda side: side.send_error(500, "x"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", [*Serving, *Connecting], ids=str)
def test_a_verb_in_the_wrong_state_is_the_callers_fault(
    state: Serving | Connecting, verb: str
) -> None:
    side = server_in(state) if isinstance(state, Serving) else client_in(state)
    side.outputs()
    allowed = state in (Serving.OPEN, Serving.DRAINING, Connecting.OPEN)
    if allowed:
        VERBS[verb](side)
    else:
        with pytest.raises(IllegalTransition, match="MessageSent"):
            VERBS[verb](side)
        assert side.outputs() == b""


def test_the_other_verbs_have_their_states_too() -> None:
    for state in Serving:
        if state is not Serving.AUTHENTICATING:
            with pytest.raises(IllegalTransition):
                server_in(state).accept("x")
            with pytest.raises(IllegalTransition):
                server_in(state).reject(NOW)
    for client_state in Connecting:
        if client_state is not Connecting.IDLE:
            with pytest.raises(IllegalTransition):
                client_in(client_state).connect("x", now=NOW)
        if client_state is not Connecting.OPEN:
            with pytest.raises(IllegalTransition):
                client_in(client_state).disconnect(NOW)


def test_the_tables_are_whole() -> None:
    assert set(SERVER) == set(Serving)
    assert set(CLIENT) == set(Connecting)
    for table in (SERVER, CLIENT):
        assert {Fault, Message, Error} <= set(table_events(table))
        assert all(target in table for row in table.values() for target in row.values())


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
    assert server.state is Serving.AUTHENTICATING
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
    assert server.fault is None


def test_a_client_connects_and_sees_its_session() -> None:
    # SA-02, SA-09, SA-11, SA-26
    client = Client()
    client.connect("me", "secret", now=NOW, headers={"x": "y"})
    assert client.outputs() == crlf(
        "CONNECT\nclient-id::me\nclient-passcode::secret\nframing::length\n"
        "message-octets::1048576\nx::y\n\n^@"
    )
    (event,) = client.receive(
        crlf(
            f"CONNECTED\nsession-id::{SESSION}\nsession-expiry::Tue, 01 Jun 2017 21:47:38 GMT\n"
            "framing::length\nz::w\n\n"
        ),
        NOW,
    )
    # the source's own example has a wrong weekday
    assert event == SessionGranted(SESSION, 1496353658.0, {"z": "w"})
    assert SESSION not in repr(event)
    assert client.lengths


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("framed", [True, False])
def test_lengths_need_both_sides_and_a_stream(ours: bool, framed: bool) -> None:
    # SA-26
    assert open_server(lengths=ours, framed=framed).lengths is (ours and not framed)
    assert open_client(lengths=ours, framed=framed).lengths is (ours and not framed)
    server = Server(framed=True)
    server.receive([vectors.CONNECT], NOW)
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
    "date",
    ["", "yesterday", "Tue, 31 Feb 2017 21:47:38 GMT", "Tue, 01 Jun 2017 25:47:38 GMT",
     "Tue, 01 Juni 2017 21:47:38 GMT", "Tue, 01 Foo 2017 21:47:38 GMT",
     "Tue, 01 Jun 2017 21:47:38 CET", "Tue, 01 Jun 2017 21:47:99 GMT",
     "Tue, 01 Jun 0000 21:47:38 GMT"],
)  # fmt: skip
def test_a_date_that_is_none_is_counted_and_the_session_lives(date: str) -> None:
    # SA-11
    client = Client()
    client.connect("me", now=NOW)
    octets = encode(Connected({"session-id": SESSION, "session-expiry": date}))
    (event,) = client.receive(octets, NOW)
    assert isinstance(event, SessionGranted)
    assert event.expires is None
    assert client.counters.odd_expiries == 1


def test_connected_without_a_session_id_is_no_answer() -> None:
    # SA-09, SA-10
    for headers in ({"a": "b"}, {"session-id": ""}):
        client = Client()
        client.connect("me", now=NOW)
        (fault,) = client.receive(encode(Connected(headers)), NOW)
        assert isinstance(fault, Fault)
        assert fault.reason == "session-id"


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
        assert event == ConnectRefused("403", "Access Forbidden")
        assert client.state is Connecting.IDLE
        assert server.closed is (attempt == 4)
    assert server.receive(vectors.CONNECT, NOW) == []


def test_a_second_connect_is_refused_while_one_waits_and_ever_after() -> None:
    # SA-27
    for state in (Serving.AUTHENTICATING, Serving.OPEN, Serving.DRAINING):
        server = server_in(state)
        assert isinstance(server.receive(vectors.CONNECT, NOW)[-1], Fault)
        assert codes(server) == ["400"]
        assert server.closed


@pytest.mark.parametrize(
    "octets",
    [
        vectors.HOLA,
        vectors.DISCONNECT,
        vectors.FORBIDDEN,
        b"GET / HTTP/1.1\r\n\r\n",
        b"MESSAGE\r\nsession-id::x\r\nmsg-id::1\r\n\r\nendless",
    ],
)
def test_before_connect_nothing_else_is_read(octets: bytes) -> None:
    # SA-27; frames before authentication: a broker's hole (FAULTS)
    server = Server()
    server.connection_made(NOW)
    (fault,) = server.receive(octets + vectors.CONNECT, NOW)
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
    assert [type(event) for event in client.advance(NOW + 10)] == [Fault]
    assert due(open_server(), NOW + 11)[1] is None


def test_a_refusal_gives_new_time() -> None:
    # SA-27
    server = server_in(Serving.AUTHENTICATING)
    server.reject(NOW + 9)
    assert due(server, NOW + 9)[1] == NOW + 19


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
    (event,) = server.receive(vectors.FORBIDDEN, NOW)
    assert event == ErrorReceived("403", b"Access Forbidden", {"error-code": "403"})
    (fault,) = server.receive(crlf("ERROR\nsession-id::other\n\n^@"), NOW)
    assert isinstance(fault, Fault)


def test_a_session_expires() -> None:
    # SA-11
    server = open_server(expires=NOW + 100)
    assert due(server, NOW)[1] == NOW + 100
    assert due(server, NOW + 100) == ([SessionExpired()], None)
    assert server.outputs() == vectors.DISCONNECTING + b"\0"
    assert server.closed


def test_an_expired_session_reads_nothing_more() -> None:
    # SA-10: even if the clock was not looked at meanwhile
    for frame in (vectors.HOLA, vectors.DISCONNECT):
        server = open_server(expires=NOW + 100)
        (fault,) = server.receive(frame, NOW + 100)
        assert isinstance(fault, Fault)
        assert fault.reason == "session-expired"
        assert codes(server) == ["401"]
    client = open_client()
    client.expires = NOW
    client.receive(vectors.HOLA, NOW + 1)  # only the server ends a session
    assert not client.closed


def test_disconnecting_ends_either_side_at_once() -> None:
    # SA-13
    for side in (open_server(), open_client()):
        assert side.receive(vectors.DISCONNECTING + vectors.HOLA, NOW) == [DisconnectingReceived()]
        assert side.closed
        assert side.outputs() == b""
    for side in (open_server(), open_client()):
        side.stop()
        assert side.outputs() == vectors.DISCONNECTING + b"\0"
        side.stop()
        assert side.outputs() == b""
    server = Server()
    server.stop()
    assert (server.outputs(), server.closed) == (b"", True)


# ── DISCONNECT ──────────────────────────────────────────────────────────────────────────────────


def test_disconnect_waits_for_the_answers() -> None:
    # SA-12
    server, client = open_server(), open_client()
    ids = [client.request(b"x", n, NOW) for n in range(3)]
    client.disconnect(NOW)
    events = server.receive(client.outputs(), NOW)
    assert isinstance(events[-1], DisconnectReceived)
    assert server.state is Serving.DRAINING
    server.answer(ids[0], b"a")
    server.fail(ids[1], 500, "b")
    assert not server.closed
    server.acknowledge(ids[2:])
    assert server.closed
    events = client.receive(server.outputs(), NOW)
    assert [type(e) for e in events] == [
        ResponsesReceived,
        RequestFailed,
        ResponsesReceived,
        DisconnectingReceived,
    ]
    assert client.closed


def test_disconnect_without_work_closes_at_once() -> None:
    # SA-12
    server = open_server()
    assert server.receive(vectors.DISCONNECT, NOW) == [DisconnectReceived()]
    assert server.closed
    assert server.outputs() == vectors.DISCONNECTING + b"\0"


def test_disconnect_waits_for_send_only_messages_in_work() -> None:
    # SA-12
    server = open_server()
    server.receive(vectors.SEND_ONLY + vectors.DISCONNECT, NOW)
    assert not server.closed
    server.settle(1)
    assert server.closed


def test_after_disconnect_no_further_message_is_taken() -> None:
    # SA-12: but answers to our own requests are, which the work may need
    server = open_server()
    server.receive(vectors.HOLA + part(b"half", msg_id="h"), NOW)
    id = server.request(b"?", "w", NOW)
    server.outputs()
    events = server.receive(
        vectors.DISCONNECT
        + vectors.HELLO
        + msg(b"other half", msg_id="h")
        + msg(b"!", ref_msg_id=id)
        + vectors.DISCONNECT,
        NOW,
    )
    assert flat(events)[-2:] == [("response", id, "w", {}, b"!", False), DisconnectReceived()]
    assert requests(events[:-2]) == []
    assert [e[:2] for e in errors(server)] == [("503", "h"), ("503", "123123")]
    server.answer("000001", b"")
    assert server.closed


def test_the_drain_is_bounded() -> None:
    # SA-12
    server = open_server()
    server.receive(vectors.HOLA + vectors.DISCONNECT, NOW)
    assert due(server, NOW)[1] == NOW + 30
    server.receive(vectors.DISCONNECT, NOW + 20)  # asking again gives no more time
    assert due(server, NOW + 30) == ([DrainTimedOut()], None)
    assert server.outputs() == vectors.DISCONNECTING + b"\0"


def test_a_server_drains_of_its_own_accord() -> None:
    # SA-12
    server = open_server()
    server.receive(vectors.HOLA, NOW)
    server.drain(NOW)
    assert server.state is Serving.DRAINING
    server.drain(NOW)
    server.answer("000001", b"")
    assert server.closed
    server = Server()
    server.drain(NOW)
    assert server.closed
    server = open_server(expires=NOW + 10)
    server.receive(vectors.HOLA, NOW)
    server.drain(NOW)
    assert server.advance(NOW + 10) == [SessionExpired()]


# ── what the sink says, and time ────────────────────────────────────────────────────────────────


def test_what_never_will_be_safe_fails_its_requests_and_ends_the_session() -> None:
    # SA-16
    server = open_server()
    first, second = (
        server.receive(msg(b"x", msg_id=id), NOW)[0].place  # type: ignore[union-attr]
        for id in ("1", "2")
    )
    server.made_safe(first, NOW)
    server.not_safe(second, NOW)
    assert errors(server) == [("503", "2", b"not stored")]
    assert server.finished
    with pytest.raises(ValueError, match="no event had the place"):
        server.made_safe(first, NOW)
    with pytest.raises(ValueError, match="no event had the place"):
        server.not_safe(second, NOW)


def test_what_was_answered_before_does_not_fail_with_the_others() -> None:
    # SA-16
    server = open_server()
    (event,) = server.receive(msg(b"x", msg_id="1") + msg(b"x", msg_id="2"), NOW)
    server.acknowledge(["1"])
    server.outputs()
    server.not_safe(event.place, NOW)  # type: ignore[union-attr]
    assert errors(server) == [("503", "2", b"not stored")]


def test_silence_means_nothing_while_the_peer_is_not_read() -> None:
    # SA-27
    server = open_server()
    server.receive(msg(b"x", final=False, msg_id="1", msg_more="yes") + NUDGE, NOW)
    server.paused(NOW + 1)
    assert server.advance(NOW + 100) == []
    assert server.deadline is None
    server.resumed(NOW + 110)
    assert server.deadline == NOW + 170
    assert server.advance(NOW + 170) == [MessageAbandoned("1")]


@pytest.mark.parametrize("state", list(Serving), ids=lambda state: state.name)
def test_a_client_which_will_send_no_more_is_answered_if_it_can_be(state: Serving) -> None:
    server = server_in(state)
    server.ended(NOW)
    kept = state in (Serving.OPEN, Serving.DRAINING) and bool(server.unanswered)
    assert server.finished is not kept


def test_what_no_hook_looks_at_is_answered_when_it_is_safe() -> None:
    # SA-16, SA-12: the caller has nothing more to do with it, and an orderly end does not wait
    leave = encode(Disconnect({"session-id": SESSION}))
    for unhooked in ((), (REQUEST,), (SEND_ONLY,), (REQUEST, SEND_ONLY)):
        server = open_server(unhooked=unhooked)
        octets = msg(b"a", msg_id="1") + msg(b"b", msg_id="2", send_only="yes") + leave
        for event in server.receive(octets, NOW):
            if isinstance(event, MessagesReceived):
                told = server.made_safe(event.place, NOW)
                assert told == ([] if event.kind in unhooked else [MessagesSafe(event)])
        answered = [dict(r.headers).get("ref-msg-id") for r in sent(server) if isinstance(r, Read)]
        assert ("1" in answered) is (REQUEST in unhooked)
        assert server.finished is (len(unhooked) == 2)


def test_what_is_not_whole_is_held() -> None:
    # NB-02: octets of frames, and of messages whose other parts have not come
    server = open_server()
    assert server.whole
    assert server.held == 0
    server.receive(msg(b"x" * 50_000, final=False, msg_id="1", msg_more="yes"), NOW)
    assert not server.whole
    assert 50_000 <= server.held < 51_000
    server.receive(NUDGE[:-1], NOW)
    assert 50_000 <= server.held < 51_000
    server.receive(NUDGE[-1:] + msg(b"y", msg_id="1"), NOW)
    assert server.whole
    assert server.held == 0
    server.receive(msg(b"z" * (3 << 19), msg_id="2")[:-1], NOW)
    assert (1 << 20) - 20_000 < server.held < (1 << 20) + 20_000  # what is above the limit is not
    server.receive(b"\0", NOW)
    assert server.held == 0


@pytest.mark.parametrize("framed", [False, True])
def test_both_sides_say_how_much_they_take(framed: bool) -> None:
    # HO-01: so nothing is sent which would be cut, and nothing refused which would be taken
    client = Client(limits(message_octets=5000), framed=framed)
    server = Server(limits(message_octets=300), framed=framed)
    client.connect("me", now=NOW)
    (asked,) = server.receive(client.outputs(), NOW)
    assert asked == ConnectReceived("me", None, {})
    server.accept(SESSION)
    (granted,) = client.receive(server.outputs(), NOW)
    assert granted == SessionGranted(SESSION, None, {})
    with pytest.raises(LimitExceeded, match="message-octets=300"):
        client.send_only(b"x" * 300)
    client.send_only(b"x" * 100)
    server.send_only(b"x" * 4000)
    with pytest.raises(LimitExceeded, match="message-octets=5000"):
        server.send_only(b"x" * 5000)
    assert flat(client.receive(server.outputs(), NOW)) == [(SEND_ONLY, "1", {}, b"x" * 4000, False)]


@pytest.mark.parametrize("said", ["", "x", "-1", "1" * 19, "\N{ARABIC-INDIC DIGIT FIVE}", None])
def test_who_says_nothing_of_it_is_taken_to_be_like_us(said: str | None) -> None:
    # HO-01: and a terminal is not answered with headers which nobody asked for
    server = Server(limits(message_octets=300))
    own = {} if said is None else {"message-octets": said}
    (asked,) = server.receive(encode(Connect({"client-id": "me", **own})), NOW)
    assert asked == ConnectReceived("me", None, {})
    server.accept(SESSION)
    assert b"message-octets" not in server.outputs()
    with pytest.raises(LimitExceeded, match="message-octets=300"):
        server.send_only(b"x" * 300)
