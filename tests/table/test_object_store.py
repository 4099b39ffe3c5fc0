"""Tables in an object store: a real S3 server, with real conditional puts; and what a place is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.tools.s3 import Store, running_store
from tests.tools.tables import (
    RUN,
    TABLE_SCHEMA,
    at_once,
    delta,
    land,
    opened_again,
    stored_file,
)
from twisted_msgproto.core.disk import SHARED_DISK
from twisted_msgproto.core.errors import ConfigurationError, TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.spark import read_table
from twisted_msgproto.table import delta_table
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.object_storage import storage_at
from twisted_msgproto.table.retention import erase, vacuum


@pytest.fixture(scope="module")
def running() -> Iterator[Store]:
    """A server of its own: the many copies of tables here would slow it down for other rooms."""
    with running_store() as store:
        yield store


@pytest.fixture
def store(running: Store) -> Iterator[Store]:
    yield running
    running.fault("none")


@pytest.fixture
def table(store: Store) -> Table:
    return Table.create(store.new_location(), TABLE_SCHEMA, storage=store.options)


def make(location: str, options: dict[str, str]) -> Table:
    return Table.create(location, TABLE_SCHEMA, storage=options)


def make_or_open(location: str, options: dict[str, str]) -> Table:
    return Table.open_or_create(location, TABLE_SCHEMA, storage=options)


def rows_in(table: Table, store: Store) -> int:
    return int(delta(table).to_pyarrow_table().num_rows)


@pytest.mark.parametrize("retries", ["3", "0"])
def test_a_lost_answer_of_a_put_is_not_a_second_commit(
    table: Table, store: Store, retries: str
) -> None:
    """The client tries again and finds its own version; or it says that it does not know."""
    table = Table.open(table.location, {**store.options, "max_retries": retries})
    file = stored_file(table, "a", 0, 10)
    store.fault("lose-commits")
    assert table.commit([file], {"a": Landed(10)}, before={"a": None}, run=RUN) == 1
    assert (table.version, table.files()) == (1, [file])
    assert rows_in(table, store) == 10


@pytest.mark.parametrize("again", [True, False], ids=["asked again", "started again"])
def test_a_put_which_comes_late_lands_once(table: Table, store: Store, again: bool) -> None:
    """The store said nothing for longer than the client waits, and took it all the same."""
    impatient = {**store.options, "timeout": "1s", "max_retries": "0"}
    writer = Table.open(table.location, impatient)
    file = stored_file(writer, "a", 0, 10)
    store.fault("late-commits")
    with pytest.raises(TableError, match="cannot commit to"):
        writer.commit([file], {"a": Landed(10)}, before={"a": None}, run=RUN)
    if again:
        assert writer.commit([file], {"a": Landed(10)}, before={"a": None}, run=RUN) == 1
    store.fault("none")  # it goes on with what it has
    deadline = time.monotonic() + 60
    while opened_again(table).landed() != {"a": Landed(10)}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    after = opened_again(table)
    land(after, "a", 12)
    assert (after.version, rows_in(table, store)) == (2, 12)


@pytest.mark.parametrize("fault", ["refuse-keys", "stop-after-0"])
def test_a_commit_which_failed_is_asked_for_again(table: Table, store: Store, fault: str) -> None:
    file = stored_file(table, "a", 0, 10)
    store.fault(fault)
    with pytest.raises(TableError, match=r"InvalidAccessKeyId: The key is not known\.$") as refused:
        table.commit([file], {"a": Landed(10)}, before={"a": None}, run=RUN)
    assert "\n" not in str(refused.value)
    store.fault("none")
    assert table.commit([file], {"a": Landed(10)}, before={"a": None}, run=RUN) == 1


def test_a_version_that_no_listing_shows_yet_is_read(table: Table, store: Store) -> None:
    """A bridge began at the place before it, which its queue had trimmed, and was refused."""
    for hi in (5, 10):
        land(table, "a", hi)
    store.fault(f"unlisted {2:020d}.json")
    assert opened_again(table).landed() == {"a": Landed(10, 5, 7)}
    assert Table.open_for_writing(table.location, store.options).version == 2
    assert Table.open(table.location, store.options, version=1).landed() == {"a": Landed(5, 5, 7)}


def test_what_went_out_in_a_version_that_no_listing_shows_yet_stays(
    table: Table, store: Store
) -> None:
    land(table, "a", 5)
    later = Table.open(table.location, store.options, clock=lambda: time.time() + 24 * 3600.0)
    later.replace(table.files(), [stored_file(table, "a", 0, 5)], run=RUN)
    store.fault(f"unlisted {2:020d}.json")
    assert vacuum(opened_again(table), clock=lambda: time.time() + 25 * 3600.0).paths == []


def test_a_commit_costs_the_same_after_many(table: Table, store: Store) -> None:
    costs = []
    for offset in range(1, 13):
        file = stored_file(table, "a", offset - 1, offset)
        before, requests = table.landed().get("a"), store.requests()
        table.commit([file], {"a": Landed(offset)}, before={"a": before}, run=RUN)
        costs.append(store.requests() - requests)
    assert set(costs) == {3}  # the version before it, its file, itself


def test_a_store_which_takes_the_second_conditional_put_is_refused(store: Store) -> None:
    location = store.new_location()
    table = Table.create(location, TABLE_SCHEMA, storage=store.options)
    store.fault("careless")
    for attempt in (Table.open_for_writing, make):
        with pytest.raises(TableError, match="takes a second conditional put"):
            attempt(location, store.options)
    store.fault("none")
    assert Table.open_for_writing(location, store.options).table_id == table.table_id
    assert all(path.startswith("/_delta_log/") for path in store.etags(location))


AWAY = {
    "aws_endpoint_url": "http://127.0.0.1:1",
    "aws_allow_http": "true",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "max_retries": "0",
}


@pytest.mark.parametrize(
    ("location", "options", "fault", "text"),
    [
        ("s3://no-such-bucket/table", {}, "none", "NoSuchBucket"),
        ("", {}, "refuse-keys", "InvalidAccessKeyId"),
        ("s3://bucket/table", AWAY, "none", r"cannot (read|use) s3://bucket/table"),
    ],
)
@pytest.mark.parametrize("attempt", [Table.open, Table.open_for_writing, make, make_or_open])
def test_a_store_which_does_not_give_a_table_is_one_line(
    attempt: Callable[..., Table],
    location: str,
    options: dict[str, str],
    fault: str,
    text: str,
    store: Store,
) -> None:
    location = location or store.new_location()
    store.fault(fault)
    with pytest.raises(TableError, match=text) as refused:
        attempt(location, options or store.options)
    assert "\n" not in str(refused.value)


def test_of_many_creators_all_get_the_same_table(store: Store) -> None:
    location = store.new_location()
    tables: list[Table] = []

    def create() -> int:
        tables.append(Table.open_or_create(location, TABLE_SCHEMA, storage=store.options))
        return 0

    assert at_once(create, create, create) == [0, 0, 0]
    assert len({table.table_id for table in tables}) == 1
    assert tables[0].version == 0


def create(location: str, store: Store) -> None:
    Table.create(location, TABLE_SCHEMA, storage=store.options)


def commit(location: str, store: Store) -> None:
    land(Table.open(location, store.options), "a", 10)


def checkpoint(location: str, store: Store) -> None:
    Table.open(location, store.options).maintain()


def cleanup(location: str, store: Store) -> None:
    """A checkpoint when all before it is older than the log is kept (see the test)."""
    table = Table.open(location, store.options)
    table.maintain()
    assert not any(name.startswith(f"{0:020d}.json") for name in table.storage.log_names())


def compaction(location: str, store: Store) -> None:
    compact(Table.open(location, store.options), Run.new())


def vacuuming(location: str, store: Store) -> None:
    """More than a day after a compaction took the place of all files."""
    vacuum(Table.open(location, store.options), clock=lambda: time.time() + 25 * 3600.0)


def erasure(location: str, store: Store) -> None:
    offsets = {"a": [(1, 2)]}
    erase(Table.open(location, store.options), Run.new(), offsets=offsets, purge=True)


WORKS = [create, commit, checkpoint, cleanup, compaction, vacuuming, erasure]


@pytest.mark.slow
@pytest.mark.parametrize(
    "even", [False, pytest.param(True, marks=pytest.mark.long)], ids=["odd", "even"]
)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_the_table_is_exact_when_its_writer_ends_at_any_request(
    work: Callable[[str, Store], None],
    even: bool,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store keeps what it has answered: after each request the writer is gone for good.

    By turns another writer follows; the long form has both at each request.
    """
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(delta_table, "CLEAN_SECONDS", 0.0)
    prove = "twisted_msgproto.table.object_storage.ObjectStorage.prove"
    monkeypatch.setattr(prove, lambda storage: None)
    puts, done, promised = 0, False, 0
    if work is not create:
        prepared = store.new_location()
        kept = {"delta.logRetentionDuration": "interval 0 hours"} if work is cleanup else {}
        table = Table.create(prepared, TABLE_SCHEMA, storage=store.options, properties=kept)
        for promised in (3, 5):
            land(table, "a", promised)
        if work is vacuuming:
            compaction(prepared, store)
    while not done:
        location = store.new_location() if work is create else store.copy_of(prepared)
        store.fault(f"stop-after-{puts}")
        try:
            work(location, store)
            done = True
        except (TableError, OSError):
            puts += 1
        store.fault("none")
        followed = (puts % 2 == 0) is even
        if followed:
            other = Table.open_or_create(location, TABLE_SCHEMA, storage=store.options)
            land(other, "b", 4, Run("other", "there", 2))
        table = Table.open_or_create(location, TABLE_SCHEMA, storage=store.options)
        landed = table.landed()
        assert landed.get("a", Landed(0)).offset in (promised, 10)
        land(table, "a", 12)
        erased = sum(rows for name, rows in table.transactions.items() if "erased" in name)
        assert rows_in(table, store) == 12 + (4 if followed else 0) - erased
    assert puts
    assert erased == (work is erasure)


