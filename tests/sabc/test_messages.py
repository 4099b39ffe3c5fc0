"""Requests, answers, errors: what they mean, what may not be, one by one or many at once."""

from __future__ import annotations

import pytest

from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.sabc import ErrorReceived
from twisted_msgproto.sabc.machine import Client, Server

from . import sides
from .sides import (
    NOW,
    SESSION,
    client_in,
    codes,
    crlf,
    cut,
    errors,
    flat,
    frame,
    limits,
    msg,
    names,
    open_client,
    open_server,
    part,
    requests,
    sent,
    server_in,
    state_of,
    talk,
)

# ── Requests, answers, errors ───────────────────────────────────────────────────────────────────


def test_a_request_is_answered() -> None:
    # SA-14, SA-16: the examples of the source
    server = open_server()
    events = server.receive(sides.HOLA + sides.HELLO, NOW)
    assert flat(events) == [
        ("request", "000001", {}, b"Hola", False),
        ("request", "123123", {}, b"Hello", False),
    ]
    assert len(events) == 1
    assert server.snapshot()["unanswered"] == 2
    server.answer("000001", b"Mundo!!!")
    assert server.outputs() == sides.MUNDO
    server.answer("123123", b"OK")
    assert server.outputs() == sides.OK
    assert server.snapshot()["unanswered"] == 0


def test_an_acknowledgement_is_an_empty_answer() -> None:
    # SA-16
    for lengths, framed in ((False, False), (True, False), (False, True)):
        server = open_server(lengths=lengths, framed=framed)
        client = open_client(lengths=lengths, framed=framed)
        ids = [client.request(b"x", n, NOW) for n in range(3)]
        talk(client, server, framed)
        server.acknowledge(ids)
        events = talk(server, client, framed)
        assert flat(events) == [("response", id, n, {}, b"", False) for n, id in enumerate(ids)]


def test_send_only_wants_no_answer() -> None:
    # SA-17
    server = open_server()
    events = server.receive(sides.SEND_ONLY, NOW)
    assert flat(events) == [("send-only", "888999", {}, b"OK", False)]
    assert server.snapshot()["unanswered"] == 0
    with pytest.raises(ValueError, match="waits for no answer"):
        server.answer("888999", b"")
    events = server.receive(msg(b"", msg_id="1", send_only="YES"), NOW)
    assert flat(events) == [("request", "1", {}, b"", False)]
    client = open_client()
    client.send_only(b"OK")
    assert client.outputs() == sides.SEND_ONLY.replace(b"888999", b"1")
    assert client.outstanding == 0


def test_kinds_keep_their_order() -> None:
    # SA-17: a run of one kind is one event
    server = open_server()
    octets = b"".join(
        msg(b"x", msg_id=str(n), **({"send_only": "yes"} if n in (2, 3) else {})) for n in range(6)
    )
    events = server.receive(octets, NOW)
    assert [(e.kind, e.ids) for e in events if e.kind] == [
        ("request", ["0", "1"]),
        ("send-only", ["2", "3"]),
        ("request", ["4", "5"]),
    ]


def test_free_headers_pass_through() -> None:
    # SA-06
    server = open_server()
    events = server.receive(msg(b"x", msg_id="1", colour="red", content_length="7"), NOW)
    assert flat(events) == [("request", "1", {"colour": "red", "content-length": "7"}, b"x", False)]
    server.answer("1", b"y", headers={"size": "XL"})
    (answer,) = sent(server)
    assert ("size", "XL") in answer.headers


@pytest.mark.parametrize(
    "name",
    ["client-id", "client-passcode", "session-id", "session-expiry", "msg-id", "ref-msg-id",
     "send-only", "msg-more", "error-code"],
)  # fmt: skip
def test_an_application_sends_no_reserved_header(name: str) -> None:
    # SA-06
    server, client = open_server(), open_client()
    server.receive(sides.HOLA, NOW)
    for verb in (
        lambda: client.request(b"", 1, NOW, headers={name: "x"}),
        lambda: client.send_only(b"", headers={name: "x"}),
        lambda: client.open_message(1, NOW, headers={name: "x"}),
        lambda: server.answer("000001", b"", headers={name: "x"}),
        lambda: server.send_error(500, "", headers={name: "x"}),
        lambda: Client().connect("me", now=NOW, headers={name: "x"}),
        lambda: server_in("AUTHENTICATING").accept("s", headers={name: "x"}),
    ):
        with pytest.raises(ValueError, match="belongs to the protocol"):
            verb()
    assert client.outputs() == server.outputs() == b""
    assert client.outstanding == 0
    assert server.snapshot()["unanswered"] == 1


