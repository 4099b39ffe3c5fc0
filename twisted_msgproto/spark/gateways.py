"""A gateway is a unit of failure: one that is away keeps its place, the others' rows go on.

A batch begins with one round of questions (``describe``), with a short limit. A gateway that does
not answer is left out of this batch and asked again after a growing pause. One that turns out to be
another queue, or another history, is refused: not one of its rows is read.
"""

from __future__ import annotations

import queue as queues
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import partial

from ..core.errors import MsgprotoError, QueueAway, QueueMismatch
from ..queue.interface import Queue
from ..queue.lineage import Description, Landed
from ..table.landing import Failure
from .daemon_threads import DaemonThreadPool
from .source_options import is_remote

THREADS_MAX = 48  # asked, or sent marks, at once; more would wait for each other
ROUND_SECONDS = 0.5  # a batch waits so long for answers; later ones serve the next
SILENCE_SECONDS = 5.0  # a gateway whose answer is missing for this long counts as away

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0  # of one that does not answer; they double
GROW_SECONDS = 5.0  # between searches for further ones, which list a directory

NEW, ANSWERS, AWAY, REFUSED = "new", "answers", "away", "refused"

Admit = Callable[[Description, Landed | None], None]  # raises QueueMismatch for what does not fit


@dataclass(slots=True)
class Gateway:
    location: str
    gateway: str = ""  # the queue's id; empty while the gateway has never answered
    state: str = NEW
    error: Exception | None = None  # why it is away or refused
    since: float = 0.0  # when its state began (monotonic seconds)
    queue: Queue | None = None
    consumer: str | None = None
    description: Description | None = None
    asking: bool = False
    asked: float = 0.0
    pause: float = 0.0
    next: float = float("-inf")  # it is not asked again before (monotonic seconds)

    @property
    def name(self) -> str:
        return f"{self.location} ({self.gateway})" if self.gateway else self.location

    @property
    def line(self) -> str:
        return " ".join(str(self.error or "").split())


Answer = tuple[Queue, str | None, Description] | Exception


@dataclass(eq=False)
class Gateways:
    """Account of all gateways of a bridge; it is used by one thread.

    A gateway is used after ``admit`` checked it and ``consumer`` was registered; while that is
    None, they are only read. ``more(known)`` returns locations to be added.
    """

    locations: InitVar[Sequence[str]]
    open_queue: Callable[[str], Queue]
    consumer: str | None
    admit: Admit
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    more: Callable[[Collection[str]], Iterable[str]] = lambda known: ()

    def __post_init__(self, locations: Sequence[str]) -> None:
        self.all: list[Gateway] = [Gateway(location) for location in locations]
        self.by_id: dict[str, Gateway] = {}
        self._crew = DaemonThreadPool(THREADS_MAX, "asking")
        # Who is not known to answer has threads of its own: it may hang in each of them.
        self._searching = DaemonThreadPool(THREADS_MAX, "searching")
        self._answers: queues.SimpleQueue[tuple[Gateway, Answer]] = queues.SimpleQueue()
        self._grown = float("-inf")

    def _grow(self, now: float) -> None:
        if now - self._grown >= GROW_SECONDS:
            self._grown = now
            known = {one.location for one in self.all}
            self.all += [Gateway(location) for location in self.more(known)]

    def ask(self, landed: Mapping[str, Landed], seconds: float = ROUND_SECONDS) -> list[Gateway]:
        """Ask those that are due, and return those that answered and confirmed ``landed``."""
        now = self.clock()
        self._grow(now)
        waiting = set[str]()
        for crew in (self._crew, self._searching):
            crew.relieve(ROUND_SECONDS)
        for one in self.all:
            if one.asking:
                # It holds up one round only; what it says later is heard then.
                self._note_silence(one, now)
            elif one.next <= now:
                one.asking, one.asked = True, now
                crew = self._crew if one.state == ANSWERS else self._searching
                crew.submit(self._asking(one, landed))
                if one.state in (NEW, ANSWERS):
                    waiting.add(one.location)
        answered = []
        deadline = time.monotonic() + seconds
        while True:
            try:
                left = max(0.0, deadline - time.monotonic()) if waiting else 0.0
                one, answer = self._answers.get(timeout=left)
            except queues.Empty:
                break
            waiting.discard(one.location)
            one.asking = False
            if self._take(one, answer):
                answered.append(one)
        return answered

    def _note_silence(self, one: Gateway, now: float) -> None:
        if one.state in (NEW, ANSWERS) and now - one.asked >= SILENCE_SECONDS:
            line = f"{one.location} has not answered for {SILENCE_SECONDS:.0f} s"
            self._set_aside(one, AWAY, QueueAway(line))

    def _asking(self, one: Gateway, landed: Mapping[str, Landed]) -> Callable[[], None]:
        queue, consumer = one.queue, self.consumer
        looked_at = queue is not None and one.consumer == consumer

        def work() -> None:
            try:
                opened = self.open_queue(one.location) if queue is None else queue
                known = landed.get(opened.queue_id)
                description = opened.describe(known)
                if not looked_at:
                    self.admit(description, known)
                    if consumer is not None:
                        needed = description.begin if known is None else known.offset
                        if opened.register(consumer) > needed:
                            # Another table has landed more, or this one before it was restored.
                            opened.commit(consumer, needed, known)
                        # It may have trimmed in between; from here on it does not.
                        description = opened.describe(known)
                        self.admit(description, known)
                self._answers.put((one, (opened, consumer, description)))
            except Exception as error:
                self._answers.put((one, error))

        return work

    def _take(self, one: Gateway, answer: Answer) -> bool:
        if isinstance(answer, Exception):
            self._take_error(one, answer)
        else:
            one.queue, one.consumer, one.description = answer
            known = self.by_id.setdefault(one.description.queue_id, one)
            if known is not one:
                self.refuse(one, QueueMismatch(f"it is the same queue as {known.location}"))
                return False
            one.gateway = one.description.queue_id
            one.next = float("-inf")
            if one.state in (AWAY, REFUSED):
                self.say(f"gateway {one.name} answers again")
            self._become(one, ANSWERS, None)
            # Rows of a gateway that was only looked at might be trimmed before they are read.
            return one.consumer == self.consumer
        return False

    def _take_error(self, one: Gateway, error: Exception) -> None:
        if isinstance(error, QueueMismatch):
            self.refuse(one, error)
        elif isinstance(error, (MsgprotoError, OSError)):
            self._set_aside(one, AWAY, error)
        else:
            raise error

    def refuse(self, one: Gateway, error: Exception) -> None:
        """``one`` is not what the table has landed: nothing of it is read until that changes."""
        self._set_aside(one, REFUSED, error)
        one.queue = None  # what stands there is opened anew and proves itself anew

    def fail(self, gateway: str, failure: Failure) -> None:
        kind = QueueMismatch if failure.mismatch else QueueAway
        self._take_error(self.by_id[gateway], kind(failure.line))

    def settle(self, gateways: Iterable[str]) -> None:
        """Rows of these have landed: should one go away again, it is asked again soon."""
        for gateway in gateways:
            self.by_id[gateway].pause = 0.0

    def _set_aside(self, one: Gateway, state: str, error: Exception) -> None:
        one.pause = min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS_MIN, 2 * one.pause))
        one.next = self.clock() + one.pause
        one.description = None
        news = one.state != state
        self._become(one, state, error)
        if news:
            what = "is away and keeps its place" if state == AWAY else "is refused"
            self.say(f"gateway {one.name} {what}: {one.line}")

    def _become(self, one: Gateway, state: str, error: Exception | None) -> None:
        if one.state != state:
            one.since = self.clock()
        one.state, one.error = state, error

    def place(self, ends: Mapping[str, int]) -> dict[str, Landed]:
        """Return what proves these offsets; a gateway that does not say it in time is left out."""
        queues = {gateway: self.by_id[gateway].queue for gateway in ends}
        calls = {name: partial(one.place, ends[name]) for name, one in queues.items() if one}
        places: dict[str, Landed] = {}
        for gateway, answer in self._crew.gather(calls, ROUND_SECONDS).items():
            if isinstance(answer, Landed):
                places[gateway] = answer
            else:
                self._take_error(self.by_id[gateway], answer)
        return places

    def opened(self, name: str) -> Queue | None:
        """Return the queue ``name`` for its marks; None while away, or another's.  Any thread."""
        one = self.by_id[name]
        return one.queue if one.state == ANSWERS and one.gateway == name else None

    def unheard(self) -> list[Gateway]:
        """Return who has neither answered nor failed yet, with this consumer."""
        return [
            one
            for one in self.all
            if one.state == NEW or (one.state == ANSWERS and one.consumer != self.consumer)
        ]

    def remote(self) -> list[str]:
        return [one.gateway for one in self.in_state(ANSWERS) if is_remote(one.location)]

    def in_state(self, *states: str) -> list[Gateway]:
        return [one for one in self.all if one.state in states]


