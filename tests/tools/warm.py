"""Start real processes quickly: each is forked from one that has imported the packages already.

A process that is started the usual way spends half a second of CPU time on importing Twisted,
OpenSSL and the rest, and a run of the tests starts hundreds.  A forked one is a process as any
other, with its own memory, descriptors, environment and signals; it only skips the imports.
Commands of other programs start the usual way, and so do those with another ``PYTHONPATH``, and
what a forked process starts itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

IMPORTED: Final = (
    *("twisted.application.app", "twisted.application.service", "twisted.internet.endpoints"),
    *("twisted.internet.ssl", "twisted.internet.unix", "twisted.protocols.tls"),
    *("twisted.web.server", "twisted.web.resource", "twisted.web.static"),
    *("autobahn.twisted.websocket", "zmq"),
    *("twisted_msgproto.gateway", "twisted_msgproto.net.site", "twisted_msgproto.net.broker"),
    *(
        f"twisted_msgproto.{protocol}.{part}"
        for protocol in ("lumberjack", "micromsg2", "sabc", "umq", "mtl")
        for part in ("protocol", "service", "command")
    ),
    *(f"twisted_msgproto.cli.{name}" for name in ("send", "recv", "demo", "check", "clients")),
    *("pyarrow.compute", "pyarrow.flight", "pyarrow.parquet"),
    *("twisted_msgproto.queue", "twisted_msgproto.queue.flight_server"),
)
"""A forked process has these, whether it needs them or not."""

NOT_IMPORTED: Final = ("twisted.internet.reactor", "pandas", "pyspark")
"""These it must not have: a reactor belongs to one process, and the others are large."""

NO_THREADS: Final = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables with which importing Arrow, and NumPy with it, begins no thread: a process with threads
cannot be forked.  What is forked has its own variables, and its threads when it needs them.
"""

DECIDING: Final = ("PYTHON", "LD_", "OPENSSL_", "MSGPROTO_", "FAKETIME", "COVERAGE")
"""Variables whose names begin so have had their effect before a process is forked."""

LENGTH: Final = struct.Struct("!I")
"""The bytes of a request stand in front of it."""

TOLD: Final = struct.Struct("!q")
"""A process's id, and later its status, are told like this."""

DESCRIPTORS: Final = 4
"""A request brings stdin, stdout, stderr, and the socket on which the process is told of."""


# ── The process that the others are forked from ─────────────────────────────────────────────────


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request, until ``requests`` is closed: then return None.

    In each forked process return the request; the process is ready for its program.
    """
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                selector.unregister(key.fd)
                _reap(key.fd, *key.data)
                continue
            request, descriptors = _received(requests)
            if request is None:
                return None
            pid = os.fork()
            if not pid:
                _forget(selector)
                _become(request, descriptors)
                return request
            told = socket.socket(fileno=descriptors.pop())
            for descriptor in descriptors:
                os.close(descriptor)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))


def _received(requests: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return one request and its descriptors; None when there will be no more."""
    head, descriptors, _, _ = socket.recv_fds(requests, LENGTH.size, DESCRIPTORS)
    if not head:
        return None, []
    (left,) = LENGTH.unpack(head)
    octets = b""
    while len(octets) < left:
        octets += requests.recv(left - len(octets))
    return json.loads(octets), descriptors


def _reap(descriptor: int, pid: int, told: socket.socket) -> None:
    os.close(descriptor)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with told, contextlib.suppress(OSError):  # whoever asked may have ended
        told.sendall(TOLD.pack(status))


