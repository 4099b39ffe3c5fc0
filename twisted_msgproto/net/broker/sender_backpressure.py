"""Senders to full queues wait: :class:`SenderBackpressure` counts what they have sent.

The sender's acknowledgement is withheld, and above a limit for all of them a sender is not read any
more.  But its own acknowledgements may be what makes room: so a connection that owes some is always
read.  What it may send meanwhile has a bound and a deadline, and then it is told and ended.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from ..memory import ReadControl

REASON: Final = "broker-queues"

OWING_TIMES: Final = 4
"""All that waits may be at most this multiple of the limit, while some of its senders are read."""


class Sender(Protocol):
    """What is needed of a connection that sends to queues."""

    @property
    def control(self) -> ReadControl:
        """Return what pauses its reading."""

    @property
    def owes_settlements(self) -> bool:
        """Return whether it has letters of queues that it has not acknowledged."""

    def withheld_too_long(self) -> None:
        """Tell it and end it: too much of what it sent waits, or for too long."""


class SenderBackpressure:
    """Bytes that wait for room in queues, over all senders of one server.

    Attributes:
        limit: bytes; above it senders that owe no settlement are not read.
        waiting: bytes that wait now.
    """

    def __init__(self, limit: int, seconds: float, clock: Any) -> None:
        """A connection that owes settlements is ended when it has made none for ``seconds`` while
        there is too much; 0: never.  ``clock`` has ``callLater()``.
        """
        self.limit = limit
        self.waiting: int = 0
        self._seconds = seconds
        self._clock = clock
        self._own: dict[Sender, int] = {}
        self._paused: dict[Sender, None] = {}
        self._deadlines: dict[Sender, Any] = {}

    @property
    def pressing(self) -> bool:
        return bool(self._paused or self._deadlines)

    def add(self, sender: Sender, nbytes: int) -> None:
        self.waiting += nbytes
        self._own[sender] = self._own.get(sender, 0) + nbytes
        if self.waiting > self.limit:
            self._look(sender)

    def _look(self, sender: Sender) -> None:
        if not sender.owes_settlements:
            self._clear(sender)
            self._paused[sender] = None
            sender.control.pause(REASON)
        elif self.waiting > self.limit * OWING_TIMES:
            sender.withheld_too_long()
        else:
            self._paused.pop(sender, None)
            sender.control.resume(REASON)
            if self._seconds and sender not in self._deadlines:
                self._deadlines[sender] = self._clock.callLater(self._seconds, self._late, sender)

    def _late(self, sender: Sender) -> None:
        del self._deadlines[sender]
        sender.withheld_too_long()

    def _clear(self, sender: Sender) -> None:
        deadline = self._deadlines.pop(sender, None)
        if deadline is not None:
            deadline.cancel()

    def settled(self, sender: Sender) -> None:
        """Note that ``sender`` has acknowledged letters; call it while this is ``pressing``."""
        if sender in self._deadlines:
            self._clear(sender)
            self._look(sender)

    def owing(self, sender: Sender) -> None:
        """Note that ``sender`` has letters to acknowledge; call it while this is ``pressing``."""
        if sender in self._paused:
            self._look(sender)

    def remove(self, sender: Sender, nbytes: int) -> None:
        self.waiting -= nbytes
        left = self._own.get(sender, 0) - nbytes
        if left > 0:
            self._own[sender] = left
        else:
            self._own.pop(sender, None)
            self._clear(sender)
            if self._paused.pop(sender, True) is None:
                sender.control.resume(REASON)
        if self.waiting <= self.limit // 2 and self.pressing:
            for late in list(self._deadlines):
                self._clear(late)
            paused, self._paused = self._paused, {}
            for each in paused:
                each.control.resume(REASON)

    def forget(self, sender: Sender) -> None:
        """Note that ``sender`` is gone; what it sent still waits for room."""
        self._clear(sender)
        self._paused.pop(sender, None)
