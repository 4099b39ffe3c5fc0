"""One process of a gateway is started, heard, and started again when it ends: :class:`Worker`.

A process writes its log to its stdout, a JSON object a line, and the supervisor logs each line as
its own, with the process's number.  Its stdin is a pipe that brings its job and then nothing: it
ends when the supervisor has ended, whatever ended that.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ProcessDone, ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

RESTART_SECONDS_FIRST: Final = 0.5
"""A process that has ended starts again after this time; the wait doubles with each further end."""

RESTART_SECONDS_MOST: Final = 30.0
"""The wait is at most this long."""

STEADY_SECONDS: Final = 60.0
"""A process that has served for this long begins with the first wait again."""

LINE_OCTETS_MAX: Final = 1 << 20
"""Of a longer line the beginning is logged: a log's line has some kilobytes."""

SERVES: Final = "process serves"
"""A process logs a line with this ``event`` when all its servers listen."""

NOT_FIELDS: Final = frozenset(("time", "level", "source", "text", "format", "self", "process"))
"""These keys of a line are not among its fields when it is logged again."""

log = Logger(namespace="twisted_msgproto.processes")


class State(Enum):
    """Says what a worker does."""

    STARTING = "starting"
    SERVING = "serving"
    WAITING = "waiting"
    ENDED = "ended"


class Job(NamedTuple):
    """Describes how a process is started.

    Attributes:
        command: its words, the program first.
        environment: its environment.
        directory: its working directory; None: ours.
        octets: what it reads from its stdin first.
    """

    command: list[str]
    environment: dict[str, str]
    directory: str | None
    octets: bytes


class _Run(ProcessProtocol):
    """Is one run of a process, from its start to its end."""

    transport: Any

    def __init__(
        self, octets: bytes, said: Callable[[int, str], None], ended: Callable[[Failure], None]
    ) -> None:
        self._octets = octets
        self._said = said
        self._ended = ended
        self._rest = {1: b"", 2: b""}

    def connectionMade(self) -> None:
        """Write the job; the reactor calls this."""
        self.transport.write(self._octets)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """Cut what was said into lines; the reactor calls this."""
        *lines, rest = (self._rest[childFD] + data).split(b"\n")
        self._rest[childFD] = rest[:LINE_OCTETS_MAX]
        for line in lines:
            self._said(childFD, line[:LINE_OCTETS_MAX].decode("utf-8", "backslashreplace"))

    def processEnded(self, reason: Failure) -> None:
        """Say the last words, then why it ended; the reactor calls this."""
        for descriptor, rest in self._rest.items():
            if rest:
                self._said(descriptor, rest.decode("utf-8", "backslashreplace"))
        self._ended(reason)


