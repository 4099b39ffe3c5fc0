"""What opens a queue: a directory of this machine, or a gateway's Flight server."""

from __future__ import annotations

from ..queue import QueueReader
from ..queue.source import Queue
from .options import Access

REMOTE = ("grpc://", "grpc+tls://")
"""How a location begins which is another machine's."""

PATIENCE_SECONDS = 20.0
"""How long a task waits for a gateway that is away, before its batch is planned without it."""


def is_remote(location: str) -> bool:
    """Whether ``location`` is a gateway's address and not a directory."""
    return location.startswith(REMOTE)


def open_queue(
    location: str,
    access: Access = Access(),  # noqa: B008  a tuple
    patience: float = PATIENCE_SECONDS,
) -> Queue:
    """The queue at ``location``: a directory, or ``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT``.

    Raises QueueError with one line when there is none, or none that answers within ``patience``
    seconds.
    """
    if is_remote(location):
        from .flight import FlightQueue

        return FlightQueue(
            location,
            token_file=access.token_file,
            authority=access.authority,
            patience=patience,
        )
    return QueueReader(location.removeprefix("file://"))
