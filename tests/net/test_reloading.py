"""Certificates, keys, rules and tokens are read again while connections live."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.certificates import Authority
from tests.tools.processes import Launched, Launcher
from twisted_msgproto.lumberjack import encode_json, encode_window

LOOPBACK = "interface=127.0.0.1"


KEY, CERT = "server.key.pem", "server.cert.pem"


def new_pair(directory: Path, *, expired: bool = False) -> None:
    """Make a key and its certificate anew, also for an endpoint ``tls:pems``."""
    authority = Authority(directory)
    pair = (authority.expired if expired else authority.server)("server", "gw")
    (directory / "pems").mkdir(exist_ok=True)
    whole = pair.key.read_bytes() + pair.cert.read_bytes()
    (directory / "pems" / "gw.pem").write_bytes(whole)


TWISTD = ("-c", "from twisted.scripts.twistd import run; run()", "--nodaemon", "--pidfile=")


def twistd(launch: Launcher, *words: str) -> Launched:
    """Start ``twistd -n``: its log is for people, that of ``python -m twisted`` is not."""
    return launch.command([sys.executable, *TWISTD, *words])


def with_file(
    launch: Launcher, name: str, text: str, protocol: str, *words: str, at: str = "tcp:0"
) -> tuple[Launched, Path]:
    """A server that reads the file ``name`` of this ``text``, and the file."""
    file = launch.directory / name
    file.write_text(text)
    return twistd(launch, protocol, "-e", f"{at}:{LOOPBACK}", *words), file


def context() -> ssl.SSLContext:
    """A client's, which looks at certificates itself."""
    made = ssl.create_default_context()
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


class Session:
    """A Lumberjack client whose connection stays; it sends an event when it is asked."""

    def __init__(self, port: int) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.tls = context().wrap_socket(plain, server_hostname="gw")
        self._sent = 0

    def certificate(self) -> bytes:
        return self.tls.getpeercert(binary_form=True) or b""

    def send(self) -> bytes:
        """Send one event; what acknowledges it."""
        self._sent += 1
        self.tls.sendall(encode_window(1) + encode_json([1], [b"{}"]))
        came = b""
        while len(came) < 6:
            more = self.tls.recv(6 - len(came))
            assert more, "the connection was dropped"
            came += more
        return came


