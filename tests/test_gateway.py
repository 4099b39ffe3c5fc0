"""``twistd msgproto``: one process from one file; what is wrong in the file is one line."""

import os
import signal
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
import zmq
from twisted.cred.credentials import UsernamePassword

from tests.tools.certificates import Authority
from tests.tools.processes import PATIENCE_SECONDS, Launched, Launcher, msgproto, wait_gone
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.gateway import Configuration, Options
from twisted_msgproto.net.authentication import IIdentity
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.registry import PROTOCOLS, load
from twisted_msgproto.umq import UmqServerFactory

LOOPBACK = "tcp:0:interface=127.0.0.1"

FILE = f"""
[queue]
directory = "spool"
segment-bytes = 7
[limits]
handshake = 5
connections = 7
[lumberjack]
endpoint = ["{LOOPBACK}", "{LOOPBACK}"]
limit = {{ connections = 8 }}
"""


def options_of(path: Path, *words: str) -> Options:
    options = Options()
    options.parseOptions([f"--config={path}", *words])
    return options


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(FILE)
    return path


def test_the_command_line_wins_over_the_file(file: Path) -> None:
    configuration = options_of(
        file,
        "--queue=elsewhere",
        "--limit=handshake=6",
        "--set=lumberjack.endpoint=tcp:1",
        "--set=lumberjack.limit.window=9",
        "--set=queue.max-bytes=1000000000",
        "--status=tcp:2",
        "--status-token=file",
    )["configuration"]
    assert configuration.status == {"endpoint": "tcp:2", "token-file": "file"}
    assert configuration.queue["directory"] == "elsewhere"
    assert configuration.queue["max-bytes"] == 1_000_000_000
    assert configuration.servers["lumberjack"]["endpoints"] == ["tcp:1"]
    limits = configuration.servers["lumberjack"]["limits"]
    assert (limits["handshake"], limits["window"], limits["connections"]) == (6.0, 9, 8)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no server"),
        ("[queue]\ndirectory = 'x'", "no server"),
        (
            "[lumberyard]",
            r"table \[lumberyard\] \(did you mean 'lumberjack'\?\); known: lumberjack",
        ),
        ("lumberjack = 1", r"\[lumberjack\] is to be a table"),
        (
            "[lumberjack]\nendpiont = 'x'",
            r"\[lumberjack\]: unknown key 'endpiont' \(did you mean 'endpoint'\?\); known",
        ),
        (
            "[lumberjack]\nqueue = 'x'",
            r"\[lumberjack\] queue: the queue of all servers is \[queue\]",
        ),
        ("[lumberjack]\nendpoint = 'nonsense'", r"\[lumberjack\]: bad endpoint 'nonsense'"),
        ("[lumberjack]\nendpoint = 5044", "'5044': .*; it is written like tcp:PORT, tls:"),
        (
            "[lumberjack]\nendpoint = 'tcp:0.0.0.0:5044'",
            "the port comes first: tcp:5044:interface=0.0.0.0$",
        ),
        (
            "[lumberjack]\nlog-sessions = 'yes'",
            r"\[lumberjack\]: log-sessions is true or false, not 'yes'",
        ),
        (
            "[sabc]\nauth = 'flie:passwords'",
            r"--auth flie: there is no such checker \(did you mean 'file'\?\); known: anonymous, ",
        ),
        (
            "[lumberjack]\n[limits]\nhandshak = 1",
            r"has a limit 'handshak' \(did you mean 'handshake'\?\)",
        ),
        (
            "[lumberjack]\nendpoint = 'tls:/no\\:where:1'",
            r"bad endpoint .*: no directory '/no:where'",
        ),
        ("[lumberjack]\nendpoint = 1979-05-27", r"\[lumberjack\] endpoint: cannot be a date"),
        ("[lumberjack]\nlimit = { x = 1 }", r"\[lumberjack\]: unknown limit 'x'"),
        ("[lumberjack]\nlimit = 'window'", "--limit takes NAME=VALUE"),
        *(
            (f"[lumberjack]\n{text}", f"limit window takes a number of events, not {said}")
            for value, said in (("true", "'True'"), ("false", "'False'"), ("[1]", ""), ("{}", ""))
            for text in (f"limit = {{ window = {value} }}", f"[limits]\nwindow = {value}")
        ),
        ("[lumberjack]\n[limits]\nx = 1", r"\[limits\]: no server here has a limit 'x'"),
        ("[umq]\n[status]\nport = 1", r"\[status\]: unknown key 'port'; known: endpoint, token-"),
        ("[umq]\n[status]\nendpoint = 1", r"\[status\]: endpoint is a text"),
        ("[umq]\n[status]", r"\[status\]: endpoint is missing"),
        ("[lumberjack]\n[queue]", r"\[queue\]: directory is missing"),
        ("[lumberjack]\n[queue]\ndir = 1", r"\[queue\]: unknown key 'dir'; known: directory"),
        ("[lumberjack]\n[queue]\ndirectory = 1", r"directory is a text, not 1"),
        (
            "[lumberjack]\n[queue]\ndirectory='x'\nmax-bytes=true",
            "max-bytes is a number of bytes, or one with KiB, .*, not True",
        ),
        ("[lumberjack]\n[queue]\ndirectory='x'\nmax-bytes=-1", "max-bytes is at least 0, not -1"),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Configuration(tomllib.loads(text))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--limit", "handshake"], "--limit takes NAME=VALUE"),
        (["--set", "lumberjack.endpoint"], "--set takes TABLE.KEY=VALUE"),
        (["--set", "lumberjack=1"], "--set takes TABLE.KEY=VALUE"),
        (["--nonsense"], "option --nonsense not recognized"),
        (["nonsense"], "'nonsense' belongs to no option; --help"),
        (["--limit", "x=1"], "no server here has a limit 'x'"),
    ],
)
def test_a_bad_command_line_is_one_line(file: Path, words: list[str], complaint: str) -> None:
    with pytest.raises(SystemExit) as ended:
        options_of(file, *words)
    text = str(ended.value)
    assert text.startswith("msgproto: ")
    assert complaint in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (b"queue = 1", ["--queue=x"], r"\[queue\] is to be a table"),
        (b"[lumberjack", [], r"g\.toml: not TOML"),
        (b"\xff\xfe", [], r"g\.toml: not TOML"),
        (b"[sabc]\n# caf\xe9\n", [], r"g\.toml: not TOML: line 2 is not UTF-8; save it as that"),
        (b'[queue]\ndirectory = "a\\u0000b"\n[sabc]', [], r"g\.toml: .* has a NUL"),
        (b'[status]\ntoken-file = "\\u0000"\n[sabc]', [], r"g\.toml: .* has a NUL"),
        (None, [], r"g\.toml: No such file or directory"),
    ],
)
def test_a_file_which_cannot_be_read_is_one_line(
    tmp_path: Path, content: bytes | None, words: list[str], says: str
) -> None:
    path = tmp_path / "g.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match=says):
        options_of(path, *words)


