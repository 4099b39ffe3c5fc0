"""Run small work that may hang in threads: a call over the network, a file on a remote disk.

They are daemons: a process that is told to end does not wait for a gateway that does not answer, as
it would for the executors of ``concurrent.futures``.
"""

from __future__ import annotations

import contextlib
import itertools
import queue as queues
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class DaemonThreadPool:
    """At most ``threads_max`` threads; one that hangs counts until :meth:`relieve` finds it."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy: dict[int, float] = {}  # at one piece since (monotonic seconds)
        self._numbers = itertools.count(1)

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.append(work)
            self._fill()

    def relieve(self, seconds: float) -> None:
        """Put a fresh thread in the place of each that has been at one piece for ``seconds``."""
        with self._lock:
            since = time.monotonic() - seconds
            self._busy = {own: began for own, began in self._busy.items() if began > since}
            self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._busy) < self._threads_max:
            own, work = next(self._numbers), self._waiting.popleft()
            self._busy[own] = time.monotonic()
            threading.Thread(
                target=self._run, args=[own, work], name=f"{self._name}-{own}", daemon=True
            ).start()

    def _run(self, own: int, work: Callable[[], None]) -> None:
        try:
            while True:
                work()
                with self._lock:
                    if own not in self._busy or not self._waiting:
                        return
                    work, self._busy[own] = self._waiting.popleft(), time.monotonic()
        finally:
            with self._lock:
                self._busy.pop(own, None)
                self._fill()

    def gather(
        self, calls: Mapping[Key, Callable[[], Answer]], seconds: float
    ) -> dict[Key, Answer | Exception]:
        """Make all calls at once; return what they returned or raised within ``seconds``."""
        answers: queues.SimpleQueue[tuple[Key, Answer | Exception]] = queues.SimpleQueue()

        def work(key: Key, call: Callable[[], Answer]) -> None:
            try:
                answers.put((key, call()))
            except Exception as error:
                answers.put((key, error))

        for key, call in calls.items():
            self.submit(partial(work, key, call))
        deadline = time.monotonic() + seconds
        got: dict[Key, Answer | Exception] = {}
        with contextlib.suppress(queues.Empty):
            while len(got) < len(calls):
                key, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
                got[key] = answer
        return got
