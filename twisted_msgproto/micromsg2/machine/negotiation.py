"""Agree on the extensions of a connection, with pure functions over the three handshake messages::

    client   opening     required A, B   optional X, Y                              MM-02
    server   answer      required C      optional Y, Z                              MM-03
    client   closing     required A, B, C   optional Y                              MM-04

Names are compared by the extension that they mean, so ``pubsub`` and ``pub-sub`` are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ... import __version__
from ...core.kept import table_octets
from ...core.limits import Limits
from ..wire import MAJOR, MINOR, PROTOCOL_ERROR, BadText, Handshake, Offer, encode_handshake
from .extensions import STANDARD, Ack, BatchAck, Extension, ExtensionSet, is_standard, read_of

IDENTITY: Final = f"twisted-msgproto/{__version__}"
"""Our sides name product and version like this (``MM-03``)."""

UNSUPPORTED_VERSION: Final = "unsupported-version"
UNSUPPORTED_EXTENSION: Final = "unsupported-extension"
EXTENSION_MISMATCH: Final = "extension-mismatch"
BAD_EXTENSION: Final = "bad-extension"


class Disagreement(Exception):
    """The handshake cannot succeed; ``code`` and text make the ERROR that says so."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True, frozen=True)
class Proposal:
    """What one side brings into the handshake.

    Attributes:
        identity: ASCII, ≤ 255 characters.
        required: without these there is no session.
        optional: client: used if the server wants them too; server: suggested to every client.
        known: what may be agreed to at all.
        accepted: client: names to use when the server suggests them, though not offered.

    ValueError for an extension that is not known, is offered twice or has bad properties, and for
    what cannot be written.
    """

    identity: str = IDENTITY
    required: tuple[Offer, ...] = ()
    optional: tuple[Offer, ...] = ()
    known: ExtensionSet = field(default_factory=lambda: STANDARD)
    accepted: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        offered = set()
        for offer in (*self.required, *self.optional):
            if offer.name not in self.known:
                raise ValueError(f"extension {offer.name} is offered but not known")
            extension = self.known[offer.name]
            extension.check(offer.properties, Limits.of())
            if extension.name in offered:
                raise ValueError(f"extension {extension.name} is offered twice")
            offered.add(extension.name)
        encode_handshake(self.opening())

    def opening(self) -> Handshake:
        """Return a client's first message (``MM-02``)."""
        return Handshake(MAJOR, MINOR, self.identity, self.required, self.optional)


def _by_extension(offers: Iterable[Offer], known: ExtensionSet, limits: Limits) -> dict[str, Offer]:
    """Return canonical name → offer, unknown ones under their own name; duplicates are refused."""
    found: dict[str, Offer] = {}
    for offer in offers:
        extension = known.get(offer.name)
        name = offer.name if extension is None else extension.name
        if name in found:
            raise Disagreement(PROTOCOL_ERROR, f"extension {name} is listed twice")
        if extension is not None:
            try:
                extension.check(offer.properties, limits)
            except BadText as error:
                raise Disagreement(BAD_EXTENSION, f"{name}: {error}") from None
        found[name] = offer
    return found


def _check_major(major: int) -> None:
    if major < MAJOR:
        raise Disagreement(UNSUPPORTED_VERSION, f"{major}; this side speaks {MAJOR}.{MINOR}")


def _check_lowest(major: int) -> None:
    """After one side has said 1, nothing but 1 is the lower of the two (``MM-05``)."""
    if major != MAJOR:
        raise Disagreement(UNSUPPORTED_VERSION, f"{major}; agreed was {MAJOR}.{MINOR}")


def _check_required(offers: Iterable[str], known: ExtensionSet) -> None:
    for name in offers:
        if name not in known:
            raise Disagreement(UNSUPPORTED_EXTENSION, name)


