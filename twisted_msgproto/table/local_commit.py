"""Versions on a local disk: a whole, durable file under the next number, or nothing.

delta-rs syncs nothing, and its commits get slower with the length of the log.  Here a version is
written beside the log's files, synced, and linked to its number, which fails if somebody has it;
then the folder is synced.  So a version of ours can be missing after a loss of power and can never
be torn, and of two writers of the same number one fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..core.errors import TableError
from .actions import Commit, Metadata, Proposal, Run, commit_lines, version_name
from .properties import PROTOCOL
from .storage import LocalStorage

TEMPORARY_PREFIX = "_commit_"
TEMPORARY_SUFFIX = ".json.tmp"
"""Names which delta-rs uses for the same purpose, so that either cleans up after the other."""

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@dataclass(slots=True)
class LocalCommits:
    """Adds versions to the log of a table in a directory."""

    storage: LocalStorage
    clock: Callable[[], float]

    def create(self, metadata: Metadata, run: Run) -> None:
        """Make the table's version 0.

        Raises:
            FileExistsError: there is a table.
            OSError: the disk refused.
        """
        self.storage.disk.make_directory(self.storage.log_path())
        self.put(
            0,
            commit_lines(
                timestamp=self.now(),
                operation="CREATE TABLE",
                run=run,
                metadata=metadata,
                protocol=PROTOCOL,
            ),
        )

    def attempt(self, version: int, proposal: Proposal) -> None:
        """Make the version after ``version`` of a proposal, durably.

        Raises:
            FileExistsError: the number is taken.
            OSError: the disk refused; the version may or may not be there.
        """
        self.put(version + 1, proposal.lines(self.now()))

    def put(self, version: int, octets: bytes) -> None:
        """The steps of every version, in their durable order."""
        disk, log = self.storage.disk, self.storage.log_path()
        temporary = os.path.join(log, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        try:
            disk.write(temporary, octets)
            disk.sync(temporary)
            self._link(temporary, os.path.join(log, version_name(version)))
        finally:
            with contextlib.suppress(OSError):
                disk.remove(temporary)
        disk.sync_directory(log)

    def sync(self, commits: Iterable[Commit]) -> None:
        """Make versions durable, with the files of those which other programs made.

        Programs of this package sync a version's files before they make it.
        """
        disk = self.storage.disk
        folders = {self.storage.log_path()}
        for commit in commits:
            disk.sync(self.storage.log_path(version_name(commit.version)))
            for file in () if commit.run else commit.added:
                path = self.storage.path(file.path)
                with contextlib.suppress(FileNotFoundError):  # a later version removed it
                    disk.sync(path)
                    folders.add(os.path.dirname(path))
        for folder in sorted(folders):
            disk.sync_directory(folder)

    def now(self) -> int:
        """Milliseconds since 1970."""
        return int(self.clock() * 1000)

    def _link(self, temporary: str, path: str) -> None:
        try:
            self.storage.disk.link(temporary, path)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in NO_LINKS:
                raise TableError(
                    f"{self.storage.location} is on a file system without hard links, which "
                    "cannot give a version to one writer alone; put the table elsewhere"
                ) from error
            raise
