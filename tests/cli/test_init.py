"""``msgproto init`` writes files with which a gateway starts."""

import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.tools.processes import Launcher
from twisted_msgproto import cli, registry
from twisted_msgproto.cli.init import escaped
from twisted_msgproto.cli.status import DEFAULT_URL

UNITS = ("msgproto-gateway.service", "msgproto-bridge.service")

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
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


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


@pytest.mark.parametrize("name", UNITS)
def test_units_start_again_for_ever_and_are_confined(tmp_path: Path, name: str) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    unit = directives((tmp_path / name).read_text())
    assert (unit["Restart"], unit["StartLimitIntervalSec"]) == ("always", "0")
    assert int(unit["TimeoutStopSec"]) > 5  # a gateway ends within 5 s
    for key, value in CONFINED.items():
        assert unit[key] == value


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed: apt-get install systemd",
)
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path / "a place $HOME 100%")]) == 0
    found = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", *UNITS],
        cwd=tmp_path / "a place $HOME 100%",
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
