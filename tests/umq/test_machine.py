"""UMQ's machines: every state against every event, the order of attachments, and every limit."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import IllegalTransition, events
from twisted_msgproto.umq import states, wire
from twisted_msgproto.umq.attachments import Slot
from twisted_msgproto.umq.events import (
    AttachmentArrived,
    AttachmentFailure,
    AttachmentsAnnounced,
    AttributeSet,
    AttributeUnset,
    CallbackReceived,
    CallExpired,
    CallReceived,
    ErrorReceived,
    FatalReceived,
    HelloReceived,
    ResultReceived,
    TopicClosed,
    TopicUnsubscribed,
    TopicUpdated,
    WelcomeReceived,
)
from twisted_msgproto.umq.machine import Client, Server
from twisted_msgproto.umq.states import CLIENT, LIMITS, SERVER, ClientState, ServerState
from twisted_msgproto.umq.wire import Code, UmqFault


def limits(**changes):
    return Limits.of(LIMITS).replace({k.replace("_", "-"): v for k, v in changes.items()})


def server(**changes):
    """A server whose session is open, with nothing left to send."""
    machine = Server(limits(**changes), 0.0)
    machine.receive_text("H1:", 0.0)
    machine.welcome()
    machine.data_to_send()
    return machine


def client(**changes):
    """A client whose session is open, with nothing left to send."""
    machine = Client(limits(**changes), 0.0)
    machine.hello()
    machine.receive_text("W1:", 0.0)
    machine.data_to_send()
    return machine


def feed(machine, *messages, now=0.0):
    """All events of ``messages`` but the announcements of attachments."""
    found = []
    for message in messages:
        if isinstance(message, str):
            found += machine.receive_text(message, now)
        else:
            found += machine.receive_binary(message, now)
    return [event for event in found if not isinstance(event, AttachmentsAnnounced)]


def refused(machine, *messages, code=3, reason=None):
    """The last of ``messages`` is answered with ``F``, which is the last word of the machine."""
    found = feed(machine, *messages)
    assert type(found[-1]) is UmqFault, found
    assert found[-1].code == code
    assert reason is None or found[-1].reason == reason
    assert machine.fault is found[-1]
    assert machine.closed and machine.next_deadline() is None
    assert machine.data_to_send()[-1].startswith(f"F0:{code} ")
    assert feed(machine, "C9:x", b"x", "H1:") == []
    assert machine.data_to_send() == []
    assert machine.tick(1e9) is None and machine.due_events() == []
    return found[:-1]


# ── Every state against every event ─────────────────────────────────────────────────────────────


def at(state):
    """A machine in ``state``."""
    if isinstance(state, ServerState):
        machine = Server(limits(hello_attachments=1), 0.0)
        if state is ServerState.RECEIVING_HELLO:
            feed(machine, "A1:H1:")
        elif state in (ServerState.AUTHORISING, ServerState.OPEN):
            feed(machine, "H1:")
            if state is ServerState.OPEN:
                machine.welcome()
    else:
        machine = Client(limits(), 0.0)
        if state in (ClientState.AWAITING_WELCOME, ClientState.OPEN):
            machine.hello()
        if state is ClientState.OPEN:
            feed(machine, "W1:")
    if state.name == "CLOSED":
        machine.connection_lost()
    machine.data_to_send()
    assert machine.state is state
    return machine


EXAMPLES = {
    wire.Hello: "H1:",
    wire.Welcome: "W1:",
    wire.Fatal: "F0:1 no",
    wire.Call: "C1:x",
    wire.Callback: "B1:1:x",
    wire.Result: "R1:x",
    wire.CallError: "E1:x",
    wire.TopicUpdate: "T1:x",
    wire.TopicClose: "D1:",
    wire.Unsubscribe: "U1:",
    wire.SetAttribute: "S:a=b",
    wire.UnsetAttribute: "X:a",
    wire.AttachmentError: "-:x",
    wire.Attachment: b"x",
}


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
        assert machine.data_to_send() == []


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
    assert machine.data_to_send() == ([] if state.name == "CLOSED" else ["F0:1 no"])
    assert machine.closed
    machine.fatal(1, "again")
    assert machine.data_to_send() == []


# ── Hello and welcome ───────────────────────────────────────────────────────────────────────────


def test_the_hand_shake():
    """UM-06, UM-07: payloads are handed on, the server answers with its own version."""
    c, s = Client(), Server()
    c.hello("let me in")
    (text,) = c.data_to_send()
    assert text == "H1:let me in"
    assert feed(s, text) == [HelloReceived(1, "let me in")]
    assert s.data_to_send() == []
    s.welcome("you are in")
    (text,) = s.data_to_send()
    assert text == "W1:you are in"
    assert feed(c, text) == [WelcomeReceived(1, "you are in")]
    assert c.opened and s.opened


@pytest.mark.parametrize("hello, welcome", [("H1:", "W1:"), ("H7:", "W1:"), ("HZZ:", "W1:")])
def test_the_server_lowers_the_version(hello, welcome):
    """UM-07."""
    machine = Server()
    feed(machine, hello)
    machine.welcome()
    assert machine.data_to_send() == [welcome]


@pytest.mark.parametrize("hello", ["H:", "H0:", "H000:x"])
def test_a_version_below_1_is_fatal_5(hello):
    """UM-07."""
    refused(Server(), hello, code=5, reason="version")


@pytest.mark.parametrize("welcome", ["W2:", "W0:", "W:", "WZ:"])
def test_a_client_refuses_a_version_above_its_own_or_below_1(welcome):
    """UM-07."""
    machine = Client()
    machine.hello()
    machine.data_to_send()
    refused(machine, welcome, code=5, reason="version")


def test_a_client_may_offer_more_and_get_less():
    """UM-07."""
    machine = Client()
    machine.hello("", version=3)
    assert machine.data_to_send() == ["H3:"]
    assert feed(machine, "W2:") == [WelcomeReceived(2, "")]


def test_hello_with_attachments_is_welcomed_when_they_are_there():
    """UM-06, UM-07."""
    machine = Server(limits(hello_attachments=2))
    assert feed(machine, "A2:H1:x", b"a") == []
    with pytest.raises(IllegalTransition):
        machine.welcome()
    assert feed(machine, "-:lost") == [HelloReceived(1, "x", [b"a", AttachmentFailure("lost")])]
    machine.welcome()


def test_hello_is_bounded_before_anybody_is_authorised():
    """UM-06, UM-20: 64 KiB, no attachments unless an option allows them, and H alone."""
    refused(Server(), "A1:H1:x", code=1, reason="hello-attachments")
    refused(Server(), "H1:" + "x" * 65537, reason="hello-characters")
    assert feed(Server(), "H1:" + "x" * 65536)
    machine = Server(limits(hello_attachments=1))
    feed(machine, "A1:H1:x")
    refused(machine, "C1:x", reason="state")
    machine = Server()
    feed(machine, "H1:x")
    refused(machine, b"x", reason="stray")


def test_a_client_cannot_welcome_itself():
    """UM-07: ``W`` is the server's word alone."""
    machine = Server()
    feed(machine, "H1:x")
    refused(machine, "W1:", reason="state")


