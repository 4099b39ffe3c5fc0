"""What a message advises is done here exactly as the line says it, and ends the trouble.

Each row begins with what an operator has, runs a command, and finds in its line what to do next;
what can be copied from the line is copied.  Other rooms run the remedies of what only they can
provoke.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
import zmq.auth

from tests.tools import java_classes
from tests.tools.certificates import Authority
from tests.tools.loops import landed_offsets
from tests.tools.processes import AFTER, START_SECONDS, Launcher, contained, environment
from tests.tools.queues import batch, put
from twisted_msgproto import cli
from twisted_msgproto.queue import QueueReader, QueueWriter

LOCAL = 'endpoint = "tcp:0:interface=127.0.0.1"'
MTL = '[mtl]\nendpoint = "tcp://127.0.0.1:0"'
RULE = f"[micromsg2]\n{LOCAL}\n[[access]]\nallow = 'publish'\n"


Mended = Callable[[str, re.Match[str]], str]


def instead(old: str, new: str) -> Mended:
    """The file with ``new`` for ``old``; ``{1}`` is what the line says there."""

    def mended(text: str, found: re.Match[str]) -> str:
        assert old in text
        return text.replace(old, new.replace("{1}", found[1] if found.re.groups else ""))

    return mended


FILES: dict[str, tuple[str, str, Mended]] = {
    "a port that is shared": (
        '[lumberjack]\nendpoint = "unix:s"\nreuse-port = true',
        "reuse-port is for TCP ports, and 'unix:.*' is none: leave one of them out",
        instead("reuse-port = true", ""),
    ),
    "log-ins of a protocol without": (
        f"[lumberjack]\n{LOCAL}\nauth = 'anonymous'",
        "has no log-ins: use (mtls:)",
        instead(f"{LOCAL}\nauth = 'anonymous'", "endpoint = '{1}0:privateKey=gw.pem:caCerts=ca'"),
    ),
    "CURVE": (
        f"[micromsg2]\n{LOCAL}\ncurve-key = 'x'",
        "CURVE is for MTL alone: use (mtls:)",
        instead(f"{LOCAL}\ncurve-key = 'x'", "endpoint = '{1}0:privateKey=gw.pem:caCerts=ca'"),
    ),
    "a port by itself": (
        "[lumberjack]\nport = 0",
        'it is a part of the endpoint: ("tcp:PORT:interface=ADDRESS")',
        lambda text, found: text.replace(
            "port = 0",
            "endpoint = " + found[1].replace("PORT", "0").replace("ADDRESS", "127.0.0.1"),
        ),
    ),
    "endpoints": (
        f"[lumberjack]\n{LOCAL.replace('endpoint', 'endpoints')}",
        r"write (endpoint) = \[...\]",
        instead('endpoints = "tcp:0:interface=127.0.0.1"', '{1} = ["tcp:0:interface=127.0.0.1"]'),
    ),
    "limits in a server's table": (
        f"[lumberjack]\n{LOCAL}\nlimits = {{ connections = 3 }}",
        "write (limit) = { NAME = VALUE }, or a table",
        instead("limits", "{1}"),
    ),
    "limits in a table of their own": (
        f"[lumberjack]\n{LOCAL}\nlimits = {{ connections = 3 }}",
        r"or a table (\[limits\]) for all servers",
        instead("limits = { connections = 3 }", "{1}\nconnections = 3"),
    ),
    "MTL for other machines, insecure": (
        '[mtl]\nendpoint = "tcp://0.0.0.0:0"',
        r"needs CURVE \(--curve-key; in a program: curve\), or --(insecure)",
        lambda text, found: f"{text}\n{found[1]} = true",
    ),
    "MTL for other machines, with CURVE": (
        '[mtl]\nendpoint = "tcp://0.0.0.0:0"\ncurve-key = "server.key_secret"',
        "--curve-key and --(curve-authorized) belong together",
        lambda text, found: f"{text}\n{found[1]} = 'keys'",
    ),
    "one socket and two": (
        f'{MTL}\none-socket = true\ndata-endpoint = "tcp://127.0.0.1:0"',
        "--one-socket has no --data-endpoint",
        instead('data-endpoint = "tcp://127.0.0.1:0"', ""),
    ),
    "queues without a broker": (
        f"[micromsg2]\n{LOCAL}\nno-broker = true\nbroker-queue = 'x'",
        "--no-broker excludes --broker-queue and --broker-namespace",
        instead("no-broker = true", ""),
    ),
    "a queue of dead letters": (
        f"[micromsg2]\n{LOCAL}\nbroker-queue = 'x.dead'",
        "'x.dead' is for dead letters, and made by itself: name '(x)'",
        instead("x.dead", "{1}"),
    ),
    "queues, and a port that is shared": (
        f"[micromsg2]\n{LOCAL}\nreuse-port = true",
        r"in one process \((no-broker = true) leaves them out",
        lambda text, found: f"{text}\n{found[1]}",
    ),
    "UMQ's WebSocket": (
        "[umq]\nwebsocket = 'tcp:0:interface=127.0.0.1'",
        "UMQ is on WebSocket alone: write (endpoint)",
        instead("websocket", "{1}"),
    ),
    "the host in front": (
        "[lumberjack]\nendpoint = 'tcp:127.0.0.1:0'",
        r"the port comes first: (\S+)",
        instead("tcp:127.0.0.1:0", "{1}"),
    ),
    "client certificates without an authority": (
        "[lumberjack]\nendpoint = 'mtls:0:privateKey=gw.pem'",
        "needs (caCerts)=FILE",
        instead("gw.pem", "gw.pem:{1}=ca"),
    ),
    "an address of another machine": (
        "[sabc]\nendpoint = 'tcp:0:interface=192.0.2.9'",
        "no such address: name one of its own, or (0.0.0.0) for all",
        instead("192.0.2.9", "{1}"),
    ),
    "a name for an interface": (
        "[sabc]\nendpoint = 'tcp:0:interface=no-such-host.invalid'",
        "give it an address of this machine, such as 127.0.0.1, not another name",
        instead("no-such-host.invalid", "127.0.0.1"),
    ),
    "a long path": (
        f"[sabc]\nendpoint = 'unix:{'s' * 150}'",
        "a socket's path has 107 bytes at most: name a shorter one",
        instead("s" * 150, "s"),
    ),
    "the page for other machines": (
        f"[sabc]\n{LOCAL}\n[status]\nendpoint = 'tcp:0'",
        r"it needs TLS .* and a token .*or (token-file) in \[status\]",
        instead("'tcp:0'", "'ssl:0:privateKey=gw.pem'\n{1} = 'users'"),
    ),
    "open to others": (
        "[sabc]\nendpoint = 'tcp:0'",
        r"warning: .*, and (:interface=\S+) keeps it to this machine",
        instead("tcp:0", "tcp:0{1}"),
    ),
    "open to others, TLS": (
        "[sabc]\nendpoint = 'tcp:0'",
        r"warning: .*; (tls:)DIRECTORY:PORT encrypts it",
        instead("tcp:0", "{1}pems:0"),
    ),
    "rules in a plain table": (
        RULE.replace("[[access]]", "[access]"),
        r"access is a list of rules: write (\[\[access\]\]) above each",
        instead("[access]", "{1}"),
    ),
    "no rule": (
        f"access = []\n[micromsg2]\n{LOCAL}",
        "has no rule, so everything would be refused: leave it out to allow everything",
        instead("access = []", ""),
    ),
    "two kinds in one rule": (
        f"{RULE}deny = 'consume'",
        "both allow and deny: make two rules of it",
        instead("deny", "[[access]]\ndeny"),
    ),
    "a rule for nobody": (
        f"{RULE}user = []",
        "is an empty list: leave it out to mean everybody",
        instead("user = []", ""),
    ),
    "a rule for a number": (
        f"{RULE}user = 3",
        "user: 3 is no text; write it in quotes",
        instead("3", "'3'"),
    ),
    "an address within a network": (
        f"{RULE}address = '10.0.0.1/8'",
        r"is an address within a network; write (\S+)",
        instead("10.0.0.1/8", "{1}"),
    ),
    "a brace": (
        f"{RULE}name = 'a{{b}}'",
        r"write (\[{\]) for a brace itself",
        instead("{", "{1}"),
    ),
    "a rule that is never reached": (
        RULE.replace("'publish'", "'*'") + "[[access]]\ndeny = 'consume'",
        "is never reached, since rule 1 fits everything: write it above that one",
        instead(
            "[[access]]\nallow = '*'\n[[access]]\ndeny = 'consume'",
            "[[access]]\ndeny = 'consume'\n[[access]]\nallow = '*'",
        ),
    ),
    "a NUL": (
        f'[lumberjack]\n{LOCAL}\n[status]\nendpoint = "unix:a\\u0000"',
        r"has a NUL: take (\\u0000) out of it",
        instead("\\u0000", ""),
    ),
    "limits of one broker": (
        f"[micromsg2]\n{LOCAL}\nbroker-namespace = 'a'\nlimit = {{ queue-messages = 5 }}\n"
        f"{MTL}\nbroker-namespace = 'a'\nlimit = {{ queue-messages = 6 }}",
        "set it alike in both, or in",
        instead("6", "5"),
    ),
}
"""A file that ``msgproto check`` does not take, its words, and the file with what they say."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    authority = Authority(tmp_path)
    pair = authority.server("gw", "gw")
    (tmp_path / "pems").mkdir()
    for place in ("gw.pem", "pems/gw.pem"):
        Path(place).write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    Path("ca").write_bytes(authority.cert.read_bytes())
    return tmp_path


