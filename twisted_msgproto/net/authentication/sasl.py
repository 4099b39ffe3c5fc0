"""SASL over twisted.cred serves every protocol that carries its responses (``MT-08``).

The server offers what its checkers can check: PLAIN for passwords, SCRAM-SHA-256 for checkers that
hand the stored password to the credentials (``IUsernameHashedPassword``: Twisted's memory and plain
file checkers do), ANONYMOUS where anonymous access is allowed.  Write a :class:`SaslMechanism` for
more.

Unknown users cannot be told from wrong passwords: SCRAM's salt depends on the name in the same way
for both, and :class:`~twisted_msgproto.net.authentication.Authentication` answers failures alike,
after the same time, and counts them for names nobody has, too.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, Protocol

from twisted.cred.credentials import (
    Anonymous,
    IAnonymous,
    ICredentials,
    IUsernameHashedPassword,
    IUsernamePassword,
)
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from zope.interface import implementer

from ...core.errors import ConfigurationError
from ..factory import expect
from . import Authentication, LoggedIn, Passcode, PasswordFile
from .login import expected_portal
from .throttle import NAME_BYTES_MAX

SCRAM_ITERATIONS: Final = 4096
"""Of RFC 7677; each attempt costs both sides so many.  A client refuses fewer: a false server could
guess the password from the answer more cheaply.
"""

SCRAM_ITERATIONS_MAX: Final = 200_000
"""Of a client, about 50 ms in which nothing else is done; see :func:`credentials`."""

Login = Callable[[ICredentials, str | None], "Deferred[LoggedIn]"]
"""Asks the checkers about credentials and the name in them; fails with UnauthorizedLogin."""


Respond = Callable[[bytes], "Deferred[Any]"]
"""Fires with the next challenge or LoggedIn; fails with SaslRefused or UnauthorizedLogin."""


class SaslRefused(Exception):
    """The attempt failed; the reason is for the log alone."""


class SaslMechanism:
    """One mechanism of a server; each exchange begins anew."""

    name: ClassVar[str]  # in upper case
    reveals: ClassVar[bool] = False  # the password to an eavesdropper

    def begin(self, login: Login) -> Respond:
        raise NotImplementedError


# ── PLAIN ───────────────────────────────────────────────────────────────────────────────────────


class Plain(SaslMechanism):
    """Implements PLAIN (RFC 4616): user and password in one response."""

    name = "PLAIN"
    reveals = True

    def begin(self, login: Login) -> Respond:
        def respond(response: bytes) -> Deferred[LoggedIn]:
            parts = response.split(b"\0")
            if len(parts) != 3 or not parts[1] or parts[0] not in (b"", parts[1]):
                raise SaslRefused("not a response of PLAIN")
            user = _name(_text(parts[1]))
            return login(Passcode(user, _text(parts[2])), user)

        return respond


# ── ANONYMOUS ───────────────────────────────────────────────────────────────────────────────────


class AnonymousAccess(SaslMechanism):
    """Implements ANONYMOUS (RFC 4505): the response is a trace, and it is ignored."""

    name = "ANONYMOUS"

    def begin(self, login: Login) -> Respond:
        return lambda response: login(Anonymous(), None)


# ── SCRAM-SHA-256 ───────────────────────────────────────────────────────────────────────────────


class ScramSha256(SaslMechanism):
    """SCRAM-SHA-256 (RFC 5802, RFC 7677) without channel binding; a client answers the server's
    proof, a challenge, with an empty response.
    """

    name = "SCRAM-SHA-256"

    def __init__(self, secret: bytes, file: PasswordFile | None = None) -> None:
        """``secret`` makes the salts for all users whose keys are not in ``file``."""
        self._secret = secret
        self._file = file
        self._mechanism = _scramp().ScramMechanism(self.name)

    def begin(self, login: Login) -> Respond:
        return _ScramExchange(login, self._secret, self._mechanism, self._file).respond


class _ScramExchange:
    def __init__(
        self, login: Login, secret: bytes, mechanism: Any, file: PasswordFile | None
    ) -> None:
        self._login = login
        self._secret = secret
        self._file = file
        self._rounds = SCRAM_ITERATIONS
        self._mechanism = mechanism
        self._server: Any = None
        self._user = ""
        self._salt = b""
        self._proven: LoggedIn | None = None

    def respond(self, response: bytes) -> Deferred[Any]:
        if self._proven is not None:
            if response:
                raise SaslRefused("the last response is not empty")
            return succeed(self._proven)
        text = _text(response)
        if self._server is None:
            return succeed(self._first(text).encode())
        credentials = ScramCredentials(
            self._user.encode(), self._mechanism, self._server, self._salt, text, self._rounds
        )
        return self._login(credentials, self._user).addCallback(self._prove)

    def _first(self, text: str) -> str:
        server = self._mechanism.make_server(self._authentication)
        try:
            server.set_client_first(text)
            first = str(server.get_server_first())
        except _scramp().ScramException as error:
            raise SaslRefused(str(error)) from None
        self._server = server
        return first

    def _authentication(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self._user = _name(user)
        self._salt = hmac.digest(self._secret, user.encode(), hashlib.sha256)
        if self._file is not None:
            with suppress(ConfigurationError):  # asked for the proof, the checker will tell of it
                keys = self._file.keys_of(user)
                self._rounds = self._file.rounds or SCRAM_ITERATIONS
                if keys is not None:
                    self._salt, self._rounds = keys.salt, keys.rounds
        return self._salt, b"", b"", self._rounds

    def _prove(self, login: LoggedIn) -> bytes:
        self._proven = login
        return str(self._server.get_server_final()).encode()


@implementer(IUsernameHashedPassword)
class ScramCredentials:
    def __init__(
        self, username: bytes, mechanism: Any, server: Any, salt: bytes, final: str, rounds: int
    ) -> None:
        self.username = username
        self._rounds = rounds
        self._mechanism = mechanism
        self._server = server
        self._salt = salt
        self._final = final

    def checkPassword(self, password: bytes) -> bool:
        try:
            _, stored, server, _ = self._mechanism.make_auth_info(
                _text(password), self._rounds, self._salt
            )
        except (_scramp().ScramException, SaslRefused):
            return False
        return self.checkKeys(stored, server)

    def checkKeys(self, stored: bytes, server: bytes) -> bool:
        """The proof was made with the password that these keys were computed from."""
        self._server.stored_key, self._server.server_key = stored, server
        try:
            self._server.set_client_final(self._final)
        except _scramp().ScramException:
            return False
        return True


def _scramp() -> Any:
    try:
        import scramp
    except ModuleNotFoundError:
        raise ConfigurationError(
            "SCRAM-SHA-256 needs scramp: pip install 'twisted-msgproto[sasl]'"
        ) from None
    return scramp


def _name(user: str) -> str:
    if len(user.encode()) > NAME_BYTES_MAX:
        raise SaslRefused(f"a user's name has at most {NAME_BYTES_MAX} bytes")
    return user


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SaslRefused("not UTF-8") from None


# ── What a server offers ────────────────────────────────────────────────────────────────────────


class Attempting(Hashable, Protocol):
    """Who authenticates: a session of any protocol, the same for a whole exchange."""

    address: str


class Authenticator:
    def __init__(
        self,
        mechanisms: Iterable[SaslMechanism],
        authentication: Authentication | None,
        *,
        reveal: bool,
        left: Callable[[Any], float],
    ) -> None:
        """``left`` returns the seconds in which a session still has to be answered."""
        self._mechanisms = {
            mechanism.name: mechanism for mechanism in mechanisms if reveal or not mechanism.reveals
        }
        self.names: tuple[str, ...] = tuple(self._mechanisms)
        self._authentication = authentication
        self._left = left
        self._exchanges: dict[Attempting, Respond] = {}
        self._asked: dict[Attempting, Deferred[LoggedIn]] = {}

    def respond(
        self, session: Attempting, mechanism: str, response: bytes, first: bool
    ) -> Deferred[bytes | LoggedIn]:
        """Fire with a challenge, or with the log-in that ends the exchange."""

        def step() -> Deferred[Any]:
            if first:
                begin = self._mechanisms[mechanism].begin
                self._exchanges[session] = begin(partial(self._login, session))
            return self._exchanges[session](response)

        return maybeDeferred(step)

    def _login(
        self, session: Attempting, credentials: ICredentials, name: str | None
    ) -> Deferred[LoggedIn]:
        assert self._authentication is not None
        asked = self._authentication.login(credentials, session.address, name, self._left(session))
        self._asked[session] = asked
        return asked

    def forget(self, session: Attempting) -> None:
        self._exchanges.pop(session, None)
        asked = self._asked.pop(session, None)
        if asked is not None:
            asked.cancel()


def mechanisms_for(portal: Portal, secret: bytes) -> list[SaslMechanism]:
    """Return the mechanisms that the checkers of ``portal`` can serve, strongest first."""
    interfaces = set(expected_portal(portal).listCredentialsInterfaces())
    found: list[SaslMechanism] = []
    if IUsernameHashedPassword in interfaces:
        checker = portal.checkers[IUsernameHashedPassword]
        found.append(ScramSha256(secret, checker if isinstance(checker, PasswordFile) else None))
    if IUsernamePassword in interfaces:
        found.append(Plain())
    if IAnonymous in interfaces:
        found.append(AnonymousAccess())
    return found


# ── The client's side ───────────────────────────────────────────────────────────────────────────


class AnonymousClient:
    mechanism: str = AnonymousAccess.name
    finished = True
    _response = b""

    def respond(self, challenge: bytes | None) -> bytes:
        if challenge is not None:
            raise ValueError(f"{self.mechanism} has no challenges")
        return self._response


class PlainClient(AnonymousClient):
    mechanism = Plain.name

    def __init__(self, user: str, password: str) -> None:
        self._response = b"\0%b\0%b" % (user.encode(), password.encode())


class ScramClient:
    """The client's side of SCRAM-SHA-256 (``MT-08``)."""

    mechanism: str = ScramSha256.name

    def __init__(
        self, user: str, password: str, iterations_max: int = SCRAM_ITERATIONS_MAX
    ) -> None:
        """A server that asks for more rounds than ``iterations_max`` gets no answer."""
        self._iterations_max = iterations_max
        self._client = _scramp().ScramClient([self.mechanism], user, password)
        self._step = 0
        self.finished: bool = False  # the server has proved that it knows the password

    def respond(self, challenge: bytes | None) -> bytes:
        client, error = self._client, _scramp().ScramException
        self._step += 1
        try:
            if self._step == 1 and challenge is None:
                return str(client.get_client_first()).encode()
            if challenge is None:
                raise ValueError("a challenge is missing")
            if self._step == 2:
                client.set_server_first(challenge.decode("utf-8"))
                self._look_at(int(client.iterations))
                return str(client.get_client_final()).encode()
            client.set_server_final(challenge.decode("utf-8"))
        except error as problem:
            raise ValueError(str(problem)) from None
        self.finished = True
        return b""

    def _look_at(self, iterations: int) -> None:
        if iterations < SCRAM_ITERATIONS:
            raise ValueError(
                f"the server asks for {iterations} rounds of SCRAM, "
                f"RFC 7677 for {SCRAM_ITERATIONS} at least"
            )
        if iterations > self._iterations_max:
            raise ValueError(
                f"the server asks for {iterations} rounds of SCRAM, "
                f"scram_iterations allows {self._iterations_max}"
            )


SaslClient = AnonymousClient | ScramClient


def credentials(
    user: str | None = None,
    password: str | None = None,
    *,
    reveal: bool = False,
    scram_iterations: int = SCRAM_ITERATIONS_MAX,
) -> Callable[[Sequence[str]], SaslClient | None]:
    """Return how a client authenticates: with a password, or anonymously without a user.

    ``reveal`` allows PLAIN; use it where nobody can listen to the transport.  A server that asks
    for more rounds of SCRAM than ``scram_iterations`` is not answered, and the login fails: the
    rounds are computed in the reactor.
    """
    expect("reveal", reveal, "True or False", isinstance(reveal, bool))

    def choose(mechanisms: Sequence[str]) -> SaslClient | None:
        if user is None:
            return AnonymousClient() if AnonymousClient.mechanism in mechanisms else None
        if ScramClient.mechanism in mechanisms:
            return ScramClient(user, password or "", scram_iterations)
        if reveal and PlainClient.mechanism in mechanisms:
            return PlainClient(user, password or "")
        return None

    return choose
