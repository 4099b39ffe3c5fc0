"""``--help`` is a page that people can read: what it is, the options, and the limits as a table."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping
from inspect import cleandoc

from twisted.python import usage

from ..core.limits import Limit, amount

WIDTH_LEAST = 40
"""Text has at least this many columns; a narrower terminal breaks the lines itself."""

WIDTH_MOST = 100

INDENT = "  "


def terminal_width() -> int:
    return max(WIDTH_LEAST, min(shutil.get_terminal_size().columns, WIDTH_MOST))


def paragraphs(text: str, width: int) -> str:
    """Return ``text`` with every paragraph filled to ``width`` columns.

    Indented paragraphs, as an example is one, stay as they are; so do ``::`` and words with hyphens
    (each is a name).
    """
    filled = []
    for paragraph in cleandoc(text).split("\n\n"):
        if paragraph.startswith(" "):
            filled.append(paragraph)
        else:
            plain = " ".join(paragraph.split()).replace("``", "")
            filled.append(_wrapped(plain[:-1] if plain.endswith("::") else plain, width))
    return "\n\n".join(filled)


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        text,
        width,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def limits_table(title: str, limits: Iterable[Limit], width: int) -> str:
    rows = [(limit.name, amount(limit.default, limit.unit), limit.reason) for limit in limits]
    name_width = max(len(name) for name, _, _ in rows)
    default_width = max(len(default) for _, default, _ in rows)
    begin = len(INDENT) + name_width + len(INDENT) + default_width + len(INDENT)
    lines = [title]
    for name, default, reason in rows:
        start = f"{INDENT}{name:<{name_width}}{INDENT}{default:>{default_width}}{INDENT}"
        if width - begin >= WIDTH_LEAST // 2:
            lines.append(_wrapped(start + reason, width, " " * begin))
        else:
            lines += [start.rstrip(), _wrapped(INDENT * 2 + reason, width, INDENT * 2)]
    return "\n".join(lines)


class LegibleOptions(usage.Options):
    """Options whose ``--help`` says what they are for, in paragraphs, before it lists them.

    Twisted makes one paragraph of everything that is not an option, and breaks names at hyphens.
    """

    longdesc = ""  # Twisted would take the main program's

    def getDescription(self) -> str:
        return cleandoc(type(self).__doc__ or "")

    def parseArgs(self, *words: str) -> None:
        if words:
            raise usage.UsageError(f"{words[0]!r} belongs to no option; --help lists the options")

    def getTables(self, width: int) -> list[str]:
        return []

    def getUsage(self, width: int | None = None) -> str:
        width = terminal_width() if width is None else width
        options = super().getUsage(width).rstrip()
        parts = [paragraphs(self.getDescription(), width), options, *self.getTables(width)]
        return "\n" + "\n\n".join(parts) + "\n"


Tables = Mapping[str, Iterable[Limit]]


def limits_tables(tables: Tables, width: int) -> list[str]:
    shown = {title: list(limits) for title, limits in tables.items()}
    return [limits_table(title, limits, width) for title, limits in shown.items() if limits]
