"""A clock with a heap: the whole world's time, and per-process views of it which can die."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import AlreadyCalled, ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IPushProducer, ITransport
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


# ── A connection between two protocols which cuts, delays, holds back and breaks ──

BUFFER_BYTES = 65_536
"""Unread bytes above which the writing side is told to pause."""

FRAGMENTS_MAX = 5
"""So many pieces of one write are cut off it; the rest arrives as a whole."""


@implementer(ITransport, IPushProducer)
class End:
    def __init__(self, pipe: Pipe, clock: Any, port: int) -> None:
        self._pipe = pipe
        self._clock = clock
        self._port = port
        self.peer: End = self
        self.protocol: Any = None
        self.open = True
        self.dead = False  # its process is gone: nothing is called any more
        self.disconnecting = False
        self.bufferSize = BUFFER_BYTES
        self.unread = 0  # bytes which the peer has not got yet
        self._inbox: deque[bytes | None] = deque()  # None: the peer has closed
        self._paused = False
        self._producer: Any = None
        self._producer_paused = False
        self._arrival = 0.0

    @property
    def paused(self) -> bool:
        """This end does not read."""
        return self._paused

    # ── what a protocol calls ───────────────────────────────────────────────────────────────────

    def write(self, data: bytes) -> None:
        pipe, source = self._pipe, self._pipe.source
        if not self.open or not data:
            return
        data = bytes(data)
        self.unread += len(data)
        # Where in a long write it is cut into crumbs: at its beginning, at its end, or between.
        crumbs = FRAGMENTS_MAX
        position = 0
        if len(data) > crumbs * pipe.fragment and source.random() < 0.5:
            position = source.randrange(1, len(data))
            self._send(data[:position])
        while position < len(data):
            rest = len(data) - position
            whole = not crumbs or source.random() < pipe.whole
            size = rest if whole else source.randint(1, min(rest, pipe.fragment))
            self._send(data[position : position + size])
            position += size
            crumbs -= 1
        if self._producer is not None and self.unread > self.bufferSize:
            self._pause_producer()

    def writeSequence(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def loseConnection(self) -> None:
        if self.open and not self.disconnecting:
            self.disconnecting = True
            self._send(None)

    def abortConnection(self) -> None:
        if self.open:
            self._pipe.broken = True
            self._pipe.clock.callLater(0, self._lose, ConnectionAborted())
            self.peer._notice()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        if self._paused:
            self._paused = False
            self._pipe.clock.callLater(0, self._deliver)

    def stopProducing(self) -> None:
        self.loseConnection()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.1", self.peer._port)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.1", self._port)

    # ── the way of the bytes ───────────────────────────────────────────────────────────────────

    def _send(self, fragment: bytes | None) -> None:
        pipe = self._pipe
        delay = pipe.source.random() * pipe.delay
        self._arrival = max(self._arrival, pipe.clock.now + delay)
        pipe.clock.callLater(self._arrival - pipe.clock.now, self.peer._arrive, fragment)

    def _arrive(self, fragment: bytes | None) -> None:
        if self._pipe.broken or not self.open:
            return
        self._inbox.append(fragment)
        self._deliver()

    def _deliver(self) -> None:
        while self._inbox and not self._paused and self.open and not self._pipe.broken:
            fragment = self._inbox.popleft()
            if fragment is None:
                self.peer._lose(ConnectionDone())
                self._lose(ConnectionDone())
                return
            self.peer._read(len(fragment))
            if not self.dead:
                self.protocol.dataReceived(fragment)

    def _read(self, nbytes: int) -> None:
        self.unread -= nbytes
        if self._producer is not None and self._producer_paused and not self.unread:
            self._producer_paused = False
            if not self.dead:
                self._producer.resumeProducing()

    def _pause_producer(self) -> None:
        if not self._producer_paused:
            self._producer_paused = True
            self._producer.pauseProducing()

    def _notice(self) -> None:
        """The connection is broken; this end finds out after a while."""
        pipe = self._pipe
        pipe.clock.callLater(pipe.source.random() * pipe.half_open, self._lose, ConnectionLost())

    def _lose(self, reason: Exception) -> None:
        if self.open:
            self.open = False
            self._inbox.clear()
            if not self.dead:
                self.protocol.connectionLost(Failure(reason))


class Pipe:
    """Both ends.  ``world`` has ``clock``, ``source`` (random) and the options of the faults."""

    def __init__(self, world: Any, client_clock: Any, server_clock: Any, number: int) -> None:
        options = world.options
        self.clock = world.clock
        self.source = world.source
        self.whole: float = options["whole"]
        self.fragment: int = options["fragment"]
        self.delay: float = options["delay"]
        self.half_open: float = options["half_open"]
        self.broken = False
        self.client = End(self, client_clock, 40_000 + number)
        self.server = End(self, server_clock, 5044)
        self.client.peer, self.server.peer = self.server, self.client

    @property
    def live(self) -> bool:
        """One end at least does not know yet that the connection has ended."""
        return self.client.open or self.server.open

    def cut(self) -> None:
        """The network breaks: nothing arrives any more, and each end finds out by itself."""
        if self.live and not self.broken:
            self.broken = True
            self.client._notice()
            self.server._notice()

    def kill_server(self) -> None:
        """The server's process dies: its end is silent, the other finds out after a while."""
        self.server.dead = True
        self.server.open = False
        if self.client.open:
            self.broken = True
            self.client._notice()
