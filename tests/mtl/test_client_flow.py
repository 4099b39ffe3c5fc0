"""The client's side of a data flow: windows, confirmations, heartbeats, flows which are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.doubles import unanswered
from tests.mtl.broker import (
    CLIENT_LIMITS,
    Confirm,
    Content,
    DataCommand,
    Dismiss,
    Lease,
    Ping,
    Pong,
    Reject,
    Response,
    Summon,
)
from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.mtl import terms
from twisted_msgproto.mtl.machine import ClientFlow
from twisted_msgproto.mtl.wire import data

EMPTY = data.EMPTY


class Flowing:
    """A flow and its server's hands."""

    def __init__(self, reads: bool, confirm: bool = True, **limits: object) -> None:
        table = CLIENT_LIMITS.replace(
            {key.replace("_", "-"): value for key, value in limits.items()}
        )
        self.flow = ClientFlow(reads=reads, confirm=confirm, limits=table)
        self.now = 0.0

    @property
    def sent(self) -> list[DataCommand]:
        return [data.decode(*frames) for frames in self.flow.outputs()]

    def get(self, *commands: DataCommand) -> list[Any]:
        return self.flow.receive([data.encode(command) for command in commands], self.now)

    def wait(self, seconds: float) -> list[Any]:
        end, found = self.now + seconds, []
        while True:
            found += self.flow.advance(self.now)
            due = self.flow.deadline
            if due is None or due > end:
                self.now = end
                return found
            self.now = max(self.now, due)

    def open(self, token: str = "lease") -> int:
        """Show a lease, have it accepted; the sequence it had."""
        self.flow.renew(token, self.now)
        (lease,) = self.sent
        assert isinstance(lease, Lease)
        assert self.get(Response(lease.sequence, 200))[0] == terms.FlowOpened()
        return lease.sequence

    def stands(self) -> Flowing:
        self.open()
        return self

    def write(self, *numbers: int) -> list[int]:
        return self.flow.send([("a", EMPTY, b"%d" % number) for number in numbers], self.now)


def reader(**limits: object) -> Flowing:
    return Flowing(True, **limits).stands()


def writer(confirm: bool = True, **limits: object) -> Flowing:
    return Flowing(False, confirm, **limits).stands()


WEIGHT = 640 + len(b"\x01a" + EMPTY + b"1")  # of a content that waits
REJECTED = "the server rejected content and ended the flow"
NOTHING = "nothing-to-settle"
COMMANDS: list[tuple[DataCommand, list[str]]] = [
    # What becomes of it in each of the states, as they stand in STATES; "": it is obeyed.
    (Lease(50, "x"), ["lease-not-allowed"] * 5),
    (Response(51, 200), ["response-not-allowed", *["nobody-asked"] * 3, "response-not-allowed"]),
    (Summon(52, "a"), ["summon-not-allowed"] * 5),
    (Dismiss(53, "a"), ["dismiss-not-allowed"] * 5),
    (Content(54, "a"), [*["content-not-allowed"] * 2, "", "content", "content-not-allowed"]),
    (Confirm(55), [*["confirm-not-allowed"] * 2, NOTHING, NOTHING, "confirm-not-allowed"]),
    (Reject(56), [*["reject-not-allowed"] * 2, NOTHING, NOTHING, "reject-not-allowed"]),
    (Ping(), ["ping-not-allowed", "", "", "", "ping-not-allowed"]),
    (Pong(), ["pong-not-allowed", "", "", "", "pong-not-allowed"]),
]
STATES = ["LOST", "LEASING", "OPEN, reads", "OPEN, writes", "CLOSED"]


@pytest.mark.parametrize("column", range(len(STATES)), ids=STATES)
@pytest.mark.parametrize(("command", "reasons"), COMMANDS)
def test_every_command_in_every_state(
    command: DataCommand, reasons: list[str], column: int
) -> None:
    """MT-13, MT-14, MT-18, MT-19, MT-21: what is not obeyed is counted and changes nothing."""
    name, _, does = STATES[column].partition(", ")
    flowing = Flowing(does != "writes")
    if name == "LEASING":
        flowing.flow.renew("x", 0.0)
    elif name != "LOST":
        flowing.open()
    if name == "CLOSED":
        unanswered(flowing.flow)
    flowing.flow.outputs()
    told = flowing.get(command)
    reason = reasons[column]
    assert flowing.flow.state.name == name
    assert dict(flowing.flow.counters) == ({f"dropped:{reason}": 1} if reason else {})
    assert flowing.sent == ([Pong()] if isinstance(command, Ping) and not reason else [])
    assert len(told) == (isinstance(command, Content) and not reason)
    if name == "OPEN":  # a Response to what was answered is none
        assert flowing.get(Response(1, 403)) == []


