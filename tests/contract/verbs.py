"""Every verb of every client: how it is called, and what it is called with to be refused.

:mod:`.test_verbs` walks this table.  What a client has beside its verbs stands here as well, so
that a new method is either a verb of the table or said to be none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from twisted_msgproto.net.authentication.sasl import PlainClient

Call = Callable[[Any], Any]

SURROGATE = "\ud800"
"""Text which no bytes can carry."""

LARGE = 17 << 20
"""Bytes which no limit allows."""


class Verb(NamedTuple):
    """One verb of a client, of its service, or of a flow.

    Attributes:
        of: whose verb it is: ``client``, ``service``, ``reader``, ``writer``.
        name: the method.
        call: a call which is good.
        answered: the server answers it; else its Deferred fires when it is written.
        large: a call above a limit of ours, if there is one.
        odd: a call with what cannot be written, if there is such a thing: text without bytes,
            bytes which are no text, a name which cannot be.
    """

    of: str
    name: str
    call: Call
    answered: bool = True
    large: Call | None = None
    odd: Call | None = None

    def __str__(self) -> str:
        return f"{self.of}.{self.name}"


def on(of: str, *verbs: tuple[Any, ...]) -> list[Verb]:
    return [Verb(of, *verb) for verb in verbs]


def document(nbytes: int = 1) -> bytes:
    return b'{"m":"%s"}' % (b"x" * nbytes)


def started(subscription: Any) -> Deferred[Any]:
    """UMQ's ``subscribe`` gives a subscription, and that has the Deferred."""
    deferred: Deferred[Any] = subscription.whenStarted()
    return deferred


