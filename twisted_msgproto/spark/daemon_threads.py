"""Run small work that may hang in threads: a call over the network, a file on a remote disk.

They are daemons: a process that is told to end does not wait for a gateway that does not answer, as
it would for the executors of ``concurrent.futures``.
"""

from __future__ import annotations

import contextlib
import queue as queues
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

IDLE_SECONDS = 5.0
"""How long a thread waits for work before it ends; the next work starts a fresh one."""

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class DaemonThreadPool:
    """At most ``threads_max`` threads, started when there is work and all others are busy.

    A thread that hangs counts until :meth:`relieve` finds it.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._work: queues.SimpleQueue[Callable[[], None]] = queues.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0
        self._busy: dict[int, float] = {}
        """Each thread has been at its piece of work since this time (monotonic seconds)."""

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        with self._lock:
            self._unfinished += 1
            self._fill()

    def relieve(self, seconds: float) -> None:
        """Put a fresh thread in the place of each that has been at one piece for ``seconds``."""
        with self._lock:
            since = time.monotonic() - seconds
            for hanging in [thread for thread, began in self._busy.items() if began <= since]:
                self._let_go(hanging)
            self._fill()

    def _fill(self) -> None:
        while self._threads < min(self._unfinished, self._threads_max):
            self._threads += 1
            name = f"{self._name}-{self._threads}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def _let_go(self, thread: int) -> None:
        """``thread`` and its piece of work do not count any more; with the lock."""
        del self._busy[thread]
        self._threads -= 1
        self._unfinished -= 1

    def _run(self) -> None:
        own = threading.get_ident()
        while True:
            try:
                work = self._work.get(timeout=IDLE_SECONDS)
            except queues.Empty:
                with self._lock:
                    if not self._work.empty():
                        continue
                    self._threads -= 1
                    return
            with self._lock:
                self._busy[own] = time.monotonic()
            try:
                work()
            except BaseException:
                with self._lock:
                    if own in self._busy:
                        self._let_go(own)
                        self._fill()
                raise
            with self._lock:
                if own not in self._busy:
                    return  # it was relieved
                del self._busy[own]
                self._unfinished -= 1

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
