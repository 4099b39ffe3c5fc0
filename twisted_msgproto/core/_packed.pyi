"""The compiled form of two loops of packed.py; not there where it could not be built."""

from array import array

FORM: int

def cut(octets: bytes, bounds: array[int], skip: int, /) -> tuple[bytes, bytes]: ...
def numbers(octets: bytes, bounds: array[int], at: int, /) -> bytes: ...
