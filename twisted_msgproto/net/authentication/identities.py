"""What a client shows, and who it turns out to be: credentials, avatars, a realm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hmac import compare_digest
from typing import Any, NamedTuple

from twisted.cred.checkers import ANONYMOUS
from twisted.cred.credentials import ICredentials, IUsernamePassword
from twisted.cred.portal import Portal
from zope.interface import Attribute, Interface, implementer


class IIdentity(Interface):
    """This avatar stands for a client that may log in."""

    name = Attribute("Who it is, as text; None for an anonymous one.")


@implementer(IIdentity)
class Identity:
    def __init__(self, name: str | None) -> None:
        self.name = name


class IdentityRealm:
    """In this realm, everybody whom a checker accepts is known by the name that the checker
    returned.
    """

    def requestAvatar(
        self, avatarId: Any, mind: object, *interfaces: Any
    ) -> tuple[Any, Identity, Callable[[], None]]:
        if IIdentity not in interfaces:
            raise NotImplementedError("only IIdentity")
        if avatarId is ANONYMOUS:
            return IIdentity, Identity(None), lambda: None
        name = avatarId.decode("utf-8", "replace") if isinstance(avatarId, bytes) else avatarId
        return IIdentity, Identity(str(name)), lambda: None


@implementer(IUsernamePassword)
class Passcode:
    """A name and a password.  They are compared in constant time, and ``repr`` shows
    neither.
    """

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
    checkers = list(checkers)
    return Portal(IdentityRealm(), checkers) if checkers else None  # type: ignore[arg-type]


class LoggedIn(NamedTuple):
    """A client has logged in; call ``logout`` when it leaves."""

    name: str | None
    avatar: Any
    logout: Callable[[], Any]