def answer(opening: Handshake, ours: Proposal, limits: Limits) -> Handshake:
    """Return the server's message to a client's ``opening`` (``MM-03``, ``MM-05`` … ``MM-07``).

    Optional in it is what the client offers and we know, and what we suggest by ourselves.  What
    the client requires goes without saying, unless we have another number in mind for it.
    """
    _check_major(opening.major)
    known = ours.known
    theirs = _by_extension(opening.offers, known, limits)
    required_by_them = _by_extension(opening.required, known, limits)
    _check_required(required_by_them, known)
    configured = _by_extension((*ours.required, *ours.optional), known, limits)
    required: list[Offer] = []
    optional: list[Offer] = []
    required_by_us = _by_extension(ours.required, known, limits)
    for name in dict.fromkeys((*configured, *theirs)):
        extension = known.get(name)
        if extension is None:
            continue  # an option that we do not have
        offer = theirs.get(name)
        own = configured[name].properties if name in configured else {}
        named = extension.answer({} if offer is None else offer.properties, own, limits)
        answered = Offer(name if offer is None else offer.name, named)
        if name in required_by_us:
            required.append(answered)
        elif name not in required_by_them:
            optional.append(answered)
        elif dict(named) != dict(required_by_them[name].properties):
            required.append(answered)
    return Handshake(MAJOR, MINOR, ours.identity, tuple(required), tuple(optional))


def closing(reply: Handshake, ours: Proposal, limits: Limits) -> Handshake:
    """The client's last message to a server's answer (``MM-04`` … ``MM-07``, ``MM-20``)."""
    _check_major(reply.major)
    _check_lowest(reply.major)
    known = ours.known
    theirs = _by_extension(reply.offers, known, limits)
    required_by_them = _by_extension(reply.required, known, limits)
    _check_required(required_by_them, known)
    own_required = _by_extension(ours.required, known, limits)
    own_optional = _by_extension(ours.optional, known, limits)
    wanted = {*own_optional, *(known[name].name for name in ours.accepted if name in known)}

    def settled(name: str) -> Offer:
        own = own_required.get(name) or own_optional.get(name)
        offer = theirs.get(name)
        properties = known[name].agree(
            {} if own is None else own.properties,
            None if offer is None else offer.properties,
            limits,
        )
        spelled = offer if offer is not None else own
        assert spelled is not None
        return Offer(spelled.name, properties)

    required = dict.fromkeys((*own_required, *required_by_them))
    optional = [name for name in theirs if name in wanted and name not in required]
    if BatchAck.name in (*required, *optional) and Ack.name in optional:
        optional.remove(Ack.name)  # batch-ack would be used anyway (MM-20)
    last = Handshake(
        MAJOR,
        MINOR,
        ours.identity,
        tuple(map(settled, required)),
        tuple(map(settled, optional)),
    )
    instances(last, known, limits)
    return last


class Asked(NamedTuple):
    """Names the extensions that a client's last message must have, and those that it may have.

    It is all that a server has to remember of two messages in which a client may have written a
    thousand properties.
    """

    required: tuple[str, ...]
    allowed: frozenset[str]


def asked(opening: Handshake, reply: Handshake, known: ExtensionSet) -> Asked:
    """Return what the client has to answer to the server's ``reply``."""

    def names(offers: Iterable[Offer]) -> list[str]:
        return [known[offer.name].name for offer in offers]

    required = (*names(opening.required), *names(reply.required))
    return Asked(required, frozenset((*required, *names(reply.offers))))


def check_closing(asked: Asked, last: Handshake, ours: Proposal, limits: Limits) -> None:
    """Check the client's last message, as the server (``MM-04``, ``MM-05``, ``MM-07``).

    Every extension that either side requires must be in it, and nothing beyond what the client
    required and the server answered.
    """
    _check_lowest(last.major)
    final = _by_extension(last.offers, ours.known, limits)
    for name in asked.required:
        if name not in final:
            raise Disagreement(EXTENSION_MISMATCH, f"{name} is required and not in the final list")
    for name in final:
        if name not in asked.allowed:
            raise Disagreement(EXTENSION_MISMATCH, f"{name} was not agreed on")


def kept_octets(last: Handshake, known: ExtensionSet) -> int:
    """Return what a session keeps of the final properties: those of vendors' extensions, which may
    mean anything.
    """
    return sum(
        [
            table_octets(offer.properties)
            for offer in last.offers
            if not is_standard(known[offer.name])
        ]
    )


def instances(last: Handshake, known: ExtensionSet, limits: Limits) -> list[Extension]:
    """Return the extensions of a session in the order of their indexes, 1 first (``MM-09``)."""
    made = []
    for offer in last.offers:
        extension = known[offer.name]
        try:
            extension.check_final(offer.properties, limits)
        except BadText as error:
            raise Disagreement(BAD_EXTENSION, f"{offer.name}: {error}") from None
        made.append(extension(read_of(extension, offer.properties), limits))
    return made
