"""The two forms of the loops which find frames: the compiled one agrees with Python's."""

from __future__ import annotations

import mmap
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from twisted_msgproto.lumberjack import wire
from twisted_msgproto.lumberjack.wire import encode_data, encode_json, encode_window, scan
from twisted_msgproto.lumberjack.wire.scan import DataLimits

needs_compiled = pytest.mark.skipif(
    not scan.COMPILED,
    reason="the compiled scan was not built: pip install -e . with a C compiler at hand",
)
FORMS = [
    pytest.param("python", id="python"),
    pytest.param("compiled", id="compiled", marks=needs_compiled),
]
LIMITS = DataLimits(pairs=8, key_octets=10, value_octets=300, octets=400)


@pytest.fixture(params=FORMS)
def json_run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(scan, f"json_run_{request.param}")
    return found


@pytest.fixture(params=FORMS)
def data_run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(scan, f"data_run_{request.param}")
    return found


# ── J frames ────────────────────────────────────────────────────────────────────────────────────

THREE = b"??" + encode_json([1, 2, 2**32 - 1], [b"a", b"", b"ccc"])  # bounds 2, 13, 23, 36
A, AND_NOTHING, AND_CCC = [b"a"], [b"a", b""], [b"a", b"", b"ccc"]


@pytest.mark.parametrize(
    ("octets", "stop", "count_max", "bodies", "position", "needed"),
    [
        (THREE, 36, 9, AND_CCC, 36, 0),
        (THREE + b"2", 37, 9, AND_CCC, 36, 0),  # less than a header is left
        (THREE + b"2A00000000", 46, 9, AND_CCC, 36, 0),  # another type
        (THREE + encode_json([4], [b""], 0x31), 46, 9, AND_CCC, 36, 0),  # another version
        (THREE, 36, 2, AND_NOTHING, 23, 0),  # no more frames than asked for
        (THREE, 14, 9, AND_NOTHING, 23, 0),  # the first to reach the stop is the last
        (THREE, 13, 9, A, 13, 0),
        (THREE[:-1], 35, 9, AND_NOTHING, 23, 13),  # the last is not whole
        (THREE[:33], 33, 9, AND_NOTHING, 23, 13),
        (THREE[:14], 14, 9, A, 13, 0),
        (THREE[:12], 12, 9, [], 2, 11),
        (b"2J" + b"\xff" * 8, 10, 9, [], 0, 10 + 0xFFFFFFFF),  # a length of 4 GiB
    ],
)
def test_a_run_of_j_frames_becomes_columns(
    json_run: Callable[..., Any],
    octets: bytes,
    stop: int,
    count_max: int,
    bodies: list[bytes],
    position: int,
    needed: int,
) -> None:
    """LJ-04."""
    start = 2 if octets.startswith(b"??") else 0
    found, sequences, documents, windows, missing = json_run(octets, start, stop, count_max, 9, 9)
    assert (found, missing) == (position, needed)
    assert sequences == [1, 2, 2**32 - 1][: len(bodies)]
    assert (sequences.typecode, documents.bounds.typecode) == ("q", "i")
    assert documents == bodies
    assert documents.octets == b"".join(bodies)
    assert windows == []


def test_many_j_frames_become_columns(json_run: Callable[..., Any]) -> None:
    """LJ-04: more than what any first buffer holds, of sizes which nobody could foretell."""
    bodies = [b"x" * (number * 7 % 50) for number in range(5000)]
    octets = encode_json(range(5000), bodies)
    run = json_run(octets, 0, len(octets), 6000, 1, 1)
    assert run == (len(octets), list(range(5000)), bodies, [], 0)


AB, C = encode_json([1, 2], [b"a", b"b"]), encode_json([3], [b"c"])  # of 22 and 11 octets


