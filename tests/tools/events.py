"""One flat sequence for what a machine gave out, so that batches may begin and end anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.testing import splits

__all__ = ["flatten", "splits"]


def flatten(events):
    """Messages one by one, as (class, column values…), and at the end the fault's reason."""
    flat = []
    for event in events:
        if isinstance(event, Fault):
            flat.append(("fault", event.reason))
            continue
        columns = [
            getattr(event, name)
            for name in event.__slots__
            if isinstance(getattr(event, name), Sequence)
        ]
        flat += [(type(event).__name__, *row) for row in zip(*columns, strict=True)]
    return flat
