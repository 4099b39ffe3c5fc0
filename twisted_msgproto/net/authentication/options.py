"""These are the options of a server whose clients log in."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from twisted.cred.checkers import (
    ICredentialsChecker,
    InMemoryUsernamePasswordDatabaseDontUse,
)
from twisted.cred.credentials import IAnonymous, IUsernamePassword
from twisted.cred.portal import Portal
from twisted.cred.strcred import AuthOptionMixin
from twisted.python import usage

from ..options import ServerOptions
from .identities import portal_over

SCHEMES_WITHOUT_SECRETS: Final = frozenset({"file", "unix", "anonymous", "pam", "sshkey"})
"""The argument of these schemes of ``--auth`` is no secret: a file's name, or nothing."""


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _look_for_file(description: str) -> None:
    """Raise UsageError if a password file cannot be read: a server would refuse everybody."""
    scheme, _, path = description.partition(":")
    if scheme != "file":
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise usage.UsageError(f"--auth {description}: {error.strerror}") from None


class AuthenticationOptions(ServerOptions, AuthOptionMixin):
    """Adds ``--auth``, ``--help-auth`` and ``--help-auth-type`` to a server's options."""

    unnamed: ClassVar[str] = "without auth no client has a user's name"
    """This is what to know of users where nobody has to log in."""

    supportedInterfaces = (IUsernamePassword, IAnonymous)

    def __init__(self) -> None:
        super().__init__()
        self["auth"] = []

    def opt_auth(self, description: str) -> None:
        """Ask this checker of logins, as SCHEME or SCHEME:ARGUMENT (--help-auth lists them)."""
        _look_for_file(description)
        super().opt_auth(description)  # type: ignore[no-untyped-call]
        self["auth"].append(description)

    def doubtOfUsers(self) -> str | None:
        """Return why rules about users mean little here, if nobody has to log in."""
        return None if self.get("credCheckers") else self.unnamed

    @property
    def checkers(self) -> list[ICredentialsChecker]:
        """Return the checkers that were asked for, in order."""
        checkers: list[Any] = list(self.get("credCheckers", ()))
        for checker in checkers:
            if isinstance(checker, InMemoryUsernamePasswordDatabaseDontUse):
                # From the command line it gets text, while all credentials are octets.
                users: dict[Any, Any] = checker.users
                checker.users = {_octets(name): _octets(word) for name, word in users.items()}
        return checkers

    def portal(self) -> Portal | None:
        """Return a portal over them; None if there are none."""
        return portal_over(self.checkers)
