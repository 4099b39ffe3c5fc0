"""Real processes in tests: started with this Python, read line by line, ended by their pid."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.tools import warm
from twisted_msgproto import cli

PROJECT = Path(__file__).parent.parent.parent

AFTER = "tests.tools.after"
"""Its first argument is what its process does before it is the module of the second."""

LEAN = Path(__file__).parent / "lean"
"""On the path of the processes which tests start: an installation without pandas, as most are."""

STARTING = Path(__file__).parent / "starting"
"""Also on their path: what Python does first, which makes the workers of a Spark session start
quickly."""

START_SECONDS = 300.0
"""How long a process may take to start on a machine with far more work than processors; a test is
told at once of one that ends."""

PATIENCE_SECONDS = 60.0
"""How long a line may take on a busy machine before the test is failed."""


OF_A_SESSION = "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"
"""What pyspark leaves in the environment of a process that had a session: nobody's setting."""


def environment(*, pandas: bool = False, **changes: str) -> dict[str, str]:
    """This process's environment with the project in front of PYTHONPATH, and ``pandas`` or not."""
    before = os.environ.get("PYTHONPATH")
    places = [str(PROJECT), str(STARTING), "" if pandas else str(LEAN), before]
    path = os.pathsep.join(filter(None, places))
    found = {name: value for name, value in os.environ.items() if name not in OF_A_SESSION}
    return {**found, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **changes}


def msgproto(*words: str | Path, status: int = 0) -> str:
    """Run a command in this process; return what it prints: with ``status`` 0 as its output and
    with 2 as an error, and nothing on the other stream; else on both.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = cli.main([str(word) for word in words])
    assert ended == status, err.getvalue() or out.getvalue()
    assert status or not err.getvalue()
    assert status != 2 or not out.getvalue()
    return out.getvalue() + err.getvalue()


def begun(
    command: Sequence[str],
    *,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stdin: int,
    stderr: int = subprocess.STDOUT,
) -> subprocess.Popen[str] | warm.Forked:
    """Start a process with its output piped as text; our own programs are forked if that is the
    same.
    """
    env = dict(env or environment())
    if list(command[:2]) == [sys.executable, "-m"] and warm.forking(environment()).suits(env):
        return warm.Forked(command, cwd=cwd, env=env, stdin=stdin, stderr=stderr)
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        errors="backslashreplace",
    )


NO_NAME_SPACES = 77


def contained(set_up: str, *command: str) -> list[str]:
    """The command as a container runs it; a skip that says why where there are no name spaces."""
    if shutil.which("sh") is None:
        pytest.skip("no sh here")
    words = [str(PROJECT / "tests" / "containers.sh"), *set_up.split(), "--"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True)
    if tried.returncode == NO_NAME_SPACES:
        pytest.skip(tried.stderr.strip())
    assert tried.returncode == 0, tried.stderr
    return [*words, *command]


class Launched:
    """A running process.  Its output is read all the time, so that it never waits for us.

    Attributes:
        process: the Popen, or what stands for it; its pid is the only handle by which it is ever
            ended.
        lines: what it has printed so far (stdout and stderr as they came), without line ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = begun(command, cwd=cwd, env=env, stdin=stdin)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def line(
        self, pattern: str, *, nth: int = 1, seconds: float = PATIENCE_SECONDS
    ) -> re.Match[str]:
        """Wait for the ``nth`` line in which ``pattern`` is found; AssertionError if none comes."""
        deadline = time.monotonic() + seconds
        looked_at = 0
        with self._changed:
            while True:
                for line in self.lines[looked_at:]:
                    if match := re.search(pattern, line):
                        nth -= 1
                        if not nth:
                            return match
                looked_at = len(self.lines)
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    why = "it ended" if self._ended else f"waited {seconds} s"
                    raise AssertionError(f"no line like {pattern!r}: {why}\n{self.output}")
                self._changed.wait(left)

    def address(self, name: str, *, seconds: float = PATIENCE_SECONDS) -> str:
        """Where the server ``name`` listens, as ``msgproto send`` takes it: ``tcp:HOST:PORT``."""
        # `python -m twisted` logs as JSON where there is no terminal: quotes end the address.
        return self.line(rf"\b{name} listening on ([^\s\"'\\]+)", seconds=seconds)[1]

    def port(self, name: str) -> int:
        return int(self.address(name).rpartition(":")[2])

    def signal(self, number: int) -> None:
        """Send a signal to this one process; nothing if it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait until it ends by itself and all its output is read; its exit status."""
        status = self.process.wait(seconds)
        self._reader.join(seconds)
        return status

    def end(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        """End it: SIGTERM, and SIGKILL if that does not help in time; its exit status."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(seconds=seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            return self.wait()

    def kill(self) -> int:
        """SIGKILL: the end without any chance to tidy up; its exit status."""
        self.signal(signal.SIGKILL)
        return self.wait()


class Launcher:
    """Starts processes in one directory and ends what is left of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[Launched] = []

    def __call__(
        self,
        *arguments: str | Path,
        module: str = "twisted_msgproto",
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> Launched:
        """Start ``python -m MODULE ARGUMENTS`` (``module="twisted"`` for servers)."""
        return self.command(
            [sys.executable, "-m", module, *map(str, arguments)], env=env, stdin=stdin
        )

    def command(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> Launched:
        launched = Launched(command, cwd=self.directory, env=env, stdin=stdin)
        self.started.append(launched)
        return launched

    def run(
        self,
        *arguments: str | Path,
        module: str = "twisted_msgproto",
        stdin: str = "",
        seconds: float = PATIENCE_SECONDS,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m MODULE ARGUMENTS`` to its end, with ``stdin`` as its input."""
        command = [sys.executable, "-m", module, *map(str, arguments)]
        pipe = subprocess.PIPE
        process = begun(command, cwd=self.directory, env=env, stdin=pipe, stderr=pipe)
        try:
            output, errors = process.communicate(stdin, seconds)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.wait(), output, errors)

    def end_all(self) -> None:
        for launched in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                launched.end()


def children(pid: int) -> set[int]:
    """The ids of the direct children of a process; empty where /proc does not tell."""
    # Asked twice in every test, in processes which may have hundreds of threads: no Path here.
    found: set[int] = set()
    tasks = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for task in os.listdir(tasks):
            with contextlib.suppress(OSError), open(f"{tasks}/{task}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    return found


def descendants(pid: int) -> set[int]:
    """The ids of the children of a process, of theirs, and so on."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = children(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def command_of(pid: int) -> str:
    """The command line of a process, or an empty text if it is gone or a zombie."""
    try:
        told = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
    return warm.commands.get(pid, told) if warm.__name__ in told else told


def gone(pid: int) -> bool:
    """Has this process ended?  A zombie has: where there is no init, nobody reaps an orphan."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def wait_gone(pid: int, *, seconds: float = PATIENCE_SECONDS) -> bool:
    """Wait until a process that is not our child has ended; False if it still runs then."""
    deadline = time.monotonic() + seconds
    while not gone(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def launching(directory: Path) -> Iterator[Launcher]:
    launcher = Launcher(directory)
    try:
        yield launcher
    finally:
        launcher.end_all()