def test_what_follows_welcome_waits_for_its_attachments():
    """UM-07: after W's text everything is accepted; W's attachments keep their place."""
    machine = Client()
    machine.hello()
    topic = None
    assert feed(machine, "A2:W1:w") == []
    assert machine.opened
    machine.call("early", waiter="me")
    topic = machine.subscribe()
    found = feed(machine, "C1:q", "R1:a", f"A1:T{topic}:t", b"1", "S:k=v")
    assert found == []
    assert feed(machine, b"2", b"3") == [
        WelcomeReceived(1, "w", [b"1", b"2"]),
        CallReceived("1", "q"),
        ResultReceived(1, "me", "a"),
        AttributeSet("k", "v"),
        TopicUpdated(topic, "t", [b"3"]),
    ]


def test_a_fault_while_welcome_waits_is_the_last_event():
    """UM-07, UM-18."""
    machine = Client()
    machine.hello()
    feed(machine, "A2:W1:w", "C1:q")
    assert refused(machine, "C1:q", reason="duplicate") == []


@pytest.mark.parametrize("make", [Client, Server])
def test_no_hello_and_no_welcome_in_time_is_fatal(make):
    """UM-20: hello time-out."""
    machine = make(limits(), 100.0)
    if make is Client:
        machine.hello()
    assert machine.next_deadline() == 110.0
    assert machine.tick(109.9) == 110.0
    assert machine.due_events() == []
    assert machine.tick(110.0) is None
    (fault,) = machine.due_events()
    assert (fault.reason, fault.code) == ("hello-seconds", 1)
    assert machine.data_to_send()[-1].startswith("F0:1 ")


def test_the_hand_shake_stops_its_clock():
    """UM-20."""
    assert server().next_deadline() is None
    assert client().next_deadline() is None
    machine = Server()
    feed(machine, "H1:")
    assert machine.next_deadline() is None  # it is our own application which takes its time


# ── Fatal ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text, code, message",
    [
        ("F0:123 Authorization failed", 123, "Authorization failed"),
        ("F:3 Protocol error", 3, "Protocol error"),
        ("F0:8", 8, ""),
        ("F0:", None, ""),
        ("F0:just words", None, "just words"),
        ("F0:12345678901 x", None, "12345678901 x"),
        ("F0:\u0661 x", None, "\u0661 x"),
    ],
)
def test_fatal_is_the_last_event(text, code, message):
    """UM-08."""
    machine = client()
    machine.call("x", waiter="me")
    machine.data_to_send()
    assert feed(machine, text) == [FatalReceived(code, message)]
    assert machine.closed
    assert machine.connection_lost() == ["me"]
    assert feed(machine, "R1:x") == []
    assert machine.data_to_send() == []


# ── Calls ───────────────────────────────────────────────────────────────────────────────────────


def test_calls_are_answered_by_value_with_the_id_as_it_was_sent():
    """UM-02, UM-09, UM-10."""
    machine = server()
    assert feed(machine, "C005AX12:How are you?") == [CallReceived("005AX12", "How are you?")]
    machine.result("5AX12", "Fine", [b"a"])
    assert machine.data_to_send() == ["A1:R005AX12:Fine", b"a"]
    feed(machine, "C:x")
    machine.error("0", "I'm teapot")
    assert machine.data_to_send() == ["E:I'm teapot"]


