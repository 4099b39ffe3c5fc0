"""Lumberjack's server on Twisted moves octets, owns timers and back-pressure, and decides nothing.

Subclass :class:`LumberjackServer` and override its hooks::

    class MyServer(LumberjackServer):
        def messageReceived(self, message):      # None, or a Deferred that delays the ack
            print(message.body)

    factory = LumberjackServerFactory(sink)
    factory.protocol = MyServer
    endpoint.listen(factory)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from twisted.logger import Logger

from ...core.errors import Fault, Refused
from ...core.message import Fields, MessageBatch
from ...net.authorising import PUBLISH, refusal_text
from ...net.counters import Places
from ...net.factory import MsgprotoServerFactory
from ...net.link import SteadyLogger
from ...net.session import Session, SessionLink
from ..machine import Reader
from ..terms import READER, READER_LIMITS, DataReceived, JsonReceived

PROTOCOL: Final = "lumberjack"

READ_OCTETS: Final = 1 << 20
"""One read returns at most this many octets.  Shippers send in bulk, and each read costs a turn
and makes a batch for the queue; ``docs/benchmarks.md`` compares sizes.  The buffer lives for one
read.
"""


NOT_ALLOWED: Final = "not-allowed"
"""This is the reason of the fault of a writer that may not publish."""

REFUSED_MAX: Final = 1000
"""A factory remembers this many refused batches; it forgets the least recent first."""


class ReaderLink(SessionLink):
    """Delivers the events of one writer, and ends its connection when they are not allowed."""

    log: ClassVar[Logger] = SteadyLogger(namespace="twisted_msgproto.lumberjack")
    factory: LumberjackServerFactory
    machine: Reader
    readOctets = READ_OCTETS
    faultEnds = "closed without ack"
    counted = Places(  # the factory counts its events already
        {
            "windows": "machine.counters.windows",
            "acks": "machine.counters.acks",
            "keepalives": "machine.counters.keepalives",
            "trailing_octets": "machine.decoder.trailing_octets",
            "invalid_texts": "machine.decoder.invalid_texts",
        }
    )
    refusalEnds = "; closed without ack"

    def makeMachine(self) -> Reader:
        return Reader(self.factory.limits)

    def transportSecured(self) -> None:
        """The connection stands; on TLS the writer's certificate, if it has one, names it."""
        certificate = getattr(self.transport, "getPeerCertificate", lambda: None)()
        if certificate is not None:
            self.clientId = _subject(certificate)
        self.establish()

    def _deliver(self, event: JsonReceived | DataReceived) -> None:
        if self.factory.authoriser is not None and self.refuses(
            PUBLISH, count=len(event.sequences)
        ):
            # The protocol has no word for it: the connection ends, and nothing is acknowledged.
            self.factory.countFault(NOT_ALLOWED)
            self.because(Refused(refusal_text(PUBLISH, "")))
            self._end(fault=True)
            return
        pairs: Sequence[Fields] | None = None
        bodies: Sequence[bytes] | None = None
        if isinstance(event, JsonReceived):
            kind, bodies = "json", event.bodies
        else:
            kind, pairs = "data", event.pairs
        batch = MessageBatch(  # by place, down to the body: names cost half as much again
            PROTOCOL,
            kind,
            self.factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            len(event.sequences),
            event.octets,
            event.sequences,
            None,  # no destination
            pairs,
            bodies,
        )
        self.deliver(batch, event.place)

    def peerFaulted(self, fault: Fault) -> None:
        """End the connection; say how often the same batch was above a limit."""
        if fault.reason.endswith("-limit"):
            times = self.factory.refused(self.address, fault)
            if times > 1:
                fault = replace(fault, text=f"{fault.text}; refused {times} times, it comes again")
        super().peerFaulted(fault)

    def _faulted(self, fault: Fault) -> None:
        self.peerFaulted(fault)

    actions: ClassVar = {Fault: _faulted, JsonReceived: _deliver, DataReceived: _deliver}


class LumberjackServer(Session, link=ReaderLink):
    """Serves the reader's side of one connection.

    Attributes:
        session: the public name of this session.
        peer: the writer's transport address as text.
        clientId: the subject of the writer's certificate, or None.
        messageCount: how many events the writer has sent.
        established: whether the connection can be used.
    """

    factory: LumberjackServerFactory
    link: ReaderLink


class LumberjackServerFactory(MsgprotoServerFactory):
    """Builds a :class:`LumberjackServer` for each writer that connects."""

    protocolName = PROTOCOL
    LIMITS = READER_LIMITS
    stateTable = READER
    actions = frozenset({PUBLISH})
    protocol = LumberjackServer  # type: ignore[assignment]

    _refused: OrderedDict[tuple[str, str, str, bytes], int] | None = None

    def refused(self, address: str, fault: Fault) -> int:
        """Note that a batch of this host was above a limit; return how often the same one was.

        A shipper sends a refused batch again for ever, so its owner should hear that.
        """
        if self._refused is None:
            self._refused = OrderedDict()
        batch = (address, fault.reason, fault.text, fault.octets)
        times = self._refused.pop(batch, 0) + 1
        self._refused[batch] = times
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)
        return times


def _subject(certificate: Any) -> str:
    """Return a certificate's subject as one text, most specific part last: ``O=Example,CN=web-1``.

    Each part is written as RFC 4514 has it: a comma within a value cannot pass for a further part.
    """
    return ",".join(part.rfc4514_string() for part in certificate.to_cryptography().subject.rdns)
