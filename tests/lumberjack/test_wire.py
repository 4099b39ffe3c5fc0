"""The wire room of Lumberjack: frames ⇄ octets, whole, cut anywhere, broken, and too large."""

import gc
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.bombs import deflated
from tests.tools.events import flatten, splits
from tests.tools.frames import windows_apart
from twisted_msgproto.core.errors import ConfigurationError, Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.lumberjack import wire
from twisted_msgproto.lumberjack.terms import JsonReceived
from twisted_msgproto.lumberjack.wire import (
    Ack,
    Compressed,
    Data,
    Decoder,
    Json,
    Window,
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
)
from twisted_msgproto.lumberjack.wire.inflating import PIECE_OCTETS

pytestmark = pytest.mark.usefixtures("form")

V1, V2 = wire.VERSION_1, wire.VERSION_2


def limits(**changes):
    return Limits.of(wire.LIMITS).replace(
        {name.replace("_", "-"): value for name, value in changes.items()}
    )


def decode(octets, decoder=None):
    """Everything in ``octets``, however many turns it takes."""
    decoder = decoder or Decoder()
    frames = decoder.feed(octets)
    while decoder.unfinished:
        frames += decoder.feed(b"")
    return frames


def simple(frames):
    """Frames one by one, without the marks of how they were cut into runs."""
    flat = []
    for frame in windows_apart(frames):
        match frame:
            case Json(version):
                rows = zip(frame.sequences, frame.bodies, strict=True)
                flat += [("J", version, *row) for row in rows]
            case Data(version, sequences, pairs):
                flat += [("D", version, *row) for row in zip(sequences, pairs, strict=True)]
            case Window(version, size):
                flat.append(("W", version, size))
            case Ack(version, sequence):
                flat.append(("A", version, sequence))
            case Compressed(version):
                flat.append(("C", version))
            case Fault():
                flat.append(("fault", frame.reason))
    return flat


ONE_OF_EACH = (
    encode_window(3)
    + encode_json([1, 2], [b"{}", b'{"a":1}'])
    + encode_data([3, 4], [{"k": "v", "": ""}, {}], V1)
    + encode_compressed(encode_window(2) + encode_json([5, 6], [b"{}", b"[]"], V1))
    + encode_ack(7, V1)
)
EVERYTHING = [
    ("W", V2, 3),
    ("J", V2, 1, b"{}"),
    ("J", V2, 2, b'{"a":1}'),
    ("D", V1, 3, {"k": "v", "": ""}),
    ("D", V1, 4, {}),
    ("W", V2, 2),
    ("J", V1, 5, b"{}"),
    ("J", V1, 6, b"[]"),
    ("C", V2),
    ("A", V1, 7),
]


def test_each_frame_stands_on_the_wire_as_the_grammar_says():
    """LJ-02 … LJ-08: version, type, then 32-bit unsigned integers in network order."""
    assert encode_window(5) == b"2W\x00\x00\x00\x05"
    assert encode_ack(0xFFFFFFFF, V1) == b"1A\xff\xff\xff\xff"
    assert encode_json([258], [b"{}"]) == b"2J\x00\x00\x01\x02\x00\x00\x00\x02{}"
    assert encode_data([1], [{"k": "vw"}]) == (
        b"1D\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01k\x00\x00\x00\x02vw"
    )
    compressed = encode_compressed(b"2W\x00\x00\x00\x05")
    assert compressed[:2] == b"2C"
    assert struct.unpack(">I", compressed[2:6]) == (len(compressed) - 6,)
    assert zlib.decompress(compressed[6:]) == b"2W\x00\x00\x00\x05"


@pytest.mark.parametrize("pieces", list(splits(ONE_OF_EACH)), ids=lambda pieces: len(pieces))
def test_every_split_gives_the_same_frames(pieces):
    """LJ-20: data in any TCP fragmentation."""
    decoder = Decoder()
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    assert simple(frames) == EVERYTHING
    assert not decoder.incomplete
    assert decoder.held_octets == 0


