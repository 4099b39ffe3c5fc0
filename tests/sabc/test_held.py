"""What a session holds of what it has read, and how that is weighed (NB-02)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from twisted_msgproto.sabc.machine import Server
from twisted_msgproto.sabc.terms.events import REQUEST, MessagesReceived
from twisted_msgproto.sabc.wire import Error, encode

from .sides import NOW, SESSION, msg, open_server, part

READ = 1 << 16
BODY = b"x" * 900_000
LITTLE = 4096
"""A session and its bookkeeping may have grown by this many octets."""


@contextmanager
def memory() -> Iterator[list[int]]:
    """Give the octets that were allocated meanwhile and are still there."""
    grown: list[int] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield grown
        grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()


def reads(octets: bytes) -> Iterator[bytes]:
    """Octets as they come, in reads of their own."""
    for at in range(0, len(octets), READ):
        yield octets[at : at + READ]


def deal(server: Server, octets: Iterable[bytes]) -> None:
    """Read, and answer all that is asked at once."""
    for some in octets:
        for event in server.receive(some, NOW):
            if isinstance(event, MessagesReceived):
                server.made_safe(event.place, NOW)
                if event.kind == REQUEST:
                    server.acknowledge(event.ids)
        server.data_to_send()


@pytest.mark.parametrize(
    "frames",
    [
        lambda: msg(BODY, msg_id="1"),
        lambda: msg(BODY, msg_id="1", colour="red"),
        lambda: part(BODY[::2], msg_id="1", a="b") + msg(BODY[::3], msg_id="1", c="d"),
        lambda: msg(BODY, msg_id="1", ref_msg_id="2"),  # it is refused
        lambda: encode(Error({"session-id": SESSION}, BODY)),
    ],
    ids=["plain", "with a header", "in parts", "refused", "error"],
)
@pytest.mark.parametrize("size", [READ, 2 * len(BODY)], ids=["in reads", "at once"])
def test_a_silent_session_holds_nothing_of_what_it_has_dealt_with__NB_02(
    frames: Any, size: int
) -> None:
    """NB-02: ten thousand answered messages of 1 MiB are no 10 GB until the next ones come."""
    server = open_server()
    octets = frames()
    deal(server, reads(msg(b"warm", msg_id="0")))
    with memory() as grown:
        deal(server, (octets[at : at + size] for at in range(0, len(octets), size)))
    assert server.whole and not server.closed
    assert grown[0] < LITTLE


def test_octets_that_were_handed_out_are_not_held_beside_the_message__NB_02() -> None:
    """NB-02: what a message holds is what ``held`` says, in the middle of it as well."""
    server = open_server()
    with memory() as grown:
        deal(server, reads(msg(BODY, msg_id="1")[:-1]))
    assert abs(grown[0] - server.held) < LITTLE
