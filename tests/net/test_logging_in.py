"""Logging in: failures look alike and are never free; guesses wait, the right password gets in."""

from __future__ import annotations

import heapq
import hmac
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.cred.checkers import (
    AllowAnonymousAccess,
    ICredentialsChecker,
    InMemoryUsernamePasswordDatabaseDontUse,
)
from twisted.cred.credentials import CramMD5Credentials, IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.plugins.cred_unix import UNIXChecker
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface import implementer

from tests.tools.processes import Launcher
from twisted_msgproto import mtl
from twisted_msgproto.core.errors import Refused
from twisted_msgproto.net.authentication import (
    Authentication,
    IdentityRealm,
    PasswordFile,
    portal_over,
    throttle,
)
from twisted_msgproto.net.authentication import throttle as rules
from twisted_msgproto.net.authentication.throttle import Attempt, Throttle
from twisted_msgproto.sabc import SabcServerFactory


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

    def door(self, *checkers, line=throttle.LINE_MAX, **changes):
        self.patch(throttle, "LINE_MAX", line)
        portal = portal_over(checkers or (self.memory,))
        changes = {name.replace("_", "-"): value for name, value in changes.items()}
        factory = SabcServerFactory(clock=self.clock, limits=changes)
        self.counters = factory.counters
        return Authentication(portal, factory)

    def attempt(self, door, name, password, address="192.0.2.1"):
        return door.login(door.credentials(name, password), address, name)

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
        slow.asked[1].errback(UnauthorizedLogin())
        # A whole number of delays does not tell how long.
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
        self.assertEqual(self.counters["login_failures"], 1)
        self.assertEqual(self.flushLoggedErrors(), [])

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
        self.assertEqual(
            (self.counters["login_failures"], self.counters["logins_not_checked"]), (9, 3)
        )
        self.assertEqual(self.checks, 6)
        self.clock.advance(1)
        self.failureResultOf(answers[5], UnauthorizedLogin)

    def test_who_goes_before_the_answer_has_failed_all_the_same(self):
        """NB-04: to hang up before the answer comes does not make a guess free."""
        slow = Slow()
        door = self.door(slow)
        for _ in range(5):
            waiting = self.attempt(door, "bob", "x")
            waiting.cancel()
            self.failureResultOf(waiting, CancelledError)
        self.assertEqual((len(slow.asked), self.counters["login_failures"]), (5, 5))
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
        first.addCallback(lambda login: second.cancel() or login)
        names = []

        def again(login):
            names.append(login.name)
            if len(names) < 400:  # more than fit into each other's calls
                self.attempt(door, "bob", "secret").addCallback(again)

        first.addCallback(again)
        checks = self.checks
        self.clock.advance(1)
        self.failureResultOf(second, CancelledError)
        self.assertEqual(names, ["bob"] * 400)
        self.assertEqual(self.checks - checks, 400)

    def test_anonymous_logins_are_no_proof_of_a_name(self):
        """NB-05: they make no pair known, and are not throttled, since nothing can be guessed."""
        door = self.door(self.memory, AllowAnonymousAccess())
        for _ in range(50):
            self.successResultOf(self.attempt(door, "bob", None))
            self.attempt(door, "bob", "x").addErrback(lambda failure: None)
        self.assertEqual(self.counters["login_failures"], 5)
        self.clock.advance(100)

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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_users_stays_its_owners_whoever_changes_it(launch: Launcher) -> None:
    """The gateway's user has to read it."""
    users = launch.directory / "users"
    users.write_text("old:plain\n")
    os.chown(users, 4711, 4712)
    assert launch.run("passwd", users, "new", stdin="secret\n").returncode == 0
    assert (users.stat().st_uid, users.stat().st_gid) == (4711, 4712)


# ── which logins are checked ────────────────────────────────────────────────────────────────────


TOGETHER_MAX, KNOWN_FAILURES_MAX = 100, 5
WINDOW_SECONDS = 3600.0


