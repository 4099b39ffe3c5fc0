#!/usr/bin/env python3
"""A vendor's extension to MicroMsg2, made without touching the package: who asked for a message?

``x-trace`` sends a frame with a trace id before each message which has one.  The server keeps the
id with the message (it lands in the table's ``fields`` as ``x-trace``), and answers the extension's
own command ``x-trace-count`` with a frame of the extension.

Run it: it starts a server and a client on this machine and prints what the server got.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from twisted_msgproto import Message
from twisted_msgproto.micromsg2 import (
    STANDARD,
    BadText,
    Extension,
    MicroMsg2Client,
    MicroMsg2Server,
    Offer,
    Proposal,
    connect,
    serve,
)

TRACE_BYTES_MAX = 64


class Trace(Extension):
    """What both sides know about ``x-trace``; one instance lives as long as its connection."""

    name = "x-trace"
    commands = frozenset({"x-trace-count"})
    has_frames = True
    annotates = True

    _trace = ""
    _seen = 0

    def frame_before(self, note: str | None) -> bytes | None:
        """Sending: the frame before a message, if its sender gave it a trace id."""
        return None if note is None else b"id:" + note.encode()

    def frame_received(self, payload: bytes) -> str | None:
        """Receiving: a trace id holds for the next message; a count is for the application."""
        if len(payload) > TRACE_BYTES_MAX:
            raise BadText(f"a trace has at most {TRACE_BYTES_MAX} bytes")
        kind, _, text = payload.decode("utf-8", "replace").partition(":")
        if kind == "count":
            return text
        self._trace = text
        self._seen += 1
        return None

    def fields(self) -> Mapping[str, str]:
        """Receiving: what the message which comes now has beside its properties."""
        trace, self._trace = self._trace, ""
        return {"x-trace": trace} if trace else {}

    @property
    def seen(self) -> int:
        """How many trace ids have come."""
        return self._seen


KNOWN = STANDARD.plus(Trace)
"""The standard extensions and ours: what both sides' factories are told."""


class TracedServer(MicroMsg2Server):
    """Prints messages with their traces, and says how many traces it has seen."""

    def messageReceived(self, message: Message) -> None:
        """Accepted, therefore acknowledged."""
        fields = message.fields or {}
        print(f"{message.destination}: {message.body!r} asked for by {fields.get('x-trace')}")

    def commandReceived(self, name: str, parameters: Mapping[str, str]) -> None:
        """``x-trace-count``: answered with a frame of the extension."""
        trace = self.extension("x-trace")
        assert isinstance(trace, Trace)
        self.sendExtension("x-trace", b"count:%d" % trace.seen)


class TracedClient(MicroMsg2Client):
    """Notes the answer to its command."""

    def connectionMade(self) -> None:
        """A place for the answer."""
        self.count: Deferred[str] = Deferred()

    def extensionReceived(self, name: str, content: Any) -> None:
        """The server's count."""
        self.count.callback(content)


async def main(reactor: Any) -> None:
    """A server, a client, three messages."""
    known = Proposal(known=KNOWN)
    wanted = Proposal(required=(Offer("x-trace"), Offer("ack")), known=KNOWN)
    async with (
        serve("tcp:0:interface=127.0.0.1", server=TracedServer, proposal=known) as server,
        connect(server.addresses[0], client=TracedClient, proposal=wanted) as client,
    ):
        await client.send("orders", b"first", notes={"x-trace": "ann"})
        await client.send("orders", b"second", {"amount": 3}, notes={"x-trace": "ben"})
        await client.send("orders", b"third")
        await client.sendCommand("x-trace-count")
        print(f"traces seen by the server: {await client.count}")


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
