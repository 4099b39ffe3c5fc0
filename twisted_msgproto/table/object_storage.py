"""A table in an object store, through obstore: puts that fail when the object exists.

While a request is under way other threads run, so a store that says nothing holds up nobody else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow as pa
import pyarrow.fs as pafs
from obstore.exceptions import BaseError

from ..core.disk import SHARED_DISK, Disk
from ..core.errors import TableError
from ..core.limits import read_seconds
from .storage import LOG, PRIVATE, LocalStorage, Storage, one_line

LOCAL_SCHEMES = frozenset({"", "file"})

DEFAULTS: Mapping[str, str] = {
    "connect_timeout": "5s",
    "timeout": "60s",
    "max_retries": "3",
    "retry_timeout": "20s",
}
"""Otherwise a store that does not answer is tried for three minutes."""

CLIENT = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type"),
        *("http1_only", "http2_only", "http2_keep_alive_interval", "http2_keep_alive_timeout"),
        *("http2_keep_alive_while_idle", "http2_max_frame_size", "pool_idle_timeout"),
        *("pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes"),
        *("randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent"),
    }
)
"""What concerns the HTTP client; obstore panics when it finds one of these among the rest."""

TIME = re.compile(r".*(timeout|interval|init_backoff|max_backoff)")  # options that are times

RETRIES = ("max_retries", "retry_timeout")
BACKOFF = "backoff_config."
BACKOFFS = ("init_backoff", "max_backoff", "base")
NUMBERS = ("max_retries", "base")
PREFIXES = ("aws_", "azure_", "google_")
UNSAFE_RENAME = "allow_unsafe_rename"
CONDITIONAL_PUT = "conditional_put"
TRUTH = frozenset({"1", "true", "yes", "y", "ok", "on"})

MILLISECOND = timedelta(milliseconds=1)
NUMBER_MAX = 1_000_000  # obstore, and a timedelta, take no number of any size

PROBE_WRITERS = 4
PROBE_ROUNDS = 4  # of a race for one object: on a careless server mostly two win
READ_AHEAD_BYTES = 1 << 18  # a file is read in steps of this size; a footer mostly fits into one


class SortedOptions(NamedTuple):
    config: dict[str, str]
    client: dict[str, str]
    retry: dict[str, Any]


def sorted_options(options: Mapping[str, str]) -> SortedOptions:
    """Divide options of any case, named as delta-rs does, among what obstore tells apart."""
    refuse_unsafe("storage option", options)
    found = SortedOptions({}, {}, {})
    for given, value in {**DEFAULTS, **options}.items():
        name = given.lower()
        plain = next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), name)
        part = name.removeprefix(BACKOFF)
        read: Callable[[str, str], object] = _number if part in NUMBERS else _time
        if name.endswith(UNSAFE_RENAME):
            continue  # it is false
        if plain in CLIENT:
            found.client[plain] = value
        elif name in RETRIES:
            found.retry[name] = read(given, value)
        elif name.startswith(BACKOFF) and part in BACKOFFS:
            found.retry.setdefault("backoff", {})[part] = read(given, value)
        else:
            found.config[name] = value
    return found


def plain_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options in lower case, and times as delta-rs, too, reads them: with a unit."""
    return {
        name.lower(): f"{_time(name, value) // MILLISECOND}ms"
        if TIME.fullmatch(name.lower())
        else value
        for name, value in options.items()
    }


def refuse_unsafe(source: str, values: Mapping[str, str]) -> None:
    """Raise TableError, naming the option, if two writers could make the same version under it."""
    for name, value in values.items():
        lower = name.lower()
        if lower.endswith(UNSAFE_RENAME) and value.lower() in TRUTH:
            raise TableError(f"the {source} {name} lets two writers overwrite each other")
        if lower.endswith(CONDITIONAL_PUT) and value.lower() == "disabled":
            raise TableError(f"the {source} {name} forbids what keeps writers apart")


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,99}", value):
        raise TableError(f"the storage option {name} is a whole number, not {value!r}")
    if int(value) > NUMBER_MAX:
        raise TableError(f"the storage option {name} is at most {NUMBER_MAX}, not {value}")
    return int(value)


