"""The throttle decides when a login is checked: guesses wait, a right password gets in.

Refusing whoever has failed too often would let anybody shut anybody out: twenty wrong passwords for
a name, from wherever, and its owner is refused.  So nobody is locked out here.  What is scarce is
*checks*, and they are handed out as follows:

1. A name that has logged in from this address before is checked at once, unless wrong passwords
   have come for the pair since.
2. Else the address, the pair of address and name, and the name each need a free token.  A wrong
   password costs one of each; a right one costs nothing.  Tokens come back at ``login-rate``.
3. Else the login waits in line for them.  Addresses and pairs with fewer failures come first.  At
   the end of :data:`WAIT_SECONDS` it is checked although its name has no token, since others
   may have used those up; one whose own address has none is refused without a check.
4. When more wait than :data:`LINE_MAX`, the login whose address has the most failures,
   refusals and places in line is refused without a check.

Nothing renews itself: an attempt that is not checked takes no token, and what is remembered of an
address is forgotten :data:`WINDOW_SECONDS` after it began, whatever came in between.

An address is an IPv4 address or an IPv6 network of 64 bits, which one client has to itself.  Those
of this machine and Unix sockets stand for anybody behind a proxy: there the pair alone counts.

Everything here is pure: ``now`` is an argument, in seconds by a clock that does not run backwards.
"""

from __future__ import annotations

import unicodedata
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Final

from ...core.limits import Limit, Limits
from ..peers import network_of

LOGIN_LIMITS: Final = (
    Limit("login-delay", 1.0, "s", "from the check of a login to the answer that it failed"),
    Limit("login-address-failures", 5, "failures", "of an address, then login-rate holds", 1),
    Limit("login-failures", 20, "failures", "of a name from new addresses, then likewise", 1),
    Limit("login-rate", 1.0, "logins/s", "of an address or a name are checked then", 0.001),
)

WAIT_SECONDS: Final = 8.0  # at most that a login waits; less if the hand-shake asks it

LINE_MAX: Final = 100  # logins that wait for a check; above it one is refused without

WINDOW_SECONDS: Final = 3600.0

REMEMBERED_MAX: Final = 10_000
"""Failures are remembered for this many addresses, this many pairs and this many names; those
unused for longest are dropped.  As many pairs are known to have logged in.

A bucket uses about 300 bytes, so all three use 9 MB at most.
"""

KNOWN_ADDRESSES_MAX: Final = 16  # of a name, lest one user's many displace all others

KNOWN_SECONDS: Final = 30 * 86400.0  # after a log-in; longer than any holiday's silence

KNOWN_FAILURES_MAX: Final = 5  # then a known pair is like any other until it logs in

TOGETHER_MAX: Final = 100
"""At most this many logins of an address or a name are checked at one time while none of them has
failed.

After a restart a thousand clients come back through one address, and the checker may be slow.  As
soon as one fails, only as many are checked together as there are tokens.
"""

NAME_BYTES_MAX: Final = 255  # of a name in a file or SASL; a longer one is remembered as it is

_ALMOST: Final = 1 - 1e-6  # a token: clocks count seconds since 1970 in 2⁻²² s, sums are rounded

_TICK: Final = 0.001

WAIT_MIN: Final = 1.0
"""A login waits so long to be checked although its name has no token: so at most :data:`LINE_MAX`
such checks are made each second, whatever the hand-shake leaves.
"""


def key_of(name: str) -> str:
    """Return one key for all spellings that a checker may take for one name."""
    if len(name) <= NAME_BYTES_MAX:
        name = unicodedata.normalize("NFKC", name).strip().casefold()
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(slots=True, eq=False)
class Bucket:
    """The tokens of an address, a pair or a name."""

    burst: float
    rate: float
    window: float
    tokens: float  # that were left at ``at``; 0 to ``burst``
    together: float
    at: float
    pending: int = 0  # logins that hold a token: they are checked, or wait for another bucket
    waiting: int = 0  # logins in line whose address's bucket it is
    failures: int = 0  # wrong passwords that are remembered
    refusals: int = 0  # without a check, likewise
    forgotten: float = inf  # when both are

    def refill(self, now: float) -> None:
        if now > self.at:
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
            self.at = now
        if now >= self.forgotten:
            self.failures, self.refusals, self.forgotten = 0, 0, inf

    def free(self, now: float) -> bool:
        self.refill(now)
        if not self.failures and self.pending < self.together:
            return True
        return self.tokens - self.pending >= _ALMOST

    def free_at(self, now: float) -> float:
        if self.free(now):
            return now
        if self.pending + 1 > self.burst:
            return inf
        return now + max(_TICK, (self.pending + 1 - self.tokens) / self.rate)

    def spend(self, now: float) -> None:
        self.refill(now)
        self.tokens = max(0.0, self.tokens - 1)
        self.failures += 1
        self.forgotten = min(self.forgotten, now + self.window)

    def turned_away(self, now: float) -> None:
        self.refill(now)
        self.refusals += 1
        self.forgotten = min(self.forgotten, now + self.window)

    def full(self, now: float) -> bool:
        self.refill(now)
        return not self.pending and self.tokens >= self.burst


