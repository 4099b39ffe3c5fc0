"""A disk without room under the real process: nothing is lost, and it goes on by itself."""

import contextlib
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.clients import Shipper
from tests.chaos.gateways import LISTEN, bodies, lumberjack, until_stalled

pytestmark = pytest.mark.slow

NAMESPACES = (["unshare", "-rm"], ["unshare", "-m"])
"""Ways to a mount namespace of one's own: as anybody, or as root where that is forbidden."""


def segments(directory):
    return sorted(directory.glob("*.segment"))


def still_acknowledged_only_what_is_kept(shipper, queue):
    """What the shipper was told so far is in the queue, read while the disk is full."""
    told = set(shipper.acknowledged)
    assert told <= set(bodies(queue))
    return told


def limit_file_size(server, nbytes):
    _, most = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (nbytes, most))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no prlimit(2) here: Linux")
def test_a_file_size_limit_withholds_acks_until_it_is_lifted(launch, tmp_path):
    """FAULTS, disk full by RLIMIT_FSIZE, which gives short writes; LJ-13."""
    queue = tmp_path / "queue"
    server, port = lumberjack(launch, "--queue", queue)
    usual, _ = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    shippers = [Shipper(name, port) for name in ("a", "b")]
    for shipper in shippers:
        shipper.start()
        shipper.await_more(100)
    for _ in range(3):
        limit_file_size(server, segments(queue)[-1].stat().st_size + 7_000)
        until_stalled(queue)
        for shipper in shippers:
            still_acknowledged_only_what_is_kept(shipper, queue)
        assert server.process.poll() is None
        limit_file_size(server, usual)
        for shipper in shippers:
            shipper.await_more(200)
    for shipper in shippers:
        shipper.finish()
        assert shipper.connections == 1, "nobody was sent away: they only had to wait"
    server.end()
    found = bodies(queue)
    told = shippers[0].acknowledged | shippers[1].acknowledged
    assert told <= set(found)
    assert len(found) == len(set(found)), "what was tried again stands there once"


@pytest.fixture
def own_disk(launch, tmp_path):
    """Start a gateway whose queue is on a tmpfs of its own, which goes when the process goes."""
    if not (shutil.which("unshare") and shutil.which("mount")):
        pytest.skip(
            "a tmpfs of one's own needs unshare(1) and mount(1): apt-get install util-linux"
        )
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = f"mount -t tmpfs -o size=256k,mode=700 tmpfs {shlex.quote(str(directory))}"
    for namespace in NAMESPACES:
        tried = subprocess.run([*namespace, "sh", "-c", mount], capture_output=True, text=True)
        if tried.returncode == 0:
            break
    else:
        pytest.skip(
            "no mount namespace may be made here (it takes CAP_SYS_ADMIN or user namespaces), "
            f"so there is no small tmpfs: {tried.stderr.strip()}"
        )
    gateway = [sys.executable, "-m", "twisted", "--log-format=text", "lumberjack"]
    options = ["-e", LISTEN, "--queue", str(directory / "queue")]
    # A file which is in the way from the start: without it there is room again.
    fill = f"head -c 150000 /dev/zero >{shlex.quote(str(directory))}/other"
    script = f'{mount} && {fill} && exec "$@"'
    server = launch.command([*namespace, "sh", "-c", script, "sh", *gateway, *options])
    port = server.port("lumberjack")
    # The mount is in the namespace of the server alone.
    return server, port, Path(f"/proc/{server.pid}/root{directory}")


def test_a_full_disk_withholds_acks_until_there_is_room(launch, own_disk, tmp_path):
    """FAULTS, disk full on a small tmpfs; LJ-13: nothing lost, the process lives, it resumes."""
    server, port, disk = own_disk
    shippers = [Shipper(name, port) for name in ("a", "b")]
    for shipper in shippers:
        shipper.start()
    server.line("nothing can be acknowledged: no room on the disk")
    told = set()
    for shipper in shippers:
        told |= still_acknowledged_only_what_is_kept(shipper, disk / "queue")
    assert server.process.poll() is None
    (disk / "other").unlink()
    server.line("messages are acknowledged again")
    for shipper in shippers:
        shipper.await_more(100)
        shipper.finish()
        assert shipper.connections == 1
    found = bodies(disk / "queue")
    assert told < shippers[0].acknowledged | shippers[1].acknowledged <= set(found)
    assert len(found) == len(set(found))


def test_a_gateway_on_a_full_disk_ends_when_it_is_told_to(launch, own_disk, tmp_path):
    """FAULTS: what is not on disk is not acknowledged at the end either; the queue stays whole."""
    server, port, disk = own_disk
    shipper = Shipper("a", port)
    shipper.start()
    server.line("nothing can be acknowledged: no room on the disk")
    with own_view(disk) as kept:
        server.signal(signal.SIGTERM)
        assert server.wait() in (0, -signal.SIGTERM), server.output
        shipper.finish()
        assert shipper.acknowledged <= set(bodies(kept / "queue"))


@contextlib.contextmanager
def own_view(disk):
    """The same directory, which is there also when the process is gone."""
    descriptor = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