def test_neighbours_of_one_kind_and_version_are_one_run():
    frames = decode(encode_json([1, 2], [b"a", b"b"]) + encode_json([3], [b"c"], V1))
    assert [(frame.version, frame.sequences, frame.bodies, frame.octets) for frame in frames] == [
        (V2, [1, 2], [b"a", b"b"], 22),
        (V1, [3], [b"c"], 11),
    ]
    frames = decode(encode_data([1, 2], [{"a": "b"}, {}]) + encode_data([3], [{}], V2))
    assert [(frame.version, frame.sequences) for frame in frames] == [(V1, [1, 2]), (V2, [3])]


def test_frames_that_are_not_for_a_run_are_one_with_their_neighbours__LJ_03():
    """Text that is not UTF-8 is read pair by pair."""
    odd = b"1D\0\0\0\x07\0\0\0\x01\0\0\0\x01\xff\0\0\0\0"
    usual = encode_data([7], [{"a": "b"}])
    frames = decode(odd + usual + odd * 2 + encode_compressed(odd * 2) + odd)
    assert [len(frame.pairs) for frame in frames if isinstance(frame, Data)] == [4, 2, 1]
    assert [frame.octets for frame in frames if isinstance(frame, Data)] == [77, 38, 19]


@pytest.mark.parametrize("kind", [Json, Data])
def test_runs_of_two_versions_that_are_put_together_have_that_of_the_first(kind):
    encode, row = (encode_json, b"{}") if kind is Json else (encode_data, {})
    runs = decode(encode([1], [row], V1)) + decode(encode([2], [row], V2))
    whole = kind.joined(runs)
    assert (whole.version, whole.sequences) == (V1, [1, 2])
    assert whole.octets == sum(run.octets for run in runs)


def test_windows_among_documents_are_told_with_the_run_and_others_by_themselves():
    """LJ-07: bulk in small windows is one run; a window with no document beside it is no run."""
    a, b = encode_json([1, 2], [b"a", b"b"]), encode_json([1], [b"c"])
    window = encode_window
    (run,) = decode(window(2) + a + window(1) + b + window(3) + b)
    assert (run.sequences, run.bodies) == ([1, 2, 1, 1], [b"a", b"b", b"c", b"c"])
    assert (run.windows, run.octets) == ([(0, 2), (2, 1), (3, 3)], 44)
    frames = decode(window(2) + window(3) + encode_data([1], [{}]) + window(0) + b + window(9))
    assert [type(frame) for frame in frames] == [Window, Window, Data, Window, Json, Window]
    assert [frame.size for frame in frames if type(frame) is Window] == [2, 3, 0, 9]


def test_a_small_window_takes_the_short_way__NB_11(monkeypatch):
    """It is most of what comes, and costs as much as the code that it goes through."""
    stepped = []
    step = Decoder._step
    monkeypatch.setattr(Decoder, "_step", lambda self: stepped.append(self) or step(self))
    decoder = Decoder()
    for version in (V1, V2):
        (run,) = decoder.feed(
            encode_window(2, version) + encode_json([1, 2], [b"a", b"bc"], version)
        )
        assert (run.version, run.windows, run.octets, run.compressed) == (
            version,
            [(0, 2)],
            23,
            False,
        )
        assert (run.sequences, run.bodies) == ([1, 2], [b"a", b"bc"])
    assert decoder.feed(encode_json([1], [b""])) and not stepped
    assert decoder.clean
    long = encode_json([1], [b"x" * 100])
    assert decoder.feed(long[:50]) == []
    assert stepped
    stepped.clear()
    assert decoder.feed(long[50:90]) == []  # it is known to be too little
    assert not stepped
    assert decoder.feed(long[90:])


def test_what_was_read_is_not_kept__NB_11():
    decoder = Decoder()
    for octets in (encode_data([1], [{"a": "b"}]), encode_window(1), encode_compressed(b"")):
        assert decoder.feed(octets)
        assert (decoder._levels[0].octets, decoder.held_octets, decoder.clean) == (b"", 0, True)
    decoder = Decoder(limits(slice_octets=1000))
    decoder.feed(encode_compressed(encode_json(range(99), [b"x" * 90] * 99)))
    assert (decoder._levels[0].octets, decoder.unfinished) == (b"", True)


