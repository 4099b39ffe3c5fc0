"""A log never makes the reactor wait; with ``--json-log`` a line of it is one JSON object."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import StringIO
from typing import Any, Final, cast

from twisted.logger import (
    ILogObserver,
    LogEvent,
    LogLevel,
    formatEvent,
    jsonFileLogObserver,
    textFileLogObserver,
)
from twisted.python.logfile import LogFile
from zope.interface import implementer

from .. import registry
from ..core.jsonlog import json_line
from ..core.log_output import LogOutput, missing_line

PACKAGE: Final = "twisted_msgproto."

DEFAULT_FILE: Final = "twistd.log"
"""A daemon logs to this file when ``--logfile`` names none, as without ``--json-log``."""


@implementer(ILogObserver)
class JsonLog:
    """An observer that writes each event as one line to ``file``, a text stream or a LogFile."""

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
            usual = textFileLogObserver if file.isatty() else jsonFileLogObserver
            return _observer(file, json, given or usual)

        parent["fileLogObserverFactory"] = observer


def twistd_observer(parent: Any, json: bool) -> Any:
    """Return what ``twistd`` is to log with; ``parent`` are its options.

    None: not here, since ``--syslog`` and ``--logger`` win, or it is no ``twistd``.  Where it logs
    stays as its own options say.
    """
    if parent is None or not _is_twistd(parent) or parent.get("logger") or parent.get("syslog"):
        return None
    return _observer(twistd_file(parent), json, textFileLogObserver)


def _observer(file: Any, json: bool, text: Callable[[Any], Any]) -> Any:
    """Return an observer that writes to ``file``, and does not wait for it if that is a stream."""
    if file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):  # a stream of a test, without a descriptor
            file = _unblocked(file.fileno(), JsonLog if json else text)
    return JsonLog(file) if json else text(file)


def _unblocked(descriptor: int, observer: Callable[[Any], Any]) -> LogOutput:
    def missing(count: int) -> str:
        line = StringIO()
        observer(line)(
            {
                "log_time": time.time(),
                "log_level": LogLevel.warn,
                "log_namespace": f"{PACKAGE}net.jsonlog",
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
    """Return what ``twistd`` would log to; SIGUSR1 rotates a file, as it does without us."""
    path = options.get("logfile")
    if path == "-" or (options.get("nodaemon") and not path):
        return sys.stdout
    file = LogFile.fromFullPath(path or DEFAULT_FILE)
    if not signal.getsignal(signal.SIGUSR1):
        from twisted.internet import reactor

        call: Any = reactor
        signal.signal(signal.SIGUSR1, lambda *_: call.callFromThread(file.rotate))
    return file
