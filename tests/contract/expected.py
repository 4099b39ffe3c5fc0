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
    "test_an_orderly_end_finishes_what_is_in_flight": (
        "umq mtl",
        "HO-12",
    ),
    "test_what_the_peer_would_not_take_is_refused_before_it_is_written": (
        "mtl",
        "HO-13, HO-23",
    ),
    "test_every_failure_takes_the_same_time": (
        "umq",
        "NB-04",
    ),
    "test_guesses_are_throttled": (
        "umq",
        "NB-04",
    ),
    "test_wrong_passwords_from_elsewhere_do_not_shut_the_right_one_out": (
        "sabc sabc-ws mtl",
        "NB-05",
    ),
    "test_one_client_with_an_old_password_does_not_shut_its_address_out": (
        "sabc sabc-ws",
        "NB-05",
    ),
}

EXPECTED: dict[tuple[str, str], str] = {
    (row, name): reason for row, (names, reason) in _BROKEN.items() for name in names.split()
}
"""(row, protocol) → why it fails."""
