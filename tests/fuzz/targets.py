"""The decoders of all five protocols as fuzzing sees them, with limits soon met."""

from __future__ import annotations

import json
import zlib
from random import Random
from typing import Any
from unittest import mock

import autobahn.websocket.protocol
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.micromsg2.streams import message
from tests.tools.byte_streams import windows_apart
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.extend import MsgprotoServerFactory
from twisted_msgproto.lumberjack.wire import frames as lumberjack
from twisted_msgproto.lumberjack.wire.decoder import Decoder as LumberjackDecoder
from twisted_msgproto.micromsg2 import terms as micromsg2_terms
from twisted_msgproto.micromsg2.wire import frames as micromsg2
from twisted_msgproto.mtl import wire as mtl_control
from twisted_msgproto.mtl.wire import data as mtl_data
from twisted_msgproto.net.wires.websocket import (
    MESSAGE_LIMIT,
    WEBSOCKET_LIMITS,
    WebSocketServerFactory,
)
from twisted_msgproto.sabc.wire import Bounds
from twisted_msgproto.sabc.wire import framing as sabc
from twisted_msgproto.umq import wire as umq

from .streams import Reading, Target, mutate


def word(source: Random, most: int = 12) -> str:
    """A short text, sometimes beyond ASCII."""
    return "".join(source.choices("abcdeXYZ019 é☃-_/", k=source.randint(0, most)))


def faulty(item: Fault) -> tuple[str, str]:
    return "fault", item.reason


# ── Lumberjack ──────────────────────────────────────────────────────────────────────────────────

LUMBERJACK_LIMITS = Limits.of(lumberjack.LIMITS).replace(
    {
        "compressed-bytes": 2000,
        "inflated-bytes": 5000,
        "inflated-ratio": 1,
        "json-bytes": 2000,
        "data-bytes": 2000,
    }
)


LUMBERJACK_TOKENS = (
    *(b"1D", b"2J", b"2W\0\0\0\1", b"2C", b"2A", b"\xff" * 4),
    zlib.compress(b"2W\0\0\0\5"),
)

LUMBERJACK_SLICED = [
    LUMBERJACK_LIMITS.replace({"slice-bytes": nbytes}) for nbytes in (60, 500, 4 << 20, 4 << 20)
]


def lumberjack_frames(source: Random, depth: int) -> bytes:
    frames = []
    for _ in range(source.randint(1, 5)):
        version = source.choice(lumberjack.VERSIONS)
        first = source.choice((0, 1, 7, 2**31, 2**32 - 3))
        count = source.choice((1, 1, 2, 9))
        numbers = [(first + step) % 2**32 for step in range(count)]
        match source.randrange(8 if depth else 6):
            case 0:
                frames.append(lumberjack.encode_window(source.choice((0, 1, 5, 16_384)), version))
            case 1:
                frames.append(lumberjack.encode_ack(first, version))
            case 2 | 3:
                bodies = [b"x" * source.choice((0, 1, 9, 300, 1900)) for _ in numbers]
                frames.append(lumberjack.encode_json(numbers, bodies, version))
            case 4 | 5:
                keys = [word(source) for _ in range(source.choice((0, 1, 2, 3, 15)))]
                times = source.choice((1, 1, 1, 6, 30))
                pairs = [{key: word(source, 40) * times for key in keys} for _ in numbers]
                encoded = map(lumberjack.encode_pairs, pairs)
                frames.append(lumberjack.encode_data_around(numbers, encoded, version))
            case _:
                inner = lumberjack_frames(source, depth - 1)
                if not source.randrange(6):
                    inner = mutate(inner, source, LUMBERJACK_TOKENS)
                frames.append(lumberjack.encode_compressed(inner, source.randint(1, 9), version))
    return b"".join(frames)


def lumberjack_stream(source: Random) -> bytes:
    return lumberjack_frames(source, source.choice((0, 1, 1, 4)))


