"""What a protocol does not keep yet: (row, protocols) and the defect it belongs to.

Each is a strict expected failure: whoever mends one takes it out of here.
"""

from __future__ import annotations

_BROKEN: dict[str, tuple[str, str]] = {
    "test_a_client_that_reads_slowly_but_steadily_is_not_cut_off": (
        "umq",
        "HO-04: progress does not reset the deadline",
    ),
    "test_an_orderly_end_finishes_what_is_in_flight": ("mtl", "HO-12"),
    "test_what_is_in_flight_is_finished": ("mtl", "HO-12: the row above, in a service"),
    "test_what_the_peer_would_not_take_is_refused_before_it_is_written": ("mtl", "HO-23"),
    "test_what_is_not_whole_yet_is_bounded_for_the_process": ("umq", "NB-02"),
    "test_the_counters_can_be_seen_while_the_connection_lives": (
        "umq",
        "FC-03: most are added when a connection ends",
    ),
}

EXPECTED: dict[tuple[str, str], str] = {
    (row, name): reason for row, (names, reason) in _BROKEN.items() for name in names.split()
}
"""(row, protocol) → why it fails."""
