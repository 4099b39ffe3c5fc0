"""Conversations of a UMQ client with our server, both of them machines without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.umq.pairs import base36
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.umq import UmqServerFactory
from twisted_msgproto.umq import terms as told
from twisted_msgproto.umq.machine import Client, Server
from twisted_msgproto.umq.machine.attachments import Slot

Message = str | bytes


def wire(message: Message) -> Any:
    """A message as JSON; of an F only the code, since its text is anybody's own."""
    if isinstance(message, bytes):
        return {"hex": message.hex()}
    return message.partition(" ")[0] if message.startswith("F") else message


def attachments(entries: Sequence[told.Attachment]) -> list[Any]:
    return [{"lost": e.text} if isinstance(e, told.AttachmentFailure) else wire(e) for e in entries]


def as_json(event: Any) -> dict[str, Any] | None:
    """An event as the machine in JavaScript reports it; None for what that one leaves out."""
    match event:
        case told.WelcomeReceived(version, payload, bodies):
            return {"type": "welcome", "version": version, "payload": payload} | _with(bodies)
        case told.CallReceived(id, payload, bodies):
            return {"type": "call", "id": id, "payload": payload} | _with(bodies)
        case told.CallbackReceived(id, callback, payload, bodies):
            found = {"type": "callback", "id": id, "callback": base36(callback)}
            return found | {"payload": payload} | _with(bodies)
        case told.ResultReceived(number, waiter, payload, bodies):
            found = {"type": "result", "number": base36(number), "waiter": waiter}
            return found | {"payload": payload} | _with(bodies)
        case told.ErrorReceived(number, waiter, payload):
            number = base36(number)
            return {"type": "error", "number": number, "waiter": waiter, "payload": payload}
        case told.CallExpired(number, waiter):
            return {"type": "expired", "number": base36(number), "waiter": waiter}
        case told.TopicUpdated(topic, payload, bodies):
            return {"type": "update", "topic": base36(topic), "payload": payload} | _with(bodies)
        case told.TopicClosed(topic):
            return {"type": "topic-closed", "topic": base36(topic)}
        case told.TopicUnsubscribed(topic):
            return {"type": "unsubscribed", "topic": base36(topic)}
        case told.AttributeSet(name, value, bodies):
            return {"type": "set", "name": name, "value": value} | _with(bodies)
        case told.AttributeUnset(name):
            return {"type": "unset", "name": name}
        case told.FatalReceived(code, text):
            return {"type": "fatal", "code": code, "text": text}
        case Fault():
            return {"type": "fault", "reason": event.reason, "code": int(event.code)}
    return None


def _with(bodies: Sequence[told.Attachment]) -> dict[str, Any]:
    return {"attachments": attachments(bodies)}


