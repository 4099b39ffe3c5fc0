"""What belongs to one bridge alone: lock files that die with their owner, and folders with one.

Bridges share a table, a queue and the system's temporary directory.  What is another's is known by
its lock and by nothing else: neither by its name nor by its age.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import ConfigurationError

LOCK = "lock"

SCRATCH = ("local", "tmp", "warehouse")  # of no use once their bridge has ended


_held: dict[Path, int] = {}  # the descriptors that hold this process's own folders


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; ConfigurationError, which says ``what``, if another does."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = _lock(path)
    except OSError as error:
        raise ConfigurationError(f"cannot lock {path}: {error.strerror}") from None
    if descriptor is None:
        owner = ""
        with contextlib.suppress(OSError):
            owner = path.read_text(errors="replace").strip()
        raise ConfigurationError(f"{what} is in use by another bridge (pid {owner or 'unknown'})")
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def own_folder(above: Path, name: str) -> Iterator[Path]:
    """Hold ``name``, or the first free ``name.2`` … below ``above``; SCRATCH in it is emptied.

    SCRATCH is removed at the end, also what killed bridges left beside it. Raises OSError.
    """
    above.mkdir(parents=True, exist_ok=True)
    folder, number = above / name, 1
    while (descriptor := _lock(_made(folder) / LOCK)) is None:
        number += 1
        folder = above / f"{name}.{number}"
    try:
        _clear(folder)
        for other in above.iterdir():
            with contextlib.suppress(OSError):  # no folder of a bridge, or another user's
                _clear_left(other)
        for part in SCRATCH:
            _made(folder / part)
        _held[folder] = descriptor
        yield folder
    finally:
        _held.pop(folder, None)
        _clear(folder)
        os.close(descriptor)


def descriptors_of(folder: Path) -> tuple[int, ...]:
    """Return what holds an own folder: who inherits it holds the folder, too, until it ends."""
    return (_held[folder],) if folder in _held else ()


def private_directory() -> Path:
    try:
        path = _made(Path(tempfile.gettempdir()) / f"twisted-msgproto-{os.getuid()}")
    except OSError as error:
        raise ConfigurationError(
            f"there is no directory for temporary files ({error.strerror}): set TMPDIR to one that "
            "can be written"
        ) from None
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise ConfigurationError(
            f"{path} is not this user's alone: remove it, or set TMPDIR to another directory"
        )
    return path


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _lock(path: Path, flags: int = os.O_CREAT) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:  # nobody knows whose it is
        os.close(descriptor)
        raise OSError(error.errno, error.strerror, str(path)) from None
    return descriptor


def _clear_left(folder: Path) -> None:
    descriptor = _lock(folder / LOCK, 0)
    if descriptor is not None:
        try:
            _clear(folder)
        finally:
            os.close(descriptor)


def _clear(folder: Path) -> None:
    for part in SCRATCH:
        shutil.rmtree(folder / part, ignore_errors=True)
    remove_halves(folder, "")


def remove_halves(directory: Path, name: str) -> None:
    """Remove what a killed one was writing in the place of ``name…``; for who has its lock."""
    for path in directory.glob(f".{name}*"):
        with contextlib.suppress(OSError):
            path.unlink()
