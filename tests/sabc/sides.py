"""The examples of the protocol's source, frames as a peer writes and reads them, both machines."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Any

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.sabc.machine import Client, Server

SESSION = "NaTPOgp1QUuB6Gm5tAdcSw"
END = b"\r\n\r\n\0"


def crlf(text: str) -> bytes:
    """``text`` with CRLF line ends; ``^@`` stands for NUL."""
    return text.replace("\n", "\r\n").replace("^@", "\0").encode()


CONNECT = crlf("CONNECT\nclient-id::23450-678-aedc\nclient-passcode::Password@123\n\n^@")
CONNECTED = crlf(
    f"CONNECTED\nsession-id::{SESSION}\nsession-expiry::Tue, 01 Jun 2017 21:47:38 GMT\n\n"
)
DISCONNECT = crlf(f"DISCONNECT\nsession-id::{SESSION}\n\n")
DISCONNECTING = crlf(f"DISCONNECTING\nsession-id::{SESSION}\n\n")
HOLA = crlf(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::000001\n\nHola\n\n^@")
MUNDO = crlf(f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::000001\n\nMundo!!!\n\n^@")
HELLO = crlf(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123123\n\nHello\n\n^@")
OK = crlf(f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::123123\n\nOK\n\n^@")
SEND_ONLY = crlf(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::888999\nsend-only::yes\n\nOK\n\n^@")
FORBIDDEN = crlf("ERROR\nerror-code::403\n\nAccess Forbidden\n\n^@")

_PART = f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123456\n"
PART_1 = crlf(f"{_PART}msg-more::yes\n\nThis is first part of the message. Second\npart ")
PART_2 = crlf(
    f"{_PART}msg-more::yes\n\nis on the way. See I can have ^@ within the\n"
    "message but shouldn't precede with two CR-LFs.\nFinally the third"
)
PART_3 = crlf(f"{_PART}\npart marks the end of the\nmessage\n\n^@")
WHOLE_BODY = crlf(
    "This is first part of the message. Second\npart is on the way. See I can have ^@ within the\n"
    "message but shouldn't precede with two CR-LFs.\nFinally the thirdpart marks the end of the\n"
    "message"
)


def frame(
    command: str,
    headers: dict[str, str],
    body: bytes = b"",
    *,
    final: bool = True,
    lengths: bool = False,
) -> bytes:
    """A frame as the specification has it (``SA-01``, ``SA-02``, ``SA-26``)."""
    if lengths and command in ("MESSAGE", "ERROR"):
        headers = {**headers, "content-length": str(len(body))}
    lines = [command, *(f"{key}::{value}" for key, value in headers.items()), "", ""]
    end = b"" if not final else END if body else b"\0"
    return "\r\n".join(lines).encode() + body + end


@dataclass(frozen=True)
class Read:
    """One frame as it was read, however it came in."""

    command: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    final: bool | None


def _valid(lines: list[bytes], session: str) -> bool:
    """Whether these are the headers of a frame of the session, by the letter of the rules."""
    keys = []
    for line in lines:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return False
        key, separator, value = text.partition("::")
        if not separator or "::" in value or not key or set(text) & {"\r", "\n", "\0"}:
            return False
        keys.append(key)
    return len(set(keys)) == len(keys) and f"session-id::{session}".encode() in lines


def end_of_body(
    nbytes: bytes, start: int, more: bool, session: str
) -> tuple[int, int, bool] | None:
    """Where a body ends, where the next frame begins, and finality: every place is tried."""
    for place in range(start - 4, len(nbytes)):
        if nbytes.startswith(END, place):
            return max(place, start), place + len(END), True
        if place < start or not more:
            continue
        for command in (b"MESSAGE\r\n", b"ERROR\r\n", b"DISCONNECT\r\n", b"DISCONNECTING\r\n"):
            if nbytes.startswith(command, place):
                block, blank, _ = nbytes[place + len(command) - 2 :].partition(b"\r\n\r\n")
                if blank and _valid(block[2:].split(b"\r\n"), session):
                    return place, place, False
    return None


def read(nbytes: bytes, *, lengths: bool = False, session: str = SESSION) -> list[Read]:
    """Read a stream slowly and obviously; the last body may be unfinished (``final=None``)."""
    found: list[Read] = []
    while nbytes:
        head, blank, rest = nbytes.partition(b"\r\n\r\n")
        assert blank, nbytes
        command, *lines = head.decode().split("\r\n")
        headers = dict(line.split("::") for line in lines)
        body, final = b"", True if rest[:1] == b"\0" else None
        if command not in ("MESSAGE", "ERROR"):
            nbytes = rest.removeprefix(b"\0")
        elif lengths:
            size = int(headers.pop("content-length"))
            body, nbytes = rest[:size], rest[size:]
            mark = END if nbytes.startswith(END) else b"" if size else b"\0"
            final = bool(mark) and nbytes.startswith(mark)
            nbytes = nbytes.removeprefix(mark)
        else:
            start = len(head) + 4
            end = end_of_body(nbytes, start, "msg-more" in headers, session)
            stop, following, final = end or (len(nbytes), len(nbytes), None)
            body, nbytes = nbytes[start:stop], nbytes[following:]
        found.append(Read(command, tuple(headers.items()), body, final))
    return found


def cut(nbytes: bytes, *places: int) -> list[bytes]:
    """``nbytes`` in pieces, cut at ``places``."""
    edges = [0, *sorted(places), len(nbytes)]
    return [nbytes[a:b] for a, b in pairwise(edges)]


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
            columns = [event.fields, event.bodies, event.truncated]
            if name == "MessagesReceived":
                assert event.nbytes == sum(map(len, event.bodies))
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
    server.receive(CONNECT, NOW)
    if state == "AUTHENTICATING":
        return server
    server.accept(SESSION)
    if state == "DRAINING":
        server.receive(msg(b"in work", msg_id="work"), NOW)
        server.receive(DISCONNECT, NOW)
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
    client.receive(CONNECTED, NOW)
    if state == "DRAINING":
        client.disconnect(NOW)
    client.outputs()
    return client


def state_of(side: Any) -> str:
    return str(side.snapshot()["state"])


def part(body: bytes, **headers: str) -> bytes:
    return msg(body, final=False, msg_more="yes", **headers)


SMALL = limits(message_bytes=300)