def lumberjack_flat(items: list[Any]) -> list[Any]:
    flat: list[Any] = []
    for item in windows_apart(items):
        match item:
            case lumberjack.Json():
                rows = zip(item.sequences, item.bodies, strict=True)
                flat += [("J", item.version, item.compressed, *row) for row in rows]
            case lumberjack.Data():
                rows = zip(item.sequences, item.pairs, strict=True)
                flat += [
                    ("D", item.version, item.compressed, number, dict(pairs))
                    for number, pairs in rows
                ]
            case Fault():
                flat.append(faulty(item))
            case _:
                flat.append(item)
    return flat


def lumberjack_read(pieces: list[bytes], source: Random) -> Reading:
    # Where a compressed frame has two faults, the size of the slices decides which one is met
    # first.  So it is the same for all cuts of a stream; test_slices.py compares the sizes.
    slices = Random(len(b"".join(pieces))).choice(LUMBERJACK_SLICED)
    decoder = LumberjackDecoder(slices)
    items: list[Any] = []
    held = 0
    for piece in pieces:
        items += decoder.feed(piece)
        held = max(held, decoder.held_bytes)
        while decoder.unfinished:
            items += decoder.feed(b"")
            held = max(held, decoder.held_bytes)
    # What has come of a stream and is not looked at yet is the transport's business.
    return Reading(lumberjack_flat(items), held - max(map(len, pieces), default=0))


def both_scanners_read(pieces: list[bytes], source: Random) -> Reading:
    """The compiled scanners and those in Python, which must agree."""
    state = source.getstate()
    reading = lumberjack_read(pieces, source)
    source.setstate(state)
    with mock.patch.object(lumberjack, "scan", None):
        plain = lumberjack_read(pieces, source)
    assert plain.events == reading.events, "compiled and not compiled differ"
    return reading


LUMBERJACK = Target(
    lumberjack_stream,
    both_scanners_read if lumberjack.COMPILED else lumberjack_read,
    frozenset(
        [
            "version",
            "frame-type",
            "partial-frame",
            "window-limit",
            "json-limit",
            "pairs-limit",
            "key-limit",
            "value-limit",
            "data-limit",
            "compressed-limit",
            "compressed-depth",
            "zlib",
            "inflated-limit",
            "wrong-role",
        ]
    ),
    # Compressed, inflated, the frames kept of that, and one frame.
    2000 + 5000 + 5000 + 2000 + 64,
    LUMBERJACK_TOKENS,
)


def acks_stream(source: Random) -> bytes:
    return b"".join(
        lumberjack.encode_ack(source.choice((0, 1, 2**32 - 1)), source.choice(lumberjack.VERSIONS))
        for _ in range(source.randint(1, 12))
    )


def acks_read(pieces: list[bytes], source: Random) -> Reading:
    decoder = lumberjack.AckDecoder()
    items = [item for piece in pieces for item in decoder.feed(piece)]
    flat = [faulty(item) if isinstance(item, Fault) else item for item in items]
    return Reading(flat, len(decoder._start))


LUMBERJACK_ACKS = Target(
    acks_stream, acks_read, frozenset({"version", "wrong-role", "frame-type"}), 6, (b"2A", b"1W")
)

# ── MicroMsg2 ───────────────────────────────────────────────────────────────────────────────────

MICROMSG2_LIMITS = Limits.of(micromsg2_terms.LIMITS).replace(
    {
        "properties-bytes": 300,
        "frame-payload-bytes": 1000,
        "command-bytes": 300,
    }
)
HANDSHAKES = 2
HANDSHAKE_BYTES = 4 + 255 + 2 * (2 + 4096)  # of the longest: identity and two lists of extensions
MICROMSG2_LISTS = ("", "ack", "batch-ack:max-count=100", "json;dotnet", "pub-sub")


def micromsg2_handshake(source: Random) -> bytes:
    offers = [micromsg2.read_extensions(source.choice(MICROMSG2_LISTS).encode()) for _ in range(2)]
    return micromsg2.encode_handshake(
        micromsg2.Handshake(1, source.randint(0, 1), source.choice(("", "hulk")), *offers)
    )