def run(words: str | list[str], stdin: str = "") -> tuple[int, str]:
    """What a command says, and its exit status; it is run in this process."""
    words = shlex.split(words) if isinstance(words, str) else words
    with pytest.MonkeyPatch.context() as patch:
        told = io.StringIO()
        for name, stream in (("stdout", told), ("stderr", told), ("stdin", io.StringIO(stdin))):
            patch.setattr(sys, name, stream)
        return cli.main(words), told.getvalue()


@pytest.mark.parametrize("row", FILES.values(), ids=FILES.keys())
def test_what_is_said_of_a_file_is_right(here: Path, row: tuple[str, str, Mended]) -> None:
    before, words, mended = row
    make_curve_keys()
    Path("g.toml").write_text(before)
    _, told = run("check g.toml")
    found = re.search(words, told)
    assert found is not None, told
    assert len(told.splitlines()) == 1 or "warning" in words, told
    Path("g.toml").write_text(mended(before, found))
    status, told = run("check g.toml")
    assert status == 0, told
    assert not re.search(words, told)


def make_curve_keys() -> None:
    zmq.auth.create_certificates(".", "server")
    public, _ = zmq.curve_keypair()
    Path("keys").write_text(f"{public.decode()} someone\n")
    Path("users").write_text("a token of 32 characters or more.\n")
    Path("users").chmod(0o600)