# ── leases ──────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_which_is_refused_or_not_answered_loses_the_flow__MT_14__MT_28() -> None:
    flowing = Flowing(True)
    flowing.flow.renew("lease", 0.0)
    (refused,) = flowing.get(Response(1, 403))
    assert refused.reason.startswith("the lease was refused")
    assert flowing.flow.state.name == "LOST"
    flowing.flow.renew("lease", 0.0)
    assert flowing.wait(7.4) == []
    assert flowing.wait(0.2) == [terms.FlowSuspended("the lease was not answered")]
    assert (flowing.flow.advance(99.0), flowing.flow.deadline) == ([], None)
    refused_ever = Flowing(True, renewals=3)
    for sequence, kind in enumerate([terms.FlowSuspended] * 2 + [terms.FlowGivenUp], 1):
        refused_ever.flow.renew("lease", 0.0)
        assert [type(event) for event in refused_ever.get(Response(sequence, 403))] == [kind]


# ── commands ────────────────────────────────────────────────────────────────────────────────────


def test_commands_are_pipelined_and_answered_in_any_order() -> None:
    """MT-15, MT-16, MT-17"""
    flowing = reader()
    numbers = [flowing.flow.summon("a", 0.0), flowing.flow.summon("b", 0.0)]
    numbers.append(flowing.flow.dismiss("b", 0.0))
    assert flowing.sent == [Summon(2, "a"), Summon(3, "b"), Dismiss(4, "b")]
    told = flowing.get(Response(4, 400), Response(2, 200), Response(3, 404))
    assert told == [
        terms.Responded(numbers[2], 400),
        terms.Responded(numbers[0], 200),
        terms.Responded(numbers[1], 404),
    ]
    assert flowing.flow.snapshot()["summoned"] == ["a"]


def nobody_answers(flowing: Flowing) -> list[Any]:
    for _ in range(3):
        flowing.wait(2.4)
        flowing.get(Pong())
    return flowing.wait(0.4)


LOSSES: dict[str, Callable[[Flowing], list[Any]]] = {
    "a command was forbidden": lambda flowing: flowing.get(Response(4, 403)),
    "a command was not answered": nobody_answers,
    "its session began anew": lambda flowing: flowing.flow.suspend("its session began anew"),
}


@pytest.mark.parametrize(("reason", "lose"), LOSSES.items(), ids=LOSSES)
def test_a_renewed_reader_summons_what_it_had_and_what_it_was_not_answered(
    reason: str, lose: Callable[[Flowing], list[Any]]
) -> None:
    """MT-28: and what is refused then is summoned no more."""
    flowing = reader()
    for resource in ("a", "b"):
        flowing.flow.summon(resource, 0.0)
    flowing.get(Response(2, 200), Response(3, 200))
    pending = flowing.flow.summon("c", 0.0)
    flowing.sent.clear()
    assert lose(flowing) == [terms.FlowSuspended(reason)]
    assert flowing.flow.suspend("again") == []
    assert flowing.open("new") == 5
    assert flowing.sent == [Summon(6, "a"), Summon(7, "b"), Summon(8, "c")]
    told = flowing.get(Response(6, 400), Response(7, 200), Response(8, 200))
    assert told == [terms.Responded(pending, 200)]
    assert flowing.flow.snapshot()["summoned"] == ["b", "c"]


@pytest.mark.parametrize(("code", "summoned"), [(200, ["b"]), (400, ["a", "b"])])
def test_only_a_dismiss_that_was_granted_ends_what_was_summoned(
    code: int, summoned: list[str]
) -> None:
    """MT-28: the others are summoned again when the flow is renewed."""
    flowing = reader()
    for resource in ("a", "b"):
        flowing.flow.summon(resource, 0.0)
    flowing.get(Response(2, 200), Response(3, 200))
    number = flowing.flow.dismiss("a", 0.0)
    assert flowing.get(Response(4, code)) == [terms.Responded(number, code)]
    assert flowing.flow.snapshot()["summoned"] == summoned


