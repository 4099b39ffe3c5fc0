"""A Delta table as its writer sees it: one log, and in it how far every gateway has landed.

The table's log is the only place which says what has landed.  A commit names the files of a batch
and, in the same version, the new place of every gateway in it.  Two writers of one gateway exclude
each other here; writers of different gateways do not disturb each other.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from ..core.errors import Overtaken, TableChanged, TableError
from ..queue.lineage import Landed
from .actions import (
    Commit,
    DataFile,
    Metadata,
    Proposal,
    Run,
    Torn,
    landed_of,
    version_name,
)
from .disk import TableDisk
from .local_commit import LocalCommits
from .object_commit import ObjectCommits
from .properties import arrow_schema, incompatible, metadata_of, unknown_features
from .snapshot import State, list_log, load, load_with_commits, one_line, read_version
from .storage import LOG, LocalStorage, ObjectStorage, Storage, storage_at

ATTEMPTS_MAX = 1000
"""How often a commit tries the next number before it gives up: so many writers are a fault."""


class Commits(Protocol):
    """Adds versions to a log: on a disk, or in an object store."""

    def create(self, metadata: Metadata, run: Run) -> None:
        """Make version 0; FileExistsError if there is a table, OSError if that failed."""

    def attempt(self, version: int, proposal: Proposal) -> None:
        """Make the version after ``version``; FileExistsError if somebody else did."""

    def sync(self, commits: Sequence[Commit]) -> None:
        """Make versions, and the files which they name, durable."""


class Table:
    """One Delta table.  Not for several threads at once.

    Every method raises TableError, with one line, when the table cannot do what was asked.
    """

    def __init__(
        self, storage: Storage, commits: Commits, state: State, after: Sequence[Commit]
    ) -> None:
        self._storage = storage
        self._commits = commits
        self._state = state
        assert state.metadata is not None
        self._accepted = state.metadata
        self._movers: dict[str, Commit] = {}
        self._unsynced: list[Commit] = []
        self._unconfirmed: list[Commit] = []
        self.seen: Callable[[Commit], None] = lambda commit: None
        """Called with every version which is read from now on, in the middle of a commit too.

        What it raises ends the call which met the version: nothing lands on top of it.
        """
        for commit in after:
            self._note(commit)

    @classmethod
    def open(
        cls,
        location: str | Path,
        storage: Mapping[str, str] | None = None,
        *,
        disk: TableDisk | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Table:
        """Open a table as it is now.

        Raises:
            TableError: there is no table, its log is torn, or its protocol is not known here.
        """
        place = storage_at(location, storage, disk)
        state, after = load_with_commits(place)
        _check_protocol(place, state)
        return cls(place, _commits_of(place, clock), state, after)

    @classmethod
    def open_for_writing(
        cls,
        location: str | Path,
        storage: Mapping[str, str] | None = None,
        *,
        disk: TableDisk | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Table:
        """Mend what a loss of power tore, where that can be done without doubt, and open."""
        place = storage_at(location, storage, disk)
        if isinstance(place, ObjectStorage):
            ObjectCommits(place, clock).prove()
        return cls.open(location, storage, disk=disk, clock=clock)

    @classmethod
    def create(
        cls,
        location: str | Path,
        schema: pa.Schema,
        partition_by: Sequence[str] = ("day",),
        storage: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        run: Run | None = None,
        disk: TableDisk | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Table:
        """Make a table and open it.

        Raises:
            TableError: there is one already, or it cannot be made.
            ConfigurationError: the schema cannot be a Delta table's.
        """
        place = storage_at(location, storage, disk)
        metadata = metadata_of(str(uuid.uuid4()), schema, partition_by, properties)
        try:
            _commits_of(place, clock).create(metadata, run or Run.new())
        except FileExistsError:
            raise TableError(f"{place.location} is a table already") from None
        except OSError as error:
            raise TableError(f"cannot make the table {place.location}: {error}") from error
        return cls.open(location, storage, disk=disk, clock=clock)

    @classmethod
    def open_or_create(
        cls,
        location: str | Path,
        schema: pa.Schema,
        partition_by: Sequence[str] = ("day",),
        storage: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        run: Run | None = None,
        disk: TableDisk | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Table:
        """Open a table for writing; make it if there is none.  Any number of programs may do so."""
        if not _exists(storage_at(location, storage, disk)):
            try:
                return cls.create(
                    location,
                    schema,
                    partition_by,
                    storage,
                    properties,
                    run=run,
                    disk=disk,
                    clock=clock,
                )
            except TableError as error:
                if not isinstance(error.__context__, FileExistsError):
                    raise
        return cls.open_for_writing(location, storage, disk=disk, clock=clock)

    @property
    def location(self) -> str:
        """Where the table is: an absolute path, or a URL."""
        return self._storage.location

    @property
    def storage(self) -> Storage:
        """The table's files."""
        return self._storage

    @property
    def version(self) -> int:
        """The last version which was read or made."""
        return self._state.version

    @property
    def table_id(self) -> str:
        """The table's identity, which a copy of it keeps."""
        return self._metadata.id

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, partition columns among them."""
        return arrow_schema(self._metadata)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns."""
        return self._metadata.partition_by

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties (``delta.…``)."""
        return self._metadata.properties

    @property
    def _metadata(self) -> Metadata:
        assert self._state.metadata is not None
        return self._state.metadata

    def refresh(self) -> list[Commit]:
        """What was committed since the last look, oldest first."""
        seen: list[Commit] = []
        while True:
            version = self._state.version + 1
            try:
                commit = read_version(self._storage, version)
            except FileNotFoundError:
                return seen
            except Torn as error:
                raise TableError(f"version {version} of {self.location} is torn: {error}") from None
            except OSError as error:
                raise TableError(f"cannot read {self.location}: {one_line(error)}") from error
            self._state.apply(commit)
            self._note(commit)
            seen.append(commit)
            self.seen(commit)

    def landed(self) -> dict[str, Landed]:
        """How far each gateway has landed, by queue id."""
        return landed_of(self._state.transactions)

    @property
    def transactions(self) -> Mapping[str, int]:
        """Every application transaction: its id, and its version."""
        return dict(self._state.transactions)

    def files(self) -> list[DataFile]:
        """The table's files at :attr:`version`."""
        return list(self._files().values())

    def _files(self) -> dict[str, DataFile]:
        if self._state.files is None:
            self._state.files = load(self._storage, files=True, until=self._state.version).files
            assert self._state.files is not None
        return self._state.files

    def commit(
        self,
        added: Sequence[DataFile],
        landed: Mapping[str, Landed],
        *,
        before: Mapping[str, Landed | None],
        run: Run,
        info: Mapping[str, object] | None = None,
        operation: str = "WRITE",
        notes: Mapping[str, int] | None = None,
    ) -> int:
        """Add a batch: its files, and how far each of its gateways has landed with it.

        ``before`` is where the table had those gateways when the batch was planned; None for a
        gateway which the table did not know; ``notes`` are other application transactions.  Returns the version, which is durable.  A commit
        which failed may be asked for again, with the same arguments.

        Raises:
            Overtaken: another writer moved one of the gateways.
            TableChanged: the table is not any more what the files were written for.
            TableError: the disk or the object store refused; nothing has landed.
        """
        return self._land(
            Proposal(
                run=run,
                operation=operation,
                added=tuple(added),
                landed=dict(landed),
                before={gateway: before.get(gateway) for gateway in landed},
                notes=notes or {},
                info=info or {},
                parameters={"mode": "Append"},
            )
        )

    def replace(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        *,
        run: Run,
        operation: str = "OPTIMIZE",
        data_change: bool = False,
        landed: Mapping[str, Landed] | None = None,
        before: Mapping[str, Landed | None] | None = None,
        info: Mapping[str, object] | None = None,
        notes: Mapping[str, int] | None = None,
    ) -> int:
        """Take files out of the table and put others in, in one version.

        ``data_change`` is False when the rows stay the same (compaction).

        Raises:
            Overtaken: a removed file went meanwhile, or a gateway of ``landed`` moved.
            TableChanged, TableError: as for :meth:`commit`.
        """
        self._files()
        return self._land(
            Proposal(
                run=run,
                operation=operation,
                added=tuple(added),
                removed=tuple(removed),
                landed=dict(landed or {}),
                before={gateway: (before or {}).get(gateway) for gateway in landed or {}},
                notes=notes or {},
                info=info or {},
                data_change=data_change,
            )
        )

    def sync(self) -> None:
        """Make every version up to :attr:`version` durable, others' too, with their files.

        Only then may a gateway be told that its rows are not needed any more.
        """
        if self._unsynced:
            try:
                self._commits.sync(self._unsynced)
            except OSError as error:
                raise TableError(f"cannot sync {self.location}: {one_line(error)}") from error
            self._unsynced.clear()

    def maintain(self) -> None:
        """Write a checkpoint when one is due, and clean the log behind it."""

    def _land(self, proposal: Proposal) -> int:
        self.refresh()
        for _ in range(ATTEMPTS_MAX):
            self.sync()
            for commit in self._unconfirmed:
                if proposal.became(commit):
                    self._unconfirmed.clear()
                    return commit.version
            self._check(proposal)
            try:
                self._commits.attempt(self._state.version, proposal)
            except FileExistsError:
                pass
            except OSError as error:
                if self._storage.local or not self.refresh():
                    raise TableError(
                        f"cannot commit to {self.location}: {one_line(error)}"
                    ) from error
                continue
            if not self.refresh():
                raise TableError(f"a version of {self.location} went as soon as it was made")
        raise TableError(f"{ATTEMPTS_MAX} other commits came first to {self.location}")

    def _check(self, proposal: Proposal) -> None:
        if self._metadata is not self._accepted:
            reason = incompatible(self._accepted, self._metadata)
            if reason:
                raise TableChanged(f"{self.location} was changed: {reason}")
        _check_protocol(self._storage, self._state)
        now = self.landed()
        for gateway, expected in proposal.before.items():
            if now.get(gateway) != expected:
                raise self._overtaken(f"moved gateway {gateway}", self._movers.get(gateway))
        if proposal.removed:
            files = self._files()
            for file in proposal.removed:
                if file.path not in files:
                    raise self._overtaken(f"removed {file.path}", None)

    def _overtaken(self, what: str, commit: Commit | None) -> Overtaken:
        run = commit.run if commit else None
        if run is None:
            return Overtaken(f"another writer of {self.location} {what}")
        return Overtaken(
            f"another bridge, process {run.pid} on {run.host}, {what} of {self.location}",
            host=run.host,
            pid=run.pid,
            run=run.id,
        )

    def _note(self, commit: Commit) -> None:
        for gateway in commit.landed:
            self._movers[gateway] = commit
        self._unsynced.append(commit)
        if commit.run is not None:
            self._unconfirmed = [*self._unconfirmed[-ATTEMPTS_MAX:], commit]


def _exists(storage: Storage) -> bool:
    try:
        return list_log(storage).exists
    except OSError as error:
        raise TableError(f"cannot read {storage.location}: {one_line(error)}") from error


def _check_protocol(storage: Storage, state: State) -> None:
    assert state.protocol is not None
    unknown = unknown_features(state.protocol)
    if unknown:
        raise TableChanged(
            f"{storage.location} needs what this version cannot write: {', '.join(unknown)}"
        )


def _commits_of(storage: Storage, clock: Callable[[], float]) -> Commits:
    if isinstance(storage, LocalStorage):
        return LocalCommits(storage, clock)
    assert isinstance(storage, ObjectStorage)
    return ObjectCommits(storage, clock)


__all__ = ["LOG", "Commit", "DataFile", "Landed", "Run", "Table", "version_name"]