def test_windows_count_where_a_turn_ends():
    """LJ-13: each makes work in the machine, however few octets it has."""
    decoder = Decoder(limits(slice_octets=10_000))
    turns = [decoder.feed((encode_window(1) + encode_json([1], [b""])) * 500)]
    while decoder.unfinished:
        turns.append(decoder.feed(b""))
    assert sum(len(run.windows) for turn in turns for run in turn) == 500
    assert max(sum(len(run.windows) for run in turn) for turn in turns) <= 10_000 / 1000 + 1


def test_a_run_inside_of_a_compressed_frame_says_so_and_does_not_join_one_outside():
    frames = decode(encode_data([1], [{}]) + encode_compressed(encode_data([2], [{}]), version=V1))
    assert [getattr(frame, "compressed", None) for frame in frames] == [False, True, None]


def test_a_data_frame_without_pairs_is_an_event():
    """LJ-20."""
    assert simple(decode(b"1D\0\0\0\x09\0\0\0\0")) == [("D", V1, 9, {})]


def test_a_repeated_key_keeps_its_last_value():
    """LJ-03."""
    pair = b"\0\0\0\x01k\0\0\0\x01"
    frame = b"1D\0\0\0\x01\0\0\0\x02" + pair + b"1" + pair + b"2"
    assert simple(decode(frame * 2)) == [("D", V1, 1, {"k": "2"})] * 2


@pytest.mark.parametrize("pieces", [1, 1000])
def test_text_that_is_not_utf_8_is_kept_and_counted(pieces):
    """LJ-03: never dropped; surrogate escapes keep the octets."""
    frame = b"1D\0\0\0\x01\0\0\0\x01\0\0\0\x02k\xff\0\0\0\x01\xfe"
    decoder = Decoder()
    frames = []
    step = -(-len(frame) // pieces)
    for at in range(0, len(frame), step):
        frames += decoder.feed(frame[at : at + step])
    assert simple(frames) == [("D", V1, 1, {"k\udcff": "\udcfe"})]
    assert decoder.invalid_texts == 2
    assert encode_data([1], frames[0].pairs) == frame


def test_keys_which_change_from_frame_to_frame_are_read_right():
    """The keys of the frame before are only a guess."""
    mappings = [
        {"a": "1", "b": "2"},
        {"a": "3", "b": "4"},
        {"b": "5", "a": "6"},
        {"a": "7"},
        {"a": "8", "bb": "9"},
        {"a": "", "": "x"},
    ]
    frames = decode(encode_data(range(6), mappings))
    assert frames[0].pairs == mappings


def test_a_length_of_all_ones_is_a_length():
    """LJ-17: the octets of no length match a key which is not known yet."""
    frame = b"1D\0\0\0\x01\0\0\0\x01\xff\xff\xff\xff" + b"x" * 20
    assert simple(decode(frame)) == [("fault", "key-limit")]


# ── Compressed frames ───────────────────────────────────────────────────────────────────────────


def nested(depth, inner):
    for _ in range(depth):
        inner = encode_compressed(inner)
    return inner


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_compressed_frames_stand_in_each_other_to_depth_three(depth):
    """LJ-08."""
    assert simple(decode(nested(depth, encode_json([1], [b"{}"])))) == [
        ("J", V2, 1, b"{}"),
        ("C", V2),
    ]


def test_a_fourth_level_is_a_fault():
    """LJ-08: a bomb in a bomb in a bomb in a bomb."""
    assert simple(decode(nested(4, encode_json([1], [b"{}"])))) == [("fault", "compressed-depth")]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "compressed-limit"),
        (b"not zlib at all", "zlib"),
        (zlib.compress(encode_window(1))[:-1], "zlib"),
        (zlib.compress(encode_window(1))[:-2] + b"xx", "zlib"),
        (zlib.compress(encode_window(1)[:-1]), "partial-frame"),
        (zlib.compress(encode_json([1], [b"{}"])[:-1]), "partial-frame"),
        (zlib.compress(encode_json([1], [b"{}"])[:9]), "partial-frame"),
        (zlib.compress(encode_data([1], [{"k": "v"}])[:-1]), "partial-frame"),
        (zlib.compress(b"2"), "partial-frame"),
        (zlib.compress(b"2C\0\0\0\x09xx"), "partial-frame"),
        (zlib.compress(b"x"), "version"),
    ],
)
def test_a_compressed_frame_which_is_not_whole_frames_is_a_fault(payload, reason):
    """LJ-08: partial frame at the end, bad or unfinished zlib, length 0."""
    frame = b"2C" + struct.pack(">I", len(payload)) + payload
    for pieces in splits(frame):
        decoder = Decoder()
        frames = [item for piece in pieces for item in decoder.feed(piece)]
        assert simple(frames)[-1] == ("fault", reason)
        assert ("C", V2) not in simple(frames)


