"""Both machines in any state, what they are sent, and how they refuse it."""

from tests.doubles import due
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.umq import wire
from twisted_msgproto.umq.machine.sides import Client, Server
from twisted_msgproto.umq.terms.events import AttachmentsAnnounced
from twisted_msgproto.umq.terms.states import LIMITS, ClientState, ServerState
from twisted_msgproto.umq.wire import UmqFault


def limits(**changes):
    return Limits.of(LIMITS).replace({k.replace("_", "-"): v for k, v in changes.items()})


def server(**changes):
    """A server whose session is open, with nothing left to send."""
    machine = Server(limits(**changes), 0.0)
    machine.receive_text("H1:", 0.0)
    machine.welcome()
    machine.outputs()
    return machine


def client(**changes):
    """A client whose session is open, with nothing left to send."""
    machine = Client(limits(**changes), 0.0)
    machine.hello()
    machine.receive_text("W1:", 0.0)
    machine.outputs()
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
    assert machine.closed and machine.deadline is None
    assert machine.outputs()[-1].startswith(f"F0:{code} ")
    assert feed(machine, "C9:x", b"x", "H1:") == []
    assert machine.outputs() == []
    assert due(machine, 1e9) == ([], None)
    return found[:-1]


def at(state):
    """A machine in ``state``."""
    if isinstance(state, ServerState):
        machine = Server(limits(), 0.0)
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
        machine.lost(0.0)
    machine.outputs()
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
