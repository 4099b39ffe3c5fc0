"""What is installed is found: by twistd, by the console, in an editable tree and from a wheel."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest
from twisted.application.service import IServiceMaker
from twisted.internet.interfaces import IStreamServerEndpointStringParser
from twisted.plugin import getPlugins

from twisted_msgproto import __version__
from twisted_msgproto.registry import PROTOCOLS

PROJECT = Path(__file__).parent.parent
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


def ours() -> dict[str, str]:
    return {
        maker.tapname: maker.module
        for maker in getPlugins(IServiceMaker)
        if maker.module.startswith("twisted_msgproto.")
    }


def test_twistd_finds_a_server_for_every_protocol_and_the_gateway() -> None:
    assert set(ours()) == {*PROTOCOLS, "msgproto"}


def test_twisted_finds_the_endpoint_parser_for_client_certificates() -> None:
    assert "mtls" in {parser.prefix for parser in getPlugins(IStreamServerEndpointStringParser)}


def test_every_plugin_names_a_module_that_exists() -> None:
    assert all(find_spec(module) for module in ours().values())


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


def test_the_extra_all_holds_every_extra_that_a_user_may_need() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    inner = extras["all"][0].partition("[")[2].rstrip("]").split(",")
    # A JRE and the tools of developers are not everybody's.
    assert set(inner) == set(extras) - {"all", "java", "dev", "docs"}


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


@pytest.mark.slow
def test_a_wheel_installed_elsewhere_brings_the_plugins(tmp_path: Path) -> None:
    """The wheel is the only thing on the path there: no working tree, no PYTHONPATH."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("twisted_msgproto", "twisted", *FILES):
        subprocess.run(["cp", "-r", str(PROJECT / name), str(source)], check=True)
    built = tmp_path / "wheel"
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--wheel-dir", str(built), str(source)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    # The dependencies come from this environment, the project from the wheel alone.
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "elsewhere")
    python = str(tmp_path / "elsewhere" / "bin" / "python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (wheel,) = built.glob("*.whl")
    subprocess.run([*PIP, "install", "--no-deps", "--target", site, str(wheel)], check=True)
    # A path file inside a path file's directory is not followed: an editable install of the working
    # tree stays out of sight.
    Path(site, "dependencies.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    told = subprocess.run(
        [python, "-m", "twisted", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert told.returncode == 0, told.stderr
    names = {line.split()[0] for line in told.stdout.splitlines() if line.strip()}
    assert {*PROTOCOLS, "msgproto"} <= names, told.stdout + told.stderr
    assert Path(site, "twisted_msgproto", "py.typed").exists()
    for name in ("page.html", "page.css", "page.js"):
        assert Path(site, "twisted_msgproto", "net", "status", name).exists()
    if shutil.which("cc") or shutil.which("gcc"):
        for place in ("core/_packed", "lumberjack/_scan"):
            assert list(Path(site, "twisted_msgproto").glob(f"{place}*.so"))
        assert "-abi3-" in wheel.name  # one wheel for every Python from 3.11 on


@pytest.mark.slow
def test_without_a_compiler_the_wheel_does_the_same_work_in_python(tmp_path: Path) -> None:
    """What cannot be built is left out, and ``import`` takes Python's form of it."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("twisted_msgproto", "twisted", *FILES):
        subprocess.run(["cp", "-r", str(PROJECT / name), str(source)], check=True)
    for built in (source / "twisted_msgproto").rglob("*.so"):
        built.unlink()
    wheels = tmp_path / "wheel"
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(source)],
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "CC": "/nowhere/cc"},
    )
    (wheel,) = wheels.glob("*.whl")
    site = tmp_path / "site"
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "from twisted_msgproto.core import packed\n"
            "from twisted_msgproto.lumberjack.wire import scan\n"
            "print(scan.__file__, scan.COMPILED, packed.COMPILED)",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert told.stdout.split() == [
        str(site / "twisted_msgproto/lumberjack/wire/scan.py"),
        "False",
        "False",
    ]
