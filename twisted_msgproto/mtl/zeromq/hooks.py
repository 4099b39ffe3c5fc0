"""Call the application's hooks and profiles so that what they raise harms nobody else.

One socket serves many peers, and the reactor drops a socket whose reading raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger

log = Logger(namespace="twisted_msgproto.mtl")


def guarded(hook: Callable[..., object], *arguments: Any) -> None:
    """Call ``hook``; what it raises is logged."""
    try:
        hook(*arguments)
    except Exception:
        log.failure("{hook} failed", hook=getattr(hook, "__qualname__", repr(hook)))