def test_our_calls_count_from_1_and_share_one_space_with_callbacks():
    """UM-09, UM-11."""
    machine = client()
    assert [machine.call("a"), machine.callback(4454, "b"), machine.call("c")] == [1, 2, 3]
    assert machine.data_to_send() == ["C1:a", "B2:3FQ:b", "C3:c"]


def test_answers_find_their_waiters_in_any_order():
    """UM-09."""
    machine = client()
    for name in "abc":
        machine.call(name, waiter=name)
    assert feed(machine, "E3:no", "R01:yes", "!2:6 no") == [
        ErrorReceived(3, "c", "no"),
        ResultReceived(1, "a", "yes"),
        ErrorReceived(2, "b", "6 no"),
    ]
    assert machine.calls_pending == 0


def test_answers_to_nobody_are_ignored_and_counted():
    """UM-09: with their attachments (UM-04)."""
    machine = client()
    machine.call("x", waiter="me")
    assert feed(machine, "R7:x", "E8:x", "A1:R9:x", b"gone") == []
    assert machine.counters.unknown_answers == 3
    assert feed(machine, "A1:R1:x", "R1:again", "E1:again", b"a") == [
        ResultReceived(1, "me", "x", [b"a"])
    ]
    assert machine.counters.unknown_answers == 5
    assert feed(machine, "R1:late") == []


@pytest.mark.parametrize("second", ["C1:y", "C001:y", "B1:1:y"])
def test_a_pending_id_used_twice_is_fatal_3(second):
    """UM-09: C and B share one space, compared by value."""
    refused(server(), "C1:x", second, reason="duplicate")


def test_an_id_may_be_used_again_after_its_answer():
    """UM-09."""
    machine = server()
    for _ in range(3):
        feed(machine, "C1:x")
        machine.result("1", "y")
    assert machine.data_to_send() == ["R1:y"] * 3
    assert machine.calls_serving == 0


def test_what_is_not_pending_cannot_be_answered():
    machine = server()
    feed(machine, "C1:x")
    machine.result("1", "y")
    for verb in (machine.result, machine.error):
        with pytest.raises(ValueError):
            verb("1", "again")


def test_a_flood_of_calls_is_refused_with_8_and_costs_nothing():
    """UM-20: pending calls; the attachments of a refused call are discarded (UM-04)."""
    machine = server(calls=2)
    found = feed(machine, "C1:x", "C2:x", "A1:C3:x", "C4:x", b"gone", "C4:x")
    assert [event.id for event in found] == ["1", "2"]
    assert [text[:5] for text in machine.data_to_send()] == ["E3:8 ", "E4:8 ", "E4:8 "]
    assert machine.counters.calls_refused == 3
    machine.result("1", "")
    assert len(feed(machine, "C5:x")) == 1


def test_calls_are_limited_by_their_weight_too():
    """UM-20."""
    machine = server(calls_octets=100)
    feed(machine, "A1:C1:" + "x" * 50, b"x" * 60)
    assert feed(machine, "C2:x") == []
    assert machine.data_to_send() == ["E2:8 too many calls are pending"]
    machine.error("1", "done")
    assert len(feed(machine, "C3:x")) == 1


def test_our_own_calls_are_limited_and_nothing_is_sent():
    """UM-20."""
    machine = client(own_calls=1)
    machine.call("x")
    machine.data_to_send()
    for verb in (machine.call, lambda text: machine.callback(1, text)):
        with pytest.raises(LimitExceeded):
            verb("y")
    assert machine.data_to_send() == []
    feed(machine, "R1:")
    assert machine.call("z") == 2


def test_a_call_which_is_not_answered_expires_and_its_late_answer_is_ignored():
    """UM-20: call time-out."""
    machine = client()
    machine.call("a", waiter="a", deadline=30.0)
    machine.call("b", waiter="b", deadline=20.0)
    machine.call("c", waiter="c")
    assert machine.next_deadline() == 20.0
    assert machine.tick(20.0) == 30.0
    assert machine.due_events() == [CallExpired(2, "b")]
    assert feed(machine, "R2:late") == []
    assert feed(machine, "R1:x") == [ResultReceived(1, "a", "x")]
    assert machine.tick(1000.0) is None
    assert machine.connection_lost() == ["c"]
    assert machine.connection_lost() == []


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_call_may_end_while_its_answers_attachments_are_on_their_way(how):
    """UM-04, UM-20: its slots stay, its octets are discarded."""
    machine = client()
    machine.call("a", waiter="a", deadline=20.0)
    machine.call("b", waiter="b")
    feed(machine, "A2:R1:x", b"1", "A1:R2:y", now=1.0)
    if how == "cancel":
        assert machine.cancel(1)
        assert not machine.cancel(1)
    else:
        machine.tick(20.0)
        assert machine.due_events() == [CallExpired(1, "a")]
    assert machine.snapshot()["held_octets"] == 1  # of R2's payload
    assert feed(machine, b"2", b"3") == [ResultReceived(2, "b", "y", [b"3"])]


def test_a_cancelled_call_is_not_answered():
    """UM-20: cancel is supported."""
    machine = client()
    machine.call("a", waiter="a")
    assert machine.cancel(1)
    assert feed(machine, "R1:x") == []
    assert machine.counters.unknown_answers == 1


# ── Callbacks ───────────────────────────────────────────────────────────────────────────────────