def test_framing_and_lengths_are_the_protocols_too() -> None:
    # SA-26
    with pytest.raises(ValueError, match="framing"):
        Client().connect("me", now=NOW, headers={"framing": "x"})
    with pytest.raises(ValueError, match="content-length"):
        open_client(lengths=True).send_only(b"", headers={"content-length": "5"})
    open_client().send_only(b"", headers={"content-length": "5"})


@pytest.mark.parametrize("value", ["a::b", "a\rb", "a\nb", "a\0b", "x\r\nmsg-id::7"])
def test_an_application_cannot_inject(value: str) -> None:
    # SA-03
    client = open_client()
    with pytest.raises(ValueError, match="header"):
        client.request(b"", 1, NOW, headers={"x": value})
    with pytest.raises(ValueError, match="header"):
        Client().connect(value, now=NOW)
    with pytest.raises(ValueError, match="header"):
        Client().connect("me", value, now=NOW)
    with pytest.raises(ValueError, match="header"):
        server_in("AUTHENTICATING").accept(value)
    assert client.outputs() == b""


@pytest.mark.parametrize(("last", "sent"), [(944, True), (945, False)])
def test_headers_fill_a_block_but_for_what_is_ours__SA_27(last: int, sent: bool) -> None:
    client = open_client()
    headers = {f"h{n}": "x" * 945 for n in range(6)} | {"h6": "x" * last}  # 8192 - 1536 bytes
    if sent:
        client.request(b"", 1, NOW, headers=headers)
        assert requests(open_server().receive(client.outputs(), NOW))
    else:
        with pytest.raises(LimitExceeded, match="too long"):
            client.request(b"", 1, NOW, headers=headers)


def test_misplaced_headers_cost_their_frame() -> None:
    # SA-06, SA-17
    server = open_server()
    octets = crlf(f"DISCONNECT\nsession-id::{SESSION}\nmsg-id::1\n\n")
    octets += msg(b"x", msg_id="1", ref_msg_id="2")
    events = server.receive(octets + sides.HOLA, NOW)
    assert names(events) == ["FrameRefused", "FrameRefused", "MessagesReceived"]
    assert [error[:2] for error in errors(server)] == [("400", None), ("400", "1")]
    assert server.counters.refused_frames == 2
    server = Server()
    (event,) = server.receive(crlf("CONNECT\nsession-id::x\n\n"), NOW)
    assert names([event]) == ["FrameRefused"]
    assert state_of(server) == "AWAITING"
    client = client_in("WAITING")
    (event,) = client.receive(crlf("CONNECTED\nsession-id::x\nmsg-id::1\n\n"), NOW)
    assert names([event]) == ["FrameRefused"]
    assert state_of(client) == "WAITING"


def test_an_error_takes_any_header() -> None:
    # SA-06, SA-23
    server = open_server()
    octets = crlf("ERROR\nclient-id::x\nmsg-more::yes\nsend-only::yes\n\nwhat\n\n^@")
    (event,) = server.receive(octets, NOW)
    assert isinstance(event, ErrorReceived)
    assert (event.body, event.code) == (b"what", None)


def test_the_id_spaces_of_the_two_sides_are_two() -> None:
    # SA-14, SA-15
    server = open_server()
    id = server.request(b"you?", "waiter", NOW)
    assert requests(server.receive(msg(b"me", msg_id=id), NOW)) == [(id, b"me", False)]
    events = server.receive(msg(b"yes", ref_msg_id=id), NOW)
    assert flat(events) == [("response", id, "waiter", {}, b"yes", False)]