def test_a_mark_that_an_editor_puts_in_front_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "g.toml"
    path.write_bytes(b"\xef\xbb\xbf[sabc]\r\n")
    assert list(options_of(path)["configuration"].servers) == ["sabc"]


def test_without_a_file_it_says_what_is_needed() -> None:
    with pytest.raises(SystemExit, match="--config FILE is needed"):
        Options().parseOptions([])


def test_secrets_are_hidden() -> None:
    """FC-02: and what is shown can be read again."""
    auth = ["memory:joe:s3cret", "anonymous", "memory:jim:s3cret"]
    table = {"umq": {"auth": auth, "endpoint": [LOOPBACK]}}
    configuration = Configuration(table)
    shown = "\n".join(configuration.lines())
    assert "s3cret" not in shown
    assert shown.count("# auth = (hidden): give it again") == 2
    again = Configuration(tomllib.loads(shown))
    assert again.servers["umq"]["auth"] == ["anonymous"]
    server = configuration.servers["umq"]
    log_in = server.portal().login(UsernamePassword(b"jim", b"s3cret"), None, IIdentity)
    known = []
    log_in.addBoth(known.append)
    assert known[0][1].name == "jim"
    server.longOpt = [*server.longOpt, "token-text="]
    server["token-text"] = "s3cret"
    shown = "\n".join(configuration.lines())
    assert "s3cret" not in shown
    assert "# token-text = (hidden): give it again" in shown


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_the_usage_error_of_a_single_server_is_one_line_too(name: str) -> None:
    for words in (["-e", "nonsense"], ["--nonsense"], ["nonsense"], ["--limit", "x=1"]):
        with pytest.raises(SystemExit) as ended:
            load(name, "service").Options().parseOptions(words)
        assert str(ended.value).startswith(f"{name}: ")
        assert "\n" not in str(ended.value)


