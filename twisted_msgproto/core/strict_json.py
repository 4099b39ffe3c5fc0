"""Parse JSON from peers strictly: bounded, without duplicate keys, and nothing that is not JSON.

What is no JSON at all (:class:`NotJson`) is told apart from JSON that we refuse
(:class:`JsonRefused`), because protocols answer the two differently.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate, count
from math import isinf
from operator import sub
from typing import Any, Final, NoReturn

DEPTH_MAX: Final = 64

CHECKED_DEPTH_MAX: Final = 512

INTEGER_DIGITS_MAX: Final = 4000
"""Integers may have this many digits, because reading them takes quadratic time."""

_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)
_OTHERS: Final = bytes(set(range(128)) - set(b"[]{}"))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\2\2\0\0")  # less one for each, they open and close
_DIGITS: Final = "0123456789"
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_NO_LONE_SURROGATE: Final = re.compile(
    r"(?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F]))*+\Z", re.DOTALL
)  # in a text that is JSON: the second half of each pair follows its first half


class NotJson(ValueError):
    """The bytes are no JSON text in UTF-8."""


class JsonRefused(ValueError):
    """The bytes are JSON, and we refuse it: too large, too deep, a duplicate key, …"""


def parse_json(
    source: bytes | str,
    bytes_max: int,
    depth_max: int = DEPTH_MAX,
    containers_max: int | None = None,
) -> Any:
    """Return the value of a JSON text, given as bytes in UTF-8 or already decoded.

    Raises NotJson, or JsonRefused above the bounds (``bytes_max`` of decoded text: characters) and
    for a key twice, an integer of more than :data:`INTEGER_DIGITS_MAX` digits, a number too large
    for a float, or a lone surrogate.

    Objects and arrays take most of the time: a megabyte of nothing else takes a tenth of a second,
    a megabyte with 10,000 of them and otherwise numbers or texts a fifth of that.
    """
    if len(source) > bytes_max:
        raise JsonRefused(f"{len(source)} bytes of JSON are above the limit of {bytes_max}")
    try:
        text = source if isinstance(source, str) else source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"not JSON: {error}") from None
    opened = text.count("[") + text.count("{")
    if opened > depth_max or (containers_max is not None and opened > containers_max):
        _check_brackets(text, depth_max, containers_max)
    try:
        value = (_CAREFUL_DECODER if _has_long_integer(text) else _DECODER).decode(text)
    except (JsonRefused, NotJson):
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {error}") from None
    if _SURROGATE.search(text) and not _NO_LONE_SURROGATE.match(text):
        raise JsonRefused("a lone surrogate in a string")
    return value


def check_json(data: bytes, depth_max: int = CHECKED_DEPTH_MAX) -> None:
    """Numbers may have any size and keys may stand twice: that is JSON.

    Raises NotJson, or JsonRefused for what is deeper than ``depth_max``.  A megabyte of nothing
    but brackets takes up to a fifth of a second.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"not JSON: {error}") from None
    if text.count("[") + text.count("{") > depth_max:
        _check_brackets(text, depth_max)
    try:
        _CHECKER.decode(text)
    except NotJson:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {error}") from None


def _check_brackets(text: str, depth_max: int, containers_max: int | None = None) -> None:
    steps = _STRING.sub("", text).encode("ascii", "ignore").translate(_STEPS, _OTHERS)
    if max(map(sub, accumulate(steps), count(1)), default=0) > depth_max:
        raise JsonRefused(f"deeper than {depth_max}")
    if containers_max is not None and steps.count(2) > containers_max:
        raise JsonRefused(f"more than {containers_max} objects and arrays")


def _has_long_integer(text: str) -> bool:
    """Even in a string: such a row covers at least one of the places that are looked at."""
    step = INTEGER_DIGITS_MAX
    for place in range(step, len(text), step):
        if text[place] in _DIGITS:
            before = text[place - step : place]
            after = text[place : place + step + 1]
            digits = len(before) - len(before.rstrip(_DIGITS))
            digits += len(after) - len(after.lstrip(_DIGITS))
            if digits > step:
                return True
    return False


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise JsonRefused("a key stands twice in an object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")


def _bounded_integer(digits: str) -> int:
    if len(digits.lstrip("-")) > INTEGER_DIGITS_MAX:
        raise JsonRefused(f"an integer of more than {INTEGER_DIGITS_MAX} digits")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise JsonRefused("a number too large")
    return number


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_without_duplicates, parse_constant=_no_constant, parse_float=_finite
)

_CAREFUL_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_without_duplicates,
    parse_constant=_no_constant,
    parse_int=_bounded_integer,
    parse_float=_finite,
)
"""Like :data:`_DECODER`, but it also counts the digits of each integer, and takes twice as long."""

_CHECKER: Final = json.JSONDecoder(
    object_pairs_hook=len, parse_constant=_no_constant, parse_int=len, parse_float=len
)
