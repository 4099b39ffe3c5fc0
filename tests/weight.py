"""``python -m tests.weight``: how much there is of the product, its tests and its pages."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grimp

PROJECT = Path(__file__).parent.parent
PACKAGE = "twisted_msgproto"
ROOMS = "lumberjack micromsg2 sabc umq mtl net queue spark spark.views testing core.errors extend"
PUBLIC = {PACKAGE, *(f"{PACKAGE}.{room}" for room in ROOMS.split())}  # those of docs/api


def inner_names(file: Path, modules: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what a test imports from inner modules, with the module; not modules themselves."""
    for node in ast.walk(ast.parse(file.read_text())):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if module in modules - PUBLIC:
            names = [alias.name for alias in node.names]  # type: ignore[attr-defined]
            yield from ((module, name) for name in names if f"{module}.{name}" not in modules)


def lines(files: list[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


def main() -> None:
    git = ["git", "-C", str(PROJECT), "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(git, check=True, capture_output=True, text=True).stdout.splitlines()
    files = [Path(PROJECT, name) for name in sorted(set(names)) if Path(PROJECT, name).is_file()]
    below = {top: [f for f in files if PROJECT / top in f.parents] for top in (PACKAGE, "tests")}
    product = [file for file in below[PACKAGE] if file.suffix in (".py", ".c")]
    python = [file for file in below["tests"] if file.suffix == ".py"]
    other = [f for f in below["tests"] if f not in python and b"\0" not in f.read_bytes()]
    pages = [file for file in files if PROJECT / "docs" in file.parents and file.suffix == ".md"]
    texts = [re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL) for page in pages]
    limits = set(re.findall(r"^\| `([a-z-]+)`", (PROJECT / "docs/limits.md").read_text(), re.M))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)  # with those in functions and for types
    inner = {name for file in python for name in inner_names(file, graph.modules)}
    mutual = {one: graph.find_upstream_modules(one) for one in graph.modules}
    circles = {frozenset(b for b in mutual[a] if a in mutual[b]) | {a} for a in mutual}
    circles = {circle for circle in circles if len(circle) > 1}
    print(f"product, Python and C {lines(product):7,} lines in {len(product)} files")
    print(f"tests, Python         {lines(python):7,} lines in {len(python)} files")
    print(f"tests, other text     {lines(other):7,} lines in {len(other)} files")
    print(
        f"inner names in tests  {len({n for _, n in inner}):7,}, {len(inner):,} with their modules"
    )
    print(f"pages                 {len(pages):7,}, {sum(len(t.split()) for t in texts):,} words")
    print(f"limits                {len(limits):7,}")
    print(f"import circles        {len(circles):7,} of {sum(map(len, circles))} modules")
    for file in sorted(product, key=lambda one: -lines([one]))[:8]:
        print(f"{lines([file]):29,} {file.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
