"""The handshake of both sides: versions, extensions, refusals, time."""

from __future__ import annotations

import pytest

from tests.doubles import due
from tests.micromsg2.streams import (
    Error,
    Handshake,
    capture,
    decode,
    encode_error,
    fault,
    flatten,
    handshake,
    limits,
    message,
    offers,
    proposal,
    pump,
    said,
    state,
)
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.micromsg2 import STANDARD, Extension, Offer, Proposal
from twisted_msgproto.micromsg2.machine import Client, Server
from twisted_msgproto.testing import splits


def answered(
    opening: bytes, ours: Proposal | None = None, **changes: object
) -> tuple[Server, Handshake]:
    """A server which has answered, and what it said."""
    server = Server(ours, limits(**changes))
    assert server.receive(opening, 0.0) == []
    assert state(server) == "ANSWERED"
    (reply,) = decode(server.outputs(), 1)
    return server, reply


def refusal(side: Server | Client, nbytes: bytes) -> str:
    """What a side says to a handshake which it refuses."""
    found = fault(side.receive(nbytes, 0.0))
    assert side.fault is found
    assert state(side) == "FAILED"
    (error,) = decode(side.outputs(), 1)
    assert isinstance(error, Error)
    assert found.reason == error.code
    assert found.text == error.text
    assert side.receive(handshake(), 0.0) == []
    return error.text


def opened(ours: Proposal | None = None, **changes: object) -> tuple[Client, Handshake]:
    """A client which has opened, and what it said."""
    client = Client(ours, limits(**changes))
    client.open()
    (opening,) = decode(client.outputs(), 1)
    return client, opening


def closed(
    reply: bytes, ours: Proposal | None = None, **changes: object
) -> tuple[Client, Handshake]:
    """A client which got ``reply`` and has closed the handshake, and what it said."""
    client, _ = opened(ours, **changes)
    client.receive(reply, 0.0)
    assert client.established
    (last,) = decode(client.outputs(), 1)
    return client, last


def names(last: Handshake) -> str:
    return ";".join(map(str, last.required)) + "|" + ";".join(map(str, last.optional))


# ── the three messages ──────────────────────────────────────────────────────────────────────────


def test_the_sources_complete_handshake_indexes_extensions_in_its_order() -> None:
    """MM-04, MM-09: json 1, dotnet 2, batch-ack 3"""
    client, server = Client(proposal("json;dotnet", "batch-ack")), Server(proposal("", "batch-ack"))
    client.open()
    opening = client.outputs()
    server.receive(opening, 0.0)
    reply = server.outputs()
    (answer,) = decode(reply, 1)
    assert names(answer) == "|batch-ack"
    client.receive(reply, 0.0)
    last = client.outputs()
    (final,) = decode(last, 1)
    assert names(final) == "json;dotnet|batch-ack:max-count=10"
    (event,) = server.receive(last, 0.0)
    assert event.identity == final.identity
    assert event.extensions == ("json", "dotnet", "batch-ack")
    for side in (client, server):
        assert [extension.name for extension in side.extensions] == ["json", "dotnet", "batch-ack"]
        assert side.established
        assert side.extension("dotnet") and not side.extension("xml")


def test_the_identity_is_product_and_version_unless_it_is_chosen() -> None:
    """MM-03"""
    _, reply = answered(handshake())
    assert reply.identity.startswith("twisted-msgproto/")
    server, reply = answered(handshake(identity="me"), Proposal(identity="srver"))
    assert reply.identity == "srver"
    assert server.identity == "me"


def test_flags_are_written_as_zero_and_ignored_when_read() -> None:
    """MM-33"""
    octets = bytearray(handshake())
    octets[2] = 0xAA
    server, reply = answered(bytes(octets))
    assert reply.flags == 0
    server.receive(bytes(octets), 0.0)[0]
    assert server.established


