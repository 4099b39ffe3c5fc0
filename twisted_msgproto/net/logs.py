"""The log: lines about peers, of which one address cannot write many, sessions, and JSON.

A topic has a window of :data:`WINDOW_SECONDS`.  In it the first lines of each address are written;
the others are counted, and their sum is written when the window is over.  Counters are not kept
here: they stay exact whatever is written.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Final, cast

from twisted.logger import (
    ILogObserver,
    LogEvent,
    Logger,
    LogLevel,
    formatEvent,
    jsonFileLogObserver,
    textFileLogObserver,
)
from twisted.python.logfile import LogFile
from zope.interface import implementer

from .. import registry
from ..core.errors import shown
from ..core.log_output import PRIVATE, LogOutput, json_line, missing_line
from ..core.reasons import ended_because
from .peers import network_of

WINDOW_SECONDS: Final = 60.0

LINES_MAX: Final = 5  # of a topic for one address in a window: enough for fail2ban and its like

ALL_LINES_MAX: Final = 200

SUMS_MAX: Final = 20  # addresses with a sum of their own; those with the fewest share one line

ADDRESSES_MAX: Final = 1000  # counted in a window; the oldest joins those without a sum


class SteadyLogger(Logger):
    """A logger with a fixed namespace; Twisted's logger would use the name of each subclass."""

    def __get__(self, instance: object, owner: type | None = None) -> Logger:
        return self


@dataclass(frozen=True)
class Topic:
    """What is summed up together."""

    more: str  # what a sum calls the lines that were not written
    lines_max: int = LINES_MAX  # for one address in a window
    all_lines_max: int = ALL_LINES_MAX


FAULTS: Final = Topic("more like it from this address")

NEWS: Final = Topic("more like it from this address", 20)

LOGINS: Final = Topic("more logins refused")

LIMITS: Final = Topic("more like it", 1)

TURNS: Final = Topic("more long turns", 1)


@dataclass(slots=True)
class _Address:
    lines: int = 0
    unwritten: Counter[str] = field(default_factory=Counter)  # by reason


@dataclass(slots=True)
class _Window:
    log: Logger
    until: float
    lines: int = 0
    addresses: OrderedDict[str, _Address] = field(default_factory=OrderedDict)
    others: int = 0  # lines not written, of addresses that are not remembered any more


class PeerLog:
    def __init__(self) -> None:
        self.clock: Any = None
        self._windows: dict[Topic, _Window] = {}
        self._timer: Any = None

    def write(
        self,
        topic: Topic,
        log: Logger,
        address: str,
        now: float,
        text: str,
        /,
        *,
        reason: str,
        level: Any = LogLevel.warn,
        **fields: Any,
    ) -> None:
        """Write ``text`` with its ``fields`` as a line of ``log``, or count it.

        ``address``: the peer's host; "" if it has none (for :data:`LIMITS` the limit).  ``reason``:
        one of few words; a sum says how many lines had it.  ``now``: seconds of the clock.
        """
        self.sum_up(now)
        window = self._windows.get(topic)
        if window is None:
            window = self._windows[topic] = _Window(log, now + WINDOW_SECONDS)
        who = network_of(address) or address or "a client"
        of_address = window.addresses.get(who)
        if of_address is None:
            of_address = window.addresses[who] = _Address()
            if len(window.addresses) > ADDRESSES_MAX:
                window.others += window.addresses.popitem(last=False)[1].unwritten.total()
        if of_address.lines < topic.lines_max and window.lines < topic.all_lines_max:
            of_address.lines += 1
            window.lines += 1
            log.emit(level, text, reason=reason, **fields)
        else:
            of_address.unwritten[reason] += 1
            self._come_back(window.until, now)

    def sum_up(self, now: float | None = None) -> None:
        for topic, window in list(self._windows.items()):
            if now is None or window.until <= now:
                del self._windows[topic]
                self._write_sums(topic, window)
        if not self._windows and self._timer is not None:
            timer, self._timer = self._timer, None
            timer.cancel()

    def _come_back(self, at: float, now: float) -> None:
        if self.clock is None:
            return
        if self._timer is None:
            self._timer = self.clock.callLater(at - now, self._due)
        elif at < self._timer.getTime():
            self._timer.reset(at - now)

    def _due(self) -> None:
        self._timer = None
        now = self.clock.seconds()
        self.sum_up(now)
        for window in self._windows.values():
            self._come_back(window.until, now)

    def _write_sums(self, topic: Topic, window: _Window) -> None:
        unwritten = [(who, one.unwritten) for who, one in window.addresses.items() if one.unwritten]
        unwritten.sort(key=lambda pair: -pair[1].total())
        for who, counts in unwritten[:SUMS_MAX]:
            window.log.warn(
                "{address}: … and {count} {more} within {seconds:g} s ({reasons})",
                address=who,
                count=counts.total(),
                more=topic.more,
                seconds=WINDOW_SECONDS,
                reasons=", ".join(f"{count} {reason}" for reason, count in counts.most_common()),
            )
        others = window.others + sum(counts.total() for _, counts in unwritten[SUMS_MAX:])
        if others:
            window.log.warn(
                "other addresses: … and {count} {more} within {seconds:g} s",
                count=others,
                more=topic.more.replace("this address", "other addresses"),
                seconds=WINDOW_SECONDS,
            )


