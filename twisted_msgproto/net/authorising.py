"""Rules of an operator, or an application's authoriser, say who may do what in every protocol.

A log-in says who a client is; an :class:`IAuthoriser` says what that client may publish, subscribe,
consume and call, and under which names.  An operator writes :class:`Rules`, an application passes
an authoriser of its own to its factory.  Sessions ask through :class:`Permissions`, which remembers
the answers, counts refusals, and tells the operator.

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
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from sys import getsizeof
from typing import Any, Final, NamedTuple
from typing import Protocol as Shape

from twisted.logger import Logger
from zope.interface import Interface, implementer

from ..core.broker import DEAD
from ..core.errors import ConfigurationError, shown
from ..core.loading import closest, read_toml
from .logs import Topic
from .peers import ip_of

log = Logger(namespace="twisted_msgproto.authorisation")

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
CONSUME: Final = "consume"
CALL: Final = "call"

ACTIONS: Final = (PUBLISH, SUBSCRIBE, CONSUME, CALL)

ANSWERS_MAX: Final = 64  # of a session; then all are forgotten: names may be ever new

NAME_BYTES: Final = 320  # no answer about a longer one is kept: it may be as long as a message

REFUSALS: Final = Topic("more refusals")

LINES_MAX: Final = 20  # refusals of one session that are logged: a flood would cost a turn

_COUNTED: Final = {action: f"not_allowed:{action}" for action in ACTIONS}

_SPOKEN: Final = {
    PUBLISH: "publish to",
    SUBSCRIBE: "subscribe to",
    CONSUME: "consume from",
    CALL: "call",
}


class Access(NamedTuple):
    """What a client wants to do.

    Attributes:
        user: who the client is, as ``clientId`` of its session; None for a client without a name.
        address: the host of its transport address; "" where there is none (UNIX sockets).
        protocol: the name of the protocol, such as ``"micromsg2"``.
        action: one of :data:`ACTIONS`.
        name: what the action is about: a queue, topic, method or resource; "" in protocols
            without such names (Lumberjack, sABC).  Dead letters of the queue Q are in Q.dead.
        virtual_host: MTL's virtual host; None in other protocols.
    """

    user: str | None
    address: str
    protocol: str
    action: str
    name: str
    virtual_host: str | None = None


class IAuthoriser(Interface):
    """What clients may do; pass one to a server factory as ``authoriser``."""

    def allows(access: Access) -> bool:
        """Return True if this may be, or False if it is to be refused.

        It is asked while a message is read, before anything of it is stored, so it has to answer at
        once: a Deferred or a coroutine would hold up everything that the client sent behind it, and
        a client could pile up questions.  What needs time belongs into the log-in.  Anything but
        True and False, and an exception, is logged as a failure and refuses.

        An answer is remembered for the session, the action and the name; a few dozen of them, and
        none about a very long name, so it may be asked again.  To withdraw a permission,
        end the client's sessions: ``factory.sessionsOf(user)`` finds them.
        """


class Authoriser(Shape):
    """What clients may do; pass one to ``serve`` or to a server factory as ``authoriser``."""

    def allows(self, access: Access, /) -> bool:
        """Return whether this may be, as :class:`IAuthoriser`'s."""
        raise NotImplementedError


class Permissions:
    def __init__(
        self,
        factory: Any,
        user: str | None,
        address: str,
        peer: str,
        virtual_host: str | None = None,
        ends: str = "",
    ) -> None:
        """``peer`` is the client's name in the log, ``ends`` its end; else as :class:`Access`."""
        self._ends = ends
        self.user = user
        self._factory = factory
        self._authoriser: Any = None  # whose answers are remembered
        self._address = address
        self._peer = peer
        self._virtual_host = virtual_host
        self._answers: dict[tuple[str, str], bool] = {}
        self._told = 0  # lines

    def refuses(self, action: str, name: str, count: int = 1) -> bool:
        authoriser = self._factory.authoriser
        if authoriser is not self._authoriser:  # the rules were read again
            self._authoriser = authoriser
            self._answers = {}
        key = (action, name)
        allowed = self._answers.get(key)
        if allowed is None:
            allowed = self._ask(action, name)
            if getsizeof(name) <= NAME_BYTES:
                if len(self._answers) >= ANSWERS_MAX:
                    self._answers.clear()
                self._answers[key] = allowed
            if not allowed and self._told < LINES_MAX:
                self._told += 1
                self._tell(action, name)
        if not allowed:
            tally = self._factory.counters.settled
            tally["not_allowed"] += count
            tally[_COUNTED[action]] += count
        return not allowed

    def _ask(self, action: str, name: str) -> bool:
        factory = self._factory
        access = Access(
            self.user, self._address, factory.protocolName, action, name, self._virtual_host
        )
        try:
            answer = factory.authoriser.allows(access)
            if answer is not True and answer is not False:
                close = getattr(answer, "close", None)  # a coroutine that nobody will await
                if callable(close):
                    close()
                kind = type(answer).__name__
                raise TypeError(f"an authoriser answers True or False at once, not with a {kind}")
        except BaseException:
            log.failure("{peer}: the authoriser failed, so it is refused", peer=self._peer)
            return False
        return answer

    def _tell(self, action: str, name: str) -> None:
        self._factory.writeOf(
            log,
            self._address,
            "{peer}: {user} may not {what}{ends}",
            peer=self._peer,
            user=shown(self.user) if self.user else "a client without a name",
            what=f"{_SPOKEN[action]} {shown(name)}" if name else action,
            ends=self._ends,
            reason=action,
            topic=REFUSALS,
        )


