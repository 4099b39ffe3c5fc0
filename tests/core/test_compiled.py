"""Loops which are also there in a compiled form: which form is used, and that both say the same."""

from __future__ import annotations

import mmap
import random
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from tests.tools.packing import rows
from twisted_msgproto.core import packed
from twisted_msgproto.core.compiled import compiled
from twisted_msgproto.core.packed import Rows
from twisted_msgproto.lumberjack import scan

needs_compiled = pytest.mark.skipif(
    not packed.COMPILED,
    reason="the compiled loops were not built: pip install -e . with a C compiler at hand",
)
FORMS = [
    pytest.param("python", id="python"),
    pytest.param("compiled", id="compiled", marks=needs_compiled),
]


def loop(name: str, form: str) -> Any:
    return getattr(packed, f"{name}_{form}")


# ── which form is used ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("module", "user", "form"),
    [
        ("twisted_msgproto.core._packed", "twisted_msgproto.core.packed", packed.FORM),
        ("twisted_msgproto.lumberjack._scan", "twisted_msgproto.lumberjack.scan", scan.FORM),
    ],
)
@pytest.mark.parametrize("older", [None, 1, 0])
def test_a_compiled_form_of_another_version_is_not_used(
    module: str, user: str, form: int, older: int | None
) -> None:
    """One may be left in the tree where an update could not be compiled."""
    code = (
        "import sys, types, importlib\n"
        "left = types.ModuleType('left')\n"
        "if sys.argv[3] != 'None':\n"
        "    left.FORM = int(sys.argv[3])\n"
        "sys.modules[sys.argv[1]] = left\n"
        "print(importlib.import_module(sys.argv[2]).COMPILED)\n"
    )
    number = None if older is None else form - older
    said = subprocess.run(
        [sys.executable, "-c", code, module, user, str(number)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    if older == 0:  # the right number: it is used, and lacks what it is to have only when called
        assert said.stdout.strip() == "True", said.stderr
    else:
        assert said.stdout.strip() == "False", said.stderr


def test_what_was_not_built_is_none() -> None:
    assert compiled("twisted_msgproto.core._nothing", 1) is None


def test_the_columns_use_the_compiled_form_where_there_is_one() -> None:
    form = "compiled" if packed.COMPILED else "python"
    for name in ("cut", "numbers", "shift"):
        assert getattr(packed, name) is loop(name, form)


# ── cut ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", FORMS)
def test_cut_leaves_nothing_but_the_values(form: str) -> None:
    given = rows([b"12a", b"12", b"12ccc"], b"before")
    alone = loop("cut", form)(given, 2)
    assert (alone.octets, alone.bounds) == (b"accc", array("i", [0, 1, 1, 4]))
    nothing = loop("cut", form)(rows([], b"before"), 2)
    assert (nothing.octets, nothing.bounds) == (b"", array("i", [0]))


@pytest.mark.parametrize("form", FORMS)
def test_cut_refuses_a_row_which_is_shorter_than_what_is_left_out(form: str) -> None:
    with pytest.raises(ValueError, match="bounds"):
        loop("cut", form)(rows([b"123", b"1", b"123"]), 2)


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_unsigned_and_in_network_order(form: str) -> None:
    values = [0, 1, 0x01020304, 2**31, 2**32 - 1]
    given = rows([b"h" + struct.pack(">I", value) + b"rest" for value in values], b"??")
    assert array("q", loop("numbers", form)(given, 1)).tolist() == values
    assert loop("numbers", form)(rows([]), 1) == b""


@pytest.mark.parametrize("form", FORMS)
def test_numbers_refuses_a_row_which_ends_before_its_number(form: str) -> None:
    with pytest.raises(ValueError, match="bounds"):
        loop("numbers", form)(rows([b"h1234", b"h123", b"h1234"]), 1)


# ── shift ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", FORMS)
def test_shift_moves_each_bound(form: str) -> None:
    shift = loop("shift", form)
    assert array("i", shift(array("i", [5, 5, 9]), -5)) == array("i", [0, 0, 4])
    assert array("i", shift(array("i", [0]), 2**31 - 1)) == array("i", [2**31 - 1])
    assert shift(array("i"), 7) == b""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by", [2**31 - 1, -(2**31) - 2, 2**62])
def test_shift_refuses_what_is_beyond_31_bits(form: str, by: int) -> None:
    with pytest.raises(OverflowError):
        loop("shift", form)(array("i", [1]), by)


# ── both forms, and what only the compiled one could get wrong ──────────────────────────────────


@needs_compiled
def test_both_forms_say_the_same_of_any_rows() -> None:
    source = random.Random(7)
    for _ in range(300):
        texts = [
            source.randbytes(source.choice((4, 5, 9, 300))) for _ in range(source.randrange(9))
        ]
        given = rows(texts, source.randbytes(source.randrange(9)))
        assert loop("cut", "compiled")(given, 3) == loop("cut", "python")(given, 3)
        assert loop("numbers", "compiled")(given, 0) == loop("numbers", "python")(given, 0)
        by = source.randrange(-9, 9)
        assert loop("shift", "compiled")(given.bounds, by) == loop("shift", "python")(
            given.bounds, by
        )


@needs_compiled
@pytest.mark.parametrize("name", ["cut", "numbers"])
@pytest.mark.parametrize(
    "bounds",
    [
        [],
        [-1, 3],
        [-8, -2],
        [0, 11],
        [0, 2**31 - 1],
        [4, 0],
        [0, 8, 4],
        [0, 11, 10],
        [0, -(2**31), 10],
    ],
)
def test_no_octet_outside_of_the_buffer_is_read(name: str, bounds: list[int]) -> None:
    from twisted_msgproto.core import _packed

    with pytest.raises(ValueError, match="bounds"):
        getattr(_packed, name)(b"0123456789", array("i", bounds), 0)


@needs_compiled
@pytest.mark.parametrize("place", [-1, sys.maxsize, -sys.maxsize])
def test_places_which_no_row_has_are_a_programmer_s_fault(place: int) -> None:
    from twisted_msgproto.core import _packed

    for function in (_packed.cut, _packed.numbers):
        with pytest.raises(ValueError, match=r"bounds|place"):
            function(b"0123456789", array("i", [0, 10]), place)
        with pytest.raises(TypeError):
            function("text", array("i", [0]), 0)  # type: ignore[arg-type]


@needs_compiled
def test_bounds_in_a_buffer_which_is_not_aligned_are_read_all_the_same() -> None:
    bounds = memoryview(b"?" + array("i", [1, 3, 6]).tobytes())[1:]
    given = Rows(b"?aabbb", bounds)  # type: ignore[arg-type]
    assert loop("cut", "compiled")(given, 1).octets == b"abb"


@needs_compiled
@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="nobody has so many octets on such a machine")
def test_a_buffer_above_31_bits_is_read_as_far_as_bounds_reach() -> None:
    from twisted_msgproto.core import _packed

    last = 2**31 - 1
    with mmap.mmap(-1, (1 << 31) + 12) as octets:  # none of it is touched but the last octets
        octets[last - 4 : last] = b"\0\0\1\0"
        bounds = array("i", [last - 4, last])
        assert _packed.numbers(octets, bounds, 0) == array("q", [256]).tobytes()  # type: ignore[arg-type]
        assert _packed.cut(octets, bounds, 0)[0] == b"\0\0\1\0"  # type: ignore[arg-type]
