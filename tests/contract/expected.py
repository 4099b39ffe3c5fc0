"""What a protocol does not keep yet: (row, protocols) and the defect it belongs to.

Each is a strict expected failure: whoever mends one takes it out of here.
"""

from __future__ import annotations

_BROKEN: dict[str, tuple[str, str]] = {
    "test_a_server_that_reads_slowly_but_steadily_is_not_left": (
        "micromsg2",
        "HO-04: progress does not reset the deadline of our own uploads",
    ),
    "test_a_client_that_reads_slowly_but_steadily_is_not_cut_off": (
        "micromsg2",
        "HO-04: progress does not reset the deadline",
    ),
    "test_it_says_when_it_is_refused_and_tries_less_and_less_often": ("sabc umq", "HO-11"),
    "test_every_protocol_exports_one": (
        "lumberjack micromsg2 sabc sabc-ws mtl",
        "HO-11, HO-12: no XClientService",
    ),
    "test_an_orderly_end_finishes_what_is_in_flight": ("micromsg2 umq mtl", "HO-12"),
    "test_what_the_peer_would_not_take_is_refused_before_it_is_written": (
        "micromsg2 mtl",
        "HO-13, HO-23",
    ),
    "test_the_counters_can_be_seen_while_the_connection_lives": (
        "micromsg2",
        "FC-03: most are added when a connection ends",
    ),
}

EXPECTED: dict[tuple[str, str], str] = {
    (row, name): reason for row, (names, reason) in _BROKEN.items() for name in names.split()
}
"""(row, protocol) → why it fails."""
