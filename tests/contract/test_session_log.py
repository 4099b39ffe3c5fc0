"""A line when a session begins and one when it ends; refused log-ins are told, secrets are not."""

from __future__ import annotations

import json
import re
from typing import Any

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse

from tests.contract.cases import LOG_IN
from tests.contract.world import only, over_all
from tests.tools.sinks import SafeSink
from twisted_msgproto.net.logs import line_of

BEGAN = r"^\S+: session \S+-\d+ of \S+( \('.*'\))? began$"
ENDED = r"^\S+: session \S+-\d+ of \S+( \('.*'\))? ended after 5\.0 s and 2 messages: \w.*[^.]$"


class SessionLines:
    def test_a_session_is_told_of_twice_where_that_was_asked_for(self: Any) -> None:
        world = self.world(SafeSink())
        world.factory.logSessions()
        before = world.clock.seconds()
        peer = world.join()
        for _ in range(2):
            self.ignore(peer.send())
        world.pump()
        world.wait(before + 5 - world.clock.seconds(), 0.5)
        began = [line for line in world.lines() if re.search(BEGAN, line)]
        self.assertEqual(len(began), 1, world.lines())
        self.assertEqual([line for line in world.lines() if " ended after " in line], [])
        self.ignore(world.factory.drain())
        world.wait(1, 0.1)
        ended = [line for line in world.lines() if " ended after " in line]
        self.assertEqual(len(ended), 1, world.lines())
        self.assertRegex(ended[0].replace("5.1 s", "5.0 s"), ENDED)
        events = [event for event in world.logged if event.get("event", "")[:7] == "session"]
        objects = [json.loads(line_of(event)) for event in events]
        self.assertEqual([one["event"] for one in objects], ["session began", "session ended"])
        for one in objects:
            self.assertEqual(one["protocol"], world.factory.protocolName)
            self.assertTrue(one["session"].startswith(one["protocol"]))
            self.assertIn("peer", one)
            self.assertRegex(one["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            self.assertEqual(one["level"], "info")
        self.assertEqual(objects[1]["messages"], 2)

    def test_nothing_is_told_of_them_else(self: Any) -> None:
        world = self.world(SafeSink())
        peer = world.join()
        self.ignore(peer.send())
        world.pump()
        self.ignore(world.factory.drain())
        world.wait(1, 0.1)
        self.assertEqual([line for line in world.lines() if "session" in line], [])

    @only(*LOG_IN)
    def test_a_refused_log_in_is_told_without_the_secret(self: Any) -> None:
        checker = InMemoryUsernamePasswordDatabaseDontUse(me=b"right")
        world = self.world(SafeSink(), portal=self.case.portal([checker]))
        world.factory.logSessions()
        self.ignore(world.log_in("me", "s3cret-guess"))
        world.wait(3, 0.1)
        told = [event for event in world.logged if "log" in event.get("log_format", "")]
        refused = [line for line in world.lines() if "login as 'me' refused: name and" in line]
        self.assertEqual(len(refused), 1, world.lines())
        objects = [line_of(event) for event in told]
        self.assertNotIn("s3cret", "".join(world.lines()) + "".join(objects))
        [one] = [json.loads(line) for line in objects if "refused" in line]
        self.assertEqual(one["event"], "wrong")
        self.assertEqual(one["name"], "'me'")
        self.assertFalse([line for line in world.lines() if " began" in line])

    @only(*LOG_IN)
    def test_the_line_names_who_has_logged_in(self: Any) -> None:
        checker = InMemoryUsernamePasswordDatabaseDontUse(me=b"right")
        world = self.world(SafeSink(), portal=self.case.portal([checker]))
        world.factory.logSessions()
        self.ignore(world.log_in("me", "right"))
        world.wait(1, 0.1)
        began = [line for line in world.lines() if line.endswith("('me') began")]
        self.assertEqual(len(began), 1, world.lines())


over_all(globals(), SessionLines)
