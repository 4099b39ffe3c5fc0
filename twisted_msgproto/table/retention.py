"""What leaves a table: old days, rows that are erased, and files that no version needs any more.

A file is removed when the newest version does not name it, no version of the last hours removed it,
and it was not written in the last hours. A bridge commits no file that is older than an hour, and a
day is the least that can be asked for, so nothing goes that somebody is about to commit or that a
reader of an older version still needs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from ..core.errors import ConfigurationError, Overtaken, TableError
from ..queue.damage import Range
from . import dead_letters, erased, gaps
from .actions import DataFile, Run, Torn
from .delta_table import Table
from .landing import rewrite
from .preflight import note_others
from .proof import verify
from .row_offsets import (
    END,
    KEY,
    FileLost,
    Offsets,
    bounds_of,
    check_columns,
    groups_of,
    has_keys,
    may_be_of,
    may_hold,
    queried,
    read_offsets,
    size,
    without,
)
from .snapshot import READ_ERRORS, list_log, read_version, stored_actions, unreadable
from .storage import (
    LOG,
    LocalStorage,
    Storage,
    is_temporary,
    temporary_name,
    told,
    verify_tells,
)

HOURS_MIN = 24
PARQUET = ".parquet"
CHECKSUM = ".crc"  # Hadoop's local file system puts this beside a file NAME, as ``.NAME.crc``


@dataclass(slots=True)
class Vacuumed:
    paths: list[str] = field(default_factory=list)
    bytes: int = 0


def vacuum(
    table: Table,
    *,
    hours: float = HOURS_MIN,
    dry_run: bool = False,
    clock: Callable[[], float] | None = None,
) -> Vacuumed:
    """Remove what was not needed for ``hours``; ``clock`` is in seconds since 1970."""
    if hours < HOURS_MIN:
        raise ConfigurationError(
            f"vacuum keeps what was needed in the last {HOURS_MIN} hours; {hours:g} hours are fewer"
        )
    done = Vacuumed()
    with told(f"cannot vacuum {table.location}"):
        now = time_of(table, dry_run=dry_run) if clock is None else clock()
        since = now - hours * 3600
        # The folder comes first: what is committed after this look is not among the candidates.
        old = {info.path: info for info in _unlogged(table.storage) if _modified(info) < since}
        table.refresh()
        needed = {file.path for file in table.files()} | removed_since(table, since)
        needed |= dead_letters.lists(table.transactions)
        for path in sorted(old):
            if _data_of(path) not in needed:
                done.paths.append(path)
                done.bytes += max(old[path].size or 0, 0)
        if not dry_run and done.paths:
            note_others(table, Run.new())
            table.sync()  # what took the place of these files survives before they go
            for path in done.paths:
                _remove(table.storage, path)
    return done


def time_of(table: Table, *, dry_run: bool) -> float:
    """Return the store's time in seconds since 1970, where this machine is ahead.

    It is that of a new file, whose name vacuum takes for a rest; ``dry_run`` makes none.
    """
    now, storage = time.time(), table.storage
    if dry_run:
        return now
    path = f"{LOG}/{temporary_name()}"
    filesystem = storage.filesystem()
    with told(f"cannot write in {table.location}"):
        with filesystem.open_output_stream(path) as stream:
            if not storage.local:  # a full disk has no room for bytes, and vacuum is to make room
                stream.write(b"What time is it?")
        try:
            [info] = filesystem.get_file_info([path])
            return min(now, _modified(info))
        finally:
            _remove(storage, path)


def removed_since(table: Table, since: float) -> set[str]:
    listing = list_log(table.storage)
    found: set[str] = set()
    for _, names in listing.checkpoints[-1:]:
        for name in names:
            try:
                for _, remove in stored_actions(table.storage, name, ["remove"]):
                    if (remove.get("deletionTimestamp") or since * 1000) >= since * 1000:
                        found.add(unquote(remove["path"]))
            except READ_ERRORS as error:
                raise TableError(unreadable(table.storage, name, error)) from error
    for version in listing.until(table.version):
        try:
            commit = read_version(table.storage, version)
        except FileNotFoundError:
            continue  # cleaned away meanwhile
        except Torn as error:
            raise TableError(f"version {version} of {table.location} is torn: {error}") from None
        if not commit.timestamp or commit.timestamp >= since * 1000:
            found.update(commit.removed)
    return found


def _unlogged(storage: Storage) -> Iterator[Any]:
    found = list(_listed(storage))
    logs = (info.path.partition(f"/{LOG}/") for info in found)
    others = tuple({f"{folder}/" for folder, inside, _ in logs if inside})  # tables below this one
    for info in found:
        if info.type != pafs.FileType.File or info.path.startswith(others):
            continue
        listed = info.path.startswith(dead_letters.FOLDER)  # of a bridge that was killed, perhaps
        folder, _, name = info.path.rpartition("/")
        if listed or _is_data(info.path) or (folder == LOG and is_temporary(name)):
            yield info


def _listed(storage: Storage, folder: str = "") -> Iterator[Any]:
    local = isinstance(storage, LocalStorage)
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=not local)
    for info in storage.filesystem().get_file_info(selector):
        yield info
        if not local or info.type != pafs.FileType.Directory:
            continue
        # What is behind a link has another path, by which the log does not name it; and links may
        # form a circle.
        if not os.path.islink(os.path.join(storage.location, info.path)):
            yield from _listed(storage, info.path)


def _is_data(path: str) -> bool:
    folders = path.split("/")[:-1]
    hidden = any(folder.startswith(("_", ".")) for folder in folders)
    data = _data_of(path).rpartition("/")[2]
    return not hidden and data.endswith(PARQUET) and not data.startswith(("_", "."))


def _data_of(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    if name.startswith(".") and name.endswith(CHECKSUM):
        name = name[1 : -len(CHECKSUM)]
    return folder + slash + name


def _modified(info: Any) -> float:
    return float("inf") if info.mtime_ns is None else info.mtime_ns / 1e9


def _remove(storage: Storage, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another vacuum was here
        storage.delete(path)


# -- old days -------------------------------------------------------------------------------------


DAY = "day"

CLOCK_DAY = date(2000, 1, 1)  # earlier: with a clock not set yet, perhaps yesterday


@dataclass(slots=True)
class Expired:
    before: date
    days: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    gateways: Mapping[str, list[Range]] = field(default_factory=dict)
    uncounted: dict[str, int] = field(default_factory=dict)  # in lost files, at unknown offsets
    version: int | None = None
    without_clock: list[str] = field(default_factory=list)  # days before CLOCK_DAY that stay

    @property
    def rows(self) -> int:
        known = sum(size(ranges) for ranges in self.gateways.values())
        return known + sum(self.uncounted.values())


def expire(table: Table, before: date, run: Run, *, dry_run: bool = False) -> Expired:
    """Remove days before ``before`` in a version that notes it; no day before ``CLOCK_DAY``."""
    if DAY not in table.partition_by:
        raise TableError(
            f"{table.location} is not partitioned by {DAY}, so a day's rows are not whole files"
        )
    while True:
        found = days_before(table, before)
        files = [file for day, file in found if day >= CLOCK_DAY or before <= CLOCK_DAY]
        expired = _expired(table, files, before)
        expired.without_clock = sorted(
            {day.isoformat() for day, _ in found if day < CLOCK_DAY < before}
        )
        if not files or dry_run:
            return expired
        known, gone = table.transactions, expired.gateways
        notes = gaps.notes(gaps.EXPIRED_PREFIX, gone, known)
        rows = Counter(gaps.sizes(gone)) + Counter(expired.uncounted)
        counts = gaps.added(gaps.EXPIRED_ROWS_PREFIX, rows, known)
        try:
            expired.version = table.replace(
                files,
                [],
                run=run,
                operation="DELETE",
                data_change=True,
                info={"expired": before.isoformat()},
                notes=notes | counts,
                notes_before={name: known.get(name, 0) for name in counts},
            )
        except Overtaken:
            continue  # a compaction came first, or a rewind, which counts anew
        return expired


def days_before(table: Table, before: date) -> list[tuple[date, DataFile]]:
    found = []
    for file in table.files():
        try:
            day = date.fromisoformat(file.partition.get(DAY) or "")
        except ValueError:
            continue  # no day is no old day
        if day < before:
            found.append((day, file))
    return found


def _expired(table: Table, files: list[DataFile], before: date) -> Expired:
    expired = Expired(
        before=before,
        days=sorted({file.partition[DAY] or "" for file in files}),
        files=len(files),
        bytes=sum(file.size for file in files),
    )
    if has_keys(table):
        offsets = read_offsets(table.storage, files)
        expired.gateways = {name: found.ranges() for name, found in offsets.gateways.items()}
        if offsets.lost:
            _add_missing(expired, table, offsets.lost)
    return expired


def _add_missing(expired: Expired, table: Table, paths: Container[str]) -> None:
    """Add the missing rows that can only have been in these lost files of the table."""
    report = verify(table)
    lost = [file for file in table.files() if file.path in report.lost]
    missing: dict[str, list[Range]] = {}
    for name, found in report.gateways.items():
        mine = [file for file in lost if may_be_of(file, name)]
        others = [bounds_of(file) for file in mine if file.path not in paths]
        own = [bounds_of(file) for file in mine if file.path in paths]
        known = [(lo, hi) for lo, hi in own if hi != END]
        if gone := without(without(found.missing, without(found.missing, known)), others):
            missing[name] = gone
        rows = min(found.uncounted, sum(file.rows or 0 for file in mine))
        if rows > 0 and not others:
            expired.uncounted[name] = rows
    expired.gateways = erased.united([expired.gateways, missing])


# -- erased rows ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Removal:
    rows: int = 0
    files: int = 0
    gateways: dict[str, list[Range]] = field(default_factory=dict)
    not_there: int = 0  # so many of the offsets that were asked for
    version: int | None = None
    purged: list[str] = field(default_factory=list)


def erase(
    table: Table,
    run: Run,
    *,
    where: str = "",
    offsets: erased.Erased | None = None,
    purge: bool = False,
    dry_run: bool = False,
) -> Removal:
    """Take rows out of ``table``, in one version, so that they never land again.

    They are those of ``offsets``, or for which the SQL expression ``where`` is true. With ``purge``
    their files are deleted, interrupted erasures' too, and a checkpoint ends what the log says of
    values.
    """
    check_columns(table)
    if not dry_run:
        note_others(table, run)
    while True:
        wanted = _found(table, where) if offsets is None else erased.united([offsets])
        try:
            done = _erase(table, run, wanted, purge, dry_run)
        except Overtaken:
            continue  # a compaction came first: the same rows are in other files now
        except FileLost as error:
            raise TableError(
                f"a file of {table.location} cannot be read: {error};"
                f" {verify_tells(table.location)}"
            ) from error
        if purge and not dry_run:
            done.purged = _purge(table)
        return done


def _found(table: Table, where: str) -> dict[str, list[Range]]:
    found = Offsets()
    query = f'SELECT gateway, "offset" FROM rows WHERE ({where}\n)'
    for rows in queried(table, query):
        rows = rows.rename_columns([*KEY])
        found.add(rows.cast(pa.schema([(KEY[0], pa.string()), (KEY[1], pa.int64())])))
    return {gateway: coverage.ranges() for gateway, coverage in found.gateways.items()}


def _erase(table: Table, run: Run, wanted: erased.Erased, purge: bool, dry_run: bool) -> Removal:
    files, found = _holding(table, wanted)
    done = Removal(
        files=len(files),
        gateways={gateway: seen.ranges() for gateway, seen in found.gateways.items()},
    )
    done.rows = erased.rows_of(done.gateways)
    done.not_there = erased.rows_of(wanted) - done.rows
    if not files or dry_run:
        return done
    noted = erased.Notes(table.storage).of(table.transactions)
    whole = erased.united([noted, done.gateways])
    done.version = rewrite(
        table,
        files,
        lambda rows: pc.invert(erased.among(rows, wanted)),
        run=run,
        operation="DELETE",
        info={"erased": done.rows, "purge": purge},
        notes=erased.instead(table.storage, table.transactions, whole),
    )
    return done


def _holding(table: Table, wanted: erased.Erased) -> tuple[list[DataFile], Offsets]:
    ranges = [one for parts in wanted.values() for one in parts]
    found, files = Offsets(), []
    low, high = min(ranges, default=(0, 0))[0], max((hi for _, hi in ranges), default=0)
    for file in table.files():
        if not may_hold(file, low, high):
            continue
        before = _rows(found)
        for rows in groups_of(table.storage, file, KEY):
            found.add(rows.select(KEY).filter(erased.among(rows, wanted)))
        if _rows(found) > before:
            files.append(file)
    return files, found


def _rows(found: Offsets) -> int:
    return sum(coverage.rows for coverage in found.gateways.values())


def _purge(table: Table) -> list[str]:
    """Delete the files that versions took out to be purged; a kill may have been between."""
    table.maintain(at_once=True)
    storage = table.storage
    with told(f"cannot purge {table.location}"):
        gone: set[str] = set()
        table.refresh()
        for version in list_log(storage).until(table.version):
            with contextlib.suppress(FileNotFoundError, Torn):  # cleaned away meanwhile, or mended
                commit = read_version(storage, version)
                gone.update(commit.removed if commit.info.get("purge") else ())
        paths = sorted(gone - {file.path for file in table.files()})
        purged = []
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                storage.size(path)
                storage.delete(path)
                purged.append(path)
        if isinstance(storage, LocalStorage):
            for folder in sorted({path.rpartition("/")[0] for path in purged}):
                storage.disk.sync_directory(storage.path(folder))
    return purged
