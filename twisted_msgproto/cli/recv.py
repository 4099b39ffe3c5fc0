"""Print what a server pushes: a message a line, until --count of them came or Ctrl-C."""

from __future__ import annotations

import argparse
import json
from typing import Any

from twisted_msgproto.core.message import Message

from ..net.clients.shapes import RecvOptions
from .clients import (
    FAILED,
    add_connect_options,
    command_of,
    connect_options,
    positive,
    run_client,
)
from .rows import row

SUMMARY = "print what arrives: topics, published messages, summoned content"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_connect_options(parser)
    parser.add_argument("--count", metavar="N", type=positive, help="end after N messages")
    parser.add_argument("--json", action="store_true", help="a message a line as JSON")


def as_line(message: Message, *, as_json: bool) -> str:
    """One message for the terminal: the table's columns as JSON, or destination and body."""
    if as_json:
        return json.dumps(row(message), ensure_ascii=False)
    body = (message.body or b"").decode("utf-8", "backslashreplace")
    # Escaped: what a peer sent must not move the cursor or end the line.
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in body)
    return f"{message.destination}\t{shown}" if message.destination else shown


def run(arguments: argparse.Namespace) -> int:
    """Receive; 0 once ``--count`` messages came, or when the peer ends in peace without one."""
    command = command_of(arguments.protocol, "recv")
    options = RecvOptions(**connect_options(arguments, command), count=arguments.count)
    came = 0

    async def work(reactor: Any) -> None:
        from twisted.internet.defer import CancelledError, Deferred

        enough = False

        def show(message: Message) -> None:
            nonlocal came, enough
            if enough:
                return
            print(as_line(message, as_json=arguments.json), flush=True)
            came += 1
            if came == arguments.count:
                enough = True
                # Later: not while the protocol is in the middle of handing a batch on.
                reactor.callLater(0, lambda: receiving.cancel())

        receiving: Deferred[Any] = Deferred.fromCoroutine(command.recv(reactor, options, show))
        try:
            await receiving
        except CancelledError:
            if not enough:
                raise

    ended_well = run_client("recv", work)
    complete = arguments.count is None or came >= arguments.count
    return 0 if ended_well and complete else FAILED
