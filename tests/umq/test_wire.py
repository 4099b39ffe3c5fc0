"""UMQ's grammar: what is read, and what is refused with which code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.umq.sides import client, feed, names, refused, server, told


@pytest.mark.parametrize(
    ("text", "event"),
    [
        # The source's examples (UM-02, UM-03)
        ('C1AZ3:["method","arg1"]', told.CallReceived("1AZ3", '["method","arg1"]')),
        ("A1:R1:Sending image/png", told.ResultReceived(1, "me", "Sending image/png", [b"0"])),
        ("F0:123 Authorization failed", told.FatalReceived(123, "Authorization failed")),
        ("E1:I'm teapot", told.ErrorReceived(1, "me", "I'm teapot")),
        ("B63:1:here is a work", told.CallbackReceived("63", 1, "here is a work")),
        ("T1: update1", told.TopicUpdated(1, " update1")),
        ("D1:", told.TopicClosed(1)),
        ("S:key=value", told.AttributeSet("key", "value")),
        ("X:key", told.AttributeUnset("key")),
        # Corners
        ("!1:6 no", told.ErrorReceived(1, "me", "6 no")),  # UM-09: read like E
        ("C:", told.CallReceived("", "")),  # UM-02: no digits
        ("CC:", told.CallReceived("C", "")),
        ("A:C1:x", told.CallReceived("1", "x")),  # UM-03: none
        ("A0:C1:x", told.CallReceived("1", "x")),
        ("AW:C1:x", told.CallReceived("1", "x", [b"%d" % n for n in range(32)])),  # UM-19
        ("CAAAAAAAAAAAAA:x", told.CallReceived("AAAAAAAAAAAAA", "x")),  # 13 digits
        ("C0000000000000:", told.CallReceived("0000000000000", "")),
        ("C1:A1:C2:x", told.CallReceived("1", "A1:C2:x")),  # the payload is opaque (UM-17)
        ("C1:\n\0é\U0001f980", told.CallReceived("1", "\n\0é\U0001f980")),
    ],
)
def test_commands_are_read(text, event):
    """UM-02, UM-03, UM-09, UM-17."""
    machine = client()
    machine.call("x", waiter="me")
    machine.subscribe()
    machine.register_callback()
    found = feed(machine, text, *[b"%d" % n for n in range({"A1": 1, "AW": 32}.get(text[:2], 0))])
    assert found == [event]


@pytest.mark.parametrize(
    ("text", "reason", "code"),
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
    machine = server()
    refused(machine, text, code=code, reason=reason)
    assert len(machine.fault.text) <= 200 and len(machine.fault.octets) <= 256


def test_payloads_are_limited():
    """UM-20."""
    machine = server(payload_characters=10)
    assert len(feed(machine, "C1:" + "x" * 10)) == 1
    refused(machine, "C2:" + "x" * 11, reason="payload")


@given(st.integers(min_value=0, max_value=36**13 - 1))
def test_ids_are_numbers_in_base_36__UM_02(number):
    """UM-11: compared by value, written without a zero in front."""
    machine = client()
    machine.callback(number, "x")
    (text,) = machine.outputs()
    written = text.split(":")[1]
    assert int(written or "0", 36) == number
    assert not written.startswith("0") or number == 0
    assert feed(machine, f"C{written.zfill(13)}:x") == [told.CallReceived(written.zfill(13), "x")]
    refused(machine, f"C{written}:again", reason="duplicate")


TEXTS = st.one_of(st.text(), st.text("A0Z1:CTE-a!F", max_size=12))


@given(TEXTS)
def test_any_text_is_a_command_or_a_fault(text):
    """UM-18: only documented outcomes."""
    machine = server()
    (event,) = feed(machine, text) or [None]
    if names([event]) == ["UmqFault"]:
        assert event.reason in {
            *("empty", "id", "count", "nested", "attachments", "bare", "case", "command"),
            *("payload", "stray", "state", "attribute", "callback", "duplicate"),
        }