def test_a_compressed_frame_of_nothing_is_whole():
    """LJ-08: a zlib stream of no octets holds no partial frame."""
    assert simple(decode(encode_compressed(b""))) == [("C", V2)]


def test_octets_after_the_zlib_stream_are_ignored_and_counted():
    """LJ-08."""
    for tail in (b"tail", bytes(3 * PIECE_OCTETS)):
        payload = zlib.compress(encode_json([1], [b"{}"])) + tail
        octets = b"1C" + struct.pack(">I", len(payload)) + payload + encode_window(1)
        decoder = Decoder()
        assert simple(decode(octets, decoder)) == [("J", V2, 1, b"{}"), ("C", V1), ("W", V2, 1)]
        assert decoder.trailing_octets == len(tail)


def test_a_bomb_never_materialises():
    """LJ-08, LJ-17, NB-10: 610 KB which inflate to 400 MB of whole frames; none is returned.

    The limits are a third of the usual ones: the end comes after 20 MB.
    """
    payload = deflated(encode_window(5) * 66_667, 1000)
    bomb = b"2C" + struct.pack(">I", len(payload)) + payload
    assert len(bomb) < 620_000
    decoder = Decoder(limits(inflated_octets=20_000_000, inflated_ratio=10))
    largest = 0
    frames = decoder.feed(bomb)
    while decoder.unfinished:
        largest = max(largest, decoder.held_octets)
        frames += decoder.feed(b"")
    assert simple(frames) == [("fault", "inflated-limit")]
    assert largest <= len(bomb) + (4 << 20) + 4200 * len(encode_window(5))
    assert decoder.held_octets == 0


def test_the_bound_on_inflating_is_summed_over_nesting():
    """LJ-08: each of two nested frames is below the limit, together they are above it."""
    inner = encode_compressed(encode_json([1], [b"a" * 600]))
    padded = encode_compressed(encode_json([1], [b"b" * 600]) + inner, 1)
    assert simple(decode(padded, Decoder(limits(inflated_octets=2000))))[-1] == ("C", V2)
    assert simple(decode(padded, Decoder(limits(inflated_octets=1200, inflated_ratio=1))))[-1] == (
        "fault",
        "inflated-limit",
    )


def test_the_bound_starts_anew_with_each_outermost_frame():
    frame = encode_compressed(encode_json([1], [b"a" * 600]))
    assert simple(decode(frame * 3, Decoder(limits(inflated_octets=700))))[-1] == ("C", V2)


def test_what_inflates_to_exactly_the_limit_is_read():
    frame = encode_json([1], [b"a" * 90])
    assert simple(decode(encode_compressed(frame), Decoder(limits(inflated_octets=100))))[-1] == (
        "C",
        V2,
    )


