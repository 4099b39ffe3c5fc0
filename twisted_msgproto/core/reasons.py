"""This module says in words why a connection or a session ended, and what to try.

Clients, the command line and the bridge say it with :func:`reason`, servers with
:func:`ended_because`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .errors import escaped

REASONS: Final[Mapping[str, str]] = {
    r"^(Session)?Refused: .*(Access Forbidden|\brejected$|not authorized)": (
        "the server refuses the log-in ({text}); see --user and --password-file"
    ),
    r"none of the server's mechanisms": (
        "the server wants a log-in, and none of its kinds can be used ({text}); see --user and"
        " --password-file; a password leaves this machine with CURVE alone: --tls-ca, --tls-key"
    ),
    r"^SessionRefused: ": "the server refuses the session ({text})",
    r"no WebSocket: .*upgrade failed|WebSocket connection upgrade failed|Bad HTTP response": (
        "there is no WebSocket at {endpoint}; are its port and its path right? ({text})"
    ),
    r"no session in time|opening handshake timeout|the handshake took": (
        "the server accepted the connection and gave no session; does it speak this protocol?"
        " ({text})"
    ),
    r"^TimedOut: the server does not answer": (
        "{text}; is a server of this protocol running at {endpoint}?"
    ),
    r"^ProtocolViolation: |ended: version byte|ended: unknown|not '1' or '2'": (
        "what the server at {endpoint} says is not this protocol ({text})"
    ),
    r"said '?failed: ": "the server could not store what it was sent ({text}); its log says why",
    r"^[^:]*: .*certificate has expired": (
        "TLS: the server's certificate has expired; its operator has to renew it (or this machine's"
        " clock is wrong)"
    ),
    r"certificate is not yet valid": (
        "TLS: the server's certificate is not valid yet; is this machine's clock right?"
    ),
    r"\bVerificationError|certificate is for another name|Hostname mismatch|certificate is not"
    r" valid for|is not in peer certificate": (
        "TLS: the server's certificate is for another name; use the name which it was made for"
    ),
    r"certificate verify failed|CERTIFICATE_VERIFY_FAILED|self.signed certificate"
    r"|unable to get local issuer": (
        "TLS: the server's certificate is not one to trust; give the file of the authority which"
        " signed it: --tls-ca FILE"
    ),
    r"wrong.version.number|WRONG_VERSION_NUMBER|record layer failure|packet length too long"
    r"|https? (proxy )?request|unknown protocol|unexpected message": (
        "TLS: the server does not speak TLS there; try tcp: (or ws:) or its TLS port"
    ),
    r"alert certificate required|peer did not return a certificate": (
        "TLS: the server wants a certificate of ours: --tls-cert FILE and --tls-key FILE"
    ),
    r"alert handshake failure": (
        "TLS: the server refuses the hand-shake: perhaps it wants a certificate of ours (--tls-cert"
        " FILE and --tls-key FILE), or has none itself; its log says why"
    ),
    r"alert (bad certificate|unknown ca|certificate unknown|certificate expired"
    r"|certificate revoked|unsupported certificate)": (
        "TLS: the server does not accept our certificate; see --tls-cert FILE and --tls-key FILE"
    ),
    r"alert protocol version|unsupported protocol|no protocols available": (
        "TLS: the server offers no version of TLS which is safe; it needs TLS 1.2 or newer"
    ),
    r"SSL routines|SSL\.Error|TLS: ": "TLS: no secure connection could be made ({text})",
    r"^ConnectionRefusedError|Connection refused": (
        "nobody listens at {endpoint}; is the server running, and is the port right?"
    ),
    r"^DNSLookupError|Name or service not known|nodename nor servname"
    r"|address lookup failed|DNS resolution failed": (
        "there is no address for the host of {endpoint}; is its name right?"
    ),
    r"^(TCPTimedOutError|TimeoutError)|^UserError|Deadline Exceeded": (
        "{endpoint} cannot be reached: it does not answer; see the address and the firewalls"
    ),
    r"^NoRouteError|Network is unreachable|No route to host": (
        "there is no way to the host of {endpoint}; see the address and the network"
    ),
    r"^BadFileError|No such file or directory": (
        "there is no such socket: {endpoint}; is the server running?"
    ),
    # of Flight
    r"failed to connect .*Socket closed": (
        "the server closed the connection; if it speaks TLS there, try grpc+tls:"
    ),
    r"Connection was closed cleanly": "the server closed the connection",
    r"Connection to the other side was lost in a non-clean fashion"
    r"|Connection reset|connection was lost uncleanly|peer dropped the TCP connection"
    r"|: the connection was lost$": (
        "the connection was lost: the server, or something on the way to it, cut it off"
    ),
    r"aborted locally": "the connection was cut off: the server did not take what it was sent",
}
"""A pattern in ``TYPE: TEXT`` of an error → what to say about it; the first one found counts.

