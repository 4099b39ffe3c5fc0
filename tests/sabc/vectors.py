"""The examples of the protocol's source with CRLF; frames as a peer writes them, and reads them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

SESSION = "NaTPOgp1QUuB6Gm5tAdcSw"
END = b"\r\n\r\n\0"


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


def frame(
    command: str,
    headers: dict[str, str],
    body: bytes = b"",
    *,
    final: bool = True,
    lengths: bool = False,
) -> bytes:
    """A frame as the specification has it (``SA-01``, ``SA-02``, ``SA-26``)."""
    if lengths and command in ("MESSAGE", "ERROR"):
        headers = {**headers, "content-length": str(len(body))}
    lines = [command, *(f"{key}::{value}" for key, value in headers.items()), "", ""]
    end = b"" if not final else END if body else b"\0"
    return "\r\n".join(lines).encode() + body + end


@dataclass(frozen=True)
class Read:
    """One frame as it was read, however it came in."""

    command: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    final: bool | None


def _valid(lines: list[bytes], session: str) -> bool:
    """Whether these are the headers of a frame of the session, by the letter of the rules."""
    keys = []
    for line in lines:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return False
        key, separator, value = text.partition("::")
        if not separator or "::" in value or not key or set(text) & {"\r", "\n", "\0"}:
            return False
        keys.append(key)
    return len(set(keys)) == len(keys) and f"session-id::{session}".encode() in lines


def end_of_body(
    octets: bytes, start: int, more: bool, session: str
) -> tuple[int, int, bool] | None:
    """Where a body ends, where the next frame begins, and finality: every place is tried."""
    for place in range(start - 4, len(octets)):
        if octets.startswith(END, place):
            return max(place, start), place + len(END), True
        if place < start or not more:
            continue
        for command in (b"MESSAGE\r\n", b"ERROR\r\n", b"DISCONNECT\r\n", b"DISCONNECTING\r\n"):
            if octets.startswith(command, place):
                block, blank, _ = octets[place + len(command) - 2 :].partition(b"\r\n\r\n")
                if blank and _valid(block[2:].split(b"\r\n"), session):
                    return place, place, False
    return None


def read(octets: bytes, *, lengths: bool = False, session: str = SESSION) -> list[Read]:
    """Read a stream slowly and obviously; the last body may be unfinished (``final=None``)."""
    found: list[Read] = []
    while octets:
        head, blank, rest = octets.partition(b"\r\n\r\n")
        assert blank, octets
        command, *lines = head.decode().split("\r\n")
        headers = dict(line.split("::") for line in lines)
        body, final = b"", True if rest[:1] == b"\0" else None
        if command not in ("MESSAGE", "ERROR"):
            octets = rest.removeprefix(b"\0")
        elif lengths:
            size = int(headers.pop("content-length"))
            body, octets = rest[:size], rest[size:]
            mark = END if octets.startswith(END) else b"" if size else b"\0"
            final = bool(mark) and octets.startswith(mark)
            octets = octets.removeprefix(mark)
        else:
            start = len(head) + 4
            end = end_of_body(octets, start, "msg-more" in headers, session)
            stop, following, final = end or (len(octets), len(octets), None)
            body, octets = octets[start:stop], octets[following:]
        found.append(Read(command, tuple(headers.items()), body, final))
    return found


def cut(octets: bytes, *places: int) -> list[bytes]:
    """``octets`` in pieces, cut at ``places``."""
    edges = [0, *sorted(places), len(octets)]
    return [octets[a:b] for a, b in pairwise(edges)]