def test_callbacks_stay_until_they_are_unregistered():
    """UM-11."""
    machine = client()
    first, second = machine.register_callback(), machine.register_callback()
    assert (first, second) == (1, 2)
    assert feed(machine, "B63:1:work: a:b", "A1:B64:02:x", b"y") == [
        CallbackReceived("63", 1, "work: a:b"),
        CallbackReceived("64", 2, "x", [b"y"]),
    ]
    machine.unregister_callback(first)
    machine.data_to_send()
    assert feed(machine, "A1:B65:1:x", b"discarded", "B66:2:y") == [CallbackReceived("66", 2, "y")]
    assert machine.data_to_send() == ["E65:2 callback not found"]
    assert machine.register_callback() == 3
    assert machine.calls_serving == 3


@pytest.mark.parametrize("payload", ["", "1", "x:1", "1z:1", " 1:x", "1" * 14 + ":x"])
def test_a_callback_without_its_id_is_fatal_3(payload):
    """UM-11, UM-18."""
    refused(client(), "B1:" + payload, reason="callback")


def test_callbacks_are_limited():
    """UM-20."""
    machine = client(callbacks=1)
    machine.register_callback()
    with pytest.raises(LimitExceeded):
        machine.register_callback()


# ── Topics ──────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_lives_from_its_subscription_to_its_close():
    """UM-12, UM-13: updates may precede the answer to the call which subscribes."""
    machine = client()
    topic = machine.subscribe()
    machine.call("subscribe 1", waiter="me")
    assert feed(machine, "T1: update1", "R1:accepted", "T01:update2", "D1:") == [
        TopicUpdated(topic, " update1"),
        ResultReceived(1, "me", "accepted"),
        TopicUpdated(topic, "update2"),
        TopicClosed(topic),
    ]
    assert machine.snapshot()["subscriptions"] == 0
    assert machine.subscribe() == 2  # UM-14: ids are never reused


def test_an_update_for_an_unknown_topic_is_answered_with_one_unsubscribe():
    """UM-12, UM-14."""
    machine = client()
    assert feed(machine, "T9A8Z:x", "T09A8Z:x", "A1:T9A8Z:x", b"discarded") == []
    assert machine.data_to_send() == ["U9A8Z:"]
    assert feed(machine, "D9A8Z:", "T9A8Z:again") == []
    assert machine.data_to_send() == ["U9A8Z:"]


def test_after_unsubscribing_late_updates_are_dropped_in_silence_for_a_while():
    """UM-14: until D or 60 s."""
    machine = client()
    first, second = machine.subscribe(), machine.subscribe()
    machine.unsubscribe(first)
    machine.unsubscribe(first)
    machine.unsubscribe(second)
    assert machine.data_to_send() == ["U1:", "U2:"]
    assert feed(machine, "T1:late", "D1:", "D1:", "T2:late") == []
    assert machine.data_to_send() == []
    assert machine.counters.late_updates == 2
    assert machine.next_deadline() == 60.0
    assert machine.tick(60.0) is None
    assert feed(machine, "T2:far too late") == []
    assert machine.data_to_send() == ["U2:"]


def test_closing_topics_are_bounded():
    """UM-14, UM-20: a flood of unknown topics."""
    machine = client(closing_topics=3)
    for number in range(100):
        feed(machine, f"T{number}:x")
    assert machine.snapshot()["closing"] == 3
    assert len(machine.data_to_send()) == 100


def test_subscriptions_are_limited():
    """UM-20."""
    machine = client(subscriptions=1)
    machine.subscribe()
    with pytest.raises(LimitExceeded):
        machine.subscribe()


def test_a_publisher_uses_the_id_it_was_given_and_answers_unsubscribe_once():
    """UM-12, UM-13, UM-14."""
    machine = server()
    topic = machine.open_topic("9A8Z")
    machine.publish(topic, "update1", [b"a"])
    assert machine.data_to_send() == ["A1:T9A8Z:update1", b"a"]
    assert feed(machine, "U9A8Z:", "U9A8Z:") == [TopicUnsubscribed(topic)]
    assert machine.data_to_send() == ["D9A8Z:"]
    with pytest.raises(ValueError):
        machine.publish(topic, "late")
    machine.close_topic(topic)
    assert machine.data_to_send() == []


def test_a_publisher_closes_a_topic_once():
    """UM-13, UM-14."""
    machine = server()
    topic = machine.open_topic("A")
    machine.close_topic(topic)
    machine.close_topic(topic)
    assert machine.data_to_send() == ["DA:"]
    assert feed(machine, "UA:") == []
    assert machine.data_to_send() == []


def test_topics_are_limited_and_their_ids_checked():
    """UM-20: a flood of subscriptions."""
    machine = server(topics=2)
    for id in ("", "a", "1" * 14, "1 "):
        with pytest.raises(ValueError):
            machine.open_topic(id)
    machine.open_topic("1")
    with pytest.raises(ValueError):
        machine.open_topic("01")
    machine.open_topic("2")
    with pytest.raises(LimitExceeded):
        machine.open_topic("3")


# ── Attributes ──────────────────────────────────────────────────────────────────────────────────