def test_twistd_prints_that_line_and_no_help(launch: Launcher) -> None:
    ended = launch.run("lumberjack", "-e", "nonsense", module="twisted")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("lumberjack: bad endpoint 'nonsense'")
    assert ended.stderr.count("\n") == 1


def test_the_gateway_listens_and_ends_on_sigterm(launch: Launcher, file: Path) -> None:
    """A second one over its queue is refused in one line."""
    gateway = launch("gateway", "--config", file)
    assert gateway.address("lumberjack").startswith("tcp:127.0.0.1:")
    second = launch.run("gateway", "--config", file)
    assert second.returncode == 2
    assert "Traceback" not in second.stdout + second.stderr
    assert (second.stdout + second.stderr).count("msgproto: queue") == 1
    assert "open for writing already (process" in second.stdout
    gateway.signal(signal.SIGTERM)
    # twistd shuts down in peace and then ends by the same signal, as a shell expects it.
    assert gateway.wait() == -signal.SIGTERM
    assert "Server Shut Down." in gateway.output
    assert (launch.directory / "spool").is_dir()
    assert not list(launch.directory.glob("*.pid"))


RULES = """
[[access]]
deny = "*"
name = "topic/secret"
[[access]]
allow = ["publish", "subscribe"]
user = ["ada", "bob"]
protocol = "micromsg2"
"""


def test_what_is_in_force_for_every_protocol_runs_the_same(tmp_path: Path) -> None:
    from twisted_msgproto.cli.demo import gateway_file

    text = gateway_file(tmp_path / "spool", PROTOCOLS.values())
    text += "limit = { connections = 8 }\n[limits]\nhandshake = 5\nconnections = 7\n"
    text = text.replace("[status]", '[status]\ntoken-file = "token"')
    text = text.replace("[lumberjack]", "[lumberjack]\nreuse-port = true")
    configuration = Configuration(tomllib.loads(text + RULES))
    shown = "\n".join(configuration.lines())
    again = Configuration(tomllib.loads(shown))
    assert list(again.servers) == list(PROTOCOLS)
    assert "\n".join(again.lines()) == shown
    assert (again.queue, again.status) == (configuration.queue, configuration.status)
    assert again.access is not None and configuration.access is not None
    assert again.access.rules == configuration.access.rules
    limits = again.servers["mtl"]["limits"]
    assert (limits["handshake"], limits["connections"]) == (5.0, 8), "its own limit wins"
    for name, options in configuration.servers.items():
        for key in options.keys() - {"credInterfaces", "credCheckers", "limits"}:
            assert again.servers[name][key] == options[key], key
        assert dict(again.servers[name]["limits"]) == dict(options["limits"])


