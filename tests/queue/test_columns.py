"""Batches into payloads and back: values, nulls, text that is no UTF-8, wrong types."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.packing import packed_frames, packed_maps
from tests.tools.queues import encode
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import LimitExceeded, QueueCorrupt
from twisted_msgproto.queue import SCHEMA, columns
from twisted_msgproto.queue.columns import RUNS, Assembly, Encoded, clean
from twisted_msgproto.queue.schema import BODY, KNOWN_COLUMNS, stored_schema

ROWS_MAX = 5


def payload(encoded: Encoded) -> bytes:
    octets = b"".join(bytes(memoryview(piece)) for piece in encoded.pieces)
    assert len(octets) == encoded.octets
    assert len(octets) % 8 == encoded.runs % 8 == 0
    assert crc32(octets) == encoded.crc
    return octets


def decoded(*encoded: Encoded, lo: int = 0, hi: int | None = None) -> list[dict[str, Any]]:
    """The rows lo ≤ offset < hi of frames which follow one another."""
    assembly = Assembly("gw")
    first = 0
    for one in encoded:
        end = first + one.count
        a, z = max(lo, first), end if hi is None else min(hi, end)
        if a < z:
            assembly.add(memoryview(payload(one)), one.runs, first, one.count, a, z)
        first = end
    batch = assembly.finish()
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    assert assembly.rows == assembly.octets == 0
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def expected(batches: list[MessageBatch]) -> list[dict[str, Any]]:
    """What the table has for ``batches``, value by value."""
    found = []
    for batch in batches:
        for message in batch:
            found.append(
                {
                    "gateway": "gw",
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
some_octets = st.binary(max_size=20)


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
        draw(column(count, st.none() | some_octets)),
        draw(column(count, st.none() | st.lists(some_octets, max_size=3))),
        draw(column(count, st.booleans())),
    )


groups = st.lists(st.lists(message_batches(), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(deadline=None)
@given(groups, st.data())
def test_what_is_encoded_comes_back_whatever_it_is(
    groups: list[list[MessageBatch]], data: st.DataObject
) -> None:
    """Values survive exactly: null and empty, any octets, any text, any cut of any range."""
    frames = [encode(group) for group in groups]
    table = expected([batch for group in groups for batch in group])
    assert decoded(*frames) == table
    lo = data.draw(st.integers(0, len(table)))
    hi = data.draw(st.integers(lo, len(table)))
    assert decoded(*frames, lo=lo, hi=hi) == table[lo:hi]
    assert sum(frame.replaced for frame in frames) == 0


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


def test_each_message_was_received_when_its_batch_was() -> None:
    counts = [3, 1, 4, 2]
    batches = [one(received_at=100 + at, count=count) for at, count in enumerate(counts)]
    frame = encode(batches)
    head = memoryview(bytes(frame.pieces[0]))
    times = [100 + at for at, count in enumerate(counts) for _ in range(count)]
    assert [columns.received_at(head, place) for place in range(10)] == times
    assert columns.received_at(head, 10) is None
    cut = head[: RUNS.size + 12 * len(counts) - 1]  # within the counts
    assert columns.received_at(cut, 0) is None


def test_values_shared_by_a_batch_stand_in_the_frame_once() -> None:
    session = "ä-session-name-which-is-easily-found"
    octets = payload(encode([one(session=session, body=[b"x"] * 1000)]))
    assert octets.count(session.encode()) == 1
    two = payload(encode([one(session=session, body=[b"x"]), one(session=session, body=[b"y"])]))
    assert two.count(session.encode()) == 1


def test_columns_without_any_value_are_left_out() -> None:
    assert encode([one(body=[b""])]).pieces[0][0] == BODY
    bare = encode([one(), one()])
    assert (bare.count, bare.octets) == (2, bare.runs)
    assert [row["body"] for row in decoded(bare)] == [None, None]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("ünïcode ✓ 𝄞", "ünïcode ✓ 𝄞"),
        (b"a\xffb".decode("utf-8", "surrogateescape"), "a\ufffdb"),
        (b"\xe2\x82".decode("utf-8", "surrogateescape"), "\ufffd"),
        ("lone \ud800 surrogate", "lone \ufffd\ufffd\ufffd surrogate"),
    ],
)
def test_text_that_is_not_utf_8_gets_replacement_characters(text: str, shown: str) -> None:
    """INTERFACES: text that is not UTF-8 reaches string columns with U+FFFD and is counted."""
    assert clean(text) == (shown, int(text != shown))


BAD = b"\xff".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("values", "column", "shown", "replaced"),
    [
        ({"message_id": ["a", BAD, None]}, "message_id", ["a", "\ufffd", None], 1),
        ({"destination": [BAD, None, BAD]}, "destination", ["\ufffd", None, "\ufffd"], 2),
        (
            {"fields": [{"a": BAD, BAD: "b"}, None, {}, {"c": "d"}]},
            "fields",
            [[("a", "\ufffd"), ("\ufffd", "b")], None, [], [("c", "d")]],
            2,
        ),
        ({"peer": BAD}, "peer", ["\ufffd"], 1),
        ({"session": BAD}, "session", ["\ufffd"], 1),
        ({"client_id": BAD}, "client_id", ["\ufffd"], 1),
        ({"kind": BAD}, "kind", ["\ufffd"], 1),
        ({"protocol": BAD}, "protocol", ["\ufffd"], 1),
    ],
)
def test_every_text_column_counts_what_was_replaced(
    values: dict[str, Any], column: str, shown: list[Any], replaced: int
) -> None:
    frame = encode([one(**values)])
    assert [row[column] for row in decoded(frame)] == shown
    assert frame.replaced == replaced


def test_keys_which_meet_when_they_are_cleaned_keep_the_last_value() -> None:
    """A repeated key keeps the last value."""
    other = b"\xfe".decode("utf-8", "surrogateescape")
    frame = encode([one(fields=[{BAD: "first", other: "last"}])])
    assert decoded(frame)[0]["fields"] == [("\ufffd", "last")]


def test_integer_ids_become_text_also_beside_text_and_beyond_63_bits() -> None:
    batches = [
        one(message_id=[1, 2**63 - 1]),
        one(message_id=["x", None]),
        one(),
        one(message_id=[2**64]),
    ]
    shown = [str(1), str(2**63 - 1), "x", None, None, str(2**64)]
    assert [row["message_id"] for row in decoded(encode(batches))] == shown
    apart = [encode([batch]) for batch in batches]
    assert [row["message_id"] for row in decoded(*apart)] == shown


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
        one(body=[b"x"], count=2),
        one(message_id=[1, 2, 3], body=[b"x"]),
    ],
)
def test_a_batch_of_wrong_types_is_an_error_alone_and_in_a_group(wrong: MessageBatch) -> None:
    right = one(body=[b"x"])
    for group in ([wrong], [right, wrong], [wrong, right]):
        with pytest.raises((TypeError, ValueError, AttributeError, struct.error)):
            encode(group)


def test_protocol_and_kind_are_told_apart_from_other_wrong_types() -> None:
    for wrong, told in ((one(protocol=7), "(7, 'content')"), (one(kind=7), "('mtl', 7)")):
        with pytest.raises(TypeError) as caught:
            encode([wrong])
        assert str(caught.value) == f"protocol and kind are text, not {told}"


def test_a_frame_may_be_as_large_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    octets = encode([one(body=[b"x" * 500])]).octets
    monkeypatch.setattr(columns, "FRAME_OCTETS_MAX", octets)
    assert encode([one(body=[b"x" * 500])]).octets == octets
    monkeypatch.setattr(columns, "FRAME_OCTETS_MAX", octets - 1)
    with pytest.raises(LimitExceeded, match=f"{octets} octets in one group"):
        encode([one(body=[b"x" * 500])])


# -- payloads which make no sense -----------------------------------------------------------------


def add(octets: bytes, runs: int, count: int = 1) -> Assembly:
    assembly = Assembly("gw")
    assembly.add(memoryview(octets), runs, 0, count, 0, count)
    return assembly


def head(columns: int = 0, runs: int = 1, text: bytes = b'[["p","k",null,null,null]]') -> bytes:
    octets = RUNS.pack(columns, runs, len(text), 0) + struct.pack("<qII", 5, 1, 0) + text
    return octets + bytes(-len(octets) % 8)


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        head()[:15],
        head()[:20],
        head(columns=KNOWN_COLUMNS + 1),
        head(runs=2**31),
        head(runs=2),
        head(text=b"no JSON"),
        head(text=b"[]"),
        head(text=b'[["p"]]'),
        head(text=b"7"),
        head(columns=BODY),
        head(columns=BODY) + b"\xff" * 64,
    ],
)
def test_a_payload_which_makes_no_sense_is_corrupt(octets: bytes) -> None:
    runs = len(head(columns=BODY)) if len(octets) > 100 else len(octets)
    with pytest.raises(QueueCorrupt, match="makes no sense"):
        add(octets, runs)


def test_a_payload_with_another_number_of_messages_is_corrupt() -> None:
    frame = encode([one(body=[b"x", b"y"])])
    with pytest.raises(QueueCorrupt, match="does not hold 3 messages"):
        add(payload(frame), frame.runs, 3)
    bodies = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"])], schema=stored_schema(BODY))
    with pytest.raises(QueueCorrupt, match="does not hold 1 messages"):
        add(head(columns=BODY) + bodies.serialize().to_pybytes(), len(head()))


def test_frames_with_gaps_and_other_columns_are_put_together() -> None:
    """Neighbours are one range; no run of them is without messages."""
    assembly = Assembly("gw")
    octets = 0
    for first, column in (
        *((0, "body"), (4, "body"), (8, "destination")),
        *((14, "body"), (18, "body")),
    ):
        value = b"x" if column == "body" else "x"
        parts = [one(received_at=first + at, **{column: [value] * 2}) for at in (0, 2)]
        frame = encode(parts)
        octets += frame.octets
        lo = first + 2 if first == 8 else first
        assembly.add(memoryview(payload(frame)), frame.runs, first, 4, lo, first + 4)
    assert assembly.octets == octets
    assert assembly._spans == [(0, 8), (10, 12), (14, 22)]
    assert assembly._ends == sorted(set(assembly._ends))
    rows = assembly.finish().to_pylist()
    assert assembly.finish().num_rows == 0  # it begins anew
    offsets = [*range(8), 10, 11, *range(14, 22)]
    assert [row["offset"] for row in rows] == offsets
    assert [row["received_at"].microsecond for row in rows] == [at & ~1 for at in offsets]
    assert [row["body"] for row in rows] == [None if at in (10, 11) else b"x" for at in offsets]
    assert [row["destination"] for row in rows] == [
        "x" if at in (10, 11) else None for at in offsets
    ]


def test_of_a_frame_the_part_is_taken_that_was_asked_for() -> None:
    frame = encode([one(body=[b"%d" % at for at in range(4)])])
    for lo in range(4):
        for hi in range(lo + 1, 5):
            found = [row["body"] for row in decoded(frame, lo=lo, hi=hi)]
            assert found == [b"%d" % at for at in range(lo, hi)]


def test_a_column_of_a_later_format_is_not_passed_over() -> None:
    """What it says would be missing, and nobody would know."""
    octets = bytearray(payload(frame := encode([one(body=[b"x"])])))
    RUNS.pack_into(octets, 0, BODY | 1 << 30, *RUNS.unpack_from(octets)[1:])
    with pytest.raises(QueueCorrupt, match="unknown columns"):
        add(bytes(octets), frame.runs)
