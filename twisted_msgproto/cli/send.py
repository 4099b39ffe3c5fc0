"""Send messages and wait until every one is acknowledged.

One message per line of stdin, or --count made-up ones.  The exit status is 0 only if every message
was acknowledged.  Otherwise one line on stderr says how many of how many were, and why not all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Coroutine
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from twisted_msgproto.core.errors import ConfigurationError, TimedOut

from . import INTERRUPTED, USAGE_ERROR
from .clients import (
    FAILED,
    check_options,
    command_of,
    connect_options,
    connecting,
    tell,
    why_not,
)
from .options import (
    PAIR,
    POSITIVE,
    SECONDS,
    SIZE,
    SIZE_BYTES,
    command,
    flag,
    option,
    together,
    whole,
)
from .progress import Counted, Line

if TYPE_CHECKING:
    from ..net.clients.command_types import Messages, SendOptions

T = TypeVar("T")

CALL_SECONDS = 60.0

NO_SUCH_METHOD = 3  # exit status of ``--call``: the server lacks the method, and stored it


sending = together(
    option("--window N", "messages in flight", POSITIVE),
    option("--compress LEVEL", "zlib level, 0 for none", whole(0, 9)),
    option(
        "--property KEY=VALUE",
        "micromsg2, mtl, sabc: a property (field, header) of every message",
        PAIR,
        multiple=True,
    ),
    option("--protocol-version 1|2", "lumberjack: which", whole(1, 2)),
    option(
        "--host HOST:PORT",
        "lumberjack: one more server, tried when the one before is away",
        multiple=True,
    ),
    option("--ttl S", "lumberjack: replace a connection after S seconds", SECONDS),
    option("--pipelining N", "lumberjack: windows in flight", POSITIVE),
    flag("--replace-invalid", "lumberjack, umq: send U+FFFD for what is not UTF-8"),
    option(
        "--timeout S", "give up when the server answers nothing for S seconds (default 30)", SECONDS
    ),
)


class Sending(click.Command):
    """``send``, whose ``--args`` takes all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, taking = [], False
        for word in args:
            taking = word == "--args" or (taking and not word.startswith("--"))
            words += ["--args", word] if taking and word != "--args" else [word] * (not taking)
        return super().parse_args(ctx, words)


def options_of(arguments: SimpleNamespace, command: ModuleType) -> SendOptions:
    """Return what the operator asked for; ConfigurationError for what this protocol has not."""
    fields = {
        **connect_options(arguments, command),
        "window": arguments.window,
        "compress": arguments.compress,
        "properties": dict(arguments.property),
        "protocol_version": arguments.protocol_version,
        "hosts": tuple(arguments.host),
        "ttl": arguments.ttl,
        "pipelining": arguments.pipelining,
        "replace_invalid": arguments.replace_invalid,
    }
    check_options(arguments.protocol, command, "send" if arguments.call is None else "call", fields)
    from ..net.clients.command_types import SendOptions

    size = arguments.size or SIZE_BYTES
    return SendOptions(
        **fields,
        count=arguments.count,
        size=None if arguments.count is None else size,
    )


def encoder(command: ModuleType, options: SendOptions) -> Callable[[bytes], bytes] | None:
    """What makes a message of a line, where the protocol does not take lines as they are."""
    encode = getattr(command, "encode", None)
    return None if encode is None else lambda line: encode(line, options)


async def deliver(
    reactor: Any,
    command: ModuleType,
    options: SendOptions,
    messages: Messages,
    progress: Counted,
    timeout: float | None = None,
) -> None:
    """TimedOut if an owed answer is late; ConfigurationError for an unfit line, at its turn."""
    from .waiting import PATIENCE_SECONDS, Patience

    patience = Patience(reactor, timeout or PATIENCE_SECONDS, messages, progress)
    await patience.run(command.send(reactor, options, patience, patience))
    refused = getattr(messages, "refused", None)
    if refused is not None:
        raise refused


def incomplete(progress: Counted, count: int | None, why: str | None) -> str | None:
    sent = progress.messages_sent
    done = progress.messages_acknowledged + progress.messages_written
    total = sent if count is None else max(count, sent)
    if why is None and done == total:
        return None
    if why is None:
        why = f"the command ended before the rest was (it has sent {sent})"
    if not sent:
        return f"nothing was sent: {why}"
    verb = "written" if progress.messages_written else "acknowledged"
    return f"{done} of {total} messages were {verb}: {why}"