def start_daemon(launch: Launcher, name: str, endpoint: str) -> Launched:
    """Let twistd make a daemon of a server over ``spool``; what is given back ends before that."""
    return launch.command(
        [
            *(sys.executable, "-c", "from twisted.scripts.twistd import run; run()"),
            *(f"--pidfile={name}.pid", f"--logfile={name}.log"),
            *("lumberjack", "-e", endpoint, "--queue", f"{name}.spool"),
        ]
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no daemons here")
def test_a_daemon_writes_its_queue_and_tells_its_log_what_the_start_has_found(
    launch: Launcher,
) -> None:
    """LJ-13: twistd forks after the services were made; the queue's thread must not stay behind."""
    here, spool = launch.directory, launch.directory / "good.spool"
    written = threading.Event()
    writer = QueueWriter(spool)
    message = MessageBatch("test", "json", 1, count=1, body=[b"x"], nbytes=1)
    writer.submit(message, lambda error, first: written.set())
    assert written.wait(PATIENCE_SECONDS)
    writer.close()
    with (spool / f"{0:020d}.segment").open("ab") as segment:
        segment.write(b"torn")
    daemon = start_daemon(launch, "good", "unix:socket")
    assert daemon.wait() == 0, daemon.output  # it returns when its child serves
    pid = int((here / "good.pid").read_text())
    try:
        sent = launch.run("send", "lumberjack", "unix:socket", "--count", "10")
        log = (here / "good.log").read_text()
        assert sent.returncode == 0, sent.stdout + sent.stderr + log
        assert log.count("cut 4 bytes of an unfinished record") == 1
        assert (spool / "lock").read_text().split()[0] == str(pid)
    finally:
        os.kill(pid, signal.SIGTERM)
        assert wait_gone(pid)
    assert QueueReader(spool).end() == 11


def test_a_daemon_which_cannot_start_ends_with_one_line_in_its_log(launch: Launcher) -> None:
    here = launch.directory
    for name in ("locked", "deaf"):
        writer = QueueWriter(here / f"{name}.spool") if name == "locked" else None
        daemon = start_daemon(launch, name, "unix:nowhere/socket")
        try:
            assert daemon.wait() == 1
        finally:
            if writer is not None:
                writer.close()
        log = (here / f"{name}.log").read_text()
        why = "open for writing already" if writer is not None else "cannot listen on unix:nowhere"
        assert log.count("lumberjack: ") == 1
        assert why in log
        assert "Traceback" not in log + daemon.output
        until = time.monotonic() + PATIENCE_SECONDS
        while (here / f"{name}.pid").exists():  # who started it hears of its end before that
            assert time.monotonic() < until, "its file stays"


# ── what is open to others, sizes, paths, words ─────────────────────────────────────────────────


OPEN = "is open to other machines without TLS"


@pytest.mark.parametrize(
    ("endpoint", "is_open"),
    [
        ("tcp:0", True),
        ("tcp6:0", True),
        ("tcp:0:interface=0.0.0.0", True),
        (r"tcp6:0:interface=\:\:", True),
        ("haproxy:tcp:0", True),
        (LOOPBACK, False),
        (r"tcp6:0:interface=\:\:1", False),
        ("tcp:0:interface=127.0.0.9", False),
        ("unix:socket", False),
    ],
)
def test_check_warns_of_what_others_reach_without_tls__RD_27(
    tmp_path: Path, endpoint: str, is_open: bool
) -> None:
    """RD-27"""
    servers = ("lumberjack", "micromsg2", "sabc", "umq")
    tables = [f"[{name}]\nendpoint = '{endpoint}'\n" for name in servers]
    tables.insert(3, f"websocket = '{endpoint}'\n")  # of sabc
    (tmp_path / "g.toml").write_text("".join(tables))
    told = msgproto("check", "--file-only", tmp_path / "g.toml")
    for name in servers:
        assert (f"{name}: warning: {endpoint} {OPEN}" in told) is is_open
    assert told.count("warning") == 5 * is_open


def test_mtl_without_curve_is_warned_of_where_it_is_allowed__MT_31__RD_27(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    for endpoint, count in (("tcp://*:5049", 2), ("tcp://[::]:5049", 2), ("ipc://s", 0)):
        file.write_text(f"[mtl]\nendpoint = '{endpoint}'\ninsecure = true\n")
        assert msgproto("check", "--file-only", file).count("without CURVE") == count


def test_a_start_warns_of_what_others_reach_without_encryption__RD_27(launch: Launcher) -> None:
    certificates = Authority(launch.directory).server()
    (launch.directory / "g.toml").write_text(
        "[lumberjack]\nendpoint = ['tcp:0', 'unix:s', "
        f"'ssl:0:privateKey={certificates.key.name}:certKey={certificates.cert.name}']\n"
        "[micromsg2]\nendpoint = 'tcp6:0'\n"
        "[sabc]\nwebsocket = 'tcp:0:interface=0.0.0.0'\n"
        "[umq]\nendpoint = ['tcp:0', 'tcp:0:interface=127.0.0.1']\n"
        "[mtl]\nendpoint = 'tcp://*:*'\none-socket = true\ninsecure = true\n"
    )
    gateway = launch("gateway", "--config=g.toml")
    gateway.line("mtl listening")
    gateway.end()
    told = [line for line in gateway.output.splitlines() if "is open to other machines" in line]
    assert len(told) == len(PROTOCOLS)
    for name in PROTOCOLS:
        assert sum(f"{name}: " in line for line in told) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("10GiB", 10 << 30),
        ("10 GiB", 10 << 30),
        ("1.5 gib", 3 << 29),
        ("64MiB", 64 << 20),
        ("2048 KiB", 2 << 20),
        ("1TiB", 1 << 40),
        ("10GB", 10**10),
        ("5 MB", 5 * 10**6),
        ("2000kB", 2 * 10**6),
        ("1048576B", 1 << 20),
    ],
)
def test_a_size_may_have_a_unit_wherever_one_is_asked__RD_27(
    file: Path, text: str, size: int
) -> None:
    keys = ("max-bytes", "segment-bytes")
    table = {"directory": "q", **dict.fromkeys(keys, text)}
    limits = {"unsafe-bytes": text}
    made = Configuration({"queue": table, "limits": limits, "sabc": {}})
    assert [made.queue[key] for key in keys] == [size] * 2
    assert made.servers["sabc"]["limits"]["unsafe-bytes"] == size
    own = Configuration({"sabc": {"limit": limits}})
    assert own.servers["sabc"]["limits"]["unsafe-bytes"] == size
    words = [f"--set=queue.max-bytes={text}", f"--limit=unsafe-bytes={text}"]
    said = options_of(file, *words)["configuration"]
    assert said.queue["max-bytes"] == said.servers["lumberjack"]["limits"]["unsafe-bytes"] == size
    plugin = load("sabc", "service").Options()
    plugin.parseOptions([f"--limit=unsafe-bytes={text}"])
    assert plugin["limits"]["unsafe-bytes"] == size
    assert UmqServerFactory(limits={"unsafe-bytes": text}).limits["unsafe-bytes"] == size


