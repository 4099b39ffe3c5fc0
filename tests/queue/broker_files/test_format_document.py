"""docs/queue-format.md is enough: a broker's files read with the page's numbers alone."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.queue.broker_files.world import DIRECTORY, NAMES, World
from tests.queue.test_format_document import line, number
from twisted_msgproto.queue.broker_files import names, overflow, settled, state

PAGE = (Path(__file__).parents[3] / "docs" / "queue-format.md").read_text()


def by_the_page(nbytes: bytes, queue_id: str) -> tuple[set[int], dict[int, int], dict[int, Any]]:
    """What the file ``settled`` says: settled places, tries and queues."""
    assert nbytes[:8] == bytes.fromhex("934D50425345540A")
    assert (number(nbytes, 8), number(nbytes, 12)) == (1, 36)
    assert nbytes[16:32].hex() == queue_id
    assert number(nbytes, 32) == crc32(nbytes[:32])
    done: set[int] = set()
    tries: dict[int, int] = {}
    moved: dict[int, Any] = {}
    at = 36
    while at < len(nbytes):
        assert nbytes[at : at + 4] == bytes.fromhex("934D5047")
        payload = nbytes[at + 12 : at + 12 + number(nbytes, at + 8)]
        assert number(nbytes, at + 4) == crc32(payload)
        at += 12 + len(payload)
        place = 0
        while place < len(payload):
            kind, base = number(payload, place), number(payload, place + 8, 8)
            content = payload[place + 16 : place + 16 + number(payload, place + 4)]
            place += 16 + len(content)
            if kind == 2:
                ones = range(8 * len(content))
                done |= {base + one for one in ones if content[one // 8] >> one % 8 & 1}
                continue
            if kind == 4:
                name, content = json.loads(content[:base]), content[base:]
                moved |= {number(content, at, 8): tuple(name) for at in range(0, len(content), 8)}
                continue
            pairs = [
                (number(content, at, 8), number(content, at + 8, 8))
                for at in range(0, len(content), 16)
            ]
            if kind == 1:
                done |= {one for lo, hi in pairs for one in range(lo, hi)}
            else:
                assert kind == 3
                tries |= dict(pairs)
    for one in done:
        tries.pop(one, None)
        moved.pop(one, None)
    return done, tries, moved


def test_a_broker_s_files_can_be_read_by_the_page_alone() -> None:
    world = World(random.Random(4))
    acknowledged = {}
    for _ in range(6):
        world.publish(20)
        acknowledged |= world.there
        world.try_some()
        world.settle_some(0.4)
        world.move_some(NAMES[0].dead)
        world.tend()
    world.state.close()
    octets = world.disk.bytes_of(f"{DIRECTORY}/broker/settled")
    done, tries, moved = by_the_page(octets, world.log.queue_id)
    assert acknowledged.keys() - done == world.there.keys()
    assert moved.keys() <= world.there.keys()
    for place, (name, envelope, _) in world.there.items():
        assert tuple(name) == moved.get(place, tuple(name))
        # The envelope, by the page.
        form, whole = envelope[1], number(envelope, 2, 2)
        space, own = number(envelope, 4, 2), number(envelope, 6, 2)
        assert (envelope[0], whole) == (1, 8 + form + space + own)
        assert envelope[8 : 8 + form] == b"mtl"
        texts = envelope[8 + form : 8 + form + space], envelope[8 + form + space : whole]
        if place not in moved:
            assert texts == (name.space.encode(), name.name.encode())
    assert {at: tried for at, tried in tries.items() if tried} == world.tries
    lines = world.disk.bytes_of(f"{DIRECTORY}/broker/names").splitlines()
    assert line(lines[0]) == ["msgproto-broker", "1", world.log.queue_id]
    assert line(lines[-1]) == ["end", str(len(lines) - 2)]
    found = set()
    for text in lines[1:-1]:
        word, first, *rest = line(text)
        assert word == "queue"
        assert int(first) <= max(world.there)
        found.add(tuple(json.loads(" ".join(rest))))
    assert found == {tuple(name) for name in world.declared}


def test_copies_are_as_the_page_says() -> None:
    from twisted_msgproto.queue import QueueReader

    world = World(random.Random(4))
    for _ in range(6):
        world.publish()
    world.consume()
    world.tidy(3)
    reader = QueueReader(f"{DIRECTORY}/broker/log", disk=world.disk)
    rows = [row for batch in reader.read(0, reader.end()) for row in batch.to_pylist()]
    places = [int(row["message_id"]) for row in rows]
    assert places
    assert all(before < after for before, after in pairwise(places))
    assert set(places) == {place for place in world.there if place < world.log.begin}
    for row, place in zip(rows, places, strict=True):
        assert (row["protocol"], row["kind"]) == ("broker", "kept")
        assert row["client_id"] == world.log.queue_id
        assert row["body"] == world.there[place][2]


def test_the_page_s_own_numbers_are_the_code_s() -> None:
    assert f"magic `{settled.MAGIC.hex(' ').upper()}`" in PAGE
    assert f"marker `{settled.MARKER.hex(' ').upper()}`" in PAGE
    assert f"Header, {settled.HEADER_BYTES} bytes" in PAGE
    assert f"`msgproto-broker {names.VERSION} ID`" in PAGE
    kinds = (settled.RANGES, settled.BITS, settled.TRIES, settled.MOVED)
    words = ("as ranges", "as bits", "tries", "moved")
    for kind, word in zip(kinds, words, strict=True):
        rows = [line for line in PAGE.splitlines() if line.startswith(f"| {kind}, ")]
        assert any(word in row for row in rows)
    number = {1: "one", 2: "two", 3: "three"}[overflow.SPARE_SEGMENTS]
    assert f"{number} segments of {overflow.SEGMENT_BYTES >> 20} MiB" in PAGE
    assert f"`{overflow.PROTOCOL}`, `{overflow.KIND}`" in PAGE
    assert "longer than 1 MiB" in PAGE
    assert settled.LONG_BYTES == 1 << 20
    assert f"within {state.PIN_BYTES >> 30} GiB and a quarter of what the log" in PAGE
