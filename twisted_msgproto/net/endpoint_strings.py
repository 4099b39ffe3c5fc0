"""The text of endpoint strings: what is wrong in one, in words, and which paths stand in it.

Twisted says what is wrong with the names of its own functions, so the parts are looked at here
before Twisted reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from shlex import quote
from typing import Any, Final, NamedTuple

from OpenSSL.crypto import Error as CryptoError
from OpenSSL.SSL import Error as TLSError
from twisted.internet.ssl import Certificate
from twisted.plugin import getPlugins

from ..core.errors import ConfigurationError
from ..core.loading import closest

PROXIED: Final = "haproxy"

PORT_MOST: Final = 65535

INT_MOST: Final = 2_147_483_647  # of a system call

PEM_BEGIN, PEM_END = b"-----BEGIN CERTIFICATE", b"-----END CERTIFICATE-----"

SERVERS: Final[Mapping[str, tuple[str, ...]]] = {
    "tcp": ("port", "interface", "backlog"),
    "tcp6": ("port", "backlog", "interface"),
    "tls": ("directory", "port", "backlog", "interface"),
    "ssl": (
        *("port", "privateKey", "certKey", "sslmethod", "interface", "backlog"),
        *("extraCertChain", "dhParameters"),
    ),
    "mtls": (
        *("port", "privateKey", "certKey", "caCerts", "verify", "extraCertChain"),
        *("interface", "backlog"),
    ),
    "unix": ("path", "mode", "backlog", "lockfile"),
    "systemd": ("domain", "index", "name"),
}
"""Each kind of a server's endpoint with its parts, in the order in which they need no name."""

CLIENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "tcp": ("host", "port", "timeout", "bindAddress"),
    "tls": (
        *("host", "port", "timeout", "bindAddress", "certificate", "privateKey"),
        *("trustRoots", "endpoint"),
    ),
    "ssl": (
        *("host", "port", "timeout", "bindAddress", "certKey", "privateKey", "caCertsDir"),
        *("hostname", "sslmethod"),
    ),
    "unix": ("path", "lockfile", "timeout", "checkPID"),
}

ALIASES: Final = {"address": "path"}  # Twisted's name of a part → ours, where it misleads

NEEDED: Final = ("host", "port", "directory", "path", "domain")

OPTIONAL: Final = {("tls", "port")}

PATHS: Final = frozenset(
    ("directory", "path", "privateKey", "certKey", "caCerts", "extraCertChain", "dhParameters")
)

SSL_KEY: Final = "server.pem"  # Twisted's default of ``privateKey`` for ``ssl:``


def _within(most: int, base: int = 10) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        try:
            return text.isalnum() and text.isascii() and int(text, base) <= most
        except ValueError:
            return False

    return fits


NUMBERS: Final[Mapping[str, tuple[str, Callable[[str], bool]]]] = {
    "port": (f"a number from 0 to {PORT_MOST}", _within(PORT_MOST)),
    "backlog": ("a whole number", _within(INT_MOST)),
    "timeout": ("a whole number of seconds", _within(INT_MOST)),
    "lockfile": ("0 or 1", _within(1)),
    "mode": ("an octal number like 600", _within(0o7777, 8)),
    "index": ("a whole number", _within(INT_MOST)),
}

_PIECE: Final = re.compile(r"(?:\\.|[^:\\]|\\\Z)*", re.DOTALL)

_NAMED: Final = re.compile(r"((?:\\.|[^=\\])*)=(.*)", re.DOTALL)


class Part(NamedTuple):
    name: str | None
    text: str


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _quoted(text: str) -> str:
    return re.sub(r"([\\:=])", r"\\\1", text)


def parts_of(description: str) -> list[Part]:
    found, position = [], 0
    while position <= len(description):
        match = _PIECE.match(description, position)
        assert match is not None
        named = _NAMED.fullmatch(match[0])
        found.append(
            Part(None, _plain(match[0]))
            if named is None
            else Part(_plain(named[1]), _plain(named[2]))
        )
        position = match.end() + 1
    return found


