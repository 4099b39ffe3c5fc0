"""JSON as peers may send it: bounded, without duplicate keys, without what is not JSON.

The standard library's parser takes NaN, lone surrogates, duplicate keys, numbers of any size and
any depth.  :func:`parse_json` takes none of them.  It tells apart what is no JSON at all
(:class:`NotJson`) from JSON which we refuse (:class:`JsonRefused`), because protocols answer the
two differently.
"""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Any, Final, NoReturn

DEPTH_MAX: Final = 64
"""How deep objects and arrays may stand in each other."""

CHECKED_DEPTH_MAX: Final = 512
"""The same for documents which are only checked: :func:`check_json`."""

INTEGER_DIGITS_MAX: Final = 4000
"""An integer's digits: reading them takes quadratic time."""

_STRUCTURE: Final = re.compile(r'[\[{]|[\]}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """The octets are no JSON text in UTF-8."""


class JsonRefused(ValueError):
    """The octets are JSON, and we refuse it: too large, too deep, a duplicate key, …"""


def parse_json(source: bytes | str, octets_max: int, depth_max: int = DEPTH_MAX) -> Any:
    """The value of a JSON text, which is octets in UTF-8 or has been decoded already.

    Raises NotJson, or JsonRefused for what is above ``octets_max`` (of decoded text: characters) or
    ``depth_max``, has a key twice, an integer of more than :data:`INTEGER_DIGITS_MAX` digits, a
    number too large for a float, or a lone surrogate.
    """
    if len(source) > octets_max:
        raise JsonRefused(f"{len(source)} octets of JSON are above the limit of {octets_max}")
    try:
        text = source if isinstance(source, str) else source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"not JSON: {error}") from None
    if text.count("[") + text.count("{") > depth_max:
        _check_depth(text, depth_max)
    try:
        value = _DECODER.decode(text)
    except (JsonRefused, NotJson):
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {error}") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise JsonRefused("a lone surrogate in a string") from None
    return value


def check_json(octets: bytes, depth_max: int = CHECKED_DEPTH_MAX) -> None:
    """Whether octets are a JSON text, which somebody else will read.

    Numbers may have any size and keys may stand twice: that is JSON.  Raises NotJson for what is
    none, JsonRefused for what is deeper than ``depth_max``.  No number and no object is made.
    """
    try:
        text = octets.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"not JSON: {error}") from None
    if text.count("[") + text.count("{") > depth_max:
        _check_depth(text, depth_max)
    try:
        _CHECKER.decode(text)
    except NotJson:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {error}") from None


def _check_depth(text: str, depth_max: int) -> None:
    depth = 0
    for found in _STRUCTURE.finditer(text):
        first = text[found.start()]
        if first in "[{":
            depth += 1
            if depth > depth_max:
                raise JsonRefused(f"deeper than {depth_max}")
        elif first in "]}":
            depth -= 1


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
    object_pairs_hook=_without_duplicates,
    parse_constant=_no_constant,
    parse_int=_bounded_integer,
    parse_float=_finite,
)

_CHECKER: Final = json.JSONDecoder(
    object_pairs_hook=len, parse_constant=_no_constant, parse_int=len, parse_float=len
)
"""It makes nothing of objects and numbers."""