def test_much_in_a_compressed_frame_is_read_in_several_turns():
    """LJ-13: slices, so that a reactor turn stays short; millions of empty events count too."""
    decoder = Decoder(limits(slice_octets=10_000))
    frame = encode_compressed(encode_json(range(5000), [b""] * 5000) + encode_window(9))
    turns = [decoder.feed(frame)]
    while decoder.unfinished:
        turns.append(decoder.feed(b""))
    counts = [sum(len(item.bodies) for item in turn if isinstance(item, Json)) for turn in turns]
    assert sum(counts) == 5000
    assert max(counts) <= 10_000 // wire.MESSAGE_WEIGHT_OCTETS + 1
    assert simple(turns[-1])[-2:] == [("W", V2, 9), ("C", V2)]
    assert not decoder.incomplete


def test_octets_which_arrive_while_a_compressed_frame_is_read_come_after_it():
    decoder = Decoder(limits(slice_octets=500))
    body = b"x" * 200
    frames = decoder.feed(encode_compressed(encode_json(range(9), [body] * 9)))
    assert decoder.unfinished
    frames += decoder.feed(encode_window(7))
    while decoder.unfinished:
        frames += decoder.feed(b"")
    assert simple(frames) == [
        *[("J", V2, number, body) for number in range(9)],
        ("C", V2),
        ("W", V2, 7),
    ]


def test_empty_data_frames_count_too_where_a_turn_ends():
    """LJ-13: a D frame of ten octets is a mapping in memory, so its weight ends the turn."""
    decoder = Decoder(limits(slice_octets=10_000))
    turns = [decoder.feed(encode_data([7] * 500, [{}] * 500))]
    while decoder.unfinished:
        turns.append(decoder.feed(b""))
    counts = [sum(len(item.pairs) for item in turn) for turn in turns]
    assert sum(counts) == 500
    assert max(counts) <= 10_000 / 100 + 1


@pytest.mark.parametrize("limit", wire.LIMITS)
def test_what_bounds_octets_fits_into_31_bits(limit):
    """LJ-17: places in octets are 31-bit numbers, so no operator may allow more."""
    if limit.name not in ("window", "inflated-ratio", "compressed-windows"):
        with pytest.raises(ConfigurationError, match="at most 1073741824"):
            Limits.of(wire.LIMITS).replace({limit.name: 1 << 31})


@pytest.mark.parametrize(
    "frames",
    [
        encode_window(5),
        encode_compressed(b""),
        encode_window(1) + encode_json([1], [b""]),
        encode_data([1], [{}]) + encode_json([1], [b""]),
        encode_data([1], [{str(key): "" for key in range(65)}]),
    ],
)
def test_frames_which_make_no_runs_end_a_turn_by_their_number(frames):
    """LJ-13: six octets may cost as much time as a run of thousands, so they weigh as much."""
    decoder = Decoder()
    slice_octets = Limits.of(wire.LIMITS).integer("slice-octets")
    turns = [decoder.feed(encode_compressed(frames * 10_000))]
    while decoder.unfinished:
        turns.append(decoder.feed(b""))
    assert simple(turns[-1])[-1] == ("C", V2)
    assert len(turns) >= 10_000 * wire.STEP_WEIGHT_OCTETS / slice_octets
    assert max(map(len, turns)) <= slice_octets / wire.STEP_WEIGHT_OCTETS + 1


def test_an_ack_weighs_a_step_and_its_octets():
    """LJ-13: exactly so many make a turn."""
    frame = encode_ack(1)
    weight = wire.STEP_WEIGHT_OCTETS + len(frame)
    decoder = Decoder(limits(slice_octets=10 * weight))
    assert [len(decoder.feed(frame * 25)), len(decoder.feed(b"")), len(decoder.feed(b""))] == [
        10,
        10,
        5,
    ]


def test_data_frames_too_are_read_in_slices():
    decoder = Decoder(limits(slice_octets=1000))
    octets = encode_data(range(100), [{"key": "v" * 50}] * 100)
    first = decoder.feed(octets)
    assert decoder.unfinished
    assert 0 < len(first[0].pairs) < 20
    rest = []
    while decoder.unfinished:
        rest += decoder.feed(b"")
    assert len(simple(first + rest)) == 100


