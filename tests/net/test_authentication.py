"""Logging in: every failure has the same face and takes the same time, and none is free."""

import pytest
from twisted.cred.checkers import (
    AllowAnonymousAccess,
    ICredentialsChecker,
    InMemoryUsernamePasswordDatabaseDontUse,
)
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent, globalLogPublisher
from twisted.plugins.cred_unix import UNIXChecker
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from twisted_msgproto.net.authentication import (
    Authentication,
    IdentityRealm,
    portal_over,
    throttle,
)
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.sabc.service import Options


def limits_of(**changes):
    """The limits of a server, as its factory has them."""
    changes = {name.replace("_", "-"): value for name, value in changes.items()}
    return SabcServerFactory(clock=Clock(), limits=changes).limits


@implementer(ICredentialsChecker)
class Slow:
    """A checker which answers when it is told to."""

    credentialInterfaces = (IUsernamePassword,)

    def __init__(self):
        self.asked = []

    def requestAvatarId(self, credentials):
        self.asked.append(Deferred())
        return self.asked[-1]


class Login(SynchronousTestCase):
    def setUp(self):
        self.clock = Clock()
        self.memory = InMemoryUsernamePasswordDatabaseDontUse(bob=b"secret")
        self.checks = 0
        check = self.memory.requestAvatarId

        def counted(credentials):
            self.checks += 1
            return check(credentials)

        self.memory.requestAvatarId = counted
        self.counters = {}

    def door(self, *checkers, line=100, **changes):
        self.patch(throttle, "LINE_MAX", line)
        portal = portal_over(checkers or (self.memory,))
        return Authentication(portal, self.clock, limits_of(**changes), counters=self.counters)

    def attempt(self, door, name, password, address="192.0.2.1"):
        return door.login(door.credentials(name, password), address, name)

    def test_who_knows_the_password_comes_in_at_once(self):
        """SA-08."""
        left = []
        answer = self.successResultOf(self.attempt(self.door(), "bob", "secret"))
        self.assertEqual(answer.name, "bob")
        answer.logout()
        self.assertEqual(left, [])

    def test_a_wrong_password_and_a_wrong_name_look_the_same_and_take_the_same_time(self):
        """SA-08, SA-27: the delay runs from arrival."""
        door = self.door()
        answers = [self.attempt(door, *pair) for pair in (("bob", "x"), ("eve", "x"), (None, None))]
        self.clock.advance(0.99)
        for answer in answers:
            self.assertNoResult(answer)
        self.clock.advance(0.01)
        for answer in answers:
            self.assertEqual(self.failureResultOf(answer, UnauthorizedLogin).value.args, ())
        self.assertEqual((door.failures, door.throttled), (3, 0))

    def test_the_time_a_checker_takes_counts_for_the_delay(self):
        """SA-27."""
        slow = Slow()
        door = self.door(slow)
        quick, late = self.attempt(door, "a", "x"), self.attempt(door, "b", "x")
        self.clock.advance(0.4)
        slow.asked[0].errback(UnauthorizedLogin())
        self.clock.advance(0.6)
        self.failureResultOf(quick, UnauthorizedLogin)
        self.clock.advance(0.5)
        slow.asked[1].errback(
            UnauthorizedLogin()
        )  # a whole number of delays does not tell how long
        self.clock.advance(0.49)
        self.assertNoResult(late)
        self.clock.advance(0.01)
        self.failureResultOf(late, UnauthorizedLogin)

    def test_a_broken_checker_is_told_to_the_operator_and_not_to_the_client(self):
        """SA-08."""
        slow = Slow()
        answer = self.attempt(self.door(slow), "a", "x")
        slow.asked[0].errback(RuntimeError("no database"))
        self.clock.advance(1)
        self.failureResultOf(answer, UnauthorizedLogin)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_name_that_no_system_can_look_up_is_wrong_and_no_fault_of_the_checker__NB_09(self):
        """NB-09: ``--auth unix`` asks the system, which raises ValueError for a NUL."""
        door = self.door(UNIXChecker())
        refused = self.attempt(door, "ro\0ot", "x")
        self.clock.advance(1)
        self.failureResultOf(refused, UnauthorizedLogin)
        self.assertEqual((door.failures, door.throttled), (1, 0))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_a_login_waits_for_its_check_and_its_failure_as_much_longer(self):
        """NB-04, NB-05: and the right password is let in as soon as it was checked."""
        door = self.door()
        for _ in range(5):
            self.attempt(door, "bob", "x").addErrback(lambda failure: None)
        wrong = self.attempt(door, "bob", "x")
        right = self.attempt(door, "bob", "secret")
        self.clock.advance(1)
        self.assertEqual((door.failures, self.counters["logins_waited"]), (6, 2))
        self.assertNoResult(wrong)
        self.assertNoResult(right)
        self.clock.advance(0.99)
        self.assertNoResult(wrong)
        self.clock.advance(0.01)
        self.failureResultOf(wrong, UnauthorizedLogin)
        self.assertEqual(self.successResultOf(right).name, "bob")
        again = self.attempt(door, "bob", "secret")  # the pair is known now
        self.successResultOf(again)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(
            self.counters,
            {"login_failures": 6, "logins_waited": 2, "logins": 2},
        )

    def test_what_is_not_checked_is_refused_after_the_same_time(self):
        """NB-04: nobody is asked, and the client cannot tell."""
        door = self.door(line=1)
        answers = [self.attempt(door, "bob", "x") for _ in range(9)]
        self.assertEqual(self.checks, 5)
        self.clock.advance(0.99)
        for answer in answers:
            self.assertNoResult(answer)
        self.clock.advance(0.01)
        for answer in (*answers[:5], *answers[6:]):
            self.failureResultOf(answer, UnauthorizedLogin)
        self.assertEqual((door.failures, door.throttled), (9, 3))
        self.assertEqual(self.checks, 6)
        self.clock.advance(1)
        self.failureResultOf(answers[5], UnauthorizedLogin)

    def test_the_operator_is_told_who_was_refused_and_never_the_secret(self):
        """NB-04: a line for each, five of an address in a minute, then their sum."""
        lines = []
        globalLogPublisher.addObserver(lines.append)
        self.addCleanup(globalLogPublisher.removeObserver, lines.append)
        door = self.door(line=1)

        def told():
            texts = [formatEvent(line) for line in lines if "audit" in line["log_namespace"]]
            lines.clear()
            return texts

        self.attempt(door, "bob\n", "geheim").addErrback(lambda failure: None)
        self.attempt(door, None, "geheim", "").addErrback(lambda failure: None)
        self.assertEqual(
            told(),
            [
                "192.0.2.1: login as 'bob\\n' refused: name and password do not fit",
                "a client: login as nobody refused: name and password do not fit",
            ],
        )
        for _ in range(20):
            self.attempt(door, "bob", "geheim").addErrback(lambda failure: None)
        texts = told()
        self.assertEqual(len(texts), 4)
        self.attempt(door, "x" * 5000, "geheim", "192.0.2.2").addErrback(lambda failure: None)
        self.assertLess(len(told()[0]), 400)
        self.clock.pump([1, 59])
        self.assertEqual(told(), [])
        self.attempt(door, "bob", "geheim", "192.0.2.3").addErrback(lambda failure: None)
        self.assertEqual(
            told()[0],
            "192.0.2.1: … and 16 more logins refused within 60 s (15 not checked, 1 wrong)",
        )
        self.assertNotIn("geheim", repr(texts))

    def test_a_client_goes_while_its_login_waits(self):
        """NB-05: its place and its tokens are free, and nothing is left on the clock."""
        door = self.door()
        for _ in range(5):
            self.attempt(door, "bob", "x").addErrback(lambda failure: None)
        first, second = self.attempt(door, "bob", "x"), self.attempt(door, "bob", "secret")
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertEqual(door.waiting, 1)
        self.clock.advance(1)
        self.assertEqual(self.checks, 6)
        self.successResultOf(second)
        third = self.attempt(door, "eve", "x")
        third.cancel()
        self.failureResultOf(third, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_who_goes_before_the_answer_has_failed_all_the_same(self):
        """NB-04: to hang up before the answer comes does not make a guess free."""
        slow = Slow()
        door = self.door(slow)
        for _ in range(5):
            waiting = self.attempt(door, "bob", "x")
            waiting.cancel()
            self.failureResultOf(waiting, CancelledError)
        self.assertEqual((len(slow.asked), door.failures), (5, 5))
        self.attempt(door, "bob", "x").addErrback(lambda failure: None)
        self.assertEqual(len(slow.asked), 5)

    def test_a_client_which_ends_another_one_from_its_callback(self):
        """NB-05: that one is not checked any more."""
        door = self.door()
        for address in ("192.0.2.1", "192.0.2.2"):
            for number in range(5):
                self.attempt(door, f"n{number}", "x", address).addErrback(lambda failure: None)
        first = self.attempt(door, "bob", "secret", "192.0.2.1")
        second = self.attempt(door, "eve", "x", "192.0.2.2")  # its time comes in the same moment
        first.addCallback(lambda login: second.cancel())
        nested = []
        first.addCallback(lambda _: nested.append(self.attempt(door, "bob", "secret")))
        checks = self.checks
        self.clock.advance(1)
        self.successResultOf(first)
        self.failureResultOf(second, CancelledError)
        self.assertEqual(self.successResultOf(nested[0]).name, "bob")
        self.assertEqual(self.checks - checks, 2)

    def test_anonymous_logins_are_no_proof_of_a_name(self):
        """NB-05: they make no pair known, and are not throttled, since nothing can be guessed."""
        door = self.door(self.memory, AllowAnonymousAccess())
        for _ in range(50):
            self.successResultOf(self.attempt(door, "bob", None))
            self.attempt(door, "bob", "x").addErrback(lambda failure: None)
        self.assertEqual(door.failures, 5)
        self.clock.advance(100)

    def test_an_avatar_without_a_name_is_our_fault_and_the_client_is_told(self):
        """HO-07."""
        door = Authentication(
            portal_over([self.memory]),
            self.clock,
            limits_of(),
            nameOf=lambda avatar: 1 / 0,
        )
        answer = self.attempt(door, "bob", "secret")
        self.clock.advance(1)
        self.failureResultOf(answer, UnauthorizedLogin)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_checker_which_cannot_be_cancelled_logs_out_again(self):
        """SA-08."""
        door, logouts = self.door(), []

        class Realm(IdentityRealm):
            def requestAvatar(self, *arguments):
                interface, identity, _ = super().requestAvatar(*arguments)
                return interface, identity, lambda: logouts.append(identity.name)

        door.portal.realm = Realm()
        real = door.portal.login

        def login(*arguments):
            return Deferred(lambda deferred: real(*arguments).chainDeferred(deferred))

        door.portal.login = login
        answer = self.attempt(door, "bob", "secret")
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.assertEqual(logouts, ["bob"])

    def test_anonymous_clients_have_no_name(self):
        """SA-07: a client-id which nobody has checked is no identity."""
        door = self.door(self.memory, AllowAnonymousAccess())
        self.assertIs(self.successResultOf(self.attempt(door, "bob", None)).name, None)
        self.assertIs(self.successResultOf(self.attempt(door, None, None)).name, None)
        answer = self.attempt(door, "bob", "wrong")
        self.clock.advance(1)
        self.failureResultOf(answer, UnauthorizedLogin)
        self.assertFalse(self.door().anonymous)


def test_checkers_come_from_the_command_line():
    """SA-08."""
    options = Options()
    options.read(["--auth", "memory:bob:secret", "--auth", "anonymous"])
    portal = options.portal()
    assert portal is not None
    assert len(options.checkers) == 2
    door = Authentication(portal, Clock(), limits_of())
    answers = []
    door.login(door.credentials("bob", "secret"), "here", "bob").addCallback(answers.append)
    assert [answer.name for answer in answers] == ["bob"]
    options = Options()
    options.read([])
    assert options.portal() is None


def test_an_unknown_checker_is_a_usage_error():
    with pytest.raises(usage.UsageError):
        Options().read(["--auth", "nonsense:x"])
