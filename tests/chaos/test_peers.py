"""Peers which misbehave by what they do not do: slow, silent, not reading, too many, or cut off."""

import contextlib
import re
import resource
import select
import signal
import socket
import ssl
import struct
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.clients import Shipper
from tests.chaos.gateways import (
    LISTEN,
    bodies,
    closed,
    descriptors,
    lumberjack,
    most_resident,
    needs_proc,
    resident,
    rows,
    served,
)
from tests.tools.certificates import Authority
from tests.tools.processes import PATIENCE_SECONDS
from twisted_msgproto.lumberjack import encode_window
from twisted_msgproto.micromsg2 import Proposal
from twisted_msgproto.micromsg2.wire.frames import encode_handshake
from twisted_msgproto.net.logs import LINES_MAX

pytestmark = pytest.mark.slow

MEBI = 1 << 20

SUPERVISOR_SECONDS = 30.0
"""A supervisor's patience between SIGTERM and SIGKILL; systemd has 90 s.

On an idle machine the end needs five seconds at most, which tests with a clock of their own prove.
"""


def connected(port, **options):
    line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    for option, value in options.items():
        line.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    return line


def said_of_each(server, text, count):
    """The first faults of an address are lines, the others their sum (NB-09); ends the server."""
    server.line(text, nth=LINES_MAX)
    server.end()
    server.line(rf"\b{count - LINES_MAX} more like it from this address")


def crawl(lines, nbytes, meanwhile=lambda: None):
    """Send ``nbytes`` on each line one by one, until the server has closed all of them."""
    left = {line: 0 for line in lines}
    worked = False
    while left:
        # The pace of the attack: a byte each time nobody has been closed for a moment.
        readable, _, _ = select.select(list(left), [], [], 0.05)
        for line in readable:
            with contextlib.suppress(ConnectionError):
                if line.recv(65536):
                    continue
            del left[line]
            line.close()
        for line in left if not readable else ():
            with contextlib.suppress(OSError):
                line.send(nbytes[left[line] : left[line] + 1])
            left[line] += 1
        assert all(sent < len(nbytes) for sent in left.values()), "never closed"
        if not worked:
            meanwhile()
            worked = True


# ── Slowloris ───────────────────────────────────────────────────────────────────────────────────

UPGRADE = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: "

OPENINGS = {
    "micromsg2": ("handshake=1", b"\x01" + bytes(5000)),
    "sabc": ("connect-seconds=1", b"CONNECT\nclient-id:" + b"x" * 900),
    "umq": ("websocket-upgrade-seconds=1", UPGRADE + b"x" * 9000),
}
"""Protocol → the limit which ends an opening which never ends, and such an opening."""


@needs_proc
@pytest.mark.parametrize("protocol", sorted(OPENINGS))
def test_an_opening_byte_by_byte_is_ended_and_others_are_served(launch, protocol):
    """FAULTS, slowloris; MM-32, SA-27, UM-20."""
    limit, opening = OPENINGS[protocol]
    words = ["--log-format=text", protocol, "-e", LISTEN, "--limit", limit]
    server = launch(*words, module="twisted")
    port = server.port(protocol)
    before = descriptors(server)

    def good():
        scheme = "ws://" if protocol == "umq" else "tcp:"
        destination = ["--destination", "x"] if protocol == "micromsg2" else []
        sent = launch.run(
            *("send", protocol, f"{scheme}127.0.0.1:{port}", "--count", "20", *destination),
        )
        assert sent.returncode == 0, sent.stderr

    crawl([connected(port) for _ in range(30)], opening, good)
    assert server.process.poll() is None
    good()
    assert descriptors(server) <= before + 2
    assert "Traceback" not in server.output


@needs_proc
def test_a_tls_handshake_byte_by_byte_is_ended_and_others_are_served(launch, tmp_path):
    """FAULTS, slowloris; LJ-01: the limit `handshake`."""
    authority = Authority(tmp_path)
    ours = authority.server()
    tls = f"ssl:0:interface=127.0.0.1:privateKey={ours.key}:certKey={ours.cert}"
    server = launch(
        *("--log-format=text", "lumberjack", "-e", tls, "-e", LISTEN, "--limit", "handshake=1"),
        module="twisted",
    )
    port = int(server.line(r"lumberjack listening on ssl:127.0.0.1:(\d+)")[1])
    plain = int(server.line(r"lumberjack listening on tcp:127.0.0.1:(\d+)")[1])
    context = ssl.create_default_context(cafile=str(authority.cert))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    # No more than the start of it: complete, it would be answered.
    opening = outgoing.read()[:-1]
    crawl([connected(port) for _ in range(30)], opening, lambda: served(plain))
    served(plain)
    said_of_each(server, "closed: no TLS hand-shake in time", 30)


# ── Half-open ───────────────────────────────────────────────────────────────────────────────────


@needs_proc
def test_peers_gone_in_the_middle_of_a_frame_are_closed_and_others_are_served(launch):
    """FAULTS, half-open peers; LJ-17: `idle-close`.  They never say another word, nor goodbye."""
    server, port = lumberjack(launch, "--limit", "idle-close=1")
    served(port)
    before = descriptors(server)
    gone = [connected(port) for _ in range(30)]
    whole = b"2J" + struct.pack(">II", 1, 8) + b'{"a": 1}'
    for number, line in enumerate(gone):
        line.sendall(encode_window(5) + whole + whole[: 1 + number % (len(whole) - 1)])
    for line in gone:
        assert closed(line) == b"", "what was short of its window and stuck is not acknowledged"
        line.close()
    served(port)
    assert descriptors(server) <= before + 1
    said_of_each(server, "closed without ack", 30)