def test_what_cannot_be_sent_is_the_callers_fault() -> None:
    """MT-19, MT-22: also before there is a lease."""
    for flowing in (reader(), Flowing(True)):
        with pytest.raises(ValueError, match="control character"):
            flowing.flow.summon("a\n", 0.0)
        with pytest.raises(ValueError, match="sends no content"):
            flowing.write(1)
    for flowing in (writer(), Flowing(True, False)):
        with pytest.raises(ValueError, match="only a reader"):
            flowing.flow.confirm(1, False, 0.0)
    with pytest.raises(ValueError, match="255 bytes"):
        writer().flow.send([("x" * 256, EMPTY, b"")], 0.0)


def test_a_content_above_the_servers_limit_is_not_sent__MT_29() -> None:
    flowing = writer()
    flowing.flow.suspend("lost")
    flowing.flow.renew("new", 0.0, 99)
    with pytest.raises(LimitExceeded, match="the server's content-bytes is 99"):
        flowing.flow.send([("a", EMPTY, bytes(100))], 0.0)
    flowing.flow.send([("a", EMPTY, bytes(99))], 0.0)


@pytest.mark.parametrize("confirm", [True, False])
def test_a_content_above_the_limit_is_not_sent(confirm: bool) -> None:
    """HO-23: neither a body nor the properties; what else is sent with it is not, either."""
    flowing = writer(confirm, content_bytes=100)
    good = ("a", EMPTY, bytes(100))
    for bad in (("a", EMPTY, bytes(101)), ("a", data.encode_table({"k": "v" * 100}), b"")):
        with pytest.raises(LimitExceeded):
            flowing.flow.send([good, bad], flowing.now)
    assert flowing.sent == []
    flowing.flow.send([good, ("a", EMPTY, bytearray(b"x"))], flowing.now)  # type: ignore[list-item]
    assert [len(command.body) for command in flowing.sent] == [100, 1]  # type: ignore[union-attr]


# ── readers ─────────────────────────────────────────────────────────────────────────────────────


def test_contents_of_one_read_are_one_event__MT_18() -> None:
    flowing = reader()
    table = data.encode_table({"k": 1})
    told = flowing.get(
        Content(1, "a", body=b"x"), Content(5, "b", table, b"y"), Ping(), Content(5, "a"),
        Content(4, "a"),
    )  # fmt: skip
    assert told == [terms.ContentsReceived([1, 5], ["a", "b"], [EMPTY, table], [b"x", b"y"])]
    assert flowing.flow.counters["dropped:content"] == 2
    assert flowing.sent == [Pong()]


def test_confirming_and_rejecting_what_was_received__MT_19__MT_20() -> None:
    flowing = reader()
    flowing.get(*(Content(number, "a") for number in range(1, 8)))
    flow = flowing.flow
    flow.confirm(3, True, 0.0)
    flow.confirm(3, True, 0.0)  # settled already
    flow.confirm(2, False, 0.0)
    flow.reject(5, False, True, 0.0)
    flow.confirm(99, True, 0.0)  # never received
    flow.reject(99, True, False, 0.0)
    flow.reject(6, True, False, 0.0)
    assert flowing.sent == [Confirm(3, True), Reject(5, False, True), Reject(6, True, False)]
    assert list(flow.unconfirmed) == [7]
    flow.suspend("x")
    flow.confirm(7, False, 0.0)
    flowing.open("new")
    assert (flowing.sent, list(flow.unconfirmed)) == ([], [])
    assert flowing.get(Content(1, "a")) != []  # the server counts anew


# ── writers ─────────────────────────────────────────────────────────────────────────────────────


