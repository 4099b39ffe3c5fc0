"""Extensions: what they are, and how both sides agree on those of a connection.

To add one, subclass :class:`Extension` under a name that begins with ``x-`` (``MM-10``) and give it
to a factory or a machine: ``known=STANDARD.plus(MyExtension)``.  They are agreed on with pure
functions over the three handshake messages::

    client   opening     required A, B   optional X, Y                              MM-02
    server   answer      required C      optional Y, Z                              MM-03
    client   closing     required A, B, C   optional Y                              MM-04

Names are compared by the extension that they mean, so ``pubsub`` and ``pub-sub`` are one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ... import __version__
from ...core.limits import Limits
from ...core.strict_json import check_json
from ..terms import NUMBER_OF_ACKS_DEFAULT, NUMBER_OF_ACKS_MAX, TYPE_NAME_BYTES_MAX
from ..wire.frames import MAJOR, MINOR, PROTOCOL_ERROR, Handshake, encode_handshake
from ..wire.texts import COUNT_DIGITS_MAX, BadText, Offer, TooLong, is_field, read_count

COUNT_KEYS: Final = ("max-count", "count", "messagesperack")
"""A number of acknowledgements is written with one of these keys; the first is ours (``MM-20``)."""

EXPIRY_KEY: Final = "ackexpiretime"
"""Under ``ack`` a peer says with this how many milliseconds it waits for an acknowledgement."""


class Extension:
    """The base of all extensions: a marker without frames, commands or effects.

    Attributes:
        name: as it stands in handshakes; vendors' begin with ``x-`` (``MM-10``).
        aliases: other spellings that are read as well.
        commands: names of the COMMANDs that it brings along (``MM-15``).
        has_frames: EXTENSION frames of it mean something (``MM-16``, ``MM-33``).
        annotates: it says something about each message: :meth:`frame_before`, :meth:`fields`.
        own_fields: the names of ``fields()``; none here: its own name.
        properties: what the final handshake says about it.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    commands: ClassVar[frozenset[str]] = frozenset()
    has_frames: ClassVar[bool] = False
    annotates: ClassVar[bool] = False
    own_fields: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, properties: Mapping[str, str], limits: Limits) -> None:
        self.properties: Mapping[str, str] = properties
        self.limits: Limits = limits

    # In the handshake ---------------------------------------------------------------------------

    @classmethod
    def check(cls, properties: Mapping[str, str]) -> None:
        """Raise BadText if ``properties`` make no sense; unknown ones are ignored (``MM-08``)."""

    @classmethod
    def check_final(cls, properties: Mapping[str, str], limits: Limits) -> None:
        """Raise BadText if the final ``properties`` ask for more than our limits allow."""

    @classmethod
    def answer(
        cls, theirs: Mapping[str, str], ours: Mapping[str, str], limits: Limits
    ) -> Mapping[str, str]:
        """Return, as the server, the properties to answer to a client's ``theirs``; ``ours`` are
        configured.
        """
        return {**theirs, **ours}

    @classmethod
    def agree(cls, ours: Mapping[str, str], theirs: Mapping[str, str] | None) -> Mapping[str, str]:
        """Return, as the client, the final properties; ``theirs`` is None if the server did not
        name it.
        """
        return {**ours, **(theirs or {})}

    # In the session -----------------------------------------------------------------------------

    def frame_received(self, payload: bytes) -> Any:
        """An EXTENSION frame of this extension came.

        What is returned, unless it is None, goes to the application as an event.  BadText: the
        peer broke the protocol.
        """
        return payload

    def command_received(self, name: str, parameters: Mapping[str, str]) -> None:
        """A COMMAND of this extension came, before the application sees it.

        BadText refuses it with an ERROR (``bad-command: …``); the connection stays.
        """

    def frame_before(self, note: str | None) -> bytes | None:
        """Return the payload of a frame to send before a message, or None (only if ``annotates``).

        ``note`` is what the sender of the message said for this extension, None if nothing.  It is
        empty when a broker hands on a message about which its sender said nothing: whatever was
        said before was said by somebody else, and must not hold for this one (``MM-29``).
        """
        return None

    def fields(self) -> Mapping[str, str]:
        """Return what to add to the fields of the message that came now (only if ``annotates``)."""
        return {}

    def check_note(self, note: str) -> None:
        """Raise BadText or LimitExceeded for a note that ``frame_before`` could not say.

        It is asked before anything of a message is written; the message alone fails.
        """

    def note(self, fields: Mapping[str, str]) -> str | None:
        """Return what a broker hands on of this message's ``fields()``; ``frame_before`` gets it
        there.

        By default the field that has the extension's own name.
        """
        return fields.get(self.name)

    @property
    def objects(self) -> bool:
        """Return whether it may refuse bodies."""
        return type(self).objection is not Extension.objection

    def objection(self, body: bytes) -> str | None:
        """Why this body is refused (``MM-28``); None if it is good."""
        return None

    def encode(self, body: Any) -> bytes | None:
        """Return ``body`` as bytes; None if this extension has no opinion."""
        return None

    def decode(self, body: bytes) -> Any:
        """Return the bytes of a body as an object; None if this extension has no opinion."""
        return None


