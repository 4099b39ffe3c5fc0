"""Who a client is: twisted.cred behind one door, for every protocol which authenticates.

An operator names checkers with ``--auth`` (see ``--help-auth``), an application passes a Portal of
its own.  A protocol makes credentials and asks :class:`Authentication`, which gives every failure
the same face: the same answer, after the same time, whatever was wrong.  A slow checker or a full
list of failures tells nobody whether a name exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hmac import compare_digest
from typing import Any, Final, NamedTuple

from twisted.cred.checkers import (
    ANONYMOUS,
    ICredentialsChecker,
    InMemoryUsernamePasswordDatabaseDontUse,
)
from twisted.cred.credentials import Anonymous, IAnonymous, ICredentials, IUsernamePassword
from twisted.cred.error import LoginFailed, UnauthorizedLogin, UnhandledCredentials
from twisted.cred.portal import Portal
from twisted.cred.strcred import AuthOptionMixin
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface, implementer

from ..core.limits import Limit, Limits
from .options import ServerOptions

log = Logger(namespace="twisted_msgproto.authentication")

LOGIN_LIMITS: Final = (
    Limit("login-delay", 1.0, "s", "from a failed login's arrival to its answer"),
    Limit("login-failures", 20, "failures", "of an address or a name in login-window", 1),
    Limit("login-window", 60.0, "s", "after so long a failed login is forgotten", 0.001),
)
"""What every protocol which authenticates bounds; part of its ``LIMITS``."""

REMEMBERED_MAX: Final = 10_000
"""Of so many addresses and names failures are remembered; the oldest make room."""


class IIdentity(Interface):
    """The avatar: a client who may come in."""

    name = Attribute("Who it is, as text; None for an anonymous one.")


@implementer(IIdentity)
class Identity:
    """An avatar which is a name and no more."""

    def __init__(self, name: str | None) -> None:
        self.name = name


class IdentityRealm:
    """A realm in which everybody whom a checker accepts is known by the name it gave."""

    def requestAvatar(
        self, avatarId: Any, mind: object, *interfaces: Any
    ) -> tuple[Any, Identity, Callable[[], None]]:
        """The identity of ``avatarId``."""
        if IIdentity not in interfaces:
            raise NotImplementedError("only IIdentity")
        if avatarId is ANONYMOUS:
            return IIdentity, Identity(None), lambda: None
        name = avatarId.decode("utf-8", "replace") if isinstance(avatarId, bytes) else avatarId
        return IIdentity, Identity(str(name)), lambda: None


@implementer(IUsernamePassword)
class Passcode:
    """A name and a password, compared in constant time; neither shows in ``repr``."""

    def __init__(self, username: str, password: str) -> None:
        self.username = username.encode()
        self.password = password.encode()

    def checkPassword(self, password: bytes | str) -> bool:
        """Whether it is this password."""
        octets = password.encode() if isinstance(password, str) else password
        return compare_digest(self.password, octets)

    def __repr__(self) -> str:
        return "Passcode(…)"


def portal_over(checkers: Iterable[Any]) -> Portal | None:
    """A portal which asks ``checkers``; None if there are none: nobody has to log in."""
    checkers = list(checkers)
    return Portal(IdentityRealm(), checkers) if checkers else None  # type: ignore[arg-type]


class LoggedIn(NamedTuple):
    """A client who may come in; call ``logout`` when it leaves."""

    name: str | None
    avatar: Any
    logout: Callable[[], Any]


class Authentication:
    """Asks a portal, and gives each failure the same face.

    Attributes:
        portal: whom it asks; it gives avatars for :class:`IIdentity`.
        failures: how many logins failed.
        throttled: how many of those were not tried: too many had failed before.
    """

    def __init__(self, portal: Portal, clock: Any, limits: Limits) -> None:
        """``limits`` contain :data:`LOGIN_LIMITS`; ``clock`` gives the time."""
        self.portal = portal
        self._clock = clock
        self._delay = limits["login-delay"]
        self._failures_max = limits.integer("login-failures")
        self._window = limits["login-window"]
        self._failed: dict[str, tuple[int, float]] = {}  # count, and when it is forgotten
        self.failures = 0
        self.throttled = 0

    @property
    def anonymous(self) -> bool:
        """Whether the portal lets anybody in who gives no password."""
        return IAnonymous in self.portal.listCredentialsInterfaces()

    def credentials(self, name: str | None, password: str | None) -> ICredentials:
        """What a client shows; one without a password is anonymous where that is allowed."""
        if (name is None or password is None) and self.anonymous:
            return Anonymous()
        return Passcode(name or "", password or "")

    def login(
        self, credentials: ICredentials, address: str, name: str | None
    ) -> Deferred[LoggedIn]:
        """Who it is; fails with UnauthorizedLogin ``login-delay`` after now, whatever was wrong.

        ``address`` and ``name`` are what failures are counted for.  Cancel it when the client
        has gone.
        """
        arrived = self._clock.seconds()
        waiting: list[Any] = []  # the delayed call, once there is one
        gone = False

        def cancel(answer: Deferred[LoggedIn]) -> None:
            nonlocal gone
            gone = True
            for call in waiting:
                call.cancel()
            asked.cancel()

        answer: Deferred[LoggedIn] = Deferred(cancel)
        keys = [f"address {address}"] + ([] if name is None else [f"name {name}"])
        if any(self._count(key, arrived) >= self._failures_max for key in keys):
            self.throttled += 1
            asked: Deferred[Any] = Deferred()
            asked.errback(UnauthorizedLogin())
        else:
            asked = maybeDeferred(self.portal.login, credentials, None, IIdentity)

        def accepted(result: tuple[Any, Any, Callable[[], Any]]) -> None:
            if gone:  # the checker answered all the same
                result[2]()
            else:
                answer.callback(LoggedIn(result[1].name, result[1], result[2]))

        def refused(failure: Failure) -> None:
            if gone:
                return
            if not failure.check(LoginFailed, UnauthorizedLogin, UnhandledCredentials):
                log.failure("a checker failed", failure)
            self.failures += 1
            for key in keys:
                self._remember(key)
            left = max(0.0, arrived + self._delay - self._clock.seconds())
            waiting.append(self._clock.callLater(left, fail))

        def fail() -> None:
            waiting.clear()
            answer.errback(UnauthorizedLogin())

        asked.addCallbacks(accepted, refused)
        asked.addErrback(lambda failure: log.failure("a login failed", failure))
        return answer

    def _count(self, key: str, now: float) -> int:
        count, forgotten = self._failed.get(key, (0, 0.0))
        return count if now < forgotten else 0

    def _remember(self, key: str) -> None:
        now = self._clock.seconds()
        count = self._count(key, now)
        self._failed.pop(key, None)
        self._failed[key] = (count + 1, now + self._window)
        if len(self._failed) > REMEMBERED_MAX:
            del self._failed[next(iter(self._failed))]


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


class AuthenticationOptions(ServerOptions, AuthOptionMixin):
    """Server options with ``--auth``, ``--help-auth`` and ``--help-auth-type``."""

    supportedInterfaces = (IUsernamePassword, IAnonymous)

    @property
    def checkers(self) -> list[ICredentialsChecker]:
        """The checkers which were asked for, in order."""
        checkers: list[Any] = list(self.get("credCheckers", ()))
        for checker in checkers:
            if isinstance(checker, InMemoryUsernamePasswordDatabaseDontUse):
                # From the command line it gets text, while all credentials are octets.
                users: dict[Any, Any] = checker.users
                checker.users = {_octets(name): _octets(word) for name, word in users.items()}
        return checkers

    def portal(self) -> Portal | None:
        """A portal over them; None if there are none."""
        return portal_over(self.checkers)
