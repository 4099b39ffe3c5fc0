"""One writer of a table: each answer of its log, and each step of upkeep, as a table.

The log is in memory, so an answer can be lost, late or refused wherever that is wanted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.tools.tables import RUN, TABLE_SCHEMA
from twisted_msgproto.core.disk import OSDisk, Stat
from twisted_msgproto.core.errors import Overtaken, TableChanged, TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import delta_table
from twisted_msgproto.table.actions import DataFile, Run
from twisted_msgproto.table.checkpoint import clean_log
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.storage import LocalStorage

LOG = "_delta_log"
OTHER = Run("07he2", "there", 4)
FILE = DataFile("day=2026-01-31/a.parquet", 1, {"day": "2026-01-31"})


def version_name(version: int) -> str:
    return f"{version:020d}.json"


def others(run: Run | None = OTHER, gateway: str = "other", offset: int = 1) -> bytes:
    """A version of somebody else."""
    own = run and {"run": run.id, "host": run.host, "pid": run.pid, "actions": 3}
    info = {"timestamp": 5, "operation": "WRITE", **({"msgproto": own} if own else {})}
    places = {"": offset, "-incarnation": 0, "-witness": 0}
    actions = [
        {"txn": {"appId": f"msgproto{part}:{gateway}", "version": value}}
        for part, value in places.items()
    ]
    return "\n".join(map(json.dumps, [{"commitInfo": info}, *actions])).encode()


class Memory:
    """A table's files, in memory; it answers who makes a version as it is told, then ``made``."""

    location = "/table"
    options: Mapping[str, str] = {}

    def __init__(self, *versions: bytes, answers: Sequence[str] = (), local: bool = True) -> None:
        self.local = local
        self.answers = list(answers)
        self.attempts = 0
        self.synced: list[tuple[list[str], list[str]]] = []
        self.refusing: set[str] = set()
        self.once: set[str] = set()  # the next time alone
        self.files = {FILE.path: b"x"}
        for number, octets in enumerate(versions):
            self.files[f"{LOG}/{version_name(number)}"] = octets

    def log_names(self) -> list[str]:
        return [path.removeprefix(f"{LOG}/") for path in self.files if path.startswith(LOG)]

    def read(self, path: str) -> bytes:
        if path in self.refusing or path in self.once:
            self.once.discard(path)
            raise OSError("refused")
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def size(self, path: str) -> int:
        return len(self.read(path))

    def put_new(self, path: str, nbytes: bytes) -> None:
        self.attempts += 1
        answer = self.answers.pop(0) if self.answers else "made"
        if answer in ("used", "moved"):
            gateway = "a" if answer == "moved" else "other"
            self.files[path] = others(gateway=gateway, offset=self.attempts)
        elif answer not in ("refused", "gone"):
            self.files[path] = nbytes
        if answer in ("refused", "answer lost"):
            raise OSError("no answer")
        if answer != "made":
            raise FileExistsError(path)

    def put(self, version: int, nbytes: bytes) -> None:
        self.files[f"{LOG}/{version_name(version)}"] = nbytes

    def sync(self, renewed: Iterable[str], files: Iterable[str]) -> None:
        self.synced.append((list(renewed), list(files)))

    def delete(self, path: str) -> None:
        del self.files[path]


@pytest.fixture
def first(tmp_path: Path) -> bytes:
    """The first version of a table."""
    table = Table.create(tmp_path / "first", TABLE_SCHEMA, run=RUN)
    return Path(table.location, LOG, version_name(0)).read_bytes()


Begun = Callable[..., tuple[Table, Memory]]


@pytest.fixture
def begun(first: bytes) -> Begun:
    """A table with some versions behind its first one, and its storage."""

    def made(*versions: bytes, **told: Any) -> tuple[Table, Memory]:
        storage: Any = Memory(first, *versions, **told)
        return Table(storage, lambda: 0.0), storage

    return made


def commit(table: Table, offset: int = 1) -> int:
    """Land one gateway."""
    before = {"a": table.landed().get("a")}
    return table.commit([FILE], {"a": Landed(offset)}, before=before, run=RUN)


