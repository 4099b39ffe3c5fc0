"""``--json-log``: what ``twistd`` logs is one JSON object a line (:mod:`..core.jsonlog`)."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from twisted.logger import ILogObserver, LogEvent, formatEvent
from twisted.python.logfile import LogFile
from zope.interface import implementer

from .. import registry
from ..core.jsonlog import json_line

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


def twist_json_log(parent: Any) -> None:
    """Make ``python -m twisted`` log like this from its start; ``parent`` are its options."""
    if parent is not None and not _is_twistd(parent):
        parent["fileLogObserverFactory"] = JsonLog


def twistd_observer(parent: Any) -> JsonLog | None:
    """Return what ``twistd`` is to log with; ``parent`` are its options.

    None: not here, since ``--syslog`` and ``--logger`` win, or it is no ``twistd``.  Where it logs
    stays as its own options say.
    """
    if parent is None or not _is_twistd(parent) or parent.get("logger") or parent.get("syslog"):
        return None
    return JsonLog(twistd_file(parent))


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
