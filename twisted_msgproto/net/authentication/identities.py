"""What a client shows, and who it turns out to be: credentials, avatars, a realm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from hmac import compare_digest
from typing import Any, Final, NamedTuple, Protocol

from cryptography import x509
from cryptography.x509.oid import NameOID
from twisted.cred.checkers import ANONYMOUS
from twisted.cred.credentials import ICredentials, IUsernamePassword
from twisted.cred.portal import Portal
from zope.interface import Attribute, Interface, implementer


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
    """In this realm, everybody whom a checker accepts is known by the name that the checker
    returned.
    """

    def requestAvatar(
        self, avatarId: Any, mind: object, *interfaces: Any
    ) -> tuple[Any, Identity, Callable[[], None]]:
        if IIdentity not in interfaces:
            raise NotImplementedError("only IIdentity")
        if avatarId is ANONYMOUS:
            return IIdentity, NamedIdentity(None), lambda: None
        name = avatarId.decode("utf-8", "replace") if isinstance(avatarId, bytes) else avatarId
        return IIdentity, NamedIdentity(str(name)), lambda: None


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
    of this issuer has: ``serial:CN=Example CA/1f03``.  Parts of a subject are written as RFC 4514
    has it: each begins with its type and ``=``, and a comma within a value is escaped, so that no
    subject passes for another one, or for a name of another form.
    """
    parsed: x509.Certificate = certificate.to_cryptography()
    subject = parsed.subject
    if any(str(part.value).strip() for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)):
        return _parts(subject)
    with suppress(x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for form, kind in ALTERNATIVES.items():
            for name in names.get_values_for_type(kind):
                if name.strip():
                    return f"{form}:{name}"
    return f"serial:{_parts(parsed.issuer)}/{parsed.serial_number:x}"


def _parts(name: x509.Name) -> str:
    return ",".join(part.rfc4514_string() for part in name.rdns)


class LoggedIn(NamedTuple):
    """A client has logged in; call ``logout`` when it leaves."""

    name: str | None
    avatar: Any
    logout: Callable[[], Any]