DOTNET_FIELDS: Final = frozenset({"dotnet-type"})


class ExtensionSet(Mapping[str, type[Extension]]):
    """The extensions that one side knows, by name and alias.

    Iteration returns names only, not aliases.

    Attributes:
        own_fields: the names of fields that these extensions add, and ``dotnet`` in any case.
    """

    def __init__(self, classes: Iterable[type[Extension]]) -> None:
        """Raise ValueError for a name that is no FIELD, or that two extensions share."""
        self._names: dict[str, type[Extension]] = {}
        self._all: dict[str, type[Extension]] = {}
        for extension in classes:
            self._names[extension.name] = extension
            for name in (extension.name, *extension.aliases):
                if not is_field(name):
                    raise ValueError(f"extension name {name!r} is not of a-z, 0-9 and hyphen")
                if name in self._all:
                    raise ValueError(f"two extensions are named {name}")
                self._all[name] = extension
        annotating = [one for one in self._names.values() if one.annotates]
        self.own_fields: frozenset[str] = DOTNET_FIELDS.union(
            *(one.own_fields or {one.name} for one in annotating)
        )

    def plus(self, *classes: type[Extension]) -> ExtensionSet:
        """Return these and vendors' ``classes``; raise ValueError for a name without ``x-``
        (``MM-10``).
        """
        for extension in classes:
            if not extension.name.startswith("x-"):
                raise ValueError(f"a vendor's extension begins with x-, not {extension.name!r}")
        return ExtensionSet([*self._names.values(), *classes])

    def without(self, *names: str) -> ExtensionSet:
        """Return these but for ``names``: they will be refused when required and never be used."""
        return ExtensionSet(kept for name, kept in self._names.items() if name not in names)

    def __getitem__(self, name: str) -> type[Extension]:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Acknowledging(Extension):
    """What ``ack`` and ``batch-ack`` share (``MM-18`` … ``MM-21``); the session has its windows."""

    has_frames = True
    prompt: ClassVar[bool]  # what is safe is acknowledged at once, else when ``count`` are
    default: ClassVar[int]

    def __init__(self, properties: Mapping[str, str], limits: Limits) -> None:
        super().__init__(properties, limits)
        self.count: int = self.named(properties) or self.default  # in flight, each way
        expiry = read_count(properties.get(EXPIRY_KEY, ""))
        self.patience: float = limits["idle-ack"] if expiry is None else expiry / 1000  # seconds

    @staticmethod
    def named(properties: Mapping[str, str]) -> int | None:
        """Return the number in ``properties``, in any of the spellings that are read (MM-20)."""
        for key in COUNT_KEYS:
            text = properties.get(key)
            if text is not None:
                count = read_count(text) or 0
                if not 0 < count <= NUMBER_OF_ACKS_MAX:
                    raise BadText(f"{key}={text} is not between 1 and {NUMBER_OF_ACKS_MAX}")
                return count
        return None

    @classmethod
    def check(cls, properties: Mapping[str, str]) -> None:
        cls.named(properties)

    @classmethod
    def check_final(cls, properties: Mapping[str, str], limits: Limits) -> None:
        """Check the final number (``MM-20``): it may be above the server's, up to its limit."""
        count = cls.named(properties) or cls.default
        allowed = limits.integer("ack-count")
        if count > allowed:
            raise BadText(f"{count} messages in flight, ack-count allows {allowed}")

    @classmethod
    def answer(
        cls, theirs: Mapping[str, str], ours: Mapping[str, str], limits: Limits
    ) -> Mapping[str, str]:
        """Return the lowest of what the client, the configuration and the limit say."""
        counts = [count for count in (cls.named(theirs), cls.named(ours)) if count is not None]
        if not counts:
            return {}
        return {"max-count": str(min(*counts, limits.integer("ack-count")))}

    @classmethod
    def agree(cls, ours: Mapping[str, str], theirs: Mapping[str, str] | None) -> Mapping[str, str]:
        """Return the lower of the two (``MM-20``), or ours if the server names none."""
        count = cls.named(ours) or cls.default
        return {"max-count": str(min(count, cls.named(theirs or {}) or count))}


