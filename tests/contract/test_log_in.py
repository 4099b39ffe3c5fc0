"""One door for every log-in: the same delay, throttled, a right password never locked out."""

from __future__ import annotations

from typing import Any

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from tests.contract.cases import LOG_IN
from tests.contract.world import only, over_all
from tests.tools.sinks import SafeSink

NAME, RIGHT = "me", "right"
ELSEWHERE = "198.51.100.9"


@implementer(ICredentialsChecker)
class Checker:
    """Knows one password; counts how often it is asked.

    Attributes:
        asked: the names it was asked about, in order.
        silent: it never answers.
    """

    credentialInterfaces = (IUsernamePassword,)

    def __init__(self, silent: bool = False) -> None:
        self.asked: list[bytes] = []
        self.silent = silent

    def requestAvatarId(self, credentials: Any) -> Deferred[Any]:
        self.asked.append(credentials.username)
        if self.silent:
            return Deferred()
        if credentials.username == NAME.encode() and credentials.checkPassword(RIGHT.encode()):
            return succeed(credentials.username)
        return fail(UnauthorizedLogin())


class LogIn:
    """A server with a portal."""

    def guarded(self: Any, **options: Any) -> Any:
        checker = Checker(silent=options.pop("silent", False))
        return self.world(SafeSink(), portal=self.case.portal([checker]), **options), checker

    @only(*LOG_IN)
    def test_who_knows_the_password_comes_in_at_once(self: Any) -> None:
        world, _ = self.guarded()
        self.successResultOf(world.log_in(NAME, RIGHT))

    @only(*LOG_IN)
    def test_every_failure_takes_the_same_time(self: Any) -> None:
        """NB-04: an unknown name cannot be told from a wrong password, and both cost a second."""
        for name, password in ((NAME, "wrong"), ("nobody", RIGHT)):
            world, _ = self.guarded()
            refused = world.log_in(name, password)
            world.wait(0.9, 0.1)
            self.assertNoResult(refused)
            world.wait(0.3, 0.1)
            self.failureResultOf(refused)

    @only(*LOG_IN)
    def test_guesses_are_throttled(self: Any) -> None:
        """NB-04: of a hundred guesses at once most never reach the checker."""
        world, checker = self.guarded()
        for _ in range(10):
            refused = [world.log_in(NAME, "wrong", ELSEWHERE) for _ in range(10)]
            world.wait(1.2, 0.1)
            for one in refused:
                self.ignore(one)
        self.assertLessEqual(len(checker.asked), 40)

    @only(*LOG_IN)
    def test_wrong_passwords_from_elsewhere_do_not_shut_the_right_one_out(self: Any) -> None:
        """NB-05"""
        world, _ = self.guarded()
        for _ in range(25):
            self.ignore(world.log_in(NAME, "wrong", ELSEWHERE))
        world.wait(3)
        right = world.log_in(NAME, RIGHT, "192.0.2.7")
        world.wait(10)
        self.successResultOf(right)

    @only(*LOG_IN)
    def test_one_client_with_an_old_password_does_not_shut_its_address_out(self: Any) -> None:
        """NB-05"""
        world, _ = self.guarded()
        for _ in range(25):
            self.ignore(world.log_in("old", "old", ELSEWHERE))
        world.wait(3)
        right = world.log_in(NAME, RIGHT, ELSEWHERE)
        world.wait(10)
        self.successResultOf(right)

    @only(*LOG_IN)
    def test_a_check_that_never_answers_has_a_deadline_and_the_peer_is_told(self: Any) -> None:
        """HO-07"""
        world, _ = self.guarded(silent=True)
        waiting = world.log_in(NAME, RIGHT)
        world.wait(35)
        self.failureResultOf(waiting)
        self.assertEqual(len(world.factory.liveConnections), 0)


over_all(globals(), LogIn)
