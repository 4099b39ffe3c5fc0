"""In UMQ's grammar one WebSocket text message is one command (``UM-01`` … ``UM-05``)::

    message = ["A" count ":"] command id ":" payload
    command = one of  - H W F C B R E T D U S X  (and !, read like E)
    count, id = up to 13 digits 0-9 A-Z (base 36), possibly none

Binary messages carry attachments only and have no grammar.  Ids are compared by value, but a reply
repeats the id as it came, so a frame keeps its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

from ..core.errors import Fault, shown
from ..core.limits import Limit, Limits
from ..core.machine import Own

VERSION: Final = 1

DIGITS_MAX: Final = 13
"""An id or a count has at most this many digits: enough for 64 bits (``UM-02``)."""

LIMITS: Final = (
    Limit("payload-characters", 1 << 20, "characters", "text of one command (UM-20)", 1),
    Limit("attachments", 32, "attachments", "of one command (UM-19)"),
)


class Code(IntEnum):
    """Codes of ``F`` and of refusing ``E``, as the reference implementation has (``UM-08``)."""

    REJECTED = 1
    CALLBACK_NOT_FOUND = 2
    FORMAT = 3
    UNSUPPORTED_COMMAND = 4
    UNSUPPORTED_VERSION = 5
    NOT_AN_RPC_SERVER = 6
    NO_ROUTE = 7
    UNAVAILABLE = 8


SHOWN_MAX: Final = 150
"""This many characters of a faulty command stand in an ``F``: with what is wrong, at most 200."""

FAULT_CHARACTERS: Final = 64
"""A fault keeps this many characters of the command, and an ``F`` shows no more of them."""


@dataclass(slots=True, frozen=True)
class UmqFault(Fault):
    """A peer's fault, and the code of the ``F`` that answers it (``UM-18``)."""

    code: Code = Code.FORMAT


class Command(Own):
    def __init__(self, letter: str) -> None:
        self.letter = letter


class Commands:
    ATTACHMENT_ERROR = Command("-")  # in the place of one attachment (``UM-04``)
    HELLO = Command("H")  # a client's first; the id is its version (``UM-06``)
    WELCOME = Command("W")  # the server's yes; the id is the version, possibly lowered (``UM-07``)
    FATAL = Command("F")  # ``<code> <message>``, the last command of its sender (``UM-08``)
    CALL = Command("C")  # a remote procedure call (``UM-09``)
    CALLBACK = Command("B")  # a call of what the other side registered (``UM-11``)
    RESULT = Command("R")  # a call's answer (``UM-10``)
    CALL_ERROR = Command("E")  # a call's failure (``UM-09``, ``UM-10``)
    TOPIC_UPDATE = Command("T")  # something new on a topic (``UM-12``)
    TOPIC_CLOSE = Command("D")  # a topic's end by its publisher (``UM-13``)
    UNSUBSCRIBE = Command("U")  # a topic's end by its subscriber (``UM-14``)
    SET_ATTRIBUTE = Command("S")  # ``name=value`` (``UM-15``)
    UNSET_ATTRIBUTE = Command("X")  # a name (``UM-16``)


BY_LETTER: Final = {one.letter: one for one in vars(Commands).values() if isinstance(one, Command)}
BY_LETTER["!"] = Commands.CALL_ERROR  # of a later draft, and never written (``UM-09``)


@dataclass
class Frame:
    command: Command
    id: str = ""
    payload: str = ""
    attachments: int = 0

    @property
    def number(self) -> int:
        return number(self.id)


BARE: Final[frozenset[str]] = frozenset("FEDUX!-")
"""Commands that cannot have attachments (``UM-05``)."""

_HEAD: Final = re.compile(r"(?:A([0-9A-Z]{0,13}):)?([-HWFCBRETDUSX!])([0-9A-Z]{0,13}):").match


def number(digits: str) -> int:
    """The value of base-36 ``digits``; none are 0 (``UM-02``)."""
    return int(digits, 36) if digits else 0


_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def base36(value: int) -> str:
    if value < 36:
        return _ALPHABET[value]
    return _base36_cached(value // 36) + _ALPHABET[value % 36]


@lru_cache(maxsize=256)
def _base36_cached(value: int) -> str:
    return base36(value)  # ids are counted up: nearly all have their first digits in common


def is_id(text: str) -> bool:
    return len(text) <= DIGITS_MAX and not text.strip(_ALPHABET)


def coded(payload: str) -> tuple[int | None, str]:
    """Return the code that ``payload`` begins with, and the text behind it; None: all is text."""
    digits, _, text = payload.partition(" ")
    if digits.isascii() and digits.isdigit() and len(digits) < 10:
        return int(digits), text
    return None, payload


def encode(command: Command, id: str = "", payload: str = "", attachments: int = 0) -> str:
    text = f"{command.letter}{id}:{payload}"
    return f"A{base36(attachments)}:{text}" if attachments else text


class Decoder:
    """What makes frames of text messages, within limits, without a state: one message is one."""

    def __init__(self, limits: Limits) -> None:
        self._characters = limits.integer("payload-characters")
        self._attachments = limits.integer("attachments")

    def decode(self, text: str) -> Frame | UmqFault:
        """Return the command in ``text``, or what is wrong with it (``UM-18``)."""
        head = _HEAD(text)
        if head is None:
            return diagnose(text)
        count, letter, digits = head.groups()
        payload = text[head.end() :]
        if len(payload) > self._characters:
            return fault("payload", f"the payload is above {self._characters} characters", text)
        frame = Frame(BY_LETTER[letter], digits, payload)
        if count is not None:
            if letter in BARE:
                return fault("bare", f"{letter} cannot have attachments", text)
            frame.attachments = attachments = number(count)
            if attachments > self._attachments:
                return fault("attachments", f"above {self._attachments} attachments", text)
        return frame


def fault(reason: str, why: str, text: str, code: Code = Code.FORMAT) -> UmqFault:
    return UmqFault(reason, why, text[:FAULT_CHARACTERS].encode("utf-8", "replace"), code)


def diagnose(text: str) -> UmqFault:
    """Return why ``text`` is no command (``UM-02``, ``UM-03``, ``UM-18``)."""
    rest = text
    if text[:1] == "A":
        count, colon, rest = text[1:].partition(":")
        if not colon or not is_id(count):
            return fault(
                "count", f"no attachment count: {shown(text[:FAULT_CHARACTERS], SHOWN_MAX)}", text
            )
        if rest[:1] == "A":
            return fault("nested", "A wraps a command which is not A", text)
    letter, (digits, colon, _) = rest[:1], rest[1:].partition(":")
    if not letter:
        return fault("empty", "a message without a command", text)
    if not colon or not is_id(digits):
        return fault(
            "id", f"no command, id and colon: {shown(text[:FAULT_CHARACTERS], SHOWN_MAX)}", text
        )
    if letter.islower() and letter.upper() in BY_LETTER:
        return fault("case", f"commands are upper case: {shown(letter)}", text)
    return fault("command", f"unknown command {shown(letter)}", text, Code.UNSUPPORTED_COMMAND)
