"""What a protocol does not keep yet: (row, protocols) and the defect it belongs to.

Each is a strict expected failure: whoever mends one takes it out of here.
"""

from __future__ import annotations

_BROKEN: dict[str, tuple[str, str]] = {}

EXPECTED: dict[tuple[str, str], str] = {
    (row, name): reason for row, (names, reason) in _BROKEN.items() for name in names.split()
}
"""(row, protocol) → why it fails."""