class BatchAck(Acknowledging):
    """Acknowledges cumulatively (``MM-19``), with a window of 10 or what is agreed."""

    name = "batch-ack"
    prompt = True
    default = NUMBER_OF_ACKS_DEFAULT


class Ack(Acknowledging):
    """Allows one message in flight (``MM-18``), unless the final properties carry a number."""

    name = "ack"
    prompt = False  # an early one makes the reference implementation send again
    default = 1

    @classmethod
    def agree(cls, ours: Mapping[str, str], theirs: Mapping[str, str] | None) -> Mapping[str, str]:
        """As for batch-ack, but a bare ``ack`` says 1, so nothing is written for 1."""
        count = cls.named(ours) or 1
        if theirs is not None:
            count = min(count, cls.named(theirs) or 1)
        return {} if count == 1 else {"max-count": str(count)}


class PubSub(Extension):
    """Subscriptions with filters (``MM-25``), whose commands the broker obeys."""

    name = "pub-sub"
    aliases: ClassVar[tuple[str, ...]] = ("pubsub",)
    commands: ClassVar[frozenset[str]] = frozenset({"subscribe", "unsubscribe"})


class Json(Extension):
    """Every body is one JSON document (``MM-28``), unchecked above ``checked-json-bytes``."""

    name = "json"

    def objection(self, body: bytes) -> str | None:
        """Why ``body`` is not JSON: short, and without a quotation."""
        if len(body) > self.limits["checked-json-bytes"]:
            return None
        try:
            check_json(body)
        except ValueError as error:
            return str(error)[:120]
        return None

    def encode(self, body: Any) -> bytes:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8")

    def decode(self, body: bytes) -> Any:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


