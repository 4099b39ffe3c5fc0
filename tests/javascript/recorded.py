"""Sessions of our Python machines, as JSON for the clients in JavaScript.

``python -m tests.javascript.recorded`` writes them anew into ``clients/js/test/recorded``.

``umq-codec`` and ``sabc-frames`` say what single messages read as.  ``umq-sessions`` and
``sabc-sessions`` are conversations: what a client is told to do, what it then sends, what our
server answers, and what the client reports.  A test here checks that the files are what our
machines still produce; the tests of ``clients/js`` check that its machines do the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.javascript.sabc_sessions import SABC_SESSIONS
from tests.javascript.umq_sessions import UMQ_SESSIONS
from tests.sabc.test_framing import BAD_HEADS, NO_FRAMES
from tests.umq.pairs import EXAMPLES
from tests.umq.test_machine import FAULTY, READ
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc.wire import Bounds
from twisted_msgproto.sabc.wire.framing import read_frame
from twisted_msgproto.umq import UmqServerFactory
from twisted_msgproto.umq import wire as umq

DIRECTORY = Path(__file__).parents[2] / "clients" / "js" / "test" / "recorded"

UMQ_CASES = (
    *(text for text in EXAMPLES.values() if isinstance(text, str)),
    *(text for text, _ in READ),
    *(text for text, _, _ in FAULTY if len(text) < 100),
    *("A3:C1AZ4:[1]", "F:", "S:=", "A4:C1:x", "A3:R1:x", "É1:x", "ß:x", "𝄞1:x", "ſ1:x"),
    *("C1:12345678901234567890", "C1:123456789012345678901"),
    *(f"C1:{'𝄞' * count}" for count in (10, 20, 21)),
    *("C1:a\nb\r\n:c", "C1\n:x", "\nC1:x", "C1:\x00", "A1\n:C1:x"),
)

SABC_CASES = (
    *(octets for octets, _ in BAD_HEADS.values() if len(octets) < 100),
    *(octets for octets, _ in NO_FRAMES),
    b"CONNECT\r\nclient-id::me\r\n\r\n\0",
    b"CONNECTED\r\nsession-id::s\r\nsession-expiry::Tue, 01 Jun 2017 21:47:38 GMT\r\n\r\n\0",
    b"CONNECTED\r\nsession-id::s",
    b"CONNECTED\r\nsession-id::s\r\n",
    b"CONNECTED\r\nsession-id::s\r\n\r\n\r\n\r\n\0",
    b"DISCONNECTING\r\nsession-id::s\r\n\r\n\0",
    b"MESSAGE\r\nsession-id::s\r\nmsg-id::1\r\n\r\nHola\r\n\r\n\0",
    b"MESSAGE\r\nsession-id::s\r\nmsg-id::1\r\n\r\n\r\n\0",
    b"MESSAGE\r\nsession-id::s\r\nmsg-id::1\r\n\r\n\r\n\r\n\0",
    b"MESSAGE\r\nsession-id::s\r\nmsg-id::1\r\nmsg-more::yes\r\n\r\na \0 and more",
    b"MESSAGE\r\nsession-id::s\r\nmsg-id::1\r\n\r\n\0Hola",
    b"MESSAGE\r\nsession-id::s\r\nmsg-id::1\r\n\r\nG\xfc\r\n\r\n\0",
    b"MESSAGE\r\nsession-id::s\r\nm\xc3\xbc::1\r\n\r\nG\xc3\xbc\r\n\r\n\0",
    b"MESSAGE\r\na:::b\r\n\r\n\0",
    b"CONNECT\r\n\r\n\0",
    b"MESSAGE\na::b\n\n\0",
    b"\0",
    b"MESSAGE\r\n" + b"a" * 40 + b"::b\r\n\r\n\0",
    b"MESSAGE\r\n" + b"a" * 37 + b"::b\r\n\r\n\0",
    b"MESSAGE\r\na::1\r\nb::2\r\nc::3\r\nd::4\r\n\r\n\0",
    b"MESSAGE\r\na::1\r\nb::2\r\nc::3\r\nd::4\r\ne::5\r\n\r\n\0",
    b"MESSAGE\r\n" + b"".join(b"%c::%s\r\n" % (97 + n, b"x" * 30) for n in range(4)) + b"\r\n\0",
    b"\xef\xbb\xbfMESSAGE\r\na::b\r\n\r\n\0",
    b"MESSAGE\r\na::\xef\xbb\xbfb\r\n\r\n\xef\xbb\xbfbody\r\n\r\n\0",
)

UMQ_BOUNDS = {"payload-characters": 20, "attachments": 3}
SABC_BOUNDS = {"lines": 4, "lineBytes": 40, "blockBytes": 100}
SPOILED = 2


def spoiled(case: bytes, chance: random.Random) -> bytes:
    """The case with one byte left out, put in, or changed."""
    at = chance.randrange(len(case) + 1)
    byte = chance.choice(b"\r\n\0:AM1\xfc ")
    return case[:at] + chance.choice((b"", bytes((byte,)))) + case[at + chance.randrange(2) :]


def variants(cases: tuple[bytes, ...]) -> Iterator[bytes]:
    """The cases, and some of each that are a little wrong: the same ones each time."""
    chance = random.Random(17)
    told: set[bytes] = set()
    for case in cases:
        for variant in (case, *(spoiled(case, chance) for _ in range(SPOILED))):
            if variant not in told:
                told.add(variant)
                yield variant


def wire(message: str | bytes) -> str | dict[str, str]:
    """A message as JSON: text, or an object with its bytes."""
    if isinstance(message, str):
        return message
    try:
        text = message.decode()
    except UnicodeDecodeError:
        return {"hex": message.hex()}
    return text


def umq_codec() -> Any:
    """What single UMQ messages read as."""
    limits = UmqServerFactory(limits=UMQ_BOUNDS).limits
    decode = umq.Decoder(limits).decode

    def told(text: str) -> Any:
        found = decode(text)
        if isinstance(found, umq.UmqFault):
            return {"fault": found.reason, "code": int(found.code)}
        letter = found.command.letter
        return {"letter": letter, "id": found.id, "payload": found.payload, "A": found.attachments}

    octets = tuple(text.encode() for text in UMQ_CASES)
    texts = [case.decode("utf-8", "replace") for case in variants(octets)]
    return {"limits": UMQ_BOUNDS, "cases": [[text, told(text)] for text in texts]}


def sabc_frames() -> Any:
    """What single sABC messages on WebSocket read as."""
    bounds = Bounds(*SABC_BOUNDS.values())

    def told(nbytes: bytes) -> Any:
        found = read_frame(nbytes, bounds)
        if isinstance(found, Fault):
            return {"fault": found.reason}
        return {
            "command": found.command,
            "headers": found.headers,
            "body": wire(found.body),
            "final": found.final,
        }

    cases = [[wire(nbytes), told(nbytes)] for nbytes in variants(SABC_CASES)]
    return {"bounds": SABC_BOUNDS, "cases": cases}


def sessions(scripts: dict[str, Callable[[], Any]]) -> Any:
    return {name: script() for name, script in scripts.items()}


RECORDED: dict[str, Callable[[], Any]] = {
    "umq-codec": umq_codec,
    "umq-sessions": lambda: sessions(UMQ_SESSIONS),
    "sabc-frames": sabc_frames,
    "sabc-sessions": lambda: sessions(SABC_SESSIONS),
}


def lines(value: Any) -> str:
    """JSON with a line for each case, or each step of a session."""
    line = partial(json.dumps, ensure_ascii=False, sort_keys=True)
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(line, value)) + "\n]"
    if any(isinstance(one, dict | list) for one in value.values()):
        named = (f"{line(name)}: {lines(one)}" for name, one in sorted(value.items()))
        return "{\n" + ",\n".join(named) + "\n}"
    return line(value)


def text_of(name: str) -> str:
    """The recording as it stands in its file."""
    return lines(RECORDED[name]()) + "\n"


def path_of(name: str) -> Path:
    return DIRECTORY / f"{name}.json"


if __name__ == "__main__":
    for name in RECORDED:
        path_of(name).write_text(text_of(name))
