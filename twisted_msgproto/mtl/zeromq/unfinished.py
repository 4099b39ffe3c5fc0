"""Bound the messages that have begun and not ended, of one connection and of all (``MT-29``).

libzmq does not bound how many frames one message has, and hands over nothing of it before its last
frame has come.  So each connection is looked at in turn: what libzmq has taken from the kernel
since its last whole message, which was not there when the ROUTER had been read to its end, is
unfinished.  Bytes are not memory: a frame of two bytes on the wire needs 64.  Who has opened a
flow is taken at its word; the bytes of others weigh as much as they may need.  Only TCP on Linux
tells what came: connections of ipc, and those on other systems, are not watched.

:class:`SendBacklogs` bounds what libzmq holds for peers that do not read: what was passed to libzmq
and the other end has not acknowledged, as the system tells.  It is entered in the ledger of the
process as unread output.  While all together hold much, less is passed to libzmq for each.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar, Final

import zmq

from ...net.memory import Ledger, SharedState
from . import EVENT, Bounds, TcpInfo, shut_down, standing, tcp_info, waiting_in

LOOK_SECONDS: Final = 0.05

LOOKS_PER_TURN: Final = 500

IDLE_LOOKS_PER_TURN: Final = 100
"""This many where nothing has come from all of them: 10,000 idle connections cost less than 1 % of
a processor."""

MUCH_SHARE: Final = 0.5
"""This share of ``process-held-bytes`` is much: all unfinished messages may weigh no more, and with
more unread output libzmq holds less for each peer.  From three quarters on peers may lose places.
"""

FRAME_TIMES: Final = 32
"""The smallest frame has two bytes on the wire and needs 64 in memory."""

BUFFER_BYTES: Final = 20 << 10
"""A small frame that was read alone keeps the buffer of 18.5 KB into which libzmq has read it."""

FEW_BYTES: Final = 512
"""So little needs no more than an idle connection does, and is not asked about."""

LARGE_FRAMES: Final = 2
"""Frames of a message of ours which may be as large as a frame may be: the header and the body."""

SLACK_BYTES: Final = 64 << 10
"""What comes beside an honest message at most: the hand-shake, small frames, the overhead of CURVE
and of ZMTP for each frame, and what libzmq has read and not decoded yet (8 KiB)."""

HEARTBEAT_RATE: Final = 512.0
"""Bytes a second that heartbeats of ZMTP may have: twelve a second with CURVE, 56 without."""

PONG_SHORTER: Final = 2
"""Bytes by which the answer to a heartbeat, which is a segment of its own, is shorter than it."""

ROUNDS: Final = 2
"""A ROUTER reads from all connections in turn.  After so many rounds one of which nothing was read
had no whole message; one would do."""

ACTIVATION_READS: Final = 1000
"""Messages that a ROUTER may read before it knows that a further connection has some: libzmq looks
at least after every 100."""

MOVEMENT_BYTES: Final = 8 << 10
"""Heartbeats between two looks are fewer bytes than these, in both directions together."""

NEW: Final = (zmq.EVENT_ACCEPTED, zmq.EVENT_CONNECTED)

NAME: Final = itemgetter(0)


NOTHING: Final = TcpInfo()


class Seen:
    __slots__ = (
        *("came", "heard", "many", "mark", "moved", "moved_at", "name"),
        *("noted", "peer", "since", "trusted", "waited", "weight"),
    )

    trusted: bool  # it had a flow at the last look, at which its message weighed something

    def __init__(self, peer: tuple[str, int], now: float) -> None:
        self.peer = peer  # host and port at the other end
        self.name = b""  # of the connection; empty before its first whole message
        self.heard = False  # a whole message of it was read since the last look at it
        self.many = False  # it has sent a message with more frames than any of ours has
        self.came = 0  # bytes at the last look
        # When more than heartbeats had gone through last, and the bytes of both directions then:
        self.moved, self.moved_at = 0, 0.0
        # What had come at the look after its last whole message, when that look was, and how many
        # of these bytes the kernel still had:
        self.mark, self.since, self.waited = NOTHING, now, 0
        # Bytes that libzmq had taken since then at an earlier look, and how far the ROUTER had read
        # at it; None before there were any:
        self.noted: tuple[int, int, int] | None = None
        self.weight = 0  # bytes of memory that its unfinished message may need


class EveryUnfinished:
    """The connections of all sockets, looked at in turns, and a bound of their weight."""

    def __init__(self, clock: Any, held: Ledger | None = None) -> None:
        self._clock = clock
        self._held = Ledger() if held is None else held
        self._sockets: dict[Unfinished, None] = {}
        self._turn: Iterator[tuple[Unfinished, int]] = iter(())
        self._timer: Any = None
        self._looks = LOOKS_PER_TURN
        self.moved: bool = True  # something has come in this round
        self.weight = 0  # bytes of memory that all unfinished messages may need

    @classmethod
    def of(cls, shared: SharedState, clock: Any) -> EveryUnfinished:
        found: EveryUnfinished = shared.by_kind.setdefault(cls, cls(clock, shared.held))
        return found

    def seconds(self) -> float:
        now: float = self._clock.seconds()
        return now

    def watch(self, socket: Unfinished) -> None:
        self._sockets[socket] = None
        if self._timer is None:
            self._timer = self._clock.callLater(LOOK_SECONDS, self._look)

    def leave(self, socket: Unfinished) -> None:
        self._sockets.pop(socket, None)
        if not self._sockets and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        some = list(islice(self._turn, self._looks))
        if not some:
            self._looks = LOOKS_PER_TURN if self.moved else IDLE_LOOKS_PER_TURN
            self.moved = False
            every = [(one, descriptor) for one in self._sockets for descriptor in one.descriptors]
            self._turn = iter(every)
            some = list(islice(self._turn, self._looks))
        for one, descriptor in some:
            one.look_at(descriptor)
        if self.weight > self._limit:
            self._evict()
        if self._sockets and self._timer is None:
            self._timer = self._clock.callLater(LOOK_SECONDS, self._look)

    @property
    def _limit(self) -> float:
        return self._held.limit * MUCH_SHARE

    def _evict(self) -> None:
        found = [
            (seen.trusted, -seen.weight, one, descriptor)
            for one in self._sockets
            for descriptor, seen in one.descriptors.items()
            if seen.weight
        ]
        for _, weight, one, descriptor in sorted(found, key=itemgetter(0, 1)):
            if self.weight <= self._limit:
                break
            one.end(descriptor, -weight, one.evicted)


class Unfinished:
    """The connections of one ROUTER, or the connection of a DEALER, as they are watched.

    An honest connection of which libzmq has taken more than the largest message has a whole message
    there.  It is read before the ROUTER is read to its end, or has read from every connection.
    So only a connection of which nothing was read meanwhile is cut off.  While reading is paused,
    all messages that libzmq may hold for a peer count, too.
    """

    def __init__(
        self,
        every: EveryUnfinished,
        bounds: Bounds,
        cut_off: Callable[[str, int], None],
        read_soon: Callable[[], None],
        tcp_info: Callable[[int], TcpInfo | None] = tcp_info,
        waiting: Callable[[int], int] = waiting_in,
        *,
        evicted: Callable[[str, int], None] = lambda host, nbytes: None,
        trusted: Callable[[bytes], bool] = bool,
    ) -> None:
        """``read_soon()`` reads the ROUTER in a later turn, unless reading is paused.

        ``cut_off(host, bytes)`` is called with what came, ``evicted(host, bytes)`` for a connection
        that is cut off because all together weigh too much; ``trusted(name)`` tells whether one may
        have large messages.
        """
        self.largest: int = LARGE_FRAMES * bounds.frame_bytes + SLACK_BYTES  # of an honest message
        # Beside those that it counts, libzmq has one which the ROUTER began, and one under way.
        self.buffered_max: int = (bounds.peer_messages + 2) * self.largest
        self._every = every
        self.evicted = evicted
        self._trusted = trusted
        self._cut_off = cut_off
        self._read_soon = read_soon
        self._tcp_info = tcp_info
        self._waiting = waiting
        self.descriptors: dict[int, Seen] = {}
        self._names: dict[bytes, Seen] = {}  # connections that stand and were read from
        self._ends = 0  # how often the ROUTER was read to its end
        self._read = 0  # messages
        self._gone = 0  # connections that have ended since the ROUTER was read to its end

    # ── what the ROUTER tells ───────────────────────────────────────────────────────────────────

    def named(self, name: bytes, descriptor: int) -> None:
        seen = self.descriptors.get(descriptor)
        if seen is not None:
            seen.name = name
            self._names[name] = seen

    def moved_at(self, name: bytes) -> float:
        """Return when bytes went through last, of unfinished messages, too; 0.0: nobody knows."""
        seen = self._names.get(name)
        return 0.0 if seen is None else seen.moved_at

    def read(self, messages: list[list[bytes]]) -> None:
        for name in set(map(NAME, messages)):
            if (seen := self._names.get(name)) is not None:
                seen.heard = True
        self._read += len(messages)

    def too_many_frames(self, name: bytes) -> None:
        """From now on nobody knows what of all that it sends was thrown away."""
        if (seen := self._names.get(name)) is not None:
            seen.many = True

    def read_to_end(self) -> None:
        self._ends += 1
        self._gone = 0

    def happened(self, messages: Iterable[list[bytes]]) -> None:
        for event, where in messages:
            kind, descriptor = EVENT.unpack(event)
            self._forget(descriptor)
            if kind in NEW:
                self._accepted(descriptor, os.fsdecode(where))
        if self.descriptors:
            self._every.watch(self)
        else:
            self._every.leave(self)

    def shutdown(self) -> None:
        for descriptor in list(self.descriptors):
            self._forget(descriptor)
        self._every.leave(self)

    def _accepted(self, descriptor: int, endpoint: str) -> None:
        with suppress(OSError), standing(descriptor, endpoint) as connection:
            if connection is not None and connection.family != socket.AF_UNIX:
                peer = connection.getpeername()[:2]
                self.descriptors[descriptor] = Seen(peer, self._every.seconds())

    def _forget(self, descriptor: int) -> None:
        seen = self.descriptors.pop(descriptor, None)
        if seen is not None:
            self._names.pop(seen.name, None)
            self._weigh(seen, 0)
            self._gone += 1

    # ── looking ─────────────────────────────────────────────────────────────────────────────────

    def look_at(self, descriptor: int) -> None:
        seen = self.descriptors.get(descriptor)
        now = None if seen is None else self._tcp_info(descriptor)
        if seen is None or now is None:
            return
        if now.received + now.acknowledged >= seen.moved + MOVEMENT_BYTES:
            seen.moved, seen.moved_at = now.received + now.acknowledged, self._every.seconds()
        if seen.heard and not seen.many:
            # What libzmq has read by now counts as if it had been finished.
            self._every.moved = True
            seen.heard, seen.mark, seen.since = False, now, self._every.seconds()
            seen.waited = self._waiting(descriptor)
            seen.noted = None
            self._weigh(seen, 0)
            return
        self._every.moved |= now.received != seen.came
        seen.came = now.received
        came = now.received - seen.mark.received + seen.waited
        if came > FEW_BYTES:
            came -= self._heartbeats(now, seen) + self._waiting(descriptor)
        if came <= FEW_BYTES:
            seen.noted = None
            self._weigh(seen, 0)
            return
        noted = seen.noted
        # So much came before the ROUTER was read to its end, and no whole message was there.
        begun = min(came, noted[0]) if noted and self._had_its_turn(*noted[1:]) else 0
        if came > self.buffered_max or begun > self.largest:
            self.end(descriptor, came, self._cut_off)
            return
        seen.trusted = not seen.many and self._trusted(seen.name)
        if not seen.trusted:
            pieces = min(now.pieces - seen.mark.pieces, came)
            self._weigh(seen, FRAME_TIMES * came + BUFFER_BYTES * pieces)
        elif begun:
            self._weigh(seen, came)
        if begun or noted is None:
            seen.noted = (came, self._ends, self._read)
        # Nothing wakes a ROUTER to which nothing whole has come.
        self._read_soon()

    def _weigh(self, seen: Seen, weight: int) -> None:
        self._every.weight += weight - seen.weight
        seen.weight = weight

    def end(self, descriptor: int, nbytes: int, told: Callable[[str, int], None]) -> None:
        """End this connection for these bytes; if it stands, ``told(host, bytes)`` is called."""
        seen = self.descriptors.get(descriptor)
        self._forget(descriptor)
        if not self.descriptors:
            self._every.leave(self)
        if seen is not None and shut_down(descriptor, seen.peer, at_once=True):
            told(seen.peer[0], nbytes)

    def _heartbeats(self, now: TcpInfo, seen: Seen) -> int:
        """Return how many bytes may be heartbeats: they are answered, and they are few."""
        acknowledged = now.acknowledged - seen.mark.acknowledged
        segments = now.segments - seen.mark.segments
        few = int(HEARTBEAT_RATE * (self._every.seconds() - seen.since))
        return min(acknowledged + PONG_SHORTER * segments, few)

    def _had_its_turn(self, ends: int, read: int) -> bool:
        """Whether a whole message that was there when so much had been read was read by now."""
        connections = len(self.descriptors) + self._gone
        return self._ends > ends or self._read - read > ROUNDS * connections + ACTIVATION_READS


# ── What peers do not read ────────────────────────────────────────────────────────────────────────


STEP_BYTES: Final = 64 << 10
"""A peer may have this much unread without being counted, in libzmq and outside; after this much
more the system is asked again, which needs 2 µs."""

PASSED_BYTES: Final = 8 << 20
"""libzmq holds about this much for one peer while all peers together hold much: one content."""

CHECK_SECONDS: Final = 1.0
"""Peers that have something unread are checked this often: they may have read meanwhile.

