"""UMQ's machines: every state against every event and every verb; what F ends."""

import pytest

from tests.doubles import unanswered
from tests.umq.sides import EXAMPLES, at, client, feed, refused, server
from twisted_msgproto.core.machine import IllegalTransition, events
from twisted_msgproto.umq import wire
from twisted_msgproto.umq.terms import states
from twisted_msgproto.umq.terms.events import FatalReceived
from twisted_msgproto.umq.terms.states import CLIENT, SERVER, ClientState, ServerState
from twisted_msgproto.umq.wire import Code, UmqFault

# ── Every state against every event ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("table", [CLIENT, SERVER])
def test_every_state_has_a_row_and_every_event_is_known(table):
    assert set(table) == set(type(next(iter(table))))
    ours = {
        states.HelloSent,
        states.HelloCompleted,
        states.WelcomeSent,
        states.CommandSent,
        states.FatalSent,
        states.Faulted,
        states.ConnectionLost,
    }
    assert set(events(table)) <= set(EXAMPLES) | ours


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", [*ClientState, *ServerState], ids=str)
def test_every_state_against_every_frame(state, kind):
    """UM-01, UM-07, UM-08, UM-18: what the table does not allow is ``F`` 3, then silence."""
    machine = at(state)
    row = machine.table[state]
    if machine.closed:
        assert feed(machine, EXAMPLES[kind]) == []
    elif kind not in row:
        refused(machine, EXAMPLES[kind])
    elif kind in (wire.Attachment, wire.AttachmentError) and state.name == "OPEN":
        refused(machine, EXAMPLES[kind], reason="stray")
    else:
        found = feed(machine, EXAMPLES[kind])
        assert not any(isinstance(event, UmqFault) for event in found)
        expected = row[kind]
        if state is ServerState.AWAITING_HELLO and kind is wire.Hello:
            expected = ServerState.AUTHORISING  # no attachments: complete at once
        if state is ServerState.RECEIVING_HELLO and kind is not wire.Fatal:
            expected = ServerState.AUTHORISING
        assert machine.state is expected


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
@pytest.mark.parametrize("state", [*ClientState, *ServerState], ids=str)
def test_verbs_of_the_session_need_an_open_session(state, verb):
    """UM-07: before W nothing but H and its attachments is sent, after F nothing at all."""
    machine = at(state)
    if state.name == "OPEN":
        machine.receive_text("C1:x", 0.0)
        machine.open_topic("2") if verb != "publish" else machine.open_topic("1")
        VERBS[verb](machine)
    else:
        with pytest.raises(IllegalTransition):
            VERBS[verb](machine)
        assert machine.outputs() == []


@pytest.mark.parametrize("state", [*ClientState, *ServerState], ids=str)
def test_hello_and_welcome_have_one_moment_each(state):
    """UM-06, UM-07."""
    if isinstance(state, ClientState) and state is not ClientState.START:
        with pytest.raises(IllegalTransition):
            at(state).hello()
    elif isinstance(state, ServerState) and state is not ServerState.AUTHORISING:
        with pytest.raises(IllegalTransition):
            at(state).welcome()


@pytest.mark.parametrize("state", [*ClientState, *ServerState], ids=str)
def test_fatal_may_be_said_in_any_state_and_is_the_last_word(state):
    """UM-08."""
    machine = at(state)
    machine.fatal(Code.REJECTED, "no")
    assert machine.outputs() == ([] if state.name == "CLOSED" else ["F0:1 no"])
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
    assert feed(machine, text) == [FatalReceived(code, message)]
    assert machine.closed
    assert unanswered(machine) == ["me"]
    assert feed(machine, "R1:x") == []
    assert machine.outputs() == []