# ── --log-sessions ────────────────────────────────────────────────────────────────────────────────


log: Logger = Logger(namespace="twisted_msgproto.sessions")

SESSIONS: Final = Topic("more sessions began or ended", 200, 2000)


class SessionLog:
    def __init__(
        self, protocol: str, seconds: Callable[[], float], write: Callable[..., None]
    ) -> None:
        self._protocol = protocol
        self._seconds = seconds
        self._write_of = write
        self._began: dict[str, float] = {}  # when, by the session's name

    def began(self, session: Any) -> None:
        if session.session in self._began:  # its client has logged in again
            return
        self._began[session.session] = self._seconds()
        self._write(session, "{protocol}: session {session} of {peer}{client} began", "began")

    def ended(self, session: Any, why: BaseException | None) -> None:
        began = self._began.pop(session.session, None)
        if began is None:
            return
        self._write(
            session,
            "{protocol}: session {session} of {peer}{client} ended after {seconds:.1f} s and"
            " {messages} messages: {why}",
            "ended",
            seconds=round(self._seconds() - began, 3),
            messages=session.messageCount,
            why=ended_because(why),
        )

    def _write(self, session: Any, text: str, event: str, **fields: Any) -> None:
        client = session.clientId
        self._write_of(
            log,
            getattr(session, "address", "") or session.peer or "",
            text,
            reason=event,
            topic=SESSIONS,
            level=LogLevel.info,
            event=f"session {event}",
            protocol=self._protocol,
            session=session.session,
            peer=session.peer or "an unknown address",
            client_id=client,
            client=f" ({shown(client)})" if client else "",
            **fields,
        )


# ── --json-log ──────────────────────────────────────────────────────────────────────────────────


PACKAGE: Final = "twisted_msgproto."

DEFAULT_FILE: Final = "twistd.log"


@implementer(ILogObserver)
class JsonLog:
    def __init__(self, file: Any) -> None:
        self._file = file

    def __call__(self, event: LogEvent) -> None:
        try:
            self._file.write(line_of(event) + "\n")
            self._file.flush()
        except OSError:
            pass  # a full disk, or nobody reads it: nowhere is left to say so


