"""A queue over the network: the same rows as from its directory, only for those who may.

A start over Flight which is refused: one line, exit 2, and nothing written at either end.
"""

from __future__ import annotations

import itertools
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.doubles import own_time
from tests.spark.conftest import batch as asked
from tests.spark.conftest import damage_record, identity, messages, offsets_of, write
from tests.tools.certificates import Authority
from tests.tools.loops import by_gateway, drain, landed_offsets
from tests.tools.processes import Launcher
from tests.tools.queues import Served, batch, put
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import (
    ConfigurationError,
    QueueAway,
    QueueError,
    QueueMismatch,
)
from twisted_msgproto.queue import SCHEMA, Landed, QueueReader, QueueWriter, flight_requests
from twisted_msgproto.spark import flight_client as client
from twisted_msgproto.spark.flight_client import FlightQueue


@pytest.fixture
def served(queue: Path) -> Iterator[Served]:
    with Served(queue) as serving:
        yield serving


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return pa.Table.from_batches(list(batches), schema=SCHEMA).to_pylist()


def test_after_a_power_loss_it_is_away_until_its_gateway_starts__NB_12(
    queue: Path, served: Served
) -> None:
    """It said that it was restored from an older copy: the bridge elsewhere ended."""
    old = (queue / "end").read_bytes()
    write(queue, messages(1500, 7))
    landed = QueueReader(queue).place(1507)
    (queue / "end").write_bytes(old)
    far = FlightQueue(served.location)
    with pytest.raises(QueueAway, match="mends that when it starts"):
        far.describe(landed)
    write(queue)  # the gateway starts, and ends
    assert far.describe(landed).end == 1507


def test_damaged_rows_are_left_out_and_told(queue: Path, served: Served) -> None:
    damage_record(queue, b'{"n":777}')
    near, far = QueueReader(queue), FlightQueue(served.location)
    for lo, hi, damaged in (
        (0, 1500, [(600, 900)]),
        (700, 800, [(700, 800)]),
        (0, 600, []),
        (850, 1500, [(850, 900)]),
    ):
        told, expected = far.read(lo, hi, 50), near.read(lo, hi, 50)
        assert rows(told) == rows(expected)
        assert told.damaged == expected.damaged == damaged
    assert far.describe().damaged == ((600, 900),)


class Breaks:
    """A connection whose first stream breaks after ``chunks``."""

    def __init__(self, client: Any, chunks: int) -> None:
        self._client = client
        self.chunks = chunks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def do_get(self, *arguments: Any) -> Iterator[Any]:
        for chunk in self._client.do_get(*arguments):
            yield chunk
            self.chunks -= 1
            if not self.chunks:
                raise flight.FlightUnavailableError("the connection broke")


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_damage_is_told_also_when_the_stream_broke_behind_it(
    queue: Path, served: Served, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    """The rows behind it came, the stream's end which tells all damage did not."""
    damage_record(queue, b'{"n":777}')
    broken = Breaks(None, chunks)

    def connect(*words: Any, **options: Any) -> Any:
        broken._client = real(*words, **options)
        return broken

    real = flight.connect
    monkeypatch.setattr(flight, "connect", connect)
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.0)
    found = FlightQueue(served.location).read(0, 1500, 100)
    assert [row["offset"] for row in rows(found)] == [*range(600), *range(900, 1500)]
    assert broken.chunks <= 0
    assert found.damaged == [(600, 900)]


def test_it_is_the_same_queue_as_in_the_directory__TB_06(queue: Path, served: Served) -> None:
    """TB-06, over Flight: what is not its history is refused by each call."""
    near, far = QueueReader(queue), FlightQueue(served.location)
    assert far.queue_id == near.queue_id
    assert (far.begin(), far.end()) == (0, 1500)
    assert rows(far.read(250, 1333)) == rows(near.read(250, 1333))
    assert list(far.read(5, 5)) == []
    far.register("night")
    for offset in (0, 1, 700, 1500):
        landed = far.place(offset)
        assert landed == near.place(offset)
        far.check(landed)
        assert far.describe(landed) == near.describe(landed)
        assert rows(far.read(offset, 1500, landed=landed)) == rows(near.read(offset, 1500))
        far.commit("night", offset, landed)
        assert near.consumers() == {"night": offset}
    for wrong in (Landed(700, 5), Landed(700, 0, 5), Landed(1501)):
        for call in (
            lambda wrong=wrong: far.describe(wrong),
            lambda wrong=wrong: far.check(wrong),
            lambda wrong=wrong: far.commit("night", 700, wrong),
            lambda wrong=wrong: list(far.read(700, 710, landed=wrong)),
        ):
            with pytest.raises(QueueMismatch, match=f"^{served.location}.*table rewind"):
                call()
    assert near.consumers() == {"night": 1500}
    far.forget("night")
    assert near.consumers() == {}
    with pytest.raises(QueueError, match="no consumer 'night'"):
        far.forget("night")