@pytest.mark.parametrize("required", ["ack", "json;ack:max-count=3;x-unheard-of"])
def test_the_reference_lists_everything_as_required(required: str) -> None:
    """MM-04: an extension which was offered as optional may come back in either list"""
    server, _ = answered(handshake("", required))
    agreed = ";".join(offer for offer in required.split(";") if not offer.startswith("x-"))
    server.receive(handshake(agreed, ""), 0.0)
    assert server.established


@pytest.mark.parametrize("direction", ["C>S", "S>C"])
def test_the_capture_is_replayed_in_both_roles(direction: str) -> None:
    """MM-04, MM-05, MM-12, MM-22: whole and byte by byte, against each of our sides"""
    octets = capture(direction)
    count = 2 if direction == "C>S" else 1
    whole: list[object] | None = None
    for chunks in splits(octets, 12):
        side: Server | Client = Server()
        if direction == "S>C":
            side = opened()[0]
        found = flatten(event for chunk in chunks for event in side.receive(chunk, 0.0))
        assert side.fault is None
        whole = found if whole is None else whole
        assert found == whole
        written = decode(side.outputs(), count)
        assert all(isinstance(frame, Handshake) for frame in written)
        assert side.counters.received == 4
        assert side.counters.untyped == (1 if direction == "C>S" else 0)
    assert whole is not None
    assert [row[0] for row in whole[1:]] == [1, 2, 3, 4]
    assert whole[0][1:] == ("hulk" if direction == "C>S" else "FastSocket v1.1", ())
    second = whole[2]
    fields = {"first_name": "jonas"} if direction == "C>S" else {}
    assert second[1:4] == ("commands", fields, b"hello1")


# ── versions (MM-05) ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("major", "minor"), [(1, 0), (1, 1), (1, 255), (2, 0), (3, 7), (255, 255)])
def test_a_server_answers_1_0_whatever_is_announced(major: int, minor: int) -> None:
    """MM-05"""
    server, reply = answered(handshake(major=major, minor=minor))
    assert (reply.major, reply.minor) == (1, 0)
    server.receive(handshake(minor=minor), 0.0)[0]
    assert server.established


@pytest.mark.parametrize("major", [0, 2, 3, 255])
def test_any_other_than_the_lower_major_ends_the_handshake(major: int) -> None:
    """MM-05: the third handshake at a server, the answer at a client, which said 1"""
    server, _ = answered(handshake(major=2))
    assert refusal(server, handshake(major=major)).startswith("unsupported-version: ")
    client, _ = opened()
    assert refusal(client, handshake(major=major)).startswith(f"unsupported-version: {major}")


# ── required and optional (MM-06, MM-07) ────────────────────────────────────────────────────────


REFUSED = {
    # what either side requires | offers: how it is refused
    **{
        f"MM-06, MM-30: {name}": (f"json;{name}|", f"unsupported-extension: {name}")
        for name in ("x-unheard-of", "microauth", "ssl")
    },
    "MM-08: twice, in both lists": ("json|json", "protocol-error: "),
    "MM-08: twice, under both names": ("pubsub|pub-sub", "protocol-error: "),
    "MM-08: twice in one list": ("pubsub;pub-sub|", "protocol-error: "),
    "MM-20: no message at a time": ("|batch-ack:max-count=0", "bad-extension: "),
    "MM-20: too many": ("|ack:MessagesPerAck=32768", "bad-extension: "),
}


@pytest.mark.parametrize(("said", "start"), REFUSED.values(), ids=REFUSED)
def test_what_a_side_refuses(said: str, start: str) -> None:
    for side in (Server(), opened()[0]):
        assert refusal(side, handshake(*said.split("|"))).startswith(start)


