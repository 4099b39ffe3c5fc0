"""The queue over Arrow Flight: what is asked and answered, who may ask, what is refused."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.tools.certificates import Authority
from tests.tools.queues import batch, put
from twisted_msgproto.core.errors import ConfigurationError, QueueError
from twisted_msgproto.queue import SCHEMA, QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue.consumers import read_statuses
from twisted_msgproto.queue.flight_requests import Streams
from twisted_msgproto.queue.flight_server import QueueFlightServer
from twisted_msgproto.testing import BrokenDisk

CONSUMERS_MAX, REQUEST_BYTES_MAX = 64, 4096
STREAM_IDLE_SECONDS, STREAMS_MAX = 30.0, 16


ACTIONS = ["describe", "place", "check", "register", "commit", "status", "forget"]
LOCAL = "grpc://127.0.0.1:0"


@pytest.fixture
def directory(tmp_path: Path) -> str:
    writer = QueueWriter(tmp_path / "q", segment_bytes=1, group_messages=10)
    put(writer, *[batch(number, 10) for number in range(0, 100, 10)])
    writer.close()
    return str(tmp_path / "q")


@contextmanager
def served(directory: str, location: str = LOCAL, **options: Any) -> Iterator[QueueFlightServer]:
    server = QueueFlightServer(directory, location, **options)
    try:
        yield server
    finally:
        assert server.close()
        assert server.close()


def without_told(chunks: Iterator[tuple[pa.RecordBatch, bytes | None]]) -> list[pa.RecordBatch]:
    """The batches with rows; the last chunk has none and tells what was damaged."""
    *found, (last, told) = chunks
    assert last.num_rows == 0
    assert told is not None
    assert set(json.loads(told)) == {"damaged"}
    return [batch for batch, _ in found]


class Caller:
    """What a client on another machine does."""

    def __init__(self, server: QueueFlightServer, token: str | None = None, **options: Any) -> None:
        self.client = flight.connect(server.address, **options)
        if token is None and server.token_file is not None:
            token = Path(server.token_file).read_text().strip()
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self.options = flight.FlightCallOptions(timeout=30, headers=headers)

    def act(self, name: str, body: object = None) -> Any:
        octets = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        [result] = self.client.do_action(flight.Action(name, octets), self.options)
        return json.loads(result.body.to_pybytes())

    def get(self, **request: Any) -> list[pa.RecordBatch]:
        ticket = flight.Ticket(json.dumps(request).encode())
        chunks = self.client.do_get(ticket, self.options)
        told = [
            (chunk.data, chunk.app_metadata and chunk.app_metadata.to_pybytes()) for chunk in chunks
        ]
        return without_told(iter(told))


def test_a_queue_is_described(directory: str) -> None:
    reader = QueueReader(directory)
    with served(directory) as server:
        assert server.queue_id == reader.queue_id
        caller = Caller(server)
        assert caller.act("describe") == jsoned(reader.describe())
        caller.act("register", {"queue_id": reader.queue_id, "consumer": "spark"})
        landed = reader.place(37)
        described = caller.act("describe", {"queue_id": reader.queue_id, "landed": asdict(landed)})
        assert described == jsoned(reader.describe(landed))
        assert described["consumers"] == {"spark": 0}
        assert described["oldest"] == 1_700_000_000_000_030
        assert 0 < described["waiting_bytes"] < described["bytes"]


def jsoned(described: Any) -> Any:
    return json.loads(json.dumps(asdict(described)))


def test_places_are_told_and_checked(directory: str) -> None:
    reader = QueueReader(directory)
    with served(directory) as server:
        caller, own = Caller(server), {"queue_id": server.queue_id}
        for offset in (0, 1, 37, 100):
            landed = caller.act("place", own | {"offset": offset})
            assert landed == asdict(reader.place(offset))
            assert caller.act("check", own | {"landed": landed}) == {}
        told = {name: value for name, value in landed.items() if name == "offset"}
        assert caller.act("check", own | {"landed": told}) == {}
        with pytest.raises(flight.FlightServerError, match=r"QueueMismatch: queue .* ends at"):
            caller.act("place", own | {"offset": 101})


WRONG = [{"incarnation": 5}, {"witness": 5}, {"offset": 101}]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_its_history_is_refused_by_every_call(
    directory: str, wrong: dict[str, int]
) -> None:
    """TB-06, over Flight."""
    landed = asdict(QueueReader(directory).place(37)) | wrong
    with served(directory) as server:
        caller, claim = Caller(server), {"queue_id": server.queue_id, "landed": landed}
        for call in (
            lambda: caller.act("describe", claim),
            lambda: caller.act("check", claim),
            lambda: caller.act("commit", claim | {"consumer": "spark", "offset": 37}),
            lambda: caller.get(**claim, lo=37, hi=100),
        ):
            with pytest.raises(flight.FlightServerError, match=r"QueueMismatch: .*table rewind"):
                call()
    assert QueueReader(directory).consumers() == {}


def test_another_queue_behind_the_address_is_neither_read_nor_trimmed(
    directory: str, tmp_path: Path
) -> None:
    """TB-07: only DoGet named the queue; the other queue's rows were trimmed unread."""
    with served(directory) as server:
        caller, own = Caller(server), {"queue_id": server.queue_id}
        caller.act("register", own | {"consumer": "spark"})
        landed = caller.act("place", own | {"offset": 50})
        Path(directory).rename(tmp_path / "away")
        writer = QueueWriter(directory)
        put(writer, batch(0, 100))
        writer.close()
        other = QueueReader(directory)
        other.register("spark")
        for call in (
            lambda: caller.act("describe", own),
            lambda: caller.act("describe", own | {"landed": landed}),
            lambda: caller.act("place", own | {"offset": 50}),
            lambda: caller.act("check", own | {"landed": landed}),
            lambda: caller.act("register", own | {"consumer": "another"}),
            lambda: caller.act("commit", own | {"consumer": "spark", "offset": 50}),
            lambda: caller.act("forget", own | {"consumer": "spark"}),
            lambda: caller.get(**own, lo=0, hi=10),
        ):
            with pytest.raises(flight.FlightServerError, match="QueueMismatch: this is queue"):
                call()
        assert other.consumers() == {"spark": 0}
        assert caller.act("describe")["queue_id"] == other.queue_id
        for name in ("place", "check", "register", "commit", "forget"):
            with pytest.raises(flight.FlightServerError, match="needs the text 'queue_id'"):
                caller.act(name, {"consumer": "spark", "offset": 50, "landed": landed})


