"""UMQ's machines: the grammar, hello and welcome, every state against every event, times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles import due, unanswered
from tests.umq.pairs import EXAMPLES, STATES, at, client, feed, limits, names, refused, server, told
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.umq import AttachmentFailure
from twisted_msgproto.umq.machine import Client, Server

READ = [
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
]


@pytest.mark.parametrize(("text", "event"), READ)
def test_commands_are_read(text, event):
    """UM-02, UM-03, UM-09, UM-17."""
    machine = client()
    machine.call("x", waiter="me")
    machine.subscribe()
    machine.register_callback()
    found = feed(machine, text, *[b"%d" % n for n in range({"A1": 1, "AW": 32}.get(text[:2], 0))])
    assert found == [event]


FAULTY = [
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
    ("S:key", "attribute", 3),  # UM-15
    *[("B1:" + p, "callback", 3) for p in ("", "1", "x:1", "1z:1", " 1:x", "1" * 14 + ":x")],
    *[(f"A1:{letter}1:1 x", "bare", 3) for letter in "FEDUX!-"],  # UM-05
    *[(f"A0:{letter}1:1 x", "bare", 3) for letter in "FEDUX!-"],
]


@pytest.mark.parametrize(("text", "reason", "code"), FAULTY)
def test_what_is_no_command_has_a_reason_and_a_code(text, reason, code):
    """UM-02, UM-03, UM-05, UM-11, UM-15, UM-18, UM-19."""
    refused(server(), text, code=code, reason=reason)


@given(st.integers(min_value=0, max_value=36**13 - 1))
def test_ids_are_numbers_in_base_36__UM_02(number):
    """UM-11: compared by value, written without a zero in front."""
    machine = client()
    machine.call("x", (), number)
    (text,) = machine.outputs()
    written = text.split(":")[1]
    assert int(written or "0", 36) == number
    assert not written.startswith("0") or number == 0
    assert feed(machine, f"C{written.zfill(13)}:x") == [told.CallReceived(written.zfill(13), "x")]
    refused(machine, f"C{written}:again", reason="duplicate")


HELLOS = {"H1:": "W1:", "H7:": "W1:", "HZZ:": "W1:", "H:": None, "H0:": None, "H000:x": None}


@pytest.mark.parametrize("hello, welcome", HELLOS.items())
def test_the_server_lowers_the_version_and_none_below_1_is_there(hello, welcome):
    """UM-07."""
    machine = Server()
    if welcome is None:
        refused(machine, hello, code=5, reason="version")
        return
    feed(machine, hello)
    machine.welcome()
    assert machine.outputs() == [welcome]


@pytest.mark.parametrize("welcome", ["W0:", "W2:"])
def test_the_client_takes_no_version_that_it_has_not_offered(welcome):
    """UM-07."""
    machine = Client(limits())
    machine.hello()
    refused(machine, welcome, code=5, reason="version")


def test_hello_with_attachments_is_welcomed_when_they_are_there():
    """UM-06, UM-07."""
    machine = Server(limits())
    assert feed(machine, "A2:H1:x", b"a") == []
    with pytest.raises(IllegalTransition):
        machine.welcome()
    assert feed(machine, "-:lost") == [
        told.HelloReceived(1, "x", [b"a", AttachmentFailure("lost")])
    ]
    assert machine.memory.nbytes == 256 + len("xalost")
    machine.welcome()
    assert machine.memory.nbytes == 0


def test_hello_is_bounded_before_anybody_is_authorised():
    """UM-06, UM-20: 64 KiB, at most four attachments, and H alone."""
    refused(Server(), "A5:H1:x", code=1, reason="hello-attachments")
    assert feed(Server(), "A4:H1:x") == []
    refused(Server(), "H1:" + "x" * 65537, reason="hello-characters")
    assert feed(Server(), "H1:" + "x" * 65536)
    machine = Server(limits())
    feed(machine, "A1:H1:x")
    refused(machine, "C1:x", reason="state")
    machine = Server()
    feed(machine, "H1:x")
    (fault,) = feed(machine, b"x" * 65)
    assert (fault.reason, fault.nbytes) == ("stray", b"x" * 64)


def test_a_fault_while_welcome_waits_is_the_last_event():
    """UM-07, UM-18."""
    machine = Client()
    machine.hello()
    feed(machine, "A2:W1:w", "C1:q")
    assert refused(machine, "C1:q", reason="duplicate") == []


def test_a_hand_shake_has_its_time_on_either_side():
    """UM-07, UM-20, HO-07: from the upgrade to H, from H to W; a client decides as long as it
    likes.
    """
    for make in (Client, Server):
        machine = make(limits(), 100.0)
        if make is Client:
            machine.hello()
        assert due(machine, 109.9) == ([], 110.0)
        (fault,), deadline = due(machine, 110.0)
        assert (deadline, fault.reason, fault.code) == (None, "hello-seconds", 1)
    machine = Server()
    feed(machine, "H1:", now=7.0)
    assert machine.advance(16.0) == []
    (fault,) = machine.advance(17.0)
    assert machine.outputs() == ["F0:8 nobody decided in time whether the client may come in"]
    assert machine.finished
    machine = Client(limits(), 0.0)
    machine.hello()
    machine.receive(["W1:"], 1.0)
    assert due(machine, 1e6) == ([], None)
    machine.accept(1e6)
    assert due(server(), 1e6) == ([], None)


# ── Every state against every event ─────────────────────────────────────────────────────────────

TABLE = {
    ("client", "START"): {"F": "CLOSED"},
    ("client", "AWAITING_WELCOME"): {"W": "OPEN", "F": "CLOSED"},
    ("server", "AWAITING_HELLO"): {"H": "AUTHORISING", "F": "CLOSED"},
    ("server", "RECEIVING_HELLO"): {
        "F": "CLOSED",
        "-": "AUTHORISING",
        "attachment": "AUTHORISING",
    },
    ("server", "AUTHORISING"): {"F": "CLOSED"},
    **{(side, "OPEN"): dict.fromkeys("CBRETDUSX", "OPEN") | {"F": "CLOSED"}
       for side in ("client", "server")},
}  # fmt: skip
"""State and message → the next state; what is in no row is ``F`` 3."""


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize(("side", "state"), STATES)
def test_every_state_against_every_frame(side, state, kind):
    """UM-01, UM-07, UM-08, UM-18: what the table does not allow is ``F`` 3, then silence."""
    machine = at(side, state)
    if state == "CLOSED":
        assert feed(machine, EXAMPLES[kind]) == []
    elif kind not in TABLE[side, state]:
        stray = kind in ("-", "attachment") and state == "OPEN"
        refused(machine, EXAMPLES[kind], reason="stray" if stray else None)
    else:
        assert "UmqFault" not in names(feed(machine, EXAMPLES[kind]))
        assert machine.snapshot()["state"] == TABLE[side, state][kind]


VERBS = {
    "call": lambda machine: machine.call("x"),
    "callback": lambda machine: machine.call("x", (), 1),
    "result": lambda machine: machine.result("1", "x"),
    "error": lambda machine: machine.error("1", "x"),
    "subscribe": lambda machine: machine.subscribe(),
    "unsubscribe": lambda machine: machine.unsubscribe(1),
    "open_topic": lambda machine: machine.open_topic("1"),
    "publish": lambda machine: machine.publish(1, "x"),
    "close_topic": lambda machine: machine.close_topic(1),
    "set_attribute": lambda machine: machine.set_attribute("a", "b"),
    "unset_attribute": lambda machine: machine.unset_attribute("a"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("side", "state"), STATES)
def test_verbs_of_the_session_need_an_open_session(side, state, verb):
    """UM-07: before W nothing but H and its attachments is sent, after F nothing at all."""
    machine = at(side, state)
    if state == "OPEN":
        feed(machine, "C1:x")
        machine.open_topic("2") if verb != "publish" else machine.open_topic("1")
        VERBS[verb](machine)
    else:
        with pytest.raises(IllegalTransition):
            VERBS[verb](machine)
        assert machine.outputs() == []


@pytest.mark.parametrize(("side", "state"), STATES)
def test_hello_and_welcome_have_one_moment_each(side, state):
    """UM-06, UM-07."""
    if side == "client" and state != "START":
        with pytest.raises(IllegalTransition):
            at(side, state).hello()
    elif side == "server" and state != "AUTHORISING":
        with pytest.raises(IllegalTransition):
            at(side, state).welcome()


@pytest.mark.parametrize(("side", "state"), STATES)
def test_fatal_may_be_said_in_any_state_and_is_the_last_word(side, state):
    """UM-08."""
    machine = at(side, state)
    machine.fatal(1, "no")
    assert machine.outputs() == ([] if state == "CLOSED" else ["F0:1 no"])
    assert machine.closed
    machine.fatal(1, "again")
    call = [told.CallReceived("1", "x")]
    assert machine.oversized(1.0) == machine.made_safe(call, 1.0) == machine.not_safe(call, 1.0)
    assert machine.made_safe(call, 1.0) == machine.outputs() == []


# ── Fatal ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text, code, message",
    [
        ("F0:123 Authorization failed", 123, "Authorization failed"),
        ("F:3 Protocol error", 3, "Protocol error"),
        ("F0:8", 8, ""),
        ("F0:", None, ""),
        ("F0:just words", None, "just words"),
        ("F0:999999999 x", 999_999_999, "x"),
        ("F0:1000000000 x", None, "1000000000 x"),
        ("F0:\u0661 x", None, "\u0661 x"),
    ],
)
def test_fatal_is_the_last_event(text, code, message):
    """UM-08."""
    machine = client()
    machine.call("x", waiter="me")
    machine.outputs()
    assert feed(machine, text) == [told.FatalReceived(code, message)]
    assert machine.closed
    assert unanswered(machine) == ["me"]
    assert feed(machine, "R1:x") == []
    assert machine.outputs() == []


def test_of_a_lost_session_nothing_is_sent():
    machine = server()
    machine.call("x")
    machine.lost(1.0)
    assert machine.outputs() == []


def test_a_server_that_stops_refuses_calls_and_ends_when_the_others_are_answered():
    machine = server()
    feed(machine, "C1:before")
    assert machine.drain(1.0) == []
    assert feed(machine, "C2:behind") == []
    assert machine.outputs() == ["E2:8 the server stops"]
    assert not machine.finished
    machine.result("1", "done")
    assert machine.finished


def test_each_topic_that_closes_has_its_own_time__UM_14():
    machine = client()
    first, second = machine.subscribe(), machine.subscribe()
    feed(machine, "T1:x", now=10.0)
    machine.unsubscribe(first)
    feed(machine, "T2:x", now=30.0)
    machine.unsubscribe(second)
    machine.outputs()
    machine.advance(70.0)
    assert machine.snapshot()["closing"] == 1
    machine.advance(machine.deadline)
    assert (machine.clock, machine.snapshot()["closing"]) == (90.0, 0)
