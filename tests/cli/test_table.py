"""``msgproto table counts|verify|compact|vacuum|expire|erase|rewind``: what an operator sees."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.tools.processes import msgproto
from tests.tools.s3 import Store
from tests.tools.tables import Gateway
from tests.tools.tables import create_table as create
from tests.tools.tables import land_gateways as land
from twisted_msgproto.cli import main
from twisted_msgproto.queue.flight_server import QueueFlightServer
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.preflight import consumer_name


class Landed:
    """A table of two days of one gateway, in four files, and the gateway's queue."""

    def __init__(
        self, directory: Path, location: str = "", storage: Mapping[str, str] | None = None
    ) -> None:
        self.gateway = Gateway(directory / "queue")
        self.queue = str(self.gateway.directory)
        self.table = create(location or directory / "table", storage=dict(storage or {}))
        self.words = [f"--storage={name}={value}" for name, value in (storage or {}).items()]
        for number in range(4):
            self.gateway.put(5, day=number // 2)
            land(self.table, self.gateway)
        self.id = self.gateway.id
        self.location = self.table.location

    def msgproto(self, action: str, *words: str, status: int = 0) -> str:
        return msgproto("table", action, self.location, *self.words, *words, status=status)

    @property
    def version(self) -> int:
        return Table.open(self.location, dict(self.table.storage.options)).version


@pytest.fixture
def landed(tmp_path: Path) -> Landed:
    return Landed(tmp_path)


@pytest.fixture
def store(s3: Store) -> Store:
    return s3


def test_counts(landed: Landed) -> None:
    octets = sum(file.size for file in landed.table.files())
    assert landed.msgproto("counts").splitlines() == [
        f"table {landed.location} version 4: 21 rows in 4 files, {octets} bytes",
        "day 2023-11-15: 11 rows",
        "day 2023-11-16: 10 rows",
        f"gateway {landed.id}: landed 21, from offset 0, 21 rows",
    ]


def test_counts_as_json(landed: Landed) -> None:
    (torn := Path(landed.location, "_delta_log", "_last_checkpoint")).touch()
    facts = json.loads(landed.msgproto("counts", "--json"))
    assert (facts["rows"], facts["gateways"][landed.id]["landed"]) == (21, 21)
    assert torn.exists(), "who reads mends nothing"


def test_verify_of_a_whole_table(landed: Landed, tmp_path: Path) -> None:
    other = Gateway(tmp_path / "other")
    queues = ["--queue", landed.queue, "--queue", str(other.directory)]
    assert landed.msgproto("verify", *queues).splitlines() == [
        f"gateway {landed.id}: landed 21, intact from 0 to 21, 21 rows",
        f"table {landed.location} version 4: 21 rows in 4 files, all intact",
        f"gateway {other.id}: nothing of its queue has landed in this table",
    ]


def test_verify_of_a_table_with_a_hole(landed: Landed) -> None:
    path = sorted(landed.table.files(), key=lambda file: file.modified)[1].path
    landed.table.storage.delete(path)
    assert landed.msgproto("verify", status=1).splitlines() == [
        f"lost: file {path}: it is missing",
        f"missing: gateway {landed.id} offsets 6 to 11 (5 rows)",
        f"gateway {landed.id}: landed 21, intact from 0 to 6, 16 rows",
        f"table {landed.location} version 4: 16 rows in 4 files, not intact",
    ]
    facts = json.loads(landed.msgproto("verify", "--json", status=1))
    assert facts["gateways"][landed.id]["missing"] == [[6, 11]]
    assert (facts["gateways"][landed.id]["intact_to"], facts["intact"]) == (6, False)
    assert json.loads(landed.msgproto("compact", "--json"))["given_up"] == 1


def test_compact_says_what_it_would_do_and_does_it(landed: Landed) -> None:
    octets = sum(file.size for file in landed.table.files())
    said = landed.msgproto("compact", "--dry-run")
    assert landed.version == 4
    said += landed.msgproto("compact")
    assert said.splitlines() == [
        f"4 small files; would make 2 of 4, {octets} bytes",
        f"4 small files; made 2 of 4, {octets} bytes",
    ]
    facts = json.loads(landed.msgproto("compact", "--json"))
    assert (facts["small"], facts["added"]) == (2, 0)
    landed.msgproto("verify")


def test_vacuum_lists_and_removes(landed: Landed) -> None:
    orphan = Path(landed.location, "day=2023-11-15", "part-orphan.parquet")
    orphan.write_bytes(b"12345")
    said = landed.msgproto("vacuum")
    os.utime(orphan, (1e9, 1e9))
    said += landed.msgproto("vacuum", "--dry-run", "--retain", "2d")
    assert orphan.exists()
    said += landed.msgproto("vacuum", "--json")
    assert not orphan.exists()
    assert said.splitlines() == [
        "removed 0 files, 0 bytes",
        "day=2023-11-15/part-orphan.parquet",
        "would remove 1 files, 5 bytes",
        '{"paths": ["day=2023-11-15/part-orphan.parquet"], "bytes": 5}',
    ]


def test_expire_says_which_offsets_go(landed: Landed) -> None:
    said = landed.msgproto("expire", "--before", "2023-11-16", "--dry-run")
    assert landed.version == 4
    said += landed.msgproto("expire", "--before", "2023-11-16")
    said += landed.msgproto("verify")
    offsets = f"gateway {landed.id}: offsets 0 to 11 (11 rows)"
    assert said.splitlines() == [
        offsets,
        "would take out 1 days before 2023-11-16: 11 rows in 2 files",
        offsets,
        "took out 1 days before 2023-11-16: 11 rows in 2 files",
        f"gateway {landed.id}: landed 21, intact from 0 to 21, 10 rows, 11 expired",
        f"table {landed.location} version 5: 10 rows in 2 files, all intact",
    ]


def test_erase_says_which_rows_went_and_where_they_still_are(
    landed: Landed, tmp_path: Path
) -> None:
    offsets = tmp_path / "offsets"
    offsets.write_text(f"# of a person\n{landed.id} 3\n\n{landed.id} 20 30\n")
    words = ["erase", "--offsets", str(offsets)]
    told = landed.msgproto(*words, "--dry-run")
    assert landed.version == 4
    told += landed.msgproto(*words, "--purge") + landed.msgproto("verify")
    told += landed.msgproto("erase", "--where", "offset = 3", "--purge")
    said = [
        f"gateway {landed.id}: offsets 3 to 4 (1 rows)",
        f"gateway {landed.id}: offsets 20 to 21 (1 rows)",
        "9 offsets are not in the table",
    ]
    elsewhere = [
        "still there: the files which held them and were taken out before, until 'msgproto table "
        "vacuum' a day later",
        "still there: least and greatest values, in the log's versions before 5, about six hours",
        "still there: tables made from this one, and dead letters: erase there too",
        "still there: the queues, until they trim what has landed",
    ]
    assert told.splitlines() == [
        *said,
        "would erase 2 rows in 2 files",
        *said,
        "erased 2 rows in 2 files",
        "deleted 2 files",
        *elsewhere,
        f"gateway {landed.id}: landed 21, intact from 0 to 21, 19 rows, 2 erased",
        f"table {landed.location} version 5: 19 rows in 4 files, all intact",
        "erased 0 rows in 0 files",
        *elsewhere,
    ]
    facts = json.loads(landed.msgproto("erase", "--where", "offset = 3", "--json"))
    assert (facts["rows"], facts["version"], facts["purged"]) == (0, None, [])
    for text in ("\udcff", *(f"{landed.id} {ends}" for ends in ("x", "5 x", "30 20", "5 5", ""))):
        offsets.write_bytes(text.encode(errors="surrogateescape"))
        told = landed.msgproto(*words, status=2)
        assert "offsets line 1 is GATEWAY OFFSET or GATEWAY FIRST END" in told


@pytest.mark.parametrize("words", [["--keep", "1d"], ["--before", "2023-11-18"]])
def test_days_of_a_machine_without_a_clock_stay_unless_told__RD_31(
    landed: Landed, words: list[str]
) -> None:
    for day in (-19_675, -19_674):  # 1970-01-02, and the next one
        landed.gateway.put(3, day=day)
        land(landed.table, landed.gateway)
    for dry_run in (["--dry-run"], []):
        *_, stays, went = landed.msgproto("expire", *words, *dry_run).splitlines()
        assert stays == (
            "2 days before 2000-01-01 stay: the clock was not set when their rows came"
            " (--before 2000-01-01 takes them out): 1970-01-02, 1970-01-03"
        )
        assert "2 days before 20" in went and ": 21 rows in 4 files" in went
    facts = json.loads(landed.msgproto("expire", *words, "--json"))
    assert (facts["rows"], facts["without_clock"]) == (0, ["1970-01-02", "1970-01-03"])
    assert "took out 1 days before 1970-01-03: 3 rows" in landed.msgproto(
        "expire", "--before", "1970-01-03"
    )
    assert "took out 1 days before 2000-01-01: 3 rows" in landed.msgproto(
        "expire", "--before", "2000-01-01"
    )
    landed.msgproto("verify")


def test_expire_keeps_days(landed: Landed) -> None:
    facts = json.loads(landed.msgproto("expire", "--keep", "30d", "--json"))
    assert (facts["rows"], facts["days"]) == (21, ["2023-11-15", "2023-11-16"])
    assert facts["before"] < datetime.now(UTC).date().isoformat()
    for option, value, line in (
        ("--keep", "36h", "--keep is a number of days like 30d, not '36h'"),
        ("--keep", "999999d", "--keep is a number of days like 30d, not '999999d'"),
        ("--before", "x", "--before is a day like 2026-01-31, not 'x'"),
        ("--before", "9999-12-31", "--before 9999-12-31 is in the future; today is 20"),
    ):
        assert line in landed.msgproto("expire", option, value, status=2)


def test_rewind_sets_back_what_has_a_hole(landed: Landed) -> None:
    path = sorted(landed.table.files(), key=lambda file: file.modified)[1].path
    landed.table.storage.delete(path)
    queue = ("--queue", landed.queue)
    said = landed.msgproto("rewind", "--dry-run", *queue)
    said += landed.msgproto("rewind", "--gateway", landed.id, *queue)
    said += landed.msgproto("verify", *queue)
    line = f"gateway {landed.id}: from 21 to 6, 10 rows taken out"
    assert said.splitlines() == [
        line,
        "nothing was changed",
        line,
        "version 5 says so",
        f"gateway {landed.id}: landed 6, intact from 0 to 6, 6 rows",
        f"table {landed.location} version 5: 6 rows in 1 files, all intact",
    ]
    facts = json.loads(landed.msgproto("rewind", "--dry-run", "--json", *queue))
    assert (facts["gateways"][0]["removed"], facts["version"]) == (0, None)
    land(Table.open(landed.location), landed.gateway)
    landed.msgproto("verify")


def test_rewind_and_derive_ask_a_queue_on_another_machine(landed: Landed, tmp_path: Path) -> None:
    path = sorted(landed.table.files(), key=lambda file: file.modified)[2].path
    landed.table.storage.delete(path)
    server = QueueFlightServer(landed.queue, "grpc://127.0.0.1:0")
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        queue = ("--queue", f"grpc://127.0.0.1:{server.port}")
        told = landed.msgproto("verify", *queue, status=1).splitlines()
        told += landed.msgproto("rewind", *queue).splitlines()
        config = tmp_path / "bridge.toml"
        typed = "[[table]]\nlocation = 'typed'\ncolumns = { n = 'int' }"
        config.write_text(f"queue = '{queue[1]}'\n{typed}")
        landed.msgproto("derive", "typed", "--config", str(config))
    finally:
        server.shutdown()
        thread.join()
    assert f"missing: gateway {landed.id} its queue still has 5 of 5 rows" in told
    assert f"gateway {landed.id}: from 21 to 11, 5 rows taken out" in told
    consumer = consumer_name(Table.open(tmp_path / "typed").table_id)
    assert landed.gateway.reader.consumers()[consumer] == 11
    land(Table.open(landed.location), landed.gateway)
    landed.msgproto("verify")


@pytest.fixture
def configured(landed: Landed, tmp_path: Path) -> Path:
    """Two messages more, which are JSON, and a file with a table for them."""
    landed.gateway.put(2, day=1, body=b'{"n": %d}'.__mod__)
    land(landed.table, landed.gateway)
    file = tmp_path / "bridge.toml"
    places = f"queue = '{landed.queue}'\n[[table]]\nlocation = '{tmp_path}/typed'\n"
    file.write_text(f"{places}name = 'made'\ncolumns = {{ n = 'int' }}\n")
    return file


def test_columns_are_proposed_and_tried_out(landed: Landed, configured: Path) -> None:
    proposed = landed.msgproto("columns")
    assert proposed.startswith("# proposed from 23 rows\n[table.columns]\n")
    assert json.loads(landed.msgproto("columns", "--json")) == {"columns": proposed[:-1]}
    tried = ("columns", "--config", str(configured))
    assert landed.msgproto(*tried).splitlines() == [
        "made: 23 rows, 21 errors",
        "made: body: 21 errors, as: the body is not JSON",
        "made: n: 0 errors, 2 values",
    ]
    facts = json.loads(landed.msgproto(*tried, "--try", "22", "--json"))
    assert (facts["table"], facts["rows"]) == ("made", 22)
    assert (facts["values"], facts["errors"]) == ({"n": 1}, {"": 21})
    assert "--try goes with --config" in landed.msgproto("columns", "--try", "5", status=2)
    configured.write_text(configured.read_text().replace("columns = { n = 'int' }", ""))
    assert "no table has [table.columns]" in landed.msgproto(*tried, status=2)


def test_derive_says_what_it_has_made(landed: Landed, configured: Path) -> None:
    typed = f"{configured.parent}/typed"
    words = ("--config", str(configured))
    *parts, made = landed.msgproto("derive", "made", *words).splitlines()
    assert parts == [
        "part 1 of 2, 2023-11-15: 11 rows, 0 left out, 11 errors",
        "part 2 of 2, 2023-11-16: 12 rows, 0 left out, 10 errors",
    ]
    assert made == f"{typed} version 4: 23 rows, made of version 5; a bridge goes on with it"
    made = landed.msgproto("derive", typed, *words)
    assert made == f"{typed} version 4: 23 rows, made already; a bridge goes on with it\n"
    text = configured.read_text()
    configured.write_text(text.replace("typed", "again"))
    facts = json.loads(landed.msgproto("derive", "made", *words, "--json"))
    assert facts == {"version": 4, "of": 5, "rows": 23, "left_out": 0, "errors": {"": 21}}
    for changed, line in (
        (text.replace("made", "other"), "no [[table]] without a transform has the name or loc"),
        (text.replace("columns = { n = 'int' }", "transform = 'a:b'"), "no [[table]] without a"),
        (text.replace("typed", "table/in"), f"{landed.location} and {landed.location}/in lie in"),
    ):
        configured.write_text(changed)
        assert line in landed.msgproto("derive", "made", *words, status=2)


def test_every_action_on_an_object_store(tmp_path: Path, store: Store) -> None:
    landed = Landed(tmp_path, store.new_location(), store.options)
    queue = ("--queue", landed.queue)
    landed.msgproto("counts")
    landed.msgproto("compact")
    landed.msgproto("expire", "--before", "2023-11-16")
    landed.msgproto("vacuum")
    landed.msgproto("rewind", *queue)
    assert landed.msgproto("verify", *queue).splitlines()[-1] == (
        f"table {landed.location} version 8: 10 rows in 1 files, all intact"
    )
    options = ", ".join(f"{name} = {json.dumps(text)}" for name, text in store.options.items())
    tables = [
        f'[[table]]\nlocation = "{landed.location}{end}"\nstorage = {{ {options} }}\n{more}'
        for end, more in (("", "name = 'raw'"), ("-typed", "columns = { n = 'int' }"))
    ]
    config = tmp_path / "bridge.toml"
    config.write_text("\n".join([f'queue = "{landed.queue}"', *tables]))
    msgproto("table", "derive", "raw", f"{landed.location}-typed", "--config", config)
    typed = [f"{landed.location}-typed", *landed.words]
    assert "10 rows, 11 expired" in msgproto("table", "verify", *typed, *queue)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["vacuum", "--retain", "3h"], "the last 24 hours; 3 hours are fewer"),
        (["vacuum", "--retain", "soon"], "--retain is a time like 48h or 30d, not 'soon'"),
        (["expire", "--keep", "a while"], "--keep is a time like 48h or 30d, not 'a while'"),
        (["expire", "--keep", "30h"], "--keep is a number of days like 30d, not '30h'"),
        (["expire", "--keep", "999999d"], "--keep is a number of days like 30d, not '999999d'"),
        (["expire", "--before", "May"], "--before is a day like 2026-01-31, not 'May'"),
        (["expire", "--before", "9999-01-01"], "--before 9999-01-01 is in the future"),
        (["counts", "--storage", "key"], "'--storage': KEY=VALUE is expected, not 'key'"),
        (["rewind", "--gateway", "x"], "has no place of a gateway x"),
        (["verify", "--queue", "/nowhere"], "no queue in /nowhere"),
    ],
)
def test_what_an_operator_did_wrong_is_one_line(
    landed: Landed, words: list[str], line: str
) -> None:
    told = landed.msgproto(*words, status=2)
    assert told.startswith("msgproto table")
    assert line in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("action", ["counts", "rewind"])
