"""UMQ's machines: whole sessions, the recorded ones and any stream at all."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.umq.pairs import EXAMPLES, client, feed, names, server, told
from twisted_msgproto.umq.machine import Client, Server

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
        told.WelcomeReceived(1, "welcome-from-cpp"),
        told.ResultReceived(1, "How are you?", "How are you?"),
        told.ErrorReceived(2, "coffee", "I'm teapot"),
        told.ResultReceived(3, "duck", "Sending image/png", [bytes(7)]),
        told.ResultReceived(4, "sum", "5"),
        told.ResultReceived(5, "sub 9A8Z", "accepted"),
        told.TopicUpdated(7, "update1"),
        told.TopicUpdated(7, "update2", [bytes(2), bytes(2)]),
        told.TopicClosed(7),
        told.AttributeSet("key", "value"),
        told.AttributeUnset("key"),
        told.ResultReceived(6, "attr", "ok"),
    ]


def test_the_reference_servers_part_is_what_our_server_says():
    """The recorded session, replayed byte for byte: only the application is ours."""
    machine = Server()
    expected = [message for direction, message in capture() if direction == "->"]
    said = []
    for direction, message in capture():
        if direction == "<-":
            for event in feed(machine, message):
                application(machine, event)
            said += machine.outputs()
    assert said == expected


def application(machine, event):
    """What the reference server's application did in the recorded session."""
    if names([event]) == ["HelloReceived"]:
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
@settings(max_examples=250, deadline=None)
@given(data=MESSAGES, cuts=st.sets(st.integers(0, 40)))
def test_any_stream_gives_documented_events_and_one_last_fault(make, data, cuts):
    """UM-04, UM-18: a Fault or F is the last; nothing waits above its limits; however the
    messages are grouped into reads, the events and the words in return are the same.
    """

    def run(groups):
        machine = make()
        if machine.opened:
            machine.subscribe()
            machine.register_callback()
            machine.call("a", waiter=1)
            machine.open_topic("1")
        return feed(machine, *groups, grouped=True), machine.outputs(), machine

    found, out, machine = run([[message] for message in data])
    ends = [event for event in found if names([event])[0] in ("UmqFault", "FatalReceived")]
    assert ends == ([found[-1]] if machine.closed and found else [])
    assert sum(isinstance(text, str) and text.startswith("F") for text in out) <= 1
    grammar = re.compile(r"(A[1-9A-W]:)?[-HWFCBRETDUSX][0-9A-Z]{0,13}:")
    assert all(grammar.match(text) for text in out if isinstance(text, str))
    delivered = sum(len(getattr(event, "attachments", ())) for event in found)
    assert delivered <= sum(isinstance(m, bytes) or "-" in m for m in data)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    together, said, other = run([data[start:end] for start, end in itertools.pairwise(edges)])
    assert (together, said, other.state) == (found, out, machine.state)


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
    for kind in (["TopicUpdated"], ["AttributeSet"]):
        ordered = [event for event in mixed if names([event]) == kind]
        assert ordered == [event for event in plain if names([event]) == kind]


# ── What waits for us ───────────────────────────────────────────────────────────────────────────


def test_the_time_of_a_call_runs_from_when_the_peer_has_read_it():
    """HO-04: unless its caller gave it a time-out."""
    machine = client()
    taken = 0.0
    machine.taken_at = lambda now: taken
    machine.call("ours", waiter="ours", deadline=60.0, own=False)
    machine.call("own", waiter="own", deadline=60.0)
    taken = 59.0
    assert [event.waiter for event in machine.advance(60.0)] == ["own"]
    assert machine.deadline == 119.0
    assert machine.advance(118.0) == []
    assert [event.waiter for event in machine.advance(119.0)] == ["ours"]
