"""tshark with our dissectors shows what was recorded, however the bytes came."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.dissectors import picture, recordings
from tests.lumberjack.frames import NAMES, captured, inner_frames
from tests.tools.processes import PROJECT
from twisted_msgproto.umq import wire as umq

LUA = sorted((PROJECT / "dissectors").glob("*.lua"))
PROTOCOLS = ("lumberjack", "micromsg2", "sabc", "umq")
LINKS = {"umq.announced_in", "umq.call_in", "sabc.request_in"}
WHOLE, SPLIT = 1400, 7

Field = tuple[str, str]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("dissectors"),  # tshark reads all sessions once for all of them
    pytest.mark.skipif(
        shutil.which("tshark") is None,
        reason="tshark is not installed (Debian: apt-get install tshark)",
    ),
]


def flat(layer: Any) -> Iterator[Field]:
    """The fields of a packet in the order of its bytes."""
    for name, value in layer:
        if isinstance(value, list) and all(isinstance(entry, tuple) for entry in value):
            yield from flat(value)
        elif isinstance(value, str):
            yield name, value


@cache
def shown(segment: int, *options: str) -> dict[str, list[list[Field]]]:
    """What tshark shows of each connection: the fields of its packets."""
    capture, names = recordings.capture(segment)
    with TemporaryDirectory() as directory:
        path = capture.write(Path(directory) / "all.pcap")
        scripts = [word for script in LUA for word in ("-X", f"lua_script:{script}")]
        layers = " ".join(("tcp", "sabc_ws", "_ws.expert", *PROTOCOLS))
        told = subprocess.run(
            ["tshark", *scripts, *options, "-r", str(path), "-T", "json", "-J", layers],
            capture_output=True,
            text=True,
            errors="replace",  # a long text is cut, perhaps within a character
            timeout=300,
        )
    assert told.returncode == 0, told.stderr
    assert "lua" not in told.stderr.lower(), told.stderr
    found: dict[str, list[list[Field]]] = {name: [] for name in names}
    for packet in json.loads(told.stdout, object_pairs_hook=lambda pairs: pairs):
        fields = list(flat(packet))
        number = next(value for name, value in fields if name == "tcp.stream")
        prefixes = (*PROTOCOLS, "_ws.malformed", "_ws.lua.error")
        ours = [(name, value) for name, value in fields if name.startswith(prefixes)]
        found[names[int(number)]].append(ours)
    return found


def values(packets: list[list[Field]], *names: str) -> list[str]:
    return [value for packet in packets for name, value in packet if name in names]


LONG = [pytest.param(how, marks=pytest.mark.long) for how in [(WHOLE, "-2"), (SPLIT,)]]


@pytest.mark.parametrize("how", [(SPLIT, "-2"), *LONG], ids=str)
def test_the_same_is_shown_however_the_bytes_came(how: tuple[Any, ...]) -> None:
    """In one pass or in two, in large segments or in tiny ones; links name packets, and differ."""

    def fields(found: dict[str, list[list[Field]]]) -> dict[str, list[list[Field]]]:
        return {
            name: [[field for packet in packets for field in packet if field[0] not in LINKS]]
            for name, packets in found.items()
        }

    assert fields(shown(*how)) == fields(shown(WHOLE))


def test_only_what_was_recorded_so_is_malformed() -> None:
    """UM-18, SA-01: it is marked; and no script fails."""
    found = {
        name
        for name, packets in shown(WHOLE).items()
        if any("malformed" in field or "_ws" in field for packet in packets for field, _ in packet)
    }
    assert found == {"umq: an unknown command", "umq: lower case", "sabc: no frame"}


@pytest.mark.parametrize("name", NAMES)
def test_lumberjack(name: str) -> None:
    """LJ-03 … LJ-08: sequences, pairs and documents, also out of compressed frames; acks."""
    packets = shown(WHOLE)[name]
    sent, answers = captured(name)
    events = [(frame[0], *frame[2:]) for frame in inner_frames(sent) if frame[0] in "JD"]
    acks = [int.from_bytes(answers[at + 2 : at + 6], "big") for at in range(0, len(answers), 6)]
    sequences = [number for _, number, _ in events] + acks
    assert sorted(map(int, values(packets, "lumberjack.sequence"))) == sorted(sequences)
    documents = [content.decode() for kind, _, content in events if kind == "J"]
    assert values(packets, "lumberjack.json") == documents
    pairs = [
        text
        for kind, _, content in events
        if kind == "D"
        for pair in content.items()
        for text in pair
    ]
    assert values(packets, "lumberjack.key", "lumberjack.value") == pairs


def test_micromsg2_of_the_reference() -> None:
    """MM-02, MM-11, MM-12: handshakes first, then messages."""
    packets = shown(WHOLE)["micromsg2 reference"]
    kinds = values(packets, "micromsg2.kind")
    assert kinds == ["Handshake"] * 3 + ["Message"] * 8
    assert values(packets, "micromsg2.identity") == ["hulk", "FastSocket v1.1", "hulk"]
    assert values(packets, "micromsg2.sequence") == [n for n in "1234" for _ in "><"]
    assert values(packets, "micromsg2.properties") == ["first_name:jonas;"]
    lengths = values(packets, "micromsg2.length")
    assert lengths == ["6"] * 6 + ["300"] * 2
    assert values(packets, "micromsg2.payload")[0] == "68:65:6c:6c:6f:30"


def test_micromsg2_extensions_have_their_names() -> None:
    """MM-08, MM-09, MM-15 … MM-17, MM-21."""
    packets = shown(WHOLE)["micromsg2"]
    assert values(packets, "micromsg2.ack") == ["2"]
    assert values(packets, "micromsg2.extension.name") == ["batch-ack"]
    assert values(packets, "micromsg2.command") == ["dance;with=me"]
    (error,) = values(packets, "micromsg2.error")
    assert "dance" in error
    assert values(packets, "micromsg2.destination") == ["queue/jobs", "commands"]


def test_umq_of_the_reference() -> None:
    """UM-02 … UM-04, UM-09: commands, attachments with their messages, answers with their calls."""
    packets = shown(WHOLE)["umq reference"]
    said = recordings.reference_umq()
    texts = [text for _, text in said if isinstance(text, str)]
    frames = [umq.Decoder(umq_limits()).decode(text) for text in texts]
    assert values(packets, "umq.command") == [frame.command.letter for frame in frames]
    assert values(packets, "umq.id") == [frame.id for frame in frames]
    assert values(packets, "umq.payload") == [frame.payload for frame in frames]
    bodies = [body.hex(":") for _, body in said if isinstance(body, bytes)]
    assert values(packets, "umq.attachment") == bodies
    first = next(number for number, packet in enumerate(packets) if packet)
    at = {name: value for packet in packets for name, value in packet if name in LINKS}
    assert set(at) == {"umq.announced_in", "umq.call_in"}
    numbers = values(packets, "umq.call_in")
    assert len(numbers) == sum(text.startswith(("R", "E", "A1:R")) for text in texts)
    # Each message of the reference is a packet of its own: count them from the first one.
    announced = values(packets, "umq.announced_in")
    shift = int(numbers[0]) - texts.index("C5AX12:How are you?") - first
    places = [int(number) - shift - first for number in announced]
    messages = [message for _, message in said]
    assert [messages[place] for place in places] == [
        "A1:R121:Sending image/png",
        *["A2:C1AZ4:sum"] * 2,
        *["A2:T9A8Z:update2"] * 2,
    ]


def umq_limits() -> Any:
    from twisted_msgproto.core.limits import Limits

    return Limits.of(umq.LIMITS)


def test_umq_details() -> None:
    """UM-08, UM-11, UM-15: methods, callbacks, attributes, codes."""
    found = shown(WHOLE)
    assert values(found["umq: topics"], "umq.method") == ["subscribe"]
    assert values(found["umq: callbacks"], "umq.callback")[:3] == ["1", "02", "9"]
    names = values(found["umq: attributes"], "umq.attribute")
    assert names[:4] == ["name", "picture", "name", "a"]
    assert values(found["umq: attributes"], "umq.attribute.value")[:2] == [" a = b ", "png"]
    assert values(found["umq: refused"], "umq.code") == ["1"]
    assert values(found["umq: refused"], "umq.command.name") == ["Hello", "Fatal", "Welcome"]
    lost = values(found["umq: attachments"], "umq.payload")
    assert "it is gone" in lost


@pytest.mark.parametrize("name", recordings.recorded("sabc-sessions"))
def test_sabc_on_websocket(name: str) -> None:
    """SA-01, SA-02, SA-25: every frame with its headers and body."""
    from twisted_msgproto.sabc.wire.framing import read_frame

    steps = recordings.recorded("sabc-sessions")[name]["steps"]
    messages = [one for _, some in recordings.messages_of(steps) for one in some]
    octets = [one.encode() if isinstance(one, str) else one for one in messages]
    frames: list[Any] = [read_frame(one) for one in octets]
    frames = [frame for frame in frames if hasattr(frame, "command")]
    packets = shown(WHOLE)[f"sabc: {name}"]
    if "behind" in name or name == "no frame":
        assert values(packets, "sabc.command")[:2] == ["CONNECT", "CONNECTED"]
        return
    assert values(packets, "sabc.command") == [frame.command for frame in frames]
    headers = [f"{key}::{value}" for frame in frames for key, value in frame.headers.items()]
    assert values(packets, "sabc.header") == headers
    bodies = [frame.body.hex(":") for frame in frames if frame.body]
    assert values(packets, "sabc.body") == bodies
    finals = [str(int(frame.final)) for frame in frames]
    assert [
        value[0].replace("t", "1").replace("f", "0") for value in values(packets, "sabc.final")
    ] == finals


@pytest.mark.parametrize("announces", [True, False])
def test_sabc_on_tcp(announces: bool) -> None:
    """SA-26: with lengths, and with end marks and frames that begin where a body ends."""
    packets = shown(WHOLE)[f"sabc on tcp, lengths: {announces}"]
    commands = values(packets, "sabc.command")
    parts = commands.count("MESSAGE") - 4
    assert parts > 2
    assert commands == [
        "CONNECT",
        "CONNECTED",
        *["MESSAGE"] * (2 + parts + 1),
        "MESSAGE",
        "ERROR",
        "DISCONNECT",
        "DISCONNECTING",
    ]
    bodies = [bytes.fromhex(body.replace(":", "")) for body in values(packets, "sabc.body")]
    assert bodies[0] == b"Hola"
    assert bodies[-2:] == [b"Mundo!!!", b"not today"]
    sent = "Grüße \0 in several parts, DISCONNECT\r\nwould be a command"
    assert b"".join(bodies[1:-2]).decode() == sent
    assert values(packets, "sabc.ref_msg_id") == ["1", "2"]
    assert len(values(packets, "sabc.request_in")) == 2


def test_the_picture_of_the_documents_is_what_tshark_shows() -> None:
    assert picture.PICTURE.read_text() == picture.drawn()
