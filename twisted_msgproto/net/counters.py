"""Counters of connections and traffic, while connections live; the traffic of 15 minutes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import fields
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger


class CounterPaths:
    """Where the counters of a connection stand: names, and dotted attributes of it."""

    __slots__ = ("names", "none", "read")

    def __init__(self, paths: Mapping[str, str]) -> None:
        if not paths:
            raise ValueError("a connection has at least one counter")
        self.names = tuple(paths)
        # An attrgetter of several attributes reads them in one call.
        self.read: Callable[[Any], tuple[Any, ...]] = attrgetter("machine.state", *paths.values())
        self.none: tuple[Any, ...] = (None, *[0] * len(paths))

    @classmethod
    def of(cls, counters: type[Any], **others: str) -> CounterPaths:
        """Return paths where the machine's ``counters`` are of this dataclass, and ``others``."""
        machine = {field.name: f"machine.counters.{field.name}" for field in fields(counters)}
        return cls(machine | others)


class Counters(Mapping[str, int]):
    """A mapping of names to plain integers; a name that was never counted has 0.

    A connection joins with :class:`CounterPaths`.  Its own counters are added whenever somebody
    reads, and kept when it leaves.

    What a connection had when somebody read is remembered in sums, so the next one who reads asks
    only those connections that may have counted since: each of them adds itself to ``changed``.

    Attributes:
        settled: what was counted here and by connections that have left.  What counts with each
            message counts there: a name that connections have as well must not stand in both.
        changed: the connections whose counters or state may have changed since they were read.
        states: how many connections that have joined are in each state, as they were read last.
    """

    def __init__(self) -> None:
        self.settled: defaultdict[str, int] = defaultdict(int)
        self.changed: set[Any] = set()
        self.states: Counter[Any] = Counter()
        self._paths: dict[Any, CounterPaths] = {}
        self._known: dict[Any, tuple[Any, ...]] = {}  # what of each connection is in the sums
        self._sums: defaultdict[str, int] = defaultdict(int)
        self._names: set[str] = set()  # of what connections count

    def join(self, connection: Any, paths: CounterPaths) -> None:
        """Add what stands at ``paths`` of ``connection`` to what is read, until it leaves."""
        self._paths[connection] = paths
        self._names.update(paths.names)
        self.changed.add(connection)

    def leave(self, connection: Any) -> None:
        """Keep the last figures of ``connection``; nothing happens if it has left already."""
        self.changed.discard(connection)
        paths = self._paths.pop(connection, None)
        if paths is not None:
            for name, count in zip(paths.names, paths.read(connection)[1:], strict=True):
                self.settled[name] += count
            known = self._known.pop(connection, None)
            if known is not None:
                self._replace(paths, [known], [paths.none])

    def tracks(self, connection: Any) -> bool:
        """Return whether ``states`` speaks of this connection."""
        return connection in self._known

    def as_dict(self) -> dict[str, int]:
        """Return all of them, as they are now."""
        self._read_again(list(self.changed))
        summed = defaultdict(int, self.settled)
        for name, count in self._sums.items():
            summed[name] += count
        return summed

    def _read_again(self, connections: Collection[Any]) -> None:
        self.changed.difference_update(connections)
        alike: defaultdict[CounterPaths, list[Any]] = defaultdict(list)
        for connection in connections:
            paths = self._paths.get(connection)
            if paths is not None:  # else it has left meanwhile
                alike[paths].append(connection)
        for paths, live in alike.items():
            read = list(map(paths.read, live))
            known = self._known
            self._replace(paths, [known.get(one, paths.none) for one in live], read)
            known.update(zip(live, read, strict=True))

    def _replace(
        self,
        paths: CounterPaths,
        old: Collection[tuple[Any, ...]],
        new: Collection[tuple[Any, ...]],
    ) -> None:
        left, *before = zip(*old, strict=True)
        entered, *now = zip(*new, strict=True)
        for name, was, become in zip(paths.names, before, now, strict=True):
            self._sums[name] += sum(become) - sum(was)
        for state, other in zip(left, entered, strict=True):
            if state is not other:
                self.states[state] -= 1
                self.states[other] += 1
        del self.states[None]

    def __getitem__(self, name: str) -> int:
        count = self.settled.get(name, 0)
        if name in self._names:
            self._read_again(list(self.changed))
            count += self._sums[name]
        return count

    def __setitem__(self, name: str, count: int) -> None:
        self.settled[name] += count - self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self.as_dict())

    def __repr__(self) -> str:
        return f"Counters({dict(self.as_dict())!r})"


# ── counts what one server was sent ─────────────────────────────────────────────────────────────


DECADES: Final = range(-4, 2)

STEPS: Final = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)  # a quarter apart

BOUNDS: Final = (
    *(float(f"{step}e{power}") for power in DECADES for step in STEPS),
    100.0,
)

