"""The order of system calls in the real process: written, synced, and only then acknowledged."""

import contextlib
import os
import re
import shutil
import signal

import pytest

from tests.chaos.clients import PROTOCOLS, GoodClients
from tests.chaos.gateways import Five
from tests.tools.processes import children

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


def test_no_protocol_acknowledges_before_the_sync(launch, tmp_path):
    """LJ-13, MM-19, SA-16, UM-19, MT-28: kill -9 alone proves nothing about fdatasync; the order of
    the calls does.  One protocol after another sends to the same gateway.
    """
    trace, messages = tmp_path / "trace", 20
    tracing = ("strace", "-f", "--seccomp-bpf", "-yy", "-s", "32", "-e", CALLS, "-o", str(trace))
    five = Five(launch, *tracing, module="twisted_msgproto")
    with contextlib.closing(GoodClients(tmp_path)) as clients:
        for protocol in PROTOCOLS:
            clients.stand(protocol, five.ports[protocol])
            clients.send(protocol, messages)
        told = clients.told()
        # strace ends with the program it traces; the program is ended by its own pid.
        (traced,) = children(five.server.pid)
        os.kill(traced, signal.SIGKILL)
        five.server.wait()
    assert len(told) == len(PROTOCOLS) * (messages + 1)
    assert not five.lost(told)
    check_order(trace.read_text(errors="replace").splitlines(), len(PROTOCOLS) * messages)
