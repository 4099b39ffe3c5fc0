"""A client's machine, a server's machine and a wire which delays, splits, joins and drops.

:class:`Pairs` is the harness that all protocols share: its rules are what networks, clocks, sinks
and applications do, its invariants are what must hold whatever they do.  A :class:`Pairing` is one
protocol in it, for the length of one connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from twisted_msgproto.core.connection import Connection

BEGIN = 1_700_000_000.0
"""Every world begins at this time: sABC's machines want dates."""

WIDE = 1 << 30
"""All that is on its way."""

REST_SECONDS = 400.0
"""At the end everything has to be answered within this time of the world."""

ROUNDS_MAX = 3000
"""A world which needs more rounds at its end does not end."""


class Side(Enum):
    """One end of the wire."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Side:
        return Side.SERVER if self is Side.CLIENT else Side.CLIENT


BOTH = (Side.CLIENT, Side.SERVER)


# ── What machines say, in the words of the harness ──────────────────────────────────────────────


@dataclass
class Arrived:
    """Bodies have come; ``place`` is for the sink, None where no sink is asked.

    What has the same ``stream`` came in the order of sending.
    """

    place: Any
    bodies: list[bytes]
    stream: object = None


@dataclass
class Settled:
    """The sender was told that these bodies are safe at the other side."""

    bodies: list[bytes]


@dataclass
class Refused:
    """The sender was told that these bodies were not taken."""

    bodies: list[bytes]


@dataclass
class Unsure:
    """Nobody knows whether these bodies are safe: the time or the connection was over."""

    bodies: list[bytes]
    everything: bool = False
    """Nothing of this sender waits for an answer any more."""


@dataclass
class Faulted:
    """The machine has found a fault in its peer, or lost patience with it."""

    reason: str


@dataclass
class Skipped:
    """The receiver has refused a body, or has given it up: one is missing from now on."""


Report = Skipped | Arrived | Settled | Refused | Unsure | Faulted


class Wrong(AssertionError):
    """Something which must hold does not."""


def must(holds: object, *what: object) -> None:
    """Raise Wrong unless this holds."""
    if not holds:
        raise Wrong(" ".join(str(word)[:300] for word in what))


# ── One protocol ────────────────────────────────────────────────────────────────────────────────


class Pairing(ABC):
    """Both machines of one connection of one protocol.

    ``options`` is one choice of ``OPTIONS``; ``carried`` is what ``lost`` returned as work on the
    connection before, where machines want it back.
    """

    OPTIONS: ClassVar[Mapping[str, Sequence[Any]]] = {}
    both_ways: ClassVar[bool] = True
    stream: ClassVar[bool] = True
    half_close: ClassVar[bool] = True
    gapless: ClassVar[bool] = True
    """Nothing is missing between two bodies of a stream."""
    loss_ends: ClassVar[bool] = True
    """A batch that is not stored ends the session."""
    patience: ClassVar[Mapping[str, float]] = {}
    """Faults for which the wire is to blame → seconds since this side was given anything."""
    haste: ClassVar[Mapping[str, float]] = {}
    """The same → seconds since the connection was made."""
    kept_alive: frozenset[str] = frozenset()
    """Of these, those which cannot be while the wire delivers at once."""

    machines: Mapping[Side, Connection[Any, Any, Any]]

    def __init__(self, options: Mapping[str, Any], now: float, carried: list[Any]) -> None:
        self.options = options
        self.work: list[Any] = []  # what the client's machine returned as lost

    @abstractmethod
    def begin(self, now: float) -> list[tuple[Side, list[Report]]]:
        """The connection stands."""

    @abstractmethod
    def room(self, side: Side) -> int:
        """How many bodies may be sent."""

    @abstractmethod
    def send(self, side: Side, bodies: list[bytes], now: float) -> list[bytes]:
        """Send them; those which will be answered."""

    @abstractmethod
    def read(self, side: Side, events: Iterable[Any], now: float) -> list[Report]:
        """What these events of this machine mean."""

    def resubmit(self) -> list[bytes]:
        """Hand the client's machine what it lost on the connection before; the bodies of that."""
        return []

    def receive(self, side: Side, inputs: Any, now: float) -> list[Report]:
        machine = self.machines[side]
        reports = self.read(side, machine.receive(inputs, now), now)
        while machine.unfinished:
            reports += self.read(side, machine.receive(b"" if self.stream else [], now), now)
        return reports

    def call(self, side: Side, name: str, *arguments: Any) -> list[Report]:
        """One of the calls that all machines have; the last argument is the time."""
        events = getattr(self.machines[side], name)(*arguments)
        return self.read(side, events, arguments[-1])

    def outputs(self, side: Side, now: float) -> Any:
        """What is to be written: bytes, or messages."""
        return self.machines[side].outputs()

    def in_flight(self, side: Side) -> int:
        return 0

    def window(self, side: Side) -> int:
        return 0

    def finished(self, side: Side) -> bool:
        return self.machines[side].finished

    def deadline(self, side: Side) -> float | None:
        return self.machines[side].deadline

    def timers(self, side: Side) -> bool:
        """Whether anything is to be done at some time, or would be if the machine were not over."""
        return self.machines[side].deadlines.next is not None

    def counters(self, side: Side) -> Mapping[str, int]:
        counters = self.machines[side].counters
        if isinstance(counters, Mapping):
            return counters
        return {name: getattr(counters, name) for name in counters.__slots__}

    def whole(self, side: Side) -> bool:
        """Nothing incomplete is held, as must be when the wire has delivered all."""
        machine = self.machines[side]
        return machine.no_partial_input and not machine.input_weight

    def cut(self, now: float) -> bool:
        """Whether a connection which is cut ends the machines; if not, they go on."""
        return True


