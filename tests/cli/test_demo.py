"""``msgproto demo``: sent = acknowledged = landed, told from the table; no process left over."""

import re
import shlex
import signal
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.tools import tables
from tests.tools.processes import Launched, Launcher, command_of, descendants, msgproto, wait_gone
from twisted_msgproto.cli import demo
from twisted_msgproto.cli.demo import (
    SHOWN,
    Count,
    landed_since,
    report,
    sample,
)
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.registry import PROTOCOLS

spark = pytest.mark.xdist_group("bridges")


@pytest.mark.parametrize(
    ("counts", "twice", "status"),
    [
        ({"lumberjack": Count(5, 5, 5), "umq": Count(5, 5, 5)}, 0, 0),
        ({"lumberjack": Count(5, 5, 5), "umq": Count(5, 5, 4)}, 0, 1),
        ({"lumberjack": Count(1, 1, 1)}, 0, 0),
        ({"lumberjack": Count(5, 5, 5, 5)}, 0, 0),
        ({"lumberjack": Count(5, 5, 5, 4)}, 0, 1),
        ({"lumberjack": Count(5, 5, 4, 5)}, 0, 1),
        ({"lumberjack": Count(5, 5, 6)}, 0, 1),
        ({"lumberjack": Count(1, 1)}, 0, 1),  # none of its rows is in the table
        ({"lumberjack": Count(5, 4, 4)}, 0, 1),
        ({"lumberjack": Count(5, 4, 5)}, 0, 1),
        ({"lumberjack": Count(0, 0, 0)}, 0, 1),
        ({"lumberjack": Count(5, 5, 5)}, 1, 1),
        ({"lumberjack": Count(5, 5, 5), "surprise": Count(0, 0, 1)}, 0, 1),
        ({}, 0, 1),
    ],
)
def test_the_status_is_0_only_if_all_counts_agree(
    tmp_path: Path, counts: dict[str, Count], twice: int, status: int
) -> None:
    assert report(tmp_path, counts, twice) == status


def test_the_report_says_where_the_table_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(tmp_path, {"lumberjack": Count(1234, 1234, 1234)}, 0)
    told = capsys.readouterr().out
    assert re.search(r"lumberjack\s+1,234\s+1,234\s+1,234\n", told)
    assert "sent = acknowledged = landed: 1,234" in told
    assert f'spark.read.format("msgproto-table").load("{tmp_path}/table")' in told


def test_a_row_of_each_protocol_is_shown_and_nothing_of_it_acts_on_the_terminal(
    tmp_path: Path,
) -> None:
    rows = rows_of([("umq", b"\x1b[2J" + b"x" * 100), ("mtl", b"\xff"), ("umq", b"second")])
    head, *lines = sample(rows)
    assert head.split() == [*SHOWN, "body"]
    assert [line.split()[0] for line in lines] == ["mtl", "umq"]
    assert lines[0].endswith("(binary)")
    assert "\x1b" not in lines[1]
    assert "second" not in lines[1]


def rows_of(bodies: list[tuple[str, bytes]]) -> pa.Table:
    at = [datetime(2026, 1, 1, 12, 0, number, tzinfo=UTC) for number in range(len(bodies))]
    return pa.table(
        {name: ["x"] * len(bodies) for name in SHOWN}
        | {"protocol": [name for name, _ in bodies], "received_at": at}
        | {"body": [body for _, body in bodies]}
    )


def test_rows_of_an_earlier_run_or_another_gateway_do_not_count(tmp_path: Path) -> None:
    from twisted_msgproto.spark.landed_table import LandedTable

    rows = pa.table(
        {
            "gateway": ["a", "a", "a", "b"],
            "offset": [6, 7, 8, 9],
            "protocol": ["lumberjack", "lumberjack", "umq", "lumberjack"],
        }
    )
    write_deltalake(str(tmp_path), rows)
    assert landed_since(LandedTable(tmp_path), "a", 7) == {"lumberjack": 1, "umq": 1}


def test_a_directory_serves_one_demo_at_a_time(tmp_path: Path) -> None:
    with demo.working_directory(tmp_path) as directory:
        assert directory == tmp_path.resolve()
        with pytest.raises(ConfigurationError, match="another demo runs in"):
            demo.working_directory(tmp_path).__enter__()
    with demo.working_directory(tmp_path):
        pass


def test_a_directory_which_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert msgproto("demo", "--keep", tmp_path / "file", status=2) == (
        f"msgproto demo: cannot use {tmp_path / 'file'}: File exists; a file has this name: "
        "name another place\n"
    )


def test_a_process_that_fails_is_shown_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "gateway_file", lambda queue, protocols: "[nonsense]")
    told = msgproto("demo", "--keep", tmp_path, status=1)
    assert "\nmsgproto demo: the gateway process ended with status 2" in told
    assert "unknown table [nonsense]" in told


def counts_of(ended: Launched) -> list[tuple[int, ...]]:
    rows = re.findall(r"^(?:\w+) +([\d,]+) +([\d,]+) +([\d,]+)$", ended.output, re.MULTILINE)
    return [tuple(int(number.replace(",", "")) for number in row) for row in rows]


@spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_demo_in_a_directory_of_an_earlier_one_lands_its_own_messages_and_the_rest(
    launch: Launcher, with_sixth: dict[str, str]
) -> None:
    """With a protocol of another package among them (FC-05); docs/test_examples.py reads the table
    as it says more often.
    """
    from twisted_msgproto.spark.landed_table import LandedTable

    kept = launch.directory / "kept"
    kept.mkdir()
    earlier = tables.Gateway(kept / "queue")
    earlier.put(49)
    table = LandedTable(kept / "table")
    tables.land_gateways(tables.create_table(table.directory), earlier)
    earlier.put(7)  # on disk when the earlier demo was interrupted, and not in the table
    names = [*PROTOCOLS, "lines"]
    ended = launch("demo", "--messages", "200", "--keep", "kept", "--keep-running", env=with_sixth)
    page = ended.line(r"The gateway and the bridge go on: (\S+) is", seconds=840)[1]
    assert ended.line(r"live page: (\S+)")[1] == page
    with urlopen(page) as answer:
        assert b"<title>msgproto</title>" in answer.read()
    left = descendants(ended.pid)
    ended.signal(signal.SIGINT)
    assert ended.wait(seconds=60) == 0, ended.output
    assert [command_of(pid) for pid in left if not wait_gone(pid)] == []
    total = 200 * len(names)
    assert counts_of(ended) == [(200, 200, 200)] * len(names) + [(total, total, total)]
    landed = Counter(table.read(["protocol"])[0].to_pylist())
    assert landed == {**dict.fromkeys(names, 200), "lumberjack": 257}
    assert table.duplicates() == []
    [advised] = [line for line in ended.lines if "QueryBuilder" in line]
    read = subprocess.run(shlex.split(advised), capture_output=True, text=True)
    assert (read.returncode, read.stderr) == (0, "")
    assert "lumberjack" in read.stdout and "257" in read.stdout
