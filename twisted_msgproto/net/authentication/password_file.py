"""A file of users holds what checks a password, and not the password.

A line is ``NAME:SCRAM-SHA-256$ROUNDS:SALT$STOREDKEY:SERVERKEY`` with base64 in the last three, as
PostgreSQL stores it: PLAIN and SCRAM-SHA-256 (RFC 5802) can both be checked with it.  Lines of the
form ``NAME:PASSWORD`` are read, too.  Empty lines and those that begin with ``#`` are left alone.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stringprep
import unicodedata
from base64 import b64decode, b64encode
from codecs import BOM_UTF8
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import IUsernameHashedPassword, IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import Deferred, DeferredSemaphore, maybeDeferred
from twisted.internet.threads import deferToThread
from zope.interface import implementer

from ...core.errors import ConfigurationError
from ...core.loading import EDITED
from ..process import alone_in
from .throttle import NAME_BYTES_MAX

ROUNDS: Final = 100_000  # 25 ms for whoever guesses, and for a client of SCRAM
ROUNDS_MAX: Final = 10_000_000  # seconds: a line with more is a slip of the pen
SALT_BYTES: Final = 32  # as many as the salts of names that nobody has
CHECKS_AT_ONCE: Final = 2  # log-ins never take all processors

HASHED: Final = re.compile(r"SCRAM-SHA-256\$(\d+):([\w+/=]+)\$([\w+/=]+):([\w+/=]+)", re.ASCII)


class Keys(NamedTuple):
    rounds: int
    salt: bytes
    stored: bytes
    server: bytes

    @classmethod
    def of(cls, password: str, salt: bytes, rounds: int = ROUNDS) -> Keys:
        """Compute them; it takes ``rounds`` rounds of SHA-256, outside of Python's lock."""
        salted = hashlib.pbkdf2_hmac("sha256", _prepared(password).encode(), salt, rounds)
        client = hmac.digest(salted, b"Client Key", "sha256")
        server = hmac.digest(salted, b"Server Key", "sha256")
        return cls(rounds, salt, hashlib.sha256(client).digest(), server)

    def line(self) -> str:
        salt, stored, server = (b64encode(part).decode() for part in self[1:])
        return f"SCRAM-SHA-256${self.rounds}:{salt}${stored}:{server}"


def _prepared(password: str) -> str:
    """Return a password as SASLprep (RFC 4013) maps it: all keyboards write the same one."""
    mapped = (
        " " if stringprep.in_table_c12(one) else one
        for one in password
        if not stringprep.in_table_b1(one)
    )
    return unicodedata.normalize("NFKC", "".join(mapped))


def _parsed(secret: str) -> Keys | str:
    match = HASHED.fullmatch(secret)
    if match is None or not 0 < int(match[1]) <= ROUNDS_MAX:
        return secret
    try:
        return Keys(int(match[1]), *(b64decode(part, validate=True) for part in match.groups()[1:]))
    except ValueError:
        return secret


def read_users(path: str | os.PathLike[str]) -> dict[str, Keys | str]:
    try:
        text = Path(path).read_bytes().decode(EDITED, "surrogateescape")
    except OSError as error:
        raise ConfigurationError(f"password file {path}: {error.strerror}") from None
    users: dict[str, Keys | str] = {}
    for line in text.split("\n"):
        name, colon, secret = line.removesuffix("\r").partition(":")
        if colon and name and not name.startswith("#"):
            users.setdefault(name, _parsed(secret))
    return users


