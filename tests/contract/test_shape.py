"""How much of the package a user of a session, and a reader of the code, has to know at once."""

from __future__ import annotations

import pytest
from twisted.internet.protocol import Protocol

from twisted_msgproto.lumberjack import LumberjackServer
from twisted_msgproto.micromsg2 import MicroMsg2Server
from twisted_msgproto.mtl import MtlServer
from twisted_msgproto.sabc import SabcServer
from twisted_msgproto.umq import UmqServer


@pytest.mark.parametrize(
    ("server", "most"),
    [
        (LumberjackServer, 25),
        (MicroMsg2Server, 25),
        (SabcServer, 25),
        (UmqServer, 36),  # calls, callbacks, topics and attributes, of either side
        (MtlServer, 25),
    ],
)
def test_a_server_has_few_public_names_beside_those_of_protocol(server: type, most: int) -> None:
    names = {name for name in dir(server) if not name.startswith("_")} - set(dir(Protocol))
    assert len(names) <= most, sorted(names)
