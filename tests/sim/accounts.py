"""The ledger of memory in the simulated world: what it says is what connections hold (NB-02)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted_msgproto.net.memory import Ledger
from twisted_msgproto.net.wires.output import Output


def count_each_octet(ledger: Ledger) -> None:
    """Let the ledger count what it would leave out: the events of the world are small."""
    ledger.uncounted = 0


def check_accounts(
    ledger: Ledger, connections: Iterable[Any], wrong: Callable[[str], None]
) -> None:
    """Call ``wrong`` with a line if the ledger and the connections differ.

    Each connection that can be used has an account of what it holds, nobody who is gone has one,
    and the sum of all accounts is what the process is said to hold.
    """
    accounts = ledger._accounts
    entered: dict[Any, int] = {holder: account.octets for holder, account in accounts.items()}
    if ledger.held != sum(entered.values()):
        wrong(f"the ledger says {ledger.held} octets, its accounts {sum(entered.values())}")
    for connection in connections:
        link = getattr(connection, "link", None)  # MTL's sessions share one
        octets = entered.pop(link, 0)
        if link is not None and not link._ended:
            held = link.machine.held + link.wire.held
            if octets != (held if held > ledger.uncounted else 0):
                wrong(f"{link.session} holds {held} octets, the ledger says {octets}")
    for holder, octets in entered.items():
        if not isinstance(holder, Output) or holder.octets != octets:
            wrong(f"the ledger says {octets} octets of {holder}, which is gone")
