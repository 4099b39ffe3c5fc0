"""Batches into payloads and back: values, nulls, text that is no UTF-8, wrong types."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.disk import SimulatedDisk
from tests.tools.byte_streams import packed_frames, packed_maps
from tests.tools.queues import batch as numbered
from tests.tools.queues import encode, put, rows
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.queue import SCHEMA, QueueReader, QueueWriter, SegmentLog

ROWS_MAX = 5
DIRECTORY = "/queue"


def stored(*frames: Any) -> QueueReader:
    """A reader of a queue of these frames."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    for one in frames:
        log.append([one])
    return QueueReader(DIRECTORY, disk=disk)


def decoded(*frames: Any, lo: int = 0, hi: int | None = None) -> list[dict[str, Any]]:
    """The rows lo ≤ offset < hi of frames which follow one another."""
    reader = stored(*frames)
    found: list[dict[str, Any]] = []
    for batch in reader.read(lo, reader.end() if hi is None else hi):
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA, check_metadata=True)
        found += batch.to_pylist()
    assert {row.pop("gateway") for row in found} <= {reader.queue_id}
    return found


def payload(frame: Any) -> bytes:
    return b"".join(bytes(memoryview(piece)) for piece in frame.pieces)


def expected(batches: list[MessageBatch]) -> list[dict[str, Any]]:
    """What the table has for ``batches``, value by value."""
    found = []
    for batch in batches:
        for message in batch:
            found.append(
                {
                    "offset": len(found),
                    "received_at": pa.scalar(
                        message.received_at, pa.timestamp("us", "UTC")
                    ).as_py(),
                    "protocol": message.protocol,
                    "peer": message.peer,
                    "session": message.session,
                    "client_id": message.client_id,
                    "kind": message.kind,
                    "message_id": None if message.message_id is None else str(message.message_id),
                    "destination": message.destination,
                    "fields": None if message.fields is None else list(message.fields.items()),
                    "body": message.body,
                    "attachments": None
                    if message.attachments is None
                    else list(message.attachments),
                    "truncated": message.truncated,
                }
            )
    return found


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
some_bytes = st.binary(max_size=20)


def column(count: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """None, or a list of ``count`` values."""
    return st.none() | st.lists(values, min_size=count, max_size=count)


@st.composite
def message_batches(draw: st.DrawFn) -> MessageBatch:
    count = draw(st.integers(1, ROWS_MAX))
    ids = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**70)
    return MessageBatch(
        draw(texts),
        draw(texts),
        draw(st.integers(-(10**15), 2 * 10**15)),
        draw(st.none() | texts),
        draw(st.none() | texts),
        draw(st.none() | texts),
        count,
        0,
        draw(column(count, ids) | column(count, st.none() | texts)),
        draw(column(count, st.none() | texts)),
        draw(column(count, st.none() | st.dictionaries(texts, texts, max_size=4))),
        draw(column(count, st.none() | some_bytes)),
        draw(column(count, st.none() | st.lists(some_bytes, max_size=3))),
        draw(column(count, st.booleans())),
    )


