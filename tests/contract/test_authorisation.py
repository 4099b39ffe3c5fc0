"""Who may what: a refusal is answered, counted, said once; nothing of it is stored."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from zope.interface import implementer

from tests.contract.cases import CASES, Peer
from tests.contract.world import World, only, over_all
from tests.micromsg2.streams import message
from twisted_msgproto import Access, IAuthoriser
from twisted_msgproto.core.errors import ConfigurationError, Refused
from twisted_msgproto.extend import MsgprotoServerFactory
from twisted_msgproto.lumberjack import LumberjackServerFactory
from twisted_msgproto.micromsg2.protocol.session import READ_BYTES
from twisted_msgproto.net.authorising import ANSWERS_MAX, Rules
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.testing import SafeSink
from twisted_msgproto.umq import Hub, MethodRegistry, call_method

BY_SEND = {
    "lumberjack": ("publish", ""),
    "micromsg2": ("publish", "orders"),
    "sabc": ("call", ""),
    "sabc-ws": ("call", ""),
    "umq": ("call", ""),
    "mtl": ("publish", "events"),
}
"""What a case's ``send`` asks for."""

GOES_ON = ("micromsg2", "sabc", "sabc-ws", "umq", "mtl")
"""Where a refusal does not end the session."""


@implementer(IAuthoriser)
class Judge:
    """Refuses some actions and names, and keeps what it was asked."""

    def __init__(self, *refused: tuple[str, str]) -> None:
        self.refused = set(refused)
        self.asked: list[Access] = []

    def allows(self, access: Access) -> bool:
        self.asked.append(access)
        return (access.action, access.name) not in self.refused


@implementer(IAuthoriser)
class Answering:
    def __init__(self, answer: Callable[[Access], Any]) -> None:
        self.allows = answer


def fails(access: Access) -> bool:
    raise KeyError("which")


async def late(access: Access) -> bool:
    return True


def refusals(world: World) -> list[str]:
    return [line for line in world.lines() if " may not " in line]


