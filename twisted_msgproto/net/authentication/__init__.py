"""Who a client is: twisted.cred behind one door, for every protocol that authenticates.

An operator names checkers with ``--auth`` (see ``--help-auth``), an application passes a Portal of
its own.  A protocol makes credentials and asks :class:`Authentication`, which

* gives every failure the same face: the same answer after the same time, whatever was wrong
  (:mod:`.login`);
* lets guesses wait, and a right password in (:mod:`.throttle`);
* tells the operator who was refused, and never the secret (:mod:`.audit`).
"""

from __future__ import annotations

from .identities import (
    Identity,
    IdentityRealm,
    IIdentity,
    LoggedIn,
    Passcode,
    portal_over,
)
from .login import Authentication
from .options import AuthenticationOptions
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
    "portal_over",
]
