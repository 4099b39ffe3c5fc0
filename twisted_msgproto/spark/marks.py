"""Send low-water marks and write the status, in threads of their own.

After a mark a gateway may trim, so a mark is what the table says and what is durable in it, never
what the bridge thinks.  Whoever calls :meth:`Marks.want` has both.  Sending a mark may hang and so
may writing a status on a far disk: neither is waited for by the loop or by the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from ..core.errors import MsgprotoError
from ..queue.lineage import Landed
from ..queue.source import Queue
from .crew import Crew

SECONDS = 1.0

LOOK_SECONDS = 0.01

THREADS_MAX = 32

Opened = Callable[[str], Queue | None]
"""The queue of a gateway, by its id, for this thread's use; None when it is away."""


class Marks:
    """The newest mark of each gateway, sent once a second; ``report`` is called as often."""

    def __init__(
        self,
        consumer: str,
        opened: Opened,
        report: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._consumer = consumer
        self._opened = opened
        self._report = report
        self._say = say
        self._crew = Crew(THREADS_MAX, "marks")
        self._lock = threading.Lock()
        self._wanted: dict[str, Landed] = {}
        self._sent: dict[str, Landed] = {}
        self._on_their_way: set[str] = set()
        self._refused: dict[str, str] = {}
        self._unreported = ""
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self, landed: Mapping[str, Landed]) -> None:
        """``landed`` is in the table and durable: gateways may trim below it."""
        with self._lock:
            self._wanted.update(landed)

    def finish(self, seconds: float) -> None:
        """Sends what is wanted and reports once more, in at most ``seconds``."""
        deadline = time.monotonic() + seconds
        self.send()  # not by the thread, which may hang in a report
        self._ending.set()
        self._wake.set()
        while self.unsent() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def unsent(self) -> set[str]:
        """Return the gateways that have not received their newest mark."""
        with self._lock:
            return {name for name, at in self._wanted.items() if self._sent.get(name) != at}

    def send(self) -> None:
        """Has every mark sent that is new and not on its way."""
        with self._lock:
            due = {
                name
                for name, landed in self._wanted.items()
                if self._sent.get(name) != landed and name not in self._on_their_way
            }
            self._on_their_way.update(due)
        for name in due:
            self._crew.submit(partial(self._send_newest, name))

    def _send_newest(self, name: str) -> None:
        """Sends the marks of one gateway until the newest has been received, or one is refused.

        A mark that was wanted while an older one was on its way goes next, from here: at the end
        of a bridge nobody would ask again.
        """
        while (landed := self._next(name)) is not None:
            received = False
            try:
                received = self._send(name, landed)
            finally:
                if not received:
                    with self._lock:
                        self._on_their_way.discard(name)
            if not received:
                return

    def _next(self, name: str) -> Landed | None:
        with self._lock:
            landed = self._wanted[name]
            if self._sent.get(name) != landed:
                return landed
            self._on_their_way.discard(name)
            return None

    def _send(self, name: str, landed: Landed) -> bool:
        try:
            queue = self._opened(name)
            if queue is None:
                return False
            queue.commit(self._consumer, landed.offset, landed)
        except (MsgprotoError, OSError) as error:
            # It is sent again in a second; people are told once.
            with self._lock:
                known = self._refused.get(name)
                self._refused[name] = type(error).__name__
            if known != type(error).__name__:
                self._say(f"bridge: the low-water mark of {name} is not taken: {error}")
            return False
        with self._lock:
            self._sent[name] = landed
            self._refused.pop(name, None)
        return True

    def _run(self) -> None:
        while True:
            self._wake.wait(SECONDS)
            ending = self._ending.is_set()
            self.send()
            self._report_once()
            if ending:
                return

    def _report_once(self) -> None:
        try:
            self._report()
        except OSError:
            pass  # a disk without room, or a pipe that nobody reads
        except Exception as error:
            line = f"bridge: its status is not reported: {type(error).__name__}: {error}"
            if line != self._unreported:
                self._unreported = line
                self._say(line)
