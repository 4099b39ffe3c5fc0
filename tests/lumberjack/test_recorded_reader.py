"""Our writer against a reader which is not ours: the recorded answers of Beats' own library.

No package with a Lumberjack server could be had from npm, PyPI or Debian, so no foreign reader runs
live here.  The recordings hold both directions: what the foreign writer sent, ours has to send, and
what the foreign reader answered, ours has to take for just these windows.
"""

from pathlib import Path

import pytest

from tests.lumberjack.frames import frames_of
from twisted_msgproto.lumberjack import Writer

CAPTURES = Path(__file__).parent.parent / "data" / "lumberjack"

RECORDED = {
    "v2_J_plain_golumber_w5": (5, 0, 1),
    "v2_J_zlib_golumber_w5": (5, 3, 1),
    "v2_J_zlib_pipelined_golumber_w10x4": (10, 3, 4),
    "v2_keepalive_golumber": (5, 0, 1),
}
"""Recording → window, compression, pipelining of the foreign writer."""


def frames(octets):
    """Windows and documents as they were sent, compressed or not."""
    return [
        inner for frame in frames_of(octets) for inner in (frame[2] if frame[0] == "C" else [frame])
    ]


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_foreign_readers_answers_are_understood(name):
    """LJ-06, LJ-14, LJ-15, LJ-18, LJ-21: plain, compressed, pipelined, and with keep-alives."""
    window, compress, pipelining = RECORDED[name]
    recorded = (CAPTURES / f"{name}.c2s.bin").read_bytes()
    answers = (CAPTURES / f"{name}.s2c.bin").read_bytes()
    bodies = [body for kind, *_, body in frames(recorded) if kind == "J"]
    writer = Writer(window=window, compress=compress, pipelining=pipelining)
    writer.send(bodies)
    writer.flush(0.0)
    sent = writer.outputs()
    acknowledged = kept_alive = 0
    for at in range(0, len(answers), 6):
        for event in writer.receive(answers[at : at + 6], 1.0):
            said = type(event).__name__
            assert said in ("WindowAcknowledged", "KeptAlive"), event
            acknowledged += said == "WindowAcknowledged"
            kept_alive += said == "KeptAlive"
        writer.flush(1.0)
        sent += writer.outputs()
        if not writer.unacknowledged:
            break  # what the recorded reader said to an idle writer is not for this one
    assert writer.unacknowledged == 0
    assert acknowledged == len(bodies) / window
    assert (kept_alive > 0) == ("keepalive" in name)
    # The same windows with the same numbers; plain even the same octets.
    assert frames(sent) == frames(recorded)
    assert compress or sent == recorded
