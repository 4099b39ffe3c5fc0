"""Programs that collect logs read each line of the log as one JSON object (``--json-log``).

Every process of the package writes the same keys: ``time`` (ISO 8601, UTC), ``level``, ``source``
(the part of the program), ``text`` (the line as people see it) and what else the line says by name,
such as ``protocol``, ``peer``, ``session``, ``client_id`` and ``event``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

FIXED: Final = ("time", "level", "source", "text")

FIELD_MAX: Final = 1000
"""A field's text is cut after this many characters; ``text`` itself is not cut."""


def json_line(
    seconds: float, level: str, source: str, text: str, fields: Mapping[str, Any] | None = None
) -> str:
    """Return one line, without its line end; ``seconds`` since 1970-01-01 UTC.

    Fields that are None are left out; those that JSON has no form for are written as text.
    """
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    line: dict[str, Any] = dict(zip(FIXED, (moment[:-6] + "Z", level, source, text), strict=True))
    for name, value in (fields or {}).items():
        if value is not None and name not in line:
            line[name] = _plain(value)
    return json.dumps(line)  # in ASCII: Unicode has more ends of a line than one


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    return str(value)[:FIELD_MAX]