def micromsg2_stream(source: Random) -> bytes:
    frames = [micromsg2_handshake(source) for _ in range(HANDSHAKES)]
    destination = word(source)
    for _ in range(source.randint(0, 6)):
        match source.randrange(6):
            case 0 | 1 | 2:
                text = source.choice((b"", b"a=Tb", b"market=Teu;amount=N100"))
                if source.random() < 0.3:
                    destination = word(source)
                number = source.choice((1, 2, 65_534, 65_535))
                payload = b"p" * source.choice((0, 3, 3, 3, 255, 256, 900))
                for step in range(source.choice((1, 1, 2, 30, 150))):
                    more = not source.randrange(6)
                    rest = payload, destination, text
                    frames.append(message(number + step & 0xFFFF, *rest, continued=more))
            case 3:
                frames.append(micromsg2.encode_extension(source.randint(0, 3), b"\0\1"))
            case 4:
                frames.append(micromsg2.encode_command("subscribe", {"destination": word(source)}))
            case _:
                frames.append(micromsg2.encode_error(f"failed: {word(source)}"))
    return b"".join(frames)


def micromsg2_read(pieces: list[bytes], source: Random) -> Reading:
    decoder = micromsg2.Decoder(MICROMSG2_LIMITS, HANDSHAKES)
    flat: list[Any] = []
    opening, held = HANDSHAKES, 0
    for piece in pieces:
        for item in decoder.feed(piece):
            if isinstance(item, micromsg2.Messages):
                columns = (item.sequences, item.destinations, item.properties, item.payloads)
                flat += [("message", *row) for row in zip(*columns, strict=True)]
            elif isinstance(item, micromsg2.Part):
                row = (item.sequence, item.destination, item.properties, item.payload)
                flat.append(("part", *row))
            else:
                flat.append(faulty(item) if isinstance(item, Fault) else item)
            opening -= isinstance(item, micromsg2.Handshake)
        held = max(held, decoder.buffered - HANDSHAKE_BYTES * (opening > 0))
    return Reading(flat, held)


# ── sABC ────────────────────────────────────────────────────────────────────────────────────────

SABC_BOUNDS = Bounds(8, 100, 300)
SABC_PART = 64
SABC_REASONS = frozenset(
    [
        "command",
        "headers-missing",
        "header-lines",
        "header-line-bytes",
        "header-block-bytes",
        "header-syntax",
        "header-encoding",
        "header-repeated",
        "content-length",
        "framing",
    ]
)
SABC_COMMANDS = ("CONNECT", "CONNECTED", "MESSAGE", "ERROR", "DISCONNECT", "DISCONNECTING")


def sabc_stream(source: Random) -> bytes:
    frames = []
    end = "\n" if not source.randrange(8) else "\r\n"
    for _ in range(source.randint(1, 5)):
        command = source.choice((*SABC_COMMANDS, "MESSAGE", "MESSAGE"))
        body = "".join(source.choices(["Hola", "\0", end, "x" * 90, "::", ""], k=3))
        headers = {"session-id": "S"} if source.random() < 0.8 else {}
        for _ in range(source.choice((0, 1, 2, 3, 3, 9))):
            headers[word(source, 5) or "k"] = word(source, source.choice((20, 20, 20, 20, 110)))
        if source.random() < 0.3:
            headers["msg-more"] = "yes"
        if source.random() < 0.4:
            headers["content-length"] = str(len(body.encode()))
        lines = [command, *(f"{key}::{value}" for key, value in headers.items())]
        frame = end.join(lines) + end + end
        if "DIS" not in command and command != "CONNECTED":
            frame += body + (f"{end}{end}\0" if source.random() < 0.8 else "")
        frames.append(frame)
    return "".join(frames).encode()


def sabc_read(pieces: list[bytes], source: Random) -> Reading:
    lenient = source.random() < 0.5
    decoder = sabc.Decoder(SABC_BOUNDS, part_bytes=SABC_PART, lenient=lenient)
    decoder.lengths = source.random() < 0.5
    decoder.session_id = source.choice((None, "S"))
    flat: list[Any] = []
    held = 0
    frame: list[Any] | None = None  # opened: command, headers, body, final, bytes
    for piece in pieces:
        decoder.feed(piece)
        while (item := decoder.next()) is not None:
            if isinstance(item, sabc.FrameOpened):
                frame = [item.frame.command, dict(item.frame.headers), b"", None]
            elif isinstance(item, sabc.BodyContinued):
                assert frame is not None
                frame[2] += item.nbytes
            elif isinstance(item, sabc.FrameClosed):
                assert frame is not None
                flat.append([*frame[:3], item.final])
                frame = None
            elif isinstance(item, Fault):
                flat += [frame] if frame is not None else []
                frame = None
                flat.append(faulty(item))
            else:
                flat.append([item.command, dict(item.headers), item.body, item.final])
        if not (flat and flat[-1][0] == "fault"):
            held = max(held, decoder.buffered)
    if frame is not None:
        flat.append(frame)
    return Reading(flat, held)