COMMANDS: dict[str, tuple[str, str, str]] = {
    "a password's owner": (
        "send sabc tcp:127.0.0.1:1 --count 1 --password-file users",
        "--password-file goes with (--user NAME)",
        "send sabc tcp:127.0.0.1:1 --count 1 --password-file users {1}",
    ),
    "a key's certificate": (
        "send sabc tls:127.0.0.1:1 --count 1 --tls-key gw.pem",
        "--tls-key goes with (--tls-cert) FILE",
        "send sabc tls:127.0.0.1:1 --count 1 --tls-key gw.pem {1} gw.pem",
    ),
    "a key beside its certificate": (
        "send sabc tls:127.0.0.1:1 --count 1 --tls-cert ca",
        "; (--tls-key) FILE names another",
        "send sabc tls:127.0.0.1:1 --count 1 --tls-cert gw.pem {1} gw.pem",
    ),
    "an address without its kind": (
        "send sabc 127.0.0.1:1 --count 1",
        r"; write (tcp:\S+)$",
        "send sabc {1} --count 1",
    ),
    "an address of IPv6 without its kind": (
        "send sabc [::1]:1 --count 1",
        r"; write (tcp:\S+)$",
        "send sabc {1} --count 1",
    ),
    "a method's arguments": (
        "send umq ws://127.0.0.1:1 --args [] --count 1",
        "--args go with (--call METHOD)",
        "send umq ws://127.0.0.1:1 --args [] {1}",
    ),
    "a size": (
        "send sabc tcp:127.0.0.1:1 --size 5",
        "--size goes with (--count) N",
        "send sabc tcp:127.0.0.1:1 --size 5 {1} 1",
    ),
    "a count beside a call": (
        "send umq ws://127.0.0.1:1 --call m --count 1",
        "--.* does not go with --call",
        "send umq ws://127.0.0.1:1 --call m",
    ),
    "a call's text": (
        "send sabc tcp:127.0.0.1:1 --call m --args []",
        "sabc has no --args: the text of --call is the request's body",
        "send sabc tcp:127.0.0.1:1 --call []",
    ),
    "a window": (
        "send micromsg2 tcp:127.0.0.1:1 --count 1 --window 99999999999",
        "--window is at most ([0-9]+)",
        "send micromsg2 tcp:127.0.0.1:1 --count 1 --window {1}",
    ),
    "CURVE's other key": (
        "send mtl tcp://127.0.0.1:1 --count 1 --timeout 1 --tls-key server.key_secret",
        "CURVE needs the server's public key: (--tls-ca) FILE",
        "send mtl tcp://127.0.0.1:1 --count 1 --timeout 1 --tls-key server.key_secret"
        " {1} server.key",
    ),
    "CURVE's own key": (
        "send mtl tcp://127.0.0.1:1 --count 1 --timeout 1 --tls-ca server.key",
        "CURVE needs our secret key: (--tls-key) FILE",
        "send mtl tcp://127.0.0.1:1 --count 1 --timeout 1 --tls-ca server.key"
        " {1} server.key_secret",
    ),
    "a token's owner": (
        "queue tail q --token-file users -n 0",
        "--token-file goes with",
        "queue tail q -n 0",
    ),
    "a token of the status": (
        "status q --token-file users",
        "--token-file goes with",
        "status q",
    ),
    "a token of the broker": (
        "broker ls q --token-file users",
        "--token-file goes with",
        "broker ls q",
    ),
    "a token of a reload": (
        "reload q --token-file users",
        "--token-file goes with (http://HOST:PORT)",
        "reload http://127.0.0.1:1 --token-file users",
    ),
    "a broker's queue": (
        "broker peek q nosuch",
        "there is no queue 'nosuch'; msgproto (.*) shows all",
        "{1}",
    ),
    "a directory of queues": (
        "queue consumers several",
        "is no queue itself, and has 2 in it: name one, such as (.*)$",
        "queue consumers {1}",
    ),
    "a bridge's place": (
        "queue consumers q --reset spark-01234567 0",
        "is that of a bridge into a table.*if you mean that, say (--yes)",
        "queue consumers q --reset spark-01234567 0 {1}",
    ),
    "forget or reset": (
        "queue consumers q --forget old --reset old 0",
        "--forget and --reset exclude each other; see msgproto (queue consumers --help)",
        "{1}",
    ),
    "one way to show": (
        "status q --json --watch",
        "--json, --watch and --grafana exclude each other",
        "status q --json",
    ),
    "a table without its folder": (
        "bridge --queue q --table t --every 1h",
        "--every goes with (--once)",
        "bridge --queue q --table t --every 1h {1} --max-rows 0",
    ),
    "a bridge without a table": (
        "bridge --queue q",
        "bridge needs (--table)",
        "bridge --queue q {1} t --max-rows 0",
    ),
    "Spark's master": (
        "bridge --queue q --table t --conf spark.master=local[1]",
        "spark.master is no setting here: (--master)",
        "bridge --queue q --table t {1} local[1] --max-rows 0",
    ),
    "a directory that exists": (
        "init full",
        "exists, and nothing was written: remove it, or give another directory",
        "init other",
    ),
    "a file in a directory's place": (
        "init q/identity",
        "File exists; a file has this name: (name another) place",
        "init other",
    ),
    "a directory in a file's place": (
        "check full",
        r"Is a directory; name a file in it: (\S+)$",
        "check {1} --file-only",
    ),
    "a gateway's file": (
        "bridge --config full/gateway.toml --once",
        "is of a gateway.toml, which msgproto (gateway) takes",
        "check full/{1}.toml --file-only",
    ),
    "an action without its command": (
        "tail q -n 0",
        "did you mean '(queue tail)'",
        "{1} q -n 0",
    ),
    "a user of a unit": (
        "init new --user no-such-user",
        "there is no user .*(--user) names another",
        "init new {1} root",
    ),
    "a port of several": (
        "init new --instances 2 --protocol mtl",
        r"--protocol \S+ goes without --instances",
        "init new --protocol mtl",
    ),
    "TLS of ZeroMQ": (
        "init new --protocol mtl --tls gw",
        "has no TLS: leave (--tls) out",
        "init new --protocol mtl",
    ),
    "what is mistyped": (
        "queue ls q --jsn",
        r"did you mean '(--json)'\?",
        "queue ls q {1}",
    ),
    "Lumberjack's names": (
        "send lumberjack tcp:127.0.0.1:1 --count 1 --user me",
        "no log-ins; (--tls-cert) FILE and (--tls-key) FILE say who you are",
        "send lumberjack tls:127.0.0.1:1 --count 1 {1} gw.pem",
    ),
    "rows": (
        "table erase t",
        "it needs one of (--where) SQL and --offsets FILE",
        "table erase t {1} 'offset = 0'",
    ),
    "days": (
        "table expire t",
        "it needs one of (--before) DAY and --keep AGE",
        "table expire t {1} 2020-01-01",
    ),
}
"""A command, what it says, and the command with what that says."""

