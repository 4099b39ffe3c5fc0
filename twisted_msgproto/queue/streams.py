"""A server's range readers share a number of places: :class:`Streams` decides who may read at the
same time.

A reader that reads nothing occupies a batch in memory and a thread of the server, until it ends.
So it must not keep its place from others as well.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

STREAMS_MAX = 16
"""Ranges read at the same time: each reads segments and holds a batch in memory."""
STREAM_IDLE_SECONDS = 30.0
"""A reader may read nothing for this many seconds before another one may have its place.

A working Spark task reads the next batch within a second; one that waits this long hangs.
"""
HUNG_PER_ADDRESS_MAX = 64
"""Streams that lost their place and did not end, by address: each keeps a thread and a batch."""


class Stream:
    """One reader's place.  ``lost`` says that another one has it now."""

    __slots__ = ("_streams", "address", "lost", "waits_since")

    def __init__(self, streams: Streams, address: str) -> None:
        self._streams = streams
        self.address = address
        self.lost = False
        self.waits_since: float | None = None
        """The reader has not read the last batch since this time; None while we prepare the next
        one.
        """

    def give(self) -> None:
        """Note that a batch was sent: from now on the reader has to read it."""
        self.waits_since = self._streams.clock()

    def taken(self) -> bool:
        """Note that the reader has read it; return True if it still has its place."""
        self.waits_since = None
        return not self.lost

    def end(self) -> None:
        """Release the place.  May be called again."""
        self._streams.end(self)


class Streams:
    """Places for at most ``places`` streams at once, used by many threads.

    ``clock`` returns seconds; a reader may read nothing for ``idle`` seconds.
    """

    def __init__(
        self,
        places: int = STREAMS_MAX,
        idle: float = STREAM_IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._places = places
        self._idle = idle
        self._mutex = threading.Lock()
        self._active: set[Stream] = set()
        self._hung: set[Stream] = set()

    def begin(self, address: str) -> Stream | str:
        """Return a place for a reader at ``address``, or one line that says why there is none.

        If all are occupied, the reader that has read nothing for the longest time loses its own.
        """
        with self._mutex:
            if Counter(stream.address for stream in self._hung)[address] >= HUNG_PER_ADDRESS_MAX:
                return f"{HUNG_PER_ADDRESS_MAX} streams to {address} hang; end them first"
            if len(self._active) >= self._places and not self._make_room():
                return "too many streams at once; try again"
            stream = Stream(self, address)
            self._active.add(stream)
            return stream

    def _make_room(self) -> bool:
        now = self.clock()
        # A reader may take its batch at this very moment: look at each value once.
        waits = {stream: stream.waits_since for stream in self._active}
        since = {stream: at for stream, at in waits.items() if at is not None}
        longest = min(since, key=lambda stream: since[stream], default=None)
        if longest is None or now - since[longest] < self._idle:
            return False
        longest.lost = True
        self._active.discard(longest)
        self._hung.add(longest)
        return True

    def end(self, stream: Stream) -> None:
        """``stream`` is over."""
        with self._mutex:
            self._active.discard(stream)
            self._hung.discard(stream)
