"""Decide who is written next, and how much at a time: :class:`FairQueue` and :class:`GroupCost`.

Sessions share the disk by deficit round-robin: in each round a session may write a quantum of
bytes, so one that sends in bulk delays the others by no more than the group that is being written.
How large that group may be follows from what groups have cost lately.  Nothing here knows threads,
files or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

QUANTUM_BYTES: Final = 64 << 10  # one usual read of a socket
GROUP_SECONDS: Final = 0.020  # to write one group; others wait half of it on average
SYNC_SHARE: Final = 3.0  # syncs' worth of bytes a group: else slow disks would starve bulk
GROUP_BYTES_MIN: Final = 256 << 10  # smaller ones save no time: most of it is the sync
MEMORY: Final = 0.9  # weight that a group's cost keeps when the next is known: some ten count
SPREAD_MIN: Final = 0.1  # of groups' sizes, relative to their mean, to tell bytes from syncs

FIRST_SYNC_SECONDS: Final = 0.001

FIRST_BYTE_SECONDS: Final = 1e-8  # believed before anything was written: 100 MB/s
IDLE_SESSIONS_MAX: Final = 64  # many short connections would be kept for ever else

E = TypeVar("E")


class _Session(Generic[E]):
    __slots__ = ("deficit", "entries", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.entries: deque[tuple[E, int, int]] = deque()
        self.deficit = QUANTUM_BYTES


class FairQueue(Generic[E]):
    """Entries of many sessions, served in turns; those of one session stay in order.

    A session that had nothing to write comes before those that write all the time, once, with one
    quantum.  It cannot come first again before the others have had a turn.
    """

    __slots__ = ("_new", "_old", "_sessions", "entries")

    def __init__(self) -> None:
        self._sessions: dict[Hashable, _Session[E]] = {}
        self._new: deque[_Session[E]] = deque()
        self._old: deque[_Session[E]] = deque()  # may hold sessions whose entries are all taken
        self.entries: int = 0

    def add(self, key: Hashable, entry: E, messages: int, nbytes: int) -> None:
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session(key)
            self._new.append(session)
        session.entries.append((entry, messages, nbytes))
        self.entries += 1

    def take(self, messages_max: int, bytes_max: int) -> list[E]:
        """Remove and return the entries of the next group: at least one if any entry waits.

        They have at most ``bytes_max`` bytes, unless the first alone is larger.  The last may go
        beyond ``messages_max``: a single message must not wait for a group of its own because each
        entry of a bulk sender reaches that number.
        """
        taken: list[E] = []
        messages = nbytes = 0
        while self.entries:
            queue = self._new or self._old
            session = queue[0]
            waiting = session.entries
            if not waiting:  # its turn has come, and it has nothing more: it is idle
                queue.popleft()
                del self._sessions[session.key]
                continue
            entry, entry_messages, entry_bytes = waiting[0]
            if session.deficit < entry_bytes and len(self._sessions) > 1:
                session.deficit += QUANTUM_BYTES
                self._old.append(queue.popleft())
                continue
            if taken and (messages >= messages_max or nbytes + entry_bytes > bytes_max):
                break
            messages += entry_messages
            nbytes += entry_bytes
            waiting.popleft()
            taken.append(entry)
            self.entries -= 1
            # Alone a session owes nobody anything.
            session.deficit = max(session.deficit - entry_bytes, 0)
            if not waiting and queue is self._new:
                self._old.append(queue.popleft())
        if not self.entries and len(self._sessions) > IDLE_SESSIONS_MAX:
            self.clear()  # all are idle, so nobody's turn is lost
        return taken

    def clear(self) -> list[E]:
        entries = [entry for session in self._sessions.values() for entry, _, _ in session.entries]
        self._sessions.clear()
        self._new.clear()
        self._old.clear()
        self.entries = 0
        return entries


class GroupCost:
    """A line fitted by least squares over the last groups: what a sync costs, and a byte."""

    __slots__ = (
        "_bytes",
        "_bytes_squared",
        "_product",
        "_seconds",
        "_weight",
        "byte_seconds",
        "sync_seconds",
    )

    def __init__(self) -> None:
        self._weight = self._bytes = self._seconds = 0.0
        self._bytes_squared = self._product = 0.0
        self.sync_seconds: float = FIRST_SYNC_SECONDS
        self.byte_seconds: float = FIRST_BYTE_SECONDS

    def learn(self, nbytes: int, seconds: float) -> None:
        self._weight = self._weight * MEMORY + 1.0
        self._bytes = self._bytes * MEMORY + nbytes
        self._seconds = self._seconds * MEMORY + seconds
        self._bytes_squared = self._bytes_squared * MEMORY + nbytes * nbytes
        self._product = self._product * MEMORY + nbytes * seconds
        size, cost = self._bytes / self._weight, self._seconds / self._weight
        variance = self._bytes_squared / self._weight - size * size
        if variance > (SPREAD_MIN * size) ** 2:
            slope = (self._product / self._weight - size * cost) / variance
            # Noise may say that larger groups are cheaper; a byte is never free.
            self.byte_seconds = max(min(slope, cost / size), FIRST_BYTE_SECONDS / 100)
        self.sync_seconds = max(cost - self.byte_seconds * size, 0.0)

    def bytes_max(self, most: int) -> int:
        seconds = max(GROUP_SECONDS - self.sync_seconds, SYNC_SHARE * self.sync_seconds)
        return min(most, max(GROUP_BYTES_MIN, int(seconds / self.byte_seconds)))
