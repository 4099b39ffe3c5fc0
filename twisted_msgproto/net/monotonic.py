"""A reactor that counts by a clock nobody can set: :func:`count_monotonically`.

Twisted's reactors count by ``time.time``.  When somebody sets the machine's clock back by an hour,
every timer of the process waits an hour longer, and acknowledgements of messages that are on disk
are withheld.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def count_monotonically(reactor: Any, clock: Callable[[], float] = time.monotonic) -> bool:
    """Let ``reactor`` count by ``clock``, in seconds; return whether it does now.

    This is for a process of our own, before it has scheduled anything: a timer that was set by the
    other clock would fire at a wrong time.  So nothing changes, and False is returned, if the
    reactor has timers already.  What asks ``reactor.seconds()`` for the time of day, as
    ``twisted.web``'s access log does, needs another clock.
    """
    if reactor.seconds is clock:
        return True
    if reactor.getDelayedCalls():
        return False
    reactor.seconds = clock
    return True
