"""A table is kept in a directory of this machine, or in an object store through delta-rs.

:func:`storage_at` makes either from a location and options; its result can be pickled, so that
tasks on other machines write files into the same table.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from ..core.errors import TableError
from .disk import OSTableDisk, TableDisk

LOG = "_delta_log"
PRIVATE = "_msgproto"
"""This folder of a table is for files that are no part of it; readers skip names with this
beginning.
"""
TEMPORARY_PREFIX = "_commit_"
TEMPORARY_SUFFIX = ".json.tmp"
"""delta-rs uses these names for the same purpose, so that either cleans up after the other."""
LOCAL_SCHEMES = frozenset({"", "file"})

CLIENT_OPTIONS: Mapping[str, str] = {
    "connect_timeout": "5s",
    "timeout": "60s",
    "max_retries": "3",
    "retry_timeout": "20s",
}
"""delta-rs' client gets these options unless the operator sets others.

By default it would try a store that does not answer for three minutes.
"""


class Storage(Protocol):
    """A table's place.  Paths are below the table, with ``/``.

    Methods raise FileNotFoundError for what is not there, and OSError for what fails.
    """

    location: str
    """This is a directory, or a URL that delta-rs reads."""
    options: Mapping[str, str]
    """These are delta-rs' storage options; they are empty for a directory."""

    @property
    def local(self) -> bool:
        """Whether files are on a disk whose durability is this package's work."""

    def log_names(self) -> list[str]:
        """Return the names in the log's folder, in no order; empty when there is none."""

    def read(self, path: str) -> bytes:
        """Return a whole file."""

    def size(self, path: str) -> int:
        """Return the size of a file in octets."""

    def delete(self, path: str) -> None:
        """Remove a file."""

    def filesystem(self) -> Any:
        """Return a pyarrow filesystem whose root is the table."""


@dataclass(slots=True)
class LocalStorage:
    """A table in a directory of this machine, or of a disk that machines share."""

    location: str
    disk: TableDisk = field(default_factory=OSTableDisk)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        return True

    def path(self, path: str) -> str:
        return os.path.join(self.location, path)

    def log_path(self, name: str = "") -> str:
        return os.path.join(self.location, LOG, name) if name else f"{self.location}/{LOG}"

    def temporary(self) -> str:
        return self.log_path(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")

    def put(self, path: str, octets: bytes) -> None:
        temporary = self.temporary()
        self.disk.write(temporary, octets)
        self.disk.sync(temporary)
        self.disk.rename(temporary, path)
        self.disk.sync_directory(os.path.dirname(path))

    def log_names(self) -> list[str]:
        try:
            return self.disk.names(self.log_path())
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes:
        return self.disk.read(self.path(path))

    def size(self, path: str) -> int:
        return self.disk.size(self.path(path))

    def delete(self, path: str) -> None:
        self.disk.remove(self.path(path))

    def filesystem(self) -> Any:
        return pafs.SubTreeFileSystem(self.location, pafs.LocalFileSystem())


@dataclass(slots=True)
class ObjectStorage:
    """A table in an object store that delta-rs knows."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        return False

    def log_names(self) -> list[str]:
        selector = pafs.FileSelector(LOG, allow_not_found=True)
        return [info.base_name for info in self.filesystem().get_file_info(selector)]

    def read(self, path: str) -> bytes:
        with self.filesystem().open_input_file(path) as file:
            octets: bytes = file.read()
            return octets

    def size(self, path: str) -> int:
        [info] = self.filesystem().get_file_info([path])
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(path)
        return int(info.size)

    def delete(self, path: str) -> None:
        self.filesystem().delete_file(path)

    def filesystem(self) -> Any:
        return pafs.PyFileSystem(_StoreFiles(self.location, dict(self.options)))


class _StoreFiles(DeltaStorageHandler):
    """delta-rs' filesystem, whose files also accept pyarrow's buffers."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        return pa.PythonFile(_OctetsOnly(self._handler.open_output_stream(path, metadata)))


class _OctetsOnly:
    """A file of delta-rs, whose ``write`` accepts nothing but ``bytes``."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, octets: Any) -> int:
        return int(self._file.write(bytes(octets)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def storage_at(
    location: str | Path, options: Mapping[str, str] | None = None, disk: TableDisk | None = None
) -> Storage:
    """Return the storage of a table.

    ``location`` is a directory, a ``file:`` URL or a URL of an object store (``s3://…``);
    ``options`` are delta-rs' storage options, for object stores alone.

    Raises:
        TableError: the location cannot hold a table.
    """
    text = str(location)
    parts = urlsplit(text) if "://" in text else urlsplit("")
    if not text:
        raise TableError("a table needs a location: a directory, or a URL such as s3://bucket/name")
    if parts.scheme not in LOCAL_SCHEMES:
        if disk is not None:
            raise ValueError("an object store has no disk")
        given = {name.lower(): value for name, value in (options or {}).items()}
        return ObjectStorage(text.rstrip("/"), {**CLIENT_OPTIONS, **given})
    if parts.netloc not in ("", "localhost"):
        raise TableError(f"{text} names a file of another machine, {parts.netloc}")
    if options:
        raise TableError(f"{text} is a directory: storage options ({', '.join(options)}) are not")
    path = unquote(parts.path) if parts.scheme else text
    return LocalStorage(os.path.abspath(path), disk or OSTableDisk())
