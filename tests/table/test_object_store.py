"""Tables in an object store: a real S3 server, with real conditional puts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from deltalake import DeltaTable

from tests.tools.s3 import Store, running_store
from tests.tools.tables import RUN, TABLE_SCHEMA, stored_file
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table import log
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.object_commit import ObjectCommits, check_options
from twisted_msgproto.table.storage import PRIVATE
from twisted_msgproto.table.vacuum import vacuum

pytestmark = pytest.mark.slow


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


def land(table: Table, gateway: str, hi: int, run: Run = RUN) -> int:
    before = table.landed().get(gateway)
    files = [stored_file(table, gateway, before.offset if before else 0, hi)]
    return table.commit(files, {gateway: Landed(hi, 5, 7)}, before={gateway: before}, run=run)


def make(location: str, options: dict[str, str]) -> Table:
    return Table.create(location, TABLE_SCHEMA, storage=options)


def make_or_open(location: str, options: dict[str, str]) -> Table:
    return Table.open_or_create(location, TABLE_SCHEMA, storage=options)


def reopened(table: Table, store: Store) -> Table:
    return Table.open(table.location, store.options)


def rows_in(table: Table, store: Store) -> int:
    delta = DeltaTable(table.location, storage_options=store.options)
    return int(delta.to_pyarrow_table().num_rows)


def at_once(*calls: Callable[[], int]) -> list[int | Exception]:
    """What each call gave, all begun together."""
    results: dict[int, int | Exception] = {}
    barrier = threading.Barrier(len(calls))

    def run(order: int, call: Callable[[], int]) -> None:
        barrier.wait()
        try:
            results[order] = call()
        except TableError as error:
            results[order] = error

    threads = [threading.Thread(target=run, args=(n, call)) for n, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[n] for n in range(len(calls))]


def test_rows_land_with_their_place_and_delta_rs_reads_them(table: Table, store: Store) -> None:
    assert land(table, "a", 10) == 1
    assert reopened(table, store).landed() == table.landed() == {"a": Landed(10, 5, 7)}
    delta = DeltaTable(table.location, storage_options=store.options)
    assert delta.transaction_version("msgproto:a") == 10
    assert delta.to_pyarrow_table().num_rows == 10
    assert reopened(table, store).files() == table.files()


def test_of_two_writers_of_one_gateway_one_wins(table: Table, store: Store) -> None:
    other = reopened(table, store)
    files = [stored_file(t, "a", 0, 10) for t in (table, other)]
    results = at_once(
        lambda: table.commit(files[:1], {"a": Landed(10)}, before={"a": None}, run=RUN),
        lambda: other.commit(
            files[1:], {"a": Landed(10)}, before={"a": None}, run=Run("other", "there", 2)
        ),
    )
    assert sorted(type(r).__name__ for r in results) == ["Overtaken", "int"]
    assert (
        DeltaTable(table.location, storage_options=store.options).to_pyarrow_table().num_rows == 10
    )


def test_writers_of_different_gateways_all_pass(table: Table, store: Store) -> None:
    tables = [reopened(table, store) for _ in range(3)]
    calls = [lambda t=t, n=n: land(t, f"gateway-{n}", 5) for n, t in enumerate(tables)]
    assert sorted(at_once(*calls)) == [1, 2, 3]  # type: ignore[type-var]
    table.refresh()
    assert len(table.landed()) == 3


def test_of_two_compactions_of_one_file_one_wins(table: Table, store: Store) -> None:
    land(table, "a", 10)
    other = reopened(table, store)
    old = table.files()
    results = at_once(
        *(lambda t=t: t.replace(old, [stored_file(t, "a", 0, 10)], run=RUN) for t in (table, other))
    )
    assert sorted(type(r).__name__ for r in results) == ["Overtaken", "int"]
    assert (
        DeltaTable(table.location, storage_options=store.options).to_pyarrow_table().num_rows == 10
    )


def test_a_lost_answer_of_a_put_is_not_a_second_commit(table: Table, store: Store) -> None:
    file = stored_file(table, "a", 0, 10)
    store.fault("lose-commits")
    assert table.commit([file], {"a": Landed(10)}, before={"a": None}, run=RUN) == 1
    assert table.version == 1
    assert table.files() == [file]


def test_a_commit_which_failed_is_asked_for_again(table: Table, store: Store) -> None:
    file = stored_file(table, "a", 0, 10)
    store.fault("refuse-keys")
    with pytest.raises(TableError, match=r"403 Forbidden|InvalidAccessKeyId") as refused:
        table.commit([file], {"a": Landed(10)}, before={"a": None}, run=RUN)
    assert "\n" not in str(refused.value)
    store.fault("none")
    assert table.commit([file], {"a": Landed(10)}, before={"a": None}, run=RUN) == 1


def test_a_store_which_takes_the_second_conditional_put_is_refused(store: Store) -> None:
    location = store.new_location()
    table = Table.create(location, TABLE_SCHEMA, storage=store.options)
    store.fault("careless")
    for attempt in (Table.open_for_writing, make):
        with pytest.raises(TableError, match="takes a second conditional put"):
            attempt(location, store.options)
    store.fault("none")
    assert Table.open_for_writing(location, store.options).table_id == table.table_id
    left = table.storage.filesystem().get_file_info([PRIVATE])
    assert [str(info.type) for info in left] == ["0"]  # not found


@pytest.mark.parametrize(
    ("options", "environment", "match"),
    [
        ({"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, {}, "option AWS_S3_ALLOW_UNSAFE_RENAME"),
        ({"allow_unsafe_rename": "1"}, {}, "option allow_unsafe_rename"),
        ({}, {"MOUNT_ALLOW_UNSAFE_RENAME": "True"}, "variable MOUNT_ALLOW_UNSAFE_RENAME"),
        ({"aws_conditional_put": "disabled"}, {}, "forbids what keeps writers apart"),
    ],
)
def test_options_under_which_writers_overwrite_each_other_are_refused(
    options: dict[str, str], environment: dict[str, str], match: str
) -> None:
    with pytest.raises(TableError, match=match):
        check_options(options, environment)


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


def test_a_checkpoint_keeps_what_has_landed(
    table: Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(log, "CLEAN_SECONDS", 0.0)
    table = reopened(table, store)
    for hi in range(2, 12, 2):
        land(table, "a", hi)
        table.maintain()
    names = table.storage.log_names()
    assert any(name.endswith(".checkpoint.parquet") for name in names)
    again = reopened(table, store)
    assert again.landed() == table.landed() == {"a": Landed(10, 5, 7)}
    assert rows_in(table, store) == 10


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


WORKS = [create, commit, checkpoint, cleanup, compaction, vacuuming]


@pytest.mark.parametrize("followed", [False, True], ids=["last", "followed"])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_the_table_is_exact_when_its_writer_ends_at_any_request(
    work: Callable[[str, Store], None],
    followed: bool,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store keeps what it has answered: after each request the writer is gone for good."""
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(log, "CLEAN_SECONDS", 0.0)
    monkeypatch.setattr(ObjectCommits, "prove", lambda commits: None)
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
        if followed:
            other = Table.open_or_create(location, TABLE_SCHEMA, storage=store.options)
            land(other, "b", 4, Run("other", "there", 2))
        table = Table.open_or_create(location, TABLE_SCHEMA, storage=store.options)
        landed = table.landed()
        assert landed.get("a", Landed(0)).offset in (promised, 10)
        land(table, "a", 12)
        assert rows_in(table, store) == 12 + (4 if followed else 0)
    assert puts
