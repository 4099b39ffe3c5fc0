"""Read the state of a table at a version from its newest checkpoint and the versions after it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import TableError
from .actions import (
    Commit,
    DataFile,
    Metadata,
    ProtocolVersions,
    Torn,
    data_file,
    parse_commit,
    parse_metadata,
    parse_protocol,
    version_name,
)
from .storage import LOG, Storage, one_line, told

VERSION = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")

READ_ERRORS = (OSError, pa.ArrowException, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Listing:
    versions: tuple[int, ...]
    checkpoints: tuple[tuple[int, tuple[str, ...]], ...]  # complete ones, ascending

    @property
    def exists(self) -> bool:
        return bool(self.versions or self.checkpoints)

    def until(self, newest: int) -> range:
        """Return the versions up to ``newest``, which a listing may not show yet."""
        return range(self.versions[0] if self.versions else newest + 1, newest + 1)

    @property
    def newest(self) -> int:
        """Return the last version; -1 when there is none."""
        newest = self.checkpoints[-1][0] if self.checkpoints else -1
        return max(newest, self.versions[-1] if self.versions else -1)


@dataclass(slots=True)
class State:
    """What a table is at ``version``; :meth:`apply` advances it by one version."""

    version: int = -1
    metadata: Metadata | None = None
    protocol: ProtocolVersions | None = None
    transactions: dict[str, int] = field(default_factory=dict)
    files: dict[str, DataFile] | None = None  # by path, once needed

    def apply(self, commit: Commit) -> None:
        self.version = commit.version
        self.metadata = commit.metadata or self.metadata
        self.protocol = commit.protocol or self.protocol
        self.transactions.update(commit.transactions)
        if self.files is not None:
            for path in commit.removed:
                self.files.pop(path, None)
            self.files.update((file.path, file) for file in commit.added)


@dataclass(frozen=True, slots=True)
class Base:
    """A checkpoint, or, with version -1 and no names, the beginning of the log."""

    version: int = -1
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    state: State
    base: Base
    commits: tuple[Commit, ...]


def refused(storage: Storage, error: BaseException) -> bool:
    """Return whether a file could only not be read just now, so that it may be whole.

    For torn ones pyarrow raises OSError, too, but only the operating system's errors have a number;
    an object store's have none.
    """
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
        return False
    return not storage.local or error.errno is not None


def unreadable(storage: Storage, name: str, error: BaseException) -> str:
    what = "cannot be read" if refused(storage, error) else "is torn"
    return f"checkpoint {name} of {storage.location} {what}: {one_line(error)}"


def list_log(storage: Storage) -> Listing:
    versions: list[int] = []
    parts: dict[tuple[int, int], list[str]] = {}
    for name in storage.log_names():
        if found := VERSION.fullmatch(name):
            versions.append(int(found[1]))
        elif found := CHECKPOINT.fullmatch(name):
            parts.setdefault((int(found[1]), int(found[3] or 1)), []).append(name)
    whole = {
        version: tuple(sorted(names))
        for (version, count), names in sorted(parts.items())
        if len(names) == count
    }
    return Listing(tuple(sorted(versions)), tuple(sorted(whole.items())))


def read_version(storage: Storage, version: int) -> Commit:
    """Return a version; FileNotFoundError when it is not there, Torn when it is not whole."""
    return parse_commit(version, storage.read(f"{LOG}/{version_name(version)}"))


def stored_actions(
    storage: Storage, name: str, wanted: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the actions of these kinds in a checkpoint's file; one of READ_ERRORS if it is torn."""
    with storage.filesystem().open_input_file(f"{LOG}/{name}") as source:
        parquet = pq.ParquetFile(source)
        kinds = [kind for kind in wanted if kind in parquet.schema_arrow.names]
        table = parquet.read(columns=kinds)
    for kind in kinds:
        for action in table.column(kind).drop_null().to_pylist(maps_as_pydicts="strict"):
            yield kind, action