``{text}`` is the error's own text.
"""

HINTS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        r"^the server closed the connection$|^the connection was lost: ",
        r"tcp:(?!//)|ws:",
        "if it speaks TLS there, try {other}; its log says why",
    ),
    (
        r"^the server did not answer|no session in time|gave no session"
        r"|^the connection was lost: ",
        r"tls:|wss:",
        "if it does not speak TLS there, try {other}",
    ),
)
"""Words that match the first pattern, of an endpoint that matches the second → one more remedy, as
long as the server has not shown that it speaks as we do.
"""

OTHER: Final = {"tcp": "tls:", "ws": "wss:", "tls": "tcp:", "wss": "ws:"}

NOISE: Final = re.compile(
    r"^((the connection|the session) (has )?ended: |no WebSocket: |the server refused the session: "
    r"|\d+ (?=rejected|temporarily|[a-z]))"
)
"""Taken off an error's text where the words say it anyway; codes mean nothing to a person."""


LISTENING: Final[Mapping[str, str]] = {
    r"Address already in use": (
        "another program (ss -tanp names it) or another endpoint of this one listens there: end"
        " that, or choose another port"
    ),
    r"Cannot assign requested address": (
        "this machine has no such address: name one of its own, or 0.0.0.0 for all"
    ),
    r"Permission denied": (
        "this user may not: choose a port from 1024 on, or a directory that it may write to"
    ),
    r"No such file or directory": "make its directory first",
    r"Name or service not known|Address family for hostname not supported|No address assoc": (
        "give it an address of this machine, such as 127.0.0.1, not another name"
    ),
    r"AF_UNIX path too long": "a socket's path has 107 bytes at most: name a shorter one",
}


def _said(table: Mapping[str, str], text: str) -> str:
    return next((words for pattern, words in table.items() if re.search(pattern, text)), "")


def cannot_listen(error: object) -> str:
    text = ERRNO.sub("", str(error)).rstrip(".")
    return "; ".join(filter(None, (text, _said(LISTENING, text))))


ERRNO: Final = re.compile(r"\[Errno -?\d+\] | \(addr=.*\)$")  # the second is pyzmq's


PEERS_TLS: Final[Mapping[str, str]] = {
    r"https? (proxy )?request|wrong version number|record layer failure|packet length too long"
    r"|unknown protocol|unexpected message": "it does not speak TLS, and this endpoint does",
    r"alert (unknown ca|bad certificate|certificate unknown)": (
        "it does not trust this server's certificate: give it the authority that signed it"
    ),
    r"alert certificate (expired|revoked)": (
        "it says that this server's certificate has expired or was revoked: renew it, then"
        " msgproto reload"
    ),
    r"peer did not return a certificate": "it shows no certificate, and this endpoint wants one",
    r"certificate verify failed": (
        "its certificate has expired, or none of this endpoint's caCerts has signed it"
    ),
    r"no suitable signature algorithm": "this endpoint has no certificate of its own that fits",
    r"unsupported protocol|no shared cipher|protocol version|no protocols available": (
        "it has no version of TLS, or no cipher, that is allowed here"
    ),
}


def client_tls(text: str) -> str:
    words = _said(PEERS_TLS, text)
    return f"{words} ({text})" if words else text


TLS_BEGINS: Final = b"\x16\x03"

TLS_HERE: Final = "it speaks TLS, and this endpoint does not"


def speaks_tls(data: bytes) -> bool:
    return data[:2] == TLS_BEGINS


PEER_ENDS: Final[Mapping[str, str]] = {
    r"Connection was closed cleanly": "the peer closed the connection",
    r"non-clean fashion|uncleanly|Connection reset": "the connection was lost",
    r"aborted locally|Connection was aborted": "this side cut the connection off",
}


def ended_because(error: BaseException | None) -> str:
    text = "" if error is None else plain(error)
    bare = NOISE.sub("", text.removeprefix("the connection was lost: ")).rstrip(".")
    return _said(PEER_ENDS, text) or bare or "it was over"


def tls_text(error: BaseException | None) -> str:
    """Return what OpenSSL says: of a list of (library, function, reason), or the system's."""
    entries, *names = error.args if error and error.args else ((),)
    reasons = [entry[-1] for entry in entries] if isinstance(entries, list) else names
    return ", ".join(map(str, reasons)) or "the connection ended in the middle of it"


def plain(error: BaseException) -> str:
    text = str(error)
    if type(error).__module__.startswith("OpenSSL"):
        text = f"SSL routines: {tls_text(error)}"
    return escaped(" ".join(text.split())).replace("the peer ", "the server ")


def reason(error: BaseException, endpoint: str, *, served: bool = True) -> str:
    """Return what went wrong, and what to try, in one line without a full stop.

    ``endpoint`` is whom it went wrong with.  ``served`` is False if the server has done nothing for
    us yet: then TLS may be what is wrong.
    """
    text, name = plain(error), type(error).__name__
    bare = (NOISE.sub("", text) or name).rstrip(".")
    notes = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    words = (_said(REASONS, f"{name}: {text}") or "{text}").format(text=bare, endpoint=endpoint)
    for said, where, hint in () if served else HINTS:
        if re.search(said, words) and re.match(where, endpoint):
            return f"{notes}{words}; " + hint.format(other=OTHER[endpoint.partition(":")[0]])
    return notes + words
