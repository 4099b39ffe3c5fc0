"""Loops which are also there in a compiled form: which form is used, and that both say the same."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from twisted_msgproto.core import packed
from twisted_msgproto.core.compiled import compiled
from twisted_msgproto.lumberjack.wire import scan

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
        ("twisted_msgproto.lumberjack._scan", "twisted_msgproto.lumberjack.wire.scan", scan.FORM),
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


@pytest.mark.parametrize(
    ("source", "form"), [("core/_packed.c", packed.FORM), ("lumberjack/_scan.c", scan.FORM)]
)
def test_both_forms_have_the_same_number(source: str, form: int) -> None:
    """With another number the compiled form is never used, and what tests it is skipped."""
    text = (Path(packed.__file__).parents[1] / source).read_text()
    assert f"enum {{ FORM = {form} }};" in text


def test_what_was_not_built_is_none() -> None:
    assert compiled("twisted_msgproto.core._nothing", 1) is None


def test_the_columns_use_the_compiled_form_where_there_is_one() -> None:
    form = "compiled" if packed.COMPILED else "python"
    assert packed.shift is loop("shift", form)
    assert packed.spans is loop("spans", form)


# ── spans ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", FORMS)
def test_spans_are_the_bounds_of_the_pieces_and_their_octets(form: str) -> None:
    spans = loop("spans", form)
    assert spans([b"ab", b"", b"cde"]) == (array("i", [0, 2, 2, 5]).tobytes(), b"abcde")
    assert spans([]) == (array("i", [0]).tobytes(), b"")
    assert spans([b""]) == (array("i", [0, 0]).tobytes(), b"")


class Octets(bytes):
    """Is bytes of another name, as a programmer may give."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "pieces",
    [
        (b"a", b"bc"),
        [b"a", bytearray(b"bc")],
        [memoryview(b"a"), b"bc"],
        [Octets(b"a"), b"bc"],
    ],
    ids=["a tuple", "a bytearray", "a memoryview", "a class of bytes"],
)
def test_octets_of_every_kind_are_spans(form: str, pieces: Any) -> None:
    assert loop("spans", form)(pieces) == (array("i", [0, 1, 3]).tobytes(), b"abc")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "pieces",
    [[b"a", None], [None], ["a"], [7], 7, None, [b"a", memoryview(array("i", [1, 2]))]],
    ids=["None among octets", "None", "text", "a number", "no list", "nothing", "wide memory"],
)
def test_spans_refuse_what_is_no_octets(form: str, pieces: Any) -> None:
    with pytest.raises(TypeError):
        loop("spans", form)(pieces)


@pytest.mark.parametrize("form", FORMS)
def test_spans_refuse_what_is_beyond_31_bits(form: str) -> None:
    half = bytes(1 << 30)  # nobody reads it: no memory is taken for it
    with pytest.raises(OverflowError):
        loop("spans", form)([half, half])


@needs_compiled
def test_both_forms_say_the_same_of_any_pieces() -> None:
    source = random.Random(11)
    for _ in range(300):
        pieces = [source.randbytes(source.randrange(40)) for _ in range(source.randrange(99))]
        assert loop("spans", "compiled")(pieces) == loop("spans", "python")(pieces)


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


@needs_compiled
def test_both_forms_say_the_same_of_any_bounds() -> None:
    source = random.Random(7)
    for _ in range(300):
        bounds = array("i", [source.getrandbits(20) for _ in range(source.randrange(99))])
        by = source.randrange(-(1 << 20), 1 << 20)
        assert loop("shift", "compiled")(bounds, by) == loop("shift", "python")(bounds, by)


@needs_compiled
def test_bounds_in_a_buffer_which_is_not_aligned_are_read_all_the_same() -> None:
    bounds = memoryview(b"?" + array("i", [1, 3, 6]).tobytes())[1:]
    assert array("i", loop("shift", "compiled")(bounds, 1)) == array("i", [2, 4, 7])
    with pytest.raises(TypeError):
        loop("shift", "compiled")("text", 1)