def read_checkpoint(storage: Storage, version: int, names: Sequence[str], *, files: bool) -> State:
    """Return the state that a checkpoint holds; one of READ_ERRORS when it is torn."""
    state = State(version, files={} if files else None)
    wanted = ["txn", "metaData", "protocol"] + (["add"] if files else [])
    for name in names:
        for kind, action in stored_actions(storage, name, wanted):
            if kind == "txn":
                state.transactions[action["appId"]] = action["version"]
            elif kind == "metaData":
                state.metadata = parse_metadata(action)
            elif kind == "protocol":
                state.protocol = parse_protocol(action)
            elif state.files is not None:
                file = data_file(action)
                state.files[file.path] = file
    if state.metadata is None or state.protocol is None:
        raise KeyError(f"checkpoint {version} names no table")
    return state


def check_checkpoint(storage: Storage, names: Sequence[str]) -> None:
    """Read a checkpoint from end to end; one of READ_ERRORS when it is torn."""
    filesystem = storage.filesystem()
    for name in names:
        with filesystem.open_input_file(f"{LOG}/{name}") as source:
            pq.ParquetFile(source).read()


def load(storage: Storage, *, files: bool = False, until: int | None = None) -> Loaded:
    """Return the newest state of a table, or its state at the version ``until``."""
    with told(f"cannot read {storage.location}"):
        listing = list_log(storage)
    if not listing.exists:
        raise TableError(f"{storage.location} is not a table: it has no {LOG}")
    newest = listing.newest if until is None else min(until, listing.newest)
    state, base = base_state(storage, listing, newest, files=files)
    commits = []
    # A listing of a store, or of a shared disk, may not show yet what is there.
    while until is None or state.version < until:
        commit = _next(storage, state.version + 1, newest)
        if commit is None:
            if until is not None:
                raise TableError(_lacks(storage, newest + 1))
            break
        commits.append(commit)
        state.apply(commit)
    if state.metadata is None or state.protocol is None:
        raise TableError(f"the log of {storage.location} names no table up to version {newest}")
    return Loaded(state, base, tuple(commits))


def base_state(
    storage: Storage, listing: Listing, newest: int, *, files: bool
) -> tuple[State, Base]:
    """Return the newest checkpoint that can be read and is followed by all versions."""
    versions = set(listing.versions)
    torn = unread = ""
    for version, names in reversed(listing.checkpoints):
        if version > newest or not versions.issuperset(range(version + 1, newest + 1)):
            continue
        try:
            return read_checkpoint(storage, version, names, files=files), Base(version, names)
        except READ_ERRORS as error:
            if refused(storage, error):
                unread = unread or f"checkpoint {version}: {one_line(error)}"
            torn = torn or f"; checkpoint {version} cannot be read ({one_line(error)})"
    missing = next((v for v in range(newest + 1) if v not in versions), None)
    if missing is not None and unread:
        raise TableError(f"cannot read {storage.location}: {unread}")
    if missing is not None:
        raise TableError(_lacks(storage, missing, torn))
    return State(files={} if files else None), Base()


def _lacks(storage: Storage, version: int, torn: str = "") -> str:
    return (
        f"the log of {storage.location} lacks version {version}{torn}; restore the table's folder "
        "from a copy, or land the queues in a new table"
    )


def _next(storage: Storage, version: int, newest: int) -> Commit | None:
    """Return a version, or None behind ``newest``; TableError when it is not there or torn."""
    try:
        return read_version(storage, version)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise TableError(f"cannot read {storage.location}: {one_line(error)}") from error
        if version > newest:
            return None
        raise TableError(
            f"version {version} of {storage.location} went while its log was read; try again"
        ) from None
    except Torn as error:
        raise TableError(
            f"version {version} of {storage.location} is torn: {error}; if it is the last one, "
            "the next start of a bridge mends it, otherwise restore the table's folder from a copy"
        ) from None