START = 1_700_000_000.0
HERE, THERE = "192.0.2.7", "198.51.100.9"


class Town:
    """A throttle, time, and clients whose passwords are right or wrong.

    Attributes:
        waited: for each client which was let in or found wrong, how long it waited for its check.
        refused: those which no checker was asked about.
        full: how many of those had to go because the line was full.
    """

    def __init__(
        self,
        *,
        hand_shake: float = inf,
        check: float = 0.0,
        line: int = rules.LINE_MAX,
        **limits: Any,
    ) -> None:
        """``check``: the seconds which a checker takes; ``line``: how many logins may wait."""
        changes = {name.replace("_", "-"): value for name, value in limits.items()}
        self.limits = SabcServerFactory(clock=Clock(), limits=changes).limits
        with patch.object(rules, "LINE_MAX", line):
            self.throttle = Throttle(self.limits, hand_shake)
        self.now = START
        self.check = check
        self.clients: dict[Attempt, tuple[str, str, bool, float]] = {}
        self.outcomes: list[tuple[float, int, Attempt]] = []
        self.order = itertools.count()
        self.waited: dict[Attempt, float] = {}
        self.refused: dict[Attempt, float] = {}
        self.checks: list[tuple[float, str, str]] = []
        self.full = 0

    def arrive(self, address: str, name: str, right: bool = False, **more: float) -> Attempt:
        attempt = self.throttle.arrive(address, name, self.now, **more)
        self.clients[attempt] = (address, name, right, self.now)
        self.settle()
        return attempt

    def settle(self) -> None:
        while decided := self.throttle.poll(self.now):
            for attempt, checked in decided:
                address, name, _, arrived = self.clients[attempt]
                if checked:
                    self.waited[attempt] = self.now - arrived
                    self.checks.append((self.now, address, name))
                    heapq.heappush(
                        self.outcomes, (self.now + self.check, next(self.order), attempt)
                    )
                else:
                    self.refused[attempt] = self.now - arrived
                    self.full += self.refused[attempt] < self.throttle.wait
            self.happen()

    def happen(self) -> None:
        while self.outcomes and self.outcomes[0][0] <= self.now:
            _, _, attempt = heapq.heappop(self.outcomes)
            told = self.throttle.succeeded if self.clients[attempt][2] else self.throttle.failed
            told(attempt, self.now)

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = min(self.throttle.deadline, self.outcomes[0][0] if self.outcomes else inf)
            if due > until:
                break
            self.now = max(self.now, due)
            self.happen()
            self.settle()
        self.now = until

    @property
    def in_line(self) -> int:
        return len(self.clients) - len(self.waited) - len(self.refused)

    def check_all_is_free(self) -> None:
        """Nothing is held or remembered for good: five guesses of any address are checked again."""
        self.pass_time(WINDOW_SECONDS)
        assert not any(bucket.waiting for attempt in self.clients for bucket in attempt.own)
        self.check = 0.0
        for address in {address for address, *_ in self.clients.values()}:
            self.fail(address, f"fresh {address}", 5)
        for name in {name for _, name, *_ in self.clients.values()}:
            self.enter("203.0.113.200", name)

    def fail(self, address: str, name: str, times: int = 1) -> None:
        """So many wrong passwords, each of which is checked."""
        for _ in range(times):
            attempt = self.arrive(address, name)
            assert attempt in self.waited or self.check, "it was not checked"

    def enter(self, address: str, name: str) -> None:
        assert self.wait_of(self.arrive(address, name, right=True)) == 0

    def wait_of(self, attempt: Attempt) -> float | None:
        """How long it waits for its check; None: no checker is asked."""
        began = self.now
        while attempt not in self.waited and attempt not in self.refused:
            assert self.throttle.deadline < inf, "nothing will ever happen"
            self.pass_time(max(0.0, self.throttle.deadline - self.now))
            assert self.now - began < 1000
        return self.waited.get(attempt)