SERVERS_ANSWER = {
    # what the client requires | offers, what the server requires | suggests: what it answers
    "MM-07, MM-30: not what it lacks": ("|x-unheard-of;json;microauth", "|", "|json"),
    "MM-03: what it is to suggest": ("|", "dotnet|batch-ack:max-count=50", None),
    "MM-07: else nothing: the reference uses whatever is suggested": ("|", "|", "|"),
    "MM-25: another spelling of pub-sub": ("|pubsub", "|", "|pubsub"),
    "MM-20: its limit": ("batch-ack:max-count=5000|", "|", "batch-ack:max-count=1024|"),
    "MM-20: nothing where nothing is to be added": ("batch-ack:max-count=50|", "|", "|"),
    "MM-20: a lower number": (
        *("batch-ack:max-count=50|", "|batch-ack:max-count=20", "batch-ack:max-count=20|"),
    ),
    "MM-20: its number where the client has none": (
        *("batch-ack|", "|batch-ack:max-count=20", "batch-ack:max-count=20|"),
    ),
    "MM-20: none where neither has one": ("batch-ack|", "|", "|"),
}


@pytest.mark.parametrize(("theirs", "ours", "reply"), SERVERS_ANSWER.values(), ids=SERVERS_ANSWER)
def test_what_a_server_answers(theirs: str, ours: str, reply: str | None) -> None:
    _, answer = answered(handshake(*theirs.split("|")), proposal(*ours.split("|")))
    assert names(answer) == (ours if reply is None else reply)


LOWER = [
    ("batch-ack:max-count=100", "batch-ack:max-count=50", "batch-ack:max-count=50"),
    ("batch-ack:max-count=50", "batch-ack:max-count=100", "batch-ack:max-count=50"),
    ("batch-ack:max-count=50", "batch-ack", "batch-ack:max-count=50"),
    ("batch-ack", "batch-ack:count=5", "batch-ack:max-count=5"),
    ("batch-ack", "batch-ack", "batch-ack:max-count=10"),
    ("ack", "ack", "ack"),
    ("ack:max-count=20", "ack", "ack"),
    ("ack:max-count=20", "ack:MessagesPerAck=30,AckExpireTime=500", "ack:max-count=20"),
    ("ack:max-count=20", "ack:MessagesPerAck=3", "ack:max-count=3"),
]
BOTH = "|ack;batch-ack:max-count=7"
FINAL = {
    # what the client requires | offers, what the server answers: the final list
    "MM-07: not what the server lacks": ("|json", "|x-unheard-of;json", "|json"),
    "MM-07: not what it did not want": ("|json", "|json;ack;batch-ack", "|json"),
    "MM-04, MM-09: required first, each list in its order": (
        *("dotnet;json|pub-sub;protobuf", "xml;json|protobuf;pub-sub"),
        "dotnet;json;xml|protobuf;pub-sub",
    ),
    "MM-25: the server's spelling": ("|pub-sub", "|pubsub", "|pubsub"),
    "MM-20: batch-ack where both are agreed": (BOTH, "|ack;batch-ack", "|batch-ack:max-count=7"),
    "MM-20: both if ack is required": (BOTH, "ack|batch-ack", "ack|batch-ack:max-count=7"),
    "MM-20: ack where there is no other": (BOTH, "|ack", "|ack"),
    "MM-18, MM-20: the number of a required one that goes without saying": (
        *("ack:max-count=20|", "|", "ack:max-count=20|"),
    ),
    **{f"MM-18, MM-20: {a}, {b}": (f"|{a}", f"|{b}", f"|{final}") for a, b, final in LOWER},
}


@pytest.mark.parametrize(("ours", "theirs", "final"), FINAL.values(), ids=FINAL)
def test_what_a_client_uses(ours: str, theirs: str, final: str) -> None:
    client, last = closed(handshake(*theirs.split("|")), proposal(*ours.split("|")))
    assert names(last) == final
    agreed = [name for name in final.replace("|", ";").split(";") if name]
    found = [extension.name for extension in client.extensions]
    assert found == [name.partition(":")[0].replace("pubsub", "pub-sub") for name in agreed]
    acks = [name for name in agreed if "ack" in name]
    assert client.room == (int(acks[-1].partition("=")[2] or 1) if acks else None)