def test_attributes_are_split_at_the_first_sign_and_spaces_count():
    """UM-15, UM-16."""
    machine = server()
    assert feed(
        machine, "S:key=value", "S: k = v=w", "S7:=", "X:key", "X:never", "A1:S:p=q", b"a"
    ) == [
        AttributeSet("key", "value"),
        AttributeSet(" k ", " v=w"),
        AttributeSet("", ""),
        AttributeUnset("key"),
        AttributeUnset("never"),
        AttributeSet("p", "q", [b"a"]),
    ]
    assert {
        name: (entry.value, entry.attachments) for name, entry in machine.attributes.items()
    } == {
        " k ": (" v=w", []),
        "": ("", []),
        "p": ("q", [b"a"]),
    }


def test_an_attribute_without_a_sign_is_fatal_3():
    """UM-15."""
    refused(server(), "S:key", reason="attribute")


def test_attributes_are_limited():
    """UM-20: a flood of attributes, by number and by weight."""
    machine = server(attributes=2)
    feed(machine, "S:a=1", "S:b=1", "S:a=2", "X:b", "S:c=1")
    refused(machine, "S:d=1", code=1, reason="attributes")
    machine = server(attributes_octets=10)
    feed(machine, "S:a=12345678", "S:a=123", "S:b=12345")
    refused(machine, "A1:S:b=", b"12345678", code=1, reason="attributes")


def test_nothing_follows_a_fault_which_an_attachment_set_free():
    """UM-18: the fault is the last event, whatever waited behind it."""
    machine = server(attributes=1)
    assert feed(machine, "S:a=1", "A1:S:b=1", "X:b", "S:b=2") == [AttributeSet("a", "1")]
    assert refused(machine, b"1", code=1, reason="attributes") == []


def test_attributes_of_ours():
    """UM-15, UM-16."""
    machine = client()
    machine.set_attribute("key", "va=lue", [b"a"])
    machine.unset_attribute("key")
    assert machine.data_to_send() == ["A1:S:key=va=lue", b"a", "X:key"]
    with pytest.raises(ValueError):
        machine.set_attribute("a=b", "c")


# ── Attachments in ──────────────────────────────────────────────────────────────────────────────


def test_attachments_fill_the_oldest_announcement_first():
    """UM-03, UM-04: text may stand in between; none and none written are the same."""
    machine = server()
    assert feed(
        machine, "A2:C1:x", "A1:C2:y", "C3:z", b"1", "A0:C4:w", "S:k=v", b"2", "-:lost"
    ) == [
        CallReceived("3", "z"),
        CallReceived("4", "w"),
        AttributeSet("k", "v"),
        CallReceived("1", "x", [b"1", b"2"]),
        CallReceived("2", "y", [AttachmentFailure("lost")]),
    ]


def test_after_an_attachment_error_the_others_still_come():
    """UM-04."""
    assert feed(server(), "A3:C1:x", "-:a", b"2", "-:") == [
        CallReceived("1", "x", [AttachmentFailure("a"), b"2", AttachmentFailure("")])
    ]


@pytest.mark.parametrize("stray", [b"x", b"", "-:x"])
def test_an_attachment_nobody_waits_for_is_fatal_3(stray):
    """UM-01, UM-04."""
    refused(server(), stray, reason="stray")
    refused(server(), "A1:C1:x", b"1", stray, reason="stray")


@pytest.mark.parametrize("earlier", ["A1:T1:first", "A1:S:t=first"])
def test_messages_of_one_topic_and_one_attribute_keep_their_order(earlier):
    """UM-04: D and X included; everything else may overtake."""
    machine = client()
    machine.subscribe()
    machine.subscribe()
    if earlier[3] == "T":
        texts = ["A1:T1:2nd", "T1:3rd", "D1:"]
        ordered = [
            TopicUpdated(1, "first", [b"1"]),
            TopicUpdated(1, "2nd", [b"2"]),
            TopicUpdated(1, "3rd"),
            TopicClosed(1),
        ]
    else:
        texts = ["A1:S:t=2nd", "S:t=3rd", "X:t"]
        ordered = [
            AttributeSet("t", "first", [b"1"]),
            AttributeSet("t", "2nd", [b"2"]),
            AttributeSet("t", "3rd"),
            AttributeUnset("t"),
        ]
    assert feed(machine, earlier, *texts) == []
    overtaking = feed(machine, "T2:other", "S:u=other", "X:w", "C1:x", "D2:")
    assert len(overtaking) == 5
    assert feed(machine, b"1") == ordered[:1]
    assert feed(machine, b"2") == ordered[1:]
    assert machine.snapshot()["held_octets"] == 0


def test_an_update_behind_its_topics_close_is_an_unknown_one():
    """UM-12, UM-13."""
    machine = client()
    machine.subscribe()
    assert feed(machine, "A1:T1:a", "D1:", "T1:b", "D1:", b"1") == [
        TopicUpdated(1, "a", [b"1"]),
        TopicClosed(1),
    ]
    assert machine.data_to_send() == ["U1:"]


def test_updates_which_wait_when_their_topic_is_unsubscribed_are_dropped():
    """UM-04, UM-14: the slots stay."""
    machine = client()
    machine.subscribe()
    feed(machine, "A1:T1:a", "D1:")
    machine.unsubscribe(1)
    assert feed(machine, "A1:C1:x", b"1", b"2") == [CallReceived("1", "x", [b"2"])]
    assert machine.data_to_send() == ["U1:"]
    assert machine.snapshot()["closing"] == 0


