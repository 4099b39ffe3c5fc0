"""Find the compiled form of a loop, if it was built for this version."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def compiled(module: str, form: int) -> Any:
    """Return the compiled ``module`` (by its whole name), or None if Python's form has to do the
    work.

    Each has a number ``FORM``, raised whenever the arguments or results of its functions change.  A
    module left behind by another version, in a tree where the new one could not be built, has a
    different number from ``form`` and must not be used.
    """
    try:
        found = import_module(module)
    except ImportError:  # pragma: no cover - the tests run both forms where it was built
        return None
    return found if getattr(found, "FORM", None) == form else None
