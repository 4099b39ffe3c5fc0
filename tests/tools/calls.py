"""How many calls of this package's Python functions something takes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import twisted_msgproto

PACKAGE = str(Path(twisted_msgproto.__file__).parent)
TOOLS = f"{PACKAGE}/testing/"
"""What moves octets in tests stands for the network, and costs our users nothing."""
INLINED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
"""Calls in some versions of Python and not in others, so they are not counted."""


class Calls:
    """What was called: ``count`` in all, ``where`` by file and function."""

    def __init__(self) -> None:
        self.where: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self.where.total()

    def within(self, *rooms: str) -> int:
        """Calls in files whose path begins with one of these rooms."""
        return sum(count for name, count in self.where.items() if name.startswith(rooms))


@contextmanager
def counting_calls(calls: Calls | None = None) -> Iterator[Calls]:
    """Counts the calls of functions of ``twisted_msgproto`` within the block, onto ``calls``."""
    calls = Calls() if calls is None else calls
    prefix, where = len(PACKAGE) + 1, calls.where

    def called(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name not in INLINED and not code.co_filename.startswith(TOOLS):
            where[f"{code.co_filename[prefix:]}:{code.co_name}"] += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield calls
    finally:
        sys.setprofile(before)
