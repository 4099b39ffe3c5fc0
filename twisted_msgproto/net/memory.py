"""What peers make this process hold, of all protocols and connections; nothing is dropped for it.

Bytes that wait for the sink can wait for better times: above the bound in :class:`SharedState`
those with more than their share are not read.  Unfinished messages and unread output cannot,
because only the peer can finish or read them: with :class:`Ledger` progress decides who keeps its
place.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Any, Final, Protocol

from ..core.session_memory import SessionMemory
from .logs import PeerLog
from .peers import Offenders

MIN_RATE: Final = 16 << 10  # a peer of fewer bytes a second is late; the latest is cut off first

LATE_SECONDS: Final = 2.0
"""A peer may be this late before it can lose its place to others: a network may stall so long, and
who comes at a bad moment waits for two rounds of those that stand still, so less than 6 s.
"""

UNREAD_SECONDS: Final = 3.0  # more for readers: at 16 KiB a second a step shows every 4 s

SOFT_SHARE: Final = 0.75

PAUSE_SECONDS: Final = 0.5  # without bytes, and it moves nevertheless, as compared with others

SPARE_SHARE: Final = 1 / 16  # freed at the limit, lest each read look for the latest

LOOK_SECONDS: Final = 0.25
"""While memory is short peers are looked at so often, and the ledger's time goes no further in one
turn of the reactor: what a busy process has not read yet makes no peer late.
"""

UNCOUNTED_BYTES: Final = 4 << 10

UNCOUNTED_SHARE: Final = 1 / 65_536

TURN_BYTES: Final = 256 << 10  # more to bring before a connection is held back once more


class Clock(Protocol):
    """What is needed of a reactor in this package: time only."""

    def seconds(self) -> float:
        """Return the time in seconds; it never runs backwards."""

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any) -> Any:
        """Call ``callable`` after ``delay`` seconds."""


class Holder(Protocol):
    """A connection, as the ledger sees it."""

    @property
    def address(self) -> str:
        """Return the peer's host; connections of one host share their turns."""

    @property
    def reading(self) -> bool:
        """Whether the connection is read now; while it is not, its peer cannot be late."""

    def holdBack(self, held_back: bool) -> None:
        """Stop reading (True) because memory is short, or read again."""

    def cutOff(self, nbytes: int, limit: float) -> None:
        """End at once; it held ``nbytes``, and all together may hold ``limit``."""


@dataclass(slots=True, eq=False)
class _Account:
    outward: bool
    stopped: float | None
    number: int = field(init=False)
    began: float = field(init=False)
    paid: float = field(init=False)  # what came so far was enough until then
    may: int = field(init=False)  # with no more bytes than these it is not held back
    nbytes: int = 0
    objects: int = 0

    @property
    def arrives(self) -> bool:
        return self.stopped is None and not self.outward

    @property
    def age(self) -> tuple[float, int]:
        return (self.began, self.number)

    def begin(self, number: int, now: float) -> None:
        self.number, self.began = number, now
        self.paid = now + self.outward * UNREAD_SECONDS
        self.may = 0
        if self.stopped is not None:
            self.stopped = now

    def stop(self, now: float) -> None:
        if self.stopped is None:
            self.stopped = now

    def go_on(self, now: float) -> None:
        if self.stopped is not None:  # the time between is not the peer's
            self.began += now - self.stopped
            self.paid += now - self.stopped
            self.stopped = None

    def move(self, seconds: float, now: float) -> None:
        """So many seconds' bytes came.  They excuse what was late, and nothing to come: a peer that
        brings much at once and then stands still is late as soon as any other.
        """
        self.paid = min(self.paid + seconds, now if self.stopped is None else self.stopped)

    def lateness(self, now: float) -> tuple[float, bool, float]:
        """Return for how many seconds it stands still, 0 if that is no more than a pause.  Those
        who move are compared by what follows: whether most that they make us hold they did not
        send, and the seconds.
        """
        still = (now if self.stopped is None else self.stopped) - self.paid
        return still if still > PAUSE_SECONDS else 0.0, 2 * self.objects > self.nbytes, still