def test_a_consumer_is_forgotten_while_the_gateway_writes(directory: str) -> None:
    """TB-12: a dead consumer filled the disk until the gateway was stopped."""
    writer = QueueWriter(directory, segment_bytes=1)
    with served(directory) as server:
        caller, own = Caller(server), {"queue_id": server.queue_id}
        caller.act("register", own | {"consumer": "dead"})
        caller.act("commit", own | {"consumer": "live", "offset": 50})
        assert caller.act("forget", own | {"consumer": "dead"}) == {}
        assert caller.act("describe")["consumers"] == {"live": 50}
        with pytest.raises(flight.FlightServerError, match="no consumer 'dead'"):
            caller.act("forget", own | {"consumer": "dead"})
    writer.close()


def test_a_range_comes_as_batches_of_the_table(directory: str) -> None:
    with served(directory) as server:
        batches = Caller(server).get(queue_id=server.queue_id, lo=5, hi=95, rows=30)
    assert all(one.schema.equals(SCHEMA) for one in batches)
    offsets = [offset for one in batches for offset in one.column("offset").to_pylist()]
    assert offsets == list(range(5, 95))
    assert len(batches) == 3
    mine = list(QueueReader(directory).read(5, 95, 30))
    assert pa.Table.from_batches(batches) == pa.Table.from_batches(mine)


