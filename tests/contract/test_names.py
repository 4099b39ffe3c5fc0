"""Names of an application's class: it sees few of ours, and replaces none of them unseen."""

from __future__ import annotations

import types
from typing import Any

import pytest
from twisted.internet.protocol import Protocol

from tests.contract.cases import CASES
from twisted_msgproto import lumberjack, micromsg2, mtl, sabc, umq

SERVERS = {
    "lumberjack": lumberjack.LumberjackServer,
    "micromsg2": micromsg2.MicroMsg2Server,
    "sabc": sabc.SabcServer,
    "umq": umq.UmqServer,
    "mtl": mtl.MtlServer,
}
CLIENTS = {
    "lumberjack": lumberjack.LumberjackClient,
    "micromsg2": micromsg2.MicroMsg2Client,
    "sabc": sabc.SabcClient,
    "umq": umq.UmqClient,
    "mtl": mtl.MtlClient,
}
HOOKS = {"sessionEstablished", "sessionLost", "batchReceived", "messageReceived"}


def names(kind: type) -> set[str]:
    """What ``kind`` shows beside Twisted's Protocol."""
    return {name for name in dir(kind) if not name.startswith("_") and name not in dir(Protocol)}


def refused(kind: type) -> set[str]:
    """The names of ``kind`` that no application's class may have."""
    found = set()
    for name in {*names(kind), "dataReceived", "makeConnection"} & set(dir(kind)):
        try:
            type("Theirs", (kind,), {name: None})
        except TypeError as error:
            assert str(error).startswith(f"Theirs.{name}: {kind.__name__} has something of this")
            assert "\n" not in str(error)
            found.add(name)
    return found


def hooks(kind: type) -> set[str]:
    """The names of ``kind`` that say that they are hooks."""
    return {name for name in dir(kind) if hasattr(getattr(kind, name, None), "hook")}


@pytest.mark.parametrize("protocol", SERVERS)
def test_a_server_shows_few_names_and_guards_them(protocol: str) -> None:
    """RD-06"""
    kind = SERVERS[protocol]
    shown = names(kind)
    assert len(shown) <= (36 if protocol == "umq" else 25), sorted(shown)
    assert HOOKS <= shown - refused(kind) == hooks(kind) & shown


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_client_guards_its_names(protocol: str) -> None:
    """RD-06"""
    kind = CLIENTS[protocol]
    assert names(kind) - refused(kind) == hooks(kind) & names(kind)


def test_a_name_of_a_class_that_is_mixed_in_is_refused_too() -> None:
    mixed = type("Mixed", (), {"close": None})
    with pytest.raises(TypeError, match=r"^Mixed\.close: LumberjackServer has something"):
        types.new_class("Theirs", (mixed, lumberjack.LumberjackServer))
    types.new_class("Theirs", (lumberjack.LumberjackServer, mixed))


@pytest.mark.parametrize("name", ["deliver", "_ended", "machine", "wire", "log", "link_"])
def test_any_other_name_is_the_applications_own(name: str) -> None:
    """RD-06: what such a server is sent is stored and acknowledged."""
    from tests.contract.world import World
    from twisted_msgproto.testing import SafeSink

    (case,) = (case for case in CASES if case.name == "lumberjack")
    sink = SafeSink()
    world = World(case, sink, hooks={name: 1})
    peer = world.join()
    sent = peer.send(b"x")
    world.wait(1)
    assert sent.called and sent.result is None
    world.close()


@pytest.mark.parametrize("name", ["peer", "session", "link", "messageCount"])
def test_what_is_ours_cannot_be_set(name: str) -> None:
    server: Any = lumberjack.LumberjackServer()
    with pytest.raises(AttributeError):
        setattr(server, name, 1)


@pytest.mark.parametrize("name", ["connectionMade", "connectionLost", "sessionEstablished"])
def test_a_hook_that_does_not_call_ours_breaks_nothing(name: str) -> None:
    """RD-06"""
    from tests.contract.world import World
    from twisted_msgproto.testing import SafeSink

    (case,) = (case for case in CASES if case.name == "lumberjack")
    called: list[str] = []
    world = World(case, SafeSink(), hooks={name: lambda *_: called.append(name)})
    peer = world.join()
    sent = peer.send(b"x")
    world.wait(1)
    assert sent.called and sent.result is None
    assert len(world.factory.liveConnections) == 1
    peer.client.abort()
    world.wait(1)
    assert (called, len(world.factory.liveConnections)) == ([name], 0)
    world.close()
