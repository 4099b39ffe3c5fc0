"""What a machine counts and shows: a test says what a step changes, and that nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Figures:
    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._known = dict(read())

    def __call__(self, step: object = None) -> dict[str, Any]:
        """Return the figures that ``step``, which was evaluated just now, has changed."""
        before, self._known = self._known, dict(self._read())
        return {name: now for name, now in self._known.items() if before.get(name) != now}
