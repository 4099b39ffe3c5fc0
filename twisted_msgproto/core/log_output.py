"""A log: a line of it as JSON (``--json-log``), and output that never waits for its reader.

Every process of the package writes the same keys: ``time`` (ISO 8601, UTC), ``level``, ``source``
(the part of the program), ``text`` (the line as people see it) and what else the line says by name,
such as ``protocol``, ``peer``, ``session``, ``client_id`` and ``event``.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

FIXED: Final = ("time", "level", "source", "text")

PRIVATE: Final = 0o600
"""The mode of a new file that strangers do not read: a log has names of clients and files."""

FIELD_MAX: Final = 1000
"""A field's text is cut after this many characters; ``text`` itself is not cut."""


def json_line(
    seconds: float, level: str, source: str, text: str, fields: Mapping[str, Any] | None = None
) -> str:
    """Without its end; ``seconds`` since 1970 UTC.  What is None is left out."""
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    line: dict[str, Any] = dict(zip(FIXED, (moment[:-6] + "Z", level, source, text), strict=True))
    for name, value in (fields or {}).items():
        if value is not None and name not in line:
            line[name] = _plain(value)
    return json.dumps(line)  # in ASCII: Unicode has more ends of a line than one


def timed_line(seconds: float, text: str) -> str:
    """Return one line for people, without its line end, as ``2026-11-28T12:00:00Z TEXT``."""
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return f"{moment[:-6]}Z {text}"


def private(path: str, flags: int) -> int:
    """Open a file that is its owner's alone if it is new: ``open(…, opener=private)``."""
    return os.open(path, flags, PRIVATE)


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    return str(value)[:FIELD_MAX]


# ── a log goes to standard output without ever waiting for its reader ───────────────────────────


WAITING_BYTES: Final = 1 << 20
END_SECONDS: Final = 1.0  # a process that ends waits so long for the reader of its last lines


def missing_line(count: int) -> str:
    return f"{count} lines are missing here: nobody read the log\n"


class LogOutput:
    """A text stream to ``descriptor`` whose ``write`` returns at once.

    A pipe that nobody empties, a terminal after Ctrl-S or a stalled log driver makes a write wait
    for ever, and with it everything that the process does.  So a thread writes, at most a MiB of
    lines wait for it, and further ones are left out and counted: ``missing(count)`` is the line
    that says so, once there is room again.  A regular file is written directly.
    """

    def __init__(self, descriptor: int, missing: Callable[[int], str] = missing_line) -> None:
        self._descriptor = descriptor
        self._missing = missing
        self._direct = True
        with suppress(OSError):  # it is closed: every write fails at once
            self._direct = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._writing = False
        self._left_out = 0
        self._thread: threading.Thread | None = None
        self._patience = 0.0

    def write(self, text: str) -> None:
        """Take one line, with its end; nothing is raised when it cannot be written."""
        data = text.encode(errors="backslashreplace")
        if self._direct:
            self._put(data)
            return
        with self._changed:
            if len(self._waiting) + len(data) > WAITING_BYTES:
                self._left_out += 1
                return
            if self._left_out:
                self._waiting += self._missing(self._left_out).encode()
                self._left_out = 0
            self._waiting += data
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait for the reader only after :meth:`close`, and then a second at most."""
        with self._changed:
            if self._patience and not self._changed.wait_for(self._empty, self._patience):
                self._patience = 0.0

    def close(self) -> None:
        """Give the last lines time to be written; those that still come are flushed like this."""
        self._patience = END_SECONDS
        self.flush()

    def _empty(self) -> bool:
        return not self._waiting and not self._writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._waiting))
                data, self._waiting = self._waiting, bytearray()
                self._writing = True
            self._put(data)

    def _put(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        with suppress(OSError):  # the reader is gone, or a disk is full: nowhere is left to say so
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # whoever shares the descriptor made it so
                    select.select([], [self._descriptor], [])
