"""Say how far a command is: on a line of a terminal that is written over, with lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

import click

LIVE_SECONDS: Final = 0.2
PLAIN_SECONDS: Final = 2.0  # between lines without a terminal, where every line stays


class Line:
    """The latest text of what is under way, on ``stream``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._seconds = LIVE_SECONDS if self._live else PLAIN_SECONDS
        self._due = time.monotonic() + self._seconds
        self._open = False  # a line without an end stands on the terminal

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._seconds
        if self._live:
            click.echo(f"\r{text}", nl=False, file=self._stream)  # it never gets shorter
            self._open = True
        else:
            click.echo(text, file=self._stream)

    def end(self) -> None:
        if self._open:
            self._open = False
            click.echo(file=self._stream)


class Counted:
    """Counts what was sent and acknowledged; shows it where it has a line."""

    def __init__(self, line: Line | None = None) -> None:
        self.messages_sent: int = 0  # on their way or beyond
        self.messages_acknowledged: int = 0
        self.messages_written: int = 0  # to a peer that was not asked to acknowledge
        self.notes: list[str] = []
        self._line = line

    def sent(self, count: int) -> None:
        self.messages_sent += count
        self._show()

    def acknowledged(self, count: int) -> None:
        self.messages_acknowledged += count
        self._show()

    def written(self, count: int) -> None:
        self.messages_written += count
        self._show()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def follow(self, takenAt: Callable[[float], float]) -> None:
        """Nobody waits here for the peer."""

    def alive(self) -> None:
        """The peer is at work."""

    def _show(self) -> None:
        if self._line is not None:
            self._line.show(
                f"sent {self.messages_sent}, acknowledged {self.messages_acknowledged} so far"
            )

    def end(self) -> None:
        if self._line is not None:
            self._line.end()
