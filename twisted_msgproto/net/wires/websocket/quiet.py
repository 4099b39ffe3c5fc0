"""Replace what autobahn logs and times by what this package does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol as Shape

from twisted.logger import Logger

from twisted_msgproto.core.errors import shown

log = Logger(namespace="twisted_msgproto.net.wires.websocket")


class Call(Shape):
    """Is what ``callLater`` returns."""

    def cancel(self) -> None:
        """Forget it."""

    def active(self) -> bool:
        """It may still happen."""


class Clock(Shape):
    """Describes what is needed of a reactor here: time only."""

    def seconds(self) -> float:
        """Return what time it is."""

    def callLater(self, delay: float, callable: Callable[..., object], *args: object) -> Call:
        """Call ``callable`` after ``delay`` seconds."""


class QuietLog:
    """autobahn's log lines: what peers sent is escaped and cut, and debug lines cost nothing."""

    def debug(self, *args: object, **values: object) -> None:
        """Drop the line: autobahn writes several for each frame."""

    def info(self, text: str = "", **values: object) -> None:
        """Told as debug, with every value escaped: these are a peer's doings, not ours."""
        safe = {name: shown(str(value)) for name, value in values.items()}
        log.debug("{text}", text=text.format(**safe) if safe else text)

    warn = error = critical = info


class PlainTimer:
    """autobahn's timers, on the factory's own clock."""

    __slots__ = ("clock",)

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def call_later(self, delay: float, function: Callable[..., object], *args: object) -> Call:
        """Return a plain ``callLater``: autobahn's own buckets cancel in linear time."""
        return self.clock.callLater(delay, function, *args)
