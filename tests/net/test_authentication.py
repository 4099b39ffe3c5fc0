"""Logging in: every failure has the same face and takes the same time, and none is free."""

import pytest
from twisted.cred.checkers import AllowAnonymousAccess, InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from twisted_msgproto.core.limits import Limits
from twisted_msgproto.net import authentication
from twisted_msgproto.net.authentication import (
    LOGIN_LIMITS,
    Authentication,
    AuthenticationOptions,
    IdentityRealm,
    Passcode,
    portal_over,
)


@implementer(authentication.ICredentialsChecker)
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

    def door(self, *checkers, **changes):
        limits = Limits.of(LOGIN_LIMITS).replace(
            {name.replace("_", "-"): value for name, value in changes.items()}
        )
        return Authentication(portal_over(checkers or (self.memory,)), self.clock, limits)

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
        self.clock.advance(1)
        slow.asked[1].errback(UnauthorizedLogin())
        self.clock.advance(0)
        self.failureResultOf(late, UnauthorizedLogin)

    def test_a_broken_checker_is_told_to_the_operator_and_not_to_the_client(self):
        """SA-08."""
        slow = Slow()
        answer = self.attempt(self.door(slow), "a", "x")
        slow.asked[0].errback(RuntimeError("no database"))
        self.clock.advance(1)
        self.failureResultOf(answer, UnauthorizedLogin)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_failures_count_for_the_address_and_for_the_name(self):
        """SA-27."""
        door = self.door(login_failures=2)

        def failures(*attempts):
            answers = [self.attempt(door, *attempt) for attempt in attempts]
            self.clock.advance(1)
            for answer in answers:
                self.failureResultOf(answer, UnauthorizedLogin)

        failures(("bob", "x", "one"), ("bob", "x", "two"))
        failures(("bob", "secret", "three"))  # right, but not asked any more
        self.assertEqual(door.throttled, 1)
        failures(("a", "x", "four"), ("b", "x", "four"))
        failures(("bob", "secret", "four"))
        self.assertEqual(door.throttled, 2)
        self.clock.advance(60)
        self.successResultOf(self.attempt(door, "bob", "secret", "four"))

    def test_what_is_remembered_is_bounded(self):
        """SA-27."""
        self.patch(authentication, "REMEMBERED_MAX", 3)
        door = self.door()
        for number in range(9):
            self.attempt(door, f"n{number}", "x", f"a{number}").addErrback(lambda failure: None)
        self.clock.advance(1)
        self.assertEqual(len(door._failed), 3)

    def test_who_has_gone_is_answered_no_more(self):
        """SA-08."""
        slow = Slow()
        door = self.door(slow)
        waiting = self.attempt(door, "a", "x")
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        door = self.door()
        failed = self.attempt(door, "bob", "x")
        failed.cancel()
        self.failureResultOf(failed, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

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


def test_a_passcode_is_compared_and_never_shown():
    """SA-08."""
    passcode = Passcode("bob", "geheim ß")
    assert passcode.checkPassword("geheim ß".encode())
    assert passcode.checkPassword("geheim ß")
    assert not passcode.checkPassword(b"geheim")
    assert "geheim" not in repr(passcode)


def test_a_realm_gives_identities_only():
    with pytest.raises(NotImplementedError):
        IdentityRealm().requestAvatar("bob", None)


class Options(AuthenticationOptions):
    """Some server."""

    protocolName = "some"
    defaultEndpoint = "tcp:0"


def test_checkers_come_from_the_command_line():
    """SA-08."""
    options = Options()
    options.read(["--auth", "memory:bob:secret", "--auth", "anonymous"])
    portal = options.portal()
    assert portal is not None
    assert len(options.checkers) == 2
    door = Authentication(portal, Clock(), Limits.of(LOGIN_LIMITS))
    answers = []
    door.login(door.credentials("bob", "secret"), "here", "bob").addCallback(answers.append)
    assert [answer.name for answer in answers] == ["bob"]
    options = Options()
    options.read([])
    assert options.portal() is None


def test_an_unknown_checker_is_a_usage_error():
    with pytest.raises(usage.UsageError):
        Options().read(["--auth", "nonsense:x"])
