"""A start over Flight which is refused: one line, exit 2, and nothing written at either end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.spark.conftest import batch, identity, messages, offsets_of, write
from tests.tools.certificates import Authority
from tests.tools.loops import drain, landed_offsets, places, run_here
from tests.tools.processes import Launcher
from tests.tools.queues import Served
from twisted_msgproto.core.errors import QueueMismatch
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.table.landing import LandedRanges, Target
from twisted_msgproto.table.plan import Range

pytestmark = pytest.mark.slow

TOKEN = "sesame"


@pytest.fixture
def guarded(queue: Path, tmp_path: Path) -> Iterator[str]:
    """A gateway with TLS and a token, whose right keys are ``token`` and ``authority.pem``."""
    pair = Authority(tmp_path).server()
    Authority(tmp_path, "other")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "other-token").write_text("simsim")
    with Served(
        queue,
        "grpc+tls://127.0.0.1:0",
        token=TOKEN,
        certificate=pair.cert.read_bytes(),
        key=pair.key.read_bytes(),
    ) as served:
        yield served.location


@pytest.fixture
def trimmed(tmp_path: Path) -> Path:
    """A queue which does not begin at 0: another table has landed its rows."""
    queue = tmp_path / "trimmed"
    write(queue, *(messages(first, 300) for first in range(0, 1200, 300)), segment_bytes=4096)
    reader = QueueReader(queue)
    reader.register("gone")
    reader.commit("gone", 900)
    write(queue, messages(1200, 1), segment_bytes=4096)
    reader.forget("gone")
    assert reader.begin() > 0
    return queue


def octets(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, but for the token that a server makes at its start."""
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file() and file.suffix != ".token"
    }


def refused(launch: Launcher, location: str, *options: str) -> str:
    """The one line of a bridge which does not run."""
    ended = launch.run("bridge", "--queue", location, "--table", "table", "--once", *options)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


WRONG = [
    pytest.param(["--tls-ca", "authority.pem"], "it wants its token", id="no token"),
    pytest.param(
        ["--tls-ca", "authority.pem", "--token-file", "other-token"],
        "it wants its token",
        id="wrong token",
    ),
    pytest.param(
        ["--tls-ca", "other.pem", "--token-file", "token"], "ertificate", id="wrong certificate"
    ),
    pytest.param(["--token-file", "token"], "ertificate", id="unknown authority"),
    pytest.param(
        ["--tls-ca", "none.pem", "--token-file", "token"], "cannot read", id="no such authority"
    ),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_whom_a_gateway_does_not_let_in_writes_nothing(
    launch: Launcher, queue: Path, guarded: str, tmp_path: Path, options: list[str], text: str
) -> None:
    """An empty table was left behind, and its id was the name of a consumer nobody would be."""
    before = octets(queue)
    line = refused(launch, guarded, *options)
    assert text in line
    assert not (tmp_path / "table").exists()
    assert octets(queue) == before


def test_with_its_keys_a_bridge_lands_a_gateway_and_moves_its_mark(
    launch: Launcher, queue: Path, guarded: str, tmp_path: Path
) -> None:
    keys = ("--tls-ca", "authority.pem", "--token-file", "token")
    words = ("--here", "bridge", "--queue", guarded, "--table", "table", "--once", *keys)
    ended = launch.run(*words, module="tests.tools.dying")
    assert ended.returncode == 0, ended.stderr
    assert landed_offsets(tmp_path / "table") == {identity(queue): list(range(1500))}
    assert list(QueueReader(queue).consumers().values()) == [1500]
    given = {"tokenFile": tmp_path / "token", "tlsCa": tmp_path / "authority.pem"}
    assert offsets_of(batch(guarded, **given)) == list(range(1500))


def test_a_table_which_is_there_stays_as_it_is(
    launch: Launcher, queue: Path, guarded: str, tmp_path: Path
) -> None:
    drain(tmp_path / "table", [queue])
    write(queue, messages(1500, 100))
    before = octets(queue), octets(tmp_path / "table")
    refused(launch, guarded, "--tls-ca", "authority.pem", "--token-file", "other-token")
    assert (octets(queue), octets(tmp_path / "table")) == before


def test_a_gateway_which_the_new_table_does_not_fit_is_refused_before_it_is_made(
    launch: Launcher, trimmed: Path, tmp_path: Path
) -> None:
    with Served(trimmed) as served:
        before = octets(trimmed)
        assert "--start begin" in refused(launch, served.location)
    assert octets(trimmed) == before
    assert "--start begin" in refused(launch, str(trimmed))
    assert not (tmp_path / "table").exists()


def test_another_queue_behind_the_address_of_a_start_is_refused__TB_07(
    launch: Launcher, queue: Path, trimmed: Path, tmp_path: Path
) -> None:
    """TB-07: the table of one gateway does not begin in the middle of what is there now."""
    with Served(queue) as served:
        drain(tmp_path / "table", [served.location])
    before = octets(trimmed), octets(tmp_path / "table")
    with Served(trimmed, served.location):
        assert f"does not know queue {identity(trimmed)}" in refused(launch, served.location)
    assert (octets(trimmed), octets(tmp_path / "table")) == before


def test_another_queue_behind_the_address_of_a_batch_lands_nothing__TB_07(
    queue: Path, tmp_path: Path
) -> None:
    """TB-07: 600 of its rows were trimmed unread; here the swap is between plan and rows."""
    table, other = tmp_path / "table", tmp_path / "other"
    write(other, messages(0, 600))
    before = octets(other)
    first = Served(queue)
    second: list[Served] = []

    def swapped(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        first.__exit__()
        second.append(Served(other, first.location))
        return run_here(target, tasks)

    try:
        with pytest.raises(QueueMismatch, match="another queue was put behind this address"):
            drain(table, [first.location], runner=swapped)
    finally:
        for served in second:
            served.__exit__()
    assert octets(other) == before
    assert places(table) == {}
    assert landed_offsets(table) == {}
