"""Messages as columns."""

import pytest

from twisted_msgproto import IMessageSink, Message, MessageBatch
from twisted_msgproto.core.errors import Fault, Refused, shown


def test_a_batch_gives_a_view_of_each_row():
    batch = MessageBatch(
        "umq", "call", 7, "peer", "s", "me", 2, 3, message_id=["a", "b"], body=[b"1", b"2"]
    )
    first, second = batch
    assert first == Message(
        "umq", "call", 7, "peer", "s", "me", message_id="a", body=b"1", truncated=False
    )
    assert second.body == b"2"
    assert len(batch) == 2


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_outside_of_the_batch_is_an_index_error(row):
    with pytest.raises(IndexError, match="of a batch of 1"):
        MessageBatch("p", "k", 0, count=1).message(row)


def test_the_sink_interface_is_at_the_top_and_nothing_else_appears_by_magic():
    import twisted_msgproto

    assert IMessageSink.getName() == "IMessageSink"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = twisted_msgproto.nothing


def test_what_a_peer_sent_is_escaped_and_cut_for_the_log():
    assert shown(b"a\nb") == "b'a\\nb'"
    assert len(shown("x" * 10_000)) == 200
    assert shown("x" * 10_000).endswith("…")


def test_errors_carry_what_their_reader_needs():
    assert Refused("no", 403).code == 403
    assert str(Fault("frame-type", "frame type 0x00")) == "frame type 0x00"