class Dotnet(Extension):
    """Puts a type's name before a message (``MM-29``): it holds until the next; empty: no type.

    It is an opaque string: never resolved, and nothing is imported.
    """

    name = "dotnet"
    has_frames = True
    annotates = True
    own_fields = DOTNET_FIELDS

    def __init__(self, properties: Mapping[str, str], limits: Limits) -> None:
        super().__init__(properties, limits)
        self._sent: str | None = None
        self._fields: Mapping[str, str] = {}

    def frame_received(self, payload: bytes) -> None:
        if len(payload) > TYPE_NAME_BYTES_MAX:
            raise BadText(f"a type name has at most {TYPE_NAME_BYTES_MAX} bytes")
        try:
            name = payload.decode("utf-8")
        except UnicodeDecodeError:
            raise BadText("a type name is UTF-8") from None
        self._fields = {"dotnet-type": name} if name else {}

    def frame_before(self, note: str | None) -> bytes | None:
        if note is None or note == (self._sent or ""):
            return None
        self.check_note(note)
        self._sent = note
        return note.encode("utf-8")

    def check_note(self, note: str) -> None:
        if len(note.encode("utf-8")) > TYPE_NAME_BYTES_MAX:
            raise TooLong(f"a type name has at most {TYPE_NAME_BYTES_MAX} bytes")

    def fields(self) -> Mapping[str, str]:
        return self._fields

    def note(self, fields: Mapping[str, str]) -> str | None:
        return fields.get("dotnet-type")


class Xml(Extension):
    """A marker: payloads are XML (``MM-30``)."""

    name = "xml"


class Protobuf(Extension):
    """A marker: payloads are protocol buffers (``MM-30``)."""

    name = "protobuf"


STANDARD: Final = ExtensionSet((BatchAck, Ack, PubSub, Json, Dotnet, Xml, Protobuf))
"""The source defines these; ``microauth`` it only names, so it is not among them (``MM-30``)."""