class Conversation:
    """Both machines, and what they have said: ``steps`` is the recording."""

    def __init__(self, **limits: float) -> None:
        self.limits = {name.replace("_", "-"): value for name, value in limits.items()}
        self.client = Client(UmqServerFactory(limits=self.limits).limits, 0.0)
        self.server = Server(now=0.0)
        self.steps: list[dict[str, Any]] = []
        self.now = 0.0
        self.slots: list[Slot] = []

    def record(self) -> dict[str, Any]:
        return {"limits": self.limits, "steps": self.steps}

    def _sent(self, step: dict[str, Any]) -> None:
        out = self.client.outputs()
        self.steps.append(step | {"now": self.now, "sends": [wire(message) for message in out]})
        self.server.receive(out, self.now)

    def slot(self) -> Slot:
        self.slots.append(Slot())
        return self.slots[-1]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Slot):
            return {"slot": self.slots.index(value)}
        if isinstance(value, list):
            return [self._argument(entry) for entry in value]
        return wire(value) if isinstance(value, bytes) else value

    def do(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Have the client do something; the server reads what it says."""
        self.client.clock = self.now
        if verb == "callback":  # a verb of its own in JavaScript
            callback, *said = arguments
            result: Any = self.client.call(*said, callback, **options)
        else:
            result = getattr(self.client, verb)(*arguments, **options)
        given = [self._argument(argument) for argument in (*arguments, *options.values())]
        self._sent({"do": verb, "with": given})
        return result

    def call(self, payload: str, *bodies: bytes | Slot, waiter: str, deadline: float = 60.0) -> Any:
        return self.do("call", payload, list(bodies), waiter=waiter, deadline=deadline)

    def serve(self, verb: str, *arguments: Any) -> Any:
        """Have our server do something; the client reads what it says."""
        result = getattr(self.server, verb)(*arguments)
        self.arrive(*self.server.outputs())
        return result

    def arrive(self, *messages: Message) -> None:
        """The client reads ``messages``, whoever wrote them."""
        told_now = self.client.receive(messages, self.now)
        if any(isinstance(event, told.WelcomeReceived) for event in told_now):
            told_now += self.client.accept(self.now)
        events = [as_json(event) for event in told_now]
        step = {"receives": [wire_exactly(message) for message in messages]}
        self._sent(step | {"events": [event for event in events if event is not None]})

    def wait(self, now: float) -> None:
        self.now = now
        events = [as_json(event) for event in self.client.advance(now)]
        self._sent({"advance": now, "events": [event for event in events if event is not None]})

    def begin(self) -> Conversation:
        self.do("hello", "me:secret", [])
        self.serve("welcome", "welcome")
        return self


def wire_exactly(message: Message) -> Any:
    return {"hex": message.hex()} if isinstance(message, bytes) else message


def calls() -> Any:
    """UM-07, UM-09, UM-10: answers in another order, errors, answers to nothing."""
    talk = Conversation()
    talk.do("hello", "me:secret", [b"\0\1"])
    talk.serve("welcome", "welcome", [b"key"])
    for number in range(1, 40):
        talk.call(f'["method",{number}]', waiter=f"w{number}")
    for id in ("2", "12", "1"):
        talk.serve("result", id, f"result of {id}")
    talk.serve("error", "3", "6 not an RPC server")
    talk.serve("error", "4", "")
    talk.arrive("R3:late", "R0005:zeros", "!6:1 a later draft", "RZZZ:unknown", "E:nothing")
    talk.do("cancel", 7)
    talk.serve("result", "7", "too late")
    return talk.record()


def attached() -> Any:
    """UM-03, UM-04: attachments in order, with text between, lost, late and discarded ones."""
    talk = Conversation().begin()
    one, two = talk.slot(), talk.slot()
    talk.call("late", one, b"now", two, waiter="a")
    talk.call("plain", waiter="b")
    talk.do("fill", two, b"second")
    talk.do("fill", two, b"again")
    talk.do("fill", one, b"first")
    lost = talk.slot()
    talk.call("lost", lost, b"", waiter="c")
    talk.do("fill_error", lost, "it is gone")
    talk.arrive("A2:R1:two", b"\1", "R2:overtakes", b"", "A1:R3:one", "-:not there")
    talk.arrive("A2:R9:nobody waits", b"x", b"y", "A0:C1:none", "A:C2:none")
    talk.call("given up", waiter="d")
    talk.arrive("A2:R4:x", b"half")
    talk.do("cancel", 4)
    talk.arrive(b"rest", "C3:next")
    return talk.record()


def topics() -> Any:
    """UM-12 … UM-14: updates in order, unsubscribing, late updates, unknown topics."""
    talk = Conversation().begin()
    talk.do("subscribe")
    talk.call('["subscribe","news","1"]', waiter="s")
    talk.server.open_topic("1")
    talk.serve("publish", 1, "before the answer")
    talk.serve("result", "1", "true")
    talk.serve("publish", 1, "a picture", [b"png"])
    talk.arrive("A1:T1:first", "T1:second", "T2:other", b"of first")
    talk.arrive("A1:T1:x", "D1:", "T1:after the end", b"x", "T1:gone")
    talk.do("subscribe")
    talk.do("unsubscribe", 2)
    talk.arrive("T2:late", "A1:T2:late", b"late", "D2:", "T2:much later", "T2:again", "D7:")
    talk.do("subscribe")
    talk.do("unsubscribe", 3)
    talk.arrive("T3:late", "D3:", "T3:after the end")
    talk.wait(61.0)
    talk.arrive("T2:forgotten")
    return talk.record()


def published() -> Any:
    """UM-12 … UM-14 the other way: the client publishes, the server unsubscribes."""
    talk = Conversation().begin()
    talk.arrive('C1:["ticks","0A1"]')
    talk.do("open_topic", "0A1")
    talk.do("result", "1", "true", [])
    talk.do("publish", 361, "tick", [])
    talk.do("publish", 361, "tock", [b"sound"])
    talk.arrive("U0A1:", "UA1:", "UZZ:")
    talk.do("open_topic", "B")
    talk.do("close_topic", 11)
    return talk.record()


def attributes() -> Any:
    """UM-15, UM-16: spaces count, attachments belong to the value, order per name."""
    talk = Conversation().begin()
    talk.do("set_attribute", "name", " a = b ", [])
    talk.do("set_attribute", "picture", "png", [b"\x89PNG"])
    talk.do("unset_attribute", "name")
    talk.arrive("S:a=1", "S: b = 2 ", "X:a", "X:never", "A1:S:c=1", "S:c=2", "X:c", "S:d=4", b"c")
    talk.arrive("A1:S:e=1", "A1:S:e=2", b"first", b"second")
    talk.arrive("S:no sign")
    return talk.record()


def callbacks() -> Any:
    """UM-11: registered, unregistered, with attachments; the server's callbacks are called."""
    talk = Conversation().begin()
    talk.do("register_callback")
    talk.do("register_callback")
    talk.arrive("B1:1:work", "A1:B2:02:more", b"file", "B3:9:unknown", "A1:B4:9:unknown", b"lost")
    talk.do("result", "1", "done", [b"product"])
    talk.do("error", "2", "no time")
    talk.do("unregister_callback", 1)
    talk.arrive("B5:1:again")
    talk.do("callback", 15, "argument", [], waiter="cb", deadline=60.0)
    talk.arrive("R1:thanks", "C0099:echo")
    talk.do("result", "99", "with the id as it came", [])
    talk.arrive("B6:no colon")
    return talk.record()


def times() -> Any:
    """UM-19, UM-20: calls expire, attachments of ours are given up, the server's must come."""
    talk = Conversation().begin()
    talk.call("quick", waiter="q", deadline=5.0)
    talk.call("slow", waiter="s", deadline=500.0)
    talk.wait(5.0)
    talk.arrive("R1:too late")
    talk.call("never filled", talk.slot(), b"behind it", waiter="n", deadline=500.0)
    talk.wait(50.0)
    talk.arrive("A2:R2:half", b"one")
    talk.wait(109.0)
    talk.wait(110.0)
    return talk.record()


def no_welcome() -> Any:
    talk = Conversation()
    talk.do("hello", "", [])
    talk.wait(10.0)
    return talk.record()


def refused() -> Any:
    """UM-08: F is the server's last word."""
    talk = Conversation()
    talk.do("hello", "me:wrong", [])
    talk.serve("fatal", 1, "rejected")
    talk.arrive("W1:nothing is read any more")
    return talk.record()


def ended() -> Any:
    talk = Conversation().begin()
    talk.call("pending", waiter="p")
    talk.do("fatal", 8, "going away")
    return talk.record()


def barrier() -> Any:
    """UM-07: after the text of W everything may come, and waits for its attachments."""
    talk = Conversation()
    talk.do("hello", "", [])
    talk.arrive("A1:W1:x", "C1:early", "S:a=1", b"key", "C2:later")
    return talk.record()


def faulty(*messages: Message, begun: bool = True, **limits: float) -> Callable[[], Any]:
    """The server sends something that ends the session."""

    def script() -> Any:
        talk = Conversation(**limits)
        if begun:
            talk.begin()
        else:
            talk.do("hello", "", [])
        talk.arrive(*messages)
        return talk.record()

    return script


UMQ_SESSIONS: dict[str, Callable[[], Any]] = {
    "calls": calls,
    "attachments": attached,
    "topics": topics,
    "published topics": published,
    "attributes": attributes,
    "callbacks": callbacks,
    "times": times,
    "no welcome": no_welcome,
    "refused": refused,
    "ended": ended,
    "the barrier behind W": barrier,
    "a stray attachment": faulty(b"stray"),
    "an attachment before W": faulty(b"stray", begun=False),
    "a stray -": faulty("-:stray"),
    "an unknown command": faulty("Q1:"),
    "lower case": faulty("c1:"),
    "a call before W": faulty("C1:x", begun=False),
    "version 2": faulty("W2:", begun=False),
    "version 0": faulty("W0:", begun=False),
    "no version": faulty("W:", begun=False),
    "a second W": faulty("W1:"),
    "an H from the server": faulty("H1:"),
    "an id used twice": faulty("C1:x", "C01:y"),
    "F without a code": faulty("F0:no code"),
    "F with a code alone": faulty("F0:7"),
    "too many calls": faulty("C1:", "C2:", "A1:C3:", b"x", "C4:", calls=2),
    "too many attributes": faulty("S:a=1", "S:a=2", "S:b=1", attributes=1),
    "attributes too large": faulty("S:a=12345", "S:é=1234567", attributes_bytes=10),
    "an attachment too large": faulty("A1:C1:x", b"1234", "A1:C2:x", b"12345", attachment_bytes=4),
    "attachments too large": faulty("A2:C1:x", b"1234", b"5678", attachments_bytes=8),
    "too many announcements": faulty("A1:C1:", "A1:C2:", "A1:C3:", announcements=2),
    "too many wait": faulty("A1:S:a=1", "S:a=2", "C1:", "S:a=3", waiting_messages=2),
    "a payload too large": faulty(
        "C1:123456789", "C2:𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞", "C3:1234567890", payload_characters=9
    ),
}