groups = st.lists(st.lists(message_batches(), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(deadline=None)
@given(groups, st.data())
def test_what_is_encoded_comes_back_whatever_it_is(
    groups: list[list[MessageBatch]], data: st.DataObject
) -> None:
    """Values survive exactly: null and empty, any bytes, any text, any cut of any range."""
    frames = [encode(group) for group in groups]
    table = expected([batch for group in groups for batch in group])
    assert decoded(*frames) == table
    lo = data.draw(st.integers(0, len(table)))
    hi = data.draw(st.integers(lo, len(table)))
    assert decoded(*frames, lo=lo, hi=hi) == table[lo:hi]


def one(**values: Any) -> MessageBatch:
    """A batch with the given columns."""
    count = max((len(value) for value in values.values() if isinstance(value, list)), default=1)
    shared = {"protocol": "mtl", "kind": "content", "received_at": 5, "count": count}
    return MessageBatch(**(shared | values))


def packed_batch(first: int, count: int) -> MessageBatch:
    """Everything that can be packed is; lengths differ, and some are 0."""
    numbers = range(first, first + count)
    ids, bodies = packed_frames(numbers, [b"\xff" * (number % 5) for number in numbers])
    fields = [{f"key {key}": "é" * key for key in range(number % 4)} for number in numbers]
    return MessageBatch(
        *("p", "packed", 1), count=count, message_id=ids, body=bodies, fields=packed_maps(fields)
    )


def list_batch(*ids: int | str) -> MessageBatch:
    fields = [None if number % 2 else {"a": "b"} for number in range(len(ids))]
    bodies = [b"list"] * len(ids)
    return MessageBatch(
        *("p", "list", 2), count=len(ids), message_id=ids, fields=fields, body=bodies
    )


@pytest.mark.parametrize(
    "batches",
    [
        [packed_batch(0, 1)],
        [packed_batch(2**32 - 70, 70)],
        [packed_batch(0, 3), packed_batch(3, 100), packed_batch(103, 2), packed_batch(105, 80)],
        [list_batch(1, 2), packed_batch(3, 100), list_batch(200), list_batch(201)],
        [list_batch(1, 2), packed_batch(3, 100)],
        [packed_batch(3, 100), list_batch("text", "ids")],
        [packed_batch(3, 100), list_batch(2**63)],
        [packed_batch(3, 100), MessageBatch("p", "nothing", 3, count=2)],
    ],
)
def test_packed_columns_give_the_rows_which_lists_would_give(batches: list[MessageBatch]) -> None:
    assert decoded(encode(batches)) == expected(batches)


def test_values_shared_by_a_batch_stand_in_the_frame_once() -> None:
    session = "ä-session-name-which-is-easily-found"
    octets = payload(encode([one(session=session, body=[b"x"] * 1000)]))
    assert octets.count(session.encode()) == 1
    two = payload(encode([one(session=session, body=[b"x"]), one(session=session, body=[b"y"])]))
    assert two.count(session.encode()) == 1


BAD, TORN = (one.decode("utf-8", "surrogateescape") for one in (b"\xff", b"\xe2\x82"))


@pytest.mark.parametrize(
    ("values", "column", "shown"),
    [
        ({"message_id": ["a", BAD, None]}, "message_id", ["a", "\ufffd", None]),
        ({"destination": ["ünïcode ✓ 𝄞", ""]}, "destination", ["ünïcode ✓ 𝄞", ""]),
        ({"destination": [f"a{BAD}b"]}, "destination", ["a\ufffdb"]),
        ({"destination": [TORN]}, "destination", ["\ufffd"]),
        ({"destination": ["lone \ud800"]}, "destination", ["lone \ufffd\ufffd\ufffd"]),
        ({"destination": [BAD, None, BAD]}, "destination", ["\ufffd", None, "\ufffd"]),
        (
            {"fields": [{"a": BAD, BAD: "b"}, None, {}, {"c": "d"}]},
            "fields",
            [[("a", "\ufffd"), ("\ufffd", "b")], None, [], [("c", "d")]],
        ),
        ({"peer": BAD}, "peer", ["\ufffd"]),
        ({"session": BAD}, "session", ["\ufffd"]),
        ({"client_id": BAD}, "client_id", ["\ufffd"]),
        ({"kind": BAD}, "kind", ["\ufffd"]),
        ({"protocol": BAD}, "protocol", ["\ufffd"]),
    ],
)
def test_what_is_not_utf_8_is_replaced_in_every_text_column(
    values: dict[str, Any], column: str, shown: list[Any]
) -> None:
    assert [row[column] for row in decoded(encode([one(**values)]))] == shown


def test_keys_which_meet_when_they_are_cleaned_keep_the_last_value() -> None:
    """A repeated key keeps the last value."""
    other = b"\xfe".decode("utf-8", "surrogateescape")
    frame = encode([one(fields=[{BAD: "first", other: "last"}])])
    assert decoded(frame)[0]["fields"] == [("\ufffd", "last")]


@pytest.mark.parametrize(
    "wrong",
    [
        one(body=[5]),
        one(body=[b"x", None, {}]),
        one(message_id=[{}]),
        one(destination=[7]),
        one(fields=[7]),
        one(fields=[{"a": 7}]),
        one(fields=[{"a": None, 7: "b"}]),
        one(attachments=[[7]]),
        one(attachments=[7]),
        one(truncated=["x"]),
        one(protocol=None),
        one(kind=7),
        one(peer=7),
        one(received_at="now"),
        one(received_at=2**64),
        one(received_at=-62_135_596_800_000_001),  # the year 0
        one(received_at=253_402_300_800_000_000),  # the year 10,000: no day of a table
        one(body=[b"x"], count=2),
        one(message_id=[1, 2, 3], body=[b"x"]),
    ],
)
def test_a_batch_of_wrong_types_is_an_error_alone_and_in_a_group(wrong: MessageBatch) -> None:
    right = one(body=[b"x"])
    for group in ([wrong], [right, wrong], [wrong, right]):
        with pytest.raises((TypeError, ValueError, AttributeError, struct.error)):
            encode(group)


def test_a_frame_may_be_as_large_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    octets = encode([one(body=[b"x" * 500])]).nbytes
    monkeypatch.setattr("twisted_msgproto.queue.payload.FRAME_BYTES_MAX", octets)
    assert encode([one(body=[b"x" * 500])]).nbytes == octets
    monkeypatch.setattr("twisted_msgproto.queue.payload.FRAME_BYTES_MAX", octets - 1)
    with pytest.raises(LimitExceeded, match=f"{octets} bytes in one group"):
        encode([one(body=[b"x" * 500])])


# -- payloads which make no sense -----------------------------------------------------------------


def head(columns: int = 0, runs: int = 1, text: bytes = b'[["p","k",null,null,null]]') -> bytes:
    octets = struct.pack("<IIII", columns, runs, len(text), 0) + struct.pack("<qII", 5, 1, 0) + text
    return octets + bytes(-len(octets) % 8)


BODY = 1 << 4
TWO_BODIES = pa.RecordBatch.from_pydict({"body": pa.array([b"1", b"2"])})


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        head()[:8],
        head()[:16],
        head(columns=1 << 30),
        head(runs=2**31),
        head(runs=2),
        head(text=b"no JSON"),
        head(text=b"[]"),
        head(text=b'[["p"]]'),
        head(text=b"7"),
        head(columns=BODY),
        head(columns=BODY) + b"\xff" * 64,
        head(columns=BODY) + TWO_BODIES.serialize().to_pybytes(),
    ],
)
def test_a_payload_which_makes_no_sense_is_damage(octets: bytes) -> None:
    """Its checksum is right: another program wrote it."""
    runs = min(len(octets), len(head(columns=BODY)))
    wrong = dataclasses.replace(
        encode([one()]), pieces=[octets], nbytes=len(octets), runs=runs, crc=crc32(octets)
    )
    reader = stored(encode([one(body=[b"before"])]), wrong, encode([one(body=[b"behind"])]))
    found = [row["body"] for batch in reader.read(0, 3) for row in batch.to_pylist()]
    assert (found, reader.damaged()) == ([b"before", b"behind"], [(1, 2)])