def known_actions(key: str, names: Iterable[str], more: str = "") -> None:
    for name in names:
        if name not in ACTIONS:
            known = ", ".join(ACTIONS) + more
            raise ConfigurationError(
                f"{key}: there is no action {name!r}{closest(name, ACTIONS)}; known: {known}"
            )


def refusal_text(action: str, name: str) -> str:
    return f"not allowed to {_SPOKEN[action]} {name}" if name else f"not allowed to {action}"


# ── an operator's rules ─────────────────────────────────────────────────────────────────────────


TABLE: Final = "access"

ALL: Final = "*"  # in ``allow`` or ``deny`` every action; as a pattern every name

UNIX: Final = "unix"  # as an address: clients without an IP address, as on UNIX sockets

OWN_NAME: Final = "{user}"

RULES_MAX: Final = 1000
"""Each new name is compared with all rules.  So many clients and pattern sets are remembered."""

CONDITIONS: Final = ("user", "address", "protocol", "name", "virtual-host")
VERDICTS: Final = ("allow", "deny")
KEYS: Final = (*VERDICTS, *CONDITIONS)

_BRACES: Final = re.compile(r"(?<!\[)[{][^}]*[}]?")
_MAGIC: Final = re.compile(r"[*?[]")

Network = IPv4Network | IPv6Network
Fits = Callable[[str], Any]


@lru_cache(RULES_MAX)
def _any_of(patterns: tuple[str, ...]) -> Fits:
    # Names are the most of them, and to compare one by one takes time, which a peer would choose.
    names = frozenset(pattern for pattern in patterns if not _MAGIC.search(pattern))
    globs = (translate(pattern) for pattern in patterns if pattern not in names)
    fits = re.compile("|".join(globs) or "(?!)").match
    return lambda name: name in names or fits(name)


@dataclass(frozen=True)
class Rule:
    """One rule; a condition that is None fits everybody."""

    allowed: bool
    actions: tuple[str, ...]
    user: tuple[str, ...] | None = None  # globs; "" is a client without a name
    address: tuple[Network | str, ...] | None = None  # or UNIX
    protocol: tuple[str, ...] | None = None
    name: tuple[str, ...] | None = None  # globs, with OWN_NAME
    virtual_host: tuple[str, ...] | None = None  # globs

    def concerns(self, client: Access) -> bool:
        return (
            client.action in self.actions
            and (self.protocol is None or client.protocol in self.protocol)
            and (self.user is None or _fits_user(self.user, client.user))
            and (self.address is None or _fits_address(self.address, client.address))
            and (self.virtual_host is None or _fits_user(self.virtual_host, client.virtual_host))
        )

    def names_for(self, user: str | None) -> tuple[str, ...]:
        """Return globs of the names that it fits."""
        if self.name is None:
            return ("*",)
        names = (name for name in self.name if user or OWN_NAME not in name)
        return tuple(name.replace(OWN_NAME, escape(user or "")) for name in names)

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
    return bool(_any_of(tuple(filter(None, globs)))(user))


def _fits_address(networks: Sequence[Network | str], address: str) -> bool:
    ip = ip_of(address)
    if ip is None:
        return UNIX in networks
    return any(ip in network for network in networks if not isinstance(network, str))


@implementer(IAuthoriser)
class Rules:
    """Rules of which the first that fits decides; what none fits is refused.

    Attributes:
        rules: in the order in which they are compared.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self._runs_for = lru_cache(RULES_MAX)(self._select)

    def allows(self, access: Access) -> bool:
        """Return what the first rule that fits says; False if none does."""
        name = access.name
        # Dead letters are messages of their queue, and as secret.
        queue = name.removesuffix(DEAD) if access.action == CONSUME else name
        for allowed, fits in self._runs_for(access._replace(name="")):
            if fits(name) or (queue != name and fits(queue)):
                return allowed
        return False

    def _select(self, client: Access) -> tuple[tuple[bool, Fits], ...]:
        """Return the rules for ``client``; those of one verdict that follow one another are one."""
        concerned = (rule for rule in self.rules if rule.concerns(client))
        return tuple(
            (allowed, _any_of(tuple(name for rule in run for name in rule.names_for(client.user))))
            for allowed, run in groupby(concerned, attrgetter("allowed"))
        )

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
    known_actions(key, names, f", {ALL}")
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
