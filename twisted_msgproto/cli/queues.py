"""Open the queue that an operator names: a directory, or the address of a gateway's queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from twisted_msgproto.core.errors import ConfigurationError, QueueError

from .options import LOCATION, flight_proxy, tls_ca, together, token_file

if TYPE_CHECKING:
    from twisted_msgproto.queue.source import Queue

CALL_SECONDS_MAX = 10.0
"""A gateway elsewhere may need this long for one answer."""

ELSEWHERE = ("grpc://", "grpc+tls://")
"""The address of a queue on another machine begins with one of these."""


queue_options = together(
    click.argument(
        "directory",
        metavar="QUEUE",
        type=LOCATION,
        help="the queue's directory, or where a gateway serves it: grpc://HOST:PORT",
    ),
    token_file("a queue at grpc://HOST:PORT"),
    tls_ca("grpc+tls://HOST:PORT"),
    flight_proxy(),
)


@contextmanager
def reading(place: object) -> Iterator[None]:
    """Raise QueueError, one line, for what the system says of the queue's files."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise QueueError(f"cannot read the queue {place}: {error}") from error


def opened(arguments: SimpleNamespace) -> Queue:
    """Return the queue that the arguments name; QueueError, one line, if there is none."""
    if arguments.directory.startswith(ELSEWHERE):
        from twisted_msgproto.spark.flight import FlightQueue

        return FlightQueue(
            arguments.directory,
            token_file=arguments.token_file,
            authority=arguments.tls_ca,
            proxy=arguments.flight_proxy,
            limit=CALL_SECONDS_MAX,
        )
    for option in ("token_file", "tls_ca", "flight_proxy"):
        if getattr(arguments, option) is not None:
            raise ConfigurationError(f"--{option.replace('_', '-')} goes with grpc://HOST:PORT")
    from twisted_msgproto.queue import QueueReader

    return QueueReader(one_of(arguments.directory))


def all_opened(arguments: SimpleNamespace) -> dict[str, Queue]:
    """Return the queues that the arguments name: one, or all that are in a directory.

    Each has the name of its directory as its name; one queue, and one that stands in the directory
    itself, has the name "".
    """
    from twisted_msgproto.queue import QueueReader
    from twisted_msgproto.queue.queue_directories import queues_at, queues_in

    directory = arguments.directory
    if directory.startswith(ELSEWHERE) or not queues_in(directory):
        return {"": opened(arguments)}
    below = queues_at(directory)
    return {
        "" if place == directory else os.path.basename(place): QueueReader(place) for place in below
    }


def one_of(directory: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return ``directory``; QueueError if it is none itself and has several in it."""
    from twisted_msgproto.queue.queue_directories import is_queue, queues_in

    inside = [] if is_queue(directory) else queues_in(directory)
    if inside:
        raise QueueError(
            f"{directory} is no queue itself, and has {len(inside)} in it: name one, such as"
            f" {inside[0]}"
        )
    return directory
