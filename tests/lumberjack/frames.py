"""Lumberjack as these tests write and read it: by the grammar alone, without the product's code."""

import struct
import zlib
from pathlib import Path

from twisted.internet.task import Clock

from tests.doubles import due
from tests.tools.byte_streams import flatten
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.lumberjack import LumberjackClientFactory, LumberjackServerFactory
from twisted_msgproto.lumberjack.machine import Reader, Writer

READER_LIMITS = LumberjackServerFactory(clock=Clock()).limits
WRITER_LIMITS = LumberjackClientFactory(clock=Clock()).limits

V1, V2 = b"12"

CAPTURES = Path(__file__).parent.parent / "data" / "lumberjack"
NAMES = sorted(path.name.removesuffix(".c2s.bin") for path in CAPTURES.glob("*.c2s.bin"))
"""Recordings of writers and readers that are not ours."""


def encode_window(size, version=V2):
    return struct.pack(">BcI", version, b"W", size)


def encode_ack(sequence, version=V2):
    return struct.pack(">BcI", version, b"A", sequence)


def encode_json(sequences, bodies, version=V2):
    return b"".join(
        struct.pack(">BcII", version, b"J", sequence, len(body)) + body
        for sequence, body in zip(sequences, bodies, strict=True)
    )


def encode_data(sequences, mappings, version=V1):
    found = bytearray()
    for sequence, mapping in zip(sequences, mappings, strict=True):
        found += struct.pack(">BcII", version, b"D", sequence, len(mapping))
        for text in (text for pair in mapping.items() for text in pair):
            octets = text.encode("utf-8", "surrogateescape")
            found += struct.pack(">I", len(octets)) + octets
    return bytes(found)


def compressed(payload, version=V2):
    return struct.pack(">BcI", version, b"C", len(payload)) + payload


def encode_compressed(frames, level=3, version=V2):
    return compressed(zlib.compress(frames, level), version)


def events_of(*numbers, version=V2):
    return encode_json(numbers, [b"%d" % number for number in numbers], version)


def frames_of(nbytes):
    """Whole frames: ("W" or "A", version, number), ("J" or "D", version, number, what it holds)
    and ("C", version, the frames within).
    """
    found, at = [], 0
    while at < len(nbytes):
        version, kind, number = struct.unpack_from(">BcI", nbytes, at)
        at += 6
        if kind == b"C":
            found.append(("C", version, frames_of(zlib.decompress(nbytes[at : at + number]))))
            at += number
        elif kind in b"JD":
            texts, count = [], 1
            if kind == b"D":
                count = 2 * int.from_bytes(nbytes[at : at + 4])
                at += 4
            for _ in range(count):
                length = int.from_bytes(nbytes[at : at + 4])
                texts.append(nbytes[at + 4 : at + 4 + length])
                at += 4 + length
            pairs = [text.decode("utf-8", "surrogateescape") for text in texts if kind == b"D"]
            held = dict(zip(pairs[::2], pairs[1::2], strict=True)) if kind == b"D" else texts[0]
            found.append((kind.decode(), version, number, held))
        else:
            assert kind in b"WA", kind
            found.append((kind.decode(), version, number))
    return found


def captured(name):
    """What the writer of a recording said, and what its reader answered."""
    return (CAPTURES / f"{name}.c2s.bin").read_bytes(), (CAPTURES / f"{name}.s2c.bin").read_bytes()


def inner_frames(nbytes):
    """Frames as :func:`frames_of` has them, whether they were compressed or not."""
    return [
        inner for frame in frames_of(nbytes) for inner in (frame[2] if frame[0] == "C" else [frame])
    ]


def windows(nbytes):
    """What a writer wrote: (announced size, sequences, what the events hold) of each window."""
    found = []
    for name, _, number, *held in frames_of(nbytes):
        if name == "W":
            found.append((number, [], []))
            continue
        for _, _, sequence, event in number if name == "C" else [("J", 0, number, *held)]:
            found[-1][1].append(sequence)
            found[-1][2].append(event)
    return found


def limits(changes, of=READER_LIMITS):
    return of.replace({name.replace("_", "-"): n for name, n in changes.items()})


def writer(changes=None, **settings):
    """A plain writer (no compression) unless the settings say otherwise."""
    return Writer(limits(changes or {}, WRITER_LIMITS), **{"compress": 0, "window": 10, **settings})


class Session:
    """A reader whose sink is safe when told to; a transcript of what went in and came out."""

    def __init__(self, safe_at_once=True, **changes):
        self.reader = Reader(limits(changes))
        self.now = 0.0
        self.safe_at_once = safe_at_once
        self.events = []
        self.waiting = []

    def turns(self, nbytes):
        """Read ``nbytes``; the events of each turn that this takes."""
        yield self.reader.receive(nbytes, self.now)
        while self.reader.unfinished and self.reader.fault is None:
            yield self.reader.receive(b"", self.now)

    def receive(self, nbytes):
        """Read ``nbytes``; the acks which that gave out, as (version, sequence)."""
        events = [event for turn in self.turns(nbytes) for event in turn]
        self.events += events
        self.waiting += [event.position for event in events if not isinstance(event, Fault)]
        return self.safe() if self.safe_at_once else self.acks()

    def safe(self, count=None):
        """The sink has made the oldest ``count`` batches safe (None: all)."""
        count = len(self.waiting) if count is None else count
        for _ in range(count):
            self.reader.made_safe(self.waiting.pop(0), self.now)
        return self.acks()

    def acks(self):
        octets = self.reader.outputs()
        frames = frames_of(octets)
        assert all(kind == "A" for kind, *_ in frames)
        return [(version - V1 + 1, sequence) for _, version, sequence in frames]

    def wait(self, seconds):
        """Let time pass as a timer would: act at each deadline on the way."""
        end = self.now + seconds
        given = []
        _, deadline = due(self.reader, self.now)
        while deadline is not None and deadline <= end:
            self.now = max(self.now, deadline)
            _, deadline = due(self.reader, self.now)
            given += self.acks()
        self.now = end
        self.reader.advance(end)
        return given + self.acks()

    @property
    def state(self):
        return self.reader.snapshot()["state"]

    @property
    def flat(self):
        return flatten(self.events)
