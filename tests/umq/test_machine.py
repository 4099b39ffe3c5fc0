"""UMQ's machines: every state against every event and every verb; what F ends."""

import pytest

from tests.doubles import unanswered
from tests.umq.sides import EXAMPLES, STATES, at, client, feed, names, refused, server, told
from twisted_msgproto.core.machine import IllegalTransition

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
    "callback": lambda machine: machine.callback(1, "x"),
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
    assert machine.outputs() == []


def test_snapshots_are_plain():
    assert client().snapshot()["state"] == "OPEN"
    assert all(isinstance(value, str | int) for value in server().snapshot().values())


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
