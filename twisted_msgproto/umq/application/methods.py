"""An optional JSON codec: a call's payload is ``["method", args…]`` (``UM-17``).

UMQ itself never looks into a payload.  A :class:`MethodRegistry` answers such calls with Python
functions and documents itself; :class:`Remote` makes the peer's methods functions that return
Deferreds.

* Answer: the result as JSON.
* Error: ``{"type": NAME, "message": TEXT}`` as the payload of ``E`` for exceptions that were
  registered as errors for the peer, ``CODE TEXT`` for refusals; anything else is ours alone to
  know, and says "internal error".
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ...core.errors import Refused
from ...core.strict_json import JsonRefused, NotJson, parse_json
from ...net.authorising import CALL
from ..protocol.exchange import CallFailed, Reply, Request, Stored
from ..wire import Code

if TYPE_CHECKING:
    from ..protocol.session import UmqSession

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
        self.args = (f"{type}: {message}",)
        self.type = type
        self.message = message


def parse(text: str) -> Any:
    """Return the value of a JSON text.

    Raises NotJson, also for JSON that nobody should accept: see :func:`.parse_json`.
    """
    try:
        return parse_json(text, JSON_CHARACTERS_MAX, containers_max=JSON_CONTAINERS_MAX)
    except JsonRefused as error:
        raise NotJson(str(error)) from None


def dump(value: Any) -> str:
    """A value as compact JSON; TypeError or ValueError for what has no JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@dataclass(slots=True, frozen=True)
class Method:
    """A function that peers may call, and how."""

    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    durable: bool
    streamed: bool
    with_request: bool
    action: str = CALL

    def described(self) -> dict[str, str]:
        """Name, signature and first line of the documentation, for ``["methods"]``."""
        parameters = list(self.signature.parameters.values())[self.with_request :]
        signature = self.signature.replace(parameters=parameters)
        summary = (inspect.getdoc(self.function) or "").partition("\n")[0]
        return {"name": self.name, "signature": f"{self.name}{signature}", "summary": summary}


class MethodRegistry:
    """Functions that peers may call by name; it documents itself as the method ``methods``.

    Attributes:
        methods: name → :class:`Method`.
    """

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {}
        self._errors: dict[type[BaseException], str] = {}
        self._last: tuple[str, list[Any] | None] = ("", None)
        self.register(self.described, name="methods", durable=False)

    @overload
    def register(self, function: F) -> F: ...

    @overload
    def register(
        self,
        function: None = None,
        *,
        name: str | None = None,
        durable: bool = True,
        streamed: bool = False,
        with_request: bool = False,
        action: str = CALL,
    ) -> Callable[[F], F]: ...

    @overload
    def register(
        self,
        function: F,
        *,
        name: str | None = None,
        durable: bool = True,
        streamed: bool = False,
        with_request: bool = False,
        action: str = CALL,
    ) -> F: ...

    def register(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        durable: bool = True,
        streamed: bool = False,
        with_request: bool = False,
        action: str = CALL,
    ) -> Any:
        """Let peers call ``function`` (plain, returning a Deferred, or a coroutine function).

        Usable as a decorator, with or without arguments.  ``durable``: the answer waits until the
        sink (if there is one) has the call safe.  ``streamed``: the call comes before its
        attachments.  ``with_request``: the first argument is the :class:`~.exchange.Request`.
        ``action``: what an authoriser is asked about; other than ``"call"`` it is about the first
        argument, a name, and not about the method.  ValueError if the name is taken.
        """
        if function is None:
            return lambda later: self.register(
                later,
                name=name,
                durable=durable,
                streamed=streamed,
                with_request=with_request,
                action=action,
            )
        name = function.__name__ if name is None else name
        if name in self.methods:
            raise ValueError(f"the method {name!r} is registered already")
        try:
            signature = inspect.signature(function, eval_str=True)
        except NameError:  # an annotation that is known to type checkers alone
            signature = inspect.signature(function)
        self.methods[name] = Method(
            name, function, signature, durable, streamed, with_request, action
        )
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
        array = None
        if payload[:1] == "[":
            try:
                array = parse(payload)
            except NotJson:
                array = None
            else:
                if not array or not isinstance(array[0], str):
                    array = None
        self._last = payload, array
        return array

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
        arguments = array[1:]
        if method.with_request:
            arguments.insert(0, request)
        try:
            method.signature.bind(*arguments)
        except TypeError as error:
            raise Refused(f"{method.name}: {error}", Code.FORMAT.value) from None
        result = method.function(*arguments)
        if not isinstance(result, Deferred):
            if not isawaitable(result):
                return _encoded(result)
            result = Deferred.fromCoroutine(result)  # type: ignore[arg-type]
        return result.addCallback(_encoded)

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


def call_method(
    session: UmqSession,
    name: str,
    *arguments: Any,
    attachments: Sequence[Any] = (),
    timeout: float | None = None,
) -> Deferred[Any]:
    """Call the peer's method ``name``; fires with its result, or a Reply if it has attachments.

    It fires with :class:`~.exchange.Stored` if the peer is a stock server that has no such method.
    Fails with RemoteError for errors that the peer registered, CallFailed for its refusals, and as
    ``session.call`` otherwise; NotJson if the answer is no JSON.
    """
    payload = dump([name, *arguments])
    return session.call(payload, attachments, timeout).addCallbacks(_decoded, _typed)


def _decoded(reply: Reply) -> Any:
    stored = Stored.read(reply.payload)
    if stored is not None:
        return stored
    value = parse(reply.payload)
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
    """The peer's methods as functions that return Deferreds: ``Remote(session).add(1, 2)``."""

    def __init__(self, session: UmqSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Callable[..., Deferred[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        session = self._session

        def method(*arguments: Any, **options: Any) -> Deferred[Any]:
            return call_method(session, name, *arguments, **options)

        method.__name__ = name
        return method