@pytest.mark.parametrize(
    ("octets", "windows", "position"),
    [
        (encode_window(3) + AB + C, [(0, 3)], 39),
        (AB + encode_window(9) + C, [(2, 9)], 39),
        (encode_window(2) + AB + encode_window(1) + C, [(0, 2), (2, 1)], 45),
        (encode_window(7) * 2 + encode_window(2) + AB, [(0, 7), (0, 7), (0, 2)], 40),
        (AB + encode_window(5) + C[:-1], [(2, 5)], 28),  # what follows is not whole
        (AB + encode_window(5) + b"2C??", [(2, 5)], 28),
        (AB + encode_window(5) + b"2C?", [], 22),  # less than a header of J stands there
        (AB + encode_window(0) + C, [], 22),  # an empty batch
        (AB + encode_window(10) + C, [], 22),  # above the limit
        (AB + encode_window(0xFFFFFFFF) + C, [], 22),
        (AB + encode_window(5, 0x31) + C, [], 22),  # another version
        (encode_window(1) * 4 + C, [(0, 1)] * 3, 18),  # no more than asked for
    ],
)
def test_windows_stand_among_the_j_frames_of_a_run(
    json_run: Callable[..., Any], octets: bytes, windows: list[tuple[int, int]], position: int
) -> None:
    """LJ-07."""
    found, sequences, documents, given, _ = json_run(octets, 0, len(octets), 9, 9, 3)
    assert (found, given) == (position, windows)
    whole = octets[:position]
    assert (1 in sequences, 3 in sequences) == (AB in whole, C in whole)
    assert len(sequences) == len(documents)


def test_a_run_takes_no_window_at_or_after_the_stop(json_run: Callable[..., Any]) -> None:
    """LJ-13: what one turn decodes is bounded."""
    octets = encode_window(1) * 3 + C
    assert json_run(octets, 0, 6, 9, 9, 9)[:4] == (6, [], [], [(0, 1)])
    assert json_run(octets, 0, 7, 9, 9, 9)[:4] == (12, [], [], [(0, 1), (0, 1)])


# ── D frames ────────────────────────────────────────────────────────────────────────────────────

FIRST = {"a": "1", "é": "ü" * 9}
TWO = encode_data([1, 2], [FIRST, {}])


@pytest.mark.parametrize(
    ("last", "unusual"),
    [
        (b"", False),
        (b"1D", False),  # less than a header is left
        (b"1W00000000", False),
        (encode_data([3], [{"a": "b"}])[:-1], True),  # cut short in a value,
        (encode_data([3], [{"abcd": "b"}])[:-6], True),  # in a key,
        (encode_data([3], [{"a": ""}])[:-1], True),  # in the length of a value,
        (encode_data([3], [{"a": ""}])[:12], True),  # in the length of a key
        (encode_data([3], [{str(key): "" for key in range(9)}]), True),  # above each limit
        (encode_data([3], [{"k" * 11: ""}]), True),
        (encode_data([3], [{"k": "v" * 301}]), True),
        (encode_data([3], [{"a": "v" * 200, "b": "v" * 200}]), True),
        (encode_data([3], [{"k": "\udcff"}]), True),  # not UTF-8
        (encode_data([3], [{"\udcff": "v"}]), True),
        (encode_data([3], [{"k": "long before it\udce9"}]), True),
    ],
)
def test_a_run_of_d_frames_ends_before_what_is_unusual(
    data_run: Callable[..., Any], last: bytes, unusual: bool
) -> None:
    """LJ-03."""
    octets = b"?" + TWO + last
    run = data_run(octets, 1, len(octets), 9, 999, LIMITS, [])
    assert run.position == 1 + len(TWO)
    assert run.sequences == [1, 2]
    assert run.pairs == [FIRST, {}]
    assert run.unusual is unusual


@pytest.mark.parametrize(
    "mapping",
    [
        {"k" * 10: ""},
        {"k": "v" * 300},
        {str(number): "" for number in range(8)},
        {"k": "v" * 300, "l": "w" * 72},  # 400 octets in all
    ],
)
def test_a_d_frame_at_a_limit_is_for_a_run_and_one_above_it_is_not(
    data_run: Callable[..., Any], mapping: dict[str, str]
) -> None:
    """LJ-17."""
    octets = encode_data([7], [mapping])
    key, value = (max(map(len, side)) for side in (mapping, mapping.values()))
    least = DataLimits(len(mapping), key, value, len(octets))
    run = data_run(octets, 0, len(octets), 9, 999, least, [])
    assert (run.sequences, run.pairs, run.unusual) == ([7], [mapping], False)
    for name, limit in least._asdict().items():
        if limit:
            fewer = least._replace(**{name: limit - 1})
            run = data_run(octets, 0, len(octets), 9, 999, fewer, [])
            assert (run.position, run.sequences, run.unusual) == (0, [], True)


