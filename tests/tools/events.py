"""One flat sequence for what a machine gave out, so that batches may begin and end anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from twisted_msgproto.core.errors import Fault


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


def splits(octets, everywhere=400):
    """Ways to cut ``octets``: whole, octet by octet, in fixed pieces, and in two at each place.

    Streams longer than ``everywhere`` are cut in two at that many places spread over them.
    """
    yield [octets]
    for size in (1, 2, 3, 7, 64):
        yield [octets[at : at + size] for at in range(0, len(octets), size)]
    step = max(1, len(octets) // everywhere)
    for cut in range(1, len(octets), step):
        yield [octets[:cut], octets[cut:]]
