"""An operator's rules say who may do what, from where, and with what names.

Rules are an array of tables in TOML, ``[[access]]``.  They are read from top to bottom, and the
first rule that fits decides.  What no rule fits is refused.  A condition that a rule does not have
fits everybody.  A rule about consuming from a queue fits the queue of its dead letters, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from glob import escape
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple

from zope.interface import implementer

from ...core.broker import DEAD
from ...core.errors import ConfigurationError
from ...core.named import closest, read_toml
from .asking import ACTIONS, CONSUME, Access, IAuthoriser

TABLE: Final = "access"

ALL: Final = "*"
"""In ``allow`` or ``deny`` it means every action; as a pattern it matches every name."""

UNIX: Final = "unix"
"""As an address it means clients that have no IP address, as those on UNIX sockets."""

OWN_NAME: Final = "{user}"

RULES_MAX: Final = 1000
"""There may be this many rules: each new name that a client uses is compared with all of them."""

CLIENTS_REMEMBERED: Final = 1024

PATTERNS_REMEMBERED: Final = 4096

CONDITIONS: Final = ("user", "address", "protocol", "name", "virtual-host")
VERDICTS: Final = ("allow", "deny")
KEYS: Final = (*VERDICTS, *CONDITIONS)

_BRACES: Final = re.compile(r"(?<!\[)[{][^}]*[}]?")
_MAGIC: Final = re.compile(r"[*?[]")

Network = IPv4Network | IPv6Network
Fits = Callable[[str], Any]


class _Run(NamedTuple):
    """Rules of one verdict that follow one another, for one client and action.

    ``exact`` and ``patterns`` are the names that they fit; both None: all names.
    """

    allowed: bool
    exact: frozenset[str] | None
    patterns: Fits | None

    def fits(self, name: str) -> bool:
        if self.exact is None:
            return True
        return name in self.exact or (self.patterns is not None and self.patterns(name) is not None)


class _Client(NamedTuple):
    user: str | None
    address: str
    protocol: str
    action: str
    virtual_host: str | None


@lru_cache(PATTERNS_REMEMBERED)
def _any_of(patterns: tuple[str, ...]) -> Fits | None:
    translated = [translate(pattern) for pattern in patterns]
    return re.compile("|".join(translated)).match if translated else None


@dataclass(frozen=True)
class Rule:
    """One rule; a condition that is None fits everybody.

    Attributes:
        user: globs of users; ``""`` is a client without a name.
        address: networks, or :data:`UNIX`.
        name: globs of names, with :data:`OWN_NAME`.
        virtual_host: globs of MTL's virtual hosts.
    """

    allowed: bool
    actions: tuple[str, ...]
    user: tuple[str, ...] | None = None
    address: tuple[Network | str, ...] | None = None
    protocol: tuple[str, ...] | None = None
    name: tuple[str, ...] | None = None
    virtual_host: tuple[str, ...] | None = None

    def concerns(self, client: _Client) -> bool:
        return (
            client.action in self.actions
            and (self.protocol is None or client.protocol in self.protocol)
            and (self.user is None or _fits_user(self.user, client.user))
            and (self.address is None or _fits_address(self.address, client.address))
            and (self.virtual_host is None or _fits_user(self.virtual_host, client.virtual_host))
        )

    def names_for(self, user: str | None) -> tuple[str, ...] | None:
        if self.name is None:
            return None
        if not user:
            return tuple(name for name in self.name if OWN_NAME not in name)
        return tuple(name.replace(OWN_NAME, escape(user)) for name in self.name)

    @property
    def unconditional(self) -> bool:
        conditions = (self.user, self.address, self.protocol, self.name, self.virtual_host)
        return all(condition is None for condition in conditions)

    def table(self) -> dict[str, list[str]]:
        every = len(self.actions) == len(ACTIONS)
        actions = [ALL] if every else list(self.actions)
        table = {VERDICTS[0] if self.allowed else VERDICTS[1]: actions}
        for key in CONDITIONS:
            values = getattr(self, key.replace("-", "_"))
            if values is not None:
                table[key] = [str(value) for value in values]
        return table


def _fits_user(globs: Sequence[str], user: str | None) -> bool:
    if not user:
        return "" in globs
    patterns = _any_of(tuple(glob for glob in globs if glob))
    return patterns is not None and patterns(user) is not None


def _fits_address(networks: Sequence[Network | str], address: str) -> bool:
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return UNIX in networks
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in networks if not isinstance(network, str))


@implementer(IAuthoriser)
class Rules:
    """Rules of which the first that fits decides; what none fits is refused.

    Attributes:
        rules: in the order in which they are compared.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self._runs_of = lru_cache(CLIENTS_REMEMBERED)(self._select)

    def allows(self, access: Access) -> bool:
        """Return what the first rule that fits says; False if none does."""
        user, address, protocol, action, name, virtual_host = access
        # Dead letters are messages of their queue, and as secret.
        queue = name.removesuffix(DEAD) if action == CONSUME else name
        for run in self._runs_of(_Client(user, address, protocol, action, virtual_host)):
            if run.fits(name) or (queue != name and run.fits(queue)):
                return run.allowed
        return False

    def _select(self, client: _Client) -> tuple[_Run, ...]:
        runs: list[_Run] = []
        names: list[str] = []
        verdict: bool | None = None

        def finish() -> None:
            if verdict is not None and names:
                exact = frozenset(name for name in names if not _MAGIC.search(name))
                runs.append(_Run(verdict, exact, _any_of(tuple(filter(_MAGIC.search, names)))))
                names.clear()

        for rule in self.rules:
            if rule.concerns(client):
                if rule.allowed is not verdict:
                    finish()
                    verdict = rule.allowed
                globs = rule.names_for(client.user)
                if globs is None:
                    finish()
                    runs.append(_Run(rule.allowed, None, None))
                    return tuple(runs)  # what follows is never asked
                names += globs
        finish()
        return tuple(runs)

    def tables(self) -> Iterator[dict[str, list[str]]]:
        """Yield each rule as a table of a file."""
        return (rule.table() for rule in self.rules)

    def check_protocols(self, known: Iterable[str]) -> None:
        """Raise ConfigurationError for a rule about a protocol that is not ``known``."""
        known = list(known)
        for number, rule in enumerate(self.rules, 1):
            for name in rule.protocol or ():
                if name not in known:
                    raise ConfigurationError(
                        f"[[{TABLE}]] rule {number}: protocol: there is no {name!r}"
                        f"{closest(name, known)}; known: {', '.join(known)}"
                    )

    @classmethod
    def of(cls, tables: object) -> Rules:
        """Read the value of ``access`` in a TOML file.

        Raises ConfigurationError that names the rule and its key, and says what to write instead.
        """
        if not isinstance(tables, list) or not all(isinstance(one, Mapping) for one in tables):
            raise ConfigurationError(f"{TABLE} is a list of rules: write [[{TABLE}]] above each")
        if not tables:
            raise ConfigurationError(
                f"{TABLE} has no rule, so everything would be refused: leave it out to allow"
                " everything"
            )
        if len(tables) > RULES_MAX:
            raise ConfigurationError(f"{TABLE} has {len(tables)} rules; at most {RULES_MAX} may be")
        rules: list[Rule] = []
        for number, table in enumerate(tables, 1):
            try:
                rule = read_rule(table)
                for earlier, before in enumerate(rules, 1):
                    if before.unconditional and set(rule.actions) <= set(before.actions):
                        raise ConfigurationError(
                            f"it is never reached, since rule {earlier} fits everything: write it"
                            " above that one"
                        )
            except ConfigurationError as error:
                raise ConfigurationError(f"[[{TABLE}]] rule {number}: {error}") from None
            rules.append(rule)
        return cls(rules)


