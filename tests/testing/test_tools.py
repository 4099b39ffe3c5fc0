"""``twisted_msgproto.testing``: what it promises to people who test a protocol of their own.

Small errors that are planted to try the tests: which there are, and that they are noticed.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol

from tests.tools.processes import PROJECT, environment
from tests.tools.queues import batch, put, rows
from twisted_msgproto import testing
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.queue import QueueWriter
from twisted_msgproto.testing import BrokenDisk, Clock, HeldSink, Pair, SafeSink, splits


class Echo(Protocol):
    """Says what it hears, and notes it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.lost: Any = None

    def dataReceived(self, data: bytes) -> None:
        self.heard.append(data)
        assert self.transport is not None
        self.transport.write(data)

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = reason


class Listener(Echo):
    def dataReceived(self, data: bytes) -> None:
        self.heard.append(data)


def pair(**options: Any) -> Pair:
    server, client = Factory.forProtocol(Echo), Factory.forProtocol(Listener)
    return Pair(server.buildProtocol, client.buildProtocol, **options)


def test_everything_is_imported_without_a_test_runner_and_without_a_reactor() -> None:
    program = (
        "import sys\n"
        "sys.modules['pytest'] = sys.modules['hypothesis'] = None\n"
        "from twisted_msgproto.testing import *\n"
        "from twisted_msgproto import testing\n"
        "assert all(name in globals() for name in testing.__all__)\n"
        "assert 'twisted.internet.reactor' not in sys.modules\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_disk_alone_needs_the_extra_queue() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from twisted_msgproto.testing import Pair, HeldSink, SafeSink, Clock, splits\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=environment()).returncode == 0


def test_there_is_nothing_else_in_the_package() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Line'"):
        testing.Line  # noqa: B018


def test_bytes_move_when_the_test_says_so_in_pieces_of_its_choice() -> None:
    both = pair()
    both.client.write(b"abcde")
    assert both.server.protocol.heard == []
    assert both.pump(size=2)
    assert both.server.protocol.heard == [b"ab", b"cd", b"e"]
    assert both.client.protocol.heard == [b"ab", b"cd", b"e"]
    assert not both.pump()


def test_an_end_is_seen_at_the_other_side_after_what_was_written() -> None:
    both = pair()
    both.client.write(b"last words")
    both.client.loseConnection()
    both.pump()
    assert both.server.protocol.heard == [b"last words"]
    assert both.server.gone and both.client.gone
    assert "cleanly" in str(both.client.protocol.lost.value)


def test_what_was_written_before_an_abort_is_lost() -> None:
    both = pair()
    both.client.write(b"never read")
    both.client.abortConnection()
    both.pump()
    assert both.server.protocol.heard == [] and both.server.gone


def test_a_peer_which_does_not_read_fills_the_transport() -> None:
    class Producer:
        def __init__(self) -> None:
            self.said: list[str] = []

        def pauseProducing(self) -> None:
            self.said.append("pause")

        def resumeProducing(self) -> None:
            self.said.append("resume")

        def stopProducing(self) -> None:
            self.said.append("stop")

    both, producer = pair(full=10), Producer()
    both.client.registerProducer(producer, True)
    both.server.deaf = True
    both.client.write(b"x" * 11)
    both.pump()
    assert producer.said == ["pause"]
    both.server.deaf = False
    both.pump()
    assert producer.said == ["pause", "resume"]
    both.cut()
    assert producer.said[-1] == "stop"


def test_a_protocol_which_fails_loses_its_connection() -> None:
    from twisted.logger import globalLogPublisher

    class Failing(Echo):
        def dataReceived(self, data: bytes) -> None:
            raise RuntimeError("not today")

    logged: list[Any] = []
    globalLogPublisher.addObserver(logged.append)
    try:
        both = Pair(Factory.forProtocol(Failing).buildProtocol, lambda address: Listener())
        both.client.write(b"x")
        both.pump()
    finally:
        globalLogPublisher.removeObserver(logged.append)
    assert both.server.gone and both.client.gone
    assert any("not today" in str(event.get("log_failure")) for event in logged)


def test_every_split_is_the_whole_stream() -> None:
    octets = bytes(range(50))
    ways = list(splits(octets))
    assert all(b"".join(way) == octets for way in ways)
    assert (
        [octets] in ways and [octets[:1], octets[1:]] in ways and [octets[:49], octets[49:]] in ways
    )
    assert [octets[at : at + 1] for at in range(50)] in ways
    assert len(list(splits(bytes(10_000)))) < 450


def test_time_passes_in_steps_and_bytes_move_meanwhile() -> None:
    clock, both = Clock(), pair()
    began = clock.seconds()
    clock.callLater(2.5, both.client.write, b"late")
    clock.wait(2.0, both)
    assert both.server.protocol.heard == []
    clock.wait(1.0, both)
    assert both.client.protocol.heard == [b"late"]
    assert clock.seconds() == began + 3.0


def test_due_calls_which_make_bytes_move_are_settled_together() -> None:
    clock, both = Clock(), pair()
    clock.callLater(0, both.client.write, b"now")
    clock.settle(both)
    assert both.client.protocol.heard == [b"now"]


def test_a_held_sink_says_by_hand_what_is_safe_and_what_is_lost() -> None:
    sink, told = HeldSink(), []
    for number in range(4):
        sink.put(batch(number)).addCallbacks(
            lambda _, n=number: told.append(n), lambda failure: told.append(str(failure.value))
        )
    sink.release(1)
    sink.fail(QueueError("the disk is gone"))
    assert told == [0, "the disk is gone"]
    sink.release()
    assert told == [0, "the disk is gone", 2, 3]
    assert [message.message_id for message in sink.messages] == [0, 1, 2, 3]


def test_a_safe_sink_is_safe_at_once() -> None:
    sink, told = SafeSink(), []
    sink.put(batch(7)).addCallback(told.append)
    assert told == [None] and sink.messages[0].body == b"body 7"


@pytest.mark.parametrize("step", ["write", "sync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_lets_batches_wait(tmp_path: Path, step: str, number: int) -> None:
    disk = BrokenDisk()
    writer = QueueWriter(tmp_path, disk=disk)
    try:
        disk.fail(step, name=".segment", errno=number, times=2)
        before = disk.counts[step]
        assert put(writer, batch(0)) == [None]
        assert disk.counts[step] >= before + 3
    finally:
        writer.close()
    assert [row["message_id"] for row in rows(tmp_path)] == ["0"]


def test_a_step_that_hangs_goes_on_once_it_is_healed(tmp_path: Path) -> None:
    disk = BrokenDisk()
    (tmp_path / "kept").touch()
    (tmp_path / "gone").touch()
    disk.hang("remove", name="gone")
    disk.remove(str(tmp_path / "kept"))
    removes = threading.Thread(target=disk.remove, args=[str(tmp_path / "gone")])
    removes.start()
    while disk.counts["remove"] < 2:
        removes.join(0.001)
    assert (tmp_path / "gone").exists()
    disk.heal()
    removes.join()
    assert not (tmp_path / "gone").exists()


def test_the_nth_step_fails_and_no_other() -> None:
    disk = BrokenDisk()
    disk.fail("remove", nth=2)
    for fails in (False, True, False):
        with pytest.raises(OSError) as caught:
            disk.remove("/no/such/file")
        assert (caught.value.errno == errno.EIO) is fails
    disk.fail("remove", times=None)
    for _ in range(3):
        with pytest.raises(OSError, match=r"\[Errno 5\]"):
            disk.remove("/no/such/file")
    disk.heal()
    with pytest.raises(FileNotFoundError):
        disk.remove("/no/such/file")
    with pytest.raises(ValueError, match="'unlink' is none of link, names, open, read, "):
        disk.fail("unlink")


def test_a_disk_that_cannot_read_fails_for_the_chosen_files_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    disk = BrokenDisk()
    disk.fail("read", nth=2, times=None, errno=errno.ESTALE, name="two")
    one, two = (disk.open(str(tmp_path / name)) for name in ("one", "two"))
    for fails in (False, True, True):
        assert one.read(0, 3) == b"one"
        if fails:
            with pytest.raises(OSError, match="/two") as caught:
                two.read(0, 3)
            assert caught.value.errno == errno.ESTALE
        else:
            assert two.read(0, 3) == b"two"
    disk.heal()
    assert two.read(0, 3) == b"two"
    disk.fail("names")
    with pytest.raises(OSError, match=str(tmp_path)):
        disk.names(str(tmp_path))
    one.close()
    two.close()


def test_the_package_is_typed_and_documented() -> None:
    """Each public name has a docstring, and stands on the page about tests."""
    page = (PROJECT / "docs" / "testing.md").read_text()
    for name in testing.__all__:
        assert getattr(testing, name).__doc__
        assert f"`{name}`" in page
