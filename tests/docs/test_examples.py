"""The examples of the documents run: a reader who copies one gets what the page says.

* ```` ```python ```` blocks of a page run one after another, in one fresh process; what follows a
  block that runs the reactor is a program of its own, because a reactor runs once.  ``mypy
  --strict`` and pyright accept each, without the plugin for zope.interface.
* ```` ```py ```` blocks are fragments (they need a Spark session, say): their grammar is checked.
* A ```` ```toml ```` block whose first line is ``# NAME`` is the file NAME of the page's directory.
* In ```` ```console ```` blocks each ``$ COMMAND`` runs there, its output is compared; a line with
  ``…`` alone stands for any number of lines, a ``…`` inside a line for any text.  The page's
  ```` ```python ```` blocks, if it has any, ran in that directory before.
* ```` ```sh ```` blocks are for people: they name hosts and run for ever.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest

from tests.tools.processes import Launcher, environment
from twisted_msgproto.cli import demo
from twisted_msgproto.registry import PROTOCOLS
from twisted_msgproto.spark.java import find_java

PROJECT = Path(__file__).parent.parent.parent
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
DATA_SOURCE = PROJECT / "docs" / "data-source.md"
"""Its examples need a Java: tests/spark/test_registration.py runs them, as a script of its own."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == kind]


def with_blocks(kind: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, kind)]


def programs(page: Path) -> list[str]:
    """The programs which a page's ``python`` blocks are."""
    found = [""]
    for block in blocks(page, "python"):
        found[-1] += block + "\n"
        if re.search(r"^(task\.)?react\(", block, re.MULTILINE):
            found.append("")
    return list(filter(None, found))


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def matches(told: list[str], shown: list[str]) -> bool:
    if not shown:
        return not told
    if shown[0] == "…":
        return any(matches(told[skipped:], shown[1:]) for skipped in range(len(told) + 1))
    return bool(told) and line_matches(told[0], shown[0]) and matches(told[1:], shown[1:])


def line_matches(told: str, shown: str) -> bool:
    return re.fullmatch(".+".join(map(re.escape, shown.split("…"))), told) is not None


def marked(page: Path) -> Any:
    """The page, in the group of the pages that start a Spark of their own if it does."""
    marks = [pytest.mark.xdist_group("pages")] if "pyspark" in "".join(programs(page)) else []
    return pytest.param(page, marks=marks, id=name_of(page))


@pytest.mark.parametrize(
    "page", [marked(page) for page in with_blocks("python") if page != DATA_SOURCE]
)
def test_python_examples_run(launch: Launcher, page: Path) -> None:
    for program in programs(page):
        java = {"JAVA_HOME": str(find_java().home)} if "pyspark" in program else {}
        env = environment(pandas="pandas" in program, **java)
        command = [sys.executable, "-W", "error::RuntimeWarning", "-c", program]
        ended = launch.command(command, env=env)
        assert ended.wait(seconds=600) == 0, ended.output


BY_ARROW = {"to_pandas", "to_pyarrow_dataset", "to_pyarrow_table"}
"""delta-rs's calls with which threads of Arrow read, that end after the interpreter's end."""


def readings() -> Iterator[tuple[str, str]]:
    """Yield each way to read a table without Spark that a page or the demo advises: its place, and
    the program of who copies the page until there, and no further.
    """
    for page in with_blocks("python"):
        program = ""
        for block in blocks(page, "python"):
            if re.search("spark|views", block):
                continue
            program += block
            if "deltalake" in program and "assert" in block:
                yield f"{name_of(page)}, {block.splitlines()[0]}", program
    written = blocks(PROJECT / "docs" / "reading-the-table.md", "python")[0]
    line = demo.reading(Path("LOCATION")).replace("'LOCATION'", "location")
    yield "demo", f"{written}\n{line}\n"


READINGS = dict(readings())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("place", READINGS)
def test_what_is_advised_for_reading_a_table_ends_in_peace_20_times__RD_41(
    tmp_path: Path, place: str
) -> None:
    """RD-41: the right result, and then now and then SIGABRT as the interpreter ended."""

    def read(_: int) -> tuple[int, str]:
        command = [sys.executable, "-c", READINGS[place]]
        env = environment(pandas=True, TMPDIR=str(tmp_path))
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert place != "demo" or re.search("lumberjack.*json.*4", ended.stdout, re.DOTALL)
        return ended.returncode, ended.stderr

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(read, range(20))) == {(0, "")}


