"""docs/queue-format.md is enough: a queue read with the page's numbers and none of our code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa

from tests.tools.queues import put
from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import QueueReader, QueueWriter

PAGE = Path(__file__).parent.parent.parent / "docs" / "queue-format.md"
STORED = [
    ("message_id", "text"),
    ("message_id", "numbers"),
    ("destination", "text"),
    ("fields", "pairs"),
    ("body", "bytes"),
    ("attachments", "lists"),
    ("truncated", "truths"),
    ("envelope", "bytes"),
]
BUFFERS = {"text": 2, "bytes": 2, "numbers": 1, "truths": 1, "pairs": 5, "lists": 3}


def number(nbytes: bytes, at: int, length: int = 4, *, signed: bool = False) -> int:
    return int.from_bytes(nbytes[at : at + length], "little", signed=signed)


def line(nbytes: bytes) -> list[str]:
    text, checksum = nbytes.decode().rstrip("\n").rsplit(" ", 1)
    assert checksum == f"{crc32(text.encode()):08x}"
    return text.split(" ")


def read_by_the_page(directory: Path) -> list[dict[str, Any]]:
    """All messages of a queue, by the tables of the page."""
    word, version, queue_id, seed = line((directory / "identity").read_bytes())
    assert (word, version) == ("msgproto-queue", "1")
    end_file = (directory / "end").read_bytes()
    assert end_file[:8] == bytes.fromhex("934D5051454E440A")
    assert number(end_file, 32) == crc32(end_file[:32])
    assert len(end_file) == 36
    starts = [line(text) for text in (directory / "lineage").read_bytes().splitlines()]
    assert [word for word, _, _ in starts] == ["start"] * len(starts)
    before = (0, 0)
    end = number(end_file, 8, 8)
    found: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*.segment")):
        octets = path.read_bytes()
        assert octets[:8] == bytes.fromhex("934D50515345470A")
        assert [number(octets, 8), number(octets, 12)] == [1, 56]
        assert octets[16:32].hex() == queue_id
        assert octets[32:40].hex() == seed
        assert number(octets, 40, 8) == int(path.name[:20]) == len(found)
        assert number(octets, 52) == crc32(octets[:52])
        at = 56
        while at < len(octets) and len(found) < end:
            assert at % 8 == 0
            assert octets[at : at + 4] == bytes.fromhex("934D5046")
            checked = octets[at + 8 : at + 32]
            assert number(octets, at + 4) == crc32(checked, crc32(bytes.fromhex(seed)))
            payload = octets[at + 32 : at + 32 + number(octets, at + 12)]
            assert number(octets, at + 8) == crc32(payload)
            assert number(octets, at + 16, 8) == len(found)
            count, runs_bytes = number(octets, at + 24), number(octets, at + 28)
            if at == 56:
                assert (count, runs_bytes) == (0, 0)
                assert (number(payload, 0, 8), number(payload, 8, 8)) == before
            else:
                found += messages(payload, runs_bytes, count)
                incarnation = [int(new) for _, first, new in starts if int(first) < len(found)][-1]
                before = incarnation, crc32(payload) * 2**31 + count - 1
                assert before[1] < 2**63
            at += 32 + len(payload)
    assert len(found) == end
    return [{"gateway": queue_id, "offset": n} | row for n, row in enumerate(found)]


def messages(payload: bytes, runs_bytes: int, count: int) -> list[dict[str, Any]]:
    columns, runs, text = number(payload, 0), number(payload, 4), number(payload, 8)
    times, counts, which = 16, 16 + 8 * runs, 16 + 12 * runs
    origins = json.loads(payload[16 + 16 * runs : 16 + 16 * runs + text])
    found = []
    for run in range(runs):
        protocol, kind, peer, session, client_id = origins[number(payload, which + 4 * run)]
        row = {
            "received_at": number(payload, times + 8 * run, 8, signed=True),
            "protocol": protocol,
            "kind": kind,
            "peer": peer,
            "session": session,
            "client_id": client_id,
        }
        found += [dict(row) for _ in range(number(payload, counts + 4 * run))]
    assert len(found) == count
    stored = block(payload[runs_bytes:], columns, number(payload, 12), count)
    for name in ("message_id", "destination", "fields", "body", "attachments", "truncated"):
        values = stored.get(name, [False if name == "truncated" else None] * count)
        for row, value in zip(found, values, strict=True):
            row[name] = str(value) if name == "message_id" and value is not None else value
    return found


def block(nbytes: bytes, columns: int, partial: int, count: int) -> dict[str, list[Any]]:
    """The columns of a block: each a list of values."""
    chosen = [(1 << bit, *one) for bit, one in enumerate(STORED) if columns & 1 << bit]
    sizes = [BUFFERS[kind] + bool(bit & partial) for bit, _, kind in chosen]
    base = 4 * sum(sizes)
    bounds = [0, *(number(nbytes, at) for at in range(0, base, 4))]
    assert nbytes[base + bounds[-1] :] == bytes(-len(nbytes[: base + bounds[-1]]) % 8)
    buffers = iter([nbytes[base + lo : base + hi] for lo, hi in pairwise(bounds)])
    found = {}
    for bit, name, kind in chosen:
        there = next(buffers) if bit & partial else b"\1" * count
        found[name] = [
            value if one else None for one, value in zip(there, values(kind, buffers), strict=True)
        ]
    assert list(buffers) == []
    return found


def values(kind: str, buffers: Iterator[bytes]) -> list[Any]:
    """The values of a column, taken from its buffers."""
    first = next(buffers)
    if kind == "truths":
        return [bool(one) for one in first]
    if kind == "numbers":
        return [number(first, at, 8, signed=True) for at in range(0, len(first), 8)]
    bounds = [0, *(number(first, at) for at in range(0, len(first), 4))]
    if kind == "pairs":
        below: Any = list(zip(values("text", buffers), values("text", buffers), strict=True))
    else:
        below = values("bytes", buffers) if kind == "lists" else next(buffers)
    found = [below[lo:hi] for lo, hi in pairwise(bounds)]
    return [one.decode() for one in found] if kind == "text" else found


def test_a_queue_can_be_read_by_the_page_alone(tmp_path: Path) -> None:
    for n in range(5):
        writer = QueueWriter(tmp_path / "q", segment_bytes=700)
        assert (
            put(
                writer,
                MessageBatch(
                    "sabc", "request", n, "p", "s", f"client {n}", 2, body=[b"x", b"\xff"]
                ),
                MessageBatch("umq", "call", -n, None, None, None, 1, message_id=[n]),
                MessageBatch(
                    *("mtl", "content", n),
                    count=2,
                    message_id=["a", "b"],
                    destination=["é", None],
                    fields=[{"a": "b", "c": ""}, None],
                    attachments=[[b"x", b""], []],
                    truncated=[True, False],
                ),
            )
            == [None] * 3
        )
        if n < 4:
            writer.close()
    reader = QueueReader(tmp_path / "q")
    ours = pa.Table.from_batches(reader.read(0, reader.end()))
    times = ours.schema.get_field_index("received_at")
    ours = ours.set_column(times, "received_at", ours["received_at"].cast(pa.int64()))
    theirs = read_by_the_page(tmp_path / "q")
    assert ours.num_rows == 25
    assert len(list((tmp_path / "q").glob("*.segment"))) > 2
    assert ours.to_pylist() == theirs
    writer.close()


def test_the_page_s_own_numbers_are_the_code_s() -> None:
    page = PAGE.read_text()
    from twisted_msgproto.queue import format, recovery, schema

    assert f"magic `{format.SEGMENT_MAGIC.hex(' ').upper()}`" in page
    assert f"magic `{format.END_MAGIC.hex(' ').upper()}`" in page
    assert f"marker `{format.FRAME_MARKER.hex(' ').upper()}`" in page
    assert f"Header, {format.SEGMENT_HEADER_BYTES} bytes" in page
    assert f"`end`, {format.END_BYTES} bytes" in page
    assert f"(at most {recovery.COPY_BYTES_MAX >> 20} MiB of each stretch)" in page
    rows = re.findall(r"^\| (\d) \| `(\w+)` \| (.+?)[.|] ?", page, re.MULTILINE)
    named = [(int(bit), name) for bit, name, _ in rows]
    assert named == [(bit.bit_length() - 1, name) for bit, name, _ in schema.STORED]
