"""The command line ``msgproto SUB-COMMAND …`` has one small module per sub-command.

Each module has a click command ``run``, and is imported when its sub-command is asked for, so
``msgproto queue ls`` starts no reactor and ``msgproto send`` no Spark.

What an operator did wrong (:class:`~twisted_msgproto.core.errors.ConfigurationError`, a
:class:`~twisted_msgproto.core.errors.QueueError`, a
:class:`~twisted_msgproto.core.errors.TableError`, an extra that is not installed) is one line on
stderr and exit status 2, never a traceback.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from twisted_msgproto import __version__
from twisted_msgproto.core.errors import ConfigurationError, QueueError, TableError
from twisted_msgproto.core.loading import closest, missing_extra

try:
    import click
except ModuleNotFoundError as error:
    print(f"msgproto: {missing_extra(error) or error}", file=sys.stderr)
    sys.exit(2)

COMMANDS: Mapping[str, str] = {
    "gateway": "run all servers of a gateway.toml in the foreground",
    "bridge": "land queues in a Delta table, with Spark",
    "send": "send the lines of stdin, or made-up messages, and wait for the acknowledgements",
    "recv": "print what arrives: topics, published messages, summoned content",
    "bench": "load a running server with made-up messages, and measure its acknowledgements",
    "queue": "look into a queue: ls, verify, dump, tail, consumers, trim, mend",
    "broker": "look into the broker's queues: ls, peek, purge, requeue",
    "status": "show the figures of a running gateway",
    "table": "look after a table: counts, verify, compact, vacuum, expire, rewind",
    "flight": "serve a queue to a bridge on another machine",
    "reload": "let a running gateway read certificates, keys, rules and tokens again",
    "init": "write a gateway.toml and systemd units to begin with",
    "passwd": "set a user's password in a file, hashed",
    "check": "validate a gateway.toml or bridge.toml",
    "doctor": "say what this machine lacks",
    "demo": "one gateway, one Spark bridge, real clients: sent = acknowledged = landed",
    "completion": "print a script for bash, zsh or fish that completes sub-commands and options",
}
"""Each sub-command with its summary, in the order of ``msgproto --help``."""

OF_ACTIONS = ("queue", "broker", "table")  # the sub-commands that have actions

REMEDIES: Mapping[int, str] = {
    errno.EACCES: "; run this as a user who may, or name another place",
    errno.EPERM: "; run this as a user who may, or name another place",
    errno.EROFS: "; name a place on a file system that can be written",
    errno.ENOSPC: "; make room there, or name another place",
    errno.ENOENT: "; make it first, or name another place",
    errno.EMFILE: "; allow more open files: ulimit -n 4096",
    errno.EEXIST: "; a file has this name: name another place",
    errno.ENOTDIR: "; a part of that path is a file: name another place",
}

OUTPUT_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG  # of what is printed; no reading fails so

WHOLE: Final = ("msgproto bridge", "msgproto demo")
"""They need all of the extra ``spark``: what they lack is one of its parts, and seldom alone."""

USAGE_ERROR = 2  # a command ends with this exit status when the operator has to change something
INTERRUPTED = 128 + signal.SIGINT  # exit status after Ctrl-C, as a shell expects it


class SubCommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command: click.Command = importlib.import_module(f"{__name__}.{name}").run
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS:
            near = self.action(ctx, name) or closest(name, COMMANDS)
            ctx.fail(f"unknown sub-command {name!r}{near}; known: {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def action(self, ctx: click.Context, name: str) -> str:
        for one in OF_ACTIONS:
            group = self.get_command(ctx, one)
            if isinstance(group, click.Group) and name in group.commands:
                return f" (did you mean '{one} {name}'?)"
        return ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Sub-commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


COMPLETING = "_MSGPROTO_COMPLETE"  # a shell sets it, and asks what may stand where its user is

msgproto: SubCommands = click.version_option(__version__, message="msgproto %(version)s")(
    SubCommands(
        subcommand_metavar="SUB-COMMAND …",
        epilog="msgproto SUB-COMMAND --help says more about each.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
)


def fail(name: str, text: str) -> int:
    gone = "" if here() else "; the working directory was removed: change to another one"
    print(f"{name}: {' '.join(text.split())}{gone}", file=sys.stderr)
    return USAGE_ERROR


def here() -> bool:
    """Return whether the working directory is there: no relative path means anything without."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit status; ``argv`` is without the program's name."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_standard_descriptors()
    try:
        status = chosen(words)
        if sys.stdout is not None:  # closed before the start
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read our output has gone (`msgproto queue dump … | head`): that is no fault.
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in OUTPUT_FULL:
            raise
        return fail("msgproto", f"cannot write the output: {error.strerror}")
    return status


def open_standard_descriptors() -> None:
    """Open what was closed as /dev/null: else a queue's file would get its number, and prints."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)


def chosen(words: Sequence[str]) -> int:
    """Run what these words say; an operator's fault is a line and USAGE_ERROR."""
    if COMPLETING in os.environ:
        from click.shell_completion import shell_complete

        with suppress(click.UsageError):  # a word before it is mistyped: nothing is offered
            return shell_complete(msgproto, {}, "msgproto", COMPLETING, os.environ[COMPLETING])
        return 0
    name = f"msgproto {words[0]}" if words else "msgproto"
    try:
        with msgproto.make_context("msgproto", list(words) or ["--help"]) as context:
            return int(msgproto.invoke(context))
    except click.exceptions.Exit as ended:
        return ended.exit_code if words else USAGE_ERROR
    except click.UsageError as error:
        path = name if error.ctx is None else error.ctx.command_path
        return fail(path, f"{usage_of(error)}; see {path} --help")
    except (ConfigurationError, QueueError, TableError) as error:
        return fail(name, str(error))
    except ModuleNotFoundError as error:
        text = missing_extra(error, "spark" if name in WHOLE else None)
        if text is None:
            raise
        return fail(name, text)
    except OSError as error:
        if not here():
            return fail(name, error.strerror or str(error))
        if error.filename is None:
            raise
        remedy = REMEDIES.get(error.errno or 0, "")
        return fail(name, f"cannot use {os.fsdecode(error.filename)}: {error.strerror}{remedy}")


def usage_of(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = [flag for one in error.ctx.command.get_params(error.ctx) for flag in one.opts]
        return f"unknown option {error.option_name}{closest(error.option_name, known)}"
    return error.format_message().rstrip(".")