def write_user(path: str | os.PathLike[str], name: str, password: str | None) -> bool:
    """Set a user's password, or remove the user (None); return whether the file had that user.

    The file is replaced as a whole, readable by its owner alone, and then on disk.
    """
    if not name.isprintable() or ":" in name:  # what is not UTF-8 is not printable, either
        raise ConfigurationError(f"a user's name has no : and no control characters: {name!r}")
    if not name or name.startswith("#") or len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigurationError(
            f"a user's name has 1 to {NAME_BYTES_MAX} bytes and does not begin with #: {name!r}"
        )
    start = name.encode() + b":"
    new = []
    if password is not None:
        try:
            keys = Keys.of(password, secrets.token_bytes(SALT_BYTES))
        except UnicodeEncodeError:
            raise ConfigurationError("the password is not UTF-8; nothing is changed") from None
        new = [start + keys.line().encode() + b"\n"]
    file = Path(os.path.realpath(path))
    if file.exists() and not file.is_file():
        raise ConfigurationError(f"{path} is no file that could be replaced: name another one")
    with alone_in(file.parent) as folder:
        return _replaced(file, folder, start, new)


def _replaced(file: Path, folder: int, start: bytes, new: list[bytes]) -> bool:
    content = b""
    with suppress(FileNotFoundError):
        content = file.read_bytes().removeprefix(BOM_UTF8).removesuffix(b"\n")
    kept = [line + b"\n" for line in content.split(b"\n")] if content else []
    places = [number for number, line in enumerate(kept) if line.startswith(start)]
    for place in reversed(places):
        del kept[place]
    at = places[0] if places else len(kept)
    kept[at:at] = new
    part = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "wb") as out:
            if file.exists():  # the gateway's user, who reads it, may be another one
                with suppress(PermissionError):
                    os.fchown(descriptor, file.stat().st_uid, file.stat().st_gid)
            out.writelines(kept)
            out.flush()
            os.fsync(descriptor)
        os.replace(part, file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    os.fsync(folder)
    return bool(places)


@implementer(ICredentialsChecker)
class PasswordFile:
    """Checks log-ins against a file that ``msgproto passwd`` writes; it is read again when changed.

    Keys are computed in threads, two at once.
    """

    credentialInterfaces: ClassVar[tuple[Any, ...]] = (IUsernamePassword, IUsernameHashedPassword)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.path.abspath(path)
        self._seen: tuple[int, ...] = ()
        self._users: Mapping[str, Keys | str] = {}
        self._checks = DeferredSemaphore(CHECKS_AT_ONCE)

    @property
    def users(self) -> Mapping[str, Keys | str]:
        """What the file has now; raises ConfigurationError if it cannot be read."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise ConfigurationError(f"password file {self.path}: {error.strerror}") from None
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            self._users, self._seen = read_users(self.path), seen
        return self._users

    def keys_of(self, user: str) -> Keys | None:
        """Return what SCRAM needs of a user; None without one, or if the password is plain."""
        found = self.users.get(user)
        return found if isinstance(found, Keys) else None

    @property
    def rounds(self) -> int:
        """How many rounds the users of this file have: whoever is unknown seems to have them."""
        return next((k.rounds for k in self.users.values() if isinstance(k, Keys)), 0)

    def requestAvatarId(self, credentials: Any) -> Any:
        """Return a Deferred that fires with the user's name, or fails with UnauthorizedLogin."""
        return maybeDeferred(self._check, credentials)

    def _check(self, credentials: Any) -> Deferred[bytes]:
        username: bytes = credentials.username
        known = self.users.get(username.decode(EDITED, "surrogateescape"))
        check: Deferred[bool] = self._checks.run(deferToThread, self._fits, credentials, known)

        def answer(fits: bool) -> bytes:
            if not fits:
                raise UnauthorizedLogin("name and password do not fit")
            return username

        return check.addCallback(answer)

    def _fits(self, credentials: Any, known: Keys | str | None) -> bool:
        if isinstance(known, str):
            plain = known.encode(errors="surrogateescape")
            return bool(credentials.checkPassword(plain))
        if hasattr(credentials, "checkKeys"):
            return known is not None and bool(credentials.checkKeys(known.stored, known.server))
        if not IUsernamePassword.providedBy(credentials):
            return False
        # Somebody nobody knows costs as much as somebody with a wrong password.
        keys = known or Keys(self.rounds or ROUNDS, b"", b"", b"")
        given: bytes = credentials.password
        made = Keys.of(given.decode(errors="replace"), keys.salt, keys.rounds)
        return hmac.compare_digest(made.stored, keys.stored)
