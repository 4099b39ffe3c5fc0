"""``twistd msgproto``: one process from one file; what is wrong in the file is one line."""

import os
import signal
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from tests.tools.processes import PATIENCE_SECONDS, Launched, Launcher, wait_gone
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.gateway import Configuration, Options
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.registry import PROTOCOLS, load

LOOPBACK = "tcp:0:interface=127.0.0.1"

FILE = f"""
[queue]
directory = "spool"
commit-delay = 0.001
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
        "--set=queue.max-bytes=1000000000",
    )["configuration"]
    assert configuration.queue["directory"] == "elsewhere"
    assert configuration.queue["max-bytes"] == 1_000_000_000
    assert configuration.servers["lumberjack"]["endpoints"] == ["tcp:1"]
    assert configuration.servers["lumberjack"]["limits"]["handshake"] == 6.0


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
        ("[lumberjack]\nqueue = 'x'", "unknown key 'queue'"),
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
        ("[lumberjack]\n[limits]\nx = 1", r"\[limits\]: no server here has a limit 'x'"),
        ("[lumberjack]\n[queue]", r"\[queue\]: directory is missing"),
        ("[lumberjack]\n[queue]\ndir = 1", r"\[queue\]: unknown key 'dir'; known: directory"),
        ("[lumberjack]\n[queue]\ndirectory = 1", r"directory is a text, not 1"),
        (
            "[lumberjack]\n[queue]\ndirectory='x'\nmax-bytes=true",
            "max-bytes is a whole number, not True",
        ),
        ("[lumberjack]\n[queue]\ndirectory='x'\nmax-bytes=-1", "max-bytes is at least 0, not -1"),
        ("[lumberjack]\n[queue]\ndirectory='x'\ncommit-delay=nan", "commit-delay is at least 0"),
        ("[lumberjack]\n[queue]\ndirectory='x'\ncommit-delay=inf", "commit-delay is at least 0"),
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


def test_without_a_file_it_says_what_is_needed() -> None:
    with pytest.raises(SystemExit, match="--config FILE is needed"):
        Options().parseOptions([])


def test_what_is_in_force_is_shown_as_toml_which_runs_the_same(file: Path) -> None:
    shown = "\n".join(options_of(file)["configuration"].lines())
    again = Configuration(tomllib.loads(shown))
    assert again.queue == {"directory": "spool", "commit-delay": 0.001}
    assert again.servers["lumberjack"]["endpoints"] == [LOOPBACK, LOOPBACK]
    limits = again.servers["lumberjack"]["limits"]
    assert (limits["handshake"], limits["connections"]) == (5.0, 8), "its own limit wins"
    assert "\n".join(again.lines()) == shown


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
    gateway = launch("gateway", "--config", file)
    assert gateway.address("lumberjack").startswith("tcp:127.0.0.1:")
    gateway.signal(signal.SIGTERM)
    # twistd shuts down in peace and then ends by the same signal, as a shell expects it.
    assert gateway.wait() == -signal.SIGTERM
    assert "Server Shut Down." in gateway.output
    assert (launch.directory / "spool").is_dir()
    assert not list(launch.directory.glob("*.pid"))


def test_two_servers_over_one_queue_directory_are_refused_in_one_line(
    launch: Launcher, file: Path
) -> None:
    first = launch("gateway", "--config", file)
    first.address("lumberjack")
    second = launch.run("gateway", "--config", file)
    assert second.returncode != 0
    assert "Traceback" not in second.stdout + second.stderr
    assert (second.stdout + second.stderr).count("msgproto: queue") == 1
    assert "open for writing already (process" in second.stdout


def test_the_gateway_can_be_run_by_twistds_plugin(launch: Launcher, file: Path) -> None:
    gateway = launch("msgproto", "--config", file, module="twisted")
    gateway.address("lumberjack")
    assert gateway.end() == -signal.SIGTERM
    assert "Main loop terminated." in gateway.output


def test_what_is_in_force_for_every_protocol_runs_the_same(tmp_path: Path) -> None:
    from twisted_msgproto.cli.demo import gateway_file

    configuration = Configuration(
        tomllib.loads(gateway_file(tmp_path / "spool", PROTOCOLS.values()))
    )
    shown = "\n".join(configuration.lines())
    again = Configuration(tomllib.loads(shown))
    assert list(again.servers) == list(PROTOCOLS)
    assert "\n".join(again.lines()) == shown
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no daemons here")
@pytest.mark.parametrize("words", [[], ["--json-log"]], ids=["text", "JSON"])
def test_a_daemon_has_no_standard_output_to_log_to(launch: Launcher, words: list[str]) -> None:
    run = "from twisted.scripts.twistd import run; run()"
    endpoint = "tcp:0:interface=127.0.0.1"
    command = [sys.executable, "-c", run, "--logfile=-", "lumberjack", "-e", endpoint, *words]
    daemon = launch.command(command)
    daemon.line("Daemons cannot log to stdout")
    assert daemon.wait() == 1
    assert not (launch.directory / "twistd.pid").exists()


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
        assert not (here / f"{name}.pid").exists()