def line_of(event: LogEvent) -> str:
    source = str(event.get("log_namespace", "-"))
    # Twisted's lines have its modules and classes, or a word for those of its older log.
    if source.split(".")[0] in ("twisted", "log_legacy"):
        source = "twisted"
    fields = {name: value for name, value in event.items() if _is_field(name, source)}
    if "reason" in fields:
        fields.setdefault("event", fields["reason"])
    if source.startswith(PACKAGE):
        protocol = source.split(".")[1]
        if protocol in registry.PROTOCOLS:
            fields.setdefault("protocol", protocol)
    failure = event.get("log_failure")
    if failure is not None:
        fields["error"] = f"{failure.type.__name__}: {failure.getErrorMessage()}"
        fields["traceback"] = failure.getTraceback()[-4000:]
    level = getattr(event.get("log_level"), "name", "info")
    text = " ".join(formatEvent(event).split("\n"))
    return json_line(event.get("log_time") or time.time(), level, source, text, fields)


def _is_field(name: str, source: str) -> bool:
    return source.startswith(PACKAGE) and not name.startswith(("log_", "_")) and name != "client"


def twist_log(parent: Any, json: bool) -> None:
    """Make ``python -m twisted`` log like this from its start; ``parent`` are its options."""
    if parent is not None and not _is_twistd(parent):
        given = parent.get("fileLogObserverFactory")  # by its --log-format

        def observer(file: Any) -> Any:
            _keep_private(file)
            plain = file is None or file.isatty()
            usual = textFileLogObserver if plain else jsonFileLogObserver
            return _observer(file, json, given or usual)

        parent["fileLogObserverFactory"] = observer


def twistd_observer(parent: Any, json: bool) -> Any:
    """Return what ``twistd`` is to log with; None if ``--syslog`` or ``--logger`` say that."""
    if parent is None or not _is_twistd(parent) or parent.get("logger") or parent.get("syslog"):
        return None
    if parent.get("logfile") == "-" and not parent["nodaemon"]:
        return None  # Twisted says why not, and ends
    return _observer(twistd_file(parent), json, textFileLogObserver)


def _observer(file: Any, json: bool, text: Callable[[Any], Any]) -> Any:
    if file is None:  # standard output was closed before the start
        return lambda event: None
    if file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):  # a stream of a test, without a descriptor
            file = _unblocked(file.fileno(), JsonLog if json else text)
    return JsonLog(file) if json else text(file)


def _keep_private(file: Any) -> None:
    with suppress(AttributeError, OSError, ValueError):
        state = os.fstat(file.fileno())
        if stat.S_ISREG(state.st_mode) and not state.st_size:  # made just now
            os.fchmod(file.fileno(), PRIVATE)


def _unblocked(descriptor: int, observer: Callable[[Any], Any]) -> LogOutput:
    def missing(count: int) -> str:
        line = StringIO()
        observer(line)(
            {
                "log_time": time.time(),
                "log_level": LogLevel.warn,
                "log_namespace": f"{PACKAGE}log",
                "log_format": "{text}",
                "text": missing_line(count).rstrip(),
            }
        )
        return line.getvalue()

    output = LogOutput(descriptor, missing)
    from twisted.internet import reactor

    cast(Any, reactor).addSystemEventTrigger("after", "shutdown", output.close)
    return output


def _is_twistd(options: Mapping[str, Any]) -> bool:
    return "nodaemon" in options


def twistd_file(options: Mapping[str, Any]) -> Any:
    """Return what ``twistd`` would log to; SIGUSR1 rotates it, or opens what logrotate moved."""
    path = options.get("logfile")
    if path == "-" or (options.get("nodaemon") and not path):
        return sys.stdout
    path = path or DEFAULT_FILE
    # One that exists keeps its mode: an operator may have given it to a group.
    file = LogFile.fromFullPath(path, defaultMode=None if os.path.exists(path) else PRIVATE)
    if not signal.getsignal(signal.SIGUSR1):
        from twisted.internet import reactor

        call: Any = reactor

        def turn() -> None:
            there = os.path.exists(file.path)
            if there and os.path.getsize(file.path):
                file.rotate()
            elif os.access(file.path if there else file.directory, os.W_OK):
                file.reopen()  # logrotate may have made an empty one in its place

        signal.signal(signal.SIGUSR1, lambda *_: call.callFromThread(turn))
    return file