def test_damage_is_told_with_the_rows_behind_it_and_at_the_end(directory: str) -> None:
    for first in (20, 60, 90):
        path = Path(directory) / f"{first:020d}.segment"
        octets = bytearray(path.read_bytes())
        octets[-9] ^= 1
        path.write_bytes(octets)
    with served(directory) as server:
        request = {"queue_id": server.queue_id, "lo": 25, "hi": 95, "rows": 1}
        client = Caller(server)
        stream = client.client.do_get(flight.Ticket(json.dumps(request).encode()), client.options)
        told = [
            (
                chunk.data.column("offset").to_pylist()[:1],
                chunk.app_metadata and json.loads(chunk.app_metadata.to_pybytes())["damaged"],
            )
            for chunk in stream
        ]
    assert told == [
        ([30], [[25, 30]]),
        ([40], None),
        ([50], None),
        ([70], [[25, 30], [60, 70]]),
        ([80], None),
        ([], [[25, 30], [60, 70], [90, 95]]),
    ]


def test_damage_met_while_serving_is_described_from_then_on(directory: str) -> None:
    path = Path(directory) / f"{20:020d}.segment"
    octets = bytearray(path.read_bytes())
    octets[-9] ^= 1
    path.write_bytes(octets)
    with served(directory) as server:
        caller = Caller(server)
        own = {"queue_id": server.queue_id}
        batches = caller.get(**own, lo=0, hi=100)
        assert sum(one.num_rows for one in batches) == 90
        assert caller.act("describe")["damaged"] == [[20, 30]]
        caller.act("commit", own | {"consumer": "spark", "offset": 100})
        log = SegmentLog(directory)
        assert log.trim() == 9
        log.close()
        assert caller.act("describe")["damaged"] == []


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        ({"queue_id": "f" * 32, "lo": 0, "hi": 1}, "QueueMismatch: this is queue"),
        ({"lo": 0, "hi": 1}, "QueueError: a request needs the text 'queue_id'"),
        ({"lo": "0", "hi": 1, "queue_id": None}, "QueueError: a request needs the number 'lo'"),
        ({"lo": 0, "hi": True, "queue_id": None}, "QueueError: a request needs the number 'hi'"),
        ({"lo": 0, "hi": 1, "rows": -1, "queue_id": None}, "QueueError: a request needs the num"),
        ({"lo": -1, "hi": 1, "queue_id": None}, "QueueError: a request needs the number 'lo'"),
        ({"lo": 0, "hi": 101, "queue_id": None}, "QueueMismatch: offsets 0 to 101 asked"),
        ({"lo": 0, "hi": 1, "queue_id": None, "x": "y" * 5000}, "at most 4096 bytes"),
    ],
)
def test_a_wrong_range_is_refused_in_one_line(
    directory: str, request_: dict[str, Any], refusal: str
) -> None:
    with served(directory) as server:
        if request_.get("queue_id", "") is None:
            request_ = request_ | {"queue_id": server.queue_id}
        with pytest.raises(flight.FlightServerError, match=refusal) as caught:
            Caller(server).get(**request_)
        assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "body", "refusal"),
    [
        ("explode", {}, "unknown action 'explode'; known: describe, place, check"),
        ("describe", b"{", "a request is a JSON object"),
        ("describe", b"[" * 4000, "a request is a JSON object"),
        ("describe", b"[]", "a request is a JSON object"),
        ("describe", b" " * 5000, "at most 4096 bytes"),
        ("commit", {"consumer": "spark"}, "needs the number 'offset'"),
        ("commit", {"offset": 1}, "needs the text 'consumer'"),
        ("commit", {"consumer": "spark", "offset": 101}, "QueueMismatch: 'spark' commits"),
        ("commit", {"consumer": "../up", "offset": 1}, "a consumer's name is"),
        ("register", {"consumer": ".x"}, "a consumer's name is"),
        ("forget", {"consumer": "../identity"}, "a consumer's name is"),
        ("check", {}, "a request needs the place 'landed'"),
        ("check", {"landed": 5}, "a place is a JSON object"),
        ("check", {"landed": {}}, "needs the number 'offset'"),
        ("describe", {"landed": {"offset": 1, "witness": -1}}, "needs the number 'witness'"),
    ],
)
def test_a_wrong_action_is_refused_in_one_line(
    directory: str, name: str, body: object, refusal: str
) -> None:
    with served(directory) as server:
        with pytest.raises(flight.FlightServerError, match=refusal) as caught:
            if isinstance(body, dict):
                body = {"queue_id": server.queue_id} | body
            Caller(server).act(name, body)
        assert "Traceback" not in str(caught.value)


