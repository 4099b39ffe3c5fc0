"""Open the queue that an operator names: a directory, or the address of a gateway's queue."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from twisted_msgproto.core.errors import ConfigurationError, QueueError

if TYPE_CHECKING:
    from twisted_msgproto.queue.source import Queue

CALL_SECONDS_MAX = 10.0
"""A gateway elsewhere may need this long for one answer."""

PROXY_HELP = "an HTTP proxy in front of grpc://HOST:PORT; default: none, whatever http_proxy says"

ELSEWHERE = ("grpc://", "grpc+tls://")
"""The address of a queue on another machine begins with one of these."""


def queue_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "directory",
        metavar="QUEUE",
        help="the queue's directory, or where a gateway serves it: grpc://HOST:PORT",
    )
    add("--token-file", metavar="FILE", help="the token for a queue at grpc://HOST:PORT")
    add("--tls-ca", metavar="FILE", help="who signed the certificate of grpc+tls://HOST:PORT")
    add("--flight-proxy", metavar="URL", help=PROXY_HELP)


def opened(arguments: argparse.Namespace) -> Queue:
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


def all_opened(arguments: argparse.Namespace) -> dict[str, Queue]:
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
