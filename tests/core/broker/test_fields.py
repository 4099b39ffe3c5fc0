"""Properties that go from one protocol to another, as text; and the table of a letter's states."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.core.broker.states import LETTER, LetterState
from twisted_msgproto.core.broker.fields import as_text

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (b"\x00\xff", "AP8="),
        (NOON, "2026-01-02T12:00:00Z"),
        (Decimal("1.50"), "1.50"),
        (True, "true"),
        (None, "null"),
        (1.5, "1.5"),
        ({"a": [b"x", NOON, Decimal("2.0")]}, '{"a": ["eA==", "2026-01-02T12:00:00Z", "2.0"]}'),
    ],
)
def test_a_value_as_the_column_fields_has_it(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_every_state_of_a_letter_has_a_row_and_what_is_done_stays_so() -> None:
    assert set(LETTER) == set(LetterState)
    assert LETTER[LetterState.DONE] == {}
    reached = {state for row in LETTER.values() for state in row.values()}
    assert reached == set(LetterState)