def test_an_attachment_too_large_is_fatal_3():
    """UM-19."""
    machine = server(attachment_octets=10)
    assert feed(machine, "A2:C1:x", b"x" * 10) == []
    refused(machine, b"x" * 11, reason="attachment-octets")


def test_attachments_which_wait_are_limited_in_all():
    """UM-19: what is discarded or given out does not count."""
    machine = server(attachments_octets=100, calls=3)
    feed(machine, "C1:", "C2:", "A1:C3:", b"x" * 99)
    feed(machine, "A2:C4:refused", b"x" * 99, b"x" * 99, "A3:S:a=", b"x" * 90)
    refused(machine, b"x" * 20, reason="attachments-octets")


def test_texts_which_wait_count_as_well():
    """UM-19: a flood behind one attachment which never comes."""
    machine = client(attachments_octets=1000, attributes_octets=10**6)
    feed(machine, "A1:S:a=")
    for _ in range(9):
        feed(machine, "S:a=" + "x" * 100)
    refused(machine, "S:a=" + "x" * 100, reason="attachments-octets")
    machine = client(attachments_octets=1000)
    refused(machine, "A1:S:a=" + "x" * 1000, reason="attachments-octets")


def test_messages_which_wait_are_limited_in_number():
    """UM-19."""
    machine = client(waiting_messages=5)
    feed(machine, "A1:S:a=", *["X:a"] * 4)
    refused(machine, "X:a", reason="waiting-messages")
    machine = client(waiting_messages=5)
    machine.subscribe()
    feed(machine, "A1:T1:a", *["T1:a"] * 4)
    refused(machine, "D1:", reason="waiting-messages")


def test_announcements_are_limited():
    """UM-19: also those whose message was refused."""
    machine = server(announcements=3, calls=2)
    feed(machine, "A1:C1:", "A1:C2:", "A1:C3:")
    refused(machine, "A1:C4:", reason="announcements")
    machine = server(announcements=1)
    feed(machine, "A1:C1:")
    refused(machine, "A1:R7:", reason="announcements")


def test_attachments_which_do_not_come_are_fatal_3():
    """UM-19: 60 s from the announcement or from the last filled slot."""
    machine = server()
    feed(machine, "A3:C1:x", now=10.0)
    assert machine.next_deadline() == 70.0
    feed(machine, b"1", now=60.0)
    feed(machine, "A1:C2:x", now=61.0)
    assert machine.tick(70.0) == 120.0
    assert machine.due_events() == []
    feed(machine, "-:lost", now=119.0)
    assert machine.tick(178.9) == 179.0
    assert machine.tick(179.0) is None
    (fault,) = machine.due_events()
    assert (fault.reason, fault.code) == ("attachment-seconds", 3)
    assert machine.data_to_send()[-1].startswith("F0:3 ")
    machine = server()
    feed(machine, "A1:C1:x", b"1", now=5.0)
    assert machine.next_deadline() is None


def test_attachments_one_by_one_on_request():
    """UM-19."""
    machine = client()
    machine.call("a", waiter="me")
    (announced,) = machine.receive_text("A3:R1:x", 0.0)
    assert announced == AttachmentsAnnounced(ResultReceived(1, "me", "x"), 3)
    feed(machine, b"1")
    message = announced.message
    assert machine.stream(message) == [
        ResultReceived(1, "me", "x"),
        AttachmentArrived(message, 0, b"1"),
    ]
    assert machine.calls_pending == 0
    assert machine.stream(message) == []
    assert machine.snapshot()["held_octets"] == 0
    assert feed(machine, b"2") == [AttachmentArrived(message, 1, b"2")]
    assert feed(machine, "-:lost") == [AttachmentArrived(message, 2, AttachmentFailure("lost"))]
    refused(machine, b"4", reason="stray")


def test_a_streamed_update_keeps_its_place_and_lets_later_ones_pass():
    """UM-04, UM-19."""
    machine = client()
    machine.subscribe()
    machine.receive_text("A1:T1:a", 0.0)
    (second,) = machine.receive_text("A2:T1:b", 0.0)
    feed(machine, "T1:c")
    assert machine.stream(second.message) == []
    assert feed(machine, b"a1") == [
        TopicUpdated(1, "a", [b"a1"]),
        TopicUpdated(1, "b"),
        TopicUpdated(1, "c"),
    ]
    assert feed(machine, b"b1", b"b2") == [
        AttachmentArrived(second.message, 0, b"b1"),
        AttachmentArrived(second.message, 1, b"b2"),
    ]


def test_streaming_what_is_complete_does_nothing():
    machine = server()
    (announced,) = machine.receive_text("A1:C1:x", 0.0)
    assert feed(machine, b"1") == [CallReceived("1", "x", [b"1"])]
    assert machine.stream(announced.message) == []


def test_attributes_and_hello_are_never_announced():
    """Their attachments are part of them (UM-06, UM-15)."""
    assert server().receive_text("A1:S:a=b", 0.0) == []
    assert Server(limits(hello_attachments=1)).receive_text("A1:H1:", 0.0) == []


# ── Attachments out ─────────────────────────────────────────────────────────────────────────────