def test_a_run_of_d_frames_ends_with_the_first_to_reach_the_stop(
    data_run: Callable[..., Any],
) -> None:
    run = data_run(TWO, 0, 1, 9, 999, LIMITS, [])
    assert (run.sequences, run.unusual) == ([1], False)


@pytest.mark.parametrize("count_max", [0, 1, 2])
def test_a_run_of_d_frames_has_no_more_than_asked_for(
    data_run: Callable[..., Any], count_max: int
) -> None:
    run = data_run(TWO, 0, len(TWO), count_max, 999, LIMITS, [])
    assert (run.sequences, run.unusual) == ([1, 2][:count_max], False)


@pytest.mark.parametrize(("pairs_stop", "found"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_no_d_frame_begins_behind_as_many_pairs_as_asked_for__NB_07(
    data_run: Callable[..., Any], pairs_stop: int, found: int
) -> None:
    octets = encode_data([1, 2, 3], [{"a": "1"}, {"a": "1"}, {"a": "1", "b": "2"}])
    run = data_run(octets, 0, len(octets), 9, pairs_stop, LIMITS, [])
    assert (run.sequences, run.unusual) == ([1, 2, 3][:found], False)
    assert run.pair_count == (0, 1, 2, 4)[found]


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0x80000000, 0xFFFFFFF2, 0xFFFFFFFF])
@pytest.mark.parametrize("at", [6, 10, 15])
def test_a_length_which_turns_negative_in_31_bits_is_unusual(
    data_run: Callable[..., Any], at: int, length: int
) -> None:
    """LJ-17: the count of pairs, the length of a key and that of a value."""
    octets = bytearray(encode_data([1], [{"a": "1"}]))
    octets[at : at + 4] = length.to_bytes(4)
    run = data_run(bytes(octets), 0, len(octets), 9, 999, LIMITS, [])
    assert (run.position, run.sequences, run.unusual) == (0, [], True)


def test_a_first_key_and_value_may_be_empty(data_run: Callable[..., Any]) -> None:
    """LJ-03."""
    octets = encode_data([1], [{"": ""}])
    assert data_run(octets, 0, len(octets), 9, 999, LIMITS, []).pairs == [{"": ""}]


def test_keys_may_differ_from_frame_to_frame(data_run: Callable[..., Any]) -> None:
    """LJ-03: the keys of the frame before are only a guess."""
    pairs = [{"a": "1", "b": "2"}, {"b": "1", "a": "2"}, {"a": "1"}, {}, {"aa": "", "": "x"}] * 40
    octets = encode_data(range(200), pairs)
    run = data_run(octets, 0, len(octets), 300, 999, LIMITS, [])
    assert (run.sequences, run.pairs) == (list(range(200)), pairs)


@needs_compiled
def test_the_compiled_form_leaves_repeated_keys_and_very_many_to_python() -> None:
    """LJ-03: a repeated key keeps the last value, which packed maps cannot tell."""
    repeated = encode_data([3], [{"a": "1", "b": "2"}]).replace(b"b", b"a")
    many = encode_data([3], [{str(key): "" for key in range(65)}])
    for octets in (repeated, many):
        run = scan.data_run_compiled(octets, 0, len(octets), 9, 999, LIMITS._replace(pairs=100), [])
        assert (run.position, run.sequences, run.unusual) == (0, [], True)


# ── the two forms against each other ────────────────────────────────────────────────────────────


def streams(count: int, seed: int) -> list[bytes]:
    """Frames of all kinds, many of them spoilt somewhere."""
    source = random.Random(seed)
    keys = ["a", "bb", "é", "key", "k" * 11, "\udcff"]
    found = []
    for _ in range(count):
        octets = bytearray()
        for _ in range(source.randrange(1, 6)):
            sequences = [source.getrandbits(32) for _ in range(source.randrange(1, 5))]
            if source.random() < 0.3:
                octets += encode_window(source.choice((0, 1, 2, 4)), source.choice((0x31, 0x32)))
            if source.random() < 0.5:
                bodies = [source.randbytes(source.randrange(12)) for _ in sequences]
                octets += encode_json(sequences, bodies, source.choice((0x31, 0x32)))
            else:
                pairs = [
                    {
                        key: source.choice(("", "v", "ü" * 200, "w" * 12))
                        for key in source.sample(keys, source.randrange(4))
                    }
                    for _ in sequences
                ]
                octets += encode_data(sequences, pairs)
        for _ in range(source.choice((0, 0, 1, 2))):
            place = source.randrange(len(octets))
            octets[place] = source.choice((0, 1, 0xFF, ord("J"), octets[place] ^ 1))
        found.append(bytes(octets))
    return found


