"""Authenticate clients with twisted.cred, in one place for every protocol: failures are answered
alike and told to the operator (:mod:`.login`), guesses are delayed (:mod:`.throttle`).
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