@pytest.mark.parametrize(
    "text", ["10giga", "10 G", "GiB", "-1GiB", "1e9", "1,000", "", "10GiB/s", "٣MB"]
)
def test_a_size_with_a_wrong_unit_is_one_line__RD_27(
    text: str,
) -> None:
    units = "a number of bytes, or one with KiB, MiB, GiB, TiB, kB, MB, GB or TB"
    for tables in (
        {"queue": {"directory": "q", "max-bytes": text}, "sabc": {}},
        {"limits": {"unsafe-bytes": text}, "sabc": {}},
        {"sabc": {"limit": {"unsafe-bytes": text}}},
    ):
        with pytest.raises(ConfigurationError, match=units) as told:
            Configuration(tables)
        assert "\n" not in str(told.value)


def test_a_rate_may_have_its_unit__RD_27() -> None:
    for text in ("32KiB", "32KiB/s", 32768):
        made = Configuration({"sabc": {"limit": {"min-rate": text}}})
        assert made.servers["sabc"]["limits"]["min-rate"] == 32768


def test_commands_take_sizes_with_units__RD_27() -> None:
    for words in (["send", "lumberjack", "--count", "1"], ["bench", "lumberjack"]):
        assert "KiB, MiB" in msgproto(*words, "--size", "1 giga", status=2)
        # The size is accepted: what is wrong is the next option.
        assert "--window" in msgproto(*words, "--size", "1KiB", "--window", "0", status=2)


PATHS = """
[queue]
directory = "queue"
[status]
endpoint = "unix:page"
token-file = "token"
[lumberjack]
endpoint = ["unix:s", "ssl:0:privateKey={key}:certKey={cert}", "ssl:0:{key}:{cert}", "tls:keys:0",
  "mtls:0:privateKey={key}:certKey={cert}:caCerts=authority.pem:interface=127.0.0.1",
  "haproxy:unix:proxied"]
[micromsg2]
endpoint = ["{loopback}", "ssl:0", "haproxy:ssl:0", "ssl:0:server.pem"]
[sabc]
endpoint = '{loopback}'
websocket = "unix:web:mode=7777"
auth = ["passwords:users", "file:plain"]
[umq]
endpoint = ["unix:umq:lockfile=1", "tcp:0:interface=127.0.0.1:backlog=2147483647"]
[mtl]
endpoint = ["ipc://control", "tcp://127.0.0.1:*"]
curve-key = "curve.key"
curve-authorized = "curve.clients"
"""


