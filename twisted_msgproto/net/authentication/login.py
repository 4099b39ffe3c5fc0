"""Who a client is: identities, and the portal that is asked, whose answers are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from math import ceil, inf
from typing import Any, Final, NamedTuple, Protocol

from cryptography import x509
from cryptography.x509.oid import NameOID
from twisted.cred.checkers import ANONYMOUS
from twisted.cred.credentials import Anonymous, IAnonymous, ICredentials, IUsernamePassword
from twisted.cred.error import LoginFailed, UnauthorizedLogin, UnhandledCredentials
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface, implementer

from ...core.errors import shown
from ..factory import SessionFactory, expect
from ..logs import LOGINS
from .throttle import Attempt, Throttle


class IIdentity(Interface):
    """This avatar stands for a client that may log in."""

    name = Attribute("Who it is, as text; None for an anonymous one.")


class Identity(Protocol):
    """What :class:`IIdentity` says, for types."""

    @property
    def name(self) -> str | None:
        """Return who it is; None for an anonymous one."""


@implementer(IIdentity)
class NamedIdentity:
    def __init__(self, name: str | None) -> None:
        self.name = name


class IdentityRealm:
    """In this realm everybody is known by the name that the checker returned."""

    def requestAvatar(
        self, avatarId: Any, mind: object, *interfaces: Any
    ) -> tuple[Any, Identity, Callable[[], None]]:
        if IIdentity not in interfaces:
            raise NotImplementedError("only IIdentity")
        if avatarId is ANONYMOUS:
            return IIdentity, NamedIdentity(None), lambda: None
        if not (avatarId and isinstance(avatarId, bytes | str)):
            raise TypeError(f"a checker returned {avatarId!r}; it returns a name, or fails")
        name = avatarId.decode("utf-8", "replace") if isinstance(avatarId, bytes) else avatarId
        return IIdentity, NamedIdentity(name), lambda: None


@implementer(IUsernamePassword)
class Passcode:
    """A name and a password; ``repr`` shows neither, and they are compared in constant time."""

    def __init__(self, username: str, password: str) -> None:
        self.username = username.encode()
        self.password = password.encode()

    def checkPassword(self, password: bytes | str) -> bool:
        data = password.encode() if isinstance(password, str) else password
        return compare_digest(self.password, data)

    def __repr__(self) -> str:
        return "Passcode(…)"


def name_in(credentials: ICredentials) -> str | None:
    name = getattr(credentials, "username", None)
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def portal_over(checkers: Iterable[Any]) -> Portal | None:
    """Return a portal that asks these checkers and knows clients by name; None if there are none.

    ``serve`` and the factories take it as ``portal``.
    """
    checkers = list(checkers)
    return Portal(IdentityRealm(), checkers) if checkers else None  # type: ignore[arg-type]


_Kind = type[x509.UniformResourceIdentifier] | type[x509.DNSName] | type[x509.RFC822Name]

ALTERNATIVES: Final[dict[str, _Kind]] = {
    "URI": x509.UniformResourceIdentifier,
    "DNS": x509.DNSName,
    "email": x509.RFC822Name,
}
"""These of a certificate's alternative names stand for its holder, the first kind first."""


def certificate_name(certificate: Any) -> str:
    """Return the name of whoever holds a certificate (OpenSSL's object); it is never empty.

    That is the subject, most specific part last, if it has a common name:
    ``O=Example,CN=web-1``; else the first alternative name of the first kind there is:
    ``URI:spiffe://example/web-1``, ``DNS:web-1``, ``email:web-1@example``; else what nobody else
    of this issuer has: ``serial:CN=Example CA/1f03`` (issuers of one name are one).  Parts of a
    subject are written as RFC 4514 has it: each begins with its type and ``=``, and a comma within
    a value is escaped, so that no subject passes for another one, or for a name of another form.
    What cannot be read is taken for absent; if nothing can, or the issuer has no name, it is the
    fingerprint: ``sha256:9f86…``.
    """
    for naming in (_subject, _alternative, _serial):
        # Authorities sign texts which are not in their type's encoding, and kinds of names which
        # no library knows; the library has several exceptions for these.
        with suppress(Exception):
            if name := naming(certificate.to_cryptography()):
                return name
    fingerprint: bytes = certificate.digest("sha256")
    return "sha256:" + fingerprint.decode().replace(":", "").lower()


def _subject(parsed: x509.Certificate) -> str:
    names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return _parts(parsed.subject) if any(str(name.value).strip() for name in names) else ""


