"""What a UMQ server may do with its calls: methods by name, and topics by name.

**Methods** are an optional JSON codec: a call's payload is ``["method", args…]`` (``UM-17``).  An
exception that was registered as an error for the peer becomes ``{"type": NAME, "message": TEXT}``,
a refusal ``CODE TEXT``; anything else is ours alone to know, and says "internal error".

**Topics** are those of a :class:`Hub`.  A subscriber that does not read is dropped by its topic's
limits (``UM-21``).  Thousands may have subscribed to one name: an update is sent to as many as one
turn has time for, and to the others in the turns after it; everybody else is served between.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypedDict, TypeVar, Unpack, overload

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from ..core.errors import Refused
from ..core.strict_json import (
    DEPTH_MAX,
    INTEGER_DIGITS_MAX,
    JsonRefused,
    NotJson,
    parse_json,
)
from ..net.authorising import CALL, PUBLISH, SUBSCRIBE, known_actions
from ..net.deferreds import promised
from ..net.factory import expect
from ..net.turns import Turn
from .protocol.calls import CallFailed, Reply, Request, Stored
from .protocol.topics import Topic
from .wire import Code

F = TypeVar("F", bound=Callable[..., Any])

JSON_CHARACTERS_MAX: Final = 1 << 20

JSON_CONTAINERS_MAX: Final = 10_000
"""Nor is one with more objects and arrays: reading it would hold up everybody else."""


class RemoteError(CallFailed):
    """The peer's method raised an error that it registered for its peers.

    ``type`` is the error's name there, the text its message.
    """

    def __init__(self, payload: str, type: str, message: str) -> None:
        super().__init__(payload)
        self.args: tuple[Any, ...] = (f"{type}: {message}",)
        self.type = type
        self.message = message


def parse(text: str) -> Any:
    """Raises NotJson, also for JSON that nobody should accept: see :func:`.parse_json`."""
    try:
        return parse_json(text, JSON_CHARACTERS_MAX, containers_max=JSON_CONTAINERS_MAX)
    except JsonRefused as error:
        raise NotJson(str(error)) from None


def dump(value: Any) -> str:
    """A value as compact JSON; TypeError or ValueError for what has none that a peer accepts."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    if "{" in text or len(text) > INTEGER_DIGITS_MAX or text.count("[") > DEPTH_MAX:
        parse(text)
    return text


_BEGINS_CALL: Final = re.compile(r'\[\s*("(?:[^"\\]|\\.)*+")')


class MethodOptions(TypedDict, total=False):
    name: str | None
    durable: bool
    streamed: bool
    with_request: bool
    action: str


@dataclass(slots=True, frozen=True)
class Method:
    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    durable: bool = True
    streamed: bool = False
    with_request: bool = False
    action: str = CALL

    def described(self) -> dict[str, str]:
        """Name, signature and first line of the documentation, for ``["methods"]``."""
        parameters = list(self.signature.parameters.values())[self.with_request :]
        signature = self.signature.replace(parameters=parameters)
        summary = (inspect.getdoc(self.function) or "").partition("\n")[0]
        return {"name": self.name, "signature": f"{self.name}{signature}", "summary": summary}


_NOTHING_READ: Final[tuple[str, list[Any] | None, str]] = ("", None, "")
"""This stands for a payload, the array that was read from it, and what is wrong with it."""


class MethodRegistry:
    """Functions that peers may call by name; it documents itself as the method ``methods``.

    Attributes:
        methods: name → :class:`Method`.
        stored: other names whose calls a server takes; empty: all of them, and other text.
    """

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {}
        self.stored: frozenset[str] = frozenset()
        self._errors: dict[type[BaseException], str] = {}
        self._last = _NOTHING_READ
        self.register(self.described, name="methods", durable=False)

    @overload
    def register(
        self, function: None = None, **options: Unpack[MethodOptions]
    ) -> Callable[[F], F]: ...

    @overload
    def register(self, function: F, **options: Unpack[MethodOptions]) -> F: ...

    def register(self, function: Any = None, **options: Unpack[MethodOptions]) -> Any:
        """Let peers call ``function`` (plain, returning a Deferred, or a coroutine function).

        Usable as a decorator, with or without arguments.  ``name``: by default the function's.
        ``durable`` (True): the answer waits until the sink, if there is one, has the call safe.
        ``streamed`` (False): the call comes before its attachments, so a sink gets it without them.
        ``with_request`` (False): the first argument is the :class:`~.calls.Request`.  ``action``
        (``"call"``): what an authoriser is asked about; any other is about the first argument, a
        name, and not about the method.  ValueError if the name is taken, ConfigurationError for an
        action that there is not.
        """
        if function is None:
            return lambda later: self.register(later, **options)
        expect("function", function, "a function (or name=…)", callable(function))
        settings: dict[str, Any] = {**options}
        name: str = settings.pop("name", None) or function.__name__
        if name in self.methods:
            raise ValueError(f"the method {name!r} is registered already")
        known_actions("action", [settings.get("action", CALL)])
        try:
            signature = inspect.signature(function, eval_str=True)
        except NameError:  # an annotation that is known to type checkers alone
            signature = inspect.signature(function)
        self.methods[name] = Method(name, function, signature, **settings)
        return function

    def error(self, kind: type[BaseException], name: str | None = None) -> type[BaseException]:
        """Tell peers about errors of this class (and subclasses), under ``name``.

        Usable as a decorator of a class.  Without this an error is "internal error" to peers.
        """
        self._errors[kind] = kind.__name__ if name is None else name
        return kind

    def described(self) -> list[dict[str, str]]:
        """Return all methods with their signatures."""
        return [self.methods[name].described() for name in sorted(self.methods)]

    # What a session asks

    def _read(self, payload: str) -> list[Any] | None:
        """Return the array of a call, or None.  Sessions ask about one payload several times."""
        if self._last[0] == payload:
            return self._last[1]
        array, why = None, ""
        if payload[:1] == "[":
            try:
                array = parse_json(payload, JSON_CHARACTERS_MAX, containers_max=JSON_CONTAINERS_MAX)
            except JsonRefused as error:
                why = str(error) if _BEGINS_CALL.match(payload) else ""
            except NotJson as error:
                why = str(error) if self._named(payload) else ""
            else:
                if not array or not isinstance(array[0], str):
                    array = None
        self._last = payload, array, why
        return array

    def _named(self, payload: str) -> bool:
        begins = _BEGINS_CALL.match(payload)
        try:
            return begins is not None and json.loads(begins[1]) in self.methods
        except ValueError:
            return False

    def check(self, payload: str) -> None:
        """Raise Refused for arguments that cannot be accepted, or that the method does not take.

        Sessions ask before a call is stored, so that what is stored is not told as failed.
        """
        array = self._read(payload)
        if array is None and self._last[2]:
            text = f"the arguments are not acceptable: {self._last[2]}"
            raise Refused(text, Code.FORMAT.value)
        method = None if array is None else self.methods.get(array[0])
        if array is None or method is None:
            if self.stored and (array is None or array[0] not in self.stored):
                raise Refused("no such method", Code.NOT_AN_RPC_SERVER.value)
            return
        try:
            method.signature.bind(*[None][: method.with_request], *array[1:])
        except TypeError as error:
            raise Refused(f"{method.name}: {error}", Code.FORMAT.value) from None

    def access(self, payload: str) -> tuple[str, str]:
        """Return what an authoriser is asked about a call: the action, and the name it is about."""
        array = self._read(payload)
        if array is None:
            return CALL, ""
        method = self.methods.get(array[0])
        if method is None or method.action == CALL:
            return CALL, array[0]
        return method.action, array[1] if len(array) > 1 and isinstance(array[1], str) else ""

    def _method(self, payload: str) -> Method | None:
        array = self._read(payload)
        return None if array is None else self.methods.get(array[0])

    def nameIn(self, payload: str) -> str | None:
        """The method's name in a call's payload, known or not; None if it is no such call."""
        array = self._read(payload)
        return None if array is None else str(array[0])

    def answers(self, payload: str) -> bool:
        """Is this the call of a method that is registered here?"""
        return self._method(payload) is not None

    def durable(self, payload: str) -> bool:
        """Is the answer to wait for the sink?"""
        method = self._method(payload)
        return method is None or method.durable

    def streams(self, payload: str) -> bool:
        """Is the call to come before its attachments?"""
        method = self._method(payload)
        return method is not None and method.streamed

    def answer(self, request: Request) -> Any:
        """Call the method; the answer's payload is JSON (a Deferred where the method is late)."""
        array = self._read(request.payload)
        method = None if array is None else self.methods.get(array[0])
        if array is None or method is None:
            raise Refused("no such method", Code.NO_ROUTE.value)
        self._last = _NOTHING_READ  # the method may change its arguments: they are of this call
        arguments = array[1:]
        if method.with_request:
            arguments.insert(0, request)
        result = method.function(*arguments)
        later = promised(result)
        return _encoded(result) if later is None else later.addCallback(_encoded)

    def errorText(self, failure: Failure) -> str | None:
        """What a peer is told of an error that was registered; None for others."""
        for kind, name in self._errors.items():
            if failure.check(kind):
                return dump({"type": name, "message": str(failure.value)})
        return None


def _encoded(result: Any) -> Any:
    if isinstance(result, Reply):
        return Reply(dump(result.payload), result.attachments)
    return dump(result)


class Calling(Protocol):
    """What calls a peer: a session, or a service."""

    def call(
        self, payload: str, attachments: Sequence[Any] = (), timeout: float | None = None
    ) -> Deferred[Reply]: ...


def call_method(
    session: Calling,
    name: str,
    *arguments: Any,
    attachments: Sequence[Any] = (),
    timeout: float | None = None,
) -> Deferred[Any]:
    """Call the peer's method ``name``; fires with its result, or a Reply if it has attachments.

    It fires with :class:`~.calls.Stored` if the peer is a server that has no such method and took
    the call in, with None if the answer is empty.  Fails with RemoteError for errors that the peer
    registered, CallFailed for its refusals, TypeError or ValueError for arguments that have no JSON
    or none that peers accept (nothing is sent then), and as ``session.call`` otherwise; NotJson if
    the answer is no JSON.
    """
    try:
        if not isinstance(name, str):
            raise TypeError(f"a method's name is text, not {type(name).__name__}")
        payload = dump([name, *arguments])
    except (TypeError, ValueError) as error:
        return fail(error)
    return session.call(payload, attachments, timeout).addCallbacks(_decoded, _typed)


def _decoded(reply: Reply) -> Any:
    stored = Stored.read(reply.payload)
    if stored is not None:
        return stored
    value = parse(reply.payload) if reply.payload else None
    return Reply(value, reply.attachments) if reply.attachments else value


def _typed(failure: Failure) -> Any:
    if failure.check(CallFailed):
        payload = failure.value.payload  # type: ignore[union-attr]
        try:
            value = parse(payload)
        except NotJson:
            return failure
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            raise RemoteError(payload, value["type"], str(value.get("message", "")))
    return failure


class Remote:
    """The peer's methods as functions that return Deferreds: ``session.remote.add(1, 2)``.

    Beside its own arguments each takes those of :func:`call_method` by name.
    """

    def __init__(self, session: Calling) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Callable[..., Deferred[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        session = self._session

        def method(*arguments: Any, **options: Any) -> Deferred[Any]:
            return call_method(session, name, *arguments, **options)

        method.__name__ = name
        return method


class Feed:
    """All subscribers get all updates in one order; who comes while one is sent gets the next."""

    def __init__(self) -> None:
        self.topics: dict[Topic, None] = {}  # the subscribers', as they came
        self._updates: OrderedDict[Deferred[int], str] = OrderedDict()
        self._rest: Iterator[Topic] | None = None  # who has not got the first update yet
        self._got = 0

    @property
    def waits(self) -> bool:
        return bool(self._updates)

    def add(self, text: str) -> Deferred[int]:
        """The Deferred fires with how many subscribers got it.

        It fails with what a topic raised (LimitExceeded for a text that is too large): then the
        subscribers after that one do not get the update.  Cancelling it withdraws an update that
        nobody has got yet.
        """
        sent: Deferred[int] = Deferred(self._withdraw)
        self._updates[sent] = text
        return sent

    def _withdraw(self, sent: Deferred[int]) -> None:
        if self._rest is None or sent is not next(iter(self._updates)):
            del self._updates[sent]

    def send(self, late: Callable[[], bool]) -> None:
        """Send what waits to one subscriber after the other, until it is ``late``."""
        while self._updates:
            sent, text = next(iter(self._updates.items()))
            if self._rest is None:
                self._rest, self._got = iter(list(self.topics)), 0
            failure = None
            try:
                for topic in self._rest:
                    self._got += topic.publish(text)
                    if late():
                        return
            except Exception:
                failure = Failure()
            self._rest = None
            if sent.called:
                pass  # cancelled, when some had got it
            elif failure is None:
                sent.callback(self._got)
            else:
                sent.errback(failure)
            del self._updates[sent]  # not before: what is published meanwhile stands behind it
            if late():
                return


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
        self.methods: MethodRegistry = MethodRegistry()
        self.methods.register(self.subscribe, with_request=True, action=SUBSCRIBE)
        self.methods.register(self._publish, name="publish", with_request=True, action=PUBLISH)

    def subscribe(self, request: Request, name: str, id: str) -> bool:
        """Publish what comes for NAME to the caller's topic ID."""
        if not isinstance(name, str):
            raise Refused("a name is text", Code.FORMAT.value)
        if len(name) > NAME_CHARACTERS:
            raise Refused(f"a name has at most {NAME_CHARACTERS} characters", Code.FORMAT.value)
        if name not in self._feeds and len(self._feeds) >= NAMES_MAX:
            raise Refused("too many names", Code.UNAVAILABLE.value)
        topic = request.session.openTopic(id)
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
