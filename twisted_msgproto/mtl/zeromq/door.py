"""The door of a ROUTER counts its connections and turns away those above the limits.

libzmq accepts as many connections as there are file descriptors, and each may fill its share of
memory.  It tells each descriptor that it has accepted, and each that it has lost.  A connection
above a limit is shut down at its descriptor, and its peer connects again later by itself.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import zmq

from ...net.peers import CROWDED
from .descriptors import address_of, shut_down, standing

EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL

EVENT: Final = struct.Struct("=Hi")


class Door:
    """The connections of one server, through all its sockets.

    Attributes:
        connections: the address behind each descriptor that is connected; "" on ipc.
        refused: called with the address and the reason when a hand-shake fails; the address is ""
            where it is not known.
    """

    def __init__(
        self,
        limit: int,
        per_address: int,
        turned_away: Callable[[str], None],
        refused: Callable[[str, str], None] = lambda address, text: None,
        room: Callable[[str, Mapping[int, str]], int | None] = lambda address, connections: None,
    ) -> None:
        """``limit`` connections in all, ``per_address`` of one address (0: any number).

        ``turned_away(limit)`` is called with the name of the limit, ``refused(address, text)`` for
        who may not connect for another reason.  ``room(address, connections)`` returns the
        descriptor that is closed for a newcomer, or None; it is asked when nearly all that may
        connect have.
        """
        self._room = room
        self.refused = refused
        self.connections: dict[int, str] = {}
        self._limit = limit
        self._per_address = per_address
        self._turned_away = turned_away
        self._addresses: Counter[str] = Counter()
        self._listeners: dict[int, object] = {}  # by descriptor

    def failures(self, messages: list[list[bytes]], curve: bool) -> list[list[bytes]]:
        """Tell of hand-shakes that have failed; return the events that are about descriptors.

        libzmq tells of the descriptor right after the failure.
        """
        rest: list[list[bytes]] = []
        text = ""
        for message in messages:
            kind, value = EVENT.unpack(message[0])
            if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                text = failed_hand_shake(value, curve)
                continue
            if text and kind == zmq.EVENT_DISCONNECTED:
                self.refused(self.connections.get(value, ""), text)
                text = ""
            rest.append(message)
        return rest

    def happened(self, messages: list[list[bytes]], listener: object = None) -> None:
        """Follow everything that libzmq has to say now of the connections of one ``listener``.

        Listeners are asked one after the other.  So the end of a connection may be told after
        another listener has accepted one at the same descriptor; that one stays.
        """
        new: dict[int, str] = {}
        for event, where in messages:
            kind, descriptor = EVENT.unpack(event)
            new.pop(descriptor, None)
            if self._listeners.get(descriptor) is listener:
                self._forget(descriptor)
            if kind == zmq.EVENT_ACCEPTED:
                new[descriptor] = where.decode()
        for descriptor, endpoint in new.items():
            self._accepted(descriptor, endpoint, listener)

    def _forget(self, descriptor: int) -> None:
        self._listeners.pop(descriptor, None)
        address = self.connections.pop(descriptor, "")
        if address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def _accepted(self, descriptor: int, endpoint: str, listener: object) -> None:
        try:
            with standing(descriptor, endpoint) as connection:
                if connection is None:
                    return
                self._forget(descriptor)  # the end of its former owner is told later
                address = address_of(connection)
                if len(self.connections) >= self._limit * CROWDED:
                    self._make_room(address)
                limit = self._exceeded(address)
                if limit:
                    connection.shutdown(socket.SHUT_RDWR)
                    self._turned_away(limit)
                    return
        except OSError:
            return  # it has gone already
        self.connections[descriptor] = address
        self._listeners[descriptor] = listener
        if address:
            self._addresses[address] += 1

    def _make_room(self, address: str) -> None:
        """Close a silent connection for a newcomer, if there is one."""
        silent = self._room(address, self.connections)
        if silent is not None:
            where = self.connections[silent]
            self._forget(silent)
            shut_down(silent, (where,))

    def _exceeded(self, address: str) -> str:
        if len(self.connections) >= self._limit:
            return "connections"
        if address and self._per_address and self._addresses[address] >= self._per_address:
            return "connections-per-address"
        return ""


def failed_hand_shake(error: int, curve: bool) -> str:
    """Return what is wrong with a peer whose hand-shake ended with this error of libzmq's."""
    if error == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return (
            "it has no CURVE keys, and --curve-key wants them"
            if curve
            else ("it wants CURVE, and there is no --curve-key")
        )
    if error == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
        return "it has another public key for this server than that of --curve-key"
    return "its hand-shake is none of ZeroMQ's"
