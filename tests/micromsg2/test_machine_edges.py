"""What seldom happens to the machines of MicroMsg2."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from twisted_msgproto.core.limits import Limits
from twisted_msgproto.micromsg2.machine import Extension
from twisted_msgproto.micromsg2.machine.extensions import _no_constant
from twisted_msgproto.micromsg2.terms import LIMITS, Counters


def test_everything_is_counted_from_0() -> None:
    assert not any(astuple(Counters()))


def test_an_extension_without_an_opinion_objects_to_nothing() -> None:
    plain = Extension({}, Limits.of(LIMITS))
    assert plain.objection(b"x") is None
    assert plain.inspection(b"x") is None


def test_a_constant_that_is_no_number_in_json_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN is no JSON number"):
        _no_constant("NaN")