class Buckets:
    def __init__(self, burst: float, rate: float, window: float) -> None:
        self._burst = burst
        self._rate = rate
        self._window = window
        self._buckets: OrderedDict[object, Bucket] = OrderedDict()
        self._poor_until = -inf  # until then a new one may be one that had to make room

    def of(self, key: object, now: float) -> Bucket:
        """Return the bucket of ``key``; a new one is full, unless it just made room."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            self._buckets.move_to_end(key)
            return bucket
        poor = now < self._poor_until
        tokens, together = (1.0, 1) if poor else (self._burst, TOGETHER_MAX)
        bucket = Bucket(self._burst, self._rate, self._window, tokens, together, now)
        self._buckets[key] = bucket
        if len(self._buckets) > REMEMBERED_MAX:
            _, oldest = self._buckets.popitem(last=False)
            if not oldest.full(now):
                self._poor_until = now + self._burst / self._rate
        return bucket


@dataclass(slots=True, eq=False)
class Known:
    """A pair of place and name that has logged in."""

    at: float  # it did so last
    failures: int = 0  # wrong passwords since then
    pending: int = 0  # its logins that are being checked

    @property
    def trusted(self) -> bool:
        most = KNOWN_FAILURES_MAX if self.failures else TOGETHER_MAX
        return self.failures + self.pending < most


class KnownPairs:
    def __init__(self) -> None:
        self._names: OrderedDict[str, OrderedDict[str, Known]] = OrderedDict()
        self._count = 0

    def find(self, place: str, name: str, now: float) -> Known | None:
        known = self._names[name].get(place) if name in self._names else None
        return None if known is None or now - known.at > KNOWN_SECONDS else known

    def add(self, place: str, name: str, now: float) -> None:
        places = self._names.setdefault(name, OrderedDict())
        self._names.move_to_end(name)
        known = places.get(place)
        if known is None:
            places[place] = Known(now)
            self._count += 1
        else:
            known.at, known.failures = now, 0
            places.move_to_end(place)
        if len(places) > KNOWN_ADDRESSES_MAX:
            self._drop(name)
        if self._count > REMEMBERED_MAX:
            self._drop(next(iter(self._names)))

    def _drop(self, name: str) -> None:
        places = self._names[name]
        places.popitem(last=False)
        self._count -= 1
        if not places:
            del self._names[name]


@dataclass(slots=True, eq=False)
class Attempt:
    """One login, from its arrival to its outcome."""

    place: str  # its address's network, or the address itself where that stands for many
    name: str  # what it is remembered by
    until: float  # it waits until then at most
    patient: bool  # its client waits for the whole of WAIT_SECONDS
    own: tuple[Bucket, Bucket]  # of its address and the pair; or that of the pair twice
    others: Bucket  # of its name, shared with other addresses
    held: bool = False  # it has a token of each of its own
    known: Known | None = None  # the pair that vouches for it; None: tokens do

    def rank(self) -> tuple[int, int]:
        address, pair = self.own
        return address.failures, pair.failures

    def nuisance(self) -> tuple[int, int]:
        """Return who has to go first: it has the most failures, refusals and places in line."""
        address, pair = self.own
        return address.failures + address.refusals + address.waiting, pair.failures


class Throttle:
    """The rules by which a login is checked, waits or is refused.

    The caller reports what happens (``arrive``, ``succeeded``, ``failed``, ``leave``), calls
    ``poll`` after each of these and at :attr:`deadline`, and does what that says.
    """

    def __init__(self, limits: Limits, hand_shake: float = inf) -> None:
        """``hand_shake``: the seconds within which a client has to be answered."""
        self.delay: float = limits["login-delay"]
        self.wait: float = max(0.0, min(WAIT_SECONDS, hand_shake - 2 * self.delay))
        self._line_max = LINE_MAX
        rate, window = limits["login-rate"], WINDOW_SECONDS
        of_address = limits.integer("login-address-failures")
        self._networks = Buckets(of_address, rate, window)
        self._pairs = Buckets(of_address, rate, window)
        self._names = Buckets(limits.integer("login-failures"), rate, window)
        self._known = KnownPairs()
        self._line: dict[Attempt, None] = {}  # in the order of arrival
        self._decided: list[tuple[Attempt, bool]] = []
        self._changed = False  # tokens may be free again, or be so earlier
        self.deadline: float = inf

    def arrive(self, address: str, name: str, now: float, within: float = inf) -> Attempt:
        """Note a login that has to be answered ``within`` this many seconds."""
        self._look(now)  # those who wait come first
        network, name = network_of(address), key_of(name)
        place = network or address
        pair = self._pairs.of((place, name), now)
        most = within - self.delay
        attempt = Attempt(
            place,
            name,
            until=now + max(0.0, min(self.wait, most)),
            patient=most >= self.wait >= WAIT_MIN,
            own=(pair if network is None else self._networks.of(network, now), pair),
            others=self._names.of(name, now),
        )
        if not self._decide(attempt, now):
            self._line[attempt] = None
            attempt.own[0].waiting += 1
            self.deadline = min(self.deadline, self._due(attempt, now))
            if len(self._line) > self._line_max:
                last = max(reversed(self._line), key=Attempt.nuisance)
                self._step_out(last)
                self._refuse(last, now)
        return attempt

    def poll(self, now: float) -> list[tuple[Attempt, bool]]:
        """Return who waits no longer, in order, and whether it is checked, or refused unchecked.
        Who is checked has to come back with ``succeeded`` or ``failed``.
        """
        self._look(now)
        decided, self._decided = self._decided, []
        return decided

    def succeeded(self, attempt: Attempt, now: float) -> None:
        self.unchecked(attempt)
        self._known.add(attempt.place, attempt.name, now)

    def failed(self, attempt: Attempt, now: float) -> None:
        self.unchecked(attempt)
        for bucket in set(attempt.own):
            bucket.spend(now)
        if attempt.known is not None:
            attempt.known.failures += 1
        else:
            attempt.others.spend(now)

    def unchecked(self, attempt: Attempt) -> None:
        """It was to be checked, but its client had gone: nothing has happened."""
        self._changed = True
        if attempt.known is not None:
            attempt.known.pending -= 1
        else:
            self._release(attempt)
            attempt.others.pending -= 1

    def leave(self, attempt: Attempt) -> None:
        if attempt in self._line:
            self._step_out(attempt)
            self._release(attempt)

    # ── tokens ──────────────────────────────────────────────────────────────────────────────────

    def _free(self, attempt: Attempt, now: float) -> bool:
        known = self._known.find(attempt.place, attempt.name, now)
        if known is not None and known.trusted:
            self._release(attempt)
            known.pending += 1
            attempt.known = known
            return True
        if not attempt.held and all([bucket.free(now) for bucket in attempt.own]):
            attempt.held = True
            for bucket in set(attempt.own):
                bucket.pending += 1
        if not attempt.held or not attempt.others.free(now):
            return False
        attempt.others.pending += 1
        return True

    def _release(self, attempt: Attempt) -> None:
        if attempt.held:
            attempt.held = False
            self._changed = True
            for bucket in set(attempt.own):
                bucket.pending -= 1

    # ── the line ────────────────────────────────────────────────────────────────────────────────

    def _look(self, now: float) -> None:
        if not self._changed and now < self.deadline:
            return
        self._changed = False
        for attempt in sorted(self._line, key=Attempt.rank):
            if self._decide(attempt, now):
                self._step_out(attempt)
        self.deadline = min((self._due(attempt, now) for attempt in self._line), default=inf)

    def _decide(self, attempt: Attempt, now: float) -> bool:
        if self._free(attempt, now):
            self._decided.append((attempt, True))
        elif now < attempt.until:
            return False
        elif attempt.held and attempt.patient:  # the last chance
            attempt.others.pending += 1
            self._decided.append((attempt, True))
        else:
            self._refuse(attempt, now)
        return True

    def _refuse(self, attempt: Attempt, now: float) -> None:
        self._release(attempt)
        attempt.own[0].turned_away(now)
        self._decided.append((attempt, False))

    def _step_out(self, attempt: Attempt) -> None:
        del self._line[attempt]
        attempt.own[0].waiting -= 1
        if not self._line:
            self.deadline = inf

    def _due(self, attempt: Attempt, now: float) -> float:
        missing = (attempt.others,) if attempt.held else attempt.own
        return min(attempt.until, max(bucket.free_at(now) for bucket in missing))
