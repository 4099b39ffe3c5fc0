"""A server's sink decides whether its queues outlive the process; :func:`broker_of` asks it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.limits import Limits
from ..sink import DurableSink
from .keeping import Keeping, KeptBroker
from .served import ServedBroker


def broker_of(
    sink: object,
    clock: Any,
    limits: Limits | None,
    spaces: Iterable[str],
    **settings: Any,
) -> ServedBroker:
    """Return the broker of a server that stores its messages in ``sink``.

    Its queues are those of ``spaces``.  Over a durable queue they outlive the process; over
    anything else they are in memory.  ``settings`` are those of :class:`ServedBroker`.
    """
    if isinstance(sink, DurableSink) and sink.keeps_queues:
        return KeptBroker(Keeping.of(sink, clock), spaces, clock, limits, **settings)
    broker = ServedBroker(clock, limits, **settings)
    broker.tells_of_memory = sink is not None
    return broker
