"""How much of the package a user of a session, and a reader of the code, has to know at once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from twisted.internet.protocol import Protocol
from twisted.internet.testing import MemoryReactor

import twisted_msgproto
from tests.contract.cases import CASES, DATA, Case
from tests.contract.world import World
from tests.doubles import HeldSink
from twisted_msgproto.lumberjack import LumberjackClientFactory
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory
from twisted_msgproto.sabc import SabcClientFactory

PACKAGE = Path(twisted_msgproto.__file__).parent


@pytest.mark.parametrize(
    "factory", [LumberjackClientFactory, MicroMsg2ClientFactory, SabcClientFactory]
)
def test_a_factory_of_clients_is_fit_for_a_reactors_connect__RD_26(factory: type) -> None:
    """RD-26: MicroMsg2's failed with an AttributeError; UMQ's needs an address, MTL's refuses."""
    made: Any = factory()
    connector = MemoryReactor().connectTCP("127.0.0.1", 1, made)
    made.startedConnecting(connector)
    assert isinstance(made.buildProtocol(None), Protocol)


def files_of_a_message(case: Case) -> list[str]:
    """The files with the functions that are called between a read and the acknowledgement."""
    sink, files = HeldSink(), set()
    world = World(case, sink)

    def called(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(str(path.relative_to(PACKAGE)))

    try:
        peer = world.join()
        peer.send(b"the first")
        world.pump()
        sink.safe()
        world.wait(0.2, 0.2)
        router = world.network.routers.get(DATA)
        if router is not None:
            router.pauseProducing()
        sent = peer.send(b"another")
        if router is not None:
            world.pump()
            router.paused, read = False, router.doRead
        else:
            assert peer.line is not None
            read = peer.line.server.read
            while not peer.line.client.buffer:  # it may wait for more to send
                world.clock.advance(0.01)
        sys.setprofile(called)
        read()
        sink.safe()
        sys.setprofile(None)
        world.wait(1)
        assert sent.called
    finally:
        sys.setprofile(None)
        world.close()
    return sorted(name for name in files if not name.startswith("testing/"))


@pytest.mark.parametrize(
    ("name", "most"),
    [("lumberjack", 9), ("micromsg2", 9), ("sabc", 8), ("umq", 10), ("mtl", 9)],
)
def test_a_message_is_read_and_acknowledged_in_few_files(name: str, most: int) -> None:
    """CONTRIBUTING.md has the list."""
    files = files_of_a_message(next(case for case in CASES if case.name == name))
    assert len(files) <= most, files