GONE = "a version of /table went as soon as it was made"
FAILED = "cannot commit to /table: no answer"


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    ("answers", "result", "attempts"),
    [
        (["made"], 1, 1),
        (["used"], 2, 2),
        (["used", "used"], 3, 3),
        (["moved"], Overtaken, 1),
        (["own, tried twice"], 1, 1),
        (["used", "own, tried twice"], 2, 2),
        (["gone"], GONE, 1),
        (["refused"], FAILED, 1),
        (["answer lost"], {True: FAILED, False: 1}, 1),
        (["used"] * 4, "4 other commits came first to /table", 4),
    ],
)
def test_each_answer_of_the_log_leads_to_one_end__TB_11(
    begun: Begun,
    answers: list[str],
    result: Any,
    attempts: int,
    local: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delta_table, "ATTEMPTS_MAX", 4)
    table, storage = begun(answers=answers, local=local)
    seen: list[int] = []
    table.seen = lambda one: seen.append(one.version)
    end = result[local] if isinstance(result, dict) else result
    if isinstance(end, int):
        assert commit(table) == table.version == end
        assert table.landed()["a"] == Landed(1)
    elif isinstance(end, str):
        with pytest.raises(TableError) as told:
            commit(table)
        assert str(told.value) == end
    else:
        with pytest.raises(end) as overtaken:
            commit(table)
        error = overtaken.value
        assert (error.host, error.pid, error.run) == (OTHER.host, OTHER.pid, OTHER.id)
    assert storage.attempts == attempts
    read = sum(answer not in ("made", "gone", "refused") for answer in answers)
    assert len(seen) == read - (local and "answer lost" in answers)


@pytest.mark.parametrize("between", [0, 1, 2, 99])
def test_what_a_lost_answer_made_is_found_behind_versions_of_other_bridges__TB_11(
    begun: Begun, between: int
) -> None:
    table, storage = begun(answers=["answer lost"])
    with pytest.raises(TableError, match=FAILED):
        commit(table)
    for number in range(between):
        storage.put(2 + number, others(offset=1 + number))
    assert table.commit([FILE], {"a": Landed(1)}, before={"a": None}, run=RUN) == 1
    assert (storage.attempts, table.version) == (1, 1 + between)
    assert commit(table, 2) == 2 + between
    assert sorted(storage.log_names()) == [version_name(number) for number in range(3 + between)]


# ── durability ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("local", [True, False])
def test_a_table_that_this_package_never_wrote_is_synced_with_all_its_files__TB_01(
    first: bytes, local: bool
) -> None:
    add = {"add": {"path": FILE.path, "size": 1, "partitionValues": dict(FILE.partition)}}
    theirs = first.replace(b'"msgproto":{', b'"else":{', 1) + json.dumps(add).encode()
    storage: Any = Memory(theirs, local=local)
    table = Table(storage, lambda: 0.0)
    assert not table.durable
    table.sync()
    hint = [f"{LOG}/_last_checkpoint"] if local else []
    files = [FILE.path] * (2 if local else 1)
    assert storage.synced == [([f"{LOG}/{version_name(0)}"], [*files, *hint])]
    assert table.durable
    table.sync()
    assert len(storage.synced) == 1


# ── upkeep ──────────────────────────────────────────────────────────────────────────────────────


class NoCheckpoints(OSDisk):
    """A disk that refuses some checkpoints, in their order."""

    def __init__(self, *failing: Exception | None) -> None:
        super().__init__()
        self.failing = list(failing)
        self.tried: list[int] = []

    def link(self, old: str, new: str) -> None:
        if new.endswith(".checkpoint.parquet"):
            self.tried.append(int(os.path.basename(new)[:20]))
            if self.failing and (error := self.failing.pop(0)) is not None:
                raise error
        super().link(old, new)