def test_pairs_count_where_a_turn_ends__NB_07():
    """NB-07: a read of 1 MiB of tiny pairs took a turn of 46 ms; now a turn decodes half of it."""
    decoder = Decoder()
    octets = encode_data([1] * 120, [{str(key): "" for key in range(1000)}] * 120)
    assert len(octets) > 1 << 20
    turns = [decoder.feed(octets)]
    while decoder.unfinished:
        turns.append(decoder.feed(b""))
    pairs = [sum(len(fields) for item in turn for fields in item.pairs) for turn in turns]
    assert sum(pairs) == 120_000
    slice_octets = Limits.of(wire.LIMITS).integer("slice-octets")
    most = slice_octets // wire.PAIR_WEIGHT_OCTETS + 1000
    assert max(pairs) <= most < 60_000


def test_pairs_of_usual_frames_count_as_well__NB_07():
    """NB-07: a run ends within a turn's budget of pairs, in the compiled form and in Python."""
    decoder = Decoder()
    octets = encode_data([1] * 2000, [{str(key): "" for key in range(60)}] * 2000)
    turns = [decoder.feed(octets)]
    while decoder.unfinished:
        turns.append(decoder.feed(b""))
    pairs = [sum(len(fields) for item in turn for fields in item.pairs) for turn in turns]
    assert sum(pairs) == 120_000
    assert max(pairs) <= Limits.of(wire.LIMITS).integer("slice-octets") // 135 + 60


# ── Faults and limits ───────────────────────────────────────────────────────────────────────────

