"""Lists are written as Arrow writes them, octet for octet, and what is unknown is left to Arrow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import columns, ipc
from twisted_msgproto.queue.schema import (
    ATTACHMENTS_GIVEN,
    BODY,
    DESTINATION,
    ENVELOPE,
    FIELDS_GIVEN,
    MESSAGE_ID_INTEGER,
    MESSAGE_ID_TEXT,
    TRUNCATED,
    TYPES,
    stored_schema,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
IDS = {
    MESSAGE_ID_TEXT: st.none() | TEXTS,
    MESSAGE_ID_INTEGER: st.none() | st.integers(-(2**63), 2**63 - 1),
}
OTHERS: dict[int, st.SearchStrategy[Any]] = {
    DESTINATION: st.none() | TEXTS | st.just("orders"),
    FIELDS_GIVEN: st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    BODY: st.none() | st.binary(max_size=9),
    ATTACHMENTS_GIVEN: st.none() | st.lists(st.binary(max_size=3), max_size=3),
    TRUNCATED: st.booleans(),
    ENVELOPE: st.none() | st.binary(max_size=9),
}


@st.composite
def given_columns(draw: Any) -> tuple[int, dict[int, list[Any]]]:
    """A number of rows, and some columns with so many values each."""
    rows = draw(st.integers(1, 20))
    chosen = draw(st.sampled_from([{}, *({bit: values} for bit, values in IDS.items())]))
    chosen = {**chosen, **{bit: OTHERS[bit] for bit in draw(st.sets(st.sampled_from([*OTHERS])))}}
    return rows, {
        bit: draw(st.lists(chosen[bit], min_size=rows, max_size=rows)) for bit in sorted(chosen)
    }


def by_arrow(given: dict[int, list[Any]]) -> bytes:
    """Return the message that Arrow itself writes."""
    arrays = [
        pa.array([None if row is None else list(row.items()) for row in values], TYPES[bit])
        if bit == FIELDS_GIVEN
        else pa.array(values, TYPES[bit])
        for bit, values in given.items()
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=stored_schema(sum(given)))
    written: bytes = batch.serialize().to_pybytes()
    return written


@given(given_columns())
def test_lists_are_written_as_arrow_writes_them(case: tuple[int, dict[int, list[Any]]]) -> None:
    rows, given_values = case
    if not given_values:
        return
    written = ipc.message(rows, given_values)
    assert written is not None and len(written) == 1
    assert bytes(written[0]) == by_arrow(given_values)


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
    pytest.importorskip("pandas", reason="pandas is missing: pip install '.[pandas]'")
    words = [sys.executable, "-c", NO_PANDAS, str(tmp_path / "queue")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["10", "False"], ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "unknown",
    [
        {MESSAGE_ID_INTEGER: [2**63]},
        {MESSAGE_ID_INTEGER: ["1"]},
        {MESSAGE_ID_TEXT: [7]},
        {DESTINATION: ["\udcff"]},
        {FIELDS_GIVEN: [0]},
        {FIELDS_GIVEN: [{"a": 7}]},
        {BODY: ["text"]},
        {BODY: [{}]},
        {BODY: [None, 0]},
        {BODY: [memoryview(bytes(8)).cast("I")]},
        {ATTACHMENTS_GIVEN: [b"x"]},
        {ATTACHMENTS_GIVEN: [["text"]]},
        {ATTACHMENTS_GIVEN: [{b"x": b"y"}]},
        {TRUNCATED: [1]},
    ],
    ids=lambda unknown: type(next(iter(unknown.values()))[0]).__name__,
)
def test_what_is_unknown_is_left_to_arrow(unknown: dict[int, list[Any]]) -> None:
    (values,) = unknown.values()
    assert ipc.message(len(values), unknown) is None


def test_usual_batches_need_no_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each small group costs what Arrow needs to begin with a record batch."""
    monkeypatch.setattr(columns, "_message", None)
    batches = [
        MessageBatch("p", "k", 1, count=2, message_id=[1, 2], body=[b"x", b"y"]),
        MessageBatch("p", "k", 2, count=1, message_id=[3], fields=[{"a": "b"}], body=[b""]),
        MessageBatch("p", "k", 3, count=1),
    ]
    assert columns.encode(batches).count == 4
    assert columns.encode(batches[2:]).count == 1
