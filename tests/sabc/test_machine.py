"""Both machines: tables, sessions, answers, parts, limits, times; tests read as transcripts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.core.machine import events as table_events
from twisted_msgproto.sabc.events import (
    ConnectReceived,
    ConnectRefused,
    DisconnectingReceived,
    DisconnectReceived,
    DrainTimedOut,
    ErrorReceived,
    Event,
    FrameDiscarded,
    FrameRefused,
    MessageAbandoned,
    MessagesReceived,
    RequestFailed,
    RequestsTimedOut,
    ResponsesReceived,
    SessionExpired,
    SessionGranted,
)
from twisted_msgproto.sabc.machine import Client, Server
from twisted_msgproto.sabc.tables import CLIENT, SERVER, Connecting, Serving
from twisted_msgproto.sabc.wire import (
    SESSION_LIMITS,
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
from .vectors import SESSION, Read, crlf, cut, decode

NOW = 1_000_000.0
NUDGE = encode(Error({"session-id": SESSION}, b""))
"""Something of this session, which shows that the part before it has ended."""


def limits(**changes: float) -> Limits:
    return Limits.of(SESSION_LIMITS).replace(
        {name.replace("_", "-"): value for name, value in changes.items()}
    )


def msg(body: bytes = b"", *, final: bool = True, session: str | None = SESSION, **h: str) -> bytes:
    """A MESSAGE as a peer without lengths writes it."""
    named = {name.replace("_", "-"): value for name, value in h.items()}
    own = {} if session is None else {"session-id": session}
    return encode(Message(own | named, body, final=final))


def sent(side: Server | Client) -> list[Read | Fault]:
    """What a side wrote, read back."""
    return decode([side.data_to_send()], lengths=side.lengths, part_octets=1 << 20)


def errors(side: Server | Client) -> list[tuple[str | None, str | None, bytes]]:
    """(code, ref-msg-id, body) of the ERRORs a side wrote."""
    return [
        (dict(r.headers).get("error-code"), dict(r.headers).get("ref-msg-id"), r.body)
        for r in sent(side)
        if isinstance(r, Read) and r.command == "ERROR"
    ]


def codes(side: Server | Client) -> list[str | None]:
    return [code for code, _, _ in errors(side)]


def open_server(*, lengths: bool = False, expires: float | None = None, **options: Any) -> Server:
    server = Server(**options)
    server.connection_made(NOW)
    framing = {"framing": "length"} if lengths else {}
    octets = encode(Connect({"client-id": "me", **framing}))
    (event,) = (
        server.receive_frame(octets, NOW)
        if options.get("framed")
        else server.receive_data(octets, NOW)
    )
    assert isinstance(event, ConnectReceived)
    server.accept(SESSION, expires=expires)
    server.data_to_send()
    return server


def open_client(*, lengths: bool = False, framed: bool = False, **options: Any) -> Client:
    client = Client(framed=framed, **options)
    client.connect("me", now=NOW)
    client.data_to_send()
    framing = {"framing": "length"} if lengths else {}
    octets = encode(Connected({"session-id": SESSION, **framing}))
    receive = client.receive_frame if framed else client.receive_data
    assert [type(event) for event in receive(octets, NOW)] == [SessionGranted]
    return client


def flat(events: list[Event]) -> list[object]:
    """Events one by one: where columns begin and end is free."""
    found: list[object] = []
    for event in events:
        if isinstance(event, MessagesReceived):
            cuts = event.truncated or [False] * len(event.ids)
            rows = zip(event.ids, event.fields, event.bodies, cuts, strict=True)
            found += [(event.kind, id, dict(fields), body, t) for id, fields, body, t in rows]
            assert event.octets == sum(map(len, event.bodies))
        elif isinstance(event, ResponsesReceived):
            cuts = event.truncated or [False] * len(event.ids)
            rows = zip(event.ids, event.waiters, event.fields, event.bodies, cuts, strict=True)
            found += [("response", id, w, dict(f), body, t) for id, w, f, body, t in rows]
        else:
            found.append(event)
    return found


def requests(events: list[Event]) -> list[tuple[str, bytes, bool]]:
    return [(row[1], row[3], row[4]) for row in flat(events) if isinstance(row, tuple)]


# ── The tables ──────────────────────────────────────────────────────────────────────────────────


def server_in(state: Serving) -> Server:
    server = Server()
    server.connection_made(NOW)
    if state is Serving.CLOSED:
        server.connection_lost()
    if state in (Serving.AWAITING, Serving.CLOSED):
        return server
    server.receive_data(vectors.CONNECT, NOW)
    if state is Serving.AUTHENTICATING:
        return server
    server.accept(SESSION)
    if state is Serving.DRAINING:
        server.receive_data(msg(b"in work", msg_id="work"), NOW)
        server.receive_data(vectors.DISCONNECT, NOW)
    server.data_to_send()
    return server


def client_in(state: Connecting) -> Client:
    client = Client()
    if state is Connecting.CLOSED:
        client.connection_lost()
    if state in (Connecting.IDLE, Connecting.CLOSED):
        return client
    client.connect("me", now=NOW)
    if state is Connecting.WAITING:
        return client
    client.receive_data(vectors.CONNECTED, NOW)
    if state is Connecting.DRAINING:
        client.disconnect()
    client.data_to_send()
    return client


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
    events = server.receive_data(FRAMES[kind], NOW)
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
    client.data_to_send()
    events = client.receive_data(FRAMES[kind], NOW)
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
    side.data_to_send()
    allowed = state in (Serving.OPEN, Serving.DRAINING, Connecting.OPEN)
    if allowed:
        VERBS[verb](side)
    else:
        with pytest.raises(IllegalTransition, match="MessageSent"):
            VERBS[verb](side)
        assert side.data_to_send() == b""


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
                client_in(client_state).disconnect()


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
    (event,) = server.receive_data(
        crlf("CONNECT\nclient-id::me\nclient-passcode::secret\nx::y\nframing::length\n\n"), NOW
    )
    assert event == ConnectReceived("me", "secret", {"x": "y"})
    assert "secret" not in repr(event)
    assert server.state is Serving.AUTHENTICATING
    server.accept(SESSION, expires=NOW + 60.5, headers={"z": "w"})
    assert server.data_to_send() == crlf(
        f"CONNECTED\nsession-id::{SESSION}\nsession-expiry::Mon, 12 Jan 1970 13:47:40 GMT\n"
        "framing::length\nz::w\n\n^@"
    )
    assert server.lengths


def test_a_client_connects_and_sees_its_session() -> None:
    # SA-02, SA-09, SA-11, SA-26
    client = Client()
    client.connect("me", "secret", now=NOW, headers={"x": "y"})
    assert client.data_to_send() == crlf(
        "CONNECT\nclient-id::me\nclient-passcode::secret\nframing::length\nx::y\n\n^@"
    )
    (event,) = client.receive_data(
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
    server.receive_frame(vectors.CONNECT, NOW)
    server.accept(SESSION)
    assert b"framing" not in server.data_to_send()
    client = Client(framed=True)
    client.connect("me", now=NOW)
    assert b"framing" not in client.data_to_send()


def test_connect_without_headers_is_anonymous() -> None:
    # SA-02, SA-07
    server = Server()
    assert server.receive_data(b"CONNECT\r\n\r\n", NOW) == [ConnectReceived(None, None, {})]
    server = Server(authenticates=True)
    (fault,) = server.receive_data(b"CONNECT\r\n\r\n", NOW)
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
    (event,) = client.receive_data(octets, NOW)
    assert isinstance(event, SessionGranted)
    assert event.expires is None
    assert client.counters.odd_expiries == 1


def test_connected_without_a_session_id_is_no_answer() -> None:
    # SA-09, SA-10
    for headers in ({"a": "b"}, {"session-id": ""}):
        client = Client()
        client.connect("me", now=NOW)
        (fault,) = client.receive_data(encode(Connected(headers)), NOW)
        assert isinstance(fault, Fault)
        assert fault.reason == "session-id"


def test_a_refusal_says_nothing_and_the_client_may_try_again_but_not_for_ever() -> None:
    # SA-08, SA-27
    server, client = Server(limits(login_attempts=3)), Client()
    server.connection_made(NOW)
    for attempt in range(3):
        client.connect("me", "wrong", now=NOW)
        server.receive_data(client.data_to_send(), NOW)
        assert not server.closed
        server.reject(NOW)
        (event,) = client.receive_data(server.data_to_send(), NOW)
        assert event == ConnectRefused("403", "Access Forbidden")
        assert client.state is Connecting.IDLE
        assert server.closed is (attempt == 2)
    assert server.receive_data(vectors.CONNECT, NOW) == []


def test_a_second_connect_is_refused_while_one_waits_and_ever_after() -> None:
    # SA-27
    for state in (Serving.AUTHENTICATING, Serving.OPEN, Serving.DRAINING):
        server = server_in(state)
        assert isinstance(server.receive_data(vectors.CONNECT, NOW)[-1], Fault)
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
    (fault,) = server.receive_data(octets + vectors.CONNECT, NOW)
    assert isinstance(fault, Fault)
    assert codes(server) == ["401"]


def test_connect_has_to_come_in_time() -> None:
    # SA-27
    server = Server()
    server.connection_made(NOW)
    assert server.tick(NOW) == NOW + 10
    assert server.tick(NOW + 10) is None
    (fault,) = server.take_due()
    assert isinstance(fault, Fault)
    assert codes(server) == ["408"]
    assert server.closed
    client = Client()
    client.connect("me", now=NOW)
    assert client.tick(NOW + 1) == NOW + 10
    client.tick(NOW + 10)
    assert [type(event) for event in client.take_due()] == [Fault]
    assert open_server().tick(NOW + 11) is None


def test_a_refusal_gives_new_time() -> None:
    # SA-27
    server = server_in(Serving.AUTHENTICATING)
    server.reject(NOW + 9)
    assert server.tick(NOW + 9) == NOW + 19


# ── Sessions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("session", [None, "", "x", SESSION + "x", SESSION[:-1], "ß"])
@pytest.mark.parametrize("command", ["MESSAGE", "DISCONNECT", "DISCONNECTING"])
def test_a_wrong_session_id_closes(session: str | None, command: str) -> None:
    # SA-10
    server = open_server()
    head = "" if session is None else f"session-id::{session}\r\n"
    (fault,) = server.receive_data(f"{command}\r\n{head}x::y\r\n\r\n\0".encode(), NOW)
    assert isinstance(fault, Fault)
    assert fault.reason == "session-id"
    assert SESSION not in str(fault)
    assert codes(server) == ["401"]


def test_an_error_may_lack_the_session_but_not_have_another() -> None:
    # SA-10
    server = open_server()
    (event,) = server.receive_data(vectors.FORBIDDEN, NOW)
    assert event == ErrorReceived("403", b"Access Forbidden", {"error-code": "403"})
    (fault,) = server.receive_data(crlf("ERROR\nsession-id::other\n\n^@"), NOW)
    assert isinstance(fault, Fault)


def test_a_session_expires() -> None:
    # SA-11
    server = open_server(expires=NOW + 100)
    assert server.tick(NOW) == NOW + 100
    assert server.tick(NOW + 100) is None
    assert server.take_due() == [SessionExpired()]
    assert server.data_to_send() == vectors.DISCONNECTING + b"\0"
    assert server.closed


def test_an_expired_session_reads_nothing_more() -> None:
    # SA-10: even if the clock was not looked at meanwhile
    for frame in (vectors.HOLA, vectors.DISCONNECT):
        server = open_server(expires=NOW + 100)
        (fault,) = server.receive_data(frame, NOW + 100)
        assert isinstance(fault, Fault)
        assert fault.reason == "session-expired"
        assert codes(server) == ["401"]
    client = open_client()
    client.expires = NOW
    client.receive_data(vectors.HOLA, NOW + 1)  # only the server ends a session
    assert not client.closed


def test_disconnecting_ends_either_side_at_once() -> None:
    # SA-13
    for side in (open_server(), open_client()):
        assert side.receive_data(vectors.DISCONNECTING + vectors.HOLA, NOW) == [
            DisconnectingReceived()
        ]
        assert side.closed
        assert side.data_to_send() == b""
    for side in (open_server(), open_client()):
        side.stop()
        assert side.data_to_send() == vectors.DISCONNECTING + b"\0"
        side.stop()
        assert side.data_to_send() == b""
    server = Server()
    server.stop()
    assert (server.data_to_send(), server.closed) == (b"", True)


# ── Requests, answers, errors ───────────────────────────────────────────────────────────────────


def test_a_request_is_answered() -> None:
    # SA-14, SA-16: the examples of the source
    server = open_server()
    events = server.receive_data(vectors.HOLA + vectors.HELLO, NOW)
    assert flat(events) == [
        ("request", "000001", {}, b"Hola", False),
        ("request", "123123", {}, b"Hello", False),
    ]
    assert len(events) == 1
    assert server.unanswered == 2
    server.answer("000001", b"Mundo!!!")
    assert server.data_to_send() == vectors.MUNDO
    server.answer("123123", b"OK")
    assert server.data_to_send() == vectors.OK
    assert server.unanswered == 0


def test_an_acknowledgement_is_an_empty_answer() -> None:
    # SA-16
    for lengths, framed in ((False, False), (True, False), (False, True)):
        server = open_server(lengths=lengths, framed=framed)
        client = open_client(lengths=lengths, framed=framed)
        ids = [client.request(b"x", n, NOW) for n in range(3)]
        if framed:
            for frame in client.frames_to_send():
                server.receive_frame(frame, NOW)
            server.acknowledge(ids)
            events = [e for f in server.frames_to_send() for e in client.receive_frame(f, NOW)]
        else:
            server.receive_data(client.data_to_send(), NOW)
            server.acknowledge(ids)
            events = client.receive_data(server.data_to_send(), NOW)
        assert flat(events) == [("response", id, n, {}, b"", False) for n, id in enumerate(ids)]


def test_send_only_wants_no_answer() -> None:
    # SA-17
    server = open_server()
    events = server.receive_data(vectors.SEND_ONLY, NOW)
    assert flat(events) == [("send-only", "888999", {}, b"OK", False)]
    assert server.unanswered == 0
    with pytest.raises(ValueError, match="waits for no answer"):
        server.answer("888999", b"")
    events = server.receive_data(msg(b"", msg_id="1", send_only="YES"), NOW)
    assert flat(events) == [("request", "1", {}, b"", False)]
    client = open_client()
    client.send_only(b"OK")
    assert client.data_to_send() == vectors.SEND_ONLY.replace(b"888999", b"1")
    assert client.outstanding == 0


def test_kinds_keep_their_order() -> None:
    # SA-17: a run of one kind is one event
    server = open_server()
    octets = b"".join(
        msg(b"x", msg_id=str(n), **({"send_only": "yes"} if n in (2, 3) else {})) for n in range(6)
    )
    events = server.receive_data(octets, NOW)
    assert [(e.kind, e.ids) for e in events if isinstance(e, MessagesReceived)] == [
        ("request", ["0", "1"]),
        ("send-only", ["2", "3"]),
        ("request", ["4", "5"]),
    ]


def test_free_headers_pass_through() -> None:
    # SA-06
    server = open_server()
    events = server.receive_data(msg(b"x", msg_id="1", colour="red", content_length="7"), NOW)
    assert flat(events) == [("request", "1", {"colour": "red", "content-length": "7"}, b"x", False)]
    server.answer("1", b"y", headers={"size": "XL"})
    (answer,) = sent(server)
    assert isinstance(answer, Read)
    assert ("size", "XL") in answer.headers


@pytest.mark.parametrize(
    "name",
    ["client-id", "client-passcode", "session-id", "session-expiry", "msg-id", "ref-msg-id",
     "send-only", "msg-more", "error-code"],
)  # fmt: skip
def test_an_application_sends_no_reserved_header(name: str) -> None:
    # SA-06
    server, client = open_server(), open_client()
    server.receive_data(vectors.HOLA, NOW)
    for verb in (
        lambda: client.request(b"", 1, NOW, headers={name: "x"}),
        lambda: client.send_only(b"", headers={name: "x"}),
        lambda: client.open_message(1, NOW, headers={name: "x"}),
        lambda: server.answer("000001", b"", headers={name: "x"}),
        lambda: server.send_error(500, "", headers={name: "x"}),
        lambda: Client().connect("me", now=NOW, headers={name: "x"}),
        lambda: server_in(Serving.AUTHENTICATING).accept("s", headers={name: "x"}),
    ):
        with pytest.raises(ValueError, match="belongs to the protocol"):
            verb()
    assert client.data_to_send() == server.data_to_send() == b""
    assert client.outstanding == 0
    assert server.unanswered == 1


def test_framing_and_lengths_are_the_protocols_too() -> None:
    # SA-26
    with pytest.raises(ValueError, match="framing"):
        Client().connect("me", now=NOW, headers={"framing": "x"})
    with pytest.raises(ValueError, match="content-length"):
        open_client(lengths=True).send_only(b"", headers={"content-length": "5"})
    open_client().send_only(b"", headers={"content-length": "5"})


@pytest.mark.parametrize("value", ["a::b", "a\rb", "a\nb", "a\0b", "x\r\nmsg-id::7"])
def test_an_application_cannot_inject(value: str) -> None:
    # SA-03
    client = open_client()
    with pytest.raises(ValueError, match="header"):
        client.request(b"", 1, NOW, headers={"x": value})
    with pytest.raises(ValueError, match="header"):
        Client().connect(value, now=NOW)
    with pytest.raises(ValueError, match="header"):
        Client().connect("me", value, now=NOW)
    with pytest.raises(ValueError, match="header"):
        server_in(Serving.AUTHENTICATING).accept(value)
    assert client.data_to_send() == b""


def test_headers_above_the_bounds_are_not_sent() -> None:
    # SA-27
    client = open_client()
    for headers in (
        {f"h{n}": "" for n in range(27)},
        {"h": "x" * 1022},
        {f"h{n}": "x" * 900 for n in range(8)},
    ):
        with pytest.raises(LimitExceeded):
            client.request(b"", 1, NOW, headers=headers)
    client.request(b"", 1, NOW, headers={f"h{n}": "" for n in range(26)})
    open_server().receive_data(client.data_to_send(), NOW)


SEMANTIC = {
    "client-id": (msg(b"x", msg_id="1", client_id="me"), "1"),
    "client-passcode": (msg(b"x", msg_id="1", client_passcode="me"), "1"),
    "session-expiry": (msg(b"x", msg_id="1", session_expiry="me"), "1"),
    "error-code": (msg(b"x", msg_id="1", error_code="1"), "1"),
    "neither id": (msg(b"x", other="1"), None),
    "both ids": (msg(b"x", msg_id="1", ref_msg_id="2"), "1"),
    "response send-only": (msg(b"x", ref_msg_id="1", send_only="yes"), None),
    "misplaced on DISCONNECT": (crlf(f"DISCONNECT\nsession-id::{SESSION}\nmsg-id::1\n\n"), None),
    "misplaced on DISCONNECTING": (
        crlf(f"DISCONNECTING\nsession-id::{SESSION}\nclient-id::1\n\n"),
        None,
    ),
}


@pytest.mark.parametrize("name", SEMANTIC)
def test_a_frame_that_makes_no_sense_costs_that_frame(name: str) -> None:
    # SA-06, SA-14, SA-17
    octets, ref = SEMANTIC[name]
    server = open_server()
    events = server.receive_data(octets + vectors.HOLA, NOW)
    assert isinstance(events[0], FrameRefused)
    assert requests(events) == [("000001", b"Hola", False)]
    ((code, named, text),) = errors(server)
    assert (code, named) == ("400", ref)
    assert 0 < len(text) <= 200
    assert server.counters.refused_frames == 1


def test_misplaced_headers_on_connect_and_connected() -> None:
    # SA-06
    server = Server()
    (event,) = server.receive_data(crlf("CONNECT\nsession-id::x\n\n"), NOW)
    assert isinstance(event, FrameRefused)
    assert server.state is Serving.AWAITING
    client = client_in(Connecting.WAITING)
    (event,) = client.receive_data(crlf("CONNECTED\nsession-id::x\nmsg-id::1\n\n"), NOW)
    assert isinstance(event, FrameRefused)
    assert client.state is Connecting.WAITING


def test_an_error_takes_any_header() -> None:
    # SA-06, SA-23
    server = open_server()
    octets = crlf("ERROR\nclient-id::x\nmsg-more::yes\nsend-only::yes\n\nwhat\n\n^@")
    (event,) = server.receive_data(octets, NOW)
    assert isinstance(event, ErrorReceived)
    assert (event.body, event.code) == (b"what", None)


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"HELLO\r\nx::y\r\n\r\n", "command"),
        (b"MESSAGE\r\n\r\nx\r\n\r\n\0", "headers-missing"),
        (b"MESSAGE\r\nx:y\r\n\r\n\0", "header-syntax"),
        (b"MESSAGE\r\nx::y::z\r\n\r\n\0", "header-syntax"),
        (b"MESSAGE\r\nx::\xff\r\n\r\n\0", "header-encoding"),
        (b"MESSAGE\r\nx::y\r\nx::y\r\n\r\n\0", "header-repeated"),
        (b"MESSAGE\r\n" + b"x" * 1025, "header-line-octets"),
        (b"CONNECTED\r\nsession-id::x\r\n\r\n", "wrong-command"),
    ],
)
def test_what_is_no_frame_closes(octets: bytes, reason: str) -> None:
    # SA-01, SA-02, SA-03, SA-04, SA-05, SA-06, SA-27
    server = open_server()
    events = server.receive_data(vectors.HOLA + octets + vectors.HELLO, NOW)
    assert requests(events) == [("000001", b"Hola", False)]
    assert isinstance(events[-1], Fault)
    assert events[-1].reason == reason
    (frame,) = sent(server)
    assert isinstance(frame, Read)
    assert dict(frame.headers) == {"session-id": SESSION, "error-code": "400"}  # SA-26
    assert server.closed


def test_an_id_is_used_once_while_it_waits() -> None:
    # SA-15
    server = open_server()
    events = server.receive_data(vectors.HOLA + msg(b"again", msg_id="000001"), NOW)
    assert requests(events) == [("000001", b"Hola", False)]
    assert errors(server) == [("400", "000001", b"this msg-id waits for its answer")]
    server.receive_data(msg(b"again", msg_id="000001", send_only="yes"), NOW)
    assert codes(server) == ["400"]
    server.answer("000001", b"")
    assert requests(server.receive_data(vectors.HOLA, NOW)) == [("000001", b"Hola", False)]


def test_the_id_spaces_of_the_two_sides_are_two() -> None:
    # SA-15
    server = open_server()
    id = server.request(b"you?", "waiter", NOW)
    assert requests(server.receive_data(msg(b"me", msg_id=id), NOW)) == [(id, b"me", False)]
    events = server.receive_data(msg(b"yes", ref_msg_id=id), NOW)
    assert flat(events) == [("response", id, "waiter", {}, b"yes", False)]


def test_a_response_to_nothing_is_ignored_and_counted() -> None:
    # SA-16
    server = open_server()
    assert server.receive_data(msg(b"?", ref_msg_id="7"), NOW) == []
    parts = msg(b"a", final=False, ref_msg_id="8", msg_more="yes") + msg(b"b", ref_msg_id="8")
    assert server.receive_data(parts, NOW) == []
    assert server.counters.unknown_responses == 2
    assert server.data_to_send() == b""


@pytest.mark.parametrize("header", ["ref-msg-id", "message-id", "msg-id"])
def test_an_error_fails_the_request_it_names(header: str) -> None:
    # SA-16, SA-23
    client = open_client()
    id = client.request(b"", "waiter", NOW)
    octets = encode(Error({"error-code": "500", header: id}, b"no"))
    assert client.receive_data(octets, NOW) == [RequestFailed(id, "waiter", "500", "no")]
    assert client.outstanding == 0
    (event,) = client.receive_data(octets, NOW)
    assert isinstance(event, ErrorReceived)


def test_a_failed_request_is_answered_with_an_error() -> None:
    # SA-16, SA-26
    for lengths in (False, True):
        server = open_server(lengths=lengths)
        client = open_client(lengths=lengths)
        id = client.request(b"", "waiter", NOW)
        server.receive_data(client.data_to_send(), NOW)
        server.fail(id, 500, "request failed")
        assert client.receive_data(server.data_to_send(), NOW) == [
            RequestFailed(id, "waiter", "500", "request failed")
        ]
        with pytest.raises(ValueError, match="waits for no answer"):
            server.fail(id, 500, "")


def test_a_client_sends_errors_too() -> None:
    # SA-24
    server, client = open_server(lengths=True), open_client(lengths=True)
    client.send_error("E-7", "it rains", headers={"where": "here"})
    (event,) = server.receive_data(client.data_to_send(), NOW)
    assert isinstance(event, ErrorReceived)
    assert (event.code, event.body, event.headers["where"]) == ("E-7", b"it rains", "here")
    assert not server.closed


def test_an_error_text_cannot_end_its_frame_early() -> None:
    # SA-21
    server = open_server()
    server.send_error(500, "a\r\n\r\n\0b")
    (frame,) = sent(server)
    assert isinstance(frame, Read)
    assert frame.body == b""


def test_answers_after_the_end_are_nobodys() -> None:
    # SA-13
    server = open_server()
    server.receive_data(vectors.HOLA, NOW)
    server.stop()
    server.data_to_send()
    server.answer("000001", b"x")
    server.acknowledge(["000001"])
    server.fail("000001", 500, "x")
    assert server.data_to_send() == b""


def test_acknowledging_nothing_or_twice() -> None:
    server = open_server()
    server.receive_data(vectors.HOLA, NOW)
    server.acknowledge([])
    server.acknowledge(["000001"])
    with pytest.raises(ValueError, match="waits for no answer"):
        server.acknowledge(["000001"])


def test_requests_time_out() -> None:
    # SA-27
    client = open_client()
    client.request(b"", "a", NOW)
    client.request(b"", "b", NOW, seconds=5)
    assert client.tick(NOW) == NOW + 5
    assert client.tick(NOW + 5) == NOW + 60
    assert client.take_due() == [RequestsTimedOut(["2"], ["b"])]
    assert client.tick(NOW + 60) is None
    assert client.take_due() == [RequestsTimedOut(["1"], ["a"])]
    client.receive_data(msg(b"late", ref_msg_id="1"), NOW + 61)
    assert client.counters.unknown_responses == 1


def test_a_forgotten_request_has_no_answer() -> None:
    # SA-16
    client = open_client()
    id = client.request(b"", "a", NOW)
    assert client.forget(id) == "a"
    assert client.forget(id) is None
    assert client.receive_data(msg(b"late", ref_msg_id=id), NOW) == []


def test_outstanding_requests_are_bounded_in_both_directions() -> None:
    # SA-27
    bound = limits(outstanding_requests=2)
    client, server = open_client(limits=bound), open_server(limits=bound)
    assert client.room == 2
    for _ in range(2):
        client.request(b"", 1, NOW)
    with pytest.raises(LimitExceeded):
        client.request(b"", 1, NOW)
    client.send_only(b"")
    server.receive_data(client.data_to_send(), NOW)
    events = server.receive_data(msg(b"", msg_id="9"), NOW)
    assert [type(event) for event in events] == [FrameRefused]
    assert errors(server)[0][:2] == ("429", "9")
    assert not server.closed


def test_who_waits_when_the_connection_is_lost() -> None:
    client = open_client()
    client.request(b"", "a", NOW)
    client.request(b"", "b", NOW)
    assert client.connection_lost() == [("1", "a"), ("2", "b")]
    assert client.closed
    assert client.tick(NOW) is None


def test_a_snapshot_shows_no_secret() -> None:
    # SA-10
    server = open_server(expires=NOW + 5)
    server.receive_data(vectors.HOLA, NOW)
    assert server.snapshot() == {
        "state": "OPEN",
        "framing": "mark",
        "expires": NOW + 5,
        "unanswered": 1,
        "outstanding": 0,
        "unfinished": 0,
    }
    assert open_client(lengths=True).snapshot()["framing"] == "length"
    assert open_client(framed=True).snapshot()["framing"] == "websocket"
    assert server.counters.as_dict()["requests"] == 1


# ── Parts ───────────────────────────────────────────────────────────────────────────────────────


def test_the_parts_of_the_example_become_one_message() -> None:
    # SA-18, SA-19
    server = open_server()
    events = server.receive_data(vectors.PART_1 + vectors.PART_2 + vectors.PART_3, NOW)
    assert requests(events) == [("123456", vectors.WHOLE_BODY, False)]
    server = open_server(framed=True)
    found = []
    for part in (vectors.PART_1, vectors.PART_2, vectors.PART_3):
        found += server.receive_frame(part, NOW)
    assert requests(found) == [("123456", vectors.WHOLE_BODY, False)]


def part(body: bytes, **headers: str) -> bytes:
    return msg(body, final=False, msg_more="yes", **headers)


def test_messages_interleave() -> None:
    # SA-19
    server = open_server()
    octets = (
        part(b"a", msg_id="1")
        + part(b"x", msg_id="2")
        + part(b"b", msg_id="1")
        + msg(b"between", msg_id="3")
        + msg(b"y", msg_id="2")
        + msg(b"c", msg_id="1")
    )
    assert requests(server.receive_data(octets, NOW)) == [
        ("3", b"between", False),
        ("2", b"xy", False),
        ("1", b"abc", False),
    ]


def test_send_only_on_the_first_part_is_enough() -> None:
    # SA-17
    server = open_server()
    events = server.receive_data(
        part(b"a", msg_id="1", send_only="yes", x="1") + msg(b"b", msg_id="1", y="2"), NOW
    )
    assert flat(events) == [("send-only", "1", {"x": "1", "y": "2"}, b"ab", False)]


def test_responses_come_in_parts_too() -> None:
    # SA-19
    client = open_client()
    id = client.request(b"", "w", NOW)
    events = client.receive_data(part(b"a", ref_msg_id=id) + msg(b"b", ref_msg_id=id), NOW)
    assert flat(events) == [("response", id, "w", {}, b"ab", False)]
    id = client.request(b"", "w", NOW)
    client.receive_data(part(b"a", ref_msg_id=id) + NUDGE, NOW)
    client.forget(id)
    assert client.receive_data(msg(b"b", ref_msg_id=id), NOW) == []
    assert client.counters.unknown_responses == 1


@pytest.mark.parametrize("framed", [True, False])
def test_a_frame_without_end_and_without_more_is_discarded(framed: bool) -> None:
    # SA-20
    server = open_server(framed=framed, lengths=not framed)

    def receive(body: bytes, final: bool, **headers: str) -> list[Event]:
        named = {"session-id": SESSION} | {k.replace("_", "-"): v for k, v in headers.items()}
        frame = Message(named, body, final=final)
        if framed:
            return server.receive_frame(encode(frame), NOW)
        return server.receive_data(encode(frame, lengths=True), NOW)

    assert receive(b"a", False, msg_id="1", msg_more="yes") == []
    first = receive(b"lost", False, msg_id="1")
    rest = receive(b"whole", True, msg_id="1")
    assert flat(first + rest) == [
        FrameDiscarded("1"),
        ("request", "1", {}, b"whole", False),
    ]
    assert server.counters.discarded_frames == 1
    assert server.data_to_send() == b""


def test_an_error_without_end_is_discarded() -> None:
    # SA-20, SA-23
    server = open_server(framed=True)
    assert server.receive_frame(b"ERROR\r\nmsg-more::yes\r\n\r\nx", NOW) == [FrameDiscarded(None)]


def test_unfinished_messages_are_bounded() -> None:
    # SA-19, SA-27: the 17th
    server = open_server()
    octets = b"".join(part(b"a", msg_id=str(n)) for n in range(17)) + msg(b"z", msg_id="x")
    events = server.receive_data(octets, NOW)
    assert requests(events) == [("x", b"z", False)]
    assert next(e for e in events if isinstance(e, FrameRefused)).id == "16"
    assert errors(server)[0][:2] == ("429", "16")
    # what is left of it does not pass for a message
    assert server.receive_data(part(b"b", msg_id="16") + msg(b"tail", msg_id="16"), NOW) == []
    for n in range(16):
        events = server.receive_data(msg(b"b", msg_id=str(n)), NOW)
        assert requests(events) == [(str(n), b"ab", False)]
    assert requests(server.receive_data(msg(b"new", msg_id="16"), NOW)) == [("16", b"new", False)]


def test_refused_messages_which_go_on_are_bounded_too() -> None:
    # SA-27
    server = open_server(limits=limits(unfinished_messages=2))
    octets = b"".join(part(b"a", msg_id=str(n)) for n in range(6)) + vectors.HOLA
    events = server.receive_data(octets, NOW)
    assert isinstance(events[-1], Fault)
    assert events[-1].reason == "unfinished-messages"
    assert codes(server) == ["429"] * 4
    server = open_server(limits=limits(unfinished_messages=1))
    octets = part(b"a", ref_msg_id="1") + part(b"a", ref_msg_id="2") + vectors.HOLA
    assert isinstance(server.receive_data(octets, NOW)[-1], Fault)


def test_a_refused_part_spoils_its_message() -> None:
    # SA-06, SA-19: half a message is no message
    server = open_server()
    octets = (
        part(b"a", msg_id="1")
        + part(b"b", msg_id="1", client_id="x")
        + part(b"c", msg_id="1")
        + msg(b"d", msg_id="1")
        + msg(b"new", msg_id="1")
    )
    events = server.receive_data(octets, NOW)
    assert requests(events) == [("1", b"new", False)]
    assert codes(server) == ["400"]
    events = server.receive_data(
        part(b"a", msg_id="2", error_code="x") + msg(b"b", msg_id="2"), NOW
    )
    assert requests(events) == []
    events = server.receive_data(part(b"no id") + vectors.HOLA, NOW)
    assert requests(events) == [("000001", b"Hola", False)]


def test_parts_that_stop_coming_are_given_up() -> None:
    # SA-27
    server = open_server()
    server.receive_data(part(b"a", msg_id="1") + msg(b"x", msg_id="2"), NOW)
    server.answer("2", b"")
    server.data_to_send()
    assert server.tick(NOW) == NOW + 60
    server.receive_data(part(b"b", msg_id="1") + msg(b"x", msg_id="3"), NOW + 50)
    assert server.tick(NOW + 60) == NOW + 110
    assert server.take_due() == []
    assert server.tick(NOW + 110) == NOW + 170
    assert server.take_due() == [MessageAbandoned("1")]
    assert errors(server)[0][:2] == ("408", "1")
    # late parts are no message of their own, until it is forgotten altogether
    assert server.receive_data(msg(b"c", msg_id="1"), NOW + 111) == []
    server.receive_data(part(b"a", msg_id="4") + msg(b"x", msg_id="5"), NOW + 120)
    server.tick(NOW + 180)
    assert server.tick(NOW + 240) is None
    assert server.snapshot()["unfinished"] == 0


def test_a_frame_that_stops_coming_is_given_up() -> None:
    # SA-27: nothing of it is delivered when it goes on
    server = open_server(lengths=True)
    octets = encode(Message({"session-id": SESSION, "msg-id": "1"}, b"abcdef"), lengths=True)
    server.receive_data(octets[:-8], NOW)
    assert server.tick(NOW) == NOW + 60
    assert server.tick(NOW + 60) == NOW + 120
    assert server.take_due() == [MessageAbandoned("1")]
    assert server.tick(NOW + 120) == NOW + 180
    assert server.receive_data(octets[-8:], NOW + 121) == []
    assert server.tick(NOW + 200) is None
    server.receive_data(b"ERROR\r\ncontent-length::5\r\n\r\n", NOW)
    server.tick(NOW + 60)
    assert server.take_due() == [MessageAbandoned(None)]
    client = open_client()
    id = client.request(b"", "w", NOW)
    client.receive_data(part(b"a", ref_msg_id=id) + NUDGE, NOW)
    client.data_to_send()
    client.tick(NOW + 60)
    assert errors(client)[-1][:2] == ("408", None)  # our ids are not the server's


# ── Sizes ───────────────────────────────────────────────────────────────────────────────────────

SMALL = limits(message_octets=300)


def test_the_worked_example_is_cut_at_its_limit() -> None:
    # SA-22: the invariant, not the picture
    stream = vectors.PART_1 + vectors.PART_2 + vectors.PART_3
    whole = None
    for chunks in ([stream], [stream[i : i + 1] for i in range(len(stream))], cut(stream, 170)):
        server = open_server(limits=SMALL)
        events = [e for chunk in chunks for e in server.receive_data(chunk, NOW)]
        ((id, body, truncated),) = requests(events)
        assert (id, truncated) == ("123456", True)
        assert vectors.WHOLE_BODY.startswith(body)
        assert len(stream) > 300 >= len(vectors.PART_1) + len(body)
        assert whole in (None, body)
        whole = body
        server.answer(id, b"half")
        (answer,) = sent(server)
        assert isinstance(answer, Read)
        assert ("truncated", "yes") in answer.headers
        assert server.snapshot()["unfinished"] == 0
        assert server.counters.truncated_messages == 1


@pytest.mark.parametrize("framing", ["mark", "length", "websocket"])
@pytest.mark.parametrize("size", range(150, 320, 7))
def test_a_message_is_cut_at_the_octet(framing: str, size: int) -> None:
    # SA-22: octets of the message up to the limit are kept, whatever they are
    lengths = framing == "length"
    server = open_server(limits=SMALL, lengths=lengths, framed=framing == "websocket")
    body = bytes(1 + n % 255 for n in range(size)).replace(b"\r", b"x")
    octets = encode(Message({"session-id": SESSION, "msg-id": "1"}, body), lengths=lengths)
    head = octets.index(body)
    receive = server.receive_frame if framing == "websocket" else server.receive_data
    ((_, got, truncated),) = requests(receive(octets, NOW))
    assert truncated is (len(octets) > 300)
    assert got == body[: 300 - head]


@pytest.mark.parametrize("place", range(8))
def test_no_character_is_cut(place: int) -> None:
    # SA-22
    for character in ("ä", "日", "🜚"):
        body = b"x" * place + character.encode() * 200
        server = open_server(limits=SMALL)
        ((_, got, truncated),) = requests(server.receive_data(msg(body, msg_id="1"), NOW))
        assert truncated
        text = got.decode()
        assert body.decode().startswith(text)
        assert len(body[: 300 - len(msg(b"", msg_id="1")) + 1]) - len(got) < len(character.encode())


def test_characters_are_whole_when_the_next_head_is_above_the_limit() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    first = part(b"x" * 205 + "日".encode()[:2], msg_id="1")
    assert 250 < len(first) <= 300
    events = server.receive_data(first + msg("日".encode()[2:], msg_id="1"), NOW)
    assert requests(events) == [("1", b"x" * 205, True)]


def test_a_complete_body_is_not_trimmed_when_only_its_end_mark_is_above() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    head = len(msg(b"", msg_id="1")) - 1
    body = b"x" * (299 - head) + b"\xe6"
    assert requests(server.receive_data(msg(body, msg_id="1"), NOW)) == [("1", body, True)]


def smuggling() -> bytes:
    """A body with a whole frame at the place of the cut."""
    fake = msg(b"smuggled", msg_id="666")[:-5]
    head = len(msg(b"", msg_id="1")) - 1
    return b"x" * (300 - head) + fake + b"y"


@pytest.mark.parametrize("framing", ["mark", "length", "websocket"])
def test_what_is_cut_off_is_never_read_as_frames(framing: str) -> None:
    # SA-22
    lengths, framed = framing == "length", framing == "websocket"
    server = open_server(limits=SMALL, lengths=lengths, framed=framed)
    frames = [
        encode(Message({"session-id": SESSION, "msg-id": id}, body), lengths=lengths)
        for id, body in (("1", smuggling()), ("2", b"next"))
    ]
    if framed:
        events = [e for frame in frames for e in server.receive_frame(frame, NOW)]
    else:
        stream = b"".join(frames)
        events = [
            e for i in range(len(stream)) for e in server.receive_data(stream[i : i + 1], NOW)
        ]
    assert [(id, t) for id, _, t in requests(events)] == [("1", True), ("2", False)]


def test_the_later_parts_of_a_cut_message_are_skipped() -> None:
    # SA-22: also after its answer, until its true end
    server = open_server(limits=SMALL)
    stream = part(b"x" * 250, msg_id="1") + part(b"y" * 20, msg_id="1")
    ((id, _, truncated),) = requests(server.receive_data(stream + NUDGE, NOW))
    assert truncated
    server.answer(id, b"")
    assert server.receive_data(msg(b"tail", msg_id="1"), NOW) == []
    assert requests(server.receive_data(msg(b"new", msg_id="1"), NOW)) == [("1", b"new", False)]


@pytest.mark.parametrize("framing", ["mark", "more", "length"])
def test_twice_the_limit_closes(framing: str) -> None:
    # SA-22
    server = open_server(limits=SMALL, lengths=framing == "length")
    headers = {"session-id": SESSION, "msg-id": "1"}
    if framing == "more":
        headers["msg-more"] = "yes"
    octets = encode(Message(headers, b"x" * 20_000), lengths=framing == "length")[:-5]
    events = server.receive_data(octets, NOW)
    assert [(id, t) for id, _, t in requests(events)] == [("1", True)]
    assert isinstance(events[-1], Fault)
    assert events[-1].reason == "message-octets"
    assert codes(server) == ["413"]
    assert server.closed


def test_parts_add_up_to_twice_the_limit() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    stream = b"".join(part(b"x" * 10, msg_id="1") for _ in range(20))
    events = server.receive_data(stream, NOW)
    assert isinstance(events[-1], Fault)
    # so do frames which are skipped
    server = open_server(limits=SMALL)
    assert isinstance(server.receive_data(msg(b"x" * 600, a="b"), NOW)[-1], Fault)
    server = open_server(limits=SMALL)
    server.receive_data(encode(Error({"a": "b"}, b"x" * 601)), NOW)
    assert server.closed


def test_an_option_refuses_what_is_too_large() -> None:
    # SA-22
    server = open_server(limits=SMALL, refuse_oversize=True)
    events = server.receive_data(msg(b"x" * 280, msg_id="1") + vectors.HOLA, NOW)
    assert requests(events) == [("000001", b"Hola", False)]
    assert errors(server)[0][:2] == ("413", "1")
    assert server.unanswered == 1


def test_a_cut_response_and_a_cut_error() -> None:
    # SA-22, SA-23
    client = open_client(limits=SMALL)
    id = client.request(b"", "w", NOW)
    events = client.receive_data(msg(b"x" * 280, ref_msg_id=id), NOW)
    ((_, _, _, _, body, truncated),) = flat(events)  # type: ignore[misc]
    assert truncated
    assert len(body) < 280
    (event,) = client.receive_data(encode(Error({"a": "b"}, b"x" * 400)), NOW)
    assert isinstance(event, ErrorReceived)
    assert len(event.body) < 300


def test_cut_columns_are_marked_row_by_row() -> None:
    # SA-22
    server = open_server(limits=SMALL)
    stream = b"".join(msg(b"x" * size, msg_id=str(n)) for n, size in enumerate((1, 290, 1))) + msg(
        b"", msg_id="9", a="b"
    )
    (event,) = server.receive_data(stream, NOW)
    assert isinstance(event, MessagesReceived)
    assert event.truncated == [False, True, False, False]
    server.acknowledge(event.ids)
    answers = [dict(r.headers) for r in sent(server) if isinstance(r, Read)]
    assert sorted((a["ref-msg-id"], a.get("truncated")) for a in answers) == [
        ("0", None),
        ("1", "yes"),
        ("2", None),
        ("9", None),
    ]
    client = open_client(limits=SMALL)
    ids = [client.request(b"", n, NOW) for n in range(3)]
    stream = b"".join(
        msg(b"x" * size, ref_msg_id=id) for id, size in zip(ids, (1, 290, 1), strict=True)
    )
    (answer,) = client.receive_data(stream, NOW)
    assert isinstance(answer, ResponsesReceived)
    assert answer.truncated == [False, True, False]


def test_failing_a_cut_request_says_so() -> None:
    # SA-16, SA-22
    server = open_server(limits=SMALL)
    server.receive_data(msg(b"x" * 290, msg_id="1"), NOW)
    server.fail("1", 500, "no")
    (frame,) = sent(server)
    assert isinstance(frame, Read)
    assert ("truncated", "yes") in frame.headers


def test_a_cut_request_too_many_is_refused() -> None:
    # SA-22, SA-27
    server = open_server(limits=limits(message_octets=300, outstanding_requests=1))
    events = server.receive_data(vectors.HOLA + msg(b"x" * 290, msg_id="2"), NOW)
    assert requests(events) == [("000001", b"Hola", False)]
    assert errors(server)[0][:2] == ("429", "2")


# ── Sending ─────────────────────────────────────────────────────────────────────────────────────


def talk(sender: Client | Server, receiver: Client | Server, framed: bool) -> list[Event]:
    if framed:
        return [e for f in sender.frames_to_send() for e in receiver.receive_frame(f, NOW)]
    return receiver.receive_data(sender.data_to_send(), NOW)


@pytest.mark.parametrize("framing", ["mark", "length", "websocket"])
@settings(max_examples=150, deadline=None)
@given(
    body=st.lists(
        st.sampled_from(
            [b"\0", b"\r\n", b"\r", b"x", b"ERROR\r\n", b"MESSAGE\r\n", b"a::b", b"::", b"yyyyy"]
        ),
        max_size=24,
    ).map(b"".join),
    size=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_a_body_in_parts_arrives_as_it_was(
    framing: str, body: bytes, size: int, cuts: list[int]
) -> None:
    # SA-18, SA-19, SA-21, SA-26
    lengths, framed = framing == "length", framing == "websocket"
    client = open_client(lengths=lengths, framed=framed, limits=limits(part_octets=size))
    server = open_server(lengths=lengths, framed=framed)
    bad = not lengths and (body.startswith((b"\0", b"\r\n\0")) or b"\r\n\r\n\0" in body)
    try:
        client.send_only(body)
        assert not bad
    except ValueError:
        assert bad
        assert client.data_to_send() == b""
    else:
        assert [row[3] for row in flat(talk(client, server, framed))] == [body]  # type: ignore[index]
    outgoing = client.open_message("w", NOW, headers={"a": "b"})
    try:
        for octets in cut(body, *[min(c, len(body)) for c in cuts]):
            outgoing.write(octets)
        outgoing.finish()
        assert not bad
    except ValueError:
        assert bad
        outgoing.abort()
    else:
        assert flat(talk(client, server, framed)) == [
            ("request", outgoing.id, {"a": "b"}, body, False)
        ]


def test_a_large_body_goes_out_in_parts() -> None:
    # SA-18
    client = open_client(limits=limits(part_octets=100))
    client.request(b"x" * 250, "w", NOW, headers={"a": "b"})
    frames = [r for r in sent(client) if isinstance(r, Read)]
    assert [len(f.body) for f in frames] == [100, 150] or [len(f.body) for f in frames] == [
        100,
        100,
        50,
    ]
    assert [f.final for f in frames] == [False] * (len(frames) - 1) + [True]
    assert [("a", "b") in f.headers for f in frames] == [True] + [False] * (len(frames) - 1)


@pytest.mark.parametrize("framing", ["length", "websocket", "mark"])
def test_a_message_that_is_given_up_half_way(framing: str) -> None:
    # SA-18, SA-20, SA-27
    lengths, framed = framing == "length", framing == "websocket"
    client = open_client(lengths=lengths, framed=framed, limits=limits(part_octets=4))
    server = open_server(lengths=lengths, framed=framed)
    outgoing = client.open_message("w", NOW)
    outgoing.write(b"abcdefghijklmnop")
    outgoing.abort()
    outgoing.abort()
    with pytest.raises(ValueError, match="finished"):
        outgoing.write(b"x")
    outgoing.finish()
    client.send_only(b"next")
    events = talk(client, server, framed)
    expected: list[object] = [("send-only", "2", {}, b"next", False)]
    if framing != "mark":
        expected.insert(0, FrameDiscarded("1"))
    assert flat(events) == expected
    assert client.outstanding == 0
    assert server.snapshot()["unfinished"] == (framing == "mark")


def test_a_message_that_was_not_begun_leaves_no_trace() -> None:
    # SA-18
    client = open_client()
    outgoing = client.open_message("w", NOW)
    outgoing.write(b"abc")
    outgoing.abort()
    assert client.data_to_send() == b""
    assert client.outstanding == 0
    outgoing = client.open_message(None, NOW)
    outgoing.write(b"abc")
    client.connection_lost()
    outgoing.write(b"def")
    outgoing.finish()
    assert client.data_to_send() == b""


def test_open_messages_are_bounded() -> None:
    # SA-19
    client = open_client(limits=limits(unfinished_messages=2))
    first = client.open_message(None, NOW)
    client.open_message("w", NOW)
    with pytest.raises(LimitExceeded):
        client.open_message(None, NOW)
    first.finish()
    client.open_message(None, NOW)


def test_a_body_with_our_own_session_in_it_is_not_split_where_a_reader_would_err() -> None:
    # SA-26: the receiver sees what was sent
    body = crlf(f"x MESSAGE\nsession-id::{SESSION}\n\n") + b"y" * 50
    client = open_client(limits=limits(part_octets=20))
    with pytest.raises(ValueError, match="session"):
        client.send_only(body)
    outgoing = client.open_message("w", NOW)
    with pytest.raises(ValueError, match="session"):
        for octet in body:
            outgoing.write(bytes([octet]))
    client = open_client(limits=limits(part_octets=20), lengths=True)
    client.send_only(body)
    ((_, _, _, got, _),) = flat(open_server(lengths=True).receive_data(client.data_to_send(), NOW))  # type: ignore[misc]
    assert got == body


# ── DISCONNECT ──────────────────────────────────────────────────────────────────────────────────


def test_disconnect_waits_for_the_answers() -> None:
    # SA-12
    server, client = open_server(), open_client()
    ids = [client.request(b"x", n, NOW) for n in range(3)]
    client.disconnect()
    events = server.receive_data(client.data_to_send(), NOW)
    assert isinstance(events[-1], DisconnectReceived)
    assert server.state is Serving.DRAINING
    server.answer(ids[0], b"a")
    server.fail(ids[1], 500, "b")
    assert not server.closed
    server.acknowledge(ids[2:])
    assert server.closed
    events = client.receive_data(server.data_to_send(), NOW)
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
    assert server.receive_data(vectors.DISCONNECT, NOW) == [DisconnectReceived()]
    assert server.closed
    assert server.data_to_send() == vectors.DISCONNECTING + b"\0"


def test_disconnect_waits_for_send_only_messages_in_work() -> None:
    # SA-12
    server = open_server()
    server.receive_data(vectors.SEND_ONLY + vectors.DISCONNECT, NOW)
    assert not server.closed
    server.settle(1)
    assert server.closed


def test_after_disconnect_no_further_message_is_taken() -> None:
    # SA-12: but answers to our own requests are, which the work may need
    server = open_server()
    server.receive_data(vectors.HOLA + part(b"half", msg_id="h"), NOW)
    id = server.request(b"?", "w", NOW)
    server.data_to_send()
    events = server.receive_data(
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
    server.receive_data(vectors.HOLA + vectors.DISCONNECT, NOW)
    assert server.tick(NOW) == NOW + 30
    server.receive_data(vectors.DISCONNECT, NOW + 20)  # asking again gives no more time
    assert server.tick(NOW + 30) is None
    assert server.take_due() == [DrainTimedOut()]
    assert server.data_to_send() == vectors.DISCONNECTING + b"\0"


def test_a_server_drains_of_its_own_accord() -> None:
    # SA-12
    server = open_server()
    server.receive_data(vectors.HOLA, NOW)
    server.drain(NOW)
    assert server.state is Serving.DRAINING
    server.drain(NOW)
    server.answer("000001", b"")
    assert server.closed
    server = Server()
    server.drain(NOW)
    assert server.closed
    server = open_server(expires=NOW + 10)
    server.receive_data(vectors.HOLA, NOW)
    server.drain(NOW)
    server.tick(NOW + 10)
    assert server.take_due() == [SessionExpired()]


# ── However it is split ─────────────────────────────────────────────────────────────────────────

ROWS = [
    vectors.HOLA,
    vectors.PART_1,
    vectors.PART_2,
    vectors.PART_3,
    vectors.SEND_ONLY,
    vectors.FORBIDDEN,
    vectors.MUNDO,
    msg(b"x" * 200, msg_id="a"),
    msg(b"x" * 400, msg_id="b"),
    part("日".encode() * 90, msg_id="c"),
    msg(b"y", msg_id="c"),
    msg(b"x", msg_id="d", client_id="x"),
    part(b"x", msg_id="e", ref_msg_id="x"),
    msg(b"x" * 590, other="1"),
    encode(Message({"session-id": SESSION, "msg-id": "f"}, b"x" * 33), lengths=True),
    encode(Message({"session-id": SESSION, "msg-id": "g"}, b"x" * 310), lengths=True),
    encode(
        Message({"session-id": SESSION, "msg-id": "h", "msg-more": "yes"}, b"x" * 40, final=False),
        lengths=True,
    ),
    encode(Message({"session-id": SESSION, "msg-id": "h"}, b"z" * 4, final=False), lengths=True),
    encode(Error({"error-code": "5"}, b"z"), lengths=True),
    vectors.DISCONNECT,
    vectors.DISCONNECTING,
    b"junk",
]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(ROWS), min_size=1, max_size=7).map(b"".join),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=3),
    st.lists(st.integers(0, 3000), max_size=4),
)
def test_the_same_octets_are_the_same_events(
    octets: bytes, lengths: bool, flips: list[tuple[int, int]], places: list[int]
) -> None:
    # SA-19, SA-20, SA-22, SA-26
    mutated = bytearray(octets)
    for place, value in flips:
        mutated[place % len(mutated)] = value
    octets = bytes(mutated)

    def run(chunks: list[bytes]) -> tuple[list[object], object, bytes]:
        server = open_server(limits=SMALL, lengths=lengths)
        events = [e for chunk in chunks for e in server.receive_data(chunk, NOW)]
        return flat(events), server.state, server.data_to_send()

    whole = run([octets])
    assert run([octets[i : i + 1] for i in range(len(octets))]) == whole
    assert run(cut(octets, *[p % len(octets) for p in places])) == whole
    faults = [event for event in whole[0] if isinstance(event, Fault)]
    assert faults == [e for e in whole[0][-1:] if isinstance(e, Fault)]


def test_frames_of_a_closed_connection_are_nothing() -> None:
    server = open_server(framed=True)
    server.stop()
    assert server.receive_frame(vectors.HOLA, NOW) == []


def test_the_quick_way_and_the_long_way_are_one() -> None:
    # SA-16: what the quick way leaves alone is read the same
    for extra in ({}, {"a": "b"}):
        server = open_server()
        events = server.receive_data(msg(b"x", msg_id="1", **extra), NOW)
        assert requests(events) == [("1", b"x", False)]


def request_frame(id: str, body: bytes, lengths: bool, final: bool = True, **h: str) -> bytes:
    named = {"session-id": SESSION, "msg-id": id} | {k.replace("_", "-"): v for k, v in h.items()}
    return encode(Message(named, body, final=final), lengths=lengths)


ODD = {
    "plain": lambda n: request_frame(n, b"x" * 7, n.startswith("L")),
    "empty": lambda n: request_frame(n, b"", n.startswith("L")),
    "end mark within": lambda n: request_frame(n, b"a\r\n\r\n\0b", n.startswith("L")),
    "blank line within": lambda n: request_frame(n, b"a\r\n\r\nb", n.startswith("L")),
    "nul first": lambda n: request_frame(n, b"\0a", n.startswith("L")),
    "length line within": lambda n: request_frame(n, b"\r\ncontent-length::3", n.startswith("L")),
    "same id": lambda n: request_frame("same" + n[0], b"y", n.startswith("L")),
    "free header": lambda n: request_frame(n, b"y", n.startswith("L"), a="b"),
    "send-only": lambda n: request_frame(n, b"y", n.startswith("L"), send_only="yes"),
    "part": lambda n: request_frame(n, b"y", n.startswith("L"), False, msg_more="yes"),
    "no end": lambda n: request_frame(n, b"y", n.startswith("L"), False),
    "other session": lambda n: request_frame(n, b"y", n.startswith("L"), session_id="x"),
    "separator in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::::"
    ),
    "line end in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\n"
    ),
    "cr in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\r"
    ),
    "no utf-8": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\xff"
    ),
    "leading zero": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"length::", b"length::0"
    ),
    "a long id": lambda n: request_frame(n + "i" * 1100, b"y", n[0] == "L"),
    "above the limit": lambda n: request_frame(n, b"y" * 700, n[0] == "L"),
    "other command": lambda n: vectors.FORBIDDEN,
}


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_many_at_once_are_read_as_one_by_one(odd: str, at: int, lengths: bool) -> None:
    # SA-10, SA-15, SA-16, SA-22, SA-26, SA-27: whatever stands among plain requests
    prefix = "L" if lengths else "M"
    names = ["plain"] * 4
    names[at:at] = [odd, odd] if odd == "same id" else [odd]
    octets = b"".join(ODD[name](f"{prefix}{n}") for n, name in enumerate(names))

    def run(chunks: list[bytes]) -> tuple[list[object], bytes]:
        bound = limits(message_octets=600, outstanding_requests=5, part_octets=600)
        server = open_server(limits=bound, lengths=lengths)
        events = [e for chunk in chunks for e in server.receive_data(chunk, NOW)]
        return flat(events), server.data_to_send()

    whole = run([octets])
    assert run([octets[i : i + 1] for i in range(len(octets))]) == whole
    for place in range(0, len(octets), 11):
        assert run(cut(octets, place)) == whole


def test_many_at_once_keep_the_bounds() -> None:
    # SA-27, SA-11
    octets = b"".join(msg(b"x", msg_id=str(n)) for n in range(6))
    server = open_server(limits=limits(outstanding_requests=4))
    assert len(requests(server.receive_data(octets, NOW))) == 4
    assert codes(server) == ["429", "429"]
    server = open_server(expires=NOW + 1)
    assert isinstance(server.receive_data(octets, NOW + 1)[-1], Fault)
    assert server.unanswered == 0
    server = open_server(limits=limits(header_lines=1))
    assert isinstance(server.receive_data(octets, NOW)[-1], Fault)
    server = open_server(lenient=True)
    assert len(requests(server.receive_data(octets, NOW))) == 6


def test_what_is_left_of_the_branches() -> None:
    # SA-05, SA-12, SA-16, SA-18, SA-22: the ways which no story above takes
    client = open_client()
    assert isinstance(client.receive_data(b"HELLO\r\n", NOW)[-1], Fault)
    assert client.faulted
    assert not open_client().faulted
    # DISCONNECT with a message that is being skipped, and one that answers
    server = open_server()
    id = server.request(b"?", "w", NOW)
    server.receive_data(part(b"a", msg_id="1", error_code="x"), NOW)
    server.receive_data(part(b"a", ref_msg_id=id), NOW)
    server.receive_data(vectors.HOLA + vectors.DISCONNECT, NOW)
    server.data_to_send()
    assert flat(server.receive_data(msg(b"b", ref_msg_id=id), NOW))[0][4] == b"ab"  # type: ignore[index]
    # only cut messages to acknowledge
    server = open_server(limits=SMALL)
    server.receive_data(msg(b"x" * 290, msg_id="1"), NOW)
    server.acknowledge(["1"])
    (answer,) = sent(server)
    assert isinstance(answer, Read)
    assert ("truncated", "yes") in answer.headers
    # a connection lost while a message is being written
    client = open_client()
    outgoing, other = client.open_message("w", NOW), client.open_message(None, NOW)
    outgoing.write(b"abc")
    client.stop()
    client.data_to_send()
    outgoing.write(b"def")
    outgoing.finish()
    other.abort()
    assert client.data_to_send() == b""


def test_many_answers_leave_together() -> None:
    # SA-16, SA-18, SA-21, SA-22: but for those which need more than one plain frame
    for lengths in (False, True):
        server = open_server(lengths=lengths, limits=limits(message_octets=300, part_octets=250))
        client = open_client(lengths=lengths)
        bodies = [b"a", b"", b"\0", b"x" * 400, b"b", b"cut"]
        ids = [client.request(b"y" * (290 if body == b"cut" else 1), body, NOW) for body in bodies]
        server.receive_data(client.data_to_send(), NOW)
        left = server.answer_all(ids, bodies)
        assert left == [ids[n] for n in ((1, 3, 5) if lengths else (1, 2, 3, 5))]
        for id in left:
            body = bodies[ids.index(id)]
            if lengths or body != b"\0":
                server.answer(id, body)
        events = flat(client.receive_data(server.data_to_send(), NOW))
        assert all(row[2] == row[4] for row in events)  # type: ignore[index]
        assert len(events) == (6 if lengths else 5)
        assert server.answer_all([], []) == []
        server.stop()
        assert server.answer_all(["1"], [b""]) == []


def test_a_role_must_say_what_its_commands_do() -> None:
    from twisted_msgproto.sabc.side import Side

    with pytest.raises(NotImplementedError):
        Side._commanded(open_server(), Connect({}), NOW, [])  # type: ignore[arg-type]


def test_a_part_never_begins_behind_the_end_of_what_came() -> None:
    # SA-21: so many NULs that no part may begin anywhere
    client = open_client(limits=limits(part_octets=4))
    outgoing = client.open_message("w", NOW)
    outgoing.write(b"abcd" + b"\0" * 20)
    assert client.data_to_send() == b""
    outgoing.write(b"efgh")
    outgoing.finish()
    ((_, _, _, body, _),) = flat(open_server().receive_data(client.data_to_send(), NOW))  # type: ignore[misc]
    assert body == b"abcd" + b"\0" * 20 + b"efgh"
