"""Replace what autobahn logs and times by what this package does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol as Shape

from twisted.logger import Logger

from twisted_msgproto.core.errors import shown

log = Logger(namespace="twisted_msgproto.net.wires.websocket")


class Call(Shape):
    """What ``callLater`` returns."""

    def cancel(self) -> None:
        """Forget it."""

    def active(self) -> bool:
        """It may still happen."""


class Clock(Shape):
    """What is needed of a reactor here: time only."""

    def seconds(self) -> float:
        """Return what time it is."""

    def callLater(self, delay: float, callable: Callable[..., object], *args: object) -> Call:
        """Call ``callable`` after ``delay`` seconds."""


class QuietLog:
    """Takes autobahn's log lines, of which most are dropped.

    It writes two or three for each connection that a peer spoils: one address could fill the log.
    What has to be known of peers is told by lines of our own, which are summed up.
    """

    def debug(self, *args: object, **values: object) -> None:
        """Drop the line; the others that are about peers are dropped, too."""

    info = warn = debug

    def error(self, text: str = "", **values: object) -> None:
        """Tell as debug, with every value escaped: something has failed in autobahn."""
        safe = {name: shown(str(value)) for name, value in values.items()}
        log.debug("{text}", text=text.format(**safe) if safe else text)

    critical = error


class PlainTimer:
    """autobahn's timers, on the factory's own clock."""

    __slots__ = ("clock",)

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def call_later(self, delay: float, function: Callable[..., object], *args: object) -> Call:
        """Return a plain ``callLater``: autobahn's own buckets cancel in linear time."""
        return self.clock.callLater(delay, function, *args)
