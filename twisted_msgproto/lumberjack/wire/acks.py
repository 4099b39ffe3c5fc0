"""Decode what a writer reads: acks."""

from __future__ import annotations

from ...core.errors import Fault
from .frames import FAULT_OCTETS, SHORT, TYPES, VERSIONS, Ack


class AckDecoder:
    """Decodes what a writer reads: ``A`` frames of either version, six octets each, and nothing
    else.

    A reader that sends anything else is recognised at its first wrong octet, so a hostile one makes
    a writer hold at most five octets (``LJ-02``, ``LJ-05``, ``LJ-21``).
    """

    __slots__ = ("_failed", "_start")

    def __init__(self) -> None:
        self._start = b""  # of a frame whose end has not come
        self._failed = False

    @property
    def held(self) -> int:
        """Return the octets of an incomplete ack."""
        return len(self._start)

    def end(self) -> None:
        """Forget an incomplete ack, because nothing more comes."""
        self._start = b""

    def feed(self, octets: bytes) -> list[Ack | Fault]:
        """The acks among what has arrived so far, perhaps with a Fault as the last item."""
        if self._failed:
            return []
        octets = self._start + octets
        end = len(octets)
        found: list[Ack | Fault] = []
        for position in range(0, end, SHORT.size):
            fault = _no_ack(octets[position : position + 2])
            if fault:
                self._failed, self._start = True, b""
                found.append(Fault(*fault, octets[position : position + FAULT_OCTETS]))
                return found
            if position + SHORT.size <= end:
                version, _, sequence = SHORT.unpack_from(octets, position)
                found.append(Ack(version, sequence))
        self._start = octets[end - end % SHORT.size :]
        return found


def _no_ack(start: bytes) -> tuple[str, str] | None:
    """Why a frame that starts with these one or two octets is no ack; None if it may be one."""
    if start[0] not in VERSIONS:
        return "version", f"version octet {start[0]:#04x}, not '1' or '2'"
    if start[1:] in (b"", b"A"):
        return None
    if start[1] in TYPES:
        return "wrong-role", f"a frame {chr(start[1])!r} from a reader"
    return "frame-type", f"frame type {start[1]:#04x}"
