"""The benchmarks measure ratios in one run, in interleaved pairs, never a figure alone.

The speed of a shared machine drifts by more than what is to be measured.  So every piece of work
stands beside another one that is done in the same round, and what counts is the median of the
rounds' ratios.  A protocol lists its rows in ``bench.py``, as :class:`Comparison`; the few that
nothing can stand beside (how long until a message is in the table, what idle connections weigh)
are a :class:`Gauge`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from statistics import median
from typing import Any, Literal

from twisted_msgproto.core.errors import ConfigurationError

ROUNDS = 5
"""One comparison has this many pairs; the median of their ratios is what counts."""


@dataclass(slots=True)
class Figures:
    """Holds what one piece of work cost.

    ``wall`` and ``cpu`` are in seconds (0: the CPU time was not measured), ``rss`` is the largest
    resident size in octets (0: not measured), ``latencies`` are seconds from sending to the
    acknowledgement, where measured, ``groups`` is how often the work was made durable, each time
    with one sync (0: it was not).
    """

    messages: int
    wall: float
    cpu: float
    rss: int = 0
    latencies: list[float] = field(default_factory=list)
    groups: int = 0

    @property
    def cpu_per_million(self) -> float:
        """Return the CPU seconds per million messages."""
        return self.cpu / self.messages * 1e6

    @property
    def per_second(self) -> float:
        """Return the messages per second of wall time."""
        return self.messages / self.wall

    @property
    def messages_per_group(self) -> float | None:
        """Return how many messages shared a sync; None if nothing was made durable."""
        return self.messages / self.groups if self.groups else None

    def __add__(self, more: Figures) -> Figures:
        """Return two pieces of work as one."""
        return Figures(
            self.messages + more.messages,
            self.wall + more.wall,
            self.cpu + more.cpu,
            max(self.rss, more.rss),
            self.latencies + more.latencies,
            self.groups + more.groups,
        )

    def percentile(self, share: float) -> float | None:
        """Return the latency that ``share`` of the messages keep, in seconds; None if not
        measured.
        """
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Describes one row of the table of figures to reach: our work beside another's.

    ``figure`` names what is compared: CPU seconds per million messages (less is better), or
    messages per second (more is better); the ratio is always ours / beside.  ``mark`` and ``goal``
    bound the ratio; None where the row only informs.

    ``follows``: the work beside adopts its shape (its number of groups, say) from what ours just
    did, so ours comes first in every round; otherwise they alternate in going first.  ``slices``: a
    round has this many pairs whose figures are added up, for work that depends much on the disk's
    mood.
    """

    name: str
    beside: str
    figure: Literal["cpu", "rate"]
    ours: Callable[[], Figures]
    other: Callable[[], Figures]
    mark: float | None = None
    goal: float | None = None
    follows: bool = False
    slices: int = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds what a gauge shows: the value that counts, and what else is worth telling, by name."""

    value: float
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gauge:
    """Describes one row that stands alone: a value in a ``unit``, less is better.

    ``mark`` and ``goal`` bound the median; None where the row only informs.  Read once in a run
    unless it ``repeats``: a percentile of a long load, say, has its repetitions in it.
    """

    name: str
    unit: str
    read: Callable[[], Reading]
    mark: float | None = None
    goal: float | None = None
    repeats: bool = False


Row = Comparison | Gauge
"""A subject consists of these."""


@dataclass(slots=True)
class Result:
    """Holds a measured comparison: every round's figures, and the ratio that counts."""

    row: Comparison
    ours: list[Figures]
    other: list[Figures]

    @property
    def ratios(self) -> list[float]:
        """Return each round's ratio, ours / beside.

        Raises ConfigurationError where the work beside was too little for its clock.
        """
        pairs = zip(self.ours, self.other, strict=True)
        if self.row.figure == "cpu":
            if not all(theirs.cpu for theirs in self.other):
                raise ConfigurationError(f"{self.row.name}: too little work, take a larger --scale")
            return [mine.cpu_per_million / theirs.cpu_per_million for mine, theirs in pairs]
        return [mine.per_second / theirs.per_second for mine, theirs in pairs]

    @property
    def ratio(self) -> float:
        """Return the median ratio."""
        return median(self.ratios)

    def keeps(self, bound: float | None) -> bool | None:
        """Return whether the ratio keeps ``bound``; None if there is none."""
        if bound is None:
            return None
        return self.ratio <= bound if self.row.figure == "cpu" else self.ratio >= bound

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for ``--json``."""
        latencies = [latency for figures in self.ours for latency in figures.latencies]
        merged = Figures(1, 1.0, 0.0, latencies=latencies)
        return {
            "name": self.row.name,
            "beside": self.row.beside,
            "figure": self.row.figure,
            "ratio": self.ratio,
            "ratios": self.ratios,
            "mark": self.row.mark,
            "goal": self.row.goal,
            "keeps_mark": self.keeps(self.row.mark),
            "messages_per_second": median(figures.per_second for figures in self.ours),
            "cpu_seconds_per_million": _median_cpu(self.ours),
            "beside_messages_per_second": median(figures.per_second for figures in self.other),
            "beside_cpu_seconds_per_million": _median_cpu(self.other),
            "messages_per_group": _median_group(self.ours),
            "beside_messages_per_group": _median_group(self.other),
            "rss_octets_max": max(figures.rss for figures in self.ours),
            "latency_p50_seconds": merged.percentile(0.50),
            "latency_p99_seconds": merged.percentile(0.99),
        }


@dataclass(slots=True)
class Readings:
    """Holds what a gauge showed, round by round."""

    row: Gauge
    readings: list[Reading]

    @property
    def value(self) -> float:
        """Return the median value."""
        return median(reading.value for reading in self.readings)

    def keeps(self, bound: float | None) -> bool | None:
        """Return whether the value keeps ``bound``; None if there is none."""
        return None if bound is None else self.value <= bound

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for ``--json``; the notes are those of the last
        round.
        """
        return {
            "name": self.row.name,
            "unit": self.row.unit,
            "value": self.value,
            "values": [reading.value for reading in self.readings],
            "mark": self.row.mark,
            "goal": self.row.goal,
            "keeps_mark": self.keeps(self.row.mark),
            "notes": dict(self.readings[-1].notes),
        }