TO_A_SERVER = ("send", "recv", "reload")
"""These start a reactor, or look for a server: a process each, and nobody listens there."""


@pytest.fixture
def furnished(here: Path) -> Path:
    make_curve_keys()
    for place in ("q", "several/1", "several/2"):
        writer = QueueWriter(place)
        put(writer, batch(3))
        writer.close()
    for name in ("old", "spark-01234567"):
        QueueReader("q").commit(name, 0)
    Path("full").mkdir()
    Path("full/gateway.toml").write_text(f"[queue]\ndirectory = 'q'\n[sabc]\n{LOCAL}\n")
    return here


@pytest.mark.parametrize("row", COMMANDS.values(), ids=COMMANDS.keys())
def test_what_is_said_of_a_command_is_right(furnished: Path, row: tuple[str, str, str]) -> None:
    first, words, after = row
    launch = Launcher(furnished)

    def ran(line: str) -> str:
        if line.split()[0] not in TO_A_SERVER:
            status, told = run(line)
            assert status in (0, 1, 2)
            return told
        done = launch.run(*shlex.split(line), stdin="x\n")
        return done.stderr + done.stdout

    told = ran(first)
    found = re.search(words, told, re.M)
    assert found is not None, told
    assert "Traceback" not in told
    for number, text in enumerate(found.groups(), 1):
        after = after.replace(f"{{{number}}}", text)
    told = ran(after)
    assert not re.search(words, told, re.M), told
    assert "Traceback" not in told
    assert "; see msgproto" not in told or "--max-rows" in told, told


