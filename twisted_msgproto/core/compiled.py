"""Loops that are also there in a compiled form: finds it, if it was built for this version."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def compiled(module: str, form: int) -> Any:
    """Return the compiled ``module`` (by its whole name), or None: Python's form does the work
    then.

    Each has a number ``FORM``, raised with every change of what its functions take and give.  One
    that was left behind by another version, in a tree where the new one could not be built, has
    another number than ``form`` and must not be used.
    """
    try:
        found = import_module(module)
    except ImportError:  # pragma: no cover - the tests run both forms where it was built
        return None
    return found if getattr(found, "FORM", None) == form else None