def test_no_more_than_the_window_is_in_flight__MT_27() -> None:
    flowing = Flowing(False, window=3, **{"unsent-bytes": 4 * WEIGHT})
    with pytest.raises(LimitExceeded):  # the window has room for three, however large
        flowing.flow.send([("a", EMPTY, bytes(3 * WEIGHT + 2))] * 4, flowing.now)
    flowing.open()
    numbers = flowing.write(*range(1, 8))
    assert [c.body for c in flowing.sent] == [b"1", b"2", b"3"]  # type: ignore[union-attr]
    assert (flowing.flow.room, flowing.flow.unsettled) == (-4, 7)
    with pytest.raises(LimitExceeded):
        flowing.write(9)
    assert flowing.get(Confirm(3, True)) == [terms.ContentsConfirmed(numbers[:2])]
    assert [c.body for c in flowing.sent] == [b"4", b"5"]  # type: ignore[union-attr]
    assert flowing.write(8) == [numbers[-1] + 1]
    assert flowing.get(Reject(4)) == [terms.ContentsRefused(numbers[2:3])]
    assert [c.body for c in flowing.sent if isinstance(c, Content)] == [b"6"]
    flowing.flow.suspend("x")  # what was in flight waits as well then
    with pytest.raises(LimitExceeded):
        flowing.write(9, 10)
    flowing.write(9)
    flowing.open("new")
    flowing.get(Confirm(3, True))
    flowing.flow.renew("newer", flowing.now)  # all of it waits again
    with pytest.raises(LimitExceeded):
        flowing.write(10)


def test_confirm_and_reject_of_writers_single_and_multiple__MT_19__MT_20() -> None:
    flowing = writer()
    one, two, three, four, five, six = flowing.write(*range(1, 7))  # sequences 2 … 7
    flowing.sent.clear()
    steps: list[tuple[DataCommand, list[Any]]] = [
        (Confirm(3), [terms.ContentsConfirmed([two])]),
        (Confirm(3), []),
        (Reject(4), [terms.ContentsRefused([three])]),
        (
            Confirm(4, True),
            [terms.ContentsConfirmed([one])],
        ),  # settled itself, what is before it counts
        (Confirm(4, True), []),
        (Confirm(99, True), []),
        (Reject(99, True), []),
        (Confirm(0, True), []),
        (Confirm(1, True), []),  # the lease's
        (Reject(6, True, True), [terms.ContentsRefused([four, five])]),
        (Confirm(7, True), [terms.ContentsConfirmed([six])]),
    ]
    for command, told in steps:
        assert flowing.get(command) == told
    assert flowing.flow.unsettled == 0
    flowing.sent.clear()
    both = flowing.write(7, 8)
    seven, eight = (content.sequence for content in flowing.sent)  # type: ignore[union-attr]
    told = [terms.ContentsConfirmed([number]) for number in both]
    assert flowing.get(Confirm(seven), Confirm(eight)) == told


def test_a_writer_asks_after_a_reject_whether_its_flow_stands() -> None:
    """MT-14, MT-19: if it does, it goes on as before."""
    flowing = writer()
    numbers = flowing.write(1, 2, 3)  # sequences 2 … 4
    flowing.sent.clear()
    assert flowing.get(Reject(2), Reject(3)) == [
        terms.ContentsRefused([numbers[0]]), terms.ContentsRefused([numbers[1]]),
    ]  # fmt: skip
    assert flowing.sent == [Summon(5, "")]
    assert flowing.get(Response(5, 400)) == []
    assert flowing.get(Response(4, 403)) == [terms.FlowSuspended("content was forbidden")]


@pytest.mark.parametrize(
    "end",
    [
        lambda flowing: flowing.get(Response(4, 403)),
        lambda flowing: flowing.get(Response(5, 403)),
        lambda flowing: flowing.wait(20),
        lambda flowing: flowing.flow.suspend("its session began anew"),
    ],
)
def test_a_flow_which_ended_with_a_reject_is_broken_and_sends_nothing_again(end: Any) -> None:
    """MT-14, MT-19, MT-30: what follows the rejected content would stand behind a gap."""
    flowing = writer(window=3)
    numbers = flowing.write(1, 2, 3, 4)  # sequences 2 … 4, and one which waits
    assert flowing.get(Reject(3, True)) == [terms.ContentsRefused(numbers[:2])]
    flowing.sent.clear()
    (broken,) = end(flowing)
    assert broken == terms.FlowGivenUp(REJECTED, 403)
    assert flowing.flow.state.name == "LOST"
    assert unanswered(flowing.flow) == numbers[2:]


