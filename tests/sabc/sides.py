"""Both machines in a session, what they are sent, and what they say, for the tests of this room."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc import Client, SabcServerFactory, Server

from . import vectors
from .vectors import SESSION, Read, frame, read

NOW = 1_000_000.0
NUDGE = frame("ERROR", {"session-id": SESSION})
"""Something of this session, which shows that the part before it has ended."""


@cache
def limits(**changes: float) -> Any:
    """The limits of a session, with changes, as a factory makes them."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return SabcServerFactory(limits=named).limits


def shown(event: Any) -> tuple[Any, ...]:
    """An event's name and what it says."""
    compared = [field.name for field in fields(event) if field.compare]
    return (type(event).__name__, *(getattr(event, name) for name in compared))


def names(events: list[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


def msg(body: bytes = b"", *, final: bool = True, session: str | None = SESSION, **h: str) -> bytes:
    """A MESSAGE as a peer without lengths writes it."""
    named = {name.replace("_", "-"): value for name, value in h.items()}
    own = {} if session is None else {"session-id": session}
    return frame("MESSAGE", own | named, body, final=final)


def sent(side: Any) -> list[Read]:
    """What a side wrote, read back."""
    return read(bytes(side.outputs()), lengths=side.lengths)


def errors(side: Any) -> list[tuple[str | None, str | None, bytes]]:
    """(code, ref-msg-id, body) of the ERRORs a side wrote."""
    return [
        (dict(r.headers).get("error-code"), dict(r.headers).get("ref-msg-id"), r.body)
        for r in sent(side)
        if r.command == "ERROR"
    ]


def codes(side: Any) -> list[str | None]:
    return [code for code, _, _ in errors(side)]


def open_server(*, lengths: bool = False, expires: float | None = None, **options: Any) -> Any:
    server = Server(**options)
    server.connection_made(NOW)
    framing = {"framing": "length"} if lengths else {}
    octets = frame("CONNECT", {"client-id": "me", **framing})
    events = server.receive([octets] if options.get("framed") else octets, NOW)
    assert names(events) == ["ConnectReceived"]
    server.accept(SESSION, expires=expires)
    server.outputs()
    return server


def open_client(*, lengths: bool = False, framed: bool = False, **options: Any) -> Any:
    client = Client(framed=framed, **options)
    client.connect("me", now=NOW)
    client.outputs()
    framing = {"framing": "length"} if lengths else {}
    octets = frame("CONNECTED", {"session-id": SESSION, **framing})
    events = client.receive([octets] if framed else octets, NOW)
    assert names(events) == ["SessionGranted"]
    return client


def flat(events: list[Any]) -> list[Any]:
    """Events one by one: where columns begin and end is free."""
    found: list[Any] = []
    for event in events:
        name = type(event).__name__
        if name in ("MessagesReceived", "ResponsesReceived"):
            cuts = event.truncated or [False] * len(event.ids)
            columns = [event.fields, event.bodies, cuts]
            if name == "MessagesReceived":
                assert event.octets == sum(map(len, event.bodies))
                kinds = [event.kind] * len(event.ids)
                rows = zip(kinds, event.ids, *columns, strict=True)
                found += [(kind, id, dict(fields), *rest) for kind, id, fields, *rest in rows]
            else:
                rows = zip(event.ids, event.waiters, *columns, strict=True)
                found += [("response", id, w, dict(fields), *rest) for id, w, fields, *rest in rows]
        else:
            found.append(event if isinstance(event, Fault) else shown(event))
    return found


def requests(events: list[Any]) -> list[tuple[str, bytes, bool]]:
    """The (id, body, whether it was cut) of messages of either kind."""
    rows = [row for row in flat(events) if not isinstance(row, Fault)]
    return [(row[1], row[3], row[4]) for row in rows if row[0] in ("request", "send-only")]


def talk(sender: Any, receiver: Any, framed: bool) -> list[Any]:
    if framed:
        return [e for f in sender.outputs() for e in receiver.receive([f], NOW)]
    return receiver.receive(sender.outputs(), NOW)


SERVING = ("AWAITING", "AUTHENTICATING", "OPEN", "DRAINING", "CLOSED")
CONNECTING = ("IDLE", "WAITING", "OPEN", "DRAINING", "CLOSED")
"""The states of a server and of a client, as their snapshots name them."""


def server_in(state: str) -> Any:
    server = Server()
    server.connection_made(NOW)
    if state == "CLOSED":
        server.lost(0.0)
    if state in ("AWAITING", "CLOSED"):
        return server
    server.receive(vectors.CONNECT, NOW)
    if state == "AUTHENTICATING":
        return server
    server.accept(SESSION)
    if state == "DRAINING":
        server.receive(msg(b"in work", msg_id="work"), NOW)
        server.receive(vectors.DISCONNECT, NOW)
    server.outputs()
    return server


def client_in(state: str) -> Any:
    client = Client()
    if state == "CLOSED":
        client.lost(0.0)
    if state in ("IDLE", "CLOSED"):
        return client
    client.connect("me", now=NOW)
    if state == "WAITING":
        return client
    client.receive(vectors.CONNECTED, NOW)
    if state == "DRAINING":
        client.disconnect(NOW)
    client.outputs()
    return client


def state_of(side: Any) -> str:
    return str(side.snapshot()["state"])


def part(body: bytes, **headers: str) -> bytes:
    return msg(body, final=False, msg_more="yes", **headers)


SMALL = limits(message_octets=300)
