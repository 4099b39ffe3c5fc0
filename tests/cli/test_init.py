"""``msgproto init`` writes files with which a gateway starts."""

import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.tools.processes import PROJECT, Launcher
from twisted_msgproto import cli, registry
from twisted_msgproto.cli.init import escaped
from twisted_msgproto.cli.status import DEFAULT_URL

UNITS = ("msgproto-gateway.service", "msgproto-bridge.service")
TEMPLATE = "msgproto-gateway@.service"
PACKAGED = PROJECT / "packaging" / TEMPLATE

CONFINED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "full",
    "PrivateDevices": "yes",
    "ProtectKernelTunables": "yes",
    "RestrictNamespaces": "yes",
    # A table may be anywhere, and ZeroMQ and Java look up interfaces through netlink.
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
}


def directives(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")


def test_the_file_has_every_protocol_and_check_accepts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", str(tmp_path / "new")]) == 0
    file = tmp_path / "new" / "gateway.toml"
    tables = tomllib.loads(file.read_text())
    assert list(tables) == ["queue", "status", *registry.PROTOCOLS]
    assert tables["queue"]["directory"] == str(tmp_path / "new" / "queue")
    port = DEFAULT_URL.rpartition(":")[2]  # `msgproto status` finds the gateway by itself
    assert tables["status"]["endpoint"] == f"tcp:{port}:interface=127.0.0.1"
    assert f"msgproto gateway --config {file}" in capsys.readouterr().out
    # Its ports are the default ones, and may be in use here.
    assert cli.main(["check", "--file-only", str(file)]) == 0


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


def test_nothing_that_exists_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / UNITS[0]).write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert UNITS[0] in told and "nothing was written" in told and told.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [UNITS[0]]
    assert (tmp_path / UNITS[0]).read_text() == "mine"


def test_a_directory_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["init", str(tmp_path / "file" / "below")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_units_run_this_installation_as_the_user_that_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "a place"
    assert cli.main(["init", str(directory), "--user", "events", "--table", "s3://b/t"]) == 0
    gateway, bridge = (directives((directory / name).read_text()) for name in UNITS)
    for unit in (gateway, bridge):
        assert unit["User"] == "events"
        assert Path(shlex.split(unit["ExecStart"])[0]).exists()
    assert shlex.split(gateway["ExecStart"])[-1] == str(directory / "gateway.toml")
    assert shlex.split(bridge["ExecStart"])[-4:] == [
        "--queue",
        str(directory / "queue"),
        "--table",
        "s3://b/t",
    ]
    assert int(gateway["LimitNOFILE"]) >= 10_000


@pytest.mark.parametrize("name", [*UNITS, TEMPLATE])
def test_units_start_again_for_ever_and_are_confined(tmp_path: Path, name: str) -> None:
    assert cli.main(["init", str(tmp_path), *(["--instances=2"] if name == TEMPLATE else [])]) == 0
    unit = directives((tmp_path / name).read_text())
    assert (unit["Restart"], unit["StartLimitIntervalSec"]) == ("always", "0")
    assert int(unit["TimeoutStopSec"]) > 5  # a gateway ends within 5 s
    for key, value in CONFINED.items():
        assert unit[key] == value
    if name != UNITS[1]:
        assert (unit["Type"], unit["TimeoutStartSec"]) == ("notify", "infinity")
        assert int(unit["WatchdogSec"]) > 5


def test_instances_share_the_ports_and_have_a_queue_and_a_page_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "100% a"
    assert cli.main(["init", str(here), "--instances", "2", "--user", "events"]) == 0
    told = capsys.readouterr().out
    assert "It serves no mtl, which cannot share a port." in told
    assert "enable --now msgproto-gateway@1.service msgproto-gateway@2.service" in told
    tables = tomllib.loads((here / "gateway.toml").read_text())
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
    assert bridge["After"].split()[1:] == [
        "msgproto-gateway@1.service",
        "msgproto-gateway@2.service",
    ]


@pytest.mark.parametrize("words", [["--instances=0"], ["--instances=x"], ["--instances=65"]])
def test_a_number_of_instances_that_cannot_be_is_one_line(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["init", str(tmp_path), *words])
    assert "a number from 1 to 64 is expected" in capsys.readouterr().err


def test_a_protocol_that_cannot_share_a_port_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", str(tmp_path), "--instances=2", "--protocol=mtl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--protocol mtl goes without --instances: a session has several connections" in line
    assert not list(tmp_path.iterdir())


def test_the_packaged_template_is_the_one_that_is_written(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path), "--instances=2", "--user=msgproto"]) == 0
    written = directives((tmp_path / TEMPLATE).read_text())
    packaged = directives(PACKAGED.read_text())
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
