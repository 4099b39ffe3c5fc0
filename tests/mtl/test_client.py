"""The client's control flow: one request at a time, again on another socket, anew after 401."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.doubles import unanswered
from twisted_msgproto.mtl import terms
from twisted_msgproto.mtl import wire as control
from twisted_msgproto.mtl.machine import Client

READY = {"profiles": ["test", "queue"]}
TOKEN = "0" * 40


BODIES: dict[str, dict[str, Any]] = {
    **{"201": READY, "202": {"port": 5, "lease": TOKEN}},
    **{"401": {"mechanisms": ["X"]}, "402": {"challenge": ""}},
}
YES = {"O": "201", "A": "201", "P": "200", "R": "202", "W": "202"}


class Cycle:
    """A SASL cycle: ``first``, then an answer to each challenge."""

    mechanism = "X"
    finished = True

    def respond(self, challenge: bytes | None) -> bytes:
        if challenge == b"bad":
            raise ValueError("bad")
        return b"first" if challenge is None else b"to " + challenge


def cycle(mechanisms: Sequence[str]) -> Cycle | None:
    return Cycle() if "X" in mechanisms else None


class Asked:
    """A client and what it has sent: ``names`` are the commands since the last look."""

    def __init__(self) -> None:
        self.client = Client()
        self.now = 0.0

    @property
    def sent(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for empty, name, body in self.client.outputs():
            assert empty == b""  # what a plain REQ puts on the wire
            found.append((name.decode().removeprefix("Connection."), json.loads(body)))
        return found

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.sent]

    def reply(self, code: int, **body: Any) -> list[Any]:
        frames = [b"", *control.encode_reply(code, **body)]
        return self.client.receive([frames], self.now)

    def wait(self, seconds: float) -> list[Any]:
        self.now += seconds
        return self.client.advance(self.now)

    def answer(self, code: str) -> list[Any]:
        if code == "?":
            self.now = self.client.deadline or self.now
            return self.client.advance(self.now)
        if code == "!":
            return self.client.turned_away("too many connections", self.now)
        return self.reply(int(code), **BODIES.get(code, {}))

    def ask(self, verb: str) -> int:
        """Call a verb; the number of the request, or of the lease that is to be renewed."""
        client, now = self.client, self.now
        match verb:
            case "O":
                return client.open("host", now)
            case "A":
                return client.authorize(cycle, now)
            case "P":
                return client.profile("queue", now)
            case "R":
                return client.reader(["a"], "full", now)
            case "W":
                return client.writer(["a"], "full", now)
        client.renew(int(verb), now)
        return int(verb)

    def stands(self, requests: str) -> list[int]:
        """Have these requests answered with yes, and take what was sent; their numbers."""
        numbers = []
        for verb in requests:
            numbers.append(self.ask(verb))
            needs_log_in = verb == "O" and "A" in requests
            self.answer("401" if needs_log_in else YES[verb])
        assert len(self.names) == len(requests)
        return numbers


def test_the_verbs_send_what_a_plain_req_sends() -> None:
    """MT-01, MT-05, MT-09, MT-10, MT-28"""
    asked = Asked()
    client = asked.client
    assert client.open("host", 0.0) == 1
    assert asked.sent == [
        ("Open", {"protocol": {"name": "MTL", "version": 1}, "virtual-host": "host"})
    ]
    (answer,) = asked.reply(201, **READY)
    assert answer == terms.Answered(1, control.Reply(201, {"status": "Ready", **READY}))
    assert (client.profiles, client.state.name) == (["test", "queue"], "READY")
    assert client.profile("queue", 0.0) == 2
    assert asked.sent == [("Profile", {"profile": "queue"})]
    assert [type(event) for event in asked.reply(200)] == [terms.Answered]
    assert client.state.name == "PROFILED"
    assert client.writer(["a"], "full", 0.0) == 3
    assert asked.sent == [("Writer", {"resources": ["a"], "confirm": "full"})]
    more: dict[str, Any] = {"content-bytes": 7, "new": ["a", 3]}
    told = terms.LeaseGranted(3, 5050, TOKEN, 7, ("a",))
    assert asked.reply(202, port=5050, lease=TOKEN, **more) == [told]
    assert client.reader([], "none", 0.0) == 4
    assert asked.sent == [("Reader", {"resources": [], "confirm": "none"})]
    assert client.snapshot() == {"state": "PROFILED", "waiting": 1, "leases": 1, "tries": 0}


def broken(*arguments: Any) -> Any:
    raise ZeroDivisionError("at work")


def of_ones_own(**members: Any) -> Any:
    return lambda names: type("OfOnesOwn", (Cycle,), members)()


CHALLENGED: Any = [(402, {"challenge": "eA=="})]
FAILING: dict[str, tuple[Any, list[tuple[int, dict[str, Any]]], int]] = {
    "the server says no": (cycle, [(401, {"mechanisms": ["X"]})], 401),
    "it is busy": (cycle, [(409, {"reason": "busy"})], 409),
    "the cycle does not take the challenge": (cycle, [(402, {"challenge": "YmFk"})], 402),
    "the challenge is no base64": (cycle, [(402, {"challenge": "*"})], 402),
    "there is no challenge": (cycle, [(402, {})], 402),
    "the server has proved nothing": (of_ones_own(finished=False), [(201, READY)], 201),
    "it can none of the mechanisms": (lambda names: cycle(()), [], 401),
    "there is no cycle": (lambda names: 7, [], 401),
    "credentials raise": (broken, [], 401),
    "the first response raises": (of_ones_own(respond=broken), [], 401),
    "the first response is a text": (of_ones_own(respond=lambda self, challenge: "text"), [], 401),
    "a later response is a text": (
        of_ones_own(respond=lambda self, challenge: "text" if challenge else b"first"),
        CHALLENGED,
        402,
    ),
    "the mechanism is bytes": (of_ones_own(mechanism=b"X"), [], 401),
    "the mechanism raises": (of_ones_own(mechanism=property(broken)), [], 401),
    "the end raises": (of_ones_own(finished=property(broken)), [(201, READY)], 401),
}


@pytest.mark.parametrize(("credentials", "replies", "code"), FAILING.values(), ids=FAILING)
def test_a_log_in_that_fails_fails_alone(
    credentials: Any, replies: list[tuple[int, dict[str, Any]]], code: int
) -> None:
    """MT-07, MT-08: also where the server has not proved itself; the next one may succeed."""
    asked = Asked()
    asked.client.open("host", 0.0)
    asked.reply(401, mechanisms=["X"])
    number = asked.client.authorize(credentials, 0.0)
    told = asked.wait(0)
    for reply, body in replies:
        told += asked.reply(reply, **body)
    (refused,) = told
    assert (refused.number, refused.code) == (number, code)
    later = asked.client.authorize(cycle, 0.0)
    assert [event.number for event in asked.reply(201, **READY)] == [later]


# ── 401 at any time, and no answer ────────────────────────────────────────────────────────────────

NAMES = {"O": "Open", "A": "Authorize", "P": "Profile", "R": "Reader", "W": "Writer"}
TALKS: dict[str, str] = {
    # What stands, what is asked for, what is sent and answered then (? nobody does, ! the server
    # will not have us), what is told: requests and leases go by their numbers.
    "all anew after 401": "OAPR W: W401 O401 A201 P200 R202 W202: 4 leased, 5 leased",
    "all anew once": "OAP W: W401 O401 A201 P200 W401: 4 refused 401",
    "the log-in is refused": "OAP W: W401 O401 A401: 4 refused 401",
    "the next one begins anew": (
        "OAP WW: W401 O401 A401 O401 A201 P200 W202: 4 refused 401, 5 leased"
    ),
    "the profile is refused": "OAP W: W401 O401 A201 P401: 4 refused 401",
    "there are no credentials": "OP W: W401 O401: 3 refused 401",
    "nothing was opened": " W: W401: 1 refused 401",
    "who opens again authorizes again": "OAP O: O401: 4 401",
    "402 to another request": " OP: O402 P400: 1 refused 402, 2 refused 400",
    "a lease is lost alone": (
        "OPRR W: W401 O201 P200 R404 R202 W202: 3 refused 404, 4 leased, 5 leased"
    ),
    "a flow asks for its lease again": "OPR 3: R202: 3 leased",
    "its own lease comes last": "OPRR 3: R401 O201 P200 R202 R202: 4 leased, 3 leased",
    "all anew on another socket": ("OPR W: W? O201 P200 R202 W202: dropped, 3 leased, 4 leased"),
    "sockets are counted whatever is answered between": (
        "OP W: W? O201 P200 W? O201 P200 W?: dropped, dropped, dropped, 3 timed out"
    ),
    "to authorize needs no profile": "OAPR A: A? O401 A201: dropped, 5 201",
    "to select a profile needs no lease": "OAPR P: P? O401 A201 P200: dropped, 5 200",
    "the request fails for whose sake it was": (
        "OPR WP: W? O? O? P200: dropped, dropped, dropped, 4 timed out, 5 200"
    ),
    "from the beginning on another socket": (
        "OPR W: W401 O? O201 P200 R202 W202: dropped, 3 leased, 4 leased"
    ),
    "turned away: all anew on another socket, once": (
        "OPR WWP: W! O201 P200 R202 W202 P200: 4 refused 401, dropped, 3 leased, 5 leased, 6 200"
    ),
    "turned away while it begins anew": "OPR W: W401 O!: 4 refused 401",
}


def as_words(event: Any) -> str:
    match event:
        case terms.Answered():
            return f"{event.number} {event.reply.code}"
        case terms.RequestRefused():
            return f"{event.number} refused {event.code}"
        case terms.RequestTimedOut():
            return f"{event.number} timed out"
        case terms.LeaseGranted():
            return f"{event.number} leased"
    assert isinstance(event, terms.SocketDropped)
    return "dropped"


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_a_session_is_begun_anew_as_far_as_a_request_needs_it(talk: str) -> None:
    """MT-01, MT-05, MT-07, MT-24, MT-28: whatever comes of it, the next request is asked."""
    wanted, steps, told = talk.split(": ")
    before, verbs = wanted.split(" ")
    asked = Asked()
    asked.stands(before)
    for verb in verbs:
        asked.ask(verb)
    found: list[Any] = []
    for letter, *answer in steps.split():
        (name,) = asked.names
        assert name == NAMES[letter]
        found += asked.answer("".join(answer))
    assert ", ".join(map(as_words, found)) == told
    assert (asked.names, asked.client.snapshot()["waiting"]) == ([], 0)
    later = asked.ask("O")
    assert asked.names == ["Open"]
    assert as_words(asked.answer("201")[-1]) == f"{later} 201"


def test_a_lease_that_was_released_is_not_renewed__MT_28() -> None:
    asked = Asked()
    _, _, number = asked.stands("OPR")
    for _ in range(2):
        asked.client.release(number)
    asked.client.renew(number, 0.0)
    assert (asked.names, asked.client.deadline) == ([], None)


@pytest.mark.parametrize(
    "body", [{}, {"port": 5}, {"port": "5", "lease": TOKEN}, {"port": True, "lease": TOKEN},
             {"port": -1, "lease": TOKEN}, {"port": 65_536, "lease": TOKEN},
             {"port": None, "lease": TOKEN}, {"port": 5, "lease": 7}]
)  # fmt: skip
def test_a_lease_without_port_or_token_is_no_lease__MT_11(body: dict[str, Any]) -> None:
    asked = Asked()
    asked.stands("OP")
    number = asked.ask("R")
    refused = terms.RequestRefused(number, 202, "a lease without a port or a token")
    assert asked.reply(202, **body) == [refused]


# ── time ────────────────────────────────────────────────────────────────────────────────────────


def test_three_sockets_of_two_and_a_half_seconds_each__MT_28() -> None:
    asked = Asked()
    number = asked.client.open("host", 0.0)
    assert asked.wait(2.4) == []
    for _ in range(2):  # what was not sent on the old one is not sent on the new one
        assert asked.wait(2.5) == [terms.SocketDropped()]
    assert asked.names == ["Open"]
    assert asked.wait(2.5) == [terms.SocketDropped(), terms.RequestTimedOut(number)]
    assert (asked.names, asked.client.deadline) == ([], None)
    assert asked.client.counters["sockets_dropped"] == 3
    asked.client.open("host", asked.now)
    assert asked.wait(2.5) == [terms.SocketDropped()]


def test_the_reply_to_authorize_may_take_longer() -> None:
    """MT-28, NB-05: a server lets logins wait; to begin anew would only lose the place in line."""
    asked = Asked()
    asked.ask("O")
    asked.answer("401")
    asked.ask("A")
    assert asked.wait(11.9) == []
    assert asked.wait(0.1) == [terms.SocketDropped()]
    assert asked.wait(2.5) == [terms.SocketDropped()]


@pytest.mark.parametrize(("verb", "code"), [("P", "200"), ("O", "201"), ("O", "401")])
def test_selecting_a_profile_or_opening_again_ends_the_leases__MT_05__MT_09(
    verb: str, code: str
) -> None:
    asked = Asked()
    asked.stands("OPR")
    asked.ask(verb)
    asked.answer(code)
    assert asked.client.snapshot()["leases"] == 0


# ── what comes in besides ───────────────────────────────────────────────────────────────────────


def test_what_is_no_reply_or_not_asked_for_is_dropped_and_counted__MT_02() -> None:
    asked = Asked()
    asked.client.open("host", 0.0)
    for frames in (
        [b"x"], [b"", b"2", b"{}"], [b"", b"600", b"{}"], [b"", b"200", b"["], [b"", b"200", b"[]"]
    ):  # fmt: skip
        assert asked.client.receive([frames], 0.0) == []
    asked.reply(201)
    assert asked.reply(201) == []
    assert asked.client.counters["dropped:nobody-asked"] == 1
    assert sum(n for key, n in asked.client.counters.items() if key.startswith("dropped")) == 6


def test_replies_with_odd_lists_are_read_as_far_as_they_make_sense__MT_06__MT_07() -> None:
    asked = Asked()
    asked.client.open("host", 0.0)
    asked.reply(201, profiles=[1, "x"])
    assert asked.client.profiles == ["x"]
    asked.client.open("host", 0.0)
    asked.reply(201, profiles=5)
    assert asked.client.profiles == []
    asked.client.open("host", 0.0)
    asked.reply(401, mechanisms="PLAIN")
    assert asked.client.mechanisms == []


def test_a_profile_which_is_agreed_to_in_any_state_is_kept() -> None:
    """MT-09: the server knows better than the client what has been opened."""
    asked = Asked()
    asked.client.profile("queue", 0.0)
    assert [type(event) for event in asked.reply(200)] == [terms.Answered]
    assert asked.client.state.name == "CLOSED"


def test_who_is_turned_away_is_refused_what_it_asked_for_and_nothing_else__MT_24() -> None:
    asked = Asked()
    assert asked.client.turned_away("too many connections", asked.now) == []
    number = asked.client.open("host", asked.now)
    refused = asked.client.turned_away("too many connections", asked.now)
    assert refused == [
        terms.SocketDropped(),
        terms.RequestRefused(number, 401, "too many connections"),
    ]
    assert (asked.names, asked.client.deadline) == ([], None)


# ── what is left behind ─────────────────────────────────────────────────────────────────────────


def test_a_drained_client_is_finished_when_its_request_is_answered__MT_28() -> None:
    asked = Asked()
    asked.client.open("host", 0.0)
    asked.client.drain(0.0)
    assert not asked.client.finished
    asked.reply(201, **READY)
    assert asked.client.finished


def test_a_success_that_belongs_to_another_request_is_no_answer_and_other_codes_are__MT_14() -> (
    None
):
    for code, answers in ((200, 0), (202, 0), (299, 0), (300, 1)):
        asked = Asked()
        asked.client.open("host", 0.0)
        assert len(asked.client.receive([[b"", b"%d" % code, b"{}"]], 0.0)) == answers
        assert asked.client.counters["dropped:another-answer"] == 1 - answers
        assert len(asked.reply(201, **READY)) == 1 - answers


def test_a_closed_client_says_what_was_not_answered_and_holds_nothing__MT_28() -> None:
    asked = Asked()
    *_, first, _ = asked.stands("OPRR")
    asked.client.renew(first, 0.0)
    numbers = [asked.client.writer(["b"], "full", 0.0), asked.client.profile("test", 0.0)]
    asked.reply(401)  # Open, Profile and the other lease are to be done anew
    assert asked.client.snapshot()["waiting"] == 5
    assert not asked.client.finished
    assert unanswered(asked.client) == [first, *numbers]
    assert asked.client.finished
    assert (asked.client.snapshot()["waiting"], asked.names) == (0, [])
    assert asked.client.deadline is None
    assert unanswered(asked.client) == []