# ── The wire and the account ────────────────────────────────────────────────────────────────────


class Way:
    """What one side has written and the other has not read."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self.waiting: Any = bytearray() if stream else deque()
        self.ends = False

    @property
    def news(self) -> bool:
        return bool(self.waiting) or self.ends

    def put(self, outputs: Any) -> None:
        if not self.ends:
            self.waiting.extend(outputs)

    def take(self, most: int) -> Any:
        if self._stream:
            octets = bytes(self.waiting[:most])
            del self.waiting[:most]
            return octets
        return [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]


@dataclass
class Account:
    """What one side sends to the other: what became of it on this connection, and ever."""

    made: int = 0
    again: deque[bytes] = field(default_factory=deque)  # to be sent once more
    sent: int = 0  # on this connection
    places: dict[bytes, list[int]] = field(default_factory=dict)  # the order of that
    open: dict[bytes, None] = field(default_factory=dict)  # on this connection, not answered
    last: dict[object, int] = field(default_factory=dict)  # stream → what arrived last
    asked: list[tuple[Any, list[bytes]]] = field(default_factory=list)  # the sink was asked
    stored: set[bytes] = field(default_factory=set)
    settled: set[bytes] = field(default_factory=set)
    wanted: set[bytes] = field(default_factory=set)  # which have to be settled in the end
    missing: bool = False  # something of this connection was refused or given up

    def bodies(self, side: Side, count: int, size: int) -> list[bytes]:
        """The next ones: JSON, each another, ``size`` bytes long or a few more."""
        bodies = [self.again.popleft() for _ in range(min(count, len(self.again)))]
        for _ in range(count - len(bodies)):
            self.made += 1
            bodies.append(b'"%s%d%s"' % (side.value[:1].encode(), self.made, b"." * size))
        return bodies

    def reconnect(self) -> None:
        self.places, self.open, self.last, self.asked = {}, {}, {}, []
        self.sent, self.missing = 0, False

    def arrived(self, body: bytes, stream: object, gapless: bool) -> None:
        """It came, in its turn: behind what came before, and right behind it where nothing may
        be missing.
        """
        last = self.last.get(stream)
        strict = gapless and not self.missing and (last is not None or not self.last)
        after = -1 if last is None else last
        places = [place for place in self.places.get(body, ()) if place > after]
        must(places, "out of order, or never sent:", body)
        must(not strict or places[0] == after + 1, "something is missing before", body)
        self.last[stream] = places[0]


# ── The harness ─────────────────────────────────────────────────────────────────────────────────

SIZES = st.sampled_from((0, 0, 1, 40, 300, 3000))
PIECES = st.sampled_from((WIDE, 1, 2, 7, 64, 500))
SECONDS = st.sampled_from((0.05, 0.6, 1.1, 3.5, 12.0, 35.0, 130.0))


class Pairs(RuleBasedStateMachine):
    """Rules and invariants for one kind of :class:`Pairing`; see :func:`states_of`."""

    kind: ClassVar[type[Pairing]]

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        self.options: Mapping[str, Any] = {}
        self.accounts = {side: Account() for side in BOTH}
        self.carried: list[Any] = []
        self.live = False  # the wire delivers at once
        self.live_since = 0.0
        self.pair: Any = None

    # ── what happens ────────────────────────────────────────────────────────────────────────────

    @property
    def up(self) -> bool:
        return self.pair is not None and bool(self.here)

    @precondition(lambda self: not self.up)
    @rule(quick=st.booleans())
    def connect(self, quick: bool) -> None:
        """``quick``: the session stands before anything else happens."""
        self._connect()
        if quick:
            self._deliver_all()

    def _connect(self) -> None:
        self.ways = {side: Way(self.kind.stream) for side in BOTH}  # by who writes
        self.here = set(BOTH)  # whose machine was not told that the connection is lost
        self.ended: set[Side] = set()  # who reads nothing more
        self.paused: set[Side] = set()
        self.deaf: set[Side] = set()
        self.draining: set[Side] = set()
        self.made = self.now
        self.heard = dict.fromkeys(BOTH, self.now)
        self.counted: dict[Side, dict[str, int]] = {side: {} for side in BOTH}
        for account in self.accounts.values():
            account.reconnect()
        carried, self.carried = self.carried, []
        self.pair = self.kind(self.options, self.now, carried)
        for side, reports in self.pair.begin(self.now):
            self._after(side, reports)
        bodies = self.pair.resubmit()
        if bodies:
            again = self.accounts[Side.CLIENT].again
            must(list(again)[: len(bodies)] == bodies, "another order than before:", bodies)
            for _ in bodies:
                again.popleft()
            self._sent(Side.CLIENT, bodies, bodies)
            self._after(Side.CLIENT, [])

    @precondition(lambda self: self.up)
    @rule(server=st.booleans(), count=st.integers(1, 6), size=SIZES)
    def send(self, server: bool, count: int, size: int) -> None:
        side = Side.SERVER if server and self.kind.both_ways else Side.CLIENT
        if side in self.here - self.ended - self.draining:
            self._send(side, count, size)

    @precondition(lambda self: self.up)
    @rule(server=st.booleans(), count=st.integers(1, 6), pieces=st.integers(1, 3))
    def send_and_deliver(self, server: bool, count: int, pieces: int) -> None:
        """Sent in some reads, so that the sink is asked as often, and all that is on its way."""
        side = Side.SERVER if server and self.kind.both_ways else Side.CLIENT
        for _ in range(pieces):
            if self.up and side in self.here - self.ended - self.draining:
                self._send(side, count, 0)
                self._deliver_all()

    @precondition(lambda self: self.up)
    @rule(server=st.booleans(), most=PIECES)
    def deliver(self, server: bool, most: int) -> None:
        """To the server, or to the client; where there is nothing, to the other one."""
        side = Side.SERVER if server else Side.CLIENT
        if not self._readable(side):
            side = side.other
        if self._readable(side):
            self._deliver(side, most)

    @precondition(lambda self: self.up)
    @rule()
    def deliver_all(self) -> None:
        """Both ways, until nothing is on its way."""
        self._deliver_all()

    @precondition(lambda self: self.up)
    @rule(seconds=SECONDS, late=st.booleans())
    def wait(self, seconds: float, late: bool) -> None:
        """Time passes; timers fire at their time, or late."""
        self._wait(seconds, late)

    @precondition(lambda self: self.up)
    @rule(seconds=SECONDS)
    def wait_on_a_quick_wire(self, seconds: float) -> None:
        """Time passes, and all that is written is read at once, but for a side that is paused."""
        self._deliver_all()
        self.live, self.live_since = True, self.now
        try:
            self._wait(seconds, late=False)
        finally:
            self.live = False

    @precondition(lambda self: self.up)
    @rule(server=st.booleans())
    def pause_or_resume(self, server: bool) -> None:
        """A side is not read, or is read again."""
        side = Side.SERVER if server else Side.CLIENT
        if side in self.here - self.ended - self.deaf:
            if side in self.paused:
                self._resume(side)
            else:
                self._pause(side)

    @precondition(lambda self: self._asked())
    @rule(which=st.integers(0, 5))
    def store(self, which: int) -> None:
        """One batch which waits for the sink is safe, in any order."""
        asked = self._asked()
        self._store(*asked[which % len(asked)])

    @precondition(lambda self: self._asked())
    @rule()
    def store_all(self) -> None:
        while asked := self._asked():
            self._store(*asked[0])

    @precondition(lambda self: self._asked())
    @rule(which=st.integers(0, 5), sure=st.booleans())
    def not_stored(self, which: int, sure: bool) -> None:
        """One batch never will be safe."""
        if not sure:
            return
        asked = self._asked()
        sender, index = asked[which % len(asked)]
        place, _ = self.accounts[sender].asked.pop(index)
        side = sender.other
        self.accounts[sender].missing = True
        if self.kind.loss_ends:
            self.deaf.add(side)
            if side not in self.paused:
                self._pause(side)
        if side in self.here:
            self._after(side, self.pair.call(side, "not_safe", place, self.now))

    @precondition(lambda self: self.up)
    @rule(how=st.sampled_from(("", "", "cut", "client", "server", "shut")))
    def end(self, how: str) -> None:
        """The connection breaks, with what is on its way; a side ends in order; or the client shuts
        its sending side and reads on.
        """
        match how:
            case "cut":
                self._cut()
            case "shut" if self.kind.half_close:
                if Side.CLIENT in self.here - self.ended:
                    self.draining.add(Side.CLIENT)
                    self.ways[Side.CLIENT].ends = True
            case _:
                side = Side.SERVER if how == "server" else Side.CLIENT
                if side in self.here - self.ended:
                    self._drain(side)

    # ── how it happens ──────────────────────────────────────────────────────────────────────────

    def _asked(self) -> list[tuple[Side, int]]:
        """Batches for which the sink was asked: who sent them, and which."""
        if not self.up:
            return []
        return [
            (sender, index)
            for sender in BOTH
            if sender.other in self.here
            for index in range(len(self.accounts[sender].asked))
        ]

    def _send(self, side: Side, count: int, size: int) -> None:
        account, pair = self.accounts[side], self.pair
        bodies = account.bodies(side, min(count, pair.room(side)), size)
        if bodies:
            self._sent(side, bodies, pair.send(side, bodies, self.now))
            self._after(side, [])

    def _sent(self, side: Side, bodies: list[bytes], answered: list[bytes]) -> None:
        account = self.accounts[side]
        for body in bodies:
            account.places.setdefault(body, []).append(account.sent)
            account.sent += 1
        for body in answered:
            account.open[body] = None
        account.wanted.update(answered)

    def _readable(self, side: Side) -> bool:
        """Whether there is something which this side can be given."""
        return (
            self.ways[side.other].news
            and side in self.here
            and side not in self.ended
            and side not in self.paused
        )

    def _deliver(self, side: Side, most: int) -> None:
        way = self.ways[side.other]
        inputs = way.take(most)
        if inputs:
            reports = self.pair.receive(side, inputs, self.now)
            # A side may wait for all of a frame, however its bytes come.
            if not self.kind.stream or self.pair.whole(side):
                self.heard[side] = self.now
            self._after(side, reports)
        if way.waiting or side not in self.here or side in self.ended:
            return
        if self.kind.stream:
            must(self.pair.whole(side), side, "holds something although all has come")
        if way.ends:
            self.ended.add(side)
            self._after(side, self.pair.call(side, "ended", self.now))
            if side.other not in self.here:
                self._lose(side)

    def _deliver_all(self) -> None:
        for _ in range(ROUNDS_MAX):
            sides = [side for side in BOTH if self._readable(side)]
            if not sides:
                return
            for side in sides:
                if self._readable(side):
                    self._deliver(side, WIDE)
        raise Wrong("both sides write to each other without end")

    def _wait(self, seconds: float, late: bool) -> None:
        until = self.now + seconds
        for _ in range(ROUNDS_MAX):
            due = [(at, side) for side in BOTH if (at := self._deadline(side)) is not None]
            at, side = min(due, key=lambda one: one[0], default=(until + 1, Side.CLIENT))
            if at > until:
                break
            self.now = until if late else max(self.now, at)
            self._after(side, self.pair.call(side, "advance", self.now))
            deadline = self._deadline(side)
            must(deadline is None or deadline > self.now, side, "has its timer spin")
            if self.live:
                self._deliver_all()
        else:
            raise Wrong("timers fire without end")
        self.now = until

    def _deadline(self, side: Side) -> float | None:
        deadline: float | None = None
        if side in self.here:
            deadline = self.pair.deadline(side)
        return deadline

    def _cut(self) -> None:
        if self.pair.cut(self.now):
            for side in BOTH:
                self._lose(side)
            return
        for way in self.ways.values():
            way.waiting.clear()
        for side in BOTH:
            self._after(side, [])

    def _pause(self, side: Side) -> None:
        self.paused.add(side)
        self._after(side, self.pair.call(side, "paused", self.now))

    def _resume(self, side: Side) -> None:
        self.paused.discard(side)
        self.heard[side] = self.now
        self._after(side, self.pair.call(side, "resumed", self.now))

    def _store(self, sender: Side, index: int) -> None:
        place, bodies = self.accounts[sender].asked.pop(index)
        self.accounts[sender].stored.update(bodies)
        side = sender.other
        self._after(side, self.pair.call(side, "made_safe", place, self.now))

    def _drain(self, side: Side) -> None:
        self.draining.add(side)
        self._after(side, self.pair.call(side, "drain", self.now))

    def _after(self, side: Side, reports: list[Report]) -> None:
        """After each call of a machine: follow what it says, write what it wrote, see its end."""
        for report in reports:
            self._follow(side, report)
        if side not in self.here:
            return
        for name, value in self.pair.counters(side).items():
            must(value >= self.counted[side].get(name, 0), side, "counts backwards:", name)
            self.counted[side][name] = value
        outputs = self.pair.outputs(side, self.now)
        self.ways[side].put(outputs)
        if self.pair.finished(side):
            self.ways[side].ends = True
            self._lose(side)

    def _lose(self, side: Side) -> None:
        if side not in self.here:
            return
        self.here.discard(side)
        self.ended.add(side)
        pair, account = self.pair, self.accounts[side]
        account_of_peer = self.accounts[side.other]
        for report in pair.call(side, "lost", self.now):
            self._follow(side, report)
        if side is Side.CLIENT:
            self.carried = pair.work
        must(not account.open, side, "forgot on a lost connection:", list(account.open))
        must(pair.deadline(side) is None, side, "has a deadline after its end")
        must(not pair.timers(side), side, "keeps deadlines after its end")
        must(not _full(pair.outputs(side, self.now)), side, "writes after its end")
        must(pair.finished(side), side, "is not finished after its end")
        must(not pair.machines[side].input_weight, side, "holds something after its end")
        must(not pair.call(side, "lost", self.now), side, "loses its connection twice")
        account_of_peer.asked.clear()  # what it said of them no machine will hear

    def _follow(self, side: Side, report: Report) -> None:
        match report:
            case Arrived():
                self._arrive(side.other, report)
            case Settled():
                self._settle(side, report.bodies)
            case Refused() | Unsure():
                account = self.accounts[side]
                if isinstance(report, Unsure) and report.everything:
                    expected = list(account.open)
                    must(report.bodies == expected, side, "lost", report.bodies, "not", expected)
                account.missing = True
                for body in report.bodies:
                    must(body in account.open, side, "was told twice of", body)
                    del account.open[body]
                    account.again.append(body)
            case Skipped():
                self.accounts[side.other].missing = True
            case Faulted():
                self._fault(side, report)

    def _arrive(self, sender: Side, report: Arrived) -> None:
        account = self.accounts[sender]
        if sender.other in self.deaf:
            return
        for body in report.bodies:
            account.arrived(body, report.stream, self.kind.gapless)
        if report.place is None:
            account.stored.update(report.bodies)
        else:
            account.asked.append((report.place, report.bodies))

    def _settle(self, side: Side, bodies: list[bytes]) -> None:
        account = self.accounts[side]
        for body in bodies:
            must(body in account.open, side, "was told twice of", body)
            must(body in account.stored, side, "was told that it is safe:", body)
            del account.open[body]
            account.settled.add(body)

    def _fault(self, side: Side, report: Faulted) -> None:
        kind, reason = self.kind, report.reason
        must(reason in {**kind.patience, **kind.haste}, side, "blames its peer:", reason)
        since = self.made if reason in kind.haste else self.heard[side]
        patience = {**kind.patience, **kind.haste}[reason]
        must(self.now - since >= patience, side, "is impatient:", reason)
        # What came late, because the wire was slow, has its answer late.
        quick = self.live and self.now - max(since, self.live_since) >= patience
        kept = reason in self.pair.kept_alive and not self.paused
        must(not (quick and kept), side, "lost its peer on a quick wire:", reason)

    # ── what must hold after each step ──────────────────────────────────────────────────────────

    @invariant()
    def windows_hold(self) -> None:
        if not self.up:
            return
        for side in self.here:
            in_flight, window = self.pair.in_flight(side), self.pair.window(side)
            must(in_flight <= window or not window, side, "has", in_flight, "in flight of", window)
            must(self.pair.machines[side].input_weight >= 0, side, "holds less than nothing")
            self.pair.machines[side].snapshot()

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def teardown(self) -> None:
        """Everything is delivered and stored: both sides agree, and nothing waits."""
        if self.pair is None:
            return
        for _ in range(4):
            if not self.up:
                if not any(account.again for account in self.accounts.values()):
                    break
                self._connect()
            self._rest()
            self._close()
        for side, account in self.accounts.items():
            left = account.wanted - account.settled
            must(not left, side, "has not heard of", left)

    def _rest(self) -> None:
        """Send what is to be sent again, deliver all, store all, until nothing happens."""
        until, self.live_since = self.now + REST_SECONDS, self.now
        for _ in range(ROUNDS_MAX):
            if not self.up:
                return
            for side in BOTH:
                if side in self.paused - self.deaf - self.ended:
                    self._resume(side)
                if self._sendable(side):
                    self._send(side, len(self.accounts[side].again), 0)
            self._deliver_all()
            self.store_all()
            waits = any(a.open or a.again for a in self.accounts.values())
            if any(self._readable(side) or self._sendable(side) for side in BOTH):
                continue
            if not waits or self.now >= until:
                break
            before = self.now
            nearest = [at for side in BOTH if (at := self._deadline(side)) is not None]
            if not nearest:
                break
            self.live = True
            self._wait(max(0.0, min(nearest) - before), late=False)
            self.live = False
        else:
            raise Wrong("both sides never come to rest")

    def _sendable(self, side: Side) -> bool:
        """Whether something has to be sent once more, and may be."""
        may = side in self.here - self.ended - self.draining and bool(self.accounts[side].again)
        return may and self.pair.room(side) > 0

    def _close(self) -> None:
        for side in BOTH:
            if self.up and side in self.here - self.ended - self.draining:
                self._drain(side)
        self._deliver_all()
        self.store_all()
        self._deliver_all()
        if self.up:
            for side in BOTH:
                self._lose(side)


def _full(outputs: Any) -> bool:
    """Whether there is anything in what a machine has written."""
    return any(map(_full, outputs)) if isinstance(outputs, tuple) else bool(outputs)


def states_of(kind: type[Pairing]) -> type[Pairs]:
    """The state machine of one protocol."""
    options = st.fixed_dictionaries(
        {name: st.sampled_from(choices) for name, choices in kind.OPTIONS.items()}
    )

    class States(Pairs):
        @initialize(options=options, quick=st.booleans())
        def begin(self, options: Mapping[str, Any], quick: bool) -> None:
            self.options = options
            self.connect(quick)

    States.kind = kind
    States.__name__ = States.__qualname__ = kind.__name__
    return States
