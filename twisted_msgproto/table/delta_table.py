"""A Delta table as its writer sees it: one log, and in it how far every gateway has landed.

The table's log is the only place that says what has landed.  A commit names the files of a batch
and, in the same version, the new place of every gateway in it.  Two writers of one gateway exclude
each other here; writers of different gateways do not disturb each other.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from ..core.disk import Disk
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
    stamp_of,
    version_name,
)
from .checkpoint import LAST_CHECKPOINT, clean_log, mend, write_checkpoint
from .object_storage import storage_at
from .properties import (
    CHECKPOINT_EVERY,
    PROTOCOL,
    arrow_schema,
    columns_of,
    constraints_of,
    forgetting,
    incompatible,
    metadata_of,
    removal_refused,
    unknown_features,
    with_columns,
)
from .snapshot import list_log, load, read_version
from .storage import LOG, LocalStorage, Storage, one_line, told

KEYS = ("gateway", "offset")
ATTEMPTS_MAX = 1000  # numbers that a commit tries: more writers than that are a fault
UNCONFIRMED_MAX = 100  # own versions searched for a commit whose answer was lost
CHECKPOINT_RETRY = 10  # a checkpoint that failed is tried again after this many versions
CLEAN_SECONDS = 600.0  # between cleanings of the log, which has hours of versions

Change = Callable[[Metadata], tuple[Metadata, dict[str, str]]]


class Machine(TypedDict, total=False):
    """Replacements of what a table uses of the operating system; for tests."""

    disk: Disk
    clock: Callable[[], float]


class Table:
    """One Delta table, for one thread at a time; what it cannot do is a TableError of one line."""

    def __init__(
        self, storage: Storage, clock: Callable[[], float], version: int | None = None
    ) -> None:
        self.storage = storage
        self._clock = clock
        self._cleaned = clock()
        self.seen: Callable[[Commit], None] = lambda commit: None
        """Called with every version that is read from now on, in the middle of a commit too.

        What it raises ends the call that met the version, and the next one meets it again: nothing
        lands on top of it.
        """
        self.due: dict[str, int] = {}  # the next version's notes: erased by others
        loaded = load(storage, until=version)
        self._state = loaded.state
        self._base = loaded.base
        self._next_checkpoint = loaded.base.version + CHECKPOINT_EVERY
        self._movers: dict[str, Commit] = {}
        self._unconfirmed: list[Commit] = []
        self._last: Commit | None = None  # where nothing was read behind a checkpoint
        for commit in loaded.commits:
            self._note(commit)
        # A commit of this package is made after everything before it was made durable.
        own = [place for place, commit in enumerate(loaded.commits) if commit.run]
        self._unsynced = list(loaded.commits[own[-1] if own else 0 :])
        self._sync_all = not own
        self._doubtful = False
        self._accepted = self._metadata
        self._check_protocol()

    @classmethod
    def open(
        cls,
        location: str | Path,
        storage: Mapping[str, str] | None = None,
        *,
        version: int | None = None,
        **machine: Unpack[Machine],
    ) -> Table:
        return cls(*_placed(location, storage, machine), version)

    @classmethod
    def open_for_writing(
        cls,
        location: str | Path,
        storage: Mapping[str, str] | None = None,
        **machine: Unpack[Machine],
    ) -> Table:
        """Open a table; what a loss of power tore is repaired where that leaves no doubt."""
        place, clock = _placed(location, storage, machine)
        mended: list[str] = []
        if isinstance(place, LocalStorage):
            with told(f"cannot open {place.location}"):
                mended = mend(place, clock)
        place.prove()
        table = cls(place, clock)
        table.mended = tuple(mended)
        return table

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
        notes: Mapping[str, int] | None = None,
        **machine: Unpack[Machine],
    ) -> Table:
        place, clock = _placed(location, storage, machine)
        metadata = metadata_of(str(uuid.uuid4()), schema, partition_by, properties)
        own = run or Run.new()
        first = Proposal(
            own, "CREATE TABLE", notes=notes or {}, metadata=metadata, protocol=PROTOCOL
        ).lines(int(clock() * 1000))
        place.prove()
        try:
            if isinstance(place, LocalStorage):
                place.disk.make_directory(place.log_path())
            place.put_new(f"{LOG}/{version_name(0)}", first)
        except OSError as error:
            if place.local or not _made_by(own, place):
                if isinstance(error, FileExistsError):
                    raise TableError(f"{place.location} is a table already") from None
                raise TableError(
                    f"cannot make the table {place.location}: {one_line(error)}"
                ) from error
        return cls(place, clock)

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
        **machine: Unpack[Machine],
    ) -> Table:
        """Open a table for writing; make it if there is none.  Any number of programs may do so."""
        place, _ = _placed(location, storage, machine)
        if not exists(place):
            try:
                return cls.create(
                    location, schema, partition_by, storage, properties, run=run, **machine
                )
            except TableError as error:
                if not isinstance(error.__context__, FileExistsError):
                    raise
        return cls.open_for_writing(location, storage, **machine)

    mended: tuple[str, ...] = ()  # what open_for_writing repaired, a line for each thing

    @property
    def location(self) -> str:
        return self.storage.location

    @property
    def version(self) -> int:
        return self._state.version

    @property
    def table_id(self) -> str:
        return self._metadata.id

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self._metadata)

    @property
    def partition_by(self) -> tuple[str, ...]:
        return self._metadata.partition_by

    @property
    def properties(self) -> Mapping[str, str]:
        return self._metadata.properties

    @property
    def _metadata(self) -> Metadata:
        assert self._state.metadata is not None
        return self._state.metadata

    def refresh(self) -> list[Commit]:
        """Return what was committed since the last call, oldest first."""
        seen: list[Commit] = []
        while True:
            version = self._state.version + 1
            with told(f"cannot read {self.location}"):
                try:
                    commit = read_version(self.storage, version)
                except FileNotFoundError:
                    return seen
                except Torn as error:
                    raise self._torn(version, error) from None
            self.seen(commit)
            self._take(commit)
            seen.append(commit)

    def landed(self) -> dict[str, Landed]:
        return landed_of(self._state.transactions)

    @property
    def transactions(self) -> Mapping[str, int]:
        return dict(self._state.transactions)

    def has(self, transaction: str) -> bool:
        return transaction in self._state.transactions

    def files(self) -> list[DataFile]:
        return list(self._files().values())

    def _files(self) -> dict[str, DataFile]:
        if self._state.files is None:
            loaded = load(self.storage, files=True, until=self._state.version)
            self._state.files = loaded.state.files
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
        notes_before: Mapping[str, int] | None = None,
    ) -> int:
        """Add a batch: its files, and how far each of its gateways has landed with it.

        ``before`` is where the plan had those gateways (None: unknown), ``notes`` are other
        transactions, and ``notes_before`` what the table must have (0: none). Returns the version,
        which is durable; may be called again with the same arguments. Raises Overtaken when another
        writer moved a gateway or changed a note, TableChanged when the files no longer fit.
        """
        return self._land(
            Proposal(
                run=run,
                operation=operation,
                added=tuple(added),
                landed=dict(landed),
                before={gateway: before.get(gateway) for gateway in landed},
                notes=notes or {},
                notes_before=notes_before or {},
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
        notes_before: Mapping[str, int] | None = None,
    ) -> int:
        """As :meth:`commit`, with files removed; Overtaken also when another writer removed one."""
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
                notes_before=notes_before or {},
                info=info or {},
                data_change=data_change,
            )
        )

    def grow(self, columns: Sequence[pa.Field], *, run: Run) -> list[str]:
        """Add those of ``columns`` that are not there, in a version; null in rows that are."""
        names: list[str] = []

        def grown(before: Metadata) -> tuple[Metadata, dict[str, str]]:
            has = {name.lower() for name in arrow_schema(before).names}
            new = [column for column in columns if column.name.lower() not in has]
            names[:] = [column.name for column in new]
            after = with_columns(before, new) if new else before
            return after, {"columns": json.dumps(names)}

        self._alter("ADD COLUMNS", grown, run)
        return names

    def set_properties(self, properties: Mapping[str, str], *, run: Run) -> None:
        """Give the table these properties, in a version of its own if it does not have them."""

        def changed(before: Metadata) -> tuple[Metadata, dict[str, str]]:
            after = replace(before, properties={**before.properties, **properties})
            return after, {"properties": json.dumps(dict(properties))}

        self._alter("SET TBLPROPERTIES", changed, run)

    def _alter(self, operation: str, change: Change, run: Run) -> None:
        while True:
            before = self._metadata
            after, parameters = change(before)
            if after == before:
                return
            proposal = Proposal(
                run=run,
                operation=operation,
                parameters=parameters,
                metadata=after,
                metadata_before=before,
            )
            try:
                self._land(proposal)
            except Overtaken:
                continue  # another bridge has changed the same, or something else
            self._accepted = self._metadata
            return

    @property
    def durable(self) -> bool:
        return not self._unsynced and not self._sync_all

    def sync(self) -> None:
        """Make all versions durable, others' too: only then may gateways forget their rows."""
        if self.durable:
            return
        files = [file for commit in self._unsynced if not commit.run for file in commit.added]
        names: list[str] = []
        if self._sync_all and self.storage.local:
            files += self.files()
            names = [f"{LOG}/{name}" for name in (*self._base.names, LAST_CHECKPOINT)]
        versions = [f"{LOG}/{version_name(commit.version)}" for commit in self._unsynced]
        try:
            self.storage.sync(versions, [*(file.path for file in files), *names])
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._look_behind()
            raise TableError(f"cannot sync {self.location}: {one_line(error)}") from error
        self._unsynced.clear()
        self._sync_all = False

    def maintain(self, *, at_once: bool = False) -> None:
        """Checkpoint if due or ``at_once``, and clean the log; after TableError nothing is lost."""
        if self.version < self._next_checkpoint and not at_once:
            return
        self._next_checkpoint = self.version + CHECKPOINT_RETRY
        self.sync()
        try:
            self._base = write_checkpoint(
                self.storage, self._base, self.version, self.properties, self._clock()
            )
            self._next_checkpoint = self._base.version + CHECKPOINT_EVERY
            if not 0 <= self._clock() - self._cleaned < CLEAN_SECONDS:  # it may be set back
                self._cleaned = self._clock()
                clean_log(self.storage, self.properties, self._base.version, self._clock())
        except FileNotFoundError:
            # Another writer cleaned the log; only where it begins has changed.
            self._base = load(self.storage, until=self.version).base
            self._next_checkpoint = self._base.version + CHECKPOINT_EVERY
        except OSError as error:
            raise TableError(
                f"cannot write a checkpoint of {self.location}: {one_line(error)}"
            ) from error

    def _land(self, proposal: Proposal) -> int:
        if self._doubtful:
            self.refresh()
        self._doubtful = True
        for _ in range(ATTEMPTS_MAX):
            self.sync()
            version = self._confirmed(proposal)
            if version is not None:
                self._doubtful = False
                return version
            self._look_behind()
            due = {name: rows for name, rows in self.due.items() if not self.has(name)}
            proposal = replace(proposal, notes={**due, **proposal.notes})
            self._check(proposal)
            now, number = int(self._clock() * 1000), self.version + 1
            try:
                self.storage.put_new(f"{LOG}/{version_name(number)}", proposal.lines(now))
            except FileExistsError:
                # Somebody else's, or this very one: the store wrote it, and the answer was lost.
                if not self.refresh():
                    raise TableError(
                        f"a version of {self.location} went as soon as it was made"
                    ) from None
            except OSError as error:
                if self.storage.local or not self.refresh():
                    raise TableError(
                        f"cannot commit to {self.location}: {one_line(error)}"
                    ) from error
            else:
                self._take(proposal.as_commit(number, now), durable=True)
        raise TableError(f"{ATTEMPTS_MAX} other commits came first to {self.location}")

    def _confirmed(self, proposal: Proposal) -> int | None:
        """Return the version that a proposal became, and that nobody has taken back since."""
        if proposal.metadata is not None:
            undone = self._metadata == proposal.metadata_before
        else:
            now = self.landed()
            undone = {**proposal.landed} != {**proposal.before} and all(
                now.get(gateway) == place for gateway, place in proposal.before.items()
            )
            undone |= any(
                gateway not in now or now[gateway].offset < place.offset
                for gateway, place in proposal.landed.items()
            )
        if undone:
            return None
        for commit in reversed(self._unconfirmed):
            if proposal.became(commit):
                self._unconfirmed.clear()
                return commit.version
        return None

    def _look_behind(self) -> None:
        """Check that the version before the next one is still there, and still the same.

        If another writer has cleaned it away, what came since is read: it may hold a RESTORE.
        Raises TableChanged.
        """
        name = version_name(self.version)
        with told(f"cannot read {self.location}"), suppress(FileNotFoundError):
            nbytes = self.storage.read(f"{LOG}/{name}")
            try:
                # Others may have gone on with an older copy, up to this number and beyond.
                if self._last is None or stamp_of(nbytes) == self._last.stamp:
                    return
            except Torn as error:
                raise self._torn(self.version, error) from None
            raise self._replaced()
        if not exists(self.storage):
            raise self._replaced()
        loaded = load(self.storage)
        before = self._metadata
        if (
            loaded.state.metadata is None
            or loaded.state.metadata.id != before.id
            or loaded.state.version < self.version
        ):
            raise self._replaced()
        self.refresh()
        if self.version < loaded.state.version:
            raise TableChanged(
                f"version {self.version + 1} of {self.location} was cleaned away before it was "
                "read here, so what it did is not known; start anew to see what can be done"
            )

    def _torn(self, version: int, error: Torn) -> TableError:
        return TableError(f"version {version} of {self.location} is torn: {error}")

    def _replaced(self) -> TableChanged:
        return TableChanged(
            f"version {self.version} of {self.location} is gone: the table was removed, or "
            "another copy of it was put there; start anew to see what can be done"
        )

    def _check(self, proposal: Proposal) -> None:
        if self._metadata is not self._accepted:
            reason = incompatible(self._accepted, self._metadata)
            if reason:
                raise TableChanged(f"{self.location} was changed: {reason}")
        self._check_protocol()
        if proposal.removed and proposal.data_change:
            reason = removal_refused(self.properties)
            if reason:
                raise TableChanged(f"no rows can be taken out of {self.location}: {reason}")
        if proposal.data_change:
            self._check_rows(proposal.added)
        reason = forgetting(self.properties, self.location) if proposal.landed else ""
        if reason:
            raise TableChanged(f"nothing can land in {self.location}: {reason}")
        if proposal.metadata is not None and self._metadata != proposal.metadata_before:
            raise Overtaken(f"another writer changed the columns of {self.location}")
        self.check_places(proposal.before)
        for name, value in proposal.notes_before.items():
            if self._state.transactions.get(name, 0) != value:
                raise self._overtaken(f"changed {name}", None)
        if proposal.removed:
            files = self._files()
            for file in proposal.removed:
                if file.path not in files:
                    raise self._overtaken(f"removed {file.path}", None)
        self._check_there(proposal.added)

    def check_places(self, before: Mapping[str, Landed | None]) -> None:
        """Raise Overtaken if another writer has moved one of these gateways."""
        now = self.landed()
        for gateway, expected in before.items():
            if now.get(gateway) != expected:
                mover = self._movers.get(gateway)
                raise self._overtaken(f"moved gateway {gateway}", mover, ": let one land it")

    def _check_there(self, files: Sequence[DataFile]) -> None:
        """Raise TableError if a file that is about to be named in the log is gone.

        Another program's vacuum may have taken it for a rest: its rows would be lost.
        """
        with told(f"cannot read {self.location}"):
            try:
                for file in files:
                    self.storage.size(file.path)
            except FileNotFoundError:
                raise TableError(
                    f"the file {file.path} of {self.location} was removed before it was committed: "
                    "another program has vacuumed the table"
                ) from None

    def _check_protocol(self) -> None:
        assert self._state.protocol is not None
        unknown = unknown_features(self._state.protocol, self._metadata)
        if unknown:
            raise TableChanged(
                f"{self.location} needs what this version cannot write: {', '.join(unknown)}; land "
                "in another table, which gets all that is in the queue: --table LOCATION"
            )

    def check_features(self) -> None:
        """Raise TableChanged if rows cannot land because of what others have switched on."""
        try:
            constraints_of(self._metadata)
        except TableChanged as error:
            raise TableChanged(f"nothing can land in {self.location}: {error}") from None

    def _check_rows(self, files: Sequence[DataFile]) -> None:
        self.check_features()
        for constraint in constraints_of(self._metadata):
            for file in files:
                rows = columns_of(self.storage, file, constraint.columns, self.schema)
                broken = rows.filter(pc.invert(constraint.holds(rows)))
                if broken.num_rows:
                    keys = [
                        f"{name} {broken[name][0]}" for name in KEYS if name in rows.schema.names
                    ]
                    raise TableChanged(
                        f"a row ({', '.join(keys)}) breaks the constraint {constraint.name} "
                        f"({constraint.text}) of {self.location}: drop it (ALTER TABLE … DROP "
                        "CONSTRAINT), or leave such rows out with where or a transform"
                    )

    def _overtaken(self, what: str, commit: Commit | None, hint: str = "") -> Overtaken:
        run = commit.run if commit else None
        if run is None:
            return Overtaken(f"another writer of {self.location} {what}{hint}")
        return Overtaken(
            f"another bridge, process {run.pid} on {run.host}, {what} of {self.location}{hint}",
            host=run.host,
            pid=run.pid,
            run=run.id,
        )

    def _take(self, commit: Commit, *, durable: bool = False) -> None:
        self._state.apply(commit)
        self._note(commit)
        if not durable:
            self._unsynced.append(commit)

    def _note(self, commit: Commit) -> None:
        self._last = commit
        for gateway in commit.landed:
            self._movers[gateway] = commit
        if commit.run is not None:
            self._unconfirmed = [*self._unconfirmed[-UNCONFIRMED_MAX:], commit]


def exists(storage: Storage) -> bool:
    with told(f"cannot read {storage.location}"):
        return list_log(storage).exists


def _placed(
    location: str | Path, options: Mapping[str, str] | None, machine: Machine
) -> tuple[Storage, Callable[[], float]]:
    return storage_at(location, options, machine.get("disk")), machine.get("clock", time.time)


def _made_by(run: Run, storage: Storage) -> bool:
    """Whether a table's first version is this run's: the answer to its put was lost."""
    try:
        return read_version(storage, 0).run == run
    except (OSError, Torn):
        return False
