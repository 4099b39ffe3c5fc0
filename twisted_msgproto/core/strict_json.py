"""Parse JSON from peers strictly: bounded, without duplicate keys, and nothing that is not JSON.

What is no JSON at all (:class:`NotJson`) is told apart from JSON that we refuse
(:class:`JsonRefused`), because protocols answer the two differently.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from math import isinf
from typing import Any, Final, NoReturn

DEPTH_MAX: Final = 64

CHECKED_DEPTH_MAX: Final = 512

CHECKED_AT_ONCE_BYTES: Final = 65_536
"""Up to this size a document is checked by the standard library, in a few milliseconds."""

CHUNK_BYTES: Final = 4096
""":class:`JsonCheck` reads this much before it checks again how much work it may still do."""

STEP_BYTES: Final = 24
""":class:`JsonCheck` reads about this much in a microsecond, where nothing stops it."""

RUN_LEVELS: Final = 2

INTEGER_DIGITS_MAX: Final = 4000
"""Integers may have this many digits, because reading them takes quadratic time."""

_BRACKET: Final = re.compile(
    r'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+"?+)*+([\[\]{}]|\Z)', re.DOTALL
)  # the next bracket outside of strings, or the end: no part of a text is read twice
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

    Raises NotJson, or JsonRefused for what is above ``bytes_max`` (of decoded text: characters) or
    ``depth_max``, has more objects and arrays than ``containers_max``, a key twice, an integer of
    more than :data:`INTEGER_DIGITS_MAX` digits, a number too large for a float, or a lone
    surrogate.

    Objects and arrays take most of the time: a megabyte of nothing else takes a sixth of a second,
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
    """Check that bytes are a JSON text that another program can read.

    Numbers may have any size and keys may stand twice: that is JSON.  Raises NotJson for what is
    none, JsonRefused for what is deeper than ``depth_max``.  A large document takes long:
    :class:`JsonCheck` checks it in slices.
    """
    if len(data) > CHECKED_AT_ONCE_BYTES:
        check = JsonCheck(data, depth_max)
        while not check.done:
            check.go_on(1)
        return
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
    depth = containers = 0
    for found in _BRACKET.finditer(text):
        if found[1] in ("[", "{"):
            depth += 1
            containers += 1
            if depth > depth_max:
                raise JsonRefused(f"deeper than {depth_max}")
            if containers_max is not None and containers > containers_max:
                raise JsonRefused(f"more than {containers_max} objects and arrays")
        else:
            depth -= 1


def _has_long_integer(text: str) -> bool:
    """Return whether more digits stand in a row than an integer may have, even in a string: such a
    row covers at least one of the places that are looked at.
    """
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

# ── in slices ───────────────────────────────────────────────────────────────────────────────────

_SPACE: Final = r"[ \t\n\r]*+"
_IN_STRING: Final = r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
_STRING: Final = f'"{_IN_STRING}"'
_NUMBER: Final = r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+"
_SCALAR: Final = f"(?:{_STRING}|{_NUMBER}|true|false|null)"


def _member(value: str) -> str:
    return f"{_STRING}{_SPACE}:{_SPACE}{value}"


def _listed(item: str) -> str:
    return f"{_SPACE}(?:{item}{_SPACE}(?:,{_SPACE}{item}{_SPACE})*+)?+"


def _run(item: str) -> re.Pattern[str]:
    return re.compile(f"(?:{_SPACE}{item}{_SPACE},)*+")


# No part of these patterns can match one text in two ways, so nothing is tried again and again.
def _holding(value: str) -> str:
    return rf"(?:{_SCALAR}|\[{_listed(value)}\]|\{{{_listed(_member(value))}\}})"


@cache
def _runs(levels: int) -> Mapping[str, re.Pattern[str]]:
    value = _SCALAR
    for _ in range(levels):
        value = _holding(value)
    return {"[": _run(value), "{": _run(_member(value))}


_TOKEN: Final = re.compile(rf'{_SPACE}(?:([\[\]{{}},:"])|({_NUMBER})|true|false|null)')
_BLANK: Final = re.compile(rf"{_SPACE}\Z")
_STRING_REST: Final = re.compile(_IN_STRING)
_CUT_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CUT_WORD: Final = re.compile(
    rf"{_SPACE}(?:t|tr|tru|f|fa|fal|fals|n|nu|nul"
    r"|-|-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?+(?:[eE][+-]?+[0-9]*+)?+)\Z"
)
_MORE_DIGITS: Final = re.compile(r"(?<=[0-9])[0-9]++")
_CLOSING: Final = {"]": "[", "}": "{"}


class _Place(Enum):
    VALUE = auto()
    FIRST_VALUE = auto()  # or the end of the array
    KEY = auto()
    FIRST_KEY = auto()  # or the end of the object
    COLON = auto()
    AFTER_VALUE = auto()  # a comma, or the end of what this stands in
    END = auto()


class JsonCheck:
    """A check in slices that bytes are a JSON text; it says the same as :func:`check_json`.

    Nothing is built: it holds one chunk of text and the list of open containers.

    Attributes:
        done: the bytes are JSON to their end.
    """

    __slots__ = (
        "_at",
        "_bytes",
        "_chunk",
        "_decode",
        "_depth_max",
        "_inside",
        "_place",
        "_quoted",
        "_rest",
        "done",
    )

    def __init__(
        self, data: bytes, depth_max: int = CHECKED_DEPTH_MAX, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.done: bool = False
        self._bytes = data
        self._at = 0  # bytes that were decoded
        self._chunk = chunk_bytes
        self._depth_max = depth_max
        self._decode = getincrementaldecoder("utf-8")().decode
        self._inside: list[str] = []  # the brackets that are open, outermost first
        self._place = _Place.VALUE
        self._quoted = False  # in the middle of a string
        self._rest = ""  # the begin of a token that the chunk has cut

    def go_on(self, work: int) -> int:
        """Continue until ``work`` is spent or everything is checked; return what is left of
        ``work``.

        ``work`` is in steps of about a microsecond: a token checked by itself is one, and so are
        :data:`STEP_BYTES` bytes of any kind.  The last chunk may use more than was left.  Raises
        as :func:`check_json` does.
        """
        while work > 0 and not self.done:
            chunk = self._bytes[self._at : self._at + self._chunk]
            self._at += self._chunk
            last = self._at >= len(self._bytes)
            try:
                text = self._rest + self._decode(chunk, last)
            except UnicodeDecodeError as error:
                raise NotJson(f"not JSON: {error.reason}") from None
            work -= self._read(text, last) + len(chunk) // STEP_BYTES + 1
            self.done = last
        return work

    def _read(self, text: str, last: bool) -> int:
        self._rest = ""
        inside = self._inside
        tokens = at = 0
        while True:
            tokens += 1
            if self._quoted:
                at = _STRING_REST.match(text, at).end()  # type: ignore[union-attr]
                if not text.startswith('"', at):
                    if not last and (at == len(text) or _CUT_ESCAPE.match(text, at)):
                        self._rest = text[at:]
                        return tokens
                    raise self._wrong(text, at)
                self._quoted = False
                at += 1
            elif inside and (
                (self._place in _IN_ARRAY and inside[-1] == "[") or self._place in _IN_OBJECT
            ):
                runs = _runs(min(RUN_LEVELS, self._depth_max - len(inside)))
                begin, at = at, runs[inside[-1]].match(text, at).end()  # type: ignore[union-attr]
                if at > begin:
                    self._place = _Place.VALUE if inside[-1] == "[" else _Place.KEY
            found = _TOKEN.match(text, at)
            if not last and (
                _CUT_WORD.match(text, at)
                if found is None
                else found.lastindex == 2 and _CUT_WORD.match(text, at)
            ):
                # A number may have any length: of its digits in a row the first says enough.
                self._rest = _MORE_DIGITS.sub("", text[at:])
                return tokens
            if found is None:
                if not _BLANK.match(text, at) or (last and self._place is not _Place.END):
                    raise self._wrong(text, at)
                return tokens
            at = found.end()
            self._token(found[1] or "", text, at)

    def _token(self, mark: str, text: str, at: int) -> None:
        place, inside = self._place, self._inside
        if mark in _CLOSING:
            closes = place is _Place.AFTER_VALUE or place is _FIRST.get(_CLOSING[mark])
            if not (closes and inside and inside.pop() == _CLOSING[mark]):
                raise self._wrong(text, at)
            self._place = _Place.AFTER_VALUE if inside else _Place.END
        elif mark == ",":
            if place is not _Place.AFTER_VALUE:
                raise self._wrong(text, at)
            self._place = _Place.VALUE if inside[-1] == "[" else _Place.KEY
        elif mark == ":":
            if place is not _Place.COLON:
                raise self._wrong(text, at)
            self._place = _Place.VALUE
        elif mark == '"' and place in _IN_OBJECT:
            self._quoted = True
            self._place = _Place.COLON
        elif place not in _IN_ARRAY:
            raise self._wrong(text, at)
        elif mark in _FIRST:
            inside.append(mark)
            if len(inside) > self._depth_max:
                raise JsonRefused(f"deeper than {self._depth_max}")
            self._place = _FIRST[mark]
        else:
            self._quoted = mark == '"'
            self._place = _Place.AFTER_VALUE if inside else _Place.END

    def _wrong(self, text: str, at: int) -> NotJson:
        return NotJson(f"not JSON near byte {min(self._at, len(self._bytes)) - len(text) + at}")


_FIRST: Final = {"[": _Place.FIRST_VALUE, "{": _Place.FIRST_KEY}
_IN_ARRAY: Final = (_Place.VALUE, _Place.FIRST_VALUE)
_IN_OBJECT: Final = (_Place.KEY, _Place.FIRST_KEY)