In 256 MiB there is a step for each of 4,096, which are checked in 12 ms.
"""

MESSAGE_BYTES: Final = 256
"""A message that waits outside libzmq counts as this many bytes beside its own, on both sides."""

FRAME_BYTES: Final = 2
"""ZMTP puts at least these bytes before a frame; before one of more than 255 it puts nine.

More than there are would never be acknowledged; fewer are acknowledged as heartbeats are, and what
a peer gains by 7 bytes of 256 is gone when it has read everything.
"""

CURVE_BYTES: Final = 33
"""CURVE's MESSAGE has these bytes beside the frame in it."""


class Backlog:
    __slots__ = ("full", "messages", "since", "weight")

    def __init__(self, since: float) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.weight: int = 0  # bytes
        self.since: float = since
        self.full: bool = False  # the caller knows that there should be no more now

    def put(self, parts: list[bytes]) -> None:
        self.messages.append(parts)
        self.weight += MESSAGE_BYTES + sum(map(len, parts))

    def take(self) -> None:
        self.weight -= MESSAGE_BYTES + sum(map(len, self.messages.popleft()))


class SendBacklog:
    """What one peer has not read yet, as the ledger's holder."""

    __slots__ = (
        *("_acknowledged", "_every", "check_at", "descriptor", "entered"),
        *("name", "passed", "read", "waiting"),
    )

    def __init__(self, every: SendBacklogs, name: bytes, descriptor: int) -> None:
        self._every = every
        self.name = name
        self.descriptor = descriptor
        self.passed = 0  # bytes that were passed to libzmq and the peer has not acknowledged
        self.check_at: int = STEP_BYTES  # from this many on the system is asked again
        self.waiting = 0  # bytes that wait outside libzmq, at the last check
        self.entered = 0  # bytes that are in the ledger
        self.read = 0  # bytes that it has read since that was noted there
        self._acknowledged = 0
        self.note_read()

    def note_read(self) -> int:
        """Ask the system what the peer has acknowledged; return how much of ours that is."""
        told, read = self._every.tcp_info(self.descriptor), self.passed
        if told is not None:
            # Heartbeats are acknowledged as well, and nobody passed them to libzmq.
            read = min(read, max(0, told.acknowledged - self._acknowledged))
            self._acknowledged = told.acknowledged
        self.passed -= read
        return read

    def has_room(self) -> bool:
        """Check what the peer has read; whether libzmq may hold more for it now."""
        every = self._every
        every.enter(self, self.note_read())
        room = self.passed < PASSED_BYTES or every.little
        if room:
            self.check_at = self.passed + STEP_BYTES
        return room

    # ── as the ledger's holder ──────────────────────────────────────────────────────────────────

    address: ClassVar[str] = ""
    reading: ClassVar[bool] = True

    def holdBack(self, held_back: bool) -> None:
        """Output is not held back."""

    def cutOff(self, nbytes: int, limit: float) -> None:
        """End the peer: all together hold too much, and it reads too little of it."""
        self._every.chosen(self)


