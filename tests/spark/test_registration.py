"""``register()`` makes the source usable, workers included, or says in one line what to set."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_examples import DATA_SOURCE, blocks
from tests.spark.conftest import messages, write
from tests.tools import java_classes
from tests.tools.processes import LEAN, PROJECT, Launcher

pytest.importorskip("pyspark")

from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.spark import java, registration

START_SECONDS = 800.0
"""How long a script with Spark may take on a machine with much else to do."""

slow = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

PLAIN = """
from pyspark.sql import SparkSession
from twisted_msgproto.spark import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
look = spark.read.format("msgproto").option("queue", {queue!r}).load()
print("looked", look.count())
"""

BEFORE = """
import os, sys
sys.path.insert(0, {project!r})
was = os.environ.get("PYSPARK_PYTHON")
"""

AFTER = """
print("kept", os.environ.get("PYSPARK_PYTHON") == was)
print("worker", spark.sparkContext.pythonExec)
"""


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A Python which has what this one has, but not this package, nor pandas, as most."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    # Files of paths inside a path which is added are not followed, so an editable install of the
    # package is not seen through this.
    others = home / "lib" / version / "site-packages" / "others.pth"
    others.write_text(f"{LEAN}\n{sysconfig.get_path('purelib')}\n")
    program = home / "bin" / "python"
    found = subprocess.run(
        [program, "-c", "import pyspark, pyarrow, twisted_msgproto"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert "No module named 'twisted_msgproto'" in found.stderr
    return program


def bare_environment() -> dict[str, str]:
    """What a shell has which knows nothing of Spark: no PYTHONPATH, no PYSPARK_…

    Java itself is asked to compile little: nothing of Spark's sees that.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK")) and name != "PYTHONPATH"
    }
    return {
        **kept,
        "JAVA_HOME": str(java.find_java().home),
        "JDK_JAVA_OPTIONS": java_classes.options(),
    }


class TestPlainScript:
    pytestmark = slow

    @pytest.mark.parametrize("chosen", [False, True], ids=["nothing set", "PYSPARK_PYTHON set"])
    def test_a_plain_script_reads_with_the_package_only_on_its_own_path(
        self, launch: Launcher, tmp_path: Path, other_python: Path, chosen: bool
    ) -> None:
        """TB-14: run as ``python script.py`` from another directory, nothing in the environment.

        The script is the page's, which reads, filters, streams and checks what came.  Each task
        finds the package in the same way: with a Python that is named, one read is enough.
        """
        queue = tmp_path / "queue"
        write(queue, messages(0, 300))
        script = tmp_path / "program" / "script.py"
        script.parent.mkdir()
        plain = PLAIN.format(queue=str(queue))
        program = plain if chosen else "\n".join(blocks(DATA_SOURCE, "python"))
        assert "SparkSession" in program
        script.write_text(BEFORE.format(project=str(PROJECT)) + program + AFTER)
        env = bare_environment()
        if chosen:
            # Another name of the same Python: what an operator has set is what workers run.
            named = other_python.with_name("python-of-the-cluster")
            named.symlink_to(other_python.name)
            env["PYSPARK_PYTHON"] = str(named)
        ended = launch.command([str(other_python), str(script)], env=env)
        assert ended.wait(seconds=START_SECONDS) == 0, ended.output
        assert not chosen or "looked 300" in ended.lines
        assert "kept True" in ended.lines
        expected = env["PYSPARK_PYTHON"] if chosen else str(other_python)
        assert f"worker {expected}" in ended.lines


class FakeContext:
    """What :func:`~registration.prepare_workers` needs of a SparkContext."""

    def __init__(self, master: str, tmp_path: Path, **settings: str) -> None:
        self.master = master
        self.environment: dict[str, str] = {}
        self.pythonExec = os.environ.get("PYSPARK_PYTHON", "python3")
        self.sent: list[str] = []
        self._temp_dir = str(tmp_path)
        self._settings = settings

    def getConf(self) -> Any:
        return self

    def get(self, name: str) -> str | None:
        return self._settings.get(name.replace(".", "_"))

    def addPyFile(self, path: str) -> None:
        self.sent.append(path)


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def prepared(context: FakeContext) -> FakeContext:
    registration.prepare_workers(context)  # type: ignore[arg-type]
    return context


@pytest.mark.usefixtures("unset")
def test_on_one_machine_workers_run_the_drivers_python(tmp_path: Path) -> None:
    """TB-14."""
    assert prepared(FakeContext("local[*]", tmp_path)).pythonExec == sys.executable


def test_what_an_operator_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TB-14: PYSPARK_PYTHON is the cluster's, and so is Spark's own setting."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/cluster/python")
    assert prepared(FakeContext("local[2]", tmp_path)).pythonExec == "/cluster/python"
    assert os.environ["PYSPARK_PYTHON"] == "/cluster/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    context = FakeContext("local[2]", tmp_path, spark_pyspark_python="/conf/python")
    assert prepared(context).pythonExec == "/conf/python"


def test_the_path_of_a_source_tree_is_added_once(tmp_path: Path) -> None:
    context = FakeContext("local[2]", tmp_path)
    context.environment["PYTHONPATH"] = "/theirs"
    prepared(prepared(context))
    assert context.environment["PYTHONPATH"] == os.pathsep.join([str(PROJECT), "/theirs"])


@pytest.mark.usefixtures("unset")
def test_a_cluster_without_the_package_is_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = FakeContext("spark://m:7077", tmp_path)
    monkeypatch.setattr(
        registration, "ask_worker", lambda one: None if one.sent else "twisted_msgproto"
    )
    assert prepared(context).sent == [str(tmp_path / "twisted_msgproto.zip")]
    code = "import twisted_msgproto.spark.source as s; print(s.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**bare_environment(), "PYTHONPATH": context.sent[0]},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(context.sent[0])


@pytest.mark.usefixtures("unset")
def test_a_cluster_whose_python_lacks_something_is_tried_with_the_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = FakeContext("spark://m:7077", tmp_path)
    monkeypatch.setattr(
        registration,
        "ask_worker",
        lambda one: None if one.pythonExec == sys.executable else "it has no module pyarrow",
    )
    assert prepared(context).pythonExec == sys.executable


def test_a_cluster_which_cannot_run_the_source_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-14."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/cluster/python")
    context = FakeContext("spark://m:7077", tmp_path)
    monkeypatch.setattr(registration, "ask_worker", lambda one: "it has no module pyarrow")
    with pytest.raises(ConfigurationError) as caught:
        prepared(context)
    text = str(caught.value)
    assert "spark://m:7077" in text and "/cluster/python: it has no module pyarrow" in text
    assert "set PYSPARK_PYTHON" in text and "\n" not in text
    assert context.pythonExec == "/cluster/python"


def test_the_telling_line_of_a_failed_job_is_found() -> None:
    text = textwrap.dedent(
        """\
        Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times: java.io.IOException:
        Cannot run program "/no/python": error=2, No such file or directory
            at java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
        """
    )
    assert registration.why(text).startswith('Cannot run program "/no/python"')
    assert registration.why("") == "it does not start"
