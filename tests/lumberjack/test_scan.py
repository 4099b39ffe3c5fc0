"""The compiled form of the loops which find frames: what only it can get wrong.

That both forms read the same is said in ``test_wire.py`` and ``tests/fuzz``.
"""

import gc
import mmap
import sys
import tracemalloc

import pytest

from tests.lumberjack.frames import encode_data
from twisted_msgproto.lumberjack import Reader
from twisted_msgproto.lumberjack.wire import scan

needs_compiled = pytest.mark.skipif(
    not scan.COMPILED,
    reason="the compiled scan was not built: pip install -e . with a C compiler at hand",
)


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
def test_positions_outside_of_the_octets_are_a_programmer_s_fault(name, octets, position, stop):
    from twisted_msgproto.lumberjack import _scan

    more = (1,) * (3 if name == "json_columns" else 6)
    with pytest.raises(ValueError, match="outside"):
        getattr(_scan, name)(octets, position, stop, *more)
    with pytest.raises(TypeError):
        getattr(_scan, name)("text", 0, 0, *more)


@needs_compiled
@pytest.mark.parametrize("name", ["json_columns", "data_columns"])
@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="nobody has so many octets on such a machine")
def test_octets_whose_places_need_more_than_31_bits_are_a_programmer_s_fault(name):
    """Bounds are 31-bit numbers; one that had wrapped would make Arrow read anywhere."""
    from twisted_msgproto.lumberjack import _scan

    more = (1,) * (3 if name == "json_columns" else 6)
    octets = mmap.mmap(-1, (1 << 31) + 12)  # none of it is touched
    with octets, pytest.raises(OverflowError, match="31"):
        getattr(_scan, name)(octets, 1 << 31, len(octets), *more)


def test_the_reader_uses_the_compiled_form_where_there_is_one():
    (event,) = Reader().receive(encode_data([1], [{"a": "b"}]), 0.0)
    assert (type(event.pairs) is list) is not scan.COMPILED


@pytest.mark.usefixtures("form")
def test_only_few_keys_are_held_for_the_next_frame__NB_02():
    """NB-02: a thousand keys of 1 KiB are 2 MB, of a connection that may be silent for hours."""
    frame = encode_data([1], [{f"{n:01000}": "v" for n in range(1000)}])
    Reader().receive(frame, 0.0)
    tracemalloc.start()
    try:
        readers = [Reader() for _ in range(5)]
        for reader in readers:
            assert reader.receive(frame, 0.0)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < len(readers) * 50_000
    finally:
        tracemalloc.stop()
