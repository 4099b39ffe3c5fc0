"""What is installed is found: by twistd, by the console, in an editable tree and from a wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from twisted.application.service import IServiceMaker
from twisted.internet.interfaces import IStreamServerEndpointStringParser
from twisted.plugin import getPlugins

from twisted_msgproto import __version__
from twisted_msgproto.registry import PROTOCOLS

PROJECT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]

Test = TypeVar("Test", bound=Callable[..., None])

NEEDS_COMPILER = pytest.mark.skipif(
    not (shutil.which("cc") or shutil.which("gcc")),
    reason="no C compiler, for example of apt-get install gcc libc6-dev",
)


def ours() -> dict[str, str]:
    return {
        maker.tapname: maker.module
        for maker in getPlugins(IServiceMaker)
        if maker.module.startswith("twisted_msgproto.")
    }


def files_of_a_clone() -> set[str]:
    """What is in git; the tests of an unpacked sdist read the list that it has."""
    if (PROJECT / ".git").exists():
        git = ["git", "-C", str(PROJECT), "ls-files", "-z"]
        names = subprocess.run(git, check=True, capture_output=True).stdout.decode().split("\0")
    else:
        names = (PROJECT / "twisted_msgproto.egg-info" / "SOURCES.txt").read_text().splitlines()
        names = [name for name in names if name != "setup.cfg" and ".egg-info" not in name]
    return {name for name in names if (PROJECT / name).is_file()}


def test_twistd_finds_a_server_for_every_protocol_and_the_gateway() -> None:
    assert set(ours()) == {*PROTOCOLS, "msgproto"}


def test_twisted_finds_the_endpoint_parser_for_client_certificates() -> None:
    assert "mtls" in {parser.prefix for parser in getPlugins(IStreamServerEndpointStringParser)}


def test_the_extra_all_holds_every_extra_that_a_user_may_need() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    inner = extras["all"][0].partition("[")[2].rstrip("]").split(",")
    assert set(inner) == set(extras) - {"all", "java"}  # a JRE is not everybody's


def test_each_dependency_of_a_user_has_a_lower_bound() -> None:
    """Which packaging/lowest.sh tries."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
    assert [one for one in wanted if not re.search(r">=\d|^twisted-msgproto\[", one)] == []


def test_each_extra_that_is_named_anywhere_exists() -> None:
    """In pages, messages, units and images: ``twisted-msgproto[…]`` and ``.[…]``."""
    text = (PROJECT / "pyproject.toml").read_text()
    extras = set(tomllib.loads(text)["project"]["optional-dependencies"])
    named = {
        (name, extra)
        for name in files_of_a_clone()
        if Path(name).suffix in {".py", ".md", ".toml", ".yaml", ".ipynb", ""}
        for words in re.findall(
            r"(?:twisted[-_]msgproto|'\.|\"\.)\[([a-z,]+)\]",
            (PROJECT / name).read_text(errors="replace"),
        )
        for extra in words.split(",")
    }
    assert len({extra for _, extra in named}) > 5
    assert {one for one in named if one[1] not in extras} == set()


def test_a_python_without_the_stable_abi_can_make_a_wheel_too() -> None:
    """Free-threaded Pythons refuse a wheel which is said to be for every Python."""
    pytest.importorskip("setuptools", minversion="75")
    code = (
        "import sys, sysconfig\n"
        "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = int(sys.argv[1])\n"
        "from setuptools import Distribution\n"
        "from distutils.core import run_setup\n"
        "wheel = run_setup('setup.py', [], 'init').get_command_obj('bdist_wheel')\n"
        "wheel.ensure_finalized()\n"
        "print(wheel.py_limited_api)\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code, disabled],
            cwd=PROJECT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for disabled in "01"
    ]
    assert said == ["cp311", "False"]


# -- releases --------------------------------------------------------------------------------------


@dataclass
class Releases:
    """What ``packaging/release.py`` built: from the files that are in git, without a network."""

    sdist: Path
    compiled: Path
    pure: Path


