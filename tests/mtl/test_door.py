"""Limits of connections: who comes above them is turned away, everybody else is served."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from tests.mtl.cases import IMPATIENT, HeldSink, MtlCase, run, until
from tests.mtl.plain import Plain
from tests.mtl.test_sockets import dealer_from
from twisted_msgproto.core.errors import Refused, TimedOut
from twisted_msgproto.mtl.protocol import server
from twisted_msgproto.mtl.zeromq import descriptors, door
from twisted_msgproto.net import peers


class Limited(MtlCase):
    @run
    async def test_above_the_limit_nobody_gets_in_until_somebody_leaves(self) -> None:
        """MT-24, MT-29: control and data connections count together."""
        sink = HeldSink()
        factory = self.server(sink, limits={"connections": 3})
        client = await self.ready(factory, "queue")
        writer, reader = await client.writer(["a"]), await client.reader(["a"])
        self.assertEqual(factory.snapshot()["connections"], 3)
        other = self.client(factory.addresses[0], limits=IMPATIENT)
        await self.assertFailure(other.open("host"), TimedOut)
        self.assertGreaterEqual(factory.counters["turned_away:connections"], 1)
        await writer.send("a", b"x")
        reader.close()
        await until(lambda: factory.snapshot()["connections"] == 2)
        await other.open("host")
        self.assertEqual(factory.snapshot()["connections"], 3)

    @run
    async def test_a_session_above_the_limit_is_said_with_its_option__NB_08(self) -> None:
        factory = self.server(limits={"sessions": 1})
        await self.client(factory.addresses[0]).open("host")
        with capturedLogs() as logged:
            for _ in range(3):
                client = self.client(factory.addresses[0])
                await self.assertFailure(client.open("host"), Refused)
                client.abort()
        self.assertEqual(factory.counters["turned_away:sessions"], 3)
        said = [line for event in logged if "sessions" in (line := formatEvent(event))]
        text = "mtl: a session was refused: sessions is 1 (--limit sessions=NUMBER changes it)"
        self.assertEqual(said, [text])

    @run
    async def test_one_address_may_have_fewer(self) -> None:
        """MT-29"""
        factory = self.server(limits={"connections-per-address": 1})
        address = factory.addresses[0].removeprefix("tcp://")
        request = [b"", b"Connection.Profile", b"{}"]

        def knock() -> None:
            with Plain(factory.addresses[0]) as client:
                assert client.open()[0] == "201"
                dealers = [
                    dealer_from(client, source, address)
                    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.2")
                ]
                poller = zmq.Poller()
                for dealer in dealers:
                    dealer.send_multipart(request)
                    poller.register(dealer, zmq.POLLIN)
                ((served, _),) = poller.poll(20_000)
                assert served in dealers[1:]
                poller.unregister(served)
                assert poller.poll(300) == []

        await deferToThread(knock)
        self.assertGreaterEqual(factory.counters["turned_away:connections-per-address"], 2)
        await until(lambda: not factory.snapshot()["connections"])

    @run
    async def test_silent_connections_do_not_lock_others_out__NB_08(self) -> None:
        """NB-08: the longest silent one of the largest group is closed for who comes from another.

        Loopback is no group, and nobody waits a minute here: both are said to be otherwise.
        """
        self.patch(peers, "network_of", lambda address: address)
        self.patch(server, "silent_seconds", silent_for(61.0))
        factory = self.server(HeldSink(), limits={"connections": 10})
        address = factory.addresses[0].removeprefix("tcp://").split(":")
        with contextlib.ExitStack() as stack:
            silent = []
            for number in range(9):
                silent.append(socket.create_connection(address, 10, ("127.0.0.2", 0)))
                stack.enter_context(silent[-1])
                await until(lambda number=number: factory.snapshot()["connections"] == number + 1)
            client = self.client(factory.addresses[0], limits=IMPATIENT)
            await client.open("host")
            gone = [line for line in silent if closed(line)]
        self.assertEqual(len(gone), factory.counters["displaced"])
        self.assertGreaterEqual(len(gone), 1)
        self.assertEqual(factory.counters["turned_away:connections"], 0)


def silent_for(seconds: float) -> Callable[[int], float | None]:
    """What takes the system's place: everybody was silent for so long."""
    return lambda descriptor: seconds


def closed(line: socket.socket) -> bool:
    """Whether the other side has closed a connection; what it has said is read."""
    line.setblocking(False)
    try:
        while line.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_the_system_says_how_long_a_connection_is_silent() -> None:
    """NB-08: from the last octets that came."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
        with near, far:
            near.sendall(b"x")
            assert far.recv(1) == b"x"
            before = descriptors.silent_seconds(far.fileno())
            assert before is not None
            deadline = time.monotonic() + 60
            while (longest := descriptors.silent_seconds(far.fileno()) or 0.0) < before + 0.05:
                assert time.monotonic() < deadline
            # Again, as long as this process itself comes too late to see that it is short.
            while (descriptors.silent_seconds(far.fileno()) or 0.0) >= longest:
                near.sendall(b"x")
                assert far.recv(1) == b"x"
                assert time.monotonic() < deadline
        with socket.socket(socket.AF_UNIX) as other:
            assert descriptors.silent_seconds(other.fileno()) is None


def accepted(descriptor: int, endpoint: str) -> list[bytes]:
    return [struct.pack("=Hi", zmq.EVENT_ACCEPTED, descriptor), endpoint.encode()]


def disconnected(descriptor: int) -> list[bytes]:
    return [struct.pack("=Hi", zmq.EVENT_DISCONNECTED, descriptor), b""]


def test_an_end_that_is_told_late_is_that_of_the_former_connection__MT_29() -> None:
    """Listeners are asked one after the other, and descriptors are used again at once."""
    doors = door.Door(9, 1, pytest.fail)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as far:
            one = far.fileno()
            doors.happened([accepted(one, endpoint)], "data")
            doors.happened([accepted(one, endpoint)], "control")
            doors.happened([disconnected(one)], "data")
            assert list(doors.connections) == [one]
            elsewhere = "tcp://127.0.0.1:1"
            doors.happened([accepted(one, elsewhere), disconnected(one)], "data")
            doors.happened([accepted(one, elsewhere)], "data")
            assert list(doors.connections) == [one]
            doors.happened([disconnected(one)], "control")
            assert not doors.connections
            doors.happened([accepted(one, endpoint), disconnected(one)], "control")
            assert not doors.connections


@pytest.mark.parametrize("abstract", [False, True])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, abstract: bool) -> None:
    """MT-29: a descriptor may be another one's by the time the server hears of it."""
    turned_away: list[str] = []
    doors = door.Door(0, 0, turned_away.append)
    path = "\0" + tmp_path.name if abstract else str(tmp_path / "socket")
    endpoint = f"ipc://{path}".replace("\0", "@")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as near:
        listener.bind(path)
        listener.listen()
        near.connect(path)
        far, _ = listener.accept()
        reading, writing = os.pipe()
        gone = os.dup(reading)
        os.close(gone)
        doors.happened([accepted(far.fileno(), endpoint + "x")])
        doors.happened([accepted(far.fileno(), "tcp://127.0.0.1:1")])
        doors.happened([accepted(reading, endpoint), accepted(gone, endpoint)])
        assert (doors.connections, turned_away) == ({}, [])
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        doors.happened([accepted(far.fileno(), endpoint)])
        assert turned_away == ["connections"]
        assert near.recv(1) == b""
        for descriptor in (reading, writing):
            os.close(descriptor)
        far.close()
