"""The gateway's process in the simulated world: real servers, sink and log over a simulated disk.

Only the writer's thread is replaced: a commit takes time on the simulated clock instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.sim.clock import ProcessClock
from tests.sim.disk import SimulatedDisk
from twisted_msgproto.core.errors import QueueFull
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.net.sink import DurableSink
from twisted_msgproto.queue.columns import encode
from twisted_msgproto.queue.format import Identity
from twisted_msgproto.queue.log import SegmentLog

DIRECTORY = "/queue"
RETRY_SECONDS = 0.25


def make_identity() -> Identity:
    """The same queue id and seed in every world: a seed replays to the octet."""
    return Identity("0" * 32, b"\0" * 8)


class SimulatedWriter:
    """What QueueWriter is, with a commit which takes simulated time.

    The group is what waits when the disk is free, as in the real one.
    """

    def __init__(self, log: SegmentLog, clock: ProcessClock, seconds: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._seconds = seconds
        self._waiting: list[tuple[MessageBatch, Callable[[BaseException | None], None]]] = []
        self._busy = False

    def submit(self, batch: MessageBatch, callback: Callable[[BaseException | None], None]) -> None:
        self._waiting.append((batch, callback))
        self._look()

    def _look(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            group, self._waiting = self._waiting, []
            self._clock.callLater(self._seconds(), self._commit, group)

    def _commit(self, group: list[Any]) -> None:
        error: BaseException | None = None
        try:
            self._log.append([encode([batch for batch, _ in group])])
        except QueueFull:
            self._clock.callLater(RETRY_SECONDS, self._commit, group)
            return
        except OSError as failure:
            # What was submitted behind it goes with it: a session has no gaps.
            error = failure
            group, self._waiting = group + self._waiting, []
        for _, callback in group:
            callback(error)
        self._busy = False
        self._look()


class GatewayProcess:
    """One life of the gateway, from its start to its crash."""

    def __init__(
        self,
        clock: Any,
        disk: SimulatedDisk,
        source: random.Random,
        fsync_seconds: float,
        make_factory: Callable[[DurableSink, ProcessClock], Any],
    ) -> None:
        self.clock = ProcessClock(clock)
        self.log = SegmentLog(
            DIRECTORY,
            disk=disk,
            segment_bytes=20_000,
            make_identity=make_identity,
            make_incarnation=lambda: disk.life + 1,
        )
        self.writer = SimulatedWriter(self.log, self.clock, lambda: source.random() * fsync_seconds)
        self.sink = DurableSink.over(self.writer, self.clock)  # type: ignore[arg-type]
        self.factory = make_factory(self.sink, self.clock)

    def kill(self) -> None:
        """The process ends at once: nothing of it ever runs again."""
        self.clock.kill()
