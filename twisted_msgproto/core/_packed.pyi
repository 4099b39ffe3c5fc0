"""The compiled form of a loop of packed.py; not there where it could not be built."""

from array import array

FORM: int

def shift(bounds: array[int], by: int, /) -> bytes: ...