def test_paths_in_a_file_are_those_of_its_directory__RD_27(
    launch: Launcher,
) -> None:
    place = launch.directory / "etc"
    (place / "keys").mkdir(parents=True)
    pair = Authority(place).server()
    public, secret = zmq.curve_keypair()
    for name, text in {
        "token": "0123456789abcdef",
        "plain": "bob:secret\n",
        "curve.key": secret.decode(),
        "curve.clients": public.decode(),
    }.items():
        (place / name).write_text(text)
    (place / "server.pem").write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    assert launch.run("passwd", "etc/users", "ada", stdin="s3cret\n").returncode == 0
    text = PATHS.format(key=pair.key.name, cert=pair.cert.name, loopback=LOOPBACK)
    (place / "g.toml").write_text(text)
    assert launch.run("check", "etc/g.toml").returncode == 0
    shown = launch.run("gateway", "--config=etc/g.toml", "--show-config").stdout
    (launch.directory / "shown.toml").write_text(shown)
    gateway = launch("gateway", "--config=etc/g.toml")
    gateway.line("mtl listening")
    for name in ("s", "web", "umq", "page", "queue/control", "control"):
        assert (place / name).is_socket(), name
    gateway.end()
    assert "factory" not in gateway.output
    assert sorted(one.name for one in launch.directory.iterdir()) == ["etc", "shown.toml"]
    again = Configuration(tomllib.loads(shown))
    assert again.queue["directory"] == str(place / "queue")


