"""Call the application's hooks and profiles so that what they raise harms nobody else.

One socket serves many peers, and the reactor drops a socket whose reading raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger
from twisted.python.failure import Failure

from ...net.hooks import run_on

log = Logger(namespace="twisted_msgproto.mtl")


def guarded(hook: Callable[..., object], *arguments: Any) -> None:
    """Call ``hook``; what it raises is logged, also as a coroutine, whose end nobody awaits."""

    def failed(failure: Failure) -> None:
        log.failure("{hook} failed", failure, hook=getattr(hook, "__qualname__", repr(hook)))

    try:
        later = hook(*arguments)
        if later is not None:
            run_on(later, failed)
    except Exception:
        failed(Failure())