def _median_cpu(rounds: list[Figures]) -> float | None:
    return median(figures.cpu_per_million for figures in rounds) or None


def _median_group(rounds: list[Figures]) -> float | None:
    sizes = [size for figures in rounds if (size := figures.messages_per_group) is not None]
    return median(sizes) if sizes else None


def measure(
    comparison: Comparison, rounds: int = ROUNDS, said: Callable[[str], None] = lambda line: None
) -> Result:
    """Run the pairs of a comparison, one warm-up of each first."""
    comparison.ours()
    comparison.other()
    result = Result(comparison, [], [])
    for number in range(rounds):
        ours: list[Figures] = []
        other: list[Figures] = []
        for turn in range(number, number + comparison.slices):
            # Which goes first alternates where it can: a drift within a round favours neither.
            pair: Sequence[tuple[list[Figures], Callable[[], Figures]]] = (
                (ours, comparison.ours),
                (other, comparison.other),
            )
            forward = comparison.follows or turn % 2 == 0
            for figures, work in pair if forward else reversed(pair):
                figures.append(work())
        result.ours.append(reduce(add, ours))
        result.other.append(reduce(add, other))
        said(f"{comparison.name}: round {number + 1}/{rounds}, ratio {result.ratios[-1]:.2f}")
    return result


def read(
    gauge: Gauge, rounds: int = ROUNDS, said: Callable[[str], None] = lambda line: None
) -> Readings:
    """Read a gauge, as often as it wants to be."""
    result = Readings(gauge, [])
    for number in range(rounds if gauge.repeats else 1):
        result.readings.append(gauge.read())
        said(f"{gauge.name}: round {number + 1}, {result.readings[-1].value:.3g} {gauge.unit}")
    return result


@contextmanager
def timed(messages: int) -> Iterator[Figures]:
    """Measure the block in this process: its CPU and wall time for ``messages`` messages."""
    figures = Figures(messages, 0.0, 0.0)
    wall, cpu = time.perf_counter(), time.process_time()
    yield figures
    figures.wall = time.perf_counter() - wall
    figures.cpu = time.process_time() - cpu


class Measured(ABC):
    """Is a server in a process of its own; it listens on ``port`` and is measured from outside."""

    port: int

    @abstractmethod
    def usage(self) -> dict[str, Any]:
        """What the process has used since it began: ``cpu`` seconds, ``rss`` octets, …"""

    @abstractmethod
    def close(self) -> None:
        """End the process."""

    def measure(self, messages: int, work: Callable[[], list[float]]) -> Figures:
        """Run ``work`` against the process (it returns latencies); what that cost the process."""
        before = self.usage()
        wall = time.perf_counter()
        latencies = work()
        wall = time.perf_counter() - wall
        after = self.usage()
        groups = after.get("groups", 0) - before.get("groups", 0)
        return Figures(
            messages, wall, after["cpu"] - before["cpu"], after["rss"], latencies, groups
        )


class Subject(Measured):
    """Runs a server process of ours: ``python -m MODULE ARGUMENTS``.

    The process prints its port as its first line (``{"port": N}``) and answers each line on its
    standard input with what it has used so far (see :func:`answer_usage`).
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.port = self._read()["port"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the measured server ended with {self._process.wait()}")
        values: dict[str, Any] = json.loads(line)
        return values

    def usage(self) -> dict[str, Any]:
        """What the process has used since it began: ``cpu`` seconds, ``rss`` octets, …"""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def usage() -> dict[str, Any]:
    """Return what this process (all its threads) has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open(f"/proc/{os.getpid()}/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return {"cpu": used.ru_utime + used.ru_stime, "rss": used.ru_maxrss << 10, "resident": resident}


def answer_usage(reactor: Any, port: int, more: Callable[[], dict[str, Any]] = dict) -> None:
    """Be a :class:`Subject`: print the port, answer lines with usage, end when the input ends.

    ``more`` adds what else this server counts (``groups``: see :class:`Figures`).
    """
    from twisted.internet.protocol import connectionDone
    from twisted.internet.stdio import StandardIO
    from twisted.protocols.basic import LineOnlyReceiver
    from twisted.python.failure import Failure

    class Asked(LineOnlyReceiver):
        delimiter = b"\n"

        def connectionMade(self) -> None:
            self._say({"port": port})

        def lineReceived(self, line: bytes) -> None:
            self._say({**usage(), **more()})

        def _say(self, values: dict[str, Any]) -> None:
            self.transport.write(json.dumps(values).encode() + b"\n")  # type: ignore[union-attr]

        def connectionLost(self, reason: Failure = connectionDone) -> None:
            if reactor.running:
                reactor.stop()

    StandardIO(Asked(), reactor=reactor)