@dataclass
class Installed:
    """A virtual environment with one of them; the dependencies come from the one that runs this."""

    python: Path
    site: Path
    compiled: bool

    def run(self, *command: str | Path) -> str:
        """What a command of this environment prints; it must succeed."""
        home = str(self.python.parent.parent)
        done = subprocess.run(
            [str(word) for word in command],
            cwd=home,
            capture_output=True,
            text=True,
            env={"PATH": f"{self.python.parent}:/usr/bin:/bin", "HOME": home},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


BUILT = ("twisted/plugins/dropin.cache", "clients/js/node_modules/ws/index.js")
BUILT += ("docs/_build/a.html", "tests/__pycache__/a.pyc", ".venv/bin/python")
BUILT += ("twisted_msgproto/core/_packed.abi3.so",)


def copy_of_the_source(source: Path) -> Path:
    """The tree as a clone has it, and files which it gets in use."""
    for name in files_of_a_clone():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, source / name)
    for name in BUILT:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"of a developer")
    return source


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    directory = tmp_path_factory.mktemp("release")
    source = copy_of_the_source(directory / "source")
    script = PROJECT / "packaging" / "release.py"
    words = [directory / "dist", "--source", source, "--no-isolation", "--unchecked"]
    done = subprocess.run(
        [sys.executable, str(script), *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    made = {
        path.name.removeprefix(f"twisted_msgproto-{__version__}"): path
        for path in map(Path, done.stdout.split())
    }
    (compiled,) = [path for name, path in made.items() if name.startswith("-cp311-abi3-")]
    assert len(made) == 3
    return Releases(made[".tar.gz"], compiled, made["-py3-none-any.whl"])


@pytest.fixture(scope="module", params=["compiled", pytest.param("pure", marks=pytest.mark.long)])
def installed(
    request: pytest.FixtureRequest,
    releases: Releases,
    tmp_path_factory: pytest.TempPathFactory,
) -> Installed:
    python, site = environment_at(tmp_path_factory.mktemp("elsewhere"))
    words = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile"]
    wanted = getattr(releases, request.param)
    subprocess.run([*pip_for(python), "install", *words, str(wanted)], check=True)
    return Installed(python, site, request.param != "pure")


def environment_at(home: Path) -> tuple[Path, Path]:
    venv.EnvBuilder(with_pip=False, symlinks=True).create(home)
    site = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # A path file inside a path file's directory is not followed: an editable install of the
    # working tree stays out of sight.
    link = site / "dependencies.pth"
    link.write_text(f"{Path(pytest.__file__).parent.parent}\n")
    return home / "bin" / "python", site


def pip_for(python: Path) -> list[str]:
    """Our pip, told to install for the other Python."""
    return [*PIP, "--python", str(python)]


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def of_releases(test: Test) -> Test:
    for mark in (NEEDS_COMPILER, pytest.mark.slow, pytest.mark.xdist_group("packaging")):
        test = mark(test)
    return test


@of_releases
def test_a_wheel_has_the_files_of_the_tree_and_no_others(releases: Releases) -> None:
    ours = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "twisted_msgproto").rglob("*")
        if path.is_file() and path.suffix not in (".c", ".so", ".pyc")
    } | {f"twisted/plugins/{path.name}" for path in (PROJECT / "twisted/plugins").glob("*.py")}
    assert names_in(releases.pure) == ours
    assert names_in(releases.compiled) - ours == {
        "twisted_msgproto/core/_packed.abi3.so",
        "twisted_msgproto/lumberjack/_scan.abi3.so",
    }
    assert ours <= names_in(releases.compiled)


@of_releases
def test_an_sdist_has_all_that_a_clone_has(releases: Releases) -> None:
    """Tests and pages, too."""
    with tarfile.open(releases.sdist) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
    assert files_of_a_clone() <= set(files)
    added = {name for name in files if ".egg-info" not in name} - files_of_a_clone()
    assert added == {"PKG-INFO", "setup.cfg"}


@of_releases
def test_what_an_index_shows_links_to_no_file(releases: Releases) -> None:
    with zipfile.ZipFile(releases.pure) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        headers, _, shown = wheel.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in headers
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|srcset|href)=\"([^\"]*)", shown)
    assert targets and [one for pair in targets for one in pair if one and "://" not in one] == []
    assert "pip install twisted-msgproto" in shown