class WhoMayWhat:
    """One client that may not do what its ``send`` does."""

    def ruled(self: Any, *refused: tuple[str, str], authoriser: Any = None) -> Any:
        world = self.world(SafeSink())
        world.factory.authoriser = Judge(*refused) if authoriser is None else authoriser
        return world

    def joined(self: Any, world: Any) -> Peer:
        """A client with a session; MTL's has a lease for all resources, so that contents are
        looked at.
        """
        if self.case.name != "mtl":
            peer: Any = world.meet()
        else:
            peer = self.case._peer(world, {}, "192.0.2.1")
            world.peers.append(peer)

            async def begin() -> None:
                await peer.client.open("host")
                await peer.client.profile("queue")
                peer.writer = await peer.client.writer([])

            peer.began = ensureDeferred(begin())
        world.pump()
        assert peer.stands
        return peer  # type: ignore[no-any-return]

    def test_what_is_allowed_goes_on_and_is_asked_once(self: Any) -> None:
        world = self.ruled()
        peer = self.joined(world)
        for _ in range(3):
            self.soon(world, peer.send(b"x"))
        action, name = BY_SEND[self.case.name]
        asked = [access for access in world.factory.authoriser.asked if access.name == name]
        assert [access.action for access in asked] == [action]
        assert asked[0].protocol == world.factory.protocolName
        assert asked[0].address == ("192.0.2.1" if self.case.name == "mtl" else "127.0.0.1")
        assert asked[0].user == getattr(peer.server, "clientId", None)
        assert len(world.factory.sink.messages) == 3
        assert world.factory.counters["not_allowed"] == 0
        assert refusals(world) == []

    @only("lumberjack", "micromsg2", "sabc", "sabc-ws", "umq")  # MTL's leases stand as granted
    def test_a_first_authoriser_is_for_live_sessions_and_the_last_leaves_them(self: Any) -> None:
        """A reload may bring the first rule, and take the last one away."""
        world = self.world(SafeSink())
        peer = self.joined(world)
        self.soon(world, peer.send(b"x"))
        world.factory.authoriser = Judge(BY_SEND[self.case.name])
        self.soonFails(world, peer.send(b"y"))
        assert world.factory.counters["not_allowed"] == 1
        assert len(world.factory.sink.messages) == 1
        world.factory.authoriser = None
        if self.case.name in GOES_ON:
            self.soon(world, peer.send(b"z"))

    def test_what_is_refused_is_answered_and_counted_and_said_once_and_not_stored(
        self: Any,
    ) -> None:
        action, name = BY_SEND[self.case.name]
        world = self.ruled((action, name))
        peer = self.joined(world)
        sent = [peer.send(b"%d" % number) for number in range(3)]
        world.pump()
        for one in sent:
            failure = self.failureResultOf(one)
            if self.case.name in GOES_ON:
                assert failure.check(Refused), failure
        assert world.factory.sink.messages == []
        counters = world.factory.counters
        assert counters["not_allowed"] == counters[f"not_allowed:{action}"]
        assert counters["not_allowed"] == 3
        assert len(refusals(world)) == 1
        assert action in refusals(world)[0]
        assert repr(name) in refusals(world)[0] or not name
        assert world.factory.authoriser.asked[0].address in refusals(world)[0]
        assert world.tracebacks == []

    @only("lumberjack")
    def test_a_refused_writer_is_closed_before_any_ack_with_a_line(self: Any) -> None:
        world = self.ruled(("publish", ""))
        peer = self.joined(world)
        self.ignore(peer.send(b"x"))
        world.pump()
        assert peer.gone
        assert refusals(world)[0].endswith("may not publish; closed without ack")
        assert world.factory.counters["fault:not-allowed"] == 1
        assert peer.line is not None and peer.line.server.written == 0

    @only(*GOES_ON)
    def test_the_session_goes_on_and_so_does_a_neighbour_of_another_protocol(self: Any) -> None:
        world = self.ruled(BY_SEND[self.case.name])
        number = [case.name for case in CASES].index(self.case.name)
        other = CASES[(number + 1) % len(CASES)]
        beside = World(other, world.factory.sink)
        self.addCleanup(beside.close)
        neighbour = beside.join()
        peer = self.joined(world)
        for _ in range(3):
            self.ignore(peer.send(b"refused"))
            sent = neighbour.send(b"kept")
            world.pump()
            beside.pump()
            self.successResultOf(sent)
        assert len(world.factory.sink.messages) == 3
        self.soon(world, self.allowed(peer))
        assert peer.stands
        assert len(world.factory.sink.messages) == 4
        assert neighbour.stands

    def allowed(self: Any, peer: Any) -> Deferred[Any]:
        client = peer.client
        if self.case.name == "micromsg2":
            return client.send("others", b"kept")
        if self.case.name == "mtl":
            return peer.writer.send("others", b"kept")
        if self.case.name == "umq":
            client.setAttribute("place", "kept")
            return succeed(None)
        return client.sendOnly(b"kept")

    def test_an_authoriser_that_does_not_answer_at_once_refuses_and_is_logged_once(
        self: Any,
    ) -> None:
        for answer in (fails, late, lambda access: Deferred(), lambda access: 1):
            world = self.ruled(authoriser=Answering(answer))
            peer: Any = world.meet()
            world.pump()
            if self.case.name == "mtl":  # its lease was refused
                assert peer.writer is None
            else:
                for _ in range(2):
                    self.soonFails(world, peer.send(b"x"))
            assert world.factory.sink.messages == []
            assert len(world.tracebacks) == 1
            assert len(self.flushLoggedErrors(KeyError, TypeError)) == 1

    @only(*GOES_ON)
    def test_rules_are_an_authoriser(self: Any) -> None:
        action, name = BY_SEND[self.case.name]
        rules = Rules.of([{"allow": action, "name": name or "*"}])
        world = self.ruled(authoriser=rules)
        self.soon(world, self.joined(world).send(b"x"))
        rules = Rules.of([{"allow": action, "address": "203.0.113.0/24"}])
        world = self.ruled(authoriser=rules)
        peer = self.joined(world) if self.case.name != "mtl" else world.meet()
        world.pump()
        if peer.stands:
            self.soonFails(world, peer.send(b"x"), Refused)
        assert world.factory.counters["not_allowed"] >= 1

    @only("micromsg2", "mtl")
    def test_the_rules_of_a_queue_cover_its_dead_letters(self: Any) -> None:
        """RD-56: ``deny secret`` let everybody consume from ``secret.dead``."""
        rules = [{"deny": "consume", "name": ["secret", "b*"]}, {"allow": "*"}]
        world = self.ruled(authoriser=Rules.of(rules))
        client = self.joined(world).client
        refused = {"secret.dead": True, "bills.dead": True, "open.dead": False, "dead": False}
        for name, expected in refused.items():
            if self.case.name == "mtl":
                asked = ensureDeferred(client.reader([name]))
                world.pump()
                if expected:
                    assert self.failureResultOf(asked, Refused).value.code == 403
                else:
                    self.successResultOf(asked)
            else:
                subscription = self.successResultOf(client.subscribe(name))
                world.pump()
                assert subscription.whenEnded().called == expected
        if self.case.name == "mtl":
            reader = self.soon(world, client.reader([]))
            summoned = reader.summon("secret.dead")
            world.pump()
            assert self.failureResultOf(summoned, Refused).value.code == 400
        assert world.factory.counters["not_allowed:consume"] == 2 + (self.case.name == "mtl")

    # ── MicroMsg2 ───────────────────────────────────────────────────────────────────────────────

    @only("micromsg2")
    def test_of_one_read_only_what_is_refused_is_left_out(self: Any) -> None:
        case = self.case.wide()
        world = World(case, SafeSink())
        self.addCleanup(world.close)
        world.factory.authoriser = Judge(("publish", "b"), ("publish", "d"))
        heard: list[Any] = []
        hooks = {"messageReceived": lambda client, message: heard.append(message)}
        reader, writer = world.join(hooks=hooks), world.join()
        for name in ("topic/x", "topic/b"):
            reader.client.subscribe(name)
        world.pump()
        sent = {name: writer.client.send(name, name.encode(), {"n": name}) for name in "abcd"}
        sent["topic/x"] = writer.client.send("topic/x", b"to all")
        world.wait(3)
        for name, one in sent.items():
            if name in "bd":
                assert self.failureResultOf(one, Refused).value.code == "refused"
            else:
                self.successResultOf(one)
        messages = world.factory.sink.messages
        assert [(message.destination, message.body) for message in messages] == [
            ("a", b"a"),
            ("c", b"c"),
            ("topic/x", b"to all"),
        ]
        assert [message.fields["n"] for message in messages[:2]] == ["a", "c"]
        assert [message.body for message in heard] == [b"to all"]

    @only("micromsg2")
    def test_a_refused_subscription_or_consumer_gets_nothing(self: Any) -> None:
        world = self.ruled(("subscribe", "topic/secret"), ("consume", "jobs"))
        heard: list[Any] = []
        hooks = {"messageReceived": lambda client, message: heard.append(message)}
        reader, writer = world.join(hooks=hooks), world.join()
        subscriptions = {}
        for name in ("topic/secret", "jobs", "topic/open", "work"):
            subscriptions[name] = self.successResultOf(reader.client.subscribe(name))
        world.pump()
        for name in ("topic/secret", "jobs"):
            ended = subscriptions[name]
            assert self.successResultOf(ended.whenEnded()) == "refused"
            assert ended.failure.code == "not-allowed"
        for name in subscriptions:
            self.ignore(writer.client.send(name, name.encode()))
            world.pump()
        assert sorted(message.body for message in heard) == [b"topic/open", b"work"]
        assert "jobs" not in world.factory.broker.queues
        counters = world.factory.counters
        assert (counters["not_allowed:subscribe"], counters["not_allowed:consume"]) == (1, 1)
        assert len(refusals(world)) == 2

    @only("micromsg2")
    def test_ever_new_names_fill_no_memory(self: Any) -> None:
        everything = Rules.of([{"allow": "*", "name": "topic/x"}])
        case = self.case.wide()
        world = World(case, SafeSink())
        self.addCleanup(world.close)
        world.factory.authoriser = everything
        peer = world.join()
        count = 2 * ANSWERS_MAX + 100
        for number in range(count):
            self.ignore(peer.client.send(f"name-{number}", b"x"))
            if number % 90 == 0:
                world.pump()
        world.pump()
        assert world.factory.counters["not_allowed"] == count
        assert len(peer.server.link._permissions._answers) <= ANSWERS_MAX
        assert len(refusals(world)) == 5  # of this address, within a minute

    @only("micromsg2")
    def test_a_storm_of_refused_names_is_no_long_turn(self: Any) -> None:
        """NB-07: a read is small, and few lines are logged: 20 of a session, 5 of them at once."""
        world = self.ruled(authoriser=Rules.of([{"allow": "*", "name": "orders"}]))
        server = world.join().server.link
        assert server.readBytes == 128 << 10
        count = 2000
        storm = b"".join(message(number, b"x", f"n{number}") for number in range(1, count))
        server.dataReceived(storm)
        assert world.factory.counters["not_allowed"] == count - 1
        world.factory.peerLog.sum_up()
        assert "and 15 more refusals" in world.lines()[-1]
        world.factory.authoriser = None
        assert server.readBytes == READ_BYTES  # as before

    # ── sABC ────────────────────────────────────────────────────────────────────────────────────

    @only("sabc", "sabc-ws")
    def test_a_refused_send_only_message_is_answered_with_403_and_reaches_no_hook(
        self: Any,
    ) -> None:
        heard: list[Any] = []
        hooks = {
            "messageReceived": lambda server, message: heard.append(message),
            "requestReceived": lambda server, message: b"answer",
        }
        world = self.world(SafeSink(), hooks=hooks)
        world.factory.authoriser = Judge(("publish", ""))
        errors: list[Any] = []
        told = {"errorReceived": lambda client, error: errors.append(error)}
        peer = world.join(hooks=told)
        self.successResultOf(peer.client.sendOnly(b"x"))
        world.pump()
        assert [(error.code, error.body) for error in errors] == [
            ("403", b"not allowed to publish")
        ]
        assert heard == world.factory.sink.messages == []
        answered = peer.send(b"asked")
        world.pump()
        assert self.successResultOf(answered).body == b"answer"
        # In order: nothing is owed for what was refused.
        self.soon(world, peer.client.close())

    # ── UMQ ─────────────────────────────────────────────────────────────────────────────────────

    def hub(self: Any, *refused: tuple[str, str]) -> Any:
        world = self.ruled(*refused)
        world.factory.methods = Hub().methods
        world.factory.methods.register(lambda: "done", name="work")
        return world

    @only("umq")
    def test_methods_are_called_by_name_and_topics_are_published_and_subscribed(self: Any) -> None:
        calls, names = [("call", "work"), ("call", "stored")], ["secret", ""]
        world = self.hub(*calls, ("publish", "secret"), *(("subscribe", name) for name in names))
        peer = world.join()
        calls = (("work",), ("publish", "secret", "x"), ("subscribe",), ("stored", 1))
        for name, *arguments in calls:
            answer = call_method(peer.client, name, *arguments)
            world.pump()
            assert self.failureResultOf(answer, Refused).value.code == 1
        subscribed = peer.client.subscribe(lambda id: f'["subscribe","secret","{id}"]')
        world.pump()
        assert self.successResultOf(subscribed.whenEnded()) == "refused"
        assert world.factory.sink.messages == []
        for name, *arguments in (("publish", "open", "x"), ("methods",)):
            self.soon(world, call_method(peer.client, name, *arguments))
        counters = world.factory.counters
        assert counters["not_allowed:call"] == 2
        assert (counters["not_allowed:publish"], counters["not_allowed:subscribe"]) == (1, 2)

    @only("umq")
    def test_an_attribute_that_may_not_be_set_is_not_stored_nor_told(self: Any) -> None:
        changed: list[Any] = []
        hooks = {"attributeChanged": lambda server, *what: changed.append(what)}
        world = self.world(SafeSink(), hooks=hooks)
        world.factory.authoriser = Judge(("publish", "attribute/secret"))
        peer = world.join()
        peer.client.setAttribute("secret", "x")
        peer.client.setAttribute("place", "here")
        peer.client.unsetAttribute("secret")
        world.pump()
        assert changed == [("place", "here")]
        assert dict(peer.server.attributes) == {"place": "here"}
        assert [message.destination for message in world.factory.sink.messages] == ["place"]
        assert world.factory.counters["not_allowed"] == 2
        assert len(refusals(world)) == 1

    @only("umq")
    def test_an_attribute_that_may_not_be_set_is_not_seen_nor_kept__NB_02(self: Any) -> None:
        """NB-02: nor is its earlier value, from before a rule forbade it."""
        world = self.world(SafeSink())
        peer = world.join()
        kept = world.factory.shared.session_memory
        peer.client.setAttribute("place", "here")
        world.pump()
        before = kept.nbytes
        peer.client.setAttribute("secret", "x" * 1000)
        world.pump()
        assert dict(peer.server.attributes) == {"place": "here", "secret": "x" * 1000}
        world.factory.authoriser = Judge(("publish", "attribute/secret"))
        for value in ("y", "z" * 2000):
            peer.client.setAttribute("secret", value)
            world.pump()
            assert dict(peer.server.attributes) == {"place": "here"}
            assert kept.nbytes == before
        peer.client.unsetAttribute("place")
        world.pump()
        assert not peer.server.attributes

    @only("umq")
    def test_a_callback_is_for_whom_it_was_given_to(self: Any) -> None:
        world = self.ruled(authoriser=Rules.of([{"allow": "publish"}]))
        peer = world.join()
        id = peer.server.registerCallback(lambda request: "called")
        answer = peer.client.callback(id, "x")
        world.pump()
        assert self.successResultOf(answer).payload == "called"

    # ── MTL ─────────────────────────────────────────────────────────────────────────────────────

    @only("mtl")
    def test_a_lease_for_what_is_refused_is_refused_and_so_is_a_summon(self: Any) -> None:
        world = self.ruled(("publish", "secret"), ("consume", "secret"))
        peer = self.joined(world)
        client = peer.client
        for ask in (client.writer, client.reader):
            asked = ensureDeferred(ask(["open", "secret"]))
            world.pump()
            assert self.failureResultOf(asked, Refused).value.code == 403
        reader = self.soon(world, client.reader([]))
        for name, refused in (("secret", True), ("open", False)):
            summoned = reader.summon(name)
            world.pump()
            if refused:
                assert self.failureResultOf(summoned, Refused).value.code == 400
            else:
                self.successResultOf(summoned)
        counters = world.factory.counters
        assert (counters["not_allowed:publish"], counters["not_allowed:consume"]) == (1, 2)
        assert len(refusals(world)) == 2
        assert world.factory.authoriser.asked[0].virtual_host == "host"

    @only("mtl")
    def test_who_authenticates_anew_is_asked_about_anew(self: Any) -> None:
        world = self.ruled(authoriser=Rules.of([{"allow": "publish", "user": "ada"}]))
        session = SimpleNamespace(
            user="bob", key=b"", address="192.0.2.1", name="s", virtual_host="v", permissions=None
        )
        assert not world.factory._may(session, False, "events")
        session.user = "ada"
        assert world.factory._may(session, False, "events")
        assert not world.factory._may(session, True, "events")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_factory_takes_the_same_argument(case: Any) -> None:
    judge = Judge()
    made = case.server_class.__module__
    world = World(case, SafeSink())
    try:
        kind = type(world.factory)
        factory = kind(authoriser=judge, clock=world.clock)
        assert factory.authoriser is judge, made
        with pytest.raises(TypeError, match="an object with a method allows is expected"):
            kind(authoriser=3, clock=world.clock)
    finally:
        world.close()


def test_a_protocol_that_never_asks_takes_none() -> None:
    class Other(MsgprotoServerFactory):
        protocolName = "other"

    with pytest.raises(ConfigurationError, match="other does not ask who may what"):
        Other(authoriser=Judge())
    assert Other().authoriser is None
    Other.actions = frozenset({"publsh"})
    with pytest.raises(ConfigurationError, match=r"Other.actions: there is no action 'publsh' \("):
        Other()


def test_factories_say_what_they_ask() -> None:
    assert LumberjackServerFactory.actions == {"publish"}
    assert SabcServerFactory.actions == {"call", "publish"}
    assert MethodRegistry().access("no json") == ("call", "")
    assert MethodRegistry().access('["f", 1]') == ("call", "f")
    assert Hub().methods.access('["publish", 1]') == ("publish", "")


over_all(globals(), WhoMayWhat)