def test_slots_are_sent_in_order_whenever_they_are_filled():
    """UM-04: text may overtake, attachments may not; the sender fills every slot."""
    machine = client()
    first, third = Slot(), Slot()
    machine.call("x", [first, b"2"])
    machine.call("y", [third])
    machine.call("z")
    assert machine.data_to_send() == ["A2:C1:x", "A1:C2:y", "C3:z"]
    machine.fill(third, b"3")
    machine.fill(third, b"again")
    assert machine.data_to_send() == []
    machine.fill_error(first, "lost")
    machine.fill_error(first, "again")
    assert machine.data_to_send() == ["-:lost", b"2", b"3"]


def test_a_slot_which_is_not_filled_in_time_is_replaced():
    """UM-04: before the peer gives us up (UM-19)."""
    machine = client()
    slot, other = Slot(), Slot()
    machine.clock = 10.0
    machine.call("x", [b"1", slot, other])
    machine.data_to_send()
    assert machine.next_deadline() == 55.0
    assert machine.tick(54.0) == 55.0
    assert machine.tick(55.0) == 100.0
    assert machine.data_to_send() == ["-:the attachment is not there in time"]
    machine.fill(slot, b"late")
    machine.fill(other, b"3")
    assert machine.data_to_send() == [b"3"]
    assert machine.next_deadline() is None


def test_our_own_attachments_are_limited_and_nothing_is_sent():
    """UM-19."""
    machine = client(attachment_octets=10, payload_characters=10)
    for attachments in ([b"x"] * 33, [b"x" * 11]):
        with pytest.raises(LimitExceeded):
            machine.call("x", attachments)
    with pytest.raises(LimitExceeded):
        machine.call("x" * 11)
    with pytest.raises(TypeError):
        machine.call("x", ["text"])
    with pytest.raises(UnicodeEncodeError):
        machine.call("\ud800")
    assert machine.data_to_send() == [] and machine.calls_pending == 0
    slot = Slot()
    machine.call("x", [slot])
    with pytest.raises(LimitExceeded):
        machine.fill(slot, b"x" * 11)
    assert machine.data_to_send() == ["A1:C1:x", "-:the attachment is too large"]


def test_a_refused_answer_may_be_given_again():
    machine = server(attachment_octets=10)
    feed(machine, "C1:x")
    with pytest.raises(LimitExceeded):
        machine.result("1", "", [b"x" * 11])
    machine.error("1", "too large")
    assert machine.data_to_send() == ["E1:too large"]


def test_hello_and_welcome_may_have_attachments_of_ours():
    """UM-06, UM-07."""
    c, s = Client(), Server(limits(hello_attachments=1))
    slot = Slot()
    c.hello("h", [slot])
    feed(s, *c.data_to_send())
    c.fill(slot, b"key")
    assert feed(s, *c.data_to_send()) == [HelloReceived(1, "h", [b"key"])]
    s.welcome("w", [b"sig"])
    assert feed(c, *s.data_to_send()) == [WelcomeReceived(1, "w", [b"sig"])]


def test_after_the_end_slots_send_nothing():
    machine = client()
    slot = Slot()
    machine.call("x", [slot])
    machine.connection_lost()
    machine.data_to_send()
    machine.fill(slot, b"x")
    assert machine.data_to_send() == []


# ── Whole sessions ──────────────────────────────────────────────────────────────────────────────


def capture():
    """The reference session: (direction, message), as the server saw it."""
    text = Path(__file__).parents[1].joinpath("data/umq/reference_session.txt").read_text()
    for line in text.splitlines():
        direction, _, body = line.strip().partition(" ")
        size = body.removeprefix("<bin ").removesuffix(">")
        yield direction, bytes(int(size)) if size != body else body


def test_the_reference_servers_session_is_understood_by_our_client():
    """The recorded session of the C++ peer: our client says its part and gets what was said."""
    machine, found, ids = Client(), [], {"9A8Z": "7"}
    machine.hello("tok")
    for direction, message in capture():
        if direction == "->":
            if isinstance(message, str):  # our client counts its ids itself
                for theirs, ours in ids.items():
                    message = message.replace(theirs, ours)
            found += feed(machine, message)
        elif isinstance(message, str) and not message.startswith("H"):
            head, _, payload = message[message.index("C") :].partition(":")
            while payload.startswith("sub") and machine.subscribe() < 7:
                pass
            ids[head[1:]] = str(machine.call(payload, waiter=payload))
    assert found == [
        WelcomeReceived(1, "welcome-from-cpp"),
        ResultReceived(1, "How are you?", "How are you?"),
        ErrorReceived(2, "coffee", "I'm teapot"),
        ResultReceived(3, "duck", "Sending image/png", [bytes(7)]),
        ResultReceived(4, "sum", "5"),
        ResultReceived(5, "sub 9A8Z", "accepted"),
        TopicUpdated(7, "update1"),
        TopicUpdated(7, "update2", [bytes(2), bytes(2)]),
        TopicClosed(7),
        AttributeSet("key", "value"),
        AttributeUnset("key"),
        ResultReceived(6, "attr", "ok"),
    ]


def test_the_reference_servers_part_is_what_our_server_says():
    """The recorded session, replayed octet for octet: only the application is ours."""
    machine = Server()
    expected = [message for direction, message in capture() if direction == "->"]
    said = []
    for direction, message in capture():
        if direction == "<-":
            for event in feed(machine, message):
                application(machine, event)
            said += machine.data_to_send()
    assert said == expected