@pytest.mark.parametrize("place", READINGS)
def test_what_is_advised_gives_arrow_a_file_system_of_its_own(place: str) -> None:
    """RD-41: in 20 runs it may not be seen."""
    for node in ast.walk(ast.parse(READINGS[place])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = {keyword.arg for keyword in node.keywords}
            assert node.func.attr not in BY_ARROW or "filesystem" in given, ast.unparse(node)


TYPED = """
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint
from twisted.internet.ssl import optionsForClientTLS
from typing_extensions import assert_type

from twisted_msgproto import MessageBatch, lumberjack, micromsg2, mtl, sabc, umq
from twisted_msgproto.net import Access, Authoriser, MessageSink, Serving


class Sink:
    def put(self, batch: MessageBatch) -> Deferred[None]:
        return succeed(None)


class Rules:
    def allows(self, access: Access) -> bool:
        return True


class Own(sabc.SabcClient):
    def extra(self) -> int:
        return 1


def others(to: IStreamClientEndpoint, at: IStreamServerEndpoint) -> None:
    sabc.connect(to, tls=optionsForClientTLS("h"))
    sabc.SabcClientService(to, sabc.SabcClientFactory("me"))
    umq.connect("wss://h/", tls=optionsForClientTLS("h"), endpoint=to)
    sabc.serve([at, "tcp:0"], websocket=at)


async def main(limits: dict[str, int]) -> None:
    sink: MessageSink = Sink()
    rules: Authoriser = Rules()
    server = lumberjack.serve("tcp:0", sink=sink, limits={"drain": 1, "unsafe-bytes": "1MiB"})
    assert_type(server, Serving[lumberjack.LumberjackServerFactory])
    micromsg2.serve(["tcp:0"], authoriser=rules, brokerQueues=["jobs"])
    sabc.serve("tcp:0", websocket="tcp:0")
    umq.serve("tcp:0", limits=umq.UmqServerFactory.defaultLimits(limits))
    mtl.serve("tcp://127.0.0.1:*", insecure=True)
    async with server as serving, lumberjack.connect(serving.addresses[0]) as writer:
        assert_type(writer, lumberjack.LumberjackClient)
        await writer.send(b"{}")
    assert_type(await micromsg2.connect("tcp:h:1"), micromsg2.MicroMsg2Client)
    assert_type(await sabc.connect("tcp:h:1", client=Own), Own)
    assert_type(await umq.connect("ws://h/"), umq.UmqClient)
    assert_type(await mtl.connect("tcp://h:1", profile="queue"), mtl.MtlClient)
    lumberjack.serve("tcp:0", limits={"drian": 1})  # type: ignore[arg-type]
    lumberjack.serve("tcp:0", sink=object())  # type: ignore[arg-type]
    lumberjack.serve("tcp:0", nothing=1)  # type: ignore[call-arg]
"""
"""What the types of all five protocols' clients and servers are to a caller."""

FOLLOWED_BY_OTHERS = """[mypy-IPython.*,PIL.*,autobahn.wamp.*,matplotlib.*,numpy.*,\
prompt_toolkit.*,pydantic.*,pyspark.pandas.*,pyspark.sql.connect.*,pyspark.sql.streaming.proto.*,\
rich.*,sqlalchemy.*]
follow_imports = skip
"""
"""What only the imported packages import: half of mypy's work."""

CHECKERS = {
    "mypy": [
        "--strict",
        "--config-file=mypy.ini",
        "--cache-dir=cache",
        "--untyped-calls-exclude=twisted",
        "--disable-error-code=import-untyped",  # pyarrow, pandas and parts of Twisted
    ],
    "pyright": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", pytest.param("pyright", marks=pytest.mark.long)])
def test_type_checkers_accept_the_pages_and_examples(checker: str, tmp_path: Path) -> None:
    """As for somebody without mypy's plugin for zope.interface."""
    pytest.importorskip(checker, reason="./run long installs it")
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{FOLLOWED_BY_OTHERS}")
    (tmp_path / "typed.py").write_text(TYPED)
    for page in with_blocks("python"):
        for number, program in enumerate(programs(page)):
            name = f"{page.stem.lower().replace('-', '_')}_{number}.py"
            (tmp_path / name).write_text(program)
    for example in (PROJECT / "examples").glob("*/*.py"):
        copy(example, tmp_path / f"{example.parent.name}_{example.name}")
    copytree(PROJECT / "examples/lines/msgproto_lines", tmp_path / "msgproto_lines")
    ended = subprocess.run(
        [sys.executable, "-m", checker, *CHECKERS[checker], "."],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("page", with_blocks("py"), ids=name_of)
def test_fragments_are_python_and_import_what_exists(page: Path) -> None:
    for fragment in blocks(page, "py"):
        tree = ast.parse(fragment)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), name_of(page), "exec"), {})


