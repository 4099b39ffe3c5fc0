"""The examples of the protocol's source with CRLF, and a way to see any two readings as equal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc.wire import Frame
from twisted_msgproto.sabc.wire.framing import (
    BodyContinued,
    Decoder,
    FrameClosed,
    FrameOpened,
    Piece,
)

SESSION = "NaTPOgp1QUuB6Gm5tAdcSw"


def crlf(text: str) -> bytes:
    """``text`` with CRLF line ends; ``^@`` stands for NUL."""
    return text.replace("\n", "\r\n").replace("^@", "\0").encode()


CONNECT = crlf("CONNECT\nclient-id::23450-678-aedc\nclient-passcode::Password@123\n\n^@")
CONNECTED = crlf(
    f"CONNECTED\nsession-id::{SESSION}\nsession-expiry::Tue, 01 Jun 2017 21:47:38 GMT\n\n"
)
DISCONNECT = crlf(f"DISCONNECT\nsession-id::{SESSION}\n\n")
DISCONNECTING = crlf(f"DISCONNECTING\nsession-id::{SESSION}\n\n")
HOLA = crlf(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::000001\n\nHola\n\n^@")
MUNDO = crlf(f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::000001\n\nMundo!!!\n\n^@")
HELLO = crlf(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123123\n\nHello\n\n^@")
OK = crlf(f"MESSAGE\nsession-id::{SESSION}\nref-msg-id::123123\n\nOK\n\n^@")
SEND_ONLY = crlf(f"MESSAGE\nsession-id::{SESSION}\nmsg-id::888999\nsend-only::yes\n\nOK\n\n^@")
FORBIDDEN = crlf("ERROR\nerror-code::403\n\nAccess Forbidden\n\n^@")

_PART = f"MESSAGE\nsession-id::{SESSION}\nmsg-id::123456\n"
PART_1 = crlf(f"{_PART}msg-more::yes\n\nThis is first part of the message. Second\npart ")
PART_2 = crlf(
    f"{_PART}msg-more::yes\n\nis on the way. See I can have ^@ within the\n"
    "message but shouldn't precede with two CR-LFs.\nFinally the third"
)
PART_3 = crlf(f"{_PART}\npart marks the end of the\nmessage\n\n^@")
WHOLE_BODY = crlf(
    "This is first part of the message. Second\npart is on the way. See I can have ^@ within the\n"
    "message but shouldn't precede with two CR-LFs.\nFinally the thirdpart marks the end of the\n"
    "message"
)


@dataclass(frozen=True)
class Read:
    """One frame as it was read, however it came in."""

    command: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    final: bool | None
    octets: int


def flatten(pieces: list[Piece]) -> list[Read | Fault]:
    """Pieces as whole frames; the last one may be unfinished (``final=None``)."""
    found: list[Read | Fault] = []
    head: Frame | None = None
    body = b""

    def frame(kind: Frame, octets: bytes, final: bool | None, end: int) -> Read:
        headers = tuple(kind.headers.items())
        size = kind.head_octets + len(octets) + end
        return Read(kind.command, headers, octets, final, size)

    for piece in pieces:
        if isinstance(piece, FrameOpened):
            head, body = piece.frame, b""
        elif isinstance(piece, BodyContinued):
            assert piece.octets
            body += piece.octets
        elif isinstance(piece, FrameClosed):
            assert head is not None
            found.append(frame(head, body, piece.final, piece.octets))
            head = None
        elif isinstance(piece, Frame):
            assert head is None
            found.append(frame(piece, piece.body, piece.final, piece.end_octets))
        else:
            if head is not None:
                found.append(frame(head, body, None, 0))
                head = None
            found.append(piece)
    if head is not None:
        found.append(frame(head, body, None, 0))
    return found


def cut(octets: bytes, *places: int) -> list[bytes]:
    """``octets`` in pieces, cut at ``places``."""
    edges = [0, *sorted(places), len(octets)]
    return [octets[a:b] for a, b in pairwise(edges)]


def decode(
    chunks: list[bytes],
    *,
    lengths: bool = False,
    session_id: str | None = SESSION,
    lenient: bool = False,
    part_octets: int = 8,
    decoder: Decoder | None = None,
) -> list[Read | Fault]:
    """What a decoder makes of ``chunks``."""
    decoder = decoder or Decoder(part_octets=part_octets, lenient=lenient)
    decoder.lengths, decoder.session_id = lengths, session_id
    pieces: list[Piece] = []
    for chunk in chunks:
        decoder.feed(chunk)
        while (piece := decoder.next()) is not None:
            pieces.append(piece)
    return flatten(pieces)
