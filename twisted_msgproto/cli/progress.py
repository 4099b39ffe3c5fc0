"""Show how far a ``msgproto send`` is: with a bar on a terminal, with plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

PLAIN_SECONDS = 2.0
"""Without a terminal, at most one line is printed in this time."""


class Counted:
    """Counts what was sent and acknowledged; prints nothing.  A context manager.

    Attributes:
        messages_sent: how many are on their way or beyond.
        messages_acknowledged: how many of them the peer has acknowledged.
        messages_written: how many were written to a peer that was not asked to acknowledge.
    """

    def __init__(self) -> None:
        self.messages_sent: int = 0
        self.messages_acknowledged: int = 0
        self.messages_written: int = 0
        self.notes: list[str] = []

    def sent(self, count: int) -> None:
        self.messages_sent += count
        self.show()

    def acknowledged(self, count: int) -> None:
        self.messages_acknowledged += count
        self.show()

    def written(self, count: int) -> None:
        self.messages_written += count
        self.show()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def follow(self, takenAt: Callable[[float], float]) -> None:
        """Nobody waits here for the peer."""

    def alive(self) -> None:
        """The peer is at work."""

    def show(self) -> None:
        """Show the counts, if it is time to."""

    def __enter__(self) -> Counted:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class PlainLines(Counted):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._due = time.monotonic() + PLAIN_SECONDS

    def show(self) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + PLAIN_SECONDS
            print(
                f"sent {self.messages_sent}, acknowledged {self.messages_acknowledged} so far",
                file=self._stream,
                flush=True,
            )


class Bar(Counted):
    def __init__(self, stream: TextIO, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        super().__init__()
        self._total = total
        self._rich = Progress(
            TextColumn("acknowledged"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("sent {task.fields[sent]}"),
            TimeElapsedColumn(),
            console=Console(file=stream),
        )
        self._task: Any = self._rich.add_task("", total=total, sent=0)

    def show(self) -> None:
        self._rich.update(
            self._task,
            completed=self.messages_acknowledged,
            total=self.messages_sent if self._total is None else self._total,
            sent=self.messages_sent,
        )

    def __enter__(self) -> Bar:
        self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._rich.stop()


def progress_for(total: int | None, *, quiet: bool = False) -> Counted:
    """Return what suits stderr: a bar on a terminal (with rich installed), plain lines elsewhere.

    ``total`` is how many messages there will be, None if nobody knows; ``quiet`` shows nothing.
    """
    if quiet:
        return Counted()
    if sys.stderr.isatty():
        try:
            return Bar(sys.stderr, total)
        except ModuleNotFoundError:  # the extra "cli" is not installed: lines do as well
            pass
    return PlainLines(sys.stderr)
