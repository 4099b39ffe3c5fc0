"""What a gateway sets in its process: it keeps memory that it has used, since glibc would give each
large buffer back and the kernel clear it again, and it counts by a clock that nobody can set, or
acknowledgements of what is on disk would wait as long as the clock was set back.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ..core.errors import ConfigurationError

KEPT_BYTES: Final = 64 << 20  # free, at the end of the heap: what all reads of some turns need

HEAP_BYTES_MAX: Final = 32 << 20  # above it pieces have mappings of their own; glibc allows no more

SWITCH_SECONDS: Final = 0.001  # a thread waits for the interpreter; Python's default is 5 ms


@contextmanager
def alone_in(folder: str | os.PathLike[str]) -> Iterator[int]:
    """Let other processes of ours that change something in a directory wait meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(ImportError, OSError):  # Windows locks none, nor does NFS a directory
            from fcntl import LOCK_EX, flock

            flock(descriptor, LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def spare_lasting_objects() -> None:
    """Let the garbage collector skip what exists now: a full collection would need 50 ms."""
    gc.collect()
    gc.freeze()


def share_processor() -> None:
    """Let the queue's writer have the interpreter after a millisecond, several times a group."""
    sys.setswitchinterval(SWITCH_SECONDS)


def keep_freed_memory() -> None:
    """Ask glibc, where it is, to keep what this process frees, up to :data:`KEPT_BYTES`."""
    with suppress(AttributeError, OSError, TypeError):  # TypeError: Windows has no such library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, HEAP_BYTES_MAX)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_memory() -> None:
    """Return free memory to the kernel: glibc's users wait 0.1 s or more for some hundred MiB."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(KEPT_BYTES)


# ── a reactor that counts by a clock nobody can set ─────────────────────────────────────────────


def count_monotonically(reactor: Any) -> None:
    """Not if it has timers already: they would fire at a wrong time."""
    if not reactor.getDelayedCalls():
        reactor.seconds = time.monotonic


def check_twistd(parent: Any) -> None:
    if parent is None or "nodaemon" not in parent:
        return  # ``python -m twisted`` has none of these
    jail = parent["chroot"] or ""

    def found_at(path: str) -> str:
        return jail + path if os.path.isabs(path) else path

    for option, place in (("chroot", jail), ("rundir", found_at(parent["rundir"]))):
        if place and not os.path.isdir(place):
            raise ConfigurationError(f"--{option}: there is no directory {place}; make it first")
    own = {"uid": os.geteuid(), "gid": os.getegid()}
    for option in ("chroot", "uid", "gid"):
        if own["uid"] and parent[option] not in (None, own.get(option)):
            raise ConfigurationError(f"--{option} is for root alone: leave it out")
    uid = parent["uid"]
    if uid is not None and parent["gid"] is None and not _is_user(uid):
        raise ConfigurationError(f"--uid: there is no user of the number {uid} here")
    log = parent["logfile"] or ("" if parent["nodaemon"] else "twistd.log")
    if parent["syslog"] or parent["logger"] or log == "-":
        log = ""
    pid = parent["pidfile"] and found_at(os.path.abspath(parent["pidfile"]))
    for option, path, instead in (
        ("pidfile", pid, "--pidfile= goes without one"),
        ("logfile", log, "name another file"),
    ):
        if path and (why := _unwritable(path)):
            raise ConfigurationError(f"--{option}: {parent[option] or path}: {why}; {instead}")


def _is_user(uid: int) -> bool:
    import pwd

    try:
        return bool(pwd.getpwuid(uid))
    except (KeyError, OverflowError):
        return False


def _unwritable(path: str) -> str:
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        return os.strerror(errno.EISDIR)
    if not os.path.isdir(folder):
        return os.strerror(errno.ENOENT)
    place = path if os.path.exists(path) else folder
    return "" if os.access(place, os.W_OK) else os.strerror(errno.EACCES)


def forget_other_pid(parent: Any) -> None:
    """Remove ``twistd``'s PID file if its number is another's now; in a container often our own."""
    path = (parent or {}).get("pidfile")
    with suppress(OSError, ValueError):
        if path:
            written = Path(path).read_text()  # a power failure may leave nothing
            if not (written and _is_twistd(int(written))) and os.path.isfile(path):
                os.unlink(path)


def _is_twistd(pid: int) -> bool:
    """Return whether that may be; ``twistd`` itself sees to the numbers that nobody has."""
    if pid == os.getpid():
        return False
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # no such process, or a system without /proc
        return True
    return any(b"twist" in os.path.basename(word) for word in words)
