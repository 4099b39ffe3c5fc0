"""What a start gathers from the log: the order of what waits, and what it remembers meanwhile."""

from __future__ import annotations

from array import array

import pytest

from tests.queue.brokered.world import NAMES
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue.brokered import scan
from twisted_msgproto.queue.brokered.marks import Marks
from twisted_msgproto.queue.brokered.scan import Scan, Waiting


class NoNames:
    """Scans that read no frame ask for no name."""


def a_scan() -> Scan:
    return Scan(NoNames(), Marks())  # type: ignore[arg-type]


def test_what_waits_is_put_into_the_order_of_its_places_with_all_that_belongs_to_it() -> None:
    """Copies of old messages may stand in the broker's own log in another order."""
    found = a_scan()
    for number, places in enumerate(([9, 5, 4, 3], [1, 2, 3], [])):
        waiting = Waiting(
            array("q", places),
            array("I", [10 * place for place in places]),
            array("I", [100 * place for place in places]),
        )
        found.queues[NAMES[number]] = waiting
    found.order()
    for number, places in enumerate(([3, 4, 5, 9], [1, 2, 3], [])):
        waiting = found.queues[NAMES[number]]
        assert list(waiting.places) == places
        assert list(waiting.weights) == [10 * place for place in places]
        assert list(waiting.arrived) == [100 * place for place in places]


def test_each_head_is_understood_once_and_few_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "HEADS_REMEMBERED_MAX", 3)
    opened: list[bytes] = []
    whole = scan.opened

    def noted(octets: bytes) -> object:
        opened.append(octets)
        return whole(octets)

    monkeypatch.setattr(scan, "opened", noted)
    found = a_scan()
    heads = [head("mtl", NAMES[0]), head("umq", NAMES[1]), b"no head"]
    for _ in range(3):
        assert [found._name(one) for one in heads] == [NAMES[0], NAMES[1], None]
    assert opened == heads
    for one in [head("sabc", name) for name in NAMES[:3]]:
        found._name(one)
        assert len(found._heads) <= 3
    assert found._name(heads[0]) == NAMES[0]
