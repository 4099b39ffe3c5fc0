"""Open a queue: a directory of this machine, or a gateway's Flight server."""

from __future__ import annotations

from ..queue import QueueReader
from ..queue.source import Queue
from .options import Access

REMOTE = ("grpc://", "grpc+tls://")

PATIENCE_SECONDS = 20.0
"""A task waits this long for rows of a gateway, before its batch is planned without it."""

LIMIT_SECONDS = 2.0
"""A gateway that needs longer than this for one small answer counts as away."""


def is_remote(location: str) -> bool:
    """Return whether ``location`` is a gateway's address and not a directory."""
    return location.startswith(REMOTE)


def open_queue(
    location: str,
    access: Access = Access(),  # noqa: B008  a tuple
    patience: float = PATIENCE_SECONDS,
    queue_id: str | None = None,
) -> Queue:
    """Return the queue at ``location``: a directory, or ``grpc://HOST:PORT``,
    ``grpc+tls://HOST:PORT``.

    ``patience`` is how long a read waits for rows.  A gateway of which ``queue_id`` is known is
    asked nothing before it is used.  Raises QueueError with one line when there is no queue,
    QueueAway when its gateway does not answer.
    """
    if is_remote(location):
        from .flight import FlightQueue

        return FlightQueue(
            location,
            token_file=access.token_file,
            authority=access.authority,
            proxy=access.proxy,
            patience=patience,
            limit=LIMIT_SECONDS,
            queue_id=queue_id,
        )
    return QueueReader(location.removeprefix("file://"))