def sabc_message_read(pieces: list[bytes], source: Random) -> Reading:
    """A WebSocket message carries one frame; however it came, it is read as a whole."""
    item = sabc.read_frame(b"".join(pieces), SABC_BOUNDS, lenient=source.random() < 0.5)
    if isinstance(item, Fault):
        return Reading([faulty(item)], 0)
    return Reading([[item.command, dict(item.headers), item.body, item.final]], 0)


# ── UMQ ─────────────────────────────────────────────────────────────────────────────────────────

UMQ_LIMITS = Limits.of(umq.LIMITS).replace({"payload-characters": 200})
UMQ_REASONS = frozenset(
    ["empty", "id", "count", "nested", "attachments", "bare", "case", "command", "payload"]
)


def umq_stream(source: Random) -> bytes:
    """Commands, one a line: on the wire each is a message of its own."""
    lines = []
    for _ in range(source.randint(1, 5)):
        kind = umq.BY_LETTER[source.choice("-HWFCBRETDUSX")]
        number = umq.base36(source.choice((0, 1, 35, 36, 36**13 - 1)))
        payload = word(source, 60) * source.choice((1, 1, 1, 1, 9))
        bare = kind.letter in umq.BARE and source.randrange(20)
        attachments = 0 if bare else source.choice((0, 0, 1, 32))
        lines.append(umq.encode(kind, number, payload, attachments).encode())
    return b"\n".join(lines)


def umq_read(pieces: list[bytes], source: Random) -> Reading:
    decoder = umq.Decoder(UMQ_LIMITS)
    flat: list[Any] = []
    for line in b"".join(pieces).split(b"\n"):
        frame = decoder.decode(line.decode("utf-8", "replace"))
        if isinstance(frame, Fault):
            assert len(frame.text) <= 200
            flat.append(faulty(frame))
            break
        text = umq.encode(frame.command, frame.id, frame.payload, frame.attachments)
        assert decoder.decode(text) == frame, "what was read cannot be written"
        flat.append(frame)
    return Reading(flat, 0)


# ── WebSocket, below UMQ and sABC ────────────────────────────────────────────────────────────────

WEBSOCKET_OPTIONS = Limits.of((*WEBSOCKET_LIMITS, MESSAGE_LIMIT)).replace(
    {"websocket-message-bytes": 2000}
)
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
# A page of debug text for each connection, whether anybody logs it or not.
autobahn.websocket.protocol.pformat = lambda value: ""

CLOSE_CODES = frozenset([f"close {code}" for code in (1000, 1002, 1007, 1009)])


