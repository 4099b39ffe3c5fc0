"""A version on a local disk is a complete, durable file under the next number, or nothing.

delta-rs syncs nothing, and its commits get slower with the length of the log.  Here a version is
written beside the log's files, synced, and linked to its number; the link fails if the number is
used. Then the folder is synced.  So a version of ours can be missing after a loss of power and can
never be torn, and of two writers of the same number one fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..core.errors import TableError
from .actions import Commit, DataFile, Metadata, Proposal, Run, commit_lines, version_name
from .checkpoint import clean_log, write_checkpoint
from .properties import PROTOCOL
from .snapshot import Base
from .storage import LocalStorage

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@dataclass(slots=True)
class LocalCommits:
    """Versions of the log of a table in a directory."""

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

    def attempt(self, version: int, proposal: Proposal) -> Commit:
        """Make the version after ``version`` of a proposal, durably; returns what it is now.

        Raises:
            FileExistsError: the number is used.
            OSError: the disk refused; the version may or may not be there.
        """
        now = self.now()
        self.put(version + 1, proposal.lines(now))
        return proposal.as_commit(version + 1, now)

    def put(self, version: int, octets: bytes) -> None:
        disk, log = self.storage.disk, self.storage.log_path()
        temporary = self.storage.temporary()
        try:
            disk.write(temporary, octets)
            disk.sync(temporary)
            self._link(temporary, os.path.join(log, version_name(version)))
        finally:
            with contextlib.suppress(OSError):
                disk.remove(temporary)
        disk.sync_directory(log)

    def sync(
        self,
        commits: Iterable[Commit],
        files: Iterable[DataFile] = (),
        names: Iterable[str] = (),
    ) -> None:
        """Make versions durable, with the files of those that other programs made.

        Programs of this package sync a version's files before they make it, and write them anew
        when that fails.  ``files`` and ``names``, of the log, are synced besides.
        """
        disk = self.storage.disk
        foreign: list[DataFile] = list(files)
        for commit in commits:
            self._renew(self.storage.log_path(version_name(commit.version)))
            foreign += () if commit.run else commit.added
        folders = {self.storage.log_path()}
        for path in (
            *(self.storage.path(file.path) for file in foreign),
            *(self.storage.log_path(name) for name in names),
        ):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, so not needed
                disk.sync(path)
                folders.add(os.path.dirname(path))
        for folder in sorted(folders):
            disk.sync_directory(folder)

    def _renew(self, path: str) -> None:
        """Put a synced copy in the place of a version; the sync of its folder is to follow.

        Somebody's sync of it, ours too, may have failed, and the next one may succeed without
        anything on the disk: the system calls pages clean that it could not write.  A fresh file
        under the name has to be written.  Whoever reads meanwhile sees the same octets.
        """
        disk = self.storage.disk
        temporary = self.storage.temporary()
        try:
            disk.write(temporary, disk.read(path))
            disk.sync(temporary)
            disk.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.remove(temporary)
            raise

    def checkpoint(self, base: Base, version: int) -> Base:
        return write_checkpoint(self.storage, base, version)

    def clean(self, properties: Mapping[str, str], until: int) -> None:
        clean_log(self.storage, properties, until, self.clock())

    def now(self) -> int:
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
