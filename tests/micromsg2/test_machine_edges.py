"""What seldom happens to the machines of MicroMsg2."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from tests.micromsg2.sessions import BATCH, receive
from tests.micromsg2.streams import message, said, server_with
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.micromsg2.machine import STANDARD, Extension, MessagesReceived
from twisted_msgproto.micromsg2.machine.extensions import _no_constant
from twisted_msgproto.micromsg2.terms import LIMITS, Counters


def test_everything_is_counted_from_0() -> None:
    assert not any(astuple(Counters()))


def test_payloads_of_several_parts_may_be_limited_to_one__MM_31() -> None:
    assert Limits.of(LIMITS).replace({"payload-parts": 1}).integer("payload-parts") == 1
    with pytest.raises(ConfigurationError):
        Limits.of(LIMITS).replace({"payload-parts": 0})


def test_an_extension_without_an_opinion_objects_to_nothing() -> None:
    plain = Extension({}, Limits.of(LIMITS))
    assert plain.objection(b"x") is None
    assert plain.inspection(b"x") is None


@pytest.mark.parametrize("name", sorted(STANDARD))
def test_every_extension_knows_its_properties_and_the_limits__MM_10(name: str) -> None:
    limits, properties = Limits.of(LIMITS), {"max-count": "3"}
    extension = STANDARD[name](properties, limits)
    assert (extension.properties, extension.limits) == (properties, limits)


def test_a_constant_that_is_no_number_in_json_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN is no JSON number"):
        _no_constant("NaN")


def test_a_message_may_be_blamed_only_for_an_event_that_is_not_safe_yet__MM_19() -> None:
    for place, refused in ((0, "2"), (99, "1")):
        server = server_with(BATCH + "9")
        (event,) = receive(server, message(1) + message(2))
        assert isinstance(event, MessagesReceived)
        server.blame(event.place + place, 2)
        server.not_safe(event.place, 0.0)
        assert any(refused in text for text in said(server)), place