def _alternative(parsed: x509.Certificate) -> str:
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    for form, kind in ALTERNATIVES.items():
        for name in names.get_values_for_type(kind):
            if name.strip():
                return f"{form}:{name}"
    return ""


def _serial(parsed: x509.Certificate) -> str:
    issuer = _parts(parsed.issuer)
    return f"serial:{issuer}/{parsed.serial_number:x}" if issuer else ""


def _parts(name: x509.Name) -> str:
    return ",".join(part.rfc4514_string() for part in name.rdns)


class LoggedIn(NamedTuple):
    name: str | None
    avatar: Any
    logout: Callable[[], Any]


# ── log in ──────────────────────────────────────────────────────────────────────────────────────


audit = Logger(namespace="twisted_msgproto.authentication.audit")

WRONG: Final = "wrong"
NOT_TRIED: Final = "not checked"
UNFINISHED: Final = "unfinished"

_WHY: Final = {
    WRONG: "name and password do not fit",
    NOT_TRIED: "not checked, since too many have failed (limit login-rate)",
    UNFINISHED: "the client did not wait for the answer",
}


log = Logger(namespace="twisted_msgproto.authentication")

NUL: Final = "\0"  # in no user's name: systems raise ValueError, and that is no checker's fault


@dataclass(slots=True, eq=False)
class _Visit:
    credentials: ICredentials
    address: str
    name: str | None
    attempt: Attempt | None = None  # None: nothing of it can be guessed
    begun: float = 0.0
    asked: Deferred[Any] | None = None
    call: Any = None  # the answer, when its time has come
    answer: Deferred[LoggedIn] | None = None  # None: the client has gone


def expected_portal(portal: Portal) -> Portal:
    if not isinstance(portal, Portal):
        raise TypeError(f"portal: a Portal is expected, not {type(portal).__name__}")
    return portal


