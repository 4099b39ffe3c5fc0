"""The compiled forms of loops of packed.py; not there where they could not be built."""

from array import array
from collections.abc import Sequence

FORM: int

def spans(pieces: Sequence[bytes], /) -> tuple[bytes, bytes] | None: ...
def shift(bounds: array[int], by: int, /) -> bytes: ...