@pytest.mark.parametrize(
    ("opening", "ours", "last", "good"),
    [
        *(("json|", "", "|", False), ("json|", "", "|xml", False), ("|", "dotnet", "|", False)),
        *(("json|", "dotnet", f"{last}|", False) for last in ("json", "dotnet")),
        *(("xml|dotnet", "", f"xml|{more}", False) for more in ("json", "x-no", "batch-ack")),
        ("|json;dotnet", "", "|dotnet", True),
    ],
)
def test_a_final_list_has_what_is_required_and_nothing_that_was_not_agreed(
    opening: str, ours: str, last: str, good: bool
) -> None:
    """MM-07: no silent downgrade; options may be left out"""
    server, _ = answered(handshake(*opening.split("|")), proposal(ours))
    if good:
        server.receive(handshake(*last.split("|")), 0.0)
        assert server.established
    else:
        assert refusal(server, handshake(*last.split("|"))).startswith("extension-mismatch: ")


# ── the number of acks (MM-18, MM-20) ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        ({}, 10),
        ({"max-count": "100"}, 100),
        ({"count": "7"}, 7),
        ({"messagesperack": "20", "ackexpiretime": "500"}, 20),
        ({"max-count": "32767"}, 32767),
    ],
)
def test_the_number_is_read_in_every_spelling(properties: dict[str, str], count: int) -> None:
    """MM-20: default 10"""
    assert STANDARD["batch-ack"](properties, limits()).count == count


@pytest.mark.parametrize("text", ["0", "32768", "-1", "1.5", "ten", "", "٣", "000007", "1e3"])
@pytest.mark.parametrize("key", ["max-count", "count", "messagesperack"])
def test_a_number_which_cannot_be_is_refused(key: str, text: str) -> None:
    """MM-20: 0, above 32767, and what is no number"""
    with pytest.raises(ValueError):
        STANDARD["batch-ack"].check({key: text})


def test_a_bad_number_is_refused_at_the_end_too() -> None:
    """MM-20"""
    server, _ = answered(handshake("ack"))
    assert refusal(server, handshake("ack:max-count=0")).startswith("bad-extension: ")


def test_the_final_number_holds_up_to_the_servers_limit() -> None:
    """MM-20: the reference client repeats its own"""
    ours = proposal("", "batch-ack:max-count=5")
    server, _ = answered(handshake("batch-ack:max-count=80"), ours, ack_count=80)
    server.receive(handshake("batch-ack:max-count=80"), 0.0)
    assert server.room == 80
    server, _ = answered(handshake("batch-ack:max-count=80"), ours, ack_count=79)
    text = refusal(server, handshake("batch-ack:max-count=80"))
    assert text.startswith("bad-extension: batch-ack: 80")


# ── the table ───────────────────────────────────────────────────────────────────────────────────


def test_an_error_instead_of_a_handshake_ends_it_without_an_answer() -> None:
    """MM-05, MM-06, MM-17"""
    error_code = "unsupported-extension"
    error = encode_error(f"{error_code}: json")
    client, _ = opened()
    early, late = Server(), answered(handshake())[0]
    for side in (client, early, late):
        events = side.receive(error + handshake(), 0.0)
        assert (events[0].code, events[0].text) == (error_code, f"{error_code}: json")
        assert fault(events).reason == "refused-by-peer"
        assert len(events) == 2
        assert state(side) == "FAILED"
        assert side.outputs() == b""


