"""Authenticate clients with twisted.cred, in one place for every protocol.

An operator names checkers with ``--auth`` (see ``--help-auth``), an application passes a Portal of
its own.  A protocol makes credentials and asks :class:`Authentication`.  This

* answers every failure in the same way and after the same time, whatever was wrong (:mod:`.login`);
* delays guesses, but never locks out a right password (:mod:`.throttle`);
* tells the operator who was refused, and never the secret (:mod:`.login`).
"""

from __future__ import annotations

from .login import (
    Authentication,
    Identity,
    IdentityRealm,
    IIdentity,
    LoggedIn,
    Passcode,
    certificate_name,
    portal_over,
)
from .login_options import AuthenticationOptions
from .password_file import PasswordFile
from .throttle import LOGIN_LIMITS

__all__ = [
    "LOGIN_LIMITS",
    "Authentication",
    "AuthenticationOptions",
    "IIdentity",
    "Identity",
    "IdentityRealm",
    "LoggedIn",
    "Passcode",
    "PasswordFile",
    "certificate_name",
    "portal_over",
]
