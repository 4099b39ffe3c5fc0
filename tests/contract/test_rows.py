"""The list of what is broken names rows which exist, and protocols to which they apply."""

from __future__ import annotations

from tests.contract import (
    test_bounds,
    test_callbacks,
    test_comeback,
    test_ends,
    test_log_in,
    test_storing,
)
from tests.contract.cases import CASES
from tests.contract.expected import EXPECTED
from tests.contract.world import ContractCase

MODULES = (test_bounds, test_callbacks, test_comeback, test_ends, test_log_in, test_storing)


def test_every_expected_failure_is_a_row_of_that_protocol() -> None:
    rows = {
        (name, made.case.name)
        for module in MODULES
        for made in vars(module).values()
        if isinstance(made, type) and issubclass(made, ContractCase) and hasattr(made, "case")
        for name in dir(made)
        if name.startswith("test_") and getattr(made, name) is not None
    }
    assert {case.name for case in CASES} == {name for _, name in rows}
    assert not set(EXPECTED) - rows