class Messages:
    """A session which notes what comes."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def makeConnection(self, wire: Any) -> None:
        wire.established()

    def received(self, inputs: list[str | bytes]) -> None:
        self.got += inputs

    @property
    def link(self) -> Any:
        return self

    def oversized(self) -> None:
        pass

    def connectionLost(self, reason: Failure) -> None:
        pass


class Sessions(MsgprotoServerFactory):
    protocolName = "messages"
    LIMITS = (MESSAGE_LIMIT, *WEBSOCKET_LIMITS)
    protocol: Any = Messages


def websocket_frame(source: Random, opcode: int, final: bool, payload: bytes) -> bytes:
    mask = source.randbytes(4)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    length = len(payload)
    size = bytes([0x80 | length]) if length < 126 else b"\xfe" + length.to_bytes(2, "big")
    return bytes([(0x80 if final else 0) | opcode]) + size + mask + masked


def websocket_stream(source: Random) -> bytes:
    frames = []
    for _ in range(source.randint(1, 6)):
        text = source.random() < 0.6
        payload = word(source, 30).encode() * source.choice((1, 1, 8, 40))
        match source.randrange(8):
            case 0:
                frames.append(websocket_frame(source, 9, True, payload[:125]))
            case 1 | 2:
                parts = [payload[:5], payload[5:9], payload[9:]]
                for place, part in enumerate(parts):
                    opcode = 0 if place else (1 if text else 2)
                    frames.append(websocket_frame(source, opcode, place == 2, part))
            case 3 if not source.randrange(4):
                frames.append(websocket_frame(source, 8, True, b"\x03\xe8bye"))
            case 4 if not source.randrange(4):
                frames.append(websocket_frame(source, 1, True, b"\xff\xfe"))
            case _:
                frames.append(websocket_frame(source, 1 if text else 2, True, payload))
    return b"".join(frames)


def websocket_read(pieces: list[bytes], source: Random) -> Reading:
    sessions = Sessions(clock=Clock())
    factory = WebSocketServerFactory(sessions, sessions.buildProtocol, WEBSOCKET_OPTIONS)
    connection: Any = factory.buildProtocol(None)
    transport = StringTransport(lenient=True)
    connection.makeConnection(transport)
    connection.dataReceived(UPGRADE)
    transport.clear()
    held = 0
    for piece in pieces:
        connection.dataReceived(piece)
        held = max(held, len(connection.data) + connection.session.wire.held)
    flat = connection.session.got
    said = transport.value()
    while said:  # what a server writes here is short: pongs, and at the end a close
        opcode, length = said[0] & 15, said[1]
        if opcode == 8:
            flat.append(("fault", f"close {int.from_bytes(said[2:4], 'big')}"))
        said = said[2 + length :]
    connection.connectionLost(Failure(ConnectionDone()))
    return Reading(flat, held - max(map(len, pieces), default=0))


# ── MTL ─────────────────────────────────────────────────────────────────────────────────────────

MTL_LIMITS = Limits.of(mtl_control.LIMITS).replace({"control-bytes": 400})
MTL_TABLES: tuple[dict[str, Any], ...] = (
    {},
    {"a": 1, "b": "two", "c": True, "d": None, "e": 1.5},
    {"list": [1, [2, "x"], {"y": b"z"}], "inner": {"a": {"b": {}}}},
)


def mtl_data_stream(source: Random) -> bytes:
    """A header, behind its length in two bytes, and a body."""
    sequence = source.choice((0, 1, 2**63, 2**64 - 1))
    name = word(source)
    command: Any
    match source.randrange(8):
        case 0:
            command = mtl_data.Lease(sequence, name)
        case 1:
            command = mtl_data.Response(sequence, source.choice((200, 400, 403, 404)))
        case 2:
            command = mtl_data.Summon(sequence, name)
        case 3:
            command = mtl_data.Confirm(sequence, source.random() < 0.5)
        case 4:
            command = mtl_data.Reject(sequence, True, source.random() < 0.5)
        case 5:
            command = source.choice((mtl_data.Ping(), mtl_data.Pong()))
        case _:
            table = mtl_data.encode_table(source.choice(MTL_TABLES))
            command = mtl_data.Content(sequence, name, table, word(source, 30).encode())
    header, body = mtl_data.encode(command)
    return len(header).to_bytes(2, "big") + header + body


def mtl_data_read(pieces: list[bytes], source: Random) -> Reading:
    octets = b"".join(pieces)
    edge = 2 + int.from_bytes(octets[:2], "big")
    header, body = octets[2:edge], octets[edge:]
    try:
        command = mtl_data.decode(header, body)
    except mtl_data.IllFormed as error:
        return Reading([("fault", error.reason)], 0)
    if isinstance(command, mtl_data.Content):
        texts = mtl_data.as_texts(command.properties)
        assert all(isinstance(text, str) for text in texts.values())
        again = mtl_data.decode(*mtl_data.encode(command))
        assert again == command, "what was read cannot be written"
    return Reading([repr(command)], 0)


def mtl_control_stream(source: Random) -> bytes:
    """Frames, each behind its length in two bytes."""
    name = word(source)
    request: Any = source.choice(
        (
            mtl_control.Open(name),
            mtl_control.Authorize("PLAIN", name.encode()),
            mtl_control.SelectProfile(name),
            mtl_control.RequestReader((name, "b"), source.choice(("none", "full"))),
            mtl_control.RequestWriter((), "full"),
        )
    )
    frames = [b"", *mtl_control.encode_request(request)]
    if source.random() < 0.3:
        frames.insert(0, b"id")
    if source.random() < 0.05:
        frames[-2] = bytes(frames[-2]) * 30
    if source.random() < 0.2:
        body = {"deep": 1}
        for _ in range(source.choice((3, 14, 40))):
            body = {"deep": body}  # type: ignore[dict-item]
        frames[-1] = json.dumps(body).encode()
    return b"".join(len(frame).to_bytes(2, "big") + frame for frame in frames)


def mtl_control_read(pieces: list[bytes], source: Random) -> Reading:
    octets, frames = b"".join(pieces), []
    while octets and len(frames) < 12:
        edge = 2 + int.from_bytes(octets[:2], "big")
        frames.append(octets[2:edge])
        octets = octets[edge:]
    try:
        envelope = mtl_control.split_envelope(frames)
        kind = mtl_control.COMMANDS.get(mtl_control.parse_command(frames[envelope]))
        if kind is None:
            return Reading(["unknown command"], 0)
        body = mtl_control.parse_body(frames[envelope + 1], MTL_LIMITS)
        return Reading([repr(mtl_control.parse_request(kind, body, MTL_LIMITS))], 0)
    except mtl_control.Invalid as error:
        assert error.code in mtl_control.STATUS
        return Reading([("invalid", error.code)], 0)
    except mtl_data.IllFormed as error:
        return Reading([("fault", error.reason)], 0)


MTL_DATA_REASONS = frozenset(["type", "header-length", "string", "boolean", "code", "properties"])
MTL_CONTROL_REASONS = frozenset(["frames", "command", "string", "json"])

TARGETS: dict[str, Target] = {
    "lumberjack": LUMBERJACK,
    "lumberjack-acks": LUMBERJACK_ACKS,
    "micromsg2": Target(
        micromsg2_stream,
        micromsg2_read,
        frozenset({micromsg2.PROTOCOL_ERROR, micromsg2.LIMIT_EXCEEDED}),
        4 + 255 + 2 + 300 + 4 + 1000,
        (b"\0\0\1", b"\x40", b"\x20", b"\x10", b"\x80", b"required", b"\0\1\0\0"),
    ),
    "sabc": Target(
        sabc_stream,
        sabc_read,
        SABC_REASONS,
        300 + 100 + SABC_PART + 64,
        (b"\r\n", b"\r\n\r\n\0", b"\0", b"::", b"MESSAGE\r\n", b"session-id::S\r\n", b"\n"),
    ),
    "sabc-websocket": Target(
        sabc_stream,
        sabc_message_read,
        SABC_REASONS - {"content-length"},
        0,
        (b"\r\n", b"\0", b"::", b"\r\n\r\n\0"),
    ),
    "umq": Target(
        umq_stream, umq_read, UMQ_REASONS, 0, (b"A1:", b"C", b":", b"\n", b"!", b"a", b"Z" * 14)
    ),
    "websocket": Target(
        websocket_stream,
        websocket_read,
        CLOSE_CODES,
        2 * 2000 + 200,
        (b"\x81\x80", b"\x82\xfe", b"\x00\x80", b"\x80\x80", b"\x88\x80", b"\x89\xff"),
        one_of=10,
    ),
    "mtl-data": Target(
        mtl_data_stream,
        mtl_data_read,
        MTL_DATA_REASONS,
        0,
        (b"F", b"S", b"A", b"\0", b"\5", b"\x85"),
    ),
    "mtl-control": Target(
        mtl_control_stream,
        mtl_control_read,
        MTL_CONTROL_REASONS,
        0,
        (b'"', b"{", b"[[[[", b"NaN", b"\\ud800", b"1e999", b"\0\0", b'"protocol"'),
    ),
}
"""Name → decoder; the name begins with the protocol's, unless several have it."""
