"""The queue over Arrow Flight: what is refused, and who may ask.

What is answered is in tests/spark/test_flight.py, where our client asks.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from tests.doubles import own_time
from tests.tools.queues import batch, put
from twisted_msgproto.core.errors import ConfigurationError, QueueError
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog, flight_requests
from twisted_msgproto.queue.consumers import read_statuses
from twisted_msgproto.queue.flight_requests import Streams
from twisted_msgproto.queue.flight_server import QueueFlightServer
from twisted_msgproto.testing import BrokenDisk

CONSUMERS_MAX = 64
STREAM_IDLE_SECONDS, STREAMS_MAX = 30.0, 16


ACTIONS = ["describe", "place", "check", "register", "commit", "status", "forget"]
ASKED = {"consumer": "spark", "offset": 1, "landed": {"offset": 1}, "status": {}}
LOCAL = "grpc://127.0.0.1:0"


@pytest.fixture
def directory(tmp_path: Path) -> str:
    writer = QueueWriter(tmp_path / "q", segment_bytes=1)
    for number in range(0, 100, 10):
        put(writer, batch(number, 10))
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

    def get(self, **request: Any) -> int:
        """Read a range; return how many rows came."""
        ticket = flight.Ticket(json.dumps(request).encode())
        return sum(chunk.data.num_rows for chunk in self.client.do_get(ticket, self.options))


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
        ("describe", b" " * 4096, "a request is a JSON object"),
        ("describe", b" " * 4097, "at most 4096 bytes"),
        *[(name, ASKED | {"queue_id": None}, "needs the text 'queue_id'") for name in ACTIONS],
        *[(name, ASKED | {"queue_id": "f" * 32}, "Mismatch: this is queue") for name in ACTIONS],
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


def test_streams_are_bounded_and_abandoned_ones_do_not_count(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_requests, "STREAMS_MAX", 1)
    with served(directory) as server:
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
    """Seconds of the server's streams, which pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(flight_requests, "time", own_time(monotonic=lambda: self.now))


def test_the_reader_which_waits_longest_loses_its_place_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flight_requests, "STREAMS_MAX", 2)
    clock, streams = Clock(monkeypatch), Streams()
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


def test_a_stream_which_lost_its_place_ends_in_one_line(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_requests, "STREAMS_MAX", 1)
    clock = Clock(monkeypatch)
    with served(directory) as server:
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


def test_rows_behind_what_is_not_its_history_are_not_read__TB_06(directory: str) -> None:
    """TB-06: an older copy may have been put in place since the bridge has asked what there is."""
    landed = asdict(QueueReader(directory).place(37)) | {"witness": 5}
    with served(directory) as server:
        request = {"queue_id": server.queue_id, "landed": landed, "lo": 37, "hi": 100}
        with pytest.raises(flight.FlightServerError, match=r"QueueMismatch: .*table rewind"):
            Caller(server).get(**request)


def test_damage_met_while_serving_is_described_from_then_on(directory: str) -> None:
    path = Path(directory) / f"{20:020d}.segment"
    octets = bytearray(path.read_bytes())
    octets[-9] ^= 1
    path.write_bytes(octets)
    with served(directory) as server:
        caller = Caller(server)
        own = {"queue_id": server.queue_id}
        assert caller.get(**own, lo=0, hi=100) == 90
        assert caller.act("describe")["damaged"] == [[20, 30]]
        caller.act("commit", own | {"consumer": "spark", "offset": 100})
        log = SegmentLog(directory)
        assert log.trim() == 9
        log.close()
        assert caller.act("describe")["damaged"] == []


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
        asked = {"queue_id": server.queue_id, "lo": 0, "hi": 40, "rows": 10}
        batches = server.batches(json.dumps(asked).encode())
        first, _ = next(batches)
        next(batches)  # who goes on has taken the first one
        caller.act("commit", own | {"offset": first.num_rows})
        caller.get(queue_id=server.queue_id, lo=0, hi=40)
        caller.act("commit", own | {"offset": 40})
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


def test_the_page_s_own_numbers_are_the_code_s() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "queue-flight.md").read_text().split())
    assert f"At most {STREAMS_MAX} ranges are read at the same time" in page
    assert f"A reader that reads nothing for {STREAM_IDLE_SECONDS:g} seconds" in page
    assert "the gateway names it in its log after an hour" in page
