"""A :class:`Publication` follows the messages of one read through the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.broker import LETTER_OCTETS
from .connection import Arrived

if TYPE_CHECKING:
    from .sides import MicroMsg2Server


class Publication:
    """Follows messages of one read to topics and queues; then they are acknowledged."""

    __slots__ = ("_accepted", "_arrived", "_octets", "_parts", "_paused", "_server")

    def __init__(self, server: MicroMsg2Server, arrived: Arrived, parts: int) -> None:
        """``parts`` says how often :meth:`came` will be called."""
        self._server = server
        self._arrived = arrived
        self._parts = parts
        self._accepted = arrived.envelopes is None
        self._octets = 0
        self._paused = False

    def wait(self) -> None:
        """Unless all is done, the octets are withheld; and a sender of much waits for its turn."""
        if not self._parts and self._accepted:
            return
        event = self._arrived.event
        self._octets = event.octets + event.weight + LETTER_OCTETS * len(event.sequences)
        if self._parts:
            self._paused = True
            self._server.control.pause("fan-out")
        self._server.factory.withheld.add(self._server, self._octets)

    def came(self) -> None:
        """Some of it is where it belongs: with the subscribers of topics, or in its queues."""
        self._parts -= 1
        if self._paused and not self._parts:
            self._server.control.resume("fan-out")
        self._look()

    def accepted(self) -> None:
        self._accepted = True
        self._look()

    def _look(self) -> None:
        if not self._parts and self._accepted:
            if self._octets:
                self._server.factory.withheld.remove(self._server, self._octets)
            self._server.settled(self._arrived)
