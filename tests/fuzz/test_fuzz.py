"""Seeded streams for every decoder: only documented faults, however cut, within bounds.

LJ-16, LJ-17, LJ-20, MM-17, MM-32, SA-26, SA-27, UM-18, UM-20, MT-02, MT-13; FAULTS, fuzzing.
``--long`` and ``--fuzz N`` set the streams of each decoder; half of them are fresh in
each run, unless ``--same``.  ``python -m tests.fuzz`` replays one.

Inputs that coverage-guided fuzzing has found (``python -m tests.atheris``) find nothing more.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from tests.fuzz.streams import Finding, examine_input, fuzz, mutate
from tests.fuzz.targets import TARGETS
from tests.micromsg2.streams import handshake, message
from tests.tools.measures import SHORT
from twisted_msgproto.lumberjack.wire import decoder as lumberjack
from twisted_msgproto.micromsg2.wire import frames as micromsg2
from twisted_msgproto.mtl import wire as control
from twisted_msgproto.sabc.wire import Lines

SHARES = 2
"""The streams of a decoder are read in so many tests, which can run side by side."""


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_spoiled_streams_give_documented_faults_however_they_are_cut(name, share, request):
    count = request.config.getoption("--fuzz") // TARGETS[name].one_of
    first = (request.config.getoption("--seed") or 0) if share else 0
    for seed, error in fuzz(TARGETS[name], range(first + share, first + count, SHARES)):
        pytest.fail(f"{name}, seed {seed}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_documented_fault_is_met(name):
    """Streams which never come to a check do not test it: those of the short form come to all."""
    target, met = TARGETS[name], set()
    for seed in range(SHORT["fuzz"] // target.one_of):
        source = Random(seed)
        octets = mutate(target.stream(source), source, target.tokens)
        for event in target.read([octets], Random(seed)).events:
            if isinstance(event, tuple) and event[0] == "fault":
                met.add(event[1])
        if met == target.reasons:
            return
    pytest.fail(f"never met: {sorted(target.reasons - met)}")


# ── Planted bugs ────────────────────────────────────────────────────────────────────────────────


def forgets_a_started_frame():
    """Lumberjack: bytes of a frame whose first piece was short are dropped."""
    take_in = lumberjack.Decoder._take_in

    def forgetting(self, nbytes):
        whole = b"".join(self._gathered.taken())
        self._gathered.add(whole[:5] + whole[6:])
        return take_in(self, nbytes)

    return mock.patch.object(lumberjack.Decoder, "_take_in", forgetting)


def loses_what_follows_a_gathered_frame():
    """Lumberjack: a byte is dropped behind a compressed frame that came in pieces."""
    take_compressed = lumberjack.Decoder._take_compressed

    def losing(self, nbytes):
        missing = self._needed - self._gathered.nbytes
        take_compressed(self, nbytes[:missing] + nbytes[missing + 1 :])

    return mock.patch.object(lumberjack.Decoder, "_take_compressed", losing)


def waits_for_one_byte_more():
    """MicroMsg2: a frame in pieces is looked at too late."""

    def late(data, start, stop):
        if stop > len(data):
            raise micromsg2._Incomplete(stop - start + 1)

    return mock.patch.object(micromsg2, "_need", late)


def takes_half_a_mark_for_none():
    """sABC: an end mark which is cut is taken for what follows the body."""
    end_here = Lines.end_here

    def sure(self, nbytes, start, empty):
        return end_here(self, nbytes, start, empty) or 0

    return mock.patch.object(Lines, "end_here", sure)


@contextmanager
def plain_json():
    """MTL: bodies are parsed by the standard library, which knows no depth and other errors."""
    with mock.patch.object(control, "parse_json", lambda octets, *limits: json.loads(octets)):
        yield


BUGS = {
    "forgets-a-started-frame": ("lumberjack", forgets_a_started_frame),
    "loses-what-follows-a-gathered-frame": ("lumberjack", loses_what_follows_a_gathered_frame),
    "waits-for-one-byte-more": ("micromsg2", waits_for_one_byte_more),
    "takes-half-a-mark-for-none": ("sabc", takes_half_a_mark_for_none),
    "plain-json": ("mtl-control", plain_json),
}


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug):
    """It is found in the short form."""
    name, plant = BUGS[bug]
    streams = SHORT["fuzz"] // TARGETS[name].one_of
    with plant():
        found = next(fuzz(TARGETS[name], range(streams)), None)
    assert found is not None, f"{bug} was not found in {streams} streams"
    assert isinstance(found[1], Finding | ValueError | RecursionError | IndexError)


FINDINGS = sorted(path for path in Path(__file__).parent.glob("findings/*/*") if path.is_file())


def test_no_input_that_was_a_finding_is_one():
    for path in FINDINGS:
        try:
            examine_input(TARGETS[path.parent.name], path.read_bytes())
        except Exception as error:
            pytest.fail(f"{path}: {type(error).__name__}: {error}")


def test_an_input_finds_a_planted_bug():
    """One whose choice of pieces cuts a frame where its last byte comes alone."""
    name, plant = BUGS["waits-for-one-byte-more"]
    stream = handshake() * 2 + message(1)
    inputs = [choice.to_bytes(4, "big") + stream for choice in range(20)]
    for octets in inputs:
        examine_input(TARGETS[name], octets)
    with plant(), pytest.raises(Finding):
        for octets in inputs:
            examine_input(TARGETS[name], octets)