GREETINGS = {
    "lumberjack": encode_window(0),
    "micromsg2": encode_handshake(Proposal().opening()),
    "sabc": b"CONNECT\r\nclient-id::me\r\n\r\n\0",
    "umq": UPGRADE
    + b"x\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
}
"""What a server answers without closing."""


def timer(ours, theirs):
    """The kernel's timer for the connection between these ports: "02" is keep-alive."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if [int(words[at].partition(":")[2], 16) for at in (1, 2)] == [ours, theirs]:
            return words[5].partition(":")[0]
    raise AssertionError("no such connection")


@needs_proc
@pytest.mark.parametrize("protocol", ["lumberjack", "micromsg2", "sabc", "umq"])
def test_the_system_asks_whether_a_silent_peer_is_still_there(launch, protocol):
    """FAULTS, half-open peers: with nothing owed only TCP's keep-alive can tell."""
    server = launch(protocol, "-e", LISTEN, module="twisted")
    port = server.port(protocol)
    with connected(port) as line:
        line.sendall(GREETINGS[protocol])
        assert line.recv(1000), "an answer says that the connection was taken on"
        # Until its answer is acknowledged the timer is the one for sending it again.
        while (running := timer(port, line.getsockname()[1])) == "01":
            pass
        assert running == "02"


# ── Slow readers ────────────────────────────────────────────────────────────────────────────────


@needs_proc
def test_a_peer_which_never_reads_its_acks_is_cut_off(launch):
    """FAULTS, slow readers: bounded output, then the limit `unread-seconds`; LJ-07, LJ-17."""
    server, port = lumberjack(launch, "--limit", "unread-seconds=1")
    served(port)
    before = resident(server)
    line = connected(port, SO_RCVBUF=4096)
    asking = encode_window(0) * 50_000  # each is answered with an ack 0
    sent = 0
    with pytest.raises(ConnectionError):
        while sent < 400 * MEBI:
            sent += line.send(asking)
            served(port)
    line.close()
    served(port)
    # What the kernels hold for the connection is much less than what was not read of 400 MiB.
    assert most_resident(server) - before < 20 * MEBI


# ── Too many ────────────────────────────────────────────────────────────────────────────────────


@needs_proc
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no prlimit(2) here: Linux")
def test_a_process_out_of_descriptors_lives_and_serves_again(launch, tmp_path):
    """FAULTS, fd exhaustion: connections wait or go, the queue changes its segments, none is lost.

    Segments are tiny, so that the queue has to open files all the time.
    """
    queue = tmp_path / "queue"
    (tmp_path / "gateway.toml").write_text(
        f'[queue]\ndirectory = "{queue}"\nsegment-bytes = 20000\n'
        f'[lumberjack]\nendpoint = "{LISTEN}"\n'
    )
    server = launch("gateway", "--config", tmp_path / "gateway.toml")
    port = server.port("lumberjack")
    shipper = Shipper("a", port)
    shipper.start()
    shipper.await_more(300)
    room = 12
    for _ in range(3):
        usual, most = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        limit = descriptors(server) + room
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, most))
        crowd = []
        for _ in range(3 * room):
            with contextlib.suppress(OSError):
                crowd.append(connected(port))
        # The first of them which is turned away says that nothing is left.
        readable, _, _ = select.select(crowd, [], [], PATIENCE_SECONDS)
        assert readable
        assert server.process.poll() is None, server.output
        told = set(shipper.acknowledged)  # first: it goes on while the queue is read
        assert told <= set(bodies(queue))
        for line in crowd:
            line.close()
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (usual, most))
        shipper.await_more(300)
        served(port, b'{"after":"the crowd"}')
    shipper.finish()
    server.end()
    assert shipper.acknowledged <= set(bodies(queue))


# ── SIGTERM ─────────────────────────────────────────────────────────────────────────────────────


ADDRESSES = {
    "micromsg2": "tcp:127.0.0.1:{}",
    "sabc": "tcp:127.0.0.1:{}",
    "umq": "ws://127.0.0.1:{}",
}


def test_sigterm_to_a_gateway_under_load_of_many_protocols(launch, tmp_path):
    """FAULTS, SIGTERM under load: what any of its servers has acknowledged is on disk."""
    queue = tmp_path / "queue"
    names = ["lumberjack", *ADDRESSES]
    tables = "".join(f'[{name}]\nendpoint = "{LISTEN}"\n' for name in names)
    (tmp_path / "gateway.toml").write_text(f'[queue]\ndirectory = "{queue}"\n{tables}')
    server = launch("gateway", "--config", tmp_path / "gateway.toml")
    shipper = Shipper("a", server.port("lumberjack"), pace=0)
    shipper.start()
    senders = {}
    for name, address in ADDRESSES.items():
        destination = ["--destination", "x"] if name == "micromsg2" else []
        senders[name] = launch(
            *("send", name, address.format(server.port(name)), "--count", "1000000"),
            *("--json", *destination),
        )
    kept = Counter()
    while len(kept) < len(names) or min(kept.values()) < 500:
        kept.update(row["protocol"] for row in rows(queue, kept.total()))
        assert server.process.poll() is None, server.output
    assert server.end(seconds=SUPERVISOR_SECONDS) in (0, -signal.SIGTERM), server.output
    kept.update(row["protocol"] for row in rows(queue, kept.total()))
    shipper.finish()
    assert shipper.acknowledged <= set(bodies(queue))
    for name, sender in senders.items():
        assert sender.wait() != 0, "what it had to send was more"
        told = re.search(r'"acknowledged": (\d+)', sender.output)
        assert told is not None, sender.output
        assert 0 < int(told[1]) <= kept[name], name
    assert "Traceback" not in server.output