def _forget(selector: selectors.BaseSelector) -> None:
    """Close, in a forked process, what belongs to the one it was forked from."""
    for key in list(selector.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
            key.data[1].close()
    selector.close()


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Make this forked process what was asked for, but for its program."""
    os.write(descriptors[-1], TOLD.pack(os.getpid()))  # from now on it can be signalled
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["directory"]


def run(module: str, arguments: Sequence[str]) -> NoReturn:
    """Run a program as ``python -m MODULE ARGUMENTS`` does, and end as Python ends.

    Only memory is left as it is: to free what was imported would touch every page of it, and cost
    as much as a start.
    """
    sys.argv = [module, *arguments]
    status: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        status = ending.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:
        traceback.print_exc()
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    assert isinstance(status, int)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def main(descriptor: int) -> None:
    """Be the process that others are forked from; requests come on the socket ``descriptor``."""
    for name in IMPORTED:
        __import__(name)
    for name in NOT_IMPORTED:
        assert name not in sys.modules, f"{name} was imported"
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    gc.freeze()  # a collection would touch, and so copy, every page
    request = serve(socket.socket(fileno=descriptor))
    if request is not None:
        run(request["module"], request["arguments"])


# ── What tests use ──────────────────────────────────────────────────────────────────────────────


class Forked:
    """A process that was forked, with what tests use of a Popen.

    Attributes:
        pid: its id.
        returncode: its exit status, or minus the number of the signal; None while it runs.
        stdin, stdout, stderr: our ends of its streams, as text, or None.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.STDOUT,
    ) -> None:
        """Fork ``python -m MODULE ARGUMENTS``; its output is piped, and stderr with it or alone.

        ``stdin`` is PIPE, DEVNULL or a descriptor, ``stdout`` PIPE or one.
        """
        self.args = command
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._told, theirs = socket.socketpair()
        with contextlib.ExitStack() as closing:
            closing.callback(theirs.close)
            given = [stdin]
            self.stdin: IO[str] | None = None
            if stdin == subprocess.DEVNULL:
                given[0] = os.open(os.devnull, os.O_RDONLY)
                closing.callback(os.close, given[0])
            elif stdin == subprocess.PIPE:
                given[0], own = os.pipe()
                closing.callback(os.close, given[0])
                self.stdin = os.fdopen(own, "w")
            self.stdout: IO[str] | None = None
            end = stdout
            if stdout == subprocess.PIPE:
                self.stdout, end = _pipe(closing)
            given.append(end)
            self.stderr: IO[str] | None = None
            if stderr == subprocess.PIPE:
                self.stderr, end = _pipe(closing)
            given.append(end)
            request = {
                "module": command[2],
                "arguments": list(command[3:]),
                "directory": os.path.abspath(cwd or "."),
                "environment": dict(env),
            }
            forking(env).ask(request, [*given, theirs.fileno()])
        self.pid = self._number(None)
        commands[self.pid] = " ".join(command)

    def _number(self, seconds: float | None) -> int:
        """Return the next number that is told of the process; raises TimeoutError."""
        self._told.settimeout(seconds)
        try:
            octets = self._told.recv(TOLD.size)
        except BlockingIOError:
            raise TimeoutError from None
        if not octets:
            raise ChildProcessError("the process that others are forked from has ended")
        (number,) = TOLD.unpack(octets)
        return int(number)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its status; raises TimeoutExpired."""
        with self._lock:
            if self.returncode is None:
                try:
                    self.returncode = self._number(timeout)
                except TimeoutError:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
                self._told.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: str, timeout: float) -> tuple[str, str]:
        """Write ``text``, read all output and wait for the end; kill it after ``timeout``."""
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        read = {stream: "" for stream in streams}
        readers = [
            threading.Thread(target=lambda stream=stream: read.update({stream: stream.read()}))
            for stream in streams
        ]
        for reader in readers:
            reader.start()
        try:
            if self.stdin is not None:
                with contextlib.suppress(BrokenPipeError), self.stdin:
                    self.stdin.write(text)
            self.wait(timeout)
        finally:
            self.kill()
            for reader in readers:
                reader.join()
            for stream in streams:
                stream.close()
        output, *errors = read.values()
        return output, "".join(errors)


def _pipe(closing: contextlib.ExitStack) -> tuple[IO[str], int]:
    """Return our end of a pipe to read text from, and the other one, which ``closing`` closes."""
    ours, theirs = os.pipe()
    closing.callback(os.close, theirs)
    return os.fdopen(ours, errors="backslashreplace"), theirs


class Forking:
    """The process that others are forked from, as tests see it.

    Attributes:
        process: it runs until it is ended.
        environment: what it was started with.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self.environment = dict(environment)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.tools.warm", str(theirs.fileno())],
                env={**self.environment, **NO_THREADS},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Send one request; see :func:`serve`."""
        octets = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._requests, [LENGTH.pack(len(octets))], list(descriptors))
            self._requests.sendall(octets)

    def suits(self, env: Mapping[str, str]) -> bool:
        """Return whether a process with this environment is the same when it is forked."""
        return deciding(env) == deciding(self.environment)

    def end(self) -> None:
        self._requests.close()
        self.process.wait()


def deciding(env: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of an environment that have their effect at a start."""
    return {name: value for name, value in env.items() if name.startswith(DECIDING)}


_forking: Forking | None = None

commands: dict[int, str] = {}
"""What the processes that were forked run, by id: the system knows them as what they come from."""


def forking(env: Mapping[str, str]) -> Forking:
    """Return the one of this process; the first call starts it, in the environment ``env``."""
    global _forking
    if _forking is None:
        _forking = Forking(env)
    return _forking


def forking_pid() -> int | None:
    """Return the id of the process that others are forked from, if there is one yet."""
    return None if _forking is None else _forking.process.pid


def end() -> None:
    global _forking
    if _forking is not None:
        _forking.end()
        _forking = None


__all__ = ["Forked", "commands", "deciding", "end", "forking", "forking_pid"]

if __name__ == "__main__":
    main(int(sys.argv[1]))
