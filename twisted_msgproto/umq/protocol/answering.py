"""A UMQ session answers the peer's calls with hooks; here is what they may say."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isawaitable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ...core.errors import LimitExceeded, Refused
from ...core.kept import KEPT_LIMIT
from ...core.message import Message
from ...net.authorising import CALL, refusal_text
from ..machine.attachments import attachment_octets
from ..terms import (
    Attachment,
    AttachmentArrived,
    AttachmentFailure,
    AttachmentsAnnounced,
    CallbackReceived,
    CallReceived,
    ResultReceived,
    TopicUpdated,
)
from ..wire import Code
from .exchange import AttachmentStream, Reply, Request, plain
from .storing import PROTOCOL
from .verbs import Answer, Verbs


class Answering(Verbs):
    """The part of a session that answers calls."""

    # ── hooks for subclasses ────────────────────────────────────────────────────────────────────

    def requestReceived(self, message: Message) -> Any:
        """A call arrived, and the sink (if there is one) has it safe; return the answer's body.

        Text, UTF-8 octets, a :class:`~.exchange.Reply`, None for an empty answer, or a Deferred or
        coroutine for any of these; an exception becomes ``E`` (``UM-09``).  Not called for calls
        that the factory's ``methods`` answer.  The default accepts what a sink has made safe, and
        refuses with code 6 where there is no sink.
        """
        return self._accept()

    def _accept(self) -> None:
        """Return the answer where no application answers: yes, if the sink has accepted the
        call.
        """
        if self.factory.sink is None:
            why = "not an RPC server" if self.factory.methods is None else "no such method"
            raise Refused(why, Code.NOT_AN_RPC_SERVER.value)

    def callReceived(self, request: Request) -> Any:
        """A call arrived: like ``requestReceived``, with attachments as they came.

        The default asks the factory's ``methods``, then ``requestReceived``.
        """
        methods = self.factory.methods
        if methods is not None and methods.answers(request.payload):
            return methods.answer(request)
        if type(self).requestReceived is Answering.requestReceived:
            return self._accept()
        return self.requestReceived(self._message(request))

    def admit(self, message: CallReceived | CallbackReceived) -> None:
        """Decide whether this call may come at all: raise Refused before anything of it is stored.

        By default every call may.
        """

    def needsSafety(self, message: CallReceived | CallbackReceived) -> bool:
        """Return whether this call is answered only when the sink has it safe (if there is a sink).

        True by default; a method may be registered with ``durable=False``.
        """
        methods = self.factory.methods
        return not isinstance(message, CallReceived) or (
            methods is None or bool(methods.durable(message.payload))
        )

    def _admitted(self, event: CallReceived | CallbackReceived) -> bool:
        try:
            self._authorise(event)
            self.admit(event)
        except Exception:
            self._dropStream(event)
            self._refuse(event.id, Failure())
            return False
        return True

    def _authorise(self, event: CallReceived | CallbackReceived) -> None:
        """Raise Refused if the authoriser does not allow this call.

        Callbacks are for who was given them, so nobody is asked about those.
        """
        if self.factory.authoriser is None or not isinstance(event, CallReceived):
            return
        methods = self.factory.methods
        action, name = (CALL, "") if methods is None else methods.access(event.payload)
        if self.refuses(action, name):
            raise Refused(refusal_text(action, name), Code.REJECTED.value)

    def streams(self, message: object) -> bool:
        """Whether to have this announced message's attachments one by one (``UM-19``).

        The default asks those who wait for it: the call, the subscription, the method.
        """
        if isinstance(message, ResultReceived):
            return isinstance(message.waiter, Answer) and message.waiter.streamed
        if isinstance(message, TopicUpdated):
            subscription = self.subscriptions.get(message.topic)
            return subscription is not None and subscription._streamed
        methods = self.factory.methods
        return (
            isinstance(message, CallReceived)
            and methods is not None
            and bool(methods.streams(message.payload))
        )

    # ── attachments one by one ──────────────────────────────────────────────────────────────────

    _streams: dict[int, tuple[object, AttachmentStream]]
    _streamOctets = 0

    def _onAnnounced(self, event: AttachmentsAnnounced) -> None:
        message = event.message
        if self.streams(message):
            stream = AttachmentStream(event.count, self._streamChanged)
            self._streams[id(message)] = message, stream
            self._follow(self.machine.stream(message))
            if len(message.attachments) == event.count:  # all of it came in one read
                attachments, message.attachments = message.attachments, []
                for attachment in attachments:
                    self._streamed(stream, attachment)

    def _onArrived(self, event: AttachmentArrived) -> None:
        kept = self._streams.get(id(event.message))
        if kept is not None:
            message, stream = kept
            self._streamed(stream, event.attachment)
            if stream.complete and stream.taken:
                del self._streams[id(message)]

    def _streamed(self, stream: AttachmentStream, attachment: Attachment) -> None:
        """Deliver an attachment to its stream: as one that failed if all sessions keep too much,
        and nobody waits for it.
        """
        if not stream.awaited and not self.machine.kept.fits(attachment_octets(attachment)):
            self._refusedForOthers("streamed attachment")
            attachment = AttachmentFailure(f"too much is kept: {KEPT_LIMIT}")
        stream.arrived(attachment)

    def _refusedForOthers(self, what: str) -> None:
        raise NotImplementedError

    def _dropStream(self, message: object) -> None:
        stream = self._streamOf(message) if self._streams else None
        if stream is not None:
            stream.drop()

    def _streamOf(self, message: object) -> AttachmentStream | None:
        """Return the attachments of ``message`` that come one by one; asked for once."""
        kept = self._streams.get(id(message))
        if kept is None:
            return None
        stream = kept[1]
        stream.taken = True
        if stream.complete:
            del self._streams[id(message)]
        return stream

    def _streamChanged(self, octets: int) -> None:
        """Count octets of streamed attachments that came or were consumed; above a limit reading
        pauses.
        """
        self._streamOctets += octets
        kept = self.machine.kept
        kept.add(octets) if octets > 0 else kept.remove(-octets)
        if self._streamOctets > self.limits["attachments-octets"] // 4:
            self._control.pause("stream")
        elif self._streamOctets == 0:
            self._control.resume("stream")

    # ── answering ───────────────────────────────────────────────────────────────────────────────

    def _serve(self, event: CallReceived | CallbackReceived) -> None:
        stream = self._streamOf(event) if self._streams else None
        try:
            result = self._ask(event, stream)
        except Exception:
            if stream is not None:
                stream.drop()
            self._refuse(event.id, Failure())
            return
        if isinstance(result, Deferred):
            result.addCallbacks(
                self._answerLater,
                self._refuseLater,
                callbackArgs=(event.id,),
                errbackArgs=(event.id, stream),
            )
            self.machine.later(event.id)
        else:
            self._answer(event.id, result)

    def _ask(self, event: CallReceived | CallbackReceived, stream: AttachmentStream | None) -> Any:
        session: Any = self
        if isinstance(event, CallReceived):
            result = self.callReceived(
                Request(session, event.id, event.payload, event.attachments, None, stream)
            )
        else:
            function = self._callbacks.get(event.callback)
            if function is None:  # unregistered, while the call waited
                raise Refused("callback not found", Code.CALLBACK_NOT_FOUND.value)
            result = function(
                Request(session, event.id, event.payload, event.attachments, event.callback, stream)
            )
        if not isinstance(result, Deferred) and isawaitable(result):
            return Deferred.fromCoroutine(result)  # type: ignore[arg-type]
        return result

    def _answerLater(self, result: Any, id: str) -> None:
        if self.machine.opened:
            self._time()
            self._answer(id, result)
            self._settle()

    def _refuseLater(self, failure: Failure, id: str, stream: AttachmentStream | None) -> None:
        if stream is not None:
            stream.drop()
        if self.machine.opened:
            self._time()
            self._refuse(id, failure)
            self._settle()

    def _answer(self, id: str, result: Any) -> None:
        try:
            if type(result) is str:
                self.machine.result(id, result)
                return
            if not self.machine.opened:
                return
            attachments: Sequence[Any] = ()
            if isinstance(result, Reply):
                result, attachments = result.payload, result.attachments
            if isinstance(result, bytes):
                result = result.decode()
            elif result is None:
                result = ""
            self.machine.result(id, result, self._bodies(attachments) if attachments else ())
        except LimitExceeded:
            self.log.failure("{peer}: an answer is too large", peer=self.peer)
            self.machine.error(id, f"{Code.UNAVAILABLE.value} the answer is too large")
        except Exception:
            self._refuse(id, Failure())

    def _refuse(self, id: str, failure: Failure) -> None:
        """Answer a call that failed: only what was meant for the peer is sent."""
        if not self.machine.opened:
            return
        methods = self.factory.methods
        text = None if methods is None else methods.errorText(failure)
        if text is None and failure.check(Refused):
            code = getattr(failure.value, "code", None)
            text = str(failure.value) if code is None else f"{code} {failure.value}"
        if text is None:
            self._tally["calls_failed"] += 1
            self.log.failure("{peer}: a call failed", failure, peer=self.peer)
            text = "internal error"
        self.machine.error(id, text[: self.limits.integer("payload-characters")])

    def _message(self, request: Request) -> Message:
        methods = self.factory.methods
        return Message(
            PROTOCOL,
            "call",
            self.factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            request.id,
            None if methods is None else methods.nameIn(request.payload),
            None,
            request.payload.encode(),
            plain(request.attachments),
        )
