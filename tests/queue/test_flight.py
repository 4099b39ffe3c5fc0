"""The queue over Arrow Flight: what is asked and answered, who may ask, what is refused."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.tools.queues import batch, put
from twisted_msgproto.core.errors import ConfigurationError, QueueError
from twisted_msgproto.queue import SCHEMA, QueueReader, QueueWriter
from twisted_msgproto.queue.flight import ROWS_MAX, QueueFlightServer, _TokenCheck

LOCAL = "grpc://127.0.0.1:0"


@pytest.fixture(params=["wire", "inside"])
def ask(request: pytest.FixtureRequest) -> type:
    """How the server is asked."""
    return Caller if request.param == "wire" else Inside


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


class Inside:
    """The same calls without the wire, in this thread, where coverage sees them."""

    def __init__(self, server: QueueFlightServer) -> None:
        self.server = server

    def act(self, name: str, body: object = None) -> Any:
        octets = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        [result] = self.server.do_action(None, flight.Action(name, octets))
        return json.loads(result.body.to_pybytes())

    def get(self, **request: Any) -> list[pa.RecordBatch]:
        ticket = flight.Ticket(json.dumps(request).encode())
        assert isinstance(self.server.do_get(None, ticket), flight.GeneratorStream)
        return list(self.server.batches(ticket.ticket))


class Caller:
    """What a client on another machine does."""

    def __init__(self, server: QueueFlightServer, token: str | None = None, **options: Any) -> None:
        self.client = flight.connect(server.address, **options)
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self.options = flight.FlightCallOptions(timeout=30, headers=headers)

    def act(self, name: str, body: object = None) -> Any:
        octets = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        [result] = self.client.do_action(flight.Action(name, octets), self.options)
        return json.loads(result.body.to_pybytes())

    def get(self, **request: Any) -> list[pa.RecordBatch]:
        ticket = flight.Ticket(json.dumps(request).encode())
        return [chunk.data for chunk in self.client.do_get(ticket, self.options)]


def test_a_queue_is_described(directory: str, ask: type) -> None:
    reader = QueueReader(directory)
    with served(directory) as server:
        assert server.queue_id == reader.queue_id
        assert ask(server).act("describe") == {
            "queue_id": reader.queue_id,
            "epoch": 0,
            "begin": 0,
            "end": 100,
            "damaged": [],
        }


def test_a_range_comes_as_batches_of_the_table(directory: str, ask: type) -> None:
    with served(directory) as server:
        batches = ask(server).get(queue_id=server.queue_id, lo=5, hi=95, rows=30)
    assert all(one.schema.equals(SCHEMA) for one in batches)
    offsets = [offset for one in batches for offset in one.column("offset").to_pylist()]
    assert offsets == list(range(5, 95))
    assert len(batches) == 3
    mine = list(QueueReader(directory).read(5, 95, 30))
    assert pa.Table.from_batches(batches) == pa.Table.from_batches(mine)


@pytest.mark.parametrize("rows", [0, 10 * ROWS_MAX])
def test_no_number_of_rows_or_too_many_is_what_is_usual_or_allowed(
    directory: str, rows: int
) -> None:
    with served(directory) as server:
        caller = Caller(server)
        batches = caller.get(queue_id=server.queue_id, lo=0, hi=100, rows=rows)
        actions = [action.type for action in caller.client.list_actions(caller.options)]
        assert [name for name, _ in server.list_actions(None)] == actions
    assert [one.num_rows for one in batches] == [100]
    assert actions == ["describe", "register", "commit"]


def test_a_consumer_registers_and_commits(directory: str, ask: type) -> None:
    with served(directory) as server:
        caller = ask(server)
        assert caller.act("register", {"consumer": "spark"}) == {"offset": 0}
        assert caller.act("commit", {"consumer": "spark", "offset": 42}) == {}
        assert caller.act("register", {"consumer": "spark"}) == {"offset": 42}
    assert QueueReader(directory).consumers() == {"spark": 42}


def test_damage_met_while_serving_is_described_from_then_on(directory: str, ask: type) -> None:
    path = Path(directory) / f"{20:020d}.segment"
    octets = bytearray(path.read_bytes())
    octets[-9] ^= 1
    path.write_bytes(octets)
    with served(directory) as server:
        caller = ask(server)
        batches = caller.get(queue_id=server.queue_id, lo=0, hi=100)
        assert sum(one.num_rows for one in batches) == 90
        assert caller.act("describe")["damaged"] == [[20, 30]]
        caller.act("commit", {"consumer": "spark", "offset": 100})
        writer = QueueWriter(directory)
        assert writer._log.trim() == 9
        writer.close()
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
        ({"lo": 0, "hi": 1, "queue_id": None, "x": "y" * 5000}, "at most 4096 octets"),
    ],
)
def test_a_wrong_range_is_refused_in_one_line(
    directory: str, ask: type, request_: dict[str, Any], refusal: str
) -> None:
    with served(directory) as server:
        if request_.get("queue_id", "") is None:
            request_ = request_ | {"queue_id": server.queue_id}
        with pytest.raises(flight.FlightServerError, match=refusal) as caught:
            ask(server).get(**request_)
        assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "body", "refusal"),
    [
        ("explode", {}, "unknown action 'explode'; known: describe, register, commit"),
        ("describe", b"{", "a request is a JSON object"),
        ("describe", b"[" * 4000, "a request is a JSON object"),
        ("describe", b"[]", "a request is a JSON object"),
        ("describe", b" " * 5000, "at most 4096 octets"),
        ("commit", {"consumer": "spark"}, "needs the number 'offset'"),
        ("commit", {"offset": 1}, "needs the text 'consumer'"),
        ("commit", {"consumer": "spark", "offset": 101}, "QueueMismatch: 'spark' commits"),
        ("commit", {"consumer": "../up", "offset": 1}, "a consumer's name is"),
        ("register", {"consumer": ".x"}, "a consumer's name is"),
    ],
)
def test_a_wrong_action_is_refused_in_one_line(
    directory: str, ask: type, name: str, body: object, refusal: str
) -> None:
    with served(directory) as server:
        with pytest.raises(flight.FlightServerError, match=refusal) as caught:
            ask(server).act(name, body)
        assert "Traceback" not in str(caught.value)


def test_a_fault_of_ours_tells_its_name_only(
    directory: str, ask: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: QueueReader) -> int:
        raise ZeroDivisionError("secret detail")

    with served(directory) as server:
        monkeypatch.setattr(QueueReader, "begin", broken)
        with pytest.raises(flight.FlightInternalError, match="ZeroDivisionError") as caught:
            ask(server).act("describe")
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
        assert sum(one.num_rows for one in stream(ticket)) == 100


def test_the_token_check_refuses_what_is_not_the_token() -> None:
    check = _TokenCheck("secret")
    check.start_call(None, {"authorization": ["Bearer secret"]})
    for headers in ({}, {"authorization": []}, {"authorization": ["Bearer sécret"]}):
        with pytest.raises(flight.FlightUnauthenticatedError, match="missing or wrong"):
            check.start_call(None, headers)


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


def certificate() -> tuple[bytes, bytes]:
    """A certificate for localhost and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def test_tls_and_a_token_serve_other_machines(directory: str) -> None:
    made, key = certificate()
    with served(
        directory, "grpc+tls://0.0.0.0:0", token="secret", certificate=made, key=key
    ) as server:
        assert server.address == f"grpc+tls://0.0.0.0:{server.port}"
        server.address = f"grpc+tls://localhost:{server.port}"
        caller = Caller(server, "secret", tls_root_certs=made)
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


def test_names_of_this_machine_need_no_token(directory: str) -> None:
    with served(directory, "grpc://localhost:0") as server:
        assert Caller(server).act("describe")["end"] == 100
    with served(directory, "grpc://[::1]:0") as server:
        assert server.address == f"grpc://[::1]:{server.port}"


def test_without_a_queue_nothing_is_served(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="no queue in"):
        QueueFlightServer(str(tmp_path / "q"), LOCAL)


def test_closing_does_not_wait_for_ever_for_a_reader_which_stopped_reading(tmp_path: Path) -> None:
    writer = QueueWriter(tmp_path / "q")
    put(writer, *[batch(number * 100, 100, octets=50_000) for number in range(10)])
    writer.close()
    server = QueueFlightServer(str(tmp_path / "q"), LOCAL)
    caller = Caller(server)
    ticket = {"queue_id": server.queue_id, "lo": 0, "hi": 1000, "rows": 10}
    stream = caller.client.do_get(flight.Ticket(json.dumps(ticket).encode()), caller.options)
    stream.read_chunk()
    server.close(0.05)
    stream.cancel()
    assert server.close(30)