@pytest.mark.parametrize("octets", [message(1), b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"])
def test_what_is_no_handshake_is_refused(octets: bytes) -> None:
    """MM-17, MM-33: a message's first byte is 0, a major version"""
    server = Server()
    events = server.receive(octets + bytes(400), 0.0)
    assert fault(events).reason in ("protocol-error", "unsupported-version")
    assert b"\4" in server.outputs()


def test_a_client_opens_once() -> None:
    client, _ = opened()
    with pytest.raises(IllegalTransition):
        client.open()


@pytest.mark.parametrize("verb", ["send_run", "send_command", "send_extension", "send_error"])
def test_nothing_is_sent_outside_a_session(verb: str) -> None:
    """A verb in the wrong state is the caller's fault"""
    for side in (Client(), opened()[0], Server(), answered(handshake())[0]):
        named = {"send_run": (b"\1a\0\0", [b"b"]), "send_command": ("a", {})}
        arguments = named.get(verb, ("a", b"b"))
        with pytest.raises(IllegalTransition):
            getattr(side, verb)(*arguments)
        assert side.room == 0


# ── time (MM-32) ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("octets", [b"", b"\1\0", handshake(), handshake() + b"\1"])
def test_a_handshake_has_its_time(octets: bytes) -> None:
    """MM-32: a client which connects and says nothing, or not enough"""
    server = Server()
    server.connection_made(100.0)
    assert due(server, 100.0)[1] == 110.0
    server.receive(octets, 105.0)
    assert due(server, 109.9)[1] == 110.0
    server.outputs()
    assert server.fault is None
    assert due(server, 110.0)[1] is None
    assert server.fault is not None
    assert server.fault.reason == "handshake-timeout"
    assert said(server) == [server.fault.text]
    assert due(server, 111.0)[1] is None


# ── extension sets (MM-10) ──────────────────────────────────────────────────────────────────────


class Vendor(Extension):
    name = "x-vendor"


def test_a_vendors_name_begins_with_x() -> None:
    """MM-10"""
    for wrong in ("vendor", "x-Bad"):
        with pytest.raises(ValueError, match=wrong):
            STANDARD.plus(type("Wrong", (Extension,), {"name": wrong}))
    with pytest.raises(ValueError, match="two"):
        STANDARD.plus(Vendor, Vendor)


def test_a_proposal_offers_only_what_is_known_and_makes_sense() -> None:
    with pytest.raises(ValueError, match="not known"):
        proposal("x-vendor")
    with pytest.raises(ValueError):
        proposal("", "batch-ack:max-count=0")
    with pytest.raises(ValueError, match="twice"):
        proposal("pub-sub", "pubsub")
    for wrong in ("ack", Offer("ack", {"max-count": 5})):  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="an Offer with properties of text is expected, not"):
            Proposal(required=(wrong,))  # type: ignore[arg-type]


def test_what_cannot_be_written_is_no_proposal() -> None:
    """HO-14, MM-02: an identity of 255 bytes and a list of 65535 can"""
    known = STANDARD.plus(Vendor)

    def made(identity: str, key: str, nbytes: int) -> Proposal:
        offer = Offer("x-vendor", {key: "b" * (nbytes - len(f"x-vendor:{key}="))})
        return Proposal(identity, required=(offer,), known=known)

    _, opening = opened(made("a" * 255, "a", 65535))
    assert len(opening.required[0].properties["a"]) > 65500
    for identity, key, nbytes in (
        ("a" * 256, "a", 9),
        ("é", "a", 9),
        ("a", "a", 65536),
        ("a", "Max_Count", 20),
    ):
        with pytest.raises(ValueError):
            made(identity, key, nbytes)
    with pytest.raises(ValueError):
        Proposal(required=(Offer("pub-sub", {"a": "\ud800"}),))


def test_both_sides_meet_over_every_combination_of_offers() -> None:
    """MM-07, MM-09: whatever one requires and the other offers, both end with the same list"""
    choices = ["", "json", "batch-ack:max-count=3", "pub-sub;json", "ack;batch-ack"]
    for ours in choices:
        for optional in choices:
            for theirs in choices:
                if names_of(ours) & names_of(optional) or names_of(theirs) & names_of(optional):
                    continue
                client = Client(proposal(ours, optional))
                server = Server(proposal(theirs, optional))
                client.open()
                pump(client, server)
                assert client.established and server.established, (ours, optional, theirs)
                agreed = [extension.name for extension in client.extensions]
                assert agreed == [extension.name for extension in server.extensions]
                assert set(agreed) >= names_of(ours) | names_of(theirs)
                assert client.room == server.room


def names_of(text: str) -> set[str]:
    return {offer.name for offer in offers(text)}
