"""Messages as columns."""

import pytest

from tests.tools.packing import packed_frames, packed_maps
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
    assert [first, second] == [batch.message(0), batch.message(1)]


def test_a_view_of_a_packed_batch_has_the_types_which_any_other_has():
    numbers, bodies = packed_frames([7, 8], [b"a", b""])
    maps = packed_maps([{"a": "b"}, {}])
    batch = MessageBatch("p", "k", 0, count=2, message_id=numbers, fields=maps, body=bodies)
    expected = [
        Message("p", "k", 0, message_id=7, fields={"a": "b"}, body=b"a"),
        Message("p", "k", 0, message_id=8, fields={}, body=b""),
    ]
    assert list(batch) == expected == [batch.message(0), batch.message(1)]
    assert [type(value) for value in (expected[0].fields, expected[0].body)] == [dict, bytes]


def test_messages_without_any_value_are_messages_too():
    assert list(MessageBatch("p", "k", 0, count=2)) == [Message("p", "k", 0)] * 2


@pytest.mark.parametrize("body", [[b"1"], [b"1", b"2", b"3"]])
def test_a_column_of_another_length_is_a_programmer_s_fault(body):
    batch = MessageBatch("p", "k", 0, count=2, message_id=[1, 2], body=body)
    with pytest.raises(ValueError, match=r"body has . values for 2 messages"):
        list(batch)


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
    assert [shown("x" * octets, 10) for octets in (8, 9)] == ["'xxxxxxxx'", "'xxxxxxxx…"]
    assert shown("x" * 10_000).endswith("…")


def test_errors_carry_what_their_reader_needs():
    assert Refused("no", 403).code == 403
    assert str(Fault("frame-type", "frame type 0x00")) == "frame type 0x00"


def test_a_batch_of_nothing_has_nothing():
    batch = MessageBatch("", "", 0)
    assert (batch.count, batch.octets, batch.weight) == (0, 0, 0)
