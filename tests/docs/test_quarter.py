"""The quarter of an hour of a data engineer: every command of the quick start, as it is written."""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.docs.quarter import (
    CHART,
    NOTEBOOK,
    PAGE,
    Quarter,
    clean_environment,
    kept,
    pictures,
    texts,
)
from tests.docs.shell import Terminal, commands
from tests.tools.filebeat import BINARY, needs_filebeat
from tests.tools.processes import PROJECT, START_SECONDS, Launcher
from twisted_msgproto.queue import QueueReader

STORED = json.loads(NOTEBOOK.read_text())
LINES = 2852
"""The sample log has this many lines."""


PACKAGES = ["twisted-msgproto", "matplotlib", "ipykernel", "nbclient"]


def missing() -> list[str]:
    return [name for name in PACKAGES if not any(distributions(name=name))]


needs_notebook = pytest.mark.skipif(
    bool(missing()), reason=f"pip install '.[notebook]' brings what is missing: {missing()}"
)


def test_the_extra_of_the_page_has_what_the_notebook_imports() -> None:
    """The test below takes dependencies from here: these are the ones that pip would install."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras, found, looked = ["notebook"], set[str](), set[str]()
    while extras:
        looked.add(extra := extras.pop())
        for text in project["optional-dependencies"][extra]:
            name, inner = re.match(r"([\w-]+)(?:\[(.*?)\])?", text).groups()  # type: ignore[union-attr]
            found.add(name)
            if name == project["name"]:
                extras += set((inner or "").split(",")) - looked
    assert "pip install '.[notebook]'" in [command.text for command in commands(PAGE.read_text())]
    assert found >= set(PACKAGES)


@needs_notebook
@pytest.mark.slow
@pytest.mark.xdist_group("pages")
def test_the_page_leads_from_nothing_to_a_chart(launch: Launcher) -> None:
    """The kept notebook shows what came of it: the same texts, and a chart."""
    quarter = Quarter(Terminal(launch, clean_environment(launch.directory)))
    ran = quarter.run()
    assert [command.text.split()[0] for command in ran[-2:]] == ["cp", "jupyter"]
    executed = quarter.notebook()
    assert texts(executed) == texts(STORED), "run python -m tests.docs.quarter"
    assert len(pictures(executed)) == 1
    assert (quarter.directory / "first" / CHART.name).read_bytes().startswith(b"\x89PNG")


@needs_filebeat
@pytest.mark.slow
def test_filebeat_ships_what_msgproto_send_does(launch: Launcher) -> None:
    """Its events have the members which the notebook takes out of them.

    The test above installs the package as the page does; this one has it already.
    """
    env = clean_environment(launch.directory)
    env["PATH"] = os.pathsep.join([str(BINARY.parent), env["PATH"]])
    quarter = Quarter(Terminal(launch, env))
    ran = quarter.run("filebeat", until="msgproto send", installed=True)
    assert [command.text.split()[0] for command in ran] == [
        *("msgproto", "msgproto", "msgproto", "python", "filebeat")
    ]
    queue = QueueReader(launch.directory / "first" / "queue")
    deadline = time.monotonic() + START_SECONDS
    while queue.end() < LINES and time.monotonic() < deadline:
        time.sleep(0.05)
    bodies = [
        json.loads(body)
        for batch in queue.read(0, queue.end())
        for body in batch.column("body").to_pylist()
    ]
    lines = [
        json.loads(line)
        for line in (launch.directory / "first" / "app.log").read_text().splitlines()
    ]
    for name in ("@timestamp", "status", "milliseconds"):
        assert [body[name] for body in bodies] == [line[name] for line in lines]
    assert [body["host"]["name"] for body in bodies] == [line["host"]["name"] for line in lines]


def test_the_kept_notebook_was_executed_and_shows_its_chart() -> None:
    assert kept(STORED) == STORED
    assert len(pictures(STORED)) == 1
    code = [cell for cell in STORED["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert f"{LINES}" in texts(STORED)[0]
    assert CHART.read_bytes().startswith(b"\x89PNG")


def test_the_page_names_files_that_exist() -> None:
    for name in re.findall(r"(?:examples|docs)/[\w./-]+", PAGE.read_text()):
        assert (PROJECT / name).exists(), name
    assert Path(PROJECT / "examples/first_chart/filebeat.yml").read_text().count("5044") == 1
