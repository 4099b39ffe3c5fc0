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
    def test_a_right_password_waits_for_its_check_and_its_client_is_patient(self: Any) -> None:
        """NB-05: its name is under attack from everywhere, and its own address is clean."""
        world, checker = self.guarded(login_rate=0.001)
        for number in range(24):
            self.ignore(world.log_in(NAME, "wrong", f"203.0.113.{number}"))
        self.assertEqual(len(checker.asked), 20)
        right = world.log_in(NAME, RIGHT)
        world.wait(7.8, 0.1)
        self.assertNoResult(right)
        world.wait(1, 0.1)
        self.successResultOf(right)
        again = world.log_in(NAME, RIGHT)  # it is known here now
        self.successResultOf(again)
        world.wait(10)

    @only(*LOG_IN)
    def test_a_login_that_waits_goes_with_its_client(self: Any) -> None:
        """NB-05: nothing of it is left on the clock, and no checker is asked."""
        world, checker = self.guarded(login_rate=0.001)
        for _ in range(8):
            self.ignore(world.log_in(NAME, "wrong", ELSEWHERE))
        self.assertEqual(len(checker.asked), 5)
        for peer in world.peers:
            peer.cut()
        world.pump()
        world.wait(0.5)
        self.assertEqual(world.factory.authentication.waiting, 0)
        world.wait(20)
        self.assertEqual(len(checker.asked), 5)

    @only(*LOG_IN)
    def test_each_refusal_is_a_line_that_does_not_show_the_secret(self: Any) -> None:
        """NB-04"""
        world, _ = self.guarded()
        for _ in range(40):
            self.ignore(world.log_in(NAME, "geheim", ELSEWHERE))
        world.wait(12)
        lines = [line for line in world.lines() if "login" in line]
        self.assertEqual(len(lines), 5)
        self.assertIn(f"{ELSEWHERE}: login as 'me' refused", lines[0])
        world.wait(60, 10)
        self.successResultOf(world.log_in(NAME, RIGHT))
        self.assertIn(f"{ELSEWHERE}: … and 35 more logins refused", world.lines()[-1])
        self.assertNotIn("geheim", repr(world.logged))
        self.assertEqual(world.factory.counters["login_failures"], 40)

    @only(*LOG_IN)
    def test_a_check_that_never_answers_has_a_deadline_and_the_peer_is_told(self: Any) -> None:
        """HO-07"""
        world, _ = self.guarded(silent=True)
        waiting = world.log_in(NAME, RIGHT)
        world.wait(35)
        self.failureResultOf(waiting)
        self.assertEqual(len(world.factory.liveConnections), 0)


over_all(globals(), LogIn)
