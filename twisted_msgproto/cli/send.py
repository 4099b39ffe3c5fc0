"""Send messages and wait until every one is acknowledged.

One message per line of stdin, or --count made-up ones.  The exit status is 0 only if every message
was acknowledged.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from twisted_msgproto.core.errors import ConfigurationError

from ..net.clients.shapes import SIZE_OCTETS, SendOptions
from .clients import (
    FAILED,
    add_connect_options,
    command_of,
    connect_options,
    positive,
    run_client,
)
from .progress import progress_for

NO_SUCH_METHOD = 3
"""Exit status of ``--call`` for a method which the server has not: it stored the call."""

SUMMARY = "send the lines of stdin, or made-up messages, and wait for the acknowledgements"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_connect_options(parser)
    parser.add_argument("--window", metavar="N", type=positive, help="messages in flight")
    parser.add_argument(
        "--compress", metavar="LEVEL", type=int, choices=range(10), help="zlib level, 0 for none"
    )
    parser.add_argument(
        "--count", metavar="N", type=positive, help="send N made-up messages instead of stdin"
    )
    parser.add_argument(
        "--size",
        metavar="B",
        type=positive,
        default=SIZE_OCTETS,
        help=f"octets of a made-up message (default {SIZE_OCTETS})",
    )
    parser.add_argument(
        "--json", action="store_true", help="end with one line of JSON; show no progress"
    )
    parser.add_argument(
        "--call", metavar="METHOD", help="umq: call this method once, and print its result"
    )
    parser.add_argument(
        "--args", metavar="VALUE", nargs="*", default=[], help="its arguments, JSON or plain text"
    )


def run(arguments: argparse.Namespace) -> int:
    """Send; 0 if all was acknowledged, 1 if not."""
    if arguments.call is not None:
        return call(arguments)
    if arguments.args:
        raise ConfigurationError("--args go with --call METHOD")
    command = command_of(arguments.protocol, "send")
    options = SendOptions(
        **connect_options(arguments, command),
        window=arguments.window,
        compress=arguments.compress,
        count=arguments.count,
        size=None if arguments.count is None else arguments.size,
    )
    progress = progress_for(arguments.count, quiet=arguments.json)

    async def work(reactor: Any) -> None:
        from .messages import Lines, MadeUp

        messages = (
            Lines(reactor, sys.stdin.fileno())
            if arguments.count is None
            else MadeUp(arguments.count, arguments.size)
        )
        await command.send(reactor, options, messages, progress)

    began = time.monotonic()
    with progress:
        ended_well = run_client("send", work)
    seconds = time.monotonic() - began
    sent, acknowledged = progress.messages_sent, progress.messages_acknowledged
    if arguments.json:
        counts = {"sent": sent, "acknowledged": acknowledged, "seconds": round(seconds, 6)}
        print(json.dumps(counts), flush=True)
    else:
        rate = acknowledged / seconds if seconds else 0.0
        print(f"sent {sent}, acknowledged {acknowledged} in {seconds:.2f} s ({rate:,.0f}/s)")
    complete = sent == acknowledged and arguments.count in (None, sent)
    return 0 if ended_well and complete else FAILED


def call(arguments: argparse.Namespace) -> int:
    """Call one method and print its result.

    1 if it fails, 3 if the server has no such method: then it stored the call, and says so.
    """
    command = command_of(arguments.protocol, "call")
    options = SendOptions(**connect_options(arguments, command))
    carried_out = True

    async def work(reactor: Any) -> None:
        nonlocal carried_out
        text, carried_out = await command.call(reactor, options, arguments.call, arguments.args)
        print(text, flush=True)

    if not run_client("send", work):
        return FAILED
    return 0 if carried_out else NO_SUCH_METHOD
