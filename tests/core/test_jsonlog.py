"""A line of a log as JSON."""

from __future__ import annotations

import json
from math import inf

from twisted_msgproto.core.jsonlog import FIELD_MAX, json_line


def test_a_line_has_its_fixed_keys_first_and_then_what_is_known() -> None:
    fields = {
        "peer": "a",
        "none": None,
        "text": "not this one",
        "count": 3,
        "yes": True,
        "share": 0.5,
        "endless": inf,
        "long": "x" * (FIELD_MAX + 1),
        "list": [1],
    }
    line = json_line(1_700_000_000.25, "info", "tests", "été\u2028", fields)
    assert line.isascii()
    assert list(json.loads(line).items()) == [
        ("time", "2023-11-14T22:13:20.250000Z"),
        ("level", "info"),
        ("source", "tests"),
        ("text", "été\u2028"),
        ("peer", "a"),
        ("count", 3),
        ("yes", True),
        ("share", 0.5),
        ("endless", "inf"),
        ("long", "x" * FIELD_MAX),
        ("list", "[1]"),
    ]
    assert list(json.loads(json_line(0, "warn", "tests", ""))) == [
        "time",
        "level",
        "source",
        "text",
    ]
