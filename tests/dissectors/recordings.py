"""One capture that holds every recorded session, for tshark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.lumberjack.frames import NAMES, captured
from tests.micromsg2.streams import CAPTURE, message, proposal, safe
from tests.tools.byte_streams import Capture
from twisted_msgproto.micromsg2 import machine as micromsg2
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.sabc.machine import Client, Server

DATA = Path(__file__).parent.parent / "data"
RECORDED = Path(__file__).parents[2] / "clients/js/test/recorded"
SESSION = "NaTPOgp1QUuB6Gm5tAdcSw"


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def wire(message: Any) -> str | bytes:
    return message if isinstance(message, str) else bytes.fromhex(message["hex"])


def reference_umq() -> list[tuple[str, str | bytes]]:
    """What the reference implementation's peers said to each other, by side."""
    found = []
    for line in (DATA / "umq" / "reference_session.txt").read_text().splitlines():
        arrow, _, text = line.strip().partition(" ")
        if arrow:
            octets = text.startswith("<bin")
            message = bytes(int(text[5:-1])) if octets else text
            found.append(("client" if arrow == "<-" else "server", message))
    return found


def messages_of(steps: list[dict[str, Any]]) -> list[tuple[str, list[str | bytes]]]:
    found = []
    for step in steps:
        found.append(("server", [wire(one) for one in step.get("receives", ())]))
        found.append(("client", [wire(one) for one in step["sends"]]))
    return [(side, messages) for side, messages in found if messages]


def sabc_on_tcp(announces: bool) -> list[tuple[str, bytes]]:
    """Our two machines on a byte stream: bodies with and without a length, in parts, and errors."""
    limits = SabcServerFactory(limits={"part-bytes": 16}).limits
    client, server = Client(limits), Server(limits)
    said: list[tuple[str, bytes]] = []

    def exchange() -> None:
        for side, here, there in (("client", client, server), ("server", server, client)):
            octets = here.outputs()
            if not announces:  # as peers do which know nothing of lengths
                octets = octets.replace(b"framing::length\r\n", b"")
            if octets:
                said.append((side, octets))
                there.receive(octets, 0.0)

    server.connection_made(0.0)
    client.connect("me", "Password@123", now=0.0)
    exchange()
    server.accept(SESSION)
    exchange()
    client.request(b"Hola", "a", 0.0, headers={"colour": "red"})
    client.request(b"", "b", 0.0)
    client.send_only("Grüße \0 in several parts, DISCONNECT\r\nwould be a command".encode())
    exchange()
    server.answer("1", b"Mundo!!!")
    server.fail("2", 409, "not today")
    server.settle(1)
    exchange()
    client.disconnect(0.0)
    exchange()
    return said


def micromsg2_session() -> list[tuple[str, bytes]]:
    """Our two machines: an extension by name, acknowledgements, a command that is refused."""
    client, server = micromsg2.Client(proposal("batch-ack:max-count=2")), micromsg2.Server()
    said: list[tuple[str, bytes]] = []

    def carry(nbytes: bytes, side: str) -> list[object]:
        if nbytes:
            said.append((side, nbytes))
        return (server if side == "client" else client).receive(nbytes, 0.0)

    client.open()
    for _ in range(3):
        carry(client.outputs(), "client")
        carry(server.outputs(), "server")
    messages = message(1, b"{}", "queue/jobs", b"size:N12;") + message(2, b"x" * 300)
    safe(server, carry(messages, "client"))
    carry(server.outputs(), "server")
    carry(b"\x01\x0ddance;with=me", "client")
    carry(server.outputs(), "server")
    return said


def capture(segment: int) -> tuple[Capture, list[str]]:
    """Every recorded session with segments of this size, and the names of the connections."""
    made, names = Capture(segment), []
    for name in NAMES:
        connection = made.connection(5044)
        sent, answered = captured(name)
        connection.client(sent)
        connection.server(answered)
        names.append(name)
    connection = made.connection(5045)
    for line in CAPTURE.read_text().splitlines():
        arrow, octets = line.split()
        (connection.client if arrow == "C>S" else connection.server)(bytes.fromhex(octets))
    names.append("micromsg2 reference")
    connection = made.connection(5045)
    for side, octets in micromsg2_session():
        (connection.client if side == "client" else connection.server)(octets)
    names.append("micromsg2")
    connection = made.connection(5048)
    connection.upgrade("umq")
    for side, one in reference_umq():
        connection.messages(side, [one])
    names.append("umq reference")
    for protocol, port in (("umq", 5048), ("sabc", 5047)):
        for name, session in recorded(f"{protocol}-sessions").items():
            connection = made.connection(port)
            connection.upgrade(protocol)
            for side, messages in messages_of(session["steps"]):
                connection.messages(side, messages)
            names.append(f"{protocol}: {name}")
    for announces in (True, False):
        connection = made.connection(5046)
        for side, octets in sabc_on_tcp(announces):
            (connection.client if side == "client" else connection.server)(octets)
        names.append(f"sabc on tcp, lengths: {announces}")
    return made, names
