"""Errors in words: what went wrong, and what to try (FC-06)."""

import pytest
from OpenSSL.SSL import Error as TLSError
from twisted.internet import error

from twisted_msgproto.core.errors import ConnectionClosed, ProtocolViolation, Refused, TimedOut
from twisted_msgproto.core.reasons import reason
from twisted_msgproto.umq import SessionRefused

ENDPOINT = "tcp:logs.example:5044"


def tls(text: str) -> TLSError:
    return TLSError([("SSL routines", "", text)])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (tls("certificate verify failed"), "not one to trust"),
        (Refused("TLS: certificate verify failed"), "not one to trust"),
        (tls("wrong version number"), "the server does not speak TLS there"),
        (tls("tlsv13 alert certificate required"), "wants a certificate of ours: --tls-cert"),
        (tls("sslv3 alert handshake failure"), "wants a certificate of ours: --tls-cert"),
        (tls("tlsv1 alert unknown ca"), "does not accept our certificate"),
        (tls("tlsv1 alert protocol version"), "TLS 1.2 or newer"),
        (tls("something new"), "no secure connection could be made (SSL routines: something new)"),
        (error.ConnectionRefusedError(), "nobody listens at tcp:logs.example:5044"),
        (error.DNSLookupError("no results"), "there is no address for the host of tcp:logs"),
        (error.TCPTimedOutError(), "tcp:logs.example:5044 cannot be reached"),
        (error.TimeoutError(), "tcp:logs.example:5044 cannot be reached"),
        (error.NoRouteError(), "there is no way to the host"),
        (error.ConnectError(2, "No such file or directory"), "there is no such socket"),
        (error.ConnectionDone(), "the server closed the connection"),
        (
            ConnectionClosed("the connection ended: Connection was closed cleanly."),
            "the server closed the connection",
        ),
        (error.ConnectionLost(), "the connection was lost: the server, or something on the way"),
        (SessionRefused("1 rejected", 1), "the server refuses the log-in (rejected); see --user"),
        (
            SessionRefused("8 temporarily unavailable", 8),
            "the server refuses the session (temporarily unavailable)",
        ),
        (
            Refused("the server refused the session: Access Forbidden", 403),
            "the server refuses the log-in (Access Forbidden); see --user and --password-file",
        ),
        (
            Refused("none of the server's mechanisms can be used", 401),
            "the server wants a log-in, and none of its kinds can be used",
        ),
        (
            ConnectionClosed('no WebSocket: Bad HTTP response status line "ERROR"'),
            "there is no WebSocket at tcp:logs.example:5044",
        ),
        (TimedOut("the server does not answer"), "is a server of this protocol running at tcp:"),
        (ProtocolViolation("unknown command"), "is not this protocol (unknown command)"),
        (Refused("the peer said 'no'"), "the server said 'no'"),
        (ValueError(), "ValueError"),
    ],
)
def test_an_error_is_told_in_words(what: BaseException, words: str) -> None:
    told = reason(what, ENDPOINT)
    assert words in told
    assert "\n" not in told
    assert not told.endswith(".")
    assert "[(" not in told


def test_a_note_says_which_message_it_was() -> None:
    refused = Refused("not wanted")
    refused.add_note("message 3")
    assert reason(refused, ENDPOINT) == "message 3: not wanted"