def _named(kind: str, parts: Sequence[Part], names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    unnamed = list(names)
    for part in parts:
        if part.name is None:
            if not unnamed:
                raise ConfigurationError(
                    f"{part.text!r} is more than {kind}: takes, which is {', '.join(names)}"
                )
            name = unnamed.pop(0)
        else:
            name = ALIASES.get(part.name, part.name)
            if name not in names:
                raise ConfigurationError(
                    f"{kind}: has no option {part.name!r}{closest(part.name, names)}; it has"
                    f" {', '.join(names)}"
                )
        if name in found:
            raise ConfigurationError(f"{name} is given twice")
        found[name] = part.text
    return found


def check_parts(description: str, kinds: Mapping[str, tuple[str, ...]], plugins: Any) -> None:
    """Raise ConfigurationError, in words, for what is wrong with an endpoint string."""
    kind, *parts = parts_of(description)
    if kind == Part(None, PROXIED) and kinds is SERVERS:
        if not parts:
            raise ConfigurationError(f"{PROXIED}: stands in front of another endpoint")
        kind, *parts = parts
    if kind.name is not None or kind.text not in kinds:
        known = {*kinds, *(plugin.prefix for plugin in getPlugins(plugins))}
        if kind.name is not None or kind.text.lower() not in known:
            text = kind.text if kind.name is None else kind.name
            near = closest(text, kinds)
            raise ConfigurationError(f"there is no kind {text!r}{near}; known: {', '.join(kinds)}")
        return
    found = _named(kind.text, parts, kinds[kind.text])
    for name in kinds[kind.text]:
        if not found.get(name) and name in NEEDED and (kind.text, name) not in OPTIONAL:
            raise ConfigurationError(f"its {name} is missing")
        if name in NUMBERS and name in found and not NUMBERS[name][1](found[name]):
            raise ConfigurationError(f"{name} is {NUMBERS[name][0]}, not {found[name]!r}")


def located(description: str, directory: str) -> str:
    pieces: list[str] = []
    names: Iterable[str] = ()
    kind = ""
    for part in parts_of(description):
        name, text = part
        if name is None and not kind:
            if text != PROXIED:
                kind = text
                names = iter(SERVERS.get(kind, ()))
        else:
            meant = next(iter(names), None) if name is None else ALIASES.get(name, name)
            if meant in PATHS and kind in SERVERS and text and text[0] != "\0":
                text = os.path.join(directory, text)
        pieces.append(_quoted(text) if name is None else f"{_quoted(name)}={_quoted(text)}")
    if kind == "ssl" and not any(one.startswith("privateKey=") for one in pieces):
        unnamed = [part for part in parts_of(description) if part.name is None]
        if len(unnamed) - (unnamed[0].text == PROXIED) < 3:
            pieces.append(f"privateKey={_quoted(os.path.join(directory, SSL_KEY))}")
    return ":".join(pieces)


def certificates_in(pem: bytes) -> list[Certificate]:
    """Return all certificates of a PEM file; raises what OpenSSL raises, ValueError for none."""
    found = [
        Certificate.loadPEM(block[block.index(PEM_BEGIN) :] + PEM_END + b"\n")
        for block in pem.split(PEM_END)[:-1]
    ]
    if not found:
        raise ValueError("no certificate")
    return found


def tls_files(description: str) -> tuple[str, str] | None:
    """Return the files of key and certificate that ``ssl:…`` or ``mtls:…`` names."""
    kind, *parts = parts_of(description.removeprefix(f"{PROXIED}:"))
    if kind not in (Part(None, "ssl"), Part(None, "mtls")):
        return None
    named = _named(kind.text, parts, SERVERS[kind.text])
    key = named.get("privateKey", SSL_KEY)
    return key, named.get("certKey") or key


def refuse_passphrase(path: str | os.PathLike[str], pem: bytes) -> None:
    """Raise ConfigurationError for an encrypted key: OpenSSL would ask the terminal, and wait."""
    if b"ENCRYPTED" in pem:
        raise ConfigurationError(
            f"the key in {path} has a passphrase; without one it is what"
            f" openssl pkey -in {quote(os.fspath(path))} -out FILE writes"
        )


def file_trouble(error: Exception) -> str:
    if isinstance(error, ConfigurationError):
        return str(error).removeprefix("mtls: ")
    error = getattr(error, "originalException", error)  # of a directory that cannot be listed
    if isinstance(error, OSError):
        return f"cannot read {error.filename}: {error.strerror}"
    if isinstance(error, TLSError | CryptoError):
        return "privateKey or certKey is no PEM file with a key and a certificate"
    if isinstance(error, LookupError):
        return "no socket of this index or name was passed to this process (systemd's LISTEN_FDS)"
    # Twisted says it with the names of its own functions.
    text = re.sub(r"[\w.]+\(\) ", "it ", str(error)).rstrip(".")
    return text or type(error).__name__
