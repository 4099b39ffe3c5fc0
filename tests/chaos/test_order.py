"""The order of system calls in the real process: written, synced, and only then acknowledged."""

import contextlib
import os
import re
import shutil
import signal
import socket
import sys

import pytest

from tests.chaos.clients import PROTOCOLS, GoodClients
from tests.chaos.gateways import Five
from tests.tools.processes import children
from twisted_msgproto.lumberjack.wire import encode_ack, encode_json, encode_window

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("strace") is None, reason="no strace: apt-get install strace brings it"
    ),
]

CALLS = "trace=write,writev,pwrite64,pwritev,pwritev2,fdatasync,fsync,sendto,sendmsg"


def finished(lines, pattern):
    """Indices (begun, ended) of each call whose line matches; -f splits what overlaps."""
    found = []
    for begun, line in enumerate(lines):
        if not re.search(pattern, line):
            continue
        thread, call = re.match(r"(\d+)\s+(\w+)\(", line).groups()
        ended = begun
        if "<unfinished ...>" in line:
            resumed = re.compile(rf"{thread}\s+<\.\.\. {call} resumed")
            ended = next(i for i in range(begun + 1, len(lines)) if resumed.match(lines[i]))
        assert not lines[ended].rstrip().endswith("= -1"), lines[ended]
        found.append((begun, ended))
    return found


def check_order(lines, messages):
    """Nothing is sent to a peer between a write to a segment and the end of its sync.

    The clients have one message in flight, and nothing else is said meanwhile.
    """
    writes = finished(lines, r"write\w*\(\d+<[^>]*\.segment>")
    syncs = finished(lines, r"(fdatasync|fsync)\(\d+<[^>]*\.segment>")
    sends = finished(lines, r"(send(to|msg)|write\w*)\(\d+<TCP:")
    assert len(writes) >= messages
    assert len(sends) >= messages
    for began, written in writes[-messages:]:  # before them: the head of the segment
        synced = min(ended for begun, ended in syncs if begun > written)
        early = [sent for sent, _ in sends if began < sent < synced]
        assert not early, [lines[index] for index in (began, early[0], synced)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_protocol_acknowledges_before_the_sync(launch, tmp_path, protocol):
    """LJ-13, MM-19, SA-16, UM-19, MT-28: the order of the calls, for each of the five."""
    trace, messages = tmp_path / "trace", 20
    tracing = ("strace", "-f", "--seccomp-bpf", "-yy", "-s", "32", "-e", CALLS, "-o", str(trace))
    five = Five(launch, *tracing, module="twisted_msgproto")
    with contextlib.closing(GoodClients(tmp_path)) as clients:
        clients.stand(protocol, five.ports[protocol])
        clients.send(protocol, messages)
        told = clients.told()
        # strace ends with the program it traces; the program is ended by its own pid.
        (traced,) = children(five.server.pid)
        os.kill(traced, signal.SIGKILL)
        five.server.wait()
    assert len(told) == messages + 1
    assert not five.lost(told)
    check_order(trace.read_text(errors="replace").splitlines(), messages)


def test_written_then_synced_then_acknowledged(launch, tmp_path):
    """LJ-13: kill -9 alone proves nothing about fdatasync; the order of the calls does."""
    trace, queue = tmp_path / "trace", tmp_path / "queue"
    server = launch.command(
        [
            *("strace", "-f", "--seccomp-bpf", "-y", "-s", "100000", "-e", CALLS),
            *("-o", str(trace), sys.executable, "-m", "twisted"),
            *("lumberjack", "-e", "tcp:0:interface=127.0.0.1", "--queue", str(queue)),
        ]
    )
    windows = 20
    with socket.create_connection(("127.0.0.1", server.port("lumberjack"))) as line:
        line.settimeout(60)
        for window in range(windows):
            documents = [b'{"marker":"w%02d-%d"}' % (window, number) for number in (1, 2, 3)]
            numbers = [window * 3 + number for number in (1, 2, 3)]
            line.sendall(encode_window(3) + encode_json(numbers, documents))
            heard = b""
            while len(heard) < 6:
                heard += line.recv(6 - len(heard))
            assert heard == encode_ack(window * 3 + 3)
    # strace ends with the program it traces; the program is ended by its own pid.
    (traced,) = children(server.pid)
    os.kill(traced, signal.SIGTERM)
    server.wait()
    lines = trace.read_text(errors="replace").splitlines()
    for window in range(windows):
        writes = finished(lines, rf"write\w*\(\d+<[^>]*\.segment>.*w{window:02d}-3")
        assert len(writes) == 1, window
        syncs = finished(lines, r"(fdatasync|fsync)\(\d+<[^>]*\.segment>")
        acks = [
            index
            for index, text in enumerate(lines)
            if re.search(r"send(to|msg)\(\d+<", text) and '"2A\\0\\0\\0' in text
        ]
        written = writes[0][1]
        synced = min(ended for begun, ended in syncs if begun > written)
        assert len(acks) == windows
        assert written < synced < acks[window], (
            f"window {window}: written in line {written}, synced in {synced}, acked in "
            f"{acks[window]}"
        )