def others(count: int, first: int = 0) -> Iterable[str]:
    """Addresses, each a network of its own."""
    return (f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" for n in range(first, first + count))


def fail_from(count: int, name: str) -> Callable[[Town], None]:
    """Wrong passwords for ``name``, one from each of so many addresses."""

    def story(town: Town) -> None:
        for address in others(count):
            town.fail(address, name)

    return story


def known(failures: int, days: float = 0) -> Callable[[Town], None]:
    """``me`` has logged in from HERE, and then came wrong passwords."""

    def story(town: Town) -> None:
        town.enter(HERE, "me")
        for _ in range(failures):
            town.fail(HERE, "me")
            town.pass_time(1)
        town.pass_time(days * 86400)

    return story


def failing(address: str, name: str, times: int, then: float = 0) -> Callable[[Town], None]:
    def story(town: Town) -> None:
        town.fail(address, name, times)
        town.pass_time(then)

    return story


def both(*stories: Callable[[Town], None]) -> Callable[[Town], None]:
    def story(town: Town) -> None:
        for one in stories:
            one(town)

    return story


def waiting(count: int, name: str) -> Callable[[Town], None]:
    """So many more addresses which have failed before stand in line for ``name``."""

    def story(town: Town) -> None:
        for address in others(count):
            town.arrive(address, name)

    return story


WAITS = {
    "nobody has failed": (lambda town: None, HERE, "me", 0),
    "one failure": (failing(HERE, "me", 1), HERE, "me", 0),
    "as many failures as the address may have": (failing(HERE, "me", 5), HERE, "me", 1),
    "of another name": (failing(HERE, "you", 5), HERE, "me", 1),
    "a moment ago": (failing(HERE, "you", 5, 0.75), HERE, "me", 0.25),
    "in IPv6, from the same network": (failing("2001:db8::1", "x", 5), "2001:db8::2", "me", 1),
    "from another network": (failing("2001:db8::1", "x", 5), "2001:db8:0:1::1", "me", 0),
    "from an IPv4 address as IPv6 shows it": (failing(HERE, "x", 5), f"::ffff:{HERE}", "me", 1),
    "on this machine, for another name": (failing("127.0.0.1", "x", 5), "127.0.0.1", "me", 0),
    "on this machine, for this name": (failing("127.0.0.1", "me", 5), "127.0.0.1", "me", 1),
    "on a Unix socket": (failing("", "me", 5), "", "me", 1),
    "from elsewhere": (failing(THERE, "me", 5), HERE, "me", 0),
    "from everywhere": (fail_from(20, "me"), HERE, "me", 1),
    "from everywhere, spelled otherwise": (
        fail_from(20, " Ｍ" + "E" * 253), HERE, "m" + "e" * 253, 1,
    ),
    "from everywhere, with a name that no file has": (
        fail_from(20, " Ｍ" + "E" * 254), HERE, "m" + "e" * 254, 0,
    ),
    "from everywhere, and others wait": (
        both(fail_from(20, "me"), waiting(20, "me")), HERE, "me", 1,
    ),
    "from everywhere, for another name": (fail_from(20, "you"), HERE, "me", 0),
    "who has logged in from here": (
        both(known(0), fail_from(20, "me"), failing(HERE, "x", 5)), HERE, "me", 0,
    ),
    "and then failed sometimes": (
        both(known(KNOWN_FAILURES_MAX - 1), fail_from(20, "me"), failing(HERE, "x", 5)),
        HERE, "me", 0,
    ),
    "and then too often": (both(known(KNOWN_FAILURES_MAX), failing(HERE, "x", 5)), HERE, "me", 1),
    "and then failed, and logged in again": (
        both(known(4), known(4), failing(HERE, "x", 5)), HERE, "me", 0,
    ),
    "29 days ago": (both(known(0, 29), failing(HERE, "x", 5)), HERE, "me", 0),
    "31 days ago": (both(known(0, 31), failing(HERE, "x", 5)), HERE, "me", 1),
    "from elsewhere only": (both(known(0), fail_from(20, "me")), THERE, "me", 1),
}  # fmt: skip
"""What has happened → who comes, and how many seconds it waits for its check."""


@pytest.mark.parametrize("story", WAITS)
def test_who_waits_how_long(story: str) -> None:
    """NB-05"""
    happens, address, name, seconds = WAITS[story]
    town = Town()
    happens(town)
    waited = town.wait_of(town.arrive(address, name, right=True))
    assert waited == pytest.approx(seconds, abs=1e-5)


def test_a_name_under_attack_is_checked_at_the_end_of_the_wait_from_a_clean_address() -> None:
    """NB-05: the tokens of a name are used up by others; those of an address are its own."""
    town = Town(login_rate=0.001)
    fail_from(20, "me")(town)
    assert town.wait_of(town.arrive(HERE, "me", right=True)) == pytest.approx(8)
    town = Town(login_rate=0.001)
    fail_from(20, "me")(town)
    town.fail(HERE, "you", 5)
    late = town.arrive(HERE, "me", right=True)
    assert town.wait_of(late) is None
    assert town.refused[late] == pytest.approx(8)


def test_the_line_is_bounded_and_those_with_most_failures_have_to_go() -> None:
    """NB-05: who is refused because the line is full is the attacker."""
    for town, line in ((Town(), 100), (Town(line=10), 10)):
        fail_from(20, "me")(town)
        guesses = [town.arrive(address, "me") for address in others(2 * line)]
        assert town.in_line == line
        assert sum(guess in town.refused for guess in guesses) == line
    right = town.arrive(HERE, "me", right=True)
    assert town.in_line == line
    assert town.wait_of(right) == pytest.approx(1)


def test_a_crowd_that_was_refused_once_gives_way_to_who_was_not() -> None:
    """NB-05: most of its addresses have never failed, since nobody was asked about them."""
    town = Town(line=10)
    fail_from(20, "me")(town)
    crowd = list(others(40, 100))
    for address in crowd:
        town.arrive(address, "me")
    town.pass_time(8.5)
    for address in crowd:
        town.arrive(address, "me")
    assert town.wait_of(town.arrive(HERE, "me", right=True)) is not None


def test_one_address_does_not_fill_the_line_of_others() -> None:
    """NB-05: its places count like failures."""
    town = Town(line=10)
    town.fail("203.0.113.1", "me")  # so that not all are checked together
    town.check = 100.0
    for address in others(19):
        town.arrive(address, "me")
    crowd = [town.arrive(THERE, "me") for _ in range(10)]
    assert not town.refused
    single = [town.arrive(address, "me") for address in others(5, 50)]
    assert not any(one in town.refused for one in single)
    assert sum(one in town.refused for one in crowd) == 5


def test_a_crowd_is_checked_together_until_one_of_it_fails() -> None:
    """A checker which takes its time does not make a restart's clients fail."""
    town = Town(check=0.05)
    crowd = [town.arrive(THERE, f"agent-{number}", right=True) for number in range(190)]
    assert len(town.waited) == TOGETHER_MAX
    town.pass_time(1)
    assert all(one in town.waited for one in crowd)
    town = Town(check=0.05)
    for _ in range(500):
        town.arrive(THERE, "me")
    town.pass_time(0.05)  # all of the first have failed, and their tokens are used up
    assert len(town.waited) == TOGETHER_MAX
    town.pass_time(5.01)
    assert len(town.waited) == TOGETHER_MAX + 5


def test_who_has_gone_gives_its_place_back() -> None:
    town = Town()
    town.fail(THERE, "me", 5)
    first, second = town.arrive(THERE, "me"), town.arrive(THERE, "me", right=True)
    town.throttle.leave(first)
    town.throttle.leave(first)
    assert town.wait_of(second) == pytest.approx(1)
    # one which holds tokens of its address and waits for its name
    fail_from(20, "you")(town)
    held = town.arrive(HERE, "you")
    assert held.held
    town.throttle.leave(held)
    assert town.throttle.deadline == inf
    town.check_all_is_free()


def test_whoever_waits_comes_before_who_arrives_just_when_a_token_is_free() -> None:
    """NB-05: and not only once the timer has fired."""
    town = Town()
    town.fail(THERE, "me", 5)
    first = town.arrive(THERE, "me")
    town.now = town.throttle.deadline
    second = town.arrive(THERE, "old")
    assert first in town.waited
    assert second not in town.waited


def test_the_wait_is_within_the_hand_shake() -> None:
    """HO-07: the answer comes before the peer is told that it took too long."""
    town = Town(login_rate=0.001)
    town.fail(HERE, "me", 5)
    hurried = town.arrive(HERE, "me", within=3.0)
    assert town.wait_of(hurried) is None
    assert town.refused[hurried] == pytest.approx(2)  # and its answer a second later
    late = town.arrive(HERE, "me", within=0.5)
    assert late in town.refused
    town = Town(login_rate=0.001, hand_shake=6.0)
    fail_from(20, "me")(town)
    assert town.wait_of(town.arrive(HERE, "me", right=True)) == pytest.approx(4)
    # whoever lets its time run out before it asks gets no check by that
    assert town.wait_of(town.arrive(THERE, "me", right=True, within=2.0)) is None


# ── what is remembered ──────────────────────────────────────────────────────────────────────────


def test_a_flood_of_addresses_gives_nobody_new_tokens() -> None:
    """NB-05: who has used its own up and had to make room comes back poor."""
    town = Town(login_rate=0.5)
    town.fail(THERE, "me", 5)
    for number, address in enumerate(others(10_500)):
        town.fail(address, f"n{number}")
    town.pass_time(5.0)  # half of the time in which it has all of them again
    first, second = town.arrive(THERE, "me"), town.arrive(THERE, "me")
    assert first in town.waited
    assert town.wait_of(second) == pytest.approx(2, abs=0.1)


def test_addresses_that_a_name_is_known_from_are_bounded() -> None:
    """NB-05: the latest are known; one user's many addresses displace nobody else."""
    town = Town()
    town.enter(HERE, "me")
    addresses = list(others(50))
    for address in addresses:
        town.enter(address, "roams")
    pairs = [(HERE, "me"), *[(addresses[-number], "roams") for number in (1, 16, 17)]]
    for address, _ in pairs:
        town.fail(address, f"x of {address}", 5)
    waits = [town.wait_of(town.arrive(*pair, right=True)) for pair in pairs]
    assert waits == [0, 0, 0, pytest.approx(1)]


def test_pairs_that_are_known_are_bounded() -> None:
    """NB-05: the one that logged in longest ago makes room, and then its name is forgotten, too."""
    town = Town()
    for number in range(10_001):
        town.enter(HERE, f"n{number}")
    town.fail(HERE, "x", 5)
    waits = [town.wait_of(town.arrive(HERE, f"n{n}", right=True)) for n in (10_000, 1, 0)]
    assert waits == [0, 0, pytest.approx(1)]


# ── attacks ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("check", [0.0, 0.3], ids=["a quick checker", "a slow one"])
def test_of_one_address_a_guess_a_second_is_checked(check: float) -> None:
    """NB-04: 2,000 guesses in 20 seconds, for one name and for many."""
    for names in (["me"], [f"n{number}" for number in range(1000)]):
        town = Town(check=check)
        for number in range(2000):
            town.arrive(THERE, names[number % len(names)])
            town.pass_time(0.01)
        first = 5 if check == 0 else TOGETHER_MAX
        assert 20 <= len(town.checks) <= first + 20 + 1


def test_of_one_name_few_guesses_are_checked_wherever_they_come_from() -> None:
    """NB-04, NB-05: 2,000 guesses from 100 addresses in 20 seconds, and the right one meanwhile."""
    town = Town()
    town.enter(HERE, "me")
    attackers = list(others(100))
    for number in range(2_000):
        town.arrive(attackers[number % 100], "me")
        town.pass_time(0.01)
        if number % 500 == 250:
            assert town.wait_of(town.arrive(HERE, "me", right=True)) == 0
            newcomer = town.arrive(f"203.0.113.{number // 500}", "me", right=True)
            waited = town.wait_of(newcomer)
            assert waited is not None and waited <= 8
    guesses = len(town.checks) - 9
    most = 20 + 60 + 100 * (60 / 8)  # tokens, a token a second, a full line each eight seconds
    assert guesses <= most
    of_one = Counter(address for _, address, _ in town.checks)
    assert max(of_one.values()) <= 5 + 100


ARRIVAL = st.tuples(
    st.floats(0, 3),  # seconds since the one before
    st.sampled_from([*others(4), THERE, HERE, "127.0.0.1", "2001:db8::1"]),
    st.sampled_from(["me", "old", "x"]),
    st.booleans(),  # whether the password is right
    st.booleans(),  # whether the client goes away
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ARRIVAL, max_size=60), st.sampled_from([0.0, 0.2, 5.0]), st.sampled_from([3, 100]))
def test_the_right_password_gets_in_whatever_others_do(
    arrivals: list[tuple[float, str, str, bool, bool]], check: float, line: int
) -> None:
    """NB-05: from an address without failures within the wait, unless the line is full.

    And from a known pair at once.
    """
    town = Town(check=check, line=line)
    town.arrive("203.0.113.1", "me", right=True)
    town.pass_time(check)
    mine: list[tuple[float, Attempt]] = []
    for number, (pause, address, name, right, goes) in enumerate(arrivals):
        town.pass_time(pause)
        attempt = town.arrive(address, name, right)
        if goes:
            town.throttle.leave(attempt)
        if number % 5 == 0:
            mine.append((town.now, town.arrive(f"203.0.113.{number + 2}", "me", right=True)))
    home = town.arrive("203.0.113.1", "me", right=True)
    assert town.waited[home] == 0
    town.pass_time(100)
    for _, attempt in mine:
        if attempt in town.waited:
            assert town.waited[attempt] <= 8 + 1e-6
        else:
            assert attempt in town.refused
            assert town.full
            assert line == 3
    assert town.throttle.deadline == inf
    town.check_all_is_free()


