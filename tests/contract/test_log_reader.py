"""Whoever reads a log may stop reading, and go on later: what the process is for goes on."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tools.processes import environment
from twisted_msgproto.core.log_output import LogOutput

SECONDS = 60.0
LOOPBACK = "tcp:0:interface=127.0.0.1"
GATEWAY = ["-m", "twisted_msgproto", "gateway", "--config=g.toml", "--log-sessions"]
TWISTD = ["-c", "from twisted.scripts.twistd import run; run()", "--nodaemon", "--pidfile="]
LUMBERJACK = ["lumberjack", "-e", LOOPBACK, "--queue=queue", "--log-sessions"]
WAYS = {
    "gateway": GATEWAY,
    "twistd, JSON": [*TWISTD, *LUMBERJACK, "--json-log"],
    "twist": ["-m", "twisted", *LUMBERJACK],
}


class Unread:
    """A process, and the pipe of its standard output and error, which holds 4 KiB."""

    def __init__(self, directory: Path, words: list[str]) -> None:
        self.reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
        )
        os.close(writing)
        self.text = b""

    def read_until(self, pattern: bytes) -> re.Match[bytes]:
        while (match := re.search(pattern, self.text)) is None:
            piece = os.read(self.reading, 65536)
            assert piece, self.text
            self.text += piece
        return match

    def end(self) -> None:
        """SIGTERM ends it though nobody reads."""
        self.process.terminate()
        self.process.wait(SECONDS)


@contextmanager
def unread(directory: Path, words: list[str]) -> Iterator[Unread]:
    it = Unread(directory, words)
    try:
        yield it
    finally:
        it.process.kill()
        it.process.wait()
        os.close(it.reading)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    text = f'[queue]\ndirectory = "queue"\n[lumberjack]\nendpoint = "{LOOPBACK}"\n'
    (tmp_path / "g.toml").write_text(text)
    return tmp_path


def acknowledged(port: int) -> bool:
    """Send one event (LJ-03) and wait for its ack."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as one:
        one.sendall(struct.pack(">2sI2sII", b"2W", 1, b"2J", 1, 2) + b"{}")
        return one.recv(6) == struct.pack(">2sI", b"2A", 1)


@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS.keys())
def test_every_message_is_acknowledged_while_nobody_reads_the_log(
    directory: Path, words: list[str]
) -> None:
    """RD-20: the pipe is full after the first dozen sessions."""
    with unread(directory, words) as server:
        port = int(server.read_until(rb"listening on tcp:127\.0\.0\.1:(\d+)")[1])
        assert all(acknowledged(port) for _ in range(60))
        server.end()


@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS.keys())
def test_without_standard_output_only_an_endpoint_can_end_the_start(
    directory: Path, words: list[str]
) -> None:
    bad = [word.replace(LOOPBACK, "unix:nowhere/s") for word in words]
    file = directory / "g.toml"
    file.write_text(file.read_text().replace(LOOPBACK, "unix:nowhere/s"))
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" >&-', sys.executable, *bad],
        cwd=directory,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
    )
    status = 2 if words[: len(GATEWAY)] == GATEWAY else 1  # twistd's own
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr


def test_a_reader_that_goes_on_is_told_how_many_lines_are_missing() -> None:
    """RD-20: a MiB waits and further lines are counted; the log goes on once it is read again."""
    reading, writing = os.pipe()
    output = LogOutput(writing)
    written = 40_000
    for number in range(written):
        output.write(f"{number:>50}\n")
    text = ""
    with os.fdopen(reading) as reader, ThreadPoolExecutor(1) as pool:

        def read() -> None:
            nonlocal text
            for line in reader:
                text += line

        reads = pool.submit(read)
        while "are missing" not in text:
            output.write("more\n")
            written += 1
            output.close()
        os.close(writing)
        reads.result()
    arrived = [int(line) for line in text.split() if line.isdecimal()]
    counts = [int(count) for count in re.findall("([0-9]+) lines are missing", text)]
    first = arrived[: -len(counts)]
    assert first == list(range(len(first)))
    assert len(first) + sum(counts) + text.count("more") == written
