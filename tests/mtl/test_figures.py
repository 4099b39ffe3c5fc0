"""What a broker's machine counts, shows and answers after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.mtl.broker import Broker, Channel, Confirm, Content, Reject, Response, Summon, contents
from tests.tools.figures import Figures


def test_a_broker_counts_shows_and_answers_each_step__MT_13__MT_14__MT_18__MT_19__MT_21() -> None:
    broker = Broker()

    def figures() -> dict[str, Any]:
        shown = broker.server.snapshot()
        queue: Any = shown.pop("profiles")
        weights = ("broker_octets", "broker_memory")
        prefixed = {f"queue {n}": value for n, value in queue["queue"].items() if n not in weights}
        return {**broker.server.counters, **shown, **prefixed}

    changed = Figures(figures)
    control = broker.session()
    assert changed() == {
        **{"requests": 2, "replies:200": 1, "replies:201": 1},
        **{"sessions": 1, "sessions_total": 1},
    }
    token = broker.lease(control, "Writer")
    assert changed() == {"requests": 3, "replies:202": 1, "leases": 1}
    writer = broker.connect(token)
    assert changed() == {"flows_total": 1, "responses:200": 1, "leases": 0, "writers": 1}
    reader = broker.flow("Reader")
    assert changed()["readers"] == 1

    def say(*commands: Any, peer: bytes = writer) -> Callable[[], object]:
        return lambda: broker.command(peer, *commands)

    def safe(answer: bool = True) -> Callable[[], object]:
        def told() -> object:
            broker.safe(broker.events[-1], answer)
            return broker.got(writer)

        return told

    def body(commands: Any) -> list[Any]:
        """Commands, with the properties of contents left out."""
        return [
            (one.sequence, one.body) if isinstance(one, Content) else one for one in commands or ()
        ]

    steps: list[tuple[Callable[[], Any], dict[str, Any], list[Any]]] = [
        (
            say(*contents(1, 2)),
            {"contents": 2, "octets": 38, "queue broker_queues": 1},
            [],
        ),
        (
            safe(),
            {
                **{"confirms": 1, "queue broker_published": 2, "queue broker_waiting": 2},
            },
            [Confirm(2, True)],
        ),
        (say(Content(2, "a")), {"contents_refused": 1}, [Reject(2)]),
        (say(Content(3, "b")), {"contents_refused": 2}, [Reject(3)]),
        (
            say(Summon(5, "a"), peer=reader),
            {
                **{"responses:200": 3, "queue broker_delivered": 2, "queue broker_waiting": 0},
                **{"queue broker_in_flight": 2, "queue broker_subscriptions": 1},
            },
            [Response(5, 200), (1, b"1"), (2, b"2")],
        ),
        (
            say(Confirm(1), peer=reader),
            {
                **{"queue confirmed": 1, "queue broker_acknowledged": 1},
                "queue broker_in_flight": 1,
            },
            [],
        ),
        (
            say(Reject(2), peer=reader),
            {"queue rejected": 1, "queue broker_rejected": 1, "queue broker_in_flight": 0},
            [],
        ),
        (say(*contents(5)), {"contents": 3, "octets": 57}, []),
        (
            safe(),
            {
                **{"confirms": 2, "queue broker_published": 3, "queue broker_delivered": 3},
                "queue broker_in_flight": 1,
            },
            [Confirm(5, True)],
        ),
        (
            say(Reject(3, False, True), peer=reader),
            {"queue recycled": 1, "queue broker_delivered": 4, "queue broker_returned": 1},
            [(3, b"5"), (4, b"5")],
        ),
        (
            lambda: broker.receive(Channel.DATA, [writer, b"x"]),
            {"dropped": 1, "dropped:frames": 1},
            [],
        ),
        (say(*contents(6)), {"contents": 4, "octets": 76}, []),
        (
            safe(False),
            {"confirms": 3, "slices_not_safe": 1, "flows_broken": 1, "writers": 0},
            [Reject(6, True)],
        ),
        (say(*contents(7)), {"responses:403": 1}, [Response(7, 403)]),
        (
            lambda: broker.wait(30) and None,
            {
                **{"flows_silent": 1, "readers": 0, "queue recycled": 2},
                **{"queue broker_returned": 2, "queue broker_waiting": 1},
                **{"queue broker_in_flight": 0, "queue broker_subscriptions": 0},
            },
            [],
        ),
        (lambda: broker.wait(60) and None, {}, []),
        (lambda: broker.wait(400) and None, {"sessions": 0}, []),
    ]
    told: list[tuple[int, dict[str, Any], list[Any]]] = []
    for number, (step, _, _) in enumerate(steps):
        answers = step()
        told.append((number, changed(), body(answers)))
    assert told == [(n, expected, said) for n, (_, expected, said) in enumerate(steps)]


def test_requests_are_counted_with_their_replies() -> None:
    broker = Broker()
    control = broker.session()
    counters = broker.server.counters
    before = dict(counters)
    broker.ask_raw(control, b"", b"Connection.Nope", b"{}")
    assert {name: n for name, n in counters.items() if before.get(name) != n} == {
        "requests": 3, "replies:404": 1
    }  # fmt: skip
