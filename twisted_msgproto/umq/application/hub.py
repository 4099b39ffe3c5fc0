"""A stock UMQ server has these methods, for named topics to which clients publish and subscribe.

* ``["subscribe", NAME, TOPIC-ID]``: publish what comes for NAME to the caller's topic;
* ``["publish", NAME, TEXT]``: to all subscribers of NAME; the answer is how many there are;
* ``["methods"]``: this list.

An authoriser is asked about the NAME, with the actions ``subscribe`` and ``publish``.

A subscriber that does not read is dropped by its topic's limits (``UM-21``).
"""

from __future__ import annotations

from ...core.errors import LimitExceeded, Refused
from ...net.authorising import PUBLISH, SUBSCRIBE
from ..protocol.exchange import Request
from ..protocol.topics import Topic
from ..wire import Code
from .methods import MethodRegistry

NAMES_MAX = 10_000
"""All clients together may subscribe to this many names."""


class Hub:
    """Keeps named topics over any number of sessions.

    Attributes:
        methods: the registry to give to a factory; register your own methods beside these.
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[Topic, None]] = {}
        self.methods = MethodRegistry()
        self.methods.register(self.subscribe, with_request=True, action=SUBSCRIBE)
        self.methods.register(self.publish, action=PUBLISH)

    def subscribe(self, request: Request, name: str, id: str) -> bool:
        """Publish what comes for NAME to the caller's topic ID."""
        if not isinstance(name, str) or not isinstance(id, str):
            raise Refused("name and topic id are texts", Code.FORMAT.value)
        if name not in self._topics and len(self._topics) >= NAMES_MAX:
            raise Refused("too many names", Code.UNAVAILABLE.value)
        try:
            topic = request.session.openTopic(id)
        except LimitExceeded as error:
            raise Refused(str(error), Code.UNAVAILABLE.value) from None
        except ValueError as error:
            raise Refused(str(error), Code.FORMAT.value) from None
        self._topics.setdefault(name, {})[topic] = None
        topic.whenClosed().addCallback(lambda reason: self._gone(name, topic))
        return True

    def _gone(self, name: str, topic: Topic) -> None:
        topics = self._topics[name]
        del topics[topic]
        if not topics:
            del self._topics[name]

    def publish(self, name: str, text: str) -> int:
        """Send TEXT to all subscribers of NAME; how many there are."""
        if not isinstance(name, str) or not isinstance(text, str):
            raise Refused("name and text are texts", Code.FORMAT.value)
        return sum(topic.publish(text) for topic in list(self._topics.get(name, ())))
