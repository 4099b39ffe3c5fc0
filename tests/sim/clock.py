"""A clock with a heap: the whole world's time, and per-process views of it which can die."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from twisted.internet.error import AlreadyCalled
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure
from zope.interface import implementer


@implementer(IDelayedCall)
class Call:
    __slots__ = ("_clock", "arguments", "call", "live", "time")

    def __init__(self, clock: HeapClock, time: float, call: Callable[..., Any], arguments: Any):
        self._clock = clock
        self.time = time
        self.call = call
        self.arguments = arguments
        self.live = True

    def active(self) -> bool:
        return self.live

    def cancel(self) -> None:
        if not self.live:
            raise AlreadyCalled
        self.live = False

    def getTime(self) -> float:
        return self.time

    def reset(self, seconds: float) -> None:
        self.time = self._clock.now + seconds
        self._clock.push(self)

    def delay(self, seconds: float) -> None:
        self.time += seconds
        self._clock.push(self)


class HeapClock:
    """``seconds()`` and ``callLater()``; ``step()`` runs the next call, whenever that is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stepped = 0.0
        """The wall clock was set by this many seconds, in all."""
        self.processes: list[ProcessClock] = []
        self._heap: list[tuple[float, int, Call]] = []
        self._order = itertools.count()

    def seconds(self) -> float:
        return self.now

    def callLater(self, seconds: float, call: Callable[..., Any], *args: Any, **kw: Any) -> Call:
        assert seconds >= 0, seconds
        made = Call(self, self.now + seconds, call, (args, kw))
        self.push(made)
        return made

    def push(self, call: Call) -> None:
        heapq.heappush(self._heap, (call.time, next(self._order), call))

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock, forwards or backwards; what is timed goes on as if nothing was."""
        self.stepped += seconds
        for process in self.processes:
            process.wall_stepped(seconds)

    def step(self) -> bool:
        """Run the next call; False if there is none."""
        while self._heap:
            time, _, call = heapq.heappop(self._heap)
            if call.live and call.time == time:
                self.now = time
                call.live = False
                args, kw = call.arguments
                call.call(*args, **kw)
                return True
        return False

    def waiting(self) -> list[Call]:
        return [call for time, _, call in self._heap if call.live and call.time == time]


THREAD_SECONDS = 0.01
"""Work in a thread begins after this time."""


class ProcessClock:
    """One process's view of the clock: when the process dies, its calls never come.

    It also is what the process takes for its reactor's threads.
    """

    def __init__(self, clock: HeapClock) -> None:
        self._clock = clock
        self._calls: dict[Call, None] = {}
        self.dead = False
        clock.processes.append(self)

    def seconds(self) -> float:
        return self._clock.now

    def callLater(self, seconds: float, call: Callable[..., Any], *args: Any, **kw: Any) -> Call:
        def run() -> None:
            self._calls.pop(made, None)
            if not self.dead:
                call(*args, **kw)

        made = self._clock.callLater(seconds, run)
        self._calls[made] = None
        return made

    def wall(self) -> float:
        """The time of day, in seconds since 1970."""
        return 1_700_000_000.0 + self._clock.now + self._clock.stepped

    def wall_stepped(self, seconds: float) -> None:
        """A reactor which counts monotonically does not notice."""

    def callFromThread(self, call: Callable[..., Any], *args: Any, **kw: Any) -> None:
        self.callLater(0, call, *args, **kw)

    def getThreadPool(self) -> ProcessClock:
        """Return what runs work in threads, one after the other: the clock itself."""
        return self

    def callInThreadWithCallback(
        self, told: Callable[[bool, Any], None], call: Callable[..., Any], *args: Any, **kw: Any
    ) -> None:
        def work() -> None:
            try:
                result = call(*args, **kw)
            except Exception:
                told(False, Failure())
            else:
                told(True, result)

        self.callLater(THREAD_SECONDS, work)

    def kill(self) -> None:
        self.dead = True
        for call in self._calls:
            call.live = False
        self._calls.clear()

    def waiting(self) -> list[Call]:
        return [call for call in self._calls if call.live]