@pytest.mark.parametrize("count", [1, 3])
def test_a_frame_with_another_number_of_messages_is_damage(count: int) -> None:
    wrong = dataclasses.replace(encode([one(body=[b"x", b"y"])]), count=count)
    reader = stored(wrong)
    assert (list(reader.read(0, count)), reader.damaged()) == ([], [(0, count)])


# -- through a writer -----------------------------------------------------------------------------


def test_readers_pass_over_envelopes(tmp_path: Path) -> None:
    writer = QueueWriter(tmp_path)
    two = dataclasses.replace(numbered(0, 2), envelope=[b"one", None])
    alone = MessageBatch("mtl", "content", 5, count=2, envelope=[b"a", None])
    assert put(writer, two, numbered(2), alone) == [None] * 3
    writer.close()
    found = rows(tmp_path)
    assert [row["message_id"] for row in found] == ["0", "1", "2", None, None]
    assert [row["body"] for row in found[3:]] == [None, None]
    assert list(found[0]) == SCHEMA.names
    assert "envelope" not in SCHEMA.names
    assert len(list(two)) == 2


NO_PANDAS = r"""
import sys, threading
from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import QueueReader, QueueWriter

writer = QueueWriter(sys.argv[1], report=print)
done = threading.Semaphore(0)
batches = [
    MessageBatch("p", "k", 1, count=2, message_id=[1, 2], body=[b"x", b"y"]),
    MessageBatch("p", "k", 2, count=2, message_id=["a", None], fields=[{"a": "b"}, None]),
    MessageBatch("p", "k", 3, count=1, attachments=[[b"x", b"y"]], truncated=[True]),
    MessageBatch("p", "k", 4, count=1, destination=["\udcff"], fields=[{"\udcff": "b"}]),
]
for batch in batches + [batches[0], batches[1]]:
    writer.submit(batch, lambda error, first: done.release())
for _ in range(6):
    done.acquire()
assert writer.close()
reader = QueueReader(sys.argv[1])
rows = sum(batch.num_rows for batch in reader.read(0, reader.end()))
print(rows, "pandas" in sys.modules)
"""


def test_a_gateway_does_not_import_pandas(tmp_path: Path) -> None:
    """Arrow would import it for every list: 0.4 s of a start, and 44 MB."""
    pytest.importorskip("pandas", reason="pandas is missing: pip install pandas")
    words = [sys.executable, "-c", NO_PANDAS, str(tmp_path / "queue")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["10", "False"], ended.stdout + ended.stderr
