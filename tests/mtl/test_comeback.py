"""A client of MTL which comes back: flows, and what only MTL has; the rest is in the contract."""

from __future__ import annotations

from typing import Any

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import CancelledError

from tests.contract.cases import Mtl
from tests.contract.world import ContractCase, World
from tests.tools.sinks import HeldSink, SafeSink
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    Refused,
    TimedOut,
)
from twisted_msgproto.mtl import MtlClientFactory, MtlClientService


class ComingBack(ContractCase):
    case = Mtl()

    def standing(self, sink: Any = None, **options: Any) -> tuple[World, Any]:
        world = self.world(sink or SafeSink())
        service = self.case.service(world, **options)
        service.startService()
        world.wait(1)
        self.assertEqual(service.state, "up")
        self.addCleanup(self.end, world, service)
        return world, service

    def end(self, world: World, service: Any) -> None:
        stopped = service.stopService()
        world.wait(10)
        self.successResultOf(stopped)

    def test_a_flow_of_ones_own_survives_the_server(self) -> None:
        """MT-28"""
        world, service = self.standing()
        leased = service.writer(["events"])
        world.wait(1)
        writer = self.successResultOf(leased)
        self.case.away(world)
        sent = writer.send("events", b"x")
        world.wait(60)
        self.assertIn(service.state, ("connecting", "down"))
        self.case.back(world)
        world.wait(60)
        self.successResultOf(sent)
        self.assertEqual(service.state, "up")
        self.assertTrue(writer.stands)

    def test_a_client_without_flows_looks_for_its_server_once_it_is_missed(self) -> None:
        world, service = self.standing()
        self.case.away(world)
        asked = service.writer(["events"])
        waiting = service.whenEstablished()
        world.wait(16)
        self.failureResultOf(asked, TimedOut)
        world.wait(60)
        self.assertIn(service.state, ("connecting", "down"))
        self.case.back(world)
        world.wait(80)
        self.assertEqual(service.state, "up")
        self.successResultOf(waiting)
        again = service.reader(["events"])
        world.wait(1)
        self.failureResultOf(again, Refused)  # the profile is for writers: the server says so

    def test_one_flow_serves_a_resource_and_another_follows_when_it_has_ended(self) -> None:
        world, service = self.standing()
        sent = [service.send("events", b"%d" % number) for number in range(3)]
        other = service.send("others", b"x")
        world.wait(1)
        for one in (*sent, other):
            self.successResultOf(one)
        self.assertEqual(len(service.session.flows), 2)
        for flow in list(service.session.flows.values()):
            flow.close()
        sent = [service.send("events", b"again"), service.send("events", b"and again")]
        sent[0].cancel()
        self.failureResultOf(sent[0], CancelledError)
        world.wait(1)
        self.successResultOf(sent[1])
        self.assertEqual(len(service.session.flows), 1)

    def test_a_flow_which_is_closed_is_not_the_end_of_the_session(self) -> None:
        sink = HeldSink()
        world, service = self.standing(sink)
        sent = service.send("events", b"x")
        world.wait(1)
        for flow in list(service.session.flows.values()):
            flow.close()
        self.failureResultOf(sent, ConnectionClosed)
        self.assertEqual(service.state, "up")
        sent = service.send("events", b"y")
        world.wait(1)
        sink.safe()
        world.wait(1)
        self.successResultOf(sent)

    def test_a_lease_which_is_refused_fails_all_who_wait_for_it(self) -> None:
        world, service = self.standing()
        sent = [service.send("", b"x") for _ in range(2)]
        world.wait(1)
        for one in sent:
            self.failureResultOf(one, Refused)

    def test_a_server_which_wants_to_know_who_it_is_refuses_a_client_without_credentials(
        self,
    ) -> None:
        """HO-11, MT-07"""
        checker = InMemoryUsernamePasswordDatabaseDontUse(me=b"right")
        world = self.world(SafeSink(), portal=self.case.portal([checker]))
        factory = MtlClientFactory(
            "host", clock=world.clock, sockets=world.network.sockets("192.0.2.7")
        )
        service = MtlClientService("tcp://127.0.0.1:5049", factory, stopWhenRefused=True)
        waiting = service.whenEstablished()
        service.startService()
        world.wait(1)
        refusal: Any = self.failureResultOf(waiting, Refused).value
        self.assertEqual(refusal.code, 401)
        stopped = service.stopService()
        world.wait(1)
        self.successResultOf(stopped)
