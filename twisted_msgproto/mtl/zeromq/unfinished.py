"""Cut off who sends a message that never ends (``NB-02``).

libzmq bounds the octets of a frame and the whole messages of a peer, but not how many frames one
message has, and it hands over nothing of a message before its last frame has come.  So for each
connection what libzmq has taken from the kernel is compared with what an honest peer may have sent
since its last whole message.

Octets are not memory: :mod:`.together` bounds the memory of all unfinished messages.

Only TCP on Linux tells what came: connections of ipc, and those on other systems, are not watched.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import zmq

from ...net.ledger import MIN_RATE
from ...net.memory import HEAP_OCTETS_MAX
from .descriptors import shut_down, standing, waiting_in
from .door import EVENT
from .together import (
    BUFFER_OCTETS,
    FRAME_TIMES,
    FREED_SECONDS,
    HURRY_SECONDS,
    LOOK_SECONDS,
    Rank,
    Together,
    Weight,
)

if TYPE_CHECKING:
    from .bounded import Bounds

LOOKS_PER_TURN: Final = 100
"""Connections at which one turn looks: 0.3 ms.  The time for 2,000 a second stays below 1 %."""

CALM_LOOKS_PER_TURN: Final = 10
"""While nothing comes and libzmq is known to hold little, fewer are looked at: 10,000 idle
connections would cost 1 % of a processor."""

QUIET_LOOKS_PER_TURN: Final = 30
"""While nothing comes and nobody knows what libzmq holds, this many are: 0.4 % of a processor."""

LARGE_FRAMES: Final = 2
"""Frames of a message of ours which may be as large as a frame may be: the header and the body."""

SLACK_OCTETS: Final = 64 << 10
"""What comes beside an honest message at most: the hand-shake, small frames, the overhead of CURVE
and of ZMTP for each frame, and what libzmq has read and not decoded yet (8 KiB)."""

HEARTBEAT_RATE: Final = 512.0
"""Octets a second that heartbeats of ZMTP may have: twelve a second with CURVE, 56 without."""

PONG_SHORTER: Final = 2
"""Octets by which the answer to a heartbeat, which is a segment of its own, is shorter than it."""

ROUNDS: Final = 2
"""A ROUTER reads from all connections in turn.  After so many rounds one of which nothing was read
had no whole message; one would do."""

ACTIVATION_READS: Final = 1000
"""Messages that a ROUTER may read before it knows that a further connection has some: libzmq looks
at least after every 100."""

TCP_INFO: Final = struct.Struct("=120xQQ16xII")
"""From Linux's ``tcp_info``: octets that the other end has acknowledged, octets that came, and
segments with data that came and that were sent."""

NEW: Final = (zmq.EVENT_ACCEPTED, zmq.EVENT_CONNECTED)
"""These events tell of a new connection."""

NAME: Final = itemgetter(0)


class Octets(NamedTuple):
    """What the system knows of a connection: octets that came, and what of ours went out."""

    received: int
    acknowledged: int
    segments: int
    pieces: int = 0
    """Segments with data have come this often; libzmq reads once for each, and for each 8 KiB."""


def octets_of(descriptor: int) -> Octets | None:
    """Return what has come through a TCP connection; None where the system does not tell."""
    with suppress(OSError, AttributeError, struct.error):
        # Not a copy of the descriptor, which would take twice as long; it is never closed here.
        connection = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
        try:
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        finally:
            connection.detach()
        acknowledged, received, pieces, segments = TCP_INFO.unpack(told)
        return Octets(received, acknowledged, segments, pieces)
    return None


NOTHING: Final = Octets(0, 0, 0)


class Begun(NamedTuple):
    """What was known of an unfinished message when it was weighed.

    Attributes:
        octets: so much of it had come.
        late: its sender was so many seconds behind ``min-rate``; being ahead does not count.
        at: when that was, in seconds of the clock.
        read: how far the ROUTER had read.
    """

    octets: int
    late: float
    at: float
    read: tuple[int, int]


class Seen:
    """What is known of one connection.

    Attributes:
        peer: host and port at the other end.
        heard: a whole message of it was read since the last look at it.
        came: octets that had come at the last look.
        mark: what had come at the look after its last whole message; nothing before the first one.
        waited: octets of these that the kernel still had.
        since: when that look was, or when it was accepted, in seconds of the clock.
        suspected: how far the ROUTER had read when too much had come; None if it has not.
        many: octets that libzmq had read before a message with too many frames; None before that.
        begun: its unfinished message when it was weighed; None if it was not since its last whole
            message.
    """

    __slots__ = ("begun", "came", "heard", "many", "mark", "peer", "since", "suspected", "waited")

    def __init__(self, peer: tuple[str, int], now: float) -> None:
        self.peer = peer
        self.heard = False
        self.came = 0
        self.mark = NOTHING
        self.waited = 0
        self.since = now
        self.many: int | None = None
        self.suspected: tuple[int, int] | None = None
        self.begun: Begun | None = None


class Unfinished:
    """Watches the connections of one ROUTER, or the connection of a DEALER.

    An honest connection of which libzmq has taken more than the largest message has a whole message
    there.  It is read before the ROUTER is read to its end, or has read from every connection.
    So only a connection of which nothing was read meanwhile is cut off.  While reading is paused,
    all messages that libzmq may hold for a peer count, too.

    It looks from the first connection that :meth:`happened` tells of until the last has ended.

    Attributes:
        largest: octets that an honest peer may have sent of a message, with what comes beside it.
        held: octets that libzmq may hold of an honest peer whose messages nobody reads.
    """

    def __init__(
        self,
        clock: Any,
        bounds: Bounds,
        cut_off: Callable[[str, int], None],
        read_soon: Callable[[], None],
        octets: Callable[[int], Octets | None] = octets_of,
        waiting: Callable[[int], int | None] = waiting_in,
        *,
        together: Together | None = None,
        made_room: Callable[[str, int], None] = lambda host, octets: None,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """``bounds`` are those of the ROUTER; ``cut_off(host, octets)`` is called with what came;
        ``read_soon()`` reads the ROUTER in a later turn, unless reading is paused.
        ``octets`` and ``waiting`` ask the system about a descriptor.  ``made_room(host, octets)``
        is called for a connection that is cut off because all ``together`` hold too much;
        ``paused()`` tells whether reading the ROUTER is paused.
        """
        message = LARGE_FRAMES * bounds.frame_octets
        self.largest = message + SLACK_OCTETS
        # Beside those that it counts, libzmq has one which the ROUTER began, and one under way.
        self.held = (bounds.peer_messages + 2) * (message + SLACK_OCTETS)
        # Each may have come alone, and keeps what it was read into.
        self._buffers = (bounds.peer_messages + 2) * BUFFER_OCTETS
        self._frame = bounds.frame_octets
        self._together = together
        # Larger frames have mappings of their own, which nobody counts.
        self._counted = bounds.frame_octets <= HEAP_OCTETS_MAX - BUFFER_OCTETS
        self._min_rate = MIN_RATE if together is None else together.min_rate
        self._made_room = made_room
        self._paused = paused
        self._clock = clock
        self._cut_off = cut_off
        self._read_soon = read_soon
        self._octets = octets
        self._waiting = waiting
        self._seen: dict[int, Seen] = {}  # by descriptor
        self._unseen: set[int] = set()  # descriptors of ipc
        self._descriptors: dict[bytes, int] = {}  # by the name of a connection
        self._heard: set[bytes] = set()  # names, since the last look
        self._turn: Iterator[int] = iter(())  # descriptors to look at in this round
        self._moved = True  # something came in this round, or somebody
        self._looks = LOOKS_PER_TURN
        self._suspects: list[int] = []  # descriptors to look at again at once
        self._ends = 0  # how often the ROUTER was read to its end
        self._read = 0  # messages
        self._gone = 0  # connections that have ended since the ROUTER was read to its end
        self._timer: Any = None
        if together is not None:
            together.add(self)

    # ── what the ROUTER tells ───────────────────────────────────────────────────────────────────

    def named(self, name: bytes, descriptor: int) -> None:
        """A first message of a connection that stands was read."""
        self._descriptors[name] = descriptor

    def ended(self, name: bytes) -> None:
        """A connection that was named has ended."""
        self._descriptors.pop(name, None)

    def read(self, messages: list[list[bytes]]) -> None:
        """Whole messages were read; each begins with the name of its connection."""
        if self._seen:
            self._heard.update(map(NAME, messages))
        self._read += len(messages)

    def too_many_frames(self, name: bytes) -> None:
        """A message of this connection has more frames than any of ours."""
        seen = self._seen.get(self._descriptors.get(name, -1))
        if seen is not None and seen.many is None:
            seen.many = seen.mark.received - seen.waited

    def read_to_end(self) -> None:
        """There was no further message."""
        self._ends += 1
        self._gone = 0

    def happened(self, messages: Iterable[list[bytes]]) -> None:
        """What libzmq says of connections."""
        for event, where in messages:
            kind, descriptor = EVENT.unpack(event)
            self._unseen.discard(descriptor)
            if self._seen.pop(descriptor, None) is not None:
                self._gone += 1
            if kind in NEW:
                self._accepted(descriptor, where.decode())
        if self._seen and self._timer is None:
            self._timer = self._clock.callLater(LOOK_SECONDS, self._look)

    def shutdown(self) -> None:
        """Look no more."""
        self._seen.clear()
        self._unseen.clear()
        if self._together is not None:
            self._together.remove(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _accepted(self, descriptor: int, endpoint: str) -> None:
        with suppress(OSError), standing(descriptor, endpoint) as connection:
            if connection is None:
                return
            if connection.family == socket.AF_UNIX:
                self._unseen.add(descriptor)
            else:
                self._seen[descriptor] = Seen(connection.getpeername()[:2], self._clock.seconds())
                self._moved = True

    # ── looking ─────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Look at the next connections."""
        self._note_heard()
        some = list(islice(self._turn, self._looks))
        if not some:
            self._looks = self._pace
            self._moved = False
            self._turn = iter(list(self._seen))
            some = list(islice(self._turn, self._looks))
        suspects, self._suspects = self._suspects, []
        for descriptor in dict.fromkeys([*suspects, *some]):
            seen = self._seen.get(descriptor)
            if seen is not None:
                self._look_at(descriptor, seen)
        self._timer = None
        interval = LOOK_SECONDS
        if self._together is not None:
            self._together.look()
            interval = self._together.interval
        if self._seen and self._timer is None:
            self._timer = self._clock.callLater(interval, self._look)
        self._looks = max(self._looks, self._pace)

    @property
    def _pace(self) -> int:
        """Return how many connections a turn looks at: fewer while nothing has come in this round,
        and still fewer if what libzmq holds is known to be little.
        """
        together = self._together
        little = together.little if self._counted and together is not None else None
        if self._moved or little is False:
            return LOOKS_PER_TURN
        return CALM_LOOKS_PER_TURN if little else QUIET_LOOKS_PER_TURN

    def _note_heard(self) -> None:
        heard, self._heard = self._heard, set()
        for name in heard:
            seen = self._seen.get(self._descriptors.get(name, -1))
            if seen is not None:
                seen.heard = True

    def _look_at(self, descriptor: int, seen: Seen) -> None:
        now = self._octets(descriptor)
        if now is None:
            return
        if now.received != seen.came:
            seen.came = now.received
            self._moved = True
        if seen.heard:
            self._begin_anew(descriptor, seen, now)
            return
        if now.received - seen.mark.received + seen.waited <= self.largest:
            return
        came = self._taken(descriptor, seen, now)
        if came <= self.largest:
            seen.suspected = None
        elif came > self.held or self._had_its_turn(seen.suspected):
            self._cut(descriptor, seen, came, self._cut_off)
        else:
            if seen.suspected is None:
                seen.suspected = (self._ends, self._read)
            self._suspects.append(descriptor)
            # Nothing wakes a ROUTER to which nothing whole has come.
            self._read_soon()

    def _taken(self, descriptor: int, seen: Seen, now: Octets) -> int:
        """Return the octets that libzmq has read since the mark, without heartbeats."""
        came = now.received - seen.mark.received + seen.waited - self._heartbeats(now, seen)
        return came - (self._waiting(descriptor) or 0) if came > 0 else 0

    def _begin_anew(self, descriptor: int, seen: Seen, now: Octets) -> None:
        """Set the mark: what libzmq has read by now counts as if it had been finished."""
        seen.heard, seen.mark, seen.since = False, now, self._clock.seconds()
        seen.waited = self._waiting(descriptor) or 0
        seen.suspected = seen.begun = None

    # ── as Together sees it ─────────────────────────────────────────────────────────────────────

    @property
    def connections(self) -> int:
        """Return how many there are."""
        return len(self._seen) + len(self._unseen)

    @property
    def unseen(self) -> int:
        """Return the octets that honest peers of ipc may hold."""
        each = self.held + self._buffers if self._paused() else self.largest
        return len(self._unseen) * each

    def descriptors(self) -> list[int]:
        """Return those of connections that can be weighed."""
        self._note_heard()
        return list(self._seen)

    def weigh(self, descriptor: int) -> Weight | None:
        """Return what this connection may hold; None if it has ended or has nothing unfinished.

        libzmq allocates a frame when its first octets have come, and an honest peer's first message
        is small.  While reading is paused, complete messages wait as well.
        """
        seen = self._seen.get(descriptor)
        now = None if seen is None else self._octets(descriptor)
        if seen is None or now is None:
            return None
        came = self._taken(descriptor, seen, now)
        pieces = now.pieces - seen.mark.pieces
        if seen.heard:
            self._begin_anew(descriptor, seen, now)
            rank, begun = Rank.HEARD, min(came, self._frame)
        else:
            rank, begun = Rank.STANDS, self._frame
        if seen.mark is NOTHING:
            rank, begun = Rank.STRANGER, 0
        if seen.many is not None:
            # What the ROUTER has not thrown away yet of all that it sent, nobody knows.
            came = now.received - seen.many
            return Weight(Rank.STRANGER, came, FRAME_TIMES * came, 0)
        if came <= 0:
            return None
        most = FRAME_TIMES * came + BUFFER_OCTETS * pieces
        honest = came + begun + (self._buffers if self._paused() else 0)
        if rank is Rank.HEARD:
            return Weight(rank, came, most, honest)
        return Weight(rank, came, most, honest, *self._begun(seen, came))

    def _begun(self, seen: Seen, came: int) -> tuple[int, float, float]:
        """Return how much came before all complete messages were read, so is of one that is not,
        how late it is, and how much of it will come until others that are cut off were freed.
        """
        before = seen.begun
        if self._paused():
            seen.begun = None
            return 0, 0.0, 0.0
        if before is not None and not self._had_its_turn(before.read):
            return 0, 0.0, 0.0
        now, late, coming = self._clock.seconds(), 0.0, 0.0
        if before is not None:
            seconds, grown = now - before.at, came - before.octets
            late = max(0.0, before.late + seconds - grown / self._min_rate)
            coming = max(0.0, grown * FREED_SECONDS / max(seconds, HURRY_SECONDS))
            coming = min(coming, max(0, self.largest - came))
        seen.begun = Begun(came, late, now, (self._ends, self._read))
        # Nothing wakes a ROUTER to which nothing whole has come.
        self._read_soon()
        return (0 if before is None else came), late, coming

    def make_room(self, descriptor: int, octets: int) -> None:
        """End this connection, whose unfinished message has ``octets``."""
        self.end(descriptor, octets, self._made_room)

    def end(self, descriptor: int, octets: int, told: Callable[[str, int], None]) -> None:
        """End this connection for these octets; if it stands, ``told(host, octets)`` is called."""
        seen = self._seen.get(descriptor)
        if seen is not None:
            self._cut(descriptor, seen, octets, told)

    # ── one connection ──────────────────────────────────────────────────────────────────────────

    def _heartbeats(self, now: Octets, seen: Seen) -> int:
        """Return how many octets may be heartbeats: they are answered, and they are few."""
        acknowledged = now.acknowledged - seen.mark.acknowledged
        segments = now.segments - seen.mark.segments
        few = int(HEARTBEAT_RATE * (self._clock.seconds() - seen.since))
        return min(acknowledged + PONG_SHORTER * segments, few)

    def _had_its_turn(self, suspected: tuple[int, int] | None) -> bool:
        """A whole message which was there when the connection was suspected was read by now."""
        if suspected is None:
            return False
        ends, read = suspected
        connections = len(self._seen) + self._gone
        return self._ends > ends or self._read - read > ROUNDS * connections + ACTIVATION_READS

    def _cut(
        self, descriptor: int, seen: Seen, octets: int, told: Callable[[str, int], None]
    ) -> None:
        del self._seen[descriptor]
        self._gone += 1
        if shut_down(descriptor, seen.peer, at_once=True):
            told(seen.peer[0], octets)
