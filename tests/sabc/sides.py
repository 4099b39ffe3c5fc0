"""Both machines in a session, what they are sent, and what they say, for the tests of this room."""

from __future__ import annotations

from typing import Any

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.sabc.machine import Client, Server
from twisted_msgproto.sabc.terms.events import (
    ConnectReceived,
    Event,
    MessagesReceived,
    ResponsesReceived,
    SessionGranted,
)
from twisted_msgproto.sabc.terms.limits import SESSION_LIMITS
from twisted_msgproto.sabc.terms.tables import Connecting, Serving
from twisted_msgproto.sabc.wire import (
    Connect,
    Connected,
    Error,
    Message,
    encode,
)

from . import vectors
from .vectors import SESSION, Read, decode

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
    return decode([side.outputs()], lengths=side.lengths, part_octets=1 << 20)


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
        server.receive([octets], NOW) if options.get("framed") else server.receive(octets, NOW)
    )
    assert isinstance(event, ConnectReceived)
    server.accept(SESSION, expires=expires)
    server.outputs()
    return server


def open_client(*, lengths: bool = False, framed: bool = False, **options: Any) -> Client:
    client = Client(framed=framed, **options)
    client.connect("me", now=NOW)
    client.outputs()
    framing = {"framing": "length"} if lengths else {}
    octets = encode(Connected({"session-id": SESSION, **framing}))
    events = client.receive([octets] if framed else octets, NOW)
    assert [type(event) for event in events] == [SessionGranted]
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


def talk(sender: Client | Server, receiver: Client | Server, framed: bool) -> list[Event]:
    if framed:
        return [e for f in sender.outputs() for e in receiver.receive([f], NOW)]
    return receiver.receive(sender.outputs(), NOW)


def server_in(state: Serving) -> Server:
    server = Server()
    server.connection_made(NOW)
    if state is Serving.CLOSED:
        server.lost(0.0)
    if state in (Serving.AWAITING, Serving.CLOSED):
        return server
    server.receive(vectors.CONNECT, NOW)
    if state is Serving.AUTHENTICATING:
        return server
    server.accept(SESSION)
    if state is Serving.DRAINING:
        server.receive(msg(b"in work", msg_id="work"), NOW)
        server.receive(vectors.DISCONNECT, NOW)
    server.outputs()
    return server


def client_in(state: Connecting) -> Client:
    client = Client()
    if state is Connecting.CLOSED:
        client.lost(0.0)
    if state in (Connecting.IDLE, Connecting.CLOSED):
        return client
    client.connect("me", now=NOW)
    if state is Connecting.WAITING:
        return client
    client.receive(vectors.CONNECTED, NOW)
    if state is Connecting.DRAINING:
        client.disconnect(NOW)
    client.outputs()
    return client


def part(body: bytes, **headers: str) -> bytes:
    return msg(body, final=False, msg_more="yes", **headers)


SMALL = limits(message_octets=300)
