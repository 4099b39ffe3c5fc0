"""A server that is measured from outside: another program's (``msgproto bench --against COMMAND``)
or our own as users start it.

Nothing is asked of it but that it listens on the port it is told; what it costs is read from
``/proc``, its children's time with it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.spark.session import descendants

from .measuring import Measured

PORT = "{port}"
"""What stands for the port in a peer's command line."""

START_SECONDS_MAX = 30.0
END_SECONDS_MAX = 5.0
LOOK_SECONDS = 0.01
UTIME = 14 - 3
"""Field 14 of ``/proc/PID/stat`` (see proc(5)), where the first after the name is number 3."""


class Peer(Measured):
    """A server that is started as a shell would start it, and ended with all it started.

    Raises ConfigurationError, in one line, if it does not begin to listen.
    """

    def __init__(self, command: str, directory: Path, title: str = "--against: the peer") -> None:
        """``command`` is one line with ``{port}`` in it; its output goes to a file in
        ``directory``.  ``title`` is what messages call it.
        """
        self.port = free_port()
        self._title = title
        words = _words(command, self.port)
        self._log = directory / "peer.log"
        began = time.perf_counter()
        try:
            with self._log.open("wb") as output:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ConfigurationError(
                f"{title} does not start: {words[0]}: {error.strerror}"
            ) from None
        self.pid = self._process.pid
        try:
            self._await()
            self.start_seconds = time.perf_counter() - began
            """From its start to its open port."""
        except BaseException:
            self.close()
            raise

    def _await(self) -> None:
        """Until it listens."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            status = self._process.poll()
            if status is not None:
                raise ConfigurationError(
                    f"{self._title} ended with status {status} and did not listen on port "
                    f"{self.port}{self._last_words()}"
                )
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"{self._title} does not listen on port {self.port} after "
                    f"{START_SECONDS_MAX:g} s{self._last_words()}"
                )
            time.sleep(LOOK_SECONDS)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="backslashreplace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"; it said: {said[-1]}" if said else "; it said nothing"

    def usage(self) -> dict[str, Any]:
        """``cpu`` seconds of the process and all it has started, ``rss`` octets of them."""
        pids = [self.pid, *descendants(self.pid)]
        return {"cpu": sum(map(cpu_seconds, pids)), "rss": sum(map(resident_octets, pids))}

    def close(self) -> None:
        """End it and what it has started."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS_MAX)
        # Also when it has ended: what it started may outlive it.
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _words(command: str, port: int) -> list[str]:
    """The command line as a shell splits it, with the port in its place."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"--against {command!r}: {error}") from None
    if not any(PORT in word for word in words):
        raise ConfigurationError(
            f"--against {command!r}: no {PORT} in it for the port to listen on"
        )
    return [word.replace(PORT, str(port)) for word in words]


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """Return what a process and its children that have ended took so far; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # utime, stime, and the same of children that were waited for
    return sum(map(int, fields[UTIME : UTIME + 4])) / os.sysconf("SC_CLK_TCK")


def resident_octets(pid: int) -> int:
    """Return the memory of a process that is in use; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