CLASSES: Final = len(BOUNDS) + 1


class Traffic:
    """Integers that only grow; whoever wants a rate reads them twice.

    A latency is the time from the moment when a batch of messages was read until it was safe and
    could be acknowledged.  It counts once for each message of the batch.  What never became safe
    is not counted there.
    """

    __slots__ = ("latencies", "messages", "nbytes", "seconds", "waited")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.messages: int = 0  # that were delivered to the sink
        self.nbytes: int = 0  # of these
        self.latencies: list[int] = [0] * CLASSES  # messages that waited as BOUNDS says
        self.waited: float = 0.0  # seconds, of all these together
        self.seconds: Callable[[], float] = seconds


def quantile(latencies: Sequence[int], share: float) -> float | None:
    wanted = share * sum(latencies)
    if not wanted:
        return None
    reached = list(accumulate(latencies))
    place = bisect_left(reached, wanted)
    if place >= len(BOUNDS):
        return BOUNDS[-1]
    low = BOUNDS[place - 1] if place else 0.0
    within = (wanted - (reached[place] - latencies[place])) / latencies[place]
    return low + within * (BOUNDS[place] - low)


# ── the course of the last 15 minutes ───────────────────────────────────────────────────────────


SAMPLE_SECONDS: Final = 5.0  # between reads of all counters; a read costs some microseconds

SAMPLES_MAX: Final = 180  # 15 minutes; about 30 kB for each protocol

QUANTILES: Final = (("ack_p50_seconds", 0.5), ("ack_p99_seconds", 0.99))

COLUMNS: Final = ("messages_per_second", "bytes_per_second", *(name for name, _ in QUANTILES))

log = Logger(namespace="twisted_msgproto.site")

Value = float | None


class _Course:
    def __init__(self, samples: int) -> None:
        self.columns: dict[str, deque[Value]] = {
            name: deque([None] * samples, maxlen=SAMPLES_MAX) for name in COLUMNS
        }
        self._messages = self._bytes = 0
        self._latencies = [0] * CLASSES

    def sample(self, traffic: Sequence[Any], seconds: float) -> None:
        messages = sum(one.messages for one in traffic)
        nbytes = sum(one.nbytes for one in traffic)
        latencies = [sum(counts) for counts in zip(*(t.latencies for t in traffic), strict=True)]
        new = [now - before for now, before in zip(latencies, self._latencies, strict=True)]
        shown = [(messages - self._messages) / seconds, (nbytes - self._bytes) / seconds]
        taken = [quantile(new, share) for _, share in QUANTILES]
        self._messages, self._bytes, self._latencies = messages, nbytes, latencies
        rounded = [round(value, 1) for value in shown] + [
            None if value is None else round(value, 6) for value in taken
        ]
        for name, value in zip(COLUMNS, rounded, strict=True):
            self.columns[name].append(value)


class FlowHistory:
    def __init__(
        self, reactor: Any, factories: Callable[[], Iterable[Any]], wallClock: Callable[[], float]
    ) -> None:
        self._reactor = reactor
        self._factories = factories
        self._wallClock = wallClock
        self._at: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._courses: dict[str, _Course] = {}
        self._sampled = 0.0
        self._call = LoopingCall(self._sample)
        self._call.clock = reactor

    def start(self) -> None:
        self._sampled = self._reactor.seconds()
        self._call.start(SAMPLE_SECONDS, now=False).addErrback(
            lambda failure: log.failure("the flow is not sampled any more", failure)
        )

    def stop(self) -> None:
        if self._call.running:
            self._call.stop()

    def _sample(self) -> None:
        now = self._reactor.seconds()
        seconds, self._sampled = max(now - self._sampled, 1e-3), now
        traffic: dict[str, list[Any]] = {}
        for factory in self._factories():
            traffic.setdefault(factory.protocolName, []).append(factory.traffic)
        for name, parts in traffic.items():
            if name not in self._courses:
                self._courses[name] = _Course(len(self._at))
            self._courses[name].sample(parts, seconds)
        at = int(self._wallClock() * 1e6)
        # A page asks for what came after its last sample: that goes on if the clock is set back.
        self._at.append(max(at, self._at[-1] + 1) if self._at else at)

    def figures(self) -> dict[str, Any]:
        return {
            "sample_seconds": SAMPLE_SECONDS,
            "at": list(self._at),
            "protocols": {
                name: {column: list(values) for column, values in course.columns.items()}
                for name, course in self._courses.items()
            },
        }


def since(flow: dict[str, Any], at: int) -> dict[str, Any]:
    first = next((place for place, one in enumerate(flow["at"]) if one > at), len(flow["at"]))
    return {
        **flow,
        "at": flow["at"][first:],
        "protocols": {
            name: {column: values[first:] for column, values in columns.items()}
            for name, columns in flow["protocols"].items()
        },
    }
