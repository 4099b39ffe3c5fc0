"""Print what a server pushes: a message a line, until --count of them came or Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from twisted_msgproto.core.errors import Refused, escaped
from twisted_msgproto.core.message import Message

from .clients import (
    FAILED,
    check_options,
    command_of,
    connect_options,
    connecting,
    tell,
    why_not,
)
from .options import POSITIVE, SECONDS, command, flag, open_output, option
from .rows import row

if TYPE_CHECKING:
    from ..net.clients.command_types import RecvOptions

QUIET_SECONDS = 1.0  # with ``--until-empty`` a queue from which nothing comes so long is empty


def as_line(message: Message, *, as_json: bool, properties: bool = False) -> str:
    if as_json:
        return json.dumps(row(message), ensure_ascii=False)
    columns = [message.destination] if message.destination else []
    if properties:
        columns.append(json.dumps(dict(message.fields or {}), ensure_ascii=False))
    columns.append((message.body or b"").decode("utf-8", "backslashreplace"))
    return "\t".join(map(escaped, columns))


async def receive(
    reactor: Any,
    command: ModuleType,
    options: RecvOptions,
    show: Callable[[Message], None],
    timeout: float | None = None,
    output: int | None = None,
    until_empty: bool = False,
) -> None:
    """Call ``show`` with what comes, until there is enough of it or nobody wants it any more.

    That is after ``options.count`` messages, ``timeout`` seconds without a part of one, or the
    peer's end; with ``until_empty`` these seconds (QUIET_SECONDS) begin once the server has agreed.
    What comes later, or cannot be shown, is refused, so that nobody takes it for received.
    BrokenPipeError as soon as nobody reads ``output``, or from ``show``.
    """
    from .waiting import LEAVE_SECONDS, Attempt, Reader

    came = 0
    over = False  # nothing more is shown
    broken: BrokenPipeError | None = None
    parts: list[Callable[[float], float]] = []  # say when a part of a message came
    timer: Any = None  # ends the wait for a message; once that is over, the protocol's leaving

    def end(error: BrokenPipeError | None = None) -> None:
        nonlocal over, broken, timer
        if not over:
            over, broken = True, error
            if timer is not None and timer.active():
                timer.cancel()
            # Later: not while the protocol is in the middle of handing a batch on.
            timer = reactor.callLater(0, lambda: receiving.give_up())

    def begin() -> None:
        nonlocal timer
        if timer is None and timeout is not None:
            timer = reactor.callLater(timeout, waited, timeout)

    def waited(seconds: float) -> None:
        """End, unless a part of a message has come meanwhile."""
        nonlocal timer
        now = reactor.seconds()
        left = max((came_at(now) for came_at in parts), default=0.0) + seconds - now
        if left > 0:
            timer = reactor.callLater(left, waited, seconds)
        else:
            end()

    def refuse(text: str) -> None:
        """So that the message is not acknowledged."""
        if work.cr_running and timer.active():
            timer.reset(LEAVE_SECONDS)  # this ends the protocol, which may tidy up by itself
        raise Refused(text)

    def received(message: Message) -> None:
        nonlocal came
        if over:
            refuse("the receiver has ended")
        try:
            show(message)
        except BrokenPipeError as error:
            end(error)
            refuse("nobody reads the receiver's output")
        came += 1
        if timer is not None:
            timer.reset(timeout)
        if came == options.count:
            end()

    Reader(reactor, output, lambda: end(BrokenPipeError()))
    agreed = options.ready

    def ready() -> None:
        begin()
        if agreed is not None:
            agreed()

    if until_empty:
        timeout = QUIET_SECONDS if timeout is None else timeout
        options = replace(options, ready=ready)
    else:
        begin()
    work = command.recv(reactor, replace(options, follow=parts.append), received)
    receiving = Attempt(reactor, work)
    try:
        await receiving.result
    except Exception:
        if not over:  # else whatever comes of leaving does not matter
            raise
    finally:
        if timer is not None and timer.active():
            timer.cancel()
    if broken is not None:
        raise broken


@command(__doc__)
@connecting
@option("--count N", "end after N messages", POSITIVE)
@option(
    "--timeout S",
    "end when nothing has come for S seconds; the exit status is 1 if too little came",
    SECONDS,
)
@flag(
    "--until-empty",
    "micromsg2, mtl: end in peace, with or without a message, when nothing has come for"
    f" {QUIET_SECONDS:g} s (or --timeout S) since the server agreed to send what waits",
)
@flag("--json", "a message a line as JSON")
@flag("--properties", "show each message's properties, too")
@option(
    "--filter EXPRESSION",
    "micromsg2: messages with these properties alone, like 'market=Teu;amount>=N100'",
)
def run(arguments: SimpleNamespace) -> int:
    """0 once ``--count`` messages came, or when the peer ends in peace without one.

    With ``--timeout`` alone: 0 if any message came; with ``--until-empty`` also if none is left.
    """
    output = open_output()
    command = command_of(arguments.protocol, "recv")
    fields = {**connect_options(arguments, command), "filter": arguments.filter}
    until_empty: bool = arguments.until_empty
    check_options(arguments.protocol, command, "recv", {**fields, "ready": until_empty})
    from ..net.clients.command_types import RecvOptions

    came = 0
    agreed = False

    def agree() -> None:
        nonlocal agreed
        agreed = True

    told = "ready" in getattr(command, "RECV_OPTIONS", ())
    options = RecvOptions(**fields, count=arguments.count, ready=agree if told else None)

    def show(message: Message) -> None:
        nonlocal came
        line = as_line(message, as_json=arguments.json, properties=arguments.properties)
        click.echo(line)
        came += 1

    async def work(reactor: Any) -> None:
        await receive(
            reactor, command, options, show, arguments.timeout, output.fileno(), until_empty
        )

    why = why_not(work, options.endpoint, lambda: came or agreed)
    wanted = arguments.count or (1 if arguments.timeout is not None else 0)
    if until_empty:
        wanted = 0
    if why is None and came < wanted:
        why = "the server ended it"
        if arguments.timeout is not None:
            why = f"no more came within {arguments.timeout:g} s"
            if arguments.count is None:
                why = f"no message came within {arguments.timeout:g} s"
            if told and not (came or agreed):
                why += f", and nobody answers at {options.endpoint}; is the server running?"
        if arguments.count is not None:
            why = f"{came} of {wanted} messages came: {why}"
    if why is None:
        return 0
    tell("recv", why)
    return FAILED
