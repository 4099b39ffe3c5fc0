"""Rules of an operator, or an application's authoriser, say who may do what in every protocol.

A log-in says who a client is; an :class:`IAuthoriser` says what that client may publish, subscribe,
consume and call, and under which names.  An operator writes rules (:mod:`.rules`), an application
passes an authoriser of its own to its factory.  Sessions ask through :class:`.Permissions`, which
remembers the answers, counts refusals, and tells the operator.
"""

from __future__ import annotations

from .asking import (
    ACTIONS,
    CALL,
    CONSUME,
    PUBLISH,
    SUBSCRIBE,
    Access,
    Authoriser,
    IAuthoriser,
    Permissions,
    refusal_text,
)
from .rules import Rule, Rules, read_rules

__all__ = [
    "ACTIONS",
    "CALL",
    "CONSUME",
    "PUBLISH",
    "SUBSCRIBE",
    "Access",
    "Authoriser",
    "IAuthoriser",
    "Permissions",
    "Rule",
    "Rules",
    "read_rules",
    "refusal_text",
]
