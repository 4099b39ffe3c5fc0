"""Write a line for each refused login; many of one address are summed up (:mod:`..peerlog`).

A line names the address, the name that was claimed and why it was refused, never the password or
proof.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from ...core.errors import shown
from ..peerlog import LOGINS, PeerLog

log = Logger(namespace="twisted_msgproto.authentication.audit")

WRONG: Final = "wrong"
NOT_TRIED: Final = "not checked"
UNFINISHED: Final = "unfinished"

_WHY: Final = {
    WRONG: "name and password do not fit",
    NOT_TRIED: "not checked, since too many have failed (limit login-rate)",
    UNFINISHED: "the client did not wait for the answer",
}


def write_refused(
    peer_log: PeerLog, address: str, name: str | None, reason: str, now: float
) -> None:
    peer_log.write(
        LOGINS,
        log,
        address,
        now,
        "{peer}: login as {name} refused: {why}",
        reason=reason,
        peer=address or "a client",
        name=shown(name) if name else "nobody",
        why=_WHY[reason],
    )
