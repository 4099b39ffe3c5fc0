"""An MTL client of plain pyzmq, written from the protocol's text alone: nothing of ours in it."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import zmq

PATIENCE_MS = 20_000
LEASE, RESPONSE, SUMMON, DISMISS, CONTENT, CONFIRM, REJECT, PING, PONG = range(1, 10)


def short(text: str) -> bytes:
    octets = text.encode()
    return bytes([len(octets)]) + octets


class Plain:
    """A REQ socket for control, a DEALER socket for each data flow."""

    def __init__(
        self,
        address: str,
        *,
        correlate: bool = False,
        identity: bytes | None = None,
        prepare: Callable[[Any], object] = lambda socket: None,
    ) -> None:
        self.context = zmq.Context()
        self.address = address
        self.prepare = prepare
        self.control = self.socket(zmq.REQ)
        if correlate:
            self.control.set(zmq.REQ_CORRELATE, 1)
        if identity is not None:
            self.control.set(zmq.IDENTITY, identity)
        self.control.connect(address)

    def socket(self, kind: int) -> Any:
        socket = self.context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVTIMEO, PATIENCE_MS)
        self.prepare(socket)
        return socket

    def dealer(self, address: str, heartbeats: int = 0, identity: bytes = b"") -> Any:
        """A further socket, which is connected there, with heartbeats after so many ms."""
        socket = self.socket(zmq.DEALER)
        if heartbeats:
            socket.set(zmq.HEARTBEAT_IVL, heartbeats)
            # By itself it would give up where the machine is busy for so long.
            socket.set(zmq.HEARTBEAT_TIMEOUT, 60_000)
        if identity:
            socket.set(zmq.IDENTITY, identity)
        socket.connect(address)
        return socket

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *reason: object) -> None:
        self.context.destroy(linger=0)

    # ── control ─────────────────────────────────────────────────────────────────────────────────

    def ask(self, command: str, **body: Any) -> tuple[str, dict[str, Any]]:
        self.control.send_multipart(
            [
                command.encode(),
                json.dumps({k.replace("_", "-"): v for k, v in body.items()}).encode(),
            ]
        )
        status, reply = self.control.recv_multipart()
        return status.decode(), json.loads(reply)

    def open(self, host: str = "test-env") -> tuple[str, dict[str, Any]]:
        protocol = {"name": "MTL", "version": 1}
        return self.ask("Connection.Open", protocol=protocol, virtual_host=host)

    def ready(self, profile: str) -> Plain:
        assert self.open()[0] == "201"
        assert self.ask("Connection.Profile", profile=profile) == ("200", {"status": "OK"})
        return self

    def flow(
        self, way: str, resources: list[str], confirm: str = "full", *, lease: bool = True
    ) -> Flow:
        status, reply = self.ask(f"Connection.{way}", resources=resources, confirm=confirm)
        assert status == "202", reply
        socket = self.socket(zmq.DEALER)
        socket.connect(f"{self.address.rpartition(':')[0]}:{reply['port']}")
        flow = Flow(socket, reply["lease"])
        if lease:
            assert flow.lease() == b"200"
        return flow


class Flow:
    """A DEALER socket which speaks the data flow's commands and answers Ping with Pong."""

    def __init__(self, socket: Any, token: str) -> None:
        self.socket = socket
        self.token = token
        self.sequence = 0
        self.early: list[list[bytes]] = []

    def send(self, kind: int, fields: bytes = b"", body: bytes = b"") -> None:
        self.socket.send_multipart([bytes([kind]) + fields, body])

    def command(self, kind: int, name: str) -> int:
        self.sequence += 1
        self.send(kind, struct.pack(">Q", self.sequence) + short(name))
        return self.sequence

    def receive(self) -> list[bytes]:
        """The next message which is neither Ping nor Pong."""
        if self.early:
            return self.early.pop(0)
        while True:
            header, body = self.socket.recv_multipart()
            if header == bytes([PING]):
                self.send(PONG)
            elif header != bytes([PONG]):
                return [header, body]

    def response(self, sequence: int) -> bytes:
        """The code of the Response to ``sequence``; what else comes before it is kept."""
        kept: list[list[bytes]] = []
        try:
            while True:
                header, body = self.receive()
                if header == struct.pack(">BQ", RESPONSE, sequence):
                    return body
                kept.append([header, body])
        finally:
            self.early = kept + self.early

    def lease(self) -> bytes:
        return self.response(self.command(LEASE, self.token))

    def summon(self, name: str) -> bytes:
        return self.response(self.command(SUMMON, name))

    def dismiss(self, name: str) -> bytes:
        return self.response(self.command(DISMISS, name))

    def content(self, name: str, body: bytes, table: bytes = b"\0\0\0\0") -> int:
        self.sequence += 1
        self.send(CONTENT, struct.pack(">Q", self.sequence) + short(name) + table, body)
        return self.sequence

    def get(self) -> tuple[int, str, bytes]:
        """The next content: its sequence, its resource, its body."""
        header, body = self.receive()
        kind, sequence, length = struct.unpack_from(">BQB", header)
        assert kind == CONTENT, header
        return sequence, header[10 : 10 + length].decode(), body

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        self.send(CONFIRM, struct.pack(">Q?", sequence, multiple))

    def confirmed(self, sequence: int) -> None:
        """Wait until ``sequence`` is confirmed, by itself or by a multiple Confirm."""
        while True:
            header, _ = self.receive()
            kind, found, multiple = struct.unpack(">BQ?", header)
            assert kind == CONFIRM
            if found == sequence or (multiple and found > sequence):
                return

    def quiet(self, seconds: float = 0.3) -> bool:
        """Nothing but Ping and Pong comes for so long."""
        if self.early:
            return False
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.socket.poll(int(left * 1000) + 1):
                header, body = self.socket.recv_multipart()
                if header == bytes([PING]):
                    self.send(PONG)
                elif header != bytes([PONG]):
                    self.early.append([header, body])
                    return False
        return True

    def pong(self) -> bool:
        """Ask for a sign of life: whatever was sent before has been looked at then."""
        self.send(PING)
        while True:
            header, body = self.socket.recv_multipart()
            if header == bytes([PONG]):
                return True
            if header == bytes([PING]):
                self.send(PONG)
            else:
                self.early.append([header, body])


def let_in(address: str) -> bool:
    """Whether the server greets a connection without libzmq, and then introduces itself."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\0" + b"NULL".ljust(20, b"\0")
    with socket.create_connection((host, int(port)), PATIENCE_MS / 1000) as connection:
        connection.sendall(greeting.ljust(64, b"\0"))
        with connection.makefile("rb") as stream:
            return stream.read(64 + 2 + 6).endswith(b"\x05READY")


def dealer_from(client: Plain, source: str, address: str) -> Any:
    """A socket which connects from this address of this machine."""
    dealer = client.context.socket(zmq.DEALER)
    dealer.set(zmq.RCVTIMEO, PATIENCE_MS)
    dealer.connect(f"tcp://{source}:0;{address}")
    return dealer
