"""How trouble is told: with its remedy, and a few times only if it comes again and again."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TOLD_AGAIN_SECONDS: Final = 60.0  # until the same trouble is told again, even if it comes and goes

REMEDY: Final = (
    "if the disk never reads that file again: stop the gateway, put a copy with zeros for what is "
    "lost in its place (cp -p --attributes-only FILE COPY; dd if=FILE of=COPY bs=4096 "
    "conv=noerror,sync,fsync; test $(stat -c %s COPY) -ge $(stat -c %s FILE) && "
    "truncate -r FILE COPY && mv COPY FILE), and start the gateway"
)
"""This ends a line about a file that the disk cannot read; the start then finds what is lost."""


def remedy(error: Exception, before: str = "") -> str:
    """Return what to do where the disk cannot read; empty where it can."""
    unread = isinstance(error, OSError) and error.errno == errno.EIO
    return f"; {before}{REMEDY}" if unread else ""


def failure(what: str, error: OSError) -> str:
    """Return one line that says that ``what`` failed, and what to do where the disk cannot read."""
    return f"{what}: {error}" + remedy(error, "nothing is given up: try again, or ")


@dataclass(slots=True)
class _Trouble:
    told_at: float
    met_at: float = 0.0
    error: Exception | None = None
    told: bool = False


class Troubles:
    """What fails now: ``report`` is told at once, each minute, and at the end, from any thread."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._known: dict[str, _Trouble] = {}

    def met(self, what: str, error: Exception, line: str) -> None:
        now = time.monotonic()
        trouble = self._known.get(what)
        due = trouble is None or now - trouble.told_at >= TOLD_AGAIN_SECONDS
        if trouble is None:
            trouble = self._known[what] = _Trouble(now)
        trouble.met_at, trouble.error = now, error
        if due:
            trouble.told_at, trouble.told = now, True
            self._report(line)

    def over(self, what: str, line: str, calm: float = 0.0) -> None:
        """Note that ``what`` succeeds, or has not failed for ``calm`` seconds."""
        trouble = self._known.get(what)
        if trouble is None or trouble.error is None or time.monotonic() - trouble.met_at < calm:
            return
        trouble.error = None
        if trouble.told:
            trouble.told = False
            self._report(line)

    def errors(self) -> dict[str, Exception]:
        known = self._known.copy()
        return {what: one.error for what, one in known.items() if one.error is not None}