def test_a_fault_of_ours_tells_its_name_only(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: QueueReader, landed: object) -> int:
        raise ZeroDivisionError("secret detail")

    with served(directory) as server:
        monkeypatch.setattr(QueueReader, "describe", broken)
        with pytest.raises(flight.FlightInternalError, match="ZeroDivisionError") as caught:
            Caller(server).act("describe")
        assert "secret detail" not in str(caught.value)


def test_streams_are_bounded_and_abandoned_ones_do_not_count(directory: str) -> None:
    with served(directory, streams_max=1) as server:
        stream = server.batches
        request = {"queue_id": server.queue_id, "lo": 0, "hi": 100, "rows": 1}
        ticket = json.dumps(request).encode()
        for _ in range(3):
            stream(ticket)  # never begun
        under_way = stream(ticket)
        next(under_way)
        with pytest.raises(flight.FlightUnavailableError, match="too many streams"):
            next(stream(ticket))
        with pytest.raises(flight.FlightUnavailableError, match="too many streams"):
            Caller(server).get(**request)
        under_way.close()
        assert sum(one.num_rows for one, _ in stream(ticket)) == 100


class Clock:
    """Seconds which pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def long_queue(tmp_path: Path) -> str:
    """More than the buffers of a connection hold."""
    writer = QueueWriter(tmp_path / "long")
    put(writer, *[batch(number * 100, 100, nbytes=10_000) for number in range(10)])
    writer.close()
    return str(tmp_path / "long")


def test_readers_which_stall_do_not_lock_others_out(long_queue: str) -> None:
    """NB-14: 16 readers which take nothing locked the 17th out for good."""
    clock = Clock()
    # Without it gRPC widens a stream's window on a busy machine until a whole range fits in it,
    # and a reader which takes nothing is served to its end.
    fixed_window = [("grpc.http2.bdp_probe", 0)]
    with served(long_queue, clock=clock) as server:
        caller = Caller(server, generic_options=fixed_window)
        ticket = {"queue_id": server.queue_id, "lo": 0, "hi": 1000, "rows": 10}
        stalled = []
        for _ in range(STREAMS_MAX):
            octets = flight.Ticket(json.dumps(ticket).encode())
            stalled.append(caller.client.do_get(octets, caller.options))
            stalled[-1].read_chunk()
        with pytest.raises(flight.FlightUnavailableError, match="too many streams"):
            caller.get(**ticket)
        rows = None
        while rows is None:  # until they all have filled the buffers and wait
            clock.now += STREAM_IDLE_SECONDS
            with suppress(flight.FlightUnavailableError):
                rows = sum(one.num_rows for one in caller.get(**ticket))
        assert rows == 1000
        told = 0
        for stream in stalled:
            try:
                for _ in stream:
                    pass
            except flight.FlightUnavailableError as error:
                assert "nothing was taken of this stream for too long" in str(error)
                told += 1
        assert told >= 1


def test_the_reader_which_waits_longest_loses_its_place_and_no_other() -> None:
    clock = Clock()
    streams = Streams(2, clock)
    first, second = streams.begin(), streams.begin()
    assert first is not None
    assert second is not None
    assert streams.begin() is None  # they work
    first.waits_since = 0.0
    clock.now = second.waits_since = 10.0
    clock.now = 29.9
    assert streams.begin() is None
    clock.now = 30.0
    third = streams.begin()
    assert third is not None
    assert streams.begin() is None
    assert (first.lost, second.lost) == (True, False)
    for ended in (first, first, third):
        streams.end(ended)
    assert streams.begin() is not None


def test_a_stream_which_lost_its_place_ends_in_one_line(directory: str) -> None:
    clock = Clock()
    with served(directory, streams_max=1, clock=clock) as server:
        request = {"queue_id": server.queue_id, "lo": 0, "hi": 100, "rows": 1}
        ticket = json.dumps(request).encode()
        first = server.batches(ticket)
        next(first)
        clock.now = STREAM_IDLE_SECONDS
        second = server.batches(ticket)
        next(second)
        with pytest.raises(flight.FlightUnavailableError, match="read on from the last row"):
            next(first)
        assert sum(one.num_rows for one, _ in second) == 90


# -- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [None, "", "wrong", "secret2"])
def test_without_the_token_nothing_is_answered(directory: str, shown: str | None) -> None:
    with served(directory, token="secret") as server:
        caller = Caller(server, shown)
        for ask in (
            lambda: caller.act("describe"),
            lambda: caller.get(queue_id=server.queue_id, lo=0, hi=1),
        ):
            with pytest.raises(flight.FlightUnauthenticatedError, match="missing or wrong"):
                ask()
        assert Caller(server, "secret").act("describe")["end"] == 100


def list_actions(caller: Caller) -> list[Any]:
    return list(caller.client.list_actions(caller.options))


def test_a_server_without_a_token_makes_one_that_the_directory_protects(directory: str) -> None:
    """RD-52: on loopback anybody read the messages, forgot the bridge and had rows trimmed."""
    own = {"queue_id": QueueReader(directory).queue_id, "consumer": "stranger"}
    made = set()
    for _ in range(2):
        with served(directory) as server:
            path = Path(server.token_file or "")
            assert path.parent == Path(directory)
            assert path.stat().st_mode & 0o777 == 0o600
            token = path.read_text().strip()
            made.add(token.rpartition("/")[2])
            Caller(server, token).act("register", own | {"consumer": "spark"})
            before = QueueReader(directory).consumers()
            for shown in ("", "wrong", token[:-1], *made - {token.rpartition("/")[2]}):
                stranger = Caller(server, shown)
                for ask in (
                    *(
                        partial(stranger.act, name, own | {"offset": 100, "status": {}})
                        for name in ACTIONS
                    ),
                    partial(stranger.act, "forget", own | {"consumer": "spark"}),
                    partial(stranger.get, queue_id=own["queue_id"], lo=0, hi=1),
                    partial(list_actions, stranger),
                ):
                    with pytest.raises(
                        flight.FlightUnauthenticatedError, match=re.escape(str(path))
                    ):
                        ask()
            assert QueueReader(directory).consumers() == before == {"spark": 0}
    assert len(made) == 2


def test_a_full_disk_does_not_keep_a_server_from_starting_again(directory: str) -> None:
    """A queue that cannot be read is not trimmed, and the disk stays full."""
    with served(directory) as server:
        location, path = server.address, Path(server.token_file or "")
        before = path.read_text()

    disk = BrokenDisk()
    disk.fail("rename", times=None, errno=errno.ENOSPC)
    with served(directory, location, disk=disk) as server:
        assert path.read_text() != before
        assert Caller(server).act("describe")["end"] == 100
    path.unlink()
    with pytest.raises(
        ConfigurationError, match=r"No space left.*give one with --token-file FILE$"
    ):
        QueueFlightServer(directory, location, disk=disk)
    with served(directory, location, disk=disk, token="a token from a file") as server:
        assert Caller(server, "a token from a file").act("describe")["end"] == 100


def test_each_mark_that_reading_does_not_explain_is_reported(directory: str) -> None:
    """RD-52: a stranger's marks had 2,300 rows trimmed, and no log had a line."""
    lines: list[str] = []
    with served(directory, report=lines.append) as server:
        caller, own = Caller(server), {"queue_id": server.queue_id, "consumer": "spark"}
        caller.act("register", own)
        for offset in (10, 40):
            caller.get(queue_id=server.queue_id, lo=0, hi=40)
            caller.act("commit", own | {"offset": offset})
        caller.act("register", own)
        caller.act("commit", own | {"offset": 100})
        caller.act("commit", own | {"offset": 50})
        caller.act("commit", own | {"consumer": "other", "offset": 100})
        caller.act("forget", own)
    peer = r"ipv4:127\.0\.0\.1:\d+"
    expected = [
        f"consumer 'spark' is new, and begins at 0, by {peer}",
        f"consumer 'spark' is moved from 40 to 100, by {peer}; .* read ends at 40",
        f"consumer 'spark' is moved from 100 to 50, by {peer}; .* read ends at 40",
        f"consumer 'other' is new, and is set to 100, by {peer}; .* ends at 40",
        f"consumer 'spark', at 50, is forgotten, by {peer}",
    ]
    assert len(lines) == len(expected)
    for line, one in zip(lines, expected, strict=True):
        assert re.fullmatch(one, line)