class Ledger:
    """The bytes that peers make this process hold; it decides which peer is cut off when
    they are too many.

    Above three quarters of ``limit`` a connection whose message grows is held back, unless its
    message is the eldest of those being read (the eldest can always finish), or it holds no more
    than its share of the last quarter.  Those who are held back take turns in half of what is free,
    since only who is read shows whether it moves: peers that are more than :data:`LATE_SECONDS`
    late lose their places; at the limit itself the latest does, however late it is.
    """

    def __init__(self) -> None:
        self.limit: float = inf
        self.min_rate: float = MIN_RATE
        self.held = self.most = 0  # bytes now, and the most since somebody set it anew
        self.clock: Clock | None = None  # set before the limit is
        # A connection with no more bytes need not enter them: nearly every read ends within a
        # frame, and 10,000 connections with so little are no matter.
        self.uncounted: int = UNCOUNTED_BYTES
        self._accounts: dict[Holder, _Account] = {}
        self._held_back: dict[Holder, _Account] = {}
        self._count = 0  # accounts so far
        self._look: Any = None
        self._due = inf  # when that is to be, in the ledger's time
        self._lag = 0.0  # what its time is behind the clock's
        self._turns: Counter[str] = Counter()  # of each address that has connections held back
        self._by_weight = False  # how their turns were decided last
        self._late_at = -inf  # nobody is too late before this time

    def bound(self, limit: float) -> None:
        self.limit = min(self.limit, limit)
        self.uncounted = int(min(UNCOUNTED_BYTES, self.limit * UNCOUNTED_SHARE))

    def hold(
        self, holder: Holder, nbytes: int, now: float, *, outward: bool = False, objects: int = 0
    ) -> None:
        """Note that ``holder`` holds ``nbytes`` now, in all.

        It or others may be held back or cut off before this returns.  Fewer bytes than before mean
        that a message was finished.  ``outward``: they wait to be read by the peer; then fewer mean
        that it reads, and only that is progress.  ``objects`` of the bytes did not come from the
        peer: they are what these are kept in, and no progress.
        """
        now = self._time(now)
        account = self._accounts.get(holder)
        new = account is None
        if account is None:
            if not nbytes:
                return
            account = self._accounts[holder] = _Account(outward, None if holder.reading else now)
        grown = nbytes - account.nbytes
        account.nbytes = nbytes
        self.held += grown
        if self.held > self.most:
            self.most = self.held
        if not nbytes:
            del self._accounts[holder]
            if self._held_back.pop(holder, None) is not None:
                holder.holdBack(False)
        elif new or grown < 0:
            self._count += 1
            account.begin(self._count, now)
        elif not outward:
            account.move((grown - objects + account.objects) / self.min_rate, now)
        account.objects = objects
        if self.held > self.limit * SOFT_SHARE:
            if grown > 0:
                self._cut_late(now)
                if not outward:
                    self._hold_back(holder, account, now)
        elif self._held_back:
            self._let_go_on(now, self.limit * SOFT_SHARE - self.held)
        self._look_or_rest(now)

    def paused(self, holder: Holder, now: float) -> None:
        """Its peer cannot be late from now on, for whatever reason it is not read."""
        account = self._accounts.get(holder)
        if account is not None:
            account.stop(self._time(now))

    def resumed(self, holder: Holder, now: float) -> None:
        account = self._accounts.get(holder)
        if account is not None:
            account.go_on(self._time(now))

    def _time(self, now: float) -> float:
        return min(now - self._lag, self._due)

    # ── when there is too much ──────────────────────────────────────────────────────────────────

    def _cut_late(self, now: float) -> None:
        """Cut off all who are late, and above the limit the latest, whoever it is.

        Nobody becomes late faster than time goes by, so while nobody can be late nobody is looked
        for: that reads every account.
        """
        if self.held <= self.limit and now < self._late_at:
            return
        accounts = self._accounts
        late = []
        for holder, account in accounts.items():
            still, swollen, exactly = account.lateness(now)
            late.append((-still, not swollen, -exactly, account.number, holder))
        heapify(late)
        room = self.limit * (1 - SPARE_SHARE if self.held > self.limit else 1)
        while late:
            still, _, _, number, latest = late[0]
            if self.held <= (room if still else self.limit) and -still <= LATE_SECONDS:
                self._late_at = now + LATE_SECONDS - max(-still, PAUSE_SECONDS)
                return
            heappop(late)
            chosen = accounts.get(latest)
            if chosen is not None and chosen.number == number:  # nobody ended meanwhile
                del accounts[latest]
                self._held_back.pop(latest, None)
                self.held -= chosen.nbytes
                latest.cutOff(chosen.nbytes, self.limit)
        self._late_at = now

    def _hold_back(self, grower: Holder, account: _Account, now: float) -> None:
        if (
            self.held > self.limit * SOFT_SHARE
            and account.nbytes > account.may
            and account.nbytes > self.limit * (1 - SOFT_SHARE) / len(self._accounts)
            and grower in self._accounts
            and any(other.arrives and other.age < account.age for other in self._accounts.values())
        ):
            account.stop(now)
            self._held_back[grower] = account
            grower.holdBack(True)

    def _look_or_rest(self, now: float) -> None:
        short = self._held_back or self.held > self.limit * SOFT_SHARE
        if short and self._look is None and self.clock is not None:
            self._look = self.clock.callLater(LOOK_SECONDS, self._look_now)
            self._due = now + LOOK_SECONDS
        elif self._look is not None and not short:
            assert self.clock is not None
            self._look.cancel()
            self._look, self._due = None, inf
            self._lag = self.clock.seconds() - now

    def _look_now(self) -> None:
        assert self.clock is not None
        now = self._due
        self._lag = self.clock.seconds() - now
        self._look, self._due = None, inf
        self._cut_late(now)
        promised = sum(
            max(0, account.may - account.nbytes)
            for account in self._accounts.values()
            if account.arrives
        )
        half = (self.limit - self.held - promised) / 2
        self._let_go_on(now, max(half, self.limit * SOFT_SHARE - self.held))
        self._look_or_rest(now)

    def _let_go_on(self, now: float, room: float) -> None:
        """Resume reading those for which there is ``room``, in turns between addresses.

        An address of which fewer are read comes first.  Of those with equally many it is the one
        with the eldest, and every other time the one of which least is held back; of an address the
        eldest and the newest have every other turn.  So who comes last, and has little, waits for
        none of the many that will show only when they are read that they stand still.  If nobody is
        read at all, one is resumed in any case, since nothing would end otherwise.
        """
        running = Counter(
            holder.address for holder, account in self._accounts.items() if account.arrives
        )
        back = self._held_back
        if not back or (room <= 0 and running):
            return
        rows: dict[str, deque[Holder]] = {}
        weights: Counter[str] = Counter()
        for holder in sorted(back, key=lambda one: back[one].number):
            address = holder.address
            rows.setdefault(address, deque()).append(holder)
            weights[address] += back[holder].nbytes
        by_weight = self._by_weight = not self._by_weight

        def turn(address: str) -> tuple[int, Any, str]:
            place = weights[address] if by_weight else back[rows[address][0]].age
            return running[address], place, address

        turns = [turn(address) for address in rows]
        heapify(turns)
        given = self._turns = Counter({address: self._turns[address] for address in rows})
        while turns and (room > 0 or not running):
            address = turns[0][2]
            row = rows[address]
            given[address] += 1
            following = row.popleft() if given[address] % 2 else row.pop()
            account = back.pop(following, None)
            if account is not None:  # else what was done for the others has ended it
                account.go_on(now)
                account.may = account.nbytes + TURN_BYTES
                running[address] += 1
                room -= TURN_BYTES
                following.holdBack(False)
                if not following.reading:  # the disk, or something else, stands in its way as well
                    account.stop(now)
            while row and row[0] not in back:
                row.popleft()
            while row and row[-1] not in back:
                row.pop()
            if row:
                heapreplace(turns, turn(address))
            else:
                heappop(turns)


class SharedState:
    """What all servers of a process share: the bounds of memory, and who offends."""

    def __init__(self) -> None:
        # Bytes that may wait for the sink: above it connections with more than their share are not
        # read; at half of it they are read again.
        self.limit: float = inf
        self.waiting: int = 0  # bytes now
        self.senders: int = 0  # of these; each one's share is limit / senders
        self.paused: dict[Any, None] = {}  # connections that are not read because of that
        self.held: Ledger = Ledger()  # what cannot wait for the sink
        self.session_memory: SessionMemory = SessionMemory()
        self.peer_log: PeerLog = PeerLog()
        self.offenders: Offenders = Offenders()
        self.by_kind: dict[type, Any] = {}  # what servers of one kind share, by its class

    def bound(self, waiting: float, held: float, min_rate: float, clock: Clock) -> None:
        """One of the servers of this process has these limits; the smallest of all hold."""
        self.limit = min(self.limit, waiting)
        ledger = self.held
        ledger.bound(held)
        ledger.min_rate = min_rate if ledger.clock is None else min(ledger.min_rate, min_rate)
        ledger.clock = clock
