"""Run small work that may hang in threads: a call over the network, a file on a remote disk.

They are daemons and nobody joins them: a process that is told to end does not wait for a gateway
that does not answer.  (The executors of ``concurrent.futures`` do wait, at the interpreter's end.)
"""

from __future__ import annotations

import queue as queues
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

IDLE_SECONDS = 5.0
"""How long a thread waits for work before it ends; the next work starts a fresh one."""

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class DaemonThreadPool:
    """At most ``threads_max`` threads, started when there is work and all others are busy.

    A thread that hangs counts until :meth:`relieve` finds it.  A thread without work ends after
    ``IDLE_SECONDS``.
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
        """Has ``work`` done soon; what it raises ends its thread, and another one goes on."""
        self._work.put(work)
        with self._lock:
            self._unfinished += 1
            self._fill()

    def relieve(self, seconds: float) -> None:
        """Puts a fresh thread in the place of each that has been at one piece for ``seconds``.

        So what waits behind work that hangs is done all the same.  A thread that was relieved
        ends with its work; there are never more of them than pieces of work.
        """
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
        """Makes all calls at once; what they returned or raised within ``seconds``."""
        answers: queues.SimpleQueue[tuple[Key, Answer | Exception]] = queues.SimpleQueue()
        for key, call in calls.items():
            self.submit(_answering(answers, key, call))
        return collect(answers, len(calls), seconds)


def collect(
    answers: queues.SimpleQueue[tuple[Key, Answer]], number: int, seconds: float
) -> dict[Key, Answer]:
    """Return the first ``number`` answers, or those that came within ``seconds``."""
    deadline = time.monotonic() + seconds
    got: dict[Key, Answer] = {}
    while len(got) < number:
        try:
            key, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queues.Empty:
            break
        got[key] = answer
    return got


def _answering(
    answers: queues.SimpleQueue[tuple[Key, Answer | Exception]],
    key: Key,
    call: Callable[[], Answer],
) -> Callable[[], None]:
    def work() -> None:
        try:
            answers.put((key, call()))
        except Exception as error:
            answers.put((key, error))

    return work