def read_rules(path: str | Path) -> Rules:
    """Read a file of rules; ConfigurationError, without the path in front, says what is wrong."""
    tables = read_toml(Path(path))
    for key in tables:
        if key != TABLE:
            raise ConfigurationError(f"unknown key {key!r}: a file of rules has [[{TABLE}]] alone")
    return Rules.of(tables.get(TABLE, []))


def read_rule(table: Mapping[str, Any]) -> Rule:
    for key in table:
        if key not in KEYS:
            raise ConfigurationError(
                f"unknown key {key!r}{closest(key, KEYS)}; known: {', '.join(KEYS)}"
            )
    given = [key for key in VERDICTS if key in table]
    if len(given) != 1:
        what = "both allow and deny: make two rules of it" if given else "neither allow nor deny"
        raise ConfigurationError(f'it has {what}; a rule has one, as in allow = "publish"')
    texts = {key: _texts(key, value) for key, value in table.items()}
    for key in ("user", "name", "virtual-host"):
        for text in texts.get(key, ()):
            _check_glob(key, text)
    addresses = texts.get("address")
    return Rule(
        given[0] == VERDICTS[0],
        _actions(given[0], texts[given[0]]),
        texts.get("user"),
        None if addresses is None else tuple(map(_network, addresses)),
        texts.get("protocol"),
        texts.get("name"),
        texts.get("virtual-host"),
    )


def _texts(key: str, value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    for one in values:
        if not isinstance(one, str):
            raise ConfigurationError(f"{key}: {one!r} is no text; write it in quotes")
    if not values:
        raise ConfigurationError(f"{key} is an empty list: leave it out to mean everybody")
    return tuple(values)


def _actions(key: str, names: Sequence[str]) -> tuple[str, ...]:
    if ALL in names:
        return ACTIONS
    for name in names:
        if name not in ACTIONS:
            known = ", ".join((*ACTIONS, ALL))
            raise ConfigurationError(
                f"{key}: there is no action {name!r}{closest(name, ACTIONS)}; known: {known}"
            )
    return tuple(action for action in ACTIONS if action in names)


def _check_glob(key: str, text: str) -> None:
    for found in _BRACES.findall(text):
        if key != "name" or found != OWN_NAME:
            meant = f"only {OWN_NAME} in name may stand in braces" if key == "name" else "no braces"
            raise ConfigurationError(f"{key}: {text!r}: {meant}; write [{{] for a brace itself")


def _network(text: str) -> Network | str:
    if text == UNIX:
        return text
    try:
        return ip_network(text)
    except ValueError:
        pass
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"address: {text!r} is no IP address and no network such as 10.0.0.0/8, nor {UNIX}"
        ) from None
    raise ConfigurationError(f"address: {text!r} is an address within a network; write {network}")
