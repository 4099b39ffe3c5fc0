"""Find the compiled form of a loop, if it was built for this version."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def compiled(module: str, form: int) -> Any:
    """Return the compiled ``module``, or None if Python's form has to do the work: its ``FORM`` is
    another if another version has left it behind.
    """
    try:
        found = import_module(module)
    except ImportError:  # pragma: no cover - the tests run both forms where it was built
        return None
    return found if getattr(found, "FORM", None) == form else None