def test_paths_on_the_command_line_are_those_of_the_working_directory__RD_27(
    launch: Launcher,
) -> None:
    (launch.directory / "etc").mkdir()
    (launch.directory / "etc" / "g.toml").write_text(
        "[queue]\ndirectory = 'q'\n[lumberjack]\nendpoint = 'unix:s'\n"
    )
    gateway = launch(
        *("gateway", "--config=etc/g.toml", "--queue=mine", "--set=lumberjack.endpoint=unix:here")
    )
    gateway.line("listening")
    gateway.end()
    assert (launch.directory / "mine").is_dir()
    assert sorted(one.name for one in (launch.directory / "etc").iterdir()) == ["g.toml"]


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [
        ("lumberjack", "auth", "Lumberjack has no log-ins: use mtls: "),
        ("micromsg2", "auth", "MicroMsg2 has no log-ins: use mtls: "),
        ("lumberjack", "websocket", "Lumberjack has no WebSocket"),
        ("micromsg2", "origin", "MicroMsg2 has no WebSocket, so no web page can connect"),
        ("mtl", "origin", "MTL has no WebSocket"),
        ("umq", "websocket", "UMQ is on WebSocket alone: write endpoint"),
        ("sabc", "curve-key", "CURVE is for MTL alone: use mtls:"),
        ("lumberjack", "curve-authorized", "CURVE is for MTL alone: use mtls:"),
        ("mtl", "certKey", "ZeroMQ has no TLS: curve-key"),
        ("sabc", "tls", 'it is a part of the endpoint: "tls:DIRECTORY:PORT"'),
        ("umq", "port", 'it is a part of the endpoint: "tcp:PORT:interface=ADDRESS"'),
        ("lumberjack", "broker-queue", "it is an option of micromsg2"),
        ("lumberjack", "queue-full", "it is an option of micromsg2, mtl"),
        ("sabc", "ingest", "it is an option of umq"),
        ("umq", "lenient", "it is an option of sabc"),
        ("micromsg2", "virtual-host", "it is an option of mtl"),
    ],
)
def test_an_option_that_a_server_has_not_is_told_with_the_reason__RD_27(
    name: str, key: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as told:
        Configuration({name: {key: "x"}})
    assert str(told.value).startswith(f"[{name}] {key}: {reason}")
    for words in ([f"--{key}=x"], [f"--{key}", "x"]):
        with pytest.raises(SystemExit) as ended:
            load(name, "service").Options().parseOptions(words)
        assert str(ended.value).startswith(f"{name}: --{key}: {reason}")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("queue", "the queue of all servers is [queue] directory"),
        ("status", "the live page is [status] endpoint"),
        ("json-log", "it is a word of the command line"),
    ],
)
def test_a_key_that_is_of_all_servers_is_told_with_its_place__RD_27(key: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        Configuration({"sabc": {key: "x"}})
    assert f"[sabc] {key}: {reason}" in str(told.value)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("tcp", "its port is missing"),
        ("tcp:", "its port is missing"),
        ("tcp:x", "port is a number from 0 to 65535, not 'x'"),
        ("tcp:65536", "port is a number from 0 to 65535, not '65536'"),
        ("tcp:-1", "port is a number from 0 to 65535, not '-1'"),
        ("tcp6:x", "port is a number from 0 to 65535"),
        ("tcp:0:port=5", "port is given twice"),
        ("tcp:0:fast=1", "tcp: has no option 'fast'; it has port, interface, backlog"),
        ("tcp:0:intreface=::", "has no option 'intreface' (did you mean 'interface'?)"),
        ("tcp:1:2:3:4", "'4' is more than tcp: takes, which is port, interface, backlog"),
        ("tcp:0:backlog=x", "backlog is a whole number, not 'x'"),
        ("tcp:0:backlog=2147483648", "backlog is a whole number, not '2147483648'"),
        ("tcp6:0:mode=1", "tcp6: has no option 'mode'"),
        ("unix:", "its path is missing"),
        ("unix:s:mode=888", "mode is an octal number like 600, not '888'"),
        ("unix:s:mode=10000", "mode is an octal number like 600, not '10000'"),
        ("unix:s:lockfile=2", "lockfile is 0 or 1, not '2'"),
        ("tls:", "its directory is missing"),
        ("tls:5044", "no directory '5044'; the directory comes first: tls:DIRECTORY:PORT"),
        ("tls:.:x", "port is a number from 0 to 65535, not 'x'"),
        ("ssl:x", "port is a number"),
        ("ssl:0:privatKey=k", "has no option 'privatKey' (did you mean 'privateKey'?)"),
        ("ssl:0:privateKey=no.pem", "cannot read no.pem: No such file or directory"),
        ("ssl:0", "cannot read server.pem: No such file or directory"),
        ("mtls:", "its port is missing"),
        ("mtls:0:privateKey=no.pem:caCerts=no.pem", "cannot read no.pem"),
        ("mtls:0:verify=none", "privateKey=FILE is missing"),
        ("mtls:0:privateKey=k:verify=may", "verify is one of none, peer, force_peer, not 'may'"),
        ("mtls:0:privateKey=k", "verify=force_peer needs caCerts=FILE"),
        ("mtls:0:privateKey=k:verify=peer:extraCertChain=c:caCerts=.", "caCerts: cannot read .: "),
        ("mtls:0:privateKey=k:verify=none:extraCertChain=c", "extraCertChain: cannot read c: "),
        ("mtls:0:verfy=peer", "has no option 'verfy' (did you mean 'verify'?)"),
        ("systemd:INET:index=7", "no socket of this index or name was passed to this process"),
        ("systemd:INET:name=web", "no socket of this index or name was passed to this process"),
        ("haproxy:", "there is no kind ''"),
        ("haproxy", "haproxy: stands in front of another endpoint"),
        ("systemd:INET", "Specify exactly one of descriptor index or name; it is written"),
        ("haproxy:tcp:x", "port is a number"),
        ("tpc:0", "there is no kind 'tpc' (did you mean 'tcp'?); known: tcp, tcp6, tls, ssl, mtls"),
        ("udp:0", "there is no kind 'udp'"),
        ("", "there is no kind ''"),
        ("=", "there is no kind ''"),
        ("tcp\\", "there is no kind 'tcp"),
    ],
)
def test_what_is_wrong_in_an_endpoint_is_told_in_our_words__RD_27(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = []
    for tables in (
        {"lumberjack": {"endpoint": endpoint}},
        {"sabc": {"websocket": endpoint}},
        {"umq": {}, "status": {"endpoint": endpoint}},
    ):
        with pytest.raises(ConfigurationError) as error:
            Configuration(tables)
        told.append(str(error.value))
    if endpoint == "":
        assert told.pop() == "[status]: endpoint is missing"
    for text in told:
        assert "bad endpoint" in text
        assert says in text
        assert "_parse" not in text and "()" not in text and "literal" not in text
