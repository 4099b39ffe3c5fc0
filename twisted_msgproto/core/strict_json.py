"""JSON as peers may send it: bounded, without duplicate keys, without what is not JSON.

The standard library's parser takes NaN, lone surrogates, duplicate keys, integers of any length and
any depth.  :func:`parse_json` takes none of them.  It tells apart what is no JSON at all
(:class:`NotJson`) from JSON which we refuse (:class:`JsonRefused`), because protocols answer the
two differently.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

DEPTH_MAX: Final = 64
"""How deep objects and arrays may stand in each other."""

INTEGER_DIGITS_MAX: Final = 20
"""An integer's digits: those of 2⁶⁴ - 1."""

_STRUCTURE: Final = re.compile(rb'[\[{]|[\]}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """The octets are no JSON text in UTF-8."""


class JsonRefused(ValueError):
    """The octets are JSON, and we refuse it: too large, too deep, a duplicate key, …"""


def parse_json(octets: bytes, octets_max: int, depth_max: int = DEPTH_MAX) -> Any:
    """The value of a JSON text.

    Raises NotJson, or JsonRefused for what is above ``octets_max`` or ``depth_max``, has a key
    twice, an integer of more than :data:`INTEGER_DIGITS_MAX` digits or a lone surrogate.
    """
    if len(octets) > octets_max:
        raise JsonRefused(f"{len(octets)} octets of JSON are above the limit of {octets_max}")
    if octets.count(b"[") + octets.count(b"{") > depth_max:
        _check_depth(octets, depth_max)
    try:
        value = json.loads(
            octets.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_constant,
            parse_int=_bounded_integer,
        )
    except (JsonRefused, NotJson):
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {error}") from None
    if _SURROGATE.search(octets):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise JsonRefused("a lone surrogate in a string") from None
    return value


def _check_depth(octets: bytes, depth_max: int) -> None:
    depth = 0
    for found in _STRUCTURE.finditer(octets):
        first = octets[found.start()]
        if first in b"[{":
            depth += 1
            if depth > depth_max:
                raise JsonRefused(f"deeper than {depth_max}")
        elif first in b"]}":
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
