"""Lines and end marks, strict and lenient, at every border of what is here (SA-26, SA-28)."""

from __future__ import annotations

import pytest

from twisted_msgproto.sabc.wire.lines import LENIENT, STRICT

NOT_YET = (-1, -1)


@pytest.mark.parametrize(
    ("octets", "start", "strict", "lenient"),
    [
        (b"", 0, NOT_YET, NOT_YET),
        (b"ab", 0, NOT_YET, NOT_YET),
        (b"ab\r", 0, NOT_YET, NOT_YET),
        (b"ab\r\nc", 0, (2, 4), (2, 4)),
        (b"ab\nc", 0, NOT_YET, (2, 3)),
        (b"\r\nc", 0, (0, 2), (0, 2)),
        (b"\nc", 0, NOT_YET, (0, 1)),
        (b"a\r\n", 2, NOT_YET, (2, 3)),  # the CR is before the line
        (b"a\r\nb\r\n", 3, (4, 6), (4, 6)),
    ],
)
def test_a_line_ends_at_its_line_end__SA_28(
    octets: bytes, start: int, strict: tuple[int, int], lenient: tuple[int, int]
) -> None:
    assert STRICT.next(bytearray(octets), start) == strict
    assert LENIENT.next(bytearray(octets), start) == lenient


@pytest.mark.parametrize(
    ("octets", "start", "floor", "strict", "lenient"),
    [
        (b"\r\na", 2, 0, True, True),
        (b"\r\na", 2, 1, False, True),
        (b"\r\na", 2, 2, False, False),
        (b"x\na", 2, 0, False, True),
        (b"\na", 1, 0, False, True),
        (b"\na", 1, 1, False, False),
        (b"a", 0, 0, False, False),
        (b"a\n", 0, 0, False, False),
        (b"\r\r\na", 3, 1, True, True),
        (b"xy", 1, 0, False, False),
    ],
)
def test_a_line_begins_behind_a_line_end_that_is_not_before_the_floor__SA_26(
    octets: bytes, start: int, floor: int, strict: bool, lenient: bool
) -> None:
    assert STRICT.begins(bytearray(octets), start, floor) is strict
    assert LENIENT.begins(bytearray(octets), start, floor) is lenient


@pytest.mark.parametrize(
    ("octets", "end", "floor", "strict", "lenient"),
    [
        (b"\r\nab", 4, 0, 2, 2),
        (b"\r\nab", 4, 1, -1, 2),
        (b"\nab", 3, 0, -1, 1),
        (b"ab", 2, 0, -1, -1),
        (b"a\r\nb\r\nc", 7, 0, 6, 6),
        (b"a\r\nb\r\nc", 5, 0, 3, 3),
        (b"\r\n", 2, 0, 2, 2),
        (b"\r\n", 1, 0, -1, -1),
    ],
)
def test_a_line_begins_behind_the_line_end_before_it__SA_26(
    octets: bytes, end: int, floor: int, strict: int, lenient: int
) -> None:
    assert STRICT.begin(bytearray(octets), end, floor) == strict
    assert LENIENT.begin(bytearray(octets), end, floor) == lenient


@pytest.mark.parametrize(
    ("octets", "start", "strict", "lenient"),
    [
        (b"a\r\nb", 3, 1, 1),
        (b"ab\nc", 3, 1, 2),
        (b"\r\nb", 2, 0, 0),
        (b"\nb\r", 1, -1, 0),  # the last octet is not the one before the first
    ],
)
def test_a_line_ends_before_the_next_one__SA_26(
    octets: bytes, start: int, strict: int, lenient: int
) -> None:
    assert STRICT.end_before(bytearray(octets), start) == strict
    assert LENIENT.end_before(bytearray(octets), start) == lenient


@pytest.mark.parametrize(
    ("octets", "start", "strict", "lenient"),
    [
        (b"\0", 0, 1, 1),
        (b"\r\n\0", 0, 3, 3),
        (b"\n\0", 0, 0, 2),
        (b"x\0", 0, 0, 0),
        (b"x\0", 1, 1, 1),
        (b"x\r\n\0", 1, 3, 3),
        (b"\r\0", 0, 0, 0),
        (b"", 0, 0, 0),
    ],
)
def test_an_end_mark_stands_behind_the_blank_line__SA_26(
    octets: bytes, start: int, strict: int, lenient: int
) -> None:
    assert STRICT.end_at_start(bytearray(octets), start) == strict
    assert LENIENT.end_at_start(bytearray(octets), start) == lenient


@pytest.mark.parametrize(
    ("octets", "start", "strict", "lenient"),
    [
        (b"ab\r\n\r\n\0c", 0, (2, 7), (2, 7)),
        (b"ab\n\n\0c", 0, NOT_YET, (2, 5)),
        (b"ab\r\n\n\0c", 0, NOT_YET, (2, 6)),
        (b"ab\n\r\n\0c", 0, NOT_YET, (2, 6)),
        (b"\r\n\r\n\0", 1, NOT_YET, (1, 5)),
        (b"\r\n\r\n", 0, NOT_YET, NOT_YET),
    ],
)
def test_an_end_mark_is_found_in_a_body__SA_26__SA_28(
    octets: bytes, start: int, strict: tuple[int, int], lenient: tuple[int, int]
) -> None:
    assert STRICT.end_in(bytearray(octets), start) == strict
    assert LENIENT.end_in(bytearray(octets), start) == lenient


@pytest.mark.parametrize(
    ("octets", "empty", "strict", "lenient"),
    [
        (b"", False, None, None),
        (b"\r", False, None, None),
        (b"\r\n\r\n", False, None, None),
        (b"\r\n\r\n\0", False, 5, 5),
        (b"\r\n\r\n\0x", False, 5, 5),
        (b"\n", False, 0, None),
        (b"\n\n\0", False, 0, 3),
        (b"\r\n\n\0", False, 0, 4),
        (b"\n\r\n\0", False, 0, 4),
        (b"\0", False, 0, 0),
        (b"\0", True, 1, 1),
        (b"\r\n\r\n\0", True, 5, 5),
        (b"M", True, 0, 0),
        (b"\r\nM", False, 0, 0),
    ],
)
def test_an_end_mark_is_here_or_not_or_not_known_yet__SA_26__SA_28(
    octets: bytes, empty: bool, strict: int | None, lenient: int | None
) -> None:
    for before in (b"", b"\r\n\0"):
        buffer = bytearray(before + octets)
        assert STRICT.end_here(buffer, len(before), empty) == strict
        assert LENIENT.end_here(buffer, len(before), empty) == lenient
