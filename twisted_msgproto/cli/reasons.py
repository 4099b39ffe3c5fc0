"""Why a ``send`` or ``recv`` ended, in words: what went wrong, and what to try (FC-06)."""

from __future__ import annotations

import re
from typing import Final

REASONS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"^(Session)?Refused: .*(Access Forbidden|\brejected$|not authorized)",
        "the server refuses the log-in ({text}); see --user and --password-file",
    ),
    (
        r"none of the server's mechanisms",
        "the server wants a log-in, and none of its kinds can be used ({text}); see --user and"
        " --password-file; a password leaves this machine with CURVE alone: --tls-ca, --tls-key",
    ),
    (r"^SessionRefused: ", "the server refuses the session ({text})"),
    (
        r"no WebSocket: .*upgrade failed|WebSocket connection upgrade failed|Bad HTTP response",
        "there is no WebSocket at {endpoint}; are its port and its path right? ({text})",
    ),
    (
        r"no session in time|opening handshake timeout|the handshake took",
        "the server accepted the connection and gave no session; does it speak this protocol?"
        " ({text})",
    ),
    (
        r"^TimedOut: the server does not answer",
        "{text}; is a server of this protocol running at {endpoint}?",
    ),
    (
        r"^ProtocolViolation: |ended: version octet|ended: unknown|not '1' or '2'",
        "what the server at {endpoint} says is not this protocol ({text})",
    ),
    (
        r"said '?failed: ",
        "the server could not store what it was sent ({text}); its log says why",
    ),
    (
        r"certificate verify failed|self.signed certificate|unable to get local issuer",
        "TLS: the server's certificate is not one to trust; give the file of the authority which"
        " signed it: --tls-ca FILE",
    ),
    (
        r"VerificationError|certificate is for another name",
        "TLS: the server's certificate is for another name; use the name which it was made for",
    ),
    (
        r"wrong version number|record layer failure|packet length too long|http request"
        r"|unknown protocol|unexpected message",
        "TLS: the server does not speak TLS there; try tcp: (or ws:) or its TLS port",
    ),
    (
        r"alert certificate required|alert handshake failure|peer did not return a certificate",
        "TLS: the server wants a certificate of ours: --tls-cert FILE and --tls-key FILE",
    ),
    (
        r"alert (bad certificate|unknown ca|certificate unknown|certificate expired"
        r"|certificate revoked|unsupported certificate)",
        "TLS: the server does not accept our certificate; see --tls-cert FILE and --tls-key FILE",
    ),
    (
        r"alert protocol version|unsupported protocol|no protocols available",
        "TLS: the server offers no version of TLS which is safe; it needs TLS 1.2 or newer",
    ),
    (r"SSL routines|SSL\.Error|TLS: ", "TLS: no secure connection could be made ({text})"),
    (
        r"^ConnectionRefusedError|Connection refused",
        "nobody listens at {endpoint}; is the server running, and is the port right?",
    ),
    (
        r"^DNSLookupError",
        "there is no address for the host of {endpoint}; is its name right?",
    ),
    (
        r"^(TCPTimedOutError|TimeoutError)|^UserError",
        "{endpoint} cannot be reached: it does not answer; see the address and the firewalls",
    ),
    (
        r"^NoRouteError|Network is unreachable|No route to host",
        "there is no way to the host of {endpoint}; see the address and the network",
    ),
    (
        r"^BadFileError|No such file or directory",
        "there is no such socket: {endpoint}; is the server running?",
    ),
    (
        r"Connection was closed cleanly",
        "the server closed the connection",
    ),
    (
        r"Connection to the other side was lost in a non-clean fashion"
        r"|Connection reset|connection was lost uncleanly|peer dropped the TCP connection"
        r"|: the connection was lost$",
        "the connection was lost: the server, or something on the way to it, cut it off",
    ),
    (
        r"aborted locally",
        "the connection was cut off: the server did not take what it was sent",
    ),
)
"""A pattern in ``TYPE: TEXT`` of an error → what to say about it; the first one found counts.

``{text}`` is the error's own text.
"""

NOISE: Final = re.compile(
    r"^((the connection|the session) (has )?ended: |no WebSocket: |the server refused the session: "
    r"|\d+ (?=rejected|temporarily|[a-z]))"
)
"""Taken off an error's text where the words say it anyway; codes mean nothing to a person."""


def plain(error: BaseException) -> str:
    """Return the text of ``error`` in one line."""
    text = str(error)
    if type(error).__module__.startswith("OpenSSL"):
        from ..net.factory import tls_text

        text = f"SSL routines: {tls_text(error)}"
    return " ".join(text.split()).replace("the peer ", "the server ")


def reason(error: BaseException, endpoint: str) -> str:
    """Return what went wrong, and what to try, in one line without a full stop."""
    text, name = plain(error), type(error).__name__
    bare = (NOISE.sub("", text) or name).rstrip(".")
    notes = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    for pattern, words in REASONS:
        if re.search(pattern, f"{name}: {text}"):
            return notes + words.format(text=bare, endpoint=endpoint)
    return notes + bare