@pytest.mark.parametrize("header", ["ref-msg-id", "message-id", "msg-id"])
def test_an_error_fails_the_request_it_names(header: str) -> None:
    # SA-16, SA-23
    client = open_client()
    id = client.request(b"", "waiter", NOW)
    octets = frame("ERROR", {"error-code": "500", header: id}, b"no")
    failed = ("RequestFailed", id, "waiter", "500", "no")
    assert flat(client.receive(octets, NOW)) == [failed]
    assert client.outstanding == 0
    (event,) = client.receive(octets, NOW)
    assert isinstance(event, ErrorReceived)


def test_an_error_text_cannot_end_its_frame_early() -> None:
    # SA-21
    server = open_server()
    server.send_error(500, "a\r\n\r\n\0b")
    (written,) = sent(server)
    assert written.body == b""


def test_answers_after_the_end_are_nobodys() -> None:
    # SA-13
    server = open_server()
    server.receive(sides.HOLA, NOW)
    server.stop()
    server.outputs()
    server.answer("000001", b"x")
    server.acknowledge(["000001"])
    server.fail("000001", 500, "x")
    assert server.outputs() == b""


def test_acknowledging_nothing_or_twice() -> None:
    server = open_server()
    server.receive(sides.HOLA, NOW)
    server.acknowledge([])
    server.acknowledge(["000001"])
    for again in (
        lambda: server.acknowledge(["000001"]),
        lambda: server.fail("000001", 500, ""),
    ):
        with pytest.raises(ValueError, match="waits for no answer"):
            again()


def test_a_time_of_its_own_is_not_prolonged_while_the_peer_still_reads__SA_27() -> None:
    client = open_client()
    client.taken_at = lambda now: NOW + 50
    client.request(b"", "own", NOW, seconds=5)
    client.request(b"", "usual", NOW)
    assert flat(client.advance(NOW + 5)) == [("RequestsTimedOut", ["1"], ["own"])]
    assert client.advance(NOW + 60) == []
    assert flat(client.advance(NOW + 110)) == [("RequestsTimedOut", ["2"], ["usual"])]


def test_outstanding_requests_are_bounded_in_both_directions() -> None:
    # SA-27
    bound = limits(outstanding_requests=2)
    client, server = open_client(limits=bound), open_server(limits=bound)
    assert client.room == 2
    for _ in range(2):
        client.request(b"", 1, NOW)
    with pytest.raises(LimitExceeded):
        client.request(b"", 1, NOW)
    client.send_only(b"")
    server.receive(client.outputs(), NOW)
    events = server.receive(msg(b"", msg_id="9"), NOW)
    assert names(events) == ["FrameRefused"]
    assert errors(server)[0][:2] == ("429", "9")
    assert not server.closed


# ── However it is split ─────────────────────────────────────────────────────────────────────────


def request_frame(id: str, body: bytes, lengths: bool, final: bool = True, **h: str) -> bytes:
    named = {"session-id": SESSION, "msg-id": id} | {k.replace("_", "-"): v for k, v in h.items()}
    return frame("MESSAGE", named, body, final=final, lengths=lengths)


ODD = {
    "plain": lambda n: request_frame(n, b"x" * 7, n.startswith("L")),
    "empty": lambda n: request_frame(n, b"", n.startswith("L")),
    "end mark within": lambda n: request_frame(n, b"a\r\n\r\n\0b", n.startswith("L")),
    "blank line within": lambda n: request_frame(n, b"a\r\n\r\nb", n.startswith("L")),
    "nul first": lambda n: request_frame(n, b"\0a", n.startswith("L")),
    "length line within": lambda n: request_frame(n, b"\r\ncontent-length::3", n.startswith("L")),
    "same id": lambda n: request_frame("same" + n[0], b"y", n.startswith("L")),
    "free header": lambda n: request_frame(n, b"y", n.startswith("L"), a="b"),
    "send-only": lambda n: request_frame(n, b"y", n.startswith("L"), send_only="yes"),
    "part": lambda n: request_frame(n, b"y", n.startswith("L"), False, msg_more="yes"),
    "no end": lambda n: request_frame(n, b"y", n.startswith("L"), False),
    "other session": lambda n: request_frame(n, b"y", n.startswith("L"), session_id="x"),
    "separator in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::::"
    ),
    "line end in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\n"
    ),
    "cr in the id": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\r"
    ),
    "no utf-8": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"id::" + n[:1].encode(), b"id::\xff"
    ),
    "leading zero": lambda n: request_frame(n, b"y", n[0] == "L").replace(
        b"length::", b"length::0"
    ),
    "a long id": lambda n: request_frame(n + "i" * 1100, b"y", n[0] == "L"),
    "above the limit": lambda n: request_frame(n, b"y" * 700, n[0] == "L"),
    "other command": lambda n: sides.FORBIDDEN,
}


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_many_at_once_are_read_as_one_by_one(odd: str, at: int, lengths: bool) -> None:
    # SA-10, SA-15, SA-16, SA-22, SA-26, SA-27: whatever stands among plain requests
    prefix = "L" if lengths else "M"
    names = ["plain"] * 4
    names[at:at] = [odd, odd] if odd == "same id" else [odd]
    octets = b"".join(ODD[name](f"{prefix}{n}") for n, name in enumerate(names))

    def run(chunks: list[bytes]) -> tuple[list[object], bytes]:
        bound = limits(message_bytes=600, outstanding_requests=5, part_bytes=600)
        server = open_server(limits=bound, lengths=lengths)
        events = [e for chunk in chunks for e in server.receive(chunk, NOW)]
        return flat(events), server.outputs()

    whole = run([octets])
    assert run([octets[i : i + 1] for i in range(len(octets))]) == whole
    for place in range(0, len(octets), 11):
        assert run(cut(octets, place)) == whole