class SendBacklogs:
    def __init__(
        self,
        clock: Any,
        shared: SharedState,
        backlogs: Mapping[bytes, Backlog],
        cut_off: Callable[[SendBacklog, int], None],
        tcp_info: Callable[[int], TcpInfo | None] = tcp_info,
    ) -> None:
        """``backlogs`` are outside libzmq; ``cut_off(peer, bytes)`` ends who left these unread."""
        self._clock = clock
        self._ledger = shared.held
        self._backlogs = backlogs
        self._cut_off = cut_off
        self.tcp_info = tcp_info
        self._entered: dict[SendBacklog, None] = {}
        self._timer: Any = None

    @property
    def little(self) -> bool:
        return self._ledger.held < self._ledger.limit * MUCH_SHARE

    def waits(self, peer: SendBacklog, backlog: Backlog) -> None:
        if backlog.weight >= peer.waiting + STEP_BYTES:
            peer.has_room()

    def enter(self, peer: SendBacklog, read: int) -> None:
        """Note what is unread; ``read`` bytes since the last check are nothing below a step."""
        backlog = self._backlogs.get(peer.name)
        peer.waiting = 0 if backlog is None else backlog.weight
        nbytes = peer.passed + peer.waiting
        if nbytes < STEP_BYTES:
            nbytes = 0
        peer.read += read
        reads = peer.read >= STEP_BYTES
        if 0 <= peer.entered - nbytes < STEP_BYTES and not (reads and nbytes):
            return
        now = self._clock.seconds()
        if reads:
            # What was sent meanwhile would hide that the peer reads.
            peer.read = 0
            self._ledger.hold(peer, max(0, peer.entered - STEP_BYTES), now, outward=True)
            if backlog is not None:
                backlog.since = now
        peer.entered = nbytes
        if nbytes:
            self._entered[peer] = None
        else:
            self._entered.pop(peer, None)
        self._ledger.hold(peer, nbytes, now, outward=True)
        self._check_or_rest()

    def forget(self, peer: SendBacklog) -> None:
        if peer.entered:
            peer.entered = 0
            del self._entered[peer]
            self._ledger.hold(peer, 0, self._clock.seconds())

    def chosen(self, peer: SendBacklog) -> None:
        """End this peer, unless it has read everything since the last check."""
        del self._entered[peer]
        nbytes, peer.entered = peer.entered, 0
        peer.note_read()
        if peer.passed + peer.waiting >= STEP_BYTES:
            self._cut_off(peer, nbytes)

    def _check_or_rest(self) -> None:
        if self._timer is None and self._entered:
            self._timer = self._clock.callLater(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        for peer in list(self._entered):
            if peer in self._entered:  # else it was cut off for what another has
                peer.has_room()
        self._check_or_rest()

    def shutdown(self) -> None:
        for peer in list(self._entered):
            self.forget(peer)
        if self._timer is not None:
            self._timer.cancel()
