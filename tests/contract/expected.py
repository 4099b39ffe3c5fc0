"""What a protocol does not keep yet: (row, protocols) and the defect it belongs to.

Each is a strict expected failure: whoever mends one takes it out of here.
"""

from __future__ import annotations

_BROKEN: dict[str, tuple[str, str]] = {
    "test_an_orderly_end_finishes_what_is_in_flight": ("mtl", "HO-12"),
    "test_what_is_in_flight_is_finished": ("mtl", "HO-12: the row above, in a service"),
    "test_what_the_peer_would_not_take_is_refused_before_it_is_written": ("mtl", "HO-23"),
}

EXPECTED: dict[tuple[str, str], str] = {
    (row, name): reason for row, (names, reason) in _BROKEN.items() for name in names.split()
}
"""(row, protocol) → why it fails."""