# -- marks ----------------------------------------------------------------------------------------


MARKS_SECONDS = 1.0

MARKS_LOOK_SECONDS = 0.01


@dataclass(eq=False)
class Marks:
    """The newest mark of each gateway, sent once a second; ``report`` is called as often.

    A gateway may trim behind a mark, so :meth:`want` is called with what is durable in the table.
    Neither loop nor end waits for marks or reports, which may hang.
    """

    consumer: str
    opened: Callable[[str], Queue | None]
    report: Callable[[], None]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._crew = DaemonThreadPool(THREADS_MAX, "marks")
        self._lock = threading.Lock()
        self._wanted: dict[str, Landed] = {}
        self._sent: dict[str, Landed] = {}
        self._on_their_way: set[str] = set()
        self._refused: dict[str, str] = {}
        self._unreported = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self, landed: Mapping[str, Landed]) -> None:
        """``landed`` is in the table and durable: gateways may trim below it."""
        with self._lock:
            self._wanted.update(landed)

    def finish(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.send()  # not by the thread, which may hang in a report
        self._ending.set()
        while self.unsent() and time.monotonic() < deadline:
            time.sleep(MARKS_LOOK_SECONDS)
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def unsent(self) -> set[str]:
        with self._lock:
            return {name for name, at in self._wanted.items() if self._sent.get(name) != at}

    def send(self) -> None:
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
        """Send a gateway's marks up to the newest: at the end nobody would ask again."""
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
            queue = self.opened(name)
            if queue is None:
                return False
            queue.commit(self.consumer, landed.offset, landed)
        except (MsgprotoError, OSError) as error:
            # It is sent again in a second; people are told once.
            with self._lock:
                known = self._refused.get(name)
                self._refused[name] = type(error).__name__
            if known != type(error).__name__:
                self.say(f"bridge: the low-water mark of {name} is not taken: {error}")
            return False
        with self._lock:
            self._sent[name] = landed
            self._refused.pop(name, None)
        return True

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(MARKS_SECONDS)
            self.send()
            self._report_once()

    def _report_once(self) -> None:
        try:
            self.report()
        except OSError:
            pass  # a disk without room, or a pipe that nobody reads
        except Exception as error:
            line = f"bridge: its status is not reported: {type(error).__name__}: {error}"
            if line != self._unreported:
                self._unreported = line
                self.say(line)
