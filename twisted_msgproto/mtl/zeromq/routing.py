"""What a ROUTER knows of its peers: each goes by the name of its connection (``MT-30``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import zmq

from ...net.memory import OctetBudget
from ..machine.peers import SERIAL_OCTETS, Peer, connection_name
from .bounded import (
    FRAMES_KEPT,
    HEADER_WEIGHT,
    READ_OCTETS_PER_TURN,
    READS_PER_TURN,
    REQUEST_WEIGHT,
    Backlog,
    Bounds,
)
from .connections import DESCRIPTOR, PROPERTY, Connections
from .hooks import guarded
from .unfinished import EveryUnfinished, Unfinished
from .unread import CURVE_OCTETS, FRAME_OCTETS, EveryUnread, Unread

LAST_WORDS_SECONDS: Final = 0.1
"""From the end of a connection to when the socket is read on to the end of what it sent.

libzmq's thread tells of an end a moment before it hands over the last messages (after a reset).
"""

IPV4_MAPPED: Final = "::ffff:"
"""What an address begins with where a socket listens for both kinds, and this is one of IPv4."""

NO_SERIAL: Final = bytes(SERIAL_OCTETS)
"""At the end of a name: the connection has no serial (inproc), so nobody tells of its end."""

Routed = Callable[[list[list[bytes]], Mapping[bytes, Peer]], None]
"""Takes the messages of one read, each behind the name of its connection, and what is known of
connections by their names."""


class Routing:
    """What a ROUTER knows of who sent a message: the connection, its address, its key.

    Its peers go by the names of their connections and not by their identities, both ways.  What is
    to be sent to a connection that has ended is dropped: whoever has its identity by then is not
    meant.
    """

    socket: Any
    _received: Routed
    _backlogs: dict[bytes, Backlog]
    _lost: Callable[[bytes], None]
    _readSoon: Callable[[], None]
    _throwAway: Callable[[], bool]
    _within = False
    factory: Any

    def __init__(
        self,
        factory: Any,
        received: Any,
        bounds: Bounds,
        *,
        connections: Connections,
        leaving: Callable[[bytes], None] = lambda peer: None,
        left: Callable[[list[bytes]], None] = lambda peers: None,
        endless: Callable[[str, int], None] = lambda host, octets: None,
        every: EveryUnfinished,
        made_room: Callable[[str, int], None] = lambda host, octets: None,
        trusted: Callable[[bytes], bool] = lambda name: False,
        budget: OctetBudget | None = None,
        unread: Callable[[str, int], None] = lambda host, octets: None,
        curve: bool = False,
        **options: Any,
    ) -> None:
        """As :class:`Bounded`, and how connections end.

        ``leaving(peer)``: its connection has ended; what it sent before may still come.
        ``left(peers)``: that was all.  ``endless(host, octets)``: a connection was cut off, because
        so much of a message came which did not end; ``made_room(host, octets)``: because
        ``every`` unfinished message together are too much, of which those of a ``trusted(name)``
        weigh their octets only; ``unread(host, octets)``: because it did not read these
        octets, and all hold too much by ``budget``, which counts them.  ``curve``: connections
        have CURVE.
        """
        self._connections = connections
        self._leaving = leaving
        self._left = left
        self._names: dict[str, bytes] = {}  # by serial, of connections that stand
        self._identities: dict[bytes, bytes] = {}  # by name, of connections that stand
        self._peers: dict[bytes, Peer] = {}
        self._ended: dict[bytes, None] = {}  # names of connections that have ended just now
        self._silent: dict[bytes, None] = {}  # and of those that have when all was read
        self._waiting: Any = None
        self.unfinished = Unfinished(
            every, bounds, endless, self._readSoon, made_room=made_room, trusted=trusted
        )
        self._tellUnread = unread
        self._frame_octets = FRAME_OCTETS + (CURVE_OCTETS if curve else 0)  # beside its own
        self._unread: dict[bytes, Unread] = {}  # by name, of connections that stand
        super().__init__(factory, received, bounds, **options)  # type: ignore[call-arg]
        self._everyUnread = EveryUnread(
            factory.reactor, budget or OctetBudget(), self._backlogs, self._cutOff
        )

    def _slice(self, messages: list[list[bytes]]) -> bool:
        socket, names, flags, octets = self.socket, self._names, zmq.NOBLOCK, 0
        receive, option = socket.recv, socket.getsockopt
        if self._within and not self._throwAway():
            return True
        try:
            while len(messages) < READS_PER_TURN and octets < READ_OCTETS_PER_TURN:
                identity = receive(flags)
                # As a frame it knows its connection; the others are cheaper without.
                frame = receive(flags, False)
                parts = [identity, frame.bytes]
                if frame.more:
                    parts.append(receive(flags))
                    while option(zmq.RCVMORE):
                        octets += len(parts[-1])
                        if len(parts) == FRAMES_KEPT:
                            self._within, octets = True, READ_OCTETS_PER_TURN
                            break
                        parts.append(receive(flags))
                body = len(parts[-1])
                octets += len(parts[1]) * HEADER_WEIGHT + body
                if len(parts) > 3:
                    octets += body * REQUEST_WEIGHT
                serial = told(frame, PROPERTY)
                parts[0] = names.get(serial) or self._first(identity, serial, frame)
                messages.append(parts)
        except zmq.Again:
            return False
        if self._within:
            self.unfinished.too_many_frames(messages[-1][0])
        return True

    def _first(self, identity: bytes, serial: str, frame: Any) -> bytes:
        """Return the name of a connection that was not read from before, or which has ended."""
        if not serial:
            return identity + NO_SERIAL
        number = int(serial)
        name = connection_name(identity, number)
        if name not in self._peers:
            address = told(frame, "Peer-Address").removeprefix(IPV4_MAPPED)
            self._peers[name] = Peer(address, told(frame, "User-Id").encode())
            ended = partial(self._disconnected, name)
            descriptor = int(told(frame, DESCRIPTOR))
            if self._connections.stands(number, descriptor, ended):
                self.unfinished.named(name, descriptor)
                self._names[serial] = name
                self._identities[name] = identity
                self._unread[name] = Unread(self._everyUnread, name, descriptor)
            else:
                self._end(name)
        return name

    def _disconnected(self, name: bytes, serial: int) -> None:
        del self._names[str(serial)]
        self.unfinished.ended(name)
        self._end(name)

    def _end(self, name: bytes) -> None:
        """Nothing can be sent there any more; what it sent is read still."""
        self._forget(name)
        self._ended[name] = None
        guarded(self._leaving, name)
        if self._waiting is None:
            self._waiting = self.factory.reactor.callLater(LAST_WORDS_SECONDS, self._waited)

    def _forget(self, name: bytes) -> None:
        self._identities.pop(name, None)
        self._backlogs.pop(name, None)
        unread = self._unread.pop(name, None)
        if unread is not None:
            self._everyUnread.forget(unread)

    def _cutOff(self, peer: Unread, octets: int) -> None:
        """End a connection for what its peer has not read; the monitor tells when it has ended."""
        self._forget(peer.name)
        self.unfinished.end(peer.descriptor, octets, self._tellUnread)

    def _waited(self) -> None:
        self._waiting = None
        self._silent.update(self._ended)
        self._ended.clear()
        self._readSoon()

    def _readOn(self) -> None:
        """There was nothing more to read, so the connections that have ended will say no more."""
        self.unfinished.read_to_end()
        if self._silent:
            left, self._silent = list(self._silent), {}
            for name in left:
                self._peers.pop(name, None)
            guarded(self._left, left)

    def _unreachable(self, peer: bytes) -> None:
        if peer.endswith(NO_SERIAL):
            self._lost(peer)
        else:
            self._end(peer)

    def _sent(self, peer: bytes, parts: list[bytes]) -> bool:
        unread = self._unread.get(peer)
        if unread is not None and unread.passed >= unread.check_at and not unread.has_room():
            return peer not in self._unread  # what is for one that was cut off is dropped
        identity = self._identities.get(peer)
        if identity is None:
            if not peer.endswith(NO_SERIAL):
                return True
            identity = peer[: -len(NO_SERIAL)]
        frames = parts[1:]
        sent: bool = super()._sent(peer, [identity, *frames])  # type: ignore[misc]
        if sent and unread is not None:
            unread.passed += sum(map(len, frames)) + len(frames) * self._frame_octets
        return sent

    def _wait(self, peer: bytes, backlog: Backlog, parts: list[bytes]) -> None:
        super()._wait(peer, backlog, parts)  # type: ignore[misc]
        unread = self._unread.get(peer)
        if unread is not None:
            self._everyUnread.waits(unread, backlog)

    def _deliver(self, messages: list[list[bytes]]) -> None:
        self.unfinished.read(messages)
        guarded(self._received, messages, self._peers)

    def shutdown(self) -> None:
        self.unfinished.shutdown()
        self._everyUnread.shutdown()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        super().shutdown()  # type: ignore[misc]


def told(frame: Any, name: str) -> str:
    """Return what the metadata of a message says; "" where it has none (inproc)."""
    try:
        text: str = frame.get(name)
    except zmq.ZMQError:
        return ""
    return text
