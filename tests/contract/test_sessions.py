"""A server names its sessions, and sends to one of them where its protocol can."""

from __future__ import annotations

from typing import Any

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import Deferred, succeed

from tests.contract.cases import BOTH_WAYS, LOG_IN
from tests.contract.world import only, over_all
from tests.tools.sinks import SafeSink
from twisted_msgproto.core.errors import ConnectionClosed

PUSHED: dict[str, Any] = {
    "micromsg2": lambda factory, client: factory.push(client, "orders", b"x"),
    "sabc": lambda factory, client: factory.push(client, b"x"),
    "sabc-ws": lambda factory, client: factory.push(client, b"x"),
    "umq": lambda factory, client: factory.push(client, "x"),
}


class Naming:
    def test_every_session_has_a_name_by_which_it_is_found(self: Any) -> None:
        world = self.world(SafeSink())
        for _ in range(3):
            peer = world.join()
            self.ignore(peer.send())
            world.wait(1)
        sessions = list(world.factory.liveConnections)
        names = [session.session for session in sessions]
        self.assertEqual(len(set(names)), 3)
        self.assertEqual([world.factory.sessionNamed(name) for name in names], sessions)
        self.assertEqual([shown["session"] for shown in world.factory.sessions()], names)
        self.assertIsNone(world.factory.sessionNamed("nobody"))
        world.peers[0].cut()
        world.wait(1)
        self.assertIsNone(world.factory.sessionNamed(names[0]))
        self.assertIs(world.factory.sessionNamed(names[1]), sessions[1])

    @only(*LOG_IN)
    def test_the_sessions_of_a_client_are_found_by_its_name(self: Any) -> None:
        checker = InMemoryUsernamePasswordDatabaseDontUse(me=b"right", you=b"right")
        world = self.world(SafeSink(), portal=self.case.portal([checker]))
        for name in ("me", "you", "me"):
            entered = world.log_in(name, "right")
            world.wait(2)
            self.successResultOf(entered)
        refused = world.log_in("me", "wrong")
        world.wait(5)
        self.failureResultOf(refused)
        mine = world.factory.sessionsOf("me")
        self.assertEqual([one.clientId for one in mine], ["me", "me"])
        self.assertEqual(mine, [one for one in world.factory.liveConnections if one in mine])
        self.assertEqual(world.factory.sessionsOf("nobody"), [])

    @only(*BOTH_WAYS)
    def test_one_of_them_is_sent_to(self: Any) -> None:
        """The newest, and nobody else."""
        world = self.world(SafeSink())
        got: list[list[bytes]] = []
        for _ in range(3):
            bodies: list[bytes] = []
            got.append(bodies)
            hook = self.hook(bodies)
            world.join(hooks={"message": hook})
        sessions = list(world.factory.liveConnections)
        for session in sessions:
            session.link.clientId = "me"
        sessions[2].link.clientId = "you"
        pushed = PUSHED[self.case.name](world.factory, "me")
        world.wait(1)
        self.successResultOf(pushed)
        self.assertEqual(got, [[], [b"x"], []])
        nobody: Deferred[Any] = PUSHED[self.case.name](world.factory, "nobody")
        self.failureResultOf(nobody, ConnectionClosed)
        world.peers[1].cut()
        pushed = PUSHED[self.case.name](world.factory, "me")
        world.wait(1)
        self.successResultOf(pushed)
        self.assertEqual(got, [[b"x"], [b"x"], []])

    def hook(self: Any, bodies: list[bytes]) -> Any:
        def received(session: Any, message: Any) -> Any:
            bodies.append(message.body)
            return None if self.case.name == "micromsg2" else succeed(b"")

        return received


over_all(globals(), Naming)