def test_403_to_an_unconfirmed_content_makes_the_writer_ask_whether_it_is_known() -> None:
    """MT-14, MT-28: an empty Summon, which gets 400 or, from who does not know the flow, 403."""
    flowing = writer(confirm=False, window=1)
    flowing.write(1, 2)
    assert (len(flowing.sent), flowing.flow.unsettled) == (2, 0), "it has no window"
    assert flowing.get(Response(3, 400), Response(2, 403)) == []
    assert flowing.sent == [Summon(4, "")]
    assert flowing.get(Response(4, 400)) == []
    assert flowing.flow.state.name == "OPEN"
    flowing.write(3)
    flowing.get(Response(5, 403))
    assert flowing.get(Response(6, 403)) == [terms.FlowSuspended("a command was forbidden")]
    flowing.write(4)  # nobody would hear it before there is a lease again
    flowing.open("new")
    assert [content.body for content in flowing.sent] == [b"4"]  # type: ignore[union-attr]


# ── time ────────────────────────────────────────────────────────────────────────────────────────


def test_a_silent_server_loses_the_flow__MT_21() -> None:
    flowing = reader()
    assert flowing.wait(14.9) == []
    assert flowing.wait(0.2) == [terms.FlowSuspended("the server is silent")]


def answer_what_is_asked(flowing: Flowing) -> None:
    for command in flowing.sent:
        if isinstance(command, Ping):
            flowing.get(Pong())
        elif isinstance(command, Summon):
            flowing.get(Response(command.sequence, 400))


def test_a_server_that_only_answers_what_it_is_asked_is_not_silent__MT_21() -> None:
    """A writer that sent all the time did not ping, and gave the server up."""
    flowing = writer(confirm=False)
    for number in range(40):
        flowing.write(number)
        assert flowing.wait(1.0) == []
        answer_what_is_asked(flowing)


def test_a_reader_that_confirms_all_the_time_pings__MT_21() -> None:
    """A server has nothing to say to that, and was given up as silent."""
    flowing = reader(liveness=15)
    flowing.get(*(Content(number, "a", EMPTY, b"x") for number in range(40)))
    for number in range(40):
        flowing.flow.confirm(number, False, flowing.now)
        assert flowing.wait(1.0) == []
        answer_what_is_asked(flowing)


def test_a_flow_asks_now_and_then_whether_the_server_knows_it_still() -> None:
    """MT-21, MT-28: a Pong says nothing, everybody gets one."""
    flowing = reader(heartbeat=100, liveness=15)
    flowing.wait(14)
    flowing.get(Pong())
    flowing.wait(1.1)
    assert flowing.sent == [Summon(2, "")]
    flowing.now += 1
    assert flowing.get(Response(2, 403)) == [terms.FlowSuspended("a command was forbidden")]
    flowing.open("new")
    flowing.wait(10)
    flowing.get(Pong())
    flowing.wait(5.1)
    assert flowing.sent[-1:] != []
    for _ in range(4):
        flowing.get(Pong())
        told = flowing.wait(2)
    assert told == [terms.FlowSuspended("a command was not answered")]


def test_too_many_open_questions_are_not_added_to__MT_29() -> None:
    flowing = writer(confirm=False)
    for number in range(4096):
        flowing.flow.summon(str(number), 0.0)
    flowing.write(1)
    sequence = flowing.sent[-1].sequence  # type: ignore[union-attr]
    flowing.get(Response(sequence, 403))
    assert flowing.sent == []
    flowing.get(Response(2, 400))
    flowing.flow.suspend("x")
    flowing.flow.summon("what waits counts", 0.0)
    with pytest.raises(LimitExceeded):
        flowing.flow.summon("one too many", 0.0)


# ── the end ─────────────────────────────────────────────────────────────────────────────────────


def test_a_closed_flow_says_what_nobody_has_answered__MT_28() -> None:
    flowing = writer(window=1)
    summon = flowing.flow.summon("a", 0.0)
    contents = flowing.write(1, 2)
    flowing.flow.suspend("x")
    held = flowing.flow.summon("b", 0.0)
    assert unanswered(flowing.flow) == [summon, held, *contents]
    assert unanswered(flowing.flow) == []
    assert flowing.sent == []
    assert (flowing.flow.advance(1.0), flowing.flow.deadline) == ([], None)
    with pytest.raises(Exception, match="not allowed in state CLOSED"):
        flowing.flow.renew("x", 0.0)


# ── one after another, and what is left behind ──────────────────────────────────────────────────


