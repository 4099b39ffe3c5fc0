"""How sub-commands are made, and the options that several of them have."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
from click.shell_completion import CompletionItem

from twisted_msgproto import registry
from twisted_msgproto.core.errors import ConfigurationError, QueueError
from twisted_msgproto.core.limits import A_SIZE, read_size
from twisted_msgproto.core.loading import closest

from . import OUTPUT_FULL

if TYPE_CHECKING:
    from twisted_msgproto.queue.interface import Queue

Run = Callable[[SimpleNamespace], int]


class Named(click.Path):
    """An empty path, such as a variable that a script lacks, would be the working directory."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            self.fail("it is empty", param, ctx)
        if self.type is Path and "://" in str(value):
            self.fail(f"{value} is an address, and a path on this machine is meant", param, ctx)
        return super().convert(value, param, ctx)


FILE: Final = Named(readable=False, path_type=Path)  # a path on this machine
SIZE_BYTES: Final = 300  # made-up messages have this size
LOCATION: Final = Named(readable=False)  # a path, or an address; either is text


class Read(click.ParamType[Any]):
    """Values that ``read`` makes of a text; it raises ValueError for one that is no ``name``."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError:
            self.fail(f"{self.name} is expected, not {value!r}", param, ctx)


class Protocol(click.ParamType[str]):
    name = "protocol"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in registry.known() if name.startswith(incomplete)]


def whole(least: int, most: int | None = None) -> Read:
    def read(text: str) -> int:
        number = int(text)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    return Read(f"a whole number from {least} {'on' if most is None else f'to {most}'}", read)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise ValueError
    return number


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError
    return name, value


def _size(text: str) -> int:
    number = read_size(text)
    if number < 1:
        raise ValueError
    return number


POSITIVE: Final = whole(1)
SIZE: Final = Read(A_SIZE, _size)
SECONDS: Final = Read("a number of seconds, more than 0,", _seconds)
PAIR: Final = Read("KEY=VALUE", _pair)


class Group(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args[0] not in known:
            ctx.fail(f"{args[0]!r} is none of {', '.join(known)}{closest(args[0], known)}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Actions"):
            texts = ((name, one.help or "") for name, one in self.commands.items())
            formatter.write_dl([(name, text.partition("\n\n")[0]) for name, text in texts])


def group(text: str | None) -> Group:
    """Return a command whose module has this docstring."""
    return Group(
        help=inspect.cleandoc(text or ""),
        subcommand_metavar="ACTION …",
        no_args_is_help=False,
    )


def command(
    text: str | None, name: str | None = None, cls: type[click.Command] = click.Command
) -> Callable[[Run], click.Command]:
    """Make a command of a function that gets its words as one object and returns the status."""

    def made(run: Run) -> click.Command:
        def call(**words: Any) -> int:
            return run(SimpleNamespace(**words))

        declared: list[click.Parameter] = getattr(run, "__click_params__", [])
        help_ = inspect.cleandoc(text or "")
        return cls(name, callback=call, params=declared[::-1], help=help_)

    return made


def option(usage: str, text: str, type: Any = None, **settings: Any) -> Callable[[Any], Any]:
    """Declare an option as its help shows it, ``--name METAVAR``; a repeatable one says so."""
    names = [word for word in usage.split() if word.startswith("-")]
    metavar = usage.removeprefix(" ".join(names)).strip() or None
    if settings.get("multiple"):
        text += "; repeatable"
    return click.option(*names, metavar=metavar, help=text, type=type, **settings)


def argument(usage: str, text: str, type: Any = None, **settings: Any) -> Callable[[Any], Any]:
    """Declare an argument by its name, ``name METAVAR``."""
    name, _, metavar = usage.partition(" ")
    return click.argument(name, metavar=metavar or None, help=text, type=type, **settings)


def together(*declared: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(run: Any) -> Any:
        for one in reversed(declared):
            run = one(run)
        return run

    return decorate


def flag(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(name, is_flag=True, help=text)


def token_file(of: str) -> Callable[[Any], Any]:
    return option("--token-file FILE", f"the token for {of}", LOCATION)


def tls_ca(of: str) -> Callable[[Any], Any]:
    text = f"who signed the certificate of {of}"
    return option("--tls-ca FILE", text, LOCATION)


def flight_proxy() -> Callable[[Any], Any]:
    text = "an HTTP proxy in front of grpc://HOST:PORT; default: none, whatever http_proxy says"
    return option("--flight-proxy URL", text)


def where(text: str, **settings: Any) -> Callable[[Any], Any]:
    return together(
        argument("where WHERE", text, LOCATION, **settings),
        token_file("http(s)://HOST:PORT"),
        tls_ca("https://HOST:PORT"),
    )


as_json = flag("--json", "one JSON object")


# ── the queue that an operator names ──────────────────────────────────────────────────────────────


CALL_SECONDS_MAX = 10.0  # a gateway elsewhere may need this long for one answer
ELSEWHERE = ("grpc://", "grpc+tls://")  # of a queue on another machine


queue_options = together(
    argument(
        "directory QUEUE",
        "the queue's directory, or where a gateway serves it: grpc://HOST:PORT",
        LOCATION,
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
        if error.errno in OUTPUT_FULL and error.filename is None:
            raise
        raise QueueError(f"cannot read the queue {place}: {error}") from error


def open_output() -> TextIO:
    """Return standard output; ConfigurationError if it was closed before the start."""
    if sys.stdout is None:
        raise ConfigurationError(
            "standard output is closed: send it to a program or a file, or to /dev/null"
        )
    return sys.stdout


def opened(arguments: SimpleNamespace) -> Queue:
    """Return the queue that the arguments name; QueueError, one line, if there is none."""
    if arguments.directory.startswith(ELSEWHERE):
        from twisted_msgproto.spark.flight_client import FlightQueue

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
    """Return queues by their directories' names; "": one alone, or in the directory itself."""
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
