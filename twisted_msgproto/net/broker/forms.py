"""Read the properties of messages for queues, whatever protocol wrote their envelopes.

Each protocol with queues has a module ``queued_messages`` with ``fields_of(own)``.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.logger import Logger

from ...core.broker.envelopes import Fields, Opened, as_text, opened
from ...core.errors import ConfigurationError
from ...registry import part

log: Logger = Logger(namespace="twisted_msgproto.broker")


def fields_of(envelope: Opened) -> Fields:
    """Return the properties of an envelope of any form; none if they cannot be read."""
    try:
        fields: Fields = part(envelope.form, "queued_messages", "fields_of")(envelope.own)
    except (ConfigurationError, ValueError, ImportError, AttributeError) as error:
        text = "the properties of a message for {name} cannot be read: {error}"
        log.warn(text, name=str(envelope.name), error=error)
        return {}
    return fields


def texts_of(envelope: bytes) -> Mapping[str, str]:
    try:
        return {name: as_text(value) for name, value in fields_of(opened(envelope)).items()}
    except ValueError:
        return {}
