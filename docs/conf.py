"""Sphinx's settings: ``./run docs`` writes HTML to docs/_build/html."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sphinx.util.inspect import stringify_signature

DOCS = Path(__file__).parent
sys.path.insert(0, os.fspath(DOCS.parent))

import twisted_msgproto  # noqa: E402 - from this tree

project = "twisted_msgproto"
author = "the authors of twisted_msgproto"
copyright = "the authors of twisted_msgproto, MIT licence"
version = release = twisted_msgproto.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # a test executes the notebook, and its outputs are kept in the file

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# The API reference: tests/docs/reference.py writes its pages.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True, "exclude-members": "__init__"}
python_maximum_signature_line_length = 80
add_module_names = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "twisted_msgproto"
html_static_path = ["_static"]
html_css_files = ["pages.css"]


class Something:
    """Stands for a default that has no text of its own."""

    def __repr__(self) -> str:
        return "…"


SOMETHING = Something()


def other_bases(app: Any, name: str, shown: object, options: Any, bases: list[Any]) -> None:
    """Leave out the base that every class has."""
    bases[:] = [base for base in bases if base is not object]


def without_fields(
    app: Any, what: str, name: str, shown: object, skip: bool, options: Any
) -> bool | None:
    """Leave out the fields of named tuples: the class describes them, their own text is empty."""
    return True if type(shown).__name__ == "_tuplegetter" else None


def plain_signature(
    app: Any, what: str, name: str, shown: Any, options: Any, given: str, returned: str
) -> tuple[str, str] | None:
    """Return a class's signature without private parameters and defaults that are objects."""
    if what != "class" or not given:
        return None
    try:
        signature = inspect.signature(shown)
    except (TypeError, ValueError):
        return None
    parameters = [
        parameter.replace(default=SOMETHING)
        if "<" in repr(parameter.default) and parameter.default is not parameter.empty
        else parameter
        for parameter in signature.parameters.values()
        if not parameter.name.startswith("_")
    ]
    plain = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return stringify_signature(plain, unqualified_typehints=True), ""


def outside(page: Path) -> Callable[[re.Match[str]], str]:
    """Return what replaces a link of ``page`` to a place of the tree outside docs.

    A file becomes a download.  A directory, which a site cannot show, becomes its text.
    """

    def replaced(link: re.Match[str]) -> str:
        text, target = link[1], (page.parent / link[2]).resolve()
        if target.is_relative_to(DOCS) or not target.exists():
            return link[0]
        return text if target.is_dir() else f"{text}(path:{link[2]})"

    return replaced


def link_outside(app: Any, name: str, content: list[str]) -> None:
    """Rewrite the links of a page that lead out of docs, and that repositories' sites follow."""
    page = Path(app.env.doc2path(name))
    if page.suffix == ".md":
        content[0] = re.sub(
            r"(\[[^\]]+\])\((\.\.[^)#\s]*)(?:#[^)\s]*)?\)", outside(page), content[0]
        )


def setup(app: Any) -> None:
    """Connect what autodoc and MyST lack."""
    app.connect("autodoc-skip-member", without_fields)
    app.connect("autodoc-process-bases", other_bases)
    app.connect("autodoc-process-signature", plain_signature)
    app.connect("source-read", link_outside)
