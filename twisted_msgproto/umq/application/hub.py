"""A stock UMQ server has these methods, for named topics to which clients publish and subscribe.

* ``["subscribe", NAME, TOPIC-ID]``: publish what comes for NAME to the caller's topic;
* ``["publish", NAME, TEXT]``: to all subscribers of NAME; the answer is how many got it;
* ``["methods"]``: this list.

An authoriser is asked about the NAME, with the actions ``subscribe`` and ``publish``.

A subscriber that does not read is dropped by its topic's limits (``UM-21``).

Thousands may have subscribed to one name.  An update is sent to as many as one turn has time for,
and to the others in the turns after it, a name at a time; everybody else is served between.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed

from ...core.errors import LimitExceeded, Refused
from ...net.authorising import PUBLISH, SUBSCRIBE
from ...net.turns import Turn
from ..protocol.exchange import Request
from ..protocol.topics import Topic
from ..wire import Code
from .feed import Feed
from .methods import MethodRegistry

NAMES_MAX = 10_000

WAITING_CHARACTERS: Final = 64 << 20
"""While updates with this many characters wait for their turn, further ones are refused."""

NAME_CHARACTERS: Final = 1024
"""A name has at most this many characters: with 10,000 names these are 10 MB."""

SMALL_CHARACTERS: Final = 4 << 10
"""No update of at most this many characters is refused for what others have waiting."""


class Hub:
    """Named topics, to which any number of sessions may subscribe.

    Attributes:
        methods: the registry to give to a factory; register your own methods beside these.
    """

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}
        self._waiting: deque[Feed] = deque()  # what is still to be sent, a feed a turn
        self._characters = 0  # of the updates in it
        self._sending = False
        self._turn: Any = None  # the call of the clock that goes on with it
        self.methods = MethodRegistry()
        self.methods.register(self.subscribe, with_request=True, action=SUBSCRIBE)
        self.methods.register(self._publish, name="publish", with_request=True, action=PUBLISH)

    def subscribe(self, request: Request, name: str, id: str) -> bool:
        """Publish what comes for NAME to the caller's topic ID."""
        if not isinstance(name, str) or not isinstance(id, str):
            raise Refused("name and topic id are texts", Code.FORMAT.value)
        if len(name) > NAME_CHARACTERS:
            raise Refused(f"a name has at most {NAME_CHARACTERS} characters", Code.FORMAT.value)
        if name not in self._feeds and len(self._feeds) >= NAMES_MAX:
            raise Refused("too many names", Code.UNAVAILABLE.value)
        try:
            topic = request.session.openTopic(id)
        except LimitExceeded as error:
            raise Refused(str(error), Code.UNAVAILABLE.value) from None
        except ValueError as error:
            raise Refused(str(error), Code.FORMAT.value) from None
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = Feed()
        feed.topics[topic] = None
        factory = request.session.factory
        self._spent, self._callLater = factory.spent, factory.clock.callLater
        if factory.turnWatch is not None and "_send" not in vars(self):
            factory.turnWatch.measure(self, "_send", peer="updates of the hub")
        topic.whenClosed().addCallback(lambda reason: self._gone(name, feed, topic))
        return True

    def _gone(self, name: str, feed: Feed, topic: Topic) -> None:
        del feed.topics[topic]
        if not feed.topics:
            del self._feeds[name]

    def _publish(self, request: Request, name: str, text: str) -> Deferred[int]:
        sent = self.publish(name, text)
        if not sent.called:  # what a publisher does next, it does after this
            request.session.serveAfter(sent)
        return sent

    def publish(self, name: str, text: str) -> Deferred[int]:
        """Send TEXT to all subscribers of NAME; fires with how many got it.

        It has fired already if all got it in this turn.  Updates for one name are sent in the order
        of their calls.  Cancelling withdraws an update that nobody has got yet.  Raises Refused for
        what is no text, and while too much waits; fails as :meth:`.Topic.publish` raises.
        """
        if not isinstance(name, str) or not isinstance(text, str):
            raise Refused("name and text are texts", Code.FORMAT.value)
        if self._characters >= WAITING_CHARACTERS and len(text) > SMALL_CHARACTERS:
            raise Refused("too many updates wait", Code.UNAVAILABLE.value)
        feed = self._feeds.get(name)
        if feed is None:
            return succeed(0)
        if not feed.waits:
            self._waiting.append(feed)
        sent = feed.add(text)
        self._characters += len(text)
        sent.addBoth(self._sent, len(text))
        if self._turn is None and not self._sending:
            self._send()
        return sent

    def _sent(self, result: Any, characters: int) -> Any:
        self._characters -= characters
        return result

    def _send(self) -> None:
        self._turn = None
        turn = Turn(self._spent)
        self._sending = True
        try:
            while self._waiting:
                feed = self._waiting.popleft()
                feed.send(turn.over)
                if feed.waits:
                    self._waiting.append(feed)
                if turn.over():
                    break
        finally:
            self._sending = False
        if self._waiting:
            self._turn = self._callLater(0, self._send)
