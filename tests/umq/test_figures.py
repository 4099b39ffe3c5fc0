"""What a machine of UMQ counts, shows and says after each step."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tests.tools.figures import Figures
from tests.umq.sides import limits, server
from twisted_msgproto.umq import Client


def test_a_machine_counts_shows_and_says_each_step__UM_04__UM_09__UM_11__UM_14() -> None:
    machine = server(calls=3, callbacks=2)

    def figures() -> dict[str, Any]:
        counted = {f"counted {name}": count for name, count in asdict(machine.counters).items()}
        own = {"whole": machine.whole, "deadline": machine.deadline}
        shown = machine.snapshot()
        assert machine.held == shown.pop("held_octets")
        return {**counted, **shown, **own}

    assert {name: value for name, value in figures().items() if value} == {
        "state": "OPEN", "whole": True
    }  # fmt: skip
    changed = Figures(figures)

    def read(now: float, *messages: str | bytes) -> None:
        for message in messages:
            machine.receive([message], now)

    gone = {"announcements": 0, "whole": True}
    steps: list[tuple[Callable[[], object], dict[str, Any], list[str]]] = [
        (lambda: read(1.0, "C1:x", "C2:y"), {"counted calls": 2, "calls": 2}, []),
        (
            lambda: read(2.0, "A2:C3:x"),
            {
                **{"counted calls": 3, "calls": 3, "announcements": 1},
                **{"whole": False, "deadline": 62.0},
            },
            [],
        ),
        (lambda: read(3.0, b"abc"), {"counted attachments": 1}, []),
        (lambda: read(3.0, b"d"), {"counted attachments": 2, **gone}, []),
        (
            lambda: read(3.5, "C4:x"),
            {"counted calls": 4, "counted calls_refused": 1},
            ["E4:8 too many calls are pending"],
        ),
        (lambda: machine.result("1", "ok"), {"calls": 2}, ["R1:ok"]),
        (lambda: machine.error("2", "no"), {"calls": 1}, ["E2:no"]),
        (lambda: read(4.0, "S:a=b"), {"attributes": 1}, []),
        (lambda: read(4.0, "X:a"), {"attributes": 0}, []),
        (lambda: machine.call("p", deadline=30.0), {"own_calls": 1, "deadline": 30.0}, ["C1:p"]),
        (lambda: machine.call("q"), {"own_calls": 2}, ["C2:q"]),
        (lambda: read(5.0, "R1:ok"), {"counted results": 1, "own_calls": 1}, []),
        (lambda: read(5.0, "R9:ok"), {"counted unknown_answers": 1}, []),
        (lambda: read(5.0, "E2:no"), {"counted errors": 1, "own_calls": 0}, []),
        (lambda: read(5.0, "E2:no"), {"counted unknown_answers": 2}, []),
        (machine.register_callback, {"callbacks": 1}, []),
        (lambda: read(6.0, "B5:1:x"), {"counted calls": 5, "calls": 2}, []),
        (lambda: read(6.0, "B6:9:x"), {"counted calls": 6}, ["E6:2 callback not found"]),
        (lambda: machine.unregister_callback(1), {"callbacks": 0}, []),
        (machine.subscribe, {"subscriptions": 1}, []),
        (lambda: read(7.0, "T1:u"), {"counted updates": 1}, []),
        (lambda: read(7.0, "T5:u"), {"counted unknown_topics": 1, "closing": 1}, ["U5:"]),
        (lambda: machine.unsubscribe(1), {"subscriptions": 0, "closing": 2}, ["U1:"]),
        (lambda: read(7.0, "T1:u"), {"counted late_updates": 1}, []),
        (lambda: read(7.0, "D1:"), {"closing": 1}, []),
        (lambda: read(7.0, "D1:"), {"counted unknown_topics": 2}, []),
        (machine.subscribe, {"subscriptions": 1}, []),
        (lambda: read(7.0, "D2:"), {"subscriptions": 0}, []),
        (lambda: machine.open_topic("K"), {"topics": 1}, []),
        (lambda: machine.publish(20, "u"), {}, ["TK:u"]),
        (lambda: read(8.0, "UK:"), {"topics": 0}, ["DK:"]),
        (lambda: read(8.0, "UK:"), {"counted unknown_topics": 3}, []),
        (lambda: machine.open_topic("M"), {"topics": 1}, []),
        (lambda: machine.close_topic(22), {"topics": 0}, ["DM:"]),
        (
            lambda: read(9.0, "A1:C7:x"),
            {
                **{"counted calls": 7, "calls": 3, "announcements": 1},
                "whole": False,
            },
            [],
        ),
        (
            lambda: read(9.0, "-:lost"),
            {"counted attachments": 3, "counted attachments_failed": 1, **gone},
            [],
        ),
        (
            lambda: read(10.0, "A2:C8:x"),
            {
                **{"counted calls": 8, "counted calls_refused": 2, "announcements": 1},
                **{"whole": False},
            },
            ["E8:8 too many calls are pending"],
        ),
        (lambda: machine.paused(11.0), {}, []),
        (lambda: machine.resumed(12.0), {}, []),
        (lambda: machine.advance(13.0), {}, []),
        (lambda: machine.advance(71.0), {"closing": 0, "deadline": 72.0}, []),
        (
            lambda: machine.advance(72.0),
            {
                **{"state": "CLOSED", "deadline": None},
                **{"announcements": 0, "whole": True},
            },
            ["F0:3 no attachment for 60 s"],
        ),
    ]
    told: list[tuple[int, dict[str, Any], list[str]]] = []
    for number, (step, _, _) in enumerate(steps):
        told.append((number, changed(step()), machine.outputs()))
    assert told == [(n, expected, said) for n, (_, expected, said) in enumerate(steps)]


def test_a_client_that_decides_by_itself_has_all_the_time_for_it__UM_07() -> None:
    """The server has said its word in time."""
    for decides in (False, True):
        machine = Client(limits(), 0.0, decides=decides)
        machine.hello()
        assert machine.deadline is not None
        machine.receive(["W1:"], 1.0)
        assert machine.deadline is None
        assert machine.advance(1e6) == []
        if decides:
            machine.accept(1e6)
        assert (machine.closed, machine.deadline) == (False, None)