class Worker:
    """Keeps one process of a gateway running until it is told to end.

    Attributes:
        number: the process's number.
        state: what it does now.
        pid: its process id; None while it does not run.
        restarts: how often it was started again.
        ended_because: why it ended last; "" if it has not.
    """

    def __init__(
        self,
        number: int,
        reactor: Any,
        job: Callable[[int], Job],
        changed: Callable[[Worker], None],
        plain: Callable[[Worker, str], None],
    ) -> None:
        """``job(number)`` returns how it is started now.  ``changed(worker)`` is called whenever
        its state changes, ``plain(worker, line)`` with each line that is no log's.
        """
        self.number = number
        self.state = State.ENDED
        self.pid: int | None = None
        self.restarts = 0
        self.ended_because = ""
        self.served = False
        self._reactor = reactor
        self._job = job
        self._changed = changed
        self._plain = plain
        self._transport: Any = None
        self._serving_since = 0.0
        self._wait = RESTART_SECONDS_FIRST
        self._call: Any = None
        self._complaint = ""
        self._killed = ""
        self._stopped: Deferred[None] | None = None

    # ── its life ────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the process."""
        self._call = None
        self._complaint = self._killed = ""
        job = self._job(self.number)
        try:
            self._transport = self._reactor.spawnProcess(
                _Run(job.octets, self._said, self._ended),
                job.command[0],
                job.command,
                env=job.environment,
                path=job.directory,
            )
        except OSError as error:  # there may be memory, or a file descriptor, later
            self._startLater(f"could not be started: {error.strerror}")
            return
        self.pid = self._transport.pid
        self._become(State.STARTING)

    def stop(self) -> Deferred[None]:
        """Let it end in peace, and start it no more; fires when it has ended."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        if self._transport is None:
            self._become(State.ENDED)
            return succeed(None)
        if self._stopped is None:
            self._stopped = Deferred()
            if self.state is State.SERVING:
                # systemd sends SIGTERM to all processes of a unit: this one may end already.
                self._transport.closeStdin()
            else:
                self.signal(signal.SIGTERM)
        return self._stopped

    def signal(self, number: int) -> None:
        """Send it a signal; nothing if it does not run."""
        try:
            if self._transport is not None:
                self._transport.signalProcess(number)
        except ProcessExitedAlready:
            pass

    def kill(self, why: str) -> None:
        """End it at once; it starts again, and ``why`` is said to be why it ended."""
        self._killed = why
        self.signal(signal.SIGKILL)

    def _ended(self, reason: Failure) -> None:
        self._transport = self.pid = None
        stopped = self._stopped
        if stopped is not None:
            self._become(State.ENDED)
            stopped.callback(None)
            return
        now = self._reactor.seconds()
        if self.state is State.SERVING and now - self._serving_since >= STEADY_SECONDS:
            self._wait = RESTART_SECONDS_FIRST
        self._startLater(self._killed or why_ended(reason, self._complaint))

    def _startLater(self, why: str) -> None:
        wait, self._wait = self._wait, min(2 * self._wait, RESTART_SECONDS_MOST)
        self.ended_because = why
        self._call = self._reactor.callLater(wait, self._again)
        self._become(State.WAITING)
        if self._call is not None and self._call.active():
            log.error(
                "process {process} {why}; it starts again in {wait:g} s",
                process=self.number,
                why=self.ended_because,
                wait=wait,
                event="process ended",
            )

    def _again(self) -> None:
        self.restarts += 1
        self.start()

    def _become(self, state: State) -> None:
        self.state = state
        self._changed(self)

    # ── what it says ────────────────────────────────────────────────────────────────────────────

    def _said(self, descriptor: int, line: str) -> None:
        if not line.strip():
            return
        found = log_line(line) if descriptor == 1 else None
        if found is None:
            if descriptor == 2:
                self._complaint = line
            self._plain(self, line)
        elif found.get("event") == SERVES:
            self.served, self._serving_since = True, self._reactor.seconds()
            self._become(State.SERVING)
        else:
            log_again(self.number, found)


def log_line(line: str) -> Mapping[str, Any] | None:
    """Return a line of a log as its members; None if it is another line."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("text"), str) else None


def log_again(number: int, line: Mapping[str, Any]) -> None:
    """Log what the process ``number`` has logged."""
    fields = {
        name: value
        for name, value in line.items()
        if name not in NOT_FIELDS and not name.startswith("log_")
    }
    try:
        level: Any = LogLevel.levelWithName(str(line.get("level")))
    except Exception:
        level = LogLevel.info
    text = line["text"]
    if isinstance(line.get("traceback"), str):
        text = f"{text}\n{line['traceback']}"
    source = str(line.get("source")).replace("log_legacy", "-")
    Logger(namespace=source).emit(
        level, "process {process}: {text}", process=number, text=text, **fields
    )


def why_ended(reason: Failure, complaint: str = "") -> str:
    """Return how a process ended, and what it said of it last."""
    error: Any = reason.value
    if reason.check(ProcessDone):
        text = "ended with status 0"
    elif error.signal is not None:
        return f"was ended by signal {error.signal} ({signal.Signals(error.signal).name})"
    else:
        text = f"ended with status {error.exitCode}"
    return f"{text}: {complaint}" if complaint else text


__all__ = ["SERVES", "Job", "State", "Worker", "log_again", "log_line", "why_ended"]