# ── more than a file or a word ──────────────────────────────────────────────────────────────────


def test_the_command_that_makes_a_password_file_makes_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path has a blank; the line's command is taken as it stands."""
    Path("g.toml").write_text(f"[sabc]\n{LOCAL}\nauth = 'passwords:my users'")
    for words in (
        "No such file or directory; (msgproto passwd .* NAME) makes it",
        "it has no user; (msgproto passwd .* NAME) adds one",
    ):
        _, told = run("check g.toml")
        found = re.search(words, told)
        assert found is not None, told
        status, told = run(shlex.split(found[1])[1:], "a long secret\n")
        assert status == 0, told
        assert run("check g.toml")[0] == 0
        Path("my users").write_text("")  # and now it has no user


def test_the_file_of_a_gateway_that_runs_can_be_checked(here: Path) -> None:
    Path("g.toml").write_text(f"[sabc]\n{LOCAL}\n[queue]\ndirectory = 'q'")
    writer = QueueWriter("q")
    try:
        _, told = run("check g.toml")
        found = re.search("has the queue .* open; (--file-only) checks the file alone", told)
        assert found is not None, told
        assert run(["check", "g.toml", found[1]])[0] == 0
    finally:
        writer.close()


def test_a_queue_that_a_full_disk_has_no_room_for_is_refused_and_one_that_is_there_is_not(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("g.toml").write_text(f"[sabc]\n{LOCAL}\n[queue]\ndirectory = 'q'")
    full = SimpleNamespace(f_bavail=1 << 16, f_frsize=1)
    monkeypatch.setattr("os.statvfs", lambda path: full)
    assert run("check g.toml")[0] == 0
    full.f_bavail -= 1
    status, told = run("check g.toml")
    assert (status, "the disk has no room for a queue" in told) == (2, True)
    QueueWriter("q").close()
    assert run("check g.toml")[0] == 0


def test_what_is_no_utf_8_is_sent_as_the_line_says(launch: Launcher) -> None:
    """And without any input ``send`` makes messages up, if it is told how many."""
    server = launch("lumberjack", "-e", "tcp:0:interface=127.0.0.1", module="twisted")
    send = ["twisted_msgproto", "send", "lumberjack", server.address("lumberjack")]
    (launch.directory / "body").write_bytes(b"caf\xe9\n")
    for words, code in (
        (
            "Lumberjack carries nothing else; (--replace-invalid) sends",
            "import os; os.dup2(os.open('body', os.O_RDONLY), 0)",
        ),
        (
            "there is no input to send; (--count) N makes messages up",
            "import os; os.close(0); sys.stdin = None",
        ),
    ):
        first = launch(code, *send, module=AFTER)
        assert first.wait() != 0, first.output
        remedy = first.line(words)[1]
        more = [remedy, *(["3"] if remedy == "--count" else [])]
        second = launch(code, *send, *more, module=AFTER)
        assert second.wait() == 0, second.output


def test_a_subscriber_that_leaves_pub_sub_out_is_told_to_name_it(launch: Launcher) -> None:
    launch("micromsg2", "-e", "unix:s", module="twisted").line("micromsg2 listening")
    words = ["recv", "micromsg2", "unix:s", "--destination=a", "--extension=batch-ack"]
    found = re.search(
        "--destination and --filter need (--extension pub-sub)", launch.run(*words).stderr
    )
    assert found is not None
    done = launch.run(*words, *found[1].split(), "--until-empty")
    assert done.returncode == 0, done.stderr


def test_verify_says_which_messages_were_lost(launch: Launcher) -> None:
    """What the page and ``status`` advise after damage."""
    queue = launch.directory / "my q"
    writer = QueueWriter(queue)
    put(writer, batch(3))
    writer.close()
    (segment,) = queue.glob("*.segment")
    content = bytearray(segment.read_bytes())
    content[-5] ^= 1
    segment.write_bytes(content)
    launch("lumberjack", "-e", "unix:s", "--queue", queue, module="twisted").line("listening")
    _, told = run(["status", str(queue)])
    found = re.search("(msgproto queue verify .*) says which", told)
    assert found is not None, told
    status, told = run(shlex.split(found[1])[1:])
    assert status == 1
    assert "offsets 0 to 1 (1 messages)" in told


def test_help_auth_says_more(launch: Launcher) -> None:
    refused = launch.run("sabc", "--auth", "nosuch", module="twisted")
    found = re.search(
        "there is no such checker.*; (--help-auth) says more", refused.stderr + refused.stdout
    )
    assert found is not None, refused
    told = launch.run("sabc", found[1], module="twisted")
    assert told.returncode == 0
    assert "passwords" in told.stdout


# ── systemd, and users of the system ─────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_user_of_the_units_is_made_as_the_line_says(tmp_path: Path) -> None:
    """RD-14: in a mount name space, where /etc is a copy."""
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf"):
        with contextlib.suppress(OSError):
            shutil.copy(Path("/etc") / name, tmp_path / "etc")
    code = f"from {__name__} import add_the_user; add_the_user()"
    inside = ["sh", "-c", 'mount --bind etc /etc && exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(
        ["unshare", "--mount", *inside],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"root alone makes users and gives them files: {done.stderr}")
    assert done.returncode == 0, done.stderr


def add_the_user() -> None:
    words = ["init", "new", "--user", "nosuchuser"]
    status, told = run(words)
    found = re.search(r"(useradd --system \S+) makes one", told)
    assert status == 2 and found is not None, told
    subprocess.run(found[1].split(), check=True)
    status, told = run(words)
    assert status == 0, told
    assert "User=nosuchuser" in Path("new/msgproto-gateway.service").read_text()


@pytest.mark.slow
def test_the_units_run_with_the_lines_that_init_prints(tmp_path: Path) -> None:
    """RD-14: process 1 is a systemd without units of its own; each line is run as it stands."""
    code = f"from {__name__} import run_the_units; run_the_units()"
    done = subprocess.run(
        contained("systemd", sys.executable, "-c", code),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


UNITS_OF = {
    "init 'a place'": ["msgproto-gateway"],
    "init several --instances 2": ["msgproto-gateway@1", "msgproto-gateway@2"],
}


def landed(table: Path) -> bool:
    made = (table / "_delta_log" / f"{0:020}.json").exists()
    return made and sum(map(len, landed_offsets(table).values())) == 3


JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")


def run_the_units() -> None:
    quick = [f"{name}={java_classes.options()}" for name in JAVA_VARIABLES]
    subprocess.run(["systemctl", "set-environment", *quick], check=True)
    for words, gateways in UNITS_OF.items():
        directory = Path(shlex.split(words)[1])
        status, told = run(words)
        lines = re.findall(r"(?m)^  (systemctl .*)$", told)
        assert status == 0 and len(lines) >= 2, told
        for line in lines:
            subprocess.run(["sh", "-ec", line], check=True, stdin=subprocess.DEVNULL)
        units = [*gateways, "msgproto-bridge"]
        state = subprocess.run(["systemctl", "is-active", *units], capture_output=True, text=True)
        assert state.stdout.split() == ["active"] * len(units), state
        sent = ["send", "lumberjack", "tcp:127.0.0.1:5044", "--count", "3"]
        subprocess.run([sys.executable, "-m", "twisted_msgproto", *sent], check=True)
        while not landed(directory / "table"):  # the caller's patience ends at some time
            time.sleep(0.1)
        subprocess.run(["systemctl", "disable", "--now", *units], check=True)