def test_another_queue_behind_the_address_is_neither_read_nor_trimmed__TB_07(
    queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-07: 600 rows of another queue were trimmed unread."""
    monkeypatch.setattr(client, "FRESH_SECONDS", -1.0)
    write(tmp_path / "other", messages(0, 600))
    with Served(queue) as first:
        location = first.location
        far = FlightQueue(location)
        far.register("spark")
    with Served(tmp_path / "other", location):
        QueueReader(tmp_path / "other").register("spark")
        for bound in (far, FlightQueue(location, queue_id=far.queue_id)):
            for call in (
                lambda bound=bound: bound.describe(),
                lambda bound=bound: bound.end(),
                lambda bound=bound: bound.place(5),
                lambda bound=bound: bound.check(Landed(5)),
                lambda bound=bound: bound.register("spark"),
                lambda bound=bound: bound.commit("spark", 600),
                lambda bound=bound: bound.forget("spark"),
                lambda bound=bound: list(bound.read(0, 10)),
            ):
                with pytest.raises(QueueMismatch, match="this is queue"):
                    call()
        assert QueueReader(tmp_path / "other").consumers() == {"spark": 0}


class Older(flight.FlightServerBase):
    """A gateway of another version of this program."""

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        return [json.dumps({"queue_id": "f" * 32, "begin": 0, "end": 5, "damaged": []}).encode()]


def test_a_gateway_of_another_version_is_one_line() -> None:
    with (
        Older("grpc://127.0.0.1:0") as older,
        pytest.raises(QueueError, match="have to be of one version"),
    ):
        FlightQueue(f"grpc://127.0.0.1:{older.port}")


class Full(flight.FlightServerBase):
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        raise OSError("no room: none at all")


def test_what_a_gateway_says_that_fails_is_told_whole() -> None:
    with (
        Full("grpc://127.0.0.1:0") as full,
        pytest.raises(QueueError, match=r"^grpc://[\d.:]+: no room: none at all$"),
    ):
        FlightQueue(f"grpc://127.0.0.1:{full.port}")


def test_what_the_queue_does_not_have_is_one_line(queue: Path, served: Served) -> None:
    far = FlightQueue(served.location)
    with pytest.raises(QueueMismatch, match=r"which ends at 1500$"):
        list(far.read(0, 1501))
    with pytest.raises(QueueError, match=r": a consumer's name is 1 to 64"):
        far.register("a/b")


def test_a_gateway_that_is_away_is_told_at_once() -> None:
    """TB-09: planning waited 60 s for one gateway, and then all of them were given up."""
    with pytest.raises(QueueAway, match="is not to be reached") as caught:
        FlightQueue("grpc://127.0.0.1:1")
    assert "\n" not in str(caught.value)
    assert "Detail" not in str(caught.value)
    known = FlightQueue("grpc://127.0.0.1:1", queue_id="f" * 32, patience=0.0)
    for call in (
        known.describe,
        known.begin,
        lambda: known.place(1),
        lambda: known.register("x"),
        lambda: known.commit("x", 1),
        lambda: known.forget("x"),
        lambda: next(known.read(0, 1)),
    ):
        with pytest.raises(QueueAway, match="is not to be reached"):
            call()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes calls, and never answers
        location = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(QueueAway, match="is not to be reached"):
            FlightQueue(location, limit=0.1)


def test_a_stream_which_hangs_is_begun_again_after_its_time(
    long_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.0)
    with Served(long_queue) as served:
        streamed = served.server._served.stream
        hangs = [threading.Event()]

        def hanging(ticket: bytes) -> Iterator[Any]:
            for number, chunk in enumerate(streamed(ticket)):
                if number == 3 and hangs:
                    hangs.pop().wait(60)
                yield chunk

        monkeypatch.setattr(served.server._served, "stream", hanging)
        monkeypatch.setattr(client, "STREAM_SECONDS_MAX", 1.0)
        far = FlightQueue(served.location)
        event = hangs[0]
        found = [row["offset"] for row in rows(far.read(0, 1000, 100))]
        event.set()
    assert found == list(range(1000))


@pytest.fixture
def long_queue(tmp_path: Path) -> Path:
    """More than the buffers of a connection hold."""
    writer = QueueWriter(tmp_path / "long")
    put(writer, *[batch(number * 100, 100, nbytes=50_000) for number in range(10)])
    writer.close()
    return tmp_path / "long"


def test_a_reader_which_stalled_reads_on_when_it_wakes_up(
    long_queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NB-14: its place was given away meanwhile; no row is lost or comes twice."""
    times = itertools.count(0.0, 1000.0)
    monkeypatch.setattr(flight_requests, "STREAMS_MAX", 1)
    monkeypatch.setattr(flight_requests, "time", own_time(monotonic=lambda: next(times)))
    with Served(long_queue) as served:
        slow, fast = FlightQueue(served.location), FlightQueue(served.location)
        stalled = slow.read(0, 1000, 10)
        found = [row["offset"] for row in rows(iter([next(stalled)]))]
        assert len(rows(fast.read(0, 1000))) == 1000
        found += [row["offset"] for row in rows(stalled)]
    assert found == list(range(1000))


def test_a_busy_server_is_waited_for(long_queue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_requests, "STREAMS_MAX", 1)
    with Served(long_queue) as served:
        other = FlightQueue(served.location).read(0, 1000, 10)
        next(other)
        with pytest.raises(QueueAway, match="too many streams at once"):
            list(FlightQueue(served.location, patience=0.0).read(0, 10))
        waited = []

        def pause(seconds: float) -> None:
            waited.append(seconds)
            list(other)

        # Its own, since other threads of this process sleep, too.
        own = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
        monkeypatch.setattr(client, "time", own)
        assert len(rows(FlightQueue(served.location).read(0, 1000))) == 1000
        assert set(waited) == {0.5}


@pytest.mark.parametrize("location", ["bad://x", "grpc://", "127.0.0.1:1"])
def test_a_wrong_location_is_one_line(location: str) -> None:
    with pytest.raises((ConfigurationError, QueueError)):
        FlightQueue(location, patience=0.0)


# -- who may --------------------------------------------------------------------------------------


def test_without_the_token_nothing_is_told(queue: Path, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("sesame\n")
    wrong.write_text("sesam")
    with Served(queue, token="sesame") as served:
        assert FlightQueue(served.location, token_file=str(right)).end() == 1500
        assert offsets_of(asked(served.location, tokenFile=right)) == list(range(1500))
        for token_file in (None, str(wrong)):
            with pytest.raises(QueueError, match="it wants its token") as caught:
                FlightQueue(served.location, token_file=token_file)
            assert "sesame" not in str(caught.value)
        stale = FlightQueue(served.location, token_file=str(wrong), queue_id=identity(queue))
        with pytest.raises(QueueError, match="it wants its token"):
            next(iter(stale.read(0, 5)))
        wrong.write_text("sesame")  # a token is exchanged while a bridge runs
        assert stale.end() == 1500
        with pytest.raises(ConfigurationError, match="cannot read the token file /nowhere: No su"):
            FlightQueue(served.location, token_file="/nowhere")


def test_the_token_that_a_server_has_made_is_found_by_itself_and_after_a_restart(
    queue: Path,
) -> None:
    """RD-52: every call needs a token now, and who may read the directory needs no option."""
    with Served(queue) as served:
        asking, location = FlightQueue(served.location), served.location
        assert asking.end() == 1500
        fresh = FlightQueue(location, queue_id=asking.queue_id)
    with Served(queue, location):
        assert len(rows(fresh.read(0, 1500))) == 1500
        assert asking.describe().end == 1500
        for token_file in queue.glob("flight-*.token"):
            assert FlightQueue(location, token_file=str(token_file)).end() == 1500


class Stranger(flight.FlightServerBase):
    """Listens where a queue's server did, and names a file for the token."""

    class Naming(flight.ServerMiddlewareFactory):
        path = b""

        def __init__(self) -> None:
            super().__init__()
            self.shown: list[str] = []

        def start_call(self, info: Any, headers: Any) -> None:
            self.shown += headers.get("authorization", [])
            raise flight.FlightUnauthenticatedError("the token is missing or wrong", self.path)

    def __init__(self) -> None:
        self.naming = self.Naming()
        super().__init__("grpc://127.0.0.1:0", middleware={"": self.naming})


def test_no_file_but_the_token_for_this_address_is_sent_to_who_asks_for_it(tmp_path: Path) -> None:
    """A stranger who listens at the address names another file of this user's."""
    with Stranger() as stranger:
        location, name = f"grpc://127.0.0.1:{stranger.port}", f"flight-{stranger.port}.token"
        names = (
            name,
            "id_ed25519",
            "flight-1.token",
            "missing",
            f"{name}/directory",
            f"no/{name}",
            f"\0/{name}",
        )
        (tmp_path / name).write_text(f"{location}1/secret")
        (tmp_path / "id_ed25519").write_text(f"{location}/secret")
        (tmp_path / "flight-1.token").write_text(f"{location}/secret")
        for path in (*(str(tmp_path / each) for each in names), name):
            stranger.naming.path = path.encode()
            with pytest.raises(QueueError, match=r"it wants its token: run .*--token-file FILE to"):
                FlightQueue(location)
        assert stranger.naming.shown == []
        stranger.naming.path = str(tmp_path / name).encode()
        (tmp_path / name).write_text(f"{location}/for-it")
        with pytest.raises(QueueError, match="it wants its token"):
            FlightQueue(location)
        assert stranger.naming.shown == [f"Bearer {location}/for-it"]
        stranger.shutdown()


def test_over_tls_with_a_token(launch: Launcher, queue: Path, tmp_path: Path) -> None:
    """The command, as it is started on a gateway's machine."""
    pair = Authority(tmp_path).server("server", "127.0.0.1")
    (tmp_path / "token").write_text("sesame")
    server = launch(
        *("flight", "--queue", queue, "--listen", "grpc+tls://127.0.0.1:0"),
        *("--token-file", "token", "--tls-cert", pair.cert, "--tls-key", pair.key),
    )
    location = server.address("flight")
    token = str(tmp_path / "token")
    far = FlightQueue(location, token_file=token, authority=str(tmp_path / "authority.pem"))
    assert far.queue_id == identity(queue)
    assert len(rows(far.read(0, 1500))) == 1500
    with pytest.raises(QueueError):
        FlightQueue(location, token_file=token, patience=0.0)
    with pytest.raises(ConfigurationError, match="read the certificate authority /no/where: No su"):
        FlightQueue(location, token_file=token, authority="/no/where")
    with pytest.raises(ConfigurationError, match=r"no certificate, in PEM, in .*token"):
        FlightQueue(location, token_file=token, authority=token)
    for wrong, words in (
        (location.replace("127.0.0.1", "localhost"), "the server's certificate is for another nam"),
        (location.replace("+tls", ""), r"if it speaks TLS there, try grpc\+tls:"),
    ):
        with pytest.raises(QueueError, match=words):
            FlightQueue(wrong, token_file=token, authority=str(tmp_path / "authority.pem"))
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_although_somebody_has_stopped_reading(
    launch: Launcher, tmp_path: Path, number: signal.Signals
) -> None:
    writer = QueueWriter(tmp_path / "large")
    for _ in range(20):
        put(writer, MessageBatch("umq", "call", 0, count=1, body=[bytes(1 << 20)]))
    writer.close()
    server = launch("flight", "--queue", "large", "--listen", "grpc://127.0.0.1:0")
    read = FlightQueue(server.address("flight")).read(0, 20, 1)
    next(read)
    server.signal(number)
    assert server.wait() == 0


def test_the_command_refuses_in_one_line(launch: Launcher, queue: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    taken = launch("flight", "--queue", queue, "--listen", "grpc://127.0.0.1:0").address("flight")
    with socket.create_server(("127.0.0.1", 0)) as before:  # an earlier server has closed first
        port = before.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near:
            before.accept()[0].close()
            near.recv(1)
    there = f"grpc+tls://127.0.0.1:{port}"
    tls = ["--listen", there, "--tls-cert", "empty", "--tls-key", "empty"]
    for options, text in (
        (["--listen", "grpc://0.0.0.0:0"], "can be reached from elsewhere"),
        (["--listen", taken], f"cannot listen on {taken}: Address already in use; another program"),
        (tls, "--tls-cert and --tls-key are no certificate and its key"),
        (["--token-file", "none"], "cannot read the token file none: No such file"),
        (["--token-file", "empty"], "empty holds no token"),
        (["--queue", "none"], "no queue in"),
    ):
        ended = launch.run("flight", "--queue", queue, *options)
        assert ended.returncode == 2
        assert text in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_spark_lands_a_far_queue_and_a_near_one_in_one_table(
    spark: Any, drain: Any, queue: Path, served: Served, tmp_path: Path
) -> None:
    near = tmp_path / "near"
    write(near, messages(0, 40, protocol="umq"))
    query = drain(source=f"{served.location},{near}", consumer="both", maxRowsPerTrigger=1000)
    assert query.exception() is None
    landed = spark.read.parquet(str(tmp_path / "table")).select("gateway", "offset").toArrow()
    assert by_gateway(landed) == {identity(queue): [*range(1500)], identity(near): [*range(40)]}
    assert "both" in QueueReader(queue).consumers()


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


@pytest.mark.slow
def test_whom_a_gateway_does_not_let_in_writes_nothing(
    launch: Launcher, queue: Path, guarded: str, tmp_path: Path
) -> None:
    """An empty table was left behind, and its id was the name of a consumer nobody would be."""
    ours = ("--tls-ca", "authority.pem")
    wrong = {
        ours: "it wants its token",
        (*ours, "--token-file", "other-token"): "it wants its token",
        ("--tls-ca", "other.pem", "--token-file", "token"): "ertificate",
        ("--token-file", "token"): "ertificate",
        ("--tls-ca", "none.pem", "--token-file", "token"): "cannot read",
    }
    before: object = octets(queue)
    for options, text in wrong.items():
        assert text in refused(launch, guarded, *options)
    assert not (tmp_path / "table").exists() and octets(queue) == before
    drain(tmp_path / "table", [queue])
    write(queue, messages(1500, 100))
    before = octets(queue), octets(tmp_path / "table")
    refused(launch, guarded, *ours, "--token-file", "other-token")
    assert (octets(queue), octets(tmp_path / "table")) == before


@pytest.mark.slow
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
    assert offsets_of(asked(guarded, **given)) == list(range(1500))


@pytest.mark.slow
def test_another_queue_behind_the_address_of_a_start_is_refused__TB_07(
    launch: Launcher, queue: Path, trimmed: Path, tmp_path: Path
) -> None:
    """TB-07: no table begins in the middle of a gateway, neither a new one nor another's."""
    untouched = octets(trimmed)
    with Served(trimmed) as served:
        assert "--start begin" in refused(launch, served.location)
    assert "--start begin" in refused(launch, str(trimmed))
    assert octets(trimmed) == untouched and not (tmp_path / "table").exists()
    with Served(queue) as served:
        drain(tmp_path / "table", [served.location])
    before = octets(trimmed), octets(tmp_path / "table")
    with Served(trimmed, served.location) as served:
        assert f"does not know queue {identity(trimmed)}" in refused(launch, served.location)
        assert (octets(trimmed), octets(tmp_path / "table")) == before
        words = ("bridge", "--queue", served.location, "--table", "table", "--once")
        ended = launch.run("--here", *words, "--start", "begin", module="tests.tools.dying")
    assert ended.returncode == 0, ended.stderr
    held = QueueReader(trimmed)
    offsets = landed_offsets(tmp_path / "table")[identity(trimmed)]
    assert offsets == list(range(held.begin(), held.end()))
