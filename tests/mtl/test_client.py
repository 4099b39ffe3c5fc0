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
LEASED = {"port": 5, "lease": TOKEN}


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

    def ready(self, *leases: str) -> list[int]:
        """Open, select a profile, get leases; their numbers."""
        self.client.open("host", self.now)
        self.reply(201, **READY)
        self.client.profile("queue", self.now)
        self.reply(200)
        numbers = []
        for resource in leases:
            numbers.append(self.client.reader([resource], "full", self.now))
            self.reply(202, port=5, lease=TOKEN)
        assert len(self.names) == 2 + len(leases)
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


def test_a_cycle_of_challenges__MT_07__MT_08() -> None:
    asked = Asked()
    client = asked.client
    client.open("host", 0.0)
    (opened,) = asked.reply(401, mechanisms=["Y", "x", 5])
    assert (opened.number, client.mechanisms) == (1, ["Y", "x"])
    number = client.authorize(cycle, 0.0)
    assert asked.sent[1:] == [
        ("Authorize", {"mechanism": "X", "response": control.encode_base64(b"first")})
    ]
    assert asked.reply(402, challenge=control.encode_base64(b"1")) == []
    assert asked.sent[0][1]["response"] == control.encode_base64(b"to 1")
    (answer,) = asked.reply(201, **READY)
    assert (answer.number, client.state.name) == (number, "READY")


class Unproven(Cycle):
    finished = False


CHALLENGED = {"challenge": control.encode_base64(b"bad")}


@pytest.mark.parametrize(
    ("credentials", "code", "body", "found"),
    [
        (cycle, 401, {"mechanisms": ["X"]}, 401),
        (cycle, 402, CHALLENGED, 402),
        (cycle, 402, {"challenge": "*"}, 402),
        (cycle, 402, {}, 402),
        (cycle, 409, {"reason": "busy"}, 409),
        (lambda names: Unproven(), 201, READY, 201),
    ],
)
def test_a_cycle_which_fails(credentials: Any, code: int, body: dict[str, Any], found: int) -> None:
    """MT-08: also where the server has not proved itself; the next one may succeed."""
    asked = Asked()
    asked.client.open("host", 0.0)
    asked.reply(401, mechanisms=["X"])
    number = asked.client.authorize(credentials, 0.0)
    (refused,) = asked.reply(code, **body)
    assert isinstance(refused, terms.RequestRefused)
    assert (refused.number, refused.code) == (number, found)
    asked.client.authorize(cycle, 0.0)
    assert [type(event) for event in asked.reply(201)] == [terms.Answered]


def broken(*arguments: Any) -> Any:
    raise ZeroDivisionError("at work")


def of_ones_own(**members: Any) -> Any:
    return lambda names: type("OfOnesOwn", (Cycle,), members)()