@of_releases
def test_the_console_script_says_its_version(installed: Installed) -> None:
    told = installed.run(installed.python.parent / "msgproto", "--version")
    assert told == f"msgproto {__version__}\n"


@of_releases
def test_everything_comes_from_there_and_doctor_knows_whether_it_is_compiled(
    installed: Installed,
) -> None:
    code = (
        "import twisted_msgproto, twisted_msgproto.core.packed as packed,"
        " twisted_msgproto.lumberjack.wire.frames as frames\n"
        "from twisted_msgproto.cli.doctor import compiled_parts\n"
        "found = compiled_parts()\n"
        "print(twisted_msgproto.__file__, packed.COMPILED, frames.COMPILED)\n"
        "print(found.state, found.text)"
    )
    place, *compiled, told = installed.run(installed.python, "-c", code).split(maxsplit=3)
    assert Path(place) == installed.site / "twisted_msgproto" / "__init__.py"
    assert compiled == [str(installed.compiled)] * 2
    assert told.startswith("ok in use" if installed.compiled else "note not built: "), told


@of_releases
def test_twistd_lists_the_plugins_with_and_without_a_cache(installed: Installed) -> None:
    """Twisted makes its cache at the first call, and does without where it may not write."""
    cache = installed.site / "twisted" / "plugins" / "dropin.cache"
    assert not cache.exists()
    lists_the_plugins(installed)
    assert cache.is_file(), "whoever may write there has it from the first call on"
    lists_the_plugins(installed)
    cache.unlink()
    cache.mkdir()  # as good as a directory of another user, also for root
    lists_the_plugins(installed)
    cache.rmdir()


def lists_the_plugins(installed: Installed) -> None:
    code = "from twisted.scripts.twistd import run; run()"  # what the console script twistd does
    told = installed.run(installed.python, "-c", code, "--help")
    names = {line.split()[0] for line in told.splitlines() if line.strip()}
    assert {*PROTOCOLS, "msgproto"} <= names, told


@of_releases
def test_without_a_compiler_an_sdist_does_the_same_work_in_python(
    releases: Releases, tmp_path: Path
) -> None:
    """What cannot be built is left out, ``import`` takes Python's form of it, and doctor says so.

    Then its line is followed, with an index that has a wheel without compiled parts, too.
    """
    python, site = environment_at(tmp_path / "home")
    index = tmp_path / "index"
    index.mkdir()
    for file in (releases.sdist, releases.pure):
        shutil.copy(file, index)
    settings = {"NO_INDEX": "1", "FIND_LINKS": str(index), "NO_BUILD_ISOLATION": "0"}
    settings |= {"NO_CACHE_DIR": "0", "NO_COMPILE": "0"}  # "0" switches such an option on
    env = {**os.environ, **{f"PIP_{name}": value for name, value in settings.items()}}
    words = ["install", "--no-deps", str(releases.sdist)]
    without = {**env, "CC": "/nowhere/cc"}
    subprocess.run([*pip_for(python), *words], check=True, stdin=subprocess.DEVNULL, env=without)
    here = Installed(python, site, compiled=False)
    code = "from twisted_msgproto.lumberjack.wire import frames\nprint(frames.__file__)"
    told = here.run(python, "-c", code).strip()
    assert told == str(site / "twisted_msgproto/lumberjack/wire/frames.py")
    line = compiled_parts(here)["remedy"]
    assert line.startswith("install a C compiler, then pip install "), line
    subprocess.run([*pip_for(python), *line.partition(" pip ")[2].split()], check=True, env=env)
    assert compiled_parts(here)["text"] == "in use"


def compiled_parts(here: Installed) -> dict[str, str]:
    """What doctor says of them in an environment of its own."""
    told = here.run(here.python, "-m", "twisted_msgproto", "doctor", "--json")
    [found] = [one for one in json.loads(told) if one["subject"] == "compiled parts"]
    return dict(found)