def der_of(directory: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert((directory / CERT).read_text())


STRINGS = {
    "ssl": f"ssl:0:privateKey={KEY}:certKey={CERT}",
    "mtls": f"mtls:0:privateKey={KEY}:certKey={CERT}:verify=none",
    "tls": "tls:pems:0",
}


@pytest.mark.parametrize("kind", ["mtls", "tls"])
def test_new_hand_shakes_see_the_new_certificate_and_sessions_live_on(
    launch: Launcher, tmp_path: Path, kind: str
) -> None:
    new_pair(launch.directory)
    old = der_of(launch.directory)
    gateway = twistd(launch, "lumberjack", "-e", f"{STRINGS[kind]}:{LOOPBACK}", "--queue=q")
    port = gateway.port("lumberjack")
    before = Session(port)
    assert before.certificate() == old
    assert before.send() == b"2A\0\0\0\1"

    new_pair(launch.directory)
    assert Session(port).certificate() == old, "nobody has asked yet"
    done = launch.run("reload", "q")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"read again: lumberjack: certificates of {STRINGS[kind]}" in done.stdout
    after = Session(port)
    assert after.certificate() == der_of(launch.directory) != old
    assert (before.send(), after.send()) == (b"2A\0\0\0\1", b"2A\0\0\0\1")

    new_pair(launch.directory, expired=True)
    gateway.signal(signal.SIGHUP)
    again = "lumberjack: reload: read again: lumberjack: certificates of .*"
    gateway.line(f"{again}; clients refuse a certificate that is valid from ")
    assert Session(port).certificate() == der_of(launch.directory)
    assert before.send() == b"2A\0\0\0\1"
    assert gateway.end() == -signal.SIGTERM


BROKEN = {
    "ssl": (
        f"{KEY}: No such file",
        "is no PEM file with a key and a certificate",
        "Certificate public and private keys do not match",
    ),
    "mtls": (
        f"privateKey: cannot read {KEY}: No such file",
        f"certKey: nothing usable in {CERT}",
        f"{KEY} is not the key of the certificate in {CERT}",
    ),
}


RULES = (
    "rules.toml",
    '[[access]]\nallow = "*"\n',
    "lumberjack",
    "--queue=q",
    "--access=rules.toml",
)


@pytest.mark.parametrize("kind", ["mtls", "ssl"])
def test_a_broken_file_leaves_everything_as_it_was(launch: Launcher, kind: str) -> None:
    here = launch.directory
    (here / "other").mkdir()
    for place in (here, here / "other"):
        new_pair(place)
    gateway, rules = with_file(launch, *RULES, at=STRINGS[kind])
    session = Session(gateway.port("lumberjack"))
    old = session.certificate()
    whole = {name: (here / name).read_bytes() for name in (KEY, CERT)}
    rules.write_text('[[access]]\ndeny = "*"\n')  # this one is good, and must not be taken
    other = (here / "other" / KEY).read_bytes()
    spoils = ((KEY, None), (CERT, b"x"), (KEY, other))
    for number, ((spoilt, nbytes), words) in enumerate(zip(spoils, BROKEN[kind], strict=True), 1):
        for name, octets in whole.items():
            (here / name).write_bytes(octets)
        (here / spoilt).unlink() if nbytes is None else (here / spoilt).write_bytes(nbytes)
        done = launch.run("reload", "q")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("msgproto reload: nothing was changed: lumberjack: ")
        assert done.stderr.count("\n") == 1
        assert words in done.stderr
        gateway.line("lumberjack: reload: nothing was changed", nth=number)
        assert Session(gateway.port("lumberjack")).certificate() == old
        assert session.send() == b"2A\0\0\0\1"


def test_a_broken_file_that_many_servers_read_is_named_once(launch: Launcher) -> None:
    new_pair(launch.directory)
    at = ("-e", f"{STRINGS['tls']}:{LOOPBACK}") * 2
    gateway = twistd(launch, "lumberjack", *at, "--queue=q")
    gateway.line("lumberjack listening on", nth=2)
    broken = der_of(launch.directory).replace(b"\x82\x02gw", b"\x82\x03gw")  # no name in it
    key = (launch.directory / KEY).read_text()
    for text, words in (
        ("-----BEGIN CERTIFICATE-----", "gw.pem is no PEM file"),
        (key + ssl.DER_cert_to_PEM_cert(broken), "pems': error parsing asn1 value"),
    ):
        (launch.directory / "pems" / "gw.pem").write_text(text)
        done = launch.run("reload", "q")
        assert done.returncode == 2
        assert done.stderr.count(words) == 1, done.stderr
    (launch.directory / "pems" / "again").symlink_to(".")
    assert "pems': Cycle in file graph" in launch.run("reload", "q").stderr


def test_rules_that_were_read_again_are_for_live_sessions_too(launch: Launcher) -> None:
    gateway, rules = with_file(launch, *RULES)
    client = socket.create_connection(("127.0.0.1", gateway.port("lumberjack")), timeout=60)
    client.sendall(encode_window(1) + encode_json([1], [b"{}"]))
    assert client.recv(6) == b"2A\0\0\0\1"
    rules.write_text('[[access]]\nallow = "*"\naddress = "192.0.2.0/24"\n')
    assert launch.run("reload", "q").returncode == 0
    client.sendall(encode_window(1) + encode_json([1], [b"{}"]))
    assert client.recv(6) == b"", "it is closed without an acknowledgement"
    gateway.line("may not publish")
    rules.write_text("[[access]]\nalow = 1\n")
    done = launch.run("reload", "q")
    assert done.returncode == 2
    assert "--access rules.toml: [[access]] rule 1: unknown key 'alow'" in done.stderr


def test_a_gateway_takes_rules_and_names_what_waits_for_a_start(launch: Launcher) -> None:
    here = launch.directory
    text = """
[queue]
directory = "q"
[[access]]
{rule} = "*"
[lumberjack]
endpoint = "tcp:0:interface=127.0.0.1"
limit = {{ window = {window} }}
"""
    file = here / "gateway.toml"
    file.write_text(text.format(rule="deny", window=64))
    gateway = launch("gateway", "--config", "gateway.toml", "--set=lumberjack.turn-warn=50")
    address = gateway.address("lumberjack")
    refused = launch.run("send", "lumberjack", address, "--count=1", "--timeout=20")
    assert refused.returncode == 1
    file.write_text(text.format(rule="allow", window=32))
    done = launch.run("reload", "q")
    assert done.returncode == 0
    assert "read again: msgproto: gateway.toml" in done.stdout
    assert "changed, and in force after the next start: [lumberjack] limit" in done.stdout
    assert "turn-warn" not in done.stdout, "the command line says so as before"
    assert launch.run("send", "lumberjack", address, "--count=1").returncode == 0
    for rules, way in (("", 0), ('[[access]]\ndeny = "*"\n', 1)):  # the last goes, a first comes
        file.write_text(text.replace('[[access]]\n{rule} = "*"\n', rules).format(window=32))
        assert "[[access]]" not in launch.run("reload", "q").stdout
        assert (
            launch.run("send", "lumberjack", address, "--count=1", "--timeout=20").returncode == way
        )
    file.write_text(text.format(rule="allow", window="'x'"))
    done = launch.run("reload", "q")
    assert done.returncode == 2
    assert "gateway.toml: [lumberjack]" in done.stderr


def asked(port: int, token: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/status.json", headers={"Authorization": f"Bearer {token}"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_status_token_is_read_again_and_reload_wants_it(launch: Launcher) -> None:
    here = launch.directory
    status = ("--status-token=token", "--status", f"tcp:0:{LOOPBACK}")
    gateway, token = with_file(launch, "token", "the-first-token-of-all\n", "lumberjack", *status)
    port = gateway.port("status")
    url = f"http://127.0.0.1:{port}"
    assert launch.run("reload", url).returncode == 2
    (here / "new").write_text("sixteen-letters!")
    (here / "old").write_text("the-first-token-of-all")
    token.write_text("sixteen-letters!\n")
    done = launch.run("reload", url, "--token-file=old")
    assert done.returncode == 0, done.stderr
    assert "read again: status: the token of" in done.stdout
    assert "sixteen" not in done.stdout + gateway.output, "a token is never shown"
    assert (asked(port, "the-first-token-of-all"), asked(port, "sixteen-letters!")) == (
        401,
        200,
    )
    token.write_text("fifteen-letters")
    done = launch.run("reload", url, "--token-file=new")
    assert done.returncode == 2
    assert "is too short" in done.stderr
    assert asked(port, "sixteen-letters!") == 200


def test_keys_of_curve_are_read_again(launch: Launcher) -> None:
    import zmq

    here = launch.directory

    def keys(name: str) -> bytes:
        public, secret = zmq.curve_keypair()
        (here / f"{name}.public").write_bytes(public)
        (here / f"{name}.secret").write_bytes(secret)
        return public

    keys("server")
    first, second = keys("first"), keys("second")
    allowed = here / "allowed"
    allowed.write_bytes(first + b" first\n")
    gateway = twistd(
        launch,
        *("mtl", "-e", "tcp://127.0.0.1:*", "--queue=q"),
        *("--curve-key=server.secret", "--curve-authorized=allowed"),
    )
    address = gateway.address("mtl")

    def sent(name: str, seconds: int) -> Any:
        return launch.run(
            *("send", "mtl", address, "--count=1", f"--timeout={seconds}"),
            *("--tls-ca=server.public", f"--tls-key={name}.secret"),
        )

    assert sent("first", 60).returncode == 0
    allowed.write_bytes(second + b" second\n")
    done = launch.run("reload", "q")
    assert (done.returncode, done.stderr) == (0, "")
    assert "read again: mtl: keys of" in done.stdout
    assert sent("second", 60).returncode == 0
    assert sent("first", 60).returncode != 0
    allowed.write_text("nonsense\n")
    done = launch.run("reload", "q")
    assert done.returncode == 2
    assert "allowed, line 1: no key of 40 characters" in done.stderr
    assert sent("second", 60).returncode == 0
    allowed.write_bytes(first)
    shutil.copy(here / "first.secret", here / "server.secret")
    done = launch.run("reload", "q")
    assert done.returncode == 2
    assert "restart the gateway to use it" in done.stderr


def test_a_password_file_is_looked_at(launch: Launcher) -> None:
    here = launch.directory
    words = ("umq", "--queue=q", "--auth=file:passwords")
    gateway, passwords = with_file(launch, "passwords", "joe:right\n", *words)
    url = f"ws://127.0.0.1:{gateway.port('umq')}/"
    (here / "word").write_text("changed\n")
    passwords.write_text("joe:changed\n")
    done = launch.run("reload", "q")
    assert "read again: umq: passwords of passwords" in done.stdout
    sent = launch.run("send", "umq", url, "--user=joe", "--password-file=word", "--count=1")
    assert sent.returncode == 0, sent.stderr
    passwords.unlink()
    done = launch.run("reload", "q")
    assert done.returncode == 2
    assert "--auth file:passwords: No such file" in done.stderr


def test_the_end_of_the_terminal_ends_a_gateway_in_the_foreground(launch: Launcher) -> None:
    """A shell sends SIGHUP, too: that one must not leave a gateway behind."""
    master, slave = os.openpty()
    here = launch.directory
    program = (
        "import fcntl, os, sys, termios; os.setsid();"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        f"os.execv(sys.executable, [sys.executable, *{TWISTD!r}, *sys.argv[1:]])"
    )
    gateway: Launched = launch.command(
        [sys.executable, "-c", program, "lumberjack", "-e", f"tcp:0:{LOOPBACK}", "--queue=q"],
        stdin=slave,
    )
    os.close(slave)
    gateway.address("lumberjack")
    gateway.signal(signal.SIGHUP)
    gateway.line("reload: nothing to read again")
    os.close(master)
    gateway.wait()
    assert "the terminal is gone" in gateway.output
    assert not (here / "q" / "control").exists()


@pytest.mark.parametrize("module", ["twisted_msgproto", "twisted"])
def test_a_second_signal_to_end_is_a_line_and_no_traceback(launch: Launcher, module: str) -> None:
    """Both wait for the process while it stands still, so they are handled in one turn."""
    (launch.directory / "g.toml").write_text('[lumberjack]\nendpoint = "unix:s"\n')
    words = ["gateway", "--config=g.toml"] if module != "twisted" else ["lumberjack", "-eunix:s"]
    gateway = launch(*words, module=module)
    gateway.line("lumberjack listening")
    gateway.signal(signal.SIGHUP)
    gateway.line("reload")  # said by a reactor that runs
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        gateway.signal(number)
    gateway.line("it is ending already")
    gateway.signal(signal.SIGHUP)  # as of a shell that ends
    assert gateway.wait() in (-signal.SIGINT, -signal.SIGTERM)
    assert "Traceback" not in gateway.output
    assert "ReactorNotRunning" not in gateway.output
