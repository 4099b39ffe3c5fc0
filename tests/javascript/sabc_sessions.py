"""Conversations of an sABC client with our server on WebSocket, both of them without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.sabc import terms as told
from twisted_msgproto.sabc.machine import Client, Server

SESSION = "NaTPOgp1QUuB6Gm5tAdcSw"


def wire(message: bytes) -> Any:
    """A message as JSON: text, or an object with its bytes."""
    try:
        return message.decode()
    except UnicodeDecodeError:
        return {"hex": message.hex()}


def sent(message: bytes) -> Any:
    """What a client sends; of an ERROR's text only that there is one: it is anybody's own."""
    head, blank, body = message.partition(b"\r\n\r\n")
    return wire(head + blank) if head.startswith(b"ERROR") and body else wire(message)


def as_json(event: Any) -> Iterator[dict[str, Any]]:
    """An event as the machine in JavaScript reports it: a column is one event for each row."""
    match event:
        case told.SessionGranted(_, expires, headers):
            date = None if expires is None else datetime.fromtimestamp(expires, UTC).isoformat()
            yield {"type": "granted", "expires": date, "headers": dict(headers)}
        case told.ConnectRefused(code, text):
            yield {"type": "refused", "code": code, "text": text}
        case told.MessagesReceived(kind, ids, fields, bodies, cut):
            for id, headers, body, truncated in zip_longest(ids, fields, bodies, cut or ()):
                yield {"type": kind} | _message(id, headers, body, truncated)
        case told.ResponsesReceived(ids, waiters, fields, bodies, cut):
            rows = zip_longest(ids, waiters, fields, bodies, cut or ())
            for id, waiter, headers, body, truncated in rows:
                found = {"type": "response", "waiter": waiter}
                yield found | _message(id, headers, body, truncated)
        case told.RequestFailed(id, waiter, code, text):
            yield {"type": "failed", "id": id, "waiter": waiter, "code": code, "text": text}
        case told.RequestsTimedOut(ids, waiters):
            for id, waiter in zip(ids, waiters, strict=True):
                yield {"type": "expired", "id": id, "waiter": waiter}
        case told.ErrorReceived(code, body, headers):
            yield {"type": "error", "code": code, "body": wire(body), "headers": dict(headers)}
        case told.FrameRefused(code, text, id):
            yield {"type": "frame-refused", "code": code, "text": text, "id": id}
        case told.FrameDiscarded(id):
            yield {"type": "frame-discarded", "id": id}
        case told.MessageAbandoned(id):
            yield {"type": "abandoned", "id": id}
        case told.DisconnectingReceived():
            yield {"type": "disconnecting"}
        case told.DrainTimedOut():
            yield {"type": "drain-timed-out"}
        case Fault(reason):
            yield {"type": "fault", "reason": reason}


def _message(id: str, headers: Mapping[str, str], body: bytes, cut: bool | None) -> dict[str, Any]:
    return {"id": id, "headers": dict(headers), "body": wire(body), "truncated": bool(cut)}


class Conversation:
    """Both machines, and what they have said: ``steps`` is the recording."""

    def __init__(self, **limits: float) -> None:
        self.limits = {name.replace("_", "-"): value for name, value in limits.items()}
        self.client = Client(SabcServerFactory(limits=self.limits).limits, framed=True)
        self.server = Server(framed=True)
        self.server.connection_made(0.0)
        self.steps: list[dict[str, Any]] = []
        self.now = 0.0

    def record(self) -> dict[str, Any]:
        return {"limits": self.limits, "steps": self.steps}

    def _sent(self, step: dict[str, Any]) -> None:
        out = self.client.outputs()
        self.steps.append(step | {"now": self.now, "sends": [sent(message) for message in out]})
        self.server.receive(out, self.now)

    def do(self, verb: str, *given: Any) -> None:
        """Have the client do something; the server reads what it says."""
        self._verb(verb, *given)
        arguments = [wire(value) if isinstance(value, bytes) else value for value in given]
        self._sent({"do": verb, "with": arguments})

    def _verb(self, verb: str, *given: Any) -> None:
        client, now = self.client, self.now
        match verb, given:
            case "connect", (client_id, passcode, headers):
                client.connect(client_id, passcode, now=now, headers=headers)
            case "request", (body, waiter, headers):
                client.request(body, waiter, now, headers=headers)
            case "pieces", (pieces, waiter):
                message = client.open_message(waiter, now)
                for piece in pieces:
                    message.write(piece.encode())
                message.finish()
            case "abort", (pieces, waiter):
                message = client.open_message(waiter, now)
                for piece in pieces:
                    message.write(piece.encode())
                message.abort()
            case "sendOnly", (body, headers):
                client.send_only(body, headers=headers)
            case "answer", (id, body, headers):
                client.answer(id, body, headers=headers)
            case "refuse", (id, code, text):
                client.fail(id, code, text)
            case "sendError", (code, text, headers):
                client.send_error(code, text, headers=headers)
            case "forget", (id,):
                client.forget(id)
            case "disconnect", ():
                client.disconnect(now)
            case "stop", ():
                client.stop()
            case _:
                raise AssertionError(verb)

    def serve(self, verb: str, *arguments: Any, **options: Any) -> None:
        """Have our server do something; the client reads what it says."""
        getattr(self.server, verb)(*arguments, **options)
        self.arrive(*self.server.outputs())

    def arrive(self, *messages: bytes) -> None:
        """The client reads ``messages``, whoever wrote them."""
        events = [told for e in self.client.receive(messages, self.now) for told in as_json(e)]
        self._sent({"receives": [wire(message) for message in messages], "events": events})

    def wait(self, now: float) -> None:
        self.now = now
        events = [told for e in self.client.advance(now) for told in as_json(e)]
        self._sent({"advance": now, "events": events})

    def begin(self) -> Conversation:
        self.do("connect", "me", None, {})
        self.serve("accept", SESSION)
        return self


def frame(command: str, *lines: str, body: bytes = b"", end: bytes | None = None) -> bytes:
    head = "\r\n".join([command, f"session-id::{SESSION}", *lines, "", ""]).encode()
    if end is None:
        end = b"\r\n\r\n\0" if body else b"\0"
    return head + body + end


def requests() -> Any:
    """SA-14 … SA-17, SA-21, SA-25: answers in another order, acknowledgements, bytes, errors."""
    talk = Conversation()
    talk.do("connect", "me", "Password@123", {"colour": "réd"})
    talk.serve("accept", SESSION, expires=1496353658.0, headers={"greeting": "hello"})
    talk.do("request", b"Hola", "one", {"colour": "red"})
    talk.do("request", b"", "two", {})
    talk.do("request", b"\xfc\0\xff", "three", {})
    talk.do("request", "Grüße\r\n\0 and more".encode(), "four", {})
    talk.do("sendOnly", b"OK", {"kind": "note"})
    talk.serve("answer", "2", b"Mundo!!!", headers={"x": "1"})
    talk.serve("acknowledge", ["1"])
    talk.serve("answer", "3", b"\xfc\0\xff")
    talk.serve("fail", "4", 403, "Access Forbidden")
    talk.arrive(frame("MESSAGE", "ref-msg-id::1", body=b"once more"))
    talk.do("request", b"forgotten", "five", {})
    talk.do("forget", "6")
    talk.serve("answer", "6", b"too late")
    talk.do("request", b"cut", "six", {})
    talk.arrive(frame("MESSAGE", "ref-msg-id::7", "truncated::yes"))
    talk.do("sendError", 418, "teapot", {"x": "y"})
    talk.do("disconnect")
    return talk.record()


def served() -> Any:
    """SA-16, SA-17: the server asks, the client answers."""
    talk = Conversation().begin()
    for waiter in "abc":
        talk.serve("request", b"work", waiter, 0.0, headers={"n": waiter})
    talk.serve("send_only", b"news")
    talk.serve("request", b"\xff bytes", "d", 0.0)
    talk.do("answer", "1", b"done", {"quality": "good"})
    talk.do("answer", "2", b"", {})
    talk.do("refuse", "3", 500, "internal error")
    talk.serve("send_error", 400, "just so")
    talk.arrive(frame("ERROR", "error-code::500", "message-id::99", body=b"of nothing"))
    talk.arrive(frame("MESSAGE", "msg-id::5", body=b"in use"))
    talk.do("answer", "5", b"\xff", {})
    talk.serve("stop")
    return talk.record()


def parts() -> Any:
    """SA-18 … SA-20: messages in several frames, in both directions, interleaved."""
    talk = Conversation(part_bytes=8).begin()
    talk.do("request", b"first part, second part", "one", {"on": "the first alone"})
    talk.do("request", b"12345678\0\0\r\n\0234567890", "nul", {})
    talk.do("pieces", ["", "pie", "ces of any", " length, one", "", " by one"], "two")
    talk.do("abort", ["never to be finished"], "three")
    more = "msg-more::yes"
    talk.arrive(
        frame("MESSAGE", "msg-id::1", more, body=b"This is first \xc3", end=b""),
        frame("MESSAGE", "ref-msg-id::1", more, "x::1", body=b"an ", end=b""),
        frame("MESSAGE", "msg-id::1", more, "a::b", body=b"\xbc \0 part ", end=b""),
        frame("MESSAGE", "ref-msg-id::1", "x::2", body=b"answer"),
        frame("MESSAGE", "msg-id::1", "a::c", body=b"and the end"),
    )
    talk.arrive(
        frame("MESSAGE", "msg-id::2", "send-only::yes", more, body=b"no ", end=b""),
        frame("MESSAGE", "msg-id::2", body=b"answer"),
        frame("MESSAGE", "msg-id::3", body=b"an error frame", end=b""),
        frame("MESSAGE", "msg-id::4", more, body=b"ended by", end=b""),
        frame("MESSAGE", "msg-id::4", body=b" an error frame", end=b""),
        frame("MESSAGE", "msg-id::4", body=b"anew"),
    )
    return talk.record()


def semantic() -> Any:
    """SA-06, SA-14: what makes no sense is refused, the session goes on."""
    talk = Conversation().begin()
    talk.do("request", b"x", "one", {})
    talk.arrive(
        frame("MESSAGE", body=b"no id"),
        frame("MESSAGE", "msg-id::1", "ref-msg-id::1", body=b"two ids"),
        frame("MESSAGE", "ref-msg-id::1", "send-only::yes"),
        frame("MESSAGE", "msg-id::1", "error-code::5"),
        frame("MESSAGE", "msg-id::1", "client-passcode::x"),
        frame("MESSAGE", "msg-id::1", "session-expiry::x"),
        frame("MESSAGE", "msg-id::2", "client-id::x", "msg-more::yes", body=b"skipped", end=b""),
        frame("MESSAGE", "msg-id::2", body=b"to its end"),
        frame("MESSAGE", "ref-msg-id::99", "msg-more::yes", body=b"answer to", end=b""),
        frame("MESSAGE", "ref-msg-id::99", body=b"nothing"),
        frame("MESSAGE", "msg-id::2", body=b"fine"),
        frame("DISCONNECTING", "msg-id::3"),
    )
    return talk.record()


def cut() -> Any:
    """SA-22: a message is cut at its limit, never within a character; twice as much closes."""
    talk = Conversation(message_bytes=200).begin()
    talk.arrive(frame("MESSAGE", "msg-id::1", body="ü".encode() * 80))
    talk.arrive(frame("MESSAGE", "msg-id::2", body=b"x" + "ü".encode() * 80))
    talk.arrive(frame("MESSAGE", "msg-id::3", body=b"\xff" * 150))
    size = 200 - len(frame("MESSAGE", "msg-id::4"))
    talk.arrive(frame("MESSAGE", "msg-id::4", body=b"y" * (size - 1)))
    for id in ("1", "2"):
        talk.do("answer", id, b"", {})
    talk.do("refuse", "3", 500, "internal error")
    more = frame("MESSAGE", "msg-id::5", "msg-more::yes", body=b"z" * 30, end=b"")
    talk.arrive(*[more] * 6)
    return talk.record()


def times() -> Any:
    """SA-27: answers that do not come, parts that do not come."""
    talk = Conversation(response_seconds=20).begin()
    talk.do("request", b"x", "one", {})
    talk.wait(20.0)
    talk.arrive(frame("MESSAGE", "ref-msg-id::1"))
    talk.arrive(frame("MESSAGE", "msg-id::1", "msg-more::yes", body=b"part", end=b""))
    talk.wait(80.0)
    talk.arrive(frame("MESSAGE", "msg-id::1", "msg-more::yes", body=b"part", end=b""))
    talk.wait(140.0)
    talk.arrive(frame("MESSAGE", "msg-id::1", body=b"its late end"))
    talk.arrive(frame("MESSAGE", "msg-id::1", body=b"anew"))
    return talk.record()


def leaving() -> Any:
    """SA-12: DISCONNECT, answers that are owed, and a server that does not close."""
    talk = Conversation().begin()
    talk.do("request", b"x", "one", {})
    talk.serve("request", b"work", "a", 0.0)
    talk.do("disconnect")
    talk.do("answer", "1", b"done", {})
    talk.serve("answer", "1", b"last")
    talk.wait(30.0)
    return talk.record()


def left() -> Any:
    talk = Conversation().begin()
    talk.do("request", b"x", "one", {})
    talk.do("stop")
    talk.arrive(frame("MESSAGE", "ref-msg-id::1", body=b"nothing is read any more"))
    return talk.record()


def refused() -> Any:
    """SA-08: the server lets nobody in; the client may ask again."""
    talk = Conversation()
    talk.do("connect", "me", "wrong", {})
    talk.serve("reject", 0.0)
    talk.wait(10.0)
    talk.do("connect", "me", "right", {})
    talk.serve("accept", SESSION)
    return talk.record()


def unanswered() -> Any:
    talk = Conversation()
    talk.do("connect", "me", None, {})
    talk.wait(10.0)
    return talk.record()


def smaller() -> Any:
    """HO-01: the server takes less than we do, and says so."""
    talk = Conversation()
    talk.do("connect", "me", None, {})
    talk.arrive(
        f"CONNECTED\r\nsession-id::{SESSION}\r\nmessage-bytes::100\r\n\r\n\0".encode(),
    )
    talk.do("request", b"fits", "one", {})
    return talk.record()


def flooded() -> Any:
    """SA-27: too many requests, too many unfinished messages."""
    talk = Conversation(outstanding_requests=2, unfinished_messages=2).begin()
    talk.arrive(*(frame("MESSAGE", f"msg-id::{n}") for n in range(1, 4)))
    more = "msg-more::yes"
    talk.arrive(*(frame("MESSAGE", f"msg-id::{n}", more, end=b"") for n in range(10, 14)))
    talk.arrive(frame("MESSAGE", "msg-id::14", more, end=b""))
    return talk.record()


def faulty(*messages: bytes, begun: bool = True) -> Callable[[], Any]:
    """The server sends something that ends the session."""

    def script() -> Any:
        talk = Conversation()
        if begun:
            talk.begin()
        else:
            talk.do("connect", "me", None, {})
        talk.arrive(*messages)
        return talk.record()

    return script


SABC_SESSIONS: dict[str, Callable[[], Any]] = {
    "requests": requests,
    "served requests": served,
    "parts": parts,
    "frames that make no sense": semantic,
    "cut messages": cut,
    "times": times,
    "leaving": leaving,
    "left at once": left,
    "refused": refused,
    "no CONNECTED": unanswered,
    "a server that takes less": smaller,
    "floods": flooded,
    "no frame": faulty(b"whatever"),
    "another session": faulty(b"MESSAGE\r\nsession-id::x\r\nmsg-id::1\r\n\r\n\0"),
    "no session": faulty(b"MESSAGE\r\nmsg-id::1\r\n\r\n\0"),
    "a CONNECT": faulty(b"CONNECT\r\nclient-id::x\r\n\r\n\0"),
    "a second CONNECTED": faulty(frame("CONNECTED")),
    "CONNECTED without a session": faulty(b"CONNECTED\r\na::b\r\n\r\n\0", begun=False),
    "CONNECTED with an empty one": faulty(b"CONNECTED\r\nsession-id::\r\n\r\n\0", begun=False),
    "a message before CONNECTED": faulty(frame("MESSAGE", "msg-id::1"), begun=False),
    "bytes behind an end mark": faulty(frame("MESSAGE", "msg-id::1", body=b"x") + b"y"),
    "bytes behind DISCONNECTING": faulty(frame("DISCONNECTING") + b"MORE THAN A COMMAND"),
    "DISCONNECTING": faulty(frame("DISCONNECTING")),
}
