"""A table's files: what its log needs of the place where they are, and such a place on a disk."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Protocol

import pyarrow.fs as pafs

from ..core.disk import SHARED_DISK, Disk, read_file, sync_file, write_file
from ..core.errors import TableError

LOG = "_delta_log"
PRIVATE = "_msgproto"  # no part of the table: readers skip names that begin so
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
ERROR_LINE_MAX = 300


def temporary_name() -> str:
    """Return one of delta-rs for the same purpose, so that either cleans up after the other."""
    return f"_commit_{uuid.uuid4().hex}.json.tmp"


def is_temporary(name: str) -> bool:
    return name.startswith("_commit_") and name.endswith(".json.tmp")


class Storage(Protocol):
    """A table's place; paths are below it.  FileNotFoundError for what is not there, or OSError."""

    location: str  # a directory, or a URL of an object store
    options: Mapping[str, str]  # an object store's

    @property
    def local(self) -> bool:
        """Whether files are on a disk whose durability is this package's work."""

    def log_names(self) -> list[str]:
        """Return the names in the log's folder, in no order; empty when there is none."""

    def log_times(self) -> dict[str, float]:
        """Return when each file in the log's folder was written, in seconds since 1970."""

    def read(self, path: str) -> bytes: ...

    def size(self, path: str) -> int: ...

    def put(self, path: str, data: bytes) -> None:
        """Put a file in the place of what may be there: durably, in one step."""

    def put_new(self, path: str, data: bytes) -> None:
        """Make a whole, durable file, of several writers by one alone.

        FileExistsError: the path is used (in an object store perhaps by this call); OSError: it may
        be there, or come yet.
        """

    def sync(self, renewed: Iterable[str], files: Iterable[str]) -> None:
        """Make others' files durable; ``renewed`` are written anew.

        After a failed sync the next may succeed without the disk: pages were called clean.
        """

    def delete(self, path: str) -> None: ...

    def filesystem(self) -> Any:
        """Return a pyarrow filesystem whose root is the table."""

    def prove(self) -> None:
        """Raise TableError if two writers could make the same file."""


@dataclass(slots=True)
class LocalStorage:
    """A table in a directory of this machine, or of a disk that machines share.

    delta-rs syncs nothing; ours is written beside, synced, and linked, which fails if the name is
    used; then the folder is synced. So a loss of power tears none, and of two writers one fails.
    """

    location: str
    disk: Disk = SHARED_DISK
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        return True

    def path(self, path: str) -> str:
        return os.path.join(self.location, path)

    def log_path(self, name: str = "") -> str:
        return os.path.join(self.location, LOG, name) if name else f"{self.location}/{LOG}"

    def log_names(self) -> list[str]:
        try:
            return self.disk.names(self.log_path())
        except FileNotFoundError:
            return []

    def log_times(self) -> dict[str, float]:
        found = {}
        for name in self.log_names():
            with contextlib.suppress(FileNotFoundError):  # another writer cleans, too
                found[name] = self.disk.stat(self.log_path(name)).written / 1e6
        return found

    def read(self, path: str) -> bytes:
        data = read_file(self.disk, self.path(path))
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path(path))
        return data

    def size(self, path: str) -> int:
        return self.disk.stat(self.path(path)).nbytes

    def put(self, path: str, data: bytes) -> None:
        with self._temporary(data) as temporary:
            self.disk.rename(temporary, self.path(path))
        self.disk.sync_directory(os.path.dirname(self.path(path)))

    def put_new(self, path: str, data: bytes) -> None:
        whole = self.path(path)
        with self._temporary(data, stays=True) as temporary:
            try:
                self.disk.link(temporary, whole)
            except FileExistsError:
                raise
            except OSError as error:
                if error.errno in NO_LINKS:
                    raise TableError(
                        f"{self.location} is on a file system without hard links, which "
                        "cannot give a version to one writer alone; put the table elsewhere"
                    ) from error
                raise
        self.disk.sync_directory(os.path.dirname(whole))

    def sync(self, renewed: Iterable[str], files: Iterable[str]) -> None:
        folders = {self.log_path()}
        for path in renewed:  # whoever reads meanwhile sees the same bytes
            with self._temporary(self.read(path)) as temporary:
                self.disk.rename(temporary, self.path(path))
        for path in map(self.path, files):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, so not needed
                sync_file(self.disk, path)
                folders.add(os.path.dirname(path))
        for folder in sorted(folders):
            self.disk.sync_directory(folder)

    @contextlib.contextmanager
    def _temporary(self, data: bytes, *, stays: bool = False) -> Iterator[str]:
        """A synced file beside the log's; it is gone afterwards unless it got another name."""
        path = self.log_path(temporary_name())
        try:
            write_file(self.disk, path, data)
            yield path
        except BaseException:
            stays = True
            raise
        finally:
            if stays:
                with contextlib.suppress(OSError):
                    self.disk.remove(path)

    def make_folder(self, path: str) -> None:
        """Make the folder of a file of the table; its name survives."""
        folder = os.path.dirname(self.path(path))
        self.disk.make_directory(folder, top=self.location)

    def delete(self, path: str) -> None:
        self.disk.remove(self.path(path))

    def filesystem(self) -> Any:
        return pafs.SubTreeFileSystem(self.location, pafs.LocalFileSystem())

    def prove(self) -> None:
        """Links do: see :meth:`put_new`."""


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Raise TableError, which begins with ``what``, for an OSError."""
    try:
        yield
    except OSError as error:
        raise TableError(f"{what}: {one_line(error)}") from error


def verify_tells(location: str) -> str:
    """Return which command says more about what is wrong with a table."""
    return f"'msgproto table verify {quote(location)}' tells more"


def one_line(error: BaseException) -> str:
    """Return an error's text on one line, without markup and arrows of a store's answer."""
    text = re.split(r"\n\nDebug source|\n +0: ", str(error))[0]  # and no backtrace
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
    code = re.search(r"<Code>(.*?)</Code>", text, re.DOTALL)
    if code:
        message = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
        text = f"{code[1]}: {message[1]}" if message else code[1]
    text = re.sub(r"\x1b\[[0-9;]*m|↳", "", text)
    return " ".join(text.split())[:ERROR_LINE_MAX] or type(error).__name__
