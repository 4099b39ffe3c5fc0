"""MTL's frames: the control flow's here, the data flow's in :mod:`.data`.  No state, role or clock.

The control flow has requests and replies in JSON, and an envelope around them (``MT-01`` … 11).

A request's frames are its envelope (everything up to and including the first empty frame), the
command's name and a JSON object; a reply's are the same envelope, a status of three digits and a
JSON object.  A plain REQ socket's envelope is one empty frame, others put a request id before it;
the server sends back whatever it got.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core.limits import Limit, Limits
from ...core.strict_json import JsonRefused, NotJson, parse_json
from .data import IllFormed, decode_name, encode_name

LIMITS: Final = (
    Limit("control-bytes", 64 << 10, "bytes", "of a control request's or reply's JSON body", 64),
)
"""Reading the control flow has these limits (``MT-02``, ``MT-29``)."""

JSON_DEPTH: Final = 16

LEASE_RESOURCES: Final = 256

PROTOCOL: Final[Mapping[str, Any]] = {"name": "MTL", "version": 1}

ENVELOPE_FRAMES_MAX: Final = 5
"""Identity, envelope, command and body are 8 frames at most (``MT-01``, ``MT-12``)."""

ENVELOPE_BYTES_MAX: Final = 255
"""Bytes of one frame of an envelope: ZeroMQ's identities have no more, and REQ's request ids have
four.  A session keeps its last envelope."""

STATUS: Final[Mapping[int, str]] = {
    200: "OK",
    201: "Ready",
    202: "Data Lease",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Challenged",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    501: "Not implemented",
}
"""The ``status`` of a reply is one of these (``MT-03``)."""


class Invalid(ValueError):
    """A well-formed request that cannot be answered with yes: the reply says why (``MT-03``)."""

    def __init__(self, code: int, reason: str, **more: Any) -> None:
        super().__init__(reason)
        self.code = code
        self.more = more


@dataclass(slots=True)
class Open:
    """Connection.Open (``MT-05``)."""

    virtual_host: str


@dataclass(slots=True)
class Authorize:
    """Connection.Authorize: one step of a SASL cycle (``MT-08``)."""

    mechanism: str
    response: bytes


@dataclass(slots=True)
class SelectProfile:
    """Connection.Profile; the name is in lower case (``MT-09``)."""

    profile: str


@dataclass(slots=True)
class RequestReader:
    """Connection.Reader; no resources mean all (``MT-10``)."""

    resources: tuple[str, ...]
    confirm: str


@dataclass(slots=True)
class RequestWriter:
    """Connection.Writer; no resources mean all (``MT-10``)."""

    resources: tuple[str, ...]
    confirm: str


Request = Open | Authorize | SelectProfile | RequestReader | RequestWriter

NAMES: Final[Mapping[type, bytes]] = {
    Open: b"Connection.Open",
    Authorize: b"Connection.Authorize",
    SelectProfile: b"Connection.Profile",
    RequestReader: b"Connection.Reader",
    RequestWriter: b"Connection.Writer",
}

COMMANDS: Final[Mapping[str, type]] = {name.decode().lower(): kind for kind, name in NAMES.items()}
"""By their names in lower case (``MT-04``)."""


def split_envelope(frames: Sequence[bytes]) -> int:
    """Count an envelope's frames, without the identity (``MT-01``); raises IllFormed."""
    count = len(frames) - 2
    if not 1 <= count <= ENVELOPE_FRAMES_MAX:
        raise IllFormed("frames", f"{len(frames)} frames are no request")
    if frames[count - 1] or b"" in frames[: count - 1]:
        raise IllFormed("frames", "not exactly two frames after the first empty one")
    if any(len(frame) > ENVELOPE_BYTES_MAX for frame in frames[:count]):
        raise IllFormed("envelope", f"a frame of more than {ENVELOPE_BYTES_MAX} bytes")
    return count


def parse_command(frame: bytes) -> str:
    """A command's name in lower case; raises IllFormed for what is no text (``MT-04``)."""
    if len(frame) > 255:
        raise IllFormed("command", "a command's name of more than 255 bytes")
    return decode_name(frame).lower()


