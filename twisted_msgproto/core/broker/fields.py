"""Properties of a message that one protocol has sent and another one delivers.

Servers of several protocols may share the queues of one space.  Then the properties behind the head
of an envelope are read by the protocol that wrote them, into :data:`Fields`, and written by the one
whose consumer gets the message.  ``docs/broker.md`` has the table of what becomes of what.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from .envelopes import Opened

Fields = Mapping[str, Any]
"""These are properties by name; the values are text, bool, int, float, Decimal, datetime, bytes,
None, lists and mappings of these.
"""

Foreign = Callable[[Opened], Fields]
"""Reads the properties of an envelope of any form."""


def no_fields(envelope: Opened) -> Fields:
    """Return no properties: this is a :data:`Foreign` for whoever shares nothing."""
    return {}


def as_text(value: Any) -> str:
    """Return a value as the column ``fields`` has it: text as it is, else JSON text.

    Bytes become base64 and times ISO 8601.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | datetime):
        return _in_json(value)
    return str(value) if isinstance(value, Decimal) else json.dumps(value, default=_in_json)


def _in_json(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)