def test_a_drained_flow_is_finished_when_its_commands_are_answered__MT_28() -> None:
    flowing = reader()
    flowing.flow.summon("a", 0.0)
    flowing.flow.drain(0.0)
    assert not flowing.flow.finished
    flowing.get(Response(2, 200))
    assert flowing.flow.finished
    waits = Flowing(True)
    waits.flow.summon("a", 0.0)
    waits.flow.drain(0.0)
    assert not waits.flow.finished


@pytest.mark.parametrize(
    "end",
    [
        lambda flow: flow.renew("new", 0.0),
        lambda flow: flow.suspend("its session began anew"),
        lambda flow: flow.lost(0.0),
    ],
)
def test_what_was_to_be_sent_on_an_old_socket_is_forgotten__MT_28(end: Any) -> None:
    flowing = reader()
    flowing.get(Ping())
    end(flowing.flow)
    leasing = flowing.flow.state.name == "LEASING"
    assert [type(command) for command in flowing.sent] == [Lease] * leasing
    assert (flowing.flow.deadline is not None) == leasing


@pytest.mark.parametrize("success", ["one", "all before", "a command", "a lease for nothing"])
def test_after_a_success_as_many_leases_as_ever_may_come_to_nothing__MT_28(success: str) -> None:
    flowing = Flowing(success == "a command", renewals=3).stands()
    if success == "a command":
        flowing.flow.summon("a", 0.0)
    elif success != "a lease for nothing":
        flowing.write(1, 2, 3, 4, 5)
    flowing.flow.suspend("lost")
    flowing.open("new")
    sequences = [one.sequence for one in flowing.sent]  # type: ignore[union-attr]
    match success:
        case "one":
            flowing.get(Confirm(sequences[0]))
        case "all before":  # what it names is settled, and it covers two that are not
            flowing.get(Confirm(sequences[2]))
            told = flowing.get(Confirm(sequences[2], True))
            assert told == [terms.ContentsConfirmed([1, 2])]
        case "a command":
            flowing.get(Response(sequences[0], 200))
        case _:
            flowing.write(1)
    for expected in [terms.FlowSuspended] * 3 + [terms.FlowGivenUp]:
        assert [type(event) for event in flowing.flow.suspend("lost")] == [expected]
        if expected is terms.FlowSuspended:
            flowing.open("new")


@pytest.mark.parametrize(
    ("waits", "liveness"), [("for a lease", 15.0), ("for an answer", 15.0), ("for a sign", 7.5)]
)
def test_what_was_not_read_has_all_its_time_again__MT_21(waits: str, liveness: float) -> None:
    flowing = Flowing(True, liveness=liveness, heartbeat=2.0)
    if waits == "for a lease":
        flowing.flow.renew("lease", 0.0)
    else:
        flowing.open()
    if waits == "for an answer":
        flowing.flow.summon("a", 0.0)
    flowing.flow.paused(0.0)
    assert flowing.wait(100.0) == []
    flowing.flow.resumed(flowing.now)
    assert flowing.wait(7.4) == []
    (event,) = flowing.wait(0.2)
    assert isinstance(event, terms.FlowSuspended)


def test_each_command_has_its_own_time_for_an_answer__MT_18() -> None:
    flowing = reader(request_timeout=10, request_tries=1, heartbeat=100, liveness=1000)
    flowing.flow.summon("a", flowing.now)
    flowing.now += 5
    flowing.flow.summon("b", flowing.now)
    first = next(one for one in flowing.sent if isinstance(one, Summon))
    flowing.get(Response(first.sequence, 200))
    assert flowing.wait(9) == []
    assert [type(event) for event in flowing.wait(1.5)] == [terms.FlowSuspended]


@pytest.mark.parametrize(
    "bad", [[], [b"\x08"], [b"\x09", b"", b""], [b"\x0a", b""], data.encode(Lease(50, "x"))]
)
def test_behind_what_is_no_command_the_rest_of_a_read_is_obeyed__MT_13(bad: list[bytes]) -> None:
    flowing = reader()
    told = flowing.flow.receive([bad, data.encode(Content(1, "a", body=b"x"))], 0.0)
    assert sum(flowing.flow.counters.values()) == 1
    assert [event.bodies for event in told] == [[b"x"]]  # type: ignore[union-attr]
