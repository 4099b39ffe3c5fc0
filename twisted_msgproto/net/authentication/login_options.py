"""These are the options of a server whose clients log in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from shlex import quote
from typing import Any, ClassVar, Final

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.credentials import IAnonymous, IUsernamePassword
from twisted.cred.portal import Portal
from twisted.cred.strcred import AuthOptionMixin, findCheckerFactories
from twisted.logger import Logger
from twisted.python import usage

from ...core.errors import ConfigurationError
from ...core.loading import closest
from ..options import ServerOptions, usage_errors
from ..reloading import Change
from .login import portal_over
from .password_file import read_users

log: Logger = Logger(namespace="twisted_msgproto.authentication")

FILE_SCHEMES: Final = ("file", "passwords")

SCHEMES_WITHOUT_SECRETS: Final = frozenset(
    {"file", "passwords", "unix", "anonymous", "pam", "sshkey"}
)
"""The argument of these schemes of ``--auth`` is no secret: a file's name, or nothing."""


def _look_for_file(description: str) -> str | None:
    """Return the path of a password file that has a user; None for another scheme."""
    scheme, _, path = description.partition(":")
    if scheme not in FILE_SCHEMES:
        return None
    if not os.path.exists(path):
        raise ConfigurationError(
            f"--auth {description}: No such file or directory;"
            f" msgproto passwd {quote(path)} NAME makes it"
        )
    if not read_users(path):
        raise ConfigurationError(
            f"--auth {description}: it has no user; msgproto passwd {quote(path)} NAME adds one"
        )
    return path


class AuthenticationOptions(ServerOptions, AuthOptionMixin):
    """A server's options with ``--auth``, ``--help-auth`` and ``--help-auth-type``."""

    unnamed: ClassVar[str] = "without auth no client has a user's name"

    supportedInterfaces: tuple[type[IUsernamePassword], type[IAnonymous]] = (
        IUsernamePassword,
        IAnonymous,
    )

    def __init__(self) -> None:
        super().__init__()
        self["auth"] = []

    def opt_auth(self, description: str) -> None:
        """Ask this checker of logins, as SCHEME or SCHEME:ARGUMENT (--help-auth lists them)."""
        with usage_errors():
            _look_for_file(description)
        kind = description.partition(":")[0]
        known = sorted(factory.authType for factory in findCheckerFactories())
        if kind not in known:
            raise usage.UsageError(
                f"--auth {kind}: there is no such checker{closest(kind, known)};"
                f" known: {', '.join(known)}; --help-auth says more"
            )
        super().opt_auth(description)  # type: ignore[no-untyped-call]
        self["auth"].append(description)
        checker = self["credCheckers"][-1]
        if isinstance(checker, InMemoryUsernamePasswordDatabaseDontUse):
            # From the command line it gets text, while all credentials are bytes.
            users: dict[Any, Any] = checker.users
            checker.users = {name.encode(): word.encode() for name, word in users.items()}

    @classmethod
    def located(cls, key: str, value: str, directory: str) -> str:
        scheme, colon, path = value.partition(":")
        if key == "auth" and colon and scheme in FILE_SCHEMES:
            return f"{scheme}:{os.path.join(directory, path)}"
        return super().located(key, value, directory)

    def reread(self) -> Iterator[Change]:
        """Check that the password files can be read; every login reads its file again."""
        yield from super().reread()
        for path in filter(None, map(_look_for_file, self["auth"])):
            yield Change(f"{self.protocolName}: passwords of {path}", lambda: None)

    def passwordWarning(self) -> str | None:
        plain = []
        for path in filter(None, map(_look_for_file, self["auth"])):
            users = read_users(path).values()
            count = sum(isinstance(secret, str) for secret in users)
            if count:
                plain.append(f"{count} of {len(users)} passwords in {path} are plain text")
        if not plain:
            return None
        return "; ".join(plain) + ": msgproto passwd FILE NAME and auth = passwords:FILE hash them"

    def authWarning(self) -> str | None:
        return None if self.get("credCheckers") else self.unnamed

    def portal(self) -> Portal | None:
        """Return what asks all these checkers; None without any: everybody may come in."""
        doubt = self.passwordWarning()
        if doubt is not None:
            log.warn("{server}: {doubt}", server=self.protocolName, doubt=doubt)
        return portal_over(self.get("credCheckers", ()))