@needs_compiled
def test_both_forms_find_the_same_j_frames_wherever_they_begin() -> None:
    """LJ-04."""
    for octets in streams(300, 1):
        for start in range(0, len(octets) - 1, 3):
            for stop in (len(octets), start + 5):
                work = (octets, start, min(stop, len(octets)), 3, 3, 2)
                assert scan.json_run_compiled(*work) == scan.json_run_python(*work)


@needs_compiled
def test_both_forms_find_the_same_d_frames_wherever_they_begin() -> None:
    """LJ-03."""
    for octets in streams(300, 2):
        for start in range(0, len(octets) - 1, 3):
            work = (octets, start, len(octets), 9, 999, LIMITS)
            compiled = scan.data_run_compiled(*work, [])
            python = scan.data_run_python(*work, [])
            # Where a key is repeated the compiled form stops earlier.
            count = len(compiled.sequences)
            assert compiled.sequences == python.sequences[:count]
            assert compiled.pairs == python.pairs[:count]
            if compiled.position == python.position:
                assert compiled.unusual is python.unusual
                assert compiled.pair_count == python.pair_count
            else:
                assert compiled.unusual


@needs_compiled
@pytest.mark.parametrize("name", ["json_columns", "data_columns"])
@pytest.mark.parametrize(
    ("octets", "position", "stop"),
    [
        (b"2J", -1, 2),
        (b"2J", 1, 2),
        (b"2J", 5, 2),
        (b"2J", 0, 3),
        (b"", 0, 0),
        (b"2J", sys.maxsize, 2),
        (b"2J", -sys.maxsize, 2),
    ],
)
def test_positions_outside_of_the_octets_are_a_programmer_s_fault(
    name: str, octets: bytes, position: int, stop: int
) -> None:
    from twisted_msgproto.lumberjack import _scan

    more = (1,) * (3 if name == "json_columns" else 6)
    with pytest.raises(ValueError, match="outside"):
        getattr(_scan, name)(octets, position, stop, *more)
    with pytest.raises(TypeError):
        getattr(_scan, name)("text", 0, 0, *more)


@needs_compiled
@pytest.mark.parametrize("name", ["json_columns", "data_columns"])
@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="nobody has so many octets on such a machine")
def test_octets_whose_places_need_more_than_31_bits_are_a_programmer_s_fault(name: str) -> None:
    """Bounds are 31-bit numbers; one that had wrapped would make Arrow read anywhere."""
    from twisted_msgproto.lumberjack import _scan

    more = (1,) * (3 if name == "json_columns" else 6)
    octets = mmap.mmap(-1, (1 << 31) + 12)  # none of it is touched
    with octets, pytest.raises(OverflowError, match="31"):
        getattr(_scan, name)(octets, 1 << 31, len(octets), *more)


def test_the_decoder_uses_the_compiled_form_where_there_is_one() -> None:
    decoder = wire.Decoder()
    run = decoder.feed(encode_data([1], [{"a": "b"}]))[0]
    assert isinstance(run, wire.Data)
    assert (type(run.pairs) is list) is not scan.COMPILED


@pytest.mark.parametrize("pairs", [{f"{n}": "v" for n in range(33)}, {"k" * 1021: "v"}])
def test_only_few_keys_are_held_for_the_next_frame__NB_02(pairs: dict[str, str]) -> None:
    """NB-02: a thousand keys of 1 KiB are 2 MB, of a connection that may be silent for hours."""
    limits = DataLimits(1024, 1 << 10, 1 << 20, 64 << 20)
    keys: list[scan.KnownKey] = []
    for some, held in ((pairs, 0), ({"a": "1", "b": "2"}, 2)):
        octets = encode_data([1], [some])
        run = scan.data_run_python(octets, 0, len(octets), 9, 9999, limits, keys)
        assert list(run.pairs) == [some]
        assert len(keys) == held