class Files(TestCase):
    async def test_what_shows_no_password_is_checked_against_plain_ones_alone(self) -> None:
        file = Path(self.mktemp())
        hashed = "SCRAM-SHA-256${}:{}$YQ==:YQ=="
        lines = {f"{n}": hashed.format(n, "YQ==") for n in (0, 1, 10_000_000, 10_000_001)}
        lines |= {"odd": hashed.format(1, "Y==="), "old": "plain"}
        file.write_text("".join(f"{name}:{secret}\n" for name, secret in lines.items()))
        checker = PasswordFile(file)
        self.assertTrue(ICredentialsChecker.providedBy(checker))
        tries = [
            (name, secret.encode(), name not in ("1", "10000000")) for name, secret in lines.items()
        ]
        for user, secret, fits in (*tries, ("old", b"x", False), ("nobody", b"plain", False)):
            shown = CramMD5Credentials()
            challenge = shown.getChallenge()
            shown.username = user.encode()
            shown.response = hmac.new(secret, challenge, "md5").hexdigest().encode()
            if fits:
                self.assertEqual(await checker.requestAvatarId(shown), user.encode())
            else:
                with self.assertRaises(UnauthorizedLogin):
                    await checker.requestAvatarId(shown)

    async def test_a_stored_password_that_is_no_text_is_wrong_and_no_fault_of_it(self) -> None:
        portal = portal_over([InMemoryUsernamePasswordDatabaseDontUse(me=b"\xff")])
        async with mtl.serve("tcp://127.0.0.1:*", portal=portal) as server:
            with self.assertRaises(Refused):
                await mtl.connect(server.addresses[0], credentials=mtl.credentials("me", "x"))
        self.assertEqual(self.flushLoggedErrors(), [])