def parse_body(data: bytes, limits: Limits) -> dict[str, Any]:
    """Return a body's object; raises IllFormed for no JSON, Invalid for what is refused."""
    try:
        body = parse_json(data, limits.integer("control-bytes"), JSON_DEPTH)
    except NotJson as error:
        raise IllFormed("json", str(error)) from None
    except JsonRefused as error:
        raise Invalid(400, str(error)) from None
    if type(body) is not dict:
        raise Invalid(400, "the body is no object")
    return body


def parse_request(kind: type, body: Mapping[str, Any], limits: Limits) -> Request:
    """Read a request; raises Invalid.  Unknown keys are ignored: later versions may have more."""
    if kind is Open:
        return _open(body)
    if kind is Authorize:
        return Authorize(_text(body, "mechanism").upper(), _base64(_text(body, "response", True)))
    if kind is SelectProfile:
        return SelectProfile(_text(body, "profile").lower())
    resources, confirm = _resources(body, limits), _text(body, "confirm")
    if confirm not in ("none", "full"):
        raise Invalid(501, "confirm is none or full")
    request: Request = kind(resources, confirm)
    return request


def _open(body: Mapping[str, Any]) -> Open:
    protocol = body.get("protocol")
    if type(protocol) is not dict:
        raise Invalid(400, "protocol is an object")
    name, version = protocol.get("name"), protocol.get("version")
    if name != PROTOCOL["name"] or type(version) is not int or version != PROTOCOL["version"]:
        raise Invalid(400, "this protocol is not spoken here", protocol=PROTOCOL)
    host = _text(body, "virtual-host", True)
    _check_name(host)
    return Open(host)


def _text(body: Mapping[str, Any], key: str, empty: bool = False) -> str:
    text = body.get(key)
    if type(text) is not str:
        raise Invalid(400, f"{key} is a string")
    if not text and not empty:
        raise Invalid(400, f"{key} is empty")
    return text


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Invalid(400, "response is no base64") from None


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _resources(body: Mapping[str, Any], limits: Limits) -> tuple[str, ...]:
    names = body.get("resources")
    if type(names) is not list or any(type(name) is not str for name in names):
        raise Invalid(400, "resources is a list of strings")
    if len(names) > LEASE_RESOURCES:
        raise Invalid(400, f"more than {LEASE_RESOURCES} resources")
    for name in names:
        _check_name(name)
        if not name:
            raise Invalid(400, "a resource's name is empty")
    return tuple(dict.fromkeys(names))


def _check_name(name: str) -> None:
    """It is a short string: it stands in every row that comes of it (``MT-22``, ``MT-29``)."""
    try:
        encode_name(name)
    except ValueError as error:
        raise Invalid(400, str(error)) from None


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {type(name).__name__}")
    return name


def encode_request(request: Request) -> list[bytes]:
    """The two frames of ``request``, without the envelope; TypeError for a name that is no text."""
    body: dict[str, Any]
    match request:
        case Open():
            body = {"protocol": PROTOCOL, "virtual-host": _name(request.virtual_host)}
        case Authorize():
            response = encode_base64(request.response)
            body = {"mechanism": request.mechanism, "response": response}
        case SelectProfile():
            body = {"profile": _name(request.profile)}
        case _:
            resources, confirm = map(_name, request.resources), _name(request.confirm)
            body = {"resources": list(resources), "confirm": confirm}
    return [NAMES[type(request)], json.dumps(body).encode("utf-8")]


def encode_reply(code: int, **body: Any) -> list[bytes]:
    """The two frames of a reply; the body begins with the status's text (``MT-03``)."""
    return [b"%d" % code, json.dumps({"status": STATUS[code], **body}).encode("utf-8")]


@dataclass(slots=True)
class Reply:
    code: int
    body: Mapping[str, Any]


def parse_reply(frames: Sequence[bytes], limits: Limits) -> Reply:
    """The reply in these frames (empty frame, status, body); raises IllFormed (``MT-02``)."""
    if len(frames) != 3 or frames[0]:
        raise IllFormed("frames", "not an empty frame, a status and a body")
    status = frames[1]
    if not re.fullmatch(rb"[2-5]\d\d", status):
        raise IllFormed("status", "a status is three digits from 2xx to 5xx")
    try:
        return Reply(int(status), parse_body(frames[2], limits))
    except Invalid as error:
        raise IllFormed("json", str(error)) from None
