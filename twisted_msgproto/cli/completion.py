"""Print a script that completes the words of ``msgproto`` in bash, zsh or fish.

  bash   msgproto completion bash > ~/.local/share/bash-completion/completions/msgproto
  zsh    msgproto completion zsh > ~/.zfunc/_msgproto      (a directory of $fpath)
  fish   msgproto completion fish > ~/.config/fish/completions/msgproto.fish

It is made of the options that this installation has; make it again after an update.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from twisted_msgproto import registry

SUMMARY = "print a script for bash, zsh or fish that completes sub-commands and options"

FILES: Final = re.compile(r"DIR|FILE|LOCATION|QUEUE|WHERE")
"""A value whose name has one of these words is completed as a path."""

PROTOCOL: Final = re.compile(r"PROTOCOL")
"""A value with this in its name is one of the protocols that are installed."""


@dataclass(frozen=True)
class Value:
    words: tuple[str, ...] = ()
    path: bool = False


@dataclass
class Place:
    """The words that may follow those of ``at``, such as ``/queue/tail``.

    Attributes:
        at: sub-command and action, each after a slash; empty for ``msgproto`` alone.
        options: each option's spellings, its value (None: it has none) and its help.
        children: names of sub-commands or actions, with their help.
        value: what the other words are.
    """

    at: str
    options: list[tuple[tuple[str, ...], Value | None, str]] = field(default_factory=list)
    children: Mapping[str, str] = field(default_factory=dict)
    value: Value = Value()

    @property
    def flags(self) -> list[str]:
        return [flag for flags, _, _ in self.options for flag in flags]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SHELLS), help="whose script to print")


def run(arguments: argparse.Namespace) -> int:
    for line in SHELLS[arguments.shell](list(places())):
        print(line)
    return 0


# ── what there is ───────────────────────────────────────────────────────────────────────────────


def places() -> Iterator[Place]:
    """Yield every place of the command line; sub-commands that lack a package are left out."""
    from . import available, load

    summaries = {}
    found: list[Place] = []
    for name in available():
        parser = argparse.ArgumentParser(prog=f"msgproto {name}")
        try:
            module = load(name)
            module.configure(parser)
        except ModuleNotFoundError:
            continue
        summaries[name] = module.SUMMARY
        found += _below(f"/{name}", parser)
    version = (("--version",), None, "print the version")
    yield Place("", [_HELP, version], summaries)
    yield from found


_HELP: Final = (("-h", "--help"), None, "show help")


def _below(at: str, parser: argparse.ArgumentParser) -> Iterator[Place]:
    place = Place(at, [_HELP])
    inner: Mapping[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            inner = action.choices
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            place.children = {name: helps.get(name, "") for name in inner}
        elif action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        elif action.option_strings:
            value = None if action.nargs == 0 else _value(action)
            place.options.append((tuple(action.option_strings), value, action.help or ""))
        else:
            known = _value(action)
            words = (*place.value.words, *known.words)
            place.value = Value(words, place.value.path or known.path)
    yield place
    for name, child in inner.items():
        yield from _below(f"{at}/{name}", child)


def _value(action: argparse.Action) -> Value:
    if action.choices is not None:
        return Value(tuple(map(str, action.choices)))
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    name = (metavar or action.dest).upper()
    if PROTOCOL.search(name) or action.dest == "protocol":
        return Value(tuple(registry.known()))
    return Value(path=FILES.search(name) is not None)


# ── scripts ─────────────────────────────────────────────────────────────────────────────────────


def bash(found: list[Place]) -> Iterator[str]:
    """Yield the lines of bash's script; it runs in bash 3.2, too."""
    yield "# Completion of msgproto for bash; made by: msgproto completion bash"
    yield "_msgproto() {"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at= i"
    yield "    local flags= values= files= IFS=$' \\t\\n'"
    yield "    COMPREPLY=()"
    yield "    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then"
    yield "        prev=${COMP_WORDS[COMP_CWORD-2]}"
    yield "    fi"
    yield from _arriving(found, 1, "COMP_CWORD", "COMP_WORDS")
    for which, value in _valued(found):
        files = "1" if value.path else "''"
        words = _quoted(" ".join(value.words))
        yield f"        {which}) _msgproto_words {words} {files}; return ;;"
    yield "    esac"
    yield '    case "$at" in'
    for place in found:
        words = _quoted(" ".join((*place.children, *place.value.words)))
        files = "1" if place.value.path else ""
        spelled = _quoted(" ".join(place.flags))
        yield f"        {_quoted(place.at)}) flags={spelled} values={words} files={files} ;;"
    yield "    esac"
    yield '    if [[ $cur == -* ]]; then _msgproto_words "$flags" ""'
    yield '    else _msgproto_words "$values" "$files"; fi'
    yield "}"
    yield "_msgproto_words() {  # words, and whether paths are meant; cur is the caller's"
    yield '    COMPREPLY=($(compgen -W "$1" -- "$cur"))'
    yield "    if [[ -n $2 ]]; then"
    yield "        local IFS=$'\\n'"
    yield "        compopt -o filenames 2>/dev/null"
    yield '        COMPREPLY+=($(compgen -f -- "$cur"))'
    yield "    fi"
    yield "}"
    yield "complete -F _msgproto msgproto"


