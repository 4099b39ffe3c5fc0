"""What users read: errors with what to try (FC-06), and limits as data."""

from ssl import SSLCertVerificationError

import pytest
from OpenSSL.SSL import Error as TLSError
from twisted.internet import error

from twisted_msgproto.core.errors import (
    ConfigurationError,
    ConnectionClosed,
    LimitExceeded,
    ProtocolViolation,
    Refused,
    TimedOut,
)
from twisted_msgproto.core.limits import Limit, Limits, amount
from twisted_msgproto.core.reasons import (
    cannot_listen,
    client_tls,
    ended_because,
    reason,
    speaks_tls,
)
from twisted_msgproto.umq import SessionRefused

ENDPOINT = "tcp:logs.example:5044"


def tls(text: str) -> TLSError:
    return TLSError([("SSL routines", "", text)])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (tls("certificate verify failed"), "not one to trust"),
        (Refused("TLS: certificate verify failed"), "not one to trust"),
        (
            SSLCertVerificationError("certificate verify failed: self-signed certificate"),
            "not one to trust",
        ),
        (
            SSLCertVerificationError(
                "certificate verify failed: Hostname mismatch, certificate is"
            ),
            "the server's certificate is for another name",
        ),
        (tls("wrong version number"), "the server does not speak TLS there"),
        (tls("tlsv13 alert certificate required"), "wants a certificate of ours: --tls-cert"),
        (tls("sslv3 alert handshake failure"), "a certificate of ours (--tls-cert FILE and"),
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


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("[Errno 98] Address already in use.", "Address already in use; "),
        ("[Errno 13] Permission denied", "Permission denied; this user may not: choose a port"),
        ("[Errno 2] No such file or directory", "make its directory first"),
    ],
)
def test_why_an_endpoint_cannot_be_listened_on(what: str, words: str) -> None:
    assert words in cannot_listen(what)
    assert "Errno" not in cannot_listen(what)


def test_what_nobody_knows_a_remedy_for_is_said_as_it_is() -> None:
    assert cannot_listen("[Errno 5] something else.") == "something else"
    assert client_tls("something else") == "something else"


def test_what_a_server_says_of_a_client_whose_tls_fails() -> None:
    text = "tlsv1 alert unknown ca"
    words = "it does not trust this server's certificate: give it the authority that signed it"
    assert client_tls(text) == f"{words} ({text})"
    assert "no certificate of its own" in client_tls("no suitable signature algorithm")


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (error.ConnectionDone(), "the peer closed the connection"),
        (error.ConnectionLost(), "the connection was lost"),
        (error.ConnectionAborted(), "this side cut the connection off"),
        (ValueError("the connection was lost: it said too much."), "it said too much"),
        (None, "it was over"),
    ],
)
def test_why_a_session_has_ended(ended: BaseException | None, words: str) -> None:
    assert ended_because(ended) == words


@pytest.mark.parametrize(
    ("said", "endpoint", "words"),
    [
        (ConnectionClosed("the server closed the connection"), "tcp:h:1", "if it speaks TLS there"),
        (ConnectionClosed("the server closed the connection"), "tls:h:1", ""),
        (TimedOut("no session in time"), "wss://h:1", "if it does not speak TLS there, try ws:"),
        (TimedOut("no session in time"), "ws://h:1", ""),
        (error.ConnectionLost(), "tls:h:1", "if it does not speak TLS there, try tcp:"),
    ],
)
def test_who_was_not_served_is_told_that_tls_may_be_what_is_wrong(
    said: Exception, endpoint: str, words: str
) -> None:
    plain = reason(said, endpoint)
    assert reason(said, endpoint, served=False).startswith(plain)
    hint = reason(said, endpoint, served=False).removeprefix(plain)
    assert (words in hint) if words else not hint


def test_what_the_other_side_says_cannot_write_on_the_terminal__NB_09() -> None:
    """NB-09: an sABC server chooses the text with which it refuses a session."""
    error = Refused("the server refused the session: \x1b]0;x\x07\x9b31m\u202e no\nmore")
    assert reason(error, "tcp:x:1") == r"\x1b]0;x\x07\x9b31m\u202e no more"
    assert ended_because(error) == r"\x1b]0;x\x07\x9b31m\u202e no more"


# ── limits as data ──────────────────────────────────────────────────────────────────────────────


TABLE = (
    Limit("window", 10, "events", "because", 1),
    Limit("idle", 1.5, "s", "to be quick"),
)


def test_a_limit_has_its_default_until_it_is_changed():
    limits = Limits.of(TABLE)
    changed = limits.replace({"window": "20"})
    assert (limits["window"], changed["window"], changed["idle"]) == (10, 20, 1.5)
    assert changed.replace({"idle": 0})["window"] == 20


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3), ("10s", 10), ("500ms", 0.5), ("2m", 120), ("1.5 h", 5400)]
)
def test_a_time_may_have_a_unit__RD_27(text: str, seconds: float) -> None:
    """RD-27: sizes could, and the times of a bridge."""
    assert Limits.of(TABLE).replace({"idle": text})["idle"] == seconds


def test_an_integer_limit_stays_one():
    limits = Limits.of(TABLE)
    assert limits.replace({"window": 3}).integer("window") == 3
    with pytest.raises(ConfigurationError, match=r"window takes a number of events, not '1\.5'"):
        limits.replace({"window": "1.5"})


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "nan", "inf"])
def test_a_value_which_makes_no_sense_is_refused_with_one_line(value):
    name = "idle" if value in ("nan", "inf") else "window"
    with pytest.raises(ConfigurationError) as raised:
        Limits.of(TABLE).replace({name: value})
    assert "\n" not in str(raised.value)


def test_an_unknown_limit_is_refused_and_the_known_are_named():
    with pytest.raises(
        ConfigurationError, match=r"'windows' \(did you mean 'window'\?\); known: window, idle"
    ):
        Limits.of(TABLE).replace({"windows": 1})


def test_a_limit_above_its_maximum_is_refused_by_name() -> None:
    limits = Limits.of([Limit("size", 8, "bytes", "because", 1, 16)])
    assert limits.replace({"size": "16"})["size"] == 16
    with pytest.raises(ConfigurationError, match="limit size is at most 16, not '17'"):
        limits.replace({"size": "17"})


def test_what_is_at_a_limit_may_be_sent_and_one_more_may_not() -> None:
    limits = Limits.of(TABLE)
    limits.check("window", 10)
    with pytest.raises(LimitExceeded, match=r"^11 events, window allows 10; nothing was sent$"):
        limits.check("window", 11)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (64 << 20, "bytes", "64 MiB"),
        (3 << 30, "bytes", "3 GiB"),
        (16 << 10, "bytes/s", "16 KiB/s"),
        (1500, "bytes", "1,500 bytes"),
        (0, "bytes", "0 bytes"),
        (2048, "connections", "2,048 connections"),
        (0.5, "s", "0.5 s"),
    ],
)
def test_an_amount_as_people_write_it(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(("octets", "speaks"), [(b"\x16\x03\x01", True), (b"\x16", False)])
def test_tls_is_known_by_its_first_two_bytes(octets: bytes, speaks: bool) -> None:
    assert speaks_tls(octets) is speaks