def many(nbytes: int, piece: int = 1 << 16) -> Any:
    return (b"x" * piece for _ in range(nbytes // piece))


SHIPPED = (
    (
        "send",
        lambda one: one.send(document()),
        True,
        lambda one: one.send(document(LARGE)),
    ),
    (
        "sendBatch",
        lambda one: one.sendBatch([document(), document()]),
        True,
        lambda one: one.sendBatch([document(), document(LARGE)]),
    ),
)

SENT = (
    (
        "send",
        lambda one: one.send("orders", b"x"),
        True,
        lambda one: one.send("orders", b"x", {"a": "x" * 9000}),
        lambda one: one.send(SURROGATE, b"x"),
    ),
    (
        "sendMany",
        lambda one: one.sendMany("orders", [b"x", b"y"]),
        True,
        lambda one: one.sendMany("orders", [b"x", bytes(LARGE)]),
        lambda one: one.sendMany("orders", [b"x"], {"a": SURROGATE}),
    ),
)

SUBSCRIBED = (
    (
        "subscribe",
        lambda one: one.subscribe("topic/a"),
        False,
        lambda one: one.subscribe("x" * 70_000),
        lambda one: one.subscribe("topic/a", "n<=Tx"),
    ),
    ("unsubscribe", lambda one: one.unsubscribe("topic/a"), False),
)

TOLD = (
    (
        "sendCommand",
        lambda one: one.sendCommand("go", a="b"),
        False,
        lambda one: one.sendCommand("go", a="x" * 70_000),
        lambda one: one.sendCommand("go", a=SURROGATE),
    ),
    (
        "sendExtension",
        lambda one: one.sendExtension("pub-sub", b"x"),
        False,
        lambda one: one.sendExtension("pub-sub", bytes(70_000)),
        lambda one: one.sendExtension("unheard-of", b"x"),
    ),
    (
        "sendError",
        lambda one: one.sendError("code", "text"),
        False,
    ),
)

ASKED = (
    (
        "request",
        lambda one: one.request(b"x"),
        True,
        lambda one: one.request(bytes(1_500_000)),
        lambda one: one.request(SURROGATE),
    ),
    (
        "sendOnly",
        lambda one: one.sendOnly(b"x"),
        False,
        lambda one: one.sendOnly(bytes(1_500_000)),
        lambda one: one.sendOnly(b"x", headers={"a": "\n"}),
    ),
    (
        "sendError",
        lambda one: one.sendError(1, "text"),
        False,
        None,
        lambda one: one.sendError(1, "", headers={"a": "\0"}),
    ),
)

CALLED = (
    (
        "call",
        lambda one: one.call("x"),
        True,
        lambda one: one.call("x" * (2 << 20)),
        lambda one: one.call(SURROGATE),
    ),
    (
        "setAttribute",
        lambda one: one.setAttribute("a", "b"),
        False,
        lambda one: one.setAttribute("a", "x" * (2 << 20)),
        lambda one: one.setAttribute("a=b", "c"),
    ),
    ("unsetAttribute", lambda one: one.unsetAttribute("a"), False),
    (
        "callback",
        lambda one: one.callback("1", "x"),
        True,
        lambda one: one.callback("1", "x" * (2 << 20)),
        lambda one: one.callback("1", SURROGATE),
    ),
)

WRITTEN = (
    (
        "send",
        lambda one: one.send("events", b"x"),
        True,
        lambda one: one.send("events", bytes(9 << 20)),
        lambda one: one.send("events", b"x", {"a": SURROGATE}),
    ),
)

LEASED = (
    ("reader", lambda one: one.reader(["q"])),
    ("writer", lambda one: one.writer(["q"])),
)


def plain(names: Sequence[str]) -> Any:
    return PlainClient("me", "right")


VERBS: dict[str, list[Verb]] = {
    "lumberjack": [*on("client", *SHIPPED), *on("service", *SHIPPED)],
    "micromsg2": [
        *on(
            "client",
            *SENT,
            *SUBSCRIBED,
            *TOLD,
        ),
        *on("service", *SENT, *SUBSCRIBED, *TOLD),
    ],
    "sabc": [
        *on(
            "client",
            *ASKED,
            (
                "request",
                lambda one: one.request(many(1 << 17)),
                True,
                lambda one: one.request(many(2 << 20)),
                lambda one: one.request(iter([b"x"]), headers={"a": "\n"}),
            ),
            (
                "sendOnly",
                lambda one: one.sendOnly(many(1 << 17)),
                False,
                None,
                lambda one: one.sendOnly(iter([b"x"]), headers={"a": "\n"}),
            ),
        ),
        *on("service", *ASKED),
    ],
    "umq": [
        *on(
            "client",
            *CALLED,
            (
                "subscribe",
                lambda one: started(one.subscribe(lambda id: id)),
                True,
                lambda one: started(one.subscribe(lambda id: "x" * (2 << 20))),
                lambda one: started(one.subscribe(lambda id: SURROGATE)),
            ),
        ),
        *on("service", *CALLED),
    ],
    "mtl": [
        *on(
            "client",
            ("open", lambda one: one.open("host")),
            ("authorize", lambda one: one.authorize(plain)),
            ("profile", lambda one: one.profile("queue")),
            *LEASED,
        ),
        *on(
            "writer",
            *WRITTEN,
            (
                "sendMany",
                lambda one: one.sendMany("events", [b"x", b"y"]),
                True,
                lambda one: one.sendMany("events", [b"x", bytes(9 << 20)]),
                lambda one: one.sendMany(SURROGATE, [b"x"]),
            ),
        ),
        *on(
            "reader",
            ("summon", lambda one: one.summon("q"), True, None, lambda one: one.summon(SURROGATE)),
            ("dismiss", lambda one: one.dismiss("q")),
        ),
        *on("service", *WRITTEN, *LEASED),
    ],
}
VERBS["sabc-ws"] = VERBS["sabc"]

WRONG: dict[str, list[Call]] = {
    "lumberjack": [
        lambda one: one.send("{}"),
        lambda one: one.sendBatch(None),
        lambda one: one.sendBatch(Deferred()),
    ],
    "micromsg2": [
        lambda one: one.send(b"orders", b"x"),
        lambda one: one.send("orders", "x"),
        lambda one: one.sendMany(None, [b"x"]),
        lambda one: one.subscribe(b"topic/a"),
        lambda one: one.subscribe("topic/a", b"n<=N5"),
        lambda one: one.subscribe("topic/a", 5),
        lambda one: one.unsubscribe(None),
        lambda one: one.sendCommand("go", a=5),
        lambda one: one.sendError(None, "text"),
        lambda one: one.sendError("code", b"text"),
    ],
    "sabc": [
        lambda one: one.request(5),
        lambda one: one.request(b"x", timeout="5"),
        lambda one: one.sendOnly(None),
        lambda one: one.sendError(None, "text"),
        lambda one: one.sendError(1.5),
        lambda one: one.sendError(1, None),
        lambda one: one.sendError(1, b"text"),
    ],
    "umq": [
        lambda one: one.call(b"x"),
        lambda one: one.call("x", timeout="5"),
        lambda one: one.call("x", Deferred()),
        lambda one: one.setAttribute("x", 3),
        lambda one: one.setAttribute("x", "y", [3]),
        lambda one: one.unsetAttribute(None),
        lambda one: one.registerCallback("x"),
        lambda one: one.serveAfter(None),
        lambda one: one.closeSession("1"),
        lambda one: one.closeSession(1, b"text"),
    ],
    "mtl": [
        lambda one: one.open(3),
        lambda one: one.authorize("me"),
        lambda one: one.profile(None),
        lambda one: one.profile(float("nan")),
        lambda one: one.reader("q"),
        lambda one: one.reader([3]),
        lambda one: one.reader(["q"], True),
        lambda one: one.reader(Deferred()),
        lambda one: one.writer([b"q"]),
        lambda one: one.writer(["q"], None),
    ],
}
"""Calls of a client with a wrong Python type."""
WRONG["sabc-ws"] = WRONG["sabc"]

LOCAL = {
    "registerProducer": "IConsumer",
    "unregisterProducer": "IConsumer",
    "write": "IConsumer: what becomes of it is logged",
    "decoded": "reads a body",
    "extension": "gives what was agreed",
    "openTopic": "the answer to a subscription, inside a method",
    "serveAfter": "has the peer wait, inside a method",
    "registerCallback": "gives an id, and sends nothing",
    "unregisterCallback": "sends nothing",
    "confirm": "an acknowledgement: who does not get it sends again",
    "reject": "as confirm",
    "perform": "a service's verbs are made of it",
    "UmqClientService.subscribe": "what it gives tells through whenEnded()",
    "watch": "tells states",
}
"""What is no verb, and why: nothing can fail, or somebody else is told."""

OF_ONE_SESSION = {
    "open": "a service opens its sessions by itself",
    "authorize": "as open, with the factory's credentials",
    "profile": "as open, with the factory's profile",
    "openTopic": "answers a call of the session in which it came",
    "serveAfter": "as openTopic",
    "extension": "what one session has agreed",
    "decoded": "as extension",
    "leave": "a service's close",
    "disconnect": "a service's close",
    "loseSession": "a service's abort",
    "closeSession": "a service's close",
}
"""What a client does, and its service does not, and why."""

ENDS = frozenset(
    {
        "whenEstablished",
        "close",
        "stopService",
        "disconnect",
        "leave",
        "abort",
        "loseSession",
        "closeSession",
        "whenEnded",
        "flush",
        "startService",
    }
)
"""How a client begins and ends; the rows about ends are about these."""

HOOKS = frozenset(
    {
        "sessionEstablished",
        "sessionLost",
        "batchReceived",
        "messageReceived",
        "requestReceived",
        "errorReceived",
        "commandReceived",
        "extensionReceived",
        "attributeChanged",
        "callReceived",
        "subscriptionEnded",
        "welcomed",
        "hello",
        "helloAttachments",
        "connectionEnded",
    }
)
"""What an application overrides."""

INSIDE = frozenset(
    {
        "flowEnded",
        "happened",
        "progressed",
    }
)
"""What links, wires, machines, flows and services say to each other."""