@pytest.mark.parametrize(
    "credentials",
    [
        broken,
        lambda names: 7,
        lambda names: cycle(()),  # it can none of them
        of_ones_own(respond=broken),
        of_ones_own(respond=lambda self, challenge: "text"),
        of_ones_own(respond=lambda self, challenge: b"first" if challenge is None else "text"),
        of_ones_own(mechanism=b"X"),
        of_ones_own(mechanism=property(broken)),
        of_ones_own(finished=property(broken)),
    ],
)
def test_credentials_that_fail_fail_the_log_in_and_nothing_else__RD_40(credentials: Any) -> None:
    """MT-07, MT-08: some of them left the client without an answer for ever."""
    asked = Asked()
    asked.client.open("host", 0.0)
    asked.reply(401, mechanisms=["X"])
    number = asked.client.authorize(credentials, 0.0)
    told = asked.wait(0)
    if not told:
        told = asked.reply(402, challenge="eA==") or asked.reply(201, **READY)
    (refused,) = told
    assert (refused.number, refused.code // 100) == (number, 4)
    later = asked.client.authorize(cycle, 0.0)
    assert [event.number for event in asked.reply(201, **READY)] == [later]


# ── 401 at any time ─────────────────────────────────────────────────────────────────────────────


def authorized(*leases: str) -> tuple[Asked, list[int]]:
    asked = Asked()
    asked.client.open("host", 0.0)
    asked.reply(401, mechanisms=["X"])
    asked.client.authorize(cycle, 0.0)
    asked.reply(201, **READY)
    asked.client.profile("queue", 0.0)
    asked.reply(200)
    numbers = []
    for resource in leases:
        numbers.append(asked.client.reader([resource], "full", 0.0))
        asked.reply(202, port=5, lease=TOKEN)
    assert asked.names[:3] == ["Open", "Authorize", "Profile"]
    return asked, numbers


def test_on_401_the_client_begins_anew_and_repeats_the_request_once() -> None:
    """MT-07: Open, Authorize as asked, Profile, the leases, then the request."""
    asked, (lease,) = authorized("a")
    number = asked.client.writer(["b"], "full", 0.0)
    asked.reply(401, mechanisms=["X"])
    steps: list[tuple[str, int, dict[str, Any]]] = [
        ("Writer", 401, {"mechanisms": ["X"]}),
        ("Open", 401, {"mechanisms": ["X"]}),
        ("Authorize", 201, READY),
        ("Profile", 200, {}),
        ("Reader", 202, {"port": 6, "lease": "1" * 40}),
        ("Writer", 202, {"port": 6, "lease": "2" * 40}),
    ]
    told: list[Any] = []
    names = asked.names
    for _, code, body in steps[1:]:
        told += asked.reply(code, **body)
        names += asked.names
    assert names == [name for name, _, _ in steps]
    assert told == [
        terms.LeaseGranted(lease, 6, "1" * 40),
        terms.LeaseGranted(number, 6, "2" * 40),
    ]


IN_VAIN: dict[str, tuple[str, tuple[int, ...]]] = {
    "the log-in is refused": ("authorized", (401, 401, 401)),
    "the profile is refused": ("authorized", (401, 401, 201, 401)),
    "the request is refused again": ("authorized", (401, 401, 201, 200, 401)),
    "there are no credentials": ("ready", (401, 401)),
    "nothing was opened": ("new", (401,)),
}


@pytest.mark.parametrize(("state", "codes"), IN_VAIN.values(), ids=IN_VAIN)
def test_beginning_anew_in_vain_fails_the_request(state: str, codes: tuple[int, ...]) -> None:
    """MT-05, MT-07: and the next one begins on its own."""
    asked = authorized()[0] if state == "authorized" else Asked()
    if state == "ready":
        asked.ready()
    number = asked.client.writer(["b"], "full", 0.0)
    told = [event for code in codes for event in asked.reply(code, mechanisms=["X"])]
    assert told == [terms.RequestRefused(number, 401, "not authorized")]
    later = asked.client.open("host", 0.0)
    assert asked.names[-1] == "Open"
    assert [event.number for event in asked.reply(201)] == [later]


def test_402_to_another_request_is_a_refusal_and_the_next_one_is_asked__MT_01__MT_08() -> None:
    asked = Asked()
    numbers = [asked.client.open("host", 0.0), asked.client.profile("test", 0.0)]
    assert asked.names == ["Open"]
    assert asked.reply(402, challenge="") == [terms.RequestRefused(numbers[0], 402, "Challenged")]
    assert asked.names == ["Profile"]
    refused = terms.RequestRefused(numbers[1], 400, "none such")
    assert asked.reply(400, reason="none such") == [refused]
    assert asked.names == []


def test_opening_again_leaves_it_to_the_caller_to_authenticate_again__MT_07() -> None:
    asked, _ = authorized()
    number = asked.client.open("other", 0.0)
    assert [event.number for event in asked.reply(401, mechanisms=["X"])] == [number]
    assert asked.names == ["Open"]


def test_a_lease_which_cannot_be_renewed_is_lost_alone__MT_07() -> None:
    asked = Asked()
    first, second = asked.ready("a", "b")
    number = asked.client.writer(["c"], "full", 0.0)
    told = []
    for code, body in (
        (401, {}), (201, READY), (200, {}), (404, {"reason": "gone"}),
        (202, {"port": 1, "lease": TOKEN}), (202, {"port": 1, "lease": TOKEN}),
    ):  # fmt: skip
        told += asked.reply(code, **body)
    assert told == [
        terms.RequestRefused(first, 404, "gone"),
        terms.LeaseGranted(second, 1, TOKEN),
        terms.LeaseGranted(number, 1, TOKEN),
    ]


def test_a_flow_may_ask_for_its_lease_again__MT_28() -> None:
    asked = Asked()
    first, second = asked.ready("a", "b")
    asked.client.renew(first, 0.0)
    assert asked.names == ["Reader"]
    assert asked.reply(202, port=1, lease=TOKEN) == [terms.LeaseGranted(first, 1, TOKEN)]
    asked.client.renew(first, 0.0)
    asked.reply(401)
    for code in (201, 200):
        asked.reply(code)
    # The other one first; its own is the request in hand.
    assert asked.reply(202, port=1, lease=TOKEN) == [terms.LeaseGranted(second, 1, TOKEN)]
    assert asked.reply(202, port=1, lease=TOKEN) == [terms.LeaseGranted(first, 1, TOKEN)]
    asked.client.release(first)
    asked.client.release(first)
    asked.names.clear()
    asked.client.renew(first, 0.0)
    assert asked.client.deadline is None


@pytest.mark.parametrize(
    "body", [{}, {"port": 5}, {"port": "5", "lease": TOKEN}, {"port": True, "lease": TOKEN},
             {"port": -1, "lease": TOKEN}, {"port": 65_536, "lease": TOKEN},
             {"port": None, "lease": TOKEN}, {"port": 5, "lease": 7}]
)  # fmt: skip
def test_a_lease_without_port_or_token_is_no_lease__MT_11(body: dict[str, Any]) -> None:
    asked = Asked()
    asked.ready()
    number = asked.client.reader(["a"], "full", 0.0)
    refused = terms.RequestRefused(number, 202, "a lease without a port or a token")
    assert asked.reply(202, **body) == [refused]


# ── time ────────────────────────────────────────────────────────────────────────────────────────


def test_three_sockets_of_two_and_a_half_seconds_each__MT_28() -> None:
    asked = Asked()
    number = asked.client.open("host", 0.0)
    assert asked.client.deadline == 2.5
    assert asked.wait(2.4) == []
    for _ in range(2):  # what was not sent on the old one is not sent on the new one
        assert asked.wait(2.5) == [terms.SocketDropped()]
    assert asked.names == ["Open"]
    assert asked.wait(2.5) == [terms.SocketDropped(), terms.RequestTimedOut(number)]
    assert asked.names == []
    assert asked.client.counters["sockets_dropped"] == 3
    assert asked.client.deadline is None
    asked.client.open("host", asked.now)
    assert asked.wait(2.5) == [terms.SocketDropped()]


def test_the_reply_to_authorize_may_take_longer() -> None:
    """MT-28, NB-05: a server lets logins wait; to begin anew would only lose the place in line."""
    asked = Asked()
    asked.client.open("host", 0.0)
    asked.reply(401, mechanisms=["X"])
    asked.client.authorize(cycle, asked.now)
    assert asked.names[-1] == "Authorize"
    assert asked.wait(11.9) == []
    assert asked.wait(0.1) == [terms.SocketDropped()]
    assert asked.names[-1] == "Open"
    assert asked.wait(2.5) == [terms.SocketDropped()]


def test_on_a_new_socket_the_session_is_opened_before_the_request_is_repeated() -> None:
    """MT-28: the server does not know the new socket."""
    asked = Asked()
    (lease,) = asked.ready("a")
    number = asked.client.writer(["b"], "full", 0.0)
    assert asked.names == ["Writer"]
    assert asked.wait(2.5) == [terms.SocketDropped()]
    assert asked.client.state.name == "CLOSED"
    told = asked.reply(201, **READY) + asked.reply(200)
    told += asked.reply(202, port=1, lease=TOKEN) + asked.reply(202, port=2, lease=TOKEN)
    assert asked.names == ["Open", "Profile", "Reader", "Writer"]
    assert told == [terms.LeaseGranted(lease, 1, TOKEN), terms.LeaseGranted(number, 2, TOKEN)]


def test_sockets_are_counted_for_the_request_whatever_is_answered_between() -> None:
    """MT-28: a server which opens but never answers the request is given up, too."""
    asked = Asked()
    asked.ready()
    number = asked.client.writer(["b"], "full", 0.0)
    for _ in range(2):
        assert asked.wait(2.5) == [terms.SocketDropped()]
        asked.reply(201, **READY)
        asked.reply(200)
    assert asked.wait(2.5) == [terms.SocketDropped(), terms.RequestTimedOut(number)]


@pytest.mark.parametrize("kind", ["authorize", "profile"])
def test_on_a_new_socket_as_much_is_done_anew_as_the_request_needs__MT_28(kind: str) -> None:
    asked, _ = authorized("a")
    if kind == "authorize":
        number = asked.client.authorize(cycle, 0.0)
        codes = (401, 201)
        names = ["Open", "Authorize"]
    else:
        number = asked.client.profile("test", 0.0)
        codes = (401, 201, 200)
        names = ["Open", "Authorize", "Profile"]
    asked.names.clear()
    assert asked.wait(12 if kind == "authorize" else 2.5) == [terms.SocketDropped()]
    told, sent = [], asked.names
    for code in codes:
        told += asked.reply(code, mechanisms=["X"])
        sent += asked.names
    assert sent == names
    assert [event.number for event in told] == [number]


def test_a_script_which_times_out_fails_the_request_for_whose_sake_it_ran__MT_28() -> None:
    asked = Asked()
    asked.ready("a")
    number = asked.client.writer(["b"], "full", 0.0)
    after = asked.client.profile("test", 0.0)
    told = asked.wait(2.5) + asked.wait(2.5) + asked.wait(2.5)
    assert told[-1] == terms.RequestTimedOut(number)
    asked.names.clear()
    assert [event.number for event in asked.reply(200)] == [after]


def test_selecting_a_profile_or_opening_again_ends_the_leases__MT_05__MT_09() -> None:
    for verb in ("profile", "open"):
        asked = Asked()
        asked.ready("a")
        getattr(asked.client, verb)("test", 0.0)
        asked.reply(200 if verb == "profile" else 201)
        assert asked.client.snapshot()["leases"] == 0
    asked = Asked()
    asked.ready("a")
    asked.client.open("other", 0.0)
    asked.reply(401, mechanisms=["X"])
    assert asked.client.snapshot()["leases"] == 0


# ── what comes in besides ───────────────────────────────────────────────────────────────────────


def test_what_is_no_reply_or_not_asked_for_is_dropped_and_counted__MT_02() -> None:
    asked = Asked()
    asked.client.open("host", 0.0)
    for frames in ([b"x"], [b"", b"2", b"{}"], [b"", b"200", b"["]):
        assert asked.client.receive([frames], 0.0) == []
    asked.reply(201)
    assert asked.reply(201) == []
    assert asked.client.counters["dropped:nobody-asked"] == 1
    assert sum(n for key, n in asked.client.counters.items() if key.startswith("dropped")) == 4


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


def test_who_was_turned_away_does_all_anew_on_the_next_socket_and_once__MT_24() -> None:
    asked = Asked()
    asked.ready("a")
    asked.client.writer(["b"], "full", 0.0)
    asked.client.writer(["c"], "full", 0.0)
    told = asked.client.turned_away("too many connections", asked.now)
    assert [type(event) for event in told] == [terms.RequestRefused, terms.SocketDropped]
    done = []
    for code, body in ((201, READY), (200, {}), (202, LEASED), (202, LEASED)):
        (name,) = asked.names
        done.append(name)
        told += asked.reply(code, **body)
    assert done == ["Open", "Profile", "Reader", "Writer"]
    assert sum(isinstance(event, terms.SocketDropped) for event in told) == 1
    asked.client.profile("test", 0.0)
    assert asked.names == ["Profile"]
    assert asked.reply(200) != []


def test_what_was_to_be_done_anew_is_done_from_its_beginning_on_another_socket__MT_28() -> None:
    asked = Asked()
    asked.ready("a")
    asked.client.writer(["b"], "full", 0.0)
    asked.reply(401)
    assert asked.client.state.name == "UNAUTHORIZED"
    assert asked.names[-1] == "Open"
    asked.wait(2.5)
    done = []
    for code, body in ((201, READY), (200, {}), (202, LEASED), (202, LEASED)):
        done += asked.names
        asked.reply(code, **body)
    assert done == ["Open", "Profile", "Reader", "Writer"]
    assert asked.client.snapshot()["waiting"] == 0
    assert asked.client.counters["requests"] == 9


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
    first, _ = asked.ready("a", "b")
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


def test_who_is_turned_away_while_it_begins_anew_has_nothing_more_to_do__MT_24() -> None:
    asked = Asked()
    asked.ready("a")
    asked.client.writer(["b"], "full", 0.0)
    asked.reply(401)
    asked.client.turned_away("too many connections", asked.now)
    assert asked.client.snapshot()["waiting"] == 0
