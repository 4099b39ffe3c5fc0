"""What a protocol does not keep yet: (row, protocols) and the defect it belongs to.

Each is a strict expected failure: whoever mends one takes it out of here.
"""

from __future__ import annotations

_BROKEN: dict[str, tuple[str, str]] = {
    "test_it_says_when_it_is_refused_and_tries_less_and_less_often": (
        "sabc umq",
        "HO-11",
    ),
    "test_every_protocol_exports_one": (
        "lumberjack micromsg2 sabc sabc-ws mtl",
        "HO-11, HO-12: no XClientService",
    ),
    "test_an_orderly_end_finishes_what_is_in_flight": ("umq", "HO-12"),
}

EXPECTED: dict[tuple[str, str], str] = {
    (row, name): reason for row, (names, reason) in _BROKEN.items() for name in names.split()
}
"""(row, protocol) → why it fails."""