def zsh(found: list[Place]) -> Iterator[str]:
    """Yield the lines of zsh's script; it can be sourced, or stand in a directory of ``$fpath``."""
    yield "#compdef msgproto"
    yield "# Completion of msgproto for zsh; made by: msgproto completion zsh"
    yield "_msgproto() {"
    yield "    local at= i prev=${words[CURRENT-1]} files="
    yield "    local -a flags values"
    yield from _arriving(found, 2, "CURRENT", "words")
    for which, value in _valued(found):
        does = "_files" if value.path else f"compadd -- {' '.join(value.words)}"
        yield f"        {which}) {does if value.path or value.words else ':'}; return ;;"
    yield "    esac"
    yield '    case "$at" in'
    for place in found:
        described = [(flag, text) for flags, _, text in place.options for flag in flags]
        values = [*place.children.items(), *((word, "") for word in place.value.words)]
        yield f"        {_quoted(place.at)})"
        yield f"            flags=({_described(described)})"
        yield f"            values=({_described(values)})"
        yield f"            files={'1' if place.value.path else ''} ;;"
    yield "    esac"
    yield "    if [[ $PREFIX == -* ]]; then _describe option flags; return; fi"
    yield "    [[ ${#values} -gt 0 ]] && _describe word values"
    yield "    [[ -n $files ]] && _files"
    yield "}"
    yield "if [[ $funcstack[1] == _msgproto ]]; then"
    yield '    _msgproto "$@"'
    yield "else"
    yield "    compdef _msgproto msgproto"
    yield "fi"


def fish(found: list[Place]) -> Iterator[str]:
    yield "# Completion of msgproto for fish; made by: msgproto completion fish"
    yield "function __msgproto_at"
    yield "    set -l at ''"
    yield "    for word in (commandline -opc)[2..-1]"
    yield "        switch $at/$word"
    yield f"            case {' '.join(_quoted(place.at) for place in found if place.at)}"
    yield "                set at $at/$word"
    yield "        end"
    yield "    end"
    yield '    test "$at" = "$argv[1]"'
    yield "end"
    yield "complete -c msgproto -f"
    for place in found:
        here = f"complete -c msgproto -n \"__msgproto_at '{place.at}'\""
        for name, text in place.children.items():
            yield f"{here} -a {_quoted(name)} -d {_quoted(_short(text))}"
        if place.value.words:
            yield f"{here} -a {_quoted(' '.join(place.value.words))}"
        if place.value.path:
            yield f"{here} -F"
        for flags, value, text in place.options:
            spelled = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in flags
            )
            takes = ""
            if value is not None:
                takes = " -r -F" if value.path else f" -x -a {_quoted(' '.join(value.words))}"
            yield f"{here} {spelled}{takes} -d {_quoted(_short(text))}"


def _arriving(found: list[Place], first: int, end: str, words: str) -> Iterator[str]:
    """Yield what bash and zsh have alike: find the place, then ask whether an option wants a value.

    The array ``words`` has the command line's words from ``first`` to before ``end``.
    """
    yield f"    for ((i = {first}; i < {end}; i++)); do"
    yield f'        case "$at/${{{words}[i]}}" in'
    known = "|".join(_quoted(place.at) for place in found if place.at)
    yield f"            {known}) at=$at/${{{words}[i]}} ;;"
    yield "        esac"
    yield "    done"
    yield '    case "$at:$prev" in'


def _valued(found: list[Place]) -> Iterator[tuple[str, Value]]:
    for place in found:
        for flags, value, _ in place.options:
            if value is not None:
                yield "|".join(_quoted(f"{place.at}:{flag}") for flag in flags), value


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _short(text: str) -> str:
    return " ".join(text.replace("%%", "%").split()).replace("\\", "")


def _described(pairs: list[tuple[str, str]]) -> str:
    lines = [f"{name}:{_short(text)}" if text else name for name, text in pairs]
    return " ".join(_quoted(line) for line in lines)


SHELLS: Final[Mapping[str, Callable[[list[Place]], Iterator[str]]]] = {
    "bash": bash,
    "fish": fish,
    "zsh": zsh,
}
"""Each shell's script is made by one of these."""
