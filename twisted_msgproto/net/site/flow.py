"""A gateway remembers the flow of its last 15 minutes, so that a page opened now shows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..counters import CLASSES, quantile

SAMPLE_SECONDS: Final = 5.0
"""The counters of all servers are read this often; a read costs some microseconds."""

SAMPLES_MAX: Final = 180
"""This many samples are kept. They cover 15 minutes and need about 30 kB for each protocol."""

QUANTILES: Final = (("ack_p50_seconds", 0.5), ("ack_p99_seconds", 0.99))

COLUMNS: Final = ("messages_per_second", "bytes_per_second", *(name for name, _ in QUANTILES))
"""Each protocol has these figures in every sample; latencies are None without messages."""

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
    """The traffic of a gateway's servers, looked at now and then and remembered.

    ``factories()`` returns them; ``wallClock`` returns seconds since 1970 UTC.
    """

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
        self._call.start(SAMPLE_SECONDS, now=False).addErrback(_failed)

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
        self._at.append(int(self._wallClock() * 1e6))

    def figures(self) -> dict[str, Any]:
        """Return all samples, the oldest first, as JSON has them: ``at`` is the time of each."""
        return {
            "sample_seconds": SAMPLE_SECONDS,
            "at": list(self._at),
            "protocols": {
                name: {column: list(values) for column, values in course.columns.items()}
                for name, course in self._courses.items()
            },
        }


def since(flow: dict[str, Any], at: int) -> dict[str, Any]:
    """Return the samples of ``flow`` that are newer than ``at`` (µs since 1970)."""
    first = next((place for place, one in enumerate(flow["at"]) if one > at), len(flow["at"]))
    return {
        **flow,
        "at": flow["at"][first:],
        "protocols": {
            name: {column: values[first:] for column, values in columns.items()}
            for name, columns in flow["protocols"].items()
        },
    }


def _failed(failure: Failure) -> None:
    log.failure("the flow is not sampled any more", failure)
