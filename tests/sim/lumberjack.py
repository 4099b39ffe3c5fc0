"""Lumberjack in the simulated world: our shipper, or a Beats-like one, and our server."""

from __future__ import annotations

import struct
from typing import Any

from twisted.internet.protocol import Factory, Protocol

from tests.sim.clock import ProcessClock
from tests.sim.world import Violation, World
from twisted_msgproto.lumberjack import (
    LumberjackServerFactory,
    LumberjackShipper,
    encode_json,
    encode_window,
)
from twisted_msgproto.lumberjack.wire.frames import encode_compressed


class ShipperClient:
    def __init__(self, world: World, bodies: list[bytes]) -> None:
        source = world.source
        self._world = world
        self._bodies = bodies
        self.window = source.choice((1, 2, 5, 50))
        self.pipelining = source.choice((1, 1, 2, 4))
        self._chunk = source.choice((1, 3, 1000))
        self.shipper = LumberjackShipper(
            world.client_clock,
            [world.endpoint(world.client_clock)],
            window=self.window,
            compress=source.choice((0, 3)),
            pipelining=self.pipelining,
            limits={"timeout": 40.0},
            reconnectLimits={"retry-first": 0.1, "retry-most": 2.0},
            random=source.random,
        )

    def start(self) -> None:
        self.shipper.startService()
        for start in range(0, len(self._bodies), self._chunk):
            chunk = self._bodies[start : start + self._chunk]
            self.shipper.sendBatch(chunk).addCallback(self._acknowledged, chunk)

    def _acknowledged(self, result: object, chunk: list[bytes]) -> None:
        for body in chunk:
            self._world.acknowledged(body)

    def stop(self) -> None:
        self.shipper.stopService()

    def check(self) -> None:
        for client in self.shipper.factory.liveConnections:
            in_flight = client.link.machine.in_flight
            if in_flight > self.window * self.pipelining:
                raise Violation(f"{in_flight} in flight, window {self.window}")
        counters = self.shipper.factory.counters
        # Nobody answers on a connection which is broken and does not know it yet.
        if counters["faults"] > counters["fault:timeout"]:
            raise Violation(f"the writer reports faults: {counters}")


class BeatsLike(Protocol):
    """A foreign writer: W once or with every batch, numbers which go on, one ack read a window."""

    def connectionMade(self) -> None:
        self._heard = b""
        self.factory.owner.connected(self)  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        self._heard += data
        while len(self._heard) >= 6:
            _, kind, sequence = struct.unpack_from(">BBI", self._heard)
            self._heard = self._heard[6:]
            self.factory.owner.heard(kind, sequence)  # type: ignore[union-attr]

    def connectionLost(self, reason: Any = None) -> None:
        self.factory.owner.lost()  # type: ignore[union-attr]


class ForeignClient:
    """A writer as foreign programs are: its last window may stay short, its numbers may wrap."""

    def __init__(self, world: World, bodies: list[bytes]) -> None:
        source = world.source
        self._world = world
        self._bodies = bodies
        self.window = source.choice((1, 2, 5, 50))
        self.pipelining = 1
        self._once = source.random() < 0.5  # one W for ever
        self._number = source.choice((0, 1, 2**32 - 3, 2**31 - 2))
        self._compress = source.random() < 0.5
        self._done = 0
        self._flight: list[tuple[int, int]] = []  # (number, index)
        self._line: BeatsLike | None = None
        self._stopped = False
        self._factory = Factory.forProtocol(BeatsLike)
        self._factory.noisy = False
        self._factory.owner = self  # type: ignore[attr-defined]

    def start(self) -> None:
        self._connect()

    def _connect(self) -> None:
        way = self._world.endpoint(self._world.client_clock)
        way.connect(self._factory).addErrback(lambda failure: self._again())

    def _again(self) -> None:
        if not self._stopped:
            self._world.client_clock.callLater(0.5, self._connect)

    def connected(self, line: BeatsLike) -> None:
        self._line = line
        self._flight = []
        if self._once:
            self._write(encode_window(self.window))
        self._send()

    def _send(self) -> None:
        end = min(len(self._bodies), self._done + self.window)
        if end == self._done:
            return
        numbers = [(self._number + step) % 2**32 for step in range(end - self._done)]
        self._number = (self._number + len(numbers)) % 2**32
        self._flight = list(zip(numbers, range(self._done, end), strict=True))
        frames = encode_json(numbers, self._bodies[self._done : end])
        octets = encode_compressed(frames) if self._compress else frames
        self._write((b"" if self._once else encode_window(self.window)) + octets)

    def _write(self, nbytes: bytes) -> None:
        assert self._line is not None
        self._line.transport.write(nbytes)  # type: ignore[union-attr]

    def heard(self, kind: int, sequence: int) -> None:
        if kind != ord("A") or sequence not in (number for number, _ in self._flight):
            raise Violation(f"an ack of {sequence}, in flight {self._flight}")
        while self._flight:
            number, index = self._flight.pop(0)
            self._done = index + 1
            self._world.acknowledged(self._bodies[index])
            if number == sequence:
                break
        if not self._flight:
            self._send()

    def lost(self) -> None:
        self._line = None
        self._again()

    def stop(self) -> None:
        self._stopped = True
        if self._line is not None:
            self._line.transport.loseConnection()  # type: ignore[union-attr]

    def check(self) -> None:
        pass


class Lumberjack:
    name = "lumberjack"

    def __init__(self) -> None:
        self._kind: Any = None

    def make_server(self, world: World, sink: Any, clock: ProcessClock) -> Any:
        source = world.source
        if self._kind is None:
            self._kind = ShipperClient if source.random() < 0.7 else ForeignClient
        limits = {"unsafe-bytes": source.choice((500, 64 << 20)), "drain": 100.0}
        if self._kind is ForeignClient:
            limits["keepalive"] = 0  # it may have a frame 0 in flight, and take that for its ack
        return LumberjackServerFactory(
            sink,
            limits=limits,
            clock=clock,
            wallClock=clock.wall,
            shared=world.shared,
        )

    def make_client(self, world: World, bodies: list[bytes]) -> Any:
        self.client = self._kind(world, bodies)
        return self.client

    def duplicates_max(self, world: World) -> int:
        return len(world.pipes) * self.client.window * self.client.pipelining