@command(__doc__, cls=Sending)
@connecting
@option("--count N", "send N made-up messages instead of stdin", POSITIVE)
@option("--size B", f"bytes of a made-up message (default {SIZE_BYTES})", SIZE)
@sending
@flag("--json", "end with one line of JSON; show no progress")
@option(
    "--call METHOD",
    "umq: call this method once, and print its result; sabc: send this text as one"
    " request, and print the answer; either is a line of JSON",
)
@click.option(
    "--args",
    metavar="VALUE …",
    multiple=True,
    help="umq: the method's arguments, JSON or plain text",
)
def run(arguments: SimpleNamespace) -> int:
    """0 if all was acknowledged, 1 if not, 2 for what the operator has to change."""
    if arguments.call is not None:
        return call(arguments)
    if arguments.args:
        raise ConfigurationError("--args go with --call METHOD")
    if arguments.size is not None and arguments.count is None:
        raise ConfigurationError("--size goes with --count N")
    command = command_of(arguments.protocol, "send")
    options = options_of(arguments, command)
    progress = Counted(None if arguments.json else Line(sys.stderr))

    async def work(reactor: Any) -> None:
        from .messages import Lines, MadeUp

        messages: Messages
        if arguments.count is not None:
            messages = MadeUp(arguments.count, options.size or SIZE_BYTES)
        elif sys.stdin is None:
            raise ConfigurationError("there is no input to send; --count N makes messages up")
        else:
            messages = Lines(reactor, sys.stdin.fileno(), encoder(command, options))
        await deliver(reactor, command, options, messages, progress, arguments.timeout)

    began = time.monotonic()
    status = FAILED
    why: str | None
    try:
        why = why_not(work, options.endpoint, lambda: progress.messages_acknowledged)
    except ConfigurationError as error:
        if not progress.messages_sent and not arguments.json:
            raise
        status, why = USAGE_ERROR, str(error)
    except KeyboardInterrupt:
        status, why = INTERRUPTED, "interrupted"
    finally:
        progress.end()
    summarise(progress, time.monotonic() - began, as_json=arguments.json)
    text = incomplete(progress, arguments.count, why)
    if text is None:
        return 0
    tell("send", text)
    return status


def summarise(progress: Counted, took: float, *, as_json: bool) -> None:
    sent, acknowledged = progress.messages_sent, progress.messages_acknowledged
    if as_json:
        counts = {"sent": sent, "acknowledged": acknowledged, "seconds": round(took, 6)}
        notes = {"notes": progress.notes} if progress.notes else {}
        click.echo(json.dumps({**counts, **notes}))
        return
    rate = acknowledged / took
    line = f"sent {sent}, acknowledged {acknowledged} in {took:.2f} s ({rate:,.0f}/s)"
    click.echo("; ".join([line, *progress.notes]))
    if progress.messages_written:
        click.echo("the server was not asked to acknowledge: nobody knows what arrived")


async def within(reactor: Any, timeout: float, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; TimedOut if it needs more than ``timeout`` seconds."""
    from twisted.internet.defer import Deferred

    from .waiting import silent

    def late(result: object, seconds: float) -> Any:
        raise TimedOut(silent(seconds))

    return await Deferred.fromCoroutine(work).addTimeout(timeout, reactor, late)


def call(arguments: SimpleNamespace) -> int:
    """1 if it fails, 3 if the server has no such method: then it stored the call, and says so."""
    command = command_of(arguments.protocol, "call")
    for name in ("count", "size"):
        if getattr(arguments, name):
            raise ConfigurationError(f"--{name} does not go with --call")
    options = options_of(arguments, command)
    carried_out = True

    async def work(reactor: Any) -> None:
        nonlocal carried_out
        called = command.call(reactor, options, arguments.call, list(arguments.args))
        timeout = arguments.timeout or CALL_SECONDS
        text, carried_out = await within(reactor, timeout, called)
        if carried_out:
            click.echo(text)
        else:
            tell("send", text)

    why = why_not(work, options.endpoint, lambda: carried_out)
    if why is not None:
        tell("send", why)
        return FAILED
    return 0 if carried_out else NO_SUCH_METHOD
