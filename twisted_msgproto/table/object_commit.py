"""Make versions in an object store through delta-rs: its puts fail when the number is used.

delta-rs never tries a second number by itself (``max_commit_retries=0``), because then it would
accept both of two compactions of the same files.  The log reads what came first and tries again.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from ..core.errors import TableError
from .actions import (
    OURS,
    Commit,
    DataFile,
    Metadata,
    Proposal,
    Run,
    our_info,
    parse_commit,
    version_name,
)
from .snapshot import Base, one_line
from .storage import LOG, PRIVATE, ObjectStorage

PROBE_WRITERS = 4
"""This many writers race for a version of the probe."""
PROBE_ROUNDS = 4
"""There are this many races: on a careless server of one machine nearly every one has two
winners.
"""
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
UNSAFE_RENAME = "allow_unsafe_rename"
CONDITIONAL_PUT = "conditional_put"
TRUTH = frozenset({"1", "true", "yes", "y", "ok", "on"})


@dataclass(slots=True)
class ObjectCommits:
    """Versions of the log of a table in an object store."""

    storage: ObjectStorage
    clock: Callable[[], float]
    _table: DeltaTable | None = field(default=None, init=False)

    def create(self, metadata: Metadata, run: Run) -> None:
        """Make the table's version 0.  delta-rs draws the table's id.

        Raises:
            FileExistsError: there is a table.
            OSError: the store refused.
        """
        self.prove()
        failure = ""
        try:
            self._create(self.storage.location, metadata, run)
        except (DeltaError, OSError) as error:
            failure = one_line(error)
        try:
            first = parse_commit(0, self.storage.read(f"{LOG}/{version_name(0)}"))
        except FileNotFoundError:
            raise OSError(failure or "the store forgot its first version") from None
        if first.run is None or first.run.id != run.id:
            raise FileExistsError(self.storage.location)

    def attempt(self, version: int, proposal: Proposal) -> None:
        """Make the version after ``version`` of a proposal.

        Raises:
            FileExistsError: there is a newer version.
            OSError: the store refused, or somebody was faster; the version may be there or not.
        """
        with _os_errors():
            table = self._loaded()
            if table.version() != version:
                raise FileExistsError(version_name(version + 1))
            table.create_write_transaction(
                _delta_actions(proposal, int(self.clock() * 1000)),
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=_properties(proposal),
                post_commithook_properties=NO_HOOKS,
            )

    def sync(
        self,
        commits: Iterable[Commit],
        files: Iterable[DataFile] = (),
        names: Iterable[str] = (),
    ) -> None:
        """Do nothing: what a store has answered is durable."""

    def checkpoint(self, base: Base, version: int) -> Base:
        with _os_errors():
            table = self._loaded()
            table.create_checkpoint()
            return Base(table.version())

    def clean(self, properties: Mapping[str, str], until: int) -> None:
        with _os_errors():
            self._loaded().cleanup_metadata()

    def prove(self, environment: Mapping[str, str] | None = None) -> None:
        """Find out whether the store lets only one writer make a number.

        Raises:
            TableError: it does not, it was told not to, or it cannot be reached.
        """
        check_options(self.storage.options, os.environ if environment is None else environment)
        probe = f"{PRIVATE}/probe-{uuid.uuid4().hex}"
        try:
            exclusive = self._exclusive(f"{self.storage.location}/{probe}")
        except (DeltaError, OSError) as error:
            raise TableError(f"cannot use {self.storage.location}: {one_line(error)}") from error
        finally:
            with contextlib.suppress(DeltaError, OSError):
                self.storage.filesystem().delete_dir(probe)
        if not exclusive:
            raise TableError(
                f"{self.storage.location} is in a store which takes a second conditional put of "
                "the same object, so two writers would lose rows; use a store with conditional puts"
            )

    def _exclusive(self, location: str) -> bool:
        """Return whether, of writers that make the same version at once, never two succeed.

        They race on a table that exists for this alone.  delta-rs lists newer versions before it
        puts one, so writers one after the other would never put the same object twice; these begin
        together, and several times, so that two of them have listed before one has put.
        """
        schema = pa.schema([pa.field("probe", pa.int64())])
        metadata = Metadata("", Schema.from_arrow(schema).to_json(), (), {})
        self._create(location, metadata, Run.new())
        options = dict(self.storage.options)
        writers = [DeltaTable(location, storage_options=options) for _ in range(PROBE_WRITERS)]
        with ThreadPoolExecutor(PROBE_WRITERS) as threads:
            for _ in range(PROBE_ROUNDS):
                for writer in writers:
                    writer.update_incremental()
                together = threading.Barrier(PROBE_WRITERS)
                failures = list(threads.map(lambda writer, t=together: _probe(writer, t), writers))
                winners = failures.count(None)
                if winners == 0:
                    raise next(failure for failure in failures if failure is not None)
                if winners > 1:
                    return False
        return True

    def _create(self, location: str, metadata: Metadata, run: Run) -> None:
        DeltaTable.create(
            location,
            Schema.from_json(metadata.schema),
            mode="error",
            partition_by=list(metadata.partition_by),
            configuration=dict(metadata.properties),
            storage_options=dict(self.storage.options),
            commit_properties=_properties(Proposal(run, "CREATE TABLE")),
            post_commithook_properties=NO_HOOKS,
        )

    def _loaded(self) -> DeltaTable:
        if self._table is None:
            options = dict(self.storage.options)
            self._table = DeltaTable(self.storage.location, storage_options=options)
        else:
            self._table.update_incremental()
        return self._table


def check_options(options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Refuse options under which two writers could make the same version.

    Raises:
        TableError: the text names the option.
    """
    for source, values in (("storage option", options), ("environment variable", environment)):
        for name, value in values.items():
            lower = name.lower()
            if lower.endswith(UNSAFE_RENAME) and value.lower() in TRUTH:
                raise TableError(f"the {source} {name} lets two writers overwrite each other")
            if lower.endswith(CONDITIONAL_PUT) and value.lower() == "disabled":
                raise TableError(f"the {source} {name} forbids what keeps writers apart")


def _properties(proposal: Proposal) -> CommitProperties:
    transactions = proposal.transactions
    ours = our_info(proposal.run, proposal.operation, proposal.info)
    return CommitProperties(
        custom_metadata={OURS: json.loads(json.dumps(ours))},
        max_commit_retries=0,
        app_transactions=[Transaction(name, value) for name, value in transactions.items()],
    )


def _delta_actions(proposal: Proposal, now: int) -> list[AddAction | RemoveAction]:
    return [
        *(_delta_remove(file, proposal.data_change, now) for file in proposal.removed),
        *(
            AddAction(
                file.path,
                file.size,
                dict(file.partition),
                file.modified,
                proposal.data_change,
                file.statistics or "{}",
            )
            for file in proposal.added
        ),
    ]


def _delta_remove(file: DataFile, data_change: bool, now: int) -> RemoveAction:
    return RemoveAction(file.path, data_change, now, file.size, dict(file.partition))


def _probe(writer: DeltaTable, together: threading.Barrier) -> DeltaError | OSError | None:
    """Make the next version when all are ready; why that failed, or None."""
    together.wait()
    try:
        writer.create_write_transaction(
            [],
            "append",
            writer.schema(),
            [],
            commit_properties=_properties(Proposal(Run.new(), "PROBE")),
            post_commithook_properties=NO_HOOKS,
        )
    except (DeltaError, OSError) as error:
        return error
    return None


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        raise OSError(one_line(error)) from error
