"""A disk without room under the real process: nothing is lost, and it goes on by itself."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.clients import Shipper
from tests.chaos.gateways import LISTEN, bodies, until_stalled

pytestmark = pytest.mark.slow

NAMESPACES = (["unshare", "-rm"], ["unshare", "-m"])
"""Ways to a mount namespace of one's own: as anybody, or as root where that is forbidden."""


def still_acknowledged_only_what_is_kept(shipper, queue):
    """What the shipper was told so far is in the queue, read while the disk is full."""
    told = set(shipper.acknowledged)
    assert told <= set(bodies(queue))
    return told


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


def test_a_gateway_on_a_full_disk_withholds_acks_until_there_is_room_and_ends_when_told(
    launch, own_disk
):
    """FAULTS, disk full on a small tmpfs; LJ-13: nothing lost, the process lives, it resumes.

    What is not on disk is not acknowledged at the end either; the queue stays whole.
    """
    server, port, disk = own_disk
    shippers = [Shipper(name, port, pace=0.0) for name in ("a", "b")]
    for shipper in shippers:
        shipper.start()
    server.line("nothing can be acknowledged: no room on the disk")
    told = set()
    for shipper in shippers:
        told |= still_acknowledged_only_what_is_kept(shipper, disk / "queue")
    assert server.process.poll() is None
    (disk / "other").unlink()
    server.line("messages are acknowledged again")
    until_stalled(disk / "queue")  # it does not say so twice in a minute
    assert told < shippers[0].acknowledged | shippers[1].acknowledged
    assert all(shipper.connections == 1 for shipper in shippers), "they only had to wait"
    with own_view(disk) as kept:
        server.signal(signal.SIGTERM)
        assert server.wait() in (0, -signal.SIGTERM), server.output
        for shipper in shippers:
            shipper.finish()
        found = bodies(kept / "queue")
    assert shippers[0].acknowledged | shippers[1].acknowledged <= set(found)
    assert len(found) == len(set(found)), "what was tried again stands there once"


@contextlib.contextmanager
def own_view(disk):
    """The same directory, which is there also when the process is gone."""
    descriptor = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