@pytest.mark.parametrize("page", with_blocks("console"), ids=name_of)
def test_console_examples_print_what_the_page_shows(launch: Launcher, page: Path) -> None:
    for text in blocks(page, "toml"):
        if match := re.match(r"# ([\w.-]+)\n", text):
            (launch.directory / match[1]).write_text(text)
    if program := "\n".join(blocks(page, "python")):
        ended = launch.command([sys.executable, "-c", program])
        assert ended.wait() == 0, ended.output
    for text in blocks(page, "console"):
        for example in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *shown = example.rstrip("\n").split("\n")
            program, *words = shlex.split(command)
            assert program == "msgproto", f"what is {program}?"
            ended = launch.run(*words)
            assert ended.returncode == 0, ended.stderr
            told = ended.stdout.rstrip("\n").split("\n")
            assert matches(told, shown), f"{command}\n{ended.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_of_the_tree_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    targets += re.findall(r'\b(?:src|srcset)="([^"]+)"', re.sub(r"```.*?```", "", text, flags=re.S))
    missing = [
        target
        for target in targets
        if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
    ]
    assert missing == []


def test_the_readme_and_the_changelog_know_every_protocol() -> None:
    for protocol in PROTOCOLS.values():
        for name in ("README.md", "CHANGELOG.md"):
            assert protocol.title in (PROJECT / name).read_text()
        assert f"`{protocol.name}`" in (PROJECT / "README.md").read_text()


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = {
        str((page.parent / name).relative_to(PROJECT / "docs"))
        for page in (PROJECT / "docs/index.md", PROJECT / "docs/api/index.md")
        for name in re.findall(r"^([\w*/-]+)$", page.read_text(), re.MULTILINE)
    }
    for page in PAGES[1:]:
        name = str(page.relative_to(PROJECT / "docs").with_suffix(""))
        assert name == "index" or name in listed or f"{Path(name).parent}/*" in listed, name


PUBLIC = ("core.errors", "extend", "lumberjack", "micromsg2", "mtl", "net", "queue", "sabc")
PUBLIC += ("spark", "spark.views", "testing", "umq")
PUBLIC += tuple(f"{name}.machine" for name in ("lumberjack", "micromsg2", "mtl", "sabc", "umq"))
OF_THE_INSIDE = ("docs/interfaces.md", "docs/table.md")
"""These are about parts of the package, for those who add to it."""


def imported(text: str) -> Iterator[tuple[str, str]]:
    """Yield module and name of what a program imports from the package."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("twisted_msgproto"):
            yield from ((node.module or "", alias.name) for alias in node.names)


def is_public(module: str, name: str) -> bool:
    inner = module.partition(".")[2]
    if f"{inner}.{name}".lstrip(".") in PUBLIC:
        return True
    found = import_module(module)
    names = getattr(found, "__all__", [one for one in vars(found) if not one.startswith("_")])
    return (not inner or inner in PUBLIC) and name in names


PROGRAMS = [*with_blocks("python"), *with_blocks("py"), *(PROJECT / "examples").rglob("*.py")]


@pytest.mark.parametrize("page", sorted(set(PROGRAMS)), ids=name_of)
def test_whatever_an_example_imports_is_public(page: Path) -> None:
    if name_of(page).startswith(OF_THE_INSIDE):
        return
    written = [text for kind in ("python", "py") for text in blocks(page, kind)]
    if page.suffix == ".py":
        written = [page.read_text()]
    names = [one for text in written for one in imported(text)]
    assert [f"{module}.{name}" for module, name in names if not is_public(module, name)] == []
