"""Writes the pages of the API reference: ``python -m tests.docs.reference``.

A page shows what a package's ``__all__`` names; Sphinx takes the text from the docstrings.  It does
not know interfaces, so that these are written out here.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

from zope.interface.interface import InterfaceClass, Method

DIRECTORY = Path(__file__).parent.parent.parent / "docs" / "api"

PACKAGES = {
    "twisted_msgproto": "Messages and interfaces",
    "twisted_msgproto.lumberjack": "Lumberjack",
    "twisted_msgproto.micromsg2": "MicroMsg2",
    "twisted_msgproto.sabc": "sABC",
    "twisted_msgproto.umq": "UMQ",
    "twisted_msgproto.mtl": "MTL",
    "twisted_msgproto.lumberjack.machine": "Lumberjack's machines",
    "twisted_msgproto.micromsg2.machine": "MicroMsg2's machines",
    "twisted_msgproto.sabc.machine": "sABC's machines",
    "twisted_msgproto.umq.machine": "UMQ's machines",
    "twisted_msgproto.mtl.machine": "MTL's machines",
    "twisted_msgproto.net": "Servers, sessions and sinks",
    "twisted_msgproto.core.errors": "Exceptions",
    "twisted_msgproto.queue": "The queue",
    "twisted_msgproto.spark": "Spark",
    "twisted_msgproto.spark.views": "Views for Spark",
    "twisted_msgproto.testing": "For your tests",
    "twisted_msgproto.extend": "For a protocol of your own",
}
"""The public packages and their pages' titles."""

INDEX = """\
# API reference

These pages are made from the docstrings. They show the public names: those that the `__all__` of a
package lists, or, where there is none, those without an underscore. Everything else may change in
any release. In a source tree they are empty until `./run docs` makes the site; `python -m pydoc
twisted_msgproto.mtl.CurveServer` shows the same of one name.

| package | what it has |
|---|---|
"""


ELSEWHERE = {
    "twisted_msgproto": ["twisted_msgproto.net"],
    "twisted_msgproto.sabc": ["twisted_msgproto.sabc.machine"],
    "twisted_msgproto.extend": [
        "twisted_msgproto.core.errors",
        "twisted_msgproto.net",
        "twisted_msgproto",
    ],
}
"""What these name stands on the pages of others, if those have it."""


def file_of(package: str) -> str:
    return package.removeprefix("twisted_msgproto.").replace(".", "-")


def public(package: str) -> dict[str, object]:
    """Return the public names of a package, in the order of their page, and what they name."""
    module = importlib.import_module(package)
    own = (name for name, value in vars(module).items() if is_defined_in(value, package))
    names = getattr(module, "__all__", None) or [name for name in own if name[0] != "_"]
    return {name: getattr(module, name) for name in names if name != "__version__"}


def is_defined_in(value: object, package: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == package


def home(package: str, value: object) -> str:
    """Return the package on whose page ``value``, which ``package`` names, stands."""
    for other in ELSEWHERE.get(package, ()):
        if any(value is one for one in public(other).values()):
            return other
    return package


def directive(package: str, name: str, value: object) -> Iterator[str]:
    full = f"{package}.{name}"
    match value:
        case InterfaceClass():
            yield from interface(package, name, value)
        case type() if issubclass(value, BaseException):
            yield f".. autoexception:: {full}"
        case type():
            yield f".. autoclass:: {full}"
        case _ if inspect.isroutine(value):
            yield f".. autofunction:: {full}"
        case _:
            yield from [f".. autodata:: {full}", "   :no-value:"]


def interface(package: str, name: str, shown: InterfaceClass) -> Iterator[str]:
    """Yield the lines that show an interface, its methods and its attributes."""
    yield from [f".. py:class:: {name}", f"   :module: {package}", ""]
    yield from indented(shown.__doc__)
    for member, described in shown.namesAndDescriptions():
        method = isinstance(described, Method)
        signature = described.getSignatureString() if method else ""
        yield from ["", f"   .. py:{'method' if method else 'attribute'}:: {member}{signature}", ""]
        yield from indented(described.__doc__, 6)


def indented(docstring: str | None, spaces: int = 3) -> list[str]:
    lines = inspect.cleandoc(docstring or "").splitlines()
    return [f"{' ' * spaces}{line}".rstrip() for line in lines]


def page(package: str, title: str) -> str:
    lines = [f"# {title}: `{package}`", "", "```{eval-rst}"]
    lines += [f".. automodule:: {package}", "   :no-members:"]
    for name, value in public(package).items():
        if home(package, value) == package:
            lines += ["", *directive(package, name, value)]
    lines += ["```"]
    for other in ELSEWHERE.get(package, ()):
        names = [name for name, value in public(package).items() if home(package, value) == other]
        if names:
            told = ", ".join(f"`{name}`" for name in names)
            lines += ["", f"{told}: see [`{other}`]({file_of(other)}.md)."]
    return "\n".join(lines) + "\n"


def index() -> str:
    rows = [
        f"| [`{package}`]({file_of(package)}.md) | {title} |" for package, title in PACKAGES.items()
    ]
    files = [file_of(package) for package in PACKAGES]
    toctree = ["```{toctree}", ":hidden:", ":maxdepth: 1", "", *files, "```"]
    return INDEX + "\n".join([*rows, "", *toctree]) + "\n"


def pages() -> dict[str, str]:
    found = {f"{file_of(package)}.md": page(package, title) for package, title in PACKAGES.items()}
    return {"index.md": index(), **found}


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in pages().items():
        (DIRECTORY / name).write_text(text)
