"""UMQ's grammar: what is read, what is written, and what is refused with which code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_msgproto.core.limits import Limits
from twisted_msgproto.umq import wire
from twisted_msgproto.umq.wire import Decoder, UmqFault, base36, encode, is_id, number

DECODE = Decoder(Limits.of(wire.LIMITS)).decode


@pytest.mark.parametrize(
    "text, kind, id, payload, attachments",
    [
        # The source's examples (UM-02, UM-03)
        ('C1AZ3:["method","arg1","arg2"]', wire.Call, "1AZ3", '["method","arg1","arg2"]', 0),
        ('A3:C1AZ4:["method"]', wire.Call, "1AZ4", '["method"]', 3),
        ("A1:R121:Sending image/png", wire.Result, "121", "Sending image/png", 1),
        ("F0:123 Authorization failed", wire.Fatal, "0", "123 Authorization failed", 0),
        ("-:Upstream download error", wire.AttachmentError, "", "Upstream download error", 0),
        ("E112:I'm teapot", wire.CallError, "112", "I'm teapot", 0),
        ("B63:4454:here is a work", wire.Callback, "63", "4454:here is a work", 0),
        ("T9A8Z: update1", wire.TopicUpdate, "9A8Z", " update1", 0),
        ("D9A8Z:", wire.TopicClose, "9A8Z", "", 0),
        ("U9A8Z:", wire.Unsubscribe, "9A8Z", "", 0),
        ("S:key=value", wire.SetAttribute, "", "key=value", 0),
        ("X:key", wire.UnsetAttribute, "", "key", 0),
        ("H1:tok", wire.Hello, "1", "tok", 0),
        ("W1:welcome", wire.Welcome, "1", "welcome", 0),
        # Corners
        ("!7:6 no", wire.CallError, "7", "6 no", 0),  # UM-09: read like E
        ("C:", wire.Call, "", "", 0),  # UM-02: no digits
        ("CC:", wire.Call, "C", "", 0),
        ("A:C1:x", wire.Call, "1", "x", 0),  # UM-03: none
        ("A0:C1:x", wire.Call, "1", "x", 0),
        ("AW:C1:x", wire.Call, "1", "x", 32),  # UM-19: 32 is allowed
        ("CAAAAAAAAAAAAA:x", wire.Call, "AAAAAAAAAAAAA", "x", 0),  # 13 digits
        ("C00000000000000001:"[:14] + ":", wire.Call, "0000000000000", "", 0),
        ("C1:A1:C2:x", wire.Call, "1", "A1:C2:x", 0),  # the payload is opaque (UM-17)
        ("C1:\n\0é\U0001f980", wire.Call, "1", "\n\0é\U0001f980", 0),
    ],
)
def test_commands_are_read(text, kind, id, payload, attachments):
    """UM-02, UM-03, UM-09, UM-17."""
    frame = DECODE(text)
    assert type(frame) is kind
    assert (frame.id, frame.payload, frame.attachments) == (id, payload, attachments)


@pytest.mark.parametrize(
    "text, reason, code",
    [
        ("", "empty", 3),
        ("A1:", "empty", 3),
        ("C1", "id", 3),
        ("C", "id", 3),
        (":", "id", 3),
        ("hello", "id", 3),
        ("C1z:x", "id", 3),  # UM-02: lower case digits
        ("C-1:x", "id", 3),
        ("C 1:x", "id", 3),
        ("C١:x", "id", 3),  # a digit, but not ASCII
        ("c1:x", "case", 3),
        ("h1:tok", "case", 3),
        ("C" + "1" * 14 + ":x", "id", 3),  # UM-02: 14 digits
        ("C" + "1" * 8000 + ":x", "id", 3),  # the issue: ids of 8,000 digits
        ("A" + "0" * 8000 + ":C1:x", "count", 3),
        ("A" + "0" * 14 + ":C1:x", "count", 3),
        ("A", "count", 3),
        ("A1", "count", 3),
        ("Ax:C1:x", "count", 3),
        ("A1:A1:C1:x", "nested", 3),  # UM-03
        ("A1:A", "nested", 3),
        ("AX:C1:x", "attachments", 3),  # UM-19: 33
        ("AZZZZZZZZZZZZZ:C1:x", "attachments", 3),
        ("Z1:x", "command", 4),  # UM-18
        ("?1:x", "command", 4),
        ("é1:x", "command", 4),
        ("z1:x", "command", 4),
        ("A1:Z1:x", "command", 4),
        *[(f"A1:{letter}1:1 x", "bare", 3) for letter in "FEDUX!-"],  # UM-05
        *[(f"A0:{letter}1:1 x", "bare", 3) for letter in "FEDUX!-"],
    ],
)
def test_what_is_no_command_has_a_reason_and_a_code(text, reason, code):
    """UM-02, UM-03, UM-05, UM-18, UM-19."""
    fault = DECODE(text)
    assert type(fault) is UmqFault
    assert (fault.reason, fault.code) == (reason, code)
    assert len(fault.text) <= 200 and len(fault.octets) <= 256


def test_payloads_are_limited():
    """UM-20."""
    decode = Decoder(Limits.of(wire.LIMITS).replace({"payload-characters": 10})).decode
    assert type(decode("C1:" + "x" * 10)) is wire.Call
    assert decode("C1:" + "x" * 11).reason == "payload"


def test_ids_are_compared_by_value():
    """UM-02, UM-09."""
    assert wire.Call("007").number == wire.Call("7").number == 7
    assert wire.Call("").number == 0
    assert wire.Call("ZZ").number == 35 * 36 + 35


@pytest.mark.parametrize(
    "text, expected",
    [("", True), ("0Z", True), ("0" * 13, True), ("0" * 14, False), ("a", False), ("1 ", False)],
)
def test_what_an_id_is(text, expected):
    assert is_id(text) is expected


@given(st.integers(min_value=0, max_value=36**13 - 1))
def test_base_36_round_trips(value):
    assert number(base36(value)) == value
    assert is_id(base36(value))


IDS = st.text("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", max_size=13)


@given(
    st.sampled_from(sorted(wire.LETTERS, key=lambda kind: kind.__name__)),
    IDS,
    st.text(),
    st.integers(0, 32),
)
def test_frames_round_trip(kind, id, payload, attachments):
    """UM-02, UM-03, UM-05: A is written only for attachments, and only where they may be."""
    frame = kind(id, payload, 0 if wire.LETTERS[kind] in wire.BARE else attachments)
    text = encode(frame)
    assert DECODE(text) == frame
    assert text.startswith("A") == (frame.attachments > 0)


@given(st.text())
def test_any_text_is_a_command_or_a_fault(text):
    """UM-18: only documented outcomes, and diagnosis agrees with the pattern."""
    frame = DECODE(text)
    if type(frame) is UmqFault:
        assert frame.reason in {
            "empty",
            "id",
            "count",
            "nested",
            "attachments",
            "bare",
            "case",
            "command",
            "payload",
        }
    else:
        assert (
            encode(frame).replace("A0:", "") in (text, text.replace("!", "E", 1)) or text[0] == "A"
        )


@given(st.text("A0Z1:CTE-a!F", max_size=12))
def test_texts_near_the_grammar_are_a_command_or_a_fault(text):
    """UM-18."""
    assert isinstance(DECODE(text), wire.Frame | UmqFault)
