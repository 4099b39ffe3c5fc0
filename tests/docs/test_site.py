"""The built site: no warnings, no broken link, and every public name in the reference."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.reference import DIRECTORY, PACKAGES, file_of, home, pages, public
from tests.tools.processes import PROJECT, environment

BUILDERS = ("sphinx", "furo", "myst_nb")
missing = [name for name in BUILDERS if find_spec(name) is None]
built = pytest.mark.skipif(bool(missing), reason=f"./run installs what builds the site: {missing}")


@dataclass
class Page(HTMLParser):
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    headings: int = 0
    title: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if name in ("href", "src") and value and tag != "link":
                self.links.append(value)
        self.headings += tag == "h1"
        self.inside = tag

    def handle_data(self, data: str) -> None:
        if self.inside == "title":
            self.title += data.strip()
            self.inside = ""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Every page of the site, built once; AssertionError at the first warning."""
    target = tmp_path_factory.mktemp("site")
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    # Half of the work is what no test reads: contents within each page, those of the whole site,
    # which furo writes into each page, the index, and how quotes and defaults look.
    for setting in ("toc_object_entries=0", "html_theme=basic", "html_use_index=0",
                    "smartquotes=0", "autodoc_preserve_defaults=0"):  # fmt: skip
        words += ["-D", setting]
    places = ["-d", str(target / "doctrees"), str(PROJECT / "docs"), str(target / "html")]
    ended = subprocess.run(
        [sys.executable, *words, *places],
        cwd=PROJECT,
        env=environment(pandas=True),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    found = {}
    for file in sorted((target / "html").rglob("*.html")):
        page = Page()
        page.feed(file.read_text())
        found[file] = page
    return found


@built
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_it_is_built_without_a_warning_and_every_page_has_one_title(
    site: dict[Path, Page],
) -> None:
    sources = [page for page in (PROJECT / "docs").rglob("*.md") if "_build" not in page.parts]
    assert len(site) > len(sources)
    assert [file.name for file, page in site.items() if not page.title] == []
    made = {"py-modindex.html", "search.html"}
    assert [
        file.name for file, page in site.items() if page.headings != 1 and file.name not in made
    ] == []


@built
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_every_link_and_anchor_leads_somewhere(site: dict[Path, Page]) -> None:
    broken = []
    for file, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            lacks_anchor = anchor and target in site and anchor not in site[target].ids
            if not target.exists() or lacks_anchor:
                broken.append(f"{file.name}: {link}")
    assert sorted(set(broken)) == []


@built
@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_reference_has_every_public_name(site: dict[Path, Page]) -> None:
    for package in PACKAGES:
        (page,) = (
            page
            for file, page in site.items()
            if file.parts[-2:] == ("api", f"{file_of(package)}.html")
        )
        names = {name for name, value in public(package).items() if home(package, value) == package}
        assert names and {name for name in names if f"{package}.{name}" not in page.ids} == set()


def test_the_reference_has_a_page_for_each_public_package() -> None:
    for name, text in pages().items():
        assert (DIRECTORY / name).read_text() == text, "run python -m tests.docs.reference"
    assert {page.name for page in DIRECTORY.glob("*.md")} == set(pages())