def _time(name: str, value: str) -> timedelta:
    try:
        seconds = read_seconds(value)
    except ValueError:
        raise TableError(
            f"the storage option {name} is a duration like 20s, not {value!r}"
        ) from None
    if seconds > NUMBER_MAX:
        raise TableError(f"the storage option {name} is at most {NUMBER_MAX} s, not {value!r}")
    return timedelta(seconds=seconds)


@functools.lru_cache(maxsize=16)
def _opened(location: str, options: tuple[tuple[str, str], ...], process: int) -> Any:
    """Return obstore's handle; one a process, because its threads do not outlive a fork."""
    config, client, retry = sorted_options(dict(options))
    given: dict[str, Any] = {"client_options": client, "retry_config": retry}
    if config:
        given["config"] = config
    try:
        return obstore.store.from_url(location, **given)
    except (BaseError, TypeError, ValueError, OSError) as error:
        raise TableError(f"cannot use {location}: {one_line(error)}") from error


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """An object store's own errors are OSErrors here; one that is not there, or is, stays so."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except obstore.exceptions.AlreadyExistsError as error:
        raise FileExistsError(one_line(error)) from error
    except (BaseError, OSError) as error:
        raise OSError(one_line(error)) from error


@dataclass(slots=True)
class ObjectStorage:
    location: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        return False

    @property
    def store(self) -> Any:
        return _opened(self.location, tuple(sorted(self.options.items())), os.getpid())

    def log_names(self) -> list[str]:
        return list(self.log_times())

    def log_times(self) -> dict[str, float]:
        with _os_errors():
            objects = obstore.list_with_delimiter(self.store, LOG)["objects"]
        return {one["path"].rpartition("/")[2]: one["last_modified"].timestamp() for one in objects}

    def read(self, path: str) -> bytes:
        with _os_errors():
            return bytes(obstore.get(self.store, path).bytes())

    def size(self, path: str) -> int:
        with _os_errors():
            return int(obstore.head(self.store, path)["size"])

    def put(self, path: str, data: bytes) -> None:
        with _os_errors():
            obstore.put(self.store, path, data)

    def put_new(self, path: str, data: bytes) -> None:
        with _os_errors():
            obstore.put(self.store, path, data, mode="create")

    def sync(self, renewed: Iterable[str], files: Iterable[str]) -> None:
        """Do nothing: what a store has answered is durable."""

    def delete(self, path: str) -> None:
        with _os_errors():
            obstore.delete(self.store, path)

    def filesystem(self) -> Any:
        return pafs.PyFileSystem(_Files(self.store, self.location))

    def prove(self) -> None:
        refuse_unsafe("environment variable", os.environ)
        paths = [f"{PRIVATE}/probe-{uuid.uuid4().hex}" for _ in range(PROBE_ROUNDS)]
        try:
            exclusive = all(self._winners(path) == 1 for path in paths)
        except OSError as error:
            raise TableError(f"cannot use {self.location}: {one_line(error)}") from error
        finally:
            for path in paths:
                with contextlib.suppress(OSError, TableError):
                    self.delete(path)
        if not exclusive:
            raise TableError(
                f"{self.location} is in a store which takes a second conditional put of "
                "the same object, so two writers would lose rows; use a store with conditional puts"
            )

    def _winners(self, path: str) -> int:
        """How many of some writers at once, and of one behind them, have made an object."""
        together = threading.Barrier(PROBE_WRITERS)
        answers: list[OSError | TableError | None] = []

        def write() -> None:
            together.wait()
            answers.append(self._refusal(path))

        # Daemons: a process that is told to end does not wait for them.
        threads = [threading.Thread(target=write, daemon=True) for _ in range(PROBE_WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        answers.append(self._refusal(path))
        for answer in answers:
            if answer is not None and not isinstance(answer, FileExistsError):
                raise answer
        return answers.count(None)

    def _refusal(self, path: str) -> OSError | TableError | None:
        try:
            self.put_new(path, uuid.uuid4().bytes)
        except (OSError, TableError) as error:
            return error
        return None


ONE_SLASH = re.compile(r"(s3a?|gs|az|abfss?|adl|https?):/(?!/)")


def storage_at(
    location: str | Path, options: Mapping[str, str] | None = None, disk: Disk | None = None
) -> Storage:
    """Return the storage of a directory, or of a URL (``s3://…``), which alone has ``options``."""
    text = re.sub(r"^file:/(?!/)", "file:///", str(location))  # as Hadoop and Spark write it
    try:
        parts = urlsplit(text) if "://" in text else urlsplit("")
    except ValueError as error:
        raise TableError(f"cannot use {text}: {error}") from None
    if ONE_SLASH.match(text):
        raise TableError(f"{text} is no URL: two slashes follow the colon, as in s3://bucket/name")
    if not text:
        raise TableError("a table needs a location: a directory, or a URL such as s3://bucket/name")
    if parts.scheme not in LOCAL_SCHEMES:
        if disk is not None:
            raise ValueError("an object store has no disk")
        if parts.scheme == "memory":
            raise TableError(f"{text} ends with its process: name a directory, or s3://bucket/name")
        if parts.query or parts.fragment:
            raise TableError(f"{text}: no table's location has ? or # in it")
        return ObjectStorage(text.rstrip("/"), plain_options(options or {}))
    if parts.netloc not in ("", "localhost"):
        raise TableError(f"{text} names a file of another machine, {parts.netloc}")
    if options:
        raise TableError(f"{text} is a directory: storage options ({', '.join(options)}) are not")
    path = unquote(parts.path) if parts.scheme else text
    return LocalStorage(os.path.abspath(path), disk or SHARED_DISK)


class _Files(pafs.FileSystemHandler):
    """A table's objects as a filesystem of pyarrow; folders are what is before a slash."""

    def __init__(self, store: Any, location: str) -> None:
        self._store = store
        self._location = location

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Files) and self._location == other._location

    def __ne__(self, other: object) -> bool:
        return not self == other

    def get_type_name(self) -> str:
        return "obstore"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> pafs.FileInfo:
        with _os_errors():
            try:
                return _described(obstore.head(self._store, path))
            except FileNotFoundError:
                below = obstore.list_with_delimiter(self._store, path)
        there = below["objects"] or below["common_prefixes"]
        return pafs.FileInfo(path, pafs.FileType.Directory if there else pafs.FileType.NotFound)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        # All below it: nobody asks for less, and a store has no folders.
        with _os_errors():
            found = obstore.list(self._store, selector.base_dir.strip("/") or None)
            return [_described(one) for part in found for one in part]

    def create_dir(self, path: str, recursive: bool) -> None:
        """A folder is there as soon as something is in it."""

    def delete_file(self, path: str) -> None:
        with _os_errors():
            obstore.delete(self._store, path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with _os_errors():
            size = obstore.head(self._store, path)["size"]
            file = obstore.open_reader(self._store, path, buffer_size=READ_AHEAD_BYTES, size=size)
        return pa.PythonFile(_Input(file, size), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Mapping[str, str] | None) -> pa.NativeFile:
        with _os_errors():
            return pa.PythonFile(_Output(obstore.open_writer(self._store, path)), mode="w")

    def _refused(self, *words: object) -> None:
        raise OSError("a table's files are neither moved, copied nor extended")

    delete_dir = delete_dir_contents = delete_root_dir_contents = _refused
    move = copy_file = open_append_stream = _refused


def _described(one: Mapping[str, Any]) -> pafs.FileInfo:
    modified = int(one["last_modified"].timestamp() * 1e9)
    return pafs.FileInfo(one["path"], pafs.FileType.File, size=one["size"], mtime_ns=modified)


class _Input:
    """A file of obstore for pyarrow: bytes are Python's own, errors the system's."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._size = size
        self.closed = False

    def read(self, nbytes: int | None = None) -> bytes:
        with _os_errors():
            left = self._size - self._file.tell()
            wanted = left if nbytes is None or nbytes < 0 else min(nbytes, left)
            return bytes(self._file.read(wanted)) if wanted > 0 else b""

    def seek(self, position: int, whence: int = 0) -> int:
        with _os_errors():
            return int(self._file.seek(position, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.close()


class _Output:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.closed = False

    def write(self, data: Any) -> int:
        with _os_errors():
            plain = bytes(data)
            self._file.write(plain)
        return len(plain)

    def flush(self) -> None:
        """Nothing is there before the file is closed."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _os_errors():
                self._file.close()