def test_no_table_is_one_line(tmp_path: Path, action: str) -> None:
    (tmp_path / "file").touch()
    for name, words in (("nothing", "is not a table"), ("file", "_delta_log: Not a directory\n")):
        told = msgproto("table", action, tmp_path / name, status=2)
        assert words in told and told.count("\n") == 1, told


def test_a_torn_version_is_one_line(landed: Landed) -> None:
    path = Path(landed.location, "_delta_log", f"{2:020d}.json")
    path.write_bytes(path.read_bytes()[:50])
    assert "version 2" in landed.msgproto("verify", status=2)


@pytest.mark.parametrize(
    "words",
    [
        ["compact"],
        ["vacuum"],
        ["expire", "--keep", "99999d"],
        ["erase", "--where", "offset < 0"],
        ["rewind", "--queue", "queue"],
    ],
    ids=" ".join,
)
def test_a_last_version_which_a_loss_of_power_tore_is_mended_and_told(
    landed: Landed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    """Only by what changes the table."""
    monkeypatch.chdir(Path(landed.location).parent)
    path = Path(landed.location, "_delta_log", f"{4:020d}.json")
    path.write_bytes(path.read_bytes()[:50])
    words = ["table", words[0], landed.location, *words[1:]]
    assert "the next start of a bridge mends it" in msgproto(*words, "--dry-run", status=2)
    assert main(words) == 0
    told = capsys.readouterr()
    assert "version 4" in told.err
    if "rewind" in words:
        assert f"gateway {landed.id}: from 16 to 16" in told.out
    land(Table.open(landed.location), landed.gateway)
    landed.msgproto("verify")


def test_today_is_a_day_of_utc(landed: Landed) -> None:
    today = datetime.now(UTC).date().isoformat()
    assert "took out 2 days" in landed.msgproto("expire", "--before", today)
