"""UMQ's machines: hello and welcome, their versions, their attachments, their time."""

import pytest

from tests.doubles import due
from tests.umq.sides import client, feed, limits, refused, server, told
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.umq import Client, Server


def test_the_hand_shake():
    """UM-06, UM-07: payloads are handed on, the server answers with its own version."""
    c, s = Client(), Server()
    c.hello("let me in")
    (text,) = c.outputs()
    assert text == "H1:let me in"
    assert feed(s, text) == [told.HelloReceived(1, "let me in")]
    assert s.outputs() == []
    s.welcome("you are in")
    (text,) = s.outputs()
    assert text == "W1:you are in"
    assert feed(c, text) == [told.WelcomeReceived(1, "you are in")]
    assert c.opened and s.opened


@pytest.mark.parametrize("hello, welcome", [("H1:", "W1:"), ("H7:", "W1:"), ("HZZ:", "W1:")])
def test_the_server_lowers_the_version(hello, welcome):
    """UM-07."""
    machine = Server()
    feed(machine, hello)
    machine.welcome()
    assert machine.outputs() == [welcome]


@pytest.mark.parametrize("hello", ["H:", "H0:", "H000:x"])
def test_a_version_below_1_is_fatal_5(hello):
    """UM-07."""
    refused(Server(), hello, code=5, reason="version")


@pytest.mark.parametrize("welcome", ["W2:", "W0:", "W:", "WZ:"])
def test_a_client_refuses_a_version_above_its_own_or_below_1(welcome):
    """UM-07."""
    machine = Client()
    machine.hello()
    machine.outputs()
    refused(machine, welcome, code=5, reason="version")


def test_a_client_may_offer_more_and_get_less():
    """UM-07."""
    machine = Client()
    machine.hello("", version=3)
    assert machine.outputs() == ["H3:"]
    assert feed(machine, "W2:") == [told.WelcomeReceived(2, "")]


def test_hello_with_attachments_is_welcomed_when_they_are_there():
    """UM-06, UM-07."""
    machine = Server(limits())
    assert feed(machine, "A2:H1:x", b"a") == []
    with pytest.raises(IllegalTransition):
        machine.welcome()
    assert feed(machine, "-:lost") == [
        told.HelloReceived(1, "x", [b"a", told.AttachmentFailure("lost")])
    ]
    machine.welcome()


def test_hello_is_bounded_before_anybody_is_authorised():
    """UM-06, UM-20: 64 KiB, at most four attachments, and H alone."""
    refused(Server(), "A5:H1:x", code=1, reason="hello-attachments")
    refused(Server(), "H1:" + "x" * 65537, reason="hello-characters")
    assert feed(Server(), "H1:" + "x" * 65536)
    machine = Server(limits())
    feed(machine, "A1:H1:x")
    refused(machine, "C1:x", reason="state")
    machine = Server()
    feed(machine, "H1:x")
    refused(machine, b"x", reason="stray")


@pytest.mark.parametrize(
    "message, octets",
    [
        ("S:" + "é" * 65, "é" * 64),
        ("B1:" + "y" * 65, "y" * 64),
        ("W1:" + "z" * 65, "W1:" + "z" * 61),
        ("?" * 65, "?" * 64),
    ],
)
def test_a_fault_keeps_the_beginning_of_its_text__UM_18(message, octets):
    machine = server()
    (fault,) = feed(machine, message)
    assert fault.octets == octets.encode()


def test_a_fault_keeps_the_beginning_of_a_stray_attachment__UM_18():
    machine = Server()
    feed(machine, "H1:x")
    (fault,) = feed(machine, b"x" * 65)
    assert fault.octets == b"x" * 64


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
        told.WelcomeReceived(1, "w", [b"1", b"2"]),
        told.CallReceived("1", "q"),
        told.ResultReceived(1, "me", "a"),
        told.AttributeSet("k", "v"),
        told.TopicUpdated(topic, "t", [b"3"]),
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
    assert machine.deadline == 110.0
    assert due(machine, 109.9) == ([], 110.0)
    (fault,), deadline = due(machine, 110.0)
    assert deadline is None
    assert (fault.reason, fault.code) == ("hello-seconds", 1)
    assert machine.outputs()[-1].startswith("F0:1 ")


def test_the_hand_shake_stops_its_clock():
    """UM-20."""
    assert server().deadline is None
    assert client().deadline is None
    assert [make().deadline for make in (Client, Server)] == [10.0, 10.0]
    machine = Server()
    feed(machine, "H1:")
    assert machine.deadline == 10.0  # HO-07: our own application has its time too
    machine.welcome()
    assert machine.deadline is None


def test_an_application_which_does_not_decide_in_time_is_no_reason_to_wait_for_ever():
    """HO-07, UM-20: the peer is told."""
    machine = Server()
    feed(machine, "H1:", now=7.0)
    assert machine.advance(16.0) == []
    (fault,) = machine.advance(17.0)
    assert fault is machine.fault
    assert machine.outputs() == ["F0:8 nobody decided in time whether the client may come in"]
    assert machine.finished