def application(machine, event):
    """What the reference server's application did in the recorded session."""
    if isinstance(event, HelloReceived):
        machine.welcome("welcome-from-cpp")
    elif event.payload == "coffee":
        machine.error(event.id, "I'm teapot")
    elif event.payload == "duck":
        machine.result(event.id, "Sending image/png", [bytes(7)])
    elif event.payload == "sum":
        machine.result(event.id, str(sum(map(len, event.attachments))))
    elif event.payload.startswith("sub "):
        topic = machine.open_topic(event.payload[4:])
        machine.result(event.id, "accepted")
        machine.publish(topic, "update1")
        machine.publish(topic, "update2", [bytes(2), bytes(2)])
        machine.close_topic(topic)
    elif event.payload == "attr":
        machine.set_attribute("key", "value")
        machine.unset_attribute("key")
        machine.result(event.id, "ok")
    else:
        machine.result(event.id, event.payload)


def test_the_sources_callback_example():
    """UM-11: the example of the source, both sides ours."""
    c, s = client(), server()
    work = c.register_callback()
    c.call(f"I am ready, please send me a work as ID={wire.base36(work)}")
    (ready,) = feed(s, *c.data_to_send())
    s.result(ready.id, "accepted")
    done = s.register_callback()
    s.callback(work, f"here is a work. Send me result as ID={wire.base36(done)}")
    accepted, job = feed(c, *s.data_to_send())
    assert (accepted.payload, job.callback) == ("accepted", work)
    c.result(job.id, "accepted")
    c.callback(done, "Work done")
    answer, result = feed(s, *c.data_to_send())
    assert (answer.payload, result.payload) == ("accepted", "Work done")
    s.result(result.id, "Thank you!")
    assert feed(c, *s.data_to_send())[0].payload == "Thank you!"


# ── Fuzz ────────────────────────────────────────────────────────────────────────────────────────

TEXTS = st.one_of(
    st.sampled_from(
        [
            *[text for text in EXAMPLES.values() if isinstance(text, str)],
            "A2:C2:x",
            "A1:T1:y",
            "A1:R1:z",
            "A1:S:a=b",
            "D1:",
            "U1:",
            "B3:1:x",
            "R2:",
            "A1:W1:",
            "A1:H1:",
            "E1:6 no",
            "!2:x",
        ]
    ),
    st.builds(
        "{}{}{}:{}".format,
        st.sampled_from(["", "A1:", "A2:", "A0:"]),
        st.sampled_from("-HWFCBRETDUSXA!z"),
        st.sampled_from(["", "0", "1", "2", "3"]),
        st.sampled_from(["", "x", "1:x", "a=b", "a"]),
    ),
)
MESSAGES = st.lists(st.one_of(TEXTS, TEXTS, TEXTS, st.binary(max_size=3)), max_size=40)


@pytest.mark.parametrize("make", [client, server, Client, Server])
@settings(max_examples=300, deadline=None)
@given(data=MESSAGES)
def test_any_stream_gives_documented_events_and_one_last_fault(make, data):
    """UM-18: nothing but events; a Fault or F is the last; nothing waits above its limits."""
    machine = make()
    if machine.opened:
        machine.subscribe()
        machine.register_callback()
        machine.call("a", waiter=1)
        machine.open_topic("1")
    found = []
    for message in data:
        found += feed(machine, message)
    ends = [event for event in found if isinstance(event, UmqFault | FatalReceived)]
    assert ends == ([found[-1]] if machine.closed and found else [])
    out = machine.data_to_send()
    assert sum(isinstance(text, str) and text.startswith("F") for text in out) <= 1
    decode = wire.Decoder(limits()).decode
    assert not any(isinstance(decode(text), UmqFault) for text in out if isinstance(text, str))
    delivered = sum(len(getattr(event, "attachments", ())) for event in found)
    assert delivered <= sum(isinstance(m, bytes) or "-" in m for m in data)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_where_attachments_stand_between_texts_does_not_matter(data):
    """UM-04: any interleaving which keeps both orders gives each message the same attachments."""
    texts, bodies = [], []
    for number in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(0, 3))
        kind = data.draw(st.sampled_from([f"C{number + 1}:", "T1:", "S:a="]))
        texts.append((count, f"A{count}:{kind}{number}" if count else f"{kind}{number}"))
        bodies += [b"%d" % (len(bodies) + index) for index in range(count)]

    def run(order):
        machine = client()
        machine.subscribe()
        waiting, left, found = iter(texts), list(bodies), []
        announced = 0
        for text_next in order:
            if text_next:
                entry = next(waiting, None)
                if entry:
                    announced += entry[0]
                    found += feed(machine, entry[1])
            elif left and announced:
                announced -= 1
                found += feed(machine, left.pop(0))
        for entry in waiting:
            found += feed(machine, entry[1])
        for body in left:
            found += feed(machine, body)
        return found

    plain = run([True] * len(texts))
    mixed = run(data.draw(st.lists(st.booleans(), max_size=40)))
    assert sorted(map(repr, plain)) == sorted(map(repr, mixed))
    for kind in (TopicUpdated, AttributeSet):
        ordered = [event for event in mixed if isinstance(event, kind)]
        assert ordered == [event for event in plain if isinstance(event, kind)]


def test_snapshots_are_plain():
    assert client().snapshot()["state"] == "OPEN"
    assert all(isinstance(value, str | int) for value in server().snapshot().values())
