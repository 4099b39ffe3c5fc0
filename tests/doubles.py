"""What tests of every room put in a real thing's place, and how they ask a machine."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from twisted_msgproto.core.connection import Connection, WorkLost


def due(machine: Connection[Any, Any, Any], now: float) -> tuple[list[Any], float | None]:
    """Let a machine do what is due; return its events and its next deadline."""
    return machine.advance(now), machine.deadline


def unanswered(machine: Connection[Any, Any, Any]) -> list[Any]:
    """End a machine's connection; return the work that nobody answered, as plain values."""
    return [one for event in machine.lost(0.0) if isinstance(event, WorkLost) for one in event.work]


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python ``work`` takes."""
    lines = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def octets_of(build: Callable[[], object]) -> int:
    """What is allocated for what ``build`` returns, while it is there."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        built = build()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert built is not None
    return after - before