class Authentication:
    """The way to a portal: guesses are delayed, and each failure is answered in the same way.

    The factory counts ``logins``, ``logins_waited``, ``login_failures`` (all that were refused) and
    ``logins_not_checked`` (those of them that no checker was asked about).

    Attributes:
        portal: whom it asks.
    """

    def __init__(self, portal: Portal, factory: SessionFactory, handShake: float = inf) -> None:
        """Authenticate for one server, whose limits contain :data:`.LOGIN_LIMITS`; a client has to
        be answered within ``handShake`` seconds, and no login waits longer.
        """
        self.portal: Portal = expected_portal(portal)
        self._factory = factory
        self._clock = factory.clock
        self._throttle = Throttle(factory.limits, handShake)
        self._waiting: dict[Attempt, _Visit] = {}
        self._deciding = False
        self._timer: Any = None
        self._due_at = inf

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def anonymous(self) -> bool:
        return IAnonymous in self.portal.listCredentialsInterfaces()

    def credentials(self, name: str | None, password: str | None) -> ICredentials:
        """Return what a client shows; one without a password is anonymous where that is allowed."""
        if (name is None or password is None) and self.anonymous:
            return Anonymous()
        return Passcode(name or "", password or "")

    def login(
        self,
        credentials: ICredentials,
        address: str,
        name: str | None = None,
        within: float = inf,
    ) -> Deferred[LoggedIn]:
        """Check credentials.  The Deferred fires with the login, and fails with UnauthorizedLogin,
        whatever was wrong.

        The failure comes ``login-delay`` after the check, or as much later as the checker needs.
        Failures are counted for ``address`` (an IP address as text; "" if there is none) and for
        ``name`` (None: the name in the credentials).  The client has to be answered ``within`` this
        many seconds: a login that cannot be checked by then is refused.  Cancel it when the client
        has gone.
        """
        visit = _Visit(credentials, address, name_in(credentials) if name is None else name)
        answer: Deferred[LoggedIn] = Deferred(partial(self._gone, visit))
        visit.answer = answer
        now = self._clock.seconds()
        if IAnonymous.providedBy(credentials):
            self._check(visit)
        else:
            visit.attempt = self._throttle.arrive(address, visit.name or "", now, within)
            self._waiting[visit.attempt] = visit
            self._decide()
            if visit.attempt in self._waiting:
                self._count("logins_waited")
        return answer

    # ── who is checked when ─────────────────────────────────────────────────────────────────────

    def _decide(self) -> None:
        if self._deciding:  # a checker or a client's callback came back: the loop below goes on
            return
        self._deciding = True
        try:
            while decided := self._throttle.poll(self._clock.seconds()):
                for attempt, check in decided:
                    visit = self._waiting.pop(attempt, None)
                    if visit is None:  # it has gone meanwhile, in a callback of another one's
                        if check:
                            self._throttle.unchecked(attempt)
                    elif check:
                        self._check(visit)
                    else:
                        self._count("logins_not_checked")
                        visit.begun = self._clock.seconds()
                        self._refuse(visit, NOT_TRIED)
        finally:
            self._deciding = False
            self._arm()

    def _arm(self) -> None:
        at = self._throttle.deadline
        if at == self._due_at:
            return
        call, self._timer, self._due_at = self._timer, None, at
        if call is not None:
            call.cancel()
        if at < inf:
            self._timer = self._clock.callLater(max(0.0, at - self._clock.seconds()), self._due)

    def _due(self) -> None:
        self._timer, self._due_at = None, inf
        self._decide()

    def _check(self, visit: _Visit) -> None:
        visit.begun = self._clock.seconds()
        visit.asked = maybeDeferred(self._ask, visit.credentials)
        visit.asked.addCallback(self._named)
        visit.asked.addCallbacks(
            self._accepted, self._rejected, callbackArgs=(visit,), errbackArgs=(visit,)
        )
        visit.asked.addErrback(lambda failure: log.failure("a login failed", failure))

    def _ask(self, credentials: ICredentials) -> Deferred[Any]:
        name = name_in(credentials)
        if name is not None and NUL in name:
            raise UnauthorizedLogin
        asked: Deferred[Any] = self.portal.login(credentials, None, IIdentity)
        return asked

    # ── outcomes ────────────────────────────────────────────────────────────────────────────────

    def _named(self, accepted: tuple[Any, Any, Callable[[], Any]]) -> LoggedIn:
        _, avatar, logout = accepted
        name = avatar.name
        expect("the name of an avatar", name, "a text or None", isinstance(name, str | None))
        return LoggedIn(name, avatar, logout)

    def _accepted(self, login: LoggedIn, visit: _Visit) -> None:
        if visit.attempt is not None:
            self._throttle.succeeded(visit.attempt, self._clock.seconds())
        answer, visit.answer = visit.answer, None
        if answer is None:  # the checker answered all the same
            maybeDeferred(login.logout).addErrback(
                lambda failure: log.failure("a logout failed", failure)
            )
        else:
            self._count("logins")
            answer.callback(login)
        if visit.attempt is not None:
            self._decide()

    def _rejected(self, failure: Failure, visit: _Visit) -> None:
        if visit.attempt is not None:
            self._throttle.failed(visit.attempt, self._clock.seconds())
        if visit.answer is None:
            self._tell(visit, UNFINISHED)
        else:
            if not failure.check(LoginFailed, UnauthorizedLogin, UnhandledCredentials):
                log.failure("a checker failed", failure)
            self._refuse(visit, WRONG)
        if visit.attempt is not None:
            self._decide()

    def _refuse(self, visit: _Visit, why: str) -> None:
        """Answer after a multiple of the delay, which does not tell how long a checker needed."""
        self._tell(visit, why)
        now, delay = self._clock.seconds(), self._throttle.delay
        taken = now - visit.begun
        left = max(1, ceil(taken / delay - 1e-6)) * delay - taken if delay else 0.0
        visit.call = self._clock.callLater(max(0.0, left), self._fail, visit)

    def _tell(self, visit: _Visit, why: str) -> None:
        self._count("login_failures")
        self._factory.writeOf(
            audit,
            visit.address,
            "{peer}: login as {name} refused: {why}",
            topic=LOGINS,
            reason=why,
            peer=visit.address or "a client",
            name=shown(visit.name) if visit.name else "nobody",
            why=_WHY[why],
        )

    def _fail(self, visit: _Visit) -> None:
        visit.call = None
        answer, visit.answer = visit.answer, None
        assert answer is not None
        answer.errback(UnauthorizedLogin())

    def _gone(self, visit: _Visit, answer: Deferred[LoggedIn]) -> None:
        visit.answer = None
        call, visit.call = visit.call, None
        if call is not None:
            call.cancel()
        elif visit.asked is not None:
            visit.asked.cancel()
        elif visit.attempt is not None:
            self._waiting.pop(visit.attempt, None)
            self._throttle.leave(visit.attempt)
            self._decide()

    def _count(self, name: str) -> None:
        self._factory.counters.settled[name] += 1