def read_of(extension: type[Extension], properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return what a session keeps of ``properties``: all of a vendor's, else a number."""
    if STANDARD.get(extension.name) is not extension:
        return properties
    read = {
        key: text
        for key in (*COUNT_KEYS, EXPIRY_KEY)
        if (text := properties.get(key)) is not None and len(text) <= COUNT_DIGITS_MAX
    }
    return properties if len(read) == len(properties) else read  # usual ones are shared


# ── the handshake ───────────────────────────────────────────────────────────────────────────────

IDENTITY: Final = f"twisted-msgproto/{__version__}"
"""Our sides name product and version like this (``MM-03``)."""

UNSUPPORTED_VERSION: Final = "unsupported-version"
UNSUPPORTED_EXTENSION: Final = "unsupported-extension"
EXTENSION_MISMATCH: Final = "extension-mismatch"
BAD_EXTENSION: Final = "bad-extension"


class Broken(Exception):
    """The session cannot go on, or begin; ``reason`` and text make the ERROR that says so."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True, frozen=True)
class Proposal:
    """What one side brings into the handshake.

    Attributes:
        identity: ASCII, ≤ 255 characters.
        required: without these there is no session.
        optional: client: used if the server wants them too; server: suggested to every client.
        known: what may be agreed to at all.

    ValueError for an extension that is not known, is offered twice or has bad properties, and for
    what cannot be written; TypeError for what is no offer with properties of text.
    """

    identity: str = IDENTITY
    required: tuple[Offer, ...] = ()
    optional: tuple[Offer, ...] = ()
    known: ExtensionSet = field(default_factory=lambda: STANDARD)

    def __post_init__(self) -> None:
        offered = set()
        for offer in (*self.required, *self.optional):
            if not isinstance(offer, Offer) or {*map(type, offer.properties.values())} - {str}:
                raise TypeError(f"an Offer with properties of text is expected, not {offer!r}")
            if offer.name not in self.known:
                raise ValueError(f"extension {offer.name} is offered but not known")
            extension = self.known[offer.name]
            extension.check(offer.properties)
            if extension.name in offered:
                raise ValueError(f"extension {extension.name} is offered twice")
            offered.add(extension.name)
        encode_handshake(self.opening())

    def opening(self) -> Handshake:
        """Return a client's first message (``MM-02``)."""
        return Handshake(MAJOR, MINOR, self.identity, self.required, self.optional)


def _by_extension(offers: Iterable[Offer], known: ExtensionSet) -> dict[str, Offer]:
    """Return canonical name → offer, unknown ones under their own name; duplicates are refused."""
    found: dict[str, Offer] = {}
    for offer in offers:
        extension = known.get(offer.name)
        name = offer.name if extension is None else extension.name
        if name in found:
            raise Broken(PROTOCOL_ERROR, f"extension {name} is listed twice")
        if extension is not None:
            try:
                extension.check(offer.properties)
            except BadText as error:
                raise Broken(BAD_EXTENSION, f"{name}: {error}") from None
        found[name] = offer
    return found


def _check_major(major: int, first: bool = False) -> None:
    """After one side has said 1, nothing but 1 is the lower of the two (``MM-05``)."""
    if major < MAJOR or (major > MAJOR and not first):
        raise Broken(UNSUPPORTED_VERSION, f"{major}; this side speaks {MAJOR}.{MINOR}")


def _check_required(offers: Iterable[str], known: ExtensionSet) -> None:
    for name in offers:
        if name not in known:
            raise Broken(UNSUPPORTED_EXTENSION, name)


def answer(opening: Handshake, ours: Proposal, limits: Limits) -> Handshake:
    """Return the server's message to a client's ``opening`` (``MM-03``, ``MM-05`` … ``MM-07``).

    Optional in it is what the client offers and we know, and what we suggest by ourselves.  What
    the client requires goes without saying, unless we have another number in mind for it.
    """
    _check_major(opening.major, first=True)
    known = ours.known
    theirs = _by_extension(opening.offers, known)
    required_by_them = _by_extension(opening.required, known)
    _check_required(required_by_them, known)
    configured = _by_extension((*ours.required, *ours.optional), known)
    required: list[Offer] = []
    optional: list[Offer] = []
    required_by_us = _by_extension(ours.required, known)
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
    known = ours.known
    theirs = _by_extension(reply.offers, known)
    required_by_them = _by_extension(reply.required, known)
    _check_required(required_by_them, known)
    own_required = _by_extension(ours.required, known)
    own_optional = _by_extension(ours.optional, known)

    def settled(name: str) -> Offer:
        own, offer = own_required.get(name) or own_optional.get(name), theirs.get(name)
        spelled = offer or own
        assert spelled is not None
        mine = {} if own is None else own.properties
        said = None if offer is None else offer.properties
        return Offer(spelled.name, known[name].agree(mine, said))

    required = dict.fromkeys((*own_required, *required_by_them))
    optional = [name for name in theirs if name in own_optional and name not in required]
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


Asked = tuple[tuple[str, ...], frozenset[str]]
"""What a client's last message must have and may have: all that a server has to remember."""


def asked(opening: Handshake, reply: Handshake, known: ExtensionSet) -> Asked:
    def names(offers: Iterable[Offer]) -> list[str]:
        return [known[offer.name].name for offer in offers]

    required = (*names(opening.required), *names(reply.required))
    return required, frozenset((*required, *names(reply.offers)))


def check_closing(asked: Asked, last: Handshake, ours: Proposal) -> None:
    """Check the client's last message, as the server (``MM-04``, ``MM-05``, ``MM-07``).

    Every extension that either side requires must be in it, and nothing beyond what the client
    required and the server answered.
    """
    _check_major(last.major)
    required, allowed = asked
    final = _by_extension(last.offers, ours.known)
    for name in required:
        if name not in final:
            raise Broken(EXTENSION_MISMATCH, f"{name} is required and not in the final list")
    for name in final:
        if name not in allowed:
            raise Broken(EXTENSION_MISMATCH, f"{name} was not agreed on")


def instances(last: Handshake, known: ExtensionSet, limits: Limits) -> list[Extension]:
    """Return the extensions of a session in the order of their indexes, 1 first (``MM-09``)."""
    made = []
    for offer in last.offers:
        extension = known[offer.name]
        try:
            extension.check_final(offer.properties, limits)
        except BadText as error:
            raise Broken(BAD_EXTENSION, f"{offer.name}: {error}") from None
        made.append(extension(read_of(extension, offer.properties), limits))
    return made