# -- places and options ----------------------------------------------------------------------------


def test_a_directory_and_its_url_are_one_place(tmp_path: Path) -> None:
    place = tmp_path / "tab le"
    assert storage_at(place).location == storage_at(place.as_uri()).location == str(place)
    assert storage_at(f"file:{quote(str(place))}").location == str(place)
    assert storage_at("s3://bucket/t/").location == "s3://bucket/t"


@pytest.mark.parametrize(
    ("location", "options", "text"),
    [
        ("", {}, "a table needs a location"),
        ("file://host/t", {}, "names a file of another machine, host"),
        ("/t", {"aws_region": "eu-1"}, r"is a directory: storage options \(aws_region\) are not"),
        ("nosuch://x/t", {}, "cannot use nosuch://x/t: .*Unable to recognise URL"),
        ("http://", {}, "cannot use http:: empty host"),
        ("http://[::1", {}, r"cannot use http://\[::1: Invalid IPv6 URL"),
        ("memory:///t", {}, "memory:///t ends with its process"),
        ("s3:/b/t", {}, "s3:/b/t is no URL: two slashes follow the colon"),
        ("s3://b/t?x=1", {}, r"no table's location has \? or # in it"),
        ("s3://b/t#x", {}, r"no table's location has \? or # in it"),
        ("s3://b/t", {"aws_regio": "eu-1"}, "cannot use s3://b/t: .*'aws_regio' is not valid"),
        ("s3://b/t", {"max_retries": "many"}, "max_retries is a whole number, not 'many'"),
        ("s3://b/t", {"retry_timeout": "long"}, "retry_timeout is a duration like 20s, not 'long'"),
        ("s3://b/t", {"max_retries": "9" * 20}, "max_retries is at most 1000000, not 9"),
        ("s3://b/t", {"retry_timeout": "9" * 20 + "d"}, "retry_timeout is at most 1000000 s"),
        ("s3://b/t", {"timeout": "long"}, "timeout is a duration like 20s, not 'long'"),
        ("s3://b/t", {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, "option aws_s3_allow_unsafe_rename"),
        ("s3://b/t", {"allow_unsafe_rename": "1"}, "option allow_unsafe_rename lets two writers"),
        ("s3://b/t", {"aws_conditional_put": "disabled"}, "forbids what keeps writers apart"),
    ],
)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_place_which_cannot_be_is_one_line(
    location: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(TableError, match=text) as told:
        Table.open_or_create(location, TABLE_SCHEMA, storage=options)
    assert "\n" not in str(told.value)


def test_a_variable_under_which_writers_overwrite_each_other_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MOUNT_ALLOW_UNSAFE_RENAME", "True")
    with pytest.raises(TableError, match="variable MOUNT_ALLOW_UNSAFE_RENAME"):
        Table.create("s3://bucket/table", TABLE_SCHEMA)


def documented() -> dict[str, str]:
    """Each option that the page names, with its example."""
    page = Path(__file__).parents[2].joinpath("docs", "table.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \| `([^`]+)` \|", page, re.MULTILINE)
    return dict(rows)


@pytest.mark.parametrize("name", documented())
@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
def test_each_documented_option_is_taken_in_any_case(name: str, upper: bool) -> None:
    """Obstore panics, which no handler of errors catches, for one at a wrong place."""
    own = {**AWAY, name: documented()[name]}
    given = {each.upper() if upper else each: value for each, value in own.items()}
    with pytest.raises(TableError, match=r"cannot read s3://bucket/table: Generic S3 error"):
        Table.open("s3://bucket/table", given)


@pytest.mark.parametrize("name", [name for name, value in documented().items() if value[-1] == "s"])
@pytest.mark.parametrize("value", ["1", "0.5", "2 minutes"])
def test_a_time_is_taken_with_and_without_a_unit_by_each_reader(name: str, value: str) -> None:
    """delta-rs, which looks for rows by SQL, knows none without a unit: erase and rewind failed."""
    place = storage_at("s3://bucket/table", {**AWAY, name.upper(): value})
    with pytest.raises(OSError, match="Generic S3 error"):
        place.log_names()
    with pytest.raises((OSError, DeltaError), match="Generic S3 error"):
        DeltaTable(place.location, storage_options={**place.options})
    with pytest.raises(ConfigurationError, match="Generic S3 error"):
        read_table(cast(Any, None), place.location, storage={**AWAY, name.upper(): value})


def test_the_page_names_options_of_each_kind() -> None:
    names = set(documented())
    assert {"aws_region", "aws_allow_http", "timeout", "max_retries"} <= names
    assert len(names) > 15


def test_an_object_store_is_on_no_disk_of_ours() -> None:
    with pytest.raises(ValueError, match="no disk"):
        storage_at("s3://bucket/t", {}, SHARED_DISK)


def test_a_stores_files_are_those_of_a_folder(store: Store) -> None:
    storage = storage_at(store.new_location(), store.options)
    assert storage.log_names() == []
    storage.put_new("_delta_log/a.json", b"abc")
    with pytest.raises(FileExistsError):
        storage.put_new("_delta_log/a.json", b"other")
    storage.put("_delta_log/b.json", b"12")
    storage.put("_delta_log/b.json", b"1234")
    assert sorted(storage.log_names()) == ["a.json", "b.json"]
    assert (storage.read("_delta_log/a.json"), storage.size("_delta_log/b.json")) == (b"abc", 4)
    files = storage.filesystem()
    with files.open_output_stream("day=1/c.bin") as stream:
        stream.write(memoryview(bytes(range(256)) * 4096))
        assert stream.tell() == 1 << 20
    with files.open_input_file("day=1/c.bin") as source:
        assert (source.size(), source.read(3)) == (1 << 20, b"\0\1\2")
        assert source.read_at(4, (1 << 20) - 2) == b"\xfe\xff"
        assert source.seek(300_000) == 300_000 and source.read(1) == bytes([300_000 % 256])
        assert source.read() == (bytes(range(256)) * 4096)[300_001:]
    [folder, gone] = files.get_file_info(["day=1", "day=2"])
    assert (folder.type.name, gone.type.name) == ("Directory", "NotFound")
    listed = files.get_file_info(pafs.FileSelector("", recursive=True))
    assert {one.path: one.size for one in listed} == {
        "_delta_log/a.json": 3,
        "_delta_log/b.json": 4,
        "day=1/c.bin": 1 << 20,
    }
    assert all(abs(one.mtime_ns / 1e9 - time.time()) < 3600 for one in listed)
    below = files.get_file_info(pafs.FileSelector("day=1", recursive=True))
    assert [one.path for one in below] == ["day=1/c.bin"]
    storage.delete("_delta_log/a.json")
    for missing in (storage.size, storage.read, files.open_input_file):
        with pytest.raises(FileNotFoundError):
            missing("_delta_log/a.json")
    with pytest.raises(OSError, match="neither moved, copied nor extended"):
        files.move("day=1/c.bin", "d.bin")