HOSTILE = {
    "version": b"GET / HTTP/1.1\r\n",
    "version-tls": b"\x16\x03\x01\x02\x00\x01\x00\x01",
    "frame-type": b"2X\0\0\0\0",
    "window-limit": encode_window(65_537),
    "json-limit": b"2J\0\0\0\x01\x01\0\0\x01",
    "json-limit-2gb": b"2J\0\0\0\x01\x7f\xff\xff\xff",
    "compressed-limit": b"2C\x04\0\0\x01",
    "pairs-limit": b"1D\0\0\0\x01\0\0\x04\x01",
    "key-limit": b"1D\0\0\0\x01\0\0\0\x01\0\0\x04\x01",
    "value-limit": b"1D\0\0\0\x01\0\0\0\x01\0\0\0\x01k\x04\0\0\x01",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_each_limit_is_checked_on_the_header(name):
    """LJ-07, LJ-16, LJ-17: before a single octet is held for what it announces."""
    reason = name.replace("-tls", "").replace("-2gb", "")
    good = encode_json([1], [b"{}"])
    for pieces in splits(good + HOSTILE[name]):
        decoder = Decoder()
        frames = [item for piece in pieces for item in decoder.feed(piece)]
        assert simple(frames) == [("J", V2, 1, b"{}"), ("fault", reason)]
        assert decoder.held_octets == 0


def test_a_fault_shows_the_first_octets_of_what_was_not_understood():
    """LJ-16: HTTP or TLS sent to the plain port is the usual cause."""
    (fault,) = decode(b"GET / HTTP/1.1\r\nHost: x\r\n")
    assert fault.octets == b"GET / HTTP/1.1\r\n"
    assert fault.text == "version octet 0x47, not '1' or '2'"


def test_nothing_is_decoded_after_a_fault():
    decoder = Decoder()
    decoder.feed(b"x")
    assert decoder.feed(ONE_OF_EACH) == []
    assert not decoder.incomplete


def test_a_read_that_looks_like_whole_frames_is_the_rest_of_one_that_began():
    """LJ-04: a document is not parsed here, whatever stands in it."""
    inner = encode_json([1], [b"{}"])
    outer = encode_json([7], [inner])
    decoder = Decoder()
    assert decoder.feed(outer[: -len(inner)]) == []
    (run,) = decoder.feed(inner)
    assert (list(run.sequences), list(run.bodies)) == ([7], [inner])


@pytest.mark.parametrize("wrapped", [bytes, encode_compressed], ids=["plain", "compressed"])
def test_what_was_decoded_is_not_held_until_the_next_read__NB_02(wrapped):
    decoder = Decoder()
    found = decoder.feed(wrapped(encode_data([1], [{"a": "b"}])))
    assert found
    assert not any(holder is decoder for holder in gc.get_referrers(found))


def test_limits_are_inclusive():
    """LJ-17."""
    at_the_limits = limits(json_octets=3, data_octets=22, window=4)
    octets = encode_window(4) + encode_json([1], [b"abc"]) + encode_data([1], [{"kk": "vv"}])
    assert simple(decode(octets, Decoder(at_the_limits)))[-1] == ("D", V1, 1, {"kk": "vv"})


def test_a_data_frame_is_bounded_in_all():
    """LJ-17: many pairs, each within its limit, are not more than a frame may weigh."""
    frame = encode_data([1], [{f"{n}": "v" * 100 for n in range(20)}])
    for size in (len(frame), 64):
        decoder = Decoder(limits(data_octets=1000))
        frames = []
        for at in range(0, len(frame), size):
            frames += decoder.feed(frame[at : at + size])
        assert simple(frames) == [("fault", "data-limit")]
    assert simple(decode(frame, Decoder(limits(data_octets=len(frame)))))[0][0] == "D"


def test_a_long_frame_in_many_pieces_is_gathered_not_copied_each_time():
    """LJ-20: linear in time: each piece is looked at once."""
    decoder = Decoder()
    body = b"x" * 300_000
    octets = encode_json([1], [body])
    frames = decoder.feed(octets[:20])
    assert decoder.incomplete
    for at in range(20, len(octets)):
        frames += decoder.feed(octets[at : at + 1])
    assert simple(frames) == [("J", V2, 1, body)]


def test_a_data_frame_in_pieces_gives_its_pairs_up_to_then_back():
    decoder = Decoder()
    frame = encode_data([1], [{"a": "1", "b": "2"}])
    decoder.feed(frame[:-3])
    assert decoder.incomplete
    assert decoder.held_octets >= len(frame) - 3
    assert simple(decoder.feed(frame[-3:])) == [("D", V1, 1, {"a": "1", "b": "2"})]


# ── Properties ──────────────────────────────────────────────────────────────────────────────────

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
versions = st.sampled_from([V1, V2])
numbers = st.integers(0, 2**32 - 1)
plain_frames = st.one_of(
    st.builds(encode_window, st.integers(0, 16_384), versions),
    st.builds(lambda n, b, v: encode_json([n], [b], v), numbers, st.binary(max_size=40), versions),
    st.builds(
        lambda n, p, v: encode_data([n], [p], v),
        numbers,
        st.dictionaries(texts, texts, max_size=4),
        versions,
    ),
    st.builds(encode_ack, numbers, versions),
)
streams = st.recursive(
    st.lists(plain_frames, max_size=6).map(b"".join),
    lambda inner: st.lists(st.one_of(plain_frames, inner.map(encode_compressed)), max_size=6).map(
        b"".join
    ),
    max_leaves=8,
)


def cut(octets, random):
    while octets:
        size = random.choice((1, 2, 5, 30, 400))
        yield octets[:size]
        octets = octets[size:]


@given(streams, st.randoms(use_true_random=False))
def test_any_stream_gives_the_same_frames_however_it_is_cut_and_sliced(octets, random):
    """LJ-08, LJ-20."""
    whole = simple(decode(octets))
    decoder = Decoder(limits(slice_octets=random.choice((1, 150, 4_000_000))))
    frames = []
    for piece in cut(octets, random):
        frames += decode(piece, decoder)
    assert simple(frames) == whole


@given(streams, st.data())
def test_a_broken_stream_gives_documented_frames_the_same_ones_for_every_split(octets, data):
    """LJ-16, LJ-20: bit flips, cuts, doublings and insertions never escape as exceptions."""
    random = data.draw(st.randoms(use_true_random=False))
    broken = bytearray(octets)
    for _ in range(random.randint(1, 5)):
        at = random.randrange(len(broken) + 1)
        match random.randrange(4):
            case 0 if at < len(broken):
                broken[at] ^= 1 << random.randrange(8)
            case 1:
                del broken[at : at + random.randrange(1, 9)]
            case 2:
                broken[at:at] = broken[at : at + random.randrange(1, 9)]
            case _:
                broken[at:at] = random.choice((b"\xff" * 4, b"\0" * 4, b"2J", b"1D", b"C"))
    small = limits(inflated_octets=5000, json_octets=2000, compressed_octets=2000)
    whole = simple(decode(bytes(broken), Decoder(small)))
    decoder = Decoder(small)
    frames = []
    for piece in cut(bytes(broken), random):
        frames += decode(piece, decoder)
    assert simple(frames) == whole
    assert decoder.held_octets <= 5000 + 2000 + 2000 + 64


def test_the_flat_form_of_events_is_what_it_claims():
    assert flatten([JsonReceived([1, 2], [b"a", b"b"], 22, 2), Fault("x", "y")]) == [
        ("JsonReceived", 1, b"a"),
        ("JsonReceived", 2, b"b"),
        ("fault", "x"),
    ]


def test_a_random_octet_storm_never_raises():
    """LJ-16: 5,000 streams from a seed."""
    source = random.Random(7)
    heads = [b"1D", b"2D", b"2J", b"1J", b"2C", b"2W", b"2A", b"1W"]
    for _ in range(5000):
        octets = b"".join(
            source.choice(heads) + source.randbytes(source.choice((4, 8, 12, 30)))
            for _ in range(source.randrange(1, 5))
        )
        decode(octets)


def test_a_slice_which_ends_with_the_start_of_a_frame_waits_for_octets_only():
    """LJ-13, LJ-20: nothing more can be decoded then, so reading must go on."""
    octets = encode_json([1, 2, 3], [b"x" * 200, b"y" * 200, b"z" * 200])
    for slice_octets in range(1, 700, 7):
        decoder = Decoder(limits(slice_octets=slice_octets))
        frames = []
        for piece in (octets[:430], octets[430:]):
            frames += decoder.feed(piece)
            for _ in range(10):
                if decoder.unfinished:
                    frames += decoder.feed(b"")
            assert not decoder.unfinished
        assert [body for frame in frames for body in frame.bodies] == [
            b"x" * 200,
            b"y" * 200,
            b"z" * 200,
        ]


def test_documents_which_are_above_the_limit_only_together_are_none():
    """LJ-17: the limit is one document's, however many arrive in one read."""
    octets = encode_json([1, 2, 3], [b"x" * 10, b"y" * 9, b"z" * 10])
    frames = Decoder(limits(json_octets=10)).feed(octets)
    assert [len(frame.bodies) for frame in frames] == [3]


def test_a_document_above_its_limit_which_is_all_here_is_a_fault_too():
    """LJ-17: what stands before it in the same read is kept, what stands behind it is not."""
    octets = encode_json([1, 2, 3], [b"x" * 10, b"y" * 11, b"z"])
    for pieces in splits(octets):
        decoder = Decoder(limits(json_octets=10))
        frames = [frame for piece in pieces for frame in decoder.feed(piece)]
        assert [frame.bodies for frame in frames[:-1]] == [[b"x" * 10]]
        assert frames[-1].reason == "json-limit"
        assert not decoder.unfinished


def test_a_document_above_its_limit_keeps_the_windows_before_it_and_no_other():
    """LJ-17, LJ-20."""
    a, above, b = encode_json([1], [b"x"]), encode_json([2], [b"y" * 11]), encode_json([3], [b"z"])
    octets = encode_window(3) + a + encode_window(2) + above + encode_window(5) + b
    for pieces in splits(octets):
        decoder = Decoder(limits(json_octets=10))
        frames = [frame for piece in pieces for frame in decoder.feed(piece)]
        assert simple(frames) == [
            ("W", V2, 3),
            ("J", V2, 1, b"x"),
            ("W", V2, 2),
            ("fault", "json-limit"),
        ]
        assert above.startswith(frames[-1].octets)