@pytest.mark.parametrize(
    ("failing", "tried"),
    [
        ([], [4, 9, 14]),
        ([OSError("full")], [4, 6, 11]),
        ([OSError("full"), OSError("full")], [4, 6, 8, 13]),
        ([FileNotFoundError("cleaned")], [4, 5, 10, 15]),
        ([None, FileNotFoundError("cleaned")], [4, 9, 10, 15]),
    ],
)
def test_a_checkpoint_is_made_when_it_is_due_and_again_some_versions_after_a_failure(
    failing: list[Exception | None],
    tried: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(delta_table, "CHECKPOINT_RETRY", 2)
    disk = NoCheckpoints(*failing)
    table = Table.create(tmp_path / "table", TABLE_SCHEMA, disk=disk)
    told = 0
    for offset in range(1, 16):
        before = {"a": table.landed().get("a")}
        table.commit([], {"a": Landed(offset)}, before=before, run=RUN)
        try:
            table.maintain()
        except TableError as error:
            assert str(error) == f"cannot write a checkpoint of {table.location}: full"
            told += 1
    assert disk.tried == tried
    assert told == sum(type(error) is OSError for error in failing)
    again = Table.open(table.location)
    assert (again.version, again.landed()) == (15, {"a": Landed(15)})


# ── what is met before a version is made ────────────────────────────────────────────────────────


def remove(storage: Memory, *versions: int) -> None:
    for version in versions:
        storage.delete(f"{LOG}/{version_name(version)}")


def older_copy(storage: Memory) -> None:
    """The table was taken back to version 1."""
    remove(storage, 2)


def older_copy_gone_on(run: Run | None, versions: int) -> Callable[[Memory], None]:
    """The table was taken back to version 1, and somebody went on with it."""

    def changed(storage: Memory) -> None:
        remove(storage, 2)
        for number in range(2, 2 + versions):
            storage.put(number, others(run, offset=2))

    return changed


CHANGES: list[tuple[Callable[[Memory], object], type[Exception], str]] = [
    (lambda storage: remove(storage, 2), TableChanged, "version 2 of /table is gone"),
    (lambda storage: remove(storage, 0, 1, 2), TableChanged, "version 2 of /table is gone"),
    (older_copy, TableChanged, "version 2 of /table is gone"),
    *(
        (older_copy_gone_on(run, versions), TableChanged, "version 2 of /table is gone")
        for run in (None, RUN, Run("a third", "there", 4))
        for versions in (1, 2, 9)
    ),
    (
        lambda storage: storage.refusing.add(f"{LOG}/{version_name(2)}"),
        TableError,
        "cannot read /table: refused",
    ),
    (
        lambda storage: storage.delete(FILE.path),
        TableError,
        f"the file {FILE.path} of /table was removed before it was committed",
    ),
    (lambda storage: storage.refusing.add(FILE.path), TableError, "cannot read /table: refused"),
    (
        lambda storage: storage.once.add(f"{LOG}/{version_name(2)}"),
        TableError,
        "cannot read /table: refused",
    ),
    (
        lambda storage: storage.files.update({f"{LOG}/{version_name(2)}": b'{"commitInfo"'}),
        TableError,
        "version 2 of /table is torn: a line of it is cut",
    ),
]


@pytest.mark.parametrize(("change", "kind", "text"), CHANGES)
def test_a_table_that_is_not_what_it_was_is_not_written__TB_05(
    begun: Begun, change: Callable[[Memory], object], kind: type[Exception], text: str
) -> None:
    table, storage = begun(others(), others(offset=2))
    change(storage)
    with pytest.raises(kind) as told:
        commit(table)
    assert str(told.value).startswith(text)
    assert storage.attempts == 0


def test_a_gateway_that_moved_is_told_with_who_moved_it__TB_04(begun: Begun) -> None:
    table, _ = begun(others(gateway="a"))
    for before, run in ((None, OTHER.id), (Landed(2), OTHER.id)):
        with pytest.raises(Overtaken, match="process 4 on there, moved gateway a") as told:
            table.commit([], {"a": Landed(3)}, before={"a": before}, run=RUN)
        assert told.value.run == run
    assert table.commit([], {"a": Landed(3)}, before={"a": Landed(1)}, run=RUN) == 2
    with pytest.raises(Overtaken, match=f"another writer of /table removed {FILE.path}") as told:
        table.replace([FILE], [], run=RUN)
    assert (told.value.host, told.value.pid) == ("", 0)


# ── what is removed from the log ────────────────────────────────────────────────────────────────


class Dated(OSDisk):
    """A disk of names with the times at which they were written; it knows what was removed."""

    def __init__(self, modified: Mapping[str, float]) -> None:
        self.times = {f"/table/{LOG}/{name}": time for name, time in modified.items()}
        self.removed: list[str] = []

    def names(self, path: str) -> list[str]:
        found = [os.path.basename(name) for name in self.times if os.path.dirname(name) == path]
        if not found:
            raise FileNotFoundError(path)
        return found

    def stat(self, path: str) -> Stat:
        if path not in self.times:
            raise FileNotFoundError(path)
        return Stat(0, 0, 0, round(self.times[path] * 1e6))

    def remove(self, path: str) -> None:
        self.removed.append(os.path.basename(path))
        del self.times[path]


def checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def cleaned(
    checkpoints: Sequence[int], until: int, cutoff: float, properties: Mapping[str, str]
) -> tuple[list[int], list[int]]:
    """The versions and checkpoints that are removed of a log of 5,000 versions, one a second."""
    times = {version_name(number): float(number) for number in range(0, 5001, 50)}
    times |= {checkpoint_name(number): float(number) for number in checkpoints}
    disk = Dated(times)
    names = clean_log(LocalStorage("/table", disk), properties, until, cutoff + 100.0)
    assert names == disk.removed == sorted(names)
    versions = [int(name[:20]) for name in names if name.endswith(".json")]
    return versions, [int(name[:20]) for name in names if name.endswith(".parquet")]


@pytest.mark.parametrize(
    ("cutoff", "until", "anchor", "checkpoints"),
    [
        # every 100 versions is a checkpoint; the last one that is older than the cut-off stays
        (999.0, 5000, 900, [*range(0, 900, 100), *range(1100, 4800, 100)]),
        (1000.0, 5000, 1000, [*range(0, 1000, 100), *range(1100, 4800, 100)]),
        (-1.0, 5000, 0, range(100, 4800, 100)),
        (9999.0, 5000, 5000, range(0, 5000, 100)),
        (9999.0, 4900, 4900, range(0, 4900, 100)),
        (1000.0, 1300, 1000, range(0, 1000, 100)),
        (1000.0, 1400, 1000, [*range(0, 1000, 100), 1100]),
        (1000.0, -1, 0, []),
    ],
)
def test_the_log_keeps_its_retention_three_checkpoints_and_every_tenth(
    cutoff: float, until: int, anchor: int, checkpoints: Sequence[int]
) -> None:
    properties = {"delta.logRetentionDuration": "interval 100 seconds"}
    versions, removed = cleaned(range(0, 5001, 100), until, cutoff, properties)
    assert versions == list(range(0, anchor, 50))
    kept_tenth = {number for number in checkpoints if number >= anchor and number % 1000 == 0}
    assert removed == [number for number in checkpoints if number not in kept_tenth]


def test_what_the_killed_left_goes_after_an_hour(tmp_path: Path) -> None:
    (tmp_path / LOG).mkdir()
    names = {"_commit_old.json.tmp": 0, "_commit_new.json.tmp": 1}
    for name, modified in {**names, "_commit_old.json": 0, "other.json.tmp": 0}.items():
        (tmp_path / LOG / name).touch()
        os.utime(tmp_path / LOG / name, (modified, modified))
    storage = LocalStorage(str(tmp_path))
    assert clean_log(storage, {}, -1, 3600.0) == ["_commit_old.json.tmp"]


@pytest.mark.parametrize(("text", "count"), [("false", 0), ("FALSE", 0), ("true", 20), ("", 20)])
def test_a_log_is_not_cleaned_where_a_property_says_so(text: str, count: int) -> None:
    properties = {
        "delta.logRetentionDuration": "interval 100 seconds",
        "delta.enableExpiredLogCleanup": text,
    }
    assert len(cleaned([1000], 1000, 1000.0, properties)[0]) == count


def test_a_log_of_which_a_part_goes_meanwhile_is_cleaned_all_the_same() -> None:
    """Another writer cleans it at the same time."""

    class Vanishing(Dated):
        def stat(self, path: str) -> Stat:
            if "tmp" in path or f"{200:020d}" in path:
                raise FileNotFoundError(path)
            return super().stat(path)

        def remove(self, path: str) -> None:
            super().remove(path)
            if path.endswith(version_name(50)):
                raise FileNotFoundError(path)

    names = [version_name(number) for number in (50, 150)]
    names += [checkpoint_name(number) for number in (100, 200)]
    disk = Vanishing(dict.fromkeys([*names, "_commit_x.json.tmp"], 0.0))
    removed = clean_log(LocalStorage("/table", disk), {}, 200, 1e9)
    assert removed == disk.removed == [version_name(50)]


# ── how a table is made and opened ──────────────────────────────────────────────────────────────


def test_a_table_is_made_once_whoever_else_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, clock = tmp_path / "table", lambda: 12.5
    properties = {"a": "b"}
    first = Table.open_or_create(
        location, TABLE_SCHEMA, ["protocol"], properties=properties, run=OTHER, clock=clock
    )
    assert (first.partition_by, first.properties["a"], first.version) == (("protocol",), "b", 0)
    assert (first.location, first.mended) == (str(location), ())
    made = json.loads((location / LOG / version_name(0)).read_text().splitlines()[0])["commitInfo"]
    assert (made["msgproto"]["run"], made["timestamp"]) == (OTHER.id, 12_500)
    with pytest.raises(TableError, match="is a table already"):
        Table.create(location, TABLE_SCHEMA)
    # who does not see it yet finds it made by somebody else
    monkeypatch.setattr(delta_table, "exists", lambda storage: False)
    again = Table.open_or_create(location, TABLE_SCHEMA, ["day"])
    assert (again.table_id, again.partition_by) == (first.table_id, ("protocol",))
    assert again.schema.names == TABLE_SCHEMA.names
