"""Both machines in any state, what they are sent, and how they refuse it."""

from dataclasses import fields
from functools import cache

from tests.doubles import due
from twisted_msgproto.umq import Client, Server, UmqServerFactory

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def base36(number):
    """An id as it is written (UM-02)."""
    return (base36(number // 36) if number >= 36 else "") + DIGITS[number % 36]


class Expected:
    """Is equal to an event of this name which says this, and otherwise nothing."""

    def __init__(self, name, values):
        self.name, self.values = name, values

    def __eq__(self, event):
        if type(event).__name__ != self.name:
            return False
        found = [getattr(event, field.name) for field in fields(event)]
        said, rest = found[: len(self.values)], found[len(self.values) :]
        return said == list(self.values) and not any(rest)

    __hash__ = None

    def __repr__(self):
        return f"{self.name}{self.values}"


class Told:
    """Makes what events of machines are compared with: ``told.CallReceived("1", "x")``."""

    def __getattr__(self, name):
        return lambda *values: Expected(name, values)


told = Told()


def names(events):
    return [type(event).__name__ for event in events]


@cache
def limits(**changes):
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return UmqServerFactory(limits=named).limits


def server(**changes):
    """A server whose session is open, with nothing left to send."""
    machine = Server(limits(**changes), 0.0)
    machine.receive(["H1:"], 0.0)
    machine.welcome()
    machine.outputs()
    return machine


def client(**changes):
    """A client whose session is open, with nothing left to send."""
    machine = Client(limits(**changes), 0.0)
    machine.hello()
    machine.receive(["W1:"], 0.0)
    machine.outputs()
    return machine


def feed(machine, *messages, now=0.0):
    """All events of ``messages`` but the announcements of attachments."""
    found = [event for message in messages for event in machine.receive([message], now)]
    return [event for event in found if names([event]) != ["AttachmentsAnnounced"]]


def announced(machine, message):
    """The message of which one is told before its attachments have come."""
    (event,) = machine.receive([message], 0.0)
    assert names([event]) == ["AttachmentsAnnounced"]
    return event.message


def refused(machine, *messages, code=3, reason=None):
    """The last of ``messages`` is answered with ``F``, which is the last word of the machine."""
    found = feed(machine, *messages)
    assert names(found)[-1] == "UmqFault", found
    assert found[-1].code == code
    assert reason is None or found[-1].reason == reason
    assert machine.fault is found[-1]
    assert machine.closed and machine.deadline is None
    assert machine.outputs()[-1].startswith(f"F0:{code} ")
    assert feed(machine, "C9:x", b"x", "H1:") == []
    assert machine.outputs() == []
    assert due(machine, 1e9) == ([], None)
    return found[:-1]


CLIENT = ("START", "AWAITING_WELCOME", "OPEN", "CLOSED")
SERVER = ("AWAITING_HELLO", "RECEIVING_HELLO", "AUTHORISING", "OPEN", "CLOSED")
STATES = [("client", state) for state in CLIENT] + [("server", state) for state in SERVER]
"""The states of both, as their snapshots name them."""


def at(side, state):
    """A machine in a state."""
    if side == "server":
        machine = Server(limits(), 0.0)
        if state == "RECEIVING_HELLO":
            feed(machine, "A1:H1:")
        elif state in ("AUTHORISING", "OPEN"):
            feed(machine, "H1:")
            if state == "OPEN":
                machine.welcome()
    else:
        machine = Client(limits(), 0.0)
        if state in ("AWAITING_WELCOME", "OPEN"):
            machine.hello()
        if state == "OPEN":
            feed(machine, "W1:")
    if state == "CLOSED":
        machine.lost(0.0)
    machine.outputs()
    assert machine.snapshot()["state"] == state
    return machine


EXAMPLES = {
    "H": "H1:",
    "W": "W1:",
    "F": "F0:1 no",
    "C": "C1:x",
    "B": "B1:1:x",
    "R": "R1:x",
    "E": "E1:x",
    "T": "T1:x",
    "D": "D1:",
    "U": "U1:",
    "S": "S:a=b",
    "X": "X:a",
    "-": "-:x",
    "attachment": b"x",
}
