"""What fuzzing is for every protocol: good streams, mutations, random splits, and what must hold.

A :class:`Target` is one decoder: it makes streams after its grammar, and reads one which is cut
into pieces.  :func:`attempt` spoils a stream up to five times and looks whether

* only documented faults come out, as the last event, and never an exception;
* the events are the same however the stream is cut;
* what the decoder holds stays below a bound, after every piece.

Replay: ``python -m tests.fuzz TARGET --seed N``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

MUTATIONS_MAX = 5

EDGES = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, 0x100, 0x7FFF, 0xFFFE, 0xFFFF, 0x10000, 0x7FFFFFFF,
         0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # fmt: skip
"""Lengths and counts at which something may go wrong; cut to the width which is written over."""


class Finding(AssertionError):
    """A decoder does what it must not."""


@dataclass(frozen=True)
class Reading:
    """What came of a stream: its events in one flat sequence, faults as ``("fault", reason)``."""

    events: list[Any]
    held_max: int
    """The most which the decoder has held after a piece."""


@dataclass(frozen=True)
class Target:
    """One decoder.

    ``stream(source)`` makes a good stream, ``read(pieces, source)`` reads one (``source`` chooses
    options which must not matter), ``reasons`` are the faults it may report, ``held`` is the bound
    of its buffer in bytes, ``tokens`` are bytes which mean something to it.
    """

    stream: Callable[[Random], bytes]
    read: Callable[[list[bytes], Random], Reading]
    reasons: frozenset[str]
    held: int
    tokens: tuple[bytes, ...]
    one_of: int = 1
    """A slow target gets one of so many of the streams."""


def mutate(nbytes: bytes, source: Random, tokens: tuple[bytes, ...]) -> bytes:
    """``nbytes`` with 0 to 5 mutations: bit, edge length, delete, duplicate, insert, cut."""
    spoiled = bytearray(nbytes)
    for _ in range(source.randint(0, MUTATIONS_MAX)):
        at = source.randrange(len(spoiled) + 1)
        size = source.choice((1, 1, 2, 4, 8, 30))
        match source.randrange(7):
            case 0 if at < len(spoiled):
                spoiled[at] ^= 1 << source.randrange(8)
            case 1:
                width = source.choice((1, 2, 4, 8))
                edge = source.choice(EDGES) & ((1 << 8 * width) - 1)
                spoiled[at : at + width] = edge.to_bytes(width, "big")
            case 2:
                del spoiled[at : at + size]
            case 3:
                spoiled[at:at] = spoiled[at : at + size]
            case 4:
                spoiled[at:at] = source.choice(tokens)
            case 5:
                spoiled[at:at] = source.randbytes(size)
            case _:
                if not source.randrange(3):
                    del spoiled[at:]
    return bytes(spoiled)


def split(nbytes: bytes, source: Random) -> list[bytes]:
    """The stream in pieces: byte by byte, in two, in even pieces, or at random places."""
    length = len(nbytes)
    match source.randrange(4):
        case 0 if length < 200:
            return [nbytes[at : at + 1] for at in range(length)]
        case 1:
            at = source.randint(0, length)
            return [nbytes[:at], nbytes[at:]]
        case 2:
            size = source.randint(1, max(1, length))
            return [nbytes[at : at + size] for at in range(0, length, size)]
    places = sorted(source.randint(0, length) for _ in range(source.randint(1, 8)))
    edges = [0, *places, length]
    return [nbytes[first:last] for first, last in pairwise(edges)]


def check(target: Target, reading: Reading) -> None:
    """Raise :class:`Finding` for what no reading may be."""
    for place, event in enumerate(reading.events):
        if isinstance(event, tuple) and event[:1] == ("fault",):
            if event[1] not in target.reasons:
                raise Finding(f"an undocumented fault: {event}")
            if place != len(reading.events) - 1:
                raise Finding(f"something follows the fault: {reading.events[place:]}")
    if reading.held_max > target.held:
        raise Finding(f"{reading.held_max} bytes held, bound {target.held}")


def attempt(target: Target, seed: int) -> None:
    """One stream; raises :class:`Finding`, or whatever escapes the decoder."""
    source = Random(seed)
    examine(target, mutate(target.stream(source), source, target.tokens), source)


def examine(target: Target, nbytes: bytes, source: Random) -> None:
    """One stream, whole and in pieces; raises as :func:`attempt`."""
    options = source.getrandbits(32)
    whole = target.read([nbytes], Random(options))
    check(target, whole)
    pieces = split(nbytes, source)
    parts = target.read(pieces, Random(options))
    check(target, parts)
    if parts.events != whole.events:
        raise Finding(f"whole: {whole.events[-3:]}, in {len(pieces)} pieces: {parts.events[-3:]}")


CHOICE_BYTES = 4
"""With so many bytes an input begins from which options and pieces are chosen."""


def examine_input(target: Target, nbytes: bytes) -> None:
    """What a coverage-guided fuzzer has made: the choices, and a stream."""
    examine(target, nbytes[CHOICE_BYTES:], Random(nbytes[:CHOICE_BYTES]))


def fuzz(target: Target, seeds: Iterable[int]) -> Iterator[tuple[int, BaseException]]:
    """The seeds which find something, and what."""
    for seed in seeds:
        try:
            attempt(target, seed)
        except Exception as error:
            yield seed, error