def test_consumers_are_bounded(directory: str) -> None:
    """RD-52: thousands of consumers were made in 4 s."""
    with served(directory) as server:
        caller, own = Caller(server), {"queue_id": server.queue_id}
        for number in range(CONSUMERS_MAX):
            caller.act("register", own | {"consumer": f"c{number}"})
        for name, more in (("register", {}), ("commit", {"offset": 5})):
            with pytest.raises(flight.FlightServerError, match=r"--forget NAME"):
                caller.act(name, own | {"consumer": "more"} | more)
        caller.act("commit", own | {"consumer": "c0", "offset": 0})
        caller.act("status", own | {"consumer": "c0", "status": {}})
        caller.act("forget", own | {"consumer": "c0"})
        assert not read_statuses(directory)
        caller.act("register", own | {"consumer": "more"})


def test_tls_and_a_token_serve_other_machines(directory: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    tls = {"certificate": pair.cert.read_bytes(), "key": pair.key.read_bytes()}
    with served(directory, "grpc+tls://0.0.0.0:0", token="secret", **tls) as server:
        assert server.address == f"grpc+tls://0.0.0.0:{server.port}"
        server.address = f"grpc+tls://localhost:{server.port}"
        caller = Caller(server, "secret", tls_root_certs=authority.cert.read_bytes())
        assert caller.act("describe")["end"] == 100
        server.address = f"grpc://localhost:{server.port}"
        with pytest.raises(flight.FlightUnavailableError):
            Caller(server, "secret").act("describe")


@pytest.mark.parametrize(
    ("location", "options", "refusal"),
    [
        ("127.0.0.1:8815", {}, "a Flight location is grpc://HOST:PORT"),
        ("grpc://127.0.0.1", {}, "a Flight location is grpc://HOST:PORT"),
        ("grpc://127.0.0.1:x", {}, "a Flight location is grpc://HOST:PORT"),
        ("http://127.0.0.1:80", {}, "a Flight location is grpc://HOST:PORT"),
        ("grpc://", {}, "a Flight location is grpc://HOST:PORT"),
        ("grpc+tls://127.0.0.1:0", {}, "certificate and key go with grpc"),
        ("grpc+tls://127.0.0.1:0", {"certificate": b"x"}, "certificate and key go with grpc"),
        ("grpc+tls://127.0.0.1:0", {"key": b"x"}, "certificate and key go with grpc"),
        (LOCAL, {"certificate": b"x", "key": b"x"}, "certificate and key go with grpc"),
        (LOCAL, {"token": ""}, "the token is empty"),
        ("grpc://0.0.0.0:0", {}, "it needs grpc.tls:// and a token"),
        ("grpc://0.0.0.0:0", {"token": "secret"}, "it needs grpc.tls:// and a token"),
        ("grpc://gateway.example:0", {"token": "secret"}, "it needs grpc.tls:// and a token"),
        (
            "grpc+tls://0.0.0.0:0",
            {"certificate": b"x", "key": b"x"},
            "it needs grpc.tls:// and a token",
        ),
        (
            "grpc+tls://127.0.0.1:0",
            {"certificate": b"no certificate", "key": b"no key"},
            "cannot listen on",
        ),
    ],
)
def test_a_location_that_cannot_or_must_not_be_is_one_line(
    directory: str, location: str, options: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(ConfigurationError, match=refusal) as caught:
        QueueFlightServer(directory, location, **options)
    assert "\n" not in str(caught.value)


def test_names_of_this_machine_need_no_token_of_an_operator(directory: str) -> None:
    with served(directory, "grpc://localhost:0") as server:
        assert Caller(server).act("describe")["end"] == 100
    with served(directory, "grpc://[::1]:0") as server:
        assert server.address == f"grpc://[::1]:{server.port}"


def test_without_a_queue_nothing_is_served(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="no queue in"):
        QueueFlightServer(str(tmp_path / "q"), LOCAL)


def test_closing_does_not_wait_for_ever_for_a_reader_which_stopped_reading(tmp_path: Path) -> None:
    writer = QueueWriter(tmp_path / "q")
    put(writer, *[batch(number * 100, 100, nbytes=10_000) for number in range(10)])
    writer.close()
    server = QueueFlightServer(str(tmp_path / "q"), LOCAL)
    caller = Caller(server)
    ticket = {"queue_id": server.queue_id, "lo": 0, "hi": 1000, "rows": 10}
    stream = caller.client.do_get(flight.Ticket(json.dumps(ticket).encode()), caller.options)
    stream.read_chunk()
    server.close(0.05)
    stream.cancel()
    assert server.close(30)


def test_a_bridge_elsewhere_leaves_its_status_for_the_page(directory: str) -> None:
    with served(directory) as server:
        caller = Caller(server)
        named = {"queue_id": server.queue_id, "consumer": "spark"}
        told = {"rows": 5, "consumer": "another"}
        with pytest.raises(flight.FlightServerError, match="there is no consumer 'spark'"):
            caller.act("status", {**named, "status": told})
        with pytest.raises(flight.FlightServerError, match="needs the object 'status'"):
            caller.act("status", named)
        caller.act("register", named)
        assert caller.act("status", {**named, "status": told}) == {}
        assert read_statuses(directory) == [{"rows": 5, "consumer": "spark"}]
        with pytest.raises(flight.FlightServerError, match="there is no consumer"):
            caller.act("status", {**named, "consumer": "../../spark", "status": told})
        Path(directory, "bridges/spark.json").unlink()
        Path(directory, "bridges/spark.json").mkdir()
        with pytest.raises(flight.FlightServerError, match="the status cannot be written"):
            caller.act("status", {**named, "status": told})


def test_a_request_has_so_many_bytes_and_no_more(directory: str) -> None:
    body = b'{"landed": null' + b" " * (REQUEST_BYTES_MAX - 16) + b"}"
    with served(directory) as server:
        caller = Caller(server)
        assert caller.act("describe", body)["end"] == 100
        with pytest.raises(flight.FlightServerError, match=f"at most {REQUEST_BYTES_MAX} bytes"):
            caller.act("describe", body + b" ")


def test_the_page_s_own_numbers_are_the_code_s() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "queue-flight.md").read_text().split())
    assert f"At most {STREAMS_MAX} ranges are read at the same time" in page
    assert f"A reader that reads nothing for {STREAM_IDLE_SECONDS:g} seconds" in page
    assert "the gateway names it in its log after an hour" in page
