"""Sphinx's settings: ``./run docs`` writes HTML to docs/_build/html."""

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]

project = "twisted_msgproto"
author = "the authors of twisted_msgproto"
copyright = "the authors of twisted_msgproto, MIT licence"
version = release = _PROJECT["version"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Diagrams are Mermaid texts, drawn from the transition tables; without a drawing extension they
# are shown as they are.  The page of the status server and others link to files of the tree.
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure", "toc.empty_glob"]

html_theme = "furo"
html_title = "twisted_msgproto"
