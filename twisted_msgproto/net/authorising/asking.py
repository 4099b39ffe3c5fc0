"""Ask an authoriser about a client, once for each action and name."""

from __future__ import annotations

from sys import getsizeof
from typing import Any, ClassVar, Final, NamedTuple
from typing import Protocol as Shape

from twisted.logger import Logger
from zope.interface import Interface

from ...core.errors import shown
from ..counters import Counters
from ..logs import Topic

log = Logger(namespace="twisted_msgproto.authorisation")

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
CONSUME: Final = "consume"
CALL: Final = "call"

ACTIONS: Final = (PUBLISH, SUBSCRIBE, CONSUME, CALL)

ANSWERS_MAX: Final = 64
"""This many answers are remembered for one session; then all are forgotten and asked again, so
that a peer with ever new names cannot fill the memory.
"""

NAME_BYTES: Final = 320
"""The answer about a name that needs more than this, about 255 characters, is not remembered, but
asked for each time: a name may be as long as a message.
"""

REFUSALS: Final = Topic("more refusals")

LINES_MAX: Final = 20
"""At most this many refusals of one session are logged: a flood of them would cost a turn."""

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
        """Return True if this may be, or False if it is to be refused; as
        :class:`IAuthoriser`'s.
        """
        raise NotImplementedError


class Told(Shape):
    """What is needed of the factory that counts and logs refusals."""

    authoriser: Any
    counters: Counters
    protocolName: ClassVar[str]

    def writeOf(
        self, log: Logger, host: str, text: str, /, *, reason: str, topic: Topic, **fields: Any
    ) -> None:
        """Log what the peer at ``host`` did; lines of one address are summed up."""


class Permissions:
    """What one client may do, by what the authoriser has answered."""

    __slots__ = (
        "_address",
        "_answers",
        "_authoriser",
        "_ends",
        "_factory",
        "_peer",
        "_told",
        "_virtual_host",
        "user",
    )

    def __init__(
        self,
        factory: Told,
        user: str | None,
        address: str,
        peer: str,
        virtual_host: str | None = None,
        ends: str = "",
    ) -> None:
        """``peer`` is what lines of the log call the client, ``ends`` stands at their end; the
        others are as in :class:`Access`.
        """
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
        """Return whether the client may not do this; then it is counted, as ``count`` attempts.

        The first refusal of an action and a name is a line in the log.
        """
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
        except Exception:
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


def refusal_text(action: str, name: str) -> str:
    return f"not allowed to {_SPOKEN[action]} {name}" if name else f"not allowed to {action}"
