"""``msgproto demo``: sent = acknowledged = landed, told from the table; no process left over."""

import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.tools import tables, warm
from tests.tools.processes import (
    AFTER,
    Launcher,
    command_of,
    descendants,
    environment,
    msgproto,
    wait_gone,
)
from twisted_msgproto.cli import demo, main
from twisted_msgproto.cli.demo import (
    SHOWN,
    Count,
    landed_since,
    report,
    sample,
)
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.extend import Registered
from twisted_msgproto.registry import PROTOCOLS

spark = pytest.mark.xdist_group("bridges")


@pytest.mark.parametrize(
    ("counts", "twice", "status"),
    [
        ({"lumberjack": Count(5, 5, 5, 5), "umq": Count(5, 5, 5, 5)}, 0, 0),
        ({"lumberjack": Count(5, 5, 5, 5), "umq": Count(5, 5, 4, 4)}, 0, 1),
        ({"lumberjack": Count(1, 1, 1, 1)}, 0, 0),
        ({"lumberjack": Count(5, 5, 5, 5)}, 0, 0),
        ({"lumberjack": Count(5, 5, 5, 4)}, 0, 1),
        ({"lumberjack": Count(5, 5, 4, 5)}, 0, 1),
        ({"lumberjack": Count(5, 5, 6, 6)}, 0, 1),
        ({"lumberjack": Count(1, 1, 0, 0)}, 0, 1),  # none of its rows is in the table
        ({"lumberjack": Count(5, 4, 4, 4)}, 0, 1),
        ({"lumberjack": Count(5, 4, 5, 5)}, 0, 1),
        ({"lumberjack": Count(0, 0, 0, 0)}, 0, 1),
        ({"lumberjack": Count(5, 5, 5, 5)}, 1, 1),
        ({"lumberjack": Count(5, 5, 5, 5), "surprise": Count(0, 0, 1, 1)}, 0, 1),
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
    report(tmp_path, {"lumberjack": Count(1234, 1234, 1234, 1234)}, 0)
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
    assert f"  {'x' * 25}…  {'x' * 25}…  " in lines[1]
    assert "second" not in lines[1]


def rows_of(bodies: list[tuple[str, bytes]]) -> pa.Table:
    at = [datetime(2026, 1, 1, 12, 0, number, tzinfo=UTC) for number in range(len(bodies))]
    return pa.table(
        {name: ["x" * 27] * len(bodies) for name in SHOWN}
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


def test_a_directory_serves_one_demo_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = tmp_path / "new" / "deep"
    with demo.working_directory(keep) as directory:
        assert directory == keep.resolve()
        with pytest.raises(ConfigurationError, match="another demo runs in"):
            demo.working_directory(keep).__enter__()
    with demo.working_directory(keep):
        pass
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with demo.working_directory(None) as made, demo.working_directory(None) as other:
        assert made.is_dir() and other.is_dir() and made != other


def test_a_directory_which_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert msgproto("demo", "--keep", tmp_path / "file", status=2) == (
        f"msgproto demo: cannot use {tmp_path / 'file'}: File exists; a file has this name: "
        "name another place\n"
    )


BRIDGE = """
import sys, time
from pathlib import Path
from tests.tools.tables import Gateway, Table, land_gateways
queue, place = map(Path, sys.argv[2::2])
table = Table.open(place)
while True:
    land_gateways(table, Gateway.at(queue))
    time.sleep(0.05)
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """A demo of two protocols, whose three servers are real, without Spark."""
    from twisted_msgproto.spark.landed_table import LandedTable

    def bridged(code: str) -> list[Any]:
        """Run this as the bridge; returns what will have its process."""
        bridges = []

        def popen(command: list[str], stdout: IO[bytes], **options: Any) -> warm.Forked:
            is_bridge = command[3] == "bridge"
            first = "import os; os.setsid()\n" + (code if is_bridge else "")
            words = [*command[:2], AFTER, first, *command[3 if is_bridge else 2 :]]
            child = warm.Forked(words, cwd=None, env=environment(), stdout=stdout.fileno())
            if is_bridge:
                bridges.append(child)
            return child

        warm.forking(environment())  # it is started by what stands there now
        monkeypatch.setattr(demo.subprocess, "Popen", popen)
        return bridges

    def usable(complain: Callable[[str], None], parts: object) -> list[Registered]:
        complain("the protocol x is broken")
        return [PROTOCOLS["lumberjack"], PROTOCOLS["sabc"], PROTOCOLS["umq"]._replace(demo={})]

    monkeypatch.setattr(demo, "usable", usable)
    monkeypatch.setattr(
        demo, "landed_by_spark", lambda table, _, *of: landed_since(LandedTable(table), *of)
    )
    monkeypatch.setattr("twisted_msgproto.cli.progress.PLAIN_SECONDS", 0)
    return bridged


def test_each_step_is_told_until_all_of_this_run_has_landed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quick: Callable[[str], list[Any]],
) -> None:
    """What an earlier run has left in the directory, in the table or not, is not counted."""
    bridges = quick(BRIDGE)
    earlier = tables.Gateway(tmp_path / "queue")
    (tmp_path / "logs" / "spark").mkdir(parents=True)
    tables.land_gateways(tables.create_table(tmp_path / "table"), earlier)
    earlier.put(2)
    sleep, shown, errors = time.sleep, list[str](), list[str]()

    def slept(seconds: float) -> None:
        for stream, text in zip((shown, errors), capsys.readouterr(), strict=True):
            stream.append(text)
        if "go on" in shown[-1]:
            bridges[0].kill()
        sleep(seconds)

    monkeypatch.setattr(demo.time, "sleep", slept)
    assert main(["demo", "--keep", str(tmp_path), "--messages", "3", "--keep-running"]) == 1
    *_, broken, ended = ["", *"".join([*errors, capsys.readouterr().err]).splitlines()]
    assert broken == "msgproto demo: the protocol x is broken"
    assert ended.startswith("msgproto demo: the bridge process ended with status -9; its log ")
    told = re.sub(r"\n +\d+\.\d s: .* in the table(?=\n  )", "", "".join(shown))
    address = r"127\.0\.0\.1:\d+"
    for line in (
        "gateway: a server each for lumberjack, sabc, one queue",
        f"  lumberjack listening on tcp:{address}",
        f"  sabc listening on tcp:{address} and ws://{address}",
        f"live page: (http://{address}/)",
        r"bridge: Spark starts \(some seconds\) and follows the queue",
        "clients: 3 messages of each protocol",
        r" +\d+\.\d s: 6 of 6 on disk, 6 in the table",
        r"table: read back by Spark \(some seconds to start\) and by pyarrow\n",
        "read back from the table:\n",
        "protocol +sent +acknowledged +landed\n─{52}",
        "lumberjack +3 +3 +3",
        "sabc +3 +3 +3\n─{52}",
        "total +6 +6 +6\n",
        "sent = acknowledged = landed: 6, each exactly once",
        r"\(by Spark and by pyarrow, which read the table on their own\)\n",
        "one row of each protocol:\n",
        "protocol  .* body",
        r"lumberjack  json .*\d\d:\d\d:\d\d\.\d{3}  {\"number\": 0, \"text\": \"x{12}…",
        r"sabc        request .* anonymous .*:\d\d\.\d{3}  {\"number\": 0, .*…\n\ntable: ",
    ):
        found = re.match(f"{line}\n?", told)
        assert found is not None, (line, told)
        told = told[found.end() :]
    [page] = re.findall(r"live page: (\S+)", "".join(shown))
    going = f"\nThe gateway and the bridge go on: {page} is their page. Ctrl-C ends them.\n"
    assert told.endswith(going)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "usable",
            lambda *_: [PROTOCOLS["lumberjack"]._replace(demo_send=("--window", "x"))],
            "the send-lumberjack process ended with status 2; its log .*: a whole number from 1",
        ),
        (
            "gateway_file",
            lambda queue, protocols: "[nonsense]",
            "the gateway process ended with status 2; its log .*: unknown table .nonsense",
        ),
        ("START_SECONDS", 0.0, "the gateway process does not listen after 0 s; its log"),
        ("STILL_SECONDS", 0.0, r"nothing has moved for 0 s: \d on disk, 0 landed; the logs are in"),
        ("MESSAGES", 1, r"the bridge process ended with status 1; .* ends:(\n  x){7}\n  no Java"),
    ],
)
def test_what_fails_is_told_with_the_end_of_its_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quick: Callable[[str], list[Any]],
    name: str,
    value: object,
    line: str,
) -> None:
    """And on a line of its own below the progress, which a terminal leaves without an end."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    failing = "raise SystemExit('x\\n' * 8 + 'no Java')"
    quick(failing if name == "MESSAGES" else "import time; time.sleep(60)")
    monkeypatch.setattr(demo, name, value)
    assert main(["demo", "--keep", str(tmp_path), "--messages", "1"]) == 1
    told, error = capsys.readouterr()
    assert told.endswith("\n")
    assert re.search(f"(?ms)^msgproto demo: {line}", error), error


def counts_of(told: str) -> list[tuple[int, ...]]:
    rows = re.findall(r"^(?:\w+) +([\d,]+) +([\d,]+) +([\d,]+)$", told, re.MULTILINE)
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
    assert counts_of(ended.output) == [(200, 200, 200)] * len(names) + [(total, total, total)]
    landed = Counter(table.read(["protocol"])[0].to_pylist())
    assert landed == {**dict.fromkeys(names, 200), "lumberjack": 257}
    assert table.duplicates() == []
    [advised] = [line for line in ended.lines if "QueryBuilder" in line]
    read = subprocess.run(shlex.split(advised), capture_output=True, text=True)
    assert (read.returncode, read.stderr) == (0, "")
    assert "lumberjack" in read.stdout and "257" in read.stdout