def test_many_at_once_keep_the_bounds() -> None:
    # SA-27, SA-11
    octets = b"".join(msg(b"x", msg_id=str(n)) for n in range(6))
    server = open_server(limits=limits(outstanding_requests=4))
    assert len(requests(server.receive(octets, NOW))) == 4
    assert codes(server) == ["429", "429"]
    server = open_server(expires=NOW + 1)
    assert isinstance(server.receive(octets, NOW + 1)[-1], Fault)
    assert server.snapshot()["unanswered"] == 0
    server = open_server(limits=limits(header_block_bytes=511))
    assert isinstance(server.receive(octets, NOW)[-1], Fault)
    server = open_server(lenient=True)
    assert len(requests(server.receive(octets, NOW))) == 6


def test_an_answer_in_parts_goes_on_after_disconnect__SA_12__SA_18() -> None:
    server = open_server()
    id = server.request(b"?", "w", NOW)
    server.receive(part(b"a", msg_id="1", error_code="x"), NOW)  # it is skipped
    server.receive(part(b"a", ref_msg_id=id) + sides.HOLA + sides.DISCONNECT, NOW)
    assert flat(server.receive(msg(b"b", ref_msg_id=id), NOW))[0][4] == b"ab"


def test_a_server_has_its_time_to_answer_what_it_owes__SA_12() -> None:
    for owed, seconds in ((1, 30.0), (0, 4.0)):
        client = open_client()
        for _ in range(owed):
            client.request(b"y", b"x", NOW)
        client.disconnect(NOW + 1)
        assert client.deadline == NOW + 1 + seconds


def test_many_answers_leave_together() -> None:
    # SA-16, SA-18, SA-21, SA-22: but for those which need more than one plain frame
    for lengths in (False, True):
        server = open_server(lengths=lengths, limits=limits(message_bytes=300, part_bytes=250))
        client = open_client(lengths=lengths)
        bodies = [b"a", b"", b"\0", b"x" * 400, b"b", b"cut"]
        ids = [client.request(b"y" * (290 if body == b"cut" else 1), body, NOW) for body in bodies]
        server.receive(client.outputs(), NOW)
        left = server.answer_all(ids, bodies)
        assert left == [ids[n] for n in ((1, 3, 5) if lengths else (1, 2, 3, 5))]
        for id in left:
            body = bodies[ids.index(id)]
            if lengths or body != b"\0":
                server.answer(id, body)
        events = flat(client.receive(server.outputs(), NOW))
        cut = events.pop()  # HO-01
        assert cut[:4] == ("RequestFailed", cut[1], b"cut", "truncated")
        assert client.counters.responses == len(events) + 1
        assert all(row[2] == row[4] for row in events)
        assert len(events) == (5 if lengths else 4)
        assert server.answer_all([], []) == []
        server.stop()
        assert server.answer_all(["1"], [b""]) == []
