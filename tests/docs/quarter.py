"""Runs the quick start as it is written: ``python -m tests.docs.quarter`` keeps what came of it.

It copies the tree, runs every command of ``docs/quick-start.md`` in the copy, and puts the
executed notebook's outputs into ``docs/first-chart.ipynb`` and its chart into
``docs/first-chart.png``.  With ``--index`` pip installs the dependencies from its index, as it does
for a reader; otherwise they are those of this Python.  It prints the seconds of each command.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.docs.shell import Command, Terminal, commands
from tests.tools.processes import PROJECT, START_SECONDS, environment, launching

PAGE = PROJECT / "docs" / "quick-start.md"
NOTEBOOK = PROJECT / "docs" / "first-chart.ipynb"
CHART = PROJECT / "docs" / "first-chart.png"
CLONED = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "twisted", "twisted_msgproto",
          "examples", "docs")  # fmt: skip
PORT = "5044"
INSTALLING = ("python3 -m venv ", ". first/venv/", "pip install ")
"""How the commands of the page begin which make an environment, enter it, and install into it."""


def clone(directory: Path) -> None:
    """Copy what a clone of the repository has and the page needs."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "_build", "*.egg-info", "dropin.cache")
    for name in CLONED:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, directory / name, ignore=ignored)
        else:
            shutil.copy(PROJECT / name, directory)


def dependencies_from_here(venv: Path) -> None:
    """Let a virtual environment find what this Python has installed beside this tree."""
    (site,) = venv.glob("lib/python3*/site-packages")
    here = [path for path in sys.path if path.endswith("-packages")]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in here))


KERNEL = {"NbClientApp": {"startup_timeout": int(START_SECONDS)}}
"""Jupyter's own 60 s may not do on a busy machine."""


def clean_environment(home: Path) -> dict[str, str]:
    """The environment of a reader: no PYTHONPATH, and programs of this Python are found.

    Jupyter keeps its files below ``home``.
    """
    (home / "jupyter").mkdir()
    (home / "jupyter" / "jupyter_config.json").write_text(json.dumps(KERNEL))
    places = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    env = environment(**{name: str(home / "jupyter") for name in places})
    for name in ("PYTHONPATH", "MPLBACKEND"):
        env.pop(name, None)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    return env


class Quarter:
    """The quick start in a directory of its own; the page's commands, run one by one.

    What differs from the page: the gateway listens on free ports, and shippers are told which;
    and unless ``index`` is true, dependencies are not downloaded once more.
    """

    def __init__(self, terminal: Terminal, *, index: bool = False) -> None:
        self.terminal = terminal
        self.directory = terminal.launch.directory
        self.index = index
        clone(self.directory)

    def run(
        self, alternative: str = "", *, until: str = "", installed: bool = False
    ) -> list[Command]:
        """Run the commands which belong to all and to ``alternative``; return them.

        ``until`` ends it before the first command that begins so.  With ``installed`` the package
        of this Python is used, and those that install it are left out.
        """
        ran = []
        for command in commands(PAGE.read_text()):
            if until and command.text.startswith(until):
                break
            if installed and command.text.startswith(INSTALLING):
                continue
            if command.alternative in ("", alternative):
                self.terminal.run(self.adapted(command))
                self.after(command)
                ran.append(command)
        return ran

    def adapted(self, command: Command) -> Command:
        text = command.text
        if text.startswith("pip install") and not self.index:
            text = f"PIP_NO_DEPS=1 {text}"
        if text.startswith("msgproto send lumberjack "):
            words = f"msgproto send lumberjack tcp:127.0.0.1:{self.port} "
            text = text.replace("msgproto send lumberjack ", words)
        if text.startswith("filebeat "):
            self.change("examples/first_chart/filebeat.yml", f":{PORT}", f":{self.port}")
        return Command(text, command.alternative)

    def after(self, command: Command) -> None:
        if command.text.startswith("pip install") and not self.index:
            dependencies_from_here(self.directory / "first" / "venv")
        if command.text.startswith("msgproto init"):
            self.change("first/gateway.toml", "# endpoint", "endpoint")
            self.change("first/gateway.toml", f"tcp:{PORT}", "tcp:0")
            self.change("first/gateway.toml", "tcp:8480", "tcp:0")

    def change(self, name: str, old: str, new: str) -> None:
        """Replace ``old`` in a file; AssertionError if it is not there."""
        file = self.directory / name
        assert old in file.read_text(), f"{name} has no {old}"
        file.write_text(file.read_text().replace(old, new))

    @property
    def port(self) -> int:
        (gateway,) = (
            running
            for text, running in self.terminal.running.items()
            if text.startswith("msgproto gateway")
        )
        return gateway.port("lumberjack")

    def notebook(self) -> dict[str, Any]:
        """The executed notebook, as it is kept: without Spark's warnings and times."""
        return kept(json.loads((self.directory / "first" / NOTEBOOK.name).read_text()))


def kept(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook without what differs from run to run, the texts of lists joined."""
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if "outputs" in cell:
            cell["outputs"] = [
                output for output in cell["outputs"] if output.get("name") != "stderr"
            ]
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def texts(notebook: dict[str, Any]) -> list[list[str]]:
    """What each code cell shows as text, in the notebook's order."""
    return [
        [
            "".join(output.get("text", output.get("data", {}).get("text/plain", ())))
            for output in cell["outputs"]
        ]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def pictures(notebook: dict[str, Any]) -> list[str]:
    return [
        output["data"]["image/png"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]


def main(arguments: list[str]) -> None:
    """Run the page, keep the notebook and the chart, and print how long everything took."""
    with tempfile.TemporaryDirectory() as directory, launching(Path(directory)) as launch:
        terminal = Terminal(launch, clean_environment(launch.directory))
        quarter = Quarter(terminal, index="--index" in arguments)
        quarter.run()
        NOTEBOOK.write_text(json.dumps(quarter.notebook(), indent=1, ensure_ascii=False) + "\n")
        shutil.copy(quarter.directory / "first" / CHART.name, CHART)
    for text, seconds in terminal.seconds.items():
        print(f"{seconds:7.1f} s  {text}")
    print(f"{sum(terminal.seconds.values()):7.1f} s  together")


if __name__ == "__main__":
    main(sys.argv[1:])
